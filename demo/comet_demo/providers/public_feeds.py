"""The protocols of real markets over a WebSocket: a Dialect for each market, read by `comet.sources.websocket`.

Coinbase Exchange, no key. Trades are numbered without gaps. A trade that a heartbeat names and that has not arrived by
the next heartbeat is lost: it is counted, and the product is subscribed again. A ticker comes with each trade.

    ─► {"type": "subscribe", "product_ids": […], "channels": ["ticker", "matches", "heartbeat"]}
    ◄─ {"type": "subscriptions", "channels": [{"name": "matches", "product_ids": […]}, …]}
    ◄─ ticker | last_match, match | heartbeat | error

Binance spot, no key. Trades of a symbol are numbered without gaps. The server pings every 20 s, which the connection
answers, and ends a connection after 24 hours or with `serverShutdown`: another is made before, or at once. A bookTicker
has no time: it gets its arrival time by our clock. So do trades, although they have a time (`T`): with two clocks, one
of the two kinds would always be late for a watermark over both.

    ─► {"method": "SUBSCRIBE", "params": ["btcusdt@bookTicker", "btcusdt@trade", …], "id": 1}
    ◄─ {"result": null, "id": 1}
    ◄─ {"stream": "btcusdt@bookTicker", "data": {…}} | {"stream": "btcusdt@trade", "data": {…}}

Alpaca, stocks of the IEX feed, needs a key, which is free. Outside of trading hours no messages come, so silence does
not end a connection; an unanswered ping does. Messages are not numbered: lost ones go unnoticed. Sizes are as Alpaca
gives them. A quote with one side only is left out. So are corrections and cancellations of trades (`c`, `x`): a trade
that was written stays.

    ◄─ [{"T": "success", "msg": "connected"}]
    ─► {"action": "auth", "key": …, "secret": …}
    ◄─ [{"T": "success", "msg": "authenticated"}]
    ─► {"action": "subscribe", "quotes": […], "trades": […]}
    ◄─ [{"T": "subscription", "quotes": […], "trades": […], …}]
    ◄─ [{"T": "q", …}, {"T": "t", …}, …] | [{"T": "error", "code": …, "msg": …}]
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import comet
from comet.sources import websocket
from comet.sources.websocket import MALFORMED, WebSocketSource
from comet_demo.model import Quote, Trade
from comet_demo.providers import Event
from comet_demo.providers.normal import UNITS_PER_COIN, Numbers, Tape, moment, price, size, whole

ParsedMessage: TypeAlias = websocket.ParsedMessage[Event]


class SocketProvider(WebSocketSource[Event]):
    """A market with a WebSocket."""

    live = True
    log = logging.getLogger("comet_demo.feed")


class Fields(NamedTuple):
    """The names of the fields of one market's quotes and trades."""

    symbol: str
    bid: str
    ask: str
    bid_size: str
    ask_size: str
    price: str
    size: str
    side: str = ""
    number: str = ""  # of trades


COINBASE_CHANNELS: Final = ("ticker", "matches", "heartbeat")
PASSING: Final = ("rate", "too many", "slow", "internal", "timeout")  # words of Coinbase's temporary errors
BINANCE_STREAMS: Final = ("bookTicker", "trade")
BINANCE_SYMBOLS_MAX: Final = 1024 // len(BINANCE_STREAMS)  # of one connection
# Hints for Alpaca's permanent errors, by code. Any other code: connect again.
ALPACA_REFUSALS: Final = {
    400: "the request is malformed",
    402: "check COMET_ALPACA_KEY and COMET_ALPACA_SECRET",
    405: "too many symbols for the account: choose fewer with --symbols",
    408: "the account has no market data of this version",
    409: "the account has no access to this feed: choose another with --url",
    410: "this feed has no quotes or no trades: choose another with --url",
}
ALPACA_HARMLESS: Final = {403}  # authenticated already


