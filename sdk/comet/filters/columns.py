"""The columns of one batch, as a filter reads them: nothing is cut or decoded before a comparison needs it.

    rows that may match  ─► JSON of these rows ─► a Struct of the fields that the filter names; others are skipped in C
                                              └─► where that fails: the whole document (`general`)

Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

import msgspec

from comet.filters.values import UNDECODABLE, decoded
from comet.records import Batch

_UNREAD: Final = object()
_SAMPLE_BYTES: Final = 4 << 10  # in which the bytes of a needle are counted
_RARE: Final = 500  # a byte is rare if it is at most one of 500


class Decryption(Protocol):
    """Decrypted values; None where there is an error."""

    @property
    def values(self) -> Sequence[bytes | None]: ...
    @property
    def errors(self) -> Mapping[int, object]: ...


class Filterable(Protocol):
    """What a filter reads of a batch, one entry per record. `stored` is the batch that the records lie in, with the
    index of the first if their values lie in it as they are, in a row; `encrypted` has the records whose values cannot
    be decrypted."""

    @property
    def encrypted(self) -> Decryption | None: ...
    @property
    def headers(self) -> Sequence[Sequence[tuple[str, bytes]]]: ...
    @property
    def keys(self) -> Sequence[bytes | None]: ...
    @property
    def offsets(self) -> Sequence[int]: ...
    @property
    def partition(self) -> int: ...
    @property
    def stored(self) -> tuple[Batch, int | None]: ...
    @property
    def timestamps(self) -> Sequence[int]: ...
    @property
    def values(self) -> Sequence[bytes | None]: ...
    def size_of(self, index: int) -> int: ...
    def __len__(self) -> int: ...


class Projection:
    """Decodes the fields of the given names, as attributes f0, f1 … of a Struct; None: whole documents only."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.kind = _struct(names)
        self.decode: Callable[[bytes], Any] = msgspec.json.Decoder(self.kind).decode
        self.empty = self.kind()


@lru_cache(maxsize=64)
def _struct(names: tuple[str, ...]) -> type[msgspec.Struct]:
    fields = [(f"f{at}", Any, msgspec.UNSET) for at in range(len(names))]
    return msgspec.defstruct("Fields", fields, rename={f"f{at}": name for at, name in enumerate(names)})


class ColumnReader:
    """One batch under one filter. Owned by one evaluation."""

    def __init__(self, batch: Filterable, projection: Projection | None) -> None:
        self.batch = batch
        self.count = len(batch)
        self.unreadable: Mapping[int, object] = {} if batch.encrypted is None else batch.encrypted.errors
        self.general: dict[int, Any] = {}  # whole documents, by row
        self._projection = projection
        self._rows: list[Any] | None = None
        self._column: bytes | None = None
        self._ends: Sequence[int] = ()

    @property
    def values(self) -> Sequence[bytes | None]:
        batch = self.batch
        return batch.values if batch.encrypted is None else batch.encrypted.values

    # ---- documents

    def documents(self, rows: Sequence[int]) -> list[Any]:
        """A list that has the Struct of each of these rows; of a row in `general`, one without fields."""
        found = self._rows
        if found is None:
            found = self._rows = [_UNREAD] * self.count
        else:
            rows = [row for row in rows if found[row] is _UNREAD]
        if len(rows) == self.count and not self.unreadable:
            self._load_column()
        values = self._values_of(rows)
        if self._projection is None:
            self.general.update(zip(rows, map(decoded, values), strict=True))
            return found
        self._project(rows, values, found, self._projection)
        return found

    def _project(
        self, rows: Sequence[int], values: Sequence[bytes | None], found: list[Any], projection: Projection
    ) -> None:
        decode, at = projection.decode, 0
        if self._is_ascii(values):
            try:
                # Nearly always: one pass without a Python call for a row.
                for row, document in zip(rows, map(decode, values), strict=False):  # type: ignore[arg-type]
                    found[row] = document
                    at += 1
                return
            except (*UNDECODABLE, TypeError):  # a tombstone
                pass
        for row, value in zip(rows[at:], values[at:], strict=True):
            try:
                if value is not None and (value.isascii() or value.decode()):
                    found[row] = decode(value)
                    continue
            except UNDECODABLE:
                pass
            found[row] = projection.empty
            self.general[row] = decoded(value)

    def _is_ascii(self, values: Sequence[bytes | None]) -> bool:
        """Whether no value can have bytes that are not UTF-8, in a field that is skipped."""
        if self._column is not None:
            return self._column.isascii()
        return all(map(bytes.isascii, filter(None, values)))

    def _values_of(self, rows: Sequence[int]) -> Sequence[bytes | None]:
        if len(rows) == self.count:
            return self.values
        column = self._column
        if column is not None and len(rows) * 4 < self.count:  # cheaper than to cut all
            ends = self._ends
            return [column[ends[row] : ends[row + 1]] for row in rows]
        return list(map(self.values.__getitem__, rows))

    # ---- the literal prefilter

    def having(self, needles: Sequence[bytes], rows: Sequence[int]) -> Sequence[int]:
        """These rows without those whose value has none of the needles. Only as long as no value has a backslash, for
        JSON may escape every letter; and only if it seems to drop enough of them."""
        if len(rows) < self.count or self.unreadable or not self._load_column():
            return rows
        column = self._column
        assert column is not None
        if b"\\" in column:
            return rows
        sample = len(column) // 8
        if sum(column.count(needle, 0, sample) for needle in needles) * 8 * 4 > self.count:
            return rows
        return sorted({row for needle in needles for row in _rows_with(needle, column, self._ends)})

    def _load_column(self) -> bool:
        """Reads the value column as it lies in the batch, if it does."""
        if self._column is not None:
            return True
        batch, first = self.batch.stored
        if first is None:
            return False
        ends = batch.value_ends()
        start, end = ends[first], ends[first + self.count]
        data = batch.values_column.data
        self._column = batch.body[data + start : data + end].tobytes()
        last = first + self.count + 1
        self._ends = ends if start == 0 and last == len(ends) else [one - start for one in ends[first:last]]
        return True


def _rows_with(needle: bytes, column: bytes, ends: Sequence[int]) -> Iterable[int]:
    """The rows whose bytes have the needle. `ends` are the offsets of the rows in the column."""
    find, size, at = _finder(needle, column), len(needle), 0
    while (at := find(at)) >= 0:
        row = bisect_right(ends, at) - 1
        if at + size <= ends[row + 1]:
            yield row
            at = ends[row + 1]
        else:  # part of two rows
            at += 1


def _finder(needle: bytes, column: bytes) -> Callable[[int], int]:
    """Finds the needle from a position on; -1: it is not there. By its rarest byte, if that is rare: the search for one
    byte takes a twentieth of the time. The rest of the column may differ from the sample, so that misses are counted.
    """
    sample = min(len(column), _SAMPLE_BYTES)
    hits, byte = min((column.count(one, 0, sample), one) for one in set(needle))
    before, left = needle.index(byte), len(column) // _RARE
    if hits * _RARE > sample:
        left = 0

    def find(at: int) -> int:
        nonlocal left
        while left > 0 and (found := column.find(byte, at + before)) >= 0:
            at = found - before
            if column.startswith(needle, at):
                return at
            at += 1
            left -= 1
        return column.find(needle, at) if left <= 0 else -1

    return find
