"""Paper trading: when it buys and sells, and that what it holds is what its fills say."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from comet_demo.model import INSTRUMENTS, Fill, Quote
from comet_demo.paper_trading import LOT, SLOW_US, Book
from comet_demo.providers.market import Market

SECOND_US = 1_000_000


def quote(at_s: float, middle: float, *, spread: float = 0.02, symbol: str = "A") -> Quote:
    return Quote(symbol, middle - spread / 2, middle + spread / 2, 100, 100, middle, 0, int(at_s * SECOND_US))


def run(book: Book, *quotes: Quote) -> list[Fill]:
    fills = []
    for one in quotes:
        fill = book.decide(one, partition=0)
        if fill is not None:
            book.apply(fill)
            fills.append(fill)
    return fills


def steady(until_s: int) -> list[Quote]:
    return [quote(at_s, 100.0) for at_s in range(until_s)]


def test_it_buys_at_the_ask_when_prices_rise_and_closes_at_the_bid_when_they_have_turned() -> None:
    book = Book()
    rise = [quote(20 + n, 100 + n * 0.2) for n in range(1, 6)]
    turn = [quote(25 + n, 101 - n * 0.4) for n in range(1, 6)]
    bought, sold, *_ = run(book, *steady(20), *rise, *turn)
    assert (bought.side, bought.size, bought.position) == ("buy", LOT, LOT)
    assert bought.price in {one.ask for one in rise} and bought.cash == round(-LOT * bought.price, 4)
    assert (sold.side, sold.position) == ("sell", 0)
    assert sold.price in {one.bid for one in turn}
    assert sold.cash == round(LOT * (sold.price - bought.price), 4)


def test_it_sells_first_when_prices_fall() -> None:
    (sold,) = run(Book(), *steady(20), *[quote(20 + n, 100 - n * 0.2) for n in range(1, 6)])
    assert (sold.side, sold.position, sold.cash) == ("sell", -LOT, round(LOT * sold.price, 4))


def test_it_does_nothing_without_history_over_a_wide_spread_or_on_quotes_that_are_wrong() -> None:
    rise = [quote(20 + n, 100 + n * 0.2) for n in range(1, 6)]
    assert not run(Book(), *rise)  # it knows too little
    assert not run(Book(), *steady(20), *[replace(one, bid=one.bid - 1, ask=one.ask + 1) for one in rise])
    assert not run(Book(), *steady(20), *[replace(one, bid=one.ask + 1) for one in rise])
    assert not run(Book(), *steady(20), *[replace(one, timestamp_us=3) for one in rise])  # of the past
    assert not run(Book(), *steady(20), *[quote(20, 150.0), quote(21, 150.0)])  # a jump


def test_what_was_acted_on_is_not_acted_on_again_after_a_restart() -> None:
    history = [*steady(20), *[quote(20 + n, 100 + n * 0.2) for n in range(1, 6)]]
    (bought,) = run(Book(), *history)
    again = Book()
    again.restore({"A": bought}, partition=0)
    assert not run(again, *history)
    assert (again.holdings["A"].position, again.holdings["A"].cash) == (LOT, bought.cash)
    later = Book()
    later.restore({"A": bought}, partition=0)
    fall = [quote(40 + n, 101 - n * 0.2) for n in range(12)]
    assert not run(later, *fall[: int(SLOW_US / SECOND_US)])  # it holds on while the averages say nothing
    sold, *_ = run(later, *fall)
    assert (sold.side, sold.position) == ("sell", 0)


def test_a_fill_that_could_not_be_written_is_as_if_it_had_not_been() -> None:
    book = Book()
    fills = [book.decide(one, 0) for one in (*steady(20), quote(21, 100.5), quote(22, 101.0))]
    first, second = fills[-2:]
    assert first is not None and second is not None
    assert (first.position, second.position) == (LOT, LOT)


def test_a_partition_that_comes_is_as_the_fills_say_and_others_stay() -> None:
    book = Book()
    for symbol, partition in (("A", 0), ("B", 1)):
        book.decide(quote(0, 100, symbol=symbol), partition)
    fill = Fill("A", "buy", LOT, 100.0, -10_000.0, LOT, 5)
    fills = {symbol: replace(fill, symbol=symbol) for symbol in ("A", "B", "C")}
    book.restore(fills, partition=0)
    assert {symbol: holding.position for symbol, holding in book.holdings.items()} == {"A": LOT, "B": 0, "C": LOT}
    sold = replace(fill, symbol="C", position=0)  # by the member that had it
    book.restore({"C": sold}, partition=2)
    assert book.holdings["C"].position == 0
    assert str(book) == "0 of 1 symbols held, profit +0.00"


def test_over_a_market_cash_and_position_always_add_up() -> None:
    book = Book()
    events = Market(INSTRUMENTS, Random(2), rate=100, start_us=0, faults=0.01).advance(60 * SECOND_US)
    fills = run(book, *[event for event in events if isinstance(event, Quote)])
    assert len(fills) > 10
    for symbol, holding in book.holdings.items():
        own = [fill for fill in fills if fill.symbol == symbol]
        sign = {"buy": 1, "sell": -1}
        assert holding.position == sum(sign[fill.side] * fill.size for fill in own)
        assert abs(holding.cash + sum(sign[fill.side] * fill.size * fill.price for fill in own)) < 0.01
        assert abs(holding.position) <= LOT
