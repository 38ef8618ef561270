"""Iteration over the records of a fetcher: one by one, in batches or as tables. Shared by all kinds of consumers.

Deliveries stay undecoded until they are taken. Checksums are verified then, and columns checked. A position moves only
when a record or batch is handed out, or the error of one that cannot be read. Asking for the next one marks it as
processed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Self, TypeVar

from comet import records
from comet.consumer.broker_subscription import PartitionSubscription
from comet.consumer.contents import Opened, contents
from comet.consumer.fetcher import Fetcher
from comet.consumer.look_ahead import LookAhead
from comet.encryption.keyring import Keyring
from comet.errors import CometError, CorruptBatch, CorruptRecords, InvalidArgument, SerdeError
from comet.records.expiry import has_expired
from comet.types import TopicPartition
from comet.values.record import Record, RecordBatch, unexpired
from comet.wire.corrupt import range_of

if TYPE_CHECKING:
    import pyarrow

    from comet.filters import Filter
    from comet.tracing.spans import ReceiveSpans

T = TypeVar("T")
# After this much without waiting, other tasks of the loop get a turn.
_TURN_BYTES: Final = 256 << 10
_WAIT_MS_MAX: Final = 3_600_000
_FULL: Final = 2  # with half of the buffer in use there may be no credit for more
_BYTES_MAX: Final = 64 << 20  # of the values of a table, however well they were compressed


class RecordIterator(Generic[T]):
    """The base of Consumer and GroupConsumer: iterates over the fetcher's records. Used by one task."""

    _fetcher: Fetcher
    _clock_us: Callable[[], int]
    _receive_spans: Callable[[], ReceiveSpans | None]  # None: no tracer provider is set
    _rebalances: ClassVar[bool] = False  # partitions may be revoked while it reads

    def __init__(self, serde: Any, *, uncommitted: bool, keyring: Keyring | None, chosen: Filter | None = None) -> None:
        self._serde = serde
        self._keyring = keyring
        self._filter = chosen
        self._uncommitted = uncommitted
        self._delivery: tuple[PartitionSubscription, Iterator[Opened[T]]] | None = None  # what is left of it
        self._ahead: LookAhead[T] | None = None  # what was opened before its turn, for a synchronous program
        self._undecrypted: RecordBatch[T] | None = None  # the next batch of the delivery, if its keys are to be fetched
        self._reader: PartitionSubscription | None = None  # the partition of the batch in hand, or of the last one
        self._batch: RecordBatch[T] | None = None  # the batch that is read record by record,
        self._records: Iterator[Record[T]] | None = None  # what is left of it,
        self._last: Record[T] | None = None  # and the record handed out last: the position lies behind it
        # Partition and first offset of the batch, or undecodable record, that is in use.
        self._whole_from: tuple[PartitionSubscription, int] | None = None
        self._held: dict[PartitionSubscription, int] = {}  # the same for tables and corrupt records, by partition
        self._since_turn_bytes = 0
        self._received_records = 0

    async def start(self) -> None:
        """Subscribes, if it has not yet."""
        raise NotImplementedError

    # ---- record by record

    def __aiter__(self) -> Self:
        """Records, one by one, for as long as the consumer is open. Leaving and coming back loses nothing."""
        return self

    async def __anext__(self) -> Record[T]:
        while True:
            records_left = self._records
            if records_left is not None:
                try:
                    for record in records_left:  # takes one: `next` costs 15 ns more
                        self._last = record
                        return record
                except SerdeError as error:
                    self._skip_to(int(error.details["offset"]) + 1)
                    raise
                self._finish_records()
            self._handed_back()
            self._batch = batch = await self._fetch_batch()
            self._records = unexpired_records(batch, self._clock_us)

    def _finish_records(self) -> None:
        assert self._batch is not None
        batch, self._batch, self._records, self._last = self._batch, None, None, None
        self._handed_out(batch)

    def _skip_to(self, offset: int) -> None:
        """Continues after a record that could not be decoded."""
        assert self._batch is not None
        assert self._reader is not None
        self._last = None
        self._whole_from = self._reader, offset - 1  # the application has it in hand, as an error
        self._reader.position = offset
        rest = self._batch.after(offset)
        if rest is None:
            self._reader.position = self._batch.next_offset  # those behind it do not match the filter
        self._batch, self._records = rest, None if rest is None else unexpired_records(rest, self._clock_us)

    async def get(self, timeout_s: float | None = None) -> Record[T] | None:
        """The next record; None if none came in time.

        >>> async def example(address: str) -> None:
        ...     async with comet.Consumer(address, "quotes", start="earliest") as consumer:
        ...         print(await consumer.get(timeout_s=0.01))
        >>> run(example)
        None
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self.__anext__()
        except TimeoutError:
            return None

    # ---- batch by batch

    def batches(self, *, trace: bool = False) -> BatchIterator[T]:
        """Whole batches, the fastest way to read. `positions()` moves past a batch once it is handed out. With `trace`,
        each is a span of OpenTelemetry, with links to at most 128 contexts in which its records were made.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2"]))
        ...     async with comet.Consumer(address, "quotes", start="earliest") as consumer:
        ...         async for batch in consumer.batches():
        ...             print(batch.topic, batch.partition, batch.values)
        ...             break
        >>> run(example)
        quotes 0 [b'1', b'2']
        """
        return BatchIterator(self, self._receive_spans() if trace else None)

    def arrow(
        self, *, columns: Iterable[str] | None = None, rows_max: int = 65_536, wait_ms: float = 1_000
    ) -> TableIterator[T]:
        """The records as pyarrow.Table. A table ends at `rows_max` rows, `wait_ms` after its first row, or when the
        buffer is full. Columns are those of comet.read; with a model as the consumer's type, its fields. A table
        counts as handed out, and as processed, as a batch does.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.Consumer(address, "quotes", start="earliest") as consumer:
        ...         async for table in consumer.arrow(columns=["offset", "value"], rows_max=3):
        ...             print(table.num_rows, table["value"].to_pylist())
        ...             break
        >>> run(example)
        3 [b'1', b'2', b'3']
        """
        return TableIterator(self, columns, rows_max, wait_ms)

    async def get_batch(self, timeout_s: float | None = None) -> RecordBatch[T] | None:
        """The next batch; None if none came in time.

        >>> async def example(address: str) -> None:
        ...     async with comet.Consumer(address, "quotes", start="earliest") as consumer:
        ...         print(await consumer.get_batch(timeout_s=0.01))
        >>> run(example)
        None
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._take_batch()
        except TimeoutError:
            return None

    async def _take_batch(self) -> RecordBatch[T]:
        self._handed_back()
        batch = self._rest_of_batch() or await self._fetch_batch()
        assert self._reader is not None
        self._whole_from = self._reader, batch.first_offset
        self._handed_out(batch)
        return batch

    def _rest_of_batch(self) -> RecordBatch[T] | None:
        """What is left of a batch that was read record by record."""
        if self._batch is None:
            return None
        assert self._reader is not None
        rest = self._batch.after(self._reader.position)
        if rest is not None and rest.expiry is not None:
            end, rest = rest.next_offset, unexpired(rest, self._clock_us())
            if rest is None:
                self._reader.position = end
        self._batch = self._records = None
        return rest

    async def _fetch_batch(self) -> RecordBatch[T]:
        """The next batch, checked. Raises the error of a stopped partition after the batches before it."""
        while True:
            batch = self._in_delivery()
            if batch is not None:
                return batch
            if self._undecrypted is not None and self._undecrypted.encrypted is not None:
                await self._undecrypted.encrypted.decrypt()
                continue
            if self._since_turn_bytes >= _TURN_BYTES:
                self._since_turn_bytes = 0
                await asyncio.sleep(0)  # gives other tasks of this loop their turn
            if not self._next_delivery():
                self._since_turn_bytes = 0
                await self._arrival()

    def _here(self) -> RecordBatch[T] | None:
        """The next batch that has arrived, without waiting; None if there is none, or its keys are to be fetched."""
        while True:
            batch = self._in_delivery()
            if batch is not None or self._undecrypted is not None or not self._next_delivery():
                return batch

    def _in_delivery(self) -> RecordBatch[T] | None:
        """The next batch of the delivery; None if there is none, or it is kept until its keys were fetched. Raises
        CorruptRecords; the next call continues after them."""
        if self._ahead is not None:
            self._drop_recalled()
        elif self._delivery is None and self._undecrypted is None:
            return None
        while True:
            batch = self._undecrypted
            if batch is None:
                opened = self._next_opened()
                if opened is None:
                    return None
                self._reader, found = opened
                if isinstance(found, int):
                    self._reader.position = found
                    continue
                if isinstance(found, CometError):
                    self._fail(self._reader, found)
                    continue
                batch = found
            if batch.encrypted is None:
                return batch
            self._undecrypted = None if batch.encrypted.decrypt_at_once() else batch
            if self._undecrypted is not None:
                return None
            if self._filter is None:
                return batch
            matching = batch.pick(self._filter.rows(batch))
            if matching is not None:
                return matching
            assert self._reader is not None
            self._reader.position = batch.next_offset

    def _next_opened(self) -> Opened[T] | None:
        """The next part of the delivery; None at its end."""
        if self._ahead is not None and self._ahead.opened:
            reader, found = self._ahead.opened.popleft()
            if isinstance(found, RecordBatch) and found.expiry is not None:
                return reader, unexpired(found, self._clock_us()) or found.next_offset
            return reader, found
        if self._delivery is not None:
            for opened in self._delivery[1]:
                return opened
        self._delivery = None
        self._fetcher.in_hand.clear()
        return None

    def _fail(self, reader: PartitionSubscription, error: CometError) -> None:
        """Handles what is wrong with a delivery. Raises the error unless the policy passes over it."""
        if isinstance(error, CorruptRecords):
            # The position moves past them. Like a record, they count as processed once the application asks for more.
            first, reader.position = range_of(error)
            if self._fetcher.corrupt.passes(error):
                return
            self._held.setdefault(reader, first)
        elif self._fetcher.passes(reader, error):
            return
        else:
            self._fetcher.stop(reader, error, again=isinstance(error, CorruptBatch))
        if not isinstance(error, CorruptBatch):
            raise error
        raise CorruptBatch(
            f"{reader.topic}/{reader.partition} at offset {reader.position}: the delivery is damaged; "
            f"the next read requests it again: {error.message}",
            details={"topic": reader.topic, "partition": str(reader.partition), "offset": str(reader.position)},
        ) from error

    def _next_delivery(self) -> bool:
        taken = self._fetcher.queue.take()
        if taken is None:
            return False
        self._since_turn_bytes += len(taken[1])
        opened = contents(
            *taken, self._fetcher.in_hand, self._serde, self._keyring, self._uncommitted, self._filter, self._clock_us
        )
        self._delivery = taken[0], opened
        return True

    def _arrival(self) -> Awaitable[None]:
        return self._fetcher.queue.arrival() if self._fetcher.started else self.start()

    def _handed_back(self) -> None:
        """The application asks for more: marks the previous records as processed."""
        self._settle()
        self._whole_from = None
        self._held.clear()

    def _settle(self) -> None:
        """Brings the position up to date with the record that was handed out last."""
        last = self._last
        if last is not None:
            assert self._reader is not None
            self._last = None
            self._reader.position = last.offset + 1

    def _handed_out(self, batch: RecordBatch[T]) -> None:
        assert self._reader is not None
        self._reader.position = batch.next_offset
        self._received_records += len(batch)

    def _drop(self, reader: PartitionSubscription | None) -> None:
        """Drops the rest of a delivery of that partition; None: of all, for good."""
        if reader in (None, self._reader):
            self._undecrypted = self._batch = self._records = None
        if self._delivery is not None and reader in (None, self._delivery[0]):
            self._delivery = None
        if self._ahead is not None:
            self._ahead.drop(reader)
        if reader is not None:
            self._fetcher.in_hand.pop(reader, None)

    def _drop_recalled(self) -> None:
        """Does what was asked of a synchronous consumer while its program did not read."""
        ahead = self._ahead
        if ahead is not None and ahead.recalled:
            ahead.recalled = False
            dropped, ahead.dropped = ahead.dropped, []
            for reader in dropped:
                self._drop(reader)

    def statistics(self) -> dict[str, int]:
        """Counters since the start, and the state of the buffer.

        >>> async def example(address: str) -> None:
        ...     async with comet.Consumer(address, "quotes", start="earliest") as consumer:
        ...         print(consumer.statistics()["buffered_bytes"])
        >>> run(example)
        0
        """
        readers = self._fetcher.readers.values()
        return {
            "received_bytes": self._fetcher.queue.received_bytes,
            "received_records": self._received_records,
            "buffered_bytes": sum(reader.queued_bytes for reader in readers),
            "partitions": len(readers),
            "subscribed": sum(reader.subscription is not None for reader in readers),
            "reconnects": self._fetcher.subscriber.reconnects,
            "corrupt_batches": self._fetcher.corrupt.batches,
        }


