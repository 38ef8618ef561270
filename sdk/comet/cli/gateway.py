"""`comet gateway`: the HTTP server of a cluster. The gateway itself makes the parser from its table of settings;
`comet gateway token` makes a token and its row of the tokens file."""

from __future__ import annotations

from typing import Final

import typer

from comet.cli._guard import guarded
from comet.cli._options import PASSED_ON, Json
from comet.cli._output import note, print_json
from comet.cli._panels import GATEWAY_PANELS, HelpFormatter, settings_parser

PASS_ON = PASSED_ON
ABOUT: Final = """\
Serve a cluster over HTTP, WebSocket and server-sent events; SIGTERM or Ctrl-C drains and stops it, SIGHUP reloads the
tokens file. Settings can also be in the environment (--drain-s as COMET_GATEWAY_DRAIN_S) or in the file of
--config or COMET_GATEWAY_CONFIG (drain_s = "20s"). A flag overrides the environment, and the environment the file.
`comet gateway token NAME --role viewer|operator|admin` makes a token and its row of the tokens file."""


@guarded
def gateway(context: typer.Context, json_output: Json = False) -> None:
    """Run a gateway: HTTP, WebSocket and SSE for a cluster. `comet gateway token` makes a token."""
    import os

    if context.args[:1] == ["token"]:
        _token(context.command_path, context.args[1:], json_output)
        return
    from comet_gateway.server import serve, set_up_logging
    from comet_gateway.settings import TABLE, parse

    parser = settings_parser(context.command_path, ABOUT, TABLE, GATEWAY_PANELS)
    parsed = parse(parser, context.args, os.environ)
    set_up_logging(parsed.log_level)

    def ready(url: str) -> None:
        if json_output:
            print_json({"url": url, "bootstrap": parsed.config.bootstrap, "pid": os.getpid()})
            return
        page = f", its API at {url}/docs" if parsed.config.docs else ""
        print(f"gateway is up at {url} for the brokers at {parsed.config.bootstrap}{page}", flush=True)

    serve(parsed.config, ready)
    if not json_output:
        note("stopped")


def _token(command: str, arguments: list[str], as_json: bool) -> None:
    """Makes a token, which is shown once and stored nowhere, and its row, which is not secret."""
    import argparse

    from comet_gateway.http.auth import new_token

    parser = argparse.ArgumentParser(
        prog=f"{command} token",
        description="Make a bearer token and its row of the tokens file.",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("name", help="The name of the token's holder in the audit log.")
    parser.add_argument("--role", choices=("viewer", "operator", "admin"), default="viewer")
    parsed = parser.parse_args(arguments)
    token, row = new_token(parsed.name, parsed.role)
    if as_json:
        print_json({"name": parsed.name, "role": parsed.role, "token": token, "row": row})
        return
    print(row)
    note("append this row to the tokens file and reload it (SIGHUP); the token, shown only once:")
    note(token)
