"""uvicorn's HTTP/1.1 with what it has no bound for: the head of a request, in bytes and in time."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX: Final = 64 * 1024  # request line and headers
HEAD_S_MAX: Final = 15.0  # until the head of the first request is there

_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Protocol(HttpToolsProtocol):
    """One connection, until it becomes a WebSocket. Made by uvicorn, ends with the connection."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_bytes = 0
        self._in_head = True
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._patience = self.loop.call_later(HEAD_S_MAX, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    @property
    def idle(self) -> bool:
        """Whether it is not answering anything."""
        return self.cycle is None or self.cycle.response_complete

    def on_headers_complete(self) -> None:
        self._settle()
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _settle(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
