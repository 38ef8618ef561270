"""Routes of the dashboard: pages as HTML and CSV, the command palette, static files. The OpenAPI leaves them out."""

from __future__ import annotations

from fastapi import APIRouter, Request

from comet_gateway.dashboard import palette_entries, serving
from comet_gateway.dashboard.page_request import page_request_of
from comet_gateway.dashboard.palette_entries import PALETTE
from comet_gateway.http.raw_route import Answer, Endpoint, RawRoute, Reply
from comet_web.pages import PAGES, Page

router = APIRouter()


def _page(page: Page) -> Endpoint:
    async def endpoint(request: Request) -> Answer:
        state, principal = request.app.state, request.scope["comet.principal"]
        query = request.scope["query_string"].decode("latin-1")
        found = page_request_of(page, request.path_params, query, principal, is_open=state.gatekeeper.open)
        return await serving.html(request.scope, state.sources, page, found)

    return endpoint


def _csv(page: Page) -> Endpoint:
    async def endpoint(request: Request) -> Answer:
        state, principal = request.app.state, request.scope["comet.principal"]
        query = request.scope["query_string"].decode("latin-1")
        found = page_request_of(page, request.path_params, query, principal, is_open=state.gatekeeper.open, whole=True)
        return await serving.as_csv(state.sources, page, found)

    return endpoint


async def palette(request: Request) -> Answer:
    """Serves the entries of the command palette for a query."""
    state, principal = request.app.state, request.scope["comet.principal"]
    query = request.scope["query_string"].decode("latin-1")
    found = page_request_of(PALETTE, {}, query, principal, is_open=state.gatekeeper.open)
    return Reply(await palette_entries.answer(state.sources, found))


_files = serving.Files()


async def static(request: Request) -> Answer:
    """Serves a static file of the pages."""
    version, path = request.path_params["version"], request.path_params["path"]
    return _files.answer(version, path, request.scope["comet.headers"].get(b"accept-encoding"))


def _add(path: str, endpoint: Endpoint, name: str) -> None:
    router.routes.append(RawRoute(path, endpoint, methods=["GET"], name=name, include_in_schema=False))


for _one in PAGES:
    if _one.csv:
        _add(_one.csv, _csv(_one), f"{_one.name} as CSV")
for _one in PAGES:
    _add(_one.path, _page(_one), f"page {_one.name}")
_add(PALETTE.path, palette, "palette")
_add("/static/{version}/{path:path}", static, "static")
