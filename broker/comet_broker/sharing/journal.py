"""Stores the state of share groups: many states to a transaction of the metadata store, one transaction under way.

    mark(state) ─► dirty ─► one transaction: for each state compare its key, put its current value ─► stored

Each state is a key of its own, compared by its own revision, so a leader that was replaced fails only for partitions
that it no longer leads. A transaction with an unknown outcome is looked up, key by key: the record names its writer,
and the number of its write.

Owned by the table of shares.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from comet.errors import Closed
from comet_broker.metadata.store import (
    OPERATIONS_MAX,
    TRANSACTION_BYTES_MAX,
    Compare,
    KeyValue,
    MetadataStore,
    Put,
    StoreUnavailable,
)
from comet_broker.tasks import Tasks

log = logging.getLogger(__name__)

GATHER_S: Final = 0.002  # between two transactions, to gather acknowledgements
RETRY_S: Final = 0.05
RETRY_S_MAX: Final = 1.0
_OVERHEAD_BYTES: Final = 256


class StoredValue(Protocol):
    """One value to store. It is read when the transaction is built."""

    @property
    def key(self) -> str: ...
    @property
    def mod_revision(self) -> int: ...
    @property
    def over(self) -> bool:
        """Whether it is not to be stored any more."""

    def take(self) -> bytes:
        """The current value; later changes are for the next transaction."""

    def stored(self, revision: int) -> None:
        """Called when the taken value is in the store."""

    def judge(self, item: KeyValue | None) -> bool | None:
        """Checks the stored value after an attempt. True if it is the taken one, False if that may be retried, None if
        another writer was first. Learns the revision."""

    def replaced(self) -> None:
        """Called when another leader stores this state now."""

    def halt(self, error: Exception) -> None:
        """Stops the state after an unexpected error."""


class ShareJournal:
    def __init__(self, store: MetadataStore, tasks: Tasks) -> None:
        self._store = store
        self._tasks = tasks
        self._dirty: dict[StoredValue, None] = {}
        self._writer: asyncio.Task[None] | None = None
        self.transactions = 0  # that took effect
        self.writes = 0

    def mark(self, state: StoredValue) -> None:
        """Queues a changed state to be stored."""
        self._dirty[state] = None
        if self._writer is None:
            self._writer = self._tasks.spawn(self._run(), "store share groups")

    def forget(self, state: StoredValue) -> None:
        self._dirty.pop(state, None)

    async def _run(self) -> None:
        try:
            while self._dirty:
                taken = self._take()
                try:
                    await self._write(taken)
                except Closed:
                    raise
                except Exception as error:  # noqa: BLE001 - as above, for those of one transaction
                    for state, _ in taken:
                        state.halt(error)
                await asyncio.sleep(GATHER_S)
        except Closed:
            log.info("the metadata store is closed; share groups are no longer stored")
            self._dirty.clear()
        finally:
            self._writer = None

    def _take(self) -> list[tuple[StoredValue, bytes]]:
        """As many states as fit into one transaction, at least one."""
        taken: list[tuple[StoredValue, bytes]] = []
        size = 0
        while self._dirty and len(taken) < OPERATIONS_MAX:
            state = next(iter(self._dirty))
            del self._dirty[state]
            if state.over:
                continue
            try:
                value = state.take()
            except Exception as error:  # noqa: BLE001 - it stops this state, not the storing of the others
                state.halt(error)
                continue
            taken.append((state, value))
            size += len(value) + len(state.key) + _OVERHEAD_BYTES
            if size > TRANSACTION_BYTES_MAX // 2:
                break
        return taken

    async def _write(self, taken: list[tuple[StoredValue, bytes]]) -> None:
        pause_s = RETRY_S
        while taken := [one for one in taken if not one[0].over]:
            try:
                result = await self._store.transact(
                    [Compare(state.key, state.mod_revision) for state, _ in taken],
                    [Put(state.key, value) for state, value in taken],
                )
                if result.applied:
                    self.transactions += 1
                    self.writes += len(taken)
                    for state, _ in taken:
                        try:
                            state.stored(result.revision)
                        except Exception as error:  # noqa: BLE001 - it stops this state, not the others
                            state.halt(error)
                    return
                taken = await self._unwritten(taken)
            except StoreUnavailable as error:
                log.warning("share groups wait for the metadata store: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)

    async def _unwritten(self, taken: Sequence[tuple[StoredValue, bytes]]) -> list[tuple[StoredValue, bytes]]:
        """After a transaction that did not apply: the states that are still to be written."""
        again: list[tuple[StoredValue, bytes]] = []
        for state, value in taken:
            item = await self._store.get(state.key)
            if state.over:
                continue
            try:
                match state.judge(item):
                    case True:
                        state.stored(state.mod_revision)
                    case False:
                        again.append((state, value))
                    case None:
                        state.replaced()
            except Exception as error:  # noqa: BLE001 - as above
                state.halt(error)
        return again
