"""Everything a command prints: one JSON document or a table on stdout, errors and progress on stderr.

A table is drawn by rich on a terminal, and aligned with spaces in a pipe, for awk. stdout carries only the answer.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comet.cli._colours import BAD, QUIET, STATE_COLUMNS, colour_of, coloured
from comet.cli._exit import hint
from comet.errors import CometError
from comet.processes.logs import logs_json
from comet.settings.client import CA_VARIABLE

log = logging.getLogger("comet.cli")


def print_json(document: object) -> None:
    """Prints a document: on one line in a pipe, indented on a terminal."""
    import json

    text = json.dumps(document, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None)
    print(text, flush=True)


def exports(variables: Mapping[str, str]) -> str:
    """The commands that set the environment of clients, ready to paste; empty if they need none. With certificates,
    also the command that makes another one."""
    lines = [f"  export {name}={value}" for name, value in variables.items()]
    if ca := variables.get(CA_VARIABLE):
        lines += [
            "",
            f"This is the administrator. Other clients need rules: comet security client NAME {Path(ca).parent}",
        ]
        lines += ["then: comet acl add client:NAME read topic quotes"]
    return "".join(f"{line}\n" for line in [*lines, ""]) if lines else ""


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    """Prints a table; columns of numbers are right-aligned. Columns of states are coloured on a terminal."""
    cells = [[str(cell) for cell in row] for row in rows]
    right = [bool(rows) and all(_is_number(row[at]) for row in rows) for at in range(len(columns))]
    if sys.stdout.isatty():
        _print_rich(columns, cells, right, title)
    else:
        print(plain_table(columns, cells, right))


def plain_table(columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    lines = [[column.replace(" ", "_") for column in columns], *cells]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _is_number(cell: object) -> bool:
    return str(cell)[:1].isdigit() or str(cell) in ("", "-")


def _print_rich(columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool], title: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left")
    for column, to_right in zip(columns, right, strict=True):
        table.add_column(column, justify="right" if to_right else "left", no_wrap=to_right)
    states = [column in STATE_COLUMNS for column in columns]
    for row in cells:
        table.add_row(
            *(Text(cell, style=colour_of(cell) if is_state else "") for cell, is_state in zip(row, states, strict=True))
        )
    Console().print(table)


def print_fields(fields: Mapping[str, object]) -> None:
    """Prints names and values, one pair a line."""
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        print(f"{name.ljust(width)}  {value}")


def note(text: str) -> None:
    """Prints a message for the user to stderr; it is not part of the answer. In a log in JSON it is a line of it."""
    if logs_json() and not text.startswith("{"):
        log.setLevel(logging.INFO)  # at every level, as text
        log.info("%s", text)
        return
    print(text, file=sys.stderr, flush=True)


def report_error(error: CometError, *, as_json: bool) -> None:
    """Prints an error and its hint, a line each; one JSON document with `as_json`."""
    if as_json:
        import json

        document: dict[str, Any] = {"code": error.code, "message": error.message, "retriable": error.retriable}
        if error.details:
            document["details"] = error.details
        if advice := hint(error):
            document["hint"] = advice
        note(json.dumps({"error": document}, ensure_ascii=False))
        return
    advice = hint(error)
    if logs_json():
        log.error("%s", error, extra={"hint": advice} if advice else None)
        return
    note(f"{coloured('error:', BAD, sys.stderr)} {error.message} [{error.code}]")
    if advice:
        note(f"{coloured('hint:', QUIET, sys.stderr)} {advice}")


def abandon_stdout() -> None:
    """Discards buffered output after a broken pipe: Python must not raise again as it closes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
