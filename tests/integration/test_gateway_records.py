"""Writing records over HTTP: each form, each way to go wrong, clients that misbehave; and what goes in comes out."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import comet
import comet.testing
from comet.wire.grpc_channel import GrpcChannel
from comet_gateway.config import MIB
from tests.integration.gateway_http import NDJSON, Wire, gateway
from tests.integration.records_client import TOPIC, broker, http, problem_of, stored
from tests.link import Link

__all__ = ["broker", "http"]  # fixtures


# ---- documents


async def test_one_record_is_written(broker: comet.testing.TestBroker, http: httpx.AsyncClient) -> None:
    answer = await http.post(
        TOPIC, content=b'{"key":"EURUSD","value":{"bid": 1.10}}', headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.json()) == (200, {"results": [{"partition": 0, "offset": "0"}]})
    assert answer.headers["cache-control"] == "no-store"
    [record] = await stored(broker)
    assert (record.key, record.value) == (b"EURUSD", b'{"bid": 1.10}')


async def test_many_records_are_written_in_their_order(
    broker: comet.testing.TestBroker, http: httpx.AsyncClient
) -> None:
    count = 1000
    said = [
        {"key": f"k{number % 7}", "value": number, "headers": {"n": str(number)}, "timestamp_us": str(number)}
        for number in range(count)
    ]
    answer = await http.post("/v1/topics/wide/records", json={"records": said}, params={"acks": "all"})
    assert answer.status_code == 200
    results = answer.json()["results"]
    found = {
        (str(partition), str(record.offset)): record
        for partition in range(4)
        for record in await stored(broker, "wide", partition)
    }
    assert len(found) == count
    for number, result in enumerate(results):
        record = found[str(result["partition"]), result["offset"]]
        assert (record.value, record.headers, record.timestamp_us) == (b"%d" % number, [("n", b"%d" % number)], number)
        assert record.key == b"k%d" % (number % 7)
        assert result["partition"] == comet.records.partition_for(record.key, 4)


async def test_a_partition_can_be_chosen(broker: comet.testing.TestBroker, http: httpx.AsyncClient) -> None:
    for count in (4, 100):
        said = [{"value": number, "partition": 3 - number % 4, "key": "same"} for number in range(count)]
        results = (await http.post("/v1/topics/wide/records", json={"records": said})).json()["results"]
        assert [result["partition"] for result in results] == [one["partition"] for one in said]


async def test_acks_0_asks_nobody(broker: comet.testing.TestBroker, http: httpx.AsyncClient) -> None:
    for count in (1, 100):
        answer = await http.post(TOPIC, json={"records": [{"value": 1}] * count}, params={"acks": "0"})
        assert (answer.status_code, answer.json()) == (202, {"results": [{"partition": 0}] * count})


@pytest.mark.parametrize("count", [3, 300])
async def test_one_that_fails_leaves_the_others_be(
    broker: comet.testing.TestBroker, http: httpx.AsyncClient, count: int
) -> None:
    said: list[Any] = [{"value": number, "partition": 0} for number in range(count)]
    said[1] = {"text": "x" * ((1 << 20) + 1)}
    said[2] = {"value": 1, "partition": 9}
    answer = await http.post(TOPIC, json={"records": said})
    assert answer.status_code == 207
    results = answer.json()["results"]
    assert len(results) == count
    assert [result.get("problem", {}).get("code") for result in results[:3]] == [
        None,
        "RECORD_TOO_LARGE",
        "PARTITION_NOT_FOUND",
    ]
    assert results[1]["problem"]["status"] == 413
    assert [result["offset"] for result in [results[0], *results[3:]]] == [str(offset) for offset in range(count - 2)]
    assert [record.value for record in await stored(broker)] == [
        b"%d" % number for number in range(count) if number not in (1, 2)
    ]


async def test_records_meet_a_topic_as_it_was_changed_a_moment_ago(http: httpx.AsyncClient) -> None:
    topic = "/v1/topics/trades"

    async def written() -> int:
        said = [{"value": 1, "partition": 0}] * 20  # so many that the topic is looked up
        return (await http.post(f"{topic}/records", json={"records": said})).status_code

    async def partitions() -> int:
        return len((await http.get(f"{topic}/records")).json()["partitions"])

    await http.post("/v1/topics", json={"name": "trades"})
    assert await written() == 200
    assert await partitions() == 1
    await http.post(f"{topic}/partitions", json={"total": 2})
    assert await partitions() == 2
    await http.delete(topic)
    assert await written() == 404
    await http.post("/v1/topics", json={"name": "trades", "partitions": 3})
    assert await written() == 200
    assert await partitions() == 3


async def test_all_that_fail_for_one_reason_are_one_problem(http: httpx.AsyncClient) -> None:
    for count in (1, 2, 100):
        answer = await http.post(TOPIC, json={"records": [{"value": 1, "partition": 9}] * count})
        problem_of(answer, 404, "PARTITION_NOT_FOUND")


@pytest.mark.parametrize("count", [1, 100])
async def test_a_topic_is_not_made_by_writing(
    broker: comet.testing.TestBroker, http: httpx.AsyncClient, count: int
) -> None:
    records = {"records": [{"value": 1}] * count}
    problem_of(await http.post("/v1/topics/other/records", json=records), 404, "TOPIC_NOT_FOUND")
    problem_of(await http.post("/v1/topics/a%20b/records", json=records), 400, "INVALID_ARGUMENT")
    async with comet.Admin(broker.address) as admin:
        assert {topic.name for topic in await admin.list_topics()} == {"quotes", "wide"}
        # One that is made now is there at once.
        await admin.create_topic("other")
    assert (await http.post("/v1/topics/other/records", json=records)).status_code == 200


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b'{"value":1', {}, 400, "MALFORMED_BODY"),
        (b"", {}, 400, "MALFORMED_BODY"),
        (b'{"value":1,"value":2}', {}, 422, "VALIDATION"),
        (b'{"records":[]}', {}, 422, "VALIDATION"),
        (b'{"value":1}', {"content-type": "text/plain"}, 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b'{"value":1}', {"content-encoding": "br"}, 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b'{"value":1}', {"content-encoding": "gzip"}, 400, "MALFORMED_BODY"),
        (b'{"value":1}', {"content-encoding": "zstd"}, 400, "MALFORMED_BODY"),
        (b'{"value":1}', {"idempotency-key": "a b"}, 400, "INVALID_ARGUMENT"),
        (b'{"value":1}', {"idempotency-key": "x" * 201}, 400, "INVALID_ARGUMENT"),
        (b'{"value":1}\n', {"idempotency-key": "x", "content-type": NDJSON}, 400, "INVALID_ARGUMENT"),
    ],
)
async def test_what_is_wrong_is_said_and_nothing_is_written(
    broker: comet.testing.TestBroker,
    http: httpx.AsyncClient,
    content: bytes,
    headers: dict[str, str],
    status: int,
    code: str,
) -> None:
    answer = await http.post(TOPIC, content=content, headers={"content-type": "application/json"} | headers)
    problem_of(answer, status, code)
    assert await stored(broker) == []


@pytest.mark.parametrize(
    "query", [{"acks": "2"}, {"acks": ""}, {"timeout_ms": "0"}, {"timeout_ms": "60001"}, {"timeout_ms": "1e3"}]
)
async def test_the_query_is_checked(http: httpx.AsyncClient, query: dict[str, str]) -> None:
    problem = problem_of(await http.post(TOPIC, json={"value": 1}, params=query), 422, "VALIDATION")
    assert next(iter(query)) in problem["detail"]


async def test_bodies_and_documents_have_limits(broker: comet.testing.TestBroker) -> None:
    async with gateway(broker.address, records_max=10, body_bytes_max=2000, unpacked_bytes_max=3000) as http:
        assert (await http.post(TOPIC, json={"records": [{"value": 1}] * 10})).status_code == 200
        problem_of(await http.post(TOPIC, json={"records": [{"value": 1}] * 11}), 413, "BODY_TOO_LARGE")
        problem_of(await http.post(TOPIC, json={"text": "x" * 2000}), 413, "BODY_TOO_LARGE")
        for pack in (gzip.compress, zstandard.compress):
            encoding = {
                "content-encoding": "gzip" if pack is gzip.compress else "zstd",
                "content-type": "application/json",
            }
            for size, status in ((2500, 200), (3100, 413), (10_000_000, 413)):
                body = pack(json.dumps({"text": "x" * size}).encode())
                answer = await http.post(TOPIC, content=body[:2000], headers=encoding)
                assert answer.status_code == (status if len(body) <= 2000 else 413)


async def test_nobody_knows_of_a_record_that_was_not_acknowledged_in_time(
    broker: comet.testing.TestBroker, http: httpx.AsyncClient
) -> None:
    host, port = broker.address.split(":")
    producers = http.gateway.app.state.backend.producers  # type: ignore[attr-defined]
    async with Link(host, int(port)) as link, silent_producer(broker, link) as producer:
        assert (await _post_through(http, producers, producer, 1, 30_000)).status_code == 200
        link.hold(down=True)
        for count in (1, 100):
            problem = problem_of(await _post_through(http, producers, producer, count, 200), 504, "TIMEOUT")
            assert "may or may not" in problem["detail"]
        link.release()
    # They were written, as it happens.
    async with asyncio.timeout(60):
        while len(await stored(broker)) < 102:
            pass
    assert len(await stored(broker)) == 102


def silent_producer(broker: comet.testing.TestBroker, link: Link) -> comet.Producer:
    """One whose broker's answers can be held."""
    return comet.Producer(
        broker.address,
        connect=lambda address: GrpcChannel(link.address if address == broker.address else address),
    )


