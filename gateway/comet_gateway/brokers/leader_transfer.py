"""Transfer of leadership between brokers: the plan (pure), and the job that carries it out.

The leader of a partition is its first replica once that one is in sync; so leadership moves by reordering the
replicas, and no record is copied. A job makes a few such changes at once, waits until the new leaders lead, and
continues; it can be stopped between any two. One job at a time; it ends with its gateway, and changes made stay.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import comet
from comet.errors import CometError, InvalidArgument
from comet_gateway.http.problems import Problem

log = logging.getLogger(__name__)

State = Literal["idle", "planned", "running", "stopping", "stopped", "done", "failed"]

NO_BROKER: Final = 0
AT_ONCE: Final = 50  # partitions whose leadership is being moved
CHECK_S: Final = 0.5  # between two checks of the leaders
PATIENCE_S: Final = 60.0  # wait for those under way, before the job continues without them
MOVES_MAX: Final = 10_000  # of one job


@dataclass(frozen=True, slots=True)
class Step:
    """One partition, its present and future leader, and the order of replicas that makes the change."""

    topic: str
    partition: int
    leader: int  # now; 0: none
    to: int
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    steps: tuple[Step, ...]
    before: dict[int, int]  # partitions that each broker leads, by its id
    after: dict[int, int]


# ---- the plan


def able(partition: comet.PartitionInfo, calm: Collection[int]) -> list[int]:
    """Replicas that can lead at once."""
    return [broker for broker in partition.replicas if broker in partition.in_sync and broker in calm]


def spread(topics: Iterable[comet.TopicInfo], calm: Collection[int]) -> Plan:
    """Balances leadership over the calm brokers with as few changes as possible.

    Afterwards no broker leads two partitions more than another one that could take one over from it."""
    partitions = [(topic.name, one) for topic in topics for one in topic.partitions]
    to = {(name, one.partition): _settled(one, calm) for name, one in partitions}
    leads = Counter(to.values())
    choices = {(name, one.partition): able(one, calm) for name, one in partitions}
    moving = True
    while moving:
        moving = False
        for tp, leader in to.items():
            least = min((one for one in choices[tp] if one != leader), key=lambda one: leads[one], default=None)
            if least is not None and leader in calm and leads[leader] - leads[least] >= 2:
                leads[leader] -= 1
                leads[least] += 1
                to[tp] = least
                moving = True
    return _plan(partitions, to, calm)


def _settled(partition: comet.PartitionInfo, calm: Collection[int]) -> int:
    """The leader once all changes are through: the first replica, if that can lead."""
    first = partition.replicas[0] if partition.replicas else NO_BROKER
    return first if first in able(partition, calm) else _leader(partition)


def _leader(partition: comet.PartitionInfo) -> int:
    return partition.leader or NO_BROKER


def given(
    topics: Iterable[comet.TopicInfo], wanted: Sequence[tuple[str, int, int | None]], calm: Collection[int]
) -> Plan:
    """The plan for requested moves: (topic, partition, broker); broker 0: the one of those that can which leads least.

    Raises InvalidArgument if the broker cannot lead the partition, TopicNotFound, PartitionNotFound."""
    known = {topic.name: topic for topic in topics}
    partitions = [(topic.name, one) for topic in known.values() for one in topic.partitions]
    leads = Counter(_leader(one) for _, one in partitions)
    to: dict[tuple[str, int], int] = {}
    for name, index, broker in wanted:
        if name not in known:
            raise comet.TopicNotFound(f"topic {name!r} does not exist")
        if not 0 <= index < len(known[name].partitions):
            raise comet.PartitionNotFound(f"topic {name!r} has no partition {index}")
        if (name, index) in to:
            raise InvalidArgument(f"{name}/{index} is named twice")
        one = known[name].partitions[index]
        others = [other for other in able(one, calm) if other != one.leader]
        if broker is not None and broker != one.leader and broker not in others:
            can = ", ".join(map(str, others)) or "none"
            raise InvalidArgument(f"broker {broker} cannot lead {name}/{index} now; replicas that can: {can}")
        chosen = broker or min(others, key=lambda other: leads[other], default=_leader(one))
        leads[_leader(one)] -= 1
        leads[chosen] += 1
        to[name, index] = chosen
    return _plan(partitions, to, calm)


def _plan(
    partitions: Sequence[tuple[str, comet.PartitionInfo]], to: dict[tuple[str, int], int], calm: Collection[int]
) -> Plan:
    before = Counter(dict.fromkeys(sorted(calm), 0))
    after = Counter(dict.fromkeys(sorted(calm), 0))
    steps: list[Step] = []
    for name, one in partitions:
        leader = _leader(one)
        target = to.get((name, one.partition), leader)
        before[leader] += 1
        after[target] += 1
        first = one.replicas[0] if one.replicas else NO_BROKER
        if target not in (NO_BROKER, leader, first):  # the first replica leads by itself as soon as it can
            replicas = (target, *(broker for broker in one.replicas if broker != target))
            steps.append(Step(name, one.partition, leader, target, replicas))
    before.pop(NO_BROKER, None)
    after.pop(NO_BROKER, None)
    return Plan(tuple(steps), dict(before), dict(after))


# ---- the job


@dataclass(slots=True)
class TransferProgress:
    """Progress of a job. `state` "idle": there was no job; "planned": it has not started."""

    state: State = "idle"
    plan: Plan = field(default_factory=lambda: Plan((), {}, {}))
    started_us: int = 0
    decided: int = 0  # steps that were sent to the cluster
    led: int = 0  # of those, the ones with their new leader
    error: str = ""


class LeaderJob:
    """Owned by the backend; belongs to one event loop."""

    def __init__(self, admin: comet.Admin, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self.progress = TransferProgress()
        self._admin = admin
        self._clock_us = clock_us
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    def start(self, plan: Plan) -> None:
        """Raises Problem while another job runs."""
        if self._task is not None and not self._task.done():
            raise Problem("LEADERS_MOVING", "leaders are being moved already; wait until that ends, or stop it")
        if len(plan.steps) > MOVES_MAX:
            raise Problem("LIMIT_EXCEEDED", f"{len(plan.steps)} changes are more than {MOVES_MAX} at once")
        self._stop.clear()
        self.progress = TransferProgress("running", plan, self._clock_us())
        self._task = asyncio.create_task(self._run(self.progress), name="gateway: move leaders")

    def stop(self) -> None:
        """Stops before the next step; changes that were sent still take effect."""
        if self.progress.state == "running":
            self.progress.state = "stopping"
            self._stop.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, progress: TransferProgress) -> None:
        try:
            for first in range(0, len(progress.plan.steps), AT_ONCE):
                if self._stop.is_set():
                    break
                await self._some(progress, progress.plan.steps[first : first + AT_ONCE])
            progress.state = "stopped" if self._stop.is_set() else "done"
        except CometError as error:
            progress.state, progress.error = "failed", error.message
        except asyncio.CancelledError:
            progress.state, progress.error = "failed", "the job ended with its gateway"
            raise
        except Exception:
            log.exception("moving leaders failed")
            progress.state, progress.error = "failed", "unexpected error; see the gateway's log"

    async def _some(self, progress: TransferProgress, steps: Sequence[Step]) -> None:
        loop = asyncio.get_running_loop()
        decided: list[Step] = []
        for step in steps:
            if self._stop.is_set():
                break
            await self._admin.move_partition(step.topic, step.partition, step.replicas)
            progress.decided += 1
            decided.append(step)
        before, until = progress.led, loop.time() + PATIENCE_S
        while True:
            led = {
                (topic.name, one.partition): one.leader
                for topic in await self._admin.list_topics()
                for one in topic.partitions
            }
            # A topic that was deleted meanwhile is not waited for.
            left = sum(led.get((step.topic, step.partition), step.to) != step.to for step in decided)
            progress.led = before + len(decided) - left
            if not left or loop.time() >= until:
                return
            await asyncio.sleep(CHECK_S)
