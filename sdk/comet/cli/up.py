"""`comet up`: a broker in this process, or several in separate ones, with a gateway and one data folder."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from comet.cli._guard import guarded
from comet.cli._options import Json
from comet.cli._output import note
from comet.errors import InvalidArgument
from comet.processes.logs import LOG_FORMATS, log_format_of, set_up_logging

if TYPE_CHECKING:
    from comet.cli.security import SecuredFolder

DEFAULT_DATA: Final = Path("comet-data")
DEFAULT_GATEWAY_PORT: Final = 8080
DEFAULT_METRICS_PORT: Final = 9095


@guarded
def up(
    data: Annotated[Path, typer.Option("--data", "-d", help="Folder for all data; created if missing.")] = DEFAULT_DATA,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="The first broker's port; 0: any free one.")
    ] = 9092,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    advertised_host: Annotated[
        str, typer.Option("--advertised-host", help="Address for clients, if it differs from --host.")
    ] = "",
    wire_port: Annotated[
        int, typer.Option("--wire-port", min=0, max=65535, help="The first broker's port of the wire; 0: any free one.")
    ] = 0,
    broker_id: Annotated[int, typer.Option("--broker-id", min=1, help="The broker's id.")] = 1,
    brokers: Annotated[
        int, typer.Option("--brokers", min=1, max=9, help="More than one: a cluster on this machine, with etcd.")
    ] = 1,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Keep the data in a temporary folder, deleted on exit.")
    ] = False,
    gateway: Annotated[
        bool, typer.Option("--gateway/--no-gateway", help="Also serve HTTP, WebSocket and SSE on this machine.")
    ] = True,
    gateway_port: Annotated[
        int | None,
        typer.Option("--gateway-port", min=0, max=65535, help="8080; any free port with 0, or with --port 0."),
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option("--origins", metavar="ORIGIN", help="Pages from there may call the gateway too; may repeat."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port", min=0, max=65535, help="The first broker's /metrics; 0 for none. [9095, if free]"
        ),
    ] = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure", help="TLS and rules, for clients with a certificate; made in DATA/security if missing."
        ),
    ] = False,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "warning",
    log_format: Annotated[
        str | None, typer.Option("--log-format", help="text, or json; default: COMET_LOG_FORMAT, or text.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Start a broker, or a cluster on this machine, with a gateway; Ctrl-C stops everything in order."""
    if log_level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise typer.BadParameter("use debug, info, warning or error", param_hint="--log-level")
    if log_format not in (None, *LOG_FORMATS):
        raise typer.BadParameter(f"use {' or '.join(LOG_FORMATS)}", param_hint="--log-format")
    log_format = log_format or log_format_of(os.environ)
    set_up_logging(log_level, log_format)
    if brokers > 1 and broker_id != 1:
        raise typer.BadParameter("with --brokers, ids count from 1: leave it out", param_hint="--broker-id")
    wanted = (DEFAULT_GATEWAY_PORT if port else 0) if gateway_port is None else gateway_port
    options = ["--log-format", log_format, *_gateway_options(origins or [], gateway)]
    metrics = _metrics_port(host, brokers if port else 0) if metrics_port is None else metrics_port
    with _data_folder(data, ephemeral) as folder:
        secured = _secured(folder, brokers, [host, advertised_host]) if secure else None
        of_the_log = {"log_level": log_level.lower(), "log_format": log_format}
        settings = {"host": host, "advertised_host": advertised_host, **of_the_log}
        own = secured.brokers if secured else [{} for _ in range(brokers)]
        if wire_port:
            own = [{**one, "wire_port": str(wire_port + number)} for number, one in enumerate(own)]
        for one in own:
            _check_listeners(settings | one, brokers)
        environment = None if secured is None else {**os.environ, **secured.gateway}
        variables = _around_contexts(secured.admin if secured else {})
        if brokers > 1:
            from comet.cli._gateway_process import GatewayProcess
            from comet.cli._local_cluster import LocalCluster
            from comet.cli._up_cluster import up_cluster

            if secured:
                settings["brokers_port"] = "0"
            cluster = LocalCluster(
                folder, brokers, host=host, port=port, metrics_port=metrics, settings=settings, own_settings=own
            )
            beside = GatewayProcess(cluster.addresses, wanted, folder, environment, options) if gateway else None
            up_cluster(cluster, beside, ephemeral=ephemeral, as_json=json_output, variables=variables)
        else:
            from comet.cli._up_broker import up_broker
            from comet_broker.server import set_up_broker_logging
            from comet_broker.settings import load

            set_up_broker_logging(log_level, log_format, broker_id)
            if (folder / "etcd").exists():
                raise InvalidArgument(
                    f"{folder} holds the data of several brokers: give --brokers N, or another --data DIR"
                )
            settings |= {"data": str(folder), "id": str(broker_id), "port": str(port), "metrics_port": str(metrics)}
            # Without other brokers it needs no listener for them.
            alone = {name: value for name, value in own[0].items() if not name.startswith("brokers_")}
            config = load(settings | alone, {}).config
            up_broker(
                config,
                wanted if gateway else None,
                environment,
                options,
                ephemeral=ephemeral,
                as_json=json_output,
                variables=variables,
            )
    if not json_output:
        note("stopped" if ephemeral else f"stopped; the data is in {folder}")


