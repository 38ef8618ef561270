"""The sparse index of one segment: about one entry for every 64 KiB of log.

An entry stands for a *stretch*, the batches from its position up to the next entry's:

    offset        of the first record of the stretch
    position      of its first batch in the file
    max_timestamp of all its records, for look-ups by time

It is derived from the segment. In memory while a segment is written; one file once it is sealed and synced, which
makes a valid index file proof that its segment is on disk. Little-endian:

     0  magic             8s   b"COMETIDX"
     8  version           u32  2
    12  entries           u32  n
    16  base_offset       i64
    24  next_offset       i64
    32  segment_bytes     i64  size of the segment file that it describes
    40  max_timestamp_us  i64
    48  last_append_us    i64
    56  epochs            u32  m
    60  crc               u32  CRC-32C of bytes 0..60
    64  leader epochs i64[m], their first offsets i64[m], crc u32 of these two (core/epochs.py)
        offsets i64[n], positions i64[n], max_timestamps i64[n], crc u32 of these columns

In version 1 there were no epochs: byte 56 held zero, and the columns began at 64.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from crc32c import crc32c

from comet_broker.core.epochs import Entry

STRETCH_BYTES: Final = 64 << 10
INDEX_HEADER_BYTES: Final = 64
# The part of an index file that is read for its header and epochs; a file with more epochs counts as missing.
INDEX_HEAD_BYTES: Final = 4096

_MAGIC: Final = b"COMETIDX"
_VERSION: Final = 2
_VERSION_WITHOUT_EPOCHS: Final = 1
_HEADER: Final = struct.Struct("<8sIIqqqqqII")
_CRC: Final = struct.Struct("<I")
_ENTRY_BYTES: Final = 24
_EPOCH_BYTES: Final = 16
_LOWEST: Final = -(1 << 63)

assert _HEADER.size == INDEX_HEADER_BYTES


class IndexHeader(NamedTuple):
    """The properties of a segment in its index file."""

    entries: int
    base_offset: int
    next_offset: int
    segment_bytes: int
    max_timestamp_us: int
    last_append_us: int
    epochs: tuple[Entry, ...] | None = None  # None in version 1


class Index:
    """The index of one segment. Written by the thread that owns the log, with look-ups from others at the same time:
    look-ups go by offset, and an entry's offset is added last."""

    __slots__ = ("epochs", "last_epoch", "max_timestamps", "offsets", "positions")

    def __init__(self) -> None:
        self.offsets: array[int] = array("q")
        self.positions: array[int] = array("q")
        self.max_timestamps: array[int] = array("q")
        self.epochs: list[Entry] = []  # as if the log began with this segment
        self.last_epoch = 0

    def __len__(self) -> int:
        return len(self.offsets)

    def begin(self, offset: int, position: int) -> None:
        """Begins a new stretch with the batch at this position."""
        assert not self.offsets or (offset > self.offsets[-1] and position > self.positions[-1])
        self.max_timestamps.append(_LOWEST)
        self.positions.append(position)
        self.offsets.append(offset)

    def cover(self, max_timestamp_us: int) -> None:
        """Adds the timestamp of a batch to the last stretch."""
        if max_timestamp_us > self.max_timestamps[-1]:  # noqa: PLR1730 - max() costs 60 ns, and this is every append
            self.max_timestamps[-1] = max_timestamp_us

    def find(self, offset: int) -> int:
        """The number of the stretch that holds, or would hold, the offset; -1 before the first."""
        return bisect_right(self.offsets, offset) - 1

    def begin_epoch(self, epoch: int, offset: int) -> None:
        self.epochs.append((epoch, offset))
        self.last_epoch = epoch

    def take_epochs(self, epochs: Iterable[Entry]) -> None:
        self.epochs = list(epochs)
        self.last_epoch = self.epochs[-1][0] if self.epochs else 0

    def up_to(self, position: int, epochs: Iterable[Entry]) -> Index:
        """A copy for the segment cut at `position`. Its maximal timestamps may be too high."""
        copy = Index()
        count = bisect_left(self.positions, position)
        copy.offsets, copy.positions = self.offsets[:count], self.positions[:count]
        copy.max_timestamps = self.max_timestamps[:count]
        copy.take_epochs(epochs)
        return copy

    def encode(self, header: IndexHeader) -> bytes:
        assert header.entries == len(self)
        assert header.epochs is not None
        epochs = header.epochs
        fields = (*header[:-1], len(epochs))
        head = _HEADER.pack(_MAGIC, _VERSION, *fields, 0)
        head = head[: -_CRC.size] + _CRC.pack(crc32c(head[: -_CRC.size]))
        numbers, starts = array("q", [epoch for epoch, _ in epochs]), array("q", [start for _, start in epochs])
        history = _to_bytes(numbers) + _to_bytes(starts)
        columns = b"".join(map(_to_bytes, (self.offsets, self.positions, self.max_timestamps)))
        return head + history + _CRC.pack(crc32c(history)) + columns + _CRC.pack(crc32c(columns))


def read_index_header(data: bytes) -> IndexHeader | None:
    """Reads the header and the epochs; None if they are damaged, cut off or of another version."""
    if len(data) < INDEX_HEADER_BYTES or crc32c(data[:60]) != _CRC.unpack_from(data, 60)[0]:
        return None
    magic, version, *fields, count, _ = _HEADER.unpack_from(data)
    if magic != _MAGIC or version not in (_VERSION, _VERSION_WITHOUT_EPOCHS):
        return None
    if version == _VERSION_WITHOUT_EPOCHS:
        return IndexHeader(*fields)
    end = INDEX_HEADER_BYTES + _EPOCH_BYTES * count
    history = data[INDEX_HEADER_BYTES:end]
    if len(data) < end + _CRC.size or crc32c(history) != _CRC.unpack_from(data, end)[0]:
        return None
    numbers, starts = _from_bytes(history[: 8 * count]), _from_bytes(history[8 * count :])
    return IndexHeader(*fields)._replace(epochs=tuple(zip(numbers, starts, strict=True)))


def read_index(data: bytes) -> tuple[IndexHeader, Index] | None:
    """Reads an index file; None unless it is whole and undamaged."""
    header = read_index_header(data)
    if header is None:
        return None
    start = INDEX_HEADER_BYTES
    if header.epochs is not None:
        start += _EPOCH_BYTES * len(header.epochs) + _CRC.size
    if len(data) != start + _ENTRY_BYTES * header.entries + _CRC.size:
        return None
    columns = data[start : -_CRC.size]
    if crc32c(columns) != _CRC.unpack(data[-_CRC.size :])[0]:
        return None
    index, width = Index(), 8 * header.entries
    index.offsets = _from_bytes(columns[:width])
    index.positions = _from_bytes(columns[width : 2 * width])
    index.max_timestamps = _from_bytes(columns[2 * width :])
    index.take_epochs(header.epochs or ())
    return header, index


def _to_bytes(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _from_bytes(data: bytes) -> array[int]:
    column = array("q", data)
    if sys.byteorder == "big":
        column.byteswap()
    return column
