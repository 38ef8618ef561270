"""One run of schedules: clients put, change and cancel them while faults strike the brokers that fire them.

    clients ─► schedules of `sure`   three replicas
                            `frail`  one replica, so that it is away whenever its broker is
                            `loose`  prefers availability: takes no transactions
                            `gone`   deleted half way
    start ─► faults strike, clocks are set ─► mend ─► paused ones go on ─► all that is due fires ─► recurring ones are
          paused ─► lists are compared ─► final read

No fault takes from a log what was acknowledged by all. Clocks are set forwards and back by up to two minutes, less than
the ten for which a repeated request is recognized; in the end all show the latest time that one of them has shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from comet.consumer.consumer import Consumer
from comet.errors import CometError, ScheduleNotFound
from comet.schedules.due import jitter_us
from comet.settings.topic import Flush
from comet.types import SCHEDULES_TOPIC
from comet.v1 import records_pb2 as records_pb
from comet.v1 import schedules_pb2 as pb
from comet_broker.schedules.firing import Firing
from comet_testing.simulation.loop import SimLoop, run
from tests.sim import cluster_faults
from tests.sim.checker import Finding
from tests.sim.cluster import RUN_S_MAX, ClusterScenario
from tests.sim.cluster_profile import ClusterProfile, ClusterTopic, draw
from tests.sim.cluster_world import ALL, ClusterWorld
from tests.sim.result import Result
from tests.sim.schedule_checks import check_schedules
from tests.sim.schedule_history import Fire, FiredRecord, Kept, Name, ScheduleHistory
from tests.sim.schedule_workload import AVAILABLE, CONSISTENT, DELETED, FRAIL, Caller, ScheduleClient
from tests.sim.workload import close_quietly
from tests.waiting import until

HARM_S: Final = 30.0
DELETED_S: Final = 18.0  # when that topic goes
FIRED_S_MAX: Final = 60.0  # after all was mended: the longest pause between two attempts of a topic, twice
OVERDUE_S: Final = 3.0
READ_S_MAX: Final = 60.0
CALL_S: Final = 5.0
ANSWERED_S_MAX: Final = 60.0
CLIENTS: Final = 3
JUMPS_S: Final = (1.5, -1.5, 10.0, -10.0, 60.0, -60.0)
JUMPED_S_MAX: Final = 120.0
JUMP: Final = "clock set"
# None of these takes what was acknowledged from so many replicas that it is gone.
FAULTS: Final = (
    "kill", "kill_all", "drain", "pause", "partition", "isolate", "lose_store", "lose_clients", "swizzle", "cut_links",
    "stall_links", "silent_death", "bad_weather", "store_away", "store_unsure", "store_slow", "late_keepalives",
    "late_watch", "compacted", "slow_disk", "disk_full", "kill_in_write",
)  # fmt: skip


class ScheduleScenario(ClusterScenario):
    def __init__(self, world: ClusterWorld, profile: ClusterProfile, *, clocks: bool) -> None:
        super().__init__(world, profile)
        self.history = ScheduleHistory()
        self._clocks = clocks
        self._caller = Caller(world, "keeper", world.random("keeper"))

    def _topics(self) -> list[ClusterTopic]:
        return [
            self._topic(CONSISTENT, 3, 2, available=False),
            self._topic(FRAIL, 1, 1, available=False),
            self._topic(AVAILABLE, 3, 1, available=True),
        ]

    async def run(self) -> None:
        world = self.world
        loop = asyncio.get_running_loop()
        keepers = [
            loop.create_task(cluster_faults.keep(world, host), name=f"keeper {host.broker_id}") for host in world.hosts
        ]
        brokers = world.monitor.state.brokers
        assert await until(lambda: len(brokers) == len(world.hosts), within_s=30), "the brokers did not start"
        await self._create_topics()
        await self._create(self._topic(DELETED, 3, 2, available=False))
        await self._first_schedule()
        began = world.now()
        for number in range(CLIENTS):
            name = f"s{number}"
            world.client(name, ScheduleClient(world, name, self.history, self.profile.pause_s or 0.4).run())
        others = [
            loop.create_task(self._set_clocks(), name="sets clocks"),
            loop.create_task(self._delete_topic(), name="deletes a topic"),
            loop.create_task(self._watch(), name="watcher"),
        ]
        end = began + HARM_S
        await cluster_faults.harm(world, list(self.profile.faults or ()), end, self.profile.fault_every_s or 3.0)
        await asyncio.sleep(max(0.0, end - world.now()))
        await self._mend()
        await self._finish("s")
        await self._all_fire()
        await self._compare_lists()
        await self._read_all()
        for task in (*keepers, *others):
            if task.done():
                task.result()
            task.cancel()
        for host in world.up():
            host.look_for_trouble()
        await self._admin.close()
        world.history.complaints += [f"an exception was not handled: {text}" for text in world.loop.unhandled]

    # ---- what happens to them

    async def _first_schedule(self) -> None:
        """Creates the topic of schedules, so that faults can strike its leaders."""
        put = pb.SchedulePut(schedule=pb.Schedule(id="first", spec="every 366d"))
        request = pb.PutSchedulesRequest(topic=CONSISTENT, schedules=[put])
        answer = await self._answered("PutSchedules", request, pb.PutSchedulesResponse)
        assert answer is not None and not answer.results[0].HasField("error"), answer
        await self._answered(
            "CancelSchedule", pb.ScheduleRequest(topic=CONSISTENT, id="first"), pb.Schedule, ScheduleNotFound
        )
        assert await until(lambda: SCHEDULES_TOPIC in self.world.monitor.names, within_s=10)
        self.world.history.flush[SCHEDULES_TOPIC] = Flush.INTERVAL

    async def _answered(
        self, method: str, request: Any, response: Any, *expected: type[CometError], within_s: float = ANSWERED_S_MAX
    ) -> Any:
        """The answer, which brokers that are well give in a bounded time; None: an error that is expected."""
        give_up = self.world.now() + within_s
        while True:
            try:
                return await self._caller.call(method, request, response, CALL_S)
            except CometError as error:
                if isinstance(error, expected):
                    return None
                if self.world.now() > give_up:
                    self.world.history.complaints.append(f"{method} is not answered: {error!r}")
                    return None
            await asyncio.sleep(0.2)

    async def _set_clocks(self) -> None:
        world, random = self.world, self.world.random("clocks")
        while self._clocks and not world.stopping:
            await world.sleep(random, 4.0)
            clock, seconds = random.choice(world.hosts).clock, random.choice(JUMPS_S)
            if not world.stopping and abs(clock.wall_us() - world.clock.wall_us() + 1e6 * seconds) < 1e6 * JUMPED_S_MAX:
                clock.jump(seconds)
                world.history.faults[JUMP] += 1

    async def _delete_topic(self) -> None:
        await asyncio.sleep(DELETED_S)
        while True:
            try:
                await self._admin.delete_topic(DELETED)
            except CometError as error:
                self.world.note(f"the topic was not deleted: {error.code}")
            else:
                return
            await asyncio.sleep(1.0)

    # ---- the end

    async def _mend(self) -> None:
        world = self.world
        world.note("mend")
        cluster_faults.mend(world)
        world.stopping = True
        latest = max(host.clock.latest_us() for host in world.hosts)
        for clock in (world.clock, *(host.clock for host in world.hosts)):
            clock.jump((latest - clock.wall_us()) / 1e6)
        await self._settle("after all was mended")

    async def _listed(self, limit: int = 1_000) -> dict[Name, pb.Schedule]:
        give_up = self.world.now() + ANSWERED_S_MAX
        while True:
            try:
                return await self._caller.list(limit=limit)
            except CometError as error:
                if self.world.now() > give_up:
                    self.world.history.complaints.append(f"schedules cannot be listed: {error!r}")
                    return {}
            await asyncio.sleep(0.2)

    async def _change_all(self, method: str, chosen: Callable[[pb.Schedule], bool]) -> None:
        for (topic, schedule_id), one in (await self._listed()).items():
            if chosen(one):
                request = pb.ScheduleRequest(topic=topic, id=schedule_id)
                await self._answered(method, request, pb.Schedule, ScheduleNotFound)

    async def _all_fire(self) -> None:
        """With nothing wrong any more, what is due fires in a bounded time. Then nothing fires any more."""
        history, world = self.history, self.world
        await self._resume_all()
        give_up = world.now() + FIRED_S_MAX
        while True:
            stranded = self._stranded(await self._listed())
            if not stranded or world.now() > give_up:
                break
            await asyncio.sleep(0.5)
        history.stranded = stranded
        await self._change_all("PauseSchedule", lambda one: not one.paused)
        history.kept = {name: Kept(one.fired, one.paused) for name, one in (await self._listed()).items()}

    async def _resume_all(self) -> None:
        await self._change_all("ResumeSchedule", lambda one: one.paused and not one.reason)

    def _stranded(self, listed: dict[Name, pb.Schedule]) -> list[str]:
        now_us = self.world.clock.wall_us()
        late_us = int(1e6 * OVERDUE_S)
        texts = []
        for (topic, schedule_id), one in listed.items():
            due_us = one.next_us + jitter_us(schedule_id, one.next_us, 1000 * one.jitter_ms)
            once = one.spec.startswith("at ")
            self.history.settled.append(schedule_id)
            if one.paused and topic != DELETED:
                texts.append(f"{topic}/{schedule_id} is paused: {one.reason}")
            elif not one.paused and (once or due_us < now_us - late_us):
                texts.append(
                    f"{topic}/{schedule_id} ({one.spec}) has not fired: due {(now_us - due_us) / 1e6:.1f} s ago"
                )
        return texts

    async def _compare_lists(self) -> None:
        """Pages of any size have the same schedules, and each can be read."""
        listed = await self._listed()
        for limit in (1, 3, 7):
            self.history.pages += 1
            if dict(await self._listed(limit)) != listed:
                self.history.lists.append(f"pages of {limit} have other schedules")
        for topic, schedule_id in listed:
            request = pb.ScheduleRequest(topic=topic, id=schedule_id)
            found = await self._answered("GetSchedule", request, pb.Schedule, ScheduleNotFound)
            if found is None or found.revision != listed[topic, schedule_id].revision:
                self.history.lists.append(f"{topic}/{schedule_id} is listed, and cannot be read as such: {found}")

    async def _read_all(self) -> None:
        for topic in self.topics:
            try:
                partitions = (await self._admin.describe_topic(topic.name)).partitions
            except CometError as error:
                self.world.history.complaints.append(f"{topic.name} cannot be described at the end: {error!r}")
                continue
            await self._read_topic(topic.name, {one.partition: one.high_watermark or 0 for one in partitions})

    async def _read_topic(self, topic: str, ends: dict[int, int]) -> None:
        world, name = self.world, f"reader-{topic}"
        consumer: Consumer[bytes] = Consumer(
            world.addresses, topic, start="earliest", name=name, connect=world.network.connect(name),
            random=world.random(name), clock_us=world.clock.wall_us,
        )  # fmt: skip
        try:
            async with asyncio.timeout(READ_S_MAX):
                await consumer.start()
                while any(consumer.positions().get(partition, 0) < end for partition, end in ends.items()):
                    record = await consumer.get(timeout_s=0.5)
                    if record is not None:
                        self.history.records.append(_fired(topic, record))
        except (TimeoutError, CometError) as error:
            world.history.complaints.append(
                f"the final read of {topic} came to {consumer.positions()} of {ends}: {error!r}"
            )
        finally:
            await close_quietly(consumer)


def _fired(topic: str, record: Any) -> FiredRecord:
    headers = dict(record.headers)
    return FiredRecord(
        topic=topic,
        id=headers["comet-schedule-id"].decode(),
        value=record.value or b"",
        due_us=int(headers["comet-schedule-due"]),
        count=int(headers["comet-schedule-count"]),
        partition=record.partition,
        offset=record.offset,
        timestamp_us=record.timestamp_us,
    )


@contextlib.contextmanager
def watched(history: ScheduleHistory) -> Iterator[None]:
    """Notes what brokers fire, with the time of their clocks."""
    write, publish_first = vars(Firing)["_write"], vars(Firing)["_publish_first"]

    def note(firing: Any, topic: str, records: list[records_pb.Record]) -> None:
        clock = firing._clock
        for record in records:
            headers = {header.name: header.value for header in record.headers}
            count = int(headers["comet-schedule-count"])
            schedule_id = headers["comet-schedule-id"].decode()
            history.fires.append(Fire(topic, schedule_id, record.timestamp_us, count, clock.latest_us()))

    async def noted_write(self: Firing, batch: Any) -> None:
        for topic, records in batch.records.items():
            note(self, topic, records)
        await write(self, batch)

    async def noted_publish(self: Firing, batch: Any, key: bytes, schedule: pb.Schedule, done: Any) -> None:
        note(self, schedule.topic, done.records)
        await publish_first(self, batch, key, schedule, done)

    Firing._write, Firing._publish_first = noted_write, noted_publish  # type: ignore[method-assign]
    try:
        yield
    finally:
        Firing._write, Firing._publish_first = write, publish_first  # type: ignore[method-assign]


def simulate(
    seed: int,
    profile: ClusterProfile | None = None,
    scenario: type[ScheduleScenario] = ScheduleScenario,
    name: str = "schedules",
) -> Result:
    """Runs one seed on a loop of its own and judges what happened."""
    given = profile or ClusterProfile()
    random = Random(f"{seed}/{name}")
    faults = tuple(random.sample(FAULTS, random.randint(1, 5)))
    base = ClusterProfile(
        brokers=3,
        replicas=3,
        min_insync=2,
        available=False,
        flush=Flush.INTERVAL,
        acks=ALL,
        admin=False,
        pause_s=random.choice((0.2, 0.5)),
        faults=faults if given.faults is None else given.faults,
        fault_every_s=given.fault_every_s or random.choice((1.5, 3.0, 6.0)),
        final_crash="none",
    )
    drawn = draw(seed, base)
    clocks = random.random() < 0.5
    began = time.perf_counter()
    worlds: list[ClusterWorld] = []
    scenarios: list[ScheduleScenario] = []

    async def main(loop: SimLoop) -> None:
        loop.seconds_max = RUN_S_MAX
        settings = {
            "session_ms": random.choice((2_000, 3_000)),
            "replica_lag_ms": random.choice((1_000, 3_000)),
            "rebalance_ms": random.choice((2_000, 10_000)),
        }
        world = ClusterWorld(loop, seed, 3, settings)
        worlds.append(world)
        world.note(f"{drawn} {settings} clocks are set: {clocks}")
        scenarios.append(scenario(world, drawn, clocks=clocks))
        with watched(scenarios[0].history):
            await scenarios[0].run()

    error = ""
    try:
        run(main)
    except (AssertionError, TimeoutError, CometError) as caught:
        error = f"{type(caught).__name__}: {caught}"
    world = worlds[0]
    verdict = check_schedules(scenarios[0].history)
    verdict.findings["C29"] = Finding(1, list(world.history.complaints))
    seconds = time.perf_counter() - began
    return Result(seed, drawn, verdict, world.history, world.log, seconds, error, name, world.now())
