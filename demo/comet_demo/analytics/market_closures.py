"""When the market was closed, and the silences of an open market among those that were found.

    topic quotes.market: key: a market, value: JSON, {"open": false}  ─►  closures  ─►  in_open_market(silences)

The topic is read only if a batch has silences: once in each of its tasks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

import comet
from comet_demo.model import MARKET_STATE

log = logging.getLogger("comet_demo.analytics")

STATES_MAX: Final = 10_000  # the newest are used
READ_MS_MAX: Final = 5_000


class _MarketValue(msgspec.Struct):
    open: bool


_decode = msgspec.json.Decoder(_MarketValue).decode


class State(NamedTuple):
    """`is_open` is None if the market's key was deleted."""

    at_us: int
    market: str
    is_open: bool | None


class Closure(NamedTuple):
    """From a close up to, not including, the next opening; `end_us` is None until then."""

    begin_us: int
    end_us: int | None


def closures_of(states: Iterable[State]) -> list[Closure]:
    """Times at which every known market was closed. Before its first state a market is not known.

    >>> closures_of([State(10, "NYSE", False), State(30, "NYSE", True), State(50, "NYSE", False)])
    [Closure(begin_us=10, end_us=30), Closure(begin_us=50, end_us=None)]
    """
    found: list[Closure] = []
    markets: dict[str, bool] = {}
    begin_us: int | None = None
    for state in sorted(states, key=lambda one: one.at_us):
        if state.is_open is None:
            markets.pop(state.market, None)
        else:
            markets[state.market] = state.is_open
        closed = bool(markets) and not any(markets.values())
        if closed and begin_us is None:
            begin_us = state.at_us
        elif not closed and begin_us is not None:
            found.append(Closure(begin_us, state.at_us))
            begin_us = None
    return found if begin_us is None else [*found, Closure(begin_us, None)]


def overlaps(closures: Iterable[Closure], begin_us: int, end_us: int) -> bool:
    """Whether the market was closed at some time from `begin_us` up to, not including, `end_us`."""
    return any(one.begin_us < end_us and (one.end_us is None or begin_us < one.end_us) for one in closures)


@dataclass(frozen=True)
class MarketClosures:
    """Spark sends it to the workers. While the topic cannot be read, the market counts as open."""

    bootstrap: str

    def in_open_market(self, silences: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        """Whether each time from a begin to an end overlaps no closure; a function for `arrow_udf`."""
        closures: Sequence[Closure] | None = None
        for begins, ends in silences:
            if closures is None and len(begins):
                closures = self._read()
            rows = zip(begins.to_pylist(), ends.to_pylist(), strict=True)
            yield pa.array([not overlaps(closures or (), *row) for row in rows], pa.bool_())

    def _read(self) -> list[Closure]:
        states: deque[State] = deque(maxlen=STATES_MAX)
        try:
            for batch in comet.read(
                MARKET_STATE,
                bootstrap=self.bootstrap,
                columns=("key", "value", "timestamp"),
                timeout_ms=READ_MS_MAX,
                on_corrupt="skip",
            ):
                states.extend(_states(batch))
        except comet.CometError as error:
            log.warning("the hours of the market are not known, so every silence is an alert: %s", error)
            return []
        return closures_of(states)


def _states(batch: pa.RecordBatch) -> Iterator[State]:
    """The states of a batch; malformed values are left out."""
    times: Any = batch.column("timestamp").cast("int64")
    keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
    for key, value, at_us in zip(keys, values, times.to_pylist(), strict=True):
        if key is None:
            continue
        try:
            is_open = None if value is None else _decode(value).open
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        yield State(at_us, key.decode("utf-8", "replace"), is_open)
