"""Samples this broker once a second, at the start of each second of the wall clock, and keeps the history.

    counters of partitions, durations, the process ─► tick ─► MetricsStore (core.store), rates of partitions
    the view's changes ─► EventLog (core.event_log)

A tick reads the partitions in slices, so that clients do not wait, and works only on those that have moved. While the
process is stopped there are no ticks: counts of that time belong to the first tick afterwards.

Owned by the broker; on its loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from comet_broker.cluster.view import ClusterView
from comet_broker.core.event_log import EventLog
from comet_broker.core.history import NAN, WINDOW_S, Ring, known, percentile_ms
from comet_broker.core.metrics_store import TOPIC_FLOWS, MetricsStore
from comet_broker.env import Env
from comet_broker.failures import Kind
from comet_broker.metrics.histogram import Durations
from comet_broker.metrics.meter import RequestMeter
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.topics import TopicTable
from comet_broker.ports import Process

PARTITIONS_AT_ONCE: Final = 1_000
TOPICS_AT_ONCE: Final = 50
SWEEP_TICKS: Final = 10  # ticks between two removals of vanished partitions, and measurements of many logs' sizes
EARLY_US: Final = 1_000  # a timer may ring so early
AGAIN_S_MAX: Final = 1.0  # a tick that is later than this and finds the same second: the clock was set back
SHARES: Final = {"p50": 0.50, "p95": 0.95, "p99": 0.99}

Counts = tuple[int, int, int, int]  # records and bytes in, records and bytes out
_NONE: Final[Counts] = (0, 0, 0, 0)


class Moving:
    """A partition that is written to, or was within the window."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records = Ring(WINDOW_S, "d", 0)
        self.bytes = Ring(WINDOW_S, "d", 0)


