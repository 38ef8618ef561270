"""One range of a partition, read from its leader in a task of an executor.

A read is a pure function of its range: every record that the range holds and readers may see, in order, each once; or
an error. What is not there any more fails the query, or with failOnDataLoss=false is left out and said in the log.

The next part is asked for while Spark takes the last one. Connections stay for the next task of the same worker.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Final

import pyarrow as pa

import comet
from comet._background import begin, call, made
from comet.errors import CometError, DataLoss, OffsetOutOfRange, PartitionNotFound, TopicNotFound, Truncated
from comet.spark.columns import Columns
from comet.spark.joining import joined
from comet.spark.options import SourceOptions
from comet.spark.planning import NO_EPOCH, Range

log = logging.getLogger(__name__)

PART_BYTES: Final = 4 << 20  # asked for at once; a broker gives no more
PART_RECORDS: Final = 1 << 20
MERGED_ROWS: Final = 10_000  # small batches of the log are put together up to here
_LOSSES: Final = (OffsetOutOfRange, Truncated, DataLoss, TopicNotFound, PartitionNotFound)

_readers: dict[tuple[str, int], comet.Reader] = {}


def reader_of(options: SourceOptions) -> comet.Reader:
    """One for a process and cluster, on the background loop: Spark uses its workers again."""
    key = (options.bootstrap, options.timeout_ms)
    if key not in _readers:
        settings: dict[str, Any] = {"timeout_ms": options.timeout_ms, "name": "spark"}
        _readers[key] = call(made(comet.Reader, options.bootstrap, settings))
        gc.freeze()  # Spark's workers look for garbage after each task, among all that was imported: 50 ms each time
    return _readers[key]


def read(one: Range, columns: Columns, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Raises DataLoss where the range is not whole, unless losses are to be passed over."""
    return _merged(map(columns.of, joined(Parts(one, options))))


class Parts:
    """The batches of a range, cut to it. Iterated over once."""

    def __init__(self, one: Range, options: SourceOptions) -> None:
        self._range = one
        self._options = options
        self._reader = reader_of(options)
        self._at = one.start
        self._epoch: int | None = None if one.epoch == NO_EPOCH else one.epoch

    def __iter__(self) -> Iterator[comet.RecordBatch[bytes]]:
        end = self._range.end
        asked = self._ask() if self._at < end else None
        while asked is not None:
            try:
                fetched = asked.result()
            except _LOSSES as error:
                self._pass_over(error)
                asked = self._ask() if self._at < end else None
                continue
            if fetched.next_offset <= self._at:
                self._pass_over(self._missing(fetched))
                return
            self._at, self._epoch = fetched.next_offset, fetched.epoch
            asked = self._ask() if self._at < end else None
            for batch in fetched.batches:
                wanted = batch if batch.next_offset <= end else batch.before(end)
                if wanted is not None:
                    yield wanted

    def _ask(self) -> Future[comet.Fetched]:
        one, options = self._range, self._options
        return begin(
            self._reader.fetch(
                one.topic,
                one.partition,
                self._at,
                epoch=self._epoch,
                records_max=min(self._range.end - self._at, PART_RECORDS),
                bytes_max=PART_BYTES,
                isolation="committed" if options.committed else "uncommitted",
            )
        )

    def _missing(self, fetched: comet.Fetched) -> DataLoss:
        return DataLoss(f"the log ends at {fetched.log_end}, where it went on before")

    def _pass_over(self, error: CometError) -> None:
        """Goes on behind what is lost, or raises what says that something is."""
        one, start = self._range, error.details.get("log_start", "")
        place = f"{one.topic}/{one.partition}"
        to = int(start) if isinstance(error, OffsetOutOfRange) and start and int(start) > self._at else one.end
        to = min(to, one.end)
        if isinstance(error, Truncated):
            to = self._at  # other records are there now; they are read, as those of this range
        told = f"{place}: offsets {self._at} to {to} of {one.start} to {one.end} cannot be read any more: {error}"
        if self._options.fail_on_loss:
            raise DataLoss(
                f"{told}. With the option failOnDataLoss=false the query goes on without them.",
                details={"topic": one.topic, "partition": str(one.partition), **error.details},
            ) from error
        log.warning("%s; the query goes on without them", told)
        self._at, self._epoch = to, None


def _merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each batch costs Spark something, whatever its size."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if rows and rows + len(batch) > MERGED_ROWS:
            yield _one(waiting)
            waiting, rows = [], 0
        waiting.append(batch)
        rows += len(batch)
    if waiting:
        yield _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
