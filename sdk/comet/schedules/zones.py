"""Time zones, of the package tzdata alone: every process with the same version of it has the same zones.

`zoneinfo.ZoneInfo` would read the machine's own files first, whose version varies and is unknown.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Final
from zoneinfo import ZoneInfo

import tzdata

from comet.schedules.errors import invalid, shown

TZDATA: Final[str] = tzdata.IANA_VERSION  # such as 2026f
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SECOND_US: Final = 1_000_000


@cache
def zone_names() -> frozenset[str]:
    """The names of all zones, such as America/New_York."""
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="utf-8").split())


@cache  # bounded by the names
def _loaded(name: str) -> ZoneInfo:
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def zone_of(name: str, position: int = 0) -> ZoneInfo:
    """The zone of that name. Raises InvalidSchedule with a similar name.

    >>> zone_of("America/New_York").key
    'America/New_York'
    """
    if name not in zone_names():
        raise invalid(f"no time zone {shown(name)} in tzdata {TZDATA}", position, hint=_similar(name))
    return _loaded(name)


def _similar(name: str) -> str:
    last = name.rpartition("/")[2].casefold().replace(" ", "_")
    found = sorted(one for one in zone_names() if last in (one.casefold(), one.rpartition("/")[2].casefold()))
    return f"did you mean {found[0]}?" if found else "write the name of an IANA zone, such as America/New_York, or UTC"


def local_time(time_us: int, zone: ZoneInfo) -> datetime:
    """The time on the wall clock of a zone.

    >>> local_time(1_780_000_000_000_001, zone_of("Asia/Tokyo")).isoformat()
    '2026-05-29T05:26:40.000001+09:00'
    """
    return (EPOCH + timedelta(microseconds=time_us)).astimezone(zone)


def microseconds(time: datetime) -> int:
    """The time since 1970 in UTC; exact."""
    return (time - EPOCH) // timedelta(microseconds=1)
