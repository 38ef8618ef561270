"""gRPC calls whose messages never come whole: frames of HTTP/2 on a connection, for test_memory.

The head says that 15 MiB follow; all bytes but the last are sent, as far as the server gives room.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Final

from tests.robustness.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GO_AWAY,
    HEADERS,
    INITIAL_WINDOW,
    PING,
    PREFACE,
    RESET,
    SETTINGS,
    WINDOW,
    frame,
    headers,
)

CHUNK: Final = bytes(16_384)  # the largest frame that every server takes


class UnfinishedMessages:
    """One connection with many such calls."""

    def __init__(self, port: int, path: str, calls: int, size: int) -> None:
        self.sent_bytes = 0
        self.ended: set[int] = set()  # calls that the server has ended
        self.closed = False
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._buffer = b""
        self._room = INITIAL_WINDOW
        self._initial = INITIAL_WINDOW
        self._windows: dict[int, int] = {}
        self._left: dict[int, int] = {}
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
        self._take(1.0)
        for number in range(1, 2 * calls, 2):
            self._windows[number], self._left[number] = self._initial, size - 1
            self._socket.sendall(frame(HEADERS, END_HEADERS, number, headers(path)))
            self._write(number, b"\0" + struct.pack(">I", size))

    @property
    def calls(self) -> int:
        return len(self._windows)

    def send(self, seconds: float) -> None:
        """Sends for that long, or until the server has ended all of them."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.closed and len(self.ended) < self.calls:
            busy = False
            for number in self._windows.keys() - self.ended:
                room = min(len(CHUNK), self._left[number], self._room, self._windows[number])
                if room > 0:
                    self._left[number] -= room
                    self._write(number, CHUNK[:room])
                    busy = True
            self._take(0 if busy else 0.01)

    def close(self) -> None:
        self._socket.close()

    def _write(self, number: int, data: bytes) -> None:
        self._windows[number] -= len(data)
        self._room -= len(data)
        self.sent_bytes += len(data)
        self._socket.settimeout(10)
        try:
            self._socket.sendall(frame(DATA, 0, number, data))
        except OSError:
            self.closed = True

    def _take(self, wait_s: float) -> None:
        """Reads what the server has sent."""
        self._socket.settimeout(wait_s)
        try:
            data = self._socket.recv(1 << 20)
            self.closed = self.closed or not data
        except (TimeoutError, BlockingIOError):
            return
        except OSError:
            self.closed = True
            return
        self._buffer += data
        while len(self._buffer) >= 9:
            size = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 9 + size:
                return
            kind, flags, number = self._buffer[3], self._buffer[4], int.from_bytes(self._buffer[5:9], "big")
            payload, self._buffer = self._buffer[9 : 9 + size], self._buffer[9 + size :]
            self._handle(kind, flags, number, payload)

    def _handle(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == 4:
                    for call in self._windows:
                        self._windows[call] += value - self._initial
                    self._initial = value
            self._socket.sendall(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._socket.sendall(frame(PING, ACK, 0, payload))
        elif kind == WINDOW and not number:
            self._room += int.from_bytes(payload, "big")
        elif kind == WINDOW and number in self._windows:
            self._windows[number] += int.from_bytes(payload, "big")
        elif kind == RESET or (kind == HEADERS and flags & END_STREAM):
            self.ended.add(number)
        elif kind == GO_AWAY:
            self.closed = True
