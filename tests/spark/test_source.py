"""Topics as Spark reads them: a real session, real workers, a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

import comet
from comet.spark.coalesce import SMALL
from comet.spark.source import CometSource
from tests import poison
from tests.spark.streams import batches_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
Broker = comet.testing.TestBroker


def _write(broker: Broker, values: Sequence[bytes | None], *, partition: int = 0, **more: Any) -> None:
    with comet.sync.Producer(broker.address) as producer:
        for value in values:
            producer.publish("quotes", value, partition=partition, **more)


def _made_again(broker: Broker, values: Sequence[bytes]) -> None:
    with comet.sync.Admin(broker.address) as admin:
        admin.delete_topic("quotes")
        admin.create_topic("quotes", partitions=2)
    _write(broker, values)


def _read(spark: SparkSession, broker: Broker, **options: str) -> DataFrame:
    given = {"bootstrap": broker.address, "subscribe": "quotes", **options}
    return spark.read.format("comet").options(**given).load()


def _stream(spark: SparkSession, broker: Broker, folder: Path, **options: str) -> list[list[Row]]:
    """What a stream that ends with what there is gives, batch by batch."""
    given = {"bootstrap": broker.address, "subscribe": "quotes", "startingOffsets": "earliest", **options}
    frame = spark.readStream.format("comet").options(**given).load()
    return [batch for batch in batches_of(frame, folder) if batch]


def _offsets(rows: Sequence[Row]) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in rows)


def test_what_was_written_is_read(spark: SparkSession, broker: Broker) -> None:
    headers = {"source": b"\xff\x00", "é": b""}
    _write(broker, [b"one", None, b""], key=b"k", timestamp_us=1_700_000_000_123_456)
    _write(broker, [bytes(range(256))], partition=1, headers=headers)
    rows = sorted(_read(spark, broker, includeHeaders="true").collect(), key=lambda row: (row.partition, row.offset))
    assert [(row.key, row.value, row.topic, row.partition, row.offset) for row in rows] == [
        (b"k", b"one", "quotes", 0, 0),
        (b"k", None, "quotes", 0, 1),
        (b"k", b"", "quotes", 0, 2),
        (None, bytes(range(256)), "quotes", 1, 0),
    ]
    assert rows[0].timestamp.timestamp() == pytest.approx(1_700_000_000.123456)
    assert [(one.key, one.value) for one in rows[3].headers] == [("source", b"\xff\x00"), ("é", b"")]
    assert rows[0].headers == []
    few = spark.read.format("comet").schema("offset bigint, value binary")
    found = few.options(bootstrap=broker.address, subscribePattern="quo.*").load()
    assert found.columns == ["offset", "value"]
    assert found.count() == 4


def test_when_a_record_was_appended_is_a_column(spark: SparkSession, broker: Broker) -> None:
    with comet.sync.Producer(broker.address) as producer:
        one = producer.send("quotes", b"one", partition=0, timestamp_us=0).result()
        many = producer.send_many("quotes", [b"x"] * (SMALL + 1), partition=0).result()
    [times] = many
    rows = _read(spark, broker, includeAppendTime="true").selectExpr("offset", "unix_micros(append_time)").collect()
    assert dict(rows) == {one.offset: one.append_time_us, **dict.fromkeys(times.offsets, times.append_time_us)}
    assert "append_time" not in _read(spark, broker).columns


def test_parts_of_a_topic_are_read_as_they_are_named(spark: SparkSession, broker: Broker) -> None:
    _write(broker, [b"%d" % number for number in range(20)])
    _write(broker, [b"x"] * 3, partition=1)
    some = _read(
        spark, broker, startingOffsets='{"quotes": {"0": 5, "1": -1}}', endingOffsets='{"quotes": {"0": 8, "1": -1}}'
    )
    assert _offsets(some.collect()) == [(0, 5), (0, 6), (0, 7)]
    split = _read(spark, broker, minPartitions="6")
    assert split.rdd.getNumPartitions() >= 6
    assert _offsets(split.collect()) == [(0, number) for number in range(20)] + [(1, number) for number in range(3)]
    one = spark.read.format("comet").options(bootstrap=broker.address, assign='{"quotes": [1]}').load()
    assert one.count() == 3
    cut = _read(spark, broker, pushdown="true").where("partition = 0 and offset >= 18")
    assert _offsets(cut.collect()) == [(0, 18), (0, 19)]
    with pytest.raises(PySparkException, match="quotes/1 is missing"):
        _read(spark, broker, startingOffsets='{"quotes": {"0": 5}}').count()


def test_what_holds_nothing_is_read_as_nothing(spark: SparkSession, broker: Broker) -> None:
    assert _read(spark, broker).collect() == []
    _write(broker, [b"1"])
    assert _read(spark, broker, pushdown="true").where("partition = 1").collect() == []


def test_a_filter_leaves_rows_out_of_batches_and_streams(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    _write(broker, [b'{"n": %d}' % number for number in range(40)], partition=0, key=b"k", headers={"h": "x"})
    _write(broker, [b"text", None], partition=1)
    chosen = {"filter": "n >= 30 && n < 35 || @partition = 1 && !@tombstone"}
    expected = [*((0, offset) for offset in range(30, 35)), (1, 0)]
    assert _offsets(_read(spark, broker, **chosen).collect()) == expected
    rows = _read(spark, broker, includeHeaders="true", minPartitions="5", **chosen).collect()
    assert _offsets(rows) == expected
    assert all(row["headers"] for row in rows if row["partition"] == 0)
    assert _read(spark, broker, filter="n = -1").count() == 0
    batches = _stream(spark, broker, tmp_path, maxOffsetsPerTrigger="10", **chosen)
    assert _offsets([row for batch in batches for row in batch]) == expected
    typed = _read(spark, broker, schema="n int", filter="n >= 38").select("value.*").collect()
    assert sorted(row["n"] for row in typed) == [38, 39]


def test_values_become_columns(spark: SparkSession, broker: Broker) -> None:
    values = [b'{"symbol": "A", "bid": 1.5, "more": [1, {"x": "}{"}]}', b'{"symbol":"\\u00e9","bid":2}', b"{}"]
    _write(broker, values)
    _write(broker, [None], partition=1)
    typed = _read(spark, broker, schema="symbol string, bid double").orderBy("partition", "offset")
    rows = typed.select("value.*").collect()
    assert [(row.symbol, row.bid) for row in rows] == [("A", 1.5), ("é", 2.0), (None, None), (None, None)]
    events = _read(spark, broker, schema="comet_demo.model:Quote").where("value is not null")
    assert [row.symbol for row in events.select("value.symbol").collect()] == ["A", "é", None]


class Level(msgspec.Struct, rename="camel"):
    bid_size: int


class Book(msgspec.Struct, rename="camel"):
    best_level: Level
    all_levels: list[Level]


def test_columns_are_those_of_a_class_whatever_json_calls_them(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    book = Book(Level(5), [Level(6), Level(7)])
    _write(broker, [msgspec.json.encode(book)])
    as_columns = {"best_level": {"bid_size": 5}, "all_levels": [{"bid_size": 6}, {"bid_size": 7}]}
    read = comet.read("quotes", bootstrap=broker.address, type=Book, columns=list(as_columns))
    assert read.to_arrow().to_pylist() == [as_columns]
    (row,) = _read(spark, broker, schema=f"{__name__}:Book").collect()
    assert row.value.asDict(recursive=True) == as_columns
    ((row,),) = _stream(spark, broker, tmp_path, schema=f"{__name__}:Book")
    assert row.value.asDict(recursive=True) == as_columns


# Each could be taken for as many objects as there are values, were they read one after the other.
@pytest.mark.parametrize(
    "values",
    [[b"nothing"], [b'{"symbol": 5}'], [b"{} {}", b""], [b'{"symbol":"}', b'{"}', b"{}{}"], [b'{"symbol":', b'"A"}']],
)
def test_values_that_are_no_events_are_named(spark: SparkSession, broker: Broker, values: list[bytes]) -> None:
    with comet.sync.Producer(broker.address) as producer:
        producer.send_many("quotes", [b'{"symbol": "A"}', *values], partition=0).result()
    with pytest.raises(PySparkException, match="record 1 of quotes/0 has a value that is not a struct"):
        _read(spark, broker, schema="symbol string").collect()
    rows = _read(spark, broker, schema="symbol string", mode="permissive").orderBy("offset").collect()
    assert rows[0].value.symbol == "A"
    assert [row.value for row in rows[1:]] == [None] * len(values)


def test_text_that_is_none_is_named(spark: SparkSession, broker: Broker) -> None:
    with comet.sync.Producer(broker.address) as producer:
        producer.send_many("quotes", [b"a", b"\xffb"], keys=[None, b"\xfec"], partition=0).result()

    def read(schema: str) -> list[Any]:
        reader = spark.read.format("comet").options(bootstrap=broker.address, subscribe="quotes").schema(schema)
        return reader.load().collect()

    assert [row.value for row in read("value binary")] == [b"a", b"\xffb"]
    for column, begins in (("value", "xffb"), ("key", "xfec")):
        with pytest.raises(PySparkException, match=f"record 1 of quotes/0 has a {column} that is not UTF-8.*{begins}"):
            read(f"{column} string")


def test_a_stream_goes_on_where_its_checkpoint_says(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    _write(broker, [b"1"] * 7)
    _write(broker, [b"2"] * 3, partition=1)
    first = _stream(spark, broker, tmp_path, maxOffsetsPerTrigger="4", group="spark")
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert _stream(spark, broker, tmp_path) == []
    _write(broker, [b"3"] * 2)
    with comet.sync.Admin(broker.address) as admin:
        admin.add_partitions("quotes", 3)
    _write(broker, [b"4"], partition=2)
    again = _stream(spark, broker, tmp_path, group="spark")
    read = [row for batch in first + again for row in batch]
    assert _offsets(read) == [(0, number) for number in range(9)] + [(1, number) for number in range(3)] + [(2, 0)]
    with comet.sync.Admin(broker.address) as admin:
        told = {one.partition: one.offset for one in admin.group_offsets("spark")}
    assert told == {0: 9, 1: 3, 2: 1}


def test_what_is_gone_fails_a_query_or_is_left_out(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    _write(broker, [b"1"] * 4)
    assert len(_stream(spark, broker, tmp_path)[0]) == 4
    _write(broker, [b"2"] * 4)
    with comet.sync.Admin(broker.address) as admin:
        admin.delete_records("quotes", 0, 6)
    with pytest.raises(PySparkException, match="cannot be read"):
        _stream(spark, broker, tmp_path)
    rest = _stream(spark, broker, tmp_path, failOnDataLoss="false")
    assert _offsets(rest[0]) == [(0, 6), (0, 7)]
    whole = {"startingOffsets": json.dumps({"quotes": {"0": 0, "1": 0}})}
    with pytest.raises(PySparkException, match="offsets 0 to 6 of 0 to 8 cannot be read"):
        _read(spark, broker, **whole).collect()
    assert _read(spark, broker, failOnDataLoss="false", **whole).count() == 2


def test_a_corrupt_batch_fails_a_query_or_is_left_out(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Offsets 2 to 6 are in a batch that no reader can take apart."""
    comet.sync.call(poison.poison(broker.address, "quotes"))
    with pytest.raises(PySparkException, match=r"offsets 2 to 7 of .*failOnDataLoss=false"):
        _read(spark, broker).collect()
    whole = [(0, 0), (0, 1), (0, 7), (0, 8)]
    assert _offsets(_read(spark, broker, failOnDataLoss="false").collect()) == whole
    with pytest.raises(PySparkException, match=r"offsets 2 to 7 of .*failOnDataLoss=false"):
        _stream(spark, broker, tmp_path)
    found = _stream(spark, broker, tmp_path, failOnDataLoss="false")
    assert sorted(one for batch in found for one in _offsets(batch)) == whole
    _write(broker, [b"9"])
    assert [_offsets(batch) for batch in _stream(spark, broker, tmp_path)] == [[(0, 9)]]
    inside = {"startingOffsets": json.dumps({"quotes": {"0": 4, "1": 0}}), "failOnDataLoss": "false"}
    assert _offsets(_read(spark, broker, **inside).collect()) == [(0, 7), (0, 8), (0, 9)]


