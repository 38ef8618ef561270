"""Live pages: each is built once a tick for all tabs that show it.

    LivePage  one address for one role: facts ─► view ─► document, version after version
    Watcher   one tab's state: the version that it has, and so the next frame

The delta between two versions is encoded once for all tabs. A tab that does not read skips versions; it then gets one
delta from its own version, with the number of skipped ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
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

RETRY_S: Final = 5.0  # until a page without updates is tried again after a problem
FRESH_S: Final = 0.25  # maximum age of a version for a new watcher
Load = Callable[[Page, PageRequest], Awaitable[Document]]
encode: Final = msgspec.json.Encoder().encode


class Key(NamedTuple):
    url: str
    role: int
    principal: str  # of personal pages; else empty


class Pulse(Protocol):
    """The clock of new facts: the sampler."""

    @property
    def outdated_at(self) -> float:
        """Versions made before then are outdated."""

    def next(self, when: float) -> float:
        """The time near `when` that follows new facts."""


class PageVersion:
    """One version of a page. Its document and its delta are encoded once, for all subscribers."""

    def __init__(self, number: int, wire: dict[str, Any], before: dict[str, Any]) -> None:
        self.number = number  # 0: the page has not been built yet
        self.wire = wire
        self._before = before

    @cached_property
    def document(self) -> bytes:
        """The whole document."""
        return encode(self.wire)

    @cached_property
    def step(self) -> bytes:
        """The delta from the version before."""
        return encode(delta(self._before, self.wire))


class LivePage:
    """One page and its task. Lives while it has watchers."""

    def __init__(self, page: Page, request: PageRequest, load: Load, pulse: Pulse, filtering: FilterTime) -> None:
        self.page = page
        self._request = request
        self._load = load
        self._pulse = pulse
        self._filtering = filtering
        self.latest = PageVersion(0, {}, {})
        self.problem: Problem | None = None
        self.attempts = 0
        self._begun_at = 0.0
        self._watchers: set[Watcher] = set()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def join(self, watcher: Watcher) -> None:
        """Adds a watcher. It gets a fresh version, without waiting for the next tick."""
        self._watchers.add(watcher)
        now = asyncio.get_running_loop().time()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"dashboard: live page {self._request.path}")
        elif self.latest.number and self._begun_at >= max(self._pulse.outdated_at, now - FRESH_S):
            watcher.wake()
        else:
            self._wanted.set()

    def leave(self, watcher: Watcher) -> bool:
        """Removes a watcher. Returns whether none is left."""
        self._watchers.discard(watcher)
        if self._watchers:
            return False
        self.close()
        return True

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

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
        """The time of the next version, if any."""
        pause = self.page.interval_s
        if not pause:
            return began + RETRY_S if self.problem is not None else None
        # Facts are new once a second; pages with a shorter interval use other facts.
        return began + pause if pause < 1 else self._pulse.next(began + pause)

    async def _make(self) -> None:
        self.attempts += 1
        self._filtering.fill(asyncio.get_running_loop().time())
        try:
            made = (await self._load(self.page, again(self._request, self._filtering))).wire()
        except Problem as problem:
            self.problem = problem
        except CometError as error:
            self.problem = Problem.of(error)
        except Exception:
            log.exception("page %s cannot be built", self._request.path, extra={"path": self._request.path})
            self.problem = Problem("INTERNAL", "the gateway failed to build this page; see its log")
        else:
            self.problem = None
            self.latest = PageVersion(self.latest.number + 1, made, self.latest.wire)


class Watcher:
    """One tab's state of a live page. Its task awaits `changed`, then calls `next` when there is room."""

    def __init__(self, id_: str, live: LivePage) -> None:
        self._id = encode(id_)
        self._live = live
        self._had: dict[str, Any] = {}
        self._version = 0
        self._seq = 0
        self._attempts = 0  # at the last problem sent
        self._event = asyncio.Event()

    def wake(self) -> None:
        self._event.set()

    async def changed(self) -> None:
        await self._event.wait()

    def next(self) -> list[bytes]:
        """A frame in parts; empty: nothing to send."""
        self._event.clear()
        live = self._live
        if live.problem is not None:
            if self._attempts == live.attempts:
                return []
            self._attempts = live.attempts
            problem = encode(live.problem.document())
            return [b'{"type":"error","id":%b,"of":"subscribe","problem":%b}' % (self._id, problem)]
        latest = live.latest
        skipped = latest.number - self._version - 1
        if skipped < 0:
            return []
        if not self._version:
            interval = encode(live.page.interval_s)
            return self._frame(latest, b"page", b'"interval_s":%b,"document":' % interval, latest.document)
        if not skipped:
            return self._frame(latest, b"delta", b'"delta":', latest.step)
        return self._frame(latest, b"delta", b'"skipped":%d,"delta":' % skipped, encode(delta(self._had, latest.wire)))

    def _frame(self, latest: PageVersion, type_: bytes, name: bytes, body: bytes) -> list[bytes]:
        head = b'{"type":"%b","id":%b,"seq":%d,%b' % (type_, self._id, self._seq, name)
        self._seq += 1
        self._version, self._had = latest.number, latest.wire
        return [head, body, b"}"]


class LivePages:
    """The live pages of an application."""

    def __init__(self, load: Load, pulse: Pulse, pages_max: int) -> None:
        self._load = load
        self._pulse = pulse
        self._pages_max = pages_max
        self._filtering = FilterTime()
        self._all: dict[Key, LivePage] = {}

    @property
    def count(self) -> int:
        return len(self._all)

    def watch(self, id_: str, page: Page, request: PageRequest) -> tuple[Watcher, Callable[[], None]]:
        """A watcher, and the function that ends it. Raises OVERLOADED."""
        principal = request.principal if page.personal else ""
        key = Key(request.link(), request.role, principal)
        live = self._all.get(key) if page.interval_s else None
        if live is None:
            if len(self._all) >= self._pages_max:
                raise Problem("OVERLOADED", f"{self._pages_max} live pages are open, the limit")
            live = LivePage(page, replace(request, principal=principal), self._load, self._pulse, self._filtering)
            if page.interval_s:
                self._all[key] = live
        watcher = Watcher(id_, live)
        live.join(watcher)

        def leave() -> None:
            if live.leave(watcher) and self._all.get(key) is live:
                del self._all[key]

        return watcher, leave

    def close(self) -> None:
        for live in self._all.values():
            live.close()
        self._all.clear()
