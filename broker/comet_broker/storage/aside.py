"""Committed records that are truncated, set aside in a file that Comet never reads again.

    aside-<epoch>-<from>-<to>.batches     a segment header with `from` as base offset, then the batches as they were

`epoch` is the leader epoch whose leader does not have them. To inspect one, copy it to a folder of its own as
`<from, 20 digits>.log`. The file is deleted with its topic, and with the replica when that moves to another broker.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterator
from typing import Final

from comet.errors import LimitExceeded
from comet_broker.ports import File, Files
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES, LogIdentity, pack_segment_header
from comet_broker.storage.limits import ASIDE_CHUNK_BYTES, ASIDE_FILES_MAX, FREE_BYTES_MIN
from comet_broker.storage.segment import Segment
from comet_broker.storage.truncation import Truncation

log = logging.getLogger(__name__)

_PREFIX: Final = "aside-"


class NotSetAside(Exception):
    """The records to truncate could not be copied; nothing was truncated."""


def set_aside(
    files: Files, folder: str, identity: LogIdentity, truncation: Truncation, epoch: int, end: int, now_us: int
) -> str:
    """Copies the records that a truncation removes from a log that ends at `end`; returns the path of the synced file.

    Blocks. Raises OSError, as on a full disk, or LimitExceeded; then no file is left behind.
    """
    existing = [name for name in files.list(folder) if name.startswith(_PREFIX)]
    start = truncation.end if truncation.stay else truncation.go[0].base_offset
    name = f"{_PREFIX}{epoch}-{start}-{end}.batches"
    if len(existing) >= ASIDE_FILES_MAX and name not in existing:
        raise LimitExceeded(f"{len(existing)} files of records set aside are in {folder}; move them elsewhere")
    path = f"{folder}/{name}"
    if name in existing:
        files.remove(path)  # of an earlier truncation in this epoch that was not carried out
    parts = list(_parts(truncation))
    if files.free_bytes() - sum(segment.size - position for segment, position in parts) < FREE_BYTES_MIN:
        raise OSError(errno.ENOSPC, "No space left on device")
    file = files.open(path, create=True)
    try:
        file.append((pack_segment_header(identity, start, now_us),))
        for segment, position in parts:
            _copy(segment, position, file)
        file.sync()
        files.sync_folder(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove(path)
        raise
    finally:
        file.close()
    log.warning("committed records from offset %d up to %d were set aside in %s", start, end, path)
    return path


def _parts(truncation: Truncation) -> Iterator[tuple[Segment, int]]:
    if truncation.stay and truncation.position is not None:
        yield truncation.stay[-1], truncation.position
    for segment in truncation.go:
        yield segment, SEGMENT_HEADER_BYTES


def _copy(segment: Segment, position: int, into: File) -> None:
    segment.pin()
    try:
        file, _ = segment.warm_up()
        while position < segment.size:
            data = file.read(position, min(ASIDE_CHUNK_BYTES, segment.size - position))
            if not data:
                return
            into.append((data,))
            position += len(data)
    finally:
        segment.unpin()
