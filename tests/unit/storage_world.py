"""A log to try things on, with a clock that is set by hand and few words for what one does to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from comet import records
from comet.errors import DataLoss
from comet.records import BatchHeader
from comet.settings.topic import TopicConfig
from comet_broker.core.epochs import EpochHistory
from comet_broker.ports import Files
from comet_broker.storage.compaction_notes import AppliedPlan
from comet_broker.storage.log import Appended, DeleteTicket, Log, LogIdentity
from comet_broker.storage.memory import MemoryFiles

FOLDER = "topics/one/0"
IDENTITY = LogIdentity(bytes(range(16)), 0)
SMALL_SEGMENTS = TopicConfig(segment_bytes=64 << 10, retention_ms=-1)
START_US = 1_900_000_000_000_000


@dataclass
class HandClock:
    """ports.Clock."""

    now_us: int = START_US

    def wall_us(self) -> int:
        return self.now_us

    def monotonic(self) -> float:
        return self.now_us / 1e6


def batch(
    values: Sequence[bytes | None],
    *,
    timestamps: int | Sequence[int] = 1,
    producer: tuple[int, int, int] = (0, 0, 0),
) -> tuple[BatchHeader, memoryview]:
    """An unstamped batch as a broker gets it; `producer` is id, epoch, base sequence."""
    number, epoch, sequence = producer
    parts = records.encode(
        values, timestamps=timestamps, producer_id=number, producer_epoch=epoch, base_sequence=sequence
    )
    data = memoryview(b"".join(parts))
    return records.verify(data, stamped=False), data


@dataclass
class World:
    """One log, its files and its clock."""

    files: Files = field(default_factory=lambda: MemoryFiles(Random(1)))
    config: TopicConfig = SMALL_SEGMENTS
    clock: HandClock = field(default_factory=HandClock)
    reports: int = 0  # of missing records

    def __post_init__(self) -> None:
        self.log = self.open()

    def open(self, *, closed_at: int = 0) -> Log:
        self.log = Log.open(
            self.files, FOLDER, IDENTITY, self.config, self.clock, self.note_missing, closed_at=closed_at
        )
        return self.log

    def note_missing(self) -> None:
        self.reports += 1

    def append(
        self,
        *values: bytes | None,
        timestamps: int | Sequence[int] = 1,
        producer: tuple[int, int, int] = (0, 0, 0),
        epoch: int = 1,
    ) -> Appended:
        header, data = batch(values, timestamps=timestamps, producer=producer)
        return self.log.append(header, data, epoch)

    def fill(self, segments: int, value_bytes: int = 3000) -> None:
        """Appends numbered values until so many segments are there."""
        while len(self.segment_names()) < segments:
            self.append(b"%08d" % self.log.log_end * (value_bytes // 8))

    def sync(self) -> None:
        sync(self.log)

    def segment_names(self) -> list[str]:
        return [name for name in self.files.list(FOLDER) if name.endswith(".log")]

    def path(self, name: str) -> str:
        return f"{FOLDER}/{name}"

    def values(self) -> dict[int, bytes | None]:
        return read_all(self.log)[0]


def nothing_missing() -> None:
    raise AssertionError("records are missing")


def sync(log: Log) -> None:
    ticket = log.durability.start_sync()
    if ticket is None:
        return
    error: OSError | None = None
    try:
        ticket.run()
    except OSError as caught:
        error = caught
    log.durability.finish_sync(ticket, error)


def delete_before(log: Log, offset: int) -> int:
    """Deletes all records below `offset`, durable when it returns. Returns the log start offset."""
    return _delete(log, log.deletion.start_delete(offset))


def apply_retention(log: Log, now_us: int) -> int:
    """Deletes expired segments. Returns the log start offset."""
    return _delete(log, log.deletion.start_retention(now_us))


def _delete(log: Log, ticket: DeleteTicket | None) -> int:
    if ticket is not None:
        error: OSError | None = None
        try:
            ticket.run()
        except OSError as caught:
            error = caught
        log.deletion.finish_delete(ticket, error)
        ticket.remove()
    return log.log_start


def read_from(log: Log, offset: int, *, size: int = 1 << 16, end: int | None = None) -> tuple[bytes, int]:
    """One read: its bytes and the offset after them."""
    extent = log.extent(offset, end)
    try:
        result = None
        while result is None or not result.size:
            buffer = memoryview(bytearray(size))
            result = extent.read(buffer, wait=False)
            if result is None:
                result = extent.read(buffer, wait=True)
            assert result is not None
            if not result.size:
                assert result.needed > size
                size = result.needed
        return bytes(buffer[: result.size]), result.next_offset
    finally:
        extent.release()


def stored(log: Log) -> list[tuple[BatchHeader, bytes]]:
    """Every batch that can be read, as it is stored."""
    found: list[tuple[BatchHeader, bytes]] = []
    offset = log.log_start
    while offset < log.log_end:
        try:
            data, offset = read_from(log, offset)
        except DataLoss as error:
            offset = int(error.details["end"])
            continue
        at = 0
        while at < len(data):
            header = records.verify(data, at, stamped=True)
            found.append((header, data[at : at + header.length]))
            at += header.length
    return found


def epochs_by_headers(log: Log) -> tuple[tuple[int, int], ...]:
    """What the log's history must be, but for where its first entry begins."""
    history = EpochHistory()
    for header, _ in stored(log):
        history.begin(header.leader_epoch, max(header.base_offset, log.log_start))
    return history.entries


def epochs_of(log: Log) -> tuple[tuple[int, int], ...]:
    return tuple(log.epochs.within(log.log_start, log.log_end))


def read_all(log: Log, *, size: int = 1 << 16) -> tuple[dict[int, bytes | None], list[tuple[int, int]]]:
    """Every record by its offset, and the ranges that the log says are lost."""
    found: dict[int, bytes | None] = {}
    lost: list[tuple[int, int]] = []
    offset = log.log_start
    while offset < log.log_end:
        try:
            data, following = read_from(log, offset, size=size)
        except DataLoss as error:
            first, end = int(error.details["first"]), int(error.details["end"])
            assert first <= offset < end
            lost.append((first, end))
            offset = end
            continue
        assert following > offset
        for one in records.iterate(data):
            for at, value in zip(one.offsets, one.values, strict=True):
                if at >= offset:
                    assert at not in found
                    found[at] = value
        offset = following
    return found, lost


def append_plan(log: Log, plan: records.CompactionPlan, epoch: int = 1) -> int:
    """Appends a plan as a leader does; returns its offset."""
    data = memoryview(records.encode_plan(plan))
    return log.append(records.verify(data, stamped=False), data, epoch).base_offset


def carry_out(log: Log, *, memory_bytes: int = 1 << 20, steps_max: int = 1 << 30) -> AppliedPlan | None:
    """Carries out the plan that is due, all of it; None if there is none, or after `steps_max` steps."""
    begun = log.compaction.begin(log.log_end, memory_bytes)
    if begun is None:
        sync(log)  # a segment was rolled
        begun = log.compaction.begin(log.log_end, memory_bytes)
    if begun is None:
        return None
    while (done := begun.step()) is not True:
        if not isinstance(done, bool):
            assert log.compaction.holds(done)
            log.compaction.prepare(done)
            log.compaction.swap_in(done)
            log.compaction.settle(done)
        steps_max -= 1
        if not steps_max:
            begun.release()
            return None
    applied = begun.applied()
    log.compaction.end(applied)
    log.compaction.write_notes()
    begun.release()
    return applied
