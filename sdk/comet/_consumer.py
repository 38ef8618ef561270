"""The consumer: reads the partitions of a topic, each in order, and carries on where it was after any interruption.

    broker ─► Reader (per partition) ─► arrived (bytes, at most buffer_bytes) ─► batches ─► records
                                         ▲ credit goes back as the application takes

What has arrived stays undecoded until the application takes it. Checksums are verified then. A position moves only
when a record or batch is handed out, so `positions()` is always what a restart should begin with.

What keeps it subscribed is in _intake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from random import Random
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, overload

from comet import _limits as limits
from comet import records
from comet._client import Addresses, Client
from comet._feed import Reader
from comet._intake import Intake, OutOfRange
from comet._producer import wall_clock_us
from comet._record import Record, RecordBatch
from comet._replicas import ReadFrom
from comet._transport import Connect
from comet._wire import position_to_pb
from comet.errors import Closed, CorruptBatch, DataLoss, InvalidArgument, PartitionNotFound, SerdeError
from comet.types import Gap, Latest, StartLike, check_topic_name, position
from comet.v1 import events_pb2 as pb

T = TypeVar("T")
# After this much without waiting, other tasks of the loop get a turn.
_TURN_BYTES: Final = 256 << 10


class Consumer(Generic[T]):
    """Reads a topic, from all partitions or some. Async; `comet.sync.Consumer` is the same for synchronous code.

    `start` is "earliest", "latest", an offset, a time (datetime, or text such as "2026-01-31T12:00:00Z"), or a time ago
    (timedelta, or text such as "-15m"). `type` says what values are decoded to: an event class, dict, str, int …;
    without it they are bytes. At most `buffer_bytes` wait in memory to be taken.

    A position that the topic no longer holds raises OffsetOutOfRange, which says what was lost; with
    `on_out_of_range="earliest"` or `"latest"` the consumer logs it and goes on there. With `on_gap` it never stops for
    records that are not there, deleted, damaged or truncated: that is called with a Gap, and reading goes on behind it.

    `read_from` says which brokers it reads from: "leader", the leader of each partition; "any", all that are in sync,
    each for a share of the partitions; "nearest", one in the reader's `rack` where there is one, else the leader.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         for symbol in ("EURUSD", "USDJPY"):
    ...             await producer.send("quotes", {"symbol": symbol})
    ...     async with comet.Consumer(address, "quotes", start="earliest", type=dict) as consumer:
    ...         async for record in consumer:
    ...             print(record.offset, record.value["symbol"])
    ...             if record.offset == 1:
    ...                 break
    >>> run(example)
    0 EURUSD
    1 USDJPY
    """

    @overload
    def __init__(
        self: Consumer[bytes], addresses: Addresses, topic: str, *,
        start: StartLike = ..., partitions: Iterable[int] | None = ..., buffer_bytes: int = ...,
        on_out_of_range: OutOfRange = ..., on_gap: Callable[[Gap], None] | None = ...,
        read_from: ReadFrom = ..., rack: str = ..., name: str = ...,
        connect: Connect | None = ..., random: Random | None = ..., clock_us: Callable[[], int] = ...,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self, addresses: Addresses, topic: str, *, type: type[T],
        start: StartLike = ..., partitions: Iterable[int] | None = ..., buffer_bytes: int = ...,
        on_out_of_range: OutOfRange = ..., on_gap: Callable[[Gap], None] | None = ...,
        read_from: ReadFrom = ..., rack: str = ..., name: str = ...,
        connect: Connect | None = ..., random: Random | None = ..., clock_us: Callable[[], int] = ...,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: Consumer[Any], addresses: Addresses, topic: str, *, type: Any,
        start: StartLike = ..., partitions: Iterable[int] | None = ..., buffer_bytes: int = ...,
        on_out_of_range: OutOfRange = ..., on_gap: Callable[[Gap], None] | None = ...,
        read_from: ReadFrom = ..., rack: str = ..., name: str = ...,
        connect: Connect | None = ..., random: Random | None = ..., clock_us: Callable[[], int] = ...,
    ) -> None: ...  # fmt: skip
    def __init__(
        self,
        addresses: Addresses,
        topic: str,
        *,
        type: Any = None,  # noqa: A002 - the name users expect
        start: StartLike = "earliest",
        partitions: Iterable[int] | None = None,
        buffer_bytes: int = limits.CONSUMER_BUFFER_BYTES,
        on_out_of_range: OutOfRange = "raise",
        on_gap: Callable[[Gap], None] | None = None,
        read_from: ReadFrom = "leader",
        rack: str = "",
        name: str = "",
        connect: Connect | None = None,
        random: Random | None = None,
        clock_us: Callable[[], int] = wall_clock_us,
    ) -> None:
        if not limits.CONSUMER_BUFFER_BYTES_MIN <= buffer_bytes <= limits.CONSUMER_BUFFER_BYTES_MAX:
            raise InvalidArgument(
                f"buffer_bytes must be from {limits.CONSUMER_BUFFER_BYTES_MIN} to {limits.CONSUMER_BUFFER_BYTES_MAX}"
            )
        if on_out_of_range not in {"raise", "earliest", "latest"}:
            raise InvalidArgument(f'on_out_of_range is "raise", "earliest" or "latest", not {on_out_of_range!r}')
        self.topic = check_topic_name(topic)
        self._serde = None
        if type is not None:
            from comet.serde import codec_for

            self._serde = codec_for(type)
        self._clock_us = clock_us
        self._client = Client(addresses, name=name, connect=connect, random=random)
        self._intake = Intake(
            self._client,
            self.topic,
            start=position(start, now_us=clock_us()),
            partitions=None if partitions is None else sorted(set(partitions)),
            buffer_bytes=buffer_bytes,
            on_out_of_range=on_out_of_range,
            read_from=read_from,
            rack=rack,
            on_gap=on_gap,
        )
        self._readers = self._intake.readers
        self._delivery: Iterator[RecordBatch[T]] | None = None  # the batches of the delivery in hand
        self._batch: RecordBatch[T] | None = None  # the batch that is read record by record,
        self._records: Iterator[Record[T]] | None = None  # what is left of it,
        self._last: Record[T] | None = None  # and the record handed out last: the position lies behind it
        self._closed = False
        self._since_turn_bytes = 0
        self._received_records = 0

    # ---- life

    async def start(self) -> None:
        """Subscribes; when it returns, records produced from now on are seen. `async with` does this."""
        if self._closed:
            raise Closed("the consumer was closed")
        await self._intake.start()

    async def close(self) -> None:
        """Ends the subscription. What has arrived and was not taken is dropped; `positions()` stays readable."""
        if self._closed:
            return
        self._settle()
        self._closed = True
        await self._intake.close()
        await self._client.close()
        self._delivery = self._batch = self._records = None

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
        await self.close()

    # ---- record by record

    def __aiter__(self) -> Self:
        """Records, one by one, for as long as the consumer is open. Leaving and coming back loses nothing."""
        return self

    async def __anext__(self) -> Record[T]:
        while True:
            if self._records is not None:
                try:
                    record = next(self._records, None)
                except SerdeError as error:
                    self._skip_to(int(error.details["offset"]) + 1)
                    raise
                if record is not None:
                    self._last = record
                    return record
                self._finish_records()
            self._batch = await self._fetch_batch()
            self._records = self._batch.records()

    def _finish_records(self) -> None:
        assert self._batch is not None
        batch, self._batch, self._records, self._last = self._batch, None, None, None
        self._handed_out(batch)

    def _skip_to(self, offset: int) -> None:
        """Goes on behind a record that could not be decoded."""
        batch = self._batch
        assert batch is not None
        self._last = None
        self._readers[batch.partition].position = offset
        rest = batch.after(offset)
        self._batch, self._records = rest, None if rest is None else rest.records()

    async def get(self, timeout_s: float | None = None) -> Record[T] | None:
        """The next record; None if none came in time.

        >>> async def example(address: str) -> None:
        ...     async with comet.Consumer(address, "quotes") as consumer:
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

    def batches(self) -> Batches[T]:
        """Whole batches, the fastest way to read. `positions()` lies behind a batch once it is handed out.

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
        return Batches(self)

    async def get_batch(self, timeout_s: float | None = None) -> RecordBatch[T] | None:
        """The next batch; None if none came in time.

        >>> async def example(address: str) -> None:
        ...     async with comet.Consumer(address, "quotes") as consumer:
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
        batch = self._rest_of_batch() or await self._fetch_batch()
        self._handed_out(batch)
        return batch

    def _rest_of_batch(self) -> RecordBatch[T] | None:
        """What is left of a batch that was read record by record."""
        if self._batch is None:
            return None
        self._settle()
        rest = self._batch.after(self._readers[self._batch.partition].position)
        self._batch = self._records = None
        return rest

    async def _fetch_batch(self) -> RecordBatch[T]:
        """The next batch, checked. Raises what stops a partition, in its place among the batches."""
        while True:
            if self._delivery is not None:
                batch = next(self._delivery, None)
                if batch is not None:
                    return batch
                self._delivery = self._intake.in_hand = None
            if self._since_turn_bytes >= _TURN_BYTES:
                self._since_turn_bytes = 0
                await asyncio.sleep(0)  # whatever else runs on this loop gets its turn
            taken = self._intake.take()
            if taken is not None:
                self._since_turn_bytes += len(taken[1])
                self._intake.in_hand = taken[0]
                self._delivery = self._open(*taken)
                continue
            self._since_turn_bytes = 0
            await self._wait()

    async def _wait(self) -> None:
        if self._closed or not self._intake.started:
            await self.start()
        else:
            await self._intake.arrival()

    def _open(self, reader: Reader, batches: memoryview) -> Iterator[RecordBatch[T]]:
        """The batches of one delivery, without what lies before the position."""
        try:
            for batch in records.iterate(batches, check=True, stamped=True):
                expected = reader.position
                base = batch.header.base_offset
                if batch.header.next_offset <= expected:
                    continue
                if base > expected >= 0:
                    raise _hole(self.topic, reader.partition, expected, base)
                yield RecordBatch(
                    self.topic,
                    reader.partition,
                    batch,
                    skip=sum(offset < expected for offset in batch.offsets) if base < expected else 0,
                    high_watermark=reader.high_watermark,
                    leader_epoch=reader.leader_epoch,
                    serde=self._serde,
                )
        except CorruptBatch as error:
            if self._intake.passes(reader, error):
                return
            self._intake.stop(reader, error, again=True)
            raise CorruptBatch(
                f"{self.topic}/{reader.partition} at {reader.position}: what the broker sent is damaged; "
                f"reading on asks for it again: {error.message}",
                details={"topic": self.topic, "partition": str(reader.partition), "offset": str(reader.position)},
            ) from error
        except DataLoss as error:
            if not self._intake.passes(reader, error):
                self._intake.stop(reader, error, again=False)
                raise

    def _settle(self) -> None:
        """Brings the position up to date with the record that was handed out last."""
        last = self._last
        if last is not None:
            self._last = None
            self._readers[last.partition].position = last.offset + 1

    def _handed_out(self, batch: RecordBatch[T]) -> None:
        self._readers[batch.partition].position = batch.next_offset
        self._received_records += len(batch)

    # ---- where it is

    def positions(self) -> dict[int, int]:
        """Per partition the offset of the next record; what to give to `start` or `seek` to carry on.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await producer.publish("quotes", b"EURUSD 1.08")
        ...     async with comet.Consumer(address, "quotes", start="earliest") as consumer:
        ...         await consumer.get()
        ...         print(consumer.positions(), consumer.lag())
        >>> run(example)
        {0: 1} {0: 0}
        """
        self._settle()
        return {index: reader.position for index, reader in sorted(self._readers.items()) if reader.position >= 0}

    def lag(self) -> dict[int, int]:
        """Per partition how many records there are that were not read yet, as far as the consumer has heard.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.Consumer(address, "quotes") as consumer:
        ...         await consumer.get()
        ...         print(consumer.lag())
        >>> run(example)
        {0: 2}
        """
        self._settle()
        return {
            index: max(reader.high_watermark - reader.position, 0)
            for index, reader in sorted(self._readers.items())
            if reader.position >= 0
        }

    async def end_offsets(self) -> dict[int, int]:
        """Per partition the offset after the last record, asked for now.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2"]))
        ...     async with comet.Consumer(address, "quotes") as consumer:
        ...         print(await consumer.end_offsets())
        >>> run(example)
        {0: 2}
        """
        await self.start()

        async def end(partition: int) -> int:
            attachment = await self._client.attach(self.topic, partition)
            find = pb.FindOffset(partition=attachment.handle, position=position_to_pb(Latest()))
            answer = await attachment.connection.call(pb.ClientFrame(find_offset=find))
            return int(answer.found_offset.offset)

        partitions = sorted(self._readers)
        return dict(zip(partitions, await asyncio.gather(*map(end, partitions)), strict=True))

    async def seek(self, start: StartLike, *, partition: int | None = None) -> None:
        """Goes on reading elsewhere, in one partition or in all. Clears an error that had stopped it.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.Consumer(address, "quotes", start="latest") as consumer:
        ...         await consumer.seek(1, partition=0)
        ...         record = await consumer.get()
        ...         print(record.offset, record.value)
        >>> run(example)
        1 b'2'
        """
        await self.start()
        where = position(start, now_us=self._clock_us())
        if partition is not None and partition not in self._readers:
            raise PartitionNotFound(f"this consumer reads the partitions {sorted(self._readers)}, not {partition}")
        chosen = list(self._readers.values()) if partition is None else [self._readers[partition]]
        self._settle()
        for reader in chosen:
            if self._batch is not None and self._batch.partition == reader.partition:
                self._batch = self._records = None
            if self._intake.in_hand is reader:
                self._delivery = self._intake.in_hand = None
            await self._intake.move(reader, where)

    def statistics(self) -> dict[str, int]:
        """Counters since the start, and what waits to be taken now.

        >>> async def example(address: str) -> None:
        ...     async with comet.Consumer(address, "quotes") as consumer:
        ...         print(consumer.statistics()["buffered_bytes"])
        >>> run(example)
        0
        """
        return {
            "received_bytes": self._intake.received_bytes,
            "received_records": self._received_records,
            "buffered_bytes": sum(reader.queued_bytes for reader in self._readers.values()),
            "partitions": len(self._readers),
            "subscribed": sum(reader.feed is not None for reader in self._readers.values()),
            "reconnects": self._intake.reconnects,
        }


class Batches(Generic[T]):
    """Iterates over a consumer's batches."""

    __slots__ = ("_consumer",)

    def __init__(self, consumer: Consumer[T]) -> None:
        self._consumer = consumer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordBatch[T]:
        return await self._consumer._take_batch()


def _hole(topic: str, partition: int, first: int, end: int) -> DataLoss:
    return DataLoss(
        f"{topic}/{partition}: offsets {first} to {end - 1} are missing from what the broker sent",
        details={"topic": topic, "partition": str(partition), "first": str(first), "end": str(end)},
    )
