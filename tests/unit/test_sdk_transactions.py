"""Transactions against a broker that refuses, forgets, freezes and goes away. On virtual time."""

# ruff: noqa: PT012 - what is raised comes out of the whole block of a transaction

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from comet.errors import (
    Closed,
    CometError,
    CoordinatorLoading,
    DiskFull,
    InvalidArgument,
    LogFailed,
    ProducerFenced,
    RecordTooLarge,
    StaleGeneration,
    Timeout,
    TransactionAborted,
    TransactionNotOpen,
    Unavailable,
)
from comet.producer.transaction import TransactionalProducer
from comet.v1 import groups_pb2 as groups_pb
from comet_testing.simulation.loop import run
from tests.unit.sdk_fake import ADDRESS, Fate
from tests.unit.sdk_fake_transactions import TransactionBroker

Scenario = Callable[[TransactionBroker], Awaitable[None]]


def scenario(topics: dict[str, int] | None = None) -> Callable[[Scenario], Callable[[], None]]:
    def make(function: Scenario) -> Callable[[], None]:
        def test() -> None:
            run(lambda loop: function(TransactionBroker(topics)))  # type: ignore[arg-type,return-value]

        test.__doc__ = function.__doc__
        return test

    return make


def producer(broker: TransactionBroker, name: str = "p", **settings: Any) -> TransactionalProducer:
    return TransactionalProducer(ADDRESS, name, connect=broker.connect, random=Random(1), **settings)


class Member:
    """A consumer of a group, as far as a transaction needs it."""

    def __init__(self, offset: int = 5) -> None:
        self.offset = offset
        self.asked: list[Any] = []
        self.told: list[groups_pb.Commit] = []

    def offsets_to_commit(self, positions: Any) -> groups_pb.Commit:
        self.asked.append(positions)
        mark = groups_pb.PartitionOffset(partition=0, offset=self.offset)
        topics = [groups_pb.TopicOffsets(topic="in", offsets=[mark])]
        return groups_pb.Commit(group="g", member="m", generation=3, topics=topics)

    def were_committed(self, offsets: groups_pb.Commit) -> None:
        self.told.append(offsets)


@scenario({"quotes": 1, "other": 2})
async def test_everything_becomes_visible_with_the_commit(broker: TransactionBroker) -> None:
    async with producer(broker) as p:
        async with p.transaction() as tx:
            await tx.send("quotes", b"1")
            await tx.send_many("other", [b"2", b"3"], keys=[b"a", b"b"])
            await asyncio.sleep(1)
            assert broker.topics["quotes"][0].values() == [b"1"]
            assert broker.committed() == []
            assert tx.state == "open"
        assert tx.state == "committed"
        assert broker.committed() == [b"1"]
        assert sorted(broker.committed("other", 0) + broker.committed("other", 1)) == [b"2", b"3"]  # type: ignore[type-var]
        assert p.statistics()["committed"] == 1
    assert not broker.streams


@scenario()
async def test_every_transaction_has_an_epoch_of_its_own_and_begins_at_sequence_0(broker: TransactionBroker) -> None:
    async with producer(broker) as p:
        for n in range(3):
            async with p.transaction() as tx:
                for _ in range(2):
                    await (await tx.send("quotes", b"%d" % n))
    headers = [header for header, _ in broker.topics["quotes"][0].batches]
    assert [(header.producer_epoch, header.base_sequence) for header in headers] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)
    ]  # fmt: skip
    assert len({header.producer_id for header in headers}) == 1
    assert all(header.transactional for header in headers)


@scenario()
async def test_an_exception_aborts_and_the_next_transaction_is_another(broker: TransactionBroker) -> None:
    async with producer(broker, linger_ms=1000) as p:
        with pytest.raises(ZeroDivisionError):
            async with p.transaction() as tx:
                await (await tx.send("quotes", b"1"))
                delivery = await tx.send("quotes", b"2")  # never leaves
                raise ZeroDivisionError
        assert tx.state == "aborted"
        with pytest.raises(TransactionAborted):
            await delivery
        async with p.transaction() as tx:
            await tx.send("quotes", b"3")
    assert broker.committed() == [b"3"]
    assert p.statistics()["aborted"] == 1


