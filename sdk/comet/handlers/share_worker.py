"""Serves a handler with records of a share group, each acknowledged on its own.

lock ─► handler ─┬─ returned ─────────────────────────────────────► ack
                  ├─ raised, retries left ─► nack(delay): redelivered to any member after the delay
                  └─ raised for the last time ─► reject: to the dead-letter topic; without one, on_error decides

A record that cannot be decrypted is released by the consumer, and rejected at its last delivery. Without a dead-letter
topic, on_error="stop" ends the app at the first one.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from comet import limits
from comet.errors import Closed, CometError, CorruptRecords, LockExpired, SerdeError
from comet.handlers.binding import Binding
from comet.handlers.handler import HandlerShape
from comet.handlers.serving import Host, Serving, current_serving
from comet.share.share_consumer import ShareConsumer, ShareRecord

log = logging.getLogger("comet")


class ShareWorker(Serving):
    def __init__(self, host: Host, one: Binding) -> None:
        super().__init__(host, one)
        self.policy = one.options
        self._failure: Exception | None = None
        self._consumer: ShareConsumer[Any] | None = None
        self._running: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> bool:
        return self.started and self._consumer is not None and self._consumer._topics_found()

    async def _run(self) -> None:
        self._consumer = consumer = self.host.clients.shared_consumer(self.one)
        room = asyncio.Semaphore(self.policy.concurrency)
        loop = asyncio.get_running_loop()
        acknowledge = self._acknowledge if self.spans is None else self._acknowledge_in_span
        try:
            if await self._waiting(self._started(consumer)) is None:
                return
            while True:
                await room.acquire()
                if self._failure is not None:  # checked here too: another record may never come
                    break
                record = await self._waiting(self._next(consumer))
                if record is None:
                    break
                task = loop.create_task(acknowledge(record))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
                task.add_done_callback(lambda _: room.release())
            if self._running:
                await asyncio.wait(self._running)
            if self._failure is not None:
                raise self._failure
        except Closed:
            return
        finally:
            for task in self._running:
                task.cancel()
            await consumer.close()

    async def _started(self, consumer: ShareConsumer[Any]) -> bool:
        await consumer.start()
        self.started = True
        return True

    async def _next(self, consumer: ShareConsumer[Any]) -> ShareRecord[Any]:
        while True:
            try:
                return await consumer.__anext__()
            except (SerdeError, CorruptRecords) as error:  # already rejected, or released, by the consumer
                one = self.one
                released = error.details.get("outcome") == "released"
                if released and (self.policy.dead_letter or self.policy.on_error == "skip"):
                    one.retried += 1
                    log.warning("comet: handler %s: %s", one.name, error)
                    continue
                if not self.policy.dead_letter:
                    one.failure(error) if isinstance(error, CorruptRecords) else one.malformed(error)
                    continue
                one.failed += 1
                one.dead_lettered += 1
                log.error("comet: handler %s: record or batch rejected: %s", one.name, error)

    async def _acknowledge_in_span(self, record: ShareRecord[Any]) -> None:
        assert self.spans is not None
        with self.spans.process(record.topic, record.partition, record.offset, [record.headers]):
            await self._acknowledge(record)

    async def _acknowledge(self, record: ShareRecord[Any]) -> None:
        current_serving.set(self)
        one = self.one
        argument = record.value if one.signature.shape is HandlerShape.MODEL else record
        try:
            try:
                await self.host.caller.call(one, argument, record)
            except Exception as error:  # noqa: BLE001 - the handler's error policy decides about any exception
                await self._failed(record, error)
            else:
                with self._settling("ack", record):
                    await record.ack()
                one.handled += 1
        except LockExpired as error:
            log.warning(
                "comet: handler %s exceeded the lock of %s/%d at %d: %s",
                one.name, record.topic, record.partition, record.offset, error,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - raised in the app's task
            if isinstance(error, CometError) and error.retriable:
                log.warning("comet: handler %s: acknowledgement of %r failed: %s", one.name, record.offset, error)
                return
            self._failure = self._failure or error
            self._interrupt()

    def _settling(self, name: str, record: ShareRecord[Any]) -> AbstractContextManager[Any]:
        return nullcontext() if self.spans is None else self.spans.settle(name, record.topic)

    async def _failed(self, record: ShareRecord[Any], error: Exception) -> None:
        one, policy = self.one, self.policy
        if self.spans is not None:
            self.spans.give_up(error)
        if record.delivery_count <= policy.retries:
            one.retried += 1
            ceiling_ms = min(policy.backoff_ms * 2 ** min(record.delivery_count - 1, 30), limits.RETRY_BACKOFF_MS_MAX)
            delay_ms = round(ceiling_ms * (0.5 + self.host.random.random() / 2))
            log.warning("comet: handler %s failed at delivery %d: %r", one.name, record.delivery_count, error)
            if self.spans is not None:
                self.spans.event("retry", error, record.delivery_count)
            with self._settling("nack", record):
                await record.nack(delay_ms=delay_ms)
        elif policy.dead_letter or policy.on_error == "skip":
            one.failed += 1
            one.dead_lettered += bool(policy.dead_letter)
            log.error("comet: handler %s gave up on %d: %r", one.name, record.offset, error, exc_info=error)
            # The text of an error may quote the value, which brokers are not to see.
            encrypted = self.host.clients.encryption is not None
            if self.spans is not None and policy.dead_letter:
                self.spans.event("dead_letter", error, record.delivery_count, policy.dead_letter)
            with self._settling("reject", record):
                await record.reject(type(error).__name__ if encrypted else f"{type(error).__name__}: {error}")
        else:
            one.failure(error)
