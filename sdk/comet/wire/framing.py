"""Frames on a byte stream, without a socket: the framing of the wire, see proto/WIRE.md.

A frame is its size (u32), its kind (u32) and its content.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

from comet import limits
from comet.errors import CometError, RecordTooLarge
from comet.v1 import wire_pb2 as pb
from comet.wire.frames import Frame
from comet.wire.protobuf import error_from_pb, error_to_pb

VERSION: Final = 1
HEAD: Final = Struct("<II")
HEAD_BYTES: Final = HEAD.size
READ_BYTES: Final = 256 * limits.KIB
CONTROL_BYTES_MAX: Final = 16 * limits.KIB  # of a frame beside those of the call: a token fits
# A frame of which less has come waits as a copy of what has; a larger one is read into memory of its own.
LARGE_BYTES: Final = 4 * limits.KIB
# The memory that a frame takes at first, more than batches and deliveries have usually. For a larger one, it doubles as
# the frame comes: a head alone takes no more.
FIRST_BYTES: Final = 2 * limits.MIB

assert CONTROL_BYTES_MAX < READ_BYTES <= FIRST_BYTES


class Kind(IntEnum):
    DATA = 0  # a frame of the call
    HELLO = int.from_bytes(b"COMT", "little")  # the first, by which a connection of another protocol is told apart
    WELCOME = 1
    END = 2


DATA: Final = int(Kind.DATA)


def head(size: int) -> bytes:
    """What goes before a frame of the call."""
    return HEAD.pack(size, DATA)


def control(kind: Kind, content: bytes = b"") -> bytes:
    """A whole frame of another kind."""
    assert len(content) <= CONTROL_BYTES_MAX
    return HEAD.pack(len(content), kind) + content


def end(error: CometError | None = None) -> bytes:
    """The last frame of a side."""
    if error is None:
        return control(Kind.END)
    message = error_to_pb(error)
    content = pb.WireEnd(error=message).SerializeToString()
    if len(content) > CONTROL_BYTES_MAX:
        message.ClearField("details")
        message.message = message.message[:1000]
        content = pb.WireEnd(error=message).SerializeToString()
    return control(Kind.END, content)


def parse_end(content: Frame) -> CometError | None:
    """The error with which the other side ended the call; None: it ended in good order. Raises DecodeError."""
    found = pb.WireEnd.FromString(bytes(content))
    return error_from_pb(found.error) if found.HasField("error") else None


def read_buffer() -> memoryview:
    """A buffer for the readers of one event loop."""
    return memoryview(bytearray(READ_BYTES))


class FrameReader:
    """Cuts frames out of what a transport reads, for an asyncio.BufferedProtocol:

        room()    where the transport puts the next bytes
        filled()  how many it has put there
        next()    the next whole frame, again and again until there is none
        keep()    then, or when no more frames are wanted now: what is left is copied out of the buffer
        resume()  after that, without new bytes: the frames that were left
        lone()    in place of filled, next and keep, if what has come is just one frame of the call

    The buffer is shared by the readers of one loop: between `keep` and `room` it belongs to the others.
    """

    def __init__(self, buffer: memoryview, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._buffer = buffer
        self._rest = b""
        self._at = self._end = 0  # of the unread bytes in the buffer
        self._large: bytearray | None = None  # a frame that has not come whole
        self._large_kind = 0
        self._large_size = 0  # as its head says; its memory grows to that as it comes
        self._large_end = 0
        self._after_large = False  # the last frame was: the next one is probably, too

    @property
    def unfinished_bytes(self) -> int:
        """The memory that a frame takes that has not come whole."""
        return len(self._rest) if self._large is None else len(self._large)

    def drop(self) -> None:
        """Forgets what has come, and its memory."""
        self._rest, self._large = b"", None
        self._at = self._end = 0

    def room(self) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._large_end :]
        rest = self._rest
        if not rest:
            # Of another large frame only the start is read here, and copied; the rest goes into its own memory.
            return self._buffer[:LARGE_BYTES] if self._after_large else self._buffer
        self._buffer[: len(rest)] = rest
        return self._buffer[len(rest) :]

    def filled(self, size: int) -> None:
        large = self._large
        if large is not None:
            self._large_end += size
            if self._large_end == len(large) < self._large_size:
                self._large = bytearray(min(2 * len(large), self._large_size))
                self._large[: len(large)] = large
        else:
            self._at, self._end = 0, len(self._rest) + size
            self._rest = b""

    def lone(self, size: int) -> Frame | None:
        """The content, if the bytes that have come are one frame of the call, as on a connection with little to say: a
        fifth of the cost of the other way. None: nothing has changed."""
        if self._rest or self._large is not None or size < HEAD_BYTES:
            return None
        content, kind = HEAD.unpack_from(self._buffer)
        if content != size - HEAD_BYTES or kind != DATA or content > self.bytes_max:
            return None
        self._after_large = False
        return bytes(self._buffer[HEAD_BYTES:size])

    def resume(self) -> None:
        if self._large is None:
            self.room()
            self.filled(0)

    def next(self) -> tuple[int, Frame] | None:
        """The kind and content of the next frame. Raises RecordTooLarge."""
        large = self._large
        if large is not None:
            if self._large_end < self._large_size:
                return None
            self._large = None
            self._after_large = True
            return self._large_kind, large
        at = self._at
        have = self._end - at - HEAD_BYTES
        if have < 0:
            return None
        size, kind = HEAD.unpack_from(self._buffer, at)
        at += HEAD_BYTES
        bytes_max = self.bytes_max if kind == DATA else CONTROL_BYTES_MAX
        if size > bytes_max:
            raise RecordTooLarge(f"a frame of {size} bytes came, and {bytes_max} is the limit")
        if size <= have:
            self._at = at + size
            self._after_large = False
            return kind, bytes(self._buffer[at : at + size])
        if size >= LARGE_BYTES:
            self._large, self._large_end = bytearray(min(size, FIRST_BYTES)), have
            self._large_kind, self._large_size = kind, size
            self._large[:have] = self._buffer[at : self._end]
            self._at = self._end = 0
        return None

    def keep(self) -> None:
        if self._at < self._end:
            self._rest = bytes(self._buffer[self._at : self._end])
        self._at = self._end = 0
