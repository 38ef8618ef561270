"""Quotas at a broker: a client over its own is slowed down, loses nothing, and disturbs no other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

import comet
from comet.v1 import records_pb2
from comet.wire.bearer import read_access_key
from comet_broker.access.quotas import CALL_WAIT_S
from comet_broker.metrics.prometheus import exposition
from tests.integration.test_access_keys import TOPIC, Keyed, keyed
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ANN: Final = "client:ann"
LIMITED: Final = "client:billing"
RATE: Final = 50_000  # far too slow for the records, so that the neighbour is done first
VALUE_BYTES: Final = 20_000
RECORDS: Final = 60


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with keyed(tmp_path) as found:
        for principal in (ANN, LIMITED):
            await found.admin.access.add_rule(principal, ["read", "write"], comet.ResourceKind.TOPIC, "*")
        yield found


async def of(broker: Keyed, principal: str) -> comet.Bootstrap:
    file, _ = await broker.key(f"{principal.removeprefix('client:')}.key", principal)
    return broker.bootstrap(file)


def values() -> list[bytes]:
    """Those that compress to nothing less."""
    return [os.urandom(VALUE_BYTES) for _ in range(RECORDS)]


async def test_a_limited_producer_is_slowed_down_and_its_neighbour_is_not(
    broker: Keyed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "comet")
    sent = values()
    await broker.admin.access.set_quota(LIMITED, bytes_in=RATE)
    limited, ann = await of(broker, LIMITED), await of(broker, ANN)
    async with comet.Producer(limited, compression="none", batch_bytes=VALUE_BYTES) as producer:
        deliveries = [await producer.send(TOPIC, value) for value in sent]
        async with comet.Producer(ann, compression="none") as other:
            for _ in range(20):
                await other.publish(TOPIC, b"ann")
            assert not deliveries[-1].done(), "it waits"
        await broker.admin.access.remove_quota(LIMITED)
        await producer.flush()
        for delivery in deliveries:
            await delivery
    async with comet.Consumer(ann, TOPIC, start="earliest") as consumer:
        received: list[bytes] = []
        while len(received) < len(sent):
            value = (await anext(consumer)).value
            if value != b"ann":
                received.append(value)
    assert received == sent
    assert "this client sends more slowly" in caplog.text
    assert b'comet_broker_throttled_seconds_total{principal="client:billing"}' in page(broker)


def page(broker: Keyed) -> bytes:
    return exposition(broker.server.broker.statistics())[1]


async def test_a_limited_consumer_is_slowed_down_and_its_neighbour_is_not(broker: Keyed) -> None:
    sent = values()
    await broker.admin.access.set_quota(LIMITED, bytes_out=RATE)
    limited, ann = await of(broker, LIMITED), await of(broker, ANN)
    async with comet.Producer(ann, compression="none", batch_bytes=VALUE_BYTES) as producer:
        await (await producer.send_many(TOPIC, sent))

    async def read_all(bootstrap: comet.Bootstrap) -> list[bytes]:
        async with comet.Consumer(bootstrap, TOPIC, start="earliest") as consumer:
            return [(await anext(consumer)).value for _ in sent]

    reading = asyncio.ensure_future(read_all(limited))
    assert await read_all(ann) == sent
    assert not reading.done(), "it waits"
    await broker.admin.access.remove_quota(LIMITED)
    assert await reading == sent


async def test_streams_are_limited_and_free_again_once_they_end(broker: Keyed) -> None:
    await broker.admin.access.set_quota(LIMITED, streams=1)
    limited = await of(broker, LIMITED)
    async with comet.Producer(limited) as first:
        await first.publish(TOPIC, b"1")
        async with comet.Producer(limited, timeout_ms=500) as second:
            with pytest.raises(comet.CometError, match="client:billing has 1 streams"):
                await second.publish(TOPIC, b"2")
    assert await until(lambda: not broker.server.broker.quotas.usage(LIMITED).streams, within_s=10)
    async with comet.Producer(limited) as third:
        await third.publish(TOPIC, b"3")


async def test_a_call_over_its_quota_is_refused_with_the_time_of_a_retry(broker: Keyed) -> None:
    await broker.admin.access.set_quota(LIMITED, bytes_in=10_000, bytes_out=10_000)
    file, _ = await broker.key("billing.key", LIMITED)
    metadata = (("authorization", f"Bearer {read_access_key(file)}"),)
    credentials = grpc.ssl_channel_credentials(broker.ca.read_bytes())
    request = records_pb2.PublishRequest(
        topic=TOPIC, acks="ACKS_ALL", records=[records_pb2.Record(value=bytes(100_000))]
    )
    async with grpc.aio.secure_channel(broker.server.address, credentials) as channel:
        publish: Any = channel.unary_unary("/comet.v1.Comet/Publish")
        fetch: Any = channel.unary_unary("/comet.v1.Comet/Fetch")
        for call, message in (
            (publish, request),
            (fetch, records_pb2.FetchRequest(topic=TOPIC, bytes_max=1 << 20)),
        ):
            await call(message.SerializeToString(), metadata=metadata)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(message.SerializeToString(), metadata=metadata)
            check_refusal(refused.value)


def check_refusal(error: grpc.aio.AioRpcError) -> None:
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailers: dict[str, Any] = dict(error.trailing_metadata() or ())
    status = Status.FromString(trailers["grpc-status-details-bin"])
    retry = RetryInfo()
    assert any(detail.Unpack(retry) for detail in status.details)
    assert CALL_WAIT_S <= retry.retry_delay.ToTimedelta().total_seconds() <= 10


async def test_a_quota_is_set_listed_and_removed(broker: Keyed) -> None:
    made = await broker.admin.access.set_quota("*", requests=200, streams=5)
    assert (made.author, made.requests, made.bytes_in) == ("client:admin", 200, 0) and made.set_us
    await broker.admin.access.set_quota(ANN, bytes_in=1 << 20)
    listed = await broker.admin.access.list_quotas()
    assert [str(one) for one in listed.quotas] == ["*: 200 requests/s, 5 streams", "client:ann: 1.0 MiB/s in"]
    assert (await broker.admin.access.list_quotas(principal="*")).quotas == (made,)
    assert (await broker.admin.access.remove_quota(ANN)).removed
    assert not (await broker.admin.access.remove_quota(ANN)).removed
    with pytest.raises(comet.InvalidArgument, match="bytes_in is 0"):
        await broker.admin.access.set_quota(ANN, bytes_in=1)
