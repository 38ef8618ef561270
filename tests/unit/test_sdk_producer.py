"""The producer against a broker that refuses, forgets, freezes and goes away. On virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from comet.client.connection import Connection
from comet.errors import (
    Closed,
    CometError,
    Draining,
    InvalidArgument,
    LogFailed,
    PartitionNotFound,
    RecordTooLarge,
    SerdeError,
    Timeout,
    TopicNotFound,
    Unavailable,
)
from comet.errors import DiskFull as Full
from comet.producer.accumulator import Accumulator, ProducerBatch
from comet.producer.linger import gathered
from comet.producer.producer import Producer
from comet.records import BatchHeader
from comet.serde import model
from comet.settings.topic import TopicConfig
from comet.v1 import records_pb2 as pb
from comet.wire.frames import parse_produce
from comet_testing.simulation.loop import run
from tests.unit.sdk_fake import ADDRESS, FakeBroker, FakePartition, Fate

Scenario = Callable[[FakeBroker], Awaitable[None]]


def scenario(topics: dict[str, int] | None = None) -> Callable[[Scenario], Callable[[], None]]:
    """Makes a test of a coroutine that is given a fresh broker."""

    def make(function: Scenario) -> Callable[[], None]:
        def test() -> None:
            run(lambda loop: function(FakeBroker(topics)))  # type: ignore[arg-type,return-value]

        test.__doc__ = function.__doc__
        return test

    return make


def producer(broker: FakeBroker, **settings: Any) -> Producer:
    settings.setdefault("clock_us", lambda: round(now() * 1_000_000))
    return Producer(ADDRESS, connect=broker.connect, random=Random(1), **settings)


def log(broker: FakeBroker, topic: str = "quotes", partition: int = 0) -> list[bytes | None]:
    return broker.topics[topic][partition].values()


def produced(broker: FakeBroker) -> int:
    return sum(parse_produce(frame) is not None for frame in broker.frames)


def now() -> float:
    return asyncio.get_running_loop().time()


@scenario()
async def test_an_idle_producer_sends_at_once_and_a_busy_one_gathers(broker: FakeBroker) -> None:
    async with producer(broker) as p:
        await p.publish("quotes", b"0")
        assert produced(broker) == 1
        deliveries = [await p.send("quotes", b"%d" % n) for n in range(1, 100)]
        await asyncio.gather(*deliveries)
        assert produced(broker) <= 3, "what came while the first was written went together"
    assert log(broker) == [b"%d" % n for n in range(100)]


@scenario()
async def test_while_a_batch_is_on_its_way_records_gather_but_not_for_long(broker: FakeBroker) -> None:
    async with producer(broker) as p:
        await p.publish("quotes", b"0")
        broker.write_s = 0.0
        broker.script = lambda partition, header: Fate.WRITTEN_UNANSWERED
        deliveries = [await p.send("quotes", b"1")]
        await asyncio.sleep(0.0001)
        assert produced(broker) == 2, "nothing was on its way"
        for n in range(2, 6):
            deliveries.append(await p.send("quotes", b"%d" % n))
            await asyncio.sleep(0.0001)
        assert produced(broker) == 2, "they wait for the answer"
        await asyncio.sleep(0.01)
        assert produced(broker) == 3, "and go together when none comes"
        broker.script = lambda partition, header: Fate.WRITTEN
        broker.cut()
        await asyncio.gather(*deliveries)
    assert log(broker) == [b"%d" % n for n in range(6)]


@scenario()
async def test_what_gathered_is_sent_with_the_answer_only_where_it_is_awaited(broker: FakeBroker) -> None:
    async with producer(broker) as p:
        await p.publish("quotes", b"0")
        broker.write_s = 0.0
        for awaited, frames in ((True, 3), (False, 4)):
            first = await p.send("quotes", b"1")
            await asyncio.sleep(0.0002)
            gathered = [await p.send("quotes", b"2"), await p.send("quotes", b"3")]
            waiting = asyncio.ensure_future(gathered[0] if awaited else first)
            await asyncio.sleep(0.0009)
            assert first.done(), "it is answered after a millisecond"
            assert produced(broker) == frames
            await asyncio.gather(waiting, *gathered)


@scenario()
async def test_a_stream_with_little_to_gather_sends_with_the_answer(broker: FakeBroker) -> None:
    async with producer(broker) as p:
        await p.publish("quotes", b"0")
        broker.write_s = 0.0
        first = await p.send("quotes", b"1")
        await asyncio.sleep(0.0008)
        alone = await p.send("quotes", b"2")
        await asyncio.sleep(0.0008)
        assert first.done(), "it is answered after a millisecond"
        assert produced(broker) == 3
        await alone


@scenario()
async def test_lingering_waits_for_more_unless_the_batch_is_full(broker: FakeBroker) -> None:
    async with producer(broker, linger_ms=500, batch_bytes=1000) as p:
        began = now()
        first = await p.send("quotes", b"1")
        await asyncio.sleep(0.4)
        second = await p.send("quotes", b"2")
        assert not first.done()
        await asyncio.gather(first, second)
        assert 0.5 <= now() - began < 0.6
        assert produced(broker) == 1
        began = now()
        await (await p.send("quotes", b"x" * 2000))
        assert now() - began < 0.1


@scenario()
async def test_flush_does_not_linger(broker: FakeBroker) -> None:
    async with producer(broker, linger_ms=5000) as p:
        delivery = await p.send("quotes", b"1")
        await p.flush()
        assert delivery.done()
        assert now() < 1


@scenario()
async def test_a_connection_that_breaks_costs_neither_order_nor_a_copy(broker: FakeBroker) -> None:
    answered = 0

    def script(partition: FakePartition, header: BatchHeader) -> Fate:
        nonlocal answered
        answered += 1
        if answered % 5 == 3:
            broker.cut()
            return Fate.WRITTEN_UNANSWERED
        if answered % 7 == 2:
            broker.cut()
            return Fate.LOST
        return Fate.WRITTEN

    broker.script = script
    async with producer(broker, batch_bytes=20) as p:
        deliveries = [await p.send("quotes", b"%03d" % n) for n in range(60)]
        receipts = await asyncio.gather(*deliveries)
    assert log(broker) == [b"%03d" % n for n in range(60)]
    assert [receipt.offset for receipt in receipts] == list(range(60))


@scenario()
async def test_a_batch_that_is_lost_without_an_error_is_found_by_the_gap_behind_it(broker: FakeBroker) -> None:
    fates = iter([Fate.WRITTEN, Fate.LOST])
    broker.script = lambda partition, header: next(fates, Fate.WRITTEN)
    async with producer(broker, batch_bytes=20, timeout_ms=3000) as p:
        await p.publish("quotes", b"0")
        lost = await p.send("quotes", b"1" * 20)
        await asyncio.sleep(1)
        behind = await p.send("quotes", b"2" * 20)
        with pytest.raises(Timeout):
            await lost
        # It was refused for the gap that its predecessor left: known not to be there, so it is written anew.
        assert (await behind).offset == 1
    assert log(broker) == [b"0", b"2" * 20]


@scenario()
async def test_a_full_disk_is_waited_out(broker: FakeBroker) -> None:
    broker.script = lambda partition, header: Full("full") if now() < 5 else Fate.WRITTEN
    async with producer(broker, batch_bytes=20) as p:
        deliveries = [await p.send("quotes", b"%020d" % n) for n in range(10)]
        await asyncio.gather(*deliveries)
        assert 5 <= now() < 7
    assert log(broker) == [b"%020d" % n for n in range(10)]


@scenario()
async def test_a_disk_that_stays_full_fails_with_that_and_not_with_a_doubt(broker: FakeBroker) -> None:
    broker.script = lambda partition, header: Full("full") if now() < 10 else Fate.WRITTEN
    async with producer(broker, timeout_ms=2000) as p:
        with pytest.raises(Full):
            await p.publish("quotes", b"1")
        assert 2 <= now() < 3.1
        await asyncio.sleep(10)
        assert (await p.publish("quotes", b"2")).offset == 0
    assert log(broker) == [b"2"]


@scenario()
async def test_a_frozen_broker_fails_records_in_time_with_their_outcome_unknown(broker: FakeBroker) -> None:
    async with producer(broker, timeout_ms=2000) as p:
        await p.publish("quotes", b"0")
        broker.frozen = True
        delivery = await p.send("quotes", b"1")
        with pytest.raises(Timeout) as caught:
            await delivery
        assert caught.value.outcome_unknown
        broker.frozen = False
        assert (await p.publish("quotes", b"2")).offset == 1
        header = broker.topics["quotes"][0].batches[-1][0]
        assert (header.producer_epoch, header.base_sequence) == (1, 0), "the old sequence may still arrive"


@scenario()
async def test_without_a_broker_records_wait_and_then_fail_as_not_written(broker: FakeBroker) -> None:
    async with producer(broker, timeout_ms=2000) as p:
        await p.publish("quotes", b"0")
        broker.up = False
        broker.cut()
        with pytest.raises(Unavailable):
            await p.publish("quotes", b"1")
        assert now() >= 2
        waiting = await p.send("quotes", b"2")
        await asyncio.sleep(1)
        broker.up = True
        assert (await waiting).offset == 1
    assert log(broker) == [b"0", b"2"]


@scenario()
async def test_without_idempotence_nothing_that_may_be_written_is_sent_again(broker: FakeBroker) -> None:
    broker.script = lambda partition, header: Fate.WRITTEN_UNANSWERED
    async with producer(broker, idempotent=False) as p:
        delivery = await p.send("quotes", b"1")
        await asyncio.sleep(0.5)
        broker.script = lambda partition, header: Fate.WRITTEN
        broker.cut()
        with pytest.raises(Timeout):
            await delivery
    assert log(broker) == [b"1"]
    assert broker.topics["quotes"][0].batches[0][0].producer_id == 0


@scenario()
async def test_a_broker_that_lost_its_unsynced_tail_does_not_stop_the_producer(broker: FakeBroker) -> None:
    async with producer(broker) as p:
        for n in range(3):
            await p.publish("quotes", b"%d" % n)
        broker.topics["quotes"][0].truncate(2)
        broker.renumber()
        assert (await p.publish("quotes", b"3")).offset == 1
    assert log(broker) == [b"0", b"3"]


@scenario()
async def test_a_producer_that_was_forgotten_goes_on(broker: FakeBroker) -> None:
    async with producer(broker) as p:
        await p.publish("quotes", b"0")
        broker.topics["quotes"][0].producers.clear()
        assert (await p.publish("quotes", b"1")).offset == 1


@scenario()
async def test_a_restarted_broker_with_new_handles_is_attached_to_again(broker: FakeBroker) -> None:
    async with producer(broker) as p:
        await p.publish("quotes", b"0")
        broker.renumber()
        assert (await p.publish("quotes", b"1")).offset == 1


@scenario()
async def test_a_deleted_topic_fails_what_waits_and_what_comes(broker: FakeBroker) -> None:
    async with producer(broker) as p:
        await p.publish("quotes", b"0")
        broker.delete("quotes")
        with pytest.raises(TopicNotFound):
            await p.publish("quotes", b"1")
        with pytest.raises(TopicNotFound):
            await p.send("quotes", b"2")
        broker.create("quotes", 1)
        assert (await p.publish("quotes", b"3")).offset == 0


@scenario()
async def test_an_error_for_good_fails_the_batch_and_not_the_next(broker: FakeBroker) -> None:
    broker.script = lambda partition, header: LogFailed("dead") if header.base_sequence == 0 else Fate.WRITTEN
    async with producer(broker, batch_bytes=20) as p:
        with pytest.raises(LogFailed):
            await p.publish("quotes", b"1" * 20)
        broker.script = lambda partition, header: Fate.WRITTEN
        assert (await p.publish("quotes", b"2")).offset == 0


@scenario()
async def test_a_broker_that_leaves_answers_first_and_is_found_again(broker: FakeBroker) -> None:
    async with producer(broker, batch_bytes=20) as p:
        await p.publish("quotes", b"0")
        under_way = await p.send("quotes", b"1" * 20)
        for stream in list(broker.streams):
            stream.send(pb.ServerFrame(go_away=pb.GoAway(reason="update")))
        await asyncio.sleep(0.0015)
        late = await p.send("quotes", b"2" * 20)
        assert [(await one).offset for one in (under_way, late)] == [1, 2]
        assert broker.connects == 2
        assert now() < 1, "it left when the last answer was there"


@scenario()
async def test_memory_is_bounded_and_waiting_senders_go_on_in_turn(broker: FakeBroker) -> None:
    broker.script = lambda partition, header: Full("full") if now() < 1 else Fate.WRITTEN
    async with producer(broker, buffer_bytes=10_000, batch_bytes=2_000) as p:

        async def send(n: int) -> None:
            await p.send("quotes", b"%04d" % n + b"x" * 500)

        tasks = [asyncio.create_task(send(n)) for n in range(60)]
        await asyncio.sleep(0.5)
        assert p.statistics()["buffered_bytes"] < 11_000
        assert sum(task.done() for task in tasks) < 25
        tasks[-1].cancel()
        await asyncio.gather(*tasks[:-1])
    values = [value[:4] for value in log(broker) if value is not None]
    assert values == [b"%04d" % n for n in range(59)]


@scenario()
async def test_with_acks_0_nobody_is_asked(broker: FakeBroker) -> None:
    async with producer(broker, acks=0) as p:
        receipt = await p.publish("quotes", b"1")
        assert receipt.offset == -1
        await (await p.send_many("quotes", [b"2", b"3"]))
    assert log(broker) == [b"1", b"2", b"3"]
    assert broker.topics["quotes"][0].batches[0][0].producer_id == 0


@scenario({"quotes": 4})
async def test_keys_choose_partitions_and_batches_without_keys_take_turns(broker: FakeBroker) -> None:
    async with producer(broker, batch_bytes=20) as p:
        receipts = [await p.publish("quotes", b"x", key="EURUSD") for _ in range(5)]
        assert len({receipt.partition for receipt in receipts}) == 1
        spread = [await p.publish("quotes", b"x" * 20) for _ in range(8)]
        assert sorted(receipt.partition for receipt in spread) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert (await p.publish("quotes", b"x", partition=2, key="EURUSD")).partition == 2
        with pytest.raises(PartitionNotFound):
            await p.send("quotes", b"x", partition=4)


@scenario({"quotes": 3})
async def test_send_many_places_keys_as_send_does_and_keeps_their_order(broker: FakeBroker) -> None:
    keys = [f"k{n % 7}" for n in range(100)]
    values = [b"%d" % n for n in range(100)]
    async with producer(broker, bulk_batch_bytes=100) as p:
        bulk = await p.send_many("quotes", values, keys=keys)
        ranges = await bulk
        assert sum(one.count for one in ranges) == 100
        for key in set(keys):
            receipt = await p.publish("quotes", b"last", key=key)
            mine = [value for value, its in zip(values, keys, strict=True) if its == key]
            there = [value for value in log(broker, "quotes", receipt.partition) if value in mine]
            assert there == mine


@scenario()
async def test_tombstones_text_and_events_are_encoded(broker: FakeBroker) -> None:
    async with producer(broker) as p:
        await p.publish("quotes", None, key="gone")
        await p.publish("quotes", "text")
        await p.publish("quotes", {"a": 1})
        await (await p.send_many("quotes", [b"1", "2", {"b": 3}, None]))
        with pytest.raises(SerdeError):
            await p.send("quotes", object())
    assert log(broker) == [None, b"text", b'{"a":1}', b"1", b"2", b'{"b":3}', None]


@model
class Quote:
    symbol: str
    bid: float


@scenario()
async def test_a_field_of_the_wrong_type_is_refused_and_nothing_of_it_written(broker: FakeBroker) -> None:
    wrong: Any = Quote("EURUSD", "1.08?")  # type: ignore[arg-type]
    async with producer(broker) as p:
        with pytest.raises(SerdeError, match="field 'bid'"):
            await p.publish("quotes", wrong)
        with pytest.raises(SerdeError, match="field 'bid'"):
            await p.send_many("quotes", [Quote("EURUSD", 1.08), wrong])
        await p.publish("quotes", Quote("EURUSD", 1.08))
    async with Producer(ADDRESS, connect=broker.connect, random=Random(2), check_values=False) as p:
        await p.publish("quotes", wrong)
    assert log(broker) == [b'{"symbol":"EURUSD","bid":1.08}', b'{"symbol":"EURUSD","bid":"1.08?"}']


@scenario()
async def test_a_record_the_topic_would_refuse_is_refused_before_it_is_sent(broker: FakeBroker) -> None:
    broker.config = TopicConfig(record_bytes_max=100)
    async with producer(broker) as p:
        with pytest.raises(RecordTooLarge):
            await p.send("quotes", b"x" * 101)
        with pytest.raises(RecordTooLarge):
            await p.send_many("quotes", [b"x" * 101])
        with pytest.raises(RecordTooLarge):
            await p.send("quotes", b"x", key=b"k" * (9 << 20))
        await p.publish("quotes", b"x" * 100)


@scenario()
async def test_a_record_that_is_refused_leaves_no_trace_in_its_batch(broker: FakeBroker) -> None:
    async with producer(broker, linger_ms=10) as p:
        await p.send("quotes", b"1", key="a")
        for wrong in ({"headers": {"h": 1}}, {"timestamp_us": -1}, {"timestamp_us": "now"}, {"key": 5}):
            with pytest.raises(InvalidArgument):
                await p.send("quotes", b"2", **wrong)
        await p.send("quotes", b"3", headers={"h": "v"}, timestamp_us=5)
    assert log(broker) == [b"1", b"3"]


@scenario()
async def test_failures_that_nobody_looked_at_are_raised_by_flush_once(broker: FakeBroker) -> None:
    broker.script = lambda partition, header: LogFailed("dead")
    p = producer(broker)
    await p.send("quotes", b"1")
    with pytest.raises(LogFailed):
        await p.flush()
    await p.flush()
    delivery = await p.send("quotes", b"2")
    with pytest.raises(LogFailed):
        await delivery
    await p.close()


@scenario()
async def test_closing_fails_what_cannot_go_out_and_leaves_nothing_running(broker: FakeBroker) -> None:
    p = producer(broker)
    await p.publish("quotes", b"0")
    broker.frozen = True
    delivery = await p.send("quotes", b"1")
    closing = asyncio.create_task(p.close())
    await asyncio.sleep(1)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(Closed):
        await delivery
    with pytest.raises(Closed):
        await p.send("quotes", b"2")
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not others
    assert all(channel.closed for channel in broker.channels)


@scenario()
async def test_cancelling_one_who_waits_harms_nobody_else(broker: FakeBroker) -> None:
    async with producer(broker) as p:
        delivery = await p.send("quotes", b"1")

        async def wait() -> int:
            return (await delivery).offset

        first, second = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        first.cancel()
        assert await second == 0
        assert delivery.result().offset == 0


@scenario()
async def test_a_bug_in_a_sink_ends_the_connection_and_leaves_nobody_waiting(broker: FakeBroker) -> None:
    connection = Connection(broker.connect(ADDRESS).stream(), ADDRESS, client_name="")
    await connection.open()

    class Broken:
        def delivered(self, *_: Any) -> None:
            raise RuntimeError("a bug")

        def aborted(self, *_: Any) -> None:
            raise AssertionError

        def ended(self, error: CometError) -> None:
            raise AssertionError

    connection.subscribers.sinks[1] = Broken()
    call = asyncio.create_task(connection.call(pb.ClientFrame(find_offset=pb.FindOffset(partition=77))))
    (stream,) = broker.streams
    stream.send(pb.ServerFrame(delivery=pb.Delivery(partition=1, batches=b"x")))
    with pytest.raises(CometError):
        await call
    assert connection.lost is not None
    await connection.close()


@scenario()
async def test_a_draining_broker_is_asked_again_later(broker: FakeBroker) -> None:
    broker.script = lambda partition, header: Draining("soon", retry_after_ms=300) if now() < 1 else Fate.WRITTEN
    async with producer(broker) as p:
        assert (await p.publish("quotes", b"1")).offset == 0
        assert 1 <= now() < 2
        assert produced(broker) < 8, "it waits as long as it was told to"


@pytest.mark.parametrize(("over_wire", "slow_us"), [(True, 100), (False, 500)])
def test_a_batch_that_gathers_leaves_at_an_answer_if_awaited_or_of_a_slow_stream(over_wire: bool, slow_us: int) -> None:
    accumulator = Accumulator(
        "quotes", 0, idempotent=True, in_flight_max=1, finished=lambda _: None, changed=lambda _: None
    )

    def batch(began_us: int, count: int = 0) -> ProducerBatch:
        made = ProducerBatch(accumulator, 30)
        made.began_us, made.count = began_us, count
        return made

    previous = batch(1000, count=4)
    assert gathered(batch(1000), None, over_wire=over_wire)
    assert not gathered(batch(1000 + 4 * slow_us), previous, over_wire=over_wire)
    assert gathered(batch(1001 + 4 * slow_us), previous, over_wire=over_wire)
    awaited = batch(1000)
    awaited.waiters = []
    assert gathered(awaited, previous, over_wire=over_wire)
