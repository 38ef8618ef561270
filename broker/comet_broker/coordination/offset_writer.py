"""Writes the offsets of one group: commits gather while earlier ones are on their way to the metadata store.

    commit ─► gathered ─► one journal write for all that has gathered ─► answers
    write  ─► one journal write of its own, together with other operations

The writes of a group have one order. Owned by the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from comet.errors import CometError, LimitExceeded
from comet_broker import limits
from comet_broker.coordination.committed_offsets import Admitted, CommittedOffsets, OffsetsByTopic
from comet_broker.coordination.journal import Journal, Operation, Written
from comet_broker.metadata.store import Put


def check_room(waiting: Sequence[Written]) -> None:
    """Raises unless one more may wait."""
    if len(waiting) >= limits.GROUP_WAITING_MAX:
        raise LimitExceeded("too many requests wait for the metadata store", retry_after_ms=500)


class OffsetWriter:
    """
    key            of the offsets in a topic, by its id
    first_record   the write of the group's record, unless the store has it
    halt           stops the group after an unexpected error in a step
    """

    def __init__(
        self,
        offsets: CommittedOffsets,
        journal: Journal,
        *,
        key: Callable[[str], str],
        first_record: Callable[[], list[Operation]],
        halt: Callable[[str, Exception], object],
    ) -> None:
        self.last_commit_us = 0  # 0: none since the group was loaded
        self._offsets = offsets
        self._journal = journal
        self._key = key
        self._first_record = first_record
        self._halt = halt
        self._writing = 0  # writes of gathered offsets
        self._committers: list[Written] = []
        self._closed = False

    def commit(self, admitted: Admitted, done: Written) -> None:
        """Writes the offsets, with others that have gathered. Calls `done` when they and all earlier ones are
        written."""
        if not admitted.entries and not self._offsets.pending:
            done(None)
            return
        check_room(self._committers)
        self._offsets.gather(admitted.entries)
        self._committers.append(done)
        if not self._writing:
            self.flush()

    def flush(self) -> None:
        """Queues a write of all gathered offsets; commits that wait for earlier ones wait for it, too."""
        if not self._offsets.gathered and not self._committers:
            return
        flight = self._offsets.take_gathered()
        answers, self._committers = self._committers, []
        self._writing += 1

        def done(error: CometError | None) -> None:
            self._writing -= 1
            try:
                self._offsets.finish_write(flight, written=error is None)
                for answer in answers:
                    answer(error)
                if not self._writing and not self._closed:
                    self.flush()
            except Exception as caught:  # noqa: BLE001 - reported by halt; the slot's other writes are answered
                self._halt("applying written offsets", caught)

        self._journal.write(self._operations(flight), done)

    def _operations(self, flight: OffsetsByTopic) -> list[Operation]:
        operations: list[Operation] = [
            Put(self._key(topic_id), self._offsets.merged(topic_id).encode()) for topic_id in flight
        ]
        return [*operations, *self._first_record()] if operations else []

    def write(self, admitted: Admitted, operations: Sequence[Operation], done: Written) -> None:
        """Writes the offsets and `operations` together."""
        flight = self._offsets.start_write(admitted.entries)

        def written(error: CometError | None) -> None:
            self._offsets.finish_write(flight, written=error is None)
            done(error)

        self._journal.write([*self._operations(flight), *operations], written)

    async def caught_up(self) -> None:
        """Waits until all admitted offsets are written, and no other broker coordinates the group for certain."""
        self.flush()
        await self._journal.written()

    def close(self) -> list[Written]:
        """Writes no more of what gathers. Returns the commits that wait, which the caller answers."""
        self._closed = True
        waiting, self._committers = self._committers, []
        return waiting
