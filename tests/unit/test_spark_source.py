"""What the driver plans, against brokers that are a table: what is gone, made again, away, or of another epoch."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType

from comet import Fetched, RecordBatch, records, sync
from comet.errors import (
    CometError,
    DataLoss,
    InvalidArgument,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicNotFound,
    Unavailable,
)
from comet.spark import cluster
from comet.spark.cluster import Cluster
from comet.spark.connection_options import ConnectionOptions
from comet.spark.options import SourceOptions
from comet.spark.source import CometSource, Split, StreamReader
from comet.types import AtOffset, AtTime, Latest, TopicPartition, position
from tests.property.records_strategies import build, stamp

ADDRESS = "nowhere:1"
ALL = ReadAllAvailable()


@dataclass
class Topic:
    """Of each partition the epoch of each record."""

    id: bytes
    partitions: list[list[int]]


@dataclass
class World:
    """comet.Admin and comet.Reader in one."""

    topics: dict[str, Topic] = field(default_factory=dict)
    told: list[dict[TopicPartition, int]] = field(default_factory=list)
    asked: list[tuple[str, int, Any]] = field(default_factory=list)
    away: int = 0  # so often nobody answers
    held: dict[int, int] = field(default_factory=dict)  # by partition: where a transaction is open

    async def list_topics(self) -> list[Any]:
        if self.away:
            self.away -= 1
            raise Unavailable("cannot reach a broker")
        return [
            SimpleNamespace(name=name, id=topic.id, partitions=topic.partitions)
            for name, topic in sorted(self.topics.items())
        ]

    async def commit_offsets(self, group: str, positions: dict[TopicPartition, int]) -> list[Any]:
        self.told.append(positions)
        return []

    async def fetch(
        self, topic: str, partition: int, start: Any, *, isolation: str = "committed", topic_id: bytes = b"", **_: Any
    ) -> Fetched:
        self.asked.append((topic, partition, start))
        if topic not in self.topics or topic_id not in (b"", self.topics[topic].id):
            raise TopicNotFound("no such topic")
        if partition >= len(self.topics[topic].partitions):
            raise PartitionNotFound("no such partition")
        log = self.topics[topic].partitions[partition]
        end = self.held.get(partition, len(log)) if isolation == "committed" else len(log)
        match position(start, now_us=0):
            case AtOffset(first):
                pass
            case AtTime(timestamp_us):  # each record is of the millisecond that its offset is
                first = min(timestamp_us // 1000, len(log))
            case Latest():
                first = end
            case _:
                first = 0
        if first > len(log):
            raise OffsetOutOfRange("out of range", details={"log_start": "0", "log_end": str(len(log))})
        if first >= end:
            return Fetched([], first, first, log[first - 1] if first else None, 0, end)
        data = stamp(build({"values": [b"x"], "timestamps": [1]}), first, leader_epoch=log[first])
        found = RecordBatch[bytes](topic, partition, records.decode(data, stamped=True))
        return Fetched([found], first, first + 1, log[first], 0, end)


@pytest.fixture
def world() -> Iterator[World]:
    found = World({"quotes": Topic(b"\x01", [[1] * 4, [1] * 2])})

    async def made() -> Cluster:
        one = Cluster(SourceOptions(bootstrap=ADDRESS))
        await one.admin.close()
        await one.reader.close()
        one.admin = one.reader = found  # type: ignore[assignment]
        return one

    key = ConnectionOptions(bootstrap=ADDRESS)
    cluster._clients[key] = sync.call(made())
    yield found
    del cluster._clients[key]


def stream(**options: str) -> StreamReader:
    given = {"bootstrap": ADDRESS, "subscribe": "quotes", "waitMs": "0", **options}
    return CometSource(given).streamReader(StructType())


def again(reader: StreamReader, start: dict[str, Any], limit: ReadLimit = ALL) -> dict[str, Any]:
    reader._refresh_at = 0.0  # some seconds later
    return reader.latestOffset(start, limit)


def ranges(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (part.topic, part.partition, part.start, part.end)
        for one in reader.partitions(start, end)
        for part in one.parts  # type: ignore[attr-defined]
    ]


def test_offsets_name_the_topic_and_the_epoch(world: World) -> None:
    world.topics["quotes"].partitions[0] = [1, 1, 2, 2]
    reader = stream(startingOffsets='{"quotes": {"0": 2, "1": -2}}')
    start = reader.initialOffset()
    assert start == {"quotes": "01", "quotes/0": [2, 1], "quotes/1": [0, -1]}
    end = again(reader, start)
    assert end == {"quotes": "01", "quotes/0": [4, 2], "quotes/1": [2, 1]}
    assert ranges(reader, start, end) == [("quotes", 0, 2, 4), ("quotes", 1, 0, 2)]


def test_where_a_batch_is_cut_the_epoch_is_asked_for_unless_it_is_known(world: World) -> None:
    world.topics["quotes"].partitions = [[1] * 10 + [2] * 10]
    reader = stream(startingOffsets="earliest")
    at, seen = reader.initialOffset(), []
    world.asked.clear()
    for _ in range(6):
        at = again(reader, at, ReadMaxRows(4))
        seen.append(at["quotes/0"])
    assert seen == [[4, 1], [8, 1], [12, 2], [16, 2], [20, 2], [20, 2]]
    assert [start for _, _, start in world.asked if start != "latest"] == [3, 7, 11]


def test_a_checkpoint_of_before_topics_were_named_is_gone_on_with(world: World) -> None:
    assert again(stream(), {"quotes/0": [1, 1], "quotes/1": [2, 1]}) == {
        "quotes": "01",
        "quotes/0": [4, 1],
        "quotes/1": [2, 1],
    }


def test_a_topic_that_was_made_again_is_said_once_and_begun_with(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    tolerant, strict = stream(failOnDataLoss="false"), stream()
    start = again(tolerant, {})
    world.topics["quotes"] = Topic(b"\x02", [[1] * 9])
    with pytest.raises(DataLoss, match="quotes/0 was read up to 4, but the topic was deleted and recreated"):
        again(strict, start)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            end = again(tolerant, start)
            assert ranges(tolerant, start, end) == [("quotes", 0, 0, 9)]
    assert end == {"quotes": "02", "quotes/0": [9, 1]}
    assert sorted(record.message.partition(" ")[0] for record in caplog.records) == ["quotes/0", "quotes/1"]


@pytest.mark.parametrize("tolerant", [False, True])
def test_a_topic_that_was_made_again_is_noticed_between_two_looks(
    world: World, caplog: pytest.LogCaptureFixture, tolerant: bool
) -> None:
    reader = stream(failOnDataLoss=str(not tolerant).lower())
    start = again(reader, {})
    world.topics["quotes"] = Topic(b"\x02", [[1] * 9, [1] * 9])
    if not tolerant:
        with pytest.raises(DataLoss, match="quotes/0 was read up to 4, but the topic was deleted and recreated"):
            reader.latestOffset(start, ALL)
        return
    end = reader.latestOffset(start, ALL)
    assert end == {"quotes": "02", "quotes/0": [9, 1], "quotes/1": [9, 1]}
    assert ranges(reader, start, end) == [("quotes", 0, 0, 9), ("quotes", 1, 0, 9)]
    assert all("was deleted and recreated" in record.message for record in caplog.records)


def test_what_was_planned_of_a_topic_is_not_read_of_the_next(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The query was started again in the middle of a batch: Spark asks for that one first."""
    start, end = {"quotes": "01", "quotes/0": [1, 1]}, {"quotes": "01", "quotes/0": [4, 1]}
    assert ranges(stream(), start, end) == [("quotes", 0, 1, 4)]
    world.topics["quotes"].id = b"\x02"
    with pytest.raises(DataLoss, match="offsets 1 to 4 are lost: the topic was deleted and recreated"):
        stream().partitions(start, end)
    assert ranges(stream(failOnDataLoss="false"), start, end) == []


