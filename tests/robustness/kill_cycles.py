"""`python -m tests.robustness.kill_cycles --cycles 500`: kill -9 under load; nothing acknowledged may be lost.

One idempotent producer sends all the time, one consumer reads all the time, both through every death of the broker.
At the end the whole log is read: every record that was acknowledged is at its offset, none is there twice, all are in
the order in which they were sent, and the consumer saw each of them once.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import comet
from tests.robustness.process import BrokerProcess
from tests.waiting import pace, until

TOPIC = "cycles"
STALL_S_MAX = 30.0
LIFE_S_MAX = 0.2  # how long a broker lives under load before it is killed


@dataclass(slots=True)
class Report:
    cycles: int = 0
    sent: int = 0
    acked: dict[int, bytes] = field(default_factory=dict)  # by offset
    failed: int = 0
    consumed: list[tuple[int, bytes]] = field(default_factory=list)
    recovery_s_max: float = 0.0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.cycles} cycles, {self.sent} records sent, {len(self.acked)} acknowledged, {self.failed} unknown, "
            f"{len(self.consumed)} consumed; slowest start {self.recovery_s_max:.2f} s; "
            f"{len(self.violations)} violations"
        )


async def run(data: Path, cycles: int, seed: int, flush: str = "interval") -> Report:
    report = Report()
    broker = BrokerProcess(data)
    broker.start()
    try:
        async with comet.Admin(broker.address) as admin:
            await admin.create_topic(TOPIC, flush=flush, segment_bytes=1 << 20)
        stop = asyncio.Event()
        load = asyncio.create_task(_load(broker.address, report, stop, Random(seed)))
        reading = asyncio.create_task(_consume(broker.address, report))
        await _cycle(broker, report, cycles, Random(seed + 1), [load, reading])
        stop.set()
        await load
        await _check(broker.address, report, reading)
        report.violations += broker.complaints()
    finally:
        broker.kill()
    return report


async def _cycle(
    broker: BrokerProcess, report: Report, cycles: int, random: Random, watched: list[asyncio.Task[None]]
) -> None:
    for _ in range(cycles):
        # Time under load starts with the first acknowledgement, so that every life has something to lose.
        known = len(report.acked)
        if not await until(lambda known=known: len(report.acked) > known, within_s=STALL_S_MAX, every_s=0.002):  # type: ignore[misc]
            report.violations.append(f"nothing was acknowledged for {STALL_S_MAX:.0f} s in cycle {report.cycles}")
            return
        await pace(random.uniform(0, LIFE_S_MAX))
        broker.kill()
        began = time.perf_counter()
        broker.launch()
        await asyncio.to_thread(broker.wait_ready)
        report.recovery_s_max = max(report.recovery_s_max, time.perf_counter() - began)
        report.cycles += 1
        for task in watched:
            if task.done():
                task.result()  # raises what ended it


async def _load(address: str, report: Report, stop: asyncio.Event, random: Random) -> None:
    settling: set[asyncio.Task[None]] = set()

    async def settle(delivery: comet.Delivery, value: bytes) -> None:
        try:
            receipt = await delivery
        except comet.CometError:
            report.failed += 1
            return
        if report.acked.setdefault(receipt.offset, value) != value:
            report.violations.append(f"offset {receipt.offset} was acknowledged for two records")

    async with comet.Producer(address, batch_bytes=4096, buffer_bytes=256 << 10, timeout_ms=60_000) as producer:
        while not stop.is_set():
            for _ in range(random.randint(1, 50)):
                value = b"%d:" % report.sent + random.randbytes(random.randint(10, 400))
                report.sent += 1
                task = asyncio.create_task(settle(await producer.send(TOPIC, value), value))
                settling.add(task)
                task.add_done_callback(settling.discard)
            await pace(0.002)
        await producer.flush()
        if settling:
            await asyncio.wait(settling)


async def _consume(address: str, report: Report) -> None:
    async with comet.Consumer(address, TOPIC, start="earliest") as consumer:
        async for batch in consumer.batches():
            report.consumed += zip(batch.offsets, (value or b"" for value in batch.values), strict=True)


async def _check(address: str, report: Report, reading: asyncio.Task[None]) -> None:
    log: dict[int, bytes] = {}
    async with comet.Consumer(address, TOPIC, start="earliest") as consumer:
        end = (await consumer.end_offsets())[0]
        async for batch in consumer.batches():
            log.update(zip(batch.offsets, (value or b"" for value in batch.values), strict=True))
            if batch.next_offset >= end:
                break
    await until(lambda: bool(report.consumed) and report.consumed[-1][0] >= end - 1, within_s=STALL_S_MAX)
    reading.cancel()
    await asyncio.wait([reading])
    say = report.violations.append
    if list(log) != list(range(end)):
        say(f"the log holds {len(log)} records up to {end}")
    for offset, value in report.acked.items():
        if log.get(offset) != value:
            say(f"what was acknowledged at {offset} is not there")
    numbers = [int(value.split(b":")[0]) for value in log.values()]
    if numbers != sorted(set(numbers)):
        say("records are twice in the log, or out of order")
    if report.consumed != list(log.items()):
        say(f"the consumer saw {len(report.consumed)} records, the log holds {len(log)}: it skipped, repeated or mixed")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.robustness.kill_cycles", description=__doc__)
    parser.add_argument("--cycles", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flush", default="interval", choices=["always", "interval", "os"])
    options = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run(Path(folder) / "data", options.cycles, options.seed, options.flush))
    print(f"{report}, {time.perf_counter() - began:.0f} s")
    print("\n".join(report.violations))
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
