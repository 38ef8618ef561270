"""Compression of answers with gzip or zstd if the client accepts it: complete text bodies, never streams."""

from __future__ import annotations

import asyncio
import gzip
import re
from typing import Final

import zstandard

LEAST_BYTES: Final = 1024
THREAD_BYTES: Final = 128 * 1024  # a body this large would block the loop
ZSTD_LEVEL: Final = 1
GZIP_LEVEL: Final = 1
_TEXT: Final = re.compile(rb"(text/|application/([a-z0-9.+-]*\+)?(json|x-ndjson|javascript|xml))")
_ITEM: Final = re.compile(r"\s*([a-z0-9*-]+)\s*(?:;\s*q\s*=\s*([0-9.]+)\s*)?")


def chosen(accept_encoding: bytes) -> bytes | None:
    """The encoding that the client prefers; zstd if both are equal.

    >>> chosen(b"gzip, deflate, br, zstd"), chosen(b"gzip;q=0.5"), chosen(b"zstd;q=0, identity")
    (b'zstd', b'gzip', None)
    """
    liked = {}
    for item in accept_encoding.decode("latin-1").lower().split(","):
        if match := _ITEM.fullmatch(item):
            try:
                liked[match[1]] = float(match[2] or 1)
            except ValueError:
                continue
    best = max(("gzip", "zstd"), key=lambda name: (liked.get(name, liked.get("*", 0)), name))
    return best.encode() if liked.get(best, liked.get("*", 0)) > 0 else None


def worthwhile(content_type: bytes, size: int) -> bool:
    return size >= LEAST_BYTES and _TEXT.match(content_type) is not None


async def compressed(body: bytes, encoding: bytes) -> bytes:
    """Compresses a body; a large one in a thread."""
    if len(body) >= THREAD_BYTES:
        return await asyncio.to_thread(_compress, body, encoding)
    return _compress(body, encoding)


def _compress(body: bytes, encoding: bytes) -> bytes:
    if encoding == b"zstd":
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(body)
    return gzip.compress(body, GZIP_LEVEL, mtime=0)
