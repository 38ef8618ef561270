"""Spans of handlers, in an app without a broker; of producers and batches, with a broker; and when there are none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id, get_current_span

import comet
import comet.sync
from comet.tracing.clients import process_spans, receive_spans, send_spans
from comet.tracing.headers import has_context, is_recorded, recorded_context, trace_id_of
from comet.tracing.spans import LINKS_MAX, SENDS_MAX, attributes_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01".encode()
UNSAMPLED = f"00-{TRACE}-00f067aa0ba902b7-00".encode()


class Recorded:
    """A tracer provider that keeps its spans."""

    def __init__(self, **settings: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **settings)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def options(self, **settings: Any) -> comet.Tracing:
        return comet.Tracing(provider=self.provider, **settings)


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@asynccontextmanager
async def producing(recorded: Recorded, **options: Any) -> AsyncIterator[tuple[comet.Producer, comet.Consumer[bytes]]]:
    async with (
        comet.testing.broker(["quotes"]) as broker,
        comet.Producer(broker.address, name="feed", tracing=recorded.options(**options)) as producer,
        comet.Consumer(broker.address, "quotes", start="earliest") as consumer,
    ):
        yield producer, consumer


async def take(consumer: comet.Consumer[bytes], count: int) -> list[comet.Record[bytes]]:
    return [await anext(consumer) for _ in range(count)]


def context_of(span: ReadableSpan) -> bytes:
    """Its context, as a record has it."""
    assert span.context is not None
    return f"00-{format_trace_id(span.context.trace_id)}-{format_span_id(span.context.span_id)}".encode()


def context_in(record: comet.Record[Any]) -> bytes:
    return dict(record.headers)["traceparent"].rpartition(b"-")[0]


def linked(span: ReadableSpan) -> list[bytes]:
    return [
        f"00-{format_trace_id(link.context.trace_id)}-{format_span_id(link.context.span_id)}".encode()
        for link in span.links
    ]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


# ---- headers


def test_the_trace_id_is_read_without_opentelemetry() -> None:
    assert trace_id_of([("a", b"b"), ("traceparent", PARENT)]) == TRACE
    assert trace_id_of([("traceparent", UNSAMPLED)]) == TRACE
    assert trace_id_of([]) is None


@pytest.mark.parametrize(
    "wrong",
    [
        b"", b"00", PARENT[:-1], PARENT + b"0", PARENT.upper(), b"ff" + PARENT[2:], b"\xff" * 55, PARENT + b"\n",
        PARENT + b"-more", b"01" + PARENT[2:] + b"-" + b"m" * 201,
        PARENT.replace(TRACE.encode(), b"0" * 32), PARENT.replace(b"00f067aa0ba902b7", b"0" * 16),
    ],
)  # fmt: skip
def test_a_malformed_context_is_none(wrong: bytes, recorded: Recorded) -> None:
    assert trace_id_of([("traceparent", wrong)]) is None
    assert not is_recorded(wrong)
    assert recorded_context(wrong, b"a=b") == []


def test_a_later_version_of_the_context_is_read() -> None:
    assert is_recorded(b"01" + PARENT[2:] + b"-more")


def test_a_request_gives_its_context_only_if_it_is_recorded() -> None:
    assert recorded_context(PARENT, None) == [("traceparent", PARENT)]
    assert recorded_context(PARENT, b"a=b") == [("traceparent", PARENT), ("tracestate", b"a=b")]
    assert recorded_context(PARENT, b"a" * 513) == [("traceparent", PARENT)]
    assert recorded_context(UNSAMPLED, b"a=b") == []
    assert recorded_context(None, b"a=b") == []


# ---- when there are none


def test_a_program_without_opentelemetry_imports_nothing_of_it() -> None:
    code = (
        "import sys, comet, comet.tracing\n"
        "comet.Producer('localhost:1'); comet.App('localhost:1'); comet.TransactionalProducer('localhost:1')\n"
        "comet.Consumer('localhost:1', 'a').batches(trace=True)\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')], 'it was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_program_with_the_package_and_no_provider_makes_no_spans() -> None:
    assert send_spans(True, ["a:1"], "") is None
    assert process_spans(True, ["a:1"], "", "") is None
    assert receive_spans(["a:1"], "") is None


def test_each_client_and_the_process_can_be_switched_off(recorded: Recorded) -> None:
    assert send_spans(False, ["a:1"], "") is None
    assert process_spans(False, ["a:1"], "", "") is None
    assert send_spans(recorded.options(), ["a:1"], "") is not None
    comet.tracing.turn_off()
    try:
        assert send_spans(recorded.options(), ["a:1"], "") is None
        assert process_spans(recorded.options(), ["a:1"], "", "") is None
    finally:
        comet.tracing.turn_on()
    assert send_spans(recorded.options(), ["a:1"], "") is not None


async def test_outside_of_a_recorded_span_records_stay_as_they_are(recorded: Recorded) -> None:
    off = Recorded(sampler=ALWAYS_OFF)
    async with producing(recorded) as (producer, consumer):
        await producer.publish("quotes", b"1")
        await (await producer.send_many("quotes", [b"2"], headers=[{"a": "b"}]))
        with off.tracer.start_as_current_span("not sampled"):
            await producer.publish("quotes", b"3")
        assert [record.headers for record in await take(consumer, 3)] == [[], [("a", b"b")], []]
    assert recorded.spans == []


@pytest.mark.parametrize(
    ("addresses", "server"),
    [
        (["broker-1:9092", "broker-2:9092"], {"server.address": "broker-1", "server.port": 9092}),
        (["[::1]:9092"], {"server.address": "::1", "server.port": 9092}),
        (["unix:/run/comet.sock"], {"server.address": "unix:/run/comet.sock"}),
        ([], {}),
    ],
)
def test_the_server_is_the_first_address(addresses: list[str], server: dict[str, Any]) -> None:
    assert attributes_of(addresses) == {"messaging.system": "comet", **server}


# ---- producers


async def test_a_record_has_the_context_of_its_span(recorded: Recorded) -> None:
    async with producing(recorded) as (producer, consumer):
        with recorded.tracer.start_as_current_span("work") as work:
            await producer.publish("quotes", b"1", headers={"a": "b"})
        (record,) = await take(consumer, 1)
    span = recorded.only("send quotes")
    assert record.headers[0] == ("a", b"b") and context_in(record) == context_of(span)
    assert span.kind is SpanKind.PRODUCER and span.parent == work.get_span_context()
    assert attributes(span) == {
        "messaging.system": "comet",
        "messaging.client.id": "feed",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "quotes",
        "messaging.destination.partition.id": "0",
        "messaging.message.id": "quotes/0/0",
        "server.address": "127.0.0.1",
        "server.port": attributes(span)["server.port"],
    }


async def test_a_record_keeps_the_context_that_it_has(recorded: Recorded) -> None:
    async with producing(recorded) as (producer, consumer):
        with recorded.tracer.start_as_current_span("work"):
            await producer.publish("quotes", b"1", headers={"traceparent": PARENT})
            await (await producer.send_many("quotes", [b"2"], headers=[[("traceparent", PARENT)]]))
        for record in await take(consumer, 2):
            assert record.headers == [("traceparent", PARENT)]
    assert recorded.named("send quotes") == []


async def test_records_sent_in_bulk_share_one_span(recorded: Recorded) -> None:
    async with producing(recorded) as (producer, consumer):
        with recorded.tracer.start_as_current_span("work"):
            headers = [None, {"a": "b"}, [("traceparent", PARENT)]]
            await (await producer.send_many("quotes", [b"1", b"2", b"3"], headers=headers))
            await (await producer.send_many("quotes", [b"4"] * 1000, keys=[b"k"] * 1000))
            assert await (await producer.send_many("quotes", [])) == []
        first, second, third, *others = await take(consumer, 1003)
    mixed, many, _ = recorded.named("send quotes")
    assert context_in(first) == context_in(second) == context_of(mixed)
    assert second.headers[0] == ("a", b"b") and third.headers == [("traceparent", PARENT)]
    assert {context_in(record) for record in others} == {context_of(many)}
    assert attributes(many)["messaging.batch.message_count"] == 1000


async def test_a_failed_record_fails_its_span(recorded: Recorded) -> None:
    async with producing(recorded) as (producer, _):
        with recorded.tracer.start_as_current_span("work"):
            with pytest.raises(comet.TopicNotFound):
                await producer.send("missing", b"1")
            with pytest.raises(comet.InvalidArgument):
                await producer.send_many("quotes", [b"1", b"2"], keys=[b"a"])
            with pytest.raises(comet.RecordTooLarge):
                await (await producer.send("quotes", bytes(9_000_000)))
    missing, count, large = (recorded.only("send missing"), *recorded.named("send quotes"))
    for span, code in ((missing, "TOPIC_NOT_FOUND"), (count, "INVALID_ARGUMENT"), (large, "RECORD_TOO_LARGE")):
        assert attributes(span)["error.type"] == code and span.status.status_code is StatusCode.ERROR


async def test_a_span_ends_when_its_record_is_acknowledged_or_failed(recorded: Recorded) -> None:
    async with producing(recorded) as (producer, _):
        with recorded.tracer.start_as_current_span("work"):
            delivery = await producer.send("quotes", b"1")
        assert recorded.named("send quotes") == []
        await delivery
        assert attributes(recorded.only("send quotes"))["messaging.message.id"] == "quotes/0/0"


async def test_delayed_records_and_transactions_are_traced(recorded: Recorded) -> None:
    async with comet.testing.broker(["quotes"]) as broker:
        async with comet.Producer(broker.address, tracing=recorded.options()) as producer:
            with recorded.tracer.start_as_current_span("work"):
                await producer.publish("quotes", b"1", delay=0.001)
        async with comet.TransactionalProducer(broker.address, tracing=recorded.options()) as transactional:
            with recorded.tracer.start_as_current_span("work"):
                async with transactional.transaction() as tx:
                    await tx.send("quotes", b"2")
        async with comet.Consumer(broker.address, "quotes", start="earliest") as consumer:
            found = {context_in(record) for record in await take(consumer, 2)}
    assert found == {context_of(span) for span in recorded.named("send quotes")} and len(found) == 2


async def test_a_request_that_may_be_repeated_gets_no_context(recorded: Recorded) -> None:
    """The same key with another header would be another request."""
    async with producing(recorded) as (producer, consumer):
        for duplicate in (False, True):
            with recorded.tracer.start_as_current_span("work"):
                (receipt,) = await producer.publish_once("quotes", [comet.NewRecord(b"1")], idempotency_key="1")
            assert receipt.duplicate is duplicate
        (record,) = await take(consumer, 1)
    assert record.headers == []


async def test_a_span_has_a_limited_number_of_sends(recorded: Recorded) -> None:
    async with producing(recorded) as (producer, consumer):
        with recorded.tracer.start_as_current_span("work"):
            for n in range(SENDS_MAX + 2):
                await producer.send("quotes", b"%d" % n)
        await producer.flush()
        records = await take(consumer, SENDS_MAX + 2)
    assert len(recorded.named("send quotes")) == SENDS_MAX
    assert [context_in(record) for record in records[SENDS_MAX:]] == [context_of(recorded.only("work"))] * 2


async def test_baggage_is_written_only_if_asked_for(recorded: Recorded) -> None:
    token = context.attach(baggage.set_baggage("user", "ann"))
    try:
        for asked in (False, True):
            async with producing(recorded, baggage=asked) as (producer, consumer):
                with recorded.tracer.start_as_current_span("work"):
                    await producer.publish("quotes", b"1")
                (record,) = await take(consumer, 1)
                assert dict(record.headers).get("baggage") == (b"user=ann" if asked else None)
    finally:
        context.detach(token)


def test_a_synchronous_producer_takes_the_span_of_its_thread(recorded: Recorded) -> None:
    with comet.testing.broker(["quotes"]) as broker:
        with comet.sync.Producer(broker.address, tracing=recorded.options()) as producer:
            producer.send("quotes", b"1")
            with recorded.tracer.start_as_current_span("work"):
                producer.send("quotes", b"2")
            producer.send("quotes", b"3")
        with comet.sync.Consumer(broker.address, "quotes", start="earliest") as consumer:
            records = [next(iter(consumer)) for _ in range(3)]
    assert [has_context(record.headers) for record in records] == [False, True, False]
    assert context_in(records[1]) == context_of(recorded.only("send quotes"))


# ---- handlers


def an_app(recorded: Recorded, **options: Any) -> comet.App:
    return comet.App("broker-1:9092", name="engine", tracing=recorded.options(**options))


@pytest.mark.parametrize("delivery", ["at_most_once", "at_least_once", "exactly_once"])
async def test_a_call_is_a_span_with_a_link_to_the_creation_of_its_record(recorded: Recorded, delivery: Any) -> None:
    app = an_app(recorded)
    seen: list[Any] = []

    @app.on("quotes", group="g", delivery=delivery)
    async def handle(quote: str) -> None:
        seen.append(get_current_span().get_span_context())

    async with app.test() as test:
        await test.publish("quotes", "1", headers=[("traceparent", PARENT), ("tracestate", "a=b")])
    span = recorded.only("process quotes")
    assert seen == [span.context], "it is current in the handler"
    assert span.kind is SpanKind.CONSUMER and span.parent is None
    assert linked(span) == [PARENT[:-3]] and span.links[0].context.trace_state.get("a") == "b"
    assert attributes(span) == {
        "messaging.system": "comet",
        "messaging.client.id": "engine",
        "messaging.consumer.group.name": "g",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "quotes",
        "messaging.destination.partition.id": "0",
        "messaging.message.id": "quotes/0/0",
        "server.address": "broker-1",
        "server.port": 9092,
    }
    assert span.status.status_code is StatusCode.UNSET and not span.events


async def test_records_of_no_recorded_trace_have_spans_only_if_asked_for(recorded: Recorded) -> None:
    for every_call, count in ((False, 0), (True, 3)):
        app = an_app(recorded, every_call=every_call)

        @app.on("quotes", group="g")
        async def handle(quote: str) -> None: ...

        async with app.test() as test:
            await test.publish("quotes", "1")
            await test.publish("quotes", "2", headers={"a": "b"})
            await test.publish("quotes", "3", headers={"traceparent": UNSAMPLED})
        assert len(recorded.spans) == count
    assert all(not span.links and span.parent is None for span in recorded.spans)


async def test_the_creation_context_is_the_parent_only_if_asked_for(recorded: Recorded) -> None:
    app = an_app(recorded, parent=True)

    @app.on("quotes", group="g")
    async def handle(quote: str) -> None: ...

    @app.on("quotes")
    async def handle_many(quotes: list[str]) -> None: ...

    async with app.test() as test:
        await test.publish("quotes", "1", headers={"traceparent": PARENT})
    single, several = sorted(recorded.named("process quotes"), key=lambda span: span.parent is None)
    assert single.parent is not None and format_trace_id(single.parent.trace_id) == TRACE
    assert linked(single) == linked(several) == [PARENT[:-3]]
    assert several.parent is None, "a batch has no one parent"


async def test_a_span_that_serves_the_app_is_no_parent(recorded: Recorded) -> None:
    app = an_app(recorded)

    @app.on("quotes", group="g")
    async def handle(quote: str) -> None: ...

    with recorded.tracer.start_as_current_span("main"):
        async with app.test() as test:
            await test.publish("quotes", "1", headers={"traceparent": PARENT})
    assert recorded.only("process quotes").parent is None


async def test_a_call_with_a_batch_has_a_link_to_each_context_once(recorded: Recorded) -> None:
    app = an_app(recorded)

    @app.on("quotes", group="g")
    async def handle(quotes: list[bytes]) -> None: ...

    contexts = [f"00-{TRACE}-{n:016x}-01".encode() for n in range(1, LINKS_MAX + 10)]
    headers: Any = [[("traceparent", one)] for one in (contexts[0], *contexts)]
    async with app.test() as test:
        await test.producer.send_many("quotes", [b"1"] * len(headers), headers=headers)
        await test.settle()
    span = recorded.only("process quotes")
    assert linked(span) == [one[:-3] for one in contexts[:LINKS_MAX]]
    assert attributes(span)["messaging.batch.message_count"] == len(headers)
    assert "messaging.message.id" not in attributes(span)


async def test_retries_and_dead_letters_are_events_of_one_span(recorded: Recorded) -> None:
    app = an_app(recorded)

    @app.on("quotes", group="g", retries=2, dead_letter="failed")
    async def handle(quote: str) -> None:
        raise ValueError(quote)

    async with app.test(raise_errors=False) as test:
        await test.publish("quotes", "secret", headers={"traceparent": PARENT})
        (letter,) = test.records("failed")
    span = recorded.only("process quotes")
    assert [(event.name, dict(event.attributes or {})) for event in span.events] == [
        ("comet.retry", {"error.type": "ValueError", "comet.attempts": 1}),
        ("comet.retry", {"error.type": "ValueError", "comet.attempts": 2}),
        (
            "comet.dead_letter",
            {"error.type": "ValueError", "comet.attempts": 3, "messaging.destination.name": "failed"},
        ),
    ]
    assert attributes(span)["error.type"] == "ValueError" and span.status.status_code is StatusCode.ERROR
    assert context_in(letter) == PARENT[:-3], "the dead letter keeps the creation context"
    assert "secret" not in f"{attributes(span)} {span.status.description} {span.events}"


async def test_a_handler_that_leaves_a_context_attached_changes_no_other_call(recorded: Recorded) -> None:
    app = an_app(recorded)

    @app.on("quotes", group="g")
    async def handle(quote: str) -> None:
        context.attach(context.set_value("left", quote))

    async with app.test() as test:
        await test.publish("quotes", "1", headers={"traceparent": PARENT})
        await test.publish("quotes", "2", headers={"traceparent": PARENT})
        assert context.get_value("left") is None and not get_current_span().get_span_context().is_valid
    assert len(recorded.named("process quotes")) == 2


async def test_baggage_of_a_record_is_read_only_if_asked_for(recorded: Recorded) -> None:
    for asked in (False, True):
        app = an_app(recorded, baggage=asked)
        found: list[Any] = []

        @app.on("quotes", group="g")
        async def handle(quote: str, found: list[Any] = found) -> None:
            found.append(baggage.get_baggage("user"))

        async with app.test() as test:
            await test.publish("quotes", "1", headers=[("traceparent", PARENT), ("baggage", "user=ann")])
        assert found == (["ann"] if asked else [None])


# ---- with a broker


@pytest.mark.parametrize("options", [{"concurrency": 4}, {"shared": True}, {"delivery": "exactly_once"}, {}])
async def test_handlers_of_all_kinds_are_traced(recorded: Recorded, options: dict[str, Any]) -> None:
    async with comet.testing.broker(["quotes", "failed"]) as broker:
        app = comet.App(broker.address, tracing=recorded.options(settle=True))
        calls: list[str] = []

        @app.on("quotes", group="g", start="earliest", retries=1, backoff_ms=0, dead_letter="failed", **options)
        async def handle(quote: str) -> None:
            calls.append(quote)
            if quote == "bad":
                raise ValueError

        @app.on("failed", start="earliest")
        async def end(value: bytes) -> None:
            app.stop()

        async with comet.Producer(broker.address) as producer:
            for value in ("good", "bad"):
                await producer.publish("quotes", value, headers={"traceparent": PARENT})
        await app.serve()
    spans = recorded.named("process quotes")
    assert {tuple(linked(span)) for span in spans} == {(PARENT[:-3],)}
    failed = [span for span in spans if span.status.status_code is StatusCode.ERROR]
    assert {attributes(span)["error.type"] for span in failed} == {"ValueError"}
    names = [event.name for span in spans for event in span.events]
    assert names.count("comet.dead_letter") == 1
    if options.get("delivery") != "exactly_once":  # it repeats the transaction, with new spans
        assert names.count("comet.retry") == 1
        settled = {"ack quotes", "nack quotes", "reject quotes"} if options.get("shared") else {"commit quotes"}
        assert settled <= {span.name for span in recorded.spans}
        assert all(span.kind is SpanKind.CLIENT for name in settled for span in recorded.named(name))


async def test_a_batch_is_a_span_only_if_asked_for(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comet.tracing.spans.trace.get_tracer_provider", lambda: recorded.provider)
    async with comet.testing.broker(["quotes"]) as broker:
        async with comet.Producer(broker.address, tracing=False) as producer:
            headers: Any = [[("traceparent", PARENT)], None, [("traceparent", UNSAMPLED)]]
            await (await producer.send_many("quotes", [b"1", b"2", b"3"], headers=headers))
        async with comet.Consumer(broker.address, "quotes", start="earliest") as consumer:
            await anext(consumer.batches())
        assert recorded.spans == []
        async with comet.GroupConsumer(broker.address, "quotes", group="g", start="earliest") as member:
            await anext(member.batches(trace=True))
    span = recorded.only("receive quotes")
    assert span.kind is SpanKind.CLIENT and linked(span) == [PARENT[:-3]]
    assert attributes(span)["messaging.batch.message_count"] == 3
    assert attributes(span)["messaging.consumer.group.name"] == "g"
    assert attributes(span)["messaging.operation.type"] == "receive"


def test_a_synchronous_consumer_traces_batches_as_well(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comet.tracing.spans.trace.get_tracer_provider", lambda: recorded.provider)
    with comet.testing.broker(["quotes"]) as broker:
        with comet.sync.Producer(broker.address, tracing=False) as producer:
            producer.publish("quotes", b"1", headers={"traceparent": PARENT})
        with comet.sync.Consumer(broker.address, "quotes", start="earliest") as consumer:
            next(consumer.batches(trace=True))
    assert linked(recorded.only("receive quotes")) == [PARENT[:-3]]
