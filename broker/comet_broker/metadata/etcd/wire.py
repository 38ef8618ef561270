"""Translation between the port and etcd's messages. Pure; uses only the messages of `aetcd.rpc`, never its client.

key of the port   "topics/a"
key in etcd       b"/comet/<cluster>/" + UTF-8 of the key
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from aetcd import rpc

from comet_broker.metadata.store import (
    COMPARES_MAX,
    KEY_BYTES_MAX,
    OPERATIONS_MAX,
    TRANSACTION_BYTES_MAX,
    Compare,
    Delete,
    KeyValue,
    Put,
    WatchEvent,
)

ROOT_BYTES_MAX: Final = 256
REQUEST_BYTES_MAX: Final = 1_572_864  # etcd's --max-request-bytes, 1.5 MiB
OPERATION_OVERHEAD_BYTES: Final = 64  # tags, lengths, revision and lease of one compare or operation

assert (
    TRANSACTION_BYTES_MAX
    + COMPARES_MAX * KEY_BYTES_MAX
    + (COMPARES_MAX + OPERATIONS_MAX) * (ROOT_BYTES_MAX + OPERATION_OVERHEAD_BYTES)
    < REQUEST_BYTES_MAX
)
assert KEY_BYTES_MAX + ROOT_BYTES_MAX < REQUEST_BYTES_MAX


class Keys:
    """The keys of one cluster, all below one root, so that an etcd can be shared."""

    def __init__(self, root: str) -> None:
        self.root = root.encode()
        if not (root.startswith("/") and root.endswith("/") and len(self.root) <= ROOT_BYTES_MAX):
            raise ValueError(
                f"the root of a cluster's keys begins and ends with '/' and has at most {ROOT_BYTES_MAX} bytes"
            )

    def to_etcd(self, key: str) -> bytes:
        return self.root + key.encode()

    def from_etcd(self, key: bytes) -> str:
        assert key.startswith(self.root)
        return key[len(self.root) :].decode()

    def range(self, prefix: str) -> tuple[bytes, bytes]:
        """The first key of a prefix, and the first one behind it. UTF-8 has no byte 0xff, so the last byte can grow."""
        first = self.to_etcd(prefix)
        return first, first[:-1] + bytes([first[-1] + 1])


def item(keys: Keys, pair: Any) -> KeyValue:
    return KeyValue(keys.from_etcd(pair.key), pair.value, pair.create_revision, pair.mod_revision, pair.lease)


def transaction(keys: Keys, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> Any:
    # etcd answers a transaction without operations from a member's own, perhaps old state; one with a read does not.
    read = [rpc.RequestOp(request_range=rpc.RangeRequest(key=keys.root, count_only=True))]
    return rpc.TxnRequest(
        compare=[_compare(keys, compare) for compare in compares],
        success=[_operation(keys, operation) for operation in operations] or read,
        failure=[] if operations else read,
    )


def _compare(keys: Keys, compare: Compare) -> Any:
    return rpc.Compare(
        key=keys.to_etcd(compare.key),
        target=rpc.Compare.MOD,
        result=rpc.Compare.EQUAL,
        mod_revision=compare.mod_revision,
    )


def _operation(keys: Keys, operation: Put | Delete) -> Any:
    key = keys.to_etcd(operation.key)
    if isinstance(operation, Put):
        return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=operation.value, lease=operation.lease))
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))


def revisions(keys: Keys, events: Iterable[Any], from_revision: int) -> Iterator[tuple[WatchEvent, ...]]:
    """The events by revision, from `from_revision` on: after a reconnection, and in some versions of etcd without one,
    a watch repeats events or sends earlier ones."""
    for revision, together in groupby(events, lambda event: event.kv.mod_revision):
        if revision >= from_revision:
            from_revision = revision + 1
            yield tuple(_event(keys, event) for event in together)


def _event(keys: Keys, event: Any) -> WatchEvent:
    revision = event.kv.mod_revision
    if event.type == rpc.Event.DELETE:
        return WatchEvent(keys.from_etcd(event.kv.key), None, revision)
    changed = item(keys, event.kv)
    return WatchEvent(changed.key, changed, revision)
