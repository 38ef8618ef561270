"""A consumer in a group: reads the partitions assigned to it, and commits the group's offsets.

    coordinator ─► Member ─► AssignedPartitions
    RecordIterator ─► processed records ─► Commits ─► coordinator

Asking for a record marks the one before it as processed, so `at least once` needs no call by the application: a record
that is not processed when the consumer ends comes again, to it or to another member.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from comet import limits
from comet.client.bootstrap import Addresses
from comet.client.client import Client
from comet.client.metadata import mark_retrieved
from comet.client.new_topic import create_missing
from comet.client.watchdog import PROCESS, Watch
from comet.client.world import World
from comet.consumer.consumer import serde_of
from comet.consumer.fetcher import Fetcher
from comet.consumer.options import chosen, filter_of_brokers, parsed_filter
from comet.errors import Closed, CometError, PartitionNotFound, StaleGeneration
from comet.groups.assigned_partitions import AssignedPartitions
from comet.groups.commits import Commits, OffsetToCommit, commit_frame
from comet.groups.keywords import GroupKeywords
from comet.groups.member import Member
from comet.groups.member_partition import Handled, MemberPartition, begins_of, offsets_of
from comet.groups.options import GroupOptions, join_frame
from comet.tracing.clients import receive_spans
from comet.types import AtOffset, Position, StartLike, TopicPartition, position
from comet.v1 import groups_pb2 as groups_pb
from comet.values.record import Record, RecordBatch

log = logging.getLogger("comet")

T = TypeVar("T")


class GroupConsumer(AssignedPartitions[T]):
    """Reads topics together with the other members of its group: each partition is assigned to one member, and the
    group keeps committed offsets. Async; `comet.sync.GroupConsumer` is the same for synchronous code.

    Topics are named, or matched by `pattern`, a regular expression, which also matches topics that are made later. A
    topic without committed offsets begins at `start`, "latest" or as for comet.Consumer.

    With `auto_commit`, the default, asking for the next record or batch marks the previous one as processed. Processed
    records are committed every `commit_interval_ms`, before a partition is released, and at the end; so every record
    is processed at least once. Without it only `commit` commits.

    A member that is silent for `session_timeout_ms` loses its partitions. With an `instance` id it keeps them across a
    restart within that time. `on_assigned`, `on_revoked` and `on_lost` are called with partitions: newly assigned
    ones, those about to be released (awaited first), and those already lost.

    `assignment` is the strategy by which partitions are assigned: "sticky", equal loads with few moves; "range", a part
    of each topic per member, so that the same numbers of several topics meet; "rack", as "sticky", with as many
    partitions as possible at members in the `rack` of an in-sync replica. If members differ, that of most counts.

    With `create`, True or a NewTopic, named topics that are missing are made.

    Options of comet.Consumer are options of it, too. `options` has them as one GroupOptions; those given by name come
    first.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
    ...     async with comet.GroupConsumer(address, "quotes", group="engine", start="earliest") as consumer:
    ...         print((await consumer.get()).value, (await consumer.get()).value)
    ...     async with comet.GroupConsumer(address, "quotes", group="engine") as consumer:
    ...         print((await consumer.get()).value)
    >>> run(example)
    b'1' b'2'
    b'3'
    """

    @overload
    def __init__(
        self: GroupConsumer[bytes], addresses: Addresses = ..., *topics: str, group: str,
        options: GroupOptions | None = ..., **keywords: Unpack[GroupKeywords],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self, addresses: Addresses = ..., *topics: str, group: str, type: type[T],
        options: GroupOptions | None = ..., **keywords: Unpack[GroupKeywords],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: GroupConsumer[Any], addresses: Addresses = ..., *topics: str, group: str, type: Any,
        options: GroupOptions | None = ..., **keywords: Unpack[GroupKeywords],
    ) -> None: ...  # fmt: skip
    def __init__(
        self,
        addresses: Addresses = None,
        *topics: str,
        group: str,
        type: Any = None,  # noqa: A002 - the name users expect
        options: GroupOptions | None = None,
        name: str = "",
        **keywords: Any,
    ) -> None:
        world = World.taken(keywords)
        reading = chosen(options or GroupOptions(), keywords)
        super().__init__(
            serde_of(type),
            uncommitted=reading.isolation == "uncommitted",
            keyring=reading.encryption,
            chosen=parsed_filter(reading.filter, now_us=world.clock_us()),
        )
        self.auto_commit = reading.auto_commit
        self._start_at = position(reading.start, now_us=world.clock_us())
        self._clock_us = world.clock_us
        self._callbacks = {
            "assigned": reading.on_assigned, "revoked": reading.on_revoked, "lost": reading.on_lost,
        }  # fmt: skip
        self._interval_s = reading.commit_interval_ms / 1000
        join = join_frame(group, topics, reading, name, groups_pb.GROUP_KIND_CONSUMER)
        join.instance, join.release_timeout_ms = reading.instance, reading.release_timeout_ms
        join.assignment, join.rack = reading.assignment, reading.rack
        self._client = Client(addresses, name=name, connect=world.connect, random=world.random)
        self._receive_spans = partial(receive_spans, self._client.bootstrap, name, group)
        self._create_topics = partial(create_missing, self._client, topics, reading.create)
        self._static = bool(reading.instance)
        watch = Watch(PROCESS if world.connect is None else None)  # with virtual time no loop is late
        self._member = Member(self._client, join, self._changed, watch)
        self._commits = Commits(self._client, self._member, self._was_committed)
        self._assigned = {}
        self._returned = None
        self._ticker: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._closed = False
        fetched = replace(reading, filter=filter_of_brokers(self._filter, encrypted=self._keyring is not None))
        self._fetcher = Fetcher(
            self._client, None, fetched, start=self._start_at, partitions=None, begun=self._begun
        )  # fmt: skip

    # ---- life

    async def start(self) -> None:
        """Joins; returns when the first assignment is being read. `async with` does this."""
        if self._closed:
            raise Closed("the consumer was closed")
        if self._starting is None:
            self._starting = self._client.spawn(self._start())
            self._starting.add_done_callback(mark_retrieved)
        await asyncio.shield(self._starting)

    def _topics_found(self) -> bool:
        """Whether it waits for no topic."""
        return self._member.topics_found()

    async def _start(self) -> None:
        await self._create_topics()
        await self._member.start()
        self._ticker = self._client.spawn(self._tick())
        first = [one.begun for one in self._assigned.values() if one.reader is None]
        reading = self._client.spawn(self._fetcher.start())
        reading.add_done_callback(mark_retrieved)
        # A partition that cannot be read now must not block the others.
        await asyncio.wait({*first, reading}, timeout=limits.FIRST_POSITION_MS / 1000)
        if reading.done():
            reading.result()

    async def close(self) -> None:
        """Commits processed records and leaves the group. A static member, one with an `instance`, keeps its partitions
        for the session timeout. The current record or batch is not processed, unless the `async with` block ends
        without an error."""
        if self._closed:
            return
        self._closed = True
        if self._ticker is not None:
            self._ticker.cancel()
        if self._member.state.member:
            await self._revoke(list(self._assigned.values()))
            await self._last_commit()
        await self._member.leave(farewell=not self._static)
        await self._fetcher.close()
        await self._client.close()
        self._drop(None)

    async def _last_commit(self) -> None:
        try:
            async with asyncio.timeout(limits.LEAVE_TIMEOUT_MS / 1000):
                await self._commits.commit(self._due())
        except (CometError, TimeoutError) as error:
            log.warning("comet: group %s: last commit failed: %r", self.group, error, extra={"group": self.group})

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._handed_back()
        await self.close()

    # ---- committed offsets

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            self._commits.add(self._due())

    async def commit(self, handled: Handled | None = None) -> None:
        """Commits the offsets after these records or batches, or these offsets; without any, those after all records
        that were handed out. Returns once they are committed. Never moves a committed offset back.

        Raises StaleGeneration if a partition is no longer assigned to this member; uncommitted records come again.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await producer.publish("quotes", b"EURUSD 1.08")
        ...     async with comet.GroupConsumer(
        ...         address, "quotes", group="engine", start="earliest", auto_commit=False
        ...     ) as consumer:
        ...         record = await consumer.get()
        ...         await consumer.commit(record)
        ...         print(consumer.committed())
        >>> run(example)
        {TopicPartition(topic='quotes', partition=0): 1}
        """
        await self._commits.commit(self._offsets_to_commit(handled))

    def commit_soon(self, handled: Handled) -> None:
        """As `commit`, together with the next commit that is due, without waiting.

        >>> async def example(address: str) -> None:
        ...     async with comet.GroupConsumer(address, "quotes", group="engine", auto_commit=False) as consumer:
        ...         consumer.commit_soon([])
        >>> run(example)
        """
        self._commits.add(self._offsets_to_commit(handled))

    def _offsets_to_commit(self, handled: Handled | None) -> list[OffsetToCommit]:
        wanted = self.positions() if handled is None else offsets_of(handled)
        return [self._mark(self._assigned_partition(tp), offset) for tp, offset in wanted.items()]

    def _assigned_partition(self, tp: TopicPartition) -> MemberPartition:
        assigned = self._assigned.get(tp)
        if assigned is None:
            raise StaleGeneration(f"{tp.topic}/{tp.partition} is not assigned to this member")
        return assigned

    def offsets_to_commit(self, handled: Handled | None = None) -> groups_pb.Commit:
        """The request by which a transaction commits these offsets with its outputs, in this member's name. It is
        refused if a committed offset is beyond the one this member knows, so that no record counts twice.

        >>> async def example(address: str) -> None:
        ...     async with comet.GroupConsumer(address, "quotes", group="engine") as consumer:
        ...         print(consumer.offsets_to_commit({("quotes", 0): 5}).topics[0].offsets[0].offset)
        >>> run(example)
        5
        """
        if handled is not None and not isinstance(handled, Record | RecordBatch | Mapping):
            handled = list(handled)  # iterated twice
        expected = {**self.committed(), **begins_of(handled)}
        entries = [entry._replace(expected=expected.get(entry.tp)) for entry in self._offsets_to_commit(handled)]
        return commit_frame(self._member, entries)

    def were_committed(self, offsets: groups_pb.Commit) -> None:
        """Notes that a transaction has committed the result of `offsets_to_commit`.

        >>> async def example(address: str) -> None:
        ...     async with comet.GroupConsumer(address, "quotes", group="engine") as consumer:
        ...         consumer.were_committed(consumer.offsets_to_commit())
        >>> run(example)
        """
        for topic in offsets.topics:
            for entry in topic.offsets:
                assigned = self._assigned.get(TopicPartition(topic.topic, entry.partition))
                if assigned is not None:
                    self._was_committed(assigned.tp, assigned.assignment.since, entry.offset)

    def positions(self) -> dict[TopicPartition, int]:
        """Position per assigned partition: the offset of the next record.

        >>> async def example(address: str) -> None:
        ...     async with comet.GroupConsumer(address, "quotes", group="engine") as consumer:
        ...         print(consumer.positions())
        >>> run(example)
        {TopicPartition(topic='quotes', partition=0): 0}
        """
        return {
            tp: self._position(one.reader)
            for tp, one in sorted(self._assigned.items())
            if one.reader is not None and one.reader.position >= 0
        }

    def committed(self) -> dict[TopicPartition, int]:
        """Committed offset per assigned partition, as far as this member knows.

        >>> async def example(address: str) -> None:
        ...     async with comet.GroupConsumer(address, "quotes", group="engine") as consumer:
        ...         await consumer.commit()
        ...         print(consumer.committed())
        >>> run(example)
        {TopicPartition(topic='quotes', partition=0): 0}
        """
        return {tp: one.committed for tp, one in sorted(self._assigned.items()) if one.committed is not None}

    def lag(self) -> dict[TopicPartition, int]:
        """Number of unread records per partition, as far as the consumer knows.

        >>> async def example(address: str) -> None:
        ...     async with comet.GroupConsumer(address, "quotes", group="engine") as consumer:
        ...         print(consumer.lag())
        >>> run(example)
        {TopicPartition(topic='quotes', partition=0): 0}
        """
        at = self.positions()
        readers = self._fetcher.readers
        return {tp: max(readers[tp].high_watermark - at[tp], 0) for tp in at if tp in readers}

    async def seek(self, start: StartLike, *, partition: tuple[str, int] | None = None) -> None:
        """Sets the position in one partition or in all assigned ones. It never moves a committed offset back;
        `comet group reset` does that.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.GroupConsumer(address, "quotes", group="engine") as consumer:
        ...         await consumer.seek(1, partition=("quotes", 0))
        ...         print((await consumer.get()).value)
        >>> run(example)
        b'2'
        """
        await self.start()
        where = position(start, now_us=self._clock_us())
        tps = self._fetcher.readers if partition is None else [TopicPartition(*partition)]
        if partition is not None and partition not in self._fetcher.readers:
            raise PartitionNotFound(f"this member reads {sorted(map(tuple, self._fetcher.readers))}, not {partition}")
        await self._go_to(dict.fromkeys(tps, where))

    async def rewind(self) -> None:
        """Seeks to the committed offsets of all partitions: uncommitted records come again.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await producer.publish("quotes", b"EURUSD 1.08")
        ...     async with comet.GroupConsumer(address, "quotes", group="engine", start="earliest") as consumer:
        ...         print((await consumer.get()).offset)
        ...         await consumer.rewind()
        ...         print((await consumer.get()).offset)
        >>> run(example)
        0
        0
        """
        # A commit whose answer was lost may have succeeded, so the coordinator is asked.
        entries = await self._known_offsets(list(self._assigned.values())) or {}
        for (topic_id, partition), entry in entries.items():
            for assigned in self._assigned.values():
                if (assigned.assignment.topic_id, assigned.tp.partition) == (topic_id, partition):
                    assigned.committed = max(entry.offset, -1 if assigned.committed is None else assigned.committed)
        at = self.positions()
        wanted: dict[TopicPartition, Position] = {}
        for tp, assigned in self._assigned.items():
            offset = assigned.first if assigned.committed is None else assigned.committed
            if offset is not None and at.get(tp) != offset:
                wanted[tp] = AtOffset(offset)
        await self._go_to(wanted)

    async def _go_to(self, wanted: Mapping[TopicPartition, Position]) -> None:
        readers = [(self._fetcher.readers[tp], to) for tp, to in wanted.items() if tp in self._fetcher.readers]
        self._handed_back()
        for reader, _ in readers:
            self._drop(reader)
        for reader, where in readers:
            if not reader.retired:
                await self._fetcher.move(reader, where)

    # ---- identity

    @property
    def member(self) -> str:
        """The member id from the coordinator; empty while this is not a member."""
        return self._member.state.member

    @property
    def generation(self) -> int:
        """The group's generation: rises with every rebalance."""
        return self._member.state.generation

    def assignment(self) -> list[TopicPartition]:
        """The partitions assigned to this member.

        >>> async def example(address: str) -> None:
        ...     async with comet.GroupConsumer(address, "quotes", group="engine") as consumer:
        ...         print(consumer.assignment())
        >>> run(example)
        [TopicPartition(topic='quotes', partition=0)]
        """
        return sorted(self._assigned)

    def statistics(self) -> dict[str, int]:
        """Counters since the start, and the records buffered now.

        >>> async def example(address: str) -> None:
        ...     async with comet.GroupConsumer(address, "quotes", group="engine") as consumer:
        ...         print(consumer.statistics()["partitions"])
        >>> run(example)
        1
        """
        return {**super().statistics(), "commits": self._commits.sent, "generation": self.generation}
