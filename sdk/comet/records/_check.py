"""The check of a batch's columns: everything that a reader relies on to slice them, without reading a value.

    offsets         begin at 0, never fall, end at the size of what follows (the walk over the buffers checks that)
    bitmaps         no bit beyond the last record; a null has no bytes
    deltas          rise, from 0 or more to last_offset_delta or less
    timestamps      the smallest and the largest are those of the header: for leaders alone
    header names    are UTF-8, each for itself

A leader runs it for each batch that it takes, a reader for each that it opens: a batch that passes raises nothing in
any property of Batch. Cost per record: nothing for values of one size (their offsets are compared with a table), 7 ns
for others, and 14 ns for timestamps. That is a tenth of what a read costs, so readers leave the timestamps out.

The numbers are not made one by one: an offsets column is read as one large integer with a lane of 32 bits per offset.
Offsets are below 2^31, so the top bit of each number is free, and with it set on one side the bits of a subtraction do
not borrow from each other: it stays set in each lane where the offset does not fall.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import compress, pairwise
from operator import sub
from struct import Struct
from typing import Final

from comet.errors import CorruptBatch
from comet.records._columns import Binary, Columns, equal_size, read_i64, read_offsets, view_i32

_I64: Final = Struct("<q")
_ZERO: Final = bytes(4)
_DIGITS: Final = bytes.maketrans(b"01", b"\0\1")
_CACHED_MAX: Final = 1 << 17  # numbers of a column: nothing is cached for longer ones
_CONTINUES: Final = 0x80  # a byte of UTF-8 within a character is from here
_CONTINUES_END: Final = 0xC0  # up to, not including, here


def check(batch: Columns, times: bool) -> None:
    """Raises CorruptBatch with the column and its error."""
    header, body, count = batch.header, batch.body, len(batch)
    if times and batch.timestamps_at >= 0:
        _check_timestamps(
            body[batch.timestamps_at : batch.timestamps_at + 8 * count],
            count,
            header.min_timestamp_us,
            header.max_timestamp_us,
        )
    if batch.deltas_at >= 0:
        _ = batch.deltas
    if batch.keys_column is not None:
        _check_binary(body, batch.keys_column, count, "keys")
    _check_binary(body, batch.values_column, count, "values")
    if batch.header_columns is not None:
        lists_at, names, values, total = batch.header_columns
        _check_offsets(body, lists_at, count, total, "header lists")
        _check_binary(body, names, total, "header names")
        _check_binary(body, values, total, "header values")
        _check_names(body, names, total)


def _check_timestamps(column: memoryview, count: int, low: int, high: int) -> None:
    if count > 1 and column[:8] == _I64.pack(low) and column[-8:] == _I64.pack(high) and _rises(column, count, 64):
        return  # the common case: times rise
    times = read_i64(column)
    first, last = min(times), max(times)
    if first != low or last != high:
        raise CorruptBatch(f"the timestamps are from {first} to {last}, but {low} to {high} in the header")


def _check_binary(body: memoryview, column: Binary, count: int, name: str) -> None:
    _check_offsets(body, column.offsets, count, column.size, name)
    if column.bitmap >= 0:
        check_nulls(body, column, count, name)


def _check_offsets(body: memoryview, at: int, count: int, end: int, name: str) -> None:
    """Checks a column of offsets; the walk over the buffers has found that the last one is `end`."""
    column = body[at : at + 4 * count + 4]
    if count == 0:  # headers of records that have none
        if end:
            raise CorruptBatch(f"the offsets of the {name} do not start at 0, or fall")
        return
    if equal_size(column, count, end) is not None:
        return
    if column[:4] != _ZERO or not _rises(column, count + 1, 32):
        raise CorruptBatch(f"the offsets of the {name} do not start at 0, or fall")


def _rises(column: memoryview, count: int, bits: int) -> bool:
    """Whether none of `count` numbers of so many bits is negative, or less than the one before it."""
    all_bits = bits * (count - 1)  # of the numbers without the last, and of those without the first
    make = _top_bits if count <= _CACHED_MAX else _top_bits.__wrapped__
    top = make(bits, 1 << (count - 1).bit_length()) & ((1 << all_bits) - 1)
    numbers = int.from_bytes(column, "little")
    later = numbers >> bits
    earlier = numbers & ((1 << all_bits) - 1)
    if (later | earlier) & top:
        return False  # a negative one
    return ((later | top) - earlier) & top == top


@lru_cache(maxsize=32)
def _top_bits(bits: int, count: int) -> int:
    return int.from_bytes((bytes(bits // 8 - 1) + b"\x80") * count, "little")


def check_nulls(body: memoryview, column: Binary, count: int, name: str) -> None:
    """Checks the bitmap of a column, and that nulls have no bytes."""
    bits = int.from_bytes(body[column.bitmap : column.bitmap + (count + 7) // 8], "little")
    if bits >> count:
        raise CorruptBatch(f"the bitmap of the {name} has bits beyond the last record")
    absent = ~bits & ((1 << count) - 1)
    if not absent or not column.size:
        return
    offsets = view_i32(body[column.offsets : column.offsets + 4 * count + 4])
    chosen = f"{absent:0{count}b}"[::-1].encode().translate(_DIGITS)
    if any(compress(map(sub, offsets[1:], offsets), chosen)):
        raise CorruptBatch(f"the {name} have a null that has bytes")


def _check_names(body: memoryview, names: Binary, total: int) -> None:
    data = body[names.data : names.data + names.size].tobytes()
    if data.isascii():
        return
    try:
        data.decode()
        for start, end in pairwise(read_offsets(body, names.offsets, total)):
            if start < end and _CONTINUES <= data[start] < _CONTINUES_END:
                data[start:end].decode()  # begins within a character
    except UnicodeDecodeError as error:
        raise CorruptBatch(f"a header name is not UTF-8: {error}") from None
