"""A topic as plain lists, read as `comet.Reader.fetch` reads brokers: the model that range readers are held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import strategies as st

import comet
from comet.consumer.options import Isolation
from comet.consumer.ranges import Fetched
from comet.errors import CorruptRecords, DataLoss, OffsetOutOfRange, TopicNotFound, Truncated
from comet.filters import parse
from comet.types import AtOffset, AtTime, Earliest, Latest, StartLike, position
from tests.unit.gateway_world import batch_of

Row = tuple[int, int, bytes]  # offset, time, value


FAULTS = {"corrupt": CorruptRecords, "lost": DataLoss}  # lost: damaged on the disk


class Stored(NamedTuple):
    """A batch: what kind it is, and its rows. Only those of "data" are to be read."""

    kind: str  # data, aborted, marker, corrupt, lost
    epoch: int
    base: int
    end: int
    rows: tuple[Row, ...]


@dataclass
class ListedPartition:
    """One partition."""

    index: int
    batches: list[Stored] = field(default_factory=list)
    log_start: int = 0
    open_from: int | None = None  # the first offset of an open transaction

    @property
    def log_end(self) -> int:
        return self.batches[-1].end if self.batches else self.log_start

    @property
    def readable_end(self) -> int:
        return self.log_end if self.open_from is None else min(self.open_from, self.log_end)

    @property
    def rows(self) -> list[Row]:
        """The records that can be read now, in order."""
        return [
            row
            for batch in self.batches
            if batch.kind == "data"
            for row in batch.rows
            if self.log_start <= row[0] < self.readable_end
        ]

    def unreadable(self, offset: int) -> bool:
        return any(batch.kind in FAULTS and batch.base <= offset < batch.end for batch in self.batches)

    def epoch_before(self, offset: int) -> int:
        return max((batch.epoch for batch in self.batches if batch.base < offset), default=0)

    def append(self, kind: str, epoch: int, rows: list[tuple[int, int]], text: str = "") -> None:
        """A batch at the end of the log; `rows` have holes before them, and times."""
        base = offset = self.log_end
        made: list[Row] = []
        for number, (hole, time) in enumerate(rows):
            offset += hole if number else 0
            made.append((offset, time, f"{text}{self.index}/{offset}/{epoch}".encode()))
            offset += 1
        self.batches.append(Stored(kind, epoch, base, offset, tuple(made)))

    def truncate(self, offset: int) -> None:
        """Truncates at the batch boundary at or before `offset`."""
        self.batches = [batch for batch in self.batches if batch.end <= offset]


class ListedTopic:
    """The topic. `events`: what happens before the call of that number."""

    def __init__(self, partitions: list[ListedPartition]) -> None:
        self.partitions = partitions
        self.id = bytes(16)
        self.calls = 0
        self.asked: list[tuple[int, int]] = []  # records_max and bytes_max of each call
        self.events: dict[int, Callable[[], None]] = {}

    async def fetch(
        self, topic: str, partition: int, start: StartLike, *, epoch: int | None, records_max: int, bytes_max: int,
        wait_ms: int, isolation: Isolation, topic_id: bytes, expired: bool = False, filter_hint: str = "",
    ) -> Fetched:  # fmt: skip
        assert isolation == "committed"
        assert records_max > 0
        assert bytes_max > 0
        self.calls += 1
        assert self.calls < 2_000, "it never ends"
        self.asked.append((records_max, bytes_max))
        event = self.events.pop(self.calls, None)
        if event is not None:
            event()
        if topic_id != self.id:
            raise TopicNotFound(f"topic {topic!r} was deleted and recreated")
        log = self.partitions[partition]
        at = self._resolved(log, position(start, now_us=0))
        if epoch is not None:
            cut = max((batch.end for batch in log.batches if batch.epoch <= epoch), default=log.log_start)
            if cut < at:
                raise Truncated("truncated", details={"log_end": str(cut), "log_start": str(log.log_start)})
        if not log.log_start <= at <= log.log_end:
            details = {"log_start": str(log.log_start), "log_end": str(log.log_end)}
            raise OffsetOutOfRange(f"offset {at} is out of range", details=details)
        batches, following = _read(log, at, records_max, bytes_max)
        runs: tuple[tuple[int, int], ...] = ()
        times: list[int] = []
        if filter_hint:
            following = min(following, at + records_max)
            below = [batch.before(following) for batch in batches]
            chosen = parse(filter_hint, now_us=0)
            busy = self.calls % 3 == 0  # without time for filters
            kept = [one if busy else one.pick(chosen.rows(one)) for one in below if one is not None]
            batches = [one for one in kept if one is not None]
            passed = [one for one in log.batches if one.end > at and one.base < following]
            runs = tuple((max(one.base, at), one.epoch) for one in passed)
            times = [row[1] for one in passed for row in one.rows]
        known = log.epoch_before(following) or None
        bounds = (min(times), max(times)) if times else None
        return Fetched(batches, at, following, known, log.log_start, log.readable_end, epochs=runs, times=bounds)

    @staticmethod
    def _resolved(log: ListedPartition, at: Any) -> int:
        match at:
            case AtOffset():
                return int(at.offset)
            case Earliest():
                return log.log_start
            case Latest():
                return log.readable_end
            case AtTime():
                rows = [row for batch in log.batches for row in batch.rows if row[0] >= log.log_start]
                return next((offset for offset, time, _ in rows if time >= at.timestamp_us), log.log_end)
        raise AssertionError(at)


def _read(log: ListedPartition, at: int, rows_left: int, bytes_left: int) -> tuple[list[comet.RecordBatch[bytes]], int]:
    """The batches from `at` on, with at least one record if there is one, and the offset after them."""
    found: list[comet.RecordBatch[bytes]] = []
    for batch in log.batches:
        if batch.end <= at or batch.base >= log.readable_end:
            continue
        if batch.kind in FAULTS:
            if found:
                return found, at
            first = batch.base if batch.kind == "lost" else max(batch.base, at)
            raise FAULTS[batch.kind](batch.kind, details={"first": str(first), "end": str(batch.end)})
        wanted = [row for row in batch.rows if row[0] >= at] if batch.kind == "data" else []
        taken = _fitting(wanted, rows_left, bytes_left, least=0 if found else 1)
        if taken:
            offsets, times, values = zip(*taken, strict=True)
            found.append(batch_of(log.index, offsets, values, epoch=batch.epoch, timestamps=times))
            rows_left, bytes_left = rows_left - len(taken), bytes_left - sum(map(len, values))
            at = offsets[-1] + 1
        if len(taken) < len(wanted):
            return found, at
        at = batch.end
        if rows_left <= 0:
            break
    return found, at


def _fitting(rows: list[Row], rows_left: int, bytes_left: int, *, least: int) -> list[Row]:
    taken: list[Row] = []
    for row in rows:
        if len(taken) >= least and (rows_left <= 0 or bytes_left < len(row[2])):
            break
        taken.append(row)
        rows_left, bytes_left = rows_left - 1, bytes_left - len(row[2])
    return taken


@st.composite
def partitions(draw: st.DrawFn, count_max: int = 1, *, faulty: bool = True) -> list[ListedPartition]:
    """Logs with aborted, corrupt and damaged batches, an open transaction at the end, holes, and times that go back."""
    found = []
    kinds = ["data", "data", "data", "data", "aborted", "marker", *(FAULTS if faulty else [])]
    for index in range(draw(st.integers(1, count_max))):
        log = ListedPartition(index, log_start=draw(st.integers(0, 5)))
        epoch = 1
        for _ in range(draw(st.integers(0, 7))):
            epoch += draw(st.sampled_from([0, 0, 1]))
            rows = draw(
                st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 3]), st.integers(0, 20)), min_size=1, max_size=6)
            )
            log.append(draw(st.sampled_from(kinds)), epoch, rows)
        if draw(st.booleans()) and log.batches:
            log.open_from = draw(st.sampled_from(log.batches)).base
        found.append(log)
    return found
