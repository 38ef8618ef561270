"""Conversion between lines of text and records, for `comet produce` and `comet consume`. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from comet.encryption.envelope import key_id_of
from comet.errors import InvalidArgument

FORMATS: Final = ("value", "key-value", "json", "raw")
Header = tuple[str, bytes]
# One record for output: offset, timestamp_us, key, value, headers; the zipped columns of a batch.
Row = tuple[int, int, bytes | None, bytes | None, Sequence[Header]]


def parse_headers(pairs: Sequence[str]) -> list[Header]:
    """Headers from NAME=VALUE words.

    >>> parse_headers(["source=desk"])
    [('source', b'desk')]
    """
    headers = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidArgument(f"invalid header {pair!r}: use NAME=VALUE")
        headers.append((name, value.encode()))
    return headers


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


def render(form: str, topic: str, partition: int) -> Callable[[Row], bytes]:
    """The function that formats one record of a partition."""
    match form:
        case "value":
            return lambda row: (row[3] or b"") + b"\n"
        case "raw":
            return lambda row: row[3] or b""
        case "key-value":
            return lambda row: (row[2] or b"") + b"\t" + (row[3] or b"") + b"\n"
        case "json":
            return lambda row: _json_line(topic, partition, row)
    raise InvalidArgument(f"invalid --format {form!r}: use {', '.join(FORMATS)}")


def _json_line(topic: str, partition: int, row: Row) -> bytes:
    offset, timestamp_us, key, value, headers = row
    document: dict[str, Any] = {"topic": topic, "partition": partition, "offset": offset, "timestamp_us": timestamp_us}
    _put(document, "key", key)
    if (key_id := key_id_of(value)) is not None:
        document["encrypted"] = key_id
    else:
        _put(document, "value", value)
    if headers:
        document["headers"] = [{"name": name} | _field("value", content) for name, content in headers]
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _put(document: dict[str, Any], name: str, content: bytes | None) -> None:
    document.update(_field(name, content))


def _field(name: str, content: bytes | None) -> dict[str, Any]:
    """Text as it is; bytes that are not UTF-8 under another name, so that readers can tell them apart."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
