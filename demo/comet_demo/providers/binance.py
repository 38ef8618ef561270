"""Binance spot: quotes of `bookTicker`, trades of `trade`, as a combined stream. Needs no key.

    ─► {"method": "SUBSCRIBE", "params": ["btcusdt@bookTicker", "btcusdt@trade", …], "id": 1}
    ◄─ {"result": null, "id": 1}
    ◄─ {"stream": "btcusdt@bookTicker", "data": {…}} | {"stream": "btcusdt@trade", "data": {…}}

Trades of a symbol are numbered without gaps. The server pings every 20 s, which the connection answers, and ends a
connection after 24 hours or with `serverShutdown`: another is made before, or at once. A bookTicker has no time: it
gets its arrival time by our clock. So do trades, although they have a time (`T`): with two clocks, one of the two kinds
would always be late for a watermark over both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import comet
from comet_demo.model import Quote, Trade
from comet_demo.providers.normal import UNITS_PER_COIN, Numbers, Tape, moment, price, size, whole
from comet_demo.providers.sockets import ParsedMessage

URL: Final = "wss://stream.binance.com:9443/stream?timeUnit=MICROSECOND"
SYMBOLS: Final = ("BTCUSDT", "ETHUSDT", "SOLUSDT", "BNBUSDT", "XRPUSDT", "DOGEUSDT")
STREAMS: Final = ("bookTicker", "trade")
SYMBOLS_MAX: Final = 1024 // len(STREAMS)  # of one connection


class Binance:
    name = "binance"
    silence_s: float | None = 60.0
    life_s = 23.5 * 3600.0

    def __init__(self, symbols: Sequence[str] = (), url: str = "") -> None:
        self.url = url or URL
        self._symbols = {symbol.upper() for symbol in symbols or SYMBOLS}
        if len(self._symbols) > SYMBOLS_MAX:
            raise comet.InvalidArgument(f"Binance allows at most {SYMBOLS_MAX} symbols for one connection")
        self._trades = Numbers()
        self._books = Numbers()
        self._tape = Tape()
        self._subscribed = False

    def begin(self) -> list[str]:
        self._subscribed = False
        streams = [f"{symbol.lower()}@{stream}" for symbol in sorted(self._symbols) for stream in STREAMS]
        return [json.dumps({"method": "SUBSCRIBE", "params": streams, "id": 1})]

    def parse(self, message: Any, now_us: int) -> ParsedMessage:
        if "error" in message or "code" in message:
            return self._error(message.get("error", message))
        if "result" in message:
            self._subscribed = True
            return ParsedMessage(subscribed=True)
        data = message.get("data", message)
        stream = str(message.get("stream", "")).partition("@")[2]
        if data.get("e") == "serverShutdown":
            return ParsedMessage(again="the server is about to stop")
        if stream == "bookTicker":
            return self._book(data, now_us)
        if stream == "trade":
            return self._trade(data, now_us)
        return ParsedMessage()

    def _book(self, data: Any, now_us: int) -> ParsedMessage:
        symbol = self._symbol(data)
        bid, ask = price(data["b"]), price(data["a"])
        bid_size, ask_size = size(data["B"], UNITS_PER_COIN), size(data["A"], UNITS_PER_COIN)
        if self._books.missed(symbol, whole(data["u"])) is None:
            return ParsedMessage()  # an older one; the numbers have gaps, so missing ones are unknown
        last, traded = self._tape.quote(symbol, (bid + ask) / 2)
        return ParsedMessage([Quote(symbol, bid, ask, bid_size, ask_size, last, traded, now_us)])

    def _trade(self, data: Any, now_us: int) -> ParsedMessage:
        if not isinstance(data["m"], bool):
            raise TypeError("the maker flag must be a boolean")
        moment(data["T"], now_us)  # raises if implausible
        trade = Trade(
            symbol=self._symbol(data),
            price=price(data["p"]),
            size=size(data["q"], UNITS_PER_COIN),
            side="sell" if data["m"] else "buy",
            timestamp_us=now_us,
        )
        missed = self._trades.missed(trade.symbol, whole(data["t"]))
        if missed is None:
            return ParsedMessage()
        self._tape.trade(trade.symbol, trade.price, trade.size)
        return ParsedMessage([trade], missed=missed)

    def _error(self, error: Any) -> ParsedMessage:
        text = f"the server says: {error.get('msg', '')} ({error.get('code', '')})"
        return ParsedMessage(again=text) if self._subscribed else ParsedMessage(refused=text)

    def _symbol(self, data: Any) -> str:
        symbol: str = data["s"]
        if symbol not in self._symbols:
            raise ValueError(f"{symbol!r} is not subscribed")
        return symbol
