"""The state of a streaming query, as a record to report at the ends of batches and at every change.
Pure: fed with Spark's progress and the time.

    starting ──first progress─► running ──► failed ──after a pause──► starting ──► …
        └─────────────────────────┴──────────┴────────► stopped
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

State = Literal["starting", "running", "stopped", "failed"]

REPORT_EVERY_US: Final = 1_000_000
ALIVE_EVERY_US: Final = 5_000_000  # also without changes: readers consider a silent program dead
REASON_MAX: Final = 500
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class BatchFigures(NamedTuple):
    """The figures of a query's last batch, by the names of the record."""

    batch: int | None = None
    rows: int = 0
    rows_per_s: float = 0.0
    batch_ms: int | None = None


_NO_BATCH: Final = BatchFigures()


@dataclass(slots=True)
class QueryState:
    """One query. Owned by its supervisor; `details` are further fields of its records.

    >>> query = QueryState("bars", {"mode": "update"})
    >>> query.failed("no broker")
    >>> record = query.record(now_us=5)
    >>> record["query"], record["state"], record["error"], record["mode"], record["at_us"]
    ('bars', 'failed', 'no broker', 'update', 5)
    """

    name: str
    details: Mapping[str, Any] = field(default_factory=dict)
    state: State = "starting"
    doing: str = ""  # the current step of a slow start
    error: str = ""
    last: BatchFigures = _NO_BATCH
    event_us: int | None = None  # the newest event it has processed
    watermark_us: int | None = None
    running_us: int = 0  # since when it runs
    _reported_us: int = -REPORT_EVERY_US  # before all times
    _changed: bool = True  # since the last report

    def started(self, doing: str = "") -> None:
        self._change("starting", doing=doing)

    def progressed(self, progress: Mapping[str, Any], now_us: int) -> None:
        """Takes a document of Spark's StreamingQueryProgress; the same one may come several times."""
        if self.state != "running":
            self.running_us = now_us
            self._change("running")
        if not is_batch(progress):
            return
        if progress["batchId"] == self.last.batch and progress.get("numInputRows") == self.last.rows:
            return
        self._changed = True
        self.last = BatchFigures(
            batch=progress["batchId"],
            rows=int(progress.get("numInputRows") or 0),
            rows_per_s=rounded(progress.get("inputRowsPerSecond")),
            batch_ms=(progress.get("durationMs") or {}).get("triggerExecution"),
        )
        times = progress.get("eventTime") or {}
        newest, watermark = micros(times.get("max")), micros(times.get("watermark"))
        self.event_us = max(filter(None, (self.event_us, newest)), default=None)
        self.watermark_us = watermark or self.watermark_us  # 1970 means none

    def failed(self, error: str) -> None:
        self._change("failed", error=reason(error))

    def stopped(self) -> None:
        """Marks the query as stopped; a failed one stays failed, the more useful state."""
        if self.state != "failed":
            self._change("stopped")

    def _change(self, state: State, *, doing: str = "", error: str = "") -> None:
        self.state, self.doing, self.error = state, doing, error
        self._reported_us, self._changed = -REPORT_EVERY_US, True

    def due_record(self, now_us: int) -> dict[str, Any] | None:
        """The record to report, if one is due: after a change, and every ALIVE_EVERY_US without one."""
        silent_us = now_us - self._reported_us
        alive = self.state in ("starting", "running") and silent_us >= ALIVE_EVERY_US
        if not alive and not (self._changed and silent_us >= REPORT_EVERY_US):
            return None
        self._reported_us, self._changed = now_us, False
        return self.record(now_us)

    def record(self, now_us: int) -> dict[str, Any]:
        return {
            "query": self.name, "state": self.state, **self.last._asdict(), "event_us": self.event_us,
            "watermark_us": self.watermark_us, "at_us": now_us, **self.details, "error": self.error,
            "doing": self.doing,
        }  # fmt: skip


def is_batch(progress: Mapping[str, Any]) -> bool:
    """Whether the progress is of a batch rather than of a trigger without data."""
    return "addBatch" in (progress.get("durationMs") or {})


def rounded(value: Any) -> float:
    """A rate; 0 for NaN or infinite, which Spark gives if too little time has passed."""
    try:
        found = round(float(value), 1)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return found if 0 <= found < float("inf") else 0.0


def micros(text: Any) -> int | None:
    """Microseconds of Spark's 2026-01-31T12:00:00.000Z; None for other texts, and for 1970, which means none."""
    if not isinstance(text, str):
        return None
    try:
        found = (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)
    except (TypeError, ValueError):
        return None
    return found or None


def reason(text: str) -> str:
    """The cause in one line, out of a long report: the error of its last Python traceback, or its first line."""
    ends = re.findall(
        r"^(?:\w+\.)*(\w*(?:Error|Exception|Timeout|Unavailable|Loss|Fenced|\w+)): (.+)$", text, re.MULTILINE
    )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if "Traceback (most recent call last)" in text and ends:
        kind, what = ends[-1]
        return f"{kind}: {what}"[:REASON_MAX]
    return (lines[0] if lines else "no reason given")[:REASON_MAX]
