"""The demo's made-up market: replayable, in order, plausible; and the board that shows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest

from comet_demo.board import Board
from comet_demo.model import INSTRUMENTS, Quote
from comet_demo.providers.synthetic import Market, SyntheticProvider

SECOND_US = 1_000_000


def market(seed: int, rate: float = 2000.0) -> Market:
    return Market(INSTRUMENTS, Random(seed), rate=rate, start_us=0)


def test_a_seed_gives_the_same_market_however_often_it_is_asked() -> None:
    at_once = market(7).advance(3 * SECOND_US)
    slowly, stepwise = market(7), []
    for step in range(1, 301):
        stepwise += slowly.advance(step * SECOND_US // 100)
    assert at_once == stepwise
    assert market(8).advance(3 * SECOND_US) != at_once


@pytest.mark.parametrize("seed", range(5))
def test_quotes_are_in_order_and_make_sense(seed: int) -> None:
    quotes = market(seed).advance(5 * SECOND_US)
    assert {quote.symbol for quote in quotes} == {instrument.symbol for instrument in INSTRUMENTS}
    assert all(before.timestamp_us <= after.timestamp_us for before, after in pairwise(quotes))
    for quote in quotes:
        assert 0 < quote.bid < quote.ask < quote.bid * 1.05
        assert quote.bid_size > 0 and quote.ask_size > 0 and quote.last_size >= 0
    trades = [quote for quote in quotes if quote.last_size]
    assert 0.2 < len(trades) / len(quotes) < 0.3
    assert all(quote.last in (quote.bid, quote.ask) for quote in trades)


def test_the_rate_is_kept_outside_bursts_and_bursts_come() -> None:
    counts = [0] * 60
    for quote in market(1, rate=500).advance(60 * SECOND_US - 1):
        counts[quote.timestamp_us // SECOND_US] += 1
    calm = sorted(counts)[len(counts) // 2]
    assert 400 < calm < 600
    assert max(counts) > 3 * calm


def returns(quotes: Sequence[Quote], symbol: str) -> list[float]:
    """Log returns of the middle, second by second."""
    middles: dict[int, float] = {}
    for quote in quotes:
        if quote.symbol == symbol:
            middles[quote.timestamp_us // SECOND_US] = (quote.bid + quote.ask) / 2
    prices = [middles[second] for second in sorted(middles)]
    return [math.log(after / before) for before, after in pairwise(prices)]


def correlation(ones: Sequence[float], others: Sequence[float]) -> float:
    assert len(ones) == len(others)
    mean, other_mean = sum(ones) / len(ones), sum(others) / len(others)
    both = sum((one - mean) * (other - other_mean) for one, other in zip(ones, others, strict=True))
    return both / math.sqrt(sum((one - mean) ** 2 for one in ones) * sum((other - other_mean) ** 2 for other in others))


def test_instruments_move_together_and_those_of_a_sector_more_so() -> None:
    quotes = market(3, rate=400).advance(150 * SECOND_US - 1)
    same_sector = correlation(returns(quotes, "AAPL"), returns(quotes, "MSFT"))
    other_sector = correlation(returns(quotes, "AAPL"), returns(quotes, "TSLA"))
    assert same_sector > other_sector > 0.3


async def test_after_a_sleep_no_more_than_a_second_is_made_up_for() -> None:
    times_us = iter([0, 3600 * SECOND_US])
    provider = SyntheticProvider(INSTRUMENTS, Random(1), rate=1000, now_us=lambda: next(times_us))
    stream = provider.stream()
    quotes = await anext(stream)
    assert quotes[0].timestamp_us >= 3599 * SECOND_US
    assert len(quotes) < 20_000
    await stream.aclose()  # type: ignore[attr-defined]


def quote(symbol: str, last: float, *, size: int = 0, timestamp_us: int = 0) -> Quote:
    return Quote(symbol, last - 1, last + 1, 100, 100, last, size, timestamp_us)


def test_the_board_counts_and_measures() -> None:
    board = Board()
    for at in range(10):
        board.apply(quote("A", 100.0 + at, size=100 * (at % 2)), now_us=at * 1000)
    board.apply(quote("B", 50.0, timestamp_us=5), now_us=5)
    board.measure(2.0)
    line = board.lines["A"]
    assert (line.events, line.trades, line.volume) == (10, 5, 500)
    assert (line.events_per_s, line.trades_per_s, board.events_per_s) == (5.0, 2.5, 5.5)
    assert (line.direction, round(line.change, 6)) == (1, 0.09)
    assert (board.lag_p50_us, board.lag_p99_us) == (4000, 9000)
    board.measure(1.0)
    assert board.events_per_s == 0.0
    assert "11 events, 0/s, 2 symbols" in board.summary()
