"""The sparse index of one segment: about one entry for every 64 KiB of log.

An entry stands for a *stretch*, the batches from its position up to the next entry's:

    offset        of the first record of the stretch
    position      of its first batch in the file
    max_timestamp of all its records, for look-ups by time

It is derived from the segment. In memory while a segment is written; one file once it is sealed and synced, which
makes a valid index file proof that its segment is on disk. Little-endian:

     0  magic             8s   b"COMETIDX"
     8  version           u32  1
    12  entries           u32  n
    16  base_offset       i64
    24  next_offset       i64
    32  segment_bytes     i64  size of the segment file that it describes
    40  max_timestamp_us  i64
    48  last_append_us    i64
    56  zero              u32
    60  crc               u32  CRC-32C of bytes 0..60
    64  offsets i64[n], positions i64[n], max_timestamps i64[n], crc u32 of these columns
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

from crc32c import crc32c

STRETCH_BYTES: Final = 64 << 10
INDEX_HEADER_BYTES: Final = 64

_MAGIC: Final = b"COMETIDX"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sIIqqqqq4xI")
_CRC: Final = struct.Struct("<I")
_ENTRY_BYTES: Final = 24
_LOWEST: Final = -(1 << 63)

assert _HEADER.size == INDEX_HEADER_BYTES


class IndexHeader(NamedTuple):
    """What an index file says about its segment as a whole."""

    entries: int
    base_offset: int
    next_offset: int
    segment_bytes: int
    max_timestamp_us: int
    last_append_us: int


class Index:
    """Written by the thread that owns the log; look-ups may come from others at the same time: an entry is complete
    before its offset, which is what look-ups go by, is there."""

    __slots__ = ("max_timestamps", "offsets", "positions")

    def __init__(self) -> None:
        self.offsets: array[int] = array("q")
        self.positions: array[int] = array("q")
        self.max_timestamps: array[int] = array("q")

    def __len__(self) -> int:
        return len(self.offsets)

    def begin(self, offset: int, position: int) -> None:
        """A new stretch begins with the batch at this position."""
        assert not self.offsets or (offset > self.offsets[-1] and position > self.positions[-1])
        self.max_timestamps.append(_LOWEST)
        self.positions.append(position)
        self.offsets.append(offset)

    def cover(self, max_timestamp_us: int) -> None:
        """A batch was added to the last stretch."""
        if max_timestamp_us > self.max_timestamps[-1]:  # noqa: PLR1730 - max() costs 60 ns, and this is every append
            self.max_timestamps[-1] = max_timestamp_us

    def find(self, offset: int) -> int:
        """Number of the stretch that holds the offset, or would; -1 before the first."""
        return bisect_right(self.offsets, offset) - 1

    def encode(self, header: IndexHeader) -> bytes:
        assert header.entries == len(self)
        head = _HEADER.pack(_MAGIC, _VERSION, *header, 0)
        head = head[: -_CRC.size] + _CRC.pack(crc32c(head[: -_CRC.size]))
        columns = b"".join(map(_to_bytes, (self.offsets, self.positions, self.max_timestamps)))
        return head + columns + _CRC.pack(crc32c(columns))


def read_index_header(data: bytes) -> IndexHeader | None:
    """None if it is damaged, cut off or of another version."""
    if len(data) < INDEX_HEADER_BYTES or crc32c(data[:60]) != _CRC.unpack_from(data, 60)[0]:
        return None
    magic, version, *fields, _ = _HEADER.unpack_from(data)
    return IndexHeader(*fields) if magic == _MAGIC and version == _VERSION else None


def read_index(data: bytes) -> tuple[IndexHeader, Index] | None:
    """None for anything but a whole, undamaged index file."""
    header = read_index_header(data)
    if header is None or len(data) != INDEX_HEADER_BYTES + _ENTRY_BYTES * header.entries + _CRC.size:
        return None
    columns = data[INDEX_HEADER_BYTES : -_CRC.size]
    if crc32c(columns) != _CRC.unpack(data[-_CRC.size :])[0]:
        return None
    index, width = Index(), 8 * header.entries
    index.offsets = _from_bytes(columns[:width])
    index.positions = _from_bytes(columns[width : 2 * width])
    index.max_timestamps = _from_bytes(columns[2 * width :])
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
