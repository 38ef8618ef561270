"""Lines from a file, pipe or terminal for an event loop, in bounded memory.

Reads as the descriptor becomes readable, so that a typed line is sent at once and a full pipe in large chunks; a slow
reader slows the writer down. No thread blocks in a read, which Ctrl-C could not interrupt.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Final

from comet.errors import RecordTooLarge

CHUNK_BYTES: Final = 1 << 20
LINE_BYTES_MAX: Final = 7 << 20  # no topic takes a larger record


async def line_chunks(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Yields lists of lines as they arrive, without newlines; the last line may lack one."""
    splitter = LineSplitter()
    while chunk := await _read(descriptor):
        if lines := splitter.feed(chunk):
            yield lines
    if last := splitter.finish():
        yield last


class LineSplitter:
    """Splits chunks into lines; keeps an incomplete line. Pure."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._held, lines[0]])
            self._held, self._held_bytes = [], 0
        if rest:
            self._held.append(rest)
            self._held_bytes += len(rest)
        if self._held_bytes > LINE_BYTES_MAX:
            raise RecordTooLarge(f"a line is longer than {LINE_BYTES_MAX} bytes, the most that a record may have")
        return [line.removesuffix(b"\r") for line in lines] if b"\r" in chunk else lines

    def finish(self) -> list[bytes]:
        last, self._held = b"".join(self._held), []
        return [last] if last else []


async def _read(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(descriptor, _set, readable)
    except PermissionError:
        await asyncio.sleep(0)  # a plain file: always readable, and no loop can watch it
        return os.read(descriptor, CHUNK_BYTES)
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, CHUNK_BYTES)


def _set(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)
