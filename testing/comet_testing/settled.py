"""Whether everything in a simulated cluster is at rest: replicas in sync, groups drained, handlers idle."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from comet.admin.admin import Admin
from comet.errors import CometError
from comet_testing.app_process import AppProcess
from comet_testing.virtual_time.virtual_loop import VirtualLoop
from comet_testing.world import World

SETTLE_S_MAX: Final = 300.0
LOOK_S: Final = 0.5
REST_S: Final = 2.0  # in which nothing has moved


async def settle(world: World, admin: Admin, apps: Iterable[AppProcess]) -> None:
    """Returns when everything is at rest. Raises AssertionError that names what is not, after five minutes."""
    loop, processes = world.loop, list(apps)
    give_up = loop.time() + SETTLE_S_MAX
    rest_since, before = loop.time(), _handled(processes)
    while True:
        restless = [*await unsettled(world), *await _lag(admin), *_busy(loop, processes)]
        now = _handled(processes)
        if restless or now != before:
            rest_since, before = loop.time(), now
        elif loop.time() - rest_since >= REST_S:
            return
        if loop.time() > give_up:
            raise AssertionError(f"not settled within {SETTLE_S_MAX:.0f} s: {'; '.join(restless) or 'handlers work'}")
        await asyncio.sleep(LOOK_S)


async def unsettled(world: World) -> list[str]:
    """Brokers that run and are not registered, or the reverse; partitions without a leader or out of sync. Those of
    which no replica runs do not count."""
    state = await world.state()
    running = {host.broker_id for host in world.running}
    if set(state.brokers) != running:
        return [f"brokers {sorted(running)} run and {sorted(state.brokers)} are registered"]
    names = {spec.value.id: name for name, spec in state.topics.items()}
    return [
        f"{names.get(topic_id)}/{index} has leader {found.value.leader}, in sync {sorted(found.value.in_sync)}"
        for (topic_id, index), found in state.partitions.items()
        if (alive := set(found.value.replicas) & running)
        and (not found.value.leader or set(found.value.in_sync) & running != alive)
    ]


async def _lag(admin: Admin) -> list[str]:
    """Groups with members that have not read all."""
    try:
        groups = [one.name for one in await admin.list_groups() if one.members]
        lags = [lag for name in groups for lag in (await admin.group_lag(name, points=1)).now]
    except CometError as error:
        return [f"groups are not known: {error.code}"]
    return [f"a group lags by {one.lag} in {one.topic}/{one.partition}" for one in lags if one.lag]


def _busy(loop: VirtualLoop, processes: Iterable[AppProcess]) -> list[str]:
    return [f"{one.name} waits for time to pass" for one in processes if one.node and loop.waits(one.node)]


def _handled(processes: Iterable[AppProcess]) -> list[int]:
    counters = [counter for process in processes for counter in process.app.statistics()]
    return [counter[name] for counter in counters for name in ("handled", "failed", "retried", "dead_lettered")]
