"""A member of a share group: takes single records from all partitions of its topics, and acknowledges each on its own.

    coordinator ─► Member ─► all partitions of the topics
    leaders ─► ShareFetcher ─► ShareRecord ─► ack | nack | reject | extend ─► the leader that acquired it

There may be more members than partitions. A record is acquired by one member at a time; one that is not acknowledged
in time, or is released, goes to another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, Unpack, overload

from comet import limits
from comet.client.bootstrap import Addresses
from comet.client.client import Client
from comet.client.metadata import mark_retrieved
from comet.client.new_topic import create_missing
from comet.client.watchdog import PROCESS, Watch
from comet.client.world import World
from comet.consumer.consumer import serde_of
from comet.consumer.options import chosen
from comet.errors import Closed, DecryptionError
from comet.groups.member import Member
from comet.groups.membership import Changes
from comet.groups.options import join_frame
from comet.share.acknowledgements import ACCEPT, EXTEND, REJECT, RELEASE, Lot, PendingAcknowledgement
from comet.share.acquired_values import AcquiredValues
from comet.share.fetcher import Acquired, CorruptAcquired, ShareFetcher, Terms
from comet.share.keywords import ShareKeywords
from comet.share.options import ShareOptions
from comet.types import Earliest, TopicPartition, position
from comet.v1 import groups_pb2 as groups_pb
from comet.values.record import HeaderList, text_of_key
from comet.wire import protobuf

log = logging.getLogger("comet")

T = TypeVar("T")
# Records without waiting before their acknowledgements are sent and other tasks get a turn.
_TURN_RECORDS: Final = 256
_STORED: Final = object()


class ShareRecord(Generic[T]):
    """One record, acquired by this member until it is acknowledged. `delivery_count` counts its deliveries,
    from 1.

    `ack`, `nack`, `reject` and `extend` take effect also if they are not awaited; awaited they return once that is
    kept, and raise LockExpired if the lock is lost.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         await producer.publish("quotes", b"EURUSD 1.08")
    ...     async with comet.ShareConsumer(address, "quotes", group="work", start="earliest") as consumer:
    ...         record = await consumer.get()
    ...         await record.nack()
    ...         record = await consumer.get()
    ...         print(record.value, record.delivery_count)
    ...         await record.ack()
    >>> run(example)
    b'EURUSD 1.08' 2
    """

    __slots__ = ("_lot", "delivery_count", "headers", "key", "offset", "partition", "timestamp_us", "topic", "value")

    def __init__(
        self, topic: str, partition: int, offset: int, key: bytes | None, value: T, timestamp_us: int,
        headers: HeaderList, delivery_count: int, lot: Lot,
    ) -> None:  # fmt: skip
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.key = key
        self.value = value
        self.timestamp_us = timestamp_us
        self.headers = headers
        self.delivery_count = delivery_count
        self._lot = lot

    def __repr__(self) -> str:
        return f"<ShareRecord {self.topic}/{self.partition} at {self.offset}, delivery_count {self.delivery_count}>"

    @property
    def key_text(self) -> str | None:
        """The key as text. Raises SerdeError if it is not UTF-8."""
        return text_of_key(self.key)

    def ack(self) -> PendingAcknowledgement:
        """Accepts the record as done."""
        return self._lot.acknowledge(ACCEPT, self.offset)

    def nack(self, delay_ms: int = 0) -> PendingAcknowledgement:
        """Releases the record for redelivery after `delay_ms`; after too many deliveries it is a dead letter."""
        return self._lot.acknowledge(RELEASE, self.offset, delay_ms)

    def reject(self, reason: str = "") -> PendingAcknowledgement:
        """Rejects the record: it is never redelivered, and goes to the dead-letter topic if there is one."""
        return self._lot.acknowledge(REJECT, self.offset, 0, reason)

    def extend(self) -> PendingAcknowledgement:
        """Renews the record's lock."""
        return self._lot.acknowledge(EXTEND, self.offset)


