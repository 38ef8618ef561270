"""GroupConsumer and ShareConsumer without async: the asynchronous ones, on the loop of comet.sync.

Their heartbeats are sent on that loop, so a program that computes for long stays a member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from comet.client.client import Addresses
from comet.consumer.iteration import RecordIterator
from comet.consumer.record import HeaderList, Record, RecordBatch
from comet.groups import group_consumer
from comet.groups.options import Handled
from comet.share import share_consumer
from comet.sync.background import call, computed, made
from comet.types import StartLike, TopicPartition

if TYPE_CHECKING:
    import pyarrow

    from comet.consumer.iteration import TableIterator

T = TypeVar("T")


async def tables_of(
    consumer: RecordIterator[T], columns: Iterable[str] | None, rows_max: int, wait_ms: float
) -> TableIterator[T]:  # fmt: skip
    return consumer.arrow(columns=columns, rows_max=rows_max, wait_ms=wait_ms)


async def next_table(tables: TableIterator[Any]) -> pyarrow.Table:
    return await anext(tables)


class GroupConsumer(Generic[T]):
    """comet.GroupConsumer for synchronous code; takes the same settings. Its callbacks are called on another thread.

    >>> with comet.sync.Producer(address) as producer:
    ...     _ = producer.publish("quotes", {"symbol": "EURUSD"})
    >>> with comet.sync.GroupConsumer(address, "quotes", group="engine", type=dict, start="earliest") as consumer:
    ...     for record in consumer:
    ...         print(record.offset, record.value["symbol"])
    ...         break
    0 EURUSD
    """

    @overload
    def __init__(self, addresses: Addresses, *topics: str, group: str, type: type[T], **settings: Any) -> None: ...
    @overload
    def __init__(
        self: GroupConsumer[Any], addresses: Addresses, *topics: str, group: str, type: Any, **settings: Any
    ) -> None: ...
    @overload
    def __init__(
        self: GroupConsumer[bytes], addresses: Addresses, *topics: str, group: str, **settings: Any
    ) -> None: ...
    def __init__(
        self,
        addresses: Addresses,
        *topics: str,
        group: str,
        type: Any = None,  # noqa: A002 - the name users expect
        **settings: Any,
    ) -> None:
        settings = {"group": group, "type": type, **settings}
        self._consumer: group_consumer.GroupConsumer[T] = call(
            made(group_consumer.GroupConsumer, addresses, settings, *topics)
        )

    def __iter__(self) -> Iterator[Record[T]]:
        while True:
            record = self.get()
            assert record is not None, "without a time-out there is always one"
            yield record

    def get(self, timeout_s: float | None = None) -> Record[T] | None:
        """The next record; None if none came in time. Marks the one before it as processed."""
        return call(self._consumer.get(timeout_s))

    def batches(self) -> Iterator[RecordBatch[T]]:
        """Iterates over whole batches, the fastest way to read."""
        while True:
            batch = self.get_batch()
            assert batch is not None, "without a time-out there is always one"
            yield batch

    def get_batch(self, timeout_s: float | None = None) -> RecordBatch[T] | None:
        """The next batch; None if none came in time. Marks the one before it as processed."""
        return call(self._consumer.get_batch(timeout_s))

    def arrow(
        self, *, columns: Iterable[str] | None = None, rows_max: int = 65_536, wait_ms: float = 1_000
    ) -> Iterator[pyarrow.Table]:
        """Iterates over tables; see comet.Consumer.arrow. The next one marks the one before it as processed."""
        tables = call(tables_of(self._consumer, columns, rows_max, wait_ms))
        while True:
            yield call(next_table(tables))

    def commit(self, handled: Handled | None = None) -> None:
        """Commits the offsets after these records, or after all that were handed out; see
        comet.GroupConsumer."""
        call(self._consumer.commit(handled))

    def commit_soon(self, handled: Handled) -> None:
        """As `commit`, together with the next commit that is due, without waiting."""
        call(computed(lambda: self._consumer.commit_soon(handled)))

    def rewind(self) -> None:
        """Seeks to the committed offsets of all partitions."""
        call(self._consumer.rewind())

    @property
    def member(self) -> str:
        """The member id from the coordinator; empty while this is not a member."""
        return self._consumer.member

    @property
    def generation(self) -> int:
        """The group's generation: rises with every rebalance."""
        return self._consumer.generation

    def positions(self) -> dict[TopicPartition, int]:
        """Position per assigned partition: the offset of the next record."""
        return call(computed(self._consumer.positions))

    def committed(self) -> dict[TopicPartition, int]:
        """Committed offset per assigned partition."""
        return call(computed(self._consumer.committed))

    def lag(self) -> dict[TopicPartition, int]:
        """Number of unread records per partition."""
        return call(computed(self._consumer.lag))

    def assignment(self) -> list[TopicPartition]:
        """The partitions assigned to this member."""
        return call(computed(self._consumer.assignment))

    def seek(self, start: StartLike, *, partition: tuple[str, int] | None = None) -> None:
        """Sets the position in one partition or in all; see comet.GroupConsumer.seek."""
        call(self._consumer.seek(start, partition=partition))

    def statistics(self) -> dict[str, int]:
        """Counters since the start."""
        return call(computed(self._consumer.statistics))

    def close(self) -> None:
        """Commits processed records, and leaves the group."""
        call(self._consumer.close())

    def __enter__(self) -> Self:
        call(self._consumer.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A generator that was left by `break` or `return` is not a failure.
        call(self._consumer.__aexit__(kind, error, traceback))


class ShareRecord(Generic[T]):
    """comet.ShareRecord for synchronous code: acknowledgements return once they are kept.

    >>> with comet.sync.Producer(address) as producer:
    ...     _ = producer.publish("quotes", b"EURUSD 1.08")
    >>> with comet.sync.ShareConsumer(address, "quotes", group="work", start="earliest") as consumer:
    ...     record = consumer.get()
    ...     print(record.value, record.delivery_count)
    ...     record.ack()
    b'EURUSD 1.08' 1
    """

    __slots__ = ("_record",)

    def __init__(self, record: share_consumer.ShareRecord[T]) -> None:
        self._record = record

    def __repr__(self) -> str:
        return repr(self._record)

    @property
    def topic(self) -> str:
        return self._record.topic

    @property
    def partition(self) -> int:
        return self._record.partition

    @property
    def offset(self) -> int:
        return self._record.offset

    @property
    def key(self) -> bytes | None:
        return self._record.key

    @property
    def value(self) -> T:
        return self._record.value

    @property
    def timestamp_us(self) -> int:
        return self._record.timestamp_us

    @property
    def headers(self) -> HeaderList:
        return self._record.headers

    @property
    def delivery_count(self) -> int:
        """The number of deliveries of the record, from 1."""
        return self._record.delivery_count

    def ack(self) -> None:
        """Accepts the record as done."""
        call(_wait(self._record.ack))

    def nack(self, delay_ms: int = 0) -> None:
        """Releases the record: it is delivered again."""
        call(_wait(self._record.nack, delay_ms))

    def reject(self, reason: str = "") -> None:
        """Rejects the record: it is never delivered again."""
        call(_wait(self._record.reject, reason))

    def extend(self) -> None:
        """Renews the record's lock."""
        call(_wait(self._record.extend))


async def _wait(call: Any, *arguments: Any) -> None:
    await call(*arguments)


class ShareConsumer(Generic[T]):
    """comet.ShareConsumer for synchronous code; takes the same settings.

    >>> with comet.sync.Producer(address) as producer:
    ...     _ = producer.send_many("quotes", [b"1", b"2"]).result()
    >>> with comet.sync.ShareConsumer(address, "quotes", group="work", start="earliest") as consumer:
    ...     for record in consumer:
    ...         print(record.value)
    ...         record.ack()
    ...         if record.offset == 1:
    ...             break
    b'1'
    b'2'
    """

    @overload
    def __init__(self, addresses: Addresses, *topics: str, group: str, type: type[T], **settings: Any) -> None: ...
    @overload
    def __init__(
        self: ShareConsumer[Any], addresses: Addresses, *topics: str, group: str, type: Any, **settings: Any
    ) -> None: ...
    @overload
    def __init__(
        self: ShareConsumer[bytes], addresses: Addresses, *topics: str, group: str, **settings: Any
    ) -> None: ...
    def __init__(
        self,
        addresses: Addresses,
        *topics: str,
        group: str,
        type: Any = None,  # noqa: A002 - the name users expect
        **settings: Any,
    ) -> None:
        settings = {"group": group, "type": type, **settings}
        self._consumer: share_consumer.ShareConsumer[T] = call(
            made(share_consumer.ShareConsumer, addresses, settings, *topics)
        )

    def __iter__(self) -> Iterator[ShareRecord[T]]:
        while True:
            record = self.get()
            assert record is not None, "without a time-out there is always one"
            yield record

    def get(self, timeout_s: float | None = None) -> ShareRecord[T] | None:
        """The next record; None if none came in time."""
        record = call(self._consumer.get(timeout_s))
        return None if record is None else ShareRecord(record)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member takes records from."""
        return call(computed(self._consumer.assignment))

    def statistics(self) -> dict[str, int]:
        """Counters since the start, and the number of records acquired now."""
        return call(computed(self._consumer.statistics))

    def close(self) -> None:
        """Leaves the group; unacknowledged records go to other members at once."""
        call(self._consumer.close())

    def __enter__(self) -> Self:
        call(self._consumer.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
