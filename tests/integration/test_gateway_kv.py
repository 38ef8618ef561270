"""Topics as tables of keys over HTTP: ETags, conditions, pages, histories."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

import comet
import comet.testing
from comet_gateway.brokers import key_tables
from tests.integration.gateway_http import gateway


@pytest.fixture
async def broker() -> AsyncIterator[comet.testing.TestBroker]:
    async with comet.testing.broker({"prices": 3, "other": 1}) as one:
        yield one


@pytest.fixture
async def http(broker: comet.testing.TestBroker) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway(broker.address, body_bytes_max=100_000) as client:
        yield client


def problem(answer: httpx.Response, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


async def test_values_are_set_on_a_condition_and_read_with_their_revision(http: httpx.AsyncClient) -> None:
    url = "/v1/kv/prices/EUR%2FUSD"
    problem(await http.get(url), 404, "KEY_NOT_FOUND")
    created = await http.put(url, content=b"1.08", headers={"if-none-match": "*"})
    assert (created.json(), created.headers["etag"]) == ({"revision": "0"}, '"0"')
    problem(await http.put(url, content=b"1", headers={"if-none-match": "*"}), 412, "REVISION_MISMATCH")
    changed = await http.put(url, content=b'{"bid": 1.09}', headers={"if-match": created.headers["etag"]})
    assert changed.headers["etag"] == '"1"'
    refused = await http.put(url, content=b"1", headers={"if-match": '"0"'})
    problem(refused, 412, "REVISION_MISMATCH")
    assert refused.json()["revision"] == "1"
    found = await http.get(url)
    assert (found.content, found.headers["etag"]) == (b'{"bid": 1.09}', '"1"')
    assert (await http.get(url, params={"stale": "yes"})).content == found.content
    assert (await http.get(url, params={"revision": "0"})).content == b"1.08"
    problem(await http.delete(url, headers={"if-match": '"0"'}), 412, "REVISION_MISMATCH")
    assert (await http.delete(url, headers={"if-match": '"1"'})).json() == {"revision": "2"}
    problem(await http.get(url), 404, "KEY_NOT_FOUND")
    problem(await http.delete(url), 404, "KEY_NOT_FOUND")
    entries = (await http.get("/v1/kv-history/prices", params={"key": "EUR/USD"})).json()["entries"]
    for entry in entries:
        assert entry.pop("timestamp_us").isdigit()
    assert entries == [
        {"revision": "2", "key": "EUR/USD", "tombstone": True, "ended": "1"},
        {"revision": "1", "key": "EUR/USD", "value": {"bid": 1.09}},
        {"revision": "0", "key": "EUR/USD", "value": 1.08},
    ]


async def test_keys_are_listed_in_pages(http: httpx.AsyncClient, broker: comet.testing.TestBroker) -> None:
    names = sorted([*(f"{at}" for at in range(12)), "é"])
    for name in names:
        assert (await http.put(f"/v1/kv/prices/{name}", content=name.encode())).is_success
    async with comet.Producer(broker.address) as producer:
        await producer.publish("prices", b"\xff", key=b"\xff\xfe")
    found: list[str] = []
    params: dict[str, str] = {"limit": "5"}
    while True:
        page = (await http.get("/v1/kv/prices", params=params)).json()
        found += [entry.get("key", entry.get("key_base64")) for entry in page["entries"]]
        if "after" not in page:
            break
        params["after"] = page["after"]
    assert found == [*names, "//4="]
    page = (await http.get("/v1/kv/prices", params={"prefix": "1"})).json()
    assert [entry["value"] for entry in page["entries"]] == [1, 10, 11]


@pytest.mark.parametrize("key", [b"\xff\xfe", b"a/\x00/%2F", b"\xef\xbf\xbd", b"/v1/kv/prices/a", " é ".encode()])
async def test_a_key_of_any_bytes_has_an_address(
    http: httpx.AsyncClient, broker: comet.testing.TestBroker, key: bytes
) -> None:
    url = "/v1/kv/prices/" + "".join(f"%{byte:02x}" for byte in key)
    etag = (await http.put(url, content=b"1", headers={"if-none-match": "*"})).headers["etag"]
    async with comet.KV(broker.address, "prices") as kv:
        assert await kv.keys() == [key]
    assert (await http.get(url)).content == b"1"
    assert (await http.delete(url, headers={"if-match": etag})).is_success
    problem(await http.get(url), 404, "KEY_NOT_FOUND")


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("PUT", "/v1/kv/prices/a", {"if-match": "1"}),
        ("PUT", "/v1/kv/prices/a", {"if-match": "*"}),
        ("PUT", "/v1/kv/prices/a", {"if-none-match": '"1"'}),
        ("PUT", "/v1/kv/prices/a", {"if-match": '"1"', "if-none-match": "*"}),
        ("PUT", "/v1/kv/prices/", {}),
        ("PUT", "/v1/kv/prices/a?stale=yes", {}),
        ("GET", "/v1/kv/prices/a?revision=-1", {}),
        ("GET", "/v1/kv/prices/a?stale=1", {}),
        ("GET", "/v1/kv/prices?limit=1001", {}),
        ("GET", "/v1/kv/prices?after=xyz", {}),
        ("GET", "/v1/kv/prices?after=", {}),
        ("GET", "/v1/kv-history/prices", {}),
        ("GET", "/v1/kv-history/prices?key=a&limit=65", {}),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(
    http: httpx.AsyncClient, method: str, path: str, headers: dict[str, str]
) -> None:
    problem(await http.request(method, path, headers=headers), 422, "VALIDATION")


async def test_topics_and_bodies_have_their_limits(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    problem(await http.get("/v1/kv/nope/a"), 404, "TOPIC_NOT_FOUND")
    problem(await http.put("/v1/kv/prices/a", content=bytes(100_001)), 413, "BODY_TOO_LARGE")
    monkeypatch.setattr(key_tables, "TABLES_MAX", 1)
    for topic in ("prices", "other", "prices"):
        assert (await http.put(f"/v1/kv/{topic}/a", content=topic.encode())).is_success
        assert (await http.get(f"/v1/kv/{topic}/a")).content == topic.encode()
