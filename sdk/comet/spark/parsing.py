"""Parses and checks options. Shared by source and sink. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from comet.errors import InvalidArgument

# The option's name, the attribute for it, and its parser.
Reading = Callable[[str, str], Any]
Table = Mapping[str, tuple[str, Reading]]

# Options that belong to Spark; other unknown options are refused.
_SPARKS: Final = frozenset({"path", "checkpointlocation", "queryname", "mergeschema", "datanamecasesensitive"})


def parsed(table: Table, given: Mapping[str, str]) -> dict[str, Any]:
    """The values of `.option(…)` by attribute; names in any case. Raises InvalidArgument."""
    values = {name.casefold(): value for name, value in given.items()}
    known = {name.casefold(): (name, *row) for name, row in table.items()}
    unknown = sorted(values.keys() - known.keys() - _SPARKS)
    if unknown:
        raise InvalidArgument(f"unknown option {unknown[0]!r}; use {', '.join(sorted(table))}")
    return {
        attribute: read(name, values[folded]) for folded, (name, attribute, read) in known.items() if folded in values
    }


def text(name: str, value: str) -> str:
    if not value.strip():
        raise InvalidArgument(f"the option {name} is empty")
    return value.strip()


def number(least: int, most: int | None = None) -> Reading:
    def read(name: str, value: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", value.strip()) or not least <= int(value) <= (most or int(value)):
            span = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise InvalidArgument(f"the option {name} takes a number {span}, not {value!r}")
        return int(value)

    return read


def switch(name: str, value: str) -> bool:
    return bool(chosen(true=True, false=False)(name, value))


def chosen(**meaning: Any) -> Reading:
    def read(name: str, value: str) -> Any:
        folded = value.strip().casefold()
        if folded not in meaning:
            raise InvalidArgument(f"the option {name} takes {' or '.join(meaning)}, not {value!r}")
        return meaning[folded]

    return read
