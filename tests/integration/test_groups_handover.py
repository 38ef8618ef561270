"""Members that come and go while all commit as fast as they can: each goes on where the one before has left off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from comet.v1 import groups_pb2 as pb
from comet.v1 import records_pb2 as records_pb
from comet.v1 import types_pb2 as types
from comet_broker import limits
from comet_broker.broker import Broker
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import Compare, Delete, Put, TransactionResult
from tests.integration.group_client import Member, PartitionName, settled
from tests.integration.local_cluster import LocalCluster, until
from tests.integration.stream_client import Client
from tests.integration.test_groups import make_topic, ready

PARTITIONS = 8
RECORDS = 5_000


Shared = tuple[dict[PartitionName, int], dict[PartitionName, str], dict[PartitionName, int], list[PartitionName]]


class SlowStore:
    """A store of which some transactions take longer than others, so that much gathers behind them."""

    def __init__(self, store: MemoryStore, random: Random) -> None:
        self._store = store
        self._random = random

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def transact(self, compares: list[Compare], operations: list[Put | Delete]) -> TransactionResult:
        if any(operation.key.startswith("coordination/") for operation in operations):
            for _ in range(self._random.choice((0, 1, 20, 100))):
                await asyncio.sleep(0)
        return await self._store.transact(compares, operations)


class Worker(Member):
    """Commits one record after the other in all that it owns, as a member that handles them would."""

    acknowledged: dict[PartitionName, int]  # shared by all: what the coordinator has ever confirmed
    reading: dict[PartitionName, str]  # shared by all: who reads it now
    starts: dict[PartitionName, int]  # shared by all: where that one has begun
    repeated: list[PartitionName]  # shared by all: begun before what was committed, or refused in spite of the order

    def __init__(self, broker: Broker, shared: Shared) -> None:
        super().__init__(broker)
        self.acknowledged, self.reading, self.starts, self.repeated = shared
        self.next: dict[PartitionName, int] = {}
        self.commits = 0

    def _assigned(self, assignment: pb.Assignment) -> None:
        super()._assigned(assignment)
        for tp, one in self.owned.items():
            if tp in self.next:
                continue
            assert self.reading.setdefault(tp, self.id) == self.id, f"{tp} is still read by {self.reading[tp]}"
            assert one.offset >= self.acknowledged.get(tp, 0)
            self.next[tp] = self.starts[tp] = one.offset

    def give_back(self) -> None:
        """Commits a last time, and releases without waiting for the answer."""
        tps = [(topic.topic, index) for topic in self.release for index in topic.partitions]
        last = {index: self.next[topic, index] + 1 for topic, index in tps if self.next[topic, index] < RECORDS}
        answer = self.stream.send(commit=self.commit_frame("t", last))
        answer.add_done_callback(self._last_answer)
        for tp in tps:
            del self.next[tp], self.reading[tp]
            self.starts.pop(tp, None)
        super().give_back()

    def _last_answer(self, answer: asyncio.Future[records_pb.ServerFrame]) -> None:
        if answer.cancelled():
            return
        committed = answer.result().committed
        self.repeated += [("t", refused.partition) for refused in committed.refused]
        for mark in committed.topics[0].offsets if committed.topics else ():
            tp = ("t", mark.partition)
            self.acknowledged[tp] = max(self.acknowledged.get(tp, 0), mark.offset)
            if self.starts.get(tp, mark.offset) < mark.offset:
                self.repeated.append(tp)

    async def work(self, until: asyncio.Event) -> None:
        while not until.is_set():
            self.hear()
            wanted = {tp: offset + 1 for tp, offset in self.next.items() if offset < RECORDS}
            if not wanted:
                await asyncio.sleep(0)
                continue
            answer = await self.commit("t", {index: offset for (_, index), offset in wanted.items()})
            self.commits += 1
            for mark in answer.committed.topics[0].offsets if answer.committed.topics else ():
                tp = ("t", mark.partition)
                before = self.acknowledged.get(tp, 0)
                assert mark.offset >= wanted[tp]
                self.acknowledged[tp] = max(before, mark.offset)
                if tp in self.next:
                    self.next[tp] = mark.offset
            for refused in answer.committed.refused:
                assert ("t", refused.partition) not in self.next, refused

    async def stop(self) -> None:
        self.hear()
        for tp in self.next:
            del self.reading[tp], self.starts[tp]
        self.next.clear()
        await self.leave()
        await self.close()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(tmp_path, brokers=1)
    cluster._store = SlowStore(cluster._store, Random(1))  # type: ignore[assignment]
    async with cluster:
        await make_topic(cluster, partitions=PARTITIONS)
        await ready(cluster)
        client = Client(cluster.brokers[1])
        for index in range(PARTITIONS):
            client.produce(await client.attach(partition=index), *(b"x" for _ in range(RECORDS)))
            await client.answer()
        client.session.close()
        yield cluster


async def test_who_gets_a_partition_goes_on_where_the_last_one_left_off(cluster: LocalCluster) -> None:
    broker, random = cluster.brokers[1], Random(7)
    acknowledged: dict[PartitionName, int] = {}
    repeated: list[PartitionName] = []
    shared: Shared = (acknowledged, {}, {}, repeated)
    workers: list[Worker] = []
    working: dict[Worker, tuple[asyncio.Event, asyncio.Task[None]]] = {}

    async def come() -> None:
        worker = Worker(broker, shared)
        await worker.join("t")
        workers.append(worker)
        done = asyncio.Event()
        working[worker] = done, asyncio.get_running_loop().create_task(worker.work(done))

    async def go(worker: Worker) -> None:
        done, task = working.pop(worker)
        done.set()
        await task
        await worker.stop()
        workers.remove(worker)

    def committed(wanted: int) -> bool:
        return sum(worker.commits for worker in workers) >= wanted

    for number in range(30):
        if len(workers) < 2 or (len(workers) < 6 and random.random() < 0.5):
            await come()
        else:
            await go(random.choice(workers))
        wanted = sum(worker.commits for worker in workers) + 10 + 5 * (number % 3)
        await until(partial(committed, wanted), "they commit")
    for done, task in list(working.values()):
        done.set()
        await task
    await settled(list(workers), PARTITIONS)
    assert sum(acknowledged.values()) > PARTITIONS
    answer = await workers[0].stream.ask(fetch_committed=pb.FetchCommitted(group="g"))
    found = {("t", mark.partition): mark.offset for mark in answer.committed.topics[0].offsets}
    assert found == acknowledged and not repeated
    for worker in workers:
        await worker.close()


async def test_what_waits_for_the_store_is_bounded(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUP_WAITING_MAX", 10)
    one = Member(cluster.brokers[1])
    await one.join("t")
    await one.owns(PARTITIONS)
    answers = [one.stream.send(commit=one.commit_frame("t", {0: offset})) for offset in range(1, 100)]
    async with asyncio.timeout(10):
        frames = [await answer for answer in answers]
    kinds = [frame.WhichOneof("frame") for frame in frames]
    assert kinds.count("committed") >= 10 and kinds.count("error") > 10
    assert {
        types.ErrorCode.Name(frame.error.error.code) for frame in frames if frame.WhichOneof("frame") == "error"
    } == {"ERROR_CODE_LIMIT_EXCEEDED"}
    last = max(offset for offset, kind in enumerate(kinds, 1) if kind == "committed")
    found = (await one.stream.ask(fetch_committed=pb.FetchCommitted(group="g"))).committed
    assert found.topics[0].offsets[0].offset == last
    await one.close()
