"""Dispatch: which records may be processed now, and each partition's position. Pure; it does no I/O.

    add ─► waits (behind a record with its key, or for its turn) ─► take: running, `concurrency` at most ─► done
                                                                          │
    position(tp):    the lowest unfinished offset; records before it need no processing after a restart

Of records with one key, which are all in one partition, one runs at a time, in their order. Records without a key run
in any order. An application that stops at any moment and restarts at the positions misses no record; records
processed above them come again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from comet.types import TopicPartition

T = TypeVar("T")


class Task(Generic[T]):
    """One item, a record or a batch, from `offset` up to, not including, `end`."""

    __slots__ = ("done", "end", "item", "key", "number", "offset", "running", "tp", "track")

    def __init__(
        self, tp: TopicPartition, offset: int, end: int, key: object, item: T, number: int, track: Track[T]
    ) -> None:
        self.tp = tp
        self.offset = offset
        self.end = end
        self.key = key
        self.item = item
        self.number = number  # in the order in which they came
        self.track = track
        self.running = False
        self.done = False

    def __lt__(self, other: Task[T]) -> bool:
        return self.number < other.number


class Track(Generic[T]):
    """A partition while it is assigned."""

    __slots__ = ("closed", "position", "reported", "running", "unfinished")

    def __init__(self, position: int) -> None:
        self.unfinished: deque[Task[T]] = deque()  # in order; the first is never done
        self.position = position
        self.reported = position  # the last position that `moved` returned
        self.running = 0
        self.closed = False

    def advance(self) -> None:
        unfinished = self.unfinished
        while unfinished and unfinished[0].done:
            self.position = unfinished.popleft().end
        if unfinished:
            self.position = unfinished[0].offset


class Dispatch(Generic[T]):
    """Owned by the task that runs the handlers. `window` limits its items, running or waiting."""

    def __init__(self, concurrency: int, window: int) -> None:
        assert 1 <= concurrency <= window
        self.running = 0
        self.held = 0  # added, and neither done nor released
        self._concurrency = concurrency
        self._window = window
        self._number = 0
        self._tracks: dict[TopicPartition, Track[T]] = {}
        self._ready: list[Task[T]] = []  # a heap: the oldest first
        # Per key in use the item that is ready or runs, and those that wait behind it.
        self._heads: dict[tuple[TopicPartition, object], Task[T]] = {}
        self._chains: dict[tuple[TopicPartition, object], deque[Task[T]]] = {}

    @property
    def room(self) -> int:
        """The number of items that may be added."""
        return max(self._window - self.held, 0)

    def add(self, tp: TopicPartition, offset: int, key: object, item: T, *, end: int | None = None) -> None:
        """Adds the next item of a partition. A new or released partition begins at this item."""
        assert self.held < self._window, "there is no room"
        track = self._tracks.get(tp)
        if track is None or track.closed:
            track = self._tracks[tp] = Track(offset)
        assert not track.unfinished or offset >= track.unfinished[-1].end, "records are added in order"
        task = Task(tp, offset, offset + 1 if end is None else end, key, item, self._number, track)
        self._number += 1
        self.held += 1
        if not track.unfinished:
            track.position = offset
        track.unfinished.append(task)
        if key is None:
            heappush(self._ready, task)
            return
        name = (tp, key)
        if name not in self._heads:
            self._heads[name] = task
            heappush(self._ready, task)
        else:
            self._chains.setdefault(name, deque()).append(task)

    def take(self) -> Task[T] | None:
        """Starts the oldest item that may run; None if there is none, or `concurrency` is reached."""
        if self.running >= self._concurrency or not self._ready:
            return None
        task = heappop(self._ready)
        assert not task.running and not task.done
        task.running = True
        task.track.running += 1
        self.running += 1
        return task

    def done(self, task: Task[T]) -> None:
        """Marks an item as done or skipped. One of a released partition moves no position."""
        assert task.running and not task.done
        task.running, task.done = False, True
        self.running -= 1
        self.held -= 1
        track = task.track
        track.running -= 1
        if track.unfinished and track.unfinished[0] is task:
            track.advance()
        self._next_of_key(task)

    def dropped(self, task: Task[T]) -> None:
        """Marks an item that must be handled again after a restart: positions never move beyond it."""
        assert task.running and not task.done
        task.running = False
        self.running -= 1
        self.held -= 1
        task.track.running -= 1
        self._next_of_key(task)

    def _next_of_key(self, task: Task[T]) -> None:
        if task.key is None:
            return
        name = (task.tp, task.key)
        chain = self._chains.get(name)
        if chain:
            self._heads[name] = head = chain.popleft()
            heappush(self._ready, head)
        else:
            del self._heads[name]
            self._chains.pop(name, None)

    # ---- positions

    def position(self, tp: TopicPartition) -> int | None:
        """The offset to restart at; None for a partition without items."""
        track = self._tracks.get(tp)
        return None if track is None else track.position

    def moved(self) -> dict[TopicPartition, int]:
        """The positions that have changed since the last call."""
        found = {tp: track.position for tp, track in self._tracks.items() if track.position != track.reported}
        for tp, position in found.items():
            self._tracks[tp].reported = position
        return found

    def running_in(self, tp: TopicPartition) -> int:
        track = self._tracks.get(tp)
        return 0 if track is None else track.running

    # ---- releasing partitions

    def close(self, tps: Iterable[TopicPartition]) -> None:
        """Starts no more items of these partitions. Running ones finish, and still move the position."""
        chosen = {tp for tp in tps if tp in self._tracks and not self._tracks[tp].closed}
        if not chosen:
            return
        for tp in chosen:
            self._tracks[tp].closed = True
        ready = self._ready
        self._ready = sorted(task for task in ready if task.tp not in chosen)  # sorted: it is a heap
        self.held -= len(ready) - len(self._ready)
        for name in [name for name, head in self._heads.items() if name[0] in chosen]:
            self.held -= len(self._chains.pop(name, ()))
            if not self._heads[name].running:  # a running item keeps its key, also if the partition is assigned again
                del self._heads[name]

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """Drops partitions that are assigned to another member: running items no longer move a position."""
        tps = list(tps)
        self.close(tps)
        for tp in tps:
            self._tracks.pop(tp, None)
