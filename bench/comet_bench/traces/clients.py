"""The clients of `comet bench traces`. Each does the same work, however its traces are set.

    absent      the package cannot be imported
    off         it was imported, and no tracer provider is set
    program     a provider that samples 1 % of the traces, and an exporter that drops its spans; Comet makes none
    sampled     the same, and Comet makes spans

The work comes in units, as a program's does that answers requests: 1,000 records each, in a span of the program where
there is a provider.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from comet_bench.link import Link, Work

UNIT_RECORDS: Final = 1_000
SAMPLED_SHARE: Final = 0.01
IN_FLIGHT_UNITS: Final = 100

Unit = Callable[[], AbstractContextManager[Any]]


def configured(variant: str) -> Unit:
    """Sets traces up, before any client is made. Returns what a unit of work runs in."""
    if variant == "absent":
        sys.modules["opentelemetry"] = None  # type: ignore[assignment]  # an import of it fails
        return nullcontext
    from opentelemetry import trace

    if variant == "off":
        return nullcontext
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    class Dropping(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:  # noqa: ARG002 - its form is that of exporters
            return SpanExportResult.SUCCESS

    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(SAMPLED_SHARE))
    provider.add_span_processor(BatchSpanProcessor(Dropping()))
    trace.set_tracer_provider(provider)
    tracer = provider.get_tracer("bench")
    return lambda: tracer.start_as_current_span("unit")


class _Clock:
    """The time and the processor's time since it was made."""

    def __init__(self) -> None:
        self._start, self._used = time.perf_counter(), time.process_time()

    def done(self, records: int) -> dict[str, Any]:
        seconds, cpu_s = time.perf_counter() - self._start, time.process_time() - self._used
        return {"records_per_s": records / seconds, "client_cpu_s": cpu_s}


def _tracing(config: Any) -> bool:
    return bool(config["variant"] != "program")


def _values(config: Any) -> list[bytes]:
    return [bytes(config["record_bytes"])] * UNIT_RECORDS


async def traced_send(link: Link, config: Any) -> dict[str, Any]:
    """One `send` a record."""
    unit = configured(config["variant"])
    import comet

    values, topic = _values(config), config["topic"]
    async with comet.Producer(config["address"], tracing=_tracing(config)) as producer:
        await producer.publish(topic, b"warm")
        await link.go()
        clock = _Clock()
        for _ in range(config["records"] // UNIT_RECORDS):
            with unit():
                for value in values:
                    await producer.send(topic, value)
        await producer.flush()
        return clock.done(config["records"])


async def traced_send_many(link: Link, config: Any) -> dict[str, Any]:
    """One `send_many` a unit."""
    unit = configured(config["variant"])
    import comet

    values, topic = _values(config), config["topic"]
    async with comet.Producer(config["address"], tracing=_tracing(config)) as producer:
        await producer.publish(topic, b"warm")
        await link.go()
        clock = _Clock()
        waiting: deque[Any] = deque()
        for _ in range(config["records"] // UNIT_RECORDS):
            with unit():
                waiting.append(await producer.send_many(topic, values))
            if len(waiting) >= IN_FLIGHT_UNITS:
                await waiting.popleft()
        await producer.flush()
        return clock.done(config["records"])


async def traced_consume(link: Link, config: Any) -> dict[str, Any]:
    """Record by record."""
    configured(config["variant"])
    import comet

    async with comet.Consumer(config["address"], config["topic"], start="earliest") as consumer:
        await anext(consumer)
        await link.go()
        clock, left = _Clock(), config["records"]
        async for _ in consumer:
            left -= 1
            if not left:
                break
        return clock.done(config["records"])


async def traced_handle(link: Link, config: Any) -> dict[str, Any]:
    """A handler of a group."""
    configured(config["variant"])
    import comet

    left = config["records"]
    clock: _Clock | None = None
    app = comet.App(config["address"], tracing=_tracing(config))

    @app.on(config["topic"], group="traced", start="earliest")
    async def handle(value: bytes) -> None:  # noqa: ARG001 - taking it is measured
        nonlocal clock, left
        if clock is None:
            clock = _Clock()
        left -= 1
        if not left:
            found.update(clock.done(config["records"]))
            app.stop()

    found: dict[str, Any] = {}
    await link.go()
    await app.serve()
    return found


WORKS: Final[dict[str, Work]] = {
    "traced_send": traced_send,
    "traced_send_many": traced_send_many,
    "traced_consume": traced_consume,
    "traced_handle": traced_handle,
}
