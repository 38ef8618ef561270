"""The Spark job: quotes and trades in, bars, statistics and alerts out, each as a query of its own.

    python -m comet_demo.analytics.spark_job --bootstrap HOST:PORT       a local Spark, in this process and a JVM
    spark-submit demo/comet_demo/analytics/spark_job.py --bootstrap …    any cluster, with the cluster's settings

    quotes ─┬─► bars.1s, bars.1m, bars.5m ─► quotes.bars.*     update mode: a bar is written again as it grows
    trades ─┼─► stats                     ─► quotes.stats
            ├─► alerts                    ─► quotes.alerts
            └─► archive                   ─► Parquet, in the folder of --parquet: closed minutes, by date
                    └─ of each query: quotes.job

`analytics` has the computations, `query_supervisor` restarts queries, `comet.spark.local` finds a Java.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self

import comet
from comet.processes.hang_watchdog import HangWatchdog
from comet.spark import local
from comet_demo.analytics.job_state import Job
from comet_demo.analytics.query_supervisor import Supervisor
from comet_demo.analytics.updates import Writers
from comet_demo.feed import ensure_topics
from comet_demo.model import ALERTS, BARS, JOB, STATS, TOPIC, TRADES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

TURN_EVERY_S: Final = 0.25
ALIVE_S: Final = 4.0  # between two status records of a starting job
ENSURE_S: Final = 2
CALM_S: Final = 3.0  # that batches get to end before their queries are stopped
JAVA_END_S: Final = 10
BACK_S: Final = 300
SETTLE_MS: Final = 30  # batches begin at the ends of windows, whose last ticks arrive a little later
ARCHIVE: Final = "archive"


@dataclass(frozen=True, slots=True)
class Plan:
    """One query: its computation, interval and target."""

    name: str
    window: str
    window_s: float
    mode: str
    every: str  # in Spark's form; batches begin at multiples of it
    topic: str | None
    frame: Callable[[Inputs, str], DataFrame]


class Inputs:
    """The two streams of one query; its progress is committed to a group."""

    def __init__(self, session: SparkSession, options: argparse.Namespace, query: str, window_s: float) -> None:
        self._session = session
        self._options = options
        self._query = query
        self._window_s = window_s

    @cached_property
    def ticks(self) -> DataFrame:
        """Quotes and trades in one stream: two sources would double all costs."""
        from comet_demo.analytics import TICK, timely

        # Only the columns that bars need: each costs time at hundreds of thousands of rows a second.
        columns = f"value struct<{TICK}>, partition int, offset bigint, append_time timestamp"
        return timely(self._stream(f"{TOPIC},{TRADES}").schema(columns).load())

    @cached_property
    def quotes(self) -> DataFrame:
        from comet_demo.analytics import quotes_of, timely

        return quotes_of(timely(self._stream(TOPIC).option("schema", "comet_demo.model:Quote").load()))

    @cached_property
    def trades(self) -> DataFrame:
        from comet_demo.analytics import timely, trades_of

        return trades_of(timely(self._stream(TRADES).option("schema", "comet_demo.model:Trade").load()))

    def _stream(self, topics: str) -> DataStreamReader:
        options = self._options
        stream = (
            self._session.readStream.format("comet")
            .option("bootstrap", options.bootstrap)
            .option("subscribe", topics)
            .option("includeAppendTime", "true")
            .option("mode", "permissive")  # a record that is not a quote is left out instead of failing the stream
            .option("group", f"spark.{self._query}")
            .option("settleMs", SETTLE_MS)
            .option("startingTimestamp", str(begin_ms(time.time() - options.back, self._window_s)))
            # Retention is an hour: a job that was stopped for longer continues with the oldest records left.
            .option("failOnDataLoss", "false")
        )
        if options.parallelism:  # a task for each partition costs more than the few records in it
            stream = stream.option("maxPartitions", options.parallelism)
        if options.per_batch:
            stream = stream.option("maxOffsetsPerTrigger", options.per_batch)
        return stream


def begin_ms(time_s: float, window_s: float) -> int:
    """The start of the window of this time, so that the first window is read from its start and is complete."""
    return int(time_s - time_s % window_s if window_s else time_s) * 1000


def _bars(inputs: Inputs, window: str) -> DataFrame:
    from comet_demo.analytics import bars_of

    return bars_of(inputs.ticks, window)


def _stats(inputs: Inputs, window: str) -> DataFrame:
    from comet_demo.analytics import stats

    return stats(inputs.trades, window)


def _alerts(inputs: Inputs, _window: str) -> DataFrame:
    from comet_demo.analytics import alerts

    return alerts(inputs.quotes, inputs.trades)


def _closed(inputs: Inputs, window: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - the usual name

    from comet_demo.analytics import bars_of

    closed = bars_of(inputs.ticks, window, watermark="10 seconds")
    return closed.withColumn("date", F.to_date(F.timestamp_micros("start_us"))).coalesce(1)  # one file a batch


# Bars of a second must be displayed soon; the others change slowly.
PLANS: Final = (
    Plan("bars.1s", "1 second", 1, "update", "250 milliseconds", BARS["1s"], _bars),
    Plan("bars.1m", "1 minute", 60, "update", "5 seconds", BARS["1m"], _bars),
    Plan("stats", "1 minute", 60, "append", "5 seconds", STATS, _stats),
    Plan("alerts", "", 0, "append", "5 seconds", ALERTS, _alerts),
    Plan("bars.5m", "5 minutes", 300, "update", "10 seconds", BARS["5m"], _bars),
    Plan(ARCHIVE, "1 minute", 60, "append", "1 minute", None, _closed),
)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="comet_demo.analytics.spark_job", description="Analytics of the quotes, with Spark."
    )
    names = ",".join(plan.name for plan in PLANS)
    parser.add_argument("--bootstrap", default="localhost:9092", metavar="HOST:PORT")
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="where queries store their progress; without it they restart from scratch"
    )
    parser.add_argument("--parquet", metavar="DIR", help="also write one-minute bars here, permanently")
    parser.add_argument("--queries", default=names, help=f"of {names}")
    parser.add_argument("--trigger", metavar="INTERVAL", help='interval of bars.1s; default: "250 milliseconds"')
    parser.add_argument(
        "--back", type=float, default=BACK_S, metavar="SECONDS", help="time before now at which a new query begins"
    )
    parser.add_argument("--per-batch", type=int, metavar="N", help="the most records of each topic in a batch")
    parser.add_argument("--master", help="Spark's master; spark-submit sets its own. [local[*]]")
    parser.add_argument("--memory", default="768m", help="memory of a local JVM")
    parser.add_argument(
        "--java", default=local.QUICK_START, metavar="OPTIONS", help="options of a local JVM [%(default)s]"
    )
    parser.add_argument(
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


def main(given: list[str] | None = None) -> None:
    """Runs until a signal ends it."""
    options = arguments(given)
    # A JVM is started by a fork. gRPC's fork handlers sometimes kill the child, and are not needed here.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    hush_py4j()
    stopping = threading.Event()
    session_up = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        stopping.set()
        if not session_up.is_set():  # no query runs yet
            raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    plans = [plan for plan in PLANS if plan.name in options.queries and (plan.topic or options.parquet)]
    jobs = [Job(plan.name, plan.window_s, plan.mode, doing="Java and Spark") for plan in plans]
    with ExitStack() as stack:
        comet.run(ensure_topics(options.bootstrap))
        writer = stack.enter_context(StatusWriter(options.bootstrap))
        with _reporting(writer, jobs):
            session = stack.enter_context(_session(options))
        session_up.set()
        signal.signal(signal.SIGINT, end)  # Spark has replaced the handler
        if not options.checkpoint:
            options.checkpoint = stack.enter_context(tempfile.TemporaryDirectory(prefix="comet-spark-"))
        starts = {plan.name: plan for plan in plans}
        writers = Writers(options.bootstrap)
        supervisor = Supervisor(jobs, lambda name: start(session, options, starts[name], writers), writer.report)
        silence = stack.enter_context(HangWatchdog(_kill_of(_java_of(session))))
        try:
            while not stopping.wait(TURN_EVERY_S):
                supervisor.turn(_now_us())
                _check(session, jobs, stopping)
                silence.answered()
        finally:
            _end(supervisor)
            writers.close()


def hush_py4j() -> None:
    """Silences py4j's log. If a JVM dies during a call, py4j raises an error and also logs it with two tracebacks;
    the caller's report is enough."""
    logging.getLogger().addFilter(_not_of_py4j)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


