"""A cluster of a test: real brokers and the real SDK, on virtual time. What users see of the kit."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

from comet.admin.admin import Admin
from comet.app import App
from comet.consumer.consumer import serde_of
from comet.consumer.range_reader import Reader
from comet.errors import CometError, InvalidArgument
from comet.producer.producer import Producer
from comet.settings.topic import TopicConfig
from comet.types import Gap, Receipt
from comet.units import parse_duration_ms
from comet.values.record import Headers, Key, Record
from comet_testing.advance import advance
from comet_testing.app_process import AppProcess
from comet_testing.chaos import Chaos
from comet_testing.request_faults import RequestFault, When
from comet_testing.settled import settle
from comet_testing.simulation.host import Host
from comet_testing.simulation.network import Weather
from comet_testing.simulation.store import STORE
from comet_testing.transcript import Transcript
from comet_testing.world import TEST, World, world_loop

BROKERS_MAX: Final = 9
READY_S_MAX: Final = 30.0
LOOK_S: Final = 0.02
PUBLISH_MS: Final = 120_000  # longer than any fault of chaos lasts
DELAY_S_MAX: Final = Weather().delay_s_max
Duration = str | float | timedelta  # "3d", seconds, or a timedelta

Invariant = Callable[[], Awaitable[None] | None]


class Cluster:
    """Brokers on virtual time, and what a test does to them. Runs while its `async with` block does.

    Clients that are made in the block (producers, consumers, apps) reach this cluster, with the addresses they have.
    `broker` is a broker's number, from 1 on.
    """

    def __init__(self, brokers: int, seed: int, settings: dict[str, Any]) -> None:
        if not 1 <= brokers <= BROKERS_MAX:
            raise InvalidArgument(f"a cluster has 1 to {BROKERS_MAX} brokers, not {brokers}")
        self.seed = seed
        self._brokers = brokers
        self._settings = settings
        self._running: World | None = None
        self._apps: dict[int, AppProcess] = {}  # by the app's identity
        self._invariants: list[Invariant] = []
        self._admin: Admin | None = None
        self._producer: Producer | None = None
        self._reader: Reader | None = None

    # ---- life

    async def __aenter__(self) -> Self:
        if self._running is not None:
            raise InvalidArgument("this cluster runs already")
        world = World(world_loop(), self.seed, self._brokers, self._settings)
        self._running = world
        world.enter()
        try:
            await world.start()
            self._admin = Admin(world.addresses, name=TEST)
            self._producer = Producer(world.addresses, name=TEST, acks="all", timeout_ms=PUBLISH_MS)
            self._reader = Reader(world.addresses, name=TEST)
            await self._until_registered()
        except BaseException:
            world.stop()
            world.leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        world = self._world
        for client in (self._producer, self._reader, self._admin):
            if client is not None and error is None:
                await client.close()
        world.stop()
        world.leave()
        if error is not None:
            error.add_note(self.replay())
        elif world.complaints:
            failure = AssertionError("the cluster failed by itself:\n" + "\n".join(world.complaints))
            failure.add_note(self.replay())
            raise failure

    def replay(self) -> str:
        """The seed, and the newest acts and faults, to be read where a test has failed."""
        acts = self._world.transcript.acts[-20:]
        return "\n".join([f"comet: seed {self.seed}, {len(self._world.hosts)} brokers; what was done:", *acts])

    @property
    def _world(self) -> World:
        if self._running is None:
            raise InvalidArgument("this cluster does not run: use it in `async with comet.testing.cluster()`")
        return self._running

    async def _until_registered(self) -> None:
        """Returns when the brokers that run know each other."""
        async with asyncio.timeout(READY_S_MAX):
            while not self._world.acquainted():
                await asyncio.sleep(LOOK_S)

    # ---- looking in

    @property
    def addresses(self) -> list[str]:
        """Of the brokers. Clients may use them, or any other address: all lead to this cluster."""
        return self._world.addresses

    @property
    def transcript(self) -> Transcript:
        """What happened so far. One seed is one transcript."""
        return self._world.transcript

    @property
    def now(self) -> float:
        """Seconds of virtual time since the start."""
        return self._world.loop.elapsed_s()

    async def leader(self, partition: str) -> int:
        """The broker that leads a partition, such as "orders/0"; 0 if there is none."""
        topic, index = _partition(partition)
        found = await self._world.partition(topic, index)
        if found is None:
            raise InvalidArgument(f"there is no partition {partition}")
        return found.leader

    # ---- topics and records

    async def topic(self, name: str, *, partitions: int = 1, replicas: int | None = None, **settings: Any) -> None:
        """Makes a topic, with settings as TopicConfig has them. By default every broker has a replica, three at
        most. Returns when its partitions take requests."""
        world = self._world
        copies = min(3, len(world.hosts)) if replicas is None else replicas
        assert self._admin is not None
        await self._admin.create_topic(name, partitions=partitions, replicas=copies, config=TopicConfig(**settings))
        await self._admin.offsets(name)  # asks every leader
        world.transcript.note(f"topic {name}, {partitions} partitions, {copies} replicas")

    async def publish(
        self, topic: str, value: Any, *, key: Key = None, headers: Headers | None = None,
        timestamp_us: int | None = None, partition: int | None = None, ttl_ms: int | None = None,
    ) -> Receipt:  # fmt: skip
        """Writes a record, and returns when every in-sync replica has it."""
        assert self._producer is not None
        receipt = await self._producer.publish(
            topic, value, key=key, headers=headers, timestamp_us=timestamp_us, partition=partition, ttl_ms=ttl_ms
        )
        self._world.transcript.note(f"published {topic}/{receipt.partition} {receipt.offset}")
        return receipt

    async def records(self, topic: str, type: Any = None) -> list[Record[Any]]:  # noqa: A002 - as a consumer's
        """The committed records of a topic so far, by partition and offset; values are of the given type, without one
        bytes."""
        assert self._admin is not None
        assert self._reader is not None
        serde = serde_of(type)
        found: list[Record[Any]] = []
        for partition in sorted(await self._admin.offsets(topic)):
            async for part in self._reader.read(topic, partition):
                if not isinstance(part, Gap):
                    part._serde = serde
                    found.extend(part.records())
        return found

    async def values(self, topic: str, type: Any = None) -> list[Any]:  # noqa: A002 - as a consumer's
        """The values of the committed records of a topic so far."""
        return [record.value for record in await self.records(topic, type)]

    # ---- applications

    @asynccontextmanager
    async def app(self, app: App, *, name: str = "") -> AsyncIterator[App]:
        """Runs an App, unchanged, as a process of its own, while the block does; it begins when its handlers read.
        At the end it stops in good order. An error of a handler that ends the app is raised."""
        process = AppProcess(self._world, app, name or f"app-{len(self._apps) + 1}")
        self._apps[id(app)] = process
        await process.start()
        try:
            yield app
        finally:
            del self._apps[id(app)]
            await process.stop()

    # ---- time

    async def advance(self, duration: Duration) -> None:
        """Lets virtual time pass: schedules, timers, retries, expiry and retention all happen, in order. "3d", seconds,
        or a timedelta.

        Where nothing is due for long, and the cluster is at rest, the time in between is skipped: wall clocks go
        forward, and heartbeats and leases continue as if it had not been. Retention and compaction then see the new
        time, at least once a day."""
        seconds = _seconds(duration)
        self._world.transcript.note(f"advance {seconds:g} s")
        await advance(self._world, seconds)

    # ---- processes

    async def kill(self, target: int | App | None = None, *, leader_of: str = "") -> int:
        """Kills the process of a broker, or of an app: none of its code runs any more. All it wrote stays. Returns the
        broker's number; 0 for an app."""
        if isinstance(target, App):
            self._app_process(target).kill()
            return 0
        host = await self._host(target, leader_of)
        self._world.transcript.note(f"kill broker {host.broker_id}")
        host.kill(power=False)
        return host.broker_id

    async def power_cut(self, broker: int | None = None, *, leader_of: str = "") -> int:
        """Cuts the power of a broker's machine: what is not on its disk is lost, and no connection is closed."""
        host = await self._host(broker, leader_of)
        self._world.transcript.note(f"power cut at broker {host.broker_id}")
        host.kill(power=True)
        return host.broker_id

    async def restart(self, target: int | App) -> None:
        """Starts a broker or an app again; one that runs is killed before. Returns when it takes requests."""
        if isinstance(target, App):
            process = self._app_process(target)
            process.kill()
            await process.start()
            return
        host = await self._host(target, "")
        self._world.transcript.note(f"restart broker {target}")
        host.kill(power=False)
        if not await host.start():
            raise AssertionError(f"broker {target} died at its start: {host.trouble}")
        await self._until_registered()

    async def pause(self, target: int | App) -> None:
        """Stops a process of a broker or an app, as SIGSTOP does, until `resume`."""
        await self._pause_or_resume(target, pause=True)

    async def resume(self, target: int | App) -> None:
        """Continues a paused process: all that came due meanwhile happens now."""
        await self._pause_or_resume(target, pause=False)

    async def _pause_or_resume(self, target: int | App, *, pause: bool) -> None:
        node = self._app_process(target).node if isinstance(target, App) else (await self._host(target, "")).node
        if node is None or node.dead:
            raise InvalidArgument(f"{target} does not run")
        self._world.transcript.note(f"{'pause' if pause else 'resume'} {node.name}")
        if pause and not node.paused:
            node.pause()
        elif not pause:
            node.resume()

    # ---- the network

    async def isolate(self, one: int | App | str, other: int | App | str | None = None) -> None:
        """Cuts the network between two ends until `heal`: brokers, apps, or "store", the metadata store. Without
        `other` it cuts one end off from all others."""
        own, network = self._name(one), self._world.network
        others = [self._name(other)] if other is not None else self._names(own)
        self._world.transcript.note(f"isolate {own} from {', '.join(others)}")
        for name in others:
            network.block(own, name)
            network.block(name, own)

    async def heal(self) -> None:
        """Opens all ways of the network again, and ends `delay`."""
        network = self._world.network
        self._world.transcript.note("heal")
        network.weather.delay_s_max = DELAY_S_MAX
        network.open_all()

    def _name(self, end: int | App | str) -> str:
        if isinstance(end, App):
            return self._app_process(end).name
        if isinstance(end, int):
            return self._world.host(end).address
        if end != STORE:
            raise InvalidArgument(f'an end of the network is a broker\'s number, an App or "{STORE}", not {end!r}')
        return end

    def _names(self, own: str) -> list[str]:
        world = self._world
        return [name for name in (*world.addresses, *world.processes, STORE, TEST) if name != own]

    async def delay(self, milliseconds: float) -> None:
        """Delays every message by up to this time, until `heal`."""
        self._world.transcript.note(f"delay {milliseconds:g} ms")
        self._world.network.weather.delay_s_max = milliseconds / 1000

    # ---- requests, disks and the metadata store

    def fault(
        self, *, call: str, error: str | CometError | type[CometError], topic: str = "", count: int | None = None,
        probability: float = 1.0, when: When | None = None,
    ) -> RequestFault:  # fmt: skip
        """Refuses requests of clients while its `with` block runs: those of one call, such as "produce", "fetch",
        "publish" or "commit", with an error such as "NOT_LEADER". `topic` limits it to a topic, `count` to the first
        requests, `probability` to a share of them, and `when` to those for which it is true; it gets the message of the
        protocol."""
        return self._world.faults.fault(call, topic, error, count, probability, when)

    def observe(self, *, call: str, topic: str = "", when: When | None = None) -> RequestFault:
        """Counts requests as `fault` does, and lets them pass."""
        return self._world.faults.fault(call, topic, None, None, 1.0, when)

    @asynccontextmanager
    async def disk_full(self, broker: int | None = None, *, leader_of: str = "") -> AsyncIterator[int]:
        """A broker's disk has no room while the block runs."""
        host = await self._host(broker, leader_of)
        self._world.transcript.note(f"disk of broker {host.broker_id} is full")
        host.disk.faults.capacity_bytes = host.disk.used_bytes
        try:
            yield host.broker_id
        finally:
            host.disk.faults.capacity_bytes = None
            self._world.transcript.note(f"disk of broker {host.broker_id} has room")

    @asynccontextmanager
    async def lose_store(self) -> AsyncIterator[None]:
        """No broker reaches the metadata store while the block runs."""
        world = self._world
        world.transcript.note("the store is away")
        ways = [way for address in world.addresses for way in ((address, STORE), (STORE, address))]
        for way in ways:
            world.network.block(*way)
        try:
            yield
        finally:
            world.transcript.note("the store is back")
            for way in ways:
                world.network.unblock(*way)

    # ---- chaos

    async def settled(self) -> None:
        """Waits until everything is at rest: replicas are in sync, groups have read all, handlers are idle. Raises
        AssertionError that names what is not, after five minutes of virtual time. Records that are due later may be
        there."""
        assert self._admin is not None
        await settle(self._world, self._admin, self._apps.values())

    def invariant(self, check: Invariant) -> Invariant:
        """Registers a function, async or not, that raises AssertionError if a promise of the application is broken:
        checked after `chaos`."""
        self._invariants.append(check)
        return check

    @asynccontextmanager
    async def chaos(self, minutes: float = 5, *, faults: Sequence[str] = ()) -> AsyncIterator[None]:
        """The standard faults at random moments while the block runs, and for `minutes` at least. Then all is mended
        and `settled`, and the invariants are checked.

        `faults` are some of kill, power_cut, pause, isolate, lose_store, cut_links, delay, slow_disk, kill_app,
        pause_app, isolate_app; all of them by default. Brokers have trouble one at a time, so that what Comet
        guarantees holds."""
        world = self._world
        world.transcript.note(f"chaos for {minutes:g} min")
        chaos = Chaos(world, self._apps, faults, world.random(f"chaos {world.transcript.digest}"))
        harm = asyncio.create_task(chaos.run(minutes * 60), name="chaos")
        try:
            yield
            await harm
        finally:
            harm.cancel()
        await self.settled()
        for check in self._invariants:
            result = check()
            if inspect.isawaitable(result):
                await result

    # ---- targets

    def _app_process(self, app: App) -> AppProcess:
        found = self._apps.get(id(app))
        if found is None:
            raise InvalidArgument("this app does not run here: use it in `async with comet.app(app)`")
        return found

    async def _host(self, broker: int | None, leader_of: str) -> Host:
        if (broker is None) == (not leader_of):
            raise InvalidArgument('name a broker by its number, or with leader_of="topic/0"')
        number = broker or await self.leader(leader_of)
        if not 1 <= number <= len(self._world.hosts):
            raise InvalidArgument(f"{leader_of or number}: there is no such broker")
        return self._world.host(number)


def _partition(text: str) -> tuple[str, int]:
    topic, slash, index = text.rpartition("/")
    if not slash or not index.isdecimal():
        raise InvalidArgument(f'a partition is written "topic/0", not {text!r}')
    return topic, int(index)


def _seconds(duration: Duration) -> float:
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    return parse_duration_ms(duration) / 1000 if isinstance(duration, str) else float(duration)