def test_a_topic_that_was_made_again_is_no_continuation(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """It has outgrown where the stream was, in the epoch that the one before it had."""
    _write(broker, [b"old"] * 4)
    assert len(_stream(spark, broker, tmp_path)[0]) == 4
    _made_again(broker, [b"new"] * 6)
    with pytest.raises(PySparkException, match="the topic was deleted and recreated"):
        _stream(spark, broker, tmp_path)
    rest = _stream(spark, broker, tmp_path, failOnDataLoss="false")
    assert [_offsets(batch) for batch in rest] == [[(0, number) for number in range(6)]]
    assert _stream(spark, broker, tmp_path) == []


def test_what_was_planned_is_not_read_of_a_topic_that_was_made_again(spark: SparkSession, broker: Broker) -> None:
    """It is as long, in the epoch that the one before it had."""
    _write(broker, [b"old"] * 4)
    strict, tolerant = (_read(spark, broker, failOnDataLoss=fails).rdd for fails in ("true", "false"))
    assert strict.getNumPartitions() == tolerant.getNumPartitions() == 1, "they are planned"
    _made_again(broker, [b"new"] * 4)
    with pytest.raises(PySparkException, match="offsets 0 to 4 of 0 to 4 cannot be read"):
        strict.collect()
    assert tolerant.collect() == []
    assert [row.value for row in _read(spark, broker).collect()] == [b"new"] * 4


def test_a_stream_begins_with_a_topic_that_was_made_again_while_it_read(broker: Broker) -> None:
    _write(broker, [b"old"] * 4)
    given = {"bootstrap": broker.address, "subscribe": "quotes", "startingOffsets": "earliest"}
    source = CometSource({**given, "failOnDataLoss": "false"})
    reader = source.streamReader(StructType().add("value", "binary"))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    planned = reader.partitions(start, end)
    _made_again(broker, [b"new"] * 4)
    assert list(chain.from_iterable(map(reader.read, planned))) == []
    (part,) = reader.partitions(end, reader.latestOffset(end, ReadAllAvailable()))
    assert [value for found in reader.read(part) for value in found["value"].to_pylist()] == [b"new"] * 4


def test_a_stream_goes_on_with_the_topics_that_are_left(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    with comet.sync.Admin(broker.address) as admin:
        admin.create_topic("more", partitions=1)
        _write(broker, [b"1"])
        both = {"subscribe": "quotes,more"}
        assert len(_stream(spark, broker, tmp_path, **both)[0]) == 1
        admin.delete_topic("more")
    _write(broker, [b"2"])
    with pytest.raises(PySparkException, match="topic 'more' does not exist"):
        _stream(spark, broker, tmp_path, **both)
    rest = _stream(spark, broker, tmp_path, failOnDataLoss="false", **both)
    assert [_offsets(batch) for batch in rest] == [[(0, 1)]]
    assert _stream(spark, broker, tmp_path, failOnDataLoss="false", **both) == []


def test_only_what_is_committed_is_read_unless_all_is_asked_for(spark: SparkSession, broker: Broker) -> None:
    async def transact() -> None:
        async with comet.TransactionalProducer(broker.address, "tests") as producer:
            async with producer.transaction() as kept:
                await kept.send("quotes", b"kept", partition=0)
            with suppress(ValueError):
                async with producer.transaction() as dropped:
                    await (await dropped.send("quotes", b"dropped", partition=0))
                    raise ValueError("changed my mind")

    comet.run(transact())
    assert [row.value for row in _read(spark, broker).collect()] == [b"kept"]
    assert len(_read(spark, broker, isolation="uncommitted").collect()) == 2


def test_a_time_behind_an_open_transaction_is_no_loss(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    _write(broker, [b"before"], timestamp_us=1_000_000)

    def look() -> None:
        assert [row.value for row in _read(spark, broker, endingTimestamp="3000").collect()] == [b"before"]
        assert len(_read(spark, broker, endingTimestamp="3000", isolation="uncommitted").collect()) == 2
        assert _stream(spark, broker, tmp_path, startingTimestamp="3000") == []

    async def transact() -> None:
        async with comet.TransactionalProducer(broker.address, "tests") as producer, producer.transaction() as tx:
            await (await tx.send("quotes", b"open", partition=0, timestamp_us=2_000_000))
            await asyncio.to_thread(look)

    comet.run(transact())
    assert len(_read(spark, broker, endingTimestamp="3000").collect()) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffset": "earliest"}, "unknown option"),
        ({"subscribe": "nothing"}, "topic 'nothing' does not exist"),
        ({"group": "g"}, "are for spark.readStream"),
        ({"endingOffsets": '{"quotes": {"0": 7, "1": 0}}'}, "quotes/0 ends at 0, before the requested 7"),
    ],
)
def test_a_query_that_makes_no_sense_says_why(
    spark: SparkSession, broker: Broker, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        _read(spark, broker, **options).collect()
