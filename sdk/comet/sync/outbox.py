"""Records on their way from a synchronous program to the background loop.

    send, on the program's thread: checks ─► Outbox ═► the loop, woken once for all that waits: Producer.send

So `send` costs no turn of the loop, and raises what is wrong with a record. What goes wrong later, for example because
the topic is deleted in between, is the delivery's error. Calls that follow, such as `flush`, come after the records.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

from comet import limits
from comet.errors import CometError, Internal
from comet.event_loop import begin, call
from comet.producer.accumulator import ProducerBatch
from comet.producer.delivery import Delivery
from comet.producer.partitioner import (
    HeaderPairs,
    check_partition,
    check_timestamp,
    header_pairs,
    header_size,
    key_bytes,
)
from comet.producer.producer import Producer, check_batch_room
from comet.producer.topic_route import Route
from comet.types import Receipt
from comet.values.record import Headers, Key
from comet.wire.record_ttl import check_ttl

log = logging.getLogger("comet")

T = TypeVar("T")

# What waits to be taken; a program that sends faster than the loop takes waits for the loop then.
_WAITING_BYTES_MAX: Final = 256 << 10


# The arguments of `Producer.send`, checked: value, key, headers, timestamp_us, partition and ttl_ms; and its bytes.
CheckedRecord = tuple[Route, bytes | None, bytes | None, HeaderPairs | None, int, int | None, int | None, int]


class PendingDelivery:
    """A record's delivery, from `send` on."""

    __slots__ = ("_outbox", "inner", "record")

    def __init__(self, outbox: Outbox, record: CheckedRecord) -> None:
        self._outbox = outbox
        self.record: CheckedRecord | None = record  # until it is taken
        self.inner: Delivery | None = None  # from then on

    def done(self) -> bool:
        return self.inner is not None and self.inner.done()

    def exception(self) -> CometError | None:
        return None if self.inner is None else self.inner.exception()

    def __await__(self) -> Generator[Any, None, Receipt]:
        if self.inner is None:
            yield from self._outbox.taken().__await__()
        assert self.inner is not None
        return (yield from self.inner.__await__())


class Outbox:
    """Owned by a synchronous producer or transaction, and used by any thread. `send` is what takes a record on the
    loop; `check` raises if it would take none."""

    __slots__ = ("_check", "_lock", "_producer", "_running", "_send", "_waiting", "_waiting_bytes")

    def __init__(
        self, producer: Producer, send: Callable[..., Coroutine[Any, Any, Delivery]], check: Callable[[], None]
    ) -> None:
        self._producer = producer
        self._send = send
        self._check = check
        self._lock = threading.Lock()
        # A future is set when what was sent before it is taken.
        self._waiting: list[PendingDelivery | asyncio.Future[None]] = []
        self._waiting_bytes = 0
        self._running = False  # the loop is taking them, or about to

    # ---- on the program's thread

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Key = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        partition: int | None = None,
        ttl_ms: int | None = None,
    ) -> PendingDelivery | Delivery:
        """Hands a record over, without waiting for the loop. Raises what is wrong with it."""
        self._check()
        record = _checked(self._producer, topic, value, key, headers, timestamp_us, partition, ttl_ms)
        if record is None:  # the topic is to be looked up, the value to be encrypted, or a span is recording here
            return self.call(
                self._send(
                    topic,
                    value,
                    key=key,
                    headers=headers,
                    timestamp_us=timestamp_us,
                    partition=partition,
                    ttl_ms=ttl_ms,
                )
            )
        sent = PendingDelivery(self, record)
        with self._lock:
            self._waiting.append(sent)
            self._waiting_bytes += record[-1]
            full = self._waiting_bytes >= _WAITING_BYTES_MAX
            woken, self._running = self._running, True
        if not woken:
            self._wake(sent)
        if full:
            call(self.taken())
        return sent

    def _wake(self, first: PendingDelivery) -> None:
        try:
            begin(self._take())
        except CometError:
            with self._lock:
                self._waiting.remove(first)
                self._running = False
            raise

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop, after the records sent so far are taken."""
        if self._running:
            try:
                call(self.taken())
            except BaseException:
                work.close()
                raise
        return call(work)

    def leave(self, work: Coroutine[Any, Any, T], error: BaseException | None) -> T:
        """Runs what ends a `with` block. After Ctrl-C it does not wait for records that are not taken yet."""
        return self.call(work) if error is None or isinstance(error, Exception) else call(work)

    # ---- on the background loop

    async def taken(self) -> None:
        """Waits until the records sent so far are taken."""
        with self._lock:
            if not self._running:
                return
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(reached)
        await reached

    async def _take(self) -> None:
        """Takes what waits, until there is nothing left."""
        send = self._send
        while True:
            with self._lock:
                waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
                if not waiting:
                    self._running = False
                    return
            for one in waiting:
                if not isinstance(one, PendingDelivery):
                    if not one.done():
                        one.set_result(None)
                    continue
                record, one.record = one.record, None
                assert record is not None
                route, value, key, headers, timestamp_us, partition, ttl_ms, _ = record
                try:
                    one.inner = await send(
                        route.topic, value, key=key, headers=headers, timestamp_us=timestamp_us, partition=partition,
                        ttl_ms=ttl_ms,
                    )  # fmt: skip
                except CometError as error:
                    one.inner = _refused(self._producer, route, error)
                except Exception as error:
                    log.error("comet: unexpected error while sending to %s", route.topic, exc_info=error)
                    unexpected = Internal(f"unexpected error while sending: {error!r}")
                    one.inner = _refused(self._producer, route, unexpected)


def _checked(
    producer: Producer, topic: str, value: Any, key: Key, headers: Headers | None, timestamp_us: int | None,
    partition: int | None, ttl_ms: int | None,
) -> CheckedRecord | None:  # fmt: skip
    """The record as it is stored; None if that takes a turn of the loop. Raises as `Producer.send`."""
    route, encoder, spans = producer._routes.open.get(topic), producer._encoder, producer._spans
    if route is None or encoder.encryptor is not None or (spans is not None and spans.active()):
        return None
    data = value if value.__class__ is bytes else encoder.encode(value)
    size = route.overhead if data is None else len(data) + route.overhead
    if size > route.value_size_max:
        route.check_size(size - route.overhead)
    if timestamp_us is None:
        timestamp_us = producer._clock_us()
    else:
        check_timestamp(timestamp_us)
    if key is not None:
        key = key_bytes(key)
        size += len(key)
    if partition is not None:
        check_partition(topic, partition, len(route.senders))
    pairs = None
    if headers is not None:
        pairs = header_pairs(headers)
        size += header_size(pairs)
    if ttl_ms is not None:
        check_ttl(ttl_ms)
        size += limits.EXPIRY_BYTES
    check_batch_room(size)
    return route, data, key, pairs, timestamp_us, partition, ttl_ms, size


def _refused(producer: Producer, route: Route, error: CometError) -> Delivery:
    """The delivery of a record that was checked, and then could not be sent."""
    batch = ProducerBatch(route.current.accumulator, 0.0)
    batch.count, batch.done, batch.error = 1, True, error
    producer._finished(batch)
    return Delivery(batch, 0)
