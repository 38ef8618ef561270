"""Topics that match patterns, also those that are made later. Owned by the hub.

One task asks for the list of topics while anybody has a pattern. What is made later is read from its first record on:
everything in it is new. So is a topic that somebody who comes back has no cursor of.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from comet.errors import CometError, TopicNotFound
from comet.types import Earliest, Position
from comet_gateway.problems import Problem
from comet_gateway.push.events import Failed
from comet_gateway.push.subscription import Subscription, failed

if TYPE_CHECKING:
    import comet
    from comet_gateway.config import Limits

log = logging.getLogger("comet.gateway")

Join = Callable[[Subscription, str, "Position | None"], Awaitable[None]]


class Watch:
    def __init__(self, admin: comet.Admin, limits: Limits, join: Join) -> None:
        self._admin = admin
        self._limits = limits
        self._join = join
        self._patterns: dict[Subscription, re.Pattern[str]] = {}
        # Topics that could not be joined, by name and id: they are not tried again and again.
        self._given_up: dict[Subscription, set[tuple[str, bytes]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        self._patterns.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def add(self, subscription: Subscription, expression: re.Pattern[str]) -> None:
        """Joins all topics that match now. Raises Problem where there are too many, CometError."""
        asked = subscription.asked
        names = [topic.name for topic in await self._admin.list_topics() if expression.fullmatch(topic.name)]
        if len(names) > self._limits.pattern_topics_max:
            raise Problem(
                "TOO_MANY_REQUESTS", f"{len(names)} topics match; at most {self._limits.pattern_topics_max} may"
            )  # fmt: skip
        start = Earliest() if asked.cursors else None
        results = await asyncio.gather(
            *(self._join(subscription, name, start) for name in names), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, TopicNotFound):
                raise result
        self._patterns[subscription] = expression
        self._given_up[subscription] = set()
        if self._task is None:
            self._task = asyncio.create_task(self._look(), name="gateway: look for topics")
            self._task.add_done_callback(self._ended)

    def remove(self, subscription: Subscription) -> None:
        self._patterns.pop(subscription, None)
        self._given_up.pop(subscription, None)
        if not self._patterns and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._limits.pattern_s)
            try:
                topics = await self._admin.list_topics()
            except CometError as error:
                log.debug("gateway: no list of topics: %s", error)
                continue
            await asyncio.gather(
                *(
                    self._appeared(subscription, topic)
                    for subscription, expression in self._patterns.items()
                    for topic in topics
                    if topic.name not in subscription.seats and expression.fullmatch(topic.name)
                )
            )

    def _ended(self, task: asyncio.Task[None]) -> None:
        """It never ends well, but when it is cancelled: whoever relies on it is told."""
        if task.cancelled():
            return
        error = task.exception()
        log.error("gateway: looking for topics broke", exc_info=error)
        self._task = None
        for subscription in list(self._patterns):
            subscription.tell(Failed("INTERNAL", f"looking for topics broke: {error!r}", {}))
        self._patterns.clear()

    async def _appeared(self, subscription: Subscription, topic: comet.TopicInfo) -> None:
        given_up = self._given_up.get(subscription)
        if given_up is None or (topic.name, topic.id) in given_up:
            return
        try:
            if len(subscription.seats) >= self._limits.pattern_topics_max:
                raise Problem("TOO_MANY_REQUESTS", f"more than {self._limits.pattern_topics_max} topics match")
            await self._join(subscription, topic.name, Earliest())
        except TopicNotFound:
            return  # it is gone again
        except CometError as error:
            if error.retriable:
                return  # the next time, perhaps
            subscription.tell(failed(topic.name, error))
        except Problem as problem:
            subscription.tell(Failed(problem.code, problem.detail, {}, round(problem.retry_after_s * 1000), topic.name))
        if topic.name not in subscription.seats:
            given_up.add((topic.name, topic.id))
