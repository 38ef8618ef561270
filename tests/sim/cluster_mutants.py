"""Planted bugs of a cluster: each is a mistake that somebody could make in replication, election or membership.

See `mutants` for those of a single broker. Each has a seed that is known to catch it, which a test runs; whether it is
caught by any of the first 200 seeds as well is what `python -m tests.sim --mutant NAME` finds out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from comet import records
from comet.client.connection import Connection
from comet.settings.topic import Flush
from comet.v1 import replication_pb2 as pb
from comet.wire.framing import HEAD_BYTES, FrameReader
from comet.wire.liveness import LivenessVerdict
from comet_broker.cluster.membership import Membership
from comet_broker.cluster.view import ClusterView
from comet_broker.core import replicas
from comet_broker.core.cluster import NO_BROKER, PartitionState
from comet_broker.core.conflicts import TruncationVerdict
from comet_broker.core.controller import _Case, _Rank
from comet_broker.core.producers import ProducerTable
from comet_broker.core.replicas import Replicas
from comet_broker.core.watermarks import Moved, Watermarks
from comet_broker.metadata.store import RangeResult
from comet_broker.partitions import conflicts
from comet_broker.partitions.follower_state import FollowerState
from comet_broker.partitions.leader_state import LeaderState
from comet_broker.partitions.partition import Partition
from comet_broker.ports import Files
from comet_broker.replication import follower as follower_module
from comet_broker.replication.follower import LeaderLink
from comet_broker.replication.leader import ReplicaSession
from comet_broker.rpc.wire_connection import WireConnection
from comet_broker.storage import data_folder
from comet_broker.storage.data_folder import Identity, loss_is_known, open_identity
from comet_broker.storage.deletion import Deletion
from comet_broker.storage.log import Log
from comet_broker.storage.truncation import Truncation
from comet_broker.streams.session import Session
from tests.sim.cluster_profile import ClusterProfile
from tests.sim.planting import Mutant, Patch

CLUSTER_MUTANTS: Final[dict[str, Mutant]] = {}

Patches = Callable[[], list[Patch]]


def mutant(why: str, breaks: str, *faults: str, caught_by: int = 0, **more: Any) -> Callable[[Patches], Patches]:
    given: dict[str, Any] = {
        "brokers": 3,
        "fault_every_s": 1.5,
        "replicas": 3,
        "min_insync": 2,
        "available": False,
        "flush": Flush.INTERVAL,
        "acks": 2,
        "admin": False,
        "pause_s": 0.3,
        "final_crash": "none",
        "wires": 0.0,
        **more,
    }

    def register(patches: Patches) -> Patches:
        CLUSTER_MUTANTS[patches.__name__] = Mutant(
            "cluster", why, tuple(breaks.split()), ClusterProfile(faults=faults, **given), patches, caught_by
        )
        return patches

    return register


# ---- connections that die silently


@mutant("a follower does not watch its leader's stream for silence", "C29", "one_silent_death", caught_by=2)
def follow_a_dead_stream() -> list[Patch]:
    return [(LeaderLink, "_silent", lambda self: None)]


@mutant(
    "a leader does not end the stream of a follower that is silent, or that it takes out", "C29", "one_silent_death"
)
def feed_a_dead_stream() -> list[Patch]:
    return [(ReplicaSession, "_silent", lambda self: None), (ReplicaSession, "fell_behind", lambda *_: None)]


@mutant("a client does not give a silent broker up", "C29", "one_silent_client", wires=1.0)
def trust_a_silent_broker() -> list[Patch]:
    real = Connection._checked

    def checked(self: Connection, verdict: LivenessVerdict) -> None:
        real(self, LivenessVerdict.FINE if verdict is LivenessVerdict.SILENT else verdict)

    return [(Connection, "_checked", checked)]


@mutant("a broker keeps the stream of a client that is silent", "C29", "one_silent_client", wires=1.0)
def keep_a_silent_client() -> list[Patch]:
    real = Session.look

    def look(self: Session, now: float) -> None:
        self.client.liveness.received += 1
        real(self, now)

    return [(Session, "look", look)]


# ---- bytes of the wire


@mutant(
    "a frame of which a part has come is taken for whole when the connection ends",
    "C29",
    "cut_links",
    wires=1.0,
    caught_by=6,
)
def hand_over_a_part() -> list[Patch]:
    real = WireConnection.connection_lost

    def connection_lost(self: WireConnection, error: Exception | None) -> None:
        part = self._reader._rest[HEAD_BYTES:]
        if part and self.session is not None and not self.ended and not self.session.closed:
            self.session.receive(part)
        real(self, error)

    return [(WireConnection, "connection_lost", connection_lost)]


@mutant("what is left in the buffer of a loop is not kept when another connection is read", "C29", wires=1.0)
def share_the_buffer() -> list[Patch]:
    real = FrameReader.keep

    def keep(self: FrameReader) -> None:
        real(self)
        if self._rest:
            self._rest = bytes(self._buffer[: len(self._rest)])

    return [(FrameReader, "keep", keep)]


# ---- acknowledging, and the high watermark


@mutant("acks=all is acknowledged when the leader has it", "C1", "kill")
def ack_before_replicate() -> list[Patch]:
    return [(Partition, "when_acked", lambda self, end, acks, done: True)]


@mutant("the high watermark is the leader's end", "C5 C31 C32 C1", "kill", "isolate")
def commit_what_the_leader_has() -> list[Patch]:
    return [(Replicas, "committed", lambda self, log_end, flushed_end, *, flushed: log_end)]


@mutant("the high watermark moves on with fewer in sync than min_insync", "C32", "isolate", "kill")
def commit_below_min_insync() -> list[Patch]:
    return [(Replicas, "enough", property(lambda self: True))]


@mutant("a majority is enough, whoever is in sync", "C31", "isolate", "partition", "kill")
def commit_by_majority() -> list[Patch]:
    def committed(self: Replicas, log_end: int, flushed_end: int, *, flushed: bool) -> int:
        if not self.enough:
            return -1
        ends = sorted([log_end, *(follower.log_end for follower in self.followers.values())], reverse=True)
        return ends[self.min_insync - 1] if len(ends) >= self.min_insync else -1

    return [(Replicas, "committed", committed)]


@mutant(
    "a follower's later life is counted for the one that was in sync",
    "C32",
    "power_cut",
    "follower_returns",
    "isolate",
    caught_by=3,
)
def count_another_life() -> list[Patch]:
    return [(Replicas, "_counts", lambda self, broker, follower: True)]


@mutant(
    "with flush=always what is only written is committed",
    "C32 C1",
    "power_cut_all",
    "slow_disk",
    flush=Flush.ALWAYS,
    caught_by=2,
)
def commit_before_the_flush() -> list[Patch]:
    real = Replicas.committed

    def committed(self: Replicas, log_end: int, flushed_end: int, *, flushed: bool) -> int:
        return real(self, log_end, flushed_end, flushed=False)

    return [(Replicas, "committed", committed)]


@mutant(
    "a follower takes over whatever watermark it is told",
    "C8",
    "isolate",
    "kill",
    "partition",
    "cut_links",
    caught_by=1,
)
def let_the_watermark_fall() -> list[Patch]:
    def learn(self: FollowerState, epoch: int, high_watermark: int) -> None:
        partition = self._partition
        if epoch == partition.leader_epoch and not partition.leads:
            partition.watermarks.committed = min(high_watermark, partition.log.log_end)
            partition.moved()

    return [(FollowerState, "learn", learn)]


@mutant("a new leader says where the log ends before it knows", "C8", "isolate", "kill", "partition", caught_by=8)
def tell_the_end_too_early() -> list[Patch]:
    return [(Partition, "settled", property(lambda self: True))]


@mutant("readers see what is not committed yet", "C7", "partition", "kill", caught_by=6)
def show_everything() -> list[Patch]:
    real = Watermarks.advance

    def advance(self: Watermarks, durable: int, *, available: bool, log_start: int) -> Moved:
        return real(self, durable, available=True, log_start=log_start)

    return [(Watermarks, "advance", advance)]


# ---- who is in sync


@mutant("whoever follows is taken in, however far behind", "C31", "isolate", "power_cut", "cut_links", caught_by=1)
def grow_too_early() -> list[Patch]:
    def grown(self: Replicas, committed: int, registered: dict[int, int]) -> PartitionState | None:
        new = {
            broker: follower.broker_epoch
            for broker, follower in self.followers.items()
            if self.state.in_sync.get(broker) != follower.broker_epoch
            and registered.get(broker) == follower.broker_epoch
        }
        return replicas.with_members(self.state, new, self.min_insync) if new else None

    return [(Replicas, "grown", grown)]


@mutant(
    "a broker is taken in as the broker epoch that is registered, not as the one that reported",
    "C31",
    "power_cut",
    flush=Flush.OS,
    caught_by=3,
)
def grow_without_broker_epoch() -> list[Patch]:
    def grown(self: Replicas, committed: int, registered: dict[int, int]) -> PartitionState | None:
        needed = max(committed, self.epoch_start)
        new = {
            broker: registered[broker]
            for broker, follower in self.followers.items()
            if broker in registered
            and self.state.in_sync.get(broker) != registered[broker]
            and follower.log_end >= needed
        }
        return replicas.with_members(self.state, new, self.min_insync) if new else None

    def registered_all(self: LeaderState) -> None:
        if self._swapping:
            return
        state = self.replicas.grown(self._partition.watermarks.committed, self._context.registered())
        if state is not None:
            self._swap(state, "in sync")

    return [(Replicas, "grown", grown), (LeaderState, "_grow", registered_all)]


@mutant(
    "who is being taken in does not count before the store has answered",
    "C31",
    "store_slow",
    "store_unsure",
    "partition",
    "cut_links",
    caught_by=24,
)
def count_growth_late() -> list[Patch]:
    def recount(self: Replicas) -> None:
        self._counted = tuple(broker for broker in self.state.in_sync if broker != self.me)

    return [(Replicas, "_recount", recount)]


@mutant(
    "who is being taken out does not count any more before the store has agreed",
    "C31",
    "store_slow",
    "lose_store",
    "partition",
    "stall_links",
    caught_by=1,
)
def shrink_without_the_store() -> list[Patch]:
    def recount(self: Replicas) -> None:
        members = set(self.state.in_sync if self.proposed is None else self.proposed.in_sync)
        self._counted = tuple(members - {self.me})

    return [(Replicas, "_recount", recount)]


@mutant(
    "those that left while too few stayed are forgotten",
    "C31 C29",
    "isolate",
    "power_cut",
    "partition",
    flush=Flush.OS,
    caught_by=31,
)
def forget_the_eligible() -> list[Patch]:
    def without(state: PartitionState, gone: list[int], min_insync: int) -> PartitionState:
        in_sync = {broker: start for broker, start in state.in_sync.items() if broker not in gone}
        return msgspec.structs.replace(state, in_sync=in_sync, eligible={})

    def with_members(self: _Case, now: PartitionState, in_sync: dict[int, int], members: object) -> PartitionState:
        return msgspec.structs.replace(now, in_sync=in_sync, eligible={})

    return [(replicas, "without", without), (_Case, "_with_members", with_members)]


# ---- who leads


@mutant("any replica that is alive may lead", "C31", "isolate", "kill", "power_cut", "partition", caught_by=6)
def elect_outside_in_sync() -> list[Patch]:
    real = _Case._rank

    def rank(self: _Case, now: PartitionState, broker: int) -> int:
        return min(real(self, now, broker), _Rank.LOSSY_IN_SYNC)

    return [(_Case, "_rank", rank), (_Case, "_best", _impatient(rank))]


def _impatient(rank: Callable[[_Case, PartitionState, int], int]) -> object:
    def best(self: _Case, now: PartitionState, *, last_resort: bool) -> int:
        alive = [
            broker for broker in now.holders if self._cluster.broker_epoch(broker) and not self._must_not_lead(broker)
        ]
        return min(alive, key=lambda broker: (rank(self, now, broker), now.holders.index(broker)), default=0)

    return best


def _best_by_rank(self: _Case, now: PartitionState, *, last_resort: bool) -> int:
    """The election without its second line of defence, the comparison of logs: what a broker says of itself decides.

    No mistake about the first line breaks a promise while logs are compared, so those are planted together with this.
    This alone breaks none in their profiles: see test_cluster_mutants.
    """
    patient = not last_resort and not all(self._cluster.broker_epoch(b) for b in (*now.in_sync, *now.eligible))
    ranked = []
    for order, broker in enumerate(now.holders):
        if not self._cluster.broker_epoch(broker) or self._must_not_lead(broker):
            continue
        rank = self._rank(now, broker)
        if rank != _Rank.NONE and not (rank >= _Rank.LOSSY_IN_SYNC and patient and not self._available):
            ranked.append((rank, order, broker))
    return min(ranked)[-1] if ranked else NO_BROKER


WITHOUT_COMPARISON: Final[Patch] = (_Case, "_best", _best_by_rank)


@mutant("in sync is who was in sync, whatever became of it since", "C31 C5 C1", "power_cut", "power_cut_all")
def forget_broker_epochs() -> list[Patch]:
    return [
        (_Case, "_current", lambda self, table, broker: broker in table and self._cluster.broker_epoch(broker) != 0),
        (_Case, "_mark", lambda self, now: now),
    ]


@mutant("a power cut is taken for a clean stop", "C31", "power_cut", "all_but_one_are_sure", "kill", caught_by=0)
def believe_the_unclean() -> list[Patch]:
    def whole(self: _Case, table: dict[int, int], broker: int) -> bool:
        return broker in self._cluster.brokers and broker in table

    return [(_Case, "_whole", whole), WITHOUT_COMPARISON]


@mutant(
    "the second start after a power cut does not know that something may be lost",
    "C31",
    "start_twice_after_a_power_cut",
    fault_every_s=6.0,
    flush=Flush.OS,
    caught_by=6,
)
def forget_the_loss_at_the_second_start() -> list[Patch]:
    def forgetful(files: Files, **given: Any) -> Identity:
        found = open_identity(files, **given)
        loss_is_known(files, found)
        return found

    return [(data_folder, "open_identity", forgetful), WITHOUT_COMPARISON]


@mutant(
    "a log that came back short counts as whole", "C31", "flip_bit", "failing_sync", "kill", flush=Flush.OS, caught_by=4
)
def believe_a_short_log() -> list[Patch]:
    return [
        (data_folder.DataFolder, "_note", lambda self, *, counted: None),
        (data_folder, "mark_records_missing", lambda files, identity: identity),
        WITHOUT_COMPARISON,
    ]


@mutant("a damaged replica stays the leader", "C29 C25", "flip_bit", "failing_sync", "kill", caught_by=12)
def let_the_unfit_lead() -> list[Patch]:
    return [(_Case, "_must_not_lead", lambda self, broker: False)]


@mutant("a leader stays one when another has been elected", "C6 C5", "isolate", "pause", "lose_store")
def never_step_down() -> list[Patch]:
    return [(Partition, "step_down", lambda self, why: None)]


@mutant(
    "replicas are where they are to be before they are there",
    "C31 C1 C29",
    "store_slow",
    "kill",
    "stall_links",
    admin=True,
    brokers=4,
    caught_by=2,
)
def move_before_arrival() -> list[Patch]:
    def move(self: _Case, now: PartitionState) -> PartitionState:
        if not now.target or now.leader not in now.target:
            return now
        in_sync = {broker: self._cluster.broker_epoch(broker) for broker in now.target}
        return msgspec.structs.replace(now, replicas=now.target, target=(), in_sync=in_sync, eligible={})

    return [(_Case, "_move", move), (_Case, "_arrived", lambda self, now: bool(now.target))]


# ---- disks that lie


@mutant(
    "a follower cuts what it knows to be committed",
    "C1 C31",
    "folder_put_back",
    "log_cut_short",
    flush=Flush.OS,
    fault_every_s=3.0,
    caught_by=1,
)
def cut_what_is_committed() -> list[Patch]:
    return [(follower_module, "judged", lambda partition, following: TruncationVerdict.TRUNCATE)]


@mutant(
    "a loss counts as accepted by an operator that has accepted none",
    "C1 C31",
    "folder_put_back",
    "log_cut_short",
    flush=Flush.OS,
    fault_every_s=3.0,
    caught_by=1,
)
def accept_every_loss() -> list[Patch]:
    def judged(partition: Partition, following: pb.Following) -> TruncationVerdict:
        verdict = conflicts.judged(partition, following)
        return TruncationVerdict.ACCEPTED if verdict is TruncationVerdict.REFUSED else verdict

    return [(follower_module, "judged", judged)]


@mutant(
    "of those that may have lost something the preferred one leads, not the one with the longest log",
    "C31",
    "flip_bit",
    "failing_sync",
    "power_cut_all",
    flush=Flush.OS,
    caught_by=1,
)
def elect_the_preferred() -> list[Patch]:
    real = _Case._longest

    def longest(self: _Case, now: PartitionState, members: set[int], *, wait: bool) -> int:
        found = real(self, now, members, wait=wait)
        here = [b for b in now.holders if b in members and self._cluster.broker_epoch(b) and not self._must_not_lead(b)]
        return min(here, key=lambda broker: (self._rank(now, broker), here.index(broker))) if found else found

    return [(_Case, "_longest", longest)]


# ---- leases


@mutant(
    "a leader trusts its lease until somebody tells it otherwise",
    "C33",
    "pause",
    "pause",
    "late_keepalives",
    "lose_store",
)
def trust_a_stale_lease() -> list[Patch]:
    return [(Membership, "alive", lambda self: True)]


@mutant("a lease is thought to run from the answer on", "C33", "late_keepalives", "store_slow", "lose_store")
def count_the_lease_from_the_answer() -> list[Patch]:
    def extend(self: Membership, sent_at: float, ttl_ms: int) -> None:
        self.deadline = self._clock.monotonic() + 2 * ttl_ms / 1000

    return [(Membership, "_extend", extend)]


# ---- supervision


@mutant(
    "an error about one partition ends the stream on which its broker follows",
    "C29",
    "breaks",
    fault_every_s=3.0,
    caught_by=11,
)
def end_the_link_for_one() -> list[Patch]:
    def halt(self: LeaderLink, partition: Partition, error: Exception) -> None:
        raise error

    return [(LeaderLink, "_guard", lambda self, partition: contextlib.nullcontext()), (LeaderLink, "_halt", halt)]


@mutant(
    "an error about one partition ends the stream on which it is followed",
    "C29",
    "breaks",
    fault_every_s=3.0,
    caught_by=16,
)
def end_the_followers_stream_for_one() -> list[Patch]:
    def progress(self: ReplicaSession, handle: int, leader_epoch: int, log_end: int, flushed_end: int) -> None:
        partition = self._following.get(handle)
        if partition is not None and partition.leadership is not None and leader_epoch == partition.leader_epoch:
            self._take_progress(handle, partition, partition.leadership, log_end, flushed_end)

    return [(ReplicaSession, "_progress", progress)]


# ---- epochs, and logs that part


@mutant("a follower appends what comes from any epoch", "C5 C6", "isolate", "pause", "partition", acks=1, caught_by=1)
def append_from_any_epoch() -> list[Patch]:
    real = FollowerState.replicate

    def replicate(self: FollowerState, batches: memoryview, epoch: int, high_watermark: int) -> None:
        real(self, batches, self._partition.leader_epoch, high_watermark)

    def deliver(self: LeaderLink, handle: int, epoch: int, high_watermark: int, batches: memoryview) -> None:
        found = self._by_handle.get(handle)
        if found is not None:
            found[0].follower.replicate(batches, epoch, high_watermark)
            self._progress_due(found[0])

    async def truncate(self: FollowerState, offset: int, epoch: int, *, restart: bool, aside: bool = False) -> None:
        return

    return [
        (FollowerState, "replicate", replicate),
        (LeaderLink, "_deliver", deliver),
        (FollowerState, "truncate", truncate),
    ]


@mutant(
    "a follower is cut back to its watermark instead of to where the logs part",
    "C8 C31",
    "kill",
    "isolate",
    "partition",
)
def truncate_to_the_watermark() -> list[Patch]:
    real = ReplicaSession._where_to_begin

    def where(partition: Partition, follow: pb.Follow) -> tuple[int, bool]:
        start, restart = real(partition, follow)
        return max(partition.log.log_start, min(start, partition.committed - 1)), restart

    return [(ReplicaSession, "_where_to_begin", staticmethod(where))]


@mutant("a follower goes on at its end, whatever it holds", "C5 C6", "isolate", "pause", "kill", acks=1, caught_by=1)
def never_truncate() -> list[Patch]:
    def where(partition: Partition, follow: pb.Follow) -> tuple[int, bool]:
        return min(follow.log_end, partition.log.log_end), False

    return [(ReplicaSession, "_where_to_begin", staticmethod(where))]


@mutant(
    "a log that is cut back keeps its table of producers, so that a retry of a batch that was cut is a duplicate",
    "C1 C9",
    "cut_back_and_lead_again",
    fault_every_s=6.0,
    idempotent=True,
)
def keep_the_producers_of_what_was_cut() -> list[Patch]:
    real = Deletion._truncate

    def keep(self: Deletion, planned: Truncation, producers: ProducerTable, start: int) -> None:
        real(self, planned, producers if planned.forget_producers else self._state.producers, start)

    return [(Deletion, "_truncate", keep)]


@mutant("a new leader writes on in the old epoch", "C5 C6 C31", "isolate", "pause", "kill", acks=1)
def write_in_the_old_epoch() -> list[Patch]:
    real = Log._write

    def write(
        self: Log, parts: Any, header: Any, base_offset: int, append_time_us: int, epoch: int, *more: Any
    ) -> None:
        if len(parts) > 1:  # the leader's own: a stamp and the rest of the batch
            stamp = records.make_stamp(base_offset, append_time_us, 1, header.length)
            parts, epoch = (stamp, *parts[1:]), 1
        real(self, parts, header, base_offset, append_time_us, epoch, *more)

    return [(Log, "_write", write)]


@mutant(
    "a broker that lists the metadata again keeps what was deleted",
    "C29",
    "compacted",
    "kill",
    "late_watch",
    "isolate",
    caught_by=2,
)
def miss_deletions() -> list[Patch]:
    real = ClusterView._take_listing

    def take(self: ClusterView, listing: RangeResult) -> list[str]:
        known, self._known = self._known, {item.key: 0 for item in listing.items}
        try:
            return real(self, listing)
        finally:
            self._known = {**known, **self._known}

    return [(ClusterView, "_take_listing", take)]
