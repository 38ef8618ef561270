"""What a consumer has, as tables.

    wait for the first record ─► wait for more, up to wait_ms ─► take all at once ─► columns ─► a table

Nothing is taken while it waits: a cancelled call loses nothing, and positions move with a table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

from comet import records
from comet.consumer.record import Record, RecordBatch
from comet.errors import CometError, CorruptRecords, InvalidArgument, SerdeError
from comet.tables.arrow_columns import ArrowColumns

if TYPE_CHECKING:
    import pyarrow

    from comet.consumer.iteration import Taking

T = TypeVar("T")
_WAIT_MS_MAX: Final = 3_600_000
_FULL: Final = 2  # with half of the buffer in use there may be no credit for more
_BYTES_MAX: Final = 64 << 20  # of the values of a table, however well they were compressed


class Tables(Generic[T]):
    """Iterates over what a consumer gets. Made by `consumer.arrow()`."""

    def __init__(self, consumer: Taking[T], columns: Iterable[str] | None, rows_max: int, wait_ms: float) -> None:
        if rows_max < 1:
            raise InvalidArgument(f"rows_max must be 1 at least, not {rows_max!r}")
        if not 0 <= wait_ms <= _WAIT_MS_MAX:
            raise InvalidArgument(f"wait_ms must be from 0 to {_WAIT_MS_MAX}, not {wait_ms!r}")
        serde = consumer._serde
        self._columns = ArrowColumns(None if serde is None else serde.type, columns)
        self._consumer = consumer
        self._rows_max = rows_max
        self._wait_s = wait_ms / 1000
        self._failed: CometError | None = None  # what is raised behind the table before

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns of its tables."""
        return self._columns.schema

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pyarrow.Table:
        consumer = self._consumer
        consumer._handed_back()
        if self._failed is not None:
            failed, self._failed = self._failed, None
            if isinstance(failed, CorruptRecords):
                consumer._in_hand_again(failed)
            raise failed
        while True:
            if consumer._batch is None and consumer._delivery is None:  # else something was left, and comes at once
                while not consumer._intake.waiting(0):
                    await consumer._wait()
                await self._more()
            found = self._take()
            if found:
                return self._table(found)

    async def _more(self) -> None:
        """Waits until enough has come."""
        intake, seen, rows, size = self._consumer._intake, 0, 0, 0
        try:
            async with asyncio.timeout(self._wait_s):
                while True:
                    for one in intake.waiting(seen):
                        if isinstance(one, CometError):
                            return
                        seen, rows, size = seen + 1, rows + _rows_in(one), size + len(one)
                    if rows >= self._rows_max or size * _FULL >= intake.buffer_bytes:
                        return
                    await intake.arrival()
        except (TimeoutError, CometError):
            return  # what ended everything is raised when nothing is left to take

    def _take(self) -> list[pyarrow.RecordBatch]:
        """All that has come, at once: nothing else happens meanwhile. What fails, fails behind the rows before it."""
        found: list[pyarrow.RecordBatch] = []
        rows_left, bytes_left = self._rows_max, _BYTES_MAX
        try:
            while rows_left > 0 and bytes_left > 0:
                batch = self._consumer._rest_of_batch() or self._consumer._here()
                if batch is None:
                    break
                made = self._made(batch, rows_left)
                found.append(made)
                rows_left -= made.num_rows
                bytes_left -= batch.size
                if made.num_rows < len(batch):
                    break
        except CometError as error:
            if not found:
                raise
            self._failed = error
        return found

    def _made(self, batch: RecordBatch[T], rows_max: int) -> pyarrow.RecordBatch:
        """As much of the batch as fits, or as can be decoded; the rest is kept. Its first record may be none."""
        consumer = self._consumer
        part = batch if len(batch) <= rows_max else batch.before(batch.offsets[rows_max])
        assert part is not None, "there is room for one row at least"
        try:
            made = self._columns.of(part)
        except SerdeError as error:
            bad = int(error.details["offset"])
            good = part.before(bad)
            if good is None:
                consumer._batch = batch
                consumer._skip_to(bad + 1)
                raise
            part, made = good, self._columns.of(good)
        assert consumer._reader is not None
        consumer._held.setdefault(consumer._reader, part.first_offset)
        consumer._handed_out(part)
        rest = batch.after(part.next_offset)
        if rest is not None:
            consumer._batch, consumer._records = rest, _later(rest)
        return made

    def of(self, batch: RecordBatch[T]) -> pyarrow.Table:
        """A batch as a table."""
        return self._table([self._columns.of(batch)])

    def _table(self, found: list[pyarrow.RecordBatch]) -> pyarrow.Table:
        import pyarrow as pa  # here: where it is missing, the import of Columns says what to install

        return pa.Table.from_batches([self._columns.together(found)])


def _later(batch: RecordBatch[T]) -> Iterator[Record[T]]:
    """Its records, decoded at the first use."""
    yield from batch.records()


def _rows_in(batches: memoryview) -> int:
    at = rows = 0
    while at < len(batches):
        header = records.read_header(batches, at)
        rows += header.record_count
        at += header.length
    return rows
