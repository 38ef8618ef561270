r"""Output templates of `comet consume -f`, as kcat has them. Pure.

%t topic    %p partition    %o offset    %k key    %v, %s value    %T timestamp in milliseconds since 1970
%h headers, as name=value with commas between    %K, %S bytes of the key, of the value; -1 without    %% a percent
\n newline    \t tab    \r carriage return    \0 zero byte    \xNN byte in hex    \\ backslash
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from comet.errors import InvalidArgument

Header = tuple[str, bytes]
# One record for output: offset, timestamp_us, key, value, headers; the zipped columns of a batch.
Row = tuple[int, int, bytes | None, bytes | None, Sequence[Header]]
_Piece = Callable[[Row], bytes]

LISTED: Final = (
    "%t topic, %p partition, %o offset, %k key, %v or %s value, %T timestamp in ms, %h headers, %K and %S bytes of key "
    "and value, %% percent; \\n, \\t, \\r, \\0, \\xNN, \\\\"
)
_OF_VALUES: Final = frozenset("vsS")
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN: Final = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)


def _headers(headers: Sequence[Header]) -> bytes:
    return b",".join(name.encode() + b"=" + value for name, value in headers)


def _size(content: bytes | None) -> bytes:
    return b"-1" if content is None else b"%d" % len(content)


_FIELDS: Final[dict[str, _Piece]] = {
    "o": lambda row: b"%d" % row[0],
    "T": lambda row: b"%d" % (row[1] // 1000),
    "k": lambda row: row[2] or b"",
    "v": lambda row: row[3] or b"",
    "s": lambda row: row[3] or b"",
    "h": lambda row: _headers(row[4]),
    "K": lambda row: _size(row[2]),
    "S": lambda row: _size(row[3]),
}


class OutputTemplate:
    """A parsed template. `shows_values`: it has the value or its size."""

    def __init__(self, text: str) -> None:
        """Raises InvalidArgument for an unknown field or escape, with the list of those that there are."""
        self._parts: list[bytes | str] = []  # text, or the letter of a field
        at = 0
        for token in _TOKEN.finditer(text):
            self._parts.append(text[at : token.start()].encode())
            self._parts.append(_part(token))
            at = token.end()
        self._parts.append(text[at:].encode())
        self.shows_values = not _OF_VALUES.isdisjoint(part for part in self._parts if isinstance(part, str))

    def render(self, topic: str, partition: int) -> Callable[[Row], bytes]:
        """The function that writes one record of a partition."""
        fixed = {"t": topic.encode(), "p": b"%d" % partition}
        texts = [fixed.get(part, part) if isinstance(part, str) else part for part in self._parts]
        pieces = [_piece(text) for text in texts if text]
        return lambda row: b"".join([piece(row) for piece in pieces])


def _part(token: re.Match[str]) -> bytes | str:
    field, escape = token[1], token[2]
    if field is not None:
        if field == "%":
            return b"%"
        if field in _FIELDS or (field and field in "tp"):
            return field
    elif escape in _ESCAPES:
        return _ESCAPES[escape]
    elif len(escape) == 3:
        return bytes.fromhex(escape[1:])
    raise InvalidArgument(f"invalid '{token[0]}' in --format: use {LISTED}")


def _piece(part: bytes | str) -> _Piece:
    return _FIELDS[part] if isinstance(part, str) else lambda _: part
