"""The record batch: columns in, bytes out, and back. proto/BATCH.md specifies it byte by byte.

    encode(values, keys=..., timestamps=...)  ──►  parts of an unstamped batch
    make_stamp(...) + batch[28:]              ──►  what a leader writes to its log
    verify(buffer)                            ──►  BatchHeader: all that a broker needs to know
    decode(buffer), iterate(buffer)           ──►  Batch: columns, cut on demand
    opened(header, buffer)                    ──►  the same with a header that was read before
    take(batch, rows), cover(first, end, ...)     batches that lack records, and cover the offsets of these
    batch.check()                             whether every column holds together, for leaders and readers
    lone_size(header, buffer)                 the same for one small record with nothing but a value
    encode_marker(...), encode_plan(...)      control batches: how a transaction ended, what compaction removes
    control_of(batch)                         the content of one

Nothing here does I/O, and nothing trusts its input: invalid bytes raise only CorruptBatch or UnsupportedVersion.
"""

from __future__ import annotations

from crc32c import crc32c as _crc32c

from comet.errors import InvalidArgument
from comet.records._batch import Batch, decode, iterate, lone_size, opened
from comet.records._columns import chooser, measure
from comet.records._content import Content, content_bytes, digest_number
from comet.records._encode import encode
from comet.records._header import (
    BATCH_BYTES_MAX,
    BODY_BYTES_MAX,
    HEADER_BYTES,
    RECORDS_MAX,
    STAMP_BYTES,
    VERSION,
    BatchHeader,
    Buffer,
    Codec,
    Flag,
    extent,
    make_stamp,
    read_header,
    verify,
)
from comet.records._marker import Marker, encode_marker, marker_of
from comet.records._plan import ROUNDS_MAX, CompactionPlan, CompactionRound, control_of, encode_plan
from comet.records._take import cover, stamped, take

__all__ = [
    "BATCH_BYTES_MAX",
    "BODY_BYTES_MAX",
    "HEADER_BYTES",
    "RECORDS_MAX",
    "ROUNDS_MAX",
    "STAMP_BYTES",
    "VERSION",
    "Batch",
    "BatchHeader",
    "Buffer",
    "Codec",
    "CompactionPlan",
    "CompactionRound",
    "Content",
    "Flag",
    "Marker",
    "chooser",
    "content_bytes",
    "control_of",
    "cover",
    "decode",
    "digest_number",
    "encode",
    "encode_marker",
    "encode_plan",
    "extent",
    "iterate",
    "lone_size",
    "make_stamp",
    "marker_of",
    "measure",
    "opened",
    "partition_for",
    "read_header",
    "stamped",
    "take",
    "verify",
]


def partition_for(key: bytes, partitions: int) -> int:
    """The partition that a key belongs to, the same in every client and for good.

    >>> partition_for(b"EURUSD", 8) == partition_for(b"EURUSD", 8)
    True
    """
    if partitions < 1:
        raise InvalidArgument(f"a topic has at least one partition, not {partitions}")
    partition: int = _crc32c(key) % partitions
    return partition
