"""A topic that is recreated under the same name, while the gateway still has the metadata of the old one: none of its
reads takes records of the one for those of the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import comet
import comet.testing
from comet_gateway.brokers import catalog
from tests.integration.records_client import http, lines_of

__all__ = ["http"]  # a fixture

PARTITION = "/v1/topics/quotes/partitions/0/records"
TOPIC = "/v1/topics/quotes/records"
SEARCH = "/v1/topics/quotes/search"
EXPORT = "/v1/topics/quotes/export"


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[comet.testing.TestBroker]:
    monkeypatch.setattr(catalog, "FRESH_S", 3_600.0)  # what the gateway knows stays old
    async with comet.testing.broker({"quotes": 1}) as one:
        yield one


async def write(address: str, *values: str) -> None:
    async with comet.Producer(address, acks="all") as producer:
        for value in values:
            await producer.publish("quotes", value)


async def recreate(address: str) -> None:
    async with comet.Admin(address) as admin:
        await admin.delete_topic("quotes")
        await admin.create_topic("quotes", partitions=1)
    await write(address, *(f"new {number}" for number in range(6)))


async def cursor_of(http: httpx.AsyncClient, path: str) -> str:
    """A cursor of the old topic, after two of its records."""
    if path in (SEARCH, EXPORT):
        end: dict[str, Any] = lines_of(await http.get(SEARCH, params={"limit": 2}))[-1]["end"]
        return str(end["cursor"])
    return str((await http.get(path, params={"limit": 2})).json()["cursor"])


def values_of(answer: httpx.Response) -> list[Any]:
    lines = answer.json()["records"] if "records" in answer.text[:20] else lines_of(answer)
    records = [line.get("record", line) for line in lines]
    return [record["text"] for record in records if "text" in record]


@pytest.mark.parametrize("path", [PARTITION, TOPIC, SEARCH, EXPORT])
@pytest.mark.parametrize("order", ["oldest", "newest"])
async def test_a_cursor_of_the_old_topic_is_refused(
    broker: comet.testing.TestBroker, http: httpx.AsyncClient, path: str, order: str
) -> None:
    await write(broker.address, *(f"old {number}" for number in range(4)))
    cursor = await cursor_of(http, path)
    await recreate(broker.address)
    more = {} if path == PARTITION else {"order": order}
    answer = await http.get(path, params={"cursor": cursor, **more})
    assert answer.json()["code"] == "TRUNCATED"


@pytest.mark.parametrize("path", [PARTITION, TOPIC, SEARCH, EXPORT])
async def test_a_new_read_is_of_the_new_topic_and_so_is_its_cursor(
    broker: comet.testing.TestBroker, http: httpx.AsyncClient, path: str
) -> None:
    await write(broker.address, *(f"old {number}" for number in range(4)))
    await cursor_of(http, path)
    await recreate(broker.address)
    answer = await http.get(path, params={"limit": 2})
    assert values_of(answer) == ["new 0", "new 1"]
    cursor = await cursor_of(http, path)
    assert values_of(await http.get(path, params={"limit": 2, "cursor": cursor})) == ["new 2", "new 3"]


async def test_a_value_is_that_of_the_new_topic(broker: comet.testing.TestBroker, http: httpx.AsyncClient) -> None:
    await write(broker.address, "old")
    await cursor_of(http, PARTITION)
    await recreate(broker.address)
    assert (await http.get(f"{PARTITION}/5/value")).text == "new 5"


async def test_a_range_does_not_go_on_in_the_new_topic(broker: comet.testing.TestBroker) -> None:
    await write(broker.address, *(f"old {number}" for number in range(4)))
    async with comet.Reader(broker.address) as reader:
        for backward in (False, True):
            reading = reader.read("quotes", 0, backward=backward, step_records=1)
            first = await anext(reading)
            assert not isinstance(first, comet.Gap)
            merged = await reader.read_merged("quotes", backward=backward, step_records=1)
            await anext(merged)
            await recreate(broker.address)
            with pytest.raises(comet.TopicNotFound, match="deleted and recreated"):
                await anext(reading)
            with pytest.raises(comet.TopicNotFound, match="deleted and recreated"):
                await anext(merged)
