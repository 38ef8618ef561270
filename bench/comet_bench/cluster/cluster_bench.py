"""`comet bench cluster`: three brokers and an etcd on this machine, beside a single broker in the same run.

    single_broker            send_many, acks=1, to one broker alone: the baseline of the next two
    produce_many_acks_1      the same to a topic with three replicas
    produce_many_acks_all    the same, acknowledged once two or more replicas have it (min_insync 2)
    latency_1000_acks_all    one event a millisecond, sent with acks=all, until the consumer has it
    failover                 the leader killed under load, repeatedly

All share this machine's cores. The figures are explained in docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from comet_bench.broker.broker_bench import RECORD_BYTES, broker_use, delete_topics, end_to_end, paced_config
from comet_bench.harness import Progress, Subjects, Suite, alone, run_compared
from comet_bench.machine import ProcessMeter
from comet_bench.processes import BenchFailed, Worker, own_broker
from comet_bench.report import Result, combine
from comet_bench.transports import broker_settings

if TYPE_CHECKING:
    from comet.cli._local_cluster import LocalCluster
    from comet.entities import PartitionInfo

BROKERS: Final = 3
MIN_INSYNC: Final = 2
FAILOVER_RATE: Final = 1_000  # records a second while brokers are killed
HEAL_S_MAX: Final = 60.0
POLL_S: Final = 0.05
# Time of the load, after the new leader's first acknowledgement, that belongs to the gap's measurement.
CALM_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class ClusterSizes:
    """The amount of work of a run."""

    records: int
    paced_s: float
    kills: int
    runs: int


FULL: Final = ClusterSizes(records=4_000_000, paced_s=10.0, kills=10, runs=3)
QUICK: Final = ClusterSizes(records=2_000_000, paced_s=2.0, kills=5, runs=1)


class ClusterBench:
    """The cluster under measurement. Every run has topics of its own."""

    def __init__(self, cluster: LocalCluster, sizes: ClusterSizes) -> None:
        self.sizes = sizes
        self._cluster = cluster

    @property
    def addresses(self) -> list[str]:
        return self._cluster.addresses.split(",")

    @property
    def servers(self) -> dict[str, list[int]]:
        """Process ids by role; the brokers count together."""
        return {"broker": [broker.pid for broker in self._cluster.brokers], "etcd": [self._cluster.etcd.pid]}

    @contextmanager
    def topic(self) -> Iterator[str]:
        """A new topic with all its replicas in sync, deleted at the end."""
        name = _topic(self.addresses, replicas=BROKERS, min_insync=MIN_INSYNC)
        self.wait_well(name)
        yield name
        asyncio.run(delete_topics(self.addresses, [name]))

    @contextmanager
    def metered(self) -> Iterator[Callable[[], Result]]:
        """Measures the use of all brokers together within the block."""
        meters = [ProcessMeter(broker.pid) for broker in self._cluster.brokers]
        for meter in meters:
            meter.restart_peak()
        before = [meter.read() for meter in meters]

        def used() -> Result:
            after = [meter.read() for meter in meters]
            return {
                "broker_rss_bytes": sum(usage.rss_peak_bytes for usage in after),
                "broker_cpu_s": sum(usage.cpu_s for usage in after) - sum(usage.cpu_s for usage in before),
            }

        yield used

    # ---- for failover

    def leader(self, topic: str) -> int:
        """The broker that leads the topic's only partition."""
        leader = asyncio.run(_partition(self.addresses, topic)).leader
        assert leader is not None
        return leader

    def kill(self, broker: int) -> None:
        """Kills the broker, as `kill -9` does."""
        self._cluster.brokers[broker - 1].kill()

    def start_again(self, broker: int) -> None:
        self._cluster.brokers[broker - 1].start()

    def wait_well(self, topic: str) -> None:
        """Waits until every replica is in sync."""
        deadline = time.monotonic() + HEAL_S_MAX
        while True:
            partition = asyncio.run(_partition(self.addresses, topic))
            if partition.leader and len(partition.in_sync) == BROKERS:
                return
            if time.monotonic() > deadline:
                raise BenchFailed(f"after {HEAL_S_MAX:.0f} s only brokers {partition.in_sync} are in sync")
            time.sleep(POLL_S)


def _topic(addresses: Sequence[str], **settings: Any) -> str:
    import comet

    name = f"bench-{uuid.uuid4().hex[:12]}"

    async def create() -> None:
        async with comet.Admin(addresses) as admin:
            await admin.create_topic(name, **settings)

    asyncio.run(create())
    return name


async def _partition(addresses: Sequence[str], topic: str) -> PartitionInfo:
    import comet

    async with comet.Admin(addresses) as admin:
        found = await admin.describe_topic(topic)
    return found.partitions[0]


async def _caught_up(addresses: Sequence[str], topic: str) -> None:
    """Returns when every replica in sync has the topic to its end."""
    import comet

    async with comet.Producer(addresses, acks="all") as producer:
        await producer.publish(topic, b"last")


def _produce(addresses: Sequence[str], topic: str, records: int, acks: int | str) -> Result:
    """One run of send_many, after a first record that no figure counts."""
    config = {"address": addresses, "topic": topic, "warm_topic": topic, "records": records, "acks": acks}
    with Worker("produce_many", json=False, record_bytes=RECORD_BYTES, **config) as producer:
        producer.ready()
        producer.go()
        done = producer.done()
    seconds = done["end"] - done["start"]
    return {"records_per_s": records / seconds, "bytes_per_s": done["bytes"] / seconds}


