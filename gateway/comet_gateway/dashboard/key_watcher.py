"""The last value of each key of a compacted topic that may be missing. Two stand beside a topic of quotes NAME: the
latest quotes in NAME.latest, and the state of the market in NAME.market.

    KV.watch ─► the last value of each key, by the leaders' tables ─► complete ─► every change

One cursor leads from the values to the changes, so nothing is missed between them, and no log is read. After an error
the values are read again. Nothing is written when a value expires: the entry says when.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

import comet
from comet.errors import CometError, TopicNotFound
from comet_gateway.brokers.key_tables import KeyTables
from comet_gateway.http.problems import Problem

log = logging.getLogger("comet.gateway")

AGAIN_S: Final = 2.0  # between two attempts; a missing topic is tried again, too

Entry = comet.KVEntry[bytes]


class KeyWatcher:
    """Follows the values of one topic; owned by their user. `take` gets each entry, and whether it is a change, and
    returns the name that the user has for its key, None if it has none. `complete` gets the names that have a value,
    once all are known."""

    def __init__(
        self,
        topic: str,
        tables: KeyTables,
        take: Callable[[Entry, bool], str | None],
        complete: Callable[[Collection[str]], None],
    ) -> None:
        self.topic = topic
        self.followed = False  # the topic exists
        self.failed = ""  # the reason why its values are not followed now
        self.begun = asyncio.Event()  # they were read, or cannot be
        self._tables = tables
        self._take = take
        self._complete = complete
        self._task = asyncio.create_task(self._run(), name=f"gateway: keys of {topic}")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            self.failed = await self._try()
            self.begun.set()
            await asyncio.sleep(AGAIN_S)

    async def _try(self) -> str:
        """Follows the values. Returns the reason for its end; empty: the topic does not exist."""
        try:
            await self._follow()
        except TopicNotFound:
            self.followed = False
            return ""
        except CometError as error:
            return error.message
        except Problem as problem:
            return problem.detail
        except Exception:
            log.exception("gateway: the keys of %s cannot be followed", self.topic, extra={"topic": self.topic})
        return "unexpected error; see the gateway's log"

    async def _follow(self) -> None:
        async with self._tables.of(self.topic) as kv, kv.watch() as changes:
            names: set[str | None] = set()
            async for entry in changes:
                self.followed, self.failed = True, ""
                if entry is None:
                    self._complete({name for name in names if name is not None})
                    self.begun.set()
                elif changes.complete:
                    self._take(entry, True)
                else:
                    names.add(self._take(entry, False))
