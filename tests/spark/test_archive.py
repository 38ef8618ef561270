"""Bars of the demo's job as files: what runs again, with whatever checkpoint and broker, adds to what is there."""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import comet
from comet_demo.analytics import spark_job
from comet_demo.model import RESULTS, TOPIC, TRADES, Trade

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MINUTE_US = 60_000_000
FAR_US = 4_102_444_800_000_000  # in the year 2100
(ARCHIVE,) = (plan for plan in spark_job.PLANS if plan.name == spark_job.ARCHIVE)


def test_each_run_of_the_job_adds_its_minutes_to_the_files(spark: SparkSession, tmp_path: Path) -> None:
    begin_us = (time.time_ns() // 1000 // MINUTE_US - 60) * MINUTE_US
    folder = tmp_path / "bars"
    for run in range(2):
        options = spark_job.arguments(["--parquet", str(folder), "--checkpoint", str(tmp_path / f"checkpoint {run}")])
        with comet.testing.broker({TOPIC: 1, TRADES: 1}) as broker:
            options.bootstrap = broker.address
            _run(spark, options, first_us=begin_us + 10 * run * MINUTE_US)
            with comet.sync.Admin(broker.address) as admin:
                assert {topic.name for topic in admin.list_topics()} >= set(RESULTS), "also where somebody deleted them"
        found = {(row.start_us, row.trades) for row in spark.read.parquet(str(folder)).collect()}
        assert found >= {(begin_us + (10 * earlier + at) * MINUTE_US, 1) for earlier in range(run + 1) for at in (0, 1)}
    assert not list(tmp_path.glob("checkpoint*")), "how far it is stands with what it has written"


def _run(spark: SparkSession, options: Namespace, first_us: int) -> None:
    """Trades of one minute after the other: when one is there, those before it are over. One is from far off."""
    query = spark_job.start(spark, options, replace(ARCHIVE, every="0 seconds"))
    try:
        with comet.sync.Producer(options.bootstrap) as producer:
            for time_us in (FAR_US, *(first_us + minute * MINUTE_US for minute in range(5))):
                trade = Trade("ACME", 10.0, 100, "buy", time_us)
                producer.send(TRADES, trade, key="ACME")
                producer.flush()
                query.processAllAvailable()
    finally:
        query.stop()
