"""What a synchronous consumer has opened before its turn: the program's thread takes it without a turn of the loop.

    loop: a call that reads ─► its record, and `opened`: all that has come ─► the program's thread

The program's thread takes only while no call of it is under way, so that the two never change the consumer at once.
Only a rebalance comes between. It raises `recalled` and then looks at the records in hand; the program's thread puts a
record in hand and then looks at `recalled`, and puts the record back if it is raised. So one of them sees the other: a
record of a revoked partition is either in hand, and waited for, or it is not handed out.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Generic, TypeVar

from comet.consumer.broker_subscription import PartitionSubscription
from comet.consumer.contents import Opened

T = TypeVar("T")


class LookAhead(Generic[T]):
    """Owned by a consumer that has a synchronous twin."""

    __slots__ = ("calls", "dropped", "lock", "opened", "recalled")

    def __init__(self) -> None:
        # Held by threads of the program, never by the loop: a signal handler may wait for the loop.
        self.lock = threading.RLock()
        self.calls = 0  # of the program, under way on the loop
        self.opened: deque[Opened[Any]] = deque()
        self.recalled = False
        self.dropped: list[PartitionSubscription] = []  # the next call that reads drops their records

    def recall(self, reader: PartitionSubscription) -> None:
        """Hands out no more records of a partition. On the loop, at any time."""
        self.dropped.append(reader)
        self.recalled = True

    def drop(self, reader: PartitionSubscription | None) -> None:
        """Drops what was opened of a partition; None: all, for good. On the loop, in a call of the program."""
        self.opened = deque(one for one in self.opened if reader not in (None, one[0]))
        self.recalled = self.recalled or reader is None  # a signal handler may close while the program takes
