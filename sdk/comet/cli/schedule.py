"""`comet schedule`: schedules, whose records brokers write when they are due."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from comet.cli._acts import act_command, add_commands
from comet.cli._guard import guarded
from comet.cli._options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    DryRun,
    Json,
    Topic,
    Ttl,
    complete_topic,
    ttl_ms_of,
)
from comet.cli._output import note, print_fields, print_json, print_table
from comet.cli._records import headers_json, json_line, parse_headers
from comet.errors import CalendarNotFound, Forbidden
from comet.units import format_duration_ms, parse_duration_ms, time_text

if TYPE_CHECKING:
    from comet import Admin
    from comet.admin.schedules import ScheduleAdmin, ScheduleDetails, ScheduleInfo, ScheduleList

app = typer.Typer(
    help="Add, list, show, pause, run, move and cancel schedules: records that brokers write when they are due.",
    no_args_is_help=True,
)

RECORD_CHARS_MAX: Final = 1_000  # of a record that `show` prints; --json has all

Id = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Its id, unique in the topic.")]
Spec = Annotated[
    str, typer.Argument(metavar="SPEC", help="When it is due, in quotes, such as 'cron 30 9 * * 1-5 America/New_York'.")
]
Late = Annotated[
    str,
    typer.Option(
        "--late",
        metavar="POLICY",
        help="For times that were missed: fire (the first; default of at), fire_last (default of the others), "
        "fire_all or skip.",
    ),
]
LateMax = Annotated[
    str, typer.Option("--late-max", metavar="TIME", help="For skip: a time that is later has no record: 30s, 5m.")
]
Jitter = Annotated[
    str, typer.Option("--jitter", metavar="TIME", help="Makes each time later by up to this, evenly spread: 30s.")
]
End = Annotated[
    str, typer.Option("--end", metavar="TIME", help="No time after this one, such as 2026-12-31T18:00:00Z.")
]


@act_command(app, "ListSchedules")
@guarded
async def list_(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Only of this topic.", autocompletion=complete_topic)
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="Only ids that begin with this; needs a topic.")] = "",
    paused: Annotated[bool | None, typer.Option("--paused/--active", help="Only paused ones, or only others.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="Schedules at most.")] = 100,
    after: Annotated[str, typer.Option("--after", metavar="MARK", help="`after` of the page before.")] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    import comet
    from comet.admin.documents import document

    async with comet.Admin(bootstrap) as admin:
        found = await listed(admin.schedules, topic, limit=limit, after=after, prefix=prefix, paused=paused)
    if json_output:
        print_json(document(found))
        return
    rows = [
        (one.topic, one.id, one.spec, "-" if one.next_us is None else time_text(one.next_us), one.fired, _state(one))
        for one in found.schedules
    ]
    print_table(["topic", "schedule", "times", "next", "fired", "state"], rows)
    if found.after is not None:
        note(f"more follow: --after {found.after}")


@act_command(app, "PutSchedules")
@guarded
async def add(
    topic: Topic,
    schedule: Id,
    spec: Spec,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="The value of its records as text; - reads it from standard input.")
    ],
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of its records.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of its records; may repeat."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Where they go; default: by the key, or any.")
    ] = None,
    ttl: Ttl = "",
    late: Late = "",
    late_max: LateMax = "0",
    jitter: Jitter = "0",
    end: End = "",
    fires_max: Annotated[int, typer.Option("--fires-max", min=0, help="Records at most; 0: no limit.")] = 0,
    revision: Annotated[
        int | None, typer.Option("--revision", min=-1, help="Only if it has this revision; -1: only if it is new.")
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    import comet
    from comet.admin.documents import document

    data = sys.stdin.buffer.read() if value == "-" else value.encode()
    async with comet.Admin(bootstrap) as admin:
        done = await admin.schedules.put_schedule(
            topic,
            schedule,
            spec,
            value=data,
            key=key,
            headers=parse_headers(header or []),
            partition=partition,
            ttl_ms=ttl_ms_of(ttl),
            late=late,
            late_max_ms=parse_duration_ms(late_max),
            jitter_ms=parse_duration_ms(jitter),
            end=end or None,
            fires_max=fires_max,
            revision=revision,
            dry_run=dry_run,
        )
    print_json(document(done)) if json_output else print(done)


@act_command(app, "GetSchedule", more="Lists its next 10 times.")
@guarded
async def show(topic: Topic, schedule: Id, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json_output: Json = False) -> None:
    import comet

    async with comet.Admin(bootstrap) as admin:
        found = await admin.schedules.get_schedule(topic, schedule)
        if json_output:
            _print_document(found)
            return
        _print_schedule(found)
        await _print_times(admin, found.schedule)


add_commands(app, "schedule")


async def listed(
    schedules: ScheduleAdmin, topic: str | None, *, limit: int, after: str, prefix: str, paused: bool | None
) -> ScheduleList:
    """The first `limit` schedules after a mark. A page of the brokers may have fewer, while more follow."""
    from comet.admin.schedules import ScheduleList

    found: list[ScheduleInfo] = []
    mark: str | None = after
    while mark is not None and len(found) < limit:
        page = await schedules.list_schedules(topic, prefix=prefix, paused=paused, after=mark, limit=limit - len(found))
        found += page.schedules
        mark = page.after
    return ScheduleList(tuple(found), mark)


def _state(schedule: ScheduleInfo) -> str:
    if schedule.paused:
        return f"paused: {schedule.reason}" if schedule.reason else "paused"
    return "active"


def _print_document(found: ScheduleDetails) -> None:
    """On one line, as GET /v1/schedules/{topic}/{schedule} has it; a JSON value stays as it is."""
    from comet.admin.documents import document

    about = json.dumps(document(found.schedule), ensure_ascii=False)[:-1]
    print(f'{about}, "record": {_record_json(found)}}}', flush=True)


def _record_json(found: ScheduleDetails) -> str:
    more: dict[str, Any] = {"headers": headers_json(found.headers)} if found.headers else {}
    more |= {} if found.partition is None else {"partition": found.partition}
    more |= {} if found.ttl_ms is None else {"ttl_ms": str(found.ttl_ms)}
    return json_line({}, found.key, found.value, more).decode().rstrip("\n")


def _print_schedule(found: ScheduleDetails) -> None:
    one, record = found.schedule, _record_json(found)
    left_out = "" if len(record) <= RECORD_CHARS_MAX else f"… ({len(record):,} characters; --json has all)"
    limits = [
        f"until {time_text(one.end_us)}" if one.end_us else "",
        f"{one.fires_max:,} records" if one.fires_max else "",
    ]
    late = one.late or ("fire" if one.spec.startswith("at ") else "fire_last")
    late += f" after {format_duration_ms(one.late_max_ms)}" if one.late == "skip" else ""
    print_fields(
        {
            "schedule": f"{one.topic}/{one.id}",
            "times": one.spec,
            "state": _state(one) + (f" (waits for calendar {one.waits_for})" if one.waits_for else ""),
            "next": "-" if one.next_us is None else time_text(one.next_us),
            "late times": late,
            "jitter": format_duration_ms(one.jitter_ms) if one.jitter_ms else "-",
            "limit": ", ".join(filter(None, limits)) or "-",
            "fired": f"{one.fired:,}" + ("" if one.fired_us is None else f", last for {time_text(one.fired_us)}"),
            "skipped": f"{one.skipped:,}",
            "author": one.author or "-",
            "created": time_text(one.created_us) if one.created_us else "-",
            "revision": one.revision,
            "record": record[:RECORD_CHARS_MAX] + left_out,
        }
    )


async def _print_times(admin: Admin, schedule: ScheduleInfo) -> None:
    from comet.cli._times import of_schedule, print_times

    try:
        found = await admin.calendars.next_times(schedule.spec)
    except (CalendarNotFound, Forbidden) as error:  # a calendar that is gone, or that the user may not read
        note(f"no times: {error.message}")
        return
    print_times(of_schedule(found, schedule))