class ShareConsumer(Generic[T]):
    """Takes single records of topics together with the other members of its group, which may be more than the
    partitions. Async; `comet.sync.ShareConsumer` is the same for synchronous code.

    At most `in_flight` records are acquired by it at a time, each for `lock_ms`. A record that is not acknowledged by
    then, or is released, goes to another member; after `deliveries_max` deliveries (0: 5) it goes to the topic
    `dead_letter` with its bytes and the reason, or is dropped if none is named. With `renew` locks are extended for as
    long as this consumer's event loop runs. With `by_key`, records of one key go to one member at a time, in order.

    With `filter`, a condition such as 'price > 100 and @key ^= "EUR"', only records that match are delivered; the
    leader settles the others.

    These settings belong to the group: all members must have the same. A new group begins at `start`. `options` has
    them as one ShareOptions; an option given by name replaces its own.

    With `create`, True or a NewTopic, named topics that are missing are made.

    With `encryption`, a Keyring, values are decrypted. One that cannot be raises DecryptionError: the record is
    released with a delay, as another member may have the key, and rejected at its last delivery.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
    ...     async with comet.ShareConsumer(address, "quotes", group="work", start="earliest") as consumer:
    ...         async for record in consumer:
    ...             print(record.value)
    ...             await record.ack()
    ...             if record.offset == 2:
    ...                 break
    >>> run(example)
    b'1'
    b'2'
    b'3'
    """

    @overload
    def __init__(
        self: ShareConsumer[bytes], addresses: Addresses = ..., *topics: str, group: str,
        options: ShareOptions | None = ..., **keywords: Unpack[ShareKeywords],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self, addresses: Addresses = ..., *topics: str, group: str, type: type[T],
        options: ShareOptions | None = ..., **keywords: Unpack[ShareKeywords],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: ShareConsumer[Any], addresses: Addresses = ..., *topics: str, group: str, type: Any,
        options: ShareOptions | None = ..., **keywords: Unpack[ShareKeywords],
    ) -> None: ...  # fmt: skip
    def __init__(
        self,
        addresses: Addresses = None,
        *topics: str,
        group: str,
        type: Any = None,  # noqa: A002 - the name users expect
        options: ShareOptions | None = None,
        name: str = "",
        **keywords: Any,
    ) -> None:
        world = World.taken(keywords)
        sharing = chosen(options or ShareOptions(), keywords)
        join = join_frame(group, topics, sharing, name, groups_pb.GROUP_KIND_SHARE)
        self._values = AcquiredValues(serde_of(type), sharing.encryption, sharing.deliveries_max)
        self._client = Client(addresses, name=name, connect=world.connect, random=world.random)
        self._create_topics = partial(create_missing, self._client, topics, sharing.create)
        self._member = Member(self._client, join, self._changed, Watch(PROCESS if world.connect is None else None))
        sent = groups_pb.ShareOptions(
            lock_ms=sharing.lock_ms, deliveries_max=sharing.deliveries_max, by_key=sharing.by_key,
            dead_letter=sharing.dead_letter, filter=sharing.filter,
            start=protobuf.position_to_pb(position(sharing.start, now_us=world.clock_us())),
        )  # fmt: skip
        terms = Terms(group, sharing.in_flight, sharing.lock_ms / 1000, sent)
        self._fetcher = ShareFetcher(self._client, terms, lambda: self._member.state.member)
        self._renew_s = sharing.lock_ms / 1000 if sharing.renew else 0.0
        self._acquired: Iterator[Acquired | CorruptAcquired] | None = None
        self._undecrypted: deque[Acquired] = deque()  # taken from it, and to be decrypted by the next call
        self._starting: asyncio.Task[None] | None = None
        self._closed = False
        self._since_turn = 0
        self._received = 0
        self._expired = 0
        self._corrupt = 0

    # ---- life

    async def start(self) -> None:
        """Joins; returns when the first assignment is there. `async with` does this."""
        if self._closed:
            raise Closed("the consumer was closed")
        if self._starting is None:
            self._starting = self._client.spawn(self._start())
            self._starting.add_done_callback(mark_retrieved)
        await asyncio.shield(self._starting)

    def _topics_found(self) -> bool:
        """Whether it waits for no topic."""
        return self._member.topics_found()

    async def _start(self) -> None:
        await self._create_topics()
        await self._member.start()
        if self._renew_s:
            self._client.spawn(self._renew_locks())
        reading = self._client.spawn(self._fetcher.start())
        reading.add_done_callback(mark_retrieved)
        await asyncio.wait({reading}, timeout=limits.FIRST_POSITION_MS / 1000)
        if reading.done():
            reading.result()

    async def close(self) -> None:
        """Waits for outstanding acknowledgements, and leaves the group. Unacknowledged records go to other members at
        once."""
        if self._closed:
            return
        self._closed = True
        acknowledged = [asyncio.ensure_future(lot.acknowledged()) for lot in self._fetcher.lots if not lot.over]
        if acknowledged:
            await asyncio.wait(acknowledged, timeout=limits.LEAVE_TIMEOUT_MS / 1000)
            for one in acknowledged:
                one.cancel()
        await self._member.leave(farewell=True)
        await self._fetcher.close()
        await self._client.close()
        self._acquired = None

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

    def _changed(self, changes: Changes) -> None:
        # Locks are kept by the leaders: a member that was removed keeps them, and joins again.
        if not changes.join:
            for tp in self._fetcher.readers.keys() - self._member.state.owned.keys():
                self._fetcher.unassign(tp)
        for given in changes.gained:
            known = self._fetcher.readers.get(given.tp)
            if known is not None and known.topic_id != given.topic_id:
                self._fetcher.unassign(given.tp)
                known = None
            if known is None:
                self._fetcher.assign(given.tp, given.topic_id, Earliest())
        if changes.over is not None:
            self._fetcher.queue.end(changes.over)

    async def _renew_locks(self) -> None:
        """Extends locks that have run for half their time."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._renew_s / 4)
            for lot in self._fetcher.lots:
                lot.extend(loop.time() + self._renew_s / 2)

    # ---- taking

    def __aiter__(self) -> Self:
        """Records, one by one, for as long as the consumer is open."""
        return self

    async def __anext__(self) -> ShareRecord[T]:
        while True:
            if self._since_turn >= _TURN_RECORDS:
                self._since_turn = 0
                await asyncio.sleep(0)
            if self._acquired is not None:
                acquired = self._undecrypted.popleft() if self._undecrypted else next(self._acquired, None)
                if acquired is not None:
                    self._since_turn += 1
                    if isinstance(acquired, CorruptAcquired):
                        self._reject(acquired)
                        continue
                    record = await self._decrypted(acquired) if self._values.encrypted else self._record(acquired)
                    if record is not None:
                        return record
                    continue
                self._acquired = None
            self._acquired = self._fetcher.take_acquired()
            if self._acquired is None:
                self._since_turn = 0
                await self._wait()

    async def _wait(self) -> None:
        if not self._fetcher.started:
            await self.start()
        else:
            await self._fetcher.queue.arrival()

    async def get(self, timeout_s: float | None = None) -> ShareRecord[T] | None:
        """The next record; None if none came in time.

        >>> async def example(address: str) -> None:
        ...     async with comet.ShareConsumer(address, "quotes", group="work") as consumer:
        ...         print(await consumer.get(timeout_s=0.01))
        >>> run(example)
        None
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self.__anext__()
        except TimeoutError:
            return None

    def _reject(self, corrupt: CorruptAcquired) -> None:
        """Rejects the acquired records of a corrupt batch, and raises its error; the next call goes on after it."""
        error, offsets, lot = corrupt
        self._corrupt += 1
        held = [offset for offset in offsets if offset in lot.held and not lot.over]
        for offset in held:
            lot.acknowledge(REJECT, offset, 0, error.message)
        if held:
            raise error

    async def _decrypted(self, acquired: Acquired) -> ShareRecord[T] | None:
        """The record, decrypted. A call that is cancelled, or whose key provider fails, leaves it to the next one."""
        if not self._holds(acquired):
            return None
        try:
            value = await self._values.decrypted(acquired)
        except DecryptionError:
            raise
        except BaseException:
            self._undecrypted.append(acquired)
            raise
        return self._record(acquired, value)

    def _holds(self, acquired: Acquired) -> bool:
        """Whether the record's lock has not expired."""
        _, batch, index, _, lot = acquired
        offset = batch.offsets[index]
        ends = lot.held.get(offset)
        if ends is not None and not lot.over and ends >= asyncio.get_running_loop().time():
            return True
        lot.held.pop(offset, None)
        self._expired += 1
        return False

    def _record(self, acquired: Acquired, value: Any = _STORED) -> ShareRecord[T] | None:
        """The record; None if its lock expired before it was taken. Without a value, its value is the stored one."""
        if not self._holds(acquired):
            return None
        reader, batch, index, delivery_count, lot = acquired
        value = self._values.decoded(acquired, batch.values[index] if value is _STORED else value)
        self._received += 1
        offset = batch.offsets[index]
        headers = batch.headers[index] if batch.header_columns is not None else []
        return ShareRecord(
            reader.topic, reader.partition, offset, batch.keys[index], value, batch.timestamps[index], headers,
            delivery_count, lot,
        )  # fmt: skip

    # ---- identity

    @property
    def group(self) -> str:
        """The group's name."""
        return self._member.group

    @property
    def member(self) -> str:
        """The member id from the coordinator; empty while this is not a member."""
        return self._member.state.member

    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member takes records from.

        >>> async def example(address: str) -> None:
        ...     async with comet.ShareConsumer(address, "quotes", group="work") as consumer:
        ...         print(consumer.assignment())
        >>> run(example)
        [TopicPartition(topic='quotes', partition=0)]
        """
        return sorted(self._fetcher.readers)

    def statistics(self) -> dict[str, int]:
        """Counters since the start, and the number of records acquired now.

        >>> async def example(address: str) -> None:
        ...     async with comet.ShareConsumer(address, "quotes", group="work") as consumer:
        ...         print(consumer.statistics()["acquired"])
        >>> run(example)
        0
        """
        return {
            "received_bytes": self._fetcher.queue.received_bytes,
            "received_records": self._received,
            "expired": self._expired,
            "corrupt_batches": self._corrupt,
            "acquired": sum(len(lot.held) for lot in self._fetcher.lots if not lot.over),
            "partitions": len(self._fetcher.readers),
            "reconnects": self._fetcher.subscriber.reconnects,
        }
