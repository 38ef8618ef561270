"""Writes columns of records to a topic, with a result for each record.

    columns ─► many: by partition ─► Producer.send_many, one call for each ─► runs of offsets
            ├► few ─► Producer.send, so that records of many requests share a batch ─► receipts
            └► delayed ─► Producer.send with their times ─► ids of schedules

A record that is too large, or an unknown partition, fails that record alone. An unknown topic is raised before any
write.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import comet
from comet.entities import TopicInfo
from comet.errors import CometError, PartitionNotFound, TopicNotFound
from comet.records import partition_for
from comet.types import Receipt, ScheduledReceipt
from comet_gateway.brokers.catalog import Catalog
from comet_gateway.http.problems import Problem
from comet_gateway.http.timeouts import until
from comet_gateway.schemas.records import NOT_DELAYED, Columns

_KEY: Final = re.compile(r"[!-~]{1,200}")

# Fewer records are sent one by one, and share a batch with those of other requests.
FEW: Final = 16

Indexes = Sequence[int]
T = TypeVar("T")


class WriteResult:
    """The result of a write in progress. After `wait`, `texts` has one JSON object for each record."""

    __slots__ = ("_bulk", "_single", "count", "failed", "problems", "texts")

    def __init__(self, count: int) -> None:
        self.count = count
        self.texts: list[str] = [""] * count
        self.failed = 0
        self.problems: dict[str, Problem] = {}  # by code: the first one
        self._single: list[tuple[int, comet.Delivery | comet.ScheduledDelivery]] = []
        self._bulk: list[tuple[Indexes, comet.BulkDelivery]] = []

    def add(self, index: int, delivery: comet.Delivery | comet.ScheduledDelivery) -> None:
        self._single.append((index, delivery))

    def add_many(self, indexes: Indexes, delivery: comet.BulkDelivery) -> None:
        self._bulk.append((indexes, delivery))

    def fail(self, indexes: Iterable[int], problem: Problem) -> None:
        text = f'{{"problem":{problem.body().decode()}}}'
        for index in indexes:
            self.texts[index] = text
            self.failed += 1
        self.problems.setdefault(problem.code, problem)

    def refuse(self) -> None:
        """Raises the problem if all records have the same."""
        if self.failed == self.count and len(self.problems) == 1:
            raise next(iter(self.problems.values()))

    def left(self) -> list[int]:
        """Records that are neither sent nor failed."""
        sent = {index for index, _ in self._single}.union(*(indexes for indexes, _ in self._bulk))
        return [index for index, text in enumerate(self.texts) if not text and index not in sent]

    async def wait(self, deadline: float) -> None:
        """Waits for the results, until the deadline. Raises only CancelledError."""
        try:
            async with asyncio.timeout_at(deadline):
                for _, delivery in self._single:
                    if not delivery.done():
                        await _settled(delivery)
                for _, bulk in self._bulk:
                    if not bulk.done():
                        await bulk.outcomes()
        except TimeoutError:
            pass
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Takes the known results, and ignores later errors, so that the producer does not raise them when closed."""
        for index, delivery in self._single:
            error = delivery.exception()
            if error is not None or not delivery.done():
                self.fail([index], _problem(error))
                continue
            self.texts[index] = _text(delivery.result())
        for indexes, bulk in self._bulk:
            at = 0
            for outcome in bulk.known():
                chosen = indexes[at : at + outcome.count]
                at += outcome.count
                if isinstance(outcome, comet.FailedRange):
                    self.fail(chosen, _problem(outcome.error))
                else:
                    self._run(chosen, outcome)
        self._single, self._bulk = [], []

    def _run(self, chosen: Indexes, written: comet.ReceiptRange) -> None:
        if written.first < 0:
            texts = [f'{{"partition":{written.partition}}}'] * written.count
        else:
            head = f'{{"partition":{written.partition},"offset":"'
            texts = [f'{head}{offset}"}}' for offset in written.offsets]
        if isinstance(chosen, range):
            self.texts[chosen.start : chosen.stop] = texts
        else:
            for index, text in zip(chosen, texts, strict=True):
                self.texts[index] = text


def _text(receipt: Receipt | ScheduledReceipt) -> str:
    if isinstance(receipt, ScheduledReceipt):
        duplicate = ',"duplicate":true' if receipt.duplicate else ""
        next_us = f',"next_us":"{receipt.next_us}"' if receipt.next_us is not None else ""
        return f'{{"schedule_id":"{receipt.id}"{next_us}{duplicate}}}'
    offset = f',"offset":"{receipt.offset}"' if receipt.offset >= 0 else ""
    return f'{{"partition":{receipt.partition}{offset}}}'


async def _settled(delivery: comet.Delivery | comet.ScheduledDelivery) -> None:
    with suppress(CometError):  # its own result has the error
        await delivery


def _problem(error: CometError | None) -> Problem:
    if error is None:
        return Problem("TIMEOUT", "no acknowledgement in time: the record may or may not have been written")
    return Problem.of(error)


