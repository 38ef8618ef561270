"""`comet acl`: the rules of access, and what they allow."""

from __future__ import annotations

import typer

from comet.cli._acts import add_commands

app = typer.Typer(help="Add, remove and list rules of access; explain what they allow.", no_args_is_help=True)
add_commands(app, "acl")
