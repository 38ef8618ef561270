"""The feed: takes quotes and trades from a provider and produces them. `python -m comet_demo.feed --provider NAME`.

    provider ─► Backlog ─┬─► Producer ─► quotes, trades    keyed by symbol: one instrument stays in one partition
                         └─► LatestQuotes ─► quotes.latest

A live market does not wait. It is written with acks=0. Events that cannot be written within two seconds are dropped,
oldest first, counted and logged, so that displayed quotes are never late. A file waits for the broker: each fifth of a
second of its time is acknowledged before the next. Deleted topics are created again. The latest quotes do not wait for
anything, see there.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import comet
from comet.processes.program import run, until_stopped
from comet.sources.replay import spans
from comet_demo.latest_quotes import LatestQuotes
from comet_demo.model import EARLY_US, TOPIC, TRADES, Quote, ensure_topics, now_us
from comet_demo.providers import Event, Provider
from comet_demo.providers.choose import add_options, chosen
from comet_demo.providers.market_hours import MarketHours
from comet_demo.providers.synthetic import SyntheticProvider

log = logging.getLogger("comet_demo.feed")

EVENTS_MAX: Final = 100_000  # waiting for the producer
AT_ONCE_MAX: Final = 10_000  # sent together
AGE_MAX_S: Final = 2.0  # of live events; older ones are dropped
BUFFER_BYTES: Final = 8 << 20
REPORT_EVERY_S: Final = 10.0
AGAIN_S: Final = 1.0  # after an error
SPAN_US: Final = 200_000  # of a file's events that are written before their acknowledgement
FILE_TIMEOUT_MS: Final = 60_000
TOPICS: Final = (TOPIC, TRADES)
# Counts that are logged as they grow.
PROBLEMS: Final = {
    "dropped": "events dropped: the broker is unavailable or too slow",
    "missed": "messages never arrived",
    "malformed": "malformed messages skipped",
}


class Backlog:
    """Events that wait for the producer. Owned by one feed. Bounded by number and age: a live provider's oldest events
    are dropped, any other waits for room.

    >>> backlog = Backlog(live=True, events_max=2)
    >>> for at in range(3):
    ...     backlog.add([at], now=0.0)
    >>> backlog.take(now=1.0), backlog.dropped
    ([1, 2], 1)
    """

    def __init__(self, *, live: bool, events_max: int = EVENTS_MAX, age_max_s: float = AGE_MAX_S) -> None:
        self.events = 0
        self.dropped = 0
        self._live = live
        self._events_max = events_max
        self._age_max_s = age_max_s
        self._moments: deque[tuple[float, Sequence[Event]]] = deque()

    @property
    def full(self) -> bool:
        """Whether a provider that is not live must wait."""
        return not self._live and self.events >= self._events_max

    def add(self, events: Sequence[Event], now: float) -> None:
        self._moments.append((now, events))
        self.events += len(events)
        self._forget(now)

    def take(self, now: float) -> list[Event]:
        """Removes and returns the oldest events that are not too old."""
        self._forget(now)
        taken: list[Event] = []
        while self._moments and len(taken) < AT_ONCE_MAX:
            taken += self._moments.popleft()[1]
        self.events -= len(taken)
        return taken

    def _forget(self, now: float) -> None:
        moments = self._moments
        while self._live and moments and (
            moments[0][0] < now - self._age_max_s or (self.events > self._events_max and len(moments) > 1)
        ):  # fmt: skip
            lost = len(moments.popleft()[1])
            self.events -= lost
            self.dropped += lost


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of the provider's events that were sent and dropped."""

    sent: int
    dropped: int  # too old to be written

    def __str__(self) -> str:
        return f"{self.sent:,} events sent, {self.dropped:,} dropped"


