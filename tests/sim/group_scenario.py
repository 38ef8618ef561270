"""One run of groups: members that come and go, die and stand still, on a cluster whose brokers do the same.

    producers ─► in ─┬─► alo    at least once: handled, then committed
                     ├─► amo    at most once: committed, then handled
                     ├─► eos    exactly once: to `out` and `audit`, in transactions
                     ├─► share  taken one by one: accepted, released, rejected (to `dead`), or forgotten
                 └─► pass   owned, and nothing committed: the group is deleted whenever it empties

    start ─► faults strike ─► mend ─► producers end ─► every group reaches the end ─► members leave ─► final read

What the logs go through is judged by `cluster_checks` in a scenario of its own; here no fault takes from a log what
was acknowledged, so that whatever is missing was lost by a group.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Final

from comet.admin.admin import Admin
from comet.client.client import Client
from comet.client.coordinator import Coordinator
from comet.consumer.consumer import Consumer
from comet.errors import CometError, InvalidArgument
from comet.settings.topic import Flush
from comet.types import AssignmentStrategy
from comet_broker.coordination.group import LiveGroup
from comet_broker.core.share_window import Granted
from comet_broker.sharing.acquirer_queue import Acquirer
from comet_broker.sharing.chunk import Chunk
from comet_broker.sharing.state import SharePartition
from comet_testing.simulation.link import KEEPALIVE_S
from comet_testing.simulation.loop import SimLoop, run
from tests.sim import cluster_faults
from tests.sim.checker import SETTLE_S_MAX, Finding
from tests.sim.cluster_profile import ClusterTopic
from tests.sim.cluster_world import ClusterWorld
from tests.sim.group_checks import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    PASSING,
    SHARED,
    check_groups,
    not_settled,
)
from tests.sim.group_history import GroupHistory, Lock
from tests.sim.group_workload import AUDIT, DEAD, IN, OUT, STRATEGIES, CommittedReader, Member, Observer
from tests.sim.history import PartitionName
from tests.sim.result import Result
from tests.sim.workload import ProducerClient, ProducerPlan
from tests.waiting import until

HARM_S: Final = 30.0
RUN_S_MAX: Final = 900.0
FINISH_S_MAX: Final = 60.0
LEAVE_S_MAX: Final = 60.0
READ_S_MAX: Final = 60.0

# None of these takes what was acknowledged from so many replicas that it is gone.
FAULTS: Final = (
    "kill", "kill_all", "drain", "pause", "partition", "isolate", "lose_store", "lose_clients", "swizzle", "cut_links",
    "stall_links", "bad_weather", "store_away", "store_unsure", "store_slow", "late_keepalives", "late_watch",
    "compacted", "slow_disk", "clock_jump",
)  # fmt: skip
MEMBER_FAULTS: Final = ("member_killed", "member_left", "member_paused")


@dataclass(frozen=True, slots=True)
class GroupProfile:
    """What a run is made of. What is None is drawn by the seed."""

    groups: tuple[str, ...] | None = None
    members: int | None = None
    partitions: int | None = None
    faults: tuple[str, ...] | None = None
    fault_every_s: float | None = None
    member_fault_every_s: float | None = None
    pause_s: float | None = None  # between two sends of a producer
    callers: int | None = None  # of the members of a share group, so many have no session
    passing: int | None = None  # members of a group that commits nothing; none if not said
    assignments: tuple[AssignmentStrategy, ...] | None = None  # each life of a member asks for one of these
    named: int | None = None  # of the members at exactly once, so many have a transactional id over all their lives
    keepalive_s: float | None = None  # in which gRPC notices silence


def draw(seed: int, profile: GroupProfile) -> GroupProfile:
    """The profile with everything that it leaves open decided by the seed."""
    random = Random(f"{seed}/group profile")
    every = (AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, SHARED)
    drawn = GroupProfile(
        groups=tuple(random.sample(every, random.choice((1, 2, 2, 3)))),
        members=random.choice((2, 3, 3)),
        partitions=random.choice((1, 2, 3, 4)),
        faults=(*random.sample(FAULTS, random.randint(0, 5)), *cluster_faults.drawn_apart(seed)),
        fault_every_s=random.choice((2.0, 4.0, 8.0)),
        member_fault_every_s=random.choice((3.0, 6.0, 12.0)),
        pause_s=random.choice((0.2, 0.5)),
        callers=random.choice((0, 0, 1, 2)),
        named=random.choice((0, 1, 2)),
        assignments=random.choice((*[(one,) for one in STRATEGIES], STRATEGIES)),
        keepalive_s=KEEPALIVE_S,
    )
    given = {f.name: getattr(profile, f.name) for f in fields(profile) if getattr(profile, f.name) is not None}
    return replace(drawn, **given)


class GroupScenario:
    def __init__(self, world: ClusterWorld, profile: GroupProfile) -> None:
        self.world = world
        self.profile = profile
        self.history = GroupHistory()
        self.random = world.random("scenario")
        self.topics = [
            self._topic(IN, profile.partitions or 1),
            self._topic(OUT, profile.partitions or 1),
            self._topic(AUDIT, 1),
            self._topic(DEAD, 1),
        ]
        self.members: dict[str, Member] = {}
        self.over = False  # members leave, and nobody takes their place
        self._admin = Admin(
            world.addresses,
            timeout_ms=5_000,
            name="operator",
            connect=world.network.connect("operator"),
            random=world.random("operator/sdk"),
            clock_us=world.clock.wall_us,
        )

    @staticmethod
    def _topic(name: str, partitions: int) -> ClusterTopic:
        flush = Flush.INTERVAL
        return ClusterTopic(name, partitions, flush, 50, 64 << 10, -1, replicas=3, min_insync=2, available=False)

    @property
    def groups(self) -> tuple[str, ...]:
        return self.profile.groups or ()

    async def run(self) -> None:
        world, profile = self.world, self.profile
        loop = asyncio.get_running_loop()
        keepers = [
            loop.create_task(cluster_faults.keep(world, host), name=f"keeper {host.broker_id}") for host in world.hosts
        ]
        brokers = world.monitor.state.brokers
        assert await until(lambda: len(brokers) == len(world.hosts), within_s=30), "the brokers did not start"
        await self._create_topics()
        lives = self._start()
        watcher = loop.create_task(self._watch(), name="watcher")
        deleter = loop.create_task(self._delete(), name="deleter")
        await cluster_faults.harm(world, list(profile.faults or ()), HARM_S, profile.fault_every_s or 4.0)
        await asyncio.sleep(max(0.0, HARM_S - world.now()))
        world.note("mend")
        cluster_faults.mend(world)
        world.stopping = True
        assert await until(self._well, within_s=SETTLE_S_MAX), "the brokers are not well again"
        await self._ended(("producer", "observer"), "did not finish")
        await self._catch_up()
        self.over = True
        for member in self.members.values():
            member.leaving = True
        for life in lives:
            await life
        await self._final_read()
        for task in (*keepers, watcher, deleter):
            if task.done():
                task.result()
            task.cancel()
        for host in world.up():
            host.look_for_trouble()
        await self._admin.close()
        world.history.complaints += [f"nobody took this exception: {text}" for text in world.loop.unhandled]

    # ---- setting up

    async def _create_topics(self) -> None:
        for topic in self.topics:
            while True:
                try:
                    info = await self._admin.create_topic(
                        topic.name, partitions=topic.partitions, replicas=topic.replicas, config=topic.config()
                    )
                except InvalidArgument:  # the one that was asked has not heard of all the others yet
                    await asyncio.sleep(0.1)
                else:
                    break
            self.world.topic_ids[topic.name] = info.id
            self.world.history.flush[topic.name] = topic.flush

    def _start(self) -> list[asyncio.Task[None]]:
        """All clients; the tasks that keep members alive."""
        world, profile = self.world, self.profile
        plan = ProducerPlan("all", True, 0, 4_000, 20_000, "none", profile.pause_s or 0.5, bulk=False)
        for number in range(2):
            name = f"producer-{number}"
            world.client(name, ProducerClient(world, name, plan, self.topics[0].tps).run())
        world.client("observer", Observer(world, self.history, self.groups).run())
        if EXACTLY_ONCE in self.groups:
            for topic in (OUT, AUDIT):
                name = f"reader-{topic}"
                world.client(name, CommittedReader(world, self.history, name, topic).run())
        loop = asyncio.get_running_loop()
        return [
            loop.create_task(self._live(group, number), name=f"life of {group}-{number}")
            for group in self.groups
            for number in range(profile.members or 2)
        ] + [
            loop.create_task(self._live(PASSING, number), name=f"life of {PASSING}-{number}")
            for number in range(profile.passing or 0)
        ]

    async def _live(self, group: str, number: int) -> None:
        """One member after the other in the same place, each until it dies or leaves."""
        world = self.world
        random = world.random(f"{group}-{number}")
        instance = f"static-{number}" if number == 0 and random.random() < 0.5 else ""
        life = 0
        while not self.over:
            name = f"{group}-{number}.{life}"
            life += 1
            acquiring = group == SHARED and number < (self.profile.callers or 0)
            named = number < (self.profile.named or 0)
            member = self.members[name] = Member(
                world,
                self.history,
                group,
                name,
                instance=instance,
                acquiring=acquiring,
                transactional_id=f"{group}-{number}" if named else "",
                assignments=self.profile.assignments or ("sticky",),
            )
            node = world.client(name, member.run())
            while world.busy(name) and not member.leaving:
                await world.sleep(random, self.profile.member_fault_every_s or 6.0)
                if world.stopping or not world.busy(name):
                    continue
                match random.choice(MEMBER_FAULTS):
                    case "member_killed":
                        world.history.faults["member_killed"] += 1
                        world.kill_client(name)
                        member.died()
                    case "member_left":
                        world.history.faults["member_left"] += 1
                        member.leaving = True
                    case _:
                        world.history.faults["member_paused"] += 1
                        node.pause()
                        await asyncio.sleep(random.uniform(0.1, random.choice((2.0, 9.0))))
                        node.resume()
            if not await until(lambda name=name: not world.busy(name), within_s=LEAVE_S_MAX):  # type: ignore[misc]
                world.history.complaints.append(f"{name} did not leave:\n" + "\n".join(world.stuck(name)))
                world.kill_client(name)
                member.died()
            await world.sleep(random, 0.5)

    async def _delete(self) -> None:
        """An operator deletes the group that commits nothing, where it finds it without members."""
        random = self.world.random("deleter")
        while self.profile.passing and not self.world.stopping:
            await self.world.sleep(random, 1.0)
            with contextlib.suppress(CometError):
                await self._admin.delete_group(PASSING)
                self.world.history.faults["group deleted"] += 1

    async def _watch(self) -> None:
        """What a leader lends is noted where it is decided."""
        while True:
            await asyncio.sleep(1.0)
            for host in self.world.up():
                host.look_for_trouble()

    # ---- the end

    def _well(self) -> bool:
        world = self.world
        if len(world.up()) < len(world.hosts):
            return False
        for topic in self.topics:
            for tp in topic.tps:
                found = world.monitor.state.partitions.get(world.where(tp))
                if found is None or not found.value.leader or set(found.value.in_sync) != set(found.value.replicas):
                    return False
        return True

    async def _ended(self, prefixes: tuple[str, ...], what: str) -> None:
        world = self.world
        names = [name for name in world.clients if name.startswith(prefixes)]
        await until(lambda: not any(world.busy(name) for name in names), within_s=FINISH_S_MAX, every_s=0.2)
        for name in names:
            if world.busy(name):
                world.history.complaints.append(f"{name} {what}:\n" + "\n".join(world.stuck(name)))

    async def _statuses(self, topic: str) -> dict[PartitionName, tuple[int, int]]:
        """Per partition high watermark and last stable offset."""
        partitions = (await self._admin.describe_topic(topic)).partitions
        return {(topic, one.partition): (one.high_watermark or 0, one.last_stable_offset or 0) for one in partitions}

    async def _catch_up(self) -> None:
        """With nothing wrong any more, every group reaches the end, and no transaction holds anybody back."""
        world, history = self.world, self.history
        give_up = world.now() + FINISH_S_MAX
        missing = "nothing was asked"
        client = Client(
            world.addresses, name="auditor", connect=world.network.connect("auditor"), random=world.random("auditor")
        )
        coordinators = {group: Coordinator(client, group) for group in self.groups}
        observer = Observer(world, history, self.groups)
        while missing and world.now() < give_up:
            await asyncio.sleep(0.5)
            try:
                ends = await self._statuses(IN)
                history.ends = {tp: end for tp, (end, _) in ends.items()}
                missing = ""
                for group in self.groups:
                    if group == SHARED:
                        missing = missing or await self._unsettled()
                        continue
                    found = await observer.look(coordinators[group], group)
                    for tp, end in history.ends.items():
                        history.committed[group, tp] = found.get(tp, -1)
                        if end and found.get(tp, -1) < end:
                            missing = missing or f"{group} is at {found.get(tp)} of {tp}, which ends at {end}"
                for topic in (OUT, AUDIT):
                    for tp, (end, stable) in (await self._statuses(topic)).items():
                        if stable < end:
                            missing = missing or f"a transaction holds {tp} at {stable}, it ends at {end}"
            except CometError as error:
                missing = f"the cluster does not answer: {error!r}"
        await client.close()
        if missing:
            world.history.complaints.append(f"after all was mended: {missing}")

    async def _unsettled(self) -> str:
        """What the share group has still to settle before its members may leave."""
        missing = not_settled(self.history)
        rejected = {(one.tp, one.offset) for one in self.history.acquired if one.settled == "reject"}
        if rejected & set(missing):  # without an answer: the topic of dead letters knows
            dead: set[bytes] = set()
            for tp, (end, _) in (await self._statuses(DEAD)).items():
                dead.update((await self._read(tp, end)).values())
            missing = not_settled(self.history, dead)
        return f"{SHARED} has not settled {missing[:5]}" if missing else ""

    async def _final_read(self) -> None:
        history = self.history
        for topic in self.topics:
            for tp, (end, _) in (await self._statuses(topic.name)).items():
                records = await self._read(tp, end)
                if tp[0] == IN:
                    history.inputs[tp] = records
                elif tp[0] in (OUT, AUDIT):
                    history.outputs[tp] = records
                elif SHARED in self.groups:
                    history.dead[SHARED] = Counter(records.values())
        if EXACTLY_ONCE not in self.groups:
            history.outputs.clear()

    async def _read(self, tp: PartitionName, end: int) -> dict[int, bytes]:
        world = self.world
        found: dict[int, bytes] = {}
        name = f"final-{tp[0]}-{tp[1]}"
        give_up = world.now() + READ_S_MAX
        async with Consumer(
            world.addresses,
            tp[0],
            start="earliest",
            partitions=[tp[1]],
            connect=world.network.connect(name),
            random=world.random(name),
            clock_us=world.clock.wall_us,
        ) as consumer:
            while consumer.positions().get(tp[1], 0) < end and world.now() < give_up:
                batch = await consumer.get_batch(timeout_s=0.2)
                if batch is not None:
                    found.update((at, value or b"") for at, value in zip(batch.offsets, batch.values, strict=True))
            if consumer.positions().get(tp[1], 0) < end:
                world.history.complaints.append(f"the final read of {tp} came to {consumer.positions()} of {end}")
        return found


@contextlib.contextmanager
def watched(history: GroupHistory, now: Callable[[], float]) -> Iterator[None]:
    """Notes what coordinators and leaders do of their own accord: whom they put out, and what they lend."""
    evict, serve = LiveGroup.evict, SharePartition.serve

    def noted_out(self: LiveGroup, member: str, error: CometError) -> None:
        history.evicted[self.name, member] = now()
        evict(self, member, error)

    def noted_lock(self: SharePartition, subscriber: Acquirer) -> tuple[Chunk, Sequence[Granted]] | None:
        served = serve(self, subscriber)
        tp = self.partition.topic, self.partition.index
        for granted in () if served is None else served[1]:
            history.locks.append(Lock(self.group, tp, granted.first, granted.end, now()))
        return served

    LiveGroup.evict = noted_out  # type: ignore[method-assign]
    SharePartition.serve = noted_lock  # type: ignore[method-assign]
    try:
        yield
    finally:
        LiveGroup.evict = evict  # type: ignore[method-assign]
        SharePartition.serve = serve  # type: ignore[method-assign]


def simulate_passing(seed: int, profile: GroupProfile | None = None) -> Result:
    """The same with a group that commits nothing, and is deleted whenever it empties."""
    given = profile or GroupProfile()
    every = (AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, SHARED)
    chosen = given.groups or (Random(f"{seed}/passing").choice(every),)
    return simulate(seed, replace(given, groups=chosen, passing=given.passing or 2), scenario="passing")


def simulate(seed: int, profile: GroupProfile | None = None, *, scenario: str = "groups") -> Result:
    """Runs one seed on a loop of its own and judges what happened."""
    drawn = draw(seed, profile or GroupProfile())
    began = time.perf_counter()
    worlds: list[ClusterWorld] = []
    scenarios: list[GroupScenario] = []

    async def main(loop: SimLoop) -> None:
        loop.seconds_max = RUN_S_MAX
        settings = {"session_ms": 2_000, "replica_lag_ms": 1_000, "rebalance_ms": 2_000}
        world = ClusterWorld(loop, seed, 3, settings, racks="aab")
        world.network.keepalive_s = drawn.keepalive_s or KEEPALIVE_S
        worlds.append(world)
        world.note(f"{drawn}")
        scenarios.append(GroupScenario(world, drawn))
        with watched(scenarios[0].history, world.now):
            await scenarios[0].run()

    error = ""
    try:
        run(main)
    except (AssertionError, TimeoutError, CometError) as caught:
        error = f"{type(caught).__name__}: {caught}"
    world = worlds[0]
    world.note(f"in all {scenarios[0].history.counts()}")
    verdict = check_groups(scenarios[0].history)
    verdict.findings["C29"] = Finding(1, list(world.history.complaints))
    seconds = time.perf_counter() - began
    return Result(seed, drawn, verdict, world.history, world.log, seconds, error, scenario, world.now())
