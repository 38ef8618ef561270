"""Reads of comet.sync, with and without a turn of the loop, on virtual time: the scenarios of the asynchronous
consumers, and its own. The program's thread and the loop are one here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from types import FunctionType
from typing import Any, TypeVar

import pytest

from comet.consumer.consumer import Consumer
from comet.errors import Closed, CorruptBatch, SerdeError
from comet.groups.group_consumer import GroupConsumer
from comet.sync import inbox
from comet.types import TopicPartition
from comet.values.record import RecordBatch
from tests.unit import test_sdk_consumer, test_sdk_groups
from tests.unit.sdk_fake import ADDRESS, FakeBroker
from tests.unit.sdk_fake_groups import GroupBroker
from tests.unit.test_sdk_consumer import fill, take
from tests.unit.test_sdk_groups import quiet
from tests.unit.test_sdk_groups import scenario as group_scenario
from tests.unit.test_sdk_producer import scenario

T = TypeVar("T")
ZERO, ONE = TopicPartition("quotes", 0), TopicPartition("quotes", 1)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What a call on the loop does, of work that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    work.close()
    raise AssertionError("it waits")


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "call", at_once)


class _Ahead:
    """The reading methods of a synchronous twin, with `await` in place of a call."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        inbox.attach(self)  # type: ignore[arg-type]
        self.turns = 0  # of the loop, for a record or batch
        self._inside = False

    async def _counted(self, work: Coroutine[Any, Any, T]) -> T:
        self.turns += 1
        self._inside = True
        try:
            return await work
        finally:
            self._inside = False

    async def __anext__(self) -> Any:
        if self._inside:
            return await super().__anext__()  # type: ignore[misc]
        at_hand: Any = inbox._record_at_hand(self)  # type: ignore[arg-type]
        return at_hand or await self._counted(inbox._reading(self, self.__anext__))  # type: ignore[arg-type]

    async def get(self, timeout_s: float | None = None) -> Any:
        if self._inside:
            return await super().get(timeout_s)  # type: ignore[misc]
        at_hand: Any = inbox._record_at_hand(self)  # type: ignore[arg-type]
        return at_hand or await self._counted(inbox._reading(self, lambda: self.get(timeout_s)))  # type: ignore[arg-type]

    async def get_batch(self, timeout_s: float | None = None) -> Any:
        if self._inside:
            return await super().get_batch(timeout_s)  # type: ignore[misc]
        at_hand: Any = inbox._batch_at_hand(self)  # type: ignore[arg-type]
        return at_hand or await self._counted(inbox._reading(self, lambda: self.get_batch(timeout_s)))  # type: ignore[arg-type]

    def batches(self, *, trace: bool = False) -> Any:
        assert not trace
        return _Batches(self)


class _Batches:
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def __aiter__(self) -> _Batches:
        return self

    async def __anext__(self) -> RecordBatch[Any]:
        consumer = self._consumer
        at_hand = inbox._batch_at_hand(consumer)
        return at_hand or await consumer._counted(inbox._reading(consumer, consumer._take_batch))


class AheadConsumer(_Ahead, Consumer[Any]):
    pass


class AheadMember(_Ahead, GroupConsumer[Any]):
    pass


def scenarios() -> Iterator[Any]:
    for module in (test_sdk_consumer, test_sdk_groups):
        for name, function in vars(module).items():
            if name.startswith("test_") and isinstance(function, FunctionType) and not function.__code__.co_varnames:
                yield pytest.param(function, id=name.removeprefix("test_"))


@pytest.mark.parametrize("run", list(scenarios()))
def test_what_holds_for_consumers_holds_for_one_that_looks_ahead(
    run: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_sdk_consumer, "Consumer", AheadConsumer)
    monkeypatch.setattr(test_sdk_groups, "GroupConsumer", AheadMember)
    run()


def consumer(broker: FakeBroker, **settings: Any) -> AheadConsumer:
    return AheadConsumer(ADDRESS, "quotes", connect=broker.connect, random=Random(2), **settings)


def member(broker: GroupBroker, **settings: Any) -> AheadMember:
    chosen = {"group": "engine", "connect": broker.connect, "random": Random(3), "start": "earliest", **settings}
    return AheadMember(ADDRESS, "quotes", **chosen)


async def arrived() -> None:
    """Long enough for all that was written to come."""
    await asyncio.sleep(1)


