"""Finding brokers, trying again with restraint, and what stands between an SDK call and the wire.

Scenarios run on the virtual time of comet_testing.simulation.loop.
"""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any

import pytest

import comet
from comet.admin.admin import Admin
from comet.client.bootstrap import parse_addresses
from comet.client.client import Client
from comet.client.connection import Connection
from comet.client.retry import Backoff
from comet.errors import Closed, InvalidArgument, Timeout, TopicExists, TopicNotFound, Unavailable
from comet.limits import (
    BACKOFF_FIRST_MS,
    BACKOFF_MAX_MS,
    FAILURES_STORED_MAX,
    METADATA_PATIENCE_MS,
)
from comet.producer.memory import Budget
from comet.producer.partitioner import by_partition, header_pairs
from comet.producer.topic_route import cut
from comet.records import partition_for
from comet.v1 import records_pb2 as pb
from tests.unit.sdk_fake import ADDRESS, FakeBroker, FakeChannel
from tests.unit.test_sdk_producer import now, producer, scenario


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("localhost", ("localhost:9092",)),
        ("a:1,b:2", ("a:1", "b:2")),
        (["a:1", "a:1", "b"], ("a:1", "b:9092")),
        ("[::1]:5", ("[::1]:5",)),
        ("[::1]", ("[::1]:9092",)),
    ],
)
def test_addresses_are_read(given: Any, expected: tuple[str, ...]) -> None:
    assert parse_addresses(given) == expected


@pytest.mark.parametrize("given", ["", " , ", [], ["a", ""], [None]])
def test_what_is_no_address_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument):
        parse_addresses(given)


def test_a_url_is_refused_with_what_to_write() -> None:
    with pytest.raises(InvalidArgument, match="invalid broker address: 'http://localhost:9092'; use HOST:PORT"):
        parse_addresses("broker-1:9092,http://localhost:9092")


async def test_running_inside_a_running_loop_is_refused_with_what_to_do() -> None:
    async def main() -> None: ...

    with pytest.raises(RuntimeError, match="as it does in a notebook: await there"):
        comet.run(main())


def test_waits_grow_with_jitter_up_to_a_limit_and_respect_advice() -> None:
    backoff = Backoff(Random(1))
    waits = [backoff.next_s() * 1000 for _ in range(20)]
    for index, wait in enumerate(waits):
        ceiling = min(BACKOFF_FIRST_MS * 2**index, BACKOFF_MAX_MS)
        assert ceiling / 2 <= wait <= ceiling
    assert len(set(waits)) > 15
    assert backoff.next_s(advice_ms=5000) == 5
    backoff.reset()
    assert backoff.next_s() * 1000 <= BACKOFF_FIRST_MS


def client(broker: FakeBroker, addresses: Any = ADDRESS) -> Client:
    return Client(addresses, connect=broker.connect, random=Random(3))


@scenario()
async def test_any_of_several_addresses_will_do(broker: FakeBroker) -> None:
    broker.dead_addresses = {"dead:1", "dead:2"}
    for seed in range(5):
        one = Client(["dead:1", ADDRESS, "dead:2"], connect=broker.connect, random=Random(seed))
        assert (await one.attach("quotes", 0)).handle
        await one.close()
    none = client(broker, ["dead:1", "dead:2"])
    with pytest.raises(Unavailable):
        await none.topic("quotes")
    await none.close()


@scenario()
async def test_who_fails_as_another_answers_leaves_no_error_that_nobody_sees(broker: FakeBroker) -> None:
    loop = asyncio.get_running_loop()
    at = 0.0

    class Channel(FakeChannel):
        async def unary(self, *_: Any) -> Any:
            tasks.append(asyncio.current_task())
            await asyncio.sleep(at - loop.time())
            if self.address == "a:1":
                raise Unavailable("a refuses")
            return pb.FetchMetadataResponse()

    tasks: list[Any] = []
    for _ in range(20):  # which of the two is looked at first is chance
        client = Client("a:1,b:1", connect=lambda address: Channel(broker, address), random=Random(1))
        at = loop.time() + 2 * METADATA_PATIENCE_MS / 1000
        await client.request("comet.v1.Comet/FetchMetadata", pb.FetchMetadataRequest(), pb.FetchMetadataResponse)
        await client.close()
    assert len(tasks) == 40
    assert all(task.done() and not task._log_traceback for task in tasks)


@scenario()
async def test_many_who_need_a_broker_share_one_attempt(broker: FakeBroker) -> None:
    broker.create("many", 100)
    one = client(broker)
    attachments = await asyncio.gather(*(one.attach("many", index) for index in range(100)))
    assert len({attachment.handle for attachment in attachments}) == 100
    assert broker.connects == 1
    assert broker.calls == ["comet.v1.Comet/FetchMetadata"]
    await one.close()


@scenario()
async def test_a_handle_is_asked_for_once_and_an_error_is_not_remembered(broker: FakeBroker) -> None:
    one = client(broker)
    first = await one.attach("quotes", 0)
    frames = len(broker.frames)
    assert (await one.attach("quotes", 0)).handle == first.handle
    assert len(broker.frames) == frames
    with pytest.raises(TopicNotFound):
        await one.attach("later", 0)
    broker.create("later", 1)
    assert (await one.attach("later", 0)).handle != first.handle
    await one.close()


