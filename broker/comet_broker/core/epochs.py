"""The leader epochs of a log's records, and the offset up to which two logs are the same.

    (epoch, start offset)   one entry for each run of records of one epoch; both numbers rise

A leader writes each offset once in its epoch, so two logs that have the same epoch at an offset have the same record
there. By this a follower's log is compared when an epoch begins, and a reader learns that records that it has read are
no longer there. An epoch without records has no entry.

The history agrees with the headers of the batches, so it takes an epoch that falls, too: no log of a healthy cluster
has one, and the comparison works all the same.

Pure; owned by the log, changed by its appends and truncations.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

Entry = tuple[int, int]


class EpochHistory:
    """The epochs of one log. `last_epoch` is 0 while there are no records."""

    __slots__ = ("_epochs", "_starts", "last_epoch")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.last_epoch = 0
        for epoch, start in entries:
            self.begin(epoch, start)

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(zip(self._epochs, self._starts, strict=True))

    def begin(self, epoch: int, offset: int) -> None:
        """Adds an entry if a batch that was appended at `offset` begins another epoch."""
        assert not self._starts or offset >= self._starts[-1], "logs grow at their end"
        if epoch == self.last_epoch:
            return
        if self._starts and self._starts[-1] == offset:  # nothing was written in that epoch
            self._pop()
        if epoch != self.last_epoch:
            self._epochs.append(epoch)
            self._starts.append(offset)
            self.last_epoch = epoch

    def truncate(self, offset: int) -> None:
        """Removes the entries from `offset` on: the log ends there now."""
        while self._starts and self._starts[-1] >= offset:
            self._pop()

    def _pop(self) -> None:
        self._epochs.pop()
        self._starts.pop()
        self.last_epoch = self._epochs[-1] if self._epochs else 0

    def forget_before(self, log_start: int) -> None:
        """Removes the entries below `log_start`, the new log start offset. The entry that covers it stays as it is."""
        outlived = bisect_right(self._starts, log_start) - 1
        if outlived > 0:
            del self._epochs[:outlived], self._starts[:outlived]

    def epoch_at(self, offset: int) -> int:
        """The epoch of the record at `offset`; 0 if no entry covers it."""
        at = bisect_right(self._starts, offset) - 1
        return self._epochs[at] if at >= 0 else 0

    def within(self, first: int, end: int) -> list[Entry]:
        """The entries of the records from `first` up to `end`, as if the log began and ended there."""
        if first >= end:
            return []
        at = max(bisect_right(self._starts, first) - 1, 0)
        upto = bisect_left(self._starts, end)
        pairs = zip(self._epochs[at:upto], self._starts[at:upto], strict=True)
        return [(epoch, max(start, first)) for epoch, start in pairs]

    def end_of(self, epoch: int, log_end: int) -> int:
        """The end offset of the records of all epochs up to this one."""
        for later, start in zip(self._epochs, self._starts, strict=True):
            if later > epoch:
                return start
        return log_end

    def divergence(self, my_start: int, my_end: int, theirs: Sequence[Entry], their_start: int, their_end: int) -> int:
        """The offset up to which a follower's log agrees with this one, the leader's.

        Compares only the offsets that both have. A result below one of the two starts: they have nothing in common.

        >>> leader = EpochHistory([(1, 0), (3, 10)])
        >>> leader.divergence(0, 20, [(1, 0), (2, 10)], 0, 15)
        10
        >>> leader.divergence(0, 20, [(1, 0)], 0, 12)
        10
        >>> leader.divergence(0, 20, [(1, 0), (3, 10)], 0, 12)
        12
        """
        follower = EpochHistory(theirs)
        at, end = max(my_start, their_start), min(my_end, their_end)
        while at < end:
            if self.epoch_at(at) != follower.epoch_at(at):
                return at
            at = min(self._next_start(at), follower._next_start(at), end)
        return end

    def _next_start(self, offset: int) -> int:
        at = bisect_right(self._starts, offset)
        return self._starts[at] if at < len(self._starts) else 1 << 63


def diverged(history: EpochHistory, log_end: int, epoch: int, offset: int) -> int | None:
    """The offset from which on this log, a leader's, differs from one that a client has read up to `offset`; None if it
    has the client's last record, which is of `epoch`.

    >>> history = EpochHistory([(1, 0), (3, 10)])
    >>> diverged(history, 20, epoch=3, offset=15)
    >>> diverged(history, 20, epoch=1, offset=15)
    10
    """
    if offset <= 0:
        return None
    if offset > log_end:
        return min(history.end_of(epoch, log_end), log_end)
    found = history.epoch_at(offset - 1)
    if found in (epoch, 0):  # 0: the record is deleted, so its epoch is unknown
        return None
    return min(history.end_of(epoch, log_end), offset - 1)
