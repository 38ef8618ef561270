"""The broker's HTTP port for monitoring, HTTP/1.1 and GET only:

    /livez      200: the event loop runs
    /readyz     200, or 503 with the reasons why clients should use other brokers; `degraded` names what has failed
    /metrics    for Prometheus, see `figures`

Beyond loopback /metrics needs a token, because it shows names, and so do the reasons of /readyz: without one it shows
the status only. One request a connection, small, bounded in number and
time; nothing here delays a client of the broker. It shows no record and changes nothing. Probes always find a place:
answers of /metrics take only some of the places, and when all are taken the connection that has waited the longest
without a request is closed for a new one.

A request must name the broker, localhost or an address as its Host, so that no web page can point a name of its own at
it (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from comet.errors import Unavailable
from comet.settings.hosts import HostNames, is_loopback
from comet_broker.metrics import prometheus

log = logging.getLogger(__name__)

HEAD_BYTES_MAX: Final = 16 * 1024
REQUEST_S_MAX: Final = 10.0
CONNECTIONS_MAX: Final = 32
METRICS_MAX: Final = 24  # of them that answer /metrics
METHODS: Final = ("GET", "HEAD")
JSON: Final = "application/json"


class Monitor:
    """Owned by the server; its callbacks run on the loop."""

    def __init__(
        self,
        statistics: Callable[[], dict[str, Any]],
        reasons: Callable[[], list[str]],
        degraded: Callable[[], list[str]],
        hosts: HostNames,
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
        self._hosts = hosts
        self._answering: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.Task[None], None] = {}  # of them, those without a request, the oldest first
        self._scrapes = 0
        self._pages: dict[bool, asyncio.Task[tuple[str, bytes]]] = {}  # by format; one serves all that ask meanwhile
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
        if len(self._answering) >= CONNECTIONS_MAX and self._silent:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.cancel()
        self._answering.add(task)
        self._silent[task] = None
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                await self._serve(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # disconnected, or sent garbage: no answer
        finally:
            self._silent.pop(task, None)
            self._answering.discard(task)
            await _close(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        task = asyncio.current_task()
        assert task is not None
        self._silent.pop(task, None)
        line, *headers = head.split(b"\r\n")
        words = line.decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return
        method, path = words[0], words[1].partition("?")[0]
        sees_names = self._may_see_names(headers, writer.get_extra_info("peername")[0])
        if (foreign := self._foreign_host(headers)) is not None:
            text = f"{foreign!r} is not a name of this broker; add it to metrics_hosts"
            await _send(writer, method, HTTPStatus.MISDIRECTED_REQUEST, JSON, _json({"status": text}))
        elif path == "/metrics" and not sees_names:
            how = "send Authorization: Bearer with it" if self._token else "set metrics_token, or ask from loopback"
            await _send(
                writer, method, HTTPStatus.UNAUTHORIZED, JSON, _json({"status": f"/metrics needs the token: {how}"})
            )
        elif path == "/metrics":
            await self._scrape(writer, method, _header(headers, b"accept").decode("latin-1"))
        else:
            await _send(writer, method, *self._answer(method, path, sees_names=sees_names))

    def _foreign_host(self, headers: list[bytes]) -> str | None:
        """The Host that is not a name of this broker. Without a Host the client is not a browser."""
        for header in headers:
            name, _, value = header.partition(b":")
            if name.strip().lower() == b"host" and not self._hosts.knows(value.strip()):
                return value.strip().decode("latin-1")
        return None

    def _may_see_names(self, headers: list[bytes], peer: str) -> bool:
        if self._open or is_loopback(peer):
            return True
        given = _header(headers, b"authorization")
        return bool(self._token) and hmac.compare_digest(given, b"Bearer " + self._token.encode())

    async def _scrape(self, writer: asyncio.StreamWriter, method: str, accept: str) -> None:
        if method not in METHODS:
            await _send(writer, method, *_NOT_ALLOWED)
            return
        if self._scrapes >= METRICS_MAX:
            text = f"{METRICS_MAX} requests for /metrics are being answered, the limit"
            await _send(writer, method, HTTPStatus.SERVICE_UNAVAILABLE, JSON, _json({"status": text}))
            return
        self._scrapes += 1
        try:
            form = prometheus.OPENMETRICS in accept
            page = self._pages.get(form)
            if page is None or page.done():
                making = asyncio.to_thread(prometheus.exposition, self._statistics(), accept)
                page = self._pages[form] = asyncio.create_task(making)
            kind, body = await asyncio.shield(page)
            await _send(writer, method, HTTPStatus.OK, kind, body)
        finally:
            self._scrapes -= 1

    def _answer(self, method: str, path: str, *, sees_names: bool) -> tuple[HTTPStatus, str, bytes]:
        if path not in ("/livez", "/readyz"):
            return HTTPStatus.NOT_FOUND, JSON, _json({"status": "unknown path: use /livez, /readyz or /metrics"})
        if method not in METHODS:
            return _NOT_ALLOWED
        if path == "/livez":
            return HTTPStatus.OK, JSON, _json({"status": "alive"})
        reasons = self._reasons()
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        text = "not ready" if reasons else "ready"
        details = {"reasons": reasons, "degraded": self._degraded()} if sees_names else {}
        return status, JSON, _json({"status": text, **details})


def _header(headers: list[bytes], wanted: bytes) -> bytes:
    """The value of a header, the first of its name; empty if there is none."""
    for header in headers:
        name, _, value = header.partition(b":")
        if name.strip().lower() == wanted:
            return value.strip()
    return b""


async def _send(writer: asyncio.StreamWriter, method: str, status: HTTPStatus, kind: str, body: bytes) -> None:
    answer = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
        "cache-control: no-store\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
    )
    writer.write(answer.encode() + (b"" if method == "HEAD" else body))
    await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    """Closes a connection, also one whose client does not read the rest of its answer."""
    writer.close()
    try:
        async with asyncio.timeout(REQUEST_S_MAX):
            await writer.wait_closed()
    except TimeoutError:
        writer.transport.abort()
    except OSError:
        pass


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


_NOT_ALLOWED: Final = HTTPStatus.METHOD_NOT_ALLOWED, JSON, _json({"status": "use GET"})
