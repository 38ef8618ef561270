"""One watch on etcd: a task that reads a stream, and a short queue that the watcher reads.

    stream ─► drop past revisions ─► queue (bounded) ─► anext
      │  silent for a while: request progress; still silent: the stream ends
      └─ from time to time: list the keys, and compare them with the changes seen

The end of a stream ends the watch with Reconnected. The next member that answers may be of an etcd that was restored
from a snapshot: its history may never reach the next revision, or have another change there.

A watcher that does not read fills the queue, then the stream's flow control; then etcd holds its position.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from aetcd import rpc

from comet_broker.metadata.etcd.calls import Connection, EtcdMember, Metadata
from comet_broker.metadata.etcd.reconcile import Reconciler
from comet_broker.metadata.etcd.wire import Keys, revisions
from comet_broker.metadata.store import Compacted, Reconnected, StoreUnavailable, WatchEvent

log = logging.getLogger(__name__)

QUEUE_REVISIONS_MAX: Final = 256
IDLE_S: Final = 2.0  # after which a silent stream is checked by a progress request


class EtcdWatch(AsyncIterator[Sequence[WatchEvent]]):
    """Every revision of a prefix, once and in order. Owned by its reader; the store ends it when it closes."""

    def __init__(
        self,
        connection: Connection,
        keys: Keys,
        prefix: str,
        from_revision: int,
        reconcile_s: float,
        on_closed: Callable[[EtcdWatch], None],
    ) -> None:
        if from_revision < 1:
            raise ValueError(f"a watch starts at a revision from 1 on, not {from_revision}")
        self._connection = connection
        self._keys = keys
        self._range = keys.range(prefix)
        self._next_revision = from_revision
        self._reconcile_s = reconcile_s
        self._reconciler = Reconciler()
        self._reconcile_at = 0.0
        self._on_closed = on_closed
        self._queue: deque[tuple[WatchEvent, ...]] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._reading = False
        self._closed = False
        self._failure: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    async def __anext__(self) -> Sequence[WatchEvent]:
        if self._reading:
            raise RuntimeError("a watch can be read by one task at a time")
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="comet-etcd-watch")
        self._reading = True
        try:
            while not self._closed:
                if self._queue:
                    self._room.set()
                    return self._queue.popleft()
                if self._failure is not None:
                    raise self._failure
                self._news.clear()
                await self._news.wait()
            raise StopAsyncIteration
        finally:
            self._reading = False

    async def aclose(self) -> None:
        """Ends the watch, also for a task that waits in it."""
        self._closed = True
        self._news.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._on_closed(self)

    # ---- the stream

    async def _run(self) -> None:
        try:
            await self._follow()
        except asyncio.CancelledError:
            raise
        except StoreUnavailable as error:
            log.info("a watch on etcd broke off at revision %d: %s", self._next_revision, error)
            self._fail(Reconnected(f"the watch broke off at revision {self._next_revision}"))
        except BaseException as error:  # noqa: BLE001 - the reader of the watch gets any error
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._news.set()
        self._on_closed(self)

    async def _follow(self) -> None:
        """Reads one stream until it ends; raises StoreUnavailable then, or Compacted."""
        member, metadata = await self._connection.pick()
        stream = member.watch.Watch(metadata=metadata)
        try:
            await self._read(stream, member)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                self._connection.forget_token()
            self._give_up(member, f"{error.code().name}: {error.details()}", error)
        except (TimeoutError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            self._give_up(member, str(error) or "silent", error)
        finally:
            stream.cancel()

    async def _read(self, stream: Any, member: EtcdMember) -> None:
        await self._write(stream, rpc.WatchRequest(create_request=self._request()))
        probing = True  # etcd answers the creation of a watch, so silence counts from the start
        answer = asyncio.ensure_future(stream.read())
        try:
            while True:
                done, _ = await asyncio.wait([answer], timeout=self._connection.timeout_s if probing else IDLE_S)
                if done:
                    probing = False
                    await self._take(answer.result(), member)
                    answer = asyncio.ensure_future(stream.read())
                elif probing:
                    raise TimeoutError("the stream is silent")
                else:
                    await self._write(stream, rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))
                    probing = True
                await self._reconcile_when_due()
        finally:
            answer.cancel()
            await asyncio.wait([answer])
            if not answer.cancelled():
                answer.exception()

    def _request(self) -> Any:
        # From one revision earlier: a deletion at the very revision of a compaction is gone, and etcd would not report
        # that to a watch that starts there.
        start = max(self._next_revision - 1, 1)
        first, end = self._range
        return rpc.WatchCreateRequest(key=first, range_end=end, start_revision=start)

    async def _write(self, stream: Any, request: Any) -> None:
        async with asyncio.timeout(self._connection.timeout_s):
            await stream.write(request)

    def _give_up(self, member: EtcdMember, why: str, cause: BaseException | None = None) -> NoReturn:
        self._connection.suspect(member)
        raise StoreUnavailable(f"{member.endpoint}: {why}") from cause

    async def _take(self, response: Any, member: EtcdMember) -> None:
        if response is grpc.aio.EOF:
            self._give_up(member, "the stream ended")
        if response.compact_revision:
            raise Compacted(response.compact_revision + 1)
        if response.canceled:
            if "auth" in response.cancel_reason or "permission" in response.cancel_reason:
                self._connection.forget_token()
            self._give_up(member, f"the watch was cancelled: {response.cancel_reason}")
        for events in revisions(self._keys, response.events, self._next_revision):
            while len(self._queue) >= QUEUE_REVISIONS_MAX:
                self._room.clear()
                await self._room.wait()
            self._next_revision = events[0].revision + 1
            self._reconciler.seen(events)
            self._queue.append(events)
            self._news.set()

    async def _reconcile_when_due(self) -> None:
        """Raises Compacted if the stream has lost a change, so that the reader lists the keys again."""
        now = self._connection.clock.monotonic()
        if now < self._reconcile_at:
            return
        self._reconcile_at = now + self._reconcile_s
        first, end = self._range

        async def listing(member: EtcdMember, left_s: float, metadata: Metadata) -> Any:
            request = rpc.RangeRequest(key=first, range_end=end, keys_only=True)
            return await member.kv.Range(request, timeout=left_s, metadata=metadata)

        answer = await self._connection.call(listing, repeatable=True)
        items = {self._keys.from_etcd(pair.key): pair.mod_revision for pair in answer.kvs}
        if lost := self._reconciler.lost(items, answer.header.revision):
            log.warning("etcd's watch has lost changes of %d keys, first %s: listing again", len(lost), min(lost))
            raise Compacted(answer.header.revision + 1)
