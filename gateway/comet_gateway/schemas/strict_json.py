"""Checks beside the fast decoder: duplicate members and invalid UTF-8; and problems for decoding errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from comet_gateway.http.problems import Problem

_OF_RECORDS: Final = frozenset({"record", "records"})  # members that hold records


class Wrong(Exception):
    """A fault of one record; becomes a Problem where its index is known."""


# A known name that is spelled with an escape: then counting names proves nothing.
_ESCAPED_NAME: Final = re.compile(rb"\\u00(?:6|7|5[fF]|3[46])")


def each_once(data: bytes, members: Mapping[str, int], opaque: Iterable[bytes]) -> bool:
    """Whether each member occurs once in its record, by the given counts. False: perhaps not.

    The decoder keeps the last of duplicates. The others show if a name occurs in the data more often than there are
    records with it, outside of opaque content.
    """
    over = [
        (needle, extra)
        for name, count in members.items()
        if (extra := data.count(needle := b'"%b"' % name.encode()) - count)
    ]
    if any(sum(content.count(needle) for content in opaque) != extra for needle, extra in over):
        return False
    return b"\\u00" not in data or not _ESCAPED_NAME.search(data)


class Members(tuple[tuple[str, Any], ...]):
    """An object's members in order, duplicates included."""

    __slots__ = ()


def load(data: bytes) -> Any:
    # Numbers are not needed, and long ones are slow to parse.
    return json.loads(data, object_pairs_hook=Members, parse_int=len, parse_float=len)


def refuse_duplicates(data: bytes) -> None:
    """The slow way: checks every member of the document and of its records, but not their content."""
    try:
        document = load(data)
    except RecursionError as error:
        raise fault(data, error) from None
    objects = [document]
    for name, value in document:
        if name in _OF_RECORDS:
            objects += value if type(value) is list else [value]
    for one in objects:
        if isinstance(one, Members):
            try:
                once(name for name, _ in one)
            except Wrong as error:
                raise Problem("VALIDATION", str(error)) from None


def once(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Wrong(f"duplicate member `{name[:40]}`")
        seen.add(name)


def check_text(data: bytes) -> None:
    """Checks that JSON is UTF-8, in opaque content, too."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise fault(data, error) from None


_BYTE: Final = re.compile(r" \(byte (\d+)\)$")


def fault(data: bytes, error: Exception) -> Problem:
    """The problem of a decoding error, with its position."""
    match error:
        case msgspec.ValidationError():
            return Problem("VALIDATION", str(error))
        case RecursionError():
            return Problem("MALFORMED_BODY", "JSON is nested too deeply")
        case UnicodeDecodeError():
            position = data.find(error.object) if isinstance(error.object, bytes) else -1
            position = max(position, 0) + error.start
            return Problem("MALFORMED_BODY", f"not UTF-8 at byte {position}", more={"position": position})
    message = str(error)
    found = _BYTE.search(message)
    position = int(found[1]) if found else len(data)
    reason = message[: found.start()] if found else "JSON ends too early, or has half of a surrogate pair"
    return Problem("MALFORMED_BODY", f"{reason}, at byte {position}", more={"position": position})
