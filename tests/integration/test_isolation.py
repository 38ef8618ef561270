"""Transactions as a stream sees them: what is delivered when, of what readers are told, and what a thin client gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from comet import records
from comet.errors import CometError
from comet.v1 import admin_pb2 as admin
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet.v1.groups_pb2 import EndTransaction, OpenTransactions
from comet.wire.frames import joined, parse_delivery
from comet_broker import limits
from comet_broker.broker import Broker
from comet_broker.ports import Worker
from tests.integration.acquire_client import acquire
from tests.integration.local_cluster import until
from tests.integration.share_client import Member
from tests.integration.stream_client import MIB, Call, Client

R = TypeVar("R")

ALL = 2


class Transactional(Client):
    """A producer of transactions, one after the other, that asks again while its coordinator is loading."""

    async def ask(self, **frame: Any) -> pb.ServerFrame:
        while True:
            self.send(**frame)
            answer = await self.answer()
            if answer.WhichOneof("frame") != "error":
                return answer
            if answer.error.error.code != types.ERROR_CODE_COORDINATOR_LOADING:
                raise CometError(answer.error.error.message)
            await asyncio.sleep(0)

    async def open(self, name: str = "tx", timeout_ms: int = 0) -> None:
        opened = await self.ask(open_transactions=OpenTransactions(transactional_id=name, timeout_ms=timeout_ms))
        self.name = name
        self.producer_id, self.epoch = opened.opened_transactions.producer_id, opened.opened_transactions.epoch
        self.sequences: dict[int, int] = {}

    def begin(self, handle: int, *values: bytes) -> int:
        """Sends a batch and waits for nothing."""
        sequence = self.sequences.get(handle, 0)
        self.sequences[handle] = sequence + len(values)
        return self.produce(
            handle, *values, acks=ALL, producer_id=self.producer_id, producer_epoch=self.epoch,
            base_sequence=sequence, transactional=True,
        )  # fmt: skip

    async def write(self, handle: int, *values: bytes) -> int:
        """The offset of the first value."""
        self.begin(handle, *values)
        answer = await self.answer()
        assert answer.WhichOneof("frame") == "acks", answer
        return answer.acks.base_offsets[0]

    async def end(self, *, commit: bool) -> None:
        ending = EndTransaction(
            transactional_id=self.name, producer_id=self.producer_id, epoch=self.epoch, commit=commit
        )
        self.epoch = (await self.ask(end_transaction=ending)).ended_transaction.next_epoch
        self.sequences = {}


class Reader(Client):
    """Reads as a client does: it drops markers, and what it has been told was aborted."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.aborted: list[tuple[int, int, int, int]] = []
        self.next_offset = 0

    async def start(self, handle: int, *, uncommitted: bool = False, **position: Any) -> None:
        start = pb.Start(partition=handle, position=types.Position(**position or {"earliest": True}))
        self.send(subscribe=pb.Subscribe(subscription=1, starts=[start], credit=MIB, uncommitted=uncommitted))
        answer = await self.answer()
        self.next_offset = answer.subscribed.partitions[0].offset

    def take(self) -> list[bytes | None]:
        """What is there for it now."""
        got: list[bytes | None] = []
        while (outgoing := self.session.poll()) is not None:
            frame = joined(outgoing)
            if parse_delivery(frame) is None:
                told = pb.ServerFrame.FromString(frame)
                assert told.WhichOneof("frame") == "aborted", told
                assert told.aborted.transactions, "nobody is told of nothing"
                self.aborted += [(one.producer_id, one.epoch, one.first, one.end) for one in told.aborted.transactions]
            else:
                for batch in records.iterate(memoryview(frame)[32:]):
                    self.next_offset = batch.header.next_offset
                    if self.counts(batch.header):
                        got += batch.values
        return got

    def counts(self, header: records.BatchHeader) -> bool:
        return not header.control and not (
            header.transactional
            and any(
                (producer, epoch) == (header.producer_id, header.producer_epoch) and first <= header.base_offset < end
                for producer, epoch, first, end in self.aborted
            )
        )


