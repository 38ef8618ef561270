"""The canonical encoding of the hot frames: of Produce and Delivery a fixed prefix, then the batch bytes.

    ClientFrame   0d request:u32  1a len:varint5  0d handle:u32  10 acks:u8  7a len:varint5         24 bytes
    ServerFrame   1a len:varint5  0d handle:u32  11 high_watermark:u64  85 01 epoch:u32  7a len     32 bytes
    ServerFrame   0d request:u32  6a len:varint5  30 80 80 80 80 80 00  2a len:varint5                      24 bytes
    ServerFrame   22 1a  0a 04 request:u32  12 08 base_offset:i64  1a 08 append_time_us:i64                 28 bytes
    FollowerFrame 1a 1c  0d handle:u32  15 epoch:u32  19 log_end:i64  21 flushed_end:i64                    30 bytes

The third is a FetchResponse whose batches come first, aligned by an epoch of 0; its other fields follow them. The
fourth is ProduceAcks with one acknowledgement, the last is Progress, both as protobuf itself would write them if it
wrote zeros. The lengths of the others are varints padded to five bytes, so that a prefix has one size and one struct
builds or reads it. Any protobuf parser reads these frames; frames that some other encoder made are valid too, and the
parsers here answer None for them, so that the caller falls back to protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, TypeAlias

Frame: TypeAlias = bytes | bytearray  # not changed once it is passed on
Part: TypeAlias = bytes | memoryview


class FrameParts:
    """A large frame in parts, which a transport that gathers its writes need not join. Neither the parts nor the memory
    behind a view may change once it is passed on: a transport keeps them until they are written, a tail longer."""

    __slots__ = ("_size", "parts")

    def __init__(self, parts: tuple[Part, ...], size: int) -> None:
        assert sum(map(len, parts)) == size
        self.parts = parts
        self._size = size

    def __len__(self) -> int:
        return self._size

    def join(self) -> bytes:
        """The frame as one, for a transport that needs it so. Kept in place of the parts: it is joined once."""
        if len(self.parts) == 1 and isinstance(self.parts[0], bytes):
            return self.parts[0]
        whole = b"".join(self.parts)
        self.parts = (whole,)
        return whole


Outgoing: TypeAlias = bytes | FrameParts


def joined(frame: Outgoing) -> bytes:
    """The frame as one."""
    return frame if isinstance(frame, bytes) else frame.join()


PRODUCE_PREFIX_BYTES: Final = 24
DELIVERY_PREFIX_BYTES: Final = 32
FETCHED_PREFIX_BYTES: Final = 24
ACK_FRAME_BYTES: Final = 28
PROGRESS_FRAME_BYTES: Final = 30
FRAME_BYTES_MAX: Final = (1 << 31) - 1  # a protobuf message is no larger
# Below this size a join is cheaper than several parts in a write.
PARTS_FROM_BYTES: Final = 64 << 10

# A Ping and a Pong without a request: the heartbeats of a client and of its broker, see liveness.
CLIENT_HEARTBEAT: Final = b"\x4a\x00"
BROKER_HEARTBEAT: Final = b"\x52\x00"

_LENGTH: Final = Struct("<IB")
_PRODUCE: Final = Struct("<BI B5s BI BB B5s")
_DELIVERY: Final = Struct("<B5s BI BQ HI B5s")
_FETCHED: Final = Struct("<BI B5s 7s B5s")
_ALIGNING: Final = b"\x30\x80\x80\x80\x80\x80\x00"
_ACK: Final = Struct("<HHIHqHq")
_PROGRESS: Final = Struct("<HBIBIBqBq")
_ACKS_MAX: Final = 2

assert _PRODUCE.size == PRODUCE_PREFIX_BYTES
assert _DELIVERY.size == DELIVERY_PREFIX_BYTES
assert _FETCHED.size == FETCHED_PREFIX_BYTES
assert _ACK.size == ACK_FRAME_BYTES
assert _PROGRESS.size == PROGRESS_FRAME_BYTES


@lru_cache(maxsize=2048)
def _length(n: int) -> bytes:
    """The number as a varint of five bytes. Kept: most frames of a stream have one of a few sizes."""
    return _LENGTH.pack(n & 0x7F | (n & 0x3F80) << 1 | (n & 0x1FC000) << 2 | (n & 0xFE00000) << 3 | 0x80808080, n >> 28)


def produce_frame(request: int, handle: int, acks: int, parts: Sequence[bytes], batch_bytes: int) -> bytes:
    """A ClientFrame with a Produce; `parts` join to the batch and are `batch_bytes` long together."""
    frame = b"".join((_produce_prefix(request, handle, acks, batch_bytes), *parts))
    assert len(frame) == PRODUCE_PREFIX_BYTES + batch_bytes
    return frame


def outgoing_produce(request: int, handle: int, acks: int, parts: Sequence[bytes], batch_bytes: int) -> Outgoing:
    """The same for a transport: in parts where it is large, so that no value is copied for it."""
    if batch_bytes < PARTS_FROM_BYTES:
        return produce_frame(request, handle, acks, parts, batch_bytes)
    first, *rest = parts
    prefix = _produce_prefix(request, handle, acks, batch_bytes)
    whole = (prefix + first, *rest) if len(first) < PARTS_FROM_BYTES else (prefix, *parts)
    return FrameParts(whole, PRODUCE_PREFIX_BYTES + batch_bytes)


def _produce_prefix(request: int, handle: int, acks: int, batch_bytes: int) -> bytes:
    assert batch_bytes <= FRAME_BYTES_MAX - PRODUCE_PREFIX_BYTES
    assert 0 <= acks <= _ACKS_MAX
    return _PRODUCE.pack(
        0x0D, request, 0x1A, _length(batch_bytes + 13), 0x0D, handle, 0x10, acks, 0x7A, _length(batch_bytes)
    )


def parse_produce(frame: Frame) -> tuple[int, int, int, memoryview] | None:
    """(request, handle, acks, batch) of a canonical Produce frame, else None."""
    batch_bytes = len(frame) - PRODUCE_PREFIX_BYTES
    if not 0 <= batch_bytes <= FRAME_BYTES_MAX - PRODUCE_PREFIX_BYTES:
        return None
    t0, request, t1, length1, t2, handle, t3, acks, t4, length2 = _PRODUCE.unpack_from(frame)
    if (
        t0 == 0x0D and t1 == 0x1A and t2 == 0x0D and t3 == 0x10 and t4 == 0x7A and acks <= _ACKS_MAX
        and length1 == _length(batch_bytes + 13) and length2 == _length(batch_bytes)
    ):  # fmt: skip
        return request, handle, acks, memoryview(frame)[PRODUCE_PREFIX_BYTES:]
    return None


def delivery_prefix(handle: int, high_watermark: int, leader_epoch: int, batches_bytes: int) -> bytes:
    """What goes before `batches_bytes` of whole batches to make a ServerFrame with a Delivery."""
    assert batches_bytes <= FRAME_BYTES_MAX - DELIVERY_PREFIX_BYTES
    return _DELIVERY.pack(
        0x1A, _length(batches_bytes + 26), 0x0D, handle, 0x11, high_watermark, 0x0185, leader_epoch,
        0x7A, _length(batches_bytes),
    )  # fmt: skip


def parse_delivery(frame: Frame) -> tuple[int, int, int] | None:
    """(handle, high_watermark, leader_epoch) of a canonical Delivery frame, else None; batches are frame[32:]."""
    batches_bytes = len(frame) - DELIVERY_PREFIX_BYTES
    if not 0 <= batches_bytes <= FRAME_BYTES_MAX - DELIVERY_PREFIX_BYTES:
        return None
    t0, length1, t1, handle, t2, high_watermark, t3, epoch, t4, length2 = _DELIVERY.unpack_from(frame)
    if (
        t0 == 0x1A and t1 == 0x0D and t2 == 0x11 and t3 == 0x0185 and t4 == 0x7A
        and length1 == _length(batches_bytes + 26) and length2 == _length(batches_bytes)
    ):  # fmt: skip
        return handle, high_watermark, epoch
    return None


def fetched_frame(request: int, batches: bytes, others: bytes) -> Outgoing:
    """A ServerFrame with a FetchResponse; `others` are its fields beside the batches, encoded."""
    size = FETCHED_PREFIX_BYTES + len(batches) + len(others)
    assert size <= FRAME_BYTES_MAX
    lengths = _length(size - 11), _length(len(batches))
    parts = _FETCHED.pack(0x0D, request, 0x6A, lengths[0], _ALIGNING, 0x2A, lengths[1]), batches, others
    return b"".join(parts) if len(batches) < PARTS_FROM_BYTES else FrameParts(parts, size)


def parse_fetched(frame: Frame) -> tuple[int, memoryview, memoryview] | None:
    """(request, batches, the other fields) of a canonical frame with a FetchResponse, else None."""
    if not FETCHED_PREFIX_BYTES <= len(frame) <= FRAME_BYTES_MAX:
        return None
    t0, request, t1, length1, aligning, t2, length2 = _FETCHED.unpack_from(frame)
    if t0 == 0x0D and t1 == 0x6A and aligning == _ALIGNING and t2 == 0x2A and length1 == _length(len(frame) - 11):
        low, high = _LENGTH.unpack(length2)
        size = low & 0x7F | low >> 1 & 0x3F80 | low >> 2 & 0x1FC000 | low >> 3 & 0xFE00000 | high << 28
        if size <= len(frame) - FETCHED_PREFIX_BYTES and length2 == _length(size):
            content = memoryview(frame)[FETCHED_PREFIX_BYTES:]
            return request, content[:size], content[size:]
    return None


def ack_frame(request: int, base_offset: int, append_time_us: int) -> bytes:
    """A ServerFrame with ProduceAcks for one request."""
    return _ACK.pack(0x1A22, 0x040A, request, 0x0812, base_offset, 0x081A, append_time_us)


def parse_ack(frame: Frame) -> tuple[int, int, int] | None:
    """(request, base_offset, append_time_us) of a frame with one acknowledgement, else None."""
    if len(frame) != ACK_FRAME_BYTES:
        return None
    t0, t1, request, t2, base_offset, t3, append_time_us = _ACK.unpack(frame)
    if t0 == 0x1A22 and t1 == 0x040A and t2 == 0x0812 and t3 == 0x081A:
        return request, base_offset, append_time_us
    return None


def progress_frame(handle: int, leader_epoch: int, log_end: int, flushed_end: int) -> bytes:
    """A FollowerFrame with Progress."""
    return _PROGRESS.pack(0x1C1A, 0x0D, handle, 0x15, leader_epoch, 0x19, log_end, 0x21, flushed_end)


def parse_progress(frame: Frame) -> tuple[int, int, int, int] | None:
    """(handle, leader_epoch, log_end, flushed_end) of a canonical Progress frame, else None."""
    if len(frame) != PROGRESS_FRAME_BYTES:
        return None
    t0, t1, handle, t2, leader_epoch, t3, log_end, t4, flushed_end = _PROGRESS.unpack(frame)
    if t0 == 0x1C1A and t1 == 0x0D and t2 == 0x15 and t3 == 0x19 and t4 == 0x21:
        return handle, leader_epoch, log_end, flushed_end
    return None
