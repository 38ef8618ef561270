"""The fetcher: keeps the partitions of one consumer subscribed, and queues the deliveries.

A consumer of a topic reads all of its partitions, or given ones; a member of a group reads its assigned partitions, of
any topics, which change (`assign`, `unassign`).

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
from typing import Final

from comet import limits
from comet.client.client import Client
from comet.client.connection import Attachment, Connection
from comet.client.metadata import mark_retrieved
from comet.client.retry import Backoff
from comet.consumer.broker_subscription import BrokerSubscription, PartitionSubscription, window_for
from comet.consumer.options import ReadingOptions
from comet.consumer.replica_choice import Replicas
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
from comet.wire.corrupt import CorruptPolicy

log = logging.getLogger("comet")

# Tries before a warning: some seconds; a leader election takes less.
_TRIES_UNTIL_WARNING: Final = 20


class Fetcher:
    """Subscribes partitions at their brokers. Owned by a consumer, used by one task."""

    def __init__(
        self,
        client: Client,
        topic: str | None,
        options: ReadingOptions,
        *,
        start: Position,
        partitions: list[int] | None,
        begun: Callable[[PartitionSubscription], None] | None = None,
    ) -> None:
        self.topic = topic  # None: reads the assigned partitions
        self.readers: dict[TopicPartition, PartitionSubscription] = {}
        self.in_hand: PartitionSubscription | None = None  # the partition whose delivery is being read
        self.reconnects = 0
        self.received_bytes = 0
        self._client = client
        self._start = start
        self._wanted = partitions
        self.buffer_bytes = options.buffer_bytes
        self._on_out_of_range = options.on_out_of_range
        self._on_gap = options.on_gap
        self.corrupt = CorruptPolicy(options.on_corrupt, options.on_gap)
        self._uncommitted = options.isolation == "uncommitted"
        self._begun = begun  # called when the position of a partition is known
        self._replicas = Replicas(client, self.readers, self._leave, read_from=options.read_from, rack=options.rack)
        self._subscriptions: dict[Connection, BrokerSubscription] = {}
        self._attaching: dict[PartitionSubscription, asyncio.Task[Attachment]] = {}
        self._departing: set[TopicPartition] = set()  # unassigned, and the broker has not confirmed it
        # Each with its reader, the reader's generation, and the subscription whose credit it used.
        self._queue: deque[tuple[PartitionSubscription, int, memoryview | CometError, BrokerSubscription | None]] = (
            deque()
        )
        self._broken: CometError | None = None  # the error that ended all reading
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
                self._supervise(), name=f"comet: consume {self.topic or 'assigned partitions'}"
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
                if backoff.tries == _TRIES_UNTIL_WARNING:
                    missing = sorted(reader.tp for reader in self.readers.values() if reader.needs_subscription)
                    named = ", ".join(f"{topic}/{partition}" for topic, partition in missing)
                    log.warning("comet: partitions unavailable, retrying: %s: %s", named, error)
                continue
            backoff.reset()
            if not self._ready.done():
                self._ready.set_result(None)
            await self._wake.wait()

    async def _find_topic(self, topic: str, backoff: Backoff) -> TopicInfo:
        """Looks the topic up; retries for CONNECT_TIMEOUT_MS while no broker answers. Raises TopicNotFound."""
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

    def _add(self, tp: TopicPartition, start: Position) -> None:
        if tp not in self.readers:
            self.readers[tp] = self._new_reader(tp, start)

    def _new_reader(self, tp: TopicPartition, start: Position) -> PartitionSubscription:
        return PartitionSubscription(tp, start, self._arrived, self._troubled)

    def _new_subscription(self, connection: Connection, brokers: int) -> BrokerSubscription:
        return BrokerSubscription(connection, window_for(self.buffer_bytes, brokers), uncommitted=self._uncommitted)

    def _topic_changed(self, info: TopicInfo) -> None:
        """Reads added partitions from their beginning: everything in them is new."""
        if info.name != self.topic or self._wanted is not None:
            return
        for index in range(len(info.partitions)):
            self._add(TopicPartition(info.name, index), Earliest())
        self._rouse()

    # ---- assigned partitions

    def assign(
        self, tp: TopicPartition, topic_id: bytes, start: Position, epoch: int | None = None
    ) -> PartitionSubscription:
        """Starts reading a partition. With an offset, `epoch` is that of the record before it, if known."""
        assert tp not in self.readers
        self._add(tp, start)
        reader = self.readers[tp]
        reader.topic_id = topic_id
        if isinstance(start, AtOffset):
            reader.begin(start.offset, epoch)
        self._rouse()
        return reader

    def unassign(self, tp: TopicPartition) -> PartitionSubscription | None:
        """Stops reading a partition: hands out no more of its records, and ends its subscription."""
        reader = self.readers.pop(tp, None)
        if reader is None:
            return None
        reader.retire(self._too_late)
        attaching = self._attaching.pop(reader, None)
        if attaching is not None:
            attaching.cancel()
        self._departing.add(tp)
        self._client.spawn(self._depart(reader))
        return reader

    async def _depart(self, reader: PartitionSubscription) -> None:
        try:
            if reader.subscription is not None:
                await self._unsubscribe(reader, reader.subscription)
        except CometError as error:  # the partition is gone, and the subscription to it
            log.info("comet: unsubscribing %s/%d failed: %s", *reader.tp, error)
        finally:
            reader.leave_subscription()
            self._departing.discard(reader.tp)
            self._rouse()

    def _too_late(self, reader: PartitionSubscription, batches: memoryview) -> None:
        """Drops a delivery that was in flight when the partition was unassigned."""
        reader.queued_bytes -= len(batches)
        if reader.subscription is not None:
            reader.subscription.taken(len(batches))

    def fail(self, error: CometError) -> None:
        """Ends all reading: the consumer gets the error after the deliveries that have arrived."""
        self._broken = error
        self._arrive()

    async def _subscribe_all(self) -> CometError | None:
        """Tries once to subscribe every partition that needs it; returns the error of one that failed."""
        missing = [one for one in self.readers.values() if one.needs_subscription and one.tp not in self._departing]
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
        brokers = len({connection for connection, _ in groups} | self._subscriptions.keys())
        for (connection, _), chosen in groups.items():
            problem = await self._subscribe(connection, chosen, brokers) or problem
        if self._attaching and problem is None:
            problem = Timeout(f"{len(self._attaching)} partitions are not attached yet")
        return problem

    async def _attach_all(
        self, missing: list[PartitionSubscription]
    ) -> dict[PartitionSubscription, Attachment | BaseException]:
        """The results of the attempts to attach; slow ones are waited for in the next call."""
        for reader in missing:
            if reader not in self._attaching:
                attaching = self._attaching[reader] = self._client.spawn(self._attach(reader))
                attaching.add_done_callback(mark_retrieved)  # a closed or revoked partition's outcome is not read
        await asyncio.wait(self._attaching.values(), timeout=limits.ATTACH_PATIENCE_MS / 1000)
        done = {reader: task for reader, task in self._attaching.items() if task.done()}
        for reader in done:
            del self._attaching[reader]
        results = {reader: task.exception() or task.result() for reader, task in done.items() if not task.cancelled()}
        return {reader: result for reader, result in results.items() if reader.needs_subscription}

    async def _attach(self, reader: PartitionSubscription) -> Attachment:
        attachment = await self._replicas.attach(reader)
        if not reader.topic_id:
            reader.topic_id = attachment.topic_id
        elif reader.topic_id != attachment.topic_id:
            raise TopicNotFound(
                f"topic {reader.topic!r} was deleted and recreated: "
                "positions of the old topic are not valid in the new one; start a new consumer"
            )
        return attachment

    async def _subscribe(
        self, connection: Connection, chosen: list[tuple[PartitionSubscription, Attachment]], brokers: int
    ) -> CometError | None:
        if connection.lost is not None:
            return connection.lost
        subscription = self._subscriptions.get(connection)
        if subscription is None:
            subscription = self._subscriptions[connection] = self._new_subscription(connection, brokers)
            connection.on_lost(partial(self._lost, connection))
        if not subscription.opened:
            self._charge(subscription, {reader for reader, _ in chosen})
        try:
            await subscription.subscribe(chosen, leader_only=chosen[0][0].leader_only)
        except CometError as error:
            if len(chosen) > 1 and not error.retriable:
                # One of them caused it: tried one by one, only that one fails.
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

    def _charge(self, subscription: BrokerSubscription, readers: set[PartitionSubscription]) -> None:
        """Counts deliveries that are not taken yet against the window of a new subscription."""
        self._queue = deque(
            (reader, generation, arrived, subscription if reader in readers else old)
            for reader, generation, arrived, old in self._queue
        )

    def _lost(self, connection: Connection, error: CometError) -> None:
        subscription = self._subscriptions.pop(connection, None)
        if subscription is None or self._closed:
            return
        if subscription.readers:
            self.reconnects += 1
            log.info("comet: connection lost, reconnecting: %s", error)
        for reader in list(subscription.readers):
            reader.leave_subscription()
        self._rouse()

    # ---- errors of one partition

    def _troubled(self, reader: PartitionSubscription, error: CometError) -> None:
        """The broker ended a partition's subscription."""
        self._judge(reader, error)
        self._rouse()

    def _judge(self, reader: PartitionSubscription, error: CometError) -> CometError | None:
        """Handles a partition's error; returns it if a retry can help."""
        if self.readers.get(reader.tp) is not reader:
            return None
        # The coordinator decides whether an assigned topic still exists.
        gone = self.topic is None and isinstance(error, TopicNotFound)
        if error.retriable or error.metadata_stale or isinstance(error, Timeout) or gone:
            if error.metadata_stale or gone:
                for connection in self._subscriptions:
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
        """Continues at another offset if records are missing and the application has chosen a policy for it."""
        resets = isinstance(error, OffsetOutOfRange) and self._on_out_of_range != "raise"
        gap = Gap.of(error, reader.topic, reader.partition, reader.next_offset)
        if resets:
            policy = self._on_out_of_range
            log.warning("comet: offset reset of %s/%d to %s: %s", reader.topic, reader.partition, policy, error)
            reader.restart(Earliest() if policy == "earliest" else Latest())
        elif gap is not None and self._on_gap is not None:
            reader.restart(AtOffset(gap.next_offset))
        else:
            return False
        self._rouse()
        if gap is not None and self._on_gap is not None:
            self._on_gap(gap)
        return True

    def passes(self, reader: PartitionSubscription, error: CometError) -> bool:
        """Reads records that a delivery lacks from the leader, or skips them. False: the error is to be raised."""
        gap = Gap.of(error, reader.topic, reader.partition, reader.position)
        if self._replicas.only_here(reader, error):
            self.stop(reader, error, again=True)
        elif gap is not None and self._on_gap is not None:
            self.stop(reader, error, again=True, where=AtOffset(gap.next_offset))
            self._on_gap(gap)
        else:
            return False
        return True

    def stop(
        self, reader: PartitionSubscription, error: CometError, *, again: bool, where: AtOffset | None = None
    ) -> None:
        """Drops an unusable delivery; with `again` reads its records once more."""
        at = AtOffset(reader.position) if where is None else where
        reader.generation += 1
        reader.stopped = error
        reader.paused = True

        async def leave() -> None:
            await self.move(reader, at)
            if not again:
                reader.stopped = error
            self._rouse()

        self._client.spawn(leave())

    def _supervisor_ended(self, task: asyncio.Task[None]) -> None:
        """Passes the error that ended the supervisor on to the consumer."""
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
                log.error(
                    "comet: unexpected error while consuming %s", self.topic or "assigned partitions", exc_info=error
                )
                error = Internal(f"unexpected error while consuming: {error!r}")
            self._broken = error
            self._arrive()

    def _rouse(self) -> None:
        if self._wake is not None:
            self._wake.set()

    async def move(self, reader: PartitionSubscription, where: Position) -> None:
        """Moves a partition to another position; deliveries for the old one no longer count."""
        reader.paused = True
        try:
            if reader.subscription is not None:
                await self._unsubscribe(reader, reader.subscription)
            reader.leave_subscription()
            reader.restart(where)
        finally:
            reader.paused = False
            self._rouse()

    async def _leave(self, reader: PartitionSubscription) -> None:
        """Reads a partition from another broker from now on; deliveries that have arrived stay."""
        reader.paused = True
        try:
            if reader.subscription is not None:
                await self._unsubscribe(reader, reader.subscription)
            reader.leave_subscription()
        finally:
            reader.paused = False
            self._rouse()

    async def _unsubscribe(self, reader: PartitionSubscription, subscription: BrokerSubscription) -> None:
        try:
            await subscription.unsubscribe(reader)
        except CometError as error:
            # The connection is lost, and the subscription with it.
            if not (error.retriable or isinstance(error, Timeout)):
                raise

    # ---- arrival

    def _arrived(self, reader: PartitionSubscription, batches: memoryview) -> None:
        self.received_bytes += len(batches)
        self._queue.append((reader, reader.generation, batches, reader.subscription))
        if self._arrival is not None:
            self._arrive()

    def _arrive(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def arrival(self) -> None:
        """Waits until there is something to take. Raises the error that ended the consumer. One waiter at a time."""
        if self._broken is not None:
            raise self._broken.with_traceback(None)
        if self._arrival is not None:
            raise InvalidArgument("another task already reads this consumer; give every task its own")
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            await self._arrival
        finally:
            self._arrival = None

    def waiting(self, after: int) -> list[memoryview | CometError]:
        """Deliveries and errors that were not taken yet, from the `after`th on."""
        return [self._queue[at][2] for at in range(after, len(self._queue))]

    def take(self) -> tuple[PartitionSubscription, memoryview] | None:
        """The next delivery, with its credit returned; None if there is none. Raises a stopped partition's error."""
        while self._queue:
            reader, generation, arrived, subscription = self._queue.popleft()
            current = generation == reader.generation
            if isinstance(arrived, memoryview):
                self._taken(reader, arrived, subscription)
                if current:
                    return reader, arrived
            elif current and not self._goes_on(reader, arrived):
                arrived.details.update(topic=reader.topic, partition=str(reader.partition))
                raise arrived.with_traceback(None)
        return None

    def _taken(
        self, reader: PartitionSubscription, batches: memoryview, subscription: BrokerSubscription | None
    ) -> None:
        reader.queued_bytes -= len(batches)
        assert reader.queued_bytes >= 0
        reader.taken(batches)
        if subscription is not None and subscription.connection.lost is None:
            subscription.taken(len(batches))  # also if its partition has moved: the subscription stays
