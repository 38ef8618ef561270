"""Market calendars of the cluster, and the times of schedules: `Admin.calendars`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from comet.admin.access import Requester
from comet.admin.parameters import Input
from comet.errors import InvalidArgument
from comet.schedules import calendars
from comet.schedules.calendars import Calendar, SessionChanges
from comet.types import Int64
from comet.units import count as counted
from comet.v1 import admin_pb2 as admin
from comet.wire.calendar_protobuf import calendar_from_pb, calendar_to_pb

if TYPE_CHECKING:
    from comet.schedules.preview import SchedulePreview

TIMES_SHOWN: Final = 10
TIMES_SHOWN_MAX: Final = 100

CalendarName = Annotated[
    str, Input("Name of a market calendar.", pattern=f"^{calendars.NAME.pattern}$", example="XNYS")
]
VERSION: Final = Input("Only if it has this version; 0: only if it does not exist.", 0, flag="--version")
ExpectedVersion = Annotated[Int64 | None, VERSION]


@dataclass(frozen=True, slots=True)
class CalendarInfo:
    """A calendar without its sessions.

    >>> print(comet.CalendarInfo("XNYS", "America/New_York", "2026-01-02", "2027-11-23", 476))
    XNYS: 476 sessions, known until 2027-11-23
    """

    name: str
    zone: Annotated[str, "The IANA name of its time zone."]
    first: Annotated[str, "The date of the first session."]
    known_until: Annotated[str, "The last date for which the sessions are known."]
    sessions: int
    source: Annotated[str, "Where the sessions are from, with its version."] = ""
    version: Annotated[Int64, "That of the cluster's metadata when it was stored."] = 0
    author: Annotated[str, "The client that stored it."] = ""
    set_us: Int64 | None = None

    def __str__(self) -> str:
        return f"{self.name}: {counted(self.sessions, 'session')}, known until {self.known_until}"


@dataclass(frozen=True, slots=True)
class CalendarList:
    """The calendars, by name.

    >>> print(comet.CalendarList(()))
    0 calendars
    """

    calendars: tuple[CalendarInfo, ...]

    def __str__(self) -> str:
        return counted(len(self.calendars), "calendar")


@dataclass(frozen=True, slots=True)
class CalendarPut:
    """A calendar that was stored, and the dates that differ from its earlier version.

    >>> info = comet.CalendarInfo("XNYS", "America/New_York", "2026-01-02", "2027-11-23", 476)
    >>> print(comet.CalendarPut(False, info, created=False, added=("2027-11-23",)))
    XNYS: 476 sessions, known until 2027-11-23; 1 session added
    """

    dry_run: Annotated[bool, "True: nothing was changed, and the dates are the expected effect."]
    calendar: CalendarInfo
    created: Annotated[bool, "There was no calendar of that name."]
    added: Annotated[tuple[str, ...], "Dates that got a session."] = ()
    removed: Annotated[tuple[str, ...], "Dates that lost their session."] = ()
    changed: Annotated[tuple[str, ...], "Dates whose session has other times."] = ()

    def __str__(self) -> str:
        effect = "created" if self.created else str(SessionChanges(self.added, self.removed, self.changed))
        return f"{self.calendar}; {effect}"


@dataclass(frozen=True, slots=True)
class CalendarDeletion:
    """The end of a calendar; not `deleted`: there was none.

    >>> print(comet.CalendarDeletion("XNYS", deleted=False))
    nothing to do: no calendar XNYS
    """

    name: str
    deleted: bool

    def __str__(self) -> str:
        return f"deleted: calendar {self.name}" if self.deleted else f"nothing to do: no calendar {self.name}"


class CalendarAdmin:
    """Manages market calendars, and computes times of schedules: `Admin.calendars`.

    >>> async def example(address: str) -> None:
    ...     async with comet.Admin(address) as admin:
    ...         print((await admin.calendars.next_times("every 15m", count=2)).times[0].utc)
    >>> run(example)
    20...+00:00
    """

    def __init__(self, request: Requester, clock_us: Callable[[], int]) -> None:
        self._request = request
        self._clock_us = clock_us

    async def list_calendars(self) -> CalendarList:
        """All calendars, without their sessions.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print(await admin.calendars.list_calendars())
        >>> run(example)
        0 calendars
        """
        answer = await self._request("ListCalendars", admin.ListCalendarsRequest(), admin.ListCalendarsResponse)
        return CalendarList(tuple(map(_info, answer.calendars)))

    async def get_calendar(self, name: CalendarName) -> Calendar:
        """A calendar with its sessions. Raises CalendarNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         try:
        ...             await admin.calendars.get_calendar("XNYS")
        ...         except comet.CalendarNotFound as error:
        ...             print(error.message)
        >>> run(example)
        calendar 'XNYS' does not exist in this cluster
        """
        return calendar_from_pb(await self._request("GetCalendar", admin.GetCalendarRequest(name=name), admin.Calendar))

    async def put_calendar(
        self, calendar: Calendar, *, version: ExpectedVersion = None, dry_run: bool = False
    ) -> CalendarPut:
        """Stores a calendar, in place of an earlier version of it. With `version` only in place of this one, 0 for
        none: else raises CalendarChanged, and nothing changes. With `dry_run` nothing changes, and the answer is the
        effect.

        >>> async def example(address: str) -> None:
        ...     day = comet.CalendarSession("2026-11-27", 1_795_789_800_000_000, 1_795_802_400_000_000)
        ...     async with comet.Admin(address) as admin:
        ...         calendar = comet.Calendar("XNYS", "America/New_York", (day,), "2026-11-29")
        ...         print(await admin.calendars.put_calendar(calendar, version=0))
        >>> run(example)
        XNYS: 1 session, known until 2026-11-29; created
        """
        calendars.check_calendar(calendar)
        request = admin.PutCalendarRequest(calendar=calendar_to_pb(calendar), version=version, dry_run=dry_run)
        answer = await self._request("PutCalendar", request, admin.PutCalendarResponse)
        return CalendarPut(
            dry_run,
            _info(answer.calendar),
            answer.created,
            tuple(answer.added),
            tuple(answer.removed),
            tuple(answer.changed),
        )

    async def delete_calendar(self, name: CalendarName, *, version: ExpectedVersion = None) -> CalendarDeletion:
        """Deletes a calendar; with `version` only this one. Schedules that use it have no next time then.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print(await admin.calendars.delete_calendar("XNYS"))
        >>> run(example)
        nothing to do: no calendar XNYS
        """
        request = admin.DeleteCalendarRequest(name=name, version=version)
        answer = await self._request("DeleteCalendar", request, admin.DeleteCalendarResponse)
        return CalendarDeletion(name, answer.deleted)

    async def next_times(self, spec: str, *, count: int = TIMES_SHOWN, after_us: int | None = None) -> SchedulePreview:
        """The next times of a schedule, from now on or strictly after a time. Reads the calendar that it needs from the
        cluster; a schedule without one needs no broker. Raises InvalidSchedule, CalendarNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         spec = "cron 30 9 * * 1-5 America/New_York"
        ...         found = await admin.calendars.next_times(spec, count=1, after_us=1_795_825_657_858_193)
        ...         print(found)
        >>> run(example)
        cron 30 9 * * 1-5 America/New_York: 2026-11-30T09:30:00-05:00
        """
        from comet.schedules.preview import preview  # commands on topics need no cron
        from comet.schedules.spec import calendar_of, parse_schedule

        if not 1 <= count <= TIMES_SHOWN_MAX:
            raise InvalidArgument(f"count must be from 1 to {TIMES_SHOWN_MAX}, not {count!r}")
        schedule = parse_schedule(spec)
        name = calendar_of(schedule)
        needed = {name: await self.get_calendar(name)} if name else {}
        now_us = self._clock_us()
        return preview(schedule, now_us if after_us is None else after_us, needed, count=count, now_us=now_us)


def _info(found: admin.CalendarInfo) -> CalendarInfo:
    return CalendarInfo(
        found.name,
        found.zone,
        found.first,
        found.known_until,
        found.sessions,
        found.source,
        found.version,
        found.author,
        found.set_us or None,
    )
