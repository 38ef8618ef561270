"""Positions between admitted and written, and lag over time."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest

from comet_broker.coordination.admin import thinned
from comet_broker.coordination.positions import NONE, Mark, Positions, TopicPositions
from comet_broker.core.lag import COARSE_EVERY, COARSE_POINTS, FINE_POINTS, Pace, Point, Series


def positions() -> Positions:
    made = Positions()
    made.load("x", TopicPositions("t", (5, NONE), (1, NONE)))
    return made


def test_what_is_told_is_written_and_what_fences_is_all_that_is_admitted() -> None:
    p = positions()
    p.gather({"x": {0: Mark(7), 1: Mark(1)}})
    assert (p.get(("x", 0)), p.latest(("x", 0))) == (Mark(5, 1), Mark(7))
    flight = p.take_off()
    p.gather({"x": {0: Mark(9)}})
    assert p.latest(("x", 0)) == Mark(9) and p.get(("x", 1)) is None
    assert p.merged("x").offsets == (9, 1)
    p.land(flight, written=True)
    assert p.get(("x", 0)) == Mark(7) and p.latest(("x", 0)) == Mark(9) and p.pending
    p.land(p.take_off(), written=True)
    assert p.get(("x", 0)) == Mark(9) and not p.pending


def test_a_write_that_fails_leaves_what_others_have_admitted() -> None:
    p = positions()
    first = p.fly({"x": {0: Mark(6)}})
    second = p.fly({"x": {0: Mark(8)}})
    p.land(second, written=False)
    assert p.latest(("x", 0)) == Mark(6)
    p.land(first, written=True)
    assert p.get(("x", 0)) == Mark(6) and not p.pending


def test_a_topic_that_is_deleted_does_not_come_back_with_a_late_write() -> None:
    p = positions()
    flight = p.fly({"x": {0: Mark(6)}})
    assert p.drop("x") and not p.drop("x")
    p.land(flight, written=True)
    assert not p


def test_values_are_the_same_after_the_store() -> None:
    value = TopicPositions.of("t", {2: Mark(5, 1), 0: Mark(0)})
    assert value.offsets == (0, NONE, 5)
    assert dict(TopicPositions.decode(value.encode()).marks()) == {2: Mark(5, 1), 0: Mark(0)}


def point(second: int) -> Point:
    return Point(second * 1_000_000, second, second / 2, second, 2 * second)


def test_a_history_is_fine_at_the_end_and_coarse_before_and_bounded() -> None:
    series = Series()
    total = FINE_POINTS + COARSE_POINTS * COARSE_EVERY + 1_000
    for second in range(total):
        series.add(point(second))
    points = series.points()
    assert points[-FINE_POINTS:] == [point(second) for second in range(total - FINE_POINTS, total)]
    coarse = points[:-FINE_POINTS]
    steps = {later.time_us - earlier.time_us for earlier, later in pairwise(coarse)}
    assert steps == {COARSE_EVERY * 1_000_000}
    assert COARSE_POINTS - FINE_POINTS // COARSE_EVERY - 1 <= len(coarse) <= COARSE_POINTS
    held = [column for ring in (series._fine, series._coarse) for column in ring._columns]
    assert all(isinstance(column, array) for column in held)
    assert sum(column.itemsize * len(column) for column in held) < 64_000


def test_the_pace_tells_how_long_it_takes() -> None:
    pace = Pace()
    assert pace.drain_s() == 0
    for second in range(21):
        pace.note(float(second), 1_000 - 10 * second)
    assert pace.drain_s() == pytest.approx(80.0)
    for second in range(21, 60):
        pace.note(float(second), 800)
    assert pace.drain_s() is None


def test_a_thinned_history_keeps_its_end() -> None:
    assert list(thinned(list(range(10)), 20)) == list(range(10))
    found = list(thinned(list(range(100)), 7))
    assert len(found) == 7 and found[-1] == 99 and found == sorted(found)
