"""From the values of a batch to columns of Arrow: whole columns of JSON at once, where that gives what the codec gives.

    values ─► are they one object each? ─► Arrow's reader, over the memory they came in ─► nothing in doubt ─► columns
                     └───────────────────────────────┴──────────────────────────────────► the codec, row by row

In doubt is a null where the codec would fail, or give a default; and a number that is none. Then rows decide, and say
which record is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from comet._arrow_types import LONG_TEXT, Shape, decode_json, shape_of
from comet._record import RecordBatch
from comet.errors import InvalidArgument, SerdeError
from comet.serde import codec_for

# An object ends and another begins within one value; or null stands between them, which pyarrow 26 does not survive.
_ANOTHER: Final = r"\}\s*[{n]"
_BLOCK_BYTES_MAX: Final = (1 << 31) - 1
_SHOWN: Final = 40  # bytes of a value that is wrong
_WRONG: Final = (pa.ArrowException, TypeError, ValueError, OverflowError, ArithmeticError)


class Values:
    """Makes the columns of one type. Immutable, cheap to share between threads.

    `fields` are the names of those that are wanted; None: the type has no fields, and is one column.
    """

    def __init__(self, kind: Any, fields: Sequence[str] | None = None) -> None:
        self.shape = shape_of(kind)
        self._decode: Callable[[bytes], Any] = decode_json if isinstance(kind, pa.Schema) else codec_for(kind).decode
        self._kind = kind
        known = dict(self.shape.fields)
        chosen = [name for name, _ in self.shape.fields] if fields is None else list(fields)
        missing = [name for name in chosen if name not in known]
        if missing:
            raise InvalidArgument(f"there is no field {missing[0]!r}; there are {', '.join(known)}")
        self._wanted = [(name, known[name]) for name in chosen]
        self.fields = [pa.field(name, shape.kind) for name, shape in self._wanted]
        # Fields that are not wanted are not looked at: whether they could be read directly is of no interest.
        direct = bool(self._wanted) and self.shape.by_fields and all(shape.direct for _, shape in self._wanted)
        explicit = [
            pa.field(name, _read_as(shape.kind), nullable=shape.nullable or not isinstance(kind, pa.Schema))
            for name, shape in self._wanted
        ]
        self._parse = (
            pa_json.ParseOptions(
                explicit_schema=pa.schema(explicit), newlines_in_values=False, unexpected_field_behavior="ignore"
            )
            if direct
            else None
        )

    def of(self, batch: RecordBatch[Any], values: pa.Array) -> list[pa.Array]:
        """The columns of a batch's values, in the order of `fields`; all null for a tombstone. Raises SerdeError with
        the offset of the first value that is none."""
        present = values.drop_null() if values.null_count else values
        found = self._at_once(present)
        if found is None:
            found = self._by_rows(batch, values)
        if len(present) == len(values):
            return found
        at = pc.subtract(pc.cumulative_sum(pc.cast(values.is_valid(), pa.int64())), 1)
        at = pc.if_else(values.is_valid(), at, pa.scalar(None, pa.int64()))
        return [column.take(at) for column in found]

    def _at_once(self, values: pa.Array) -> list[pa.Array] | None:
        """None where it is not one object per value, or anything is in doubt."""
        if self._parse is None or not len(values) or not _one_each(values):
            return None
        text = bytes_of(values)
        options = pa_json.ReadOptions(use_threads=False, block_size=min(max(text.size, 1), _BLOCK_BYTES_MAX))
        try:
            table = pa_json.read_json(pa.BufferReader(text), read_options=options, parse_options=self._parse)
            table.validate(full=True)  # that text is UTF-8
        except pa.ArrowException:
            return None
        if table.num_rows != len(values):
            return None
        found = [_in_one(table.column(name)) for name, _ in self._wanted]
        found = [column.cast(field.type) for column, field in zip(found, self.fields, strict=True)]
        doubtful = any(_in_doubt(column, shape) for column, (_, shape) in zip(found, self._wanted, strict=True))
        return None if doubtful else found

    def _by_rows(self, batch: RecordBatch[Any], values: pa.Array) -> list[pa.Array]:
        texts = [text for text in values.to_pylist() if text is not None]
        try:
            return self._columns(texts)
        except (SerdeError, msgspec.MsgspecError, *_WRONG):
            for offset, text in zip(batch.offsets, values.to_pylist(), strict=True):
                if text is not None:
                    self._check(batch, offset, text)
            raise

    def _columns(self, texts: list[bytes]) -> list[pa.Array]:
        events = [self._decode(text) for text in texts]
        if not self._wanted:
            plain = self.shape.plain
            return [pa.array([plain(event) for event in events], self.shape.kind)]
        get = self.shape.get
        return [
            pa.array([shape.plain(get(event, name)) for event in events], shape.kind) for name, shape in self._wanted
        ]

    def _check(self, batch: RecordBatch[Any], offset: int, text: bytes) -> None:
        try:
            self._columns([text])
        except SerdeError as error:
            raise batch.at(error, offset) from error.__cause__
        except (msgspec.MsgspecError, *_WRONG) as error:
            kind = "the schema" if isinstance(self._kind, pa.Schema) else str(self._kind)
            begins = f"its value begins with {text[:_SHOWN]!r}"
            raise batch.at(SerdeError(f"does not fit {kind}: {error}; {begins}"), offset) from error


def _read_as(kind: pa.DataType) -> pa.DataType:
    return pa.string() if str(kind) in LONG_TEXT else kind


def _one_each(values: pa.Array) -> bool:
    """Whether no value holds two objects, and none is anything else. With as many objects as values, each is one."""
    begins = pc.all(pc.starts_with(values, "{"), min_count=0).as_py()
    return begins and not pc.any(pc.match_substring_regex(values, _ANOTHER), min_count=0).as_py()


def _in_one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _in_doubt(column: pa.Array, shape: Shape) -> bool:
    """Whether the codec might see anything of it otherwise."""
    if column.null_count:
        if not shape.null_is_sure:
            return True
        column = column.drop_null()
    if pa.types.is_floating(column.type):
        return bool(pc.any(pc.is_nan(column), min_count=0).as_py())
    if shape.inner is not None:
        return _in_doubt(column.flatten(), shape.inner)
    return any(_in_doubt(column.field(name), field) for name, field in shape.fields)


def bytes_of(values: pa.Array) -> pa.Buffer:
    """All of a binary column without nulls, one value after the other, where it lies."""
    _, offsets, data = values.buffers()
    ends = (values.offset, values.offset + len(values))
    first, last = (int.from_bytes(offsets.slice(4 * at, 4).to_pybytes(), "little") for at in ends)
    return data.slice(first, last - first)
