"""The stored state of a share group in a partition, and the callers that wait for it to be written.

    changed ─► the journal takes a snapshot of the machine ─► stored: the callers that waited for it are called
                                                           └► replaced: another leader has written, or it was deleted

The lower half of sharing.state, which says what a change is. On the loop's thread.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from comet.errors import CometError
from comet_broker.core.share_record import ShareRecord, record_of, share_key
from comet_broker.core.shares import Shares
from comet_broker.metadata.store import KeyValue
from comet_broker.partitions.partition import Partition
from comet_broker.sharing.context import ShareContext

Acknowledged = Callable[[CometError | None], None]


class StoredState(ABC):
    """Implements journal.Keeping."""

    shares: Shares

    def __init__(self, context: ShareContext, partition: Partition, group: str, revision: int) -> None:
        self.context = context
        self.partition = partition
        self.group = group
        self.epoch = partition.leader_epoch
        self.key = share_key(partition.topic_id, partition.index, group)
        self.mod_revision = revision
        self.exists_until = 0.0  # until then the store need not be asked whether the group was deleted
        self.closed: CometError | None = None
        self.touched = False  # changed in something that may be stored a little later
        self._sequence = 0
        self._taken = b""  # what is being written
        self._waiting: list[Acknowledged] = []  # for the next snapshot
        self._writing: list[Acknowledged] = []  # for the snapshot that is being written

    def __str__(self) -> str:
        return f"group {self.group} at {self.partition}"

    @abstractmethod
    def close(self, error: CometError) -> None:
        """Ends the state and notifies all members."""

    def changed(self) -> None:
        self.touched = False
        if self.closed is None:
            self.context.journal.mark(self)

    async def claim(self) -> None:
        """Returns once this leader's state is in the store. Raises if another leader's is."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: CometError | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

        if self.closed is not None:
            raise self.closed
        self._waiting.append(done)
        self.changed()
        await future

    def is_current(self, item: KeyValue | None) -> bool:
        """Whether the stored state is this leader's. If not, the group was deleted, or another leads."""
        if item is None:
            return self.mod_revision == 0
        return item.mod_revision == self.mod_revision or ShareRecord.decode(item.value).written_by(
            self.context.env.me, self.context.broker_epoch(), self.epoch
        )

    @property
    def over(self) -> bool:
        """Nothing of it is stored any more."""
        return self.closed is not None

    @property
    def unstored(self) -> bool:
        """Whether something is to be written, or being written."""
        return bool(self.touched or self._waiting or self._writing)

    def take(self) -> bytes:
        assert not self._writing, "one transaction is under way at a time"
        self._writing, self._waiting = self._waiting, []
        self._sequence += 1
        self.touched = False
        record = record_of(
            self.shares.snapshot(),
            broker=self.context.env.me,
            broker_epoch=self.context.broker_epoch(),
            epoch=self.epoch,
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
        if not record.written_by(self.context.env.me, self.context.broker_epoch(), self.epoch):
            return None
        self.mod_revision = item.mod_revision
        return item.value == self._taken

    def replaced(self) -> None:
        self.close(self.partition.not_leader(f"another broker leads {self.partition} now, or the group was deleted"))

    @abstractmethod
    def halt(self, error: Exception) -> None:
        """An unexpected error stops the group in this partition."""

    def _fail_waiters(self, error: CometError) -> None:
        """Passes the error to all waiters; the write under way may still take effect."""
        waiting = [*self._writing, *self._waiting]
        self._writing, self._waiting = [], []
        for done in waiting:
            done(error)
