"""The response to a failed request: a page for a browser, else a problem document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.types import Scope

from comet_gateway.http.problems import Problem

HTML: Final = b"text/html; charset=utf-8"
# Of a gateway with the dashboard, at `app.state.error_page`. Returns None if the client does not want a page.
ErrorPage = Callable[[Scope, Problem], bytes | None]


def error_response(scope: Scope, problem: Problem) -> tuple[bytes, dict[str, str]]:
    """Body and headers for a problem."""
    headers = problem.headers()
    page: ErrorPage | None = scope["app"].state.error_page if "app" in scope else None
    body = None if page is None else page(scope, problem)
    if body is None:
        return problem.body(scope["comet.request_id"]), headers
    return body, headers | {"content-type": HTML.decode()}
