"""The results of jobs on a topic of quotes, followed in their output topics. Owned by a `QuoteFeed`.

    topics  NAME.bars.1s, …, NAME.job     listed every few seconds: a job may start after the page was opened
      ├─ history, read once up to its end, bounded in time and records
      └─ hub ──► new records ──► AnalyticsCache

Both read committed records: a job writes in transactions, and aborted results are never shown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import comet
from comet.consumer.ranges import RangeSpec
from comet.errors import CometError, PartitionNotFound
from comet.types import AtTime
from comet_gateway.dashboard.analytics_cache import AnalyticsCache
from comet_gateway.dashboard.analytics_records import ALERTS, BARS_S, KINDS, ResultRecord
from comet_gateway.dashboard.backfill import FILL_BYTES, FILL_RECORDS
from comet_gateway.http.problems import Problem
from comet_gateway.push import subscribe_request as push
from comet_gateway.push.chunk import Slice
from comet_gateway.push.events import Failed, Lost
from comet_gateway.records.cursor import Cursor, CursorPosition
from comet_web import facts_analytics as facts

if TYPE_CHECKING:
    from comet_gateway.brokers.backend import Backend
    from comet_gateway.config import Limits
    from comet_gateway.push.hub import Hub

log = logging.getLogger("comet.gateway")

LIST_S: Final = 3.0  # between two listings of output topics
AGAIN_S: Final = 10.0  # until a topic that could not be followed is retried
PAST_S: Final[Mapping[str, int]] = {"bars.1s": 900}  # of history of a topic; of the others a day
DAY_S: Final = 86_400
PAST_RECORDS: Final = 50_000  # of history of one topic: half an hour of a job with a few dozen symbols


class Result:
    """One output topic, from its history into new records. Lives until it cannot be followed any more."""

    def __init__(
        self, name: str, take: Callable[[bytes | None, int], None], span_s: int, hub: Hub, backend: Backend,
        limits: Limits, clock_us: Callable[[], int],
    ) -> None:  # fmt: skip
        self.name = name
        self.failed = ""
        self.lost = 0
        self.live = False
        self.ended_s = 0.0
        self.caught_up = asyncio.Event()  # or it failed
        self._take = take
        self._span_s = span_s
        self._hub = hub
        self._backend = backend
        self._limits = limits
        self._clock_us = clock_us
        self.task = asyncio.create_task(self._run(), name=f"gateway: results in {name}")

    async def _run(self) -> None:
        try:
            cursor = await self._past()
            self.live = True
            self.caught_up.set()
            await self._follow(cursor)
        except CometError as error:
            self.failed = error.message
        except Problem as problem:
            self.failed = problem.detail
        except Exception:
            log.exception("gateway: the results in %s cannot be followed", self.name, extra={"topic": self.name})
            self.failed = "unexpected error; see the gateway's log"
        finally:
            self.ended_s = asyncio.get_running_loop().time()
            self.caught_up.set()

    async def _past(self) -> Cursor:
        """Reads the history. Returns the position to follow from."""
        admin = self._backend.admin
        info = await admin.describe_topic(self.name)
        ends = await admin.offsets(self.name, "latest")
        since = await admin.offsets(self.name, AtTime(self._clock_us() - self._span_s * 1_000_000))
        most = PAST_RECORDS // max(1, len(ends))
        deadline_s = asyncio.get_running_loop().time() + self._limits.quote_scan_s
        positions = {}
        for partition, end in ends.items():
            begin = max(0, min(since.get(partition, end), end), end - most)
            positions[partition] = await self._read(info.id, partition, begin, end, deadline_s)
        return Cursor(info.id, positions)

    async def _read(self, topic_id: bytes, partition: int, offset: int, end: int, deadline_s: float) -> CursorPosition:
        """Reads the records before `end`, until the deadline. The rest comes with the new records."""
        spec = RangeSpec(
            self.name, partition, offset, end, topic_id=topic_id,
            step_records_first=FILL_RECORDS, step_records=FILL_RECORDS, step_bytes=FILL_BYTES,
        )  # fmt: skip
        reading = comet.RangeReader(self._backend.reader, spec)
        while not reading.stopped and asyncio.get_running_loop().time() < deadline_s:
            try:
                parts = await reading.step()
            except PartitionNotFound:
                break
            for part in parts:
                if isinstance(part, comet.Gap):
                    if part.error is not None and part.reason == "damaged":
                        raise part.error
                    continue  # deleted or truncated meanwhile
                for value, timestamp_us in zip(part.values, part.timestamps, strict=True):
                    self._take(value, timestamp_us)
            await asyncio.sleep(0)  # lets other tasks run
        return CursorPosition(offset if reading.position is None else reading.position, reading.epoch)

    async def _follow(self, cursor: Cursor) -> None:
        subscription = await self._hub.subscribe(
            push.SubscribeRequest(topics=(self.name,), cursors={self.name: cursor})
        )
        try:
            while True:
                event = await subscription.next()
                if isinstance(event, Slice):
                    batch, begin, end = event.columns
                    for at in range(begin, end):
                        self._take(batch.values[at], batch.timestamps[at])
                    await asyncio.sleep(0)
                elif isinstance(event, Lost):
                    self.lost += event.count
                elif isinstance(event, Failed):
                    self.failed = event.detail
                    return
        finally:
            subscription.close()


class Analytics:
    """The results on one topic of quotes. Lives on its feed's event loop, and ends with it."""

    def __init__(self, topic: str, hub: Hub, backend: Backend, limits: Limits, clock_us: Callable[[], int]) -> None:
        self.topics: tuple[str, ...] = ()  # whose names start with this topic's name and a dot
        self.begun = asyncio.Event()  # the existing results were read
        self._topic = topic
        self._hub = hub
        self._backend = backend
        self._limits = limits
        self._clock_us = clock_us
        self._cache = AnalyticsCache(limits.quote_symbols_max)
        self._results: dict[str, Result] = {}  # by kind
        self._lost = 0  # of ended results
        self._task = asyncio.create_task(self._run(), name=f"gateway: analytics of {topic}")

    async def close(self) -> None:
        tasks = [self._task, *(one.task for one in self._results.values())]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            try:
                found = await self._backend.admin.find_topics(f"{self._topic}.")
            except CometError:
                pass  # the known topics stay
            except Exception:
                log.exception(
                    "gateway: output topics of %s cannot be listed", self._topic, extra={"topic": self._topic}
                )
            else:
                self.topics = tuple(one.name for one in found.topics if one.name.startswith(f"{self._topic}."))
                self._begin()
                if not self.begun.is_set():
                    await asyncio.gather(*(one.caught_up.wait() for one in self._results.values()))
            self.begun.set()
            await asyncio.sleep(LIST_S)

    def _begin(self) -> None:
        """Starts to follow new topics, and those that failed."""
        now_s = asyncio.get_running_loop().time()
        for kind in KINDS:
            name = f"{self._topic}.{kind}"
            known = self._results.get(kind)
            if name not in self.topics:
                continue
            if known is not None and (not known.task.done() or now_s - known.ended_s < AGAIN_S):
                continue
            if known is not None:
                self._lost += known.lost
            if kind == ALERTS:
                self._cache.forget_alerts()
            self._results[kind] = self._follow(kind, name)

    def _follow(self, kind: str, name: str) -> Result:
        def take(value: bytes | None, timestamp_us: int) -> None:
            now_us = self._clock_us()
            live = result.live
            self._cache.take(kind, ResultRecord(value, now_us if live else min(now_us, timestamp_us)), live=live)

        span_s = PAST_S.get(kind, DAY_S)
        result = Result(name, take, span_s, self._hub, self._backend, self._limits, self._clock_us)
        return result  # takes nothing before its task runs

    # ---- facts

    @property
    def bytes(self) -> int:
        """The memory in use, at most."""
        return self._cache.bytes

    def snapshot(
        self, symbol: str, candles: tuple[int, int, int], now_us: int, quoted_us: int | None
    ) -> facts.Analytics:
        """Facts for a page. `candles` are the step, the number and the end second of the candles shown."""
        step_s, count, end_s = candles
        shown = self._cache.symbols.get(symbol)
        bars_s = step_s if step_s in BARS_S.values() else max(BARS_S.values())
        bars = {} if shown is None else shown.bars.get(bars_s, {})
        cache = self._cache
        followed = {kind: one for kind, one in self._results.items() if one.name in self.topics}
        return facts.Analytics(
            followed=tuple(one.name for one in followed.values() if not one.failed),
            failed={one.name: one.failed for one in followed.values() if one.failed},
            jobs=dict(cache.jobs),
            heard_us=cache.heard_us,
            quoted_us=quoted_us,
            stats=cache.stats(now_us),
            bars=tuple(bars[start] for start in sorted(bars, reverse=True)),
            bars_step_s=bars_s,
            alerts=tuple(cache.alerts),
            lines=None if shown is None else shown.lines(step_s, end_s, count),
            bar_delay_ms=cache.bar_delay_ms,
            unread=cache.unread,
            unread_reason=cache.unread_reason,
            symbols_left_out=cache.symbols_left_out,
            lost=self._lost + sum(one.lost for one in self._results.values()),
        )
