"""A TCP link under the test's control: bytes pass, wait, vanish, or the connection is reset."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from types import TracebackType
from typing import Final, Self

_CHUNK_BYTES: Final = 64 << 10
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Proxy:
    """Listens on a port of its own and passes everything on to `target`. An async context manager."""

    def __init__(self, target: str, port: int) -> None:
        self.target = target
        self.port = port
        self._passing = asyncio.Event()  # bytes flow; while it is not set they wait, as on a link that is dead silent
        self._passing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        self._passing.set()

    def silence(self) -> None:
        """Nothing gets through any more, and nobody is told."""
        self._passing.clear()

    def heal(self) -> None:
        """What was held back arrives, and everything flows again."""
        self._passing.set()

    def reset(self) -> None:
        """All connections break, at once and loudly; new ones can be made."""
        for writer in list(self._writers):
            link = writer.get_extra_info("socket")
            if link is not None:
                with contextlib.suppress(OSError):
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        self._writers.add(writer)
        try:
            await self._passing.wait()
            onward_reader, onward = await asyncio.open_connection(host, int(port))
        except OSError:
            self._writers.discard(writer)
            writer.transport.abort()
            return
        self._writers.add(onward)
        await asyncio.gather(self._pump(reader, onward), self._pump(onward_reader, writer), return_exceptions=True)
        for end in (writer, onward):
            self._writers.discard(end)
            end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_CHUNK_BYTES):
                await self._passing.wait()
                writer.write(data)
                await writer.drain()
        finally:
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()
