"""One partition with nothing real around it: a store in memory, a clock set by hand, a worker that can be held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

from comet.errors import CometError
from comet.settings.topic import TopicConfig
from comet_broker.cluster.view import ClusterView
from comet_broker.config import BrokerConfig
from comet_broker.core.cluster import PartitionState, Versioned, partition_key
from comet_broker.core.filter_time import FilterTime
from comet_broker.core.tail import TailBudget
from comet_broker.env import Env
from comet_broker.failures import Failures
from comet_broker.memory.in_flight import InFlight
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import Compare, Delete, Put, TransactionResult
from comet_broker.partitions.context import PartitionContext, Replica
from comet_broker.partitions.partition import Partition
from comet_broker.storage.log import Log
from comet_broker.storage.memory import MemoryFiles
from comet_broker.tasks import Tasks
from tests.unit.storage_world import FOLDER, IDENTITY, HandClock, batch, nothing_missing

R = TypeVar("R")

KEY = partition_key((IDENTITY.topic_id.hex(), IDENTITY.partition))
STATE = PartitionState(leader=1, epoch=1, replicas=(1, 2, 3), in_sync={1: 10})


class HeldWorker:
    """ports.Worker: runs at once, or when it is let go."""

    hold_after = 0  # it is held again after so many; 0: it is not

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()

    async def run(self, work: Callable[[], R]) -> R:
        await asyncio.sleep(0)
        await self.free.wait()
        if self.hold_after:
            self.hold_after -= 1
            if not self.hold_after:
                self.free.clear()
        return work()

    def close(self) -> None:
        return


class SlowStore(MemoryStore):
    """Answers a transaction when it is let go, having done it at once."""

    broken: Exception | None = None

    def __init__(self, clock: HandClock) -> None:
        super().__init__(clock)
        self.free = asyncio.Event()
        self.free.set()

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        if self.broken is not None:
            raise self.broken
        result = await super().transact(compares, operations)
        await self.free.wait()
        return result


class NothingMissing:
    """context.MissingRecords: no log is opened here that could lack any."""

    lost_here = False

    def note_missing(self, *, counted: bool) -> None:
        raise AssertionError(f"records are missing: {counted=}")

    async def note_lost(self, *, counted: bool) -> None:
        self.note_missing(counted=counted)


class Follower:
    """leader_state.Link."""

    def __init__(self) -> None:
        self.marks = 0
        self.over: CometError | None = None
        self.behind = 0

    def watermark_moved(self, handle: int) -> None:
        self.marks += 1

    def log_start_moved(self, handle: int) -> None:
        self.marks += 1

    def leadership_over(self, handle: int, error: CometError) -> None:
        self.over = error

    def fell_behind(self, handle: int, lag_s: float) -> None:
        self.behind += 1


@dataclass
class ReplicaWorld:
    """Broker 1 and its partition; brokers 2 and 3 are what a test says they are."""

    config: TopicConfig = field(default_factory=lambda: TopicConfig(min_insync=2))
    clock: HandClock = field(default_factory=HandClock)
    registered: dict[int, int] = field(default_factory=lambda: {1: 10, 2: 20, 3: 30})
    unfit: set[int] = field(default_factory=set)
    told_unfit: int = 0
    added: list[tuple[int, int]] = field(default_factory=list)
    not_added: CometError | None = None
    outcomes: dict[tuple[int, int], bool] = field(default_factory=dict)  # of transactions that are over

    def __post_init__(self) -> None:
        self.tasks = Tasks()
        self.coordinator = asyncio.Event()  # it answers
        self.coordinator.set()
        self.worker = HeldWorker()
        self.env = Env(
            BrokerConfig(Path("data")),
            self.clock,
            self.worker,
            Random(1),
            self.tasks,
            Failures(self.clock, self.tasks),
            InFlight(1 << 20),
            FilterTime(self.clock, 20),
        )
        self.store = SlowStore(self.clock)
        self.files = MemoryFiles(Random(1))
        self.view = ClusterView(self.store, self.tasks)
        self.log = Log.open(self.files, FOLDER, IDENTITY, self.config, self.clock, nothing_missing)
        context = PartitionContext(
            me=1,
            clock=self.clock,
            worker=self.worker,
            tasks=self.tasks,
            in_flight=self.env.in_flight,
            tail_budget=TailBudget(1 << 20, 1 << 20),
            store=self.store,
            replica_lag_s=3.0,
            compacting=asyncio.Lock(),
            compaction_rate=1 << 30,
            compaction_memory=1 << 20,
            alive=lambda: True,
            broker_epoch=lambda: 10,
            registered=lambda: dict(self.registered),
            folders=lambda: {broker: f"f{broker}" for broker in self.registered},
            may_lead=lambda broker, _: broker not in self.unfit,
            whereabouts=lambda _: {},
            disqualify=self._tell,
            halt=self._halt,
            unopened=lambda *_: None,
            requalify=lambda _: None,
            missing=NothingMissing(),
            add_partition=self.add_partition,
            outcome=self.outcome,
        )
        self.partition = Partition(1, "t", IDENTITY.topic_id, IDENTITY.partition, self.log, context)

    async def add_partition(self, producer_id: int, epoch: int, topic_id: bytes, index: int) -> None:
        """The coordinator, which adds each partition."""
        assert (topic_id, index) == (IDENTITY.topic_id, IDENTITY.partition)
        self.added.append((producer_id, epoch))
        await self.coordinator.wait()
        if self.not_added is not None:
            raise self.not_added

    async def outcome(self, producer_id: int, epoch: int) -> bool | None:
        return self.outcomes.get((producer_id, epoch))

    def _tell(self, _: Replica) -> None:
        self.told_unfit += 1

    def _halt(self, _: Replica, error: Exception) -> None:
        raise error

    def pass_time(self, seconds: float) -> None:
        self.clock.now_us += int(seconds * 1e6)

    async def put(self, state: PartitionState) -> Versioned[PartitionState]:
        """The store has this now; it is for the test to tell the partition."""
        revision = (await MemoryStore.transact(self.store, [], [Put(KEY, state.encode())])).revision
        return Versioned(state, revision, 1)

    async def stored(self) -> Versioned[PartitionState]:
        item = await self.store.get(KEY)
        assert item is not None
        return Versioned(PartitionState.decode(item.value), item.mod_revision, 1)

    async def lead(self, **changes: object) -> None:
        self.partition.apply(await self.put(replace_state(STATE, **changes)))
        assert self.partition.leads

    def follow(self, broker: int, log_end: int) -> Follower:
        """That broker follows, and says how far it is."""
        leadership = self.partition.leadership
        assert leadership is not None
        link = Follower()
        leadership.follow(broker, broker * 10, link)
        leadership.progress(broker, broker * 10, log_end, log_end)
        return link

    def progress(self, broker: int, log_end: int) -> None:
        assert self.partition.leadership is not None
        self.partition.leadership.progress(broker, broker * 10, log_end, log_end)

    def produce(self, count: int = 1, acks: int = 1) -> int:
        for _ in range(count):
            accepted = self.partition.produce(batch([b"x"])[1], acks)
        return accepted.end_offset


def replace_state(state: PartitionState, **changes: object) -> PartitionState:
    values = {name: getattr(state, name) for name in state.__struct_fields__}
    return PartitionState(**{**values, **changes})


async def settle(turns: int = 20) -> None:
    """Lets all that can go on go on."""
    for _ in range(turns):
        await asyncio.sleep(0)
