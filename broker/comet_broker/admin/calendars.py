"""The market calendars of the cluster: lists, gets, puts and deletes them.

Each is one value in the metadata store, so every broker has all of them in its view. A change compares the version that
it replaces; a caller may demand one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from comet.errors import CalendarChanged, CalendarNotFound, InvalidArgument, LimitExceeded, Timeout, Unavailable
from comet.schedules.calendars import (
    Calendar,
    CalendarSession,
    SessionBreak,
    SessionChanges,
    changes,
    check_calendar,
    check_calendar_name,
)
from comet.v1 import admin_pb2 as admin
from comet.wire.calendar_protobuf import calendar_from_pb, calendar_to_pb
from comet_broker import limits
from comet_broker.access.client_access import caller
from comet_broker.cluster.view import ClusterView
from comet_broker.core.calendars import StoredBreak, StoredCalendar, StoredSession, calendar_key
from comet_broker.env import Env
from comet_broker.metadata.store import Compare, Delete, KeyValue, MetadataStore, Put, StoreUnavailable

log = logging.getLogger(__name__)

SWAP_ATTEMPTS_MAX = 16


class Calendars:
    """The calendars of the cluster, each read once for each of its versions. One that cannot be read is left out."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._read: dict[str, Calendar] = {}
        self._revision = -1  # of the cluster's state

    def read(self) -> Mapping[str, Calendar]:
        state = self._view.state
        if state.revision == self._revision:
            return self._read
        found: dict[str, Calendar] = {}
        for name, one in state.calendars.items():
            known = self._read.get(name)
            if known is not None and known.version == one.mod_revision:
                found[name] = known
                continue
            try:
                found[name] = _calendar(name, one.value, one.mod_revision)
            except InvalidArgument as error:
                log.error("%s", error)
        self._read, self._revision = found, state.revision
        return found


