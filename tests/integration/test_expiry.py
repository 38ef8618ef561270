"""Records that have expired come through no door, and readers move past them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator

import grpc
import httpx
import pytest

import comet
import comet.sync
from comet.v1 import records_pb2 as pb
from comet.v1 import records_pb2_grpc
from tests.integration.live_gateway import PATIENCE_S, Gateway, live_gateway
from tests.integration.test_filters import (
    COUNT,
    Door,
    Found,
    as_a_member,
    as_a_table,
    by_command,
    by_events,
    by_member_of_the_gateway,
    by_page,
    by_partition,
    by_search,
    by_socket,
    by_topic,
    consumed,
    consumed_as_tables,
    consumed_in_batches,
    synchronously,
)
from tests.unit.test_expiry import Handed
from tests.waiting import until_answered

HOUR_MS = 3_600_000
ALIVE: Found = sorted((number % 2, number // 2) for number in range(COUNT) if number % 3)


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    """A topic of records that carry a timestamp of long ago; of three, one has expired, and two never do."""
    async with live_gateway({"trades": 2}) as one:
        async with comet.Producer(one.broker, linger_ms=5) as producer:
            for number in range(COUNT):
                await producer.send(
                    "trades", b'{"n": %d}' % number, key=b"k%d" % number, timestamp_us=1_000_000 * number + 1,
                    partition=number % 2, ttl_ms=(1, None, -1)[number % 3],
                )  # fmt: skip
            await producer.flush()
        yield one


async def by_reader(gateway: Gateway, text: str, _: int) -> Found:
    async with comet.Reader(gateway.broker) as reader:
        found: Found = []
        for backward in (False, True):
            each: Found = []
            for partition in (0, 1):
                reading = reader.read("trades", partition, backward=backward, step_records=7, filter=text)
                async for part in reading:
                    assert isinstance(part, comet.RecordBatch)
                    each += [(partition, offset) for offset in part.offsets]
                assert reading.done and reading.left == 0
            assert not found or sorted(found) == sorted(each)
            found = each
        return found


async def by_share_group(gateway: Gateway, text: str, count: int) -> Found:
    found: Found = []
    async with comet.ShareConsumer(gateway.broker, "trades", group=f"s{len(text)}", start="earliest") as member:
        while len(found) < count:
            record = await member.get(timeout_s=PATIENCE_S)
            assert record is not None
            found.append((record.partition, record.offset))
            record.ack()
        async with comet.Admin(gateway.broker) as admin:

            async def done() -> bool:
                return [one.lag for one in (await admin.describe_group(f"s{len(text)}")).lags] == [0, 0]

            assert await until_answered(done, within_s=PATIENCE_S)
    return found


async def by_calls(gateway: Gateway, _text: str, _count: int) -> Found:
    """The unary call of other languages."""
    found: Found = []
    async with grpc.aio.insecure_channel(gateway.broker) as channel:
        stub = records_pb2_grpc.CometStub(channel)
        for partition in (0, 1):
            offset = 0
            while offset < COUNT // 2:
                request = pb.FetchRequest(topic="trades", partition=partition, records_max=7)
                request.start.offset = offset
                answer = await stub.Fetch(request)
                found += [(partition, record.offset) for record in answer.records]
                offset = answer.next_offset
    return found


DOORS: list[Door] = [
    consumed, consumed_in_batches, consumed_as_tables, as_a_member, synchronously, as_a_table, by_reader, by_partition,
    by_topic, by_search, by_events, by_socket, by_member_of_the_gateway, by_page, by_command,
]  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
async def test_what_has_expired_comes_through_no_door_filtered_or_not(door: Door, gateway: Gateway) -> None:
    for text in ("n >= 0", "@offset >= 0"):
        async with asyncio.timeout(PATIENCE_S):
            assert sorted(await door(gateway, text, len(ALIVE))) == ALIVE, text


@pytest.mark.parametrize("door", [by_share_group, by_calls, consumed, by_events, by_socket, synchronously, as_a_member])
async def test_what_has_expired_comes_through_no_door_without_a_filter(door: Door, gateway: Gateway) -> None:
    async with asyncio.timeout(PATIENCE_S):
        assert sorted(await door(gateway, "", len(ALIVE))) == ALIVE


# ---- the doors that take a time to live


async def command(gateway: Gateway, *words: str, given: bytes = b"") -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "comet.cli", *words, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, env=os.environ | {"COMET_BOOTSTRAP": gateway.broker},
    )  # fmt: skip
    out, _err = await process.communicate(given)
    assert process.returncode == 0, out
    return out.decode()


async def expiries(gateway: Gateway, topic: str) -> dict[bytes, int]:
    """The time to live of each record, by key, as the call of other languages tells it; 0: without end."""
    async with grpc.aio.insecure_channel(gateway.broker) as channel:
        answer = await records_pb2_grpc.CometStub(channel).Fetch(pb.FetchRequest(topic=topic))
    return {one.key: one.expires_us and (one.expires_us - one.timestamp_us) // 1000 for one in answer.records}


async def test_a_time_to_live_is_taken_at_each_door_that_writes(gateway: Gateway) -> None:
    async with (
        httpx.AsyncClient(base_url=gateway.url) as http,
        gateway.socket() as socket,
        comet.Admin(gateway.broker) as admin,
        comet.Producer(gateway.broker) as producer,
        comet.TransactionalProducer(gateway.broker, "expiry") as writer,
    ):
        await admin.create_topic("taken", record_ttl_ms=HOUR_MS)
        posted = [{"key": "post", "value": 1, "ttl_ms": 600_000}, {"key": "post of the topic", "value": 1}]
        many = [{"key": f"many {at}", "value": at, "ttl_ms": -1 if at else "600000"} for at in range(20)]
        for body, more in (
            ({"records": posted}, {}),
            ({"records": many}, {}),
            (posted[0] | {"key": "once"}, {"k": "1"}),
        ):
            headers = {"Idempotency-Key": more["k"]} if more else {}
            answer = await http.post("/v1/topics/taken/records", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
        record = {"key": "socket", "value": 1, "ttl_ms": 600_000}
        assert (await socket.ask(type="produce", id="p", topic="taken", record=record))["type"] == "receipt"
        await command(gateway, "produce", "taken", "--ttl", "10m", "-k", "=", given=b"command=1")
        await command(gateway, "produce", "taken", "--ttl", "none", "-k", "=", "-H", "a=b", given=b"kept=1")
        await command(gateway, "kv", "put", "taken", "kv command", "1", "--ttl", "10m")
        put = await http.put("/v1/kv/taken/kv put", params={"ttl_ms": 600_000}, content=b"1")
        assert put.status_code == 200, put.text
        async with comet.KV(gateway.broker, "taken") as kv:
            await kv.create("kv create", b"1", ttl_ms=600_000)
            await kv.put("kv of the topic", b"1")
        async with writer.transaction() as tx:
            await tx.send("taken", b"1", key="transaction", ttl_ms=600_000)
            await tx.send_many("taken", [b"1"], keys=["transaction, many"], ttls_ms=[600_000])
        await producer.publish("taken", None, key="tombstone")
        found = await expiries(gateway, "taken")
        refused = [
            await http.post("/v1/topics/taken/records", json={"value": 1, "ttl_ms": 0}),
            await http.put("/v1/kv/taken/k", params={"ttl_ms": 0}, content=b"1"),
        ]
    assert [(one.status_code, one.json()["code"]) for one in refused] == [(422, "VALIDATION"), (422, "VALIDATION")]
    ten = ("post", "many 0", "once", "socket", "command", "kv command", "kv put", "kv create", "transaction")
    assert {key.decode(): ttl for key, ttl in found.items()} == (
        dict.fromkeys((*ten, "transaction, many"), 600_000)
        | {"post of the topic": HOUR_MS, "kv of the topic": HOUR_MS, "kept": 0, "tombstone": 0}
        | {f"many {at}": 0 for at in range(1, 20)}
    )


async def test_a_key_has_no_value_from_the_expiry_of_its_last_record_on(gateway: Gateway) -> None:
    new = comet.NewTopic(cleanup_policy="compact")
    async with comet.KV(gateway.broker, "latest", create=new) as kv:
        await kv.put("a", b"first")
        await kv.put("a", b"second", ttl_ms=100)
        await kv.put("b", b"kept", ttl_ms=HOUR_MS)

        async def gone() -> bool:
            return await kv.get("a") is None

        assert await until_answered(gone, within_s=PATIENCE_S)
        assert await kv.keys() == [b"b"]
        assert [one.value for one in await kv.history("a")] == [b"first"]
        assert await kv.get("a", revision=1) is None
        with pytest.raises(comet.RevisionMismatch) as raised:
            await kv.update("a", b"third", 1)
        assert raised.value.revision == -1
        assert await kv.create("a", b"third") == 3
        assert await kv.delete("a", 3) == 4


async def test_a_change_of_the_topics_setting_counts_for_later_records(gateway: Gateway) -> None:
    async with comet.Admin(gateway.broker) as admin, comet.Reader(gateway.broker) as reader:
        await admin.create_topic("changed")
        for value, ttl_ms in ((b"kept", -1), (b"gone", 1), (b"kept, too", 0)):
            await admin.alter_topic("changed", record_ttl_ms=ttl_ms)
            async with comet.Producer(gateway.broker) as producer:  # another one learns of it with its metadata
                await producer.publish("changed", value, timestamp_us=1)
        fetched = await reader.fetch("changed", 0)
        assert [list(one.values) for one in fetched.batches] == [[b"kept"], [b"kept, too"]]
        assert fetched.next_offset == 3


async def test_a_subscriber_of_latest_values_is_given_none_that_has_expired(gateway: Gateway) -> None:
    async with gateway.socket() as socket, comet.Producer(gateway.broker) as producer, comet.Admin(gateway.broker) as a:
        await a.create_topic("prices")
        await producer.publish("prices", b"1", key="old", timestamp_us=1, ttl_ms=1)
        await producer.publish("prices", b"2", key="new", ttl_ms=HOUR_MS)
        await socket.subscribe("s", "prices", snapshot="latest")
        snapshot = await socket.until("snapshot", id="s")
        assert [(one["key"], one["value"]) for one in snapshot["records"]] == [("new", 2)]
        for key, ttl_ms in (("older", 1), ("newer", HOUR_MS)):
            timestamp_us = 1 if ttl_ms == 1 else None
            await producer.publish("prices", f'"{key}"', key=key, ttl_ms=ttl_ms, timestamp_us=timestamp_us)
        assert [one["key"] for one in await socket.records("s", 1)] == ["newer"]


def test_a_synchronous_consumer_leaves_out_what_expires_after_it_was_opened_ahead() -> None:
    with comet.testing.broker({"quotes": 1}) as broker:
        with comet.sync.Producer(broker.address) as producer:
            for ttl_ms in (-1, 1, None, 1):
                producer.publish("quotes", b"1", timestamp_us=1_000, ttl_ms=ttl_ms)
            for _ in range(2):
                producer.send_many("quotes", [b"1"] * 3, timestamp_us=1_000, ttls_ms=[1, -1, 1]).result()
            producer.send_many("quotes", [b"1"] * 4, timestamp_us=1_000, ttls_ms=[5, 5, 5, -1]).result()
        clock = Handed()
        for whole in (False, True):
            clock.now_us = 0
            with comet.sync.Consumer(broker.address, "quotes", start="earliest", clock_us=clock) as consumer:
                assert next(consumer).offset == 0
                deadline = time.monotonic() + PATIENCE_S
                while consumer.statistics()["buffered_bytes"] or consumer.statistics()["received_bytes"] < 600:
                    assert time.monotonic() < deadline, "all of it is opened ahead"
                clock.now_us = 2_000
                if whole:
                    batches = consumer.batches()
                    assert [list(next(batches).offsets) for _ in range(4)] == [[2], [5], [8], [10, 11, 12, 13]]
                else:
                    assert [next(consumer).offset for _ in range(4)] == [2, 5, 8, 10]
                    clock.now_us = 6_000
                    assert next(consumer).offset == 13
                assert consumer.get(timeout_s=0.1) is None
                assert consumer.positions() == {0: 14}