@scenario()
async def test_closing_tells_everyone_who_waits(broker: FakeBroker) -> None:
    one = client(broker)
    broker.frozen = True
    waiting = asyncio.create_task(one.attach("quotes", 0))
    await asyncio.sleep(0.1)
    await one.close()
    with pytest.raises((Closed, Unavailable)):
        await waiting
    with pytest.raises(Closed):
        await one.attach("quotes", 0)


@scenario()
async def test_a_request_that_is_not_answered_times_out_and_is_forgotten(broker: FakeBroker) -> None:
    connection = Connection(broker.connect(ADDRESS).stream(), ADDRESS, client_name="")
    await connection.open()
    broker.frozen = True
    with pytest.raises(Timeout):
        await connection.call(pb.ClientFrame(attach=pb.Attach(topic="quotes")), 1000)
    assert now() < 2
    await connection.close()


@scenario()
async def test_everyone_who_waits_hears_of_a_lost_connection_at_once(broker: FakeBroker) -> None:
    connection = Connection(broker.connect(ADDRESS).stream(), ADDRESS, client_name="")
    await connection.open()
    broker.frozen = True
    calls = [asyncio.create_task(connection.call(pb.ClientFrame(attach=pb.Attach(topic="quotes")))) for _ in range(5)]
    await asyncio.sleep(0.1)
    began = now()
    broker.cut()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, Unavailable) for result in results)
    assert now() == pytest.approx(began, abs=0.01)
    with pytest.raises(Unavailable):
        await connection.call(pb.ClientFrame(ping=pb.Ping()))
    await connection.close()


@scenario()
async def test_topics_come_in_pages(broker: FakeBroker) -> None:
    for name in ("a", "b", "c"):
        broker.create(name, 1)
    async with Admin(ADDRESS, connect=broker.connect, random=Random(1)) as admin:
        assert [topic.name for topic in await admin.list_topics()] == ["a", "b", "c", "quotes"]
        with pytest.raises(TopicExists):
            await admin.create_topic("a")
        with pytest.raises(InvalidArgument):
            await admin.create_topic("x y")
        with pytest.raises(InvalidArgument):
            await admin.create_topic("x", partitions=0)
        with pytest.raises(InvalidArgument, match="unknown topic setting: 'retention'; use one of retention_ms"):
            await admin.create_topic("x", retention=5)


@scenario()
async def test_failures_are_told_once_and_kept_within_bounds(broker: FakeBroker) -> None:
    broker.up = False
    p = producer(broker, timeout_ms=50, batch_bytes=1)
    broker.up = True
    await p.publish("quotes", b"0")
    broker.up = False
    broker.cut()
    for _ in range(FAILURES_STORED_MAX + 50):
        await p.send("quotes", b"1")
    with pytest.raises(Unavailable):
        await p.flush()
    await p.close()
    assert p.statistics()["failed_records"] == FAILURES_STORED_MAX + 50


def test_who_waits_for_room_goes_in_turn_and_cancelling_passes_it_on() -> None:
    async def main() -> None:
        budget = Budget(10)
        budget.used_bytes = 10
        order: list[int] = []

        async def want(n: int) -> None:
            await budget.wait()
            budget.used_bytes += 10
            order.append(n)

        tasks = [asyncio.create_task(want(n)) for n in range(4)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        for _ in range(3):
            budget.release(10)
            for _ in range(4):
                await asyncio.sleep(0)
        assert order == [1, 2, 3]
        late = asyncio.create_task(want(9))
        await asyncio.sleep(0)
        budget.close(Closed("over"))
        with pytest.raises(Closed):
            await late

    asyncio.run(main())


def test_columns_are_cut_by_bytes_and_nothing_is_lost() -> None:
    random = Random(5)
    values = [None if random.random() < 0.1 else b"x" * random.choice([0, 1, 50, 5000]) for _ in range(3000)]
    keys = [b"k" * random.randrange(20) for _ in values]
    parts = list(cut(values, keys, 10_000))
    assert [value for part in parts for value in part.values] == values
    assert [key for part in parts for key in part.keys or ()] == keys
    assert all(part.size <= 12_500 or len(part.values) == 1 for part in parts)
    assert len(parts) < 3 * sum(part.size for part in parts) / 10_000
    assert list(cut([], None, 100)) == []


def test_keys_are_placed_as_the_format_says() -> None:
    keys: list[bytes | None] = [b"a", b"b", None, b"a"]
    found = by_partition(keys, 4, 2)
    assert sorted(index for members in found.values() for index in members) == [0, 1, 2, 3]
    assert {0, 3} <= set(found[partition_for(b"a", 4)])
    assert 2 in found[2]


@pytest.mark.parametrize("wrong", [{"a": 1}, [("a",)], [(b"a", b"b")], ["ab", "c"], 5])
def test_headers_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        header_pairs(wrong)


def test_importing_the_channel_is_what_imports_grpc(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    import subprocess
    import sys

    code = "import sys, comet, comet.client.client, comet.producer.producer; assert 'grpc' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
