"""Does harm to the world, one kind of fault at a time, at random moments; and mends everything at the end.

A fault that needs a person to mend it (a broker that died, a disk that failed) is mended by the keeper, who plays
the operator: it starts what is down and restarts what says it has failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from comet import records
from comet.errors import CometError
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES
from comet_broker.storage.memory import Faults
from tests.sim.history import Damage
from tests.sim.world import World

PAUSE_S_MAX: Final = 1.0
SLOW_DISK_S: Final = 0.25

Fault = Callable[[World, Random], Awaitable[None]]


async def kill(world: World, random: Random) -> None:
    """The process dies; all it wrote stays."""
    world.host.kill(power=False)


async def power_cut(world: World, random: Random) -> None:
    """The machine dies, and what was not synced with it."""
    world.host.kill(power=True)


async def kill_in_write(world: World, random: Random) -> None:
    """The process dies at some change to its files, before or after it."""
    world.host.crash_in(random.randint(1, 40), after=random.random() < 0.5, power=False)


async def power_cut_in_write(world: World, random: Random) -> None:
    world.host.crash_in(random.randint(1, 40), after=random.random() < 0.5, power=True)


async def drain(world: World, random: Random) -> None:
    """An orderly stop."""
    await world.host.drain()


async def pause(world: World, random: Random) -> None:
    """The process stands still for a while, as under SIGSTOP."""
    node = world.host.node
    if node is None or node.dead:
        return
    node.pause()
    await asyncio.sleep(random.uniform(0.05, PAUSE_S_MAX))
    node.resume()


async def cut_links(world: World, random: Random) -> None:
    for link in world.network.links():
        if random.random() < 0.5:
            link.cut("a cable was pulled")


async def stall_links(world: World, random: Random) -> None:
    """Nothing gets through for a while, one way or both."""
    for link in world.network.links():
        if random.random() < 0.5:
            way = random.choice(("up", "down", "both"))
            link.stall(random.uniform(0.05, 4), up=way != "down", down=way != "up")


async def hang_links(world: World, random: Random) -> None:
    """Half-open: nobody says that the link is gone."""
    for link in world.network.links():
        if random.random() < 0.3:
            link.stall(world.network.keepalive_s + random.uniform(1, 30), up=True, down=random.random() < 0.5)


async def bad_weather(world: World, random: Random) -> None:
    world.network.weather.delay_s_max = 0.3
    await asyncio.sleep(random.uniform(0.3, 2))
    world.network.weather.delay_s_max = 0.002


async def slow_disk(world: World, random: Random) -> None:
    world.host.pace.seconds_max = SLOW_DISK_S
    await asyncio.sleep(random.uniform(0.3, 2))
    world.host.pace.seconds_max = 0.004


async def disk_full(world: World, random: Random) -> None:
    """No space, or for a few more bytes only: for a while, or on and off as others write and delete."""
    disk = world.host.disk
    flapping = random.random() < 0.5
    for _ in range(random.randint(5, 30) if flapping else 1):
        disk.faults.capacity_bytes = disk.used_bytes + random.choice((0, random.randrange(5_000)))
        await asyncio.sleep(random.uniform(0.001, 0.02) if flapping else random.uniform(0.1, 1.5))
        disk.faults.capacity_bytes = None
        await asyncio.sleep(random.uniform(0.001, 0.02) if flapping else 0)


async def no_room_for_one(world: World, random: Random) -> None:
    """Single writes find no room, and the next one does: of several batches under way one is refused."""
    for _ in range(20):
        world.host.disk.faults.append_full_in = random.randint(1, 4)
        await asyncio.sleep(random.uniform(0.01, 0.1))


async def failing_sync(world: World, random: Random) -> None:
    """One fsync fails, and what it should have written is gone from the disk."""
    world.host.disk.faults.sync_fails_in = 1


async def failing_append(world: World, random: Random) -> None:
    """One write fails; the file can be cut back, or, worse, cannot."""
    if random.random() < 0.5:
        world.host.disk.faults.append_fails_in = random.randint(1, 5)
    else:
        world.host.disk.faults.append_tears_in = random.randint(1, 5)


async def out_of_descriptors(world: World, random: Random) -> None:
    world.host.disk.faults.open_fails_in = random.randint(1, 3)


async def clock_jump(world: World, random: Random) -> None:
    world.host.clock.jump(random.choice((-3600.0, 3600.0, 30 * 86400.0, -30 * 86400.0, 1.5, -1.5)))


async def client_dies(world: World, random: Random) -> None:
    """A client process is killed; its connections are reset."""
    victims = [name for name, node in world.clients.items() if name.startswith("p") and not node.dead]
    if len(victims) > 1:
        world.kill_client(random.choice(victims))


async def flip_bit(world: World, random: Random) -> None:
    """A bit turns in a batch that is on disk, while the broker is down."""
    host = world.host
    spans = [
        (tp, path, *span)
        for tp, path, safe_end in world.safe_segments()
        if path not in world.damaged
        for span in batch_spans(host.disk.read_all(path))
        if span[3] <= safe_end
    ]
    if not host.up:
        return
    host.kill(power=False)
    if not spans:
        return  # there will be, once the broker has opened the log again
    tp, path, at, length, first, end = random.choice(spans)
    world.damaged.add(path)
    bit = random.randrange(length * 8)
    host.disk.flip(path, at + bit // 8, bit % 8)
    world.history.damage.append(Damage(tp, world.now(), first, end))


FAULTS: Final[dict[str, Fault]] = {
    function.__name__: function
    for function in (
        kill,
        power_cut,
        kill_in_write,
        power_cut_in_write,
        drain,
        pause,
        cut_links,
        stall_links,
        hang_links,
        bad_weather,
        slow_disk,
        disk_full,
        failing_sync,
        failing_append,
        out_of_descriptors,
        clock_jump,
        client_dies,
        flip_bit,
        no_room_for_one,
    )
}
# Faults that are younger than the known seeds. They are drawn apart, so that those seeds stay what they were.
LATER: Final = ("no_room_for_one",)


def batch_spans(data: bytes | bytearray) -> list[tuple[int, int, int, int]]:
    """Where the batches of a segment lie: position, length, first offset, end offset."""
    spans = []
    at = SEGMENT_HEADER_BYTES
    while at < len(data):
        try:
            header = records.read_header(data, at)
        except CometError:
            break
        spans.append((at, header.length, header.base_offset, header.next_offset))
        at += header.length
    return spans


async def harm(world: World, faults: list[str], until: float) -> None:
    """Faults at random moments until then, several at a time where they last."""
    random = world.random("nemesis")
    under_way: list[asyncio.Task[None]] = []
    while faults:
        await world.sleep(random, 0.6)
        if world.now() >= until:
            break
        name = random.choice(faults)
        world.note(name)
        world.history.faults[name] += 1
        source = Random(random.getrandbits(64))
        under_way.append(asyncio.get_running_loop().create_task(_do(FAULTS[name], world, source), name=name))
    if under_way:
        await asyncio.wait(under_way)


async def _do(fault: Fault, world: World, random: Random) -> None:
    await fault(world, random)


async def keep(world: World) -> None:
    """The operator: whatever is down is started, whatever has failed is restarted."""
    random = world.random("keeper")
    while True:
        await asyncio.sleep(random.uniform(0.05, 0.4))
        for host in world.hosts:
            if host.stopping:
                continue
            if host.node is not None and not host.node.dead and host.up and host.failed():
                await asyncio.sleep(random.uniform(0.0, 0.5))
                world.note("restart of a failed broker")
                host.kill(power=False)
            if host.node is None or host.node.dead:
                await asyncio.sleep(random.uniform(0.0, 0.6))
                started = await host.start()
                world.note("start" if started else "start, died on the way")


def mend(world: World) -> None:
    """Ends all faults; the keeper sees to the rest."""
    world.network.weather.delay_s_max = 0.002
    for host in world.hosts:
        host.pace.seconds_max = 0.004
        host.disk.faults = Faults()
        if host.files is not None:
            host.files.point.operations = 0
        if host.node is not None:
            host.node.resume()
