"""Conversion between lines of text and records, for `comet produce` and `comet consume`. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from comet.cli._templates import LISTED, Header, OutputTemplate, Row
from comet.encryption.envelope import key_id_of
from comet.errors import InvalidArgument

FORMATS: Final = ("value", "key-value", "json", "raw")


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


def render(form: str, topic: str, partition: int) -> Callable[[Row], bytes]:
    """The function that formats one record of a partition. Raises InvalidArgument for an unknown format."""
    match form:
        case "value":
            return lambda row: (row[3] or b"") + b"\n"
        case "raw":
            return lambda row: row[3] or b""
        case "key-value":
            return lambda row: (row[2] or b"") + b"\t" + (row[3] or b"") + b"\n"
        case "json":
            return lambda row: _json_line(topic, partition, row)
    if "%" not in form:
        raise InvalidArgument(f"invalid --format {form!r}: use {', '.join(FORMATS)}, or a template of {LISTED}")
    return OutputTemplate(form).render(topic, partition)


def shows_values(form: str) -> bool:
    """Whether a format shows values as they are; JSON names the key of an encrypted one in its place."""
    return form != "json" and ("%" not in form or OutputTemplate(form).shows_values)


def _json_line(topic: str, partition: int, row: Row) -> bytes:
    """One record on one line. Names of fields and forms of values are those of the REST API."""
    offset, timestamp_us, key, value, headers = row
    before = {"topic": topic, "partition": partition, "offset": offset, "timestamp_us": timestamp_us}
    return json_line(before, key, value, {"headers": headers_json(headers)} if headers else {})


def headers_json(headers: Iterable[Header]) -> list[dict[str, str]]:
    """Headers as the REST API has them."""
    return [{"name": name} | _content("value", "base64", content) for name, content in headers]


def json_line(before: dict[str, Any], key: bytes | None, value: bytes | None, after: dict[str, Any]) -> bytes:
    """A key and a value on one line, between other members."""
    document = before | ({"key": None} if key is None else _content("key", "key_base64", key))
    line = json.dumps(document, ensure_ascii=False)[:-1] + ", " + _value(value)
    if after:
        line += ", " + json.dumps(after, ensure_ascii=False)[1:-1]
    return line.encode() + b"}\n"


def _value(value: bytes | None) -> str:
    """A JSON value as it is, to the last digit; else text or base64."""
    import msgspec

    if value is None:
        return '"tombstone": true'
    if (key_id := key_id_of(value)) is not None:
        return f'"encrypted": {json.dumps(key_id)}'
    try:
        msgspec.json.decode(value, type=msgspec.Raw)  # checks the grammar, and builds no objects
        return '"value": ' + value.decode().replace("\n", " ").replace("\r", " ")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return json.dumps(_content("text", "base64", value), ensure_ascii=False)[1:-1]


def _content(text: str, binary: str, content: bytes) -> dict[str, str]:
    """Text under one name; bytes that are not UTF-8 under another, so that readers can tell them apart."""
    try:
        return {text: content.decode()}
    except UnicodeDecodeError:
        return {binary: base64.b64encode(content).decode()}
