"""One topic, followed once for all: a consumer fills the ring, and whoever waits is woken.

Owned by the hub; lives from the first subscriber of the topic until some time after the last, or until the topic is
gone. One task reads; everything else is synchronous.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import comet
from comet.errors import CometError, CorruptBatch, Internal
from comet_gateway.cursor import Place
from comet_gateway.push.catchup import Log, Piece
from comet_gateway.push.chunk import Source
from comet_gateway.push.events import Failed, Missing
from comet_gateway.push.ring import Ring
from comet_gateway.push.subscription import Seat, State, failed

if TYPE_CHECKING:
    from comet_gateway.backend import Backend
    from comet_gateway.config import Limits

log = logging.getLogger("comet.gateway")


class Feed:
    def __init__(
        self, topic: str, backend: Backend, limits: Limits, history: Log, *,
        grown: Callable[[], None], over: Callable[[Feed], None],
    ) -> None:  # fmt: skip
        self.topic = topic
        self.delivery_bytes = limits.delivery_bytes
        self.seats: set[Seat] = set()
        self.failure: Failed | None = None
        self.ring: Ring  # once it is started
        self.records = 0
        self.events = 0
        self._backend = backend
        self._limits = limits
        self._log = history
        self._grown = grown  # the ring may be too large for all rings together
        self._over = over
        self._armed: list[Seat] = []
        self._consumer: comet.Consumer[bytes] | None = None
        self._task: asyncio.Task[None] | None = None

    # ---- life

    async def start(self) -> None:
        """From now on nothing is missed. Raises TopicNotFound, Unavailable."""
        consumer = comet.Consumer(
            self._backend.bootstrap, self.topic, start="latest", on_gap=self._skip, name=f"gateway: {self.topic}"
        )
        try:
            await consumer.start()
            info, _ = await self._backend.admin.describe_topic(self.topic)
        except BaseException:
            await consumer.close()
            raise
        self._consumer = consumer
        places = {index: Place(offset) for index, offset in consumer.positions().items()}
        self.ring = Ring(self.topic, info.id, places, self.delivery_bytes)
        self._task = asyncio.create_task(self._follow(consumer), name=f"gateway: follow {self.topic}")

    async def close(self, failure: Failed | None = None) -> None:
        if failure is not None:
            self._fail(failure)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._consumer is not None:
            await self._consumer.close()

    async def _follow(self, consumer: comet.Consumer[bytes]) -> None:
        batches = consumer.batches()
        while True:
            try:
                self._add(await anext(batches))
            except CorruptBatch as error:
                log.warning("gateway: %s: %s", self.topic, error)  # it is asked for again
            except CometError as error:
                self._fail(failed(self.topic, error))
                return
            except Exception as error:
                log.error("gateway: following %s broke", self.topic, exc_info=error)
                self._fail(failed(self.topic, Internal(f"following {self.topic} broke: {error!r}")))
                return

    def _fail(self, failure: Failed) -> None:
        """The topic is gone, or cannot be followed: whoever does is told, once he has what was there."""
        self.failure = failure
        for seat in list(self.seats):
            seat.follower.failed = failure
            seat.awake()
        self._over(self)

    # ---- what arrives

    def _add(self, batch: comet.RecordBatch[bytes]) -> None:
        if len(batch) == 0:
            return
        source = Source(batch)
        chunks = self.ring.add(source)
        self.records += len(source)
        self.events += len(chunks)
        self._arrived()

    def _skip(self, gap: comet.Gap) -> None:
        self.ring.skip(Missing(gap.partition, gap.first, gap.end, gap.reason))
        self._arrived()

    def _arrived(self) -> None:
        armed, self._armed = self._armed, []
        for seat in armed:
            if seat.state is State.ARMED:
                seat.awake()
        self.trim(self._limits.feed_bytes)
        self._grown()

    def trim(self, bytes_max: int) -> None:
        """Lets old items go; who is there remembers where that was, and reads the log from now on."""
        ring = self.ring
        tail = ring.excess(bytes_max)
        if tail == ring.tail:
            return
        places: dict[int, dict[int, Place]] = {}
        for seat in self.seats:
            follower = seat.follower
            if follower.live and follower.number < tail:
                if follower.number not in places:
                    places[follower.number] = ring.places_before(follower.number)
                follower.uproot(places[follower.number])
        ring.evict(tail)

    # ---- seats

    def take_seat(self, seat: Seat) -> None:
        self.seats.add(seat)
        if self.failure is not None:
            seat.follower.failed = self.failure

    def leave(self, seat: Seat) -> None:
        self.seats.discard(seat)
        if not self.seats and self.failure is None:
            self._armed.clear()
            self._over(self)

    def arm(self, seat: Seat) -> None:
        """Wakes it when something comes."""
        self._armed.append(seat)

    async def read(self, partition: int, place: Place) -> Piece:
        return await self._log.read(self.ring, partition, place)

    def statistics(self) -> dict[str, Any]:
        ring = self.ring
        followers = [seat.follower for seat in self.seats]
        return {
            "subscribers": len(followers),
            "live": sum(follower.live for follower in followers),
            "behind_max": max((follower.behind for follower in followers), default=0),
            "records": self.records,
            "chunks": self.events,
            "ring_records": ring.records,
            "ring_bytes": ring.bytes,
            "partitions": len(ring.places),
            "consumer": None if self._consumer is None else self._consumer.statistics(),
        }
