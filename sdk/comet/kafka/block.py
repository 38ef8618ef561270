"""Where an import stands: the next Kafka offset of each partition, in notes of Comet's transactions.

    transactional id    import-kafka-TOPIC-FIRST-DIGEST     one for 12 partitions; the digest is of Kafka's cluster
                                                            id, the topic, and the id of Comet's topic
    note                next 120 7 - 55                     an offset for each partition of the block; -: not begun

A transaction commits records and the note together, so no record is copied twice. A topic that was deleted and created
again in Comet has another id: its import has no position. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from comet import limits
from comet.errors import StoreDamaged

PARTITIONS: Final = 12
_OFFSET_DIGITS: Final = 19
_TOPIC_CHARACTERS: Final = 120  # of a transactional id, which is limited
_NOTE: Final = re.compile(rb"next((?: (?:[0-9]{1,19}|-)){1,12})")
assert len("next") + PARTITIONS * (1 + _OFFSET_DIGITS) <= limits.TRANSACTION_NOTE_BYTES_MAX


@dataclass(slots=True)
class PartitionBlock:
    """Up to 12 partitions of one topic. Changed by the copier alone, after a commit."""

    topic: str
    partitions: range
    transactional_id: str
    next: dict[int, int] = field(default_factory=dict)  # the next Kafka offset, of partitions that were begun

    def note(self, after: Mapping[int, int] | None = None) -> bytes:
        """The note that says where the block stands, or will stand after further partitions have moved.

        >>> PartitionBlock("orders", range(3), "id", {0: 120, 2: 55}).note({1: 7})
        b'next 120 7 55'
        """
        positions = self.next | dict(after or {})
        return b"next " + b" ".join(b"%d" % positions[at] if at in positions else b"-" for at in self.partitions)

    def read(self, note: bytes) -> dict[int, int]:
        """The positions that a note has; none of an empty one.

        >>> PartitionBlock("orders", range(12, 15), "id").read(b"next 120 -")
        {12: 120}
        """
        if not note:
            return {}
        found = _NOTE.fullmatch(note)
        if found is None:
            raise StoreDamaged(f"the note of transactional id {self.transactional_id} is not one of comet import kafka")
        words = zip(self.partitions, found[1].split(), strict=False)
        return {at: int(word) for at, word in words if word != b"-"}


def blocks_of(cluster: str, topic: str, partitions: int, topic_id: bytes) -> Iterator[PartitionBlock]:
    """The blocks of a topic, for the Kafka cluster and the topic in Comet with these ids.

    >>> [block.partitions for block in blocks_of("c", "orders", 14, b"id")]
    [range(0, 12), range(12, 14)]
    """
    digest = hashlib.sha256(f"{cluster}\n{topic}\n".encode() + topic_id).hexdigest()[:16]
    for first in range(0, partitions, PARTITIONS):
        name = f"import-kafka-{topic[:_TOPIC_CHARACTERS]}-{first}-{digest}"
        yield PartitionBlock(topic, range(first, min(first + PARTITIONS, partitions)), name)


@dataclass(slots=True)
class KafkaRecords:
    """Records of one partition, in order, as columns."""

    topic: str
    partition: int
    offsets: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[list[tuple[str, bytes]] | None] = field(default_factory=list)
    timestamps_us: list[int | None] = field(default_factory=list)

    @property
    def next(self) -> int:
        """The offset after the last record."""
        return self.offsets[-1] + 1


@dataclass(slots=True)
class Chunk:
    """What one look at Kafka found: records by partition, a bounded number of bytes."""

    parts: dict[tuple[str, int], KafkaRecords] = field(default_factory=dict)
    records: int = 0
    bytes: int = 0  # of keys, values and headers
    held_bytes: int = 0  # about what it takes of memory

    def of(self, block: PartitionBlock) -> Sequence[KafkaRecords]:
        return [part for (topic, at), part in self.parts.items() if topic == block.topic and at in block.partitions]
