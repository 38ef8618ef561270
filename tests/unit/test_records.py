"""The batch codec case by case: what writers refuse, what readers refuse and why, limits, and what is imported."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from typing import Any

import lz4.block
import pytest
import zstandard
from crc32c import crc32c

from comet.errors import CorruptBatch, InvalidArgument, UnsupportedVersion
from comet.records import (
    BODY_BYTES_MAX,
    HEADER_BYTES,
    RECORDS_MAX,
    STAMP_BYTES,
    Batch,
    BatchHeader,
    Codec,
    Flag,
    cover,
    decode,
    encode,
    iterate,
    lone_size,
    make_stamp,
    measure,
    partition_for,
    read_header,
    take,
    verify,
)
from comet.records._header import HEADER


def join(*args: Any, **kwargs: Any) -> bytes:
    return b"".join(encode(*args, **{"timestamps": 1} | kwargs))


def with_header(data: bytes, **fields: int) -> bytes:
    """The batch with header fields replaced and a checksum that agrees."""
    header = BatchHeader(*HEADER.unpack_from(data))._replace(**fields)
    packed = HEADER.pack(*header) + data[HEADER_BYTES:]
    return packed[:28] + crc32c(packed[32:]).to_bytes(4, "little") + packed[32:]


def with_body(body: bytes, **fields: int) -> bytes:
    """A batch of one record around any body."""
    fields = {"length": HEADER_BYTES + len(body), "body_size": len(body)} | fields
    return with_header(join([b"A"])[:HEADER_BYTES] + body, **fields)


def read_columns(data: bytes) -> None:
    batch = decode(data)
    _ = batch.values, batch.headers, batch.offsets


def test_a_lone_record_with_two_times_in_its_header_is_refused() -> None:
    time = 5 << 32  # read as offsets, a value of five bytes
    body = time.to_bytes(8, "little") + bytes(8)
    with pytest.raises(CorruptBatch, match="timestamps"):
        decode(with_body(body, min_timestamp_us=1, max_timestamp_us=time)).check()


def test_the_columns_of_one_record_under_a_header_of_two_are_no_lone_record() -> None:
    two = with_header(join([b"A" * 100]), record_count=2, last_offset_delta=1)
    assert lone_size(read_header(two), two) == -1


def test_a_compressed_body_is_not_taken_for_a_lone_record() -> None:
    plain = join([b"A" * 100])
    assert lone_size(read_header(plain), plain) == 100
    compressed = with_header(plain, codec=Codec.LZ4, body_size=1024)
    assert lone_size(read_header(compressed), compressed) == -1


def test_the_times_are_checked_also_after_a_check_without_them() -> None:
    batch = decode(with_header(join([b"a", b"b"], timestamps=[1, 5]), max_timestamp_us=6))
    batch.check(times=False)
    with pytest.raises(CorruptBatch, match="timestamps"):
        batch.check()


# ---- header


def test_header_properties() -> None:
    data = join([b"a", b"b"], offset_deltas=[1, 4], producer_id=1, base_sequence=10)
    header = verify(make_stamp(100, 7, 3, len(data)) + data[STAMP_BYTES:], stamped=True)
    assert (header.base_offset, header.append_time_us, header.leader_epoch) == (100, 7, 3)
    assert (header.span, header.next_offset, header.end_sequence) == (5, 105, 15)
    assert header.flags == Flag.OFFSET_DELTAS


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"version": 2}, "version 2"),
        ({"codec": 3}, "codec 3"),
        ({"flags": 0x400}, "0x0400"),
        ({"flags": 0x8000}, "0x8000"),
        ({"version": 9, "length": 1 << 31, "record_count": 0}, "version 9"),  # the cause, not what follows from it
    ],
)
def test_what_is_from_the_future_is_said_to_be(fields: dict[str, int], message: str) -> None:
    with pytest.raises(UnsupportedVersion, match=message):
        read_header(with_header(join([b"a"]), **fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": 1 << 31}, "cut off: 104"),
        ({"length": 96}, "96 bytes for a body of 16"),
        ({"length": 0}, "0 bytes for a body of 16"),
        ({"codec": 1}, "104 bytes for a body of 16"),  # not smaller than what it holds
        ({"record_count": 0}, "record_count is 0"),
        ({"record_count": RECORDS_MAX + 1}, "record_count"),
        (
            {"record_count": RECORDS_MAX + 1, "last_offset_delta": RECORDS_MAX, "codec": 1, "body_size": 8 << 20},
            "record_c",
        ),
        ({"flags": 2}, "flags is 2"),
        ({"flags": 0x80}, "producer_id is 0"),  # a transaction is somebody's
        ({"flags": 0x100}, "body_size is 16"),  # a compaction plan
        ({"flags": 0x100, "producer_id": 1, "body_size": 56, "length": 144}, "cut off"),
        ({"flags": 0x181, "producer_id": 1}, "flags is 385"),
        ({"flags": 0x180, "producer_id": 1, "base_sequence": 1}, "base_sequence is 1"),
        ({"flags": 0x180, "producer_id": 1}, "body_size is 16"),
        ({"flags": 0x180, "producer_id": 1, "record_count": 2, "last_offset_delta": 1}, "record_count is 2"),
        ({"codec": 1, "body_size": 4097}, "body_size is 4097"),
        ({"body_size": 17}, "body_size is 17"),
        ({"body_size": 8, "length": 96, "record_count": 2, "last_offset_delta": 1}, "body_size is 8"),
        ({"body_size": BODY_BYTES_MAX + 8, "codec": 1}, "body_size"),
        ({"base_offset": -1}, "base_offset is -1"),
        ({"base_offset": 2**63 - 1}, "base_offset"),
        ({"min_timestamp_us": 2}, "min_timestamp_us is 2"),
        ({"producer_id": -1}, "producer_id is -1"),
        ({"producer_epoch": 1}, "producer_epoch is 1"),
        ({"base_sequence": 1}, "base_sequence is 1"),
        ({"base_sequence": -1, "producer_id": 1}, "base_sequence is -1"),
        ({"base_sequence": 2**63 - 1, "producer_id": 1}, "base_sequence"),
        ({"last_offset_delta": 1}, "last_offset_delta is 1"),
        ({"last_offset_delta": 2**31, "flags": 16}, "last_offset_delta"),
    ],
)
def test_a_header_that_does_not_add_up_says_where(fields: dict[str, int], message: str) -> None:
    with pytest.raises(CorruptBatch, match=message):
        read_header(with_header(join([b"a"]), **fields))


def test_the_largest_numbers_there_can_be() -> None:
    data = with_header(
        join([b"a"]), base_offset=2**63 - 2, base_sequence=2**63 - 2, producer_id=2**63 - 1,
        min_timestamp_us=-(2**63), max_timestamp_us=-(2**63),
    )  # fmt: skip
    header = read_header(data)
    assert header.next_offset == header.end_sequence == 2**63 - 1
    assert decode(data).timestamps == [-(2**63)]


def test_a_checksum_over_the_body_and_one_over_the_stamp() -> None:
    data = join([b"a"])
    stamped = make_stamp(5, 6, 7, len(data)) + data[STAMP_BYTES:]
    verify(stamped, stamped=True)
    with pytest.raises(CorruptBatch, match="in the stamp of the batch at offset 4"):
        verify(make_stamp(4, 6, 7, len(data))[:20] + stamped[20:], stamped=True)
    with pytest.raises(CorruptBatch, match="checksum mismatch in the batch at offset 5"):
        verify(stamped[:-1] + b"\1", stamped=True)
    assert decode(stamped[:-1] + b"\0", check=False).values == [b"a"]


# ---- reading


@pytest.mark.parametrize(
    ("body", "fields", "message"),
    [
        ("01000000 00000000", {}, "start at 0"),
        ("01000000 02000000 4142000000000000", {}, "start at 0"),
        ("00000000 ffffffff", {}, "ends at -1"),
        ("00000000 09000000 4100000000000000", {}, "beyond the body"),
        ("00000000 01000000 4100000000000001", {}, "padding"),
        ("00000000 01000000 4100000000000000 0000000000000000", {}, "8 bytes after the last column"),
        ("0000000000000000", {"flags": Flag.DUE}, "beyond the body"),
        ("0200000000000000 00000000 00000000", {"flags": Flag.VALUE_NULLS}, "beyond the last record"),
        ("0000000000000000 00000000 01000000 4100000000000000", {"flags": Flag.VALUE_NULLS}, "a null has bytes"),
        ("00000000 00000000 00000000 00000010", {"flags": Flag.HEADERS}, "headers do not fit"),
        (
            "00000000 00000000 00000000 01000000 00000000 01000000 ff00000000000000 00000000 00000000",
            {"flags": Flag.HEADERS},
            "not UTF-8",
        ),
        (
            "0100000000000000 00000000 00000000",
            {"flags": Flag.OFFSET_DELTAS},
            "offset deltas",
        ),
    ],
)
def test_a_body_that_does_not_hold_together_says_where(body: str, fields: dict[str, int], message: str) -> None:
    with pytest.raises(CorruptBatch, match=message):
        read_columns(with_body(bytes.fromhex(body), **fields))


def test_headers_of_records_that_have_none() -> None:
    """A writer leaves the column out; a reader accepts it, as long as its offsets start at 0."""
    body = "00000000 01000000 4100000000000000 0000000000000000 {}00000000000000 0000000000000000"
    batch = decode(with_body(bytes.fromhex(body.format("00")), flags=Flag.HEADERS))
    batch.check()
    assert batch.headers == [[]]
    data = with_body(bytes.fromhex(body.format("05") + "6162636465000000"), flags=Flag.HEADERS)
    for read in (Batch.check, lambda batch: batch.headers):
        with pytest.raises(CorruptBatch):
            read(decode(data))


@pytest.mark.parametrize("offsets", [[0, 2, 1, 3], [0, -1, 1, 3], [0, 4, 4, 3], [1, 1, 2, 3], [0, 1, 5, 3]])
def test_offsets_that_fall_or_leave_the_column_are_refused(offsets: list[int]) -> None:
    column = b"".join(offset.to_bytes(4, "little", signed=True) for offset in offsets)
    data = with_body(column + b"abc\0\0\0\0\0", record_count=3, last_offset_delta=2)
    with pytest.raises(CorruptBatch, match="falls"):
        _ = decode(data).values


def test_offset_deltas_below_zero_are_refused() -> None:
    body = bytes.fromhex("ffffffff 01000000  00000000 00000000 00000000 00000000")
    data = with_body(body, record_count=2, last_offset_delta=1, flags=Flag.OFFSET_DELTAS)
    with pytest.raises(CorruptBatch, match="offset deltas"):
        _ = decode(data).offsets


def test_timestamps_that_are_not_those_of_the_header_are_refused() -> None:
    data = with_header(join([b"a", b"b"], timestamps=[1, 5]), max_timestamp_us=6)
    with pytest.raises(CorruptBatch, match="timestamps"):
        _ = decode(data).timestamps


def test_columns_that_say_nothing_are_accepted() -> None:
    """Writers leave them out; a filter that cuts columns down may not."""
    body = bytes.fromhex("0000000000000000 0000000000000000  0000000000000000 0100000000000000 00000000 00000000")
    batch = decode(with_body(body, flags=Flag.KEYS | Flag.KEY_NULLS | Flag.VALUE_NULLS | Flag.OFFSET_DELTAS))
    assert (batch.keys, batch.values, list(batch.offsets)) == ([None], [b""], [0])


def test_a_batch_is_read_from_any_buffer_without_being_changed() -> None:
    data = join([b"abc"] * 3, keys=[b"k", None, b"k"])
    for buffer in (data, bytearray(data), memoryview(data), memoryview(bytearray(data))):
        assert decode(buffer).keys == [b"k", None, b"k"]
    assert repr(decode(data)) == "<Batch of 3 from offset 0>"


def test_columns_are_cut_once() -> None:
    batch = decode(join([b"a"], keys=[b"k"]))
    assert batch.values is batch.values
    assert batch.keys is batch.keys


def test_nothing_at_all_is_no_batches() -> None:
    assert list(iterate(b"")) == []


def test_trailing_bytes_are_no_batch() -> None:
    batches = iterate(join([b"a"]) + b"\0", stamped=False)
    assert next(batches).values == [b"a"]
    with pytest.raises(CorruptBatch, match="88 bytes, not 1"):
        next(batches)


# ---- compression


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compression_pays_or_is_left_out(codec: Codec) -> None:
    assert read_header(join([b"x" * 1000], codec=codec)).codec == codec
    assert read_header(join([bytes(range(256))], codec=codec)).codec == Codec.NONE


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_the_codec_may_be_used_on_several_threads(codec: Codec) -> None:
    data = join([b"x" * 1000] * 20, codec=codec)
    failures: list[list[bytes | None]] = []

    def read() -> None:
        rounds = (decode(join(decode(data).values, codec=codec)).values for _ in range(50))
        failures.extend(values for values in rounds if values != [b"x" * 1000] * 20)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def zstd_without_size(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


ZEROS = bytes(1 << 20)


@pytest.mark.parametrize(
    ("codec", "stored", "body_size"),
    [
        (Codec.LZ4, b"\xff" * 16, 1 << 20),
        (Codec.LZ4, lz4.block.compress(ZEROS, store_size=False), 1 << 19),
        (Codec.LZ4, lz4.block.compress(ZEROS, store_size=False), 1 << 21),
        (Codec.ZSTD, b"\xff" * 16, 1 << 20),
        (Codec.ZSTD, zstandard.compress(ZEROS), 1 << 19),
        (Codec.ZSTD, zstandard.compress(ZEROS), 1 << 21),
        (Codec.ZSTD, zstd_without_size(ZEROS), 1 << 20),
        (Codec.ZSTD, zstandard.compress(ZEROS) + b"\0", 1 << 20),
        (Codec.ZSTD, zstandard.compress(ZEROS)[:-1], 1 << 20),
        # A frame that claims 2^62 bytes: an allocation that a library must never be asked for.
        (Codec.ZSTD, bytes.fromhex("28b52ffd e0 0000000000000040 010000"), 1 << 20),
    ],
)
def test_a_bomb_is_not_opened(codec: Codec, stored: bytes, body_size: int) -> None:
    with pytest.raises(CorruptBatch):
        decode(with_body(stored, codec=codec, body_size=body_size))


def test_a_compressed_body_is_as_long_as_the_header_says() -> None:
    """Not shorter either, even where what is there would make a body."""
    stored = lz4.block.compress(join([b"A"])[HEADER_BYTES:], store_size=False)
    with pytest.raises(CorruptBatch, match="decompresses to 16 bytes where the header says 24"):
        decode(with_body(stored, codec=Codec.LZ4, body_size=24))


# ---- writing


@pytest.mark.parametrize(
    "arguments",
    [
        {"values": []},
        {"values": [b"a"] * (RECORDS_MAX + 1)},
        {"values": [bytes(1 << 20)] * 32},  # with its offsets just too large
        {"values": ["text"]},
        {"values": [1]},
        {"values": [memoryview(b"abcdefgh").cast("i")]},
        {"values": [b"a"], "keys": []},
        {"values": [b"a"], "keys": [b"k", b"k"]},
        {"values": [b"a"], "keys": ["text"]},
        {"values": [b"a"], "timestamps": []},
        {"values": [b"a"], "timestamps": [1, 2]},
        {"values": [b"a"], "timestamps": 2**63},
        {"values": [b"a", b"b"], "timestamps": [1, 2**63]},
        {"values": [b"a", b"b"], "timestamps": [1, 2.5]},
        {"values": [b"a"], "timestamps": None},
        {"values": [b"a"], "headers": [[("a", b"1")], [("b", b"2")]]},
        {"values": [b"a"], "headers": [[("a", None)]]},
        {"values": [b"a"], "headers": [[("a", "text")]]},
        {"values": [b"a"], "headers": [[(b"a", b"1")]]},
        {"values": [b"a"], "headers": [[("a",)]]},
        {"values": [b"a"], "headers": [[("\ud800", b"1")]]},
        {"values": [b"a"], "due": []},
        {"values": [b"a"], "expiry": [2**63]},
        {"values": [b"a"], "offset_deltas": []},
        {"values": [b"a"], "offset_deltas": [-1]},
        {"values": [b"a", b"b"], "offset_deltas": [1, 1]},
        {"values": [b"a", b"b"], "offset_deltas": [2, 1]},
        {"values": [b"a"], "offset_deltas": [2**31]},
        {"values": [b"a"], "offset_deltas": [0, 1]},
        {"values": [b"a"], "producer_id": -1},
        {"values": [b"a"], "producer_id": 2**63},
        {"values": [b"a"], "base_sequence": 1},
        {"values": [b"a"], "producer_epoch": 1},
        {"values": [b"a"], "producer_id": 1, "base_sequence": -1},
        {"values": [b"a"], "producer_id": 1, "base_sequence": 2**63 - 1},
        {"values": [b"a"], "schema_id": -1},
        {"values": [b"a"], "codec": 3},
    ],
)
def test_what_the_format_cannot_hold_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        join(**arguments)


def test_the_largest_batch_there_can_be() -> None:
    values = [bytes(1 << 20)] * 31 + [bytes((1 << 20) - 136)]
    data = join(values)
    assert len(data) == HEADER_BYTES + BODY_BYTES_MAX
    assert decode(data).values == values
    with pytest.raises(InvalidArgument, match="at most"):
        join([*values[:-1], bytes((1 << 20) - 135)])


def test_a_large_batch_is_given_in_parts_and_a_small_one_in_one() -> None:
    assert len(encode([b"x" * 100], timestamps=1)) == 1
    parts = encode([b"x" * 100] * 1000, timestamps=1)
    assert [len(part) for part in parts] == [HEADER_BYTES, 4004, 4, 100_000]
    assert decode(b"".join(parts)).values == [b"x" * 100] * 1000


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 128, 129, 1000])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, 4096, 4097])
def test_values_of_one_size(count: int, size: int) -> None:
    values = [bytes([i % 251]) * size for i in range(count)]
    assert decode(join(values)).values == values
    if size and count > 1:  # nearly of one size: the total fits, the sizes do not
        values[0], values[1] = values[0][1:], values[1] + b"!"
        assert decode(join(values)).values == values


def test_values_may_be_any_kind_of_bytes() -> None:
    assert decode(join([bytearray(b"abc"), memoryview(b"def")])).values == [b"abc", b"def"]


# ---- the rest


@pytest.mark.parametrize(("key", "partitions", "expected"), [(b"", 7, 0), (b"123456789", 1 << 32, 0xE3069283)])
def test_a_key_is_placed_by_crc32c(key: bytes, partitions: int, expected: int) -> None:
    assert partition_for(key, partitions) == expected


def test_a_key_needs_a_partition_to_go_to() -> None:
    with pytest.raises(InvalidArgument):
        partition_for(b"k", 0)


def test_import_is_light() -> None:
    """What only some batches need is not loaded for all."""
    code = "import sys, comet.records, comet.wire.frames; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "comet.records" in loaded
    assert not {"pyarrow", "zstandard", "lz4.block", "numpy", "asyncio", "grpc", "google.protobuf"} & set(loaded)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("limit", [1, 7, 8, 100, 101])
def test_a_value_over_a_size_is_found_wherever_it_lies(limit: int, codec: Codec) -> None:
    small = [b"x" * limit, b"", None, b"y"] * 5
    assert decode(join(small, codec=codec)).value_over(limit) is None
    for at in range(len(small) + 1):
        batch = decode(join([*small[:at], bytes(limit + 1), *small[at:]], codec=codec))
        assert batch.value_over(limit) == limit + 1


def test_offsets_that_fall_do_no_harm_to_who_only_looks_for_large_values() -> None:
    batch = bytearray(join([b"abcd", b"efgh", b"ijkl"]))
    for index in range(4):
        damaged = batch[:]
        damaged[HEADER_BYTES + 4 * index : HEADER_BYTES + 4 * index + 4] = (-5).to_bytes(4, "little", signed=True)
        with contextlib.suppress(CorruptBatch):
            decode(damaged, check=False).value_over(2)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([b""], 0),
        ([b"ab", b"cd"], 2),
        ([b"ab", b"c"], [2, 1]),
        ([None, b""], 0),
        ([b"ab", None, b"cd"], [2, 0, 2]),
    ],
)
def test_values_are_measured(values: list[bytes | None], expected: int | list[int]) -> None:
    assert measure(values) == expected
    if values:
        assert join(values, lengths=measure(values)) == join(values)


@pytest.mark.parametrize("lengths", [1, [1, 2], [2, 3]])
def test_lengths_that_are_not_those_of_the_values_are_refused(lengths: int | list[int]) -> None:
    with pytest.raises(InvalidArgument):
        join([b"ab", b"cd"], lengths=lengths)


@pytest.mark.parametrize("value", [b"", b"abcdefg", b"abcdefgh", b"x" * 5000, None, bytearray(b"abc")])
@pytest.mark.parametrize("timestamps", [7, [7], [True]])
def test_a_record_alone_is_encoded_as_any_other(value: Any, timestamps: Any) -> None:
    """What one record leaves out, two do not: its bytes are compared with those of the general way."""
    options: Any = {"timestamps": timestamps, "producer_id": 5, "producer_epoch": 6, "base_sequence": 7, "schema_id": 8}
    assert join([value], **options) == join([value], **options, keys=[None], headers=[None])


@pytest.mark.parametrize(
    "wrong", [{"timestamps": []}, {"timestamps": 1 << 63}, {"schema_id": -1}, {"timestamps": [1, 2]}]
)
def test_a_record_alone_is_refused_as_any_other(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        join([b"value"], **wrong)
    with pytest.raises(InvalidArgument):
        join(["text"])


@pytest.mark.parametrize("sizes", [[5] * 200, [0, 7, 300, 1] * 50])
def test_values_stay_as_they_are_when_the_memory_of_the_batch_changes(sizes: list[int]) -> None:
    sent = [bytes([at % 251]) * size for at, size in enumerate(sizes)]
    buffer = bytearray(b"".join(encode(sent, timestamps=1)))
    values = decode(buffer).values
    buffer[:] = bytes(len(buffer))
    assert values == sent


# ---- removed records


def stamped(data: bytes, base: int = 100) -> bytes:
    return make_stamp(base, 7, 3, len(data)) + data[STAMP_BYTES:]


def test_rows_are_taken_with_all_that_belongs_to_them() -> None:
    whole = join(
        [b"a", None, b"c", b"d"], keys=[b"k", b"l", None, b"m"], timestamps=[4, 3, 2, 1],
        headers=[None, [("h", b"1")], None, None], due=[1, 2, 3, 4], expiry=[5, 6, 7, 8],
        producer_id=9, producer_epoch=2, base_sequence=50, schema_id=4,
    )  # fmt: skip
    before = decode(stamped(whole), stamped=True)
    batch = decode(take(before, [1, 3]), stamped=True)
    batch.check()
    assert (batch.values, batch.keys, batch.timestamps) == ([None, b"d"], [b"l", b"m"], [3, 1])
    assert (batch.headers, batch.due, batch.expiry) == ([[("h", b"1")], []], [2, 4], [6, 8])
    assert list(batch.offsets) == [101, 103]
    kept = (
        "base_offset", "append_time_us", "leader_epoch", "next_offset", "end_sequence", "producer_id", "producer_epoch",
        "schema_id",
    )  # fmt: skip
    assert [getattr(batch.header, name) for name in kept] == [getattr(before.header, name) for name in kept]
    again = decode(take(batch, [0]), stamped=True)
    assert (again.values, list(again.offsets), again.header.next_offset) == ([None], [101], 104)


@pytest.mark.parametrize("rows", [[0], [3, 17], [62, 63, 64], [96, 97, 98, 99]])
def test_a_few_rows_are_cut_alone(rows: list[int]) -> None:
    values = [None if at % 7 == 3 else b"v" * (at % 5) for at in range(100)]
    keys = [None if at % 9 == 8 else b"k%d" % at for at in range(100)]
    whole = stamped(join(values, keys=keys, timestamps=list(range(100))))
    batch, read = decode(whole), decode(whole)
    batch.check()
    assert read.values == values
    assert batch.values_of(rows) == [values[at] for at in rows] and "values" not in vars(batch)
    assert batch.keys_of(rows) == [keys[at] for at in rows] and "keys" not in vars(batch)
    assert take(batch, rows) == take(read, rows)
    assert decode(stamped(join(values))).keys_of(rows) is None


def test_a_batch_without_records_covers_its_offsets() -> None:
    before = decode(
        stamped(join([b"a", b"b"], timestamps=[1, 2], keys=[b"k", None], producer_id=9, transactional=True))
    )
    data = take(before, [])
    batch = decode(data, stamped=True)
    batch.check()
    assert len(data) == HEADER_BYTES + 8 and len(batch) == 0 and not batch.values and not list(batch.offsets)
    assert (batch.header.next_offset, batch.header.end_sequence, batch.header.transactional) == (102, 2, True)


@pytest.mark.parametrize("codec", list(Codec))
def test_rows_are_taken_from_a_compressed_batch(codec: Codec) -> None:
    before = decode(stamped(join([b"x" * 100, b"y" * 100, b"x" * 100], codec=codec)))
    batch = decode(take(before, [0, 2]), stamped=True)
    assert batch.header.codec == codec
    assert batch.values == [b"x" * 100] * 2


def test_offsets_without_records_are_covered_by_as_few_batches_as_possible() -> None:
    found = list(iterate(cover(5, 5 + 2 * RECORDS_MAX + 3, append_time_us=7, leader_epoch=3)))
    assert [(one.header.base_offset, one.header.span) for one in found] == [
        (5, RECORDS_MAX), (5 + RECORDS_MAX, RECORDS_MAX), (5 + 2 * RECORDS_MAX, 3)
    ]  # fmt: skip
    assert {(one.header.leader_epoch, one.header.append_time_us, one.header.producer_id) for one in found} == {
        (3, 7, 0)
    }
    assert all(len(one) == 0 for one in found)


@pytest.mark.parametrize("span", [0, 1, RECORDS_MAX + 1])
def test_a_span_that_ends_before_the_last_record_or_is_too_large_is_refused(span: int) -> None:
    with pytest.raises(InvalidArgument):
        encode([b"a", b"b"], timestamps=1, span=span)


def test_a_batch_without_records_and_with_two_timestamps_is_refused() -> None:
    data = with_header(stamped(join([], span=3)), max_timestamp_us=9, min_timestamp_us=1)
    with pytest.raises(CorruptBatch, match="two timestamps"):
        decode(data)
