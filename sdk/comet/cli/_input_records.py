"""Lines of text as records for `comet produce`: plain lines with keys, JSON lines, CSV. Pure.

A reader takes the lines as they arrive and returns keys and values; it keeps no more than an incomplete row.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from typing import Final, Protocol

from comet.cli._stdin import LINE_BYTES_MAX
from comet.errors import InvalidArgument, RecordTooLarge

Keys = list[bytes] | None
_TYPED: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false", re.ASCII)


class LineReader(Protocol):
    """Makes records of lines."""

    def read(self, lines: Sequence[bytes]) -> tuple[Keys, Sequence[bytes]]:
        """The keys and values of the next lines. Raises InvalidArgument, with the number of the line."""
        ...

    def finish(self) -> None:
        """Raises InvalidArgument if the last record is incomplete."""


class PlainLines:
    """A line is a value, or a key and a value."""

    def __init__(self, separator: bytes = b"", *, json_lines: bool = False, key_field: str = "") -> None:
        self._separator = separator
        self._json_lines = json_lines
        self._key_field = key_field
        self._next = 1  # number of the next line

    def read(self, lines: Sequence[bytes]) -> tuple[Keys, Sequence[bytes]]:
        first, keys, values = self._next, None, lines
        self._next += len(lines)
        if self._separator:
            keys, values = split_keys(lines, self._separator, first)
        if self._json_lines:
            check_json_lines(values, first)
        if self._key_field:
            keys = [field_key(value, self._key_field, number) for number, value in enumerate(values, first)]
        return keys, values

    def finish(self) -> None:
        """A line is complete."""


class CsvLines:
    """Rows of CSV, as JSON objects; the first row names the fields. A cell that is a number, or true or false, is that
    in JSON, an empty one is null, and all others are texts."""

    def __init__(self, key_field: str = "") -> None:
        csv.field_size_limit(LINE_BYTES_MAX)
        self._key_field = key_field
        self._key_at: int | None = None
        self._names: list[str] | None = None  # of the fields, as JSON
        self._next = 1
        self._held: list[bytes] = []  # lines of a row with an open quotation mark
        self._held_bytes = 0
        self._open = False

    def read(self, lines: Sequence[bytes]) -> tuple[Keys, Sequence[bytes]]:
        keys: list[bytes] = []
        values: list[bytes] = []
        for line in lines:
            self._held.append(line)
            self._held_bytes += len(line)
            self._next += 1
            self._open ^= line.count(b'"') % 2 == 1
            if self._held_bytes > LINE_BYTES_MAX:
                raise RecordTooLarge(f"the row at line {self._first} is longer than {LINE_BYTES_MAX} bytes")
            if not self._open:
                self._row(keys, values)
        return keys if self._key_at is not None else None, values

    def finish(self) -> None:
        if self._held:
            raise InvalidArgument(f'line {self._first} opens a quotation mark that is not closed: a " inside is ""')
        if self._names is None:
            raise InvalidArgument("the CSV is empty: its first line has to name the fields")

    @property
    def _first(self) -> int:
        return self._next - len(self._held)

    def _row(self, keys: list[bytes], values: list[bytes]) -> None:
        first, text = self._first, b"\n".join(self._held)
        self._held, self._held_bytes = [], 0
        cells = _cells(text, first)
        if self._names is None:
            self._head(cells)
            return
        if not text:
            return
        if len(cells) != len(self._names):
            raise InvalidArgument(f"line {first} has {len(cells)} cells, and the header {len(self._names)}")
        pairs = zip(self._names, map(_json_cell, cells), strict=True)
        values.append(("{" + ",".join([f"{name}:{cell}" for name, cell in pairs]) + "}").encode())
        if self._key_at is not None:
            if not cells[self._key_at]:
                raise InvalidArgument(f"line {first} has no {self._key_field}, from which the key is taken")
            keys.append(cells[self._key_at].encode())

    def _head(self, cells: list[str]) -> None:
        names = [cell.strip().removeprefix("\ufeff") for cell in cells]
        twice = next((name for name in names if names.count(name) > 1), None)
        if not names or not all(names) or twice is not None:
            wrong = f"has {twice!r} twice" if twice else "lacks the name of a field"
            raise InvalidArgument(f"the header of the CSV {wrong}: {', '.join(names)}")
        if self._key_field:
            if self._key_field not in names:
                raise InvalidArgument(f"the CSV has no field {self._key_field!r}: it has {', '.join(names)}")
            self._key_at = names.index(self._key_field)
        self._names = [json.dumps(name, ensure_ascii=False) for name in names]


def _cells(text: bytes, line: int) -> list[str]:
    try:
        rows = list(csv.reader([text.decode()], strict=True))
    except UnicodeDecodeError:
        raise InvalidArgument(f"line {line} is not UTF-8: convert the file, e.g. iconv -f latin1 -t utf-8") from None
    except csv.Error as error:
        raise InvalidArgument(f"line {line} is not CSV: {error}") from None
    return rows[0] if rows else []


def _json_cell(cell: str) -> str:
    if not cell:
        return "null"
    return cell if _TYPED.fullmatch(cell) else json.dumps(cell, ensure_ascii=False)


def split_keys(lines: Sequence[bytes], separator: bytes, first: int) -> tuple[list[bytes], list[bytes]]:
    """Splits lines into keys and values. Raises for a line without the separator: nearly always a mistake."""
    keys, values = [], []
    for number, line in enumerate(lines, first):
        key, found, value = line.partition(separator)
        if not found:
            raise InvalidArgument(f"line {number} lacks the separator {separator.decode()!r} between key and value")
        keys.append(key)
        values.append(value)
    return keys, values


def check_json_lines(values: Sequence[bytes], first: int) -> None:
    """Raises for a value that is not JSON, with the number of its line."""
    import msgspec

    for number, value in enumerate(values, first):
        try:
            msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"line {number} is not JSON: {error}") from None


def field_key(value: bytes, field: str, line: int) -> bytes:
    """The key of a record from a field of its JSON: a text, or the digits of a number. Raises InvalidArgument.

    >>> field_key(b'{"symbol": "EUR", "n": 1.50}', "symbol", 1), field_key(b'{"n": 1.50}', "n", 1)
    (b'EUR', b'1.50')
    """
    import msgspec

    try:
        fields = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"line {line} is not a JSON object, from which --key-field takes the key: {error}"
        ) from None
    found = bytes(fields.get(field, b"null"))
    if found[:1] == b'"':
        return str(msgspec.json.decode(found)).encode()
    if found[:1] in (b"{", b"[") or found == b"null":
        what = "has no" if found == b"null" else "has no text or number in"
        raise InvalidArgument(f"line {line} {what} {field}, from which the key is taken")
    return found
