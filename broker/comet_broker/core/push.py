"""The queue of a stream's subscriptions: pure bookkeeping of their positions, credit and turns.

    Subscription (credit) ─┬─ Cursor (one partition, next offset)
                           └─ Cursor ...

A cursor is in exactly one state: *idle* (it has read all records; the partition wakes it), *ready* (in the queue),
*loading* (its bytes are being read from disk), *starved* (its subscription has no credit), or *ended*.
Ready cursors are served in turn, one delivery each, so that a busy partition cannot hold back a quiet one.

Single-threaded; owned by one session, lives as long as its stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from comet.errors import InvalidArgument, LimitExceeded

P = TypeVar("P")


class DeliveryState(Enum):
    IDLE = auto()
    READY = auto()
    LOADING = auto()
    STARVED = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False)
class Cursor(Generic[P]):
    """The position of one subscription in one partition."""

    handle: int
    partition: P
    subscription: PushSubscription[P]
    next_offset: int
    state: DeliveryState = DeliveryState.IDLE
    uncommitted: bool = False  # it also reads records of undecided transactions
    aborted_sent_end: int = 0  # below it, the reader knows the aborted transactions
    chosen: Any = None  # the filter of the reader


@dataclass(slots=True, eq=False)
class PushSubscription(Generic[P]):
    number: int
    credit: int = 0
    cursors: dict[int, Cursor[P]] = field(default_factory=dict)
    starved: deque[Cursor[P]] = field(default_factory=deque)


class PushQueue(Generic[P]):
    """The subscriptions of one stream."""

    def __init__(self, *, subscriptions_max: int, cursors_max: int, credit_bytes_max: int) -> None:
        self.subscriptions: dict[int, PushSubscription[P]] = {}
        self.cursors: dict[int, Cursor[P]] = {}
        self._ready: deque[Cursor[P]] = deque()
        self._subscriptions_max = subscriptions_max
        self._cursors_max = cursors_max
        self._credit_bytes_max = credit_bytes_max

    def open(self, number: int) -> PushSubscription[P]:
        """The subscription of that number, an existing or a new one."""
        subscription = self.subscriptions.get(number)
        if subscription is None:
            if len(self.subscriptions) >= self._subscriptions_max:
                raise LimitExceeded(
                    f"a stream has at most {self._subscriptions_max} subscriptions; open another stream"
                )
            subscription = self.subscriptions[number] = PushSubscription(number)
        return subscription

    def check_free(self, handle: int) -> None:
        """Refuses a partition that the stream reads already, and more partitions than a stream may have."""
        if handle in self.cursors:
            raise InvalidArgument(
                f"partition handle {handle} is already in subscription {self.cursors[handle].subscription.number} "
                "of this stream; unsubscribe it first, or use another stream"
            )
        if len(self.cursors) >= self._cursors_max:
            raise LimitExceeded(f"a stream reads at most {self._cursors_max} partitions; open another stream")

    def add(
        self,
        number: int,
        handle: int,
        partition: P,
        next_offset: int,
        *,
        uncommitted: bool = False,
        chosen: Any = None,
    ) -> Cursor[P]:
        """Adds a partition to a subscription, ready to be served."""
        self.check_free(handle)
        subscription = self.open(number)
        cursor = Cursor(handle, partition, subscription, next_offset, uncommitted=uncommitted, chosen=chosen)
        subscription.cursors[handle] = cursor
        self.cursors[handle] = cursor
        self.wake(cursor)
        return cursor

    def grant(self, number: int, credit: int) -> bool:
        """Adds credit; True if a cursor became ready by it."""
        subscription = self.subscriptions.get(number)
        if subscription is None:
            return False  # the subscription ended while the grant was on its way
        subscription.credit = min(subscription.credit + credit, self._credit_bytes_max)
        if subscription.credit <= 0 or not subscription.starved:
            return False
        for cursor in subscription.starved:
            assert cursor.state is DeliveryState.STARVED
            cursor.state = DeliveryState.READY
        self._ready.extend(subscription.starved)
        subscription.starved.clear()
        return True

    def wake(self, cursor: Cursor[P]) -> bool:
        """There may be records for an idle cursor; True if it became ready."""
        if cursor.state is not DeliveryState.IDLE:
            return False
        if cursor.subscription.credit <= 0:
            cursor.state = DeliveryState.STARVED
            cursor.subscription.starved.append(cursor)
            return False
        cursor.state = DeliveryState.READY
        self._ready.append(cursor)
        return True

    def take(self) -> Cursor[P] | None:
        """The cursor whose turn it is. The caller serves it, then calls `served`, `idle` or `loading`."""
        while self._ready:
            cursor = self._ready.popleft()
            assert cursor.state is DeliveryState.READY
            if cursor.subscription.credit <= 0:
                cursor.state = DeliveryState.STARVED
                cursor.subscription.starved.append(cursor)
                continue
            return cursor
        return None

    def served(self, cursor: Cursor[P], size: int, next_offset: int, *, more: bool = True) -> None:
        """A delivery was sent: the cursor moves on, uses up credit, and goes to the end of the queue if there is
        more for it; else it is idle."""
        assert cursor.state is DeliveryState.READY
        assert next_offset > cursor.next_offset, "a delivery must move its reader on"
        cursor.next_offset = next_offset
        cursor.subscription.credit -= size
        if more:
            self._ready.append(cursor)
        else:
            cursor.state = DeliveryState.IDLE

    def idle(self, cursor: Cursor[P]) -> None:
        assert cursor.state is DeliveryState.READY
        cursor.state = DeliveryState.IDLE

    def loading(self, cursor: Cursor[P]) -> None:
        assert cursor.state is DeliveryState.READY
        cursor.state = DeliveryState.LOADING

    def loaded(self, cursor: Cursor[P], size: int, next_offset: int) -> None:
        """The records that were read from disk for a loading cursor are sent now."""
        assert cursor.state is DeliveryState.LOADING
        cursor.state = DeliveryState.READY
        self.served(cursor, size, next_offset)

    def again(self, cursor: Cursor[P]) -> None:
        """The records that were read for a loading cursor are not sent: they are read once more."""
        assert cursor.state is DeliveryState.LOADING
        cursor.state = DeliveryState.READY
        self._ready.append(cursor)

    def remove(self, cursor: Cursor[P]) -> None:
        """Removes one partition. An empty subscription stays open until it is closed by number."""
        if cursor.state is DeliveryState.STARVED:
            cursor.subscription.starved.remove(cursor)
        elif cursor.state is DeliveryState.READY and cursor in self._ready:
            self._ready.remove(cursor)
        cursor.state = DeliveryState.ENDED
        del cursor.subscription.cursors[cursor.handle]
        del self.cursors[cursor.handle]

    def close(self, number: int, handles: Iterable[int] = ()) -> list[Cursor[P]]:
        """Ends a subscription, or only the partitions named; returns the cursors that ended."""
        subscription = self.subscriptions.get(number)
        if subscription is None:
            return []
        chosen = list(handles)
        ended = [cursor for handle, cursor in list(subscription.cursors.items()) if not chosen or handle in chosen]
        for cursor in ended:
            self.remove(cursor)
        if not chosen:
            del self.subscriptions[number]
        return ended
