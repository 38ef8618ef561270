"""How far the groups of a slot are behind, looked at every second.

The leaders are asked for all partitions with a position, and for the time of the oldest record that is not committed
where that has moved. What they said last stays until they say something else. Owned by `Groups`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from comet.v1 import coordination_pb2 as coordination
from comet_broker import limits
from comet_broker.core.cluster import Place
from comet_broker.core.lag import Pace, Point, Series

if TYPE_CHECKING:
    from comet_broker.broker import Broker
    from comet_broker.coordination.group import LiveGroup
    from comet_broker.coordination.groups import Groups

LOOK_S: Final = 1.0
LOOK_PLACES: Final = 200


@dataclass(slots=True)
class Behind:
    """One partition, as it was seen last."""

    seen: bool = False  # its leader has said how far it reaches
    committed: int = 0
    log_start: int = 0
    end: int = 0
    oldest_at: int = -1  # the position that `oldest_us` belongs to
    oldest_us: int = 0  # when the record there was appended; 0: there is none
    pace: Pace = field(default_factory=Pace)

    @property
    def lag(self) -> int:
        """What the log has lost is not to be read any more."""
        return max(0, self.end - max(self.committed, self.log_start))

    def age_s(self, now_us: int) -> float:
        return max(0, now_us - self.oldest_us) / 1_000_000 if self.lag and self.oldest_us else 0.0


class LagWatch:
    def __init__(self, groups: Groups, broker: Broker) -> None:
        self._groups = groups
        self._broker = broker
        self._behind: dict[str, dict[Place, Behind]] = {}  # by group
        self._series: dict[tuple[str, str], Series] = {}  # by group and topic id
        self._next_look = 0.0
        self._looking: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    def forget(self, group: str) -> None:
        self._behind.pop(group, None)
        for key in [key for key in self._series if key[0] == group]:
            del self._series[key]

    # ---- looking

    def tick(self, now: float) -> None:
        if now < self._next_look or (self._looking is not None and not self._looking.done()):
            return
        self._next_look = now + LOOK_S
        if any(group.positions.written for group in self._groups):
            self._looking = self._broker.tasks.spawn(self._look_at_all(), "look at the lag of groups")

    async def _look_at_all(self) -> None:
        groups = [group for group in self._groups if group.positions.written]
        await self._look(groups)
        now_us = self._broker.clock.wall_us()
        for group in groups:
            self._record(group, now_us)

    async def look(self, group: LiveGroup) -> dict[Place, Behind]:
        """As it is now, of all partitions that are committed or owned."""
        await self._look([group])
        return self._behind.get(group.name, {})

    async def _look(self, groups: list[LiveGroup]) -> None:
        wanted: list[tuple[LiveGroup, Place]] = []
        for group in groups:
            known = self._behind.setdefault(group.name, {})
            places = set(group.positions.places()) | set(group.machine.owners)
            for gone in known.keys() - places:
                del known[gone]
            wanted += [(group, place) for place in sorted(places)]
        for first in range(0, len(wanted), LOOK_PLACES):
            await self._look_at(wanted[first : first + LOOK_PLACES])

    async def _look_at(self, wanted: list[tuple[LiveGroup, Place]]) -> None:
        """So few at once that members do not wait for it."""
        questions: list[coordination.AskedEnd] = []
        offsets: list[int] = []
        for group, place in wanted:
            mark = group.positions.get(place)
            offset = 0 if mark is None else mark.offset
            asked = coordination.AskedEnd(topic_id=bytes.fromhex(place[0]), partition=place[1])
            before = self._behind.get(group.name, {}).get(place)
            if before is None or before.oldest_at != offset or not before.oldest_us:
                asked.offset = offset
            questions.append(asked)
            offsets.append(offset)
        ends = await self._groups.logs.ask(questions)
        now = self._broker.clock.monotonic()
        for (group, place), offset, asked, end in zip(wanted, offsets, questions, ends, strict=True):
            known_group = self._behind.get(group.name)
            if known_group is None:
                continue  # it was forgotten meanwhile
            behind = known_group.setdefault(place, Behind())
            if end.code:
                continue
            behind.seen = True
            behind.committed, behind.log_start, behind.end = offset, end.log_start, end.high_watermark
            if asked.HasField("offset"):
                behind.oldest_at, behind.oldest_us = offset, end.append_time_us
            elif end.log_start > offset:
                behind.oldest_at = -1  # the oldest record is another one by now
            behind.pace.note(now, behind.lag)

    # ---- the history

    def _record(self, group: LiveGroup, now_us: int) -> None:
        topics: dict[str, list[Behind]] = {}
        for (topic_id, _), behind in self._behind.get(group.name, {}).items():
            if behind.seen:
                topics.setdefault(topic_id, []).append(behind)
        for topic_id, found in topics.items():
            series = self._series.get((group.name, topic_id))
            if series is None:
                if len(self._series) >= limits.SLOT_LAG_SERIES_MAX:
                    continue
                series = self._series[group.name, topic_id] = Series()
            series.add(
                Point(
                    time_us=now_us,
                    lag=sum(behind.lag for behind in found),
                    age_s=max(behind.age_s(now_us) for behind in found),
                    committed=sum(behind.committed for behind in found),
                    end=sum(behind.end for behind in found),
                )
            )

    def statistics(self) -> list[dict[str, Any]]:
        """As it was seen last, by group and topic."""
        now_us = self._broker.clock.wall_us()
        found: dict[tuple[str, str], list[Behind]] = {}
        for group, places in self._behind.items():
            for (topic_id, _), behind in places.items():
                if behind.seen:
                    found.setdefault((group, topic_id), []).append(behind)
        names = {shape.topic_id: name for name, shape in self._groups.logs.catalog().items()}
        return [
            {
                "group": group,
                "topic": names.get(topic_id, ""),
                "lag": sum(behind.lag for behind in each),
                "age_s": max(behind.age_s(now_us) for behind in each),
            }
            for (group, topic_id), each in found.items()
        ]

    def history(self, group: LiveGroup) -> list[tuple[str, list[Point]]]:
        """By topic id."""
        return [(topic_id, series.points()) for (name, topic_id), series in self._series.items() if name == group.name]
