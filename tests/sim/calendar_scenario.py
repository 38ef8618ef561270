"""The scenario `schedules` with a market calendar that is replaced all the time, and schedules by it.

A schedule fires for times that some version of the calendar had, and waits where it ends. A newer one lets it go on: in
the end a last version comes, and all its times fire.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from random import Random
from typing import Final

from comet.errors import CometError
from comet.types import SCHEDULES_TOPIC
from comet.v1 import admin_pb2 as admin
from comet.v1 import schedules_pb2 as pb
from tests.sim import schedule_scenario
from tests.sim.cluster_profile import ClusterProfile
from tests.sim.cluster_world import ClusterWorld
from tests.sim.history import Outcome
from tests.sim.result import Result
from tests.sim.schedule_history import Life, Name
from tests.sim.schedule_scenario import ScheduleScenario
from tests.sim.schedule_workload import CALENDAR, CONSISTENT, EPOCH, SECOND_US

SCHEDULES: Final = 4
TIMES_MAX: Final = 8  # of a version; a session takes no more breaks
REPLACED_S: Final = 3.0
LAST_IN_S: Final = 10  # the first time of the last version, if it comes after all was mended
LAST_S: Final = (12.0, 28.0)  # else it comes while faults strike, and its times are then
EARLY_LAST_IN_S: Final = 50


class CalendarScenario(ScheduleScenario):
    def __init__(self, world: ClusterWorld, profile: ClusterProfile, *, clocks: bool) -> None:
        super().__init__(world, profile, clocks=clocks)
        self._random: Random = world.random("calendar")
        self._last_s = float("inf") if clocks else self._random.uniform(*LAST_S)

    async def _first_schedule(self) -> None:
        """The calendar comes first, and schedules by it."""
        await super()._first_schedule()
        await self._answered("PutCalendar", self._version(1), admin.PutCalendarResponse)
        for number in range(SCHEDULES):
            life = Life(CONSISTENT, f"c-{number}", 1, once=False, by_calendar=True)
            put = pb.SchedulePut(schedule=pb.Schedule(id=life.id, spec=f"calendar:{CALENDAR} break_start"))
            put.schedule.record.key, put.schedule.record.value = life.id.encode(), life.value
            request = pb.PutSchedulesRequest(topic=CONSISTENT, schedules=[put])
            while True:  # until the broker knows the calendar
                answer = await self._answered("PutSchedules", request, pb.PutSchedulesResponse)
                if answer is None or not answer.results[0].HasField("error"):
                    break
                await asyncio.sleep(0.2)
            life.put = Outcome.OK
            self.history.lives.append(life)
        self.world.client("s-calendar", self._replace())

    async def _replace(self) -> None:
        """Where no clock is set, up to a last version."""
        world = self.world
        while not world.stopping and world.now() < self._last_s:
            await world.sleep(self._random, REPLACED_S)
            await self._put(self._version(1))
        if world.stopping:
            return
        last = self._version(EARLY_LAST_IN_S)
        while not world.stopping and not await self._put(last):
            await world.sleep(self._random, 1.0)

    async def _put(self, request: admin.PutCalendarRequest) -> bool:
        try:
            await self._caller.call("PutCalendar", request, admin.PutCalendarResponse, 3.0)
        except CometError as error:
            self.world.note(f"the calendar was told {error.code}")
            return False
        return True

    def _version(self, first_s: int) -> admin.PutCalendarRequest:
        """A version whose times are whole seconds, drawn from `first_s` seconds from now on."""
        first = self.world.clock.wall_us() // SECOND_US + first_s
        chosen = sorted(self._random.sample(range(first, first + 2 * TIMES_MAX), self._random.randint(1, TIMES_MAX)))
        times = [second * SECOND_US for second in chosen]
        self.history.calendar_times |= {*times}
        self.history.last_times = times
        day = (EPOCH + timedelta(microseconds=times[0])).date().isoformat()
        session = admin.CalendarSession(date=day, open_us=times[0] - SECOND_US, close_us=times[-1] + SECOND_US)
        session.breaks.extend(admin.CalendarBreak(start_us=at, end_us=at + SECOND_US // 2) for at in times)
        calendar = admin.Calendar(name=CALENDAR, zone="UTC", known_until=day, sessions=[session])
        return admin.PutCalendarRequest(calendar=calendar)

    async def _resume_all(self) -> None:
        """An earlier version may have come late."""
        await super()._resume_all()
        stored = await self._answered("GetCalendar", admin.GetCalendarRequest(name=CALENDAR), admin.Calendar)
        times = [one.start_us for one in stored.sessions[0].breaks]
        if times != self.history.last_times or times[0] < self.world.clock.wall_us():
            await self._answered("PutCalendar", self._version(LAST_IN_S), admin.PutCalendarResponse)
        await asyncio.sleep((self.history.last_times[-1] - self.world.clock.wall_us()) / 1e6)

    def _stranded(self, listed: dict[Name, pb.Schedule]) -> list[str]:
        waiting = {name for name, one in listed.items() if one.waits_for == CALENDAR}
        texts = super()._stranded({name: one for name, one in listed.items() if name not in waiting})
        for life in self.history.lives:
            if life.by_calendar and life.name not in waiting:
                texts.append(f"{SCHEDULES_TOPIC}: {life.id} does not wait for its calendar, which has ended")
        return texts


def simulate(seed: int, profile: ClusterProfile | None = None) -> Result:
    """Runs one seed on a loop of its own and judges what happened."""
    return schedule_scenario.simulate(seed, profile, CalendarScenario, "calendars")
