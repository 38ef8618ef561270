"""The metadata store of a single broker: a file in its data folder, no other server.

    transact ─► pending ─► writer task: draft of all that wait ─► one commit, synced (own thread)
                                        └─► keyspace, watches, answers

Reads and watches are served from memory and never wait. All that is acknowledged or returned by a read is on disk.
Watches reach back to the opening of the store at most: watchers live in the same process, and list all keys when they
start. A lease found on opening gets its whole time to live again.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from comet.errors import Closed, DiskFull, LimitExceeded, StoreDamaged
from comet_broker.metadata.examine import damaged, prepare, replace_backup
from comet_broker.metadata.history import HISTORY_REVISIONS_MAX, History
from comet_broker.metadata.keyspace import Draft, Keyspace, check_key, check_transaction
from comet_broker.metadata.leases import LeaseTimer, check_ttl
from comet_broker.metadata.sqlite import StoreFile
from comet_broker.metadata.store import (
    Compare,
    Delete,
    KeyValue,
    LeaseLost,
    Put,
    RangeResult,
    StoreUnavailable,
    TransactionResult,
    WatchEvent,
)
from comet_broker.metadata.watches import Watch, Watches
from comet_broker.ports import Clock, Worker
from comet_broker.system import ThreadWorker

log = logging.getLogger(__name__)

PENDING_MAX: Final = 4096  # changes that wait for the disk
PENDING_BYTES_MAX: Final = 64 << 20
COMMIT_BYTES_MAX: Final = 4 << 20  # of the changes that share one sync; a single larger one goes alone
LEASE_RETRY_S: Final = 1.0  # after which the end of a lease is retried if the disk was full
BACKUP_INTERVAL_S: Final = 600.0


@dataclass(slots=True)
class _Change:
    """A change that waits for the disk, and the caller's future."""

    decide: Callable[[Draft], Any]
    bytes: int
    waiter: asyncio.Future[Any]


