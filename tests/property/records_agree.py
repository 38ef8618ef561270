"""Holds the codec against the second reader: both take the same bytes and find the same, or both refuse them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from crc32c import crc32c

from comet.errors import CorruptBatch, UnsupportedVersion
from comet.records import HEADER_BYTES, Batch, decode, marker_of
from tests.property import records_oracle as oracle


def read_all(batch: Batch) -> list[oracle.Record]:
    """Every column of a batch as records."""
    due: Sequence[int | None] = batch.due or [None] * len(batch)
    expiry: Sequence[int | None] = batch.expiry or [None] * len(batch)
    rows = zip(batch.offsets, batch.timestamps, batch.keys, batch.values, batch.headers, due, expiry, strict=True)
    return [oracle.Record(*row) for row in rows]


def read_arrow(batch: Batch) -> list[dict[str, Any]]:
    """The records of a batch by way of Arrow."""
    import pyarrow as pa

    table = batch.to_arrow()
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    rows: list[dict[str, Any]] = table.select(["offset", "key", "value", "headers"]).to_pylist()
    for row, time in zip(rows, times, strict=True):
        row["timestamp_us"] = time
        row["headers"] = [(pair["name"], pair["value"]) for pair in row["headers"]]
    return rows


def without_times(record: oracle.Record) -> dict[str, Any]:
    """A record as Arrow has it: due and expiry times are not among its columns."""
    fields = vars(record).copy()
    del fields["due"], fields["expiry"]
    return fields


def agree(data: bytes) -> bool:
    """Whether the bytes are a batch. Fails where the codec, its Arrow form and the second reader differ."""
    try:
        header, records = oracle.read(data)
    except oracle.Refused as error:
        refuse(data, UnsupportedVersion if isinstance(error, oracle.FromTheFuture) else CorruptBatch)
        return False
    batch = decode(data)
    assert batch.header._asdict() == header
    assert read_all(batch) == records
    checked = decode(data)
    checked.check()
    assert read_all(checked) == records
    assert read_arrow(batch) == [without_times(record) for record in records]
    if batch.header.control and batch.header.transactional:
        agree_on_the_marker(batch, records[0].value)
    return True


def agree_on_the_marker(batch: Batch, value: bytes | None) -> None:
    """It is one of this version, and says what the specification makes of its bytes, or it is refused."""
    whole = value is not None and len(value) == 16
    try:
        marker = marker_of(batch)
    except UnsupportedVersion:
        assert value is not None and whole and value[0] != 0
    except CorruptBatch:
        assert value is None or not whole or value[1] > 1 or any(value[2:8]) or value[15] > 127
    else:
        assert value is not None and value[:8] == bytes([0, marker.commit, 0, 0, 0, 0, 0, 0])
        assert value[8:] == marker.first_offset.to_bytes(8, "little", signed=True)


def refuse(data: bytes, expected: type[Exception]) -> None:
    """The codec and its Arrow form raise exactly this, sooner or later; the check of a leader raises it at once."""
    for read in (read_all, read_arrow, Batch.check):
        raised: type[Exception] | None = None
        try:
            read(decode(data))
        except (CorruptBatch, UnsupportedVersion) as error:
            raised = type(error)
        assert raised is expected, f"{read.__name__} raised {raised}, not {expected.__name__}, for {data.hex()}"


def sealed(data: bytes) -> bytes:
    """The batch with the checksum that its bytes should have, so that a change gets past it."""
    length = struct.unpack_from("<I", data, 20)[0]
    return data[:28] + struct.pack("<I", crc32c(data[32:length])) + data[32:]


def sized(data: bytes) -> bytes:
    """The header with the sizes of what follows it and a good checksum, for bodies out of thin air."""
    size = len(data) - HEADER_BYTES
    data = data[:20] + struct.pack("<I", len(data)) + data[24:80] + struct.pack("<I", size) + data[84:]
    return sealed(data)
