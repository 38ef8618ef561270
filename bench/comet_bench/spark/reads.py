"""The process of `comet bench spark` that has a Spark session and reads topics with it: a query for each order."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from comet_bench.link import Link, Work

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.python.unix.domain.socket.enabled": "true",
}
BYTES: Final = "value binary"
QUOTE: Final = "value struct<symbol: string, bid: double, ask: double>"
# By the name of what is measured: the source, the frame's columns (none: all that the source has), the query.
READS: Final[dict[str, tuple[str, str | None, str]]] = {
    "limit_arrow_count": ("comet_memory", BYTES, "bytes"),
    "read_arrow_count": ("comet", BYTES, "bytes"),
    "read_rows_count": ("comet_rows", BYTES, "bytes"),
    "read_arrow_whole": ("comet", None, "bytes"),
    "limit_typed_aggregate": ("comet_memory", QUOTE, "quotes"),
    "read_typed_aggregate": ("comet", QUOTE, "quotes"),
}


async def spark_reads(link: Link, config: Any) -> dict[str, Any]:
    """Answers orders until one says stop: {"read": NAME, "topic": …, "rows": …}."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="comet-bench-spark-"))
        session = await asyncio.to_thread(_session, stack, folder, config)
        state: dict[str, Any] = {"java": _java_version(session)}
        while "read" in (order := await link.next_order(**state)):
            frame = _frame(session, order, config)
            before = cpu_s()
            start = time.perf_counter()
            counted = await asyncio.to_thread(_count if READS[order["read"]][2] == "bytes" else _aggregate, frame)
            seconds = time.perf_counter() - start
            used = {kind: used_s - before.get(kind, 0.0) for kind, used_s in cpu_s().items()}
            state = {"seconds": seconds, "counted": counted, "cpu_s": used}
    return {}


def _session(stack: ExitStack, folder: str, config: Any) -> SparkSession:
    from pyspark.sql import SparkSession

    from comet.spark import local
    from comet_bench.spark.sources import Memory, RowsSource

    stack.enter_context(local.prepared())
    builder = SparkSession.builder.master(config["master"]).appName("comet bench")
    for name, value in (SETTINGS | config.get("settings", {})).items():
        builder = builder.config(name, value)
    session = builder.config("spark.sql.warehouse.dir", folder).getOrCreate()
    stack.callback(local.close, session)
    session.sparkContext.setLogLevel("OFF")
    for source in (Memory, RowsSource):
        session.dataSource.register(source)
    return session


def _java_version(session: SparkSession) -> str:
    java: Any = session.sparkContext._jvm
    return str(java.System.getProperty("java.version"))


def _frame(session: SparkSession, order: Any, config: Any) -> DataFrame:
    source, columns, values = READS[order["read"]]
    reader = session.read.format(source)
    if columns is not None:
        reader = reader.schema(columns)
    if source == "comet_memory":
        return reader.options(rows=order["rows"], partitions=config["partitions"], values=values).load()
    return reader.options(bootstrap=config["address"], subscribe=order["topic"]).load()


def _count(frame: DataFrame) -> int:
    """Counts with every value read."""
    row = frame.selectExpr("count(1)", "sum(octet_length(value))").first()
    assert row is not None and row[1]
    return int(row[0])


def _aggregate(frame: DataFrame) -> int:
    from pyspark.sql import functions as sql

    found = frame.groupBy("value.symbol").agg(sql.count("value"), sql.avg("value.bid"), sql.max("value.ask")).collect()
    assert all(row[2] is not None and row[3] is not None for row in found)
    return sum(row[1] for row in found)


def cpu_s(root: int | None = None) -> dict[str, float]:
    """CPU seconds of a process and its descendants, including ended ones, by Java and Python. Without `root`, those of
    this process's descendants only."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    top = os.getpid() if root is None else root
    children: dict[int, list[int]] = {}
    stats: dict[int, tuple[str, float]] = {}
    for pid, parent, name, ticks in _processes():
        children.setdefault(parent, []).append(pid)
        stats[pid] = (name, ticks * tick_s)
    found = {"java": 0.0, "python": 0.0}
    waiting = list(children.get(top, [])) if root is None else [top]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        name, used_s = stats.get(pid, ("", 0.0))
        found["java" if name == "java" else "python"] += used_s
    return found


def _processes() -> Iterator[tuple[int, int, str, int]]:
    """Id, parent, name and ticks of all processes; none without /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:  # it has ended
            continue
        fields = rest.split()
        yield int(folder.name), int(fields[1]), name, sum(map(int, fields[11:15]))


WORKS: Final[dict[str, Work]] = {"spark_reads": spark_reads}
