"""Server-sent events of a live gateway: resume by id, errors by status, named events, heartbeats, replays, drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import comet
from comet_gateway.push import replay
from tests.integration.live_gateway import PATIENCE_S, Gateway, live_gateway, small
from tests.waiting import until


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with live_gateway({"one": 1, "two": 2}) as running:
        yield running


@pytest.fixture
async def producer(gateway: Gateway) -> AsyncIterator[comet.Producer]:
    async with comet.Producer(gateway.broker) as one:
        yield one


async def test_each_record_is_an_event_and_its_id_leads_back_to_it(gateway: Gateway, producer: comet.Producer) -> None:
    ids: list[str] = []
    async with gateway.stream("two/stream") as stream:
        name, begun = await stream.next()
        assert (name, begun["recovered"], begun["missing"]) == ("subscribed", None, [])
        assert stream.retry_ms == 1_000 and stream.last_id == begun["cursor"]
        ids.append(stream.last_id)
        for number in range(6):
            await producer.publish("two", f"number {number}", partition=number % 2)
        got = await stream.records(6)
        ids += [id_ for id_, _ in got]
        assert sorted(record["text"] for _, record in got) == [f"number {number}" for number in range(6)]
    everything = [record["text"] for _, record in got]
    for index, id_ in enumerate(ids):
        async with gateway.stream("two/stream?start=latest", last_event_id=id_) as stream:
            name, begun = await stream.next()
            assert name == "subscribed" and begun["recovered"] is True
            rest = [record["text"] for _, record in await stream.records(6 - index)]
            assert sorted(rest) == sorted(everything[index:])
        async with gateway.stream(f"two/stream?cursor={id_}") as stream:
            assert (await stream.next())[1]["recovered"] is True


async def test_who_comes_back_too_late_is_told_what_is_gone(gateway: Gateway, producer: comet.Producer) -> None:
    async with gateway.stream("one/stream") as stream:
        cursor = (await stream.next())[1]["cursor"]
    for number in range(4):
        await producer.publish("one", f"number {number}")
    async with comet.Admin(gateway.broker) as admin:
        await admin.delete_records("one", 0, 3)
    async with gateway.stream("one/stream", last_event_id=cursor) as stream:
        _, begun = await stream.next()
        assert begun["recovered"] is False
        assert begun["missing"] == [{"partition": 0, "first": "0", "end": "3", "reason": "deleted"}]
        assert [record["text"] for _, record in await stream.records(1)] == ["number 3"]


async def test_latest_of_each_key_as_a_snapshot_and_conflated(gateway: Gateway, producer: comet.Producer) -> None:
    await (await producer.send_many("one", [f"v{n}" for n in range(10)], keys=[f"k{n % 2}" for n in range(10)]))
    async with gateway.stream("one/stream?snapshot=latest&policy=conflate&interval_ms=20") as stream:
        assert (await stream.next())[0] == "subscribed"
        name, snapshot = await stream.next()
        assert name == "snapshot" and sorted(one["text"] for one in snapshot["records"]) == ["v8", "v9"]
        assert snapshot["cursor"] == stream.last_id
        await producer.publish("one", "v10", key="k0")
        name, latest = await stream.next()
        assert name == "latest" and [one["text"] for one in latest["records"]] == ["v10"]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("none/stream", 404, "TOPIC_NOT_FOUND"),
        ("one/stream?partitions=7", 404, "PARTITION_NOT_FOUND"),
        ("one/stream?partitions=x", 422, "VALIDATION"),
        ("one/stream?odd=1", 422, "VALIDATION"),
        ("one/stream?start=latest&start=earliest", 422, "VALIDATION"),
        ("one/stream?policy=odd", 422, "VALIDATION"),
        ("one/stream?buffer=x", 422, "VALIDATION"),
        ("one/stream?buffer=0", 400, "INVALID_ARGUMENT"),
        ("one/stream?start=yesterday", 400, "INVALID_ARGUMENT"),
        ("one/stream?start=-99999999999999999999d", 400, "INVALID_ARGUMENT"),
        ("one/stream?from=-1h&to=99999999999999999999", 400, "INVALID_ARGUMENT"),
        ("one/stream?cursor=c1", 400, "MALFORMED_CURSOR"),
        ("one/stream?to=-1h", 400, "INVALID_ARGUMENT"),
        ("one/stream?speed=2", 400, "INVALID_ARGUMENT"),
        ("one/stream?from=-1h&speed=nan", 400, "INVALID_ARGUMENT"),
        ("one/stream?from=-1h&snapshot=latest", 400, "INVALID_ARGUMENT"),
        ("one/stream?from=-2d", 400, "INVALID_ARGUMENT"),
        ("../stream", 404, "NOT_FOUND"),
    ],
)
async def test_what_is_wrong_with_a_request_is_told_by_its_status(
    gateway: Gateway, path: str, status: int, code: str
) -> None:
    async with gateway.stream(path) as stream:
        assert (stream.status, stream.answer.json()["code"]) == (status, code)


async def test_a_replay_ends_and_goes_on_from_its_last_id(gateway: Gateway, producer: comet.Producer) -> None:
    begin_us = 1_700_000_000_000_000
    for number in range(10):
        await producer.publish(
            "two", f"number {number}", partition=number % 2, timestamp_us=begin_us + number * 1_000_000
        )
    path = "two/stream?from=2023-11-14T22:13:22Z&to=2023-11-14T22:13:28Z&speed=0"  # seconds 2 to 8
    async with gateway.stream(path) as stream:
        assert (await stream.next())[0] == "subscribed"
        got = await stream.records(6)
        assert [record["text"] for _, record in got] == [f"number {number}" for number in range(2, 8)]
        name, end = await stream.next()
        assert (name, end["reason"]) == ("end", "replayed")
        with pytest.raises(StopAsyncIteration):
            await stream.next()
    async with gateway.stream(path, last_event_id=got[2][0]) as stream:
        await stream.next()
        assert [record["text"] for _, record in await stream.records(3)] == ["number 5", "number 6", "number 7"]


async def test_a_topic_that_is_deleted_ends_the_stream_with_a_problem(gateway: Gateway) -> None:
    async with gateway.stream("one/stream") as stream:
        await stream.next()
        async with comet.Admin(gateway.broker) as admin:
            await admin.delete_topic("one")
        name, problem = await stream.next()
        assert (name, problem["code"]) == ("error", "TOPIC_NOT_FOUND")
        with pytest.raises(StopAsyncIteration):
            await stream.next()


async def test_while_it_is_quiet_comments_keep_it_alive() -> None:
    async with live_gateway(["one"], limits=small(heartbeat_s=0.03)) as gateway, gateway.stream("one/stream") as stream:
        await stream.next()
        quiet = asyncio.create_task(stream.next())
        assert await until(lambda: stream.comments >= 3, within_s=PATIENCE_S)
        async with comet.Producer(gateway.broker) as producer:
            await producer.publish("one", "loud")
        assert (await quiet)[1]["text"] == "loud"


async def test_a_client_that_goes_is_noticed_at_once(gateway: Gateway) -> None:
    state = gateway.server.app.state
    nothing = {"connections": 0, "subscriptions": 0, "members": 0, "replays": 0}
    for _ in range(5):
        async with gateway.stream("one/stream") as stream:
            await stream.next()
            assert state.connections.statistics()["connections"] == 1
        assert await until(lambda: state.hub.statistics()["subscriptions"] == 0, within_s=PATIENCE_S)
        assert await until(lambda: state.traffic.statistics()["streams"] == 0, within_s=PATIENCE_S)
        assert await until(lambda: state.connections.statistics() == nothing, within_s=PATIENCE_S)


class Silent:
    """A reader that no broker answers."""

    def __init__(self) -> None:
        self.asked = 0

    async def fetch(self, *_: Any, **__: Any) -> comet.Fetched:
        self.asked += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.asked -= 1
        raise AssertionError


@pytest.mark.parametrize(
    "path",
    ["?snapshot=latest", "?start=earliest&policy=conflate", "?start=1", "?from=-1h"],
)
@pytest.mark.parametrize("end", ["the client goes", "the gateway stops"])
async def test_who_goes_before_it_has_begun_leaves_nothing_behind(path: str, end: str) -> None:
    async with (
        live_gateway(["one"], limits=small(feed_start_s=3600.0)) as gateway,
        comet.Producer(gateway.broker) as producer,
    ):
        await producer.publish("one", "a record")
        state = gateway.server.app.state
        silent = state.hub._log._reader = state.backend.reader = Silent()

        async def ask() -> int:
            async with gateway.stream(f"one/stream{path}") as stream:
                return stream.status

        asking = asyncio.create_task(ask())
        assert await until(lambda: silent.asked == 1, within_s=PATIENCE_S)
        if end == "the client goes":
            asking.cancel()
        else:
            gateway.server.stop()
            assert await asking == 503
        assert await until(lambda: silent.asked == 0, within_s=PATIENCE_S)
        hub = state.hub.statistics()
        assert (hub["subscriptions"], hub["waiting_for_brokers"], state.hub._log._flights) == (0, 0, {})
        assert await until(lambda: state.traffic.statistics()["requests"] == 0, within_s=PATIENCE_S)
        nothing = {"connections": 0, "subscriptions": 0, "members": 0, "replays": 0}
        assert state.connections.statistics() == nothing
        tables = [table for feed in hub["feeds"].values() for table in feed["tables"].values()]
        assert sum(table["users"] for table in tables) == 0


class Failing:
    """A reader that brokers answer so many times."""

    def __init__(self, reader: comet.Reader, times: int) -> None:
        self._reader = reader
        self._left = times

    async def fetch(self, *what: Any, **options: Any) -> comet.Fetched:
        self._left -= 1
        if self._left < 0:
            raise comet.Unavailable("nobody leads it", retry_after_ms=300)
        return await self._reader.fetch(*what, **options)


async def test_a_replay_that_cannot_go_on_ends_with_a_problem(
    gateway: Gateway, producer: comet.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "FETCH_RECORDS", 1)
    for text in ("first", "second"):
        await producer.publish("one", text)
    backend = gateway.server.app.state.backend
    monkeypatch.setattr(backend, "reader", Failing(backend.reader, 3))  # where it begins and ends, and the first record
    async with gateway.stream("one/stream?from=-1h&speed=0") as stream:
        assert (await stream.next())[0] == "subscribed"
        assert [record["text"] for _, record in await stream.records(1)] == ["first"]
        name, problem = await stream.next()
        assert (name, problem["code"], problem["retry_after_ms"]) == ("error", "UNAVAILABLE", 300)
        with pytest.raises(StopAsyncIteration):
            await stream.next()
    monkeypatch.setattr(backend, "reader", Failing(backend.reader, 0))
    async with gateway.stream("one/stream?from=-1h") as stream:
        assert (stream.status, stream.answer.json()["code"]) == (503, "UNAVAILABLE")


async def test_a_gateway_that_stops_says_when_to_come_back(gateway: Gateway) -> None:
    async with gateway.stream("one/stream") as first, gateway.stream("two/stream?from=-1h&speed=1") as second:
        for stream in (first, second):
            await stream.next()
        gateway.server.stop()
        name, told = await first.next()
        assert name == "goaway" and told["reconnect_ms"] == first.retry_ms <= 2_000
        with pytest.raises(StopAsyncIteration):
            await first.next()


async def test_a_client_that_does_not_read_gets_everything_later(gateway: Gateway, producer: comet.Producer) -> None:
    async with gateway.stream("one/stream") as stream:
        await stream.next()
        for at in range(0, 2_000, 100):
            await (await producer.send_many("one", [f"{at + n:05}".encode() * 2_000 for n in range(100)]))
        got = [record["value"] if "value" in record else record["text"] for _, record in await stream.records(2_000)]
        assert [str(text)[:5] for text in got] == [f"{number:05}" for number in range(2_000)]
