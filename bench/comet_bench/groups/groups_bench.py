"""`comet bench groups`: the cost of groups, share groups and transactions, and the time to move partitions.

    explicit             a full topic of several partitions, read without a group
    group                the same data by the only member of a group; run by run after `explicit`
    at_least_once        consume, transform, produce in chunks of 1,000 records: acknowledged, then committed
    exactly_once         the same with a transaction for each chunk; run by run after `at_least_once`
    shared_ack           a share group, every record acknowledged by itself
    takeover             from a member's leave, or its death, until another one reads its partitions
    rebalance_100x1000   from a join or a leave until every member has its share, and how it delays the others

The figures are explained in docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from comet_bench.broker.broker_bench import RECORD_BYTES, broker_use, delete_topics
from comet_bench.harness import Progress, Report, Subjects, Suite, alone, compared, run_compared
from comet_bench.processes import BenchFailed, Broker, Worker, given_broker, own_broker
from comet_bench.report import Result

PARTITIONS: Final = 4
CHUNK: Final = 1_000
PROCESSES: Final = 2
IN_FLIGHT: Final = 5_000
TAKEOVER_PARTITIONS: Final = 10
RATE: Final = 1_000  # events a second while one of two members goes,
CROWD_RATE: Final = 500  # and while a crowd changes: few enough that its processes do not wait for a core
SETTLED_S_MAX: Final = 120.0
POLL_S: Final = 0.02
CALM_S: Final = 2.0
# Late records reach the application after the partitions have moved.
LATE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """The amount of work of a run."""

    records: int
    chunked_records: int
    shared_records: int
    sharers: int
    leaves: int
    kills: int
    session_ms: int
    crowd: int
    crowd_partitions: int
    cycles: int
    runs: int
    pairs: int  # runs of compared subjects


FULL: Final = GroupSizes(4_000_000, 1_000_000, 500_000, 4, 10, 5, 6_000, 100, 1_000, 5, runs=3, pairs=5)
QUICK: Final = GroupSizes(2_000_000, 200_000, 200_000, 4, 3, 1, 2_000, 100, 1_000, 2, runs=1, pairs=3)


class GroupBench:
    """The broker under measurement. Every run has topics and groups of its own."""

    def __init__(self, sizes: GroupSizes, broker: Broker) -> None:
        self.sizes = sizes
        self._broker = broker

    @contextmanager
    def topic(self, partitions: int = PARTITIONS, **settings: Any) -> Iterator[str]:
        name = _new_name()
        asyncio.run(_create(self._broker.address, name, partitions, settings))
        yield name
        asyncio.run(delete_topics(self._broker.address, [name]))

    @contextmanager
    def full_topic(self, records: int) -> Iterator[str]:
        with self.topic() as topic:
            with self.worker("fill", topic=topic, records=records, partitions=PARTITIONS) as filler:
                filler.ready()
                filler.go()
                filler.done()
            yield topic

    def worker(self, name: str, **config: Any) -> Worker:
        return Worker(name, address=self._broker.address, record_bytes=RECORD_BYTES, **config)

    @contextmanager
    def metered(self) -> Iterator[Callable[[], Result]]:
        with broker_use(self._broker) as used:
            yield used


async def _create(address: str, name: str, partitions: int, settings: dict[str, Any]) -> None:
    import comet

    async with comet.Admin(address) as admin:
        await admin.create_topic(name, partitions=partitions, **settings)


def _new_name() -> str:
    return f"bench-{uuid.uuid4().hex[:12]}"


# ---- throughput


def _measure(bench: GroupBench, name: str, **config: Any) -> Result:
    """Runs one worker, from its start order to its report."""
    with bench.worker(name, group=_new_name(), **config) as worker:
        worker.ready()
        with bench.metered() as used:
            worker.go()
            done = worker.done()
            rate = done["records"] / done["seconds"]
            return {"records_per_s": rate, "bytes_per_s": rate * RECORD_BYTES} | used()


def _pairs(
    bench: GroupBench, one: Callable[[], Result], other: Callable[[], Result], report: Report
) -> list[list[Result]]:
    """Runs of both in turn; the other's `share` is of the run before it."""
    ones, others = [], []
    for number in range(1, bench.sizes.pairs + 1):
        ones.append(report(0, number, one))
        other_run = report(1, number, other)
        others.append(other_run | {"share": other_run["records_per_s"] / ones[-1]["records_per_s"]})
    return [ones, others]


def explicit_and_group(bench: GroupBench, report: Report) -> list[list[Result]]:
    records = bench.sizes.records
    with bench.full_topic(records) as topic:
        return _pairs(
            bench,
            lambda: _measure(bench, "consume_explicit", topic=topic, records=records),
            lambda: _measure(bench, "consume_group", topic=topic, records=records),
            report,
        )


