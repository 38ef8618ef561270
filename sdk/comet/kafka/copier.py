"""Copies partitions of Kafka into topics of Comet: each chunk is written in transactions that also carry the positions.

    chunk of Kafka ─► for each block: send_many per partition, note = positions ─► commit ─► next chunk, read meanwhile

A commit without an answer is looked up: opening the transactional id again returns the last committed note. It also
fences another import of the same topics, which then finds positions that are not its own, and ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import comet
from comet.entities import TopicInfo
from comet.errors import CometError, Forbidden, InvalidArgument, RecordTooLarge, TransactionAborted
from comet.kafka.block import Chunk, KafkaRecords, PartitionBlock, blocks_of
from comet.kafka.reader import KafkaCluster, KafkaReader, Partition
from comet.kafka.topic_config import retention_text, settings_of, size_hint
from comet.producer.transaction import cause_of
from comet.types import AtTime, Earliest, Latest
from comet.units import count

ATTEMPTS: Final = 5  # of one transaction, each as long as the timeout of the producer
REOPEN_S: Final = 3600.0  # an id that is not opened for a week is forgotten


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """The choices of an import."""

    start: Earliest | Latest | AtTime
    follow: bool = False
    create: bool = True
    append: bool = False
    replicas: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # of created topics


@dataclass(slots=True)
class Copied:
    """What an import has done so far."""

    records: int = 0
    bytes: int = 0
    transactions: int = 0
    lag: int = 0
    carried_on: int = 0  # partitions that an earlier import had begun


class KafkaCopier:
    """One import. Owned by one task; `tell` gets remarks for the user, `progress` is called after each chunk."""

    def __init__(
        self,
        bootstrap: str,
        reader: KafkaReader,
        options: CopyOptions,
        *,
        tell: Callable[[str], None],
        progress: Callable[[Copied], None],
    ) -> None:
        self._bootstrap = bootstrap
        self._reader = reader
        self._options = options
        self._tell = tell
        self._progress = progress
        self._producer = comet.TransactionalProducer(bootstrap, "import-kafka", compression="lz4", name="import-kafka")
        self._open: PartitionBlock | None = None  # the block of the producer
        self._opened: dict[str, float] = {}  # the time at which each transactional id was opened
        self._aligned: dict[str, bool] = {}  # topics, and whether a record keeps its partition
        self._blocks: list[PartitionBlock] = []
        self.copied = Copied()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.close()

    async def run(self, cluster: KafkaCluster, topics: Sequence[str]) -> None:
        """Copies topics up to the ends that they have now, or without an end. Raises CometError."""
        async with comet.Admin(self._bootstrap) as admin:
            there = {one.name for one in await admin.list_topics()}
            missing = [topic for topic in topics if topic not in there]
            ask = missing and self._options.create and cluster.has_controller
            configs = await asyncio.to_thread(self._reader.configs, missing) if ask else {}
            for topic in topics:
                await self._prepare(admin, topic, cluster, configs.get(topic))
        await self._copy()

    # ---- before the first record

    async def _prepare(
        self, admin: comet.Admin, topic: str, cluster: KafkaCluster, config: Mapping[str, str] | None
    ) -> None:
        partitions = cluster.topics[topic]
        try:
            found: TopicInfo = await admin.describe_topic(topic)
        except comet.TopicNotFound:
            if not self._options.create:
                raise
            settings: dict[str, Any] = {**settings_of(config or {}), **self._options.settings}
            found = await admin.create_topic(topic, partitions=partitions, replicas=self._options.replicas, **settings)
            retention = retention_text(found.config)
            self._tell(f"{topic}: created with {count(partitions, 'partition')}; retention: {retention}")
        self._aligned[topic] = found.partition_count == partitions
        if not self._aligned[topic]:
            self._tell(
                f"{topic}: {count(partitions, 'partition')} in Kafka, {found.partition_count} in Comet: records go to "
                "partitions by their keys, and keep their order by key only"
            )
        used = {at for at, end in (await admin.offsets(topic, "latest")).items() if end > 0}
        for block in blocks_of(cluster.id, topic, partitions, found.id):
            await self._begin_block(block, used)

    async def _begin_block(self, block: PartitionBlock, used: set[int]) -> None:
        """Takes over the positions of an earlier import, and stores those of partitions that begin."""
        note = await self._note_of(block)
        block.next = block.read(note)
        written = used & set(block.partitions) if self._aligned[block.topic] else used
        if not note and written and not self._options.append:
            raise InvalidArgument(
                f"topic {block.topic!r} has records in Comet, and no position of an import: a copy could be its second",
                details={
                    "hint": "positions are kept for 7 days after the last run; copy nevertheless with --append, from "
                    "where you know with --start; or import into a new topic: comet topic delete NAME"
                },
            )
        self.copied.carried_on += len(block.next)
        moved = {}
        for at in block.partitions:
            moved[at] = await (self._checked(block, at) if at in block.next else self._start(block.topic, at))
        if moved != block.next:
            await self._commit(block, [], moved)
        self._blocks.append(block)

    async def _checked(self, block: PartitionBlock, at: int) -> int:
        """The position of an earlier import, or the first offset that Kafka still has."""
        low, high = await asyncio.to_thread(self._reader.bounds, (block.topic, at))
        position = block.next[at]
        if position > high:
            raise InvalidArgument(
                f"partition {at} of {block.topic!r} ends at offset {high} in Kafka, and was copied up to {position}: "
                "the topic was created again there",
                details={"hint": f"copy it into a new topic: comet topic delete {block.topic}, then the import again"},
            )
        if position < low:
            self._tell(
                f"{block.topic}: partition {at}: Kafka removed offsets {position} to {low - 1} before they were copied"
            )
        return max(position, low)

    async def _start(self, topic: str, at: int) -> int:
        low, high = await asyncio.to_thread(self._reader.bounds, (topic, at))
        match self._options.start:
            case Earliest():
                return low
            case Latest():
                return high
            case AtTime(timestamp_us):
                milliseconds = -(-timestamp_us // 1000)
                found = await asyncio.to_thread(self._reader.offset_at, (topic, at), milliseconds)
                return high if found is None else found

    # ---- records

    async def _copy(self) -> None:
        positions = {(block.topic, at): offset for block in self._blocks for at, offset in block.next.items()}
        ends = {at: (await asyncio.to_thread(self._reader.bounds, at))[1] for at in positions}
        self._reader.begin(positions, ends, follow=self._options.follow)
        reading = asyncio.create_task(asyncio.to_thread(self._reader.read))
        try:
            while True:
                chunk = await reading
                done = self._reader.done
                if not done:
                    reading = asyncio.create_task(asyncio.to_thread(self._reader.read))
                await self._write(chunk)
                self.copied.lag = 0 if done else self._reader.lag(self._positions())
                self._progress(self.copied)
                if done:
                    break
                await self._keep_ids()
        finally:
            await asyncio.wait([reading])  # its thread must not use a closed reader
        for (topic, at), offset in self._reader.held.items():
            self._tell(
                f"{topic}: partition {at}: a transaction is open in Kafka from offset {offset} on; run this again"
            )

    def _positions(self) -> dict[Partition, int]:
        return {(block.topic, at): offset for block in self._blocks for at, offset in block.next.items()}

    async def _write(self, chunk: Chunk) -> None:
        for block in self._blocks:
            parts = chunk.of(block)
            if parts:
                await self._commit(block, parts, {part.partition: part.next for part in parts})
                self.copied.records += sum(len(part.offsets) for part in parts)
        self.copied.bytes += chunk.bytes

    async def _commit(self, block: PartitionBlock, parts: Sequence[KafkaRecords], moved: Mapping[int, int]) -> None:
        """Writes records and the positions after them, once."""
        after = block.note(moved)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                if self._open is not block and await self._take_over(block, after):
                    break  # it was committed, and the answer is lost
                async with self._producer.transaction() as transaction:
                    for part in parts:
                        await self._send(transaction, part)
                    transaction.note(after)
                break
            except CometError as error:
                self._open = None
                if attempt == ATTEMPTS or not _passes(error):
                    raise
        self._opened[block.transactional_id] = asyncio.get_running_loop().time()
        block.next.update(moved)
        self.copied.transactions += 1

    async def _send(self, transaction: comet.Transaction, part: KafkaRecords) -> None:
        try:
            await transaction.send_many(
                part.topic, part.values, keys=part.keys, headers=part.headers, timestamps_us=part.timestamps_us,
                partition=part.partition if self._aligned[part.topic] else None,
            )  # fmt: skip
        except RecordTooLarge as error:
            raise _too_large(part, error) from error

    async def _note_of(self, block: PartitionBlock) -> bytes:
        """Opens the transactional id of a block, which fences another import, and returns its note."""
        self._open = None
        await self._producer.reopen(block.transactional_id)
        self._open = block
        self._opened[block.transactional_id] = asyncio.get_running_loop().time()
        return self._producer.note

    async def _take_over(self, block: PartitionBlock, after: bytes = b"") -> bool:
        """The same; whether `after` is committed. Raises Forbidden if another import has moved the positions; a note
        that was forgotten is empty."""
        note = await self._note_of(block)
        if note and note == after:
            return True
        if note and block.read(note) != block.next:
            self._open = None
            raise Forbidden(
                f"another import copies topic {block.topic!r} at the same time, and has moved its positions",
                details={"hint": "let one of them run: nothing is lost, and nothing was copied twice"},
            )
        return False

    async def _keep_ids(self) -> None:
        """Opens ids that were not used for an hour, so that they are not forgotten."""
        now = asyncio.get_running_loop().time()
        for block in self._blocks:
            if now - self._opened[block.transactional_id] >= REOPEN_S:
                await self._take_over(block)


def _passes(error: CometError) -> bool:
    """Whether another attempt may succeed: a fenced producer is told apart by the note."""
    cause = cause_of(error)
    if isinstance(cause, comet.ProducerFenced):
        return True
    return cause.retriable or error.outcome_unknown or cause.metadata_stale or isinstance(cause, TransactionAborted)


def _too_large(part: KafkaRecords, error: RecordTooLarge) -> RecordTooLarge:
    """The error with the record's place in Kafka, and the setting that takes it."""
    sizes = [len(value or b"") for value in part.values]
    at = max(range(len(sizes)), key=sizes.__getitem__)
    where = f"offset {part.offsets[at]} of partition {part.partition} of {part.topic!r} in Kafka"
    return RecordTooLarge(
        f"{where}: {error.message}", details=error.details | {"hint": size_hint(part.topic, sizes[at])}
    )
