"""Parsing of a job's results: a record as a bar, a stat, an alert or the state of a query. Pure.

    NAME.bars.1s, .1m, .5m    bars; a later one of the same symbol and start replaces the one before
    NAME.stats                moving figures of a sliding window
    NAME.alerts               unusual quotes and prices
    NAME.job                  the state of each query, keyed by its name

Any producer may write to these topics, so records are untrusted. An invalid record gives the reason; unknown fields are
skipped, and invalid numbers are unknown.
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
AHEAD_US: Final = 600_000_000  # of windows, which are reported before they end
WINDOW_US_MAX: Final = 86_400_000_000
COUNT_MAX: Final = 2**53
NUMBER_MAX: Final = 1e15  # larger prices and volumes are invalid

BARS_S: Final[Mapping[str, int]] = {"bars.1s": 1, "bars.1m": 60, "bars.5m": 300}  # rest of the name: step in seconds
STATS: Final = "stats"
ALERTS: Final = "alerts"
JOB: Final = "job"
KINDS: Final = (*BARS_S, STATS, ALERTS, JOB)
STATES: Final = frozenset({"starting", "running", "stopped", "failed"})

Found = Bar | Stat | Alert | Job


class ResultRecord(NamedTuple):
    """One record: its value, and when it arrived."""

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


class _Invalid(ValueError):
    """The reason why a record is invalid."""


_bar = msgspec.json.Decoder(_Bar, strict=False).decode
_stat = msgspec.json.Decoder(_Stat, strict=False).decode
_alert = msgspec.json.Decoder(_Alert, strict=False).decode
_job = msgspec.json.Decoder(_Job, strict=False).decode


def read(kind: str, record: ResultRecord, number: int = 0) -> Found | str:
    """A record of the topic of that kind, or why it is invalid. `number` identifies an alert."""
    if record.value is None:
        return "no value"
    try:
        if kind in BARS_S:
            return _as_bar(_bar(record.value), BARS_S[kind], record.heard_us)
        if kind == STATS:
            return _as_stat(_stat(record.value), record.heard_us)
        if kind == ALERTS:
            return _as_alert(_alert(record.value), record.heard_us, number)
        return _as_job(_job(record.value), record.heard_us)
    except _Invalid as error:
        return str(error)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return f"not JSON with the fields of {kind}"


def _as_bar(wire: _Bar, step_s: int, heard_us: int) -> Bar:
    symbol = _of_window(wire, heard_us)
    if wire.end_us - wire.start_us != step_s * 1_000_000 or wire.start_us % (step_s * 1_000_000):
        raise _Invalid(f"a bar that is not one step of {step_s} s")
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
        raise _Invalid("an unknown state of a query")
    if not wire.query:
        raise _Invalid("a query without a name")
    return Job(
        _word(wire.query), wire.state, heard_us, _time(wire.at_us, heard_us), _count(wire.batch), _count(wire.rows),
        _number(wire.rows_per_s), _number(wire.batch_ms), _time(wire.event_us, heard_us),
        _time(wire.watermark_us, heard_us), _number(wire.window_s), _word(wire.mode or ""),
        (wire.error or "")[:ERROR_CHARACTERS_MAX], (wire.doing or "")[:TEXT_CHARACTERS_MAX],
    )  # fmt: skip


def _of_window(wire: _Window, heard_us: int) -> str:
    if not 0 < wire.end_us - wire.start_us <= WINDOW_US_MAX:
        raise _Invalid("a window that ends before it begins or is longer than a day")
    _in_time(wire.start_us, heard_us + EARLY_US)
    _in_time(wire.end_us, heard_us + AHEAD_US + EARLY_US)
    return _symbol(wire.symbol)


def _in_time(time_us: int, until_us: int) -> None:
    if not 0 <= time_us <= until_us:
        raise _Invalid("a time in the future or before 1970")


def _symbol(text: str) -> str:
    if not text:
        raise _Invalid("no symbol")
    return text[:SYMBOL_CHARACTERS_MAX]


def _word(text: str) -> str:
    return text[:WORD_CHARACTERS_MAX]


def _number(value: float | None) -> float | None:
    return value if value is not None and abs(value) <= NUMBER_MAX else None  # NaN compares false


def _count(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= COUNT_MAX else None


def _time(time_us: int | None, heard_us: int) -> int | None:
    """A time, or None. A watermark is 0 until there is one."""
    return time_us if time_us is not None and 0 < time_us <= heard_us + EARLY_US else None
