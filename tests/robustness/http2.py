"""HTTP/2 by hand: frames, and connections that flood a broker with them.

Flood ─► thousands of frames in one write, again and again, as fast as the broker reads
      ◄─ read and counted; pings are answered, or the broker would close the connection
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, Self

DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_HEADERS: Final = 4
ACK: Final = 1
END_STREAM: Final = 1
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INITIAL_WINDOW: Final = 65_535
CANCEL: Final = struct.pack(">I", 8)  # why a stream is reset
FRAMES_AT_ONCE: Final = 200


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def headers(path: str) -> bytes:
    """HPACK without a table: POST, http, and literals."""
    fields = {":path": path, ":authority": "x", "content-type": "application/grpc", "te": "trailers"}
    literals = (bytes([0, len(name), *name.encode(), len(value), *value.encode()]) for name, value in fields.items())
    return b"\x83\x86" + b"".join(literals)


Next = Callable[[int], bytes]  # frames with the next number of a stream


def resets(path: str) -> Next:
    """Calls that are reset at once."""
    head = headers(path)
    return lambda number: frame(HEADERS, END_HEADERS, number, head) + frame(RESET, 0, number, CANCEL)


def references(path: str, times: int) -> Next:
    """Calls without a message. The first puts a header into HPACK's table. Each later one refers to it that many times:
    a reference is one byte, and counts as 33 bytes of metadata."""
    head, name_and_no_value = headers(path), b"\x40\x01x\x00"
    first = frame(HEADERS, END_HEADERS, 1, head + name_and_no_value)
    return lambda number: first if number == 1 else frame(HEADERS, END_HEADERS, number, head + b"\xbe" * times)


def pings(_: int) -> bytes:
    return frame(PING, 0, 0, bytes(8))


class Flood:
    """One connection with a thread of its own, from entering to leaving. The counts may be read from any thread."""

    def __init__(self, port: int, following: Next) -> None:
        self.sent = 0  # calls, or other units of frames
        self.answered: Counter[int] = Counter()  # frames from the broker, by kind
        self.closed = False  # by the broker
        self._following = following
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._buffer = b""
        self._acks = b""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flood")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        try:
            self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
            self._socket.setblocking(False)
            with selectors.DefaultSelector() as selector:
                selector.register(self._socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
                self._flood(selector)
        except OSError:
            self.closed = True

    def _flood(self, selector: selectors.BaseSelector) -> None:
        left = memoryview(b"")
        while not self._stopping.is_set() and not self.closed:
            for _, events in selector.select(0.1):
                if events & selectors.EVENT_READ:
                    self._read()
                if events & selectors.EVENT_WRITE:
                    if not left:
                        numbers = range(2 * self.sent + 1, 2 * (self.sent + FRAMES_AT_ONCE) + 1, 2)
                        left = memoryview(self._acks + b"".join(map(self._following, numbers)))
                        self._acks = b""
                        self.sent += FRAMES_AT_ONCE
                    left = left[self._socket.send(left) :]

    def _read(self) -> None:
        data = self._socket.recv(1 << 20)
        self.closed = not data
        self._buffer += data
        at, whole = 0, len(self._buffer)
        while whole - at >= 9 and whole - at >= 9 + (size := int.from_bytes(self._buffer[at : at + 3], "big")):
            kind, flags, payload = self._buffer[at + 3], self._buffer[at + 4], self._buffer[at + 9 : at + 9 + size]
            if kind in (SETTINGS, PING) and not flags & ACK:
                self._acks += frame(kind, ACK, 0, payload if kind == PING else b"")
            self.answered[kind] += 1
            at += 9 + size
        self._buffer = self._buffer[at:]
