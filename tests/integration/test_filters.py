"""One filter finds the same records through every door, and a reader moves past the others."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlencode

import grpc
import httpx
import pytest

import comet
import comet.sync
from comet.filters import parse
from comet.v1 import records_pb2 as pb
from comet.v1 import records_pb2_grpc
from tests.integration.live_gateway import PATIENCE_S, Gateway, live_gateway, small
from tests.property.filter_model import Seen, says

Found = list[tuple[int, int]]  # partition and offset
COUNT = 240
FILTERS = [
    'symbol = "ACME"',
    'symbol = "ACME" && bid > 100',
    "bid > 100 or @key = k1",
    "!(symbol = ACME) and exists(legs)",
    "@key in (k1, k2) && bid <= 150",
    '@header.source ^= "desk" && @header.source != "desk 1"',
    "@tombstone || @size < 5",
    "@offset >= 20 && @partition = 1",
    "legs.size = 3 || note ~ ÜND",
    '@timestamp >= 1970-01-01T00:01:00Z && symbol.startsWith("E")',
]


def value_of(number: int) -> bytes | None:
    if number % 11 == 3:
        return None if number % 2 else b"text"
    document: dict[str, Any] = {"symbol": ("ACME", "EURUSD", "TSLA")[number % 3], "bid": number, "note": "Ünder"}
    if number % 4 == 0:
        document["legs"] = [{"size": number % 5}, {"size": number % 7}]
    return json.dumps(document, ensure_ascii=number % 2 == 0).encode()


@pytest.fixture(scope="module")
def records() -> list[Seen]:
    offsets = [0, 0]
    made = []
    for number in range(COUNT):
        partition = number % 2
        headers = (("source", b"desk %d" % (number % 3)),) if number % 5 else ()
        made.append(
            Seen(
                value_of(number), None if number % 13 == 0 else b"k%d" % (number % 4), headers, number * 1_000_000,
                offsets[partition], partition,
            )
        )  # fmt: skip
        offsets[partition] += 1
    return made


def expected(text: str, records: list[Seen]) -> Found:
    node = parse(text, now_us=0).node
    found = sorted((one.partition, one.offset) for one in records if says(node, one) is True)
    assert 0 < len(found) < len(records), text
    return found


@pytest.fixture
async def gateway(records: list[Seen]) -> AsyncIterator[Gateway]:
    async with live_gateway({"trades": 2}) as one:
        async with comet.Producer(one.broker) as producer:
            for record in records:
                await producer.send(
                    "trades", record.value, key=record.key, headers=dict(record.headers),
                    timestamp_us=record.timestamp_us, partition=record.partition,
                )  # fmt: skip
            await producer.flush()
        yield one


async def consumed(gateway: Gateway, text: str, count: int) -> Found:
    async with comet.Consumer(gateway.broker, "trades", start="earliest", filter=text) as consumer:
        found = []
        async for record in consumer:
            found.append((record.partition, record.offset))
            if len(found) == count:
                break
        await ended(consumer)
        return found


async def ended(consumer: comet.Consumer[bytes]) -> None:
    """Waits until the rest of the topic was looked at, without a match."""
    ends = {0: COUNT // 2, 1: COUNT // 2}
    while consumer.positions() != ends:
        assert await consumer.get(timeout_s=0.05) is None
    assert consumer.lag() == {0: 0, 1: 0}


async def consumed_in_batches(gateway: Gateway, text: str, count: int) -> Found:
    async with comet.Consumer(gateway.broker, "trades", start="earliest", filter=text, type=bytes) as consumer:
        found: Found = []
        async for batch in consumer.batches():
            assert (
                len(batch.values) == len(batch.keys) == len(batch.headers) == len(batch) == len(list(batch.records()))
            )
            found += [(batch.partition, offset) for offset in batch.offsets]
            if len(found) == count:
                return found
        raise AssertionError


async def consumed_as_tables(gateway: Gateway, text: str, count: int) -> Found:
    async with comet.Consumer(gateway.broker, "trades", start="earliest", filter=text) as consumer:
        found: Found = []
        async for table in consumer.arrow(wait_ms=1):
            found += zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
            if len(found) == count:
                return found
        raise AssertionError


async def as_a_member(gateway: Gateway, text: str, count: int) -> Found:
    """Reads as a member of a group. What does not match is committed, too."""
    group = f"group-{abs(hash(text))}"
    found: Found = []
    async with comet.GroupConsumer(gateway.broker, "trades", group=group, start="earliest", filter=text) as member:
        while len(found) < count:
            record = await member.get(timeout_s=PATIENCE_S)
            assert record is not None
            found.append((record.partition, record.offset))
        async with comet.Admin(gateway.broker) as admin:
            while True:
                assert await member.get(timeout_s=0.05) is None
                if [one.lag for one in (await admin.describe_group(group)).lags] == [0, 0]:
                    return found


async def synchronously(gateway: Gateway, text: str, count: int) -> Found:
    def read() -> Found:
        with comet.sync.Consumer(gateway.broker, "trades", start="earliest", filter=text) as consumer:
            found = []
            for record in consumer:
                found.append((record.partition, record.offset))
                if len(found) == count:
                    return found
        raise AssertionError

    return await asyncio.to_thread(read)


async def as_a_table(gateway: Gateway, text: str, _: int) -> Found:
    table = await comet.read(
        "trades", bootstrap=gateway.broker, filter=text, columns=["partition", "offset", "headers"]
    )
    return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


async def by_reader(gateway: Gateway, text: str, _: int) -> Found:
    """Each partition, in one direction and in the other, and both merged."""
    async with comet.Reader(gateway.broker) as reader:
        found: list[Found] = []
        for backward in (False, True):
            each: Found = []
            for partition in (0, 1):
                reading = reader.read("trades", partition, backward=backward, step_records=50, filter=text)
                async for part in reading:
                    assert isinstance(part, comet.RecordBatch)
                    each += [(partition, offset) for offset in part.offsets]
                assert reading.done and reading.left == 0
            found.append(sorted(each))
        merged = await reader.read_merged("trades", filter=text)
        ordered = [(one.partition, one.offset) async for one in merged if isinstance(one, comet.Record)]
        assert merged.records == COUNT
        assert found == [sorted(ordered), sorted(ordered)]
        return ordered


async def by_call(gateway: Gateway, text: str, _: int) -> Found:
    """Records one by one, five of them that match at a time."""
    found: Found = []
    async with grpc.aio.insecure_channel(gateway.broker) as channel:
        stub = records_pb2_grpc.CometStub(channel)
        for partition in (0, 1):
            request = pb.FetchRequest(topic="trades", partition=partition, records_max=5, filter=text)
            while True:
                answer: pb.FetchResponse = await stub.Fetch(request)
                assert len(answer.records) <= 5
                found += [(partition, record.offset) for record in answer.records]
                if answer.next_offset == answer.high_watermark:
                    break
                request.start.offset = answer.next_offset
    return found


def places(records: list[dict[str, Any]]) -> Found:
    return [(one["partition"], int(one["offset"])) for one in records]


async def by_partition(gateway: Gateway, text: str, _: int) -> Found:
    """Seven at a time, each from the cursor of the one before."""
    found: Found = []
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        for partition in (0, 1):
            query: dict[str, Any] = {"filter": text, "limit": 7}
            while True:
                got = (await http.get(f"/v1/topics/trades/partitions/{partition}/records", params=query)).json()
                assert len(got["records"]) <= 7
                found += places(got["records"])
                if got["next_offset"] == got["log_end"]:
                    break
                query["cursor"] = got["cursor"]
    return found


async def by_topic(gateway: Gateway, text: str, _: int) -> Found:
    found: Found = []
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        query: dict[str, Any] = {"filter": text, "limit": 7}
        while True:
            got = (await http.get("/v1/topics/trades/records", params=query)).json()
            assert len(got["records"]) <= 7
            found += places(got["records"])
            if not got["more"]:
                return found
            query["cursor"] = got["cursor"]


async def by_search(gateway: Gateway, text: str, _: int) -> Found:
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        answer = await http.get("/v1/topics/trades/search", params={"filter": text, "limit": 1_000})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    return places([line["record"] for line in lines if "record" in line])


async def by_events(gateway: Gateway, text: str, count: int) -> Found:
    async with gateway.stream(f"trades/stream?{urlencode({'filter': text, 'start': 'earliest'})}") as stream:
        await stream.next()
        return places([record for _, record in await stream.records(count)])


async def by_socket(gateway: Gateway, text: str, count: int) -> Found:
    async with gateway.socket() as socket:
        await socket.subscribe("s", "trades", start="earliest", filter=text)
        return places(await socket.records("s", count))


async def by_member_of_the_gateway(gateway: Gateway, text: str, count: int) -> Found:
    async with gateway.socket() as socket:
        group = {"name": f"ws-{abs(hash(text))}"}
        await socket.say(type="subscribe", id="g", topic="trades", start="earliest", filter=text, group=group)
        return places(await socket.records("g", count))


async def by_page(gateway: Gateway, text: str, _: int) -> Found:
    """The page of records, which has 1000 at most."""
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        page = await http.get("/topics/trades/records", params={"filter": text, "start": "beginning", "limit": 1000})
    return [(int(partition), int(offset)) for partition, offset in re.findall(r'data-key="(\d+)-(\d+)"', page.text)]


async def by_command(gateway: Gateway, text: str, _: int) -> Found:
    words = ("consume", "trades", "--no-follow", "--filter", text, "--json")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "comet.cli", *words,
        stdout=asyncio.subprocess.PIPE, env=os.environ | {"COMET_BOOTSTRAP": gateway.broker},
    )  # fmt: skip
    out, _err = await process.communicate()
    assert process.returncode == 0
    return places([json.loads(line) for line in out.splitlines()])


async def by_replayed_events(gateway: Gateway, text: str, count: int) -> Found:
    query = urlencode({"filter": text, "from": "earliest", "speed": 0})
    async with gateway.stream(f"trades/stream?{query}") as stream:
        await stream.next()
        found = places([record for _, record in await stream.records(count)])
        while (event := await stream.next())[0] != "end":
            assert event[0] == ""
        return found


async def by_replay(gateway: Gateway, text: str, count: int) -> Found:
    async with gateway.socket() as socket:
        await socket.subscribe("r", "trades", filter=text, replay={"from": "earliest", "to": "latest", "speed": 0})
        found = places(await socket.records("r", count))
        await socket.until("end", id="r")
        return found


Door = Callable[[Gateway, str, int], Awaitable[Found]]
DOORS: list[Door] = [
    consumed, consumed_in_batches, consumed_as_tables, as_a_member, synchronously, as_a_table, by_reader, by_call,
    by_partition, by_topic, by_search, by_events, by_socket, by_replayed_events, by_replay,
    by_member_of_the_gateway, by_page, by_command,
]  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
async def test_ten_filters_find_the_same_records_through_each_door(
    door: Door, gateway: Gateway, records: list[Seen]
) -> None:
    for text in FILTERS:
        wanted = expected(text, records)
        async with asyncio.timeout(PATIENCE_S):
            assert sorted(await door(gateway, text, len(wanted))) == wanted, text


async def test_a_malformed_filter_is_refused_with_its_place_at_each_door(gateway: Gateway) -> None:
    wrong = "bid >"
    for kind in (comet.ConsumerOptions, comet.GroupOptions):
        with pytest.raises(comet.MalformedFilter, match="at character 6"):
            kind(filter=wrong)
    with pytest.raises(comet.MalformedFilter):
        comet.sync.Consumer(gateway.broker, "trades", filter=wrong)
    with pytest.raises(comet.MalformedFilter):
        comet.read("trades", filter=wrong)
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        for path in ("partitions/0/records", "records", "search", "export", "stream"):
            answer = await http.get(f"/v1/topics/trades/{path}", params={"filter": wrong})
            assert (answer.status_code, answer.json()["code"]) == (400, "MALFORMED_FILTER"), path
            assert answer.json()["position"] == len(wrong)
        page = await http.get("/topics/trades/records", params={"filter": wrong})
        assert "filter, at character 6: the operand is missing" in page.text
    async with gateway.socket() as socket:
        for id_, more in (("s", {}), ("g", {"group": "g"})):
            told = await socket.ask(type="subscribe", id=id_, topic="trades", filter=wrong, **more)
            assert (told["type"], told["problem"]["code"]) == ("error", "MALFORMED_FILTER")


async def test_a_filter_is_refused_where_it_could_not_be_kept(gateway: Gateway) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"group": {"name": "g", "kind": "share"}, "permits": 5}, "a share group takes"),
    ]
    async with gateway.socket() as socket:
        for id_, (more, said) in enumerate(cases):
            told = await socket.ask(type="subscribe", id=f"s{id_}", topic="trades", filter="bid > 1", **more)
            assert told["type"] == "error" and said in told["problem"]["detail"], told


async def put(producer: comet.Producer, *records: tuple[str, int | None]) -> None:
    for key, number in records:
        await producer.publish("many", None if number is None else b"%d" % number, key=key)


async def test_a_snapshot_has_the_keys_whose_latest_record_matches() -> None:
    async with live_gateway({"many": 1}) as gateway, comet.Producer(gateway.broker) as producer:
        await put(producer, ("a", 1), ("b", 20), ("c", 30), ("c", 3), ("d", 4), ("d", 40), ("e", 50), ("e", None))
        path = f"many/stream?{urlencode({'filter': '$ >= 10', 'snapshot': 'latest'})}"
        async with gateway.socket() as socket, gateway.stream(path) as stream:
            for id_, policy in (("s", "block"), ("c", "conflate")):
                more = {"policy": policy, "filter": "$ >= 10", "snapshot": "latest", "interval_ms": 10}
                await socket.subscribe(id_, "many", **more)
                first = await socket.until("snapshot", id=id_)
                assert [(one["key"], one["value"]) for one in first["records"]] == [("b", 20), ("d", 40)]
                assert first["complete"] and first["last"]
            assert (await stream.next())[0] == "subscribed"
            name, fields = await stream.next()
            assert name == "snapshot" and [one["value"] for one in fields["records"]] == [20, 40]
            await put(producer, ("b", 2), ("a", 10))
            assert [one["value"] for _, one in await stream.records(1)] == [10]
            found = await socket.until("records", id="s")
            latest = await socket.until("latest", id="c")
            assert [one["value"] for one in found["records"] + latest["records"]] == [10, 10]
            await socket.subscribe("again", "many", policy="conflate", filter="$ >= 10", cursor=first["cursor"])
            again: list[Any] = []
            while not again:  # the shared snapshot may be the one from before
                again = (await socket.until("latest", id="again"))["records"]
            assert [one["value"] for one in again] == [10]


async def test_conflation_sends_the_latest_record_of_each_key_that_matches() -> None:
    async with (
        live_gateway({"many": 1}) as gateway,
        comet.Producer(gateway.broker) as producer,
        gateway.socket() as socket,
    ):
        await socket.subscribe("c", "many", policy="conflate", filter="$ >= 10", interval_ms=10, permits=0)
        await put(producer, ("a", 10), ("b", 20), ("a", 11), ("a", 1), ("b", 2), ("c", 3), ("b", None))
        await socket.subscribe("s", "many", filter="$ = 99")
        await put(producer, ("z", 99))
        await socket.until("records", id="s")
        await socket.say(type="permit", id="c", count=10)
        told = await socket.until("latest", id="c")
        assert [one["value"] for one in told["records"]] == [20, 11, 99]
        assert told["conflated"] == 1


async def test_a_conflating_client_moves_past_many_records_that_do_not_match() -> None:
    async with (
        live_gateway({"many": 1}) as gateway,
        comet.Producer(gateway.broker) as producer,
        gateway.socket() as socket,
    ):
        await socket.subscribe("c", "many", policy="conflate", filter="$ = 1", interval_ms=10)
        await (await producer.send_many("many", [b"0"] * 30_000))
        told = await socket.until("latest", id="c")
        assert told["records"] == [] and told["conflated"] == 0
        resumed = int(told["cursor"].rpartition(".")[2].split("-")[1])
        assert 10_000 <= resumed <= 30_000


async def test_a_subscriber_moves_past_many_records_that_do_not_match() -> None:
    async with live_gateway({"many": 1}) as gateway:
        path = f"many/stream?{urlencode({'filter': 'n = 1'})}"
        async with (
            comet.Producer(gateway.broker) as producer,
            gateway.socket() as socket,
            gateway.stream(path) as stream,
        ):
            begun = await socket.subscribe("s", "many", filter="n = 1")
            assert (await stream.next())[0] == "subscribed"
            await (await producer.send_many("many", [b'{"n": 0}'] * 30_000))
            frame = await socket.until("records", id="s")
            assert frame["records"] == [] and frame["cursor"] != begun["cursor"]
            resumed = int(frame["cursor"].rpartition(".")[2].split("-")[1])
            assert 10_000 <= resumed <= 30_000
            await producer.publish("many", b'{"n": 1}')
            found = await stream.records(1)
            assert found[0][1]["offset"] == "30000"
            last = await socket.until("records", id="s", records=[found[0][1]])
            await socket.say(type="unsubscribe", id="s")
            told = await socket.subscribe("t", "many", filter="n = 1", cursor=frame["cursor"])
            assert told["recovered"] is True
            again = await socket.until("records", id="t", records=[found[0][1]])
            assert again["cursor"] == last["cursor"]


async def test_an_event_without_a_record_has_an_id_alone() -> None:
    """A browser keeps the id, and dispatches nothing."""
    async with live_gateway({"many": 1}, limits=small(delivery_bytes=1 << 20)) as gateway:
        async with comet.Producer(gateway.broker) as producer:
            await (await producer.send_many("many", [b'{"n": 0}'] * 30_000))
        path = f"many/stream?{urlencode({'filter': 'n = 1', 'start': 'earliest'})}"
        async with gateway.stream(path) as stream:
            lines = stream.answer.aiter_lines()
            async with asyncio.timeout(PATIENCE_S):
                while not re.fullmatch(r"id: c1\.[0-9a-f]{32}\.0-\d{5}-\d+", await anext(lines)):
                    pass
                assert await anext(lines) == ""


async def test_a_partition_is_read_in_requests_of_bounded_work() -> None:
    async with live_gateway({"many": 1}, limits=small(records_max=1_000)) as gateway:
        async with comet.Producer(gateway.broker) as producer:
            for _ in range(3):
                await (await producer.send_many("many", [b'{"n": %d}' % n for n in range(1_000)]))
        async with httpx.AsyncClient(base_url=gateway.url) as http:
            for path in ("/v1/topics/many/partitions/0/records", "/v1/topics/many/records"):
                query, requests, found = {"filter": "n = 999"}, 0, []
                while True:
                    got = (await http.get(path, params=query)).json()
                    requests += 1
                    found += places(got["records"])
                    if not got.get("more", got.get("next_offset") != got.get("log_end")):
                        break
                    query["cursor"] = got["cursor"]
                assert found == [(0, 999), (0, 1_999), (0, 2_999)]
                assert 3 <= requests <= 6
