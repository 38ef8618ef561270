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

import asyncio
import logging
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, Protocol

from comet.errors import CometError, DataLoss, Internal, InvalidArgument, LimitExceeded, NotLeader
from comet_broker import limits
from comet_broker.core.share_tickets import Tickets
from comet_broker.core.shares import Granted, Holder, Shares, WindowSnapshot
from comet_broker.core.watermarks import ReadBound
from comet_broker.failures import Kind
from comet_broker.partitions.partition import Partition
from comet_broker.sharing.chunk import Chunk
from comet_broker.sharing.context import Agreed, Range, ShareContext
from comet_broker.sharing.dead_letters import DeadLetters
from comet_broker.sharing.reading import ShareReader
from comet_broker.sharing.stored_state import Acknowledged, StoredState

log = logging.getLogger(__name__)

CALL_AGAIN_S: Final = 0.002  # after which the next in the queue is called if those called before did not come
IDLE_TICKS_MAX: Final = 10
READS_MAX: Final = 32  # at records that turn out to be unreadable, before others have their turn


class Acquirer(Protocol):
    """A member at one partition, or a call."""

    holder: Holder
    called: bool
    bytes_max: int  # of records at a time, as they are stored; 0: as many as come

    def credit(self) -> int:
        """The number of records it would take now; 0 while it has enough."""

    def call(self) -> None:
        """Called when it is its turn: it asks to be served."""

    def freed(self) -> None:
        """Called when locks of its holder may have ended."""

    def ended(self, error: CometError) -> None:
        """Called at the end: no more records come."""


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
        self.shares = self._machine(snapshot)
        self.subscribers: dict[Acquirer, None] = {}
        self.callers: dict[Acquirer, None] = {}
        self.tickets = Tickets(
            tickets_max=limits.SHARE_TICKETS_MAX,
            remembered_max=limits.SHARE_ANSWERS_MAX,
            remembered_s=limits.SHARE_ANSWERS_S,
        )
        self.lost = 0  # unreadable records
        self.dead_letters = DeadLetters(self, context)
        self._queue: dict[Acquirer, None] = {}  # those with credit, in the order of their turns
        self._reader = ShareReader(self, context)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._waking = False
        self._calling_again = False
        self._idle_ticks = 0
        partition.readers.add(self, self, leader_only=True)

    def __str__(self) -> str:
        return f"group {self.group} at {self.partition}"

    def _machine(self, snapshot: WindowSnapshot) -> Shares:
        return Shares(
            snapshot,
            self.agreed.options,
            window_max=limits.SHARE_WINDOW_RECORDS_MAX,
            dead_max=limits.SHARE_DEAD_MAX,
        )

    @property
    def now(self) -> float:
        return self.context.env.clock.monotonic()

    # ---- members

    def agree(self, agreed: Agreed) -> None:
        """Raises if a member's options differ from the group's. The first member sets them."""
        if agreed == self.agreed:
            return
        if self.subscribers or self.callers or self.shares.in_flight:
            raise InvalidArgument(
                f"the members of group {self.group!r} use {self.agreed}, and this one asks for {agreed}"
            )
        self.agreed = agreed
        self.shares = self._machine(self.shares.window.snapshot())
        self._reader.clear()
        self.changed()

    def add_member(self, subscriber: Acquirer) -> None:
        self._check_room()
        self.subscribers[subscriber] = None
        self.queue(subscriber)
        self.dead_letters.start()

    def _check_room(self) -> None:
        if len(self.subscribers) + len(self.callers) >= limits.SHARE_MEMBERS_MAX:
            raise LimitExceeded(f"{self} has {limits.SHARE_MEMBERS_MAX} members, the limit", retry_after_ms=1000)

    def leave(self, subscriber: Acquirer) -> None:
        """Removes a member; its acquired records are released at once."""
        self.subscribers.pop(subscriber, None)
        self._queue.pop(subscriber, None)
        if self.shares.drop(subscriber.holder):
            self.changed()
            self.wake()

    def queue(self, subscriber: Acquirer) -> None:
        """Queues a member that has credit again."""
        if (subscriber in self.subscribers or subscriber in self.callers) and subscriber not in self._queue:
            self._queue[subscriber] = None
            self.wake()

    # ---- callers

    def add_caller(self, caller: Acquirer) -> None:
        """Queues a caller; nothing is acquired by it yet."""
        self._check_room()
        self.callers[caller] = None
        self.queue(caller)
        self.dead_letters.start()

    def remove_caller(self, caller: Acquirer) -> None:
        """Removes a caller after its call. Its acquired records stay locked; the next in the queue gets the turn that
        it did not take."""
        self.callers.pop(caller, None)
        if caller in self._queue:
            del self._queue[caller]
            self._wake_soon()

    def acquire(self, caller: Acquirer, number: int) -> tuple[Chunk, Sequence[Granted]] | None:
        """As `serve`; the acquired records are acknowledged under that number. Raises LimitExceeded."""
        if not self.tickets.has_room():
            raise LimitExceeded(
                f"{self} has {limits.SHARE_TICKETS_MAX} open locks without a stream, the limit; acknowledge some",
                retry_after_ms=1000,
            )
        served = self.serve(caller)
        if served is not None:
            self.tickets.add(number, caller.holder)
        return served

    def has_records(self) -> bool:
        """Whether there are records to give, as far as is known without reading."""
        return self._leads() and self._wanted(self.now, self.partition.last_stable_offset) is not None

    def is_waited_for_beside(self, caller: Acquirer) -> bool:
        """Whether others are queued, too: the records are not for one alone."""
        return len(self._queue) > (caller in self._queue)

    @property
    def loading(self) -> asyncio.Future[None] | None:
        """The read of the next record, if one runs; done at its end."""
        return self._reader.loading

    # ---- acquiring

    def serve(self, subscriber: Acquirer) -> tuple[Chunk, Sequence[Granted]] | None:
        """Acquires the next records for the member; None if there are none now."""
        if not self._leads():
            return None
        now, end = self.now, self.partition.last_stable_offset
        for _ in range(READS_MAX):
            credit = subscriber.credit()
            if not credit:
                self._queue.pop(subscriber, None)
                return None
            wanted = self._wanted(now, end)
            if wanted is None:
                self.partition.readers.wait(ReadBound.LAST_STABLE_OFFSET, self, self)
                return None
            chunk = self._reader.at(wanted, end)
            if chunk is None:
                return None  # being read; the queue is woken afterwards
            fair = -(-self.shares.window.backlog(end) // max(1, len(self._queue)))
            count = min(credit, limits.SHARE_FRAME_RECORDS_MAX, max(1, fair))
            if subscriber.bytes_max:
                count = min(count, chunk.records_in(subscriber.bytes_max))
            granted = self.shares.acquire(now, subscriber.holder, count, chunk.readable)
            self._refresh()
            if granted:
                self.stored.touch()
                self.partition.counts.delivered(sum(end - first for first, end, _ in granted), 0)
                self._queue.pop(subscriber, None)
                self._queue[subscriber] = None
                self._wake_soon()
                return chunk, granted
        self._wake_soon()
        return None

    def _wanted(self, now: float, end: int) -> int | None:
        log_start = self.partition.log.log_start
        if self.shares.window.floor < log_start:
            self.shares.forget_below(log_start)
            self.changed()
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
        self._set_timer()

    def wake(self) -> None:
        """Wakes the queue. Called from where records are written, too, so it must not raise."""
        try:
            self._wake()
        except Exception as error:  # noqa: BLE001 - reported by halt
            self.halt(error)

    def _wake(self) -> None:
        """Calls as many of the queue as there are records for. One that was called and did not come delays no other."""
        if self.closed is not None or not self._queue or not self.partition.leads:
            return
        end = self.partition.last_stable_offset
        if self._wanted(self.now, end) is None:
            self.partition.readers.wait(ReadBound.LAST_STABLE_OFFSET, self, self)
            return
        uncalled = (subscriber for subscriber in self._queue if not subscriber.called)
        for subscriber in list(islice(uncalled, max(1, self.shares.window.backlog(end)))):
            subscriber.call()
        if not self._calling_again and next(uncalled, None) is not None:
            self._calling_again = True
            asyncio.get_running_loop().call_later(CALL_AGAIN_S, self._call_again)

    def _call_again(self) -> None:
        self._calling_again = False
        self.wake()

    def _wake_soon(self) -> None:
        """Wakes in the next turn of the loop, so that one member does not take everything."""
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._wake_now)

    def _wake_now(self) -> None:
        self._waking = False
        self.wake()

    def unreadable(self, error: CometError) -> None:
        """Skips records that are lost for good; for other errors the members come again."""
        shown = self.partition.explain(error)
        if isinstance(shown, DataLoss) and self.closed is None:
            first, end = int(shown.details["first"]), int(shown.details["end"])
            log.error("%s: offsets %d up to %d are damaged and are skipped", self, first, end)
            self.lost += end - first
            self.shares.pass_over(first, end)
            self.changed()
            self._wake_soon()
        else:
            self.close(shown)

    # ---- acknowledging

    def accept(self, holder: Holder, firsts: Sequence[int], ends: Sequence[int], done: Acknowledged) -> list[Range]:
        """Each returns the ranges that the member does not hold, and calls `done` once the rest is stored."""
        return self._acknowledged(self.shares.accept(holder, firsts, ends), done)

    def release(
        self, holder: Holder, firsts: Sequence[int], ends: Sequence[int], delay_s: float, done: Acknowledged
    ) -> list[Range]:
        return self._acknowledged(self.shares.release(self.now, holder, firsts, ends, delay_s), done)

    def reject(
        self, holder: Holder, firsts: Sequence[int], ends: Sequence[int], reason: str, done: Acknowledged
    ) -> list[Range]:
        return self._acknowledged(self.shares.reject(holder, firsts, ends, reason), done)

    def give_back(self, holder: Holder, firsts: Sequence[int], ends: Sequence[int], done: Acknowledged) -> list[Range]:
        return self._acknowledged(self.shares.give_back(holder, firsts, ends), done)

    def extend(self, holder: Holder, firsts: Sequence[int], ends: Sequence[int]) -> list[Range]:
        """Extends locks. They are not stored, so there is nothing to wait for."""
        lost = self.shares.extend(self.now, holder, firsts, ends)
        self._set_timer()
        return lost

    def _acknowledged(self, lost: list[Range], done: Acknowledged) -> list[Range]:
        self.stored.wait(done)
        self.changed()
        self._refresh()
        self._wake_soon()
        return lost

    # ---- time

    def _set_timer(self) -> None:
        due = self.shares.due()
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self.now), self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self.closed is not None:
            return
        self.context.check_clock()
        try:
            self._check_time()
        except Exception as error:  # noqa: BLE001 - reported by halt
            self.halt(error)

    def _check_time(self) -> None:
        if self.shares.expire(self.now):
            self.changed()
            for subscriber in list(self.subscribers):
                subscriber.freed()
        self.tickets.tick(self.now)
        self._refresh()
        self.wake()

    def forgive(self) -> None:
        """Restarts the locks after this broker was stopped: no acknowledgement could arrive."""
        self.shares.forgive(self.now)

    def tick(self) -> None:
        """Called every second."""
        if not self._leads():
            return
        self.stored.tick()
        self._check_time()
        busy = self.stored.unstored or self.shares.window.dead
        needed = self.subscribers or self.callers or self.shares.in_flight or len(self.tickets) or busy
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

    def changed(self) -> None:
        """Notes a change that is stored now."""
        self.stored.changed()

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
        self._reader.clear()
        if self._timer is not None:
            self._timer.cancel()
        self.partition.readers.remove(self)
        self.stored.close(error)
        subscribers, self.subscribers, self.callers = [*self.subscribers, *self.callers], {}, {}
        self._queue.clear()
        for subscriber in subscribers:
            self.shares.drop(subscriber.holder)
            subscriber.ended(error)

    def statistics(self) -> dict[str, Any]:
        shares = self.shares
        return {
            "group": self.group,
            "topic": self.partition.topic,
            "partition": self.partition.index,
            "members": len(self.subscribers),
            "callers": len(self.callers),
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
