"""Topics of a broker that demands certificates, as Spark reads and writes them: its options name the files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import comet
from comet.security.certificates import Authority
from comet_broker.config import BrokerConfig
from comet_broker.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Secured:
    address: str
    files: dict[str, str]

    def read(self) -> list[bytes]:
        found: list[bytes] = []
        ours = comet.Bootstrap(self.address, **self.files)
        with comet.sync.Consumer(ours, "bars", start="earliest") as consumer:
            found += [next(consumer).value for _ in range(6)]
        return sorted(found)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority.create(folder / "security", "comet")
    broker, app = authority.issue_broker(1, ["127.0.0.1"]), authority.issue_client("spark-app")
    config = BrokerConfig(
        data=folder / "data",
        port=0,
        clients_ca=authority.ca,
        clients_cert=broker.cert,
        clients_key=broker.key,
        drain_grace_ms=200,
    )

    async def started() -> Server:
        return await Server(config).__aenter__()

    async def stopped() -> None:
        await server.__aexit__(None, None, None)

    server = comet.sync.call(started())
    files = {"ca": str(authority.ca), "cert": str(app.cert), "key": str(app.key)}
    with comet.sync.Admin(comet.Bootstrap(server.address, **files)) as admin:
        admin.create_topic("quotes", partitions=2)
        admin.create_topic("bars")
    yield Secured(server.address, files)
    comet.sync.call(stopped())


def test_batches_and_streams_read_and_write_with_certificates(
    spark: SparkSession, secured: Secured, tmp_path: Path
) -> None:
    options = {"bootstrap": secured.address, **secured.files}
    rows = spark.range(6).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    rows.write.format("comet").options(**options).option("topic", "quotes").mode("append").save()
    quotes = spark.read.format("comet").options(**options).option("subscribe", "quotes").load()
    assert quotes.count() == 6
    query = (
        spark.readStream.format("comet")
        .options(**options, subscribe="quotes", startingOffsets="earliest")
        .load()
        .select("key", "value")
        .writeStream.format("comet")
        .options(**options, topic="bars", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert secured.read() == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_files_that_spark_ships_are_found_by_their_names(spark: SparkSession, secured: Secured) -> None:
    for path in secured.files.values():
        spark.sparkContext.addFile(path)
    names = {kind: Path(path).name for kind, path in secured.files.items()}
    frame = spark.range(1).selectExpr("cast(id as string) as value")
    frame.write.format("comet").options(bootstrap=secured.address, topic="quotes", **names).mode("append").save()
    found = spark.read.format("comet").options(bootstrap=secured.address, subscribe="quotes", **names).load()
    assert found.where("key is null").count() == 1


def test_a_missing_file_is_named(spark: SparkSession, secured: Secured) -> None:
    missing = secured.files | {"cert": "/nowhere/app.pem"}
    reader = spark.read.format("comet").options(bootstrap=secured.address, subscribe="quotes", **missing)
    with pytest.raises(PySparkException, match=r"cannot read the TLS certificate file /nowhere/app\.pem"):
        reader.load().count()