def _gateway_options(origins: Sequence[str], gateway: bool) -> list[str]:
    """The options of the gateway. Raises InvalidArgument for those that it would refuse."""
    if not origins:
        return []
    if not gateway:
        raise InvalidArgument("--origins is for the gateway: leave --no-gateway out")
    from comet_gateway.http.origins import checked_origin

    return ["--origins", ",".join(map(checked_origin, origins))]


def _secured(folder: Path, brokers: int, hosts: Sequence[str]) -> SecuredFolder:
    """The settings of TLS and rules; this process is then the administrator."""
    from comet.cli.security import secured_folder

    folder.mkdir(parents=True, exist_ok=True)
    found = secured_folder(folder, brokers, [host for host in hosts if host != "0.0.0.0"])  # noqa: S104
    os.environ.update(found.admin)
    return found


def _check_listeners(settings: Mapping[str, str], brokers: int) -> None:
    """Refuses what a broker would refuse, before any process is started. Raises InvalidArgument."""
    from comet_broker.rpc.listeners import check_listeners
    from comet_broker.settings import load

    try:
        check_listeners(load(settings, {}).config)
    except InvalidArgument as error:
        if "clients_cert" in settings:
            raise
        number = f" --brokers {brokers}" if brokers > 1 else ""
        hint = f"start it with certificates: comet up --secure --host {settings['host']}{number}"
        raise InvalidArgument(error.message, details={"hint": hint}) from None


def _around_contexts(variables: Mapping[str, str]) -> Mapping[str, str]:
    """The variables of clients, which reach this cluster also if a context of another one is in use."""
    from comet.client.contexts import NO_CONTEXT, read_contexts
    from comet.settings.client import CONTEXT_VARIABLE

    chosen = os.environ.get(CONTEXT_VARIABLE)
    try:
        in_use = (chosen or read_contexts().current) not in ("", NO_CONTEXT)
    except InvalidArgument:
        in_use = True  # commands would refuse the file
    return {**variables, CONTEXT_VARIABLE: NO_CONTEXT} if in_use else variables


def _metrics_port(host: str, brokers: int) -> int:
    """The default port, or 0 if it is in use: a default must not keep a broker from starting."""
    from comet.processes.ports import LOCALHOST, listening

    here = LOCALHOST if host == "0.0.0.0" else host  # noqa: S104 - compared, not bound
    ports = range(DEFAULT_METRICS_PORT, DEFAULT_METRICS_PORT + brokers)
    return DEFAULT_METRICS_PORT if brokers and not any(listening(f"{here}:{port}") for port in ports) else 0


@contextmanager
def _data_folder(data: Path, ephemeral: bool) -> Iterator[Path]:
    if not ephemeral:
        yield data.resolve()
        return
    with _ended_in_order():
        folder = Path(tempfile.gettempdir()) / f"comet-{secrets.token_hex(8)}"  # known before it exists
        try:
            folder.mkdir(0o700)
            yield folder
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Makes SIGTERM end the program with its clean-up, as Ctrl-C does, while the broker starts or stops."""
    before = signal.getsignal(signal.SIGTERM)
    ours = before == signal.SIG_DFL and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, before)


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
