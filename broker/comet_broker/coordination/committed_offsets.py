"""The offsets of one group, per topic and partition: committed ones, and those about to be.

    admitted ─► gathered ─► flight, in the journal ─► written      (a later one holds all that an earlier one holds)

One value per topic holds all its entries, so a write is absolute. Owned by the group's driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from comet.v1 import groups_pb2 as pb
from comet_broker.core.cluster import PartitionId, Stored

NONE: Final = -1  # no offset or epoch


class CommittedOffset(NamedTuple):
    """The next offset to read, and the leader epoch of the record before it; NONE if unknown."""

    offset: int
    epoch: int = NONE


class StoredOffsets(Stored, frozen=True):
    """All entries of a topic, by partition; NONE where there is none."""

    topic: str
    offsets: tuple[int, ...]
    epochs: tuple[int, ...]

    @classmethod
    def of(cls, topic: str, entries: dict[int, CommittedOffset]) -> StoredOffsets:
        count = max(entries, default=-1) + 1
        none = CommittedOffset(NONE)
        rows = [entries.get(index, none) for index in range(count)]
        return cls(topic, tuple(entry.offset for entry in rows), tuple(entry.epoch for entry in rows))

    def entries(self) -> Iterator[tuple[int, CommittedOffset]]:
        for index, (offset, epoch) in enumerate(zip(self.offsets, self.epochs, strict=True)):
            if offset != NONE:
                yield index, CommittedOffset(offset, epoch)


OffsetsByTopic = dict[str, dict[int, CommittedOffset]]  # by topic id and partition


class CommittedOffsets:
    """Committed offsets in three layers: `written` is in the store; a flight is on its way there; gathered entries wait
    for the next flight. Answers show what is written; the fence checks all three."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}  # topic id -> its name
        self.written: OffsetsByTopic = {}
        self._flights: list[OffsetsByTopic] = []
        self._gathered: OffsetsByTopic = {}

    def __bool__(self) -> bool:
        return bool(self.written or self.pending)

    @property
    def pending(self) -> bool:
        """Whether something is admitted that the store does not have yet."""
        return bool(self._gathered or self._flights)

    @property
    def gathered(self) -> bool:
        return bool(self._gathered)

    def load(self, topic_id: str, stored: StoredOffsets) -> None:
        self.names[topic_id] = stored.topic
        self.written[topic_id] = dict(stored.entries())

    # ---- looking

    def get(self, tp: PartitionId) -> CommittedOffset | None:
        """The committed offset, as the store has it."""
        return self.written.get(tp[0], {}).get(tp[1])

    def latest(self, tp: PartitionId) -> CommittedOffset | None:
        """The offset that will be committed, as far as is known."""
        for layer in (self._gathered, *reversed(self._flights), self.written):
            entry = layer.get(tp[0], {}).get(tp[1])
            if entry is not None:
                return entry
        return None

    def merged(self, topic_id: str) -> StoredOffsets:
        """The value of a topic's key with everything that is admitted."""
        entries: dict[int, CommittedOffset] = {}
        for layer in (self.written, *self._flights, self._gathered):
            entries.update(layer.get(topic_id, {}))
        return StoredOffsets.of(self.names[topic_id], entries)

    def partitions(self) -> Iterator[PartitionId]:
        for topic_id, entries in self.written.items():
            for partition in entries:
                yield topic_id, partition

    # ---- from admitted to written

    def gather(self, entries: OffsetsByTopic) -> None:
        for topic_id, found in entries.items():
            self._gathered.setdefault(topic_id, {}).update(found)

    def take_gathered(self) -> OffsetsByTopic:
        """Takes everything that has gathered, to be written now."""
        entries, self._gathered = self._gathered, {}
        self._flights.append(entries)
        return entries

    def start_write(self, entries: OffsetsByTopic) -> OffsetsByTopic:
        """Takes these entries alone, to be written now, together with something else."""
        flight = {topic_id: dict(found) for topic_id, found in entries.items()}
        self._flights.append(flight)
        return flight

    def finish_write(self, flight: OffsetsByTopic, *, written: bool) -> None:
        self._flights = [other for other in self._flights if other is not flight]
        if written:
            for topic_id, entries in flight.items():
                if topic_id in self.names:  # else the topic was deleted meanwhile
                    self.written.setdefault(topic_id, {}).update(entries)

    def drop(self, topic_id: str) -> bool:
        """Drops a deleted topic; returns whether it had entries."""
        known = self.names.pop(topic_id, None) is not None
        self.written.pop(topic_id, None)
        self._gathered.pop(topic_id, None)
        return known


class Admitted:
    """The outcome of the checks of one commit. `committed` is the answer, once it is written."""

    def __init__(
        self,
        offsets: CommittedOffsets,
        entries: OffsetsByTopic,
        admitted: Iterable[tuple[str, PartitionId]] = (),
        refused: Sequence[pb.RefusedOffset] = (),
        group: str = "",
    ) -> None:
        self.group = group
        self.entries = entries  # those that move an offset
        self.refused = list(refused)
        self._offsets = offsets
        self._admitted = list(admitted)  # topic and partition of all that were not refused

    def committed(self) -> pb.Committed:
        """The answer: at least the requested offsets, without those that were refused."""
        topics: dict[str, pb.TopicOffsets] = {}
        for name, tp in self._admitted:
            topic_id, partition = tp
            entry = self._offsets.get(tp)
            if entry is None:
                continue  # the topic was deleted meanwhile
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = pb.TopicOffsets(topic=name, topic_id=bytes.fromhex(topic_id))
            topic.offsets.append(offset_to_pb(partition, entry))
        return pb.Committed(topics=topics.values(), refused=self.refused)


def offset_to_pb(partition: int, entry: CommittedOffset) -> pb.PartitionOffset:
    message = pb.PartitionOffset(partition=partition, offset=entry.offset)
    if entry.epoch != NONE:
        message.leader_epoch = entry.epoch
    return message
