"""Errors of a schedule's text: which part is wrong, and what to write instead."""

from __future__ import annotations

from typing import Final

from comet.errors import InvalidSchedule

SHOWN_CHARS_MAX: Final = 40  # of a wrong part


def invalid(problem: str, position: int = 0, hint: str = "") -> InvalidSchedule:
    """The error for the part of a schedule that begins at a character.

    >>> from comet.schedules.errors import invalid
    >>> invalid("hour '25'", 8, "hours are 0-23").message
    "invalid schedule at character 8: hour '25'"
    """
    details = {"position": str(position), **({"hint": hint} if hint else {})}
    return InvalidSchedule(f"invalid schedule at character {position}: {problem}", details=details)


def shown(part: str) -> str:
    """A part of a text in quotes, shortened."""
    return repr(part if len(part) <= SHOWN_CHARS_MAX else f"{part[:SHOWN_CHARS_MAX]}…")
