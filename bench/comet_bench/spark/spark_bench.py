"""`comet bench spark`: the speed of Spark's reads from topics, and the latency of its stream.

    limit_arrow_count       values of 100 bytes, repeated from memory: a source without cost
    read_arrow_count        a topic of the same values, batches as they are stored
    read_rows_count         the same topic, each record as a tuple
    read_arrow_whole        the same topic with all columns that the source has
    limit_typed_aggregate   typed quotes from memory, an aggregate for each symbol
    read_typed_aggregate    a topic of quotes as JSON, of which the source takes the fields of the aggregate
    stream_bars             a feed, the demo's job with its bars of a second, and a WebSocket that watches them

Reads of the same records are run in turn, after a run that does not count: a JVM needs a while to warm up.
The figures are explained in docs/performance.md.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from comet_bench.broker.broker_bench import broker_use, delete_topics, written
from comet_bench.gateway.servers import start_gateway
from comet_bench.harness import Progress, Report, Subjects, Suite, alone, compared, run_compared
from comet_bench.processes import RUN_TIMEOUT_S, BenchFailed, Broker, Worker, own_broker, served
from comet_bench.report import Result
from comet_bench.spark.reads import READS, cpu_s
from comet_bench.spark.stream import RECORD_BYTES, SECOND_US, quote_values

PARTITIONS: Final = 4
QUERY: Final = "bars.1s"
SESSION_S_MAX: Final = 120.0
UP_S_MAX: Final = 120.0
DRAIN_S_MAX: Final = 60.0
LAG_MS: Final = 3_000  # with a lower lag, a stream is up
POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class SparkSizes:
    """The amount of work of a run."""

    records: int
    typed_records: int
    rate: int  # quotes a second
    symbols: int
    warm_s: float  # of the stream, from its first bar
    stream_s: int
    runs: int
    master: str = "local[*]"
    trigger: str = "250 milliseconds"
    job_java: str = ""  # options of the job's Java; empty: those of the demo
    memory: str = "2g"
    java: str = ""  # options of the session's Java
    warming: bool = True  # a run of each read that does not count


FULL: Final = SparkSizes(
    10_000_000, 4_000_000, 200_000, 100, 60.0, 30, runs=3,
    trigger="500 milliseconds", job_java="-XX:+UseSerialGC",
)  # fmt: skip
QUICK: Final = SparkSizes(2_000_000, 1_000_000, 50_000, 100, 5.0, 10, runs=1)


class SparkBench:
    """A broker and, while subjects read, a session, for all of them: it takes long to start."""

    def __init__(self, sizes: SparkSizes, broker: Broker, folder: Path | None, stack: ExitStack) -> None:
        self.sizes = sizes
        self.broker = broker
        self.folder = folder
        self._stack = stack
        self._session: Worker | None = None

    def worker(self, name: str, **config: Any) -> Worker:
        return Worker(name, address=self.broker.address, **config)

    @contextmanager
    def full_topic(self, values: str, records: int) -> Iterator[str]:
        topic = f"bench-{uuid.uuid4().hex[:12]}"
        asyncio.run(_create(self.broker.address, topic))
        config = {"topic": topic, "values": values, "records": records, "partitions": PARTITIONS}
        with self.worker("spark_fill", **config) as filler:
            filler.ready()
            filler.go()
            filler.done()
        yield topic
        asyncio.run(delete_topics([self.broker.address], [topic]))

    @property
    def session(self) -> Worker:
        if self._session is None:
            settings = {"spark.driver.memory": self.sizes.memory}
            if self.sizes.java:
                settings["spark.driver.extraJavaOptions"] = self.sizes.java
            config = {"master": self.sizes.master, "settings": settings, "partitions": PARTITIONS}
            self._session = self._stack.enter_context(self.worker("spark_reads", **config))
            self._session.receive("ready", SESSION_S_MAX)
        return self._session

    def end_session(self) -> None:
        """Ends the session, so that the next subject has the machine for itself."""
        if self._session is not None:
            self._session.go(stop=True)
            self._session.done()
            self._session = None


async def _create(address: str, topic: str) -> None:
    import comet

    async with comet.Admin(address) as admin:
        await admin.create_topic(topic, partitions=PARTITIONS)


# ---- reads


def _read(bench: SparkBench, name: str, topic: str, records: int, size: float) -> Result:
    session = bench.session
    with broker_use(bench.broker) as used:
        session.go(read=name, topic=topic, rows=records)
        done = session.receive("ready", RUN_TIMEOUT_S)
        if done["counted"] != records:
            raise BenchFailed(f"{name} has read {done['counted']:,} records of {records:,}")
        broker = used()
    millions = records / 1e6
    speed = {"records_per_s": records / done["seconds"], "bytes_per_s": records * size / done["seconds"]}
    spent = {"java_cpu_s": done["cpu_s"]["java"] / millions, "python_cpu_s": done["cpu_s"]["python"] / millions}
    return speed | spent | (broker if not name.startswith("limit_") else {})


def _reads(names: Sequence[str], values: str, records: Callable[[SparkSizes], int]) -> Any:
    """Runs in turn; the `share` of each is of the one before it."""

    def run(bench: SparkBench, report: Report) -> list[list[Result]]:
        count = records(bench.sizes)
        size = RECORD_BYTES if values == "bytes" else statistics.mean(map(len, quote_values(1_000)))
        runs: list[list[Result]] = [[] for _ in names]
        with bench.full_topic(values, count) as topic:
            for name in names if bench.sizes.warming else ():
                _read(bench, name, topic, count, size)
            for number in range(1, bench.sizes.runs + 1):
                for which, name in enumerate(names):
                    found = report(which, number, lambda name=name: _read(bench, name, topic, count, size))  # type: ignore[misc]
                    if which:
                        found = found | {"share": found["records_per_s"] / runs[which - 1][-1]["records_per_s"]}
                    runs[which].append(found)
        return runs

    return run


# ---- the stream


class _Stream:
    """The processes of one run, in the order of the data flow."""

    def __init__(self, bench: SparkBench, stack: ExitStack) -> None:
        from comet_demo import model

        self.sizes = bench.sizes
        address = bench.broker.address
        asyncio.run(model.ensure_topics(address))
        self._topic, self._address = model.TOPIC, address
        self._before = asyncio.run(written(address, model.TOPIC))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="comet-bench-spark-", dir=bench.folder))
        self.gateway = stack.enter_context(start_gateway(address))
        watch = {"bars": model.BARS["1s"], "job": model.JOB, **self.gateway.at}
        self.watch = stack.enter_context(bench.worker("bars_watch", **watch))
        quotes = {"topic": model.TOPIC, "partitions": PARTITIONS, "rate": self.sizes.rate}
        self.feed = stack.enter_context(bench.worker("quotes_feed", symbols=self.sizes.symbols, **quotes))
        self.watch.ready()
        self.feed.ready()
        settings = {
            "bootstrap": address, "queries": QUERY, "back": "0", "checkpoint": folder, "master": self.sizes.master,
            "trigger": self.sizes.trigger, "memory": self.sizes.memory, "parallelism": 1,
        }  # fmt: skip
        if self.sizes.job_java:
            settings["java"] = self.sizes.job_java
        words = [f"--{name}={value}" for name, value in settings.items()]
        self.job = stack.enter_context(served("the Spark job", "comet_demo.analytics.spark_job", *words))

    def state(self, *between: int) -> dict[str, Any]:
        self.watch.go(between=between)
        state = self.watch.ready()
        code = self.job.ended
        if code is not None or state["state"] == "failed":
            raise BenchFailed(f"the Spark job has ended with {code}: {state['problem']}")
        return state

    def wait(self, there: Callable[[dict[str, Any]], bool], seconds: float, what: str, *between: int) -> bool:
        deadline = time.monotonic() + seconds
        while not there(state := self.state(*between)):
            if time.monotonic() > deadline:
                if what:
                    raise BenchFailed(f"after {seconds:.0f} s {what}: {state}")
                return False
            time.sleep(POLL_S)
        return True

    def lag_ms(self) -> float:
        return float(self.state()["lag_us"]) / 1e3

    def written(self) -> int:
        """The number of this run's quotes in the topic: the feed does not wait for acknowledgements."""
        return asyncio.run(written(self._address, self._topic)) - self._before