async def write(
    producer: comet.Producer, catalog: Catalog, topic: str, columns: Columns, deadline: float
) -> WriteResult:
    """Passes records to the producer; waits only for space in its buffer. Raises TopicNotFound."""
    written = WriteResult(len(columns))
    try:
        indexes: Indexes = range(len(columns))
        if columns.delayed is not None:
            later = [index for index in indexes if columns.delayed[index] is not None]
            indexes = [index for index in indexes if columns.delayed[index] is None]
            await until(deadline, _one_by_one(producer, topic, columns, later, written))
        if len(indexes) <= FEW:
            await until(deadline, _one_by_one(producer, topic, columns, indexes, written))
        else:
            await until(deadline, _many(producer, catalog, topic, columns, indexes, written))
    except TimeoutError:
        detail = "no space in the producer's buffer in time: the record may or may not have been written"
        written.fail(written.left(), Problem("TIMEOUT", detail))
    except BaseException:
        written.abandon()
        raise
    return written


async def write_once(
    producer: comet.Producer, topic: str, columns: Columns, key: str, acks: comet.Acks, timeout_ms: int
) -> list[Receipt]:
    """Writes records unless an earlier request with the same key has. Writes all, or raises."""
    if not _KEY.fullmatch(key):
        raise Problem("INVALID_ARGUMENT", "an idempotency key must be 1 to 200 visible ASCII characters")
    if acks is comet.Acks.NONE:
        raise Problem("INVALID_ARGUMENT", 'an idempotency key needs acks=1 or acks="all": acks=0 is never acknowledged')
    if columns.delayed is not None:
        raise Problem(
            "INVALID_ARGUMENT", "an idempotency key is for records without a delay: give each delayed one a schedule_id"
        )
    records = list(_rows(columns))
    return await producer.publish_once(topic, records, idempotency_key=key, acks=acks, timeout_ms=timeout_ms)


def _rows(columns: Columns) -> Iterator[comet.NewRecord]:
    keys, headers, times, partitions = columns.keys, columns.headers, columns.timestamps_us, columns.partitions
    for index, value in enumerate(columns.values):
        yield comet.NewRecord(
            value,
            None if keys is None else keys[index],
            () if headers is None else headers[index],
            None if times is None else times[index],
            None if partitions is None else partitions[index],
            None if columns.ttls_ms is None else columns.ttls_ms[index],
        )


async def _one_by_one(
    producer: comet.Producer, topic: str, columns: Columns, indexes: Indexes, written: WriteResult
) -> None:
    values, keys, headers = columns.values, columns.keys, columns.headers
    times, partitions, ttls = columns.timestamps_us, columns.partitions, columns.ttls_ms
    for index in indexes:
        later = NOT_DELAYED if columns.delayed is None else columns.delayed[index] or NOT_DELAYED
        try:
            delivery = await producer.send(
                topic,
                values[index],
                key=None if keys is None else keys[index],
                headers=None if headers is None else headers[index],
                timestamp_us=None if times is None else times[index],
                partition=None if partitions is None else partitions[index],
                ttl_ms=None if ttls is None else ttls[index],
                delay=later.delay,
                due=later.due,
                schedule_id=later.schedule_id,
            )
        except TopicNotFound:
            raise
        except CometError as error:
            written.fail([index], Problem.of(error))
        else:
            written.add(index, delivery)


async def _many(
    producer: comet.Producer, catalog: Catalog, topic: str, columns: Columns, indexes: Indexes, written: WriteResult
) -> None:
    info = await catalog.topic(topic)
    taken = _fitting(info, columns.values, indexes, written)
    for partition, members in _by_partition(columns, taken, len(info.partitions)):
        try:
            bulk = await producer.send_many(
                topic,
                _chosen(columns.values, members),
                keys=columns.keys and _chosen(columns.keys, members),
                headers=columns.headers and _chosen(columns.headers, members),
                timestamps_us=columns.timestamps_us and _chosen(columns.timestamps_us, members),
                ttls_ms=columns.ttls_ms and _chosen(columns.ttls_ms, members),
                partition=partition,
            )
        except TopicNotFound:
            raise
        except CometError as error:
            if isinstance(error, PartitionNotFound):
                catalog.forget(topic)
            written.fail(members, Problem.of(error))
        else:
            written.add_many(members, bulk)


def _chosen(column: Sequence[T], indexes: Indexes) -> Sequence[T]:
    return column if len(indexes) == len(column) else [column[index] for index in indexes]


def _fitting(
    info: TopicInfo, values: Sequence[bytes | None], indexes: Indexes, written: WriteResult
) -> Indexes:  # fmt: skip
    """Those of the indexes whose records are small enough for the topic: a larger one must not block the others."""
    oversized = set(info.config.oversized(values)).intersection(indexes)
    for index in oversized:
        error = info.config.record_too_large(info.name, len(values[index] or b""))
        written.fail([index], Problem.of(error))
    if not oversized:
        return indexes
    return [index for index in indexes if index not in oversized]


def _by_partition(columns: Columns, taken: Indexes, partitions: int) -> Iterator[tuple[int | None, Indexes]]:
    """Indexes by partition, in order; None: the producer chooses the partition."""
    given, keys = columns.partitions, columns.keys
    if given is None and (keys is None or partitions == 1):
        yield None if keys is None else 0, taken
        return
    groups: dict[int | None, list[int]] = {}
    by_key: dict[bytes, int] = {}
    for index in taken:
        partition = None if given is None else given[index]
        if partition is None and keys is not None and (key := keys[index]) is not None:
            partition = by_key.get(key)
            if partition is None:
                partition = by_key[key] = partition_for(key, partitions)
        groups.setdefault(partition, []).append(index)
    yield from groups.items()
