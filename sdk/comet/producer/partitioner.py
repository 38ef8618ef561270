"""The partitioner: chooses a record's partition, and checks keys, headers and timestamps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from comet import limits
from comet.errors import InvalidArgument, PartitionNotFound
from comet.records import partition_for
from comet.values.record import Headers

HeaderPairs = list[tuple[str, bytes]]

_TIMESTAMP_US_MAX = (1 << 63) - 1


def key_bytes(key: Any) -> bytes:
    """A key as it is hashed and stored; text is UTF-8.

    >>> key_bytes("EURUSD")
    b'EURUSD'
    """
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytearray | memoryview):
        return bytes(key)
    raise InvalidArgument(f"a key must be bytes or str, not {type(key).__name__}")


def header_pairs(headers: Headers) -> HeaderPairs:
    """Headers as they are stored, in order; names may repeat.

    >>> header_pairs({"source": "demo"})
    [('source', b'demo')]
    """
    pairs: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers
    found: HeaderPairs = []
    try:
        for name, value in pairs:
            if not isinstance(name, str) or not isinstance(value, bytes | str):
                raise TypeError(f"{name!r}: {value!r}")
            found.append((name, value.encode() if isinstance(value, str) else value))
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"headers must be names with bytes or str as values: {error}") from None
    return found


def header_size(pairs: HeaderPairs) -> int:
    """What headers count for in a batch."""
    return sum(len(name) + len(content) + limits.HEADER_OVERHEAD_BYTES for name, content in pairs)


def check_timestamp(timestamp_us: Any) -> int:
    """The timestamp of a record in microseconds since 1970. Raises InvalidArgument."""
    if isinstance(timestamp_us, int) and not isinstance(timestamp_us, bool) and 0 <= timestamp_us <= _TIMESTAMP_US_MAX:
        return timestamp_us
    raise InvalidArgument(f"timestamp_us must be a whole number of microseconds since 1970, not {timestamp_us!r}")


def check_partition(topic: str, partition: Any, partitions: int) -> int:
    if isinstance(partition, int) and 0 <= partition < partitions:
        return partition
    raise PartitionNotFound(f"topic {topic!r} has the partitions 0 to {partitions - 1}, not {partition!r}")


def by_partition(keys: Sequence[bytes | None], partitions: int, unkeyed: int) -> dict[int, list[int]]:
    """The indexes of the records that go to each partition; those without a key go to `unkeyed`.

    >>> by_partition([b"a", None, b"a"], 1, 0)
    {0: [0, 1, 2]}
    """
    found: dict[int, list[int]] = {}
    for index, key in enumerate(keys):
        partition = unkeyed if key is None else partition_for(key, partitions)
        found.setdefault(partition, []).append(index)
    return found