class BatchIterator(Generic[T]):
    """Iterates over a consumer's batches."""

    __slots__ = ("_consumer", "_spans")

    def __init__(self, consumer: RecordIterator[T], spans: ReceiveSpans | None) -> None:
        self._consumer = consumer
        self._spans = spans

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordBatch[T]:
        batch = await self._consumer._take_batch()
        if self._spans is not None:
            self._spans.received(batch)
        return batch


class TableIterator(Generic[T]):
    """Iterates over a consumer's records as tables. Made by `consumer.arrow()`.

        wait for the first record ─► wait for more, up to wait_ms ─► take all at once ─► columns ─► a table

    Nothing is taken while it waits: a cancelled call loses nothing, and positions move with a table.
    """

    def __init__(
        self, consumer: RecordIterator[T], columns: Iterable[str] | None, rows_max: int, wait_ms: float
    ) -> None:
        from comet.values.arrow_columns import ArrowColumns  # here: it needs pyarrow

        if rows_max < 1:
            raise InvalidArgument(f"rows_max must be at least 1, not {rows_max!r}")
        if not 0 <= wait_ms <= _WAIT_MS_MAX:
            raise InvalidArgument(f"wait_ms must be from 0 to {_WAIT_MS_MAX}, not {wait_ms!r}")
        serde = consumer._serde
        self._columns = ArrowColumns(None if serde is None else serde.type, columns)
        self._consumer = consumer
        self._rows_max = rows_max
        self._wait_s = wait_ms / 1000
        self._failed: CometError | None = None  # to be raised after the last table

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns of its tables."""
        return self._columns.schema

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pyarrow.Table:
        consumer = self._consumer
        consumer._handed_back()
        if self._failed is not None:
            failed, self._failed = self._failed, None
            if isinstance(failed, CorruptRecords):
                self._hold(failed)
            raise failed
        while True:
            consumer._drop_recalled()
            ahead = consumer._ahead
            left = consumer._batch is not None or consumer._delivery is not None or (ahead and ahead.opened)
            if not left:  # else they are returned at once
                while not consumer._fetcher.queue.waiting(0):
                    await consumer._arrival()
                await self._more()
            if consumer._undecrypted is not None and consumer._undecrypted.encrypted is not None:
                await consumer._undecrypted.encrypted.decrypt()
            found = self._take()
            if found:
                return self._table(found)

    def _hold(self, error: CorruptRecords) -> None:
        """Marks corrupt records as handed out: the application gets their error only now."""
        tp = TopicPartition(error.details["topic"], int(error.details["partition"]))
        reader = self._consumer._fetcher.readers.get(tp)
        if reader is not None:
            self._consumer._held.setdefault(reader, range_of(error)[0])

    async def _more(self) -> None:
        """Waits until there are enough records for a table."""
        fetcher, seen, rows, size = self._consumer._fetcher, 0, 0, 0
        try:
            async with asyncio.timeout(self._wait_s):
                while True:
                    for one in fetcher.queue.waiting(seen):
                        if isinstance(one, CometError):
                            return
                        seen, rows, size = seen + 1, rows + _rows_in(one), size + len(one)
                    if rows >= self._rows_max or size * _FULL >= fetcher.options.buffer_bytes:
                        return
                    await fetcher.queue.arrival()
        except (TimeoutError, CometError):
            return  # the error that ended the consumer is raised when nothing is left to take

    def _take(self) -> list[pyarrow.RecordBatch]:
        """All records that have arrived, without an await. An error is raised after the rows before it."""
        found: list[pyarrow.RecordBatch] = []
        self._consumer._drop_recalled()
        rows_left, bytes_left = self._rows_max, _BYTES_MAX
        try:
            while rows_left > 0 and bytes_left > 0:
                batch = self._consumer._rest_of_batch() or self._consumer._here()
                if batch is None:
                    break
                made = self._made(batch, rows_left)
                found.append(made)
                rows_left -= made.num_rows
                bytes_left -= batch.size
                if made.num_rows < len(batch):
                    break
        except CometError as error:
            if not found:
                raise
            self._failed = error
        return found

    def _made(self, batch: RecordBatch[T], rows_max: int) -> pyarrow.RecordBatch:
        """The rows of the batch that fit and can be decoded; the rest stays in hand."""
        consumer = self._consumer
        part = batch if len(batch) <= rows_max else batch.before(batch.offsets[rows_max])
        assert part is not None, "there is room for one row at least"
        try:
            made = self._columns.of(part)
        except SerdeError as error:
            bad = int(error.details["offset"])
            good = part.before(bad)
            if good is None:
                consumer._batch = batch
                consumer._skip_to(bad + 1)
                raise
            part, made = good, self._columns.of(good)
        assert consumer._reader is not None
        consumer._held.setdefault(consumer._reader, part.first_offset)
        consumer._handed_out(part)
        rest = batch.after(part.next_offset)
        if rest is not None:
            consumer._batch, consumer._records = rest, _later(consumer, rest)
        return made

    def of(self, batch: RecordBatch[T]) -> pyarrow.Table:
        """A batch as a table."""
        return self._table([self._columns.of(batch)])

    def _table(self, found: list[pyarrow.RecordBatch]) -> pyarrow.Table:
        import pyarrow as pa  # here: if it is missing, the import of ArrowColumns has said what to install

        return pa.Table.from_batches([self._columns.together(found)])


def _later(consumer: RecordIterator[T], batch: RecordBatch[T]) -> Iterator[Record[T]]:
    """Its records, decoded at the first use."""
    yield from unexpired_records(batch, consumer._clock_us)


def unexpired_records(batch: RecordBatch[T], clock_us: Callable[[], int]) -> Iterator[Record[T]]:
    """The records of a batch, without those that expire before it is their turn."""
    expiry = batch.expiry
    return batch.records() if expiry is None else _in_time(batch.records(), expiry, clock_us)


def _in_time(found: Iterator[Record[T]], expiry: Sequence[int], clock_us: Callable[[], int]) -> Iterator[Record[T]]:
    for record, at in zip(found, expiry, strict=True):
        if not (at and has_expired(at, clock_us())):
            yield record


def _rows_in(batches: memoryview) -> int:
    at = rows = 0
    while at < len(batches):
        header = records.read_header(batches, at)
        rows += header.record_count
        at += header.length
    return rows