def test_topics_that_are_deleted_end_only_a_query_that_may_lose_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.topics["more"] = Topic(b"\x03", [[1]])
    options = {"subscribe": "quotes,more"}
    tolerant, strict = stream(failOnDataLoss="false", **options), stream(**options)
    start = again(tolerant, {})
    del world.topics["more"]
    with pytest.raises(TopicNotFound, match="'more'"):
        again(strict, start)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert again(tolerant, start) == start, "and no batch of nothing"
            assert tolerant.latestOffset(start, ALL) == start
    assert len(caplog.records) == 1 and "more/0 no longer exists" in caplog.text
    with pytest.raises(TopicNotFound):
        stream(failOnDataLoss="false", **options).initialOffset()
    world.topics["more"] = Topic(b"\x04", [[1] * 3])
    assert ranges(tolerant, start, again(tolerant, start)) == [("more", 0, 0, 3)]


def test_what_is_shorter_than_it_was_is_said_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    reader = stream(failOnDataLoss="false")
    start = again(reader, {})
    with caplog.at_level(logging.WARNING):
        for length in (1, 2, 3):
            world.topics["quotes"].partitions[0] = [1] * length
            assert again(reader, start) == start
    assert len(caplog.records) == 1 and "quotes/0 ends at 1, before the next offset 4" in caplog.text


