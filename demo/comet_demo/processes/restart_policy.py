"""The restarts of processes that have ended: when, and with what note for the user. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)  # before the first, the second … restart; after the last, none
CALM_S: Final = 60.0  # a process that ran longer begins again with the first pause


@dataclass(slots=True)
class Case:
    """The restarts of one process that has ended at least once."""

    failures: int = 0
    due: float | None = None  # time of the restart; None: it runs, or is given up
    began: float = 0.0
    given_up: bool = False


class Care:
    """Decides about restarts. Owned by the launcher. Writes the state of each failed process to `notes`, by name.

    >>> notes = {}
    >>> care = Care(notes)
    >>> care.due("paper", 0.0, "code 1, no luck"), notes["paper"]
    (False, 'paper ended, and is started again: code 1, no luck')
    >>> care.due("paper", 1.0, "code 1, no luck")
    True
    """

    def __init__(self, notes: dict[str, str]) -> None:
        self._notes = notes
        self._cases: dict[str, Case] = {}

    def due(self, name: str, now: float, why: str) -> bool:
        """Whether to start an ended process now. If true, the caller must start it."""
        case = self._cases.setdefault(name, Case())
        if case.given_up:
            return False
        if case.due is None:
            self._ended(name, case, now, why)
        if case.due is None or now < case.due:
            return False
        case.due, case.began = None, now
        return True

    def _ended(self, name: str, case: Case, now: float, why: str) -> None:
        if now - case.began > CALM_S:
            case.failures = 0
        case.given_up = case.failures == len(PAUSES_S)
        if case.given_up:
            self._notes[name] = f"{name} ended, again and again: {why}"
            return
        case.due = now + PAUSES_S[case.failures]
        case.failures += 1
        self._notes[name] = f"{name} ended, and is started again: {why}"

    def look(self, now: float) -> None:
        """Removes the notes of processes that run well again."""
        for name, case in self._cases.items():
            if case.due is None and not case.given_up and now - case.began > PAUSES_S[-1]:
                self._notes.pop(name, None)
