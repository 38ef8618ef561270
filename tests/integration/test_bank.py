"""A bank: accounts in partitions, transfers in transactions. What is committed always adds up to the same.

transfer ─► transaction{account a: -x, account b: +x} ─► commit | abort | a teller that dies in the middle
auditor  ─► reads what is committed, from all partitions: after every whole transfer the sum is 0
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from random import Random

import pytest

import comet
import comet.testing
from comet.producer.transaction import TransactionalProducer

ACCOUNTS = 12
PARTITIONS = 4
TELLERS = 4
TRANSFERS = 40  # of each teller
LOOKS_MIN = 2


class Aborted(Exception):
    """The teller has changed its mind."""


class Bank:
    """What the tellers know: which transfers are committed."""

    def __init__(self, address: str, seed: int) -> None:
        self.address = address
        self.random = Random(seed)
        self.committed: set[str] = set()
        self.aborted: set[str] = set()

    async def teller(self, number: int) -> None:
        """Transfers one after the other; now and then another teller takes its place before it has finished."""
        producer = self._producer(number)
        orphans: list[TransactionalProducer] = []
        try:
            for n in range(TRANSFERS):
                name = f"{number}-{n}"
                fate = self.random.random()
                if fate < 0.1:
                    # Left in the middle, as by a process that dies: the one that comes after it ends it.
                    tx = await producer.transaction().__aenter__()
                    await self._write(tx, name)
                    self.aborted.add(name)
                    orphans.append(producer)
                    producer = self._producer(number)
                    await producer.start()
                    continue
                try:
                    async with producer.transaction() as tx:
                        await self._write(tx, name)
                        if fate < 0.3:
                            raise Aborted
                except Aborted:
                    self.aborted.add(name)
                else:
                    self.committed.add(name)
        finally:
            for one in (*orphans, producer):
                await one.close()

    def _producer(self, number: int) -> TransactionalProducer:
        return TransactionalProducer(self.address, f"teller-{number}")

    async def _write(self, tx: comet.Transaction, name: str) -> None:
        giver, taker = self.random.sample(range(ACCOUNTS), 2)
        amount = self.random.randint(1, 100)
        deliveries = [
            await tx.send(
                "accounts", {"transfer": name, "account": account, "amount": signed}, key=f"account {account}"
            )
            for account, signed in ((giver, -amount), (taker, amount))
        ]
        if self.random.random() < 0.5:
            for delivery in deliveries:
                await delivery


async def snapshots(address: str, bank: Bank, stop: asyncio.Event) -> int:
    """Adds up what is committed, again and again. Returns how often.

    What was committed before a snapshot began is in it as a whole, once the transactions before it are decided, which
    hide it for as long as they are open. Others may be half in it: partitions are read one after the other.
    """
    count = 0
    while not stop.is_set() or count < LOOKS_MIN:
        before = set(bank.committed)
        halves = await snapshot(address, before)
        assert not set(halves) & bank.aborted, "nothing of what was aborted is ever seen"
        assert all(len(amounts) <= 2 for amounts in halves.values()), "nothing twice"
        assert sum(sum(halves[name]) for name in before) == 0
        count += 1
    return count


async def snapshot(address: str, wanted: set[str]) -> dict[str, list[int]]:
    """Per transfer its amounts, until those that are wanted are whole, and the ends of the log are reached."""
    halves: dict[str, list[int]] = defaultdict(list)
    async with comet.Consumer(address, "accounts", type=dict, start="earliest") as consumer, asyncio.timeout(30):
        ends = await consumer.end_offsets()  # below them every transaction is decided
        while (
            any(consumer.positions().get(partition, 0) < end for partition, end in ends.items())
            or any(len(halves[name]) < 2 for name in wanted)
        ):  # fmt: skip
            record = await consumer.get(0.05)  # what is left may be markers
            if record is not None:
                halves[record.value["transfer"]].append(record.value["amount"])
    return halves


@pytest.mark.parametrize("seed", [1, 2])
async def test_money_is_neither_made_nor_lost(seed: int) -> None:
    async with comet.testing.broker({"accounts": PARTITIONS}) as broker:
        bank = Bank(broker.address, seed)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:  # where one fails, the others close while there is a broker
            auditing = group.create_task(snapshots(broker.address, bank, stop))
            await asyncio.gather(*(group.create_task(bank.teller(number)) for number in range(TELLERS)))
            stop.set()
        assert auditing.result() >= LOOKS_MIN
        seen = await snapshot(broker.address, bank.committed)
        assert set(seen) == bank.committed, "all that were committed, and no other"
        assert all(len(amounts) == 2 and sum(amounts) == 0 for amounts in seen.values()), "none torn, none twice"
        assert bank.aborted
