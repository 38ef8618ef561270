"""`comet gateway`: the HTTP server of a cluster. Its options are made from the gateway's table of settings;
`comet gateway token` makes a token and its row of the tokens file."""

from __future__ import annotations

import os
from enum import Enum
from typing import Annotated, Final

import typer
from typer.core import TyperGroup

from comet.cli._guard import guarded
from comet.cli._options import Json
from comet.cli._output import note, print_json
from comet.cli._panels import GATEWAY_PANELS, LazyGroup, PanelGroup, with_settings

ABOUT: Final = """\
Serve a cluster over HTTP, WebSocket and server-sent events; SIGTERM or Ctrl-C drains and stops it, SIGHUP reloads the
tokens file. Settings can also be in the environment (--drain-s as COMET_GATEWAY_DRAIN_S) or in the file of
--config or COMET_GATEWAY_CONFIG (drain_s = "20s"). A flag overrides the environment, and the environment the file."""


class GatewayGroup(LazyGroup):
    """`comet gateway` with its options."""

    def made(self) -> TyperGroup:
        from comet_gateway.settings import TABLE

        alone = typer.Typer(rich_markup_mode=None, add_completion=False, cls=PanelGroup, invoke_without_command=True)
        alone.callback(help=ABOUT)(with_settings(gateway, TABLE, GATEWAY_PANELS))
        alone.command("token")(token)
        found = typer.main.get_command(alone)
        assert isinstance(found, TyperGroup)
        return found


class TokenRole(Enum):
    """What the holder of a token may do."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


app = typer.Typer(cls=GatewayGroup)


@app.callback(invoke_without_command=True)
@guarded
def gateway(context: typer.Context, json_output: Json = False, **settings: str | None) -> None:
    """Run a gateway: HTTP, WebSocket and SSE for a cluster. `comet gateway token` makes a token."""
    if context.invoked_subcommand is not None:
        return
    from comet_gateway.server import serve, set_up_gateway_logging
    from comet_gateway.settings import load

    loaded = load(settings, os.environ)
    set_up_gateway_logging(loaded.log_level, loaded.log_format)

    def ready(url: str) -> None:
        if json_output:
            print_json({"url": url, "bootstrap": loaded.config.bootstrap, "pid": os.getpid()})
            return
        page = f", its API at {url}/docs" if loaded.config.docs else ""
        print(f"gateway is up at {url} for the brokers at {loaded.config.bootstrap}{page}", flush=True)

    serve(loaded.config, ready)
    if not json_output:
        note("stopped")


@guarded
def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the token's holder in the audit log.")],
    role: Annotated[TokenRole, typer.Option("--role", help="What the holder may do.")] = TokenRole.VIEWER,
    json_output: Json = False,
) -> None:
    """Make a bearer token, which is shown once and stored nowhere, and its row of the tokens file."""
    from comet_gateway.http.auth import new_token

    text, row = new_token(name, role.value)
    if json_output:
        print_json({"name": name, "role": role.value, "token": text, "row": row})
        return
    print(row)
    note("append this row to the tokens file and reload it (SIGHUP); the token, shown only once:")
    note(text)
