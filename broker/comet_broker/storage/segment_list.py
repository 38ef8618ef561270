"""The segments of one log, in order: finds the one of an offset or a time, begins the next one, and makes room in it.

    sealed ─ sealed ─ sealed ─ active       the last one is written; a full one, or an old one, is sealed by a roll
                                            reservation of disk space ahead of the writes, checks of the free space

A write that finds no space has changed nothing and may be retried. Sealed segments that were not read for long are
cold: their files are closed. The active one of a log that is not written for long is at rest: its file is closed, too.

Owned by a Log, on the loop's thread. A search by time runs on a worker; it sees the segments as they were at its start.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence

from comet.settings.topic import TopicConfig
from comet_broker.core.retention import SegmentFacts, is_old
from comet_broker.ports import File
from comet_broker.storage.limits import (
    FREE_BYTES_MIN,
    RESERVE_AHEAD_BYTES_MAX,
    RESERVE_FROM_BYTES,
    ROOM_STEP_BYTES,
    WARM_SEGMENTS_MAX,
)
from comet_broker.storage.segment import Segment
from comet_broker.storage.state import LogFolder, LogState, disk_full
from comet_broker.storage.times import find_time


class SegmentList:
    def __init__(self, folder: LogFolder, state: LogState, segments: list[Segment]) -> None:
        self.all = segments
        self.active = segments[-1]
        self.unsynced: list[Segment] = []  # sealed, and not known to be on disk, or not yet indexed
        self.folder_version = 0  # raised with each change of the files in the folder
        self.rolls = 0
        self.replacements = 0  # of segments by compacted ones
        self._folder = folder
        self._state = state
        self._reserved = 0  # the size for which disk space is reserved
        self._warm: OrderedDict[Segment, None] = OrderedDict()
        self._was_read = False  # since the last `rest`
        for segment in segments[:-1]:
            segment.cool()

    # ---- reading

    def at(self, offset: int) -> Segment:
        """The segment that holds an offset of the log."""
        segment = self.active
        if offset < segment.base_offset:
            segment = self.all[bisect_right(self.all, offset, key=_base_offset) - 1]
        assert segment.base_offset <= offset < segment.next_offset
        return segment

    def find_time(self, timestamp_us: int) -> int:
        """The first offset with a timestamp at or after the given one; the log end offset without one.

        Runs on a worker; may be called on any thread.
        """
        while True:
            replacements = self.replacements
            log_start, log_end = self._state.log_start, self._state.log_end
            found = find_time(self.all, timestamp_us, log_start)
            if self.replacements == replacements:  # else it may have passed over one that was replaced
                break
        # A truncation may have failed halfway.
        return log_end if found is None else min(max(found, log_start), log_end)

    def was_read(self, segment: Segment) -> None:
        """Keeps the last read sealed segments warm, up to WARM_SEGMENTS_MAX."""
        if not segment.sealed or segment.dropped:
            return
        self._warm[segment] = None
        self._was_read = True
        self._warm.move_to_end(segment)
        while len(self._warm) > WARM_SEGMENTS_MAX:
            oldest, _ = self._warm.popitem(last=False)
            oldest.cool()

    # ---- room for the next batch

    def make_room(self, length: int) -> Segment:
        """The segment for a batch of this length: the active one, or a new one if that is full. Reserves space ahead
        of the writes.

        Raises DiskFull or LimitExceeded, with nothing changed, or the failure of the log.
        """
        state, segment = self._state, self.active
        if segment.size + length > state.config.segment_bytes and segment.next_offset > segment.base_offset:
            self.roll()
            segment = self.active
        self._require_space()
        file = self._awake(segment)
        size = segment.size + length
        state.room = max(min(size + ROOM_STEP_BYTES, state.config.segment_bytes), size)
        if size >= RESERVE_FROM_BYTES and state.room > self._reserved:
            ahead = min(size, RESERVE_AHEAD_BYTES_MAX)
            self._reserved = max(min(size + ahead, state.config.segment_bytes), size)
            # A write may find space although the reservation found none.
            with contextlib.suppress(OSError):
                file.reserve(self._reserved)
        return segment

    def _awake(self, segment: Segment) -> File:
        """The file of the active segment, which may be at rest."""
        segment.pin()
        try:
            return segment.warm_up()[0]
        except OSError as error:
            raise self._state.unchanged(error, "the segment could not be opened") from error
        finally:
            segment.unpin()

    def rest(self, *, active: bool) -> None:
        """Closes the files of sealed segments that were not read since the last call, and, if it is not written now,
        that of the active one. Its file is only closed with all of it on disk: the sync of another descriptor might
        not report an error that this one has not seen."""
        if not self._was_read:
            for segment in self._warm:
                segment.cool()
            self._warm.clear()
        self._was_read = False
        state = self._state
        synced = state.flushed_end == state.log_end and not self.unsynced
        if active and synced and state.failed is None and not state.closed and self.active.rest():
            state.room = 0  # the next append opens it

    def _require_space(self) -> None:
        try:
            free = self._folder.files.free_bytes()
        except OSError:
            return
        if free < FREE_BYTES_MIN:
            self._state.room = 0  # check again at the next append
            raise disk_full(
                f"only {free} bytes are left; the last {FREE_BYTES_MIN} are reserved for deleting and metadata"
            )

    def roll(self) -> None:
        """Seals the active segment and begins the next; on failure nothing has changed."""
        state = self._state
        self._awake(self.active)  # its sync must not fail for lack of a descriptor
        try:
            segment = self._folder.create_segment(state.log_end)
        except OSError as error:
            raise state.unchanged(error, "a new segment could not be made") from error
        self.active.seal()
        self.unsynced.append(self.active)
        state.snapshots.append(state.producers.snapshot(state.log_end))
        self.all.append(segment)
        self._begin(segment)
        self.rolls += 1
        assert self.all[-2].next_offset <= segment.base_offset == state.log_end

    def roll_by_age(self) -> None:
        """Rolls if the active segment is older than segment_ms and not empty, so that retention can delete it."""
        state = self._state
        if state.failed is None and not state.closed and self.is_old(state.config):
            self.roll()

    def is_old(self, config: TopicConfig) -> bool:
        """Whether the active segment is older than `segment_ms` and not empty."""
        segment = self.active
        age_us = self._folder.clock.wall_us() - segment.created_us
        return segment.next_offset > segment.base_offset and is_old(age_us, config)

    def _begin(self, segment: Segment) -> None:
        """Writes to this segment from now on, the last one."""
        self.active = segment
        self.folder_version += 1
        self._state.room = self._reserved = 0

    # ---- leaving the log

    def drop(self, segment: Segment) -> bool:
        """Removes a segment; its files go once it has no readers. False if a truncation was quicker."""
        if segment not in self.all:
            return False
        self.all.remove(segment)
        assert self.all[-1] is self.active
        self.forget_warm(segment)
        self.unsynced = [other for other in self.unsynced if other is not segment]
        segment.drop()
        return True

    def swap_in(self, segment: Segment, sources: Sequence[Segment]) -> None:
        """Reads a compacted segment in the place of those that it was made of."""
        at = self.all.index(sources[0])
        assert tuple(self.all[at : at + len(sources)]) == tuple(sources)
        self.all = [*self.all[:at], segment, *self.all[at + len(sources) :]]
        self.replacements += 1
        self.folder_version += 1
        for source in sources:
            self.forget_warm(source)
        self.unsynced = [*(other for other in self.unsynced if other not in sources), segment]  # for its index
        self.was_read(segment)

    def forget_warm(self, segment: Segment) -> None:
        self._warm.pop(segment, None)

    def replace(self, segments: Sequence[Segment]) -> None:
        """Continues with these segments; the last one takes the writes."""
        self.unsynced = [segment for segment in self.unsynced if segment in segments and segment.sealed]
        self.all = list(segments)
        self._begin(segments[-1])

    def restart_at(self, base_offset: int) -> None:
        """Continues with one new segment only; the earlier ones are unlinked already. Raises OSError."""
        self.replace((self._folder.create_segment(base_offset),))

    def synced(self, sealed: Sequence[Segment]) -> None:
        """Notes that these segments are on disk; an index that could not be written is tried again."""
        self.unsynced = [segment for segment in self.unsynced if segment not in sealed or not segment.indexed]
        for segment in sealed:
            self.was_read(segment)

    def retire(self) -> None:
        """The log is closed: the files are closed once they have no readers."""
        for segment in self.all:
            segment.retire()

    # ---- figures

    def __len__(self) -> int:
        return len(self.all)

    def facts(self) -> list[SegmentFacts]:
        return [segment.facts() for segment in self.all]

    @property
    def size_bytes(self) -> int:
        """The size on disk."""
        segments = self.all
        return segments[0].size if len(segments) == 1 else sum(segment.size for segment in segments)

    @property
    def last_append_us(self) -> int | None:
        """The append time of the last batch, by its leader's clock; None if the log is empty."""
        for segment in reversed(self.all):
            if segment.next_offset > segment.base_offset:
                return segment.last_append_us
        return None


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
