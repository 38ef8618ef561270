"""`python -m tests.robustness.group_member KIND …`: one member of a group, or one teller of a bank, as a process.

What it does it writes to a file of its own, a line at a time and with `os.write`, so that a kill -9 takes nothing of
it. The first word of a line says what it is, the second when, on the clock that all processes of a machine share:

    B        it begins; from here on it leaves when it is asked to
    A, X     a partition is its own from an offset on, is not any more
    H        it has handled a record (shared: it was given one)
    K, E, N  shared: the acknowledgement is kept, the lease had expired, it was given back or is left to expire
    C, F, U  a transaction was committed, aborted, or nobody knows
    S, W     teller: a transfer begins, nothing is done while the bank holds
    !        an error that made it begin anew
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final

import comet
from comet.types import TopicPartition
from tests.waiting import pace

SESSION_MS: Final = 3_000
LOCK_MS: Final = 3_000
ATTEMPTS_MAX: Final = 250  # members die all the time, and no record is to blame
TRANSACTION_MS: Final = 8_000
TRANSACTION_RECORDS: Final = 200
GATHER_MS: Final = 50
LOOK_S: Final = 0.05  # how soon a member that has nothing to do notices that it is to leave
ACCOUNTS: Final = 20
OUT: Final = "out"
DEAD: Final = "dead"
KINDS: Final = ("at_least_once", "exactly_once", "exactly_once_app", "shared", "teller")


class ChangedMyMindError(Exception):
    """Aborts a transfer."""


@dataclass(slots=True)
class Member:
    addresses: str
    group: str
    topic: str
    notes: int  # a file descriptor
    random: Random
    work_ms: float
    hold: Path
    leaving: bool = False
    stop: Callable[[], None] = lambda: None
    tellings: set[asyncio.Task[None]] = field(default_factory=set)

    def note(self, what: str, *words: object) -> None:
        os.write(self.notes, f"{what} {monotonic():.6f} {' '.join(map(str, words))}\n".encode())

    async def run(self, kind: str) -> None:
        """Begins anew after an error, as whoever looks after programs would."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.leave)
        self.note("B")
        work = getattr(self, kind)
        while not self.leaving:
            try:
                await work()
            except comet.CometError as error:
                self.note("!", error.code, error)
                await pace(0.1)

    def leave(self) -> None:
        self.leaving = True
        self.stop()

    async def work(self) -> None:
        if self.work_ms:
            await pace(self.random.expovariate(1 / self.work_ms) / 1000)

    # ---- groups

    def consumer(self, *, auto_commit: bool) -> comet.GroupConsumer[bytes]:
        def gone(tps: Sequence[TopicPartition]) -> None:
            for tp in tps:
                self.note("X", tp.partition)

        def given(tps: Sequence[TopicPartition]) -> None:
            committed = consumer.committed()
            for tp in tps:
                self.note("A", tp.partition, committed.get(tp, 0))

        consumer = comet.GroupConsumer(
            self.addresses,
            self.topic,
            group=self.group,
            start="earliest",
            session_timeout_ms=SESSION_MS,
            auto_commit=auto_commit,
            on_assigned=given,
            on_revoked=gone,
            on_lost=gone,
        )
        return consumer

    async def at_least_once(self) -> None:
        async with self.consumer(auto_commit=True) as consumer:
            while not self.leaving:
                record = await consumer.get(LOOK_S)
                if record is not None:
                    await self.work()
                    self.note("H", record.partition, record.offset, record.value.decode())

    async def exactly_once(self) -> None:
        async with (
            self.consumer(auto_commit=False) as consumer,
            comet.TransactionalProducer(
                self.addresses, group=self.group, transaction_timeout_ms=TRANSACTION_MS
            ) as producer,
        ):
            while not self.leaving:
                batches = await self.gather(consumer)
                if batches and not await self.transact(producer, consumer, batches):
                    await consumer.rewind()

    async def gather(self, consumer: comet.GroupConsumer[bytes]) -> list[comet.RecordBatch[bytes]]:
        batches: list[comet.RecordBatch[bytes]] = []
        until = monotonic() + GATHER_MS / 1000
        while monotonic() < until and sum(map(len, batches)) < TRANSACTION_RECORDS:
            batch = await consumer.get_batch(max(until - monotonic(), 0.001))
            if batch is not None:
                batches.append(batch)
        return batches

    async def transact(
        self,
        producer: comet.TransactionalProducer,
        consumer: comet.GroupConsumer[bytes],
        batches: list[comet.RecordBatch[bytes]],
    ) -> bool:
        """Whether the positions are where they were asked to be. Where nobody knows, all begins anew."""
        tx = producer.transaction()
        try:
            async with tx:
                for batch in batches:
                    for key, value in zip(batch.keys, batch.values, strict=True):
                        assert value is not None
                        await tx.send(OUT, value.upper(), key=key)
                    await self.work()
                    await tx.commit_offsets(consumer, batch)
        except comet.ProducerFenced:
            raise
        except comet.CometError:
            if tx.state == "unknown":
                raise
        finally:
            self.ended(tx, sum(map(len, batches)))
        return tx.state == "committed"

    def ended(self, tx: comet.Transaction, *words: object) -> None:
        self.note({"committed": "C", "aborted": "F"}.get(tx.state, "U"), *words)

    async def exactly_once_app(self) -> None:
        app = comet.App(self.addresses)
        open_: list[tuple[comet.Transaction, list[bytes]]] = []  # the handlers of one run while the one before it ends

        @app.on(
            self.topic, group=self.group, delivery="exactly_once", start="earliest", session_timeout_ms=SESSION_MS,
            transaction_records=TRANSACTION_RECORDS, transaction_ms=GATHER_MS,
        )  # fmt: skip
        async def transform(record: comet.Record[bytes], tx: comet.Transaction) -> None:
            if not open_ or open_[-1][0] is not tx:
                while open_ and open_[0][0].state in {"committed", "aborted", "unknown"}:
                    ended, records = open_.pop(0)
                    self.ended(ended, len(records))
                open_.append((tx, []))
            open_[-1][1].append(record.value)
            await tx.send(OUT, record.value.upper(), key=record.key)

        self.stop = app.stop
        try:
            await app.serve()
        finally:
            for tx, records in open_:
                self.ended(tx, len(records))

    # ---- shared

    async def shared(self) -> None:
        async with comet.ShareConsumer(
            self.addresses,
            self.topic,
            group=self.group,
            start="earliest",
            in_flight=30,
            lock_ms=LOCK_MS,
            deliveries_max=ATTEMPTS_MAX,
            dead_letter=DEAD,
            session_timeout_ms=SESSION_MS,
        ) as consumer:
            while not self.leaving:
                record = await consumer.get(LOOK_S)
                if record is not None:
                    self.note("H", record.partition, record.offset, record.delivery_count)
                    task = asyncio.create_task(self.settle(record))
                    self.tellings.add(task)
                    task.add_done_callback(self.tellings.discard)
            if self.tellings:
                await asyncio.wait(self.tellings)

    async def settle(self, record: comet.ShareRecord[bytes]) -> None:
        await self.work()
        chance = self.random.random()
        where = record.partition, record.offset
        if chance < 0.05:
            self.note("N", *where)
            if chance < 0.03:
                record.nack(delay_ms=100)
            return  # else it is forgotten, and its lease runs out
        try:
            await record.ack()
        except comet.LockExpired:
            self.note("E", *where)
        except comet.CometError as error:
            self.note("U", *where, error.code)
        else:
            self.note("K", *where)

    # ---- a bank

    async def teller(self) -> None:
        count, held = 0, ""
        async with comet.TransactionalProducer(
            self.addresses, self.group, transaction_timeout_ms=TRANSACTION_MS
        ) as producer:
            while not self.leaving:
                hold = ""
                with contextlib.suppress(FileNotFoundError):
                    hold = self.hold.read_text()
                if hold:
                    if hold != held:
                        self.note("W", hold)
                        held = hold
                    await pace(LOOK_S)
                    continue
                count += 1
                await self.transfer(producer, f"{self.group}-{os.getpid()}-{monotonic():.6f}-{count}")

    async def transfer(self, producer: comet.TransactionalProducer, name: str) -> None:
        giver, taker = self.random.sample(range(ACCOUNTS), 2)
        amount = self.random.randint(1, 100)
        self.note("S", name)
        tx = producer.transaction()
        try:
            async with tx:
                for account, signed in ((giver, -amount), (taker, amount)):
                    leg = {"transfer": name, "account": account, "amount": signed}
                    await tx.send(self.topic, leg, key=f"account {account}")
                await self.work()
                if self.random.random() < 0.2:
                    raise ChangedMyMindError
        except ChangedMyMindError:
            pass
        except comet.ProducerFenced:
            raise
        except comet.CometError as error:
            self.note("!", error.code, error)
        finally:
            self.ended(tx, name)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.robustness.group_member", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--addresses", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--hold", type=Path, default=Path("/nonexistent"))
    parser.add_argument("--work-ms", type=float, default=0)
    options: Any = parser.parse_args(arguments)
    notes = os.open(options.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    random = Random(str(options.notes))
    member = Member(
        options.addresses, options.group, options.topic, notes, random, options.work_ms, options.hold
    )  # fmt: skip
    asyncio.run(member.run(options.kind))
    return 0


if __name__ == "__main__":
    sys.exit(main())