class Latency:
    """The counts of a `Durations` since the last tick, and within the window."""

    def __init__(self, durations: Durations) -> None:
        self._durations = durations
        self._seen: deque[list[int]] = deque([list(durations.counts)], WINDOW_S + 1)

    def tick(self) -> dict[str, float]:
        self._seen.append(list(self._durations.counts))
        return self._percentiles(self._seen[-2])

    def window(self) -> dict[str, float]:
        return self._percentiles(self._seen[0])

    def _percentiles(self, before: Sequence[int]) -> dict[str, float]:
        counts = [now - then for now, then in zip(self._seen[-1], before, strict=True)]
        return {name: percentile_ms(counts, share) for name, share in SHARES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledParts:
    """The parts of the broker that are sampled. `sessions` is the number of open sessions, `lag` the lag of the groups
    that are coordinated here."""

    env: Env
    view: ClusterView
    topics: TopicTable
    meter: RequestMeter
    process: Process | None
    sessions: Callable[[], int]
    lag: Callable[[], int]


class Recorder:
    def __init__(self, parts: SampledParts) -> None:
        self.store = MetricsStore()
        self.event_log = EventLog()
        self.ticked = asyncio.Event()  # at least once
        self._parts = parts
        self._env = parts.env
        self._meter = parts.meter
        self._seen: dict[int, Counts] = {}  # by handle
        self._moving: dict[int, Moving] = {}
        self._elapsed: deque[float] = deque(maxlen=WINDOW_S)
        self._ticks = 0
        self._before = 0.0
        self._cpu_s: float | None = None
        self._errors = 0
        self._disk_used = 0
        self._latencies = {"ack": Latency(parts.meter.ack_durations), "deliver": Latency(parts.meter.deliver_durations)}

    # ---- the cluster

    def start(self) -> None:
        """Starts to note changes of the view, which is loaded."""
        view = self._parts.view
        self.event_log.begin(view.state)
        view.listen(lambda keys: self.event_log.note(view.state, keys, self._env.clock.wall_us()))

    # ---- time

    async def run(self) -> None:
        """A task of its own."""
        clock = self._env.clock
        self._before = clock.monotonic()
        self._cpu_s = None if self._parts.process is None else self._parts.process.cpu_s()
        while True:
            await asyncio.sleep(1 - clock.wall_us() % 1_000_000 / 1_000_000)
            try:
                await self.tick()
            except Exception as error:  # noqa: BLE001 - one failed tick must not end the later ones
                self._env.tasks.report("sampling this broker", error)

    async def tick(self) -> None:
        clock = self._env.clock
        second = (clock.wall_us() + EARLY_US) // 1_000_000
        now = clock.monotonic()
        elapsed = now - self._before
        if elapsed <= 0 or (second == self.store.presence.end and elapsed < AGAIN_S_MAX):
            return
        self._before = now
        self._elapsed.append(elapsed)
        self._ticks += 1
        topics, leading = await self._sample_partitions()
        if self._ticks % SWEEP_TICKS == 1:
            self._sweep()
        if self._ticks % SWEEP_TICKS == 1 or len(self._parts.topics.by_handle) <= PARTITIONS_AT_ONCE:
            await self._measure_logs()
        seconds = max(1, round(elapsed))  # whole ones, so that the history adds up to what was counted
        self.store.begin(second)
        for number, (topic, counts) in enumerate(topics.items(), 1):
            self.store.move(second, topic, [count / seconds for count in counts])
            if number % TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
        totals = [sum(counts[number] for counts in topics.values()) for number in range(len(_NONE))]
        flows = {name: total / seconds for name, total in zip(TOPIC_FLOWS, totals, strict=True)}
        flows["errors"] = self._new_errors() / seconds
        self.store.tick(second, flows, {**self._gauges(elapsed), "leading": leading})
        self.event_log.settle(clock.wall_us())
        self.ticked.set()

    async def _sample_partitions(self) -> tuple[dict[str, Counts], int]:
        """Counts since the last tick, by topic, and the number of partitions that this broker leads."""
        topics: dict[str, Counts] = {}
        leading = 0
        for some in _slices(list(self._parts.topics.by_handle.values())):
            for partition in some:
                try:
                    if partition.leadership is not None:
                        leading += 1
                    self._sample(partition, topics)
                except Exception as error:  # noqa: BLE001 - the other partitions are still sampled
                    self._env.failures.fail(Kind.PARTITION, str(partition), "sampling", error, None)
            await asyncio.sleep(0)
        return topics, leading

    def _sample(self, partition: Partition, topics: dict[str, Counts]) -> None:
        before = self._seen.get(partition.handle, _NONE)
        records = partition.counts.appended_records - partition.counts.followed_records
        if records == before[0] and partition.counts.delivered_records == before[2]:
            return
        counts = (
            records,
            partition.counts.appended_bytes - partition.counts.followed_bytes,
            partition.counts.delivered_records,
            partition.counts.delivered_bytes,
        )
        self._seen[partition.handle] = counts
        news = _less(counts, before)
        topics[partition.topic] = _plus(topics.get(partition.topic, _NONE), news)
        if news[0]:
            self._note_moving(partition.handle, news)

    def _note_moving(self, handle: int, news: Counts) -> None:
        moving = self._moving.get(handle)
        if moving is None:
            moving = self._moving[handle] = Moving()
        moving.records.put(self._ticks, news[0])
        moving.bytes.put(self._ticks, news[1])

    def _sweep(self) -> None:
        for handle in self._seen.keys() - self._parts.topics.by_handle.keys():
            del self._seen[handle]
        still = self._ticks - WINDOW_S
        self._moving = {handle: one for handle, one in self._moving.items() if one.records.end > still}
        for topic in self.store.topics.keys() - self._parts.view.state.topics.keys():
            self.store.forget(topic)

    async def _measure_logs(self) -> None:
        used = 0
        for some in _slices(list(self._parts.topics.by_handle.values())):
            used += sum(partition.log.segments.size_bytes for partition in some)
            await asyncio.sleep(0)
        self._disk_used = used

    def _new_errors(self) -> int:
        before = self._errors
        self._errors = self._meter.errors.total() + self._meter.refused_silently
        return self._errors - before

    def _gauges(self, elapsed: float) -> dict[str, float]:
        memory = None if self._parts.process is None else self._parts.process.memory_bytes()
        found: dict[str, float] = {
            "cpu": self._cpu(elapsed),
            "memory": NAN if memory is None else memory,
            "disk_used": self._disk_used,
            "sessions": self._parts.sessions(),
            "lag": self._parts.lag(),
        }
        for kind, latency in self._latencies.items():
            found |= {f"{kind}_{name}_ms": value for name, value in latency.tick().items()}
        self._meter.measured = 0
        return found

    def _cpu(self, elapsed: float) -> float:
        now = None if self._parts.process is None else self._parts.process.cpu_s()
        before, self._cpu_s = self._cpu_s, now
        return NAN if now is None or before is None else (now - before) / elapsed

    # ---- current values

    def statistics(self) -> dict[str, Any]:
        """Over the last WINDOW_S; None where nothing is known."""
        latency = {
            f"{kind}_{name}_ms": known(value)
            for kind, one in self._latencies.items()
            for name, value in one.window().items()
        }
        rates = {name: known(rate) for name, rate in self.store.rates().items()}
        memory = known(self.store.last("memory"))
        return {
            "rates": {"window_s": WINDOW_S, **rates},
            "cpu": known(self.store.last("cpu")),
            "memory_bytes": None if memory is None else round(memory),
            "latency": latency,
        }

    def rates(self, partition: Partition) -> tuple[float | None, float | None]:
        """Records and bytes in per second, of a partition that this broker leads."""
        if partition.leadership is None or not self._elapsed:
            return None, None
        moving = self._moving.get(partition.handle)
        if moving is None:
            return 0.0, 0.0
        first, elapsed = self._ticks - WINDOW_S + 1, sum(self._elapsed)
        return (
            sum(moving.records.slice(first, self._ticks)) / elapsed,
            sum(moving.bytes.slice(first, self._ticks)) / elapsed,
        )

    async def topics(self) -> dict[str, dict[str, Any]]:
        """The topics of partitions that this broker leads."""
        found: dict[str, dict[str, Any]] = {}
        for some in _slices(list(self._parts.topics.by_handle.values())):
            for partition in some:
                if partition.leadership is None:
                    continue
                topic = found.get(partition.topic)
                if topic is None:
                    topic = found[partition.topic] = {"leading": 0, "records": 0, "bytes": 0, "last_us": None}
                log = partition.log
                topic["leading"] += 1
                topic["records"] += partition.high_watermark - log.log_start
                topic["bytes"] += log.segments.size_bytes
                last_us = log.segments.last_append_us
                if last_us is not None and last_us > (topic["last_us"] or 0):
                    topic["last_us"] = last_us
            await asyncio.sleep(0)
        for name, topic in found.items():
            rates = [known(rate) for rate in self.store.topic_rates(name)]
            topic["in_rate"], topic["in_bytes_rate"], topic["out_rate"], topic["out_bytes_rate"] = rates
        return found


def _less(counts: Counts, before: Counts) -> Counts:
    return (counts[0] - before[0], counts[1] - before[1], counts[2] - before[2], counts[3] - before[3])


def _plus(counts: Counts, more: Counts) -> Counts:
    return (counts[0] + more[0], counts[1] + more[1], counts[2] + more[2], counts[3] + more[3])


def _slices(partitions: list[Partition]) -> Iterator[list[Partition]]:
    ends = [*range(0, len(partitions), PARTITIONS_AT_ONCE), len(partitions)]
    return (partitions[first:end] for first, end in pairwise(ends))
