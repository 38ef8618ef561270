"""The demo's made-up market: replayable, in order, plausible, and as wrong as it was asked to be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest

import comet
from comet_demo.feed import arguments
from comet_demo.model import INSTRUMENTS, Quote, Trade
from comet_demo.providers import Event
from comet_demo.providers.choose import chosen
from comet_demo.providers.market import REOPENING_SPREAD, Market, poisson
from comet_demo.providers.synthetic import SyntheticProvider

SECOND_US = 1_000_000


def market(seed: int, rate: float = 2000.0, **settings: Any) -> Market:
    return Market(INSTRUMENTS, Random(seed), rate=rate, start_us=0, **settings)


def quotes_of(events: Sequence[Event]) -> list[Quote]:
    return [event for event in events if isinstance(event, Quote)]


def trades_of(events: Sequence[Event]) -> list[Trade]:
    return [event for event in events if isinstance(event, Trade)]


def test_a_seed_gives_the_same_market_however_often_it_is_asked() -> None:
    at_once = market(7, faults=0.01).advance(3 * SECOND_US)
    slowly, stepwise = market(7, faults=0.01), []
    for step in range(1, 432):
        stepwise += slowly.advance(min(step * 7_001, 3 * SECOND_US))
    assert at_once == stepwise
    assert market(8, faults=0.01).advance(3 * SECOND_US) != at_once


def test_time_that_is_left_out_moves_the_same_market() -> None:
    whole, interrupted = market(7).advance(2 * SECOND_US), market(7)
    before = interrupted.advance(SECOND_US - 1)
    interrupted.skip_to(100 * SECOND_US)
    after = interrupted.advance(101 * SECOND_US - 1)
    assert [(one.symbol, one.timestamp_us) for one in before + after] == [
        (one.symbol, one.timestamp_us + (99 * SECOND_US if one.timestamp_us >= SECOND_US else 0))
        for one in whole
        if one.timestamp_us < 2 * SECOND_US
    ]


@pytest.mark.parametrize("seed", range(3))
def test_what_happens_is_in_order_and_makes_sense(seed: int) -> None:
    events = market(seed).advance(5 * SECOND_US)
    quotes, trades = quotes_of(events), trades_of(events)
    assert {quote.symbol for quote in quotes} == {instrument.symbol for instrument in INSTRUMENTS}
    assert all(before.timestamp_us <= after.timestamp_us for before, after in pairwise(events))
    for quote in quotes:
        assert 0 < quote.bid < quote.ask < quote.bid * 1.05
        assert quote.bid_size > 0 and quote.ask_size > 0 and quote.last_size >= 0
        assert f"{quote.bid:.2f}" == f"{quote.bid:.12g}" or float(f"{quote.bid:.2f}") == quote.bid
    assert 0.2 < len(trades) / len(quotes) < 0.3
    came_with = {(quote.symbol, quote.timestamp_us, quote.last, quote.last_size): quote for quote in quotes}
    for trade in trades:
        quote = came_with[trade.symbol, trade.timestamp_us, trade.price, trade.size]
        assert trade.price == (quote.ask if trade.side == "buy" else quote.bid)
        assert trade.size > 0
    assert sum(1 for quote in quotes if quote.last_size) == len(trades)


def test_the_rate_is_that_of_the_day_high_at_its_ends_and_bursts_come() -> None:
    counts = [0] * 100
    for quote in quotes_of(market(1, rate=200, day_s=100).advance(100 * SECOND_US - 1)):
        counts[quote.timestamp_us // SECOND_US] += 1
    calm = sorted(counts)[len(counts) // 2]
    assert 150 < calm < 250
    assert max(counts) > 2.5 * calm
    opening, noon, close = (sorted(counts[at : at + 12])[5] for at in (0, 44, 88))
    assert opening > 1.25 * noon and close > 1.25 * noon


@pytest.mark.parametrize("rate", [1, 50_000])
def test_the_rate_may_be_anything(rate: float) -> None:
    seconds = max(int(200 / rate), 1)
    expected = rate * seconds
    count = len(quotes_of(market(5, rate=rate, day_s=1e9).advance(seconds * SECOND_US)))
    assert expected * 0.7 < count < expected * 6  # bursts make it more


def test_spreads_widen_with_volatility() -> None:
    seen: dict[int, list[Quote]] = {}
    for quote in quotes_of(market(2, rate=400).advance(60 * SECOND_US)):
        seen.setdefault(quote.timestamp_us // SECOND_US, []).append(quote)
    spreads = {second: sum(one.ask / one.bid - 1 for one in quotes) / len(quotes) for second, quotes in seen.items()}
    busy = sorted(seen, key=lambda second: -len(seen[second]))
    wide, usual = (sum(spreads[second] for second in part) / len(part) for part in (busy[:5], busy[10:]))
    assert wide > 1.5 * usual


def test_halts_end_with_a_jump_and_a_wide_spread() -> None:
    one = market(3, rate=1000, day_s=1e9)
    one._next_halt_us = 3 * SECOND_US
    events = one.advance(4 * SECOND_US)
    (halted,) = [line for line in one.lines if line.quiet_until_us]
    until_us = halted.quiet_until_us
    assert 7 * SECOND_US <= until_us <= 15 * SECOND_US
    quotes = [quote for quote in quotes_of(events + one.advance(until_us + SECOND_US)) if quote.symbol == halted.symbol]
    assert not [quote for quote in quotes if 3 * SECOND_US <= quote.timestamp_us < until_us]
    usual = [quote.ask / quote.bid - 1 for quote in quotes if quote.timestamp_us < 3 * SECOND_US]
    reopened = [quote.ask / quote.bid - 1 for quote in quotes if quote.timestamp_us >= until_us]
    assert sum(reopened[:5]) / 5 > REOPENING_SPREAD / 3 * sum(usual) / len(usual)


def test_faults_come_as_often_as_was_asked() -> None:
    assert not [one for one in quotes_of(market(4).advance(2 * SECOND_US)) if one.bid >= one.ask]
    events = market(4, faults=0.05).advance(4 * SECOND_US)
    quotes = quotes_of(events)
    crossed = sum(1 for one in quotes if one.bid > one.ask)
    locked = sum(1 for one in quotes if one.bid == one.ask)
    assert 0.025 < (crossed + locked) / len(quotes) < 0.042
    assert crossed > locked / 2 > crossed / 4
    latest: dict[str, Quote] = {}
    outliers = 0
    for event in events:
        if isinstance(event, Quote):
            latest[event.symbol] = event
        else:
            outliers += abs(event.price / latest[event.symbol].last - 1) > 0.04
    assert 0.5 < outliers / locked < 2


def test_data_is_lost_now_and_then_only_where_faults_are_asked_for() -> None:
    for faults in (0.0, 0.1):
        one = Market(INSTRUMENTS[:1], Random(6), rate=1, start_us=0, faults=faults)
        one._next_halt_us = math.inf
        one.advance(300 * SECOND_US)
        assert (one.lines[0].quiet_until_us > 0) is (faults > 0)


def returns(quotes: Sequence[Quote], symbol: str) -> list[float]:
    """Log returns of the middle, second by second."""
    middles: dict[int, float] = {}
    for quote in quotes:
        if quote.symbol == symbol:
            middles[quote.timestamp_us // SECOND_US] = (quote.bid + quote.ask) / 2
    prices = [middles[second] for second in sorted(middles)]
    return [math.log(after / before) for before, after in pairwise(prices)]


def correlation(ones: Sequence[float], others: Sequence[float]) -> float:
    both = list(zip(ones, others, strict=False))
    mean, other_mean = (sum(column) / len(both) for column in zip(*both, strict=True))
    product = sum((one - mean) * (other - other_mean) for one, other in both)
    squares = (sum((one - mean) ** 2 for one, _ in both), sum((other - other_mean) ** 2 for _, other in both))
    return float(product / math.sqrt(squares[0] * squares[1]))


def test_instruments_move_together_and_those_of_a_sector_more_so() -> None:
    named = ("AAPL", "MSFT", "TSLA")
    instruments = [one for one in INSTRUMENTS if one.symbol in named]
    one = Market(instruments, Random(3), rate=300, start_us=0, day_s=1e9)
    one._next_halt_us = math.inf  # a jump of one's own says nothing of what is shared
    moves = {name: returns(quotes, name) for quotes in [quotes_of(one.advance(150 * SECOND_US - 1))] for name in named}
    same_sector = correlation(moves["AAPL"], moves["MSFT"])
    other_sector = correlation(moves["AAPL"], moves["TSLA"])
    assert same_sector > other_sector > 0.3


def test_poisson_has_the_mean_that_was_asked_for() -> None:
    random = Random(1)
    for mean in (0.01, 3.0, 200.0):
        drawn = [poisson(random, mean) for _ in range(4000)]
        assert abs(sum(drawn) / len(drawn) - mean) < 5 * math.sqrt(mean / len(drawn))


async def test_after_a_sleep_no_more_than_half_a_second_is_made_up_for() -> None:
    times_us = iter([0, 3600 * SECOND_US])
    provider = SyntheticProvider(INSTRUMENTS, Random(1), rate=1000, now_us=lambda: next(times_us))
    stream = provider.stream()
    events = await anext(stream)
    assert events[0].timestamp_us >= 3599 * SECOND_US
    assert len(events) < 2_000
    assert provider.statistics()["milliseconds skipped"] == 3_599_500
    await stream.aclose()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--rate 0", "200,000"),
        ("--symbols AAPL,NONE", "unknown symbols NONE; the synthetic market has AAPL, MSFT"),
        ("--faults 1.5", "faults a share"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused_with_what_does(line: str, says: str) -> None:
    with pytest.raises(comet.InvalidArgument, match=says):
        chosen(arguments().parse_args(line.split()))


def test_an_unknown_provider_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments().parse_args(["--provider", "tape"])
    assert "choose from" in (said := capsys.readouterr().err) and "synthetic" in said
