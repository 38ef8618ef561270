"""What compactions of a log mean for a table of its keys that is taken in offset by offset. Owned by a KeyView."""

from __future__ import annotations

from comet.records import CompactionPlan
from comet_broker.storage.log import Log


class CompactionWatch:
    def __init__(self, storage: Log) -> None:
        planned = storage.compaction.notes.planned
        self._log = storage
        self._plan_seen = -1 if planned is None else planned.offset
        self._replacements = storage.segments.replacements  # of segments by compacted ones, so far
        self._forgotten_end = 0  # below it the table has no tombstones

    def overtook(self, read_end: int) -> bool:
        """Whether a compaction, since the last call, may have removed what was not taken in yet and decides about what
        was: the tombstone of a key, or an expired record in the place of an older one."""
        planned = self._log.compaction.notes.planned
        if planned is None or planned.offset == self._plan_seen:
            return False
        self._plan_seen = planned.offset
        return planned.plan.clean_end > read_end

    def replaced(self) -> bool:
        """Whether segments were replaced since the last call: markers of transactions may be gone."""
        replacements = self._log.segments.replacements
        if replacements == self._replacements:
            return False
        self._replacements = replacements
        return True

    def removed(self, read_end: int, high_watermark: int) -> CompactionPlan | None:
        """The plan of a compaction that removes tombstones which the table still has."""
        planned = self._log.compaction.notes.planned
        if planned is None or planned.offset >= high_watermark:
            return None
        return planned.plan if self._forgotten_end < planned.plan.tombstones_end <= read_end else None

    def forget(self, plan: CompactionPlan) -> None:
        """The table has forgotten what the plan removes."""
        self._forgotten_end = plan.tombstones_end
