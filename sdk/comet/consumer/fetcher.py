"""The fetcher: keeps the partitions of one consumer subscribed, and queues the deliveries.

A consumer of a topic reads all of its partitions, or given ones; a member of a group reads its assigned partitions, of
any topics, which change (`assign`, `unassign`).

    connections ─► PartitionSubscription ─► DeliveryQueue: deliveries, and errors in their place ─► the consumer
         ▲                                                                                            │
         ├──── Subscriber: every partition without a subscription, for any reason                     │
         └──── credit for what was taken ◄────────────────────────────────────────────────────────────┘

Owned by its consumer and driven by one task. Nothing is decoded here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from comet import limits
from comet.client.client import Client
from comet.client.connection import Connection
from comet.client.retry import Backoff
from comet.consumer.broker_subscription import BrokerSubscription, PartitionSubscription, window_for
from comet.consumer.delivery_queue import DeliveryQueue
from comet.consumer.error_reaction import Reaction, reaction_to, restart_after
from comet.consumer.options import ReadingOptions
from comet.consumer.replica_choice import Replicas
from comet.consumer.subscriber import Subscriber
from comet.entities import TopicInfo
from comet.errors import (
    Closed,
    CometError,
    Internal,
    PartitionNotFound,
)
from comet.types import AtOffset, Earliest, Gap, Position, TopicPartition
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
        self.options = options  # its filter is for the brokers
        self.readers: dict[TopicPartition, PartitionSubscription] = {}
        # Partitions of whose deliveries a part is not handed out, each with the offset after what was opened.
        self.in_hand: dict[PartitionSubscription, int] = {}
        self.corrupt = CorruptPolicy(options.on_corrupt, options.on_gap)
        self.begun = begun or _nothing  # called when the position of a partition is known
        self.queue = DeliveryQueue(self._goes_on)
        self._replicas = Replicas(client, self.readers, self._leave, read_from=options.read_from, rack=options.rack)
        self.subscriber = Subscriber(client, self._replicas, self.queue, self)
        self._client = client
        self._start = start
        self._wanted = partitions
        self._wake = asyncio.Event()
        self._ready: asyncio.Future[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None

    # ---- life

    @property
    def started(self) -> bool:
        return self._supervisor is not None

    async def start(self) -> None:
        """Returns once every partition is subscribed. Raises TopicNotFound, PartitionNotFound, Unavailable."""
        loop = asyncio.get_running_loop()
        if self._supervisor is None:
            self._ready = loop.create_future()
            self._supervisor = loop.create_task(
                self._supervise(), name=f"comet: consume {self.topic or 'assigned partitions'}"
            )
            self._supervisor.add_done_callback(self._supervisor_ended)
        assert self._ready is not None
        await asyncio.shield(self._ready)

    async def close(self) -> None:
        self.subscriber.close()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        self.queue.close(Closed("the consumer was closed"))

    async def _supervise(self) -> None:
        """Subscribes the partitions without a subscription, and waits until something changes."""
        assert self._ready is not None
        backoff = Backoff(self._client.random, max_ms=limits.ROUTE_BACKOFF_MAX_MS, free=1)
        if self.topic is not None:
            self._add_readers(self.topic, await self._find_topic(self.topic, backoff))
            if self._wanted is None:
                self._client.watch(lambda: [self.topic or ""], self._topic_changed)
        self._client.spawn(self._replicas.watch())
        while True:
            self._wake.clear()
            error = await self.subscriber.subscribe(self.readers.values())
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
            self.readers[tp] = self.new_reader(tp, start)

    def new_reader(self, tp: TopicPartition, start: Position) -> PartitionSubscription:
        return PartitionSubscription(tp, start, self.queue.add, self._troubled)

    def _topic_changed(self, info: TopicInfo) -> None:
        """Reads added partitions from their beginning: everything in them is new."""
        if info.name != self.topic or self._wanted is not None:
            return
        for index in range(len(info.partitions)):
            self._add(TopicPartition(info.name, index), Earliest())
        self.changed()

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
        self.changed()
        return reader

    def unassign(self, tp: TopicPartition) -> PartitionSubscription | None:
        """Stops reading a partition: hands out no more of its records, and ends its subscription."""
        reader = self.readers.pop(tp, None)
        if reader is None:
            return None
        reader.retire()
        self.subscriber.depart(reader)
        return reader

    # ---- subscriber.SubscriptionOwner

    def new_subscription(self, connection: Connection, brokers: int) -> BrokerSubscription:
        uncommitted = self.options.isolation == "uncommitted"
        return BrokerSubscription(
            connection,
            window_for(self.options.buffer_bytes, brokers),
            uncommitted=uncommitted,
            chosen=self.options.filter,
        )

    def lost(self) -> None:
        self.changed()

    def changed(self) -> None:
        self._wake.set()

    # ---- errors of one partition

    def _troubled(self, reader: PartitionSubscription, error: CometError) -> None:
        """The broker ended a partition's subscription."""
        self.judge(reader, error)
        self.changed()

    def judge(self, reader: PartitionSubscription, error: CometError) -> CometError | None:
        """Handles a partition's error; returns it if a retry can help."""
        if self.readers.get(reader.tp) is not reader:
            return None
        match reaction_to(error, follower=not reader.leader_only, assigned=self.topic is None):
            case Reaction.FETCH_METADATA:
                self.subscriber.detach(reader)
                self._replicas.misled(reader, error)
            case Reaction.ASK_LEADER:
                self._replicas.ask_leader(reader)
            case Reaction.STOP:
                self._stopped(reader, error)
                return None
        return error

    def _stopped(self, reader: PartitionSubscription, error: CometError) -> None:
        """Continues elsewhere at once, if no record of the partition is in the application's hands; else the error
        waits behind them."""
        reader.stopped = error
        taken = reader.last is None and reader not in self.in_hand
        if not (taken and self.options.on_gap is None and self._goes_on(reader, error)):
            self.queue.add_error(reader, error)

    def _goes_on(self, reader: PartitionSubscription, error: CometError) -> bool:
        """Continues at another offset if records are missing and the application has chosen a policy for it."""
        policy, on_gap = self.options.on_out_of_range, self.options.on_gap
        gap = Gap.of(error, reader.topic, reader.partition, reader.next_offset)
        where = restart_after(error, gap, on_out_of_range=policy, reports_gaps=on_gap is not None)
        if where is None:
            return False
        if not isinstance(where, AtOffset):
            log.warning("comet: offset reset of %s/%d to %s: %s", reader.topic, reader.partition, policy, error)
        reader.restart(where)
        self.changed()
        if gap is not None and on_gap is not None:
            on_gap(gap)
        return True

    def passes(self, reader: PartitionSubscription, error: CometError) -> bool:
        """Reads records that a delivery lacks from the leader, or skips them. False: the error is to be raised."""
        gap, on_gap = Gap.of(error, reader.topic, reader.partition, reader.position), self.options.on_gap
        if reaction_to(error, follower=not reader.leader_only, assigned=False) is Reaction.ASK_LEADER:
            self._replicas.ask_leader(reader)
            self.stop(reader, error, again=True)
        elif gap is not None and on_gap is not None:
            self.stop(reader, error, again=True, where=AtOffset(gap.next_offset))
            on_gap(gap)
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
            self.changed()

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
            self.queue.end(error)

    async def move(self, reader: PartitionSubscription, where: Position) -> None:
        """Moves a partition to another position; deliveries for the old one no longer count."""
        reader.paused = True
        try:
            await self.subscriber.unsubscribe(reader)
            reader.restart(where)
        finally:
            reader.paused = False
            self.changed()

    async def _leave(self, reader: PartitionSubscription) -> None:
        """Reads a partition from another broker from now on; deliveries that have arrived stay."""
        reader.paused = True
        try:
            await self.subscriber.unsubscribe(reader)
        finally:
            reader.paused = False
            self.changed()


def _nothing(_: PartitionSubscription) -> None:
    """The default of `begun`."""
