"""`python -m tests.robustness.transaction_cycles --cycles 100 [--cluster]`: brokers die, and no transaction is torn.

One broker that is killed, or three with a real etcd of which any one is killed or stands still for three leases. Two
producers write transactions over all partitions, some of which they abort; one consumer reads what is committed, all
through every death. At the end: what was committed is there whole and once, what was aborted is not there at all, what
nobody knows of is there whole or not at all, the consumer saw just that, and nobody waits for anything any more. How an
unknown end turned out the writer learns from the note that it finds when it opens its id again, and is held to that.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import comet
from tests.robustness.cluster import cluster
from tests.robustness.process import BrokerProcess
from tests.waiting import pace, until, until_answered

TOPIC = "ledger"
PARTITIONS = 3
WRITERS = 2
LAST = b"the last one"  # of a partition
STALL_S_MAX = 60.0
LIFE_S_MAX = 0.3  # how long a broker lives under load before it is killed
SESSION_MS = 2_000
LOCKS_PAUSED = 3
PAUSES = 0.2  # of what strikes a cluster
HASTE = 0.2  # of the transactions: their writer gives up at some moment, as if it died
HASTE_S_MAX = 0.03


class ChangedMyMindError(Exception):
    """Aborts a transaction."""


@dataclass(slots=True)
class Report:
    cycles: int = 0
    written: dict[str, list[bytes]] = field(default_factory=dict)  # transaction -> its records
    committed: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    learnt: int = 0  # of those, how many from the note
    seen: list[bytes] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        unknown = len(self.written) - len(self.committed) - len(self.aborted)
        return (
            f"{self.cycles} cycles, {len(self.committed)} transactions committed, {len(self.aborted)} aborted, "
            f"{self.learnt} of them learnt from the note, {unknown} unknown, {len(self.seen)} records seen; "
            f"{len(self.violations)} violations"
        )


async def run(data: Path, cycles: int, seed: int, flush: str = "interval") -> Report:
    """Kills the one broker again and again."""
    report = Report()
    broker = BrokerProcess(data)
    broker.start()

    async def kill(_: Random) -> None:
        broker.kill()
        broker.launch()
        await asyncio.to_thread(broker.wait_ready)

    try:
        await _cycles([broker.address], report, cycles, seed, kill, flush=flush, replicas=1)
        report.violations += broker.complaints()
    finally:
        broker.kill()
    return report


async def run_cluster(folder: Path, cycles: int, seed: int, flush: str = "interval") -> Report:
    """Kills or pauses any of three brokers, who may lead a partition, coordinate a transaction, or both."""
    report = Report()
    async with cluster(folder, options=("--session-ms", str(SESSION_MS))) as one:

        async def strike(random: Random) -> None:
            number = random.choice(list(one.brokers))
            if random.random() < PAUSES:
                one.brokers[number].signal(signal.SIGSTOP)
                try:
                    await pace(SESSION_MS / 1000 * LOCKS_PAUSED)
                finally:
                    one.brokers[number].signal(signal.SIGCONT)
            else:
                one.brokers[number].kill()
                await pace(random.uniform(0, 2 * SESSION_MS / 1000))
                await one.restart(number)
            await one.well(TOPIC)

        await _cycles(one.addresses, report, cycles, seed, strike, flush=flush, replicas=3)
        report.violations += one.complaints()
    return report


async def _cycles(
    addresses: list[str],
    report: Report,
    cycles: int,
    seed: int,
    strike: Callable[[Random], Awaitable[None]],
    *,
    flush: str,
    replicas: int,
) -> None:
    async with comet.Admin(addresses) as admin:
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replicas=replicas, flush=flush, segment_bytes=1 << 20)
    stop = asyncio.Event()
    writers = [
        asyncio.create_task(_write(addresses, number, report, stop, Random(seed + number))) for number in range(WRITERS)
    ]
    reading = asyncio.create_task(_read(addresses, report))
    random = Random(seed - 1)
    for _ in range(cycles):
        known = len(report.committed)
        if not await until(lambda known=known: len(report.committed) > known, within_s=STALL_S_MAX, every_s=0.002):  # type: ignore[misc]
            report.violations.append(f"nothing was committed for {STALL_S_MAX:.0f} s in cycle {report.cycles}")
            break
        await pace(random.uniform(0, LIFE_S_MAX))
        await strike(random)
        report.cycles += 1
        for task in (*writers, reading):
            if task.done():
                task.result()  # raises what ended it
    stop.set()
    await asyncio.gather(*writers)
    await _check(addresses, report, reading)


async def _write(addresses: list[str], number: int, report: Report, stop: asyncio.Event, random: Random) -> None:
    count, name, last = 0, "", ""
    while not stop.is_set():
        # A producer whose transaction came to an unknown end is opened again: that ends it, and the note says how.
        async with comet.TransactionalProducer(
            addresses, f"writer-{number}", timeout_ms=30_000, transaction_timeout_ms=20_000
        ) as producer:
            if name:
                report.learnt += 1
                counts = producer.note.decode() == name
                last = name if counts else last
                (report.committed if counts else report.aborted).add(name)
            while not stop.is_set():
                if producer.note.decode() != last:
                    report.violations.append(f"the note is {producer.note!r}, and {last!r} was committed last")
                count += 1
                name = f"{number}-{count}"
                if not await _transact(producer, name, report, random):
                    break
                last = name if name in report.committed else last


async def _transact(producer: comet.TransactionalProducer, name: str, report: Report, random: Random) -> bool:
    """False when it is not known how it ended."""
    records = [
        f"{name}:{at}:".encode() + random.randbytes(random.randint(1, 200)) for at in range(random.randint(1, 20))
    ]
    report.written[name] = records
    patience_s = random.uniform(0, HASTE_S_MAX) if random.random() < HASTE else None
    try:
        async with asyncio.timeout(patience_s), producer.transaction() as tx:
            for at, record in enumerate(records):
                await tx.send(TOPIC, record, partition=at % PARTITIONS)
            tx.note(name.encode())
            if random.random() < 0.3:
                raise ChangedMyMindError
    except TimeoutError:
        return False
    except ChangedMyMindError:
        report.aborted.add(name)
    except comet.TransactionAborted:
        report.aborted.add(name)
    except comet.CometError as error:
        if not error.outcome_unknown:
            report.aborted.add(name)
        return False
    else:
        report.committed.add(name)
    return True


async def _read(addresses: list[str], report: Report) -> None:
    async with comet.Consumer(addresses, TOPIC, start="earliest") as consumer:
        async for record in consumer:
            if record.value != LAST:
                report.seen.append(record.value)


async def _check(addresses: list[str], report: Report, reading: asyncio.Task[None]) -> None:
    await _wait_for_the_end_of_all(addresses)
    kept = await _kept(addresses)
    await until(lambda: len(report.seen) >= len(kept), within_s=STALL_S_MAX)
    reading.cancel()
    await asyncio.wait([reading])
    if Counter(report.seen) != Counter(kept):
        report.violations.append(
            f"the consumer saw {len(report.seen)} records, {len(kept)} are there: it skipped, repeated or saw too much"
        )
    _compare(report, kept)


async def _wait_for_the_end_of_all(addresses: list[str]) -> None:
    """Fails if somebody waits for ever."""
    async with comet.Admin(addresses) as admin, asyncio.timeout(STALL_S_MAX):

        async def holds() -> bool:
            topic = await admin.describe_topic(TOPIC)
            return topic.totals.complete and all(
                one.last_stable_offset == one.high_watermark for one in topic.partitions
            )

        assert await until_answered(holds, within_s=STALL_S_MAX)


async def _kept(addresses: list[str]) -> list[bytes]:
    """All that a reader of what is committed finds, partition by partition."""
    kept: list[bytes] = []
    async with comet.Producer(addresses) as producer:
        for partition in range(PARTITIONS):
            await producer.publish(TOPIC, LAST, partition=partition)
    for partition in range(PARTITIONS):
        async with comet.Consumer(addresses, TOPIC, start="earliest", partitions=[partition]) as consumer:
            async for record in consumer:
                if record.value == LAST:
                    break
                kept.append(record.value)
    return kept


def _compare(report: Report, kept: list[bytes]) -> None:
    say = report.violations.append
    found: dict[str, set[bytes]] = defaultdict(set)
    for value in kept:
        name = value.split(b":")[0].decode()
        if value in found[name]:
            say(f"{value[:20]!r} is there twice")
        found[name].add(value)
    for name, records in report.written.items():
        there = found.pop(name, set())
        if there and there != set(records):
            say(f"transaction {name} is torn: {len(there)} of {len(records)} records are there")
        if name in report.committed and not there:
            say(f"transaction {name} was committed, and is not there")
        if name in report.aborted and there:
            say(f"transaction {name} was aborted, and is there")
    if found:
        say(f"nobody wrote {sorted(found)[:5]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.robustness.transaction_cycles", description=__doc__)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flush", default="interval", choices=["always", "interval", "os"])
    parser.add_argument("--cluster", action="store_true")
    options = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        chosen = run_cluster if options.cluster else run
        report = asyncio.run(chosen(Path(folder) / "data", options.cycles, options.seed, options.flush))
    print(f"{report}, {time.perf_counter() - began:.0f} s")
    print("\n".join(report.violations))
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
