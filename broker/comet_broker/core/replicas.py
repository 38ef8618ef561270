"""What the leader of a partition knows of its replicas in one epoch, and what follows from it.

    committed   below it, every in-sync replica has everything: acks=all is acknowledged, consistent readers see it
    shrink      who has fallen behind for too long, and is to be taken out of in_sync
    growth      who has caught up, and is to be taken in

The rule that nothing acknowledged is lost rests on three things kept here. A replica that is being taken in counts
already while nobody knows whether the metadata store has taken it in; one that is being taken out counts until the
store has it out. `committed` stands still while fewer than `min_insync` are in sync. And a replica counts only with
the broker epoch it was in sync with: a broker that came back may have less.

Single-threaded, pure; owned by the partition, made anew for every epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from comet_broker.core.cluster import NOBODY, PartitionState

_UNKNOWN: Final = -1

V = TypeVar("V")


@dataclass(slots=True)
class Follower:
    """One replica as its own reports tell of it. Nothing is known of it in this epoch before the first."""

    broker_epoch: int
    log_end: int
    flushed_end: int
    caught_up_at: float  # the latest time of which it is known that it has had, by now, all that the leader had then
    goal_at: float  # such a time in the making: once it has what the leader had then
    goal_end: int


class Replicas:
    """Owned by a leading partition. `me` counts by what it is told as its own ends."""

    def __init__(self, me: int, state: PartitionState, min_insync: int, log_end: int, now: float) -> None:
        assert state.leader == me
        self.me = me
        self.min_insync = min_insync
        self.state = state
        self.alone = False  # there is no other replica, now or soon
        self.epoch_start = log_end
        self.followers: dict[int, Follower] = {}
        self.proposed: PartitionState | None = None  # written to the store, and not known whether it took it
        self._began = now
        self._counted: tuple[int, ...] = ()
        self.adopt(state)

    @property
    def enough(self) -> bool:
        """As many are in sync as acks=all asks for."""
        return len(self.state.in_sync) >= self.min_insync

    def _recount(self) -> None:
        members = set(self.state.in_sync)
        if self.proposed is not None:
            members |= self.proposed.in_sync.keys()
        members.discard(self.me)
        self._counted = tuple(members)

    def adopt(self, state: PartitionState) -> None:
        """The store's word, in the order of its revisions. It settles what was proposed."""
        assert state.leader == self.me and state.epoch == self.state.epoch
        self.state = state
        self.alone = state.holders == (self.me,)
        self.proposed = None
        self._recount()
        for broker in set(self.followers) - set(state.holders):
            del self.followers[broker]

    def propose(self, state: PartitionState) -> None:
        """From now on both are counted, until `adopt` says which of them it is."""
        assert self.proposed is None
        self.proposed = state
        self._recount()

    # ---- what followers say

    def follow(self, broker: int, broker_epoch: int, now: float) -> None:
        """A follower begins. What it has is known once it has said that it has cut back to where the logs agree."""
        known = self.followers.get(broker)
        caught_up_at = known.caught_up_at if known is not None and known.broker_epoch == broker_epoch else self._began
        self.followers[broker] = Follower(broker_epoch, _UNKNOWN, _UNKNOWN, caught_up_at, now, self.epoch_start)

    def progress(
        self, broker: int, broker_epoch: int, log_end: int, flushed_end: int, leader_end: int, now: float
    ) -> bool:
        """What a follower has now; False if it is not one of this epoch."""
        follower = self.followers.get(broker)
        if follower is None or follower.broker_epoch != broker_epoch:
            return False
        assert log_end <= leader_end, "a follower cannot have what its leader has not"
        follower.log_end = log_end
        follower.flushed_end = flushed_end
        if log_end >= leader_end:
            follower.caught_up_at = now
        elif log_end >= follower.goal_end:
            follower.caught_up_at = max(follower.caught_up_at, follower.goal_at)
        else:
            return True  # a goal that moved with every report would never be reached where many are under way
        follower.goal_at, follower.goal_end = now, leader_end
        return True

    # ---- what follows from it

    def committed(self, log_end: int, flushed_end: int, *, flushed: bool) -> int:
        """Up to where every in-sync replica has everything, on disk if `flushed`; -1 while too few are in sync."""
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
        """The follower is the one that was taken in, not a later life of it."""
        broker_epoch = self.state.in_sync.get(broker)
        if broker_epoch is None and self.proposed is not None:
            broker_epoch = self.proposed.in_sync.get(broker)
        return broker_epoch == follower.broker_epoch

    def has_all(self, broker: int, log_end: int) -> bool:
        """Whether leadership could pass to it with nothing left behind."""
        follower = self.followers.get(broker)
        return (
            follower is not None
            and self.state.in_sync.get(broker) == follower.broker_epoch
            and follower.log_end == log_end
        )

    def shrunk(self, log_end: int, now: float, lag_s: float) -> PartitionState | None:
        """The state without those that have not caught up for longer than `lag_s`; None if there are none."""
        for follower in self.followers.values():
            if follower.log_end >= log_end:
                follower.caught_up_at = now  # nothing was written that it could have reported
        gone = [
            broker
            for broker, broker_epoch in self.state.in_sync.items()
            if broker != self.me and now - self._caught_up_at(broker, broker_epoch) > lag_s
        ]
        return without(self.state, gone, self.min_insync) if gone else None

    def keeps_up(self, broker: int, broker_epoch: int, now: float, lag_s: float) -> bool:
        """It has had all there was within `lag_s`."""
        return now - self._caught_up_at(broker, broker_epoch) <= lag_s

    def _caught_up_at(self, broker: int, broker_epoch: int) -> float:
        follower = self.followers.get(broker)
        if follower is None or follower.broker_epoch != broker_epoch:
            return self._began
        return follower.caught_up_at

    def grown(self, committed: int, registered: dict[int, int]) -> PartitionState | None:
        """The state with those that have caught up, if their broker is still the one that reported; None if there
        are none. `registered` is what the metadata store says of the brokers that are alive."""
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
        """Leadership passes to the broker that the state asks for."""
        assert self.state.handover != NOBODY
        return passed(self.state, self.state.handover)


