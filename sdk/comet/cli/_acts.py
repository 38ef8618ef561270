"""Admin acts on the command line: --dry-run shows the effect, --yes acts without a question.

dry run ─► the effect, as a table or JSON                  --dry-run
dry run ─► question with the effect ─► act ─► result       without --yes
                                       act ─► result       --yes
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import typer

from comet.admin.acts import ACTS, OPERATIONS
from comet.cli._output import print_fields, print_json

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


def act_command(app: typer.Typer, name: str, *, more: str = "") -> Callable[[F], F]:
    """Registers the command of an act, with its words and help; `more` are further sentences of it."""
    act = ACTS[name]
    return app.command(act.command.rpartition(" ")[2], help=f"{act.text} {more}".rstrip())


def title(operation: str, **names: object) -> str:
    """The title of the act's confirmation, which begins a question."""
    _, route = OPERATIONS[operation]
    assert route.dialog is not None
    return route.dialog.title.format(**names)


@dataclass(frozen=True, slots=True)
class Confirmation(Generic[R]):
    """The options of a command that destroys something, and the texts of its effect."""

    yes: bool
    dry_run: bool
    json_output: bool
    question: Callable[[R], str]
    effect: Callable[[R], Mapping[str, object]]  # for people
    document: Callable[[R], object]  # of --json


async def confirmed(act: Callable[[bool], Awaitable[R]], how: Confirmation[R]) -> R | None:
    """Runs the act and returns its result; with --dry-run prints the effect and returns None. Raises typer.Abort."""
    if how.dry_run:
        plan = await act(True)
        if how.json_output:
            print_json(how.document(plan))
        else:
            print_fields(how.effect(plan))
        return None
    if not how.yes:
        typer.confirm(how.question(await act(True)), abort=True, err=True)
    return await act(False)


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "record"), count(1200, "record")
    ('1 record', '1,200 records')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def least(number: str, *, complete: bool) -> str:
    """A number that may be higher, as some brokers did not answer."""
    return number if complete else f"at least {number}"
