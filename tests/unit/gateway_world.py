"""Topics as the gateway's hub sees them, made of real record batches, without a broker."""

from __future__ import annotations

from collections.abc import Sequence

import comet
from comet import records

TOPIC = "quotes"
TOPIC_ID = bytes(range(16))


def batch_of(
    partition: int,
    offsets: Sequence[int],
    values: Sequence[bytes | None] | None = None,
    *,
    keys: Sequence[bytes | None] | None = None,
    epoch: int = 1,
    timestamps: int | Sequence[int] = 1_700_000_000_000_000,
) -> comet.RecordBatch[bytes]:
    """A batch as a consumer gives it; the values name partition, offset and epoch unless they are given."""
    texts = [b"%d/%d/%d" % (partition, offset, epoch) for offset in offsets] if values is None else values
    deltas = [offset - offsets[0] for offset in offsets]
    dense = deltas == list(range(len(deltas)))
    data = b"".join(
        records.encode(texts, keys=keys, timestamps=timestamps, offset_deltas=None if dense else deltas)
    )  # fmt: skip
    stamped = records.make_stamp(offsets[0], 0, epoch, len(data)) + data[records.STAMP_BYTES :]
    return comet.RecordBatch(TOPIC, partition, records.decode(stamped, stamped=True), leader_epoch=epoch)