def single_broker(sizes: ClusterSizes, folder: Path | None) -> list[Result]:
    """All runs, on a separate broker that ends before the cluster starts."""
    runs = []
    with own_broker(folder) as broker:
        for _ in range(sizes.runs):
            topic = _topic([broker.address])
            with broker_use(broker) as used:
                runs.append(_produce([broker.address], topic, sizes.records, 1) | used())
            asyncio.run(delete_topics([broker.address], [topic]))
    return runs


def produce_many(bench: ClusterBench, acks: int | str) -> Result:
    with bench.topic() as topic:
        with bench.metered() as used:
            run = _produce(bench.addresses, topic, bench.sizes.records, acks) | used()
        # Followers may still fetch after the last acknowledgement; that must not fall into the next run.
        asyncio.run(_caught_up(bench.addresses, topic))
        return run


def latency_1000(bench: ClusterBench) -> Result:
    """The sender sleeps until a record is due: the other processes need the cores."""
    paced = paced_config(1_000, bench.sizes.paced_s)
    with bench.topic() as topic, bench.topic() as warm_topic:
        config = {"address": bench.addresses, "topic": topic, "warm_topic": warm_topic, **paced}
        with (
            Worker("stopwatch", **config, servers=bench.servers) as consumer,
            Worker("pace", record_bytes=RECORD_BYTES, acks="all", sleepy=True, **config) as producer,
        ):
            found = end_to_end(consumer, producer, bench.metered())
    return found | {"all_event_us": sum(value for field, value in found.items() if field.endswith("_event_us"))}


def failover(bench: ClusterBench) -> Result:
    """Kills the leader under load; all brokers are in sync again before the next one dies."""
    gaps_ms = []
    with ExitStack() as stack:
        topic = stack.enter_context(bench.topic())
        load = stack.enter_context(Worker("under_fire", address=bench.addresses, topic=topic, rate=FAILOVER_RATE))
        load.ready()
        load.go(order="start")
        load.ready()
        for _ in range(bench.sizes.kills):
            leader = bench.leader(topic)
            load.go(order="mark")
            load.ready()
            bench.kill(leader)
            gaps_ms.append(_gap_ms(load))
            bench.start_again(leader)
            bench.wait_well(topic)
        load.go(order="stop")
        done = load.done()
    return {
        "median_ms": statistics.median(gaps_ms),
        "max_ms": max(gaps_ms),
        "kills": len(gaps_ms),
        "lost": done["lost"],
        "duplicated": done["duplicated"],
    }


def _gap_ms(load: Worker) -> float:
    """The longest time without an acknowledgement since the mark, once acknowledgements flow again."""
    deadline = time.monotonic() + HEAL_S_MAX
    while True:
        load.go(order="report")
        state = load.ready()
        if state["calm_s"] > CALM_S:
            return float(state["gap_s"]) * 1e3
        if time.monotonic() > deadline:
            raise BenchFailed(f"no acknowledgement for {HEAL_S_MAX:.0f} s after a leader was killed")
        time.sleep(POLL_S)


CLUSTER_SUBJECTS: Final[dict[str, tuple[Callable[[ClusterBench], Result], str]]] = {
    "produce_many_acks_1": (lambda bench: produce_many(bench, 1), "send_many to three replicas, acks=1"),
    "produce_many_acks_all": (lambda bench: produce_many(bench, "all"), "send_many to three replicas, acks=all"),
    "latency_1000_acks_all": (latency_1000, "end to end at 1,000 events/s, acks=all"),
    "failover": (failover, "time without an acknowledgement when the leader is killed"),
}
ABOUT: Final = {"single_broker": "send_many to one broker alone"} | {
    name: about for name, (_, about) in CLUSTER_SUBJECTS.items()
}


def run_cluster(sizes: ClusterSizes, *, folder: Path | None, progress: Progress) -> dict[str, Result]:
    """Results by name."""
    from comet.cli._local_cluster import LocalCluster

    progress("single_broker", 1, None)
    runs = single_broker(sizes, folder)
    progress("single_broker", sizes.runs, runs[-1])
    results = {"single_broker": combine(runs)}
    data = Path(tempfile.mkdtemp(prefix="comet-bench-", dir=folder))
    try:
        with LocalCluster(data, BROKERS, settings=broker_settings()) as cluster:
            bench = ClusterBench(cluster, sizes)
            subjects: Subjects[ClusterBench] = {
                (name,): alone(subject) for name, (subject, _) in CLUSTER_SUBJECTS.items()
            }
            return results | run_compared(
                subjects, list(CLUSTER_SUBJECTS), lambda _subject: nullcontext(bench), progress
            )
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _run(
    names: Sequence[str], sizes: ClusterSizes, *, address: str | None, folder: Path | None, progress: Progress
) -> dict[str, Result]:
    assert address is None and list(names) == list(ABOUT)
    return run_cluster(sizes, folder=folder, progress=progress)


SUITE: Final = Suite(ABOUT, FULL, QUICK, _run, starts_brokers=True, undivided=True)
