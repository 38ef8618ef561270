"""The positions of one group: what is committed per topic and partition, and what is about to be.

    admit(marks) ─► Admission ─► the journal ─► written      (a later one holds all that an earlier one holds)

One value per topic holds all its marks, so a write is absolute. What is *pending* is queued to be written; it may be
refused a way back already, and is told to nobody. Owned by the group's driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from comet.v1 import groups_pb2 as pb
from comet_broker.core.cluster import Stored

NONE: Final = -1  # stands for an offset or epoch that is not there


class Place(NamedTuple):
    """As in core.cluster: a topic's id, 32 hex digits, and a partition."""

    topic_id: str
    partition: int


class Mark(NamedTuple):
    """The next offset to read, and the leader epoch of the record before it; NONE where it is not known."""

    offset: int
    epoch: int = NONE


class TopicPositions(Stored, frozen=True):
    """All marks of a topic, by partition; NONE where there is none."""

    topic: str
    offsets: tuple[int, ...]
    epochs: tuple[int, ...]

    @classmethod
    def of(cls, topic: str, marks: dict[int, Mark]) -> TopicPositions:
        count = max(marks, default=-1) + 1
        none = Mark(NONE)
        rows = [marks.get(index, none) for index in range(count)]
        return cls(topic, tuple(mark.offset for mark in rows), tuple(mark.epoch for mark in rows))

    def marks(self) -> Iterator[tuple[int, Mark]]:
        for index, (offset, epoch) in enumerate(zip(self.offsets, self.epochs, strict=True)):
            if offset != NONE:
                yield index, Mark(offset, epoch)


class Positions:
    """Two layers of marks: `written` is what the store has, `pending` what it is to have on top of that."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}  # topic id -> its name
        self.written: dict[str, dict[int, Mark]] = {}
        self._pending: dict[str, dict[int, Mark]] = {}

    def __bool__(self) -> bool:
        return bool(self.written or self._pending)

    @property
    def pending(self) -> bool:
        """Something is queued that the store does not have yet."""
        return bool(self._pending)

    def get(self, place: tuple[str, int]) -> Mark | None:
        """What is committed: in the store."""
        return self.written.get(place[0], {}).get(place[1])

    def latest(self, place: tuple[str, int]) -> Mark | None:
        """What will be committed, as far as is known."""
        return self._pending.get(place[0], {}).get(place[1]) or self.get(place)

    def load(self, topic_id: str, stored: TopicPositions) -> None:
        self.names[topic_id] = stored.topic
        self.written[topic_id] = dict(stored.marks())

    def merged(self, topic_id: str, marks: dict[int, Mark]) -> TopicPositions:
        """The value of a topic's key once `marks` and all that is pending are in it."""
        both = {**self.written.get(topic_id, {}), **self._pending.get(topic_id, {}), **marks}
        return TopicPositions.of(self.names[topic_id], both)

    def queue(self, topic_id: str, marks: dict[int, Mark]) -> None:
        """These marks have been queued to be written."""
        self._pending.setdefault(topic_id, {}).update(marks)

    def wrote(self, topic_id: str, marks: dict[int, Mark]) -> None:
        """The store has them now."""
        self.written.setdefault(topic_id, {}).update(marks)
        pending = self._pending.get(topic_id, {})
        for partition, mark in marks.items():
            if pending.get(partition) == mark:
                del pending[partition]
        if not pending:
            self._pending.pop(topic_id, None)

    def drop(self, topic_id: str) -> bool:
        """The topic is gone for good; whether anything was known of it."""
        self.names.pop(topic_id, None)
        known = self.written.pop(topic_id, None), self._pending.pop(topic_id, None)
        return any(found is not None for found in known)

    def places(self) -> Iterator[tuple[str, int]]:
        for topic_id, marks in self.written.items():
            for partition in marks:
                yield topic_id, partition


class Admitted:
    """What one commit comes to. `operations` go into the journal, through `Groups.write`; the answer is right once
    they are written."""

    def __init__(
        self,
        positions: Positions,
        key_of: dict[str, str],
        marks: dict[str, dict[int, Mark]],
        asked: Iterable[tuple[str, str, int]],
        refused: list[pb.RefusedMark],
    ) -> None:
        self.refused = refused
        self.marks = marks  # those that move something, by topic id
        self._positions = positions
        self._key_of = key_of
        self._asked = list(asked)  # name, topic id, partition of all that were not refused

    def committed(self) -> pb.Committed:
        """The answer, once the operations have been written."""
        topics: dict[str, pb.TopicMarks] = {}
        for name, topic_id, partition in self._asked:
            mark = self._positions.get((topic_id, partition))
            if mark is None:
                continue  # the topic was deleted meanwhile
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = pb.TopicMarks(topic=name, topic_id=bytes.fromhex(topic_id))
            topic.marks.append(mark_to_pb(partition, mark))
        return pb.Committed(topics=topics.values(), refused=self.refused)


def mark_to_pb(partition: int, mark: Mark) -> pb.Mark:
    message = pb.Mark(partition=partition, offset=mark.offset)
    if mark.epoch != NONE:
        message.leader_epoch = mark.epoch
    return message
