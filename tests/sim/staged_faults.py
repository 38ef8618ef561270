"""Staged faults of a cluster: sequences of events that chance brings together too seldom.

Each is what a known class of bugs needs, see `cluster_mutants`. A step that does not come about ends the fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

from comet_broker.storage import data_folder
from comet_testing.simulation.host import Host
from comet_testing.simulation.store import STORE
from tests.sim.cluster_world import ClusterWorld
from tests.sim.losses import Where
from tests.waiting import until

TAKEN_S_MAX: Final = 2.0
ELECTED_S_MAX: Final = 8.0  # two leases and more
STARTED_S_MAX: Final = 10.0  # the longest pause of a keeper
IN_SYNC_S_MAX: Final = 6.0

Way = tuple[str, str]


async def cut_back_and_lead_again(world: ClusterWorld, random: Random) -> None:
    """A leader takes batches that its followers do not get, loses its lease, and follows the next leader, which cuts
    it back. Then it leads again. Its producers reach no other broker meanwhile: they send the very same batches again
    to the log that they were cut from."""
    where, leader, followers = world.members(random)
    if leader is None or not followers:
        return
    broker, log = leader.broker_id, world.monitor.copies[leader.broker_id, where]
    others = [host for host in world.hosts if host is not leader]
    senders = [name for name in world.clients if name[0] in "pr"]
    with _apart(world, [(name, other.address) for name in senders for other in others]):
        with _apart(world, [(leader.address, name) for name in (STORE, *(other.address for other in others))]):
            known = len(log.batches)
            await until(lambda: len(log.batches) > known, within_s=TAKEN_S_MAX, every_s=0.005)
            replaced = await until(lambda: _leader(world, where) not in (0, broker), within_s=ELECTED_S_MAX)
        if not replaced or not await until(lambda: _in_sync(world, where, broker), within_s=IN_SYNC_S_MAX):
            return
        for other in others:
            other.kill(power=False)
    await until(lambda: _leader(world, where) == broker, within_s=ELECTED_S_MAX)


async def start_twice_after_a_power_cut(world: ClusterWorld, random: Random) -> None:
    """A machine goes down, and the processes of all others with it. The broker is killed again as soon as its first
    start has noted that something may be lost, before any controller knows of it. Its second start, in the same boot,
    is the first broker to be back."""
    where, leader, followers = world.members(random)
    if leader is None or not followers:
        return
    unlucky = random.choice([leader, *followers])
    others = [host for host in world.hosts if host is not unlucky]
    unlucky.kill(power=True)
    before = _identity(unlucky)
    with _apart(world, [(other.address, STORE) for other in others]):
        for other in others:
            other.kill(power=False)
        if await until(lambda: _identity(unlucky) != before, within_s=STARTED_S_MAX, every_s=0.001):
            unlucky.kill(power=False)
            await until(lambda: _leader(world, where) == unlucky.broker_id, within_s=STARTED_S_MAX)


def _identity(host: Host) -> bytes:
    """What the data folder says of itself, read past the faults of the disk, which are the broker's."""
    found = host.disk._seen.get(data_folder.FILE)
    return b"" if found is None else bytes(found.seen)


def _leader(world: ClusterWorld, where: Where) -> int:
    found = world.monitor.state.partitions.get(where)
    return 0 if found is None else found.value.leader


def _in_sync(world: ClusterWorld, where: Where, broker: int) -> bool:
    state = world.monitor.state
    found = state.partitions.get(where)
    return found is not None and found.value.in_sync.get(broker) == state.broker_epoch(broker) != 0


@contextmanager
def _apart(world: ClusterWorld, pairs: list[Way]) -> Iterator[None]:
    """The two of each pair do not hear each other."""
    ways = pairs + [(target, source) for source, target in pairs]
    for way in ways:
        world.network.block(*way)
    try:
        yield
    finally:
        for way in ways:
            world.network.unblock(*way)
