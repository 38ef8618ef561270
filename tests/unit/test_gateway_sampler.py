"""What the gateway knows of a cluster from second to second: brokers that answer, are slow, silent, gone and back.

On virtual time (comet_testing.simulation.loop), with brokers that are made up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from typing import Any, cast

import pytest

import comet
from comet.errors import BrokerNotFound, LimitExceeded, Unavailable
from comet_gateway.dashboard.broker_pool import ANSWER_S, TAKEN_OVER_S
from comet_gateway.dashboard.metric_history import TREND_S, WATCHED_S
from comet_gateway.dashboard.sampler import AFTER_S, GATHER_S, HURRY_S, PATIENCE_S, Sampler
from comet_testing.simulation import loop as sim
from comet_web import facts

CONFIG = comet.TopicConfig()
EPOCH_S = 1_700_000_000  # of the wall clock, when the loop's is 0


class World:
    """A cluster of which the tests say how it is. What a broker counts in a second is its own number."""

    def __init__(self, brokers: Iterable[int] = (1, 2, 3)) -> None:
        self.alive = set(brokers)  # the cluster counts them in
        self.silent: set[int] = set()  # never answer
        self.dead: set[int] = set()  # refuse
        self.delay_s: dict[int, float] = {}
        self.revision = 1
        self.leaders: dict[str, list[int]] = {}
        self.groups: dict[int, list[dict[str, Any]]] = {}
        self.events: dict[int, list[comet.ClusterEvent]] = {}
        self.asked: Counter[str] = Counter()  # questions, by name
        self.asked_of: Counter[int] = Counter()
        self.at: dict[str, int] = {f"b{broker}:1": broker for broker in brokers}
        self.closed: list[int] = []
        self.long = True  # histories of topics are not too long
        self.set_back_s = 0  # all clocks were
        self.records: Any = 100  # of a partition

    def connect(self, address: str) -> comet.Admin:
        return cast(comet.Admin, FakeAdmin(self, address))

    def sampler(self) -> Sampler:
        return Sampler("any:1", self.connect("any:1"), self.connect, clock_us=self.now_us)

    def now_us(self) -> int:
        return round((asyncio.get_running_loop().time() + EPOCH_S - self.set_back_s) * 1e6)

    def infos(self) -> list[comet.TopicInfo]:
        return [
            comet.TopicInfo(
                name,
                b"",
                tuple(
                    comet.PartitionInfo(index, leader or None, 1, (leader or 1, 3), (leader,) if leader else ())
                    for index, leader in enumerate(leaders)
                ),
                CONFIG,
                0,
            )
            for name, leaders in sorted(self.leaders.items())
        ]


class FakeAdmin:
    """As comet.Admin, of the broker at one address, or any."""

    def __init__(self, world: World, address: str) -> None:
        self._world = world
        self._address = address

    async def _broker(self, what: str) -> int:
        world = self._world
        world.asked[what] += 1
        there = sorted(world.alive - world.dead - world.silent)
        broker = world.at.get(self._address, there[0] if there else 0)
        world.asked_of[broker] += 1
        if broker in world.silent:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(world.delay_s.get(broker, 0.001))
        if broker in world.dead or not broker:
            raise Unavailable(f"no broker answers at {self._address}")
        return broker

    async def statistics(self, *, brief: bool, topics: bool, groups: bool) -> dict[str, Any]:
        assert brief
        assert topics
        assert groups
        world, me = self._world, await self._broker("statistics")
        led = {name: leaders.count(me) for name, leaders in world.leaders.items() if me in leaders}
        return {
            "broker_id": me, "version": "1", "started_us": me, "now_us": world.now_us(), "session_count": 1,
            "metadata_revision": world.revision, "free_bytes": 9, "disk_used": 5, "cpu": 0.5, "memory_bytes": 7,
            "totals": {"leading": sum(led.values()), "partitions": 4, "bytes": 5},
            "rates": {"records_in": 10.0, "bytes_in": 100.0, "records_out": 5.0, "bytes_out": 50.0, "errors": 0.0},
            "latency": {"ack_p99_ms": 2.0}, "problems": {},
            "topics": {
                name: {"leading": number, "records": world.records * number, "bytes": 10 * number,
                       "in_rate": 1.0 * number, "in_bytes_rate": 8.0, "out_rate": 0.5, "last_us": 40 + me}
                for name, number in led.items()
            },
            "groups": world.groups.get(me, []),
        }  # fmt: skip

    async def describe_cluster(self) -> comet.ClusterInfo:
        await self._broker("describe_cluster")
        brokers = tuple(comet.BrokerInfo(id_, f"b{id_}", 1, "1") for id_ in sorted(self._world.alive))
        return comet.ClusterInfo("cluster", min(self._world.alive, default=0), brokers, 0, 0)

    async def list_topics(self) -> list[comet.TopicInfo]:
        await self._broker("list_topics")
        return self._world.infos()

    async def history(
        self, *, topics: Iterable[str] = (), every_topic: bool = False, groups: Iterable[str] = (),
        step_s: int = 1, since_us: int = 0,
    ) -> comet.History:  # fmt: skip
        world, me = self._world, await self._broker(f"history {step_s}")
        if every_topic and not world.long:
            raise LimitExceeded("too much")
        end = world.now_us() // (step_s * 1_000_000)
        first = max(end - 5, since_us // (step_s * 1_000_000) + 1)

        def track(topic: str, group: str, figure: str) -> comet.HistoryTrack:
            return comet.HistoryTrack(topic, group, figure, step_s, end * step_s * 1_000_000, (float(me),) * count)

        if (count := end - first + 1) <= 0:
            return comet.History((), tuple(world.events.get(me, ())))
        named = [name for name, leaders in world.leaders.items() if me in leaders and (every_topic or name in topics)]
        tracks = [track("", "", "records_in"), track("", "", "ack_p99_ms")]
        tracks += [track(name, "", "records_in") for name in named]
        tracks += [track("quotes", group, "lag") for group in groups]
        return comet.History(tuple(tracks), tuple(world.events.get(me, ())))

    async def close(self) -> None:
        self._world.closed.append(self._world.at.get(self._address, 0))


Scenario = Callable[[World, Sampler], Coroutine[Any, Any, None]]


def on_virtual_time(scenario: Scenario) -> Callable[[], None]:
    """Turns a scenario into a test; nothing may be left over."""

    @wraps(scenario)
    def test() -> None:
        async def main(loop: sim.SimLoop) -> None:
            world = World()
            world.leaders = {"quotes": [1, 2, 3], "orders": [1]}
            sampler = world.sampler()
            await scenario(world, sampler)
            await sampler.close()
            await asyncio.sleep(0)
            assert not loop.unhandled
            left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert not left

        sim.run(main)

    del test.__wrapped__  # it takes no fixtures
    return test


async def after(seconds: float, sampler: Sampler) -> facts.Cluster:
    """What somebody sees who has looked all the time."""
    for _ in range(int(seconds)):
        await asyncio.sleep(1)
        await sampler.cluster()
    await asyncio.sleep((GATHER_S + 0.1 - asyncio.get_running_loop().time()) % 1)  # the tick of this second is over
    return await sampler.cluster()


@on_virtual_time
async def test_the_first_look_shows_everything_after_one_round(world: World, sampler: Sampler) -> None:
    began = asyncio.get_running_loop().time()
    found = await sampler.cluster()
    assert asyncio.get_running_loop().time() - began < 0.1
    assert found.reachable
    assert (found.cluster_id, found.controller) == ("cluster", 1)
    assert [(one.id, one.up, one.address, one.in_rate, one.cpu) for one in found.brokers] == [
        (id_, True, f"b{id_}:1", 10.0, 0.5) for id_ in (1, 2, 3)
    ]
    quotes = found.topics["quotes"]
    assert (quotes.partitions, quotes.records, quotes.bytes, quotes.in_rate, quotes.last_us) == (3, 300, 30, 3.0, 43)
    assert [value for value in found.tracks["records_in"].values if value is not None] == [6.0] * 6
    assert found.tracks["ack_p99_ms"].values[-1] == 3.0  # the slowest, not the sum
    assert len(found.tracks["records_in"].values) == 900


@on_virtual_time
async def test_each_broker_is_asked_once_a_second_and_only_while_somebody_looks(world: World, sampler: Sampler) -> None:
    await asyncio.gather(*(sampler.cluster() for _ in range(50)))
    assert world.asked["statistics"] == 3
    await after(10, sampler)
    assert world.asked["statistics"] == 3 * 11
    assert world.asked["list_topics"] == 1  # nothing has changed
    await asyncio.sleep(WATCHED_S + 2)
    asked = world.asked.total()
    await asyncio.sleep(3_600)
    assert world.asked.total() == asked
    assert not sampler.statistics()["running"]
    assert (await sampler.cluster()).time_us >= world.now_us() - 1_000_000


@on_virtual_time
async def test_history_is_asked_for_as_a_whole_and_then_for_what_is_new(world: World, sampler: Sampler) -> None:
    await sampler.cluster()
    found = await after(5, sampler)
    values = found.tracks["records_in"].values
    assert values[-11:] == [6.0] * 11
    assert values[-12] is None
    assert found.tracks["records_in"].end_us == int(asyncio.get_running_loop().time() + EPOCH_S) * 1_000_000


@on_virtual_time
async def test_charts_go_on_at_once_when_the_clocks_of_brokers_are_set_back(world: World, sampler: Sampler) -> None:
    """They have nothing new to say, and would not for as long as they were set back."""
    await sampler.cluster()
    await after(5, sampler)
    world.set_back_s = 3_600
    track = (await after(3, sampler)).tracks["records_in"]
    assert track.end_us == world.now_us() // 1_000_000 * 1_000_000
    assert track.values[-1] == 6.0


@on_virtual_time
async def test_topics_are_listed_again_when_metadata_have_changed(world: World, sampler: Sampler) -> None:
    await sampler.cluster()
    world.leaders["new"] = [2]
    assert "new" not in (await after(3, sampler)).topics  # nobody said so
    world.revision += 1
    assert "new" in (await after(1, sampler)).topics
    assert world.asked["list_topics"] == 2


@on_virtual_time
async def test_a_silent_broker_holds_up_nobody_and_has_no_numbers_after_a_while(world: World, sampler: Sampler) -> None:
    await sampler.cluster()
    world.silent.add(2)
    before = await after(2, sampler)
    assert all(one.up for one in before.brokers)
    found = await after(ANSWER_S, sampler)
    assert [(one.id, one.up, one.in_rate) for one in found.brokers] == [
        (1, True, 10.0),
        (2, False, None),
        (3, True, 10.0),
    ]
    assert found.reachable
    assert found.time_us >= world.now_us() - 1_500_000
    quotes = found.topics["quotes"]  # a part of it is led by the silent one
    assert (quotes.records, quotes.in_rate, quotes.partitions) == (None, None, 3)
    assert found.topics["orders"].records == 100
    values = found.tracks["records_in"].values
    assert values[-1] == 4.0  # of the other two
    world.silent.clear()
    back = await after(ANSWER_S + 1, sampler)
    assert all(one.up for one in back.brokers)
    assert back.topics["quotes"].records == 300
    assert back.tracks["records_in"].values[-1] == 6.0


@on_virtual_time
async def test_a_slow_broker_is_up_and_the_others_do_not_wait_for_it(world: World, sampler: Sampler) -> None:
    await sampler.cluster()
    world.delay_s[3] = 0.6  # for each of the questions, of which there are three in a round
    loop = asyncio.get_running_loop()
    for _ in range(10):
        await asyncio.sleep(1)
        began = loop.time()
        found = await sampler.cluster()
        assert loop.time() - began < PATIENCE_S
        assert all(one.up for one in found.brokers)
        assert found.time_us >= world.now_us() - 1_500_000


@on_virtual_time
async def test_a_broker_that_is_gone_stays_in_the_list(world: World, sampler: Sampler) -> None:
    await sampler.cluster()
    world.dead.add(3)
    world.alive.discard(3)
    world.leaders = {"quotes": [1, 2, 1], "orders": [1]}
    world.revision += 1
    found = await after(ANSWER_S + 1, sampler)
    assert [(one.id, one.up) for one in found.brokers] == [(1, True), (2, True), (3, False)]
    assert found.topics["quotes"].records == 300
    assert found.topics["quotes"].under_replicated == 3
    world.dead.clear()
    world.alive.add(3)
    assert all(one.up for one in (await after(2, sampler)).brokers)


@on_virtual_time
async def test_a_broker_that_was_moved_is_asked_where_it_is_now(world: World, sampler: Sampler) -> None:
    await sampler.cluster()
    world.at = {"b1:1": 2, "b2:1": 1, "b3:1": 3}  # others answer at their addresses
    found = await after(ANSWER_S + 1, sampler)
    assert [one.id for one in found.brokers if one.up] == [3]


@on_virtual_time
async def test_when_nobody_answers_what_was_known_stays_with_its_time_and_the_reason(
    world: World, sampler: Sampler
) -> None:
    before = await after(2, sampler)
    world.dead.update({1, 2, 3})
    gone = await after(10, sampler)
    assert not gone.reachable
    assert "no broker answers at" in gone.reason
    assert gone.topics == before.topics
    assert before.time_us <= gone.time_us <= before.time_us + 1_000_000
    assert not any(one.up for one in gone.brokers)
    world.dead.clear()
    back = await after(2, sampler)
    assert back.reachable
    assert back.reason == ""
    assert back.time_us >= world.now_us() - 1_500_000


@on_virtual_time
async def test_a_look_at_a_cluster_that_never_answered_says_why(world: World, sampler: Sampler) -> None:
    world.silent.update({1, 2, 3})
    world.at["any:1"] = 1
    loop = asyncio.get_running_loop()
    began = loop.time()
    found = await sampler.cluster()
    assert loop.time() - began < 10
    assert not found.reachable
    assert "no broker at any:1 answers" in found.reason
    began = loop.time()
    await sampler.cluster()
    assert loop.time() - began <= PATIENCE_S


@on_virtual_time
async def test_an_empty_cluster_has_nothing_and_is_well(world: World, sampler: Sampler) -> None:
    world.leaders = {}
    found = await sampler.cluster()
    assert (found.topics, found.groups, found.events) == ({}, {}, ())
    assert found.reachable


@on_virtual_time
async def test_who_looks_after_a_change_sees_it(world: World, sampler: Sampler) -> None:
    await sampler.cluster()
    await asyncio.sleep(0.3)
    world.leaders["new"] = [1]
    world.revision += 1
    assert "new" not in (await sampler.cluster()).topics
    sampler.renew()
    began = asyncio.get_running_loop().time()
    assert "new" in (await sampler.cluster()).topics
    assert asyncio.get_running_loop().time() - began < 0.1


@on_virtual_time
async def test_however_much_is_changed_brokers_are_not_asked_all_the_time(world: World, sampler: Sampler) -> None:
    await sampler.cluster()
    for _ in range(500):
        await asyncio.sleep(0.01)
        sampler.renew()
    assert world.asked["statistics"] <= 3 * (5 / HURRY_S + 2)
    await sampler.cluster()


@on_virtual_time
async def test_pages_are_made_a_moment_after_a_round(world: World, sampler: Sampler) -> None:
    assert sampler.next(7.3) == 7.3  # nobody asks anything
    await asyncio.sleep(0.25)
    await sampler.cluster()
    for when in (5.3, 5.6, 5.84, 5.86, 6.0):
        made = sampler.next(when)
        assert abs(made - when) <= 0.5
        assert made % 1 == pytest.approx(0.25 + AFTER_S)


@on_virtual_time
async def test_longer_ranges_are_asked_for_while_somebody_looks_at_them(world: World, sampler: Sampler) -> None:
    await sampler.cluster()
    assert world.asked["history 60"] == 0
    found = await sampler.cluster("1h")
    track = found.tracks["records_in"]
    assert (track.step_s, len(track.values), track.values[-1]) == (60, 60, 6.0)
    assert len((await sampler.cluster("24h")).tracks["records_in"].values) == 1_440
    assert world.asked["history 60"] == 3
    await after(WATCHED_S + 20, sampler)
    asked = world.asked["history 60"]
    await after(60, sampler)
    assert world.asked["history 60"] == asked


@on_virtual_time
async def test_topics_have_sparklines_unless_there_are_too_many(world: World, sampler: Sampler) -> None:
    trend = (await sampler.cluster()).topics["quotes"].trend
    assert trend is not None
    assert (trend.step_s, trend.values[-1]) == (TREND_S, 6.0)
    world.long = False
    assert (await after(40, sampler)).reachable


@on_virtual_time
async def test_a_topic_and_a_group_have_histories_of_their_own(world: World, sampler: Sampler) -> None:
    group = {"group": "engine", "kind": "consumer", "state": "stable", "members": 1, "topics": ["quotes"],
             "lag": 7, "lags": {"quotes": 7}, "age_s": 1.0, "drain_s": 2.0, "growing": False,
             "last_commit_us": 5, "trend": [1, None, 3]}  # fmt: skip
    world.groups[2] = [group]
    found = await sampler.cluster()
    engine = found.groups["engine"]
    assert (engine.coordinator, engine.lag, engine.lags, engine.drain_s) == (2, 7, {"quotes": 7}, 2.0)
    assert engine.trend is not None
    assert engine.trend.values == [1, None, 3]
    assert (found.topics["quotes"].groups, found.topics["quotes"].lag_max) == (("engine",), 7)
    assert found.topics["orders"].lag_max is None
    assert (await sampler.topic_tracks("quotes", "15m"))["records_in"].values[-1] == 6.0
    assert (await sampler.group_tracks("engine", "15m"))["quotes"].values[-1] == 2.0  # its coordinator's alone
    assert await sampler.topic_tracks("none", "15m") == {}
    world.silent.add(2)
    lost = (await after(ANSWER_S + 1, sampler)).groups["engine"]
    assert (lost.members, lost.lag, lost.lags) == (1, None, {})  # it is there; how far it is nobody can say
    world.groups = {3: [group]}
    assert (await after(1, sampler)).groups["engine"].coordinator == 3
    world.groups = {}
    assert (await after(1, sampler)).groups == {}


@on_virtual_time
async def test_a_group_that_nobody_took_over_from_a_lost_broker_was_deleted(world: World, sampler: Sampler) -> None:
    world.groups[3] = [{"group": "engine", "kind": "share", "state": "empty", "members": 0, "topics": ["quotes"]}]
    await sampler.cluster()
    world.dead.add(3)
    world.alive.discard(3)
    world.revision += 1
    assert list((await after(ANSWER_S + 1, sampler)).groups) == ["engine"]  # another one may be about to
    assert not (await after(TAKEN_OVER_S, sampler)).groups


@on_virtual_time
async def test_what_happened_is_told_once_as_the_one_has_it_who_remembers_most(world: World, sampler: Sampler) -> None:
    def event(time_us: int, text: str) -> comet.ClusterEvent:
        return comet.ClusterEvent(time_us, 5, "election", text, "", None, None)

    world.events = {1: [event(100, "5 partitions")], 2: [event(101, "3 partitions"), event(0, "before")]}
    assert [one.text for one in (await sampler.cluster()).events] == ["5 partitions", "before"]
    world.events[1] = [event(100, "9 partitions")]  # it goes on counting
    assert [one.text for one in (await after(1, sampler)).events] == ["9 partitions", "before"]


@on_virtual_time
async def test_what_makes_no_sense_is_the_failure_of_one_broker(world: World, sampler: Sampler) -> None:
    world.groups[2] = [{"nothing": "known"}]
    assert [one.up for one in (await sampler.cluster()).brokers] == [True, False, True]


@on_virtual_time
async def test_what_cannot_be_put_together_is_not_shown_as_what_was_a_while_ago(world: World, sampler: Sampler) -> None:
    before = await sampler.cluster()
    world.records = "many"
    found = await after(2, sampler)
    assert (found.reachable, found.time_us, "cannot be read" in found.reason) == (False, before.time_us, True)
    world.records = 100
    assert (await after(2, sampler)).reachable


@on_virtual_time
async def test_a_question_for_any_of_them_goes_to_one_that_answers(world: World, sampler: Sampler) -> None:
    loop = asyncio.get_running_loop()

    async def listed() -> float:
        began = loop.time()
        assert len(await sampler.query(lambda admin: admin.list_topics())) == 2
        return loop.time() - began

    assert await listed() < 0.1  # nobody has looked yet: any
    await sampler.cluster()
    for silent in (1, 2, 3):
        world.silent = {silent}
        assert await listed() < ANSWER_S + 0.1  # it answered a moment ago
        await after(2, sampler)
        assert await listed() < 0.1  # others have answered since
        world.silent = set()
        await after(ANSWER_S + 1, sampler)
    world.dead = {1, 2, 3}
    with pytest.raises(Unavailable):
        await listed()


@on_virtual_time
async def test_only_known_brokers_can_be_asked_closely(world: World, sampler: Sampler) -> None:
    await sampler.cluster()
    assert (await sampler.admin_of(3).statistics(brief=True, topics=True, groups=True))["broker_id"] == 3
    with pytest.raises(BrokerNotFound):
        sampler.admin_of(4)
