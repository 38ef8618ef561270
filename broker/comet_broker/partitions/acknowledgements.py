"""Acknowledgements that a leader owes its producers: those that wait for the disk, and those that wait for followers.

    wait ─┬─ acks=1     ─► advance: durable beyond the batch    ─► done
          └─ acks=all   ─► advance: committed beyond the batch  ─► done
                        ─► release: the epoch or the log is over ─► done, with the error

Owned by a LeaderState, for its epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from comet.errors import CometError
from comet.types import Acks
from comet_broker.partitions.context import Durable

_ALL: Final = int(Acks.ALL)


class Acknowledgements:
    """`answer` calls a producer's `done` with the result, and does not raise."""

    def __init__(self, answer: Callable[[Callable[[Any], None], CometError | None], None]) -> None:
        self._answer = answer
        self.pending = 0  # how many wait
        self._durable: deque[tuple[int, Durable]] = deque()
        self._committed: deque[tuple[int, Durable]] = deque()

    def are_waiting(self, acks: int) -> bool:
        """Whether earlier batches with these acks wait: they are acknowledged first."""
        return bool(self._committed if acks == _ALL else self._durable)

    def wait(self, end_offset: int, acks: int, done: Durable) -> None:
        """Calls `done` once: when the batch that ends there may be acknowledged, or never will be."""
        (self._committed if acks == _ALL else self._durable).append((end_offset, done))
        self.pending += 1

    def advance(self, durable: int, committed: int) -> None:
        for waiting, reached in ((self._durable, durable), (self._committed, committed)):
            while waiting and waiting[0][0] <= reached:
                self.pending -= 1
                self._answer(waiting.popleft()[1], None)

    def release(self, error: CometError) -> None:
        """Answers all of them with the error."""
        for waiting in (self._durable, self._committed):
            while waiting:
                self.pending -= 1
                self._answer(waiting.popleft()[1], error)
