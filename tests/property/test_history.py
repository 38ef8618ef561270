"""A store of figures against a dictionary of what was put on it, while its clock stalls, jumps and is set back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet_broker import limits
from comet_broker.core.history import (
    COARSE_POINTS,
    FINE_POINTS,
    FINE_STORED,
    MINUTE_S,
    Reduce,
    minute_of,
    percentile_ms,
)
from comet_broker.core.metrics_store import FLOWS, GAUGES, TOPIC_FLOWS, MetricsStore
from comet_broker.metrics.histogram import Durations

START = 1_767_225_600
TOPICS = ["a", "b", "c"]
STEPS = [1, 7, 15, 59, 60, 300, 3_600]


class Oracle:
    """Every second by itself; a dumb one: what is asked is added up anew each time."""

    def __init__(self) -> None:
        self.seconds: dict[int, tuple[float, dict[str, float]]] = {}
        self.end = 0

    def put(self, second: int, value: float, topics: dict[str, float]) -> None:
        if second <= self.end:
            # Of the minute it is set back to, only what is known by the second can be kept.
            oldest = self.end - FINE_STORED
            self.seconds = {
                one: known
                for one, known in self.seconds.items()
                if one < second and (minute_of(one) < minute_of(second) or one > oldest)
            }
        self.seconds[second] = value, topics
        self.end = second

    def ranges(self, step_s: int, since_s: int) -> list[list[int]]:
        """The seconds of each step that is told."""
        last = self.end // step_s
        points = FINE_POINTS // step_s if step_s < MINUTE_S else COARSE_POINTS * MINUTE_S // step_s
        first = max(last - points + 1, since_s // step_s + 1)
        return [list(range(step * step_s - step_s + 1, step * step_s + 1)) for step in range(first, last + 1)]

    def flow(self, step_s: int, since_s: int, topic: str) -> list[float]:
        found = []
        for seconds in self.ranges(step_s, since_s):
            seen = [self.seconds[one] for one in seconds if one in self.seconds]
            counted = [topics.get(topic, 0.0) if topic else value for value, topics in seen]
            found.append(sum(counted) / len(seen) if seen else math.nan)
        return found

    def gauge(self, step_s: int, since_s: int, how: Reduce) -> list[float]:
        found = []
        for seconds in self.ranges(step_s, since_s):
            values = [self.seconds[one][0] if one in self.seconds else math.nan for one in seconds]
            if step_s >= MINUTE_S:
                minutes = range(0, len(values), MINUTE_S)
                values = [_reduced(values[at : at + MINUTE_S], how) for at in minutes]
            found.append(_reduced(values, how))
        return found


def _reduced(values: Sequence[float], how: Reduce) -> float:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan
    return {Reduce.MEAN: sum(known) / len(known), Reduce.MAX: max(known), Reduce.LAST: known[-1]}[how]


def put(store: MetricsStore, oracle: Oracle, second: int, value: float, topics: dict[str, float]) -> None:
    store.begin(second)
    for topic, moved in topics.items():
        store.move(second, topic, [moved * (n + 1) for n in range(len(TOPIC_FLOWS))])
    store.tick(second, dict.fromkeys(FLOWS, value), dict.fromkeys(GAUGES, value))
    oracle.put(second, value, topics)


def check(store: MetricsStore, oracle: Oracle, step_s: int, since_s: int) -> None:
    tracks = list(store.tracks(step_s, since_s * 1_000_000, TOPICS))
    assert len(tracks) == len(FLOWS) + len(GAUGES) + len(TOPICS) * len(TOPIC_FLOWS)
    for track in tracks:
        assert (track.step_s, track.end_us) == (step_s, oracle.end // step_s * step_s * 1_000_000)
        if track.topic:
            times = TOPIC_FLOWS.index(track.figure) + 1
            wanted = [value * times for value in oracle.flow(step_s, since_s, track.topic)]
        elif track.figure in FLOWS:
            wanted = oracle.flow(step_s, since_s, "")
        else:
            wanted = oracle.gauge(step_s, since_s, GAUGES[track.figure])
        assert list(track.values) == pytest.approx(wanted, rel=1e-5, abs=1e-6, nan_ok=True), track.figure


AHEAD = st.one_of(
    st.just(1), st.just(1), st.just(1), st.integers(-130, 130), st.integers(-4_000, 4_000), st.integers(-(10**6), 10**6)
)
NUMBERS = st.floats(0, 1e6, width=32)
TICKS = st.lists(
    st.tuples(AHEAD, st.integers(1, 80), NUMBERS, st.dictionaries(st.sampled_from(TOPICS), NUMBERS)), max_size=12
)


@settings(deadline=None, max_examples=30)
@given(ticks=TICKS, step_s=st.sampled_from(STEPS), since_s=st.one_of(st.just(0), st.integers(START, START + 5_000)))
def test_it_shows_what_was_put_on_it(
    ticks: list[tuple[int, int, float, dict[str, float]]], step_s: int, since_s: int
) -> None:
    store, oracle = MetricsStore(), Oracle()
    second = START
    for ahead, times, value, topics in ticks:
        second += ahead
        for number in range(times):
            moving = topics if number % 3 == 0 else {}
            put(store, oracle, second, value + number, moving)
            second += 1
    if oracle.end:
        check(store, oracle, step_s, since_s)


def test_a_day_is_there_and_no_more() -> None:
    store, oracle = MetricsStore(), Oracle()
    for second in range(START, START + 25 * 3_600):
        if second % 600 < 40:  # it stands still most of the time
            put(store, oracle, second, second % 100, {"a": 1.0} if second % 7 < 3 else {})
    for step_s in STEPS:
        check(store, oracle, step_s, 0)


def test_what_was_there_before_does_not_fill_a_gap() -> None:
    store, oracle = MetricsStore(), Oracle()
    for second in range(START, START + 3_000):
        if second % 700 < 600:  # gaps begin where a quarter of an hour ago there was none
            put(store, oracle, second, second % 100, {"a": 1.0} if second % 7 < 3 else {})
    check(store, oracle, 1, 0)
    check(store, oracle, 15, 0)


def test_a_gauge_that_saw_nothing_says_so() -> None:
    store = MetricsStore()
    nothing = dict.fromkeys(GAUGES, math.nan)
    store.tick(START, dict.fromkeys(FLOWS, 0.0), nothing)
    assert math.isnan(store.last("cpu"))
    assert store.rates() == dict.fromkeys(FLOWS, 0.0)


def test_rates_are_of_the_seconds_that_were_looked_at() -> None:
    store, oracle = MetricsStore(), Oracle()
    assert all(math.isnan(rate) for rate in store.rates().values())
    for second in (START, START + 1, START + 5, START + 6):
        put(store, oracle, second, 4.0, {"a": 8.0} if second == START + 6 else {})
    assert store.rates()["records_in"] == 4.0
    assert store.topic_rates("a") == (2.0, 4.0, 6.0, 8.0)
    assert store.topic_rates("unknown") == (0.0, 0.0, 0.0, 0.0)
    put(store, oracle, START + 30, 1.0, {})
    assert store.rates()["records_in"] == 1.0
    assert store.topic_rates("a")[0] == 0.0


def test_a_topic_more_takes_the_place_of_the_stillest() -> None:
    store = MetricsStore()
    names = [f"t{number}" for number in range(limits.TOPIC_SERIES_MAX)]

    def tick(second: int, topics: Sequence[str]) -> None:
        store.begin(second)
        for topic in topics:
            store.move(second, topic, [1.0] * len(TOPIC_FLOWS))
        store.tick(second, dict.fromkeys(FLOWS, 0.0), dict.fromkeys(GAUGES, 0.0))

    tick(START, names)
    tick(START + 1, ["late"])
    assert "late" not in store.topics, "all of them are busy"
    tick(START + 10, names[1:])
    tick(START + MINUTE_S, ["late"])
    assert set(store.topics) == {*names[1:], "late"}
    store.forget("late")
    assert store.topic_rates("late")[0] == 0.0


@settings(deadline=None)
@given(st.lists(st.integers(0, 1 << 26), min_size=1, max_size=300), st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_lies_in_the_bucket_of_the_real_one(took_us: list[int], share: float) -> None:
    durations = Durations()
    for one in took_us:
        durations.note(one)
    real = sorted(took_us)[max(0, math.ceil(share * len(took_us)) - 1)]
    power = min(real.bit_length(), len(durations.counts) - 1)
    found = percentile_ms(durations.counts, share) * 1000
    assert (1 << power) >> 1 <= found <= 1 << power
    assert percentile_ms([0] * 26, share) != percentile_ms([0] * 26, share), "of nothing there is none"
