"""The leader's state of a partition's replicas in one epoch, and the decisions that follow from it.

    committed   below it, every in-sync replica has everything: acks=all is acknowledged, consistent readers see it
    shrink      removes replicas from in_sync that have fallen behind for too long
    growth      adds replicas to in_sync that have caught up

Three rules here ensure that no acknowledged record is lost. A replica that is being added counts before it is known
whether the metadata store has added it; one that is being removed counts until the store has removed it. `committed`
stands still while fewer than `min_insync` are in sync. And a replica counts only with the broker epoch that it was in
sync with: a broker that came back may have fewer records.

Single-threaded, pure; owned by the partition, created for each epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from comet_broker.core.cluster import NO_BROKER, PartitionState

_UNKNOWN: Final = -1

V = TypeVar("V")


@dataclass(slots=True)
class Follower:
    """One replica by its own reports. Its log end is unknown in this epoch before the first report."""

    broker_epoch: int
    log_end: int
    flushed_end: int
    caught_up_at: float  # the latest time at which the leader's log end was one that the follower has reached since
    goal_at: float  # the next `caught_up_at`, once the follower reaches `goal_end`
    goal_end: int


class Replicas:
    """The replicas of a leading partition, its owner. `me`, the leader, counts by the ends that the caller passes."""

    def __init__(self, me: int, state: PartitionState, min_insync: int, log_end: int, now: float) -> None:
        assert state.leader == me
        self.me = me
        self.min_insync = min_insync
        self.state = state
        self.alone = False  # there is no other replica, present or planned
        self.epoch_start = log_end
        self.followers: dict[int, Follower] = {}
        self.proposed: PartitionState | None = None  # written to the store, with an unknown result
        self._began = now
        self._counted: tuple[int, ...] = ()
        self.adopt(state)

    @property
    def enough(self) -> bool:
        """Whether enough replicas are in sync for acks=all."""
        return len(self.state.in_sync) >= self.min_insync

    def _recount(self) -> None:
        members = set(self.state.in_sync)
        if self.proposed is not None:
            members |= self.proposed.in_sync.keys()
        members.discard(self.me)
        self._counted = tuple(members)

    def adopt(self, state: PartitionState) -> None:
        """Takes the state in the store, in the order of its revisions. It replaces the proposed one."""
        assert state.leader == self.me and state.epoch == self.state.epoch
        self.state = state
        self.alone = state.holders == (self.me,)
        self.proposed = None
        self._recount()
        for broker in set(self.followers) - set(state.holders):
            del self.followers[broker]

    def propose(self, state: PartitionState) -> None:
        """Counts the members of both states from now on, until `adopt` settles which one holds."""
        assert self.proposed is None
        self.proposed = state
        self._recount()

    # ---- reports of followers

    def follow(self, broker: int, broker_epoch: int, now: float) -> None:
        """A follower begins. Its log end is unknown until it reports that it has truncated its log."""
        known = self.followers.get(broker)
        caught_up_at = known.caught_up_at if known is not None and known.broker_epoch == broker_epoch else self._began
        self.followers[broker] = Follower(broker_epoch, _UNKNOWN, _UNKNOWN, caught_up_at, now, self.epoch_start)

    def progress(
        self, broker: int, broker_epoch: int, log_end: int, flushed_end: int, leader_end: int, now: float
    ) -> bool:
        """Notes a follower's ends; False if it is not a follower of this epoch."""
        follower = self.followers.get(broker)
        if follower is None or follower.broker_epoch != broker_epoch:
            return False
        assert log_end <= leader_end, "a follower cannot have records that its leader lacks"
        follower.log_end = log_end
        follower.flushed_end = flushed_end
        if log_end >= leader_end:
            follower.caught_up_at = now
        elif log_end >= follower.goal_end:
            follower.caught_up_at = max(follower.caught_up_at, follower.goal_at)
        else:
            return True  # a goal that moved with every report would never be reached under steady writes
        follower.goal_at, follower.goal_end = now, leader_end
        return True

    # ---- decisions

    def committed(self, log_end: int, flushed_end: int, *, flushed: bool) -> int:
        """The offset below which every in-sync replica has everything, on disk if `flushed`; -1 if too few are in
        sync."""
        if not self.enough:
            return -1
        least = flushed_end if flushed else log_end
        for broker in self._counted:
            follower = self.followers.get(broker)
            if follower is None or not self._counts(broker, follower):
                return -1
            has = follower.flushed_end if flushed else follower.log_end
            least = min(least, has)
        return least

    def _counts(self, broker: int, follower: Follower) -> bool:
        """Whether the follower has the broker epoch with which it is in sync, not a later one."""
        broker_epoch = self.state.in_sync.get(broker)
        if broker_epoch is None and self.proposed is not None:
            broker_epoch = self.proposed.in_sync.get(broker)
        return broker_epoch == follower.broker_epoch

    def has_all(self, broker: int, log_end: int) -> bool:
        """Whether leadership could pass to the broker without loss."""
        follower = self.followers.get(broker)
        return (
            follower is not None
            and self.state.in_sync.get(broker) == follower.broker_epoch
            and follower.log_end == log_end
        )

    def shrunk(self, log_end: int, now: float, lag_s: float) -> PartitionState | None:
        """The state without replicas that have not caught up for longer than `lag_s`; None if there are none."""
        for follower in self.followers.values():
            if follower.log_end >= log_end:
                follower.caught_up_at = now  # without writes a follower has no progress to report
        gone = [
            broker
            for broker, broker_epoch in self.state.in_sync.items()
            if broker != self.me and now - self._caught_up_at(broker, broker_epoch) > lag_s
        ]
        return without(self.state, gone, self.min_insync) if gone else None

    def keeps_up(self, broker: int, broker_epoch: int, now: float, lag_s: float) -> bool:
        """Whether the replica has caught up within `lag_s`."""
        return now - self._caught_up_at(broker, broker_epoch) <= lag_s

    def _caught_up_at(self, broker: int, broker_epoch: int) -> float:
        follower = self.followers.get(broker)
        if follower is None or follower.broker_epoch != broker_epoch:
            return self._began
        return follower.caught_up_at

    def grown(self, committed: int, registered: dict[int, int]) -> PartitionState | None:
        """The state with the replicas that have caught up and are still registered with the same epoch; None if there
        are none. `registered` are the live brokers' epochs in the metadata store."""
        needed = max(committed, self.epoch_start)
        new = {
            broker: follower.broker_epoch
            for broker, follower in self.followers.items()
            if broker in self.state.holders
            and self.state.in_sync.get(broker) != follower.broker_epoch
            and follower.log_end >= needed
            and registered.get(broker) == follower.broker_epoch
        }
        return with_members(self.state, new, self.min_insync) if new else None

    def handed_over(self) -> PartitionState:
        """The state after leadership has passed to its `handover` broker."""
        assert self.state.handover != NO_BROKER
        return passed(self.state, self.state.handover)


