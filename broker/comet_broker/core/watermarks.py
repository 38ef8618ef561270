"""How far the records of one replica may be acknowledged and read: a pure account of four offsets.

    durable             on this broker: the log's end, or with flush=always what is on disk     acks=1
    committed           on every in-sync replica, as the leader computes it                     acks=all
    high_watermark      visible: committed, or on an `available` topic durable                  read_uncommitted
    last_stable_offset  stable: below it every transaction is decided                           read_committed

    commit, advance, stabilize ─► the bounds that have moved: those that wait at them are woken

`committed` and what is visible rise; only a truncation moves them back. `durable` also falls when a topic is changed to
flush=always.

Owned by a Partition, which tells it how far its log and its in-sync replicas are.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from comet_broker.core.isolation import Isolation


class ReadBound(IntEnum):
    """The offset up to which a reader reads."""

    LOG_END = 0  # followers
    HIGH_WATERMARK = 1  # read_uncommitted
    LAST_STABLE_OFFSET = 2  # read_committed


Moved = tuple[ReadBound, ...]

NOTHING: Final[Moved] = ()
APPENDED: Final[Moved] = (ReadBound.LOG_END,)
VISIBLE: Final[Moved] = (ReadBound.HIGH_WATERMARK,)
STABLE: Final[Moved] = (ReadBound.LAST_STABLE_OFFSET,)
BOTH: Final[Moved] = (ReadBound.HIGH_WATERMARK, ReadBound.LAST_STABLE_OFFSET)


class Watermarks:
    __slots__ = ("committed", "durable", "high_watermark", "isolation", "last_stable_offset")

    def __init__(self, *, durable: int, committed: int, isolation: Isolation, log_start: int) -> None:
        self.durable = durable
        self.committed = committed
        self.high_watermark = committed
        self.last_stable_offset = 0
        self.isolation = isolation
        self.stabilize(log_start)

    def commit(self, offset: int) -> bool:
        """All in-sync replicas have the records below `offset`. Returns whether some of them are newly committed."""
        if offset <= self.committed:
            return False
        self.committed = offset
        return True

    def advance(self, durable: int, *, available: bool, log_start: int) -> Moved:
        """Shows what is committed, or with `available` durable. Returns the bounds that have moved."""
        self.durable = durable
        visible = durable if available and durable > self.committed else self.committed
        if visible <= self.high_watermark:
            return NOTHING
        self.high_watermark = visible
        if self.isolation.all_decided:
            self.last_stable_offset = visible
            return BOTH
        return BOTH if self.stabilize(log_start) else VISIBLE

    def stabilize(self, log_start: int) -> Moved:
        """Moves the last stable offset after transactions were decided or deleted. Returns it if it has risen."""
        stable = max(self.isolation.last_stable_offset(self.high_watermark), log_start)
        before, self.last_stable_offset = self.last_stable_offset, stable
        return STABLE if stable > before else NOTHING

    def truncate(self, *, committed: int, log_end: int) -> None:
        """The log was truncated to `log_end`, and at least the records below `committed` are committed of it."""
        assert committed <= log_end
        self.committed = committed
        self.high_watermark = min(self.high_watermark, log_end)

    def replace_isolation(self, isolation: Isolation) -> None:
        """Takes over the transactions of a truncated log. `stabilize` follows."""
        self.isolation = isolation
