"""Summaries of the groups that this broker coordinates, for monitoring: state, lag and lag history."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from comet.v1 import admin_pb2 as pb
from comet_broker.coordination.group import LiveGroup
from comet_broker.coordination.groups import Groups
from comet_broker.coordination.slot import Slot
from comet_broker.core.group_members import CONSUMER

GROUPS_AT_ONCE: Final = 20


async def groups_here(slots: Iterable[Slot]) -> list[dict[str, Any]]:
    """One entry for each group; None where something is unknown."""
    found: list[dict[str, Any]] = []
    for slot in slots:
        for group in slot.groups:
            if group.exists or group.machine.members:
                found.append(_summary(slot.groups, group))
                if len(found) % GROUPS_AT_ONCE == 0:
                    await asyncio.sleep(0)
    return found


def _summary(groups: Groups, group: LiveGroup) -> dict[str, Any]:
    found = groups.lag.snapshot(group)
    seen = found if found is not None and found.lags else None
    return {
        "group": group.name,
        "kind": "consumer" if group.machine.kind == CONSUMER else "share",
        "state": state_of(group),
        "members": len(group.machine.members),
        "topics": topics_of(groups, group),
        "lag": None if seen is None else seen.lag,
        "lags": {} if seen is None else {name_of(groups, group, one): lag for one, lag in seen.lags.items()},
        "age_s": None if seen is None else seen.age_s,
        "drain_s": None if seen is None else seen.pace.drain_s(),
        "growing": None if seen is None else seen.pace.growing(),
        "last_commit_us": group.writer.last_commit_us or None,
        "trend": groups.lag.trend(group),
    }


def group_tracks(groups: Groups, group: LiveGroup, step_s: int, since_us: int) -> list[pb.HistoryTrack]:
    return [
        pb.HistoryTrack(
            topic=topic_id and name_of(groups, group, topic_id),
            group=group.name,
            figure=figure,
            step_s=step_s,
            end_us=end_us,
            values=values,
        )
        for topic_id, figure, end_us, values in groups.lag.tracks(group, step_s, since_us)
    ]


def state_of(group: LiveGroup) -> str:
    if not group.machine.members:
        return "empty"
    return "rebalancing" if group.machine.rebalancing else "stable"


def topics_of(groups: Groups, group: LiveGroup) -> list[str]:
    """The topics that it reads, or has read."""
    names = set(group.machine.shapes) | {name for name in group.offsets.names.values() if name}
    acquired = group.machine.acquired
    if acquired:
        names |= {name for name, shape in groups.logs.catalog().items() if shape.topic_id in acquired}
    return sorted(names)


def name_of(groups: Groups, group: LiveGroup, topic_id: str) -> str:
    return group.offsets.names.get(topic_id) or groups.topics.name_of(topic_id)
