"""A gateway on this loop, with a real broker behind it, and clients that check every frame against the schema."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import httpx
import jsonschema_rs
import websockets

import comet
from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.push import frames
from comet_gateway.server import Server

PATIENCE_S = 60.0
_SCHEMA = frames.schema()
CLIENT = jsonschema_rs.validator_for({**_SCHEMA, "anyOf": [{"$ref": "#/$defs/ClientFrame"}]})
SERVER = jsonschema_rs.validator_for({**_SCHEMA, "anyOf": [{"$ref": "#/$defs/ServerFrame"}]})


class QuietServer(Server):
    """Leaves signals to pytest."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Gateway:
    """A gateway and its broker."""

    def __init__(self, broker: str, url: str, server: Server) -> None:
        self.broker = broker
        self.url = url
        self.server = server
        self.ws = url.replace("http", "ws", 1) + "/v1/ws"

    @asynccontextmanager
    async def socket(self, **settings: Any) -> AsyncIterator[Socket]:
        async with websockets.connect(self.ws, max_size=None, **settings) as connection:
            one = Socket(connection)
            assert (await one.hear())["type"] == "welcome"
            yield one

    @asynccontextmanager
    async def stream(self, path: str, **headers: str) -> AsyncIterator[Stream]:
        timeout = httpx.Timeout(PATIENCE_S)
        async with (
            httpx.AsyncClient(base_url=self.url, timeout=timeout) as http,
            http.stream(
                "GET", f"/v1/topics/{path}", headers={n.replace("_", "-"): v for n, v in headers.items()}
            ) as it,
        ):
            if it.status_code != httpx.codes.OK:
                await it.aread()
            yield Stream(it)


class Socket:
    """A WebSocket client."""

    def __init__(self, connection: websockets.ClientConnection) -> None:
        self.connection = connection
        self.heard: list[dict[str, Any]] = []  # and not asked for yet

    async def say(self, **members: Any) -> None:
        assert CLIENT.is_valid(members), members
        await self.connection.send(json.dumps(members))

    async def hear(self) -> dict[str, Any]:
        """The next frame."""
        if self.heard:
            return self.heard.pop(0)
        return await self._next()

    async def _next(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            text = await self.connection.recv()
        assert isinstance(text, str)
        frame: dict[str, Any] = json.loads(text)
        SERVER.validate(frame)
        return frame

    async def until(self, *types: str, **members: Any) -> dict[str, Any]:
        """The next frame of such a type and with these members; what comes before is kept for later."""
        passed: list[dict[str, Any]] = []
        while True:
            frame = await self.hear()
            if frame["type"] in types and all(frame.get(name) == value for name, value in members.items()):
                self.heard = passed + self.heard
                return frame
            passed.append(frame)

    async def ask(self, **members: Any) -> dict[str, Any]:
        """Says it, and hears what is said of its id."""
        await self.say(**members)
        return await self.until(
            "subscribed", "receipt", "acked", "error", "end", "pong", id=members.get("id")
        )  # fmt: skip

    async def subscribe(self, id_: str, topic: str, **members: Any) -> dict[str, Any]:
        told = await self.ask(type="subscribe", id=id_, topic=topic, **members)
        assert told["type"] == "subscribed", told
        return told

    async def records(self, id_: str, count: int) -> list[dict[str, Any]]:
        """So many records, over as many frames as they come in."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            found += (await self.until("records", id=id_))["records"]
        assert len(found) == count, found
        return found

    async def closed(self) -> int:
        """Reads to the end; the close code."""
        try:
            while True:
                self.heard.append(await self._next())
        except websockets.ConnectionClosed as error:
            return error.rcvd.code if error.rcvd is not None else 1006


class Stream:
    """Server-sent events, as the standard reads them."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.status = answer.status_code
        self.last_id = ""
        self.retry_ms = 0
        self.comments = 0
        self._events = self._read()

    async def next(self) -> tuple[str, dict[str, Any]]:
        """Name and data of the next event."""
        async with asyncio.timeout(PATIENCE_S):
            return await anext(self._events)

    async def records(self, count: int) -> list[tuple[str, dict[str, Any]]]:
        """So many records, with their ids."""
        found: list[tuple[str, dict[str, Any]]] = []
        while len(found) < count:
            name, data = await self.next()
            assert name == "message", (name, data)
            found.append((self.last_id, data))
        return found

    async def _read(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        name, data = "message", ""
        async for line in self.answer.aiter_lines():
            what, _, value = line.partition(":")
            value = value.removeprefix(" ")
            match what:
                case "event":
                    name = value
                case "data":
                    data += value
                case "id":
                    self.last_id = value
                case "retry":
                    self.retry_ms = int(value)
                case "" if line:
                    self.comments += 1
                case "" if data:
                    yield name, json.loads(data)
                    name, data = "message", ""


@asynccontextmanager
async def live_gateway(
    topics: dict[str, int] | list[str], *, limits: Limits | None = None, **settings: Any
) -> AsyncIterator[Gateway]:
    """A broker with topics, and a gateway before it. Both end with the block."""
    async with comet.testing.broker(topics) as broker:
        config = GatewayConfig(bootstrap=broker.address, port=0, limits=limits or Limits(), drain_s=5, **settings)
        async with serving(config) as server:
            yield Gateway(broker.address, server.url, server)


@asynccontextmanager
async def serving(config: GatewayConfig) -> AsyncIterator[Server]:
    """A gateway on this loop, which takes requests. It drains with the block."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = QuietServer(config, ready.set_result)
    running = asyncio.create_task(server.run_until_stopped())
    running.add_done_callback(lambda _: ready.done() or ready.cancel())
    try:
        await ready
        yield server
    finally:
        server.stop()
        await running


def small(**settings: Any) -> Limits:
    """Limits for a test of them."""
    return replace(Limits(), **settings)
