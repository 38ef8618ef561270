"""Candles against the plain list of what was traded; and what records say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from comet_gateway.dashboard.candles import MINUTES, MORE, SECONDS, Candle, CandleSymbol, Tick, joined, tick_of

NOW_S = 1_795_298_240
TICKS = some.lists(
    some.tuples(some.integers(0, 400), some.integers(0, 999_999), some.integers(1, 1000), some.integers(0, 5)),
    min_size=1,
    max_size=60,
    unique_by=lambda one: one[:2],
)


def tick(seconds_ago: int, micros: int, price: float, size: float = 0.0) -> Tick:
    return Tick("A", price, price - 1, price + 1, size, (NOW_S - seconds_ago) * 1_000_000 + micros)


def oracle(ticks: list[Tick], step_s: int, end_s: int, count: int) -> list[Candle | None]:
    found: list[Candle | None] = []
    end = end_s // step_s
    for step in range(end - count, end):
        inside = sorted(
            (one for one in ticks if one.time_us // 1_000_000 // step_s == step), key=lambda one: one.time_us
        )
        if not inside:
            found.append(None)
            continue
        prices = [one.price for one in inside]
        found.append(Candle(prices[0], max(prices), min(prices), prices[-1], sum(one.size for one in inside), 2.0))
    return found


@given(TICKS, some.sampled_from([(1, 450), (60, 10), (300, 4), (900, 3)]))
def test_candles_are_those_of_the_list_in_whatever_order_records_come(
    drawn: list[tuple[int, int, int, int]], step: tuple[int, int]
) -> None:
    ticks = [tick(ago, micros, float(price), float(size)) for ago, micros, price, size in drawn]
    symbol = CandleSymbol(ticks[0], 0)
    for one in ticks:
        symbol.add(one)
    step_s, count = step
    end_s = NOW_S + 900
    found, _ = symbol.candles(step_s, end_s, count if step_s > 1 else SECONDS, 0)
    expected = oracle(ticks, step_s, end_s, count if step_s > 1 else SECONDS)
    if step_s == 1:  # those further back than the ring is long are written over
        newest = max(one.time_us for one in ticks) // 1_000_000
        kept = newest - SECONDS - MORE
        first = end_s - SECONDS
        expected = [one if first + at > kept else None for at, one in enumerate(expected)]
    assert found == expected


def test_what_is_older_than_the_ring_is_written_over_and_does_not_come_back() -> None:
    symbol = CandleSymbol(tick(0, 0, 5.0), 0)
    symbol.add(tick(SECONDS + MORE, 0, 1.0))
    symbol.add(tick(0, 0, 5.0))
    symbol.flush()
    symbol.add(tick(SECONDS + MORE, 1, 2.0))  # late
    found, forming = symbol.candles(1, NOW_S, SECONDS + MORE, 0)
    assert set(found) == {None}
    assert forming == Candle(5.0, 5.0, 5.0, 5.0, 0.0, 2.0)
    minutes, _ = symbol.candles(60, NOW_S, MINUTES, 0)
    assert Candle(1.0, 2.0, 1.0, 2.0, 0.0, 2.0) in minutes


@pytest.mark.parametrize("step_s", [1, 60, 300, 900])
@pytest.mark.parametrize("formed_s", [0, 1, 299, 899])
def test_the_oldest_candle_is_as_whole_as_the_others_however_far_the_one_that_forms_is(
    step_s: int, formed_s: int
) -> None:
    """A day of minutes, and 15 minutes of seconds, in front of it. Prices are the times here."""
    end_s, every_s = NOW_S // 900 * 900 + formed_s, 1 if step_s == 1 else 20
    count = SECONDS if step_s == 1 else MINUTES * 60 // step_s
    first_s = (end_s // step_s - count) * step_s
    symbol = CandleSymbol(Tick("A", 1.0, None, None, 0.0, 0), 0)
    # What comes five seconds early is taken, and a second is looked at a little after its end.
    for at_s in range(first_s - 900, end_s + 7, every_s):
        symbol.add(Tick("A", float(at_s), None, None, 1.0, at_s * 1_000_000))
    found, _ = symbol.candles(step_s, end_s, count, 0)
    last_s = step_s - every_s
    assert found == [
        Candle(at_s, at_s + last_s, at_s, at_s + last_s, step_s / every_s, None)
        for at_s in range(first_s, first_s + count * step_s, step_s)
    ]


def test_no_candle_is_given_of_what_was_not_read_whole() -> None:
    symbol = CandleSymbol(tick(50, 0, 5.0), 0)
    symbol.add(tick(50, 0, 5.0))
    symbol.add(tick(10, 0, 6.0))
    found, _ = symbol.candles(1, NOW_S, 60, NOW_S - 20)
    assert [one.close for one in found if one] == [6.0]


def test_the_trend_has_the_last_price_of_each_quarter_of_a_minute() -> None:
    symbol = CandleSymbol(tick(0, 0, 5.0), 0)
    end_s = NOW_S // 15 * 15
    symbol.add(Tick("A", 7.0, None, None, 0.0, (end_s - 15) * 1_000_000))
    symbol.add(Tick("A", 8.0, None, None, 0.0, (end_s - 1) * 1_000_000))
    assert symbol.trended(end_s, 0) == (*[None] * 59, 8.0)


def test_candles_of_nothing_are_nothing() -> None:
    assert joined([None, None]) is None
    assert joined([None, Candle(1, 3, 1, 2, 5, None), Candle(2, 2, 0, 0, 1, 4.0)]) == Candle(1, 3, 0, 0, 6, 4.0)


# ---- records

AT = NOW_S * 1_000_000


def test_quotes_of_the_demo_are_understood() -> None:
    value = (
        b'{"symbol":"AAPL","bid":1.5,"ask":1.75,"bid_size":100,"ask_size":200,"last":1.6,"last_size":300,'
        b'"timestamp_us":%d}' % (AT - 5)
    )
    assert tick_of(b"x", value, AT) == Tick("AAPL", 1.6, 1.5, 1.75, 300.0, AT - 5)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (b"EURUSD", b'{"bid": 1.0, "ask": 1.5}', Tick("EURUSD", 1.25, 1.0, 1.5, 0.0, AT)),
        (None, b'{"symbol": "A", "price": "2.5", "size": 3}', Tick("A", 2.5, None, None, 3.0, AT)),
        (b"A", b'{"price": 2, "timestamp_us": 5}', Tick("A", 2.0, None, None, 0.0, AT)),
        (b"A", None, "no value"),
        (None, b'{"price": 2}', "neither a symbol nor a key"),
        (b"A", b'{"bid": 2}', "no price: neither last, nor price, nor bid and ask"),
        (b"A", b'{"price": "dear"}', "not JSON with numbers as prices"),
        (b"A", b'{"price": 2, "x": ' + b"[" * 10_000, "not JSON with numbers as prices"),
        (b"A", b'{"price": "nan"}', "a price that is not a number"),
        (b"A", b'{"price": 1, "bid": -1e308, "ask": 1e308}', "a price that is not a number"),
        (b"A", b"[1]", "not JSON with numbers as prices"),
        (b"A", b"\xff\xfe", "not JSON with numbers as prices"),
        (b"A", bytes(range(256)), "not JSON with numbers as prices"),
    ],
)
def test_other_records_are_understood_or_said_to_be_none(
    key: bytes | None, value: bytes | None, expected: Tick | str
) -> None:
    assert tick_of(key, value, AT) == expected
