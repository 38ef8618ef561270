"""The trace context of requests: in the records that they write, and in spans of the gateway."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, format_trace_id, get_current_span

from comet_gateway.http.server_spans import creation_context, server_spans
from comet_gateway.schemas.records import Columns
from tests.unit.test_tracing import PARENT, TRACE, UNSAMPLED, Recorded, attributes

PLAIN = [("traceparent", PARENT)]


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def request(method: str = "POST", **headers: bytes) -> dict[str, Any]:
    pairs = [(name.encode(), value) for name, value in headers.items()]
    return {
        "type": "http",
        "method": method,
        "path": "/v1/topics/quotes/records",
        "query_string": b"token=secret",
        "scheme": "http",
        "http_version": "1.1",
        "server": ("127.0.0.1", 8080),
        "headers": pairs,
        "comet.headers": dict(pairs),
    }


class Route:
    path_format = "/v1/topics/{topic}/records"


async def serve(recorded: Recorded, scope: dict[str, Any], status: int, answered: list[Any] | None = None) -> None:
    """Answers a request as the gateway's routes do."""
    spans = server_spans(recorded.options())
    assert spans is not None

    async def routes(scope: Any, _receive: Any, send: Any) -> None:
        scope["route"] = Route()
        if status:
            await send({"type": "http.response.start", "status": status})

    async def send(message: Any) -> None:
        if answered is not None:
            answered.append(message)

    async def receive() -> Any: ...

    await spans.around(routes, scope, receive, send)


def test_a_recorded_context_goes_into_the_records() -> None:
    assert creation_context(request(traceparent=PARENT)) == PLAIN
    assert creation_context(request(traceparent=PARENT, tracestate=b"a=b")) == [*PLAIN, ("tracestate", b"a=b")]


@pytest.mark.parametrize("wrong", [UNSAMPLED, b"", b"x" * 10_000, b"\xff" * 55])
def test_another_context_does_not(wrong: bytes) -> None:
    assert creation_context(request(traceparent=wrong)) == []
    assert creation_context(request()) == []


def test_a_record_keeps_the_context_that_it_has() -> None:
    own = [("traceparent", UNSAMPLED)]
    columns = Columns([b"1", b"2", b"3"], headers=[[], own, [("a", b"b")]])
    columns.add_context(PLAIN)
    assert columns.headers == [PLAIN, own, [("a", b"b"), *PLAIN]]
    columns = Columns([b"1", b"2"])
    columns.add_context(PLAIN)
    assert columns.headers == [PLAIN, PLAIN]


async def test_a_request_is_a_span_in_the_trace_of_its_client(recorded: Recorded) -> None:
    scope, answered = request(traceparent=PARENT), list[Any]()
    await serve(recorded, scope, 200, answered)
    span = recorded.only("POST /v1/topics/{topic}/records")
    assert span.kind is SpanKind.SERVER and span.status.status_code is StatusCode.UNSET
    assert span.parent is not None and format_trace_id(span.parent.trace_id) == TRACE
    assert attributes(span) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/v1/topics/{topic}/records",
        "network.protocol.version": "1.1",
        "server.address": "127.0.0.1",
        "server.port": 8080,
        "url.path": "/v1/topics/quotes/records",
        "url.scheme": "http",
    }
    assert answered == [{"type": "http.response.start", "status": 200}]
    assert not get_current_span().get_span_context().is_valid, "it ends with the request"
    assert creation_context(scope) == [], "the producer's span gives the records their context"


@pytest.mark.parametrize(("status", "kind"), [(500, "500"), (503, "503"), (0, "no_answer")])
async def test_a_failed_request_fails_its_span(recorded: Recorded, status: int, kind: str) -> None:
    await serve(recorded, request(), status)
    (span,) = recorded.spans
    assert attributes(span)["error.type"] == kind and span.status.status_code is StatusCode.ERROR


async def test_an_error_of_the_client_does_not(recorded: Recorded) -> None:
    await serve(recorded, request(method="BREW"), 404)
    (span,) = recorded.spans
    assert span.name == "_OTHER /v1/topics/{topic}/records" and span.status.status_code is StatusCode.UNSET


async def test_a_request_within_a_span_of_another_instrumentation_has_no_second_one(recorded: Recorded) -> None:
    scope = request(traceparent=PARENT)
    with recorded.tracer.start_as_current_span("by another"):
        await serve(recorded, scope, 200)
    assert [span.name for span in recorded.spans] == ["by another"]
    assert creation_context(scope) == []


async def test_the_context_of_a_request_that_is_not_sampled_here_goes_on() -> None:
    off, scope = Recorded(sampler=ALWAYS_OFF), request(traceparent=PARENT)
    await serve(off, scope, 200)
    assert off.spans == [] and creation_context(scope) == PLAIN


def test_a_gateway_without_a_provider_makes_no_spans() -> None:
    assert server_spans() is None
