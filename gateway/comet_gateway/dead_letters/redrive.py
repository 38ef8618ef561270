"""Redrives and discards dead letters at a bounded rate, until all are done or it is stopped.

    dead letter ─► read from its log ─► written to its topic, once (`publish_once`) ─► note behind the dead letter

After a crash between write and note, the next redrive writes again, and the broker answers that the record is there:
the dead letter's topic and offset are its idempotency key. So a record is written once as long as its partition
remembers the key, which is for the next 4096 other keys. Dead letters of one key, or of one partition if they have
none, are written in the order of their offsets. A stop waits for writes under way, which get their notes.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import comet
from comet.consumer.ranges import RangeSpec
from comet.errors import CometError, DataLoss, KeyReused
from comet.settings.topic import NO_LIMIT
from comet.types import Acks, Receipt, is_internal_topic
from comet_gateway.config import READ_WAIT_MS
from comet_gateway.dead_letters.dead_letter import (
    END,
    DeadLetter,
    DeadLetterOffset,
    DeadLetterState,
    Note,
    Pairs,
    note_for,
    once_key,
    redriven_headers,
)
from comet_gateway.dead_letters.index import DeadLetterIndex
from comet_gateway.http.problems import Problem

log = logging.getLogger(__name__)

QUEUES: Final = 16  # that write at once
WAITING_MAX: Final = 8  # in one queue
READ_MAX: Final = 500  # read at once, and done before more are read
READ_BYTES: Final = 8 << 20  # of their values, unless one alone is larger
TIMEOUT_MS: Final = 10_000  # of one write
REPORTED_MAX: Final = 100  # failures that are reported one by one
IN_A_ROW_MAX: Final = 50  # failures, then the run ends: the cause concerns all of them
PROGRESS_S: Final = 0.25  # between two lines of progress
FINISH_S: Final = 15.0  # for writes under way at a stop


@dataclass(frozen=True, slots=True)
class Edit:
    """Changes to one dead letter before it is written. Fields that are not in `given` stay."""

    given: frozenset[str] = frozenset()  # of value, key, headers
    value: bytes | None = None
    key: bytes | None = None
    headers: Pairs = field(default_factory=list)
    partition: int | None = None
    timestamp_us: int | None = None
    ttl_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `to` replaces the source topic of each. `partitions`: number of partitions of each topic."""

    state: DeadLetterState
    dead_letters: Sequence[DeadLetter]
    rate: float  # dead letters a second
    by: str
    to: str = ""
    edit: Edit | None = None
    partitions: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RedriveFailure:
    dead_letter: DeadLetter
    problem: Problem


@dataclass(frozen=True, slots=True)
class RedriveProgress:
    """Progress of a run. `already` were written by an earlier run that crashed before their notes."""

    dead_letters: int
    done: int
    already: int
    failed: int
    over: bool = False
    stopped: bool = False
    problem: Problem | None = None  # that ended the run


