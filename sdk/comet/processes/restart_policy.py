"""Decisions about child processes: when an ended one starts again, in which order they end, when SIGTERM becomes
SIGKILL. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The pauses before the first, second, ... restart in a row.

    A process that ran for longer than `calm_s` restarts after the first pause again. After the last pause an `endless`
    schedule repeats it; any other one gives the process up.
    """

    pauses_s: tuple[float, ...]
    calm_s: float
    endless: bool = True

    def __post_init__(self) -> None:
        assert self.pauses_s and all(pause_s > 0 for pause_s in self.pauses_s) and self.calm_s > 0


class RestartBackoff:
    """The restarts of one process.

    >>> backoff = RestartBackoff(Schedule((1.0, 5.0), calm_s=60.0, endless=False))
    >>> backoff.failed(ran_s=0.1), backoff.failed(ran_s=0.1), backoff.failed(ran_s=0.1), backoff.failed(ran_s=61.0)
    (1.0, 5.0, None, 1.0)
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._failures = 0  # in a row

    def failed(self, ran_s: float) -> float | None:
        """The pause before the next restart; None: the process is given up."""
        pauses_s = self._schedule.pauses_s
        if ran_s > self._schedule.calm_s:
            self._failures = 0
        if self._failures >= len(pauses_s) and not self._schedule.endless:
            return None
        pause_s = pauses_s[min(self._failures, len(pauses_s) - 1)]
        self._failures += 1
        return pause_s


class RestartPolicy(Generic[K]):
    """The restarts of several processes. Owned by one keeper, which starts those that are due.

    >>> policy = RestartPolicy[str](Schedule((1.0, 2.0), calm_s=60.0))
    >>> policy.ended("paper", now=10.0, ran_s=3.0), policy.take_due(10.5), policy.take_due(11.0)
    (1.0, [], ['paper'])
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._backoffs: dict[K, RestartBackoff] = {}
        self._due: dict[K, float] = {}
        self._given_up: set[K] = set()

    def waits(self, name: K) -> bool:
        """Whether the end of this process is known: it is due later, or given up."""
        return name in self._due or name in self._given_up

    def ended(self, name: K, now: float, ran_s: float) -> float | None:
        """Records the end of a process. Returns the pause before its restart, or None if it is given up."""
        assert not self.waits(name)
        pause_s = self._backoffs.setdefault(name, RestartBackoff(self._schedule)).failed(ran_s)
        if pause_s is None:
            self._given_up.add(name)
        else:
            self._due[name] = now + pause_s
        return pause_s

    def take_due(self, now: float) -> list[K]:
        """The processes to start now. The caller must start them."""
        due = [name for name, due in self._due.items() if due <= now]
        for name in due:
            del self._due[name]
        return due

    def postpone(self, name: K, due: float) -> None:
        """Makes a process that could not be started due later."""
        self._due[name] = due

    def next_due(self) -> float | None:
        return min(self._due.values(), default=None)


def end_order(tiers: Mapping[K, int]) -> list[list[K]]:
    """Groups of processes to end one after the other: the highest tier first, within a tier the last one started first.

    >>> end_order({"broker": 0, "feed": 1, "paper": 1})
    [['paper', 'feed'], ['broker']]
    """
    return [_in_tier(tiers, tier) for tier in sorted(set(tiers.values()), reverse=True)]


def _in_tier(tiers: Mapping[K, int], tier: int) -> list[K]:
    return [name for name in reversed(list(tiers)) if tiers[name] == tier]


Step = Literal["wait", "kill", "done"]
WITHIN_S: Final = 30.0


def stop_step(running: Iterable[bool], waited_s: float, within_s: float, *, hurry: bool) -> Step:
    """What follows SIGTERM: to wait while any process runs, and to kill it after the deadline or in a hurry.

    >>> stop_step([True, False], 1.0, 30.0, hurry=False), stop_step([True], 31.0, 30.0, hurry=False)
    ('wait', 'kill')
    >>> stop_step([False], 31.0, 30.0, hurry=True)
    'done'
    """
    if not any(running):
        return "done"
    return "kill" if hurry or waited_s > within_s else "wait"
