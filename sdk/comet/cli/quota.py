"""`comet quota`: how much each principal may use of each broker."""

from __future__ import annotations

import typer

from comet.cli._acts import add_commands

app = typer.Typer(help="Set, list and remove quotas of clients.", no_args_is_help=True)
add_commands(app, "quota")
