"""Publish, Fetch and ReadKeys: records one by one, for clients without the record batch (grpcurl, other languages).

The broker builds and takes apart batches only here; streams never do. Any broker takes these calls: requests for
another broker's partitions are forwarded to it, once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

from comet import records
from comet.errors import (
    CometError,
    CorruptRecords,
    Draining,
    InvalidArgument,
    KeyReused,
    Timeout,
    TopicNotFound,
    Unavailable,
)
from comet.records.expiry import has_expired
from comet.types import Earliest, Latest, Position
from comet.v1 import records_pb2 as pb
from comet.v1.types_pb2 import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from comet.wire.contents import contents_of
from comet.wire.corrupt import headers, opened
from comet.wire.protobuf import position_from_pb
from comet.wire.record_ttl import check_ttl, expiry_column, expiry_of
from comet_broker import limits
from comet_broker.cluster.peers import Peers
from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import NO_BROKER, TopicSpec
from comet_broker.core.isolation import AbortedTransaction
from comet_broker.core.requests import KEY_CHARS_MAX, MAC_BYTES, digest_of, digest_of_mac, id_of
from comet_broker.env import Env
from comet_broker.key_values.views import KeyViews, NotReadYet, Refused, check, check_expected
from comet_broker.partitions.context import Accepted
from comet_broker.partitions.drain import Drain
from comet_broker.partitions.filtering import EXAMINED_BYTES_MAX, FilteredDelivery, parsed
from comet_broker.partitions.log_reader import LogReader
from comet_broker.partitions.offset_lookup import resolve
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.range_read import Ranges, answer_later, end_of
from comet_broker.partitions.record_messages import counts, record_messages
from comet_broker.partitions.shared_answers import SharedAnswers
from comet_broker.partitions.topics import TopicTable
from comet_broker.partitions.transaction_batches import NotInTransaction

BATCH_OVERHEAD_BYTES = 64 << 10
FORWARD_S_MAX = 30.0


class UnaryRecords:
    """The coroutines behind Publish, Fetch and ReadKeys, protobuf in and out; raises CometErrors."""

    def __init__(
        self,
        env: Env,
        *,
        view: ClusterView,
        peers: Peers,
        topics: TopicTable,
        reader: LogReader,
        drain: Drain,
        views: KeyViews,
    ) -> None:
        self._env = env
        self._view = view
        self._peers = peers
        self._topics = topics
        self._reader = reader
        self._drain = drain
        self._shared: SharedAnswers[pb.FetchResponse] = SharedAnswers()
        self._views = views
        self._ranges = Ranges(reader, env, self._shared)
        self._turn = 0  # the next partition for records without a key

    # ---- publish

    async def publish(self, request: pb.PublishRequest) -> pb.PublishResponse:
        self._drain.check()
        self._check(request)
        spec = await self._spec(request.topic)
        by_partition: dict[int, list[int]] = defaultdict(list)  # partition -> positions in the request
        indexes = self._partitions(spec, request)
        check_expected(request.records, indexes, request.acks)
        for position, index in enumerate(indexes):
            by_partition[index].append(position)
        digest = _digest_of(request)
        parts = [
            self._publish_to(spec, index, request, [request.records[position] for position in positions], digest)
            for index, positions in by_partition.items()
        ]
        receipts: list[pb.Receipt] = [pb.Receipt()] * len(request.records)
        for (index, positions), accepted in zip(
            by_partition.items(), await _done(parts, at_once=digest != 0), strict=True
        ):
            for delta, position in enumerate(positions):
                receipts[position] = pb.Receipt(
                    partition=index,
                    offset=accepted.base_offset + delta,
                    append_time_us=accepted.append_time_us,
                    duplicate=accepted.duplicate,
                )
        return pb.PublishResponse(receipts=receipts if request.acks != ACKS_NONE else [])

    async def _publish_to(
        self, spec: TopicSpec, index: int, request: pb.PublishRequest, chosen: list[pb.Record], digest: int
    ) -> Accepted:
        """Writes records to one partition, here or at its leader."""
        address = None if request.forwarded else self._led_elsewhere(request.topic, spec, index)
        if address is None:
            partition = self._topics.partition(request.topic, index)
            accepted = await self._append(partition, request, chosen, digest)
            if request.acks != ACKS_NONE:
                await partition.acked(accepted.end_offset, request.acks)
            return accepted
        passed_on = pb.PublishRequest(
            topic=request.topic,
            partition=index,
            records=chosen,
            acks=request.acks,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            sequence=request.sequence,
            idempotency_key=request.idempotency_key,
            content_digest=digest,
            transactional=request.transactional,
            forwarded=True,
        )
        try:
            answer = await self._peers.call(
                address, "comet.v1.Comet/Publish", passed_on, pb.PublishResponse, FORWARD_S_MAX
            )
        except Unavailable as error:
            if isinstance(error, Draining) or error.retry_after_ms:
                raise  # the leader has answered, and sets the time of a retry: it has not taken them
            # It may have been lost on the way there, or on the way back.
            raise Timeout(
                f"forwarded to the leader at {address}, the records may or may not be written: {error}"
            ) from error
        first = answer.receipts[0] if answer.receipts else pb.Receipt()
        return Accepted(first.offset, first.offset + len(chosen), first.append_time_us, first.duplicate)

    async def _append(
        self, partition: Partition, request: pb.PublishRequest, chosen: Sequence[pb.Record], digest: int
    ) -> Accepted:
        """Appends records, once their conditions can be compared with the log."""
        give_up = self._env.clock.monotonic() + limits.KEY_WAIT_S_MAX
        while True:
            try:
                return self._append_now(partition, request, chosen, digest)
            except Refused as refused:
                raise await self._views.confirmed(partition, refused) from None
            except NotInTransaction:
                now_us = self._env.clock.wall_us()
                return await _in_transaction(partition, self._encode_for(partition, request, chosen, digest, now_us))
            except NotReadYet:
                if self._env.clock.monotonic() > give_up:
                    raise Unavailable(
                        f"{partition} is written faster than its keys are read", retry_after_ms=500
                    ) from None
                await self._views.take_in(partition)

    def _append_now(
        self, partition: Partition, request: pb.PublishRequest, chosen: Sequence[pb.Record], digest: int
    ) -> Accepted:
        """The same without an await; raises NotReadYet, Refused or NotInTransaction."""
        now_us = self._env.clock.wall_us()
        batch = self._encode_for(partition, request, chosen, digest, now_us)
        condition = self._views.condition(partition, chosen)
        accepted = partition.produce(batch, request.acks, condition)
        if condition is not None and not accepted.duplicate:
            self._views.appended(partition, accepted.base_offset, chosen, now_us)
        return accepted

    def _encode_for(
        self, partition: Partition, request: pb.PublishRequest, chosen: Sequence[pb.Record], digest: int, now_us: int
    ) -> memoryview:
        return memoryview(self._encode(request, chosen, digest, partition.log.state.config.record_ttl_ms, now_us))

    async def _spec(self, topic: str, topic_id: bytes = b"") -> TopicSpec:
        """The topic's spec; raises TopicNotFound, also if its id differs from `topic_id`."""
        found = self._view.state.topics.get(topic)
        if found is None or (topic_id and found.value.id != topic_id.hex()):
            await self._topics.wait_for(topic)  # it may just have been created through another broker
        spec = self._topics.spec(topic)
        if topic_id and spec.id != topic_id.hex():
            raise TopicNotFound(f"topic {topic!r} was deleted and recreated (id changed); reopen it")
        return spec

    def _led_elsewhere(self, topic: str, spec: TopicSpec, index: int) -> str | None:
        """The address of the partition's leader; None if that is this broker, or there is none and it may be here."""
        me, state = self._env.me, self._topics.state_of(spec.id, index)
        if state is None or state.leader == me:
            return None
        address = None if state.leader == NO_BROKER else self._view.address_of(state.leader)
        if address is None and me not in state.holders:
            raise Unavailable(f"partition {index} of {topic!r} has no leader now", retry_after_ms=50)
        return address

    def _check(self, request: pb.PublishRequest) -> None:
        if not 1 <= len(request.records) <= limits.PUBLISH_RECORDS_MAX:
            raise InvalidArgument(
                f"publish takes 1 to {limits.PUBLISH_RECORDS_MAX} records, not {len(request.records)}"
            )
        for record in request.records:
            if record.ttl_ms:
                check_ttl(record.ttl_ms)
        if request.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            raise InvalidArgument(f"acks must be 0, 1 or 2, not {request.acks}")
        if request.transactional and not (request.producer_id and request.acks == ACKS_ALL):
            raise InvalidArgument("a transactional publish has the producer id of its transaction, and acks=all")
        if request.transactional and any(record.HasField("expected") for record in request.records):
            raise InvalidArgument("a transactional publish takes no `expected`: the transaction may be aborted")
        if request.producer_id and not (request.HasField("partition") or request.transactional):
            raise InvalidArgument("an idempotent publish must name its partition: sequences are counted per partition")
        if request.producer_id < 0 or request.sequence < 0:
            raise InvalidArgument("producer_id and sequence must not be negative")
        if len(request.idempotency_key) > KEY_CHARS_MAX:
            raise InvalidArgument(f"an idempotency key has at most {KEY_CHARS_MAX} characters")
        if request.idempotency_key and request.producer_id:
            raise InvalidArgument("a publish takes either an idempotency key, or a producer id with a sequence")
        if request.content_mac and not (request.idempotency_key and len(request.content_mac) in MAC_BYTES):
            raise InvalidArgument("content_mac has 16 to 64 bytes, and goes with an idempotency key")

    def _partitions(self, spec: TopicSpec, request: pb.PublishRequest) -> list[int]:
        """The partition of each record. It is the requested one, else by key, else by the request's idempotency key, so
        that a retry goes there again, else round robin."""
        if request.HasField("partition"):
            return [request.partition] * len(request.records)
        count = spec.partitions
        if request.idempotency_key:
            other = records.partition_for(request.idempotency_key.encode(), count)
        else:
            self._turn += 1
            other = self._turn % count
        return [
            record.partition
            if record.HasField("partition")
            else records.partition_for(record.key, count)
            if record.HasField("key")
            else other
            for record in request.records
        ]

    @staticmethod
    def _encode(
        request: pb.PublishRequest, chosen: Sequence[pb.Record], digest: int, topic_ttl_ms: int, now_us: int
    ) -> bytes:
        keyed = any(record.HasField("key") for record in chosen)
        headed = any(record.headers for record in chosen)
        values = [record.value if record.HasField("value") else None for record in chosen]
        timestamps = [record.timestamp_us or now_us for record in chosen]
        own, expiry = None, None
        if any(record.ttl_ms for record in chosen):
            own = [expiry_of(at, record.ttl_ms or None) for at, record in zip(timestamps, chosen, strict=True)]
        if own is not None or topic_ttl_ms > 0:
            expiry = expiry_column(own, timestamps, values, topic_ttl_ms)
        parts = records.encode(
            values,
            keys=[record.key if record.HasField("key") else None for record in chosen] if keyed else None,
            timestamps=timestamps,
            expiry=expiry,
            headers=[[(header.name, header.value) for header in record.headers] for record in chosen]
            if headed
            else None,
            producer_id=id_of(request.topic, request.idempotency_key) if digest else request.producer_id,
            producer_epoch=request.producer_epoch,
            base_sequence=digest or request.sequence,
            keyed=digest != 0,
            transactional=request.transactional,
        )
        return b"".join(parts)

    def publish_now(self, request: pb.PublishRequest) -> tuple[Partition, Accepted | None]:
        """For a stream: appends to the partition that the request names, which this broker leads. None: its conditions
        cannot be compared yet, or do not hold; see `publish_here`."""
        partition = self._named(request)
        try:
            return partition, self._append_now(partition, request, request.records, _digest_of(request))
        except (NotInTransaction, NotReadYet, Refused):
            return partition, None

    async def publish_here(self, request: pb.PublishRequest) -> Accepted:
        """The same, with an await; returns once it may be acknowledged."""
        partition = self._named(request)
        accepted = await self._append(partition, request, request.records, _digest_of(request))
        await partition.acked(accepted.end_offset, request.acks)
        return accepted

    def _named(self, request: pb.PublishRequest) -> Partition:
        """The partition of a checked request."""
        if not request.HasField("partition") or request.acks == ACKS_NONE:
            raise InvalidArgument("a publish on a stream names its partition, and takes acks=1 or acks=all")
        if request.forwarded or request.content_digest:
            raise InvalidArgument("a publish on a stream is not forwarded, and has no content_digest")
        self._check(request)
        check_expected(request.records, [request.partition], request.acks)
        return self._topics.partition(request.topic, request.partition)

    # ---- keys

    async def read_keys(self, request: pb.ReadKeysRequest) -> pb.ReadKeysResponse:
        check(request)
        spec = await self._spec(request.topic)
        address = None if request.forwarded else self._led_elsewhere(request.topic, spec, request.partition)
        if address is not None and not (request.stale and self._is_here(spec, request.partition)):
            passed_on = pb.ReadKeysRequest()
            passed_on.CopyFrom(request)
            passed_on.forwarded = True
            return await self._peers.call(
                address, "comet.v1.Comet/ReadKeys", passed_on, pb.ReadKeysResponse, FORWARD_S_MAX
            )
        return await self._views.read(self._topics.partition(request.topic, request.partition), request)

    def read_keys_now(self, request: pb.ReadKeysRequest) -> pb.ReadKeysResponse | None:
        """For a stream: the answer of this broker, if it needs no await."""
        check(request)
        return self._views.read_now(self._topics.partition(request.topic, request.partition), request)

    async def read_keys_here(self, request: pb.ReadKeysRequest) -> pb.ReadKeysResponse:
        return await self._views.read(self._topics.partition(request.topic, request.partition), request)

    def _is_here(self, spec: TopicSpec, index: int) -> bool:
        """Whether this broker has a replica of the partition."""
        state = self._topics.state_of(spec.id, index)
        return state is not None and self._env.me in state.holders

    # ---- fetch

    async def fetch(self, request: pb.FetchRequest) -> pb.FetchResponse:
        parsed(request.filter)  # a malformed one is refused at once
        spec = await self._spec(request.topic, request.topic_id)
        address = None if request.forwarded else self._led_elsewhere(request.topic, spec, request.partition)
        if address is not None:
            passed_on = pb.FetchRequest()
            passed_on.CopyFrom(request)
            passed_on.forwarded = True
            timeout_s = FORWARD_S_MAX + min(request.wait_ms, limits.FETCH_WAIT_MS_MAX) / 1000
            return await self._peers.call(address, "comet.v1.Comet/Fetch", passed_on, pb.FetchResponse, timeout_s)
        partition = self._topics.partition(request.topic, request.partition)
        if request.whole_batches:
            return await self._ranges.fetch(partition, request)
        at: Position = position_from_pb(request.start) if request.HasField("start") else Earliest()
        uncommitted = request.uncommitted
        if isinstance(at, Latest):
            offset = resolve(partition, at, uncommitted=uncommitted)
        else:
            offset = await self._reader.resolve(partition, at)
        answer = partial(self._answer_from, partition, offset, request)
        if offset >= end_of(partition, uncommitted=uncommitted) and request.wait_ms:
            return await answer_later(partition, offset, request, self._env.in_flight, self._shared, answer)
        return await answer()

    async def fetch_now(self, request: pb.FetchRequest) -> tuple[pb.FetchResponse, bytes]:
        """For a stream: the answer without its batches, and these."""
        parsed(request.filter)
        await self._spec(request.topic, request.topic_id)
        return await self._ranges.fetch_now(self._topics.partition(request.topic, request.partition), request)

    async def _answer_from(self, partition: Partition, offset: int, request: pb.FetchRequest) -> pb.FetchResponse:
        async with self._env.in_flight.reserved(_most(request)[1] + BATCH_OVERHEAD_BYTES):
            found = await self._records_from(partition, offset, request)
        return await self.fetch(request) if found is None else found

    async def _records_from(
        self, partition: Partition, offset: int, request: pb.FetchRequest
    ) -> pb.FetchResponse | None:
        """The records; None if those at the offset were deleted meanwhile, so that the position is to be resolved
        again."""
        records_max, bytes_max, uncommitted = *_most(request), request.uncommitted
        found: list[pb.Record] = []
        size = examined = 0
        while offset < (end := end_of(partition, uncommitted=uncommitted)):
            if len(found) >= records_max or size >= bytes_max or examined >= EXAMINED_BYTES_MAX:
                break
            compactions = partition.log.compaction.rounds
            data, next_offset = await self._read(partition, offset, end, bytes_max)
            if request.filter:
                examined += len(data)
                data = await self._filtered(partition, data, request)
            if offset < partition.log.log_start:
                # Deleted meanwhile, together with its aborted transactions.
                if found:
                    break
                return None
            if compactions != partition.log.compaction.rounds:
                continue  # the aborted transactions of what was read may be forgotten
            aborted = [] if uncommitted else partition.watermarks.isolation.aborted(offset, next_offset)
            for record in _records(partition, data, offset, aborted):
                if isinstance(record, CorruptRecords):
                    if found:
                        return _fetched(partition, found, offset, size)  # the next call raises
                    raise record
                if found and (len(found) >= records_max or size >= bytes_max):
                    break
                if not has_expired(record.expires_us, self._env.clock.wall_us()):
                    found.append(record)
                    size += len(record.value) + len(record.key)
                offset = record.offset + 1
            else:
                offset = next_offset
        return _fetched(partition, found, offset, size)

    async def _filtered(self, partition: Partition, data: memoryview, request: pb.FetchRequest) -> memoryview:
        """What the filter of the request leaves of these batches."""
        chosen, env = parsed(request.filter), self._env
        assert chosen is not None
        found = FilteredDelivery(chosen, partition.index, env.filter_time, env.filter_turn, env.worker)
        await found.take(data)
        return memoryview(found.batches())

    async def _read(self, partition: Partition, offset: int, end: int, bytes_max: int) -> tuple[memoryview, int]:
        """Whole batches from the one that holds `offset`."""
        if partition.closed is not None:
            raise partition.closed
        return await self._reader.read_from(partition, offset, end, bytes_max + BATCH_OVERHEAD_BYTES)


