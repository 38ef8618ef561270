"""A cache of a job's results: lines, bars and windows by symbol, alerts, queries. Pure.

A line is a ring of steps like those of `candles`: old steps are overwritten, and a later value of a step replaces it.
"""

from __future__ import annotations

import math
from array import array
from bisect import insort
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final, TypeVar

from comet_gateway.dashboard.analytics_records import BARS_S, ResultRecord, read
from comet_gateway.dashboard.candles import MINUTES, NEVER, SECONDS
from comet_web.facts_analytics import Alert, Bar, Job, Lines, Stat

MORE: Final = 90  # steps beyond those shown: see `candles`; and windows are reported a minute before they end
# Of rings of bars, by step in seconds: a day, for 1 s less.
LENGTHS: Final = {1: SECONDS + MORE, 60: MINUTES + MORE, 300: 288 + MORE}
BARS_MAX: Final = 20  # of each step
STATS_MAX: Final = 32  # windows: a minute of those reported before they end, and more
ALERTS_MAX: Final = 200
QUERIES_MAX: Final = 20
LEFT_OUT_MAX: Final = 10_000  # symbols
HOLD_S: Final = 10  # that a line of seconds continues without a new value
DELAYS_MAX: Final = 200
DELAY_US_MAX: Final = 60_000_000  # a later bar corrects an old one
SYMBOL_BYTES: Final = 200_000  # at most, measured

Value = tuple[float, ...]
T = TypeVar("T")


class StepRing:
    """A ring of steps with `width` values each."""

    def __init__(self, length: int, width: int) -> None:
        self._length = length
        self._steps = array("q", [NEVER]) * length
        self._values = [array("d", [0.0]) * length for _ in range(width)]

    def put(self, step: int, values: Value) -> None:
        at = step % self._length
        if step < self._steps[at]:
            return  # older than the ring
        self._steps[at] = step
        for column, value in zip(self._values, values, strict=True):
            column[at] = value

    def get(self, step: int) -> Value | None:
        at = step % self._length
        return tuple(column[at] for column in self._values) if self._steps[at] == step else None


