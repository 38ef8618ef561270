"""One share group at one partition that this broker leads: who takes what, and what is kept of it.

    members in line ─► serve ─► what is wanted next ─► a chunk from the tail or the log ─► locks ─► Shared
    Acknowledge ─► the machine ─► kept in the metadata store ─► Acknowledged

Members stand in line; who was served goes to its end, and waits for the others' turn. How much one gets at a time is
its share of what there is. Callers, who have no stream, stand in the same line for as long as a call takes; what is
acquired by one outlives the call, under a ticket.

Made by the table, for one epoch of the leader. It ends with that, or when nobody needs it any more; members are told
and go to the new leader, which takes the state over from the store. Everything runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from comet.errors import CometError, DataLoss, Internal, InvalidArgument, LimitExceeded, NotLeader
from comet_broker import limits
from comet_broker.core.share_tickets import Tickets
from comet_broker.core.shares import Granted, Holder, Options, Shares, WindowSnapshot
from comet_broker.failures import Kind
from comet_broker.partitions.partition import Partition
from comet_broker.sharing.chunk import Chunk
from comet_broker.sharing.dead_letters import DeadLetters
from comet_broker.sharing.kept import Acknowledged, Kept
from comet_broker.sharing.reading import ShareReader

if TYPE_CHECKING:
    from comet_broker.sharing.table import ShareTable

log = logging.getLogger(__name__)

CALL_AGAIN_S: Final = 0.002  # after which the next in line is called if those called before have not come
IDLE_TICKS_MAX: Final = 10
LOOKS_MAX: Final = 32  # at records that turn out to be for nobody, before others have their turn
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Agreed:
    """What the members of a group say of it, and must say alike."""

    options: Options
    dead_letter: str = ""


class Acquirer(Protocol):
    """A member's place at one partition, or a caller's."""

    holder: Holder
    called: bool
    bytes_max: int  # of records at a time, as they are stored; 0: as many as come

    def credit(self) -> int:
        """How many records it would take now; 0 while it has enough to do."""

    def call(self) -> None:
        """It is its turn: it is to ask to be served."""

    def freed(self) -> None:
        """Locks of its holder may have ended."""

    def ended(self, error: CometError) -> None:
        """Nothing will come any more."""


class SharePartition(Kept):
    """Implements partition.Reader and Waiter."""

    leader_only = True

    def __init__(
        self, table: ShareTable, partition: Partition, group: str, agreed: Agreed, kept: WindowSnapshot, revision: int
    ) -> None:
        super().__init__(table, partition, group, revision)
        self.agreed = agreed
        self.shares = self._machine(kept)
        self.subscribers: dict[Acquirer, None] = {}
        self.callers: dict[Acquirer, None] = {}
        self.tickets = Tickets(
            tickets_max=limits.SHARE_TICKETS_MAX, remembered_max=limits.SHARE_TOLD_MAX, remembered_s=limits.SHARE_TOLD_S
        )
        self.lost = 0  # records that could not be read any more
        self.dead_letters = DeadLetters(self)
        self._line: dict[Acquirer, None] = {}  # those with credit
        self._reader = ShareReader(self)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._waking = False
        self._calling_again = False
        self._idle_ticks = 0
        partition.readers[self] = self

    def _machine(self, kept: WindowSnapshot) -> Shares:
        return Shares(
            kept,
            self.agreed.options,
            window_max=limits.SHARE_WINDOW_RECORDS_MAX,
            dead_max=limits.SHARE_DEAD_MAX,
        )

    @property
    def now(self) -> float:
        return self.table.broker.clock.monotonic()

    # ---- members

    def agree(self, agreed: Agreed) -> None:
        """Raises where a member wants it otherwise than those who are here. The first one decides."""
        if agreed == self.agreed:
            return
        if self.subscribers or self.callers or self.shares.in_flight:
            raise InvalidArgument(
                f"the members of group {self.group!r} share by {self.agreed}, and this one asks for {agreed}"
            )
        self.agreed = agreed
        self.shares = self._machine(self.shares.snapshot())
        self._reader.clear()
        self.changed()

    def sit(self, subscriber: Acquirer) -> None:
        self._check_room()
        self.subscribers[subscriber] = None
        self.queue(subscriber)
        self.dead_letters.start()

    def _check_room(self) -> None:
        if len(self.subscribers) + len(self.callers) >= limits.SHARE_MEMBERS_MAX:
            raise LimitExceeded(f"{self} has {limits.SHARE_MEMBERS_MAX} members, its limit", retry_after_ms=1000)

    def leave(self, subscriber: Acquirer) -> None:
        """The member is gone: what was acquired by it is free at once."""
        self.subscribers.pop(subscriber, None)
        self._line.pop(subscriber, None)
        if self.shares.drop(subscriber.holder):
            self.changed()
            self.wake()

    def queue(self, subscriber: Acquirer) -> None:
        """The member has credit again."""
        if (subscriber in self.subscribers or subscriber in self.callers) and subscriber not in self._line:
            self._line[subscriber] = None
            self.wake()

    # ---- callers

    def stand(self, caller: Acquirer) -> None:
        """A caller gets in line; nothing is acquired by it yet."""
        self._check_room()
        self.callers[caller] = None
        self.queue(caller)
        self.dead_letters.start()

    def step_out(self, caller: Acquirer) -> None:
        """The call is over. What was acquired by it stays so; whoever is behind it gets the turn that it did not
        take."""
        self.callers.pop(caller, None)
        if caller in self._line:
            del self._line[caller]
            self._wake_soon()

    def acquire(self, caller: Acquirer, number: int) -> tuple[Chunk, Sequence[Granted]] | None:
        """As `serve`; what it acquires is acknowledged under that number. Raises LimitExceeded."""
        if not self.tickets.has_room():
            raise LimitExceeded(
                f"{self} has {limits.SHARE_TICKETS_MAX} locks open that no stream holds, its limit; acknowledge some",
                retry_after_ms=1000,
            )
        served = self.serve(caller)
        if served is not None:
            self.tickets.add(number, caller.holder)
        return served

    def has_some(self) -> bool:
        """There is something to give, as far as can be said without looking at it."""
        return self._leads() and self._wanted(self.now, self.partition.stable_end) is not None

    def is_waited_for_beside(self, caller: Acquirer) -> bool:
        """Others are in line, too: what there is is not for one alone."""
        return len(self._line) > (caller in self._line)

    @property
    def loading(self) -> asyncio.Future[None] | None:
        """What is wanted next is being read; done when that is over."""
        return self._reader.loading

    # ---- giving

    def serve(self, subscriber: Acquirer) -> tuple[Chunk, Sequence[Granted]] | None:
        """Acquires to the member what is its turn to get; None if there is nothing now."""
        if not self._leads():
            return None
        now, end = self.now, self.partition.stable_end
        for _ in range(LOOKS_MAX):
            credit = subscriber.credit()
            if not credit:
                self._line.pop(subscriber, None)
                return None
            wanted = self._wanted(now, end)
            if wanted is None:
                self.partition.idle[self] = self
                return None
            chunk = self._reader.at(wanted, end)
            if chunk is None:
                return None  # it is being read; the line is woken then
            fair = -(-self.shares.backlog(end) // max(1, len(self._line)))
            count = min(credit, limits.SHARE_FRAME_RECORDS_MAX, max(1, fair))
            if subscriber.bytes_max:
                count = min(count, chunk.records_in(subscriber.bytes_max))
            granted = self.shares.acquire(now, subscriber.holder, count, chunk.readable)
            self._look_after()
            if granted:
                self.touched = True
                self.partition.delivered_records += sum(end - first for first, end, _ in granted)
                self._line.pop(subscriber, None)
                self._line[subscriber] = None
                self._wake_soon()
                return chunk, granted
        self._wake_soon()
        return None

    def _wanted(self, now: float, end: int) -> int | None:
        log_start = self.partition.log.log_start
        if self.shares.floor < log_start:
            self.shares.forget_below(log_start)
            self.changed()
        return self.shares.wanted(now, end)

    def _leads(self) -> bool:
        if self.closed is None and self.partition.leader_epoch != self.epoch:
            self.close(self.partition.not_leader(f"the leader of {self.partition} has changed"))
        # Who may have been replaced must not acquire what its successor has had acknowledged.
        return self.closed is None and self.partition.leads and self.partition.context.alive()

    def _look_after(self) -> None:
        """Something was acquired or taken back: timers, dead letters."""
        if self.shares.dead:
            self.dead_letters.start()
        self._set_timer()

    def wake(self) -> None:
        """There may be something to give. Called from where records are written, too, which nothing here may break."""
        try:
            self._wake()
        except Exception as error:  # noqa: BLE001 - reported by broke
            self.broke(error)

    def _wake(self) -> None:
        """Calls as many of the line as there are records for. Who was called and has not come keeps nobody waiting."""
        if self.closed is not None or not self._line or not self.partition.leads:
            return
        end = self.partition.stable_end
        if self._wanted(self.now, end) is None:
            self.partition.idle[self] = self
            return
        uncalled = (subscriber for subscriber in self._line if not subscriber.called)
        for subscriber in list(islice(uncalled, max(1, self.shares.backlog(end)))):
            subscriber.call()
        if not self._calling_again and next(uncalled, None) is not None:
            self._calling_again = True
            asyncio.get_running_loop().call_later(CALL_AGAIN_S, self._call_again)

    def _call_again(self) -> None:
        self._calling_again = False
        self.wake()

    def _wake_soon(self) -> None:
        """In the next turn of the loop, so that nobody takes all before others had a look."""
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._wake_now)

    def _wake_now(self) -> None:
        self._waking = False
        self.wake()

    def unreadable(self, error: CometError) -> None:
        """What is wanted next cannot be read. What is lost for good is passed over; else the members come again."""
        shown = self.partition.explain(error)
        if isinstance(shown, DataLoss) and self.closed is None:
            first, end = int(shown.details["first"]), int(shown.details["end"])
            log.error("%s: offsets %d up to %d are damaged and are given to nobody", self, first, end)
            self.lost += end - first
            self.shares.pass_over(first, end)
            self.changed()
            self._wake_soon()
        else:
            self.close(shown)

    # ---- acknowledging

    def accept(self, holder: Holder, firsts: Sequence[int], ends: Sequence[int], done: Acknowledged) -> list[Range]:
        """Each of these answers what was not acquired by the member, and calls `done` once the rest is kept."""
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
        """Locks are not kept, so there is nothing to wait for."""
        lost = self.shares.extend(self.now, holder, firsts, ends)
        self._set_timer()
        return lost

    def _acknowledged(self, lost: list[Range], done: Acknowledged) -> list[Range]:
        self._waiting.append(done)
        self.changed()
        self._look_after()
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
        self.table.look_at_the_clock()
        try:
            self._take_time()
        except Exception as error:  # noqa: BLE001 - reported by broke
            self.broke(error)

    def _take_time(self) -> None:
        if self.shares.expire(self.now):
            self.changed()
            for subscriber in list(self.subscribers):
                subscriber.freed()
        self.tickets.tick(self.now)
        self._look_after()
        self.wake()

    def forgive(self) -> None:
        """This broker stood still, so that nobody could acknowledge anything."""
        self.shares.forgive(self.now)

    def tick(self) -> None:
        """Called every second."""
        if not self._leads():
            return
        if self.touched:
            self.changed()
        self._take_time()
        busy = self.unkept or self.shares.dead
        needed = self.subscribers or self.callers or self.shares.in_flight or len(self.tickets) or busy
        self._idle_ticks = 0 if needed else self._idle_ticks + 1
        if self._idle_ticks > IDLE_TICKS_MAX:
            self.close(NotLeader(f"{self} has no members"))

    # ---- partition.Reader and Waiter

    @property
    def next_offset(self) -> int:
        return self.shares.floor

    def advanced(self) -> None:
        self.wake()

    def partition_closed(self, error: CometError) -> None:
        self.close(error)

    # ---- the end

    def broke(self, error: Exception) -> None:
        """An unexpected error ends this group at this partition, here, and nothing else. Members come again, and find
        what was kept in the store."""
        if self.closed is None:
            failures = self.table.broker.failures
            reason = failures.note(Kind.SHARE, str(self), error, passing=True)
            with failures.guard(Kind.SHARE, str(self), "close"):
                self.close(Internal(f"{self} has failed: {reason}; the broker's log has more"))

    def close(self, error: CometError) -> None:
        if self.closed is not None:
            return
        self.closed = error
        self.table.drop(self)
        self.dead_letters.stop()
        self._reader.clear()
        if self._timer is not None:
            self._timer.cancel()
        self.partition.idle.pop(self, None)
        if self.partition.readers.pop(self, None) is not None and not self.partition.readers:
            self.partition.tail.clear()
        self._keep_no_more(error)
        subscribers, self.subscribers, self.callers = [*self.subscribers, *self.callers], {}, {}
        self._line.clear()
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
            "floor": shares.floor,
            "acknowledged_above": shares.acknowledged_above,
            "in_flight": shares.in_flight,
            "waiting": shares.waiting,
            "delivered": shares.delivered,
            "redelivered": shares.redelivered,
            "acknowledged": shares.acknowledged,
            "dead": len(shares.dead),
            "dead_lettered": shares.dead_lettered,
            "dropped": shares.dropped,
            "deleted": shares.deleted,
            "lost": self.lost,
            "problem": self.dead_letters.problem,
        }