@scenario()
async def test_a_transaction_without_anything_asks_nobody(broker: TransactionBroker) -> None:
    async with producer(broker) as p:
        async with p.transaction():
            pass
        with pytest.raises(KeyError):
            async with p.transaction():
                raise KeyError
    assert not broker.endings


@scenario()
async def test_a_record_that_cannot_be_written_aborts_the_transaction(broker: TransactionBroker) -> None:
    async with producer(broker) as p:
        with pytest.raises(TransactionAborted, match="too large") as caught:
            async with p.transaction() as tx:
                await (await tx.send("quotes", b"0"))
                broker.script = lambda partition, header: RecordTooLarge("too large")
                await tx.send("quotes", b"1")
                await asyncio.sleep(1)
                with pytest.raises(TransactionAborted):
                    await tx.send("quotes", b"2")
        assert isinstance(caught.value.__cause__, RecordTooLarge)
        broker.script = broker._admit
        async with p.transaction() as tx:
            await tx.send("quotes", b"3")
    assert broker.committed() == [b"3"]


@scenario()
async def test_what_was_refused_for_now_is_sent_again_within_the_transaction(broker: TransactionBroker) -> None:
    left = [3]

    def full(partition: Any, header: Any) -> Fate | CometError:
        left[0] -= 1
        return DiskFull("full") if left[0] > 0 else broker._admit(partition, header)

    async with producer(broker) as p, p.transaction() as tx:
        broker.script = full
        for n in range(5):
            await tx.send("quotes", b"%d" % n)
            await asyncio.sleep(0.001)
    assert broker.committed() == [b"%d" % n for n in range(5)]


@scenario()
async def test_after_a_lost_connection_everything_goes_again_as_it_was(broker: TransactionBroker) -> None:
    async with producer(broker) as p, p.transaction() as tx:
        broker.script = lambda partition, header: Fate.WRITTEN_UNANSWERED
        await tx.send("quotes", b"1")
        await asyncio.sleep(0.1)
        await tx.send("quotes", b"2")
        await asyncio.sleep(0.1)
        broker.script = broker._admit
        broker.cut()
    assert broker.committed() == [b"1", b"2"]


@scenario()
async def test_an_end_that_is_not_answered_is_asked_for_until_it_is(broker: TransactionBroker) -> None:
    fates: list[Fate | CometError] = [CoordinatorLoading("wait"), Fate.WRITTEN_UNANSWERED]
    broker.ends = lambda ending: fates.pop(0) if fates else Fate.WRITTEN
    async with producer(broker) as p:

        async def cut() -> None:
            await asyncio.sleep(1)
            broker.cut()

        cutting = asyncio.ensure_future(cut())
        async with p.transaction() as tx:
            await tx.send("quotes", b"1")
        assert tx.state == "committed"
        await cutting
        async with p.transaction() as tx:
            await tx.send("quotes", b"2")
    assert broker.committed() == [b"1", b"2"]
    assert [ending.epoch for ending in broker.endings] == [0, 0, 1]


@pytest.mark.parametrize("written", [True, False])
def test_a_commit_without_an_answer_is_unknown_and_asked_for_again_before_the_next(written: bool) -> None:
    @scenario()
    async def check(broker: TransactionBroker) -> None:
        broker.ends = lambda ending: Fate.WRITTEN_UNANSWERED if written else Fate.LOST
        async with producer(broker, transaction_timeout_ms=2000) as p:
            with pytest.raises(Timeout) as caught:
                async with p.transaction() as tx:
                    await tx.send("quotes", b"1")
            assert caught.value.outcome_unknown
            assert tx.state == "unknown"
            with pytest.raises(Timeout):
                async with p.transaction():
                    raise AssertionError("nothing is begun before it is known")
            broker.ends = lambda ending: Fate.WRITTEN
            async with p.transaction() as tx:
                await tx.send("quotes", b"2")
        assert broker.committed() == [b"1", b"2"]

    check()


