"""What a job writes about quotes, read: one record as a bar, a stat, an alert or the state of a query. Pure.

    NAME.bars.1s, .1m, .5m    bars; a later one of the same symbol and start takes the place of the one before
    NAME.stats                moving figures of a window that slides
    NAME.alerts               what is out of the ordinary
    NAME.job                  how each query of the job is, keyed by its name

Whoever may write to the topics may write anything. What is no such record is told by why it is none; fields that are
not known are passed over, and a number that is none is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from comet_gateway.dashboard.candles import EARLY_US, SYMBOL_CHARACTERS_MAX
from comet_web.facts_analytics import Alert, Bar, Job, Stat

WORD_CHARACTERS_MAX: Final = 40  # a kind of alert, the name of a query, a mode
TEXT_CHARACTERS_MAX: Final = 300
ERROR_CHARACTERS_MAX: Final = 1_000
AHEAD_US: Final = 600_000_000  # but for windows, which are told of before they are over
WINDOW_US_MAX: Final = 86_400_000_000
COUNT_MAX: Final = 2**53
NUMBER_MAX: Final = 1e15  # a price or a volume beyond that is none

BARS_S: Final[Mapping[str, int]] = {"bars.1s": 1, "bars.1m": 60, "bars.5m": 300}  # the rest of the name: its step
STATS: Final = "stats"
ALERTS: Final = "alerts"
JOB: Final = "job"
KINDS: Final = (*BARS_S, STATS, ALERTS, JOB)
STATES: Final = frozenset({"starting", "running", "stopped", "failed"})

Found = Bar | Stat | Alert | Job


class Came(NamedTuple):
    """One record: what it says, and when it was heard of."""

    value: bytes | None
    heard_us: int


class _Window(msgspec.Struct, gc=False):
    symbol: str
    start_us: int
    end_us: int
    high: float | None = None
    low: float | None = None
    volume: float | None = None
    trades: float | None = None


class _Bar(_Window, gc=False):
    open: float | None = None
    close: float | None = None
    vwap: float | None = None
    quotes: float | None = None
    spread_mean: float | None = None
    spread_max: float | None = None


class _Stat(_Window, gc=False):
    mean: float | None = None
    ema: float | None = None
    change: float | None = msgspec.field(default=None, name="return")
    volatility: float | None = None


class _Alert(msgspec.Struct, gc=False):
    kind: str
    symbol: str
    time_us: int
    value: float | None = None
    limit: float | None = None
    text: str | None = None


class _Job(msgspec.Struct, gc=False):
    query: str
    state: str
    batch: float | None = None
    rows: float | None = None
    rows_per_s: float | None = None
    batch_ms: float | None = None
    event_us: int | None = None
    watermark_us: int | None = None
    at_us: int | None = None
    window_s: float | None = None
    mode: str | None = None
    error: str | None = None
    doing: str | None = None


class _Odd(ValueError):
    """Why a record is none."""


_bar = msgspec.json.Decoder(_Bar, strict=False).decode
_stat = msgspec.json.Decoder(_Stat, strict=False).decode
_alert = msgspec.json.Decoder(_Alert, strict=False).decode
_job = msgspec.json.Decoder(_Job, strict=False).decode


def read(kind: str, came: Came, number: int = 0) -> Found | str:
    """A record of the topic of that kind, or why it is none. `number` is what an alert is known by."""
    if came.value is None:
        return "no value"
    try:
        if kind in BARS_S:
            return _as_bar(_bar(came.value), BARS_S[kind], came.heard_us)
        if kind == STATS:
            return _as_stat(_stat(came.value), came.heard_us)
        if kind == ALERTS:
            return _as_alert(_alert(came.value), came.heard_us, number)
        return _as_job(_job(came.value), came.heard_us)
    except _Odd as odd:
        return str(odd)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return f"not JSON with the fields of {kind}"


def _as_bar(wire: _Bar, step_s: int, heard_us: int) -> Bar:
    symbol = _of_window(wire, heard_us)
    if wire.end_us - wire.start_us != step_s * 1_000_000 or wire.start_us % (step_s * 1_000_000):
        raise _Odd(f"a bar that is not one step of {step_s} s")
    return Bar(
        symbol, wire.start_us, wire.end_us, _number(wire.open), _number(wire.high), _number(wire.low),
        _number(wire.close), _number(wire.volume), _number(wire.vwap), _count(wire.trades), _count(wire.quotes),
        _number(wire.spread_mean), _number(wire.spread_max),
    )  # fmt: skip


def _as_stat(wire: _Stat, heard_us: int) -> Stat:
    symbol = _of_window(wire, heard_us)
    return Stat(
        symbol, wire.start_us, wire.end_us, _number(wire.mean), _number(wire.ema), _number(wire.change),
        _number(wire.volatility), _number(wire.volume), _count(wire.trades), _number(wire.high), _number(wire.low),
    )  # fmt: skip


def _as_alert(wire: _Alert, heard_us: int, number: int) -> Alert:
    _in_time(wire.time_us, heard_us + EARLY_US)
    return Alert(
        number, _word(wire.kind), _symbol(wire.symbol), wire.time_us, _number(wire.value), _number(wire.limit),
        (wire.text or "")[:TEXT_CHARACTERS_MAX],
    )  # fmt: skip


def _as_job(wire: _Job, heard_us: int) -> Job:
    if wire.state not in STATES:
        raise _Odd("an unknown state of a query")
    if not wire.query:
        raise _Odd("a query without a name")
    return Job(
        _word(wire.query), wire.state, heard_us, _time(wire.at_us, heard_us), _count(wire.batch), _count(wire.rows),
        _number(wire.rows_per_s), _number(wire.batch_ms), _time(wire.event_us, heard_us),
        _time(wire.watermark_us, heard_us), _number(wire.window_s), _word(wire.mode or ""),
        (wire.error or "")[:ERROR_CHARACTERS_MAX], _word(wire.doing or ""),
    )  # fmt: skip


def _of_window(wire: _Window, heard_us: int) -> str:
    if not 0 < wire.end_us - wire.start_us <= WINDOW_US_MAX:
        raise _Odd("a window that ends before it begins or is longer than a day")
    _in_time(wire.start_us, heard_us + EARLY_US)
    _in_time(wire.end_us, heard_us + AHEAD_US + EARLY_US)
    return _symbol(wire.symbol)


def _in_time(time_us: int, until_us: int) -> None:
    if not 0 <= time_us <= until_us:
        raise _Odd("a time in the future or before 1970")


def _symbol(text: str) -> str:
    if not text:
        raise _Odd("no symbol")
    return text[:SYMBOL_CHARACTERS_MAX]


def _word(text: str) -> str:
    return text[:WORD_CHARACTERS_MAX]


def _number(value: float | None) -> float | None:
    return value if value is not None and abs(value) <= NUMBER_MAX else None  # nor is NaN


def _count(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= COUNT_MAX else None


def _time(time_us: int | None, heard_us: int) -> int | None:
    """A watermark is 0 until there is one."""
    return time_us if time_us is not None and 0 < time_us <= heard_us + EARLY_US else None