def without(state: PartitionState, gone: list[int], min_insync: int) -> PartitionState:
    """The state after these have left in_sync. Those that leave while too few stay have all there is to have."""
    in_sync = {broker: broker_epoch for broker, broker_epoch in state.in_sync.items() if broker not in gone}
    eligible = {} if len(in_sync) >= min_insync else {**state.eligible, **_pick(state.in_sync, gone)}
    return msgspec.structs.replace(state, in_sync=in_sync, eligible=eligible)


def with_members(state: PartitionState, new: dict[int, int], min_insync: int) -> PartitionState:
    """The state after these have come into in_sync."""
    in_sync = {**state.in_sync, **new}
    eligible = (
        {}
        if len(in_sync) >= min_insync
        else {broker: broker_epoch for broker, broker_epoch in state.eligible.items() if broker not in in_sync}
    )
    given_up = {broker: found for broker, found in state.given_up.items() if broker not in in_sync}
    return msgspec.structs.replace(state, in_sync=in_sync, eligible=eligible, given_up=given_up)


def in_folders(before: PartitionState, after: PartitionState, folders: dict[int, str]) -> PartitionState:
    """The state after some have come into in_sync, with the data folders that those have written down."""
    new = [broker for broker, broker_epoch in after.in_sync.items() if before.in_sync.get(broker) != broker_epoch]
    return msgspec.structs.replace(after, folders={**before.folders, **_pick(folders, new)})


def passed(state: PartitionState, leader: int) -> PartitionState:
    """The state after leadership has passed to another in-sync replica."""
    assert leader in state.in_sync
    return msgspec.structs.replace(state, leader=leader, epoch=state.epoch + 1, handover=NOBODY)


def _pick(table: dict[int, V], keys: list[int]) -> dict[int, V]:
    return {key: table[key] for key in keys if key in table}