class AnalyticsSymbol:
    """The results of one symbol."""

    def __init__(self) -> None:
        self.bars: dict[int, dict[int, Bar]] = {}  # by step in seconds, then by start
        self.stats: dict[int, Stat] = {}  # by end
        self._prices: dict[int, StepRing] = {}  # VWAP and volume, by step in seconds
        # Mean, EMA, and the second in which the window ended.
        self._averages = (StepRing(SECONDS + MORE, 3), StepRing(MINUTES + MORE, 3))

    def bar(self, bar: Bar, step_s: int) -> None:
        ring = self._prices.get(step_s)
        if ring is None:
            ring = self._prices[step_s] = StepRing(LENGTHS[step_s], 2)
        ring.put(bar.start_us // (step_s * 1_000_000), (_or_none(bar.vwap), _or_none(bar.volume)))
        _newest(self.bars.setdefault(step_s, {}), bar.start_us, bar, BARS_MAX)

    def stat(self, stat: Stat) -> None:
        """Adds a window: it counts for the second in which it ends, the last one of a minute for that minute."""
        _newest(self.stats, stat.end_us, stat, STATS_MAX)
        second = (stat.end_us - 1) // 1_000_000
        values = (_or_none(stat.mean), _or_none(stat.ema), float(second))
        seconds, minutes = self._averages
        seconds.put(second, values)
        known = minutes.get(second // 60)
        if known is None or known[2] <= second:
            minutes.put(second // 60, values)

    def over(self, now_us: int) -> Stat | None:
        """The newest completed window."""
        return max((one for one in self.stats.values() if one.end_us <= now_us), key=_end, default=None)

    def lines(self, step_s: int, end_s: int, count: int) -> Lines:
        """Lines for the `count` steps before the step of `end_s`, and for that step."""
        end = end_s // step_s
        steps = range(end - count, end + 1)
        vwap = _drawn(lambda step: self._vwap(step, step_s), steps, step_s)
        mean = _drawn(lambda step: self._average(step, step_s, 0), steps, step_s)
        ema = _drawn(lambda step: self._average(step, step_s, 1), steps, step_s)
        return Lines(vwap[:-1], mean[:-1], ema[:-1], (vwap[-1], mean[-1], ema[-1]))

    def _vwap(self, step: int, step_s: int) -> float | None:
        of_s = step_s if step_s in LENGTHS else 300
        ring = self._prices.get(of_s)
        if ring is None:
            return None
        per = step_s // of_s
        found = [one for more in range(per) if (one := ring.get(step * per + more)) is not None]
        known = [(price, volume) for price, volume in found if math.isfinite(price) and volume > 0]
        if len(known) < 2:
            return known[0][0] if known else None
        return sum(price * volume for price, volume in known) / sum(volume for _, volume in known)

    def _average(self, step: int, step_s: int, which: int) -> float | None:
        seconds, minutes = self._averages
        if step_s == 1:
            found = seconds.get(step)
        else:
            per = step_s // 60
            each = (minutes.get(step * per + more) for more in reversed(range(per)))
            found = next((one for one in each if one is not None), None)
        return found[which] if found is not None and math.isfinite(found[which]) else None


def _drawn(value: Callable[[int], float | None], steps: range, step_s: int) -> list[float | None]:
    """One value for each step. Windows end every few seconds: in between, the last one counts."""
    hold = HOLD_S // step_s
    found: list[float | None] = []
    last, known_at = None, NEVER
    for step in range(steps.start - hold, steps.start):
        if (one := value(step)) is not None:
            last, known_at = one, step
    for step in steps:
        one = value(step)
        if one is not None:
            last, known_at = one, step
        elif hold and known_at != NEVER and step - known_at <= hold:
            one = last
        found.append(None if one is None else round(one, 6))
    return found


class AnalyticsCache:
    """The cache of one topic of quotes. Owned by `Analytics`."""

    def __init__(self, symbols_max: int) -> None:
        self.symbols: dict[str, AnalyticsSymbol] = {}
        self.alerts: list[Alert] = []  # newest first, by their own time: outliers are found later than others
        self.jobs: dict[str, Job] = {}
        self.unread = 0
        self.unread_reason = ""
        self._symbols_max = symbols_max
        self._left_out: set[int] = set()
        self._delays: deque[float] = deque(maxlen=DELAYS_MAX)
        self._numbers = 0

    @property
    def symbols_left_out(self) -> int:
        return len(self._left_out)

    @property
    def heard_us(self) -> int | None:
        return max((job.heard_us for job in self.jobs.values()), default=None)

    @property
    def bar_delay_ms(self) -> float | None:
        return median(self._delays) if self._delays else None

    @property
    def bytes(self) -> int:
        return len(self.symbols) * SYMBOL_BYTES

    def take(self, kind: str, record: ResultRecord, *, live: bool) -> None:
        """Adds a record of the topic of that kind; `live`: it is new, not from the history."""
        found = read(kind, record, self._numbers)
        match found:
            case str():
                self.unread += 1
                self.unread_reason = found
            case Alert():
                self._numbers += 1
                insort(self.alerts, found, key=_newest_first)
                del self.alerts[ALERTS_MAX:]
            case Job():
                if found.query in self.jobs or len(self.jobs) < QUERIES_MAX:
                    self.jobs[found.query] = found
            case Bar():
                if (symbol := self._symbol(found.symbol)) is not None:
                    symbol.bar(found, BARS_S[kind])
                if live and kind == "bars.1s" and 0 <= record.heard_us - found.end_us <= DELAY_US_MAX:
                    self._delays.append((record.heard_us - found.end_us) / 1000)
            case Stat():
                if (symbol := self._symbol(found.symbol)) is not None:
                    symbol.stat(found)

    def forget_alerts(self) -> None:
        """Drops the alerts, before they are read again from the start."""
        self.alerts.clear()

    def _symbol(self, name: str) -> AnalyticsSymbol | None:
        found = self.symbols.get(name)
        if found is None:
            if len(self.symbols) >= self._symbols_max:
                if len(self._left_out) < LEFT_OUT_MAX:
                    self._left_out.add(hash(name))
                return None
            found = self.symbols[name] = AnalyticsSymbol()
        return found

    def stats(self, now_us: int) -> dict[str, Stat]:
        """The newest completed window of each symbol. Windows that do not overlap the newest of all are left out: their
        symbols are not traded any more, and would distort ranks and shares.
        """
        found = {name: stat for name, symbol in self.symbols.items() if (stat := symbol.over(now_us)) is not None}
        newest = max(found.values(), key=_end, default=None)
        return {name: stat for name, stat in found.items() if newest is not None and stat.end_us > newest.start_us}


def _newest(values: dict[int, T], at_us: int, one: T, most: int) -> None:
    """Adds a value, and keeps the `most` newest."""
    if at_us not in values and len(values) >= most:
        oldest = min(values)
        if at_us < oldest:
            return
        del values[oldest]
    values[at_us] = one


def _or_none(value: float | None) -> float:
    return math.nan if value is None else value


def _end(stat: Stat) -> int:
    return stat.end_us


def _newest_first(alert: Alert) -> tuple[int, int]:
    return -alert.time_us, -alert.number
