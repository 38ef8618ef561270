"""Filters of a search. Only the columns of the filters are read, and JSON is decoded only for records that pass the
other filters.

Pure, but for a sample of values that did not match. A text filter matches a part, in any case; there are no patterns.
No filter of values matches ciphertext.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import msgspec

from comet.encryption.envelope import MAGIC
from comet.search.conditions import Where
from comet.values.record import RecordBatch

MISSED_MAX: Final = 50  # documents that did not match and are kept, to explain why
MISSED_BYTES_MAX: Final = 16 << 10  # of one of them
_decode: Final = msgspec.json.Decoder().decode


@dataclass(frozen=True)
class Filters:
    """The filters of one search, which must all match. `header` is matched with "name: value" of each header."""

    key: str = ""
    value: str = ""
    header: str = ""
    where: tuple[Where, ...] = ()
    missed: list[Any] = field(default_factory=list, compare=False)  # the first values that `where` did not match
    no_json: list[None] = field(default_factory=list, compare=False)  # an entry if a value was not JSON

    def __bool__(self) -> bool:
        return bool(self.key or self.value or self.header or self.where)

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
        if self.where and found:
            values = batch.values
            found = [index for index in found if (value := values[index]) is not None and self.holds(value)]
        return found

    @cached_property
    def _key_holds(self) -> Callable[[bytes], bool]:
        return _contains(self.key)

    @cached_property
    def _value_holds(self) -> Callable[[bytes], bool]:
        return _contains(self.value)

    def _header_holds(self, headers: Sequence[tuple[str, bytes]]) -> bool:
        needle = self.header.casefold()
        return any(needle in f"{name}: {value.decode(errors='replace')}".casefold() for name, value in headers)

    def holds(self, value: bytes) -> bool:
        """Whether a value matches all conditions on its JSON."""
        try:
            document = _decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if not self.no_json:
                self.no_json.append(None)
            return False
        if all(where.holds(document) for where in self.where):
            return True
        if len(self.missed) < MISSED_MAX and len(value) <= MISSED_BYTES_MAX:
            self.missed.append(document)
        return False


def _contains(needle: str) -> Callable[[bytes], bool]:
    """A function that checks whether bytes contain the text as UTF-8, in any case."""
    if needle.isascii():
        low = needle.lower().encode()
        return lambda value: low in value.lower()
    folded = needle.casefold()
    return lambda value: folded in value.decode(errors="replace").casefold()
