"""Delayed retries: a record whose handler failed is written to a retry topic, later, and its partition goes on.

    handler fails ─► delayed record for `retry_topic`, stored by the cluster ─► the offset may be committed
    … due ─► the cluster writes it to `retry_topic` ─► handler, in the next round ─► … ─► dead letter

The id of the delayed record is made of group, topic, partition and offset: a record that fails again because its offset
was not committed is stored once. `failed_record` has its headers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, Final, Protocol

from comet.errors import RecordTooLarge
from comet.handlers.binding import Binding, Item
from comet.handlers.failed_record import RETRY, Origin, group_of_retry, header_pairs_of, origin_of, value_to_copy
from comet.producer.delayed_record import Delay, due_time
from comet.producer.partitioner import HeaderPairs

_ID_DIGITS: Final = 32


class SendLater(Protocol):
    """A producer's `publish`, of delayed records."""

    def __call__(
        self, topic: str, value: Any, *, key: bytes | None, headers: HeaderPairs, ttl_ms: int | None, delay: Delay,
        schedule_id: str,
    ) -> Awaitable[Any]: ...  # fmt: skip


class DelayedRetries:
    """Writes records for a later call of their handler. `publish` is a producer's."""

    def __init__(self, publish: Callable[[], SendLater]) -> None:
        self._publish = publish

    async def write(self, one: Binding, item: Item, attempts: int, error: Exception, now_us: int) -> Delay | None:
        """Stores a record for the next round. Returns its delay once it is stored.

        Returns None after the last round, and for a record that expires before the next round or is too large. Raises
        if the record cannot be stored: then it must not count as processed.
        """
        batch, delays = item.batch, one.options.retry_delays
        index = bisect_left(batch.offsets, item.first)
        origin = origin_of(batch, index, retried=one.reads_retries)
        if origin.round >= len(delays):
            return None
        delay = delays[origin.round]
        ttl_ms = None
        if batch.expiry is not None and batch.expiry[index] > 0:
            ttl_ms = (batch.expiry[index] - due_time(delay, None).at_us(now_us)) // 1000
            if ttl_ms <= 0:
                return None
        try:
            await self._publish()(
                one.options.retry_topic, value_to_copy(batch, index), key=batch.keys[index],
                headers=_headers(origin, item, one.group, attempts, error), ttl_ms=ttl_ms, delay=delay,
                schedule_id=_schedule_id(item, one.group),
            )  # fmt: skip
        except RecordTooLarge:
            return None
        return delay


def of_another_group(one: Binding, item: Item) -> bool:
    """Whether the record of a retry topic waits for a handler of another group."""
    if not one.reads_retries:
        return False
    group = group_of_retry(item.batch, bisect_left(item.batch.offsets, item.first))
    return group is not None and group != one.group


def _headers(origin: Origin, item: Item, group: str, attempts: int, error: Exception) -> HeaderPairs:
    details = {
        **origin.details(group, attempts, error, encrypted=bool(item.batch.encrypted)),
        "timestamp-us": str(origin.timestamp_us),
        "round": str(origin.round + 1),
    }
    return [*origin.headers, *header_pairs_of(RETRY, details)]


def _schedule_id(item: Item, group: str) -> str:
    """The same for the same record. A topic that was recreated under the name has other times of appending."""
    batch = item.batch
    parts = (group, batch.topic, batch.partition, item.first, batch.append_time_us)
    return "retry-" + sha256("\0".join(map(str, parts)).encode()).hexdigest()[:_ID_DIGITS]
