"""The broker's HTTP port for monitoring, HTTP/1.1 and GET only:

        /livez      200: the event loop runs
        /readyz     200, or 503 with the reasons why clients should use other brokers; `degraded` names what has failed
    /metrics    for Prometheus, see `figures`

Beyond loopback /metrics needs a token, because it shows names. One request a connection, small, bounded in number and
time; nothing here delays a client of the broker. It shows no record and changes nothing.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from comet.errors import Unavailable
from comet.settings.server import is_loopback
from comet_broker.metrics import prometheus

log = logging.getLogger(__name__)

HEAD_BYTES_MAX: Final = 16 * 1024
REQUEST_S_MAX: Final = 10.0
CONNECTIONS_MAX: Final = 32
JSON: Final = "application/json"


class Monitor:
    """Owned by the server; its callbacks run on the loop."""

    def __init__(
        self,
        statistics: Callable[[], dict[str, Any]],
        reasons: Callable[[], list[str]],
        degraded: Callable[[], list[str]] = list,
        *,
        token: str = "",
        is_open: bool = False,
    ) -> None:
        """`is_open`: /metrics needs no token from anywhere."""
        self._statistics = statistics
        self._reasons = reasons
        self._degraded = degraded
        self._token = token
        self._open = is_open
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._page: asyncio.Task[bytes] | None = None  # one page serves all requests that arrive while it is made
        self.port = 0

    async def listen(self, host: str, port: int) -> None:
        """Raises Unavailable."""
        try:
            self._server = await asyncio.start_server(self._connected, host, port, limit=HEAD_BYTES_MAX)
        except OSError as error:
            hint = {"hint": "the port may be in use: choose another --metrics-port, or 0 for none"}
            reason = f"cannot listen on {host}:{port} for metrics: {error.strerror or error}"
            raise Unavailable(reason, details=hint) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            if len(self._answering) <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_S_MAX):
                    await self._serve(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # disconnected, or sent garbage: no answer
        finally:
            self._answering.discard(task)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(line) != 3 or not line[2].startswith("HTTP/1."):
            return
        path = line[1].partition("?")[0]
        if path == "/metrics" and not self._may_see_names(head, writer.get_extra_info("peername")[0]):
            how = "send Authorization: Bearer with it" if self._token else "set metrics_token, or ask from loopback"
            status, kind, body = HTTPStatus.UNAUTHORIZED, JSON, _json({"status": f"/metrics needs the token: {how}"})
        else:
            status, kind, body = await self._answer(line[0], path)
        answer = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
            "cache-control: no-store\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
        )
        writer.write(answer.encode() + (b"" if line[0] == "HEAD" else body))
        await writer.drain()

    def _may_see_names(self, head: bytes, peer: str) -> bool:
        if self._open or is_loopback(peer):
            return True
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"authorization" and self._token:
                return hmac.compare_digest(value.strip(), b"Bearer " + self._token.encode())
        return False

    async def _answer(self, method: str, path: str) -> tuple[HTTPStatus, str, bytes]:
        if path not in ("/livez", "/readyz", "/metrics"):
            return HTTPStatus.NOT_FOUND, JSON, _json({"status": "unknown path: use /livez, /readyz or /metrics"})
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, JSON, _json({"status": "use GET"})
        if path == "/livez":
            return HTTPStatus.OK, JSON, _json({"status": "alive"})
        if path == "/readyz":
            reasons = self._reasons()
            status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
            text = "not ready" if reasons else "ready"
            return status, JSON, _json({"status": text, "reasons": reasons, "degraded": self._degraded()})
        if self._page is None or self._page.done():
            self._page = asyncio.create_task(asyncio.to_thread(prometheus.exposition, self._statistics()))
        return HTTPStatus.OK, prometheus.CONTENT_TYPE, await asyncio.shield(self._page)


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()
