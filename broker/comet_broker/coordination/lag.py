"""The lag of the groups of a slot, measured every second.

The leaders are asked for all partitions with a committed offset, and for the time of the oldest uncommitted record
where that has moved. Of a share group they are asked for its floor; floors that they do not know are read from the
store now and then. The last values stay until there are new ones. Owned by `Groups`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from comet.errors import CometError, Timeout
from comet.v1 import coordination_pb2 as coordination
from comet_broker import limits
from comet_broker.coordination.context import SlotContext
from comet_broker.coordination.group import LiveGroup
from comet_broker.core.cluster import PartitionId
from comet_broker.core.group_members import CONSUMER
from comet_broker.core.group_record import Shape
from comet_broker.core.history import FINE_POINTS, Values, known, steps
from comet_broker.core.lag import Pace, Point, Series, added_up
from comet_broker.core.share_record import SHARES, ShareRecord
from comet_broker.failures import Guard, Kind
from comet_broker.metadata.store import MetadataStore, StoreUnavailable

MEASURED_AT_ONCE: Final = 200
FLOORS_S: Final = 10.0  # between two reads of share groups' floors in the store
TREND_STEP_S: Final = 30


@dataclass(slots=True)
class Behind:
    """The last measurement of one partition."""

    seen: bool = False  # its leader has answered at least once
    committed: int = 0
    log_start: int = 0
    end: int = 0
    acknowledged: int = 0  # of a share group: records beyond the first unacknowledged one
    oldest_at: int = -1  # the offset that `oldest_us` belongs to
    oldest_us: int = 0  # append time of the record there; 0: there is none
    pace: Pace = field(default_factory=Pace)

    @property
    def lag(self) -> int:
        """The lag in records, without deleted ones."""
        return max(0, self.end - max(self.committed, self.log_start) - self.acknowledged)

    def age_s(self, now_us: int) -> float:
        return max(0, now_us - self.oldest_us) / 1_000_000 if self.lag and self.oldest_us else 0.0


@dataclass(slots=True)
class GroupLagSnapshot:
    """The last measurement of a whole group."""

    lags: dict[str, int] = field(default_factory=dict)  # by topic id
    age_s: float = 0.0  # of the oldest record that is not committed
    pace: Pace = field(default_factory=Pace)

    @property
    def lag(self) -> int | None:
        """None if unknown."""
        return sum(self.lags.values()) if self.lags else None


class LagWatch:
    def __init__(self, groups: Iterable[LiveGroup], context: SlotContext) -> None:
        self._groups = groups
        self._context = context
        self._env = context.env
        self._logs = context.logs
        self._behind: dict[str, dict[PartitionId, Behind]] = {}  # by group
        self._series: dict[tuple[str, str], Series] = {}  # by group and topic id
        self._snapshots: dict[str, GroupLagSnapshot] = {}  # by group
        self._trends: dict[str, tuple[int, list[float | None]]] = {}  # with the step at its end
        self._measured_at = 0  # the second of the last measurement
        self._floors: dict[str, dict[PartitionId, int]] = {}  # of share groups, from the store
        self._floors_at = -FLOORS_S
        self._measuring: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._measuring is not None:
            self._measuring.cancel()

    def forget(self, group: str) -> None:
        self._behind.pop(group, None)
        self._snapshots.pop(group, None)
        self._floors.pop(group, None)
        self._trends.pop(group, None)
        for key in [key for key in self._series if key[0] == group]:
            del self._series[key]

    # ---- measuring

    def tick(self) -> None:
        """Starts a measurement at the start of a second of the wall clock, so that the brokers' values add up."""
        second = self._env.clock.wall_us() // 1_000_000
        if second == self._measured_at or (self._measuring is not None and not self._measuring.done()):
            return
        self._measured_at = second
        if any(map(_can_lag, self._groups)):
            self._measuring = self._env.tasks.spawn(self._measure_all(second), "measure the lag of groups")

    async def _measure_all(self, second: int) -> None:
        groups = list(filter(_can_lag, self._groups))
        await self._measure(groups)
        for group in groups:
            with self._guard(group):
                self._record(group, second)

    def _guard(self, group: LiveGroup) -> Guard:
        """Guards a step: an unknown lag does not stop the group."""
        return self._env.failures.guard(Kind.GROUP, group.name, "measuring its lag")

    async def measure(self, group: LiveGroup) -> dict[PartitionId, Behind]:
        """Measures now, for all partitions that have a committed offset or an owner."""
        await self._measure([group])
        return self._behind.get(group.name, {})

    async def _measure(self, groups: list[LiveGroup]) -> None:
        if any(group.machine.kind != CONSUMER and not group.machine.members for group in groups):
            await self._read_floors()  # partitions that no member names
        wanted: list[tuple[LiveGroup, PartitionId]] = []
        for group in groups:
            with self._guard(group):
                known = self._behind.setdefault(group.name, {})
                if group.machine.kind == CONSUMER:
                    tps = set(group.offsets.partitions()) | set(group.machine.owners)
                else:
                    tps = shared_partitions(self._logs.catalog(), group) | self._floors.get(group.name, {}).keys()
                for gone in known.keys() - tps:
                    del known[gone]
                wanted += [(group, tp) for tp in sorted(tps)]
        for first in range(0, len(wanted), MEASURED_AT_ONCE):
            await self._measure_partitions(wanted[first : first + MEASURED_AT_ONCE])

    async def _measure_partitions(self, wanted: list[tuple[LiveGroup, PartitionId]]) -> None:
        """Measures a few partitions, so that members do not wait."""
        queries: list[coordination.PartitionEndQuery] = []
        offsets: list[int] = []
        for group, tp in wanted:
            before = self._behind.get(group.name, {}).get(tp)
            query = coordination.PartitionEndQuery(topic_id=bytes.fromhex(tp[0]), partition=tp[1])
            if group.machine.kind == CONSUMER:
                entry = group.offsets.get(tp)
                offset = 0 if entry is None else entry.offset
            else:
                query.group = group.name
                offset = 0 if before is None else before.committed
            if before is None or before.oldest_at != offset or not before.oldest_us:
                query.offset = offset
            queries.append(query)
            offsets.append(offset)
        ends = await self._logs.fetch(queries)
        now = self._env.clock.monotonic()
        if any(
            query.group and not end.code and not end.HasField("floor") for query, end in zip(queries, ends, strict=True)
        ):
            await self._read_floors()
        for (group, tp), offset, query, end in zip(wanted, offsets, queries, ends, strict=True):
            known_group = self._behind.get(group.name)
            if known_group is None:
                continue  # the group was forgotten meanwhile
            behind = known_group.setdefault(tp, Behind())
            committed = self._floor(group, tp, end) if query.group else offset
            if end.code or committed is None:
                continue
            behind.seen = True
            behind.committed, behind.log_start, behind.end = committed, end.log_start, end.high_watermark
            behind.acknowledged = end.acknowledged
            if query.HasField("offset"):
                behind.oldest_at, behind.oldest_us = offset, end.append_time_us
            elif end.log_start > offset:
                behind.oldest_at = -1  # the oldest record has changed
            behind.pace.note(now, behind.lag)

    def _floor(self, group: LiveGroup, tp: PartitionId, end: coordination.PartitionEnd) -> int | None:
        """The floor of a share group; None if neither the leader nor the store has one."""
        return end.floor if end.HasField("floor") else self._floors.get(group.name, {}).get(tp)

    async def _read_floors(self) -> None:
        now = self._env.clock.monotonic()
        if now - self._floors_at < FLOORS_S:
            return
        self._floors_at = now
        try:
            self._floors = await stored_floors(self._context.store)
        except CometError:
            return  # retried at the next measurement

    # ---- the history

    def _record(self, group: LiveGroup, second: int) -> None:
        if group.name not in self._behind:
            return  # the group was forgotten meanwhile
        topics: dict[str, list[Behind]] = {}
        for (topic_id, _), behind in self._behind[group.name].items():
            if behind.seen:
                topics.setdefault(topic_id, []).append(behind)
        now_us = self._env.clock.wall_us()
        snapshot = self._snapshots.setdefault(group.name, GroupLagSnapshot())
        snapshot.lags, snapshot.age_s = {}, 0.0
        for topic_id, found in topics.items():
            lag = snapshot.lags[topic_id] = sum(behind.lag for behind in found)
            age_s = max(behind.age_s(now_us) for behind in found)
            snapshot.age_s = max(snapshot.age_s, age_s)
            series = self._series_of(group.name, topic_id)
            if series is not None:
                committed, end = sum(behind.committed for behind in found), sum(behind.end for behind in found)
                series.add(second, lag, age_s, committed, end)
        if snapshot.lag is not None:
            snapshot.pace.note(self._env.clock.monotonic(), snapshot.lag)

    def _series_of(self, group: str, topic_id: str) -> Series | None:
        """None at the limit."""
        series = self._series.get((group, topic_id))
        if series is not None or len(self._series) >= limits.SLOT_LAG_SERIES_MAX:
            return series
        if self._context.lag_series() < limits.LAG_SERIES_MAX:
            series = self._series[group, topic_id] = Series()
        return series

    @property
    def series_count(self) -> int:
        return len(self._series)

    @property
    def total(self) -> int:
        """The total of all groups."""
        return sum(snapshot.lag or 0 for snapshot in self._snapshots.values())

    def snapshot(self, group: LiveGroup) -> GroupLagSnapshot | None:
        return self._snapshots.get(group.name)

    def tracks(self, group: LiveGroup, step_s: int, since_us: int) -> list[tuple[str, str, int, Values]]:
        """Topic id, figure, end of the last step and values of each; without a topic, the sum of all."""
        found = [(topic_id, series) for (name, topic_id), series in self._series.items() if name == group.name]
        end = max((series.end for _, series in found), default=0)
        if not end:
            return []
        first, last = steps(end, step_s, since_us)
        tracks = [(topic_id, series.tracks(step_s, first, last)) for topic_id, series in found]
        end_us = last * step_s * 1_000_000
        lag = added_up([figures["lag"] for _, figures in tracks])
        return [("", "lag", end_us, lag)] + [
            (topic_id, figure, end_us, values) for topic_id, figures in tracks for figure, values in figures.items()
        ]

    def trend(self, group: LiveGroup) -> list[float | None]:
        """The lag over the last quarter of an hour, every TREND_STEP_S; None if unknown."""
        last = self._measured_at // TREND_STEP_S
        cached = self._trends.get(group.name)
        if cached is not None and cached[0] == last:
            return cached[1]
        first = last - FINE_POINTS // TREND_STEP_S + 1
        found = [series for (name, _), series in self._series.items() if name == group.name]
        if not found:
            return [None] * (last - first + 1)
        values = added_up([series.lag.read(TREND_STEP_S, first, last) for series in found])
        trend = [known(value) for value in values]
        self._trends[group.name] = last, trend
        return trend

    def statistics(self) -> list[dict[str, Any]]:
        """The last measurement, by group and topic."""
        now_us = self._env.clock.wall_us()
        found: dict[tuple[str, str], list[Behind]] = {}
        for group, tps in self._behind.items():
            for (topic_id, _), behind in tps.items():
                if behind.seen:
                    found.setdefault((group, topic_id), []).append(behind)
        names = {shape.topic_id: name for name, shape in self._logs.catalog().items()}
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
        """The points by topic id."""
        return [(topic_id, series.points()) for (name, topic_id), series in self._series.items() if name == group.name]


def _can_lag(group: LiveGroup) -> bool:
    """Whether the group has something to lag behind."""
    return bool(group.offsets.written) or group.machine.kind != CONSUMER


def shared_partitions(catalog: Mapping[str, Shape], group: LiveGroup) -> set[PartitionId]:
    """The partitions of its members' topics, and of topics whose records were acquired."""
    machine = group.machine
    acquired = [shape for shape in catalog.values() if shape.topic_id in machine.acquired]
    shapes = {*machine.shapes.values(), *acquired}
    return {(shape.topic_id, index) for shape in shapes for index in range(shape.partitions)}


async def stored_floors(store: MetadataStore) -> dict[str, dict[PartitionId, int]]:
    """The stored floors of all share groups, including those without members."""
    try:
        found = await store.range(SHARES)
    except StoreUnavailable as error:
        raise Timeout(f"the metadata store did not answer; try again: {error}") from error
    floors: dict[str, dict[PartitionId, int]] = {}
    for item in found.items:
        topic_id, index, name = item.key.removeprefix(SHARES).split("/")
        floors.setdefault(name, {})[topic_id, int(index)] = ShareRecord.decode(item.value).floor
    return floors
