"""Finds the topics that hold dead letters, and has an index for each.

Topics have no mark for dead letters: an application may use any topic, unknown to the brokers. So the newest records
decide: a topic holds dead letters if one of the newest NEWEST records of a partition is a dead letter or a note. Each
scan inspects a bounded number of topics, those with the oldest inspection first, and again only after they have grown;
a topic that was found stays.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import comet
from comet.entities import PartitionInfo, TopicInfo
from comet.errors import CometError, CorruptRecords, TopicNotFound
from comet.types import AtOffset
from comet_gateway.config import Limits
from comet_gateway.dead_letters.dead_letter import is_either
from comet_gateway.dead_letters.index import DeadLetterIndex, Room

NEWEST: Final = 16
PARTITIONS_MAX: Final = 32  # of one topic that are inspected, the fullest first
BYTES_MAX: Final = 256 * 1024
AGAIN_S: Final = 5.0  # before a topic is inspected again
AT_ONCE: Final = 8
TOPICS_MAX: Final = 10_000  # whose log end offsets are kept
INDEXES_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class DiscoveryProgress:
    """Progress of the search for dead-letter topics."""

    inspected: int  # topics inspected, ever
    topics: int


@dataclass(frozen=True, slots=True)
class _Inspection:
    id: bytes
    at: float
    ends: tuple[int | None, ...]


class DeadLetterIndexes:
    """The indexes of all dead-letter topics. One for a gateway. Works only during requests."""

    def __init__(self, admin: comet.Admin, reader: comet.Reader, limits: Limits) -> None:
        self._admin = admin
        self._reader = reader
        self._limits = limits
        self._room = Room(limits.dead_letters_max)
        self._indexes: OrderedDict[str, DeadLetterIndex] = OrderedDict()
        self._found: set[str] = set()  # topics that hold dead letters, of those in _indexes
        self._inspections: dict[str, _Inspection] = {}
        self._discovering = asyncio.Lock()

    @property
    def reader(self) -> comet.Reader:
        return self._reader

    async def discover(self, until: float) -> DiscoveryProgress:
        """Searches for topics until `until` at most, and advances the known indexes. Raises CometError."""
        topics = {info.name: info for info in await self._admin.list_topics() if not info.internal}
        async with self._discovering:
            self._forget(topics)
            await self._inspect(self._due(list(topics.values())), until)
        topic_indexes = self.known()
        await asyncio.gather(*(self._advance(topic_index, until) for topic_index in topic_indexes))
        return DiscoveryProgress(sum(name in self._inspections or name in self._found for name in topics), len(topics))

    def known(self) -> list[DeadLetterIndex]:
        """Indexes of the topics that hold dead letters, or did, by name."""
        return [self._indexes[name] for name in sorted(self._found)]

    async def topic_index(self, topic: str, until: float) -> DeadLetterIndex:
        """The index of any topic, advanced until `until`. Raises TopicNotFound, CometError."""
        info = await self._admin.describe_topic(topic)
        topic_index = self._open(info)
        await topic_index.advance(self._reader, until)
        if topic_index.counts:
            self._found.add(topic)
        return topic_index

    def _open(self, info: TopicInfo) -> DeadLetterIndex:
        topic_index = self._indexes.get(info.name)
        if topic_index is None or topic_index.topic_id != info.id or len(topic_index.sources) != len(info.partitions):
            self._close(info.name)
            topic_index = self._indexes[info.name] = DeadLetterIndex(
                info, self._room, self._limits.dead_letter_scan_records_max
            )
        self._indexes.move_to_end(info.name)
        while len(self._indexes) > INDEXES_MAX:
            self._close(next(iter(self._indexes)))
        return topic_index

    def _close(self, topic: str) -> None:
        self._found.discard(topic)
        if (topic_index := self._indexes.pop(topic, None)) is not None:
            topic_index.clear()

    def _forget(self, topics: dict[str, TopicInfo]) -> None:
        for name, topic_index in list(self._indexes.items()):
            if name not in topics or topics[name].id != topic_index.topic_id:
                self._close(name)
        for name, inspection in list(self._inspections.items()):
            if name not in topics or topics[name].id != inspection.id:
                del self._inspections[name]

    async def _advance(self, topic_index: DeadLetterIndex, until: float) -> None:
        try:
            await topic_index.advance(self._reader, until)
        except TopicNotFound:
            self._close(topic_index.topic)
        except CometError:
            return  # does not block the others; the index reports that it is incomplete

    # ---- finding topics

    def _due(self, topics: Sequence[TopicInfo]) -> list[TopicInfo]:
        now = asyncio.get_running_loop().time()
        never = _Inspection(b"", -AGAIN_S, ())
        waiting = [
            info
            for info in topics
            if info.name not in self._found and self._inspections.get(info.name, never).at + AGAIN_S <= now
        ]
        return sorted(waiting, key=lambda info: self._inspections.get(info.name, never).at)[:TOPICS_MAX]

    async def _inspect(self, topics: list[TopicInfo], until: float) -> None:
        """Inspects the topics, a few at once, until `until`; at least one per task."""
        left = iter(topics)

        async def some() -> None:
            for info in left:
                await self._inspect_one(info)
                if asyncio.get_running_loop().time() >= until:
                    return

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    async def _inspect_one(self, info: TopicInfo) -> None:
        now = asyncio.get_running_loop().time()
        before = self._inspections.get(info.name)
        try:
            topic = await self._admin.describe_topic(info.name)
            ends = tuple(one.log_end for one in topic.partitions)
            if (before is None or ends != before.ends) and await self._holds(info, topic.partitions):
                self._open(info)
                self._found.add(info.name)
        except CometError:
            return  # inspected again later
        self._inspections[info.name] = _Inspection(info.id, now, ends)

    async def _holds(self, info: TopicInfo, partitions: Sequence[PartitionInfo]) -> bool:
        filled = sorted((one for one in partitions if one.records), key=lambda one: -(one.records or 0))
        for one in filled[:PARTITIONS_MAX]:
            start = AtOffset(max(one.log_start or 0, (one.log_end or 0) - NEWEST))
            try:
                found = await self._reader.fetch(
                    info.name,
                    one.partition,
                    start,
                    records_max=NEWEST,
                    bytes_max=BYTES_MAX,
                    isolation="uncommitted",
                    topic_id=info.id,
                )
            except CorruptRecords:
                continue
            if any(is_either(headers) for batch in found.batches for headers in batch.headers):
                return True
        return False
