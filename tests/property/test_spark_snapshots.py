"""A snapshot of a partition against its records: whatever is compacted, aborted or written while it is read.

Hypothesis draws a log of keys, tombstones, aborted and keyless records, and what happens between two answers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet import Fetched, RecordBatch, records
from comet.consumer.range_reader import Reader
from comet.errors import DataLoss, LimitExceeded
from comet.filters import parse
from comet.spark import snapshots
from comet.spark.options import SourceOptions
from comet.spark.planning import Range
from comet.spark.snapshots import KEY_BYTES, PartitionSnapshot
from comet.types import AtOffset
from tests.property.records_strategies import build, stamp

Row = tuple[int, bytes | None, bytes | None]  # offset, key, value


class Stored(NamedTuple):
    base: int
    end: int
    rows: tuple[Row, ...]
    aborted: bool = False


class Event(NamedTuple):
    """What happens before an answer."""

    share: float  # of the log, up to which it is compacted; 0: not
    tombstones: float  # of that, below which they go
    done: float  # of the round, oldest first
    more: int  # records that are written


@dataclass
class CompactedLog:
    """A partition, and a reader of it."""

    batches: list[Stored] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    clean_end: int = 0
    calls: int = 0
    most: tuple[int, ...] = (1 << 20,)  # records of an answer, in turn

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    def append(self, rows: list[tuple[bytes | None, bytes | None]], *, aborted: bool = False) -> None:
        base = self.end
        made = tuple((base + at, key, value) for at, (key, value) in enumerate(rows))
        self.batches.append(Stored(base, base + len(rows), made, aborted))

    def compact(self, clean_end: int, tombstones_end: int, done: float = 1) -> None:
        """As brokers do: whole batches up to an end, two of them in one; or the oldest of them, so far."""
        self.clean_end = max(self.clean_end, clean_end)
        below = [one for one in self.batches if one.end <= clean_end]
        last = {row[1]: row[0] for one in below if not one.aborted for row in one.rows}
        kept = [
            Stored(one.base, one.end, () if one.aborted else tuple(
                row for row in one.rows
                if row[1] is None or (last[row[1]] == row[0] and not (row[2] is None and row[0] < tombstones_end))
            ))
            for one in below
        ]  # fmt: skip
        pairs = [kept[at : at + 2] for at in range(0, len(kept), 2)]
        joined = [Stored(two[0].base, two[-1].end, sum((one.rows for one in two), ())) for two in pairs]
        replaced = round(done * len(pairs))
        self.batches[: sum(map(len, pairs[:replaced]))] = joined[:replaced]

    def snapshot(self, end: int) -> list[Row]:
        """What it holds below an end, now."""
        rows = [row for one in self.batches if not one.aborted for row in one.rows if row[0] < end]
        last = {row[1]: row[0] for row in rows}
        return [row for row in rows if row[1] is None or (last[row[1]] == row[0] and row[2] is not None)]

    async def fetch(
        self, topic: str, partition: int, start: AtOffset, *, records_max: int, filter_hint: str, **_: Any
    ) -> Fetched:
        self.calls += 1
        if self.events:
            event = self.events.pop(0)
            self.append([(b"%d" % (at % 8), b'{"n": 99}') for at in range(event.more)] or [(b"hot", b'{"n": 98}')])
            ends = [0, *(one.end for one in self.batches)]
            clean_end = ends[round(event.share * (len(ends) - 1))]
            if clean_end:
                self.compact(clean_end, round(event.tombstones * clean_end), event.done)
        at, left, found = (
            start.offset,
            min(records_max, self.most[self.calls % len(self.most)]),
            list[RecordBatch[bytes]](),
        )
        for one in self.batches:
            if one.end <= at or left <= 0:
                continue
            offsets = [row[0] for row in one.rows]
            skip = bisect_left(offsets, at)
            if not one.aborted and skip < len(offsets):
                upto = min(len(offsets), skip + left)
                found.append(RecordBatch("t", 0, _batch(one), skip=skip, end=upto))
                left -= upto - skip
                if upto < len(offsets):
                    at = offsets[upto - 1] + 1
                    break
            at = one.end
        if filter_hint:  # as a broker may
            chosen = parse(filter_hint, now_us=0)
            picked = [one.pick(chosen.rows(one)) for one in found]
            found = [one for one in picked if one is not None]
        return Fetched(found, start.offset, at, 1, 0, self.end, self.clean_end)

    def typed(self) -> Reader:
        return self  # type: ignore[return-value]


def _batch(one: Stored) -> records.Batch:
    offsets, keys, values = zip(*one.rows, strict=True)
    drawn = {
        "values": values, "keys": keys, "timestamps": 1,
        "offset_deltas": [at - one.base for at in offsets], "span": one.end - one.base,
    }  # fmt: skip
    return records.decode(stamp(build(drawn), one.base), stamped=True)


def read(log: CompactedLog, end: int, memory_bytes: int = 1 << 20, **options: Any) -> list[Row]:
    given = SourceOptions(topics=("t",), snapshot=True, **options)
    found = PartitionSnapshot(Range("t", 0, 0, end), given, log.typed(), memory_bytes)
    return [row for batch in found for row in zip(batch.offsets, batch.keys, batch.values, strict=True)]


KEYS = st.sampled_from([*(b"%d" % one for one in range(8)), b"hot", b"hot", b"", None])
VALUES = st.sampled_from([None, None, *(b'{"n": %d}' % one for one in range(6))])
ROWS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5)
EVENTS = st.lists(
    st.builds(
        Event,
        st.sampled_from([0, 0.3, 0.6, 0.6, 0.8, 1]),
        st.sampled_from([0, 0.5, 1]),
        st.sampled_from([1, 1, 0.5]),
        st.integers(0, 12),
    ),
    max_size=6,
)
FILTERS: dict[str, Callable[[Row], bool]] = {
    "": lambda row: True,
    "n >= 3": lambda row: row[2] is not None and int(row[2][6:-1]) >= 3,
    '@key = "hot" || n = 0': lambda row: row[1] == b"hot" or row[2] == b'{"n": 0}',
}
MEMORY = st.sampled_from([1 << 20, 1 << 20, 4 * KEY_BYTES, 1])


@st.composite
def logs(draw: st.DrawFn) -> CompactedLog:
    log = CompactedLog(most=draw(st.sampled_from([(1 << 20,), (4,), (1,), (1 << 20, 1, 1, 1), (1, 5)])))
    for rows in draw(st.lists(ROWS, min_size=1, max_size=12)):
        log.append(rows, aborted=draw(st.sampled_from([False, False, False, True])))
        if draw(st.sampled_from([False] * 7 + [True])):
            log.compact(log.end, round(draw(st.floats(0, 1)) * log.end))
    return log


@given(logs(), EVENTS, MEMORY, st.sampled_from(list(FILTERS)))
def test_it_is_the_last_record_of_each_key_below_its_end_or_an_error(
    log: CompactedLog, events: list[Event], memory_bytes: int, text: str
) -> None:
    end, log.events = log.end, events
    expected = [row for row in log.snapshot(end) if FILTERS[text](row)]
    for _ in range(2):  # a task is run again
        try:
            found = read(log, end, memory_bytes, filter=text)
        except DataLoss:
            assert log.clean_end > end, "without a reason"
        else:
            assert sorted(found) == expected
    log.events = []
    if log.clean_end > end:
        with pytest.raises(DataLoss, match=f"compacted up to {log.clean_end}, so that records below {end} may be gone"):
            read(log, end)


@given(logs(), st.floats(0, 1), MEMORY)
def test_an_earlier_end_gives_what_the_log_held_then(log: CompactedLog, share: float, memory_bytes: int) -> None:
    end = log.clean_end + round(share * (log.end - log.clean_end))
    assert sorted(read(log, end, memory_bytes)) == log.snapshot(end)


def test_keys_beyond_the_memory_are_read_in_passes_and_each_once() -> None:
    log = CompactedLog(most=(50,))
    for at in range(100):
        log.append([(b"%d" % (at * 7 % 90 + row), b"%d" % row) for row in range(10)])
    one_pass = read(log, log.end)
    calls, log.calls = log.calls, 0
    assert sorted(read(log, log.end, 30 * KEY_BYTES)) == sorted(one_pass) == log.snapshot(log.end)
    assert 3 * calls < log.calls < 20 * calls


def test_keys_that_no_number_of_passes_divides_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "hash", lambda key: 7, raising=False)
    log = CompactedLog()
    log.append([(b"a", b"1"), (b"b", b"2")])
    with pytest.raises(LimitExceeded, match="the keys of t/0 are too large for a snapshot"):
        read(log, log.end, 1)


def test_keys_whose_hashes_differ_in_the_last_bit_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "hash", lambda key: 1 << 62 if key == b"a" else 0, raising=False)
    log = CompactedLog()
    log.append([(b"a", b"1"), (b"b", b"2")])
    assert sorted(read(log, log.end, 1)) == log.snapshot(log.end)


def test_what_was_emitted_before_the_keys_were_divided_is_not_emitted_again() -> None:
    """The pass for the other half gets smaller parts, and is divided above the offset at which the first one was."""
    log = CompactedLog(most=(1 << 20, 1 << 20, *[1] * 1000))
    for _ in range(2):
        log.append([(b"%d" % at, b"1") for at in range(30)])
    found = read(log, log.end, 3 * KEY_BYTES)
    assert sorted(found) == log.snapshot(log.end)


def test_a_compaction_beyond_the_end_is_logged_once_where_losses_do_not_matter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = CompactedLog(most=(2,))
    for at in range(40):
        log.append([(b"%d" % (at % 20), b"%d" % at)])
    log.compact(40, 0)
    assert [row[0] for row in sorted(read(log, 30, fail_on_loss=False))] == [*range(20, 30)], "others are gone"
    assert log.calls > 3
    assert caplog.text.count("is compacted up to 40") == 1
