"""Planted bugs of compaction: in what is removed, and in how a new segment takes the place of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from comet import records
from comet.records import Batch, BatchHeader, CompactionPlan
from comet.settings.topic import TopicConfig
from comet_broker.core import compaction as decisions
from comet_broker.core.compaction import LastPlan
from comet_broker.core.retention import SegmentFacts
from comet_broker.core.tail import Tail
from comet_broker.partitions import compaction as rounds
from comet_broker.partitions import log_reader
from comet_broker.partitions.filtering import FilteredDelivery
from comet_broker.partitions.follower_state import FollowerState
from comet_broker.storage import compaction as storage
from comet_broker.storage.compaction import Compaction
from comet_broker.storage.extent import Extent
from comet_broker.storage.rewrite import Rewriting, Rewritten, Work
from comet_broker.storage.segment import Segment
from tests.sim.cluster_profile import ClusterProfile
from tests.sim.planting import Mutant, Patch

COMPACTION_MUTANTS: Final[dict[str, Mutant]] = {}

Patches = Callable[[], list[Patch]]


def mutant(why: str, *faults: str, caught_by: int = 0) -> Callable[[Patches], Patches]:
    def register(patches: Patches) -> Patches:
        profile = ClusterProfile(faults=faults) if faults else ClusterProfile()
        COMPACTION_MUTANTS[patches.__name__] = Mutant("compaction", why, ("C29", "C5"), profile, patches, caught_by)
        return patches

    return register


@mutant(
    "a plan reaches beyond what is decided: records of a transaction that is aborted later become plain ones",
    caught_by=55,
)
def plan_above_the_stable_end() -> list[Patch]:
    real = decisions.plan_compaction

    def plan(
        segments: Sequence[SegmentFacts], config: TopicConfig, now_us: int, limit: int, last: LastPlan | None
    ) -> CompactionPlan | None:
        return real(segments, config, now_us, 1 << 62, last)

    return [(rounds, "plan_compaction", plan)]


@mutant("aborted records count", caught_by=27)
def keep_aborted_records() -> list[Patch]:
    def begin(work: Work) -> Rewriting:
        return Rewriting(work._replace(aborted=()))

    return [(storage, "Rewriting", begin)]


@mutant("the oldest segment is left out: what is superseded in it stays")
def leave_the_oldest_segment_out() -> list[Patch]:
    def groups(self: Rewriting) -> list[tuple[Segment, ...]]:
        return [tuple(self._work.sources[1:])] if len(self._work.sources) > 1 else []

    return [(Rewriting, "_groups", groups)]


@mutant("memory keeps the batches of the old form: a reader gets aborted records from there", caught_by=1029)
def keep_the_tail() -> list[Patch]:
    def drop_before(self: Tail, offset: int) -> None:
        pass

    return [(Tail, "drop_before", drop_before)]


@mutant("what is committed is not noted before batches are joined", "power_cut_all", caught_by=4)
def forget_what_is_committed() -> list[Patch]:
    def prepare(self: Compaction, rewritten: Rewritten) -> None:
        path = rewritten.sources[0].index_path
        if self._folder.files.exists(path):
            self._folder.files.remove(path)

    return [(Compaction, "prepare", prepare), (log_reader, "read_waiting", _read_waiting)]


@mutant(
    "a replica that was away copies what its leader has compacted onto its old records",
    "partition",
    "drain",
    "kill",
    caught_by=133,
)
def copy_on_from_where_it_ended() -> list[Patch]:
    def outdated(self: FollowerState, start: int, epoch: int, clean_end: int, rewrites: int) -> bool:
        return False

    return [(FollowerState, "outdated", outdated)]


def _read_waiting(extent: Extent, room: int, prefix_bytes: int = 0) -> tuple[memoryview, int, int]:
    """As it was before it knew of such batches."""
    buffer = memoryview(bytearray(prefix_bytes + max(room, 4 << 20)))
    result = extent.read(buffer[prefix_bytes:], wait=True)
    assert result is not None and result.size, "an extent is not empty"
    return buffer, result.size, result.next_offset


@mutant("a filter's gap reaches over the batch after it: its first record is not read")
def cover_too_much() -> list[Patch]:
    real = FilteredDelivery._pass_over

    def pass_over(self: FilteredDelivery, header: BatchHeader) -> None:
        real(self, header)
        first, end, *rest = self._gap or (0, 0, 0, 0)
        self._gap = (first, end + 1, *rest)  # type: ignore[assignment]

    return [(FilteredDelivery, "_pass_over", pass_over)]


@mutant("rows that a filter leaves of a transaction are plain records", caught_by=15)
def take_plain_rows() -> list[Patch]:
    def plain(batch: Batch, rows: Sequence[int]) -> bytes:
        left = records.decode(records.take(batch, rows))
        parts = records.encode(
            left.values, keys=left.keys, timestamps=1, offset_deltas=left.deltas, span=left.header.span
        )
        return records.stamped(parts, left.header.base_offset, left.header.append_time_us, left.header.leader_epoch)

    def add(self: FilteredDelivery, data: bytes) -> None:
        batch = records.decode(data)
        real(self, plain(batch, range(len(batch))) if batch.header.transactional else data)

    real = FilteredDelivery._add
    return [(FilteredDelivery, "_add", add)]
