"""An app in memory, with a group and a broker that knows transactions: what tests of deliveries share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from comet.types import TopicPartition
from comet.v1 import groups_pb2 as groups_pb
from comet_testing.simulation.loop import run
from tests.unit.sdk_fake_group import FakeGroup, GroupApp
from tests.unit.sdk_fake_transactions import TransactionBroker

P0 = TopicPartition("in", 0)
P1 = TopicPartition("in", 1)
Scenario = Callable[[TransactionBroker, FakeGroup, GroupApp], Awaitable[None]]


def scenario(**settings: Any) -> Callable[[Scenario], Callable[[], None]]:
    def make(function: Scenario) -> Callable[[], None]:
        async def main() -> None:
            broker = TransactionBroker({"out": 1, "dead": 1, "in": 2})
            group = FakeGroup([P0, P1])

            def check(commit: groups_pb.Commit) -> None:
                group.member.check(commit)

            broker.check_group = check
            await function(broker, group, GroupApp(broker, group, **settings))
            assert all(member.closed for member in group.members)
            assert not broker.streams

        def test() -> None:
            run(lambda loop: main())

        test.__doc__ = function.__doc__
        return test

    return make


def letters(n: int) -> list[bytes]:
    return [b"%d" % i for i in range(n)]


def stop_when(a: GroupApp, ready: Callable[[], bool]) -> asyncio.Future[None]:
    async def watch() -> None:
        while not ready():  # noqa: ASYNC110 - what it waits for is in handlers' lists, and time is virtual
            await asyncio.sleep(0.01)
        a.stop()

    return asyncio.ensure_future(watch())
