"""The consumer against a broker that breaks off, deletes, damages and forgets. On virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from comet import records
from comet.consumer.broker_subscription import end_of
from comet.consumer.consumer import Consumer
from comet.consumer.iteration import RecordIterator
from comet.errors import (
    Closed,
    CorruptBatch,
    DataLoss,
    InvalidArgument,
    OffsetOutOfRange,
    PartitionNotFound,
    SerdeError,
    TopicNotFound,
    Unavailable,
)
from comet.producer.producer import Producer
from comet.v1 import records_pb2 as pb
from tests.unit.sdk_fake import ADDRESS, FakeBroker, FakePartition
from tests.unit.test_sdk_producer import now, producer, scenario
from tests.waiting import until


def consumer(broker: FakeBroker, topic: str = "quotes", **settings: Any) -> Consumer[Any]:
    return Consumer(
        ADDRESS,
        topic,
        **{"type": None, "start": "earliest", "connect": broker.connect, "random": Random(2), **settings},
    )


def fill(broker: FakeBroker, values: Sequence[bytes | None], partition: int = 0, per_batch: int = 1) -> None:
    """Writes values as batches of so many records."""
    target = broker.topics["quotes"][partition]
    for at in range(0, len(values), per_batch):
        batch = b"".join(records.encode(values[at : at + per_batch], timestamps=1000 + at))
        target.append(records.read_header(batch), batch)
    for stream in list(broker.streams):
        stream.push()


async def take(reader: RecordIterator[Any], count: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(count):
        record = await reader.get(timeout_s=20)
        assert record is not None, f"nothing came after {found}"
        found.append(record)
    return found


@scenario()
async def test_records_come_in_order_from_where_it_starts(broker: FakeBroker) -> None:
    fill(broker, [b"%d" % n for n in range(10)], per_batch=4)
    for start, first in (("earliest", 0), (6, 6), ("latest", 10)):
        async with consumer(broker, start=start) as c:
            assert c.positions() == {0: first}
            got = await take(c, 10 - first)
            assert [record.offset for record in got] == list(range(first, 10))
            assert [record.value for record in got] == [b"%d" % n for n in range(first, 10)]
            assert c.positions() == {0: 10}
            assert await c.get(timeout_s=0.1) is None


@scenario()
async def test_a_broken_connection_costs_no_record_and_repeats_none(broker: FakeBroker) -> None:
    async with consumer(broker) as c:
        expected = 0
        for n in range(30):
            fill(broker, [b"%d" % n for n in range(expected, expected + 5)], per_batch=3)
            if n % 3 == 0:
                broker.cut()
            elif n % 3 == 1:
                broker.renumber()
            got = await take(c, 3)
            expected += 5
            if n % 4 == 0:
                broker.cut()
            got += await take(c, 2)
            assert [record.offset for record in got] == list(range(expected - 5, expected))
        assert c.statistics()["reconnects"] > 0


@scenario()
async def test_latest_stays_where_it_was_when_the_connection_breaks_before_the_first_record(broker: FakeBroker) -> None:
    fill(broker, [b"old"])
    async with consumer(broker, start="latest") as c:
        broker.up = False
        broker.cut()
        fill(broker, [b"while away"])
        await asyncio.sleep(3)
        broker.up = True
        assert [record.value for record in await take(c, 1)] == [b"while away"]


@scenario()
async def test_it_is_back_within_a_second_of_the_broker(broker: FakeBroker) -> None:
    async with consumer(broker) as c:
        broker.up = False
        broker.cut()
        await asyncio.sleep(60)
        before = broker.connects
        broker.up = True
        began = now()
        fill(broker, [b"1"])
        await take(c, 1)
        assert now() - began < 1.2
        assert before < 200, "it tried again with restraint"


@scenario()
async def test_memory_is_bounded_by_credit_while_nothing_is_read(broker: FakeBroker) -> None:
    fill(broker, [b"x" * 1000] * 1000)
    async with consumer(broker, buffer_bytes=64 << 10) as c:
        await asyncio.sleep(5)
        for _ in range(5):
            broker.cut()
            await asyncio.sleep(5)
        assert c.statistics()["buffered_bytes"] <= (64 << 10) + 2000
        before = broker.credit_bytes
        assert len(await take(c, 1000)) == 1000
        assert broker.credit_bytes > before
        assert c.statistics()["buffered_bytes"] == 0


@scenario({"quotes": 3})
async def test_all_partitions_are_read_and_new_ones_are_noticed(broker: FakeBroker) -> None:
    for partition in range(3):
        fill(broker, [b"%d" % partition] * 2, partition)
    async with consumer(broker) as c, consumer(broker, partitions=[1]) as one:
        assert sorted(record.value for record in await take(c, 6)) == [b"0", b"0", b"1", b"1", b"2", b"2"]
        assert [record.partition for record in await take(one, 2)] == [1, 1]
        broker.grow("quotes", 4)
        fill(broker, [b"new"], 3)
        await asyncio.sleep(60)
        assert [record.value for record in await take(c, 1)] == [b"new"]
        assert await one.get(timeout_s=60) is None
        assert c.positions() == {0: 2, 1: 2, 2: 2, 3: 1}
        assert await c.end_offsets() == {0: 2, 1: 2, 2: 2, 3: 1}


@scenario()
async def test_what_is_gone_is_raised_with_what_was_lost(broker: FakeBroker) -> None:
    fill(broker, [b"%d" % n for n in range(10)])
    broker.topics["quotes"][0].start = 5
    async with consumer(broker, start=2) as c:
        with pytest.raises(OffsetOutOfRange) as caught:
            await c.get()
        assert caught.value.details["log_start"] == "5"
        assert caught.value.details["partition"] == "0"
        assert await c.get(timeout_s=1) is None, "it is told once"
        await c.seek("earliest")
        assert [record.offset for record in await take(c, 1)] == [5]


@pytest.mark.parametrize(("policy", "first"), [("earliest", 5), ("latest", 10)])
def test_what_is_gone_is_passed_over_where_that_was_asked_for(policy: str, first: int) -> None:
    @scenario()
    async def check(broker: FakeBroker) -> None:
        fill(broker, [b"%d" % n for n in range(10)])
        broker.topics["quotes"][0].start = 5
        async with consumer(broker, start=2, on_out_of_range=policy) as c:
            await asyncio.sleep(0.5)
            fill(broker, [b"new"])
            assert (await take(c, 1))[0].offset == first

    check()


@scenario()
async def test_retention_that_overtakes_a_slow_reader_comes_after_what_has_arrived(broker: FakeBroker) -> None:
    fill(broker, [b"%d" % n for n in range(3)])
    async with consumer(broker) as c:
        await asyncio.sleep(0.1)
        broker.up = False
        broker.cut()
        fill(broker, [b"%d" % n for n in range(3, 10)])
        broker.topics["quotes"][0].start = 8
        await asyncio.sleep(1)
        broker.up = True
        await asyncio.sleep(3)
        assert [record.offset for record in await take(c, 3)] == [0, 1, 2]
        with pytest.raises(OffsetOutOfRange):
            await c.get()


@scenario()
async def test_a_damaged_delivery_is_raised_and_then_read_again(broker: FakeBroker) -> None:
    fill(broker, [b"%d" % n for n in range(5)])
    damaged = iter([False, False, True])

    def damage(partition: FakePartition, batch: bytes) -> bytes:
        return batch[:-1] + bytes([batch[-1] ^ 1]) if next(damaged, False) else batch

    broker.damage = damage
    async with consumer(broker) as c:
        assert [record.offset for record in await take(c, 2)] == [0, 1]
        with pytest.raises(CorruptBatch) as caught:
            await c.get()
        assert caught.value.details["offset"] == "2"
        assert [record.offset for record in await take(c, 3)] == [2, 3, 4]


@scenario()
async def test_a_hole_is_raised_and_can_be_passed(broker: FakeBroker) -> None:
    fill(broker, [b"%d" % n for n in range(10)])
    del broker.topics["quotes"][0].batches[3:6]
    async with consumer(broker) as c:
        await take(c, 3)
        with pytest.raises(DataLoss) as caught:
            await c.get()
        assert (caught.value.details["first"], caught.value.details["end"]) == ("3", "6")
        assert c.positions() == {0: 3}
        assert await c.get(timeout_s=1) is None
        await c.seek(6, partition=0)
        assert [record.offset for record in await take(c, 4)] == [6, 7, 8, 9]


@scenario({"quotes": 2})
async def test_trouble_with_one_partition_leaves_the_other_alone(broker: FakeBroker) -> None:
    fill(broker, [b"%d" % n for n in range(10)], 0)
    fill(broker, [b"%d" % n for n in range(10)], 1)
    del broker.topics["quotes"][0].batches[0]
    async with consumer(broker) as c:
        got: list[Any] = []
        failures = 0
        while len(got) < 10:
            try:
                got.extend(await take(c, 1))
            except DataLoss:
                failures += 1
        assert failures == 1
        assert {record.partition for record in got} == {1}


@scenario()
async def test_seeking_drops_what_has_arrived_and_is_exact(broker: FakeBroker) -> None:
    fill(broker, [b"%d" % n for n in range(20)], per_batch=5)
    async with consumer(broker) as c:
        await take(c, 7)
        for where, expected in ((3, 3), ("earliest", 0), (18, 18), ("latest", 20), (12, 12)):
            await c.seek(where)
            if expected < 20:
                assert [record.offset for record in await take(c, 2)] == [expected, expected + 1]
        assert c.statistics()["buffered_bytes"] >= 0
        assert [record.offset for record in await take(c, 6)] == list(range(14, 20))
        with pytest.raises(PartitionNotFound):
            await c.seek(0, partition=9)


@scenario()
async def test_a_seek_whose_unsubscribe_is_not_answered_begins_where_it_was_told_to(broker: FakeBroker) -> None:
    fill(broker, [b"%d" % n for n in range(20)], per_batch=5)
    async with consumer(broker) as c:
        await take(c, 20)
        (stream,) = broker.streams
        stream._receive = lambda data: None  # type: ignore[method-assign] # it hears nothing, and goes on sending
        seeking = asyncio.create_task(c.seek("earliest"))
        for _ in range(30):
            fill(broker, [b"new"])
            await asyncio.sleep(1)
        await seeking
        assert [record.offset for record in await take(c, 50)] == list(range(50))


@scenario()
async def test_records_and_batches_can_be_read_in_turn(broker: FakeBroker) -> None:
    fill(broker, [b"%d" % n for n in range(12)], per_batch=4)
    async with consumer(broker) as c:
        await take(c, 2)
        batch = await c.get_batch()
        assert batch is not None
        assert list(batch.offsets) == [2, 3]
        assert batch.values == [b"2", b"3"]
        await take(c, 1)
        offsets = []
        async for batch in c.batches():
            offsets.append(list(batch.offsets))
            if batch.next_offset == 12:
                break
        assert offsets == [[5, 6, 7], [8, 9, 10, 11]]
        assert c.positions() == {0: 12}


@scenario()
async def test_a_record_that_cannot_be_decoded_is_raised_and_passed(broker: FakeBroker) -> None:
    fill(broker, [b"1", b"2", b"x", b"4", None, b"6"], per_batch=6)
    async with consumer(broker, type=int) as c:
        assert [record.value for record in await take(c, 2)] == [1, 2]
        with pytest.raises(SerdeError) as caught:
            await c.get()
        assert caught.value.details["offset"] == "2"
        assert c.positions() == {0: 3}
        assert [record.value for record in await take(c, 3)] == [4, None, 6]
    async with consumer(broker, type=int) as c:
        batch = await c.get_batch()
        assert batch is not None
        with pytest.raises(SerdeError) as caught:
            batch.models()
        assert caught.value.details["offset"] == "2"


@scenario()
async def test_a_deleted_topic_ends_the_consumer_and_one_made_again_is_another(broker: FakeBroker) -> None:
    fill(broker, [b"1"])
    async with consumer(broker) as c:
        await take(c, 1)
        broker.delete("quotes")
        with pytest.raises(TopicNotFound):
            await c.get()
    broker.create("quotes", 1)
    fill(broker, [b"1"])
    async with consumer(broker) as c:
        await take(c, 1)
        broker.delete("quotes")
        broker.create("quotes", 1)
        with pytest.raises(TopicNotFound, match="deleted and recreated: positions of the old topic"):
            await c.get()


@scenario()
async def test_what_cannot_be_started_says_why_at_once(broker: FakeBroker) -> None:
    with pytest.raises(TopicNotFound):
        await consumer(broker, "nothing").start()
    with pytest.raises(PartitionNotFound):
        await consumer(broker, partitions=[0, 7]).start()
    broker.up = False
    with pytest.raises(Unavailable):
        await consumer(broker).start()
    assert now() < 10


@scenario()
async def test_closing_tells_who_waits_and_leaves_nothing_running(broker: FakeBroker) -> None:
    c = consumer(broker)
    await c.start()
    waiting = asyncio.create_task(c.get())
    await asyncio.sleep(0.1)
    with pytest.raises(InvalidArgument, match="another task"):
        await c.get()
    await c.close()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        await c.get()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    assert not broker.streams


@scenario()
async def test_closing_while_a_partition_is_being_attached_leaves_no_error_that_nobody_sees(broker: FakeBroker) -> None:
    c = consumer(broker)
    starting = asyncio.create_task(c.start())

    def asked() -> bool:
        return any(pb.ClientFrame.FromString(frame).WhichOneof("frame") == "attach" for frame in broker.frames)

    assert await until(asked, within_s=1, every_s=0.0001)
    broker.frozen = True
    await c.close()
    with pytest.raises((Closed, asyncio.CancelledError)):
        await starting
    (attaching,) = c._fetcher.subscriber._attaching.values()
    assert attaching.done() and not attaching._log_traceback


@scenario()
async def test_a_silent_broker_is_given_up_and_found_again(broker: FakeBroker) -> None:
    """A half-open connection: nothing comes, nothing fails."""
    async with consumer(broker) as c:
        broker.frozen = True
        await asyncio.sleep(17)
        broker.frozen = False
        fill(broker, [b"1"])
        began = now()
        await take(c, 1)
        assert now() - began < 8
        connects = broker.connects
        assert connects > 1
        await asyncio.sleep(120)
        assert broker.connects == connects, "a quiet broker that answers is left alone"


@scenario()
async def test_a_producer_and_a_consumer_through_everything(broker: FakeBroker) -> None:
    random = Random(7)
    stop = asyncio.Event()

    async def nemesis() -> None:
        while not stop.is_set():
            await asyncio.sleep(random.uniform(0.01, 0.3))
            match random.randrange(4):
                case 0:
                    broker.cut()
                case 1:
                    broker.renumber()
                case 2:
                    broker.up = False
                    broker.cut()
                    await asyncio.sleep(random.uniform(0, 2))
                    broker.up = True
                case 3:
                    broker.frozen = True
                    await asyncio.sleep(random.uniform(0, 1))
                    broker.frozen = False
                    broker.cut()

    async def produce(p: Producer) -> None:
        for n in range(500):
            await p.send("quotes", b"%d" % n)
            await asyncio.sleep(random.uniform(0, 0.05))

    trouble = asyncio.create_task(nemesis())
    async with consumer(broker) as c, producer(broker) as p:
        producing = asyncio.create_task(produce(p))
        got = await take(c, 500)
        await producing
        stop.set()
        await trouble
        await p.flush()
    assert [record.value for record in got] == [b"%d" % n for n in range(500)]
    assert [record.offset for record in got] == list(range(500))


def test_the_end_of_a_delivery_is_found_without_decoding_it() -> None:
    broker = FakeBroker()
    fill(broker, [b"x"] * 10, per_batch=3)
    data = b"".join(batch for _, batch in broker.topics["quotes"][0].batches)
    assert end_of(memoryview(data)) == 10


@pytest.mark.parametrize("settings", [{"buffer_bytes": 1}, {"on_out_of_range": "skip"}, {"start": "tomorrow"}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Consumer("localhost", "quotes", **settings)
