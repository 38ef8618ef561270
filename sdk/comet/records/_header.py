"""The 88-byte header of a record batch: its fields, its checks, and the stamp of the leader.

     0  base_offset i64 ┐
     8  append_time i64 │ the stamp: the leader overwrites these (not `length`), so that
    16  leader_epoch u32│ it need not look at, or checksum again, what follows
    20  length u32      │
    24  stamp_crc u32   ┘ of 0..24
    28  crc u32           of 32..length
    32  version u8, codec u8, flags u16, record_count u32
    40  producer_id i64, base_sequence i64, min_timestamp i64, max_timestamp i64
    72  last_offset_delta u32, producer_epoch u32, body_size u32, schema_id u32

proto/BATCH.md is the specification. Nothing here looks at the body.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from comet.errors import CometError, CorruptBatch, UnsupportedVersion

Buffer = bytes | bytearray | memoryview  # a memoryview must be contiguous, of single bytes

HEADER_BYTES: Final = 88
STAMP_BYTES: Final = 28
VERSION: Final = 1
BODY_BYTES_MAX: Final = 32 << 20
BATCH_BYTES_MAX: Final = HEADER_BYTES + BODY_BYTES_MAX
RECORDS_MAX: Final = 1 << 20


class Codec(IntEnum):
    """How the body of a batch is compressed."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


class Flag(IntFlag):
    """Which columns a batch has, what part it has in a transaction, and whether its request has a key. The codec itself
    uses plain integers: IntFlag arithmetic takes a microsecond."""

    KEYS = 1
    KEY_NULLS = 2
    VALUE_NULLS = 4
    HEADERS = 8
    OFFSET_DELTAS = 16
    DUE = 32
    EXPIRY = 64
    TRANSACTIONAL = 128
    CONTROL = 256
    KEYED = 512


KEYS: Final = 1
KEY_NULLS: Final = 2
VALUE_NULLS: Final = 4
HEADERS: Final = 8
OFFSET_DELTAS: Final = 16
DUE: Final = 32
EXPIRY: Final = 64
TRANSACTIONAL: Final = 128
CONTROL: Final = 256
KEYED: Final = 512

HEADER: Final = Struct("<qqIIIIBBHIqqqqIIII")
TAIL: Final = Struct("<BBHIqqqqIIII")  # bytes 32..88, the part of the header that `crc` covers
PREFIX: Final = Struct("<qqIIII")  # bytes 0..32
_STAMPED: Final = Struct("<qqII")
_EXTENT: Final = Struct("<q8xII48xI12x")
_U32: Final = Struct("<I")
CRC_AT: Final = 32
MARKER_BODY_BYTES: Final = 24
PLAN_BODY_BYTES_MIN: Final = 56
PLAN_BODY_BYTES_MAX: Final = 1080

INT64_MAX: Final = (1 << 63) - 1
_FLAGS_KNOWN: Final = 1023
_MARKER: Final = TRANSACTIONAL | CONTROL
_OF_A_PRODUCER: Final = TRANSACTIONAL | KEYED
# The flags that make sense together: KEY_NULLS never goes without KEYS, a marker or a compaction plan has no column but
# its value, and a request with a key is part of no transaction.
_FLAGS_VALID: Final = frozenset(
    f for f in (*range(CONTROL), *range(KEYED, KEYED + TRANSACTIONAL)) if f & KEYS or not f & KEY_NULLS
) | {_MARKER, CONTROL}

assert HEADER.size == HEADER_BYTES == PREFIX.size + TAIL.size == _EXTENT.size
assert _STAMPED.size + _U32.size == STAMP_BYTES
assert _FLAGS_KNOWN == sum(Flag) == (
    KEYS | KEY_NULLS | VALUE_NULLS | HEADERS | OFFSET_DELTAS | DUE | EXPIRY | _MARKER | KEYED
)  # fmt: skip


