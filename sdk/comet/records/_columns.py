"""The buffers that columns are made of, written and read with C-speed building blocks of the standard library.

Every buffer begins 8-aligned in the body and is padded with zero bytes:

    fixed width    i64[n] or i32[n]
    binary         i32[n+1] offsets, then the bytes; with nulls a bitmap of one bit per record goes before

Measured per record on 100-byte values: an offsets column costs 34 ns to compute; cutting values costs 48 ns with
BytesIO.read (a slice costs 67, and numpy has no bytes objects to offer). Values of one size need neither: their
offsets are an arithmetic column, kept and compared whole, and a precompiled struct cuts 64 of them at a time in
13 ns each. Quotes and other fixed layouts are the common case of a fast topic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from io import BytesIO
from itertools import accumulate, repeat
from operator import itemgetter, sub
from struct import Struct, pack, unpack
from typing import Any, Final, NamedTuple, Protocol

from comet.errors import CorruptBatch
from comet.records._header import BODY_BYTES_MAX, BatchHeader

PADDING: Final = tuple(bytes(n) for n in range(8))
_LITTLE: Final = sys.byteorder == "little"
_I32: Final = Struct("<i")

# Values of one size: how many of them one struct cuts, and the largest size and count worth keeping tables for.
_CUT: Final = 64
_EQUAL_BYTES_MAX: Final = 4096
_EQUAL_RECORDS_MAX: Final = 1 << 16


class BadColumn(Exception):
    """An invalid value from a caller; becomes an InvalidArgument where the column's name is known."""


# ---- writing


def pack_i64(numbers: Sequence[int]) -> bytes:
    return pack(f"<{len(numbers)}q", *numbers)


def pack_i32(numbers: Iterable[int], count: int) -> bytes:
    return pack(f"<{count}i", *numbers)


