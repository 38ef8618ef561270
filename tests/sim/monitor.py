"""Watches a cluster from outside while it runs: what no moment of it may show, whatever the clients see.

    file changes ─► Copy: what each broker's log holds, batch by batch    ┐
    metadata     ─► who leads, who is in sync, who is registered          ├─► complaints, as they happen
    each callback of a broker ─► its high watermarks and epochs           ┘

`Agreed` is what the cluster has committed: every batch that was ever below a high watermark of any broker, in its
place, for good. It grows with the first broker to say so; every other broker must say the same.

What excuses a loss is decided here as well, by what was really lost: power, a failed fsync or a flipped bit took
committed records from one copy, and at some moment no broker was there, in service, that still had them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from comet.types import Consistency, Flush
from comet_broker.core.cluster import NOBODY, ClusterState, PartitionState, TopicSpec
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import WatchEvent
from tests.sim.copies import Agreed, Batch, Commit, Copy
from tests.sim.history import Place
from tests.sim.host_monitor import HostMonitor

if TYPE_CHECKING:
    from comet_broker.partition import Partition
    from tests.sim.host import Host

Where = tuple[str, int]  # topic id, partition

COMPLAINTS_MAX: Final = 50


class Monitor:
    """Owned by the world of a cluster."""

    def __init__(self, store: MemoryStore, hosts: Sequence[Host], now: Callable[[], float]) -> None:
        self.complaints: dict[str, list[str]] = defaultdict(list)  # by invariant
        self.checked: Counter[str] = Counter()
        self.powerless: set[int] = set()  # brokers whose last death was that of their machine
        self.disks_failed: dict[Where, set[int]] = defaultdict(set)  # on which brokers an fsync has failed
        self.state = ClusterState()
        self.agreed: dict[Where, Agreed] = defaultdict(Agreed)
        self.copies: dict[tuple[int, Where], Copy] = defaultdict(Copy)
        self.epochs: dict[Where, list[tuple[float, int, int]]] = defaultdict(list)  # when, which, who
        self.names: dict[str, str] = {}  # topic id by name, also of topics that are deleted
        self._hosts = {host.broker_id: host for host in hosts}
        self._now = now
        self._specs: dict[str, TopicSpec] = {}
        self._written: dict[tuple[Where, int, int], tuple[int, int]] = {}  # epoch and offset -> the batch
        self._led: dict[tuple[Where, int], int] = {}
        store._watches.publish = self._publish(store._watches.publish)  # type: ignore[method-assign]
        for host in hosts:
            host.watcher = HostMonitor(self, host)

    # ---- for others

    def of(self, place: Place) -> Agreed:
        return self.agreed[self.names.get(place[0], ""), place[1]]

    def consistent(self, where: Where) -> bool:
        spec = self._specs.get(where[0])
        return spec is not None and spec.config.consistency is Consistency.CONSISTENT

    def replicated(self, place: Place) -> bool:
        spec = self._specs.get(self.names.get(place[0], ""))
        return spec is not None and spec.replicas > 1

    def complain(self, invariant: str, what: str) -> None:
        if len(self.complaints[invariant]) < COMPLAINTS_MAX:
            self.complaints[invariant].append(f"at {self._now():.4f} s {what}")

    def acknowledged(self, place: Place, offset: int) -> None:
        """A client was told that every in-sync replica has this record."""
        where = (self.names.get(place[0], ""), place[1])
        self.checked["C1"] += 1
        if self.consistent(where) and offset >= self.agreed[where].end:
            self.complain(
                "C1", f"{place} offset {offset} was acknowledged to all, committed is only {self.agreed[where].end}"
            )

    def read(self, place: Place, offset: int) -> None:
        where = (self.names.get(place[0], ""), place[1])
        self.checked["C7"] += 1
        if self.consistent(where) and offset >= self.agreed[where].end:
            self.complain("C7", f"{place} offset {offset} was read, committed is only {self.agreed[where].end}")

    def told(self, place: Place, broker: int, end: int, before: tuple[int, int]) -> None:
        """A client asked a broker for the end; `before` is what `standing` said when it asked."""
        where = (self.names.get(place[0], ""), place[1])
        state = self.state.partitions.get(where)
        epoch, committed = before
        if state is None or not self.consistent(where) or (state.value.leader, state.value.epoch) != (broker, epoch):
            return
        leading = [p for p in self._hosts[broker].partitions() if p.leads and p.leader_epoch == epoch]
        if not any((p.topic, p.index) == place for p in leading):
            return  # it has not heard of it yet, or was started since, and answered as a follower
        self.checked["C8"] += 1
        if end < min(committed, self.agreed[where].end) and not self.agreed[where].renewed(end):
            self.complain(
                "C8", f"broker {broker} leads {place} and said that it ends at {end}, committed was {committed} before"
            )

    def standing(self, place: Place) -> tuple[int, int]:
        """The epoch of a partition, and how far it is committed."""
        where = (self.names.get(place[0], ""), place[1])
        state = self.state.partitions.get(where)
        return (0 if state is None else state.value.epoch), self.agreed[where].end

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
        brokers = set(self.state.brokers)
        self.state.apply(event.key, event.item)
        self.state.revision = event.revision
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
        if brokers - set(self.state.brokers):
            self.weigh()

    def _stated(self, where: Where, old: PartitionState | None, new: PartitionState) -> None:
        """Who leads a partition, and who is in sync, has been written down."""
        self.checked["C6"] += 1
        if old is not None and (new.epoch < old.epoch or (new.epoch == old.epoch and new.leader != old.leader)):
            self.complain("C6", f"{self.name(where)} went from leader {old.leader} in epoch {old.epoch} to {new}")
        if new.leader != NOBODY and (old is None or new.epoch != old.epoch):
            self.epochs[where].append((self._now(), new.epoch, new.leader))
            self._elected(where, new)
        self._in_sync(where, new)

    def _elected(self, where: Where, new: PartitionState) -> None:
        node = self._hosts[new.leader].node
        if not self.consistent(where) or node is None or node.dead:
            return  # nobody knows yet that it is not there any more
        self.weigh(where)
        agreed = self.agreed[where]
        has = self.has(new.leader, where)
        if has < agreed.end and not self._excused_from(agreed, has):
            self.complain(
                "C31",
                f"broker {new.leader} was elected for {self.name(where)} in epoch {new.epoch}: it has {has} of "
                f"{agreed.end} committed offsets",
            )

    def _excused_from(self, agreed: Agreed, offset: int) -> bool:
        return all(agreed.excused(commit.base, commit.at) for commit in agreed.commits if commit.end > offset)

    def _in_sync(self, where: Where, state: PartitionState) -> None:
        """Whoever is in sync has everything that is committed."""
        if not self.consistent(where):
            return
        agreed = self.agreed[where]
        self.checked["C31"] += 1
        for broker, incarnation in state.in_sync.items():
            host = self._hosts[broker]
            copy = self.copies[broker, where]
            if (
                self.state.incarnation(broker) != incarnation
                or host.node is None
                or host.node.dead
                or host.broker is None
                or host.broker.membership.incarnation != incarnation  # another life has begun, and not registered yet
                or copy.mending
                or copy.poisoned
            ):
                continue
            has = self.has(broker, where)
            if has < agreed.end and not self._excused_from(agreed, has):
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
            copy.lossy = copy.mending = False
        return commits[copy.agreed - 1].end if copy.agreed else 0

    def recount(self, broker: int, where: Where) -> None:
        self.copies[broker, where].agreed = 0
        self.has(broker, where)

    def lost(self, broker: int, where: Where) -> None:
        """Records may have gone from a copy that nobody took away."""
        copy = self.copies[broker, where]
        if self._whole(broker, where) < self.agreed[where].end or copy.poisoned:
            copy.lossy = True
            self.weigh(where)

    def weigh(self, only: Where | None = None) -> None:
        """Finds committed records that no broker in service has any more, after they were lost elsewhere."""
        for where in [only] if only is not None else list(self.agreed):
            agreed = self.agreed[where]
            if not any(copy.lossy for (_, at), copy in self.copies.items() if at == where):
                continue
            # While nobody is in service, whoever has them may come back with them.
            serving = [broker for broker in self._hosts if self._serves(broker, where)] or [
                broker for broker in self._hosts if not self.copies[broker, where].poisoned
            ]
            if (last := self._last_standing(where)) is not None:
                serving = [broker for broker in serving if broker in last]
            best = max((self._whole(broker, where) for broker in serving), default=0)
            members = self._unsure_members(where)
            if members:
                best = min(best, *(self._whole(broker, where) for broker in members))
            if best < agreed.end:
                agreed.excuses.append((self._now(), best))

    def _last_standing(self, where: Where) -> set[int] | None:
        """Those in sync may be one alone, after which nobody else may lead, whatever it has lost: with min_insync 1, or
        when the disks of others have failed too."""
        state, spec = self.state.partitions.get(where), self._specs.get(where[0])
        if state is None or spec is None or (spec.config.min_insync > 1 and len(self.disks_failed[where]) < 2):
            return None
        return {*state.value.in_sync, *state.value.eligible}

    def power_lost(self, broker: int, where: Where) -> None:
        """With flush=always, what is committed is on the disk of everyone in sync."""
        state, spec = self.state.partitions.get(where), self._specs.get(where[0])
        copy = self.copies[broker, where]
        if (
            state is None
            or spec is None
            or spec.config.flush is not Flush.ALWAYS
            or state.value.in_sync.get(broker) != self.state.incarnation(broker)
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

    def _serves(self, broker: int, where: Where) -> bool:
        host = self._hosts[broker]
        return (
            host.node is not None
            and not host.node.dead
            and broker in self.state.brokers
            and (broker, *where) not in self.state.unfit
            and not self._unclean(broker, where)
            and not self.copies[broker, where].poisoned
        )

    def _unsure_members(self, where: Where) -> list[int]:
        """All who may lead, if the power went under each: whoever leads then, what was not synced may be gone."""
        state, spec = self.state.partitions.get(where), self._specs.get(where[0])
        if state is None or spec is None:
            return []
        members = [*{**state.value.in_sync, **state.value.eligible}]
        enough = len(members) >= min(spec.config.min_insync, len(state.value.replicas))
        unsure = all(self.copies[broker, where].lossy or self._unclean(broker, where) for broker in members)
        return members if enough and unsure else []

    def _unclean(self, broker: int, where: Where) -> bool:
        """A member whose machine went down: it may lead, but only when nobody else is left who is sure of what he has.
        That by chance it lost nothing helps nobody, because nobody knows."""
        state = self.state.partitions.get(where)
        if state is None:
            return False
        incarnation = state.value.in_sync.get(broker, state.value.eligible.get(broker))
        if incarnation is None or incarnation == self.state.incarnation(broker):
            return False
        found = self.state.brokers.get(broker)
        if found is None:
            return broker in self.powerless
        return incarnation == 0 or not found.value.clean

    def wrote(self, broker: int, where: Where, batch: Batch, previous: Batch | None) -> None:
        """A batch was added to a copy."""
        self.checked["C6"] += 1
        if previous is not None and batch.epoch < previous.epoch:
            self.complain(
                "C6",
                f"broker {broker} wrote {self.name(where)} offset {batch.base} of epoch {batch.epoch} behind epoch "
                f"{previous.epoch}",
            )
        known = self._written.setdefault((where, batch.epoch, batch.base), batch.digest)
        if known != batch.digest:
            self.complain(
                "C6",
                f"broker {broker} wrote another batch of epoch {batch.epoch} at {self.name(where)} offset {batch.base}",
            )
            self._written[where, batch.epoch, batch.base] = batch.digest

    # ---- brokers

    def leads(self, broker: int, where: Where, epoch: int) -> None:
        self.checked["C6"] += 1
        first = self._led.setdefault((where, epoch), broker)
        if first != broker:
            self.complain("C6", f"brokers {first} and {broker} lead {self.name(where)} in epoch {epoch}")

    def committed(self, broker: int, partition: Partition, where: Where, end: int, *, fresh: bool) -> None:
        """A broker says that everything below `end` is committed."""
        if not self.consistent(where):
            return
        agreed, copy = self.agreed[where], self.copies[broker, where]
        self.checked["C5"] += 1
        has = self.has(broker, where)
        if has < min(end, agreed.end):
            self._disagree(broker, where, has, end)
        if fresh and not partition.leads:
            return  # what it noted before it was started
        before = agreed.end
        while agreed.end < end:
            batch = copy.batches.get(agreed.end)
            if batch is None:
                self.complain(
                    "C5",
                    f"broker {broker} has a high watermark of {end} for {self.name(where)} and nothing at {agreed.end}",
                )
                return
            agreed.commits.append(Commit(batch.base, batch.end, batch.epoch, batch.digest, self._now()))
        state = self.state.partitions.get(where)
        if state is not None and agreed.end > before:
            self._held(where, state.value, end)
            self._in_sync(where, state.value)

    def _held(self, where: Where, state: PartitionState, end: int) -> None:
        """As many as min_insync asks for have what is committed."""
        spec = self._specs[where[0]]
        self.checked["C32"] += 1
        needed = min(spec.config.min_insync, len(state.replicas))
        now = self._now()
        holding = [
            broker
            for broker in self._hosts
            if self.copies[broker, where].forgiven_until > now or self.has(broker, where) >= end
        ]
        if len(holding) < needed:
            self.complain("C32", f"{self.name(where)} is committed up to {end} and only brokers {holding} have that")

    def _disagree(self, broker: int, where: Where, has: int, end: int) -> None:
        """A broker holds something else below its high watermark than was committed."""
        agreed, copy = self.agreed[where], self.copies[broker, where]
        if copy.lossy or copy.poisoned or copy.forgiven_until > self._now():
            if not self._excused_from(agreed, has):
                return  # its own log is not whole: it will be mended, or never lead
        elif not self._excused_from(agreed, has) and not agreed.renewed(has):
            self.complain(
                "C5",
                f"broker {broker} has a high watermark of {end} for {self.name(where)}, and from {has} on it holds "
                "something else than was committed",
            )
        state = self.state.partitions.get(where)
        if state is None or state.value.leader != broker:
            return
        # A new life of the partition: what was lost is not there any more, for anyone.
        kept = [commit for commit in agreed.commits if commit.end <= has]
        agreed.commits[len(kept) :] = []
        for other in self._hosts:
            self.recount(other, where)
