"""The hours of the made-up market: two schedules of the cluster open and close it, and the feed follows their records.

    calendar DEMO ─► schedules open, close ─► quotes.market, key DEMO ─► MarketHours.open ─► the feed writes, or not

A session begins some seconds after the feed, and on the following days at the same time. Anyone may close the market
early, or open it again: `comet schedule run quotes.market close`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import comet
from comet_demo.model import MARKET_STATE, ensure_topics

log = logging.getLogger("comet_demo.feed")

CALENDAR: Final = "DEMO"
DAYS: Final = 30  # that the calendar covers
SOON_S: Final = 2.0  # from the start of the feed to the opening
AGAIN_S: Final = 1.0  # after an error
STATES: Final = ("open", "close")  # the names of the schedules


@comet.model
class MarketState:
    """`open` is False from the close of a session to the next opening."""

    market: str
    open: bool


class MarketHours:
    """Owned by one feed. `hours_s` is the length of a session. The market counts as open while its state is unknown."""

    def __init__(self, bootstrap: str, hours_s: float, *, now_us: Callable[[], int]) -> None:
        self.open = False
        self._bootstrap = bootstrap
        self._hours_s = hours_s
        self._now_us = now_us

    async def run(self) -> None:
        """Runs until it is cancelled."""
        announced = False
        while True:
            try:
                if not announced:
                    await self._announce()
                    announced = True
                await self._follow()
            except comet.CometError as error:
                log.warning("the hours of the market are not known, so it is open: %s", error)
                self.open = True
                announced = announced and not isinstance(error, comet.TopicNotFound)
            await asyncio.sleep(AGAIN_S)

    async def _announce(self) -> None:
        """Stores the calendar and both schedules, in the place of those of an earlier feed."""
        await ensure_topics(self._bootstrap, [MARKET_STATE])
        async with comet.Admin(self._bootstrap) as admin:
            await admin.calendars.put_calendar(calendar_from(self._now_us() + int(SOON_S * 1e6), self._hours_s))
            for state in STATES:
                await admin.schedules.put_schedule(
                    MARKET_STATE,
                    state,
                    f"calendar:{CALENDAR} {state}",
                    key=CALENDAR,
                    value=MarketState(CALENDAR, state == "open"),
                )

    async def _follow(self) -> None:
        states = comet.KV(self._bootstrap, MARKET_STATE, type=MarketState)
        async with states, states.watch(key=CALENDAR) as changes:
            async for entry in changes:
                if entry is not None and entry.value is not None:
                    self.open = entry.value.open


def calendar_from(open_us: int, hours_s: float) -> comet.Calendar:
    """A session on each day, from a first opening on.

    >>> print(calendar_from(1_796_000_000_000_000, 3600.0))
    DEMO: 30 sessions, known until 2026-12-29
    """
    length = timedelta(seconds=hours_s)
    first = datetime.fromtimestamp(open_us / 1e6, UTC)
    opens = [first + timedelta(days=day) for day in range(DAYS)]
    sessions = tuple(
        comet.CalendarSession(f"{one:%Y-%m-%d}", round(one.timestamp() * 1e6), round((one + length).timestamp() * 1e6))
        for one in opens
    )
    return comet.Calendar(CALENDAR, "UTC", sessions, sessions[-1].date, "the demo")
