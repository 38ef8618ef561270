"""A topic as a table of keys: reads at the leader's index, writes with conditions.

    get, entries, history  ─► read_keys ─► the leader of the key's partition, or with stale any replica
    put, create, update,   ─► publish {expected, idempotency key} ─► its leader: compared, then appended
    delete                                   │ no answer ─► the same request again: written once
    watch                  ─► entries, then a Consumer from where they end; see watch.py

The revision of a value is the offset of its record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, Unpack, overload

from comet import limits
from comet.client.bootstrap import Addresses
from comet.client.client import Client
from comet.client.new_topic import Create, check_create
from comet.client.world import Seams, World
from comet.consumer.consumer import Consumer, serde_of
from comet.errors import InvalidArgument, RevisionMismatch
from comet.key_values.entry import ABSENT, ENDED_HEADER, KVEntry, entry
from comet.key_values.key_calls import KeyCalls
from comet.key_values.key_writes import KeyWrites
from comet.key_values.watch import KVWatch, Page, Watched
from comet.producer.partitioner import key_bytes
from comet.producer.value_encoder import ValueEncoder
from comet.types import check_topic_name
from comet.v1 import records_pb2 as pb
from comet.wire.record_ttl import check_ttl

T = TypeVar("T")
Key = str | bytes

HISTORY_MAX: Final = 64
PAGE_MAX: Final = 1_000
_DELETE_TRIES: Final = 16  # of a delete without a revision, against other writers


class KV(Generic[T]):
    """A topic as a table of keys and their last values. Async; `comet.sync.KV` is the same for synchronous code.

    A record with a key sets it, a record without a value deletes it; so any producer may write the topic. Reads and
    writes go to the leader of the key's partition and are linearizable; with `stale` any replica answers a read, and
    may be behind. The revision of a value is the offset of its record. Writes wait for all in-sync replicas.

    `type` is the type of values, as for a Consumer; without it they are bytes. A call retries for `timeout_ms` while
    the leader changes; a write that is sent again is written once. With `create` a missing topic is made. Retention
    deletes values as it deletes other records: make such a topic with `cleanup_policy=compact`, which keeps the last of
    each key.

    >>> async def example(address: str) -> None:
    ...     async with comet.KV(address, "quotes", type=dict) as kv:
    ...         first = await kv.create("EURUSD", {"bid": 1.08})
    ...         await kv.update("EURUSD", {"bid": 1.09}, first)
    ...         print((await kv.get("EURUSD")).value)
    ...         try:
    ...             await kv.update("EURUSD", {"bid": 1.10}, first)
    ...         except comet.RevisionMismatch as error:
    ...             print(error.revision)
    >>> run(example)
    {'bid': 1.09}
    1
    """

    @overload
    def __init__(
        self: KV[bytes], addresses: Addresses = ..., topic: str = ..., *, timeout_ms: int = ..., create: Create = ...,
        name: str = ..., **seams: Unpack[Seams],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self, addresses: Addresses = ..., topic: str = ..., *, type: type[T], timeout_ms: int = ...,
        create: Create = ..., name: str = ..., **seams: Unpack[Seams],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: KV[Any], addresses: Addresses = ..., topic: str = ..., *, type: Any, timeout_ms: int = ...,
        create: Create = ..., name: str = ..., **seams: Unpack[Seams],
    ) -> None: ...  # fmt: skip
    def __init__(
        self,
        addresses: Addresses = None,
        topic: str = "",
        *,
        type: Any = None,  # noqa: A002 - the name users expect
        timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
        create: Create = False,
        name: str = "",
        **seams: Unpack[Seams],
    ) -> None:
        if not topic:
            raise InvalidArgument("no topic given: pass it after the addresses, or as topic=")
        limits.within("timeout_ms", timeout_ms, 1, limits.PRODUCER_TIMEOUT_MS_MAX)
        check_create(create)
        world = World.of(self, {**seams})
        self.topic = check_topic_name(topic)
        self._addresses = addresses
        self._seams = seams
        self._clock_us = world.clock_us
        client = Client(addresses, name=name, connect=world.connect, random=world.random)
        self._calls = KeyCalls(client, self.topic, timeout_ms / 1000, create)
        self._writes = KeyWrites(self._calls, timeout_ms / 1000)
        self._serde = serde_of(type)
        self._encode = ValueEncoder().encode

    # ---- life

    async def start(self) -> None:
        """Finds the topic, or makes it with `create`. `async with` does this."""
        await self._calls.start()

    async def close(self) -> None:
        """Ends the connections. Calls under way fail."""
        await self._calls.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # ---- reading

    async def get(self, key: Key, *, revision: int | None = None, stale: bool = False) -> KVEntry[T] | None:
        """The value of a key; None if it has none. With `revision` the value, or deletion, of that revision; None if
        the log no longer has it, or it is another key's.

        >>> async def example(address: str) -> None:
        ...     async with comet.KV(address, "quotes") as kv:
        ...         first = await kv.put("EURUSD", b"1.08")
        ...         await kv.put("EURUSD", b"1.09")
        ...         print((await kv.get("EURUSD")).value, (await kv.get("EURUSD", revision=first)).value)
        ...         print(await kv.get("USDJPY"))
        >>> run(example)
        b'1.09' b'1.08'
        None
        """
        name = _key(key)
        if revision is not None:
            return await self._at(name, revision, stale)
        request = pb.ReadKeysRequest(topic=self.topic, stale=stale, keys=pb.KeyList(keys=[name]))
        answer = await self._calls.read(await self._calls.partition(name), request)
        if not answer.records or not answer.records[0].HasField("value"):
            return None
        return self._entry(answer.records[0])

    async def _at(self, key: bytes, revision: int, stale: bool) -> KVEntry[T] | None:
        if revision < 0:
            raise InvalidArgument(f"a revision is an offset, not {revision}")
        request = pb.ReadKeysRequest(topic=self.topic, stale=stale, revision=pb.KeyRevision(key=key, revision=revision))
        answer = await self._calls.read(await self._calls.partition(key), request)
        return self._entry(answer.records[0]) if answer.records else None

    async def entries(
        self, prefix: Key = b"", *, after: Key | None = None, limit: int = PAGE_MAX, stale: bool = False
    ) -> list[KVEntry[T]]:
        """The values of the first `limit` keys with this prefix, by key; the next ones with the last key as `after`.

        >>> async def example(address: str) -> None:
        ...     async with comet.KV(address, "quotes") as kv:
        ...         for symbol in ("EURUSD", "EURCHF", "USDJPY"):
        ...             await kv.put(symbol, b"1")
        ...         print([entry.key for entry in await kv.entries("EUR", limit=1)])
        ...         print([entry.key for entry in await kv.entries("EUR", after="EURCHF")])
        >>> run(example)
        [b'EURCHF']
        [b'EURUSD']
        """
        limits.within("limit", limit, 1, PAGE_MAX)
        start = None if after is None else _key(after)
        start_of = _prefix(prefix)
        pages = [self._page(one, start_of, start, limit, stale) for one in range(await self._calls.partitions())]
        found = [record for page in await asyncio.gather(*pages) for record in page]
        found.sort(key=lambda record: record.key)
        return [self._entry(record) for record in found[:limit]]

    async def _page(
        self, partition: int, prefix: bytes, after: bytes | None, limit: int, stale: bool
    ) -> list[pb.Record]:
        """The first records of one partition."""
        found: list[pb.Record] = []
        while len(found) < limit:
            wanted = pb.KeyRange(prefix=prefix, after=after, limit=limit - len(found))
            request = pb.ReadKeysRequest(topic=self.topic, stale=stale, range=wanted)
            answer = await self._calls.read(partition, request)
            found.extend(answer.records)
            if not answer.HasField("after"):
                break
            after = answer.after
        return found

    async def keys(
        self, prefix: Key = b"", *, after: Key | None = None, limit: int = PAGE_MAX, stale: bool = False
    ) -> list[bytes]:
        """The keys of `entries`."""
        return [one.key for one in await self.entries(prefix, after=after, limit=limit, stale=stale)]

    async def history(self, key: Key, limit: int = HISTORY_MAX, *, stale: bool = False) -> list[KVEntry[T]]:
        """The last revisions of a key, deletions included, the newest first: at most 64, as far as the log has them.

        >>> async def example(address: str) -> None:
        ...     async with comet.KV(address, "quotes") as kv:
        ...         await kv.put("EURUSD", b"1.08")
        ...         await kv.delete("EURUSD")
        ...         for entry in await kv.history("EURUSD"):
        ...             print(entry.revision, entry.value, entry.ended)
        >>> run(example)
        1 None 0
        0 b'1.08' None
        """
        limits.within("limit", limit, 1, HISTORY_MAX)
        name = _key(key)
        request = pb.ReadKeysRequest(topic=self.topic, stale=stale, history=pb.KeyHistory(key=name, limit=limit))
        answer = await self._calls.read(await self._calls.partition(name), request)
        return [self._entry(record) for record in answer.records]

    def watch(self, prefix: Key = b"", *, key: Key | None = None) -> KVWatch[T]:
        """Follows the keys with this prefix, or one key: yields the last value of each, then None once, then every
        change as it is committed. No entry says that a value has expired: compare its `expires_us` with the clock.

        >>> async def example(address: str) -> None:
        ...     async with comet.KV(address, "quotes") as kv:
        ...         await kv.put("EURUSD", b"1.08")
        ...         async with kv.watch() as changes:
        ...             async for entry in changes:
        ...                 print("complete" if entry is None else entry.value)
        ...                 if entry is None:
        ...                     await kv.put("EURUSD", b"1.09")
        ...                 elif entry.value == b"1.09":
        ...                     break
        >>> run(example)
        b'1.08'
        complete
        b'1.09'
        """
        name, start = None if key is None else _key(key), _prefix(prefix)
        pages = _Pages(self, name, start)
        return KVWatch(Watched(name, start, pages.next, self._consumer, self._serde, self._clock_us))

    def _consumer(self, partitions: list[int]) -> Consumer[bytes]:
        return Consumer(self._addresses, self.topic, partitions=partitions, **self._seams)

    # ---- writing

    async def put(self, key: Key, value: T, *, ttl_ms: int | None = None) -> int:
        """Sets a key, whether or not it has a value. Returns the revision. With `ttl_ms` the key has no value from that
        time on, unless it is set again; as for `Producer.send`.

        >>> async def example(address: str) -> None:
        ...     async with comet.KV(address, "quotes") as kv:
        ...         print(await kv.put("EURUSD", b"1.08", ttl_ms=60_000))
        >>> run(example)
        0
        """
        return await self._write(_key(key), value, None, ttl_ms=ttl_ms)

    async def create(self, key: Key, value: T, *, ttl_ms: int | None = None) -> int:
        """Sets a key that has no value, also one that was deleted or has expired. Returns the revision. Raises
        RevisionMismatch."""
        return await self._write(_key(key), value, ABSENT, ttl_ms=ttl_ms)

    async def update(self, key: Key, value: T, revision: int, *, ttl_ms: int | None = None) -> int:
        """Sets a key whose value has this revision. Returns the new one. Raises RevisionMismatch.

        >>> async def example(address: str) -> None:
        ...     async with comet.KV(address, "quotes", type=int) as kv:
        ...         first = await kv.create("EURUSD", 1)
        ...         print(await kv.update("EURUSD", 2, first))
        >>> run(example)
        1
        """
        if revision < 0:
            raise InvalidArgument(f"a revision is an offset, not {revision}: create() sets a key without a value")
        return await self._write(_key(key), value, revision, ttl_ms=ttl_ms)

    async def delete(self, key: Key, revision: int | None = None) -> int | None:
        """Deletes a key, whose value has this revision if one is given. Returns the revision of the deletion; None if
        the key had no value. Raises RevisionMismatch.

        >>> async def example(address: str) -> None:
        ...     async with comet.KV(address, "quotes") as kv:
        ...         await kv.put("EURUSD", b"1.08")
        ...         print(await kv.delete("EURUSD"), await kv.delete("EURUSD"))
        >>> run(example)
        1 None
        """
        name = _key(key)
        if revision is not None:
            return await self._delete(name, revision)
        for tries in range(_DELETE_TRIES):
            found = await self.get(name)
            if found is None:
                return None
            try:
                return await self._delete(name, found.revision)
            except RevisionMismatch:
                if tries + 1 == _DELETE_TRIES:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _delete(self, key: bytes, revision: int) -> int:
        if revision < 0:
            raise InvalidArgument(f"a revision is an offset, not {revision}")
        return await self._write(key, None, revision, [pb.Header(name=ENDED_HEADER, value=str(revision).encode())])

    async def _write(
        self,
        key: bytes,
        value: Any,
        expected: int | None,
        headers: Iterable[pb.Header] = (),
        ttl_ms: int | None = None,
    ) -> int:
        data = self._encode(value)
        if data is None and not headers:
            raise InvalidArgument("a value is not None: delete() deletes a key")
        ttl = 0 if ttl_ms is None else check_ttl(ttl_ms)
        record = pb.Record(key=key, value=data, headers=headers, expected=expected, ttl_ms=ttl)
        return await self._writes.write(await self._calls.partition(key), record)

    def _entry(self, record: pb.Record) -> KVEntry[T]:
        value = record.value if record.HasField("value") else None
        headers = [(header.name, header.value) for header in record.headers]
        return entry(
            record.key, value, record.offset, record.timestamp_us, headers, record.expires_us, self._serde
        )  # fmt: skip


class _Pages:
    """The entries of a watch, partition by partition."""

    def __init__(self, kv: KV[Any], key: bytes | None, prefix: bytes) -> None:
        self._kv = kv
        self._key = key
        self._prefix = prefix
        self._partition = 0
        self._after: bytes | None = None

    async def next(self) -> Page:
        kv = self._kv
        if self._key is not None:
            partition = await kv._calls.partition(self._key)
            answer = await kv._calls.read(
                partition, pb.ReadKeysRequest(topic=kv.topic, keys=pb.KeyList(keys=[self._key]))
            )
            found = [kv._entry(record) for record in answer.records if record.HasField("value")]
            return Page(partition, found, answer.last_stable_offset, last=True)
        partition = self._partition
        wanted = pb.KeyRange(prefix=self._prefix, after=self._after, limit=PAGE_MAX)
        answer = await kv._calls.read(partition, pb.ReadKeysRequest(topic=kv.topic, range=wanted))
        self._after = answer.after if answer.HasField("after") else None
        last = self._after is None and partition + 1 == await kv._calls.partitions()
        if self._after is None:
            self._partition += 1
        return Page(partition, [kv._entry(record) for record in answer.records], answer.last_stable_offset, last)


def _key(key: Key) -> bytes:
    found = key_bytes(key)
    if not found:
        raise InvalidArgument("a key is not empty")
    return found


def _prefix(prefix: Key) -> bytes:
    return key_bytes(prefix)
