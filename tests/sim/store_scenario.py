"""One run of a cluster whose metadata store goes back in time, or is emptied, and of the operator who recovers it.

    clients work ─► snapshot ─► a replica goes down and falls behind, the others go on ─► the store goes back
      ├─ under running brokers
      ├─ while all are down, and the one that is behind starts first
      └─ while all are down; they start in any order
    ─► brokers refuse it ─► `recover`, and a restart of those that say so ─► as any other run ends

Chance brings this together too seldom, so it is staged. The rest is judged as in `cluster`: what was acknowledged by
all is there, no epoch is given twice, all are in sync again. A client commits positions of a group meanwhile: none is
ever read as if nothing was committed, before an operator has given up what the store had.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from random import Random
from typing import Final

from comet.admin.admin import Admin
from comet.admin.recovery import ClusterRecovery
from comet.errors import CometError, GroupNotFound
from comet.settings.topic import Flush
from comet_broker.cluster.store_guard import RESTART
from comet_broker.metadata.memory import MemoryStore
from comet_testing.simulation.host import Host
from comet_testing.simulation.loop import SimLoop, run
from tests.sim.cluster import RUN_S_MAX, ClusterScenario
from tests.sim.cluster_checks import check
from tests.sim.cluster_profile import ClusterProfile, ClusterTopic, draw
from tests.sim.cluster_world import ALL, ClusterWorld
from tests.sim.result import Result
from tests.waiting import until

GOES_BACK: Final = "store_goes_back"
EMPTIED: Final = "store_emptied"
RUNNING: Final = "running"
BEHIND_FIRST: Final = "behind first"
ANY_ORDER: Final = "any order"
FAULTS: Final = (GOES_BACK, EMPTIED)
QUIET_S: Final = 4.0  # longer than a change stays without an entry in the lineage and a floor on disk
NOTICED_S_MAX: Final = 20.0
GROUP: Final = "positions"


@dataclass(slots=True)
class Committed:
    """What the group's client was told: the last position, and that at the time of the snapshot."""

    position: int = 0
    at_snapshot: int = 0
    given_up: bool = False  # an operator has accepted what the store holds


