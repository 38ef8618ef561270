"""One epoch in which this broker leads a partition: who follows, who is in sync, and how that is agreed on.

    follower's progress ─► Replicas ─┬─► committed moves ─► acks=all, consistent readers
    timer ──────────────────────────►├─► in_sync shrinks or grows ─┐
    handover asked for ─────────────►└─► leadership passes ────────┴─► compare-and-swap in the metadata store

At most one change is under way. Until the store's answer is certain, both the old and the new state hold: a change
that timed out is sent again with the same compare, so that at most one of the two can ever be made, and an answer of
"no" proves that neither will be.

Owned by its Partition, made for one epoch, closed at its end.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from comet.errors import Closed, CometError
from comet_broker.core.cluster import NO_BROKER, PartitionState, Versioned, partition_key
from comet_broker.core.replicas import Replicas, in_folders
from comet_broker.metadata.store import Compare, Put, StoreUnavailable

if TYPE_CHECKING:
    from comet_broker.partitions.partition import Partition

log = logging.getLogger(__name__)

HANDOVER_S_MAX: Final = 0.5  # how long appends are held back for a follower to get all there is
STORE_RETRY_S: Final = 0.1


class Link(Protocol):
    """The stream on which one follower is fed."""

    def watermark_moved(self, partition: Partition) -> None: ...
    def log_start_moved(self, partition: Partition) -> None: ...
    def leadership_over(self, partition: Partition, error: CometError) -> None: ...
    def fell_behind(self, partition: Partition, lag_s: float) -> None: ...


class Leadership:
    def __init__(self, partition: Partition, state: PartitionState, now: float) -> None:
        context = partition.context
        self.epoch = state.epoch
        self.replicas = Replicas(context.me, state, partition.min_insync, partition.log.log_end, now)
        self.links: dict[int, Link] = {}
        self.handing_over = False  # appends are held back: leadership is about to pass
        self.closed = False
        self._partition = partition
        self._context = context
        self._swapping = False
        self._handover_since = 0.0

    # ---- followers

    def follow(self, broker: int, broker_epoch: int, link: Link) -> None:
        previous = self.links.get(broker)
        self.links[broker] = link
        if previous is not None and previous is not link:
            previous.leadership_over(self._partition, CometError("the follower has connected again"))
        self.replicas.follow(broker, broker_epoch, self._context.clock.monotonic())

    def unfollow(self, broker: int, link: Link) -> None:
        if self.links.get(broker) is link:
            del self.links[broker]

    def progress(self, broker: int, broker_epoch: int, log_end: int, flushed_end: int) -> None:
        """A follower says what it has."""
        partition = self._partition
        now = self._context.clock.monotonic()
        if not self.replicas.progress(broker, broker_epoch, log_end, flushed_end, partition.log.log_end, now):
            return
        partition.moved()
        if self.replicas.state.in_sync.get(broker) != broker_epoch:
            self._grow()
        if self.handing_over:
            self._pass_on()

    def watermark_moved(self) -> None:
        for link in self.links.values():
            link.watermark_moved(self._partition)

    def log_start_moved(self) -> None:
        """What is deleted here must not come back when another leads."""
        for link in self.links.values():
            link.log_start_moved(self._partition)

    # ---- the store's word

    def adopt(self, state: PartitionState) -> None:
        """The state as the store has it now, of this same epoch."""
        self.replicas.adopt(state)
        if state.handover == NO_BROKER:
            self.handing_over = False
        elif self.handing_over:
            self._pass_on()  # to another, it may be, who has nothing more to say
        else:
            self._begin_handover()
        self._partition.moved()
        self._grow()

    def check(self) -> None:
        """Called by a timer, several times in the time a follower may lag, for all partitions in turn."""
        try:
            self._check()
        except Exception as error:  # noqa: BLE001 - what is wrong with one is not to keep it from the others
            self._context.broke(self._partition, error)

    def _check(self) -> None:
        now = self._context.clock.monotonic()
        if now - self._handover_since > HANDOVER_S_MAX:
            self._resume()
        wanted = self.replicas.state.handover != NO_BROKER and not self.handing_over
        if wanted and now - self._handover_since > 2 * HANDOVER_S_MAX:
            self._begin_handover()
        shrunk = self.replicas.shrunk(self._partition.log.log_end, now, self._context.replica_lag_s)
        if shrunk is not None:
            self._swap(shrunk, "in sync")
            if self.replicas.proposed is shrunk:
                self._disconnect(self.replicas.state.in_sync.keys() - shrunk.in_sync.keys())
        else:
            self._grow()

    def _disconnect(self, brokers: set[int]) -> None:
        """Their streams may be dead without a word: followers that are there connect anew."""
        for link in [self.links[broker] for broker in sorted(brokers & self.links.keys())]:
            link.fell_behind(self._partition, self._context.replica_lag_s)

    def _grow(self) -> None:
        if self._swapping:
            return
        # Who does not follow any more may still be registered, with a log that has failed since. And who is behind for
        # longer than it may be would be taken out again at once. Who is damaged is to cut its log back first.
        now, lag_s = self._context.clock.monotonic(), self._context.replica_lag_s
        following = {
            broker: start
            for broker, start in self._context.registered().items()
            if broker in self.links
            and self._context.fit(broker, self._partition)
            and self.replicas.keeps_up(broker, start, now, lag_s)
        }
        grown = self.replicas.grown(self._partition.committed, following)
        if grown is not None:
            self._swap(in_folders(self.replicas.state, grown, self._context.folders()), "in sync")

    def _begin_handover(self) -> None:
        """Holds appends back, for a moment, so that the one to take over can get all there is."""
        if self.replicas.state.handover not in self.links:
            return  # it does not follow now: the timer tries again
        self.handing_over = True
        self._handover_since = self._context.clock.monotonic()
        asyncio.get_running_loop().call_later(HANDOVER_S_MAX, self._resume)
        self._pass_on()

    def _resume(self) -> None:
        """The one to take over is too slow: appends go on, and it is tried again later. Not while the store may be
        about to make it leader."""
        if self.handing_over and not self._swapping:
            self.handing_over = False

    def _pass_on(self) -> None:
        state = self.replicas.state
        if state.handover != NO_BROKER and self.replicas.has_all(state.handover, self._partition.log.log_end):
            self._swap(self.replicas.handed_over(), "handed over")

    # ---- changing the state

    def _swap(self, state: PartitionState, why: str) -> None:
        if self._swapping or self.closed or self.replicas.proposed is not None:
            return
        self._swapping = True
        self.replicas.propose(state)
        partition = self._partition
        log.info("%s/%d: %s: %s", partition.topic, partition.index, why, state)
        self._context.tasks.spawn(
            self._settle(state, partition.mod_revision), f"{why} {partition.topic}/{partition.index}"
        )

    async def _settle(self, state: PartitionState, mod_revision: int) -> None:
        """Has the store take the new state, or learns what it has instead."""
        try:
            settled = await self._outcome(state, mod_revision)
        except msgspec.DecodeError as error:
            # Somebody has written it, and it may say that another leads. What can be read will be heard of.
            log.error("what the metadata store has of %s cannot be read: %s", self._partition, error)
            if not self.closed:
                self._partition.step_down("what the metadata store has of it cannot be read")
            return
        except Closed:
            return  # this process is stopping
        except Exception as error:  # noqa: BLE001 - whether the change was made is not known: it leads no more
            self._context.broke(self._partition, error)
            return
        finally:
            self._swapping = False  # and from here on the next change may be under way
        try:
            if settled is not None and not self.closed and self.replicas.proposed is not None:
                self._partition.apply(settled)
            elif self.handing_over and not self.closed:
                self._pass_on()
        except Exception as error:  # noqa: BLE001 - reported by broke
            self._context.broke(self._partition, error)

    async def _outcome(self, state: PartitionState, mod_revision: int) -> Versioned[PartitionState] | None:
        """What the store has now; None when that does not matter any more."""
        store = self._context.store
        key = partition_key((self._partition.topic_id.hex(), self._partition.index))
        while not self.closed:
            try:
                result = await store.transact([Compare(key, mod_revision)], [Put(key, state.encode())])
                if result.applied:
                    return Versioned(state, result.revision, 0)
                item = await store.get(key)
                if item is None:
                    return None  # the topic is being deleted
                return Versioned(PartitionState.decode(item.value), item.mod_revision, item.create_revision)
            except StoreUnavailable:
                await asyncio.sleep(STORE_RETRY_S)
        return None

    def close(self, error: CometError) -> None:
        """The epoch is over for this broker: followers are told."""
        if self.closed:
            return
        self.closed = True
        links, self.links = self.links, {}
        for link in links.values():
            try:
                link.leadership_over(self._partition, error)
            except Exception as caught:  # noqa: BLE001 - the other followers are to be told, too
                self._context.tasks.report(f"telling a follower of {self._partition}", caught)
