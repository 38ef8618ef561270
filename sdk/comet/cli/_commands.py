"""The tree of commands. A command's module is imported when the command is used, and by `comet --help`, which shows
the first line of each; so command modules import nothing heavy.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from comet.cli._coercion import defer_conversion
from comet.cli._guard import reraise_all
from comet.wire.version import VERSION

# In the order of `comet --help`. The module of a command has its name, or the one below, and a function of that name,
# with a class COMMAND if it is made in another way, or a group `app`.
COMMANDS: Final = (
    *("up", "broker", "gateway", "topic", "produce", "consume", "search", "export", "import", "kv", "group"),
    *("dead-letters", "cluster", "acl", "key", "role", "quota", "alert", "calendar", "schedule", "context", "security"),
    *("apply", "tui", "doctor", "healthcheck", "bench", "demo"),
)
_MODULES: Final = {"import": "import_kafka", "tui": "tui.command", "apply": "apply.command"}


defer_conversion()


class RootGroup(TyperGroup):
    """The root of the tree, which imports one command at a time."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature of its base
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the signature of its base
        return loaded_command(cmd_name) if cmd_name in COMMANDS else None


def module_of(name: str) -> str:
    """The module of a command."""
    return f"comet.cli.{_MODULES.get(name, name.replace('-', '_'))}"


@cache
def loaded_command(name: str) -> Any:
    """A command with its options, or a group with its commands."""
    module = import_module(module_of(name))
    around = typer.Typer(rich_markup_mode=None, add_completion=False)
    around.callback()(_nothing)
    if hasattr(module, "app"):
        around.add_typer(module.app, name=name)
    else:
        around.command(name, cls=getattr(module, "COMMAND", None))(getattr(module, name))
    group: Any = typer.main.get_command(around)
    return group.commands[name]


def _nothing() -> None:
    pass


app = typer.Typer(
    cls=RootGroup,
    help="Comet: event streaming that a Python team installs with pip.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"comet {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks instead of one-line errors.")] = False,
) -> None:
    reraise_all(debug)
