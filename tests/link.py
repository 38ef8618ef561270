"""A connection that can fail: a TCP proxy on loopback between a client and a server."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, Self

CHUNK_BYTES: Final = 64 << 10


class Link:
    """Forwards to one server. `up` and `down` say which way bytes pass; what is held goes on when they pass again.

    up: from the client to the server. down: the answers. `cut` resets all that is connected.
    """

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self._target = (host, port)
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self._up.set()
        self._down.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

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

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        for source, sink, way in [(reader, server_writer, self._up), (server_reader, writer, self._down)]:
            task = asyncio.get_running_loop().create_task(self._forward(source, sink, way))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: asyncio.Event) -> None:
        self._writers.add(sink)
        try:
            with suppress(OSError):
                while data := await source.read(CHUNK_BYTES):
                    await way.wait()
                    sink.write(data)
                    await sink.drain()
        finally:
            self._writers.discard(sink)
            sink.transport.abort()
