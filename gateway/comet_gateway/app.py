"""The ASGI application: routes, middleware, and the objects that live as long as the application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

import comet
from comet.errors import InvalidArgument
from comet.settings.hosts import is_loopback
from comet_gateway import openapi
from comet_gateway.alerts.senders import senders_of
from comet_gateway.alerts.service import Alerts
from comet_gateway.brokers.backend import Backend
from comet_gateway.brokers.readiness import Readiness
from comet_gateway.brokers.user_access import UserAccess
from comet_gateway.config import GatewayConfig
from comet_gateway.dashboard import diagnostics, login, serving
from comet_gateway.dashboard.sources import Sources
from comet_gateway.dashboard.subscriptions import SubscribableDashboard
from comet_gateway.http import error_handlers
from comet_gateway.http.auth import Gatekeeper
from comet_gateway.http.cluster_links import cluster_links
from comet_gateway.http.guard import Admission
from comet_gateway.http.middleware import Front
from comet_gateway.http.origins import Security
from comet_gateway.http.server_spans import server_spans
from comet_gateway.http.traffic import Traffic
from comet_gateway.metrics import Metrics
from comet_gateway.oidc.api_tokens import ApiTokens
from comet_gateway.oidc.client import oidc_client_of
from comet_gateway.oidc.login_flow import LoginFlow
from comet_gateway.oidc.provider import Provider
from comet_gateway.push.connections import Connections
from comet_gateway.push.hub import Hub
from comet_gateway.routes import (
    acts,
    alerts,
    brokers,
    calendars,
    dashboard,
    dead_letters,
    documentation,
    fetch,
    groups,
    kv,
    operations,
    partitions,
    produce,
    push,
    schedules,
    search,
    share_groups,
    topics,
)
from comet_web import render


class Gateway(FastAPI):
    """FastAPI without its own outer middleware.

    Those layers cost a request more than `Front`, which handles errors, counts, and makes the spans of requests.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        if self.root_path:
            scope["root_path"] = self.root_path
        await Starlette.__call__(self, scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        whole = super().build_middleware_stack()
        outermost: Any = self.user_middleware[0].cls
        inner: Any = whole
        while inner is not None and type(inner) is not outermost:
            inner = getattr(inner, "app", None)
        return inner or whole


def create_app(config: GatewayConfig | None = None) -> FastAPI:
    """Creates a gateway as an ASGI application, to be served, or mounted in an application of your own.

    Routes find what they need at `request.app.state`: `config`, `draining` (an asyncio.Event, set when the gateway is
    about to stop), and while the lifespan lasts `backend`, `hub`, `sources` and `dashboard`.
    """
    config = config or GatewayConfig()
    oidc = oidc_client_of(config)
    if not is_loopback(config.host):
        _refuse_strangers(config)
    app = Gateway(
        title="Comet",
        version=comet.__version__,
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    state = app.state
    state.config = config
    state.draining = asyncio.Event()
    state.security = Security(config)
    cluster_links(config.clusters, config.cluster_name)  # raises InvalidArgument
    state.gatekeeper = Gatekeeper(config.tokens_file, user_key=oidc.key if oidc else None)
    provider = Provider(oidc) if oidc else None
    state.oidc = LoginFlow(oidc, provider) if oidc and provider else None
    if oidc and provider and oidc.audience:
        state.gatekeeper.user_of_token = ApiTokens(oidc, provider).user
    if config.user_rules and state.gatekeeper.open:
        raise InvalidArgument("user_rules needs users that the gateway knows: set tokens_file or oidc_issuer")
    state.users = UserAccess(lambda: state.backend.admin, enabled=config.user_rules)
    state.alert_senders = senders_of(config) if config.alerts else None
    state.traffic = Traffic(config.limits)
    state.readiness = Readiness(state.draining, names_brokers=state.gatekeeper.open)
    state.metrics = Metrics()
    state.metrics.watch("traffic", state.traffic.statistics)
    state.connections = Connections(config.limits, state.draining, state.traffic.turned_away)
    state.error_page = serving.error_page if config.dashboard else None
    state.metrics.watch("push", state.connections.statistics)

    admission = Admission(state.gatekeeper, state.security, state.traffic, config.limits)
    modules: list[Any] = [
        produce, fetch, search, kv, push, share_groups, groups, dead_letters, topics,
        partitions, brokers, alerts, calendars, schedules, operations, documentation,
    ]  # fmt: skip
    if config.dashboard:
        modules += [login, diagnostics, dashboard]
    routes = [route for module in modules for route in module.router.routes]
    routes += acts.routes(written={route.operation_id for route in routes if isinstance(route, APIRoute)})
    # Put in flat: a nested router is matched again at each request.
    app.router.routes += map(admission.guard, routes)
    error_handlers.install(app)
    state.description = openapi.description(app, tokens=not state.gatekeeper.open)
    app.add_middleware(
        Front, security=state.security, metrics=state.metrics, draining=state.draining, spans=server_spans()
    )
    return app


def _refuse_strangers(config: GatewayConfig) -> None:
    """Raises InvalidArgument for a gateway that other machines can reach without a token, or without TLS."""
    reached = f"a gateway that listens on {config.host} can be reached from other machines"
    if not config.tokens_file and not config.oidc_issuer:
        raise InvalidArgument(
            f"{reached}: set tokens_file or oidc_issuer",
            details={"hint": "make a token: comet gateway token NAME --role admin"},
        )
    if not config.tls_cert and not config.proxies:
        raise InvalidArgument(
            f"{reached}, and tokens would cross the network in the clear: set tls_cert and tls_key",
            details={"hint": "behind a proxy with TLS, set proxies to its address"},
        )


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state = app.state
    async with AsyncExitStack() as stack:
        backend = state.backend = await stack.enter_async_context(Backend(state.config))
        await stack.enter_async_context(state.users)
        hub = state.hub = Hub(state.config, backend)
        stack.push_async_callback(hub.close)
        state.metrics.watch("hub", hub.statistics)
        state.sources = Sources(
            state.config,
            backend,
            hub,
            gatekeeper=state.gatekeeper,
            traffic=state.traffic,
            metrics=state.metrics,
        )
        stack.push_async_callback(state.sources.close)
        state.metrics.watch("dashboard", state.sources.statistics)
        state.alerts = state.sources.alerts = _alerts(state)
        if state.alerts is not None:
            await stack.enter_async_context(state.alerts)
            state.metrics.watch("alerts", state.alerts.statistics)
        state.dashboard = SubscribableDashboard(state.sources, is_open=state.gatekeeper.open)
        if state.config.dashboard:
            await asyncio.to_thread(render.environment)
        if state.oidc is not None:
            stack.push_async_callback(state.oidc.close)
        state.readiness.backend = backend
        stack.push_async_callback(state.readiness.close)
        yield


def _alerts(state: Any) -> Alerts | None:
    if state.alert_senders is None:
        return None
    backend, sampler = state.backend, state.sources.sampler
    producer = backend.producers[comet.Acks.ALL]
    return Alerts(backend.bootstrap, backend.admin, producer, state.hub, sampler.cluster, state.alert_senders)
