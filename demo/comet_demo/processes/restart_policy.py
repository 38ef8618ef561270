"""The restarts of processes that have ended: when, and with what note for the user. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)  # before the first, the second … restart; after the last, none
CALM_S: Final = 60.0  # a process that ran longer restarts after the first pause


@dataclass(slots=True)
class Restarts:
    """The restarts of one process that has ended at least once."""

    failures: int = 0
    due: float | None = None  # time of the restart; None: it runs, or is given up
    began: float = 0.0
    given_up: bool = False


class RestartPolicy:
    """Decides about restarts. Owned by the launcher. Writes the state of each failed process to `notes`, by name.

    >>> notes = {}
    >>> policy = RestartPolicy(notes)
    >>> policy.due("paper", 0.0, "code 1, no luck"), notes["paper"]
    (False, 'paper ended, restarting: code 1, no luck')
    >>> policy.due("paper", 1.0, "code 1, no luck")
    True
    """

    def __init__(self, notes: dict[str, str]) -> None:
        self._notes = notes
        self._restarts: dict[str, Restarts] = {}

    def due(self, name: str, now: float, why: str) -> bool:
        """Whether to start an ended process now. If true, the caller must start it."""
        restarts = self._restarts.setdefault(name, Restarts())
        if restarts.given_up:
            return False
        if restarts.due is None:
            self._ended(name, restarts, now, why)
        if restarts.due is None or now < restarts.due:
            return False
        restarts.due, restarts.began = None, now
        return True

    def _ended(self, name: str, restarts: Restarts, now: float, why: str) -> None:
        if now - restarts.began > CALM_S:
            restarts.failures = 0
        restarts.given_up = restarts.failures == len(PAUSES_S)
        if restarts.given_up:
            self._notes[name] = f"{name} keeps ending, not restarted: {why}"
            return
        restarts.due = now + PAUSES_S[restarts.failures]
        restarts.failures += 1
        self._notes[name] = f"{name} ended, restarting: {why}"

    def update(self, now: float) -> None:
        """Removes the notes of processes that run well again."""
        for name, restarts in self._restarts.items():
            if restarts.due is None and not restarts.given_up and now - restarts.began > PAUSES_S[-1]:
                self._notes.pop(name, None)
