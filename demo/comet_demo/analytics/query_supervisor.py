"""Keeps the queries of the Spark job running, and reports their states. It uses only a few methods of Spark.

Queries start one after the other, each after the first batch of the previous one: a start of all at once delays all,
and two that start in the same moment may corrupt shared state (docs/spark.md).
A query that fails is restarted after a pause, from its checkpoint, while the others continue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from comet_demo.analytics.job_state import Job

FIRST_BATCH_US_MAX: Final = 90_000_000  # the next query starts after this time in any case


class Running(Protocol):
    """A running query: the part of Spark's StreamingQuery that is used."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802 - Spark's name
    @property
    def lastProgress(self) -> Any: ...  # noqa: N802
    @property
    def status(self) -> Mapping[str, Any]: ...
    def exception(self) -> Any: ...
    def stop(self) -> None: ...


class Supervisor:
    """Starts, watches and stops queries. One thread calls `turn` a few times a second, then `end` until it is true."""

    def __init__(
        self, jobs: Sequence[Job], start: Callable[[str], Running], report: Callable[[dict[str, Any]], None]
    ) -> None:
        self.jobs = {job.query: job for job in jobs}
        self._start = start
        self._report = report
        self._running: dict[str, Running] = {}
        self._due_us: dict[str, int] = {}  # when to start a query that does not run
        self._waiting = [job.query for job in jobs]  # for their first start
        self._begun_us = 0  # when the last of them was started
        self._last = ""

    def turn(self, now_us: int) -> None:
        """Checks each query, and starts those that are due."""
        for name, query in list(self._running.items()):
            self._check(name, query, now_us)
        self._start_next(now_us)
        for name in [name for name, due_us in self._due_us.items() if due_us <= now_us]:
            del self._due_us[name]
            self._begin(name, now_us)
        self.report(now_us)

    def report(self, now_us: int) -> None:
        """Reports each query's news."""
        for job in self.jobs.values():
            record = job.due_record(now_us)
            if record is not None:
                self._report(record)

    def end(self, now_us: int, *, force: bool = False) -> bool:
        """Stops the queries that are between two batches, or all by force. Returns whether all have ended."""
        self._waiting.clear()
        self._due_us.clear()
        for name, query in list(self._running.items()):
            self._check(name, query, now_us)
            if name in self._running and (force or not _busy(query)):
                del self._running[name]
                with suppress(Exception):  # the JVM may have ended, and the query with it
                    query.stop()
        self._due_us.clear()
        if not self._running:
            for job in self.jobs.values():
                job.stopped()
        self.report(now_us)
        return not self._running

    def _check(self, name: str, query: Running, now_us: int) -> None:
        job = self.jobs[name]
        try:
            progress = query.lastProgress
            ended = "" if query.isActive else str(query.exception() or "the query ended without an error")
        except Exception as error:  # noqa: BLE001 - any error means that Spark does not answer
            progress, ended = None, str(error) or "Spark does not answer"
        if progress is not None:
            job.progressed(progress, now_us)
        if ended:
            del self._running[name]
            self._fail(job, ended, now_us)

    def _start_next(self, now_us: int) -> None:
        """Starts the next query, if the previous one has done its first batch."""
        if not self._waiting:
            return
        before = self.jobs.get(self._last)
        if before is None or before.state != "starting" or now_us - self._begun_us > FIRST_BATCH_US_MAX:
            self._last, self._begun_us = self._waiting.pop(0), now_us
            self._begin(self._last, now_us)

    def _begin(self, name: str, now_us: int) -> None:
        job = self.jobs[name]
        job.started("the first batch")
        try:
            self._running[name] = self._start(name)
        except Exception as error:  # noqa: BLE001 - any refusal is reported, and retried
            self._fail(job, str(error), now_us)

    def _fail(self, job: Job, error: str, now_us: int) -> None:
        self._due_us[job.query] = now_us + round(job.failed(error) * 1e6)


def _busy(query: Running) -> bool:
    """Whether the query is in a batch."""
    try:
        return bool(query.status.get("isTriggerActive"))
    except Exception:  # noqa: BLE001 - as for an ended query
        return False
