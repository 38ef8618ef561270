"""What waits for the producer: a live market loses its oldest, a file waits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

import comet
from comet_demo.feed import AT_ONCE_MAX, SPAN_US, Backlog, Feed, arguments
from comet_demo.model import (
    ALERTS,
    BARS,
    FILLS,
    INSTRUMENTS,
    JOB,
    LATEST,
    LATEST_TTL_MS,
    LAYOUT,
    MARKET,
    RESULTS,
    STATS,
    TOPIC,
    TRADES,
    Trade,
)
from comet_demo.providers import Event
from comet_demo.providers.replay import ReplayProvider
from comet_demo.providers.synthetic import SyntheticProvider


def moment(first: int, count: int) -> list[Event]:
    return [Trade("A", 1.0, 1, "", number) for number in range(first, first + count)]


def test_what_is_live_loses_its_oldest_by_number() -> None:
    backlog = Backlog(live=True, events_max=25)
    for first in range(0, 50, 10):
        backlog.add(moment(first, 10), now=0.0)
        assert backlog.events <= 25 and not backlog.full
    assert [event.timestamp_us for event in backlog.take(now=0.0)] == list(range(30, 50))
    assert (backlog.dropped, backlog.events) == (30, 0)


def test_what_is_live_loses_its_oldest_by_age() -> None:
    backlog = Backlog(live=True, age_max_s=2.0)
    for second in range(5):
        backlog.add(moment(second, 1), now=float(second))
    assert backlog.dropped == 2
    assert [event.timestamp_us for event in backlog.take(now=5.0)] == [3, 4]
    assert backlog.dropped == 3


def test_one_moment_is_kept_however_large() -> None:
    backlog = Backlog(live=True, events_max=5)
    backlog.add(moment(0, 20), now=0.0)
    assert not backlog.full  # nobody waits for what is live
    assert (backlog.dropped, len(backlog.take(now=0.0))) == (0, 20)


def test_a_file_waits_and_loses_nothing() -> None:
    backlog = Backlog(live=False, events_max=25, age_max_s=2.0)
    for first in range(0, 40, 10):
        backlog.add(moment(first, 10), now=0.0)
    assert backlog.full
    assert len(backlog.take(now=100.0)) == 40
    assert backlog.dropped == 0
    assert backlog.events == 0


def test_as_much_is_taken_at_once_as_one_call_should_carry() -> None:
    backlog = Backlog(live=True)
    for first in range(4):
        backlog.add(moment(first, AT_ONCE_MAX // 2), now=0.0)
    assert len(backlog.take(now=0.0)) == AT_ONCE_MAX
    assert backlog.events == AT_ONCE_MAX


async def test_a_file_is_acknowledged_and_a_live_market_is_not(tmp_path: Path) -> None:
    path = tmp_path / "ticks.csv"
    path.write_text("time,symbol,price\n")
    replay, live = (
        Feed(ReplayProvider(path), "localhost:1"),
        Feed(SyntheticProvider(INSTRUMENTS, Random(1), rate=1), "localhost:1"),
    )
    assert (replay._producer._acks, live._producer._acks) == (comet.Acks.LEADER, comet.Acks.NONE)


class Taken:
    """Acknowledged when it is waited for, and whatever goes out together has gone."""

    def __init__(self, open_us: list[int], times: list[int]) -> None:
        self.open_us, self.times = open_us, times

    async def outcomes(self) -> list[object]:
        await asyncio.sleep(0)
        for time in self.times:
            self.open_us.remove(time)
        return []


class Topics:
    """In the place of a producer: what is written of each topic, and what was not acknowledged at the worst moment."""

    def __init__(self) -> None:
        self.written: dict[str, list[int]] = {"quotes": [], "trades": []}
        self.open_us: list[int] = []
        self.worst_us = 0

    async def send_many(self, topic: str, values: list[Event], **_: object) -> Taken:
        times = [event.timestamp_us for event in values]
        self.written[topic] += times
        self.open_us += times
        self.worst_us = max(self.worst_us, max(self.open_us) - min(self.open_us))
        return Taken(self.open_us, times)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("pace", [0, 10_000])
async def test_a_file_never_puts_one_topic_far_ahead_of_the_other(tmp_path: Path, pace: int) -> None:
    """Or a stream of both, whose watermark is a second, would take the other's events for late and leave them out."""
    path = tmp_path / "ticks.csv"
    rows = [f"{1709285400 + n // 10}.{n % 10},A,9,10,,\n{1709285400 + n // 10}.{n % 10}5,A,,,9.5,1" for n in range(900)]
    path.write_text("\n".join(["time,symbol,bid,ask,price,size", *rows]))
    one = Feed(ReplayProvider(path, pace=pace, keep_times=True), "localhost:1")
    topics = Topics()
    one._producer = topics  # type: ignore[assignment] # as much of one as a feed needs
    await one.run()
    assert [len(times) for times in topics.written.values()] == [900, 900]
    assert all(times == sorted(times) for times in topics.written.values())
    assert topics.worst_us < SPAN_US < 500_000
    assert not topics.open_us


def test_the_topics_are_laid_out_as_the_parts_of_the_demo_agreed() -> None:
    assert {TOPIC, TRADES, LATEST, FILLS, *RESULTS} == set(MARKET)
    assert {*BARS.values(), STATS, ALERTS, JOB} == set(RESULTS)
    for topic in MARKET:
        assert (LAYOUT[topic]["consistency"] == "available") == (topic in {TOPIC, TRADES})
    assert (LAYOUT[LATEST]["cleanup_policy"], LAYOUT[LATEST]["record_ttl_ms"]) == ("compact", LATEST_TTL_MS)
    assert not any("record_ttl_ms" in LAYOUT[topic] for topic in {*LAYOUT} - {LATEST}), (
        "candles and jobs need the records"
    )
    assert [LAYOUT[topic]["partitions"] for topic in (TOPIC, TRADES, BARS["1s"], STATS)] == [4, 4, 2, 1]


def test_what_the_command_takes_becomes_options() -> None:
    line = ["--symbols", "A, B,", "--columns", "time=when,price=paid", "--pace", "0", "--keep-times", "--file", "f.csv"]
    options = arguments().parse_args(line)
    assert (options.symbols, options.pace, options.keep_times, options.file) == (("A", "B"), 0.0, True, "f.csv")
    assert options.columns == {"time": "when", "price": "paid"}
    usual = arguments().parse_args([])
    assert (usual.rate, usual.day, usual.pace, usual.seed) == (1000.0, 900.0, 1.0, None)
