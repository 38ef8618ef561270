"""What a Spark sink can be asked for, which frames it takes, and how it says what is wrong with either."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from comet import limits
from comet.errors import DataLoss, InvalidArgument
from comet.spark.rows import check, parts
from comet.spark.sink_options import SinkOptions
from comet.spark.write_unit import Note, Unit

UNIT = Unit("q", 3, 17)
TEXT = StringType()


def _headers(value: DataType) -> DataType:
    return ArrayType(StructType().add("key", TEXT).add("value", value))


def _schema(*columns: tuple[str, DataType]) -> StructType:
    schema = StructType()
    for name, kind in columns:
        schema = schema.add(name, kind)
    return schema


def test_options_in_any_case() -> None:
    given = {"TOPIC": " bars ", "exactlyonce": "FALSE", "acks": "1", "compression": "zstd", "checkpointLocation": "x"}
    options = SinkOptions.parse(given)
    assert options == SinkOptions(topic="bars", exactly_once=False, acks=1, compression="zstd")
    assert SinkOptions.parse({}).acks == "all"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topics": "bars"}, "unknown option 'topics'; use accessKey, acks, bootstrap"),
        ({"topic": ""}, "topic is empty"),
        ({"topic": "no/name"}, "no/name"),
        ({"acks": "2"}, "all or 1 or 0"),
        ({"acks": "1"}, "acks needs exactlyOnce=false"),
        ({"transactionalId": "x", "exactlyOnce": "false"}, "needs transactions"),
        ({"transactionalId": "x" * 181}, "at most 180"),
        ({"transactionTimeoutMs": "900001"}, "from 1 to 900000"),
        ({"exactlyOnce": "perhaps"}, "true or false"),
    ],
)
def test_options_that_make_no_sense(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        SinkOptions.parse(given)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([("key", TEXT)], "column value is missing"),
        ([("value", IntegerType())], "value is string or binary, not int"),
        ([("value", TEXT), ("offset", LongType())], "unknown column 'offset'"),
        ([("value", TEXT), ("partition", LongType())], "partition is int, not bigint"),
        ([("value", TEXT), ("headers", MapType(TEXT, BinaryType()))], "headers is array<struct<key: string, value"),
        ([("value", TEXT), ("headers", _headers(TEXT))], "headers is array"),
        ([("value", TEXT), ("timestamp", TimestampNTZType())], "timestamp is timestamp, not timestamp_ntz"),
        ([("value", TEXT), ("value", TEXT)], "duplicate column 'value'"),
    ],
)
def test_frames_that_cannot_be_written(columns: list[tuple[str, DataType]], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        check(_schema(*columns), "bars")


def test_a_frame_says_where_its_rows_go() -> None:
    columns = [("topic", TEXT), ("value", BinaryType()), ("headers", _headers(BinaryType())), ("key", TEXT)]
    check(_schema(*columns, ("timestamp", TimestampType()), ("partition", IntegerType())), "")
    with pytest.raises(InvalidArgument, match="no topic given"):
        check(_schema(("value", TEXT)), "")


def test_rows_are_parted_by_where_they_go_and_keep_their_order() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "value": ["1", "2", None, "4", "5"],
            "topic": ["b", "a", "b", "a", "b"],
            "partition": pa.array([1, None, 0, None, 1], pa.int32()),
            "timestamp": pa.array([5, None, 7, 8, 9], pa.timestamp("us", tz="UTC")),
        }
    )
    found = [(part.topic, part.partition, part.columns) for part in parts(batch, "")]
    assert found == [
        ("a", None, {"values": [b"2", b"4"], "timestamps_us": [None, 8]}),
        ("b", 0, {"values": [None], "timestamps_us": [7]}),
        ("b", 1, {"values": [b"1", b"5"], "timestamps_us": [5, 9]}),
    ]
    assert {part.topic for part in parts(batch, "all")} == {"all"}
    with pytest.raises(InvalidArgument, match="a row has no topic"):
        list(parts(pa.RecordBatch.from_pydict({"value": ["1"], "topic": pa.array([None], pa.string())}), ""))


def test_headers_and_keys_are_taken_as_they_are() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers: list[Any] = [[{"key": "a", "value": b"\xff"}, {"key": "a", "value": b""}], None, []]
    columns = {"value": [b"1", b"2", b"3"], "key": pa.array(["é", None, ""], pa.large_string())}
    batch = pa.RecordBatch.from_pydict({**columns, "headers": pa.array(headers, kind)})
    ((_, _, found),) = parts(batch, "bars")
    assert found["keys"] == ["é".encode(), None, b""]
    assert found["headers"] == [[("a", b"\xff"), ("a", b"")], None, []]
    none = pa.RecordBatch.from_pydict({"value": [b"1"], "headers": pa.array([[None]], kind)})
    with pytest.raises(InvalidArgument, match="a header is null"):
        list(parts(none, "bars"))


def test_a_note_says_what_is_written() -> None:
    assert UNIT.transactional_id == "spark.q.3"
    assert Note(17, 5, "bars.1m").encode() == b"batch 17 rows 5 to bars.1m"
    assert Note(None, 0).encode() == b"done rows 0"
    longest = Note(10**19 - 1, 10**19 - 1, "x" * 249)
    assert len(longest.encode()) <= limits.TRANSACTION_NOTE_BYTES_MAX
    assert Note.parse(longest.encode()) == longest._replace(topic="x" * 180)
    assert UNIT.written(b"") is None
    assert UNIT.written(b"batch 16 rows 9") is None
    assert UNIT.written(b"batch 17 rows 5") == 5
    assert Unit("q", 3, None).written(b"done rows 4") == 4


@pytest.mark.parametrize("kind", [b"batch 17", b"done"])
def test_what_went_to_another_topic_is_not_taken_for_what_is_to_be_written(kind: bytes) -> None:
    unit = UNIT._replace(batch=17 if kind == b"batch 17" else None)
    assert unit.written(kind + b" rows 5 to bars", "bars") == 5
    assert unit.written(kind + b" rows 5 to " + b"x" * 180, "x" * 200) == 5
    assert unit.written(kind + b" rows 5", "quotes") == 5, "nobody noted where to"
    assert unit.written(kind + b" rows 5 to bars", "") == 5, "rows say it"
    with pytest.raises(InvalidArgument, match="to topic 'bars' before, and is now for 'quotes': "):
        unit.written(kind + b" rows 5 to bars", "quotes")
    assert UNIT._replace(batch=18).written(b"batch 17 rows 5 to bars", "quotes") is None


@pytest.mark.parametrize(
    ("note", "kind", "said"),
    [
        (b"batch 18 rows 5", DataLoss, "partition 3 of batch 17 of q comes after batch 18 was written"),
        (b"done rows 5", InvalidArgument, "is a stream, but its transactional id is of a batch write"),
        (b"file 7", InvalidArgument, "in use by another program, note b'file 7'"),
    ],
)
def test_a_note_that_tells_of_a_mistake(note: bytes, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        UNIT.written(note)


def test_more_rows_than_were_written_are_a_loss() -> None:
    assert not UNIT.lacking(5, 5)
    assert not UNIT.lacking(5, 4)
    assert "was written before with 5 rows, and has 6 now" in UNIT.lacking(5, 6)
