"""The search for an offset by timestamp, precise to the record.

Timestamps need not rise. The result is the first record, in offset order, with a timestamp at or after the requested
one. Segments, stretches of the index and batch headers have their maximal timestamps; so at most one batch is decoded
for a hit, and a segment is read only if its maximal timestamp is high enough.
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
    """Searches the segments; None without a hit. Blocks; for a worker. Skips segments that are deleted meanwhile."""
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
        # The producer's checksum is valid, so the broker took the batch; but its columns cannot be decoded.
        return found.header.base_offset if found.header.base_offset >= log_start else None