def test_assigned_partitions_have_to_be_there(world: World) -> None:
    given = {"bootstrap": ADDRESS, "assign": '{"quotes": [1, 7]}'}
    with pytest.raises(PartitionNotFound, match="has no partition 7, only 2 partitions"):
        CometSource(given).streamReader(StructType()).initialOffset()
    given["assign"] = '{"quotes": [1]}'
    found = CometSource(given).streamReader(StructType()).initialOffset()
    assert found == {"quotes": "01", "quotes/1": [2, 1]}


def test_a_batch_ends_where_the_log_reaches(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def planned(**options: str) -> list[Any]:
        reader = CometSource({"bootstrap": ADDRESS, "subscribe": "quotes", **options}).reader(StructType())
        return [(part.end, part.last) for one in reader.partitions() for part in one.parts]  # type: ignore[attr-defined]

    assert planned() == [(4, 1), (2, 1)]
    assert planned(endingOffsets='{"quotes": {"0": 3, "1": -1}}') == [(3, 1), (2, 1)]
    beyond = '{"quotes": {"0": 3, "1": 9}}'
    with pytest.raises(DataLoss, match="quotes/1 ends at 2, before the requested 9"):
        planned(endingOffsets=beyond)
    assert planned(endingOffsets=beyond, failOnDataLoss="false") == [(3, 1), (2, 1)]


def test_a_batch_does_not_begin_behind_the_end_of_a_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.held[0] = 2

    def planned(first: int, **options: str) -> list[Any]:
        starting = json.dumps({"quotes": {"0": first, "1": 0}})
        given = {"bootstrap": ADDRESS, "subscribe": "quotes", "startingOffsets": starting, **options}
        reader = CometSource(given).reader(StructType())
        return [(part.partition, part.start) for one in reader.partitions() for part in one.parts]  # type: ignore[attr-defined]

    for first in (2, 3, 4):
        assert planned(first) == [(1, 0)], "a transaction is open there"
    with pytest.raises(DataLoss, match="quotes/0 ends before the start offset 5"):
        planned(5)
    assert not caplog.records
    assert planned(5, failOnDataLoss="false") == [(1, 0)]
    assert "quotes/0 ends before the start offset 5" in caplog.text


def test_what_holds_nothing_is_read_as_nothing(world: World) -> None:
    """Spark makes up a partition where there is none."""
    world.topics["quotes"].partitions = [[], []]
    reader = CometSource({"bootstrap": ADDRESS, "subscribe": "quotes"}).reader(StructType())
    (nothing,) = reader.partitions()
    assert list(reader.read(nothing)) == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (StructType().add("offset", "integer"), "offset is bigint, not int: cast it"),
        (StructType().add("append_time", "double"), "append_time is timestamp or timestamp_ntz, not double"),
        (StructType().add("value", MapType(StringType(), LongType())), "binary or string or struct, not map<string,"),
        (StructType().add("headers", ArrayType(StringType())), "array<struct<key:string,value:binary>>, not array<str"),
        (StructType().add("key", "binary", nullable=False), "key is null for records without one"),
        (StructType().add("Offset", "long"), "unknown column 'Offset'"),
        (StructType().add("offset", "long").add("offset", "long"), "duplicate column 'offset'"),
    ],
)
def test_a_frame_of_other_columns_is_refused_while_it_is_planned(schema: StructType, said: str) -> None:
    source = CometSource({"subscribe": "quotes"})
    for reader in (source.reader, source.streamReader):
        with pytest.raises(InvalidArgument, match=re.escape(said)):
            reader(schema)


