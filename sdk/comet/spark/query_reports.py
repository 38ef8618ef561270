"""The reports of a QuerySupervisor in a topic: written by its program, read by any other. Needs no Spark.

supervisor ─► reporting ─► topic, keyed by query ─► QueryReports ─► one line for people
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import comet
from comet.client.bootstrap import Addresses
from comet.units import one_line

SILENT_US: Final = 10_000_000  # a running program reports more often
QUERIES_MAX: Final = 100
NUMBER_MAX: Final = 1 << 53  # above it JSON parsers differ


@contextmanager
def reporting(bootstrap: Addresses, topic: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that writes reports to a topic. Never waits: without a broker no client can read them."""
    producer = comet.sync.Producer(bootstrap, name="spark", timeout_ms=5_000)

    def report(record: Mapping[str, Any]) -> None:
        with suppress(comet.CometError):
            producer.send(topic, record, key=record["query"])

    try:
        yield report
    finally:
        with suppress(comet.CometError):
            producer.close()


@dataclass(frozen=True, slots=True)
class ReportedState:
    """The last report of a query."""

    state: str
    doing: str
    error: str
    event_us: int | None
    at_us: int


def plain(text: object) -> str:
    """The text of a field, fit for a line on a terminal; empty if it is none.

    >>> plain("prices" + chr(10) + "moved"), plain(None)
    ('prices moved', '')
    """
    return one_line(text) if isinstance(text, str) else ""


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= NUMBER_MAX else None


class QueryReports:
    """The states of a program's queries, from their reports. Any client can write to the topic, so every field is
    checked. `job` names the program in texts; `first` is the query whose delay counts.

    >>> reports = QueryReports("analytics", first="bars")
    >>> reports.apply({"query": "bars", "state": "running", "event_us": 1_000_000, "at_us": 1_200_000})
    >>> reports.summary(newest_us=1_400_000, now_us=1_500_000)
    'analytics 0.4 s behind (1 query)'
    """

    def __init__(self, job: str, *, first: str) -> None:
        self.queries: dict[str, ReportedState] = {}
        self._job = job
        self._first = first

    def apply(self, record: Any) -> None:
        """Takes a report; ignores any other record."""
        name = plain(record.get("query")) if isinstance(record, dict) else ""
        if name and (name in self.queries or len(self.queries) < QUERIES_MAX):
            self.queries[name] = ReportedState(
                state=plain(record.get("state")),
                doing=plain(record.get("doing")),
                error=plain(record.get("error")),
                event_us=_number(record.get("event_us")),
                at_us=_number(record.get("at_us")) or 0,
            )

    def delay_us(self, newest_us: int) -> int | None:
        """The delay behind the newest event; None before the first batch with events."""
        event_us = self.queries[self._first].event_us if self._first in self.queries else None
        return max(0, newest_us - event_us) if event_us is not None and newest_us else None

    def summary(self, newest_us: int, now_us: int) -> str:
        """The states in one line; empty without a report."""
        if not self.queries:
            return ""
        running, starting, failed = (
            [name for name, query in self.queries.items() if query.state == state]
            for state in ("running", "starting", "failed")
        )
        delay_us = self.delay_us(newest_us)
        silent_us = now_us - max(query.at_us for query in self.queries.values())
        if running and silent_us > SILENT_US:
            return f"the Spark job has been silent for {silent_us / 1e6:.0f} s"
        if delay_us is not None and self._first in running:
            queries = "1 query" if len(running) == 1 else f"{len(running)} queries"
            text = f"{self._job} {delay_us / 1e6:.1f} s behind ({queries})"
        elif starting:
            text = f"Spark: starting {starting[0]}, {self.queries[starting[0]].doing or 'soon'}"
        else:
            text = f"no {self._job}"
        return "; ".join([text, *(f"{name} failed: {self.queries[name].error}" for name in sorted(failed))])
