"""Reads snapshots of compacted partitions, in a task of an executor: of each key the last record below a fixed end.

    the newest batch first ─► records whose keys were not met yet ─► without tombstones and expired ones ─► [filter]
                           ─► rows

No filter is said to brokers here: without its last record, an older one of a key would become its row.

What is met first is the last record of its key, so one pass over the log is enough, and memory holds keys alone. Where
they are too many, a pass goes on with half of its keys; the other half gets a pass of its own, which emits nothing
above the offset at which they were divided.

A compaction up to the end removes only what a snapshot leaves out, so the rows are the same before, while and after it
runs. One beyond the end may remove records that a later one supersedes: the read notices it, and fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain
from typing import Final, NamedTuple

import pyarrow as pa

import comet
from comet.consumer.options import parsed_filter
from comet.consumer.ranges import Part, RangeReader, RangeSpec
from comet.errors import DataLoss, LimitExceeded, PartitionNotFound, TopicNotFound
from comet.event_loop import begin
from comet.records import Flag
from comet.spark.coalesce import joined
from comet.spark.columns import SparkColumns
from comet.spark.options import SourceOptions
from comet.spark.planning import NO_EPOCH, Range
from comet.spark.ranges import PART_RECORDS, lose, merged, nullify, reader_of
from comet.values.record import unexpired

MEMORY_BYTES: Final = 128 << 20  # for the keys of a pass
KEY_BYTES: Final = 120  # of memory for a key, beside its own bytes
FIRST_RECORDS: Final = 1 << 13  # of the first request; the range reader finds out how many fit
_CLASSES_MAX: Final = 1 << 31  # the bits of a hash that are left
_SPARED_BITS: Final = 32  # of a hash: by the others Python spreads the keys of a class in memory


def read(ranges: Iterable[Range], columns: SparkColumns, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Reads the snapshots of ranges, one after the other. Raises DataLoss where they cannot be told any more, unless
    failOnDataLoss=false."""
    return merged(map(columns.of, chain.from_iterable(joined(PartitionSnapshot(one, options)) for one in ranges)))


class Pass(NamedTuple):
    """A pass over the range, for the keys of one class. Records from `below` on are emitted by earlier passes."""

    number: int
    classes: int
    below: int

    def has(self, key: bytes) -> bool:
        return self.classes == 1 or (hash(key) >> _SPARED_BITS) % self.classes == self.number


class PartitionSnapshot:
    """The last records of the keys of a range, as batches, the newest first. Can be iterated over several times."""

    def __init__(
        self,
        one: Range,
        options: SourceOptions,
        reader: comet.Reader | None = None,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._range = one
        self._options = options
        self._reader = reader
        self._memory_bytes = memory_bytes
        self._filter = parsed_filter(options.filter, now_us=0)
        self._compacted = False  # beyond the end, as was logged

    def __iter__(self) -> Iterator[comet.RecordBatch[bytes]]:
        passes = [Pass(0, 1, self._range.end)]
        while passes:
            yield from self._emitted(passes)

    def _emitted(self, passes: list[Pass]) -> Iterator[comet.RecordBatch[bytes]]:
        """The last pass. Adds one for the keys that it leaves to another."""
        now = passes.pop()
        met: set[bytes] = set()
        size = 0
        for batch in self._batches():
            last: dict[bytes | None, int] = dict(zip(batch.keys, range(len(batch)), strict=True))
            last.pop(None, None)
            new = {key: at for key, at in last.items() if key is not None and key not in met and now.has(key)}
            met.update(new)
            size += sum(map(len, new))
            emitted = self._rows(batch, new.values(), now)
            if emitted is not None:
                yield emitted
            while len(met) > 1 and len(met) * KEY_BYTES + size > self._memory_bytes:
                now, other = self._divided(now, batch.first_offset)
                passes.append(other)
                met = {key for key in met if now.has(key)}
                size = sum(map(len, met))

    def _divided(self, now: Pass, offset: int) -> tuple[Pass, Pass]:
        """The pass from here on, with half of the keys, and one for the other half."""
        number, classes, below = now
        if classes == _CLASSES_MAX:
            raise LimitExceeded(f"the keys of {self._range.topic}/{self._range.partition} are too large for a snapshot")
        return Pass(number, 2 * classes, below), Pass(number + classes, 2 * classes, min(below, offset))

    def _rows(self, batch: comet.RecordBatch[bytes], last: Iterable[int], now: Pass) -> comet.RecordBatch[bytes] | None:
        """The records of a batch that become rows: last ones, and those without a key, which compaction keeps too."""
        rows = sorted(last)
        keys = batch.keys
        if now.number == 0 and None in keys:
            rows = sorted([*rows, *(at for at, key in enumerate(keys) if key is None)])
        if now.below <= batch.offsets[-1]:
            offsets = batch.offsets
            rows = [at for at in rows if offsets[at] < now.below]
        found = batch.pick(rows)
        found = None if found is None else found.pick(_alive(found))
        found = None if found is None else unexpired(found, time.time_ns() // 1000)
        if found is not None and self._options.permissive and found.encrypted is not None:
            nullify(found)
        return found if found is None or self._filter is None else found.pick(self._filter.rows(found))

    # ---- the log, from its end

    def _batches(self) -> Iterator[comet.RecordBatch[bytes]]:
        one = self._range
        spec = RangeSpec(
            one.topic, one.partition, one.start, one.end, backward=True, topic_id=bytes.fromhex(one.topic_id),
            end_epoch=None if one.last == NO_EPOCH else one.last, expired=True,
            step_records_first=FIRST_RECORDS, step_records=PART_RECORDS, wait_ms=self._options.timeout_ms,
        )  # fmt: skip
        reading = RangeReader(self._reader or reader_of(self._options), spec)
        pending = _next(reading)
        while pending is not None:
            try:
                parts = pending.result()
            except (TopicNotFound, PartitionNotFound) as error:
                lose(one, self._options, one.start, reading.position or one.end, error)
                return
            pending = _next(reading)
            self._check(reading)
            for part in parts:
                if isinstance(part, comet.Gap):
                    assert part.error is not None
                    lose(one, self._options, part.first, part.end, part.error)
                else:
                    yield part

    def _check(self, reading: RangeReader) -> None:
        """Raises DataLoss, or logs it once, if a compaction beyond the end may have removed what is to be read."""
        one, clean_end = self._range, reading.clean_end
        if clean_end <= one.end or self._compacted:
            return
        self._compacted = not self._options.fail_on_loss
        error = DataLoss(
            f"the partition is compacted up to {clean_end}, so that records below {one.end} may be gone that were the "
            "last ones of their keys there. Read again, with a later end; if the job takes long, give the topic a "
            "min_compaction_lag_ms beyond its duration"
        )
        lose(one, self._options, one.start, one.end, error)


def _next(reading: RangeReader) -> Future[list[Part]] | None:
    return None if reading.stopped else begin(reading.step())


def _alive(batch: comet.RecordBatch[bytes]) -> Sequence[int]:
    """The records that are not tombstones: one without a key deletes nothing, and one that is encrypted has a value."""
    if not batch._batch.header.flags & Flag.VALUE_NULLS:
        return range(len(batch))
    secret, keys = batch.encrypted, batch.keys
    values, errors = (batch.values, {}) if secret is None else (secret.values, secret.errors)
    return [at for at, value in enumerate(values) if value is not None or keys[at] is None or at in errors]
