"""One trace: a request, the gateway, a topic, a handler, a topic, a handler, a topic, Spark.

Broker, gateways and handlers are processes. A collector gets the spans as OTLP; `tests/golden/trace.json` has them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.propagate import inject
from opentelemetry.trace import SpanKind, format_trace_id
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

import comet
from comet.processes.child import Child, started
from comet.tracing.headers import trace_id_of
from tests.collector import CollectedSpan, Collector, collector
from tests.integration.gateway_tour import Up, up
from tests.spark import traced_program
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

GOLDEN = Path(__file__).parents[1] / "golden/trace.json"
TOPICS = ("quotes", "signals", "bars")
# What is another one in each run.
CHANGING = {"server.port"}
# The attributes that the conventions require of each kind: of messaging, version 1.44, and of HTTP, where they apply.
MESSAGING = {"messaging.system", "messaging.operation.name", "messaging.operation.type", "messaging.destination.name"}
REQUIRED = {
    "PRODUCER": MESSAGING | {"server.address", "server.port", "messaging.destination.partition.id"},
    "CONSUMER": MESSAGING | {"server.address", "server.port", "messaging.consumer.group.name", "messaging.message.id"},
    "SERVER": {"http.request.method", "url.path", "url.scheme", "http.route", "http.response.status_code"},
    "CLIENT": set(),  # of the test
}
OPERATIONS = {"send": "PRODUCER", "process": "CONSUMER", "receive": "CLIENT"}


@contextmanager
def traced(to: Collector, service: str, *words: str) -> Iterator[Child]:
    command = [sys.executable, "-m", traced_program.__name__, to.url, service, *words]
    with started(Child(service, command, piped=True)) as child:
        yield child


@contextmanager
def pipeline(to: Collector) -> Iterator[tuple[Up, str]]:
    """A cluster, two handlers behind each other, and the URL of a gateway that traces."""
    with up() as there, ExitStack() as stack:
        with comet.sync.Admin(there.broker) as admin:
            for topic in TOPICS:
                admin.create_topic(topic)
        for source, target in (("quotes", "signals"), ("signals", "bars")):
            stack.enter_context(traced(to, f"from-{source}", "handler", there.broker, source, target))
        words = ("gateway", "--json", "--port", "0", "--bootstrap", there.broker)
        gateway = stack.enter_context(traced(to, "gateway", *words))
        yield there, json.loads(gateway.line(60))["url"]


def wait_until(holds: Callable[[], bool], *, within_s: float) -> bool:
    return asyncio.run(until(holds, within_s=within_s))


def last_record(there: Up, count: int) -> comet.Record[bytes]:
    """The record at the end of the pipeline, after `count` that were sent into it."""
    with comet.sync.Consumer(there.broker, "bars", start="earliest") as consumer:
        found = [consumer.get(timeout_s=60) for _ in range(count)]
    assert found[-1] is not None, "it did not come"
    return found[-1]


def shown(spans: list[CollectedSpan]) -> list[dict[str, Any]]:
    """Spans as the golden file has them: ids are names of spans."""
    names = {span.id: span.name for span in spans}
    return [
        {
            "service": span.service,
            "name": span.name,
            "kind": span.kind,
            "parent": names.get(span.parent, span.parent),
            "links": [names.get(link, link) for link in span.links],
            "attributes": {name: "…" if name in CHANGING else value for name, value in sorted(span.attributes.items())},
        }
        for span in sorted(spans, key=lambda span: (span.service, span.name))
    ]


def connected(spans: list[CollectedSpan]) -> bool:
    """Whether parents and links lead from each span to each other."""
    neighbours: dict[str, set[str]] = {span.id: set() for span in spans}
    for span in spans:
        for other in (span.parent, *span.links):
            if other:
                neighbours[span.id].add(other)
                neighbours[other].add(span.id)
    reached, left = set[str](), [spans[0].id]
    while left:
        one = left.pop()
        if one not in reached:
            reached.add(one)
            left += neighbours[one]
    return reached == neighbours.keys()


def test_a_request_is_one_connected_set_of_spans_up_to_spark(spark: SparkSession) -> None:
    with collector() as collected, pipeline(collected) as (there, gateway):
        provider = traced_program.provider_for(collected.url, "client")
        headers = {"x-request-id": "order-4711"}
        with provider.get_tracer("test").start_as_current_span("POST", kind=SpanKind.CLIENT) as client:
            inject(headers)
            answer = httpx.post(f"{gateway}/v1/topics/quotes/records", json={"value": {"bid": 1}}, headers=headers)
        provider.shutdown()
        assert answer.status_code == httpx.codes.OK and answer.headers["x-request-id"] == "order-4711"
        record = last_record(there, 1)
        golden = json.loads(GOLDEN.read_text())
        assert wait_until(lambda: len(collected.spans) >= len(golden), within_s=60), collected.spans
        rows = read_trace_ids(spark, there)
    spans = collected.spans
    assert shown(spans) == golden, json.dumps(shown(spans), indent=1)
    assert connected(spans)
    for span in spans:
        assert REQUIRED[span.kind] <= span.attributes.keys(), span
        assert not span.failed, span
        if "messaging.system" in span.attributes:
            operation = span.attributes["messaging.operation.name"]
            assert span.kind == OPERATIONS[operation]
            assert span.name == f"{operation} {span.attributes['messaging.destination.name']}"
    (sent,) = [span for span in spans if span.name == "send bars"]
    assert trace_id_of(record.headers) == sent.trace
    assert rows == [("bars", sent.trace)], "Spark reads the id of the trace"
    (first,) = [span for span in spans if span.name == "send quotes"]
    assert first.trace == format_trace_id(client.get_span_context().trace_id), "the request's trace goes on"


def test_without_opentelemetry_a_gateway_passes_the_context_of_a_request_on(spark: SparkSession) -> None:
    with collector() as collected, pipeline(collected) as (there, _):
        trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
        headers = {"traceparent": f"00-{trace}-{span}-01"}
        url = f"{there.gateway}/v1/topics/quotes/records"
        assert httpx.post(url, json={"value": 1}, headers=headers).status_code == httpx.codes.OK
        last_record(there, 1)
        assert wait_until(lambda: len(collected.spans) == 4, within_s=60), collected.spans
        read = spark.read.format("comet").options(bootstrap=there.broker, subscribe="quotes", includeHeaders="true")
        (row,) = read.load().collect()
    assert [(header.key, bytes(header.value)) for header in row.headers] == [
        ("traceparent", headers["traceparent"].encode())
    ]
    (first,) = [one for one in collected.spans if one.name == "process quotes"]
    assert first.links == (span,)


def read_trace_ids(spark: SparkSession, there: Up) -> list[tuple[str, str]]:
    """Topic and trace id of the records in the last topic, as docs/guides/tracing.md reads them."""
    frame = spark.read.format("comet").options(
        bootstrap=there.broker, subscribe="bars", includeHeaders="true"
    )  # fmt: skip
    traceparent = sql.expr("filter(headers, header -> header.key = 'traceparent')[0].value")
    chosen = frame.load().select("topic", sql.split(traceparent.cast("string"), "-")[1].alias("trace_id"))
    return [(row["topic"], row["trace_id"]) for row in chosen.collect()]
