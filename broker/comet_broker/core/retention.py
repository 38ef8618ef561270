"""Retention: a pure function that selects the expired segments of a log.

A topic may limit its age, its bytes and its number of records, in any combination; a segment expires as soon as one of
the limits is exceeded, oldest first, and never the last one, which is being written.

    age      counts from when the broker appended the segment's last batch, by the broker's own clock. Producers'
             timestamps do not count: one record dated into the next century would keep its segment and all after
             it for good, and a replay of last year's data would be deleted on arrival.
    bytes    at least this many of the newest bytes stay
    records  at least this many of the newest records stay

A clock that jumps ahead makes young segments look old, which no rule on time can detect; one that jumps back only keeps
them longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from comet.settings.topic import NO_LIMIT, CleanupPolicy, TopicConfig


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The properties of a segment that retention needs. Offsets are half-open."""

    base_offset: int
    next_offset: int
    bytes: int
    last_append_us: int


@dataclass(frozen=True, slots=True)
class Expired:
    """The records that retention deletes from the start of a log."""

    records: int = 0  # offsets
    bytes: int = 0


def is_old(age_us: int, config: TopicConfig) -> bool:
    """Whether a segment of this age is closed, so that retention can delete it, or compaction read it."""
    oldest_ms = config.segment_ms
    if config.compacts and config.max_compaction_lag_ms != NO_LIMIT:
        oldest_ms = min(oldest_ms, config.max_compaction_lag_ms)
    return age_us >= oldest_ms * 1000


def shortens(before: TopicConfig, after: TopicConfig) -> bool:
    """Whether retention may delete more with `after`: a limit is lower or new, or segments close earlier."""
    old = before.retention()
    lower = any(name not in old or limit < old[name] for name, limit in after.retention().items())
    return lower or after.segment_ms < before.segment_ms


def expired_segments(segments: Sequence[SegmentFacts], config: TopicConfig, now_us: int, log_start: int) -> int:
    """The number of leading segments to delete; the last one is never among them.

    >>> young = SegmentFacts(100, 200, bytes=10, last_append_us=9_000)
    >>> old = SegmentFacts(0, 100, bytes=10, last_append_us=1_000)
    >>> expired_segments([old, young, young], TopicConfig(retention_ms=5), now_us=10_000, log_start=0)
    1
    """
    if not segments:
        return 0
    assert all(one.next_offset <= two.base_offset for one, two in pairwise(segments))
    bytes_after = sum(segment.bytes for segment in segments)
    log_end = segments[-1].next_offset
    count = 0
    for segment, after in pairwise(segments):
        bytes_after -= segment.bytes
        deleted_already = after.base_offset <= log_start  # not so where the records between the two are damaged
        if not (deleted_already or _expired(segment, config, now_us, bytes_after, log_end - segment.next_offset)):
            break
        count += 1
    assert 0 <= count < len(segments)
    return count


def _expired(segment: SegmentFacts, config: TopicConfig, now_us: int, bytes_after: int, records_after: int) -> bool:
    """Whether one of the limits is met without this segment."""
    if config.cleanup_policy is CleanupPolicy.COMPACT:
        return False
    too_old = config.retention_ms != NO_LIMIT and now_us - segment.last_append_us > config.retention_ms * 1000
    too_many_bytes = config.retention_bytes != NO_LIMIT and bytes_after >= config.retention_bytes
    too_many_records = config.retention_records != NO_LIMIT and records_after >= config.retention_records
    return too_old or too_many_bytes or too_many_records
