"""One run of a cluster: a seed becomes brokers, topics, clients and faults; they run; the history is judged.

    start ─► clients work, faults strike ─► mend ─► all in sync ─► clients finish ─► probe ─► perhaps one more crash
          ─► all in sync ─► final read ─► replicas compared byte by byte

A run lasts a minute of virtual time and a second of real time. Little is sent in it: what goes wrong in a cluster is
about order, not load.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from random import Random
from typing import Final

from comet.admin.admin import Admin
from comet.consumer.consumer import Consumer
from comet.errors import CometError, DataLoss, InvalidArgument
from comet.producer.producer import Producer
from comet.settings.topic import Flush
from comet_broker.core.cluster import PartitionState
from comet_broker.partitions.partition import Partition
from comet_testing.simulation.link import KEEPALIVE_S
from comet_testing.simulation.loop import SimLoop, run
from tests.sim import cluster_faults
from tests.sim.checker import SETTLE_S_MAX
from tests.sim.cluster_checks import check
from tests.sim.cluster_profile import ClusterProfile, ClusterTopic, draw
from tests.sim.cluster_world import ALL, ClusterWorld
from tests.sim.crowds import CrowdClient, small_tables
from tests.sim.history import FinalLog, Outcome, PartitionName, Produce, make_value
from tests.sim.lying_disks import operate
from tests.sim.registers import RegisterClient, Registers
from tests.sim.replicas import Comparison
from tests.sim.requests import RequestClient
from tests.sim.result import Result
from tests.sim.workload import AdminClient, ConsumerClient, ProducerClient, ProducerPlan, close_quietly
from tests.waiting import until

HARM_S: Final = 45.0
RUN_S_MIN: Final = 60.0
RUN_S_MAX: Final = 900.0
FINISH_S_MAX: Final = 90.0
# They lose nothing that is acknowledged to all.
FAULTS_OF_REGISTERS: Final = (
    "kill", "kill_all", "pause", "isolate", "partition", "cut_links", "stall_links", "silent_links", "swizzle", "drain",
    "store_slow", "store_unsure", "slow_disk",
)  # fmt: skip
READ_S_MAX: Final = 60.0


class ClusterScenario:
    def __init__(self, world: ClusterWorld, profile: ClusterProfile) -> None:
        self.world = world
        self.profile = profile
        self.random = world.random("scenario")
        self.topics = self._topics()
        self.consumers: list[ConsumerClient] = []
        self._admin = self._new_admin("operator")

    def _topics(self) -> list[ClusterTopic]:
        profile, random = self.profile, self.random
        topics = [self._topic("t0", profile.replicas or 3, profile.min_insync or 1, available=bool(profile.available))]
        if random.random() < 0.5:
            replicas = random.randint(1, 3)
            topics.append(self._topic("t1", replicas, random.randint(1, replicas), available=random.random() < 0.2))
        return topics

    def _topic(self, name: str, replicas: int, min_insync: int, *, available: bool) -> ClusterTopic:
        random = self.random
        return ClusterTopic(
            name=name,
            partitions=random.randint(1, 2),
            flush=self.profile.flush or Flush.INTERVAL,
            flush_interval_ms=random.choice((20, 50, 1_000)),
            segment_bytes=64 << 10,
            retention_records=-1,
            replicas=replicas,
            min_insync=min_insync,
            available=available,
        )

    def _new_admin(self, name: str) -> Admin:
        world = self.world
        return Admin(
            world.addresses,
            timeout_ms=5_000,
            name=name,
            connect=world.network.connect(name),
            random=world.random(f"{name}/sdk"),
            clock_us=world.clock.wall_us,
        )

    @property
    def tps(self) -> list[PartitionName]:
        return [tp for topic in self.topics for tp in topic.tps]

    @property
    def available(self) -> set[str]:
        return {topic.name for topic in self.topics if topic.available}

    async def run(self) -> None:
        world = self.world
        loop = asyncio.get_running_loop()
        keepers = [
            loop.create_task(cluster_faults.keep(world, host), name=f"keeper {host.broker_id}") for host in world.hosts
        ]
        brokers = world.monitor.state.brokers
        assert await until(lambda: len(brokers) == len(world.hosts), within_s=30), "the brokers did not start"
        await self._create_topics()
        self._start_clients()
        watcher = loop.create_task(self._watch(), name="watcher")
        operator = loop.create_task(operate(world, self._admin), name="operator")
        await self.harm()
        await asyncio.sleep(max(0.0, HARM_S - world.now()))
        world.note("mend")
        cluster_faults.mend(world)
        world.stopping = True
        await self._settle("after all was mended")
        await self._finish("pamk")
        await self._probe()
        await self._crash_once_more()
        await asyncio.sleep(max(0.0, RUN_S_MIN - world.now()))
        await self._settle("at the end")
        await self._finish("r")  # requests are repeated through the last crash, too
        await self._catch_up()
        await until(lambda: all(self._told(tp) for tp in self._live), within_s=5.0)
        await self._final_read()
        comparison = Comparison(world, lambda: self._live)
        await until(comparison.followed, within_s=5.0)
        comparison.compare()
        await until(lambda: not comparison.other_views(), within_s=5.0)
        world.history.complaints += comparison.other_views()
        for task in (*keepers, watcher, operator):
            if task.done():
                task.result()
            task.cancel()
        for host in world.up():
            host.look_for_trouble()
        await self._admin.close()
        world.history.complaints += [f"nobody took this exception: {text}" for text in world.loop.unhandled]

    async def harm(self) -> None:
        world, profile = self.world, self.profile
        await cluster_faults.harm(world, list(profile.faults or ()), HARM_S, profile.fault_every_s or 3.0)

    # ---- setting up

    async def _create_topics(self) -> None:
        for topic in self.topics:
            await self._create(topic)
            self.world.history.flush[topic.name] = topic.flush
            self.world.note(f"{topic}")

    async def _create(self, topic: ClusterTopic) -> None:
        while True:
            try:
                await self._admin.create_topic(
                    topic.name, partitions=topic.partitions, replicas=topic.replicas, config=topic.config()
                )
            except InvalidArgument:  # the one that was asked has not heard of all the others yet
                await asyncio.sleep(0.1)
            else:
                return

    def _start_clients(self) -> None:
        world, random, profile = self.world, self.random, self.profile
        for number in range(profile.producers or 2):
            name = f"p{number}"
            producer = ProducerClient(world, name, self._producer_plan(), self.tps)
            world.client(name, producer.run())
        for number in range(profile.requests or 0):
            name = f"r{number}"
            world.client(name, RequestClient(world, name, self._producer_plan(), self.tps).run())
        registers = Registers(world.history)
        for number in range(profile.registers or 0):
            name = f"k{number}"
            world.client(name, RegisterClient(world, name, self.topics[0].tps, registers).run())
        for number in range(profile.crowds or 0):
            name = f"m{number}"
            world.client(name, CrowdClient(world, name, self._producer_plan(), self.tps).run())
        for number, read_from in enumerate(("leader", "any")):
            name = f"c{number}"
            start = "earliest" if number == 0 else random.choice(("earliest", "latest"))
            consumer = ConsumerClient(world, name, random.choice(self.topics), start, 0.0, read_from)  # type: ignore[arg-type]
            self.consumers.append(consumer)
            world.client(name, consumer.run())
        administrator = AdminClient(world, "admin", self.topics, deletes=False, pause_s=1.0)
        world.client("admin", administrator.run())
        if profile.admin:
            world.client("mover", self._move())

    def _producer_plan(self) -> ProducerPlan:
        profile, random = self.profile, self.random
        return ProducerPlan(
            acks="all" if profile.acks == ALL else 0 if profile.acks == 0 else 1,
            idempotent=bool(profile.idempotent),
            linger_ms=random.choice((0, 0, 5)),
            batch_bytes=random.choice((300, 4_000, 64 << 10)),
            timeout_ms=random.choice((1_500, 5_000, 20_000)),
            compression="none",
            pause_s=profile.pause_s or 0.5,
            bulk=random.random() < 0.3,
        )

    async def _move(self) -> None:
        """An operator who moves partitions, drains brokers, makes topics and deletes them."""
        world = self.world
        random = world.random("mover")
        admin = self._new_admin("mover")
        made = 0
        while not world.stopping:
            await world.sleep(random, 5.0)
            try:
                match random.randrange(4):
                    case 0:
                        made += 1
                        await admin.create_topic(f"made-{made}", partitions=2, replicas=2)
                    case 1 if made:
                        await admin.delete_topic(f"made-{random.randint(1, made)}")
                    case 2:
                        broker = random.randint(1, len(world.hosts))
                        await admin.drain_broker(broker)
                        await world.sleep(random, 2.0)
                        await admin.drain_broker(broker, undo=True)
                    case _:
                        topic = random.choice(self.topics)
                        replicas = random.sample(range(1, len(world.hosts) + 1), topic.replicas)
                        await admin.move_partition(topic.name, random.randrange(topic.partitions), replicas)
            except CometError as error:
                world.note(f"the mover was told {error.code}")
            else:
                world.history.faults["moved"] += 1
        await admin.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for host in self.world.up():
                host.look_for_trouble()

    # ---- the end

    def _halted(self) -> set[PartitionName]:
        """Partitions of which every replica that has it all is damaged, so that none may lead, or none can follow: for
        a person to see."""
        state = self.world.monitor.state
        halted = set()
        for tp in self.tps:
            where = self.world.where(tp)
            found = state.partitions.get(where)
            if found is not None and not found.value.leader:
                members = {*found.value.in_sync, *found.value.eligible}
                if all((broker, *where) in state.defective for broker in members):
                    halted.add(tp)
            elif found is not None and self._lacks(where, found.value):
                halted.add(tp)
        return halted

    def _lacks(self, where: tuple[str, int], state: PartitionState) -> bool:
        """Whether the leader alone is in sync, and damaged at batches that no follower has."""
        copies = self.world.monitor.copies
        damaged = copies[state.leader, where].damaged
        followers = set(state.replicas) - {state.leader}
        return set(state.in_sync) == {state.leader} != set(state.replicas) and all(
            any(base not in copies[broker, where].batches for base in damaged) for broker in followers
        )

    @property
    def _live(self) -> list[PartitionName]:
        halted = self._halted()
        return [tp for tp in self.tps if tp not in halted]

    def _unsettled(self) -> list[str]:
        """What is not yet as it should be when nothing is wrong any more."""
        world = self.world
        state = world.monitor.state
        texts = [
            f"broker {host.broker_id} is not registered: {host.trouble}"
            for host in world.hosts
            if host not in world.up() or host.broker is None or host.broker_id not in state.brokers or host.failed()
        ]
        for tp in self._live:
            found = state.partitions.get(world.where(tp))
            if found is None or not found.value.leader:
                texts.append(f"{tp} has no leader: {found and found.value}")
            elif found.value.target or set(found.value.in_sync) != set(found.value.replicas):
                texts.append(f"{tp} is not in sync: {found.value}")
        return texts

    async def _settle(self, when: str) -> None:
        """With nothing wrong any more, all are in sync again within a bounded time."""
        world = self.world
        for number in range(1, len(world.hosts) + 1):
            await self._insist(number)
        if not await until(lambda: not self._unsettled(), within_s=SETTLE_S_MAX, every_s=0.1):
            world.history.complaints += [f"{when}: {text}" for text in self._unsettled()]

    async def _insist(self, broker: int) -> None:
        for _ in range(20):
            try:
                await self._admin.drain_broker(broker, undo=True)
            except CometError:
                await asyncio.sleep(1.0)
            else:
                return

    async def _finish(self, kinds: str) -> None:
        """Every client of these kinds ends by itself, and must do so in time; what is still pending then is a hang."""
        world = self.world
        ending = [name for name in world.clients if name[0] in kinds]
        await until(lambda: not any(world.busy(name) for name in ending), within_s=FINISH_S_MAX, every_s=0.2)
        for name in ending:
            if world.busy(name):
                world.history.complaints.append(f"{name} did not finish:\n" + "\n".join(world.stuck(name)))

    async def _probe(self) -> None:
        """After all is mended every partition takes a record within a bounded time."""
        world = self.world
        began = world.now()
        producer = Producer(
            world.addresses,
            acks="all",
            timeout_ms=5_000,
            name="probe",
            connect=world.network.connect("probe"),
            random=world.random("probe"),
            clock_us=world.clock.wall_us,
        )
        for number, tp in enumerate(self._live):
            value = make_value("probe", number, tp, 60)
            operation = Produce("probe", tp, ALL, True, value, number, world.now())
            world.history.produces.append(operation)
            try:
                receipt = await producer.publish(tp[0], value, partition=tp[1])
            except CometError as error:
                operation.outcome, operation.code = Outcome.UNKNOWN, error.code
                world.history.complaints.append(f"after all was mended {tp} took no record: {error!r}")
            else:
                operation.outcome, operation.offset = Outcome.OK, receipt.offset
                world.wrote(operation)
            operation.completed = world.now()
        await close_quietly(producer)
        world.history.settled_within_s = world.now() - began

    async def _crash_once_more(self) -> None:
        """So that the final read sees what recovery makes of the logs."""
        world, how = self.world, self.profile.final_crash
        world.note(f"final crash: {how}")
        if how == "kill all":
            for host in world.hosts:
                host.kill(power=False)
        elif how == "power one":
            self.random.choice(world.hosts).kill(power=True)
        elif how == "drain all":
            for host in world.hosts:
                await host.drain()
                await until(lambda host=host: host.up, within_s=SETTLE_S_MAX)  # type: ignore[misc]
        await until(lambda: len(world.up()) == len(world.hosts), within_s=SETTLE_S_MAX)

    async def _catch_up(self) -> None:
        """Every consumer reaches the end of what it reads."""
        world = self.world
        if not await until(lambda: not self._behind(), within_s=FINISH_S_MAX, every_s=0.2):
            world.history.complaints += self._behind()

    def _led(self, tp: PartitionName) -> Partition | None:
        """The partition on the broker that leads it."""
        leader = self.world.leader(tp)
        partitions = [] if leader is None else leader.partitions()
        return next((found for found in partitions if (found.topic, found.index) == tp), None)

    def _told(self, tp: PartitionName) -> bool:
        """The leader knows that all replicas have what it has; a new one has to hear it from each."""
        found = self._led(tp)
        return found is not None and found.committed == found.log.log_end

    def _behind(self) -> list[str]:
        texts = []
        for consumer in self.consumers:
            for tp in self.tps:
                reached, found = consumer.next_offset.get(tp), self._led(tp)
                end = 0 if found is None else found.high_watermark
                if reached is not None and reached < end:
                    texts.append(f"{consumer.name} stopped at {reached} of {tp}, which ends at {end}")
        return texts

    async def _final_read(self) -> None:
        for topic in self.topics:
            try:
                partitions = (await self._admin.describe_topic(topic.name)).partitions
            except CometError as error:
                self.world.history.complaints.append(f"{topic.name} cannot be described at the end: {error!r}")
                continue
            for one in partitions:
                tp = (topic.name, one.partition)
                if tp in self._halted():
                    continue
                lost = tuple((found.first, found.end) for found in one.lost or ())
                final = FinalLog(one.log_start or 0, one.high_watermark or 0, lost=lost)
                self.world.history.final[tp] = final
                await self._read_one(tp, final)

    async def _read_one(self, tp: PartitionName, final: FinalLog) -> None:
        world = self.world
        if final.log_start == final.log_end:
            final.complete = True
            return
        name = f"reader-{tp[0]}-{tp[1]}"
        consumer = Consumer(
            world.addresses,
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


def simulate_requests(seed: int, profile: ClusterProfile | None = None) -> Result:
    """The same with clients that have no session, and send requests with an idempotency key until they are answered."""
    given = profile or ClusterProfile()
    return simulate(seed, replace(given, requests=given.requests or 2), scenario="requests")


def simulate_registers(seed: int, profile: ClusterProfile | None = None) -> Result:
    """The same with clients of single keys, on topics that lose nothing: brokers die, stand still and lose each other,
    and their disks keep all."""
    given = profile or ClusterProfile()
    kept = replace(
        given,
        faults=given.faults or FAULTS_OF_REGISTERS,
        fault_every_s=given.fault_every_s or 1.5,
        replicas=3,
        min_insync=2,
        available=False,
        acks=ALL,
        admin=False,
        final_crash="none",
        registers=given.registers or 3,
    )
    return simulate(seed, kept, scenario="registers")


def simulate_crowds(seed: int, profile: ClusterProfile | None = None) -> Result:
    """The same with clients of many producers each, more than a partition remembers in full."""
    given = profile or ClusterProfile()
    with small_tables():
        return simulate(seed, replace(given, crowds=given.crowds or 1), scenario="crowds")


def simulate(seed: int, profile: ClusterProfile | None = None, *, scenario: str = "cluster") -> Result:
    """Runs one seed on a loop of its own and judges what happened."""
    drawn = draw(seed, profile or ClusterProfile())
    began = time.perf_counter()
    worlds: list[ClusterWorld] = []
    scenarios: list[ClusterScenario] = []

    async def main(loop: SimLoop) -> None:
        loop.seconds_max = RUN_S_MAX
        random = Random(f"{seed}/settings")
        settings = {
            "session_ms": random.choice((2_000, 3_000)),
            "replica_lag_ms": random.choice((1_000, 3_000)),
            "rebalance_ms": random.choice((2_000, 10_000)),
        }
        world = ClusterWorld(loop, seed, drawn.brokers or 3, settings)
        world.network.wires = drawn.wires or 0.0
        world.network.keepalive_s = drawn.keepalive_s or KEEPALIVE_S
        worlds.append(world)
        world.note(f"{drawn} {settings}")
        scenarios.append(ClusterScenario(world, drawn))
        await scenarios[0].run()

    error = ""
    try:
        run(main)
    except (AssertionError, TimeoutError, CometError) as caught:
        error = f"{type(caught).__name__}: {caught}"
    world = worlds[0]
    available = scenarios[0].available if scenarios else set()
    verdict = check(world.history, world.monitor, available)
    seconds = time.perf_counter() - began
    return Result(seed, drawn, verdict, world.history, world.log, seconds, error, scenario, world.now())
