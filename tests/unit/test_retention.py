"""Which segments are deleted: each limit alone, all together, and clocks and times that lie."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from comet.settings.topic import NO_LIMIT, TopicConfig
from comet_broker.core.retention import SegmentFacts, expired_segments

HOUR_US = 3600 * 1_000_000
NOTHING = TopicConfig(retention_ms=NO_LIMIT, retention_bytes=NO_LIMIT, retention_records=NO_LIMIT)

# Four segments of 100 records and 1,000 bytes, appended at hours 1, 2, 3 and 4.
LOG = [SegmentFacts(100 * n, 100 * n + 100, 1000, (n + 1) * HOUR_US) for n in range(4)]


def expired(config: TopicConfig, *, now_us: int = 4 * HOUR_US, log_start: int = 0) -> int:
    return expired_segments(LOG, config, now_us, log_start)


def test_without_limits_all_is_kept() -> None:
    assert expired(NOTHING, now_us=10**18) == 0


def test_by_age_since_the_last_append() -> None:
    config = replace(NOTHING, retention_ms=2 * 3600 * 1000)
    assert expired(config) == 1
    assert expired(config, now_us=3 * HOUR_US) == 0
    assert expired(config, now_us=3 * HOUR_US + 1) == 1


def test_the_last_segment_stays_however_old() -> None:
    assert expired(replace(NOTHING, retention_ms=0), now_us=10**18) == 3
    assert expired_segments(LOG[:1], replace(NOTHING, retention_ms=0), 10**18, 0) == 0
    assert expired_segments([], NOTHING, 0, 0) == 0


def test_by_bytes_at_least_the_limit_is_kept() -> None:
    assert expired(replace(NOTHING, retention_bytes=4000)) == 0
    assert expired(replace(NOTHING, retention_bytes=3001)) == 0
    assert expired(replace(NOTHING, retention_bytes=3000)) == 1
    assert expired(replace(NOTHING, retention_bytes=0)) == 3


def test_by_events_at_least_the_limit_is_kept() -> None:
    assert expired(replace(NOTHING, retention_records=301)) == 0
    assert expired(replace(NOTHING, retention_records=300)) == 1
    assert expired(replace(NOTHING, retention_records=1)) == 3


def test_one_limit_is_enough() -> None:
    assert expired(replace(NOTHING, retention_records=400, retention_bytes=2000)) == 2
    assert expired(replace(NOTHING, retention_ms=3600 * 1000, retention_bytes=3000)) == 2


def test_segments_below_the_start_of_the_log_go_in_any_case() -> None:
    assert expired(NOTHING, log_start=200) == 2
    assert expired(NOTHING, log_start=199) == 1
    assert expired(NOTHING, log_start=400) == 3


def test_a_segment_is_kept_while_an_older_one_is() -> None:
    """A clock that once ran ahead must not make a hole."""
    ahead = [replace(LOG[0], last_append_us=100 * HOUR_US), *LOG[1:]]
    assert expired_segments(ahead, replace(NOTHING, retention_ms=1), 5 * HOUR_US, 0) == 0


def test_a_clock_that_jumps_back_deletes_nothing() -> None:
    assert expired(replace(NOTHING, retention_ms=1), now_us=-(10**15)) == 0


@st.composite
def logs(draw: st.DrawFn) -> list[SegmentFacts]:
    found, offset = [], draw(st.integers(0, 50))
    for _ in range(draw(st.integers(1, 8))):
        count = draw(st.integers(0, 20))
        found.append(
            SegmentFacts(
                offset, offset + count, draw(st.integers(64, 500)), draw(st.integers(-(1 << 63), (1 << 63) - 1))
            )
        )
        offset += count + draw(st.sampled_from([0, 0, 5]))
    return found


LIMIT = st.one_of(st.just(NO_LIMIT), st.integers(0, 2000))


@given(logs(), LIMIT, LIMIT, LIMIT, st.integers(-(1 << 62), 1 << 62), st.integers(0, 200))
def test_what_must_always_hold(
    log: list[SegmentFacts], age_ms: int, size: int, events: int, now_us: int, log_start: int
) -> None:
    config = TopicConfig(retention_ms=age_ms, retention_bytes=size, retention_records=events)
    count = expired_segments(log, config, now_us, log_start)
    gone, kept = log[:count], log[count:]
    assert kept
    if any(segment.next_offset > log_start for segment in gone) and age_ms == NO_LIMIT:
        # Somebody may rely on the newest bytes and events; the least that was promised must be there.
        enough_bytes = size != NO_LIMIT and sum(segment.bytes for segment in kept) >= size
        enough_events = events != NO_LIMIT and kept[-1].next_offset - gone[-1].next_offset >= events
        assert enough_bytes or enough_events
    # Nothing that remains could go: deciding again changes nothing.
    assert expired_segments(kept, config, now_us, log_start) == 0


def test_a_segment_whose_records_are_all_damaged_is_not_taken_for_a_deleted_one() -> None:
    """The log would begin behind them, and every follower delete what it has of them."""
    empty = SegmentFacts(0, 0, bytes=64, last_append_us=0)
    written = SegmentFacts(15, 20, bytes=500, last_append_us=0)
    config = TopicConfig(retention_ms=-1)
    assert expired_segments([empty, written], config, now_us=1_000, log_start=0) == 0
    assert expired_segments([empty, written], config, now_us=1_000, log_start=14) == 0
    assert expired_segments([empty, written], config, now_us=1_000, log_start=15) == 1
