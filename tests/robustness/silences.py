"""A connection between two brokers dies silently, or the way to a broker is shut for a while; how long until all are in
sync again. The brokers stand behind links (cluster.put_behind_links)."""

from __future__ import annotations

import contextlib
import time
from random import Random
from typing import Final

import comet
from tests.robustness.cluster import ClusterProcesses
from tests.waiting import pace

IN_SYNC_S_MAX: Final = 10.0  # after the mend
WATCHED_S: Final = 5.0  # so long at least: a follower leaves in_sync only after replica_lag_ms
GIVEN_UP_S: Final = 120.0
SHUT_S: Final = (2.0, 8.0)
SHUT_SHARE: Final = 0.3


async def silence(one: ClusterProcesses, topic: str, random: Random) -> tuple[str, float]:
    """Strikes the leader of a topic and one of its followers. Returns what was done, and after how long all were in
    sync."""
    leader = await one.leader(topic)
    follower = random.choice([number for number in one.brokers if number != leader])
    up, down = random.choice(((True, False), (False, True), (True, True)))
    way = "both ways" if up and down else "up" if up else "down"
    if random.random() < SHUT_SHARE:
        one.links[leader].hold(up=up, down=down)
        try:
            await pace(random.uniform(*SHUT_S))
        finally:
            one.links[leader].release()
        what = f"the way to leader {leader} shut {way}"
    else:
        one.forget(follower, leader, up=up, down=down)
        what = f"broker {follower}'s connections to leader {leader} dead {way}"
    return what, await in_sync_after_s(one, topic)


async def in_sync_after_s(one: ClusterProcesses, topic: str) -> float:
    """From now until the last time that a replica was seen to be out of sync."""
    began = time.perf_counter()
    back_s = 0.0
    while (passed_s := time.perf_counter() - began) < WATCHED_S or back_s > passed_s - 1:
        if passed_s > GIVEN_UP_S:
            break
        well = False
        with contextlib.suppress(comet.CometError):
            partitions = (await one.topic(topic)).partitions
            well = all(part.leader and len(part.in_sync) == len(part.replicas) for part in partitions)
        if not well:
            back_s = time.perf_counter() - began
        await pace(0.05)
    return back_s


def complaint(what: str, back_s: float) -> list[str]:
    if back_s <= IN_SYNC_S_MAX:
        return []
    return [f"{what}: in sync again only {back_s:.1f} s after the mend"]
