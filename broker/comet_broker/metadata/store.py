"""The port to the metadata store: what the cluster agrees on.

Shaped after etcd v3, so that etcd fits behind it unchanged: one revision counter for the whole store, compare-and-swap
on `mod_revision`, watches that start at a revision, keys bound to leases.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0  # 0: none


@dataclass(frozen=True, slots=True)
class Compare:
    """Holds when the key's mod_revision is exactly this one; 0 stands for "the key does not exist"."""

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
    """All keys of a prefix, by key, as they stood together at `revision`."""

    items: tuple[KeyValue, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One key changed. `item` is None when it was deleted; `revision` is that of the change."""

    key: str
    item: KeyValue | None
    revision: int


class Compacted(Exception):
    """The watch asked for a revision that the store has forgotten: list again and watch from there."""

    def __init__(self, compact_revision: int) -> None:
        super().__init__(f"history before revision {compact_revision} is gone")
        self.compact_revision = compact_revision


class LeaseLost(Exception):
    """The lease has run out or was revoked; its keys are gone."""


class StoreUnavailable(Exception):
    """The store did not answer in time. For a transaction the outcome is unknown: read again, then decide."""


class MetadataStore(Protocol):
    async def get(self, key: str) -> KeyValue | None: ...
    async def range(self, prefix: str) -> RangeResult: ...
    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
    ) -> TransactionResult:
        """Applies all operations at one revision if every compare holds, else none."""

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        """Every change to keys of the prefix with revision >= from_revision, in order, all events of one
        revision together. Raises Compacted. Ends when the store is closed or the iterator is closed."""

    async def grant_lease(self, ttl_ms: int) -> int: ...
    async def keep_alive(self, lease: int) -> int:
        """Renews the lease and returns its time to live in ms; raises LeaseLost."""

    async def revoke_lease(self, lease: int) -> None: ...
    async def close(self) -> None: ...
