"""Answers that several calls wait for: made once, and the same object for all of them.

    expect(key) ─► wait for records ─► answer(key, version) ─┬─ the first: made
                                                             └─ the others: the same

The version says what an answer was made from. A key keeps its last answer while calls expect one.

Owned by UnaryRecords, on the loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SharedAnswers(Generic[T]):
    def __init__(self) -> None:
        self._expected: Counter[Hashable] = Counter()
        self._last: dict[Hashable, tuple[Hashable, asyncio.Task[T]]] = {}

    def __len__(self) -> int:
        """The number of answers that are kept."""
        return len(self._last)

    @contextmanager
    def expect(self, key: Hashable) -> Iterator[None]:
        self._expected[key] += 1
        try:
            yield
        finally:
            self._expected[key] -= 1
            if not self._expected[key]:
                del self._expected[key]
                self._last.pop(key, None)

    async def answer(self, key: Hashable, version: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer for a call that expects it. One that is cancelled leaves it to the others."""
        assert self._expected[key] > 0
        last = self._last.get(key)
        if last is None or last[0] != version:
            task = asyncio.get_running_loop().create_task(make(), name="make an answer for several calls")
            task.add_done_callback(_retrieve)
            last = self._last[key] = version, task
        return await asyncio.shield(last[1])


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Takes note of its error, which the calls raise that still wait for it."""
    if not task.cancelled():
        task.exception()
