"""An OpenTelemetry collector for tests: takes spans by OTLP over HTTP, and keeps them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class CollectedSpan(NamedTuple):
    """A span as it came."""

    service: str
    name: str
    kind: str
    id: str
    trace: str
    parent: str  # the id of its parent; empty: it has none
    links: tuple[str, ...]  # the ids of spans
    attributes: dict[str, Any]
    failed: bool


class Collector:
    """Owned by a test. Its server runs on a thread of its own."""

    def __init__(self, url: str) -> None:
        self.url = url  # where exporters send spans
        self._lock = threading.Lock()
        self._spans: list[CollectedSpan] = []

    @property
    def spans(self) -> list[CollectedSpan]:
        with self._lock:
            return list(self._spans)

    def take(self, request: ExportTraceServiceRequest) -> None:
        found = [
            _span(_attributes(resource.resource.attributes).get("service.name", ""), span)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self._spans += found


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector that ends with the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collected.take(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        collected = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
        thread = threading.Thread(target=server.serve_forever, name="collector")
        thread.start()
        try:
            yield collected
        finally:
            server.shutdown()
            thread.join()


def _span(service: str, span: Span) -> CollectedSpan:
    kind = Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_")
    links = tuple(link.span_id.hex() for link in span.links)
    return CollectedSpan(
        service, span.name, kind, span.span_id.hex(), span.trace_id.hex(), span.parent_span_id.hex(), links,
        _attributes(span.attributes), span.status.code == 2,
    )  # fmt: skip


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    name = value.WhichOneof("value")
    return None if name is None else getattr(value, name)
