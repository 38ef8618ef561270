"""One partition on this broker: its identity, its role, and the order in which its parts act.

    leader     produce(batch) ─► verify ─► producer check ─► Log.append ─┬─► [flush=always: the shared fsync]
                                                                         └─► followers
    follower   replicate(batches) ─► verify ─► Log.append_stamped ─► progress to the leader

    leadership            one epoch as leader: in-sync replicas, followers, acknowledgements    leader_state.py
    follower              what the leader sends, truncation                                     follower_state.py
    watermarks            durable, committed, visible and stable offsets                        core/watermarks.py
    readers               readers, those that wait for more, the tail                           readers.py
    flushing              when the log is synced                                                flushing.py
    housekeeping          rolls, retention, deletion                                            housekeeping.py
    transaction_batches   batches that wait for the coordinator, markers                        transaction_batches.py

Nothing here awaits between the decision to append and the append itself. A leader of a consistent topic checks its
lease before it appends and before it acknowledges. `committed` never moves back while the log is whole.

Owned by the broker's table of topics; everything runs on the loop's thread, fsync on the worker's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from comet import records
from comet.errors import (
    CometError,
    DataLoss,
    LeadershipLost,
    LogFailed,
    NotLeader,
    TopicNotFound,
    Unavailable,
)
from comet.settings.topic import Consistency, TopicConfig
from comet.types import Acks
from comet_broker.core.admission import admit
from comet_broker.core.cluster import NO_BROKER, PartitionId, PartitionState, Versioned
from comet_broker.core.tail import Tail
from comet_broker.core.watermarks import APPENDED, Watermarks
from comet_broker.partitions.context import Accepted, Durable, PartitionContext
from comet_broker.partitions.counts import RecordCounts
from comet_broker.partitions.delete_records import RecordDeletion
from comet_broker.partitions.flushing import Flushing
from comet_broker.partitions.follower_state import FollowerState
from comet_broker.partitions.housekeeping import Housekeeping
from comet_broker.partitions.leader_state import LeaderState
from comet_broker.partitions.readers import Readers
from comet_broker.partitions.transaction_batches import TransactionBatches
from comet_broker.storage.log import Appended, Log
from comet_broker.waiters import answered

log = logging.getLogger(__name__)

_TRANSACTIONAL: Final = int(records.Flag.TRANSACTIONAL)
_LEADER: Final = int(Acks.LEADER)


class Partition:
    def __init__(
        self, handle: int, topic: str, topic_id: bytes, index: int, storage: Log, context: PartitionContext
    ) -> None:
        self.handle = handle
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.tp: PartitionId = (topic_id.hex(), index)
        self.log = storage
        self.context = context
        self.closed: CometError | None = None
        self.fault = ""  # an unexpected error: it neither leads nor follows until it is resumed or the broker restarts
        self.state: PartitionState | None = None  # no leader known yet
        self.mod_revision = 0
        self.leader_epoch = 0
        self.settled_in = 0  # the last epoch in which it led and knew the end of the partition
        self.leadership: LeaderState | None = None  # while this broker leads
        self.counts = RecordCounts()
        self.watermarks = Watermarks(
            durable=storage.log_end,
            committed=storage.high_watermark,
            isolation=storage.producers.isolation,
            log_start=storage.log_start,
        )
        self.readers = Readers(str(self), Tail(handle, context.tail_budget), context.tasks)
        self.flushing = Flushing(
            str(self), storage, context, moved=self.moved, failed=self.failed, halt=partial(context.halt, self)
        )
        self.housekeeping = Housekeeping(self)
        self.follower = FollowerState(self)
        self.transaction_batches = TransactionBatches(self)
        self._deletion = RecordDeletion(self)

    def __str__(self) -> str:
        return f"{self.topic}/{self.index}"

    @property
    def log_fields(self) -> Mapping[str, object]:
        """The fields of a line of the log that names it."""
        return {"topic": self.topic, "partition": self.index}

    # ---- its offsets

    @property
    def committed(self) -> int:
        return self.watermarks.committed

    @property
    def high_watermark(self) -> int:
        return self.watermarks.high_watermark

    @property
    def whole(self) -> bool:
        """Whether its log has all that its leader had compacted when it began to follow."""
        return self.leads or self.follower.whole

    @property
    def last_stable_offset(self) -> int:
        return self.watermarks.last_stable_offset

    # ---- its role

    def apply(self, found: Versioned[PartitionState]) -> None:
        """Applies a state of this partition from the metadata store; ignores states older than the current one."""
        if found.mod_revision < self.mod_revision or self.closed is not None:
            return
        news = found.mod_revision > self.mod_revision
        self.mod_revision = found.mod_revision
        state = self.state = found.value
        me = self.context.me
        named = state.leader == me and state.in_sync.get(me) == self.context.broker_epoch()
        leads = named and not (self.follower.truncating or self.fault)
        if leads and self.leadership is not None and self.leadership.epoch == state.epoch:
            if news:  # an older state does not contain a change that began after it
                self.leadership.adopt(state)
            return
        self.step_down(f"broker {state.leader} leads {self} now" if state.leader else f"{self} has no leader now")
        if state.epoch > self.leader_epoch:
            self.leader_epoch = state.epoch
            self.readers.tail.clear()  # its frames carry the epoch
        if leads and self._deletion.done(state):
            self._lead(state)

    def reconsider(self) -> None:
        """Applies the current state again after this broker's registration or log has changed."""
        if self.state is not None:
            self.apply(Versioned(self.state, self.mod_revision, 0))

    def _lead(self, state: PartitionState) -> None:
        assert self.leadership is None
        assert state.epoch == self.leader_epoch > 0
        self.leadership = LeaderState(self, state, self.context.clock.monotonic())
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
        unanswered = LeadershipLost(f"{why}; the batch may or may not be written", details=error.details)
        leadership.close(error, unanswered)
        if not self.named:
            self.readers.end_leader_only(error)

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

    @property
    def named(self) -> bool:
        """The newest state that is known here names this broker as leader. Without a lease it must not write; the high
        watermark does not move, so readers that need the leader need not leave."""
        return self.state is not None and self.state.leader == self.context.me

    @property
    def available(self) -> bool:
        """The topic prefers availability: it may lose the end of an epoch."""
        return self.log.state.config.consistency is Consistency.AVAILABLE

    @property
    def sure(self) -> bool:
        """No other broker can have become leader unnoticed, or that does no harm."""
        return self.context.alive() or self.available

    @property
    def settled(self) -> bool:
        """The high watermark is known. A new leader's is that of a follower until the start of its epoch is committed;
        that of a broker that has just started is from its last checkpoint."""
        if self.leadership is None:
            return self.state is not None and not self.named
        return self.committed >= self.leadership.replicas.epoch_start

    # ---- writing

    def produce(self, batch: memoryview, acks: int, condition: Callable[[], None] | None = None) -> Accepted:
        """Appends one batch of a producer. Raises a CometError and changes nothing, or NotInTransaction for a batch
        that `transaction_batches` has to take. `condition` is called last, unless the batch is a duplicate, and what it
        raises refuses the batch."""
        if self.closed is not None:
            raise self.closed
        if self.leadership is None:
            raise self.not_leader()
        self.leadership.require_writable(acks)
        header = records.verify(batch, 0, stamped=False)
        admit(header, batch, self.topic, self.log.state.config)
        if header.flags & _TRANSACTIONAL:
            self.transaction_batches.check(header, acks)
        duplicate = self.log.state.producers.check(header, self.log.idle_us)
        if duplicate is not None:
            end = duplicate.base_offset + header.last_offset_delta + 1
            return Accepted(duplicate.base_offset, end, duplicate.append_time_us, duplicate=True)
        if condition is not None:
            condition()
        appended = self._append(header, batch)
        return Accepted(appended.base_offset, self.log.log_end, appended.append_time_us)

    def append_control(self, batch: bytes) -> None:
        """Appends a compaction plan. Raises a CometError and changes nothing."""
        if self.leadership is None:
            raise self.not_leader()
        self.leadership.require_writable(_LEADER)
        view = memoryview(batch)
        self._append(records.verify(view, 0, stamped=False), view)

    def _append(self, header: records.BatchHeader, batch: memoryview) -> Appended:
        try:
            appended = self.log.append(header, batch, self.leader_epoch)
            end = appended.base_offset + header.last_offset_delta + 1
            assert end == self.log.state.log_end
            self.readers.push(appended.base_offset, end, batch, appended.stamp)
            self.counts.appended(header)
            self.flushing.appended()
            self.readers.wake(APPENDED)
        except CometError:
            raise
        except Exception as error:  # an error before the append concerns the batch; this one concerns the partition
            self.context.halt(self, error)
            raise LeadershipLost(f"{self} has failed: {error!r}; the batch may or may not be written") from error
        return appended

    # ---- acknowledging

    def when_acked(self, end_offset: int, acks: int, done: Durable) -> bool:
        """True if an acknowledgement may go out now; else `done` is called once: when it may, or when it never will."""
        if self.leadership is not None:
            return self.leadership.when_acked(end_offset, acks, done)
        done(LeadershipLost(f"this broker stopped leading {self}; the batch may or may not be written"))
        return False

    async def acked(self, end_offset: int, acks: int) -> None:
        """Returns when an acknowledgement may go out; raises when it never will."""
        await answered(lambda done: self.when_acked(end_offset, acks, done))

    def moved(self) -> None:
        """Advances offsets and wakes waiters after the log, its durable end or the followers have moved."""
        leadership, marks, state = self.leadership, self.watermarks, self.log.state
        durable = self.flushing.durable_end
        if leadership is not None and marks.commit(leadership.committed_end(durable)):
            leadership.committed_moved(marks.committed)
        # Readers first: a producer with an acknowledgement must find its record.
        available = state.config.consistency is Consistency.AVAILABLE
        self.readers.wake(marks.advance(durable, available=available, log_start=state.log_start))
        # A leader that may have been replaced must not acknowledge.
        if leadership is not None and leadership.acks.pending and self.sure:
            leadership.acks.advance(durable, marks.committed)

    # ---- failures

    def failed(self, error: CometError) -> None:
        """Reports that the log takes no more writes to the callers that wait, and to the cluster."""
        log.error("log of %s failed and takes no more writes: %s", self, error)
        if self.leadership is not None:
            self.leadership.acks.release(error)
        self.context.disqualify(self)

    def take_out(self, reason: str) -> None:
        """Takes the partition out of service: it neither leads nor follows until it is opened again."""
        self.fault = self.fault or f"it failed: {reason}"
        self.step_down(f"{self} has failed on broker {self.context.me}: {reason}")

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

    # ---- life

    def configure(self, config: TopicConfig) -> None:
        self.log.configure(config)
        if self.leadership is not None:
            self.leadership.replicas.min_insync = config.min_insync
        self.moved()
        self.flushing.catch_up()

    async def close(self, error: CometError) -> None:
        """Stops the partition: callers get `error`, and producers of batches that are already appended LeadershipLost.
        Closes the files and does not delete them."""
        if self.closed is not None:
            return
        self.closed = error
        if self.leadership is not None:
            lost = LeadershipLost(f"{error}; the batch may or may not be written")
            self.leadership.close(error, error if isinstance(error, TopicNotFound) else lost)
            self.leadership = None
        self.readers.close(error)
        await self.flushing.stop()
        await self.housekeeping.compaction.ended()
        async with self.housekeeping.lock:
            try:
                await self.context.worker.run(self.log.close)
            except (OSError, LogFailed) as caught:
                log.error("closing the log of %s: %s", self, caught)
