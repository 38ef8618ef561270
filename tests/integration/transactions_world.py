"""Transactions on three brokers: two topics, producers that look for coordinators and leaders, and means to disturb."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from comet.errors import CometError, Unavailable
from comet.v1 import admin_pb2 as admin
from comet.v1 import groups_pb2 as pb
from comet.v1 import records_pb2 as records_pb
from comet.wire.protobuf import error_from_pb
from comet_broker.coordination.journal import slot_prefix
from comet_broker.core.slots import slot_of
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import Compare, Delete, Put, StoreUnavailable, TransactionResult
from comet_broker.partitions.partition import Partition
from comet_broker.ports import PeerChannel
from comet_broker.rpc.local_channel import LocalNetwork
from tests import waiting
from tests.integration.group_client import Stream
from tests.integration.local_cluster import LocalCluster, until
from tests.integration.test_isolation import Reader, Transactional

TOPICS = ("orders", "payments")
PARTITIONS = 3
OUTPUTS = [(topic, index) for topic in TOPICS for index in range(PARTITIONS)]
ASK_S = 20.0
Output = tuple[str, int]


class GatedStore(MemoryStore):
    """What a slot's coordinator writes can be kept from the store, or its answers from the coordinator."""

    prefix = "-"  # of the keys that are disturbed
    applies = False  # the write takes effect, and nobody hears of it
    tried = 0

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        if not any(operation.key.startswith(self.prefix) for operation in operations):
            return await super().transact(compares, operations)
        self.tried += 1
        if self.applies:
            await super().transact(compares, operations)
        raise StoreUnavailable("kept back by the test")

    async def get(self, key: str) -> Any:
        if key.startswith(self.prefix):
            raise StoreUnavailable("kept back by the test")
        return await super().get(key)

    def disturb(self, name: str, *, applies: bool = False) -> None:
        self.prefix, self.applies, self.tried = slot_prefix(slot_of(name)), applies, 0

    def calm(self) -> None:
        self.prefix = "-"


