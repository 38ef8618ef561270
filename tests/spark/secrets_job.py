"""`python -m tests.spark.secrets_job SETTINGS CHECKPOINTS`: queries with the options of each line of JSON on the
standard input; the answer to each is a line of JSON with its error. It ends at the end of its input."""

from __future__ import annotations

import json
import os
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from comet.spark import local


def error_of(spark: SparkSession, options: dict[str, str], checkpoint: str) -> str:
    """Writes, reads and streams a topic; the plans are printed. The error, or nothing."""
    try:
        rows = spark.range(4).selectExpr("cast(id as string) as key", "cast(id as string) as value")
        rows.write.format("comet").options(**options, topic="quotes").mode("append").save()
        quotes = spark.read.format("comet").options(**options, subscribe="quotes").load()
        quotes.createOrReplaceTempView("quotes")
        found = spark.sql("select count(*) as number from quotes")
        found.explain("extended")
        found.explain("formatted")
        assert found.collect()[0].number >= 4
        stream = spark.readStream.format("comet").options(**options, subscribe="quotes", startingOffsets="earliest")
        query = (
            stream.load()
            .select("key", "value")
            .writeStream.format("comet")
            .options(**options, topic="copies", checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        query.explain(extended=True)
        print(query.lastProgress, file=sys.stderr)
    except PySparkException as error:
        return str(error)
    return ""


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local-cluster[1,1,512]").appName("secrets")
    for name, value in json.loads(sys.argv[1]).items():
        builder = builder.config(name, value)
    with local.prepared():
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("DEBUG")
        context = spark.sparkContext
        print(json.dumps({"ui": context.uiWebUrl, "application": context.applicationId}), flush=True)
        for number, line in enumerate(sys.stdin):
            checkpoint = f"{sys.argv[2]}/{number}"
            print(json.dumps({"error": error_of(spark, json.loads(line), checkpoint)}), flush=True)
        local.close(spark)


if __name__ == "__main__":
    main()
