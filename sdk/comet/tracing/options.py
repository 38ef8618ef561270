"""Whether a client makes spans, and which. Imports nothing of OpenTelemetry."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


@dataclass(frozen=True, kw_only=True)
class Tracing:
    """How a client traces: `tracing=` of Producer, TransactionalProducer and App. False turns it off.

    Spans are made if the application has set a tracer provider before it made the client, or gives one as `provider`.

    `every_call`    handlers: a `process` span also for records that were made outside of a recorded trace
    `parent`        handlers: the `process` span of a single record is also a child of its creation context, so that
                    the trace goes on and its sampler's decision counts
    `settle`        handlers: spans of commits and acknowledgements
    `baggage`       producers write the header `baggage`, and handlers read it

    >>> tracing = comet.Tracing(parent=True)
    >>> app = comet.App("localhost:9092", tracing=tracing)
    """

    provider: TracerProvider | None = None
    every_call: bool = False
    parent: bool = False
    settle: bool = False
    baggage: bool = False


class _Switch:
    """The switch of this process."""

    on = True


def turn_off() -> None:
    """Clients that are made from now on make no spans, with any options.

    >>> turn_off()
    >>> turn_on()
    """
    _Switch.on = False


def turn_on() -> None:
    """Undoes `turn_off`, for clients that are made from now on."""
    _Switch.on = True


def chosen(tracing: Tracing | bool) -> Tracing | None:
    """The options of a client that may make spans; None: it makes none.

    An application that has a tracer provider has imported OpenTelemetry. So nothing is imported, nor searched for, in
    the others.
    """
    if not tracing or not _Switch.on:
        return None
    options = Tracing() if tracing is True else tracing
    return options if options.provider is not None or "opentelemetry.trace" in sys.modules else None