async def producers(broker: Broker, *names: str) -> list[Transactional]:
    found = []
    for name in names:
        one = Transactional(broker)
        await one.attach()
        await one.open(name)
        found.append(one)
    return found


async def test_outputs_are_seen_together_and_nothing_of_them_before(broker: Broker, topic: types.Topic) -> None:
    (one,) = await producers(broker, "tx")
    handles = [await one.attach(partition=0), await one.attach(partition=1)]
    committed, dirty = [Reader(broker), Reader(broker)], Reader(broker)
    for handle, reader in zip(handles, committed, strict=True):
        await reader.attach()
        await reader.start(handle)
    await dirty.start(handles[0], uncommitted=True)
    for handle in handles:
        await one.write(handle, b"a", b"b")
        await one.write(handle, b"c")
    one.produce(handles[0], b"plain")
    await one.answer()
    assert [reader.take() for reader in committed] == [[], []]
    assert dirty.take() == [b"a", b"b", b"c", b"plain"]
    await one.end(commit=True)
    assert [reader.take() for reader in committed] == [[b"a", b"b", b"c", b"plain"], [b"a", b"b", b"c"]]
    assert [reader.next_offset for reader in committed] == [5, 4], "the marker moves the position"
    assert dirty.take() == []
    assert not dirty.aborted and not committed[0].aborted


async def test_readers_are_told_of_what_was_aborted_before_they_get_it_and_once(
    broker: Broker, topic: types.Topic
) -> None:
    one, two = await producers(broker, "one", "two")
    handle = await one.attach()
    live, late, dirty = Reader(broker), Reader(broker), Reader(broker)
    await live.start(handle)
    await dirty.start(handle, uncommitted=True)
    expected: list[bytes | None] = []
    for number in range(20):
        value = b"%d" % number
        await one.write(handle, value + b"a")
        await two.write(handle, value + b"b")
        await one.write(handle, value + b"c")
        assert live.take() == []
        await one.end(commit=number % 3 == 0)
        assert live.take() == ([value + b"a"] if number % 3 == 0 else [])
        await two.end(commit=number % 2 == 0)
        rest = ([value + b"b"] if number % 2 == 0 else []) + ([value + b"c"] if number % 3 == 0 else [])
        assert live.take() == rest
        expected += [value + b"a"] * (number % 3 == 0) + rest
    await late.start(handle)
    assert late.take() == expected
    for reader in (live, late):
        assert len(reader.aborted) == len(set(reader.aborted)) == 13 + 10, "once each"
    assert len(dirty.take()) == 60 and not dirty.aborted
    from_the_middle = Reader(broker)
    await from_the_middle.start(handle, offset=40)
    got = from_the_middle.take()
    assert got == expected[-len(got) :]
    assert len(from_the_middle.aborted) < 23
    assert all(end > 40 for *_, end in from_the_middle.aborted)


async def test_the_latest_is_where_readers_of_what_is_committed_get(broker: Broker, topic: types.Topic) -> None:
    (one,) = await producers(broker, "tx")
    handle = await one.attach()
    one.produce(handle, b"before")
    await one.answer()
    await one.write(handle, b"a")
    assert broker.topics.partition("t", 0).last_stable_offset == 1
    for uncommitted, expected in ((False, 1), (True, 2)):
        reader = Reader(broker)
        await reader.start(handle, uncommitted=uncommitted, latest=True)
        assert reader.next_offset == expected
        reader.send(find_offset=pb.FindOffset(
            partition=handle, position=types.Position(latest=True), uncommitted=uncommitted
        ))  # fmt: skip
        assert (await reader.answer()).found_offset.offset == expected


async def test_batches_sent_without_waiting_keep_their_order(broker: Broker, topic: types.Topic) -> None:
    (one,) = await producers(broker, "tx")
    handle = await one.attach()
    sent = [b"%d" % number for number in range(200)]
    for value in sent:
        one.begin(handle, value)
    acknowledged = 0
    while acknowledged < len(sent):
        acknowledged += len((await one.answer()).acks.requests)
    await one.end(commit=True)
    reader = Reader(broker)
    await reader.start(handle)
    assert reader.take() == sent