class EmbeddedStore:
    """A MetadataStore in one file. Created by `open`; used from one event loop; owns its file until closed."""

    def __init__(self, file: StoreFile, keyspace: Keyspace, clock: Clock, worker: Worker, history: History) -> None:
        self._file = file
        self._keyspace = keyspace
        self._clock = clock
        self._worker = worker
        self._watches = Watches(history)
        self._leases = LeaseTimer(clock, self._lease_expired)
        self._leases.resume(keyspace.leases)
        self._pending: deque[_Change] = deque()
        self._pending_bytes = 0
        self._writer: asyncio.Task[None] | None = None
        self._retries: dict[int, asyncio.TimerHandle] = {}
        self._backup_revision = keyspace.revision
        self._backup_at = clock.monotonic()
        self._stopped = False  # takes no calls
        self._closing: asyncio.Task[None] | None = None
        self._threads: ThreadWorker | None = None

    @classmethod
    async def open(
        cls,
        path: Path,
        clock: Clock,
        *,
        worker: Worker | None = None,
        history_revisions_max: int = HISTORY_REVISIONS_MAX,
    ) -> EmbeddedStore:
        """Opens the store, or creates the first one. Raises StoreDamaged, DataFolderTaken or UnsupportedVersion.
        Without a worker it starts a thread of its own."""
        threads = ThreadWorker(1) if worker is None else None
        running = worker or threads
        assert running is not None
        try:
            file, keyspace = await running.run(lambda: _open(path))
        except BaseException:
            if threads is not None:
                threads.close()
            raise
        store = cls(file, keyspace, clock, running, History(keyspace.revision, history_revisions_max))
        store._threads = threads
        store._leases.arm()
        return store

    async def get(self, key: str) -> KeyValue | None:
        self._check_open()
        check_key(key)
        return self._keyspace.items.get(key)

    async def range(self, prefix: str) -> RangeResult:
        self._check_open()
        return RangeResult(tuple(self._keyspace.range(prefix)), self._keyspace.revision)

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        size = check_transaction(compares, operations)
        compares, operations = tuple(compares), tuple(operations)
        result = await self._change(lambda draft: draft.transact(compares, operations), size)
        assert isinstance(result, TransactionResult)
        return result

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        self._check_open()
        return Watch(self._watches, prefix, from_revision)

    async def grant_lease(self, ttl_ms: int) -> int:
        check_ttl(ttl_ms)
        lease = await self._change(lambda draft: draft.grant(ttl_ms))
        assert isinstance(lease, int)
        return lease

    async def keep_alive(self, lease: int) -> int:
        self._check_open()
        return self._leases.renew(lease)

    async def revoke_lease(self, lease: int) -> None:
        self._check_open()
        self._leases.drop(lease)  # from here on it has ended, even if the write must be retried
        await self._end_lease(lease)

    async def close(self) -> None:
        """Finishes pending changes, then folds the log into the file. Calls after this raise Closed. Cancelling it
        stops the waiting, not the closing."""
        if self._closing is None:
            self._stopped = True
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="comet-metadata-close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._leases.close()
        for retry in self._retries.values():
            retry.cancel()
        if self._writer is not None:
            await asyncio.wait([self._writer])
        self._watches.close()
        try:
            await self._worker.run(self._close_file)
        finally:
            if self._threads is not None:
                self._threads.close()

    def statistics(self) -> dict[str, int]:
        return {
            "revision": self._keyspace.revision,
            "keys": len(self._keyspace.items),
            "bytes": self._keyspace.bytes,
            "leases": len(self._keyspace.leases),
            "pending": len(self._pending),
            "failed": int(self._file.failed is not None),
        }

    # ---- changes

    def _change(self, decide: Callable[[Draft], Any], size: int = 0) -> asyncio.Future[Any]:
        """Queues a change; the future is done when it is on disk."""
        self._check_open()
        if len(self._pending) >= PENDING_MAX or self._pending_bytes + size > PENDING_BYTES_MAX:
            raise LimitExceeded("too many changes wait for the metadata file; retry", retry_after_ms=100)
        loop = asyncio.get_running_loop()
        change = _Change(decide, size, loop.create_future())
        self._pending.append(change)
        self._pending_bytes += size
        if self._writer is None:
            self._writer = loop.create_task(self._write_pending(), name="comet-metadata-writer")
        return change.waiter

    async def _write_pending(self) -> None:
        taken: list[_Change] = []
        try:
            while taken := self._take():
                await self._write(taken)
        except BaseException as error:
            # Cancelled within a commit, or a bug: no caller may wait for ever, and the file's state is unknown.
            self._fail([*taken, *self._pending], error)
            raise
        finally:
            self._writer = None

    def _take(self) -> list[_Change]:
        """Takes the changes for the next commit. A change whose caller gave up before is dropped."""
        taken: list[_Change] = []
        size = 0
        while self._pending and (not taken or size + self._pending[0].bytes <= COMMIT_BYTES_MAX):
            change = self._pending.popleft()
            self._pending_bytes -= change.bytes
            if not change.waiter.done():
                taken.append(change)
                size += change.bytes
        return taken

    async def _write(self, changes: list[_Change]) -> None:
        draft = Draft(self._keyspace, self._leases.alive)
        decided: list[tuple[_Change, Any]] = []
        for change in changes:
            try:
                decided.append((change, change.decide(draft)))
            except (LeaseLost, LimitExceeded) as error:
                _answer(change, error)
        if not draft.empty:
            try:
                await self._worker.run(lambda: self._file.write(draft))
            except (DiskFull, StoreUnavailable) as error:
                for change, _ in decided:
                    _answer(change, error)
                return
            self._keyspace.apply(draft)
            self._watches.publish(draft.revisions)
            for lease, ttl_ms in draft.leases.items():
                if ttl_ms is not None:
                    self._leases.start(lease, ttl_ms)  # here, because the caller may have given up
        for change, result in decided:
            if not change.waiter.done():
                change.waiter.set_result(result)
        await self._backup_when_due()

    def _fail(self, changes: Sequence[_Change], cause: BaseException) -> None:
        self._pending.clear()
        self._pending_bytes = 0
        self._stopped = True
        self._leases.close()
        self._watches.close()
        for change in changes:
            _answer(change, StoreUnavailable(f"the metadata store stopped: {cause!r}"))

    def _check_open(self) -> None:
        if self._stopped:
            raise Closed("the metadata store is closed")

    # ---- leases

    def _lease_expired(self, lease: int) -> None:
        if self._stopped:
            return
        try:
            ending = self._end_lease(lease)
        except LimitExceeded:
            self._retry_end(lease)
            return
        ending.add_done_callback(_mark_seen)

    def _end_lease(self, lease: int) -> asyncio.Future[Any]:
        ending = self._change(lambda draft: draft.end_lease(lease))
        ending.add_done_callback(lambda done: self._ended(lease, done))
        return ending

    def _ended(self, lease: int, done: asyncio.Future[Any]) -> None:
        """Retries if the disk was full: the lease has ended, but its keys are still there."""
        if done.cancelled() or isinstance(done.exception(), DiskFull):
            self._retry_end(lease)

    def _retry_end(self, lease: int) -> None:
        if not self._stopped:
            loop = asyncio.get_running_loop()
            self._retries[lease] = loop.call_later(LEASE_RETRY_S, self._try_end_again, lease)

    def _try_end_again(self, lease: int) -> None:
        self._retries.pop(lease, None)
        self._lease_expired(lease)

    # ---- the backup

    async def _backup_when_due(self) -> None:
        now = self._clock.monotonic()
        if now - self._backup_at < BACKUP_INTERVAL_S or self._backup_revision == self._keyspace.revision:
            return
        self._backup_at = now
        revision = self._keyspace.revision
        await self._worker.run(self._backup)
        self._backup_revision = revision

    def _backup(self) -> None:
        """Replaces the backup. A failure is only logged; the earlier backup is still there."""
        try:
            replace_backup(self._file)
        except (OSError, sqlite3.Error) as error:
            log.warning("the backup of %s could not be updated: %s", self._file.path, error)

    def _close_file(self) -> None:
        if self._file.failed is None and self._backup_revision != self._keyspace.revision:
            self._backup()
        self._file.close()


def _open(path: Path) -> tuple[StoreFile, Keyspace]:
    prepare(path)
    try:
        file = StoreFile(path)
        try:
            return file, file.load()
        except BaseException:
            file.close()
            raise
    except StoreDamaged as error:
        raise damaged(path, error.message) from error


def _answer(change: _Change, error: Exception) -> None:
    if not change.waiter.done():
        change.waiter.set_exception(error)


def _mark_seen(done: asyncio.Future[Any]) -> None:
    """Marks a failure as retrieved: no caller waits, and `_ended` has handled it."""
    if not done.cancelled():
        done.exception()
