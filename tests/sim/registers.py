"""Clients that read and compare-and-set single keys, and the check that each key is a linearizable register.

Revisions order the writes of a key. So it is linearizable if every operation fits between those that had ended before
it began and those that began after it: a read or a refusal shows no older revision than was known before, a write gets
a later one, a revision has one value, and of the writes that expect the same revision one succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from comet.errors import CometError, RevisionMismatch
from comet.key_values.kv import KV
from comet.records import partition_for
from tests.sim.history import History, Outcome, PartitionName, Produce, make_value
from tests.sim.workload import outcome_of
from tests.sim.world import World

KEYS: Final = 2  # of each partition: writers meet
Register = tuple[str, bytes]  # topic and key


class Registers:
    """What all clients have been told. Shared by them."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._complaints = history.register_complaints
        self._floors: dict[Register, int] = {}
        self._values: dict[tuple[Register, int], bytes] = {}
        self._followed: set[tuple[Register, int]] = set()

    def floor(self, register: Register) -> int:
        """The last revision that a finished operation has shown; -1: none."""
        return self._floors.get(register, -1)

    def shown(self, register: Register, revision: int, value: bytes | None, floor: int) -> None:
        """An operation that began at this floor was told the revision; -1: the register has no value."""
        self._history.register_answers += 1
        if revision < floor:
            self._complaints.append(f"{register} has revision {revision}, and had {floor} before")
        if value is not None and self._values.setdefault((register, revision), value) != value:
            self._complaints.append(f"{register} has two values at revision {revision}")
        self._floors[register] = max(self.floor(register), revision)

    def written(self, register: Register, expected: int, revision: int, value: bytes, floor: int) -> None:
        if revision <= floor or (register, expected) in self._followed:
            self._complaints.append(f"{register}: {revision} was written over {expected}, and {floor} was known before")
        self._followed.add((register, expected))
        self.shown(register, revision, value, floor)

    def refused(self, register: Register, expected: int, revision: int, floor: int) -> None:
        if revision == expected:
            self._complaints.append(f"{register} has revision {revision}, and was refused to have it")
        self.shown(register, revision, None, floor)


class RegisterClient:
    def __init__(self, world: World, name: str, tps: Sequence[PartitionName], registers: Registers) -> None:
        self.name = name
        self._world = world
        self._random = world.random(name)
        self._registers = registers
        self._number = 0
        self._sessions = 0
        partitions = {topic: sum(other == topic for other, _ in tps) for topic, _ in tps}
        self._keys = {tp: keys_of(tp[1], partitions[tp[0]]) for tp in tps}

    async def run(self) -> None:
        while not self._world.stopping:
            self._sessions += 1
            tp = self._random.choice(list(self._keys))
            kv = KV(
                self._world.addresses,
                tp[0],
                timeout_ms=self._random.choice((300, 3_000, 20_000)),
                name=self.name,
                connect=self._world.network.connect(self.name),
                random=self._world.random(f"{self.name}/sdk/{self._sessions}"),
                clock_us=self._world.clock.wall_us,
            )
            try:
                for _ in range(self._random.randint(1, 20)):
                    keys = self._random.sample(self._keys[tp], self._random.randint(1, KEYS))
                    await asyncio.gather(*[self._raise(kv, tp, key) for key in keys])
                    await self._world.sleep(self._random, 0.05)
            finally:
                await asyncio.shield(kv.close())

    async def _raise(self, kv: KV[bytes], tp: PartitionName, key: bytes) -> None:
        """Reads a key, and most often sets it if nothing else does."""
        registers, register = self._registers, (tp[0], key)
        floor = registers.floor(register)
        try:
            found = await kv.get(key)
        except CometError as error:
            self._world.note(f"{self.name} was told {error.code}")
            return
        revision = -1 if found is None else found.revision
        registers.shown(register, revision, None if found is None else found.value, floor)
        if self._random.random() < 0.7:
            await self._set(kv, tp, key, revision)

    async def _set(self, kv: KV[bytes], tp: PartitionName, key: bytes, expected: int) -> None:
        registers, register = self._registers, (tp[0], key)
        floor = registers.floor(register)
        operation = self._next(tp, key)
        try:
            if expected < 0:
                operation.offset = await kv.create(key, operation.value)
            else:
                operation.offset = await kv.update(key, operation.value, expected)
        except RevisionMismatch as error:
            operation.outcome, operation.code = Outcome.FAIL, error.code
            registers.refused(register, expected, error.revision, floor)
        except CometError as error:
            operation.outcome, operation.code = outcome_of(error), error.code
        else:
            operation.outcome = Outcome.OK
            registers.written(register, expected, operation.offset, operation.value, floor)
            self._world.wrote(operation)
        operation.completed = self._world.now()

    def _next(self, tp: PartitionName, key: bytes) -> Produce:
        writer = f"{self.name}/{key.decode()}"  # its writes are one after the other
        value = make_value(writer, self._number, tp, self._random.choice((60, 200, 1500)))
        operation = Produce(writer, tp, 2, True, value, self._number, self._world.now())
        self._number += 1
        self._world.history.produces.append(operation)
        return operation


def keys_of(partition: int, partitions: int) -> list[bytes]:
    """Keys that belong to a partition."""
    names = (f"key-{at}".encode() for at in range(1_000))
    return [name for name in names if partition_for(name, partitions) == partition][:KEYS]
