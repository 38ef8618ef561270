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
from comet.consumer.range_reader import fetch_known
from comet.errors import CometError, DataLoss, OffsetOutOfRange, PartitionNotFound, TopicNotFound, Truncated
from comet.event_loop import begin, call, computed
from comet.spark.coalesce import joined
from comet.spark.columns import SparkColumns
from comet.spark.options import SourceOptions
from comet.spark.planning import NO_EPOCH, Range

log = logging.getLogger(__name__)

PART_BYTES: Final = 4 << 20  # of one request; a broker's limit
PART_RECORDS: Final = 1 << 20
AHEAD: Final = 4  # ranges of a task that are requested ahead
MERGED_ROWS: Final = 10_000  # limits for merged batches:
MERGED_BYTES: Final = 8 << 20  # Spark holds a batch in memory several times
_LOSSES: Final = (OffsetOutOfRange, Truncated, DataLoss, TopicNotFound, PartitionNotFound)

_readers: dict[tuple[str, int], comet.Reader] = {}


def reader_of(options: SourceOptions) -> comet.Reader:
    """The process's reader for a cluster, on the background loop: Spark reuses its workers."""
    key = (options.bootstrap, options.timeout_ms)
    if key not in _readers:
        make = partial(comet.Reader, options.bootstrap, timeout_ms=options.timeout_ms, name="spark")
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
        self._at = one.start
        self._epoch: int | None = None if one.epoch == NO_EPOCH else one.epoch
        self._last: int | None = None if one.last == NO_EPOCH else one.last
        self._first: Future[comet.Fetched] | None = None

    def prefetch(self) -> None:
        """Requests the first part, ahead of the iteration."""
        if self._first is None and self._at < self._range.end:
            self._first = self._fetch()

    def __iter__(self) -> Iterator[comet.RecordBatch[bytes]]:
        end = self._range.end
        self.prefetch()
        pending, self._first = self._first, None  # releases the first part
        while pending is not None:
            try:
                fetched = pending.result()
            except _LOSSES as error:
                self._pass_over(error)
                pending = self._fetch() if self._at < end else None
                continue
            if fetched.next_offset <= self._at:
                self._pass_over(self._missing(fetched))
                return
            self._at, self._epoch = fetched.next_offset, fetched.epoch
            pending = self._fetch() if self._at < end else None
            for batch in fetched.batches:
                wanted = batch if batch.next_offset <= end else batch.before(end)
                if wanted is not None:
                    if self._last is not None and wanted.epoch > self._last:
                        self._written_anew(wanted)
                    yield wanted

    def _fetch(self) -> Future[comet.Fetched]:
        one, options = self._range, self._options
        return begin(
            fetch_known(
                self._reader,
                one.topic,
                one.partition,
                self._at,
                epoch=self._epoch,
                records_max=min(self._range.end - self._at, PART_RECORDS),
                bytes_max=PART_BYTES,
                isolation="committed" if options.committed else "uncommitted",
                topic_id=bytes.fromhex(one.topic_id),
                within_ms=options.timeout_ms,
            )
        )

    def _missing(self, fetched: comet.Fetched) -> DataLoss:
        return DataLoss(f"the log ends at {fetched.log_end}; it was longer before")

    def _pass_over(self, error: CometError) -> None:
        """Continues after lost records, or raises the error about them."""
        one, detail = self._range, ""
        if isinstance(error, OffsetOutOfRange | DataLoss):
            detail = "log_start" if isinstance(error, OffsetOutOfRange) else "end"
        whole_again = int(error.details.get(detail, "0"))
        to = min(whole_again, one.end) if whole_again > self._at else one.end
        self._lose(self._at, to, error)
        if not isinstance(error, Truncated):
            self._at = to
        self._epoch = None  # of a truncated log: the records that replaced the lost ones are read as part of this range

    def _written_anew(self, batch: comet.RecordBatch[bytes]) -> None:
        """Reports a truncation since the range was planned: its last record was of an older epoch."""
        at = batch.first_offset
        self._lose(at, self._range.end, Truncated(f"the records from {at} were replaced"))
        self._last = None  # the records that replaced them are read as part of this range

    def _lose(self, start: int, end: int, error: CometError) -> None:
        """Raises DataLoss, or logs the loss."""
        one = self._range
        name = f"{one.topic}/{one.partition}"
        problem = f"{name}: offsets {start} to {end} of {one.start} to {one.end} cannot be read: {error}"
        if self._options.fail_on_loss:
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
