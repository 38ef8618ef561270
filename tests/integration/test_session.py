"""One stream of one broker, without a network: everything but the transport is real."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from comet import records
from comet.v1 import admin_pb2 as admin
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet.wire.frames import joined, produce_frame
from comet_broker import limits
from comet_broker.broker import Broker
from comet_broker.core.watermarks import ReadBound
from tests.integration.stream_client import MIB, Call, Client, idle, read
from tests.waiting import until


async def test_produced_values_are_acknowledged_and_delivered(broker: Broker, topic: types.Topic) -> None:
    producer, consumer = Client(broker), Client(broker)
    handle = await producer.attach()
    assert handle == await consumer.attach()
    request = producer.produce(handle, b"a", b"b")
    acks = (await producer.answer()).acks
    assert (list(acks.requests), list(acks.base_offsets)) == ([request], [0])
    assert (await consumer.subscribe(handle)).subscribed.partitions[0].high_watermark == 2
    assert read(await consumer.delivery()) == [b"a", b"b"]
    producer.produce(handle, b"c")
    assert read(await consumer.delivery()) == [b"c"]


async def test_all_subscribers_get_the_very_same_bytes(broker: Broker, topic: types.Topic) -> None:
    producer = Client(broker)
    consumers = [Client(broker) for _ in range(5)]
    handle = await producer.attach()
    for consumer in consumers:
        await consumer.subscribe(handle)
    await asyncio.gather(*(idle(consumer) for consumer in consumers))
    producer.produce(handle, b"x" * 1000)
    frames = [await consumer.delivery() for consumer in consumers]
    assert all(frame is frames[0] for frame in frames), "encoded once, sent to all"


async def test_a_reader_that_has_all_waits_for_more_at_once(broker: Broker, topic: types.Topic) -> None:
    producer, consumer = Client(broker), Client(broker)
    handle = await producer.attach()
    await consumer.subscribe(handle)
    await idle(consumer)
    readers = broker.topics.partition("t", 0).readers
    for value in (b"a", b"b"):
        producer.produce(handle, value)
        assert not readers.waiting(ReadBound.LAST_STABLE_OFFSET)
        assert read(await consumer.delivery()) == [value]
        assert readers.waiting(ReadBound.LAST_STABLE_OFFSET) == 1


async def test_credit_bounds_what_is_pushed(broker: Broker, topic: types.Topic) -> None:
    producer, consumer = Client(broker), Client(broker)
    handle = await producer.attach()
    for number in range(50):
        producer.produce(handle, bytes([number]) * 1000)
    await consumer.subscribe(handle, credit=2500)
    got = read(await consumer.delivery())
    while (frame := consumer.session.poll()) is not None:
        got += read(joined(frame))
    assert 2 <= len(got) <= 3, "2,500 bytes are two batches of 1,100, or three with the last on debt"
    got += await consumer.values(50 - len(got)) if consumer.send(credit=pb.Credit(subscription=1, bytes=MIB)) else []
    assert got == [bytes([number]) * 1000 for number in range(50)]


async def test_a_batch_larger_than_all_credit_still_gets_through(broker: Broker, topic: types.Topic) -> None:
    producer, consumer = Client(broker), Client(broker)
    handle = await producer.attach()
    large = b"x" * (1 << 20)
    producer.produce(handle, large)
    await producer.answer()
    await consumer.subscribe(handle, credit=1)
    assert read(await consumer.delivery()) == [large]
    producer.produce(handle, b"next")
    await producer.answer()
    assert consumer.session.poll() is None, "the debt is not paid yet"
    consumer.send(credit=pb.Credit(subscription=1, bytes=2 << 20))
    assert read(await consumer.delivery()) == [b"next"]


async def test_positions(broker: Broker, topic: types.Topic) -> None:
    producer = Client(broker)
    handle = await producer.attach()
    for number in range(5):
        parts = records.encode([b"%d" % number], timestamps=1000 * number)
        producer.session.receive(produce_frame(0, handle, 0, parts, sum(map(len, parts))))
    for position, expected in (
        ({"earliest": True}, 0),
        ({"latest": True}, 5),
        ({"offset": 3}, 3),
        ({"offset": 5}, 5),
        ({"timestamp_us": 1500}, 2),
        ({"timestamp_us": 99_999}, 5),
    ):
        client = Client(broker)
        answer = await client.subscribe(handle, **position)
        assert answer.subscribed.partitions[0].offset == expected, position
        client.send(find_offset=pb.FindOffset(partition=handle, position=types.Position(**position)))
        found: pb.FoundOffset | None = None
        while found is None:
            frame = await client.answer()
            found = frame.found_offset if frame.WhichOneof("frame") == "found_offset" else None
        assert found.offset == expected


async def test_an_offset_out_of_range_is_refused_with_the_range(broker: Broker, topic: types.Topic) -> None:
    client = Client(broker)
    handle = await client.attach()
    client.produce(handle, b"a")
    await client.answer()
    answer = await client.subscribe(handle, offset=7)
    assert answer.error.error.code == types.ERROR_CODE_OFFSET_OUT_OF_RANGE
    assert answer.error.error.details == {"log_start": "0", "log_end": "1"}


NONSENSE: dict[str, tuple[bytes | pb.ClientFrame, int]] = {
    "noise": (b"\xff" * 40, types.ERROR_CODE_MALFORMED_FRAME),
    "nothing": (b"", types.ERROR_CODE_MALFORMED_FRAME),
    "no frame in it": (pb.ClientFrame(request=9), types.ERROR_CODE_MALFORMED_FRAME),
    "no such handle": (
        pb.ClientFrame(request=9, produce=pb.Produce(partition=99)),
        types.ERROR_CODE_PARTITION_NOT_FOUND,
    ),
    "no such topic": (pb.ClientFrame(request=9, attach=pb.Attach(topic="none")), types.ERROR_CODE_TOPIC_NOT_FOUND),
    "no such partition": (
        pb.ClientFrame(request=9, attach=pb.Attach(topic="t", partition=9)),
        types.ERROR_CODE_PARTITION_NOT_FOUND,
    ),
    "no position": (
        pb.ClientFrame(request=9, find_offset=pb.FindOffset(partition=1)),
        types.ERROR_CODE_INVALID_ARGUMENT,
    ),
}


@pytest.mark.parametrize("name", NONSENSE)
async def test_nonsense_gets_a_typed_error_and_the_stream_goes_on(
    broker: Broker, topic: types.Topic, name: str
) -> None:
    frame, code = NONSENSE[name]
    client = Client(broker)
    handle = await client.attach()
    client.session.receive(frame if isinstance(frame, bytes) else frame.SerializeToString())
    assert (await client.answer()).error.error.code == code
    client.produce(handle, b"fine")
    assert (await client.answer()).acks.base_offsets == [0]


async def test_a_damaged_batch_is_refused_and_nothing_is_written(broker: Broker, topic: types.Topic) -> None:
    client = Client(broker)
    handle = await client.attach()
    batch = bytearray(b"".join(records.encode([b"value"], timestamps=1)))
    batch[-3] ^= 1
    client.session.receive(produce_frame(5, handle, 1, [bytes(batch)], len(batch)))
    answer = await client.answer()
    assert answer.request == 5
    assert answer.error.error.code == types.ERROR_CODE_CORRUPT_BATCH
    assert broker.topics.partition("t", 0).log.log_end == 0


async def test_a_record_over_the_topic_limit_is_refused(broker: Broker, call: Call) -> None:
    config = types.TopicConfig(record_bytes_max=1000)
    await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="small", config=config))
    client = Client(broker)
    handle = await client.attach("small")
    client.produce(handle, b"x" * 1001)
    assert (await client.answer()).error.error.code == types.ERROR_CODE_RECORD_TOO_LARGE
    client.produce(handle, b"x", b"x" * 1001)
    assert (await client.answer()).error.error.code == types.ERROR_CODE_RECORD_TOO_LARGE
    client.produce(handle, *[b"x" * 900] * 10)
    assert (await client.answer()).acks.base_offsets == [0]
    client.produce(handle, b"x" * 1000)
    assert (await client.answer()).acks.base_offsets == [10]


async def test_a_repeated_batch_of_an_idempotent_producer_is_written_once(broker: Broker, topic: types.Topic) -> None:
    client = Client(broker)
    handle = await client.attach()
    for _ in range(3):
        client.produce(handle, b"a", b"b", producer_id=7, base_sequence=0)
        assert (await client.answer()).acks.base_offsets == [0]
    client.produce(handle, b"c", producer_id=7, base_sequence=2)
    assert (await client.answer()).acks.base_offsets == [2]
    client.produce(handle, b"e", producer_id=7, base_sequence=4)
    assert (await client.answer()).error.error.code == types.ERROR_CODE_SEQUENCE_GAP


async def test_with_flush_always_nobody_reads_or_is_told_before_the_fsync(broker: Broker, call: Call) -> None:
    config = types.TopicConfig(flush=types.FLUSH_POLICY_ALWAYS)
    await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="safe", config=config))
    client = Client(broker)
    handle = await client.attach("safe")
    partition = broker.topics.partition("safe", 0)
    client.produce(handle, b"a")
    assert client.session.poll() is None
    assert partition.high_watermark == 0
    assert partition.log.log_end == 1
    assert (await client.answer()).acks.base_offsets == [0]
    assert partition.log.flushed_end == partition.high_watermark == 1


async def test_a_stream_owed_too_many_answers_is_not_read_further(broker: Broker, topic: types.Topic) -> None:
    client = Client(broker)
    handle = await client.attach()
    for _ in range(limits.SESSION_ANSWERS_MAX):
        assert not client.session.answers.full
        client.produce(handle, b"x")
    assert client.session.answers.full
    waiting = asyncio.ensure_future(client.session.answers.relieved())
    assert len((await client.answer()).acks.requests) == limits.SESSION_ANSWERS_MAX, "one frame acknowledges all"
    await waiting
    assert not client.session.answers.full


async def test_unsubscribed_partitions_deliver_nothing_more(broker: Broker, topic: types.Topic) -> None:
    client = Client(broker)
    first, second = await client.attach(partition=0), await client.attach(partition=1)
    await client.subscribe(first)
    start = pb.Start(partition=second, position=types.Position(earliest=True))
    client.send(subscribe=pb.Subscribe(subscription=1, starts=[start]))
    await client.answer()
    client.send(unsubscribe=pb.Unsubscribe(subscription=1, partitions=[first]))
    assert (await client.answer()).unsubscribed.subscription == 1
    client.produce(first, b"unread", acks=0)
    client.produce(second, b"read", acks=0)
    assert read(await client.delivery()) == [b"read"]
    assert not broker.topics.partition("t", 0).readers


async def test_a_closed_stream_leaves_nothing_behind(broker: Broker, topic: types.Topic) -> None:
    client = Client(broker)
    handle = await client.attach()
    await client.subscribe(handle)
    await idle(client)
    partition = broker.topics.partition("t", 0)
    assert len(partition.readers) == partition.readers.waiting(ReadBound.LAST_STABLE_OFFSET) == 1
    client.session.close()
    assert await client.session.writer.next_frame() is None
    assert len(partition.readers) == partition.readers.waiting(ReadBound.LAST_STABLE_OFFSET) == 0
    assert broker.statistics()["session_count"] == 0


async def test_a_stream_that_ends_while_a_time_is_looked_up_leaves_no_reader_behind(
    broker: Broker, topic: types.Topic
) -> None:
    client = Client(broker)
    handle = await client.attach()
    before = len(broker.env.tasks)
    start = pb.Start(partition=handle, position=types.Position(timestamp_us=1))
    client.send(subscribe=pb.Subscribe(subscription=1, starts=[start], credit=MIB))
    client.session.close()
    assert await until(lambda: len(broker.env.tasks) == before, within_s=30)
    assert not broker.topics.partition("t", 0).readers


async def test_a_slow_request_that_breaks_is_answered(
    broker: Broker, topic: types.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int) -> int:
        raise ZeroDivisionError

    client = Client(broker)
    handle = await client.attach()
    monkeypatch.setattr(broker.topics.partition("t", 0).log.segments, "find_time", broken)
    position = types.Position(timestamp_us=1)
    request = client.send(find_offset=pb.FindOffset(partition=handle, position=position))
    answer = await client.answer()
    assert (answer.request, answer.error.error.code) == (request, types.ERROR_CODE_INTERNAL)
    assert await until(lambda: broker.statistics()["failures"] == 1, within_s=30)
    broker.env.tasks.failed.clear()  # as it was meant to


async def test_a_reader_far_behind_reads_everything_once(broker: Broker, topic: types.Topic) -> None:
    producer, consumer = Client(broker), Client(broker)
    handle = await producer.attach()
    sent = [Random(number).randbytes(Random(number).randrange(60_000)) for number in range(300)]
    for value in sent:
        producer.produce(handle, value, acks=0)
    await consumer.subscribe(handle, credit=100_000)
    assert await consumer.values(300) == sent


async def test_with_flush_os_full_segments_are_finished_all_the_same(broker: Broker, call: Call) -> None:
    config = types.TopicConfig(flush=types.FLUSH_POLICY_OS, segment_bytes=64 << 10)
    await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="fast", config=config))
    client = Client(broker)
    handle = await client.attach("fast")
    partition = broker.topics.partition("fast", 0)
    for _ in range(8):
        client.produce(handle, b"x" * 20_000, acks=0)
    assert partition.log.flushed_end == 0
    await partition.housekeeping.run()
    while partition.log.durability.unfinished:  # noqa: ASYNC110 - the sync runs on a worker thread
        await asyncio.sleep(0)
    assert partition.log.flushed_end == 8


async def test_what_is_refused_subscribes_to_nothing(
    broker: Broker, topic: types.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SESSION_CURSORS_MAX", 1)
    client = Client(broker)
    handles = [await client.attach(partition=index) for index in (0, 1)]
    client.produce(handles[0], b"a")
    await client.answer()
    earliest = types.Position(earliest=True)
    both = [pb.Start(partition=handle, position=earliest) for handle in handles]
    beyond = [pb.Start(partition=handles[0], position=types.Position(offset=99))]
    for starts, code in ((both, types.ERROR_CODE_LIMIT_EXCEEDED), (beyond, types.ERROR_CODE_OFFSET_OUT_OF_RANGE)):
        client.send(subscribe=pb.Subscribe(subscription=1, starts=starts, credit=MIB))
        assert (await client.answer()).error.error.code == code
        await idle(client)
        found = client.session.statistics()
        assert (found["partitions"], found["subscriptions"]) == (0, 0)
    assert (await client.subscribe(handles[0])).subscribed.partitions
    client.session.close()
