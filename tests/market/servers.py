"""Small servers that speak as the markets do, or as they should not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

Script = Callable[[ServerConnection], Awaitable[None]]

NOW = "2026-01-02T15:04:05.678901Z"
NOW_US = 1_767_366_245_678_901


class Market:
    """Each connection is given the next of the scripts; the last one also to those behind it."""

    def __init__(self, *scripts: Script | HTTPStatus) -> None:
        self.scripts = scripts
        self.url = ""
        self.asked = 0  # handshakes
        self.heard: list[Any] = []

    def _next(self) -> Script | HTTPStatus:
        return self.scripts[min(self.asked, len(self.scripts)) - 1]

    async def check(self, socket: ServerConnection, request: Request) -> Response | None:
        self.asked += 1
        script = self._next()
        return socket.respond(script, "no\n") if isinstance(script, HTTPStatus) else None

    async def serve(self, socket: ServerConnection) -> None:
        script = self._next()
        assert not isinstance(script, HTTPStatus)
        try:
            await script(socket)
        except ConnectionClosed:
            return


@asynccontextmanager
async def market(*scripts: Script | HTTPStatus) -> AsyncIterator[Market]:
    one = Market(*scripts)
    async with serve(one.serve, "127.0.0.1", 0, process_request=one.check, close_timeout=0.1) as server:
        one.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield one


async def until_gone(socket: ServerConnection) -> None:
    await socket.wait_closed()


def coinbase(*messages: Any, then: Script = until_gone) -> Script:
    """Subscribes what is asked for, then says these."""

    async def script(socket: ServerConnection) -> None:
        request = json.loads(await socket.recv())
        assert request["type"] == "subscribe"
        channels = [{"name": name, "product_ids": request["product_ids"]} for name in request["channels"]]
        await say(socket, {"type": "subscriptions", "channels": channels}, *messages)
        await then(socket)

    return script


def binance(*messages: Any, then: Script = until_gone) -> Script:
    async def script(socket: ServerConnection) -> None:
        request = json.loads(await socket.recv())
        assert request["method"] == "SUBSCRIBE" and request["params"][0].islower() is False
        await say(socket, {"result": None, "id": request["id"]}, *messages)
        await then(socket)

    return script


def alpaca(*messages: Any, key: str = "key", then: Script = until_gone) -> Script:
    async def script(socket: ServerConnection) -> None:
        await say(socket, [{"T": "success", "msg": "connected"}])
        request = json.loads(await socket.recv())
        assert request["action"] == "auth"
        if request["key"] != key:
            await say(socket, [{"T": "error", "code": 402, "msg": "auth failed"}])
            return
        await say(socket, [{"T": "success", "msg": "authenticated"}])
        request = json.loads(await socket.recv())
        assert request["action"] == "subscribe"
        there = {"T": "subscription", "quotes": request["quotes"], "trades": request["trades"], "bars": []}
        await say(socket, [there], *messages)
        await then(socket)

    return script


async def say(socket: ServerConnection, *messages: Any) -> None:
    """Texts and bytes go as they are."""
    for message in messages:
        await socket.send(message if isinstance(message, str | bytes) else json.dumps(message))


async def leave(socket: ServerConnection) -> None:
    """Without a word."""
    socket.transport.abort()


def match(number: int, *, price: str = "100.5", first: bool = False, symbol: str = "BTC-USD") -> dict[str, Any]:
    return {
        "type": "last_match" if first else "match",
        "trade_id": number,
        "sequence": number * 10,
        "maker_order_id": "ac928c66-ca53-498f-9c13-a110027a60e8",
        "taker_order_id": "132fb6ae-456b-4654-b4e0-d681ac05cea1",
        "time": NOW,
        "product_id": symbol,
        "size": "0.25",
        "price": price,
        "side": "sell",
    }


def ticker(bid: str = "100.25", ask: str = "100.75") -> dict[str, Any]:
    return {
        "type": "ticker",
        "sequence": 37475248783,
        "product_id": "BTC-USD",
        "price": "100.5",
        "open_24h": "99",
        "volume_24h": "245532.79269678",
        "best_bid": bid,
        "best_bid_size": "0.46688654",
        "best_ask": ask,
        "best_ask_size": "1.56637040",
        "side": "buy",
        "time": NOW,
        "trade_id": 370843401,
        "last_size": "11.4396987",
    }


def heartbeat(last_trade: int) -> dict[str, Any]:
    return {"type": "heartbeat", "sequence": 90, "last_trade_id": last_trade, "product_id": "BTC-USD", "time": NOW}


def book(number: int, bid: str = "25.35190000") -> dict[str, Any]:
    data = {"u": number, "s": "BNBUSDT", "b": bid, "B": "31.21000000", "a": "25.36520000", "A": "40.66000000"}
    return {"stream": "bnbusdt@bookTicker", "data": data}


def trade(number: int) -> dict[str, Any]:
    data = {
        "e": "trade", "E": NOW_US, "s": "BNBUSDT", "t": number, "p": "25.36000000", "q": "0.10000000",
        "T": NOW_US // 1000, "m": True, "M": True,
    }  # fmt: skip
    return {"stream": "bnbusdt@trade", "data": data}


def stock_quote(bid: float = 87.66) -> dict[str, Any]:
    return {
        "T": "q", "S": "AAPL", "bx": "U", "bp": bid, "bs": 1, "ax": "Q", "ap": 87.68, "as": 4,
        "t": "2026-01-02T15:04:05.678901234Z", "c": ["R"], "z": "C",
    }  # fmt: skip


def stock_trade() -> dict[str, Any]:
    return {"T": "t", "i": 96921, "S": "AAPL", "x": "D", "p": 126.55, "s": 1, "t": NOW, "c": ["@", "I"], "z": "C"}