class Feed:
    """One run: reads a provider on one side, writes to topics on the other, until the provider ends. With `hours`,
    nothing is written while the market is closed."""

    def __init__(
        self, provider: Provider, bootstrap: str, *, age_max_s: float = AGE_MAX_S, hours: MarketHours | None = None
    ) -> None:
        self._provider = provider
        self._hours = hours
        self._bootstrap = bootstrap
        self._backlog = Backlog(live=provider.live, age_max_s=age_max_s)
        self._dropped = 0  # between backlog and producer
        self._again = 0  # failed records that are sent again
        self._ahead_us = math.inf  # of the market before this machine's clock; the minimum: one wrong time is harmless
        self._changed = asyncio.Event()
        self._ended = False
        self._latest = LatestQuotes(bootstrap)
        self._producer = comet.Producer(
            bootstrap,
            name="feed",
            acks=0 if provider.live else 1,
            buffer_bytes=BUFFER_BYTES,
            timeout_ms=int(age_max_s * 1000) if provider.live else FILE_TIMEOUT_MS,
        )

    @property
    def counts(self) -> Counts:
        """The numbers so far."""
        figures = self._producer.statistics()
        failed = figures["failed_records"] - self._again
        return Counts(figures["acked_records"], self._backlog.dropped + self._dropped + failed)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        reporting = loop.create_task(self._report())
        reading = loop.create_task(self._read())
        tasks = [reporting, reading, loop.create_task(self._latest.run())]
        if self._hours is not None:
            tasks.append(loop.create_task(self._hours.run()))
        try:
            await self._write()
            await reading  # raises the provider's error
            await self._latest.finish()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._latest.close()
            # Live events that are too old are counted, and are not an error.
            with suppress(*((comet.CometError,) if self._provider.live else ())):
                await self._producer.close()

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with aclosing(self._provider.stream()) as stream:
                async for events in stream:
                    if self._hours is not None and not self._hours.open:
                        continue
                    while self._backlog.full:
                        await self._change()
                    if events and self._provider.live:
                        self._ahead_us = min(self._ahead_us, events[-1].timestamp_us - now_us())
                    self._backlog.add(events, loop.time())
                    self._changed.set()
                    await asyncio.sleep(0)  # a source that never waits must let the writer run
        finally:
            self._ended = True
            self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            events = self._backlog.take(loop.time())
            self._changed.set()  # there may be room again
            if events:
                self._latest.add(events)
                # A replay may write minutes of market time in a moment. Both topics advance together, else one topic's
                # records would be late for a reader of both.
                for part in [events] if self._provider.live else spans(events, SPAN_US, attrgetter("timestamp_us")):
                    await asyncio.gather(*(self._send(topic, share) for topic, share in _shares(part)))
            elif self._ended:
                return
            else:
                await self._change()

    async def _send(self, topic: str, events: Sequence[Event]) -> None:
        """Sends live events once. Others are sent until all are acknowledged; those in a deleted topic are lost with
        it."""
        live = self._provider.live
        while True:
            try:
                sent = await self._producer.send_many(
                    topic,
                    events,
                    keys=[event.symbol for event in events],
                    timestamps_us=[event.timestamp_us for event in events] if live else None,
                )
                failed = [] if live else [one for one in await sent.outcomes() if isinstance(one, comet.FailedRange)]
                if not failed:
                    return
                assert failed[0].error is not None
                if isinstance(failed[0].error, comet.TopicNotFound):
                    self._again += sum(one.count for one in failed)
                raise failed[0].error
            except comet.CometError as error:
                if not (isinstance(error, comet.TopicNotFound) or (live and error.retriable)):
                    raise
                await self._recover(error)
                if live:
                    self._dropped += len(events)
                    return

    async def _recover(self, error: comet.CometError) -> None:
        """Waits before a retry, and creates missing topics, as of a broker that has lost its data."""
        log.warning("write failed, retrying: %s", error)
        await asyncio.sleep(AGAIN_S)
        if isinstance(error, comet.TopicNotFound):
            with suppress(comet.CometError):
                await ensure_topics(self._bootstrap, TOPICS)

    async def _report(self) -> None:
        """Logs new problems, and a wrong clock."""
        before: Mapping[str, int] = {}
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            figures = {"dropped": self.counts.dropped, **self._provider.statistics()}
            for name, problem in PROBLEMS.items():
                if news := figures.get(name, 0) - before.get(name, 0):
                    log.warning("%s: %s %s", self._provider.name, f"{news:,}", problem)
            before = figures
            ahead_us, self._ahead_us = self._ahead_us, math.inf
            if EARLY_US < ahead_us < math.inf:
                log.warning(
                    "this machine's clock is %d s behind the market's; events more than %d s ahead of it are dropped: "
                    "set the clock",
                    ahead_us // 1_000_000,
                    EARLY_US // 1_000_000,
                )


def _shares(events: Sequence[Event]) -> Iterator[tuple[str, list[Event]]]:
    """The events of each topic."""
    shares: tuple[list[Event], list[Event]] = ([], [])
    for event in events:
        shares[event.__class__ is not Quote].append(event)
    return ((topic, share) for topic, share in zip(TOPICS, shares, strict=True) if share)


def arguments() -> argparse.ArgumentParser:
    """The parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="comet_demo.feed",
        description="Produces quotes and trades of a market.",
        epilog="Alpaca's key is read from COMET_ALPACA_KEY and COMET_ALPACA_SECRET.",
    )
    parser.add_argument("--bootstrap", default="localhost:9092", metavar="HOST:PORT")
    add_options(parser)
    return parser


async def _run(options: argparse.Namespace) -> None:
    provider = chosen(options)
    await ensure_topics(options.bootstrap)
    hours = None
    if options.provider == SyntheticProvider.name and options.hours:
        hours = MarketHours(options.bootstrap, 3600 * options.hours, now_us=now_us)
    one = Feed(provider, options.bootstrap, hours=hours)
    try:
        await until_stopped(one.run())
    finally:
        counts = [f"{name}: {count:,}" for name, count in provider.statistics().items() if count]
        print("; ".join([f"{one.counts}", *counts]), flush=True)  # noqa: T201 - what a terminal program does


def main() -> None:
    options = arguments().parse_args()
    comet.run(_run(options))


if __name__ == "__main__":
    run("comet_demo.feed", main)
