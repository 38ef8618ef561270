"""The page of quotes: the latest price of every symbol and the candles of one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from comet_web.components import numbers
from comet_web.components.table import shaped
from comet_web.document import DASH, UNKNOWN, Cell, Chart, Column, Document, Row
from comet_web.facts import STEPS_S, Candles, Quote, Quotes
from comet_web.page_request import PageRequest, path
from comet_web.views import quotes_analytics as analytics
from comet_web.views.quotes_cells import DIGITS_MAX, clock, digits_of, moment, price, seconds_text, volume

STOPPED_US: Final = 5_000_000  # without a quote until the feed counts as stopped
OLD_US: Final = 30_000_000  # older prices are greyed

COLUMNS: Final = (
    Column("symbol", "Symbol"),
    Column("last", "Last", numeric=True, wide=False),
    Column("change", "Change", numeric=True, hidden=True),
    Column("percent", "Change", "%", numeric=True, wide=False),
    Column("bid", "Bid", numeric=True, hidden=True),
    Column("ask", "Ask", numeric=True, hidden=True),
    Column("spread", "Spread", numeric=True, hidden=True),
    Column("volume", "Volume", numeric=True, hidden=True),
    Column("trend", "15 min", sortable=False, wide=False),
    Column("age", "Age", numeric=True, title="since the last quote", hidden=True),
    Column("records", "Quotes", numeric=True, hidden=True),
)


def view(facts: Quotes, request: PageRequest) -> Document:
    rows = [_row(quote, facts.time_us, request) for quote in facts.quotes.values()]
    watch = shaped("watchlist", COLUMNS, rows, request, sort="symbol")
    return Document(
        facts.time_us,
        f"Quotes of {facts.symbol}" if facts.symbol else "Quotes",
        {**_source(facts), **_chosen(facts, request), **analytics.fields(facts, stopped=stopped(facts))},
        {"watchlist": watch, **analytics.tables(facts, request)},
        _charts(facts, request),
    )


def stopped(facts: Quotes) -> bool:
    return facts.state == "live" and facts.last_us is not None and facts.time_us - facts.last_us > STOPPED_US


# ---- the source and its state


def _source(facts: Quotes) -> dict[str, Cell]:
    return {
        "state": _state(facts),
        "kind": Cell(_kind(facts)),
        "reason": Cell(facts.reason, tone="bad" if facts.reason else ""),
        "topic": Cell(facts.topic, href=path("topics", facts.topic)),
        "rate": numbers.rate(facts.rate, what="quotes"),
        "delay": _delay(facts),
        "since": _since(facts),
        "memory": numbers.size(facts.bytes),
        "left_out": Cell(_left_out(facts), tone="warn" if _left_out(facts) else ""),
    }


def _kind(facts: Quotes) -> str:
    """The part of the page to show: the quotes, or why there are none."""
    return "quotes" if facts.quotes else "none" if facts.state == "live" else facts.state


def _state(facts: Quotes) -> Cell:
    if facts.state == "absent":
        return Cell("no such topic", tone="warn")
    if facts.state == "failed":
        return Cell("cannot be read", tone="bad", title=facts.reason)
    if facts.state == "filling":
        return Cell("loading history", tone="info")
    if not facts.quotes:
        return Cell("no quotes yet", tone="warn")
    if stopped(facts) and facts.last_us:
        return Cell(
            f"feed stopped; last quote at {clock(facts.last_us)}",
            tone="warn",
            title=numbers.moment_text(facts.last_us),
        )
    return Cell("live", tone="good")


def _delay(facts: Quotes) -> Cell:
    if facts.delay_ms is None or stopped(facts):
        return UNKNOWN
    tone = "warn" if facts.delay_ms > 2_000 else ""
    return Cell(numbers.duration_text(max(0.0, facts.delay_ms) / 1000), round(facts.delay_ms, 1), tone=tone)


def _since(facts: Quotes) -> Cell:
    if facts.since_us is None:
        return UNKNOWN
    title = numbers.moment_text(facts.since_us) + (f": {facts.bounded}" if facts.bounded else "")
    return Cell(f"{clock(facts.since_us)} UTC", facts.since_us, title=title)


def _left_out(facts: Quotes) -> str:
    parts = []
    if facts.unread:
        parts.append(f"{numbers.counted(facts.unread, 'record')} skipped, not quotes: {facts.unread_reason}")
    if facts.symbols_left_out:
        parts.append(f"{numbers.counted(facts.symbols_left_out, 'symbol')} beyond the limit not shown")
    if facts.lost:
        parts.append(f"{numbers.counted(facts.lost, 'record')} skipped: the gateway could not keep up")
    return "; ".join(parts)


# ---- the symbol that was chosen


def _chosen(facts: Quotes, request: PageRequest) -> dict[str, Cell]:
    quote = facts.quotes.get(facts.symbol)
    if quote is None:
        return dict.fromkeys(("symbol", "last", "change", "bid", "ask", "spread", "volume", "at", "place"), UNKNOWN) | {
            "forming": Cell("")
        }
    digits = digits_of(quote)
    old = facts.time_us - quote.heard_us > OLD_US or stopped(facts)
    return {
        "symbol": Cell(quote.symbol),
        "last": price(quote.last, digits, "muted" if old else ""),
        "change": _change(quote, digits, percent=True),
        "bid": price(quote.bid, digits),
        "ask": price(quote.ask, digits),
        "spread": _spread(quote, digits),
        "volume": volume(quote.volume),
        "at": moment(quote.time_us),
        "place": _record(facts),
        "forming": Cell("" if old else _forming(facts, request)),
    }  # fmt: skip


def _record(facts: Quotes) -> Cell:
    """A link to the record of the latest quote."""
    if facts.partition is None or facts.offset is None:
        return UNKNOWN
    records_href = path("topics", facts.topic, "records")
    href = f"{records_href}?start=offset&partition={facts.partition}&offset={facts.offset}"
    return Cell(f"partition {facts.partition}, offset {facts.offset:,}", href=href)


def _forming(facts: Quotes, request: PageRequest) -> str:
    """The forming candle and the values of its lines, for the chart: numbers separated by commas."""
    candles = facts.candles
    if candles is None or candles.forming is None:
        return ""
    figures = (*candles.forming[:5], *(line.forming for line in analytics.lines(facts, request)))
    return ",".join("" if value is None else f"{value:.10g}" for value in figures)


# ---- rows


def _change(quote: Quote, digits: int, *, percent: bool = False) -> Cell:
    if quote.last is None or not quote.first:
        return UNKNOWN
    change = round(quote.last - quote.first, digits)
    share = 100 * change / quote.first
    tone = "good" if change > 0 else "bad" if change < 0 else ""
    sign = "▲ " if change > 0 else "▼ " if change < 0 else ""
    text = f"{sign}{change:+,.{digits}f} ({share:+.2f} %)" if percent else f"{change:+,.{digits}f}"
    return Cell(text, change, tone=tone)


def _percent(quote: Quote) -> Cell:
    if quote.last is None or not quote.first:
        return UNKNOWN
    share = 100 * (quote.last / quote.first - 1)
    return Cell(f"{share:+.2f}", round(share, 4), tone="good" if share > 0 else "bad" if share < 0 else "")


def _spread(quote: Quote, digits: int) -> Cell:
    if quote.bid is None or quote.ask is None:
        return UNKNOWN
    spread = round(quote.ask - quote.bid, digits)
    middle = (quote.ask + quote.bid) / 2
    title = f"{1e4 * spread / middle:.2f} basis points" if middle else ""
    return Cell(f"{spread:,.{digits}f}", spread, title=title)


def age(time_us: int, heard_us: int) -> Cell:
    """The age in whole seconds, to limit updates."""
    seconds = max(0, time_us - heard_us) // 1_000_000
    if seconds < 2:
        return Cell("now", 0, title=numbers.moment_text(heard_us // 1_000_000 * 1_000_000))
    return Cell(seconds_text(float(seconds)), seconds, title=numbers.moment_text(heard_us))


def _row(quote: Quote, time_us: int, request: PageRequest) -> Row:
    digits = digits_of(quote)
    old = "muted" if time_us - quote.heard_us > OLD_US else ""
    cells = (
        Cell(quote.symbol),
        price(quote.last, digits, old),
        _change(quote, digits),
        _percent(quote),
        price(quote.bid, digits, old),
        price(quote.ask, digits, old),
        _spread(quote, digits),
        volume(quote.volume),
        Cell("", spark=_above_least(quote.trend)),
        age(time_us, quote.heard_us),
        numbers.count(quote.records),
    )
    return Row(quote.symbol, cells, request.link(symbol=quote.symbol, page=None))


def _above_least(prices: Sequence[float | None]) -> list[float | None]:
    """Prices less the minimum: a sparkline starts at zero, and prices are far from it."""
    least = min((price for price in prices if price is not None), default=0.0)
    return [None if price is None else round(price - least, DIGITS_MAX) for price in prices]


# ---- charts


def _charts(facts: Quotes, request: PageRequest) -> dict[str, Chart]:
    candles = facts.candles
    if candles is None:
        return {}
    line = request.query.get("draw") == "line"
    over = analytics.lines(facts, request)
    values = (candles.open, candles.high, candles.low, candles.close, candles.volume, *(each.values for each in over))
    name = next((name for name, step_s in STEPS_S.items() if step_s == candles.step_s), "1s")
    known = [close for close in candles.close if close is not None]
    lows = [low for low in candles.low if low is not None]
    highs = [high for high in candles.high if high is not None]
    summary = (
        f"{facts.symbol}, {len(known)} candles of {name}: from {known[0]:g} to {known[-1]:g}, "
        f"between {min(lows):g} and {max(highs):g}"
        if known
        else f"{facts.symbol}: no completed {name} candle yet"
    )
    return {
        "price": Chart(
            "price",
            ("open", "high", "low", "close", "volume", *(each.name for each in over)),
            candles.step_s,
            candles.end_us,
            values,
            kind="candle-line" if line else "candle",
            summary="; ".join([summary, *(text for each in over if (text := each.summary))]),
        ),
        "spread": Chart(
            "spread", ("spread",), candles.step_s, candles.end_us, (candles.spread,), summary=_spread_summary(candles)
        ),
    }


def _spread_summary(candles: Candles) -> str:
    known = [spread for spread in candles.spread if spread is not None]
    if not known:
        return DASH
    return f"spread {known[-1]:.4g}, average {sum(known) / len(known):.4g}, max {max(known):.4g}"
