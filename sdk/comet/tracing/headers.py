"""The context of a trace in the headers of records, as W3C Trace Context writes it. Pure, without OpenTelemetry.

traceparent     00-<trace id, 32 hex digits>-<span id, 16 hex digits>-<flags, 2 hex digits>
tracestate      further entries of tracing systems
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"
# Later versions than 00 may be longer; their beginning stays readable.
_FORM: Final = re.compile(
    rb"(?!ff|00.{53}-)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(?:-[!-~]{0,200})?"
)
_SAMPLED: Final = 1
_STATE_BYTES_MAX: Final = 512  # of a tracestate that is passed on


def trace_id_of(headers: Iterable[tuple[str, bytes]]) -> str | None:
    """The id of the trace in which a record was made, from its headers; None without one.

    >>> trace_id_of([("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")])
    '4bf92f3577b34da6a3ce929d0e0e4736'
    """
    for name, value in headers:
        if name == TRACEPARENT:
            found = _FORM.fullmatch(value)
            return None if found is None else found[1].decode()
    return None


def is_recorded(traceparent: bytes) -> bool:
    """Whether it is valid, and its trace is recorded.

    >>> is_recorded(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"), is_recorded(b"?")
    (False, False)
    """
    found = _FORM.fullmatch(traceparent)
    return found is not None and bool(int(found[2], 16) & _SAMPLED)


def has_context(headers: Iterable[tuple[str, bytes]]) -> bool:
    """Whether a record has the context of a trace already."""
    for name, _ in headers:  # noqa: SIM110 - half the time of any()
        if name == TRACEPARENT:
            return True
    return False


def recorded_context(traceparent: bytes | None, tracestate: bytes | None) -> list[tuple[str, bytes]]:
    """The headers of a record that is made in a recorded trace; none for another one."""
    if traceparent is None or not is_recorded(traceparent):
        return []
    headers = [(TRACEPARENT, traceparent)]
    if tracestate and len(tracestate) <= _STATE_BYTES_MAX:
        headers.append((TRACESTATE, tracestate))
    return headers
