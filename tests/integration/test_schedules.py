"""Schedules on three brokers: each record once at its time, whoever leads; changes and their conflicts; topics that
refuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import comet
from comet.types import SCHEDULES_TOPIC
from comet.v1 import records_pb2
from comet.v1 import schedules_pb2 as pb
from comet_broker.schedules import firing, scheduler
from comet_broker.schedules.changes import PARTITIONS, partition_of
from tests import waiting
from tests.integration.local_cluster import LocalCluster, until

ADMIN = "comet.v1.Admin/"
SOON_MS = 50
LATER = "at 2199-01-01T00:00:00Z"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as one:
        async with comet.Admin(one.addresses, connect=one.network.connect) as admin:
            await admin.create_topic("t", partitions=2, replicas=3)
        await one.opened("t", partitions=2)
        yield one


async def put(
    cluster: LocalCluster, *puts: pb.SchedulePut, topic: str = "t", on: int = 1
) -> list[pb.SchedulePutResult]:
    request = pb.PutSchedulesRequest(topic=topic, schedules=puts)
    answer = await cluster.call(f"{ADMIN}PutSchedules", request, on=on)
    assert isinstance(answer, pb.PutSchedulesResponse)
    return list(answer.results)


def one(schedule_id: str, spec: str = "", *, delay_ms: int | None = SOON_MS, **given: Any) -> pb.SchedulePut:
    """A put of a schedule whose value is its id."""
    extra = {name: given.pop(name) for name in ("revision", "fresh") if name in given}
    record = given.pop("record", records_pb2.Record(value=schedule_id.encode()))
    found = pb.SchedulePut(schedule=pb.Schedule(id=schedule_id, spec=spec, record=record, **given), **extra)
    if not spec:
        assert delay_ms is not None
        found.delay_ms = delay_ms
    return found


async def act(
    cluster: LocalCluster, name: str, schedule_id: str, topic: str = "t", on: int = 1, **given: Any
) -> pb.Schedule:
    request = pb.ScheduleRequest(topic=topic, id=schedule_id, **given)
    answer = await cluster.call(f"{ADMIN}{name}Schedule", request, on=on)
    assert isinstance(answer, pb.Schedule)
    return answer


async def listed(cluster: LocalCluster, on: int = 1, **given: Any) -> pb.ListSchedulesResponse:
    """Once every leader has read its schedules."""
    found = pb.ListSchedulesResponse()

    async def answered() -> bool:
        try:
            answer = await cluster.call(f"{ADMIN}ListSchedules", pb.ListSchedulesRequest(**given), on=on)
        except comet.Unavailable:
            return False
        assert isinstance(answer, pb.ListSchedulesResponse)
        found.CopyFrom(answer)
        return True

    assert await waiting.until_answered(answered, within_s=30)
    return found


async def fired(cluster: LocalCluster, count: int, topic: str = "t") -> list[comet.Record[bytes]]:
    """The first so many records of a topic."""
    found: list[comet.Record[bytes]] = []
    connect = cluster.network.connect
    async with comet.Consumer(cluster.addresses, topic, start="earliest", connect=connect) as consumer:
        async with asyncio.timeout(30):
            async for record in consumer:
                found.append(record)
                if len(found) == count:
                    return found
    raise AssertionError


async def gone(cluster: LocalCluster, *ids: str, topic: str = "t") -> None:
    """Until these schedules are over."""

    async def over(schedule_id: str) -> bool:
        try:
            await act(cluster, "Get", schedule_id, topic)
        except comet.ScheduleNotFound:
            return True
        except comet.Unavailable:
            pass
        return False

    for schedule_id in ids:
        assert await waiting.until_answered(lambda: over(schedule_id), within_s=30), schedule_id  # noqa: B023


async def paused(cluster: LocalCluster, schedule_id: str, topic: str) -> pb.Schedule:
    """A schedule once it is paused."""
    found = pb.Schedule()

    async def is_paused() -> bool:
        found.CopyFrom(await act(cluster, "Get", schedule_id, topic))
        return found.paused

    assert await waiting.until_answered(is_paused, within_s=30)
    return found


def values(found: Sequence[comet.Record[bytes]]) -> list[bytes]:
    return sorted(record.value for record in found)


async def count_in(cluster: LocalCluster, topic: str = "t", partitions: int = 2) -> int:
    """The records of a topic; control batches are none."""
    found = 0
    async with comet.Reader(cluster.addresses, connect=cluster.network.connect) as reader:
        for index in range(partitions):
            end = cluster.replicas(topic, index)[cluster.leader(topic, index)].high_watermark
            async for part in reader.read(topic, index, 0, end):
                assert isinstance(part, comet.RecordBatch)
                found += len(part.values)
    return found


# ---- firing


async def test_each_fires_once_through_any_broker(cluster: LocalCluster) -> None:
    ids = [f"s{number}" for number in range(30)]
    for number, schedule_id in enumerate(ids):
        (result,) = await put(cluster, one(schedule_id), on=1 + number % 3)
        assert result.created, result
    found = await fired(cluster, len(ids))
    assert values(found) == sorted(schedule_id.encode() for schedule_id in ids)
    await gone(cluster, *ids)
    assert await count_in(cluster) == len(ids)
    first = found[0]
    headers = dict(first.headers)
    assert headers["comet-schedule-id"] == first.value
    assert int(headers["comet-schedule-due"]) == first.timestamp_us
    assert headers["comet-schedule-count"] == b"1"


async def test_schedules_of_all_partitions_are_listed_in_order(cluster: LocalCluster) -> None:
    ids = [f"s{number:02}" for number in range(25)]
    assert {partition_of("t", schedule_id) for schedule_id in ids} == set(range(PARTITIONS))
    await put(cluster, *(one(schedule_id, LATER) for schedule_id in ids), one("other", LATER))
    found: list[str] = []
    after = ""
    while True:
        page = await listed(cluster, on=2, topic="t", prefix="s", limit=7, after=after)
        assert len(page.schedules) <= 7
        found += [schedule.id for schedule in page.schedules]
        after = page.after
        if not after:
            break
    assert found == ids
    await act(cluster, "Pause", "s03", on=3)
    stopped = await listed(cluster, state=pb.SCHEDULE_STATE_PAUSED)
    assert [schedule.id for schedule in stopped.schedules] == ["s03"]
    assert len((await listed(cluster, state=pb.SCHEDULE_STATE_ACTIVE)).schedules) == 25


async def test_the_next_leader_goes_on_where_the_last_one_was(cluster: LocalCluster) -> None:
    ids = [f"s{number}" for number in range(12)]
    await put(cluster, *(one(schedule_id, LATER) for schedule_id in ids), one("tick", "every 1s"))
    for number in (1, 2):
        await cluster.stop(number)
        await until(lambda: all(cluster.leader(SCHEDULES_TOPIC, index) for index in range(PARTITIONS)), "leaders")
        await cluster.start(number)
        assert [schedule.id for schedule in (await listed(cluster, on=3)).schedules] == sorted([*ids, "tick"])
    for schedule_id in ids:
        await act(cluster, "Run", schedule_id, on=3)
    await gone(cluster, *ids)
    await act(cluster, "Cancel", "tick")
    found = await fired(cluster, await count_in(cluster))
    ticks = [record for record in found if record.value == b"tick"]
    assert sorted(set(values(found)) - {b"tick"}) == sorted(schedule_id.encode() for schedule_id in ids)
    assert len(found) == len(ticks) + len(ids)
    counts = sorted(int(value) for record in ticks for name, value in record.headers if "count" in name)
    assert counts == list(range(1, len(ticks) + 1))
    assert len({record.timestamp_us for record in ticks}) == len(ticks)


# ---- puts and changes


async def test_a_repeated_fresh_put_is_one_schedule(cluster: LocalCluster) -> None:
    first, second = [await put(cluster, one("s", LATER, fresh=True)) for _ in range(2)]
    assert (first[0].created, second[0].created) == (True, False)
    assert first[0].schedule.revision == second[0].schedule.revision
    await act(cluster, "Cancel", "s")
    (third,) = await put(cluster, one("s", LATER, fresh=True))
    assert not third.created
    assert not third.error.code
    with pytest.raises(comet.ScheduleNotFound):
        await act(cluster, "Get", "s")
    assert (await put(cluster, one("s", LATER)))[0].created, "another schedule may take the id"


async def test_a_revision_guards_a_change(cluster: LocalCluster) -> None:
    (created,) = await put(cluster, one("s", LATER, revision=-1))
    (refused,) = await put(cluster, one("s", LATER, revision=-1))
    assert refused.error.details["revision"] == str(created.schedule.revision)
    (replaced,) = await put(cluster, one("s", "every 1h", revision=created.schedule.revision))
    assert not replaced.created
    assert replaced.schedule.created_us == created.schedule.created_us
    with pytest.raises(comet.RevisionMismatch):
        await act(cluster, "Cancel", "s", revision=created.schedule.revision)
    moved = await cluster.call(
        f"{ADMIN}MoveSchedule",
        pb.MoveScheduleRequest(topic="t", id="s", spec="every 2h", revision=replaced.schedule.revision),
    )
    assert isinstance(moved, pb.Schedule)
    assert (moved.spec, moved.record.value) == ("every 2h", b"s")


async def test_a_dry_run_changes_nothing(cluster: LocalCluster) -> None:
    answer = await cluster.call(
        f"{ADMIN}PutSchedules", pb.PutSchedulesRequest(topic="t", schedules=[one("s", LATER)], dry_run=True)
    )
    assert isinstance(answer, pb.PutSchedulesResponse)
    assert answer.results[0].created
    with pytest.raises(comet.ScheduleNotFound):
        await act(cluster, "Get", "s")
    await put(cluster, one("s", LATER))
    assert (await act(cluster, "Pause", "s", dry_run=True)).paused
    assert not (await act(cluster, "Get", "s")).paused


async def test_a_cancelled_one_has_fired_before_or_never_does(cluster: LocalCluster) -> None:
    ids = [f"s{number}" for number in range(60)]
    await put(cluster, *(one(schedule_id, delay_ms=100 + 2 * number) for number, schedule_id in enumerate(ids)))
    cancelled = set[str]()

    async def cancel(schedule_id: str) -> None:
        try:
            await act(cluster, "Cancel", schedule_id)
            cancelled.add(schedule_id)
        except comet.ScheduleNotFound:
            pass

    await waiting.pace(0.1)
    for part in range(0, 60, 6):
        await asyncio.gather(*map(cancel, ids[part : part + 6]))
    await gone(cluster, *ids)
    count = await count_in(cluster)
    found = {record.value.decode() for record in await fired(cluster, count)} if count else set[str]()
    assert count == len(found)
    assert found | cancelled == set(ids)
    assert not found & cancelled


async def test_errors_of_one_do_not_concern_the_others(cluster: LocalCluster) -> None:
    wide = records_pb2.Record(value=b"v", partition=9)
    results = await put(cluster, one("good", LATER), one("bad", "every 5x"), one("wide", LATER, record=wide))
    assert [bool(result.error.code) for result in results] == [False, True, True]
    assert "2 partitions" in results[2].error.message
    with pytest.raises(comet.TopicNotFound):
        await put(cluster, one("s", LATER), topic="nothing")
    (internal,) = await put(cluster, one("s", LATER), topic=SCHEDULES_TOPIC)
    assert "Comet alone" in internal.error.message


# ---- topics that refuse


async def test_a_deleted_topic_pauses_its_schedules_and_says_so(cluster: LocalCluster) -> None:
    async with comet.Admin(cluster.addresses, connect=cluster.network.connect) as admin:
        await admin.create_topic("gone", replicas=3)
        await cluster.opened("gone")
        await put(cluster, one("s", delay_ms=500), topic="gone")
        await put(cluster, one("other", delay_ms=500))
        await admin.delete_topic("gone")
    assert values(await fired(cluster, 1)) == [b"other"]

    assert (await paused(cluster, "s", "gone")).reason == "topic gone does not exist"


async def test_a_topic_without_a_leader_puts_off_its_own_schedules_alone(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "BACK_OFF_S_MAX", 0.5)
    async with comet.Admin(cluster.addresses, connect=cluster.network.connect) as admin:
        await put(cluster, one("first"))
        await gone(cluster, "first")
        leader = cluster.leader(SCHEDULES_TOPIC, partition_of("t", "first"))
        away = next(number for number in cluster.brokers if number != leader)
        await admin.create_topic("single", replicas=1)
        await cluster.opened("single", replicas=1)
        await admin.move_partition("single", 0, replicas=[away])
        await until(lambda: cluster.leader("single") == away, "it has moved")
        await cluster.stop(away)
        on = leader
        singles = [f"x{number}" for number in range(8)]
        await put(cluster, *map(one, singles), topic="single", on=on)
        others = [f"y{number}" for number in range(8)]
        await put(cluster, *map(one, others), on=on)
        found = await fired(cluster, 1 + len(others))
        assert values(found) == sorted([b"first", *(name.encode() for name in others)])
        await cluster.start(away)
        assert values(await fired(cluster, len(singles), "single")) == sorted(name.encode() for name in singles)


async def test_topics_that_prefer_availability_get_their_records_too(cluster: LocalCluster) -> None:
    async with comet.Admin(cluster.addresses, connect=cluster.network.connect) as admin:
        await admin.create_topic("loose", replicas=3, consistency="available")
        await cluster.opened("loose")
    await put(cluster, one("s"), one("other"), topic="loose")
    assert values(await fired(cluster, 2, "loose")) == [b"other", b"s"]
    await gone(cluster, "s", "other", topic="loose")


# ---- hostile and wrong


async def test_records_that_are_no_schedules_are_left_alone(cluster: LocalCluster) -> None:
    await put(cluster, one("s", LATER))
    index = partition_of("t", "s")
    connect = cluster.network.connect
    async with comet.Producer(cluster.addresses, connect=connect, acks="all") as producer:
        for key, value in ((b"t/x", b"\xff\xff"), (b"t/y", pb.Schedule(topic="t", id="z").SerializeToString())):
            await producer.send(SCHEDULES_TOPIC, value, key=key, partition=index)
    leader = cluster.leader(SCHEDULES_TOPIC, index)
    await cluster.stop(leader)
    await until(lambda: cluster.leader(SCHEDULES_TOPIC, index) not in (0, leader), "another leads")
    on = cluster.leader(SCHEDULES_TOPIC, index)
    assert [schedule.id for schedule in (await listed(cluster, on=on)).schedules] == ["s"]


async def test_a_broker_that_does_not_lead_says_so(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await put(cluster, one("s", LATER))
    monkeypatch.setattr(scheduler, "READY_S_MAX", 0.0)
    leader = cluster.leader(SCHEDULES_TOPIC, partition_of("t", "s"))
    other = next(number for number in cluster.brokers if number != leader)
    with pytest.raises(comet.Unavailable, match="does not lead"):
        await act(cluster, "Get", "s", on=other, forwarded=True)


async def test_the_time_is_that_of_the_schedule(cluster: LocalCluster) -> None:
    due = datetime.now(UTC).replace(microsecond=123_456)
    (result,) = await put(cluster, one("s", f"at {due:%Y-%m-%dT%H:%M:%S.%fZ}"))
    assert result.schedule.next_us == int(due.timestamp()) * 1_000_000 + 123_456
    (record,) = await fired(cluster, 1)
    assert record.timestamp_us == result.schedule.next_us
