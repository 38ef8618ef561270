"""Raw routes: the endpoint gets the request and sends the answer itself, for frequent requests and streams.

They skip FastAPI's work around an endpoint. For the OpenAPI, `openapi_extra`, `responses` and the parameters of `query`
describe them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

Answer = Callable[[Send], Awaitable[None]]  # sends an answer
Endpoint = Callable[[Request], Awaitable[Answer]]


class RawRoute(APIRoute):
    """A route whose endpoint takes only the Request and returns a function that sends the answer."""

    def __init__(self, path: str, endpoint: Endpoint, **settings: Any) -> None:
        super().__init__(path, endpoint, **{**settings, "response_model": None})  # the endpoint returns no document
        self.app = _application(endpoint)


def _application(endpoint: Endpoint) -> ASGIApp:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        answer = await endpoint(Request(scope, receive, send))
        await answer(send)

    return application


class Reply:
    """A complete answer."""

    __slots__ = ("_body", "_headers", "_status")

    def __init__(
        self,
        body: bytes,
        *,
        status: int = 200,
        kind: bytes = b"application/json",
        headers: Mapping[str, str] | None = None,
        cache: bytes = b"no-store",
    ) -> None:
        self._body = body
        self._status = status
        self._headers = [
            (b"content-type", kind), (b"cache-control", cache), (b"content-length", b"%d" % len(body)),
        ]  # fmt: skip
        if headers is not None:
            self._headers += [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self._status, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._body})


def query(name: str, about: str, schema: Mapping[str, Any], *, example: Any = None) -> dict[str, Any]:
    """A parameter of the query, for `openapi_extra`."""
    found = {"name": name, "in": "query", "required": False, "description": about, "schema": dict(schema)}
    if example is not None:
        found["example"] = example
    return found


def path(name: str, about: str, schema: Mapping[str, Any], *, example: Any) -> dict[str, Any]:
    """A parameter of the path, for `openapi_extra`."""
    return {
        "name": name, "in": "path", "required": True, "description": about, "schema": dict(schema), "example": example,
    }  # fmt: skip
