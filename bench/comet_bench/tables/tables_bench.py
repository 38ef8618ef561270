"""`comet bench tables`: filters at the broker, compaction, and the key-value view.

Compared rows are measured in turn at one broker, on the same topic. The figures are explained in docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from comet_bench.broker.broker_bench import RECORD_BYTES, broker_use, delete_topics, end_to_end, paced_config
from comet_bench.harness import Progress, Report, Subjects, Suite, alone, compared, run_compared
from comet_bench.processes import RUN_TIMEOUT_S, BenchFailed, Broker, Worker, given_broker, own_broker
from comet_bench.report import Result

RATE: Final = 1_000  # records a second of the latencies
EVERY: Final = 1_000  # one record of 1,000 matches the filter
FILTER: Final = 'symbol = "ACME"'
SCANS: Final = 10
TASKS: Final = 16  # that call the key-value view at once
POLL_S: Final = 0.2
SEGMENTS: Final = 16  # of a topic that is compacted, all but the last one of them
CHECK_MS: Final = 500  # between two looks whether a topic is to be compacted


@dataclass(frozen=True, slots=True)
class TableSizes:
    """The amount of work of a run."""

    scanned_records: int
    compacted_records: int
    keys: int
    paced_s: float
    calls: int
    runs: int
    pairs: int


FULL: Final = TableSizes(10_000_000, 8_000_000, keys=800_000, paced_s=10.0, calls=100_000, runs=3, pairs=3)
QUICK: Final = TableSizes(1_000_000, 500_000, keys=50_000, paced_s=2.0, calls=20_000, runs=1, pairs=1)


@dataclass(slots=True)
class TablesBench:
    """One subject's surroundings. Topics are deleted at its end."""

    sizes: TableSizes
    broker: Broker
    topics: list[str] = field(default_factory=list)

    def topic(self, **settings: Any) -> str:
        name = f"bench-{uuid.uuid4().hex[:12]}"
        asyncio.run(_create(self.broker.address, name, settings))
        self.topics.append(name)
        return name

    def client(self, name: str, topic: str, **config: Any) -> Worker:
        return Worker(name, address=self.broker.address, topic=topic, record_bytes=RECORD_BYTES, **config)

    def done(self, name: str, topic: str, **config: Any) -> tuple[dict[str, Any], Result]:
        """What a client measures, and the broker's use meanwhile."""
        with self.client(name, topic, **config) as worker:
            worker.ready()
            with broker_use(self.broker) as used:
                worker.go()
                return worker.done(), used()

    def filled(self, records: int, keys: int) -> str:
        topic = self.topic(retention_ms=-1, segment_bytes=max(records * RECORD_BYTES // SEGMENTS, 1 << 20))
        self.done("fill_quotes", topic, records=records, keys=keys, every=EVERY)
        return topic

    def latency(self) -> Result:
        """Of live records of another topic."""
        topic, warm_topic, config = self.topic(), self.topic(), paced_config(RATE, self.sizes.paced_s)
        with (
            self.client("stopwatch", topic, **config, servers={"broker": self.broker.pids}) as consumer,
            self.client("pace", topic, warm_topic=warm_topic, **config) as producer,
        ):
            return end_to_end(consumer, producer)

    def statistics(self) -> dict[str, Any]:
        return asyncio.run(_statistics(self.broker.address))

    def partition(self, topic: str) -> dict[str, Any]:
        (found,) = [one for one in self.statistics()["partitions"] if one["topic"] == topic]
        return found  # type: ignore[no-any-return]


async def _create(address: str, name: str, settings: dict[str, Any]) -> None:
    import comet

    async with comet.Admin(address) as admin:
        await admin.create_topic(name, **settings)


async def _alter(address: str, name: str, **settings: Any) -> None:
    import comet

    async with comet.Admin(address) as admin:
        await admin.alter_topic(name, **settings)


async def _statistics(address: str) -> dict[str, Any]:
    import comet

    async with comet.Admin(address) as admin:
        return await admin.statistics()


# ---- filters at the broker


def scanned(bench: TablesBench, report: Report) -> list[list[Result]]:
    """A topic that is read whole, and through a filter."""
    topic, runs = bench.filled(bench.sizes.scanned_records, keys=EVERY), [list[Result](), list[Result]()]
    for number in range(1, bench.sizes.pairs + 1):
        for which, text in enumerate(("", FILTER)):
            runs[which].append(report(which, number, partial(_scan, bench, topic, text)))
    return runs


def _scan(bench: TablesBench, topic: str, text: str) -> Result:
    before, records = bench.statistics()["sent_bytes"], bench.sizes.scanned_records
    done, used = bench.done("scan", topic, records=records, filter=text)
    assert done["seen"] == (records // EVERY if text else records), done
    sent = bench.statistics()["sent_bytes"] - before
    return {"records_per_s": records / done["seconds"], "sent_bytes": sent, "client_cpu_s": done["cpu_s"]} | used


def beside_scans(bench: TablesBench, report: Report) -> list[list[Result]]:
    """A live subscriber without a filter, alone and beside readers that scan through one."""
    records = bench.sizes.scanned_records
    topic, runs = bench.filled(records, keys=EVERY), [list[Result](), list[Result]()]
    for number in range(1, bench.sizes.pairs + 1):
        runs[0].append(report(0, number, bench.latency))
        with bench.client("scans", topic, records=records, filter=FILTER, readers=SCANS) as readers:
            readers.ready()
            runs[1].append(report(1, number, bench.latency))
    return runs


# ---- compaction


def compacting(bench: TablesBench, report: Report) -> list[list[Result]]:
    """A live subscriber before a topic is compacted and while it is; and what compaction takes and leaves."""
    runs = [list[Result](), list[Result]()]
    for number in range(1, bench.sizes.pairs + 1):
        topic = bench.filled(bench.sizes.compacted_records, bench.sizes.keys)
        runs[0].append(report(0, number, bench.latency))
        runs[1].append(report(1, number, partial(_compact, bench, topic)))
    return runs


def _compact(bench: TablesBench, topic: str) -> Result:
    before = bench.partition(topic)["bytes"]
    live_bytes = before * bench.sizes.keys / bench.sizes.compacted_records
    with broker_use(bench.broker) as used:
        asyncio.run(_alter(bench.broker.address, topic, cleanup_policy="compact"))
        began = time.monotonic()
        latency = bench.latency()
        while not bench.partition(topic)["compactions"]:
            if time.monotonic() - began > RUN_TIMEOUT_S:
                raise BenchFailed(f"{topic} is not compacted after {RUN_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)
        seconds = time.monotonic() - began
        return latency | used() | {"compacted_s": seconds, "live_share": bench.partition(topic)["bytes"] / live_bytes}


# ---- the key-value view


def key_values(bench: TablesBench, call: str) -> Result:
    done, used = bench.done(
        "kv", bench.topic(cleanup_policy="compact"), call=call, calls=bench.sizes.calls, tasks=TASKS
    )
    return done | used


# ---- all subjects

_SUBJECTS: Final[Subjects[TablesBench]] = {
    ("scan_all", "scan_filtered"): scanned,
    ("latency_calm", "latency_scans"): beside_scans,
    ("latency_uncompacted", "compaction"): compacting,
    ("kv_get",): alone(partial(key_values, call="get")),
    ("kv_update",): alone(partial(key_values, call="update")),
}
COMPARED: Final = compared(_SUBJECTS)
ABOUT: Final = {
    "scan_all": "catch up, values as bytes",
    "scan_filtered": "the same through a filter that one record of 1,000 passes",
    "latency_calm": "end to end at 1,000 events/s",
    "latency_scans": f"the same beside {SCANS} readers that scan through a filter",
    "latency_uncompacted": "end to end at 1,000 events/s beside a large topic",
    "compaction": "the same while that topic is compacted",
    "kv_get": f"gets of the key-value view, {TASKS} at a time",
    "kv_update": f"compare-and-set of the key-value view, {TASKS} at a time",
}


def run_tables(
    names: Sequence[str], sizes: TableSizes, *, address: str | None, folder: Path | None, progress: Progress
) -> dict[str, Result]:
    """Results by name; those that are compared with each other come together."""

    @contextmanager
    def surroundings(_subject: str) -> Iterator[TablesBench]:
        own = own_broker(folder, "--retention-check-ms", str(CHECK_MS))
        with given_broker(address) if address is not None else own as broker:
            bench = TablesBench(sizes, broker)
            yield bench
            asyncio.run(delete_topics(broker.address, bench.topics))

    return run_compared(_SUBJECTS, names, surroundings, progress)


SUITE: Final = Suite(ABOUT, FULL, QUICK, run_tables, COMPARED)
