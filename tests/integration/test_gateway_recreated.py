"""A topic that is recreated under the same name, while the gateway still has the metadata of the old one: none of its
reads takes records of the one for those of the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import comet
import comet.testing
from comet.types import Earliest, Latest
from comet_gateway.brokers import catalog
from comet_gateway.brokers.backend import Backend
from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.dashboard.analytics import Result
from comet_gateway.dashboard.backfill import Past
from comet_gateway.dead_letters.dead_letter import PREFIX, DeadLetterState
from comet_gateway.dead_letters.index import DeadLetterIndex, Room
from comet_gateway.dead_letters.redrive import RedriveProgress, Settling, Task
from comet_gateway.dead_letters.registry import DeadLetterIndexes
from comet_gateway.push import replay
from comet_gateway.push.hub import Hub
from comet_gateway.push.parse_subscribe import Played
from comet_gateway.records.cursor import Cursor, CursorPosition
from comet_gateway.records.record_json import Values
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


@pytest.fixture
async def backend(broker: comet.testing.TestBroker) -> AsyncIterator[Backend]:
    async with Backend(GatewayConfig(bootstrap=broker.address)) as one:
        yield one


async def write(address: str, *values: str, **more: Any) -> None:
    async with comet.Producer(address, acks="all") as producer:
        for value in values:
            await producer.publish("quotes", value, **more)


async def recreate(address: str, **more: Any) -> None:
    async with comet.Admin(address) as admin:
        await admin.delete_topic("quotes")
        await admin.create_topic("quotes", partitions=1)
    await write(address, *(f"new {number}" for number in range(6)), **more)


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


async def test_records_of_the_new_topic_are_not_deleted(
    broker: comet.testing.TestBroker, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before a time, whose offsets were found in the old topic."""
    await write(broker.address, *(f"old {number}" for number in range(4)))
    offsets = comet.Admin.offsets

    async def and_then_recreated(self: comet.Admin, *args: Any) -> dict[int, int]:
        found = await offsets(self, *args)
        await recreate(broker.address)
        return found

    monkeypatch.setattr(comet.Admin, "offsets", and_then_recreated)
    answer = await http.post("/v1/topics/quotes/records/delete", json={"before": "latest"})
    assert answer.json()["partitions"][0]["error"]["code"] == "TOPIC_NOT_FOUND"
    assert values_of(await http.get(PARTITION)) == [f"new {number}" for number in range(6)]


async def test_a_consumer_of_the_old_topic_does_not_tell_the_end_of_the_new_one(
    broker: comet.testing.TestBroker,
) -> None:
    await write(broker.address, *(f"old {number}" for number in range(4)))
    async with comet.Consumer(broker.address, "quotes", start="earliest") as consumer:
        first = await consumer.get()
        assert first is not None
        assert first.offset == 0
        assert await consumer.end_offsets() == {0: 4}
        await recreate(broker.address)
        with pytest.raises(comet.TopicNotFound, match="deleted and recreated"):
            await consumer.end_offsets()


async def test_a_replay_does_not_go_on_in_the_new_topic(
    broker: comet.testing.TestBroker, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "FETCH_RECORDS", 1)
    await write(broker.address, *(f"old {number}" for number in range(4)))
    played = Played("quotes", None, Earliest(), Latest(), None, Values.AUTO, speed=0.0, paused=False)
    running = await replay.Replay.begin(played, backend.admin, backend.reader, Limits())
    await running.next()
    run = await running.next()
    assert isinstance(run, replay.Run)
    assert b"old 0" in run.sse()
    await recreate(broker.address)
    with pytest.raises(comet.TopicNotFound, match="deleted and recreated"):
        await running.next()


def letter(number: int) -> dict[str, str]:
    """Headers of a dead letter of the topic orders."""
    told = {"topic": "orders", "partition": "0", "offset": str(number), "group": "work", "reason": "late"}
    return {PREFIX + name: value for name, value in told.items()}


async def test_an_index_of_dead_letters_does_not_go_on_in_the_new_topic(
    broker: comet.testing.TestBroker, backend: Backend
) -> None:
    await write(broker.address, "old 0", "old 1", headers=letter(0))
    info = await backend.admin.describe_topic("quotes")
    fresh, index = (DeadLetterIndex(info, Room(100), 100) for _ in range(2))
    until = asyncio.get_running_loop().time() + 60
    assert await index.advance(backend.reader, until)
    assert len(list(index.dead_letters())) == 2
    await recreate(broker.address, headers=letter(1))
    for one in (fresh, index):
        with pytest.raises(comet.TopicNotFound, match="deleted and recreated"):
            await one.advance(backend.reader, until)
    assert not list(fresh.dead_letters())
    with pytest.raises(comet.TopicNotFound, match="deleted and recreated"):
        await DeadLetterIndexes(backend.admin, backend.reader, Limits())._holds(info, info.partitions)


async def test_a_redrive_does_not_write_records_of_the_new_topic(
    broker: comet.testing.TestBroker, backend: Backend
) -> None:
    await write(broker.address, "old 0", "old 1", headers=letter(0))
    async with comet.Admin(broker.address) as admin:
        await admin.create_topic("orders")
    info = await backend.admin.describe_topic("quotes")
    index = DeadLetterIndex(info, Room(100), 100)
    await index.advance(backend.reader, asyncio.get_running_loop().time() + 60)
    await recreate(broker.address, headers=letter(1))
    task = Task(DeadLetterState.REDRIVEN, list(index.dead_letters()), 1_000, "me", partitions={"orders": 1})
    settling = Settling(index, backend.reader, backend.producers[comet.Acks.ALL], task)
    end = [event async for event in settling.events()][-1]
    assert isinstance(end, RedriveProgress)
    assert (end.done, end.failed, end.stopped) == (0, 0, True)
    assert end.problem is not None
    assert end.problem.code == "TOPIC_NOT_FOUND"
    assert (await backend.admin.offsets("orders"))[0] == 0


async def test_the_history_of_a_chart_has_no_records_of_the_new_topic(
    broker: comet.testing.TestBroker, backend: Backend
) -> None:
    await write(broker.address, *(f"old {number}" for number in range(4)))
    info = await backend.admin.describe_topic("quotes")
    await recreate(broker.address)
    past = Past("quotes", backend, Limits(), Cursor(info.id, {0: CursorPosition(4)}), time.time_ns() // 1000)
    added: list[Any] = []
    with pytest.raises(comet.TopicNotFound, match="deleted and recreated"):
        async for _ in past.stretches(lambda *record: added.append(record)):
            pass
    assert not added


async def test_the_history_of_results_has_no_records_of_the_new_topic(
    broker: comet.testing.TestBroker, backend: Backend
) -> None:
    await write(broker.address, *(f"old {number}" for number in range(4)))
    config, taken = GatewayConfig(bootstrap=broker.address), list[Any]()
    hub = Hub(config, backend)
    result = Result(
        "quotes", lambda *record: taken.append(record), 3_600, hub, backend, Limits(), lambda: time.time_ns() // 1000
    )
    try:
        await result.caught_up.wait()
        assert len(taken) == 4
        info = await backend.admin.describe_topic("quotes")
        await hub.close()
        await recreate(broker.address)
        with pytest.raises(comet.TopicNotFound, match="deleted and recreated"):
            await result._read(info.id, 0, 0, 4, asyncio.get_running_loop().time() + 60)
        assert not [value for value, _ in taken if value.startswith(b"new")]
    finally:
        result.task.cancel()
        await asyncio.wait([result.task])
        await hub.close()