async def _in_transaction(partition: Partition, batch: memoryview) -> Accepted:
    """Appends the first batch of a transaction to a partition, once the coordinator has added it."""
    taken: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()

    def done(result: Accepted | CometError) -> None:
        if taken.done():
            return
        if isinstance(result, Accepted):
            taken.set_result(result)
        else:
            taken.set_exception(result)

    partition.transaction_batches.take(batch, done)
    return await taken


async def _done(parts: list[Coroutine[Any, Any, Accepted]], *, at_once: bool) -> list[Accepted]:
    """The results of the parts of a request. All at once if each part can be retried; else one after the other, so that
    nothing is written behind the first that fails. If only some failed, the outcome is an error."""
    done: list[Accepted] = []
    if at_once and len(parts) > 1:
        results = await asyncio.gather(*parts, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        done = [result for result in results if isinstance(result, Accepted)]
        if errors:
            raise _of_parts(next((error for error in errors if isinstance(error, KeyReused)), errors[0]), len(done))
        return done
    try:
        for part in parts:
            done.append(await part)
    except CometError as error:
        raise _of_parts(error, len(done)) from error
    finally:
        for part in parts:
            part.close()
    return done


def _of_parts(error: BaseException, done: int) -> BaseException:
    if not done or not isinstance(error, CometError) or error.outcome_unknown or isinstance(error, KeyReused):
        return error
    return Timeout(f"the records of {done} partitions are written, the others are not: {error}")


def _digest_of(request: pb.PublishRequest) -> int:
    """Of the whole request, also where this is a forwarded part of it; of its plaintext, if the client encrypts. 0
    without an idempotency key."""
    if not request.idempotency_key:
        return 0
    if request.forwarded and request.content_digest:
        return request.content_digest
    return digest_of_mac(request.content_mac) if request.content_mac else digest_of(contents_of(request))


def _most(request: pb.FetchRequest) -> tuple[int, int]:
    """The limits of one answer: records and bytes."""
    return (
        min(request.records_max or 100, limits.FETCH_RECORDS_MAX),
        min(request.bytes_max or limits.MIB, limits.FETCH_BYTES_MAX),
    )


def _fetched(partition: Partition, found: list[pb.Record], next_offset: int, size: int) -> pb.FetchResponse:
    partition.counts.delivered(len(found), size)
    return pb.FetchResponse(
        records=found,
        next_offset=next_offset,
        log_start=partition.log.log_start,
        high_watermark=partition.high_watermark,
    )


def _records(
    partition: Partition, data: memoryview, offset: int, aborted: Sequence[AbortedTransaction]
) -> Iterator[pb.Record | CorruptRecords]:
    """The records at or after `offset` as messages, without those of aborted transactions. An unreadable batch is
    replaced by its error."""
    for start, header in headers(data):
        if not counts(header, aborted) or header.next_offset <= offset:
            continue
        try:
            batch = opened(header, data, start, partition.topic, partition.index, since=offset)
        except CorruptRecords as error:
            yield error
            return
        yield from record_messages(batch, offset)
