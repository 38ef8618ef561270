"""`comet broker`: one broker of a real deployment. Its options are made from the broker's table of settings, so that
this command, the environment and the settings file always agree."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import typer
from typer.core import TyperCommand

from comet.cli._guard import guarded
from comet.cli._options import Json
from comet.cli._output import note, print_json
from comet.cli._panels import BROKER_PANELS, LazyCommand, PanelCommand, with_settings
from comet.errors import Unavailable

if TYPE_CHECKING:
    from comet_broker.server import Server

ABOUT: Final = """\
Run one broker of a cluster, or a single one; SIGTERM or Ctrl-C drains and stops it. Settings can also be in the
environment (--session-ms as COMET_SESSION_MS) or in the file of --config or COMET_CONFIG (session_ms = "3s"). A flag
overrides the environment, and the environment the file. The password for etcd has no flag."""


class BrokerCommand(LazyCommand):
    """`comet broker` with its options."""

    def made(self) -> TyperCommand:
        from comet_broker.settings import TABLE

        alone = typer.Typer(rich_markup_mode=None, add_completion=False)
        alone.command("broker", help=ABOUT, cls=PanelCommand)(with_settings(broker, TABLE, BROKER_PANELS))
        found = typer.main.get_command(alone)
        assert isinstance(found, TyperCommand)
        return found


COMMAND = BrokerCommand


@guarded
def broker(json_output: Json = False, **settings: str | None) -> None:
    """Run one broker of a cluster; its metadata is in etcd."""
    from comet_broker.metadata.store import StoreUnavailable
    from comet_broker.server import serve, set_up_broker_logging
    from comet_broker.settings import load

    loaded = load(settings, os.environ)
    config = loaded.config
    set_up_broker_logging(loaded.log_level, loaded.log_format, config.broker_id)

    def ready(server: Server) -> None:
        data = str(config.data.resolve())
        if json_output:
            print_json({"id": config.broker_id, "address": server.address, "data": data, "etcd": list(config.etcd)})
            return
        where = f"cluster {config.cluster!r} in etcd at {', '.join(config.etcd)}" if config.etcd else "alone"
        print(f"broker {config.broker_id} is up at {server.address}, {where}, data in {data}", flush=True)

    try:
        serve(config, ready)
    except StoreUnavailable as error:
        hint = f"check it: comet doctor --etcd {','.join(config.etcd)}"
        raise Unavailable(f"etcd does not answer: {error}", details={"hint": hint}) from None
    if not json_output:
        note("stopped")
