"""The selection of a search: texts that a key, value or header contains, and a filter. Only the columns of these are
read, and JSON is decoded only for records that pass the others.

Pure, but for a sample of values that did not match. A text matches a part, in any case; there are no patterns.
No text in values matches ciphertext.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from comet.encryption.envelope import MAGIC
from comet.filters import Filter
from comet.filters.values import NO_JSON, decoded
from comet.values.record import RecordBatch

MISSED_MAX: Final = 50  # documents that did not match and are kept, to explain why
MISSED_BYTES_MAX: Final = 16 << 10  # of one of them


@dataclass(frozen=True)
class Filters:
    """The conditions of one search, which must all hold. `header` is matched with "name: value" of each header."""

    key: str = ""
    value: str = ""
    header: str = ""
    filter: Filter | None = None
    missed: list[Any] = field(default_factory=list, compare=False)  # the first values that `filter` did not match
    no_json: list[None] = field(default_factory=list, compare=False)  # an entry if a value was not JSON

    def __bool__(self) -> bool:
        return bool(self.key or self.value or self.header or self.filter)

    def found(self, batch: RecordBatch[bytes], begin: int, end: int) -> Sequence[int]:
        """Indexes of matches among [begin, end) of a batch."""
        found: Sequence[int] = range(begin, end)
        if self.key:
            keys, holds = batch.keys, self._key_holds
            found = [index for index in found if (key := keys[index]) is not None and holds(key)]
        if self.header and found:
            headers = batch.headers
            found = [index for index in found if headers[index] and self._header_holds(headers[index])]
        if self.value and found:
            values, holds = batch.values, self._value_holds
            found = [
                index
                for index in found
                if (value := values[index]) is not None and holds(value) and not value.startswith(MAGIC)
            ]
        if self.filter is not None and found:
            rows = self.filter.rows(batch, found)
            if len(self.missed) < MISSED_MAX and len(rows) < len(found):
                self._sample(batch, found, rows)
            return rows
        return found

    def _sample(self, batch: RecordBatch[bytes], found: Sequence[int], rows: Sequence[int]) -> None:
        """Keeps some of the values that the filter did not match."""
        values, matched = batch.values, frozenset(rows)
        for index in found:
            value = values[index]
            if index in matched or value is None or len(value) > MISSED_BYTES_MAX:
                continue
            document = decoded(value)
            if document is not NO_JSON:
                self.missed.append(document)
            elif not self.no_json:
                self.no_json.append(None)
            if len(self.missed) >= MISSED_MAX:
                return

    @cached_property
    def _key_holds(self) -> Callable[[bytes], bool]:
        return _contains(self.key)

    @cached_property
    def _value_holds(self) -> Callable[[bytes], bool]:
        return _contains(self.value)

    def _header_holds(self, headers: Sequence[tuple[str, bytes]]) -> bool:
        needle = self.header.casefold()
        return any(needle in f"{name}: {value.decode(errors='replace')}".casefold() for name, value in headers)


def _contains(needle: str) -> Callable[[bytes], bool]:
    """A function that checks whether bytes contain the text as UTF-8, in any case."""
    if needle.isascii():
        low = needle.lower().encode()
        return lambda value: low in value.lower()
    folded = needle.casefold()
    return lambda value: folded in value.decode(errors="replace").casefold()
