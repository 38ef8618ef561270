"""Resolves a client's position to an offset, and checks that the records it has read are still there. Pure: it only
reads the log."""

from __future__ import annotations

from comet.errors import OffsetOutOfRange, Truncated, Unavailable
from comet.types import AtOffset, AtTime, Earliest, Latest, Position
from comet_broker.core.epochs import diverged
from comet_broker.partitions.partition import Partition


def check_settled(partition: Partition) -> None:
    """Raises unless the end of the partition is known."""
    if not partition.settled:
        raise Unavailable(f"the new leader of {partition} does not know its high watermark yet", retry_after_ms=20)


def resolve(partition: Partition, position: Position, *, uncommitted: bool = False) -> int:
    """The offset of a position; `LogReader.resolve` looks up times, which may read the disk."""
    start = partition.log.log_start
    end = partition.high_watermark if uncommitted else partition.last_stable_offset
    match position:
        case Earliest():
            return start
        case Latest():
            check_settled(partition)
            return end
        case AtOffset(offset):
            if offset > partition.log.log_end and partition.named and not partition.leads:
                # It may have restarted with fewer records, and a replica with all of them may become leader.
                raise Unavailable(f"{partition} has no leader that knows its end", retry_after_ms=50)
            if not start <= offset <= partition.log.log_end:
                raise OffsetOutOfRange(
                    f"offset {offset} of {partition.topic}/{partition.index} is out of range: "
                    f"the log holds {start} up to {partition.log.log_end}",
                    details={"log_start": str(start), "log_end": str(partition.log.log_end)},
                )
            return offset
        case AtTime():
            raise AssertionError("times are resolved by LogReader.resolve")


def check_not_truncated(partition: Partition, offset: int, epoch: int) -> None:
    """Raises if a reader that has read up to `offset`, the last record of `epoch`, has read truncated records."""
    storage = partition.log
    if offset > storage.log_end and not partition.leads:
        return  # a follower that is behind its leader cannot know
    cut_at = diverged(storage.epochs, storage.log_end, epoch, offset)
    if cut_at is not None:
        raise Truncated(
            f"{partition} was truncated to offset {cut_at}, and {offset} had been read: other records follow now",
            details={"log_end": str(cut_at), "log_start": str(storage.log_start)},
        )
