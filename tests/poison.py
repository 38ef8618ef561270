"""Batches with right checksums and columns that do not add up, and ways to get them into a log.

KINDS        by name, what is wrong; each changes the body of one good batch
poisoned     such a batch, plain or compressed
poison       writes one between good ones to a broker
unchecked    for as long as it lasts, leaders take every batch whose checksum holds, as they once did
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import lz4.block
import zstandard
from crc32c import crc32c

from comet import records
from comet.client.client import Client
from comet.errors import CometError
from comet.records import HEADER_BYTES, Batch, BatchHeader, Codec, decode
from comet.records._header import HEADER
from comet.wire.frames import produce_frame
from comet_broker.partitions import partition as broker_partition
from tests.sim.planting import Mutant, planted

VALUES: Final = [b"anna", b"bob", b"", b"christopher", b"x" * 40]
KEYS: Final = [b"k1", None, b"key-2", b"k", b""]
HEADERS: Final = [[("source", b"demo"), ("né", b"")], [], [("a", b"1")], [], [("b", b"2")]]
COUNT: Final = len(VALUES)
FLAGS: Final = 11  # of the columns: KEYS, KEY_NULLS, HEADERS

Spoil = Callable[[Batch, bytearray], None]


def set_i32(body: bytearray, at: int, value: int) -> None:
    struct.pack_into("<i", body, at, value)


def _names(batch: Batch) -> int:
    assert batch.header_columns is not None
    return batch.header_columns.names.offsets


def _keys(batch: Batch) -> tuple[int, int]:
    assert batch.keys_column is not None
    return batch.keys_column.bitmap, batch.keys_column.offsets


def _lists(batch: Batch) -> int:
    assert batch.header_columns is not None
    return batch.header_columns.lists_at


def _name_bytes(batch: Batch, body: bytearray) -> None:
    assert batch.header_columns is not None
    body[batch.header_columns.names.data] = 0xFF


def _count(batch: Batch, body: bytearray) -> None:
    """The header says one record more than there is: see `poisoned`."""


TIMES: Final = "a timestamp is none of the header's"  # leaders refuse it, readers do not compare them
KINDS: Final[dict[str, Spoil]] = {
    "offsets fall": lambda batch, body: set_i32(body, batch.values_column.offsets + 8, 1),
    "an offset is negative": lambda batch, body: set_i32(body, batch.values_column.offsets + 4, -5),
    "an offset lies beyond the bytes": lambda batch, body: set_i32(body, batch.values_column.offsets + 4, 1_000_000),
    "offsets do not begin at 0": lambda batch, body: set_i32(body, batch.values_column.offsets, 1),
    "the last offset lies beyond the body": lambda batch, body: set_i32(
        body, batch.values_column.offsets + 4 * COUNT, 1_000_000
    ),
    "the last offset is short of the bytes": lambda batch, body: set_i32(
        body, batch.values_column.offsets + 4 * COUNT, 18
    ),
    "the last offset is negative": lambda batch, body: set_i32(body, batch.values_column.offsets + 4 * COUNT, -8),
    "offsets of keys fall": lambda batch, body: set_i32(body, _keys(batch)[1] + 8, 1),
    "a null has bytes": lambda batch, body: body.__setitem__(_keys(batch)[0], 0b11110),
    "a bitmap goes on": lambda batch, body: body.__setitem__(_keys(batch)[0], 0b111101),
    "header lists fall": lambda batch, body: set_i32(body, _lists(batch) + 8, 9),
    "more headers than fit": lambda batch, body: set_i32(body, _lists(batch) + 4 * COUNT, 1 << 28),
    "offsets of header names fall": lambda batch, body: set_i32(body, _names(batch) + 4, 1_000),
    "a header name is no UTF-8": _name_bytes,
    TIMES: lambda batch, body: struct.pack_into("<q", body, batch.timestamps_at, 7),
    "the count is too high": _count,
}
UNREADABLE: Final = [kind for kind in KINDS if kind != TIMES]


def poisoned(kind: str, codec: Codec = Codec.NONE, **fields: int) -> bytes:
    """A batch of COUNT records in which that is wrong, as a producer would send it."""
    whole = b"".join(
        records.encode(
            VALUES, keys=KEYS, headers=HEADERS, timestamps=[1_000_000 + 10 * at for at in range(COUNT)],
        )
    )  # fmt: skip
    batch = decode(whole)
    body = bytearray(batch.body)
    KINDS[kind](batch, body)
    if kind == "the count is too high":
        fields |= {"record_count": COUNT + 1, "last_offset_delta": COUNT}
    return packed(batch.header, bytes(body), codec, **fields)


def packed(header: BatchHeader, body: bytes, codec: Codec, **fields: int) -> bytes:
    """The batch with that body, whatever is in it, and the checksum that its bytes should have."""
    stored = body
    if codec is Codec.LZ4:
        stored = lz4.block.compress(body, store_size=False)
    elif codec is Codec.ZSTD:
        stored = zstandard.compress(body)
    assert codec is Codec.NONE or len(stored) < len(body), "it does not shrink"
    sizes = {"codec": int(codec), "length": HEADER_BYTES + len(stored), "body_size": len(body)}
    data = HEADER.pack(*header._replace(**sizes | fields)) + stored
    return data[:28] + struct.pack("<I", crc32c(data[32:])) + data[32:]


_UNCHECKED: Final = Mutant(
    "broker", "leaders check no columns", (), None, lambda: [(broker_partition, "admit", lambda *_: None)]
)


@contextmanager
def unchecked() -> Iterator[None]:
    """Leaders of this process do not look at columns: what comes gets into the log, and into those of followers."""
    with planted(_UNCHECKED):
        yield


class _Sent:
    """What becomes of one batch."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def acked(self, base_offset: int, append_time_us: int) -> None:
        self.outcome.set_result(base_offset)

    def refused(self, error: CometError) -> None:
        self.outcome.set_exception(error)


async def write(address: str, topic: str, *batches: bytes, partition: int = 0) -> list[int]:
    """Has a broker take batches as they are; their offsets. Raises what it refuses one with."""
    client = Client(address, name="poison")
    try:
        connection = await client.connection(address)
        handle = (await connection.attach(topic, partition)).handle
        offsets: list[int] = []
        for data in batches:
            sent, request = _Sent(), connection.requests.next_number()
            connection.requests.add_batch(request, sent)
            connection.send(produce_frame(request, handle, 1, [data], len(data)))
            offsets.append(await sent.outcome)
        return offsets
    finally:
        await client.close()


def batch_of(*values: bytes) -> bytes:
    """A good one."""
    return b"".join(records.encode(list(values), timestamps=1_000_000))


async def poison(address: str, topic: str, *, partition: int = 0, kind: str = "offsets fall") -> None:
    """Writes offsets 0 and 1, which are good, 2 to 6, a poisoned batch, and 7 and 8, which are good."""
    await write(address, topic, batch_of(b"0", b"1"), partition=partition)
    with unchecked():
        await write(address, topic, poisoned(kind), partition=partition)
    await write(address, topic, batch_of(b"7", b"8"), partition=partition)