def pack_bitmap(values: Sequence[object]) -> bytes:
    """One bit per value, least significant first, 1 where it is not None."""
    digits = "".join(["0" if value is None else "1" for value in values])
    return int(digits[::-1], 2).to_bytes((len(values) + 7) // 8, "little")


@lru_cache(maxsize=16)
def _arithmetic(size: int, count: int) -> bytes:
    """The offsets column of `count` values of `size` bytes each."""
    return pack(f"<{count + 1}i", *range(0, size * count + 1, size)) if size else bytes(4 * (count + 1))


def _equal_offsets(size: int, count: int) -> bytes:
    # Counts differ from batch to batch, so tables are made for the next power of two and cut.
    if count == 1:
        return _I32.pack(0) + _I32.pack(size)
    return _arithmetic(size, 1 << (count - 1).bit_length())[: 4 * (count + 1)]


def measure(values: Sequence[bytes | None]) -> int | list[int]:
    """The length of each value, 0 for a null; one number if all are equal. Raises TypeError for an invalid value."""
    try:
        lengths = list(map(len, values))  # type: ignore[arg-type]  # a None, which is rare, is found by the error
    except TypeError:
        lengths = [0 if value is None else len(value) for value in values]
    if lengths and lengths.count(lengths[0]) == len(lengths):
        return lengths[0]
    return lengths


def pack_binary(values: Sequence[bytes], lengths: int | Sequence[int] | None = None) -> tuple[bytes, bytes]:
    """Offsets and bytes of values without nulls; `lengths` is the result of `measure`, if there is one.

    Raises TypeError where a value is not bytes-like.
    """
    data = b"".join(values)
    count = len(values)
    if len(data) > BODY_BYTES_MAX:
        raise BadColumn(f"{len(data)} bytes in one batch; at most {BODY_BYTES_MAX} are possible")
    if lengths is None:
        lengths = measure(values)
    if isinstance(lengths, int):
        if lengths * count == len(data) and lengths <= _EQUAL_BYTES_MAX and count <= _EQUAL_RECORDS_MAX:
            return _equal_offsets(lengths, count), data
        lengths = [lengths] * count
    offsets = pack(f"<{count + 1}i", 0, *accumulate(lengths))
    if offsets[-4:] != _I32.pack(len(data)):  # a memoryview of items that are wider than a byte
        raise TypeError("a value is not made of single bytes")
    return offsets, data


# ---- reading


def read_i32(view: memoryview) -> Sequence[int]:
    """All int32 of a buffer."""
    return view.cast("i").tolist() if _LITTLE else unpack(f"<{len(view) // 4}i", view)


def view_i32(view: memoryview) -> Sequence[int]:
    """The same without creating the numbers, if the machine's byte order allows."""
    return view.cast("i") if _LITTLE else read_i32(view)


def read_i64(view: memoryview) -> list[int]:
    """All int64 of a buffer."""
    return view.cast("q").tolist() if _LITTLE else list(unpack(f"<{len(view) // 8}q", view))


class Binary(NamedTuple):
    """The place of one binary column in the body: within bounds, but its offsets are not checked yet."""

    bitmap: int  # -1: no nulls
    offsets: int
    data: int
    size: int


class HeaderColumns(NamedTuple):
    """The positions of the three columns that make up the headers, and the number of headers."""

    lists_at: int
    names: Binary
    values: Binary
    total: int


class Columns(Protocol):
    """The columns of a batch in its body: -1 or None where it has no such column."""

    @property
    def header(self) -> BatchHeader: ...
    @property
    def body(self) -> memoryview: ...
    @property
    def timestamps_at(self) -> int: ...
    @property
    def deltas_at(self) -> int: ...
    @property
    def keys_column(self) -> Binary | None: ...
    @property
    def values_column(self) -> Binary: ...
    @property
    def header_columns(self) -> HeaderColumns | None: ...
    @property
    def offsets(self) -> Sequence[int]: ...
    @property
    def deltas(self) -> Sequence[int]: ...
    @property
    def keys(self) -> Sequence[bytes | None]: ...
    @property
    def values(self) -> Sequence[bytes | None]: ...
    def __len__(self) -> int: ...


class Cursor:
    """Walks the buffers of a body from the first to the last, and checks bounds and padding as it goes."""

    __slots__ = ("at", "body")

    def __init__(self, body: memoryview) -> None:
        self.body = body
        self.at = 0

    def take(self, size: int) -> int:
        """Steps over a buffer of `size` bytes and its padding; returns where it begins."""
        start = self.at
        end = start + size
        self.at = after = end + (-size & 7)
        if after > len(self.body):
            raise CorruptBatch(f"a column of {size} bytes reaches beyond the body")
        if after != end and self.body[end:after] != PADDING[after - end]:
            raise CorruptBatch("padding bytes are not zero")
        return start

    def take_offsets(self, count: int) -> tuple[int, int]:
        """Steps over count + 1 offsets; returns where they begin, and the last one."""
        start = self.take(4 * count + 4)
        last: int = _I32.unpack_from(self.body, start + 4 * count)[0]
        if last < 0:
            raise CorruptBatch(f"an offsets column ends at {last}")
        return start, last

    def take_binary(self, count: int, *, nulls: bool = False) -> Binary:
        bitmap = self.take((count + 7) // 8) if nulls else -1
        offsets, size = self.take_offsets(count)
        return Binary(bitmap, offsets, self.take(size), size)


def read_offsets(body: memoryview, at: int, count: int, *, checked: bool = False) -> Sequence[int]:
    """The count + 1 offsets at `at`, once they start at 0 and never fall; the last one was checked by Cursor."""
    offsets = read_i32(body[at : at + 4 * count + 4])
    # Sorting what is in order is one pass, and comparing lists of the same objects another: 5 ns a record.
    if not checked and (offsets[0] != 0 or sorted(offsets) != offsets):
        raise CorruptBatch("an offsets column does not start at 0, or falls")
    return offsets


def equal_size(column: memoryview, count: int, end: int) -> int | None:
    """The size of each value if all are of one size: the offsets column is compared whole with the column of that size.
    None if they are not, or if the table would be too large to keep."""
    size = end // count
    if size * count != end or size > _EQUAL_BYTES_MAX or count > _EQUAL_RECORDS_MAX:
        return None
    # Two looks before a table is made.
    middle = count >> 1
    if column[4:8] != _I32.pack(size) or column[4 * middle : 4 * middle + 4] != _I32.pack(size * middle):
        return None
    return size if column.tobytes() == _equal_offsets(size, count) else None  # of bytes, as views compare slowly


def read_binary(body: memoryview, column: Binary, count: int, *, checked: bool = False) -> list[bytes]:
    """The values of a binary column, as if none were null. `checked`: the batch was, so its offsets are right."""
    if count == 0:  # headers of records that have none
        if column.size:
            raise CorruptBatch("an offsets column does not start at 0")
        return []
    data = body[column.data : column.data + column.size]
    if count == 1:
        if _I32.unpack_from(body, column.offsets)[0] != 0:
            raise CorruptBatch("an offsets column does not start at 0")
        return [data.tobytes()]
    size = equal_size(body[column.offsets : column.offsets + 4 * count + 4], count, column.size)
    if size is not None:
        return _cut_equal(data, size, count)
    offsets = read_offsets(body, column.offsets, count, checked=checked)
    return list(map(BytesIO(data).read, map(sub, offsets[1:], offsets)))


@lru_cache(maxsize=16)
def _cutter(size: int) -> Struct:
    return Struct(f"{size}s" * _CUT)


def _cut_equal(data: memoryview, size: int, count: int) -> list[bytes]:
    """The values are cut from the batch itself: nothing is copied but the values."""
    if size == 0:
        return [b""] * count
    rest = count % _CUT
    whole = (count - rest) * size
    values: list[bytes] = []
    for cut in _cutter(size).iter_unpack(data[:whole]):
        values += cut  # a tuple is added at once, 4 ns a record less than by an iterator
    values += map(BytesIO(data[whole:]).read, repeat(size, rest))
    return values


def read_present(body: memoryview, at: int, count: int) -> list[bool]:
    """For each record whether its bit is set; the bits beyond the last record must not be."""
    bits = int.from_bytes(body[at : at + (count + 7) // 8], "little")
    if bits >> count:
        raise CorruptBatch("a bitmap has bits beyond the last record")
    digits = f"{bits:0{count}b}"
    return [digit == "1" for digit in reversed(digits)]


def read_nullable(body: memoryview, column: Binary, count: int, *, checked: bool = False) -> list[bytes | None]:
    """The values of a binary column with None where the bitmap says so."""
    values = read_binary(body, column, count, checked=checked)
    if column.bitmap < 0 or not values:
        return values  # type: ignore[return-value]  # a list of bytes that only its new owner will see
    present = read_present(body, column.bitmap, count)
    if any(value and not there for value, there in zip(values, present, strict=True)):
        raise CorruptBatch("a null has bytes")
    return [value if there else None for value, there in zip(values, present, strict=True)]


def read_rows(body: memoryview, column: Binary, count: int, rows: Sequence[int]) -> list[bytes | None]:
    """Some values of a column of a batch that was checked; None where the bitmap says so."""
    ends = view_i32(body[column.offsets : column.offsets + 4 * count + 4])
    data, at = body[column.data : column.data + column.size], column.bitmap
    values: list[bytes | None] = [data[ends[row] : ends[row + 1]].tobytes() for row in rows]
    if at < 0:
        return values
    return [value if body[at + (row >> 3)] >> (row & 7) & 1 else None for row, value in zip(rows, values, strict=True)]


def chooser(rows: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that takes these rows of a column."""
    if len(rows) > 1:
        return itemgetter(*rows)
    return lambda column: [column[row] for row in rows]
