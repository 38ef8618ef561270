"""Missing records: the gap that is reported to the application, and the offset at which reading continues.

position before log_start    "deleted"      continues at log_start
position after log_end       "truncated"    continues at log_end: the log was truncated, and those offsets are reused
truncated below position     "truncated"    continues at log_end
a damaged range              "damaged"      continues after it; also after a corrupt batch
"""

from __future__ import annotations

from comet.errors import CometError, DataLoss, OffsetOutOfRange, Truncated
from comet.types import AtOffset, Gap


def gap_of(error: CometError, topic: str, partition: int, position: int) -> Gap | None:
    """The missing range, if the error names one.

    >>> from comet.errors import Truncated
    >>> gap_of(Truncated("truncated", details={"log_end": "40"}), "quotes", 0, 42)
    Gap(topic='quotes', partition=0, first=40, end=42, reason='truncated')
    """
    log_start, log_end = _offset(error, "log_start"), _offset(error, "log_end")
    match error:
        case OffsetOutOfRange() if 0 <= position < log_start:
            return Gap(topic, partition, position, log_start, "deleted")
        case OffsetOutOfRange() | Truncated() if 0 <= log_end < position:
            return Gap(topic, partition, log_end, position, "truncated")
        case DataLoss():
            first, end = _offset(error, "first"), _offset(error, "end")
            if 0 <= first < end and position < end:
                return Gap(topic, partition, max(first, position), end, "damaged")
    return None


def way_on(gap: Gap) -> AtOffset:
    """The offset at which reading continues."""
    return AtOffset(gap.first if gap.reason == "truncated" else gap.end)


def _offset(error: CometError, name: str) -> int:
    found = error.details.get(name, "")
    return int(found) if found.isdecimal() else -1
