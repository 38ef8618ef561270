"""Values that are JSON objects, as an Arrow struct.

    a value ─► an object with the fields that were asked for ─► a list for each field ─► an array for each

msgspec reads a value in a fraction of what Arrow's reader of JSON takes, skips what nobody asked for, and takes each
value by itself, so that one which is no object, or two, cannot be mistaken for its neighbours. Two thousand are done at
once: what they are in between is many times as large, and should not leave the processor's cache.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, TypedDict

import msgspec
import pyarrow as pa

from comet.errors import InvalidArgument

AT_ONCE: Final = 1 << 11
_WRONG: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, pa.ArrowInvalid, OverflowError)

_PLAIN: Final[tuple[tuple[Callable[[pa.DataType], bool], Any], ...]] = (
    (pa.types.is_string, str),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_boolean, bool),
    (pa.types.is_timestamp, datetime.datetime),
    (pa.types.is_date, datetime.date),
    (pa.types.is_decimal, decimal.Decimal),
    (pa.types.is_binary, bytes),  # in base64, as Spark has it
)


class Undecodable(ValueError):
    """A value is no such object, and why; `at` is its place in what was given."""

    def __init__(self, at: int, why: Exception) -> None:
        super().__init__(str(why))
        self.at = at


class Decoder:
    """Makes structs of one type. Cheap to use again, and made once for many batches; has no state."""

    def __init__(self, kind: pa.StructType) -> None:
        self.kind = kind
        self._fields = list(kind)
        names = [f"f{number}" for number in range(len(self._fields))]  # theirs need not be Python's
        made = [(name, _hint(field.type) | None, None) for name, field in zip(names, self._fields, strict=True)]
        renamed = {name: field.name for name, field in zip(names, self._fields, strict=True)}
        # Nothing that comes out of JSON holds itself: the collector need not look at it.
        one = msgspec.defstruct("Value", made, rename=renamed, gc=False)
        self._nothing = one()
        self._decode = msgspec.json.Decoder(one).decode
        self._getters = [attrgetter(name) for name in names]

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
        columns = [
            pa.array(list(map(getter, rows)), field.type)
            for getter, field in zip(self._getters, self._fields, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=self._fields, mask=mask)


def _hint(kind: pa.DataType) -> Any:
    """What msgspec is to make of it."""
    for is_, hint in _PLAIN:
        if is_(kind):
            return hint
    if pa.types.is_list(kind):
        return list[_hint(kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return dict[str, _hint(kind.item_type) | None]  # type: ignore[misc]
    if pa.types.is_struct(kind):
        fields = {field.name: _hint(field.type) | None for field in kind}
        return TypedDict("Inner", fields, total=False)  # type: ignore[operator]
    raise InvalidArgument(f"there is no {kind} in JSON: no field of a value can be one")
