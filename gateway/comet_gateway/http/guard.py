"""Admission to each route, after routing: authentication, the required role, room, and a body that the route can take.

Nothing is counted before the sender is known.

A client authenticates in one of two ways. A token is enough: no browser sends one by itself. A session's cookie is
valid for requests of our own pages, and a change needs the session's CSRF token, too. Both at once are ambiguous, so
they are refused. Without either, a page redirects to the login, and other routes answer 401.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from typing import Final

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from comet_gateway.config import Limits
from comet_gateway.http import login_redirect, sessions
from comet_gateway.http.auth import (
    ANONYMOUS,
    AUDITED_READS,
    ROLES,
    UNAUDITED,
    AuthenticatedConnection,
    Gatekeeper,
    Principal,
    Role,
    bearer,
    is_jwt,
)
from comet_gateway.http.incoming_body import IncomingBody
from comet_gateway.http.needs import NEEDS, named
from comet_gateway.http.origins import PAGE_HEADERS, SAFE_METHODS, HeaderPairs, Security
from comet_gateway.http.problems import Problem
from comet_gateway.http.sessions import CSRF_HEADER, Visit
from comet_gateway.http.shares import client_address, holder_of
from comet_gateway.http.topic_roles import require_topic
from comet_gateway.http.traffic import Traffic

audit = logging.getLogger("comet_gateway.audit")

STREAMS: Final = frozenset({"/v1/topics/{topic}/stream"})  # answers without an end
WATCHING: Final = frozenset({"/livez", "/readyz", "/metrics"})  # answered by an overloaded gateway, too
JSON: Final = (b"application/json", b"application/merge-patch+json")


class Admission:
    """Wraps each route of an application in its checks. One for an application."""

    def __init__(self, gatekeeper: Gatekeeper, security: Security, traffic: Traffic, limits: Limits) -> None:
        self._gatekeeper = gatekeeper
        self._security = security
        self._traffic = traffic
        self._limits = limits

    def guard(self, route: BaseRoute) -> BaseRoute:
        """A copy of the route with the checks. The original may belong to other applications, too."""
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
            raise TypeError(f"{route} has no admission check")
        return guarded

    def _http(self, app: ASGIApp, roles: dict[str, Role], template: str, *, document: bool) -> ASGIApp:
        stays, watching, is_page = template in STREAMS, template in WATCHING, _is_page(template)
        traffic, limits = self._traffic, self._limits
        needs = {method: NEEDS.get(("GET" if method == "HEAD" else method, template)) for method in roles}
        audited = {method for method in roles if _is_audited(method, template)}

        async def door(scope: Scope, receive: Receive, send: Send) -> None:
            method = scope["method"]
            try:
                await self._let_in(scope, roles[method], method)
            except Problem as problem:
                if not is_page or problem.code != "UNAUTHENTICATED" or b"authorization" in scope["comet.headers"]:
                    raise
                await login_redirect.lead_to_login(scope, send)
                return
            await _check_needs(scope, needs[method])
            if is_page or "comet.session" in scope:
                send = _with([*(PAGE_HEADERS if is_page else ()), *self._renewal(scope)], send)
            if stays:
                await self._stream(app, scope, receive, send)
                return
            if not watching:
                traffic.begin()
            body = None
            try:
                if method != "GET":
                    body = scope["comet.body"] = IncomingBody(scope, receive, traffic, limits, document=document)
                    receive = body.receive
                if document:
                    receive = await _document(scope, receive, limits.document_bytes_max)
                if method in audited:
                    await _audited(app, scope, receive, send)
                else:
                    await app(scope, receive, send)
            finally:
                if body is not None:
                    body.close()
                if not watching:
                    traffic.end()

        return door

    async def _stream(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends an answer without an end. It counts as a connection, not as a request."""
        with self._watched(scope):
            holder = holder_of(scope)
            self._traffic.connect(holder, socket=False)
            try:
                await app(scope, receive, send)
            finally:
                self._traffic.disconnect(holder, socket=False)

    def _socket(self, app: ASGIApp, role: Role) -> ASGIApp:
        async def door(scope: Scope, receive: Receive, send: Send) -> None:
            await self._let_in(scope, role, "WS")
            holder = holder_of(scope)
            self._traffic.connect(holder, socket=True)
            try:
                with self._watched(scope) as revoked:
                    await app(scope, receive, _with(more, send) if (more := self._renewal(scope)) else send)
                if revoked():
                    with suppress(OSError, RuntimeError):  # the client left first, as the tab with the logout does
                        await send({"type": "websocket.close", "code": 1008, "reason": "UNAUTHENTICATED"})
            finally:
                self._traffic.disconnect(holder, socket=True)

        return door

    @contextmanager
    def _watched(self, scope: Scope) -> Iterator[Callable[[], bool]]:
        """Ends a long-lived connection with its token or session; yields a function that says whether that happened."""
        keeper = self._gatekeeper
        if keeper.open:
            yield lambda: False
            return
        connection = _connection(scope)
        keeper.add(connection)
        visit: Visit | None = scope.get("comet.session")
        timer = None
        end_s = scope.get("comet.token_end_s") if visit is None else visit.session.ends_s
        if end_s is not None:
            left = max(0.0, end_s - keeper.wall())
            timer = asyncio.get_running_loop().call_later(left, connection.end)
        try:
            yield lambda: connection.over
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not connection.over or task is None or task.uncancel():
                raise  # the gateway is stopping
        finally:
            if timer is not None:
                timer.cancel()
            keeper.remove(connection)

    async def _let_in(self, scope: Scope, role: Role, method: str) -> None:
        """Authenticates and authorizes. Raises UNAUTHENTICATED, FORBIDDEN, STALE_PAGE; PROVIDER_UNAVAILABLE."""
        scope["comet.principal"] = ANONYMOUS
        if role is Role.ANYONE:
            return
        keeper, headers = self._gatekeeper, scope["comet.headers"]
        if not keeper.open and (cookie := sessions.cookie(headers, tls=_is_tls(scope))) is not None:
            if bearer(headers, scope.get("subprotocols")) is not None:
                raise Problem("INVALID_ARGUMENT", "the request has a token and a session cookie: send only one")
            principal = self._visitor(scope, cookie, method)
        else:
            token = None if keeper.open else bearer(headers, scope.get("subprotocols"))
            if token is not None and keeper.user_of_token is not None and is_jwt(token):
                principal, scope["comet.token_end_s"] = await keeper.user(client_address(scope), token)
            else:
                principal = keeper.principal(client_address(scope), token)
        if principal is ANONYMOUS:
            raise Problem("UNAUTHENTICATED", "a token is required")
        scope["comet.principal"] = principal  # before the role check: the page for 403 shows the name
        principal.require(role)
        require_topic(principal, scope.get("path_params", {}).get("topic"))

    def _visitor(self, scope: Scope, cookie: str, method: str) -> Principal:
        """The owner of the session."""
        headers = scope["comet.headers"]
        if not self._security.own(method, headers, scope["scheme"]):
            return ANONYMOUS
        found = self._gatekeeper.visit(cookie)
        if found is None:
            raise Problem("UNAUTHENTICATED", "the session is over", hint="Log in again.")
        visit, principal = found
        if (
            method not in SAFE_METHODS
            and method != "WS"
            and not visit.shows(headers.get(CSRF_HEADER, b"").decode("latin-1"))
        ):
            raise Problem("STALE_PAGE", "a change in a session needs the x-comet-csrf of its own page")
        scope["comet.session"] = visit
        return principal

    def _renewal(self, scope: Scope) -> HeaderPairs:
        """A new cookie, now and then, for a session in use."""
        visit: Visit | None = scope.get("comet.session")
        if visit is None:
            return []
        now_s = self._gatekeeper.wall()
        session = sessions.renewed(visit.session, now_s)
        if session is None:
            return []
        return [(b"set-cookie", sessions.session_cookie(Visit(session, visit.key), now_s, tls=_is_tls(scope)))]


