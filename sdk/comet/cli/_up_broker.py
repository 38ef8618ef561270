"""`comet up` with one broker: it runs in this process, the gateway in another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from comet.cli._gateway_process import GatewayProcess, banner
from comet.cli._options import DEFAULT_BOOTSTRAP
from comet.cli._output import exports, print_json

if TYPE_CHECKING:
    from comet_broker.config import BrokerConfig
    from comet_broker.server import Server


def up_broker(
    config: BrokerConfig,
    gateway_port: int | None,
    gateway_environment: Mapping[str, str] | None,
    gateway_options: Sequence[str],
    *,
    ephemeral: bool,
    as_json: bool,
    variables: Mapping[str, str],
) -> None:
    """Runs until a signal; then ends the gateway first, so that its clients are told. The broker serves while the
    gateway starts, so that a signal is handled then too. `variables` are those that clients need."""
    from comet_broker.server import serve

    @asynccontextmanager
    async def beside(server: Server) -> AsyncIterator[None]:
        def announce(url: str | None) -> None:
            _announce(server.address, url, config.data, ephemeral, as_json, variables)

        if gateway_port is None:
            announce(None)
            yield
            return
        gateway = GatewayProcess(_reached_at(server), gateway_port, config.data, gateway_environment, gateway_options)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(gateway.keep(announce))
            try:
                yield
            finally:
                gateway.end()

    try:
        serve(config, beside=beside)
    except ExceptionGroup as group:  # it could not be started, or the announcement not printed
        raise group.exceptions[0] from None


def _reached_at(server: Server) -> str:
    """The broker's address for clients on this machine."""
    host, _, port = server.address.rpartition(":")
    return f"127.0.0.1:{port}" if host == "0.0.0.0" else server.address  # noqa: S104 - compared, not bound


def _announce(
    address: str, url: str | None, folder: Path, ephemeral: bool, as_json: bool, variables: Mapping[str, str]
) -> None:
    if as_json:
        document = {"address": address, "gateway": url, "data": str(folder), "ephemeral": ephemeral}
        print_json(document | {"environment": dict(variables)})
    else:
        print(_next_steps(address, url, folder, ephemeral, variables), flush=True)


def _next_steps(address: str, url: str | None, folder: Path, ephemeral: bool, variables: Mapping[str, str]) -> str:
    """The next commands, ready to paste; with the address unless it is the default."""
    port = address.rpartition(":")[2]
    local = f"localhost:{port}" == DEFAULT_BOOTSTRAP
    at = "" if local else f" -b {address}"
    data = f"data in {folder}{' (deleted on exit)' if ephemeral else ''}"
    return f"""\
{banner(url, f"broker at {address}, {data}")}

{exports(variables)}  comet topic create quotes{at}
  comet consume quotes{at}                  in a second terminal
  echo hello | comet produce quotes{at}     in a third
  comet --help

Ctrl-C stops it."""