async def _post_through(
    http: httpx.AsyncClient, producers: dict[comet.Acks, Any], producer: Any, count: int, timeout_ms: int
) -> httpx.Response:
    usual, producers[comet.Acks.LEADER] = producers[comet.Acks.LEADER], producer
    try:
        return await http.post(TOPIC, json={"records": [{"value": 1}] * count}, params={"timeout_ms": timeout_ms})
    finally:
        producers[comet.Acks.LEADER] = usual


# ---- once


async def test_a_key_makes_a_retry_safe_through_any_gateway(
    broker: comet.testing.TestBroker, http: httpx.AsyncClient
) -> None:
    said = {"records": [{"key": f"k{number}", "value": number} for number in range(20)]}
    key = {"idempotency-key": "order-4711"}
    first = await http.post("/v1/topics/wide/records", json=said, headers=key, params={"acks": "all"})
    assert first.status_code == 200
    results = first.json()["results"]
    assert all(result.keys() == {"partition", "offset"} for result in results)
    async with gateway(broker.address) as other:
        again = await other.post("/v1/topics/wide/records", json=said, headers=key)
    assert again.json()["results"] == [{**result, "duplicate": True} for result in results]
    assert sum([len(await stored(broker, "wide", partition)) for partition in range(4)]) == 20
    said["records"][3]["value"] = "another"
    problem_of(await http.post("/v1/topics/wide/records", json=said, headers=key), 422, "KEY_REUSED")
    problem_of(await http.post(TOPIC, json=said, headers=key, params={"acks": "0"}), 400, "INVALID_ARGUMENT")
    problem_of(await http.post("/v1/topics/none/records", json=said, headers=key), 404, "TOPIC_NOT_FOUND")