@group_scenario({"quotes": 2})
async def test_all_that_has_come_takes_one_turn_of_the_loop_however_few_records_a_batch_has(
    broker: GroupBroker,
) -> None:
    for partition in (0, 1):
        fill(broker, [b"%d" % n for n in range(50)], partition)
    async with consumer(broker, start="earliest") as c, member(broker) as m:
        await arrived()
        for one in (c, m):
            assert len(await take(one, 100)) == 100
            assert one.turns == 1
    broker.committed.clear()
    async with consumer(broker, start="earliest") as c, member(broker) as m:
        await arrived()
        for one in (c, m):
            found = [await anext(one.batches()) for _ in range(100)]
            assert sum(map(len, found)) == 100
            assert one.turns == 1


@scenario()
async def test_a_position_counts_what_was_taken_and_not_what_was_opened(broker: FakeBroker) -> None:
    fill(broker, [b"%d" % n for n in range(10)])
    async with consumer(broker, start="earliest") as c:
        await arrived()
        await take(c, 3)
        assert c._ahead is not None
        assert len(c._ahead.opened) == 7
        assert (c.positions(), c.lag()) == ({0: 3}, {0: 7})
        batch = await c.get_batch()
        assert batch.first_offset == 3
        assert c.positions() == {0: 4}


@group_scenario()
async def test_a_commit_counts_what_was_processed_and_not_what_was_opened(broker: GroupBroker) -> None:
    fill(broker, [b"%d" % n for n in range(10)])
    async with member(broker) as m:
        await arrived()
        await take(m, 3)
        assert m.positions() == {ZERO: 3}
        await arrived()
        assert broker.committed[ZERO][0] == 2, "the third is in hand"
        assert [await anext(m.batches()) for _ in range(2)][1].first_offset == 4
        await arrived()
        assert broker.committed[ZERO][0] == 4, "the fifth is in hand"
        await m.commit()
        assert broker.committed[ZERO][0] == 5
    async with member(broker) as m:
        assert (await take(m, 1))[0].offset == 5


@group_scenario({"quotes": 2})
async def test_what_was_opened_of_a_partition_does_not_delay_its_release_and_is_not_handed_out(
    broker: GroupBroker,
) -> None:
    for partition in (0, 1):
        fill(broker, [b"%d" % n for n in range(5)], partition)
    async with member(broker) as m:
        await arrived()
        first = (await take(m, 1))[0].partition
        other = 1 - first
        assert m._ahead is not None
        assert {reader.partition for reader, _ in m._ahead.opened} == {0, 1}
        broker.give("member-1", [ZERO, ONE], release=[("quotes", other)])
        await quiet()
        assert broker.released == [("quotes", other)]
        assert {record.partition for record in await take(m, 3)} == {first}
        broker.give("member-1", [("quotes", first)], release=[("quotes", first)])
        await quiet()
        assert len(broker.released) == 1, "a record of it is in hand"
        assert await m.get(timeout_s=0.01) is None, "the fifth was opened"
        await quiet()
        assert len(broker.released) == 2
        assert broker.committed["quotes", first][0] == 4


@pytest.mark.parametrize("take_one", [inbox._record_at_hand, inbox._batch_at_hand])
def test_a_record_that_is_recalled_as_it_is_taken_is_put_back(take_one: Callable[[AheadMember], Any]) -> None:
    @group_scenario()
    async def run(broker: GroupBroker) -> None:
        fill(broker, [b"0", b"1", b"2"])
        async with member(broker) as m:
            await arrived()
            assert (await anext(m.batches())).first_offset == 0
            assigned, settle = m._assigned[ZERO], m._settle
            assert assigned.reader is not None

            def settle_and_lose() -> None:
                settle()
                m._let_go(assigned)  # a rebalance on the other thread, after the look at `recalled`

            m._settle = settle_and_lose  # type: ignore[method-assign]
            assert take_one(m) is None
            m._settle = settle  # type: ignore[method-assign]
            assert not m._in_hand(assigned)
            assert m._done(assigned.reader) == 1, "the first was processed, and no other"
            assert await m.get(timeout_s=0.01) is None

    run()


@group_scenario({"quotes": 2})
async def test_a_release_that_waits_goes_on_with_the_next_record_of_a_batch(broker: GroupBroker) -> None:
    fill(broker, [b"%d" % n for n in range(6)], 0, per_batch=6)
    async with member(broker) as m:
        await take(m, 2)
        waiting = asyncio.ensure_future(m._next_return())
        await quiet()
        assert not waiting.done()
        assert [record.offset for record in await take(m, 4)] == [2, 3, 4, 5]
        await asyncio.wait_for(waiting, 1)


