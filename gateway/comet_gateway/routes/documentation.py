"""Routes of the API's documentation: OpenAPI document and Swagger UI, all served from here."""

from __future__ import annotations

import asyncio
from functools import cache
from importlib.resources import files
from typing import Final, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.types import Scope

from comet_gateway.dashboard import serving
from comet_gateway.http import sessions
from comet_gateway.http.auth import ANONYMOUS, UNRESTRICTED, Principal
from comet_gateway.http.problems import Problem

router = APIRouter(include_in_schema=False)

_A_DAY: Final = {"cache-control": "public, max-age=86400"}
# Files of the page: location and type. Swagger UI comes with fastapi-offline.
FILES: Final = {
    "docs.js": ("comet_gateway", "pages/docs.js", "text/javascript"),
    "swagger-ui-bundle.js": ("fastapi_offline", "static/swagger-ui-bundle.js", "text/javascript"),
    "swagger-ui.css": ("fastapi_offline", "static/swagger-ui.css", "text/css"),
    "favicon.png": ("fastapi_offline", "static/favicon.png", "image/png"),
}


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """Gets the OpenAPI 3.1 document."""
    body = request.app.state.description(request.scope.get("root_path", ""))
    return Response(body, media_type="application/json", headers={"cache-control": "no-cache"})


@router.get("/docs")
async def page(request: Request) -> Response:
    """Gets the page of the API."""
    _check(request)
    if request.app.state.config.dashboard:
        body = serving.api_page(request.scope, _reader(request.scope))
    else:
        body = await asyncio.to_thread(_read, "comet_gateway", "pages/docs.html")
    return Response(body, media_type="text/html", headers={"cache-control": "no-cache"})


@router.get("/docs/{file}")
async def part(request: Request, file: str) -> Response:
    """Gets a file of the page."""
    _check(request)
    if file not in FILES:
        raise Problem("NOT_FOUND", f"the page has no file {file}")
    package, path, kind = FILES[file]
    return Response(await asyncio.to_thread(_read, package, path), media_type=kind, headers=_A_DAY)


def _reader(scope: Scope) -> Principal:
    """The user in front of the page, which needs no login: the frame has the entries of that user's role."""
    state = scope["app"].state
    if state.gatekeeper.open:
        return UNRESTRICTED
    headers = scope["comet.headers"]
    cookie = sessions.cookie(headers, tls=scope["scheme"] == "https")
    if cookie is None or not state.security.own("GET", headers, scope["scheme"]):
        return ANONYMOUS
    found = state.gatekeeper.visit(cookie)
    if found is None:
        return ANONYMOUS
    scope["comet.session"], principal = found
    return cast(Principal, principal)


def _check(request: Request) -> None:
    if not request.app.state.config.docs:
        raise Problem(
            "NOT_FOUND", "the page of the API is disabled on this gateway", hint="The document is at /openapi.json."
        )


@cache
def _read(package: str, path: str) -> bytes:
    return files(package).joinpath(path).read_bytes()
