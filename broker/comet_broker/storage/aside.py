"""Records that are cut off a log although they are known to be committed, kept in a file that Comet never reads again.

    aside-<epoch>-<from>-<to>.batches     a segment header with `from` as base offset, then the batches as they were

`epoch` is the leader epoch whose leader does not have them. To look into one, copy it to a folder of its own as
`<from, 20 digits>.log`. The file goes with its topic, and with the replica when that is moved to another broker.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterator
from typing import Final

from comet.errors import LimitExceeded
from comet_broker.ports import File, Files
from comet_broker.storage.cut import Cut
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES, LogIdentity, pack_segment_header
from comet_broker.storage.limits import ASIDE_CHUNK_BYTES, ASIDE_FILES_MAX, FREE_BYTES_MIN
from comet_broker.storage.segment import Segment

log = logging.getLogger(__name__)

_PREFIX: Final = "aside-"


class NotSetAside(Exception):
    """Why the records that were to be cut off a log could not be copied; nothing was cut."""


def set_aside(files: Files, folder: str, identity: LogIdentity, cut: Cut, epoch: int, end: int, now_us: int) -> str:
    """Copies what the cut takes away from a log that ends at `end`; returns the path when that is on disk. Blocks.

    Raises OSError, as where the disk is full, or LimitExceeded; then no file is left behind.
    """
    kept = [name for name in files.list(folder) if name.startswith(_PREFIX)]
    start = cut.end if cut.stay else cut.go[0].base_offset
    name = f"{_PREFIX}{epoch}-{start}-{end}.batches"
    if len(kept) >= ASIDE_FILES_MAX and name not in kept:
        raise LimitExceeded(f"{len(kept)} files of records set aside are in {folder}; move them elsewhere")
    path = f"{folder}/{name}"
    if name in kept:
        files.remove(path)  # of a cut that was not made, in this epoch as well
    parts = list(_parts(cut))
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


def _parts(cut: Cut) -> Iterator[tuple[Segment, int]]:
    if cut.stay and cut.position is not None:
        yield cut.stay[-1], cut.position
    for segment in cut.go:
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
