"""The contents of one log, for a recovery of the cluster: its bounds, its epochs, and the first batch of each epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from crc32c import crc32c

from comet import records
from comet.errors import CometError
from comet_broker.core.cluster import PartitionId
from comet_broker.core.recovery import CopyInventory
from comet_broker.ports import Worker
from comet_broker.storage.log import Extent, Log

EPOCHS_MAX: Final = 64  # the last epochs, whose first batch is read
_ROOM_BYTES: Final = 1 << 20


def epoch_starts(storage: Log) -> list[int]:
    """The offsets at which the last epochs begin whose first batch the log still holds."""
    starts = [start for _, start in storage.epochs.entries if storage.log_start <= start < storage.log_end]
    return starts[-EPOCHS_MAX:]


async def checksums_at(storage: Log, starts: Iterable[int], worker: Worker) -> dict[int, int]:
    """Checksums of the batches that begin at these offsets; none where no batch begins or it cannot be read."""
    extents = extents_at(storage, starts)
    try:
        return await worker.run(lambda: read_checksums(extents))
    finally:
        for extent in extents.values():
            extent.release()


def extents_at(storage: Log, starts: Iterable[int]) -> dict[int, Extent]:
    """The extents of these batches; the caller releases them."""
    found = {}
    for start in starts:
        try:
            found[start] = storage.extent(start)
        except CometError:
            continue  # damaged, or deleted
    return found


def read_checksums(extents: Mapping[int, Extent]) -> dict[int, int]:
    """Blocks."""
    found = {}
    buffer = memoryview(bytearray(_ROOM_BYTES))
    for start, extent in extents.items():
        try:
            result = extent.read(buffer, wait=True)
            if result is not None and result.needed > len(buffer):
                buffer = memoryview(bytearray(result.needed))
                result = extent.read(buffer, wait=True)
        except (CometError, OSError):
            continue  # unreadable: not compared
        if result is not None and result.size:
            header = records.read_header(buffer, 0)
            if header.base_offset == start:
                found[start] = crc32c(buffer[: header.length])
    return found


def copy_of(tp: PartitionId, storage: Log, begins: dict[int, int]) -> CopyInventory:
    return CopyInventory(
        topic=tp[0],
        partition=tp[1],
        log_start=storage.log_start,
        log_end=storage.log_end,
        high_watermark=storage.high_watermark,
        epochs=storage.epochs.entries,
        damaged=bool(storage.lost) or storage.failed is not None,
        begins=begins,
    )
