"""A connection that can fail: a TCP proxy on loopback between a client and a server."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Final, Self

CHUNK_BYTES: Final = 64 << 10


class Way:
    """One direction of one connection."""

    def __init__(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, passes: asyncio.Event) -> None:
        self.dead = False  # what comes is dropped, the end of it too
        self._source = source
        self._sink = sink
        self._passes = passes

    async def forward(self) -> None:
        with suppress(OSError):
            while data := await self._source.read(CHUNK_BYTES):
                await self._passes.wait()
                if not self.dead:
                    self._sink.write(data)
                    await self._sink.drain()
        if not self.dead:
            self._sink.transport.abort()

    def cut(self) -> None:
        self._sink.transport.abort()


class Link:
    """Forwards to one server. `up` and `down` say which way bytes pass; what is held goes on when they pass again.

    up: from the client to the server. down: the answers. `cut` resets all that is connected.
    """

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self.accepted = 0  # connections
        self._target = (host, port)
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self._up.set()
        self._down.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ways: dict[int, tuple[Way, Way]] = {}  # up and down, by the client's port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self, *, up: bool = False, down: bool = False) -> None:
        """Silence, one way or both, with the connection standing."""
        for held, way in [(up, self._up), (down, self._down)]:
            if held:
                way.clear()

    def release(self) -> None:
        self._up.set()
        self._down.set()

    def forget(self, clients: Collection[int], *, up: bool = False, down: bool = False) -> int:
        """As a firewall that forgets connections: those of these client ports stand, and drop what comes, for good. New
        connections work. Returns how many there were."""
        found = [self._ways[port] for port in clients if port in self._ways]
        for up_way, down_way in found:
            up_way.dead |= up
            down_way.dead |= down
        return len(found)

    def cut(self) -> None:
        for ways in self._ways.values():
            for way in ways:
                way.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        port: int = writer.get_extra_info("peername")[1]
        ways = Way(reader, server_writer, self._up), Way(server_reader, writer, self._down)
        self._ways[port] = ways
        task = asyncio.get_running_loop().create_task(self._serve(port, ways))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, port: int, ways: tuple[Way, Way]) -> None:
        try:
            await asyncio.gather(*(way.forward() for way in ways))
        finally:
            for way in ways:
                way.cut()
            if self._ways.get(port) is ways:
                del self._ways[port]