class AdminCalendars:
    """The coroutines behind the calls; raises CometErrors."""

    def __init__(self, env: Env, *, store: MetadataStore, view: ClusterView) -> None:
        self._env = env
        self._store = store
        self._view = view

    async def list_calendars(self, _: admin.ListCalendarsRequest) -> admin.ListCalendarsResponse:
        found = sorted(self._view.state.calendars.items())
        return admin.ListCalendarsResponse(
            calendars=[_info(_calendar(name, one.value, one.mod_revision)) for name, one in found]
        )

    async def get_calendar(self, request: admin.GetCalendarRequest) -> admin.Calendar:
        found = self._view.state.calendars.get(request.name)
        if found is None:
            raise CalendarNotFound(f"calendar {request.name[:64]!r} does not exist in this cluster")
        return calendar_to_pb(_calendar(request.name, found.value, found.mod_revision))

    async def put_calendar(self, request: admin.PutCalendarRequest) -> admin.PutCalendarResponse:
        given = check_calendar(calendar_from_pb(request.calendar))
        stored = _stored(given, author=caller().principal, set_us=self._env.clock.wall_us())
        value = stored.encode()
        key = calendar_key(given.name)
        for _ in range(SWAP_ATTEMPTS_MAX):
            before, item = await self._current(given.name, request.version if request.HasField("version") else None)
            self._check_room(given.name, value)
            version = 0 if item is None else item.mod_revision
            if not request.dry_run:
                revision = await self._applied(Compare(key, version), Put(key, value))
                if revision is None:
                    continue
                version = revision
            found = SessionChanges() if item is None else changes(before, given)
            return admin.PutCalendarResponse(
                calendar=_info(_calendar(given.name, value, version)),
                created=item is None,
                added=found.added,
                removed=found.removed,
                changed=found.changed,
            )
        raise _contended(given.name)

    async def delete_calendar(self, request: admin.DeleteCalendarRequest) -> admin.DeleteCalendarResponse:
        name = check_calendar_name(request.name)
        key = calendar_key(name)
        for _ in range(SWAP_ATTEMPTS_MAX):
            _, item = await self._current(name, request.version if request.HasField("version") else None)
            if item is None:
                return admin.DeleteCalendarResponse(deleted=False)
            if await self._applied(Compare(key, item.mod_revision), Delete(key)) is not None:
                return admin.DeleteCalendarResponse(deleted=True)
        raise _contended(name)

    async def _current(self, name: str, expected: int | None) -> tuple[Calendar | None, KeyValue | None]:
        """The stored calendar; None: there is none. Raises CalendarChanged unless it has the expected version."""
        try:
            item = await self._store.get(calendar_key(name))
        except StoreUnavailable as error:
            raise Unavailable(f"the metadata store did not answer: {error}") from error
        version = 0 if item is None else item.mod_revision
        if expected is not None and expected != version:
            has = f"has the version {version}" if version else "does not exist"
            raise CalendarChanged(
                f"calendar {name} {has}, and the request expects "
                + (f"the version {expected}" if expected else "that it does not exist"),
                details={"version": str(version)},
            )
        if item is None:
            return None, None
        try:
            return _calendar(name, item.value, version), item
        except InvalidArgument:
            return None, item  # unreadable: it is replaced as a whole

    async def _applied(self, compare: Compare, operation: Put | Delete) -> int | None:
        """The revision of the change, once the view has it; None: another change came first."""
        try:
            result = await self._store.transact([compare], [operation])
        except StoreUnavailable as error:
            text = f"the metadata store did not answer; the change may or may not be made: {error}"
            raise Timeout(text) from error
        if not result.applied:
            return None
        await self._view.applied.wait(result.revision)
        return result.revision

    def _check_room(self, name: str, value: bytes) -> None:
        others = [len(one.value) for other, one in self._view.state.calendars.items() if other != name]
        if len(others) >= limits.CALENDARS_MAX:
            raise LimitExceeded(f"the cluster has {len(others)} calendars, its limit; delete one first")
        if len(value) > limits.CALENDAR_BYTES_MAX:
            raise LimitExceeded(
                f"calendar {name} takes {len(value)} bytes, and at most {limits.CALENDAR_BYTES_MAX} are stored; "
                "leave out the oldest sessions"
            )
        if sum(others) + len(value) > limits.CALENDARS_BYTES_MAX:
            raise LimitExceeded(
                f"the calendars would take {sum(others) + len(value)} bytes, and at most {limits.CALENDARS_BYTES_MAX} "
                "are stored; delete one, or leave out the oldest sessions"
            )


def _contended(name: str) -> Unavailable:
    return Unavailable(f"calendar {name} was changed concurrently {SWAP_ATTEMPTS_MAX} times; try again")


def _stored(calendar: Calendar, *, author: str, set_us: int) -> StoredCalendar:
    sessions = tuple(
        StoredSession(
            one.date,
            one.open_us,
            one.close_us,
            tuple(StoredBreak(pause.start_us, pause.end_us) for pause in one.breaks),
        )
        for one in calendar.sessions
    )
    return StoredCalendar(calendar.zone, calendar.known_until, sessions, calendar.source, author, set_us)


def _calendar(name: str, value: bytes, version: int) -> Calendar:
    """The calendar of a stored value. Raises InvalidArgument."""
    try:
        found = StoredCalendar.decode(value)
    except msgspec.DecodeError as error:
        raise InvalidArgument(
            f"the stored calendar {name} cannot be read: {error}; a newer version may have written it"
        ) from error
    return Calendar(
        name,
        found.zone,
        tuple(
            CalendarSession(
                one.date,
                one.open_us,
                one.close_us,
                tuple(SessionBreak(pause.start_us, pause.end_us) for pause in one.breaks),
            )
            for one in found.sessions
        ),
        found.known_until,
        found.source,
        version,
        found.author,
        found.set_us or None,
    )


def _info(calendar: Calendar) -> admin.CalendarInfo:
    return admin.CalendarInfo(
        name=calendar.name,
        zone=calendar.zone,
        first=calendar.sessions[0].date,
        known_until=calendar.known_until,
        sessions=len(calendar.sessions),
        source=calendar.source,
        version=calendar.version,
        author=calendar.author,
        set_us=calendar.set_us or 0,
    )