class Dialect:
    """The protocol of one market. Quotes and trades are read here, by the names of the market's fields."""

    name: str
    url: str
    symbols: tuple[str, ...]  # by default
    silence_s: float | None  # limit for the time without a valid message; None: silence is normal
    life_s = 23 * 3600.0  # of a connection; less than the servers allow
    fields: Fields
    sides: ClassVar[Mapping[Any, str]] = {}  # from the field's value to the aggressor's side
    units = UNITS_PER_COIN  # of a size

    def __init__(self, symbols: Sequence[str] = (), url: str = "") -> None:
        self.url = url or self.url
        self.symbols = tuple(symbol.upper() for symbol in symbols) or self.symbols
        self.trades = Numbers()
        self.tape = Tape()
        self.subscribed = False

    def begin(self) -> list[str]:
        self.subscribed = False
        return []

    def parse(self, message: Any, now_us: int) -> ParsedMessage:
        parsed = ParsedMessage()
        self.take(message, now_us, parsed)
        return parsed

    def take(self, message: Any, now_us: int, parsed: ParsedMessage) -> None:
        raise NotImplementedError

    def offer_of(self, part: Any) -> tuple[str, float, float, int, int]:
        """Symbol, bid, ask and their sizes."""
        fields = self.fields
        low, high = price(part[fields.bid]), price(part[fields.ask])
        low_size, high_size = size(part[fields.bid_size], self.units), size(part[fields.ask_size], self.units)
        return self.symbol_of(part), low, high, low_size, high_size

    def add_quote(self, offer: tuple[str, float, float, int, int], at_us: int, parsed: ParsedMessage) -> None:
        """The quote of an offer that has passed all checks, with the size traded since the previous one."""
        symbol, bid, ask, bid_size, ask_size = offer
        last, traded = self.tape.quote(symbol, bid, ask, at_us)
        parsed.events.append(Quote(symbol, bid, ask, bid_size, ask_size, last, traded, at_us))

    def add_trade(self, part: Any, at_us: int, parsed: ParsedMessage, *, earlier: bool = False) -> None:
        """A trade, unless it is a duplicate, or `earlier` than the subscription."""
        fields = self.fields
        side = self.sides[part[fields.side]] if fields.side else ""
        symbol = self.symbol_of(part)
        paid, traded = price(part[fields.price]), size(part[fields.size], self.units)
        trade = Trade(symbol, paid, traded, side, at_us, *self.tape.market(symbol, at_us))
        if fields.number:
            known = trade.symbol in self.trades.latest
            missed = self.trades.missed(trade.symbol, whole(part[fields.number]))
            if missed is None or (earlier and not known):
                return
            parsed.missed += missed
        self.tape.trade(trade.symbol, trade.price, trade.size)
        parsed.events.append(trade)

    def symbol_of(self, part: Any) -> str:
        symbol: str = part[self.fields.symbol]
        if symbol not in self.symbols:
            raise ValueError(f"{symbol!r} is not subscribed")
        return symbol


class Coinbase(Dialect):
    name = "coinbase"
    url = "wss://ws-feed.exchange.coinbase.com"
    symbols = ("BTC-USD", "ETH-USD", "SOL-USD", "XRP-USD", "DOGE-USD", "LTC-USD")
    silence_s: float | None = 10.0  # there are heartbeats
    fields = Fields(
        symbol="product_id", bid="best_bid", ask="best_ask", bid_size="best_bid_size", ask_size="best_ask_size",
        price="price", size="size", side="side", number="trade_id",
    )  # fmt: skip
    sides: ClassVar = {"buy": "sell", "sell": "buy"}  # `side` is the maker's

    def __init__(self, symbols: Sequence[str] = (), url: str = "") -> None:
        super().__init__(symbols, url)
        self._promised: dict[str, int] = {}  # the last trade of the previous heartbeat

    def begin(self) -> list[str]:
        self._promised.clear()
        return [*super().begin(), self._request("subscribe", self.symbols)]

    def take(self, message: Any, now_us: int, parsed: ParsedMessage) -> None:
        match message["type"]:
            case "ticker":
                at_us = moment(message["time"], now_us)
                last, traded = price(message["price"]), size(message.get("last_size", 0), self.units)
                offer = self.offer_of({"best_bid_size": 0, "best_ask_size": 0, **message})  # sizes may be missing
                self.tape.quote(*offer[:3], at_us)
                parsed.events.append(Quote(*offer, last, traded, at_us))
            case "match" | "last_match" as kind:
                self.add_trade(message, moment(message["time"], now_us), parsed, earlier=kind == "last_match")
            case "heartbeat":
                self._heartbeat(self.symbol_of(message), whole(message["last_trade_id"]), parsed)
            case "subscriptions":
                self._subscriptions(message["channels"], parsed)
            case "error":
                parts = (message.get(part) for part in ("message", "reason"))
                text = f"the server says: {': '.join(str(part) for part in parts if part)}"
                passing = self.subscribed or any(word in text.lower() for word in PASSING)
                parsed.again, parsed.refused = (text, "") if passing else ("", text)
            case _:
                pass  # new kinds may come at any time

    def _heartbeat(self, symbol: str, last: int, parsed: ParsedMessage) -> None:
        latest, promised = self.trades.latest.get(symbol), self._promised.get(symbol)
        self._promised[symbol] = last
        if latest is not None and promised is not None and latest < promised:
            self.trades.latest[symbol] = promised
            parsed.missed = promised - latest
            parsed.replies = [self._request(kind, [symbol]) for kind in ("unsubscribe", "subscribe")]

    def _subscriptions(self, channels: Any, parsed: ParsedMessage) -> None:
        there = {name for channel in channels if channel["name"] == "matches" for name in channel["product_ids"]}
        lacking = [] if self.subscribed else [name for name in self.symbols if name not in there]
        if lacking:
            parsed.refused = f"Coinbase has no {', '.join(lacking)}; products are named like BTC-USD"
        else:
            self.subscribed = parsed.subscribed = True

    @staticmethod
    def _request(kind: str, symbols: Sequence[str]) -> str:
        return json.dumps({"type": kind, "product_ids": list(symbols), "channels": list(COINBASE_CHANNELS)})


