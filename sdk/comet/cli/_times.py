"""The next times of a schedule as a table: on the wall clock of its zone, in UTC and here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from comet.cli._output import note, print_table
from comet.units import count

if TYPE_CHECKING:
    from comet.admin.schedules import ScheduleInfo
    from comet.schedules.preview import SchedulePreview


def print_times(found: SchedulePreview) -> None:
    """Prints the times; on stderr why there are no more, and a warning about the calendar."""
    from datetime import datetime

    if found.times:
        print()
        rows = [
            (_day(one.local), one.local, one.utc, datetime.fromisoformat(one.utc).astimezone().isoformat())
            for one in found.times
        ]
        print_table(["day", found.zone, "UTC", "here"], rows)
    if found.end is not None:
        note(f"no more times: {found.end}")
    if found.warning:
        note(f"warning: {found.warning}")


def of_schedule(found: SchedulePreview, schedule: ScheduleInfo) -> SchedulePreview:
    """The times at which a stored schedule fires: until its end, and as often as it may."""
    times = found.times
    end = found.end
    if schedule.end_us and any(one.time_us > schedule.end_us for one in times):
        times = tuple(one for one in times if one.time_us <= schedule.end_us)
        end = "the schedule ends"
    left = schedule.fires_max - schedule.fired
    if schedule.fires_max and left < len(times):
        times, end = times[: max(left, 0)], f"the schedule ends after {count(schedule.fires_max, 'record')}"
    return replace(found, times=times, end=end)


def _day(local: str) -> str:
    from datetime import datetime

    return datetime.fromisoformat(local).strftime("%a")
