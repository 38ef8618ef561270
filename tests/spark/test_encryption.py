"""Values that are encrypted end to end, as Spark writes and reads them: keys come from a file of the executors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import comet
from comet.encryption.envelope import MAGIC
from comet.encryption.keys import add_key

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "quotes.keys"
    add_key(path, "k1")
    return path


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other.keys"
    add_key(path, "k2")
    return path


def rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("cast(id as string) as key", """concat('{"n":', id, '}') as value""")


def write(frame: DataFrame, broker: comet.testing.TestBroker, **options: Any) -> None:
    given = {"bootstrap": broker.address, "topic": "quotes", **options}
    frame.write.format("comet").options(**given).mode("append").save()


def read(spark: SparkSession, broker: comet.testing.TestBroker, **options: Any) -> DataFrame:
    given = {"bootstrap": broker.address, "subscribe": "quotes", **options}
    return spark.read.format("comet").options(**given).load()


@pytest.mark.parametrize("once", ["true", "false"])
def test_values_are_encrypted_and_decrypted_on_executors(
    spark: SparkSession, broker: comet.testing.TestBroker, keys: Path, once: str
) -> None:
    acks = {} if once == "true" else {"acks": "1"}
    write(rows(spark, 100), broker, keyring=str(keys), exactlyOnce=once, **acks)
    stored = [row.value for row in read(spark, broker).collect()]
    assert len(stored) == 100 and all(value.startswith(MAGIC) for value in stored)
    frame = read(spark, broker, keyring=str(keys), schema="n long")
    assert sorted(row.n for row in frame.select("value.n").collect()) == list(range(100))
    assert min(bytes(row.value) for row in read(spark, broker, keyring=str(keys)).collect()) == b'{"n":0}'
    plan = frame._jdf.queryExecution().toString()
    assert keys.read_text().split()[1] not in plan


def test_a_file_that_spark_ships_is_found_on_executors(
    spark: SparkSession, broker: comet.testing.TestBroker, keys: Path, tmp_path: Path
) -> None:
    shipped = tmp_path / "shipped.keys"
    shutil.copy2(keys, shipped)
    spark.sparkContext.addFile(str(shipped))
    write(rows(spark, 3), broker, keyring="shipped.keys")
    assert read(spark, broker, keyring="shipped.keys", schema="n long").select("value.n").distinct().count() == 3


def test_a_stream_is_decrypted_and_encrypted_again(
    spark: SparkSession, broker: comet.testing.TestBroker, keys: Path, tmp_path: Path
) -> None:
    write(rows(spark, 10), broker, keyring=str(keys))
    with comet.sync.Admin(broker.address) as admin:
        admin.create_topic("copy")
    given = {"bootstrap": broker.address, "keyring": str(keys)}
    stream = spark.readStream.format("comet").options(**given, subscribe="quotes", startingOffsets="earliest").load()
    writing = stream.select("key", "value").writeStream.format("comet").options(**given, topic="copy")
    writing.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "state")).start().awaitTermination()
    table = comet.read("copy", encryption=comet.Keyring.from_file(keys), bootstrap=broker.address).to_arrow()
    assert sorted(table["value"].to_pylist()) == sorted(b'{"n":%d}' % number for number in range(10))


def test_a_wrong_or_missing_key_fails_the_query_and_says_which(
    spark: SparkSession, broker: comet.testing.TestBroker, keys: Path, other: Path
) -> None:
    write(rows(spark, 4), broker, keyring=str(keys))
    with pytest.raises(PySparkException, match="does not have the key 'k1'"):
        read(spark, broker, keyring=str(other)).collect()
    options = {"bootstrap": broker.address, "subscribe": "quotes", "keyring": str(other)}
    offsets = spark.read.format("comet").schema("offset bigint, key binary").options(**options).load()
    assert offsets.count() == 4, "other columns need no key"
    with pytest.raises(PySparkException, match=r"encrypted with key 'k1'. The option keyring"):
        read(spark, broker, schema="n long").collect()
    keys.chmod(0o644)
    with pytest.raises(PySparkException, match="open to others: run chmod 600"):
        write(rows(spark, 4), broker, keyring=str(keys))
    with pytest.raises(PySparkException, match=r"cannot read .*/none"):
        read(spark, broker, keyring=str(keys.with_name("none"))).collect()


def test_permissive_mode_makes_undecrypted_values_null(
    spark: SparkSession, broker: comet.testing.TestBroker, keys: Path, other: Path
) -> None:
    write(rows(spark, 4), broker, keyring=str(keys))
    write(rows(spark, 2), broker, keyring=str(other))
    frame = read(spark, broker, keyring=str(keys), schema="n long", mode="permissive")
    assert sorted((row.value is None, row.value and row.value.n) for row in frame.collect()) == [
        (False, 0), (False, 1), (False, 2), (False, 3), (True, None), (True, None),
    ]  # fmt: skip


def test_an_error_does_not_quote_a_decrypted_value(
    spark: SparkSession, broker: comet.testing.TestBroker, keys: Path
) -> None:
    frame = spark.sql("select 'k' as key, cast('{\"n\": \"secret words\"}' as binary) as value")
    write(frame, broker, keyring=str(keys))
    with pytest.raises(PySparkException, match="a value that is not a struct") as caught:
        read(spark, broker, keyring=str(keys), schema="n long").collect()
    assert "secret words" not in str(caught.value)
