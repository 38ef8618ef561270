"""Reading the log for subscribers of the gateway while nobody leads a partition: who waits how long, and what is left
when nobody waits any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, cast

import pytest

import comet
from comet.entities import PartitionInfo, TopicDetails
from comet.settings.topic import TopicConfig
from comet.types import AtOffset, Earliest, Position
from comet_gateway.brokers.backend import Backend
from comet_gateway.config import Limits
from comet_gateway.push.catchup import Log
from comet_gateway.push.events import Missing
from comet_gateway.push.latest_table import Encoding
from comet_gateway.push.latest_tables import Tables
from comet_gateway.push.ring import Ring
from comet_gateway.records.cursor import Cursor, CursorPosition
from comet_gateway.records.record_json import Values
from comet_testing.simulation import loop as sim
from tests.unit.gateway_world import TOPIC, TOPIC_ID, batch_of
from tests.waiting import until

LIMITS = Limits()
END = 10


def on_virtual_time(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Turns a scenario into a test: what takes long takes no time, and a busy machine changes nothing."""

    @wraps(scenario)
    def test(**given: Any) -> None:
        async def main(loop: sim.SimLoop) -> None:
            await scenario(**given)
            assert not loop.unhandled

        sim.run(main)

    return test


class Brokers:
    """A Reader and an Admin of a topic. `silent`: partitions without a leader; `refused`: what others answer."""

    def __init__(self, partitions: int = 2) -> None:
        self.partitions = partitions
        self.silent: set[int] = set()
        self.refused: dict[int, comet.CometError] = {}
        self.led = asyncio.Event()  # set where all are led again
        self.fetches: list[int] = []
        self.under_way = 0
        self.reader = self.admin = self

    async def offsets(self, topic: str, at: Position) -> dict[int, int]:
        assert at == Earliest()
        return dict.fromkeys(range(self.partitions), 0)

    async def describe_topic(self, name: str) -> TopicDetails:
        parts = tuple(PartitionInfo(index, 1, 1, (1,), (1,)) for index in range(self.partitions))
        return TopicDetails(name, TOPIC_ID, parts, TopicConfig(), 0)

    async def fetch(self, topic: str, partition: int, at: AtOffset, **asked: Any) -> comet.Fetched:
        start = at.offset
        assert asked["topic_id"] == TOPIC_ID
        self.fetches.append(partition)
        self.under_way += 1
        try:
            await asyncio.sleep(0)
            if partition in self.refused:
                raise self.refused[partition]
            if partition in self.silent:
                await self.led.wait()
            if start >= END:
                await asyncio.sleep(asked["wait_ms"] / 1000)
        finally:
            self.under_way -= 1
        batches = [batch_of(partition, range(start, END))] if start < END else []
        return comet.Fetched(batches, start, END, 1, 0, END)


def log_of(brokers: Brokers) -> Log:
    return Log(cast(Backend, brokers), LIMITS)


def ring_of(partitions: int = 2) -> Ring:
    return Ring(TOPIC, TOPIC_ID, {index: CursorPosition(END) for index in range(partitions)}, 1000)


def tables_of(brokers: Brokers, log: Log) -> Tables:
    return Tables(ring_of(brokers.partitions), log, LIMITS, lambda: True)


async def under_way(brokers: Brokers, count: int) -> None:
    assert await until(lambda: brokers.under_way == count, within_s=10, every_s=0)


# ---- tables


@pytest.mark.parametrize("since", [None, {0: CursorPosition(2), 1: CursorPosition(2)}], ids=["all", "since a cursor"])
@on_virtual_time
async def test_a_table_of_a_partition_that_nobody_leads_is_waited_for_as_a_topic_is(since: Any) -> None:
    brokers = Brokers()
    log = log_of(brokers)
    tables = tables_of(brokers, log)
    table = tables.use(Encoding(Values.AUTO))
    brokers.silent.add(1)
    async with asyncio.timeout(LIMITS.feed_start_s + 1):
        several = await asyncio.gather(*(tables.snapshot(table, since) for _ in range(20)), return_exceptions=True)
    assert {type(one) for one in several} == {comet.Unavailable}, "not one after the other, and not for ever"
    assert str(several[0]) == f"{TOPIC}/1 cannot be read now: no leader answers"
    assert brokers.fetches.count(1) == 1
    assert (brokers.under_way, log.waiting, table.filling) == (0, 0, None)
    brokers.led.set()
    snapshot = await tables.snapshot(table, since)
    assert sorted((kept.partition, kept.offset) for kept in snapshot.records) == [(1, END - 1)], "none has a key"
    tables.close()


@on_virtual_time
async def test_a_table_that_nobody_waits_for_any_more_is_not_filled() -> None:
    brokers = Brokers()
    log = log_of(brokers)
    tables = tables_of(brokers, log)
    table = tables.use(Encoding(Values.AUTO))
    brokers.silent.add(1)
    first, second = (asyncio.create_task(tables.snapshot(table)) for _ in range(2))
    await under_way(brokers, 1)
    first.cancel()
    await asyncio.wait([first])
    assert brokers.under_way == 1, "the other one still waits"
    second.cancel()
    await asyncio.wait([second])
    await under_way(brokers, 0)
    tables.leave(table)
    tables.close()
    await log.close()


