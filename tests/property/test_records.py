"""The batch codec against drawn columns, hostile bytes and a dumb second reader."""

from __future__ import annotations

import re
import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from comet.errors import CorruptBatch, UnsupportedVersion
from comet.records import (
    HEADER_BYTES,
    Batch,
    Codec,
    Flag,
    decode,
    encode_marker,
    extent,
    iterate,
    lone_size,
    marker_of,
    opened,
    read_header,
    verify,
)
from comet.records._batch import LONE_BYTES_MAX
from tests.property import fuzz_records
from tests.property import records_oracle as oracle
from tests.property.records_agree import agree, read_all, read_arrow, sealed
from tests.property.records_strategies import build, columns, int64, stamp

Columns = dict[str, Any]
REFUSALS = (CorruptBatch, UnsupportedVersion)


@given(columns())
def test_what_was_encoded_is_decoded(drawn: Columns) -> None:
    batch = decode(build(drawn))
    count = len(drawn["values"])
    assert len(batch) == count
    assert batch.values == drawn["values"]
    assert batch.keys == drawn.get("keys", [None] * count)
    stamps = drawn["timestamps"]
    assert batch.timestamps == ([stamps] * count if isinstance(stamps, int) else stamps)
    assert list(batch.offsets) == list(drawn.get("offset_deltas", range(count)))
    assert batch.headers == [record or [] for record in drawn.get("headers", [None] * count)]
    assert batch.due == drawn.get("due")
    assert batch.expiry == drawn.get("expiry")
    for name in ("producer_id", "producer_epoch", "base_sequence", "schema_id"):
        assert getattr(batch.header, name) == drawn.get(name, 0)
    assert batch.header.transactional == drawn.get("transactional", False) and not batch.header.control
    assert batch.header.keyed == drawn.get("keyed", False)
    assert (batch.header.min_timestamp_us, batch.header.max_timestamp_us) == (
        min(batch.timestamps, default=stamps),
        max(batch.timestamps, default=stamps),
    )
    assert batch.header.span == drawn.get("span", drawn.get("offset_deltas", [count - 1])[-1] + 1)


@given(
    st.integers(1, 2**63 - 1), st.integers(0, 2**32 - 1), st.booleans(), st.integers(-1, 2**63 - 1), int64
)  # fmt: skip
def test_a_marker_is_read_as_it_was_written(
    producer: int, epoch: int, commit: bool, first: int, timestamp: int
) -> None:
    data = encode_marker(producer, epoch, commit, first, timestamp)
    assert agree(data)
    batch = decode(data)
    assert marker_of(batch) == (commit, first)
    assert batch.header.control and batch.header.transactional
    assert (batch.header.producer_id, batch.header.producer_epoch, batch.header.base_sequence) == (producer, epoch, 0)


@given(st.binary(min_size=24, max_size=24))
def test_any_body_of_a_marker_is_read_or_refused(body: bytes) -> None:
    data = sealed(encode_marker(7, 1, True, 0, 1)[:HEADER_BYTES] + body)
    agree(data)
    try:
        marker = marker_of(decode(data))
    except REFUSALS:
        return
    assert data == encode_marker(7, 1, marker.commit, marker.first_offset, 1)


@given(columns())
def test_the_second_reader_finds_the_same(drawn: Columns) -> None:
    assert agree(build(drawn))


@given(st.binary(max_size=20), int64, st.integers(0, 2**62), st.data())
def test_a_lone_record_is_read_as_by_the_general_way(value: bytes, time: int, offset: int, data: st.DataObject) -> None:
    batch = bytearray(stamp(build({"values": [value], "timestamps": time}), offset))
    if data.draw(st.booleans()):  # one that does not add up, or does by chance
        for _ in range(data.draw(st.integers(1, 3))):
            batch[data.draw(st.integers(HEADER_BYTES, len(batch) - 1))] = data.draw(st.sampled_from([0, 1, 8, 9, 255]))
    header = read_header(batch)
    stored = memoryview(batch)[HEADER_BYTES:]
    try:
        general = Batch(header, stored)
        general.check()
    except CorruptBatch as error:
        with pytest.raises(CorruptBatch, match=re.escape(error.message)):
            opened(header, batch).check()
        assert lone_size(header, batch) == -1
        return
    assert lone_size(header, batch) == len(general.values[0] or b"")
    lone = opened(header, batch)
    assert "values" in vars(lone), "it is read at once"
    lone.check()
    for name in (
        "values",
        "keys",
        "timestamps",
        "offsets",
        "deltas",
        "headers",
        "due",
        "expiry",
        "body",
        "values_column",
    ):
        assert getattr(lone, name) == getattr(general, name), name
    assert (lone.size_of(0, 1), lone.value_over(1), len(lone)) == (general.size_of(0, 1), general.value_over(1), 1)
    assert read_arrow(lone) == read_arrow(general)


def test_a_large_lone_value_is_copied_only_when_it_is_asked_for() -> None:
    batch = decode(build({"values": [bytes(LONE_BYTES_MAX)], "timestamps": 1}))
    assert "values" not in vars(batch)


@given(columns())
def test_a_lone_size_is_of_one_plain_record(drawn: Columns) -> None:
    data = build(drawn)
    batch = decode(data)
    plain = len(batch) == 1 and not batch.header.flags & ~(Flag.TRANSACTIONAL | Flag.KEYED)
    small = not batch.header.codec and batch.header.body_size <= LONE_BYTES_MAX
    assert lone_size(batch.header, data) == (len(batch.values[0] or b"") if plain and small else -1)


