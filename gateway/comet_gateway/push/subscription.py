"""A subscription: one stream of events from all its topics, for one connection.

Each topic has a FeedSubscriber: its cursor, and its state at the feed.

    HOT        may have events: checked when the connection takes the next one
    ARMED      had no events: its feed wakes it at the next records
    READING    waits for a read of the log
    PARKED     waits for permits

A waiting subscriber costs one future; one that is writing costs nothing when records arrive.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from enum import Enum, auto
from typing import Any, Final, Protocol

from comet.errors import Closed, CometError, Internal
from comet.filters import Filter
from comet.types import wall_clock_us
from comet_gateway.push.catchup import Piece
from comet_gateway.push.chunk import Slice
from comet_gateway.push.conflator import Conflator
from comet_gateway.push.events import Begun, Event, Failed, Lost
from comet_gateway.push.latest_tables import Needs
from comet_gateway.push.ring_cursor import Read, RingCursor
from comet_gateway.push.subscribe_request import PASSED_MAX, SubscribeRequest
from comet_gateway.records.cursor import CursorPosition

log = logging.getLogger("comet.gateway")

COUNTED: Final = ("delivered", "dropped", "conflated")


class SubscriptionState(Enum):
    HOT = auto()
    ARMED = auto()
    READING = auto()
    PARKED = auto()
    OVER = auto()


class TopicFeed(Protocol):
    """The feed of a topic, as its subscribers use it."""

    topic: str
    delivery_bytes: int

    def add(self, subscriber: FeedSubscriber) -> None: ...
    def leave(self, subscriber: FeedSubscriber) -> None: ...
    def arm(self, subscriber: FeedSubscriber) -> None: ...
    async def read(self, partition: int, position: CursorPosition) -> Piece: ...


class FeedSubscriber:
    """One topic of a subscription, which owns it. Registered with the feed until `leave`."""

    __slots__ = ("feed", "follower", "needs", "reading", "state", "subscription")

    def __init__(
        self, subscription: Subscription, feed: TopicFeed, follower: RingCursor | Conflator, needs: Needs
    ) -> None:  # fmt: skip
        self.needs = needs
        self.subscription = subscription
        self.feed = feed
        self.follower = follower
        self.state = SubscriptionState.HOT
        self.reading: asyncio.Task[None] | None = None

    @property
    def armed(self) -> bool:
        return self.state is SubscriptionState.ARMED

    def awake(self) -> None:
        """Marks it as HOT."""
        if self.state is SubscriptionState.HOT or self.state is SubscriptionState.OVER:
            return
        self.state = SubscriptionState.HOT
        self.subscription.hot(self)

    def leave(self) -> None:
        self.state = SubscriptionState.OVER
        if self.reading is not None:
            self.reading.cancel()
        self.feed.leave(self)

    def read(self, read: Read) -> None:
        self.state = SubscriptionState.READING
        self.reading = asyncio.create_task(self._read(read), name=f"gateway: catch up {self.feed.topic}")

    async def _read(self, read: Read) -> None:
        assert isinstance(self.follower, RingCursor)
        try:
            piece = await self.feed.read(read.partition, read.position)
        except CometError as error:
            self.follower.failed = failed(self.feed.topic, error)
        except Exception as error:
            log.error("gateway: reading %s failed", self.feed.topic, exc_info=error, extra={"topic": self.feed.topic})
            self.follower.failed = failed(self.feed.topic, Internal(f"reading {self.feed.topic} failed: {error!r}"))
        else:
            if piece.missing is not None:
                self.follower.missed(read, piece.missing, piece.following)
            else:
                self.follower.filled(read, piece.sources, piece.following, self.feed.delivery_bytes)
        self.awake()


class CloseListener(Protocol):
    """Is notified when a subscription is closed."""

    def left(self, subscription: Subscription) -> None: ...


class Subscription:
    """Created by the hub; owned by one connection, whose single task takes its events."""

    def __init__(self, request: SubscribeRequest, hub: CloseListener) -> None:
        self.request = request
        self.subscribers: dict[str, FeedSubscriber] = {}
        self.closed = False
        self.permits = request.permits
        self._loop = asyncio.get_running_loop()
        self._hub = hub
        self._hot: deque[FeedSubscriber] = deque()
        self._parked: list[FeedSubscriber] = []
        self._notices: deque[Event] = deque()
        self._event: Event | None = None  # found by `ready`
        self._waiter: asyncio.Future[None] | None = None
        self._passed = 0  # records since the last event that do not match the filter
        self._gone = dict.fromkeys(COUNTED, 0)  # counts of ended topics

    # ---- for connections

    async def next(self) -> Event:
        """Waits for the next event. One task at a time. Cancellation loses no event. Raises Closed."""
        while self._event is None:
            self._event = self._take()
            if self._event is not None:
                break
            if self.closed:
                raise Closed("the subscription was closed")
            assert self._waiter is None, "a subscription is read by one task"
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        event, self._event = self._event, None
        return event

    def ready(self) -> bool:
        """Whether `next` would return at once."""
        if self._event is None and not self.closed:
            self._event = self._take()
        return self._event is not None

    def permit(self, records: int) -> None:
        """Allows more records."""
        if self.permits is None:
            return
        self.permits += records
        parked, self._parked = self._parked, []
        for subscriber in parked:
            if subscriber.state is SubscriptionState.PARKED:
                subscriber.awake()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for subscriber in self.subscribers.values():
            subscriber.leave()
        self._hot.clear()
        self._parked.clear()
        self._event = None
        self._wake()
        self._hub.left(self)

    def counts(self) -> dict[str, int]:
        """Counts of records delivered, dropped and conflated."""
        followers = [subscriber.follower for subscriber in self.subscribers.values()]
        return {name: gone + sum(getattr(one, name) for one in followers) for name, gone in self._gone.items()}

    def statistics(self) -> dict[str, Any]:
        followers = {topic: subscriber.follower for topic, subscriber in self.subscribers.items()}
        return {
            "topics": {
                topic: {"behind": follower.behind, "live": follower.live, "delivered": follower.delivered,
                        "dropped": follower.dropped, "conflated": follower.conflated}
                for topic, follower in followers.items()
            },
            "policy": self.request.policy.value,
            "permits": self.permits,
            "behind": sum(follower.behind for follower in followers.values()),
            **self.counts(),
        }  # fmt: skip

    # ---- for the hub

    def add(self, feed: TopicFeed, follower: RingCursor | Conflator, needs: Needs) -> FeedSubscriber:
        """Adds a topic."""
        assert not self.closed
        assert feed.topic not in self.subscribers
        subscriber = self.subscribers[feed.topic] = FeedSubscriber(self, feed, follower, needs)
        feed.add(subscriber)
        self.hot(subscriber)
        return subscriber

    def notify(self, event: Event) -> None:
        """Queues an event that is not from a topic's subscriber."""
        if not self.closed:
            self._notices.append(event)
            self._wake()

    # ---- for its subscribers

    def hot(self, subscriber: FeedSubscriber) -> None:
        """Checks the subscriber when the connection takes the next event."""
        self._hot.append(subscriber)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # ---- next event

    def _take(self) -> Event | None:
        if self._notices:
            return self._notices.popleft()
        hot = self._hot
        while hot:
            subscriber = hot.popleft()
            if subscriber.state is not SubscriptionState.HOT:
                continue
            found = subscriber.follower.take(self.permits)
            if found is None:
                self._rest(subscriber)
                continue
            if isinstance(found, Read):
                subscriber.read(found)
                continue
            if isinstance(found, Failed):
                self._over(subscriber)
            elif self.permits is None and subscriber.follower.idle:
                subscriber.state = SubscriptionState.ARMED
                subscriber.feed.arm(subscriber)
            else:
                hot.append(subscriber)
            if isinstance(found, Slice) and (self.request.filter is not None or found.expires):
                found = self._matching(subscriber, found, self.request.filter)
                if found is None:
                    continue
            if self.permits is not None and not isinstance(found, Lost | Failed | Begun):
                self.permits -= found.count
            return found
        return None

    def _matching(self, subscriber: FeedSubscriber, found: Slice, chosen: Filter | None) -> Slice | None:
        """The records that match and have not expired; None for none. After many without one the client gets their
        cursor, with no record: it does not look at them again when it reconnects, and other tasks get a turn."""
        looked_at = found.count
        found = found.matching(chosen, wall_clock_us())
        subscriber.follower.delivered -= looked_at - found.count
        self._passed += looked_at - found.count
        if not found.count and self._passed < PASSED_MAX:
            return None
        self._passed = 0
        return found

    def _rest(self, subscriber: FeedSubscriber) -> None:
        if self.permits is not None and self.permits <= 0:
            subscriber.state = SubscriptionState.PARKED
            self._parked.append(subscriber)
        else:
            subscriber.state = SubscriptionState.ARMED
            subscriber.feed.arm(subscriber)

    def _over(self, subscriber: FeedSubscriber) -> None:
        del self.subscribers[subscriber.feed.topic]
        for name in self._gone:
            self._gone[name] += getattr(subscriber.follower, name)
        subscriber.leave()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def failed(topic: str, error: CometError) -> Failed:
    """The event for the end of a topic."""
    retry_after_ms = error.retry_after_ms or (1000 if error.retriable else 0)
    return Failed(error.code, error.message, error.details, retry_after_ms, topic)
