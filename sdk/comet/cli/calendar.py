"""`comet calendar`: market calendars of the cluster, and the next times of schedules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from comet.cli._acts import act_command, add_commands
from comet.cli._guard import guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, DryRun, Json
from comet.cli._output import note, print_fields, print_json, print_table

if TYPE_CHECKING:
    from comet.admin.calendars import CalendarPut
    from comet.schedules.calendars import Calendar

app = typer.Typer(
    help="Import, store, list and delete market calendars; show the next times of a schedule.", no_args_is_help=True
)

SESSIONS_SHOWN: Final = 10
DATES_SHOWN_MAX: Final = 10

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a market calendar.")]
Version = Annotated[
    int | None, typer.Option("--version", min=0, help="Only if it has this version; 0: only if it does not exist.")
]


@app.command("import")
@guarded
async def import_(
    code: Annotated[str, typer.Argument(metavar="EXCHANGE", help="The code of an exchange, such as XNYS.")],
    name: Annotated[str, typer.Option("--name", help="Name of the calendar, if it is not the code.")] = "",
    first: Annotated[
        str, typer.Option("--from", metavar="DATE", help="The first date. Default: January 1st of last year.")
    ] = "",
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Import a market calendar from the package exchange_calendars; run again, it refreshes it."""
    import asyncio
    from datetime import UTC, date, datetime

    import comet
    from comet.schedules.calendars import check_date
    from comet.schedules.exchange import imported_calendar

    start = check_date("--from", first) if first else date(datetime.now(UTC).year - 1, 1, 1)
    calendar = await asyncio.to_thread(imported_calendar, code, name=name, first=start)
    async with comet.Admin(bootstrap) as admin:
        _show_put(await admin.calendars.put_calendar(calendar, dry_run=dry_run), json_output=json_output)


@act_command(app, "PutCalendar")
@guarded
async def put(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The calendar as JSON, as `comet calendar show --json` prints it.")
    ],
    version: Version = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    import comet
    from comet.schedules.calendar_json import FILE_BYTES_MAX, calendar_from_json

    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise comet.InvalidArgument(f"cannot read {file}: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise comet.InvalidArgument(f"{file} has more than {FILE_BYTES_MAX >> 20} MiB")
    calendar = calendar_from_json(data, default_name=file.stem)
    async with comet.Admin(bootstrap) as admin:
        found = await admin.calendars.put_calendar(calendar, version=version, dry_run=dry_run)
    _show_put(found, json_output=json_output)


@act_command(app, "GetCalendar", more="Lists the next 10 sessions; --json has all.")
@guarded
async def show(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json_output: Json = False) -> None:
    import comet
    from comet.schedules.calendar_json import calendar_document

    async with comet.Admin(bootstrap) as admin:
        calendar = await admin.calendars.get_calendar(name)
    if json_output:
        print_json(calendar_document(calendar))
        return
    from comet.units import time_text

    print_fields(
        {
            "name": calendar.name,
            "zone": calendar.zone,
            "known until": calendar.known_until,
            "sessions": f"{len(calendar.sessions):,}, from {calendar.sessions[0].date}",
            "source": calendar.source or "-",
            "version": calendar.version,
            "stored": "-" if calendar.set_us is None else f"{time_text(calendar.set_us)} by {calendar.author}",
        }
    )
    print()
    _print_sessions(calendar)
    _warn(calendar.name, calendar.known_until)


@app.command("next")
@guarded
async def next_(
    spec: Annotated[
        str, typer.Argument(metavar="SPEC", help="A schedule, in quotes, such as 'cron 30 9 * * 1-5 America/New_York'.")
    ],
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=100, help="Number of times.")] = 10,
    after: Annotated[
        str,
        typer.Option("--after", metavar="TIME", help="The time to start from, such as 2026-12-01T09:30:00Z; else now."),
    ] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Show the next times of a schedule. A schedule without a calendar needs no broker."""
    import comet
    from comet.admin.documents import document
    from comet.cli._times import print_times
    from comet.schedules.spec import parse_time

    after_us = parse_time(after) if after else None
    async with comet.Admin(bootstrap) as admin:
        found = await admin.calendars.next_times(spec, count=count, after_us=after_us)
    if json_output:
        print_json(document(found))
        return
    print_fields({"schedule": found.schedule, "zone": found.zone, "tzdata": found.tzdata})
    print_times(found)


add_commands(app, "calendar")


def _print_sessions(calendar: Calendar) -> None:
    from datetime import UTC, datetime

    from comet.schedules.spec import wall_text

    today = datetime.now(UTC).date().isoformat()
    rows = [
        (
            session.date,
            wall_text(session.open_us, calendar.zone),
            wall_text(session.close_us, calendar.zone),
            ", ".join(
                f"{wall_text(one.start_us, calendar.zone)} to {wall_text(one.end_us, calendar.zone)}"
                for one in session.breaks
            )
            or "-",
        )
        for session in calendar.sessions
        if session.date >= today
    ]
    if rows:
        print_table(["date", "open", "close", "breaks"], rows[:SESSIONS_SHOWN])


def _show_put(found: CalendarPut, *, json_output: bool) -> None:
    from comet.admin.documents import document

    if json_output:
        print_json(document(found))
    else:
        print(found)
        for word in ("added", "removed", "changed"):
            dates = getattr(found, word)
            if dates:
                more = f" and {len(dates) - DATES_SHOWN_MAX:,} more" if len(dates) > DATES_SHOWN_MAX else ""
                print(f"{word}: {', '.join(dates[:DATES_SHOWN_MAX])}{more}")
    _warn(found.calendar.name, found.calendar.known_until)


def _warn(name: str, known_until: str) -> None:
    import time

    from comet.schedules.calendars import warning

    text = warning(name, known_until, time.time_ns() // 1_000)
    if text:
        note(f"warning: {text}")
