"""How the analytics are doing, in one line under the table: out of what the Spark job tells of its queries. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FIRST: Final = "bars.1s"  # the query that delays are told of
SILENT_US: Final = 10_000_000
QUERIES_MAX: Final = 100


class Analytics:
    """Owned by one board; fed with records of the topic of jobs, read whenever a line is drawn.

    >>> analytics = Analytics()
    >>> analytics.apply({"query": "bars.1s", "state": "running", "event_us": 1_000_000, "at_us": 1_200_000})
    >>> analytics.summary(newest_us=1_400_000, now_us=1_500_000)
    'analytics 0.4 s behind (1 query)'
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Mapping[str, Any]] = {}
        self.note = ""  # where there is no job: why not

    def apply(self, record: Any) -> None:
        """What is no such record is left out."""
        name = record.get("query") if isinstance(record, dict) else None
        if isinstance(name, str) and (name in self.jobs or len(self.jobs) < QUERIES_MAX):
            self.jobs[name] = record

    def delay_us(self, newest_us: int) -> int | None:
        """How far the newest bars are behind the newest quote; None before there are any."""
        event_us = self.jobs.get(FIRST, {}).get("event_us")
        return max(0, newest_us - event_us) if isinstance(event_us, int) and newest_us else None

    def summary(self, newest_us: int, now_us: int) -> str:
        if self.note or not self.jobs:
            return self.note
        running = self._in("running")
        failed = self._in("failed")
        delay_us = self.delay_us(newest_us)
        heard_us = max((job.get("at_us") or 0 for job in self.jobs.values()), default=0)
        if running and now_us - heard_us > SILENT_US:
            return f"the Spark job has said nothing for {(now_us - heard_us) / 1e6:.0f} s"
        if delay_us is None or FIRST not in running:
            said = self._starting()
        else:
            said = f"analytics {delay_us / 1e6:.1f} s behind ({_queries(len(running))})"
        return "; ".join([said, *(f"{name} failed: {self.jobs[name].get('error')}" for name in failed)])

    def _in(self, state: str) -> list[str]:
        return sorted(name for name, job in self.jobs.items() if job.get("state") == state)

    def _starting(self) -> str:
        """What takes long: the first thing that is not done yet."""
        for name, job in self.jobs.items():
            if job.get("state") == "starting":
                return f"Spark: starting {name}, {job.get('doing') or 'soon'}"
        return "no analytics"


def _queries(count: int) -> str:
    return "1 query" if count == 1 else f"{count} queries"
