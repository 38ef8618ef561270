"""The files of one partition's folder: their names, and the header blocks of segments.

    00000000000000004711.log         a segment: a header block, then record batches one after the other
    00000000000000004711.index       its sparse index, derived (index.py)
    00000000000000004711.producers   the producer table as of that offset, derived (core/producers.py)
    compaction                       the last compaction plan, and the last one that was carried out
    checkpoint                       the synced end and the start of the log (checkpoint.py)
    clean                            the log was closed cleanly; removed while it is open
    ….refused                        a segment whose header does not match its name, set aside

The header block of a segment, 64 bytes, little-endian:

     0  magic        8s   b"COMETLOG"
     8  version      u32  1; 2 for a compacted segment
    12  partition    u32
    16  topic_id     16s
    32  base_offset  i64  the same as in the file's name
    40  created_us   i64
    48  compacted    i64  in version 2: the end of the segments that it replaces, else zero
    56  zero         4s
    60  crc          u32  CRC-32C of bytes 0..60
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

SEGMENT_HEADER_BYTES: Final = 64
CHECKPOINT: Final = "checkpoint"
CLEAN: Final = "clean"

_MAGIC: Final = b"COMETLOG"
_VERSION: Final = 1
_COMPACTED: Final = 2
_HEADER: Final = struct.Struct("<8sII16sqqq4xI")
_CRC: Final = struct.Struct("<I")
_CRC_AT: Final = SEGMENT_HEADER_BYTES - _CRC.size
_NAME: Final = re.compile(r"(\d{20})\.(log|index|producers)")

assert _HEADER.size == SEGMENT_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The topic and partition of a log; written into every segment, so that a misplaced file is detected."""

    topic_id: bytes
    partition: int

    def __post_init__(self) -> None:
        assert len(self.topic_id) == 16
        assert 0 <= self.partition < 1 << 32


class SegmentHeader(NamedTuple):
    topic_id: bytes
    partition: int
    base_offset: int
    created_us: int
    compacted_end: int = 0  # of the segments that it replaces; 0: none


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}.log"


def index_name(base_offset: int) -> str:
    return f"{base_offset:020d}.index"


def producers_name(offset: int) -> str:
    return f"{offset:020d}.producers"


def parse_name(name: str) -> tuple[int, str] | None:
    """The offset and kind in a file's name; None for other files."""
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) >= 1 << 63:
        return None
    return int(match[1]), match[2]


def pack_segment_header(identity: LogIdentity, base_offset: int, created_us: int, *, compacted_end: int = 0) -> bytes:
    version = _COMPACTED if compacted_end else _VERSION
    block = _HEADER.pack(
        _MAGIC, version, identity.partition, identity.topic_id, base_offset, created_us, compacted_end, 0
    )
    return block[:_CRC_AT] + _CRC.pack(crc32c(block[:_CRC_AT]))


def read_segment_header(block: bytes) -> SegmentHeader | None:
    """Reads a segment's header; None if it is cut off, damaged, or of an unknown version."""
    if len(block) < SEGMENT_HEADER_BYTES:
        return None
    magic, version, partition, topic_id, base_offset, created_us, compacted_end, crc = _HEADER.unpack_from(block)
    if magic != _MAGIC or version not in (_VERSION, _COMPACTED) or crc != crc32c(block[:_CRC_AT]):
        return None
    return SegmentHeader(topic_id, partition, base_offset, created_us, compacted_end)


def written_by_newer(block: bytes) -> bool:
    """Whether a segment's header is whole, and of a version that this code does not know."""
    if len(block) < SEGMENT_HEADER_BYTES:
        return False
    magic, version, *_, crc = _HEADER.unpack_from(block)
    return bool(magic == _MAGIC and version > _COMPACTED and crc == crc32c(block[:_CRC_AT]))
