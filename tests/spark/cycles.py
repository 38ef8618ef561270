"""`python -m tests.spark.cycles --minutes 5 --seed 1 [--cluster]`: a Spark job dies, and each result is there once.

A job of two queries (see `job`) runs from a topic to two others, as a process with a checkpoint. Again and again, at
random: the driver is killed, with all its threads in the middle of something; one of the processes that do the work;
with `--master 'local-cluster[2,1,1024]'` an executor, which then is a process of its own; the broker, or with
`--cluster` any of three, most of which lead something. What died is started again, and the job
goes on from its checkpoint. At the end each record has one copy, and each window is as it is when it is computed
from the same input at once. Nothing was ever lost to the source on the way, and the job has ended only where it, or
a worker, was killed, or a new worker had not begun within the time that Spark gives it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from subprocess import DEVNULL, Popen
from typing import Final

import psutil

import comet
from tests.robustness.cluster import ClusterProcesses, cluster
from tests.robustness.process import BrokerProcess
from tests.spark.job import WINDOW_S
from tests.waiting import until

PARTITIONS: Final = 2
KEYS: Final = 5
FIRST_S: Final = 1_700_000_000  # of the time in events
STEP_US: Final = 50_000  # between events
CHUNK: Final = 50  # written at once
SESSION_MS: Final = 2_000
PROGRESS_S_MAX: Final = 240.0
LOST: Final = "cannot be read any more"  # as the source says it
SLOW: Final = b"Timed out while waiting for the Python worker to connect back"  # Spark has ten seconds, and no setting
WRONG: Final = re.compile("ERROR|Error|Exception")
EXCUSED: Final = 2  # strikes in which a job may end of a worker that was killed
FAR_S: Final = 3_600  # behind all others: an event there ends their windows


@dataclass(slots=True)
class Report:
    strikes: Counter[str] = field(default_factory=Counter)
    starts: int = 0  # of the job
    events: int = 0
    windows: int = 0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        struck = ", ".join(f"{count} {name}" for name, count in sorted(self.strikes.items()))
        return (
            f"{self.starts} starts of the job, {struck}; {self.events} events, {self.windows} windows; "
            f"{len(self.violations)} violations"
        )


class Job:
    """The driver's process, and what it starts. Started again when it has ended."""

    def __init__(self, addresses: list[str], folder: Path, master: str, report: Report) -> None:
        self._command = [
            sys.executable, "-m", "tests.spark.job", "--bootstrap", ",".join(addresses),
            "--checkpoint", str(folder / "checkpoint"), "--master", master,
        ]  # fmt: skip
        self.log = folder / "job.log"
        self._report = report
        self._process: Popen[bytes] | None = None
        self._left: list[psutil.Process] = []  # that the driver had started
        self._said = 0  # bytes in its log before it was started
        self.excused = 0  # it may end by itself until so many strikes have been

    def ensure(self) -> None:
        if self._process is None or self._process.poll() is not None:
            said = self.log.read_bytes()[self._said :] if self._process is not None else b""
            if self._process is not None and not self.excused and SLOW not in said:
                self._report.violations.append(f"the job ended, and nothing was done to it: {errors(said)}")
            self.excused = 0
            self.kill()
            with self.log.open("ab") as log:
                self._said = log.tell()
                self._process = Popen(self._command, stdout=log, stderr=log, stdin=DEVNULL)
            self._report.starts += 1

    def complaints(self) -> list[str]:
        """What it says in its log that it cannot read. A restart would have hidden that."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [f"the job's log: {line}" for line in lines if LOST in line][:5]

    def below(self, part: str) -> list[psutil.Process]:
        """Its processes with that in their command line."""
        if self._process is None or self._process.poll() is not None:
            return []
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    if part in " ".join(one.cmdline()):
                        found.append(one)
        return found

    def kill(self) -> None:
        """As `kill -9` of the driver. What else it has started finds itself alone, and may still be writing."""
        self._left = [one for one in self._left if one.is_running()] + self.below("")
        for one in self.below("SparkSubmit"):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def end(self) -> None:
        """With all that it has started."""
        self.kill()
        for one in self._left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(self._left, timeout=30)


class World:
    """Owned by one run: the input, the job, and what has come out of it."""

    def __init__(self, addresses: list[str], folder: Path, seed: int, report: Report, master: str) -> None:
        self.addresses = addresses
        self.report = report
        self.random = Random(seed)
        self.job = Job(addresses, folder, master, report)
        self.copies = 0  # that can be read
        self._next: list[str] = []  # faults
        self._stop = asyncio.Event()

    async def prepare(self, replicas: int) -> None:
        async with comet.Admin(self.addresses) as admin:
            for topic in ("events", "copies", "windows"):
                await admin.create_topic(topic, partitions=PARTITIONS, replicas=replicas)

    async def feed(self) -> None:
        """Writes until it is told to stop, then what ends all windows."""
        async with comet.Producer(self.addresses, acks="all", timeout_ms=120_000) as producer:
            while not self._stop.is_set():
                await self._write(producer, self.report.events, CHUNK, 0)
                self.report.events += CHUNK
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), 0.1)
            await self._write(producer, -KEYS, KEYS, FAR_S)

    async def _write(self, producer: comet.Producer, first: int, count: int, late_s: int) -> None:
        numbers = range(first, first + count)
        values = [json.dumps({"number": number, "key": str(number % KEYS)}).encode() for number in numbers]
        times = [
            time_us(number) + late_s * 1_000_000 + (self.report.events * STEP_US if late_s else 0) for number in numbers
        ]
        await (
            await producer.send_many(
                "events", values, keys=[str(number % KEYS) for number in numbers], timestamps_us=times
            )
        )

    async def watch(self) -> None:
        """Keeps the job running, and knows how far it is."""
        async with comet.Admin(self.addresses, timeout_ms=60_000) as admin:
            while True:
                self.job.ensure()
                with contextlib.suppress(comet.CometError):
                    self.copies = sum((await admin.offsets("copies", "latest")).values())
                await until(lambda: False, within_s=0.1)

    async def strike(self, faults: dict[str, Callable[[], Awaitable[None]]]) -> None:
        """Once the job gets on, at some moment after, one of them; each once before one comes again."""
        before = self.copies
        if not await until(lambda: self.copies > before, within_s=PROGRESS_S_MAX):
            self.report.violations.append(f"nothing was written for {PROGRESS_S_MAX:.0f} s: {tail(self.job.log)}")
            return
        await until(lambda: False, within_s=self.random.uniform(0, 0.5))
        self._next = self._next or self.random.sample(sorted(faults), len(faults))
        name = self._next.pop()
        self.job.excused = max(self.job.excused - 1, 0)
        await faults[name]()
        self.report.strikes[name] += 1

    async def kill_driver(self) -> None:
        self.job.kill()

    async def kill_worker(self) -> None:
        """A process that reads or writes rows, or plans what is read."""
        self._kill_one("pyspark.daemon")

    async def kill_executor(self) -> None:
        """The Java, with its workers; its cluster starts another one."""
        self._kill_one("CoarseGrainedExecutorBackend")

    def _kill_one(self, part: str) -> None:
        if found := self.job.below(part):
            self.job.excused = EXCUSED
            with contextlib.suppress(psutil.NoSuchProcess):
                self.random.choice(sorted(found, key=lambda one: one.pid)).kill()

    async def finish(self, feeding: asyncio.Task[None]) -> None:
        self._stop.set()
        await feeding
        expected = expect(self.report.events)
        copies: list[dict[str, int]] = []
        found: list[dict[str, int]] = []
        deadline = time.monotonic() + PROGRESS_S_MAX
        while time.monotonic() < deadline:
            copies, found = await read(self.addresses, "copies"), await read(self.addresses, "windows")
            if len(copies) >= self.report.events + KEYS and len(found) >= len(expected):
                break
            await until(lambda: False, within_s=0.2)
        self.report.windows = len(found)
        self._check(copies, found, expected)

    def _check(
        self,
        copies: list[dict[str, int]],
        found: list[dict[str, int]],
        expected: dict[tuple[str, int], tuple[int, int]],
    ) -> None:
        """Also what came behind what was waited for: it would be twice."""
        violations = self.report.violations
        numbers = Counter(one["number"] for one in copies)
        wanted = set(range(self.report.events)) | set(range(-KEYS, 0))
        for name, wrong in (
            ("twice", [number for number, times in numbers.items() if times > 1]),
            ("missing", sorted(wanted - numbers.keys())),
            ("from nowhere", sorted(numbers.keys() - wanted)),
        ):
            if wrong:
                violations.append(f"{len(wrong)} events {name}, as {wrong[:5]}")
        times = Counter((str(one["key"]), one["start"]) for one in found)
        violations += [f"window {window} is there {count} times" for window, count in times.items() if count > 1]
        values = {(str(one["key"]), one["start"]): (one["count"], one["sum"]) for one in found}
        violations += [
            f"window {window} is {values.get(window)}, not {expected.get(window)}"
            for window in sorted(values.keys() | expected.keys())
            if values.get(window) != expected.get(window)
        ]


def time_us(number: int) -> int:
    return FIRST_S * 1_000_000 + number * STEP_US


def expect(events: int) -> dict[tuple[str, int], tuple[int, int]]:
    """Key and start of each window that is over: how many events are in it, and the sum of their numbers."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for number in range(events):
        window = (str(number % KEYS), time_us(number) // (WINDOW_S * 1_000_000) * WINDOW_S)
        count, total = found.get(window, (0, 0))
        found[window] = (count + 1, total + number)
    return found


async def read(addresses: list[str], topic: str) -> list[dict[str, int]]:
    """All that is committed."""
    found: list[dict[str, int]] = []
    async with comet.Reader(addresses, timeout_ms=60_000) as reader:
        for partition in range(PARTITIONS):
            at, end = 0, 1
            while at < end:
                part = await reader.fetch(topic, partition, at, records_max=100_000, bytes_max=4 << 20)
                found += [json.loads(value) for batch in part.batches for value in batch.values if value is not None]
                at, end = part.next_offset, part.log_end
    return found


def errors(said: bytes, most: int = 20) -> str:
    """What it says that was wrong, of Python and of Java, without where."""
    lines = [line[:500] for line in said.decode(errors="replace").splitlines() if not line.startswith(("\t", " "))]
    return "\n".join([line for line in lines if WRONG.search(line)][:most]) or "it does not say why"


def tail(log: Path, size: int = 3000) -> str:
    return log.read_text(errors="replace")[-size:] if log.exists() else ""


@contextlib.asynccontextmanager
async def brokers(
    folder: Path, clustered: bool
) -> AsyncIterator[tuple[list[str], Callable[[Random], Awaitable[None]], Callable[[], list[str]]]]:
    """Their addresses, how one is killed and started again, and what they had to complain of."""
    if not clustered:
        one = BrokerProcess(folder / "broker")
        one.start()

        async def again(_: Random) -> None:
            one.kill()
            one.launch()
            await asyncio.to_thread(one.wait_ready)

        try:
            yield [one.address], again, one.complaints
        finally:
            one.kill()
        return
    async with cluster(folder, options=("--session-ms", str(SESSION_MS))) as several:

        async def strike(random: Random) -> None:
            await _strike_one(several, random)

        yield several.addresses, strike, several.complaints


async def _strike_one(several: ClusterProcesses, random: Random) -> None:
    number = random.choice(sorted(several.brokers))
    several.brokers[number].kill()
    await until(lambda: False, within_s=random.uniform(0, 2 * SESSION_MS / 1000))
    await several.restart(number)
    for topic in ("events", "copies", "windows"):
        await several.well(topic)


async def run(
    folder: Path, *, seed: int, strikes: int = 1_000_000, minutes: float = 1e9, clustered: bool = False,
    master: str = "local[2,4]",
) -> Report:  # fmt: skip
    """So many strikes, or for so long; at the end all is looked at."""
    report = Report()
    async with brokers(folder, clustered) as (addresses, kill_broker, complaints):
        world = World(addresses, folder, seed, report, master)
        await world.prepare(3 if clustered else 1)
        faults = {
            "drivers": world.kill_driver,
            "workers": world.kill_worker,
            "brokers": lambda: kill_broker(world.random),
        }
        if master.startswith("local-cluster"):
            faults["executors"] = world.kill_executor
        feeding, watching = asyncio.create_task(world.feed()), asyncio.create_task(world.watch())
        until_s = time.monotonic() + minutes * 60
        try:
            while sum(report.strikes.values()) < strikes and time.monotonic() < until_s and not report.violations:
                await world.strike(faults)
                for task in (feeding, watching):
                    if task.done():
                        task.result()  # raises what ended it
            if not report.violations:
                await world.finish(feeding)
        finally:
            for task in (feeding, watching):
                task.cancel()
            await asyncio.gather(feeding, watching, return_exceptions=True)
            world.job.end()
        report.violations += complaints() + world.job.complaints()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--cluster", action="store_true", help="three brokers and an etcd")
    parser.add_argument("--master", default="local[2,4]", help="such as local-cluster[2,1,1024]")
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="comet-spark-") as folder:
        report = comet.run(
            run(Path(folder), seed=chosen.seed, minutes=chosen.minutes, clustered=chosen.cluster, master=chosen.master)
        )
    print(report)
    for violation in report.violations[:20]:
        print(f"  {violation}")
    sys.exit(bool(report.violations))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
