"""Joins topics that match subscriptions' patterns, those created later included. Owned by the hub.

One task lists topics while there are patterns. A topic that is created later is read from its first record, as is one
without a cursor of a client that reconnects.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Final

from comet.errors import CometError, Draining, TopicNotFound, Unavailable
from comet.types import Earliest, Position, is_internal_topic
from comet_gateway.http.problems import Problem
from comet_gateway.push.events import Failed
from comet_gateway.push.subscription import Subscription, failed

if TYPE_CHECKING:
    import comet
    from comet_gateway.config import Limits

log = logging.getLogger("comet.gateway")

TURN_S: Final = 0.005  # of matching, until other work of the loop has its turn
_Known = tuple[str, bytes]
Join = Callable[[Subscription, str, "Position | None"], Awaitable[None]]


class _Watched:
    """One subscription. Topics are known by name and id: one that is created again is another."""

    def __init__(self, expression: re.Pattern[str], seen: set[_Known]) -> None:
        self.expression = expression
        self.seen = seen  # compared with the expression before; of all subscriptions the same set, where possible
        self.matching: dict[_Known, None] = {}  # in the order of the lists
        self.given_up: set[_Known] = set()  # failed to join: not retried
        self.late: dict[_Known, Position | None] = {}  # existed at the start, without a leader; start positions
        self.joining: dict[str, asyncio.Task[None]] = {}  # by name: a slow one does not block others

    def keep(self, known: set[_Known]) -> None:
        """Forgets all other topics."""
        self.given_up &= known
        self.matching = {one: None for one in self.matching if one in known}
        self.late = {one: start for one, start in self.late.items() if one in known}

    def close(self) -> None:
        for task in self.joining.values():
            task.cancel()


class PatternWatch:
    def __init__(self, admin: comet.Admin, limits: Limits, join: Join) -> None:
        self._admin = admin
        self._limits = limits
        self._join = join
        self._watched: dict[Subscription, _Watched] = {}
        self._task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        tasks = [task for watched in self._watched.values() for task in watched.joining.values()]
        tasks += [] if self._task is None else [self._task]
        self._watched.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def add(self, subscription: Subscription, expression: re.Pattern[str]) -> None:
        """Joins all topics that match now; those that cannot be followed yet are reported, and joined later.

        Raises Problem if there are too many, CometError, Unavailable if none can be followed."""
        request = subscription.request
        there = await self._admin.list_topics()
        topics = await _matching(expression, there)
        if len(topics) > self._limits.pattern_topics_max:
            raise Problem(
                "TOO_MANY_REQUESTS", f"{len(topics)} topics match, more than {self._limits.pattern_topics_max}"
            )  # fmt: skip
        start = Earliest() if request.cursors else None
        results = await asyncio.gather(
            *(self._join(subscription, topic.name, start) for topic in topics), return_exceptions=True
        )
        watched = _Watched(expression, {(topic.name, topic.id) for topic in there})
        watched.matching = {(topic.name, topic.id): None for topic in topics}
        for topic, result in zip(topics, results, strict=True):
            if isinstance(result, Unavailable) and not isinstance(result, Draining) and subscription.subscribers:
                watched.late[topic.name, topic.id] = start
                subscription.notify(failed(topic.name, result))
            elif isinstance(result, BaseException) and not isinstance(result, TopicNotFound):
                raise result
        self._watched[subscription] = watched
        if self._task is None:
            self._task = asyncio.create_task(self._watch_topics(), name="gateway: look for topics")
            self._task.add_done_callback(self._ended)

    def remove(self, subscription: Subscription) -> None:
        watched = self._watched.pop(subscription, None)
        if watched is not None:
            watched.close()
        if not self._watched and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _watch_topics(self) -> None:
        while True:
            await asyncio.sleep(self._limits.pattern_s)
            try:
                topics = await self._admin.list_topics()
            except CometError as error:
                log.debug("gateway: no list of topics: %s", error)
                continue
            by_key = {(topic.name, topic.id): topic for topic in topics}
            known = set(by_key)
            for subscription, watched in list(self._watched.items()):
                new = [topic for key, topic in by_key.items() if key not in watched.seen]
                found = await _matching(watched.expression, new)
                if subscription not in self._watched:
                    continue  # it left meanwhile
                watched.seen = known
                watched.matching |= {(topic.name, topic.id): None for topic in found}
                watched.keep(known)
                for key in watched.matching:
                    if key[0] not in subscription.subscribers:
                        self._appeared(subscription, watched, by_key[key])

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Reports the unexpected end of the task to all subscriptions."""
        if task.cancelled():
            return
        error = task.exception()
        log.error("gateway: watching topics failed", exc_info=error)
        self._task = None
        for subscription, watched in self._watched.items():
            watched.close()
            subscription.notify(Failed("INTERNAL", f"watching topics failed: {error!r}", {}))
        self._watched.clear()

    def _appeared(self, subscription: Subscription, watched: _Watched, topic: comet.TopicInfo) -> None:
        most = self._limits.pattern_topics_max
        if (topic.name, topic.id) in watched.given_up or topic.name in watched.joining:
            return
        if len(subscription.subscribers) >= most:
            watched.given_up.add((topic.name, topic.id))
            subscription.notify(_failure(topic.name, Problem("TOO_MANY_REQUESTS", f"more than {most} topics match")))
        elif len(subscription.subscribers) + len(watched.joining) < most:  # otherwise retried at the next check
            watched.joining[topic.name] = asyncio.create_task(
                self._follow(subscription, watched, topic), name=f"gateway: join {topic.name}"
            )

    async def _follow(self, subscription: Subscription, watched: _Watched, topic: comet.TopicInfo) -> None:
        known = topic.name, topic.id
        try:
            await self._join(subscription, topic.name, watched.late.get(known, Earliest()))
        except TopicNotFound:
            return  # already deleted
        except CometError as error:
            if error.retriable:
                return  # retried at the next check
            failure = failed(topic.name, error)
        except Problem as problem:
            failure = _failure(topic.name, problem)
        except Exception as error:
            log.error("gateway: joining %s failed", topic.name, exc_info=error, extra={"topic": topic.name})
            failure = Failed("INTERNAL", f"joining {topic.name} failed: {error!r}", {}, topic=topic.name)
        else:
            watched.late.pop(known, None)
            return
        finally:
            del watched.joining[topic.name]
        watched.given_up.add(known)
        subscription.notify(failure)


async def _matching(expression: re.Pattern[str], topics: Iterable[comet.TopicInfo]) -> list[comet.TopicInfo]:
    """The topics whose names match; internal ones only if the pattern begins as their names do. Other work of the loop
    has its turns meanwhile."""
    found = []
    internal = is_internal_topic(expression.pattern)
    until = perf_counter() + TURN_S
    for topic in topics:
        if topic.internal <= internal and expression.fullmatch(topic.name):
            found.append(topic)
        if perf_counter() > until:
            await asyncio.sleep(0)
            until = perf_counter() + TURN_S
    return found


def _failure(topic: str, problem: Problem) -> Failed:
    return Failed(problem.code, problem.detail, {}, round(problem.retry_after_s * 1000), topic)
