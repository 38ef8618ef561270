"""The analytics of the page of quotes: results, state and delay of a job. Pure.

Late results are greyed, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from comet_web.components import numbers
from comet_web.components.table import shaped
from comet_web.document import DASH, UNKNOWN, Cell, Column, Row, Table
from comet_web.facts import STEPS_S, Quotes
from comet_web.facts_analytics import Alert, Bar, Job, Stat
from comet_web.page_request import PageRequest, path
from comet_web.views.quotes_cells import clock, count, digits_of, moment, price, seconds_text, volume

LATE_US: Final = 5_000_000  # behind the feed: the analytics are late
OTHERS_LATE_US: Final = 15_000_000  # for queries that run less often than the leading one
SILENT_US: Final = 10_000_000  # without a report of any query: the analytics are late
LEADING: Final = "bars.1s"  # the query whose progress counts
BARS_SHOWN: Final = 10
ALERTS_SHOWN: Final = 12

# Output topics of a job: the rest of the topic's name, and its content.
OUTPUTS: Final = (
    ("bars.1s", "1-second bars: open, high, low, close, volume, VWAP, spreads"),
    ("bars.1m", "1-minute bars"),
    ("bars.5m", "5-minute bars"),
    ("stats", "Averages, returns, volatility and volume of a sliding window"),
    ("alerts", "Crossed, locked and stale quotes, gaps, and price outliers"),
    ("job", "State of each query of the job"),
)
OUTPUT_COLUMNS: Final = (
    Column("topic", "Topic", sortable=False),
    Column("what", "Content", sortable=False),
    Column("state", "State", sortable=False, wide=False),
)
JOB_COLUMNS: Final = (
    Column("query", "Query"),
    Column("state", "State", wide=False),
    Column("window", "Window", numeric=True),
    Column("mode", "Mode"),
    Column("watermark", "Watermark", title="Records older than this are no longer waited for"),
    Column(
        "behind", "Behind", numeric=True, wide=False, title="newest processed record compared with the newest quote"
    ),
    Column("took", "Batch", "ms", numeric=True, title="duration of the last batch"),
    Column("rate", "Rows/s", numeric=True),
    Column("heard", "Last batch", numeric=True, wide=False),
    Column("error", "Error"),
)
STAT_COLUMNS: Final = (
    Column("symbol", "Symbol"),
    Column("volatility", "Volatility", "%", numeric=True, wide=False, title="realised in the window, not annualised"),
    Column("return", "Return", "%", numeric=True, wide=False),
    Column("mean", "Mean", numeric=True),
    Column("ema", "EMA", numeric=True, title="exponential moving average"),
    Column("low", "Low", numeric=True),
    Column("high", "High", numeric=True),
    Column("until", "Until", numeric=True, title="end of the window, UTC"),
)
VOLUME_COLUMNS: Final = (
    Column("symbol", "Symbol"),
    Column("volume", "Volume", numeric=True, wide=False),
    Column("share", "Share", "%", numeric=True, wide=False),
    Column("trades", "Trades", numeric=True),
)
BAR_COLUMNS: Final = (
    Column("start", "From", title="UTC"),
    Column("open", "Open", numeric=True),
    Column("high", "High", numeric=True),
    Column("low", "Low", numeric=True),
    Column("close", "Close", numeric=True, wide=False),
    Column("vwap", "VWAP", numeric=True, wide=False, title="volume-weighted average price"),
    Column("volume", "Volume", numeric=True, wide=False),
    Column("trades", "Trades", numeric=True),
    Column("quotes", "Quotes", numeric=True),
    Column("spread", "Spread", numeric=True, title="average"),
)
ALERT_COLUMNS: Final = (
    Column("time", "Time", title="UTC"),
    Column("kind", "Kind", wide=False),
    Column("symbol", "Symbol", wide=False),
    Column("text", "Text", wide=False),
    Column("value", "Value", numeric=True),
    Column("limit", "Limit", numeric=True),
)
ALL_LINES: Final = ("vwap", "mean", "ema")
LINES: Final[Mapping[str, Sequence[str]]] = {"vwap": ("vwap",), "averages": ("mean", "ema"), "none": ()}
KINDS: Final = {  # sign and tone
    "crossed": ("✕", "bad"),
    "locked": ("=", "warn"),
    "stale": ("◷", "warn"),
    "gap": ("⋯", "warn"),
    "outlier": ("◇", "info"),
}
STATES: Final = {"running": "good", "starting": "info", "stopped": "warn", "failed": "bad"}


@dataclass(frozen=True, slots=True)
class AnalyticsHealth:
    word: str
    tone: str
    late: bool  # the results are not current
    why: str = ""


def fields(facts: Quotes, *, silence: str) -> dict[str, Cell]:
    health = health_of(facts, silence=silence)
    behind = behind_us(facts)
    return {
        "analytics": Cell("yes" if there(facts) else "no"),
        "analytics-late": Cell("yes" if health.late else "no"),
        "late-results": Cell(" ".join(late_results(facts, health))),
        "analytics-state": Cell(health.word, tone=health.tone),
        "analytics-why": Cell(health.why),
        "analytics-delay": _delay(behind, late=health.late),
        "bar-delay": _bar_delay(facts, late=health.late),
        "analytics-left-out": Cell(_left_out(facts), tone="warn" if _left_out(facts) else ""),
        "bars-of": Cell(_bars_of(facts)),
        "window-of": Cell(_window_of(facts)),
        "alerts-of": Cell(_alerts_of(facts)),
    }


def tables(facts: Quotes, request: PageRequest) -> dict[str, Table]:
    found = facts.analytics
    digits = digits_of(facts.quotes.get(facts.symbol))
    stats = found.stats.values()
    traded = sum(stat.volume or 0.0 for stat in stats)
    alerts = [_alert_row(alert, facts, request) for alert in found.alerts[:ALERTS_SHOWN]]
    jobs = [_job_row(job, facts) for job in found.jobs.values()]
    bars = [_bar_row(bar, digits) for bar in found.bars[:BARS_SHOWN]]
    ranked = [_stat_row(stat, facts, request) for stat in stats]
    volumes = [_volume_row(stat, traded, facts, request) for stat in stats]
    return {
        "job": shaped("job", JOB_COLUMNS, jobs, request, main=False, sort="query"),
        "bars": shaped("bars", BAR_COLUMNS, bars, request, main=False, sort="-start"),
        "alerts": shaped("alerts", ALERT_COLUMNS, alerts, request, main=False),
        "stats": shaped("stats", STAT_COLUMNS, ranked, request, main=False, sort="-volatility"),
        "volumes": shaped("volumes", VOLUME_COLUMNS, volumes, request, main=False, sort="-volume"),
        "outputs": shaped("outputs", OUTPUT_COLUMNS, _outputs(facts), request, main=False),
    }


# ---- lines over the candles


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    values: Sequence[float | None]
    forming: float | None  # of the step that is not over

    @property
    def summary(self) -> str:
        """Its name and last value."""
        known = next((value for value in reversed([*self.values, self.forming]) if value is not None), None)
        return "" if known is None else f"{self.name} {known:g}"


def lines(facts: Quotes, request: PageRequest) -> list[Line]:
    """The requested lines that have values."""
    found = facts.analytics.lines
    if found is None:
        return []
    chosen = LINES.get(request.query.get("lines", ""), ALL_LINES)
    window = _window_of(facts)
    names = {"vwap": "VWAP", "mean": f"mean {window}".rstrip(), "ema": f"EMA {window}".rstrip()}
    each = zip(ALL_LINES, (found.vwap, found.mean, found.ema), found.forming, strict=True)
    return [
        Line(names[key], values, forming)
        for key, values, forming in each
        if key in chosen and any(value is not None for value in (*values, forming))
    ]


# ---- how it is


def there(facts: Quotes) -> bool:
    """Whether any output topic of a job exists."""
    return any(f"{facts.topic}.{rest}" in facts.topics for rest, _ in OUTPUTS)


def behind_us(facts: Quotes) -> int | None:
    """Distance of the newest processed record from the newest quote."""
    leading = facts.analytics.jobs.get(LEADING)
    quoted_us = facts.analytics.quoted_us
    if leading is None or leading.event_us is None or quoted_us is None:
        return None
    return max(0, quoted_us - leading.event_us)


def health_of(facts: Quotes, *, silence: str) -> AnalyticsHealth:
    """The health of the job; `silence`: why no quotes come."""
    found = facts.analytics
    if not there(facts):
        return AnalyticsHealth("not started", "muted", late=True)
    jobs = found.jobs
    failed = [job for _, job in sorted(jobs.items()) if job.state == "failed"]
    failures = "; ".join(f"{job.query}: {job.error or 'no reason given'}" for job in failed)
    if LEADING in (job.query for job in failed) or (failed and len(failed) == len(jobs)):
        return AnalyticsHealth("failed", "bad", late=True, why=failures)
    if found.heard_us is None:
        return AnalyticsHealth("unknown", "warn", late=True, why="No query has reported yet.")
    states = {job.state for job in jobs.values()}
    if states == {"stopped"}:
        return AnalyticsHealth("stopped", "warn", late=True, why=f"Last report at {clock(found.heard_us)} UTC.")
    silent_us = facts.time_us - found.heard_us
    if silent_us > SILENT_US:
        since = f"No report from the job since {clock(found.heard_us)} UTC"
        return AnalyticsHealth("silent", "warn", late=True, why=f"{since}; {silence}." if silence else f"{since}.")
    behind = behind_us(facts)
    if behind is None:
        return _not_yet(jobs)
    if behind > LATE_US:
        return AnalyticsHealth("late", "warn", late=True, why="The job is slower than the feed or has just started.")
    return (
        AnalyticsHealth("partly failed", "bad", late=False, why=failures)
        if failed
        else AnalyticsHealth("running", "good", late=False)
    )


def late_results(facts: Quotes, health: AnalyticsHealth) -> list[str]:
    """Tables with late results: all if the job is late, else those whose query is."""
    bars = f"bars.{step_name(facts)}"
    of = {"bars": bars, "lines": bars, "alerts": "alerts", "stats": "stats", "volumes": "stats"}
    if facts.analytics.lines is None:
        del of["lines"]
    return [name for name, query in of.items() if health.late or _is_late(facts, query)]


def _is_late(facts: Quotes, query: str) -> bool:
    job, quoted_us = facts.analytics.jobs.get(query), facts.analytics.quoted_us
    if job is None or job.state != "running" or facts.time_us - job.heard_us > SILENT_US:
        return True
    return job.event_us is not None and quoted_us is not None and quoted_us - job.event_us > OTHERS_LATE_US


def _not_yet(jobs: Mapping[str, Job]) -> AnalyticsHealth:
    leading = jobs.get(LEADING)
    doing = next((job.doing for job in jobs.values() if job.state == "starting" and job.doing), "")
    state = "starting" if leading is None or doing else leading.state
    why = f"{LEADING} has not processed a quote yet"
    return AnalyticsHealth(state, STATES[state], late=True, why=f"{why}; it waits for {doing}." if doing else f"{why}.")


def _delay(behind: int | None, *, late: bool) -> Cell:
    if behind is None:
        return UNKNOWN
    return Cell(numbers.duration_text(behind / 1e6), round(behind / 1e3, 1), tone="muted" if late else "")


def _bar_delay(facts: Quotes, *, late: bool) -> Cell:
    """The delay of bars, without the quarter of a second of the page itself."""
    delay_ms = facts.analytics.bar_delay_ms
    if delay_ms is None:
        return UNKNOWN
    return Cell(
        numbers.duration_text(delay_ms / 1000), round(delay_ms, 1), tone="muted" if late else "",
        title="from the end of a second to the arrival of its bar; median of the last 200",
    )  # fmt: skip


def _left_out(facts: Quotes) -> str:
    found = facts.analytics
    parts = [f"{name} cannot be read: {why}" for name, why in sorted(found.failed.items())]
    if found.unread:
        parts.append(f"{numbers.counted(found.unread, 'record')} skipped, not results: {found.unread_reason}")
    if found.symbols_left_out:
        parts.append(f"results of {numbers.counted(found.symbols_left_out, 'symbol')} beyond the limit are not shown")
    if found.lost:
        parts.append(f"{numbers.counted(found.lost, 'result')} deleted before being read")
    return "; ".join(parts)


def _bars_of(facts: Quotes) -> str:
    name = step_name(facts)
    return f"{facts.symbol}, {name}, from {facts.topic}.bars.{name}"


def step_name(facts: Quotes) -> str:
    """The name of the step of the bars shown."""
    return next((name for name, of_s in STEPS_S.items() if of_s == facts.analytics.bars_step_s), "")


def _alerts_of(facts: Quotes) -> str:
    count = len(facts.analytics.alerts)
    return f"newest {ALERTS_SHOWN} of {count}" if count > ALERTS_SHOWN else ""


def _window_of(facts: Quotes) -> str:
    """The length of the windows, which is the same for all of a job."""
    found = facts.analytics.stats
    stat = found.get(facts.symbol) or next(iter(found.values()), None)
    return "" if stat is None else seconds_text((stat.end_us - stat.start_us) / 1e6)


# ---- rows


def _outputs(facts: Quotes) -> list[Row]:
    rows = []
    for rest, what in OUTPUTS:
        name = f"{facts.topic}.{rest}"
        is_there = name in facts.topics
        state = Cell("exists", tone="good") if is_there else Cell("missing", tone="muted")
        if name in facts.analytics.failed:
            state = Cell("cannot be read", tone="bad", title=facts.analytics.failed[name])
        rows.append(Row(name, (Cell(name), Cell(what), state), path("topics", name) if is_there else ""))
    return rows


def _job_row(job: Job, facts: Quotes) -> Row:
    silent = facts.time_us - job.heard_us > SILENT_US
    tone = STATES[job.state]
    cells = (
        Cell(job.query),
        Cell(job.state, tone="muted" if silent and job.state == "running" else tone),
        Cell(seconds_text(job.window_s), job.window_s) if job.window_s else UNKNOWN,
        Cell(job.mode or DASH),
        _watermark(job, facts),
        _event_behind(job, facts),
        numbers.milliseconds(job.batch_ms),
        numbers.rate(job.rows_per_s, what="rows"),
        _heard(job, facts.time_us, silent=silent),
        Cell(job.error, title=job.error) if job.error else Cell(""),
    )
    return Row(job.query, cells)


def _behind(event_us: int | None, facts: Quotes) -> tuple[int, str] | None:
    """Distance from the newest quote in whole seconds, to limit updates: it is in every row."""
    quoted_us = facts.analytics.quoted_us
    if event_us is None or quoted_us is None:
        return None
    seconds = max(0, quoted_us - event_us) // 1_000_000
    return seconds, seconds_text(float(seconds)) if seconds else "under 1 s"


def _event_behind(job: Job, facts: Quotes) -> Cell:
    behind = _behind(job.event_us, facts)
    if behind is None or job.event_us is None:
        return UNKNOWN
    seconds, text = behind
    tone = "warn" if seconds * 1_000_000 > LATE_US else ""
    return Cell(text, seconds, tone=tone, title=numbers.moment_text(job.event_us))


def _watermark(job: Job, facts: Quotes) -> Cell:
    if job.watermark_us is None:
        return UNKNOWN
    behind = _behind(job.watermark_us, facts)
    text = clock(job.watermark_us) + (f", {behind[1]} behind" if behind else "")
    return Cell(text, job.watermark_us, title=numbers.moment_text(job.watermark_us))


def _heard(job: Job, time_us: int, *, silent: bool) -> Cell:
    number = "" if job.batch is None else f"batch {job.batch:,.0f}"
    rows = "" if job.rows is None else f"{job.rows:,.0f} rows"
    seconds = max(0, time_us - job.heard_us) // 1_000_000
    text = numbers.ago(job.heard_us, time_us).text if seconds >= 2 else "just now"
    title = ", ".join(filter(None, (number, rows, numbers.moment_text(job.heard_us))))
    return Cell(text, -job.heard_us, tone="warn" if silent and job.state == "running" else "", title=title)


def _bar_row(bar: Bar, digits: int) -> Row:
    cells = (
        moment(bar.start_us), price(bar.open, digits), price(bar.high, digits), price(bar.low, digits),
        price(bar.close, digits), price(bar.vwap, digits), volume(bar.volume), count(bar.trades),
        count(bar.quotes), _spread(bar, digits),
    )  # fmt: skip
    return Row(str(bar.start_us), cells)


def _spread(bar: Bar, digits: int) -> Cell:
    title = "" if bar.spread_max is None else f"at most {bar.spread_max:,.{digits}f}"
    mean = bar.spread_mean
    return UNKNOWN if mean is None else Cell(f"{mean:,.{digits}f}", mean, title=title)


def _stat_row(stat: Stat, facts: Quotes, request: PageRequest) -> Row:
    digits = digits_of(facts.quotes.get(stat.symbol))
    cells = (
        Cell(stat.symbol), _share(stat.volatility), _share(stat.change, signed=True), price(stat.mean, digits),
        price(stat.ema, digits), price(stat.low, digits), price(stat.high, digits), moment(stat.end_us),
    )  # fmt: skip
    return Row(stat.symbol, cells, _link(stat.symbol, facts, request))


def _volume_row(stat: Stat, traded: float, facts: Quotes, request: PageRequest) -> Row:
    share = stat.volume / traded if stat.volume is not None and traded > 0 else None
    part = UNKNOWN if share is None else Cell(f"{100 * share:.1f}", share, bar=min(1.0, max(0.0, share)))
    cells = (Cell(stat.symbol), volume(stat.volume), part, count(stat.trades))
    return Row(stat.symbol, cells, _link(stat.symbol, facts, request))


def _alert_row(alert: Alert, facts: Quotes, request: PageRequest) -> Row:
    sign, tone = KINDS.get(alert.kind, ("•", "info"))
    cells = (
        moment(alert.time_us),
        Cell(f"{sign} {alert.kind}", alert.kind, tone=tone),
        Cell(alert.symbol, href=_link(alert.symbol, facts, request)),
        Cell(alert.text or DASH, title=alert.text),
        UNKNOWN if alert.value is None else Cell(f"{alert.value:,.6g}", alert.value),
        UNKNOWN if alert.limit is None else Cell(f"{alert.limit:,.6g}", alert.limit),
    )
    return Row(str(alert.number), cells)


def _link(symbol: str, facts: Quotes, request: PageRequest) -> str:
    return request.link(symbol=symbol, page=None) if symbol in facts.quotes else ""


def _share(value: float | None, *, signed: bool = False) -> Cell:
    if value is None:
        return UNKNOWN
    if not signed:
        return Cell(f"{100 * value:.3f}", value)
    tone = "good" if value > 0 else "bad" if value < 0 else ""
    return Cell(f"{100 * value:+.3f}", value, tone=tone)
