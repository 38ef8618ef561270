"""A gateway that listens, in the test's own loop, and clients that can misbehave."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.server import Server

NDJSON = "application/x-ndjson"


@asynccontextmanager
async def gateway(address: str, **limits: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway of its own. The gateway is `client.gateway`, its URL `client.base_url`."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    config = GatewayConfig(bootstrap=address, port=0, drain_s=0.2, limits=Limits(**limits))
    server = Server(config, ready.set_result)
    running = asyncio.create_task(server.run_until_stopped())
    try:
        waiting: list[asyncio.Future[Any]] = [running, ready]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        async with httpx.AsyncClient(base_url=ready.result(), timeout=30) as client:
            client.gateway = server  # type: ignore[attr-defined]
            yield client
    finally:
        server.stop()
        await running


@dataclass
class Wire:
    """One connection, byte by byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    rest: bytes = b""
    lines: deque[bytes] = field(default_factory=deque)

    @classmethod
    async def open(cls, client: httpx.AsyncClient) -> Wire:
        where = urlsplit(str(client.base_url))
        return cls(*await asyncio.open_connection(where.hostname, where.port))

    async def begin(self, path: str, kind: str, *more: str) -> None:
        """A POST whose body comes in chunks."""
        lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-type: {kind}", *more]
        if not any(line.startswith("content-length") for line in more):
            lines.append("transfer-encoding: chunked")
        await self.send("\r\n".join([*lines, "", ""]).encode())

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def head(self) -> tuple[int, dict[str, str]]:
        """The status and the headers of the answer."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split(" ")[1]), headers

    async def line(self) -> bytes:
        """The next line of an answer in chunks; empty at its end."""
        while not self.lines:
            size = int(await self.reader.readline(), 16)
            *lines, self.rest = (self.rest + await self.reader.readexactly(size)).split(b"\n")
            self.lines.extend(lines)
            await self.reader.readexactly(2)
            if size == 0:
                return self.rest
        return self.lines.popleft()

    def close(self) -> None:
        self.writer.transport.abort()
