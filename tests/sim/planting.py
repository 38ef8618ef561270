"""Planted bugs: what one is, and how it gets into the code and out again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

SEEDS_MAX: Final = 200  # by so many every planted bug is found

Patch = tuple[object, str, object]  # where, name, what stands there instead


class PlantedError(Exception):
    """Raised by a broker's own code because the simulation has put it there."""


@dataclass(frozen=True, slots=True)
class Mutant:
    scenario: str
    why: str  # the mistake, in words
    breaks: tuple[str, ...]  # the invariants that may find it
    profile: Any  # that of the scenario, which gives the bug its chance
    patches: Callable[[], list[Patch]]
    caught_by: int = 0  # a seed that is known to find it


def planted(bug: Mutant) -> AbstractContextManager[None]:
    """The code with the bug in it, until the block ends."""
    return replaced(bug.patches())


@contextlib.contextmanager
def replaced(patches: Sequence[Patch]) -> Iterator[None]:
    """The code with other values in these places, until the block ends."""
    undo: list[Patch] = []
    try:
        for where, name, value in patches:
            undo.append((where, name, vars(where)[name]))
            setattr(where, name, value)
        yield
    finally:
        for where, name, value in reversed(undo):
            setattr(where, name, value)
