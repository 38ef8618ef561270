"""Alpaca, stocks of the IEX feed: quotes and trades. Needs a key, which is free.

    ◄─ [{"T": "success", "msg": "connected"}]
    ─► {"action": "auth", "key": …, "secret": …}
    ◄─ [{"T": "success", "msg": "authenticated"}]
    ─► {"action": "subscribe", "quotes": […], "trades": […]}
    ◄─ [{"T": "subscription", "quotes": […], "trades": […], …}]
    ◄─ [{"T": "q", …}, {"T": "t", …}, …] | [{"T": "error", "code": …, "msg": …}]

Outside of trading hours no messages come, so silence does not end a connection; an unanswered ping does. Messages are
not numbered: lost ones go unnoticed. Sizes are as Alpaca gives them. A quote with one side only is left out. So are
corrections and cancellations of trades (`c`, `x`): a trade that was written stays.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import comet
from comet_demo.model import Quote, Trade
from comet_demo.providers.normal import Tape, moment, price, size
from comet_demo.providers.sockets import MALFORMED, ParsedMessage

URL: Final = "wss://stream.data.alpaca.markets/v2/iex"
SYMBOLS: Final = ("AAPL", "MSFT", "NVDA", "AMZN", "GOOG", "TSLA", "JPM", "XOM")

# Hints for the server's permanent errors, by code. Any other code: connect again.
REFUSED: Final = {
    400: "the request is malformed",
    402: "check COMET_ALPACA_KEY and COMET_ALPACA_SECRET",
    405: "the account may not have so many symbols: choose fewer with --symbols",
    408: "the account has no market data of this version",
    409: "the account has no access to this feed: choose another with --url",
    410: "this feed has no quotes or no trades: choose another with --url",
}
HARMLESS: Final = {403}  # authenticated already


class Alpaca:
    name = "alpaca"
    silence_s: float | None = None
    life_s = 23 * 3600.0

    def __init__(self, key: str, secret: str, symbols: Sequence[str] = (), url: str = "") -> None:
        if not key or not secret:
            raise comet.InvalidArgument("Alpaca needs a key: set COMET_ALPACA_KEY and COMET_ALPACA_SECRET")
        self.url = url or URL
        self._login = json.dumps({"action": "auth", "key": key, "secret": secret})
        self._symbols = tuple(symbol.upper() for symbol in symbols) or SYMBOLS
        self._tape = Tape()

    def begin(self) -> list[str]:
        return []  # the server speaks first

    def parse(self, message: Any, now_us: int) -> ParsedMessage:
        if not isinstance(message, list):
            raise TypeError("messages come in lists")
        parsed = ParsedMessage()
        for part in message:
            try:
                self._part(part, now_us, parsed)
            except MALFORMED:
                parsed.garbage += 1
        return parsed

    def _part(self, part: Any, now_us: int, parsed: ParsedMessage) -> None:
        match part["T"]:
            case "q":
                self._quote(part, now_us, parsed)
            case "t":
                self._trade(part, now_us, parsed)
            case "success" if part["msg"] == "connected":
                parsed.replies.append(self._login)
            case "success" if part["msg"] == "authenticated":
                symbols = list(self._symbols)
                parsed.replies.append(json.dumps({"action": "subscribe", "quotes": symbols, "trades": symbols}))
            case "subscription":
                lacking = [name for name in self._symbols if name not in part["quotes"]]
                parsed.subscribed = not lacking
                if lacking:
                    parsed.refused = f"the server did not subscribe {', '.join(lacking)}"
            case "error":
                self._error(part["code"], str(part["msg"]), parsed)
            case _:
                pass  # corrections; and new kinds may come at any time

    def _quote(self, part: Any, now_us: int, parsed: ParsedMessage) -> None:
        symbol = self._symbol(part)
        if not part["bp"] or not part["ap"]:
            return
        bid, ask = price(part["bp"]), price(part["ap"])
        bid_size, ask_size = size(part["bs"]), size(part["as"])
        at_us = moment(part["t"], now_us)
        last, traded = self._tape.quote(symbol, (bid + ask) / 2)
        parsed.events.append(Quote(symbol, bid, ask, bid_size, ask_size, last, traded, at_us))

    def _trade(self, part: Any, now_us: int, parsed: ParsedMessage) -> None:
        symbol = self._symbol(part)
        trade = Trade(symbol, price(part["p"]), size(part["s"]), "", moment(part["t"], now_us))
        self._tape.trade(symbol, trade.price, trade.size)
        parsed.events.append(trade)

    @staticmethod
    def _error(code: Any, text: str, parsed: ParsedMessage) -> None:
        if code in REFUSED:
            parsed.refused = f"the server says: {text} ({code}); {REFUSED[code]}"
        elif code not in HARMLESS:
            parsed.again = f"the server says: {text} ({code})"

    def _symbol(self, part: Any) -> str:
        symbol: str = part["S"]
        if symbol not in self._symbols:
            raise ValueError(f"{symbol!r} is not subscribed")
        return symbol
