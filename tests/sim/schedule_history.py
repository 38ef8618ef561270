"""What clients were told about schedules, and what fired. Only one client changes a schedule, one call after the other.

After a call with an unknown outcome its client leaves the schedule alone: the call may take effect later.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum

from tests.sim.history import Outcome

Name = tuple[str, str]  # topic and id


class End(str, Enum):
    NONE = "none"
    ACKED = "acked"  # by an answer to a cancel
    UNKNOWN = "unknown"
    GONE = "gone"  # the broker said that there is no such schedule


@dataclass(slots=True)
class Life:
    """A schedule from its put to its end. A put over an existing schedule begins another life."""

    topic: str
    id: str
    number: int  # of the lives of this id
    once: bool
    late: str = ""
    late_max_ms: int = 0
    jitter_ms: int = 0
    fires_max: int = 0
    put: Outcome = Outcome.PENDING
    end: End = End.NONE
    next_us: int = 0  # in the last answer
    changed: bool = False  # moved, paused, resumed or run
    run: bool = False
    unsure: bool = False  # the outcome of a change is unknown
    paused: bool = False
    by_calendar: bool = False

    @property
    def name(self) -> Name:
        return self.topic, self.id

    @property
    def value(self) -> bytes:
        """Of its records."""
        return f"{self.id}#{self.number}".encode()

    @property
    def open(self) -> bool:
        """Its client may go on with it."""
        return self.put is Outcome.OK and self.end is End.NONE and not self.unsure


@dataclass(frozen=True, slots=True)
class FiredRecord:
    """A committed record of a schedule."""

    topic: str
    id: str
    value: bytes
    due_us: int
    count: int
    partition: int
    offset: int
    timestamp_us: int


@dataclass(frozen=True, slots=True)
class Fire:
    """What a broker was about to fire."""

    topic: str
    id: str
    due_us: int
    count: int
    clock_us: int  # the latest time that its clock has shown


@dataclass(slots=True)
class Kept:
    """A schedule as the brokers list it in the end."""

    fired: int
    paused: bool


@dataclass(slots=True)
class ScheduleHistory:
    lives: list[Life] = field(default_factory=list)
    fires: list[Fire] = field(default_factory=list)
    records: list[FiredRecord] = field(default_factory=list)
    kept: dict[Name, Kept] = field(default_factory=dict)
    stranded: list[str] = field(default_factory=list)
    settled: list[str] = field(default_factory=list)  # what was looked at for that
    lists: list[str] = field(default_factory=list)  # that differ
    pages: int = 0
    calendar_times: set[int] = field(default_factory=set)  # of any version
    last_times: list[int] = field(default_factory=list)  # of the last one

    def by_name(self) -> dict[Name, list[Life]]:
        found: dict[Name, list[Life]] = defaultdict(list)
        for life in self.lives:
            found[life.name].append(life)
        return found