def transforming(bench: GroupBench, report: Report) -> list[list[Result]]:
    records = bench.sizes.chunked_records
    with bench.full_topic(records) as topic:

        def transform(name: str) -> Result:
            with bench.topic() as out:
                return _measure(bench, name, topic=topic, out=out, records=records, chunk=CHUNK)

        return _pairs(
            bench, lambda: transform("transform_at_least_once"), lambda: transform("transform_exactly_once"), report
        )


def shared_ack(bench: GroupBench) -> Result:
    """Each member acknowledges its records; the clock stops at the last confirmation."""
    sizes, group = bench.sizes, _new_name()
    records = sizes.shared_records
    with ExitStack() as stack:
        topic = stack.enter_context(bench.full_topic(records))
        members = sizes.sharers // PROCESSES
        sharers = [
            stack.enter_context(bench.worker("share", topic=topic, group=group, members=members, in_flight=IN_FLIGHT))
            for _ in range(PROCESSES)
        ]
        _receive_all(sharers)
        with bench.metered() as used:
            start = time.perf_counter()
            _exchange_all(sharers, "start")
            states = _wait_until(sharers, lambda states: sum(state["confirmed"] for state in states) >= records)
            seconds = max(state["last"] for state in states) - start
            use = used()
        _send_all(sharers, "stop")
        for sharer in sharers:
            sharer.done()
    return {"records_per_s": records / seconds, "bytes_per_s": records * RECORD_BYTES / seconds} | use


# ---- hand-over


def takeover(bench: GroupBench) -> Result:
    """One of two members goes; the other one reads on."""
    sizes = bench.sizes
    leaves_ms, kills_ms = [], []
    with ExitStack() as stack:
        topic = stack.enter_context(bench.topic(TAKEOVER_PARTITIONS))
        config = {"topic": topic, "group": _new_name(), "members": 1, "session_ms": sizes.session_ms}
        _load(stack, bench, topic, TAKEOVER_PARTITIONS, RATE)
        stays = stack.enter_context(bench.worker("group_members", **config))
        stays.ready()
        for number in range(sizes.leaves + sizes.kills):
            with bench.worker("group_members", **config) as goes:
                goes.ready()
                _wait_until([stays, goes], lambda states: _reads(states, TAKEOVER_PARTITIONS) and _level(states))
                if number < sizes.leaves:
                    goes.go(order="leave")
                    leaves_ms.append((_taken_over(stays) - goes.ready()["at"]) * 1e3)
                    goes.go(order="stop")
                    goes.done()
                else:
                    died = time.perf_counter()
                    goes.child.signal(signal.SIGKILL)
                    kills_ms.append((_taken_over(stays) - died) * 1e3 - sizes.session_ms)
        _end([stays])
    return {
        "leave_ms": statistics.median(leaves_ms),
        "leave_max_ms": max(leaves_ms),
        "kill_beyond_ms": statistics.median(kills_ms),
        "kill_beyond_max_ms": max(kills_ms),
    }


def _taken_over(stays: Worker) -> float:
    """The time at which the member has read records of every partition."""
    (state,) = _wait_until([stays], lambda states: _reads(states, TAKEOVER_PARTITIONS))
    return float(state["read_since"])


def rebalance(bench: GroupBench) -> Result:
    """A member more, a member less, again and again, while events flow through every partition."""
    sizes = bench.sizes
    figures: dict[str, list[float]] = {"join": [], "leave": [], "gap": [], "calm": []}
    with ExitStack() as stack:
        # A thousand synced files a second would keep the disk busy, and dominate the measurement.
        topic = stack.enter_context(bench.topic(sizes.crowd_partitions, flush="os"))
        config = {"topic": topic, "group": _new_name(), "session_ms": 30_000}
        before = sizes.crowd - 1
        share = before // PROCESSES
        workers = [
            stack.enter_context(bench.worker("group_members", members=members, **config))
            for members in (share, before - share)
        ]
        _receive_all(workers)
        _wait_until(workers, lambda states: _settled(states, before, sizes.crowd_partitions))
        _load(stack, bench, topic, sizes.crowd_partitions, CROWD_RATE)
        _wait_until(workers, lambda states: _reads(states, sizes.crowd_partitions))
        for _ in range(sizes.cycles):
            _exchange_all(workers, "mark")
            time.sleep(CALM_S)
            figures["calm"].append(_gap_ms(workers))
            for order, members in (("add", sizes.crowd), ("leave", before)):
                taken_ms, gap_ms = _change(workers, order, members, sizes.crowd_partitions)
                figures["join" if order == "add" else order].append(taken_ms)
                figures["gap"].append(gap_ms)
        _end(workers)
    return {
        "join_ms": statistics.median(figures["join"]),
        "join_max_ms": max(figures["join"]),
        "leave_ms": statistics.median(figures["leave"]),
        "leave_max_ms": max(figures["leave"]),
        "gap_ms": max(figures["gap"]),
        "calm_gap_ms": max(figures["calm"]),
    }


