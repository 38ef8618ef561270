"""One partition of `__schedules` while this broker leads it: it keeps the schedules, and fires those that are due.

    begins to lead ─► fences the leader before it ─► reads the keys of the log ─► DueTable ─► serves
    change         ─► the schedule is read, changed and written; one change of a schedule at a time
    due            ─► Firing: one transaction for all that are due

A change of a schedule that is firing waits for the end of the transaction. So a cancelled schedule has either fired
before, or never will.

Owned by the Scheduler, for one leadership; on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from comet.errors import CometError, LeadershipLost, LimitExceeded, RevisionMismatch, ScheduleNotFound, Unavailable
from comet.schedules.calendars import Calendar
from comet.schedules.zones import TZDATA
from comet.v1 import records_pb2 as records_pb
from comet.v1 import schedules_pb2 as pb
from comet_broker import limits
from comet_broker.env import Env
from comet_broker.key_values.views import ABSENT
from comet_broker.schedules.changes import is_due_once, key_of, renewed, uses_zone
from comet_broker.schedules.firing import BACK_OFF_S, Firing
from comet_broker.schedules.store import ScheduleStore, schedule_of

log = logging.getLogger(__name__)

TICK_S: Final = 0.05  # between two transactions
IDLE_S_MAX: Final = 10.0  # without a look at the clock, which may be set
REMEMBERED_US: Final = 600_000_000  # how long a repeated request for a schedule that is over is recognized

Change: TypeAlias = Callable[[pb.Schedule], pb.Schedule | None]
T = TypeVar("T")


class Keeper:
    def __init__(
        self, env: Env, store: ScheduleStore, firing: Firing, calendars: Callable[[], Mapping[str, Calendar]]
    ) -> None:
        self.store = store
        self.firing = firing
        self.ready = False
        self._env = env
        self._calendars = calendars
        self._renew = False  # a calendar has changed
        self._changes: set[asyncio.Task[Any]] = set()

    def statistics(self) -> dict[str, Any]:
        table = self.store.table
        now_us = self._env.clock.wall_us()
        next_us = table.next_us() if self.ready else None
        return {
            "partition": self.store.partition.index,
            "ready": self.ready,
            "schedules": table.count,
            "recurring": table.recurring,
            "due": table.due_count(now_us) if self.ready else 0,
            "late_s": 0.0 if next_us is None else max(now_us - next_us, 0) / 1e6,
        }

    # ---- life

    async def run(self) -> None:
        """Runs while this broker leads. Raises the error that ends it."""
        try:
            await self._load()
            self.ready = True
            log.info("%s: keeps %d schedules", self.store.partition, self.store.table.count)
            while self.store.led:
                await self._turn()
                await self._wait()
        finally:
            self.ready = False
            for task in self._changes:
                task.cancel()
            await asyncio.gather(*self._changes, return_exceptions=True)
            self.store.close()

    def calendars_changed(self) -> None:
        self._renew = True
        self.store.moved.set()

    async def _load(self) -> None:
        """Fences the leader before, so that nothing of it comes later, and reads all schedules."""
        store = self.store
        while not store.partition.settled:
            store.check_led()
            await asyncio.sleep(TICK_S)
        await self._patiently(self.firing.transactions.begin)
        zoned: list[bytes] = []
        request = records_pb.ReadKeysRequest()
        request.range.limit = limits.READ_KEYS_MAX
        while True:
            answer = await self._patiently(lambda: store.page(request))
            found = [(record.key, one) for record in answer.records if (one := schedule_of(record)) is not None]
            store.table.put_new(found)
            zoned += [key for key, one in found if one.tzdata != TZDATA and not is_due_once(one) and uses_zone(one)]
            if not answer.HasField("after"):
                break
            request.range.after = answer.after
            await asyncio.sleep(0)
        await self._renew_times(zoned)
        self._renew = True

    async def _patiently(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer of a call that may have to wait, for the log to be read or for a coordinator."""
        while True:
            try:
                return await call()
            except CometError as error:
                self.store.check_led()
                if not error.retriable:
                    raise
                log.info("the schedules of %s are served later: %s", self.store.partition, error)
                await asyncio.sleep(BACK_OFF_S)

    async def _turn(self) -> None:
        try:
            if self._renew:
                await self._renew_by_calendars()
            await self.firing.fire_due()
        except CometError as error:
            self.store.check_led()
            if not error.retriable:
                raise
            log.warning("schedules of %s fire later: %s", self.store.partition, error)
            await asyncio.sleep(BACK_OFF_S)

    async def _renew_by_calendars(self) -> None:
        self._renew = False
        try:
            await self._renew_times(self._with_calendars())
        except CometError:
            self._renew = True  # of the others, after a while
            raise

    async def _wait(self) -> None:
        next_us = self.store.table.next_us()
        wait_s = IDLE_S_MAX if next_us is None else (next_us - self._env.clock.wall_us()) / 1e6
        if wait_s <= TICK_S:
            await asyncio.sleep(TICK_S)
            return
        self.store.moved.clear()
        try:
            async with asyncio.timeout(min(wait_s, IDLE_S_MAX)):
                await self.store.moved.wait()
        except TimeoutError:
            return

    def _with_calendars(self) -> list[bytes]:
        return [key for name in self._calendars() for key in self.store.table.of_calendar(name)]

    async def _renew_times(self, keys: Sequence[bytes]) -> None:
        """Computes next times again, as their calendars or the rules of time zones may be others."""
        for key in keys:
            async with self.store.alone(key):
                found, _ = await self.store.read([key])
                before = found.get(key)
                after = None if before is None else renewed(before, self._env.clock.wall_us(), self._calendars())
                if after is not None:
                    await self.store.write(key, after)

    # ---- calls

    async def get(self, topic: str, schedule_id: str) -> pb.Schedule:
        self._check_ready()
        key = key_of(topic, schedule_id)
        found, _ = await self.store.read([key])
        if key not in found:
            raise _not_found(topic, schedule_id)
        return found[key]

    async def page(self, request: records_pb.ReadKeysRequest) -> records_pb.ReadKeysResponse:
        self._check_ready()
        return await self.store.page(request)

    async def put(
        self, made: pb.Schedule, *, revision: int | None, fresh: bool, dry_run: bool
    ) -> tuple[pb.Schedule, bool]:
        """The schedule as it is stored, and whether it did not exist before."""
        self._check_ready()
        return await self._finished(self._put(made, revision, fresh=fresh, dry_run=dry_run))

    async def change(
        self, topic: str, schedule_id: str, change: Change, *, revision: int | None, dry_run: bool
    ) -> pb.Schedule:
        """The schedule after a change; as it was, if that is its end."""
        self._check_ready()
        return await self._finished(self._change(topic, schedule_id, change, revision, dry_run=dry_run))

    async def _finished(self, change: Coroutine[Any, Any, T]) -> T:
        """The result of a change, which goes on if its caller leaves."""
        task = asyncio.get_running_loop().create_task(change, name=f"change a schedule of {self.store.partition}")
        self._changes.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise  # the caller leaves
            raise LeadershipLost(
                f"this broker stopped leading {self.store.partition}; the change may or may not be stored"
            ) from None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has it, if there is one

    async def _put(
        self, made: pb.Schedule, revision: int | None, *, fresh: bool, dry_run: bool
    ) -> tuple[pb.Schedule, bool]:
        key = key_of(made.topic, made.id)
        async with self.store.alone(key):
            found, over = await self.store.read([key])
            before = found.get(key)
            if fresh and before is not None:
                return before, False
            if fresh and self._env.clock.wall_us() - over.get(key, 0) < REMEMBERED_US:
                return pb.Schedule(topic=made.topic, id=made.id), False
            _check_revision(made, before, revision)
            if before is None:
                self._check_room(made)
            else:
                made.created_us = before.created_us
            if not dry_run:
                made.revision = await self.store.write(key, made)
            return made, before is None

    async def _change(
        self, topic: str, schedule_id: str, change: Change, revision: int | None, *, dry_run: bool
    ) -> pb.Schedule:
        key = key_of(topic, schedule_id)
        async with self.store.alone(key):
            found, _ = await self.store.read([key])
            before = found.get(key)
            if before is None:
                raise _not_found(topic, schedule_id)
            _check_revision(before, before, revision)
            after = change(before)
            if not dry_run:
                written = await self.store.write(key, after)
                if after is None:
                    self.firing.counts.cancelled += 1
                else:
                    after.revision = written
            return before if after is None else after

    def _check_ready(self) -> None:
        self.store.check_led()
        if not self.ready:
            raise Unavailable(f"the schedules of {self.store.partition} are still being read", retry_after_ms=200)

    def _check_room(self, made: pb.Schedule) -> None:
        table, partition = self.store.table, self.store.partition
        if table.count >= limits.SCHEDULES_MAX:
            raise LimitExceeded(f"{partition} has {table.count} schedules, its limit; cancel some first")
        if not is_due_once(made) and table.recurring >= limits.SCHEDULES_RECURRING_MAX:
            raise LimitExceeded(f"{partition} has {table.recurring} recurring schedules, its limit; cancel some first")


def _check_revision(named: pb.Schedule, before: pb.Schedule | None, expected: int | None) -> None:
    actual = ABSENT if before is None else before.revision
    if expected is None or expected == actual:
        return
    has = "does not exist" if actual == ABSENT else f"has revision {actual}"
    expects = "that it does not exist" if expected == ABSENT else f"revision {expected}"
    raise RevisionMismatch(
        f"schedule {named.id!r} of {named.topic!r} {has}, and the request expects {expects}; nothing was changed: "
        "read it again",
        details={"revision": str(actual)},
    )


def _not_found(topic: str, schedule_id: str) -> ScheduleNotFound:
    return ScheduleNotFound(
        f"topic {topic!r} has no schedule {schedule_id[:200]!r}: it was never made, has fired for the last "
        "time, or was cancelled"
    )