@on_virtual_time
async def test_a_table_of_a_log_that_was_cut_back_is_filled_up_to_there() -> None:
    brokers = Brokers(1)
    ring = Ring(TOPIC, TOPIC_ID, {0: CursorPosition(END + 5)}, 1000)
    tables = Tables(ring, log_of(brokers), LIMITS, lambda: True)
    table = tables.use(Encoding(Values.AUTO))
    with pytest.raises(comet.Unavailable):
        await tables.snapshot(table)  # what is to be there is not
    tables.skipped(Missing(0, END, END + 5, "truncated"))
    assert [kept.offset for kept in (await tables.snapshot(table)).records] == [END - 1]
    tables.close()


# ---- where to begin


@on_virtual_time
async def test_a_start_in_what_is_damaged_is_behind_it_and_says_so() -> None:
    brokers = Brokers()
    brokers.refused[1] = comet.DataLoss("damaged", details={"first": "2", "end": "6"})
    beginning = await log_of(brokers).begin(ring_of(), comet.AtOffset(3), None)
    assert beginning.positions == {0: CursorPosition(3), 1: CursorPosition(6)}
    assert beginning.missing == (Missing(1, 3, 6, "damaged"),)


@on_virtual_time
async def test_who_comes_back_is_still_where_he_was_in_a_partition_that_this_gateway_does_not_know_yet() -> None:
    brokers = Brokers(3)
    log, ring = log_of(brokers), ring_of(2)
    positions = {0: CursorPosition(1, 1), 1: CursorPosition(2, 1), 2: CursorPosition(3, 1)}
    beginning = await log.resume(
        ring, Cursor(TOPIC_ID, positions | {9: CursorPosition(4, 1)}), None
    )  # and one that there is not
    assert (beginning.positions, beginning.recovered) == (positions, True)


# ---- flights


@on_virtual_time
async def test_what_nobody_waits_for_any_more_is_not_read() -> None:
    brokers = Brokers()
    brokers.refused[0] = comet.NotLeader("nobody leads it")
    brokers.silent.add(1)
    log, ring = log_of(brokers), ring_of()
    with pytest.raises(comet.Unavailable, match=f"{TOPIC}/0 cannot be read now"):
        await log.check(ring, 0, CursorPosition(0))
    await under_way(brokers, 0)
    waiting = [asyncio.create_task(log.read(ring, 1, CursorPosition(0))) for _ in range(3)]
    await under_way(brokers, 1)
    assert brokers.fetches.count(1) == 1, "they share it"
    for task in waiting[:2]:
        task.cancel()
    await asyncio.wait(waiting[:2])
    brokers.led.set()
    assert (await waiting[2]).following.offset == END
    brokers.led.clear()
    gone = asyncio.create_task(log.read(ring, 1, CursorPosition(0)))
    await under_way(brokers, 1)
    gone.cancel()
    await asyncio.wait([gone])
    again = asyncio.create_task(log.read(ring, 1, CursorPosition(0)))  # while the other read is ending
    await asyncio.sleep(0)
    brokers.led.set()
    assert (await again).following.offset == END
    assert not log._flights
    fetches = len(brokers.fetches)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(brokers.fetches) == fetches


@on_virtual_time
async def test_a_partition_that_is_not_there_is_asked_for_again_and_then_told_of() -> None:
    brokers = Brokers()
    brokers.refused[1] = comet.PartitionNotFound("there is none")
    log, ring = log_of(brokers), ring_of()
    waiting = asyncio.create_task(log.read(ring, 1, CursorPosition(0)))
    assert await until(lambda: len(brokers.fetches) >= 2, within_s=10, every_s=0.01)
    del brokers.refused[1]
    assert (await waiting).following.offset == END, "it was added just now"
    brokers.refused[1] = comet.PartitionNotFound("there is none")
    async with asyncio.timeout(10):  # and not after `feed_start_s`, as what nobody leads
        told = await asyncio.gather(*(log.read(ring, 1, CursorPosition(0)) for _ in range(2)), return_exceptions=True)
    assert [type(one) for one in told] == [comet.PartitionNotFound] * 2
    assert not log._flights


@on_virtual_time
async def test_whoever_waits_when_the_gateway_stops_is_told() -> None:
    brokers = Brokers()
    brokers.silent.add(0)
    log = log_of(brokers)
    waiting = asyncio.create_task(log.read(ring_of(), 0, CursorPosition(0)))
    await under_way(brokers, 1)
    await log.close()
    with pytest.raises(comet.Draining):
        await waiting
    assert brokers.under_way == 0


@on_virtual_time
async def test_where_one_partition_cannot_be_looked_at_the_others_are_not_either() -> None:
    brokers = Brokers(3)
    brokers.refused[0] = comet.DataLoss("all of it")
    brokers.silent |= {1, 2}
    log = log_of(brokers)
    with pytest.raises(comet.DataLoss):
        await log.begin(ring_of(3), comet.AtOffset(1), None)
    assert brokers.under_way == 0
