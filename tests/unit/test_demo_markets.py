"""What real markets say becomes quotes and trades, and what cannot be meant does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

import comet
from comet.sources.websocket import MALFORMED
from comet_demo.feed import arguments
from comet_demo.model import SIZE_MAX, Quote, Trade
from comet_demo.providers.choose import chosen
from comet_demo.providers.normal import OLD_MAX, Numbers, Tape, moment, price, size
from comet_demo.providers.public_feeds import Alpaca, Binance, Coinbase, Dialect, ParsedMessage
from tests.market import servers as said
from tests.market.servers import NOW_US

LATER_US = NOW_US + 50


def coinbase() -> Coinbase:
    dialect = Coinbase(["btc-usd"])
    assert json.loads(dialect.begin()[0]) == {
        "type": "subscribe", "product_ids": ["BTC-USD"], "channels": ["ticker", "matches", "heartbeat"],
    }  # fmt: skip
    return dialect


def binance() -> Binance:
    dialect = Binance(["bnbusdt"])
    assert json.loads(dialect.begin()[0])["params"] == ["bnbusdt@bookTicker", "bnbusdt@trade"]
    return dialect


def alpaca() -> Alpaca:
    dialect = Alpaca("key", "secret", ["aapl"])
    assert dialect.begin() == []
    return dialect


def test_coinbase() -> None:
    dialect = coinbase()
    assert dialect.parse(said.ticker(), LATER_US).events == [
        Quote("BTC-USD", 100.25, 100.75, 466_887, 1_566_370, 100.5, 11_439_699, NOW_US)
    ]
    assert dialect.parse(said.match(6, first=True), LATER_US).events == []  # of before our time
    assert dialect.parse(said.match(7), LATER_US).events == [
        Trade("BTC-USD", 100.5, 250_000, "buy", NOW_US, 100.25, 100.75)
    ]
    again = dialect.parse(said.match(7), LATER_US)
    assert (again.events, again.missed) == ([], 0)
    assert dialect.parse(said.match(10), LATER_US).missed == 2
    assert dialect.parse({"type": "auction"}, LATER_US).malformed == 0


def test_coinbase_is_subscribed_anew_where_a_trade_that_is_known_does_not_come() -> None:
    dialect = coinbase()
    dialect.parse(said.match(7, first=True), LATER_US)
    assert not dialect.parse(said.heartbeat(9), LATER_US).replies  # they may be on their way
    parsed = dialect.parse(said.heartbeat(9), LATER_US)
    assert parsed.missed == 2
    assert [json.loads(text)["type"] for text in parsed.replies] == ["unsubscribe", "subscribe"]
    assert not dialect.parse(said.heartbeat(9), LATER_US).replies
    on_the_way = dialect.parse(said.match(10), LATER_US)
    assert (on_the_way.missed, len(on_the_way.events)) == (0, 1)
    dialect.parse(said.heartbeat(10), LATER_US)
    assert not dialect.parse(said.heartbeat(11), LATER_US).replies


def test_binance() -> None:
    dialect = binance()
    assert dialect.parse({"result": None, "id": 1}, LATER_US).subscribed
    assert dialect.parse(said.trade(12345), LATER_US).events == [Trade("BNBUSDT", 25.36, 100_000, "sell", LATER_US)]
    assert dialect.parse(said.book(400), LATER_US).events == [
        Quote("BNBUSDT", 25.3519, 25.3652, 31_210_000, 40_660_000, 25.36, 100_000, LATER_US)
    ]
    assert dialect.parse(said.book(399), LATER_US).events == []
    assert dialect.parse(said.book(407), LATER_US).missed == 0  # numbers of books leave some out
    assert dialect.parse(said.trade(12348), LATER_US).missed == 2
    assert dialect.parse({"e": "serverShutdown", "E": NOW_US}, LATER_US).again


@pytest.mark.parametrize("fast_us", [0, 2_000_000, -2_000_000])
def test_quotes_and_trades_of_binance_have_one_clock(fast_us: int) -> None:
    """Only trades say when they were: by two clocks one of the two kinds would be late, and left out of bars."""
    dialect = binance()
    now_us = NOW_US + fast_us
    parsed = [dialect.parse(said.book(400), now_us), dialect.parse(said.trade(7), now_us + 1)]
    assert [event.timestamp_us for one in parsed for event in one.events] == [now_us, now_us + 1]
    nonsense = said.trade(8)
    nonsense["data"]["T"] = (NOW_US + 2 * 3_600_000_000) // 1000
    with pytest.raises(ValueError, match="too far in the future"):
        dialect.parse(nonsense, NOW_US)


def test_a_quote_says_what_was_traded_since_the_one_before() -> None:
    """It is what the watchlist, candles and the terminal take for volume."""

    def sizes(dialect: Dialect, *messages: Any) -> list[int]:
        events = [event for message in messages for event in dialect.parse(message, LATER_US).events]
        return [event.last_size for event in events if isinstance(event, Quote)]

    older = said.book(400)  # is left out, and takes nothing with it
    coins = [said.book(401), said.trade(1), said.trade(2), older, said.trade(2), said.book(402), said.book(403)]
    assert sizes(binance(), *coins) == [0, 200_000, 0]
    one_sided, broken = said.stock_quote(bid=0), said.stock_quote() | {"t": "never"}
    stocks = [said.stock_quote(), said.stock_trade(), one_sided, broken, said.stock_trade(), said.stock_quote()]
    assert sizes(alpaca(), stocks, [said.stock_quote()]) == [0, 2, 0]


MANY = "12000000000.00"  # coins, that cost next to nothing: in millionths more than there is room for


def test_of_more_coins_than_can_be_counted_there_are_as_many_as_can_be() -> None:
    cheap = coinbase()
    (quote,) = cheap.parse(said.ticker() | {"best_bid_size": MANY, "last_size": MANY}, LATER_US).events
    assert isinstance(quote, Quote) and (quote.bid_size, quote.last_size) == (SIZE_MAX, SIZE_MAX)
    cheap.parse(said.match(7), LATER_US)
    parsed = cheap.parse(said.match(8) | {"size": MANY}, LATER_US)
    assert parsed.events == [Trade("BTC-USD", 100.5, SIZE_MAX, "buy", NOW_US, 100.25, 100.75)]
    for _ in range(2):
        assert cheap.parse(said.heartbeat(8), LATER_US) == ParsedMessage()  # nothing is missing
    book, trade = said.book(400), said.trade(1)
    book["data"]["A"] = trade["data"]["q"] = MANY
    assert binance().parse(trade, LATER_US).events == [Trade("BNBUSDT", 25.36, SIZE_MAX, "sell", LATER_US)]
    (quote,) = binance().parse(book, LATER_US).events
    assert isinstance(quote, Quote) and quote.ask_size == SIZE_MAX


def test_alpaca() -> None:
    dialect = alpaca()
    (login,) = dialect.parse([{"T": "success", "msg": "connected"}], LATER_US).replies
    assert json.loads(login) == {"action": "auth", "key": "key", "secret": "secret"}
    (request,) = dialect.parse([{"T": "success", "msg": "authenticated"}], LATER_US).replies
    assert json.loads(request) == {"action": "subscribe", "quotes": ["AAPL"], "trades": ["AAPL"]}
    assert dialect.parse([{"T": "subscription", "quotes": ["AAPL"], "trades": ["AAPL"]}], LATER_US).subscribed
    parsed = dialect.parse([said.stock_trade(), said.stock_quote(), said.stock_quote(bid=0), {"T": "b"}], LATER_US)
    assert parsed.events == [
        Trade("AAPL", 126.55, 1, "", NOW_US),
        Quote("AAPL", 87.66, 87.68, 1, 4, 126.55, 1, NOW_US),
    ]
    assert parsed.malformed == 0


REFUSALS = [
    (coinbase(), {"type": "error", "message": "Failed to subscribe", "reason": "X is not valid"}, "X is not valid"),
    (coinbase(), {"type": "subscriptions", "channels": [{"name": "matches", "product_ids": []}]}, "has no BTC-USD"),
    (binance(), {"error": {"code": 2, "msg": "Invalid request"}, "id": 1}, "Invalid request"),
    (binance(), {"code": 3, "msg": "Invalid JSON"}, "Invalid JSON"),
    (alpaca(), [{"T": "error", "code": 402, "msg": "auth failed"}], "COMET_ALPACA_KEY"),
    (alpaca(), [{"T": "error", "code": 405, "msg": "symbol limit exceeded"}], "--symbols"),
    (alpaca(), [{"T": "error", "code": 409, "msg": "insufficient subscription"}], "--url"),
    (alpaca(), [{"T": "subscription", "quotes": [], "trades": []}], "did not subscribe AAPL"),
]


@pytest.mark.parametrize(("dialect", "message", "says"), REFUSALS)
def test_what_is_refused_is_told_with_what_to_do(dialect: Dialect, message: Any, says: str) -> None:
    parsed = dialect.parse(message, LATER_US)
    assert says in parsed.refused
    assert not parsed.subscribed


@pytest.mark.parametrize("code", [404, 406, 407, 500, 999])
def test_other_errors_of_alpaca_are_a_reason_to_connect_again(code: int) -> None:
    parsed = alpaca().parse([{"T": "error", "code": code, "msg": "no"}], LATER_US)
    assert f"({code})" in parsed.again and not parsed.refused
    assert alpaca().parse([{"T": "error", "code": 403, "msg": "already authenticated"}], LATER_US).again == ""


def test_an_error_later_or_one_that_passes_is_a_reason_to_connect_again() -> None:
    late, early = coinbase(), coinbase()
    error = {"type": "error", "message": "something"}
    channels = [{"name": "matches", "product_ids": ["BTC-USD"]}]
    assert late.parse({"type": "subscriptions", "channels": channels}, LATER_US).subscribed
    assert late.parse(error, LATER_US).again and early.parse(error, LATER_US).refused
    assert early.parse({"type": "error", "message": "Too many requests"}, LATER_US).again
    subscribed = binance()
    subscribed.parse({"result": None, "id": 1}, LATER_US)
    assert subscribed.parse({"error": {"code": 0, "msg": "?"}}, LATER_US).again


BROKEN: list[Any] = [None, True, [], {}, "", "text", "NaN", "inf", "-1", -1, 1e300, "1" * 5000, {"a": 1}, float("nan")]


@pytest.mark.parametrize(
    ("dialect", "message", "fields"),
    [
        (coinbase(), said.ticker(), ("best_bid", "best_ask", "price", "time", "product_id")),
        (coinbase(), said.match(7), ("trade_id", "price", "size", "time", "product_id", "side")),
        (coinbase(), said.heartbeat(7), ("last_trade_id", "product_id")),
        (binance(), said.book(7)["data"], ("u", "s", "b", "B", "a", "A")),
        (binance(), said.trade(7)["data"], ("t", "s", "p", "q", "T", "m")),
        (alpaca(), said.stock_quote(), ("S", "bp", "ap", "bs", "as", "t")),
        (alpaca(), said.stock_trade(), ("S", "p", "s", "t")),
    ],
)
def test_no_field_may_be_anything(dialect: Dialect, message: dict[str, Any], fields: tuple[str, ...]) -> None:
    for name in fields:
        for value in BROKEN:
            if value in (True, [], {}, "") and name in ("m", "bp", "ap"):
                continue  # means yes, or no quote
            broken: Any = message | {name: value}
            if isinstance(dialect, Alpaca):
                broken = [broken]
            elif isinstance(dialect, Binance):
                broken = {"stream": "bnbusdt@bookTicker" if "u" in message else "bnbusdt@trade", "data": broken}
            try:
                parsed = dialect.parse(broken, LATER_US)
            except MALFORMED:
                continue
            kept = [event for event in parsed.events if not sound(event)]
            assert not kept, (name, value)


def sound(event: Quote | Trade) -> bool:
    prices = (event.bid, event.ask, event.last) if isinstance(event, Quote) else (event.price,)
    return all(0 < one < 1e16 for one in prices) and 0 < event.timestamp_us <= LATER_US + 3_600_000_000


@pytest.mark.parametrize(
    "message", [None, 1, "text", [], {}, [1], {"type": []}, {"type": "match"}, [[[]]], {"data": 1}]
)
@pytest.mark.parametrize("dialect", [coinbase(), binance(), alpaca()])
def test_no_message_may_be_anything(dialect: Dialect, message: Any) -> None:
    try:
        parsed = dialect.parse(message, LATER_US)
    except MALFORMED:
        return
    assert not (parsed.events or parsed.refused or parsed.subscribed)


def test_numbers_that_begin_anew_are_noticed() -> None:
    numbers = Numbers()
    assert numbers.missed("A", 1 << 60) == 0
    assert [numbers.missed("A", number) for number in range(1, OLD_MAX)] == [None] * (OLD_MAX - 1)
    assert [numbers.missed("A", number) for number in range(OLD_MAX, OLD_MAX + 3)] == [0, 0, 0]


def test_normal_values() -> None:
    assert (price("0.00000001"), price(7)) == (1e-8, 7.0)
    assert (size("0"), size(0.4), size("3")) == (0, 1, 3)
    for none in (-1, "-0.1", "inf", "nan"):
        with pytest.raises(ValueError, match="not a size"):
            size(none)
    assert moment("2021-02-22T15:51:45.335689322Z", NOW_US) == 1_614_009_105_335_689
    assert moment("2021-02-22 15:51:45", NOW_US) == 1_614_009_105_000_000
    with pytest.raises(ValueError, match="too far in the future"):
        moment(NOW_US + 3_600_000_001, NOW_US)


def test_a_tape_grows_no_further_than_it_may() -> None:
    tape = Tape(symbols_max=2)
    for symbol in ("A", "B", "C"):
        tape.trade(symbol, 1.5, SIZE_MAX)
    tape.trade("C", 2.5, SIZE_MAX)
    assert [tape.quote(symbol, 8.0, 10.0, 0) for symbol in ("A", "C", "C")] == [(9.0, 0), (2.5, SIZE_MAX), (2.5, 0)]
    tape.quote("B", 8.0, 10.0, 0)
    assert [tape.market(symbol, 0) for symbol in ("A", "B")] == [(None, None), (8.0, 10.0)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--provider alpaca", "COMET_ALPACA_SECRET"),
        (f"--provider binance --symbols {','.join(f'S{n}' for n in range(600))}", "512 symbols"),
        ("--provider replay", "--file"),
        ("--provider replay --file /nowhere.csv", "does not exist"),
        ("--file quotes.csv", "use --provider replay"),
    ],
)
def test_what_cannot_work_is_refused_before_it_begins(line: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMET_ALPACA_KEY", "key")
    monkeypatch.delenv("COMET_ALPACA_SECRET", raising=False)
    with pytest.raises(comet.InvalidArgument, match=says):
        chosen(arguments().parse_args(line.split()))


def test_a_market_is_chosen_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMET_ALPACA_KEY", "key")
    monkeypatch.setenv("COMET_ALPACA_SECRET", "secret")
    for name in ("coinbase", "binance", "alpaca"):
        provider = chosen(arguments().parse_args(["--provider", name, "--url", "ws://x"]))
        assert (provider.name, provider.live) == (name, True)
