"""Topics that match a pattern: one that cannot be followed holds up no other, and is followed as soon as it can be."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

import comet
from comet.entities import TopicInfo
from comet.settings.topic import TopicConfig
from comet.types import Earliest, Position
from comet_gateway.config import Limits
from comet_gateway.http.problems import Problem
from comet_gateway.push import pattern_watch
from comet_gateway.push.events import Failed
from comet_gateway.push.pattern_watch import PatternWatch
from comet_gateway.push.subscribe_request import SubscribeRequest
from comet_gateway.push.subscription import Subscription
from tests.waiting import until

LIMITS = Limits(pattern_s=0.001, pattern_topics_max=3)
EVERYTHING = re.compile(".*")


@dataclass
class Cluster:
    """Topics, and who has joined them. `slow`: they have no leader, and who joins waits; `dead`: it is told so."""

    names: list[str]
    slow: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    refused: dict[str, Exception] = field(default_factory=dict)
    joining: int = 0
    looks: int = 0
    starts: dict[str, Position | None] = field(default_factory=dict)

    async def list_topics(self) -> list[TopicInfo]:
        self.looks += 1
        return [TopicInfo(name, name.encode(), (), TopicConfig(), 0) for name in self.names]

    async def join(self, subscription: Subscription, topic: str, start: Position | None) -> None:
        self.joining += 1
        try:
            await asyncio.sleep(0)
            if topic in self.slow:
                await asyncio.Event().wait()
            if topic in self.dead:
                raise comet.Unavailable("nobody leads it", retry_after_ms=1000)
            if topic in self.refused:
                raise self.refused[topic]
            assert topic not in subscription.subscribers
            subscription.subscribers[topic] = cast(Any, Nobody())
            self.starts[topic] = start
        finally:
            self.joining -= 1

    def watch(self) -> PatternWatch:
        return PatternWatch(cast(comet.Admin, self), LIMITS, self.join)


class Nobody:
    """A hub and a subscriber that need nothing."""

    def left(self, subscription: Subscription) -> None: ...
    def leave(self) -> None: ...


def subscriber() -> Subscription:
    return Subscription(SubscribeRequest(pattern=".*"), Nobody())


async def looked(cluster: Cluster, times: int = 3) -> None:
    looks = cluster.looks
    assert await until(lambda: cluster.looks >= looks + times, within_s=10, every_s=0)


async def test_a_topic_that_has_no_leader_holds_up_none_that_is_made_later() -> None:
    cluster = Cluster(["a"])
    watch, subscription, other = cluster.watch(), subscriber(), subscriber()
    for one in (subscription, other):
        await watch.add(one, EVERYTHING)
    cluster.slow.add("b")
    cluster.names.append("b")
    await looked(cluster)
    cluster.names.append("c")
    for one in (subscription, other):
        assert await until(lambda: {"a", "c"} == one.subscribers.keys(), within_s=10, every_s=0)  # noqa: B023 - at once
    assert cluster.joining == 2, "each waits for it once"
    watch.remove(subscription)
    assert await until(lambda: cluster.joining == 1, within_s=10, every_s=0), "who goes waits no more"
    await watch.close()
    assert cluster.joining == 0


class Compared:
    """An expression that notes the names that are matched."""

    pattern = ".*"

    def __init__(self) -> None:
        self.names: list[str] = []

    def fullmatch(self, name: str) -> bool:
        self.names.append(name)
        return name != "other"


async def test_a_name_is_matched_once() -> None:
    cluster, compared = Cluster(["a", "other"]), Compared()
    watch, subscription = cluster.watch(), subscriber()
    await watch.add(subscription, cast(Any, compared))
    cluster.dead.add("b")  # it matches, and is tried again at each look
    cluster.names.append("b")
    await looked(cluster, 5)
    cluster.dead.clear()
    assert await until(lambda: {"a", "b"} == subscription.subscribers.keys(), within_s=10, every_s=0)
    await watch.close()
    assert compared.names == ["a", "other", "b"]


async def test_internal_topics_match_only_a_pattern_that_begins_as_they_do() -> None:
    for pattern, expected in ((".*", {"a"}), ("__.*", {"__audit"})):
        cluster = Cluster(["a", "__audit"])
        watch, subscription = cluster.watch(), subscriber()
        await watch.add(subscription, re.compile(pattern))
        assert set(subscription.subscribers) == expected
        await watch.close()


async def test_matching_leaves_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_watch, "TURN_S", -1.0)  # every name takes longer than a turn
    cluster, compared = Cluster(["other"] * 50), Compared()
    watch, turns = cluster.watch(), 0
    adding = asyncio.create_task(watch.add(subscriber(), cast(Any, compared)))
    while len(compared.names) < 50:
        await asyncio.sleep(0)
        turns += 1
    await adding
    await watch.close()
    assert turns >= 50


async def test_what_has_no_leader_at_first_is_told_and_begun_later_where_it_was_asked_for() -> None:
    cluster = Cluster(["a", "b"], dead={"a", "b"})
    watch, subscription = cluster.watch(), subscriber()
    with pytest.raises(comet.Unavailable):
        await watch.add(subscription, EVERYTHING)  # nothing at all can be followed
    cluster.dead.remove("a")
    await watch.add(subscription, EVERYTHING)
    told = await subscription.next()
    assert isinstance(told, Failed)
    assert (told.topic, told.code, told.retry_after_ms) == ("b", "UNAVAILABLE", 1000)
    await looked(cluster)
    cluster.names.append("c")
    cluster.dead.clear()
    assert await until(lambda: subscription.subscribers.keys() == {"a", "b", "c"}, within_s=10, every_s=0)
    assert cluster.starts == {"a": None, "b": None, "c": Earliest()}, "None: as it was asked for"
    assert not subscription.ready(), "it is told once"
    await watch.close()


async def test_no_more_are_joined_than_may_match_however_many_come_at_once() -> None:
    cluster = Cluster(["a"])
    watch, subscription = cluster.watch(), subscriber()
    await watch.add(subscription, EVERYTHING)
    cluster.names += ["b", "c", "d", "e"]
    assert await until(lambda: len(subscription._notices) == 2, within_s=10, every_s=0)
    assert subscription.subscribers.keys() == {"a", "b", "c"}
    told = [await subscription.next() for _ in range(2)]
    assert [(one.topic, one.code) for one in told if isinstance(one, Failed)] == [
        ("d", "TOO_MANY_REQUESTS"), ("e", "TOO_MANY_REQUESTS"),
    ]  # fmt: skip
    cluster.names = ["c", "e"]
    del subscription.subscribers["a"], subscription.subscribers["b"]
    await looked(cluster)
    cluster.names.append("d")  # the last one was another
    assert await until(lambda: "d" in subscription.subscribers, within_s=10, every_s=0)
    assert "e" not in subscription.subscribers
    await watch.close()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (comet.DataLoss("it is damaged"), "DATA_LOSS"),
        (Problem("TOO_MANY_REQUESTS", "too many"), "TOO_MANY_REQUESTS"),
        (ValueError("a bug"), "INTERNAL"),
    ],
)
async def test_what_cannot_be_joined_is_told_once_and_the_others_are_looked_for_further(
    error: Exception, code: str
) -> None:
    cluster = Cluster(["a"], refused={"b": error})
    watch, subscription = cluster.watch(), subscriber()
    await watch.add(subscription, EVERYTHING)
    cluster.names += ["b"]
    told = await subscription.next()
    assert isinstance(told, Failed)
    assert (told.topic, told.code) == ("b", code)
    cluster.names += ["c"]
    assert await until(lambda: "c" in subscription.subscribers, within_s=10, every_s=0)
    await looked(cluster)
    assert not subscription.ready()
    await watch.close()
