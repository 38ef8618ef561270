"""The contents of a delivery, opened batch by batch. Nothing is decided here, and no position moves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from comet import records
from comet.consumer.aborted import CONTROL, MARKED
from comet.consumer.broker_subscription import PartitionSubscription
from comet.encryption.keyring import Keyring
from comet.errors import CometError, CorruptBatch, CorruptRecords, DataLoss
from comet.serde import Serde
from comet.values.record import RecordBatch, unexpired
from comet.wire.corrupt import opened

if TYPE_CHECKING:
    from comet.filters import Filter

T = TypeVar("T")
EXPIRY: Final = int(records.Flag.EXPIRY)

# In order: batches; offsets up to which no record is visible; and errors.
Opened = tuple[PartitionSubscription, RecordBatch[T] | int | CometError]


def contents(
    reader: PartitionSubscription,
    batches: memoryview,
    in_hand: dict[PartitionSubscription, int],
    serde: Serde[T] | None,
    keyring: Keyring | None,
    uncommitted: bool,
    chosen: Filter | None,
    clock_us: Callable[[], int],
) -> Iterator[Opened[T]]:
    """What one delivery holds, without records before the position, markers, aborted and expired records,
    and those that the filter does not match; encrypted ones are matched once they are decrypted. An error that ends it
    comes last. `in_hand` has the offset after what was opened so far."""
    if reader.discards:
        reader.discards.passed(reader.position)
    expected = in_hand.setdefault(reader, reader.position)
    try:
        at, size = 0, len(batches)
        while at < size:
            header, here = records.verify(batches, at, stamped=True), at
            at += header.length
            base, end = header.base_offset, header.next_offset
            if end <= expected:
                continue
            if base > expected >= 0:
                yield reader, hole(*reader.tp, expected, base)
                return
            reader.read(base, header.leader_epoch)
            since, expected = expected, end
            in_hand[reader] = end
            if header.flags & MARKED and _hidden(reader, header, uncommitted):
                yield reader, end
                continue
            try:
                batch = opened(header, batches, here, reader.topic, reader.partition, since=since)
            except CorruptRecords as error:
                yield reader, error
                continue
            skip = bisect_left(batch.offsets, since) if base < since else 0
            if skip == len(batch):  # the others were removed
                yield reader, end
                continue
            found = RecordBatch(
                reader.topic,
                reader.partition,
                batch,
                skip=skip,
                high_watermark=reader.high_watermark,
                leader_epoch=reader.leader_epoch,
                serde=serde,
                keyring=keyring,
            )
            if header.flags & EXPIRY:
                alive = unexpired(found, clock_us())
                if alive is None:
                    yield reader, end
                    continue
                found = alive
            if chosen is not None and keyring is None:
                matching = found.pick(chosen.rows(found))
                yield reader, end if matching is None else matching
                continue
            yield reader, found
    except CorruptBatch as error:
        yield reader, error


def _hidden(reader: PartitionSubscription, header: records.BatchHeader, uncommitted: bool) -> bool:
    """Leaves out markers, and aborted records unless the reader asked for read_uncommitted."""
    if uncommitted:
        return bool(header.flags & CONTROL)
    return reader.discards.drops(header)


def hole(topic: str, partition: int, first: int, end: int) -> DataLoss:
    return DataLoss(
        f"{topic}/{partition}: offsets {first} to {end - 1} are missing in the broker's answer",
        details={"topic": topic, "partition": str(partition), "first": str(first), "end": str(end)},
    )
