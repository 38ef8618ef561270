"""The consumer: reads the partitions of a topic, each in order, and resumes after any interruption.

    broker ─► Reader (per partition) ─► arrived (bytes, at most buffer_bytes) ─► batches ─► records
                                         ▲ credit goes back as the application takes

A position moves only when a record or batch is handed out, so a restart can always begin at `positions()`.
The iteration over records is in iteration, the subscriptions in fetcher.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from comet import limits
from comet.client.bootstrap import Addresses
from comet.client.client import Client
from comet.client.connection import Attachment
from comet.client.leader_request import at_leader
from comet.client.new_topic import create_missing
from comet.client.world import World
from comet.consumer.broker_subscription import PartitionSubscription
from comet.consumer.fetcher import Fetcher
from comet.consumer.iteration import RecordIterator
from comet.consumer.keywords import ConsumerKeywords
from comet.consumer.options import ConsumerOptions, chosen, filter_of_brokers, parsed_filter
from comet.errors import Closed, InvalidArgument, PartitionNotFound
from comet.tracing.clients import receive_spans
from comet.types import Latest, StartLike, TopicPartition, check_topic_name, position
from comet.v1 import records_pb2 as pb
from comet.wire.protobuf import position_to_pb

T = TypeVar("T")


def serde_of(kind: Any) -> Any:
    if kind is None:
        return None
    from comet.serde import serde_for

    return serde_for(kind)


class Consumer(RecordIterator[T]):
    """Reads a topic, from all partitions or some. Async; `comet.sync.Consumer` is the same for synchronous code.

    `start` is "earliest", "latest", an offset, a time (datetime, or text such as "2026-01-31T12:00:00Z"), or a time ago
    (timedelta, or text such as "-15m"). `type` is the type of decoded values: a model, dict, str, int …;
    without it they are bytes. At most `buffer_bytes` are buffered.

    A position that the topic no longer holds raises OffsetOutOfRange, which says what was lost; with
    `on_out_of_range="earliest"` or `"latest"` the consumer logs it and continues there. With `on_gap` it does not stop
    at records that were deleted, damaged or truncated: it calls `on_gap` with a Gap and continues after it.

    A corrupt batch raises CorruptRecords, once: the next read continues after it. With `on_corrupt="skip"` the consumer
    logs and counts it instead.

    Records of a transaction are read once it is committed; with `isolation="uncommitted"` at once, even if it is
    aborted later.

    `read_from` chooses the brokers: "leader", the leader of each partition; "any", all in-sync replicas, each for a
    share of the partitions; "nearest", an in-sync replica in the consumer's `rack` if there is one, else the leader.

    With `create`, True or a NewTopic, a topic that is missing is made.

    With `encryption`, a Keyring, values are decrypted. One that cannot be raises DecryptionError, as a value that
    cannot be decoded raises SerdeError: the next read continues after it.

    With `filter`, a condition such as 'price > 100 and @key ^= "EUR"', only records that match are read; the others
    count as read.

    `options` has all of these as one ConsumerOptions, for several consumers; an option given by name replaces its own.

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
        self: Consumer[bytes], addresses: Addresses = ..., topic: str = ..., *, options: ConsumerOptions | None = ...,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self, addresses: Addresses = ..., topic: str = ..., *, type: type[T], options: ConsumerOptions | None = ...,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: Consumer[Any], addresses: Addresses = ..., topic: str = ..., *, type: Any,
        options: ConsumerOptions | None = ..., **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...  # fmt: skip
    def __init__(
        self,
        addresses: Addresses = None,
        topic: str = "",
        *,
        type: Any = None,  # noqa: A002 - the name users expect
        options: ConsumerOptions | None = None,
        name: str = "",
        **keywords: Any,
    ) -> None:
        world = World.taken(keywords)
        reading = chosen(options or ConsumerOptions(), keywords)
        if not topic:
            raise InvalidArgument("no topic given: pass it after the addresses, or as topic=")
        self.topic = check_topic_name(topic)
        super().__init__(
            serde_of(type),
            uncommitted=reading.isolation == "uncommitted",
            keyring=reading.encryption,
            chosen=parsed_filter(reading.filter, now_us=world.clock_us()),
        )
        self._clock_us = world.clock_us
        self._client = Client(addresses, name=name, connect=world.connect, random=world.random)
        self._receive_spans = partial(receive_spans, self._client.bootstrap, name)
        start = position(reading.start, now_us=world.clock_us())
        partitions = None if reading.partitions is None else list(reading.partitions)
        fetched = replace(reading, filter=filter_of_brokers(self._filter, encrypted=self._keyring is not None))
        self._fetcher = Fetcher(self._client, self.topic, fetched, start=start, partitions=partitions)
        self._create = reading.create
        self._closed = False

    # ---- life

    async def start(self) -> None:
        """Subscribes; when it returns, records produced from now on are seen. `async with` does this."""
        if self._closed:
            raise Closed("the consumer was closed")
        if not self._fetcher.started:
            await create_missing(self._client, [self.topic], self._create)
        await self._fetcher.start()

    async def close(self) -> None:
        """Ends the subscription. Records that were not taken are dropped; `positions()` stays readable."""
        if self._closed:
            return
        self._settle()
        self._closed = True
        await self._fetcher.close()
        await self._client.close()
        self._drop(None)

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

    # ---- positions

    def positions(self) -> dict[int, int]:
        """The offset of the next record, per partition: pass it to `start` or `seek` to resume.

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
        return {reader.partition: reader.position for reader in self._with_position()}

    def _with_position(self) -> list[PartitionSubscription]:
        """The partitions whose position is known, in order."""
        return [reader for _, reader in sorted(self._fetcher.readers.items()) if reader.position >= 0]

    def lag(self) -> dict[int, int]:
        """The number of records not read yet, per partition, up to the last high watermark received.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.Consumer(address, "quotes", start="earliest") as consumer:
        ...         await consumer.get()
        ...         print(consumer.lag())
        >>> run(example)
        {0: 2}
        """
        self._settle()
        return {reader.partition: max(reader.high_watermark - reader.position, 0) for reader in self._with_position()}

    async def end_offsets(self) -> dict[int, int]:
        """The offset after the last record, per partition, as its leader answers now. Waits for a new leader until it
        knows the offset.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2"]))
        ...     async with comet.Consumer(address, "quotes", start="earliest") as consumer:
        ...         print(await consumer.end_offsets())
        >>> run(example)
        {0: 2}
        """
        await self.start()

        give_up = asyncio.get_running_loop().time() + limits.REQUEST_TIMEOUT_MS / 1000

        async def end(partition: int) -> int:
            tp = TopicPartition(self.topic, partition)

            async def where() -> TopicPartition:
                return tp

            async def fetch(attachment: Attachment, _: int) -> int:
                self._fetcher.readers[tp].require_same_topic(attachment)
                find = pb.FindOffset(partition=attachment.handle, position=position_to_pb(Latest()))
                try:
                    answer = await attachment.connection.call(pb.ClientFrame(find_offset=find))
                except PartitionNotFound:  # the topic was deleted, and maybe recreated, since
                    attachment.connection.detach(*tp)
                    raise
                return int(answer.found_offset.offset)

            return await at_leader(self._client, where, fetch, give_up=give_up, writes=False)

        partitions = [partition for _, partition in sorted(self._fetcher.readers)]
        return dict(zip(partitions, await asyncio.gather(*map(end, partitions)), strict=True))

    async def seek(self, start: StartLike, *, partition: int | None = None) -> None:
        """Sets the position of one partition, or of all. Clears an error that stopped it.

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
        readers = {reader.partition: reader for reader in self._fetcher.readers.values()}
        if partition is not None and partition not in readers:
            raise PartitionNotFound(f"this consumer reads the partitions {sorted(readers)}, not {partition}")
        chosen = list(readers.values()) if partition is None else [readers[partition]]
        self._settle()
        for reader in chosen:
            self._drop(reader)
            await self._fetcher.move(reader, where)
