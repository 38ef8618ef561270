"""The testing kit as users have it: an App on a cluster whose brokers die, over days that pass in milliseconds."""

from __future__ import annotations

import asyncio
import time

import pytest

import comet as sdk
from comet_testing.cluster import Cluster

app = sdk.App("localhost:9092")


@app.on("orders", group="reminders", start="earliest")
async def remind(order: dict) -> None:  # type: ignore[type-arg]
    await app.publish("reminders", order["id"], delay="2d")


async def test_an_app_runs_unchanged_over_days(comet: Cluster) -> None:
    await comet.topic("orders", partitions=4)
    await comet.topic("reminders")
    async with comet.app(app):
        await comet.publish("orders", {"id": 1})
        await comet.advance("1d")
        assert await comet.records("reminders") == []
        await comet.advance("2d")
        [reminder] = await comet.records("reminders", int)
    assert reminder.value == 1
    [order] = await comet.records("orders")
    assert reminder.timestamp_us - order.timestamp_us == pytest.approx(2 * 86_400_000_000, rel=1e-5)


async def test_a_killed_leader_loses_nothing(comet: Cluster) -> None:
    await comet.topic("orders")
    await comet.publish("orders", b"1")
    killed = await comet.kill(leader_of="orders/0")
    await comet.publish("orders", b"2")
    assert await comet.leader("orders/0") not in {killed, 0}
    await comet.restart(killed)
    await comet.advance(10)
    assert await comet.values("orders") == [b"1", b"2"]


async def test_a_power_cut_loses_nothing_acknowledged(comet: Cluster) -> None:
    await comet.topic("orders")
    await comet.publish("orders", b"1")
    cut = await comet.power_cut(leader_of="orders/0")
    await comet.restart(cut)
    assert await comet.values("orders") == [b"1"]


@pytest.mark.comet(brokers=1)
async def test_one_broker(comet: Cluster) -> None:
    await comet.topic("orders")
    assert (await comet.publish("orders", b"1")).offset == 0
    await comet.restart(1)
    assert await comet.values("orders") == [b"1"]


async def test_any_client_of_the_test_reaches_the_cluster(comet: Cluster) -> None:
    async with sdk.Producer("a.example:9092", create=sdk.NewTopic(replicas=3)) as producer:
        await producer.publish("quotes", "1.08", key="EURUSD")
    async with sdk.Consumer("b.example:9092", "quotes", type=str, start="earliest") as consumer:
        async for record in consumer:
            assert (record.key, record.value) == (b"EURUSD", "1.08")
            break


async def test_a_broker_that_is_isolated_does_not_lead(comet: Cluster) -> None:
    await comet.topic("orders")
    leader = await comet.leader("orders/0")
    await comet.isolate(leader)
    await comet.advance(20)
    assert await comet.leader("orders/0") not in {leader, 0}
    await comet.publish("orders", b"1")
    await comet.heal()
    await comet.advance(20)
    assert await comet.values("orders") == [b"1"]


async def test_an_app_that_is_killed_goes_on_where_it_was(comet: Cluster) -> None:
    handled = []
    worker = sdk.App()

    @worker.on("orders", group="workers", start="earliest")
    async def work(number: int) -> None:
        await asyncio.sleep(3600)
        handled.append(number)

    await comet.topic("orders")
    async with comet.app(worker):
        await comet.publish("orders", 1)
        await comet.advance(1800)
        await comet.kill(worker)
        await comet.advance(7200)
        assert handled == []
        await comet.restart(worker)
        await comet.advance(7200)
        assert handled == [1]


async def test_a_paused_app_does_nothing_until_it_is_resumed(comet: Cluster) -> None:
    handled = []
    worker = sdk.App()

    @worker.on("orders", group="workers", start="earliest")
    async def work(number: int) -> None:
        handled.append(number)

    await comet.topic("orders")
    async with comet.app(worker):
        await comet.pause(worker)
        await comet.publish("orders", 1)
        await comet.advance(5)
        assert handled == []
        await comet.resume(worker)
        await comet.advance(60)
        assert handled == [1]


async def test_clocks_of_the_test_are_virtual(comet: Cluster) -> None:
    wall, monotonic = time.time(), time.monotonic()
    await comet.advance("30d")
    assert time.time() - wall == pytest.approx(30 * 86_400, abs=1e-3)
    assert time.monotonic() - monotonic == pytest.approx(30 * 86_400, abs=1e-3)


async def test_timers_of_the_test_are_in_order_with_the_rest(comet: Cluster) -> None:
    began = comet.now
    at: list[float] = []

    async def every_day() -> None:
        while True:
            await asyncio.sleep(86_400)
            at.append(comet.now - began)

    task = asyncio.create_task(every_day())
    await comet.advance("3.5d")
    task.cancel()
    assert at == pytest.approx([86_400, 2 * 86_400, 3 * 86_400], abs=1e-3)


async def test_retention_deletes_what_is_old(comet: Cluster) -> None:
    await comet.topic("quotes", retention_ms=86_400_000, segment_ms=3_600_000)
    await comet.publish("quotes", b"old")
    await comet.advance("2d")
    await comet.publish("quotes", b"new")
    await comet.advance("30s")
    assert await comet.values("quotes") == [b"new"]


async def test_a_mistake_is_named(comet: Cluster) -> None:
    with pytest.raises(sdk.errors.InvalidArgument, match="there is no partition orders/0"):
        await comet.kill(leader_of="orders/0")
    with pytest.raises(sdk.errors.InvalidArgument, match="name a broker"):
        await comet.kill()
    with pytest.raises(sdk.errors.InvalidArgument, match="no such broker"):
        await comet.restart(7)
    with pytest.raises(sdk.errors.InvalidArgument, match="does not run here"):
        await comet.kill(app)


async def test_a_record_is_written_when_it_is_due(comet: Cluster) -> None:
    """Also where the time before it is skipped."""
    at: list[float] = []
    reader = sdk.App()

    @reader.on("reminders", group="readers", start="earliest")
    async def read(number: int) -> None:
        at.append(comet.now)

    await comet.topic("reminders")
    async with comet.app(reader), sdk.Producer() as producer:
        began = comet.now
        for days in (3, 1.25):
            await producer.publish("reminders", 1, delay=days * 86_400)
        await comet.advance("4d")
    assert at == pytest.approx([began + 1.25 * 86_400, began + 3 * 86_400], abs=1)
