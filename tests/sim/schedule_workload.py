"""Clients that put schedules, and change, run and cancel them, through any broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final, TypeVar

from google.protobuf.message import Message

from comet.errors import CometError, Draining, ScheduleNotFound, Unavailable
from comet.v1 import schedules_pb2 as pb
from comet.wire.protobuf import error_from_pb
from tests.sim.history import Outcome
from tests.sim.schedule_history import End, Life, Name, ScheduleHistory
from tests.sim.world import World

M = TypeVar("M", bound=Message)

CONSISTENT: Final = "sure"
FRAIL: Final = "frail"  # with one replica: it is away whenever a broker is
AVAILABLE: Final = "loose"
DELETED: Final = "gone"
TOPICS: Final = (CONSISTENT, CONSISTENT, CONSISTENT, FRAIL, AVAILABLE, DELETED)
LATE: Final = ("", "fire", "fire_last", "fire_all", "skip")
LATE_MAX_MS: Final = 2_000
DELAY_S_MAX: Final = 12.0
ASKED_AGAIN_MAX: Final = 6  # of a put with a fresh id
RECURRING_MAX: Final = 4  # of a client at a time
CALENDAR: Final = "SIM"
SECOND_US: Final = 1_000_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def at(time_us: int) -> str:
    """The spec of a schedule that is due then."""
    return f"at {(EPOCH + timedelta(microseconds=time_us)).isoformat()}"


def is_unknown(error: CometError) -> bool:
    """Whether the call may have taken effect. A broker that names a time, or drains, has refused it."""
    if isinstance(error, Unavailable):
        return not (isinstance(error, Draining) or error.retry_after_ms)
    return error.outcome_unknown


class Caller:
    """Calls of one client to brokers that it draws."""

    def __init__(self, world: World, name: str, random: Random) -> None:
        self._world = world
        self._name = name
        self._random = random
        self._connect = world.network.connect(name)

    async def call(self, method: str, request: Message, response: type[M], timeout_s: float) -> M:
        channel = self._connect(self._random.choice(self._world.addresses))
        answer = await channel.unary(f"comet.v1.Admin/{method}", request, response, timeout_s)
        assert isinstance(answer, response)
        return answer

    async def page(self, request: pb.ListSchedulesRequest, timeout_s: float) -> pb.ListSchedulesResponse:
        return await self.call("ListSchedules", request, pb.ListSchedulesResponse, timeout_s)

    async def list(self, *, limit: int, timeout_s: float = 5.0) -> dict[Name, pb.Schedule]:
        """All schedules, page by page. Raises AssertionError for pages out of order."""
        found: dict[Name, pb.Schedule] = {}
        request = pb.ListSchedulesRequest(limit=limit)
        while True:
            page = await self.page(request, timeout_s)
            for one in page.schedules:
                assert not found or next(reversed(found)) < (one.topic, one.id), f"{one.id} comes too late in a list"
                found[one.topic, one.id] = one
            if not page.after:
                return found
            assert page.after > request.after, f"the page after {request.after} ends at {page.after}"
            request.after = page.after


class ScheduleClient:
    def __init__(self, world: World, name: str, history: ScheduleHistory, pause_s: float) -> None:
        self.name = name
        self._world = world
        self._history = history
        self._random = world.random(name)
        self._caller = Caller(world, name, self._random)
        self._pause_s = pause_s
        self._number = 0
        self._lives: list[Life] = []

    async def run(self) -> None:
        random = self._random
        while not self._world.stopping:
            await self._world.sleep(random, self._pause_s)
            chosen = random.random()
            if chosen < 0.45:
                await self._put_once([self._new_once() for _ in range(random.choice((1, 1, 1, 4)))])
            elif chosen < 0.6:
                await self._put_recurring()
            elif chosen < 0.65:
                await self._list()
            else:
                await self._change_one()

    # ---- puts

    def _next_id(self, kind: str) -> str:
        self._number += 1
        return f"{kind}-{self.name}-{self._number}"

    def _born(self, life: Life) -> Life:
        self._history.lives.append(life)
        self._lives.append(life)
        return life

    def _new_once(self, topic: str = "") -> Life:
        jitter_ms = self._random.choice((0, 0, 0, 2_000))
        late = self._random.choice(("", "", "fire"))
        topic = topic or self._random.choice(TOPICS)
        return self._born(Life(topic, self._next_id("o"), 1, once=True, late=late, jitter_ms=jitter_ms))

    async def _put_once(self, lives: list[Life]) -> None:
        """In one request, with ids of their own; or with fresh ids, asked again until there is an answer."""
        fresh, delay_s = self._random.random() < 0.5, self._random.uniform(0.0, DELAY_S_MAX)
        topic = lives[0].topic
        request = pb.PutSchedulesRequest(topic=topic)
        for life in lives:
            life.topic = topic
            put = self._put_of(life)
            put.fresh = fresh
            if self._random.random() < 0.5:
                put.delay_ms = int(1000 * delay_s)
            else:
                put.schedule.spec = at(self._world.clock.wall_us() + int(1e6 * delay_s))
            request.schedules.append(put)
        whole = pb.PutSchedulesRequest()
        whole.CopyFrom(request)
        waiting = {life.id: life for life in lives}
        for again in range(ASKED_AGAIN_MAX if fresh else 1):
            unknown = await self._put(request, waiting, again=again > 0)
            waiting = {life.id: life for life in unknown}
            left = [put for put in request.schedules if put.schedule.id in waiting]
            if not left:
                break
            del request.schedules[:]
            request.schedules.extend(left)
            await self._world.sleep(self._random, 0.5)
        if fresh and all(life.put is Outcome.OK for life in lives) and self._random.random() < 0.3:
            await self._repeat(whole)

    async def _repeat(self, request: pb.PutSchedulesRequest) -> None:
        """Puts schedules with fresh ids again, as if the answer had not come. Some have fired meanwhile."""
        await self._world.sleep(self._random, 2.0)
        try:
            await self._caller.call("PutSchedules", request, pb.PutSchedulesResponse, self._timeout_s())
        except CometError as error:
            self._world.note(f"{self.name} was told {error.code} when it asked again")

    def _put_of(self, life: Life) -> pb.SchedulePut:
        put = pb.SchedulePut()
        put.schedule.id, put.schedule.late, put.schedule.late_max_ms = life.id, life.late, life.late_max_ms
        put.schedule.jitter_ms, put.schedule.fires_max = life.jitter_ms, life.fires_max
        put.schedule.record.key = life.id.encode()  # all its records are in one partition
        put.schedule.record.value = life.value
        return put

    async def _put(self, request: pb.PutSchedulesRequest, lives: dict[str, Life], *, again: bool = False) -> list[Life]:
        """Those that were not answered. An earlier attempt of `again` may have worked."""
        try:
            answer = await self._caller.call("PutSchedules", request, pb.PutSchedulesResponse, self._timeout_s())
            results = {
                put.schedule.id: error_from_pb(one.error) if one.HasField("error") else one.schedule
                for put, one in zip(request.schedules, answer.results, strict=True)
            }
        except CometError as error:
            results = dict.fromkeys(lives, error)
        unknown = []
        for schedule_id, result in results.items():
            life = lives[schedule_id]
            if isinstance(result, CometError):
                self._note(life, "put", result)
                if is_unknown(result) or again:
                    life.put = Outcome.UNKNOWN
                    unknown.append(life)
                else:
                    life.put = Outcome.FAIL
            else:
                life.put, life.next_us = Outcome.OK, result.next_us
        return unknown

    async def _put_recurring(self) -> None:
        """A new one, or another life of one that is over or goes on."""
        old = [life for life in self._lives if not life.once and life is self._last_life(life) and not life.unsure]
        old = [life for life in old if life.put in (Outcome.OK, Outcome.FAIL) and life.end is not End.UNKNOWN]
        random = self._random
        late = random.choice(LATE)
        if old and (len(old) >= RECURRING_MAX or random.random() < 0.3):
            chosen = random.choice(old)
            topic, schedule_id, number = chosen.topic, chosen.id, chosen.number + 1
        else:
            topic, schedule_id, number = random.choice(TOPICS), self._next_id("r"), 1
        life = Life(topic, schedule_id, number, once=False, late=late)
        life.late_max_ms = LATE_MAX_MS if late == "skip" else 0
        life.fires_max = random.choice((0, 0, 3))
        life.jitter_ms = random.choice((0, 0, 700))
        self._born(life)
        put = self._put_of(life)
        put.schedule.spec = random.choice(("every 1s", "every 2s", "every 5s"))
        await self._put(pb.PutSchedulesRequest(topic=topic, schedules=[put]), {life.id: life})

    def _last_life(self, life: Life) -> Life:
        return max((one for one in self._lives if one.name == life.name), key=lambda one: one.number)

    # ---- changes

    def _timeout_s(self) -> float:
        return self._random.choice((0.3, 3.0, 12.0))

    def _note(self, life: Life, act: str, error: CometError) -> None:
        self._world.note(f"{self.name}: {act} {life.topic}/{life.id} {life.number}: {error.code} {error.message[:80]}")

    async def _change_one(self) -> None:
        """Most often the newest ones, so that some still are to fire."""
        chosen = [life for life in self._lives[-12:] if life.open and life is self._last_life(life)]
        if not chosen:
            return
        random = self._random
        life = random.choice(chosen)
        if life.paused:
            await self._change(life, "ResumeSchedule")
            return
        chance = random.random()
        if chance < 0.4:
            await self._change(life, "CancelSchedule")
        elif chance < 0.55:
            await self._change(life, "PauseSchedule")
        elif chance < 0.7:
            await self._change(life, "RunSchedule")
        elif chance < 0.8:
            await self._change(life, "CancelSchedule", dry_run=True)
        elif life.once:
            await self._move(life, at(self._world.clock.wall_us() + int(1e6 * random.uniform(0.0, DELAY_S_MAX))))
        else:
            await self._move(life, random.choice(("every 1s", "every 3s")))

    async def _move(self, life: Life, spec: str) -> None:
        request = pb.MoveScheduleRequest(topic=life.topic, id=life.id, spec=spec)
        await self._changed(life, "MoveSchedule", request, dry_run=False)

    async def _change(self, life: Life, method: str, *, dry_run: bool = False) -> None:
        await self._changed(
            life, method, pb.ScheduleRequest(topic=life.topic, id=life.id, dry_run=dry_run), dry_run=dry_run
        )

    async def _changed(
        self, life: Life, method: str, request: pb.ScheduleRequest | pb.MoveScheduleRequest, *, dry_run: bool
    ) -> None:
        cancels = method == "CancelSchedule" and not dry_run
        life.changed = life.changed or not (cancels or dry_run)
        life.run = life.run or method == "RunSchedule"
        try:
            answer = await self._caller.call(method, request, pb.Schedule, self._timeout_s())
        except ScheduleNotFound as error:
            self._note(life, method, error)
            life.end = End.GONE
        except CometError as error:
            self._note(life, method, error)
            if not is_unknown(error) or dry_run:
                return
            if cancels:
                life.end = End.UNKNOWN
            life.unsure = True
        else:
            if cancels:
                life.end = End.ACKED
                return
            life.next_us, life.paused = answer.next_us, answer.paused

    async def _list(self) -> None:
        try:
            await self._caller.list(limit=self._random.choice((1, 5, 100)), timeout_s=self._timeout_s())
        except CometError as error:
            self._world.note(f"{self.name} was told {error.code} instead of a list")
