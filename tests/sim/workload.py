"""Client processes: real producers and consumers of the SDK, and what they write into the history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from comet.client.client import Client
from comet.consumer.consumer import Consumer
from comet.consumer.options import ReadFrom
from comet.errors import (
    Closed,
    CometError,
    CorruptBatch,
    DataLoss,
    LogFailed,
    MalformedFrame,
    OffsetOutOfRange,
    Truncated,
    UnsupportedVersion,
)
from comet.producer.delivery import BulkDelivery, Delivery
from comet.producer.producer import Producer
from comet.producer.transaction import TransactionalProducer
from comet.settings.topic import Flush
from comet.types import Earliest, Latest
from comet.v1 import admin_pb2 as admin
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet.wire.protobuf import position_to_pb
from tests.sim.history import UNKNOWN_END, Call, Ends, Outcome, PartitionName, Produce, Read, Session, make_value
from tests.sim.raw import Meter, RawClient, Vandal, ends_quietly
from tests.sim.world import World

CALL_S_MAX: Final = 5.0


@dataclass(frozen=True, slots=True)
class TopicPlan:
    name: str
    partitions: int
    flush: Flush
    flush_interval_ms: int
    segment_bytes: int
    retention_records: int  # -1: no limit

    @property
    def tps(self) -> list[PartitionName]:
        return [(self.name, index) for index in range(self.partitions)]


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    acks: Literal[0, 1, "all"]
    idempotent: bool
    linger_ms: float
    batch_bytes: int
    timeout_ms: int
    compression: Literal["none", "lz4", "zstd"]
    pause_s: float
    bulk: bool


def outcome_of(error: CometError) -> Outcome:
    """FAIL is a claim that nothing was written; what does not make it is unknown."""
    if error.outcome_unknown or isinstance(error, LogFailed | Closed):
        return Outcome.UNKNOWN
    return Outcome.FAIL


class ProducerClient:
    """One producer session: it sends until the world stops, and notes what became of every record."""

    def __init__(self, world: World, name: str, plan: ProducerPlan, tps: Sequence[PartitionName]) -> None:
        self.name = name
        self._world = world
        self._plan = plan
        self._tps = tps
        self._random = world.random(name)
        self._number = 0
        self._settling: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        plan, world = self._plan, self._world
        producer = Producer(
            world.addresses,
            acks=plan.acks,
            linger_ms=plan.linger_ms,
            batch_bytes=plan.batch_bytes,
            buffer_bytes=64 << 10,
            compression=plan.compression,
            idempotent=plan.idempotent,
            timeout_ms=plan.timeout_ms,
            name=self.name,
            connect=world.network.connect(self.name),
            random=world.random(f"{self.name}/sdk"),
            clock_us=world.clock.wall_us,
        )
        try:
            while not world.stopping:
                await (self._send_many(producer) if plan.bulk and self._random.random() < 0.5 else self._send(producer))
                await world.sleep(self._random, plan.pause_s)
            if self._settling:
                await asyncio.wait(list(self._settling))
        finally:
            await close_quietly(producer)

    def _next(self, tp: PartitionName) -> Produce:
        size = self._random.choice((60, 200, 200, 1500, 6000))
        value = make_value(self.name, self._number, tp, size)
        plan = self._plan
        acks = 2 if plan.acks == "all" else plan.acks
        operation = Produce(self.name, tp, acks, plan.idempotent and acks > 0, value, self._number, self._world.now())
        self._number += 1
        self._world.history.produces.append(operation)
        return operation

    async def _send(self, producer: Producer) -> None:
        """A few records one by one, perhaps waited for."""
        tp = self._random.choice(self._tps)
        sent: list[tuple[Produce, Delivery]] = []
        for _ in range(self._random.randint(1, 4)):
            operation = self._next(tp)
            try:
                sent.append((operation, await producer.send(tp[0], operation.value, partition=tp[1])))
            except CometError as error:
                self._failed(operation, error)
        settling = asyncio.get_running_loop().create_task(self._settle(sent))
        if self._random.random() < 0.3:
            await settling
        else:
            self._keep(settling)

    async def _settle(self, sent: list[tuple[Produce, Delivery]]) -> None:
        for operation, delivery in sent:
            try:
                receipt = await delivery
            except CometError as error:
                self._failed(operation, error)
            else:
                self._written(operation, receipt.offset)

    async def _send_many(self, producer: Producer) -> None:
        tp = self._random.choice(self._tps)
        operations = [self._next(tp) for _ in range(self._random.randint(1, 12))]
        try:
            bulk = await producer.send_many(tp[0], [op.value for op in operations], partition=tp[1])
        except CometError as error:
            for operation in operations:
                # Some slices may have gone out before the call failed.
                self._failed(operation, error, unknown=True)
            return
        self._keep(asyncio.get_running_loop().create_task(self._settle_many(operations, bulk)))

    async def _settle_many(self, operations: list[Produce], bulk: BulkDelivery) -> None:
        try:
            receipts = await bulk
        except CometError as error:
            for operation in operations:
                self._failed(operation, error, unknown=True)  # one of its batches did, others may be written
            return
        offsets = [
            receipt.first + n if receipt.first >= 0 else -1 for receipt in receipts for n in range(receipt.count)
        ]
        for operation, offset in zip(operations, offsets, strict=True):
            self._written(operation, offset)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    def _written(self, operation: Produce, offset: int) -> None:
        operation.completed = self._world.now()
        operation.outcome, operation.offset = Outcome.OK, offset
        self._world.wrote(operation)

    def _failed(self, operation: Produce, error: CometError, *, unknown: bool = False) -> None:
        operation.completed = self._world.now()
        operation.outcome = Outcome.UNKNOWN if unknown else outcome_of(error)
        operation.code = error.code


async def close_quietly(client: Producer | TransactionalProducer | Consumer[bytes]) -> None:
    try:
        await client.close()
    except CometError:
        return  # failures are in the history already


class ConsumerClient:
    """Reads one topic from beginning to end of the run; starts over when told that its position is gone."""

    def __init__(
        self, world: World, name: str, topic: TopicPlan, start: str, slow_s: float, read_from: ReadFrom = "leader"
    ) -> None:
        self.name = name
        self._world = world
        self._topic = topic
        self._start = start
        self._slow_s = slow_s
        self._read_from: ReadFrom = read_from
        self._random = world.random(name)
        self._sessions: dict[int, int] = {}
        self._session = 0
        self.next_offset: dict[PartitionName, int] = {}  # what it would read next, as far as it knows

    async def run(self) -> None:
        while True:
            try:
                await self._consume()
            except CometError as error:
                self._count(error)
            await self._world.sleep(self._random, 0.2)

    async def _consume(self) -> None:
        world = self._world
        for tp in self._topic.tps:
            self._begin(tp, self._start, "start")
        consumer = Consumer(
            world.addresses,
            self._topic.name,
            start=self._start,
            buffer_bytes=64 << 10,
            read_from=self._read_from,
            name=self.name,
            connect=world.network.connect(self.name),
            random=world.random(f"{self.name}/sdk/{self._session}"),
            clock_us=world.clock.wall_us,
        )
        try:
            await consumer.start()
            while True:
                try:
                    await self._read(consumer)
                except (OffsetOutOfRange, DataLoss, Truncated) as error:
                    await self._go_on(consumer, error)
        finally:
            await close_quietly(consumer)

    async def _read(self, consumer: Consumer[bytes]) -> None:
        async for batch in consumer.batches():
            now = self._world.now()
            session = self._sessions[batch.partition]
            tp = (batch.topic, batch.partition)
            for offset, value in zip(batch.offsets, batch.values, strict=True):
                assert value is not None
                read = Read(self.name, session, tp, offset, value, batch.high_watermark, now)
                self._world.history.reads.append(read)
                self._world.saw(read)
            self.next_offset[tp] = batch.next_offset
            if self._slow_s and not self._world.stopping:
                await self._world.sleep(self._random, self._slow_s)
            if self._random.random() < 0.003 and not self._world.stopping:
                await self._seek_back(consumer, batch.partition)

    async def _seek_back(self, consumer: Consumer[bytes], partition: int) -> None:
        tp = (self._topic.name, partition)
        self._begin(tp, "earliest", "seek")
        await consumer.seek("earliest", partition=partition)

    async def _go_on(self, consumer: Consumer[bytes], error: OffsetOutOfRange | DataLoss | Truncated) -> None:
        """Does what an application does that was told of a loss: notes it and goes on behind it."""
        self._count(error)
        tp = (self._topic.name, int(error.details["partition"]))
        if isinstance(error, DataLoss):
            after = int(error.details["end"])
            self._begin(tp, "offset", error.code, after)
            await consumer.seek(after, partition=tp[1])
        elif isinstance(error, Truncated):
            end = int(error.details["log_end"])
            self._begin(tp, "offset", error.code, end)
            await consumer.seek(end, partition=tp[1])
        else:
            self._begin(tp, "earliest", error.code)
            await consumer.seek("earliest", partition=tp[1])

    def _begin(self, tp: PartitionName, start: str, why: str, first: int = -1) -> None:
        self._session += 1
        self._sessions[tp[1]] = self._session
        self._world.history.sessions.append(Session(self.name, self._session, tp, start, why, first, self._world.now()))

    def _count(self, error: CometError) -> None:
        now = self._world.now()
        if isinstance(error, CorruptBatch | MalformedFrame | UnsupportedVersion):
            self._world.history.complaints.append(f"{self.name} at {now:.4f} s was sent damaged bytes: {error}")
        self._world.history.calls.append(Call(self.name, "consume", now, now, Outcome.FAIL, error.code))


class AdminClient:
    """Asks how far the logs reach, deletes records, makes and deletes topics that nobody else uses."""

    def __init__(
        self, world: World, name: str, topics: Sequence[TopicPlan], *, deletes: bool, pause_s: float = 0.08
    ) -> None:
        self.name = name
        self._world = world
        self._topics = topics
        self._deletes = deletes
        self._pause_s = pause_s
        self._random = world.random(name)
        self._made = 0

    async def run(self) -> None:
        client = Client(
            self._world.addresses,
            name=self.name,
            connect=self._world.network.connect(self.name),
            random=self._world.random(f"{self.name}/sdk"),
        )
        try:
            while not self._world.stopping:
                topic = self._random.choice(self._topics)
                tp = self._random.choice(topic.tps)
                chance = self._random.random()
                if chance < 0.04 and self._deletes:
                    await self._call("DeleteRecords", self._delete_records(client, tp))
                elif chance < 0.08:
                    await self._call("topics", self._make_and_delete(client))
                else:
                    await self._call("ends", self._ends(client, tp))
                await self._world.sleep(self._random, self._pause_s)
        finally:
            await client.close()

    async def _call(self, name: str, work: object) -> None:
        call = Call(self.name, name, self._world.now())
        self._world.history.calls.append(call)
        try:
            async with asyncio.timeout(CALL_S_MAX):
                await work  # type: ignore[misc]
        except TimeoutError:
            call.outcome, call.code = Outcome.UNKNOWN, "TIMEOUT"
        except CometError as error:
            call.outcome, call.code = outcome_of(error), error.code
        else:
            call.outcome = Outcome.OK
        call.completed = self._world.now()

    async def _ends(self, client: Client, tp: PartitionName) -> None:
        invoked = self._world.now()
        attachment = await client.attach(*tp)
        position = self._random.choice((Latest(), Earliest()))
        find = pb.FindOffset(partition=attachment.handle, position=position_to_pb(position))
        before = self._world.standing(tp)
        answer = await attachment.connection.call(pb.ClientFrame(find_offset=find))
        found = answer.found_offset
        if isinstance(position, Latest):
            self._world.told(tp, attachment.connection.broker_id, found.offset, before)
        self._world.history.ends.append(
            Ends(self.name, tp, invoked, self._world.now(), found.log_start, found.high_watermark)
        )

    async def _delete_records(self, client: Client, tp: PartitionName) -> None:
        attachment = await client.attach(*tp)
        before = self._random.randint(0, attachment.high_watermark)
        deletes = self._world.history.deletes
        deletes[tp] = max(deletes.get(tp, 0), before)  # from now on it may happen, whatever is answered
        request = admin.DeleteRecordsRequest(name=tp[0], partition=tp[1], before_offset=before)
        invoked = self._world.now()
        answer = await client.unary("comet.v1.Admin/DeleteRecords", request, admin.DeleteRecordsResponse)
        if answer.log_start < before:
            self._world.history.complaints.append(f"{tp} begins at {answer.log_start} after deleting up to {before}")
        self._world.history.ends.append(Ends(self.name, tp, invoked, self._world.now(), answer.log_start, UNKNOWN_END))

    async def _make_and_delete(self, client: Client) -> None:
        self._made += 1
        name = f"{self.name}-topic-{self._made}"
        await client.unary("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name=name, partitions=2), types.Topic)
        await client.unary("comet.v1.Admin/DeleteTopic", admin.DeleteTopicRequest(name=name), admin.DeleteTopicResponse)


async def meter(world: World, name: str, tps: Sequence[PartitionName]) -> None:
    """Again and again a subscriber that grants little credit and counts what it gets."""
    random = world.random(name)
    while not world.stopping:
        client = RawClient(world.network, name, random.choice(world.addresses))
        try:
            await Meter(client, random.choice(tps), world.history, random).run()
        except Exception as error:
            if not ends_quietly(error):
                raise
        finally:
            client.close()
        await world.sleep(random, 0.5)


async def vandal(world: World, name: str, tps: Sequence[PartitionName]) -> None:
    random = world.random(name)
    while not world.stopping:
        client = RawClient(world.network, name, random.choice(world.addresses))
        try:
            await Vandal(client, random.choice(tps), world.history, random, world.now).run()
        except Exception as error:
            if not ends_quietly(error):
                raise
        finally:
            client.close()
        await world.sleep(random, 1.0)
