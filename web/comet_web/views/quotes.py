"""The page of quotes: the latest prices of a watchlist, and the candles and trades of one symbol. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

from comet_web.components import numbers
from comet_web.components.table import shaped
from comet_web.document import UNKNOWN, Cell, Column, Document, Row, Table
from comet_web.facts import Quote, Quotes, TapeTrade
from comet_web.page_request import PageRequest, path
from comet_web.views import quotes_analytics as analytics
from comet_web.views import quotes_charts
from comet_web.views.market_opening import opening_text, opening_title
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
    Column("volume", "Volume", numeric=True, wide=False),
    Column(
        "trend",
        "15 min",
        sortable=False,
        wide=False,
        title="price of the last 15 minutes; the scale is the symbol's own, from its lowest to its highest price",
    ),
    Column("age", "Age", numeric=True, title="since the last quote", hidden=True),
    Column("records", "Quotes", numeric=True, hidden=True),
)
TAPE_COLUMNS: Final = (
    Column("time", "Time", sortable=False, title="UTC"),
    Column("price", "Price", numeric=True, sortable=False, wide=False),
    Column("size", "Size", numeric=True, sortable=False, wide=False),
    Column(
        "side", "Side", sortable=False, wide=False, title="of the aggressor: a purchase at the ask, a sale at the bid"
    ),
)
TAPE_ROWS: Final = 30
WATCHED_MAX: Final = 200  # symbols in an address


def view(facts: Quotes, request: PageRequest) -> Document:
    watched = watched_of(facts.quotes, request)
    rows = [_row(quote, facts, request) for quote in watched.values()]
    watch = shaped("watchlist", COLUMNS, rows, request, sort="symbol")
    return Document(
        facts.time_us,
        f"Quotes of {facts.symbol}" if facts.symbol else "Quotes",
        {
            **_source(facts),
            **_chosen(facts, request),
            **_others(facts),
            **_watching(facts, watched),
            **analytics.fields(facts, silence=_silence(facts)),
        },
        {"watchlist": watch, "tape": _tape(facts, request), **analytics.tables(facts, request)},
        quotes_charts.charts(facts, request),
    )


def watched_of(quotes: Mapping[str, Quote], request: PageRequest) -> Mapping[str, Quote]:
    """The quotes of the symbols that the address names, all without one."""
    named = [name for name in request.query.get("symbols", "").split(",", WATCHED_MAX) if name]
    return {name: quotes[name] for name in dict.fromkeys(named) if name in quotes} if named else quotes


def stopped(facts: Quotes) -> bool:
    return facts.state == "live" and facts.last_us is not None and facts.time_us - facts.last_us > STOPPED_US


def _closed(facts: Quotes) -> str:
    """Since when the market is closed; empty if it is open, or unknown."""
    if facts.market is None or facts.market.open:
        return ""
    since, today = numbers.moment_text(facts.market.since_us), numbers.moment_text(facts.time_us)
    return f"market closed since {since[11:16] if since[:10] == today[:10] else since[:16]}"


def _silence(facts: Quotes) -> str:
    """Why no quotes come, if none do."""
    if not stopped(facts):
        return ""
    return "the market is closed" if _closed(facts) else "the feed has stopped too"


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
    if facts.market is not None and _closed(facts) and (stopped(facts) or not facts.quotes):
        return _closed_state(facts, numbers.moment_text(facts.market.since_us))
    if not facts.quotes:
        return Cell("no quotes yet", tone="warn")
    if stopped(facts) and facts.last_us:
        return Cell(
            f"feed stopped; last quote at {clock(facts.last_us)}",
            tone="warn",
            title=numbers.moment_text(facts.last_us),
        )
    return Cell("live", tone="good")


def _closed_state(facts: Quotes, since: str) -> Cell:
    """Since when the market is closed, and when it opens."""
    texts = (_closed(facts), opening_text(facts.opening, facts.time_us))
    titles = (since, opening_title(facts.opening))
    return Cell(", ".join(filter(None, texts)), tone="muted", title=", ".join(filter(None, titles)))


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
    if facts.outliers:
        parts.append(f"{numbers.counted(facts.outliers, 'price')} left out, far from bid and ask")
    if facts.symbols_left_out:
        parts.append(f"{numbers.counted(facts.symbols_left_out, 'symbol')} beyond the limit not shown")
    if facts.latest_failed:
        parts.append(f"the latest quotes cannot be read: {facts.latest_failed}")
    if facts.market_failed:
        parts.append(f"the state of the market cannot be read: {facts.market_failed}")
    if facts.lost:
        parts.append(f"{numbers.counted(facts.lost, 'record')} skipped: the gateway could not keep up")
    return "; ".join(parts)


# ---- the symbol that was chosen


def _chosen(facts: Quotes, request: PageRequest) -> dict[str, Cell]:
    quote = facts.quotes.get(facts.symbol)
    if quote is None:
        return dict.fromkeys(("symbol", "last", "change", "bid", "ask", "spread", "volume", "at", "place"), UNKNOWN) | {
            "current": Cell("yes"), "forming": Cell(""),
        }  # fmt: skip
    digits = digits_of(quote)
    old = facts.time_us - quote.heard_us > OLD_US or stopped(facts)
    found = {
        "symbol": Cell(quote.symbol),
        "current": Cell("yes"),
        "last": price(quote.last, digits, "muted" if old else ""),
        "change": _change(quote, digits, percent=True),
        "bid": price(quote.bid, digits),
        "ask": price(quote.ask, digits),
        "spread": _spread(quote, digits, basis_points=True),
        "volume": volume(quote.volume),
        "at": moment(quote.time_us),
        "place": _record(facts),
        "forming": Cell("") if old else quotes_charts.forming(facts.candles, analytics.lines(facts, request)),
    }
    if _expired(quote, facts.time_us):
        found |= {"current": Cell("no"), "last": _no_quote(facts), "change": _last_known(quote), "forming": Cell("")}
        found |= dict.fromkeys(("bid", "ask", "spread"), UNKNOWN)
    return found


def _expired(quote: Quote, time_us: int) -> bool:
    return 0 < quote.expires_us <= time_us


def _no_quote(facts: Quotes) -> Cell:
    closed = _closed(facts)
    return Cell("no current quote", tone="muted" if closed else "warn", title=closed or "the last quote has expired")


def _last_known(quote: Quote) -> Cell:
    """The last price of a symbol without a current quote, and its time."""
    last = price(quote.last, digits_of(quote)).text
    return Cell(f"last {last} at {clock(quote.time_us)}", tone="muted", title=numbers.moment_text(quote.time_us))


def _record(facts: Quotes) -> Cell:
    """A link to the record of the latest quote."""
    if facts.offset is None:
        return UNKNOWN
    if facts.partition is None:
        href = f"{path('topics', facts.latest_topic, 'keys')}?{urlencode({'key': facts.symbol})}"
        return Cell(f"{facts.latest_topic}, revision {facts.offset:,}", href=href)
    records_href = path("topics", facts.topic, "records")
    href = f"{records_href}?start=offset&partition={facts.partition}&offset={facts.offset}"
    return Cell(f"partition {facts.partition}, offset {facts.offset:,}", href=href)


# ---- the other charts, the watchlist, the trades


def _others(facts: Quotes) -> dict[str, Cell]:
    """The number of charts; symbol, price, change and forming candle of those beside the first."""
    found = {"panes": Cell(str(1 + len(facts.others)))}
    for number, (symbol, candles) in enumerate(facts.others, 2):
        quote = facts.quotes[symbol]
        digits, expired = digits_of(quote), _expired(quote, facts.time_us)
        found |= {
            f"symbol-{number}": Cell(symbol),
            f"current-{number}": Cell("no" if expired else "yes"),
            f"last-{number}": _no_quote(facts) if expired else price(quote.last, digits),
            f"change-{number}": _last_known(quote) if expired else _change(quote, digits, percent=True),
            f"forming-{number}": Cell("") if expired or stopped(facts) else quotes_charts.forming(candles, []),
        }
    return found


def _watching(facts: Quotes, watched: Mapping[str, Quote]) -> dict[str, Cell]:
    left = len(facts.quotes) - len(watched)
    return {
        "symbols": Cell(",".join(sorted(facts.quotes))),
        "watched": Cell(",".join(watched)),
        "watching": Cell(f"{len(watched)} of {numbers.counted(len(facts.quotes), 'symbol')}" if left else ""),
    }


def _tape(facts: Quotes, request: PageRequest) -> Table:
    digits = digits_of(facts.quotes.get(facts.symbol))
    rows = [_trade(trade, digits) for trade in facts.tape[:TAPE_ROWS]]
    return shaped("tape", TAPE_COLUMNS, rows, request, main=False)


def _trade(trade: TapeTrade, digits: int) -> Row:
    tone = {"buy": "good", "sell": "bad"}.get(trade.side, "")
    shown = price(trade.price, digits, tone)
    if trade.outlier:
        shown = Cell(
            f"◇ {shown.text}", trade.price, tone="muted", title="far from bid and ask: in no candle and figure"
        )
    text = numbers.moment_text(trade.time_us)
    cells = (Cell(text[11:23], trade.time_us, title=text), shown, volume(trade.size), Cell(trade.side, tone=tone))
    return Row(f"{trade.partition}-{trade.offset}", cells)


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


def _spread(quote: Quote, digits: int, *, basis_points: bool = False) -> Cell:
    if quote.bid is None or quote.ask is None:
        return UNKNOWN
    spread = round(quote.ask - quote.bid, digits)
    middle = (quote.ask + quote.bid) / 2
    share = f"{1e4 * spread / middle:.1f}" if middle else ""
    if basis_points and share:
        return Cell(f"{spread:,.{digits}f} ({share} bp)", spread, title=f"{share} basis points of the price")
    return Cell(f"{spread:,.{digits}f}", spread, title=f"{share} basis points" if share else "")


def age(time_us: int, heard_us: int) -> Cell:
    """The age in whole seconds, to limit updates."""
    seconds = max(0, time_us - heard_us) // 1_000_000
    if seconds < 2:
        return Cell("now", 0, title=numbers.moment_text(heard_us // 1_000_000 * 1_000_000))
    return Cell(seconds_text(float(seconds)), seconds, title=numbers.moment_text(heard_us))


def _row(quote: Quote, facts: Quotes, request: PageRequest) -> Row:
    digits, time_us, closed = digits_of(quote), facts.time_us, _closed(facts)
    old = "muted" if time_us - quote.heard_us > OLD_US else ""
    prices = (
        price(quote.last, digits, old), _change(quote, digits), _percent(quote), price(quote.bid, digits, old),
        price(quote.ask, digits, old), _spread(quote, digits),
    )  # fmt: skip
    if _expired(quote, time_us):
        why = f"{closed or 'no current quote'}; {_last_known(quote).text}"
        none = Cell("no quote", tone="muted" if closed else "warn", title=why)
        prices = (none, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
    cells = (
        Cell(quote.symbol),
        *prices,
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
