"""Documents of market calendars; `comet.schedules.calendar_json` writes and reads them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from comet.schedules.calendars import BREAKS_MAX, NAME, SESSIONS_MAX, SOURCE_CHARS_MAX
from comet_gateway.schemas.common import Int64, Model

_DATE = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
Date = Annotated[str, Field(pattern=_DATE, examples=["2026-11-27"])]
Time = Annotated[str, Field(max_length=40, examples=["2026-11-27T09:30:00-05:00"])]


class CalendarBreakDocument(Model):
    """A pause within a session."""

    start: Time
    end: Time


class CalendarSessionDocument(Model):
    """The trading session of a date. A time without an offset is on the wall clock of the calendar's zone."""

    date: Date
    open: Time
    close: Annotated[Time, Field(examples=["2026-11-27T13:00:00-05:00"])]
    breaks: list[CalendarBreakDocument] = Field(default=[], max_length=BREAKS_MAX)


class CalendarBody(Model):
    """A calendar to store. `version`, `author` and `set_us` of an answer are ignored."""

    name: str = Field(default="", pattern=f"^({NAME.pattern})?$", description="Empty, or as in the path.")
    zone: str = Field(max_length=64, description="The IANA name of its time zone.", examples=["America/New_York"])
    known_until: str = Field(
        default="", pattern=f"({_DATE})|^$", description="The last date for which the sessions are known."
    )
    source: str = Field(default="", max_length=SOURCE_CHARS_MAX)
    sessions: list[CalendarSessionDocument] = Field(min_length=1, max_length=SESSIONS_MAX, description="By date.")
    version: str = "0"
    author: str = ""
    set_us: str | None = None


class CalendarDocument(Model):
    """A market calendar."""

    name: str = Field(examples=["XNYS"])
    zone: str = Field(examples=["America/New_York"])
    known_until: Date = Field(description="The last date for which the sessions are known.")
    source: str = Field(description="Where the sessions are from, with its version.")
    version: Int64 = Field(description="That of the cluster's metadata when it was stored; also the ETag.")
    author: str = Field(description="The client that stored it.")
    set_us: Int64 | None
    sessions: list[CalendarSessionDocument] = Field(description="By date.")
