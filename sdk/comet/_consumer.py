"""The consumer: reads the partitions of a topic, each in order, and carries on where it was after any interruption.

    broker ─► Reader (per partition) ─► arrived (bytes, at most buffer_bytes) ─► batches ─► records
                                         ▲ credit goes back as the application takes

What has arrived stays undecoded until the application takes it. Checksums are verified then. A position moves only
when a record or batch is handed out, so `positions()` is always what a restart should begin with.

One task (`_supervise`) subscribes every partition that is not, whatever the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self, TypeVar, overload

from comet import _limits as limits
from comet import records
from comet._client import Addresses, Client
from comet._connection import Attachment, Connection
from comet._feed import Feed, Reader, end_of, window_for
from comet._producer import wall_clock_us
from comet._record import Record, RecordBatch
from comet._retry import Backoff
from comet._transport import Connect
from comet._wire import position_to_pb
from comet.errors import (
    Closed,
    CometError,
    CorruptBatch,
    DataLoss,
    InvalidArgument,
    OffsetOutOfRange,
    PartitionNotFound,
    SerdeError,
    Timeout,
    TopicNotFound,
)
from comet.types import AtOffset, Earliest, Latest, Position, StartLike, TopicInfo, check_topic_name, position
from comet.v1 import events_pb2 as pb

log = logging.getLogger("comet")

T = TypeVar("T")
OutOfRange = Literal["raise", "earliest", "latest"]

# After this much without waiting, other tasks of the loop get a turn.
_TURN_BYTES: Final = 256 << 10


class Consumer(Generic[T]):
    """Reads a topic, from all partitions or some. Async; `comet.sync.Consumer` is the same for synchronous code.

    `start` is "earliest", "latest", an offset, a time (datetime, or text such as "2026-01-31T12:00:00Z"), or a time ago
    (timedelta, or text such as "-15m"). `type` says what values are decoded to: an event class, dict, str, int …;
    without it they are bytes. At most `buffer_bytes` wait in memory to be taken.

    A position that the topic no longer holds raises OffsetOutOfRange, which says what was lost; with
    `on_out_of_range="earliest"` or `"latest"` the consumer logs it and goes on there.

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
        self: Consumer[bytes], addresses: Addresses, topic: str, *, start: StartLike = ..., partitions: Iterable[int] | None = ...,
        buffer_bytes: int = ..., on_out_of_range: OutOfRange = ..., name: str = ...,
        connect: Connect | None = ..., random: Random | None = ..., clock_us: Callable[[], int] = ...,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self, addresses: Addresses, topic: str, *, type: type[T], start: StartLike = ..., partitions: Iterable[int] | None = ...,
        buffer_bytes: int = ..., on_out_of_range: OutOfRange = ..., name: str = ...,
        connect: Connect | None = ..., random: Random | None = ..., clock_us: Callable[[], int] = ...,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: Consumer[Any], addresses: Addresses, topic: str, *, type: Any, start: StartLike = ..., partitions: Iterable[int] | None = ...,
        buffer_bytes: int = ..., on_out_of_range: OutOfRange = ..., name: str = ...,
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
        self._start = position(start, now_us=clock_us())
        self._wanted = None if partitions is None else sorted(set(partitions))
        self._serde = None
        if type is not None:
            from comet.serde import codec_for

            self._serde = codec_for(type)
        self._clock_us = clock_us
        self._buffer_bytes = buffer_bytes
        self._on_out_of_range = on_out_of_range
        self._client = Client(addresses, name=name, connect=connect, random=random)
        self._readers: dict[int, Reader] = {}
        self._feeds: dict[Connection, Feed] = {}
        # Deliveries, and errors in their place among them, with the generation of the reader they are for.
        self._queue: deque[tuple[Reader, int, memoryview | CometError]] = deque()
        self._broken: CometError | None = None  # nothing will ever come again
        self._current: tuple[Reader, int, Iterator[RecordBatch[T]]] | None = None
        self._batch: RecordBatch[T] | None = None
        self._records: Iterator[Record[T]] | None = None
        self._last: Record[T] | None = None  # the record handed out last; its partition's position follows from it
        self._arrival: asyncio.Future[None] | None = None
        self._wake: asyncio.Event | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._closed = False
        self._since_turn_bytes = 0
        self._received_bytes = self._received_records = self._reconnects = 0

    # ---- life

    async def start(self) -> None:
        """Subscribes; when it returns, records produced from now on are seen. `async with` does this."""
        self._check_open()
        if self._supervisor is not None:
            return
        loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._ready = loop.create_future()
        self._supervisor = loop.create_task(self._supervise(), name=f"comet: consume {self.topic}")
        self._supervisor.add_done_callback(self._supervisor_ended)
        await asyncio.shield(self._ready)

    async def close(self) -> None:
        """Ends the subscription. What has arrived and was not taken is dropped; `positions()` stays readable."""
        if self._closed:
            return
        self._settle()
        self._closed = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        self._arrive()
        await self._client.close()
        self._queue.clear()
        self._current = self._batch = self._records = None

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

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the consumer was closed")

    # ---- subscribing

    async def _supervise(self) -> None:
        """Subscribes whatever is not, and waits until something changes."""
        assert self._wake is not None
        assert self._ready is not None
        backoff = Backoff(self._client.random)
        info = await self._find_topic(backoff)
        self._add_readers(info)
        if self._wanted is None:
            self._client.watch(lambda: [self.topic], self._topic_changed)
        while True:
            self._wake.clear()
            error = await self._subscribe_all()
            if error is not None:
                self._reconnects += 1
                await asyncio.sleep(backoff.next_s(error.retry_after_ms))
                continue
            backoff.reset()
            if not self._ready.done():
                self._ready.set_result(None)
            await self._wake.wait()

    async def _find_topic(self, backoff: Backoff) -> TopicInfo:
        """The topic; raises TopicNotFound, and waits for a cluster that cannot be reached for CONNECT_TIMEOUT_MS."""
        give_up = asyncio.get_running_loop().time() + limits.CONNECT_TIMEOUT_MS / 1000
        while True:
            try:
                return await self._client.topic(self.topic)
            except CometError as error:
                if not error.retriable or asyncio.get_running_loop().time() >= give_up:
                    raise
                await asyncio.sleep(backoff.next_s(error.retry_after_ms))

    def _add_readers(self, info: TopicInfo) -> None:
        chosen = range(len(info.partitions)) if self._wanted is None else self._wanted
        for index in chosen:
            if not 0 <= index < len(info.partitions):
                raise PartitionNotFound(
                    f"topic {self.topic!r} has the partitions 0 to {len(info.partitions) - 1}, not {index}"
                )
            if index not in self._readers:
                self._readers[index] = Reader(index, self._start, self._arrived, self._troubled)

    def _topic_changed(self, info: TopicInfo) -> None:
        """Partitions that were added are read from their beginning: everything in them is new."""
        if info.name != self.topic or self._wanted is not None:
            return
        for index in range(len(info.partitions)):
            if index not in self._readers:
                self._readers[index] = Reader(index, Earliest(), self._arrived, self._troubled)
                self._rouse()

    async def _subscribe_all(self) -> CometError | None:
        """Tries once to subscribe every partition that should be; returns why some could not."""
        missing = [reader for reader in self._readers.values() if reader.wants_feed]
        if not missing:
            return None
        results = await asyncio.gather(*map(self._attach, missing), return_exceptions=True)
        problem: CometError | None = None
        by_connection: dict[Connection, list[tuple[Reader, Attachment]]] = {}
        for reader, result in zip(missing, results, strict=True):
            if isinstance(result, Attachment):
                by_connection.setdefault(result.connection, []).append((reader, result))
            elif isinstance(result, CometError):
                problem = self._judge(reader, result) or problem
            else:
                raise result
        brokers = len(by_connection.keys() | self._feeds.keys())
        for connection, chosen in by_connection.items():
            problem = await self._subscribe(connection, chosen, brokers) or problem
        return problem

    async def _attach(self, reader: Reader) -> Attachment:
        attachment = await self._client.attach(self.topic, reader.partition)
        if not reader.topic_id:
            reader.topic_id = attachment.topic_id
        elif reader.topic_id != attachment.topic_id:
            raise TopicNotFound(
                f"topic {self.topic!r} was deleted and made again: what is there now is another topic, "
                "so positions in the old one mean nothing; start a new consumer"
            )
        return attachment

    async def _subscribe(
        self, connection: Connection, chosen: list[tuple[Reader, Attachment]], brokers: int
    ) -> CometError | None:
        if connection.lost is not None:
            return connection.lost
        feed = self._feeds.get(connection)
        if feed is None:
            feed = self._feeds[connection] = Feed(connection, window_for(self._buffer_bytes, brokers))
            connection.on_lost(partial(self._lost, connection))
        try:
            await feed.subscribe(chosen)
        except CometError as error:
            if len(chosen) > 1 and not error.retriable:
                # One of them is to blame, and only it shall suffer.
                results = [await self._subscribe(connection, [one], brokers) for one in chosen]
                return next(filter(None, results), None)
            problem: CometError | None = None
            for reader, _ in chosen:
                problem = self._judge(reader, error) or problem
            return problem
        return None

    def _lost(self, connection: Connection, error: CometError) -> None:
        feed = self._feeds.pop(connection, None)
        if feed is None or self._closed:
            return
        if feed.readers:
            log.info("comet: %s: connection lost, reconnecting: %s", self.topic, error)
        for reader in list(feed.readers):
            reader.leave_feed()
        self._rouse()

    # ---- what can go wrong with one partition

    def _troubled(self, reader: Reader, error: CometError) -> None:
        """The broker ended a partition's subscription."""
        self._judge(reader, error)
        self._rouse()

    def _judge(self, reader: Reader, error: CometError) -> CometError | None:
        """Decides what an error means for a partition; returns it if trying again can help."""
        if error.retriable or error.metadata_stale or isinstance(error, Timeout):
            if error.metadata_stale:
                for connection in self._feeds:
                    connection.detach(self.topic, reader.partition)
            return error
        reader.stopped = error
        if reader.last is None and (self._current is None or self._current[0] is not reader) and self._resets(reader):
            return None
        self._queue.append((reader, reader.generation, error))
        self._arrive()
        return None

    def _resets(self, reader: Reader) -> bool:
        """Goes on elsewhere where the position is gone and the application said so beforehand."""
        if not isinstance(reader.stopped, OffsetOutOfRange) or self._on_out_of_range == "raise":
            return False
        log.warning(
            "comet: %s/%d: going on at %s: %s", self.topic, reader.partition, self._on_out_of_range, reader.stopped
        )
        reader.restart(Earliest() if self._on_out_of_range == "earliest" else Latest())
        self._rouse()
        return True

    def _stop(self, reader: Reader, error: CometError, *, again: bool) -> None:
        """What came for a partition cannot be used: drops it, and with `again` asks for it once more."""
        reader.generation += 1
        reader.stopped = error
        reader.paused = True
        where = AtOffset(reader.position)

        async def leave() -> None:
            await self._move(reader, where)
            if not again:
                reader.stopped = error
            self._rouse()

        self._client.spawn(leave())

    def _supervisor_ended(self, task: asyncio.Task[None]) -> None:
        """The supervisor never ends well: whoever waits is told why."""
        if task.cancelled():
            error: BaseException = Closed("the consumer was closed")
        else:
            error = task.exception() or Closed("the consumer was closed")
        assert self._ready is not None
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()
        elif not task.cancelled():
            if not isinstance(error, CometError):
                log.error("comet: consuming %s broke", self.topic, exc_info=error)
                error = CometError(f"consuming {self.topic!r} broke: {error!r}")
            self._broken = error
            self._arrive()

    def _rouse(self) -> None:
        if self._wake is not None:
            self._wake.set()

    # ---- arrival

    def _arrived(self, reader: Reader, batches: memoryview) -> None:
        self._received_bytes += len(batches)
        self._queue.append((reader, reader.generation, batches))
        if self._arrival is not None:
            self._arrive()

    def _arrive(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def _wait_for_arrival(self) -> None:
        """Until there is something in the queue, or an error. One waiter at a time."""
        if self._arrival is not None:
            raise InvalidArgument("this consumer is being read by another task already; give every task its own")
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            await self._arrival
        finally:
            self._arrival = None

    # ---- taking

    def _next_batch(self) -> RecordBatch[T] | None:
        """The next batch that has arrived, checked; None when there is none yet. Raises what stops a partition."""
        while True:
            if self._current is not None:
                reader, generation, batches = self._current
                batch = next(batches, None) if generation == reader.generation else None
                if batch is not None:
                    return batch
                self._current = None
            if not self._queue:
                return None
            reader, generation, arrived = self._queue.popleft()
            if isinstance(arrived, memoryview):
                self._take(reader, generation, arrived)
            elif generation == reader.generation and not self._resets(reader):
                arrived.details.update(topic=self.topic, partition=str(reader.partition))
                raise arrived.with_traceback(None)

    def _take(self, reader: Reader, generation: int, batches: memoryview) -> None:
        """Begins with the next delivery, and lets the broker send more in its place."""
        size = len(batches)
        self._since_turn_bytes += size
        reader.queued_bytes -= size
        if reader.last is batches:
            reader.fetch = end_of(batches)
            reader.last = None
        if reader.feed is not None:
            reader.feed.taken(size)
        if generation == reader.generation:
            self._current = (reader, generation, self._open(reader, batches))

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
            self._stop(reader, error, again=True)
            raise CorruptBatch(
                f"{self.topic}/{reader.partition} at {reader.position}: what the broker sent is damaged; "
                f"reading on asks for it again: {error.message}",
                details={"topic": self.topic, "partition": str(reader.partition), "offset": str(reader.position)},
            ) from error
        except DataLoss as error:
            self._stop(reader, error, again=False)
            raise

    async def _fetch_batch(self) -> RecordBatch[T]:
        """The next batch, waited for."""
        while True:
            self._check_open()
            if self._since_turn_bytes >= _TURN_BYTES:
                self._since_turn_bytes = 0
                await asyncio.sleep(0)  # whatever else runs on this loop gets its turn
            batch = self._next_batch()
            if batch is not None:
                return batch
            if self._broken is not None:
                raise self._broken.with_traceback(None)
            self._since_turn_bytes = 0
            await self._wait_for_arrival()

    def _settle(self) -> None:
        """Brings the position up to date with the record that was handed out last."""
        last = self._last
        if last is not None:
            self._last = None
            self._readers[last.partition].position = last.offset + 1

    def _handed_out(self, batch: RecordBatch[T]) -> None:
        self._readers[batch.partition].position = batch.next_offset
        self._received_records += len(batch)

    async def _start_if_new(self) -> None:
        if self._supervisor is None:
            await self.start()

    # ---- what the application calls

    async def __aiter__(self) -> AsyncIterator[Record[T]]:
        """Records, one by one, for as long as the consumer is open. Leaving and coming back loses nothing."""
        await self._start_if_new()
        while True:
            records = self._records
            if records is not None:
                try:
                    for record in records:
                        self._last = record
                        yield record
                        if self._records is not records:
                            break  # a seek, or another reader in between
                except SerdeError as error:
                    self._skip_to(int(error.details["offset"]) + 1)
                    raise
                if self._records is records:
                    self._finish_records()
            await self._open_records()

    async def _open_records(self) -> None:
        """Takes the next batch apart."""
        self._batch = await self._fetch_batch()
        self._records = self._batch.records()

    def _next_record(self) -> Record[T] | None:
        """The next record of the batch that is open; None when there is none."""
        if self._records is None:
            return None
        try:
            record = next(self._records, None)
        except SerdeError as error:
            self._skip_to(int(error.details["offset"]) + 1)
            raise
        if record is None:
            self._finish_records()
        else:
            self._last = record
        return record

    def _finish_records(self) -> None:
        batch, self._batch, self._records, self._last = self._batch, None, None, None
        if batch is not None:
            self._handed_out(batch)

    def _skip_to(self, offset: int) -> None:
        """Goes on behind a record that could not be decoded."""
        self._settle()
        batch = self._batch
        assert batch is not None
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
        await self._start_if_new()
        record = self._next_record()
        if record is not None:
            return record
        try:
            async with asyncio.timeout(timeout_s):
                while record is None:
                    await self._open_records()
                    record = self._next_record()
        except TimeoutError:
            return None
        return record

    async def get_batch(self, timeout_s: float | None = None) -> RecordBatch[T] | None:
        """The next batch; None if none came in time.

        >>> async def example(address: str) -> None:
        ...     async with comet.Consumer(address, "quotes") as consumer:
        ...         print(await consumer.get_batch(timeout_s=0.01))
        >>> run(example)
        None
        """
        await self._start_if_new()
        batch = self._rest_of_batch() or self._next_batch()
        if batch is None:
            try:
                async with asyncio.timeout(timeout_s):
                    batch = await self._fetch_batch()
            except TimeoutError:
                return None
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

    async def batches(self) -> AsyncIterator[RecordBatch[T]]:
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
        await self._start_if_new()
        while True:
            batch = self._rest_of_batch() or await self._fetch_batch()
            self._handed_out(batch)
            yield batch

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
        """Per partition how many records there are that were not read yet, as far as the consumer has heard."""
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
        await self._start_if_new()

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
        await self._start_if_new()
        where = position(start, now_us=self._clock_us())
        if partition is not None and partition not in self._readers:
            raise PartitionNotFound(f"this consumer reads the partitions {sorted(self._readers)}, not {partition}")
        chosen = list(self._readers.values()) if partition is None else [self._readers[partition]]
        self._settle()
        for reader in chosen:
            await self._move(reader, where)
        self._rouse()

    async def _move(self, reader: Reader, where: Position) -> None:
        reader.paused = True
        try:
            if reader.feed is not None:
                try:
                    await reader.feed.unsubscribe(reader)
                except CometError as error:
                    if not (error.retriable or isinstance(error, Timeout)):
                        raise
            reader.leave_feed()
            if self._batch is not None and self._batch.partition == reader.partition:
                self._batch = self._records = self._last = None
            reader.restart(where)
        finally:
            reader.paused = False

    def statistics(self) -> dict[str, int]:
        """Counters since the start, and what waits to be taken now.

        >>> async def example(address: str) -> None:
        ...     async with comet.Consumer(address, "quotes") as consumer:
        ...         print(consumer.statistics()["buffered_bytes"])
        >>> run(example)
        0
        """
        return {
            "received_bytes": self._received_bytes,
            "received_records": self._received_records,
            "buffered_bytes": sum(reader.queued_bytes for reader in self._readers.values()),
            "partitions": len(self._readers),
            "subscribed": sum(reader.feed is not None for reader in self._readers.values()),
            "reconnects": self._reconnects,
        }


def _hole(topic: str, partition: int, first: int, end: int) -> DataLoss:
    return DataLoss(
        f"{topic}/{partition}: offsets {first} to {end - 1} are missing from what the broker sent",
        details={"topic": topic, "partition": str(partition), "first": str(first), "end": str(end)},
    )
