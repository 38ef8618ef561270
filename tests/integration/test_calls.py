"""The unary calls of one broker, without a network: everything but the transport is real."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from comet import records
from comet.errors import (
    CometError,
    CorruptBatch,
    Draining,
    InvalidArgument,
    LogFailed,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from comet.v1 import admin_pb2 as admin
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet_broker.broker import Broker
from comet_broker.core.watermarks import ReadBound
from tests.integration.stream_client import Call, Client, idle, read


async def test_deleting_a_topic_ends_its_subscriptions_and_its_files(
    broker: Broker, topic: types.Topic, call: Call, tmp_path: Path
) -> None:
    client = Client(broker)
    handle = await client.attach()
    await client.subscribe(handle)
    await idle(client)
    await call("comet.v1.Admin/DeleteTopic", admin.DeleteTopicRequest(name="t"))
    ended = (await client.answer()).error
    assert (ended.error.code, ended.subscription, ended.partition) == (types.ERROR_CODE_TOPIC_NOT_FOUND, 1, handle)
    client.produce(handle, b"late")
    assert (await client.answer()).error.error.code == types.ERROR_CODE_PARTITION_NOT_FOUND
    assert not list((tmp_path / "topics").iterdir())
    again: types.Topic = await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="t"))
    assert again.id != topic.id
    assert await client.attach() != handle, "a handle is never given out twice"


async def test_admin_calls(broker: Broker, topic: types.Topic, call: Call) -> None:
    with pytest.raises(TopicExists):
        await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="t"))
    with pytest.raises(InvalidArgument, match="not a valid topic name"):
        await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="../etc"))
    bad = types.TopicConfig(retention_ms=-7)
    with pytest.raises(InvalidArgument, match="retention_ms"):
        await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="u", config=bad))
    altered: admin.AlterTopicResponse = await call(
        "comet.v1.Admin/AlterTopic",
        admin.AlterTopicRequest(name="t", config=types.TopicConfig(retention_records=5)),
    )
    assert altered.topic.config.retention_records == 5
    assert altered.topic.config.retention_ms == topic.config.retention_ms
    assert broker.topics.partition("t", 1).log.config.retention_records == 5
    assert dict(altered.topic.sources) == {"retention_records": types.SETTING_SOURCE_TOPIC}
    assert altered.topic.defaults.config == topic.config
    unset: admin.AlterTopicResponse = await call(
        "comet.v1.Admin/AlterTopic", admin.AlterTopicRequest(name="t", unset=["retention_records"])
    )
    assert (unset.topic.config, dict(unset.topic.sources)) == (topic.config, {})
    assert broker.topics.partition("t", 1).log.config.retention_records == -1
    with pytest.raises(InvalidArgument, match="unknown topic setting: 'retain'"):
        await call("comet.v1.Admin/AlterTopic", admin.AlterTopicRequest(name="t", unset=["retain"]))
    more = admin.AddPartitionsRequest(name="t", total=4)
    grown: admin.AddPartitionsResponse = await call("comet.v1.Admin/AddPartitions", more)
    assert len(grown.topic.partitions) == 4
    with pytest.raises(InvalidArgument, match="only grow"):
        await call("comet.v1.Admin/AddPartitions", admin.AddPartitionsRequest(name="t", total=3))
    with pytest.raises(TopicNotFound):
        await call("comet.v1.Admin/DescribeTopic", admin.DescribeTopicRequest(name="none"))
    cluster: admin.DescribeClusterResponse = await call(
        "comet.v1.Admin/DescribeCluster", admin.DescribeClusterRequest()
    )
    assert (cluster.topics, cluster.partitions) == (1, 4)
    page: admin.ListTopicsResponse = await call("comet.v1.Admin/ListTopics", admin.ListTopicsRequest(page_size=1))
    assert [one.name for one in page.topics] == ["t"]
    assert not page.next_page_token


async def test_publish_and_fetch(broker: Broker, topic: types.Topic, call: Call) -> None:
    sent = [
        pb.Record(key=b"k", value=b"v", headers=[pb.Header(name="h", value=b"1")], timestamp_us=5),
        pb.Record(key=b"k"),
        pb.Record(value=b""),
    ]
    answer: pb.PublishResponse = await call(
        "comet.v1.Comet/Publish", pb.PublishRequest(topic="t", records=sent, acks=types.ACKS_LEADER)
    )
    home = records.partition_for(b"k", 2)
    assert [(r.partition, r.offset) for r in answer.receipts[:2]] == [(home, 0), (home, 1)]
    fetched: pb.FetchResponse = await call(
        "comet.v1.Comet/Fetch", pb.FetchRequest(topic="t", partition=home, records_max=2)
    )
    assert [(r.key, r.HasField("value"), r.value) for r in fetched.records] == [(b"k", True, b"v"), (b"k", False, b"")]
    assert fetched.records[0].headers[0] == pb.Header(name="h", value=b"1")
    assert (fetched.records[0].timestamp_us, fetched.next_offset) == (5, 2)
    rest = pb.FetchRequest(topic="t", partition=home, start=types.Position(offset=1))
    assert (await call("comet.v1.Comet/Fetch", rest)).records[0].offset == 1
    with pytest.raises(OffsetOutOfRange):
        await call("comet.v1.Comet/Fetch", pb.FetchRequest(topic="t", start=types.Position(offset=100)))
    with pytest.raises(PartitionNotFound):
        await call("comet.v1.Comet/Fetch", pb.FetchRequest(topic="t", partition=9))


async def test_fetch_waits_for_what_is_not_there_yet(broker: Broker, topic: types.Topic, call: Call) -> None:
    request = pb.FetchRequest(topic="t", wait_ms=30_000, start=types.Position(latest=True))
    waiting = asyncio.ensure_future(call("comet.v1.Comet/Fetch", request))
    partition = broker.topics.partition("t", 0)
    while not partition.readers.waiting(ReadBound.LAST_STABLE_OFFSET):  # noqa: ASYNC110 - the call itself decides when it waits
        await asyncio.sleep(0)
    publish = pb.PublishRequest(topic="t", partition=0, records=[pb.Record(value=b"new")], acks=types.ACKS_LEADER)
    await call("comet.v1.Comet/Publish", publish)
    assert [record.value for record in (await waiting).records] == [b"new"]
    empty = pb.FetchRequest(topic="t", wait_ms=1, start=types.Position(latest=True))
    assert not (await call("comet.v1.Comet/Fetch", empty)).records
    assert not partition.readers.waiting(ReadBound.LAST_STABLE_OFFSET)


async def test_an_idempotent_publish_can_be_repeated(broker: Broker, topic: types.Topic, call: Call) -> None:
    request = pb.PublishRequest(
        topic="t", partition=1, records=[pb.Record(value=b"v", timestamp_us=1)], acks=types.ACKS_LEADER, producer_id=9
    )
    offsets = [(await call("comet.v1.Comet/Publish", request)).receipts[0].offset for _ in range(3)]
    assert offsets == [0, 0, 0]
    request.ClearField("partition")
    with pytest.raises(InvalidArgument, match="must name its partition"):
        await call("comet.v1.Comet/Publish", request)


async def test_deleted_records_are_gone_for_readers_and_for_good(
    broker: Broker, topic: types.Topic, call: Call
) -> None:
    client = Client(broker)
    handle = await client.attach()
    for number in range(6):
        client.produce(handle, b"%d" % number, acks=0)
    done: admin.DeleteRecordsResponse = await call(
        "comet.v1.Admin/DeleteRecords", admin.DeleteRecordsRequest(name="t", before_offset=4)
    )
    assert done.log_start == 4
    answer = await client.subscribe(handle, offset=2)
    assert answer.error.error.code == types.ERROR_CODE_OFFSET_OUT_OF_RANGE
    await client.subscribe(handle, subscription=2)
    assert read(await client.delivery()) == [b"4", b"5"]
    with pytest.raises(InvalidArgument, match="before_offset"):
        await call("comet.v1.Admin/DeleteRecords", admin.DeleteRecordsRequest(name="t", before_offset=7))


async def test_a_draining_broker_says_so_and_takes_nothing_new(broker: Broker, topic: types.Topic, call: Call) -> None:
    client = Client(broker)
    handle = await client.attach()
    client.produce(handle, b"last")
    await broker.drain()
    assert (await client.answer()).WhichOneof("frame") == "go_away"
    assert (await client.answer()).acks.base_offsets == [0]
    client.send(attach=pb.Attach(topic="t"))
    assert (await client.answer()).error.error.code == types.ERROR_CODE_DRAINING
    with pytest.raises(Draining):
        broker.open_session("late")
    publish = pb.PublishRequest(topic="t", records=[pb.Record(value=b"x")])
    with pytest.raises(Draining):
        await call("comet.v1.Comet/Publish", publish)


async def test_a_topic_that_cannot_be_opened_is_listed_all_the_same(
    broker: Broker, topic: types.Topic, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = await call("comet.v1.Admin/ListTopics", admin.ListTopicsRequest())
    monkeypatch.delitem(broker.topics.by_name, "t")
    monkeypatch.setitem(broker.topics.problems, "t", LogFailed("its disk is gone"))
    assert await call("comet.v1.Admin/ListTopics", admin.ListTopicsRequest()) == listed
    assert [one.name for one in listed.topics] == [topic.name]
    with pytest.raises(Unavailable, match="its disk is gone"):
        await call("comet.v1.Admin/DescribeTopic", admin.DescribeTopicRequest(name="t"))


async def test_a_list_of_topics_shows_what_was_changed_since_the_last(broker: Broker, call: Call) -> None:
    async def listed() -> list[tuple[str, int, int]]:
        answer = await call("comet.v1.Admin/ListTopics", admin.ListTopicsRequest())
        return [(one.name, len(one.partitions), one.config.retention_ms) for one in answer.topics]

    assert await listed() == []
    await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="a"))
    assert [one[:2] for one in await listed()] == [("a", 1)]
    await call("comet.v1.Admin/AddPartitions", admin.AddPartitionsRequest(name="a", total=3))
    config = types.TopicConfig(retention_ms=5)
    await call("comet.v1.Admin/AlterTopic", admin.AlterTopicRequest(name="a", config=config))
    assert await listed() == [("a", 3, 5)]
    await call("comet.v1.Admin/DeleteTopic", admin.DeleteTopicRequest(name="a"))
    assert await listed() == []


async def test_every_error_on_the_wire_comes_back_as_itself() -> None:
    from comet.wire.protobuf import error_from_pb, error_to_pb

    for error in (CorruptBatch("x"), OffsetOutOfRange("y", details={"log_start": "3"}, retry_after_ms=7)):
        back: CometError = error_from_pb(error_to_pb(error))
        assert (type(back), back.message, back.details, back.retry_after_ms) == (
            type(error),
            error.message,
            error.details,
            error.retry_after_ms,
        )
