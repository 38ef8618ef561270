"""Any WebSocket feed as a source, without a market: tests/market has the cases of real protocols."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from random import Random
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

import comet
from comet.processes.restart_policy import Schedule
from comet.sources.websocket import ParsedMessage, Timing, WebSocketSource

WITHIN_S = 60.0
TIMING = Timing(close_s=0.1, again=Schedule((0.01,), calm_s=WITHIN_S))


class Numbers:
    """A server that counts."""

    name = "numbers"
    silence_s = WITHIN_S
    life_s = WITHIN_S

    def __init__(self, url: str) -> None:
        self.url = url

    def begin(self) -> list[str]:
        return ["count"]

    def parse(self, message: Any, now_us: int) -> ParsedMessage[int]:
        if message == "never":
            return ParsedMessage(refused="numbers are sold out")
        return ParsedMessage(events=[message["number"]], replies=["more"], subscribed=True)


async def read(source: WebSocketSource[int], found: list[int]) -> None:
    async with asyncio.timeout(WITHIN_S), aclosing(source.stream()) as stream:
        async for events in stream:
            found += events


async def test_events_go_on_over_connections_until_the_server_refuses() -> None:
    said: list[str | bytes] = []
    numbers = iter([{"number": 1}, "nonsense", {"number": 2}, "never"])

    async def count(socket: ServerConnection) -> None:
        said.append(await socket.recv())
        for message in (next(numbers), next(numbers)):
            await socket.send(json.dumps(message))
            if isinstance(message, dict):
                said.append(await socket.recv())

    async with serve(count, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        source = WebSocketSource(Numbers(f"ws://127.0.0.1:{port}"), Random(1), timing=TIMING)
        found: list[int] = []
        with pytest.raises(comet.InvalidArgument, match="numbers: numbers are sold out"):
            await read(source, found)
    assert found == [1, 2]
    assert said == ["count", "more", "count", "more"]
    assert source.statistics() == {"connections": 2, "messages": 4, "malformed": 1, "missed": 0}