@given(columns(), st.integers(0, 2**40), st.integers(0, 2**32 - 1))
def test_the_extent_of_a_batch_is_that_of_its_header(drawn: Columns, offset: int, epoch: int) -> None:
    data = stamp(build(drawn), offset, 1, epoch)
    header = read_header(data)
    assert extent(b"--" + data + b"-", 2) == (header.length, header.next_offset, epoch)
    for end in (0, HEADER_BYTES - 1, HEADER_BYTES, len(data) - 1):
        with pytest.raises(CorruptBatch):
            extent(data[:end])
    for length in (0, HEADER_BYTES, 2**32 - 1):
        with pytest.raises(CorruptBatch):
            extent(data[:20] + struct.pack("<I", length) + data[24:])


@given(columns(codecs=(Codec.NONE,)))
def test_the_encoding_is_canonical(drawn: Columns) -> None:
    data = build(drawn)
    batch = decode(data)
    again = drawn | {
        "values": batch.values, "keys": batch.keys, "timestamps": batch.timestamps or drawn["timestamps"],
        "headers": batch.headers, "offset_deltas": batch.deltas, "due": batch.due, "expiry": batch.expiry,
        "transactional": batch.header.transactional, "keyed": batch.header.keyed,
    }  # fmt: skip
    assert build(again) == data


@given(columns(codecs=(Codec.NONE,)), st.data())
def test_a_changed_body_with_a_good_checksum_is_read_alike_or_refused(drawn: Columns, data: st.DataObject) -> None:
    changed = bytearray(build(drawn))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(HEADER_BYTES, len(changed) - 1))
        changed[at] = data.draw(st.integers(0, 255) | st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    agree(sealed(bytes(changed)))


@given(columns(codecs=(Codec.LZ4, Codec.ZSTD)), st.data())
def test_a_changed_compressed_body_is_read_alike_or_refused(drawn: Columns, data: st.DataObject) -> None:
    changed = bytearray(build(drawn | {"values": [b"x" * 40] * len(drawn["values"])}))
    at = data.draw(st.integers(HEADER_BYTES, len(changed) - 1))
    changed[at] ^= data.draw(st.integers(1, 255))
    agree(sealed(bytes(changed)))


KINDS = [kind for _, kind in oracle.FIELDS]
FIELD_AT = {name: struct.calcsize("<" + "".join(KINDS[:i])) for i, (name, _) in enumerate(oracle.FIELDS)}
EDGES = [0, 1, 2, 87, 88, 89, 2**20, 2**20 + 1, 2**25, 2**25 + 8, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64]


@given(columns(codecs=(Codec.NONE,)), st.sampled_from(oracle.FIELDS), st.sampled_from(EDGES) | st.integers(0, 300))
def test_any_header_field_set_to_anything(drawn: Columns, field: tuple[str, str], value: int) -> None:
    name, kind = field
    size = struct.calcsize("<" + kind)
    data = bytearray(build(drawn))
    data[FIELD_AT[name] : FIELD_AT[name] + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
    agree(bytes(data) if name == "crc" else sealed(bytes(data)))


@given(st.binary(max_size=300))
@example(b"")
@example(bytes(88))
def test_random_bytes_are_refused(data: bytes) -> None:
    for read in (read_header, decode, lambda raw: verify(raw, stamped=True), lambda raw: list(iterate(raw or b"\0"))):
        with pytest.raises(REFUSALS):
            read(data)
    agree(data)


@given(columns(), st.data())
def test_no_part_of_a_batch_is_a_batch(drawn: Columns, data: st.DataObject) -> None:
    whole = stamp(build(drawn))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(REFUSALS):
        read_header(cut)
    with pytest.raises(REFUSALS):
        verify(cut, stamped=True)


@settings(max_examples=25)
@given(columns(), int64.map(abs).filter(lambda offset: offset < 2**62))
def test_every_flipped_bit_of_a_stamped_batch_is_found(drawn: Columns, base: int) -> None:
    """With another batch behind it, so that a longer length has bytes to reach into."""
    whole = stamp(build(drawn), base_offset=base)
    data = bytearray(whole + whole)
    for bit in range(len(whole) * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(REFUSALS):
            verify(data, stamped=True)
        data[bit // 8] ^= 1 << bit % 8
    assert verify(data, stamped=True).base_offset == base


@given(st.lists(columns(), max_size=4), st.integers(0, 7), st.sampled_from([bytes, bytearray, memoryview]))
def test_batches_one_after_the_other(several: list[Columns], before: int, kind: Any) -> None:
    batches = []
    offset = 0
    for drawn in several:
        batches.append(stamp(build(drawn), base_offset=offset))
        offset = read_header(batches[-1]).next_offset
    whole = b"".join(batches)
    found = list(iterate(kind(whole)))
    assert [batch.values for batch in found] == [drawn["values"] for drawn in several]
    assert all(a.header.next_offset == b.header.base_offset for a, b in pairwise(found))
    at = before
    for batch in found:  # at a position inside a larger, unaligned buffer
        assert read_all(decode(kind(bytes(before) + whole), at, stamped=True)) == read_all(batch)
        at += batch.header.length


@pytest.mark.parametrize("name", fuzz_records.seeds())
def test_the_fuzz_target_takes_its_seeds(name: str) -> None:
    fuzz_records.one_input(fuzz_records.seeds()[name])


@given(st.binary(max_size=120))
def test_the_fuzz_target_takes_anything(data: bytes) -> None:
    fuzz_records.one_input(data)
