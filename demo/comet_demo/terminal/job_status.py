"""The state of the analytics, in one line under the table, from the Spark job's status records. Pure.

Any client can write to the topic, so every field of a record is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

FIRST: Final = "bars.1s"  # the query whose delay is shown
SILENT_US: Final = 10_000_000
QUERIES_MAX: Final = 100
CHARACTERS_MAX: Final = 300  # of a text from another program
NUMBER_MAX: Final = 1 << 53  # above it JSON parsers differ


@dataclass(frozen=True, slots=True)
class State:
    """The last status record of a query."""

    state: str
    doing: str
    error: str
    event_us: int | None
    at_us: int


def plain(text: object) -> str:
    """A text fit for a line on a terminal: without control characters, and of limited length.

    >>> plain("prices" + chr(10) + "moved"), plain(None)
    ('prices moved', '')
    """
    if not isinstance(text, str):
        return ""
    return "".join(one if one.isprintable() else " " for one in text[:CHARACTERS_MAX])


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= NUMBER_MAX else None


class Analytics:
    """The queries' states. Owned by one quote table; fed with status records, read whenever a line is drawn.

    >>> analytics = Analytics()
    >>> analytics.apply({"query": "bars.1s", "state": "running", "event_us": 1_000_000, "at_us": 1_200_000})
    >>> analytics.summary(newest_us=1_400_000, now_us=1_500_000)
    'analytics 0.4 s behind (1 query)'
    """

    def __init__(self) -> None:
        self.jobs: dict[str, State] = {}
        self.note = ""  # the reason, if there is no job

    def apply(self, record: Any) -> None:
        """Takes a status record; ignores any other record."""
        name = plain(record.get("query")) if isinstance(record, dict) else ""
        if name and (name in self.jobs or len(self.jobs) < QUERIES_MAX):
            self.jobs[name] = State(
                state=plain(record.get("state")),
                doing=plain(record.get("doing")),
                error=plain(record.get("error")),
                event_us=_number(record.get("event_us")),
                at_us=_number(record.get("at_us")) or 0,
            )

    def delay_us(self, newest_us: int) -> int | None:
        """The delay of the newest bars behind the newest quote; None before the first bars."""
        event_us = self.jobs[FIRST].event_us if FIRST in self.jobs else None
        return max(0, newest_us - event_us) if event_us is not None and newest_us else None

    def summary(self, newest_us: int, now_us: int) -> str:
        if self.note or not self.jobs:
            return self.note
        running, starting, failed = (
            [name for name, job in self.jobs.items() if job.state == state]
            for state in ("running", "starting", "failed")
        )
        delay_us = self.delay_us(newest_us)
        silent_us = now_us - max(job.at_us for job in self.jobs.values())
        if running and silent_us > SILENT_US:
            return f"the Spark job has been silent for {silent_us / 1e6:.0f} s"
        if delay_us is not None and FIRST in running:
            queries = "1 query" if len(running) == 1 else f"{len(running)} queries"
            text = f"analytics {delay_us / 1e6:.1f} s behind ({queries})"
        elif starting:
            text = f"Spark: starting {starting[0]}, {self.jobs[starting[0]].doing or 'soon'}"
        else:
            text = "no analytics"
        return "; ".join([text, *(f"{name} failed: {self.jobs[name].error}" for name in sorted(failed))])
