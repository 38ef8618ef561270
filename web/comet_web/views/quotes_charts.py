"""The charts of the page of quotes: candles of one symbol, and of up to three more beside it. Pure."""

from __future__ import annotations

from typing import Final

from comet_web.document import DASH, Cell, Chart
from comet_web.facts import STEPS_S, Candles, Quotes
from comet_web.page_request import PageRequest
from comet_web.views import quotes_analytics as analytics

CANDLE: Final = ("open", "high", "low", "close", "volume")


def charts(facts: Quotes, request: PageRequest) -> dict[str, Chart]:
    """Chart `price` and `spread` of the chosen symbol, `price-2` and on of the others."""
    if facts.candles is None:
        return {}
    found = {"price": _price("price", facts.symbol, facts.candles, request, analytics.lines(facts, request))}
    for number, (symbol, candles) in enumerate(facts.others, 2):
        found[f"price-{number}"] = _price(f"price-{number}", symbol, candles, request, [])
    candles = facts.candles
    found["spread"] = Chart(
        "spread", ("spread",), candles.step_s, candles.end_us, (candles.spread,), summary=_spread_summary(candles)
    )
    return found


def forming(candles: Candles | None, lines: list[analytics.Line]) -> Cell:
    """The forming candle and the values of its lines, for the chart: numbers separated by commas."""
    if candles is None or candles.forming is None:
        return Cell("")
    figures = (*candles.forming[:5], *(line.forming for line in lines))
    return Cell(",".join("" if value is None else f"{value:.10g}" for value in figures))


def _price(id_: str, symbol: str, candles: Candles, request: PageRequest, over: list[analytics.Line]) -> Chart:
    name = next((name for name, step_s in STEPS_S.items() if step_s == candles.step_s), "1s")
    return Chart(
        id_,
        (*CANDLE, *(each.name for each in over)),
        candles.step_s,
        candles.end_us,
        (candles.open, candles.high, candles.low, candles.close, candles.volume, *(each.values for each in over)),
        kind="candle-line" if request.query.get("draw") == "line" else "candle",
        summary="; ".join([_summary(symbol, name, candles), *(text for each in over if (text := each.summary))]),
    )


def _summary(symbol: str, name: str, candles: Candles) -> str:
    known = [close for close in candles.close if close is not None]
    if not known:
        return f"{symbol}: no completed {name} candle yet"
    low = min(low for low in candles.low if low is not None)
    high = max(high for high in candles.high if high is not None)
    return f"{symbol}, {len(known)} candles of {name}: from {known[0]:g} to {known[-1]:g}, between {low:g} and {high:g}"


def _spread_summary(candles: Candles) -> str:
    known = [spread for spread in candles.spread if spread is not None]
    if not known:
        return DASH
    return f"spread {known[-1]:.4g}, average {sum(known) / len(known):.4g}, max {max(known):.4g}"
