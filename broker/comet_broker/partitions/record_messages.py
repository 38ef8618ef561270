"""Records of batches as messages of the protocol, for the calls that answer with single records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from comet.records import Batch, BatchHeader
from comet.v1 import records_pb2 as pb
from comet_broker.core.isolation import AbortedTransaction


def counts(header: BatchHeader, aborted: Sequence[AbortedTransaction]) -> bool:
    """Whether the batch is data, and not of an aborted transaction."""
    if header.control:
        return False
    if not header.transactional:
        return True
    return all(
        (one.producer_id, one.epoch) != (header.producer_id, header.producer_epoch)
        or not one.first <= header.base_offset < one.end
        for one in aborted
    )


def record_messages(batch: Batch, since: int = 0) -> Iterator[pb.Record]:
    """The records from an offset on, expired or not."""
    expiry = batch.expiry
    for row, (offset, value, key, headers, timestamp_us) in enumerate(
        zip(batch.offsets, batch.values, batch.keys, batch.headers, batch.timestamps, strict=True)
    ):
        if offset >= since:
            record = pb.Record(key=key, value=value, timestamp_us=timestamp_us, offset=offset)
            if expiry is not None:
                record.expires_us = expiry[row]
            for name, content in headers:
                record.headers.add(name=name, value=content)
            yield record


def requested_message(wanted: pb.Record, offset: int, now_us: int) -> bytes:
    """The encoded message of a record without expiry that was written at `now_us`, as `record_messages` has it."""
    record = pb.Record(timestamp_us=wanted.timestamp_us or now_us, offset=offset)
    if wanted.HasField("key"):
        record.key = wanted.key
    if wanted.HasField("value"):
        record.value = wanted.value
    if wanted.headers:
        record.headers.extend(wanted.headers)
    return record.SerializeToString()
