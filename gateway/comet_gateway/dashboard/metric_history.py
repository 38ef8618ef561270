"""Figures over time and events, from the history of brokers: fetched as a whole first, then incrementally.

1 s     15 minutes of every broker, with each tick of the sampler
60 s    a day of every broker, while a page shows more than 15 minutes
15 s    15 minutes of every topic, for sparklines, every SLOW_S
own     of single topics and groups, while a page shows them
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import comet
from comet.errors import LimitExceeded
from comet_gateway.dashboard.build_facts import Events
from comet_gateway.dashboard.cluster_history import Book, FigureSeries, Rule
from comet_web import facts

STEPS: Final[Mapping[str, tuple[int, int]]] = {
    "15m": (1, 900), "1h": (60, 60), "6h": (60, 360), "24h": (60, 1_440),
}  # fmt: skip
POINTS: Final[Mapping[int, int]] = {1: 900, 60: 1_440}  # by the length of a step
TREND_S: Final = 15  # steps of sparklines
TREND_POINTS: Final = 60
SLOW_S: Final = 15.0  # between two requests of slow figures
OWN_S: Final = 0.9  # between two requests of a single topic or group
WATCHED_S: Final = 30.0  # that figures are still fetched after the last view
WAIT_S: Final = 0.4  # that a view waits for running requests
LONG_WAIT_S: Final = 0.8  # that the first view waits for a day of every broker
ANSWER_S: Final = 3.0
FOLLOWED_MAX: Final = 200  # topics and groups with a history of their own
ADDED: Final = frozenset({
    "records_in", "records_out", "bytes_in", "bytes_out", "errors", "cpu", "memory", "disk_used", "lag",
})  # fmt: skip
Tracks = dict[str, facts.Track]
Admins = Mapping[int, comet.Admin]  # of brokers that answer, one client each


def rule(figure: str) -> Rule:
    """How a figure of many brokers becomes one: the sum, or the maximum for figures that do not add up."""
    return sum if figure in ADDED else max


@dataclass(slots=True)
class _Followed:
    """A topic or group whose history a page shows."""

    book: Book
    viewed_at: float
    updated_at: float = -1e9
    updating: asyncio.Task[None] | None = None


class Histories:
    """The histories of a cluster. Owned by the sampler; used on its loop."""

    def __init__(self) -> None:
        self.events = Events()
        self._books = {step: Book(step, count) for step, count in POINTS.items()}
        self._trends = Book(TREND_S, TREND_POINTS)
        self._slow_at: dict[int, float] = {}  # last request of slow figures, by broker
        self._long_until = -1e9  # while a page shows more than 15 minutes
        self._followed: dict[tuple[str, str, int], _Followed] = {}

    @property
    def followed(self) -> int:
        return len(self._followed)

    # ---- requests

    async def update(self, broker: int, admin: comet.Admin, started_us: int) -> None:
        """Fetches the news of one broker. Raises CometError."""
        now = asyncio.get_running_loop().time()
        book = self._books[1]
        answer = await admin.history(step_s=1, since_us=book.since_us(broker))
        book.take(broker, answer.tracks, _of_brokers)
        self.events.take(broker, answer.events, started_us)
        if now - self._slow_at.get(broker, -1e9) < SLOW_S:
            return
        self._slow_at[broker] = now
        with suppress(LimitExceeded):  # too many topics: no sparklines
            answer = await admin.history(every_topic=True, step_s=TREND_S, since_us=self._trends.since_us(broker))
            self._trends.take(broker, answer.tracks, _of_topics)
        if now < self._long_until:
            await self._long(broker, admin)

    async def _long(self, broker: int, admin: comet.Admin) -> None:
        book = self._books[60]
        answer = await admin.history(step_s=60, since_us=book.since_us(broker))
        book.take(broker, answer.tracks, _of_brokers)

    async def lengthen(self, admins: Admins) -> bool:
        """A page shows a longer range. Returns whether that is new, after waiting for the data."""
        now = asyncio.get_running_loop().time()
        begun = now > self._long_until
        self._long_until = now + WATCHED_S
        if begun:
            with suppress(TimeoutError):
                async with asyncio.timeout(LONG_WAIT_S):
                    requests = [self._long(broker, admin) for broker, admin in admins.items()]
                    await asyncio.gather(*requests, return_exceptions=True)
        return begun

    def forget(self, broker: int) -> None:
        for book in (*self._books.values(), self._trends, *(one.book for one in self._followed.values())):
            book.forget(broker)
        self.events.forget(broker)
        self._slow_at.pop(broker, None)

    def keep(self, topics: Iterable[str]) -> None:
        """Drops the histories of all other topics."""
        there = frozenset(topics)
        self._trends.keep(lambda series: series.topic in there)

    async def close(self) -> None:
        running = [one.updating for one in self._followed.values() if one.updating is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # ---- queries

    def sums(self, range_: str, alive: Iterable[int]) -> Tracks:
        """Tracks of all brokers together."""
        step, count = STEPS[range_]
        book = self._books[step]
        end = book.end(alive)
        return {figure: book.track(FigureSeries("", "", figure), end, count, rule(figure)) for figure in book.figures()}

    def of_broker(self, broker: int, range_: str) -> Tracks:
        step, count = STEPS[range_]
        book = self._books[step]
        end = book.end([broker])
        return {
            figure: book.track(FigureSeries("", "", figure), end, count, broker=broker) for figure in book.figures()
        }

    def trends(self, alive: Iterable[int]) -> Tracks:
        """Incoming records per second, by topic."""
        end = self._trends.end(alive)
        return {
            name: self._trends.track(FigureSeries(name, "", "records_in"), end, TREND_POINTS)
            for name in self._trends.measured("records_in")
        }

    async def of_topic(self, topic: str, range_: str, admins: Admins) -> Tracks:
        step, count = STEPS[range_]
        book = await self._follow(topic, "", step, admins)
        end = book.end(admins)
        return {
            figure: book.track(FigureSeries(topic, "", figure), end, count, rule(figure))
            for figure in book.figures(topic=topic)
        }

    async def of_group(self, group: str, range_: str, admins: Admins) -> Tracks:
        """Lag by topic. `admins` are the brokers to query; the coordinator is enough."""
        step, count = STEPS[range_]
        book = await self._follow("", group, step, admins)
        end = book.end(admins)
        return {
            topic: book.track(FigureSeries(topic, group, "lag"), end, count, max)
            for topic in sorted(book.topics(group))
        }

    async def _follow(self, topic: str, group: str, step: int, admins: Admins) -> Book:
        now = asyncio.get_running_loop().time()
        for key in [key for key, one in self._followed.items() if now - one.viewed_at > WATCHED_S]:
            del self._followed[key]
        key = (topic, group, step)
        one = self._followed.get(key)
        if one is None:
            if len(self._followed) >= FOLLOWED_MAX:
                del self._followed[min(self._followed, key=lambda key: self._followed[key].viewed_at)]
            one = self._followed[key] = _Followed(Book(step, POINTS[step]), now)
        one.viewed_at = now
        if one.updating is None and now - one.updated_at >= (OWN_S if step == 1 else SLOW_S):
            one.updated_at = now
            one.updating = asyncio.create_task(_update(one, topic, group, dict(admins)), name="dashboard: history")
        if one.updating is not None:
            await asyncio.wait([one.updating], timeout=WAIT_S)
        return one.book


async def _update(one: _Followed, topic: str, group: str, admins: Admins) -> None:
    def wanted(series: FigureSeries) -> bool:
        return series.topic == topic if topic else series.group == group

    async def fetch(broker: int, admin: comet.Admin) -> None:
        answer = await admin.history(
            topics=(topic,) if topic else (),
            groups=(group,) if group else (),
            step_s=one.book.step_s,
            since_us=one.book.since_us(broker),
        )
        one.book.take(broker, answer.tracks, wanted)

    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                requests = [fetch(broker, admin) for broker, admin in admins.items()]
                await asyncio.gather(*requests, return_exceptions=True)
    finally:
        one.updating = None


def _of_brokers(series: FigureSeries) -> bool:
    return not series.topic and not series.group


def _of_topics(series: FigureSeries) -> bool:
    return series.figure == "records_in" and bool(series.topic) and not series.group
