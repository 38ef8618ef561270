"""The standard faults, at random moments that the seed decides.

Those of brokers come one at a time, and each is mended, so that Comet's own guarantees hold throughout: what is lost or
done twice, an application has lost or done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Final

from comet.errors import InvalidArgument
from comet_testing.app_process import AppProcess
from comet_testing.simulation.host import Host
from comet_testing.simulation.store import STORE
from comet_testing.world import TEST, World

EVERY_S: Final = 5.0  # on average
LASTS_S_MAX: Final = 8.0
START_ATTEMPTS_MAX: Final = 60

Apps = Mapping[int, AppProcess]
Fault = Callable[["Chaos", Random], Awaitable[None]]


class Chaos:
    """Owned by a Cluster, for one stretch of chaos."""

    def __init__(self, world: World, apps: Apps, faults: Sequence[str], random: Random) -> None:
        unknown = sorted(set(faults) - set(FAULTS))
        if unknown:
            raise InvalidArgument(f"there is no fault {unknown[0]!r}; there are {', '.join(FAULTS)}")
        self.world = world
        self.apps = apps
        self._faults = list(faults or FAULTS)
        self._random = random
        if not apps and not set(self._faults) - set(OF_APPS):
            raise InvalidArgument(
                "these faults are of apps, and none runs: begin the chaos in `async with comet.app(app)`"
            )
        self._brokers = asyncio.Lock()  # one of them has trouble at a time
        self._applications = asyncio.Lock()

    async def run(self, seconds: float) -> None:
        """Does harm for so long; returns when all is mended."""
        loop, random = self.world.loop, self._random
        end = loop.time() + seconds
        under_way: list[asyncio.Task[None]] = []
        while True:
            await asyncio.sleep(min(random.expovariate(1 / EVERY_S), EVERY_S * 5))
            if loop.time() >= end:
                break
            name, chance = self._name(), Random(random.getrandbits(64))
            under_way.append(asyncio.create_task(self._do(name, chance), name=f"chaos: {name}"))
        await asyncio.gather(*under_way)

    def _name(self) -> str:
        """Half of all faults are of apps, where both are wanted and an app runs."""
        of_apps = [name for name in self._faults if name in OF_APPS and self.apps]
        others = [name for name in self._faults if name not in OF_APPS]
        return self._random.choice(of_apps if of_apps and (not others or self._random.random() < 0.5) else others)

    async def _do(self, name: str, random: Random) -> None:
        lock = self._applications if name in OF_APPS else self._brokers
        async with lock:
            await FAULTS[name](self, random)

    # ---- parts of faults

    def note(self, text: str) -> None:
        self.world.transcript.note(f"chaos: {text}")

    def host(self, random: Random) -> Host:
        return random.choice(self.world.hosts)

    def app(self, random: Random) -> AppProcess | None:
        return random.choice(list(self.apps.values())) if self.apps else None

    async def lasts(self, random: Random) -> None:
        await asyncio.sleep(random.uniform(0.2, random.choice((1.0, LASTS_S_MAX))))

    async def start(self, host: Host) -> None:
        for _ in range(START_ATTEMPTS_MAX):
            if host.node is not None and not host.node.dead:
                return
            if await host.start():
                self.note(f"broker {host.broker_id} is started")
                return
            await asyncio.sleep(0.5)
        raise AssertionError(f"broker {host.broker_id} does not start: {host.trouble}")

    async def end_broker(self, random: Random, event: str, *, power: bool) -> None:
        host = self.host(random)
        self.note(f"{event} broker {host.broker_id}")
        host.kill(power=power)
        await self.lasts(random)
        await self.start(host)

    async def blocked(self, ways: Sequence[tuple[str, str]], random: Random) -> None:
        for way in ways:
            self.world.network.block(*way)
        await self.lasts(random)
        for way in ways:
            self.world.network.unblock(*way)


async def _kill(chaos: Chaos, random: Random) -> None:
    await chaos.end_broker(random, "kill", power=False)


async def _power_cut(chaos: Chaos, random: Random) -> None:
    await chaos.end_broker(random, "power cut at", power=True)


async def _pause(chaos: Chaos, random: Random) -> None:
    host = chaos.host(random)
    if host.node is None or host.node.dead:
        return
    chaos.note(f"pause broker {host.broker_id}")
    host.node.pause()
    await chaos.lasts(random)
    host.node.resume()


async def _isolate(chaos: Chaos, random: Random) -> None:
    """A broker, from the others, and perhaps from the store and from clients."""
    host, world = chaos.host(random), chaos.world
    others = [address for address in world.addresses if address != host.address]
    others += [STORE] if random.random() < 0.5 else []
    others += [*world.processes, TEST] if random.random() < 0.5 else []
    chaos.note(f"isolate broker {host.broker_id} from {', '.join(others)}")
    await chaos.blocked([way for other in others for way in ((host.address, other), (other, host.address))], random)


async def _lose_store(chaos: Chaos, random: Random) -> None:
    chaos.note("the store is away")
    addresses = chaos.world.addresses
    await chaos.blocked([way for one in addresses for way in ((one, STORE), (STORE, one))], random)


async def _cut_links(chaos: Chaos, random: Random) -> None:
    chaos.note("cut links")
    for link in chaos.world.network.links():
        if random.random() < 0.5:
            link.cut("a cable was pulled")


async def _delay(chaos: Chaos, random: Random) -> None:
    weather = chaos.world.network.weather
    before, weather.delay_s_max = weather.delay_s_max, random.uniform(0.05, 0.5)
    chaos.note(f"delay {weather.delay_s_max * 1000:.0f} ms")
    await chaos.lasts(random)
    weather.delay_s_max = before


async def _slow_disk(chaos: Chaos, random: Random) -> None:
    host = chaos.host(random)
    chaos.note(f"slow disk at broker {host.broker_id}")
    before, host.pace.seconds_max = host.pace.seconds_max, 0.4
    await chaos.lasts(random)
    host.pace.seconds_max = before


async def _kill_app(chaos: Chaos, random: Random) -> None:
    process = chaos.app(random)
    if process is None:
        return
    process.kill()
    await chaos.lasts(random)
    if process in chaos.apps.values():
        await process.start()


async def _pause_app(chaos: Chaos, random: Random) -> None:
    process = chaos.app(random)
    if process is None or process.node is None or process.node.dead:
        return
    chaos.note(f"pause {process.name}")
    process.node.pause()
    await chaos.lasts(random)
    process.node.resume()


async def _isolate_app(chaos: Chaos, random: Random) -> None:
    process = chaos.app(random)
    if process is None:
        return
    chaos.note(f"isolate {process.name}")
    ways = [(process.name, address) for address in chaos.world.addresses]
    await chaos.blocked([*ways, *((address, name) for name, address in ways)], random)


FAULTS: Final[dict[str, Fault]] = {
    "kill": _kill,
    "power_cut": _power_cut,
    "pause": _pause,
    "isolate": _isolate,
    "lose_store": _lose_store,
    "cut_links": _cut_links,
    "delay": _delay,
    "slow_disk": _slow_disk,
    "kill_app": _kill_app,
    "pause_app": _pause_app,
    "isolate_app": _isolate_app,
}
OF_APPS: Final = ("kill_app", "pause_app", "isolate_app")
