"""Reading records over HTTP: a part of a partition, a topic in order of time, and each form of answer."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pyarrow as pa
import pytest

import comet
import comet.testing
from comet_gateway.http.negotiation import Form
from tests.integration.gateway_http import NDJSON, Wire, gateway
from tests.integration.records_client import http, lines_of, problem_of

__all__ = ["http"]  # a fixture

ARROW = Form.ARROW.value
PART = "/v1/topics/quotes/partitions/0/records"
WIDE = "/v1/topics/wide/records"
SECOND = 1_000_000
ODD: list[tuple[bytes | None, bytes | None]] = [
    (b'{"bid": 1.10,\n "n": 12345678901234567890}', b"EURUSD"),
    (b"plain \xc3\xa9", "\u2028\0".encode()),
    (b"\xff\x00", b"\xff"),
    (None, b""),
    (b"", None),
    (b'"\\ud800"', None),
]


@pytest.fixture
async def broker() -> AsyncIterator[comet.testing.TestBroker]:
    async with comet.testing.broker({"quotes": 1, "wide": 3}) as one:
        yield one


@pytest.fixture
async def producer(broker: comet.testing.TestBroker) -> AsyncIterator[comet.Producer]:
    async with comet.Producer(broker.address) as one:
        yield one


@pytest.fixture
async def odd(producer: comet.Producer) -> None:
    for value, key in ODD:
        await producer.publish("quotes", value, key=key, headers=[("a", b"1"), ("a", b"\xff")], timestamp_us=7)


@pytest.fixture
async def spread(producer: comet.Producer) -> None:
    """Thirty records, one a second, over three partitions in turn."""
    for number in range(30):
        await producer.publish("wide", b"%d" % number, partition=number % 3, timestamp_us=number * SECOND)


async def document(http: httpx.AsyncClient, path: str, **query: Any) -> Any:
    answer = await http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def values(document: Any) -> list[int]:
    return [record["value"] for record in document["records"]]


# ---- a partition


async def test_records_stand_in_json_as_they_are(odd: None, http: httpx.AsyncClient) -> None:
    answer = await http.get(PART)
    assert "12345678901234567890" in answer.text
    found = answer.json()
    assert (found["next_offset"], found["log_start"], found["log_end"]) == ("6", "0", "6")
    records = found["records"]
    assert [record["offset"] for record in records] == [str(offset) for offset in range(6)]
    for record in records:
        assert (record.pop("partition"), record.pop("timestamp_us")) == (0, "7")
        assert record.pop("headers") == [{"name": "a", "value": "1"}, {"name": "a", "base64": "/w=="}]
        del record["offset"]
    assert records == [
        {"key": "EURUSD", "value": {"bid": 1.10, "n": 12345678901234567890}},
        {"key": "\u2028\0", "text": "plain é"},
        {"key_base64": "/w==", "base64": "/wA="},
        {"key": "", "tombstone": True},
        {"text": ""},
        {"text": '"\\ud800"'},
    ]


async def test_values_may_be_text_or_base64(odd: None, http: httpx.AsyncClient) -> None:
    found = await document(http, PART, values="base64")
    assert [b64decode(record["base64"]) if "base64" in record else None for record in found["records"]] == [
        value for value, _ in ODD
    ]
    found = await document(http, PART, values="text", limit=3)
    assert [record.get("text") for record in found["records"]] == [ODD[0][0].decode(), "plain é", None]  # type: ignore[union-attr]


async def test_lines_are_the_same_records(odd: None, http: httpx.AsyncClient) -> None:
    found = await document(http, PART, limit=4)
    answer = await http.get(PART, params={"limit": 4}, headers={"accept": NDJSON})
    assert lines_of(answer) == found["records"]
    assert answer.headers["comet-cursor"] == found["cursor"]
    assert [answer.headers[f"comet-{name}"] for name in ("next-offset", "log-start", "log-end")] == ["4", "0", "6"]


async def test_arrow_is_the_columns(odd: None, http: httpx.AsyncClient) -> None:
    answer = await http.get(PART, params={"offset": 1, "limit": 4}, headers={"accept": ARROW})
    assert (answer.status_code, answer.headers["content-type"]) == (200, ARROW)
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.column_names == ["partition", "offset", "timestamp", "key", "value", "headers"]
    rows = table.to_pylist()
    assert [(row["value"], row["key"]) for row in rows] == ODD[1:5]
    assert [(row["partition"], row["offset"]) for row in rows] == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert rows[0]["headers"] == [{"name": "a", "value": b"1"}, {"name": "a", "value": b"\xff"}]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [7] * 4
    assert answer.headers["comet-next-offset"] == "5"
    empty = await http.get(PART, params={"start": "latest"}, headers={"accept": ARROW})
    assert pa.ipc.open_stream(empty.content).read_all().schema == table.schema
    assert empty.headers["comet-next-offset"] == "6"


async def test_a_partition_is_read_page_by_page(producer: comet.Producer, http: httpx.AsyncClient) -> None:
    await (await producer.send_many("quotes", [b"%d" % number for number in range(1000)]))
    for way in ("offset", "cursor"):
        query: dict[str, Any] = {"limit": 77}
        found: list[int] = []
        while True:
            page = await document(http, PART, **query)
            found += values(page)
            assert len(page["records"]) <= 77
            if page["next_offset"] == page["log_end"]:
                break
            query[way] = page["next_offset"] if way == "offset" else page["cursor"]
        assert found == list(range(1000))


async def test_an_answer_has_so_many_bytes_but_one_record_at_least(
    producer: comet.Producer, http: httpx.AsyncClient
) -> None:
    for _ in range(5):
        await producer.publish("quotes", b"x" * 1000)
    for bytes_max, count in ((1, 1), (2500, 2), (100_000, 5)):
        assert len((await document(http, PART, max_bytes=bytes_max))["records"]) == count


async def test_a_start_may_be_a_time(spread: None, http: httpx.AsyncClient) -> None:
    part = "/v1/topics/wide/partitions/1/records"
    assert values(await document(http, part, start="1970-01-01T00:00:12Z")) == [13, 16, 19, 22, 25, 28]
    assert values(await document(http, part, start="latest")) == []
    assert values(await document(http, part, start="8")) == [25, 28]
    assert values(await document(http, part, start="-1h")) == []


async def test_who_waits_gets_a_record_when_it_comes(producer: comet.Producer, http: httpx.AsyncClient) -> None:
    waiting = asyncio.create_task(document(http, PART, offset=0, wait_ms=20_000))
    await document(http, PART, start="latest", wait_ms=1)  # by now the other one has begun, as good as always
    await producer.publish("quotes", b"7")
    assert values(await waiting) == [7]
    assert values(await document(http, PART, offset=1, wait_ms=1)) == []


async def test_a_gateway_that_stops_lets_nobody_wait(broker: comet.testing.TestBroker) -> None:
    async with gateway(broker.address) as http:
        waiting = asyncio.create_task(http.get(PART, params={"wait_ms": 30_000}))
        await document(http, PART, wait_ms=1)
        http.gateway.app.state.draining.set()  # type: ignore[attr-defined]
        problem_of(await waiting, 503, "DRAINING")


async def test_nobody_reads_for_a_client_that_has_gone(
    broker: comet.testing.TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(broker.address) as http:
        begun, ended = asyncio.Event(), asyncio.Event()
        reader = http.gateway.app.state.backend.reader  # type: ignore[attr-defined]
        fetch = reader.fetch

        async def noting(*arguments: Any, **named: Any) -> comet.Fetched:
            begun.set()
            try:
                found: comet.Fetched = await fetch(*arguments, **named)
                return found
            finally:
                ended.set()

        monkeypatch.setattr(reader, "fetch", noting)
        wire = await Wire.open(http)
        await wire.send(f"GET {PART}?wait_ms=30000 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await begun.wait()
        wire.close()
        await asyncio.wait_for(ended.wait(), 60)


@pytest.mark.parametrize(
    ("path", "query", "status", "code"),
    [
        (PART, {"offset": "7"}, 410, "OFFSET_OUT_OF_RANGE"),
        (PART, {"offset": "-1"}, 422, "VALIDATION"),
        (PART, {"offset": "9223372036854775808"}, 422, "VALIDATION"),
        (PART, {"offset": "1", "start": "earliest"}, 400, "INVALID_ARGUMENT"),
        (PART, {"start": "yesterday"}, 400, "INVALID_ARGUMENT"),
        (PART, {"start": "-" + "9" * 400 + "w"}, 400, "INVALID_ARGUMENT"),
        (PART, {"start": "9" * 5000}, 400, "INVALID_ARGUMENT"),
        (PART, {"limit": "0"}, 422, "VALIDATION"),
        (PART, {"limit": "10001"}, 422, "VALIDATION"),
        (PART, {"max_bytes": "0"}, 422, "VALIDATION"),
        (PART, {"wait_ms": "30001"}, 422, "VALIDATION"),
        (PART, {"values": "xml"}, 422, "VALIDATION"),
        (PART, {"isolation": "none"}, 422, "VALIDATION"),
        (PART, {"color": "red"}, 422, "VALIDATION"),
        (PART, {"cursor": "c1.zz"}, 400, "MALFORMED_CURSOR"),
        (PART, {"cursor": f"c1.{'0' * 32}.0-1"}, 410, "TRUNCATED"),
        ("/v1/topics/quotes/partitions/1/records", {}, 404, "PARTITION_NOT_FOUND"),
        ("/v1/topics/quotes/partitions/x/records", {}, 422, "VALIDATION"),
        ("/v1/topics/none/partitions/0/records", {}, 404, "TOPIC_NOT_FOUND"),
        (WIDE, {"order": "random"}, 422, "VALIDATION"),
        (WIDE, {"start": "5"}, 400, "INVALID_ARGUMENT"),
        (WIDE, {"end": "5"}, 400, "INVALID_ARGUMENT"),
        (WIDE, {"partitions": "0,3"}, 404, "PARTITION_NOT_FOUND"),
        (WIDE, {"partitions": ""}, 422, "VALIDATION"),
        (WIDE, {"cursor": f"c1.{'0' * 32}"}, 410, "TRUNCATED"),
        (WIDE, {"wait_ms": "1"}, 422, "VALIDATION"),
        ("/v1/topics/none/records", {}, 404, "TOPIC_NOT_FOUND"),
    ],
)
async def test_what_is_wrong_is_said(
    odd: None, http: httpx.AsyncClient, path: str, query: dict[str, str], status: int, code: str
) -> None:
    problem = problem_of(await http.get(path, params=query), status, code)
    if code == "OFFSET_OUT_OF_RANGE":
        assert (problem["log_start"], problem["log_end"]) == ("0", "6")


async def test_what_was_deleted_is_gone(broker: comet.testing.TestBroker, odd: None, http: httpx.AsyncClient) -> None:
    before = await document(http, PART, limit=1)
    async with comet.Admin(broker.address) as admin:
        await admin.delete_records("quotes", 0, 3)
    for query in ({"offset": "1"}, {"cursor": before["cursor"]}):
        assert problem_of(await http.get(PART, params=query), 410, "OFFSET_OUT_OF_RANGE")["log_start"] == "3"
    answer = await http.get("/v1/topics/quotes/records", params={"cursor": before["cursor"]})
    assert problem_of(answer, 410, "OFFSET_OUT_OF_RANGE")["partition"] == 0
    assert (await document(http, PART))["records"][0]["offset"] == "3"


async def test_an_open_transaction_is_seen_by_those_who_ask_for_it(
    broker: comet.testing.TestBroker, http: httpx.AsyncClient
) -> None:
    async with comet.TransactionalProducer(broker.address, transactional_id="t") as producer:
        async with producer.transaction() as transaction:
            await (await transaction.send("quotes", b"1", partition=0))
            for path in (PART, "/v1/topics/quotes/records"):
                assert values(await document(http, path)) == []
                assert values(await document(http, path, isolation="uncommitted")) == [1]
        for path in (PART, "/v1/topics/quotes/records"):
            assert values(await document(http, path)) == [1]


# ---- a topic


async def test_a_topic_is_read_in_order_of_time(spread: None, http: httpx.AsyncClient) -> None:
    found = await document(http, WIDE)
    assert values(found) == list(range(30))
    assert (found["more"], [one["log_end"] for one in found["partitions"]]) == (False, ["10"] * 3)
    assert values(await document(http, WIDE, order="newest")) == list(range(29, -1, -1))
    assert values(await document(http, WIDE, partitions="2, 0")) == [number for number in range(30) if number % 3 != 1]


async def test_a_topic_is_read_between_times(spread: None, http: httpx.AsyncClient) -> None:
    between = {"start": "1970-01-01T00:00:10Z", "end": "1970-01-01T00:00:20Z"}
    for order, wanted in (("oldest", range(10, 20)), ("newest", range(19, 9, -1))):
        found: list[int] = []
        query: dict[str, Any] = {**between, "order": order, "limit": 3}
        while True:
            page = await document(http, WIDE, **query)
            found += values(page)
            if not page["more"]:
                break
            query["cursor"] = page["cursor"]
        assert found == list(wanted)
    assert values(await document(http, WIDE, end="earliest")) == []
    assert values(await document(http, WIDE, start="latest", order="newest")) == []
    assert values(await document(http, WIDE, partitions=1, start=2, end=4)) == [7, 10]
    assert values(await document(http, WIDE, partitions=1, start=2, end=4, order="newest")) == [10, 7]


async def test_a_cursor_goes_on_with_what_came_since(
    broker: comet.testing.TestBroker, producer: comet.Producer, spread: None, http: httpx.AsyncClient
) -> None:
    page = await document(http, WIDE)
    assert values(await document(http, WIDE, cursor=page["cursor"])) == []
    async with comet.Admin(broker.address) as admin:
        await admin.add_partitions("wide", 4)
    async with comet.Producer(broker.address) as fresh, gateway(broker.address) as other:
        for partition in (1, 3):
            await fresh.publish("wide", b"%d" % (100 + partition), partition=partition)
        again = await document(other, WIDE, cursor=page["cursor"])
        assert values(again) == [101, 103]
        assert values(await document(other, WIDE, cursor=again["cursor"])) == []


@pytest.mark.parametrize("order", ["oldest", "newest"])
async def test_all_forms_of_a_topic_say_the_same(spread: None, http: httpx.AsyncClient, order: str) -> None:
    query = {"order": order, "limit": "7"}
    found = await document(http, WIDE, **query)
    lines = await http.get(WIDE, params=query, headers={"accept": NDJSON})
    assert lines_of(lines) == found["records"]
    arrow = await http.get(WIDE, params=query, headers={"accept": ARROW})
    rows = pa.ipc.open_stream(arrow.content).read_all().to_pylist()
    assert [(row["partition"], str(row["offset"]), int(row["value"])) for row in rows] == [
        (record["partition"], record["offset"], record["value"]) for record in found["records"]
    ]
    for answer in (lines, arrow):
        assert (answer.headers["comet-cursor"], answer.headers["comet-more"]) == (found["cursor"], "true")


async def test_a_topic_without_records_has_an_answer(http: httpx.AsyncClient) -> None:
    for order in ("oldest", "newest"):
        found = await document(http, WIDE, order=order)
        assert (found["records"], found["more"]) == ([], False)
        arrow = await http.get(WIDE, params={"order": order}, headers={"accept": ARROW})
        assert pa.ipc.open_stream(arrow.content).read_all().num_rows == 0


async def test_one_request_merges_so_many_partitions(broker: comet.testing.TestBroker) -> None:
    async with gateway(broker.address, merged_partitions_max=2) as http:
        problem = problem_of(await http.get(WIDE), 400, "INVALID_ARGUMENT")
        assert "partitions" in problem["detail"]
        assert (await http.get(WIDE, params={"partitions": "0,2"})).status_code == 200


# ---- forms


@pytest.mark.parametrize(
    ("accept", "given"),
    [
        ("*/*", Form.JSON),
        ("", Form.JSON),
        ("application/*", Form.JSON),
        ("text/html, application/xhtml+xml, */*;q=0.8", Form.JSON),
        ("application/x-ndjson", Form.NDJSON),
        ("application/json;q=0.5, application/x-ndjson", Form.NDJSON),
        ("application/json;q=0, */*", Form.NDJSON),
        ("APPLICATION/VND.APACHE.ARROW.STREAM", Form.ARROW),
        ("application/vnd.apache.arrow.stream, application/json;q=0.9", Form.ARROW),
    ],
)
async def test_a_client_gets_the_form_it_likes_best(http: httpx.AsyncClient, accept: str, given: Form) -> None:
    for path in (PART, WIDE):
        answer = await http.get(path, headers={"accept": accept})
        assert (answer.status_code, answer.headers["content-type"]) == (200, given.value)


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "image/*", "application/json;q=x"])
async def test_what_nobody_can_give_is_said(http: httpx.AsyncClient, accept: str) -> None:
    for path in (PART, WIDE):
        problem = problem_of(await http.get(path, headers={"accept": accept}), 406, "NOT_ACCEPTABLE")
        assert all(form.value in problem["hint"] for form in Form)


async def test_without_pyarrow_there_is_no_arrow(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comet_gateway.http.negotiation.find_spec", lambda name: None)
    problem = problem_of(await http.get(PART, headers={"accept": ARROW}), 406, "NOT_ACCEPTABLE")
    assert "pip install" in problem["hint"]
    answer = await http.get(PART, headers={"accept": f"{ARROW}, {NDJSON};q=0.5"})
    assert answer.headers["content-type"] == NDJSON


async def test_lines_end_only_where_records_do(producer: comet.Producer, http: httpx.AsyncClient) -> None:
    await producer.publish("quotes", b'{"a":\n1,\r\n"b":2}', key="a\nb")
    answer = await http.get(PART, headers={"accept": NDJSON})
    assert answer.content.count(b"\n") == 1
    assert json.loads(answer.content)["value"] == {"a": 1, "b": 2}
