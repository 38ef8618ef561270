"""The page of a topic's records where not every partition can be read: what it shows, and how long it waits.

On virtual time (comet_testing.simulation.loop).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

import comet
from comet.types import AtOffset, AtTime, Latest, Position
from comet_gateway.config import Limits
from comet_gateway.dashboard import topic_records
from comet_gateway.dashboard.build_facts import topic_with_leaders
from comet_gateway.dashboard.channel_session import ChannelSession
from comet_gateway.dashboard.sources import Sources
from comet_gateway.search.slots import Slots
from comet_testing.simulation import loop as sim
from comet_web.facts import Cluster, TopicDetail, TopicRecords
from comet_web.page_request import PageRequest
from tests.unit.gateway_world import TOPIC, TOPIC_ID, batch_of

RECORDS = 3  # in each partition
INFO = comet.TopicInfo(TOPIC, TOPIC_ID, (), comet.TopicConfig(), 0)
DETAIL = TopicDetail(Cluster(time_us=0), topic_with_leaders(INFO).topic, (), ())


class Reader:
    """As comet.Reader; of a partition that is silent it waits for ever."""

    def __init__(self, silent: Sequence[int]) -> None:
        self.silent = silent

    async def fetch(self, topic: str, partition: int, start: Position, **asked: Any) -> comet.Fetched:
        if partition in self.silent:
            await asyncio.get_running_loop().create_future()
        first = start.offset if isinstance(start, AtOffset) else RECORDS if isinstance(start, Latest) else 0
        batches = [batch_of(partition, range(first, RECORDS))] if first < RECORDS else []
        return comet.Fetched(batches, first, RECORDS, 1, 0, RECORDS)


def sources_of(leaders: Sequence[int], silent: Sequence[int]) -> Sources:
    partitions = tuple(
        comet.PartitionInfo(index, leader or None, 1, (1, 2), (1, 2)) for index, leader in enumerate(leaders)
    )

    async def topic(name: str) -> comet.TopicInfo:
        return replace(INFO, partitions=partitions)

    async def with_topic(name: str, use: Any) -> Any:
        return await use(await topic(name))

    backend = SimpleNamespace(catalog=SimpleNamespace(with_topic=with_topic), reader=Reader(silent))
    found = SimpleNamespace(backend=backend, config=SimpleNamespace(limits=Limits()))
    slots = Slots(cast(Sources, found))
    found.part = lambda kind: slots
    return cast(Sources, found)


def shown(leaders: Sequence[int], silent: Sequence[int], **query: str) -> tuple[TopicRecords, float]:
    """The first content, and how long it took."""

    async def main(loop: sim.SimLoop) -> tuple[TopicRecords, float]:
        asked = PageRequest(path="/", params={"topic": TOPIC}, query=query, open=True, first=True)
        return await topic_records.load(sources_of(leaders, silent), asked, DETAIL), loop.time()

    return sim.run(main)


def test_a_partition_that_nobody_leads_hides_no_other() -> None:
    for query in ({}, {"start": "beginning"}, {"start": "time", "time": "-15m"}):
        found, _ = shown([1, 0, 2], [1], **query)
        assert {record.partition for record in found.records} == {0, 2}
        assert len(found.records) == 2 * RECORDS
        assert found.reason == "end"
        assert found.problem == "Shown without partition 1, which has no leader."
    found, _ = shown([0, 0, 2], [0, 1])
    assert found.problem == "Shown without 2 partitions (0, 1), which have no leader."
    found, _ = shown([1, 1, 2], [])
    assert (len(found.records), found.problem) == (3 * RECORDS, "")


def test_the_page_waits_for_brokers_that_are_silent_and_not_for_ever() -> None:
    for leaders, query in (([1, 2], {}), ([1, 0], {"partition": "1"}), ([0, 0], {})):
        found, took = shown(leaders, [0, 1], **query)
        assert not found.records
        assert found.problem.startswith(f"No answer within {topic_records.WAIT_S:.0f} s.")
        assert took == topic_records.WAIT_S


@pytest.mark.parametrize(
    "text",
    ["2026-01-31T12:00", "2026-01-31 12:00", "2026-01-31T12:00Z", "2026-01-31T07:00-05:00", "2026-01-31T14:00+02:00"],
)
def test_times_on_the_page_are_utc_wherever_the_gateway_is(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert topic_records.selected({"start": "time", "time": text}).start == AtTime(1_769_860_800_000_000)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_search_goes_on_without_a_partition_that_nobody_leads_and_says_so() -> None:
    async def main(loop: sim.SimLoop) -> dict[str, Any]:
        session = SimpleNamespace(
            sources=sources_of([1, 0, 2], [1]), principal=SimpleNamespace(name="me"), received=list
        )
        async for event in topic_records.search(
            cast(ChannelSession, session), {"topic": TOPIC, "key": "", "value": "/"}
        ):
            found = event
        return dict(found)

    end = sim.run(main)
    assert end["end"]["reason"] == "end"
    assert end["matched"] == 2 * RECORDS
    assert end["text"].endswith(" · without partition 1, which has no leader")
