"""Locks over HTTP: lock, ack, nack, reject, extend, through gateways that hold nothing in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

import comet
import comet.testing
from comet_gateway import create_app
from tests.integration.local_cluster import LocalCluster, until


class Gateway:
    """One gateway, in this process, without a network before it."""

    def __init__(self, app: FastAPI, client: httpx.AsyncClient, shares: comet.ShareClient) -> None:
        self.app = app
        self.client = client
        self.shares = shares

    async def post(self, path: str, body: Any, *, status: int = 200) -> Any:
        answer = await self.client.post(f"/v1/groups/{path}", json=body)
        assert answer.status_code == status, answer.text
        if status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
        return answer.json()

    async def acquire(self, group: str = "g", **more: Any) -> list[Any]:
        body = {"topic": "quotes", "start": "earliest", **more}
        found: list[Any] = (await self.post(f"{group}/acquire", body))["records"]
        return found


@asynccontextmanager
async def gateway(addresses: str | list[str], **settings: Any) -> AsyncIterator[Gateway]:
    app = create_app()
    async with comet.ShareClient(addresses, **settings) as shares:
        app.state.backend = SimpleNamespace(share_client=shares)
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield Gateway(app, client, shares)


@pytest.fixture
async def broker() -> AsyncIterator[comet.testing.TestBroker]:
    async with comet.testing.broker({"quotes": 2, "dead": 1}) as one:
        yield one


@pytest.fixture
async def http(broker: comet.testing.TestBroker) -> AsyncIterator[Gateway]:
    async with gateway(broker.address) as one:
        yield one


async def write(address: str, *values: Any, **more: Any) -> None:
    async with comet.Producer(address) as producer:
        for value in values:
            await producer.publish("quotes", value, **{"partition": 0, **more})


def tokens(*records: Any) -> dict[str, Any]:
    return {"tokens": [record["token"] for record in records]}


async def test_records_are_acquired_as_they_are_read_with_attempts_and_tokens(
    broker: comet.testing.TestBroker, http: Gateway
) -> None:
    await write(broker.address, {"bid": 1.08}, key="EURUSD", headers={"source": "demo"}, timestamp_us=5)
    await write(broker.address, b"\xff", None, key=b"\xff")
    first, second, third = await http.acquire()
    token = first.pop("token")
    assert first == {
        "partition": 0, "offset": "0", "timestamp_us": "5", "key": "EURUSD", "value": {"bid": 1.08},
        "headers": [{"name": "source", "value": "demo"}], "delivery_count": 1,
    }  # fmt: skip
    assert (second["base64"], second["key_base64"], third["tombstone"]) == ("/w==", "/w==", True)
    assert await http.post("g/ack", {"tokens": [token]}) == {"results": [{"acknowledged": True}]}
    assert await http.acquire() == []
    assert await http.post("g/nack", tokens(second, third)) == {"results": [{"acknowledged": True}] * 2}
    again = await http.acquire(values="base64", limit=1)
    assert [(one["offset"], one["delivery_count"]) for one in again] == [("1", 2)]


async def test_another_gateway_acknowledges_and_any_number_of_times(
    broker: comet.testing.TestBroker, http: Gateway
) -> None:
    await write(broker.address, 1, 2, 3, 4)
    one, two, three, four = await http.acquire(dead_letter="dead")
    async with gateway(broker.address) as other:
        for _ in range(2):
            await other.post("g/ack", tokens(one))
            await other.post("g/extend", tokens(four))
            await other.post("g/reject", {**tokens(two), "reason": "no such symbol"})
            await other.post("g/nack", {**tokens(three), "delay_ms": 1})
    async with comet.Consumer(broker.address, "dead", start="earliest") as consumer:
        dead = await consumer.get(timeout_s=10)
        assert dead is not None
        assert dict(dead.headers)["comet-dead-letter-reason"] == b"no such symbol"
    (again,) = await http.acquire(dead_letter="dead", wait_ms=10_000)
    assert (again["offset"], again["delivery_count"]) == ("2", 2)


async def test_what_cannot_be_acknowledged_is_told_token_by_token(
    broker: comet.testing.TestBroker, http: Gateway
) -> None:
    await write(broker.address, 1, 2)
    one, two = await http.acquire()
    await http.post("g/ack", tokens(one))
    mixed = await http.post("g/nack", {"tokens": [one["token"], two["token"], "nonsense"]}, status=207)
    late, kept, wrong = mixed["results"]
    assert (late["acknowledged"], late["problem"]["code"], late["problem"]["status"]) == (False, "LOCK_EXPIRED", 409)
    assert kept == {"acknowledged": True}
    assert wrong["problem"]["code"] == "MALFORMED_TOKEN"
    assert (await http.post("g/ack", tokens(two), status=409))["code"] == "LOCK_EXPIRED"
    assert (await http.post("g/ack", {"tokens": ["x", "y"]}, status=400))["code"] == "MALFORMED_TOKEN"
    problem = await http.post("h/ack", tokens(one), status=400)
    assert problem["code"] == "MALFORMED_TOKEN"
    assert "group 'g'" in problem["detail"]


async def test_a_lock_ends_in_time_and_an_extended_one_later(broker: comet.testing.TestBroker, http: Gateway) -> None:
    await write(broker.address, 1, 2)
    # Long enough for the one that is extended not to end because this machine stands still for a moment.
    one, two = await http.acquire(lock_ms=3_000)
    waiting = asyncio.ensure_future(http.acquire(lock_ms=3_000, wait_ms=20_000))
    while not waiting.done():
        await http.post("g/extend", tokens(one))
        await asyncio.wait([waiting], timeout=0.05)
    assert [(again["offset"], again["delivery_count"]) for again in waiting.result()] == [("1", 2)]
    assert (await http.post("g/ack", tokens(one, two), status=207))["results"][0] == {"acknowledged": True}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("g/acquire", {}, 422),
        ("g/acquire", {"topic": "no spaces"}, 422),
        ("g/acquire", {"topic": "quotes", "limit": 0}, 422),
        ("g/acquire", {"topic": "quotes", "limit": "5"}, 422),
        ("g/acquire", {"topic": "quotes", "limit": 1_001}, 422),
        ("g/acquire", {"topic": "quotes", "wait_ms": 30_001}, 422),
        ("g/acquire", {"topic": "quotes", "lock_ms": 1}, 422),
        ("g/acquire", {"topic": "quotes", "nonsense": 1}, 422),
        ("g/acquire", {"topic": "quotes", "values": "xml"}, 422),
        ("g/acquire", {"topic": "quotes", "start": "nonsense"}, 400),
        ("g/acquire", {"topic": "quotes", "start": str(2**63)}, 400),
        ("g/acquire", {"topic": "quotes", "dead_letter": "quotes"}, 400),
        ("g/acquire", {"topic": "nothing"}, 404),
        ("-/acquire", {"topic": "quotes"}, 422),
        ("g/ack", {"tokens": []}, 422),
        ("g/ack", {"tokens": "x"}, 422),
        ("g/ack", {"tokens": ["x" * 1001]}, 422),
        ("g/ack", {"tokens": ["x"], "delay_ms": 1}, 422),
        ("g/nack", {"tokens": ["x"], "delay_ms": -1}, 422),
        ("g/reject", {"tokens": ["x"], "reason": "x" * 201}, 422),
    ],
)
async def test_what_makes_no_sense_is_refused(http: Gateway, path: str, body: Any, status: int) -> None:
    await http.post(path, body, status=status)


async def test_other_terms_than_those_in_use_are_refused(broker: comet.testing.TestBroker, http: Gateway) -> None:
    await write(broker.address, 1)
    assert len(await http.acquire()) == 1
    problem = await http.post("g/acquire", {"topic": "quotes", "lock_ms": 5_000}, status=400)
    assert problem["code"] == "INVALID_ARGUMENT"


# ---- clients that go away


class Caller:
    """One request by hand, so that its client can go away at any moment."""

    def __init__(self, app: FastAPI, path: str, body: Any) -> None:
        self._body = json.dumps(body).encode()
        self._sent = False
        self._gone = asyncio.Event()
        self.status = 0
        self.body = b""
        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": f"/v1/groups/{path}",
            "raw_path": f"/v1/groups/{path}".encode(), "query_string": b"", "root_path": "",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 5), "server": ("localhost", 80), "app": app,
        }  # fmt: skip
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")

    def go(self) -> None:
        self._gone.set()


async def test_who_goes_away_while_it_waits_has_acquired_nothing(
    broker: comet.testing.TestBroker, http: Gateway
) -> None:
    for _ in range(3):
        caller = Caller(http.app, "g/acquire", {"topic": "quotes", "wait_ms": 30_000, "start": "earliest"})
        await asyncio.wait([caller.task], timeout=0.05)
        assert not caller.task.done()
        caller.go()
        await asyncio.wait([caller.task], timeout=10)
        assert caller.task.done()
    await write(broker.address, 1)
    assert [one["delivery_count"] for one in await http.acquire(wait_ms=10_000)] == [1]


async def test_who_has_gone_before_the_answer_keeps_nothing(broker: comet.testing.TestBroker, http: Gateway) -> None:
    await write(broker.address, 1, 2)
    for _ in range(10):
        caller = Caller(http.app, "g/acquire", {"topic": "quotes", "start": "earliest", "deliveries_max": 1})
        caller.go()
        await caller.task
    found: list[Any] = []
    while len(found) < 2:
        found += await http.acquire(deliveries_max=1, wait_ms=10_000)
    assert [one["delivery_count"] for one in found] == [1, 1]


async def test_a_gateway_that_stops_lets_nobody_wait(http: Gateway) -> None:
    waiting = asyncio.ensure_future(http.post("g/acquire", {"topic": "quotes", "wait_ms": 30_000}, status=503))
    await asyncio.wait([waiting], timeout=0.05)
    http.app.state.draining.set()
    assert (await waiting)["code"] == "DRAINING"


# ---- a cluster


async def test_the_leader_dies_between_lock_and_ack(tmp_path: Any) -> None:
    async with LocalCluster(tmp_path) as cluster, gateway(cluster.addresses, connect=cluster.network.connect) as http:
        async with comet.Admin(cluster.addresses, connect=cluster.network.connect) as admin:
            await admin.create_topic("quotes", replicas=3)
        await until(lambda: cluster.leader("quotes") != 0, "it is led")
        async with comet.Producer(cluster.addresses, connect=cluster.network.connect, acks="all") as producer:
            for number in range(3):
                await producer.publish("quotes", {"n": number})
        one, two, three = await http.acquire()
        await http.post("g/ack", tokens(one))
        await cluster.stop(cluster.leader("quotes"))
        problem = await http.post("g/ack", tokens(two, three), status=409)
        assert problem["code"] == "LOCK_EXPIRED"
        again = await http.acquire(wait_ms=20_000)
        assert [(record["value"], record["delivery_count"]) for record in again] == [({"n": 1}, 2), ({"n": 2}, 2)]
        await http.post("g/ack", tokens(*again))
        assert await http.acquire() == []