@contextmanager
def _reporting(writer: StatusWriter, jobs: Sequence[Job]) -> Iterator[None]:
    """Reports in a thread that the job is starting, while its main thread waits for a JVM."""
    up = threading.Event()

    def report() -> None:
        while not up.is_set():
            for job in jobs:
                writer.report(job.record(_now_us()))
            up.wait(ALIVE_S)

    thread = threading.Thread(target=report, name="telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        up.set()
        thread.join()


def _check(session: SparkSession, jobs: Sequence[Job], stopping: threading.Event) -> None:
    """Raises Unavailable if no query can run again, so that the launcher restarts the job."""
    if not any(job.state == "failed" for job in jobs):
        return
    try:
        java: Any = session.sparkContext._jsc
        why = "Spark has stopped" if java.sc().isStopped() else ""
    except Exception as error:  # noqa: BLE001 - any error means that Spark does not answer
        why = f"Spark's JVM does not answer: {error}"
    if why and not stopping.is_set():  # one Ctrl-C may reach both
        raise comet.Unavailable(why)


def _end(supervisor: Supervisor) -> None:
    """Stops queries between batches if one ends soon, else during a batch, which is repeated from the checkpoint."""
    until = time.monotonic() + CALM_S
    while not supervisor.end(_now_us(), force=time.monotonic() > until):
        time.sleep(0.02)


def _now_us() -> int:
    return time.time_ns() // 1000


def start(session: SparkSession, options: argparse.Namespace, plan: Plan, writers: Writers) -> StreamingQuery:
    """Starts a query, from its checkpoint if it has one."""
    with suppress(comet.CometError, TimeoutError):  # the query itself waits for an unavailable broker
        comet.run(asyncio.wait_for(ensure_topics(options.bootstrap), ENSURE_S))  # they may have been deleted
    frame = plan.frame(Inputs(session, options, plan.name, plan.window_s), plan.window)
    every = options.trigger if plan.name == "bars.1s" and options.trigger else plan.every
    checkpoint = below(options.checkpoint, plan.name)
    if plan.topic is None:
        # Spark records the numbers of written batches in the folder, and skips these. A new checkpoint counts from 0,
        # and would write nothing until it exceeds the old numbers.
        checkpoint = below(options.parquet, "_checkpoint")
        writer = frame.writeStream.format("parquet").option("path", options.parquet).partitionBy("date")
    elif plan.mode == "update":
        # Spark's Python sinks support no update mode, but foreachBatch does. Batches are small: the changed windows of
        # each symbol.
        writer = _records(frame).writeStream.foreachBatch(writers.of(plan.name, plan.topic).write)
    else:
        writer = _to(_records(frame).writeStream.format("comet"), options.bootstrap, plan.topic)
    writer = writer.option("checkpointLocation", checkpoint)
    return writer.queryName(plan.name).outputMode(plan.mode).trigger(processingTime=every).start()


def below(folder: str, name: str) -> str:
    """The folder is any that Spark can write to, such as s3a://bucket/quotes, so it is not a Path."""
    return f"{folder.rstrip('/')}/{name}"


def _records(frame: DataFrame) -> DataFrame:
    from comet_demo.analytics import as_records

    return as_records(frame)


def _to(writer: Any, bootstrap: str, topic: str) -> Any:
    return writer.option("bootstrap", bootstrap).option("topic", topic)


@contextmanager
def _session(options: argparse.Namespace) -> Iterator[SparkSession]:
    """A session on its own JVM, or the session of `spark-submit`."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    with ExitStack() as stack:
        if not submitted:
            stack.enter_context(local.prepared())
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName("comet quotes")
        master = options.master or (None if submitted else "local[*]")
        if master is not None:
            builder = builder.master(master)
        on_this_machine = not submitted and str(master).startswith("local[")
        parallelism = options.parallelism or os.cpu_count() or 1
        for name, value in local.settings(
            memory=options.memory, parallelism=parallelism, local=on_this_machine, java=options.java
        ).items():
            builder = builder.config(name, value)
        if options.parallelism:
            builder = builder.config("spark.sql.shuffle.partitions", str(options.parallelism))
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            _close(session)


def _close(session: SparkSession) -> None:
    """Ends the session, and its JVM unless spark-submit started it."""
    java = _java_of(session)
    gateway: Any = session.sparkContext._gateway
    with suppress(Exception), HangWatchdog(_kill_of(java), checks=JAVA_END_S):  # an ended JVM does not answer
        session.stop()
    if java is None:
        return
    with suppress(Exception):
        gateway.shutdown()
    java.stdin.close()  # ends the JVM
    try:
        java.wait(JAVA_END_S)
    except Exception:  # noqa: BLE001 - it did not end in time
        java.kill()


def _java_of(session: SparkSession) -> Any:
    """The process of the session's JVM; None if spark-submit started it."""
    gateway: Any = session.sparkContext._gateway
    return None if gateway is None else gateway.proc


def _kill_of(java: Any) -> Callable[[], object] | None:
    kill: Callable[[], object] | None = None if java is None else java.kill
    return kill


class StatusWriter:
    """Writes the states of queries. Never waits: without a broker no client can read them."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = comet.sync.Producer(bootstrap, name="spark", timeout_ms=5_000)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(comet.CometError):
            self._producer.close()

    def report(self, record: dict[str, Any]) -> None:
        with suppress(comet.CometError):
            self._producer.send(JOB, record, key=record["query"])


if __name__ == "__main__":
    try:
        main()
    except comet.CometError as error:
        raise SystemExit(f"comet_demo.analytics.spark_job: {error}") from None
