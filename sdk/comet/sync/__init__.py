"""The synchronous API: producers, consumers and Admin for scripts, notebooks and threads.

They run the asynchronous classes on one event loop in a background thread that all of them share. Every method
may be called from any thread; one consumer is read by one thread at a time. Ctrl-C
interrupts a call that waits.

    with comet.sync.Producer("localhost:9092") as producer:
        producer.publish("quotes", b"EURUSD 1.08")
    with comet.sync.Consumer("localhost:9092", "quotes") as consumer:
        for record in consumer: ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, overload

from comet.admin import admin
from comet.admin.admin import TopicPage
from comet.admin.history import History
from comet.admin.recovery import ClusterRecovery
from comet.admin.results import (
    BrokerDrain,
    GroupDeletion,
    LeaderElection,
    PartitionMove,
    PartitionsAdded,
    RecordDeletion,
    Resumed,
    TopicAlteration,
    TopicDeletion,
)
from comet.client.client import Addresses
from comet.consumer import consumer
from comet.consumer.record import NewRecord, Record, RecordBatch
from comet.errors import SerdeError
from comet.groups.committed_offsets import CommitResult, CommittedOffset, Offsets
from comet.producer import delivery, producer
from comet.producer.partitioner import Headers, Key
from comet.sync.background import call, computed, made
from comet.sync.groups import GroupConsumer, ShareConsumer, ShareRecord, next_table, tables_of
from comet.sync.range_reader import Reader
from comet.sync.share import ShareClient
from comet.types import (
    Acks,
    ClusterInfo,
    GroupInfo,
    GroupSummary,
    LagPoint,
    PartitionLag,
    PartitionStatus,
    Receipt,
    ReceiptRange,
    ResetPartition,
    StartLike,
    TopicConfig,
    TopicInfo,
)

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "Admin",
    "BulkDelivery",
    "Consumer",
    "Delivery",
    "GroupConsumer",
    "Producer",
    "Reader",
    "ShareClient",
    "ShareConsumer",
    "ShareRecord",
    "call",
]  # fmt: skip

T = TypeVar("T")


class Delivery:
    """The delivery of a record that is being sent.

    >>> with comet.sync.Producer(address) as producer:
    ...     delivery = producer.send("quotes", b"EURUSD 1.08")
    ...     print(delivery.result().offset, delivery.done())
    0 True
    """

    __slots__ = ("_delivery",)

    def __init__(self, delivery: delivery.Delivery) -> None:
        self._delivery = delivery

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Waits for the receipt. Raises the record's error, and Timeout if there is no receipt in time."""
        return self._delivery.result() if self._delivery.done() else call(_wait(self._delivery), timeout_s)

    def done(self) -> bool:
        """Whether the outcome of the record is known."""
        return self._delivery.done()


async def _wait(delivery: delivery.Delivery) -> Receipt:
    return await delivery


async def _wait_bulk(delivery: delivery.BulkDelivery) -> list[ReceiptRange]:
    return await delivery


class BulkDelivery:
    """The deliveries of records that are being sent.

    >>> with comet.sync.Producer(address) as producer:
    ...     print(producer.send_many("quotes", [b"1", b"2"]).result()[0].count)
    2
    """

    __slots__ = ("_delivery",)

    def __init__(self, delivery: delivery.BulkDelivery) -> None:
        self._delivery = delivery

    def result(self, timeout_s: float | None = None) -> list[ReceiptRange]:
        """Waits for the receipts."""
        return call(_wait_bulk(self._delivery), timeout_s)

    def outcomes(self, timeout_s: float | None = None) -> list[ReceiptRange | delivery.FailedRange]:
        """Waits; returns the result of each run of records."""
        return call(self._delivery.outcomes(), timeout_s)

    def done(self) -> bool:
        """Whether the outcome of every record is known."""
        return self._delivery.done()


