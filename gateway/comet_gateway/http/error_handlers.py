"""Turns all errors of requests into problem documents: those of routes, and FastAPI's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route

from comet.errors import CometError
from comet_gateway.http.error_response import error_response
from comet_gateway.http.problems import Problem
from comet_gateway.metrics import ENDLESS

FAULTS_MAX: Final = 20  # listed in one answer

_OF_STATUS: Final = {
    400: "MALFORMED_BODY",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    406: "NOT_ACCEPTABLE",
    413: "BODY_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
}


def install(app: FastAPI) -> None:
    """Adds the error handlers to the application."""

    @app.exception_handler(CometError)
    async def refused(request: Request, error: CometError) -> Response:
        return _answer(request, Problem.of(error))

    @app.exception_handler(Problem)
    async def wrong(request: Request, problem: Problem) -> Response:
        return _answer(request, problem)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return _answer(request, _invalid(error.errors()))

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        code = _OF_STATUS.get(error.status_code, "INVALID_ARGUMENT" if error.status_code < 500 else "INTERNAL")
        if code == "METHOD_NOT_ALLOWED":
            allowed = methods(app.router.routes, request)
            problem = Problem(code, f"{request.url.path} takes {', '.join(allowed)}, not {request.method}")
            return _answer(request, problem, {"allow": ", ".join(allowed)})
        detail = f"no route {request.url.path}" if code == "NOT_FOUND" else str(error.detail)
        return _answer(request, Problem(code, detail))


def _answer(request: Request, problem: Problem, headers: dict[str, str] | None = None) -> Response:
    if request.scope["type"] == "websocket":
        raise problem  # `Front` denies the handshake, with the headers of all answers
    body, own = error_response(request.scope, problem)
    return Response(body, problem.kind.status, own | (headers or {}))


def methods(routes: Sequence[BaseRoute], request: Request) -> list[str]:
    """The methods of all routes with that path."""
    found: set[str] = set()
    endless = request.url.path.endswith(ENDLESS)
    for route in routes:
        if isinstance(route, Route) and route.methods and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods
    if "GET" in found and not endless:
        found.add("HEAD")
    return sorted(found)


def _invalid(faults: Sequence[Any]) -> Problem:
    for fault in faults:
        if fault["type"] == "json_invalid":
            at = fault["loc"][-1]
            return Problem("MALFORMED_BODY", f"the body is not JSON: {fault['ctx']['error']} at character {at}")
    rows = [{"field": ".".join(map(str, fault["loc"])), "problem": fault["msg"]} for fault in list(faults)[:FAULTS_MAX]]
    first = rows[0]
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    return Problem("VALIDATION", f"{first['field']}: {first['problem']}{more}", more={"errors": rows})
