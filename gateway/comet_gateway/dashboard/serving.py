"""Responses of the dashboard: HTML, CSV, static files, error pages."""

from __future__ import annotations

import asyncio
import gzip
import logging
import time
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Final

import jinja2
import msgspec
import zstandard
from starlette.types import Scope

from comet.admin.acts import dialogs
from comet_gateway.config import GatewayConfig
from comet_gateway.dashboard.facts import LOADERS
from comet_gateway.dashboard.page_request import address
from comet_gateway.dashboard.sources import Sources
from comet_gateway.http import compression, sessions
from comet_gateway.http.auth import ANONYMOUS, Principal
from comet_gateway.http.cluster_links import cluster_links
from comet_gateway.http.error_response import HTML
from comet_gateway.http.problems import Problem
from comet_gateway.http.raw_route import Reply
from comet_gateway.records import csv
from comet_web import render
from comet_web.components.navigation import NAV
from comet_web.document import Document
from comet_web.page_request import PageRequest
from comet_web.pages import Page

log = logging.getLogger(__name__)

LOAD_S: Final = 10.0  # for the facts of a page
_FOR_EVER: Final = b"public, max-age=31536000, immutable"
_ACTS: Final = msgspec.json.encode(dict(dialogs())).decode()  # texts and calls of the dialogs
_ERROR: Final = Page("error", "/", "error.html", "nothing", lambda _, page: Document(page.now_us, ""), interval_s=0)
_API: Final = Page(
    "api", "/docs", "api.html", "nothing", lambda _, page: Document(page.now_us, "API"), nav="api", interval_s=0
)


async def document(sources: Sources, page: Page, request: PageRequest) -> Document:
    """The current document of a page. Raises Problem, CometError."""
    try:
        async with asyncio.timeout(LOAD_S):
            facts = await LOADERS[page.facts](sources, request)
    except TimeoutError:
        raise Problem("TIMEOUT", f"the data of this page did not arrive within {LOAD_S:.0f} s") from None
    return page.view(facts, request)


async def html(scope: Scope, sources: Sources, page: Page, request: PageRequest) -> Reply:
    shown = await document(sources, page, replace(request, first=True))
    text = render.page(page.template, doc=shown, page=page, request=request, **_around(scope, sources, page, request))
    return Reply(text.encode(), kind=HTML)


async def as_csv(sources: Sources, page: Page, request: PageRequest) -> Reply:
    """The whole main table as CSV, filtered and sorted."""
    shown = await document(sources, page, request)
    table = shown.tables[page.main]
    if table.problem:
        raise Problem("VALIDATION", f"filter: {table.problem}")
    name = "-".join([page.name, *request.params.values()])
    plain = "".join(
        character if character.isascii() and (character.isalnum() or character in "._-") else "_" for character in name
    )
    headers = {"content-disposition": f'attachment; filename="{plain}.csv"'}
    return Reply(csv.encoded(table), kind=csv.CONTENT_TYPE, headers=headers)


def _around(scope: Scope, sources: Sources | None, page: Page, request: PageRequest) -> dict[str, Any]:
    """The context of templates, beside the document."""
    root = scope.get("root_path", "")
    config: GatewayConfig = scope["app"].state.config
    return {
        "root": root,
        "static": f"{root}/static/{render.version()}",
        "cluster_name": (config.cluster_name or sources.sampler.name) if sources is not None else "",
        "clusters": cluster_links(config.clusters, config.cluster_name),
        "nav": NAV,
        "csrf": sessions.csrf(scope),
        "acts": _ACTS,
        "csv": f"{root}{address(page.csv, request.params)}" if page.csv else "",  # without the query
    }


def api_page(scope: Scope, principal: Principal) -> bytes:
    """The API's page in the frame of the dashboard. It needs no login: its user may be anyone."""
    state = scope["app"].state
    request = PageRequest(
        path=_API.path,
        now_us=time.time_ns() // 1_000,
        principal=principal.name,
        role=int(principal.role),
        open=state.gatekeeper.open,
    )
    around = _around(scope, getattr(state, "sources", None), _API, request)
    return render.page(_API.template, doc=_API.view(None, request), page=_API, request=request, **around).encode()


# ---- errors


def wants_html(scope: Scope) -> bool:
    """Whether a browser requests a page, not the API."""
    accept: bytes = scope["comet.headers"].get(b"accept", b"")
    return b"text/html" in accept and not scope["path"].removeprefix(scope.get("root_path", "")).startswith("/v1/")


def error_page(scope: Scope, problem: Problem) -> bytes | None:
    """The HTML page for a problem; None: a problem document is used."""
    if not wants_html(scope):
        return None
    state = scope["app"].state
    principal: Principal = scope.get("comet.principal", ANONYMOUS)
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    request = PageRequest(
        path=path,
        now_us=time.time_ns() // 1_000,
        principal=principal.name,
        role=int(principal.role),
        open=state.gatekeeper.open,
    )
    try:
        text = render.page(
            _ERROR.template,
            doc=Document(request.now_us, problem.kind.title),
            page=_ERROR,
            request=request,
            problem={"hint": "", "retry_after_ms": 0, **problem.document(scope["comet.request_id"])},
            **_around(scope, getattr(state, "sources", None), _ERROR, request),
        )
    except jinja2.TemplateError:
        log.exception("the error page cannot be built")
        return None
    return text.encode()


# ---- files


class Files:
    """Static files, compressed once and cached: they are few and small."""

    def __init__(self) -> None:
        self._packed: dict[tuple[str, bytes], bytes] = {}

    def answer(self, version: str, path: str, accepts: bytes | None) -> Reply:
        """Raises NOT_FOUND."""
        body = render.static().get(path)
        if body is None:
            raise Problem("NOT_FOUND", f"file {path[:200]!r} does not exist")
        kind = render.CONTENT_TYPES[PurePosixPath(path).suffix].encode()
        headers = {"vary": "accept-encoding"}
        # A page of another version works with these files; they must not be cached under that address.
        cache = _FOR_EVER if version == render.version() else b"no-cache"
        encoding = None if accepts is None else compression.chosen(accepts)
        if encoding is not None and compression.worthwhile(kind, len(body)):
            body = self._compressed(path, body, encoding)
            headers["content-encoding"] = encoding.decode()
        return Reply(body, kind=kind, headers=headers, cache=cache)

    def _compressed(self, path: str, body: bytes, encoding: bytes) -> bytes:
        packed = self._packed.get((path, encoding))
        if packed is None:
            small = zstandard.ZstdCompressor(level=19).compress if encoding == b"zstd" else gzip.compress
            packed = self._packed[path, encoding] = small(body)
        return packed
