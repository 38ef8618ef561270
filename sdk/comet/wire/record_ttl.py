"""The time to live of records: as it is given, and as the column of expiry times that a batch has. Pure.

ttl_ms of a record ─┬─► the record's timestamp + ttl_ms
                    ├─► -1: never
                    └─► none: by the topic's record_ttl_ms; tombstones never, as delete_retention_ms is theirs
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final

from comet.errors import InvalidArgument
from comet.settings.topic import NO_LIMIT, TTL_MS_MAX

NEVER: Final = 0  # in the column
BY_TOPIC: Final = -1  # in a batch that is being filled
_INT64_MAX: Final = (1 << 63) - 1


def check_ttl(ttl_ms: Any) -> int:
    """A record's time to live. Raises InvalidArgument."""
    whole = isinstance(ttl_ms, int) and not isinstance(ttl_ms, bool)
    if whole and (ttl_ms == NO_LIMIT or 0 < ttl_ms <= TTL_MS_MAX):
        return int(ttl_ms)
    raise InvalidArgument(
        f"ttl_ms must be a whole number of milliseconds from 1 to {TTL_MS_MAX}, or -1 for no expiry, not {ttl_ms!r}"
    )


def expiry_of(timestamp_us: int, ttl_ms: int | None) -> int:
    """When a record of that timestamp expires, as far as its own time to live says.

    >>> expiry_of(5_000, 2), expiry_of(5_000, -1), expiry_of(5_000, None)
    (7000, 0, -1)
    """
    if ttl_ms is None:
        return BY_TOPIC
    return NEVER if ttl_ms == NO_LIMIT else min(timestamp_us + 1000 * ttl_ms, _INT64_MAX)


def expiry_column(
    own: Iterable[int] | None,
    timestamps: int | Sequence[int],
    values: Sequence[bytes | None],
    topic_ttl_ms: int,
) -> list[int] | None:
    """The column of a batch, by what its records and its topic say; None if all its records stay.

    >>> expiry_column([7, BY_TOPIC, NEVER], 5_000, [b"a", b"b", b"c"], 2)
    [7, 7000, 0]
    """
    if topic_ttl_ms <= 0:
        column = [max(one, NEVER) for one in own or ()]
    else:
        times = repeat(timestamps, len(values)) if isinstance(timestamps, int) else timestamps
        column = [
            one if one != BY_TOPIC else NEVER if value is None else expiry_of(time, topic_ttl_ms)
            for one, time, value in zip(repeat(BY_TOPIC) if own is None else own, times, values, strict=False)
        ]
    return column if any(column) else None
