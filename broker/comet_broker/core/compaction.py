"""When a partition is compacted, and up to where: the decision of its leader. Pure.

A plan covers full segments whose records are committed, decided and on the leader's disk, and old enough. It is made
when the share of records that no plan has covered is large enough, when some of them are too old, or when tombstones
have been there for long enough. `rounds` of a plan has the plans before it: a tombstone counts as met by the first
plan that covers it, whichever replica leads by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from comet.records import ROUNDS_MAX, CompactionPlan, CompactionRound
from comet.settings.topic import NO_LIMIT, TopicConfig
from comet_broker.core.retention import SegmentFacts


class LastPlan(NamedTuple):
    """The last plan, as far as this replica has carried it out."""

    plan: CompactionPlan
    offset: int
    digest: int
    tombstones: int  # that stayed


def plan_compaction(
    segments: Sequence[SegmentFacts], config: TopicConfig, now_us: int, limit: int, last: LastPlan | None
) -> CompactionPlan | None:
    """The plan for the full segments below `limit`; None without a need.

    >>> old = [SegmentFacts(0, 100, bytes=10, last_append_us=0), SegmentFacts(100, 200, bytes=10, last_append_us=0)]
    >>> plan_compaction(old, TopicConfig(), now_us=9, limit=200, last=None).clean_end
    200
    """
    full = [one for one in segments if one.next_offset <= limit and one.base_offset < one.next_offset]
    while full and now_us - full[-1].last_append_us < config.min_compaction_lag_ms * 1000:
        full.pop()
    known = 0 if last is None else last.plan.clean_end
    clean_end = max(full[-1].next_offset if full else 0, known)
    tombstones_end = _tombstones_end(config, now_us, last)
    new = [one for one in full if one.next_offset > known]
    if not (
        _enough(full, new, config)
        or _too_old(new, config, now_us)
        or (last is not None and last.tombstones and tombstones_end > last.plan.tombstones_end)
    ):
        return None
    rounds = () if last is None else last.plan.rounds
    rounds = tuple(one for one in rounds if one.clean_end > tombstones_end)
    if clean_end > known:
        rounds = (*rounds, CompactionRound(clean_end, now_us))[-ROUNDS_MAX:]
    checked, digest = (-1, 0) if last is None else (last.offset, last.digest)
    return CompactionPlan(clean_end, now_us, tombstones_end, checked, digest, rounds)


def _enough(full: Sequence[SegmentFacts], new: Sequence[SegmentFacts], config: TopicConfig) -> bool:
    total = sum(one.bytes for one in full)
    return bool(new) and sum(one.bytes for one in new) * 100 >= total * config.min_dirty_percent


def _too_old(new: Sequence[SegmentFacts], config: TopicConfig, now_us: int) -> bool:
    most = config.max_compaction_lag_ms
    return most != NO_LIMIT and bool(new) and now_us - new[0].last_append_us >= most * 1000


def overdue_us(segments: Sequence[SegmentFacts], config: TopicConfig, now_us: int, clean_end: int) -> int:
    """How long the oldest full segment that no plan covers is older than `max_compaction_lag_ms`; 0: it is not.

    >>> old = [SegmentFacts(0, 100, bytes=10, last_append_us=0), SegmentFacts(100, 200, bytes=10, last_append_us=0)]
    >>> overdue_us(old, TopicConfig(max_compaction_lag_ms=1_000), now_us=5_000_000, clean_end=100)
    4000000
    """
    new = [one for one in segments if one.base_offset < one.next_offset and one.next_offset > clean_end]
    if not new or config.max_compaction_lag_ms == NO_LIMIT:
        return 0
    return max(now_us - new[0].last_append_us - config.max_compaction_lag_ms * 1000, 0)


def _tombstones_end(config: TopicConfig, now_us: int, last: LastPlan | None) -> int:
    """Below it, tombstones were met long enough ago."""
    if last is None:
        return 0
    met = [one.clean_end for one in last.plan.rounds if now_us - one.now_us >= config.delete_retention_ms * 1000]
    return max(last.plan.tombstones_end, *met) if met else last.plan.tombstones_end
