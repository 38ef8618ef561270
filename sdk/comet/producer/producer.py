"""The producer: collects records in batches per partition, returns deliveries, and bounds its memory.

    send ─► Route of the topic (a sender per partition) ─► batches in flight ─► finished: memory and waiters are free

Its memory is the records sent and not yet acknowledged, at most `buffer_bytes`; `send` waits while that is full. The
order within a partition and the removal of duplicates are in accumulator.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from copy import copy
from datetime import datetime
from types import TracebackType, coroutine
from typing import Any, Final, Literal, Self, Unpack, overload

from comet import limits
from comet.client.bootstrap import Addresses
from comet.client.client import Client
from comet.client.new_topic import Create, check_create
from comet.client.world import Seams, World
from comet.encryption.encryptor import Encryptor
from comet.encryption.keyring import Keyring
from comet.errors import Closed, CometError, InvalidArgument, RecordTooLarge
from comet.producer.accumulator import Accumulator, ProducerBatch, add_expiry, add_extras
from comet.producer.column_extras import Extras, checked_headers
from comet.producer.delayed_record import Delay, DelayedRecord, due_time, put_of, schedule_id_of
from comet.producer.delayed_sends import ActingSends, DelayedSends
from comet.producer.delivery import BulkDelivery, Delivery, ScheduledDelivery, end_span, wait, wake
from comet.producer.expiry import Expiry
from comet.producer.idempotent_publish import encrypt, publish_once, request_of
from comet.producer.memory import Budget
from comet.producer.partitioner import by_partition, check_timestamp, header_pairs, header_size, key_bytes
from comet.producer.sender import PartitionSender, Settings
from comet.producer.topic_route import Column, Route, Routes, Slice, cut
from comet.producer.value_encoder import ValueEncoder
from comet.records import Codec
from comet.tracing.clients import send_spans
from comet.tracing.headers import has_context
from comet.tracing.options import Tracing
from comet.types import Acks, Receipt, ScheduledReceipt
from comet.v1 import records_pb2 as pb
from comet.values.record import Headers, Key, NewRecord
from comet.wire.acting import ActingFor
from comet.wire.record_ttl import check_ttl, expiry_of

log = logging.getLogger("comet")

Compression = Literal["none", "lz4", "zstd"] | None

_CODECS: Final = {None: Codec.NONE, "none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
# What a batch holds at most; the rest is for its header, padding and bitmaps.
_BATCH_ROOM: Final = limits.BATCH_BYTES_MAX - limits.BATCH_BYTES_MAX // 16


def check_batch_room(size: int) -> None:
    """Raises RecordTooLarge for a record that fits in no batch."""
    if size > _BATCH_ROOM:
        raise RecordTooLarge(f"a record of {size} bytes with key and headers is over the limit of {_BATCH_ROOM}")


@coroutine
def _next_turn() -> Generator[None, None, None]:
    """Lets all other ready tasks run once."""
    yield


async def _read_by_brokers(senders: Iterable[PartitionSender], timeout_s: float) -> None:
    """Pings the brokers that got batches with acks=0: an answer shows that they have read them. Without one, the
    records may be lost."""
    timeout_ms = min(limits.REQUEST_TIMEOUT_MS, round(timeout_s * 1000))
    connections = {sender.unasked_on for sender in senders} - {None}
    pings = [connection.call(pb.ClientFrame(ping=pb.Ping()), timeout_ms) for connection in connections if connection]
    for answer in await asyncio.gather(*pings, return_exceptions=True):
        if isinstance(answer, BaseException) and not isinstance(answer, CometError):
            raise answer


class _Counts:
    """Of a producer, since its start."""

    __slots__ = ("acked_records", "batches", "failed_records")

    def __init__(self) -> None:
        self.acked_records = self.failed_records = self.batches = 0


class Producer:
    """Writes records to topics. Async; `comet.sync.Producer` is the same for synchronous code.

    `acks` says when a record is acknowledged: 1, the leader's log has it; "all", every in-sync replica has it; 0, at
    once, without an answer. `linger_ms` is the time that a batch waits for more records; with 0 an idle partition sends
    at once, and records that come while a batch is in flight are collected for a millisecond, or until its answer if
    one of them is awaited or few come.
    `idempotent`, the default, writes every record once and in order, also after retries. A record that is
    not acknowledged within `timeout_ms` fails. With `encryption` values are encrypted before they are sent.
    Fields of dataclasses and msgspec.Structs are checked against their annotations, unless `check_values` is False.
    With `create`, True or a NewTopic, a topic that is missing is made when the first record is sent to it.
    `tracing` says which spans of OpenTelemetry it makes, if any.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address, acks="all", compression="zstd") as producer:
    ...         receipt = await producer.publish("quotes", {"symbol": "EURUSD", "bid": 1.08}, key="EURUSD")
    ...         print(receipt.offset)
    >>> run(example)
    0
    """

    _transactional = False

    def __init__(
        self,
        addresses: Addresses = None,
        *,
        acks: Acks | Literal[0, 1, "all"] = 1,
        linger_ms: float = 0,
        batch_bytes: int = limits.SEND_BATCH_BYTES,
        bulk_batch_bytes: int = limits.BULK_BATCH_BYTES,
        buffer_bytes: int = limits.PRODUCER_BUFFER_BYTES,
        compression: Compression = None,
        idempotent: bool = True,
        timeout_ms: int = 30_000,
        in_flight_max: int = limits.IN_FLIGHT_BATCHES_MAX,
        encryption: Keyring | None = None,
        check_values: bool = True,
        create: Create = False,
        tracing: Tracing | bool = True,
        name: str = "",
        **seams: Unpack[Seams],
    ) -> None:
        world = World.of(self, {**seams})
        limits.within("linger_ms", linger_ms, 0, 60_000)
        limits.within("batch_bytes", batch_bytes, 1, limits.BATCH_BYTES_CHOSEN_MAX)
        limits.within("bulk_batch_bytes", bulk_batch_bytes, 1, limits.BATCH_BYTES_CHOSEN_MAX)
        limits.within("buffer_bytes", buffer_bytes, 1, 1 << 40)
        limits.within("timeout_ms", timeout_ms, 1, limits.PRODUCER_TIMEOUT_MS_MAX)
        limits.within("in_flight_max", in_flight_max, 1, limits.IN_FLIGHT_BATCHES_MAX)
        if compression not in _CODECS:
            raise InvalidArgument(f'compression must be "lz4", "zstd" or None, not {compression!r}')
        check_create(create)
        self._acks = Acks.of(acks)
        client = Client(addresses, name=name, connect=world.connect, random=world.random)
        # With acks=0 there are no answers, so a lost batch could not be told from its successors: no sequences then.
        remembered = idempotent and self._acks is not Acks.NONE
        settings = Settings(
            acks=int(self._acks),
            codec=_CODECS[compression],
            in_flight_max=in_flight_max,
            linger_s=linger_ms / 1000,
            producer_id=client.random.getrandbits(62) + 1 if remembered else 0,
            timeout_s=timeout_ms / 1000,
            transactional=self._transactional,
        )
        self._client = client
        self._spans = send_spans(tracing, client.bootstrap, name)
        self._settings = settings
        self._budget = Budget(buffer_bytes)
        self._routes = Routes(client, self._make_sender, create)
        self._expiry = Expiry(settings.timeout_s, self._routes.senders)
        self._encoder = ValueEncoder(None if encryption is None else Encryptor(encryption), check=check_values)
        self._delayed: DelayedSends | ActingSends = DelayedSends(client, self._finished_delayed)
        self._failures: deque[ProducerBatch | DelayedRecord] = deque(maxlen=limits.FAILURES_STORED_MAX)
        self._closed = False
        self._counts = _Counts()
        self._clock_us = world.clock_us
        self._batch_bytes = batch_bytes
        self._bulk_batch_bytes = bulk_batch_bytes

    def acting_for(self, principal: str, roles: Iterable[str] = ()) -> Self:
        """This producer, whose delayed records have another author: a user of a gateway, with the roles of its token.
        Brokers take it of the clients in their setting `gateways`. It is not closed by itself.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         try:
        ...             await producer.acting_for("user:ann").publish("quotes", b"EURUSD 1.08", delay="5m")
        ...         except comet.Forbidden as error:
        ...             print(error.message)
        >>> run(example)
        anonymous may not act for others
        """
        twin = copy(self)
        twin._delayed = self._delayed.acting_for(ActingFor(principal, tuple(roles)))
        return twin

    # ---- one by one

    @overload
    async def send(
        self, topic: str, value: Any, *, key: Key = None, headers: Headers | None = None,
        timestamp_us: int | None = None, partition: int | None = None, ttl_ms: int | None = None,
    ) -> Delivery: ...  # fmt: skip
    @overload
    async def send(
        self, topic: str, value: Any, *, key: Key = None, headers: Headers | None = None,
        partition: int | None = None, ttl_ms: int | None = None, delay: Delay,
        schedule_id: str | None = None,
    ) -> ScheduledDelivery: ...  # fmt: skip
    @overload
    async def send(
        self, topic: str, value: Any, *, key: Key = None, headers: Headers | None = None,
        partition: int | None = None, ttl_ms: int | None = None, due: datetime,
        schedule_id: str | None = None,
    ) -> ScheduledDelivery: ...  # fmt: skip
    @overload
    async def send(
        self, topic: str, value: Any, *, key: Key = None, headers: Headers | None = None,
        timestamp_us: int | None = None, partition: int | None = None, ttl_ms: int | None = None,
        delay: Delay | None = None, due: datetime | None = None, schedule_id: str | None = None,
    ) -> Delivery | ScheduledDelivery: ...  # fmt: skip
    async def send(  # noqa: C901, PLR0912, PLR0915 - one function, because a call more is a tenth of its time
        self,
        topic: str,
        value: Any,
        *,
        key: Key = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        partition: int | None = None,
        ttl_ms: int | None = None,
        delay: Delay | None = None,
        due: datetime | None = None,
        schedule_id: str | None = None,
    ) -> Delivery | ScheduledDelivery:
        """Buffers a record and returns; waits only while the buffer is full. Await the Delivery for the receipt.

        `value` is bytes, str, None (a tombstone), or a model: a dataclass, msgspec.Struct, pydantic model or dict.
        From `ttl_ms` after its timestamp on the record is not delivered; -1 keeps it, also if the topic has a
        `record_ttl_ms`.

        With `delay`, a timedelta, seconds or a text such as "5m", or with `due`, a datetime with a time zone, the
        cluster stores the record now and writes it then, with any `acks`; its timestamp is the time when it is due.
        The receipt has the id with which it is cancelled. A `schedule_id` is stored once, however often it is sent.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         deliveries = [await producer.send("quotes", f"quote {n}", key="EURUSD") for n in range(3)]
        ...         print([(await delivery).offset for delivery in deliveries])
        >>> run(example)
        [0, 1, 2]
        """
        spans = self._spans
        if spans is not None and spans.current() is not spans.quiet:
            given = [] if headers is None else header_pairs(headers)
            begun = None if has_context(given) else spans.begin(topic)
            headers = given if begun is None else [*given, *begun.headers] if given else begun.headers
            if begun is not None and begun.recording:
                with begun:
                    delivery = await self.send(
                        topic, value, key=key, headers=headers, timestamp_us=timestamp_us, partition=partition,
                        ttl_ms=ttl_ms, delay=delay, due=due, schedule_id=schedule_id,
                    )  # fmt: skip
                    end_span(begun, delivery)
                return delivery
        if delay is not None or due is not None or schedule_id is not None:
            return await self._send_delayed(
                topic, value, key=key, headers=headers, timestamp_us=timestamp_us, partition=partition, ttl_ms=ttl_ms,
                delay=delay, due=due, schedule_id=schedule_id,
            )  # fmt: skip
        route = self._routes.open.get(topic)
        if route is None:
            route = await self._open_route(topic)
        budget = self._budget
        if budget.used_bytes >= budget.limit_bytes:
            await budget.wait()
        data = value if value.__class__ is bytes else self._encoder.encode(value)
        if self._encoder.encryptor is not None:
            key = None if key is None else key_bytes(key)
            data = await self._encoder.encryptor.encrypt(topic, data, key)
        size = route.overhead if data is None else len(data) + route.overhead
        if size > route.value_size_max:
            route.check_size(size - route.overhead)
        if timestamp_us is None:
            timestamp_us = self._clock_us()
        else:
            check_timestamp(timestamp_us)
        if key is None and partition is None:
            sender = route.current
        else:
            if key is not None:
                key = key if key.__class__ is bytes else key_bytes(key)
                size += len(key)
            sender = route.sender(key, partition)
        pairs = None
        if headers is not None:
            pairs = header_pairs(headers)
            size += header_size(pairs)
        if ttl_ms is not None:
            check_ttl(ttl_ms)
            size += limits.EXPIRY_BYTES
        # From here on nothing fails and nothing waits until the record is in its batch.
        accumulator = sender.accumulator
        batch = accumulator.open
        if batch is None:
            batch = self._start_batch(accumulator, size)
        elif batch.size + size > _BATCH_ROOM:
            sender.filled()
            batch = self._start_batch(accumulator, size)
        values: list[bytes | None] = batch.values  # type: ignore[assignment]  # an open batch owns its lists
        index = len(values)
        if pairs or key is not None or batch.keys is not None or batch.headers is not None:
            add_extras(batch, index, key, pairs)
        if ttl_ms is not None or batch.expiry is not None:
            add_expiry(batch, index, expiry_of(timestamp_us, ttl_ms))
        batch.timestamps.append(timestamp_us)  # type: ignore[union-attr]
        values.append(data)
        budget.used_bytes += size
        batch.size += size
        if batch.size >= self._batch_bytes or index >= limits.BATCH_RECORDS_MAX - 1:
            sender.filled()
            await _next_turn()
        elif not sender.armed:
            sender.arm()
        return Delivery(batch, index)

    @overload
    async def publish(
        self, topic: str, value: Any, *, key: Key = None, headers: Headers | None = None,
        timestamp_us: int | None = None, partition: int | None = None, ttl_ms: int | None = None,
    ) -> Receipt: ...  # fmt: skip
    @overload
    async def publish(
        self, topic: str, value: Any, *, key: Key = None, headers: Headers | None = None,
        partition: int | None = None, ttl_ms: int | None = None, delay: Delay,
        schedule_id: str | None = None,
    ) -> ScheduledReceipt: ...  # fmt: skip
    @overload
    async def publish(
        self, topic: str, value: Any, *, key: Key = None, headers: Headers | None = None,
        partition: int | None = None, ttl_ms: int | None = None, due: datetime,
        schedule_id: str | None = None,
    ) -> ScheduledReceipt: ...  # fmt: skip
    @overload
    async def publish(
        self, topic: str, value: Any, *, key: Key = None, headers: Headers | None = None,
        timestamp_us: int | None = None, partition: int | None = None, ttl_ms: int | None = None,
        delay: Delay | None = None, due: datetime | None = None, schedule_id: str | None = None,
    ) -> Receipt | ScheduledReceipt: ...  # fmt: skip
    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: Key = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        partition: int | None = None,
        ttl_ms: int | None = None,
        delay: Delay | None = None,
        due: datetime | None = None,
        schedule_id: str | None = None,
    ) -> Receipt | ScheduledReceipt:
        """Sends a record and waits until it is acknowledged; a delayed one, as `send` describes, until it is stored.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         receipt = await producer.publish("quotes", "EURUSD 1.08", headers={"source": "demo"})
        ...         print(receipt.topic, receipt.offset)
        >>> run(example)
        quotes 0
        """
        return await (
            await self.send(
                topic, value, key=key, headers=headers, timestamp_us=timestamp_us, partition=partition, ttl_ms=ttl_ms,
                delay=delay, due=due, schedule_id=schedule_id,
            )
        )  # fmt: skip

    async def _send_delayed(
        self, topic: str, value: Any, *, key: Key, headers: Headers | None, timestamp_us: int | None,
        partition: int | None, ttl_ms: int | None, delay: Delay | None, due: datetime | None, schedule_id: str | None,
    ) -> ScheduledDelivery:  # fmt: skip
        """Passes a record on to be stored; waits only while the buffer is full."""
        if timestamp_us is not None:
            raise InvalidArgument(
                "a delayed record has the time when it is due as its timestamp: leave timestamp_us out"
            )
        when = due_time(delay, due)
        chosen_id = schedule_id_of(schedule_id, self._client.random)
        pairs = [] if headers is None else header_pairs(headers)
        stored = None if key is None else key_bytes(key)
        route = self._routes.open.get(topic) or await self._open_route(topic)
        await self._budget.wait()
        data = self._encoder.encode(value)
        if self._encoder.encryptor is not None:
            data = await self._encoder.encryptor.encrypt(topic, data, stored)
        route.check_size(len(data or b""))
        route.sender(stored, partition)  # raises if there is no such partition
        size = route.overhead + len(data or b"") + len(stored or b"") + header_size(pairs)
        check_batch_room(size)
        put = put_of(chosen_id, when, data, stored, pairs, partition, 0 if ttl_ms is None else check_ttl(ttl_ms))
        self._check_open()
        deadline = asyncio.get_running_loop().time() + self._settings.timeout_s
        record = DelayedRecord(topic, put, size, deadline)
        self._budget.used_bytes += size
        self._delayed.add(record)
        return ScheduledDelivery(record)

    def _start_batch(self, accumulator: Accumulator, size: int) -> ProducerBatch:
        self._check_open()
        check_batch_room(size)
        batch = accumulator.start(self._expiry.deadline())
        batch.began_us = self._clock_us()
        return batch

    async def publish_once(
        self,
        topic: str,
        records: Sequence[NewRecord],
        *,
        idempotency_key: str,
        acks: Acks | Literal[0, 1, "all"] | None = None,
        timeout_ms: int | None = None,
    ) -> list[Receipt]:
        """Writes records once, however often it is called with the same key, also by other producers and later.

        Retries until all are acknowledged, or raises Timeout: repeat the call then. Records that were written before
        have `duplicate` in their receipts. The same key with other records raises KeyReused; so do the same records if
        the producer encrypts, and the first key of its keyring was removed in between. Each partition remembers
        its last 4096 keys. Records without a key and partition go to the partition of the idempotency key; if
        partitions are added to the topic in between, some may be written twice.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address, acks="all") as producer:
        ...         for _ in range(2):
        ...             order = comet.NewRecord({"buy": "EURUSD"}, key="EURUSD")
        ...             receipts = await producer.publish_once("quotes", [order], idempotency_key="order 4711")
        ...             print(receipts[0].offset, receipts[0].duplicate)
        >>> run(example)
        0 False
        0 True
        """
        self._check_open()
        acks = self._acks if acks is None else Acks.of(acks)
        request = request_of(topic, records, idempotency_key, acks, self._encoder.encode)
        if timeout_ms is not None:
            limits.within("timeout_ms", timeout_ms, 1, limits.PRODUCER_TIMEOUT_MS_MAX)
        if self._encoder.encryptor is not None:
            await encrypt(request, self._encoder.encryptor)
        await self._routes.look_up(topic)
        receipts = await publish_once(
            self._client, request, self._settings.timeout_s if timeout_ms is None else timeout_ms / 1000
        )
        self._counts.acked_records += len(receipts)
        return receipts

    # ---- in bulk

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        *,
        keys: Sequence[Key] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
        timestamp_us: int | None = None,
        timestamps_us: Sequence[int | None] | None = None,
        ttl_ms: int | None = None,
        ttls_ms: Sequence[int | None] | None = None,
    ) -> BulkDelivery:
        """Buffers many records at once, the fastest way to write. All get one timestamp, except records with
        one of their own in `timestamps_us`; and one time to live, except records with one of their own in `ttls_ms`.

        With keys, each record goes where `send` would put it; without, whole batches go to the partitions in turn.
        Records of one partition keep their order. Await the BulkDelivery for the receipts.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         bulk = await producer.send_many("quotes", [b"%d" % n for n in range(1000)])
        ...         print(sum(receipt.count for receipt in await bulk))
        >>> run(example)
        1000
        """
        spans = self._spans
        if spans is not None and spans.current() is not spans.quiet:
            given = None if headers is None else checked_headers(headers)
            traced = given is not None and all(pairs is not None and has_context(pairs) for pairs in given)
            begun = None if traced else spans.begin(topic, len(values))
            headers = given
            if begun is not None:
                with begun:
                    bulk = await self.send_many(
                        topic, values, keys=keys, headers=begun.added_to_all(given or [None] * len(values)),
                        partition=partition, timestamp_us=timestamp_us, timestamps_us=timestamps_us, ttl_ms=ttl_ms,
                        ttls_ms=ttls_ms,
                    )  # fmt: skip
                    end_span(begun, bulk)
                return bulk
        route = self._routes.open.get(topic)
        if route is None:
            route = await self._open_route(topic)
        timestamp_us = self._clock_us() if timestamp_us is None else check_timestamp(timestamp_us)
        encoded = self._encoder.encode_all(values)
        extras = None
        if not (headers is None and timestamps_us is None and ttl_ms is None and ttls_ms is None):
            extras = Extras.of(headers, timestamps_us, timestamp_us, ttls_ms, ttl_ms, len(values))
        if keys is not None and len(keys) != len(values):
            raise InvalidArgument(f"{len(keys)} keys for {len(values)} values")
        stored = None if keys is None else [None if key is None else key_bytes(key) for key in keys]
        if self._encoder.encryptor is not None:
            encoded = await self._encoder.encryptor.encrypt_all(topic, encoded, stored)
        batches: list[ProducerBatch] = []
        if stored is None or partition is not None:
            await self._send_slices(route, partition, encoded, stored, timestamp_us, extras, batches)
            return BulkDelivery(batches)
        unkeyed = route.current.accumulator.partition
        for index, members in by_partition(stored, len(route.senders), unkeyed).items():
            chosen = [encoded[member] for member in members]
            chosen_keys = [stored[member] for member in members]
            chosen_extras = None if extras is None else extras.chosen(members)
            await self._send_slices(route, index, chosen, chosen_keys, timestamp_us, chosen_extras, batches)
        return BulkDelivery(batches)

    async def _send_slices(
        self, route: Route, partition: int | None, values: Column, keys: Column | None, timestamp_us: int,
        extras: Extras | None, batches: list[ProducerBatch],
    ) -> None:  # fmt: skip
        """Cuts the columns into batches and queues them as there is room."""
        for part in cut(values, keys, self._bulk_batch_bytes, None if extras is None else extras.sizes):
            await self._budget.wait()
            if part.size > route.value_size_max:
                route.check_size(part.lengths if isinstance(part.lengths, int) else max(part.lengths))
            check_batch_room(part.size)
            batches.append(self._add_batch(route, partition, part, timestamp_us, extras))
            await _next_turn()

    def _add_batch(
        self, route: Route, partition: int | None, part: Slice, timestamp_us: int, extras: Extras | None
    ) -> ProducerBatch:
        self._check_open()
        sender = route.sender(None, partition)
        batch = ProducerBatch(sender.accumulator, self._expiry.deadline())
        batch.values, batch.keys, batch.timestamps = part.values, part.keys, timestamp_us
        batch.lengths, batch.size = part.lengths, part.size
        if extras is not None:
            extras.put(batch, part.first)
        self._budget.used_bytes += part.size
        sender.add(batch)
        route.sealed(sender)
        return batch

    # ---- routes

    async def _open_route(self, topic: str) -> Route:
        self._check_open()
        info = await self._routes.look_up(topic)
        self._check_open()
        return self._routes.add(topic, info)

    def _make_sender(self, topic: str, partition: int, sealed: Callable[[PartitionSender], None]) -> PartitionSender:
        return PartitionSender(
            topic, partition, client=self._client, settings=self._settings, finished=self._finished, sealed=sealed
        )

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the producer was closed")

    # ---- outcomes

    def _finished(self, batch: ProducerBatch) -> None:
        """Counts a batch that is acknowledged or failed, and frees its memory."""
        self._counts.batches += 1
        if batch.error is None:
            self._counts.acked_records += batch.count
        else:
            self._failed(batch, batch.error)
        if batch.waiters is not None:
            wake(batch)
        self._budget.release(batch.size)

    def _failed(self, batch: ProducerBatch, error: CometError) -> None:
        self._counts.failed_records += batch.count
        self._note_failure(batch, error)
        if error.code == "TOPIC_NOT_FOUND":
            self._routes.lapse(batch.accumulator.topic)

    def _finished_delayed(self, record: DelayedRecord) -> None:
        """Counts a delayed record that is stored or failed, and frees its memory."""
        error = record.error
        if error is None:
            self._counts.acked_records += 1
        else:
            self._counts.failed_records += 1
            if not self._failures:
                log.warning("comet: a delayed record for %s failed: %s", record.topic, error)
            self._failures.append(record)
            if error.code == "TOPIC_NOT_FOUND":
                self._client.forget(record.topic)
                self._routes.lapse(record.topic)
        self._budget.release(record.size)

    def _note_failure(self, batch: ProducerBatch, error: CometError) -> None:
        if not self._failures:  # one line, not one per batch: the cause is nearly always the same
            accumulator = batch.accumulator
            log.warning(
                "comet: %d records for %s/%d failed: %s", batch.count, accumulator.topic, accumulator.partition, error
            )
        self._failures.append(batch)

    # ---- the end

    async def flush(self) -> None:
        """Waits until everything sent so far is acknowledged. Raises the first failure that no caller has read.

        With acks=0 it waits until the brokers have read the records, or have not answered for a while; that raises
        nothing.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address, linger_ms=1000) as producer:
        ...         delivery = await producer.send("quotes", b"EURUSD 1.08")
        ...         await producer.flush()
        ...         print(delivery.done())
        >>> run(example)
        True
        """
        await self._drain()
        self._raise_unseen()

    async def _drain(self) -> None:
        """Waits until all records sent so far are acknowledged or failed."""
        batches: list[ProducerBatch] = []
        for sender in self._routes.senders():
            if sender.accumulator.open is not None:
                batches.append(sender.accumulator.open)
            batches.extend(sender.accumulator.queue)
            sender.hurry()
        for batch in batches:
            if not batch.done:
                await wait(batch)
        await self._delayed.flush()
        if not self._settings.acks:
            await _read_by_brokers(self._routes.senders(), self._settings.timeout_s)

    def _raise_unseen(self) -> None:
        unseen = [batch for batch in self._failures if not batch.seen]
        self._failures.clear()
        for batch in unseen:
            assert batch.error is not None
            batch.seen = True
        if unseen:
            error = unseen[0].error
            assert error is not None
            raise error.with_traceback(None)

    async def close(self) -> None:
        """Flushes, then closes the connections. Raises what flush raises; the producer is closed all the same."""
        if self._closed:
            return
        try:
            await self.flush()
        finally:
            await self._shut()

    async def _shut(self) -> None:
        self._closed = True
        self._expiry.stop()
        self._delayed.close(Closed("the producer was closed before the delayed record was stored"))
        for sender in self._routes.senders():
            sender.close(Closed("the producer was closed before the record was acknowledged"))
        self._budget.close(Closed("the producer was closed"))
        await self._client.close()

    def statistics(self) -> dict[str, int]:
        """Counters since the start, and the bytes in the buffer.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await producer.publish("quotes", b"EURUSD 1.08")
        ...         print(producer.statistics()["acked_records"], producer.statistics()["buffered_bytes"])
        >>> run(example)
        1 0
        """
        return {
            "acked_records": self._counts.acked_records,
            "failed_records": self._counts.failed_records,
            "batches": self._counts.batches,
            "buffered_bytes": self._budget.used_bytes,
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            if isinstance(error, Exception):
                await self.flush()  # records buffered before the error are sent
        except CometError as failure:
            log.warning("comet: flush failed while closing after an error: %s", failure)
        finally:
            await self._shut()
