"""Keeps the partitions of one consumer subscribed, and queues what arrives for it.

A consumer of a topic reads all of its partitions, or those that it was given; one in a group those that it is
assigned, of any topics, which come and go (`assign`, `unassign`).

    connections ─► Reader.delivered ─► queue of deliveries, and of errors in their place ─► take()
         ▲                                                                                    │
         └──── _supervise: subscribes every partition without a subscription, for any reason  │
         └──── credit for what was taken ◄────────────────────────────────────────────────────┘

Owned by its consumer and driven by one task. Nothing is decoded here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Literal

from comet import limits
from comet.client.client import Client
from comet.client.connection import Attachment, Connection
from comet.client.metadata import look_at
from comet.client.retry import Backoff
from comet.consumer.broker_subscription import BrokerSubscription, PartitionSubscription, window_for
from comet.consumer.gaps import gap_of, way_on
from comet.consumer.replica_choice import ReadFrom, Replicas
from comet.errors import (
    Closed,
    CometError,
    Internal,
    InvalidArgument,
    OffsetOutOfRange,
    PartitionNotFound,
    Timeout,
    TopicNotFound,
)
from comet.types import AtOffset, Earliest, Gap, Latest, Position, TopicInfo, TopicPartition
from comet.wire.corrupt import CorruptPolicy, OnCorrupt

log = logging.getLogger("comet")

# That is after some seconds: a change of leaders is over by then.
_TRIES_UNTIL_TOLD: Final = 20

OutOfRange = Literal["raise", "earliest", "latest"]


class Intake:
    def __init__(
        self,
        client: Client,
        topic: str | None,
        *,
        start: Position,
        partitions: list[int] | None,
        buffer_bytes: int,
        on_out_of_range: OutOfRange,
        read_from: ReadFrom,
        rack: str,
        on_gap: Callable[[Gap], None] | None,
        on_corrupt: OnCorrupt = "raise",
        uncommitted: bool = False,
        begun: Callable[[PartitionSubscription], None] | None = None,
    ) -> None:
        self.topic = topic  # None: what is assigned is read
        self.readers: dict[TopicPartition, PartitionSubscription] = {}
        self.in_hand: PartitionSubscription | None = None  # whose delivery the consumer is reading
        self.reconnects = 0
        self.received_bytes = 0
        self._client = client
        self._start = start
        self._wanted = partitions
        self.buffer_bytes = buffer_bytes
        self._on_out_of_range = on_out_of_range
        self._on_gap = on_gap
        self.corrupt = CorruptPolicy(on_corrupt, on_gap)
        self._uncommitted = uncommitted
        self._begun = begun  # hears of a partition whose position is known now
        self._replicas = Replicas(client, self.readers, self._leave, read_from=read_from, rack=rack)
        self._feeds: dict[Connection, BrokerSubscription] = {}
        self._attaching: dict[PartitionSubscription, asyncio.Task[Attachment]] = {}
        self._departing: set[TopicPartition] = set()  # unassigned, and the broker has not confirmed it
        # With the generation of the reader that each is for, and the feed whose credit it took.
        self._queue: deque[tuple[PartitionSubscription, int, memoryview | CometError, BrokerSubscription | None]] = (
            deque()
        )
        self._broken: CometError | None = None  # nothing will ever come again
        self._arrival: asyncio.Future[None] | None = None
        self._wake: asyncio.Event | None = None
        self._ready: asyncio.Future[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._closed = False

    # ---- life

    @property
    def started(self) -> bool:
        return self._supervisor is not None

    async def start(self) -> None:
        """Returns once every partition is subscribed. Raises TopicNotFound, PartitionNotFound, Unavailable."""
        loop = asyncio.get_running_loop()
        if self._supervisor is None:
            self._wake = asyncio.Event()
            self._ready = loop.create_future()
            self._supervisor = loop.create_task(
                self._supervise(), name=f"comet: consume {self.topic or 'what is assigned'}"
            )
            self._supervisor.add_done_callback(self._supervisor_ended)
        assert self._ready is not None
        await asyncio.shield(self._ready)

    async def close(self) -> None:
        self._closed = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        self._broken = Closed("the consumer was closed")
        self._queue.clear()
        self._arrive()

    async def _supervise(self) -> None:
        """Subscribes the partitions without a subscription, and waits until something changes."""
        assert self._wake is not None
        assert self._ready is not None
        backoff = Backoff(self._client.random, max_ms=limits.ROUTE_BACKOFF_MAX_MS, free=1)
        if self.topic is not None:
            self._add_readers(self.topic, await self._find_topic(self.topic, backoff))
            if self._wanted is None:
                self._client.watch(lambda: [self.topic or ""], self._topic_changed)
        self._client.spawn(self._replicas.watch())
        while True:
            self._wake.clear()
            error = await self._subscribe_all()
            if error is not None:
                await asyncio.sleep(backoff.next_s(error.retry_after_ms))
                if backoff.tries == _TRIES_UNTIL_TOLD:
                    missing = sorted(reader.place for reader in self.readers.values() if reader.wants_feed)
                    named = ", ".join(f"{topic}/{partition}" for topic, partition in missing)
                    log.warning("comet: partitions %s cannot be read for now: %s", named, error)
                continue
            backoff.reset()
            if not self._ready.done():
                self._ready.set_result(None)
            await self._wake.wait()

    async def _find_topic(self, topic: str, backoff: Backoff) -> TopicInfo:
        """The topic; raises TopicNotFound, and waits for a cluster that cannot be reached for CONNECT_TIMEOUT_MS."""
        give_up = asyncio.get_running_loop().time() + limits.CONNECT_TIMEOUT_MS / 1000
        while True:
            try:
                return await self._client.topic(topic)
            except CometError as error:
                if not error.retriable or asyncio.get_running_loop().time() >= give_up:
                    raise
                await asyncio.sleep(backoff.next_s(error.retry_after_ms))

    def _add_readers(self, topic: str, info: TopicInfo) -> None:
        chosen = range(len(info.partitions)) if self._wanted is None else self._wanted
        for index in chosen:
            if not 0 <= index < len(info.partitions):
                raise PartitionNotFound(
                    f"topic {topic!r} has the partitions 0 to {len(info.partitions) - 1}, not {index}"
                )
            self._add(TopicPartition(topic, index), self._start)

    def _add(self, place: TopicPartition, start: Position) -> None:
        if place not in self.readers:
            self.readers[place] = self._new_reader(place, start)

    def _new_reader(self, place: TopicPartition, start: Position) -> PartitionSubscription:
        return PartitionSubscription(place, start, self._arrived, self._troubled)

    def _new_feed(self, connection: Connection, brokers: int) -> BrokerSubscription:
        return BrokerSubscription(connection, window_for(self.buffer_bytes, brokers), uncommitted=self._uncommitted)

    def _topic_changed(self, info: TopicInfo) -> None:
        """Partitions that were added are read from their beginning: everything in them is new."""
        if info.name != self.topic or self._wanted is not None:
            return
        for index in range(len(info.partitions)):
            self._add(TopicPartition(info.name, index), Earliest())
        self._rouse()

    # ---- what comes and goes

    def assign(
        self, place: TopicPartition, topic_id: bytes, start: Position, epoch: int | None = None
    ) -> PartitionSubscription:
        """Reads a partition from now on; from an offset, with the epoch of the record before it where it is known."""
        assert place not in self.readers
        self._add(place, start)
        reader = self.readers[place]
        reader.topic_id = topic_id
        if isinstance(start, AtOffset):
            reader.begin(start.offset, epoch)
        self._rouse()
        return reader

    def unassign(self, place: TopicPartition) -> PartitionSubscription | None:
        """From now on nothing of the partition is handed out, nor taken from the broker for longer than it must."""
        reader = self.readers.pop(place, None)
        if reader is None:
            return None
        reader.retire(self._too_late)
        attaching = self._attaching.pop(reader, None)
        if attaching is not None:
            attaching.cancel()
        self._departing.add(place)
        self._client.spawn(self._depart(reader))
        return reader

    async def _depart(self, reader: PartitionSubscription) -> None:
        try:
            if reader.feed is not None:
                await self._unsubscribe(reader, reader.feed)
        except CometError as error:  # the partition is gone, and the subscription to it
            log.info("comet: %s/%d: was not unsubscribed: %s", *reader.place, error)
        finally:
            reader.leave_feed()
            self._departing.discard(reader.place)
            self._rouse()

    def _too_late(self, reader: PartitionSubscription, batches: memoryview) -> None:
        """Was under way when the partition was unassigned."""
        reader.queued_bytes -= len(batches)
        if reader.feed is not None:
            reader.feed.taken(len(batches))

    def fail(self, error: CometError) -> None:
        """Nothing more will come: a reader gets the reason, once what has arrived is read."""
        self._broken = error
        self._arrive()

    async def _subscribe_all(self) -> CometError | None:
        """Tries once to subscribe every partition that should be; returns why some could not."""
        missing = [one for one in self.readers.values() if one.wants_feed and one.place not in self._departing]
        if not missing:
            return None
        problem: CometError | None = None
        groups: dict[tuple[Connection, bool], list[tuple[PartitionSubscription, Attachment]]] = {}
        for reader, result in (await self._attach_all(missing)).items():
            if isinstance(result, Attachment):
                groups.setdefault((result.connection, reader.leader_only), []).append((reader, result))
            elif isinstance(result, CometError):
                problem = self._judge(reader, result) or problem
            else:
                raise result
        brokers = len({connection for connection, _ in groups} | self._feeds.keys())
        for (connection, _), chosen in groups.items():
            problem = await self._subscribe(connection, chosen, brokers) or problem
        if self._attaching and problem is None:
            problem = Timeout(f"{len(self._attaching)} partitions are not attached yet")
        return problem

    async def _attach_all(
        self, missing: list[PartitionSubscription]
    ) -> dict[PartitionSubscription, Attachment | BaseException]:
        """What has become of the attempts to attach; those that take long are waited for the next time."""
        for reader in missing:
            if reader not in self._attaching:
                attaching = self._attaching[reader] = self._client.spawn(self._attach(reader))
                attaching.add_done_callback(look_at)  # a closed or revoked partition's outcome is not read
        await asyncio.wait(self._attaching.values(), timeout=limits.ATTACH_PATIENCE_MS / 1000)
        done = {reader: task for reader, task in self._attaching.items() if task.done()}
        for reader in done:
            del self._attaching[reader]
        results = {reader: task.exception() or task.result() for reader, task in done.items() if not task.cancelled()}
        return {reader: result for reader, result in results.items() if reader.wants_feed}

    async def _attach(self, reader: PartitionSubscription) -> Attachment:
        attachment = await self._replicas.attach(reader)
        if not reader.topic_id:
            reader.topic_id = attachment.topic_id
        elif reader.topic_id != attachment.topic_id:
            raise TopicNotFound(
                f"topic {reader.topic!r} was deleted and made again: what is there now is another topic, "
                "so positions in the old one mean nothing; start a new consumer"
            )
        return attachment

    async def _subscribe(
        self, connection: Connection, chosen: list[tuple[PartitionSubscription, Attachment]], brokers: int
    ) -> CometError | None:
        if connection.lost is not None:
            return connection.lost
        feed = self._feeds.get(connection)
        if feed is None:
            feed = self._feeds[connection] = self._new_feed(connection, brokers)
            connection.on_lost(partial(self._lost, connection))
        if not feed.opened:
            self._charge(feed, {reader for reader, _ in chosen})
        try:
            await feed.subscribe(chosen, leader_only=chosen[0][0].leader_only)
        except CometError as error:
            if len(chosen) > 1 and not error.retriable:
                # One of them is to blame, and only it shall suffer.
                results = [await self._subscribe(connection, [one], brokers) for one in chosen]
                return next(filter(None, results), None)
            problem: CometError | None = None
            for reader, _ in chosen:
                problem = self._judge(reader, error) or problem
            return problem
        if self._begun is not None:
            for reader, _ in chosen:
                if reader.position >= 0:
                    self._begun(reader)
        return None

    def _charge(self, feed: BrokerSubscription, readers: set[PartitionSubscription]) -> None:
        """What still waits to be taken counts against the window that the feed is about to open."""
        self._queue = deque(
            (reader, generation, arrived, feed if reader in readers else old)
            for reader, generation, arrived, old in self._queue
        )

    def _lost(self, connection: Connection, error: CometError) -> None:
        feed = self._feeds.pop(connection, None)
        if feed is None or self._closed:
            return
        if feed.readers:
            self.reconnects += 1
            log.info("comet: connection lost, reconnecting: %s", error)
        for reader in list(feed.readers):
            reader.leave_feed()
        self._rouse()

    # ---- what can go wrong with one partition

    def _troubled(self, reader: PartitionSubscription, error: CometError) -> None:
        """The broker ended a partition's subscription."""
        self._judge(reader, error)
        self._rouse()

    def _judge(self, reader: PartitionSubscription, error: CometError) -> CometError | None:
        """Decides what an error means for a partition; returns it if trying again can help."""
        if self.readers.get(reader.place) is not reader:
            return None
        # Whether a topic that was assigned is there is for the coordinator to say.
        gone = self.topic is None and isinstance(error, TopicNotFound)
        if error.retriable or error.metadata_stale or isinstance(error, Timeout) or gone:
            if error.metadata_stale or gone:
                for connection in self._feeds:
                    connection.detach(reader.topic, reader.partition)
                self._replicas.misled(reader, error)
            return error
        if self._replicas.only_here(reader, error):
            return error
        reader.stopped = error
        if reader.last is None and self.in_hand is not reader and self._on_gap is None and self._goes_on(reader, error):
            return None
        self._queue.append((reader, reader.generation, error, None))
        self._arrive()
        return None

    def _goes_on(self, reader: PartitionSubscription, error: CometError) -> bool:
        """Goes on elsewhere where records are not there and the application said so beforehand."""
        resets = isinstance(error, OffsetOutOfRange) and self._on_out_of_range != "raise"
        gap = gap_of(error, reader.topic, reader.partition, reader.next_offset)
        if resets:
            policy = self._on_out_of_range
            log.warning("comet: %s/%d: going on at %s: %s", reader.topic, reader.partition, policy, error)
            reader.restart(Earliest() if policy == "earliest" else Latest())
        elif gap is not None and self._on_gap is not None:
            reader.restart(way_on(gap))
        else:
            return False
        self._rouse()
        if gap is not None and self._on_gap is not None:
            self._on_gap(gap)
        return True

    def passes(self, reader: PartitionSubscription, error: CometError) -> bool:
        """What came lacks records: asks the leader for them, or goes on behind them. Else the application is told."""
        gap = gap_of(error, reader.topic, reader.partition, reader.position)
        if self._replicas.only_here(reader, error):
            self.stop(reader, error, again=True)
        elif gap is not None and self._on_gap is not None:
            self.stop(reader, error, again=True, where=way_on(gap))
            self._on_gap(gap)
        else:
            return False
        return True

    def stop(
        self, reader: PartitionSubscription, error: CometError, *, again: bool, where: AtOffset | None = None
    ) -> None:
        """What came for a partition cannot be used: drops it, and with `again` asks for it once more."""
        place = AtOffset(reader.position) if where is None else where
        reader.generation += 1
        reader.stopped = error
        reader.paused = True

        async def leave() -> None:
            await self.move(reader, place)
            if not again:
                reader.stopped = error
            self._rouse()

        self._client.spawn(leave())

    def _supervisor_ended(self, task: asyncio.Task[None]) -> None:
        """The supervisor never returns by itself: its error goes to all readers."""
        if task.cancelled():
            error: BaseException = Closed("the consumer was closed")
        else:
            error = task.exception() or Closed("the consumer was closed")
        assert self._ready is not None
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()
        elif not task.cancelled():
            if not isinstance(error, CometError):
                log.error("comet: consuming %s broke", self.topic or "what is assigned", exc_info=error)
                error = Internal(f"consuming broke: {error!r}")
            self._broken = error
            self._arrive()

    def _rouse(self) -> None:
        if self._wake is not None:
            self._wake.set()

    async def move(self, reader: PartitionSubscription, where: Position) -> None:
        """Takes a partition elsewhere: after this nothing comes that lay on the old way."""
        reader.paused = True
        try:
            if reader.feed is not None:
                await self._unsubscribe(reader, reader.feed)
            reader.leave_feed()
            reader.restart(where)
        finally:
            reader.paused = False
            self._rouse()

    async def _leave(self, reader: PartitionSubscription) -> None:
        """Has a partition read from another broker; what has arrived stays."""
        reader.paused = True
        try:
            if reader.feed is not None:
                await self._unsubscribe(reader, reader.feed)
            reader.leave_feed()
        finally:
            reader.paused = False
            self._rouse()

    async def _unsubscribe(self, reader: PartitionSubscription, feed: BrokerSubscription) -> None:
        try:
            await feed.unsubscribe(reader)
        except CometError as error:
            # The connection is lost, and the subscription with it.
            if not (error.retriable or isinstance(error, Timeout)):
                raise

    # ---- arrival

    def _arrived(self, reader: PartitionSubscription, batches: memoryview) -> None:
        self.received_bytes += len(batches)
        self._queue.append((reader, reader.generation, batches, reader.feed))
        if self._arrival is not None:
            self._arrive()

    def _arrive(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def arrival(self) -> None:
        """Waits until there is something to take. Raises what ended everything. One waiter at a time."""
        if self._broken is not None:
            raise self._broken.with_traceback(None)
        if self._arrival is not None:
            raise InvalidArgument("this consumer is being read by another task already; give every task its own")
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            await self._arrival
        finally:
            self._arrival = None

    def waiting(self, after: int) -> list[memoryview | CometError]:
        """What has arrived and was not taken, behind the first so many."""
        return [self._queue[at][2] for at in range(after, len(self._queue))]

    def take(self) -> tuple[PartitionSubscription, memoryview] | None:
        """The next delivery, credit for it given back; None when there is none. Raises what stopped a partition."""
        while self._queue:
            reader, generation, arrived, feed = self._queue.popleft()
            current = generation == reader.generation
            if isinstance(arrived, memoryview):
                self._taken(reader, arrived, feed)
                if current:
                    return reader, arrived
            elif current and not self._goes_on(reader, arrived):
                arrived.details.update(topic=reader.topic, partition=str(reader.partition))
                raise arrived.with_traceback(None)
        return None

    def _taken(self, reader: PartitionSubscription, batches: memoryview, feed: BrokerSubscription | None) -> None:
        reader.queued_bytes -= len(batches)
        assert reader.queued_bytes >= 0
        reader.taken(batches)
        if feed is not None and feed.connection.lost is None:
            feed.taken(len(batches))  # also when its partition has gone elsewhere meanwhile: the subscription stays