# ---- clients that misbehave


async def test_half_a_document_is_not_written(broker: comet.testing.TestBroker, http: httpx.AsyncClient) -> None:
    wire = await Wire.open(http)
    await wire.begin(TOPIC, "application/json", "content-length: 100")
    await wire.send(b'{"value":1}')
    wire.close()
    wire = await Wire.open(http)
    await wire.begin(TOPIC, "application/json")
    await wire.chunk(b'{"value":1}')
    wire.close()
    assert (await http.post(TOPIC, json={"value": 2})).json()["results"] == [{"partition": 0, "offset": "0"}]


async def test_unpacked_bodies_are_bounded_all_together(broker: comet.testing.TestBroker) -> None:
    packed = gzip.compress(b'{"text":"' + b"x" * (8 * MIB) + b'"}')
    assert len(packed) < 10_000
    async with gateway(broker.address, request_bytes_max=20 * MIB) as http:
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        answers = await asyncio.gather(*(http.post(TOPIC, content=packed, headers=headers) for _ in range(20)))
        codes = Counter(answer.json()["code"] for answer in answers)
        assert codes.keys() == {"RECORD_TOO_LARGE", "OVERLOADED"}  # read, and refused
        assert codes["OVERLOADED"] >= 10
        for answer in answers:
            assert (answer.status_code == 503) == ("retry-after" in answer.headers)
        traffic = http.gateway.app.state.traffic  # type: ignore[attr-defined]
        assert traffic.statistics()["body_bytes"] == 0


