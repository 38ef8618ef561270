"""One real SparkSession for all tests of this folder, set for quick starts and small batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import comet
from comet.spark import local

NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    # Nobody waits for the best code of a test that runs for a second.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.level=ERROR",
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    NO_DATA: "false",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


@pytest.fixture(scope="session", autouse=True)
def java() -> Iterator[None]:
    """For processes that tests start as well: whichever Java there is, and this Python."""
    with local.prepared():
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse"))).getOrCreate()
    session.sparkContext.setLogLevel("OFF")  # what fails is raised, too
    yield session
    local.close(session)


@pytest.fixture
def ends(spark: SparkSession) -> Iterator[None]:
    """The last batch of a stream has no data, and emits all windows that are over."""
    before = str(spark.conf.get(NO_DATA))
    spark.conf.set(NO_DATA, "true")
    yield
    spark.conf.set(NO_DATA, before)


@pytest.fixture
def broker() -> Iterator[comet.testing.TestBroker]:
    with comet.testing.broker({"quotes": 2}) as one:
        yield one
