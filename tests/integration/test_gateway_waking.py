"""Waking those who follow a topic: some in each turn of the loop, nobody twice for nothing, and nobody forgotten."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakSet

import comet
import comet.testing
from comet_gateway.brokers.backend import Backend
from comet_gateway.config import GatewayConfig
from comet_gateway.push.events import Begun, Failed, Latest, Lost
from comet_gateway.push.feed import WOKEN_AT_ONCE
from comet_gateway.push.hub import Hub
from comet_gateway.push.subscribe_request import SubscribeRequest
from comet_gateway.push.subscription import Subscription

QUOTES = SubscribeRequest(topics=("quotes",))
MANY = 5 * WOKEN_AT_ONCE + 1


@asynccontextmanager
async def following() -> AsyncIterator[tuple[Hub, comet.Producer]]:
    """A hub, and a producer for the topic that is there."""
    async with comet.testing.broker() as broker, Backend(GatewayConfig(bootstrap=broker.address)) as backend:
        await backend.admin.create_topic("quotes")
        hub = Hub(backend.config, backend)
        async with comet.Producer(broker.address) as producer:
            yield hub, producer
        await hub.close()


async def values(subscription: Subscription, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        event = await subscription.next()
        assert not isinstance(event, Failed | Lost | Latest)
        if not isinstance(event, Begun):
            found += [record["value"] for record in json.loads(b"{" + event.members() + b"}")["records"]]
    return found


async def test_everybody_gets_everything_in_order() -> None:
    async with following() as (hub, producer), asyncio.timeout(60):
        everybody = [await hub.subscribe(QUOTES) for _ in range(MANY)]
        readers = [asyncio.create_task(values(subscription, 100)) for subscription in everybody]
        for number in range(100):
            # Sometimes alone, sometimes with others: what comes between two turns is no other thing.
            await producer.send("quotes", b"%d" % number)
            if number % 7 == 0:
                await producer.flush()
        await producer.flush()
        assert await asyncio.gather(*readers) == [list(range(100))] * MANY


async def test_who_comes_and_goes_on_a_quiet_topic_leaves_nothing() -> None:
    async with following() as (hub, _), asyncio.timeout(60):
        stays = await hub.subscribe(QUOTES)
        gone: WeakSet[Subscription] = WeakSet()
        for _ in range(500):
            subscription = await hub.subscribe(QUOTES)
            assert isinstance(await subscription.next(), Begun)
            assert not subscription.ready()  # from here on it waits for what comes
            subscription.close()
            gone.add(subscription)
        del subscription
        gc.collect()
        assert len(gone) < 100
        stays.close()
