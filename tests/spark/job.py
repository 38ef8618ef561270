"""`python -m tests.spark.job --bootstrap A --checkpoint DIR`: two queries on a topic, as a process that can be killed.

    events ─► copies      each record once, as it is
           └► windows     how many there are per key and ten seconds, and their sum, once a window is over

The same for the same input, however often it is stopped. The second query is started when the first has begun, as
docs/spark.md says. It ends when a query does.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.conftest import SETTINGS

WINDOW_S = 10
LATE_S = 60  # more than the partitions of the input ever are apart
EVENT = "number bigint, key string"


def session(master: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("faults")
    # A window that is over is written without another record.
    settings = SETTINGS | {"spark.sql.streaming.noDataMicroBatches.enabled": "true"}
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.config("spark.executorEnv.PYTHONPATH", str(Path(__file__).parents[2])).getOrCreate()


def windows(events: DataFrame) -> DataFrame:
    span = f.window("timestamp", f"{WINDOW_S} seconds")
    found = events.withWatermark("timestamp", f"{LATE_S} seconds").groupBy(span, "value.key")
    counted = found.agg(f.count("*").alias("count"), f.sum("value.number").alias("sum"))
    start = f.col("window.start").cast("bigint").alias("start")
    return counted.select("key", f.to_json(f.struct("key", start, "count", "sum")).alias("value"))


def wait_begun(query: StreamingQuery) -> None:
    while query.status["message"].startswith("Initializing") and not query.awaitTermination(1):
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--master", default="local[2,4]")
    chosen = parser.parse_args()
    spark = session(chosen.master)
    spark.sparkContext.setLogLevel("ERROR")
    source = {"bootstrap": chosen.bootstrap, "subscribe": "events", "startingOffsets": "earliest"}
    plain = spark.readStream.format("comet").options(**source).load()
    typed = spark.readStream.format("comet").options(**source, schema=EVENT).load()
    for topic, frame in (("copies", plain.select("key", "value")), ("windows", windows(typed))):
        query = (
            frame.writeStream.format("comet")
            .options(bootstrap=chosen.bootstrap, topic=topic, checkpointLocation=str(chosen.checkpoint / topic))
            .trigger(processingTime="0 seconds")
            .outputMode("append")
            .queryName(topic)
            .start()
        )
        wait_begun(query)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