def stream_bars(bench: SparkBench) -> Result:
    """Measures windows that begin after the job is up, and end before the feed does."""
    sizes = bench.sizes
    bench.end_session()
    with ExitStack() as stack:
        stream = _Stream(bench, stack)
        stream.feed.go()
        stream.feed.ready()
        stream.wait(lambda state: state["bars"] > 0, UP_S_MAX, "no bar was written")
        time.sleep(sizes.warm_s)
        stream.wait(
            lambda state: state["lag_us"] is not None and state["lag_us"] < LAG_MS * 1e3,
            UP_S_MAX, "the job has not caught up",
        )  # fmt: skip
        with broker_use(bench.broker) as used:
            before = cpu_s(stream.job.pid)
            first_us = (time.time_ns() // 1000 // SECOND_US + 1) * SECOND_US
            end_us = first_us + sizes.stream_s * SECOND_US
            _sleep_until(first_us + (end_us - first_us) // 2)
            lag_half_ms = stream.lag_ms()
            _sleep_until(end_us)
            lag_ms = stream.lag_ms()
            spent = {kind: used_s - before[kind] for kind, used_s in cpu_s(stream.job.pid).items()}
            broker = used()
        stream.feed.go()
        fed = stream.feed.done()["sent"]
        unwritten = sum(fed.values()) - stream.written()
        sent = sum(count for second, count in fed.items() if first_us <= int(second) < end_us)
        stream.wait(lambda state: state["quotes"] >= sent, DRAIN_S_MAX, "", first_us, end_us)
        stream.watch.go(end=[first_us, end_us])
        seen = stream.watch.done()
    delays, millions = seen["delays_ms"], sent / 1e6
    seconds = max(seen["last_us"] - first_us, SECOND_US) / 1e6
    return broker | {
        "records_per_s": seen["quotes"] / seconds,
        "java_cpu_s": spent["java"] / millions,
        "python_cpu_s": spent["python"] / millions,
        "delay_p50_ms": delays[len(delays) // 2],
        "delay_p95_ms": delays[len(delays) * 95 // 100],
        "lag_half_ms": lag_half_ms,
        "lag_ms": lag_ms,
        "requested_per_s": sizes.rate,
        "symbols": sizes.symbols,
        "lost": sent - seen["quotes"],
        "unwritten": unwritten,
    }


def _sleep_until(time_us: int) -> None:
    time.sleep(max(time_us / 1e6 - time.time(), 0))


# ---- all subjects

_BYTES: Final = tuple(name for name, read in READS.items() if read[2] == "bytes")
_TYPED: Final = tuple(name for name, read in READS.items() if read[2] == "quotes")
_SUBJECTS: Final[Subjects[SparkBench]] = {
    _BYTES: _reads(_BYTES, "bytes", lambda sizes: sizes.records),
    _TYPED: _reads(_TYPED, "quotes", lambda sizes: sizes.typed_records),
    ("stream_bars",): alone(stream_bars),
}
COMPARED: Final = compared(_SUBJECTS)
ABOUT: Final = {
    "limit_arrow_count": "values of 100 bytes from memory, looked at by Spark",
    "read_arrow_count": "a topic of them",
    "read_rows_count": "the same, each record as a tuple",
    "read_arrow_whole": "the same with all columns of the source",
    "limit_typed_aggregate": "three fields of quotes from memory, an aggregate by symbol",
    "read_typed_aggregate": "a topic of quotes as JSON, the same aggregate",
    "stream_bars": "from a feed through the demo's job to a WebSocket, bars of a second",
}


def describe(sizes: SparkSizes) -> dict[str, Any]:
    """Further facts that a reader needs to judge these figures."""
    from comet.spark import local

    java = local.find_java(local.JavaLocations.of_this_machine())
    return {
        **{package: importlib.metadata.version(package) for package in ("pyspark", "pyarrow")},
        "java": java.version,
        "spark_master": sizes.master,
        "spark_memory": sizes.memory,
        "spark_trigger": sizes.trigger,
        "spark_job_java": sizes.job_java or local.QUICK_START,
    }


def run_spark(names: Sequence[str], sizes: SparkSizes, *, folder: Path | None, progress: Progress) -> dict[str, Result]:
    """Results by name; those that are compared with each other come together."""
    with own_broker(folder) as broker, ExitStack() as stack:
        bench = SparkBench(sizes, broker, folder, stack)
        return run_compared(_SUBJECTS, names, lambda _subject: nullcontext(bench), progress)


def _run(
    names: Sequence[str], sizes: SparkSizes, *, address: str | None, folder: Path | None, progress: Progress
) -> dict[str, Result]:
    assert address is None
    return run_spark(names, sizes, folder=folder, progress=progress)


SUITE: Final = Suite(ABOUT, FULL, QUICK, _run, starts_brokers=True, facts=describe)
