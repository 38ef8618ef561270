"""CommittedOffsets between admitted and written, and lag over time."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest

from comet_broker.coordination.admin import thinned
from comet_broker.coordination.committed_offsets import NONE, CommittedOffset, CommittedOffsets, StoredOffsets
from comet_broker.core.history import COARSE_POINTS, FINE_POINTS, MINUTE_S
from comet_broker.core.lag import SERIES_BYTES, Pace, Point, Series


def offsets() -> CommittedOffsets:
    made = CommittedOffsets()
    made.load("x", StoredOffsets("t", (5, NONE), (1, NONE)))
    return made


def test_what_is_told_is_written_and_what_fences_is_all_that_is_admitted() -> None:
    p = offsets()
    p.gather({"x": {0: CommittedOffset(7), 1: CommittedOffset(1)}})
    assert (p.get(("x", 0)), p.latest(("x", 0))) == (CommittedOffset(5, 1), CommittedOffset(7))
    flight = p.take_gathered()
    p.gather({"x": {0: CommittedOffset(9)}})
    assert p.latest(("x", 0)) == CommittedOffset(9) and p.get(("x", 1)) is None
    assert p.merged("x").offsets == (9, 1)
    p.finish_write(flight, written=True)
    assert p.get(("x", 0)) == CommittedOffset(7) and p.latest(("x", 0)) == CommittedOffset(9) and p.pending
    p.finish_write(p.take_gathered(), written=True)
    assert p.get(("x", 0)) == CommittedOffset(9) and not p.pending


def test_a_write_that_fails_leaves_what_others_have_admitted() -> None:
    p = offsets()
    first = p.start_write({"x": {0: CommittedOffset(6)}})
    second = p.start_write({"x": {0: CommittedOffset(8)}})
    p.finish_write(second, written=False)
    assert p.latest(("x", 0)) == CommittedOffset(6)
    p.finish_write(first, written=True)
    assert p.get(("x", 0)) == CommittedOffset(6) and not p.pending


def test_a_topic_that_is_deleted_does_not_come_back_with_a_late_write() -> None:
    p = offsets()
    flight = p.start_write({"x": {0: CommittedOffset(6)}})
    assert p.drop("x") and not p.drop("x")
    p.finish_write(flight, written=True)
    assert not p


def test_values_are_the_same_after_the_store() -> None:
    value = StoredOffsets.of("t", {2: CommittedOffset(5, 1), 0: CommittedOffset(0)})
    assert value.offsets == (0, NONE, 5)
    assert dict(StoredOffsets.decode(value.encode()).entries()) == {2: CommittedOffset(5, 1), 0: CommittedOffset(0)}


def point(second: int) -> Point:
    return Point(second * 1_000_000, second, second / 2, second, 2 * second)


def test_a_history_is_fine_at_the_end_and_coarse_before_and_bounded() -> None:
    series = Series()
    total = FINE_POINTS + (COARSE_POINTS + 100) * MINUTE_S
    for second in range(1, total + 1):
        series.add(second, *point(second)[1:])
    points = series.points()
    assert points[-FINE_POINTS:] == [point(second) for second in range(total - FINE_POINTS + 1, total + 1)]
    coarse = points[:-FINE_POINTS]
    assert coarse == [point(one.time_us // 1_000_000) for one in coarse]
    steps = {later.time_us - earlier.time_us for earlier, later in pairwise(coarse)}
    assert steps == {MINUTE_S * 1_000_000}
    assert len(coarse) == COARSE_POINTS
    rings = [ring for column in series._columns for ring in (column._fine, column._coarse)]
    assert all(isinstance(ring._values, array) for ring in rings)
    assert sum(ring._values.itemsize * len(ring._values) for ring in rings) == SERIES_BYTES


def test_a_history_has_no_point_where_nobody_looked() -> None:
    series = Series()
    for second in (100, 101, 105):
        series.add(second, *point(second)[1:])
    assert series.points() == [point(second) for second in (100, 101, 105)]
    series.add(103, *point(103)[1:])  # the clock was set back
    assert series.points() == [point(second) for second in (100, 101, 103)]


def test_the_pace_tells_how_long_it_takes() -> None:
    pace = Pace()
    assert pace.drain_s() == 0
    for second in range(21):
        pace.note(float(second), 1_000 - 10 * second)
    assert pace.drain_s() == pytest.approx(80.0)
    for second in range(21, 60):
        pace.note(float(second), 800)
    assert (pace.drain_s(), pace.growing()) == (None, False)
    for second in range(60, 65):
        pace.note(float(second), 900)
    assert (pace.drain_s(), pace.growing()) == (None, True)


def test_a_thinned_history_keeps_its_end() -> None:
    assert list(thinned(list(range(10)), 20)) == list(range(10))
    found = list(thinned(list(range(100)), 7))
    assert len(found) == 7 and found[-1] == 99 and found == sorted(found)
