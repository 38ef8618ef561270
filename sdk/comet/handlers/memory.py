"""Topics, a producer and transactions in memory, for `app.test()`.

send ─► MemoryLog: a batch with its offset ─► `arrived`, in order, for the handlers of the test

Values are encoded, checked and framed as they are for a broker; every topic has one partition. A transaction takes
offsets when it sends and shows its records when it commits; an aborted one leaves a gap, as in a log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from datetime import datetime
from random import Random
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from comet import records
from comet.errors import InvalidArgument, TransactionNotOpen
from comet.producer.delayed_record import Delay, DueTime, due_time, refused_in_transaction, schedule_id_of
from comet.producer.delivery import BulkDelivery, Delivery, ScheduledDelivery
from comet.producer.partitioner import HeaderPairs, header_pairs, key_bytes
from comet.producer.value_encoder import ValueEncoder
from comet.records import Batch
from comet.settings.topic import NO_LIMIT
from comet.types import Receipt, ReceiptRange, ScheduledReceipt, check_topic_name
from comet.values.record import Headers, Key, NewRecord, RecordBatch, unexpired
from comet.wire.record_ttl import check_ttl, expiry_column, expiry_of

_PARTITION: Final = 0


class MemoryLog:
    """The topics of a test. Owned by it."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self.clock_us = clock_us
        self.topics: dict[str, list[Batch]] = {}
        self.arrived: deque[tuple[str, Batch]] = deque()  # not handled yet
        self.delayed: list[MemorySchedule] = []  # not written yet
        self._ends: dict[str, int] = {}

    def batch(
        self, topic: str, values: Sequence[bytes | None], keys: Sequence[bytes | None],
        headers: Sequence[HeaderPairs], timestamps: Sequence[int], own: Sequence[int],
    ) -> Batch:  # fmt: skip
        """A batch with the next offsets of the topic, which is not visible yet. `own` is when its records expire."""
        base = self._ends.setdefault(check_topic_name(topic), 0)
        expiry = expiry_column(own, timestamps, values, NO_LIMIT)
        data = b"".join(records.encode(values, keys=keys, headers=headers, timestamps=timestamps, expiry=expiry))
        stamp = records.make_stamp(base, self.clock_us(), 1, records.read_header(data).length)
        self._ends[topic] = base + len(values)
        return records.decode(stamp + data[records.STAMP_BYTES :], stamped=True)

    def show(self, topic: str, batch: Batch) -> None:
        self.topics.setdefault(topic, []).append(batch)
        self.arrived.append((topic, batch))

    def read(self, topic: str, serde: Any = None) -> list[Any]:
        """The records of a topic."""
        batches: list[RecordBatch[Any]] = [
            RecordBatch(topic, _PARTITION, one, serde=serde) for one in self.topics.get(topic, ())
        ]
        alive = [unexpired(batch, self.clock_us()) for batch in batches]
        return [record for batch in alive if batch is not None for record in batch.records()]


class MemorySchedule(NamedTuple):
    """A delayed record of a test."""

    due_us: int
    id: str
    topic: str
    value: Any
    key: Key
    headers: HeaderPairs
    ttl_ms: int | None


class MemoryScheduledDelivery(ScheduledDelivery):
    """A delivery that is done."""

    __slots__ = ("_receipt",)

    def __init__(self, receipt: ScheduledReceipt) -> None:
        self._receipt = receipt

    def __await__(self) -> Generator[Any, None, ScheduledReceipt]:
        yield from ()
        return self._receipt

    def done(self) -> bool:
        return True

    def result(self) -> ScheduledReceipt:
        return self._receipt

    def exception(self) -> None:
        return None


class MemoryDelivery(Delivery):
    """A delivery that is done."""

    __slots__ = ("_receipt",)

    def __init__(self, receipt: Receipt) -> None:
        self._receipt = receipt

    def __await__(self) -> Generator[Any, None, Receipt]:
        yield from ()
        return self._receipt

    def done(self) -> bool:
        return True

    def result(self) -> Receipt:
        return self._receipt

    def exception(self) -> None:
        return None


