"""A leader refuses a batch whose columns do not add up, whatever is wrong with it; readers say where it is."""

from __future__ import annotations

import pytest

from comet import records
from comet.errors import CorruptBatch, CorruptRecords
from comet.records import STAMP_BYTES, Codec, make_stamp
from comet.settings.topic import TopicConfig
from comet.wire.corrupt import headers, opened
from comet_broker.core.admission import admit
from tests.poison import KINDS, TIMES, UNREADABLE, poisoned
from tests.property import records_oracle as oracle

CODECS = [Codec.NONE, Codec.LZ4, Codec.ZSTD]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("kind", KINDS)
def test_a_leader_refuses_it(kind: str, codec: Codec) -> None:
    data = memoryview(poisoned(kind, codec))
    with pytest.raises(oracle.Refused):
        oracle.read(bytes(data))
    header = records.verify(data, stamped=False)  # the checksum is right, and the header consistent
    with pytest.raises(CorruptBatch):
        admit(header, data, "quotes", TopicConfig())


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_reader_says_which_offsets_are_lost(kind: str, codec: Codec) -> None:
    data = poisoned(kind, codec)
    stored = memoryview(make_stamp(40, 6, 7, len(data)) + data[STAMP_BYTES:])
    ((at, header),) = headers(stored)
    with pytest.raises(CorruptRecords, match=r"quotes/2: offsets 42 to 4\d cannot be read") as caught:
        opened(header, stored, at, "quotes", 2, since=42)
    details = caught.value.details
    assert (details["topic"], details["partition"], details["first"]) == ("quotes", "2", "42")
    assert details["end"] == str(header.next_offset)
    assert details["reason"]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_times_beyond_those_of_the_header_hide_no_record(codec: Codec) -> None:
    data = poisoned(TIMES, codec)
    stored = memoryview(make_stamp(40, 6, 7, len(data)) + data[STAMP_BYTES:])
    ((at, header),) = headers(stored)
    batch = opened(header, stored, at, "quotes", 2)
    assert len(batch.values) == len(batch.timestamps) == header.record_count
    assert 7 in batch.timestamps


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_a_good_batch_is_taken(codec: Codec) -> None:
    data = memoryview(b"".join(records.encode([b"a" * 50, b"b" * 60], timestamps=[1, 2], codec=codec)))
    admit(records.verify(data, stamped=False), data, "quotes", TopicConfig())


def test_the_refusal_names_the_column() -> None:
    for kind, column in {
        "offsets fall": "values",
        "offsets of keys fall": "keys",
        "header lists fall": "header lists",
        "offsets of header names fall": "header names",
        "a null has bytes": "keys",
        TIMES: "timestamps",
    }.items():
        data = memoryview(poisoned(kind))
        with pytest.raises(CorruptBatch, match=column):
            admit(records.verify(data, stamped=False), data, "quotes", TopicConfig())
