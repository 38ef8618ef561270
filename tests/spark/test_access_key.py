"""A broker that demands access keys, as Spark writes and reads: an option names the file of the key."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import comet
from comet.security.access_keys import add_access_key, brokers_file
from comet.security.certificates import Authority
from comet_broker.config import BrokerConfig
from comet_broker.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_query_presents_the_key_of_its_options(spark: SparkSession, tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "security", "comet")
    issued, key = authority.issue_broker(1, ["127.0.0.1"]), add_access_key(tmp_path / "security", "spark")
    config = BrokerConfig(
        data=tmp_path / "data",
        port=0,
        clients_cert=issued.cert,
        clients_key=issued.key,
        access_keys=brokers_file(tmp_path / "security"),
        superusers=("client:spark",),
        drain_grace_ms=200,
    )

    async def started() -> Server:
        return await Server(config).__aenter__()

    async def stopped() -> None:
        await server.__aexit__(None, None, None)

    server = comet.sync.call(started())
    try:
        with comet.sync.Admin(comet.Bootstrap(server.address, ca=authority.ca, access_key=key)) as admin:
            admin.create_topic("quotes", partitions=2)
        options = {"bootstrap": server.address, "ca": str(authority.ca), "accessKey": str(key)}
        rows = spark.range(6).selectExpr("cast(id as string) as key", "cast(id as string) as value")
        rows.write.format("comet").options(**options).option("topic", "quotes").mode("append").save()
        quotes = spark.read.format("comet").options(**options).option("subscribe", "quotes").load()
        assert sorted(int(row.value) for row in quotes.collect()) == list(range(6))
        without = {name: value for name, value in options.items() if name != "accessKey"}
        with pytest.raises(PySparkException, match="requires an access key"):
            spark.read.format("comet").options(**without).option("subscribe", "quotes").load().collect()
    finally:
        comet.sync.call(stopped())
