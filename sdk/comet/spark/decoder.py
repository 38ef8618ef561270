"""Values that are JSON objects, as an Arrow struct.

    a value ─► an object with the fields that were asked for ─► a list for each field ─► an array for each

msgspec reads a value in a fraction of what Arrow's reader of JSON takes, skips what is not asked for, and takes each
value by itself, so that one which is no object, or two, cannot be mistaken for its neighbours. Two thousand are done at
once: what they are in between is many times as large, and should not leave the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from comet.spark.value_types import Names
from comet.tables.arrow_types import Columns, shape_of

AT_ONCE: Final = 1 << 11
_WRONG: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, pa.ArrowInvalid, OverflowError)


class Undecodable(ValueError):
    """A value is no such object, and why; `at` is its place in what was given."""

    def __init__(self, at: int, why: Exception) -> None:
        super().__init__(str(why))
        self.at = at


class Decoder:
    """Makes structs of one type. Cheap to use again, and made once for many batches; has no state. `names` are those
    that JSON has for fields, where it has others."""

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
        """Null where there is no value and, if that is permitted, where one is no such object. Raises Undecodable."""
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
        """Finds what is wrong: most of it while it is read, the rest has no room in a column."""
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
        # The same memory, with the names of columns for those of JSON.
        columns = [
            array if array.type == field.type else array.view(field.type)
            for array, field in zip(read, self._fields, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=self._fields, mask=mask)


def _reader(fields: Sequence[pa.Field]) -> tuple[Callable[[bytes], Any], Columns]:
    shape = shape_of(pa.schema(fields))
    return shape.reader(shape.fields)


def _in_json(kind: pa.DataType, names: Names) -> pa.DataType:
    """The type with the names that JSON has."""
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
