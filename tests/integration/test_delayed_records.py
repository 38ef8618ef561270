"""Delayed records with a real broker: taken at each door that writes, written once when they are due, or cancelled."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

import comet
import comet.sync
from comet.testing import broker
from comet.wire.grpc_channel import GrpcChannel
from comet_broker.schedules.changes import partition_of
from tests.integration.live_gateway import PATIENCE_S, Gateway, live_gateway
from tests.link import Link
from tests.robustness.process import BrokerProcess

TOPIC = "reminders"
PUT = "comet.v1.Admin/PutSchedules"
SOON = "200ms"


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with broker({TOPIC: 1}) as one:
        yield one.address


async def written(address: str, count: int) -> list[comet.Record[bytes]]:
    """The records of the topic, once there are so many."""
    found: list[comet.Record[bytes]] = []
    async with (
        asyncio.timeout(PATIENCE_S),
        comet.Producer(address) as producer,
        comet.Consumer(address, TOPIC, start="earliest") as consumer,
    ):
        async for record in consumer:
            if record.value == b"end":
                break
            assert record.timestamp_us <= time.time_ns() // 1000, "written before it was due"
            found.append(record)
            if len(found) == count:
                await producer.publish(TOPIC, b"end")
    return found


def values(records: list[comet.Record[bytes]]) -> list[bytes | None]:
    return [record.value for record in records]


# ---- producers


async def test_a_record_is_written_when_it_is_due_with_its_content(address: str) -> None:
    async with comet.Producer(address) as producer:
        receipt = await producer.publish(
            TOPIC, {"order": 4711}, key="4711", headers={"source": "web"}, ttl_ms=3_600_000, delay=SOON
        )
    (first,) = await written(address, 1)
    assert receipt == comet.ScheduledReceipt(TOPIC, receipt.id, first.timestamp_us)
    assert (first.key, first.value) == (b"4711", b'{"order":4711}')
    assert first.headers == [
        ("source", b"web"), ("comet-schedule-id", receipt.id.encode()),
        ("comet-schedule-due", str(first.timestamp_us).encode()), ("comet-schedule-count", b"1"),
    ]  # fmt: skip


async def test_records_of_one_leader_come_in_the_order_of_their_due_times(address: str) -> None:
    now = datetime.now(UTC)
    ids = [f"order-{n}" for n in range(100) if partition_of(TOPIC, f"order-{n}") == 0]
    async with comet.Producer(address) as producer:
        for after_ms, schedule_id in zip((900, 300, -5_000, 700, 500), ids, strict=False):
            due = now + timedelta(milliseconds=after_ms)
            await producer.send(TOPIC, b"%d" % after_ms, due=due, schedule_id=schedule_id)
        await producer.flush()
    assert values(await written(address, 5)) == [b"-5000", b"300", b"500", b"700", b"900"]


async def test_a_partition_is_that_of_the_key_or_the_given_one(address: str) -> None:
    async with comet.Admin(address) as admin:
        await admin.create_topic("wide", partitions=8)
    async with comet.Producer(address) as producer:
        now, later = [], []
        for n in range(20):
            now.append((await producer.publish("wide", b"now", key=f"k{n}")).partition)
            later.append(await producer.send("wide", b"later", key=f"k{n}", delay=0))
        await producer.publish("wide", b"given", key="k0", partition=5, delay=0)
        await asyncio.gather(*later)
    found: dict[str | None, set[int]] = {}
    async with asyncio.timeout(PATIENCE_S), comet.Consumer(address, "wide", start="earliest") as consumer:
        seen = 0
        async for record in consumer:
            if record.value == b"given":
                assert record.partition == 5
            else:
                found.setdefault(record.key_text, set()).add(record.partition)
            seen += 1
            if seen == 41:
                break
    assert found == {f"k{n}": {partition} for n, partition in enumerate(now)}


def test_a_synchronous_producer_sends_later_too() -> None:
    with broker({TOPIC: 1}) as one, comet.sync.Producer(one.address) as producer:
        deliveries = [producer.send(TOPIC, b"%d" % n, delay=0) for n in range(10)]
        assert len({delivery.result().id for delivery in deliveries}) == 10
        assert isinstance(producer.publish(TOPIC, b"10", delay=timedelta(0)), comet.ScheduledReceipt)
        with comet.sync.Consumer(one.address, TOPIC, start="earliest") as consumer:
            found = [consumer.get(timeout_s=PATIENCE_S) for _ in range(11)]
    assert {record.value for record in found if record is not None} == {b"%d" % n for n in range(11)}


async def test_a_value_stays_encrypted_until_a_consumer_reads_it(address: str) -> None:
    keyring = comet.Keyring({"k1": bytes(32)})
    async with comet.Producer(address, encryption=keyring) as producer:
        await producer.publish(TOPIC, b"secret", key=b"a", delay=0)
    async with asyncio.timeout(PATIENCE_S):
        async with comet.Consumer(address, TOPIC, start="earliest") as plain:
            stored = await plain.get()
        async with comet.Consumer(address, TOPIC, start="earliest", encryption=keyring) as consumer:
            read = await consumer.get()
    assert stored is not None
    assert b"secret" not in stored.value
    assert read is not None
    assert read.value == b"secret"


async def test_an_app_reminds_itself(address: str) -> None:
    app = comet.App(address)
    seen: list[bytes] = []

    @app.on(TOPIC, start="earliest")
    async def remind(value: bytes) -> None:
        seen.append(value)
        if value == b"tea":
            await app.publish(TOPIC, b"cup", delay=SOON, schedule_id="cup")
        else:
            app.stop()

    await app.publish(TOPIC, b"tea", delay=SOON)
    async with asyncio.timeout(PATIENCE_S):
        await app.serve()
    assert seen == [b"tea", b"cup"]


# ---- once


class LosingChannel(GrpcChannel):
    """The answers to the first requests to store schedules get lost."""

    lost = 3

    async def unary(self, method: str, *arguments: Any, **more: Any) -> Any:
        answer = await super().unary(method, *arguments, **more)
        if method == PUT and LosingChannel.lost:
            LosingChannel.lost -= 1
            raise comet.Unavailable("the answer got lost")
        return answer


async def test_a_request_whose_answer_is_lost_is_written_once(address: str) -> None:
    LosingChannel.lost = 3
    async with comet.Producer(address, connect=LosingChannel) as producer:
        deliveries = [await producer.send(TOPIC, b"%d" % n, delay=0) for n in range(50)]
        receipts = [await delivery for delivery in deliveries]
    assert not LosingChannel.lost
    assert receipts[0].duplicate
    assert Counter(values(await written(address, 50))) == Counter(b"%d" % n for n in range(50))


async def test_a_call_that_timed_out_is_repeated_under_its_id(address: str) -> None:
    host, port = address.split(":")
    async with Link(host, int(port)) as link:
        async with comet.Producer(address, timeout_ms=2_000, connect=lambda _: GrpcChannel(link.address)) as producer:
            await producer.publish(TOPIC, b"first")
            link.hold(down=True)
            with pytest.raises(comet.Timeout) as caught:
                await producer.publish(TOPIC, b"once", delay=0, schedule_id="order-4711")
            assert caught.value.outcome_unknown
            link.release()
        async with comet.Producer(address) as producer:
            for _ in range(2):
                again = await producer.publish(TOPIC, b"twice", delay=0, schedule_id="order-4711")
                assert again.duplicate
    assert values(await written(address, 2)) == [b"first", b"once"]


async def test_a_cancelled_record_is_not_written(address: str) -> None:
    async with comet.Producer(address) as producer, comet.Admin(address) as admin:
        gone = await producer.publish(TOPIC, b"gone", delay="4s")
        far = await producer.publish(TOPIC, b"far", delay="30d")
        found = await admin.schedules.list_schedules(TOPIC)
        assert {one.id: one.next_us for one in found.schedules} == {gone.id: gone.next_us, far.id: far.next_us}
        for receipt in (gone, far):
            await admin.schedules.cancel_schedule(TOPIC, receipt.id)
        with pytest.raises(comet.ScheduleNotFound):
            await admin.schedules.cancel_schedule(TOPIC, gone.id)
        assert (await producer.publish(TOPIC, b"gone", delay="1s", schedule_id=gone.id)).next_us is None
        assert gone.next_us is not None
        after = datetime.fromtimestamp(gone.next_us / 1e6 + 0.5, UTC)
        same_leader = next(
            one for n in range(100) if partition_of(TOPIC, one := f"{n}") == partition_of(TOPIC, gone.id)
        )
        await producer.publish(TOPIC, b"last", due=after, schedule_id=same_leader)
        assert values(await written(address, 1)) == [b"last"]
        assert not (await admin.schedules.list_schedules(TOPIC)).schedules


async def test_a_refused_record_says_why(address: str) -> None:
    async with comet.Producer(address) as producer:
        with pytest.raises(comet.InvalidArgument, match="1970 to 2199"):
            await producer.publish(TOPIC, b"1", due=datetime(2300, 1, 1, tzinfo=UTC))
        with pytest.raises(comet.TopicNotFound):
            await producer.publish("missing", b"1", delay=0)
        with pytest.raises(comet.RecordTooLarge):
            await producer.publish(TOPIC, bytes(3 << 20), delay=0)


@pytest.mark.slow
async def test_a_killed_broker_writes_each_record_once_when_it_is_back(tmp_path: Path) -> None:
    """Some records are due before the kill, some while no broker runs, and some afterwards."""
    process = BrokerProcess(tmp_path / "data")
    await asyncio.to_thread(process.start)
    try:
        async with comet.Admin(process.address) as admin:
            await admin.create_topic(TOPIC)
        async with comet.Producer(process.address, timeout_ms=60_000) as producer:
            for cycle in range(3):
                deliveries = [await producer.send(TOPIC, b"%d" % n, delay=n / 200) for n in range(300)]
                await asyncio.gather(*deliveries)
                await until_written(process.address, 310 * cycle + 1)
                process.kill()
                later = [asyncio.ensure_future(producer.publish(TOPIC, b"%d" % n, delay=0)) for n in range(300, 310)]
                await asyncio.to_thread(process.start)
                await asyncio.gather(*later)
        found = Counter(values(await written(process.address, 3 * 310)))
    finally:
        process.kill()
    assert found == {b"%d" % n: 3 for n in range(310)}


async def until_written(address: str, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S), comet.Consumer(address, TOPIC, start="earliest") as consumer:
        for _ in range(count):
            await consumer.get()


# ---- gateway and command line


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with live_gateway({TOPIC: 1}) as one:
        yield one


async def command(gateway: Gateway, *words: str, given: bytes) -> tuple[str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "comet.cli", *words, "--bootstrap", gateway.broker,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(given), PATIENCE_S)
    assert process.returncode == 0, err
    return out.decode(), err.decode()


async def test_a_delayed_record_is_taken_at_each_door_that_writes(gateway: Gateway) -> None:
    due = (datetime.now(UTC) + timedelta(milliseconds=300)).isoformat()
    url = f"/v1/topics/{TOPIC}/records"
    ids: list[str] = []
    async with httpx.AsyncClient(base_url=gateway.url) as http, gateway.socket() as socket:
        body = {"records": [{"text": "post", "delay_ms": 200, "schedule_id": "post"}, {"text": "now"}]}
        for duplicate in (False, True):
            answer = await http.post(url, json=body)
            assert answer.status_code == 200, answer.text
            result, _ = answer.json()["results"]
            assert result.get("duplicate", False) is duplicate
        ids.append(result["schedule_id"])
        lines = "".join(json.dumps({"text": f"line {n}", "due": due}) + "\n" for n in range(3))
        answer = await http.post(url, content=lines, headers={"Content-Type": "application/x-ndjson"})
        ids += [json.loads(line)["schedule_id"] for line in answer.text.splitlines()]
        record = {"text": "socket", "delay_ms": "200"}
        receipt = await socket.ask(type="produce", id="p", topic=TOPIC, record=record)
        ids.append(receipt["results"][0]["schedule_id"])
        assert receipt["results"][0]["next_us"].isdecimal()
        out, _ = await command(gateway, "produce", TOPIC, "--delay", SOON, given=b"command 0\ncommand 1\n")
        ids += [line.split()[0] for line in out.splitlines()]
        out, _ = await command(gateway, "produce", TOPIC, "--due", due, "-H", "a=b", "--json", given=b"command 2\n")
        ids += [json.loads(line)["id"] for line in out.splitlines()]
        refused = [
            await http.post(url, json={"value": 1, "delay_ms": -1}),
            await http.post(url, json={"value": 1, "due": "tomorrow"}),
            await http.post(url, json={"value": 1, "delay_ms": 1}, headers={"Idempotency-Key": "a"}),
        ]
        answer = await http.post(url, json={"text": "unacknowledged", "delay_ms": 0}, params={"acks": "0"})
        ids.append(answer.json()["results"][0]["schedule_id"])
        found = [record for record in await written(gateway.broker, 11) if record.value != b"now"]
    assert [one.json()["code"] for one in refused] == ["VALIDATION", "VALIDATION", "INVALID_ARGUMENT"]
    texts = ["post", *(f"line {n}" for n in range(3)), "socket", *(f"command {n}" for n in range(3)), "unacknowledged"]
    by_id = {dict(record.headers)["comet-schedule-id"].decode(): record.value for record in found}
    assert len(found) == len(texts)
    assert [by_id[one] for one in ids] == [text.encode() for text in texts]
