"""Delayed records in requests to the gateway: their members, and what becomes of them. On virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

import comet
from comet.errors import Forbidden
from comet_gateway.brokers.catalog import Catalog
from comet_gateway.http.problems import Problem
from comet_gateway.records.write import WriteResult, write, write_once
from comet_gateway.schemas.records import Delayed, decode_body, decode_lines
from comet_testing.simulation.loop import run
from tests.unit.sdk_fake import ADDRESS
from tests.unit.sdk_fake_schedules import NOW_US, FakeSchedules

Scenario = Callable[[FakeSchedules, comet.Producer], Awaitable[None]]


def scenario(function: Scenario) -> Callable[[], None]:
    """Makes a test of a coroutine that is given a fresh broker and a gateway's producer."""

    async def scene() -> None:
        broker = FakeSchedules({"quotes": 2})
        producer = comet.Producer(ADDRESS, connect=broker.connect, random=Random(1), clock_us=lambda: NOW_US)
        async with producer:
            await function(broker, producer)

    def test() -> None:
        run(lambda loop: scene())

    test.__doc__ = function.__doc__
    return test


async def answered(broker: FakeSchedules, producer: comet.Producer, *records: dict[str, Any]) -> list[dict[str, Any]]:
    async def topic(name: str) -> comet.TopicInfo:
        return broker.describe(name)

    columns = decode_body(json.dumps({"records": records}).encode(), 1_000)
    deadline = asyncio.get_running_loop().time() + 5
    catalog = cast(Catalog, SimpleNamespace(topic=topic))
    written: WriteResult = await write(producer, catalog, "quotes", columns, deadline)
    await written.wait(deadline)
    return [json.loads(text) for text in written.texts]


def problem_of(record: dict[str, Any]) -> Problem:
    with pytest.raises(Problem) as caught:
        decode_body(json.dumps({"value": 1, **record}).encode(), 10)
    return caught.value


def test_members_of_delayed_records_are_read() -> None:
    noon = datetime(2026, 12, 1, 12, tzinfo=UTC)
    records: list[dict[str, Any]] = [
        {"value": 1, "delay_ms": 1_500},
        {"value": 2, "delay_ms": "0", "schedule_id": "order:4711"},
        {"value": 3, "due": "2026-12-01T07:00:00-05:00"},
        {"value": 4, "due": "2026-12-01T07:00 America/New_York"},
        {"value": 5, "timestamp_us": 1},
    ]
    expected = [
        Delayed(timedelta(milliseconds=1_500), None, None), Delayed(timedelta(0), None, "order:4711"),
        Delayed(None, noon, None), Delayed(None, noon, None), None,
    ]  # fmt: skip
    assert decode_body(json.dumps({"records": records}).encode(), 10).delayed == expected
    lines = "".join(json.dumps(record) + "\n" for record in records)
    found = decode_lines(lines.encode(), len(records))
    assert found is not None
    assert found.delayed == expected
    assert decode_body(b'{"value": 1, "ttl_ms": 5}', 10).delayed is None


@pytest.mark.parametrize(
    ("record", "detail"),
    [
        ({"delay_ms": -1}, "delay_ms"), ({"delay_ms": "5m"}, "delay_ms"), ({"delay_ms": 10**12}, "a year"),
        ({"delay_ms": 1.5}, ""), ({"due": "tomorrow"}, "tomorrow"), ({"due": "2026-12-01T07:00:00"}, "no zone"),
        ({"delay_ms": 1, "due": "2026-12-01T07:00:00Z"}, "either delay or due"),
        ({"schedule_id": "a"}, "either delay or due"), ({"delay_ms": 1, "schedule_id": "a b"}, "id of a schedule"),
        ({"delay_ms": 1, "timestamp_us": 1}, "timestamp_us"), ({"delay_ms": None}, ""),
    ],
)  # fmt: skip
def test_members_that_contradict_are_refused(record: dict[str, Any], detail: str) -> None:
    problem = problem_of(record)
    assert problem.code == "VALIDATION"
    assert detail in problem.detail


def test_a_repeated_member_is_refused() -> None:
    with pytest.raises(Problem, match="duplicate member `delay_ms`"):
        decode_body(b'{"value": 1, "delay_ms": 1, "delay_ms": 2}', 10)


@scenario
async def test_delayed_records_and_others_are_written_in_one_request(
    broker: FakeSchedules, producer: comet.Producer
) -> None:
    many = [{"key": f"k{n}", "value": n} for n in range(20)]
    for others in ([many[0]], many):
        results = await answered(
            broker, producer, *others, {"text": "a", "delay_ms": 1_000, "schedule_id": f"a{len(others)}"}, *others,
        )  # fmt: skip
        assert results[len(others)] == {"schedule_id": f"a{len(others)}", "next_us": str(NOW_US + 1_000_000)}
        assert all("offset" in result for at, result in enumerate(results) if at != len(others))
    assert broker.values() == [b"a", b"a"]
    values = [value for partition in broker.topics["quotes"] for value in partition.values()]
    assert len(values) == 42
    assert b"a" not in values


@scenario
async def test_a_repeated_request_is_answered_as_such(broker: FakeSchedules, producer: comet.Producer) -> None:
    for duplicate in ({}, {"duplicate": True}):
        results = await answered(broker, producer, {"value": 1, "delay_ms": 0, "schedule_id": "a"})
        assert results == [{"schedule_id": "a", "next_us": str(NOW_US), **duplicate}]
    assert len(broker.stored) == 1


@scenario
async def test_a_refused_record_is_answered_by_its_problem(broker: FakeSchedules, producer: comet.Producer) -> None:
    broker.verdict = lambda put: Forbidden("no") if put.schedule.id == "b" else None
    results = await answered(
        broker, producer, *({"value": 1, "delay_ms": 5, "schedule_id": one} for one in "abc"),
        {"value": 1, "delay_ms": 5, "partition": 9},
    )  # fmt: skip
    assert [result.get("problem", {}).get("code") for result in results] == [
        None, "FORBIDDEN", None, "PARTITION_NOT_FOUND",
    ]  # fmt: skip


@scenario
async def test_an_answer_that_does_not_come_is_a_timeout(broker: FakeSchedules, producer: comet.Producer) -> None:
    await producer.publish("quotes", b"0")
    broker.frozen = True
    results = await answered(broker, producer, {"value": 1, "delay_ms": 5})
    assert results[0]["problem"]["code"] == "TIMEOUT"
    broker.frozen = False


@scenario
async def test_an_idempotency_key_is_refused(broker: FakeSchedules, producer: comet.Producer) -> None:
    columns = decode_body(b'{"value": 1, "delay_ms": 5}', 10)
    with pytest.raises(Problem, match="schedule_id"):
        await write_once(producer, "quotes", columns, "key", comet.Acks.LEADER, 1_000)
    assert not broker.requests
