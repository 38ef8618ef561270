"""Spans by OpenTelemetry's semantic conventions of messaging, version 1.44, which are in development.

    send TOPIC      PRODUCER    from `send` to the acknowledgement; its context goes into the records as headers
    process TOPIC   CONSUMER    one call of a handler with its retries; links to the creation contexts of its records
    receive TOPIC   CLIENT      a batch that was handed out
    commit, ack …   CLIENT      if asked for

A producer makes spans in a recording span only, and handlers, by default, for records that were made in one: outside of
a trace nothing is done but one comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from comet.errors import CometError
from comet.tracing.headers import BAGGAGE, TRACEPARENT, TRACESTATE, has_context, is_recorded
from comet.tracing.options import Tracing
from comet.values.record import RecordBatch, has_headers
from comet.wire.version import VERSION

HeaderPairs = Sequence[tuple[str, bytes]]

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
LINKS_MAX: Final = 128
# Of one parent: further records get its context, without a span of their own, which costs twenty times as much.
SENDS_MAX: Final = 32

_CONTEXT: Final = TraceContextTextMapPropagator()
_BAGGAGE: Final = W3CBaggagePropagator()
_PROCESS: Final = contexts.create_key("comet-process-span")
_NO_SPAN: Final[AbstractContextManager[None]] = nullcontext()


def tracer_of(options: Tracing) -> trace.Tracer | None:
    """The tracer of a client; None if no provider is set."""
    provider = options.provider or trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("comet", VERSION, schema_url=SCHEMA_URL)


def attributes_of(addresses: Sequence[str], client: str = "", group: str = "") -> dict[str, Any]:
    """What all spans of a client have. The server is the first that it was given: it leads to all others."""
    found: dict[str, Any] = {"messaging.system": "comet"}
    if addresses:
        host, colon, port = addresses[0].rpartition(":")
        if colon and port.isdecimal():
            found |= {"server.address": host.strip("[]"), "server.port": int(port)}
        else:
            found["server.address"] = addresses[0]
    if client:
        found["messaging.client.id"] = client
    if group:
        found["messaging.consumer.group.name"] = group
    return found


def error_type(error: BaseException) -> str:
    """The code of an error of Comet, else the name of its class."""
    return error.code if isinstance(error, CometError) else type(error).__qualname__


def fail(span: Span, error: BaseException) -> None:
    """Marks a span as failed. The error's text may quote a value, so that it is left out."""
    span.set_attribute("error.type", error_type(error))
    span.set_status(Status(StatusCode.ERROR, error_type(error)))


def _operation(name: str, kind: str, topic: str) -> dict[str, Any]:
    return {
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }


def _runtime_context() -> Any:
    """The function that returns the current context: that of the context variable itself where it is known, at a third
    of the time."""
    variable = getattr(getattr(contexts, "_RUNTIME_CONTEXT", None), "_current_context", None)
    return getattr(variable, "get", None) or contexts.get_current


# ---- sending


