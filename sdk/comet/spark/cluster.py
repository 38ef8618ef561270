"""The driver's requests to brokers: the partitions, and their offsets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from random import Random
from typing import Any, Final, TypeVar

import comet
from comet import patterns
from comet.client.retry import Backoff
from comet.entities import TopicInfo
from comet.errors import (
    CometError,
    CorruptRecords,
    DataLoss,
    InvalidArgument,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicNotFound,
    Truncated,
)
from comet.spark.connection_options import ConnectionOptions
from comet.spark.options import EARLIEST, LATEST, Ends, SourceOptions
from comet.spark.planning import NO_EPOCH, Marks, OffsetAndEpoch
from comet.types import AtTime, StartLike, TopicPartition, is_internal_topic

log = logging.getLogger(__name__)
T = TypeVar("T")

AT_ONCE: Final = 64  # requests to brokers at once
TopicIds = Mapping[TopicPartition, str]  # topic ids by partition
_GONE: Final = (OffsetOutOfRange, Truncated, DataLoss, TopicNotFound, PartitionNotFound)
_clients: dict[ConnectionOptions, Cluster] = {}


class Cluster:
    """The connections to one cluster, shared by a process. Created and used on the background loop."""

    def __init__(self, options: ConnectionOptions) -> None:
        addresses = options.addresses()
        self.admin = comet.Admin(addresses, timeout_ms=options.timeout_ms, name="spark")
        self.reader = comet.Reader(addresses, timeout_ms=options.timeout_ms, name="spark")

    @classmethod
    def of(cls, options: ConnectionOptions) -> Cluster:
        key = options.connection
        if key not in _clients:
            _clients[key] = cls(key)
        return _clients[key]

    # ---- which partitions

    async def partitions(self, options: SourceOptions, *, all_there: bool = True) -> dict[TopicPartition, str]:
        """The partitions that the options name, with the ids of their topics. With `all_there`, raises TopicNotFound or
        PartitionNotFound for a missing one."""
        topics = {topic.name: topic for topic in await self._topics(options)}
        if options.pattern:
            matches = patterns.compiled(options.pattern).fullmatch
            names = [name for name in topics if matches(name) and not is_internal_topic(name)]
        else:
            names = list(options.assigned or options.topics)
        found: dict[TopicPartition, str] = {}
        for name in names:
            if name not in topics:
                if all_there:
                    raise TopicNotFound(f"topic {name!r} does not exist", details={"topic": name})
                continue
            count = len(topics[name].partitions)
            wanted = options.assigned.get(name, range(count))
            strange = [one for one in wanted if one >= count]
            if strange and all_there:
                raise PartitionNotFound(f"topic {name!r} has no partition {strange[0]}, only {count} partitions")
            found |= {TopicPartition(name, one): topics[name].id.hex() for one in wanted if one < count}
        return dict(sorted(found.items()))

    async def check_compacted(self, tps: TopicIds, options: SourceOptions) -> None:
        """Raises InvalidArgument for a topic that is not compacted."""
        names = {tp.topic for tp in tps}
        for topic in await self._topics(options):
            if topic.name in names and not topic.config.compacts:
                raise InvalidArgument(
                    f"topic {topic.name!r} is not compacted, and a snapshot is of the keys of a compacted one: leave "
                    "out the option snapshot, or set the topic's cleanup_policy to compact",
                    details={"topic": topic.name},
                )

    async def _topics(self, options: SourceOptions) -> list[TopicInfo]:
        """Waits until a broker answers: a single broker may be restarting."""
        loop = asyncio.get_running_loop()
        give_up, backoff = loop.time() + options.timeout_ms / 1000, Backoff(Random())
        while True:
            try:
                return await self.admin.list_topics()
            except CometError as error:
                wait_s = backoff.next_s(error.retry_after_ms)
                if not error.retriable or loop.time() + wait_s >= give_up:
                    raise
            await asyncio.sleep(wait_s)

    # ---- offsets

    async def marks(
        self, tps: TopicIds, options: SourceOptions, at: StartLike, *, all_there: bool = True
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        """The offset of a position in each partition, with the epoch of the record before it if known. Leaves out
        deleted partitions, unless `all_there`. The offset of a time may be after an open transaction; a mark is never
        after the last readable offset."""

        async def find(tp: TopicPartition) -> OffsetAndEpoch | None:
            try:
                found = await self.reader.fetch(
                    *tp, at, records_max=1, bytes_max=1, isolation=_isolation(options),
                    topic_id=bytes.fromhex(tps[tp]),
                )  # fmt: skip
            except (TopicNotFound, PartitionNotFound):
                if all_there:
                    raise
                return None
            except CorruptRecords as error:  # reading there reports it
                return OffsetAndEpoch(int(error.details["first"]), NO_EPOCH, tps[tp])
            offset = min(found.first_offset, found.log_end)
            known = offset == found.next_offset and found.epoch is not None
            return OffsetAndEpoch(offset, found.epoch if known and found.epoch else NO_EPOCH, tps[tp])

        found = await _each(find, tps)
        return {tp: mark for tp, mark in found.items() if mark is not None}

    async def completed(self, marks: Marks) -> dict[TopicPartition, OffsetAndEpoch]:
        """The offsets, each with the epoch of the record before it, if it is known."""

        async def find(tp: TopicPartition) -> int:
            offset, _, topic_id = marks[tp]
            at = offset - 1
            try:
                found = await self.reader.fetch(
                    *tp, at, records_max=1, bytes_max=1, isolation="uncommitted", topic_id=bytes.fromhex(topic_id)
                )
            except _GONE:
                return NO_EPOCH  # reading there reports the loss
            batch = found.batches[0] if found.batches else None
            return batch.epoch if batch is not None and batch.first_offset == at else NO_EPOCH

        unknown = [tp for tp, mark in marks.items() if mark.epoch == NO_EPOCH and mark.offset > 0]
        epochs = await _each(find, unknown)
        return {tp: mark._replace(epoch=epochs.get(tp, mark.epoch)) for tp, mark in marks.items()}

    async def starts(
        self, tps: TopicIds, options: SourceOptions, otherwise: Ends
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        """The start offsets of a read, by its options."""
        return await self._named(tps, options, options.starting or otherwise, options.starting_ms)

    async def ends(self, tps: TopicIds, options: SourceOptions) -> dict[TopicPartition, OffsetAndEpoch]:
        """The end offsets of a read, by its options. Raises DataLoss for an offset beyond the log."""
        if options.ending == "latest" and options.ending_ms is None:
            return await self.marks(tps, options, "latest")
        found = await self._named(tps, options, options.ending, options.ending_ms)
        reached = await self.marks(tps, options, "latest")
        for tp, mark in found.items():
            last = reached[tp]
            if mark.offset > last.offset:
                problem = f"{tp.topic}/{tp.partition} ends at {last.offset}, before the requested {mark.offset}"
                if options.fail_on_loss:
                    raise DataLoss(problem, details={"topic": tp.topic, "partition": str(tp.partition)})
                log.warning("%s", problem)
            if mark.offset >= last.offset:
                found[tp] = last
        return await self.completed(found)

    async def check_reached(self, starts: Marks, ends: Marks, options: SourceOptions) -> None:
        """Raises DataLoss for a start after the log end. Records that are not yet readable count as part of the log."""
        for tp, mark in starts.items():
            if mark.offset <= ends[tp].offset:
                continue
            try:
                await self.reader.fetch(
                    *tp, mark.offset, records_max=1, bytes_max=1, topic_id=bytes.fromhex(mark.topic_id)
                )
            except CorruptRecords:
                continue  # the log has this offset
            except OffsetOutOfRange as error:
                problem = f"{tp.topic}/{tp.partition} ends before the start offset {mark.offset}: {error}"
                if options.fail_on_loss:
                    details = {"topic": tp.topic, "partition": str(tp.partition)}
                    raise DataLoss(problem, details=details) from error
                log.warning("%s", problem)

    async def _named(
        self, tps: TopicIds, options: SourceOptions, where: Ends, time_ms: int | None
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        if time_ms is not None:
            return await self.marks(tps, options, AtTime(time_ms * 1000))
        if not isinstance(where, Mapping):
            return await self.marks(tps, options, where)
        named = {TopicPartition(topic, one): at for topic, each in where.items() for one, at in each.items()}
        strangers = sorted(named.keys() - tps.keys())
        if strangers or len(named) < len(tps):
            tp = strangers[0] if strangers else min(tps.keys() - named.keys())
            fault = f"{tp.topic}/{tp.partition} {'is not read' if strangers else 'is missing'}"
            raise InvalidArgument(f"give offsets for exactly the partitions that are read: {fault}")
        found = {tp: OffsetAndEpoch(at, NO_EPOCH, tps[tp]) for tp, at in named.items()}
        for sign, position in ((EARLIEST, "earliest"), (LATEST, "latest")):
            there = {tp: tps[tp] for tp, at in named.items() if at == sign}
            found |= await self.marks(there, options, position)
        return found

    async def wait(self, after: Marks, options: SourceOptions) -> None:
        """Waits up to `wait_ms` for records after one of the marks."""
        if not after or not options.wait_ms:
            return
        waiting = [
            asyncio.ensure_future(
                self.reader.fetch(
                    tp.topic, tp.partition, mark.offset, records_max=1, bytes_max=1,
                    wait_ms=options.wait_ms, isolation=_isolation(options), topic_id=bytes.fromhex(mark.topic_id),
                )
            )
            for tp, mark in list(after.items())[:AT_ONCE]
        ]  # fmt: skip
        try:
            until = time.monotonic() + options.wait_ms / 1000
            left: set[asyncio.Future[comet.Fetched]] = set(waiting)
            while left:
                done, left = await asyncio.wait(
                    left, timeout=max(0.0, until - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
                )
                if not done or any(one.exception() is None and one.result().batches for one in done):
                    return
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    # ---- progress of groups

    async def report(self, group: str, marks: Marks) -> CometError | None:
        """Commits a stream's progress, so that its lag is visible. An error does not stop the stream."""
        try:
            done = await self.admin.commit_offsets(group, {tp: mark.offset for tp, mark in marks.items()})
        except CometError as error:
            return error
        return next((one.error for one in done if one.error is not None), None)


async def _each(
    call: Callable[[TopicPartition], Awaitable[T]], tps: Iterable[TopicPartition]
) -> dict[TopicPartition, T]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(tp: TopicPartition) -> T:
        async with gate:
            return await call(tp)

    wanted = list(tps)
    return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))


def _isolation(options: SourceOptions) -> Any:
    return "committed" if options.committed else "uncommitted"
