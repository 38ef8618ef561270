"""Bodies of requests as they arrive: decompressed, bounded, complete or line by line.

    Content-Type        application/json, or application/x-ndjson for one record a line; UTF-8 in any case
    Content-Encoding    gzip, zstd or none; anything else is 415

A compressed body is decompressed piece by piece, so that a small body cannot become a large one unnoticed.
At most the route's limit and one piece are in memory.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import zstandard
from starlette.requests import ClientDisconnect

from comet_gateway.config import MIB, Limits
from comet_gateway.http.incoming_body import IncomingBody
from comet_gateway.http.problems import Problem

Headers = Mapping[bytes, bytes]  # of a request, as at scope["comet.headers"]

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"

# Output of one call to a decompressor: gzip is limited directly, zstd by its input.
_PIECE_BYTES: Final = 256 * 1024
# Four bytes of zstd make a block of 128 KiB at most, so this many make 8 MiB.
_ZSTD_FEED_BYTES: Final = 256
_ZSTD_WINDOW_BYTES_MAX: Final = 8 * MIB
# A stream has no size, but its decompressed size must stay in proportion to the bytes received.
_RATIO_MAX: Final = 200


def media_type(headers: Headers, *accepted: str) -> str:
    """The media type of the body, one of the accepted. Raises Problem."""
    stated, _, parameters = headers.get(b"content-type", b"").decode("latin-1").partition(";")
    found = stated.strip().lower()
    if found not in accepted:
        raise Problem(
            "UNSUPPORTED_MEDIA_TYPE",
            f"unsupported Content-Type: {found or 'none'}",
            hint=f"Send {' or '.join(accepted)}.",
        )
    for parameter in filter(None, map(str.strip, parameters.lower().split(";"))):
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(' "') not in {"utf-8", "utf8"}:
            raise Problem("UNSUPPORTED_MEDIA_TYPE", f"unsupported charset: {value.strip()[:40]}", hint="Send UTF-8.")
    return found


async def read(body: IncomingBody, headers: Headers, limits: Limits) -> bytes:
    """The complete body, decompressed. Raises Problem; ClientDisconnect if the client left before its end.

    Decompressed bytes count as held until the request ends, as others do."""
    unpack = unpacker(headers)
    _check_length(headers, limits.body_bytes_max)
    parts: list[bytes] = []
    packed = size = 0
    async for chunk in _chunks(body):
        packed += len(chunk)
        if packed > limits.body_bytes_max:
            raise _too_large(limits.body_bytes_max)
        if unpack is None:
            parts.append(chunk)
            continue
        for piece in unpack.feed(chunk):
            size += len(piece)
            if size > limits.unpacked_bytes_max:
                raise _bomb(limits.unpacked_bytes_max)
            body.hold(len(piece))
            parts.append(piece)
            await asyncio.sleep(0)
    if unpack is not None:
        unpack.end()
    return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(slots=True)
class Line:
    """A line that is too long: only its number is kept."""

    number: int


@dataclass(slots=True)
class BodyLines:
    """Consecutive complete lines; each ends with a line break except the last of the body."""

    first: int  # the number of the first, from 1
    data: bytes

    def split(self) -> Iterator[tuple[int, bytes]]:
        """Each line with its number, without empty ones."""
        for number, line in enumerate(self.data.split(b"\n"), self.first):
            if line.strip():
                yield number, line


async def read_lines(body: IncomingBody, headers: Headers, limits: Limits) -> AsyncGenerator[BodyLines | Line]:
    """The lines of a body, in runs of complete ones as they arrive; one line and one piece are in memory.

    Raises Problem, at once or in the middle; ClientDisconnect if the client left before the end.
    """
    cutter = _Cutter(limits.line_bytes_max)
    held = 0
    try:
        async for piece in _pieces(body, headers, limits):
            for found in cutter.feed(piece):
                yield found
            # A client may pause in the middle of a line.
            body.release(held)
            held = 0
            body.hold(cutter.size)
            held = cutter.size
        for found in cutter.end():
            yield found
    finally:
        body.release(held)


async def _pieces(body: IncomingBody, headers: Headers, limits: Limits) -> AsyncIterator[bytes]:
    unpack = unpacker(headers)
    packed = unpacked = 0
    async for chunk in _chunks(body):
        if unpack is None:
            yield chunk
            continue
        packed += len(chunk)
        for piece in unpack.feed(chunk):
            unpacked += len(piece)
            if unpacked > max(limits.unpacked_bytes_max, _RATIO_MAX * packed):
                raise _bomb(limits.unpacked_bytes_max)
            body.hold(len(piece))
            for at in range(0, len(piece), _PIECE_BYTES):
                yield piece[at : at + _PIECE_BYTES]
                await asyncio.sleep(0)
            body.release(len(piece))
    if unpack is not None:
        unpack.end()


async def _chunks(body: IncomingBody) -> AsyncIterator[bytes]:
    while True:
        message = await body.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        if chunk:
            yield chunk
        if not message.get("more_body", False):
            return


@dataclass(slots=True)
class _Cutter:
    """Splits a body into runs of complete lines."""

    line_bytes_max: int
    number: int = 1  # of the incomplete line
    begun: list[bytes] = field(default_factory=list)
    size: int = 0  # bytes of it
    skipping: bool = False  # the line is too long: its rest is dropped

    def feed(self, piece: bytes) -> Iterator[BodyLines | Line]:
        end = piece.find(b"\n") + 1
        if end and (self.skipping or self.size):
            yield from self._finish(piece[:end])
            piece = piece[end:]
        whole = piece.rfind(b"\n") + 1
        if whole:
            yield from self._run(piece[:whole])
        if whole < len(piece) and not self.skipping:
            self.begun.append(piece[whole:] if whole else piece)
            self.size += len(piece) - whole
            if self.size > self.line_bytes_max:
                self.begun.clear()
                self.size, self.skipping = 0, True

    def end(self) -> Iterator[BodyLines | Line]:
        if self.skipping or self.size:
            yield from self._finish(b"")

    def _finish(self, rest: bytes) -> Iterator[BodyLines | Line]:
        data = b"".join((*self.begun, rest))
        number, skipped = self.number, self.skipping
        self.begun.clear()
        self.size, self.skipping = 0, False
        self.number += 1
        yield Line(number) if skipped or len(data) > self.line_bytes_max else BodyLines(number, data)

    def _run(self, data: bytes) -> Iterator[BodyLines | Line]:
        count = data.count(b"\n")
        if len(data) <= self.line_bytes_max:
            yield BodyLines(self.number, data)
        else:
            for number, line in enumerate(data.split(b"\n")[:-1], self.number):
                yield Line(number) if len(line) > self.line_bytes_max else BodyLines(number, line + b"\n")
        self.number += count


# ---- decompression


class Unpacker(Protocol):
    """Decompresses one body."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The decompressed bytes, in pieces of a bounded size. Raises Problem."""

    def end(self) -> None:
        """Ends the body. Raises Problem if it is incomplete."""


