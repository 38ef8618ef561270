"""The hub: adds subscriptions to the feeds of their topics; each topic is followed once.

Created by the application's lifespan, closed after the last connection. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from comet.errors import Draining, Unavailable
from comet.patterns import compiled
from comet.types import Position
from comet_gateway.config import GatewayConfig
from comet_gateway.http.client_disconnect import together
from comet_gateway.http.problems import Problem
from comet_gateway.push.catchup import Log
from comet_gateway.push.events import Failed
from comet_gateway.push.feed import Feed
from comet_gateway.push.pattern_watch import PatternWatch
from comet_gateway.push.subscribe_request import SubscribeRequest, check
from comet_gateway.push.subscription import COUNTED, Subscription

if TYPE_CHECKING:
    from comet_gateway.brokers.backend import Backend


class Hub:
    """Serves all subscribers of this gateway.

    subscription = await hub.subscribe(SubscribeRequest(topics=("quotes",)))
    event = await subscription.next()
    subscription.close()
    """

    def __init__(self, config: GatewayConfig, backend: Backend) -> None:
        self._limits = config.limits
        self._backend = backend
        self._log = Log(backend, config.limits)
        self._watch = PatternWatch(backend.admin, config.limits, self._join)
        self._feeds: dict[str, Feed] = {}
        self._joining: Counter[str] = Counter()  # subscribers that are joining, by topic
        self._starting: dict[str, asyncio.Task[Feed]] = {}
        self._idle: dict[str, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._subscriptions: set[Subscription] = set()
        self._gone = dict.fromkeys(COUNTED, 0)  # counts of closed subscriptions
        self._closed = False

    async def close(self) -> None:
        """Ends all subscriptions with a DRAINING event."""
        self._closed = True
        await self._watch.close()
        for timer in self._idle.values():
            timer.cancel()
        starting = list(self._starting.values())
        for task in starting:
            task.cancel()
        if starting:
            await asyncio.wait(starting)
        stopping = Failed("DRAINING", "the gateway is stopping", {}, 1000)
        feeds = list(self._feeds.values())
        await asyncio.gather(*(feed.close(replace(stopping, topic=feed.topic)) for feed in feeds), *self._closing)
        await self._log.close()

    # ---- subscribing

    async def subscribe(self, request: SubscribeRequest) -> Subscription:
        """Subscribes: all records written after the return are delivered. Raises Problem, CometError."""
        if self._closed:
            raise Draining("the gateway is stopping")
        check(request, self._limits)
        expression = compiled(request.pattern) if request.pattern else None
        subscription = Subscription(request, self)
        try:
            if expression is not None:
                await self._watch.add(subscription, expression)
            else:
                await together(self._join(subscription, topic) for topic in request.topics)
        except BaseException:
            subscription.close()
            raise
        self._subscriptions.add(subscription)
        return subscription

    async def _join(self, subscription: Subscription, topic: str, start: Position | None = None) -> None:
        request = subscription.request
        self._joining[topic] += 1
        try:
            feed = await self._feed(topic)
            await feed.join(subscription, request.cursors.get(topic), request.start if start is None else start)
        finally:
            self._joining[topic] -= 1
            if not self._joining[topic]:
                del self._joining[topic]
                if topic in self._feeds:
                    self._feed_over(self._feeds[topic])

    async def _feed(self, topic: str) -> Feed:
        while True:
            feed = self._feeds.get(topic)
            if feed is not None:
                return feed
            task = self._starting.get(topic)
            if task is None:
                self._make_room()
                task = self._starting[topic] = asyncio.create_task(self._start(topic), name=f"gateway: start {topic}")
                task.add_done_callback(lambda done, topic=topic: self._started(topic, done))  # type: ignore[misc]
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled():
                    raise Draining("the gateway is stopping") from None
                raise

    async def _start(self, topic: str) -> Feed:
        feed = Feed(
            topic, self._backend, self._limits, self._log, grown=self._grown, over=self._feed_over, room=self._room
        )
        try:
            async with asyncio.timeout(self._limits.feed_start_s):
                await feed.start()
        except TimeoutError:
            raise Unavailable(
                f"topic {topic!r} cannot be followed yet: not all of its partitions have a leader", retry_after_ms=1000
            ) from None
        self._feeds[topic] = feed
        self._feed_over(feed)  # all its subscribers may have left
        return feed

    def _started(self, topic: str, task: asyncio.Task[Feed]) -> None:
        del self._starting[topic]
        if not task.cancelled():
            task.exception()  # marks the error as retrieved; callers get it

    def _make_room(self) -> None:
        if len(self._feeds) + len(self._starting) < self._limits.feeds_max:
            return
        idle = next((feed for feed in self._feeds.values() if self._is_idle(feed)), None)
        if idle is None:
            raise Problem("TOO_MANY_REQUESTS", f"limit of {self._limits.feeds_max} followed topics reached")
        self._end(idle)

    # ---- ends

    def _feed_over(self, feed: Feed) -> None:
        """Handles a feed that failed or may be unused."""
        if feed.failure is not None:
            self._end(feed)
        elif self._feeds.get(feed.topic) is feed and self._is_idle(feed) and not self._closed:
            self._wait_idle(feed)

    def _is_idle(self, feed: Feed) -> bool:
        return feed.idle and feed.topic not in self._joining

    def _wait_idle(self, feed: Feed) -> None:
        old = self._idle.pop(feed.topic, None)
        if old is not None:
            old.cancel()
        loop = asyncio.get_running_loop()
        self._idle[feed.topic] = loop.call_later(self._limits.feed_idle_s, self._end_idle, feed)

    def _end_idle(self, feed: Feed) -> None:
        self._idle.pop(feed.topic, None)
        if self._is_idle(feed) and self._feeds.get(feed.topic) is feed:
            self._end(feed)

    def _end(self, feed: Feed) -> None:
        if self._feeds.get(feed.topic) is not feed:
            return
        del self._feeds[feed.topic]
        timer = self._idle.pop(feed.topic, None)
        if timer is not None:
            timer.cancel()
        if not self._closed:
            task = asyncio.create_task(feed.close(), name=f"gateway: close {feed.topic}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def left(self, subscription: Subscription) -> None:
        self._watch.remove(subscription)
        if subscription in self._subscriptions:
            self._subscriptions.discard(subscription)
            for name, count in subscription.counts().items():
                self._gone[name] += count

    def _grown(self) -> None:
        """Keeps all rings together within their bound: the largest is trimmed."""
        excess = sum(feed.ring.bytes for feed in self._feeds.values()) - self._limits.feeds_bytes_max
        while excess > 0:
            largest = max(self._feeds.values(), key=lambda feed: feed.ring.bytes)
            before = largest.ring.bytes
            largest.trim(max(before - max(excess, before // 8), 0))
            excess -= before - largest.ring.bytes

    def _room(self) -> bool:
        """Whether there is room for another table; evicts an unused one if needed."""
        feeds = self._feeds.values()
        return sum(len(feed.tables) for feed in feeds) < self._limits.tables_max or any(
            feed.tables.spare() for feed in feeds
        )

    def statistics(self) -> dict[str, Any]:
        """A snapshot for metrics, the operator's page and tests."""
        each = [subscription.counts() for subscription in self._subscriptions]
        return {
            "subscriptions": len(self._subscriptions),
            "waiting_for_brokers": self._log.waiting,
            "reads": self._log.reads,
            **{name: gone + sum(one[name] for one in each) for name, gone in self._gone.items()},
            "feeds": {topic: feed.statistics() for topic, feed in self._feeds.items()},
        }
