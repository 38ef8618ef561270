"""The content of a request with an idempotency key, as bytes that are hashed. proto/BATCH.md specifies them.

Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

_CONTENT: Final = struct.Struct("<qqiiI")  # partition, timestamp, bytes of key and value, headers; -1: none
_HEADER: Final = struct.Struct("<II")  # bytes of name and value
_TTL: Final = struct.Struct("<q")
_HAS_TTL: Final = 1 << 31  # in the number of headers


class Content(NamedTuple):
    """A record as it was requested."""

    partition: int  # -1: not named
    timestamp_us: int  # 0: not given
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    ttl_ms: int = 0  # 0: not given


def content_bytes(records: Iterable[Content]) -> bytes:
    """The bytes of a request's records, in their order. Two requests have the same only if their records are equal."""
    parts: list[bytes] = []
    for partition, timestamp_us, key, value, headers, ttl_ms in records:
        sizes = (-1 if key is None else len(key), -1 if value is None else len(value))
        parts.append(_CONTENT.pack(partition, timestamp_us, *sizes, len(headers) | (_HAS_TTL if ttl_ms else 0)))
        if ttl_ms:
            parts.append(_TTL.pack(ttl_ms))
        parts += (key or b"", value or b"")
        for name, content in headers:
            encoded = name.encode()
            parts += (_HEADER.pack(len(encoded), len(content)), encoded, content)
    return b"".join(parts)


def digest_number(digest: bytes) -> int:
    """62 bits of a hash, never 0."""
    return int.from_bytes(digest[:8], "little") >> 2 or 1
