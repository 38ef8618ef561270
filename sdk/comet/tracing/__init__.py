"""Traces with OpenTelemetry: spans of producers, handlers and consumers, and the context of a trace in headers.

    options     whether a client makes spans, and which
    headers     the trace context in the headers of records, without OpenTelemetry
    spans       the spans; the only module that imports OpenTelemetry, once an application has set a tracer provider

docs/guides/tracing.md has the names and attributes of the spans.
"""

from __future__ import annotations

from comet.tracing.headers import trace_id_of
from comet.tracing.options import Tracing, turn_off, turn_on

__all__ = ["Tracing", "trace_id_of", "turn_off", "turn_on"]
