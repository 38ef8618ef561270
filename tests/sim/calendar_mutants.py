"""Planted bugs of schedules by a calendar: in what a newer calendar changes, and in what happens where one ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from comet.v1 import schedules_pb2 as pb
from comet_broker.schedules import changes, firing, keeper
from comet_broker.schedules.changes import Fired
from comet_broker.schedules.keeper import Keeper
from tests.sim.cluster_profile import ClusterProfile
from tests.sim.planting import Mutant, Patch

CALENDAR_MUTANTS: Final[dict[str, Mutant]] = {}

Patches = Callable[[], list[Patch]]


def mutant(why: str, *faults: str, caught_by: int = 0) -> Callable[[Patches], Patches]:
    def register(patches: Patches) -> Patches:
        profile = ClusterProfile(faults=faults or None, fault_every_s=1.5 if faults else None)
        breaks = ("C39", "C41", "C42")
        CALENDAR_MUTANTS[patches.__name__] = Mutant("calendars", why, breaks, profile, patches, caught_by)
        return patches

    return register


@mutant("a newer calendar is not noticed", caught_by=1)
def do_not_renew() -> list[Patch]:
    def calendars_changed(self: Keeper) -> None:
        pass

    return [(Keeper, "calendars_changed", calendars_changed)]


@mutant("a schedule ends where its calendar does")
def end_with_the_calendar() -> list[Patch]:
    real = changes.fired

    def fired(schedule: pb.Schedule, now_us: int, calendars: Mapping[str, Any], records_max: int) -> Fired:
        done = real(schedule, now_us, calendars, records_max)
        over = done.after is not None and bool(done.after.waits_for)
        return Fired(done.records, None, done.skipped) if over else done

    return [(firing, "fired", fired)]


@mutant("a newer calendar gives a schedule its first time again", caught_by=1)
def begin_again() -> list[Patch]:
    real = changes.renewed

    def renewed(schedule: pb.Schedule, _now_us: int, calendars: Mapping[str, Any]) -> pb.Schedule | None:
        earlier = pb.Schedule()
        earlier.CopyFrom(schedule)
        earlier.fired_us = 0
        found = real(earlier, 0, calendars)
        if found is not None:
            found.fired_us = schedule.fired_us
        return found

    return [(keeper, "renewed", renewed)]