class GatedNetwork(LocalNetwork):
    """Markers for some brokers do not arrive, and nobody talks to a broker that has stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.deaf: set[str] = set()  # addresses
        self.refused_markers = 0

    def connect(self, address: str) -> PeerChannel:
        channel: Any = super().connect(address)
        unary, there = channel.unary, self.brokers.get(address)

        async def gated(method: str, request: Message, response: type[Message], timeout_s: float) -> Message:
            if method.endswith("/WriteMarkers") and address in self.deaf:
                self.refused_markers += 1
                raise Unavailable("kept back by the test")
            if self.brokers.get(address) is not there:
                raise Unavailable("that broker has stopped; another may be there by now")
            answer: Message = await unary(method, request, response, timeout_s)
            return answer

        channel.unary = gated
        return channel  # type: ignore[no-any-return]


async def a_moment() -> None:
    """Brokers take a while to agree, and nobody says when they have."""
    await waiting.until(lambda: False, within_s=0.01, every_s=0.01)


async def _ask(stream: Stream, **frame: Any) -> records_pb.ServerFrame:
    """The answer, or Unavailable when the stream ends before it."""
    try:
        answer = stream.send(**frame)
        waits: list[asyncio.Future[Any]] = [answer, stream._reader]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise Unavailable("the stream has ended")
        return answer.result()
    finally:
        await stream.close()


class World(LocalCluster):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.network: GatedNetwork = GatedNetwork()
        self.store = self._store = GatedStore(self.clock)

    async def make_topics(self) -> None:
        for topic in TOPICS:
            await self.call(
                "comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name=topic, partitions=PARTITIONS, replicas=3)
            )
        await self.led()

    async def led(self) -> None:
        await until(lambda: all(self.leader(*output) for output in OUTPUTS), "every partition has a leader")

    def leading(self, output: Output) -> Partition:
        return self.replicas(*output)[self.leader(*output)]

    async def coordinator(self, name: str) -> int:
        found = await self.call("comet.v1.Comet/FindCoordinator", pb.FindCoordinatorRequest(name=name))
        assert isinstance(found, pb.FindCoordinatorResponse)
        return found.broker

    async def ask(self, name: str, **frame: Any) -> records_pb.ServerFrame:
        """Asks whoever coordinates the name by now, as a client does. Raises what is final."""
        async with asyncio.timeout(ASK_S):
            while True:
                broker = self.brokers.get(await self.coordinator(name))
                try:
                    if broker is not None:
                        answer = await _ask(Stream(broker), **frame)
                        if answer.WhichOneof("frame") != "error":
                            return answer
                        raise error_from_pb(answer.error.error)
                except CometError as error:
                    if not error.retriable:
                        raise
                await a_moment()

    async def seen(self, output: Output) -> list[bytes | None]:
        """The committed values of a partition, as a reader gets them at its leader. Read again if that changes."""
        while True:
            await until(lambda: self.leader(*output) != 0 and self.leading(output).settled, "a settled leader")
            got = await self._seen_at(output, self.leader(*output))
            if got is not None:
                return got

    async def _seen_at(self, output: Output, broker: int) -> list[bytes | None] | None:
        """The committed values at a leader; None if another one leads meanwhile."""
        leading, got = self.leading(output), list[bytes | None]()
        epoch = leading.leader_epoch
        reader = Reader(self.brokers[broker])
        await reader.start(await reader.attach(*output))

        def leads() -> bool:
            return self.leader(*output) == broker and self.leading(output).leader_epoch == epoch

        def over() -> bool:
            got.extend(reader.take() if leads() else ())
            return not leads() or reader.next_offset >= leading.last_stable_offset

        await until(over, "all committed records are read")
        reader.session.close()
        return got if leads() else None

    async def all_seen(self) -> list[list[bytes | None]]:
        return [await self.seen(output) for output in OUTPUTS]

    def readers_are_free(self) -> bool:
        """Nobody waits for a transaction anywhere."""
        leaders = [self.leading(output) for output in OUTPUTS if self.leader(*output)]
        return len(leaders) == len(OUTPUTS) and all(one.last_stable_offset == one.high_watermark for one in leaders)


def _expected(kind: str, answer: records_pb.ServerFrame) -> records_pb.ServerFrame:
    """The answer. Raises the error that it is, or Unavailable for the notice of a broker that stops: it acknowledges
    nothing."""
    found = answer.WhichOneof("frame")
    if found == "error":
        raise error_from_pb(answer.error.error)
    if found != kind:
        raise Unavailable(f"{found} came in place of {kind}")
    return answer


class Producer:
    """A producer of transactions on a cluster."""

    def __init__(self, world: World, name: str, group: str = "") -> None:
        self.world = world
        self.name = name
        self.group = group
        self.producer_id = self.epoch = 0
        self.note = b""  # that it was told when it opened the id
        self.sequences: dict[Output, int] = {}

    @property
    def where(self) -> str:
        return self.group or self.name

    async def open(self, timeout_ms: int = 0, member: str = "") -> None:
        opening = pb.OpenTransactions(
            transactional_id=self.name, group=self.group, timeout_ms=timeout_ms, member=member
        )
        opened = (await self.world.ask(self.where, open_transactions=opening)).opened_transactions
        self.name, self.producer_id, self.epoch = opened.transactional_id, opened.producer_id, opened.epoch
        self.note = opened.note
        self.sequences = {}

    async def write(self, output: Output, *values: bytes) -> None:
        """To whoever leads by now; raises what is final."""
        sequence = self.sequences.get(output, 0)
        async with asyncio.timeout(ASK_S):
            while True:
                leader = self.world.leader(*output)
                try:
                    if leader:
                        await self._write(leader, output, sequence, values)
                        self.sequences[output] = sequence + len(values)
                        return
                except CometError as error:
                    if not (error.retriable or error.outcome_unknown):
                        raise
                await a_moment()

    async def _write(self, leader: int, output: Output, sequence: int, values: Sequence[bytes]) -> None:
        client = Transactional(self.world.brokers[leader])
        try:
            client.send(attach=records_pb.Attach(topic=output[0], partition=output[1]))
            answer = _expected("attached", await client.answer())
            client.producer_id, client.epoch = self.producer_id, self.epoch
            handle = answer.attached.partition
            client.sequences = {handle: sequence}
            client.begin(handle, *values)
            _expected("acks", await client.answer())
        finally:
            client.session.close()

    async def write_all(self, value: bytes) -> None:
        await asyncio.gather(*(self.write(output, value) for output in OUTPUTS))

    async def end(self, *, commit: bool, offsets: pb.Commit | None = None, note: bytes = b"") -> None:
        ending = pb.EndTransaction(
            transactional_id=self.name,
            producer_id=self.producer_id,
            epoch=self.epoch,
            commit=commit,
            group=self.group,
            offsets=offsets,
            note=note,
        )
        self.epoch = (await self.world.ask(self.where, end_transaction=ending)).ended_transaction.next_epoch
        self.sequences = {}
