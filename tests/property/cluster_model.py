"""A cluster as simple as can be: one partition, brokers whose logs are Python lists, a store that compares and swaps.

What the leader and its followers do is written down here in the plainest way, so that what the controller decides can
be judged by the only thing that counts in the end: whether a leader ever lacks what was committed.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field

from msgspec.structs import replace

from comet.settings.topic import Consistency, TopicConfig
from comet_broker.core.cluster import (
    DRAINS,
    NO_BROKER,
    BrokerRecord,
    ClusterState,
    PartitionState,
    TopicSpec,
    Versioned,
    broker_key,
    defective_key,
    partition_key,
    topic_key,
)
from comet_broker.core.controller import Change, decide
from comet_broker.metadata.keyspace import Draft, Keyspace
from comet_broker.metadata.store import Compare, Delete, Put

TOPIC = "f" * 32
TP = (TOPIC, 0)


@dataclass
class Machine:
    """A broker and its disk."""

    log: list[int] = field(default_factory=list)
    synced: int = 0
    broker_epoch: int = 0  # 0: down
    lossy: bool = False  # what its next start has to say: something that was written may be gone
    disk: int = 1  # how many it has had
    bare: bool = True  # it has not had all there is, not on this disk

    @property
    def up(self) -> bool:
        return self.broker_epoch != 0


class Cluster:
    def __init__(self, brokers: int, replicas: int, min_insync: int, *, available: bool = False) -> None:
        self.store = Keyspace()
        self.view = ClusterState()
        self.old_view = ClusterState()  # what a controller that is slow to look sees
        self.machines = {broker: Machine() for broker in range(1, brokers + 1)}
        self.committed: list[int] = []
        self.min_insync = min_insync
        self.available = available
        self.written = 0
        self.log_at_start: dict[int, int] = {}  # epoch -> the leader's log end
        self.reported: dict[tuple[int, int, int], int] = {}  # (broker, broker epoch, epoch) -> what it said it has
        self.ever_lossy = False
        for broker in self.machines:
            self.start(broker)
        consistency = Consistency.AVAILABLE if available else Consistency.CONSISTENT
        config = TopicConfig(min_insync=min_insync, consistency=consistency)
        self.put(topic_key("t"), TopicSpec(TOPIC, 1, 0, config, replicas).encode())
        self.look()
        self.control(rebalance=False, last_resort=False)
        for broker in self.state.replicas:
            self.machines[broker].bare = False

    # ---- the store

    def transact(self, compares: tuple[Compare, ...], operations: tuple[Put | Delete, ...]) -> bool:
        draft = Draft(self.store, lambda lease: True)
        applied = draft.transact(compares, operations).applied
        self.store.apply(draft)
        for events in draft.revisions:
            for event in events:
                self.view.apply(event.key, event.item)
            self.view.revision = events[0].revision
        return applied

    def put(self, key: str, value: bytes = b"") -> int:
        assert self.transact((), (Put(key, value),))
        return self.store.items[key].create_revision

    def delete(self, key: str) -> None:
        self.transact((), (Delete(key),))

    @property
    def found(self) -> Versioned[PartitionState]:
        return self.view.partitions[TP]

    @property
    def state(self) -> PartitionState:
        return self.found.value

    def swap(self, state: PartitionState) -> None:
        assert self.transact(
            (Compare(partition_key(TP), self.found.mod_revision),), (Put(partition_key(TP), state.encode()),)
        )

    # ---- machines

    def start(self, broker: int) -> None:
        machine = self.machines[broker]
        if not machine.up:
            record = BrokerRecord("h", broker, "1", folder(broker, machine.disk), 0, clean=not machine.lossy)
            machine.broker_epoch = self.put(broker_key(broker), record.encode())

    def kill(self, broker: int) -> None:
        if self.machines[broker].up:
            self.machines[broker].broker_epoch = 0
            self.delete(broker_key(broker))

    def stop(self, broker: int) -> None:
        """In order: all is synced."""
        machine = self.machines[broker]
        if machine.up:
            machine.synced = len(machine.log)
            machine.lossy = False
            self.kill(broker)

    def lose_power(self, broker: int) -> None:
        machine = self.machines[broker]
        self.kill(broker)
        del machine.log[machine.synced :]
        machine.lossy = True
        self.ever_lossy = True

    def replace_disk(self, broker: int) -> None:
        machine = self.machines[broker]
        self.kill(broker)
        machine.log.clear()
        machine.synced = 0
        machine.lossy = machine.bare = True
        machine.disk += 1
        self.ever_lossy = True

    def damage(self, broker: int) -> None:
        """The end of its log is gone for good, and it says so."""
        machine = self.machines[broker]
        del machine.log[len(machine.log) // 2 :]
        machine.synced = len(machine.log)
        self.ever_lossy = True
        self.put(defective_key(broker, TP))

    def sync(self, broker: int) -> None:
        self.machines[broker].synced = len(self.machines[broker].log)

    def drain(self, broker: int) -> None:
        if broker in self.view.drains:
            self.delete(f"{DRAINS}{broker}")
        else:
            self.put(f"{DRAINS}{broker}")

    def move(self, broker: int) -> None:
        """One replica elsewhere, if there is no move under way."""
        state = self.state
        if state.target or len(state.replicas) == len(self.machines):
            return
        if broker in state.replicas:
            return
        self.swap(replace(state, target=(broker, *state.replicas[1:])))

    # ---- the leader and its followers

    @property
    def leader(self) -> Machine | None:
        machine = self.machines.get(self.state.leader)
        if machine is None or not machine.up or self.state.in_sync.get(self.state.leader) != machine.broker_epoch:
            return None
        return machine

    def _lead(self) -> Machine | None:
        """The leader, which has noticed that it is one."""
        leader = self.leader
        if leader is not None:
            self.log_at_start.setdefault(self.state.epoch, len(leader.log))
            leader.bare = False
        return leader

    def append(self) -> None:
        leader = self._lead()
        if leader is not None:
            self.written += 1
            leader.log.append(self.written)

    def replicate(self, broker: int, entries: int | None = None) -> None:
        """Cuts back to where the logs agree, and takes some of what follows."""
        leader = self._lead()
        machine = self.machines[broker]
        if leader is None or leader is machine or not machine.up or broker not in self.state.holders:
            return
        agree = 0
        while agree < min(len(leader.log), len(machine.log)) and leader.log[agree] == machine.log[agree]:
            agree += 1
        end = len(leader.log) if entries is None else min(agree + entries, len(leader.log))
        machine.log[agree:] = leader.log[agree:end]
        machine.synced = min(machine.synced, agree)
        self.reported[broker, machine.broker_epoch, self.state.epoch] = len(machine.log)

    def commit(self) -> None:
        leader = self._lead()
        state = self.state
        if leader is None or len(state.in_sync) < self.min_insync:
            return
        ends = [len(leader.log)]
        for broker, broker_epoch in state.in_sync.items():
            if broker != state.leader:
                ends.append(self.reported.get((broker, broker_epoch, state.epoch), 0))
        end = min(ends)
        if end > len(self.committed):
            self.committed = leader.log[:end]

    def accept_loss(self) -> None:
        """What the leader has not is gone, and counts no more."""
        leader = self._lead()
        if leader is not None:
            agree = 0
            while agree < min(len(leader.log), len(self.committed)) and leader.log[agree] == self.committed[agree]:
                agree += 1
            del self.committed[agree:]

    def grow(self, broker: int) -> None:
        leader = self._lead()
        state = self.state
        machine = self.machines[broker]
        if leader is None or leader is machine or not machine.up or broker not in state.holders:
            return
        has = self.reported.get((broker, machine.broker_epoch, state.epoch), -1)
        if has >= max(len(self.committed), self.log_at_start[state.epoch]):
            in_sync = {**state.in_sync, broker: machine.broker_epoch}
            enough = len(in_sync) >= self.min_insync
            eligible = {} if enough else {b: i for b, i in state.eligible.items() if b not in in_sync}
            folders = {**state.folders, broker: folder(broker, machine.disk)}
            self.swap(replace(state, in_sync=in_sync, eligible=eligible, folders=folders))
            machine.bare = False

    def shrink(self, broker: int) -> None:
        state = self.state
        if self._lead() is None or broker == state.leader or broker not in state.in_sync:
            return
        in_sync = {b: i for b, i in state.in_sync.items() if b != broker}
        eligible = {} if len(in_sync) >= self.min_insync else {**state.eligible, broker: state.in_sync[broker]}
        self.swap(replace(state, in_sync=in_sync, eligible=eligible))

    def hand_over(self) -> None:
        leader = self._lead()
        state = self.state
        if leader is None or state.handover not in state.in_sync or state.handover not in self.machines:
            return
        broker_epoch = state.in_sync[state.handover]
        if self.reported.get((state.handover, broker_epoch, state.epoch), -1) == len(leader.log):
            self.swap(replace(state, leader=state.handover, epoch=state.epoch + 1, handover=NO_BROKER))

    # ---- the controller

    def look(self) -> None:
        self.old_view = snapshot(self.view)

    def control(self, *, rebalance: bool, last_resort: bool, stale: bool = False) -> list[Change]:
        seen = self.old_view if stale else self.view
        changes = decide(seen, rebalance=rebalance, last_resort=last_resort)
        for change in changes:
            self.transact(change.compares, change.operations)
        return changes


def folder(broker: int, disk: int) -> str:
    return f"folder {disk} of broker {broker}"


def snapshot(state: ClusterState) -> ClusterState:
    taken = copy(state)
    taken.brokers = dict(state.brokers)
    taken.topics = dict(state.topics)
    taken.partitions = dict(state.partitions)
    taken.deleted = dict(state.deleted)
    taken.defective = dict(state.defective)
    taken.drains = dict(state.drains)
    return taken