class SendSpans:
    """The spans of one producer.

    `current() is not quiet` says, at the cost of a comparison, that a span may be recording here.
    """

    __slots__ = ("_attributes", "_baggage", "_here", "_parent", "_rest", "_sends", "_tracer", "current", "quiet")

    def __init__(self, tracer: trace.Tracer, attributes: Mapping[str, Any], options: Tracing) -> None:
        self.current = _runtime_context()
        self.quiet: Context | None = None  # the last context in which no span was recording
        self._tracer = tracer
        self._attributes = attributes
        self._baggage = options.baggage
        self._here: Context | None = None  # the last context in which a span was recording,
        self._parent: Span = trace.INVALID_SPAN  # that span,
        self._sends = 0  # the spans in it,
        self._rest = SendSpan(None, ())  # and its context, for the records after those

    def active(self) -> bool:
        """Whether a span is recording here."""
        here = self.current()
        if here is self.quiet:
            return False
        if trace.get_current_span(here).is_recording():
            return True
        self.quiet = here
        return False

    def begin(self, topic: str, count: int | None = None) -> SendSpan | None:
        """Begins the span of records to be sent; None if no span is recording here. `count` is given of several."""
        here = self.current()
        if here is not self._here:
            if not self.active():
                return None
            parent = trace.get_current_span(here)
            if parent is not self._parent:
                self._parent, self._sends, self._rest = parent, 0, SendSpan(None, self._headers(here))
            self._here = here
        elif not self._parent.is_recording():  # it has ended
            self.quiet = here
            return None
        if self._sends >= SENDS_MAX:
            return self._rest
        self._sends += 1
        attributes = {**self._attributes, **_operation("send", "send", topic)}
        if count is not None:
            attributes["messaging.batch.message_count"] = count
        span = self._tracer.start_span(f"send {topic}", here, SpanKind.PRODUCER, attributes)
        headers = self._headers(trace.set_span_in_context(span, here)) if span.is_recording() else ()
        if not headers:  # the sampler has left it out
            span.end()
            return None
        return SendSpan(span, headers)

    def _headers(self, context: Context) -> HeaderPairs:
        carrier: dict[str, str] = {}
        _CONTEXT.inject(carrier, context)
        if self._baggage:
            _BAGGAGE.inject(carrier, context)
        return [(name, value.encode()) for name, value in carrier.items()]


class SendSpan:
    """The span of records that are being sent, and the headers that they get. Ends in `finished`, or with its block if
    that raises."""

    __slots__ = ("_span", "headers")

    def __init__(self, span: Span | None, headers: HeaderPairs) -> None:
        self._span = span
        self.headers = headers

    @property
    def recording(self) -> bool:
        """Whether there is a span, and not its parent's context alone."""
        return self._span is not None

    def added_to(self, headers: HeaderPairs) -> HeaderPairs:
        """The headers of a record with the context; as they are, if they have one."""
        return headers if has_context(headers) else [*headers, *self.headers]

    def added_to_all(self, column: Sequence[HeaderPairs | None]) -> list[HeaderPairs]:
        """The headers of several records with the context, in one list for those without others."""
        return [self.added_to(headers) if headers else self.headers for headers in column]

    def finished(self, error: BaseException | None, record: tuple[str, int, int | None] | None = None) -> None:
        """Ends the span: the records are acknowledged or failed. A single one has a partition, and an offset if that is
        known."""
        span = self._span
        if span is None:
            return
        if record is not None:
            topic, partition, offset = record
            span.set_attribute("messaging.destination.partition.id", str(partition))
            if offset is not None:
                span.set_attribute("messaging.message.id", message_id(topic, partition, offset))
        if error is not None:
            fail(span, error)
        span.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.finished(error)


# ---- processing


