"""Pages that somebody looks at, each made once a tick for all tabs that show it.

    Look      one page, as one address and role ask for it: facts ─► view ─► document, version after version
    Watcher   one tab's part in it: the version that it has, and so what to tell it next

What changed from one version to the next is encoded once, for all who have the one before. Who does not read skips
versions, and is then told what changed since the one that it has, and how many it skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from comet.errors import CometError
from comet_gateway.dashboard.page_request import FilterTime, again
from comet_gateway.http.problems import Problem
from comet_web.delta import delta
from comet_web.document import Document
from comet_web.page_request import PageRequest
from comet_web.pages import Page

log = logging.getLogger(__name__)

RETRY_S: Final = 5.0  # that a page which is made only once waits before it is tried again
FRESH_S: Final = 0.25  # that a version may be old for somebody who comes
Load = Callable[[Page, PageRequest], Awaitable[Document]]
encode: Final = msgspec.json.Encoder().encode


class Key(NamedTuple):
    url: str
    role: int
    who: str  # of pages that show who looks; else empty


class Pulse(Protocol):
    """Of those who know what pages show: the sampler."""

    @property
    def outdated_at(self) -> float:
        """What was made of facts before then is known to be outdated."""

    def next(self, when: float) -> float:
        """About then, a moment after there are new facts."""


class Look:
    """Lives while it has watchers; its task is its own."""

    def __init__(self, page: Page, asked: PageRequest, load: Load, pulse: Pulse, filtering: FilterTime) -> None:
        self.page = page
        self._asked = asked
        self._load = load
        self._pulse = pulse
        self._filtering = filtering
        self.version = 0
        self.wire: dict[str, Any] = {}
        self.problem: Problem | None = None
        self.attempts = 0
        self._document = b""
        self._before: dict[str, Any] = {}
        self._step = b""
        self._begun_at = 0.0
        self._watchers: set[Watcher] = set()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def join(self, watcher: Watcher) -> None:
        """Who comes is shown a version that is new; the others are not waited for."""
        self._watchers.add(watcher)
        now = asyncio.get_running_loop().time()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"dashboard: look at {self._asked.path}")
        elif self.version and self._begun_at >= max(self._pulse.outdated_at, now - FRESH_S):
            watcher.wake()
        else:
            self._wanted.set()

    def leave(self, watcher: Watcher) -> bool:
        """Whether nobody is left."""
        self._watchers.discard(watcher)
        if self._watchers:
            return False
        self.close()
        return True

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @property
    def document(self) -> bytes:
        """This version as a whole."""
        if not self._document:
            self._document = encode(self.wire)
        return self._document

    @property
    def step(self) -> bytes:
        """What changed with this version."""
        if not self._step:
            self._step = encode(delta(self._before, self.wire))
        return self._step

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wanted.clear()
            began = loop.time()
            await self._make()
            self._begun_at = began
            for watcher in self._watchers:
                watcher.wake()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._due(began)):
                    await self._wanted.wait()

    def _due(self, began: float) -> float | None:
        """When it is made the next time, if it is."""
        pause = self.page.interval_s
        if not pause:
            return began + RETRY_S if self.problem is not None else None
        # Facts are new once a second: who looks more often looks at something else.
        return began + pause if pause < 1 else self._pulse.next(began + pause)

    async def _make(self) -> None:
        self.attempts += 1
        self._filtering.fill(asyncio.get_running_loop().time())
        try:
            made = (await self._load(self.page, again(self._asked, self._filtering))).wire()
        except Problem as problem:
            self.problem = problem
        except CometError as error:
            self.problem = Problem.of(error)
        except Exception:
            log.exception("page %s cannot be built", self._asked.path)
            self.problem = Problem("INTERNAL", "the gateway failed to build this page; see its log")
        else:
            self.problem = None
            self._before, self.wire = self.wire, made
            self._document = self._step = b""
            self.version += 1


class Watcher:
    """What one tab has of a look. Driven by its connection: `changed`, then `next` when there is room for it."""

    def __init__(self, id_: int, look: Look) -> None:
        self._id = id_
        self._look = look
        self._had: dict[str, Any] = {}
        self._version = 0
        self._seq = 0
        self._attempts = 0  # after which a problem was told
        self._event = asyncio.Event()

    def wake(self) -> None:
        self._event.set()

    async def changed(self) -> None:
        await self._event.wait()

    def next(self) -> list[bytes]:
        """A frame, in parts; empty: there is nothing to tell."""
        self._event.clear()
        look = self._look
        if look.problem is not None:
            if self._attempts == look.attempts:
                return []
            self._attempts = look.attempts
            return [b'{"id":%d,"problem":%b}' % (self._id, encode(look.problem.document()))]
        skipped = look.version - self._version - 1
        if skipped < 0:
            return []
        if not self._version:
            return self._told(look, b'"interval_s":%b,"document":' % encode(look.page.interval_s), look.document)
        if not skipped:
            return self._told(look, b'"delta":', look.step)
        return self._told(look, b'"skipped":%d,"delta":' % skipped, encode(delta(self._had, look.wire)))

    def _told(self, look: Look, name: bytes, body: bytes) -> list[bytes]:
        head = b'{"id":%d,"seq":%d,%b' % (self._id, self._seq, name)
        self._seq += 1
        self._version, self._had = look.version, look.wire
        return [head, body, b"}"]


class Looks:
    """All of an application."""

    def __init__(self, load: Load, pulse: Pulse, pages_max: int) -> None:
        self._load = load
        self._pulse = pulse
        self._pages_max = pages_max
        self._filtering = FilterTime()
        self._all: dict[Key, Look] = {}

    @property
    def pages(self) -> int:
        return len(self._all)

    def watch(self, id_: int, page: Page, asked: PageRequest) -> tuple[Watcher, Callable[[], None]]:
        """A tab's part, and what ends it. Raises OVERLOADED."""
        who = asked.who if page.personal else ""
        key = Key(asked.link(), asked.role, who)
        look = self._all.get(key) if page.interval_s else None
        if look is None:
            if len(self._all) >= self._pages_max:
                raise Problem("OVERLOADED", f"{self._pages_max} live pages are open, the limit")
            look = Look(page, replace(asked, who=who), self._load, self._pulse, self._filtering)
            if page.interval_s:
                self._all[key] = look
        watcher = Watcher(id_, look)
        look.join(watcher)

        def leave() -> None:
            if look.leave(watcher) and self._all.get(key) is look:
                del self._all[key]

        return watcher, leave

    def close(self) -> None:
        for look in self._all.values():
            look.close()
        self._all.clear()
