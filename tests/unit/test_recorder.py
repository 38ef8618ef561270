"""What a broker remembers of itself, on virtual time whose wall clock stalls, jumps and is set back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

import comet
from comet.errors import InvalidArgument, LimitExceeded
from comet_broker.broker import Broker
from comet_broker.config import BrokerConfig
from comet_broker.core.history import FINE_POINTS, WINDOW_S
from comet_broker.metadata.memory import MemoryStore
from comet_broker.rpc.local_channel import LocalNetwork
from comet_broker.storage.memory import MemoryFiles
from comet_testing.simulation.clock import SimClock
from comet_testing.simulation.loop import SimLoop, run

T = TypeVar("T")
ADDRESS = "broker:9092"


class StallingClock(SimClock):
    """As of a process that is stopped for a while: both clocks run on, and the loop does not."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(loop)
        self.stalled_s = 0.0

    def stall(self, seconds: float) -> None:
        self.jump(seconds)
        self.stalled_s += seconds

    def monotonic(self) -> float:
        return super().monotonic() + self.stalled_s


class DirectWorker:
    """ports.Worker."""

    async def run(self, function: Callable[[], T]) -> T:
        return function()


class Process:
    """ports.Process that takes a quarter of a core."""

    def __init__(self, clock: SimClock) -> None:
        self.error: Exception | None = None
        self._clock = clock

    def cpu_s(self) -> float | None:
        if self.error is not None:
            raise self.error
        return self._clock.monotonic() / 4

    def memory_bytes(self) -> int | None:
        return 1_000_000

    def memory_limit_bytes(self) -> int | None:
        return 1 << 30

    def trim_memory(self) -> None:
        return


class World:
    def __init__(self, loop: SimLoop, process: bool = True) -> None:
        self.clock = StallingClock(loop)
        self.network = LocalNetwork()
        self.process = Process(self.clock)
        self.broker = Broker(
            BrokerConfig(data=Path("data"), host="broker"),
            files=MemoryFiles(Random(1)),
            store=MemoryStore(self.clock),
            clock=self.clock,
            worker=DirectWorker(),
            random=Random(1),
            network=self.network,
            boot_id="boot",
            process=self.process if process else None,
        )
        self.network.brokers[ADDRESS] = self.broker
        self.admin = comet.Admin(ADDRESS, connect=self.network.connect)
        self.producer = comet.Producer(ADDRESS, connect=self.network.connect)

    async def until(self, fraction: float) -> None:
        """So far into the next second."""
        await asyncio.sleep(1 - self.clock.wall_us() % 1_000_000 / 1e6 + fraction)

    async def send(self, records: int, topic: str = "quotes") -> None:
        await (await self.producer.send_many(topic, [b"x" * 100] * records))

    async def track(self, figure: str, topic: str = "", **asked: Any) -> comet.HistoryTrack:
        found = await self.admin.history(topics=[topic] if topic else (), **asked)
        [track] = [one for one in found.tracks if (one.figure, one.topic) == (figure, topic)]
        return track


