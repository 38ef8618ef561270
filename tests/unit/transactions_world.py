"""Transactions of one slot on virtual time: a real journal and store, and brokers that only have markers written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from types import SimpleNamespace
from typing import Any

from google.protobuf.message import Message

from comet.errors import CometError, NotCoordinator, Unavailable
from comet.settings.topic import TopicConfig
from comet.v1 import coordination_pb2 as coordination
from comet.v1 import groups_pb2 as pb
from comet_broker.coordination import markers
from comet_broker.coordination.context import SlotClaim
from comet_broker.coordination.journal import Head, Journal
from comet_broker.coordination.transactions import PREFIX, Transactions
from comet_broker.core.cluster import (
    DELETED,
    BrokerRecord,
    PartitionId,
    PartitionState,
    Tombstone,
    TopicSpec,
    broker_key,
    partition_key,
    topic_key,
)
from comet_broker.core.filter_time import FilterTime
from comet_broker.core.transactions import TransactionRecord
from comet_broker.env import Env
from comet_broker.failures import Failures
from comet_broker.memory.in_flight import InFlight
from comet_broker.metadata.store import Compare, Delete, Put
from tests.unit.cluster_world import Member, World, on_virtual_time
from tests.unit.replica_world import HeldWorker
from tests.waiting import until

TOPIC = "ab" * 16
HERE, THERE = (TOPIC, 0), (TOPIC, 1)  # led by this broker, and by another
SLOT = 3
SLOT_PREFIX = f"coordination/{SLOT}/"


class Leader:
    """A partition at its leader, as far as markers go."""

    leadership = None

    def __init__(self, world: Cluster, tp: PartitionId) -> None:
        self.world = world
        self.tp = tp
        self.transaction_batches = self

    async def write_marker(self, producer_id: int, epoch: int, commit: bool) -> None:
        self.world.asked += 1
        await self.world.may_mark.wait()
        if self.tp in self.world.stuck:
            await asyncio.get_running_loop().create_future()
        if self.world.refusals:
            raise self.world.refusals.pop(0)
        before = self.world.marks.setdefault((self.tp, producer_id, epoch), commit)
        assert before is commit, f"epoch {epoch} has ended in two ways in {self.tp}"


class FakeGroups:
    """Admits what it is told to, and keeps positions as the real ones do: in the write of the transaction."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.error: CometError | None = None
        self.refused: list[pb.RefusedOffset] = []
        self.unknown_ends: CometError | None = None
        self.written_with: list[str] = []  # the keys of what is to be written with positions

    async def learn_ends(self, _: pb.Commit) -> None:
        await asyncio.sleep(0)
        if self.unknown_ends is not None:
            raise self.unknown_ends

    def admit(self, commit: pb.Commit) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(refused=self.refused, value=commit.SerializeToString())

    def write(self, admitted: Any, operations: Any, done: Any) -> None:
        self.written_with += [operation.key for operation in operations]
        self.journal.write([Put(SLOT_PREFIX + "offsets/g", admitted.value), *operations], done)


