"""Conditions of `--where` and `comet search`, in the language of `comet.search.conditions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from comet.errors import InvalidArgument

if TYPE_CHECKING:
    from comet.search.filters import Filters

EXAMPLES: Final = (
    "price>100, side=buy, side!=buy, tags~urgent (contains), exists(error), user.name=anna; several are joined by and"
)
Wheres = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        metavar="CONDITION",
        help="Only records whose JSON value matches, e.g. 'price > 150 and symbol = \"A\"'; may repeat.",
    ),
]


def filters_of(conditions: Sequence[str], *, key: str = "", value: str = "", header: str = "") -> Filters:
    """The filters of a command. Raises InvalidArgument for a syntax error, with its place."""
    from comet.search.conditions import Malformed, parse_all
    from comet.search.filters import Filters

    found = []
    for text in conditions:
        try:
            found += parse_all(text)
        except Malformed as malformed:
            at = malformed.position
            shown = f"{text[:at]}▸{text[at:]}" if len(text) <= 200 else text[:200]
            raise InvalidArgument(
                f"invalid condition, at character {at + 1}: {malformed}: {shown}",
                details={"hint": f"conditions are such as {EXAMPLES}", "position": str(at)},
            ) from None
    return Filters(key, value, header, tuple(found))
