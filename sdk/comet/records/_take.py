"""Batches with some of their records removed: each covers the same offsets as before.

    take(batch, rows)         the rows of a stamped batch, encoded again
    cover(first, end, ...)    a batch without records, for offsets of which no record is left

What covers an offset proves that nothing is missing there, so a reader needs no other sign that records were removed.
"""

from __future__ import annotations

from collections.abc import Sequence

from comet.records._batch import Batch
from comet.records._columns import chooser
from comet.records._encode import encode
from comet.records._header import RECORDS_MAX, STAMP_BYTES, Codec, make_stamp


def take(batch: Batch, rows: Sequence[int], *, first: int | None = None) -> bytes:
    """The batch with these rows of it, by rising number: with the stamp, the producer and the offsets that it had. From
    `first` on, if it has no producer, whose sequences would no longer be told by its offsets."""
    header = batch.header
    assert not header.control and (first is None or not header.producer_id)
    base = header.base_offset if first is None else first
    choose = chooser(rows)
    parts = encode(
        batch.values_of(rows),
        keys=batch.keys_of(rows),
        timestamps=header.min_timestamp_us if batch.timestamps_at < 0 or not rows else choose(batch.timestamps),
        headers=None if batch.header_columns is None else choose(batch.headers),
        codec=Codec(header.codec),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        schema_id=header.schema_id,
        offset_deltas=[offset - base for offset in choose(batch.offsets)],
        span=header.next_offset - base,
        due=None if batch.due is None else choose(batch.due),
        expiry=None if batch.expiry is None else choose(batch.expiry),
        transactional=header.transactional,
        keyed=header.keyed,
    )
    return stamped(parts, base, header.append_time_us, header.leader_epoch)


def cover(first: int, end: int, *, append_time_us: int, leader_epoch: int) -> bytes:
    """Batches without records for the offsets from `first` up to, not including, `end`."""
    assert first < end
    covered: list[bytes] = []
    while first < end:
        span = min(end - first, RECORDS_MAX)
        covered.append(stamped(encode([], timestamps=0, span=span), first, append_time_us, leader_epoch))
        first += span
    return b"".join(covered)


def stamped(parts: list[bytes], base_offset: int, append_time_us: int, leader_epoch: int) -> bytes:
    """The batch that `encode` made, with the stamp of a leader."""
    data = b"".join(parts)
    return make_stamp(base_offset, append_time_us, leader_epoch, len(data)) + data[STAMP_BYTES:]