class BatchHeader(NamedTuple):
    """The header of one batch as read_header found it: consistent in itself, not yet checked against the body."""

    base_offset: int
    append_time_us: int
    leader_epoch: int
    length: int
    stamp_crc: int
    crc: int
    version: int
    codec: int
    flags: int
    record_count: int
    producer_id: int
    base_sequence: int
    min_timestamp_us: int
    max_timestamp_us: int
    last_offset_delta: int
    producer_epoch: int
    body_size: int
    schema_id: int

    @property
    def span(self) -> int:
        """The number of offsets that the batch covers: as many as its writer gave it records, also if some of them were
        removed since."""
        return self.last_offset_delta + 1

    @property
    def next_offset(self) -> int:
        """The first offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def end_sequence(self) -> int:
        """The sequence that the producer's next batch begins with."""
        return self.base_sequence + self.last_offset_delta + 1

    @property
    def transactional(self) -> bool:
        """Whether it counts only if the transaction of its producer and epoch is committed."""
        return self.flags & TRANSACTIONAL != 0

    @property
    def control(self) -> bool:
        """Whether it is a marker or a compaction plan instead of data; see `control_of`."""
        return self.flags & CONTROL != 0

    @property
    def keyed(self) -> bool:
        """Whether a request with an idempotency key wrote it: producer id and sequence identify key and content."""
        return self.flags & KEYED != 0


def read_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """The header at `at`, once everything that it says about itself and the buffer's size holds. No checksum.

    Raises UnsupportedVersion for an unknown version, codec or flag, CorruptBatch for any other error.
    """
    assert at >= 0
    try:
        header = HEADER.unpack_from(buffer, at)
    except struct.error:
        raise CorruptBatch(f"a batch header has {HEADER_BYTES} bytes, not {max(len(buffer) - at, 0)}") from None
    (base_offset, _, _, length, _, _, version, codec, flags, count, producer_id, base_sequence) = header[:12]
    (min_timestamp, max_timestamp, last_delta, producer_epoch, body_size, _) = header[12:]
    stored = length - HEADER_BYTES
    # One expression, because it runs for every batch; _refusal finds out which part failed.
    if (
        version == VERSION
        and codec <= 2
        and flags in _FLAGS_VALID
        and 0 < stored <= len(buffer) - at - HEADER_BYTES
        and (stored == body_size if codec == 0 else stored < body_size)
        and count <= RECORDS_MAX
        and body_size <= BODY_BYTES_MAX
        and body_size & 7 == 0
        and 4 * count < body_size
        and (last_delta == count - 1 or (flags & OFFSET_DELTAS and count <= last_delta < RECORDS_MAX))
        and 0 <= base_offset <= INT64_MAX - 1 - last_delta
        and min_timestamp <= max_timestamp
        and (producer_id > 0 and 0 <= base_sequence < INT64_MAX - last_delta if producer_id else not base_sequence)
        and (producer_id or not (producer_epoch or flags & _OF_A_PRODUCER))
        and (flags < CONTROL or _adds_up(flags, count, codec, body_size, producer_id, base_sequence, producer_epoch))
    ):
        return tuple.__new__(BatchHeader, header)
    raise _refusal(tuple.__new__(BatchHeader, header), len(buffer) - at)


def extent(buffer: Buffer, at: int = 0) -> tuple[int, int, int]:
    """The length of the batch at `at`, the offset after it, and its leader epoch. Raises CorruptBatch for a length that
    cannot be; the rest is checked when the batch is opened."""
    try:
        base_offset, leader_epoch, length, last_delta = _EXTENT.unpack_from(buffer, at)
    except struct.error:
        length = -1
    if not HEADER_BYTES < length <= len(buffer) - at:
        header = read_header(buffer, at)
        raise CorruptBatch(f"a batch of {header.length} bytes is cut off: {len(buffer) - at} bytes are left")
    return length, base_offset + last_delta + 1, leader_epoch


