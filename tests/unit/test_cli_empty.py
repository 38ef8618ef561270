"""`comet cluster empty` with a cluster that stands still: what it calls, and what it refuses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Self

import pytest

import comet
from comet.cli import _empty
from comet.cli._empty_plan import MOVES_MAX, plan_emptying
from comet.entities import BrokerInfo, ClusterInfo, PartitionInfo, TopicInfo
from comet.errors import BrokerNotFound, Forbidden, InvalidArgument, Timeout
from comet.settings.topic import TopicConfig, TopicDefaults

BROKERS = tuple(BrokerInfo(number, "h", 9092, "0") for number in (1, 2, 3))


class StillAdmin:
    """comet.Admin of three brokers, whose moves are decided and never done."""

    def __init__(self, *partitions: PartitionInfo) -> None:
        self.partitions = list(partitions)
        self.brokers = BROKERS
        self.hidden = 0
        self.calls: list[tuple[object, ...]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def describe_cluster(self) -> ClusterInfo:
        return ClusterInfo("c", 1, self.brokers, 1 + self.hidden, len(self.partitions), TopicDefaults())

    async def list_topics(self) -> list[TopicInfo]:
        return [TopicInfo("t", bytes(16), tuple(self.partitions), TopicConfig(), 0)]

    async def drain_broker(self, broker: int, *, undo: bool = False) -> None:
        self.calls.append(("undo" if undo else "drain", broker))

    async def move_partition(self, name: str, index: int, replicas: tuple[int, ...]) -> None:
        self.calls.append(("move", name, index, replicas))
        one = self.partitions[index]
        self.partitions[index] = replace(one, target=() if replicas == one.replicas else replicas)


def held(index: int, *replicas: int, target: tuple[int, ...] = ()) -> PartitionInfo:
    return PartitionInfo(index, replicas[0], 0, replicas, replicas, target=target)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> StillAdmin:
    found = StillAdmin(held(0, 1, 2), held(1, 2, 3), held(2, 3, 1, target=(2, 1)))
    monkeypatch.setattr(comet, "Admin", lambda _: found)
    return found


def run(broker: int = 3, **flags: Any) -> None:
    options: dict[str, Any] = {"undo": False, "wait": False, "timeout": "", "dry_run": False, "as_json": False} | flags
    asyncio.run(_empty.empty_broker("h:1", broker, **options))


def test_it_drains_first_and_goes_on_with_the_moves_under_way(
    admin: StillAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    run(dry_run=True)
    assert admin.calls == [] and "2 partitions would move away from broker 3" in capsys.readouterr().out
    run()
    assert admin.calls == [("drain", 3), ("move", "t", 1, (2, 1))]
    assert capsys.readouterr().out == "broker 3 holds 2 partitions, of which 2 move; repeat, or --wait\n"
    run()
    assert admin.calls[2:] == [("drain", 3)], "no move is started twice"


def test_its_undo_stops_the_moves_under_way_and_no_others(admin: StillAdmin) -> None:
    run(undo=True, dry_run=True)
    assert admin.calls == []
    run(undo=True)
    assert admin.calls == [("undo", 3), ("move", "t", 2, (3, 1))]
    assert not any(one.target for one in admin.partitions)


def test_what_it_refuses_changes_nothing(admin: StillAdmin) -> None:
    with pytest.raises(InvalidArgument, match="needs --wait"):
        run(timeout="1s")
    with pytest.raises(BrokerNotFound, match="broker 9 is not registered, and holds nothing"):
        run(9)
    admin.partitions.append(held(3, 1, 2, 3))
    with pytest.raises(InvalidArgument, match="t/3 has 3 replicas, and 2 other brokers stay"):
        run()
    admin.hidden = 2
    with pytest.raises(Forbidden, match="sees 1 of 3 topics"):
        run()
    assert admin.calls == []


def test_a_broker_that_is_away_is_not_drained(admin: StillAdmin) -> None:
    admin.brokers = BROKERS[:2]
    run()
    assert admin.calls == [("move", "t", 1, (2, 1))]


def test_a_wait_ends_at_its_timeout(admin: StillAdmin) -> None:
    with pytest.raises(Timeout, match="broker 3 still holds 2 partitions; the moves go on"):
        run(wait=True, timeout="0ms")


def test_a_limited_number_of_moves_is_under_way() -> None:
    waiting = [held(index, 3, 1) for index in range(2 * MOVES_MAX)]
    assert len(plan_emptying(3, BROKERS, [_topic(waiting)]).due) == MOVES_MAX
    under_way = [held(index, 3, 1, target=(2, 1)) for index in range(MOVES_MAX - 7)]
    plan = plan_emptying(3, BROKERS, [_topic([*under_way, *(held(one.partition + 100, 3, 1) for one in waiting)])])
    assert (len(plan.moving), len(plan.due), len(plan.moves)) == (MOVES_MAX - 7, 7, 2 * MOVES_MAX)
    more = [held(index, 3, 1, target=(2, 1)) for index in range(2 * MOVES_MAX)]
    assert plan_emptying(3, BROKERS, [_topic([*more, held(900, 3, 1)])]).due == ()


def _topic(partitions: list[PartitionInfo]) -> TopicInfo:
    return TopicInfo("t", bytes(16), tuple(partitions), TopicConfig(), 0)
