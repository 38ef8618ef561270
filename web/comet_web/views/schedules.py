"""The page of schedules: one page of the list, by topic and id. Pure.

Its query parameters: `topic`; `prefix` of ids, with a topic; `state` (active, paused); `after`, of the page before.
"""

from __future__ import annotations

from typing import Final

from comet_web.components import numbers
from comet_web.document import UNKNOWN, Cell, Column, Document, Row, Table
from comet_web.facts import Schedule, SchedulesPage
from comet_web.page_request import PageRequest, path

STATES: Final = ("active", "paused")  # by which the list is narrowed
SPEC_CHARACTERS: Final = 60
SCHEDULES: Final = (
    Column("schedule", "Schedule", sortable=False),
    Column("topic", "Topic", sortable=False),
    Column("spec", "Times", sortable=False),
    Column("next", "Next", sortable=False, title="On the wall clock of the schedule's zone"),
    Column("in", "Due", sortable=False, wide=False),
    Column("fired", "Fired", numeric=True, sortable=False, title="Records so far"),
    Column("skipped", "Skipped", numeric=True, sortable=False, title="Late times without a record"),
    Column("state", "State", sortable=False, wide=False),
)


def view(facts: SchedulesPage, request: PageRequest) -> Document:
    rows = tuple(_row(one, request.now_us) for one in facts.schedules)
    title, text = _nothing(facts, request)
    return Document(
        time_us=facts.time_us,
        title="Schedules",
        fields={
            "problem": Cell(facts.problem),
            "nothing": Cell(title),
            "why": Cell(text),
            "count": Cell(_count(facts, request)),
            "next": Cell("Next page", href=request.link(after=facts.after)) if facts.after else Cell(""),
        },
        tables={"schedules": Table("schedules", SCHEDULES, rows, total=len(rows), matched=len(rows))},
    )


def schedule_link(topic: str, id_: str) -> str:
    """The address of a schedule's page."""
    return path("schedules", topic, id_)


def _row(one: Schedule, now_us: int) -> Row:
    spec = one.spec if len(one.spec) <= SPEC_CHARACTERS else f"{one.spec[:SPEC_CHARACTERS]}…"
    return Row(
        key=f"{one.topic}/{one.id}",
        href=schedule_link(one.topic, one.id),
        label=f"schedule {one.id} of {one.topic}",
        cells=(
            Cell(one.id),
            Cell(one.topic, href=path("topics", one.topic)),
            Cell(spec, one.spec, title="" if spec == one.spec else one.spec),
            next_wall(one, now_us),
            due(one, now_us),
            numbers.count(one.fired),
            numbers.count(one.skipped, tone="warn" if one.skipped else ""),
            state(one),
        ),
    )


def next_wall(one: Schedule, now_us: int) -> Cell:
    """The next time on the wall clock of the schedule's zone; in UTC on hover. A paused one may have none any more."""
    if one.next_us is None or (one.paused and one.next_us <= now_us):
        return UNKNOWN
    return Cell(f"{wall_text(one.next_local)} {one.zone}", one.next_us, title=numbers.moment_text(one.next_us))


def wall_text(local: str) -> str:
    """A time on a wall clock without its offset: 2026-11-27 13:00:00."""
    day, _, rest = local.partition("T")
    clock = rest.partition("+")[0].partition("-")[0]
    return f"{day} {clock}"


def due(one: Schedule, now_us: int) -> Cell:
    """In which time the schedule is due; late if its broker has not fired it."""
    if one.next_us is None:
        return UNKNOWN
    if one.paused:
        return Cell("paused", tone="muted", title="It does not fire until it is resumed")
    return numbers.until(one.next_us, now_us, slack_us=1_000 * one.jitter_ms)


def state(one: Schedule) -> Cell:
    if not one.paused:
        return Cell("active", tone="good")
    if one.waits_for:
        return Cell(f"waits for calendar {one.waits_for}", tone="warn", title=one.reason)
    if one.reason:
        return Cell(f"paused: {one.reason}", tone="warn", title="A broker has paused it")
    return Cell("paused", tone="muted")


def _count(facts: SchedulesPage, request: PageRequest) -> str:
    shown = numbers.counted(len(facts.schedules), "schedule")
    if facts.problem or not facts.schedules:
        return ""
    return f"{shown} on this page" if facts.after or request.query.get("after") else shown


def _nothing(facts: SchedulesPage, request: PageRequest) -> tuple[str, str]:
    """Why the list is empty, and what to do."""
    if facts.problem:
        return "Schedules are not read yet", "This page tries again by itself."
    if request.query.get("after"):
        return "No more schedules", "The schedules of this page have ended. Go back to the first page."
    if any(request.query.get(name) for name in ("topic", "prefix", "state")):
        return "No schedule matches", "Names are compared letter by letter: check capitals, or list all schedules."
    return "No schedules yet", (
        "A broker writes the record of a schedule to its topic each time that it is due. Make one with New schedule,"
        " or from a shell:"
    )
