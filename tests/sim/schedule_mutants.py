"""Planted bugs of schedules: in what is committed together, in what a new leader does, and in changes and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from comet.errors import CometError
from comet.types import SCHEDULES_TOPIC
from comet.v1 import records_pb2 as records_pb
from comet.v1 import schedules_pb2 as pb
from comet_broker.coordination.transactions import Transactions
from comet_broker.schedules import firing
from comet_broker.schedules.changes import Fired
from comet_broker.schedules.due_table import DueSchedule, DueTable
from comet_broker.schedules.firing import Firing
from comet_broker.schedules.keeper import TICK_S, Keeper
from comet_broker.schedules.store import ScheduleStore, state_of
from tests.sim.cluster_profile import ClusterProfile
from tests.sim.planting import Mutant, Patch

SCHEDULE_MUTANTS: Final[dict[str, Mutant]] = {}

Patches = Callable[[], list[Patch]]


def mutant(why: str, breaks: str, *faults: str, caught_by: int = 0) -> Callable[[Patches], Patches]:
    def register(patches: Patches) -> Patches:
        profile = ClusterProfile(faults=faults or None, fault_every_s=1.5 if faults else None)
        SCHEDULE_MUTANTS[patches.__name__] = Mutant(
            "schedules", why, tuple(breaks.split()), profile, patches, caught_by
        )
        return patches

    return register


# ---- what is committed together


async def _write_states(self: Firing, batch: Any) -> None:
    await self.transactions.begin()
    states = [state_of(key, after) for key, after in batch.states.items()]
    own = records_pb.PublishRequest(topic=SCHEDULES_TOPIC, partition=self._store.partition.index, records=states)
    await self.transactions.publish(own)
    await self.transactions.end(commit=True)


async def _write_records(self: Firing, batch: Any) -> None:
    await self.transactions.begin()
    for topic, records in batch.records.items():
        await self.transactions.publish(records_pb.PublishRequest(topic=topic, records=records))
    await self.transactions.end(commit=True)


def _in_two(first: Callable[[Firing, Any], Any], then: Callable[[Firing, Any], Any]) -> list[Patch]:
    """Two transactions, one for each tick."""

    async def write(self: Firing, batch: Any) -> None:
        try:
            await first(self, batch)
            await asyncio.sleep(TICK_S)
            await then(self, batch)
        except CometError:
            await self.transactions.abort()
            raise
        self._note(batch)

    return [(Firing, "_write", write)]


@mutant("the state is committed before the record", "C38 C39 C41", "kill", "pause", "partition")
def commit_the_state_first() -> list[Patch]:
    return _in_two(_write_states, _write_records)


@mutant("the record is committed before the state", "C38 C39 C41", "kill", "pause", "partition", caught_by=5)
def commit_the_record_first() -> list[Patch]:
    return _in_two(_write_records, _write_states)


@mutant("a transaction that was aborted counts", "C38 C39 C41", "kill", "pause", "partition", "cut_links")
def note_what_was_aborted() -> list[Patch]:
    async def write(self: Firing, batch: Any) -> None:
        with suppress(CometError):
            await real(self, batch)
        self._note(batch)

    real = Firing._write
    return [(Firing, "_write", write)]


# ---- leaders


@mutant("schedules are read before the last transaction has its markers", "C38 C39 C41", caught_by=3)
def read_before_the_end() -> list[Patch]:
    async def when_finished(self: Transactions, one: Any, epoch: int) -> None:
        pass

    return [(Transactions, "_when_finished", when_finished)]


@mutant("a new leader does not read the schedules in its log", "C38 C41", "kill", "drain")
def do_not_read_the_log() -> list[Patch]:
    def put_new(self: DueTable, found: Any) -> None:
        rows = list(found)
        if len(rows) == 1:  # of a change; a leader reads whole pages
            real(self, rows)

    real = DueTable.put_new
    return [(DueTable, "put_new", put_new)]


# ---- changes


@mutant(
    "a change does not wait for the schedule to have fired",
    "C38 C39 C41",
    "slow_disk",
    "bad_weather",
    "stall_links",
    caught_by=4,
)
def do_not_wait_for_a_fire() -> list[Patch]:
    @asynccontextmanager
    async def alone(self: ScheduleStore, key: bytes) -> AsyncIterator[None]:
        yield

    return [(ScheduleStore, "alone", alone)]


@mutant(
    "schedules that are over are not remembered: a repeated request fires again", "C38", "lose_clients", "cut_links"
)
def forget_fresh_ids() -> list[Patch]:
    async def read(self: ScheduleStore, keys: Sequence[bytes]) -> tuple[dict[bytes, pb.Schedule], dict[bytes, int]]:
        found, _ = await real(self, keys)
        return found, {}

    real = ScheduleStore.read
    return [(ScheduleStore, "read", read)]


# ---- times and refusals


@mutant("schedules of a topic that refuses are forgotten", "C38 C41", "kill", "partition", "pause")
def forget_what_is_put_off() -> list[Patch]:
    async def refuse(self: Firing, topic: str, keys: Sequence[bytes], error: CometError) -> None:
        await real(self, topic, keys, error)
        for key in keys:
            self._store.table.remove(key)

    real = Firing._refuse
    return [(Firing, "_refuse", refuse)]


@mutant("schedules fire two seconds too early", "C40")
def fire_too_early() -> list[Patch]:
    early_us = 2_000_000
    due: Callable[..., list[DueSchedule]] = DueTable.due
    fired: Callable[..., Fired] = vars(firing)["fired"]

    def due_early(self: DueTable, now_us: int, limit: int) -> list[DueSchedule]:
        return due(self, now_us + early_us, limit)

    def fired_early(schedule: pb.Schedule, now_us: int, calendars: Mapping[str, Any], records_max: int) -> Fired:
        return fired(schedule, now_us + early_us, calendars, records_max)

    return [(DueTable, "due", due_early), (firing, "fired", fired_early)]


@mutant(
    "a change that a broker gives up as it stops leading is not answered",
    "C29",
    "isolate",
    "lose_store",
    "slow_disk",
    caught_by=13,
)
def leave_a_change_unanswered() -> list[Patch]:
    async def finished(self: Keeper, change: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.get_running_loop().create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    return [(Keeper, "_finished", finished)]
