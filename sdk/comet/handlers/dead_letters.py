"""Dead letters: records whose handler failed, with the reason and the origin in headers.

Key, value, headers and timestamp are those of the record; these headers are added:

    comet-dead-letter-topic, -partition, -offset    the origin
    comet-dead-letter-group, -attempts, -reason     the group, the number of calls, and the error
    comet-dead-letter-time-us                       when it became a dead letter
    comet-dead-letter-traceback                     where the handler raised: lines of code, no values

A corrupt batch gets one note, a dead letter without key and value: its topic, partition, group and reason, its first
offset, and

    comet-dead-letter-end                           the offset after its last
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from traceback import format_tb
from typing import Any, Final, Protocol

from comet.errors import CorruptRecords
from comet.handlers.binding import Item
from comet.handlers.failed_record import Origin, header_pairs_of, origin_of, value_to_copy
from comet.producer.delivery import Delivery
from comet.producer.partitioner import HeaderPairs
from comet.types import wall_clock_us
from comet.wire.corrupt import range_of

PREFIX: Final = "comet-dead-letter-"
_TRACEBACK_BYTES_MAX: Final = 4_000


class Send(Protocol):
    def __call__(
        self, topic: str, value: Any, *, key: bytes | None, headers: HeaderPairs, timestamp_us: int
    ) -> Awaitable[Delivery]: ...


def headers_of(origin: Origin, group: str, attempts: int, error: Exception, *, encrypted: bool) -> HeaderPairs:
    """The headers of the dead letter of one record, in order."""
    details = {
        **origin.details(group, attempts, error, encrypted=encrypted),
        "time-us": str(wall_clock_us()),
    }
    # A record that becomes a dead letter again names its last origin.
    others = [(name, value) for name, value in origin.headers if not name.startswith(PREFIX)]
    return [*others, *header_pairs_of(PREFIX, details), *_traceback(error)]


class DeadLetters:
    """Writes dead letters. `send` is a producer's with acks="all", or a transaction's."""

    def __init__(self, send: Callable[[], Send]) -> None:
        self._send = send

    async def write(
        self, topic: str, item: Item, group: str, attempts: int, error: Exception, *, retried: bool = False
    ) -> int:
        """Writes an item's records. Returns their number once all are acknowledged. Raises if they cannot be written:
        then they must not count as processed. Those of a retry topic (`retried`) name the record that failed first."""
        deliveries = await send_dead_letters(self._send(), topic, item, group, attempts, error, retried=retried)
        for delivery in deliveries:
            await delivery
        return len(deliveries)

    async def note(self, topic: str, error: CorruptRecords, group: str) -> None:
        """Writes the note of a corrupt batch. Raises the error if the note cannot be written."""
        first, end = range_of(error)
        details = {
            "topic": error.details["topic"],
            "partition": error.details["partition"],
            "offset": str(first),
            "end": str(end),
            "group": group,
            "attempts": "1",
            "reason": f"{type(error).__name__}: {error}",
        }
        await (
            await self._send()(
                topic, None, key=None, headers=header_pairs_of(PREFIX, details), timestamp_us=wall_clock_us()
            )
        )


def _traceback(error: Exception) -> HeaderPairs:
    """The innermost calls, which are the last; none for an error without a traceback."""
    text = "".join(format_tb(error.__traceback__)).encode()
    return [(PREFIX + "traceback", text[-_TRACEBACK_BYTES_MAX:])] if text else []


async def send_dead_letters(
    send: Send, topic: str, item: Item, group: str, attempts: int, error: Exception, *, retried: bool = False
) -> list[Delivery]:
    batch = item.batch
    deliveries: list[Delivery] = []
    for index, offset in enumerate(batch.offsets):
        if item.first <= offset < item.end:
            origin = origin_of(batch, index, retried=retried)
            delivery = await send(
                topic,
                value_to_copy(batch, index),
                key=batch.keys[index],
                headers=headers_of(origin, group, attempts, error, encrypted=bool(batch.encrypted)),
                timestamp_us=origin.timestamp_us,
            )
            deliveries.append(delivery)
    return deliveries
