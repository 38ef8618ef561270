"""The batches that a reader of committed records drops: markers, and those of aborted transactions.

Pure. The broker names an aborted transaction before the first delivery with its batches. A batch belongs to it if
producer and epoch are the same and it lies between the first batch of the transaction and its marker.
"""

from __future__ import annotations

from typing import Final

from comet.records import BatchHeader, Flag

CONTROL: Final = int(Flag.CONTROL)
# A batch without any of them is never dropped.
MARKED: Final = int(Flag.TRANSACTIONAL | Flag.CONTROL)


class Discards:
    """The aborted transactions of a partition. Owned by its reader.

    >>> discards = Discards()
    >>> discards.add(producer_id=7, epoch=3, first=10, end=15)
    >>> [discards.covers(7, 3, 10), discards.covers(7, 4, 12), discards.covers(7, 3, 15)]
    [True, False, False]
    """

    __slots__ = ("_aborted",)

    def __init__(self) -> None:
        self._aborted: dict[tuple[int, int], tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._aborted)

    def add(self, producer_id: int, epoch: int, first: int, end: int) -> None:
        """Adds an aborted transaction of a producer and epoch: from `first` up to its marker at `end`."""
        self._aborted[producer_id, epoch] = (first, end)

    def covers(self, producer_id: int, epoch: int, offset: int) -> bool:
        """Whether the batch at an offset is part of an aborted transaction."""
        first, end = self._aborted.get((producer_id, epoch), (0, 0))
        return first <= offset < end

    def drops(self, header: BatchHeader) -> bool:
        """Whether to drop a batch that has a flag of MARKED."""
        if header.flags & CONTROL:
            return True
        return bool(self._aborted) and self.covers(header.producer_id, header.producer_epoch, header.base_offset)

    def passed(self, offset: int) -> None:
        """Forgets transactions that end before an offset, up to which all was read."""
        over = [key for key, (_, end) in self._aborted.items() if end < offset]
        for key in over:
            del self._aborted[key]

    def clear(self) -> None:
        self._aborted.clear()
