"""One batch, read: columns are cut when they are first asked for, and kept.

`decode` checks the checksum, opens the body and walks its buffers, so that everything lies within bounds before
anything is read. What a column says inside its bounds (offsets that rise, nulls without bytes, names in UTF-8)
is checked when that column is first read; so a property can raise CorruptBatch, too, and nothing else. After
`check`, which checks all columns at once, no property raises or checks again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from operator import lt
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from comet.errors import CorruptBatch
from comet.records._check import check
from comet.records._columns import (
    PADDING,
    Binary,
    Cursor,
    HeaderColumns,
    chooser,
    read_binary,
    read_i32,
    read_i64,
    read_nullable,
    read_offsets,
    read_rows,
    view_i32,
)
from comet.records._compression import decompress
from comet.records._header import (
    DUE,
    EXPIRY,
    HEADER_BYTES,
    HEADERS,
    KEY_NULLS,
    KEYS,
    OFFSET_DELTAS,
    VALUE_NULLS,
    BatchHeader,
    Buffer,
    read_header,
    verify,
)

if TYPE_CHECKING:
    import pyarrow as pa


LONE_BYTES_MAX: Final = 4096  # of the body: a larger value is copied only when it is asked for
_FEW: Final = 8  # a column is read whole for more than one record of so many
_COLUMNS: Final = KEYS | VALUE_NULLS | HEADERS | OFFSET_DELTAS | DUE | EXPIRY
_LONE: Final = Struct("<ii")
_new_binary: Any = tuple.__new__


class Batch:
    """The records of one batch as columns.

    Owned by the code that decoded it; keeps its buffer in memory for as long as it lives. Not to be changed: callers
    share the lists that its properties return.

    >>> from comet.records import decode, encode
    >>> batch = decode(b"".join(encode([b"a", b"b"], timestamps=1_700_000_000_000_000)))
    >>> batch.values, list(batch.offsets), len(batch)
    ([b'a', b'b'], [0, 1], 2)
    """

    def __init__(self, header: BatchHeader, body: memoryview) -> None:
        self.header = header
        self.body = body  # not compressed
        self._checked = False
        self._lay_out(Cursor(body))

    def _lay_out(self, cursor: Cursor) -> None:
        """Finds where each column lies, in the order of proto/BATCH.md."""
        header, flags, count = self.header, self.header.flags, self.header.record_count
        one_timestamp = header.min_timestamp_us == header.max_timestamp_us
        if not count and not one_timestamp:
            raise CorruptBatch("a batch without records has two timestamps")
        self.timestamps_at = -1 if one_timestamp else cursor.take(8 * count)
        self.deltas_at = cursor.take(4 * count) if flags & OFFSET_DELTAS else -1
        self.due_at = cursor.take(8 * count) if flags & DUE else -1
        self.expiry_at = cursor.take(8 * count) if flags & EXPIRY else -1
        self.keys_column = cursor.take_binary(count, nulls=bool(flags & KEY_NULLS)) if flags & KEYS else None
        self.values_column = cursor.take_binary(count, nulls=bool(flags & VALUE_NULLS))
        self.header_columns = _take_headers(cursor, count) if flags & HEADERS else None
        if cursor.at != len(cursor.body):
            raise CorruptBatch(f"{len(cursor.body) - cursor.at} bytes after the last column")

    def check(self, *, times: bool = True) -> None:
        """Checks every column, so that no property raises afterwards. No value is read for it. Raises CorruptBatch.

        Without `times` the timestamps are not compared with those of the header: no reader slices by them.

        >>> from comet.records import decode, encode
        >>> decode(b"".join(encode([b"a", b"bc"], timestamps=1))).check()
        """
        if times or not self._checked:
            check(self, times)
            self._checked = True

    def __len__(self) -> int:
        return self.header.record_count

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} from offset {self.header.base_offset}>"

    @cached_property
    def values(self) -> list[bytes | None]:
        """One entry per record; None is a tombstone."""
        return read_nullable(self.body, self.values_column, len(self), checked=self._checked)

    @cached_property
    def keys(self) -> list[bytes | None]:
        """One entry per record; None where the record has no key."""
        if self.keys_column is None:
            return [None] * len(self)
        return read_nullable(self.body, self.keys_column, len(self), checked=self._checked)

    def values_of(self, rows: Sequence[int]) -> Sequence[bytes | None]:
        """The values of these records."""
        return self._some("values", self.values_column, rows)

    def keys_of(self, rows: Sequence[int]) -> Sequence[bytes | None] | None:
        """The keys of these records; None if the batch has none."""
        return None if self.keys_column is None else self._some("keys", self.keys_column, rows)

    def _some(self, name: str, column: Binary, rows: Sequence[int]) -> Sequence[bytes | None]:
        """Cuts a few of many values alone, if the batch was checked."""
        if self._checked and name not in self.__dict__ and len(rows) * _FEW < len(self):
            return read_rows(self.body, column, len(self), rows)
        return chooser(rows)(getattr(self, name))

    @cached_property
    def timestamps(self) -> list[int]:
        """One entry per record, µs since 1970, as the producer gave them."""
        low, high = self.header.min_timestamp_us, self.header.max_timestamp_us
        if self.timestamps_at < 0:
            return [low] * len(self)
        timestamps = self._read_times(self.timestamps_at)
        if not self._checked and (min(timestamps) != low or max(timestamps) != high):
            raise CorruptBatch("the timestamps differ from those of the header")
        return timestamps

    @cached_property
    def offsets(self) -> Sequence[int]:
        """One entry per record; a range where they are dense."""
        base = self.header.base_offset
        if self.deltas_at < 0:
            return range(base, base + len(self))
        return [base + delta for delta in self.deltas]

    @cached_property
    def deltas(self) -> Sequence[int]:
        """Offsets less the base offset."""
        if self.deltas_at < 0:
            return range(len(self))
        deltas = read_i32(self.body[self.deltas_at : self.deltas_at + 4 * len(self)])
        outside = len(deltas) > 0 and (deltas[0] < 0 or deltas[-1] > self.header.last_offset_delta)
        if outside or not all(map(lt, deltas, deltas[1:])):
            raise CorruptBatch("the offset deltas do not rise, or lie outside of the batch")
        return deltas

    @cached_property
    def due(self) -> list[int] | None:
        """The time at which each record is to be delivered, µs since 1970; None if the batch has no such column."""
        return None if self.due_at < 0 else self._read_times(self.due_at)

    @cached_property
    def expiry(self) -> list[int] | None:
        """The time at which each record expires, µs since 1970; None if the batch has no such column."""
        return None if self.expiry_at < 0 else self._read_times(self.expiry_at)

    @cached_property
    def headers(self) -> list[list[tuple[str, bytes]]]:
        """Per record its headers in the order they were given."""
        if self.header_columns is None:
            return [[] for _ in range(len(self))]
        lists_at, names, values, total = self.header_columns
        ends = read_offsets(self.body, lists_at, len(self))
        try:
            decoded = [name.decode() for name in read_binary(self.body, names, total)]
        except UnicodeDecodeError as error:
            raise CorruptBatch(f"a header name is not UTF-8: {error}") from None
        pairs = list(zip(decoded, read_binary(self.body, values, total), strict=True))
        return [pairs[start:end] for start, end in pairwise(ends)]

    def value_over(self, size: int) -> int | None:
        """The length of a value of more than `size` bytes; None if there is none. No value is read for it.

        A value that long covers a multiple of `size`, so that only the values at those places are looked at. The result
        is meaningless for offsets that fall; reading the column raises then.
        """
        at, count = self.values_column.offsets, len(self)
        offsets = view_i32(self.body[at : at + 4 * count + 4])
        for multiple in range(0, self.values_column.size, size):
            index = min(bisect_right(offsets, multiple), count)
            length = offsets[index] - offsets[index - 1]
            if length > size:
                return length
        return None

    def fitting(self, first: int, size: int) -> int:
        """How many records from `first` on take no more than `size` bytes together; see size_of."""
        count = len(self)
        if self.size_of(first, count) <= size:
            return count - first
        return bisect_right(range(first + 1, count + 1), size, key=lambda end: self.size_of(first, end))

    def size_of(self, first: int, end: int) -> int:
        """Bytes of the keys and values of some records; meaningless for offsets that fall."""
        return sum(offsets[end] - offsets[first] for offsets in self._ends)

    def value_ends(self) -> Sequence[int]:
        """Where each value begins in the value column, and the end of the last; meaningless where they fall."""
        return self._ends[0]

    @cached_property
    def _ends(self) -> list[Sequence[int]]:
        columns = [self.values_column] if self.keys_column is None else [self.values_column, self.keys_column]
        size = 4 * len(self) + 4
        return [view_i32(self.body[column.offsets : column.offsets + size]) for column in columns]

    def _read_times(self, at: int) -> list[int]:
        return read_i64(self.body[at : at + 8 * len(self)])

    def to_arrow(self, columns: Iterable[str] | None = None) -> pa.RecordBatch:
        """The batch as Arrow, over the same memory: offset, timestamp, key, value, headers, or some of these columns.

        Needs pyarrow: the extra `arrow`.
        """
        from comet.records._arrow import to_arrow

        return to_arrow(self, columns)


def _take_headers(cursor: Cursor, count: int) -> HeaderColumns:
    lists_at, total = cursor.take_offsets(count)
    if total > len(cursor.body) // 8:
        raise CorruptBatch(f"{total} headers do not fit into the body")
    return HeaderColumns(lists_at, cursor.take_binary(total), cursor.take_binary(total), total)


def decode(buffer: Buffer, at: int = 0, *, check: bool = True, stamped: bool = False) -> Batch:
    """The batch at `at`. `check` verifies its checksum; `stamped`, with it, that of the leader's stamp."""
    return opened(verify(buffer, at, stamped=stamped) if check else read_header(buffer, at), buffer, at)