@scenario()
async def test_a_transaction_that_ran_out_of_time_is_aborted_and_the_producer_goes_on(
    broker: TransactionBroker,
) -> None:
    async with producer(broker) as p:
        with pytest.raises(TransactionAborted):
            async with p.transaction() as tx:
                await (await tx.send("quotes", b"1"))
                broker.time_out("p")
        assert tx.state == "aborted"
        with pytest.raises(TransactionAborted):
            async with p.transaction() as tx:
                await (await tx.send("quotes", b"2"))
                broker.time_out("p")
                await tx.send("quotes", b"3")
        async with p.transaction() as tx:
            await tx.send("quotes", b"4")
    assert broker.committed() == [b"4"]


@scenario()
async def test_a_producer_of_the_same_name_shuts_the_older_one_out_for_good(broker: TransactionBroker) -> None:
    async with producer(broker) as old:
        with pytest.raises(ProducerFenced):
            async with old.transaction() as tx:
                await (await tx.send("quotes", b"1"))
                async with producer(broker) as new, new.transaction() as other:
                    await other.send("quotes", b"2")
                await tx.send("quotes", b"3")
        with pytest.raises(ProducerFenced):
            async with old.transaction():
                pass
    assert broker.committed() == [b"2"]


@scenario()
async def test_positions_are_committed_with_the_records_or_not_at_all(broker: TransactionBroker) -> None:
    member = Member()
    async with producer(broker, "", group="g") as p:
        async with p.transaction() as tx:
            await tx.send("quotes", b"1")
            await tx.commit_offsets(member, {("in", 0): 4})
            await tx.commit_offsets(member, {("in", 0): 5})
        assert member.asked == [{("in", 0): 5}]
        assert len(member.told) == 1
        assert broker.offsets == {("g", "in", 0): 5}
        assert broker.endings[-1].group == "g"
        async with p.transaction() as tx:  # positions alone
            member.offset = 6
            await tx.commit_offsets(member)
        assert broker.offsets == {("g", "in", 0): 6}

        def refuse(commit: groups_pb.Commit) -> None:
            raise StaleGeneration("not yours")

        broker.check_group = refuse
        with pytest.raises(StaleGeneration):
            async with p.transaction() as tx:
                await tx.send("quotes", b"2")
                member.offset = 7
                await tx.commit_offsets(member)
        assert tx.state == "aborted"
        assert broker.offsets == {("g", "in", 0): 6}
        broker.check_group = lambda commit: None
        async with p.transaction() as tx:
            await tx.send("quotes", b"3")
    assert broker.committed() == [b"1", b"3"]
    async with producer(broker) as p, p.transaction() as tx:
        with pytest.raises(InvalidArgument):
            await tx.commit_offsets(member)


@scenario()
async def test_a_transaction_is_used_inside_its_block_and_one_at_a_time(broker: TransactionBroker) -> None:
    async with producer(broker) as p:
        tx = p.transaction()
        with pytest.raises(TransactionNotOpen):
            await tx.send("quotes", b"1")
        async with tx:
            with pytest.raises(InvalidArgument):
                async with p.transaction():
                    pass
        with pytest.raises(TransactionNotOpen):
            await tx.send("quotes", b"1")
        with pytest.raises(InvalidArgument):
            async with tx:
                pass
    with pytest.raises(Closed):
        async with p.transaction():
            pass


@scenario()
async def test_a_send_that_is_under_way_belongs_to_its_transaction_or_to_none(broker: TransactionBroker) -> None:
    async with producer(broker, buffer_bytes=1) as p:
        with pytest.raises(KeyError):
            async with p.transaction() as tx:
                await tx.send("quotes", b"1")
                late = asyncio.ensure_future(tx.send("quotes", b"2"))  # waits for room
                await asyncio.sleep(0)
                raise KeyError
        async with p.transaction() as tx:
            await tx.send("quotes", b"3")
        assert late.done()
    assert broker.committed() == [b"3"]


@scenario()
async def test_who_is_cancelled_leaves_nothing_open(broker: TransactionBroker) -> None:
    async with producer(broker) as p:

        async def work() -> None:
            async with p.transaction() as tx:
                await (await tx.send("quotes", b"1"))
                await asyncio.sleep(100)

        task = asyncio.ensure_future(work())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [(ending.epoch, ending.commit) for ending in broker.endings] == [(0, False)]
        async with p.transaction() as tx:
            await tx.send("quotes", b"2")
    assert broker.committed() == [b"2"]


