"""Restarts children that have ended, by a schedule, and reports each end and restart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from comet.processes.child import Child
from comet.processes.restart_policy import RestartPolicy, Schedule

IDLE_S: Final = 5.0  # between checks while nothing is due
AGAIN_S: Final = 1.0  # after a failed start


@dataclass(frozen=True, slots=True)
class KeeperEvent:
    """An end or a restart of a child, or a failed restart."""

    kind: Literal["ended", "given up", "restarted", "not started", "recovered"]
    child: Child
    pause_s: float = 0.0  # before the restart, for "ended" and "not started"
    reason: str = ""  # for "not started"


class Keeper:
    """Restarts ended children. Its only side effects are starts and reports. Owned by one thread, which calls `check`.

    A restarted child counts as recovered when it has run for longer than the schedule's last pause.
    """

    def __init__(self, children: Sequence[Child], schedule: Schedule, report: Callable[[KeeperEvent], None]) -> None:
        self.children = list(children)
        self._schedule = schedule
        self._report = report
        self._policy = RestartPolicy[Child](schedule)
        self._restarted: dict[Child, float] = {}  # time of the last restart
        self._unproven: set[Child] = set()  # restarted, and not recovered yet

    def check(self, now: float) -> float:
        """Reports ends and starts due children; returns the time to the next start in seconds."""
        for child in self.children:
            if child.ended is not None and not self._policy.waits(child):
                pause_s = self._policy.ended(child, now, now - self._restarted.get(child, child.started))
                self._unproven.discard(child)
                self._report(KeeperEvent("given up" if pause_s is None else "ended", child, pause_s or 0.0))
        for child in self._policy.take_due(now):
            self._start(child, now)
        for child in [one for one in self._unproven if now - self._restarted[one] > self._schedule.pauses_s[-1]]:
            self._unproven.remove(child)
            self._report(KeeperEvent("recovered", child))
        due = self._policy.next_due()
        return IDLE_S if due is None else max(due - now, 0.0)

    def _start(self, child: Child, now: float) -> None:
        try:
            child.start()
        except OSError as error:  # no memory for a process, no folder for its log
            self._policy.postpone(child, now + AGAIN_S)
            self._report(KeeperEvent("not started", child, AGAIN_S, str(error)))
        else:
            self._restarted[child] = now
            self._unproven.add(child)
            self._report(KeeperEvent("restarted", child))