class Cluster:
    """One coordinator at a time, which can be lost; what it has written stays."""

    def __init__(self, world: World, member: Member) -> None:
        self.world = world
        self.member = member
        self.marks: dict[tuple[PartitionId, int, int], bool] = {}
        self.asked = 0
        self.may_mark = asyncio.Event()
        self.may_mark.set()
        self.refusals: list[Exception] = []  # of leaders, one per marker
        self.stuck: set[PartitionId] = set()  # too few of their replicas are in sync
        self.broken: list[Exception] = []  # calls that end with an unexpected error
        self.reachable = True
        self.env = Env(
            member.config,
            member.clock,
            HeldWorker(),
            Random(1),
            member.tasks,
            Failures(member.clock, member.tasks),
            InFlight(1 << 20),
            FilterTime(member.clock, 20),
        )
        parts: Any = SimpleNamespace(topics=self, peers=self)
        self.context: Any = SimpleNamespace(
            env=self.env,
            store=world.store,
            markers=lambda: markers.Markers(
                self.env.me, store=world.store, view=member.view, peers=parts.peers, topics=parts.topics
            ),
        )
        self.epoch = 0
        self.revision = 0
        self.transactions: Transactions
        self.groups: FakeGroups
        self.journal: Journal

    @classmethod
    async def make(cls, world: World) -> Cluster:
        member = await world.member(1)
        for number in (1, 2):
            record = BrokerRecord("127.0.0.1", 9000 + number, "1", f"folder-{number}", 0)
            await world.put(broker_key(number), record.encode())
        await world.put(topic_key("t"), TopicSpec(TOPIC, 2, 0, TopicConfig()).encode())
        for (topic_id, index), leader in {HERE: 1, THERE: 2}.items():
            await world.put(partition_key((topic_id, index)), PartitionState(leader, 1, (1, 2), {1: 1, 2: 2}).encode())
        await asyncio.sleep(0.01)
        self = cls(world, member)
        await self.coordinate()
        return self

    async def coordinate(self) -> None:
        """Somebody claims the slot, as `Coordinator` does; whoever had it may not know."""
        self.epoch += 1
        head = Head(broker=1, epoch=self.epoch, sequence=0)
        item = await self.world.store.get(SLOT_PREFIX + "head")
        compare = Compare(SLOT_PREFIX + "head", 0 if item is None else item.mod_revision)
        result = await self.world.store.transact([compare], [Put(SLOT_PREFIX + "head", head.encode())])
        assert result.applied
        self.journal = Journal(
            self.world.store,
            key=SLOT_PREFIX + "head",
            head=head,
            revision=result.revision,
            tasks=self.member.tasks,
            lost=lambda error: None,
            halt=lambda error: None,
        )
        self.groups = FakeGroups(self.journal)
        self.transactions = Transactions(SlotClaim(SLOT, self.epoch, self.journal), self.context, self.groups)
        items = (await self.world.store.range(SLOT_PREFIX)).items
        self.transactions.load({item.key.removeprefix(SLOT_PREFIX): item for item in items})

    def lose(self) -> None:
        """As when another has claimed the slot: the journal first."""
        error = NotCoordinator("another coordinates this now")
        self.journal.close(error)
        self.transactions.close(error)

    async def take_over(self) -> None:
        self.lose()
        await self.coordinate()

    # ---- what the transactions need of a broker

    def state_of(self, topic_id: str, index: int) -> PartitionState | None:
        found = self.member.view.state.partitions.get((topic_id, index))
        return None if found is None else found.value

    def leading(self, tp: PartitionId, _: int) -> Leader:
        return Leader(self, tp)

    async def call(self, _: str, __: str, request: Message, ___: Any, ____: float) -> Message:
        if self.broken:
            raise self.broken.pop()
        if not self.reachable:
            raise Unavailable("nobody is there")
        assert isinstance(request, coordination.WriteMarkersRequest)
        topics: Any = self
        return await markers.write_here(topics, self.member.view, request)

    # ---- a producer

    async def open(self, name: str = "tx", **fields: Any) -> Producer:
        opened = await self.transactions.open(pb.OpenTransactions(transactional_id=name, **fields))
        group = fields.get("group", "")
        return Producer(self, opened.transactional_id, opened.producer_id, opened.epoch, group, opened.note)

    async def stored(self, name: str = "tx") -> TransactionRecord | None:
        item = await self.world.store.get(f"{SLOT_PREFIX}{PREFIX}{name}")
        return None if item is None else TransactionRecord.decode(item.value)

    def marked(self, epoch: int) -> Mapping[PartitionId, bool]:
        return {tp: commit for (tp, _, of), commit in self.marks.items() if of == epoch}

    async def delete_topic(self, *, buried: bool) -> None:
        """`buried`: nothing in the store speaks of it any more."""
        await self.world.store.transact([], [Put(DELETED + TOPIC, Tombstone("t", (1, 2)).encode())])
        if buried:
            keys = [topic_key("t"), partition_key(HERE), partition_key(THERE), DELETED + TOPIC]
            await self.world.store.transact([], [Delete(key) for key in keys])
        await asyncio.sleep(0.01)

    async def restore_topic(self) -> None:
        await self.world.store.transact([], [Delete(DELETED + TOPIC)])
        await asyncio.sleep(0.01)


class Producer:
    def __init__(
        self, cluster: Cluster, name: str, producer_id: int, epoch: int, group: str, note: bytes = b""
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.producer_id = producer_id
        self.epoch = epoch
        self.group = group
        self.note = note  # that it was told when it opened the id

    async def add_partition(self, tp: PartitionId = HERE, epoch: int = 0) -> None:
        await self.cluster.transactions.add_partition(
            coordination.AddPartitionRequest(
                producer_id=self.producer_id,
                epoch=epoch or self.epoch,
                topic_id=bytes.fromhex(tp[0]),
                partition=tp[1],
            )
        )

    def ending(
        self, *, commit: bool, epoch: int = 0, offsets: pb.Commit | None = None, note: bytes = b""
    ) -> pb.EndTransaction:
        return pb.EndTransaction(
            transactional_id=self.name,
            producer_id=self.producer_id,
            epoch=epoch or self.epoch,
            commit=commit,
            group=self.group,
            offsets=offsets,
            note=note,
        )

    async def end(self, *, commit: bool, epoch: int = 0, offsets: pb.Commit | None = None, note: bytes = b"") -> int:
        ending = self.ending(commit=commit, epoch=epoch, offsets=offsets, note=note)
        ended = await self.cluster.transactions.end(ending)
        if not epoch:
            self.epoch = ended.next_epoch
        return ended.next_epoch


def with_cluster(scenario: Callable[[Cluster], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Turns a scenario into a test on virtual time."""

    async def run(world: World) -> None:
        cluster = await Cluster.make(world)
        await scenario(cluster)
        cluster.lose()

    run.__name__, run.__doc__ = scenario.__name__, scenario.__doc__
    return on_virtual_time(run)


async def settled(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    assert await until(condition, within_s=within_s, every_s=0.001)
