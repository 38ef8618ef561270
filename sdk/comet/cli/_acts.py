"""Admin acts on the command line: commands made from the table, and the parts that the written ones share.

dry run ─► the effect, as a line and tables or JSON        --dry-run
dry run ─► question with the effect ─► act ─► result       an act that asks, without --yes
                                       act ─► result       otherwise; with --wait the last state

The arguments and flags of a made command are the parameters of the act's method in `comet.Admin`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass, replace
from enum import Enum
from inspect import Parameter as Declared
from inspect import Signature
from itertools import chain, repeat
from typing import Annotated, Any, ClassVar, Final, TypeVar

import typer
from typer.core import TyperCommand

from comet.admin.acts import ACTS, OPERATIONS, Act
from comet.admin.documents import document, members
from comet.admin.parameters import DRY_RUN, GROUP, TOPIC, Parameter, parameters
from comet.cli._connection import CONTEXT_PARAMETER, ContextName
from comet.cli._guard import guarded
from comet.cli._options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    DryRun,
    Json,
    Yes,
    complete_group,
    complete_topic,
)
from comet.cli._output import note, print_json, print_table
from comet.cli._panels import LazyCommand, PanelCommand
from comet.errors import InvalidArgument
from comet.units import format_bytes, parse_number, parse_value, time_text

F = TypeVar("F", bound=Callable[..., Any])

WAIT_S: Final = 0.2
SHOWN_MAX: Final = 20  # rows of a table; --json has all
_COMPLETIONS: Final = ((TOPIC, complete_topic), (GROUP, complete_group))


def act_command(app: typer.Typer, name: str, *, more: str = "") -> Callable[[F], F]:
    """Registers a command that has a function of its own, with the words and help of its act; `more` are further
    sentences of it."""
    act = ACTS[name]
    return app.command(_last_word(act), help=f"{act.text} {more}".rstrip(), cls=PanelCommand)


def title(operation: str, **names: object) -> str:
    """The title of the act's confirmation, which begins a question."""
    _, route = OPERATIONS[operation]
    assert route.dialog is not None
    return route.dialog.title.format(**names)


# ---- made commands


class ActCommand(LazyCommand):
    """The command of an act, made from its row and the parameters of its method."""

    act: ClassVar[Act]

    def made(self) -> TyperCommand:
        return made_command(self.act)


def add_commands(app: typer.Typer, group: str, acts: Iterable[Act] = ACTS.values()) -> None:
    """Makes the commands of a group, such as `comet topic`, that have no function of their own."""
    written = {command.name for command in app.registered_commands}
    for act in acts:
        name = _last_word(act)
        if act.command == f"{group} {name}" and name not in written:
            kind: Any = type("ActCommand", (ActCommand,), {"act": act})
            app.command(name, help=act.text, cls=kind)(_replaced)


def _replaced() -> None:
    raise AssertionError("an ActCommand runs the command that it makes")


def _last_word(act: Act) -> str:
    return act.command.rpartition(" ")[2]


def made_command(act: Act) -> TyperCommand:
    """The command of an act, with its arguments and flags. Imports `comet.Admin`."""
    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    alone.command(_last_word(act), help=act.text)(_function(act))
    found = typer.main.get_command(alone)
    assert isinstance(found, TyperCommand)
    return found


def _function(act: Act) -> Callable[..., None]:
    import asyncio

    import comet

    own = parameters(act.function())
    in_path = act.routes[0].names

    @guarded
    async def run(
        _context: typer.Context, bootstrap: str, json_output: bool, yes: bool = False, wait: bool = False, **given: Any
    ) -> None:
        dry_run = given.get(DRY_RUN, False)
        values = {one.name: _value(one, given[one.name]) for one in own}
        async with comet.Admin(bootstrap) as admin:

            async def call(*, dry_run: bool) -> Any:
                return await act.bound(admin)(**values, **({DRY_RUN: dry_run} if act.dry_run else {}))

            if act.asks and not (yes or dry_run):
                names = dict(zip(in_path, values.values(), strict=False))
                plan = await call(dry_run=True) if act.dry_run else None
                typer.confirm(_question(act, names, plan), abort=True, err=True)
            result = await call(dry_run=dry_run)
            while wait and not dry_run and not result.is_finished():
                await asyncio.sleep(WAIT_S)
                result = await call(dry_run=True)
        if wait:
            result = replace(result, dry_run=dry_run)
        print_json(document(result)) if json_output else _show(result)

    declared = [_keyword("_context", typer.Context, Declared.empty)]
    declared += [_declared(one, name) for one, name in zip(own, chain(in_path, repeat("")), strict=False)]
    declared += _shared(act)
    # Typer reads the signature, and the annotations beside it.
    run.__signature__ = Signature(declared)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in declared}
    return run


