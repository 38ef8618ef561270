"""The context of a request, in the records that it writes."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

import comet
from tests.integration.live_gateway import live_gateway

CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OWN = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01"
RECORDS: list[dict[str, Any]] = [
    {"value": 1},
    {"value": 2, "headers": {"a": "b"}},
    {"value": 3, "headers": {"traceparent": OWN}},
]
EXPECTED = [CONTEXT, CONTEXT, OWN]


@pytest.mark.parametrize(
    ("body", "kind", "contexts"),
    [
        (json.dumps(RECORDS[0]), "application/json", EXPECTED[:1]),
        (json.dumps({"records": RECORDS}), "application/json", EXPECTED),
        (json.dumps({"records": RECORDS * 10}), "application/json", EXPECTED * 10),
        ("\n".join(map(json.dumps, RECORDS)), "application/x-ndjson", EXPECTED),
        (json.dumps({"value": 1, "delay_ms": 1}), "application/json", [CONTEXT]),
    ],
)
async def test_records_have_the_context_of_their_request(body: str, kind: str, contexts: list[str]) -> None:
    async with live_gateway(["quotes"]) as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        headers = {"traceparent": CONTEXT, "content-type": kind, "x-request-id": "mine"}
        answer = await http.post("/v1/topics/quotes/records", content=body, headers=headers)
        assert answer.status_code == httpx.codes.OK and answer.headers["x-request-id"] == "mine"
        async with comet.Consumer(gateway.broker, "quotes", start="earliest") as consumer:
            found = [await anext(consumer) for _ in contexts]
    assert [dict(record.headers)["traceparent"].decode() for record in found] == contexts


async def test_a_repeated_request_with_another_context_is_the_same_request() -> None:
    async with live_gateway(["quotes"]) as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        for context, duplicate in ((CONTEXT, False), (OWN, True)):
            headers = {"traceparent": context, "idempotency-key": "order-1"}
            answer = await http.post("/v1/topics/quotes/records", json={"value": 1}, headers=headers)
            assert answer.status_code == httpx.codes.OK, answer.text
            assert answer.json()["results"][0].get("duplicate", False) is duplicate
