"""Coinbase Exchange: quotes of the `ticker` channel, trades of `matches`, and a `heartbeat` a second. Needs no key.

    ─► {"type": "subscribe", "product_ids": […], "channels": ["ticker", "matches", "heartbeat"]}
    ◄─ {"type": "subscriptions", "channels": [{"name": "matches", "product_ids": […]}, …]}
    ◄─ ticker | last_match, match | heartbeat | error

Trades are numbered without gaps. A trade that a heartbeat names and that has not arrived by the next heartbeat is lost:
it is counted, and the product is subscribed again. A ticker comes with each trade.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from comet_demo.model import Quote, Trade
from comet_demo.providers.normal import UNITS_PER_COIN, Numbers, moment, price, size, whole
from comet_demo.providers.sockets import ParsedMessage

URL: Final = "wss://ws-feed.exchange.coinbase.com"
SYMBOLS: Final = ("BTC-USD", "ETH-USD", "SOL-USD", "XRP-USD", "DOGE-USD", "LTC-USD")
CHANNELS: Final = ("ticker", "matches", "heartbeat")
TAKER: Final = {"buy": "sell", "sell": "buy"}  # `side` is the maker's; the taker has the other
PASSING: Final = ("rate", "too many", "slow", "internal", "timeout")  # words of a temporary error


class Coinbase:
    name = "coinbase"
    silence_s: float | None = 10.0  # there are heartbeats
    life_s = 23 * 3600.0

    def __init__(self, symbols: Sequence[str] = (), url: str = "") -> None:
        self.url = url or URL
        self._symbols = tuple(symbol.upper() for symbol in symbols) or SYMBOLS
        self._trades = Numbers()
        self._promised: dict[str, int] = {}  # the last trade of the previous heartbeat
        self._subscribed = False

    def begin(self) -> list[str]:
        self._subscribed = False
        self._promised.clear()
        return [self._request("subscribe", self._symbols)]

    def parse(self, message: Any, now_us: int) -> ParsedMessage:
        match message["type"]:
            case "ticker":
                return self._ticker(message, now_us)
            case "match" | "last_match" as kind:
                return self._match(message, now_us, first=kind == "last_match")
            case "heartbeat":
                return self._heartbeat(self._symbol(message), whole(message["last_trade_id"]))
            case "subscriptions":
                return self._subscriptions(message)
            case "error":
                return self._error(message)
            case _:
                return ParsedMessage()  # new kinds may come at any time

    def _ticker(self, message: Any, now_us: int) -> ParsedMessage:
        quote = Quote(
            symbol=self._symbol(message),
            bid=price(message["best_bid"]),
            ask=price(message["best_ask"]),
            bid_size=size(message.get("best_bid_size", 0), UNITS_PER_COIN),
            ask_size=size(message.get("best_ask_size", 0), UNITS_PER_COIN),
            last=price(message["price"]),
            last_size=size(message.get("last_size", 0), UNITS_PER_COIN),
            timestamp_us=moment(message["time"], now_us),
        )
        return ParsedMessage([quote])

    def _match(self, message: Any, now_us: int, *, first: bool) -> ParsedMessage:
        trade = Trade(
            symbol=self._symbol(message),
            price=price(message["price"]),
            size=size(message["size"], UNITS_PER_COIN),
            side=TAKER[message["side"]],
            timestamp_us=moment(message["time"], now_us),
        )
        known = trade.symbol in self._trades.latest
        missed = self._trades.missed(trade.symbol, whole(message["trade_id"]))
        if missed is None or (first and not known):
            return ParsedMessage()  # a duplicate, or from before the subscription
        return ParsedMessage([trade], missed=missed)

    def _heartbeat(self, symbol: str, last: int) -> ParsedMessage:
        latest, promised = self._trades.latest.get(symbol), self._promised.get(symbol)
        self._promised[symbol] = last
        if latest is None or promised is None or latest >= promised:
            return ParsedMessage()
        self._trades.latest[symbol] = promised
        again = [self._request("unsubscribe", [symbol]), self._request("subscribe", [symbol])]
        return ParsedMessage(missed=promised - latest, replies=again)

    def _subscriptions(self, message: Any) -> ParsedMessage:
        there = {
            name for channel in message["channels"] if channel["name"] == "matches" for name in channel["product_ids"]
        }
        lacking = [] if self._subscribed else [name for name in self._symbols if name not in there]
        if lacking:
            return ParsedMessage(refused=f"Coinbase has no {', '.join(lacking)}; products are named like BTC-USD")
        self._subscribed = True
        return ParsedMessage(subscribed=True)

    def _error(self, message: Any) -> ParsedMessage:
        text = ": ".join(str(message[part]) for part in ("message", "reason") if message.get(part))
        if self._subscribed or any(word in text.lower() for word in PASSING):
            return ParsedMessage(again=f"the server says: {text}")
        return ParsedMessage(refused=f"the server says: {text}")

    def _symbol(self, message: Any) -> str:
        symbol: str = message["product_id"]
        if symbol not in self._symbols:
            raise ValueError(f"{symbol!r} is not subscribed")
        return symbol

    @staticmethod
    def _request(kind: str, symbols: Sequence[str]) -> str:
        return json.dumps({"type": kind, "product_ids": list(symbols), "channels": list(CHANNELS)})
