"""The entities that have failed on this broker with an unexpected error: which, why, and since when.

    one entity's step ─► exception ─► Failures.note ─► statistics, metrics, /readyz, pages, `comet cluster`
                                         └─► the entity is stopped         partition, group, transactional id
                                             or is retried later          slot, share, topic, task
    `comet cluster resume` or a restart ─► Failures.clear

An unexpected error is any exception that the code around the step does not handle: an assertion, a KeyError. Loops over
many entities run each step within `guard`, so that one entity's error never ends the loop. The owner of the entity
stops it (partitions.leader_eligibility, coordination.groups, coordination.transactions); this table only reports it.

Owned by the broker; on its loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from types import TracebackType
from typing import Any, Final

from comet_broker import limits
from comet_broker.ports import Clock
from comet_broker.tasks import Tasks

PASSING_S: Final = 60.0  # for which the error of an entity that goes on is shown
REASON_CHARS_MAX: Final = 400


class Kind(StrEnum):
    """The kinds of entities that can fail alone."""

    PARTITION = "partition"
    SLOT = "slot"
    GROUP = "group"
    TRANSACTION = "transaction"
    SHARE = "share"
    TOPIC = "topic"
    TASK = "task"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed entity, and its errors since it was last cleared."""

    kind: Kind
    name: str
    step: str  # the step that failed
    reason: str
    since_us: int
    count: int
    until: float | None  # when it is no longer shown, on the monotonic clock; None: stopped until it is cleared

    def document(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "name": self.name,
            "step": self.step,
            "reason": self.reason,
            "since_us": self.since_us,
            "count": self.count,
            "stopped": self.until is None,
        }


class Failures:
    """The table of failed entities, at most FAILURES_MAX; beyond that new ones are only counted."""

    def __init__(self, clock: Clock, tasks: Tasks) -> None:
        self.total: Counter[Kind] = Counter()  # errors since the start, by kind
        self._clock = clock
        self._tasks = tasks
        self._found: dict[tuple[Kind, str], Failure] = {}
        tasks.on_failed.append(self._task_failed)

    def note(self, kind: Kind, name: str, error: BaseException, step: str = "", *, passing: bool = False) -> str:
        """Logs, counts and shows an error; returns the reason. `passing`: the entity goes on, or is retried."""
        self._tasks.report(f"{step or 'running'} of {kind.value} {name}", error, shown=True)
        return self._add(kind, name, error, step, passing=passing)

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._add(Kind.TASK, name, error, "", passing=True)

    def _add(self, kind: Kind, name: str, error: BaseException, step: str, *, passing: bool) -> str:
        reason = repr(error)[:REASON_CHARS_MAX]
        self.total[kind] += 1
        key = (kind, name)
        until = self._clock.monotonic() + PASSING_S if passing else None
        found = self._found.get(key)
        if found is not None:
            # A stopped entity stays stopped, and keeps its first reason.
            shown_failure = found if found.until is None else replace(found, step=step, reason=reason, until=until)
            self._found[key] = replace(shown_failure, count=found.count + 1)
        else:
            self._forget_passed()
            if len(self._found) < limits.FAILURES_MAX:
                self._found[key] = Failure(kind, name, step, reason, self._clock.wall_us(), 1, until)
        return reason

    def clear(self, kind: Kind, name: str) -> None:
        """Removes an entity that is resumed or gone."""
        self._found.pop((kind, name), None)

    def clear_passing(self) -> None:
        """Removes the passing errors, which an operator has seen."""
        self._found = {key: found for key, found in self._found.items() if found.until is None}

    def _forget_passed(self) -> None:
        now = self._clock.monotonic()
        gone = [key for key, found in self._found.items() if found.until is not None and found.until <= now]
        for key in gone:
            del self._found[key]

    def find(self, kind: Kind, name: str) -> Failure | None:
        self._forget_passed()
        return self._found.get((kind, name))

    def all(self) -> list[Failure]:
        """All failures, stopped entities first."""
        self._forget_passed()
        return sorted(self._found.values(), key=lambda found: (found.until is not None, found.since_us))

    def guard(self, kind: Kind, name: str, step: str, failed: Callable[[Exception], object] | None = None) -> Guard:
        """A context for one entity's step. An exception is passed to `failed`, which stops the entity and notes it;
        without `failed` the step is skipped, and noted as passing."""
        return Guard(self, kind, name, step, failed)

    def fail(
        self, kind: Kind, name: str, step: str, error: Exception, failed: Callable[[Exception], object] | None
    ) -> None:
        """Handles an exception as `guard` does."""
        if failed is None:
            self.note(kind, name, error, step, passing=True)
            return
        try:
            failed(error)
        except Exception as second:  # noqa: BLE001 - stopping one entity must not end the others' loop either
            self.note(kind, name, error, step)
            self.note(kind, name, second, f"stopping after {step}")

    def statistics(self) -> dict[str, Any]:
        found = self.all()
        stopped = Counter(one.kind for one in found if one.until is None)
        return {
            "failed": [one.document() for one in found[: limits.FAILURES_SHOWN_MAX]],
            "failed_count": len(found),
            "failed_by_kind": {kind.value: stopped[kind] for kind in Kind},
            "failures_by_kind": {kind.value: self.total[kind] for kind in Kind},
        }


class Guard:
    """The context of Failures.guard. Cancellation and other BaseExceptions pass."""

    __slots__ = ("_failed", "_failures", "_kind", "_name", "_step")

    def __init__(
        self, failures: Failures, kind: Kind, name: str, step: str, failed: Callable[[Exception], object] | None
    ) -> None:
        self._failures = failures
        self._kind = kind
        self._name = name
        self._step = step
        self._failed = failed

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._failures.fail(self._kind, self._name, self._step, error, self._failed)
        return True
