"""The readers of one partition: which there are, which of them wait for more, and the tail that serves them.

    add ─► wait at a bound ─► wake, once ─► ... ─► remove        by key: a cursor, a call, a share group

A bound is the log end offset, the high watermark or the last stable offset. The tail is empty without
readers. An error of one reader is reported, and stops neither the others nor the partition.

Owned by a Partition, on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from comet.errors import CometError
from comet.records import STAMP_BYTES
from comet_broker.core.tail import Tail
from comet_broker.core.watermarks import Moved, ReadBound
from comet_broker.partitions.context import Reader, Waiter
from comet_broker.tasks import Tasks


class Readers:
    def __init__(self, name: str, tail: Tail, tasks: Tasks) -> None:
        self.tail = tail
        self._name = name
        self._tasks = tasks
        self._registered: dict[Hashable, tuple[Reader, bool]] = {}  # in any state; with whether it needs the leader
        self._waiting: list[dict[Hashable, Waiter]] = [{} for _ in ReadBound]

    def __len__(self) -> int:
        return len(self._registered)

    def waiting(self, bound: ReadBound) -> int:
        """The number of readers that wait at this bound."""
        return len(self._waiting[bound])

    # ---- coming and going

    def add(self, key: Hashable, reader: Reader, *, leader_only: bool) -> None:
        """Registers a reader. One that is `leader_only` is ended when this broker stops leading."""
        self._registered[key] = reader, leader_only

    def remove(self, key: Hashable) -> None:
        self.stop_waiting(key)
        if self._registered.pop(key, None) is not None and not self._registered:
            self.tail.clear()

    def wait(self, bound: ReadBound, key: Hashable, waiter: Waiter) -> None:
        """Wakes this reader once, when the bound moves next."""
        self._waiting[bound][key] = waiter

    def stop_waiting(self, key: Hashable) -> None:
        for waiting in self._waiting:
            waiting.pop(key, None)

    # ---- notifications

    def push(self, base_offset: int, next_offset: int, batch: memoryview, stamp: bytes = b"") -> None:
        """Puts an appended batch into the tail, if anything reads the partition. Without `stamp`, the batch has it."""
        if self._registered:
            self.tail.push(base_offset, next_offset, stamp or bytes(batch[:STAMP_BYTES]), batch[STAMP_BYTES:])

    def wake(self, moved: Moved) -> None:
        """Wakes the readers that wait at these bounds."""
        for bound in moved:
            woken = self._waiting[bound]
            if woken:
                self._waiting[bound] = {}
                for key, waiter in woken.items():
                    try:
                        waiter.advanced(key)
                    except Exception as error:  # noqa: BLE001 - reported; it concerns a reader, not the partition
                        self._tasks.report(f"waking a reader of {self._name}", error)

    def end_leader_only(self, error: CometError) -> None:
        for key, (reader, leader_only) in list(self._registered.items()):
            if leader_only:
                reader.partition_closed(key, error)

    def end_beyond(self, offset: int, error: CometError) -> None:
        """Ends the readers that have read records from `offset` on."""
        for key, (reader, _) in list(self._registered.items()):
            if reader.next_offset(key) > offset:
                reader.partition_closed(key, error)

    def close(self, error: CometError) -> None:
        """Ends all of them, each once."""
        ended: dict[Hashable, Reader | Waiter] = {key: one for each in self._waiting for key, one in each.items()}
        ended.update({key: reader for key, (reader, _) in self._registered.items()})
        self._waiting = [{} for _ in ReadBound]
        for key, one in ended.items():
            answer(self._tasks, self._name, partial(one.partition_closed, key), error)
        self.tail.clear()


def answer(tasks: Tasks, name: str, done: Callable[[Any], None], what: object) -> None:
    """Calls `done`; its error is reported: it concerns a client, not the partition of this name."""
    try:
        done(what)
    except Exception as caught:  # noqa: BLE001 - as above
        tasks.report(f"answering a client of {name}", caught)
