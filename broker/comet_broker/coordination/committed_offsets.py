"""The positions of one group: what is committed per topic and partition, and what is about to be.

    admitted ─► gathered ─► flight, in the journal ─► written      (a later one holds all that an earlier one holds)

One value per topic holds all its marks, so a write is absolute. Owned by the group's driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from comet.v1 import groups_pb2 as pb
from comet_broker.core.cluster import Place, Stored

NONE: Final = -1  # stands for an offset or epoch that is not there


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


Marks = dict[str, dict[int, Mark]]  # by topic id and partition


class Positions:
    """Three layers of marks: `written` is what the store has; a flight is on its way there; what has gathered waits
    for the next flight. Whoever is told anything is told what is written; the fence looks at all three."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}  # topic id -> its name
        self.written: Marks = {}
        self._flights: list[Marks] = []
        self._gathered: Marks = {}

    def __bool__(self) -> bool:
        return bool(self.written or self.pending)

    @property
    def pending(self) -> bool:
        """Something is admitted that the store does not have yet."""
        return bool(self._gathered or self._flights)

    @property
    def gathered(self) -> bool:
        return bool(self._gathered)

    def load(self, topic_id: str, stored: TopicPositions) -> None:
        self.names[topic_id] = stored.topic
        self.written[topic_id] = dict(stored.marks())

    # ---- looking

    def get(self, place: Place) -> Mark | None:
        """What is committed: in the store."""
        return self.written.get(place[0], {}).get(place[1])

    def latest(self, place: Place) -> Mark | None:
        """What will be committed, as far as is known."""
        for layer in (self._gathered, *reversed(self._flights), self.written):
            mark = layer.get(place[0], {}).get(place[1])
            if mark is not None:
                return mark
        return None

    def merged(self, topic_id: str) -> TopicPositions:
        """The value of a topic's key with all that is admitted."""
        marks: dict[int, Mark] = {}
        for layer in (self.written, *self._flights, self._gathered):
            marks.update(layer.get(topic_id, {}))
        return TopicPositions.of(self.names[topic_id], marks)

    def places(self) -> Iterator[Place]:
        for topic_id, marks in self.written.items():
            for partition in marks:
                yield topic_id, partition

    # ---- from admitted to written

    def gather(self, marks: Marks) -> None:
        for topic_id, found in marks.items():
            self._gathered.setdefault(topic_id, {}).update(found)

    def take_off(self) -> Marks:
        """All that has gathered, to be written now."""
        marks, self._gathered = self._gathered, {}
        self._flights.append(marks)
        return marks

    def fly(self, marks: Marks) -> Marks:
        """These alone, to be written now, together with something else."""
        flight = {topic_id: dict(found) for topic_id, found in marks.items()}
        self._flights.append(flight)
        return flight

    def land(self, flight: Marks, *, written: bool) -> None:
        self._flights = [other for other in self._flights if other is not flight]
        if written:
            for topic_id, marks in flight.items():
                if topic_id in self.names:  # else the topic was deleted meanwhile
                    self.written.setdefault(topic_id, {}).update(marks)

    def drop(self, topic_id: str) -> bool:
        """The topic is gone for good; whether anything was known of it."""
        known = self.names.pop(topic_id, None) is not None
        self.written.pop(topic_id, None)
        self._gathered.pop(topic_id, None)
        return known


class Admitted:
    """What one commit comes to, once it has been looked at. `committed` is the answer, once it is written."""

    def __init__(
        self,
        positions: Positions,
        marks: Marks,
        asked: Iterable[tuple[str, Place]] = (),
        refused: Sequence[pb.RefusedMark] = (),
        group: str = "",
    ) -> None:
        self.group = group
        self.marks = marks  # those that move something
        self.refused = list(refused)
        self._positions = positions
        self._asked = list(asked)  # topic and place of all that were not refused

    def committed(self) -> pb.Committed:
        """Never less than was asked for, but for what was refused."""
        topics: dict[str, pb.TopicMarks] = {}
        for name, place in self._asked:
            topic_id, partition = place
            mark = self._positions.get(place)
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
