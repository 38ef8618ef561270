"""Columns in, one batch out.

The result is a list of parts that join to the batch, so that a large value column is copied once only, when the
frame around it is built. The encoding is canonical: the same records give the same bytes, and a column that says
nothing (all keys null, no headers, dense offsets, one timestamp) is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from operator import lt
from typing import Final, TypeVar

from crc32c import crc32c

from comet.errors import InvalidArgument
from comet.records._columns import PADDING, BadColumn, pack_binary, pack_bitmap, pack_i32, pack_i64
from comet.records._compression import compress
from comet.records._header import (
    BODY_BYTES_MAX,
    DUE,
    EXPIRY,
    HEADER_BYTES,
    HEADERS,
    INT64_MAX,
    KEY_NULLS,
    KEYED,
    KEYS,
    OFFSET_DELTAS,
    PREFIX,
    RECORDS_MAX,
    TAIL,
    TRANSACTIONAL,
    VALUE_NULLS,
    VERSION,
    Codec,
)

T = TypeVar("T")
HeaderPairs = Sequence[tuple[str, bytes]]

# Below this many bytes a join and one checksum are quicker than a checksum of each part.
_JOIN_BYTES_MAX: Final = 16 << 10
_OFFSETS_OF_ONE: Final = struct.Struct("<ii")


def encode(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps: int | Sequence[int],
    headers: Sequence[HeaderPairs | None] | None = None,
    lengths: int | Sequence[int] | None = None,
    codec: Codec = Codec.NONE,
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    schema_id: int = 0,
    offset_deltas: Sequence[int] | None = None,
    span: int | None = None,
    due: Sequence[int] | None = None,
    expiry: Sequence[int] | None = None,
    transactional: bool = False,
    keyed: bool = False,
) -> list[bytes]:
    """The parts of an unstamped batch, header first; b"".join(parts) is the batch.

    `lengths` is the result of `measure` for the values, if there is one. `span` is the number of offsets that the batch
    covers, if that is more than up to its last record; such a batch may have no records. A `transactional` batch counts
    only once the transaction of its producer and epoch is committed; a `keyed` one is what a request with an
    idempotency key wrote.

    Raises InvalidArgument where columns differ in length or hold what the format cannot.

    >>> from comet.records import decode, encode
    >>> decode(b"".join(encode([b"a", None], keys=[b"k", b"k"], timestamps=1_700_000_000_000_000))).values
    [b'a', None]
    """
    count = len(values)
    if not 0 < count <= RECORDS_MAX and not (span and not count):
        raise InvalidArgument(f"a batch holds 1 to {RECORDS_MAX} records, not {count}")
    _check_producer(producer_id, producer_epoch, base_sequence, count if span is None else span)
    if transactional and not producer_id:
        raise InvalidArgument("a transactional batch needs a producer id")
    if keyed and (transactional or producer_epoch or not producer_id):
        raise InvalidArgument("a keyed batch needs a producer id without an epoch, and cannot be transactional")
    part = TRANSACTIONAL if transactional else KEYED if keyed else 0
    if span is not None and offset_deltas is None:
        offset_deltas = range(count)
    rare = offset_deltas is not None or due is not None or expiry is not None
    if count == 1 and codec == Codec.NONE and keys is None and headers is None and not rare:
        alone = _encode_one(values[0], timestamps, producer_id, producer_epoch, base_sequence, schema_id, part)
        if alone is not None:
            return alone
    parts: list[bytes] = []
    try:
        earliest, latest = _add_timestamps(parts, timestamps, count)
        flags, last_delta = part, count - 1
        if offset_deltas is not None:
            last_delta = _add_deltas(parts, offset_deltas, count, span)
            flags |= OFFSET_DELTAS if last_delta != count - 1 else 0
        if rare:
            flags |= _add_times(parts, count, due, expiry)
        if keys is not None:
            flags |= _add_keys(parts, _column("keys", keys, count))
        flags |= _add_binary(parts, values, VALUE_NULLS, lengths)
        if headers is not None:
            flags |= _add_headers(parts, _column("headers", headers, count))
        stored, body, size = _pack_body(codec, parts)
        tail = TAIL.pack(
            VERSION, stored, flags, count, producer_id, base_sequence, earliest, latest,
            last_delta, producer_epoch, size, schema_id,
        )  # fmt: skip
    except (TypeError, ValueError, AttributeError, OverflowError, struct.error, BadColumn) as error:
        raise InvalidArgument(f"the records cannot be encoded: {error}") from error
    return seal(tail, body)


def _encode_one(
    value: object, timestamps: int | Sequence[int], producer_id: int, producer_epoch: int, base_sequence: int,
    schema_id: int, flags: int,
) -> list[bytes] | None:  # fmt: skip
    """A plain record sent alone, which is most of the batches of a slow topic; None for any other batch.

    The same bytes in a third of the time, for a record that is awaited.
    """
    timestamp = timestamps[0] if isinstance(timestamps, list) and len(timestamps) == 1 else timestamps
    if type(value) is not bytes or type(timestamp) is not int or len(value) > _JOIN_BYTES_MAX:
        return None
    size = 8 + len(value)
    padding = PADDING[-size & 7]
    try:
        tail = TAIL.pack(
            VERSION, 0, flags, 1, producer_id, base_sequence, timestamp, timestamp, 0, producer_epoch,
            size + len(padding), schema_id,
        )  # fmt: skip
    except struct.error:
        return None
    sealed = tail + _OFFSETS_OF_ONE.pack(0, len(value)) + value + padding
    return [PREFIX.pack(0, 0, 0, PREFIX.size + len(sealed), 0, crc32c(sealed)) + sealed]


def _check_producer(producer_id: int, producer_epoch: int, base_sequence: int, count: int) -> None:
    if producer_id < 0 or not 0 <= base_sequence <= INT64_MAX - count:
        raise InvalidArgument(f"producer id {producer_id} and sequence {base_sequence} must be 0 or more, in 63 bits")
    if not producer_id and (base_sequence or producer_epoch):
        raise InvalidArgument("a sequence or a producer epoch needs a producer id")


def _column(name: str, column: Sequence[T], count: int) -> Sequence[T]:
    if len(column) != count:
        raise BadColumn(f"{name} has {len(column)} entries for {count} records")
    return column


def _add(parts: list[bytes], data: bytes) -> None:
    parts.append(data)
    if len(data) & 7:
        parts.append(PADDING[-len(data) & 7])


def _add_timestamps(parts: list[bytes], timestamps: int | Sequence[int], count: int) -> tuple[int, int]:
    """The smallest and the largest, and a column if they differ."""
    if isinstance(timestamps, int):
        return timestamps, timestamps
    earliest, latest = min(_column("timestamps", timestamps, count)), max(timestamps)
    if earliest != latest:
        _add(parts, pack_i64(timestamps))
    return earliest, latest


def _add_times(parts: list[bytes], count: int, due: Sequence[int] | None, expiry: Sequence[int] | None) -> int:
    flags = 0
    if due is not None:
        flags |= DUE
        _add(parts, pack_i64(_column("due", due, count)))
    if expiry is not None:
        flags |= EXPIRY
        _add(parts, pack_i64(_column("expiry", expiry, count)))
    return flags


def _add_deltas(parts: list[bytes], deltas: Sequence[int], count: int, span: int | None) -> int:
    """Adds the column, unless offsets are dense; returns the last delta that the batch covers."""
    if any(delta < 0 for delta in _column("offset_deltas", deltas, count)[:1]) or not all(map(lt, deltas, deltas[1:])):
        raise BadColumn("offset_deltas must rise from 0 or more")
    last = deltas[-1] if count else -1
    end = last if span is None else span - 1
    if not last <= end < RECORDS_MAX:
        raise BadColumn(f"offset_deltas must end below the span of the batch, {RECORDS_MAX} at most")
    if end != count - 1:  # rising and ending there, they can only be dense
        _add(parts, pack_i32(deltas, count))
    return end


def _add_keys(parts: list[bytes], keys: Sequence[bytes | None]) -> int:
    if all(key is None for key in keys):
        return 0
    return KEYS | _add_binary(parts, keys, KEY_NULLS)


def _add_binary(
    parts: list[bytes], values: Sequence[bytes | None], nulls: int, lengths: int | Sequence[int] | None = None
) -> int:
    """Adds a binary column; returns `nulls` if it needed a bitmap, else 0."""
    try:
        # Asking for None costs more than stumbling on it.
        offsets, data = pack_binary(values, lengths)  # type: ignore[arg-type]
        nulls = 0
    except TypeError:
        if None not in values:
            raise
        _add(parts, pack_bitmap(values))
        offsets, data = pack_binary([b"" if value is None else value for value in values], lengths)
    _add(parts, offsets)
    _add(parts, data)
    return nulls


def _add_headers(parts: list[bytes], headers: Sequence[HeaderPairs | None]) -> int:
    pairs = [pair for record in headers for pair in record or ()]
    if not pairs:
        return 0
    _add(parts, pack_i32((0, *accumulate(len(record or ()) for record in headers)), len(headers) + 1))
    for column in ([name.encode() for name, _ in pairs], [value for _, value in pairs]):
        for buffer in pack_binary(column):
            _add(parts, buffer)
    return HEADERS


def _pack_body(codec: Codec, parts: list[bytes]) -> tuple[Codec, list[bytes], int]:
    """The codec that is used, the parts to store, and their uncompressed size."""
    size = sum(map(len, parts))
    if size > BODY_BYTES_MAX:
        raise BadColumn(f"the records take {size} bytes; at most {BODY_BYTES_MAX} are possible")
    if codec == Codec.NONE:
        return Codec.NONE, parts, size
    packed = compress(Codec(codec), b"".join(parts))
    return (Codec(codec), [packed], size) if len(packed) < size else (Codec.NONE, parts, size)


def seal(tail: bytes, body: list[bytes]) -> list[bytes]:
    size = sum(map(len, body))
    if size <= _JOIN_BYTES_MAX:
        sealed = b"".join((tail, *body))
        return [PREFIX.pack(0, 0, 0, HEADER_BYTES + size, 0, crc32c(sealed)) + sealed]
    crc = crc32c(tail)
    for part in body:
        crc = crc32c(part, crc)
    return [PREFIX.pack(0, 0, 0, HEADER_BYTES + size, 0, crc) + tail, *body]
