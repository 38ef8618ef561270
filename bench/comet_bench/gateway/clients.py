"""Minimal clients of a gateway: a thousand of them must not dominate the measurement.

They are protocols of the event loop, one object for each connection. Listeners split the input into frames or events
and count the records in it by a mark that every record has. Only a sample of clients stores everything, so that a run
can be checked at its end (`checks`). The same clients listen to Comet's gateway and to the bare servers that it is
compared with.

    WebSocketClient   RFC 6455, its own frames masked with zeros, no compression; pings are answered
    EventsClient      server-sent events in an HTTP/1.1 response, with or without chunks
    Poster            one request after the other on one connection; the next is sent when the answer is complete
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from array import array
from collections.abc import Sequence
from math import inf
from typing import Any, Final, NamedTuple

from comet.errors import CometError

HELD_BYTES_MAX: Final = 64 << 20
OTHER_MAX: Final = 100
CONNECTING_AT_ONCE: Final = 50
CONNECT_TIMEOUT_S: Final = 30.0
MARK: Final = b'"offset":"'  # once in every record, and not in the values that we send
DUE: Final = re.compile(rb'"due":(\d+)')
# A client that stops reading has buffers as over an Ethernet: those of a loopback hold minutes of a slow stream.
_ETHERNET_SEGMENT_BYTES: Final = 1448
_RECEIVE_BYTES: Final = 64 << 10


class Refused(CometError):
    """A server refused a request."""


class CrowdMark(NamedTuple):
    """The progress of a crowd, and the time of it."""

    at: float
    records: int
    deliveries: int


class Tally:
    """The counts of all clients of a process together. Owned by the process's worker."""

    def __init__(self, *, ages: bool = False) -> None:
        self.records = 0
        self.deliveries = 0  # frames or events with records in them
        self.ages_us: array[float] | None = array("d") if ages else None
        self._goal: float = inf  # the lowest number of records that a caller waits for
        self._waiting: list[tuple[int, asyncio.Future[CrowdMark]]] = []

    def mark(self) -> CrowdMark:
        return CrowdMark(time.perf_counter(), self.records, self.deliveries)

    async def reach(self, records: int) -> CrowdMark:
        """Waits until the clients have had that many records. Returns the progress of that moment."""
        if self.records >= records:
            return self.mark()
        reached: asyncio.Future[CrowdMark] = asyncio.get_running_loop().create_future()
        self._waiting.append((records, reached))
        self._goal = min(self._goal, records)
        return await reached

    def take(self, client: Listener, data: bytes, start: int, end: int) -> None:
        count = data.count(MARK, start, end)
        if not count:
            client.note(data[start:end])
            return
        client.records += count
        self.records += count
        self.deliveries += 1
        if client.sampled:
            client.stored.append(data[start:end])
        if self.ages_us is not None and client.timed:
            now_ns = time.perf_counter_ns()
            self.ages_us.extend([(now_ns - int(due)) / 1e3 for due in DUE.findall(data, start, end)])
        if self.records >= self._goal:
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for goal, reached in waiting:
            if goal > self.records:
                self._waiting.append((goal, reached))
            elif not reached.done():
                reached.set_result(self.mark())
        self._goal = min((goal for goal, _ in self._waiting), default=inf)

    def fail(self, error: Exception) -> None:
        waiting, self._waiting, self._goal = self._waiting, [], inf
        for _, reached in waiting:
            if not reached.done():
                reached.set_exception(error)


class Listener(asyncio.Protocol):
    """A connection that receives events."""

    opening: bytes  # what is sent at once

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.records = 0
        self.sampled = False  # stores everything that it receives
        self.stored: list[bytes] = []
        self.timed = True
        self.expendable = False  # its end is not a failure
        self.ended = ""  # the reason of its end
        self.other: list[bytes] = []  # received texts without a record
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: Any = None
        self._held = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.opening)

    def connection_lost(self, error: Exception | None) -> None:
        self.end(str(error or "closed"))

    def end(self, why: str) -> None:
        self.ended = self.ended or why
        refused = Refused(f"a connection ended: {self.ended}; last messages: {self.other[-3:]}")
        if not self.begun.done():
            self.begun.set_exception(refused)
        elif not self.expendable:
            self.tally.fail(refused)

    def note(self, text: bytes) -> None:
        if len(self.other) < OTHER_MAX:
            self.other.append(text)
        if b"subscribed" in text and not self.begun.done():
            self.begun.set_result(None)

    def stall(self) -> None:
        """Stops reading until `resume`. The gateway may close the connection for that."""
        self.expendable = True
        self.transport.pause_reading()

    def resume(self) -> None:
        if not self.ended:
            self.transport.resume_reading()


