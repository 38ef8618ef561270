"""Batches as Arrow: the same memory, the same content, and never on bytes that do not hold together."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from comet.errors import CorruptBatch, InvalidArgument
from comet.records import HEADER_BYTES, Codec, _batch, decode, encode, verify
from comet.records._arrow import COUNT
from comet.spark.coalesce import SMALL, joined
from comet.values.arrow_columns import ArrowColumns
from comet.values.record import RecordBatch
from comet.wire.corrupt import opened
from tests.property.records_agree import read_all, read_arrow, sealed, without_times
from tests.property.records_strategies import build

COLUMNS = ["offset", "timestamp", "key", "value", "headers"]


def aligned(data: bytes, shift: int = 0) -> memoryview:
    """A copy of the batch whose body starts `shift` bytes after an 8-aligned address."""
    room = bytearray(len(data) + 16)
    address = pa.py_buffer(room).address
    at = -address % 8 + shift
    room[at : at + len(data)] = data
    return memoryview(room)[at : at + len(data)]


def test_columns_lie_in_the_memory_they_came_in() -> None:
    data = aligned(
        build({
            "values": [b"abc", None, b"d"], "keys": [b"k", None, b""], "timestamps": [3, 1, 2],
            "headers": [[("a", b"1")], None, [("b", b"2"), ("c", b"3")]],
        })
    )  # fmt: skip
    first = pa.py_buffer(data).address
    table = decode(data).to_arrow()
    buffers = [
        buffer
        for name in ("timestamp", "key", "value", "headers")
        for buffer in table.column(name).buffers()
        if buffer is not None
    ]
    assert len(buffers) == 12  # 1 timestamps, 3 keys, 3 values, 1 lists, 2 names, 2 values
    for buffer in buffers:
        assert first + HEADER_BYTES <= buffer.address
        assert buffer.address + buffer.size <= first + len(data)
        assert buffer.address % 8 == 0


@pytest.mark.parametrize("shift", range(8))
def test_memory_that_is_not_aligned_is_copied(shift: int) -> None:
    batch = decode(aligned(build({"values": [b"abc", b"d"], "timestamps": [3, 1]}), shift))
    table = batch.to_arrow()
    assert table.column("value").buffers()[1].address % 8 == 0
    assert read_arrow(batch) == [without_times(record) for record in read_all(batch)]


def test_some_columns_are_as_they_are_among_all() -> None:
    headers: list[list[tuple[str, bytes]] | None] = [[("a", b"1")], None]
    for given in ({"timestamps": [3, 1]}, {"timestamps": 1, "offset_deltas": [0, 4]}):
        batch = decode(build({"values": [b"abc", b"d"], "keys": [b"k", None], "headers": headers, **given}))
        for names in (["value", "offset"], ["headers"], ["timestamp", "key"]):
            assert batch.to_arrow(names).equals(batch.to_arrow().select(names))
    assert batch.to_arrow([]).num_columns == 0
    with pytest.raises(InvalidArgument, match="unknown column: 'values'; use offset, timestamp, key, value, headers"):
        batch.to_arrow(["values"])


def test_offsets_count_up_however_many_there_are() -> None:
    batch = decode(build({"values": [b""] * (len(COUNT) + 1), "timestamps": 1}))
    assert batch.to_arrow(["offset"]).column(0).to_pylist() == list(batch.offsets)


def test_the_schema_is_always_the_same() -> None:
    bare = decode(build({"values": [b"a"], "timestamps": 1})).to_arrow()
    full = decode(
        build({"values": [b"a"], "keys": [b"k"], "timestamps": 1, "headers": [[("a", b"b")]], "offset_deltas": [3]})
    ).to_arrow()
    assert bare.schema == full.schema
    assert bare.schema.names == COLUMNS
    assert bare.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert pa.Table.from_batches([bare, full]).num_rows == 2


def test_the_batch_may_be_dropped() -> None:
    """Arrow keeps the memory, whoever else let go of it."""
    table = decode(bytearray(build({"values": [b"abc" * 1000], "timestamps": 1, "codec": Codec.ZSTD}))).to_arrow()
    assert table.column("value").to_pylist() == [b"abc" * 1000]


@pytest.mark.parametrize("column", ["values", "keys"])
def test_a_null_with_bytes_is_refused_though_arrow_would_take_it(column: str) -> None:
    data = bytearray(build({"values": [b"a", b"b"], "timestamps": 1} | {column: [b"abc", None]}))
    at = data.index(b"\1" + bytes(7), HEADER_BYTES)
    data[at] = 2  # the other one is null now
    with pytest.raises(CorruptBatch, match="have a null that has bytes"):
        decode(sealed(bytes(data))).to_arrow()


def test_without_pyarrow_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from comet.records import decode, encode\n"
        "batch = decode(b''.join(encode([b'a'], timestamps=1)))\n"
        "try: batch.to_arrow()\n"
        "except ImportError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "pip install '.[arrow]'" in said


def test_tables_of_a_consumer_say_it_too() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import comet\n"
        "try: comet.Consumer('localhost', 'quotes').arrow()\n"
        "except ImportError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "pip install '.[arrow]'" in said


def test_encode_gives_arrow_its_alignment() -> None:
    """Both prefixes and the header are multiples of 8, so a received column stays aligned."""
    assert HEADER_BYTES % 8 == 0
    assert len(b"".join(encode([b"abc"], timestamps=1))) % 8 == 0


def test_columns_are_made_without_cutting_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a batch, nor by the columns of `consumer.arrow()`, comet.read and Spark; also with tombstones."""

    def cut(*_: object, **__: object) -> list[bytes]:
        raise AssertionError("a value or key was cut out of its column")

    monkeypatch.setattr(_batch, "read_binary", cut)
    monkeypatch.setattr(_batch, "read_nullable", cut)
    count = 2 * SMALL  # Spark makes lists of smaller batches
    data = b"".join(encode([b"a", None] * SMALL, keys=[None, b"k"] * SMALL, timestamps=1))
    header = verify(data, stamped=False)
    batch: RecordBatch[bytes] = RecordBatch(
        "t", 0, opened(header, memoryview(data), 0, "t", 0), high_watermark=count, leader_epoch=1
    )
    assert len(batch) == count and batch.size == 2 * SMALL and list(batch.offsets) == list(range(count))
    half = batch.after(SMALL)
    assert half is not None
    for table in (batch.to_arrow(), ArrowColumns().of(batch), next(joined([batch])).to_arrow()):
        assert table.column("value").null_count == table.column("key").null_count == SMALL
    assert half.to_arrow(["value"]).num_rows == SMALL
    with pytest.raises(AssertionError):
        _ = batch.values
