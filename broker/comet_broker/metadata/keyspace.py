"""The state of a metadata store and the decisions on it, without I/O, clocks or waiting.

    keyspace ──► Draft ── transact, grant, end_lease ──► (made durable) ──► keyspace.apply(draft)

A draft decides any number of changes, one after the other, against the keyspace and its own earlier decisions, and
does not change the keyspace. A store whose disk fails discards the draft, which undoes all of it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Final

from comet.errors import LimitExceeded
from comet_broker.metadata.store import (
    COMPARES_MAX,
    KEY_BYTES_MAX,
    LEASES_MAX,
    OPERATIONS_MAX,
    TOTAL_BYTES_MAX,
    TRANSACTION_BYTES_MAX,
    Compare,
    Delete,
    KeyValue,
    LeaseLost,
    Put,
    TransactionResult,
    WatchEvent,
)

FIRST_REVISION: Final = 1  # of a store that has never been written to, as in etcd


def check_key(key: str) -> int:
    """The size of a valid key in bytes; ValueError for any other."""
    size = len(key.encode())  # a lone surrogate has no UTF-8, and its UnicodeEncodeError is a ValueError
    if not 0 < size <= KEY_BYTES_MAX:
        raise ValueError(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {size}")
    return size


def check_transaction(compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> int:
    """The size in bytes of a valid transaction's operations; ValueError for any other."""
    if len(compares) > COMPARES_MAX or len(operations) > OPERATIONS_MAX:
        raise ValueError(f"a transaction has at most {COMPARES_MAX} compares and {OPERATIONS_MAX} operations")
    for compare in compares:
        check_key(compare.key)
    size = 0
    seen = set[str]()
    for operation in operations:
        size += check_key(operation.key)
        if operation.key in seen:
            raise ValueError(f"a transaction may touch a key once, and this one touches {operation.key!r} twice")
        seen.add(operation.key)
        if isinstance(operation, Put):
            if not isinstance(operation.value, bytes):
                raise TypeError(f"the value of {operation.key!r} is {type(operation.value).__name__}, not bytes")
            size += len(operation.value)
    if size > TRANSACTION_BYTES_MAX:
        raise ValueError(f"a transaction has at most {TRANSACTION_BYTES_MAX} bytes, not {size}")
    return size


def item_bytes(item: KeyValue) -> int:
    return len(item.key) + len(item.value)


class Keyspace:
    """The state: the keys, their revision, the leases. Owned by one store, changed only by `apply`."""

    def __init__(self, revision: int = FIRST_REVISION, last_lease: int = 0) -> None:
        self.items: dict[str, KeyValue] = {}
        self.leases: dict[int, int] = {}  # id -> time to live in ms
        self.revision = revision
        self.last_lease = last_lease
        self.bytes = 0
        self._sorted: list[str] = []  # code point order, which is the order of the keys' UTF-8
        self._leased: dict[int, set[str]] = {}

    def load(self, items: Sequence[KeyValue], leases: dict[int, int]) -> None:
        """Fills an empty keyspace with the contents of a file."""
        assert not self.items
        assert not self.leases
        self.leases.update(leases)
        for item in items:
            assert item.mod_revision <= self.revision
            self._set(item.key, item)

    def range(self, prefix: str) -> Iterator[KeyValue]:
        """All items whose key begins with the prefix, by key."""
        start = bisect_left(self._sorted, prefix)
        keys = takewhile(lambda key: key.startswith(prefix), islice(self._sorted, start, None))
        return (self.items[key] for key in keys)

    def keys_of(self, lease: int) -> frozenset[str]:
        return frozenset(self._leased.get(lease, ()))

    def apply(self, draft: Draft) -> None:
        """Applies the draft's decisions. Drafts that were created before become invalid."""
        assert draft.base is self
        assert draft.base_revision == self.revision, "the keyspace moved on under the draft"
        assert draft.revision == self.revision + len(draft.revisions)
        for lease, ttl_ms in draft.leases.items():
            if ttl_ms is not None:
                self.leases[lease] = ttl_ms
        for key, item in draft.items.items():
            self._set(key, item)
        for lease, ttl_ms in draft.leases.items():
            if ttl_ms is None and self.leases.pop(lease, None) is not None:
                assert not self._leased.get(lease), "a lease ended and left keys behind"
        self.revision = draft.revision
        self.last_lease = draft.last_lease
        assert self.bytes == draft.bytes

    def _set(self, key: str, item: KeyValue | None) -> None:
        old = self.items.pop(key, None)
        if old is not None:
            self.bytes -= item_bytes(old)
            if old.lease:
                self._leased[old.lease].discard(key)
                if not self._leased[old.lease]:
                    del self._leased[old.lease]
        if item is None:
            if old is not None:
                del self._sorted[bisect_left(self._sorted, key)]
            return
        self.items[key] = item
        self.bytes += item_bytes(item)
        if old is None:
            insort(self._sorted, key)
        if item.lease:
            assert item.lease in self.leases
            self._leased.setdefault(item.lease, set()).add(key)


