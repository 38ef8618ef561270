"""The queue for the records of one share group in one partition: members, which stay, and calls, which are in it once.

    queue ─► called, when there are records ─► served ─► at the end of the queue, until the others had their turn

An acquirer is in the queue while it has credit. One that was called and did not come delays no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Final, Protocol

from comet.errors import CometError, LimitExceeded
from comet_broker import limits
from comet_broker.core.shares import Holder

CALL_AGAIN_S: Final = 0.002  # after which the next in the queue is called if those called before did not come


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


class AcquirerQueue:
    """Owned by a SharePartition, which `wake` makes look for records. On the loop's thread. `name` is for errors."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self.members: dict[Acquirer, None] = {}
        self.callers: dict[Acquirer, None] = {}
        self.queued: dict[Acquirer, None] = {}  # those with credit, in the order of their turns
        self._name = name
        self._wake = wake
        self._waking = False
        self._calling_again = False

    @property
    def in_use(self) -> bool:
        return bool(self.members or self.callers)

    def add_member(self, member: Acquirer) -> None:
        self._check_room()
        self.members[member] = None
        self.queue(member)

    def add_caller(self, caller: Acquirer) -> None:
        """Queues a caller; nothing is acquired by it yet."""
        self._check_room()
        self.callers[caller] = None
        self.queue(caller)

    def _check_room(self) -> None:
        if len(self.members) + len(self.callers) >= limits.SHARE_MEMBERS_MAX:
            raise LimitExceeded(f"{self._name} has {limits.SHARE_MEMBERS_MAX} members, the limit", retry_after_ms=1000)

    def remove_member(self, member: Acquirer) -> None:
        self.members.pop(member, None)
        self.queued.pop(member, None)

    def remove_caller(self, caller: Acquirer) -> None:
        """Removes a caller after its call. Its acquired records stay locked; the next in the queue gets the turn that
        it did not take."""
        self.callers.pop(caller, None)
        if caller in self.queued:
            del self.queued[caller]
            self.wake_soon()

    def close(self) -> list[Acquirer]:
        """Removes all. Returns them."""
        removed = [*self.members, *self.callers]
        self.members, self.callers = {}, {}
        self.queued.clear()
        return removed

    # ---- turns

    def queue(self, acquirer: Acquirer) -> None:
        """Queues an acquirer that has credit again."""
        if (acquirer in self.members or acquirer in self.callers) and acquirer not in self.queued:
            self.queued[acquirer] = None
            self._wake()

    def out_of_credit(self, acquirer: Acquirer) -> None:
        self.queued.pop(acquirer, None)

    def served(self, acquirer: Acquirer) -> None:
        """Moves an acquirer to the end of the queue; the next have their turn."""
        self.queued.pop(acquirer, None)
        self.queued[acquirer] = None
        self.wake_soon()

    def is_waited_for_beside(self, caller: Acquirer) -> bool:
        """Whether others are queued, too: the records are not for one alone."""
        return len(self.queued) > (caller in self.queued)

    # ---- waking

    def call(self, count: int) -> None:
        """Calls the next of the queue, at most so many. The others are called a little later."""
        uncalled = (acquirer for acquirer in self.queued if not acquirer.called)
        for acquirer in list(islice(uncalled, count)):
            acquirer.call()
        if not self._calling_again and next(uncalled, None) is not None:
            self._calling_again = True
            asyncio.get_running_loop().call_later(CALL_AGAIN_S, self._call_again)

    def _call_again(self) -> None:
        self._calling_again = False
        self._wake()

    def wake_soon(self) -> None:
        """Wakes in the next turn of the loop, so that one member does not take everything."""
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._wake_now)

    def _wake_now(self) -> None:
        self._waking = False
        self._wake()
