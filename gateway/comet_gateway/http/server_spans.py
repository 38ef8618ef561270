"""Spans of HTTP requests, and the trace context that a request gives to the records that it writes.

    OpenTelemetry is configured     a SERVER span for each request; the producer's `send` spans are its children, and
                                    their context goes into the records
    it is not                       the context of the request goes into its records, as it came

Spans have the stable conventions of HTTP. They name no query, which may hold a token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from starlette.types import Message, Receive, Scope, Send

from comet.tracing.headers import recorded_context
from comet.tracing.options import Tracing, chosen

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

Pairs = list[tuple[str, bytes]]

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SERVER_ERROR: Final = 500


def creation_context(scope: Scope) -> Pairs:
    """The headers that the records of a request get; none if it is in no recorded trace, or if its own span is
    recording: then the producer adds those of its spans."""
    headers: dict[bytes, bytes] = scope["comet.headers"]
    traceparent = headers.get(b"traceparent")
    if traceparent is None or "comet.span" in scope:
        return []
    return recorded_context(traceparent, headers.get(b"tracestate"))


def server_spans(tracing: Tracing | bool = True) -> ServerSpans | None:
    """The spans of a gateway; None if no tracer provider is set."""
    options = chosen(tracing)
    if options is None:
        return None
    from comet.tracing.spans import tracer_of

    tracer = tracer_of(options)
    return None if tracer is None else ServerSpans(tracer)


class ServerSpans:
    """Makes the spans of requests. Owned by the outermost middleware."""

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()

    async def around(
        self, call: Callable[[Scope, Receive, Send], Awaitable[None]], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answers a request within its span; within that of another instrumentation, if it has made one."""
        if self._trace.get_current_span().is_recording():
            scope["comet.span"] = True
            await call(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        span = self._tracer.start_span(
            method, self._parent(scope), self._trace.SpanKind.SERVER, _attributes(scope, method)
        )
        if span.is_recording():
            scope["comet.span"] = True
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with self._trace.use_span(span, end_on_exit=True):
            await call(scope, receive, answer)
            route = scope.get("route")
            if route is not None:
                span.update_name(f"{method} {route.path_format}")
                span.set_attribute("http.route", route.path_format)
            if status:
                span.set_attribute("http.response.status_code", status)
            if not status or status >= _SERVER_ERROR:
                span.set_attribute("error.type", str(status) if status else "no_answer")
                span.set_status(self._trace.StatusCode.ERROR)

    def _parent(self, scope: Scope) -> Context:
        names = (b"traceparent", b"tracestate")
        carrier = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in names}
        return self._propagator.extract(carrier)


def _attributes(scope: Scope, method: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "http.request.method": method,
        "url.path": scope["path"],
        "url.scheme": scope["scheme"],
        "network.protocol.version": scope["http_version"],
    }
    if scope.get("server"):
        found |= {"server.address": scope["server"][0], "server.port": scope["server"][1] or 0}
    return found
