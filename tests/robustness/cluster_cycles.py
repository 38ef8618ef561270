"""`python -m tests.robustness.cluster_cycles --kills 100 --pauses 30 --rolls 10 --silences 10`: the leader dies, again
and again.

Three brokers and a real etcd. One producer sends all the time, one consumer reads all the time, both through every
death (kill -9, start again), every pause (SIGSTOP for three leases), every roll (SIGTERM, start again) and every
silence (a firewall forgets a connection between brokers, in one direction or both, or the way to the leader is shut
for some seconds) and every restore (etcd goes back to a snapshot, which `comet cluster recover` has accepted). After a
silence all are in sync again within ten seconds. At the end the brokers stop and everything is held against each other:
what was acknowledged, what the consumer saw, and the logs of all replicas byte for byte.

With acks=all any loss is a violation. With acks=1 and acks=0 what was lost is counted and printed; duplicates, disorder
and replicas that differ are violations still.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import comet
from comet import records
from comet_broker.core.cluster import TopicSpec
from tests.etcd import wait_a_moment
from tests.robustness.cluster import ClusterProcesses, cluster
from tests.robustness.restoring import ready, recover
from tests.robustness.silences import complaint, silence
from tests.waiting import pace, until

TOPIC = "cycles"
SESSION_MS = 3_000
STALL_S_MAX = 60.0
LIFE_S_MAX = 0.3
QUIET_LOOKS = 20
LOCKS_PAUSED = 3
BEHIND_ACKS = 500  # so many come while a follower is down
RUNNING_SHARE = 0.5  # of the restores happen under running brokers


@dataclass(slots=True)
class Report:
    acks: Any = "all"
    kills: int = 0
    pauses: int = 0
    rolls: int = 0
    silences: int = 0
    restores: int = 0
    sent: int = 0
    acked: dict[int, bytes] = field(default_factory=dict)  # by offset
    reacked: int = 0  # acknowledged at an offset that something else had: only what was lost makes room
    ack_times: list[float] = field(default_factory=list)
    failed: int = 0
    consumed: list[tuple[int, bytes]] = field(default_factory=list)
    gaps: list[comet.CometError] = field(default_factory=list)
    kill_stalls_s: list[float] = field(default_factory=list)
    pause_stalls_s: list[float] = field(default_factory=list)
    roll_stalls_s: list[float] = field(default_factory=list)
    silence_stalls_s: list[float] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)  # after silences, until all were in sync
    restore_stalls_s: list[float] = field(default_factory=list)
    lost: int = 0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        stalls = {
            "kill": self.kill_stalls_s,
            "pause": self.pause_stalls_s,
            "roll": self.roll_stalls_s,
            "silence": self.silence_stalls_s,
            "restore": self.restore_stalls_s,
        }
        return (
            f"acks={self.acks}: {self.kills} kills, {self.pauses} pauses, {self.rolls} rolls, "
            f"{self.silences} silences, {self.restores} restores of etcd; "
            f"{self.sent} records sent, {len(self.acked)} acknowledged, {self.failed} unknown, "
            f"{len(self.consumed)} consumed, {self.lost} lost; longest time without an acknowledgement: "
            + ", ".join(f"{what} {_spread(values)}" for what, values in stalls.items())
            + f"; in sync after a silence: {_spread(self.back_s)}; {len(self.violations)} violations"
        )


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    return f"median {statistics.median(values) * 1000:.0f} ms, most {max(values) * 1000:.0f} ms"


async def run(
    folder: Path,
    *,
    kills: int,
    pauses: int,
    rolls: int = 0,
    silences: int = 0,
    restores: int = 0,
    etcd_away_s: float = 0,
    seed: int,
    acks: Any = "all",
    flush: str = "interval",
) -> Report:
    report = Report(acks)
    async with cluster(folder, options=("--session-ms", str(SESSION_MS)), links="wire" if silences else None) as one:
        await one.complete()
        async with comet.Admin(one.addresses) as admin:
            info = await admin.create_topic(TOPIC, replicas=3, flush=flush, segment_bytes=1 << 20)
        await one.well(TOPIC)
        stop = asyncio.Event()
        loading = asyncio.create_task(load(one.addresses, report, stop, Random(seed)))
        reading = asyncio.create_task(consume(one.addresses, report))
        random = Random(seed + 1)
        if etcd_away_s:
            print(await without_etcd(one, report, etcd_away_s))
            await one.well(TOPIC)
        faults = ["kill"] * kills + ["pause"] * pauses + ["roll"] * rolls + ["silence"] * silences
        faults += ["restore"] * restores
        random.shuffle(faults)
        for fault in faults:
            await _strike(one, report, fault, random, [loading, reading])
        stop.set()
        await loading
        await one.well(TOPIC)
        spec = TopicSpec(id=info.id.hex(), partitions=1, created_us=0, config=info.config, replicas=3)
        await check(one, report, reading, spec)
        report.violations += one.complaints()
    return report


async def _strike(
    one: ClusterProcesses, report: Report, fault: str, random: Random, watched: list[asyncio.Task[None]]
) -> None:
    """The leader dies or stands still, and comes back when somebody else acknowledges."""
    await _acknowledged_since(report, len(report.ack_times))
    await pace(random.uniform(0, LIFE_S_MAX))
    leader = await one.leader(TOPIC)
    began = time.perf_counter()
    if fault == "restore":
        await restored_etcd(one, report, random)
    elif fault == "kill":
        one.brokers[leader].kill()
        await _acknowledged_after(report, began)
        report.kills += 1
        report.kill_stalls_s.append(_longest_stall(report, began))
        await one.restart(leader)
    elif fault == "roll":
        code = await asyncio.to_thread(one.brokers[leader].terminate)
        await one.restart(leader)
        await _acknowledged_after(report, time.perf_counter())
        report.rolls += 1
        report.roll_stalls_s.append(_longest_stall(report, began))
        if code:
            report.violations.append(f"broker {leader} ended with code {code}")
    elif fault == "silence":
        what, back_s = await silence(one, TOPIC, random)
        print(f"{what}: in sync {back_s:.1f} s after the mend", flush=True)
        await _acknowledged_after(report, time.perf_counter())
        report.silences += 1
        report.back_s.append(back_s)
        report.silence_stalls_s.append(_longest_stall(report, began))
        report.violations += complaint(what, back_s)
    else:
        one.brokers[leader].signal(signal.SIGSTOP)
        try:
            await pace(SESSION_MS / 1000 * LOCKS_PAUSED)
        finally:
            one.brokers[leader].signal(signal.SIGCONT)
        await _acknowledged_after(report, time.perf_counter())
        report.pauses += 1
        report.pause_stalls_s.append(_longest_stall(report, began))
    await one.well(TOPIC)
    for task in watched:
        if task.done():
            task.result()  # raises what ended it


async def restored_etcd(one: ClusterProcesses, report: Report, random: Random) -> None:
    """Etcd is saved; a follower goes down, the others go on; etcd goes back, under running brokers or while all are
    down. The operator recovers."""
    copy = one.folder / f"etcd-{report.restores}"
    await asyncio.to_thread(one.etcd.save, copy)
    await one.well(TOPIC)
    leader = await one.leader(TOPIC)
    behind = random.choice([number for number in one.brokers if number != leader])
    one.brokers[behind].kill()
    await one.well(TOPIC, replicas=len(one.brokers) - 1)
    count = len(report.ack_times)
    await _acknowledged_since(report, count + BEHIND_ACKS)
    began = time.perf_counter()
    running = random.random() < RUNNING_SHARE
    if not running:
        for number, broker in one.brokers.items():
            if number != behind:
                await asyncio.to_thread(broker.terminate)
    await asyncio.to_thread(one.etcd.restore, copy)
    shutil.rmtree(copy)
    one.brokers[behind].launch()  # first: it knows no more than the snapshot, perhaps
    for number, broker in one.brokers.items():
        if not running and number != behind:
            broker.launch()
    plan = await recover(one)
    # The one that was behind may have been ready for a moment, or may only be now.
    await ready(one, *(set(one.brokers) if not running else {behind, *plan["restart"]}))
    await _acknowledged_after(report, time.perf_counter())
    report.restores += 1
    report.restore_stalls_s.append(_longest_stall(report, began))
    if lost := sum(part["loses"] for part in plan["partitions"]):
        report.violations.append(f"the recovery gave up {lost} records that were committed: {plan}")


async def without_etcd(one: ClusterProcesses, report: Report, seconds: float) -> str:
    """Etcd is stopped for so long. Writes wait when the leases have run out, reads go on, and all heals by itself."""
    began = time.perf_counter()
    await asyncio.to_thread(one.etcd.stop)
    if not await until(_nobody_is_told(report, time.perf_counter() + SESSION_MS / 1000), within_s=STALL_S_MAX):
        report.violations.append("records were acknowledged without a lease")
    stopped_s = report.ack_times[-1] - began
    reads = 0
    while time.perf_counter() - began < seconds or not reads:
        async with comet.Consumer(one.addresses, TOPIC, start="earliest") as consumer:
            async with asyncio.timeout(STALL_S_MAX):
                reads += (await anext(aiter(consumer))).offset == 0
    if report.ack_times[-1] - began > stopped_s:
        report.violations.append("records were acknowledged while nobody could be sure of a lease")
    await asyncio.to_thread(one.etcd.launch)
    back = time.perf_counter()
    await _acknowledged_after(report, back)
    first = next(at for at in report.ack_times if at > back)
    return (
        f"etcd stopped for {back - began:.0f} s: writes went on for {stopped_s:.1f} s, {reads} readers read meanwhile, "
        f"writes were acknowledged {first - back:.1f} s after etcd was back"
    )


def _nobody_is_told(report: Report, since: float) -> Callable[[], bool]:
    """Whether, after that time, nothing is acknowledged from one look to the next, again and again. A moment without
    one says little: this process itself may have stood still."""
    known, looks = 0, 0

    def holds() -> bool:
        nonlocal known, looks
        still = time.perf_counter() > since and len(report.ack_times) == known
        known, looks = len(report.ack_times), looks + 1 if still else 0
        return looks > QUIET_LOOKS

    return holds


async def _acknowledged_since(report: Report, count: int) -> None:
    if not await until(lambda: len(report.ack_times) > count, within_s=STALL_S_MAX, every_s=0.002):
        raise AssertionError(f"nothing was acknowledged for {STALL_S_MAX:.0f} s: {report}")


async def _acknowledged_after(report: Report, when: float) -> None:
    def acknowledged() -> bool:
        return bool(report.ack_times) and report.ack_times[-1] > when

    if not await until(acknowledged, within_s=STALL_S_MAX, every_s=0.002):
        raise AssertionError(f"nothing was acknowledged for {STALL_S_MAX:.0f} s: {report}")
    # Answers that were on their way when the leader died do not end the stall: look a moment longer.
    await pace(0.2)


def _longest_stall(report: Report, since: float) -> float:
    """The longest time without an acknowledgement, from the last one before `since` on."""
    times = report.ack_times
    first = next((at for at in range(len(times) - 1, -1, -1) if times[at] <= since), 0)
    return max((after - before for before, after in zip(times[first:], times[first + 1 :], strict=False)), default=0.0)


def seconds_since_ack(report: Report) -> float:
    return time.perf_counter() - report.ack_times[-1] if report.ack_times else 0.0


async def load(addresses: list[str], report: Report, stop: asyncio.Event, random: Random) -> None:
    settling: set[asyncio.Task[None]] = set()

    async def settle(delivery: comet.Delivery, value: bytes) -> None:
        try:
            receipt = await delivery
        except comet.CometError:
            report.failed += 1
            return
        report.ack_times.append(time.perf_counter())
        if receipt.offset >= 0:
            report.reacked += report.acked.get(receipt.offset, value) != value
            report.acked[receipt.offset] = value

    async with comet.Producer(
        addresses, acks=report.acks, batch_bytes=4096, buffer_bytes=256 << 10, timeout_ms=60_000
    ) as producer:
        while not stop.is_set():
            for _ in range(random.randint(1, 20)):
                value = b"%d:" % report.sent + random.randbytes(random.randint(10, 400))
                report.sent += 1
                task = asyncio.create_task(settle(await producer.send(TOPIC, value), value))
                settling.add(task)
                task.add_done_callback(settling.discard)
            await pace(0.005)
        await producer.flush()
        if settling:
            await asyncio.wait(settling)


async def consume(addresses: list[str], report: Report) -> None:
    async with comet.Consumer(addresses, TOPIC, start="earliest") as consumer:
        moment = asyncio.Event()
        while True:
            try:
                async for batch in consumer.batches():
                    report.consumed += zip(batch.offsets, (value or b"" for value in batch.values), strict=True)
            except (comet.Truncated, comet.OffsetOutOfRange):
                # After a restore of etcd one may lead that knows no more than the snapshot, until the others are back.
                await wait_a_moment(moment)
                await consumer.seek(len(report.consumed), partition=0)


async def check(one: ClusterProcesses, report: Report, reading: asyncio.Task[None], spec: TopicSpec) -> None:
    async with comet.Admin(one.addresses) as admin:
        end = (await admin.offsets(TOPIC))[0]
    caught_up = await until(lambda: bool(report.consumed) and report.consumed[-1][0] >= end - 1, within_s=STALL_S_MAX)
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait([reading])
    await asyncio.to_thread(one.stop)
    say = report.violations.append
    if not caught_up:
        say(f"the consumer came to {report.consumed[-1:]} of {end}")
    logs = await asyncio.to_thread(one.logs, spec, 0)
    if len(logs) != len(one.brokers) or len(set(logs.values())) != 1:
        say(f"the replicas differ: {[(number, len(data)) for number, data in logs.items()]}")
    log = {
        offset: value or b""
        for batch in records.iterate(memoryview(logs[1]))
        for offset, value in zip(batch.offsets, batch.values, strict=True)
    }
    if list(log) != list(range(len(log))):
        say(f"offsets are not dense: {len(log)} records up to {max(log, default=-1)}")
    missing = [offset for offset, value in report.acked.items() if log.get(offset) != value]
    report.lost = len(missing) + report.reacked
    if report.acks == "all" and report.lost:
        say(f"{report.lost} acknowledged records are not where they were acknowledged, the first at {missing[:3]}")
    numbers = [int(value.split(b":")[0]) for value in log.values()]
    if numbers != sorted(set(numbers)):
        twice = len(numbers) - len(set(numbers))
        say(f"{twice} records are twice in the log" if twice else "records are out of order")
    if [(offset, value) for offset, value in report.consumed if log.get(offset) != value]:
        say("the consumer saw what is not in the log")
    seen = [offset for offset, _ in report.consumed]
    if seen != list(range(len(seen))):
        say("the consumer skipped or repeated records")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.robustness.cluster_cycles", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--pauses", type=int, default=30)
    parser.add_argument("--rolls", type=int, default=0)
    parser.add_argument(
        "--silences", type=int, default=0, help="puts the brokers behind proxies, which answer for one that was killed"
    )
    parser.add_argument("--restores", type=int, default=0, help="etcd goes back to a snapshot, and is recovered")
    parser.add_argument("--etcd-away-s", type=float, default=0, help="before all else, stop etcd for so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--acks", default="all", choices=["0", "1", "all"])
    parser.add_argument("--flush", default="interval", choices=["always", "interval", "os"])
    options = parser.parse_args()
    acks = options.acks if options.acks == "all" else int(options.acks)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(
            run(
                Path(folder),
                kills=options.kills,
                pauses=options.pauses,
                rolls=options.rolls,
                silences=options.silences,
                restores=options.restores,
                etcd_away_s=options.etcd_away_s,
                seed=options.seed,
                acks=acks,
                flush=options.flush,
            )
        )
    print(f"{report}, {time.perf_counter() - began:.0f} s")
    print("\n".join(report.violations))
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
