"""Recovery of a log: opens its folder in any state.

    1  reads the checkpoint, the clean marker, the index files and the producer snapshots
    2  selects the segment files that belong to this log
    3  goes through the segments in order: trusts the index, or reads batch by batch; `rules` decides about damage
    4  restores the producer table: the last good snapshot, and the batches after it
    5  syncs everything, writes a new checkpoint, and removes the clean marker

A log with fewer records than were written is *short*. Each change of the disk above may remove the trace of that, so
`note_missing` is called before the first such change, and what proves the synced end (clean marker, index files) stays
until the new checkpoint has it. A process that is killed at any change therefore leaves a note or a trace.

A segment is trusted without being read if its index file is whole and describes a file of just this size: the index is
written after the segment is synced. For the last segment the clean marker has to agree too.

`Recovered` reports the findings. Runs on a worker thread, before any other use of the log.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from comet.errors import CometError
from comet.records import CompactionPlan
from comet_broker.core.epochs import Entry, EpochHistory
from comet_broker.core.producers import ProducerTable
from comet_broker.ports import Clock, Files
from comet_broker.storage.checkpoint import (
    Checkpoint,
    read_checkpoint,
    read_clean_marker,
    remove_clean_marker,
    replace_checkpoint,
)
from comet_broker.storage.compaction_notes import CompactionNotes, read_notes, write_notes
from comet_broker.storage.index import INDEX_HEAD_BYTES, Index, IndexHeader, read_index, read_index_header
from comet_broker.storage.layout import (
    SEGMENT_HEADER_BYTES,
    LogIdentity,
    index_name,
    pack_segment_header,
    parse_name,
    producers_name,
    read_segment_header,
    segment_name,
)
from comet_broker.storage.rules import RULES, Action, Known, RecoveryFinding
from comet_broker.storage.scan import Found, first_stamp, stamps, unfinished, walk
from comet_broker.storage.segment import Segment

REFUSED: Final = ".refused"
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True)
class Recovered:
    """An open log, all of it on disk; the last segment is the one to write to."""

    segments: list[Segment]
    log_start: int
    log_end: int
    producers: ProducerTable
    snapshots: list[int]
    clean: bool
    lost: list[tuple[int, int]]
    epochs: EpochHistory
    high_watermark: int
    events: list[tuple[RecoveryFinding, Action, int]] = field(default_factory=list)
    short: bool = False  # more was truncated than a write that was under way when the process died
    scanned_bytes: int = 0
    cut_bytes: int = 0
    compaction: CompactionNotes = field(default_factory=CompactionNotes)


def create_segment(files: Files, folder: str, identity: LogIdentity, base_offset: int, now_us: int) -> Segment:
    """Creates an empty segment, not synced; a failure leaves no file."""
    segment = Segment(files, folder, base_offset, now_us)
    file = files.open(segment.path, create=True)
    try:
        file.truncate(0)  # after a failed attempt it may hold bytes
        file.append((pack_segment_header(identity, base_offset, now_us),))
    except OSError:
        file.close()
        with contextlib.suppress(OSError):
            files.remove(segment.path)
        raise
    segment.file, segment.index = file, Index()
    return segment


def recover(
    files: Files, folder: str, identity: LogIdentity, clock: Clock, note_missing: Callable[[], None], closed_at: int
) -> Recovered:
    """Opens the log. `note_missing` notes durably that records are missing, or raises OSError: the log then stays as it
    is. `closed_at` is the log end offset at which this process has closed the log; 0 if it has not."""
    files.make_folder(folder)
    short = False
    while True:  # each further round has one snapshot less
        recovery = _Recovery(files, folder, identity, clock, note_missing, closed_at)
        recovery.short = short
        try:
            return recovery.run()
        except _StaleSnapshotError:
            recovery.close()
            short = recovery.short
        except BaseException:
            recovery.close()
            raise


class _StaleSnapshotError(Exception):
    """The producer snapshot in use covers batches that are gone. It is deleted."""


class _Recovery:
    def __init__(
        self,
        files: Files,
        folder: str,
        identity: LogIdentity,
        clock: Clock,
        note_missing: Callable[[], None],
        closed_at: int,
    ) -> None:
        self.files = files
        self.folder = folder
        self.identity = identity
        self.clock = clock
        self.note_missing = note_missing
        self.closed_at = closed_at
        self.bases: list[int] = []
        self.indexes: dict[int, IndexHeader] = {}
        self.snapshots: list[int] = []
        self.segments: list[Segment] = []
        self.compacted: dict[int, int] = {}  # base offset -> end of the segments that it replaces
        self.touched: list[Segment] = []  # their files may be open
        self.lost: list[tuple[int, int]] = []
        self.plans: list[tuple[int, int, CompactionPlan]] = []  # that were read, with offset and epoch
        self.events: list[tuple[RecoveryFinding, Action, int]] = []
        self.producers = ProducerTable()
        self.producers_offset = -1  # batches from here on are still to be noted; -1: from the first one on
        self.epochs = EpochHistory()
        self.scanned_bytes = 0
        self.cut_bytes = 0
        self.unsynced = False
        self.short = False
        self.cut_off = False  # the log ends here: later segments go

    # ---- 1: the checkpoint and the derived files

    def run(self) -> Recovered:
        clean = read_clean_marker(self.files, self.folder)
        self._take_stock()
        checkpoint = read_checkpoint(self.files, self.folder)
        self._load_producers()
        self.clean_end, self.clean_bytes = clean or (-1, -1)
        self.known = checkpoint is not None or not self.bases
        self.log_start = checkpoint.log_start if checkpoint is not None else min(self.bases, default=0)
        self.producers.isolation.forget_before(self.log_start)
        self.synced_end = max(
            checkpoint.synced_end if checkpoint is not None else 0,
            self.clean_end,
            *(header.next_offset for header in self.indexes.values()),
            0,
        )
        self._admit_files()
        expected = self._walk_segments()
        log_end = max(expected, self.synced_end, self.log_start)  # deleted records need not have been synced
        known = checkpoint.high_watermark if checkpoint is not None else 0
        if max(known, self.closed_at) > log_end:  # all below was in the log
            self._come_short()
        if self.producers_offset > log_end:
            # A deletion writes a snapshot first, which may cover records that were not synced.
            self.files.remove(f"{self.folder}/{producers_name(self.producers_offset)}")
            raise _StaleSnapshotError
        if log_end > expected:
            self._quarantine(expected, log_end)
        if not self.segments or self.segments[-1].next_offset != log_end:
            self._begin_segment(log_end)
        elif self.segments[-1].sealed:
            self._reopen(self.segments[-1])
        active = self.segments[-1]
        assert active.index is not None
        active.index.take_epochs(self.epochs.within(active.base_offset, active.next_offset))
        self.epochs.forget_before(self.log_start)
        self.producers.isolation.forget_before(self.log_start)
        was_clean = clean is not None and not self.events and log_end == self.clean_end
        high_watermark = min(known, log_end)
        synced = checkpoint is not None and checkpoint.synced_end == log_end
        compaction = self._compaction(log_end)
        self._settle(log_end, high_watermark, compaction, skip_sync=was_clean and synced)
        return Recovered(
            segments=self.segments,
            log_start=self.log_start,
            log_end=log_end,
            producers=self.producers,
            snapshots=self.snapshots,
            clean=was_clean,
            epochs=self.epochs,
            high_watermark=high_watermark,
            lost=[(max(first, self.log_start), end) for first, end in self.lost if end > self.log_start],
            events=self.events,
            short=self.short,
            scanned_bytes=self.scanned_bytes,
            cut_bytes=self.cut_bytes,
            compaction=compaction,
        )

    def _compaction(self, log_end: int) -> CompactionNotes:
        notes = read_notes(self.files, self.folder, log_end, self.epochs)
        for offset, epoch, plan in self.plans:
            if offset < log_end and (notes.planned is None or notes.planned.offset < offset):
                notes.note(offset, epoch, plan)
        rewritten_end = min(max(self.compacted.values(), default=0), log_end)
        notes.forgotten_end = max(notes.forgotten_end, rewritten_end)
        return notes

    def close(self) -> None:
        for segment in self.touched:
            segment.retire()

    def _take_stock(self) -> None:
        """Lists the files, and removes left-overs of interrupted replacements."""
        for name in self.files.list(self.folder):
            if name.endswith(".tmp"):
                self.files.remove(f"{self.folder}/{name}")
            elif (parsed := parse_name(name)) is not None:
                base, kind = parsed
                if kind == "log":
                    self.bases.append(base)
                elif kind == "producers":
                    self.snapshots.append(base)
                elif (header := self._read_index_header(base)) is not None:
                    self.indexes[base] = header

    def _read_index_header(self, base: int) -> IndexHeader | None:
        file = self.files.open(f"{self.folder}/{index_name(base)}")
        try:
            header = read_index_header(file.read(0, INDEX_HEAD_BYTES))
        finally:
            file.close()
        if header is None or header.base_offset != base or not base <= header.next_offset:
            return None
        return header

    def _load_producers(self) -> None:
        """Loads the latest whole snapshot, and deletes damaged later ones."""
        for offset in sorted(self.snapshots, reverse=True):
            path = f"{self.folder}/{producers_name(offset)}"
            try:
                found, table = ProducerTable.restore(self.files.read_all(path))
            except CometError:
                found = -1
            if found == offset:
                self.producers, self.producers_offset = table, offset
                return
            self.files.remove(path)
            self.snapshots.remove(offset)

    def _knowledge(self, offset: int) -> Known:
        if offset < self.synced_end:
            return Known.SYNCED
        return Known.NOT_SYNCED if self.known else Known.UNKNOWN

    def _decide(self, finding: RecoveryFinding, offset: int) -> Action:
        action, _ = RULES[finding, self._knowledge(offset)]
        self.events.append((finding, action, offset))
        return action

    def _come_short(self) -> None:
        """Notes that records are missing. To be called before the trace of that is removed."""
        if not self.short:
            self.note_missing()
            self.short = True

    # ---- 2: the segment files of this log

    def _admit_files(self) -> None:
        for base in sorted(self.bases):
            path = f"{self.folder}/{segment_name(base)}"
            file = self.files.open(path)
            try:
                size = file.size
                index = self.indexes.get(base)
                if index is None or index.segment_bytes != size:
                    # Perhaps not synced. After a failed sync, memory would even show bytes that the disk lacks.
                    file.forget_cache()
                header = read_segment_header(file.read(0, SEGMENT_HEADER_BYTES))
            finally:
                file.close()
            if header is None or header[:3] != (self.identity.topic_id, self.identity.partition, base):
                if size > SEGMENT_HEADER_BYTES:
                    self._come_short()
                finding = RecoveryFinding.NO_HEADER if header is None else RecoveryFinding.FOREIGN
                self._refuse(self._decide(finding, base), path)
            else:
                segment = Segment(self.files, self.folder, base, header.created_us)
                segment.size = size  # of the file, until the size of its whole batches is known
                if header.compacted_end:
                    self.compacted[base] = header.compacted_end
                self.segments.append(segment)
                self.touched.append(segment)

    def _refuse(self, action: Action, path: str) -> None:
        if action is Action.SET_ASIDE:
            target = path + REFUSED
            while self.files.exists(target):
                target += REFUSED
            self.files.rename(path, target)
        else:
            assert action is Action.REMOVE
            self.files.remove(path)
        self.unsynced = True

    # ---- 3: the segments in order

    def _walk_segments(self) -> int:
        """Returns the offset after the last whole batch."""
        found, self.segments = self.segments, []
        found = self._delete_outlived(found)
        expected = min(self.log_start, found[0].base_offset) if found else self.log_start
        for number, segment in enumerate(found):
            last = number == len(found) - 1
            if not self._joins(segment, expected):
                continue
            epochs = self._believe(segment, last=last)
            if epochs is None:
                epochs = self._examine(segment, None if last else found[number + 1].base_offset)
            self.segments.append(segment)
            for epoch, start in epochs:
                self.epochs.begin(epoch, start)
            expected = segment.next_offset
        return expected

    def _delete_outlived(self, found: list[Segment]) -> list[Segment]:
        """Removes segments whose offsets are all deleted, by the next one's base offset."""
        for base in [base for base, index in self.indexes.items() if index.next_offset <= self.log_start]:
            if base not in self.bases:  # a deletion was cut short between the two files of a segment
                self.files.remove(f"{self.folder}/{index_name(base)}")
        first = 0
        while first + 1 < len(found) and found[first + 1].base_offset <= self.log_start:
            self._remove(found[first])
            first += 1
        return found[first:]

    def _joins(self, segment: Segment, expected: int) -> bool:
        """Whether the segment continues the log; deletes it or sets it aside if not."""
        if self.cut_off:
            self._remove(segment)
            return False
        if segment.base_offset < min(expected, max(self._replaced_ends(), default=0)):
            self._remove(segment)  # a compaction was cut short after the new segment was put in place
            return False
        if segment.base_offset < expected:
            self._refuse(self._decide(RecoveryFinding.OVERLAP, segment.base_offset), segment.path)
            return False
        if segment.base_offset > expected:
            if self._decide(RecoveryFinding.GAP, expected) is Action.CUT:
                self._come_short()
                self._remove(segment)
                self.cut_off = True
                return False
            self._quarantine(expected, segment.base_offset)
        return True

    def _replaced_ends(self) -> list[int]:
        return [self.compacted[one.base_offset] for one in self.segments if one.base_offset in self.compacted]

    def _believe(self, segment: Segment, *, last: bool) -> list[Entry] | None:
        """Takes a segment as its index describes it, and returns its epochs; None if it has to be read."""
        header = self.indexes.get(segment.base_offset)
        if header is None or header.segment_bytes != segment.size or header.next_offset > self.synced_end:
            return None
        if last and (header.next_offset, header.segment_bytes) != (self.clean_end, self.clean_bytes):
            return None
        if header.next_offset > self.producers_offset:
            return None  # the producer table needs its batches
        epochs = self._read_epochs(segment, header)
        if epochs is None:
            return None
        if last:
            loaded = read_index(self.files.read_all(segment.index_path))
            if loaded is None:
                return None
            segment.index, segment.file = loaded[1], self.files.open(segment.path)
        segment.next_offset = header.next_offset
        segment.max_timestamp_us = header.max_timestamp_us
        segment.last_append_us = header.last_append_us
        segment.synced = segment.indexed = segment.sealed = not last
        return epochs

    def _read_epochs(self, segment: Segment, header: IndexHeader) -> list[Entry] | None:
        """The epochs of the index file, if the first batch agrees; of an index without epochs, those of the batch
        headers. None if either is wrong."""
        file = self.files.open(segment.path)
        try:
            if header.epochs is None:
                return stamps(file, SEGMENT_HEADER_BYTES, segment.size, segment.base_offset)
            return (
                list(header.epochs)
                if header.epochs[:1] == first_stamp(file, SEGMENT_HEADER_BYTES, segment.size, segment.base_offset)
                else None
            )
        finally:
            file.close()

    def _examine(self, segment: Segment, next_base: int | None) -> list[Entry]:
        """Reads the whole segment. `next_base` is the next one's base offset, None for the last one."""
        file_bytes = segment.size
        segment.size, segment.index = SEGMENT_HEADER_BYTES, Index()
        segment.file = file = self.files.open(segment.path)
        self.scanned_bytes += file_bytes
        for item in walk(file, SEGMENT_HEADER_BYTES, file_bytes, segment.base_offset):
            if isinstance(item, Found):
                header = item.header
                if isinstance(item.control, CompactionPlan):
                    self.plans.append((header.base_offset, header.leader_epoch, item.control))
                segment.note(header, item.position, header.base_offset, header.append_time_us, header.leader_epoch)
                if header.base_offset >= self.producers_offset:
                    self.producers.record(header, header.base_offset, header.append_time_us, item.control)
                continue
            if item.end is not None:
                finding = RecoveryFinding.BAD_THEN_GOOD
            elif item.first == next_base:
                break  # left-over bytes: the next segment begins exactly at this one's end
            else:
                finding = RecoveryFinding.BAD_TAIL if next_base is None else RecoveryFinding.BAD_TO_THE_END
            if self._decide(finding, item.first) is Action.CUT:
                torn = finding is RecoveryFinding.BAD_TAIL and unfinished(file, item.position, file_bytes, item.first)
                if not torn:
                    self._come_short()
                self.cut_bytes += file_bytes - item.position
                self.cut_off = True
                break
            if item.end is not None:
                self._quarantine(item.first, item.end)
        self._finish_examined(segment, file_bytes, last=next_base is None)
        return segment.index.epochs

    def _finish_examined(self, segment: Segment, file_bytes: int, *, last: bool) -> None:
        assert segment.file is not None
        ends_here = last or self.cut_off
        if ends_here and segment.next_offset >= self.synced_end:
            if segment.size < file_bytes:
                segment.file.truncate(segment.size)
        else:
            segment.seal()
        self.unsynced = True

    def _quarantine(self, first: int, end: int) -> None:
        assert first < end
        self.lost.append((first, end))

    def _remove(self, segment: Segment) -> None:
        for path in (segment.path, segment.index_path):
            if self.files.exists(path):
                self.files.remove(path)
        self.unsynced = True

    # ---- 5: writing to disk

    def _begin_segment(self, base: int) -> None:
        if self.segments and not self.segments[-1].sealed:
            self.segments[-1].seal()
        self.segments.append(create_segment(self.files, self.folder, self.identity, base, self.clock.wall_us()))
        self.touched.append(self.segments[-1])
        self.unsynced = True

    def _reopen(self, segment: Segment) -> None:
        """Makes the segment active again, as all later ones were refused, unless it ends in bytes to be kept."""
        segment.pin()
        file, _ = segment.warm_up()
        segment.unpin()
        if file.size > segment.size:
            if segment.next_offset > segment.base_offset:
                self._begin_segment(segment.next_offset)
                return
            file.truncate(segment.size)
        segment.sealed = segment.synced = segment.indexed = False
        self.unsynced = True

    def _settle(self, log_end: int, high_watermark: int, compaction: CompactionNotes, *, skip_sync: bool) -> None:
        """Syncs all segments that were read or changed, so that all served records are durable."""
        sealed = [segment for segment in self.segments if segment.sealed and not segment.synced]
        for segment in sealed:
            assert segment.file is not None
            segment.file.sync()
            segment.synced = True
        if self.unsynced:
            active = self.segments[-1].file
            assert active is not None
            active.sync()
            self.files.sync_folder(self.folder)
        if not skip_sync:
            try:
                replace_checkpoint(self.files, self.folder, Checkpoint(log_end, self.log_start, high_watermark))
            except OSError as error:
                # On a full disk the log can still be read: the old checkpoint has lower numbers, but no wrong ones.
                if error.errno not in NO_SPACE:
                    raise
                sealed = []  # their present index files may be all that proves the synced end
        with contextlib.suppress(OSError):  # derived; the next opening rebuilds them
            if self.plans:
                write_notes(self.files, self.folder, compaction)  # a segment with an index is not read for its plans
            for segment in sealed:
                segment.write_index()
        remove_clean_marker(self.files, self.folder)
