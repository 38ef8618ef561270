"""What real markets say, as Quote and Trade have it. What cannot be meant raises ValueError or TypeError."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from comet_demo.providers import Event

# Sizes are whole numbers, and coins are traded in fractions: they are counted in millionths.
UNITS_PER_COIN: Final = 1_000_000
SIZE_MAX: Final = 1 << 53  # beyond it JSON's readers differ
PRICE_MAX: Final = 1e15
SYMBOLS_MAX: Final = 100_000  # whose last trade is remembered
OLD_MAX: Final = 100  # messages in a row that have come already
FUTURE_US: Final = 3_600_000_000  # a clock may be wrong by an hour, not by more

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def price(value: Any) -> float:
    """More than nothing, and not without end.

    >>> price("25.35190000")
    25.3519
    """
    number = _number(value)
    if not 0 < number <= PRICE_MAX:
        raise ValueError(f"{value!r} is no price")
    return number


def size(value: Any, units: int = 1) -> int:
    """A whole number of units; what is more than nothing is at least one of them, and at most SIZE_MAX: of coins that
    cost next to nothing more are traded at once.

    >>> size("0.00000001", UNITS_PER_COIN), size("1.5", UNITS_PER_COIN), size(100), size("0")
    (1, 1500000, 100, 0)
    >>> size("12000000000.00", UNITS_PER_COIN) == SIZE_MAX
    True
    """
    number = _number(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{value!r} is no size")
    return max(round(min(number * units, SIZE_MAX)), 1) if number else 0


def moment(value: Any, now_us: int) -> int:
    """A time, in ISO form or as milliseconds or microseconds since 1970, as microseconds.

    >>> moment("2014-11-07T08:19:27.028459Z", 2**60), moment(1_672_515_782_136, 2**60)
    (1415348367028459, 1672515782136000)
    """
    if isinstance(value, str):
        told = datetime.fromisoformat(value)
        if told.tzinfo is None:
            told = told.replace(tzinfo=UTC)
        at_us = (told - _EPOCH) // _MICROSECOND
    elif isinstance(value, int) and not isinstance(value, bool):
        at_us = value if value > 10**14 else value * 1000  # in milliseconds that would be after the year 5000
    else:
        raise TypeError(f"{value!r} is no time")
    return known(at_us, now_us)


def known(at_us: int, now_us: int) -> int:
    """Not before 1970, and not later than a clock can be wrong."""
    if not 0 < at_us < now_us + FUTURE_US:
        raise ValueError(f"{at_us} is no time that is known by now")
    return at_us


def whole(value: Any) -> int:
    """A number of a message, which counts up."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise TypeError(f"{value!r} is no number of a message")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise TypeError(f"{value!r} is no number")
    return float(value)  # one that is not finite is within no limits


class Tape:
    """What was traded, for the quotes that come after it: the last price, and how much since the quote before.

    >>> tape = Tape()
    >>> tape.trade("A", 10.5, 200)
    >>> tape.trade("A", 10.6, 100)
    >>> tape.quote("A", 10.0), tape.quote("A", 10.0), tape.quote("B", 20.0)
    ((10.6, 300), (10.6, 0), (20.0, 0))
    """

    def __init__(self, symbols_max: int = SYMBOLS_MAX) -> None:
        self._symbols_max = symbols_max
        self._last: dict[str, tuple[float, int]] = {}

    def trade(self, symbol: str, price: float, size: int) -> None:
        _, before = self._last.get(symbol, (price, 0))
        if symbol not in self._last and len(self._last) >= self._symbols_max:
            self._last.clear()
        self._last[symbol] = price, min(before + size, SIZE_MAX)

    def quote(self, symbol: str, middle: float) -> tuple[float, int]:
        """`last` and `last_size` of a quote that is written now; `middle` is the price while there was no trade."""
        last, size = self._last.get(symbol, (middle, 0))
        if size:
            self._last[symbol] = last, 0
        return last, size


def moments(events: Sequence[Event], span_us: int) -> Iterator[list[Event]]:
    """Parts, in order, within each of which less than `span_us` goes by."""
    part: list[Event] = []
    low = high = 0
    for event in events:
        at_us = event.timestamp_us
        if part and not high - span_us < at_us < low + span_us:
            yield part
            part = []
        low, high = (min(low, at_us), max(high, at_us)) if part else (at_us, at_us)
        part.append(event)
    if part:
        yield part


class Numbers:
    """The numbers of messages of one kind, per symbol, each one more than the one before.

    Kept over connections, so that what was missed between two is counted as well. Where many in a row seem to have come
    already, the market counts anew.

    >>> numbers = Numbers()
    >>> numbers.missed("A", 7), numbers.missed("A", 8), numbers.missed("A", 11), numbers.missed("A", 9)
    (0, 0, 2, None)
    """

    def __init__(self) -> None:
        self.latest: dict[str, int] = {}
        self._old: dict[str, int] = {}

    def missed(self, symbol: str, number: int) -> int | None:
        """How many did not come before this one; None: it has come already."""
        latest = self.latest.get(symbol)
        if latest is not None and number <= latest:
            self._old[symbol] = self._old.get(symbol, 0) + 1
            if self._old[symbol] < OLD_MAX:
                return None
            latest = None
        self.latest[symbol] = number
        self._old[symbol] = 0
        return 0 if latest is None else number - latest - 1