class Producer:
    """comet.Producer for synchronous code; takes the same settings.

    >>> with comet.sync.Producer(address, acks="all") as producer:
    ...     print(producer.publish("quotes", {"symbol": "EURUSD"}, key="EURUSD").offset)
    0
    """

    def __init__(self, addresses: Addresses, **settings: Any) -> None:
        self._producer: producer.Producer = call(made(producer.Producer, addresses, settings))

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Key = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Buffers a record; see comet.Producer.send."""
        return Delivery(
            call(
                self._producer.send(
                    topic, value, key=key, headers=headers, timestamp_us=timestamp_us, partition=partition
                )
            )
        )

    def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: Key = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        partition: int | None = None,
    ) -> Receipt:
        """Sends a record and waits until it is acknowledged."""
        return call(
            self._producer.publish(
                topic, value, key=key, headers=headers, timestamp_us=timestamp_us, partition=partition
            )
        )

    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        *,
        keys: Sequence[Key] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
        timestamp_us: int | None = None,
        timestamps_us: Sequence[int | None] | None = None,
    ) -> BulkDelivery:
        """Buffers many records at once, the fastest way to write; see comet.Producer.send_many."""
        return BulkDelivery(
            call(
                self._producer.send_many(
                    topic, values, keys=keys, headers=headers, partition=partition, timestamp_us=timestamp_us,
                    timestamps_us=timestamps_us,
                )
            )
        )  # fmt: skip

    def publish_once(
        self,
        topic: str,
        records: Sequence[NewRecord],
        *,
        idempotency_key: str,
        acks: Acks | Literal[0, 1, "all"] | None = None,
        timeout_ms: int | None = None,
    ) -> list[Receipt]:
        """Writes records once per idempotency key, also if it is called again; see comet.Producer.publish_once."""
        return call(
            self._producer.publish_once(
                topic, records, idempotency_key=idempotency_key, acks=acks, timeout_ms=timeout_ms
            )
        )

    def flush(self) -> None:
        """Waits until everything sent so far is acknowledged."""
        call(self._producer.flush())

    def statistics(self) -> dict[str, int]:
        """Counters since the start."""
        return self._producer.statistics()

    def close(self) -> None:
        """Flushes and closes."""
        call(self._producer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        call(self._producer.__aexit__(kind, error, traceback))


class Consumer(Generic[T]):
    """comet.Consumer for synchronous code; takes the same settings.

    >>> with comet.sync.Producer(address) as producer:
    ...     _ = producer.publish("quotes", {"symbol": "EURUSD"})
    >>> with comet.sync.Consumer(address, "quotes", type=dict) as consumer:
    ...     for record in consumer:
    ...         print(record.offset, record.value["symbol"])
    ...         break
    0 EURUSD
    """

    @overload
    def __init__(self, addresses: Addresses, topic: str, *, type: type[T], **settings: Any) -> None: ...
    @overload
    def __init__(self: Consumer[Any], addresses: Addresses, topic: str, *, type: Any, **settings: Any) -> None: ...
    @overload
    def __init__(self: Consumer[bytes], addresses: Addresses, topic: str, **settings: Any) -> None: ...
    def __init__(self, addresses: Addresses, topic: str, *, type: Any = None, **settings: Any) -> None:  # noqa: A002
        self._consumer: consumer.Consumer[T] = call(
            made(consumer.Consumer, addresses, {"topic": topic, "type": type, **settings})
        )
        self._batch: RecordBatch[T] | None = None
        self._records: Iterator[Record[T]] | None = None
        self._next_offset = -1  # of the batch that is being read record by record

    def __iter__(self) -> Iterator[Record[T]]:
        while True:
            record = self.get()
            if record is not None:
                yield record

    def get(self, timeout_s: float | None = None) -> Record[T] | None:
        """The next record; None if none came in time."""
        while True:
            record = self._next_record()
            if record is not None:
                return record
            batch = call(self._consumer.get_batch(timeout_s))
            if batch is None:
                return None
            self._open(batch)

    def _open(self, batch: RecordBatch[T]) -> None:
        self._batch, self._records, self._next_offset = batch, batch.records(), batch.first_offset

    def _next_record(self) -> Record[T] | None:
        if self._records is None or self._batch is None:
            return None
        try:
            record = next(self._records, None)
        except SerdeError as error:
            self._next_offset = int(error.details["offset"]) + 1
            rest = self._rest()
            if rest is not None:
                self._open(rest)
            raise
        if record is None:
            self._batch = self._records = None
        else:
            self._next_offset = record.offset + 1
        return record

    def batches(self) -> Iterator[RecordBatch[T]]:
        """Iterates over whole batches, the fastest way to read."""
        while True:
            batch = self.get_batch()
            assert batch is not None, "without a time-out there is always one"
            yield batch

    def get_batch(self, timeout_s: float | None = None) -> RecordBatch[T] | None:
        """The next batch; None if none came in time."""
        return self._rest() or call(self._consumer.get_batch(timeout_s))

    def _rest(self) -> RecordBatch[T] | None:
        """The rest of a batch that was read record by record."""
        if self._batch is None:
            return None
        rest = self._batch.after(self._next_offset)
        self._batch = self._records = None
        return rest

    def arrow(
        self, *, columns: Iterable[str] | None = None, rows_max: int = 65_536, wait_ms: float = 1_000
    ) -> Iterator[pyarrow.Table]:
        """Iterates over tables of the records; see comet.Consumer.arrow."""
        tables = call(tables_of(self._consumer, columns, rows_max, wait_ms))
        if (rest := self._rest()) is not None:
            yield tables.of(rest)
        while True:
            yield call(next_table(tables))

    def positions(self) -> dict[int, int]:
        """Position per partition: the offset of the next record."""
        found = call(computed(self._consumer.positions))
        if self._batch is not None:
            found[self._batch.partition] = self._next_offset
        return found

    def lag(self) -> dict[int, int]:
        """Number of unread records per partition."""
        found, at = call(computed(lambda: (self._consumer.lag(), self._consumer.positions())))  # of one moment
        if self._batch is not None and self._batch.partition in found:
            found[self._batch.partition] += at[self._batch.partition] - self._next_offset
        return found

    def end_offsets(self) -> dict[int, int]:
        """End per partition: the offset after the last record."""
        return call(self._consumer.end_offsets())

    def seek(self, start: StartLike, *, partition: int | None = None) -> None:
        """Sets the position in one partition or in all; see comet.Consumer.seek."""
        call(self._consumer.seek(start, partition=partition))
        if self._batch is not None and partition in {None, self._batch.partition}:
            self._batch = self._records = None

    def statistics(self) -> dict[str, int]:
        """Counters since the start."""
        return call(computed(self._consumer.statistics))

    def close(self) -> None:
        """Ends the subscription."""
        call(self._consumer.close())

    def __enter__(self) -> Self:
        call(self._consumer.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Admin:
    """comet.Admin for synchronous code.

    >>> with comet.sync.Admin(address) as admin:
    ...     print(admin.create_topic("trades", partitions=2).name)
    ...     print([topic.name for topic in admin.list_topics()])
    trades
    ['quotes', 'trades']
    """

    def __init__(self, addresses: Addresses, **settings: Any) -> None:
        self._admin: admin.Admin = call(made(admin.Admin, addresses, settings))

    def create_topic(
        self, name: str, *, partitions: int = 1, replicas: int = 0, config: TopicConfig | None = None, **settings: Any
    ) -> TopicInfo:
        """Makes a topic."""
        return call(self._admin.create_topic(name, partitions=partitions, replicas=replicas, config=config, **settings))

    def list_topics(self) -> list[TopicInfo]:
        """All topics, by name."""
        return call(self._admin.list_topics())

    def find_topics(self, part: str = "", *, after: str = "", limit: int = 100) -> TopicPage:
        """Some topics, by name; see comet.Admin.find_topics."""
        return call(self._admin.find_topics(part, after=after, limit=limit))

    def describe_topic(self, name: str, *, broker: int | None = None) -> tuple[TopicInfo, list[PartitionStatus]]:
        """A topic and the replicas of its partitions on their leaders, or on one broker."""
        return call(self._admin.describe_topic(name, broker=broker))

    def alter_topic(self, name: str, *, dry_run: bool = False, **settings: Any) -> TopicAlteration:
        """Changes the given settings."""
        return call(self._admin.alter_topic(name, dry_run=dry_run, **settings))

    def delete_topic(self, name: str, *, dry_run: bool = False) -> TopicDeletion:
        """Deletes a topic and its records."""
        return call(self._admin.delete_topic(name, dry_run=dry_run))

    def add_partitions(self, name: str, total: int, *, dry_run: bool = False) -> PartitionsAdded:
        """Adds partitions to a topic, up to `total`."""
        return call(self._admin.add_partitions(name, total, dry_run=dry_run))

    def delete_records(
        self, name: str, partition: int, before_offset: int | None = None, *, dry_run: bool = False
    ) -> RecordDeletion:
        """Deletes the records before an offset, or all."""
        return call(self._admin.delete_records(name, partition, before_offset, dry_run=dry_run))

    def offsets(self, topic: str, at: StartLike = "latest") -> dict[int, int]:
        """The offset of a position, per partition."""
        return call(self._admin.offsets(topic, at))

    def list_groups(self) -> list[GroupSummary]:
        """All groups, by name."""
        return call(self._admin.list_groups())

    def describe_group(self, name: str) -> GroupInfo:
        """A group with its members, their assignments and lag."""
        return call(self._admin.describe_group(name))

    def group_lag(self, name: str, *, points_max: int = 300) -> tuple[list[PartitionLag], list[LagPoint]]:
        """The lag of a group now, per partition, and its history, per topic."""
        return call(self._admin.group_lag(name, points_max=points_max))

    def reset_group(
        self,
        name: str,
        to: StartLike | None = None,
        *,
        shift: int | None = None,
        offsets: Offsets | None = None,
        topics: Iterable[str | tuple[str, int]] = (),
        dry_run: bool = False,
    ) -> list[ResetPartition]:
        """Sets the committed offsets of a group without members; with `dry_run` only returns the effect."""
        return call(self._admin.reset_group(name, to, shift=shift, offsets=offsets, topics=topics, dry_run=dry_run))

    def group_offsets(self, name: str) -> list[CommittedOffset]:
        """The committed offsets of a group, by topic and partition."""
        return call(self._admin.group_offsets(name))

    def commit_offsets(self, name: str, positions: Offsets) -> list[CommitResult]:
        """Commits offsets of a group without members; a refusal is returned per partition."""
        return call(self._admin.commit_offsets(name, positions))

    def delete_group(self, name: str, *, dry_run: bool = False) -> GroupDeletion:
        """Deletes a group without members, with its committed offsets."""
        return call(self._admin.delete_group(name, dry_run=dry_run))

    def move_partition(
        self, name: str, partition: int, replicas: Sequence[int], *, dry_run: bool = False
    ) -> PartitionMove:
        """Reassigns a partition to brokers, the preferred leader first; returns once it is decided."""
        return call(self._admin.move_partition(name, partition, replicas, dry_run=dry_run))

    def elect_leader(
        self, name: str, partition: int, broker: int, *, accept_loss: bool = False, dry_run: bool = False
    ) -> LeaderElection:
        """Elects a replica leader of a partition without one, even if it lacks committed records."""
        return call(self._admin.elect_leader(name, partition, broker, accept_loss=accept_loss, dry_run=dry_run))

    def drain_broker(self, broker: int, *, undo: bool = False, dry_run: bool = False) -> BrokerDrain:
        """Drains a broker: it hands over its leadership."""
        return call(self._admin.drain_broker(broker, undo=undo, dry_run=dry_run))

    def resume(self, broker: int | None = None, *, dry_run: bool = False) -> Resumed:
        """Restarts parts that failed of an unexpected error, on one broker or all."""
        return call(self._admin.resume(broker, dry_run=dry_run))

    def recover_cluster(self, *, accept: str = "") -> ClusterRecovery:
        """Makes brokers accept a metadata store that went back in time or was emptied; without `accept` a dry run."""
        return call(self._admin.recover_cluster(accept=accept))

    def describe_cluster(self) -> ClusterInfo:
        """The brokers of the cluster."""
        return call(self._admin.describe_cluster())

    def statistics(
        self, broker: int | None = None, *, brief: bool = False, topics: bool = False, groups: bool = False
    ) -> dict[str, Any]:
        """The statistics of a broker."""
        return call(self._admin.statistics(broker, brief=brief, topics=topics, groups=groups))

    def history(
        self,
        broker: int | None = None,
        *,
        topics: Iterable[str] = (),
        every_topic: bool = False,
        groups: Iterable[str] = (),
        step_s: int = 1,
        since_us: int = 0,
    ) -> History:
        """The history of a broker's figures, and the events of the cluster."""
        return call(
            self._admin.history(
                broker, topics=topics, every_topic=every_topic, groups=groups, step_s=step_s, since_us=since_us
            )
        )

    def close(self) -> None:
        """Closes the connections."""
        call(self._admin.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
