"""What is asked at the door of each route, once it is known which: the role, and a body that it can take."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import Final

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from comet_gateway.auth import NOBODY, ROLES, UNAUDITED, Gatekeeper, Role, Seat, Who, bearer
from comet_gateway.config import KIB, Limits
from comet_gateway.problems import Problem
from comet_gateway.traffic import Traffic

audit = logging.getLogger("comet_gateway.audit")

SMALL_BYTES: Final = 64 * KIB  # of bodies that are not counted: requests_max of them are bound enough
STREAMS: Final = frozenset({"/v1/topics/{topic}/stream"})  # answers that stay
JSON: Final = (b"application/json", b"application/merge-patch+json")


class Admission:
    """One for an application: puts each of its routes behind a door."""

    def __init__(self, gatekeeper: Gatekeeper, traffic: Traffic, limits: Limits) -> None:
        self._gatekeeper = gatekeeper
        self._traffic = traffic
        self._limits = limits

    def guard(self, route: BaseRoute) -> BaseRoute:
        """A copy of the route that lets in who may. The original may belong to other applications, too."""
        guarded = copy(route)
        if isinstance(guarded, WebSocketRoute):
            guarded.app = self._socket(guarded.app, _role("WS", guarded.path_format))
        elif isinstance(guarded, Route):
            assert guarded.methods, route
            roles = {method: _role(method, guarded.path_format) for method in guarded.methods if method != "HEAD"}
            if "HEAD" in guarded.methods:
                roles["HEAD"] = roles["GET"]
            document = isinstance(guarded, APIRoute) and guarded.body_field is not None
            guarded.app = self._http(guarded.app, roles, guarded.path_format, document=document)
        else:
            raise TypeError(f"{route} has no door")
        return guarded

    def _http(self, app: ASGIApp, roles: dict[str, Role], template: str, *, document: bool) -> ASGIApp:
        stays = template in STREAMS
        traffic, limits = self._traffic, self._limits

        async def door(scope: Scope, receive: Receive, send: Send) -> None:
            method = scope["method"]
            who = self._let_in(scope, roles[method])
            with ExitStack() as stack:
                if stays:
                    stack.enter_context(self._seated(scope, who))
                    client = _client(scope)
                    traffic.connect(client, socket=False)
                    stack.callback(traffic.disconnect, client, socket=False)
                    traffic.end()
                    stack.callback(traffic.resume)
                elif method != "GET" and (held := _held(scope, receive, traffic)):
                    receive = held.receive
                    stack.callback(held.release)
                if document:
                    receive = await _document(scope, receive, limits.document_bytes_max)
                if method in ("GET", "HEAD") or (method, template) in UNAUDITED:
                    await app(scope, receive, send)
                else:
                    await _audited(app, scope, receive, send, who)

        return door

    def _socket(self, app: ASGIApp, role: Role) -> ASGIApp:
        async def door(scope: Scope, receive: Receive, send: Send) -> None:
            who = self._let_in(scope, role)
            client = _client(scope)
            self._traffic.connect(client, socket=True)
            try:
                with self._seated(scope, who) as revoked:
                    await app(scope, receive, send)
                if revoked():
                    await send({"type": "websocket.close", "code": 1008, "reason": "UNAUTHENTICATED"})
            finally:
                self._traffic.disconnect(client, socket=True)

        return door

    @contextmanager
    def _seated(self, scope: Scope, who: Who) -> Iterator[Callable[[], bool]]:
        """A connection that stays is over when its token is; what is yielded says whether that was the end of it."""
        if self._gatekeeper.open:
            yield lambda: False
            return
        seat = Seat(bearer(scope["comet.headers"], scope.get("subprotocols")) or "", who)
        self._gatekeeper.sit(seat)
        try:
            yield lambda: seat.over
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not seat.over or task is None or task.uncancel():
                raise  # the gateway ends, which is another matter
        finally:
            self._gatekeeper.rise(seat)

    def _let_in(self, scope: Scope, role: Role) -> Who:
        if role is Role.ANYONE:
            who = NOBODY
        else:
            token = None if self._gatekeeper.open else bearer(scope["comet.headers"], scope.get("subprotocols"))
            who = self._gatekeeper.who(_client(scope), token)
            if who is NOBODY:
                raise Problem("UNAUTHENTICATED", "this needs a token")
            who.require(role)
        scope["comet.who"] = who
        return who


def _role(method: str, template: str) -> Role:
    """A route that was forgotten in the table is for those who may do anything; a test finds it."""
    return ROLES.get((method, template), Role.ADMIN)


def _client(scope: Scope) -> str:
    """The address it came from."""
    client = scope.get("client")
    return client[0] if client else ""


async def _document(scope: Scope, receive: Receive, bytes_max: int) -> Receive:
    """Reads the JSON document of a request, which is small, so that nobody behind has to bound it."""
    headers = scope["comet.headers"]
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Problem("UNSUPPORTED_MEDIA_TYPE", "this body may not be compressed")
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return _replay(message)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > bytes_max:
            raise Problem("BODY_TOO_LARGE", f"the body has more than {bytes_max} bytes")
        if not message.get("more_body", False):
            break
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if size and kind not in JSON:
        shown = kind.decode("latin-1") or "a body without a Content-Type"
        raise Problem("UNSUPPORTED_MEDIA_TYPE", f"this takes application/json, not {shown}")
    return _replay({"type": "http.request", "body": b"".join(parts), "more_body": False}, receive)


def _replay(first: Message, then: Receive | None = None) -> Receive:
    """Gives the one message, then what `then` gives; without it the same again."""
    given = False

    async def receive() -> Message:
        nonlocal given
        if given and then is not None:
            return await then()
        given = True
        return first

    return receive


class _Held:
    """Counts the bytes of a body that is read as a whole."""

    def __init__(self, receive: Receive, traffic: Traffic) -> None:
        self._receive = receive
        self._traffic = traffic
        self._bytes = 0

    async def receive(self) -> Message:
        message = await self._receive()
        size = len(message.get("body", b""))
        self._traffic.hold(size)
        self._bytes += size
        return message

    def release(self) -> None:
        self._traffic.release(self._bytes)


def _held(scope: Scope, receive: Receive, traffic: Traffic) -> _Held | None:
    headers = scope["comet.headers"]
    length = headers.get(b"content-length")
    if length is not None and int(length) <= SMALL_BYTES:
        return None
    if headers.get(b"content-type", b"").startswith(b"application/x-ndjson"):
        return None  # read line by line and let go; what of it is held is counted there
    return _Held(receive, traffic)


async def _audited(app: ASGIApp, scope: Scope, receive: Receive, send: Send, who: Who) -> None:
    """Writes down who changed what, or tried to, and how it ended."""
    status = 0

    async def noting(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        await send(message)

    try:
        await app(scope, receive, noting)
    except Problem as problem:
        status = problem.kind.status
        raise
    except Exception:
        status = 500
        raise
    finally:
        row = {
            "who": who.name,
            "role": who.role.name.lower(),
            "from": _client(scope),
            "method": scope["method"],
            "path": scope["path"],
            "query": scope["query_string"].decode("latin-1"),
            "status": status,
            "request_id": scope["comet.request_id"],
        }
        audit.info("%s", json.dumps(row))
