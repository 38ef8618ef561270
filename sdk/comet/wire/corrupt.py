"""Corrupt stored batches: the checksum holds, but the columns do not add up.

    CorruptBatch      bytes were damaged in transit, or are not a batch: requested again
    CorruptRecords    the log is like this on every replica: raised once, with its offsets, then skipped

Every reader of the SDK opens batches here, so that a property of a batch that it hands out never raises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final, Literal

from comet import records
from comet.errors import CorruptBatch, CorruptRecords
from comet.records import Batch, BatchHeader
from comet.types import Gap

log = logging.getLogger("comet")

OnCorrupt = Literal["raise", "skip"]

_REASON_CHARS_MAX: Final = 500


def headers(buffer: memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """Where each batch begins in `buffer`, and its header, checksums verified. Raises CorruptBatch."""
    at, size = 0, len(buffer)
    while at < size:
        header = records.verify(buffer, at, stamped=True)
        yield at, header
        at += header.length


def opened(header: BatchHeader, buffer: memoryview, at: int, topic: str, partition: int, *, since: int = 0) -> Batch:
    """The batch at `at`, its columns checked. Raises CorruptRecords for its offsets from `since` on."""
    try:
        batch = records.opened(header, buffer, at)
        batch.check(times=False)  # the leader has compared them with the header
    except CorruptBatch as error:
        first, end = max(header.base_offset, since), header.next_offset
        raise CorruptRecords(
            f"{topic}/{partition}: offsets {first} to {end - 1} cannot be read: their batch is corrupt "
            f"({error.message}); reading continues at {end}",
            details={
                "topic": topic,
                "partition": str(partition),
                "first": str(first),
                "end": str(end),
                "reason": error.message[:_REASON_CHARS_MAX],
            },
        ) from error
    return batch


def range_of(error: CorruptRecords) -> tuple[int, int]:
    """The first offset that cannot be read, and the offset at which reading continues."""
    return int(error.details["first"]), int(error.details["end"])


class CorruptPolicy:
    """A consumer's policy for batches that cannot be read. Owned by its fetcher."""

    __slots__ = ("_on_corrupt", "_on_gap", "batches")

    def __init__(self, on_corrupt: OnCorrupt, on_gap: Callable[[Gap], None] | None) -> None:
        self._on_corrupt = on_corrupt
        self._on_gap = on_gap
        self.batches = 0  # so far

    def passes(self, error: CorruptRecords) -> bool:
        """Counts a corrupt batch, and skips it or not. False: the error is to be raised."""
        self.batches += 1
        if self._on_gap is not None:
            self._on_gap(Gap(error.details["topic"], int(error.details["partition"]), *range_of(error), "damaged"))
        elif self._on_corrupt == "skip":
            log.warning("comet: %s", error)
        else:
            return False
        return True