@group_scenario()
async def test_an_error_comes_in_its_place(broker: GroupBroker) -> None:
    fill(broker, [b"0", b"1", b"damaged", b"3"])
    header, batch = broker.topics["quotes"][0].batches[2]
    broker.topics["quotes"][0].batches[2] = header, batch[:-1] + bytes([batch[-1] ^ 1])
    async with consumer(broker, start="earliest") as c, member(broker) as m:
        await arrived()
        for one, at in ((c, 0), (m, ZERO)):
            assert [record.offset for record in await take(one, 2)] == [0, 1]
            with pytest.raises(CorruptBatch, match="at offset 2: the delivery is damaged"):
                await one.get(timeout_s=1)
            assert one.positions() == {at: 2}
        broker.topics["quotes"][0].batches[2] = header, batch
        for one in (c, m):
            assert [record.offset for record in await take(one, 2)] == [2, 3]


@group_scenario()
async def test_a_record_that_cannot_be_decoded_is_passed_in_its_place(broker: GroupBroker) -> None:
    fill(broker, [b"0", b"1", b"x", b"3", b"y", b"z", b"6"], per_batch=2)
    async with consumer(broker, start="earliest", type=int) as c, member(broker, type=int) as m:
        await arrived()
        for one in (c, m):
            found: list[object] = []
            while len(found) < 7:
                try:
                    found.append((await take(one, 1))[0].value)
                except SerdeError as error:
                    found.append(error.details["offset"])
            assert found == [0, 1, "2", 3, "4", "5", 6]
        await arrived()
        assert broker.committed[ZERO][0] == 6, "the last is in hand"


@scenario()
async def test_a_record_that_cannot_be_decoded_is_in_hand_as_an_error(broker: FakeBroker) -> None:
    fill(broker, [b"0", b"x", b"2"])
    async with consumer(broker, start="earliest", type=int) as c:
        await arrived()
        await take(c, 1)
        with pytest.raises(SerdeError):
            await take(c, 1)
        assert c.positions() == {0: 2}


@pytest.mark.parametrize(("size", "most"), [(10_000, 24), (0, 256)])
def test_what_is_opened_ahead_is_bounded_in_bytes_and_in_objects(size: int, most: int) -> None:
    @scenario()
    async def run(broker: FakeBroker) -> None:
        fill(broker, [bytes(size)] * 300)
        async with consumer(broker, start="earliest") as c:
            await arrived()
            await take(c, 1)
            assert c._ahead is not None
            assert most - 1 <= len(c._ahead.opened) <= most
            assert [record.offset for record in await take(c, 299)] == list(range(1, 300))

    run()


@scenario()
async def test_what_was_opened_is_dropped_by_a_seek_and_by_the_end(broker: FakeBroker) -> None:
    fill(broker, [b"%d" % n for n in range(10)])
    async with consumer(broker, start="earliest") as c:
        await arrived()
        await take(c, 2)
        await c.seek(7)
        assert [record.offset for record in await take(c, 1)] == [7]
        await c.seek(0)
        await arrived()
        assert [record.offset for record in await take(c, 1)] == [0]
        assert c._ahead is not None
        assert c._ahead.opened
    assert not c._ahead.opened
    assert c.positions() == {0: 1}
    with pytest.raises(Closed):
        await c.get()


@scenario()
async def test_a_policy_for_missing_records_waits_for_those_that_were_opened(broker: FakeBroker) -> None:
    fill(broker, [b"%d" % n for n in range(3)])
    async with consumer(broker, start="earliest", on_out_of_range="earliest") as c:
        await arrived()
        await take(c, 1)
        broker.up = False
        broker.cut()
        fill(broker, [b"%d" % n for n in range(3, 10)])
        broker.topics["quotes"][0].start = 8
        broker.up = True
        await asyncio.sleep(5)
        assert [record.offset for record in await take(c, 4)] == [1, 2, 8, 9]


class Interrupted(deque[Any]):
    """Ctrl-C strikes as the batch that was taken is removed."""

    def popleft(self) -> Any:
        raise KeyboardInterrupt


@pytest.mark.parametrize("take_one", [inbox._record_at_hand, inbox._batch_at_hand])
def test_ctrl_c_between_two_steps_of_a_read_repeats_no_later_record(take_one: Callable[[AheadConsumer], Any]) -> None:
    @scenario()
    async def run(broker: FakeBroker) -> None:
        fill(broker, [b"%d" % n for n in range(6)])
        async with consumer(broker, start="earliest") as c:
            await arrived()
            assert (await anext(c.batches())).first_offset == 0
            assert c._ahead is not None
            opened = c._ahead.opened
            c._ahead.opened = Interrupted(opened)
            with pytest.raises(KeyboardInterrupt):
                take_one(c)
            c._ahead.opened = opened
            found = [record.offset for record in await take(c, 4)]
            assert found in ([1, 2, 3, 4], [2, 3, 4, 5])  # the first was in hand, or is at hand still
            assert c._ahead.calls == 0

    run()