def _change(workers: Sequence[Worker], order: str, members: int, partitions: int) -> tuple[float, float]:
    """Milliseconds until every member has its share, and the longest wait in partitions that did not move."""
    _exchange_all(workers, "mark")
    workers[-1].go(order=order)
    at = workers[-1].ready()["at"]
    states = _wait_until(workers, lambda states: _settled(states, members, partitions))
    taken_ms = (max(state["changed"] for state in states) - at) * 1e3
    time.sleep(LATE_S)
    return taken_ms, _gap_ms(workers)


def _load(stack: ExitStack, bench: GroupBench, topic: str, partitions: int, rate: int) -> None:
    """Events for every partition, until the stack ends."""
    load = stack.enter_context(bench.worker("spread", topic=topic, partitions=partitions, rate=rate))
    load.ready()
    load.go()


State = dict[str, Any]


def _owned(states: Sequence[State]) -> list[int]:
    return [count for state in states for count in state["owned"]]


def _level(states: Sequence[State]) -> bool:
    owned = _owned(states)
    return max(owned) - min(owned) <= 1


def _settled(states: Sequence[State], members: int, partitions: int) -> bool:
    return len(_owned(states)) == members and sum(_owned(states)) == partitions and _level(states)


def _reads(states: Sequence[State], partitions: int) -> bool:
    reading: int = sum(state["reading"] for state in states)
    return sum(_owned(states)) == partitions == reading


def _gap_ms(workers: Sequence[Worker]) -> float:
    gap_s: float = max(state["gap_s"] for state in _exchange_all(workers, "report"))
    return gap_s * 1e3


def _send_all(workers: Sequence[Worker], order: str) -> None:
    for worker in workers:
        worker.go(order=order)


def _receive_all(workers: Sequence[Worker]) -> list[State]:
    return [worker.receive("ready", SETTLED_S_MAX) for worker in workers]


def _exchange_all(workers: Sequence[Worker], order: str) -> list[State]:
    _send_all(workers, order)
    return _receive_all(workers)


def _wait_until(workers: Sequence[Worker], there: Callable[[Sequence[State]], bool]) -> list[State]:
    """Waits for a condition on the members' reports, and returns them."""
    deadline = time.monotonic() + SETTLED_S_MAX
    while True:
        states = _exchange_all(workers, "report")
        if there(states):
            return states
        if time.monotonic() > deadline:
            raise BenchFailed(f"members have not reached the expected state after {SETTLED_S_MAX:.0f} s: {states}")
        time.sleep(POLL_S)


def _end(workers: Sequence[Worker]) -> None:
    _send_all(workers, "stop")
    for worker in workers:
        worker.done()


# ---- all subjects

# Compared subjects are measured in turn.
_SUBJECTS: Final[Subjects[GroupBench]] = {
    ("explicit", "group"): explicit_and_group,
    ("at_least_once", "exactly_once"): transforming,
    ("shared_ack",): alone(shared_ack),
    ("takeover",): alone(takeover),
    ("rebalance_100x1000",): alone(rebalance),
}
COMPARED: Final = compared(_SUBJECTS)
ABOUT: Final = {
    "explicit": "catch up on four partitions without a group",
    "group": "the same as the only member of a group",
    "at_least_once": "consume, transform, produce, commit by 1,000 records",
    "exactly_once": "the same in transactions of 1,000 records",
    "shared_ack": "a share group, each record acknowledged by itself",
    "takeover": "from a member's leave or death until another reads on",
    "rebalance_100x1000": "a member more or less among 100, with 1,000 partitions",
}


def run_groups(
    names: Sequence[str], sizes: GroupSizes, *, address: str | None, folder: Path | None, progress: Progress
) -> dict[str, Result]:
    """Results by name; those that are compared with each other come together."""

    @contextmanager
    def surroundings(_subject: str) -> Iterator[GroupBench]:
        with given_broker(address) if address is not None else own_broker(folder) as broker:
            yield GroupBench(sizes, broker)

    return run_compared(_SUBJECTS, names, surroundings, progress)


SUITE: Final = Suite(ABOUT, FULL, QUICK, run_groups, COMPARED)
