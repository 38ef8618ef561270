"""`python -m tests.robustness.group_cycles --minutes 5 [--seed N]`: members and brokers die and stand still.

Three brokers and a real etcd; 5 members of a group that handles at least once, 5 of one that consumes, transforms and
produces exactly once, 3 of a share group, and 3 tellers of a bank, each a process. All the time some member is killed,
paused for half a session to two, or leaves, and a broker is killed or paused, or a connection between two dies
silently. Every 20 s the bank holds still and its
book is added up. At the end everything is mended, the groups come to the end of their input, and all that the members
wrote down is held against what is in the topics: see group_notes.

With `--restores N`, etcd goes back to an old snapshot so many times, for seconds, and then the right one is put back.
Brokers refuse the wrong one, so no promise is any weaker. (A snapshot that is recovered is in cluster_cycles.)

Before that, while nothing is wrong, it is measured how long a partition is without an owner that handles it when a
member leaves, and when it is killed.
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
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import comet
from tests.robustness import group_notes
from tests.robustness.cluster import ClusterProcesses, cluster
from tests.robustness.group_member import DEAD, OUT, SESSION_MS
from tests.robustness.group_notes import Verdict
from tests.robustness.group_takeover import QUIET, take_over_ms
from tests.robustness.group_world import (
    BOOK,
    STALL_S_MAX,
    Auditor,
    Feeder,
    MemberProcess,
    Observer,
    balance,
    decided,
    whole,
)
from tests.robustness.silences import complaint, silence
from tests.waiting import pace, until_answered

IN: Final = "in"
PARTITIONS: Final = 10
RATE: Final = 200.0
KEYS: Final = 40
BROKER_BYTES_MAX: Final = 400 << 20
BALANCE_S: Final = 20.0
LOOK_S: Final = 1.0
SESSION_S: Final = SESSION_MS / 1000
WORK_MS: Final = 3.0
RESTORE_SHARE: Final = 0.3  # of the faults of brokers, while there are some to come


@dataclass(slots=True)
class Report:
    faults: Counter[str] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    left_ms: list[float] = field(default_factory=list)  # from leaving until another handles, per partition
    killed_ms: list[float] = field(default_factory=list)
    take_overs: int = 0
    balances: int = 0
    transfers: int = 0
    sent: int = 0
    acked: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    broker_bytes: dict[int, int] = field(default_factory=dict)
    caught_up_s: float = 0.0
    stood_still_s: float = 0.0  # not by these faults: the machine had something else to do
    back_s: list[float] = field(default_factory=list)  # after a connection has died silently, until all were in sync
    silences_s: dict[str, float] = field(default_factory=dict)  # the longest times in which nothing was done

    @property
    def violations(self) -> list[str]:
        return self.verdict.violations

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {what}" for what, count in sorted(self.faults.items()))
        memory = ", ".join(f"{bytes_ >> 20}" for bytes_ in self.broker_bytes.values())
        errors = ", ".join(f"{count} {code}" for code, count in self.errors.most_common()) or "none"
        counts = ", ".join(f"{what} {count}" for what, count in self.verdict.counts.items())
        killed = _spread([one - SESSION_MS for one in self.killed_ms])
        silences = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self.silences_s.items())
        return (
            f"faults: {faults or 'none'}; {self.take_overs} take-overs; errors that members saw: {errors}\n"
            f"{self.sent} records sent, {self.acked} acknowledged; {counts}\n"
            f"bank: {self.transfers} transfers seen, {self.balances} balances; longest without: {silences} "
            f"(all stood still for {self.stood_still_s:.0f} s besides)\n"
            f"in sync after a connection died silently: {_spread([one * 1000 for one in self.back_s])}\n"
            f"take-over after leaving: {_spread(self.left_ms)}; after kill -9, beyond the session: {killed}\n"
            f"brokers' memory at most {memory} MiB; caught up {self.caught_up_s:.1f} s after all was mended; "
            f"{len(self.violations)} violations"
        )


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    return f"median {statistics.median(values):.0f} ms, most {max(values):.0f} ms of {len(values)}"


class Storm:
    """One run. Owned by `run`; all on one loop."""

    def __init__(
        self,
        folder: Path,
        one: ClusterProcesses,
        report: Report,
        random: Random,
        *,
        silences: float = 0.0,
        restores: int = 0,
    ) -> None:
        self.restores = restores  # that are still to come
        self.folder = folder
        self.silences = silences  # of the faults of brokers, this share
        self.one = one
        self.report = report
        self.random = random
        self.members = [
            *self._members("at_least_once", "alo", 5),
            *self._members("exactly_once", "eos", 3),
            *self._members("exactly_once_app", "eos", 2, first=3),
            *self._members("shared", "share", 3),
        ]
        self.tellers = self._members("teller", "teller", 3, topic=BOOK)
        self.struck: set[str] = set()
        self.bank = asyncio.Lock()  # held while no teller may be struck
        self.over = asyncio.Event()
        self.stopped: list[group_notes.Span] = []  # when this process, and so perhaps all, stood still

    def _members(self, kind: str, group: str, count: int, *, first: int = 0, topic: str = IN) -> list[MemberProcess]:
        return [
            MemberProcess(self.folder, self.one.addresses, kind, group, topic, number, work_ms=WORK_MS)
            for number in range(first, first + count)
        ]

    async def topics(self) -> None:
        async with comet.Admin(self.one.addresses) as admin:
            for topic, partitions in ((IN, PARTITIONS), (OUT, PARTITIONS), (BOOK, 4), (DEAD, 1), (QUIET, PARTITIONS)):
                await admin.create_topic(topic, partitions=partitions, replicas=3, min_insync=2)
        await self._well()

    async def _well(self) -> None:
        for topic in (IN, OUT, BOOK, QUIET):
            await self.one.well(topic)

    # ---- faults

    async def rage(self, seconds: float) -> None:
        everybody = [*self.members, *self.tellers]
        for member in everybody:
            member.launch()
        feeder = Feeder(self.one.addresses, IN, RATE, KEYS)
        observer = Observer(self.one.addresses, ["alo", "eos"])
        auditor = Auditor(self.one.addresses, BOOK)
        beside = [asyncio.create_task(task) for task in (observer.run(), auditor.run(), self._watch())]
        feeding = asyncio.create_task(feeder.run())
        faults = [
            asyncio.create_task(self._strike_members()),
            asyncio.create_task(self._strike_members()),
            asyncio.create_task(self._strike_brokers()),
            asyncio.create_task(self._balance(auditor)),
        ]
        try:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                await asyncio.wait([*faults, *beside, feeding], timeout=1, return_when=asyncio.FIRST_COMPLETED)
                for task in (*faults, *beside, feeding):
                    if task.done():
                        task.result()  # raises what ended it
                        raise AssertionError(f"{task} has ended")
            self.over.set()
            await asyncio.gather(*faults)
            feeder.stop.set()  # or a machine that does not keep up with it would never be well
            await feeding
            await self._well()
            mended = time.monotonic()
            await self._caught_up()
            self.report.caught_up_s = time.monotonic() - mended
            await self._end(feeder, observer, auditor)
        finally:
            for task in (*faults, *beside, feeding):
                task.cancel()
            for member in everybody:
                await asyncio.to_thread(member.kill)

    def _count(self, fault: str, whose: str) -> None:
        self.report.faults[fault] += 1
        with (self.folder / "faults.log").open("a") as log:
            log.write(f"{time.monotonic():.3f} {time.strftime('%H:%M:%S')} {fault} {whose}\n")

    async def _strike_members(self) -> None:
        random = self.random
        while not self.over.is_set():
            await self._rest(random.uniform(0.2, 2.5))
            free = [one for one in (*self.members, *self.tellers) if one.name not in self.struck and one.running]
            if not free:
                continue
            member = random.choice(free)
            async with self._struck(member):
                fault = random.choices(("kill", "pause", "leave"), (5, 4, 2))[0]
                self._count(f"{fault}s of members", member.life.name)
                if fault == "pause":
                    member.pause()
                    await pace(random.uniform(0.5, 2) * SESSION_S)
                    if random.random() < 0.2:
                        await asyncio.to_thread(member.kill)
                        member.launch()
                    else:
                        member.resume()
                    continue
                await asyncio.to_thread(member.kill if fault == "kill" else member.terminate)
                await pace(random.choice((0, random.uniform(0, SESSION_S))))
                member.launch()

    @contextlib.asynccontextmanager
    async def _struck(self, member: MemberProcess) -> AsyncIterator[None]:
        """One at a time, and no teller while the bank holds."""
        async with contextlib.AsyncExitStack() as stack:
            if member in self.tellers:
                await stack.enter_async_context(self.bank)
            self.struck.add(member.name)
            try:
                yield
            finally:
                self.struck.discard(member.name)

    async def _strike_brokers(self) -> None:
        """One at a time: two of three must be there."""
        random, one = self.random, self.one
        while not self.over.is_set():
            await self._rest(random.uniform(1, 5))
            if random.random() < self.silences:
                what, back_s = await silence(one, IN, random)
                self._count("silences", f"{what}: in sync {back_s:.1f} s after the mend")
                self.report.back_s.append(back_s)
                self.report.violations.extend(complaint(what, back_s))
                await self._well()
                continue
            if self.restores and random.random() < RESTORE_SHARE:
                self.restores -= 1
                await self._restore()
                continue
            number = random.choice(list(one.brokers))
            broker = one.brokers[number]
            if random.random() < 0.4:
                self._count("pauses of brokers", str(number))
                broker.signal(signal.SIGSTOP)
                try:
                    await pace(random.uniform(0.5, 2) * SESSION_S)
                finally:
                    broker.signal(signal.SIGCONT)
            else:
                self._count("kills of brokers", str(number))
                await asyncio.to_thread(broker.kill)
                await pace(random.uniform(0, SESSION_S))
                await one.restart(number)
            await self._well()

    async def _restore(self) -> None:
        """Etcd goes back to what it held some seconds ago, and is put right again."""
        etcd, old, right = self.one.etcd, self.folder / "etcd-old", self.folder / "etcd-right"
        await asyncio.to_thread(etcd.save, old)
        await pace(self.random.uniform(2, 6))
        self._count("restores of etcd", "etcd")
        await asyncio.to_thread(etcd.exchange, old, right)
        await pace(self.random.uniform(0.5, 2) * SESSION_S)
        await asyncio.to_thread(etcd.restore, right)
        shutil.rmtree(old)
        shutil.rmtree(right)
        await self._well()

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.over.wait()

    async def _balance(self, auditor: Auditor) -> None:
        while not self.over.is_set():
            await self._rest(BALANCE_S)
            await self._look_at_the_book(auditor)

    async def _look_at_the_book(self, auditor: Auditor) -> None:
        async with self.bank:
            self.report.violations.extend(await balance(self.one, self.tellers, auditor, self.folder / "hold"))
        self.report.balances += 1
        self.report.transfers = len(auditor.legs)

    async def _watch(self) -> None:
        while True:
            began = time.monotonic()
            for number, broker in self.one.brokers.items():
                with contextlib.suppress(Exception):  # it is being killed, or started
                    used = broker.resident_bytes()
                    self.report.broker_bytes[number] = max(used, self.report.broker_bytes.get(number, 0))
            await pace(LOOK_S)
            if time.monotonic() - began > 2 * LOOK_S:
                self.stopped.append((began, time.monotonic()))

    # ---- the end

    async def _caught_up(self) -> None:
        lags: dict[str, list[tuple[int, int]]] = {}
        async with comet.Admin(self.one.addresses) as admin:

            async def holds() -> bool:
                for group in ("alo", "eos", "share"):
                    with contextlib.suppress(comet.CometError):
                        info = await admin.describe_group(group)
                        lags[group] = [(lag.partition, lag.lag) for lag in info.lags if lag.lag]
                return len(lags) == 3 and not any(lags.values())

            if not await until_answered(holds, within_s=STALL_S_MAX, every_s=0.2):
                self.report.violations.append(f"groups do not come to the end; they lag in {lags}")

    async def _end(self, feeder: Feeder, observer: Observer, auditor: Auditor) -> None:
        report, verdict = self.report, self.report.verdict
        await self._look_at_the_book(auditor)
        everybody = [*self.members, *self.tellers]
        await asyncio.gather(*(asyncio.to_thread(member.terminate) for member in everybody))
        for topic in (IN, OUT, BOOK, DEAD):
            await decided(self.one, topic)
        given, made, dead = await whole(self.one, IN), await whole(self.one, OUT), await whole(self.one, DEAD)
        lives = [life for member in self.members for life in member.lives]
        for member in everybody:
            for life in member.lives:
                life.read()
                report.errors.update(note.words[0] for note in life.notes if note.what == "!")
            report.violations.extend(member.complaints())
        report.sent, report.acked = feeder.sent, len(feeder.acked)
        if feeder.failed:
            verdict.say(f"{feeder.failed} records were not acknowledged")
        if any(dead.values()):
            verdict.say(f"dead letters of records that nobody gave up: {sum(map(len, dead.values()))}")
        of: Callable[[str], list[group_notes.Life]] = lambda group: [one for one in lives if one.group == group]  # noqa: E731
        group_notes.inputs(verdict, given, feeder.acked, dict(feeder.numbers))
        group_notes.at_least_once(
            verdict, of("alo"), given, [look for look in observer.looks if look.group == "alo"]
        )  # fmt: skip
        group_notes.outputs(verdict, made, given)
        group_notes.transactions(verdict, of("eos"), "exactly once")
        group_notes.shared(verdict, of("share"), given)
        group_notes.positions_only_rise(verdict, observer.looks)
        told = [life for one in self.tellers for life in one.lives]
        group_notes.transactions(verdict, told, "transfers")
        report.stood_still_s = sum(end - began for began, end in self.stopped)
        for what, doing, letter in (
            ("handling at least once", of("alo"), "H"),
            ("a commit exactly once", of("eos"), "C"),
            ("an acknowledgement in the share group", of("share"), "K"),
            ("a transfer", told, "C"),
        ):
            report.silences_s[what] = group_notes.longest_silence_s(doing, letter, self.stopped)
        report.take_overs = group_notes.take_overs(lives)
        verdict.violations += self.one.complaints()
        for number, used in report.broker_bytes.items():
            if used > BROKER_BYTES_MAX:
                verdict.say(f"broker {number} had {used >> 20} MiB")


async def run(
    folder: Path, *, seconds: float, seed: int, measured: int, silences: float = 0.0, restores: int = 0
) -> Report:
    report = Report()
    async with cluster(folder, options=("--session-ms", str(SESSION_MS)), links="wire" if silences else None) as one:
        storm = Storm(folder, one, report, Random(seed), silences=silences, restores=restores)
        await storm.topics()
        if measured:
            report.left_ms, report.killed_ms = await take_over_ms(one, folder, measured)
            print(f"take-over: left {_spread(report.left_ms)}, killed {_spread(report.killed_ms)}", flush=True)
        if seconds:
            await storm.rage(seconds)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.robustness.group_cycles", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--take-overs", type=int, default=5, help="how often each kind is measured")
    parser.add_argument(
        "--silences",
        type=float,
        default=0.0,
        help="so many of the faults of brokers, such as 0.2, are connections that die silently; puts brokers behind "
        "proxies, which answer for one that was killed",
    )
    parser.add_argument("--restores", type=int, default=0, help="how often etcd goes back for some seconds")
    parser.add_argument("--folder", type=Path, help="keeps all that brokers and members have written")
    options = parser.parse_args()
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        report = asyncio.run(
            run(
                folder,
                seconds=options.minutes * 60,
                seed=options.seed,
                measured=options.take_overs,
                silences=options.silences,
                restores=options.restores,
            )
        )
    print(f"seed {options.seed}, {time.perf_counter() - began:.0f} s\n{report}")
    print("\n".join(report.violations[:50]))
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
