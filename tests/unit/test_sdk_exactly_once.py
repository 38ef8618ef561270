"""Exactly once, and transactions by hand, with handlers that fail and coordinators that do not answer.

On the virtual time of comet_testing.simulation.loop.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import comet
from comet.errors import DiskFull, InvalidArgument, SerdeError, StaleGeneration, TransactionAborted
from comet.records import BatchHeader
from tests.unit.delivery_world import P0, P1, letters, scenario, stop_when
from tests.unit.sdk_fake import FakePartition, Fate
from tests.unit.sdk_fake_group import FakeGroup, GroupApp
from tests.unit.sdk_fake_transactions import TransactionBroker


def written(broker: TransactionBroker) -> list[bytes | None]:
    return broker.committed("out")


def upper(a: GroupApp, **options: Any) -> dict[str, Any]:
    """An app that copies, and fails as told by what it returns."""
    told: dict[str, Any] = {"fail": {}, "calls": [], "error": ZeroDivisionError()}

    @a.on("in", group="g", delivery="exactly_once", **options)
    async def handle(record: comet.Record[bytes]) -> None:
        told["calls"].append(record.value)
        await a.send("out", record.value + b"!")
        if told["fail"].get(record.value, 0) > 0:
            told["fail"][record.value] -= 1
            raise told["error"]

    return told


def marked(n: int) -> list[bytes]:
    return [letter + b"!" for letter in letters(n)]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_outputs_and_positions_are_committed_together(concurrency: int) -> None:
    @scenario()
    async def check(broker: TransactionBroker, group: FakeGroup, a: GroupApp) -> None:
        upper(a, transaction_records=10, concurrency=concurrency)
        group.write(P0, *letters(25), key=b"k")
        stop_when(a, lambda: group.committed[P0] == 25)
        await a.serve()
        assert written(broker) == marked(25)
        assert len([one for one in broker.endings if one.commit]) == 3
        assert a.statistics()[0]["handled"] == 25

    check()


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_handler_that_fails_aborts_and_everything_is_handled_again(concurrency: int) -> None:
    @scenario()
    async def check(broker: TransactionBroker, group: FakeGroup, a: GroupApp) -> None:
        told = upper(a, retries=3, backoff_ms=10, concurrency=concurrency)
        told["fail"] = {b"3": 2}
        group.write(P0, *letters(10), key=b"k")
        stop_when(a, lambda: group.committed[P0] == 10)
        await a.serve()
        assert told["calls"].count(b"0") == 3
        assert written(broker) == marked(10)
        assert a.statistics()[0]["retried"] == 2

    check()


@scenario()
async def test_a_broker_that_is_away_is_none_of_the_handlers_faults(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    """What a handler asks of Comet may fail as it does itself; all of it is undone, and done again."""
    told = upper(a)
    told["fail"] = {b"3": 4}
    told["error"] = comet.Unavailable("nobody answers")
    group.write(P0, *letters(5))
    stop_when(a, lambda: group.committed[P0] == 5)
    await a.serve()
    assert written(broker) == marked(5)
    assert told["calls"].count(b"0") == 5


@scenario()
async def test_after_the_last_attempt_the_app_ends_with_nothing_committed(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    told = upper(a, retries=1, backoff_ms=10)
    told["fail"] = {b"3": 9}
    group.write(P0, *letters(5))
    with pytest.raises(ZeroDivisionError):
        await a.serve()
    assert written(broker) == []
    assert group.committed[P0] == 0


@scenario()
async def test_a_malformed_record_ends_the_app_where_it_is_to_stop(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    @a.on("in", group="g", delivery="exactly_once", on_malformed="stop")
    async def handle(number: int) -> None: ...

    group.write(P0, b"1", b"x")
    with pytest.raises(SerdeError):
        await a.serve()
    assert group.committed[P0] == 0


@scenario()
async def test_with_skip_the_rest_of_the_transaction_is_committed(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    told = upper(a, on_error="skip")
    told["fail"] = {b"3": 9}
    group.write(P0, *letters(5))
    stop_when(a, lambda: group.committed[P0] == 5)
    await a.serve()
    assert written(broker) == [b"0!", b"1!", b"2!", b"4!"]
    assert a.statistics()[0]["failed"] == 1


@scenario()
async def test_a_transaction_that_is_aborted_by_others_is_done_again(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    upper(a)
    fates: list[Any] = [TransactionAborted("time is over"), StaleGeneration("a moment"), Fate.WRITTEN]
    broker.ends = lambda ending: fates.pop(0) if fates and ending.commit else Fate.WRITTEN
    group.write(P0, *letters(5))
    stop_when(a, lambda: group.committed[P0] == 5)
    await a.serve()
    assert written(broker) == marked(5)


@pytest.mark.parametrize("refused", range(4))
def test_what_was_handled_while_a_transaction_ended_is_given_up_with_it(refused: int) -> None:
    @scenario()
    async def check(broker: TransactionBroker, group: FakeGroup, a: GroupApp) -> None:
        told = upper(a, transaction_records=5)
        fates: list[Any] = [Fate.WRITTEN] * 8
        fates[refused] = TransactionAborted("time is over")
        broker.ends = lambda ending: fates.pop(0) if fates and ending.commit else Fate.WRITTEN
        group.write(P0, *letters(20), key=b"k")
        stop_when(a, lambda: group.committed[P0] == 20)
        await a.serve()
        assert written(broker) == marked(20)
        assert 25 <= len(told["calls"]) <= 30, "the one that was refused, and what was handled behind it"

    check()


@scenario()
async def test_what_is_sent_while_a_transaction_ends_lies_behind_it(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    upper(a, transaction_records=5)
    refusals = dict.fromkeys(range(4), 3)  # per transaction of a producer, how often its first batch is refused

    def full(partition: FakePartition, header: BatchHeader) -> Any:
        if header.base_sequence == 0 and refusals.get(header.producer_epoch, 0):
            refusals[header.producer_epoch] -= 1
            return DiskFull("for a while")
        return broker._admit(partition, header)

    broker.script = full
    group.write(P0, *letters(40), key=b"k")
    stop_when(a, lambda: group.committed[P0] == 40)
    await a.serve()
    assert written(broker) == marked(40)
    assert len(broker.names) == 2, "two producers take turns"


@scenario()
async def test_a_commit_that_fails_while_nothing_comes_is_done_again_at_once(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    upper(a)
    fates: list[Any] = [StaleGeneration("a moment")]
    broker.ends = lambda ending: fates.pop() if fates and ending.commit else Fate.WRITTEN
    group.write(P0, *letters(5))
    serving = asyncio.ensure_future(a.serve())
    await asyncio.sleep(1)
    assert written(broker) == marked(5)
    a.stop()
    await serving


@pytest.mark.parametrize("is_written", [True, False])
def test_when_nobody_knows_the_group_is_asked(is_written: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    @scenario()
    async def check(broker: TransactionBroker, group: FakeGroup, a: GroupApp) -> None:
        upper(a)
        broker.ends = lambda ending: Fate.WRITTEN_UNANSWERED if is_written else Fate.LOST
        group.write(P0, *letters(5))
        serving = asyncio.ensure_future(a.serve())
        await asyncio.sleep(20)
        broker.ends = lambda ending: Fate.WRITTEN
        await asyncio.sleep(50)
        assert len(group.members) == 2, "it begins anew as another member"
        assert group.committed[P0] == 5
        assert written(broker) == marked(5)
        a.stop()
        await serving

    check()


@scenario()
async def test_records_of_a_lost_partition_are_left_out(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    entered = asyncio.Event()

    @a.on("in", group="g", delivery="exactly_once")
    async def handle(record: comet.Record[bytes]) -> None:
        await a.publish("out", record.value)
        if record.value == b"b" and not entered.is_set():
            entered.set()
            await asyncio.sleep(1)

    group.write(P0, b"a")
    group.write(P1, b"b")
    serving = asyncio.ensure_future(a.serve())
    await entered.wait()
    group.member.lose(P0)
    await asyncio.sleep(5)
    assert written(broker) == [b"b"]
    assert group.committed == {P0: 0, P1: 1}
    a.stop()
    await serving


@scenario()
async def test_a_handler_may_take_its_transaction(broker: TransactionBroker, group: FakeGroup, a: GroupApp) -> None:
    @a.on("in", group="g", delivery="exactly_once")
    async def handle(values: list[bytes], tx: comet.Transaction) -> None:
        await tx.send_many("out", values)

    group.write(P0, *letters(7))
    stop_when(a, lambda: group.committed[P0] == 7)
    await a.serve()
    assert written(broker) == letters(7)


# ---- app.transaction


@scenario()
async def test_a_handler_commits_its_message_with_what_it_sends(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    fail = [1]

    @a.on("in", group="g", retries=5, backoff_ms=1)
    async def handle(record: comet.Record[bytes]) -> None:
        async with a.transaction(record) as tx:
            await tx.send("out", record.value)
            if record.value == b"2" and fail:
                fail.pop()
                raise ZeroDivisionError

    group.write(P0, *letters(5))
    stop_when(a, lambda: len(written(broker)) == 5)
    await a.serve()
    assert written(broker) == letters(5)
    assert broker.offsets["g", "in", 0] == 5
    assert len(broker.names) == 1, "one producer does it all"


@scenario()
async def test_a_transaction_belongs_into_a_handler_that_can_commit_it(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    record = comet.Record("in", 0, 1, None, b"", 0, [])
    with pytest.raises(InvalidArgument):
        async with a.transaction(record):
            pass
    async with a.transaction() as tx:  # alone
        await tx.send("out", b"1")
    assert written(broker) == [b"1"]

    @a.on("in", group="g", concurrency=2)
    async def handle(record: comet.Record[bytes]) -> None:
        async with a.transaction(record):
            pass

    group.write(P0, b"1")
    with pytest.raises(InvalidArgument, match="concurrency"):
        await a.serve()