class Binance(Dialect):
    name = "binance"
    url = "wss://stream.binance.com:9443/stream?timeUnit=MICROSECOND"
    symbols = ("BTCUSDT", "ETHUSDT", "SOLUSDT", "BNBUSDT", "XRPUSDT", "DOGEUSDT")
    silence_s: float | None = 60.0
    fields = Fields(
        symbol="s", bid="b", ask="a", bid_size="B", ask_size="A", price="p", size="q", side="m", number="t"
    )  # fmt: skip
    sides: ClassVar = {True: "sell", False: "buy"}

    def __init__(self, symbols: Sequence[str] = (), url: str = "") -> None:
        super().__init__(symbols, url)
        if len(set(self.symbols)) > BINANCE_SYMBOLS_MAX:
            raise comet.InvalidArgument(f"Binance allows at most {BINANCE_SYMBOLS_MAX} symbols for one connection")
        self._books = Numbers()

    def begin(self) -> list[str]:
        symbols = sorted({symbol.lower() for symbol in self.symbols})
        streams = [f"{symbol}@{stream}" for symbol in symbols for stream in BINANCE_STREAMS]
        return [*super().begin(), json.dumps({"method": "SUBSCRIBE", "params": streams, "id": 1})]

    def take(self, message: Any, now_us: int, parsed: ParsedMessage) -> None:
        data = message.get("data", message)
        stream = str(message.get("stream", "")).partition("@")[2]
        if "error" in message or "code" in message:
            error = message.get("error", message)
            text = f"the server says: {error.get('msg', '')} ({error.get('code', '')})"
            parsed.again, parsed.refused = (text, "") if self.subscribed else ("", text)
        elif "result" in message:
            self.subscribed = parsed.subscribed = True
        elif data.get("e") == "serverShutdown":
            parsed.again = "the server is about to stop"
        elif stream == "bookTicker":
            offer = self.offer_of(data)
            # None: an older one. The numbers have gaps, so missing ones are unknown.
            if self._books.missed(offer[0], whole(data["u"])) is not None:
                self.add_quote(offer, now_us, parsed)
        elif stream == "trade":
            if not isinstance(data["m"], bool):
                raise TypeError("the maker flag must be a boolean")
            moment(data["T"], now_us)  # raises if implausible
            self.add_trade(data, now_us, parsed)


class Alpaca(Dialect):
    """Its server speaks first."""

    name = "alpaca"
    url = "wss://stream.data.alpaca.markets/v2/iex"
    symbols = ("AAPL", "MSFT", "NVDA", "AMZN", "GOOG", "TSLA", "JPM", "XOM")
    silence_s: float | None = None
    fields = Fields(symbol="S", bid="bp", ask="ap", bid_size="bs", ask_size="as", price="p", size="s")
    units = 1

    def __init__(self, key: str, secret: str, symbols: Sequence[str] = (), url: str = "") -> None:
        if not key or not secret:
            raise comet.InvalidArgument("Alpaca needs a key: set COMET_ALPACA_KEY and COMET_ALPACA_SECRET")
        super().__init__(symbols, url)
        self._login = json.dumps({"action": "auth", "key": key, "secret": secret})

    def take(self, message: Any, now_us: int, parsed: ParsedMessage) -> None:
        if not isinstance(message, list):
            raise TypeError("messages come in lists")
        for part in message:
            try:
                self._part(part, now_us, parsed)
            except MALFORMED:
                parsed.malformed += 1

    def _part(self, part: Any, now_us: int, parsed: ParsedMessage) -> None:
        match part["T"]:
            case "q":
                self.symbol_of(part)
                if part["bp"] and part["ap"]:
                    at_us = moment(part["t"], now_us)
                    self.add_quote(self.offer_of(part), at_us, parsed)
            case "t":
                self.add_trade(part, moment(part["t"], now_us), parsed)
            case "success" if part["msg"] == "connected":
                parsed.replies.append(self._login)
            case "success" if part["msg"] == "authenticated":
                symbols = list(self.symbols)
                parsed.replies.append(json.dumps({"action": "subscribe", "quotes": symbols, "trades": symbols}))
            case "subscription":
                lacking = [name for name in self.symbols if name not in part["quotes"]]
                parsed.subscribed = not lacking
                if lacking:
                    parsed.refused = f"the server did not subscribe {', '.join(lacking)}"
            case "error":
                self._error(part["code"], str(part["msg"]), parsed)
            case _:
                pass  # corrections; and new kinds may come at any time

    @staticmethod
    def _error(code: Any, text: str, parsed: ParsedMessage) -> None:
        if code in ALPACA_REFUSALS:
            parsed.refused = f"the server says: {text} ({code}); {ALPACA_REFUSALS[code]}"
        elif code not in ALPACA_HARMLESS:
            parsed.again = f"the server says: {text} ({code})"
