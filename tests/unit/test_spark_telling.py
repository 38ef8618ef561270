"""What a group is told of a stream: the newest, one question at a time, and nothing twice."""

from __future__ import annotations

import asyncio
import logging

import pytest

from comet.errors import CometError, GroupNotEmpty, Timeout, Unavailable
from comet.spark.group_progress import ProgressReporter
from comet.spark.planning import Marks, OffsetAndEpoch
from comet.types import TopicPartition
from tests.unit.replica_world import settle


def at(offset: int) -> Marks:
    return {TopicPartition("quotes", 0): OffsetAndEpoch(offset, 1)}


class Coordinator:
    """Answers when it is let go."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()
        self.asked: list[Marks] = []
        self.problem: CometError | None = None

    async def tell(self, marks: Marks) -> CometError | None:
        self.asked.append(marks)
        await self.free.wait()
        return self.problem


async def test_a_coordinator_that_is_away_holds_nobody_back_and_hears_the_newest() -> None:
    coordinator = Coordinator()
    coordinator.free.clear()
    reporter = ProgressReporter("g", coordinator.tell)
    for offset in range(1, 6):
        reporter.newest(at(offset))
        await settle()
    assert coordinator.asked == [at(1)], "one question at a time"
    coordinator.free.set()
    await reporter.reported()
    assert coordinator.asked == [at(1), at(5)]
    reporter.newest(at(5))
    await settle()
    assert coordinator.asked == [at(1), at(5)], "it knows"


async def test_a_refusal_is_told_once_and_not_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    coordinator = Coordinator()
    coordinator.problem = GroupNotEmpty("it has members")
    reporter = ProgressReporter("g", coordinator.tell)
    with caplog.at_level(logging.WARNING):
        for offset in (1, 1, 1, 2, 2):
            reporter.newest(at(offset))
            await reporter.reported()
        assert coordinator.asked == [at(1), at(2)]
        assert len(caplog.records) == 1
        coordinator.problem = Timeout("nobody answers")
        reporter.newest(at(3))
        await reporter.reported()
        assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["it has members", "nobody answers"]


@pytest.mark.parametrize("problem", [Timeout("nobody answers"), Unavailable("away")])
async def test_what_could_not_be_told_is_told_later(problem: CometError) -> None:
    coordinator = Coordinator()
    coordinator.problem = problem
    reporter = ProgressReporter("g", coordinator.tell)
    reporter.newest(at(1))
    await reporter.reported()
    coordinator.problem = None
    reporter.newest(at(1))
    await reporter.reported()
    assert coordinator.asked == [at(1), at(1)]
