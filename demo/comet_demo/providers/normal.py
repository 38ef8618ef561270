"""Converts the values of real markets to those of Quote and Trade. Implausible ones raise ValueError or TypeError."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Final

from comet.sources.files import time_us
from comet_demo.model import PRICE_MAX, SIZE_MAX

# Sizes are whole numbers, and coins are traded in fractions: they are counted in millionths.
UNITS_PER_COIN: Final = 1_000_000
SYMBOLS_MAX: Final = 100_000  # whose last trade is kept
RECENT_US: Final = 2_000_000  # age of a quote that a trade is compared with
OLD_MAX: Final = 100  # duplicates in a row
FUTURE_US: Final = 3_600_000_000  # tolerance for a wrong clock


def price(value: Any) -> float:
    """A positive, finite price.

    >>> price("25.35190000")
    25.3519
    """
    number = _number(value)
    if not 0 < number <= PRICE_MAX:
        raise ValueError(f"{value!r} is not a price")
    return number


def size(value: Any, units: int = 1) -> int:
    """A whole number of units: at least one for a positive size, and at most SIZE_MAX, which trades of very cheap coins
    exceed.

    >>> size("0.00000001", UNITS_PER_COIN), size("1.5", UNITS_PER_COIN), size(100), size("0")
    (1, 1500000, 100, 0)
    >>> size("12000000000.00", UNITS_PER_COIN) == SIZE_MAX
    True
    """
    number = _number(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{value!r} is not a size")
    return max(round(min(number * units, SIZE_MAX)), 1) if number else 0


def moment(value: Any, now_us: int) -> int:
    """A time, in ISO form or as a number since 1970, as microseconds.

    >>> moment("2014-11-07T08:19:27.028459Z", 2**60), moment(1_672_515_782_136, 2**60)
    (1415348367028459, 1672515782136000)
    """
    return known(time_us(value), now_us)


def known(at_us: int, now_us: int) -> int:
    """The time, checked: not further in the future than a clock may be wrong."""
    if at_us >= now_us + FUTURE_US:
        raise ValueError(f"{at_us} is too far in the future for a time")
    return at_us


def whole(value: Any) -> int:
    """The sequence number of a message."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise TypeError(f"{value!r} is not the number of a message")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise TypeError(f"{value!r} is not a number")
    return float(value)  # the limits exclude infinity and NaN


class Tape:
    """The last trade price, the size traded since the previous quote, and the last quote, by symbol.

    >>> tape = Tape()
    >>> tape.trade("A", 10.5, 200)
    >>> tape.trade("A", 10.6, 100)
    >>> tape.quote("A", 9.9, 10.1, 0), tape.quote("A", 9.9, 10.2, 0), tape.quote("B", 19.0, 21.0, 0)
    ((10.6, 300), (10.6, 0), (20.0, 0))
    >>> tape.market("A", RECENT_US), tape.market("A", RECENT_US + 1), tape.market("C", 0)
    ((9.9, 10.2), (None, None), (None, None))
    """

    def __init__(self, symbols_max: int = SYMBOLS_MAX) -> None:
        self._symbols_max = symbols_max
        self._last: dict[str, tuple[float, int]] = {}
        self._quotes: dict[str, tuple[float, float, int]] = {}

    def trade(self, symbol: str, price: float, size: int) -> None:
        _, before = self._last.get(symbol, (price, 0))
        if symbol not in self._last and len(self._last) >= self._symbols_max:
            self._last.clear()
        self._last[symbol] = price, min(before + size, SIZE_MAX)

    def quote(self, symbol: str, bid: float, ask: float, at_us: int) -> tuple[float, int]:
        """`last` and `last_size` of this quote; before the first trade `last` is the middle of bid and ask."""
        if symbol not in self._quotes and len(self._quotes) >= self._symbols_max:
            self._quotes.clear()
        self._quotes[symbol] = bid, ask, at_us
        last, size = self._last.get(symbol, ((bid + ask) / 2, 0))
        if size:
            self._last[symbol] = last, 0
        return last, size

    def market(self, symbol: str, at_us: int) -> tuple[float | None, float | None]:
        """Bid and ask of the last quote, if it is recent: the price may have moved since an older one."""
        bid, ask, quoted_us = self._quotes.get(symbol, (None, None, at_us))
        return (bid, ask) if abs(at_us - quoted_us) <= RECENT_US else (None, None)


class Numbers:
    """The consecutive numbers of messages of one kind, per symbol.

    Kept over connections, so that messages missed between two are counted as well. Many apparent duplicates in a row
    mean that the market has restarted its numbering.

    >>> numbers = Numbers()
    >>> numbers.missed("A", 7), numbers.missed("A", 8), numbers.missed("A", 11), numbers.missed("A", 9)
    (0, 0, 2, None)
    """

    def __init__(self) -> None:
        self.latest: dict[str, int] = {}
        self._old: dict[str, int] = {}

    def missed(self, symbol: str, number: int) -> int | None:
        """The number of messages missed before this one; None: this one is a duplicate."""
        latest = self.latest.get(symbol)
        if latest is not None and number <= latest:
            self._old[symbol] = self._old.get(symbol, 0) + 1
            if self._old[symbol] < OLD_MAX:
                return None
            latest = None
        self.latest[symbol] = number
        self._old[symbol] = 0
        return 0 if latest is None else number - latest - 1
