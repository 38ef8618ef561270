"""A record whose handler failed: its origin, and the headers that say what happened to it.

A retry topic holds records that failed before. Their origin is the record that was first read, which these headers
tell beside the last error:

    comet-retry-topic, -partition, -offset, -timestamp-us    the origin
    comet-retry-group, -attempts, -reason                    the group, the number of calls so far, and the last error
    comet-retry-round                                        how often it was written to a retry topic
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from comet.errors import InvalidArgument
from comet.producer.partitioner import HeaderPairs, check_timestamp
from comet.values.record import RecordBatch

RETRY: Final = "comet-retry-"
_SCHEDULE: Final = "comet-schedule-"  # headers of a fired schedule
_REASON_BYTES_MAX: Final = 1_000


class Origin(NamedTuple):
    """The record that was first read, and what was done with it since."""

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    headers: HeaderPairs  # without those of retries
    attempts: int = 0
    round: int = 0

    def details(self, group: str, attempts: int, error: Exception, *, encrypted: bool) -> dict[str, str]:
        """The texts of headers about its failure, after some more calls."""
        return {
            "topic": self.topic,
            "partition": str(self.partition),
            "offset": str(self.offset),
            "group": group,
            "attempts": str(self.attempts + attempts),
            # The text of an error may quote the value, which brokers are not to see.
            "reason": type(error).__name__ if encrypted else f"{type(error).__name__}: {error}",
        }


def origin_of(batch: RecordBatch[Any], index: int, *, retried: bool = False) -> Origin:
    """The origin of a record; of one of a retry topic, the record that its headers name, if they are complete."""
    headers = batch.headers[index]
    origin = Origin(batch.topic, batch.partition, batch.offsets[index], batch.timestamps[index], headers)
    if not retried:
        return origin
    named = {name.removeprefix(RETRY): value for name, value in headers if name.startswith(RETRY)}
    with contextlib.suppress(KeyError, ValueError, InvalidArgument):
        origin = Origin(
            named["topic"].decode(),
            int(named["partition"]),
            int(named["offset"]),
            check_timestamp(int(named["timestamp-us"])),
            [pair for pair in headers if not pair[0].startswith((RETRY, _SCHEDULE))],
            attempts=int(named["attempts"]),
            round=max(0, int(named["round"])),
        )
    return origin


def group_of_retry(batch: RecordBatch[Any], index: int) -> str | None:
    """The group whose handler is to be called again with a record of a retry topic; None without the header."""
    found = [value for name, value in batch.headers[index] if name == RETRY + "group"]
    return found[-1].decode(errors="replace") if found else None


def value_to_copy(batch: RecordBatch[Any], index: int) -> bytes | None:
    """The value, for another topic."""
    return batch.record(index).value if batch.encrypted is None else batch.encrypted.to_copy(index)


def header_pairs_of(prefix: str, details: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Texts as headers, each cut to _REASON_BYTES_MAX."""
    return [(prefix + name, text.encode()[:_REASON_BYTES_MAX]) for name, text in details.items()]
