"""Small batches of the log, put together before columns are made of them.

What is produced as it happens is written as it happens: a market's log is batches of one to three records. Arrow takes
as long to wrap one as a thousand, so columns of small batches are first joined as Python's lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Protocol

import pyarrow as pa

from comet import RecordBatch
from comet.records._arrow import SCHEMA

SMALL: Final = 64  # records; a batch that has more is quicker wrapped than copied
TOGETHER: Final = 10_000


class Columnar(Protocol):
    """What columns are made of: a batch, or several."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offsets(self) -> Sequence[int]: ...
    @property
    def values(self) -> Sequence[bytes | None]: ...
    def to_arrow(self) -> Any: ...


@dataclass(slots=True)
class Joined:
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

    def to_arrow(self) -> pa.RecordBatch:
        """As that of one batch: the same columns, of the same types."""
        every, batches = chain.from_iterable, self.batches
        times = pa.array(list(every(batch.timestamps for batch in batches)), pa.int64())
        columns = [
            pa.array(self.offsets, pa.int64()),
            times.view(SCHEMA.field("timestamp").type),
            pa.array(list(every(batch.keys for batch in batches)), pa.binary()),
            pa.array(self.values, pa.binary()),
            pa.array(list(every(batch.headers for batch in batches)), SCHEMA.field("headers").type),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def joined(batches: Iterable[RecordBatch[bytes]]) -> Iterator[Columnar]:
    """All of them in order, small neighbours as one. They are of one partition."""
    waiting: Joined | None = None
    rows = 0
    for batch in batches:
        small = len(batch) <= SMALL
        if waiting is not None and (not small or rows + len(batch) > TOGETHER):
            yield _simplest(waiting)
            waiting, rows = None, 0
        if not small:
            yield batch
            continue
        if waiting is None:
            waiting = Joined(batch.topic, batch.partition)
        waiting.batches.append(batch)
        rows += len(batch)
    if waiting is not None:
        yield _simplest(waiting)


def _simplest(several: Joined) -> Columnar:
    return several.batches[0] if len(several.batches) == 1 else several
