"""The metadata store in memory: for tests and simulations, where all brokers of a cluster share one.

Deterministic: results depend only on the calls, the clock and the loop's timers. Nothing survives the object.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from comet.errors import Closed
from comet_broker.metadata.history import HISTORY_REVISIONS_MAX, History
from comet_broker.metadata.keyspace import Draft, Keyspace, check_key, check_transaction
from comet_broker.metadata.leases import LeaseTimer, check_ttl
from comet_broker.metadata.store import (
    Compare,
    Delete,
    KeyValue,
    Put,
    RangeResult,
    TransactionResult,
    WatchEvent,
)
from comet_broker.metadata.watches import Watch, Watches
from comet_broker.ports import Clock


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """The contents of a store at one revision."""

    items: tuple[KeyValue, ...]
    leases: dict[int, int]
    revision: int
    last_lease: int


class MemoryStore:
    """A MetadataStore whose calls take effect at once. Used from one event loop."""

    def __init__(self, clock: Clock, *, history_revisions_max: int = HISTORY_REVISIONS_MAX) -> None:
        self._history_revisions_max = history_revisions_max
        self._keyspace = Keyspace()
        self._watches = Watches(History(self._keyspace.revision, history_revisions_max))
        self._leases = LeaseTimer(clock, self._end_lease)

    async def get(self, key: str) -> KeyValue | None:
        self._check_open()
        check_key(key)
        return self._keyspace.items.get(key)

    async def range(self, prefix: str) -> RangeResult:
        self._check_open()
        return RangeResult(tuple(self._keyspace.range(prefix)), self._keyspace.revision)

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        self._check_open()
        check_transaction(compares, operations)
        draft = Draft(self._keyspace, self._leases.alive)
        result = draft.transact(compares, operations)
        self._apply(draft)
        return result

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        self._check_open()
        return Watch(self._watches, prefix, from_revision)

    async def grant_lease(self, ttl_ms: int) -> int:
        self._check_open()
        check_ttl(ttl_ms)
        draft = Draft(self._keyspace, self._leases.alive)
        lease = draft.grant(ttl_ms)
        self._apply(draft)
        self._leases.start(lease, ttl_ms)
        return lease

    async def keep_alive(self, lease: int) -> int:
        self._check_open()
        return self._leases.renew(lease)

    async def revoke_lease(self, lease: int) -> None:
        self._check_open()
        self._leases.drop(lease)
        self._end_lease(lease)

    # ---- administration, as with an etcd

    def snapshot(self) -> StoreSnapshot:
        """A snapshot for `restore`."""
        keyspace = self._keyspace
        items = tuple(keyspace.items.values())
        return StoreSnapshot(items, dict(keyspace.leases), keyspace.revision, keyspace.last_lease)

    def restore(self, snapshot: StoreSnapshot, *, quietly: bool = False) -> None:
        """Goes back to the snapshot: its leases restart, and watches break off, unless `quietly`."""
        self._leases.forget()
        self._keyspace = Keyspace(snapshot.revision, snapshot.last_lease)
        self._keyspace.load(snapshot.items, snapshot.leases)
        self._leases.resume(snapshot.leases)
        self._leases.arm()
        self._watches.restart(History(snapshot.revision, self._history_revisions_max), quietly=quietly)

    async def close(self) -> None:
        self._leases.close()
        self._watches.close()

    def _end_lease(self, lease: int) -> None:
        draft = Draft(self._keyspace, self._leases.alive)
        draft.end_lease(lease)
        self._apply(draft)

    def _apply(self, draft: Draft) -> None:
        self._keyspace.apply(draft)
        self._watches.publish(draft.revisions)

    def _check_open(self) -> None:
        if self._watches.closed:
            raise Closed("the metadata store is closed")
