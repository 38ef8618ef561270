"""Share groups with a filter: only records that match are delivered, each as any other; the leader settles the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import comet
from comet.encryption.keyring import Keyring
from comet.v1 import groups_pb2 as groups
from comet.v1 import types_pb2 as types
from comet_broker import limits
from comet_broker.broker import Broker
from comet_broker.config import BrokerConfig
from comet_broker.server import Server
from tests.integration.acquire_client import RELEASE, acknowledge, acquire, offsets
from tests.integration.live_gateway import PATIENCE_S, live_gateway
from tests.integration.local_cluster import until
from tests.integration.share_client import Member, acquired
from tests.integration.stream_client import Call, Client
from tests.integration.test_encryption import KEYS
from tests.integration.test_filtered_delivery import fill
from tests.integration.test_isolation import producers


@pytest.fixture
async def handle(broker: Broker, topic: types.Topic) -> int:
    return await Client(broker).attach()


async def produce(broker: Broker, handle: int, *numbers: int) -> None:
    """One batch."""
    client = Client(broker)
    client.produce(handle, *[b'{"n": %d}' % one for one in numbers])
    await client.answer()


def floor(broker: Broker, topic: types.Topic) -> int:
    state = broker.shares.state("g", topic.id, 0)
    assert state is not None
    return state.shares.window.floor


async def test_only_what_matches_is_delivered_and_the_rest_is_settled(
    broker: Broker, topic: types.Topic, call: Call, handle: int
) -> None:
    await produce(broker, handle, 1, 5, 2, 6)
    await produce(broker, handle, 3, 3, 3)
    await produce(broker, handle, 7, 1)
    found = await acquire(call, filter="n >= 5")
    assert [(one.offset, one.value, one.delivery_count) for one in found] == [
        (1, b'{"n": 5}', 1),
        (3, b'{"n": 6}', 1),
        (7, b'{"n": 7}', 1),
    ]
    assert await acquire(call, filter="n >= 5") == []
    assert await acknowledge(call, [found[0], found[2]]) == [True, True]
    assert floor(broker, topic) == 3
    assert await acknowledge(call, [found[1]], RELEASE) == [True]
    (again,) = await acquire(call, filter="n >= 5")
    assert (again.offset, again.value, again.delivery_count) == (3, b'{"n": 6}', 2)
    assert await acknowledge(call, [again]) == [True]
    assert floor(broker, topic) == 9


async def test_members_of_a_stream_get_what_matches(broker: Broker, topic: types.Topic, handle: int) -> None:
    member = Member(broker)
    await member.attach()
    await member.share(handle, filter="n = 1")
    await produce(broker, handle, 0, 1, 0)
    assert acquired(await member.shared()) == [(1, b'{"n": 1}', 1)]
    await produce(broker, handle, 0, 0, 0)
    await produce(broker, handle, 0, 0, 1)
    assert acquired(await member.shared()) == [(8, b'{"n": 1}', 1)]
    assert await member.acknowledge(handle, 1, 8) == []
    assert floor(broker, topic) == 9


async def test_aborted_records_stay_out(broker: Broker, topic: types.Topic, call: Call) -> None:
    (one,) = await producers(broker, "tx")
    handle = await one.attach()
    for number in range(4):
        await one.write(handle, b'{"n": 1, "by": %d}' % number, b'{"n": 2}')
        await one.end(commit=number % 2 == 1)
    found = await acquire(call, filter="n = 1")
    assert [one.value for one in found] == [b'{"n": 1, "by": 1}', b'{"n": 1, "by": 3}']


async def test_by_key_with_a_filter_one_record_of_a_key_is_out_at_a_time(
    broker: Broker, topic: types.Topic, call: Call, handle: int
) -> None:
    client = Client(broker)
    client.produce(handle, *[b'{"n": %d}' % at for at in range(6)], keys=[b"a", b"b"] * 3)
    await client.answer()
    first = await acquire(call, filter="n > 1", by_key=True)
    assert offsets(first) == [2, 3]
    await acknowledge(call, first)
    assert offsets(await acquire(call, filter="n > 1", by_key=True)) == [4, 5]


async def test_two_filters_for_one_group_are_refused(
    broker: Broker, topic: types.Topic, call: Call, handle: int
) -> None:
    await produce(broker, handle, 1, 2)
    (one,) = await acquire(call, filter="n = 1")
    for other in ("n = 2", ""):
        with pytest.raises(comet.InvalidArgument, match="asks for"):
            await acquire(call, filter=other)
    assert await acquire(call, filter="n=1") == [], "it is the same"
    assert await acknowledge(call, [one]) == [True]


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [("n >", comet.MalformedFilter, "at character 4"), ("@timestamp > -15m", comet.InvalidArgument, "no time ago")],
)
async def test_a_filter_that_no_group_can_have_is_refused(
    broker: Broker, topic: types.Topic, call: Call, handle: int, text: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        await acquire(call, filter=text)
    member = Member(broker)
    await member.attach()
    member.send(
        share_subscribe=groups.ShareSubscribe(
            subscription=1, group="g", partitions=[handle], in_flight_max=1, options=groups.ShareOptions(filter=text)
        )
    )
    assert said in (await member.other()).error.error.message


async def test_a_few_matches_among_many_cost_few_bytes(
    broker: Broker, topic: types.Topic, call: Call, handle: int
) -> None:
    await fill(broker, 20_000)
    before = broker.statistics()["filters"]["examined_bytes"]
    answer = await call(
        "comet.v1.Comet/Acquire",
        groups.AcquireRequest(
            group="g", topic="t", records_max=2, wait_ms=60_000,
            options=groups.ShareOptions(filter="n in [19000, 19999]", start=types.Position(earliest=True)),
        ),
    )  # fmt: skip
    assert [(one.first, one.end) for found in answer.ranges for one in found.records] in (
        [(19_000, 19_001)], [(19_000, 19_001), (19_999, 20_000)],
    )  # fmt: skip
    assert answer.ByteSize() < 2_000
    assert broker.statistics()["filters"]["examined_bytes"] - before > 19_000 * 80
    assert limits.SHARE_READ_BYTES < 19_000 * 80, "in several parts"


async def test_it_waits_for_processor_time_and_delivers_nothing_else(
    broker: Broker, topic: types.Topic, call: Call, handle: int
) -> None:
    await produce(broker, handle, 1, 2)
    time = broker.env.filter_time
    time.spend(10.0)
    waiting = asyncio.create_task(acquire(call, filter="n = 2", wait_ms=60_000))
    await until(lambda: broker.shares.state("g", topic.id, 0) is not None, "no group")
    assert not waiting.done()
    time.spend(-10.0)
    assert offsets(await waiting) == [1]
    assert time.unfiltered_batches == 0


# ---- over restarts, and through the SDK and the gateway


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(BrokerConfig(data=tmp_path, port=0)) as server:
        async with comet.Admin(server.address) as admin:
            await admin.create_topic("t", partitions=2)
        yield server


async def test_what_was_settled_stays_so_over_a_restart_also_with_another_filter(tmp_path: Path) -> None:
    async with Server(BrokerConfig(data=tmp_path, port=0)) as server:
        async with comet.Admin(server.address) as admin:
            await admin.create_topic("t", partitions=1)
        async with comet.Producer(server.address) as producer:
            await (await producer.send_many("t", [b'{"n": %d}' % (at % 3) for at in range(30)]))
        async with comet.ShareClient(server.address) as client:
            found = await client.acquire("g", "t", start="earliest", filter="n = 1", wait_ms=10_000)
            assert [one.offset for one in found] == [*range(1, 30, 3)]
            assert await client.ack([one.token for one in found]) == [None] * 10
            assert await client.acquire("none", "t", start="earliest", filter="n = 9") == []
        (state,) = [one for (_, _, group), one in server.broker.shares._states.items() if group == "none"]
        await until(lambda: not state.stored.unstored, "it is not stored")
    async with Server(BrokerConfig(data=tmp_path, port=0)) as server, comet.ShareClient(server.address) as client:
        for group in ("g", "none"):
            assert await client.acquire(group, "t", start="earliest", filter="n = 2") == []
        async with comet.Producer(server.address) as producer:
            await producer.publish("t", b'{"n": 2}')
        (last,) = await client.acquire("g", "t", start="earliest", filter="n = 2", wait_ms=10_000)
        assert last.offset == 30


async def test_each_match_is_delivered_once_to_some_member(server: Server) -> None:
    got: list[tuple[int, int]] = []

    async def member() -> None:
        options: dict[str, Any] = {"group": "g", "start": "earliest", "in_flight": 7, "filter": "n in [0, 3]"}
        async with comet.ShareConsumer(server.address, "t", **options) as consumer:
            async for record in consumer:
                got.append((record.partition, record.offset))
                await record.ack()

    async with comet.Producer(server.address) as producer, asyncio.TaskGroup() as tasks:
        members = [tasks.create_task(member()) for _ in range(3)]
        for at in range(0, 2_000, 100):
            await producer.send_many("t", [b'{"n": %d}' % (one % 10) for one in range(100)], partition=at // 100 % 2)
        await producer.flush()
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: len(got) >= 400, "some are missing")
        for one in members:
            one.cancel()
    wanted = [(partition, at) for partition in (0, 1) for at in range(1_000) if at % 10 in (0, 3)]
    assert sorted(got) == wanted


async def test_a_broker_without_time_for_filters_refuses_the_group(tmp_path: Path) -> None:
    async with Server(BrokerConfig(data=tmp_path, port=0, filter_percent=0)) as server:
        async with comet.Admin(server.address) as admin:
            await admin.create_topic("t", partitions=1)
        async with comet.ShareClient(server.address) as client:
            with pytest.raises(comet.InvalidArgument, match="filter_percent is 0"):
                await client.acquire("g", "t", filter="n = 1")


def test_encrypted_values_cannot_be_matched_by_brokers() -> None:
    keyring = Keyring(KEYS)
    with pytest.raises(comet.InvalidArgument, match="cannot read encrypted values"):
        comet.ShareOptions(filter="n = 1 && @key = a", encryption=keyring)
    comet.ShareOptions(filter="@key = a", encryption=keyring)
    with pytest.raises(comet.MalformedFilter):
        comet.ShareOptions(filter="n >")


async def test_it_is_an_option_of_rest_and_websocket() -> None:
    async with live_gateway({"t": 1}) as gateway:
        async with comet.Producer(gateway.broker) as producer:
            await (await producer.send_many("t", [b'{"n": %d}' % at for at in range(10)]))
        async with httpx.AsyncClient(base_url=gateway.url) as http:
            body = {"topic": "t", "start": "earliest", "filter": "n > 7", "wait_ms": 5_000}
            answer = await http.post("/v1/groups/rest/acquire", json=body)
            assert [one["offset"] for one in answer.json()["records"]] == ["8", "9"]
            other = await http.post("/v1/groups/rest/acquire", json=body | {"filter": "n > 6"})
            assert (other.status_code, other.json()["code"]) == (400, "INVALID_ARGUMENT")
            wrong = await http.post("/v1/groups/rest/acquire", json=body | {"filter": "n >"})
            assert (wrong.status_code, wrong.json()["code"]) == (400, "MALFORMED_FILTER")
        async with gateway.socket() as socket:
            group = {"name": "ws", "kind": "share"}
            await socket.say(type="subscribe", id="g", topic="t", start="earliest", filter="n < 2", group=group)
            assert [one["offset"] for one in await socket.records("g", 2)] == ["0", "1"]