def scenario(test: Callable[[World], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def main(loop: SimLoop) -> None:
        world = World(loop, **settings)
        await world.broker.start()
        await world.broker.join()
        await world.admin.create_topic("quotes")
        await test(world)
        assert not world.broker.env.tasks.failed
        await world.producer.close()
        await world.admin.close()
        await world.broker.close()

    run(main)


def test_every_second_has_its_records() -> None:
    async def test(world: World) -> None:
        await world.until(0.5)
        start = world.clock.wall_us() // 1_000_000
        for records in (10, 0, 30):
            if records:
                await world.send(records)
            await world.until(0.5)
        track = await world.track("records_in")
        assert track.end_us == (start + 3) * 1_000_000
        assert len(track.values) == FINE_POINTS
        assert track.values[-3:] == (10, 0, 30)
        assert track.values[0] is None, "there was no broker then"
        assert (await world.track("records_in", "quotes")).values[-3:] == (10, 0, 30)
        assert (await world.track("cpu")).values[-1] == pytest.approx(0.25)
        assert (await world.track("memory")).values[-1] == 1_000_000
        assert (await world.track("leading")).values[-1] == 1
        assert (await world.track("ack_p99_ms")).values[-2] is None, "nothing was acknowledged"
        later = await world.track("records_in", since_us=track.end_us - 1_000_000)
        assert later.values == track.values[-1:]
        assert (await world.admin.history(since_us=track.end_us)).tracks == ()

    scenario(test)


def test_what_clients_read_is_counted_however_they_read_it() -> None:
    async def test(world: World) -> None:
        await world.send(10)
        async with comet.Consumer(ADDRESS, "quotes", start="earliest", connect=world.network.connect) as consumer:
            for _ in range(10):
                await anext(aiter(consumer))
        async with comet.Reader(ADDRESS, connect=world.network.connect) as reader:
            await reader.fetch("quotes", 0, "earliest", records_max=4)
        async with comet.ShareConsumer(
            ADDRESS, "quotes", group="work", start="earliest", connect=world.network.connect
        ) as shared:
            await (await anext(aiter(shared))).ack()
        [partition] = world.broker.topics.by_handle.values()
        assert partition.counts.delivered_records >= 10 + 4 + 1
        assert partition.counts.delivered_bytes > 15 * 100
        await world.until(0.5)
        rates = (await world.admin.statistics(brief=True))["rates"]
        assert rates["records_out"] > 0 and rates["bytes_out"] > 100 * rates["records_out"]
        assert world.broker.meter.deliver_durations.statistics()["counts"]

    scenario(test)


def test_a_stall_is_a_gap() -> None:
    async def test(world: World) -> None:
        await world.until(0.5)
        world.clock.stall(20)
        await world.send(42)
        await world.until(0.5)
        values = (await world.track("records_in")).values
        assert values[-1] == 2, "of the time since the last second that was looked at"
        assert values[-21:-1] == (None,) * 20
        assert values[-22] is not None

    scenario(test)


def test_a_second_that_was_told_a_moment_early_is_kept_through_a_stall() -> None:
    async def test(world: World) -> None:
        await world.until(0.5)
        await world.send(10)
        world.clock.jump(-0.0005)
        await asyncio.sleep(0.5002)  # it has looked, a moment before the second began, and is about to look again
        world.clock.stall(0.7)
        await world.until(0.5)
        assert (await world.track("records_in")).values[-2:] == (10, 0)

    scenario(test)


def test_a_clock_that_jumps_ahead_leaves_a_gap_and_one_that_is_set_back_nothing_to_come() -> None:
    async def test(world: World) -> None:
        await world.until(0.5)
        world.clock.jump(30)
        await world.until(0.5)
        values = (await world.track("sessions")).values
        assert values[-31:-1] == (None,) * 30 and values[-1] is not None
        before = (await world.track("sessions")).end_us
        world.clock.jump(-10)
        await world.until(0.5)
        track = await world.track("sessions")
        assert track.end_us == before - 9_000_000
        assert track.values[-21:-1] == (None,) * 20 and track.values[-1] is not None
        for _ in range(3):
            await world.until(0.5)
        assert None not in (await world.track("sessions")).values[-4:]

    scenario(test)


def test_rates_are_those_of_the_window() -> None:
    async def test(world: World) -> None:
        await world.admin.create_topic("still")
        for _ in range(WINDOW_S):
            await world.until(0.5)
            await world.send(50)
        await world.until(0.5)
        found = await world.admin.statistics(brief=True, topics=True)
        assert found["rates"]["window_s"] == WINDOW_S
        assert found["rates"]["records_in"] == pytest.approx(50, rel=0.01)
        assert found["rates"]["errors"] == 0
        assert found["cpu"] == pytest.approx(0.25)
        assert found["memory_bytes"] == 1_000_000
        assert found["disk_used"] == found["totals"]["bytes"]
        assert 0 <= found["latency"]["ack_p50_ms"] <= found["latency"]["ack_p99_ms"]
        quotes, still = found["topics"]["quotes"], found["topics"]["still"]
        assert quotes["in_rate"] == pytest.approx(50, rel=0.01)
        assert (quotes["leading"], quotes["records"]) == (1, 500)
        assert (still["in_rate"], still["records"], still["last_us"]) == (0, 0, None)
        [status] = (await world.admin.describe_topic("quotes")).partitions
        assert status.in_rate == pytest.approx(50, rel=0.01)
        assert status.in_bytes_rate is not None and status.in_bytes_rate > 50 * 100
        assert status.last_us == quotes["last_us"] and quotes["last_us"] > world.clock.wall_us() - 2_000_000
        for _ in range(WINDOW_S + 1):
            await world.until(0.5)
        [status] = (await world.admin.describe_topic("quotes")).partitions
        assert (status.in_rate, status.in_bytes_rate) == (0, 0)

    scenario(test)


def test_what_cannot_be_told_is_none() -> None:
    async def test(world: World) -> None:
        found = await world.admin.statistics(brief=True)
        assert found["cpu"] is found["memory_bytes"] is found["rates"]["records_in"] is None
        await world.until(0.5)
        await world.until(0.5)
        found = await world.admin.statistics(brief=True)
        assert found["cpu"] is found["memory_bytes"] is found["latency"]["ack_p99_ms"] is None
        assert found["rates"]["records_in"] == 0
        assert set((await world.track("memory")).values) == {None}

    scenario(test, process=False)


def test_a_deleted_topic_takes_its_figures_along() -> None:
    async def test(world: World) -> None:
        await world.send(5)
        await world.until(0.5)
        assert "quotes" in world.broker.recorder.store.topics
        await world.admin.delete_topic("quotes")
        for _ in range(11):
            await world.until(0.5)
        assert "quotes" not in world.broker.recorder.store.topics
        found = await world.admin.history(topics=["quotes"])
        assert {track.topic for track in found.tracks} == {""}
        assert [event.text for event in found.events if event.topic] == [
            "topic quotes was created: 1 partition, 1 replica each",
            "topic quotes was deleted",
        ]

    scenario(test)


def test_what_is_asked_for_is_bounded() -> None:
    async def test(world: World) -> None:
        await world.until(0.5)
        for step_s in (61, 90, 3_660):
            with pytest.raises(InvalidArgument):
                await world.admin.history(step_s=step_s)
        with pytest.raises(InvalidArgument):
            await world.admin.history(step_s=0)
        for number in range(300):
            world.broker.recorder.store.move(1, f"t{number}", [1.0] * 4)
        with pytest.raises(LimitExceeded):
            await world.admin.history(every_topic=True)
        found = await world.admin.history(every_topic=True, step_s=15)
        assert len({track.topic for track in found.tracks}) == 301
        assert {len(track.values) for track in found.tracks} == {60}

    scenario(test)


def test_the_first_answer_waits_for_the_first_second() -> None:
    async def test(world: World) -> None:
        found = await world.admin.history()
        assert found.tracks[0].end_us // 1_000_000 == world.clock.wall_us() // 1_000_000

    scenario(test)


async def _of_group(world: World, name: str) -> dict[str, Any]:
    told = await world.admin.statistics(brief=True, groups=True)
    groups: dict[str, dict[str, Any]] = {group["group"]: group for group in told["groups"]}
    return groups[name]


def test_a_group_has_its_lag_over_time() -> None:
    async def test(world: World) -> None:
        await world.admin.create_topic("trades")
        await world.send(100)
        await world.send(40, "trades")
        await world.admin.commit_offsets("engine", {("quotes", 0): 10})
        for _ in range(3):
            await world.until(0.5)
        await world.admin.commit_offsets("engine", {("quotes", 0): 60, ("trades", 0): 0})
        for _ in range(25):
            await world.until(0.5)
        found = await world.admin.history(groups=["engine", "unknown"])
        tracks = {(track.topic, track.figure): track.values for track in found.tracks if track.group}
        assert set(tracks) == {(topic, figure) for topic in ("quotes", "trades") for figure in ("lag", "age_s")} | {
            ("", "lag")
        }
        assert tracks["quotes", "lag"][-30:] == (None, *(90,) * 4, *(40,) * 25)
        assert tracks["", "lag"][-1] == 80
        assert tracks["", "lag"][-26] == 90, "the other topic was not known then"
        assert (await world.track("lag")).values[-1] == 80
        group = await _of_group(world, "engine")
        assert (group["lag"], group["lags"]) == (80, {"quotes": 40, "trades": 40})
        assert (group["kind"], group["state"], group["members"]) == ("consumer", "empty", 0)
        assert group["topics"] == ["quotes", "trades"]
        assert (group["drain_s"], group["growing"]) == (None, False)
        assert group["age_s"] == pytest.approx(28, abs=2)
        assert world.clock.wall_us() - group["last_commit_us"] == pytest.approx(25e6, abs=1e6)
        assert len(group["trend"]) == 30
        await world.admin.commit_offsets("engine", {("quotes", 0): 100, ("trades", 0): 40})
        for _ in range(60):
            await world.until(0.5)
        group = await _of_group(world, "engine")
        assert (group["lag"], group["drain_s"], group["growing"]) == (0, 0, False)
        assert group["trend"][-1] == 0 and group["trend"][0] is None
        await world.admin.delete_group("engine")
        assert {track.group for track in (await world.admin.history(groups=["engine"])).tracks} == {""}

    scenario(test)


def test_a_shared_group_has_its_lag_too() -> None:
    async def test(world: World) -> None:
        await world.send(10)
        async with comet.ShareConsumer(
            ADDRESS, "quotes", group="work", start="earliest", connect=world.network.connect
        ) as shared:
            records = aiter(shared)
            for _ in range(4):
                await (await anext(records)).ack()
            await world.until(0.5)
            await world.until(0.5)
            group = await _of_group(world, "work")
            assert (group["kind"], group["state"], group["members"]) == ("share", "stable", 1)
            assert (group["lag"], group["lags"]) == (6, {"quotes": 6})
        for _ in range(12):  # nobody is a member: now and then the store is asked
            await world.until(0.5)
        group = await _of_group(world, "work")
        assert (group["state"], group["lag"]) == ("empty", 6)
        found = await world.admin.history(groups=["work"])
        assert {track.values[-1] for track in found.tracks if track.group and track.figure == "lag"} == {6}

    scenario(test)


def test_a_group_tells_when_partitions_changed_hands() -> None:
    async def test(world: World) -> None:
        await world.until(0.2)
        start = world.clock.wall_us()
        async with comet.GroupConsumer(ADDRESS, "quotes", group="engine", connect=world.network.connect):
            await world.until(0.5)
        await world.admin.commit_offsets("engine", {("quotes", 0): 0})
        async with comet.GroupConsumer(ADDRESS, "quotes", group="engine", connect=world.network.connect):
            await world.until(0.5)
            rebalances = (await world.admin.describe_group("engine")).rebalances_us
        assert len(rebalances) >= 2
        assert all(start <= one <= world.clock.wall_us() for one in rebalances)
        assert list(rebalances) == sorted(rebalances)

    scenario(test)


def test_a_second_that_failed_is_a_gap_and_no_end() -> None:
    async def test(world: World) -> None:
        await world.until(0.5)
        world.process.error = OSError("no such file")
        await world.until(0.5)
        world.process.error = None
        await world.send(7)
        await world.until(0.5)
        assert [value is None for value in (await world.track("sessions")).values[-3:]] == [False, True, False]
        assert (await world.track("records_in", "quotes")).values[-1] == 7
        assert world.broker.env.tasks.failures == 1
        world.broker.env.tasks.failed.clear()

    scenario(test)