async def _check_needs(scope: Scope, needs: tuple[str, ...] | None) -> None:
    """Checks what brokers allow the user. Raises the Problem of the error with which they would refuse it."""
    users = scope["app"].state.users
    if needs and users.enabled:
        await users.check(scope["comet.principal"], named(needs, scope["path_params"]))
    elif needs is None and users.enabled:
        raise Problem("FORBIDDEN", "this route has no place in the table of what users need")


def _connection(scope: Scope) -> AuthenticatedConnection:
    visit: Visit | None = scope.get("comet.session")
    if visit is not None:
        name, key = visit.session.name, visit.key
        if visit.session.role:  # a user's session: the tokens file does not matter
            return AuthenticatedConnection(lambda _: True, visit.session.id)
        return AuthenticatedConnection(lambda tokens: tokens.key_of(name) == key, visit.session.id)
    if "comet.token_end_s" in scope:  # of a user: it ends with its time
        return AuthenticatedConnection(lambda _: True)
    token, principal = bearer(scope["comet.headers"], scope.get("subprotocols")) or "", scope["comet.principal"]
    return AuthenticatedConnection(lambda tokens: tokens.principal_of(token) == principal)


def _with(headers: HeaderPairs, send: Send) -> Send:
    """Adds headers to the answer, or to the WebSocket when it is accepted."""

    async def sending(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.accept"):
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return sending


def _is_page(template: str) -> bool:
    """Whether the route is a page of the dashboard: it requires a role and is not part of the API."""
    return not template.startswith("/v1/") and template != "/metrics"


def _is_audited(method: str, template: str) -> bool:
    if method in ("GET", "HEAD"):
        return ("GET", template) in AUDITED_READS
    return (method, template) not in UNAUDITED


def _is_tls(scope: Scope) -> bool:
    return scope["scheme"] in ("https", "wss")


def _role(method: str, template: str) -> Role:
    """The required role; ADMIN for a route that is missing in the table, which a test finds."""
    return ROLES.get((method, template), Role.ADMIN)


async def _document(scope: Scope, receive: Receive, bytes_max: int) -> Receive:
    """Reads the small JSON document of a request, so that its size is bounded before the route."""
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
    """A receive that returns the one message, then those of `then`; without `then` the same again."""
    given = False

    async def receive() -> Message:
        nonlocal given
        if given and then is not None:
            return await then()
        given = True
        return first

    return receive


async def _audited(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Writes the audit log: user, change, and result, also of refused changes."""
    status = 0

    async def noting(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            if status < 400 and (sources := getattr(scope["app"].state, "sources", None)) is not None:
                sources.renew()  # the next view shows the change
        await send(message)

    try:
        await app(scope, receive, noting)
    except Problem as problem:
        status = problem.kind.status
        raise
    except ClientDisconnect:
        raise  # status 0, unless the answer has begun
    except Exception:
        status = 500
        raise
    finally:
        principal: Principal = scope["comet.principal"]  # only after the login has authenticated
        row = {
            "principal": principal.name,
            "role": principal.role.name.lower(),
            "via": _via(scope, principal),
            "from": client_address(scope),
            "method": scope["method"],
            "path": scope["path"],
            # that of a read is the answer of an identity provider: it holds a code
            "query": "" if scope["method"] in SAFE_METHODS else scope["query_string"].decode("latin-1"),
            "status": status,
            "request_id": scope["comet.request_id"],
        }
        audit.info("%s", json.dumps(row))


def _via(scope: Scope, principal: Principal) -> str:
    if "comet.session" in scope:
        return "session"
    return "token" if b"authorization" in scope["comet.headers"] and principal is not ANONYMOUS else "nothing"
