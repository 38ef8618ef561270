"""One epoch in which this broker leads a partition: its followers, its in-sync replicas, and what it owes producers.

    follower's progress ─► Replicas ─┬─► committed moves ─► acks=all, consistent readers
    timer ──────────────────────────►├─► in_sync shrinks or grows ─┐
    handover requested ─────────────►└─► leadership passes ────────┴─► compare-and-swap in the metadata store

At most one change is under way. Until the store's answer is certain, both the old and the new state hold: a change that
timed out is sent again with the same compare, so at most one of the two is ever made, and an answer of "no" proves that
neither will be.

Owned by its Partition, created for one epoch, closed at its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol

import msgspec

from comet.errors import Closed, CometError, NotEnoughReplicas, Unavailable
from comet.settings.topic import Flush
from comet.types import Acks
from comet_broker.core.cluster import NO_BROKER, PartitionState, Versioned, partition_key
from comet_broker.core.replicas import Replicas, in_folders
from comet_broker.core.watermarks import Watermarks
from comet_broker.metadata.store import Compare, Put, StoreUnavailable
from comet_broker.partitions.acknowledgements import Acknowledgements
from comet_broker.partitions.context import Durable, PartitionContext, Replica
from comet_broker.partitions.flushing import Flushing
from comet_broker.partitions.readers import answer

log = logging.getLogger(__name__)

_ALL: Final = int(Acks.ALL)

HANDOVER_S_MAX: Final = 0.5  # the longest pause of appends while the follower catches up
STORE_RETRY_S: Final = 0.1


class Link(Protocol):
    """The stream to one follower."""

    def watermark_moved(self, handle: int) -> None: ...
    def log_start_moved(self, handle: int) -> None: ...
    def leadership_over(self, handle: int, error: CometError) -> None: ...
    def fell_behind(self, handle: int, lag_s: float) -> None: ...


class LedPartition(Replica, Protocol):
    """The partition."""

    handle: int
    context: PartitionContext
    watermarks: Watermarks
    flushing: Flushing
    mod_revision: int

    @property
    def sure(self) -> bool: ...
    def moved(self) -> None: ...
    def step_down(self, why: str) -> None: ...
    def apply(self, found: Versioned[PartitionState]) -> None: ...


class LeaderState:
    def __init__(self, partition: LedPartition, state: PartitionState, now: float) -> None:
        context = partition.context
        self.epoch = state.epoch
        storage = partition.log
        self.replicas = Replicas(context.me, state, storage.config.min_insync, storage.log_end, now)
        self.acks = Acknowledgements(partial(answer, context.tasks, str(partition)))
        self.links: dict[int, Link] = {}
        self.handing_over = False  # appends are paused: leadership is about to pass
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
            previous.leadership_over(self._partition.handle, CometError("the follower has connected again"))
        self.replicas.follow(broker, broker_epoch, self._context.clock.monotonic())

    def unfollow(self, broker: int, link: Link) -> None:
        if self.links.get(broker) is link:
            del self.links[broker]

    def progress(self, broker: int, broker_epoch: int, log_end: int, flushed_end: int) -> None:
        """Takes a follower's progress."""
        partition = self._partition
        now = self._context.clock.monotonic()
        if not self.replicas.progress(broker, broker_epoch, log_end, flushed_end, partition.log.log_end, now):
            return
        partition.moved()
        if self.replicas.state.in_sync.get(broker) != broker_epoch:
            self._grow()
        if self.handing_over:
            self._pass_on()

    def behind(self, offset: int) -> list[int]:
        """The connected followers that do not have all records below `offset` yet, as far as is known."""
        followers = self.replicas.followers
        return [broker for broker in self.links if broker in followers and followers[broker].log_end < offset]

    def end_following(self, brokers: Iterable[int], error: CometError) -> None:
        """Ends the deliveries to these followers; each requests to follow again."""
        for broker in brokers:
            self.links.pop(broker).leadership_over(self._partition.handle, error)

    # ---- writing

    def require_writable(self, acks: int) -> None:
        """Raises unless this broker is sure that it leads, and has the replicas that `acks` asks for."""
        partition = self._partition
        if self.handing_over:
            raise Unavailable(f"leadership of {partition} is moving to another broker", retry_after_ms=10)
        if not partition.sure:
            raise Unavailable("this broker's lease has expired: it cannot reach the metadata store", retry_after_ms=100)
        if acks == _ALL and not self.replicas.enough:
            in_sync, needed = len(self.replicas.state.in_sync), partition.log.config.min_insync
            raise NotEnoughReplicas(
                f"{partition} has {in_sync} in-sync replicas, and acks=all needs min_insync={needed}",
                retry_after_ms=100,
            )

    def when_acked(self, end_offset: int, acks: int, done: Durable) -> bool:
        """True if an acknowledgement may go out now; else `done` is called once: when it may, or when it never will."""
        partition = self._partition
        if not self.acks.are_waiting(acks) and partition.sure:
            reached = partition.watermarks.committed if acks == _ALL else partition.flushing.durable_end
            if reached >= end_offset:
                return True
        if partition.log.failed is not None:
            done(partition.log.failed)
        else:
            self.acks.wait(end_offset, acks, done)
        return False

    def committed_end(self, durable: int) -> int:
        """The offset below which every in-sync replica has everything; -1 while that is unknown."""
        if self.replicas.alone:
            return durable
        state = self._partition.log.state
        return self.replicas.committed(state.log_end, state.flushed_end, flushed=state.config.flush is Flush.ALWAYS)

    def committed_moved(self, committed: int) -> None:
        """Notes how far the in-sync replicas are committed, and reports it to the followers."""
        if not self.replicas.alone:
            self._partition.log.durability.note_high_watermark(committed)
            for link in self.links.values():
                link.watermark_moved(self._partition.handle)

    def log_start_moved(self) -> None:
        """Reports the log start offset to the followers: deleted records must not come back under another leader."""
        for link in self.links.values():
            link.log_start_moved(self._partition.handle)

    # ---- state from the store

    def adopt(self, state: PartitionState) -> None:
        """Takes over the store's state of this epoch."""
        self.replicas.adopt(state)
        if state.handover == NO_BROKER:
            self.handing_over = False
        elif self.handing_over:
            self._pass_on()  # possibly to another follower, which reports nothing more by itself
        else:
            self._begin_handover()
        self._partition.moved()
        self._grow()

    def check(self) -> None:
        """Runs on a timer, several times within the replica lag, for each partition in turn."""
        try:
            self._check()
        except Exception as error:  # noqa: BLE001 - an error of one partition must not stop the others
            self._context.halt(self._partition, error)

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
        """Ends the streams of followers that fell behind; they may be dead without an error. A live follower
        reconnects."""
        for link in [self.links[broker] for broker in sorted(brokers & self.links.keys())]:
            link.fell_behind(self._partition.handle, self._context.replica_lag_s)

    def _grow(self) -> None:
        if self._swapping:
            return
        # A replica that no longer follows may still be registered with a failed log. A replica that is too far behind
        # would be removed again at once. A damaged replica has to truncate its log first.
        now, lag_s = self._context.clock.monotonic(), self._context.replica_lag_s
        following = {
            broker: start
            for broker, start in self._context.registered().items()
            if broker in self.links
            and self._context.may_lead(broker, self._partition)
            and self.replicas.keeps_up(broker, start, now, lag_s)
        }
        grown = self.replicas.grown(self._partition.watermarks.committed, following)
        if grown is not None:
            self._swap(in_folders(self.replicas.state, grown, self._context.folders()), "in sync")

    def _begin_handover(self) -> None:
        """Pauses appends for a moment, so that the next leader can catch up."""
        if self.replicas.state.handover not in self.links:
            return  # not following now: the timer retries
        self.handing_over = True
        self._handover_since = self._context.clock.monotonic()
        asyncio.get_running_loop().call_later(HANDOVER_S_MAX, self._resume)
        self._pass_on()

    def _resume(self) -> None:
        """Resumes appends if the next leader is too slow; the timer retries. Not while the store may be electing it."""
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
        log.info("%s: %s: %s", partition, why, state)
        self._context.tasks.spawn(self._settle(state, partition.mod_revision), f"{why} {partition}")

    async def _settle(self, state: PartitionState, mod_revision: int) -> None:
        """Writes the new state to the store, or reads the state that the store has instead."""
        try:
            settled = await self._outcome(state, mod_revision)
        except msgspec.DecodeError as error:
            # Another version wrote it, and it may name another leader. The view applies the next readable state.
            log.error("cannot read the state of %s in the metadata store: %s", self._partition, error)
            if not self.closed:
                self._partition.step_down("its state in the metadata store cannot be read")
            return
        except Closed:
            return  # this process is stopping
        except Exception as error:  # noqa: BLE001 - the outcome is unknown, so this broker stops leading
            self._context.halt(self._partition, error)
            return
        finally:
            self._swapping = False  # from here on the next change may start
        try:
            if settled is not None and not self.closed and self.replicas.proposed is not None:
                self._partition.apply(settled)
            elif self.handing_over and not self.closed:
                self._pass_on()
        except Exception as error:  # noqa: BLE001 - reported by halt
            self._context.halt(self._partition, error)

    async def _outcome(self, state: PartitionState, mod_revision: int) -> Versioned[PartitionState] | None:
        """The state in the store; None when it no longer matters."""
        store = self._context.store
        key = partition_key(self._partition.tp)
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

    def close(self, error: CometError, unanswered: CometError) -> None:
        """Ends the epoch on this broker and notifies the followers. Producers that wait for an acknowledgement get
        `unanswered`."""
        if self.closed:
            return
        self.closed = True
        links, self.links = self.links, {}
        for link in links.values():
            try:
                link.leadership_over(self._partition.handle, error)
            except Exception as caught:  # noqa: BLE001 - the other followers are notified too
                self._context.tasks.report(f"notifying a follower of {self._partition}", caught)
        self.acks.release(unanswered)
