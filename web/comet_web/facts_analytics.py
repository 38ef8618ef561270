"""What a job computes on a topic of quotes, and says in topics of its own: bars, moving figures, alerts, how it is.

Times are microseconds. A number that the job does not know, or that is none, is None. Immutable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Bar:
    """One symbol in one stretch of time. Open to trades are of trades, the rest of quotes."""

    symbol: str
    start_us: int
    end_us: int
    open: float | None = None
    high: float | None = None
    low: float | None = None
    close: float | None = None
    volume: float | None = None
    vwap: float | None = None
    trades: float | None = None
    quotes: float | None = None
    spread_mean: float | None = None
    spread_max: float | None = None


@dataclass(frozen=True, slots=True)
class Stat:
    """One symbol in a window that slides."""

    symbol: str
    start_us: int
    end_us: int
    mean: float | None = None
    ema: float | None = None
    change: float | None = None  # from the first to the last price, as a share of the first
    volatility: float | None = None  # the square root of the sum of squared log returns
    volume: float | None = None
    trades: float | None = None
    high: float | None = None
    low: float | None = None


@dataclass(frozen=True, slots=True)
class Alert:
    number: int  # in the order in which they came
    kind: str  # "crossed", "locked", "stale", "gap", "outlier"
    symbol: str
    time_us: int
    value: float | None = None
    limit: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One query of the job, as it said last."""

    query: str
    state: str  # "starting", "running", "stopped", "failed"
    heard_us: int  # when it said so
    at_us: int | None = None  # as its own clock had it
    batch: float | None = None
    rows: float | None = None
    rows_per_s: float | None = None
    batch_ms: float | None = None
    event_us: int | None = None  # the newest event that it has processed
    watermark_us: int | None = None
    window_s: float | None = None
    mode: str = ""
    error: str = ""
    doing: str = ""  # of what takes long while it starts


@dataclass(frozen=True, slots=True)
class Lines:
    """Over the candles of a symbol, one value for each step of them; `forming` are those of the step after the last."""

    vwap: Sequence[float | None] = ()
    mean: Sequence[float | None] = ()
    ema: Sequence[float | None] = ()
    forming: tuple[float | None, float | None, float | None] = (None, None, None)


@dataclass(frozen=True, slots=True)
class Analytics:
    """All of it that is kept for one topic of quotes. `followed` are the topics that are read, `failed` those that
    cannot be, and why."""

    followed: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    jobs: Mapping[str, Job] = field(default_factory=dict)  # by query
    heard_us: int | None = None  # when any query said something
    quoted_us: int | None = None  # the time of the newest quote known
    stats: Mapping[str, Stat] = field(default_factory=dict)  # by symbol: newest windows that are over
    bars: Sequence[Bar] = ()  # of the symbol that is shown, newest first
    bars_step_s: int = 1
    alerts: Sequence[Alert] = ()  # newest first
    lines: Lines | None = None  # of the symbol that is shown
    bar_delay_ms: float | None = None  # from the end of a second to when its bar came, the middle one of the last
    unread: int = 0  # records that are nothing of the kind, as far as is understood
    unread_reason: str = ""
    symbols_left_out: int = 0  # beyond the bound
    lost: int = 0  # records that were deleted before they were read


NO_ANALYTICS: Final = Analytics()
