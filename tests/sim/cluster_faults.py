"""What goes wrong in a cluster: brokers, the ways between them, their disks, and the metadata store.

A fault strikes the leader of some partition as often as anybody else, since that is where it hurts. `keep` plays the
operator of one host; `mend` ends everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from comet.wire.liveness import OF_CLIENTS
from comet_broker.rpc.wire_connection import LINGER_S
from comet_broker.storage.memory import Faults
from comet_testing.simulation.host import Host
from comet_testing.simulation.store import DELAY_S_MAX, STORE
from comet_testing.simulation.wire import WireLink
from tests.sim.breaking import breaks
from tests.sim.cluster_world import ClusterWorld
from tests.sim.lying_disks import folder_put_back, log_cut_short
from tests.sim.nemesis import batch_spans
from tests.sim.staged_faults import cut_back_and_lead_again, start_twice_after_a_power_cut
from tests.waiting import until

PAUSE_S_MAX: Final = 9.0  # three leases
PARTITION_S_MAX: Final = 8.0
SLOW_DISK_S: Final = 0.4
IN_SYNC_S_MAX: Final = 8.0  # after a connection between brokers has died silently: 3.5 s, a probe of 1 s, and some more
# A client is silent for its bound and two checks; then it has time to read the End of the call.
NOTICED_S: Final = OF_CLIENTS.silence_s + 2 * OF_CLIENTS.check_s + LINGER_S + 1.0

Fault = Callable[[ClusterWorld, Random], Awaitable[None]]


def _one(world: ClusterWorld, random: Random) -> Host:
    """A leader, or anybody."""
    leaders = [host for tp in world.history.flush for host in [world.leader((tp, 0))] if host is not None]
    return random.choice(leaders) if leaders and random.random() < 0.6 else random.choice(world.hosts)


# ---- processes and machines


async def kill(world: ClusterWorld, random: Random) -> None:
    """A process dies; all it wrote stays."""
    _one(world, random).kill(power=False)


async def kill_all(world: ClusterWorld, random: Random) -> None:
    for host in world.hosts:
        host.kill(power=False)
        await asyncio.sleep(random.choice((0.0, 0.0, 0.3)))


async def power_cut(world: ClusterWorld, random: Random) -> None:
    """A machine dies, and what was not synced with it."""
    _one(world, random).kill(power=True)


async def power_cut_all(world: ClusterWorld, random: Random) -> None:
    """They share one power supply."""
    for host in world.hosts:
        host.kill(power=True)


async def kill_in_write(world: ClusterWorld, random: Random) -> None:
    """A process dies at some change to its files, before or after it."""
    _one(world, random).crash_in(random.randint(1, 20), after=random.random() < 0.5, power=False)


async def power_cut_in_write(world: ClusterWorld, random: Random) -> None:
    _one(world, random).crash_in(random.randint(1, 20), after=random.random() < 0.5, power=True)


async def drain(world: ClusterWorld, random: Random) -> None:
    """An orderly stop."""
    await _one(world, random).drain()


async def pause(world: ClusterWorld, random: Random) -> None:
    """A process stands still, for a moment or for leases."""
    node = _one(world, random).node
    if node is None or node.dead or node.paused:
        return
    node.pause()
    await asyncio.sleep(random.uniform(0.05, random.choice((1.0, PAUSE_S_MAX))))
    node.resume()


# ---- what chance brings together too seldom


async def follower_returns(world: ClusterWorld, random: Random) -> None:
    """The machine of a follower goes down when it has just taken a record. It is back, and follows again; then its
    leader dies."""
    where, leader, followers = world.members(random)
    if leader is None or not followers:
        return
    follower = random.choice(followers)
    copy = world.monitor.copies[follower.broker_id, where]
    known = len(copy.batches)
    if not await until(lambda: len(copy.batches) > known, within_s=2.0, every_s=0.005):
        return
    follower.kill(power=True)
    if await until(
        lambda: follower.broker_id in world.monitor.state.brokers and follower.up, within_s=6.0, every_s=0.05
    ):
        await asyncio.sleep(random.uniform(0.0, 0.3))
        leader.kill(power=random.random() < 0.5)


async def all_but_one_are_sure(world: ClusterWorld, random: Random) -> None:
    """One machine goes down, and with it, or a moment later, the processes of all others: who is back first is not who
    is to lead."""
    _, leader, followers = world.members(random)
    hosts = [host for host in (leader, *followers) if host is not None]
    if not hosts:
        return
    unlucky = random.choice(hosts)
    unlucky.kill(power=True)
    await asyncio.sleep(random.choice((0.0, random.uniform(0.0, 0.5))))
    for host in world.hosts:
        if host is not unlucky:
            host.kill(power=False)


# ---- the network


async def partition(world: ClusterWorld, random: Random) -> None:
    """Two brokers do not hear each other, or one does not hear the other."""
    one, other = random.sample(world.hosts, 2)
    await _blocked(world, random, [(one.address, other.address)], both=random.random() < 0.5)


async def isolate(world: ClusterWorld, random: Random) -> None:
    """One broker and all the others do not hear each other; with the store, with clients, or neither."""
    one = _one(world, random)
    ways = [(one.address, other.address) for other in world.hosts if other is not one]
    if random.random() < 0.5:
        ways.append((one.address, STORE))
    if random.random() < 0.5:
        ways += [(one.address, client) for client in world.clients]
    if random.random() < 0.3:
        ways = [(other, own) for own, other in ways]
    await _blocked(world, random, ways, both=random.random() < 0.6)


async def lose_store(world: ClusterWorld, random: Random) -> None:
    """A broker does not reach the metadata store, or does not hear its answers."""
    address = _one(world, random).address
    way = random.choice(((address, STORE), (STORE, address)))
    await _blocked(world, random, [way], both=random.random() < 0.4)


async def lose_clients(world: ClusterWorld, random: Random) -> None:
    """Clients and a broker do not hear each other."""
    address = _one(world, random).address
    clients = [name for name in world.clients if random.random() < 0.6]
    await _blocked(world, random, [(name, address) for name in clients], both=random.random() < 0.5)


async def _blocked(world: ClusterWorld, random: Random, ways: list[tuple[str, str]], *, both: bool) -> None:
    if both:
        ways = ways + [(target, source) for source, target in ways]
    for way in ways:
        world.network.block(*way)
    await asyncio.sleep(random.uniform(0.2, random.choice((2.0, PARTITION_S_MAX))))
    for way in ways:
        world.network.unblock(*way)


async def swizzle(world: ClusterWorld, random: Random) -> None:
    """The ways between brokers close one by one and open again in another order."""
    ways = [(one.address, other.address) for one in world.hosts for other in world.hosts if one is not other]
    random.shuffle(ways)
    for way in ways:
        world.network.block(*way)
        await asyncio.sleep(random.uniform(0, 1.0))
    random.shuffle(ways)
    for way in ways:
        world.network.unblock(*way)
        await asyncio.sleep(random.uniform(0, 1.0))


async def cut_links(world: ClusterWorld, random: Random) -> None:
    for link in world.network.links():
        if random.random() < 0.4:
            link.cut("a cable was pulled")


async def stall_links(world: ClusterWorld, random: Random) -> None:
    """Nothing gets through for a while, one way or both; for some so long that they break."""
    for link in world.network.links():
        if random.random() < 0.4:
            way = random.choice(("up", "down", "both"))
            seconds = world.network.keepalive_s + 1 if random.random() < 0.1 else random.uniform(0.05, 4)
            link.stall(seconds, up=way != "down", down=way != "up")


async def silent_death(world: ClusterWorld, random: Random) -> None:
    """A firewall forgets connections of one broker: what is sent on them in one direction, or both, vanishes, and
    neither end is told. New connections work at once, or the way stays shut for a while."""
    address = _one(world, random).address
    links = [link for link in world.network.links() if address in (link.client, link.address)]
    way, everything = random.choice(("up", "down", "both")), random.random() < 0.3
    ways: list[tuple[str, str]] = []
    for link in links:
        if everything or (link.replica and random.random() < 0.7):
            link.die(up=way != "down", down=way != "up")
            ways += [(link.client, link.address)] if way != "down" else []
            ways += [(link.address, link.client)] if way != "up" else []
    if ways and random.random() < 0.3:
        await _blocked(world, random, sorted(set(ways)), both=False)


async def one_silent_death(world: ClusterWorld, random: Random) -> None:
    """The same for one follower and its leader, while all is well otherwise: they are in sync again soon. For runs in
    which nothing else goes wrong."""

    def well() -> bool:
        states = [found.value for found in world.monitor.state.partitions.values()]
        return all(state.leader and set(state.in_sync) == set(state.replicas) for state in states)

    if world.silence.locked():
        return
    async with world.silence:
        links = [link for link in world.network.links() if link.replica]
        if not links or not await until(well, within_s=IN_SYNC_S_MAX):
            return
        way = random.choice(("up", "down", "both"))
        random.choice(links).die(up=way != "down", down=way != "up")
        await asyncio.sleep(IN_SYNC_S_MAX)
        if not well():
            world.history.complaints.append(
                f"not in sync {IN_SYNC_S_MAX:.0f} s after a connection had died silently ({way}): "
                f"{[found.value for found in world.monitor.state.partitions.values()]}"
            )


async def silent_links(world: ClusterWorld, random: Random) -> None:
    """Connections are silent for a while, one way or both; then they go on, or are reset."""
    links = [link for link in world.network.links() if random.random() < 0.4]
    seconds = random.uniform(1.0, random.choice((4.0, 2 * OF_CLIENTS.silence_s)))
    way = random.choice(("up", "down", "both"))
    for link in links:
        link.stall(seconds, up=way != "down", down=way != "up")
    await asyncio.sleep(seconds - random.uniform(0.0, 1.0))
    for link in links:
        if random.random() < 0.5:
            link.cut("a router forgot the connection")


async def one_silent_client(world: ClusterWorld, random: Random) -> None:
    """The connection of a client over the wire dies silently, while all is well otherwise: both sides notice. For runs
    in which nothing else goes wrong."""
    if world.silence.locked():
        return
    async with world.silence:
        links = [link for link in world.network.links() if isinstance(link, WireLink) and not link.replica]
        if not links:
            return
        link, way = random.choice(links), random.choice(("up", "down", "both"))
        link.die(up=way != "down", down=way != "up")
        await asyncio.sleep(NOTICED_S)
        if not link.noticed:
            world.history.complaints.append(
                f"{NOTICED_S:.0f} s after the connection of {link.client} to {link.address} had died silently ({way}), "
                f"client: {link.up.is_closing()}, broker: {link.down is not None and link.down.is_closing()}"
            )


async def bad_weather(world: ClusterWorld, random: Random) -> None:
    world.network.weather.delay_s_max = 0.4
    await asyncio.sleep(random.uniform(0.5, 4))
    world.network.weather.delay_s_max = 0.002


# ---- the metadata store


async def store_away(world: ClusterWorld, random: Random) -> None:
    """Nobody gets an answer; what is asked may be done all the same, now and then."""
    harmless = random.random() < 0.5
    for host in world.hosts:
        host.weather.refusing = 1.0 if harmless else 0.5
        host.weather.forgetting = 1.0
    await asyncio.sleep(random.uniform(0.5, random.choice((2.0, 10.0))))
    for host in world.hosts:
        host.weather.refusing = host.weather.forgetting = 0.0


async def store_unsure(world: ClusterWorld, random: Random) -> None:
    """Some calls get lost on the way there, some answers on the way back."""
    weather = _one(world, random).weather
    weather.refusing, weather.forgetting = random.uniform(0, 0.4), random.uniform(0, 0.6)
    await asyncio.sleep(random.uniform(1, 6))
    weather.refusing = weather.forgetting = 0.0


async def store_slow(world: ClusterWorld, random: Random) -> None:
    weathers = [host.weather for host in world.hosts if random.random() < 0.6]
    for weather in weathers:
        weather.delay_s_max = random.uniform(0.2, 1.2)
    await asyncio.sleep(random.uniform(1, 6))
    for weather in weathers:
        weather.delay_s_max = DELAY_S_MAX


async def late_keepalives(world: ClusterWorld, random: Random) -> None:
    """Keepalives take so long that leases run out."""
    weather = _one(world, random).weather
    weather.keepalive_s_max = random.uniform(0.5, 4.0)
    await asyncio.sleep(random.uniform(3, 8))
    weather.keepalive_s_max = 0.0


async def late_watch(world: ClusterWorld, random: Random) -> None:
    """A broker hears of changes late."""
    weather = _one(world, random).weather
    weather.watch_held_until = world.now() + random.uniform(0.3, random.choice((2.0, 8.0)))


async def compacted(world: ClusterWorld, random: Random) -> None:
    """The store has forgotten what a watch would have to be told."""
    for host in world.hosts:
        host.weather.compactions += random.randint(0, 2)


# ---- disks and clocks


async def slow_disk(world: ClusterWorld, random: Random) -> None:
    host = _one(world, random)
    host.pace.seconds_max = SLOW_DISK_S
    await asyncio.sleep(random.uniform(0.5, 5))
    host.pace.seconds_max = 0.004


async def disk_full(world: ClusterWorld, random: Random) -> None:
    """No space, or for a few more bytes only."""
    disk = _one(world, random).disk
    for _ in range(random.choice((1, 1, 10))):
        disk.faults.capacity_bytes = disk.used_bytes + random.choice((0, random.randrange(5_000)))
        await asyncio.sleep(random.uniform(0.01, 2))
        disk.faults.capacity_bytes = None
        await asyncio.sleep(random.uniform(0.0, 0.05))


async def failing_sync(world: ClusterWorld, random: Random) -> None:
    """One fsync fails, and what it should have written is gone from the disk."""
    _one(world, random).disk.faults.sync_fails_in = random.randint(1, 3)


async def failing_append(world: ClusterWorld, random: Random) -> None:
    """One write fails; the file can be cut back, or, worse, cannot."""
    faults = _one(world, random).disk.faults
    if random.random() < 0.5:
        faults.append_fails_in = random.randint(1, 5)
    else:
        faults.append_tears_in = random.randint(1, 5)


async def out_of_descriptors(world: ClusterWorld, random: Random) -> None:
    _one(world, random).disk.faults.open_fails_in = random.randint(1, 3)


async def clock_jump(world: ClusterWorld, random: Random) -> None:
    _one(world, random).clock.jump(random.choice((-3600.0, 3600.0, 30 * 86400.0, -30 * 86400.0, 1.5, -1.5)))


async def flip_bit(world: ClusterWorld, random: Random) -> None:
    """A bit turns in a batch on the disk of one replica, while its broker is down; once for each partition."""
    monitor = world.monitor
    host = _one(world, random)
    if host not in world.up():
        return
    host.disk.faults.open_fails_in = None  # it is for the broker, which is about to die, and not for who looks here
    spans = [
        (where, path, *span[:3])
        for (broker, where), copy in monitor.copies.items()
        if broker == host.broker_id and where not in world.flipped and _replicas(world, where) > 1
        for path in copy.files
        if host.disk.exists(path)
        for span in batch_spans(host.disk.read_all(path))
        if span[3] <= monitor.agreed[where].end
    ]
    host.kill(power=False)
    if not spans:
        return
    where, path, at, length, base = random.choice(spans)
    world.flipped.add(where)
    bit = random.randrange(length * 8)
    host.disk.flip(path, at + bit // 8, bit % 8)
    assert host.watcher is not None
    host.watcher.damaged(path, base)


def _replicas(world: ClusterWorld, where: tuple[str, int]) -> int:
    found = world.monitor.state.partitions.get(where)
    return 0 if found is None else len(found.value.replicas)


async def client_dies(world: ClusterWorld, random: Random) -> None:
    """A client process is killed; its connections are reset."""
    victims = [name for name, node in world.clients.items() if name.startswith("p") and not node.dead]
    if len(victims) > 1:
        world.kill_client(random.choice(victims))


FAULTS: Final[dict[str, Fault]] = {
    function.__name__: function
    for function in (
        kill,
        kill_all,
        power_cut,
        power_cut_all,
        kill_in_write,
        power_cut_in_write,
        drain,
        pause,
        partition,
        isolate,
        lose_store,
        lose_clients,
        swizzle,
        cut_links,
        stall_links,
        silent_death,
        one_silent_death,
        one_silent_client,
        silent_links,
        bad_weather,
        store_away,
        store_unsure,
        store_slow,
        late_keepalives,
        late_watch,
        compacted,
        slow_disk,
        disk_full,
        failing_sync,
        failing_append,
        out_of_descriptors,
        clock_jump,
        flip_bit,
        client_dies,
        follower_returns,
        all_but_one_are_sure,
        cut_back_and_lead_again,
        start_twice_after_a_power_cut,
        breaks,
        folder_put_back,
        log_cut_short,
    )
}
STAGED: Final = ("all_but_one_are_sure", "follower_returns")
# Faults that are younger than the known seeds. They are drawn apart, so that those seeds stay what they were.
LATER: Final = ("cut_back_and_lead_again", "start_twice_after_a_power_cut", "silent_links")
LYING: Final = ("folder_put_back", "log_cut_short")  # which want a cluster of three, and little else that goes wrong
APART: Final = ("silent_death",)
ALONE: Final = ("one_silent_death", "one_silent_client")  # what it asserts holds where nothing else goes wrong
APART_SHARE: Final = 0.3
DRAWN_APART: Final = frozenset({*STAGED, *LATER, *LYING, *APART, *ALONE, "breaks"})
DRAWN: Final = tuple(sorted(FAULTS.keys() - {*ALONE}))


def drawn_apart(seed: int) -> list[str]:
    """Faults that are drawn on their own, so that what else a seed draws stays as it is."""
    return [name for name in APART if Random(f"{seed}/{name}").random() < APART_SHARE]


async def harm(world: ClusterWorld, faults: list[str], until: float, mean_s: float) -> None:
    """Faults at random moments until then, several at a time where they last."""
    random = world.random("nemesis")
    under_way: list[asyncio.Task[None]] = []
    while faults:
        await world.sleep(random, mean_s)
        if world.now() >= until:
            break
        name = random.choice(faults)
        world.note(name)
        world.history.faults[name] += 1
        source = Random(random.getrandbits(64))
        under_way.append(asyncio.get_running_loop().create_task(_do(FAULTS[name], world, source), name=name))
    if under_way:
        await asyncio.wait(under_way)
        for task in under_way:
            task.result()


async def _do(fault: Fault, world: ClusterWorld, random: Random) -> None:
    await fault(world, random)


async def keep(world: ClusterWorld, host: Host) -> None:
    """The operator of one host: starts it when it is down, restarts it when a disk failed under it."""
    random = world.random(f"keeper {host.broker_id}")
    while True:
        await asyncio.sleep(random.uniform(0.1, 0.8))
        if host.stopping or (host.node is not None and host.node.paused) or world.now() < host.away_until:
            continue
        if host.node is not None and not host.node.dead and host.up and host.failed():
            await asyncio.sleep(random.uniform(0.0, 2.0))
            if host.node is not None and not host.node.dead and not host.stopping:
                world.note(f"restart of failed broker {host.broker_id}")
                host.kill(power=False)
        if host.node is None or host.node.dead:
            await asyncio.sleep(random.choice((random.uniform(0.0, 0.6), random.uniform(0.0, 8.0))))
            started = await host.start()
            world.note(f"start of broker {host.broker_id}" + ("" if started else f", died on the way {host.trouble}"))


def mend(world: ClusterWorld) -> None:
    """Ends all faults; the keepers see to the rest."""
    world.network.weather.delay_s_max = 0.002
    world.network.open_all()
    for host in world.hosts:
        host.away_until = 0.0
        host.pace.seconds_max = 0.004
        host.disk.faults = Faults()
        host.weather.refusing = host.weather.forgetting = host.weather.keepalive_s_max = 0.0
        host.weather.delay_s_max = DELAY_S_MAX
        host.weather.watch_held_until = 0.0
        host.weather.compactions = 0
        if host.files is not None:
            host.files.point.operations = 0
        if host.node is not None:
            host.node.resume()
