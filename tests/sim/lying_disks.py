"""Disks that lie: a broker starts with less than it had, and nothing on its disk says so.

A data folder is put back from a copy, or a log has lost its end; the other brokers are there, or die with it and come
back later. What is lost on one disk is on the two others, so nothing may be lost: the right replica leads, or those
that know more do not follow, and `operate`, the operator, chooses.

Where all die at once, a replica knows what is committed as of the last note on its disk. So a disk loses no less than
what every replica has noted.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from comet.admin.admin import Admin
from comet.errors import CometError
from comet.settings.topic import Consistency
from comet_testing.simulation.host import Host
from tests.sim.cluster_world import ClusterWorld
from tests.sim.losses import Where
from tests.waiting import until

RETURN_S_MAX: Final = 12.0
OPERATOR_S: Final = 2.0
AWAY_S_MAX: Final = 10.0  # until the others are started: longer than they are waited for


async def folder_put_back(world: ClusterWorld, random: Random) -> None:
    """The data folder of a broker becomes what it was some time ago."""
    where = _choice(world, random)
    if where is None:
        return
    host = random.choice(world.hosts)
    host.kill(power=False)
    copy = host.disk.snapshot()
    ends = {one: world.monitor.has(host.broker_id, one) for one in _sound(world, all_up=False)}
    wanted = world.monitor.agreed[where].end + random.randint(1, 30)
    if not await until(
        lambda: where in _sound(world) and _noted(world, where) > wanted, within_s=RETURN_S_MAX, every_s=0.05
    ):
        return
    hit = [one for one in _sound(world) if one in ends and _noted(world, one) > ends[one]]
    if where in hit:
        whole = len(hit) == len({where for broker, where in world.monitor.copies if broker == host.broker_id})
        host.put_back(copy, [_folder(one) for one in hit], whole=whole)
        await _others_die(world, random, host)


async def log_cut_short(world: ClusterWorld, random: Random) -> None:
    """A log of a broker loses its end while its process is down."""
    where = _choice(world, random)
    if where is None:
        return
    host = random.choice(world.hosts)
    copy = world.monitor.copies[host.broker_id, where]
    batches = sorted(copy.batches.values())
    noted = _noted(world, where)
    cuts = [batch for batch in batches if batch.path == batches[-1].path and batch.base < noted]
    if not cuts:
        return
    cut = random.choice(cuts)
    host.cut_short(cut.path, cut.position + random.choice((0, 0, random.randrange(cut.position_end - cut.position))))
    await _others_die(world, random, host)


async def _others_die(world: ClusterWorld, random: Random, host: Host) -> None:
    if random.random() < 0.7:
        away_s = random.choice((0.0, random.uniform(3.0, AWAY_S_MAX)))
        for other in world.hosts:
            if other is not host:
                other.away_until = world.now() + away_s
                other.kill(power=False)
                await asyncio.sleep(random.choice((0.0, 0.0, 0.2)))


def _choice(world: ClusterWorld, random: Random) -> Where | None:
    sound = _sound(world)
    return random.choice(sorted(sound)) if sound else None


def _sound(world: ClusterWorld, *, all_up: bool = True) -> list[Where]:
    """Partitions of which three brokers hold all that is committed, and no disk has lied yet."""
    monitor = world.monitor
    up = {host.broker_id for host in world.up() if host.up}
    found = []
    for where, state in monitor.state.partitions.items():
        spec, value = monitor.spec(where), state.value
        in_sync = (
            set(value.in_sync) == set(value.replicas)
            and value.in_sync.items()
            <= {broker: record.create_revision for broker, record in monitor.state.brokers.items()}.items()
        )
        copies = [monitor.copies[broker, where] for broker in value.replicas]
        if (
            spec is not None
            and spec.config.consistency is Consistency.CONSISTENT
            and len(value.replicas) > 2
            and spec.config.min_insync > 1
            and (not all_up or (in_sync and set(value.replicas) <= up))
            and not any(copy.lies or copy.lossy or copy.poisoned or copy.damaged for copy in copies)
            and not any(where == mark[1:] for mark in monitor.state.conflicts)
        ):
            found.append(where)
    return found


def _noted(world: ClusterWorld, where: Where) -> int:
    """Up to where every replica has noted on its disk that it is committed. One that has just caught up may not yet."""
    found = [
        partition.log.state.marked for host in world.hosts for partition in host.partitions() if partition.tp == where
    ]
    return min(found, default=0)


def _folder(where: Where) -> str:
    return f"topics/{where[0]}/{where[1]}"


async def operate(world: ClusterWorld, admin: Admin) -> None:
    """Looks for replicas that do not follow, and has the one lead that has most of what is committed."""
    while True:
        await asyncio.sleep(OPERATOR_S)
        monitor = world.monitor
        for _, topic_id, index in list(monitor.state.conflicts):
            where = (topic_id, index)
            found = monitor.state.partitions.get(where)
            name = monitor.name(where).rpartition("/")[0]
            if found is None or not set(found.value.holders) <= monitor.state.brokers.keys() or name == where[0]:
                continue  # who is not there may have more
            best = max(
                found.value.holders, key=lambda broker: (monitor.has(broker, where), broker == found.value.leader)
            )
            world.note(f"the operator has broker {best} lead {name}/{where[1]}")
            try:
                await admin.elect_leader(name, where[1], best, accept_loss=True)
            except CometError as error:
                world.note(f"the operator was told {error.code}")
            else:
                world.history.faults["operator"] += 1