class _Gzip:
    """One or more gzip members, one after the other (RFC 1952)."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._begun = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        while chunk:
            if self._member.eof:
                self._member = zlib.decompressobj(wbits=31)
            self._begun = True
            try:
                piece = self._member.decompress(chunk, _PIECE_BYTES)
            except zlib.error as error:
                raise _damaged("gzip", error) from None
            if piece:
                yield piece
            chunk = self._member.unused_data if self._member.eof else self._member.unconsumed_tail

    def end(self) -> None:
        if not self._begun:
            raise _damaged("gzip", "it is empty")
        if not self._member.eof:
            raise _damaged("gzip", "it ends too early")


class _Zstd:
    """One or more zstd frames, one after the other (RFC 8878)."""

    def __init__(self) -> None:
        self._opener = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
        self._frame = self._opener.decompressobj()
        self._begun = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        # The library returns all output of its input at once, so the input is small.
        opened: list[bytes] = []
        size = 0
        for at in range(0, len(chunk), _ZSTD_FEED_BYTES):
            data = chunk[at : at + _ZSTD_FEED_BYTES]
            while data:
                if self._frame.eof:
                    self._frame = self._opener.decompressobj()
                self._begun = True
                try:
                    opened.append(self._frame.decompress(data))
                except zstandard.ZstdError as error:
                    raise _damaged("zstd", error) from None
                size += len(opened[-1])
                data = self._frame.unused_data if self._frame.eof else b""
            if size >= _PIECE_BYTES:
                yield b"".join(opened)
                opened.clear()
                size = 0
        if size:
            yield b"".join(opened)

    def end(self) -> None:
        if not self._begun:
            raise _damaged("zstd", "it is empty")
        if not self._frame.eof:
            raise _damaged("zstd", "it ends too early")


_UNPACKERS: Final[dict[str, Callable[[], Unpacker] | None]] = {
    "": None, "identity": None, "gzip": _Gzip, "x-gzip": _Gzip, "zstd": _Zstd,
}  # fmt: skip


def unpacker(headers: Headers) -> Unpacker | None:
    """The decompressor of the body; None if it is not compressed."""
    encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
    try:
        make = _UNPACKERS[encoding]
    except KeyError:
        detail = f"unsupported Content-Encoding: {encoding[:100]!r}"
        raise Problem("UNSUPPORTED_MEDIA_TYPE", detail, hint="Send it with gzip or zstd, or uncompressed.") from None
    return None if make is None else make()


# ---- errors


def _check_length(headers: Headers, bytes_max: int) -> None:
    stated = headers.get(b"content-length", b"")
    if stated.isdigit() and int(stated) > bytes_max:
        raise _too_large(bytes_max)


def _too_large(bytes_max: int) -> Problem:
    return Problem(
        "BODY_TOO_LARGE", f"the body has more than {bytes_max} bytes", more={"body_bytes_max": str(bytes_max)}
    )


def _bomb(bytes_max: int) -> Problem:
    detail = f"the body has more than {bytes_max} bytes when decompressed"
    return Problem("BODY_TOO_LARGE", detail, more={"unpacked_bytes_max": str(bytes_max)})


def _damaged(encoding: str, why: object) -> Problem:
    return Problem("MALFORMED_BODY", f"the body is not {encoding}: {why}")
