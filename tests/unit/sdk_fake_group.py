"""An app whose groups are in memory: lists that a test moves about. For virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

from comet import records
from comet.app import App
from comet.errors import Closed, CometError, StaleGeneration
from comet.handlers.binding import Binding
from comet.handlers.serving import RecordSource
from comet.serde import serde_for
from comet.types import TopicPartition
from comet.v1 import groups_pb2 as groups_pb
from comet.values.record import RecordBatch
from tests.unit.sdk_fake import ADDRESS, FakeBroker


class FakeGroup:
    """Logs, and what is committed; outlives its members."""

    def __init__(self, tps: list[TopicPartition]) -> None:
        self.logs: dict[TopicPartition, list[tuple[bytes | None, bytes]]] = {tp: [] for tp in tps}
        self.committed: dict[TopicPartition, int] = dict.fromkeys(tps, 0)
        self.commits: list[dict[TopicPartition, int]] = []
        self.members: list[FakeMember] = []
        self.refuse: CometError | None = None
        self.batch_records = 5
        self.more = asyncio.Event()

    def write(self, tp: TopicPartition, *values: bytes, key: bytes | None = None) -> None:
        self.logs[tp] += [(key, value) for value in values]
        self.rouse()

    def rouse(self) -> None:
        self.more.set()
        self.more = asyncio.Event()

    @property
    def member(self) -> FakeMember:
        return self.members[-1]


class FakeMember:
    """What GroupConsumer is to an app."""

    def __init__(self, group: FakeGroup, kind: Any, on_revoked: Any, on_lost: Any) -> None:
        self.fake = group
        self.serde = None if kind is None else serde_for(kind)
        self.on_revoked, self.on_lost = on_revoked, on_lost
        self.at: dict[TopicPartition, int] = {}
        self.releasing: set[TopicPartition] = set()
        self.closed = False
        group.members.append(self)

    @property
    def group(self) -> str:
        return "g"

    @property
    def member(self) -> str:
        return str(self.fake.members.index(self))

    def _topics_found(self) -> bool:
        return True

    async def start(self) -> None:
        self.at = dict(self.fake.committed)

    async def close(self) -> None:
        self.closed = True
        self.fake.rouse()

    async def get_batch(self, timeout_s: float | None = None) -> RecordBatch[Any] | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._next()
        except TimeoutError:
            return None

    async def _next(self) -> RecordBatch[Any]:
        while True:
            if self.closed:
                raise Closed("closed")
            for tp, position in self.at.items():
                found = self.fake.logs[tp][position : position + self.fake.batch_records]
                if found and tp not in self.releasing:
                    self.at[tp] += len(found)
                    return self._batch(tp, position, found)
            await self.fake.more.wait()

    def _batch(self, tp: TopicPartition, base: int, found: list[tuple[bytes | None, bytes]]) -> RecordBatch[Any]:
        parts = records.encode([value for _, value in found], keys=[key for key, _ in found], timestamps=7)
        batch = b"".join(parts)
        header = records.verify(batch, stamped=False)
        stamped = records.make_stamp(base, 1, 1, header.length) + batch[records.STAMP_BYTES :]
        return RecordBatch(*tp, records.decode(stamped), serde=self.serde)

    async def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        await asyncio.sleep(0.001)
        if self.fake.refuse is not None:
            raise self.fake.refuse
        if any(tp not in self.at for tp in positions):
            raise StaleGeneration("not yours")
        self.fake.commits.append(dict(positions))
        for tp, position in positions.items():
            assert position >= self.fake.committed[tp], "commits only rise"
            self.fake.committed[tp] = position

    def positions(self) -> dict[TopicPartition, int]:
        return dict(self.at)

    def offsets_to_commit(self, positions: Any) -> groups_pb.Commit:
        found: dict[TopicPartition, int] = {}
        for one in positions if isinstance(positions, list) else [positions]:
            if isinstance(one, Mapping):
                found.update(one)
            else:
                end = one.next_offset if isinstance(one, RecordBatch) else one.offset + 1
                found[TopicPartition(one.topic, one.partition)] = end
        commit = groups_pb.Commit(group="g", member=self.member)
        for (topic, partition), offset in found.items():
            commit.topics.add(topic=topic).offsets.add(partition=partition, offset=offset)
        return commit

    def were_committed(self, offsets: groups_pb.Commit) -> None:
        """It has noticed already."""

    def check(self, commit: groups_pb.Commit) -> None:
        """The fence of a transaction's commit, and what it does to the group."""
        member = self.fake.members[int(commit.member)]
        entries = {
            TopicPartition(topic.topic, entry.partition): entry.offset
            for topic in commit.topics
            for entry in topic.offsets
        }
        if self.fake.refuse is not None:
            raise self.fake.refuse
        if member.closed or any(tp not in member.at for tp in entries):
            raise StaleGeneration("not yours")
        self.fake.committed.update(entries)

    async def revoke(self, tp: TopicPartition) -> None:
        """The coordinator takes a partition away, in good order."""
        self.releasing.add(tp)
        await self.on_revoked([tp])
        self.releasing.discard(tp)
        del self.at[tp]

    def lose(self, tp: TopicPartition) -> None:
        del self.at[tp]
        self.on_lost([tp])

    def gain(self, tp: TopicPartition) -> None:
        self.at[tp] = self.fake.committed[tp]
        self.fake.rouse()


class GroupApp(App):
    def __init__(self, broker: FakeBroker, group: FakeGroup, **settings: Any) -> None:
        super().__init__(ADDRESS, connect=broker.connect, random=Random(4), **settings)
        self.fake = group
        self.clients.group_consumer = self._member  # type: ignore[method-assign]

    def _member(self, one: Binding, **hooks: Any) -> RecordSource:
        return FakeMember(self.fake, one.signature.type, **hooks)
