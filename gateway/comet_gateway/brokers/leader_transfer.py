"""Giving partitions other leaders: the plan (pure), and the job that carries it out.

Who leads a partition is its first replica, as soon as that one is in sync; so a leader is changed by changing the order
of the replicas, and no record is copied. A job makes few such changes at once, waits until the new leaders lead, and
goes on; it can be stopped between any two. One job at a time; it ends with its gateway, and what was decided stays.
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

AT_ONCE: Final = 50  # partitions that are under way to their new leaders
LOOK_S: Final = 0.5  # between two looks at who leads
PATIENCE_S: Final = 60.0  # that those under way are waited for, before the job goes on without them
MOVES_MAX: Final = 10_000  # of one job


@dataclass(frozen=True, slots=True)
class Step:
    """One partition, who is to lead it instead of whom, and the order of replicas that makes it so."""

    topic: str
    partition: int
    leader: int  # now; 0: nobody
    to: int
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    steps: tuple[Step, ...]
    before: dict[int, int]  # partitions that each broker leads, by its id
    after: dict[int, int]


# ---- what is to be done


def able(partition: comet.PartitionInfo, calm: Collection[int]) -> list[int]:
    """Replicas that can lead at once."""
    return [broker for broker in partition.replicas if broker in partition.in_sync and broker in calm]


def spread(topics: Iterable[comet.TopicInfo], calm: Collection[int]) -> Plan:
    """Each of the calm brokers leads about as many partitions, with as few changes as that takes: nobody leads two
    more than one who could take one over from him."""
    partitions = [(topic.name, one) for topic in topics for one in topic.partitions]
    to = {(name, one.index): _settled(one, calm) for name, one in partitions}
    leads = Counter(to.values())
    choices = {(name, one.index): able(one, calm) for name, one in partitions}
    moving = True
    while moving:
        moving = False
        for place, leader in to.items():
            least = min((one for one in choices[place] if one != leader), key=lambda one: leads[one], default=None)
            if least is not None and leader in calm and leads[leader] - leads[least] >= 2:
                leads[leader] -= 1
                leads[least] += 1
                to[place] = least
                moving = True
    return _plan(partitions, to, calm)


def _settled(partition: comet.PartitionInfo, calm: Collection[int]) -> int:
    """Who leads it once all is quiet: its first replica, if that can."""
    first = partition.replicas[0] if partition.replicas else 0
    return first if first in able(partition, calm) else partition.leader


def given(
    topics: Iterable[comet.TopicInfo], wanted: Sequence[tuple[str, int, int | None]], calm: Collection[int]
) -> Plan:
    """What somebody wants: (topic, partition, broker); no broker: whoever of those that can leads least. Raises
    InvalidArgument where that broker cannot lead it, TopicNotFound, PartitionNotFound."""
    known = {topic.name: topic for topic in topics}
    partitions = [(topic.name, one) for topic in known.values() for one in topic.partitions]
    leads = Counter(one.leader for _, one in partitions)
    to: dict[tuple[str, int], int] = {}
    for name, index, broker in wanted:
        if name not in known:
            raise comet.TopicNotFound(f"there is no topic {name!r}")
        if not 0 <= index < len(known[name].partitions):
            raise comet.PartitionNotFound(f"topic {name!r} has no partition {index}")
        if (name, index) in to:
            raise InvalidArgument(f"{name}/{index} is named twice")
        one = known[name].partitions[index]
        others = [other for other in able(one, calm) if other != one.leader]
        if broker is not None and broker != one.leader and broker not in others:
            can = ", ".join(map(str, others)) or "none"
            raise InvalidArgument(f"broker {broker} cannot lead {name}/{index} now; of its replicas can: {can}")
        chosen = broker or min(others, key=lambda other: leads[other], default=one.leader)
        leads[one.leader] -= 1
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
        target = to.get((name, one.index), one.leader)
        before[one.leader] += 1
        after[target] += 1
        first = one.replicas[0] if one.replicas else 0
        if target not in (0, one.leader, first):  # the first replica leads without our doing, as soon as it can
            replicas = (target, *(broker for broker in one.replicas if broker != target))
            steps.append(Step(name, one.index, one.leader, target, replicas))
    before.pop(0, None)
    after.pop(0, None)
    return Plan(tuple(steps), dict(before), dict(after))


# ---- doing it


@dataclass(slots=True)
class TransferProgress:
    """How far a job is. `state`: "idle" says that there was none, "planned" that it is none yet."""

    state: State = "idle"
    plan: Plan = field(default_factory=lambda: Plan((), {}, {}))
    started_us: int = 0
    decided: int = 0  # steps that the cluster has been told of
    led: int = 0  # of those, which have their new leader
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
            raise Problem("LEADERS_MOVING", "leaders are being moved already; wait for the end of that, or stop it")
        if len(plan.steps) > MOVES_MAX:
            raise Problem("LIMIT_EXCEEDED", f"{len(plan.steps)} changes are more than {MOVES_MAX} at once")
        self._stop.clear()
        self.progress = TransferProgress("running", plan, self._clock_us())
        self._task = asyncio.create_task(self._run(self.progress), name="gateway: move leaders")

    def stop(self) -> None:
        """No further partition gets another leader; those that were decided do."""
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
            progress.state, progress.error = "failed", "the gateway that did it has ended it"
            raise
        except Exception:
            log.exception("moving leaders failed")
            progress.state, progress.error = "failed", "the gateway met with an error that is in its log"

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
                (topic.name, one.index): one.leader
                for topic in await self._admin.list_topics()
                for one in topic.partitions
            }
            # A topic that was deleted meanwhile keeps nobody waiting.
            left = sum(led.get((step.topic, step.partition), step.to) != step.to for step in decided)
            progress.led = before + len(decided) - left
            if not left or loop.time() >= until:
                return
            await asyncio.sleep(LOOK_S)
