"""`comet broker`: one broker of a real deployment. The broker itself makes the parser from its table of settings, so
that this command, the environment and the settings file always agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from comet.cli._guard import guarded
from comet.cli._options import PASSED_ON, Json
from comet.cli._output import note, print_json
from comet.cli._panels import BROKER_PANELS, settings_parser
from comet.errors import Unavailable

if TYPE_CHECKING:
    from comet_broker.server import Server

PASS_ON = PASSED_ON
ABOUT: Final = """\
Run one broker of a cluster, or a single one; SIGTERM or Ctrl-C drains and stops it. Settings can also be in the
environment (--session-ms as COMET_SESSION_MS) or in the file of --config or COMET_CONFIG (session_ms = "3s"). A flag
overrides the environment, and the environment the file. The password for etcd has no flag."""


@guarded
def broker(context: typer.Context, json_output: Json = False) -> None:
    """Run one broker of a cluster; its metadata is in etcd."""
    import os

    from comet_broker.metadata.store import StoreUnavailable
    from comet_broker.server import serve, set_up_logging
    from comet_broker.settings import TABLE, parse

    parser = settings_parser(context.command_path, ABOUT, TABLE, BROKER_PANELS)
    arguments = parse(parser, context.args, os.environ)
    set_up_logging(arguments.log_level)
    config = arguments.config

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
