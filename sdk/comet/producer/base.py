"""What producers share beneath what they offer: how records find their way, what is kept of them, and how it all ends.

    topic ─► Route (its outlets, one per partition) ─► batches on their way ─► finished: memory and waiters are free

Owned by a producer, on its loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from comet import limits
from comet.client.client import Client
from comet.errors import Closed, CometError
from comet.producer.accumulator import ProducerBatch
from comet.producer.delivery import wait, wake
from comet.producer.memory import Budget
from comet.producer.sender import Outlet, Settings
from comet.producer.topic_route import Route
from comet.types import TopicInfo
from comet.v1 import records_pb2 as pb

log = logging.getLogger("comet")


class Sending:
    """The base of producers."""

    def __init__(self, client: Client, settings: Settings, buffer_bytes: int) -> None:
        self._client = client
        self._settings = settings
        self._budget = Budget(buffer_bytes)
        self._routes: dict[str, Route] = {}
        self._lapsed: dict[str, Route] = {}  # the topic was not there; the next send looks again
        self._failures: deque[ProducerBatch] = deque(maxlen=limits.FAILURES_KEPT_MAX)
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False
        self._acked_records = self._failed_records = self._batches = 0

    # ---- finding the way

    async def _open_route(self, topic: str) -> Route:
        self._check_open()
        info = await self._client.topic(topic)
        self._check_open()
        route = self._routes.get(topic)
        if route is not None:
            return route
        # A new accumulator would begin at epoch 0 again, under the same producer id: the broker would
        # take its first batches for those of long ago, and acknowledge them without writing them.
        route = self._lapsed.pop(topic, None)
        if route is None:
            route = Route(topic, self._make_outlet)
            route.update(info)
            route.current = route.outlets[self._client.random.randrange(len(route.outlets))]
            self._client.watch(self._topics, self._topic_changed)
        route.update(info)
        self._routes[topic] = route
        return route

    def _make_outlet(self, topic: str, partition: int) -> Outlet:
        return Outlet(
            topic,
            partition,
            client=self._client,
            settings=self._settings,
            finished=self._finished,
            sealed=lambda outlet: self._routes[topic].sealed(outlet) if topic in self._routes else None,
        )

    def _topics(self) -> list[str]:
        return list(self._routes)

    def _topic_changed(self, info: TopicInfo) -> None:
        route = self._routes.get(info.name)
        if route is not None:
            route.update(info)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the producer was closed")

    # ---- memory and time

    def _finished(self, batch: ProducerBatch) -> None:
        """A batch is acknowledged or failed: it needs no memory any more."""
        self._batches += 1
        if batch.error is None:
            self._acked_records += batch.count
        else:
            self._failed(batch, batch.error)
        if batch.waiters is not None:
            wake(batch)
        self._budget.release(batch.size)

    def _failed(self, batch: ProducerBatch, error: CometError) -> None:
        self._failed_records += batch.count
        self._note_failure(batch, error)
        if error.code == "TOPIC_NOT_FOUND" and (route := self._routes.pop(batch.accumulator.topic, None)) is not None:
            self._lapsed[batch.accumulator.topic] = route

    def _note_failure(self, batch: ProducerBatch, error: CometError) -> None:
        if not self._failures:  # one line, not one per batch: the cause is nearly always the same
            accumulator = batch.accumulator
            log.warning(
                "comet: %d records for %s/%d failed: %s", batch.count, accumulator.topic, accumulator.partition, error
            )
        self._failures.append(batch)

    def _deadline(self) -> float:
        """When a batch that begins now times out."""
        deadline = asyncio.get_running_loop().time() + self._settings.timeout_s
        self._expect(deadline)
        return deadline

    def _expect(self, deadline: float) -> None:
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        """Fails what was not acknowledged in time, and sets the timer for what is next."""
        self._expiry = None
        now = asyncio.get_running_loop().time()
        outlets = list(self._outlets())
        for outlet in outlets:
            outlet.expire(now)
        deadlines = [outlet.accumulator.next_deadline() for outlet in outlets]
        waiting = [deadline for deadline in deadlines if deadline is not None]
        if waiting and not self._closed:
            self._expect(min(waiting))

    def _outlets(self) -> list[Outlet]:
        routes = [*self._routes.values(), *self._lapsed.values()]
        return [outlet for route in routes for outlet in route.outlets]

    # ---- the end

    async def flush(self) -> None:
        """Waits until everything sent so far is acknowledged. Raises the first failure that no caller has read.

        With acks=0, until brokers have taken it, or have not answered for a while: that is no failure then.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address, linger_ms=1000) as producer:
        ...         delivery = await producer.send("quotes", b"EURUSD 1.08")
        ...         await producer.flush()
        ...         print(delivery.done())
        >>> run(example)
        True
        """
        await self._drain()
        self._raise_unseen()

    async def _drain(self) -> None:
        """Waits until it is known of everything sent so far what became of it."""
        batches: list[ProducerBatch] = []
        for outlet in self._outlets():
            if outlet.accumulator.open is not None:
                batches.append(outlet.accumulator.open)
            batches.extend(outlet.accumulator.queue)
            outlet.hurry()
        for batch in batches:
            if not batch.done:
                await wait(batch)
        if not self._settings.acks:
            await self._read_by_brokers()

    async def _read_by_brokers(self) -> None:
        """With acks=0 there are no answers, but a broker that answers a later request has taken them. One that does
        not, or is gone, may have lost them."""
        timeout_ms = min(limits.REQUEST_TIMEOUT_MS, round(self._settings.timeout_s * 1000))
        connections = {outlet.unasked_on for outlet in self._outlets()} - {None}
        asked = [
            connection.call(pb.ClientFrame(ping=pb.Ping()), timeout_ms) for connection in connections if connection
        ]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, CometError):
                raise answer

    def _raise_unseen(self) -> None:
        unseen = [batch for batch in self._failures if not batch.seen]
        self._failures.clear()
        for batch in unseen:
            assert batch.error is not None
            batch.seen = True
        if unseen:
            error = unseen[0].error
            assert error is not None
            raise error.with_traceback(None)

    async def close(self) -> None:
        """Flushes, then closes the connections. Raises what flush raises; the producer is closed all the same."""
        if self._closed:
            return
        try:
            await self.flush()
        finally:
            await self._shut()

    async def _shut(self) -> None:
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        for outlet in self._outlets():
            outlet.close(Closed("the producer was closed before the record was acknowledged"))
        self._budget.close(Closed("the producer was closed"))
        await self._client.close()

    def statistics(self) -> dict[str, int]:
        """Counters since the start, and what is in the buffer now.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await producer.publish("quotes", b"EURUSD 1.08")
        ...         print(producer.statistics()["acked_records"], producer.statistics()["buffered_bytes"])
        >>> run(example)
        1 0
        """
        return {
            "acked_records": self._acked_records,
            "failed_records": self._failed_records,
            "batches": self._batches,
            "buffered_bytes": self._budget.used_bytes,
        }
