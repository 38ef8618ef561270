"""Follows the topics of rules of records, and feeds their watches. Lives on the gateway that evaluates.

    hub ─► the newest records of a topic ─► JSON, once a record ─► each watch of the topic

A topic may be faster than this gateway can look: then the hub drops the oldest, and the rules say so.
Looking takes at most a quarter of the time, so requests go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, Final

import msgspec

from comet.errors import CometError
from comet_gateway.alerts.evaluation import Observation
from comet_gateway.alerts.observing import RecordWatch
from comet_gateway.alerts.rule import Rule
from comet_gateway.http.problems import Problem
from comet_gateway.push import subscribe_request as push
from comet_gateway.push.chunk import Slice
from comet_gateway.push.events import Begun, Failed, Lost
from comet_gateway.push.hub import Hub

log = logging.getLogger(__name__)

BUFFER: Final = 20_000  # records that a topic may lag before some are skipped
AGAIN_S: Final = 2.0  # between two attempts to follow a topic
TURN_S: Final = 0.01  # of work, before a pause
SKIPPED_US: Final = 60_000_000  # that a rule says that records were skipped
PAUSES: Final = 3  # times as long as the work
_decode: Final = msgspec.json.Decoder().decode


class TopicWatch:
    """One followed topic and its rules."""

    def __init__(self, topic: str, hub: Hub, clock_us: Callable[[], int]) -> None:
        self.watches: dict[str, RecordWatch] = {}
        self.problem = "the topic is not followed yet"
        self._topic = topic
        self._hub = hub
        self._clock_us = clock_us
        self._task = asyncio.create_task(self._run(), name=f"alerts: follow {topic}")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except CometError as error:
                self.problem = error.message
            except Problem as problem:
                self.problem = problem.detail
            except Exception:
                log.exception("alerts: following topic %s failed", self._topic, extra={"topic": self._topic})
                self.problem = "unexpected error; see the gateway's log"
            await asyncio.sleep(AGAIN_S)

    async def _follow(self) -> None:
        wanted = push.SubscribeRequest(topics=(self._topic,), policy=push.Policy.DROP_OLDEST, buffer=BUFFER)
        subscription = await self._hub.subscribe(wanted)
        try:
            while True:
                event = await subscription.next()
                if isinstance(event, Slice):
                    await self._take(event)
                elif isinstance(event, Begun):
                    self.problem = ""
                elif isinstance(event, Lost):
                    for watch in self.watches.values():
                        watch.skipped_us = self._clock_us()
                elif isinstance(event, Failed):
                    self.problem = event.detail
                    return
        finally:
            subscription.close()

    async def _take(self, part: Slice) -> None:
        batch, begin, end = part.columns
        began = perf_counter()
        rows = range(begin, end)
        takers: dict[int, list[RecordWatch]] = {row: [] for row in rows}
        for watch in self.watches.values():
            for row in watch.rows(batch, rows):
                takers[row].append(watch)
        values = batch.values
        for row, watches in takers.items():
            if not watches:
                continue
            document = _document(values[row])
            now_us = self._clock_us()
            for watch in watches:
                watch.take(document, now_us)
            if (worked := perf_counter() - began) > TURN_S:
                await asyncio.sleep(worked * PAUSES)
                began = perf_counter()
        await asyncio.sleep(0)


def _document(value: bytes | None) -> Any:
    try:
        return None if value is None else _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class RecordWatches:
    """The watches of all rules of records."""

    def __init__(self, hub: Hub, clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000) -> None:
        self._hub = hub
        self._clock_us = clock_us
        self._topics: dict[str, TopicWatch] = {}

    async def follow(self, rules: Iterable[Rule]) -> None:
        """Follows the topics of these rules, and no others. A rule whose condition changed begins again."""
        wanted: dict[str, dict[str, Rule]] = {}
        for rule in rules:
            wanted.setdefault(rule.topic, {})[rule.id] = rule
        for topic in self._topics.keys() - wanted.keys():
            await self._topics.pop(topic).close()
        for topic, own in wanted.items():
            found = self._topics.get(topic)
            if found is None:
                found = self._topics[topic] = TopicWatch(topic, self._hub, self._clock_us)
            known = found.watches
            found.watches = {
                rule.id: before
                if (before := known.get(rule.id)) is not None and before.rule.condition == rule.condition
                else RecordWatch(rule, self._clock_us())
                for rule in own.values()
            }

    def observe(self, rule: Rule, now_us: int) -> Observation:
        topic = self._topics[rule.topic]
        if topic.problem:
            return Observation(None, problem=topic.problem)
        watch = topic.watches[rule.id]
        seen = watch.observe(now_us)
        if now_us - watch.skipped_us < SKIPPED_US and not seen.problem:
            return Observation(seen.breached, seen.value, seen.text, "records were skipped: the topic is too fast here")
        return seen

    async def close(self) -> None:
        while self._topics:
            await self._topics.popitem()[1].close()
