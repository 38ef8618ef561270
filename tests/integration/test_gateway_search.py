"""Searching over HTTP: what is found, in which order, how far it goes, how it is gone on with, how it is stopped."""

from __future__ import annotations

import asyncio
import gc
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from time import thread_time
from typing import Any

import httpx
import pytest

import comet
import comet.testing
from comet.encryption.envelope import MAGIC
from comet.errors import CometError
from comet_gateway.brokers.backend import Backend
from comet_gateway.config import GatewayConfig
from comet_gateway.dashboard.channel_session import ChannelSession
from comet_gateway.dashboard.channels import CHANNELS
from comet_gateway.http.auth import UNRESTRICTED
from comet_gateway.http.problems import Problem
from comet_gateway.records.merge import Order
from comet_gateway.search.scan import Budget, Scan
from comet_gateway.search.selection import Selection, located
from comet_gateway.search.slots import Slots
from tests.integration.gateway_http import Wire, gateway
from tests.integration.records_client import http, lines_of, problem_of

__all__ = ["http"]  # a fixture

SEARCH = "/v1/topics/wide/search"
SECOND = 1_000_000


@pytest.fixture
async def broker() -> AsyncIterator[comet.testing.TestBroker]:
    async with comet.testing.broker({"quotes": 1, "wide": 3, "empty": 2}) as one:
        yield one


@pytest.fixture
async def producer(broker: comet.testing.TestBroker) -> AsyncIterator[comet.Producer]:
    async with comet.Producer(broker.address) as one:
        yield one


@pytest.fixture
async def spread(producer: comet.Producer) -> None:
    """Sixty trades, one a second, over three partitions in turn."""
    for number in range(60):
        value = {"n": number, "side": ("buy", "sell")[number % 2], "legs": [{"size": number % 7}], "note": "Ünder €"}
        await producer.send(
            "wide", json.dumps(value, ensure_ascii=False).encode(), key=f"Key-{number % 5}", partition=number % 3,
            timestamp_us=number * SECOND, headers={"source": f"desk {number % 4}"},
        )  # fmt: skip
    await producer.flush()


async def search(http: httpx.AsyncClient, path: str = SEARCH, **query: Any) -> tuple[list[Any], dict[str, Any]]:
    """The records, and what was said last."""
    lines = lines_of(await http.get(path, params=query))
    *_, last = lines
    assert [*last] == ["end"], last
    return [line["record"] for line in lines if "record" in line], last["end"]


def numbers(records: list[Any]) -> list[int]:
    return [record["value"]["n"] for record in records]


FOUND: list[tuple[dict[str, Any], list[int]]] = [
    ({}, list(range(60))),
    ({"key": "KEY-3"}, list(range(3, 60, 5))),
    ({"value": "ünder €", "key": "key-0"}, list(range(0, 60, 5))),
    ({"header": "Source: desk 1"}, list(range(1, 60, 4))),
    ({"filter": "n>=57"}, [57, 58, 59]),
    ({"filter": ["side=sell", "legs.size=3"]}, [number for number in range(1, 60, 2) if number % 7 == 3]),
    ({"filter": "side=sell && legs.size=3"}, [number for number in range(1, 60, 2) if number % 7 == 3]),
    ({"filter": "exists(other)"}, []),
    ({"partitions": "1", "filter": "n<10"}, [1, 4, 7]),
    ({"start": "1970-01-01T00:00:10Z", "end": "1970-01-01T00:00:13Z"}, [10, 11, 12]),
    ({"partitions": "2", "start": "3", "end": "5"}, [11, 14]),
    ({"start": "latest"}, []),
]


