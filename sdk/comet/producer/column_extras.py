"""Headers, timestamps and expiry times of records that are sent in bulk, as columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from comet.errors import InvalidArgument
from comet.producer.accumulator import ProducerBatch
from comet.producer.partitioner import HeaderPairs, check_timestamp, header_pairs, header_size
from comet.values.record import Headers
from comet.wire.record_ttl import check_ttl, expiry_of


class Extras:
    """Columns beside those of keys and values. Owned by one call of send_many."""

    __slots__ = ("_expiry", "_headers", "_timestamps", "sizes")

    def __init__(
        self,
        headers: list[HeaderPairs | None] | None,
        timestamps: list[int] | None,
        expiry: list[int] | None,
        sizes: list[int] | None,
    ) -> None:
        self._expiry = expiry
        self._headers = headers
        self._timestamps = timestamps
        self.sizes = sizes  # of the headers, in bytes

    @classmethod
    def of(
        cls,
        headers: Sequence[Headers | None] | None,
        timestamps_us: Sequence[int | None] | None,
        timestamp_us: int,
        ttls_ms: Sequence[int | None] | None,
        ttl_ms: int | None,
        count: int,
    ) -> Extras:
        """The columns of `count` records; those without a timestamp get `timestamp_us`, those without a time to live
        `ttl_ms`."""
        for name, column in (("headers", headers), ("timestamps", timestamps_us), ("ttls_ms", ttls_ms)):
            if column is not None and len(column) != count:
                raise InvalidArgument(f"{len(column)} {name} for {count} values")
        pairs = None if headers is None else checked_headers(headers)
        times = None
        if timestamps_us is not None:
            times = [timestamp_us if time is None else check_timestamp(time) for time in timestamps_us]
        if ttl_ms is not None:
            check_ttl(ttl_ms)
        expiry = None
        if ttls_ms is not None:
            chosen = [ttl_ms if one is None else check_ttl(one) for one in ttls_ms]
            expiry = list(map(expiry_of, [timestamp_us] * count if times is None else times, chosen))
        elif ttl_ms is not None:
            expiry = (
                [expiry_of(timestamp_us, ttl_ms)] * count
                if times is None
                else [expiry_of(time, ttl_ms) for time in times]
            )
        return cls(pairs, times, expiry, None if pairs is None else _sizes(pairs))

    def chosen(self, members: Sequence[int]) -> Extras:
        """The columns of the records at some indexes."""
        headers, timestamps, expiry, sizes = self._headers, self._timestamps, self._expiry, self.sizes
        return Extras(
            None if headers is None else [headers[member] for member in members],
            None if timestamps is None else [timestamps[member] for member in members],
            None if expiry is None else [expiry[member] for member in members],
            None if sizes is None else [sizes[member] for member in members],
        )

    def put(self, batch: ProducerBatch, first: int) -> None:
        """Sets the columns of a batch whose first record has the index `first`."""
        part = slice(first, first + len(batch))
        if self._headers is not None:
            batch.headers = [*self._headers[part]]
        if self._timestamps is not None:
            batch.timestamps = self._timestamps[part]
        if self._expiry is not None:
            batch.expiry = self._expiry[part]


def checked_headers(headers: Sequence[Headers | None]) -> list[HeaderPairs | None]:
    """Headers as they are stored. Those that several records in a row share are checked once."""
    found: list[HeaderPairs | None] = []
    last: Headers | None = None
    pairs: HeaderPairs | None = None
    for one in headers:
        if one is not last or not isinstance(one, list | tuple):
            last, pairs = one, header_pairs(one) if one else None
        found.append(pairs)
    return found


def _sizes(column: list[HeaderPairs | None]) -> list[int]:
    """The bytes of each record's headers."""
    found: list[int] = []
    last: HeaderPairs | None = None
    size = 0
    for pairs in column:
        if pairs is not last:
            last, size = pairs, 0 if pairs is None else header_size(pairs)
        found.append(size)
    return found
