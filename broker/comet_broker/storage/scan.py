"""Scans the batches of a segment, and continues behind damage.

    whole_batches   the batches in a buffer: the one loop that checks every byte read from a log
    walk            the batches of a file, and its damaged stretches, in order
    resync          the next whole batch after a bad one

A batch counts only in the chain: its first offset is the one after the batch before it. So neither old bytes nor a
foreign batch is taken for the log's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from comet.errors import CorruptBatch, UnsupportedVersion
from comet.records import (
    BATCH_BYTES_MAX,
    HEADER_BYTES,
    RECORDS_MAX,
    BatchHeader,
    CompactionPlan,
    Flag,
    Marker,
    control_of,
    decode,
    verify,
)
from comet_broker.ports import File

CHUNK_BYTES: Final = 1 << 20

# The reason why whole_batches stopped, if not for a batch that needs more bytes.
ENDED: Final = 0
DAMAGED: Final = -1

_STAMP: Final = Struct("<q12xII")  # base offset, length, stamp_crc
_LENGTH_AND_CRC: Final = Struct("<q12xI4xI")  # base offset, length, crc
_STAMP_AND_DELTA: Final = Struct("<q8xII48xI")  # base offset, epoch, length, last offset delta
_CONTROL: Final = int(Flag.CONTROL)
_FLAGS_HIGH: Final = sum(Flag) >> 8  # the higher byte of all flags together
_OFFSET_MAX: Final = (1 << 63) - 1


def whole_batches(buffer: memoryview, expected: int, end: int) -> tuple[int, int, int]:
    """Verifies batch after batch from the start of `buffer`, the first one at offset `expected`, none beyond `end`.

    Returns the size of the whole batches, the offset that follows them, and why the walk stopped: ENDED, DAMAGED, or
    the number of bytes that the next batch needs.
    """
    at, size = 0, len(buffer)
    while expected < end:
        if size - at < HEADER_BYTES:
            return at, expected, HEADER_BYTES
        base_offset, length, stamp_crc = _STAMP.unpack_from(buffer, at)
        if base_offset != expected or not HEADER_BYTES < length <= BATCH_BYTES_MAX:
            return at, expected, DAMAGED
        if crc32c(buffer[at : at + 24]) != stamp_crc:
            return at, expected, DAMAGED
        if length > size - at:
            return at, expected, length
        header = _verified(buffer, at)
        if header is None:
            return at, expected, DAMAGED
        if header.next_offset > end:
            break
        expected = header.next_offset
        at += length
    return at, expected, ENDED


class Found(NamedTuple):
    """A whole batch. `control` is the content of a control batch."""

    position: int
    header: BatchHeader
    control: Marker | CompactionPlan | None = None


class Damage(NamedTuple):
    """Bytes that are not a batch of this log. With `end` None, no whole batch follows them."""

    position: int
    first: int
    end: int | None


def stamps(file: File, position: int, limit: int, expected: int) -> list[tuple[int, int]] | None:
    """Epoch and first offset of each batch, by the headers alone; None if they do not lead to just the limit."""
    found: list[tuple[int, int]] = []
    while position < limit:
        stamp = _stamp_at(file, position, expected)
        if stamp is None:
            return None
        epoch, length, next_offset = stamp
        found.append((epoch, expected))
        position, expected = position + length, next_offset
    return found if position == limit else None


def first_stamp(file: File, position: int, limit: int, expected: int) -> tuple[tuple[int, int], ...] | None:
    """Epoch and offset of the batch at `position`; empty if there is none, None if it is damaged."""
    if position == limit:
        return ()
    stamp = _stamp_at(file, position, expected)
    return None if stamp is None else ((stamp[0], expected),)


def _stamp_at(file: File, position: int, expected: int) -> tuple[int, int, int] | None:
    """Epoch, length and next offset of a batch, from its header; None if that is damaged."""
    header = file.read(position, HEADER_BYTES)
    if len(header) < HEADER_BYTES or crc32c(header[:24]) != _STAMP.unpack_from(header)[2]:
        return None
    base_offset, epoch, length, last_delta = _STAMP_AND_DELTA.unpack_from(header)
    if base_offset != expected or length <= HEADER_BYTES:
        return None
    return epoch, length, base_offset + last_delta + 1


def unfinished(file: File, position: int, limit: int, expected: int) -> bool:
    """Whether the bytes up to the limit are the first part of a batch, as after a process died during a write."""
    header = file.read(position, min(HEADER_BYTES, limit - position))
    if len(header) < _STAMP.size:
        return True
    base_offset, length, stamp_crc = _STAMP.unpack_from(header)
    whole: bool = crc32c(header[:24]) == stamp_crc
    return whole and base_offset == expected and length > limit - position


class FileWindow:
    """A file read forward, a chunk at a time, up to a limit."""

    def __init__(self, file: File, limit: int) -> None:
        self._file = file
        self._limit = limit
        self._data = memoryview(b"")
        self._start = 0

    def at(self, position: int, size: int) -> memoryview:
        """At least `size` bytes from `position`, and more if they are loaded; fewer only at the limit."""
        skip = position - self._start
        if skip < 0 or skip + size > len(self._data):
            room = max(min(max(size, CHUNK_BYTES), self._limit - position), 0)
            self._data, self._start, skip = memoryview(self._file.read(position, room)), position, 0
        return self._data[skip:]


def walk(file: File, position: int, limit: int, expected: int) -> Iterator[Found | Damage]:
    """The batches from `position`, which must begin at offset `expected`, and the damage between them."""
    window = FileWindow(file, limit)
    while position < limit:
        start = position
        for header in _headers(window.at(position, HEADER_BYTES), expected):
            yield _found(window, position, header)
            position += header.length
            expected = header.next_offset
        if position > start:
            continue
        header_here = _batch_at(window, position, expected)  # it may only reach beyond the loaded bytes
        if header_here is not None:
            yield _found(window, position, header_here)
            position += header_here.length
            expected = header_here.next_offset
            continue
        found = resync(file, position, limit, expected)
        yield Damage(position, expected, None if found is None else found.header.base_offset)
        if found is None:
            return
        position, expected = found.position, found.header.base_offset


def _found(window: FileWindow, position: int, header: BatchHeader) -> Found:
    if not header.flags & _CONTROL:
        return Found(position, header)
    return Found(position, header, control_of(decode(window.at(position, header.length), check=False)))


def _headers(view: memoryview, expected: int) -> Iterator[BatchHeader]:
    """The batches that lie whole in the view, one after the other from its start, each verified."""
    at, size = 0, len(view)
    while size - at >= HEADER_BYTES:
        base_offset, length, stamp_crc = _STAMP.unpack_from(view, at)
        if base_offset != expected or not HEADER_BYTES < length <= size - at:
            return
        if crc32c(view[at : at + 24]) != stamp_crc:
            return
        header = _verified(view, at)
        if header is None:
            return
        yield header
        at += length
        expected = header.next_offset


def _batch_at(window: FileWindow, position: int, expected: int) -> BatchHeader | None:
    """The whole batch at this position of the chain; None if there is none."""
    view = window.at(position, HEADER_BYTES)
    if len(view) < HEADER_BYTES:
        return None
    base_offset, length, stamp_crc = _STAMP.unpack_from(view)
    if base_offset != expected or not HEADER_BYTES < length <= BATCH_BYTES_MAX or crc32c(view[:24]) != stamp_crc:
        return None
    return _verified(window.at(position, length), 0)


def _verified(view: memoryview, at: int) -> BatchHeader | None:
    """The batch at this position of the buffer, whose stamp is valid; None if the rest of it is damaged.

    A whole batch of a newer format is not damage: it raises UnsupportedVersion, so that it is neither cut nor skipped.
    """
    try:
        header = verify(view, at, stamped=False)
        if header.flags & _CONTROL:
            control_of(decode(view, at, check=False))
        return header
    except UnsupportedVersion:
        _, length, crc = _LENGTH_AND_CRC.unpack_from(view, at)
        if crc32c(view[at + 32 : at + length]) == crc and length <= len(view) - at:
            raise
        return None
    except CorruptBatch:
        return None


def resync(
    file: File, position: int, limit: int, expected: int, *, at: int | None = None, offset: int | None = None
) -> Found | None:
    """The first whole batch after the bad one at `position`, which should begin at offset `expected`.

    If offset `offset` is known to be at position `at`, only batches that chain up to there count.
    """
    stop = limit if at is None else at
    for found in _candidates(file, position, stop, limit, expected):
        if _chains(file, found, stop, offset):
            return found
    if at is not None and at < limit:
        header = _batch_at(FileWindow(file, limit), at, offset if offset is not None else -1)
        return None if header is None else Found(at, header)
    return None


def _chains(file: File, found: Found, stop: int, offset: int | None) -> bool:
    """Whether whole batches lead from the found one to exactly `stop`; without a known offset there, the found one is
    enough."""
    if offset is None:
        return True
    window = FileWindow(file, stop)
    position, expected = found.position, found.header.base_offset
    while position < stop:
        header = _batch_at(window, position, expected)
        if header is None:
            return False
        position, expected = position + header.length, header.next_offset
    return position == stop and expected == offset


def _candidates(file: File, position: int, stop: int, limit: int, expected: int) -> Iterator[Found]:
    """Whole batches with later offsets that begin after `position` and before `stop`, likely ones first."""
    window = FileWindow(file, limit)
    view = window.at(position, HEADER_BYTES)
    if len(view) >= HEADER_BYTES:
        _, length, stamp_crc = _STAMP.unpack_from(view)
        after = position + length
        if crc32c(view[:24]) == stamp_crc and after < stop:  # only its body is bad, so its length is valid
            found = _candidate(window, after, expected)
            if found is not None:
                yield found
    pattern = _pattern(expected, limit - position)
    start = position + 1
    while start + HEADER_BYTES < limit and start < stop:
        chunk = bytes(file.read(start, min(CHUNK_BYTES, limit - start)))
        for match in pattern.finditer(chunk):
            if start + match.start() >= stop:
                return
            found = _candidate(window, start + match.start(), expected)
            if found is not None:
                yield found
        start += max(len(chunk) - HEADER_BYTES, 1)


def _candidate(window: FileWindow, position: int, expected: int) -> Found | None:
    view = window.at(position, HEADER_BYTES)
    if len(view) < HEADER_BYTES:
        return None
    base_offset, length, stamp_crc = _STAMP.unpack_from(view)
    if base_offset <= expected or not HEADER_BYTES < length <= BATCH_BYTES_MAX or crc32c(view[:24]) != stamp_crc:
        return None
    header = _verified(window.at(position, length), 0)
    return None if header is None else Found(position, header)


def _pattern(expected: int, size: int) -> re.Pattern[bytes]:
    """A pattern of batch headers with a base offset just above `expected`, so that the search runs in C."""
    highest = min(expected + RECORDS_MAX * (size // HEADER_BYTES + 1), _OFFSET_MAX)
    low, high = expected.to_bytes(8, "little"), highest.to_bytes(8, "little")
    same = 8
    while same > 0 and low[same - 1 :] == high[same - 1 :]:
        same -= 1
    length_and_rest = rb".{8}.{4}.{3}[\x00-\x02].{8}"  # append time, epoch, length below 48 MiB, both checksums
    version_codec_flags = rb"\x01[\x00-\x02].[\x00-" + bytes((_FLAGS_HIGH,)) + rb"]"
    offset = rb".{%d}" % same + re.escape(high[same:])
    return re.compile(rb"(?=" + offset + length_and_rest + version_codec_flags + rb")", re.DOTALL)
