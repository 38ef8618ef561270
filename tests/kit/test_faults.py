"""Requests that are refused, disks that are full, a metadata store that is away."""

from __future__ import annotations

import asyncio

import pytest

import comet as sdk
from comet_testing.cluster import Cluster


async def test_a_refused_request_is_repeated(comet: Cluster) -> None:
    await comet.topic("orders")
    await comet.topic("other")
    with (
        comet.fault(call="produce", topic="orders", error="NOT_LEADER", count=3) as refused,
        comet.observe(call="produce") as all_of_them,
    ):
        await comet.publish("other", b"1")
        assert refused.hits == 0
        await comet.publish("orders", b"1")
        await refused.hit(3)
    assert (refused.hits, all_of_them.hits) == (3, 2), "what is refused is not seen by those after it"
    assert await comet.values("orders") == [b"1"]


async def test_an_error_that_is_final_is_raised(comet: Cluster) -> None:
    await comet.topic("orders")
    with comet.fault(call="produce", error=sdk.errors.Forbidden), pytest.raises(sdk.errors.Forbidden):
        await comet.publish("orders", b"1")
    assert await comet.values("orders") == []


async def test_a_unary_call_is_refused(comet: Cluster) -> None:
    with comet.fault(call="create_topic", error="FORBIDDEN"), pytest.raises(sdk.errors.Forbidden):
        await comet.topic("orders")


async def test_a_fault_chooses_by_the_request_and_by_chance(comet: Cluster) -> None:
    await comet.topic("orders", partitions=2)
    with comet.observe(call="attach", when=lambda request: request.partition == 1) as second:
        await comet.publish("orders", b"1", partition=0)
        assert second.hits == 0
        await comet.publish("orders", b"1", partition=1)
        assert second.hits == 1
    with comet.fault(call="produce", error="NOT_LEADER", probability=0.5) as some:
        for _ in range(20):
            await comet.publish("orders", b"1", partition=0)
    assert some.hits > 0


async def test_mistakes_in_faults_are_named(comet: Cluster) -> None:
    with pytest.raises(sdk.errors.InvalidArgument, match="code such as"):
        comet.fault(call="produce", error="NO_SUCH_CODE")
    with pytest.raises(sdk.errors.InvalidArgument, match="probability"):
        comet.fault(call="produce", error="NOT_LEADER", probability=2)


async def test_a_full_disk_refuses_records_until_it_has_room(comet: Cluster) -> None:
    await comet.topic("orders", replicas=1)
    async with comet.disk_full(leader_of="orders/0"):
        task = asyncio.create_task(comet.publish("orders", b"x" * 100_000))
        await asyncio.wait([task], timeout=60)
        assert not task.done()
        assert await comet.values("orders") == []
    await task
    assert await comet.values("orders") == [b"x" * 100_000]


async def test_writes_wait_while_the_store_is_away(comet: Cluster) -> None:
    await comet.topic("orders")
    await comet.publish("orders", b"1")
    async with comet.lose_store():
        await comet.advance(10)
        task = asyncio.create_task(comet.publish("orders", b"2"))
        await asyncio.wait([task], timeout=5)
        assert not task.done()
    await task
    assert await comet.values("orders") == [b"1", b"2"]


async def test_a_slow_network_is_slow_until_it_is_healed(comet: Cluster) -> None:
    async def seconds() -> float:
        began = comet.now
        for _ in range(10):
            await comet.publish("orders", b"1")
        return comet.now - began

    await comet.topic("orders")
    await seconds()
    quick = await seconds()
    await comet.delay(400)
    slow = await seconds()
    await comet.heal()
    await comet.advance(1)
    assert slow > 5 * quick
    assert slow > 5 * await seconds()
