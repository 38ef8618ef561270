"""Encodes records as JSON, from the columns of their batch, for every route that returns records.

    {"partition":0,"offset":"42","timestamp_us":"1732212345678901","key":"EURUSD","value":{"bid":1.08},
     "headers":[{"name":"source","value":"demo"}]}

    partition     a number; offset and timestamp_us are 64 bits wide, so they are strings
    key           text; `key_base64` if the bytes are not UTF-8; both absent if there is no key
    value         the value itself if it is JSON; otherwise `text` or `base64`; see Values. `"tombstone":true` for a
                  tombstone. A value that is encrypted end to end is `base64`, and has the id of its wrapping key in
                  `encrypted`: a gateway has no keys
    headers       absent if there are none; `base64` instead of `value` if the bytes are not UTF-8

A JSON value is copied unchanged, its numbers to the last digit; only line breaks become spaces, so that the result is
one line, for NDJSON and SSE.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

import comet
from comet.encryption.envelope import key_id_of

_RECORD: Final = b'{"partition":%d,"offset":"%d","timestamp_us":"%d"%b%b%b}'
_TOMBSTONE: Final = b',"tombstone":true'
# Checks the grammar without building objects; it does not check that strings are UTF-8.
_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode
_text: Final = msgspec.json.Encoder().encode


class Values(StrEnum):
    """The form of a record's value in JSON."""

    AUTO = "auto"  # JSON if it is JSON, text if it is UTF-8, otherwise base64
    TEXT = "text"  # text if it is UTF-8, otherwise base64
    BASE64 = "base64"


def fragments(batch: comet.RecordBatch[bytes], values: Values = Values.AUTO) -> list[bytes]:
    """Encodes each record of a batch as one JSON object."""
    write, keys = _WRITERS[values], _Keys()
    return [
        _RECORD % (partition, offset, at, keys[key], write(value), _headers(headers) if headers else b"")
        for _, partition, offset, key, value, at, headers in batch.records()
    ]


Single = comet.Record[bytes] | comet.AcquiredRecord | comet.ShareRecord[bytes]


def each(records: Iterable[Single], values: Values = Values.AUTO) -> list[bytes]:
    """Encodes single records."""
    write, keys = _WRITERS[values], _Keys()
    return [
        _RECORD
        % (
            one.partition, one.offset, one.timestamp_us, keys[one.key], write(one.value),
            _headers(one.headers) if one.headers else b"",
        )
        for one in records
    ]  # fmt: skip


def key_and_value(key: bytes | None, value: bytes | None) -> bytes:
    """The members of a record's key and value, each with a comma before it."""
    return (b"" if key is None else _key(key)) + _auto(value)


def contents(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes]]) -> bytes:
    """The members of a record's key, value and headers, likewise."""
    pairs = tuple(headers)
    return key_and_value(key, value) + (_headers(pairs) if pairs else b"")


class _Keys(dict[bytes | None, bytes]):
    """A cache of encoded keys, since they repeat."""

    def __missing__(self, key: bytes | None) -> bytes:
        written = self[key] = b"" if key is None else _key(key)
        return written


def _key(key: bytes) -> bytes:
    try:
        return b',"key":' + _text(key.decode())
    except UnicodeDecodeError:
        return b',"key_base64":"' + b64encode(key) + b'"'


def _auto(value: bytes | None) -> bytes:
    if value is None:
        return _TOMBSTONE
    try:
        _check_json(value)
        if not value.isascii():
            value.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _as_text(value)
    if b"\n" in value or b"\r" in value:
        value = value.replace(b"\n", b" ").replace(b"\r", b" ")
    return b',"value":' + value


def _as_text(value: bytes | None) -> bytes:
    if value is None:
        return _TOMBSTONE
    try:
        return b',"text":' + _text(value.decode())
    except UnicodeDecodeError:
        return _as_base64(value)


def _as_base64(value: bytes | None) -> bytes:
    if value is None:
        return _TOMBSTONE
    key_id = key_id_of(value)
    encrypted = b"" if key_id is None else b',"encrypted":' + _text(key_id)
    return b',"base64":"' + b64encode(value) + b'"' + encrypted


_WRITERS: Final = {Values.AUTO: _auto, Values.TEXT: _as_text, Values.BASE64: _as_base64}


def _headers(pairs: Iterable[tuple[str, bytes]]) -> bytes:
    return b',"headers":[' + b",".join(_header(name, value) for name, value in pairs) + b"]"


def _header(name: str, value: bytes) -> bytes:
    try:
        return b'{"name":%b,"value":%b}' % (_text(name), _text(value.decode()))
    except UnicodeDecodeError:
        return b'{"name":%b,"base64":"%b"}' % (_text(name), b64encode(value))
