"""Makes the spans of a client, once: None for a client that makes none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from comet.tracing.options import Tracing, chosen

if TYPE_CHECKING:
    from comet.tracing.spans import ProcessSpans, ReceiveSpans, SendSpans


def send_spans(tracing: Tracing | bool, addresses: Sequence[str], name: str) -> SendSpans | None:
    """The spans of a producer."""
    options = chosen(tracing)
    if options is None:
        return None
    from comet.tracing import spans

    tracer = spans.tracer_of(options)
    return None if tracer is None else spans.SendSpans(tracer, spans.attributes_of(addresses, name), options)


def process_spans(tracing: Tracing | bool, addresses: Sequence[str], name: str, group: str) -> ProcessSpans | None:
    """The spans of a handler."""
    options = chosen(tracing)
    if options is None:
        return None
    from comet.tracing import spans

    tracer = spans.tracer_of(options)
    return None if tracer is None else spans.ProcessSpans(tracer, spans.attributes_of(addresses, name, group), options)


def receive_spans(addresses: Sequence[str], name: str, group: str = "") -> ReceiveSpans | None:
    """The spans of a consumer's batches."""
    options = chosen(True)
    if options is None:
        return None
    from comet.tracing import spans

    tracer = spans.tracer_of(options)
    return None if tracer is None else spans.ReceiveSpans(tracer, spans.attributes_of(addresses, name, group))
