"""`GET /v1/topics/{topic}/stream`: a subscription as server-sent events, for a browser's EventSource.

    retry: 1000                                     time to wait before reconnecting

    event: subscribed                               once: the start, and the records missing since the cursor
    id: c1.…
    data: {"topic":"quotes","cursor":"c1.…","recovered":true,"missing":[]}

    id: c1.…                                        each record, with the cursor behind it
    data: {"partition":0,"offset":"42",…}

    : …                                             at intervals on an idle stream, to keep it alive

Other events are named: `snapshot` and `latest` (records with one cursor), `lost`, `error` (a problem document; the
stream ends), `end` (a replay is over), `goaway` (the gateway stops; reconnect). An EventSource reconnects by itself,
with the last id in `Last-Event-ID`, and resumes. Errors of the request are answered by status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, Final, Literal
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from comet.admin.rules import Need
from comet.errors import CometError
from comet_gateway.brokers.user_access import UserAccess
from comet_gateway.config import Limits
from comet_gateway.http.client_disconnect import while_there
from comet_gateway.http.problems import Problem
from comet_gateway.http.shares import holder_of
from comet_gateway.push import frames
from comet_gateway.push.connections import Connections
from comet_gateway.push.events import Begun, Event, Failed, Latest, Lost
from comet_gateway.push.needs import needs_of
from comet_gateway.push.parse_subscribe import Played, follow, window
from comet_gateway.push.replay import Ended, Replay
from comet_gateway.push.subscribe_request import Policy, SubscribeRequest
from comet_gateway.push.subscription import failed
from comet_gateway.push.subscription_frames import PumpedSubscription, missing_of, problem_of
from comet_gateway.records.record_json import Values

RETRY_MS: Final = 1_000
QUERY_CHARS_MAX: Final = 64 * 1024
HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # keeps proxies from buffering events
]


class SseQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """The query parameters, as in a subscribe frame."""

    start: str = "latest"
    cursor: str | None = None
    partitions: str | None = None
    values: Values = Values.AUTO
    policy: Policy = Policy.BLOCK
    buffer: int = 10_000
    interval_ms: int = 250
    snapshot: Literal["none", "latest"] = "none"
    filter: str = ""
    replay_from: str | None = msgspec.field(name="from", default=None)
    replay_to: str | None = msgspec.field(name="to", default=None)
    speed: float | None = None


def read_query(query: bytes) -> SseQuery:
    """Parses the query. Raises Problem."""
    if len(query) > QUERY_CHARS_MAX:
        raise Problem("VALIDATION", f"the query has more than {QUERY_CHARS_MAX} bytes")
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    given = dict(pairs)
    if len(given) < len(pairs):
        raise Problem("VALIDATION", "the query has a parameter twice")
    try:
        return msgspec.convert(given, SseQuery, strict=False)
    except msgspec.ValidationError as error:
        raise Problem("VALIDATION", f"the query: {error}"[:500]) from None


def read_partitions(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) > 1_000 or not all(part.isascii() and part.isdecimal() and len(part) <= 6 for part in parts):
        raise Problem("VALIDATION", "partitions must be numbers, separated by commas")
    return [int(part) for part in parts]


def parse_request(scope: Scope, topic: str, limits: Limits, *, now_us: int) -> SubscribeRequest | Played:
    """Parses a request. Raises Problem."""
    wanted = read_query(scope["query_string"])
    cursor = scope["comet.headers"].get(b"last-event-id", b"").decode("latin-1") or wanted.cursor
    partitions = read_partitions(wanted.partitions)
    if wanted.replay_from is not None:
        if wanted.policy is not Policy.BLOCK or wanted.snapshot != "none":
            raise Problem("INVALID_ARGUMENT", "policy and snapshot are not allowed with a replay")
        span = frames.Window(
            wanted.replay_from,
            "latest" if wanted.replay_to is None else wanted.replay_to,
            1.0 if wanted.speed is None else wanted.speed,
        )
        if not 0 <= span.speed <= 1_000_000:
            raise Problem("INVALID_ARGUMENT", "speed must be from 0 to 1000000")
        return window(
            topic, span, now_us=now_us, span_ms_max=limits.replay_ms_max, partitions=partitions,
            cursor=cursor, values=wanted.values, filter=wanted.filter,
        )  # fmt: skip
    if wanted.replay_to is not None or wanted.speed is not None:
        raise Problem("INVALID_ARGUMENT", "`to` and `speed` are for a replay, which needs `from`")
    return follow(
        topics=[topic],
        start=wanted.start,
        cursors=None if cursor is None else {topic: cursor},
        partitions=partitions,
        values=wanted.values,
        policy=wanted.policy,
        buffer=wanted.buffer,
        interval_ms=wanted.interval_ms,
        snapshot=wanted.snapshot == "latest",
        filter=wanted.filter,
        now_us=now_us,
    )


async def open_stream(request: Request, topic: str, *, now_us: int) -> EventStream:
    """Subscribes until the client disconnects, and returns the answer.

    Raises Problem, CometError while the status can still be set."""
    state = request.scope["app"].state
    limits: Limits = state.config.limits
    connections: Connections = state.connections
    wanted = parse_request(request.scope, topic, limits, now_us=now_us)
    with ExitStack() as stack:

        async def begin() -> PumpedSubscription:
            begun: PumpedSubscription
            if isinstance(wanted, Played):
                stack.enter_context(connections.replays.held(holder_of(request.scope)))
                begun = await Replay.begin(wanted, state.backend.admin, state.backend.reader, limits)
            else:
                begun = await state.hub.subscribe(wanted)
            stack.callback(begun.close)  # also if the client has disconnected meanwhile
            return begun

        subscription = await while_there(request, begin(), state.draining)
        return EventStream(
            subscription, request.scope, request.receive, connections, limits, stack.pop_all(), needs_of(wanted)
        )


class EventStream:
    """One event stream, until the client disconnects."""

    def __init__(
        self,
        subscription: PumpedSubscription,
        scope: Scope,
        receive: Receive,
        connections: Connections,
        limits: Limits,
        stack: ExitStack,
        needs: tuple[Need, ...],
    ) -> None:
        self._subscription = subscription
        self._scope = scope
        self._receive = receive
        self._connections = connections
        self._limits = limits
        self._stack = stack  # closes the subscription
        self._needs = needs  # of the user, as long as it is open
        self._loop = asyncio.get_running_loop()
        self._raw: Send | None = None  # the server's own, once the answer has begun
        self._writing = False
        self._written_at = 0.0
        self._interrupted = False
        self._reconnect_ms: int | None = None
        self._task: asyncio.Task[Any] | None = None
        self._beating: asyncio.Task[None] | None = None

    async def __call__(self, send: Send) -> None:
        with self._stack:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            # The middleware sees the first part; the rest bypasses it.
            await send({"type": "http.response.body", "body": b"retry: %d\n\n" % RETRY_MS, "more_body": True})
            self._raw = self._scope.get("comet.send", send)
            self._connections.subscriptions += 1
            try:
                with self._connections.holding(self):
                    last = await self._while_allowed()
            finally:
                self._connections.subscriptions -= 1
            if last is not None:
                await send({"type": "http.response.body", "body": last})

    async def _while_allowed(self) -> bytes | None:
        """The last event, as of `_stream`; that of the error when the user may not read any more."""
        users: UserAccess = self._scope["app"].state.users
        try:
            return await users.while_allowed(self._scope["comet.principal"], self._needs, self._stream())
        except Problem as problem:
            return _named("error", problem.document())

    async def _stream(self) -> bytes | None:
        """The last event; None if the client has gone."""
        self._task = asyncio.current_task()
        watching = asyncio.create_task(self._watch())
        try:
            return await self._pump()
        except asyncio.CancelledError:
            if not self._interrupted:
                raise
            assert self._task is not None
            self._task.uncancel()
        finally:
            self._task = None
            watching.cancel()
            if self._beating is not None:
                self._beating.cancel()
        if self._reconnect_ms is None:
            return None
        fields = frames.encode({"reconnect_ms": self._reconnect_ms})
        return b"retry: %d\nevent: goaway\ndata: %b\n\n" % (self._reconnect_ms, fields)

    async def _pump(self) -> bytes:
        """Writes events; returns the last one without writing it."""
        while True:
            # Events are taken only when the server can send more.
            await self._write(b"")
            try:
                event = await self._subscription.next()
            except CometError as error:  # of a replay
                return event_bytes(failed("", error))
            data = [event_bytes(event)]
            size = len(data[0])
            while size < self._limits.delivery_bytes and not _is_last(event) and self._subscription.ready():
                event = await self._subscription.next()
                data.append(event_bytes(event))
                size += len(data[-1])
            body = data[0] if len(data) == 1 else b"".join(data)
            if _is_last(event):
                return body
            await self._write(body)
            if self._subscription.ready():
                await asyncio.sleep(0)

    async def _write(self, body: bytes) -> None:
        assert self._raw is not None
        self._writing = True
        await self._raw({"type": "http.response.body", "body": body, "more_body": True})
        self._writing = False
        if body:
            self._written_at = self._loop.time()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._interrupt()

    def _interrupt(self) -> None:
        if self._task is not None and not self._interrupted:
            self._interrupted = True
            self._task.cancel()

    # ---- as a connection

    def move(self, reconnect_ms: int) -> None:
        if not self._interrupted:
            # A client that does not read cannot be told, and is not waited for.
            self._reconnect_ms = None if self._writing else reconnect_ms
            self._interrupt()

    def beat(self, now: float) -> None:
        if not self._writing and now - self._written_at >= self._limits.heartbeat_s:
            self._beating = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        with suppress(OSError):  # the client has gone, which the reader notices
            await self._write(b":\n\n")


def _is_last(event: Event | Ended) -> bool:
    return isinstance(event, Failed | Ended)


def event_bytes(event: Event | Ended) -> bytes:
    """Encodes an event."""
    match event:
        case Latest():
            return event.write_sse()
        case Begun():
            missing = missing_of(event.missing)
            begun = {"topic": event.topic, "cursor": event.cursor, "recovered": event.recovered, "missing": missing}
            return _named("subscribed", begun, event.cursor)
        case Lost():
            missing = missing_of(event.missing)
            lost = {"topic": event.topic, "count": event.count, "missing": missing, "cursor": event.cursor}
            return _named("lost", lost, event.cursor)
        case Failed():
            return _named("error", problem_of(event).document())
        case Ended():
            return _named("end", {"reason": "replayed", "cursor": event.cursor})
        case _:
            return event.sse()


def _named(name: str, fields: Mapping[str, Any], cursor: str = "") -> bytes:
    id_ = f"id: {cursor}\n" if cursor else ""
    return f"event: {name}\n{id_}data: ".encode() + frames.encode(fields) + b"\n\n"