async def test_an_encrypted_value_is_named_so_and_no_filter_of_values_finds_it(
    broker: comet.testing.TestBroker, http: httpx.AsyncClient, producer: comet.Producer
) -> None:
    keyring = comet.Keyring({"key-2026": bytes(32)})
    async with comet.Producer(broker.address, encryption=keyring) as encrypting:
        await encrypting.publish("quotes", {"note": "key-2026"}, key="sealed")
    await producer.publish("quotes", {"note": "key-2026"}, key="clear")
    await producer.publish("quotes", b"\xffCE\x01\xff", key="bytes")
    path = "/v1/topics/quotes/partitions/0/records"
    for values in ("auto", "text", "base64"):
        sealed, clear, other = (await http.get(path, params={"offset": "0", "values": values})).json()["records"]
        assert sealed["encrypted"] == "key-2026"
        assert b64decode(sealed["base64"]).startswith(MAGIC)
        assert not sealed.keys() & {"value", "text"}
        assert "encrypted" not in clear and "encrypted" not in other and "base64" in other
    searched = "/v1/topics/quotes/search"
    for query in ({"value": "key-2026"}, {"filter": "exists(note)"}):
        assert [one["key"] for one in (await search(http, searched, **query))[0]] == ["clear"]
    (found,), _ = await search(http, searched, key="sealed")
    assert found["encrypted"] == "key-2026"


@pytest.mark.parametrize("order", ["oldest", "newest"])
async def test_what_is_asked_for_is_found(http: httpx.AsyncClient, spread: None, order: str) -> None:
    for query, expected in FOUND:
        found, end = await search(http, order=order, **query)
        assert numbers(found) == (expected if order == "oldest" else expected[::-1]), query
        assert (end["reason"], end["matched"], end["left"]) == ("end", str(len(expected)), "0"), query
        assert int(end["scanned"]) <= int(end["of"]) <= 60, query


