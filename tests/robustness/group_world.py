"""Members, tellers and a feeder around a real cluster: what group_cycles lets run, strikes, and looks at."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import comet
from comet.client.client import Client
from comet.client.coordinator import Coordinator
from comet.entities import PartitionInfo
from comet.processes.child import Child, python_module
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from tests.pausing import stand_still
from tests.robustness.cluster import ClusterProcesses
from tests.robustness.group_notes import Life, Look, Slot, Topic
from tests.waiting import pace, until, until_answered

LEAVE_S_MAX: Final = 30.0
STALL_S_MAX: Final = 90.0
SAID_MAX: Final = 40  # lines of a member that complained
BOOK: Final = "accounts"


class MemberProcess:
    """One member over all of its lives; each life is a process with a file of its own."""

    def __init__(
        self, folder: Path, addresses: list[str], kind: str, group: str, topic: str, number: int, *, work_ms: float = 0
    ) -> None:
        self.kind = kind
        self.group = group
        self.name = f"{group}-{number}"
        self.lives: list[Life] = []
        self.paused = False
        self._leaving = False
        self.faults: list[str] = []
        self._folder = folder
        self._log = folder / f"{self.name}.log"
        self._child: Child | None = None  # while it runs
        self._command = python_module(
            "tests.robustness.group_member", kind, "--addresses", ",".join(addresses),
            "--group", self.name if kind == "teller" else group, "--topic", topic, "--work-ms", str(work_ms),
            "--hold", str(folder / "hold"),
        )  # fmt: skip

    @property
    def life(self) -> Life:
        return self.lives[-1]

    @property
    def running(self) -> bool:
        return self._child is not None

    def launch(self) -> None:
        name = f"{self.name}.{len(self.lives)}"
        self.lives.append(Life(self.group, name, self._folder / f"{name}.notes"))
        self._child = Child(name, [*self._command, "--notes", str(self.life.path)], log=self._log)
        self._child.start()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        """It leaves its group, and ends."""
        self._end(signal.SIGTERM)

    def begin_leaving(self) -> None:
        assert self._child is not None
        self._child.signal(signal.SIGTERM)
        self._leaving = True

    def _end(self, number: int) -> None:
        child = self._child
        if child is None:
            return
        early = None if self._leaving else child.ended
        self.life.read()
        begun = bool(self.life.notes)
        if not (self._leaving and number == signal.SIGTERM):  # a second one would hit what is about to end
            child.signal(number)
        self._leaving = False
        if self.paused:
            self.resume()
        code = child.wait(LEAVE_S_MAX)
        self._child = None
        if early is not None or (number == signal.SIGTERM and code and begun):
            self.faults.append(f"{self.life.name} ended with code {code}")

    def pause(self) -> None:
        assert self._child is not None
        stand_still(self._child.pid)
        self.paused = True

    def resume(self) -> None:
        assert self._child is not None
        self._child.signal(signal.SIGCONT)
        self.paused = False

    def complaints(self) -> list[str]:
        said = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        words = "Traceback", " died", "BUG", "never retrieved", "was destroyed", "never awaited"
        found = [f"{self.name}: {line}" for line in said if any(word in line for word in words)]
        return self.faults + ([*found, "\n".join(said[-SAID_MAX:])] if found else [])


@dataclass(slots=True)
class Feeder:
    """Writes `key:number` to the input, all acknowledged by all in-sync replicas."""

    addresses: list[str]
    topic: str
    rate: float
    keys: int
    sent: int = 0
    failed: int = 0
    acked: dict[Slot, bytes] = field(default_factory=dict)
    numbers: dict[bytes, int] = field(default_factory=lambda: defaultdict(int))
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        settling: set[asyncio.Task[None]] = set()
        began = time.monotonic()
        async with comet.Producer(self.addresses, acks="all", timeout_ms=120_000) as producer:
            while not self.stop.is_set():
                while self.sent < (time.monotonic() - began) * self.rate:
                    key = b"k%02d" % (self.sent * 7 % self.keys)
                    value = b"%s:%d" % (key, self.numbers[key])
                    self.numbers[key] += 1
                    self.sent += 1
                    task = asyncio.create_task(self._settle(await producer.send(self.topic, value, key=key), value))
                    settling.add(task)
                    task.add_done_callback(settling.discard)
                await pace(0.01)
            if settling:
                await asyncio.wait(settling)

    async def _settle(self, delivery: comet.Delivery, value: bytes) -> None:
        try:
            receipt = await delivery
        except comet.CometError:
            self.failed += 1
        else:
            self.acked[receipt.partition, receipt.offset] = value


class Observer:
    """Asks again and again what is committed."""

    def __init__(self, addresses: list[str], groups: list[str]) -> None:
        self.looks: list[Look] = []
        self._client = Client(addresses)
        self._coordinators = {group: Coordinator(self._client, group) for group in groups}

    async def run(self) -> None:
        try:
            while True:
                for group, coordinator in self._coordinators.items():
                    fetch = pb.ClientFrame(fetch_committed=groups_pb.FetchCommitted(group=group))
                    try:
                        answer = (await coordinator.request(fetch, 3_000)).committed
                    except comet.CometError:
                        continue
                    at = time.monotonic()
                    self.looks += [
                        Look(group, mark.partition, mark.offset, at)
                        for topic in answer.topics
                        for mark in topic.offsets
                    ]
                await pace(0.2)
        finally:
            await self._client.close()


class Auditor:
    """Reads the bank's book, of which it sees what is committed, and adds up."""

    def __init__(self, addresses: list[str], topic: str) -> None:
        self.legs: dict[str, list[int]] = defaultdict(list)
        self._consumer = comet.Consumer(addresses, topic, start="earliest")

    async def run(self) -> None:
        async with self._consumer as consumer:
            async for record in consumer:
                leg = json.loads(record.value)
                self.legs[leg["transfer"]].append(leg["amount"])

    def at(self, partition: int) -> int:
        return self._consumer.positions().get(partition, 0)


