"""SDK, REST and command line have one document for each topic, partition and broker, field by field."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from comet.admin.documents import document
from tests.integration.resources_client import Api, api
from tests.integration.test_cli_flows import Up, up

__all__ = ["up"]  # the fixture
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
async def http(up: Up) -> AsyncIterator[Api]:
    if b"quotes" not in up.run("topic", "list").stdout:
        up.run("topic", "create", "quotes", "--partitions", "2", "--retention-ms", "1h")
        up.run("produce", "quotes", "--partition", "1", feed=b"x\n" * 100)
    async with api(up.address) as one:
        yield one


async def steady(up: Up, ask: Callable[[], Awaitable[Any]], *words: str) -> tuple[Any, Any]:
    """What a command prints and what `ask` answers, the same before and after: rates fall to 0 within seconds."""
    while True:
        before = await ask()
        printed = await asyncio.to_thread(up.json, *words)
        if await ask() == before:
            return printed, before


async def test_a_described_topic(up: Up, http: Api) -> None:
    printed, answered = await steady(up, lambda: http.get("/topics/quotes"), "topic", "describe", "quotes")
    assert printed == answered == document(await http.admin.describe_topic("quotes"))
    second = printed["partitions"][1]
    assert (second["partition"], second["leader"], second["log_end"], second["lost"]) == (1, 1, "100", [])
    assert printed["sources"]["retention_ms"] == "topic" and printed["totals"]["records"] == "100"


async def test_a_partition_of_it(up: Up, http: Api) -> None:
    printed, answered = await steady(up, lambda: http.get("/topics/quotes/partitions/1"), "topic", "describe", "quotes")
    found = printed["partitions"][1]
    assert answered == found | {"topic": "quotes", "copies": answered["copies"]}
    (copy,) = answered["copies"]
    assert {name: copy[name] for name in copy.keys() & found.keys() - {"leader", "in_sync"}}.items() <= found.items()
    assert (copy["broker"], copy["leader"], copy["in_sync"], copy["records"]) == (1, True, True, "100")


async def test_a_list_of_topics(up: Up, http: Api) -> None:
    printed, answered = await steady(up, lambda: http.get("/topics", limit=1_000), "topic", "list")
    assert printed == answered["items"] == list(map(document, await http.admin.list_topics()))
    described = await http.get("/topics/quotes")
    (listed,) = (one for one in printed if one["name"] == "quotes")
    assert listed.items() <= described.items() and "partitions" not in listed


async def test_the_cluster_and_its_brokers(up: Up, http: Api) -> None:
    printed, answered = await steady(up, lambda: http.get("/cluster"), "cluster")
    assert {name: printed[name] for name in answered} == answered == document(await http.admin.describe_cluster())
    assert answered["brokers"] == (await http.get("/brokers"))["items"]
    (broker,) = answered["brokers"]
    assert broker.items() <= (await http.get("/brokers/1")).items()
    assert broker["controller"] and answered["controller"] == broker["id"]


async def test_a_new_topic(up: Up, http: Api) -> None:
    printed: Any = await asyncio.to_thread(up.json, "topic", "create", "made")
    again: Any = await asyncio.to_thread(up.json, "topic", "create", "made", "--if-missing")
    (listed,) = (one for one in (await http.get("/topics"))["items"] if one["name"] == "made")
    assert printed == again == listed
