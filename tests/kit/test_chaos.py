"""Chaos against an application: one that keeps its promise, and one with a planted bug."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

import comet as sdk
from comet.testing import cluster, run
from comet_testing.cluster import Cluster

SEEDS_MAX = 20
ORDERS = 30


async def bill_orders(one: Cluster, delivery: Literal["at_most_once", "at_least_once", "exactly_once"]) -> None:
    """Orders are billed by an app under chaos: every order has a bill, with exactly_once just one."""
    app = sdk.App("localhost:9092")

    @app.on("orders", group="billing", start="earliest", delivery=delivery)
    async def bill(order: int) -> None:
        await asyncio.sleep(0.5)  # the work
        await app.publish("bills", order)

    @one.invariant
    async def every_order_has_a_bill() -> None:
        orders, bills = await one.values("orders", int), await one.values("bills", int)
        assert set(bills) == set(orders), f"without a bill: {sorted(set(orders) - set(bills))}"
        assert delivery != "exactly_once" or sorted(bills) == sorted(orders), "billed twice"

    await one.topic("orders", partitions=2)
    await one.topic("bills")
    async with one.app(app), one.chaos(minutes=2):
        for number in range(ORDERS):
            await one.publish("orders", number, key=str(number))
            await asyncio.sleep(2)


def billed(seed: int, delivery: Literal["at_most_once", "at_least_once", "exactly_once"]) -> str:
    """What was found wrong."""

    async def main() -> None:
        async with cluster(brokers=3, seed=seed) as one:
            await bill_orders(one, delivery)

    try:
        run(main())
    except AssertionError as error:
        return "\n".join([str(error), *getattr(error, "__notes__", [])])
    return ""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_an_app_that_acknowledges_after_its_work_keeps_its_promise(comet: Cluster, delivery: str) -> None:
    await bill_orders(comet, delivery)  # type: ignore[arg-type]


@pytest.mark.timeout(300)
def test_an_acknowledgement_before_the_work_is_found() -> None:
    """With delivery="at_most_once" the offset is committed before the handler has done its work."""
    found = next((text for seed in range(SEEDS_MAX) if (text := billed(seed, "at_most_once"))), "")
    assert "without a bill" in found and "chaos" in found and "seed" in found


async def test_a_fault_that_does_not_exist_is_named(comet: Cluster) -> None:
    with pytest.raises(sdk.errors.InvalidArgument, match="there is no fault 'meteor'"):
        async with comet.chaos(faults=["meteor"]):
            pass