class MemoryBulkDelivery(BulkDelivery):
    """A bulk delivery that is done."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: list[ReceiptRange]) -> None:
        self._ranges = ranges

    def __await__(self) -> Generator[Any, None, list[ReceiptRange]]:
        yield from ()
        return self._ranges

    def done(self) -> bool:
        return True

    async def outcomes(self) -> list[Any]:
        return list(self._ranges)

    def known(self) -> list[Any]:
        return list(self._ranges)


def check_partition(partition: int | None) -> None:
    if partition not in {None, _PARTITION}:
        raise InvalidArgument(f"topics of app.test() have one partition, 0, not {partition}")


class MemoryWriter:
    """Writes to the topics of a test; the methods are those of Producer and Transaction."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._encoder = ValueEncoder()

    def _write(self, topic: str, batch: Batch) -> None:
        self._log.show(topic, batch)

    async def send(
        self, topic: str, value: Any, *, key: Key = None, headers: Headers | None = None,
        timestamp_us: int | None = None, partition: int | None = None, ttl_ms: int | None = None,
    ) -> MemoryDelivery:  # fmt: skip
        many = await self.send_many(
            topic,
            [value],
            keys=[key],
            headers=[headers],
            timestamps_us=[timestamp_us],
            partition=partition,
            ttl_ms=ttl_ms,
        )
        (found,) = await many
        return MemoryDelivery(Receipt(topic, _PARTITION, found.first, found.append_time_us))

    async def send_many(
        self, topic: str, values: Sequence[Any], *, keys: Sequence[Key] | None = None,
        headers: Sequence[Headers | None] | None = None, partition: int | None = None,
        timestamp_us: int | None = None, timestamps_us: Sequence[int | None] | None = None,
        ttl_ms: int | None = None, ttls_ms: Sequence[int | None] | None = None,
    ) -> MemoryBulkDelivery:  # fmt: skip
        check_partition(partition)
        now_us = self._log.clock_us() if timestamp_us is None else timestamp_us
        count = len(values)
        times = [now_us if one is None else one for one in timestamps_us or [None] * count]
        ttls = [ttl_ms if one is None else one for one in ttls_ms or [None] * count]
        batch = self._log.batch(
            topic,
            list(self._encoder.encode_all(values)),
            [None if key is None else key_bytes(key) for key in keys or [None] * count],
            [[] if one is None else header_pairs(one) for one in headers or [None] * count],
            times,
            [expiry_of(at, None if ttl is None else check_ttl(ttl)) for at, ttl in zip(times, ttls, strict=True)],
        )
        self._write(topic, batch)
        header = batch.header
        return MemoryBulkDelivery([ReceiptRange(topic, _PARTITION, header.base_offset, count, header.append_time_us)])


class MemoryProducer(MemoryWriter):
    """The producer of an app in a test."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self._once: dict[str, list[Receipt]] = {}  # by idempotency key
        self._scheduled: dict[tuple[str, str], ScheduledReceipt] = {}

    async def send(  # type: ignore[override]  # also of a delayed record
        self, topic: str, value: Any, *, delay: Delay | None = None, due: datetime | None = None,
        schedule_id: str | None = None, **given: Any,
    ) -> MemoryDelivery | MemoryScheduledDelivery:  # fmt: skip
        if delay is None and due is None and schedule_id is None:
            return await super().send(topic, value, **given)
        return MemoryScheduledDelivery(self._schedule(topic, value, due_time(delay, due), schedule_id, **given))

    def _schedule(
        self, topic: str, value: Any, due: DueTime, schedule_id: str | None, *, key: Key = None,
        headers: Headers | None = None, partition: int | None = None, ttl_ms: int | None = None,
    ) -> ScheduledReceipt:  # fmt: skip
        """Keeps a delayed record for `AppTest.fire_delayed`."""
        check_partition(partition)
        chosen_id = schedule_id_of(schedule_id or f"test-{len(self._scheduled)}", Random(0))
        known = self._scheduled.get((topic, chosen_id))
        if known is not None:
            return replace(known, duplicate=True)
        due_us = due.at_us(self._log.clock_us())
        data, pairs = self._encoder.encode(value), header_pairs(headers or ())
        self._log.delayed.append(MemorySchedule(due_us, chosen_id, check_topic_name(topic), data, key, pairs, ttl_ms))
        receipt = self._scheduled[topic, chosen_id] = ScheduledReceipt(topic, chosen_id, due_us)
        return receipt

    async def fire_delayed(self) -> None:
        """Writes the delayed records, as brokers do."""
        delayed, self._log.delayed = sorted(self._log.delayed), []
        for one in delayed:
            about = [("id", one.id), ("due", str(one.due_us)), ("count", "1")]
            headers = [*one.headers, *((f"comet-schedule-{name}", text.encode()) for name, text in about)]
            await super().send(
                one.topic, one.value, key=one.key, headers=headers, timestamp_us=one.due_us, ttl_ms=one.ttl_ms
            )

    async def publish(self, topic: str, value: Any, **given: Any) -> Any:
        return await (await self.send(topic, value, **given))

    async def publish_once(
        self, topic: str, records: Sequence[NewRecord], *, idempotency_key: str, **_: Any
    ) -> list[Receipt]:
        found = self._once.get(idempotency_key)
        if found is not None:
            return [Receipt(one.topic, one.partition, one.offset, one.append_time_us, True) for one in found]
        found = self._once[idempotency_key] = [
            await self.publish(
                topic, one.value, key=one.key, headers=one.headers, timestamp_us=one.timestamp_us, ttl_ms=one.ttl_ms
            )
            for one in records
        ]
        return found

    async def flush(self) -> None:
        """All is written already."""

    async def close(self) -> None:
        """Holds nothing."""


class MemoryTransaction(MemoryWriter):
    """A transaction of a test: what it sends becomes visible when it is committed, or not at all."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.state = "open"
        self._sent: list[tuple[str, Batch]] = []

    def _write(self, topic: str, batch: Batch) -> None:
        if self.state != "open":
            raise TransactionNotOpen(f"the transaction is {self.state}")
        self._sent.append((topic, batch))

    async def send(
        self, topic: str, value: Any, *, delay: Delay | None = None, due: datetime | None = None, **given: Any
    ) -> MemoryDelivery:
        if delay is not None or due is not None:
            raise refused_in_transaction()
        return await super().send(topic, value, **given)

    async def commit_offsets(self, consumer: Any, positions: Any = None) -> None:
        """A test has no committed offsets."""

    def note(self, note: bytes) -> None:
        """A test keeps no notes."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.state = "committed" if error is None else "aborted"
        if error is None:
            for topic, batch in self._sent:
                self._log.show(topic, batch)