class Draft:
    """Changes that are decided on top of a keyspace, and not yet applied. Used once, by the store's one writer."""

    def __init__(self, base: Keyspace, lease_alive: Callable[[int], bool]) -> None:
        self.base = base
        self.base_revision = base.revision
        self.items: dict[str, KeyValue | None] = {}  # None: deleted
        self.leases: dict[int, int | None] = {}  # None: ended
        self.revisions: list[tuple[WatchEvent, ...]] = []  # the events of each revision after base_revision
        self.revision = base.revision
        self.last_lease = base.last_lease
        self.bytes = base.bytes
        self._lease_alive = lease_alive

    @property
    def empty(self) -> bool:
        """Whether there is nothing to make durable."""
        return not self.revisions and not self.leases

    def get(self, key: str) -> KeyValue | None:
        return self.items[key] if key in self.items else self.base.items.get(key)

    def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        """Decides a transaction that has passed `check_transaction`. Raises LeaseLost or LimitExceeded without a
        change."""
        for compare in compares:
            item = self.get(compare.key)
            if (item.mod_revision if item is not None else 0) != compare.mod_revision:
                return TransactionResult(applied=False, revision=self.revision)
        self._check_leases(operations)
        events = self._events(operations)
        self._check_space(events)
        self._take(events)
        return TransactionResult(applied=True, revision=self.revision)

    def grant(self, ttl_ms: int) -> int:
        live = len(self.base.leases) + sum(1 if ttl is not None else -1 for ttl in self.leases.values())
        if live >= LEASES_MAX:
            raise LimitExceeded(f"the metadata store holds at most {LEASES_MAX} leases")
        self.last_lease += 1
        self.leases[self.last_lease] = ttl_ms
        return self.last_lease

    def end_lease(self, lease: int) -> None:
        """Ends the lease and deletes all its keys at one revision. A lease that has ended stays ended."""
        if not self._lease_exists(lease):
            return
        touched = self.base.keys_of(lease) | self.items.keys()
        held = sorted(key for key in touched if (item := self.get(key)) is not None and item.lease == lease)
        self._take(tuple(WatchEvent(key, None, self.revision + 1) for key in held))
        if lease in self.base.leases:
            self.leases[lease] = None
        else:
            del self.leases[lease]  # granted in this same draft

    def _lease_exists(self, lease: int) -> bool:
        return (self.leases[lease] is not None) if lease in self.leases else lease in self.base.leases

    def _check_leases(self, operations: Sequence[Put | Delete]) -> None:
        for operation in operations:
            lease = operation.lease if isinstance(operation, Put) else 0
            # The clock decides, not the timer: after a pause the lease may have ended with its keys still there.
            if lease and not (self._lease_exists(lease) and self._lease_alive(lease)):
                raise LeaseLost(f"lease {lease} has ended; {operation.key!r} was not written")

    def _check_space(self, events: Sequence[WatchEvent]) -> None:
        growth = sum(item_bytes(event.item) for event in events if event.item is not None)
        growth -= sum(item_bytes(old) for event in events if (old := self.get(event.key)) is not None)
        if growth > 0 and self.bytes + growth > TOTAL_BYTES_MAX:
            raise LimitExceeded(f"the metadata store holds at most {TOTAL_BYTES_MAX} bytes of keys and values")

    def _events(self, operations: Sequence[Put | Delete]) -> tuple[WatchEvent, ...]:
        """The changes of the operations, at the next revision; deleting a missing key changes nothing."""
        revision = self.revision + 1
        events: list[WatchEvent] = []
        for operation in operations:
            old = self.get(operation.key)
            if isinstance(operation, Put):
                created = old.create_revision if old is not None else revision
                item = KeyValue(operation.key, operation.value, created, revision, operation.lease)
                events.append(WatchEvent(operation.key, item, revision))
            elif old is not None:
                events.append(WatchEvent(operation.key, None, revision))
        return tuple(events)

    def _take(self, events: tuple[WatchEvent, ...]) -> None:
        if not events:
            return
        for event in events:
            if (old := self.get(event.key)) is not None:
                self.bytes -= item_bytes(old)
            if event.item is not None:
                self.bytes += item_bytes(event.item)
            self.items[event.key] = event.item
        self.revisions.append(events)
        self.revision += 1
        assert self.bytes >= 0
        assert self.revision == self.base_revision + len(self.revisions)
