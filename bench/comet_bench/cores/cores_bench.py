"""`comet bench cores`: what a core more carries, by the same load on one core and on two, with one broker and with two.

    core 0   producer 0 ──► partition 0 ──► consumer 0        1_core      one broker; all processes on core 0
    core 1   producer 1 ──► partition 1 ──► consumer 1        2_cores     one broker; all on two cores
                                                              2_brokers   a partition on each of two; all on two cores

The topic has one replica. Brokers, etcd and clients share the cores they may run on, and the kernel places them there.
The processor time of a million records, by kind of process, gives a model of further cores: `cost_model`. The figures
are explained in docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from comet.errors import InvalidArgument
from comet_bench.broker.broker_bench import RECORD_BYTES, delete_topics
from comet_bench.harness import Progress, Report, Subject, Subjects, Suite, compared, run_compared
from comet_bench.machine import cpu_ns
from comet_bench.processes import BenchFailed, Worker
from comet_bench.report import Result
from comet_bench.transports import broker_settings

if TYPE_CHECKING:
    from comet.cli._local_cluster import LocalCluster

PARTITIONS: Final = 2  # with a producer and a consumer each
MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Layout:
    brokers: int
    cores: int
    about: str


LAYOUTS: Final = {
    "1_core": Layout(1, 1, "one broker, all processes on one core"),
    "2_cores": Layout(1, 2, "one broker, all processes on two cores"),
    "2_brokers": Layout(2, 2, "a partition on each of two brokers, all processes on two cores"),
}


@dataclass(frozen=True, slots=True)
class CoresSizes:
    """The amount of work of a run."""

    records: int  # of each producer
    each_records: int
    pairs: int


FULL: Final = CoresSizes(records=5_000_000, each_records=1_000_000, pairs=5)
QUICK: Final = CoresSizes(records=1_000_000, each_records=200_000, pairs=3)


def cost_model(cpu_s: Mapping[str, float], records: int, seconds: float, cores: int) -> Result:
    """Seconds of the processor for a million records, by kind of process, and the model that follows: a core more
    carries as many records as its time pays for in all processes, and a broker with a core of its own as many as its
    time alone pays for. The model knows no limit of memory, caches, disk or network.

    >>> cost_model({"broker": 1.0, "producer": 2.0, "consumer": 1.0, "etcd": 0.0}, 10_000_000, 2.0, 2)["core_share"]
    1.0
    """
    each = {f"{kind}_million_s": used_s / records * MILLION for kind, used_s in cpu_s.items()}
    all_s = sum(cpu_s.values())
    return each | {
        "core_share": all_s / seconds / cores,
        "model_core_records_per_s": records / all_s,
        "model_broker_records_per_s": records / cpu_s["broker"],
    }


def pin(pid: int, cores: Sequence[int]) -> None:
    """Lets all threads of a process run on these cores alone."""
    with suppress(ProcessLookupError):  # a thread that has ended meanwhile
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)


def usable_cores() -> list[int]:
    """Raises InvalidArgument where there are too few."""
    most = max(layout.cores for layout in LAYOUTS.values())
    found = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(found) < most:
        raise InvalidArgument(f"this benchmark pins processes to {most} cores on Linux, and may use {len(found)}")
    return found[:most]


class CoresBench:
    """A cluster for each number of brokers. Every run has topics of its own."""

    def __init__(self, clusters: Mapping[int, LocalCluster], cores: Sequence[int], sizes: CoresSizes) -> None:
        self.sizes = sizes
        self._clusters = clusters
        self._cores = cores

    @contextmanager
    def load(self, layout: Layout) -> Iterator[CoresLoad]:
        cluster, cores = self._clusters[layout.brokers], self._cores[: layout.cores]
        for member in cluster.members:
            pin(member.pid, cores)
        addresses = cluster.addresses.split(",")
        topic, warm_topic = (_topic(addresses, layout.brokers) for _ in range(2))
        yield CoresLoad(cluster, cores, self.sizes, {"address": addresses, "topic": topic, "warm_topic": warm_topic})
        asyncio.run(delete_topics(addresses, [topic, warm_topic]))


def _topic(addresses: Sequence[str], brokers: int) -> str:
    """A topic of one replica with two partitions, spread over the brokers."""
    import comet

    name = f"bench-{uuid.uuid4().hex[:12]}"

    async def create() -> set[int | None]:
        async with comet.Admin(addresses) as admin:
            await admin.create_topic(name, partitions=PARTITIONS, replicas=1)
            found = await admin.describe_topic(name)
        return {partition.leader for partition in found.partitions}

    leaders = asyncio.run(create())
    if len(leaders) != brokers or None in leaders:
        raise BenchFailed(f"the partitions of {name} should be on {brokers} brokers, and are on {leaders}")
    return name


@dataclass(frozen=True, slots=True)
class CoresLoad:
    """One run with one layout."""

    cluster: LocalCluster
    cores: Sequence[int]
    sizes: CoresSizes
    config: Mapping[str, Any]

    def run(self, *, each: bool) -> Result:
        """From the first send until the last consumer has its last record."""
        records = self.sizes.each_records if each else self.sizes.records
        sending = "produce_each" if each else "produce_many"
        with ExitStack() as stack:
            start = partial(self._client, stack, records=records)
            consumers = [start("tail", partition=index, subscribers=1, each=each) for index in range(PARTITIONS)]
            producers = [start(sending, partition=index, json=False) for index in range(PARTITIONS)]
            before = self._used_s()
            for worker in (*consumers, *producers):
                worker.go()
            sent = [producer.done() for producer in producers]
            seen = [consumer.done() for consumer in consumers]
            after = self._used_s()
        assert all(one["seen"] == records for one in seen), (seen, records)
        seconds = max(one["end"] for one in seen) - min(one["start"] for one in sent)
        cpu_s = {kind: after[kind] - before[kind] for kind in after}
        cpu_s |= {"producer": sum(one["cpu_s"] for one in sent), "consumer": sum(one["cpu_s"] for one in seen)}
        together = PARTITIONS * records
        speed = {"records_per_s": together / seconds, "bytes_per_s": together * RECORD_BYTES / seconds}
        return speed | cost_model(cpu_s, together, seconds, len(self.cores))

    def _client(self, stack: ExitStack, name: str, **config: Any) -> Worker:
        """A client, ready and pinned."""
        worker = stack.enter_context(Worker(name, record_bytes=RECORD_BYTES, **self.config, **config))
        worker.ready()
        pin(worker.pid, self.cores)
        return worker

    def _used_s(self) -> dict[str, float]:
        """The processor time of the servers so far, by kind."""
        brokers = sum(cpu_ns(broker.pid) for broker in self.cluster.brokers)
        return {"broker": brokers / 1e9, "etcd": cpu_ns(self.cluster.etcd.pid) / 1e9}


KINDS: Final = {
    "bulk": (False, "produce and consume in batches"),
    "each": (True, "produce and consume record by record"),
}


def _compared(each: bool) -> Subject[CoresBench]:
    def subject(bench: CoresBench, report: Report) -> list[list[Result]]:
        found: list[list[Result]] = [[] for _ in LAYOUTS]
        for number in range(1, bench.sizes.pairs + 1):
            for which, layout in enumerate(LAYOUTS.values()):
                with bench.load(layout) as load:
                    run: Callable[[], Result] = partial(load.run, each=each)
                    found[which].append(report(which, number, run))
        return found

    return subject


SUBJECTS: Final[Subjects[CoresBench]] = {
    tuple(f"{kind}_{name}" for name in LAYOUTS): _compared(each) for kind, (each, _) in KINDS.items()
}
ABOUT: Final = {
    f"{kind}_{name}": f"{about}: {layout.about}"
    for kind, (_, about) in KINDS.items()
    for name, layout in LAYOUTS.items()
}


def run_cores(
    names: Sequence[str], sizes: CoresSizes, *, address: str | None, folder: Path | None, progress: Progress
) -> dict[str, Result]:
    """Results by name. One cluster of each number of brokers serves all."""
    from comet.cli._local_cluster import LocalCluster

    assert address is None
    cores = usable_cores()
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="comet-bench-", dir=folder)))
        clusters = {
            brokers: stack.enter_context(LocalCluster(data / str(brokers), brokers, settings=broker_settings()))
            for brokers in sorted({layout.brokers for layout in LAYOUTS.values()})
        }

        @contextmanager
        def surroundings(_: str) -> Iterator[CoresBench]:
            yield CoresBench(clusters, cores, sizes)

        return run_compared(SUBJECTS, names, surroundings, progress)


SUITE: Final = Suite(ABOUT, FULL, QUICK, run_cores, compared=compared(SUBJECTS), starts_brokers=True)