def test_a_time_behind_an_open_transaction_is_no_loss(world: World) -> None:
    world.topics["quotes"].partitions = [[1, 2, 3, 3]]
    world.held[0] = 1

    def planned(**options: str) -> list[Any]:
        reader = CometSource({"bootstrap": ADDRESS, "subscribe": "quotes", **options}).reader(StructType())
        return [(part.start, part.end, part.last) for one in reader.partitions() for part in one.parts]  # type: ignore[attr-defined]

    assert planned(endingTimestamp="3") == planned(endingTimestamp="9") == [(0, 1, 1)]
    assert planned(startingTimestamp="3") == []
    everything = {"isolation": "uncommitted"}
    assert planned(endingTimestamp="3", **everything) == [(0, 3, 3)]
    reader, all_of_it = stream(startingTimestamp="3"), stream(startingTimestamp="3", **everything)
    start = reader.initialOffset()
    assert (start["quotes/0"], all_of_it.initialOffset()["quotes/0"]) == ([1, 1], [3, 3])
    assert again(reader, start) == start
    world.held.clear()
    assert ranges(reader, start, again(reader, start)) == [("quotes", 0, 1, 4)], "nothing is passed over"
    assert stream(startingTimestamp="3").initialOffset()["quotes/0"] == [3, 3]


def test_a_group_is_told_of_the_last_batch_of_a_stream_that_ends(world: World) -> None:
    reader = stream(group="g")
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset({}, ALL)
    reader.latestOffset(end, ALL)
    assert world.told[-1] == {TopicPartition("quotes", 0): 4, TopicPartition("quotes", 1): 2}


@pytest.mark.parametrize("options", [{"pushdown": "true"}, {"endingOffsets": "earliest"}, {"endingTimestamp": "1"}])
def test_what_is_for_batches_is_refused_to_streams(options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match=r"for spark\.read"):
        stream(**options)


def test_only_what_is_gone_leaves_an_epoch_unknown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = stream(startingOffsets='{"quotes": {"0": 99, "1": 1}}')
    assert reader.initialOffset() == {"quotes": "01", "quotes/0": [99, -1], "quotes/1": [1, 1]}

    async def away(*_: Any, **__: Any) -> Fetched:
        raise CometError("nobody answers")

    monkeypatch.setattr(world, "fetch", away)
    with pytest.raises(CometError, match="nobody answers"):
        stream(startingOffsets='{"quotes": {"0": 99, "1": 1}}').initialOffset()


def test_a_batch_takes_what_comes_while_it_settles(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slept = []

    async def while_it_sleeps(seconds: float) -> None:
        slept.append(seconds)
        world.topics["quotes"].partitions[0].append(1)

    reader = stream(settleMs="30", startingOffsets="earliest")
    start = reader.initialOffset()
    monkeypatch.setattr("comet.spark.source.asyncio", SimpleNamespace(sleep=while_it_sleeps))
    end = reader.latestOffset(start, ALL)
    assert (slept, end["quotes/0"]) == ([0.03], [5, 1])


def test_a_task_reads_several_ranges_where_there_are_to_be_few(world: World) -> None:
    reader = stream(maxPartitions="1", startingOffsets="earliest")
    start = reader.initialOffset()
    (task,) = reader.partitions(start, reader.latestOffset(start, ALL))
    assert isinstance(task, Split)
    assert [(one.partition, one.start, one.end) for one in task.parts] == [(0, 0, 4), (1, 0, 2)]


def test_the_driver_waits_for_a_broker_that_is_started_again(world: World) -> None:
    reader = stream()
    start = again(reader, {})
    world.away = 3
    assert again(reader, start) == start
    assert not world.away
    world.away = 1_000_000
    hasty = stream()
    hasty.options = replace(hasty.options, timeout_ms=20)
    key = ConnectionOptions(bootstrap=ADDRESS, timeout_ms=20)
    cluster._clients[key] = cluster._clients[ConnectionOptions(bootstrap=ADDRESS)]
    try:
        with pytest.raises(Unavailable, match="cannot reach a broker"):
            again(hasty, start)
    finally:
        del cluster._clients[key]
