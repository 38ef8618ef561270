"""The stored state of a share group in a partition, and the callers that wait for it to be written.

    changed ─► the journal takes a snapshot of the machine ─► stored: the callers that waited for it are called
                                                           └► replaced: another leader has written, or it was deleted

Owned by a SharePartition, which says what a change is. On the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from comet.errors import CometError
from comet_broker.core.share_record import ShareRecord, record_of, share_key
from comet_broker.core.shares import Shares
from comet_broker.metadata.store import KeyValue
from comet_broker.partitions.partition import Partition
from comet_broker.sharing.context import ShareContext

Acknowledged = Callable[[CometError | None], None]


class StoredShares(Protocol):
    """The part of a SharePartition that its storing needs."""

    @property
    def partition(self) -> Partition: ...
    @property
    def group(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def shares(self) -> Shares: ...
    @property
    def closed(self) -> CometError | None: ...
    def close(self, error: CometError) -> None: ...
    def halt(self, error: Exception) -> None: ...


class StoredState:
    """Implements journal.StoredValue."""

    def __init__(self, state: StoredShares, context: ShareContext, revision: int) -> None:
        self.key = share_key(state.partition.topic_id, state.partition.index, state.group)
        self.mod_revision = revision
        self._state = state
        self._context = context
        self._exists_until = 0.0  # until then the store need not be asked whether the group was deleted
        self._touched = False  # changed in something that may be stored a little later
        self._sequence = 0
        self._taken = b""  # what is being written
        self._waiting: list[Acknowledged] = []  # for the next snapshot
        self._writing: list[Acknowledged] = []  # for the snapshot that is being written

    # ---- changes

    def touch(self) -> None:
        """Notes a change that may be stored a little later."""
        self._touched = True

    def changed(self) -> None:
        """Notes a change that is stored now."""
        self._touched = False
        if not self.over:
            self._context.journal.mark(self)

    def wait(self, done: Acknowledged) -> None:
        """Calls `done` when all changes up to the next `changed` are stored."""
        self._waiting.append(done)

    def tick(self) -> None:
        """Called now and then: stores what could wait."""
        if self._touched:
            self.changed()

    async def claim(self) -> None:
        """Returns once this leader's state is in the store. Raises if another leader's is."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: CometError | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

        if self._state.closed is not None:
            raise self._state.closed
        self._waiting.append(done)
        self.changed()
        await future

    # ---- the group in the store

    def is_checked(self, now: float) -> bool:
        """Whether the store was asked a moment ago if the group still exists."""
        return now < self._exists_until

    def check_again_at(self, then: float) -> None:
        self._exists_until = then

    def is_current(self, item: KeyValue | None) -> bool:
        """Whether the stored state is this leader's. If not, the group was deleted, or another leads."""
        if item is None:
            return self.mod_revision == 0
        return item.mod_revision == self.mod_revision or ShareRecord.decode(item.value).written_by(
            self._context.env.me, self._context.broker_epoch(), self._state.epoch
        )

    # ---- journal.StoredValue

    @property
    def over(self) -> bool:
        """Nothing of it is stored any more."""
        return self._state.closed is not None

    @property
    def unstored(self) -> bool:
        """Whether something is to be written, or being written."""
        return bool(self._touched or self._waiting or self._writing)

    def take(self) -> bytes:
        assert not self._writing, "one transaction is under way at a time"
        self._writing, self._waiting = self._waiting, []
        self._sequence += 1
        self._touched = False
        record = record_of(
            self._state.shares.window.snapshot(),
            broker=self._context.env.me,
            broker_epoch=self._context.broker_epoch(),
            epoch=self._state.epoch,
            sequence=self._sequence,
        )
        self._taken = record.encode()
        return self._taken

    def stored(self, revision: int) -> None:
        self.mod_revision = revision
        self._taken = b""
        written, self._writing = self._writing, []
        for done in written:
            done(None)

    def judge(self, item: KeyValue | None) -> bool | None:
        if item is None:
            return False if self.mod_revision == 0 else None
        if item.mod_revision == self.mod_revision:
            return False
        record = ShareRecord.decode(item.value)
        if not record.written_by(self._context.env.me, self._context.broker_epoch(), self._state.epoch):
            return None
        self.mod_revision = item.mod_revision
        return item.value == self._taken

    def replaced(self) -> None:
        partition = self._state.partition
        self._state.close(partition.not_leader(f"another broker leads {partition} now, or the group was deleted"))

    def halt(self, error: Exception) -> None:
        self._state.halt(error)

    def close(self, error: CometError) -> None:
        """Passes the error to all waiters; the write under way may still take effect."""
        waiting = [*self._writing, *self._waiting]
        self._writing, self._waiting = [], []
        for done in waiting:
            done(error)
