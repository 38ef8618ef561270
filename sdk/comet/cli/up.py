"""`comet up`: a broker in this process, or several as processes of their own, with all they keep in one folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from comet.cli._guard import guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Json
from comet.cli._output import note, print_json
from comet.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from comet_broker.server import Server

DEFAULT_DATA: Final = Path("comet-data")


@guarded
def up(
    data: Annotated[
        Path, typer.Option("--data", "-d", help="Folder for everything that is kept; made if missing.")
    ] = DEFAULT_DATA,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="The first broker's; 0 picks a free one.")
    ] = 9092,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    advertised_host: Annotated[
        str, typer.Option("--advertised-host", help="What clients are told, where it differs from --host.")
    ] = "",
    broker_id: Annotated[int, typer.Option("--broker-id", min=1, help="The broker's number in the cluster.")] = 1,
    brokers: Annotated[
        int, typer.Option("--brokers", min=1, max=9, help="More than one: a cluster on this machine, with etcd.")
    ] = 1,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Keep the data in a temporary folder, gone on exit.")
    ] = False,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "warning",
    json_output: Json = False,
) -> None:
    """Start a broker, or a cluster of several on this machine; Ctrl-C stops it in good order."""
    if log_level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise typer.BadParameter("give debug, info, warning or error", param_hint="--log-level")
    if brokers > 1 and broker_id != 1:
        raise typer.BadParameter("the brokers of a cluster on one machine count from 1", param_hint="--broker-id")
    with _data_folder(data, ephemeral) as folder:
        if brokers > 1:
            from comet.cli._local_cluster import LocalCluster
            from comet.cli._up_cluster import up_cluster

            settings = {"log_level": log_level.lower(), "advertised_host": advertised_host}
            cluster = LocalCluster(folder, brokers, host=host, port=port, settings=settings)
            up_cluster(cluster, ephemeral=ephemeral, as_json=json_output)
        else:
            import logging

            from comet_broker.config import BrokerConfig
            from comet_broker.server import serve

            logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
            if (folder / "etcd").exists():
                raise InvalidArgument(
                    f"{folder} holds several brokers: give their number with --brokers, or another --data"
                )
            config = BrokerConfig(
                data=folder, host=host, port=port, advertised_host=advertised_host, broker_id=broker_id
            )
            serve(config, _announce(folder, ephemeral, json_output))
    if not json_output:
        note("stopped" if ephemeral else f"stopped; the data is in {folder}")


@contextmanager
def _data_folder(data: Path, ephemeral: bool) -> Iterator[Path]:
    if not ephemeral:
        yield data.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="comet-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _announce(folder: Path, ephemeral: bool, json_output: bool) -> Callable[[Server], None]:
    def ready(server: Server) -> None:
        if json_output:
            print_json({"address": server.address, "data": str(folder), "ephemeral": ephemeral})
        else:
            print(_next_steps(server.address, folder, ephemeral), flush=True)

    return ready


def _next_steps(address: str, folder: Path, ephemeral: bool) -> str:
    """What to type next, ready to paste: with the address, unless it is the one commands take by themselves."""
    port = address.rpartition(":")[2]
    local = f"localhost:{port}" == DEFAULT_BOOTSTRAP
    at = "" if local else f" -b {address}"
    return f"""\
Comet is up at {address}, data in {folder}{" (gone on exit)" if ephemeral else ""}

  comet topic create quotes{at}
  comet consume quotes{at}                  in a second terminal
  echo hello | comet produce quotes{at}     in a third
  comet --help

Ctrl-C stops it."""
