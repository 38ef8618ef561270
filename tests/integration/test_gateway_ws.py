"""The WebSocket of a live gateway: what a client asks for is what it gets, and every frame is as the schema says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import websockets

import comet
from tests.integration.live_gateway import PATIENCE_S, Gateway, Socket, live_gateway, small
from tests.waiting import until


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with live_gateway({"one": 1, "two": 2, "other": 1}) as running:
        yield running


@pytest.fixture
async def socket(gateway: Gateway) -> AsyncIterator[Socket]:
    async with gateway.socket() as one:
        yield one


@pytest.fixture
async def producer(gateway: Gateway) -> AsyncIterator[comet.Producer]:
    async with comet.Producer(gateway.broker) as one:
        yield one


def texts(records: list[dict[str, Any]]) -> list[str]:
    """A number is JSON, and comes as what it is."""
    return [record["text"] if "text" in record else str(record["value"]) for record in records]


# ---- following


async def test_records_come_as_they_are_written(socket: Socket, producer: comet.Producer) -> None:
    told = await socket.subscribe("a", "one")
    assert told["topic"] == "one" and told["missing"] == [] and told["cursor"].startswith("c1.")
    await producer.publish("one", {"bid": 1.08}, key="EURUSD", headers={"source": "demo"})
    frame = await socket.until("records", id="a")
    (record,) = frame["records"]
    assert (frame["topic"], frame["partition"]) == ("one", 0)
    assert (record["offset"], record["key"], record["value"]) == ("0", "EURUSD", {"bid": 1.08})
    assert record["headers"] == [{"name": "source", "value": "demo"}]


async def test_a_client_that_comes_back_with_its_cursor_gets_each_record_once(
    gateway: Gateway, producer: comet.Producer
) -> None:
    got: list[str] = []
    cursor = None
    for number in range(0, 30, 3):
        for one in range(number, number + 3):
            await producer.publish("two", f"{one}", key=f"k{one}")
        async with gateway.socket() as one_socket:
            asked = {"start": "earliest"} if cursor is None else {"cursor": cursor}
            told = await one_socket.subscribe("a", "two", **asked)
            assert told.get("recovered") is (None if cursor is None else True)
            while len(got) < number + 2:
                frame = await one_socket.until("records")
                got += texts(frame["records"])
                cursor = frame["cursor"]
    async with gateway.socket() as last:
        await last.subscribe("a", "two", cursor=cursor)
        if len(got) < 30:
            got += texts(await last.records("a", 30 - len(got)))
    assert sorted(got, key=int) == [str(number) for number in range(30)]


async def test_a_client_is_told_what_is_gone(gateway: Gateway, socket: Socket, producer: comet.Producer) -> None:
    cursor = (await socket.subscribe("a", "one"))["cursor"]
    for number in range(5):
        await producer.publish("one", f"{number}")
    async with comet.Admin(gateway.broker) as admin:
        await admin.delete_records("one", 0, 3)
    told = await socket.subscribe("b", "one", cursor=cursor)
    assert told["recovered"] is False
    assert told["missing"] == [{"partition": 0, "first": "0", "end": "3", "reason": "deleted"}]
    assert texts(await socket.records("b", 2)) == ["3", "4"]


async def test_many_subscriptions_share_a_socket(socket: Socket, producer: comet.Producer) -> None:
    await socket.say(type="subscribe", id="both", topics=["one", "other"])
    assert {(await socket.until("subscribed", id="both"))["topic"] for _ in range(2)} == {"one", "other"}
    await socket.subscribe("mine", "two", partitions=[1])
    await producer.publish("two", "left", partition=0)
    await producer.publish("two", "right", partition=1)
    await producer.publish("one", "a")
    await producer.publish("other", "b")
    assert texts(await socket.records("mine", 1)) == ["right"]
    assert sorted(texts(await socket.records("both", 2))) == ["a", "b"]
    assert (await socket.ask(type="unsubscribe", id="mine")) == {"type": "end", "id": "mine", "reason": "unsubscribed"}
    await socket.subscribe("mine", "two", start="earliest")
    assert sorted(texts(await socket.records("mine", 2))) == ["left", "right"]


async def test_no_more_records_come_than_are_permitted(socket: Socket, producer: comet.Producer) -> None:
    await (await producer.send_many("one", [f"{number}" for number in range(10)]))
    await socket.subscribe("a", "one", start="earliest", permits=3)
    assert texts(await socket.records("a", 3)) == ["0", "1", "2"]
    assert (await socket.ask(type="ping", id="x"))["type"] == "pong"
    assert not socket.heard
    await socket.say(type="permit", id="a", count=5)
    assert texts(await socket.records("a", 5)) == ["3", "4", "5", "6", "7"]


async def test_a_snapshot_comes_first_and_conflation_ends_on_the_latest(
    socket: Socket, producer: comet.Producer
) -> None:
    for number in range(10):
        await producer.publish("one", f"{number}", key=f"k{number % 2}")
    await socket.subscribe("snap", "one", snapshot="latest")
    frame = await socket.until("snapshot", id="snap")
    assert sorted(texts(frame["records"])) == ["8", "9"] and frame["last"] and frame["complete"]
    await producer.publish("one", "live")
    assert texts(await socket.records("snap", 1)) == ["live"]
    await socket.subscribe("conf", "one", policy="conflate", interval_ms=50)
    await (await producer.send_many("one", [f"{number}" for number in range(100)], keys=["k"] * 100))
    seen: list[str] = []
    conflated = 0
    while "99" not in seen:
        frame = await socket.until("latest", id="conf")
        seen += texts(frame["records"])
        conflated += frame["conflated"]
    assert len(seen) + conflated == 100


async def test_a_topic_that_is_deleted_ends_its_subscription_and_no_other(
    gateway: Gateway, socket: Socket, producer: comet.Producer
) -> None:
    await socket.subscribe("a", "one")
    await socket.subscribe("b", "other")
    async with comet.Admin(gateway.broker) as admin:
        await admin.delete_topic("one")
    error = await socket.until("error", id="a")
    assert error["problem"]["code"] == "TOPIC_NOT_FOUND" and error["topic"] == "one"
    assert (await socket.until("end", id="a"))["reason"] == "failed"
    await producer.publish("other", "x")
    assert texts(await socket.records("b", 1)) == ["x"]


async def test_what_is_not_there_cannot_be_followed(socket: Socket) -> None:
    error = await socket.ask(type="subscribe", id="a", topic="none")
    assert (error["type"], error["of"], error["problem"]["code"]) == ("error", "subscribe", "TOPIC_NOT_FOUND")
    assert (await socket.until("end", id="a"))["reason"] == "failed"
    await socket.subscribe("a", "one")


# ---- writing


async def test_receipts_come_in_the_order_of_the_frames(socket: Socket, gateway: Gateway) -> None:
    for number in range(200):
        record = {"value": {"n": number}} if number % 2 else {"text": f"{number}", "key": "k", "partition": 0}
        await socket.say(type="produce", id=f"{number}", topic="one", record=record, acks="all")
    receipts = [await socket.until("receipt") for _ in range(200)]
    assert [receipt["id"] for receipt in receipts] == [f"{number}" for number in range(200)]
    assert sorted(int(receipt["results"][0]["offset"]) for receipt in receipts) == list(range(200))
    async with comet.Consumer(gateway.broker, "one", start="earliest") as consumer:
        records = [record async for record in _first(consumer, 200)]
    assert [record.value for record in records[:3]] == [b"0", b'{"n": 1}', b"2"]  # as the frames came


async def _first(consumer: comet.Consumer[bytes], count: int) -> AsyncIterator[comet.Record[bytes]]:
    for _ in range(count):
        record = await consumer.get()
        assert record is not None
        yield record


async def test_what_is_wrong_with_a_record_is_said_in_its_turn(socket: Socket) -> None:
    await socket.say(type="produce", id="1", topic="none", record={"text": "a"})
    await socket.say(type="produce", id="2", topic="one", records=[{"text": "a"}, {"text": "b", "partition": 9}])
    await socket.say(type="produce", id="3", topic="one", records=[{"key": "k"}])
    await socket.say(type="produce", id="4", topic="one", record={"tombstone": True, "key": "k"})
    answers = [await socket.until("receipt", "error") for _ in range(4)]
    assert [answer["id"] for answer in answers] == ["1", "2", "3", "4"]
    assert answers[0]["problem"]["code"] == "TOPIC_NOT_FOUND" and answers[2]["problem"]["code"] == "VALIDATION"
    assert answers[1]["results"][0]["offset"] and answers[1]["results"][1]["problem"]["code"] == "PARTITION_NOT_FOUND"
    assert answers[3]["type"] == "receipt"


@pytest.mark.parametrize(
    "wrong",
    [
        '"record":{"text":"a","text":"b"}',
        '"record":{"text":"a","headers":{"n":"1","n":"2"}}',
        '"record":{"text":"a"},"topic":"one"',
        '"record":{"text":"a"},"acks":1,"acks":1',
        '"records":[{"text":"a"},{"value":{},"v\\u0061lue":{}}],"record":null',
        '"record":{"text":"a","timestamp_us":9223372036854775808}',
    ],
)
async def test_records_of_frames_are_read_as_those_of_documents(gateway: Gateway, socket: Socket, wrong: str) -> None:
    metrics = gateway.server.app.state.metrics
    await socket.connection.send(f'{{"type":"produce","id":"1","topic":"one",{wrong}}}')
    error = await socket.until("error", "receipt")
    assert (error["id"], error["problem"]["code"]) == ("1", "VALIDATION"), error
    assert metrics.records_in == 0
    twice = {"value": {"topic": "one", "acks": 1, "text": ""}, "key": "id", "headers": {"type": "produce"}}
    receipt = await socket.ask(type="produce", id="2", topic="one", records=[twice, {"text": "record"}])
    assert [result["offset"] for result in receipt["results"]] == ["0", "1"]
    assert metrics.records_in == 2


async def test_a_key_writes_once(socket: Socket) -> None:
    asked = {"type": "produce", "topic": "one", "records": [{"text": "a"}], "idempotency_key": "order-7"}
    first = await socket.ask(id="1", **asked)
    again = await socket.ask(id="2", **asked)
    assert first["results"] == [{"partition": 0, "offset": "0"}]
    assert again["results"] == [{"partition": 0, "offset": "0", "duplicate": True}]
    other = await socket.ask(**{**asked, "id": "3", "records": [{"text": "b"}]})
    assert other["problem"]["code"] == "KEY_REUSED"
    none = await socket.ask(**{**asked, "id": "4", "acks": 0})
    assert none["problem"]["code"] == "INVALID_ARGUMENT"


# ---- groups


async def test_a_group_goes_on_behind_what_was_acknowledged(gateway: Gateway, producer: comet.Producer) -> None:
    await (await producer.send_many("one", [f"{number}" for number in range(6)], partition=0))
    async with gateway.socket() as first:
        told = await first.subscribe("g", "one", group="engine", start="earliest", permits=4)
        assert told["group"] == "engine" and told["member"]
        assert (await first.until("assigned"))["partitions"] == [{"topic": "one", "partition": 0}]
        frames: list[dict[str, Any]] = []
        while sum(len(frame["records"]) for frame in frames) < 2:
            frames.append(await first.until("records"))
        acked = await first.ask(type="ack", id="g", cursor=frames[0]["cursor"])
        assert (acked["type"], acked["of"], acked["cursor"]) == ("acked", "ack", frames[0]["cursor"])
        behind = len(frames[0]["records"])
        too_far = frames[0]["cursor"].rpartition(".")[0] + ".0-6"
        if behind < 6:
            assert (await first.ask(type="ack", id="g", cursor=too_far))["problem"]["code"] == "INVALID_ARGUMENT"
        assert (await first.ask(type="ack", id="g", cursor="c1"))["problem"]["code"] == "MALFORMED_CURSOR"
    async with gateway.socket() as second:
        await second.subscribe("g", "one", group="engine")
        assert texts(await second.records("g", 6 - behind))[0] == f"{behind}"


async def test_without_a_word_nothing_is_committed_and_with_auto_what_was_delivered_before(
    gateway: Gateway, producer: comet.Producer
) -> None:
    for number in range(3):
        await producer.publish("one", f"{number}")
    for _ in range(2):
        async with gateway.socket() as one:
            await one.subscribe("g", "one", group="manual", start="earliest")
            assert texts(await one.records("g", 3)) == ["0", "1", "2"]
    async with gateway.socket() as one:
        await one.subscribe("g", "one", group={"name": "auto", "auto": True}, start="earliest")
        assert texts(await one.records("g", 3)) == ["0", "1", "2"]
        await producer.publish("one", "3")
        assert texts(await one.records("g", 1)) == ["3"]
        assert (await one.ask(type="unsubscribe", id="g"))["reason"] == "unsubscribed"
    async with comet.Admin(gateway.broker) as admin:
        (lag,) = (await admin.describe_group("auto")).lags
    assert lag.committed in {3, 4}  # the last delivery may be one that the client never saw


async def test_members_share_the_partitions_and_hear_of_it(gateway: Gateway, producer: comet.Producer) -> None:
    async with gateway.socket() as first, gateway.socket() as second:
        await first.subscribe("g", "two", group="engine", start="earliest")
        assert len((await first.until("assigned"))["partitions"]) == 2
        await producer.publish("two", "before", partition=0)
        frame = await first.until("records")
        await first.ask(type="ack", id="g", cursor=frame["cursor"])
        await second.subscribe("g", "two", group="engine")
        (given,) = (await second.until("assigned"))["partitions"]
        revoked = await first.until("revoked")
        assert revoked["partitions"] == [given] and revoked["lost"] is False
        kept = 1 - given["partition"]
        await producer.publish("two", "for the second", partition=given["partition"])
        await producer.publish("two", "for the first", partition=kept)
        assert texts(await second.records("g", 1)) == ["for the second"]
        assert texts(await first.records("g", 1)) == ["for the first"]


async def test_a_shared_group_gives_records_one_by_one(gateway: Gateway, producer: comet.Producer) -> None:
    group = {"name": "work", "kind": "share", "lock_ms": 60_000, "deliveries_max": 3}
    async with gateway.socket() as first, gateway.socket() as second:
        await first.subscribe("s", "one", group=group, start="earliest")
        for number in range(4):
            await producer.publish("one", f"{number}")
        got = await first.records("s", 4)
        assert [record["delivery_count"] for record in got] == [1] * 4
        ids = [{"partition": 0, "offset": record["offset"]} for record in got]
        acked = await first.ask(type="ack", id="s", records=ids[:1])
        assert acked["results"] == [{"topic": "one", "partition": 0, "offset": "0"}]
        again = await first.ask(type="ack", id="s", records=ids[:1])
        assert again["results"][0]["problem"]["code"] == "LOCK_EXPIRED"
        assert (await first.ask(type="extend", id="s", records=ids[1:2]))["of"] == "extend"
        assert (await first.ask(type="reject", id="s", records=ids[1:2], reason="odd"))["of"] == "reject"
        await first.ask(type="nack", id="s", records=ids[2:3])
        (back,) = await first.records("s", 1)
        assert (back["offset"], back["delivery_count"]) == ("2", 2)
        # What is in hand when a member goes is another's at once.
        await second.subscribe("s", "one", group=group)
        await first.connection.close()
        left = await second.records("s", 2)
        assert {record["offset"] for record in left} == {"2", "3"}
    async with comet.Admin(gateway.broker) as admin:
        info = await admin.describe_group("work")
    assert info.summary.kind == "share"


# ---- replay


async def test_a_replay_is_merged_by_time_and_steered(
    socket: Socket, producer: comet.Producer, gateway: Gateway
) -> None:
    begin_us = 1_700_000_000_000_000
    for number in range(20):
        at_us = begin_us + number * 1_000_000
        await producer.publish("two", f"{number}", partition=(number // 3) % 2, timestamp_us=at_us)
    window = {"from": "2023-11-14T22:13:25Z", "to": "2023-11-14T22:13:35Z", "speed": 0}  # seconds 5 to 15
    await socket.subscribe("r", "two", replay=window)
    assert texts(await socket.records("r", 10)) == [f"{number}" for number in range(5, 15)]
    end = await socket.until("end", id="r")
    assert end["reason"] == "replayed"
    # Its cursor is where the window ends: a subscription goes on from there.
    await socket.subscribe("on", "two", cursor=end["cursor"])
    assert sorted(texts(await socket.records("on", 5)), key=int) == ["15", "16", "17", "18", "19"]
    await socket.subscribe("p", "two", replay={**window, "speed": 1, "paused": True})
    await socket.say(type="replay", id="p", action="step", count=2)
    assert texts(await socket.records("p", 2)) == ["5", "6"]
    await socket.say(type="replay", id="p", action="speed", speed=1000)
    await socket.say(type="replay", id="p", action="resume")
    assert texts(await socket.records("p", 8))[-1] == "14"
    await socket.until("end", id="p")
    async with comet.Admin(gateway.broker) as admin:
        assert await admin.list_groups() == []


# ---- manners


async def test_errors_say_what_they_answer_and_end_nothing(socket: Socket, producer: comet.Producer) -> None:
    await socket.subscribe("a", "one")
    for text in ("no JSON", "[]", '{"type":"odd","id":"x"}', '{"type":"permit","id":"a","count":-1}'):
        await socket.connection.send(text)
        assert (await socket.until("error"))["problem"]["code"] == "MALFORMED_FRAME"
    assert (await socket.ask(type="permit", id="a", count=1))["problem"]["code"] == "INVALID_ARGUMENT"
    assert (await socket.ask(type="unsubscribe", id="b"))["problem"]["code"] == "SUBSCRIPTION_NOT_FOUND"
    await producer.publish("one", "x")
    assert texts(await socket.records("a", 1)) == ["x"]


@pytest.mark.parametrize(("sent", "code"), [(b"binary", 1003), ("x" * (1 << 20) + "x", 1009), ("odd", None)])
async def test_what_ends_a_connection_has_its_code(gateway: Gateway, sent: Any, code: int | None) -> None:
    async with gateway.socket() as one:
        for _ in range(1 if code else 101):
            await one.connection.send(sent)
        assert await one.closed() == (code or 1008)


async def test_who_asks_for_nothing_is_sent_away() -> None:
    async with live_gateway(["one"], limits=small(handshake_s=0.05)) as gateway, gateway.socket() as one:
        assert await one.closed() == 4408


async def test_a_page_of_another_origin_is_refused_before_it_is_connected(gateway: Gateway) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with websockets.connect(gateway.ws, origin=websockets.Origin("https://evil.example")):
            pass
    assert refused.value.response.status_code == 403
    assert json.loads(refused.value.response.body)["code"] == "FOREIGN_ORIGIN"
    own = websockets.Origin(gateway.url)
    async with gateway.socket(origin=own, subprotocols=[websockets.Subprotocol("comet.v1")]) as one:
        assert one.connection.subprotocol == "comet.v1"


async def test_a_client_that_does_not_read_costs_its_cursor_and_gets_everything_later(
    gateway: Gateway, producer: comet.Producer
) -> None:
    async with gateway.socket(max_queue=1) as slow, gateway.socket() as quick:
        await slow.subscribe("a", "one")
        await quick.subscribe("a", "one")
        # More than what TCP takes, so that the gateway has to stop writing to the one that does not read.
        values = [bytes([97 + number % 26]) * 10_000 for number in range(2_000)]
        sending = asyncio.create_task(_send(producer, values))
        assert [record["text"][0] for record in await quick.records("a", len(values))] == [chr(v[0]) for v in values]
        await sending
        got = await slow.records("a", len(values))
        assert [int(record["offset"]) for record in got] == list(range(len(values)))


async def _send(producer: comet.Producer, values: list[bytes]) -> None:
    for at in range(0, len(values), 100):
        await (await producer.send_many("one", values[at : at + 100]))


async def test_a_gateway_that_stops_tells_its_clients_to_move(gateway: Gateway) -> None:
    async with gateway.socket() as first, gateway.socket() as second:
        await first.subscribe("a", "one")
        await second.subscribe("g", "one", group="engine")
        gateway.server.stop()
        for one in (first, second):
            assert await one.closed() == 1012
            (goaway,) = [frame for frame in one.heard if frame["type"] == "goaway"]
            assert 0 <= goaway["reconnect_ms"] <= 2_000
    async with comet.Admin(gateway.broker) as admin:
        assert (await admin.describe_group("engine")).members == ()


async def test_nothing_is_left_of_connections_that_are_gone(gateway: Gateway, producer: comet.Producer) -> None:
    state = gateway.server.app.state
    for _ in range(3):
        async with gateway.socket() as one:
            await one.subscribe("a", "one")
            await one.subscribe("g", "two", group="engine")
            await one.subscribe("s", "other", group={"name": "work", "kind": "share"})
            await one.subscribe("r", "one", replay={"paused": True})
            await one.say(type="produce", id="p", topic="one", record={"text": "x"})
            one.connection.transport.abort()
    nothing = {"connections": 0, "subscriptions": 0, "members": 0, "replays": 0}
    assert await until(lambda: state.connections.statistics() == nothing, within_s=PATIENCE_S)
    assert await until(lambda: state.hub.statistics()["subscriptions"] == 0, within_s=PATIENCE_S)
    assert await until(lambda: state.traffic.statistics()["sockets"] == 0, within_s=PATIENCE_S)


async def test_the_schema_is_served(gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S) as http:
        answer = await http.get("/v1/ws/schema")
    assert answer.status_code == 200 and "ClientFrame" in answer.json()["$defs"]
