"""Member processes of groups: real consumers and transactional producers of the SDK, and what they note of it.

A member is one process with a name of its own: `alo-0.3` is the third life of the first member of group `alo`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal

from comet.client.client import Client
from comet.client.coordinator import Coordinator
from comet.consumer.consumer import Consumer
from comet.errors import CometError, Internal, InvalidArgument, LockExpired, ProducerFenced
from comet.groups.group_consumer import GroupConsumer
from comet.producer.transaction import Transaction, TransactionalProducer
from comet.share.share_client import AcquiredRecord, ShareClient
from comet.share.share_consumer import ShareConsumer, ShareRecord
from comet.types import AssignmentStrategy, TopicPartition
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from tests.sim.group_checks import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, PASSING, SHARED
from tests.sim.group_history import Commitment, End, GroupHistory, Handled, Lent, Look, Ownership, Seen, Tx
from tests.sim.history import Outcome, PartitionName
from tests.sim.workload import outcome_of
from tests.sim.world import World

IN: Final = "in"
OUT: Final = "out"
AUDIT: Final = "audit"
DEAD: Final = "dead"
SESSION_MS: Final = 4_000
TRANSACTION_MS: Final = 3_000
LOCK_MS: Final = 3_000
ATTEMPTS_MAX: Final = 200  # what dies with its member again and again is no dead letter here; a rejected record is
HANDLING_S: Final = 0.02
STRATEGIES: Final[tuple[AssignmentStrategy, ...]] = ("sticky", "range", "rack")
NOTED_OF: Final = 4  # transactions all but one set a note


class Changed(Exception):
    """A member changed its mind about a transaction."""


class Member:
    """One life of one member. `run` is what its process does; `died` is said of one that was killed."""

    def __init__(
        self,
        world: World,
        history: GroupHistory,
        group: str,
        name: str,
        *,
        instance: str = "",
        acquiring: bool = False,
        transactional_id: str = "",
        assignments: Sequence[AssignmentStrategy] = ("sticky",),
    ) -> None:
        self.name = name
        self.group = group
        self.leaving = False
        self._world = world
        self._history = history
        self._instance = instance
        self._acquiring = acquiring  # a caller: it takes from a share group without being in it
        self._id = transactional_id  # empty: its coordinator makes one up for each life
        self._random = world.random(name)
        chance = world.random(f"{name}/assignment")
        self._assignment = chance.choice(assignments)
        self._rack = chance.choice("abc")
        self._consumer: GroupConsumer[bytes] | None = None
        self._owned: dict[PartitionName, Ownership] = {}
        self._number = 0

    async def run(self) -> None:
        work = {
            AT_LEAST_ONCE: self._at_least_once,
            AT_MOST_ONCE: self._at_most_once,
            EXACTLY_ONCE: self._exactly_once,
            SHARED: self._acquired if self._acquiring else self._shared,
            PASSING: self._passing,
        }[self.group]
        try:
            await work()
        except CometError as error:
            self._world.note(f"{self.name} ended with {error!r}")
            if isinstance(error, InvalidArgument | Internal):
                self._world.history.complaints.append(f"{self.name} ended with {error!r}")

    def died(self) -> None:
        """The process was killed: nothing of it runs any more, and what it had under way is unknown."""
        self._end(list(self._owned), "died")
        history = self._history
        calls: list[Commitment | Tx] = [*history.commits, *history.transactions]
        for one in calls:
            if one.process == self.name and one.outcome is Outcome.PENDING:
                one.outcome = Outcome.UNKNOWN
        for acquired in history.acquired:
            if acquired.process == self.name and acquired.settled and acquired.outcome is Outcome.PENDING:
                acquired.outcome = Outcome.UNKNOWN

    def _sdk(self) -> dict[str, Any]:
        world = self._world
        return {
            "name": self.name,
            "connect": world.network.connect(self.name),
            "random": world.random(f"{self.name}/sdk"),
            "clock_us": world.clock.wall_us,
        }

    # ---- what it owns, as it believes

    def _open(self, *, auto_commit: bool) -> GroupConsumer[bytes]:
        consumer = self._consumer = GroupConsumer(
            self._world.addresses,
            IN,
            group=self.group,
            start="earliest",
            instance=self._instance,
            session_timeout_ms=SESSION_MS,
            commit_interval_ms=300,
            auto_commit=auto_commit,
            assignment=self._assignment,
            rack=self._rack,
            on_assigned=self._assigned,
            on_revoked=lambda tps: self._end(tps, "left" if self.leaving else "released"),
            on_lost=lambda tps: self._end(tps, "taken"),
            **self._sdk(),
        )
        return consumer

    def _assigned(self, tps: Sequence[TopicPartition]) -> None:
        assert self._consumer is not None
        for tp in tps:
            since = self._consumer._assigned[tp].assignment.since
            one = Ownership(
                self.group, self.name, self._consumer.member, (tp.topic, tp.partition), since, self._world.now()
            )
            self._owned[one.tp] = one
            self._history.owned.append(one)

    def _end(self, tps: Sequence[tuple[str, int]], how: End) -> None:
        for topic, partition in tps:
            one = self._owned.pop((topic, partition), None)
            if one is not None:
                one.ended, one.how = self._world.now(), how

    # ---- handling

    def _take(self, tp: PartitionName, offset: int, value: bytes | None, taken: float = -1.0) -> Handled:
        assert value is not None
        one = Handled(self.group, self.name, tp, offset, value, self._world.now() if taken < 0 else taken)
        self._history.handled.append(one)
        return one

    async def _work(self) -> None:
        await asyncio.sleep(self._random.expovariate(1 / HANDLING_S))

    async def _at_least_once(self) -> None:
        async with self._open(auto_commit=True) as consumer:
            while not self.leaving:
                record = await consumer.get(timeout_s=0.5)
                if record is None:
                    continue
                one = self._take((record.topic, record.partition), record.offset, record.value)
                await self._work()
                one.finished = self._world.now()

    async def _at_most_once(self) -> None:
        async with self._open(auto_commit=False) as consumer:
            while not self.leaving:
                record = await consumer.get(timeout_s=0.5)
                if record is None:
                    continue
                tp, taken = (record.topic, record.partition), self._world.now()
                if await self._commit(tp, record.offset + 1, lambda record=record: consumer.commit(record)):  # type: ignore[misc]
                    one = self._take(tp, record.offset, record.value, taken)
                    await self._work()
                    one.finished = self._world.now()

    async def _passing(self) -> None:
        """Owns partitions for a while, commits nothing, and leaves."""
        world = self._world
        leaves_at = world.now() + self._random.uniform(0.3, 3.0)
        async with self._open(auto_commit=False) as consumer:
            while not self.leaving and world.now() < leaves_at:
                await consumer.get(timeout_s=0.2)
            self.leaving = True

    async def _commit(self, tp: PartitionName, offset: int, commit: Callable[[], Any]) -> bool:
        """Insists until it is known whether the position is committed."""
        while True:
            one = Commitment(self.group, self.name, tp, offset, self._world.now())
            self._history.commits.append(one)
            try:
                await commit()
            except CometError as error:
                one.outcome, one.code = outcome_of(error), error.code
            else:
                one.outcome = Outcome.OK
            one.completed = self._world.now()
            # What was taken before the partition was lost is not this member's, even if the partition is again.
            if one.outcome is Outcome.OK or one.code == "STALE_GENERATION" or tp not in self._owned:
                return one.outcome is Outcome.OK

    # ---- exactly once

    async def _exactly_once(self) -> None:
        consumer = self._open(auto_commit=False)
        producer = TransactionalProducer(
            self._world.addresses,
            self._id,
            # With a bare name the coordinator does not know whose transactions these are.
            group=consumer if self._random.random() < 0.7 else self.group,
            transaction_timeout_ms=TRANSACTION_MS,
            timeout_ms=5_000,
            **self._sdk(),
        )
        try:
            async with consumer:
                while not self.leaving:
                    batch = await consumer.get_batch(timeout_s=0.5)
                    if batch is not None and not await self._transact(producer, consumer, batch):
                        await consumer.rewind()
        except ProducerFenced as error:
            self._world.note(f"{self.name} is fenced: {error}")
        finally:
            await producer.close()

    async def _transact(self, producer: TransactionalProducer, consumer: GroupConsumer[bytes], batch: Any) -> bool:
        """True once the batch is committed with its outputs."""
        now = self._world.now
        tp = batch.topic, batch.partition
        tx = Tx(self.name, self._number, inputs={tp: batch.next_offset}, invoked=now(), id=self._id or self.name)
        self._number += 1
        tx.note = f"{tx.process}#{tx.number}".encode() if self._number % NOTED_OF else b""
        self._history.transactions.append(tx)
        current = producer.transaction()
        given = zip(batch.offsets, batch.values, strict=True)
        taken = [self._take(tp, offset, value) for offset, value in given]
        try:
            async with current:
                tx.found = producer.note
                current.note(tx.note)
                for one in taken:
                    for topic in (OUT, AUDIT):
                        output = one.value + b"|" + topic.encode()
                        tx.outputs.append((topic, output))
                        await current.send(topic, output, partition=tp[1] if topic == OUT else 0)
                await self._work()
                await current.commit_offsets(consumer, batch)
                if self._random.random() < 0.15:
                    raise Changed
                for one in taken:
                    one.finished = now()
                tx.ending = now()
        except Changed:
            tx.outcome, tx.code = Outcome.FAIL, "CHANGED"
        except ProducerFenced:
            self._settle(tx, current)
            raise
        except CometError as error:
            tx.code = error.code
            self._settle(tx, current)
        else:
            tx.outcome = Outcome.OK
        tx.completed = now()
        return tx.outcome is Outcome.OK

    @staticmethod
    def _settle(tx: Tx, current: Transaction) -> None:
        tx.outcome = {"committed": Outcome.OK, "unknown": Outcome.UNKNOWN}.get(current.state, Outcome.FAIL)

    # ---- shared

    async def _shared(self) -> None:
        async with ShareConsumer(
            self._world.addresses,
            IN,
            group=self.group,
            start="earliest",
            session_timeout_ms=SESSION_MS,
            in_flight=5,
            lock_ms=LOCK_MS,
            deliveries_max=ATTEMPTS_MAX,
            dead_letter=DEAD,
            **self._sdk(),
        ) as consumer:
            while not self.leaving:
                record = await consumer.get(timeout_s=0.5)
                if record is None:
                    continue
                await self._handled(
                    record,
                    lambda record=record: record.ack(),  # type: ignore[misc]
                    lambda record=record: record.nack(delay_ms=200),  # type: ignore[misc]
                    lambda record=record: record.reject("not wanted"),  # type: ignore[misc]
                )

    async def _acquired(self) -> None:
        """The same, call by call; it may handle several records of one call."""
        async with ShareClient(self._world.addresses, **self._sdk()) as client:

            async def said(outcomes: Awaitable[list[CometError | None]]) -> None:
                (error,) = await outcomes
                if error is not None:
                    raise error

            while not self.leaving:
                found = await client.acquire(
                    self.group,
                    IN,
                    records_max=self._random.randint(1, 5),
                    wait_ms=self._random.choice((0, 500, 500)),
                    lock_ms=LOCK_MS,
                    deliveries_max=ATTEMPTS_MAX,
                    dead_letter=DEAD,
                    start="earliest",
                )
                for record in found:
                    token = [record.token]
                    if self._random.random() < 0.01:
                        await asyncio.sleep(1.2 * LOCK_MS / 1000)  # slower than its lock, and it goes on all the same
                    await self._handled(
                        record,
                        lambda token=token: said(client.ack(token)),  # type: ignore[misc]
                        lambda token=token: said(client.nack(token, delay_ms=200)),  # type: ignore[misc]
                        lambda token=token: said(client.reject(token, reason="not wanted")),  # type: ignore[misc]
                    )
                if not found:
                    await asyncio.sleep(0.1)

    async def _handled(
        self,
        record: ShareRecord[bytes] | AcquiredRecord,
        ack: Callable[[], Awaitable[Any]],
        nack: Callable[[], Awaitable[Any]],
        reject: Callable[[], Awaitable[Any]],
    ) -> None:
        tp = record.topic, record.partition
        one = Lent(
            self.group, self.name, tp, record.offset, record.value or b"", record.delivery_count, self._world.now()
        )
        self._history.acquired.append(one)
        await self._work()
        chance = self._random.random()
        if chance < 0.05:
            return  # it forgets the record, and the lock runs out
        if chance < 0.08 and not self._world.stopping:
            await self._settled(one, "reject", reject)
        elif chance < 0.2:
            await self._settled(one, "release", nack)
        else:
            await self._settled(one, "accept", ack)

    async def _settled(
        self, one: Lent, how: Literal["accept", "reject", "release"], settle: Callable[[], Awaitable[Any]]
    ) -> None:
        one.settled, one.invoked = how, self._world.now()
        try:
            await settle()
        except LockExpired as error:
            one.outcome, one.code = Outcome.UNKNOWN, error.code
            if error.details.get("outcome") != "unknown":
                one.settled, one.outcome = "", Outcome.FAIL
        except CometError as error:
            one.outcome, one.code = Outcome.UNKNOWN, error.code
        else:
            one.outcome = Outcome.OK
        one.completed = self._world.now()


class Observer:
    """Asks again and again what is committed, and tries to commit what nobody may."""

    def __init__(self, world: World, history: GroupHistory, groups: Sequence[str]) -> None:
        self.name = "observer"
        self._world = world
        self._history = history
        self._groups = groups
        self._random = world.random(self.name)

    async def run(self) -> None:
        world = self._world
        client = Client(
            world.addresses,
            name=self.name,
            connect=world.network.connect(self.name),
            random=world.random(f"{self.name}/sdk"),
        )
        coordinators = {group: Coordinator(client, group) for group in self._groups}
        try:
            while not world.stopping:
                group = self._random.choice(self._groups)
                try:
                    if self._random.random() < 0.3:
                        await self._intrude(coordinators[group], group)
                    else:
                        await self.look(coordinators[group], group)
                except CometError as error:
                    world.note(f"the observer of {group} was told {error.code}")
                await world.sleep(self._random, 0.4)
        finally:
            await client.close()

    async def look(self, coordinator: Coordinator, group: str) -> dict[PartitionName, int]:
        invoked = self._world.now()
        fetch = pb.ClientFrame(fetch_committed=groups_pb.FetchCommitted(group=group))
        answer = await coordinator.request(fetch, 3_000)
        found = _tps(answer.committed)
        for tp, offset in found.items():
            self._history.looks.append(Look(group, tp, offset, invoked, self._world.now()))
        return found

    async def _intrude(self, coordinator: Coordinator, group: str) -> None:
        """A commit that must not count, by somebody else than the owner or, so to say, by the owner itself."""
        owners = [one for one in self._history.owned if one.group == group and one.ended < 0]
        if not owners:
            return
        one = self._random.choice(owners)
        tp, far = one.tp, 1 << 40
        member, generation, offset = self._random.choice(
            (
                ("", 1 << 20, 0),
                ("nobody", 1 << 20, 1),
                (one.member, one.since - 1, 1),
                (one.member, 1 << 20, far),
                (one.member, 1 << 20, 0),  # the only one that is taken, and changes nothing where more is committed
            )
        )
        commit = groups_pb.Commit(group=group, member=member, generation=generation)
        topic = commit.topics.add(topic=tp[0], topic_id=self._world.topic_ids[tp[0]])
        topic.offsets.add(partition=tp[1], offset=offset)
        try:
            answer = await coordinator.request(pb.ClientFrame(commit=commit), 3_000)
        except CometError:
            return
        harmless = (member, generation, offset) == (one.member, 1 << 20, 0)
        # Where the owner was put out and has not heard of it, the group may have nobody: then nobody may commit.
        harmless = harmless or (not member and (group, one.member) in self._history.evicted)
        if not answer.committed.refused and not harmless and one.ended < 0:
            self._world.history.complaints.append(
                f"{group}: {tp} could be committed up to {offset} by {member or 'no member'!r} in generation "
                f"{generation}, while {one.process} had it since {one.since}"
            )


def _tps(committed: groups_pb.Committed) -> dict[PartitionName, int]:
    return {(topic.topic, mark.partition): mark.offset for topic in committed.topics for mark in topic.offsets}


class CommittedReader:
    """Reads what is committed of one topic from beginning to end."""

    def __init__(self, world: World, history: GroupHistory, name: str, topic: str) -> None:
        self.name = name
        self._world = world
        self._history = history
        self._topic = topic

    async def run(self) -> None:
        while True:
            try:
                await self._read()
            except CometError as error:
                self._world.note(f"{self.name} was told {error.code}")
            await asyncio.sleep(0.2)

    async def _read(self) -> None:
        async with Consumer(
            self._world.addresses,
            self._topic,
            start="earliest",
            name=self.name,
            connect=self._world.network.connect(self.name),
            random=self._world.random(f"{self.name}/sdk"),
            clock_us=self._world.clock.wall_us,
        ) as consumer:
            async for batch in consumer.batches():
                for offset, value in zip(batch.offsets, batch.values, strict=True):
                    assert value is not None
                    tp = batch.topic, batch.partition
                    self._history.seen.append(Seen(self.name, tp, offset, value, self._world.now()))
