"""`comet role`: principals that have the same rules."""

from __future__ import annotations

import typer

from comet.cli._acts import add_commands

app = typer.Typer(help="Grant, revoke and list roles, for which rules can be.", no_args_is_help=True)
add_commands(app, "role")
