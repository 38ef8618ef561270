"""From a time to an offset, precise to the record.

Record times need not rise. The answer is the first record, in offset order, whose time is at or after the one asked
for. Segments know their latest time, stretches of the index theirs, batch headers theirs; so at most one batch is
decoded for a hit, and a segment is read only where its latest time says that there is one.
"""

from __future__ import annotations

from collections.abc import Sequence

from comet.errors import CometError
from comet.records import decode
from comet_broker.ports import File
from comet_broker.storage.index import Index
from comet_broker.storage.scan import Found, walk
from comet_broker.storage.segment import Segment


def find_time(segments: Sequence[Segment], timestamp_us: int, log_start: int) -> int | None:
    """Blocks; for a worker. Segments that are deleted meanwhile are passed over."""
    for segment in tuple(segments):
        if segment.max_timestamp_us < timestamp_us or segment.next_offset <= log_start or not segment.try_pin():
            continue
        try:
            file, index = segment.warm_up()
            found = _find_in(file, index, segment.size, timestamp_us, log_start)
        finally:
            segment.unpin()
        if found is not None:
            return found
    return None


def _find_in(file: File, index: Index, limit: int, timestamp_us: int, log_start: int) -> int | None:
    stretches = len(index)
    for number in range(max(index.find(log_start), 0), stretches):
        if index.max_timestamps[number] < timestamp_us:
            continue
        position, offset = index.positions[number], index.offsets[number]
        end = index.positions[number + 1] if number + 1 < stretches else limit
        for item in walk(file, position, end, offset):
            if isinstance(item, Found) and item.header.max_timestamp_us >= timestamp_us:
                found = _find_in_batch(file, item, timestamp_us, log_start)
                if found is not None:
                    return found
    return None


def _find_in_batch(file: File, found: Found, timestamp_us: int, log_start: int) -> int | None:
    data = file.read(found.position, found.header.length)
    try:
        batch = decode(data, check=False)
        pairs = zip(batch.offsets, batch.timestamps, strict=True)
        return next((at for at, time in pairs if time >= timestamp_us and at >= log_start), None)
    except CometError:
        # The producer's checksum holds, so the broker took the batch as it is; its columns make no sense to anybody.
        return found.header.base_offset if found.header.base_offset >= log_start else None
