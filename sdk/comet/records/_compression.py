"""The body's codecs. Decompression is bounded by the header's body size, which is bounded by BODY_BYTES_MAX.

The libraries are imported when a batch first needs them, and contexts are kept per thread: cold reads decode on
worker threads, and neither library's contexts may be shared between threads.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from comet.errors import CorruptBatch
from comet.records._header import BODY_BYTES_MAX, Buffer, Codec

if TYPE_CHECKING:
    import zstandard

_ZSTD_LEVEL: Final = 1  # the fastest; half of level 3's time for a few percent more bytes


class _Contexts(threading.local):
    compressor: zstandard.ZstdCompressor | None = None
    decompressor: zstandard.ZstdDecompressor | None = None


_contexts: Final = _Contexts()


def compress(codec: Codec, body: bytes) -> bytes:
    assert codec is not Codec.NONE
    if codec is Codec.LZ4:
        import lz4.block

        packed: bytes = lz4.block.compress(body, store_size=False)
        return packed
    if _contexts.compressor is None:
        import zstandard

        # The frame states its content size, which is what lets a reader refuse a bomb before it opens it.
        _contexts.compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_content_size=True)
    return _contexts.compressor.compress(body)


def decompress(codec: int, data: Buffer, body_size: int) -> bytes:
    """Exactly body_size bytes, or CorruptBatch; never allocates more than that."""
    assert codec != Codec.NONE
    assert 0 < body_size <= BODY_BYTES_MAX
    body = _open_lz4(data, body_size) if codec == Codec.LZ4 else _open_zstd(data, body_size)
    if len(body) != body_size:
        raise CorruptBatch(f"the body decompresses to {len(body)} bytes where the header says {body_size}")
    return body


def _open_lz4(data: Buffer, body_size: int) -> bytes:
    import lz4.block

    try:
        body: bytes = lz4.block.decompress(data, uncompressed_size=body_size)
    except lz4.block.LZ4BlockError as error:
        raise CorruptBatch(f"the body is not an lz4 block: {error}") from None
    return body


def _open_zstd(data: Buffer, body_size: int) -> bytes:
    import zstandard

    if _contexts.decompressor is None:
        _contexts.decompressor = zstandard.ZstdDecompressor(max_window_size=BODY_BYTES_MAX)
    try:
        # The library trusts a content size in the frame over any limit it is given, so look at that first.
        if zstandard.frame_content_size(data) != body_size:
            raise CorruptBatch(f"the zstd frame does not hold the {body_size} bytes that the header says")
        return _contexts.decompressor.decompress(data, max_output_size=body_size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"the body is not a zstd frame: {error}") from None
