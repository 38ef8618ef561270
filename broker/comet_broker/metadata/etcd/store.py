"""EtcdStore: the metadata port on an etcd that the brokers of a cluster share.

Reads are linearizable: they show the majority's state. A change is one transaction; if it raises StoreUnavailable, it
may or may not have been made. Leases are timed by etcd, in whole seconds, and no shorter than its election allows:
`keep_alive` returns the granted time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from aetcd import rpc

from comet_broker.metadata.etcd.calls import Access, Connection, EtcdMember, Metadata
from comet_broker.metadata.etcd.watch import EtcdWatch
from comet_broker.metadata.etcd.wire import Keys, item, transaction
from comet_broker.metadata.keyspace import check_key, check_transaction
from comet_broker.metadata.leases import check_ttl
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
from comet_broker.ports import Clock

TIMEOUT_MS: Final = 2_000
RECONCILE_S: Final = 30.0


class EtcdStore:
    """A MetadataStore on etcd. Created by `open`; used from one event loop; owns its connections until closed."""

    def __init__(self, connection: Connection, keys: Keys, reconcile_s: float) -> None:
        self._connection = connection
        self._keys = keys
        self._reconcile_s = reconcile_s
        self._watches: set[EtcdWatch] = set()

    @classmethod
    async def open(
        cls,
        endpoints: Sequence[str],
        *,
        prefix: str,
        clock: Clock,
        user: str = "",
        password: str = "",
        ca: Path | None = None,
        cert: Path | None = None,
        key: Path | None = None,
        timeout_ms: int = TIMEOUT_MS,
        reconcile_s: float = RECONCILE_S,
    ) -> EtcdStore:
        """Connects to any of the endpoints ("host:port"); all keys lie below `prefix`, such as "/comet/<cluster>/".

        Raises StoreUnavailable if none answers or the password is wrong, and ValueError for contradictory
        settings."""
        keys = Keys(prefix)
        connection = Connection(endpoints, Access(user, password, ca, cert, key), clock, timeout_ms)
        store = cls(connection, keys, reconcile_s)
        try:
            await store.get("?")
        except BaseException:
            await connection.close()
            raise
        return store

    async def get(self, key: str) -> KeyValue | None:
        check_key(key)
        answer = await self._request("kv", "Range", rpc.RangeRequest(key=self._keys.to_etcd(key)))
        return item(self._keys, answer.kvs[0]) if answer.kvs else None

    async def range(self, prefix: str) -> RangeResult:
        first, end = self._keys.range(prefix)
        answer = await self._request("kv", "Range", rpc.RangeRequest(key=first, range_end=end))
        return RangeResult(tuple(item(self._keys, pair) for pair in answer.kvs), answer.header.revision)

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        check_transaction(compares, operations)
        request = transaction(self._keys, compares, operations)
        answer = await self._request("kv", "Txn", request, repeatable=not operations)
        return TransactionResult(applied=answer.succeeded, revision=answer.header.revision)

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        self._connection.check_open()
        watch = EtcdWatch(self._connection, self._keys, prefix, from_revision, self._reconcile_s, self._watches.discard)
        self._watches.add(watch)
        return watch

    async def grant_lease(self, ttl_ms: int) -> int:
        check_ttl(ttl_ms)
        # If the answer is lost, the granted lease expires unused.
        answer = await self._request("lease", "LeaseGrant", rpc.LeaseGrantRequest(TTL=-(-ttl_ms // 1000)))
        return int(answer.ID)

    async def keep_alive(self, lease: int) -> int:
        sent_at = self._connection.clock.monotonic()

        async def exchange(member: EtcdMember, left_s: float, metadata: Metadata) -> Any:
            request = rpc.LeaseKeepAliveRequest(ID=lease)
            answers = member.lease.LeaseKeepAlive(iter([request]), timeout=left_s, metadata=metadata)
            async for answer in answers:
                answers.cancel()
                return answer
            raise StoreUnavailable(f"{member.endpoint}: ended without an answer")

        answer = await self._connection.call(exchange, repeatable=True)
        if answer.TTL <= 0:
            raise LeaseLost(f"lease {lease} has ended")
        ttl_ms = int(answer.TTL) * 1000
        # An answer that a busy process reads after the time to live is no longer valid.
        if self._connection.clock.monotonic() - sent_at >= ttl_ms / 1000:
            raise StoreUnavailable(f"the renewal of lease {lease} was answered too late to count")
        return ttl_ms

    async def revoke_lease(self, lease: int) -> None:
        try:
            await self._request("lease", "LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease))
        except LeaseLost:
            return

    async def close(self) -> None:
        for watch in list(self._watches):
            await watch.aclose()
        await self._connection.close()

    async def _request(self, service: str, method: str, request: Any, *, repeatable: bool = True) -> Any:
        async def exchange(member: EtcdMember, left_s: float, metadata: Metadata) -> Any:
            call = getattr(getattr(member, service), method)
            return await call(request, timeout=left_s, metadata=metadata)

        return await self._connection.call(exchange, repeatable=repeatable)