@scenario()
async def test_a_producer_that_is_closed_aborts(broker: TransactionBroker) -> None:
    p = producer(broker)
    async with p.transaction() as tx:
        await (await tx.send("quotes", b"1"))
        await p.close()
    assert tx.state == "aborted"
    assert broker.committed() == []
    assert broker.endings[-1].commit is False


@scenario()
async def test_a_block_ends_when_its_producer_is_closed_while_it_waits_for_a_send(broker: TransactionBroker) -> None:
    p = producer(broker, buffer_bytes=1)
    tx = p.transaction()

    async def work() -> None:
        async with tx:
            broker.script = lambda partition, header: Fate.LOST
            await tx.send("quotes", b"1")
            late.append(asyncio.ensure_future(tx.send("quotes", b"2")))  # waits for room
            await asyncio.sleep(0)

    late: list[asyncio.Future[Any]] = []
    task = asyncio.ensure_future(work())
    await asyncio.sleep(0.1)
    assert not late[0].done()
    assert tx.state == "ending"
    await p.close()
    async with asyncio.timeout(1):
        with pytest.raises(TransactionAborted):
            await task
    assert tx.state == "aborted"
    assert [ending.commit for ending in broker.endings] == [False]


@pytest.mark.parametrize(
    ("answer", "error"),
    [(Fate.WRITTEN_UNANSWERED, Unavailable), (CoordinatorLoading("wait", retry_after_ms=5_000), Closed)],
)
def test_what_is_being_ended_when_its_producer_is_closed_is_not_known(
    answer: Fate | CometError, error: type[CometError]
) -> None:
    @scenario()
    async def check(broker: TransactionBroker) -> None:
        broker.ends = lambda ending: answer
        p = producer(broker)
        tx = p.transaction()

        async def work() -> None:
            async with tx:
                await tx.send("quotes", b"1")

        task = asyncio.ensure_future(work())
        await asyncio.sleep(0.1)
        assert tx.state == "ending"
        await p.close()
        with pytest.raises(error):
            await task
        assert tx.state == "unknown"

    check()


@scenario()
async def test_a_full_window_that_is_given_up_stops_nothing_later(broker: TransactionBroker) -> None:
    """A sender that waits for answers which do not arrive any more has to go on all the same."""
    async with producer(broker) as p:
        broker.script = lambda partition, header: Fate.LOST
        with pytest.raises(KeyError):
            async with p.transaction() as tx:
                for n in range(40):
                    await tx.send("quotes", b"%d" % n)
                    await asyncio.sleep(0.01)
                raise KeyError
        broker.script = broker._admit
        async with p.transaction() as tx:
            await tx.send("quotes", b"last")
    assert broker.committed() == [b"last"]


@scenario()
async def test_a_log_that_fails_fails_the_transaction(broker: TransactionBroker) -> None:
    async with producer(broker) as p:
        broker.script = lambda partition, header: LogFailed("the disk")
        with pytest.raises(TransactionAborted):
            async with p.transaction() as tx:
                await tx.send("quotes", b"1")
    assert broker.committed() == []


def test_settings_make_sense_or_are_refused() -> None:
    for wrong in (0, 16 * 60_000):
        with pytest.raises(InvalidArgument):
            TransactionalProducer(ADDRESS, "p", transaction_timeout_ms=wrong)


@scenario()
async def test_a_producer_of_a_member_is_opened_anew_when_that_is_another(broker: TransactionBroker) -> None:
    """So that the coordinator aborts what is open when it puts the member out."""

    class Consumer(Member):
        group = "g"
        member = "first"

    consumer = Consumer()
    async with producer(broker, "", group=consumer) as p:
        async with p.transaction() as tx:
            await tx.send("quotes", b"1")
        async with p.transaction() as tx:
            await tx.send("quotes", b"2")
        consumer.member = "second"
        async with p.transaction() as tx:
            await tx.send("quotes", b"3")
            await tx.commit_offsets(consumer)
    assert [opening.member for opening in broker.openings] == ["first", "second"]
    assert len({opening.transactional_id for opening in broker.openings[1:]} | set(broker.names)) == 1
    assert broker.committed() == [b"1", b"2", b"3"]
