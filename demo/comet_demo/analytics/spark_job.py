"""The Spark job: quotes and trades in, bars, statistics and alerts out, each as a query of its own.

    python -m comet_demo.analytics.spark_job --bootstrap HOST:PORT       a local Spark, in this process and a JVM
    spark-submit demo/comet_demo/analytics/spark_job.py --bootstrap …    any cluster, with the cluster's settings

    quotes ─┬─► bars.1s, bars.1m, bars.5m ─► quotes.bars.*     update mode: a bar is written again as it grows
    trades ─┼─► stats                     ─► quotes.stats
            ├─► alerts                    ─► quotes.alerts
            └─► archive                   ─► Parquet, in the folder of --parquet: closed minutes, by date
                    └─ of each query: quotes.job

`analytics` has the computations. The session, the restarts of queries and the writer of bars are of `comet.spark`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from types import FrameType
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

import comet
from comet.processes.program import run
from comet.spark import local
from comet.spark.query_reports import reporting
from comet.spark.query_supervisor import QuerySupervisor
from comet.spark.update_writer import UpdateWriter
from comet_demo.analytics import (
    TICK,
    MarketClosures,
    alerts,
    as_records,
    bars_of,
    quotes_of,
    stats,
    timely,
    trades_of,
)
from comet_demo.model import ALERTS, BARS, JOB, STATS, TOPIC, TRADES, ensure_topics

ENSURE_S: Final = 2
BACK_S: Final = 300
SETTLE_MS: Final = 30  # batches begin at the ends of windows, whose last ticks arrive a little later
ARCHIVE: Final = "archive"


@dataclass(frozen=True, slots=True)
class Plan:
    """One query: its computation, interval and target."""

    name: str
    window_s: int
    mode: str
    every: str  # in Spark's form; batches begin at multiples of it
    topic: str  # empty: files
    frame: Callable[[Inputs], DataFrame]


class Inputs:
    """What one query reads: two streams, whose progress is committed to a group, and the hours of the market."""

    def __init__(self, session: SparkSession, options: argparse.Namespace, plan: Plan) -> None:
        self._session = session
        self._options = options
        self._plan = plan

    @cached_property
    def ticks(self) -> DataFrame:
        """Quotes and trades in one stream: two sources would double all costs."""
        # Only the columns that bars need: each costs time at hundreds of thousands of rows a second.
        columns = f"value struct<{TICK}>, partition int, offset bigint, append_time timestamp"
        return timely(self._stream(f"{TOPIC},{TRADES}").schema(columns).load())

    @cached_property
    def quotes(self) -> DataFrame:
        return quotes_of(timely(self._stream(TOPIC).option("schema", "comet_demo.model:Quote").load()))

    @cached_property
    def trades(self) -> DataFrame:
        return trades_of(timely(self._stream(TRADES).option("schema", "comet_demo.model:Trade").load()))

    @cached_property
    def closures(self) -> MarketClosures:
        return MarketClosures(self._options.bootstrap)

    def _stream(self, topics: str) -> DataStreamReader:
        options, plan = self._options, self._plan
        stream = self._session.readStream.format("comet").options(
            bootstrap=options.bootstrap,
            subscribe=topics,
            includeAppendTime=True,
            mode="permissive",  # a record that is not a quote is left out instead of failing the stream
            group=f"spark.{plan.name}",
            settleMs=SETTLE_MS,
            startingTimestamp=begin_ms(time.time() - options.back, plan.window_s),
            # Retention is an hour: a job that was stopped for longer continues with the oldest records left.
            failOnDataLoss=False,
        )
        if options.parallelism:  # a task for each partition costs more than the few records in it
            stream = stream.option("maxPartitions", options.parallelism)
        if options.per_batch:
            stream = stream.option("maxOffsetsPerTrigger", options.per_batch)
        return stream


def begin_ms(time_s: float, window_s: float) -> int:
    """The start of the window of this time, so that the first window is read from its start and is complete."""
    return int(time_s - time_s % window_s if window_s else time_s) * 1000


def _closed(inputs: Inputs) -> DataFrame:
    """Bars of closed minutes, by date."""
    closed = bars_of(inputs.ticks, 60, watermark_s=10)
    return closed.withColumn("date", sql.to_date(sql.timestamp_micros("start_us"))).coalesce(1)  # one file a batch


def _alerts(inputs: Inputs) -> DataFrame:
    return alerts(inputs.quotes, inputs.trades, closures=inputs.closures)


# Bars of a second must be displayed soon; the others change slowly.
PLANS: Final = (
    Plan("bars.1s", 1, "update", "250 milliseconds", BARS["1s"], lambda inputs: bars_of(inputs.ticks, 1)),
    Plan("bars.1m", 60, "update", "5 seconds", BARS["1m"], lambda inputs: bars_of(inputs.ticks, 60)),
    Plan("stats", 60, "append", "5 seconds", STATS, lambda inputs: stats(inputs.trades, 60)),
    Plan("alerts", 0, "append", "5 seconds", ALERTS, _alerts),
    Plan("bars.5m", 300, "update", "10 seconds", BARS["5m"], lambda inputs: bars_of(inputs.ticks, 300)),
    Plan(ARCHIVE, 60, "append", "1 minute", "", _closed),
)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="comet_demo.analytics.spark_job", description="Analytics of the quotes, with Spark."
    )
    add = parser.add_argument
    names = ",".join(plan.name for plan in PLANS)
    add("--bootstrap", default="localhost:9092", metavar="HOST:PORT")
    add("--checkpoint", metavar="DIR", help="where queries store their progress; without it they restart from scratch")
    add("--parquet", metavar="DIR", help="also write one-minute bars here, permanently")
    add("--queries", default=names, help=f"of {names}")
    add("--trigger", metavar="INTERVAL", help='interval of bars.1s; default: "250 milliseconds"')
    add("--back", type=float, default=BACK_S, metavar="SECONDS", help="time before now at which a new query begins")
    add("--per-batch", type=int, metavar="N", help="the most records of each topic in a batch")
    add("--master", help="Spark's master; spark-submit sets its own. [local[*]]")
    add("--memory", default="768m", help="memory of a local JVM")
    add("--java", default=local.QUICK_START, metavar="OPTIONS", help="options of a local JVM [%(default)s]")
    add(
        "--parallelism",
        type=int,
        default=0,
        metavar="N",
        help="tasks that read and that aggregate; 0: as many as partitions, and cores",
    )
    options = parser.parse_args(given)
    options.queries = [name for name in options.queries.split(",") if name]
    strangers = sorted(set(options.queries) - {plan.name for plan in PLANS})
    if strangers or not options.queries:
        parser.error(f"unknown query {strangers[0]!r}; use {names}" if strangers else "give at least one query")
    return options


def main() -> None:
    """Runs until a signal ends it."""
    options = arguments()
    # A JVM is started by a fork. gRPC's fork handlers sometimes kill the child, and are not needed here.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    stopping = threading.Event()
    session: SparkSession | None = None

    def end(_number: int, _frame: FrameType | None) -> None:
        stopping.set()
        if session is None:  # no query runs yet
            raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    plans = {plan.name: plan for plan in PLANS if plan.name in options.queries and (plan.topic or options.parquet)}
    with ExitStack() as stack:
        comet.run(ensure_topics(options.bootstrap))
        report = stack.enter_context(reporting(options.bootstrap, JOB))
        writers = {
            name: stack.enter_context(UpdateWriter(options.bootstrap, plan.topic))
            for name, plan in plans.items()
            if plan.mode == "update"
        }

        def start_query(name: str) -> StreamingQuery:
            assert session is not None
            return start(session, options, plans[name], writers.get(name))

        details = {plan.name: {"window_s": plan.window_s, "mode": plan.mode} for plan in plans.values()}
        supervisor = QuerySupervisor(details, start_query, report)
        with supervisor.starting("Java and Spark"):
            session = stack.enter_context(
                local.session(
                    "comet quotes",
                    master=options.master,
                    memory=options.memory,
                    parallelism=options.parallelism,
                    java=options.java,
                )
            )
        signal.signal(signal.SIGINT, end)  # Spark has replaced the handler
        if not options.checkpoint:
            options.checkpoint = stack.enter_context(tempfile.TemporaryDirectory(prefix="comet-spark-"))
        supervisor.run(session, stopping)


def start(
    session: SparkSession, options: argparse.Namespace, plan: Plan, updates: UpdateWriter | None = None
) -> StreamingQuery:
    """Starts a query, from its checkpoint if it has one. `updates` writes those of update mode."""
    with suppress(comet.CometError, TimeoutError):  # the query itself waits for an unavailable broker
        comet.run(asyncio.wait_for(ensure_topics(options.bootstrap), ENSURE_S))  # they may have been deleted
    frame = plan.frame(Inputs(session, options, plan))
    every = options.trigger if plan.name == "bars.1s" and options.trigger else plan.every
    checkpoint = below(options.checkpoint, plan.name)
    if not plan.topic:
        # Spark records the numbers of written batches in the folder, and skips these. A new checkpoint counts from 0,
        # and would write nothing until it exceeds the old numbers.
        checkpoint = below(options.parquet, "_checkpoint")
        writer = frame.writeStream.format("parquet").option("path", options.parquet).partitionBy("date")
    elif updates is not None:
        writer = as_records(frame).writeStream.foreachBatch(updates.write)
    else:
        sink = {"bootstrap": options.bootstrap, "topic": plan.topic}
        writer = as_records(frame).writeStream.format("comet").options(**sink)
    writer = writer.option("checkpointLocation", checkpoint)
    return writer.queryName(plan.name).outputMode(plan.mode).trigger(processingTime=every).start()


def below(folder: str, name: str) -> str:
    """The folder is any that Spark can write to, such as s3a://bucket/quotes, so it is not a Path."""
    return f"{folder.rstrip('/')}/{name}"


if __name__ == "__main__":
    run("comet_demo.analytics.spark_job", main)
