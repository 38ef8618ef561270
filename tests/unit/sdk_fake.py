"""A broker in memory behind the SDK's transport, small enough to be believed, that a test can make misbehave.

It writes batches once per identity and refuses gaps as the real one does, and keeps what it was sent for tests to
look at. `script` decides the fate of every produced batch; `cut` breaks all connections; `up` is whether new ones
work. Several of them make the cluster of sdk_fake_cluster. Used on the virtual time of comet_testing.simulation.loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from google.protobuf.message import Message

from comet import records
from comet.entities import BrokerInfo, PartitionInfo, TopicInfo
from comet.errors import (
    CometError,
    OffsetOutOfRange,
    PartitionNotFound,
    ProducerFenced,
    SequenceGap,
    SequenceTooOld,
    Timeout,
    TopicExists,
    TopicNotFound,
    Truncated,
    Unavailable,
    UnknownProducer,
)
from comet.records import BatchHeader
from comet.settings.topic import TopicConfig
from comet.types import AtOffset, AtTime, Earliest, Latest
from comet.v1 import admin_pb2 as admin
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet.wire import protobuf
from comet.wire.frames import delivery_prefix, parse_produce

ADDRESS = "fake:9092"
LATENCY_S = 0.001


class Fate(Enum):
    """What becomes of a produced batch that is not refused."""

    WRITTEN = auto()
    WRITTEN_UNANSWERED = auto()
    LOST = auto()  # neither written nor answered


Script = Callable[["FakePartition", BatchHeader], "Fate | CometError"]


class FakePartition:
    def __init__(self, topic: str, index: int, handle: int) -> None:
        self.topic, self.index, self.handle = topic, index, handle
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.start = self.end = 0
        self.epoch = 1  # of the leader that writes
        self.producers: dict[int, tuple[int, int, deque[tuple[int, int, int]]]] = {}

    def check(self, header: BatchHeader) -> int | None:
        """The offset of an earlier copy, None for a new batch. Raises what the real broker raises."""
        if not header.producer_id:
            return None
        known = self.producers.get(header.producer_id)
        if known is None:
            if header.base_sequence:
                raise UnknownProducer("who is this?")
            return None
        epoch, next_sequence, recent = known
        if header.producer_epoch < epoch:
            raise ProducerFenced("an old epoch")
        if header.producer_epoch > epoch:
            if header.base_sequence:
                raise SequenceGap("a new epoch begins at 0")
            return None
        if header.base_sequence < next_sequence:
            for sequence, count, offset in recent:
                if (sequence, count) == (header.base_sequence, header.record_count):
                    return offset
            raise SequenceTooOld("long ago")
        if header.base_sequence > next_sequence:
            raise SequenceGap(f"expected {next_sequence}, got {header.base_sequence}")
        return None

    def append(self, header: BatchHeader, batch: bytes) -> int:
        base = self.end
        stamped = records.make_stamp(base, 1, self.epoch, header.length) + batch[records.STAMP_BYTES :]
        self.take(records.read_header(stamped), stamped)
        return base

    def take(self, header: BatchHeader, batch: bytes) -> None:
        """Takes a batch over as it is."""
        self.batches.append((header, batch))
        self.end = header.next_offset
        self._note(header, header.base_offset)

    def _note(self, header: BatchHeader, base: int) -> None:
        if header.producer_id:
            epoch, _, recent = self.producers.get(header.producer_id, (-1, 0, deque(maxlen=32)))
            if epoch != header.producer_epoch:
                recent = deque(maxlen=32)
            recent.append((header.base_sequence, header.record_count, base))
            self.producers[header.producer_id] = (header.producer_epoch, header.end_sequence, recent)

    def end_of_epoch(self, epoch: int) -> int:
        """Where what was written up to an epoch ends."""
        return max((header.next_offset for header, _ in self.batches if header.leader_epoch <= epoch), default=0)

    def values(self) -> list[bytes | None]:
        return [value for _, batch in self.batches for value in records.decode(batch).values]

    def truncate(self, count: int) -> None:
        """Loses the last batches, as a power cut does; what is known of producers is read from the log again."""
        del self.batches[len(self.batches) - count :]
        self.end = self.batches[-1][0].next_offset if self.batches else self.start
        self.producers.clear()
        for header, _ in self.batches:
            self._note(header, header.base_offset)


class FakeStream:
    """One Stream call as the broker sees it."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.failure: CometError | None = None
        self.ended = False
        self.credit: dict[int, int] = {}
        self.cursors: dict[int, tuple[int, int]] = {}  # handle: (subscription, next offset)
        self.leader_only: set[int] = set()
        self.starts: list[pb.Start] = []
        self._out: deque[bytes] = deque()
        self._under_way: deque[bytes] = deque()
        self._reader: asyncio.Future[None] | None = None

    async def write(self, frame: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        self.broker.frames.append(frame)
        await asyncio.sleep(self.broker.write_s)
        if self.failure is None and not self.broker.frozen:
            self._receive(frame)

    async def read(self) -> bytes | None:
        while True:
            if self.failure is not None:
                raise self.failure
            if self._out:
                return self._out.popleft()
            if self.ended:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader

    def cancel(self) -> None:
        self.fail(Unavailable("cancelled"))

    def fail(self, error: CometError) -> None:
        self.failure = self.failure or error
        self.broker.streams.discard(self)
        self._rouse()

    def end(self) -> None:
        self.ended = True
        self.broker.streams.discard(self)
        self._rouse()

    def send(self, frame: pb.ServerFrame | bytes) -> None:
        data = frame if isinstance(frame, bytes) else frame.SerializeToString()
        self._under_way.append(data)
        asyncio.get_running_loop().call_later(LATENCY_S, self._sent)

    def _sent(self) -> None:
        data = self._under_way.popleft()  # timers of one moment fire in any order, frames do not
        if not self.broker.frozen:
            self._out.append(data)
            self._rouse()

    def _rouse(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _receive(self, data: bytes) -> None:
        produce = parse_produce(data)
        request = 0
        try:
            if produce is not None:
                request, handle, acks, batch = produce
                self._produce(request, handle, acks, bytes(batch))
                return
            frame = pb.ClientFrame.FromString(data)
            request = frame.request
            kind = frame.WhichOneof("frame")
            assert kind is not None
            getattr(self, f"_on_{kind}")(request, getattr(frame, kind))
        except CometError as error:
            self.send(pb.ServerFrame(request=request, error=pb.StreamError(error=protobuf.error_to_pb(error))))

    def _produce(self, request: int, handle: int, acks: int, batch: bytes) -> None:
        partition = self.broker.partition(handle)
        self.broker.check_produce(partition, acks)
        header = records.verify(batch, stamped=False)
        fate = self.broker.script(partition, header)
        if isinstance(fate, CometError):
            raise fate
        if fate is Fate.LOST:
            return
        base = partition.check(header)
        if base is None:
            base = partition.append(header, batch)
            self.broker.appended(partition)
        if request and acks and fate is Fate.WRITTEN:
            acked = pb.ProduceAcks(
                requests=[request], base_offsets=[base], append_times_us=[1], throttled_ms=self.broker.throttled_ms
            )
            self.send(pb.ServerFrame(acks=acked))

    def _on_hello(self, request: int, hello: pb.Hello) -> None:
        self.send(
            pb.ServerFrame(request=request, welcome=pb.Welcome(broker_id=self.broker.id, batch_bytes_max=8 << 20))
        )

    def _on_ping(self, request: int, ping: pb.Ping) -> None:
        self.send(pb.ServerFrame(request=request, pong=pb.Pong()))

    def _on_attach(self, request: int, attach: pb.Attach) -> None:
        topic = self.broker.topics.get(attach.topic)
        if topic is None:
            raise TopicNotFound(attach.topic)
        partition = topic[attach.partition]
        self.send(
            pb.ServerFrame(
                request=request,
                attached=pb.Attached(
                    partition=partition.handle,
                    topic_id=self.broker.ids[attach.topic],
                    leader_epoch=partition.epoch,
                    log_start=partition.start,
                    high_watermark=partition.end,
                ),
            )
        )

    def _on_find_offset(self, request: int, find: pb.FindOffset) -> None:
        partition = self.broker.partition(find.partition)
        offset = self._resolve(partition, find.position)
        self.send(pb.ServerFrame(request=request, found_offset=pb.FoundOffset(offset=offset)))

    def _resolve(self, partition: FakePartition, position: Any) -> int:
        match protobuf.position_from_pb(position):
            case Earliest():
                return partition.start
            case Latest():
                return partition.end
            case AtTime(timestamp_us):
                times = [(h.min_timestamp_us, h.base_offset) for h, _ in partition.batches]
                return next((offset for time, offset in times if time >= timestamp_us), partition.end)
            case AtOffset(offset):
                if not partition.start <= offset <= partition.end:
                    raise OffsetOutOfRange(
                        "gone", details={"log_start": str(partition.start), "log_end": str(partition.end)}
                    )
                return offset

    def _on_subscribe(self, request: int, subscribe: pb.Subscribe) -> None:
        number = subscribe.subscription
        answer = pb.Subscribed(subscription=number)
        for start in subscribe.starts:
            partition = self.broker.partition(start.partition)
            assert partition.handle not in self.cursors, "subscribed twice"
            if subscribe.leader_only:
                self.broker.check_leader(partition)
            if start.HasField("leader_epoch"):
                end = partition.end_of_epoch(start.leader_epoch)
                if start.position.offset > end:
                    raise Truncated("the log was cut back", details={"log_end": str(end)})
            self.starts.append(start)
            offset = self._resolve(partition, start.position)
            answer.partitions.add(partition=partition.handle, offset=offset, high_watermark=partition.end)
        self.credit[number] = self.credit.get(number, 0) + subscribe.credit
        for started in answer.partitions:
            self.cursors[started.partition] = (number, started.offset)
            if subscribe.leader_only:
                self.leader_only.add(started.partition)
        self.send(pb.ServerFrame(request=request, subscribed=answer))
        self.push()

    def _on_unsubscribe(self, request: int, unsubscribe: pb.Unsubscribe) -> None:
        for handle in unsubscribe.partitions:
            self.cursors.pop(handle, None)
            self.leader_only.discard(handle)
        self.send(pb.ServerFrame(request=request, unsubscribed=pb.Unsubscribed()))

    def _on_credit(self, request: int, credit: pb.Credit) -> None:
        self.credit[credit.subscription] += credit.bytes
        self.broker.credit_bytes += credit.bytes
        self.push()

    def push(self) -> None:
        """Sends what credit allows."""
        for handle, (number, start) in list(self.cursors.items()):
            offset = start
            partition = self.broker.partition(handle)
            if offset < partition.start:
                self.end_cursor(handle, OffsetOutOfRange("deleted", details={"log_start": str(partition.start)}))
                continue
            for header, batch in partition.batches:
                if header.next_offset <= offset or self.credit[number] <= 0:
                    continue
                data = self.broker.damage(partition, batch)
                self.credit[number] -= len(data)
                offset = header.next_offset
                self.cursors[handle] = (number, offset)
                self.broker.deliveries += 1
                self.send(delivery_prefix(handle, partition.end, partition.epoch, len(data)) + data)

    def end_cursor(self, handle: int, error: CometError) -> None:
        number, _ = self.cursors.pop(handle)
        self.leader_only.discard(handle)
        ended = pb.StreamError(error=protobuf.error_to_pb(error), subscription=number, partition=handle)
        self.send(pb.ServerFrame(error=ended))


class FakeChannel:
    def __init__(self, broker: FakeBroker, address: str) -> None:
        self.broker, self.address = broker, address
        self.closed = False
        broker.channels.append(self)

    def stream(self) -> FakeStream:
        stream = FakeStream(self.broker)
        self.broker.connects += 1
        if self.broker.reachable(self.address):
            self.broker.streams.add(stream)
        else:
            stream.fail(Unavailable(f"{self.address} refuses"))
        return stream

    async def unary(
        self, method: str, request: Message, response: type[Message], timeout_s: float, acting: Any = None
    ) -> Any:
        await asyncio.sleep(LATENCY_S)
        give_up = asyncio.get_running_loop().time() + timeout_s
        while self.broker.frozen and self.broker.reachable(self.address):
            await asyncio.sleep(0.01)
            if asyncio.get_running_loop().time() >= give_up:
                raise Timeout(f"{self.address} did not answer")
        if not self.broker.reachable(self.address):
            raise Unavailable(f"{self.address} refuses")
        self.broker.calls.append(method)
        return self.broker.answer(method, request)

    async def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True


class FakeBroker:
    """See the top of the file."""

    def __init__(self, topics: dict[str, int] | None = None, id: int = 1) -> None:  # noqa: A002 - as in BrokerInfo
        self.id = id
        self.up = True
        self.throttled_ms = 0  # of each acknowledgement
        self.frozen = False  # takes everything and answers nothing, like a stopped process
        self.dead_addresses: set[str] = set()
        self.write_s = LATENCY_S  # how long the transport is busy with a frame
        self.script: Script = lambda partition, header: Fate.WRITTEN
        self.damage: Callable[[FakePartition, bytes], bytes] = lambda partition, batch: batch
        self.topics: dict[str, list[FakePartition]] = {}
        self.ids: dict[str, bytes] = {}
        self.config = TopicConfig()
        self.streams: set[FakeStream] = set()
        self.channels: list[FakeChannel] = []
        self.frames: list[bytes] = []
        self.calls: list[str] = []
        self.connects = self.deliveries = self.credit_bytes = 0
        self._handles: dict[int, FakePartition] = {}
        self._next_handle = 1
        for name, partitions in (topics or {"quotes": 1}).items():
            self.create(name, partitions)

    def connect(self, address: str) -> FakeChannel:
        return FakeChannel(self, address)

    def reachable(self, address: str) -> bool:
        return self.up and address not in self.dead_addresses

    def create(self, name: str, partitions: int) -> None:
        if name in self.topics:
            raise TopicExists(name)
        self.topics[name] = []
        self.ids[name] = self._next_handle.to_bytes(16, "little")
        self.grow(name, partitions)

    def grow(self, name: str, total: int) -> None:
        for index in range(len(self.topics[name]), total):
            partition = FakePartition(name, index, self._next_handle)
            self._handles[self._next_handle] = partition
            self._next_handle += 1
            self.topics[name].append(partition)

    def delete(self, name: str) -> None:
        for partition in self.topics.pop(name):
            del self._handles[partition.handle]
            for stream in list(self.streams):
                if partition.handle in stream.cursors:
                    stream.end_cursor(partition.handle, PartitionNotFound("the topic was deleted"))

    def renumber(self) -> None:
        """A restart: handles are new, connections are gone."""
        self.cut()
        for handle, partition in list(self._handles.items()):
            del self._handles[handle]
            partition.handle = self._next_handle
            self._handles[self._next_handle] = partition
            self._next_handle += 1

    def partition(self, handle: int) -> FakePartition:
        partition = self._handles.get(handle)
        if partition is None:
            raise PartitionNotFound(f"no handle {handle}")
        return partition

    def check_leader(self, partition: FakePartition) -> None:
        """Raises NotLeader where another broker leads."""

    def check_produce(self, partition: FakePartition, acks: int) -> None:
        """Raises what speaks against an append."""

    def appended(self, partition: FakePartition) -> None:
        self.push()

    def push(self) -> None:
        for stream in list(self.streams):
            stream.push()

    def go_away(self) -> None:
        for stream in list(self.streams):
            stream.send(pb.ServerFrame(go_away=pb.GoAway(reason="it stops")))

    def cut(self) -> None:
        """Breaks every connection."""
        for stream in list(self.streams):
            stream.fail(Unavailable("the connection was cut"))

    def describe(self, name: str) -> TopicInfo:
        partitions = tuple(PartitionInfo(p.index, 1, 1, (1,), (1,)) for p in self.topics[name])
        return TopicInfo(name, self.ids[name], partitions, self.config, 0)

    def brokers(self) -> list[BrokerInfo]:
        host, port = ADDRESS.split(":")
        return [BrokerInfo(1, host, int(port), "fake")]

    def answer(self, method: str, request: Any) -> Any:
        match method:
            case "comet.v1.Comet/FetchMetadata":
                found = [protobuf.topic_to_pb(self.describe(name)) for name in request.topics if name in self.topics]
                brokers = [
                    types.Broker(id=one.id, host=one.host, port=one.port, version=one.version, rack=one.rack)
                    for one in self.brokers()
                ]
                return pb.FetchMetadataResponse(cluster_id="fake", broker_id=self.id, brokers=brokers, topics=found)
            case "comet.v1.Admin/CreateTopic":
                self.create(request.name, request.partitions)
                return protobuf.topic_to_pb(self.describe(request.name))
            case "comet.v1.Admin/ListTopics":
                # Pages of one topic, so that paging is tested.
                names = sorted(name for name in self.topics if name > request.page_token)
                token = names[0] if len(names) > 1 else ""
                topics = [protobuf.topic_to_pb(self.describe(name)) for name in names[:1]]
                return admin.ListTopicsResponse(topics=topics, next_page_token=token)
        raise AssertionError(f"the fake does not know {method}")
