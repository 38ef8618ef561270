"""One share group in one partition that this broker leads: who acquires its records, and what is stored of it.

    members in the queue ─► serve ─► the next record to give ─► a chunk from the tail or the log ─► locks ─► Shared
    Acknowledge ─► the machine ─► stored in the metadata store ─► Acknowledged

Members queue; one that was served goes to the end, and waits for the others' turn. A member gets its share of the
available records at a time. Callers, which have no stream, are in the same queue for the time of a call; records that a
call acquires outlive it, under a ticket.

Created by the table, for one epoch of the leader. It ends with that epoch, or when it is no longer needed; members are
notified and go to the new leader, which loads the state from the store. Everything runs on the loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from comet.errors import CometError, DataLoss, Internal, InvalidArgument, NotLeader
from comet_broker import limits
from comet_broker.core.share_tickets import Tickets
from comet_broker.core.shares import Granted, Holder, Shares, WindowSnapshot
from comet_broker.core.watermarks import ReadBound
from comet_broker.failures import Kind
from comet_broker.partitions.partition import Partition
from comet_broker.sharing.acquirer_queue import Acquirer, AcquirerQueue
from comet_broker.sharing.chunk import Chunk
from comet_broker.sharing.context import Agreed, Range, ShareContext
from comet_broker.sharing.dead_letters import DeadLetters
from comet_broker.sharing.lock_timer import LockTimer
from comet_broker.sharing.reading import ShareReader
from comet_broker.sharing.stored_state import Acknowledged, StoredState

log = logging.getLogger(__name__)

IDLE_TICKS_MAX: Final = 10
READS_MAX: Final = 32  # at records that turn out to be unreadable, before others have their turn


def _machine(agreed: Agreed, snapshot: WindowSnapshot) -> Shares:
    return Shares(snapshot, agreed.options, window_max=limits.SHARE_WINDOW_RECORDS_MAX, dead_max=limits.SHARE_DEAD_MAX)


class SharePartition:
    """Implements partitions.context.Reader and Waiter."""

    def __init__(
        self,
        context: ShareContext,
        partition: Partition,
        group: str,
        agreed: Agreed,
        snapshot: WindowSnapshot,
        revision: int,
    ) -> None:
        self.context = context
        self.partition = partition
        self.group = group
        self.epoch = partition.leader_epoch
        self.closed: CometError | None = None
        self.stored = StoredState(self, context, revision)
        self.agreed = agreed
        self.shares = _machine(agreed, snapshot)
        self.acquirers = AcquirerQueue(str(self), self.wake)
        self.tickets = Tickets(
            tickets_max=limits.SHARE_TICKETS_MAX,
            remembered_max=limits.SHARE_ANSWERS_MAX,
            remembered_s=limits.SHARE_ANSWERS_S,
        )
        self.lost = 0  # unreadable records
        self.dead_letters = DeadLetters(self, context)
        self.reader = ShareReader(self, context)
        self._timer = LockTimer(context.env.clock.monotonic, self._ring)
        self._idle_ticks = 0
        partition.readers.add(self, self, leader_only=True)

    def __str__(self) -> str:
        return f"group {self.group} at {self.partition}"

    @property
    def now(self) -> float:
        return self.context.env.clock.monotonic()

    # ---- members

    def agree(self, agreed: Agreed) -> None:
        """Raises if a member's options differ from the group's. The first member sets them."""
        if agreed == self.agreed:
            return
        if self.acquirers.in_use or self.shares.in_flight:
            raise InvalidArgument(
                f"the members of group {self.group!r} use {self.agreed}, and this one asks for {agreed}"
            )
        self.agreed = agreed
        self.shares = _machine(agreed, self.shares.window.snapshot())
        self.reader.clear()
        self.stored.changed()

    def add_member(self, member: Acquirer) -> None:
        self.acquirers.add_member(member)
        self.dead_letters.start()

    def add_caller(self, caller: Acquirer) -> None:
        self.acquirers.add_caller(caller)
        self.dead_letters.start()

    def leave(self, member: Acquirer) -> None:
        """Removes a member; its acquired records are released at once."""
        self.acquirers.remove_member(member)
        if self.shares.drop(member.holder):
            self.stored.changed()
            self.wake()

    # ---- acquiring

    def has_records(self) -> bool:
        """Whether there are records to give, as far as is known without reading."""
        return self._leads() and self._wanted(self.now, self.partition.last_stable_offset) is not None

    def serve(self, subscriber: Acquirer) -> tuple[Chunk, Sequence[Granted]] | None:
        """Acquires the next records for the member; None if there are none now."""
        if not self._leads():
            return None
        now, end = self.now, self.partition.last_stable_offset
        for _ in range(READS_MAX):
            credit = subscriber.credit()
            if not credit:
                self.acquirers.out_of_credit(subscriber)
                return None
            wanted = self._wanted(now, end)
            if wanted is None:
                self.partition.readers.wait(ReadBound.LAST_STABLE_OFFSET, self, self)
                return None
            chunk = self.reader.at(wanted, end)
            if chunk is None:
                return None  # being read; the queue is woken afterwards
            fair = -(-self.shares.window.backlog(end) // max(1, len(self.acquirers.queued)))
            count = min(credit, limits.SHARE_FRAME_RECORDS_MAX, max(1, fair))
            if subscriber.bytes_max:
                count = min(count, chunk.records_in(subscriber.bytes_max))
            granted = self.shares.acquire(now, subscriber.holder, count, chunk.readable)
            self._refresh()
            self.stored.touch()  # also if none of them matches the group's filter: they are settled
            if granted:
                self.partition.counts.delivered(sum(end - first for first, end, _ in granted), 0)
                self.acquirers.served(subscriber)
                return chunk, granted
        self.acquirers.wake_soon()
        return None

    def _wanted(self, now: float, end: int) -> int | None:
        log_start = self.partition.log.log_start
        if self.shares.window.floor < log_start:
            self.shares.forget_below(log_start)
            self.stored.changed()
        return self.shares.window.wanted(now, end)

    def _leads(self) -> bool:
        if self.closed is None and self.partition.leader_epoch != self.epoch:
            self.close(self.partition.not_leader(f"the leader of {self.partition} has changed"))
        # A replaced leader must not acquire records that were acknowledged at its successor.
        return self.closed is None and self.partition.leads and self.partition.context.alive()

    def _refresh(self) -> None:
        """Updates timers and dead letters after records were acquired or released."""
        if self.shares.window.dead:
            self.dead_letters.start()
        self._timer.set(self.shares.due())

    def wake(self) -> None:
        """Calls as many of the queue as there are records for. Must not raise: it is called from where records are
        written, too."""
        try:
            if self.closed is not None or not self.acquirers.queued or not self.partition.leads:
                return
            end = self.partition.last_stable_offset
            if self._wanted(self.now, end) is None:
                self.partition.readers.wait(ReadBound.LAST_STABLE_OFFSET, self, self)
            else:
                self.acquirers.call(max(1, self.shares.window.backlog(end)))
        except Exception as error:  # noqa: BLE001 - reported by halt
            self.halt(error)

    def unreadable(self, error: CometError) -> None:
        """Skips records that are lost for good; for other errors the members come again."""
        shown = self.partition.explain(error)
        if isinstance(shown, DataLoss) and self.closed is None:
            first, end = int(shown.details["first"]), int(shown.details["end"])
            log.error(
                "%s: offsets %d up to %d are damaged and are skipped",
                self,
                first,
                end,
                extra={"group": self.group, "offset": first, **self.partition.log_fields},
            )
            self.lost += end - first
            self.shares.pass_over(first, end)
            self.stored.changed()
            self.acquirers.wake_soon()
        else:
            self.close(shown)

    # ---- acknowledging

    def extend(self, holder: Holder, firsts: Sequence[int], ends: Sequence[int]) -> list[Range]:
        """Extends locks. They are not stored, so there is nothing to wait for."""
        lost = self.shares.extend(self.now, holder, firsts, ends)
        self._timer.set(self.shares.due())
        return lost

    def acknowledge(self, change: Callable[[Shares], list[Range]], done: Acknowledged) -> list[Range]:
        """Applies a change to the locks of a holder. Returns the ranges that it does not hold, and calls `done` once
        the rest is stored."""
        lost = change(self.shares)
        self.stored.wait(done)
        self.stored.changed()
        self._refresh()
        self.acquirers.wake_soon()
        return lost

    # ---- time

    def _ring(self) -> None:
        if self.closed is not None:
            return
        self.context.check_clock()
        try:
            self._check_time()
        except Exception as error:  # noqa: BLE001 - reported by halt
            self.halt(error)

    def _check_time(self) -> None:
        if self.shares.expire(self.now):
            self.stored.changed()
            for member in list(self.acquirers.members):
                member.freed()
        self.tickets.tick(self.now)
        self._refresh()
        self.wake()

    def tick(self) -> None:
        """Called every second."""
        if not self._leads():
            return
        self.stored.tick()
        self._check_time()
        busy = self.stored.unstored or self.shares.window.dead
        needed = self.acquirers.in_use or self.shares.in_flight or len(self.tickets) or busy
        self._idle_ticks = 0 if needed else self._idle_ticks + 1
        if self._idle_ticks > IDLE_TICKS_MAX:
            self.close(NotLeader(f"{self} has no members"))

    # ---- partitions.context.Reader and Waiter

    def next_offset(self, _: SharePartition) -> int:
        return self.shares.window.floor

    def advanced(self, _: SharePartition) -> None:
        self.wake()

    def partition_closed(self, _: SharePartition, error: CometError) -> None:
        self.close(error)

    # ---- the end

    def halt(self, error: Exception) -> None:
        """An unexpected error stops the group in this partition, here. Members come again, and find the state in the
        store."""
        if self.closed is None:
            failures = self.context.env.failures
            reason = failures.note(Kind.SHARE, str(self), error, passing=True)
            with failures.guard(Kind.SHARE, str(self), "close"):
                self.close(Internal(f"{self} has failed: {reason}; see the broker's log"))

    def close(self, error: CometError) -> None:
        if self.closed is not None:
            return
        self.closed = error
        self.context.ended(self)
        self.dead_letters.stop()
        self.reader.clear()
        self._timer.cancel()
        self.partition.readers.remove(self)
        self.stored.close(error)
        for acquirer in self.acquirers.close():
            self.shares.drop(acquirer.holder)
            acquirer.ended(error)

    def statistics(self) -> dict[str, Any]:
        shares = self.shares
        return {
            "group": self.group,
            "topic": self.partition.topic,
            "partition": self.partition.index,
            "members": len(self.acquirers.members),
            "callers": len(self.acquirers.callers),
            "tickets": len(self.tickets),
            "floor": shares.window.floor,
            "acknowledged_above": shares.window.acknowledged_above,
            "in_flight": shares.in_flight,
            "waiting": shares.window.waiting,
            "delivered": shares.delivered,
            "redelivered": shares.redelivered,
            "acknowledged": shares.window.acknowledged,
            "dead": len(shares.window.dead),
            "dead_lettered": shares.window.dead_lettered,
            "dropped": shares.window.dropped,
            "deleted": shares.window.deleted,
            "lost": self.lost,
            "problem": self.dead_letters.problem,
        }
