"""A gateway's hub without its sockets, and clients of it: what the tests of the hub are made of."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import comet
import comet.limits
import comet.testing
from comet_gateway.brokers.backend import Backend
from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.push.events import Begun, Event, Failed, Latest, Lost, Missing
from comet_gateway.push.hub import Hub
from comet_gateway.push.subscribe_request import SubscribeRequest
from comet_gateway.push.subscription import Subscription

QUOTES = SubscribeRequest(topics=("quotes",))
SMALL = Limits(feed_bytes=120_000, delivery_bytes=2_000, feed_idle_s=0.05, pattern_s=0.05)


@asynccontextmanager
async def gateway(address: str, limits: Limits | None = None) -> AsyncIterator[Hub]:
    config = GatewayConfig(bootstrap=address, limits=limits or Limits(pattern_s=0.05))
    async with Backend(config) as backend:
        hub = Hub(config, backend)
        try:
            yield hub
        finally:
            await hub.close()


async def one(subscription: Subscription) -> Event:
    async with asyncio.timeout(20):
        return await subscription.next()


async def begun(subscription: Subscription) -> Begun:
    event = await one(subscription)
    assert isinstance(event, Begun)
    return event


class Client:
    """What a subscriber was given."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.records: list[dict[str, Any]] = []
        self.lost: list[Missing] = []
        self.cursor = ""

    async def until(self, done: Callable[[Client], bool]) -> None:
        while not done(self):
            event = await one(self.subscription)
            match event:
                case Begun() | Failed():
                    raise AssertionError(event)
                case Lost():
                    self.lost += event.missing
                case Latest():
                    self.records += json.loads(b"{" + event.write_members() + b"}")["records"]
                case _:
                    found = json.loads(b"{" + event.members() + b"}")
                    assert len(found["records"]) == event.count
                    self.records += found["records"]
            if not isinstance(event, Latest) or event.last:
                self.cursor = event.cursor

    async def have(self, count: int) -> list[int]:
        await self.until(lambda client: len(client.records) >= count)
        return self.values

    @property
    def values(self) -> list[int]:
        return [record["value"] for record in self.records]


async def write(producer: comet.Producer, first: int, end: int, topic: str = "quotes", **options: Any) -> None:
    deliveries = await producer.send_many(topic, [b"%d" % n for n in range(first, end)], **options)
    await deliveries