@pytest.mark.parametrize("kind", ["application/json", NDJSON])
async def test_a_body_that_stalls_is_given_up(broker: comet.testing.TestBroker, kind: str) -> None:
    async with gateway(broker.address, idle_s=0.2) as http:
        wire = await Wire.open(http)
        await wire.begin(TOPIC, kind)
        await wire.chunk(b'{"value":1}\n')
        status, _ = await wire.head()
        if kind == NDJSON:
            assert json.loads(await wire.line())["offset"] == "0"
            assert json.loads(await wire.line())["problem"]["code"] == "BODY_STALLED"
        else:
            assert status == 408
        wire.close()


# ---- in and out

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["\0\u2028\ufeff", "\U0001f600", "e\u0301"]
)
VALUES = (
    st.binary(max_size=20)
    | TEXT.map(str.encode)
    | st.integers(-(2**80), 2**80).map(lambda number: b"%d" % number)
    | st.sampled_from(
        [b"1e400", b"-0.0", b"0.1000", b'{"a":1,"a":2}', b'"\\u0000"', b"", b" null ", b"\xff\xfe", b"[1,\r\n2]"]
    )
    | st.none()
)
RECORDS = st.lists(
    st.tuples(
        VALUES,
        st.none() | st.binary(max_size=6) | TEXT.map(str.encode),
        st.lists(st.tuples(TEXT, st.binary(max_size=6)), max_size=3),
        st.integers(0, 2**63 - 1),
    ),
    min_size=1,
    max_size=30,
)


def said(value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes]], time: int) -> str:
    """A record as one may send it, with its value as JSON where it is JSON: as text, for its bytes are to stay."""
    members: dict[str, Any] = {"timestamp_us": str(time)}
    if key is not None:
        members["key_base64"] = b64encode(key).decode()
    if headers:
        members["headers"] = [{"name": name, "base64": b64encode(content).decode()} for name, content in headers]
    content = f'"base64":"{b64encode(value).decode()}"' if value is not None else '"tombstone":true'
    if value is not None and b"\n" not in value and value.strip() == value:
        try:
            json.loads(value, parse_constant=int)
        except ValueError:
            pass
        else:
            content = f'"value":{value.decode()}'
    return f"{{{content},{json.dumps(members)[1:]}"


_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def lasting() -> Iterator[comet.testing.TestBroker]:
    """One broker for all examples; each has a topic of its own."""
    with comet.testing.broker() as one:
        yield one


@settings(max_examples=25, deadline=None)
@given(RECORDS, st.booleans())
async def test_what_goes_in_comes_out(
    lasting: comet.testing.TestBroker,
    drawn: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]], int]],
    as_lines: bool,
) -> None:
    topic = f"t{next(_numbers)}"
    path = f"/v1/topics/{topic}/records"
    async with comet.Admin(lasting.address) as admin:
        await admin.create_topic(topic)
    async with gateway(lasting.address) as http:
        documents = [said(*one) for one in drawn]
        if as_lines:
            body, kind = "\n".join(documents), NDJSON
        else:
            body, kind = f'{{"records":[{",".join(documents)}]}}', "application/json"
        answer = await http.post(path, content=body.encode(), headers={"content-type": kind})
        assert answer.status_code == 200
        assert "problem" not in answer.text
        found = [(one.value, one.key, one.headers, one.timestamp_us) for one in await stored(lasting, topic)]
        assert found == drawn
        # And out over HTTP, with every byte.
        base64 = (await http.get(path, params={"values": "base64", "limit": 100})).json()["records"]
        for (value, key, headers, time), record in zip(
            drawn, sorted(base64, key=lambda one: int(one["offset"])), strict=True
        ):
            assert record.get("base64", record.get("tombstone")) == (
                b64encode(value).decode() if value is not None else True
            )
            assert record["timestamp_us"] == str(time)
            assert len(record.get("headers", [])) == len(headers)
            assert ("key" in record or "key_base64" in record) == (key is not None)
