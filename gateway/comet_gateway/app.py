"""The application: routes, what surrounds them, and what lives as long as they do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from importlib.util import find_spec

from fastapi import FastAPI, Request
from fastapi.responses import Response

import comet
from comet.errors import CometError
from comet_gateway.backend import Backend
from comet_gateway.config import GatewayConfig
from comet_gateway.problems import Problem
from comet_gateway.routes import brokers, fetch, groups, leases, produce, topics


def create_app(config: GatewayConfig | None = None) -> FastAPI:
    """A gateway as an ASGI application, to be served, or mounted in one of your own.

    Routes find what they need at `request.app.state`: `config`, and while the lifespan lasts `backend` and `hub`.
    """
    config = config or GatewayConfig()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            backend = app.state.backend = await stack.enter_async_context(Backend(config))
            if find_spec("comet_gateway.push.hub"):
                hub = app.state.hub = import_module("comet_gateway.push.hub").Hub(config, backend)
                stack.push_async_callback(hub.close)
            yield

    app = FastAPI(title="Comet", version=comet.__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.config = config
    app.state.draining = asyncio.Event()  # set when the gateway is about to stop
    for routes in (produce, fetch, leases, groups, topics, brokers):
        app.include_router(routes.router)
    if find_spec("comet_gateway.routes.push"):
        app.include_router(import_module("comet_gateway.routes.push").router)

    @app.exception_handler(CometError)
    async def refused(request: Request, error: CometError) -> Response:  # noqa: ARG001 - what FastAPI calls it with
        problem = Problem.of(error)
        return Response(problem.body(), problem.kind.status, problem.headers())

    @app.exception_handler(Problem)
    async def wrong(request: Request, problem: Problem) -> Response:  # noqa: ARG001
        return Response(problem.body(), problem.kind.status, problem.headers())

    return app