class StoreScenario(ClusterScenario):
    def __init__(self, world: ClusterWorld, profile: ClusterProfile) -> None:
        super().__init__(world, profile)
        random = world.random("store")
        self.what = next((fault for fault in profile.faults or () if fault in FAULTS), random.choice(FAULTS))
        self.how = random.choice((RUNNING, BEHIND_FIRST, BEHIND_FIRST, ANY_ORDER))
        self.committed = Committed()
        self.since = self.until = 0.0  # the store was not the right one
        self._store_random = random

    def _topics(self) -> list[ClusterTopic]:
        return [self._topic(name, 3, 2, available=False) for name in ("t0", "t1")]

    def _start_clients(self) -> None:
        super()._start_clients()
        self.world.client("group", self._commit())

    async def harm(self) -> None:
        world, random = self.world, self._store_random
        await asyncio.sleep(random.uniform(3.0, 6.0))
        world.note(f"{self.what}, {self.how}")
        world.history.faults[self.what] += 1
        snapshot = world.store.snapshot()
        self.committed.at_snapshot = self.committed.position
        behind = random.choice(world.hosts)
        behind.stopping = True  # its keeper leaves it down
        led = {str(partition) for partition in behind.partitions() if partition.leads}
        behind.kill(power=False)
        if random.random() < 0.5:
            await self._lead_twice(led)
        await asyncio.sleep(random.uniform(QUIET_S, 2 * QUIET_S))
        if self.what == EMPTIED:
            snapshot = MemoryStore(world.clock).snapshot()
        if self.how != RUNNING:
            await self._stop_all(random)
        world.restore(snapshot)
        self.since = self.until = world.now()
        await self._start_again(behind, random)
        await self._refused()
        await self._recover()

    async def _lead_twice(self, led: set[str]) -> None:
        """The next leader of one of these goes down at once. The restored store counts its epochs up as far when the
        replica that is behind leads: the same epoch then begins at the same offset with other records."""
        leaders: list[Host] = []

        def found() -> bool:
            up = [host for host in self.world.up() if host.broker is not None]
            leaders.extend(host for host in up for one in host.partitions() if one.leads and str(one) in led)
            return bool(leaders)

        if await until(found, within_s=NOTICED_S_MAX, every_s=0.01):
            leaders[0].kill(power=False)

    async def _stop_all(self, random: Random) -> None:
        for host in self.world.hosts:
            if not host.stopping and random.random() < 0.5:
                await host.drain()
            host.stopping = True
            host.kill(power=False)

    async def _start_again(self, behind: Host, random: Random) -> None:
        """The keepers start those that they are not told to leave down."""
        others = [host for host in self.world.hosts if host is not behind]
        first, later = ([behind], others) if self.how != ANY_ORDER else (self.world.hosts, [])
        for host in first:
            host.stopping = False
        alone_s = random.choice((random.uniform(0.0, 2 * QUIET_S), random.uniform(NOTICED_S_MAX, 2 * NOTICED_S_MAX)))
        await asyncio.sleep(alone_s)  # long enough to lead, and to be written to, or not
        for host in later:
            host.stopping = False

    async def _refused(self) -> None:
        """All that know more than the store say so, and lead nothing."""
        world = self.world
        if await until(self._distrusting, within_s=NOTICED_S_MAX, every_s=0.1):
            return
        world.history.complaints.append("a metadata store that went back was trusted by all brokers")

    def _distrusting(self) -> bool:
        """Complains of brokers that refuse the store and lead all the same."""
        found = [host for host in self.world.up() if host.broker is not None and host.broker.guard.reason]
        for host in found:
            for partition in host.partitions():
                if partition.leads:
                    text = f"broker {host.broker_id} distrusts the store and leads {partition}"
                    self.world.history.complaints.append(text)
        return bool(found)

    async def _recover(self) -> None:
        """The operator: looks until every broker has answered, accepts, restarts those that have to be."""
        world = self.world
        admin = Admin(
            world.addresses,
            timeout_ms=5_000,
            name="recovery",
            connect=world.network.connect("recovery"),
            random=world.random("recovery/sdk"),
            clock_us=world.clock.wall_us,
        )
        done: ClusterRecovery | None = None
        why = ""
        for _ in range(100):
            try:
                plan = await admin.recover_cluster()
                if not plan.silent and len(plan.answered) == len(world.hosts):
                    done = await admin.recover_cluster(accept=plan.digest)
                    break
                why = f"silent: {plan.silent}"
            except CometError as error:
                why = repr(error)
            await asyncio.sleep(0.5)
        await admin.close()
        if done is None:
            world.history.complaints.append(f"the cluster could not be recovered: {why}")
            return
        self.committed.given_up = True
        self.until = world.now() + NOTICED_S_MAX
        world.monitor.recovered()
        world.note(f"recovered: {done}")
        for one in done.partitions:
            if one.loses:
                world.history.complaints.append(f"the recovery gives up {one.loses} records of {one.topic}: {one}")
        await asyncio.sleep(2.0)
        for host in world.up():
            if host.broker is not None and host.broker.guard.reason == RESTART:
                host.kill(power=False)

    # ---- positions

    async def _commit(self) -> None:
        """Commits one more each time, and reads it again."""
        world, committed = self.world, self.committed
        random = world.random("group")
        admin = Admin(
            world.addresses,
            timeout_ms=3_000,
            name="group",
            connect=world.network.connect("group"),
            random=world.random("group/sdk"),
            clock_us=world.clock.wall_us,
        )
        while not world.stopping:
            await world.sleep(random, 0.4)
            try:
                end = (await admin.offsets("t0"))[0]
                if end > committed.position:
                    (told,) = await admin.commit_offsets(GROUP, {("t0", 0): committed.position + 1})
                    if told.error is None:
                        committed.position += 1
                before = committed.position
                read = [one.offset for one in await admin.group_offsets(GROUP) if one.partition == 0]
            except GroupNotFound:
                read = []
            except CometError as error:
                world.note(f"the group's client was told {error.code}")
                continue
            self._read(read[0] if read else 0, before)
        await admin.close()

    def _read(self, position: int, before: int) -> None:
        committed = self.committed
        least = 0 if committed.given_up else before
        if self.what == GOES_BACK and self.since:  # a broker that knows no more may serve what the snapshot has
            least = committed.at_snapshot
        if committed.given_up:
            committed.position = max(position, least)
        if position < least:
            self.world.history.complaints.append(
                f"position {position} of the group was read at {self.world.now():.4f} s, committed was {least}"
            )


def simulate(seed: int, profile: ClusterProfile | None = None) -> Result:
    """Runs one seed on a loop of its own and judges what happened."""
    given = profile or ClusterProfile()
    base = ClusterProfile(
        brokers=3,
        replicas=3,
        min_insync=2,
        available=False,
        flush=Flush.INTERVAL,
        acks=given.acks or Random(f"{seed}/store acks").choice((1, ALL)),
        admin=False,
        pause_s=0.3,
        faults=given.faults or (Random(f"{seed}/store fault").choice(FAULTS),),
        final_crash=given.final_crash,
    )
    drawn = draw(seed, base)
    began = time.perf_counter()
    worlds: list[ClusterWorld] = []

    async def main(loop: SimLoop) -> None:
        loop.seconds_max = RUN_S_MAX
        random = Random(f"{seed}/settings")
        settings = {
            "session_ms": random.choice((2_000, 3_000)),
            "replica_lag_ms": random.choice((1_000, 3_000)),
            "rebalance_ms": random.choice((2_000, 10_000)),
        }
        world = ClusterWorld(loop, seed, 3, settings)
        worlds.append(world)
        world.note(f"{drawn} {settings}")
        scenario = StoreScenario(world, drawn)
        await scenario.run()
        # A replica that knew no more than the snapshot may have led, and told readers that its log is shorter.
        world.history.sessions = [
            session
            for session in world.history.sessions
            if not (session.why == "TRUNCATED" and scenario.since <= session.at <= scenario.until)
        ]

    error = ""
    try:
        run(main)
    except (AssertionError, TimeoutError, CometError) as caught:
        error = f"{type(caught).__name__}: {caught}"
    world = worlds[0]
    verdict = check(world.history, world.monitor, set())
    return Result(
        seed, drawn, verdict, world.history, world.log, time.perf_counter() - began, error, "store", world.now()
    )
