"""When a closed market opens, on the wall clock of its schedule's zone. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from comet_web.components import numbers
from comet_web.facts import Opening, Schedule

WEEK: Final = timedelta(days=6)  # a weekday names one day


def opening_text(opening: Opening | None, time_us: int) -> str:
    """The time of the opening, or why there is none; empty if it was not looked up."""
    if opening is None:
        return ""
    if opening.problem:
        return "opening unknown"
    one = opening.schedule
    if one is None:
        return "no opening is scheduled"
    if one.waits_for:
        return f"the opening waits for calendar {one.waits_for}"
    if one.paused:
        return "the opening is paused"
    if one.next_us is None:
        return "no opening is scheduled"
    if one.next_us <= time_us:
        return "the opening is due"
    return f"opens {_wall(one, time_us)} {_city(one.zone)}"


def opening_title(opening: Opening | None) -> str:
    """The time of the opening in UTC, or the reason why it is not known."""
    if opening is None:
        return ""
    one = opening.schedule
    if one is None:
        return opening.problem
    return one.reason or ("" if one.next_us is None or one.paused else f"opens {numbers.moment_text(one.next_us)}")


def _wall(one: Schedule, time_us: int) -> str:
    """The time alone on the same day, with the weekday within a week, else with the date."""
    at = datetime.fromisoformat(one.next_local)
    today = datetime.fromtimestamp(time_us / 1e6, UTC).astimezone(at.tzinfo).date()
    if at.date() == today:
        return f"{at:%H:%M}"
    return f"{at:%a %H:%M}" if at.date() - today <= WEEK else f"{at:%Y-%m-%d %H:%M}"


def _city(zone: str) -> str:
    """New York, of America/New_York."""
    return zone.rpartition("/")[2].replace("_", " ")
