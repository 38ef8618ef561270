"""Results of a job on a topic of quotes: bars, moving figures, alerts, and the state of its queries.

Times are microseconds. Unknown or invalid numbers are None. Immutable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Bar:
    """One symbol in one step. `open` to `trades` come from trades, the rest from quotes."""

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
    """One symbol in a sliding window."""

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
    number: int  # in order of arrival
    kind: str  # "crossed", "locked", "stale", "gap", "outlier"
    symbol: str
    time_us: int
    value: float | None = None
    limit: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """The last report of one query of the job."""

    query: str
    state: str  # "starting", "running", "stopped", "failed"
    heard_us: int  # when the report arrived
    at_us: int | None = None  # by the job's clock
    batch: float | None = None
    rows: float | None = None
    rows_per_s: float | None = None
    batch_ms: float | None = None
    event_us: int | None = None  # timestamp of the newest processed record
    watermark_us: int | None = None
    window_s: float | None = None
    mode: str = ""
    error: str = ""
    doing: str = ""  # the slow step of its start


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over the candles of a symbol, one value for each step; `forming` belongs to the step after the last."""

    vwap: Sequence[float | None] = ()
    mean: Sequence[float | None] = ()
    ema: Sequence[float | None] = ()
    forming: tuple[float | None, float | None, float | None] = (None, None, None)


@dataclass(frozen=True, slots=True)
class Analytics:
    """The results kept for one topic of quotes. `followed` are the topics that are read, `failed` those that cannot be,
    with the reason."""

    followed: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    jobs: Mapping[str, Job] = field(default_factory=dict)  # by query
    heard_us: int | None = None  # last report of any query
    quoted_us: int | None = None  # the time of the newest quote known
    stats: Mapping[str, Stat] = field(default_factory=dict)  # by symbol: newest completed windows
    bars: Sequence[Bar] = ()  # of the symbol that is shown, newest first
    bars_step_s: int = 1
    alerts: Sequence[Alert] = ()  # newest first
    lines: Lines | None = None  # of the symbol that is shown
    bar_delay_ms: float | None = None  # from the end of a second to the arrival of its bar, median of the last ones
    unread: int = 0  # records that are not results
    unread_reason: str = ""
    symbols_left_out: int = 0  # beyond the limit
    lost: int = 0  # records that were deleted before they were read


NO_ANALYTICS: Final = Analytics()
