"""`/v1/ws`: drives the session of one WebSocket.

    receive ─► PushSession.take ─► actions ─┬► a FrameSource for each subscription ─► pump ─┐
                                            ├► Writing: produce ─► receipts                 ├─► Wire
                                            └► errors, pongs, ends ─────────────────────────┘

The ASGI call reads; each subscription has a task that pumps its frames, in turn with the others, when there is room.
While the client does not read, all of them wait, and so does the reader when it has an answer to send.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final

from starlette.types import Receive, Scope, Send

import comet
from comet.errors import CometError
from comet_gateway.brokers.backend import Backend
from comet_gateway.brokers.user_access import UserAccess
from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.http.problems import Problem
from comet_gateway.http.shares import holder_of
from comet_gateway.http.wire import Gone, Wire, wire_of
from comet_gateway.push import frames, session
from comet_gateway.push.close_codes import Close
from comet_gateway.push.connections import Connections
from comet_gateway.push.dashboard_port import Controllable, DashboardRequest
from comet_gateway.push.group_member import GroupMembership, ShareMember
from comet_gateway.push.needs import needs_of
from comet_gateway.push.parse_subscribe import Joined, Played
from comet_gateway.push.pump import FrameSource, pump
from comet_gateway.push.replay import Replay
from comet_gateway.push.subscription_frames import SubscribeHub, SubscriptionFrames
from comet_gateway.push.writing import Writing

log = logging.getLogger(__name__)

SUBPROTOCOL: Final = "comet.v1"
FAREWELL_S: Final = 1.0  # for a client to read the last frames


class WebSocketConnection:
    """One connection. Lives as long as its ASGI call."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["app"].state
        config: GatewayConfig = state.config
        self._scope = scope
        self._receive = receive
        self._send = send
        self._limits = config.limits
        self._connections: Connections = state.connections
        self._session = session.PushSession(self._limits, scope["comet.principal"], state.dashboard)
        self._wire = wire_of(scope, scope.get("comet.send", send), self._limits.outgoing_bytes_max)
        self._source_of = partial(source_of, state.backend, state.hub, self._wire, self._limits)
        self._writing = Writing(
            state.backend, self._send_text, self._limits, state.metrics, state.traffic, partial(_check_write, scope),
            partial(state.users.producer_for, scope["comet.principal"]),
        )  # fmt: skip
        self._writes = False  # it has written records
        self._sources: dict[str, tuple[FrameSource, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unanswered = asyncio.Semaphore(self._limits.in_flight_max)  # acks under way
        self._serving: asyncio.Task[None] | None = None  # the task of the ASGI call, while it reads
        self._moving = False

    async def run(self) -> None:
        await self._receive()  # websocket.connect
        subprotocol = SUBPROTOCOL if SUBPROTOCOL in self._scope.get("subprotocols", ()) else None
        await self._send({"type": "websocket.accept", "subprotocol": subprotocol})
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
        """Reads frames to the end; the reason to close, None if the client closed."""
        await self._send_frame(
            frames.Welcome(
                frames.VERSION,
                comet.__version__,
                frames.Bounds(
                    self._limits.frame_bytes_max,
                    self._limits.subscriptions_max,
                    self._limits.watches_max,
                    self._limits.in_flight_max,
                    self._limits.idle_s,
                ),
                self._scope["comet.request_id"],
            )
        )
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                message = await self._receive()
        except TimeoutError:
            return Close.SILENT
        while message["type"] == "websocket.receive":
            text = message.get("text")
            now_us = time.time_ns() // 1000
            actions = self._session.take_binary() if text is None else self._session.take(text, now_us=now_us)
            for action in actions:
                if isinstance(action, session.CloseConnection):
                    return action.close
                try:
                    await self._act(action)
                except Problem as problem:
                    await self._refuse(action, problem)
            message = await self._receive()
        return None

    async def _act(self, action: session.Action) -> None:
        match action:
            case session.SendFrame():
                await self._send_frame(action.frame)
            case session.Write():
                if not self._writes:
                    self._writes = True
                    self._spawn(self._writing.run())
                await self._writing.write(action.frame, action.text)
            case session.Open():
                self._open(action)
            case session.Drop():
                _, task = self._sources.pop(action.id)
                task.cancel()
                self._spawn(self._dropped(action.id, task))
            case session.Leave():
                _, task = self._sources.pop(action.id)
                self._tasks.add(task)  # until it has ended
                task.add_done_callback(self._finished)
                task.cancel()
            case session.PassControl():
                source = self._sources[action.id][0]
                assert isinstance(source, Controllable)
                source.control(action.frame.params)
            case session.Grant():
                source = self._sources[action.id][0]
                assert isinstance(source, SubscriptionFrames | GroupMembership)
                source.grant(action.count)
            case session.Steer():
                source = self._sources[action.id][0]
                assert isinstance(source, SubscriptionFrames)
                source.steer(action.frame)
            case session.Commit():
                source = self._sources[action.id][0]
                assert isinstance(source, GroupMembership)
                await self._answer_later(action.id, "ack", source.commit(action.cursor))
            case session.Acknowledge():
                source = self._sources[action.id][0]
                assert isinstance(source, ShareMember)
                await self._answer_later(action.id, session.type_of(action.frame), source.acknowledge(action.frame))
            case _:
                raise AssertionError(action)

    # ---- subscriptions

    def _open(self, action: session.Open) -> None:
        source = self._source_of(action.id, action.request)
        task = asyncio.create_task(self._run(action.id, source, action.request))
        self._sources[action.id] = source, task

    async def _run(self, id_: str, source: FrameSource, request: session.Request) -> None:
        self._connections.subscriptions += 1  # here: a task that is dropped before its first turn never reaches the end
        try:
            match request:
                case Joined():
                    with self._connections.members.held(holder_of(self._scope)):
                        end = await self._pump(source, request)
                case Played():
                    with self._connections.replays.held(holder_of(self._scope)):
                        end = await self._pump(source, request)
                case _:
                    end = await self._pump(source, request)
        except Gone:
            return  # the reader notices, too
        except Exception as error:  # noqa: BLE001 - what goes wrong with one subscription ends only that
            await self._failed(id_, error)
            end = frames.EndFrame(id_, "failed")
        finally:
            self._connections.subscriptions -= 1
        self._sources.pop(id_, None)
        if self._session.ended(id_):
            await self._send_frame(end)

    async def _pump(self, source: FrameSource, request: session.Request) -> frames.EndFrame:
        users: UserAccess = self._scope["app"].state.users
        pumping = pump(source, self._wire)
        return await users.while_allowed(self._scope["comet.principal"], needs_of(request), pumping)

    async def _failed(self, id_: str, error: Exception) -> None:
        match error:
            case Problem():
                problem = error
            case CometError():
                problem = Problem.of(error)
            case _:
                log.error("subscription %r failed", id_, exc_info=error)
                problem = Problem("INTERNAL", "unexpected error; see the gateway's log")
        with suppress(Gone):
            await self._send_frame(frames.error_of(problem, id_=id_, of="subscribe"))

    async def _dropped(self, id_: str, task: asyncio.Task[None]) -> None:
        await asyncio.wait([task])
        if self._session.ended(id_):
            with suppress(Gone):
                await self._send_frame(frames.EndFrame(id_, "unsubscribed"))

    # ---- answers

    async def _send_frame(self, frame: frames.ServerFrame) -> None:
        await self._send_text(frames.encode(frame))

    async def _send_text(self, text: bytes) -> None:
        await self._wire.room()
        await self._wire.write([[text]])

    async def _refuse(self, action: session.Action, problem: Problem) -> None:
        id_ = getattr(action, "id", None)
        await self._send_frame(frames.error_of(problem, id_=id_, of=session.cause_type(action)))

    async def _answer_later(self, id_: str, of: str, work: Coroutine[Any, Any, frames.ServerFrame]) -> None:
        """Answers a frame in a task; with `in_flight_max` unanswered ones no more frames are read."""
        await self._unanswered.acquire()

        async def answer() -> None:
            try:
                try:
                    reply = await work
                except Problem as problem:
                    reply = frames.error_of(problem, id_=id_, of=of)
                except CometError as error:
                    reply = frames.error_of(Problem.of(error), id_=id_, of=of)
            finally:
                self._unanswered.release()
            with suppress(Gone):
                await self._send_frame(reply)

        self._spawn(answer())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Gone):
            log.error("a WebSocket's task failed", exc_info=error)

    # ---- the end

    def move(self, reconnect_ms: int) -> None:
        if not self._moving and self._serving is not None:
            self._moving = True
            self._spawn(self._move(reconnect_ms))

    def beat(self, now: float) -> None:
        """Does nothing: the server sends pings."""

    async def _move(self, reconnect_ms: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self._send_frame(frames.GoAway(reconnect_ms))
        if self._serving is not None:
            self._serving.cancel()

    async def _end(self) -> None:
        """Ends all tasks; members leave their groups."""
        tasks = {task for _, task in self._sources.values()} | self._tasks
        self._sources.clear()
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks)
        finally:
            self._writing.close()

    async def _close(self, close: Close) -> None:
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._send(
                    {"type": "websocket.close", "code": close.value.code, "reason": close.value.reason}
                )  # fmt: skip
        except TimeoutError:
            self._wire.abort()  # the client does not read
        except (OSError, RuntimeError):
            pass  # the client closed first


async def _check_write(scope: Scope, topic: str) -> None:
    """Raises the Problem of a topic that the user may not write."""
    users: UserAccess = scope["app"].state.users
    await users.check(scope["comet.principal"], [("write", "topic", topic)])


def source_of(
    backend: Backend, hub: SubscribeHub, wire: Wire, limits: Limits, id_: str, request: session.Request
) -> FrameSource:
    """The source of a subscription's frames."""
    match request:
        case Joined():
            if request.group.kind == "share":
                return ShareMember(id_, request, backend, limits)
            return GroupMembership(id_, request, backend, wire, limits)
        case Played():
            return SubscriptionFrames(
                id_,
                lambda: Replay.begin(request, backend.admin, backend.reader, limits),
                limits.delivery_bytes,
                (request.topic,),
            )
        case DashboardRequest():
            return request.open(id_)
        case _:
            return SubscriptionFrames(id_, lambda: hub.subscribe(request), limits.delivery_bytes, request.topics)


class WebSocketEndpoint:
    """The ASGI application of the route: one connection per call."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await WebSocketConnection(scope, receive, send).run()
