"""Writes the events of the audit log to the topic `__audit`, in batches, once a second at most.

The first event of a cluster creates it. While it cannot be written, the events wait in their queue. A batch that may
have been written is sent again under its idempotency key, so it is not written twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeAlias

from comet.errors import CometError, TopicExists, Unavailable
from comet.types import AUDIT_TOPIC
from comet.v1 import admin_pb2 as admin
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet.wire.protobuf import settings_to_pb
from comet_broker import limits
from comet_broker.audit.event_queue import QueuedEvent
from comet_broker.audit.log import AuditLog
from comet_broker.cluster.view import ClusterView
from comet_broker.env import Env

log = logging.getLogger(__name__)

PAUSE_S: Final = 1.0  # between two batches
RETRY_S_MAX: Final = 30.0
WRITE_S_MAX: Final = 10.0
REPLICAS: Final = 3
RETENTION_MS: Final = 90 * 24 * 3_600_000
RETENTION_BYTES: Final = 1 << 30  # strangers decide how many events there are
BROKERS_WAIT_S: Final = 60.0  # for the other brokers of a new cluster, so that the topic has its replicas

Publish: TypeAlias = Callable[[pb.PublishRequest], Awaitable[pb.PublishResponse]]
Create: TypeAlias = Callable[[admin.CreateTopicRequest], Awaitable[types.Topic]]


class AuditTopic:
    """Owned by the broker; on its loop. `publish` and `create` are those behind the calls of clients."""

    def __init__(self, events: AuditLog, env: Env, *, view: ClusterView, publish: Publish, create: Create) -> None:
        self.problem = ""  # why events are not written yet
        self._warned = ""
        self._events = events
        self._queue = events.queue
        self._env = env
        self._view = view
        self._publish = publish
        self._create = create
        self._batch: pb.PublishRequest | None = None  # that may have been written
        self._wait_until_s = env.clock.monotonic() + BROKERS_WAIT_S
        self._hurry = asyncio.Event()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        pause_s = PAUSE_S
        while True:
            await self._queue.filled.wait()
            if await self._write():
                pause_s = PAUSE_S
            else:
                pause_s = min(2 * pause_s, RETRY_S_MAX)
                self._hurry.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._hurry.wait()

    async def flush(self, within_s: float) -> None:
        """Writes what is queued, if that is possible within the time. From then on no batch waits for the next."""
        self._hurry.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._queue.emptied.wait()

    async def _write(self) -> bool:
        try:
            async with asyncio.timeout(WRITE_S_MAX):
                await self._create_topic()
                batch = self._batch = self._batch or self._next()
                await self._publish(batch)
        except (CometError, TimeoutError) as error:
            before, self.problem = self.problem, str(error) or "it takes too long"
            if before and self._warned != self.problem:  # a first failure is usual while its partition is being opened
                log.warning("the audit log cannot be written to topic %s: %s", AUDIT_TOPIC, self.problem)
                self._warned = self.problem
            return False
        self.problem, self._warned, self._batch = "", "", None
        self._queue.remove(len(batch.records))
        self._events.written()
        return True

    def _next(self) -> pb.PublishRequest:
        chosen: list[QueuedEvent] = []
        room = limits.AUDIT_BATCH_BYTES_MAX
        for event in self._queue.first(limits.AUDIT_QUEUE_MAX):
            room -= len(event.key) + len(event.value)
            if chosen and room < 0:
                break
            chosen.append(event)
        return pb.PublishRequest(
            topic=AUDIT_TOPIC,
            partition=0,
            records=[pb.Record(key=one.key, value=one.value, timestamp_us=one.time_us) for one in chosen],
            acks=types.ACKS_ALL,
            idempotency_key=f"audit-{self._env.me}-{self._env.random.getrandbits(128):032x}",
        )

    async def _create_topic(self) -> None:
        """Creates the topic, if the cluster has none. Two brokers may try at once."""
        state = self._view.state
        if AUDIT_TOPIC in state.topics:
            return
        alive = len(state.brokers)
        expected = min(REPLICAS, self._env.config.default_replicas)
        if alive < expected and self._env.clock.monotonic() < self._wait_until_s:
            raise Unavailable(f"it is created once {expected} brokers are there")
        replicas = max(1, min(REPLICAS, alive))
        settings = {
            "retention_ms": RETENTION_MS,
            "retention_bytes": RETENTION_BYTES,
            "min_insync": max(1, replicas - 1),
        }
        request = admin.CreateTopicRequest(
            name=AUDIT_TOPIC, partitions=1, replicas=replicas, config=settings_to_pb(settings)
        )
        with suppress(TopicExists):
            await self._create(request)