async def test_a_zombie_and_a_latecomer_are_told_apart(broker: Broker, topic: types.Topic) -> None:
    (one,) = await producers(broker, "tx")
    handle = await one.attach()
    await one.write(handle, b"a")
    zombie_epoch = one.epoch
    (successor,) = await producers(broker, "tx")
    assert successor.epoch > zombie_epoch and successor.producer_id == one.producer_id
    one.begin(handle, b"b")
    assert (await one.answer()).error.error.code == types.ERROR_CODE_TRANSACTION_ABORTED
    await successor.write(handle, b"c")
    await successor.end(commit=True)
    one.begin(handle, b"d")
    assert (await one.answer()).error.error.code == types.ERROR_CODE_PRODUCER_FENCED
    reader = Reader(broker)
    await reader.start(handle)
    assert reader.take() == [b"c"]


async def test_a_stream_that_ends_while_its_coordinator_is_asked_is_no_trouble(
    broker: Broker, topic: types.Topic
) -> None:
    (one,) = await producers(broker, "tx")
    handle = await one.attach()
    one.begin(handle, b"a")
    one.session.close()
    partition = broker.topics.partition("t", 0)
    await until(lambda: partition.log.log_end == 1, "it is written all the same")
    assert partition.last_stable_offset == 0


@pytest.mark.parametrize("uncommitted", [False, True])
async def test_a_thin_client_gets_what_is_committed(
    broker: Broker, topic: types.Topic, call: Call, *, uncommitted: bool
) -> None:
    one, two = await producers(broker, "one", "two")
    handle = await one.attach()

    async def fetch(offset: int, wait_ms: int = 0) -> pb.FetchResponse:
        request = pb.FetchRequest(
            topic="t", start=types.Position(offset=offset), uncommitted=uncommitted, wait_ms=wait_ms
        )
        answer: pb.FetchResponse = await call("comet.v1.Comet/Fetch", request)
        return answer

    await one.write(handle, b"aborted")
    await one.end(commit=False)
    await two.write(handle, b"committed")
    await one.write(handle, b"open")
    await two.end(commit=True)
    found = await fetch(0)
    values = [record.value for record in found.records]
    if uncommitted:
        assert (values, found.next_offset) == ([b"aborted", b"committed", b"open"], 5)
    else:
        assert (values, found.next_offset) == ([b"committed"], 3)
        waiting = asyncio.get_running_loop().create_task(fetch(3, wait_ms=5_000))
        await asyncio.sleep(0)
        assert not waiting.done()
        await one.end(commit=True)
        assert [record.value for record in (await waiting).records] == [b"open"]


async def test_a_description_says_how_far_readers_get(broker: Broker, topic: types.Topic, call: Call) -> None:
    (one,) = await producers(broker, "tx")
    handle = await one.attach()
    await one.write(handle, b"a")
    described = await call("comet.v1.Admin/DescribeTopic", admin.DescribeTopicRequest(name="t"))
    status = described.partitions[0]
    assert (status.high_watermark, status.last_stable_offset) == (1, 0)
    numbers = broker.statistics()["partitions"][0]
    assert (numbers["last_stable_offset"], numbers["transactions_open"], numbers["transactions_aborted"]) == (0, 1, 0)


async def test_a_session_with_too_much_on_its_way_is_not_read_on(broker: Broker, topic: types.Topic) -> None:
    (one,) = await producers(broker, "tx")
    handle = await one.attach()
    for number in range(limits.SESSION_ANSWERS_MAX):
        one.begin(handle, b"%d" % number)
    assert one.session.answers.full
    acknowledged = 0
    while acknowledged < limits.SESSION_ANSWERS_MAX:
        acknowledged += len((await one.answer()).acks.requests)
    assert not one.session.answers.full