def _adds_up(
    flags: int, count: int, codec: int, body_size: int, producer_id: int, base_sequence: int, producer_epoch: int
) -> bool:
    """The further conditions of a marker, a compaction plan, or a request with a key."""
    if flags == CONTROL:
        return count == 1 and codec == 0 and PLAN_BODY_BYTES_MIN <= body_size <= PLAN_BODY_BYTES_MAX and not producer_id
    if flags & CONTROL:
        return count == 1 and codec == 0 and body_size == MARKER_BODY_BYTES and not base_sequence
    return not producer_epoch


def _refusal(h: BatchHeader, available: int) -> CometError:
    """The error of an invalid header, in the order that helps most: a newer format before its consequences."""
    if h.version != VERSION:
        return UnsupportedVersion(f"batch format version {h.version}; this is a reader of version {VERSION}")
    if h.codec > Codec.ZSTD:
        return UnsupportedVersion(f"unknown compression codec {h.codec}")
    if h.flags & ~_FLAGS_KNOWN:
        return UnsupportedVersion(f"unknown flags {h.flags & ~_FLAGS_KNOWN:#06x}")
    if h.length > available:
        return CorruptBatch(f"a batch of {h.length} bytes is cut off: {available} bytes are left")
    idempotent = h.producer_id != 0
    for wrong, name in (
        (h.record_count > RECORDS_MAX or not (h.record_count or h.flags & OFFSET_DELTAS), "record_count"),
        (h.flags not in _FLAGS_VALID, "flags"),
        (h.body_size > BODY_BYTES_MAX or h.body_size % 8 or h.body_size <= 4 * h.record_count, "body_size"),
        (h.base_offset < 0 or h.next_offset > INT64_MAX, "base_offset"),
        (h.min_timestamp_us > h.max_timestamp_us, "min_timestamp_us"),
        (h.producer_id < 0, "producer_id"),
        (h.producer_epoch and not idempotent, "producer_epoch"),
        ((h.transactional or h.keyed) and not idempotent, "producer_id"),
        (h.keyed and h.producer_epoch, "producer_epoch"),
        (h.base_sequence < 0 or h.end_sequence > INT64_MAX or (h.base_sequence and not idempotent), "base_sequence"),
        (h.last_offset_delta + 1 != h.record_count and not h.flags & OFFSET_DELTAS, "last_offset_delta"),
        (not h.record_count <= h.last_offset_delta + 1 <= RECORDS_MAX, "last_offset_delta"),
        (h.control and h.record_count != 1, "record_count"),
        (h.control and h.codec != Codec.NONE, "codec"),
        (h.control and h.base_sequence != 0, "base_sequence"),
        (h.flags == _MARKER and h.body_size != MARKER_BODY_BYTES, "body_size"),
        (h.flags == CONTROL and not PLAN_BODY_BYTES_MIN <= h.body_size <= PLAN_BODY_BYTES_MAX, "body_size"),
        (h.flags == CONTROL and h.producer_id, "producer_id"),
    ):
        if wrong:
            return CorruptBatch(f"the batch header does not add up: {name} is {getattr(h, name)}")
    return CorruptBatch(f"the batch header does not add up: {h.length} bytes for a body of {h.body_size}")


def verify(buffer: Buffer, at: int = 0, *, stamped: bool) -> BatchHeader:
    """The header at `at`, once the checksum over the batch holds, and, if a leader stamped it, that of the stamp."""
    header = read_header(buffer, at)
    view = memoryview(buffer)
    if crc32c(view[at + CRC_AT : at + header.length]) != header.crc:
        raise CorruptBatch(f"checksum mismatch in the batch at offset {header.base_offset}")
    if stamped and crc32c(view[at : at + 24]) != header.stamp_crc:
        raise CorruptBatch(f"checksum mismatch in the stamp of the batch at offset {header.base_offset}")
    return header


def make_stamp(base_offset: int, append_time_us: int, leader_epoch: int, length: int) -> bytes:
    """The first 28 bytes of a batch as its leader writes them; the rest of the batch follows unchanged."""
    assert base_offset >= 0
    assert length > HEADER_BYTES
    stamp = _STAMPED.pack(base_offset, append_time_us, leader_epoch, length)
    return stamp + _U32.pack(crc32c(stamp))
