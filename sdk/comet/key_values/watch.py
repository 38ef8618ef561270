"""Follows keys: their last values, then every change.

    entries of each partition ─► None: complete ─► records of a Consumer, from the last stable offset of the entries on

A partition's entries are read before its records are followed, so records that the entries already show come again: a
record at or before the revision that was shown of its key is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from itertools import repeat
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from comet.consumer.consumer import Consumer
from comet.errors import Closed
from comet.key_values.entry import KVEntry, entry
from comet.records.expiry import has_expired
from comet.values.record import Record

T = TypeVar("T")


class Page(NamedTuple):
    """The next entries of one partition."""

    partition: int
    entries: list[KVEntry[Any]]
    follow_from: int  # every record below it that counts is among the entries; of the partition's first page
    last: bool  # of all partitions


class Watched(NamedTuple):
    """The keys that are followed, and how their entries and records are read."""

    key: bytes | None
    prefix: bytes
    next_page: Callable[[], Coroutine[Any, Any, Page]]
    consumer: Callable[[list[int]], Consumer[bytes]]
    serde: Any
    clock_us: Callable[[], int]


class KVWatch(Generic[T]):
    """The changes of keys, as `KV.watch` yields them. Close it, or use `async with`.

    >>> async def example(address: str) -> None:
    ...     async with comet.KV(address, "quotes") as kv:
    ...         await kv.put("EURUSD", b"1.08")
    ...         async with kv.watch(key="EURUSD") as changes:
    ...             async for entry in changes:
    ...                 print(entry and entry.value, changes.complete)
    ...                 if changes.complete:
    ...                     break
    >>> run(example)
    b'1.08' False
    None True
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._entries: deque[KVEntry[Any]] = deque()
        self._last_page = False
        self._starts: dict[int, int] = {}  # by partition, where its records are followed from
        self._shown: dict[int, dict[bytes, int]] = {}  # by partition, the revisions from there on that were yielded
        self._consumer: Consumer[bytes] | None = None
        self._changes: Iterator[tuple[Record[bytes], int]] = iter(())  # what is left of a batch, with expiry times
        self._closed = False
        self._complete = False

    @property
    def complete(self) -> bool:
        """Whether the last values of all keys were yielded."""
        return self._complete

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> KVEntry[T] | None:
        """The next change; None once, when the last values of all keys were yielded. Waits for one."""
        if self._closed:
            raise Closed("the watch was closed")
        if not self._complete:
            found = await self._next_entry()
            if found is not None:
                return found
            await self._follow()
            self._complete = True
            return None
        return await self._next_change()

    async def _next_entry(self) -> KVEntry[T] | None:
        while not self._entries:
            if self._last_page:
                return None
            page = await self._watched.next_page()
            self._last_page = page.last
            start = self._starts.setdefault(page.partition, page.follow_from)
            shown = self._shown.setdefault(page.partition, {})
            shown.update((one.key, one.revision) for one in page.entries if one.revision >= start)
            self._entries.extend(page.entries)
        return self._entries.popleft()

    async def _follow(self) -> None:
        self._consumer = self._watched.consumer(sorted(self._starts))
        await self._consumer.start()
        for partition, start in self._starts.items():
            await self._consumer.seek(start, partition=partition)

    async def _next_change(self) -> KVEntry[T]:
        watched = self._watched
        while True:
            record, expires_us = await self._next_record()
            key = record.key
            if key is None or (key != watched.key if watched.key is not None else not key.startswith(watched.prefix)):
                continue
            if has_expired(expires_us, watched.clock_us()) or self._was_shown(record.partition, key, record.offset):
                continue
            value, at_us, headers = record.value, record.timestamp_us, record.headers
            return entry(key, value, record.offset, at_us, headers, expires_us, watched.serde)

    async def _next_record(self) -> tuple[Record[bytes], int]:
        """The next record, and when it expires."""
        assert self._consumer is not None
        while (found := next(self._changes, None)) is None:
            batch = await self._consumer.get_batch()
            assert batch is not None, "without a timeout it waits"
            self._changes = zip(batch.records(), batch.expiry or repeat(0), strict=False)
        return found

    def _was_shown(self, partition: int, key: bytes, offset: int) -> bool:
        """Whether the entries, or a record before this one, had this revision of the key."""
        shown = self._shown.get(partition)
        if not shown:
            return False
        if offset <= shown.get(key, -1):
            return True
        if offset > max(shown.values()):
            shown.clear()
        return False

    async def close(self) -> None:
        """Ends the watch."""
        self._closed = True
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
