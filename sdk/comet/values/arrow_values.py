"""Makes Arrow columns from the values of a batch.

    a value ─► an object of the requested fields, as the serde checks them ─► a list for each ─► an array for each

msgspec reads JSON faster than Arrow's reader does, skips other fields, and decodes each value by itself, so that an
invalid value cannot be mistaken for its neighbours. Some thousand are decoded at once: the objects in between are many
times as large, and should stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from comet.errors import InvalidArgument, SerdeError
from comet.serde import serde_for
from comet.values.arrow_types import shape_of
from comet.values.record import RecordBatch

AT_ONCE: Final = 1 << 11
_SHOWN: Final = 40  # bytes of an invalid value
_WRONG: Final = (
    SerdeError, msgspec.MsgspecError, pa.ArrowException, TypeError, ValueError, ArithmeticError, RecursionError,
)  # fmt: skip


class Values:
    """Makes the columns of one type. Immutable, cheap to share between threads.

    `fields` are the requested names; a type without fields is one column.
    """

    def __init__(self, kind: Any, fields: Sequence[str] | None = None) -> None:
        self.shape = shape_of(kind)
        self._kind = kind
        known = {field.name: field for field in self.shape.fields}
        wanted = list(known) if fields is None else list(fields)
        missing = [name for name in wanted if name not in known]
        if missing:
            raise InvalidArgument(f"unknown field {missing[0]!r}; use one of {', '.join(known)}")
        chosen = [known[name] for name in wanted]
        self.fields = [pa.field(field.name, field.shape.kind) for field in chosen]
        if self.shape.by_fields:
            self._decode, self._columns_of = self.shape.reader(chosen)
        else:
            self._decode, self._columns_of = serde_for(kind).decode, self.shape.getters(chosen)

    def of(self, batch: RecordBatch[Any], values: pa.Array) -> list[pa.Array]:
        """The columns of a batch's values, in the order of `fields`; all null for a tombstone. Raises SerdeError with
        the offset of the first invalid value."""
        present = values.drop_null() if values.null_count else values
        try:
            parts = [self._part(present.slice(at, AT_ONCE).to_pylist()) for at in range(0, len(present), AT_ONCE)]
        except _WRONG:
            for offset, text in zip(batch.offsets, values.to_pylist(), strict=True):
                if text is not None:
                    self._check(batch, offset, text)
            raise
        found = [pa.concat_arrays(column) for column in zip(*parts, strict=True)] if parts else self._part([])
        if len(present) == len(values):
            return found
        at = pc.subtract(pc.cumulative_sum(pc.cast(values.is_valid(), pa.int64())), 1)
        at = pc.if_else(values.is_valid(), at, pa.scalar(None, pa.int64()))
        return [column.take(at) for column in found]

    def _part(self, texts: list[bytes]) -> list[pa.Array]:
        events = list(map(self._decode, texts))
        return [pa.array(list(map(get, events)), kind) for get, kind in self._columns_of]

    def _check(self, batch: RecordBatch[Any], offset: int, text: bytes) -> None:
        try:
            self._part([text])
        except SerdeError as error:
            raise batch.at(error, offset) from error.__cause__
        except _WRONG as error:
            name = "the schema" if isinstance(self._kind, pa.Schema) else serde_for(self._kind).name
            if batch.encrypted:  # neither the message nor its cause quotes the value
                raise batch.at(SerdeError(f"does not fit {name}"), offset) from None
            begins = f"its value begins with {text[:_SHOWN]!r}"
            raise batch.at(SerdeError(f"does not fit {name}: {error}; {begins}"), offset) from error
