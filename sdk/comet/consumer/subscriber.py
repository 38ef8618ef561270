"""The subscriptions of one consumer: one at each broker that it reads from, and the way of a partition into them.

    PartitionSubscription ─► attach, at the replica to read from ─► subscribe, with others of that broker ─► deliveries

A partition that cannot be attached soon does not hold up the others: it is waited for in the next call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from comet import limits
from comet.client.client import Client
from comet.client.connection import Attachment, Connection
from comet.client.metadata import mark_retrieved
from comet.consumer.broker_subscription import BrokerSubscription, PartitionSubscription
from comet.consumer.delivery_queue import DeliveryQueue
from comet.consumer.replica_choice import Replicas
from comet.errors import CometError, Timeout
from comet.types import TopicPartition

log = logging.getLogger("comet")

Attached = tuple[PartitionSubscription, Attachment]


class SubscriptionOwner(Protocol):
    """The fetcher, as its subscriber knows it."""

    def new_subscription(self, connection: Connection, brokers: int) -> BrokerSubscription:
        """A subscription at one of this number of brokers."""

    def judge(self, reader: PartitionSubscription, error: CometError) -> CometError | None:
        """Handles a partition's error; returns it if a retry can help."""

    def begun(self, reader: PartitionSubscription) -> None:
        """The partition is subscribed, and its position known."""

    def lost(self) -> None:
        """A connection was lost; its partitions have no subscription now."""

    def changed(self) -> None:
        """Partitions may be subscribed again."""


class Subscriber:
    """Owned by a fetcher, and driven by its supervisor."""

    def __init__(self, client: Client, replicas: Replicas, queue: DeliveryQueue, owner: SubscriptionOwner) -> None:
        self.reconnects = 0
        self._client = client
        self._replicas = replicas
        self._queue = queue
        self._owner = owner
        self._subscriptions: dict[Connection, BrokerSubscription] = {}
        self._attaching: dict[PartitionSubscription, asyncio.Task[Attachment]] = {}
        self._departing: set[TopicPartition] = set()  # unassigned, and the broker has not confirmed it

    async def subscribe(self, readers: Iterable[PartitionSubscription]) -> CometError | None:
        """Tries once to subscribe the partitions that need it; returns the error of one that failed."""
        missing = [one for one in readers if one.needs_subscription and one.tp not in self._departing]
        if not missing:
            return None
        problem: CometError | None = None
        groups: dict[tuple[Connection, bool], list[Attached]] = {}
        for reader, result in (await self._attach_all(missing)).items():
            if isinstance(result, Attachment):
                groups.setdefault((result.connection, reader.leader_only), []).append((reader, result))
            elif isinstance(result, CometError):
                problem = self._owner.judge(reader, result) or problem
            else:
                raise result
        brokers = len({connection for connection, _ in groups} | self._subscriptions.keys())
        for (connection, _), chosen in groups.items():
            problem = await self._subscribe_at(connection, chosen, brokers) or problem
        if self._attaching and problem is None:
            problem = Timeout(f"{len(self._attaching)} partitions are not attached yet")
        return problem

    async def unsubscribe(self, reader: PartitionSubscription) -> None:
        """When this returns, no delivery of the partition is in flight; those that have arrived stay."""
        try:
            if reader.subscription is not None:
                await reader.subscription.unsubscribe(reader)
        except CometError as error:
            # The connection is lost, and the subscription with it.
            if not (error.retriable or isinstance(error, Timeout)):
                raise
        reader.leave_subscription()

    def depart(self, reader: PartitionSubscription) -> None:
        """Ends the subscription of a partition that is no longer read, in the background."""
        attaching = self._attaching.pop(reader, None)
        if attaching is not None:
            attaching.cancel()
        self._departing.add(reader.tp)
        self._client.spawn(self._depart(reader))

    async def _depart(self, reader: PartitionSubscription) -> None:
        try:
            await self.unsubscribe(reader)
        except CometError as error:  # the partition is gone, and the subscription to it
            log.info("comet: unsubscribing %s/%d failed: %s", *reader.tp, error)
        finally:
            reader.leave_subscription()
            self._departing.discard(reader.tp)
            self._owner.changed()

    def detach(self, reader: PartitionSubscription) -> None:
        """Forgets the handles of a partition, so that the next attach asks the brokers again."""
        for connection in self._subscriptions:
            connection.detach(reader.topic, reader.partition)

    def close(self) -> None:
        """From now on lost connections are expected."""
        self._subscriptions.clear()

    # ---- attaching

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
        reader.topic_id = reader.topic_id or attachment.topic_id
        reader.require_same_topic(attachment)
        return attachment

    # ---- subscribing

    async def _subscribe_at(self, connection: Connection, chosen: list[Attached], brokers: int) -> CometError | None:
        if connection.lost is not None:
            return connection.lost
        subscription = self._subscriptions.get(connection)
        if subscription is None:
            subscription = self._subscriptions[connection] = self._owner.new_subscription(connection, brokers)
            connection.on_lost(partial(self._lost, connection))
        if not subscription.opened:
            self._queue.charge(subscription, {reader for reader, _ in chosen})
        try:
            await subscription.subscribe(chosen, leader_only=chosen[0][0].leader_only)
        except CometError as error:
            if len(chosen) > 1 and not error.retriable:
                # One of them caused it: tried one by one, only that one fails.
                results = [await self._subscribe_at(connection, [one], brokers) for one in chosen]
                return next(filter(None, results), None)
            problem: CometError | None = None
            for reader, _ in chosen:
                problem = self._owner.judge(reader, error) or problem
            return problem
        for reader, _ in chosen:
            if reader.position >= 0:
                self._owner.begun(reader)
        return None

    def _lost(self, connection: Connection, error: CometError) -> None:
        subscription = self._subscriptions.pop(connection, None)
        if subscription is None:
            return  # the consumer was closed
        if subscription.readers:
            self.reconnects += 1
            log.info("comet: connection lost, reconnecting: %s", error)
        for reader in list(subscription.readers):
            reader.leave_subscription()
        self._owner.lost()
