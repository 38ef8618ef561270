"""Makes table columns from log columns. No record is touched: arrays are wrapped, repeated or sliced.

    key        binary, null without a key
    value      binary, null for a tombstone; with a type, a column per field instead
    topic      string
    partition  int32
    offset     int64
    timestamp  timestamp[us, UTC]
    headers    list<struct<name: string, value: binary>>, if requested

Only requested columns are made. A field takes the name from a record's column: with a field `timestamp` the record's
timestamp is `_timestamp`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from comet.errors import InvalidArgument, pip_install

try:
    import pyarrow as pa
except ImportError as error:
    raise ImportError(f"tables need pyarrow: {pip_install('arrow')}") from error

from comet.records._arrow import SCHEMA
from comet.values.arrow_values import Values
from comet.values.record import RecordBatch

ROWS: Final = 1 << 16  # small batches are merged up to this size,
OF_BATCH: Final = ("topic", "partition")  # the same for all its records
BYTES: Final = 4 << 20  # or this one
_KINDS: Final = {
    "key": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": SCHEMA.field("timestamp").type,
    "headers": SCHEMA.field("headers").type,
}


class ArrowColumns:
    """The columns of a table. Immutable; used by any thread.

    Raises InvalidArgument for unknown columns, and for types without columns.
    """

    def __init__(self, kind: Any = None, columns: Iterable[str] | None = None) -> None:
        values = None if kind is None or kind is bytes else Values(kind)
        names = {"value": pa.binary()} if values is None else {field.name: field.type for field in values.fields}
        if values is not None and not names:
            names = {"value": values.shape.kind}
        own = {_free(name, names): name for name in _KINDS}
        wanted = list(_in_order(own, names)) if columns is None else _checked(columns, [*own, *names])
        self._own = {name: own[name] for name in wanted if name in own}
        self._fields = [name for name in wanted if name in names]
        if values is not None and values.fields:
            values = Values(kind, self._fields)
        self._values = values if self._fields else None
        self.schema: pa.Schema = pa.schema([pa.field(name, names.get(name) or _KINDS[own[name]]) for name in wanted])
        own_of_log = [own for own in self._own.values() if own not in OF_BATCH]
        self._of_log = [*own_of_log, "value"] if self._fields else own_of_log
        # A column over a message's memory keeps all of it; this pays only if the column is most of it.
        self._keeps = values is None and bool(self._fields)

    def of(self, batch: RecordBatch[Any]) -> pa.RecordBatch:
        """Raises SerdeError with the offset of the first value that does not fit the type."""
        arrow = batch.to_arrow(self._of_log)
        made: dict[str, pa.Array] = {}
        if self._values is not None:
            made.update(zip(self._fields, self._values.of(batch, arrow.column("value")), strict=True))
        elif self._fields:
            made["value"] = arrow.column("value")
        for name, own in self._own.items():
            if own in OF_BATCH:
                made[name] = pa.repeat(pa.scalar(getattr(batch, own), _KINDS[own]), len(batch))
            else:
                made[name] = arrow.column(own)
        return pa.RecordBatch.from_arrays([made[field.name] for field in self.schema], schema=self.schema)

    def together(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Merges batches into one that keeps no other memory."""
        if len(batches) == 1 and self._keeps:
            return batches[0]
        # Merged batches are copied, also a single empty one.
        whole = [*batches, batches[0].slice(0, 0)]
        arrays = [pa.concat_arrays([batch.column(at) for batch in whole]) for at in range(len(self.schema))]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class BatchMerger:
    """Merges small batches, in order. Owned by one read."""

    def __init__(self, columns: ArrowColumns) -> None:
        self._columns = columns
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, batches: Iterable[RecordBatch[Any]]) -> list[pa.RecordBatch]:
        """Adds batches; returns full ones."""
        full: list[pa.RecordBatch] = []
        for batch in batches:
            if self._rows and (self._rows + len(batch) > ROWS or self._bytes + batch.size > BYTES):
                full += self.rest()
            self._waiting.append(self._columns.of(batch))
            self._rows += len(batch)
            self._bytes += batch.size
        return full

    def rest(self) -> list[pa.RecordBatch]:
        """The rest, at the end."""
        waiting, self._waiting, self._rows, self._bytes = self._waiting, [], 0, 0
        return [self._columns.together(waiting)] if waiting else []


def _free(name: str, taken: Iterable[str]) -> str:
    while name in taken:
        name = f"_{name}"
    return name


def _in_order(own: dict[str, str], fields: Iterable[str]) -> Iterable[str]:
    first, *rest = own
    yield first
    yield from fields
    yield from (name for name in rest if own[name] != "headers")


def _checked(columns: Iterable[str], known: Sequence[str]) -> list[str]:
    if isinstance(columns, str):
        raise InvalidArgument(f"columns must be a list of names: columns=[{columns!r}]")
    wanted = list(dict.fromkeys(columns))
    missing = [name for name in wanted if name not in known]
    if missing or not wanted:
        fault = f"unknown column {missing[0]!r}" if missing else "columns is empty"
        raise InvalidArgument(f"{fault}; use one of {', '.join(known)}")
    return wanted
