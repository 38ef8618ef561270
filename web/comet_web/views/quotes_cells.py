"""Cells of the page of quotes: prices, volumes, times. Pure."""

from __future__ import annotations

from typing import Final

from comet_web.components import numbers
from comet_web.document import UNKNOWN, Cell
from comet_web.facts import Quote

DIGITS_MAX: Final = 6


def digits_of(quote: Quote | None) -> int:
    """The number of decimals of its prices, at least two."""
    prices = [] if quote is None else [each for each in (quote.last, quote.bid, quote.ask) if each is not None]
    written = (f"{each:.{DIGITS_MAX}f}".rstrip("0").partition(".")[2] for each in prices)
    return max(2, *map(len, written)) if prices else 2


def price(value: float | None, digits: int, tone: str = "") -> Cell:
    return UNKNOWN if value is None else Cell(f"{value:,.{digits}f}", value, tone=tone)


def volume(value: float | None) -> Cell:
    return UNKNOWN if value is None else Cell(numbers.short(value), value, title=f"{value:,.0f}")


def count(value: float | None) -> Cell:
    return UNKNOWN if value is None else Cell(f"{value:,.0f}", value)


def clock(time_us: int) -> str:
    return numbers.moment_text(time_us)[11:19]


def moment(time_us: int) -> Cell:
    return Cell(clock(time_us), time_us, title=numbers.moment_text(time_us))


def seconds_text(seconds: float) -> str:
    """A duration without a zero fraction: 5 s, 1 min."""
    return numbers.duration_text(seconds).replace(".0 s", " s")
