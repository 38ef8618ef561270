"""What a log holds, byte for byte: for comparing replicas."""

from __future__ import annotations

from typing import Final

from comet_broker.storage.log import Log

_ROOM_BYTES: Final = 16 << 20  # more than the largest batch


def bytes_of(storage: Log) -> bytes:
    """All batches of an open log."""
    parts: list[bytes] = []
    buffer = memoryview(bytearray(_ROOM_BYTES))
    offset = storage.log_start
    while offset < storage.log_end:
        extent = storage.extent(offset)
        try:
            result = extent.read(buffer, wait=True)
        finally:
            extent.release()
        assert result is not None and result.size
        parts.append(bytes(buffer[: result.size]))
        offset = result.next_offset
    return b"".join(parts)
