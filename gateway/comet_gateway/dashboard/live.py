"""`/live`: the socket of one tab.

    receive ─► Session.take ─► actions ─┬► Watcher of a page ─┐
                                        ├► channel            ├─► wire ─► tab
                                        └► problems ──────────┘

Each page and each channel has a task of its own, which writes when there is room. While a tab does not read, they all
wait and nothing is queued: a page then sends one delta, a channel decides for itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from comet.errors import CometError
from comet_gateway.dashboard import live_session, serving
from comet_gateway.dashboard.channel_session import ChannelSession
from comet_gateway.dashboard.channels import CHANNELS
from comet_gateway.dashboard.live_pages import LivePages, Watcher, encode
from comet_gateway.dashboard.page_request import Addresses
from comet_gateway.dashboard.sources import Sources
from comet_gateway.http.auth import Principal
from comet_gateway.http.problems import Problem
from comet_gateway.push.close_codes import Close
from comet_gateway.push.connections import Connections
from comet_gateway.push.wire import Gone, wire_of
from comet_web.document import Document
from comet_web.page_request import PageRequest
from comet_web.pages import Page

log = logging.getLogger(__name__)

FAREWELL_S: Final = 1.0  # for a tab to read the last frame
_ADDRESSES: Final = Addresses()


class Watching:
    """The live pages of an application; kept by its sources."""

    def __init__(self, sources: Sources) -> None:
        async def load(page: Page, request: PageRequest) -> Document:
            return await serving.document(sources, page, request)

        self.pages = LivePages(load, sources.sampler, sources.config.limits.live_pages_max)

    def statistics(self) -> dict[str, Any]:
        return {"pages": self.pages.count}

    def close(self) -> None:
        self.pages.close()


class LiveConnection:
    """One tab's socket, for as long as its ASGI call."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["app"].state
        self._receive = receive
        self._send = send
        self._request_id: str = scope["comet.request_id"]
        self._principal: Principal = scope["comet.principal"]
        self._sources: Sources = state.sources
        self._pages = self._sources.part(Watching).pages
        self._limits = state.config.limits
        self._connections: Connections = state.connections
        self._session = live_session.LiveSession(
            self._limits, _ADDRESSES, CHANNELS, self._principal, is_open=state.gatekeeper.open
        )
        self._wire = wire_of(scope, scope.get("comet.send", send), self._limits.outgoing_bytes_max)
        self._held: dict[int, asyncio.Task[None]] = {}
        self._sessions: dict[int, ChannelSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: asyncio.Task[None] | None = None  # the task of the ASGI call, while it reads
        self._moving = False

    async def run(self) -> None:
        await self._receive()  # websocket.connect
        await self._send({"type": "websocket.accept"})
        close: Close | None = None
        with self._connections.holding(self):
            self._serving = asyncio.current_task()
            try:
                close = await self._serve()
            except Gone:
                pass
            except asyncio.CancelledError:
                if not self._moving or self._serving is None:
                    raise
                self._serving.uncancel()
                close = Close.MOVE
            finally:
                self._serving = None
                await self._end()
        if close is not None:
            await self._close(close)

    async def _serve(self) -> Close | None:
        """Reads frames until the end. Returns the close code to send; None if the tab closed."""
        message = await self._receive()
        while message["type"] == "websocket.receive":
            text = message.get("text")
            for action in self._session.take_binary() if text is None else self._session.take(text):
                if isinstance(action, live_session.CloseLive):
                    return action.close
                await self._act(action)
            message = await self._receive()
        return None

    async def _act(self, action: live_session.Action) -> None:
        try:
            match action:
                case live_session.WatchPage():
                    self._watch_page(action)
                case live_session.Begin():
                    session = self._sessions[action.id] = ChannelSession(self._sources, self._principal)
                    self._begin(action.id, self._carry(action.id, action.channel.open(session, action.params)))
                case live_session.Pass():
                    if (listener := self._sessions.get(action.id)) is not None:
                        listener.deliver(action.message)
                case live_session.Leave():
                    self._sessions.pop(action.id, None)
                    if (task := self._held.pop(action.id, None)) is not None:
                        task.cancel()
                case live_session.Refuse():
                    await self._refuse(action.id, action.problem)
                case _:
                    raise AssertionError(action)
        except Problem as problem:
            await self._refuse(getattr(action, "id", None), problem)

    def _watch_page(self, action: live_session.WatchPage) -> None:
        try:
            watcher, leave = self._pages.watch(action.id, action.page, action.request)
        except Problem:
            self._session.ended(action.id)
            raise
        self._begin(action.id, self._watch(watcher), leave)

    # ---- pages and channels

    def _begin(self, id_: int, work: Coroutine[Any, Any, None], leave: Callable[[], None] | None = None) -> None:
        task = asyncio.create_task(work, name=f"dashboard: {id_} of a tab")
        self._held[id_] = task
        self._tasks.add(task)

        def over(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            if leave is not None:
                leave()
            if self._held.get(id_) is done:
                del self._held[id_]
                self._sessions.pop(id_, None)
                self._session.ended(id_)
            if not done.cancelled() and (error := done.exception()) is not None and not isinstance(error, Gone):
                log.error("a page or channel of a live connection failed", exc_info=error)

        task.add_done_callback(over)

    async def _watch(self, watcher: Watcher) -> None:
        while True:
            await watcher.changed()
            await self._wire.room()
            if frame := watcher.next():
                await self._wire.write([frame])

    async def _carry(self, id_: int, events: AsyncIterator[Mapping[str, Any]]) -> None:
        seq = 0
        try:
            await self._wire.room()
            async for event in events:
                await self._wire.write([[b'{"id":%d,"seq":%d,"event":%b}' % (id_, seq, encode(event))]])
                seq += 1
                await self._wire.room()
        except Gone:
            raise
        except Problem as problem:
            await self._refuse(id_, problem)
        except CometError as error:
            await self._refuse(id_, Problem.of(error))
        except Exception:
            log.exception("a channel failed")
            await self._refuse(id_, Problem("INTERNAL", "the gateway failed; see its log"))
        finally:
            if (close := getattr(events, "aclose", None)) is not None:
                await close()

    async def _refuse(self, id_: int | None, problem: Problem) -> None:
        about = {} if id_ is None else {"id": id_}
        await self._write(about | {"problem": problem.document(self._request_id)})

    async def _write(self, frame: Mapping[str, Any]) -> None:
        await self._wire.room()
        await self._wire.write([[encode(frame)]])

    # ---- the end

    def move(self, reconnect_ms: int) -> None:
        if not self._moving and self._serving is not None:
            self._moving = True
            task = asyncio.create_task(self._move(reconnect_ms), name="dashboard: move a tab")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def beat(self, now: float) -> None:
        """Does nothing: the server sends pings."""

    async def _move(self, reconnect_ms: int) -> None:
        with suppress(TimeoutError, Gone):
            async with asyncio.timeout(FAREWELL_S):
                await self._write({"goaway": reconnect_ms})
        if self._serving is not None:
            self._serving.cancel()

    async def _end(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _close(self, close: Close) -> None:
        try:
            async with asyncio.timeout(FAREWELL_S):
                ending = close.value
                await self._send({"type": "websocket.close", "code": ending.code, "reason": ending.reason})
        except TimeoutError:
            self._wire.abort()  # the tab does not read
        except (OSError, RuntimeError):
            pass  # the tab closed first


class LiveEndpoint:
    """The ASGI application behind the route: one connection per call."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await LiveConnection(scope, receive, send).run()
