"""Markers: the control batches with which the leader of a partition ends a transaction in it.

    header    TRANSACTIONAL | CONTROL, producer and epoch of the transaction, one record, sequence 0
    value      0  version u8     0
               1  kind u8        0 abort, 1 commit
               2  six zero bytes
               8  first i64      the transaction's first offset in this partition; -1: it wrote nothing here

A marker is not data: consumers skip it. It comes after all records that its transaction wrote to the partition.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from comet.errors import CorruptBatch, InvalidArgument, UnsupportedVersion
from comet.records._batch import Batch
from comet.records._encode import seal
from comet.records._header import CONTROL, INT64_MAX, MARKER_BODY_BYTES, TAIL, TRANSACTIONAL, VERSION

_VALUE: Final = struct.Struct("<BB6sq")
_OFFSETS: Final = struct.pack("<ii", 0, _VALUE.size)
_MARKER_VERSION: Final = 0
_ABORT, _COMMIT = 0, 1

assert len(_OFFSETS) + _VALUE.size == MARKER_BODY_BYTES


class Marker(NamedTuple):
    """The end of a transaction, and its first offset in the partition; -1 if it wrote nothing there."""

    commit: bool
    first_offset: int


def encode_marker(producer_id: int, epoch: int, commit: bool, first_offset: int, timestamp: int) -> bytes:
    """The unstamped batch that ends the transaction of this producer and epoch.

    >>> from comet.records import decode, encode_marker, marker_of
    >>> marker_of(decode(encode_marker(7, 3, True, 41, 1_700_000_000_000_000)))
    Marker(commit=True, first_offset=41)
    """
    if not (0 < producer_id <= INT64_MAX and -1 <= first_offset <= INT64_MAX):
        raise InvalidArgument(f"invalid marker: producer {producer_id}, first offset {first_offset}")
    try:
        tail = TAIL.pack(
            VERSION, 0, TRANSACTIONAL | CONTROL, 1, producer_id, 0, timestamp, timestamp, 0, epoch, MARKER_BODY_BYTES, 0
        )
    except struct.error as error:
        raise InvalidArgument(f"the marker cannot be encoded: {error}") from error
    value = _VALUE.pack(_MARKER_VERSION, _COMMIT if commit else _ABORT, bytes(6), first_offset)
    return b"".join(seal(tail, [_OFFSETS, value]))


def marker_of(batch: Batch) -> Marker:
    """The marker in a batch with the CONTROL flag."""
    assert batch.header.control, "only a control batch is a marker"
    value = batch.values[0]
    if value is None or len(value) != _VALUE.size:
        raise CorruptBatch("a marker has the wrong length")
    version, kind, zero, first_offset = _VALUE.unpack(value)
    if version != _MARKER_VERSION:
        raise UnsupportedVersion(f"marker version {version}; this is a reader of version {_MARKER_VERSION}")
    if kind > _COMMIT or zero != bytes(6) or first_offset < -1:
        raise CorruptBatch(f"invalid marker: kind {kind}, first offset {first_offset}")
    return Marker(kind == _COMMIT, first_offset)
