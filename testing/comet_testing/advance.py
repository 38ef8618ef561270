"""Lets time pass in a simulated cluster, and skips what nothing is due in.

    run for a while ─► at rest? ─► what is due next: a schedule, a timer of the user's, the end
         ▲                              └─► far away: skip to shortly before it ─┐
         └──────────────────────────────────────────────────────────────────────┘

Brokers take heartbeats, leases and time-outs from monotonic time, which is not skipped; schedules, expiry, retention
and timestamps from wall time, which is. So a skip is what a cluster sees when all its clocks are set forward. It does
not happen before every time-out with its default length has had the time to run out, where the user's code waits; nor
while a replica is missing or catches up.
"""

from __future__ import annotations

import asyncio
from typing import Final

from comet_broker.schedules.keeper import Keeper
from comet_testing.settled import unsettled
from comet_testing.world import World

STEP_S: Final = 2.0  # after a skip, before the next one
WAITING_STEP_S: Final = 75.0  # the same while the user's code waits: longer than time-outs of sessions and transactions
LAST_S: Final = 12.0  # before the end: two rounds of retention
MARGIN_S: Final = 1.0  # before what is due
SKIP_S_MIN: Final = 20
SKIP_S_MAX: Final = 86_400
REST_S_MAX: Final = 300.0  # a cluster that is not at rest by then is kept from it by a fault of the test


async def advance(world: World, seconds: float) -> None:
    loop = world.loop
    end = loop.elapsed_s() + seconds
    while (left := end - loop.elapsed_s()) > 1e-6:
        waits = loop.user_timer_s() is not None
        await asyncio.sleep(min(left, WAITING_STEP_S if waits else STEP_S))
        if end - loop.elapsed_s() > LAST_S + SKIP_S_MIN:
            await _rest(world, end)
            _skip(world, end - loop.elapsed_s() - LAST_S)


async def _rest(world: World, end: float) -> None:
    """Waits until the brokers that run are registered and their replicas in sync, REST_S_MAX at most."""
    loop = world.loop
    give_up = min(end, loop.elapsed_s() + REST_S_MAX)
    while loop.elapsed_s() < give_up and await unsettled(world):
        await asyncio.sleep(1.0)


def _skip(world: World, left: float) -> None:
    """Skips to shortly before what is due next."""
    loop = world.loop
    due = [(at_us - loop.wall_us()) / 1_000_000 for at_us in _schedules(world)]
    timer = loop.user_timer_s()
    seconds = int(min([left, SKIP_S_MAX, *due, *([] if timer is None else [timer])]) - MARGIN_S)
    if seconds < SKIP_S_MIN:
        return
    loop.skip(seconds)
    for clock in (world.clock, *(host.clock for host in world.hosts)):
        clock.jump(seconds)
    for keeper in _keepers(world):
        keeper.store.moved.set()  # or it looked at the clock seconds later


def _keepers(world: World) -> list[Keeper]:
    brokers = [host.broker for host in world.running if host.broker is not None]
    return [keeper for broker in brokers for keeper in broker.scheduler.keepers if keeper.ready]


def _schedules(world: World) -> list[int]:
    """When the next schedule of each partition is due."""
    found = [keeper.store.table.next_us() for keeper in _keepers(world)]
    return [at_us for at_us in found if at_us is not None]