@pytest.fixture
async def tangled(producer: comet.Producer) -> None:
    """Times that go back, and are the same, within one partition and between them."""
    for number in range(60):
        value = b'{"n":%d,"side":"%b","size":%d}' % (number, (b"buy", b"sell")[number % 2], number % 7)
        await producer.send("wide", value, partition=number * 7 % 3, timestamp_us=(number ^ 2) // 3 * SECOND)
    await producer.flush()


@pytest.mark.parametrize("order", ["oldest", "newest"])
async def test_a_search_goes_on_where_the_one_before_ended(http: httpx.AsyncClient, tangled: None, order: str) -> None:
    for limit in (3, 25):
        for where in ("n>=0", "size=2", "side=buy"):
            whole, _ = await search(http, order=order, filter=where, limit=1000)
            parts: list[Any] = []
            query: dict[str, Any] = {"order": order, "filter": where, "limit": limit}
            while True:
                found, end = await search(http, **query)
                assert len(found) <= limit
                parts += found
                if end["reason"] == "end":
                    break
                query["cursor"] = end["cursor"]
            assert sorted(numbers(parts)) == sorted(numbers(whole)), (limit, where)
            for partition in range(3):
                offsets = [int(one["offset"]) for one in parts if one["partition"] == partition]
                assert offsets == sorted(offsets, reverse=order == "newest")


async def test_a_budget_ends_it_and_what_follows_is_found_by_the_next(
    broker: comet.testing.TestBroker, producer: comet.Producer
) -> None:
    batch = [b'{"n":%d}' % number for number in range(30_000)]
    await (await producer.send_many("quotes", batch))
    path = "/v1/topics/quotes/search"
    async with gateway(broker.address, search_records_max=5_000) as http:
        found, end = await search(http, path, filter="n=29999")
        assert (found, end["reason"]) == ([], "budget")
        assert 5_000 <= int(end["scanned"]) < 15_000
        assert int(end["left"]) == 30_000 - int(end["scanned"])
        rounds = 1
        while end["reason"] == "budget":
            found, end = await search(http, path, filter="n=29999", cursor=end["cursor"])
            rounds += 1
        assert numbers(found) == [29_999]
        assert 2 <= rounds <= 6
        found, end = await search(http, path, filter="n=29999", order="newest", limit=1)
        assert (numbers(found), end["reason"]) == ([29_999], "limit")
        assert int(end["scanned"]) < 10_000


async def test_progress_is_told_while_nothing_is_found(http: httpx.AsyncClient, spread: None) -> None:
    lines = lines_of(await http.get(SEARCH, params={"key": "nobody"}))
    told = [line["progress"] for line in lines if "progress" in line]
    assert told
    assert told[-1]["of"] == "60"
    assert lines[-1]["end"]["through_us"] == str(59 * SECOND)


async def test_what_makes_no_sense_is_refused(http: httpx.AsyncClient) -> None:
    refused: list[tuple[dict[str, Any], int, str]] = [
        ({"filter": "price>"}, 400, "MALFORMED_FILTER"),
        ({"order": "sideways"}, 422, "VALIDATION"),
        ({"partitions": "7"}, 404, "PARTITION_NOT_FOUND"),
        ({"start": "17"}, 400, "INVALID_ARGUMENT"),
        ({"cursor": "nonsense"}, 400, "MALFORMED_CURSOR"),
        ({"cursor": f"c1.{'0' * 32}"}, 410, "TRUNCATED"),
        ({"limit": "0"}, 422, "VALIDATION"),
        ({"colour": "red"}, 422, "VALIDATION"),
        ({"filter": ["a=1"] * 9}, 422, "VALIDATION"),
    ]
    for query, status, code in refused:
        problem_of(await http.get(SEARCH, params=query), status, code)


async def test_a_topic_that_is_not_there(http: httpx.AsyncClient) -> None:
    problem_of(await http.get("/v1/topics/nothing/search"), 404, "TOPIC_NOT_FOUND")


@pytest.mark.parametrize("order", list(Order))
async def test_a_walk_does_not_go_on_in_another_topic_that_has_the_name_now(
    broker: comet.testing.TestBroker, producer: comet.Producer, order: Order
) -> None:
    values = [b"%d" % number for number in range(5_000)]  # more than one read
    await (await producer.send_many("quotes", values, partition=0))
    async with Backend(GatewayConfig(bootstrap=broker.address)) as backend, comet.Admin(broker.address) as admin:
        info = await backend.catalog.topic("quotes")
        wanted = await located(Selection(order=order), info, backend, 1)
        walk = Scan(backend.reader, wanted, Budget(5_000, 5_000, 1 << 30, 60.0)).run()
        assert await anext(walk)
        await admin.delete_topic("quotes")
        await admin.create_topic("quotes")
        await (await producer.send_many("quotes", values, partition=0))
        with pytest.raises(Problem) as caught:
            async for _ in walk:
                pass
        assert caught.value.code == "TOPIC_NOT_FOUND"
        with pytest.raises(Problem) as caught:
            await located(Selection(order=order), info, backend, 1)
        assert caught.value.code == "TOPIC_NOT_FOUND"


async def test_an_empty_topic_is_searched_at_once(http: httpx.AsyncClient) -> None:
    found, end = await search(http, "/v1/topics/empty/search", order="newest")
    assert (found, end["reason"], end["of"]) == ([], "end", "0")


async def test_long_values_are_cut_where_a_preview_is_asked_for(
    http: httpx.AsyncClient, producer: comet.Producer
) -> None:
    await producer.publish("quotes", "ä".encode() * 1_000)
    await producer.publish("quotes", b"12345678")
    lines = lines_of(await http.get("/v1/topics/quotes/search", params={"preview": 5}))
    first, second = (line for line in lines if "record" in line)
    assert (first["record"]["text"], first["cut"], first["size"]) == ("ää", True, 2_000)
    assert (second["record"]["text"], second["size"]) == ("12345", 8)


async def test_only_so_many_are_under_way_and_who_goes_away_frees_his_place(
    broker: comet.testing.TestBroker, producer: comet.Producer
) -> None:
    for _ in range(8):
        await (await producer.send_many("quotes", [b"x" * 1_000] * 2_000))
    async with gateway(broker.address, searches_max=1) as http:
        slots = http.gateway.app.state.sources.part(Slots)  # type: ignore[attr-defined]
        wire = await Wire.open(http)
        # All of it: more than what lies between us holds, so that it is under way for as long as we do not read.
        await wire.send(b"GET /v1/topics/quotes/export?limit=16000 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await wire.head())[0] == 200
        assert slots.taken == 1
        answer = await http.get("/v1/topics/quotes/search")
        problem_of(answer, 429, "TOO_MANY_REQUESTS")
        assert "retry-after" in answer.headers
        wire.writer.transport.abort()
        async with asyncio.timeout(60):
            while slots.taken:  # noqa: ASYNC110 - the gateway runs in this loop, and tells nobody
                await asyncio.sleep(0)
        assert (await search(http, "/v1/topics/quotes/search", limit=1))[1]["reason"] == "limit"


async def test_others_have_the_loop_while_it_looks(broker: comet.testing.TestBroker, producer: comet.Producer) -> None:
    value = json.dumps({"n": 1, "fields": [{"name": f"field {number}", "size": number} for number in range(20)]})
    for _ in range(10):
        await (await producer.send_many("quotes", [value.encode()] * 2_000))
    async with gateway(broker.address) as http:
        longest, done = 0.0, False

        async def watch() -> None:
            nonlocal longest
            while not done:
                before = thread_time()  # the work of this thread alone, whatever else the machine does
                await asyncio.sleep(0)
                longest = max(longest, thread_time() - before)

        gc.disable()  # how long it takes is up to all that is in this process, from other tests, too
        try:
            watching = asyncio.create_task(watch())
            _, end = await search(http, "/v1/topics/quotes/search", filter="fields.size>100")
            done = True
            await watching
        finally:
            gc.enable()
        assert end["scanned"] == "20000"
        assert longest < 0.05


async def test_a_value_is_downloaded_as_it_is(http: httpx.AsyncClient, producer: comet.Producer) -> None:
    await producer.publish("quotes", bytes(range(256)))
    await producer.publish("quotes", None, key="k")
    answer = await http.get("/v1/topics/quotes/partitions/0/records/0/value")
    assert answer.content == bytes(range(256))
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="quotes-0-0.bin"'
    problem_of(await http.get("/v1/topics/quotes/partitions/0/records/1/value"), 404, "NOT_FOUND")
    problem_of(await http.get("/v1/topics/quotes/partitions/0/records/2/value"), 404, "NOT_FOUND")
    problem_of(await http.get("/v1/topics/quotes/partitions/0/records/9/value"), 410, "OFFSET_OUT_OF_RANGE")


# ---- the channels of the page


async def channel(http: httpx.AsyncClient, kind: str, params: dict[str, str], *said: dict[str, Any]) -> list[Any]:
    """What a channel of the page gives; `said` is what it hears before it begins."""
    sources = http.gateway.app.state.sources  # type: ignore[attr-defined]
    session = ChannelSession(sources, UNRESTRICTED)
    for one in said:
        session.deliver(one)
    return [event async for event in CHANNELS[kind].open(session, params)]


async def test_a_search_of_a_page_is_stopped_and_gone_on_with(http: httpx.AsyncClient, spread: None) -> None:
    params = {"topic": "wide", "filter": "n>=0", "start": "beginning", "limit": "50"}
    *_, last = await channel(http, "search", params, {"stop": True})
    assert last["end"]["reason"] == "stopped"
    stopped_at = last["matched"]
    found = await channel(http, "search", {**params, "cursor": last["end"]["cursor"], "limit": "1000"})
    assert found[-1]["end"]["reason"] == "end"
    assert found[-1]["share"] == 1.0
    assert sum(len(event["rows"]) for event in found) + stopped_at == 60
    assert http.gateway.app.state.sources.part(Slots).taken == 0  # type: ignore[attr-defined]


async def test_a_channel_says_what_is_wrong(http: httpx.AsyncClient) -> None:
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("search", {"topic": "nothing"}, "TOPIC_NOT_FOUND"),
        ("search", {"topic": "wide", "filter": "n>"}, "MALFORMED_FILTER"),
        ("search", {"topic": "wide", "cursor": "x"}, "MALFORMED_CURSOR"),
        ("search", {"topic": ["wide"]}, "VALIDATION"),
        ("tail", {"topic": "nothing"}, "TOPIC_NOT_FOUND"),
        ("tail", {"topic": "wide", "partition": "9"}, "PARTITION_NOT_FOUND"),
        ("tail", {"topic": "wide", "filter": "n>"}, "MALFORMED_FILTER"),
    ]
    for kind, params, code in refused:
        with pytest.raises((Problem, CometError)) as caught:
            await channel(http, kind, params)
        assert isinstance(caught.value, Problem | CometError)
        assert caught.value.code == code