class ProcessSpans:
    """The spans of one handler."""

    def __init__(self, tracer: trace.Tracer, attributes: Mapping[str, Any], options: Tracing) -> None:
        self._tracer = tracer
        self._attributes = attributes
        self._options = options

    def concern(self, batch: RecordBatch[Any]) -> bool:
        """Whether records of a batch may get spans: nothing is read for it."""
        return self._options.every_call or has_headers(batch)

    def process(
        self, topic: str, partition: int, offset: int, headers: Iterable[HeaderPairs], count: int | None = None
    ) -> AbstractContextManager[Any]:
        """The span of a call, as a block: with the headers of its records, and their number if it takes several."""
        links = links_of(headers)
        if not links and not self._options.every_call:
            return _NO_SPAN
        here = contexts.get_current()
        if self._options.parent and count is None and links:
            base = trace.set_span_in_context(trace.NonRecordingSpan(links[0].context), here)
        else:
            base = trace.set_span_in_context(trace.INVALID_SPAN, here)
        if self._options.baggage and count is None:
            base = _BAGGAGE.extract(_carrier(next(iter(headers), ())), base)
        attributes = {
            **self._attributes,
            **_operation("process", "process", topic),
            "messaging.destination.partition.id": str(partition),
        }
        if count is None:
            attributes["messaging.message.id"] = message_id(topic, partition, offset)
        else:
            attributes["messaging.batch.message_count"] = count
        span = self._tracer.start_span(f"process {topic}", base, SpanKind.CONSUMER, attributes, links)
        return ActiveSpan(span, base)

    def settle(self, name: str, topic: str, count: int | None = None) -> AbstractContextManager[Any]:
        """The span of a commit or an acknowledgement, as a block."""
        if not self._options.settle:
            return _NO_SPAN
        attributes = {**self._attributes, **_operation(name, "settle", topic)}
        if count is not None:
            attributes["messaging.batch.message_count"] = count
        here = contexts.get_current()
        span = self._tracer.start_span(f"{name} {topic}", here, SpanKind.CLIENT, attributes)
        return ActiveSpan(span, here)

    def event(self, name: str, error: BaseException, attempts: int, topic: str = "") -> None:
        """Notes in the current `process` span, if there is one, what became of an attempt."""
        span = contexts.get_value(_PROCESS)
        if isinstance(span, Span):
            attributes: dict[str, Any] = {"error.type": error_type(error), "comet.attempts": attempts}
            if topic:
                attributes["messaging.destination.name"] = topic
            span.add_event(f"comet.{name}", attributes)

    def give_up(self, error: BaseException) -> None:
        """Marks the current `process` span as failed: its records are set aside or skipped."""
        span = contexts.get_value(_PROCESS)
        if isinstance(span, Span):
            fail(span, error)


class ActiveSpan:
    """A span that is current in its block. Both end together, also if the block leaves other contexts attached."""

    __slots__ = ("_context", "_span", "_token")

    def __init__(self, span: Span, base: Context) -> None:
        self._span = span
        self._context = contexts.set_value(_PROCESS, span, trace.set_span_in_context(span, base))
        self._token: Any = None

    def __enter__(self) -> Self:
        self._token = contexts.attach(self._context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        contexts.detach(self._token)
        if error is not None:
            fail(self._span, getattr(error, "error", error))  # of a handler, if the serving has put it into its own
        self._span.end()


# ---- receiving


class ReceiveSpans:
    """The spans of a consumer's batches."""

    def __init__(self, tracer: trace.Tracer, attributes: Mapping[str, Any]) -> None:
        self._tracer = tracer
        self._attributes = attributes

    def received(self, batch: RecordBatch[Any]) -> None:
        """Makes the span of a batch that was handed out. It has no length: waiting for records does not count."""
        attributes = {
            **self._attributes,
            **_operation("receive", "receive", batch.topic),
            "messaging.destination.partition.id": str(batch.partition),
            "messaging.batch.message_count": len(batch),
        }
        links = links_of(batch.headers) if has_headers(batch) else None
        here = contexts.get_current()
        self._tracer.start_span(f"receive {batch.topic}", here, SpanKind.CLIENT, attributes, links).end()


def message_id(topic: str, partition: int, offset: int) -> str:
    """The id of a record."""
    return f"{topic}/{partition}/{offset}"


def links_of(headers: Iterable[HeaderPairs]) -> list[Link]:
    """Links to the creation contexts of records that were made in recorded traces: one for each context, and at most
    LINKS_MAX."""
    found: dict[bytes, Link] = {}
    for pairs in headers:
        traceparent = next((value for name, value in pairs if name == TRACEPARENT), b"")
        if not traceparent or traceparent in found or not is_recorded(traceparent):
            continue
        span = trace.get_current_span(_CONTEXT.extract(_carrier(pairs), Context()))
        found[traceparent] = Link(span.get_span_context())
        if len(found) == LINKS_MAX:
            break
    return list(found.values())


def _carrier(pairs: HeaderPairs) -> dict[str, str]:
    names = (TRACEPARENT, TRACESTATE, BAGGAGE)
    return {name: value.decode("latin-1") for name, value in reversed(pairs) if name in names}
