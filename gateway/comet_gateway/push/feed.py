"""One topic, followed once for all its subscribers: a consumer fills the ring, and waiting subscribers are woken.

Owned by the hub; lives from the first subscriber of the topic until some time after the last, or until the topic is
deleted. One task reads; everything else is synchronous.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import comet
from comet.errors import Closed, CometError, CorruptBatch, Internal, PartitionNotFound
from comet.types import Latest, Position
from comet_gateway.http.problems import Problem
from comet_gateway.push.catchup import Beginning, Log, Piece
from comet_gateway.push.chunk import Source
from comet_gateway.push.conflator import Conflator
from comet_gateway.push.events import Begun, Failed, Missing
from comet_gateway.push.latest_fanout import SnapshotWalk
from comet_gateway.push.latest_table import Encoding
from comet_gateway.push.latest_tables import Needs, Tables
from comet_gateway.push.ring import Ring
from comet_gateway.push.ring_cursor import RingCursor
from comet_gateway.push.subscribe_request import Policy, SubscribeRequest
from comet_gateway.push.subscription import FeedSubscriber, Subscription, failed
from comet_gateway.records.cursor import Cursor, CursorPosition

if TYPE_CHECKING:
    from comet_gateway.brokers.backend import Backend
    from comet_gateway.config import Limits

log = logging.getLogger("comet.gateway")

# Subscribers that are woken in one turn of the loop. Records that arrive between turns go out in one write to those
# woken later, and other tasks get their turn.
WOKEN_AT_ONCE: Final = 16

REPORT_BYTES: Final = 16 * 1024


class Feed:
    def __init__(
        self, topic: str, backend: Backend, limits: Limits, history: Log, *,
        grown: Callable[[], None], over: Callable[[Feed], None], room: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.topic = topic
        self.delivery_bytes = limits.delivery_bytes
        self.subscribers: set[FeedSubscriber] = set()
        self.failure: Failed | None = None
        self.ring: Ring  # set by `start`
        self.tables: Tables
        self.records = 0
        self.events = 0
        self._backend = backend
        self._limits = limits
        self._log = history
        self._grown = grown  # called when all rings together may be too large
        self._over = over
        self._room = room
        self._reported_bytes = 0  # size of the ring at the last check of all rings
        self._armed: deque[tuple[int, FeedSubscriber]] = deque()  # with the head that each has seen, in order
        self._waking = False
        self._consumer: comet.Consumer[bytes] | None = None
        self._task: asyncio.Task[None] | None = None

    # ---- life

    async def start(self) -> None:
        """Starts to follow the topic: from now on no record is missed. Raises TopicNotFound, Unavailable."""
        consumer = comet.Consumer(
            self._backend.bootstrap, self.topic, start="latest", on_gap=self._skip, name=f"gateway: {self.topic}"
        )
        try:
            await consumer.start()
            info = await self._backend.admin.describe_topic(self.topic)
        except BaseException:
            await consumer.close()
            raise
        self._consumer = consumer
        positions = {index: CursorPosition(offset) for index, offset in consumer.positions().items()}
        self.ring = Ring(self.topic, info.id, positions, self.delivery_bytes)
        self.tables = Tables(self.ring, self._log, self._limits, self._room)
        self._task = asyncio.create_task(self._follow(consumer), name=f"gateway: follow {self.topic}")

    async def close(self, failure: Failed | None = None) -> None:
        if failure is not None:
            self._fail(failure)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._consumer is not None:
            self.tables.close()
            await self._consumer.close()

    async def _follow(self, consumer: comet.Consumer[bytes]) -> None:
        batches = consumer.batches()
        while True:
            try:
                self._add(await anext(batches))
            except CorruptBatch as error:
                log.warning("gateway: %s: %s", self.topic, error, extra={"topic": self.topic})  # the consumer retries
            except CometError as error:
                self._fail(failed(self.topic, error))
                return
            except Exception as error:
                log.error("gateway: following %s failed", self.topic, exc_info=error, extra={"topic": self.topic})
                self._fail(failed(self.topic, Internal(f"following {self.topic} failed: {error!r}")))
                return

    def _fail(self, failure: Failed) -> None:
        """Ends the feed: the topic is deleted, or cannot be followed. Subscribers first get the present records."""
        self.failure = failure
        for subscriber in list(self.subscribers):
            subscriber.follower.failed = failure
            subscriber.awake()
        self._over(self)

    # ---- arriving records

    def _add(self, batch: comet.RecordBatch[bytes]) -> None:
        if len(batch) == 0:
            return
        source = Source(batch)
        chunks = self.ring.add(source)
        self.records += len(source)
        self.events += len(chunks)
        self.tables.applied(source)
        self._arrived()

    def _skip(self, gap: comet.Gap) -> None:
        missing = Missing(gap.partition, gap.first, gap.end, gap.reason)
        self.ring.skip(missing)
        self.tables.skipped(missing)
        self._arrived()

    def _arrived(self) -> None:
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._wake)
        self.trim(self._limits.feed_bytes)
        if abs(self.ring.bytes - self._reported_bytes) > REPORT_BYTES:
            self._reported_bytes = self.ring.bytes
            self._grown()

    def _wake(self) -> None:
        """Wakes some subscribers with new records; the others in the next turns."""
        armed, head = self._armed, self.ring.head
        for _ in range(WOKEN_AT_ONCE):
            if not armed or armed[0][0] == head:
                self._waking = False
                return
            subscriber = armed.popleft()[1]
            if subscriber.armed:
                subscriber.awake()
        asyncio.get_running_loop().call_soon(self._wake)

    def trim(self, bytes_max: int) -> None:
        """Evicts old items; subscribers at them keep their positions, and read the log from now on."""
        ring = self.ring
        tail = ring.excess(bytes_max)
        if tail == ring.tail:
            return
        positions: dict[int, dict[int, CursorPosition]] = {}
        for subscriber in self.subscribers:
            follower = subscriber.follower
            if isinstance(follower, RingCursor) and follower.live and follower.number < tail:
                if follower.number not in positions:
                    positions[follower.number] = ring.positions_before(follower.number)
                follower.uproot(positions[follower.number])
        ring.evict(tail)

    # ---- subscribers

    @property
    def idle(self) -> bool:
        """Whether there is no subscriber now."""
        return not self.subscribers and self.failure is None

    async def join(self, subscription: Subscription, cursor: Cursor | None, start: Position) -> None:
        """Adds a subscriber, at its cursor or else at the start. Raises Problem, CometError."""
        request = subscription.request
        await self._check(request.partitions or frozenset())
        needs = Needs(self.tables)
        try:
            follower = await self._begin(request, cursor, start, needs)
            if self.failure is not None:  # meanwhile
                raise Problem(self.failure.code, self.failure.detail, retry_after_ms=self.failure.retry_after_ms)
            if subscription.closed:
                raise Closed("the subscription was closed")
            subscription.add(self, follower, needs)
        except BaseException:
            needs.close()
            raise

    async def _check(self, partitions: frozenset[int]) -> None:
        """Raises PartitionNotFound. The consumer notices added partitions after a while."""
        unknown = sorted(partitions - self.ring.positions.keys())
        if unknown:
            info = await self._backend.admin.describe_topic(self.topic)
            if unknown[-1] >= len(info.partitions):
                raise PartitionNotFound(f"topic {self.topic!r} has no partition {unknown[-1]}")

    async def _begin(
        self, request: SubscribeRequest, cursor: Cursor | None, start: Position, needs: Needs
    ) -> RingCursor | Conflator:
        beginning = Beginning({}, None, ())
        if cursor is not None:
            beginning = await self._log.resume(self.ring, cursor, request.partitions)
        elif not request.snapshot and not isinstance(start, Latest):
            beginning = await self._log.begin(self.ring, start, request.partitions)
        positions = beginning.positions if cursor is not None or beginning.positions else None
        snapshot = request.snapshot and cursor is None
        encoding = Encoding(request.values, request.filter)
        follower: RingCursor | Conflator
        if request.policy is Policy.CONFLATE:
            clockwork = needs.tick(encoding, request.interval_ms)
            walk = None
            if snapshot or positions is not None:
                taken = await self.tables.snapshot(needs.table(encoding), positions)
                walk = SnapshotWalk(taken, request.partitions, positions)
            follower = Conflator(self.ring, request, clockwork.ticker)
            at = self.ring.cursor() if positions is None else self.ring.cursor_of(positions)
            if walk is not None:
                # How many of the records in between match is not known.
                counted = {} if positions is None or request.filter is not None else positions
                follower.begin_with(walk, _between(counted, walk.snapshot.positions))
        else:
            walk = None
            if snapshot:
                walk = SnapshotWalk(await self.tables.snapshot(needs.table(encoding)), request.partitions, None)
            follower = RingCursor(self.ring, request)
            if walk is not None:
                follower.begin_with(walk)
            elif positions is not None:
                follower.begin_at(positions)
            at = follower.cursor()
        follower.first.append(Begun(self.topic, "" if snapshot else at, beginning.recovered, beginning.missing))
        return follower

    def add(self, subscriber: FeedSubscriber) -> None:
        self.subscribers.add(subscriber)
        if self.failure is not None:
            subscriber.follower.failed = self.failure

    def leave(self, subscriber: FeedSubscriber) -> None:
        self.subscribers.discard(subscriber)
        subscriber.needs.close()
        if self.idle:
            self._armed.clear()
            self._over(self)

    def arm(self, subscriber: FeedSubscriber) -> None:
        """Wakes the subscriber at the next records or tick."""
        clockwork = subscriber.needs.clockwork
        if clockwork is None:
            if len(self._armed) > 2 * len(self.subscribers) + WOKEN_AT_ONCE:  # many of them have left
                self._armed = deque(entry for entry in self._armed if entry[1].armed)
            self._armed.append((self.ring.head, subscriber))
        else:
            clockwork.arm(subscriber)

    async def read(self, partition: int, position: CursorPosition) -> Piece:
        return await self._log.read(self.ring, partition, position)

    def statistics(self) -> dict[str, Any]:
        ring = self.ring
        followers = [subscriber.follower for subscriber in self.subscribers]
        consumer = {} if self._consumer is None else self._consumer.statistics()
        return {
            "waiting_for_brokers": consumer.get("partitions", 0) - consumer.get("subscribed", 0),  # partitions
            "subscribers": len(followers),
            "live": sum(follower.live for follower in followers),
            "behind_max": max((follower.behind for follower in followers), default=0),
            "records": self.records,
            "chunks": self.events,
            "ring_records": ring.records,
            "ring_bytes": ring.bytes,
            "partitions": len(ring.positions),
            "tables": self.tables.statistics(),
            "consumer": consumer,
        }


def _between(positions: Mapping[int, CursorPosition], ends: Mapping[int, CursorPosition]) -> int:
    """Estimate of the records between positions."""
    return sum(max(ends[index].offset - position.offset, 0) for index, position in positions.items() if index in ends)