class Settling:
    """One run. Used by one task, which iterates over `events` to the end, or closes it before."""

    def __init__(
        self, topic_index: DeadLetterIndex, reader: comet.Reader, producer: comet.Producer, task: Task
    ) -> None:
        self._topic_index = topic_index
        self._reader = reader
        self._producer = producer
        self._task = task
        self._numbers: Counter[str] = Counter()
        self._in_a_row = 0
        self._failures: list[RedriveFailure] = []
        self._problem: Problem | None = None
        self._queues: list[asyncio.Queue[tuple[DeadLetter, comet.Record[bytes] | None] | None]] = []
        self._stop = asyncio.Event()

    def stop(self, problem: Problem | None = None) -> None:
        """Starts no more writes; `events` ends when those under way are done."""
        self._problem = self._problem or problem
        self._stop.set()

    async def events(self) -> AsyncGenerator[RedriveFailure | RedriveProgress]:
        self._queues = [asyncio.Queue(WAITING_MAX) for _ in range(QUEUES)]
        working = asyncio.create_task(self._work(), name="gateway: settle dead letters")
        try:
            while not working.done():
                yield self._progress()
                await asyncio.wait([working], timeout=PROGRESS_S)
                for failure in self._failures:
                    yield failure
                self._failures.clear()
            await working
            yield self._progress(over=True)
        finally:
            self._stop.set()
            # When closed early, too: writes under way get their notes.
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(working, return_exceptions=True), FINISH_S)

    def _progress(self, *, over: bool = False) -> RedriveProgress:
        numbers = self._numbers
        settled = numbers["done"] + numbers["already"] + numbers["failed"]
        return RedriveProgress(
            len(self._task.dead_letters), numbers["done"], numbers["already"], numbers["failed"], over,
            stopped=over and settled < len(self._task.dead_letters), problem=self._problem if over else None,
        )  # fmt: skip

    # ---- the work

    async def _work(self) -> None:
        workers = [
            asyncio.create_task(self._work_off(queue), name="gateway: a queue of dead letters")
            for queue in self._queues
        ]
        try:
            await self._hand_out()
        finally:
            for queue in self._queues:
                if self._stop.is_set():
                    while not queue.empty():
                        queue.get_nowait()
                        queue.task_done()
                await queue.put(None)
            await asyncio.gather(*workers)

    async def _hand_out(self) -> None:
        """Gives each queue its dead letters, at the requested rate."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        by_partition: defaultdict[int, list[DeadLetter]] = defaultdict(list)
        for dead_letter in self._task.dead_letters:
            by_partition[dead_letter.partition].append(dead_letter)
        for partition, dead_letters in by_partition.items():
            for some in portions(dead_letters):
                records = await self._read(partition, some) if self._task.state is DeadLetterState.REDRIVEN else {}
                for dead_letter in some:
                    if self._stop.is_set():
                        return
                    if dead_letter.state is not DeadLetterState.PENDING:  # settled meanwhile
                        self._numbers["already"] += 1
                        continue
                    queue = self._queues[_work_off(dead_letter)]
                    await _either(queue.put((dead_letter, records.get(dead_letter.offset))), self._stop)
                    due = max(due, loop.time() - 0.1) + 1 / self._task.rate
                    if due > loop.time():
                        await _either(asyncio.sleep(due - loop.time()), self._stop)
                await _either(asyncio.gather(*(queue.join() for queue in self._queues)), self._stop)

    async def _read(self, partition: int, dead_letters: Sequence[DeadLetter]) -> dict[int, comet.Record[bytes]]:
        wanted = {dead_letter.offset for dead_letter in dead_letters}
        found: dict[int, comet.Record[bytes]] = {}
        at, end = dead_letters[0].offset, dead_letters[-1].offset + 1
        while at < end and not self._stop.is_set():
            spec = RangeSpec(
                self._topic_index.topic, partition, at, end, topic_id=self._topic_index.topic_id,
                step_records_first=READ_MAX, step_bytes=READ_BYTES, wait_ms=READ_WAIT_MS,
            )  # fmt: skip
            reading = comet.RangeReader(self._reader, spec)
            try:
                parts = await reading.step()
            except CometError as error:
                self.stop(Problem.of(error))
                return found
            for part in parts:
                if not isinstance(part, comet.Gap):
                    found.update((record.offset, record) for record in part.records() if record.offset in wanted)
                elif isinstance(part.error, DataLoss) and not isinstance(part.error, comet.CorruptRecords):
                    self.stop(Problem.of(part.error))
                    return found
            at = max(reading.position or 0, at + 1)
            at = min((offset for offset in wanted if offset >= at), default=end)  # skips records that are not needed
        return found

    async def _work_off(self, queue: asyncio.Queue[tuple[DeadLetter, comet.Record[bytes] | None] | None]) -> None:
        while (one := await queue.get()) is not None:
            dead_letter, record = one
            try:
                if not self._stop.is_set():
                    await self._settle(dead_letter, record)
            except CometError as error:
                self._fail(dead_letter, Problem.of(error))
            except Problem as problem:
                self._fail(dead_letter, problem)
            except Exception:
                log.exception("a dead letter cannot be settled")
                self._fail(
                    dead_letter, Problem("INTERNAL", "unexpected error with this dead letter; see the gateway's log")
                )
            finally:
                queue.task_done()

    def _fail(self, dead_letter: DeadLetter, problem: Problem) -> None:
        self._numbers["failed"] += 1
        self._in_a_row += 1
        if self._numbers["failed"] <= REPORTED_MAX:
            self._failures.append(RedriveFailure(dead_letter, problem))
        if self._in_a_row >= IN_A_ROW_MAX:
            self.stop(problem)

    async def _settle(self, dead_letter: DeadLetter, record: comet.Record[bytes] | None) -> None:
        task, to, name = self._task, "", "done"
        if task.state is DeadLetterState.REDRIVEN:
            receipt = await self._write(dead_letter, record)
            to = "" if receipt is None else f"{receipt.topic}/{receipt.partition}/{receipt.offset}"
            name = "already" if receipt is None or receipt.duplicate else "done"
        key, headers = note_for(dead_letter, task.state, to=to, by=task.by)
        await self._producer.publish(
            self._topic_index.topic, None, key=key, headers=headers, partition=dead_letter.partition
        )
        self._topic_index.settle(
            Note(DeadLetterOffset(dead_letter.partition, dead_letter.offset), task.state, to, task.by)
        )
        self._numbers[name] += 1
        self._in_a_row = 0

    async def _write(self, dead_letter: DeadLetter, record: comet.Record[bytes] | None) -> Receipt | None:
        """Writes the record; None if an earlier run has written it."""
        if record is None:
            raise Problem("OFFSET_OUT_OF_RANGE", "the dead letter is no longer in the log")
        topic, new = rewritten(dead_letter, record, self._topic_index.topic, self._task)
        try:
            (receipt,) = await self._producer.publish_once(
                topic, [new], idempotency_key=once_key(self._topic_index.topic_id, dead_letter), acks=Acks.ALL,
                timeout_ms=TIMEOUT_MS,
            )  # fmt: skip
        except KeyReused:
            return None
        return receipt


def rewritten(
    dead_letter: DeadLetter, record: comet.Record[bytes], dead_letter_topic: str, task: Task
) -> tuple[str, comet.NewRecord]:
    """The new record and its topic: the same each time for the same dead letter and task. Raises Problem."""
    topic, edit = task.to or dead_letter.topic, task.edit or Edit()
    if "value" not in edit.given and any(name == END for name, _ in record.headers):
        source = f"{dead_letter.topic}/{dead_letter.source_partition}"
        detail = f"the dead letter marks a corrupt batch of {source}: it has no value"
        raise Problem("INVALID_ARGUMENT", detail, hint="Discard it.")
    if topic == dead_letter_topic:
        raise Problem("INVALID_ARGUMENT", f"a dead letter of {topic!r} cannot be redriven to the same topic")
    if is_internal_topic(topic):
        raise Problem("INVALID_ARGUMENT", f"{topic!r} is an internal topic")
    if topic not in task.partitions:
        raise Problem("TOPIC_NOT_FOUND", f"topic {topic!r} does not exist", hint="Redrive it to another topic.")
    partition = edit.partition
    if partition is None and topic == dead_letter.topic and "key" not in edit.given:
        # Its source partition, if that exists: in order with the records around it, with any partitioner.
        partition = dead_letter.source_partition if dead_letter.source_partition < task.partitions[topic] else None
    headers = redriven_headers(
        dead_letter, dead_letter_topic, edit.headers if "headers" in edit.given else record.headers
    )
    return topic, comet.NewRecord(
        edit.value if "value" in edit.given else record.value,
        edit.key if "key" in edit.given else record.key,
        headers,
        record.timestamp_us if edit.timestamp_us is None else edit.timestamp_us,
        partition,
        NO_LIMIT if edit.ttl_ms is None else edit.ttl_ms,  # with its old timestamp it might have expired already
    )


def portions(dead_letters: Sequence[DeadLetter]) -> Iterator[Sequence[DeadLetter]]:
    """Splits dead letters into portions that fit in memory, by count and bytes."""
    first, size = 0, 0
    for index, dead_letter in enumerate(dead_letters):
        if index > first and (index - first >= READ_MAX or size + dead_letter.size > READ_BYTES):
            yield dead_letters[first:index]
            first, size = index, 0
        size += dead_letter.size
    if first < len(dead_letters):
        yield dead_letters[first:]


def _work_off(dead_letter: DeadLetter) -> int:
    what = dead_letter.key if dead_letter.key is not None else b"%d" % dead_letter.source_partition
    return zlib.crc32(what, zlib.crc32(dead_letter.topic.encode())) % QUEUES


async def _either(work: object, stop: asyncio.Event) -> None:
    """Waits for the work, or until the run is stopped."""
    task = asyncio.ensure_future(work)  # type: ignore[call-overload]
    stopping = asyncio.create_task(stop.wait(), name="gateway: until it is stopped")
    try:
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in (task, stopping):
            one.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)
