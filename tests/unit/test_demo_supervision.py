"""The launcher's supervision: notes under the table about processes that ended, and the ends that end the demo."""

from __future__ import annotations

import pytest

import comet
from comet.processes.crew import Crew
from comet_demo.launcher import RESTARTS, Supervision
from comet_demo.terminal.quote_table import SILENT_US, QuoteTable
from tests.unit.fake_child import FakeChild

WORDS = "comet_demo.feed: no luck"


class World:
    """A demo of fakes; `at` is the time of the last check."""

    def __init__(self) -> None:
        self.table, self.crew = QuoteTable(), Crew("comet-demo-")
        self.broker, self.feed, self.paper, self.spark = (
            FakeChild(name, WORDS) for name in ("broker", "feed", "paper", "spark")
        )
        self.supervision = Supervision(self.table, self.crew, self.broker, self.feed, [self.paper, self.spark], None)

    def check(self, now: float, now_us: int = 0) -> None:
        self.supervision.check(now, now_us)

    def end(self, child: FakeChild, now: float) -> None:
        child.code, child.started = 1, now
        self.check(now)


def test_an_ended_process_is_noted_and_restarted_until_it_is_given_up() -> None:
    world, now = World(), 100.0
    for pause_s in RESTARTS.pauses_s:
        world.end(world.paper, now)
        assert world.table.notes["paper"] == "paper ended, restarting: code 1, comet_demo.feed: no luck"
        now += pause_s
        world.check(now)
        assert world.paper.code is None
    world.end(world.paper, now)
    assert world.table.notes["paper"] == "paper keeps ending, not restarted: code 1, comet_demo.feed: no luck"
    world.check(now + 1_000)
    assert world.paper.starts == len(RESTARTS.pauses_s) and "paper" in world.table.notes
    assert not world.crew.keep


def test_a_process_that_runs_well_again_has_no_note() -> None:
    world = World()
    world.end(world.paper, 100.0)
    world.check(101.0)
    world.paper.started = 101.0
    world.check(101.0 + RESTARTS.pauses_s[-1])
    assert "paper" in world.table.notes
    world.check(101.1 + RESTARTS.pauses_s[-1])
    assert world.table.notes == {}


def test_after_a_failure_of_spark_its_log_is_named_and_kept() -> None:
    world = World()
    world.end(world.spark, 1.0)
    assert world.table.notes["spark"] == "spark ended, restarting: code 1, its log is spark.log"
    assert world.crew.keep


@pytest.mark.parametrize(
    ("name", "hint"),
    [("broker", "run it alone to see the error: comet up"), ("feed", "python -m comet_demo.feed --help")],
)
def test_without_a_broker_or_a_feed_the_demo_ends(name: str, hint: str) -> None:
    world = World()
    getattr(world, name).code = 1
    with pytest.raises(
        comet.Unavailable, match=rf"{name} \(pid 0\) ended with code 1: comet_demo.feed: no luck"
    ) as caught:
        world.check(1.0)
    assert hint in caught.value.details["hint"]


def test_a_file_that_is_read_to_its_end_ends_nothing() -> None:
    world = World()
    world.feed.code = 0
    world.table.heard_us = 1
    world.check(1.0, now_us=SILENT_US - 1)
    assert world.table.feed_line == ""
    world.check(2.0, now_us=SILENT_US + 1)
    assert world.table.feed_line == "no luck"
