"""A broker whose gRPC cancels the first calls of each method, as it does while too many calls wait to be taken."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio
import pytest

import comet
from comet.errors import Unavailable
from comet_broker.config import BrokerConfig
from comet_broker.rpc.audience import Audience
from comet_broker.rpc.service import handlers
from comet_broker.server import Server
from tests.robustness.process import free_port

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Cancelling(grpc.GenericRpcHandler):
    """Cancels the first `times` calls of each method; the broker answers the others."""

    def __init__(self, broker: Server) -> None:
        self._handlers = handlers(broker.broker, Audience(brokers=True))
        self.times = 2
        self.cancelled: Counter[str] = Counter()

    def service(self, details: grpc.HandlerCallDetails) -> Handler | None:
        name = details.method.rpartition("/")[2]
        if self.cancelled[name] < self.times:
            self.cancelled[name] += 1
            return grpc.stream_stream_rpc_method_handler(_cancel)
        return next((found for one in self._handlers if (found := one.service(details)) is not None), None)


async def _cancel(_: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[tuple[comet.Bootstrap, Cancelling]]:
    """The address that the broker advertises, and what answers there."""
    port = free_port()
    async with Server(BrokerConfig(data=tmp_path, port=0, advertised_port=port)) as broker:
        cancelling = Cancelling(broker)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((cancelling,))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        try:
            yield comet.Bootstrap(f"127.0.0.1:{port}", transport="grpc"), cancelling
        finally:
            await server.stop(None)


async def test_cancelled_calls_are_sent_again(front: tuple[comet.Bootstrap, Cancelling]) -> None:
    address, cancelling = front
    async with asyncio.timeout(30):
        async with comet.Admin(address) as admin:
            await admin.create_topic("quotes")
            assert [topic.name for topic in await admin.list_topics()] == ["quotes"]
            assert await admin.statistics(1)
        async with comet.Producer(address) as producer:
            assert (await producer.publish("quotes", b"one")).offset == 0
            await producer.send("quotes", b"two")
        async with comet.Consumer(address, "quotes", start="earliest") as consumer:
            records = [await consumer.get() for _ in range(2)]
    assert [record.value for record in records if record is not None] == [b"one", b"two"]
    assert {"CreateTopic", "ListTopics", "Statistics", "FetchMetadata", "Stream"} <= cancelling.cancelled.keys()
    assert set(cancelling.cancelled.values()) == {2}


async def test_a_call_that_is_always_cancelled_ends_in_time(front: tuple[comet.Bootstrap, Cancelling]) -> None:
    address, cancelling = front
    cancelling.times = 1_000_000
    async with comet.Admin(address, timeout_ms=500) as admin, asyncio.timeout(30):
        with pytest.raises(Unavailable, match="has cancelled the call"):
            await admin.list_topics()
    assert 2 < cancelling.cancelled["ListTopics"] < 30, "with a backoff"
