"""The port to the metadata store.

Shaped after etcd v3, so that etcd fits behind it unchanged: one revision counter for the whole store, compare-and-swap
on `mod_revision`, watches that start at a revision, keys bound to leases.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

# Limits of every store. All of them fit an etcd with its default settings (128 operations, 1.5 MiB a request).
KEY_BYTES_MAX: Final = 1024
OPERATIONS_MAX: Final = 127  # of one transaction, and as many compares
COMPARES_MAX: Final = OPERATIONS_MAX + 1  # with the one that a broker's guard adds
TRANSACTION_BYTES_MAX: Final = 1_250_000  # keys and values of the operations
TOTAL_BYTES_MAX: Final = 256 << 20  # all keys and values
LEASES_MAX: Final = 10_000
LEASE_TTL_MS_MAX: Final = 24 * 3600 * 1000

assert KEY_BYTES_MAX * OPERATIONS_MAX * 2 < TRANSACTION_BYTES_MAX < TOTAL_BYTES_MAX


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0  # 0: none


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition on the key's mod_revision: exactly this one; 0 stands for "the key does not exist"."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """`revision` is the store's revision after the transaction, whether it applied or not."""

    applied: bool
    revision: int


@dataclass(frozen=True, slots=True)
class RangeResult:
    """All keys of a prefix, by key, at one `revision`."""

    items: tuple[KeyValue, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """The change of one key. `item` is None if it was deleted; `revision` is that of the change."""

    key: str
    item: KeyValue | None
    revision: int


class Compacted(Exception):
    """The watch needs a revision that the store no longer has: list again and watch from there.

    `compact_revision` is the oldest one that can still be watched from.
    """

    def __init__(self, compact_revision: int) -> None:
        super().__init__(f"history before revision {compact_revision} is gone")
        self.compact_revision = compact_revision


class Reconnected(Exception):
    """The store was reconnected, and may be another one than before: list again and watch from there."""


class LeaseLost(Exception):
    """The lease has run out or was revoked; its keys are gone."""


class StoreUnavailable(Exception):
    """The store did not answer in time. For a transaction the outcome is unknown: read again, then decide."""


class MetadataStore(Protocol):
    """Used from one event loop. After close() every call raises comet.errors.Closed and every watch ends.

    A call that is cancelled may have taken effect, unless it is a read. Reads show what was acknowledged.
    """

    async def get(self, key: str) -> KeyValue | None: ...
    async def range(self, prefix: str) -> RangeResult:
        """All keys that begin with the prefix; the empty prefix stands for all keys."""

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        """Applies all operations at one revision if every compare holds, else none.

        The revision grows by one with a change; deleting a missing key changes nothing. Raises ValueError if an
        operation repeats a key or exceeds a limit above, and LeaseLost if the compares hold and a Put names a lease
        that has ended; then nothing was applied.
        """

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        """Every change to keys of the prefix with revision >= from_revision, in order, all events of one
        revision together. Raises Compacted and Reconnected. Ends when the store is closed or the iterator is closed.

        A watcher that is slower than the store's compaction gets Compacted too, so that it costs no memory.
        """

    async def grant_lease(self, ttl_ms: int) -> int: ...
    async def keep_alive(self, lease: int) -> int:
        """Renews the lease and returns its time to live in ms; raises LeaseLost."""

    async def revoke_lease(self, lease: int) -> None:
        """Ends the lease and deletes its keys; does nothing if it has ended already."""

    async def close(self) -> None: ...


async def close_watch(watch: AsyncIterator[Sequence[WatchEvent]]) -> None:
    """Closes a watch. All implementations have `aclose`, but their common type does not declare it."""
    close = getattr(watch, "aclose", None)
    if close is not None:
        await close()
