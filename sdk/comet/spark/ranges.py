"""Reads ranges of partitions from their leaders, in a task of an executor.

A read is a pure function of its ranges: all their readable records, in order, each once; or an error. Lost records
and corrupt batches fail the query; with failOnDataLoss=false they are skipped and logged.

The next parts are requested while Spark processes the last one. Connections stay open for the worker's next task.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain
from typing import Final

import pyarrow as pa

import comet
from comet.consumer.options import filter_of_brokers, parsed_filter
from comet.consumer.ranges import Part, RangeReader, RangeSpec
from comet.errors import CometError, DataLoss, PartitionNotFound, TopicNotFound, Truncated
from comet.event_loop import begin, call, computed
from comet.spark.coalesce import joined
from comet.spark.columns import SparkColumns
from comet.spark.connection_options import ConnectionOptions
from comet.spark.options import SourceOptions
from comet.spark.planning import NO_EPOCH, Range

log = logging.getLogger(__name__)

PART_RECORDS: Final = 1 << 20
AHEAD: Final = 4  # ranges of a task that are requested ahead
MERGED_ROWS: Final = 10_000  # limits for merged batches:
MERGED_BYTES: Final = 8 << 20  # Spark holds a batch in memory several times

_readers: dict[ConnectionOptions, comet.Reader] = {}


def reader_of(options: SourceOptions) -> comet.Reader:
    """The process's reader for a cluster, on the background loop: Spark reuses its workers."""
    key = options.connection
    if key not in _readers:
        make = partial(
            comet.Reader, key.addresses(), timeout_ms=options.timeout_ms, encryption=key.encryption(), name="spark"
        )
        _readers[key] = call(computed(make))
        gc.freeze()  # Spark's workers collect garbage after each task: 50 ms with all imported objects
    return _readers[key]


def read(ranges: Iterable[Range], columns: SparkColumns, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Reads ranges. Raises DataLoss for missing records, unless failOnDataLoss=false."""
    parts = in_turn([Parts(one, options) for one in ranges])
    return merged(map(columns.of, chain.from_iterable(map(joined, parts))))


def in_turn(parts: Sequence[Parts]) -> Iterator[Parts]:
    """Yields each in turn; the first parts of the next few are requested ahead."""
    for at, one in enumerate(parts):
        for soon in parts[at : at + AHEAD]:
            soon.prefetch()
        yield one


class Parts:
    """The batches of a range, cut to it. Can be iterated over once."""

    def __init__(self, one: Range, options: SourceOptions, reader: comet.Reader | None = None) -> None:
        self._range = one
        self._options = options
        self._reader = reader or reader_of(options)
        self._filter = parsed_filter(options.filter, now_us=0)
        self._at = one.start  # behind the last batch
        self._reading = self._from(one.start, one.epoch, one.last)
        self._first: Future[list[Part]] | None = None

    def _from(self, start: int, epoch: int, last: int) -> RangeReader:
        one, options = self._range, self._options
        spec = RangeSpec(
            one.topic, one.partition, start, one.end, topic_id=bytes.fromhex(one.topic_id),
            epoch=None if epoch == NO_EPOCH else epoch, end_epoch=None if last == NO_EPOCH else last,
            isolation="committed" if options.committed else "uncommitted", filter_hint=filter_of_brokers(self._filter),
            step_records_first=PART_RECORDS, step_records=PART_RECORDS, wait_ms=options.timeout_ms,
        )  # fmt: skip
        return RangeReader(self._reader, spec)

    def prefetch(self) -> None:
        """Requests the first part, ahead of the iteration."""
        if self._first is None:
            self._first = self._begin()

    def _begin(self) -> Future[list[Part]] | None:
        return None if self._reading.stopped else begin(self._reading.step())

    def __iter__(self) -> Iterator[comet.RecordBatch[bytes]]:
        self.prefetch()
        pending, self._first = self._first, None  # releases the first part
        while pending is not None:
            try:
                parts = pending.result()
            except (TopicNotFound, PartitionNotFound) as error:
                lose(self._range, self._options, self._at, self._range.end, error)
                return
            pending = self._begin()
            for part in parts:
                if isinstance(part, comet.Gap):
                    self._pass_over(part)
                    pending = pending or self._begin()
                else:
                    self._at = part.next_offset
                    if self._options.permissive and part.encrypted is not None:
                        nullify(part)
                    matching = part if self._filter is None else part.pick(self._filter.rows(part))
                    if matching is not None:
                        yield matching

    def _pass_over(self, gap: comet.Gap) -> None:
        """Continues after lost records, or raises an error about them."""
        assert gap.error is not None
        first = max(gap.first, self._at)
        lose(self._range, self._options, first, gap.end, gap.error)
        if isinstance(gap.error, Truncated):  # the records that replaced the lost ones are read as part of this range
            self._reading = self._from(first, NO_EPOCH, NO_EPOCH)


def nullify(batch: comet.RecordBatch[bytes]) -> None:
    """Makes values null that cannot be decrypted."""
    assert batch.encrypted is not None
    errors = batch.encrypted.nullify()
    if errors:
        first = min(errors)
        log.warning("%d values are null: %s", len(errors), batch.at(errors[first], batch.offsets[first]).message)


def lose(one: Range, options: SourceOptions, start: int, end: int, error: CometError) -> None:
    """Raises DataLoss about offsets of a range, or logs the loss."""
    name = f"{one.topic}/{one.partition}"
    problem = f"{name}: offsets {start} to {end} of {one.start} to {one.end} cannot be read: {error}"
    if options.fail_on_loss:
        raise DataLoss(
            f"{problem}. With the option failOnDataLoss=false the query continues without them.",
            details={"topic": one.topic, "partition": str(one.partition), **error.details},
        ) from error
    log.warning("%s; the query continues without them", problem)


def merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merges small batches: each batch costs Spark time, even an empty one."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        more = batch.nbytes
        if rows + len(batch) > MERGED_ROWS or size + more > MERGED_BYTES:
            yield from _as_one(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += len(batch)
        size += more
    yield from _as_one(waiting)


def _as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The batches as one; more if Arrow cannot merge them."""
    return batches if len(batches) <= 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()
