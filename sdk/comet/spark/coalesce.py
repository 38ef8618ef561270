"""Joins small batches of the log before their columns are built.

A live feed writes small batches: a market's log has one to three records in each. Arrow takes as long to wrap one
record as a thousand, so the columns of small batches are first joined as Python lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Final

import pyarrow as pa

from comet import RecordBatch
from comet.records._arrow import SCHEMA, chosen

SMALL: Final = 64  # records; wrapping is faster than copying for a larger batch,
SMALL_BYTES: Final = 64 << 10  # and for one with large records
TOGETHER: Final = 10_000
TOGETHER_BYTES: Final = 8 << 20


_LISTS: Final = {
    "offset": "offsets", "timestamp": "timestamps", "key": "keys", "value": "values", "headers": "headers",
}  # fmt: skip


@dataclass(slots=True)
class JoinedBatches:
    """Batches of one partition, in order."""

    topic: str
    partition: int
    batches: list[RecordBatch[bytes]] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    @property
    def offsets(self) -> list[int]:
        return list(chain.from_iterable(batch.offsets for batch in self.batches))

    @property
    def values(self) -> list[bytes | None]:
        return list(chain.from_iterable(batch.values for batch in self.batches))

    def to_arrow(self, columns: Iterable[str] | None = None) -> pa.RecordBatch:
        """The same columns, of the same types, as of one batch."""
        schema = SCHEMA if columns is None else chosen(columns)
        return pa.RecordBatch.from_arrays([self._column(field) for field in schema], schema=schema)

    def _column(self, field: pa.Field) -> pa.Array:
        found = list(chain.from_iterable(getattr(batch, _LISTS[field.name]) for batch in self.batches))
        if field.name == "timestamp":
            return pa.array(found, pa.int64()).view(field.type)
        return pa.array(found, field.type)


Columnar = RecordBatch[bytes] | JoinedBatches  # the sources of columns


def append_times(batch: Columnar) -> pa.Array:
    """The append time of each record, in microseconds since 1970."""
    if isinstance(batch, JoinedBatches):
        each = (repeat(one.append_time_us, len(one)) for one in batch.batches)
        return pa.array(list(chain.from_iterable(each)), pa.int64())
    return pa.repeat(pa.scalar(batch.append_time_us, pa.int64()), len(batch))


def joined(batches: Iterable[RecordBatch[bytes]]) -> Iterator[Columnar]:
    """The batches of one partition, in order, adjacent small ones joined."""
    waiting: JoinedBatches | None = None
    rows = size = 0
    for batch in batches:
        more = batch._batch.header.body_size
        small = len(batch) <= SMALL and more <= SMALL_BYTES
        full = rows + len(batch) > TOGETHER or size + more > TOGETHER_BYTES
        if waiting is not None and (full or not small):
            yield _simplest(waiting)
            waiting, rows, size = None, 0, 0
        if not small:
            yield batch
            continue
        if waiting is None:
            waiting = JoinedBatches(batch.topic, batch.partition)
        waiting.batches.append(batch)
        rows += len(batch)
        size += more
    if waiting is not None:
        yield _simplest(waiting)


def _simplest(several: JoinedBatches) -> Columnar:
    return several.batches[0] if len(several.batches) == 1 else several
