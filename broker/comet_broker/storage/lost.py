"""The offsets of a log that are damaged and cannot be read, as far as anybody found out."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable

from comet.errors import DataLoss
from comet_broker.storage.limits import LOST_RANGES_MAX

Range = tuple[int, int]


def data_loss(first: int, end: int) -> DataLoss:
    return DataLoss(
        f"offsets {first} up to {end} are damaged on this broker's disk and cannot be read; what follows can",
        details={"first": str(first), "end": str(end)},
    )


class LostRanges:
    """Half-open ranges in order, none touching the next. Owned by a log, on the loop's thread."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self.ranges: tuple[Range, ...] = ()
        for one in ranges:
            self._add(*one)

    def add(self, first: int, end: int) -> None:
        """Remembers a range that a reader found. There is a limit to that; beyond it, readers find out again."""
        if len(self.ranges) < LOST_RANGES_MAX:
            self._add(first, end)

    def _add(self, first: int, end: int) -> None:
        assert first < end
        ordered = list(self.ranges)
        insort(ordered, (first, end))
        merged: list[Range] = []
        for start, stop in ordered:
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
            else:
                merged.append((start, stop))
        self.ranges = tuple(merged)

    def refuse(self, offset: int) -> None:
        """Raises DataLoss for an offset that is lost."""
        at = bisect_right(self.ranges, offset, key=_first) - 1
        if at >= 0 and offset < self.ranges[at][1]:
            raise data_loss(*self.ranges[at])

    def forget_before(self, offset: int) -> None:
        """What is deleted is no longer lost."""
        self.ranges = tuple((max(first, offset), end) for first, end in self.ranges if end > offset)

    def forget_from(self, offset: int) -> None:
        """What is cut off is no longer lost."""
        self.ranges = tuple((first, min(end, offset)) for first, end in self.ranges if first < offset)


def _first(lost: Range) -> int:
    return lost[0]
