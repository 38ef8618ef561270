"""The option `--filter`, and the conditions of `comet search`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from comet.errors import MalformedFilter

if TYPE_CHECKING:
    from comet.filters.search_filters import Filters

EXAMPLES: Final = (
    "price>100, side=buy, side!=buy, tags~urgent (contains), exists(error), user.name=anna, @key ^= EUR (begins with); "
    "several are joined by and, or, and parentheses"
)
FilterTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="FILTER",
        help="Only records that match, e.g. 'price > 150 and symbol = \"A\"' or '@key ^= EUR'; may repeat.",
    ),
]


def filters_of(texts: Sequence[str], *, key: str = "", value: str = "", header: str = "") -> Filters:
    """The conditions of a command. Raises MalformedFilter, with its place."""
    from comet.filters import all_of, parse
    from comet.filters.search_filters import Filters

    now_us = time.time_ns() // 1_000
    found = []
    for text in texts:
        try:
            found.append(parse(text, now_us=now_us))
        except MalformedFilter as error:
            details = error.details | {"hint": f"conditions are such as {EXAMPLES}"}
            raise MalformedFilter(error.message, details=details) from None
    return Filters(key, value, header, all_of(found))
