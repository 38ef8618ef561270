"""What the tests of records over HTTP share: a broker, a gateway, and how to look at answers and at the log."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import comet
import comet.testing
from tests.integration.gateway_http import NDJSON, gateway

TOPIC = "/v1/topics/quotes/records"


@pytest.fixture
async def broker() -> AsyncIterator[comet.testing.TestBroker]:
    async with comet.testing.broker({"quotes": 1, "wide": 4}) as one:
        yield one


@pytest.fixture
async def http(broker: comet.testing.TestBroker) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway(broker.address) as client:
        yield client


async def stored(
    broker: comet.testing.TestBroker, topic: str = "quotes", partition: int = 0
) -> list[comet.Record[bytes]]:
    """All that is in a partition."""
    found: list[comet.Record[bytes]] = []
    async with comet.Reader(broker.address) as reader:
        at = 0
        while True:
            part = await reader.fetch(topic, partition, at, records_max=100_000, bytes_max=1 << 26)
            found.extend(record for batch in part.batches for record in batch.records())
            at = part.next_offset
            if at >= part.log_end:
                return found


def lines_of(answer: httpx.Response) -> list[Any]:
    assert answer.headers["content-type"] == NDJSON
    *lines, end = answer.content.split(b"\n")
    assert end == b""
    return list(map(json.loads, lines))


def problem_of(answer: httpx.Response, status: int, code: str) -> Any:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["status"], problem["code"], problem["type"]) == (status, code, f"urn:comet:problem:{code}")
    assert problem["request_id"] == answer.headers["x-request-id"]
    return problem
