"""One partition on this broker: admits and appends batches; decides when they are durable, committed and visible.

    leader     produce(batch) ─► verify ─► producer check ─► Log.append ─┬─► [flush=always: the shared fsync]
                                                                         └─► followers
    follower   replicate(batches) ─► verify ─► Log.append_stamped ─► progress to the leader

    durable     on this broker: the log's end, or with flush=always the end of what is on disk    acks=1
    committed   on every in-sync replica, as the leader computes it                               acks=all
    visible     `high_watermark`: committed, or on an `available` topic durable                   read_uncommitted
    stable      `last_stable_offset`: below it every transaction is decided                       read_committed

Nothing here awaits between the decision to append and the append itself. A leader of a consistent topic checks its
lease before it appends and before it acknowledges. `committed` never moves back while the log is whole.

Owned by the broker's table of topics; everything runs on the loop's thread, fsync on the worker's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Final

from comet import records
from comet.errors import (
    CometError,
    DataLoss,
    LeadershipLost,
    LogFailed,
    NotEnoughReplicas,
    NotLeader,
    TopicNotFound,
    Unavailable,
)
from comet.records import BatchHeader
from comet.types import Acks, Consistency, Flush, TopicConfig
from comet_broker.core.admission import admit
from comet_broker.core.cluster import NO_BROKER, Conflict, GivenUp, PartitionId, PartitionState, Versioned
from comet_broker.core.isolation import Isolation
from comet_broker.core.tail import Tail
from comet_broker.partitions.context import Accepted, Durable, Gap, PartitionContext, Reader, Waiter
from comet_broker.partitions.delete_records import RecordDeletion
from comet_broker.partitions.flushing import Flushing
from comet_broker.partitions.leadership import Leadership
from comet_broker.partitions.transaction_batches import TransactionBatches
from comet_broker.storage.deletion import DeleteTicket
from comet_broker.storage.log import Log
from comet_broker.waiters import answered

log = logging.getLogger(__name__)

_ALL: Final = int(Acks.ALL)
_TRANSACTIONAL: Final = int(records.Flag.TRANSACTIONAL)


class Partition(Flushing):
    def __init__(
        self, handle: int, topic: str, topic_id: bytes, index: int, storage: Log, context: PartitionContext
    ) -> None:
        super().__init__(storage, context)
        self.handle = handle
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.state: PartitionState | None = None  # no leader known yet
        self.mod_revision = 0
        self.leader_epoch = 0
        self.leadership: Leadership | None = None  # while this broker leads
        self.tail = Tail(handle, context.tail_budget)
        self.readers: dict[Any, Reader] = {}  # by cursor, in any state; the tail keeps nothing while there are none
        self.idle: dict[Any, Waiter] = {}  # keyed by cursor or call; woken once by the stable end, then gone
        self.idle_uncommitted: dict[Any, Waiter] = {}  # the same, woken by the high watermark
        self.isolation: Isolation = storage.producers.isolation  # replaced by the log when it is truncated
        self.transaction_batches = TransactionBatches(self)
        self.gave_up: GivenUp | None = None  # to be truncated
        self.conflict: Conflict | None = None  # why it does not follow its leader
        self.fault = ""  # an unexpected error: it neither leads nor follows until it is resumed or the broker restarts
        self._deletion = RecordDeletion(self)
        self._deleting = asyncio.Lock()  # held to delete from the log, at either end, or to close it
        self.settled_in = 0  # the last epoch in which it led and knew the end of the partition
        self.committed = storage.high_watermark
        self.high_watermark = self.committed
        self.last_stable_offset = 0
        self._stabilize()
        self._waiting: deque[tuple[int, Durable]] = deque()  # acks=1, waiting for the fsync
        self._waiting_all: deque[tuple[int, Durable]] = deque()  # acks=all, waiting for the followers
        self.appended_batches = 0
        self.appended_records = 0
        self.appended_bytes = 0
        self.followed_records = 0  # of those, received from a leader
        self.followed_bytes = 0
        self.delivered_records = 0  # to clients
        self.delivered_bytes = 0

    def __str__(self) -> str:
        return f"{self.topic}/{self.index}"

    @property
    def tp(self) -> PartitionId:
        return self.topic_id.hex(), self.index

    @property
    def min_insync(self) -> int:
        return self.log.config.min_insync

    # ---- leadership

    def apply(self, found: Versioned[PartitionState]) -> None:
        """Applies a state of this partition from the metadata store; ignores states older than the current one."""
        if found.mod_revision < self.mod_revision or self.closed is not None:
            return
        news = found.mod_revision > self.mod_revision
        self.mod_revision = found.mod_revision
        state = self.state = found.value
        me = self.context.me
        named = state.leader == me and state.in_sync.get(me) == self.context.broker_epoch()
        leads = named and not (self.truncating or self.fault)
        if leads and self.leadership is not None and self.leadership.epoch == state.epoch:
            if news:  # an older state does not contain a change that began after it
                self.leadership.adopt(state)
            return
        self.step_down(f"broker {state.leader} leads {self} now" if state.leader else f"{self} has no leader now")
        if state.epoch > self.leader_epoch:
            self.leader_epoch = state.epoch
            self.tail.clear()  # its frames carry the epoch
        if leads and self._deletion.done(state):
            self._lead(state)

    def reconsider(self) -> None:
        """Applies the current state again after this broker's registration or log has changed."""
        if self.state is not None:
            self.apply(Versioned(self.state, self.mod_revision, 0))

    def _lead(self, state: PartitionState) -> None:
        assert self.leadership is None
        assert state.epoch == self.leader_epoch > 0
        self.leadership = Leadership(self, state, self.context.clock.monotonic())
        log.info("leads %s in epoch %d from offset %d", self, state.epoch, self.log.log_end)
        if self.log.failed is not None:
            self.context.disqualify(self)
        self.moved()
        self.leadership.adopt(state)
        self.transaction_batches.end_left_open(self.leadership)

    def step_down(self, why: str) -> None:
        """Stops leading: this broker is not the leader, or cannot be sure that it is."""
        leadership, self.leadership = self.leadership, None
        if leadership is None:
            return
        log.info("no longer leads %s: %s", self, why)
        if self.committed >= leadership.replicas.epoch_start:
            self.settled_in = leadership.epoch
        error = self.not_leader(why)
        leadership.close(error)
        self._release(LeadershipLost(f"{why}; the batch may or may not be written", details=error.details))
        if not self.named:
            for reader in [reader for reader in self.readers.values() if reader.leader_only]:
                reader.partition_closed(error)

    def not_leader(self, why: str = "") -> NotLeader:
        leader = NO_BROKER if self.state is None else self.state.leader
        if not why:
            why = f"broker {leader} leads {self}" if leader else f"{self} has no leader now"
            if leader == self.context.me:
                reason = self.fault or "its registration does not match the metadata store's state yet"
                why = f"this broker may not lead {self} now: {reason}"
        details = {} if leader in (NO_BROKER, self.context.me) else self.context.whereabouts(leader)
        return NotLeader(why, details=details, retry_after_ms=0 if details else 50)

    @property
    def leads(self) -> bool:
        return self.leadership is not None

    def explain(self, error: CometError) -> CometError:
        """The error that a reader gets; damage that other replicas can repair is retriable."""
        state = self.state
        if not isinstance(error, DataLoss) or state is None:
            return error
        if {*state.in_sync, *state.eligible} <= {self.context.me}:
            return error
        self.context.disqualify(self)
        return Unavailable(
            f"{self} is damaged on this broker; it is being repaired from another replica", retry_after_ms=100
        )

    @property
    def named(self) -> bool:
        """The newest state that is known here names this broker as leader. Without a lease it must not write; the high
        watermark does not move, so readers that need the leader need not leave."""
        return self.state is not None and self.state.leader == self.context.me

    @property
    def available(self) -> bool:
        """The topic prefers availability: it may lose the end of an epoch."""
        return self.log.config.consistency is Consistency.AVAILABLE

    @property
    def _sure(self) -> bool:
        """No other broker can have become leader unnoticed, or that does no harm."""
        return self.context.alive() or self.available

    @property
    def settled(self) -> bool:
        """The high watermark is known. A new leader's is that of a follower until the start of its epoch is committed;
        that of a broker that has just started is from its last checkpoint."""
        leadership = self.leadership
        if leadership is None:
            return self.state is not None and not self.named
        return self.committed >= leadership.replicas.epoch_start

    # ---- writing

    def produce(self, batch: memoryview, acks: int) -> Accepted:
        """Appends one batch of a producer. Raises a CometError and changes nothing, or NotInTransaction for a batch
        that `transaction_batches` has to take."""
        leadership = self.leadership
        if leadership is None or self.closed is not None or leadership.handing_over:
            raise self._refusal()
        if not self._sure:
            raise Unavailable("this broker's lease has expired: it cannot reach the metadata store", retry_after_ms=100)
        if acks == _ALL and not leadership.replicas.enough:
            in_sync = len(leadership.replicas.state.in_sync)
            raise NotEnoughReplicas(
                f"{self} has {in_sync} in-sync replicas, and acks=all needs min_insync={self.min_insync}",
                retry_after_ms=100,
            )
        header = records.verify(batch, 0, stamped=False)
        admit(header, batch, self.topic, self.log.config.record_bytes_max)
        if header.flags & _TRANSACTIONAL:
            self.transaction_batches.check(header, acks)
        duplicate = self.log.producers.check(header, self.log.idle_us)
        if duplicate is not None:
            end = duplicate.base_offset + header.last_offset_delta + 1
            return Accepted(duplicate.base_offset, end, duplicate.append_time_us, duplicate=True)
        try:
            appended = self.log.append(header, batch, self.leader_epoch)
            end = appended.base_offset + header.last_offset_delta + 1
            assert end == self.log.log_end
            if self.readers:
                self.tail.push(appended.base_offset, end, appended.stamp, batch[records.STAMP_BYTES :])
            self._count(header)
            self._appended_one()
        except CometError:
            raise
        except Exception as error:  # an error before the append concerns the batch; this one concerns the partition
            self.halt(error)
            raise LeadershipLost(f"{self} has failed: {error!r}; the batch may or may not be written") from error
        return Accepted(appended.base_offset, end, appended.append_time_us)

    async def write_marker(self, producer_id: int, epoch: int, commit: bool) -> None:
        """Writes a transaction marker; returns when it is on all in-sync replicas. For the coordinator; may be
        repeated."""
        await self.transaction_batches.write_marker(producer_id, epoch, commit)

    def _refusal(self) -> CometError:
        if self.closed is not None:
            return self.closed
        if self.leadership is None:
            return self.not_leader()
        return Unavailable(f"leadership of {self} is moving to another broker", retry_after_ms=10)

    def _count(self, header: BatchHeader) -> None:
        self.appended_batches += 1
        self.appended_records += header.record_count
        self.appended_bytes += header.length

    # ---- following

    def replicate(self, batches: memoryview, epoch: int, high_watermark: int) -> None:
        """Appends batches from the leader of `epoch`. Raises Gap when they do not continue the log, or a CometError."""
        if epoch != self.leader_epoch or self.leads or self.closed is not None or self.truncating:
            return  # from another epoch
        at = 0
        while at < len(batches):
            header = records.verify(batches, at, stamped=True)
            if header.base_offset > self.log.log_end:
                raise Gap(f"{self} ends at {self.log.log_end} and was sent a batch at {header.base_offset}")
            batch = batches[at : at + header.length]
            at += header.length
            if header.next_offset <= self.log.log_end:
                continue  # sent again after a reconnect
            self.log.append_stamped(header, batch)
            if self.readers:
                stamp, rest = bytes(batch[: records.STAMP_BYTES]), batch[records.STAMP_BYTES :]
                self.tail.push(header.base_offset, header.next_offset, stamp, rest)
            self._count(header)
            self.followed_records += header.record_count
            self.followed_bytes += header.length
        self.learn(epoch, high_watermark)
        self._appended_one()

    def learn(self, epoch: int, high_watermark: int) -> None:
        """Takes the high watermark from the leader of `epoch`."""
        committed = min(high_watermark, self.log.log_end)
        if epoch == self.leader_epoch and not self.leads and committed > self.committed:
            self.committed = committed
            self.log.durability.note_high_watermark(committed)
            self._show()

    async def truncate(self, offset: int, epoch: int, *, restart: bool, aside: bool = False) -> None:
        """Truncates a follower's log where it agrees with that of the leader of `epoch`, or restarts it there. `aside`:
        the truncated records are set aside in a file. Raises NotSetAside."""
        async with self._deleting:
            # A later leader may have been told about these records, and count on them.
            if self.closed is None and not self.leads and epoch == self.leader_epoch:
                await self._truncate(offset, restart=restart, aside=epoch if aside else 0)
        if self.closed is None and self.log.failed is None and self.log.flushed_end < self.log.log_end:
            self._appended_one()  # what remains is still to be synced
        self.reconsider()

    async def _truncate(self, offset: int, *, restart: bool, aside: int) -> None:
        self.truncating, storage = True, self.log
        try:
            await self._stop_flushing()
            if aside:
                await self.context.worker.run(lambda: storage.deletion.set_aside(offset, restart=restart, epoch=aside))
            self._end_readers_beyond(offset, restart=restart)
            self.tail.clear()
            log.info(
                "truncates %s from %d to %d%s", self, storage.log_end, offset, ", restarting the log" if restart else ""
            )
            if restart:
                await self.context.worker.run(lambda: storage.deletion.reset(offset))
            else:
                await self.context.worker.run(lambda: storage.deletion.truncate(offset))
            self.committed = offset if restart else min(self.committed, self.log.log_end)
            self.high_watermark = min(self.high_watermark, self.log.log_end)
        finally:
            self.isolation = self.log.producers.isolation  # a new object: it was truncated too
            self._show()
            self._stabilize()
            self.truncating = False

    def _end_readers_beyond(self, offset: int, *, restart: bool) -> None:
        """Ends the readers behind `offset`. They resume with an epoch check, which tells them about truncated
        records."""
        error = Unavailable(f"{self} was truncated on this broker, to follow its leader", retry_after_ms=50)
        for reader in [reader for reader in self.readers.values() if restart or reader.next_offset > offset]:
            reader.partition_closed(error)

    # ---- durability and visibility

    def when_acked(self, end_offset: int, acks: int, done: Durable) -> bool:
        """True if an acknowledgement may go out now; else `done` is called once: when it may, or when it never will."""
        waiting = self._waiting_all if acks == _ALL else self._waiting
        if not waiting and self.leadership is not None and self._sure:
            reached = self.committed if acks == _ALL else self._durable_end()
            if reached >= end_offset:
                return True
        if self.leadership is None:
            done(LeadershipLost(f"this broker stopped leading {self}; the batch may or may not be written"))
        elif self.log.failed is not None:
            done(self.log.failed)
        else:
            waiting.append((end_offset, done))
        return False

    async def acked(self, end_offset: int, acks: int) -> None:
        """Returns when an acknowledgement may go out; raises when it never will."""
        await answered(lambda done: self.when_acked(end_offset, acks, done))

    def moved(self) -> None:
        """Advances offsets and wakes waiters after the log, its durable end or the followers have moved."""
        durable = self._durable_end()
        leadership = self.leadership
        if leadership is None:
            self._show(durable)
            return
        replicas = leadership.replicas
        if replicas.alone:
            self.committed = max(self.committed, durable)
        else:
            storage = self.log
            flushed = storage.config.flush is Flush.ALWAYS
            committed = replicas.committed(storage.log_end, storage.flushed_end, flushed=flushed)
            if committed > self.committed:
                self.committed = committed
                storage.durability.note_high_watermark(committed)
                leadership.watermark_moved()
        self._show(durable)  # first: a producer with an acknowledgement must find its record
        if self._waiting or self._waiting_all:
            self._acknowledge(durable)

    def _acknowledge(self, durable: int) -> None:
        if not self._sure:
            return  # a leader that may have been replaced must not acknowledge
        for waiting, reached in ((self._waiting, durable), (self._waiting_all, self.committed)):
            while waiting and waiting[0][0] <= reached:
                self.answer(waiting.popleft()[1], None)

    def _show(self, durable: int = -1) -> None:
        """Moves the high watermark and wakes readers."""
        visible = self.committed
        if self.available:
            visible = max(visible, self._durable_end() if durable < 0 else durable)
        if visible <= self.high_watermark:
            return
        self.high_watermark = visible
        if self.idle_uncommitted:
            woken, self.idle_uncommitted = self.idle_uncommitted, {}
            self._wake(woken)
        if not self.isolation.all_decided:
            self._stabilize()
            return
        self.last_stable_offset = visible
        if self.idle:
            woken, self.idle = self.idle, {}
            self._wake(woken)

    def _stabilize(self) -> None:
        """Moves the last stable offset and wakes `read_committed` readers."""
        stable = max(self.isolation.last_stable_offset(self.high_watermark), self.log.log_start)
        before, self.last_stable_offset = self.last_stable_offset, stable
        if stable > before and self.idle:
            woken, self.idle = self.idle, {}
            self._wake(woken)

    def failed(self, error: CometError) -> None:
        """Reports that the log takes no more writes to the callers that wait, and to the cluster."""
        log.error("log of %s failed and takes no more writes: %s", self, error)
        self._release(error)
        self.context.disqualify(self)

    def halt(self, error: Exception) -> None:
        self.context.halt(self, error)

    @property
    def acks_waiting(self) -> int:
        return len(self._waiting) + len(self._waiting_all)

    def _release(self, error: CometError) -> None:
        for waiting in (self._waiting, self._waiting_all):
            while waiting:
                self.answer(waiting.popleft()[1], error)

    # ---- life

    def configure(self, config: TopicConfig) -> None:
        self.log.configure(config)
        if self.leadership is not None:
            self.leadership.replicas.min_insync = config.min_insync
        self.moved()
        if self.log.flushed_end < self.log.log_end:
            self._appended_one()

    async def housekeeping(self) -> None:
        """Called by a timer: rolls by age, deletes by retention. A full disk must not stop the timer."""
        if self.closed is not None or self.log.failed is not None or self.truncating:
            return
        self.log.segments.roll_by_age()
        if self.log.durability.unfinished:
            self._start_flush()  # with flush=os nothing else would finish a sealed segment
        async with self._deleting:
            await self._delete(self.log.deletion.start_retention(self.context.clock.wall_us(), self.high_watermark))

    async def delete_before(self, offset: int) -> int:
        """Deletes all records below `offset`; the log start offset is durable when it returns."""
        async with self._deleting:
            if self.closed is not None:
                raise self.closed
            await self._delete(self.log.deletion.start_delete(offset))
        return self.log.log_start

    async def _delete(self, ticket: DeleteTicket | None) -> None:
        if ticket is None:
            return
        error: OSError | None = None
        try:
            await self.context.worker.run(ticket.run)
        except OSError as caught:
            error = caught
        before = self.log.log_start
        assert self.log.deletion.finish_delete(ticket, error) >= before, "the log start offset never goes back"
        if self.leadership is not None and self.log.log_start > before:
            self.leadership.log_start_moved()
        self._stabilize()  # an open transaction may have no records left
        await self.context.worker.run(ticket.remove)

    async def close(self, error: CometError) -> None:
        """Stops the partition: callers get `error`, and producers of batches that are already appended LeadershipLost.
        Closes the files and does not delete them."""
        if self.closed is not None:
            return
        self.closed = error
        gone = isinstance(error, TopicNotFound)
        self._release(error if gone else LeadershipLost(f"{error}; the batch may or may not be written"))
        if self.leadership is not None:
            self.leadership.close(error)
            self.leadership = None
        woken: dict[Any, Reader | Waiter] = {
            **self.idle,
            **self.idle_uncommitted,
            **self.idle_followers,
            **self.readers,
        }
        self.idle, self.idle_uncommitted, self.idle_followers = {}, {}, {}
        for waiter in woken.values():
            self.answer(waiter.partition_closed, error)
        self.tail.clear()
        await self._stop_flushing()
        async with self._deleting:
            try:
                await self.context.worker.run(self.log.close)
            except (OSError, LogFailed) as caught:
                log.error("closing the log of %s: %s", self, caught)
