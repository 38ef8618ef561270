"""Keeps the streaming queries of a program running, and reports their states as records.

Queries start one after the other, each after the first batch of the previous one: a start of all at once delays all,
and two that start in the same moment may corrupt shared state (docs/spark.md).
A query that fails is restarted after a pause, from its checkpoint, while the others continue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import comet
from comet.processes.hang_watchdog import HangWatchdog
from comet.processes.restart_policy import RestartPolicy, Schedule
from comet.spark.local import jvm
from comet.spark.query_state import QueryState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_BATCH_US_MAX: Final = 90_000_000  # the next query starts after this time in any case
RESTARTS: Final = Schedule(pauses_s=(1.0, 2.0, 5.0, 10.0, 30.0), calm_s=120.0)
TURN_EVERY_S: Final = 0.25
ALIVE_S: Final = 4.0  # between two records of a program that starts
CALM_S: Final = 3.0  # that batches get to end before their queries are stopped


class RunningQuery(Protocol):
    """A running query: the part of Spark's StreamingQuery that is used."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802 - Spark's name
    @property
    def lastProgress(self) -> Any: ...  # noqa: N802
    @property
    def status(self) -> Mapping[str, Any]: ...
    def exception(self) -> Any: ...
    def stop(self) -> None: ...


class QuerySupervisor:
    """Starts, watches, restarts and stops queries. Used by one thread, which calls `run`.

        supervisor = QuerySupervisor({"bars": {}, "alerts": {}}, start, report)
        with supervisor.starting("Java and Spark"):
            session = stack.enter_context(local.session("quotes"))
        supervisor.run(session, stopping)

    `queries` are their names in the order of their start, with further fields of their records. `start` starts one of
    them, from its checkpoint if it has one; it is called again for each restart. `report` takes a record of a query:
    its state, error, last batch, newest event and watermark.
    """

    def __init__(
        self,
        queries: Mapping[str, Mapping[str, Any]],
        start: Callable[[str], RunningQuery],
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        self.queries = {name: QueryState(name, details) for name, details in queries.items()}
        self._start = start
        self._report = report
        self._running: dict[str, RunningQuery] = {}
        self._restarts = RestartPolicy[str](RESTARTS)
        self._waiting = list(queries)  # for their first start
        self._begun_us = 0  # when the last of them was started
        self._last = ""

    @contextmanager
    def starting(self, doing: str) -> Iterator[None]:
        """Reports from a thread that the queries are starting, while the block waits for a JVM."""
        up = threading.Event()
        for query in self.queries.values():
            query.started(doing)

        def report() -> None:
            while not up.is_set():
                for query in self.queries.values():
                    self._report(query.record(_now_us()))
                up.wait(ALIVE_S)

        thread = threading.Thread(target=report, name="report of the start", daemon=True)
        thread.start()
        try:
            yield
        finally:
            up.set()
            thread.join()

    def run(self, session: SparkSession, stopping: threading.Event) -> None:
        """Runs the queries until `stopping` is set. Stops them between two batches if one ends soon, else during a
        batch, which is repeated from the checkpoint. Raises Unavailable if the session's JVM is gone: no query can run
        again. A JVM of the session's own that does not answer for two minutes is killed."""
        java = jvm(session)
        with HangWatchdog(java and java.kill) as watchdog:
            try:
                while not stopping.wait(TURN_EVERY_S):
                    self.turn(_now_us())
                    gone = self._gone(session)
                    if gone and not stopping.is_set():  # one Ctrl-C may reach both
                        raise comet.Unavailable(gone)
                    watchdog.answered()
            finally:
                until = time.monotonic() + CALM_S
                while not self.end(_now_us(), force=time.monotonic() > until):
                    time.sleep(0.02)

    def _gone(self, session: SparkSession) -> str:
        """The reason why no query can run again, asked if one has failed; "" if they can."""
        if not any(query.state == "failed" for query in self.queries.values()):
            return ""
        try:
            java: Any = session.sparkContext._jsc
            return "Spark has stopped" if java.sc().isStopped() else ""
        except Exception as error:  # noqa: BLE001 - any error means that Spark does not answer
            return f"Spark's JVM does not answer: {error}"

    def turn(self, now_us: int) -> None:
        """Checks each query, and starts those that are due."""
        for name, running in list(self._running.items()):
            self._check(name, running, now_us)
        self._start_next(now_us)
        for name in self._restarts.take_due(now_us / 1e6):
            self._begin(name, now_us)
        self._report_due(now_us)

    def end(self, now_us: int, *, force: bool = False) -> bool:
        """Stops the queries that are between two batches, or all by force. Returns whether all have ended."""
        self._waiting.clear()
        for name, running in list(self._running.items()):
            self._check(name, running, now_us)
            if name in self._running and (force or not _busy(running)):
                del self._running[name]
                with suppress(Exception):  # the JVM may have ended, and the query with it
                    running.stop()
        self._restarts = RestartPolicy(RESTARTS)  # without those that are due
        if not self._running:
            for query in self.queries.values():
                query.stopped()
        self._report_due(now_us)
        return not self._running

    def _report_due(self, now_us: int) -> None:
        for query in self.queries.values():
            record = query.due_record(now_us)
            if record is not None:
                self._report(record)

    def _check(self, name: str, running: RunningQuery, now_us: int) -> None:
        try:
            progress = running.lastProgress
            ended = "" if running.isActive else str(running.exception() or "the query ended without an error")
        except Exception as error:  # noqa: BLE001 - any error means that Spark does not answer
            progress, ended = None, str(error) or "Spark does not answer"
        if progress is not None:
            self.queries[name].progressed(progress, now_us)
        if ended:
            del self._running[name]
            self._fail(name, ended, now_us)

    def _start_next(self, now_us: int) -> None:
        """Starts the next query, if the previous one has done its first batch."""
        if not self._waiting:
            return
        before = self.queries.get(self._last)
        if before is None or before.state != "starting" or now_us - self._begun_us > FIRST_BATCH_US_MAX:
            self._last, self._begun_us = self._waiting.pop(0), now_us
            self._begin(self._last, now_us)

    def _begin(self, name: str, now_us: int) -> None:
        self.queries[name].started("the first batch")
        try:
            self._running[name] = self._start(name)
        except Exception as error:  # noqa: BLE001 - any refusal is reported, and retried
            self._fail(name, str(error), now_us)

    def _fail(self, name: str, error: str, now_us: int) -> None:
        query = self.queries[name]
        ran_us = now_us - query.running_us if query.state == "running" else 0
        query.failed(error)
        self._restarts.ended(name, now_us / 1e6, ran_us / 1e6)


def _busy(running: RunningQuery) -> bool:
    """Whether the query is in a batch."""
    try:
        return bool(running.status.get("isTriggerActive"))
    except Exception:  # noqa: BLE001 - as for an ended query
        return False


def _now_us() -> int:
    return time.time_ns() // 1000