def without(state: PartitionState, gone: list[int], min_insync: int) -> PartitionState:
    """The state after these have left in_sync. Those that leave while too few stay have every committed record."""
    in_sync = {broker: broker_epoch for broker, broker_epoch in state.in_sync.items() if broker not in gone}
    eligible = {} if len(in_sync) >= min_insync else {**state.eligible, **_pick(state.in_sync, gone)}
    return msgspec.structs.replace(state, in_sync=in_sync, eligible=eligible)


def with_members(state: PartitionState, new: dict[int, int], min_insync: int) -> PartitionState:
    """The state after these have joined in_sync."""
    in_sync = {**state.in_sync, **new}
    eligible = (
        {}
        if len(in_sync) >= min_insync
        else {broker: broker_epoch for broker, broker_epoch in state.eligible.items() if broker not in in_sync}
    )
    given_up = {broker: found for broker, found in state.given_up.items() if broker not in in_sync}
    return msgspec.structs.replace(state, in_sync=in_sync, eligible=eligible, given_up=given_up)


def in_folders(before: PartitionState, after: PartitionState, folders: dict[int, str]) -> PartitionState:
    """The state after replicas have joined in_sync, with the data folders of their registrations."""
    new = [broker for broker, broker_epoch in after.in_sync.items() if before.in_sync.get(broker) != broker_epoch]
    return msgspec.structs.replace(after, folders={**before.folders, **_pick(folders, new)})


def passed(state: PartitionState, leader: int) -> PartitionState:
    """The state after leadership has passed to another in-sync replica."""
    assert leader in state.in_sync
    return msgspec.structs.replace(state, leader=leader, epoch=state.epoch + 1, handover=NO_BROKER)


def _pick(table: dict[int, V], keys: list[int]) -> dict[int, V]:
    return {key: table[key] for key in keys if key in table}
