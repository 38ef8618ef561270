"""The latest quote of each symbol, written to a compacted topic whose records expire: a table of current prices.

    feed ─► the last quote of each symbol ─► ten times a second ─► quotes.latest      key: symbol

A quote that is replaced before its turn is never written, so the topic grows with the symbols and not with the quotes.
A symbol that is not quoted any more has no value after `LATEST_TTL_MS`: the time of a record is that of its writing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import comet
from comet_demo.model import LATEST, Quote, ensure_topics
from comet_demo.providers import Event

log = logging.getLogger("comet_demo.feed")

EVERY_S: Final = 0.1
SYMBOLS_MAX: Final = 10_000  # that wait to be written
TIMEOUT_MS: Final = 2_000  # of a write; later there is a newer quote


class LatestQuotes:
    """Owned by one feed."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._waiting: dict[str, Quote] = {}
        self._news = asyncio.Event()
        self._producer = comet.Producer(bootstrap, name="latest-quotes", timeout_ms=TIMEOUT_MS)

    def add(self, events: Iterable[Event]) -> None:
        """Replaces the waiting quotes of these symbols. Beyond the limit, those that wait longest are dropped."""
        waiting = self._waiting
        waiting.update((event.symbol, event) for event in events if isinstance(event, Quote))
        while len(waiting) > SYMBOLS_MAX:
            del waiting[next(iter(waiting))]
        self._news.set()

    async def run(self) -> None:
        """Writes for ever. A quote that cannot be written in time is dropped."""
        while True:
            await self._news.wait()
            try:
                await self._write()
            except comet.CometError as error:
                log.warning("the latest quotes cannot be written, retrying: %s", error)
                if isinstance(error, comet.TopicNotFound):
                    with suppress(comet.CometError):
                        await ensure_topics(self._bootstrap, [LATEST])
            await asyncio.sleep(EVERY_S)

    async def finish(self) -> None:
        """Writes the quotes that wait, at the end of a source."""
        with suppress(comet.CometError):
            await self._write()

    async def close(self) -> None:
        with suppress(comet.CometError):
            await self._producer.close()

    async def _write(self) -> None:
        """Raises CometError."""
        self._news.clear()
        quotes, self._waiting = self._waiting, {}
        if quotes:
            await (await self._producer.send_many(LATEST, list(quotes.values()), keys=list(quotes)))