@pytest.mark.parametrize("warm", [True, False])
async def test_what_was_aborted_and_deleted_is_not_delivered_from_memory(
    broker: Broker, topic: types.Topic, *, warm: bool
) -> None:
    """What is known of an aborted transaction goes with its records."""
    (one,) = await producers(broker, "tx")
    handle = await one.attach()
    reader = Reader(broker)
    await reader.start(handle)
    assert reader.take() == []  # so that it is at the end, and what follows is kept in memory for it
    await one.write(handle, b"aborted")
    await one.end(commit=False)
    partition = broker.topics.by_handle[handle]
    if not warm:
        partition.readers.tail.clear()
    assert partition.watermarks.isolation.aborted(0, 2) != []
    await partition.housekeeping.delete_before(partition.high_watermark)
    assert partition.watermarks.isolation.aborted(0, 2) == []
    assert one.produce(handle, b"next")
    await one.answer()
    frame = reader.session.poll()
    assert frame is not None
    told = pb.ServerFrame.FromString(joined(frame))
    assert told.error.error.code == types.ERROR_CODE_OFFSET_OUT_OF_RANGE
    assert told.error.error.details["log_start"] == "2"
    assert reader.session.poll() is None


class HeldWorker:
    """The first thing it is given is done, and told of when it is let go."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.done = asyncio.Event()
        self.free = asyncio.Event()

    async def run(self, work: Callable[[], R]) -> R:
        result = await self._worker.run(work)
        if not self.done.is_set():
            self.done.set()
            await self.free.wait()
        return result


async def test_what_was_aborted_and_is_deleted_while_it_is_read_is_not_fetched(
    broker: Broker, topic: types.Topic, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = await producers(broker, "tx")
    handle = await one.attach()
    await one.write(handle, b"aborted")
    await one.end(commit=False)
    one.produce(handle, b"next")
    await one.answer()
    partition = broker.topics.by_handle[handle]
    held = HeldWorker(broker.env.worker)
    monkeypatch.setattr(broker.reader, "worker", held)
    fetching = asyncio.ensure_future(call("comet.v1.Comet/Fetch", pb.FetchRequest(topic="t", partition=0)))
    await held.done.wait()
    await partition.housekeeping.delete_before(2)
    held.free.set()
    found = await fetching
    assert [(record.offset, record.value) for record in found.records] == [(2, b"next")]
    assert found.log_start == 2


@pytest.mark.parametrize("locks", [False, True])
async def test_what_was_aborted_and_is_deleted_while_it_is_read_is_not_shared_out(
    broker: Broker, topic: types.Topic, call: Call, monkeypatch: pytest.MonkeyPatch, *, locks: bool
) -> None:
    (one,) = await producers(broker, "tx")
    handle = await one.attach()
    await one.write(handle, bytes(2 * limits.SHARE_READ_BYTES))  # more than is read without a worker
    await one.end(commit=False)
    one.produce(handle, b"next")
    await one.answer()
    partition = broker.topics.by_handle[handle]
    partition.readers.tail.clear()
    member = Member(broker)
    held = HeldWorker(broker.env.worker)
    monkeypatch.setattr(broker.reader, "worker", held)
    if locks:
        acquiring = asyncio.ensure_future(acquire(call, wait_ms=10_000))
    else:
        await member.share(handle)
        assert member.now() == []
    await held.done.wait()
    await partition.housekeeping.delete_before(2)
    held.free.set()
    if locks:
        assert [(record.offset, record.value, record.delivery_count) for record in await acquiring] == [(2, b"next", 1)]
    else:
        assert await member.take(1) == [(2, b"next", 1)]


@pytest.mark.parametrize("locks", [False, True])
async def test_what_was_aborted_and_deleted_is_not_shared_out_from_memory(
    broker: Broker, topic: types.Topic, call: Call, *, locks: bool
) -> None:
    (one,) = await producers(broker, "tx")
    handle = await one.attach()
    one.produce(handle, b"first", b"second")
    await one.answer()
    await one.write(handle, b"aborted")
    await one.end(commit=False)
    one.produce(handle, b"next")
    await one.answer()
    member = Member(broker)
    if locks:
        assert [record.offset for record in await acquire(call, 1)] == [0]
    else:
        await member.share(handle, in_flight=1)
        assert await member.take(1) == [(0, b"first", 1)]
    await broker.topics.by_handle[handle].housekeeping.delete_before(4)
    if locks:
        assert [(record.offset, record.value, record.delivery_count) for record in await acquire(call)] == [
            (4, b"next", 1)
        ]
    else:
        await member.acknowledge(handle, 0)
        assert await member.take(1) == [(4, b"next", 1)]
