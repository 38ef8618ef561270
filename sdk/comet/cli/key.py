"""`comet key`: the access keys of clients."""

from __future__ import annotations

import typer

from comet.cli._acts import add_commands

app = typer.Typer(help="Create, list and revoke access keys of clients.", no_args_is_help=True)
add_commands(app, "key")