async def described(one: ClusterProcesses, topic: str) -> tuple[PartitionInfo, ...]:
    async with comet.Admin(one.addresses) as admin:
        return (await admin.describe_topic(topic)).partitions


async def decided(one: ClusterProcesses, topic: str) -> dict[int, int]:
    """Waits until no transaction is open in the topic; per partition its end."""
    found: tuple[PartitionInfo, ...] = ()

    def ends() -> dict[int, int]:
        known = {part.partition: part.high_watermark for part in found if part.high_watermark is not None}
        return known if len(known) == len(found) else {}

    async def holds() -> bool:
        nonlocal found
        try:
            found = await described(one, topic)
        except comet.CometError:
            return False
        return bool(ends()) and all(part.last_stable_offset == part.high_watermark == part.log_end for part in found)

    if await until_answered(holds, within_s=STALL_S_MAX):
        return ends()
    open_ = [(part.partition, part.last_stable_offset, part.high_watermark, part.log_end) for part in found]
    raise AssertionError(
        f"in {topic} transactions stay open: partition, last stable offset, high watermark, end: {open_}"
    )


async def whole(one: ClusterProcesses, topic: str) -> Topic:
    """All that is committed in a topic, which nobody writes to any more."""
    ends = await decided(one, topic)
    found: Topic = {partition: [] for partition in ends}
    async with comet.Consumer(one.addresses, topic, start="earliest") as consumer, asyncio.timeout(STALL_S_MAX):
        while any(consumer.positions().get(partition, 0) < end for partition, end in ends.items()):
            batch = await consumer.get_batch(0.2)
            if batch is not None:
                found[batch.partition] += zip(batch.offsets, (value or b"" for value in batch.values), strict=True)
    return found


async def balance(one: ClusterProcesses, tellers: list[MemberProcess], auditor: Auditor, hold: Path) -> list[str]:
    """Lets all transfers end, and looks at the book; `hold` is a file that the tellers look for, none of whom is paused
    meanwhile. Returns what is wrong."""
    number = str(time.monotonic())
    await asyncio.to_thread(_put, hold, number)

    def waiting(teller: MemberProcess) -> bool:
        teller.life.read()
        return any(note.what == "W" and note.words == [number] for note in teller.life.notes)

    try:
        if not await until(lambda: all(map(waiting, tellers)), within_s=STALL_S_MAX):
            return [f"transfers did not end: {[teller.life.name for teller in tellers if not waiting(teller)]}"]
        ends = await decided(one, BOOK)
        if not await until(lambda: all(auditor.at(part) >= end for part, end in ends.items()), within_s=STALL_S_MAX):
            return [f"the auditor came to {[auditor.at(part) for part in ends]} of {list(ends.values())}"]
        return audit(tellers, auditor)
    finally:
        await asyncio.to_thread(hold.unlink)


def _put(path: Path, text: str) -> None:
    """All at once."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


def audit(tellers: list[MemberProcess], auditor: Auditor) -> list[str]:
    """The sum is what it was, every transfer has two legs, and what became of it is what its teller was told."""
    wrong = []
    total = sum(amount for amounts in auditor.legs.values() for amount in amounts)
    if total:
        wrong.append(f"the accounts add up to {total} more than they did")
    torn = [name for name, amounts in auditor.legs.items() if len(amounts) != 2 or sum(amounts) != 0]
    if torn:
        wrong.append(f"{len(torn)} transfers are torn, as {torn[:3]}: {[auditor.legs[name] for name in torn[:3]]}")
    for teller in tellers:
        for life in teller.lives:
            life.read()
            for note in life.notes:
                if note.what in "CF" and (note.words[0] in auditor.legs) != (note.what == "C"):
                    said = "committed" if note.what == "C" else "aborted"
                    wrong.append(f"{life.name} was told that transfer {note.words[0]} is {said}, and it is not")
    return wrong
