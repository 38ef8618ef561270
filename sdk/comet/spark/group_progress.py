"""Commits a stream's progress to a group, for dashboards and alarms, in the background.

    the end of a batch ─► newest ─► one request at a time, with the newest marks ─► the group's coordinator

Owned by one stream; used on the background loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from comet.errors import CometError, Timeout
from comet.spark.planning import Marks

log = logging.getLogger(__name__)


class ProgressReporter:
    """Reports to a group. `report` returns the error, if any."""

    def __init__(self, group: str, report: Callable[[Marks], Awaitable[CometError | None]]) -> None:
        self._group = group
        self._report = report
        self._newest: Marks = {}
        self._tried: Marks = {}
        self._reason = ""  # of the last warning, while it lasts
        self._task: asyncio.Task[None] | None = None

    def newest(self, marks: Marks) -> None:
        """Reports the stream's current positions."""
        self._newest = marks
        if self._task is not None and self._task.done():
            self._task.result()  # raises an unexpected error
            self._task = None
        if self._task is None and marks != self._tried:
            self._task = asyncio.create_task(self._run(), name=f"report {self._group}")

    async def reported(self) -> None:
        """Waits until the newest positions are reported, or the report has failed."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        while self._newest != self._tried:
            marks = self._newest
            problem = await self._report(marks)
            reason = "" if problem is None else problem.code
            if reason and reason != self._reason:
                log.warning("progress not committed to group %r: %s", self._group, problem)
            self._reason = reason
            if problem is not None and (problem.retriable or isinstance(problem, Timeout)):
                return  # by the next call there may be newer positions
            self._tried = marks
