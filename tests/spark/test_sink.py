"""Topics as Spark writes them: a real session, real workers, a real broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

import comet
from comet.spark.sink import BatchWriter, CommitMessage, StreamWriter
from comet.spark.sink_options import SinkOptions
from comet.spark.source import CometSource
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
Broker = comet.testing.TestBroker


class Crash(Exception):
    """What a test breaks a task with."""


class BreaksAfterItsCommit(BatchWriter):
    """Loses the word that a task is done, the first time."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        written = super().write(iterator)
        task = TaskContext.get()
        if task is not None and task.attemptNumber() == 0:
            raise Crash("after the commit")
        return written


class StreamBreaksAfterItsCommit(StreamWriter):
    """Loses it in partition 0, until a file is gone."""

    def __init__(self, schema: StructType, options: SinkOptions, fuse: str) -> None:
        super().__init__(schema, options)
        self.fuse = Path(fuse)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        written = super().write(iterator)
        task = TaskContext.get()
        if task is not None and task.partitionId() == 0 and self.fuse.exists():
            raise Crash("after the commit")
        return written


class BreakingSource(CometSource):
    """`format("breaking")`: writes as `comet` does, and then breaks."""

    @classmethod
    def name(cls) -> str:
        return "breaking"

    def writer(self, schema: StructType, overwrite: bool) -> BreaksAfterItsCommit:
        return BreaksAfterItsCommit(schema, self._wanted(overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamBreaksAfterItsCommit:  # noqa: N802
        fuse = self.options.pop("fuse")
        return StreamBreaksAfterItsCommit(schema, self._wanted(overwrite), fuse)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with comet.testing.broker({"quotes": 2, "bars": 2}) as one:
        yield one


def _read(spark: SparkSession, broker: Broker, topic: str = "bars", **options: str) -> list[Row]:
    given = {"bootstrap": broker.address, "subscribe": topic, "includeHeaders": "true", **options}
    frame = spark.read.format("comet").options(**given).load()
    return sorted(frame.collect(), key=lambda row: (row.partition, row.offset))


def _save(frame: DataFrame, broker: Broker, mode: str = "append", form: str = "comet", **options: str) -> None:
    given = {"bootstrap": broker.address, "topic": "bars", **options}
    frame.write.format(form).options(**given).mode(mode).save()


def _feed(broker: Broker, first: int, count: int) -> None:
    values = [b"%d" % number for number in range(first, first + count)]
    with comet.sync.Producer(broker.address) as producer:
        producer.send_many("quotes", values, keys=[value[-1:] for value in values]).result()


def _run(spark: SparkSession, broker: Broker, folder: Path, form: str = "comet", **options: str) -> None:
    """Writes all that there is in quotes and is not written yet, by a query of that checkpoint."""
    source = {"bootstrap": broker.address, "subscribe": "quotes", "startingOffsets": "earliest"}
    frame = spark.readStream.format("comet").options(**source, maxOffsetsPerTrigger="40").load()
    query = (
        frame.select("key", "value")
        .writeStream.format(form)
        .options(bootstrap=broker.address, topic="bars", checkpointLocation=str(folder), **options)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(150)


def _values(rows: list[Row]) -> Counter[int]:
    return Counter(int(row.value) for row in rows)


def test_rows_become_records_with_all_they_have(spark: SparkSession, broker: Broker) -> None:
    frame = spark.sql(
        """
        select * from values
          ('one', 'k', 1, array(named_struct('key', 'a', 'value', x'ff')), timestamp'2026-01-02 03:04:05.678901 UTC'),
          ('two', 'k', 1, null, null),
          (null, null, 0, array(), null)
        as rows(value, key, partition, headers, timestamp)
        """
    )
    _save(frame.coalesce(1), broker, compression="zstd")
    none, one, two = _read(spark, broker)
    assert (none.partition, none.key, none.value, none.headers) == (0, None, None, [])
    assert (one.partition, one.key, one.value, two.value) == (1, b"k", b"one", b"two")
    assert [(header.key, header.value) for header in one.headers] == [("a", b"\xff")]
    assert one.timestamp.timestamp() == 1767323045.678901
    assert two.timestamp > one.timestamp


def test_a_column_says_which_topic_and_without_transactions_any_will_do(spark: SparkSession, broker: Broker) -> None:
    with comet.sync.Admin(broker.address) as admin:
        admin.create_topic("fast", consistency="available")
    frame = spark.range(100).selectExpr("cast(id as string) value", "if(id < 10, 'quotes', 'fast') topic")
    given = {"bootstrap": broker.address, "exactlyOnce": "false", "acks": "1"}
    frame.write.format("comet").options(**given).mode("append").save()
    assert sum(_values(_read(spark, broker, "quotes")).values()) == 10
    assert sum(_values(_read(spark, broker, "fast")).values()) == 90
    with pytest.raises(PySparkException, match="'fast' has consistency=available"):
        _save(frame.select("value"), broker, topic="fast")


@pytest.mark.parametrize(
    ("mode", "options", "said"),
    [
        ("overwrite", {}, "a topic cannot be overwritten"),
        ("append", {"topic": "nothing"}, "nothing"),
        ("append", {"acks": "0"}, "acks needs exactlyOnce=false"),
    ],
)
def test_a_write_that_makes_no_sense_says_why(
    spark: SparkSession, broker: Broker, mode: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        _save(spark.range(1).selectExpr("cast(id as string) value"), broker, mode, **options)
    with pytest.raises(PySparkException, match="unknown column 'id'"):
        _save(spark.range(1), broker)


def test_a_named_write_is_written_once_however_often_it_runs(spark: SparkSession, broker: Broker) -> None:
    frame = spark.range(1000).selectExpr("cast(id as string) value")
    for _ in range(2):
        _save(frame, broker, transactionalId="load-1")
    assert _values(_read(spark, broker)) == Counter(range(1000))
    more = spark.range(1200).selectExpr("cast(id as string) value")
    with pytest.raises(PySparkException, match="was written before with 500 rows, and has 600 now"):
        _save(more, broker, transactionalId="load-1")
    _save(more, broker, transactionalId="load-1", failOnDataLoss="false")
    assert len(_read(spark, broker)) == 1000
    _save(frame, broker)
    _save(frame, broker)
    assert len(_read(spark, broker)) == 3000


def test_what_was_committed_before_its_task_died_is_not_written_again(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """In a stream whose checkpoint does not know of it, so that the query repeats the batch when it starts again."""
    spark.dataSource.register(BreakingSource)
    fuse = tmp_path / "fuse"
    _feed(broker, 0, 100)
    fuse.touch()
    with pytest.raises(PySparkException, match="after the commit"):
        _run(spark, broker, tmp_path / "checkpoint", "breaking", fuse=str(fuse))
    written = _values(_read(spark, broker))
    assert set(written.values()) == {1}
    assert 0 < len(written) < 100
    fuse.unlink()
    _run(spark, broker, tmp_path / "checkpoint")
    assert _values(_read(spark, broker)) == Counter(range(100))


def test_updates_are_written_once_by_a_function(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Spark gives no updates to sinks in Python; a write inside foreachBatch knows its batch as well."""
    broken = True

    def write(batch: DataFrame, number: int) -> None:
        _save(batch, broker, transactionalId="by-hand")
        if broken and number == 1:
            raise Crash("after both partitions")

    def run() -> None:
        frame = spark.readStream.format("comet").options(
            bootstrap=broker.address, subscribe="quotes", startingOffsets="earliest", maxOffsetsPerTrigger="40"
        )
        counts = frame.load().groupBy("key").count()
        query = (
            counts.selectExpr("key", "cast(count as string) value")
            .writeStream.foreachBatch(write)
            .outputMode("update")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(150)

    _feed(broker, 0, 100)
    with pytest.raises(PySparkException, match="after both partitions"):
        run()
    broken = False
    run()
    counted = [(row.key, int(row.value)) for row in _read(spark, broker)]
    assert len(set(counted)) == len(counted)
    assert dict(sorted(counted)) == {b"%d" % digit: 10 for digit in range(10)}


def test_nothing_is_seen_of_a_task_that_failed(spark: SparkSession, broker: Broker) -> None:
    """What it has begun it takes back when it hears of that, which may be after the driver did."""
    address, rows = broker.address, 10_000

    def half(nothing: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in range(5):
            yield pa.RecordBatch.from_pydict({"value": ["x"] * rows, "partition": pa.array([0] * rows, pa.int32())})
        with comet.sync.Reader(address) as reader:
            reader.fetch("bars", 0, 0, wait_ms=60_000, isolation="uncommitted")
        raise Crash("half way")

    frame = spark.range(0, 1, 1, 1).mapInArrow(half, "value string, partition int")
    with pytest.raises(PySparkException, match="half way"):
        _save(frame, broker)
    assert _read(spark, broker) == []
    assert len(_read(spark, broker, isolation="uncommitted")) > 0
    _save(spark.range(5).selectExpr("cast(id as string) value"), broker)
    assert comet.run(until(lambda: _values(_read(spark, broker)) == Counter(range(5)), within_s=100))
