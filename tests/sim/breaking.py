"""A fault that lies in the code: what belongs to one partition on one broker raises an unexpected error, until the
operator resumes the broker. The other partitions must not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Final

from comet.admin.admin import Admin
from comet.errors import CometError
from comet_broker.partitions.partition import Partition
from comet_testing.simulation.host import Host
from tests.sim.cluster_world import ClusterWorld
from tests.sim.history import PartitionName
from tests.sim.planting import PlantedError

LASTS_S_MAX: Final = 8.0
RECOVERS_S: Final = 3.0  # in which what was resumed is in sync again
RESUME_ATTEMPTS_MAX: Final = 60
NAME: Final = "breaks"


async def breaks(world: ClusterWorld, random: Random) -> None:
    """Methods of one partition raise on one broker, until it is resumed or started again."""
    hosts = [host for host in world.up() if host.broker is not None]
    tps = sorted((topic, 0) for topic in world.history.flush)
    if not hosts or not tps:
        return
    host, tp = random.choice(hosts), random.choice(tps)
    partition = next((one for one in host.partitions() if (one.topic, one.index) == tp), None)
    if partition is None or host.broker is None:
        return
    methods = _methods(partition, random)
    name = methods[0][1]
    broker = host.broker
    before = _in_sync(world, tp)
    world.broken.append(tp)
    mends = [_break(where, method) for where, method in methods]
    world.note(f"{name} of {tp} raises on broker {host.broker_id}")
    try:
        give_up = world.now() + random.uniform(2.0, LASTS_S_MAX)
        while world.now() < give_up and host.broker is broker:
            await asyncio.sleep(0.25)
            _look(world, tp, before)
    finally:
        for mend in mends:
            mend()
    await _resume(world, host, broker)
    await asyncio.sleep(RECOVERS_S)
    world.broken.remove(tp)


def _methods(partition: Partition, random: Random) -> list[tuple[Any, str]]:
    """One method of an object of the partition's own, wherever it is kept, that raises."""
    follower, flushing = partition.follower, partition.flushing
    methods: list[list[tuple[Any, str]]] = [[(partition, "apply")], [(partition, "moved"), (flushing, "_moved")]]
    if partition.leadership is None:
        methods += [[(follower, "learn")], [(follower, "replicate")], [(partition.log, "append_stamped")]] * 2
    else:
        replicas = partition.leadership.replicas
        methods += [
            [(replicas, "progress")], [(replicas, "shrunk")], [(replicas, "committed")], [(partition.log, "append")]
        ] * 2  # fmt: skip
    return random.choice([found for found in methods if all(hasattr(where, "__dict__") for where, _ in found)])


def _break(where: Any, name: str) -> Callable[[], None]:
    """Returns what mends it again. Two faults may break the same method: the first that ends mends it."""

    def raises(*_: object, **__: object) -> None:
        raise PlantedError(name)

    def mend() -> None:
        if name in vars(type(where)):
            vars(where).pop(name, None)
        else:
            setattr(where, name, vars(raises)["whole"])

    before = getattr(where, name)
    vars(raises)["whole"] = vars(before).get("whole", before) if hasattr(before, "__dict__") else before
    setattr(where, name, raises)
    return mend


def _in_sync(world: ClusterWorld, but: PartitionName) -> dict[PartitionName, int]:
    """How many replicas of the other partitions are in sync."""
    found = {}
    for (topic_id, index), state in world.monitor.state.partitions.items():
        name = next((name for name, known in world.monitor.names.items() if known == topic_id), "")
        if name in world.history.flush and (name, index) != but and (name, index) not in world.broken:
            found[name, index] = len(state.value.in_sync)
    return found


def _look(world: ClusterWorld, tp: PartitionName, before: dict[PartitionName, int]) -> None:
    """As long as nothing else has gone wrong in this run, all others are as they were."""
    if set(world.history.faults) - {NAME}:
        return
    for other, count in _in_sync(world, tp).items():
        if other in world.broken:
            before.pop(other, None)  # it has a trouble of its own, and then takes its time to be in sync again
        if count < before.get(other, 0):
            world.history.complaints.append(
                f"an error about {tp} has taken {other} from {before[other]} to {count} replicas in sync"
            )


async def _resume(world: ClusterWorld, host: Host, broker: object) -> None:
    """The operator, who tries again until the broker has answered, or another start has cured it."""
    name = f"resumer {host.broker_id}"
    admin = Admin(
        world.addresses,
        timeout_ms=2_000,
        name=name,
        connect=world.network.connect(name),
        random=world.random(name),
        clock_us=world.clock.wall_us,
    )

    for _ in range(RESUME_ATTEMPTS_MAX):
        if host.broker is not broker:
            break
        try:
            await admin.resume(host.broker_id)
        except CometError as error:
            world.note(f"broker {host.broker_id} is not resumed: {error.code}")
        if not any(one.fault for one in host.partitions()):
            break
        await asyncio.sleep(0.5)
    await admin.close()
