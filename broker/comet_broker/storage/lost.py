"""The damaged, unreadable offsets of a log, as far as they are known."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable

from comet.errors import DataLoss
from comet_broker.storage.limits import LOST_RANGES_MAX

Range = tuple[int, int]


def data_loss(first: int, end: int) -> DataLoss:
    return DataLoss(
        f"offsets {first} up to {end} are damaged on this broker's disk and cannot be read; later ones can",
        details={"first": str(first), "end": str(end)},
    )


class LostRanges:
    """Half-open ranges in order, none touching the next. Owned by a log, on the loop's thread."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self.ranges: tuple[Range, ...] = ()
        for one in ranges:
            self.ranges = self._with(*one)

    def add(self, first: int, end: int) -> None:
        """Notes a range that a reader found, up to LOST_RANGES_MAX; readers find others again."""
        ranges = self._with(first, end)
        if len(ranges) <= LOST_RANGES_MAX:
            self.ranges = ranges

    def _with(self, first: int, end: int) -> tuple[Range, ...]:
        assert first < end
        ordered = list(self.ranges)
        insort(ordered, (first, end))
        merged: list[Range] = []
        for start, stop in ordered:
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
            else:
                merged.append((start, stop))
        return tuple(merged)

    def refuse(self, offset: int) -> None:
        """Raises DataLoss for an offset that is lost."""
        at = bisect_right(self.ranges, offset, key=_first) - 1
        if at >= 0 and offset < self.ranges[at][1]:
            raise data_loss(*self.ranges[at])

    def forget_before(self, offset: int) -> None:
        """Drops deleted offsets."""
        self.ranges = tuple((max(first, offset), end) for first, end in self.ranges if end > offset)

    def forget_from(self, offset: int) -> None:
        """Drops truncated offsets."""
        self.ranges = tuple((first, min(end, offset)) for first, end in self.ranges if first < offset)


def _first(lost: Range) -> int:
    return lost[0]
