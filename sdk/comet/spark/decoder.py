"""Decodes JSON objects to Arrow structs.

    a value ─► an object with the requested fields ─► a list for each field ─► an array for each

msgspec takes a fraction of the time of Arrow's JSON reader, skips other fields, and reads each value by itself, so
that a malformed value does not affect its neighbours. Two thousand are decoded at once: the intermediate objects are
many times as large, and should stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from comet.spark.value_types import Names
from comet.values.arrow_types import Columns, shape_of

AT_ONCE: Final = 1 << 11
_WRONG: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, pa.ArrowInvalid, OverflowError)


class Undecodable(ValueError):
    """A value cannot be decoded; `at` is its index."""

    def __init__(self, at: int, why: Exception) -> None:
        super().__init__(str(why))
        self.at = at


class Decoder:
    """Decodes to structs of one type. Stateless; create it once for many batches. `names` are the JSON names of fields
    that differ."""

    def __init__(self, kind: pa.StructType, names: Names | None = None) -> None:
        self.kind = kind
        self._fields = list(kind)
        fields = list(_in_json(kind, names or {}))
        self._decode, self._columns_of = _reader(fields)
        decode = self._decode
        if not all(field.nullable for field in fields):
            decode, _ = _reader([field.with_nullable(True) for field in fields])
        self._nothing = decode(b"{}")

    def decode(self, values: pa.Array, *, permissive: bool) -> pa.Array:
        """Missing values are null; so are undecodable ones if `permissive`, else they raise Undecodable."""
        parts = [
            self._part(values.slice(at, AT_ONCE), at, permissive=permissive) for at in range(0, len(values), AT_ONCE)
        ]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts or [pa.nulls(0, self.kind)])

    def _part(self, values: pa.Array, first: int, *, permissive: bool) -> pa.Array:
        given = values.to_pylist()
        try:
            if not values.null_count:
                return self._struct(list(map(self._decode, given)))
            rows = [self._nothing if value is None else self._decode(value) for value in given]
            return self._struct(rows, values.is_null())
        except _WRONG:
            return self._one_by_one(given, first, permissive=permissive)

    def _one_by_one(self, given: Sequence[bytes | None], first: int, *, permissive: bool) -> pa.Array:
        """Finds the invalid values: most fail to decode, the others do not fit into a column."""
        rows: list[Any] = []
        for at, value in enumerate(given, first):
            try:
                rows.append(None if value is None else self._decode(value))
            except _WRONG as error:
                if not permissive:
                    raise Undecodable(at, error) from None
                rows.append(None)
        try:
            return self._masked(rows)
        except _WRONG:
            pass
        for index, row in enumerate(rows):
            try:
                self._masked([row])
            except _WRONG as error:
                if not permissive:
                    raise Undecodable(first + index, error) from None
                rows[index] = None
        return self._masked(rows)

    def _masked(self, rows: Sequence[Any]) -> pa.Array:
        nulls = pa.array([row is None for row in rows], pa.bool_())
        return self._struct([self._nothing if row is None else row for row in rows], nulls)

    def _struct(self, rows: Sequence[Any], mask: pa.Array | None = None) -> pa.Array:
        read = [pa.array(list(map(get, rows)), kind) for get, kind in self._columns_of]
        # The same memory, with column names instead of JSON names.
        columns = [
            array if array.type == field.type else array.view(field.type)
            for array, field in zip(read, self._fields, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=self._fields, mask=mask)


def _reader(fields: Sequence[pa.Field]) -> tuple[Callable[[bytes], Any], Columns]:
    shape = shape_of(pa.schema(fields))
    return shape.reader(shape.fields)


def _in_json(kind: pa.DataType, names: Names) -> pa.DataType:
    """The type with JSON's names."""
    if not names:
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([_field_in_json(field, names) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_json(kind.item_type, names))
    if pa.types.is_list(kind):
        return pa.list_(_in_json(kind.value_type, names))
    return kind


def _field_in_json(field: pa.Field, names: Names) -> pa.Field:
    named = names.get(field.name)
    return field if named is None else field.with_name(named.in_json).with_type(_in_json(field.type, named.fields))
