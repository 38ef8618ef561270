"""One run: a seed becomes topics, clients and faults; they run; the history is judged.

    start ─► clients work, faults strike ─► mend ─► clients finish ─► probe ─► perhaps one more crash ─► final read

`Profile` says what a run is about. Seeds choose one at random; a planted bug has a profile of its own that gives it the
chance to do harm.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from comet.client.client import Client
from comet.consumer.consumer import Consumer
from comet.errors import CometError, DataLoss
from comet.producer.producer import Producer
from comet.settings.topic import Flush, TopicConfig
from comet.v1 import admin_pb2 as admin
from comet.v1 import types_pb2 as types
from comet.wire.protobuf import config_to_pb
from comet_testing.simulation.link import EARLIER_KEEPALIVE_S, KEEPALIVE_S
from comet_testing.simulation.loop import SimLoop, run
from tests.sim import nemesis
from tests.sim.checker import SETTLE_S_MAX, check
from tests.sim.history import FinalLog, Outcome, PartitionName, Produce, make_value
from tests.sim.result import Result
from tests.sim.workload import (
    AdminClient,
    ConsumerClient,
    ProducerClient,
    ProducerPlan,
    TopicPlan,
    close_quietly,
    meter,
    vandal,
)
from tests.sim.world import World
from tests.waiting import until

HARM_S: Final = 6.0  # how long faults strike
FINISH_S_MAX: Final = 90.0  # for clients to finish, once all is mended
READ_S_MAX: Final = 60.0
RUN_S_MAX: Final = 900.0  # of virtual time, for the whole run
LEADS_TRIES_MAX: Final = 500  # of 10 ms, for a broker that has just started


@dataclass(frozen=True, slots=True)
class Profile:
    """What a run is made of. What is None is drawn by the seed."""

    faults: tuple[str, ...] | None = None
    flush: Flush | None = None
    acks: int | None = None
    idempotent: bool | None = None
    retention_records: int | None = None
    deletes: bool | None = None
    final_crash: str | None = None
    producers: int | None = None
    later: bool | None = None  # False: no fault that is younger than the known seeds
    wires: float | None = None  # the share of streams that are over the wire


def draw(seed: int, profile: Profile) -> Profile:
    """The profile with everything that it leaves open decided by the seed."""
    random, chance = Random(f"{seed}/profile"), Random(f"{seed}/later")
    # One run has a few kinds of faults, so that each gets its chance undisturbed by all the others.
    kinds = random.sample(sorted(nemesis.FAULTS.keys() - set(nemesis.LATER)), random.randint(0, 5))
    if profile.later is not False:
        kinds += chance.sample(nemesis.LATER, chance.choice((0, 0, 0, 0, 0, 1)))
    drawn = Profile(
        faults=tuple(kinds),
        flush=random.choice(list(Flush)),
        acks=random.choice((0, 1, 1, 1, 1, 2)),
        idempotent=random.random() < 0.75,
        retention_records=random.choice((-1, -1, 50, 300)),
        deletes=random.random() < 0.4,
        final_crash=random.choice(("none", "kill", "power", "drain", "drain then power")),
        producers=random.randint(1, 3),
        wires=0.0 if profile.later is False else Random(f"{seed}/wires").choice((0.0, 0.0, 0.5, 1.0)),
    )
    given = {name: getattr(profile, name) for name in Profile.__slots__ if getattr(profile, name) is not None}
    return replace(drawn, **given)


def topics_for(profile: Profile, random: Random) -> list[TopicPlan]:
    assert profile.flush is not None and profile.retention_records is not None
    return [
        TopicPlan(
            name=f"t{index}",
            partitions=random.randint(1, 2),
            flush=profile.flush if index == 0 else random.choice(list(Flush)),
            flush_interval_ms=random.choice((10, 50, 300)),
            segment_bytes=64 << 10,
            retention_records=profile.retention_records if index == 0 else -1,
        )
        for index in range(random.randint(1, 2))
    ]


def producer_plan(profile: Profile, random: Random) -> ProducerPlan:
    acks = profile.acks
    return ProducerPlan(
        acks="all" if acks == 2 else 0 if acks == 0 else 1,
        idempotent=bool(profile.idempotent),
        linger_ms=random.choice((0, 0, 5)),
        batch_bytes=random.choice((300, 4_000, 64 << 10)),
        timeout_ms=random.choice((1_500, 5_000, 10_000)),
        compression=random.choice(("none", "none", "lz4", "zstd")),
        pause_s=random.choice((0.01, 0.03)),
        bulk=random.random() < 0.5,
    )


class Scenario:
    def __init__(self, world: World, profile: Profile) -> None:
        self.world = world
        self.profile = profile
        self.random = world.random("scenario")
        self.topics = topics_for(profile, self.random)
        self.consumers: list[ConsumerClient] = []
        self.statuses: dict[PartitionName, types.PartitionStatus] = {}

    @property
    def tps(self) -> list[PartitionName]:
        return [tp for topic in self.topics for tp in topic.tps]

    async def run(self) -> None:
        world = self.world
        if not await world.host.start():
            raise AssertionError("the broker did not start on an empty disk")
        await self._create_topics()
        self._start_clients()
        keeper = asyncio.get_running_loop().create_task(nemesis.keep(world), name="keeper")
        watcher = asyncio.get_running_loop().create_task(self._watch(), name="watcher")
        await nemesis.harm(world, list(self.profile.faults or ()), world.now() + HARM_S)
        await asyncio.sleep(max(0.0, HARM_S - world.now()))
        world.note("mend")
        nemesis.mend(world)
        world.stopping = True
        await self._finish()
        await self._probe()
        await self._crash_once_more()
        await self._catch_up()
        await self._final_read()
        keeper.cancel()
        watcher.cancel()
        world.host.look_for_trouble()
        world.history.complaints += [f"nobody took this exception: {text}" for text in world.loop.unhandled]

    # ---- setting up

    async def _create_topics(self) -> None:
        world = self.world
        client = self._client("setup")
        for topic in self.topics:
            config = TopicConfig(
                flush=topic.flush,
                flush_interval_ms=topic.flush_interval_ms,
                segment_bytes=topic.segment_bytes,
                retention_records=topic.retention_records,
                retention_ms=-1,  # wall clocks jump here
            )
            request = admin.CreateTopicRequest(
                name=topic.name, partitions=topic.partitions, config=config_to_pb(config)
            )
            await client.unary("comet.v1.Admin/CreateTopic", request, types.Topic)
            world.history.flush[topic.name] = topic.flush
            world.history.loss_window_s[topic.name] = self._loss_window_s(topic)
            world.note(f"topic {topic}")
        await client.close()

    def _loss_window_s(self, topic: TopicPlan) -> float:
        """What the promise table says for flush=interval: the interval and the time of two flushes."""
        slow = nemesis.SLOW_DISK_S if "slow_disk" in (self.profile.faults or ()) else 0.004
        paused = nemesis.PAUSE_S_MAX if "pause" in (self.profile.faults or ()) else 0.0
        return topic.flush_interval_ms / 1000 + 2 * slow + paused + 0.001

    def _client(self, name: str) -> Client:
        world = self.world
        return Client(
            world.host.address, name=name, connect=world.network.connect(name), random=world.random(f"{name}/sdk")
        )

    def _start_clients(self) -> None:
        world, random = self.world, self.random
        assert self.profile.producers is not None
        for number in range(self.profile.producers):
            name = f"p{number}"
            producer = ProducerClient(world, name, producer_plan(self.profile, random), self.tps)
            world.client(name, producer.run())
        for number in range(2):
            name = f"c{number}"
            start = "earliest" if number == 0 else random.choice(("earliest", "latest"))
            slow_s = random.choice((0.0, 0.0, 0.02))
            consumer = ConsumerClient(world, name, random.choice(self.topics), start, slow_s)
            self.consumers.append(consumer)
            world.client(name, consumer.run())
        administrator = AdminClient(world, "admin", self.topics, deletes=bool(self.profile.deletes))
        world.client("admin", administrator.run())
        world.client("meter", meter(world, "meter", self.tps))
        if random.random() < 0.5:
            world.client("vandal", vandal(world, "vandal", self.tps))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            if self.world.host.up:
                self.world.host.look_for_trouble()

    # ---- the end

    async def _finish(self) -> None:
        """Every client that ends by itself must do so in time; what is still pending then is a hang."""
        world = self.world
        ending = [name for name in world.clients if name[0] in "pamv"]
        await until(lambda: not any(world.busy(name) for name in ending), within_s=FINISH_S_MAX, every_s=0.2)
        for name in ending:
            if world.busy(name):
                world.history.complaints.append(f"{name} did not finish:\n" + "\n".join(world.stuck(name)))

    async def _probe(self) -> None:
        """After all is mended every partition takes a record within a bounded time."""
        world = self.world
        began = world.now()
        async with asyncio.timeout(2 * SETTLE_S_MAX):
            await asyncio.gather(*(self._probe_one(tp) for tp in self.tps))
        world.history.settled_within_s = world.now() - began

    async def _probe_one(self, tp: PartitionName) -> None:
        world = self.world
        name = f"probe-{tp[0]}-{tp[1]}"
        producer = Producer(
            world.host.address,
            timeout_ms=1_000,
            connect=world.network.connect(name),
            random=world.random(name),
            clock_us=world.clock.wall_us,
        )
        for number in range(int(2 * SETTLE_S_MAX)):
            value = make_value(name, number, tp, 60)
            operation = Produce(name, tp, 1, True, value, number, world.now())
            world.history.produces.append(operation)
            try:
                receipt = await producer.publish(tp[0], value, partition=tp[1])
            except CometError as error:
                operation.outcome, operation.code = Outcome.UNKNOWN, error.code
                operation.completed = world.now()
                await asyncio.sleep(0.1)
            else:
                operation.outcome, operation.offset = Outcome.OK, receipt.offset
                operation.completed = world.now()
                break
        await close_quietly(producer)

    async def _crash_once_more(self) -> None:
        """So that the final read sees what recovery makes of the log."""
        world, how = self.world, self.profile.final_crash
        world.note(f"final crash: {how}")
        if how in ("drain", "drain then power"):
            await world.host.drain()
        if how == "drain then power":
            world.host.lose_power()
        elif how in ("kill", "power"):
            world.host.kill(power=how == "power")
        await until(lambda: world.host.up, within_s=SETTLE_S_MAX)

    async def _catch_up(self) -> None:
        """Every consumer reaches the end of what it reads."""
        world = self.world
        if not await until(lambda: not self._behind(), within_s=FINISH_S_MAX, every_s=0.2):
            world.history.complaints += self._behind()

    def _behind(self) -> list[str]:
        texts = []
        for consumer in self.consumers:
            for partition in self.world.host.partitions():
                tp, end = (partition.topic, partition.index), partition.high_watermark
                reached = consumer.next_offset.get(tp)
                # One that began at the end and saw nothing has no place to be behind of.
                if reached is not None and reached < end:
                    texts.append(f"{consumer.name} stopped at {reached} of {tp}, which ends at {end}")
        return texts

    async def _final_read(self) -> None:
        client = self._client("final")
        for topic in self.topics:
            request = admin.DescribeTopicRequest(name=topic.name)
            for _ in range(LEADS_TRIES_MAX):
                answer = await client.unary("comet.v1.Admin/DescribeTopic", request, admin.DescribeTopicResponse)
                if all(message.leader for message in answer.partitions):
                    break  # before that a broker says what it had noted of the end
                await asyncio.sleep(0.01)
            for status in answer.partitions:
                self.statuses[topic.name, status.index] = status
                await self._read_one((topic.name, status.index))
        # Damage is found when it is read: ask again which ranges are lost.
        for topic in self.topics:
            request = admin.DescribeTopicRequest(name=topic.name)
            answer = await client.unary("comet.v1.Admin/DescribeTopic", request, admin.DescribeTopicResponse)
            for status in answer.partitions:
                self.world.history.final[topic.name, status.index].lost = tuple(
                    (max(lost.first, status.log_start), lost.end) for lost in status.lost if lost.end > status.log_start
                )
        await client.close()
        self._allow_retention()

    async def _read_one(self, tp: PartitionName) -> None:
        world = self.world
        status = self.statuses[tp]
        final = world.history.final[tp] = FinalLog(status.log_start, status.high_watermark)
        if status.log_start == status.high_watermark:
            final.complete = True
            return
        name = f"reader-{tp[0]}-{tp[1]}"
        consumer = Consumer(
            world.host.address,
            tp[0],
            start="earliest",
            partitions=[tp[1]],
            connect=world.network.connect(name),
            random=world.random(name),
            clock_us=world.clock.wall_us,
        )
        try:
            async with asyncio.timeout(READ_S_MAX):
                await consumer.start()
                while not final.complete:
                    try:
                        await self._read_on(consumer, final)
                    except DataLoss as error:
                        end = int(error.details["end"])
                        final.complete = end >= final.log_end
                        await consumer.seek(end, partition=tp[1])
        except (TimeoutError, CometError) as error:
            world.history.complaints.append(f"the final read of {tp} failed: {error!r}")
        finally:
            await close_quietly(consumer)

    async def _read_on(self, consumer: Consumer[bytes], final: FinalLog) -> None:
        async for batch in consumer.batches():
            final.records += [(at, value or b"") for at, value in zip(batch.offsets, batch.values, strict=True)]
            if batch.next_offset >= final.log_end:
                final.complete = True
                return

    def _allow_retention(self) -> None:
        """Retention by events may take all but the last so many, and not one more."""
        history = self.world.history
        for topic in self.topics:
            if topic.retention_records < 0:
                continue
            for tp in topic.tps:
                ends = [ends.high_watermark for ends in history.ends if ends.tp == tp]
                ends += [op.offset + 1 for op in history.produces if op.tp == tp]
                allowed = max(*ends, history.final[tp].log_end) - topic.retention_records
                history.deletes[tp] = max(history.deletes.get(tp, 0), allowed)


def simulate(seed: int, profile: Profile | None = None) -> Result:
    """Runs one seed on a loop of its own and judges what happened."""
    drawn = draw(seed, profile or Profile())
    began = time.perf_counter()
    worlds: list[World] = []

    async def main(loop: SimLoop) -> None:
        loop.seconds_max = RUN_S_MAX
        world = World(loop, seed)
        world.network.wires = drawn.wires or 0.0
        world.network.keepalive_s = EARLIER_KEEPALIVE_S if drawn.later is False else KEEPALIVE_S
        worlds.append(world)
        world.note(f"{drawn}")
        await Scenario(world, drawn).run()

    error = ""
    try:
        run(main)
    except (AssertionError, TimeoutError, CometError) as caught:
        error = f"{type(caught).__name__}: {caught}"
    world = worlds[0]
    seconds = time.perf_counter() - began
    return Result(seed, drawn, check(world.history), world.history, world.log, seconds, error, "broker", world.now())
