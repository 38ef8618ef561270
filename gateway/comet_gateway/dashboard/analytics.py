"""What a job makes of a topic of quotes, followed where it writes it: the companion of a board, which owns it.

    topics  NAME.bars.1s, …, NAME.job     looked for every few seconds: a job may start after the page was opened
      ├─ the past, read up to its end once, bounded in time and records
      └─ hub ──► what comes ──► Kept

Both read what is committed: a job writes in transactions, and what it takes back was never shown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from comet.errors import CometError, OffsetOutOfRange, PartitionNotFound
from comet.types import AtTime
from comet_gateway.dashboard.analytics_cache import AnalyticsCache
from comet_gateway.dashboard.analytics_records import ALERTS, BARS_S, KINDS, Came
from comet_gateway.dashboard.backfill import FILL_BYTES, FILL_RECORDS
from comet_gateway.http.problems import Problem
from comet_gateway.push import subscribe_request as push
from comet_gateway.push.chunk import Slice
from comet_gateway.push.events import Failed, Lost
from comet_gateway.records.cursor import Cursor, CursorPlace
from comet_web import facts_analytics as facts

if TYPE_CHECKING:
    from comet_gateway.brokers.backend import Backend
    from comet_gateway.config import Limits
    from comet_gateway.push.hub import Hub

log = logging.getLogger("comet.gateway")

LIST_S: Final = 3.0  # between two looks for topics that are made of it
AGAIN_S: Final = 10.0  # until one that could not be followed is tried again
PAST_S: Final[Mapping[str, int]] = {"bars.1s": 900}  # that is read of the past of a topic; of the others a day
DAY_S: Final = 86_400
PAST_RECORDS: Final = 50_000  # of one topic, the newest: as many as a job of a few dozen symbols writes in half an hour


class Result:
    """One topic of results, from the past into what comes. Lives until it cannot be followed any more."""

    def __init__(
        self, name: str, take: Callable[[bytes | None, int], None], span_s: int, hub: Hub, backend: Backend,
        limits: Limits, clock_us: Callable[[], int],
    ) -> None:  # fmt: skip
        self.name = name
        self.failed = ""
        self.lost = 0
        self.live = False
        self.ended_s = 0.0
        self.caught_up = asyncio.Event()  # or it never will
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
            log.exception("gateway: the results in %s cannot be followed", self.name)
            self.failed = "unexpected error; see the gateway's log"
        finally:
            self.ended_s = asyncio.get_running_loop().time()
            self.caught_up.set()

    async def _past(self) -> Cursor:
        """Reads what was, and says where to go on."""
        admin = self._backend.admin
        info, _ = await admin.describe_topic(self.name)
        ends = await admin.offsets(self.name, "latest")
        since = await admin.offsets(self.name, AtTime(self._clock_us() - self._span_s * 1_000_000))
        most = PAST_RECORDS // max(1, len(ends))
        deadline_s = asyncio.get_running_loop().time() + self._limits.quote_scan_s
        places = {}
        for partition, end in ends.items():
            begin = max(0, min(since.get(partition, end), end), end - most)
            places[partition] = await self._read(partition, begin, end, deadline_s)
        return Cursor(info.id, places)

    async def _read(self, partition: int, offset: int, end: int, deadline_s: float) -> CursorPlace:
        """What is there before `end`; when the time is over, no more of it: the rest comes with what is new."""
        epoch: int | None = None
        while offset < end and asyncio.get_running_loop().time() < deadline_s:
            try:
                found = await self._backend.reader.fetch(
                    self.name, partition, offset, records_max=FILL_RECORDS, bytes_max=FILL_BYTES
                )
            except OffsetOutOfRange as error:
                offset, epoch = max(offset + 1, int(error.details.get("log_start", end))), None  # deleted meanwhile
                continue
            except PartitionNotFound:
                break
            if found.next_offset <= offset:
                break
            for batch in found.batches:
                for value, timestamp_us in zip(batch.values, batch.timestamps, strict=True):
                    self._take(value, timestamp_us)
            offset, epoch = found.next_offset, found.epoch
            await asyncio.sleep(0)  # others want the loop, too
        return CursorPlace(offset, epoch)

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
    """Of one topic of quotes. Belongs to its board's event loop, and ends with it."""

    def __init__(self, topic: str, hub: Hub, backend: Backend, limits: Limits, clock_us: Callable[[], int]) -> None:
        self.topics: tuple[str, ...] = ()  # those whose names begin with this one's and a dot
        self.begun = asyncio.Event()  # what there is was read, if there is anything
        self._topic = topic
        self._hub = hub
        self._backend = backend
        self._limits = limits
        self._clock_us = clock_us
        self._kept = AnalyticsCache(limits.quote_symbols_max)
        self._results: dict[str, Result] = {}  # by kind
        self._lost = 0  # of those that are over
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
                pass  # what was known still is
            except Exception:
                log.exception("gateway: topics made of %s cannot be looked for", self._topic)
            else:
                self.topics = tuple(one.name for one in found.topics if one.name.startswith(f"{self._topic}."))
                self._begin()
                if not self.begun.is_set():
                    await asyncio.gather(*(one.caught_up.wait() for one in self._results.values()))
            self.begun.set()
            await asyncio.sleep(LIST_S)

    def _begin(self) -> None:
        """With all that are there and not followed: they came, or they could not be followed any more."""
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
                self._kept.forget_alerts()
            self._results[kind] = self._follow(kind, name)

    def _follow(self, kind: str, name: str) -> Result:
        def take(value: bytes | None, timestamp_us: int) -> None:
            now_us = self._clock_us()
            live = result.live
            self._kept.take(kind, Came(value, now_us if live else min(now_us, timestamp_us)), live=live)

        span_s = PAST_S.get(kind, DAY_S)
        result = Result(name, take, span_s, self._hub, self._backend, self._limits, self._clock_us)
        return result  # which takes nothing before its task runs

    # ---- looking

    @property
    def bytes(self) -> int:
        """Of memory, that all this may take."""
        return self._kept.bytes

    def look(self, symbol: str, candles: tuple[int, int, int], now_us: int, quoted_us: int | None) -> facts.Analytics:
        """`candles` are the step of those that are shown, how many they are, and the second that they end before."""
        step_s, count, end_s = candles
        shown = self._kept.symbols.get(symbol)
        bars_s = step_s if step_s in BARS_S.values() else max(BARS_S.values())
        bars = {} if shown is None else shown.bars.get(bars_s, {})
        kept = self._kept
        followed = {kind: one for kind, one in self._results.items() if one.name in self.topics}
        return facts.Analytics(
            followed=tuple(one.name for one in followed.values() if not one.failed),
            failed={one.name: one.failed for one in followed.values() if one.failed},
            jobs=dict(kept.jobs),
            heard_us=kept.heard_us,
            quoted_us=quoted_us,
            stats=kept.stats(now_us),
            bars=tuple(bars[start] for start in sorted(bars, reverse=True)),
            bars_step_s=bars_s,
            alerts=tuple(kept.alerts),
            lines=None if shown is None else shown.lines(step_s, end_s, count),
            bar_delay_ms=kept.bar_delay_ms,
            unread=kept.unread,
            unread_reason=kept.unread_reason,
            symbols_left_out=kept.symbols_left_out,
            lost=self._lost + sum(one.lost for one in self._results.values()),
        )