class WebSocketClient(Listener):
    def __init__(self, tally: Tally, host: str, path: str, subscribe: bytes) -> None:
        super().__init__(tally)
        self.opening = (
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: Y29tZXQgYmVuY2htYXJrIQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ).encode()
        self._subscribe = subscribe
        self._open = False

    def data_received(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
        if not self._open:
            head, found, rest = data.partition(b"\r\n\r\n")
            if not found:
                self._held = data
                return
            self._shake_hands(head)
            data = rest
        at, size = 0, len(data)
        while size - at >= 2:
            length = data[at + 1]
            body = at + 2
            if length == 126:
                body = at + 4
                length = data[at + 2] << 8 | data[at + 3] if body <= size else HELD_BYTES_MAX
            elif length == 127:
                body = at + 10
                length = int.from_bytes(data[at + 2 : body], "big") if body <= size else HELD_BYTES_MAX
            end = body + length
            if end > size:
                break
            if data[at] == 0x81:
                self.tally.take(self, data, body, end)
            else:
                self._control(data[at], data[body:end])
            at = end
        self._held = data[at:] if at else data

    def _shake_hands(self, head: bytes) -> None:
        self._open = True
        if head.startswith(b"HTTP/1.1 101"):
            self.transport.write(masked(0x81, self._subscribe))
        else:
            self.end(head[:500].decode(errors="replace"))
            self.transport.abort()

    def _control(self, first: int, payload: bytes) -> None:
        if first == 0x89:
            self.transport.write(masked(0x8A, payload))
        elif first == 0x88:
            self.end(f"close {int.from_bytes(payload[:2], 'big')} {payload[2:].decode(errors='replace')}")
        elif first != 0x8A:
            self.end(f"a frame that begins with {first:#x}")


def masked(first: int, payload: bytes) -> bytes:
    """A client's frame. The mask is all zeros, which changes no byte."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else bytes([0xFE]) + size.to_bytes(2, "big")
    return bytes([first]) + length + bytes(4) + payload


class EventsClient(Listener):
    """An event counts when its empty line is there. Sizes of HTTP's chunks lie between events and disturb no count."""

    def __init__(self, tally: Tally, host: str, path: str) -> None:
        super().__init__(tally)
        self.opening = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n".encode()
        self._open = False

    def data_received(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
        if not self._open:
            head, found, rest = data.partition(b"\r\n\r\n")
            if not found:
                self._held = data
                return
            self._begin(head)
            data = rest
        end = data.rfind(b"\n\n") + 2
        if end == 1:
            self._held = data
            return
        at = 0
        if data.find(b"\n\n", 0, end) + 2 == end:  # nearly always
            self.tally.take(self, data, 0, end)
        else:
            while at < end:
                behind = data.index(b"\n\n", at) + 2
                self.tally.take(self, data, at, behind)
                at = behind
        self._held = data[end:]

    def _begin(self, head: bytes) -> None:
        self._open = True
        if not head.startswith(b"HTTP/1.1 200"):
            self.end(head[:500].decode(errors="replace"))
            self.transport.abort()


async def connect(clients: Sequence[Listener], host: str, port: int, *, ethernet: int = 0) -> None:
    """Connects all clients, some at a time, and waits until each is subscribed. The last `ethernet` of them have small
    buffers."""
    loop = asyncio.get_running_loop()
    far = len(clients) - ethernet

    async def one(index: int, client: Listener) -> None:
        end = socket.socket()
        end.setblocking(False)
        if index >= far:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _ETHERNET_SEGMENT_BYTES)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        await loop.sock_connect(end, (host, port))
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.create_connection(lambda: client, sock=end)
        await client.begun

    numbered = list(enumerate(clients))
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        for first in range(0, len(numbered), CONNECTING_AT_ONCE):
            await asyncio.gather(*(one(*each) for each in numbered[first : first + CONNECTING_AT_ONCE]))


class Answers:
    """The answers to all posters of a process. Only those while `counting` is set count."""

    def __init__(self) -> None:
        self.counting = False
        self.over = False
        self.count = 0
        self.ages_us: array[float] = array("d")
        self.last = b""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, status: bytes, body: bytes, age_ns: int) -> None:
        if not status.startswith(b"2"):
            self.fail(Refused(f"answered with {status.decode()}: {body[:500]!r}"))
        elif self.counting:
            self.count += 1
            self.ages_us.append(age_ns / 1e3)
            self.last = body

    def fail(self, error: Exception) -> None:
        if not self.over and not self.failed.done():
            self.failed.set_exception(error)


class Poster(asyncio.Protocol):
    """Sends its requests over and over, from `begin` on until the answers are over."""

    def __init__(self, answers: Answers, requests: Sequence[bytes]) -> None:
        self._answers = answers
        self._requests = requests
        self._next = 0
        self._sent_ns = 0
        self._held = b""
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._answers.fail(Refused(f"a connection ended: {error or 'closed'}; it had {self._held[:500]!r}"))

    def begin(self) -> None:
        self._sent_ns = time.perf_counter_ns()
        self._transport.write(self._requests[self._next])
        self._next = (self._next + 1) % len(self._requests)

    def data_received(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
        head = data.find(b"\r\n\r\n")
        if head < 0:
            self._held = data
            return
        size = int(data[:head].lower().partition(b"\ncontent-length:")[2].partition(b"\r")[0])
        end = head + 4 + size
        if len(data) < end:
            self._held = data
            return
        self._held = data[end:]
        self._answers.take(data[9:12], data[head + 4 : end], time.perf_counter_ns() - self._sent_ns)
        if not self._answers.over:
            self.begin()

    def close(self) -> None:
        self._transport.abort()