def opened(header: BatchHeader, buffer: Buffer, at: int = 0) -> Batch:
    """The batch at `at`, whose header was read there."""
    stored = memoryview(buffer)[at + HEADER_BYTES : at + header.length]
    if header.codec:
        stored = memoryview(decompress(header.codec, stored, header.body_size))
    size = _lone_size(header, stored)
    return Batch(header, stored) if size < 0 else _lone(header, stored, size)


def lone_size(header: BatchHeader, buffer: Buffer) -> int:
    """The size of the value if the batch is one small record with nothing but a value, and sound, as live events are;
    else -1. For a caller that needs no column: a third of the cost of opening and checking the batch."""
    return -1 if header.codec else _lone_size(header, memoryview(buffer)[HEADER_BYTES : header.length])


def _lone_size(header: BatchHeader, body: memoryview) -> int:
    if header.record_count != 1 or header.body_size > LONE_BYTES_MAX or header.flags & _COLUMNS:
        return -1
    first, size = _LONE.unpack_from(body)
    padding = len(body) - 8 - size
    sound = first == 0 <= size and 0 <= padding < 8 and header.max_timestamp_us == header.min_timestamp_us
    return size if sound and body[8 + size :] == PADDING[padding] else -1


def _lone(header: BatchHeader, body: memoryview, size: int) -> Batch:
    """The batch of a lone record with all its columns: half of the cost of the general way, which takes over, and finds
    the error, if anything does not add up."""
    end = 8 + size
    timestamp_us = header.min_timestamp_us
    batch = Batch.__new__(Batch)
    base = header.base_offset
    batch.__dict__.update(
        header=header, body=body, _checked=True, timestamps_at=-1, deltas_at=-1, due_at=-1, expiry_at=-1,
        keys_column=None, values_column=_new_binary(Binary, (-1, 0, 8, size)), header_columns=None,
        values=[body[8:end].tobytes()], keys=[None], timestamps=[timestamp_us], offsets=range(base, base + 1),
    )  # fmt: skip
    return batch


def iterate(buffer: Buffer, *, check: bool = True, stamped: bool = True) -> Iterator[Batch]:
    """The batches that lie one after the other in `buffer`, which must end with a whole one."""
    at = 0
    size = len(buffer)
    while at < size:
        batch = decode(buffer, at, check=check, stamped=stamped)
        at += batch.header.length
        yield batch
