"""The page of one schedule: its state, its next times, its settings and the record that it writes. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from urllib.parse import urlencode

from comet_web.components import numbers
from comet_web.document import DASH, Cell, Column, Document, Row, Table
from comet_web.facts import Schedule, ScheduleDetail, ScheduleTime
from comet_web.page_request import PageRequest, path
from comet_web.views.records import TEXT_CHARACTERS, line
from comet_web.views.schedules import due, next_wall, state

ID_HEADER: Final = "comet-schedule-id"  # of the records that a schedule has written
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_LATE: Final = {
    "fire": "fire: the first missed time, however late",
    "fire_last": "fire_last: the last missed time, for all of them",
    "fire_all": "fire_all: each missed time, the first 1,000",
    "skip": "skip: no time that is too late",
}
TIMES: Final = (
    Column("local", "Time", sortable=False),
    Column("utc", "UTC", sortable=False),
    Column("in", "Due", sortable=False, wide=False),
)
HEADERS: Final = (
    Column("name", "Header", sortable=False),
    Column("value", "Value", sortable=False, wide=False),
)


def view(facts: ScheduleDetail, request: PageRequest) -> Document:
    one = facts.schedule
    times = tuple(_time(time, request.now_us) for time in facts.times)
    headers = tuple(
        Row(f"{at}", (line(name.encode(errors="replace"), TEXT_CHARACTERS), line(value, TEXT_CHARACTERS)))
        for at, (name, value) in enumerate(facts.headers)
    )
    return Document(
        time_us=facts.time_us,
        title=one.id,
        fields={
            **_state(one, request.now_us),
            **_settings(one),
            **_record(facts),
            "notice": Cell(_notice(one)),
            "warning": Cell(facts.warning),
            "end": Cell(_end(facts)),
        },
        tables={
            "times": Table("times", TIMES, times, total=len(times), matched=len(times)),
            "headers": Table("headers", HEADERS, headers, total=len(headers), matched=len(headers)),
        },
    )


def _state(one: Schedule, now_us: int) -> dict[str, Cell]:
    records = f"{path('topics', one.topic, 'records')}?{urlencode({'header': f'{ID_HEADER}: {one.id}'})}"
    return {
        "topic": Cell(one.topic, href=path("topics", one.topic)),
        "paused": Cell("yes" if one.paused else ""),
        "revision": Cell(str(one.revision), one.revision),
        "state": state(one),
        "next": next_wall(one, now_us),
        "in": due(one, now_us),
        "fired": numbers.count(one.fired),
        "skipped": numbers.count(one.skipped, tone="warn" if one.skipped else ""),
        "last": numbers.ago(one.fired_us, now_us),
        "records": Cell("Records that it wrote", href=records) if one.fired else Cell(""),
    }


def _settings(one: Schedule) -> dict[str, Cell]:
    return {
        "spec": Cell(one.spec),
        "zone": Cell(f"{one.zone}, tzdata {one.tzdata}" if one.tzdata else one.zone),
        "late": Cell(_late(one)),
        "jitter": Cell(f"up to {_milliseconds(one.jitter_ms)}") if one.jitter_ms else Cell("none", tone="muted"),
        "ends": Cell(_ends(one), tone="" if one.end_us or one.fires_max else "muted"),
        "author": Cell(one.author or DASH),
        "created": numbers.moment(one.created_us),
    }


def _late(one: Schedule) -> str:
    if one.late == "skip" and one.late_max_ms:
        return f"skip: no time that is later than {_milliseconds(one.late_max_ms)}"
    usual = "fire" if one.spec.startswith("at ") else "fire_last"
    return _LATE.get(one.late or usual, one.late)


def _milliseconds(value: int) -> str:
    return numbers.exact_text(str(value), "ms")


def _ends(one: Schedule) -> str:
    parts = [f"after {numbers.counted(one.fires_max, 'record')}"] if one.fires_max else []
    if one.end_us:
        parts.append(f"at {numbers.moment_text(one.end_us)}")
    return ", or ".join(parts) or "never"


def _record(facts: ScheduleDetail) -> dict[str, Cell]:
    if facts.encrypted:
        value = Cell(f"encrypted with key {facts.encrypted}", tone="muted", title="only clients have the key")
    elif facts.value is None:
        value = Cell("tombstone", tone="muted", title="no value: deletes the key")
    else:
        value = line(facts.value, TEXT_CHARACTERS)
    return {
        "key": Cell("none", tone="muted") if facts.key is None else line(facts.key, TEXT_CHARACTERS),
        "value": value,
        "size": numbers.size(facts.size),
        "partition": Cell("by the key", tone="muted") if facts.partition is None else Cell(str(facts.partition)),
        "ttl": Cell(_lifetime(facts.ttl_ms), tone="muted" if facts.ttl_ms is None else ""),
    }


def _lifetime(ttl_ms: int | None) -> str:
    if ttl_ms is None:
        return "as the topic says"
    return "they do not expire" if ttl_ms < 0 else _milliseconds(ttl_ms)


def _time(one: ScheduleTime, now_us: int) -> Row:
    return Row(
        key=str(one.time_us),
        cells=(
            Cell(local_text(one.local), one.time_us),
            Cell(numbers.moment_text(one.time_us).removesuffix(" UTC").removesuffix(".000"), one.time_us),
            numbers.until(one.time_us, now_us),
        ),
    )


def local_text(local: str) -> str:
    """A time on a wall clock for people: Fri 2026-11-27 13:00:00 -05:00."""
    time = datetime.fromisoformat(local)
    offset = f"{time:%z}"
    clock = time.replace(tzinfo=None).isoformat(" ")
    return f"{_DAYS[time.weekday()]} {clock} {offset[:3]}:{offset[3:5]}"


def _notice(one: Schedule) -> str:
    """Why a broker has paused the schedule, and what to do."""
    if not one.paused or not (one.reason or one.waits_for):
        return ""
    if one.waits_for:
        why = one.reason or f"the known sessions of calendar {one.waits_for} have ended"
        return f"Paused: {why}. It resumes by itself once calendar {one.waits_for} has a new version."
    return f"A broker has paused it: {one.reason}. Resume it once that is mended."


def _end(facts: ScheduleDetail) -> str:
    if facts.schedule.paused and facts.times:
        text = "The times that it would have. It does not fire until it is resumed."
        return f"{text} {_more(facts)}".rstrip()
    return _more(facts)


def _more(facts: ScheduleDetail) -> str:
    return f"No more times: {facts.end}." if facts.end else ""