def _shared(act: Act) -> Iterator[Declared]:
    """The flags of the table."""
    if act.wait:
        yield _keyword("wait", Annotated[bool, typer.Option("--wait", help=act.wait)], False)
    if act.dry_run:
        yield _keyword(DRY_RUN, DryRun, False)
    if act.asks:
        yield _keyword("yes", Yes, False)
    yield _keyword("bootstrap", Bootstrap, DEFAULT_BOOTSTRAP)
    yield _keyword(CONTEXT_PARAMETER, ContextName, None)
    yield _keyword("json_output", Json, False)


def _declared(one: Parameter, in_path: str) -> Declared:
    """A parameter of the method as an argument or flag; `in_path` is its name in the route, empty: none."""
    given = one.input
    kind: Any = str if one.many or given.unit else one.kind
    about: dict[str, Any] = {"help": given.about, "metavar": given.metavar or None}
    if kind is int:
        about |= {"min": given.low, "max": given.high}
    default = str(one.default) if given.unit else one.default
    if one.positional and one.required and not given.flag:
        about["metavar"] = given.metavar or (in_path or one.name).upper()
        about["autocompletion"] = next((names for known, names in _COMPLETIONS if known is given), None)
        return _keyword(one.name, Annotated[kind, typer.Argument(**about)], Declared.empty)
    flags = given.flag.split() or [f"--{one.name.replace('_', '-')}"]
    option = typer.Option(*flags, **about)
    if one.required or given.none is not None:
        return _keyword(one.name, Annotated[kind, option], Declared.empty)
    return _keyword(one.name, Annotated[kind | None if one.optional else kind, option], default)


def _keyword(name: str, annotation: Any, default: object) -> Declared:
    return Declared(name, Declared.KEYWORD_ONLY, annotation=annotation, default=default)


def _value(one: Parameter, given: Any) -> Any:
    """The argument for a value of the command line. Raises InvalidArgument."""
    if given is None or given == one.input.none:
        return None
    if one.many:
        return _items(one, given)
    if one.input.unit:
        return _in_range(one, parse_value(one.name, one.input.unit, given))
    if one.kind is str:
        _check_text(one, given)
    return given


def _items(one: Parameter, text: str) -> list[Any]:
    words = [word.strip() for word in text.split(",")]
    found = [_item(one, word) for word in words]
    if len(set(found)) < len(found) or len(found) > (one.input.items_max or len(found)):
        most = f", at most {one.input.items_max}" if one.input.items_max else ""
        raise InvalidArgument(f"invalid {one.name} {text!r}: give each once{most}")
    return found


def _item(one: Parameter, word: str) -> Any:
    if one.kind is str:
        _check_text(one, word)
        return word
    return _in_range(one, parse_number(f"each of {one.name}", word))


def _in_range(one: Parameter, number: int) -> int:
    low, high = one.input.low, one.input.high
    if (low is not None and number < low) or (high is not None and number > high):
        raise InvalidArgument(f"{'each of ' if one.many else ''}{one.name} is from {low} to {high}, not {number}")
    return number


def _check_text(one: Parameter, text: str) -> None:
    if one.input.pattern and re.search(one.input.pattern, text) is None:
        raise InvalidArgument(f"invalid {one.name} {text!r}: it must match {one.input.pattern}")


# ---- texts


def _question(act: Act, names: Mapping[str, object], plan: object) -> str:
    dialog = next(route.dialog for route in act.routes if route.dialog is not None)
    effect = "" if plan is None else _effect(plan)
    parts = [f"{dialog.title.format(**names)}?", f"{effect[:1].upper()}{effect[1:]}." if effect else "", dialog.note]
    return " ".join(filter(None, parts))


def _show(result: Any) -> None:
    """Prints the effect in one line, and the lists of the result as tables."""
    print(_effect(result))
    kind: Any = type(result)
    for name in members(kind):
        rows: Any = getattr(result, name)
        if _is_table(rows):
            row_kind: Any = type(rows[0])
            columns = list(members(row_kind))
            cells = [[_text(column, getattr(row, column)) for column in columns] for row in rows[:SHOWN_MAX]]
            print()
            print_table([column.replace("_", " ") for column in columns], cells, title=name)
            if len(rows) > SHOWN_MAX:
                note(f"and {len(rows) - SHOWN_MAX} more: --json lists all")


def _effect(result: Any) -> str:
    """The effect in one line: the result's own text, else its numbers."""
    kind: Any = type(result)
    if kind.__str__ is not object.__str__:
        return str(result)
    values = {name: getattr(result, name) for name in members(kind) if name != DRY_RUN}
    return ", ".join(
        f"{name.replace('_', ' ')} {_text(name, value)}" for name, value in values.items() if not _is_table(value)
    )


def _is_table(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and is_dataclass(value[0])


def _text(name: str, value: Any) -> str:
    """A value for people; the name has the unit."""
    match value:
        case None | ():
            return "-"
        case bool():
            return "yes" if value else "no"
        case Enum():
            return str(value.value)
        case bytes():
            return value.hex()
        case tuple():
            return ", ".join(map(str, value))
        case int() if name.endswith("bytes"):
            return format_bytes(value)
        case int() if name.endswith("_us"):
            return time_text(value)
    return str(value)
