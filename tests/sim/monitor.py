"""Watches a cluster from outside while it runs: what no moment of it may show, whatever the clients see.

    file changes ─► Copy: what each broker's log holds, batch by batch    ┐
    metadata     ─► who leads, who is in sync, who is registered          ├─► complaints, as they happen
    each callback of a broker ─► its high watermarks and epochs           ┘

`Agreed` is what the cluster has committed: every batch that was ever below a high watermark of any broker, in its
place, for good. It grows with the first broker to say so; every other broker must say the same.

When a leader is elected that has less, `Losses` says whether that may be. If so, another life of the partition begins:
what the new leader does not have is lost, record by record, and nothing else is. Brokers that have not heard of the new
epoch still tell of the earlier life.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from comet.settings.topic import Consistency, Flush
from comet_broker.core.cluster import BROKERS, NO_BROKER, ClusterState, PartitionState, TopicSpec
from comet_broker.core.controller import LOSSY
from comet_broker.metadata.memory import MemoryStore, StoreSnapshot
from comet_broker.metadata.store import WatchEvent
from tests.sim.copies import Agreed, Batch, Commit, Copy, Loss
from tests.sim.history import PartitionName
from tests.sim.host_monitor import HostMonitor
from tests.sim.losses import Losses, Where

if TYPE_CHECKING:
    from comet_testing.simulation.host import Host

COMPLAINTS_MAX: Final = 50


class Monitor:
    """Owned by the world of a cluster."""

    def __init__(self, store: MemoryStore, hosts: Sequence[Host], now: Callable[[], float], lease_s: float) -> None:
        self.complaints: dict[str, list[str]] = defaultdict(list)  # by invariant
        self.checked: Counter[str] = Counter()
        self.state = ClusterState()
        self.agreed: dict[Where, Agreed] = defaultdict(Agreed)
        self.copies: dict[tuple[int, Where], Copy] = defaultdict(Copy)
        self.epochs: dict[Where, list[tuple[float, int, int]]] = defaultdict(list)  # when, which, who
        self.names: dict[str, str] = {}  # topic id by name, also of topics that are deleted
        self.losses = Losses(self.state, self.copies, self.agreed, lease_s, now)
        self.branched = False  # the store has gone back, and nobody has decided yet what counts
        self.processes: dict[tuple[int, int], int] = {}  # broker and broker epoch -> which of its processes that was
        self._hosts = {host.broker_id: host for host in hosts}
        self._now = now
        self._specs: dict[str, TopicSpec] = {}
        self._written: dict[tuple[Where, int, int], tuple[int, int]] = {}  # epoch and offset -> the batch
        self._led: dict[tuple[Where, int], int] = {}
        self._counted: dict[tuple[Where, int], set[tuple[int, int]]] = defaultdict(set)  # in an epoch, as which one
        store._watches.publish = self._publish(store._watches.publish)  # type: ignore[method-assign]
        for host in hosts:
            host.watcher = HostMonitor(self, host)

    # ---- for others

    def of(self, tp: PartitionName) -> Agreed:
        return self.agreed[self.names.get(tp[0], ""), tp[1]]

    def consistent(self, where: Where) -> bool:
        spec = self._specs.get(where[0])
        return spec is not None and spec.config.consistency is Consistency.CONSISTENT

    def compacts(self, where: Where) -> bool:
        """Whether a partition's topic is compacted: its batches do not stay as they were written."""
        spec = self._specs.get(where[0])
        return spec is not None and spec.config.compacts

    def replicated(self, tp: PartitionName) -> bool:
        spec = self._specs.get(self.names.get(tp[0], ""))
        return spec is not None and spec.replicas > 1

    def spec(self, where: Where) -> TopicSpec | None:
        return self._specs.get(where[0])

    def complain(self, invariant: str, what: str) -> None:
        if len(self.complaints[invariant]) < COMPLAINTS_MAX:
            self.complaints[invariant].append(f"at {self._now():.4f} s {what}")

    def acknowledged(self, tp: PartitionName, offset: int) -> None:
        """A client was told that every in-sync replica has this record."""
        where = (self.names.get(tp[0], ""), tp[1])
        self.checked["C1"] += 1
        if self.consistent(where) and offset >= self.agreed[where].reached:
            self.complain(
                "C1", f"{tp} offset {offset} was acknowledged to all, committed is only {self.agreed[where].end}"
            )

    def read(self, tp: PartitionName, offset: int) -> None:
        where = (self.names.get(tp[0], ""), tp[1])
        self.checked["C7"] += 1
        if self.consistent(where) and offset >= self.agreed[where].reached:  # what is lost may be under way still
            self.complain("C7", f"{tp} offset {offset} was read, committed is only {self.agreed[where].end}")

    def told(self, tp: PartitionName, broker: int, end: int, before: tuple[int, int]) -> None:
        """A client asked a broker for the end; `before` is what `standing` said when it asked."""
        where = (self.names.get(tp[0], ""), tp[1])
        state = self.state.partitions.get(where)
        epoch, committed = before
        if (
            self.branched
            or state is None
            or not self.consistent(where)
            or (state.value.leader, state.value.epoch) != (broker, epoch)
        ):
            return
        leading = [p for p in self._hosts[broker].partitions() if p.leads and p.leader_epoch == epoch]
        if not any((p.topic, p.index) == tp for p in leading):
            return  # it has not heard of it yet, or was started since, and answered as a follower
        self.checked["C8"] += 1
        if end < min(committed, self.agreed[where].end) and not self.agreed[where].doubted:
            self.complain(
                "C8", f"broker {broker} leads {tp} and said that it ends at {end}, committed was {committed} before"
            )

    def standing(self, tp: PartitionName) -> tuple[int, int]:
        """The epoch of a partition, and how far it is committed."""
        where = (self.names.get(tp[0], ""), tp[1])
        state = self.state.partitions.get(where)
        return (0 if state is None else state.value.epoch), self.agreed[where].end

    def restored(self, snapshot: StoreSnapshot) -> None:
        """The store has gone back, which no event tells. Who is registered still thinks so, until it has looked."""
        self.branched = True
        state, now = self.state, ClusterState.of(snapshot.items, snapshot.revision)
        state.revision, state.cluster_id, state.controller = now.revision, now.cluster_id, now.controller
        state.brokers = {**now.brokers, **state.brokers}
        for name in ("topics", "deleted", "defective", "drains", "coordinators", "partitions"):
            table = getattr(state, name)
            table.clear()
            table.update(getattr(now, name))
        for broker, broker_epoch in list(self.processes):
            if broker_epoch > snapshot.revision and state.broker_epoch(broker) != broker_epoch:
                del self.processes[broker, broker_epoch]

    def recovered(self) -> None:
        """An operator has decided which history counts. Epochs that were given twice are written anew by those that
        follow it."""
        self.branched = False
        self._written.clear()

    def name(self, where: Where) -> str:
        for name, topic_id in self.names.items():
            if topic_id == where[0]:
                return f"{name}/{where[1]}"
        return f"{where[0]}/{where[1]}"

    # ---- the metadata

    def _publish(self, publish: Callable[[Sequence[tuple[WatchEvent, ...]]], None]) -> Any:
        def published(revisions: Sequence[tuple[WatchEvent, ...]]) -> None:
            for events in revisions:
                for event in events:
                    self._event(event)
            publish(revisions)

        return published

    def _event(self, event: WatchEvent) -> None:
        before = dict(self.state.partitions) if event.key.startswith("cluster/partitions/") else {}
        self.losses.look()
        self.state.apply(event.key, event.item)
        self.state.revision = event.revision
        if event.key.startswith(BROKERS):
            self.losses.registered(int(event.key.removeprefix(BROKERS)))
        if event.key.startswith(BROKERS) and event.item is not None:  # which cannot have heard of it yet
            broker = int(event.key.removeprefix(BROKERS))
            self.processes.setdefault((broker, event.item.create_revision), self._hosts[broker].broker_epoch)
        if event.key.startswith("cluster/topics/"):
            name = event.key.removeprefix("cluster/topics/")
            if event.item is not None:
                spec = self.state.topics[name].value
                self._specs[spec.id] = spec
                self.names[name] = spec.id
        for where, found in self.state.partitions.items():
            old = before.get(where)
            if event.key.startswith("cluster/partitions/") and (old is None or old is not found):
                self._stated(where, None if old is None else old.value, found.value)
        self.losses.look()

    def _stated(self, where: Where, old: PartitionState | None, new: PartitionState) -> None:
        """Who leads a partition, and who is in sync, has been written down."""
        self.checked["C6"] += 1
        if old is not None and (new.epoch < old.epoch or (new.epoch == old.epoch and new.leader != old.leader)):
            self.complain("C6", f"{self.name(where)} went from leader {old.leader} in epoch {old.epoch} to {new}")
        if self.branched:
            return
        if new.leader != NO_BROKER and (old is None or new.epoch != old.epoch):
            self.epochs[where].append((self._now(), new.epoch, new.leader))
            self._elected(where, new)
        self._counted[where, new.epoch].update(new.in_sync.items())
        self.losses.stated(where, new, self._specs[where[0]])
        self._in_sync(where, new)

    def reopened(self, broker: int, where: Where) -> None:
        """A log opens after a failed fsync, and shows only now how much of it is left: its broker may lead already."""
        self.losses.look(where)
        found = self.state.partitions.get(where)
        if found is not None and found.value.leader == broker:
            self._elected(where, found.value)

    def _elected(self, where: Where, new: PartitionState) -> None:
        agreed = self.agreed[where]
        has = self.has(new.leader, where)
        if not self.consistent(where) or has >= agreed.end:
            return
        allowed, accepted = self.losses.standing[where].allowed, new.loss_accepted == new.epoch
        runs = self._runs(new.leader, new.in_sync.get(new.leader, LOSSY))
        if not runs and (not allowed or self.losses.sure(new.leader, where)):
            return  # its process has ended, and the lease has not: the cluster does not know yet
        most, other = self.losses.longest(where, lambda broker: self.has(broker, where))
        if most > has and not accepted and self._longer(where, other, new.leader):
            self.complain(
                "C31",
                f"broker {new.leader} was elected for {self.name(where)} in epoch {new.epoch}: it has {has} committed"
                f" offsets, and broker {other}, which was there, has {most}",
            )
        if self.copies[new.leader, where].lies and not accepted and self.losses.any_sure(where):
            return  # what it lacks is on others: they do not follow, and an operator is to choose
        if not accepted and (self.losses.sure(new.leader, where) or not allowed):
            self.complain(
                "C31",
                f"broker {new.leader} was elected for {self.name(where)} in epoch {new.epoch}: it has {has} of "
                f"{agreed.end} committed offsets",
            )
            agreed.cut(has)
        else:
            agreed.losses.append(Loss(new.epoch, self._now(), has, agreed.cut(has)))
        for broker in self._hosts:
            self.recount(broker, where)

    def _longer(self, where: Where, one: int, other: int) -> bool:
        """Whether it has said that its log ends behind the other's, by epoch and offset. A disk that lied may have let
        a broker lead, and begin an epoch, with less than others have: then these do not follow."""
        ends = [self.state.ends.get((broker, *where)) for broker in (one, other)]
        first, second = ((end.value.last_epoch, end.value.log_end) if end is not None else (0, 0) for end in ends)
        return first > second

    def _is(self, broker: int, broker_epoch: int) -> bool:
        """The process that runs there, or ran last, is the one that is registered so: not one that has begun since."""
        return (
            broker_epoch != LOSSY
            and broker_epoch == self.state.broker_epoch(broker)
            and self.processes.get((broker, broker_epoch)) == self._hosts[broker].broker_epoch
        )

    def _runs(self, broker: int, broker_epoch: int) -> bool:
        node = self._hosts[broker].node
        return node is not None and not node.dead and self._is(broker, broker_epoch)

    def _in_sync(self, where: Where, state: PartitionState) -> None:
        """Whoever is in sync has everything that is committed."""
        if not self.consistent(where):
            return
        agreed = self.agreed[where]
        self.checked["C31"] += 1
        for broker, broker_epoch in state.in_sync.items():
            copy = self.copies[broker, where]
            if not self._runs(broker, broker_epoch) or copy.mending or copy.poisoned:
                continue
            has = self.has(broker, where)
            if has < agreed.end:
                self.complain(
                    "C31",
                    f"broker {broker} counts as in sync for {self.name(where)} in epoch {state.epoch} and has {has} of "
                    f"{agreed.end} committed offsets",
                )

    # ---- copies

    def has(self, broker: int, where: Where) -> int:
        """Up to which offset a broker's copy is what was committed."""
        copy, agreed = self.copies[broker, where], self.agreed[where]
        commits = agreed.commits
        while copy.agreed < len(commits):
            commit = commits[copy.agreed]
            batch = copy.batches.get(commit.base)
            if batch is None or batch.digest != commit.digest:
                break
            copy.agreed += 1
        if copy.agreed == len(commits) and not copy.poisoned and not copy.damaged:
            copy.lossy = copy.mending = copy.lies = False
        return commits[copy.agreed - 1].end if copy.agreed else 0

    def recount(self, broker: int, where: Where) -> None:
        self.copies[broker, where].agreed = 0
        self.has(broker, where)

    def lost(self, broker: int, where: Where) -> None:
        """Records may have gone from a copy that nobody took away."""
        copy = self.copies[broker, where]
        if self._whole(broker, where) < self.agreed[where].end or copy.poisoned:
            copy.lossy = True

    def power_lost(self, broker: int, where: Where) -> None:
        """With flush=always, what is committed is on the disk of everyone in sync."""
        state, spec = self.state.partitions.get(where), self._specs.get(where[0])
        copy = self.copies[broker, where]
        if (
            state is None
            or spec is None
            or spec.config.flush is not Flush.ALWAYS
            or not self._is(broker, state.value.in_sync.get(broker, LOSSY))
            or copy.poisoned
            or copy.damaged
            or not self.consistent(where)
        ):
            return
        self.checked["C32"] += 1
        if self.has(broker, where) < self.agreed[where].end and not copy.lossy:
            self.complain(
                "C32",
                f"broker {broker} was in sync for {self.name(where)}, lost power, and has {self.has(broker, where)} of "
                f"{self.agreed[where].end} committed offsets",
            )

    def _whole(self, broker: int, where: Where) -> int:
        return min([self.has(broker, where), *self.copies[broker, where].damaged])

    def wrote(self, broker: int, where: Where, batch: Batch, previous: Batch | None) -> None:
        """A batch was added to a copy."""
        self.checked["C6"] += 1
        if previous is not None and batch.epoch < previous.epoch:
            self.complain(
                "C6",
                f"broker {broker} wrote {self.name(where)} offset {batch.base} of epoch {batch.epoch} behind epoch "
                f"{previous.epoch}",
            )
        if self.branched:
            return
        known = self._written.setdefault((where, batch.epoch, batch.base), batch.digest)
        if known != batch.digest:
            self.complain(
                "C6",
                f"broker {broker} wrote another batch of epoch {batch.epoch} at {self.name(where)} offset {batch.base}",
            )
            self._written[where, batch.epoch, batch.base] = batch.digest

    # ---- brokers

    def leads(self, broker: int, where: Where, epoch: int) -> None:
        if self.branched:
            return  # by another store than the one that counts
        self.checked["C6"] += 1
        first = self._led.setdefault((where, epoch), broker)
        if first != broker:
            self.complain("C6", f"brokers {first} and {broker} lead {self.name(where)} in epoch {epoch}")

    def committed(self, broker: int, where: Where, end: int, epoch: int, *, fresh: bool) -> None:
        """A broker says in an epoch that everything below `end` is committed; with `fresh`, that it was before it was
        started."""
        if not self.consistent(where):
            return
        agreed, copy = self.agreed[where], self.copies[broker, where]
        self.checked["C5"] += 1
        end = agreed.said_in(epoch, end)
        has = self.has(broker, where)
        if has < min(end, agreed.end) and not copy.lies:  # it may have noted what it has no longer
            self.complain(
                "C5",
                f"broker {broker} has a high watermark of {end} for {self.name(where)}, and from {has} on it holds "
                "something else than was committed",
            )
        if fresh:
            return
        known = len(agreed.commits)
        while agreed.end < end:
            batch = copy.batches.get(agreed.end)
            if batch is None:
                self.complain(
                    "C5",
                    f"broker {broker} has a high watermark of {end} for {self.name(where)} and nothing at {agreed.end}",
                )
                return
            data = self._hosts[broker].disk._seen[batch.path].seen[batch.position : batch.position_end]
            agreed.add(Commit(batch.base, batch.end, batch.epoch, batch.digest, self._now(), bytes(data)))
        state = self.state.partitions.get(where)
        if state is not None and len(agreed.commits) > known and not self.branched:
            for commit in agreed.commits[known:]:
                if not agreed.returned(commit):
                    self._held(where, state.value, epoch, commit)
            self._in_sync(where, state.value)

    def _held(self, where: Where, state: PartitionState, epoch: int, commit: Commit) -> None:
        """All that are in sync have, or had before power or their disk took it, what is committed: as the ones that
        are in sync. And they are as many as min_insync asks for."""
        self.checked["C32"] += 1
        needed = min(self._specs[where[0]].config.min_insync, len(state.replicas))
        counted = self._counted[where, epoch]
        holding = {broker for broker, broker_epoch in counted if self._had(broker, broker_epoch, where, commit)}
        if len(holding) < needed:
            self.complain(
                "C32",
                f"{self.name(where)} is committed up to {commit.end} in epoch {epoch}, and of those in sync only "
                f"{sorted(holding)} have had that",
            )
        missing = [
            broker
            for broker, broker_epoch in state.in_sync.items()
            if state.epoch == epoch and broker_epoch != LOSSY and not self._had(broker, broker_epoch, where, commit)
        ]
        if missing:
            self.complain(
                "C32",
                f"{self.name(where)} is committed up to {commit.end} in epoch {epoch}, and brokers {missing}, in sync, "
                "never had that",
            )

    def _had(self, broker: int, broker_epoch: int, where: Where, commit: Commit) -> bool:
        process = self.processes.get((broker, broker_epoch))
        return process is not None and self.copies[broker, where].had(process, commit.base, commit.digest)
