"""Replays: when a record is due, what is read ahead, and how the past is merged over partitions that have holes."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import comet
from comet.entities import PartitionInfo, TopicDetails
from comet.filters import parse
from comet.settings.topic import TopicConfig
from comet.types import AtOffset, AtTime, Earliest, Latest, Position
from comet_gateway.config import Limits
from comet_gateway.http.problems import Problem
from comet_gateway.push.events import Begun, Lost
from comet_gateway.push.parse_subscribe import Played
from comet_gateway.push.replay import Ended, Pace, Replay, Run
from comet_gateway.records.cursor import Cursor
from comet_gateway.records.record_json import Values
from tests.unit.gateway_world import batch_of

S = 1_000_000
TOPIC_ID = bytes(range(16))


# ---- pace


def test_records_are_due_at_their_recorded_distance_times_speed() -> None:
    pace = Pace(2.0, paused=False)
    assert pace.due(100 * S, now=5.0) == 0
    assert pace.due(104 * S, now=5.0) == 2.0
    assert pace.due(104 * S, now=6.5) == 0.5
    assert pace.due(103 * S, now=8.0) == 0  # it comes late
    assert Pace(0, paused=False).due(10**15, now=0.0) == 0


def test_a_pause_stands_and_goes_on_where_it_was() -> None:
    pace = Pace(1.0, paused=False)
    assert pace.due(100 * S, now=0.0) == 0
    pace.pause(now=3.0)
    assert pace.due(110 * S, now=50.0) == inf
    pace.resume(now=60.0)
    assert pace.due(110 * S, now=60.0) == 7.0


def test_steps_are_given_while_it_stands() -> None:
    pace = Pace(1.0, paused=True)
    assert pace.due(100 * S, now=0.0) == inf
    pace.step(2, now=0.0)
    for at in (100, 200):
        assert pace.due(at * S, now=1.0) == 0
        pace.given(at * S, now=1.0)
    assert pace.due(201 * S, now=1.0) == inf
    pace.resume(now=10.0)
    assert pace.due(201 * S, now=10.0) == 1.0


def test_a_change_of_speed_counts_from_now() -> None:
    pace = Pace(1.0, paused=False)
    assert pace.due(100 * S, now=0.0) == 0
    pace.set_speed(10.0, now=5.0)
    assert pace.due(115 * S, now=5.0) == 1.0
    pace.set_speed(0, now=5.0)
    assert pace.due(10**15, now=5.0) == 0
    pace.set_speed(1.0, now=5.0)
    assert pace.due(500 * S, now=6.0) == 0  # where it is at full speed nobody can say: it goes on with what comes
    assert pace.due(502 * S, now=6.0) == 2.0


# ---- a topic that is a list


class Log:
    """A Reader and an Admin over lists: per partition the timestamps, by offset."""

    def __init__(self, partitions: list[list[int]], *, starts: dict[int, int] | None = None) -> None:
        self.partitions = partitions
        self.starts = starts or {}
        self.damaged: dict[int, tuple[int, int]] = {}
        self.leaderless: set[int] = set()
        self.id = TOPIC_ID
        self.fetches = 0

    async def describe_topic(self, name: str) -> TopicDetails:
        parts = tuple(PartitionInfo(index, 1, 1, (1,), (1,)) for index in range(len(self.partitions)))
        return TopicDetails(name, TOPIC_ID, parts, TopicConfig(), 0)

    async def fetch(
        self, topic: str, partition: int, start: Position, *, epoch: int | None = None, records_max: int = 100,
        bytes_max: int = 0, wait_ms: int = 0, topic_id: bytes = b"", isolation: str = "committed",
        expired: bool = False, filter_hint: str = "",
    ) -> comet.Fetched:  # fmt: skip
        self.fetches += 1
        await asyncio.sleep(0)
        if topic_id not in (b"", self.id):
            raise comet.TopicNotFound("it was made again")
        if partition in self.leaderless:
            raise comet.Unavailable("nobody leads it")
        times, log_start = self.partitions[partition], self.starts.get(partition, 0)
        first = {Earliest: log_start, Latest: len(times)}.get(type(start), -1)
        if isinstance(start, AtOffset):
            first = start.offset
        elif isinstance(start, AtTime):
            after = [offset for offset, at in enumerate(times) if at >= start.timestamp_us and offset >= log_start]
            first = after[0] if after else len(times)
        if not log_start <= first <= len(times):
            details = {"log_start": str(log_start), "log_end": str(len(times))}
            raise comet.OffsetOutOfRange("gone", details=details)
        bad = self.damaged.get(partition, (0, 0))
        if bad[0] <= first < bad[1]:
            raise comet.DataLoss("damaged", details={"first": str(bad[0]), "end": str(bad[1])})
        end = min(first + min(records_max, 3), len(times), bad[0] if first < bad[0] else len(times))
        values = [b"%d" % offset for offset in range(first, end)]
        batches = [batch_of(partition, range(first, end), values, timestamps=times[first:end])] if end > first else []
        return comet.Fetched(batches, first, end, 1 if end else None, log_start, len(times))


class FilteringLog(Log):
    """A Log whose broker leaves out records that do not match."""

    async def fetch(self, *args: Any, filter_hint: str = "", **options: Any) -> comet.Fetched:
        found = await super().fetch(*args, **options)
        if not filter_hint:
            return found
        chosen = parse(filter_hint, now_us=0)
        times = [at for batch in found.batches for at in batch.timestamps]
        picked = [batch.pick(chosen.rows(batch)) for batch in found.batches]
        return found._replace(
            batches=[one for one in picked if one is not None], times=(min(times), max(times)) if times else None
        )


def played(start: Position = Earliest(), end: Position = Latest(), **members: Any) -> Played:  # noqa: B008 - frozen
    asked: dict[str, Any] = {"partitions": None, "cursor": None, "values": Values.AUTO, "speed": 0.0, "paused": False}
    return Played("t", start=start, end=end, **(asked | members))


async def everything(log: Log, asked: Played, limits: Limits | None = None) -> list[Any]:
    replay = await Replay.begin(asked, log, log, limits or Limits())  # type: ignore[arg-type]
    events: list[Any] = []
    while not events or not isinstance(events[-1], Ended):
        events.append(await replay.next())
    assert isinstance(events[0], Begun)
    return events


def positions(events: list[Any]) -> list[tuple[int, int]]:
    """Partition and offset of each record, in the order in which they were given."""
    return [(partition, item.offset) for event in events if isinstance(event, Run) for partition, item in event._items]


times = st.lists(st.lists(st.integers(0, 50), max_size=12), min_size=1, max_size=4)


@given(times, st.integers(0, 15), st.integers(0, 50), st.sampled_from([1, 150, 10_000]))
async def test_it_is_the_window_in_the_order_of_time(
    partitions: list[list[int]], begin: int, length: int, delivery_bytes: int
) -> None:
    """Held against a sort, where timestamps of a partition rise."""
    partitions, end = [sorted(one) for one in partitions], begin + length
    limits = Limits(delivery_bytes=delivery_bytes)
    events = await everything(Log(partitions), played(AtTime(begin), AtTime(end)), limits)
    expected = sorted(
        (at, index, offset)
        for index, one in enumerate(partitions)
        for offset, at in enumerate(one)
        if begin <= at < end
    )
    assert [(partitions[p][o], p, o) for p, o in positions(events)] == expected


@given(times)
async def test_a_partition_keeps_its_order_whatever_its_timestamps(partitions: list[list[int]]) -> None:
    given = positions(await everything(Log(partitions), played()))
    for index, one in enumerate(partitions):
        assert [offset for partition, offset in given if partition == index] == list(range(len(one)))


@given(times, st.data())
async def test_whoever_comes_back_with_a_cursor_gets_the_rest(partitions: list[list[int]], data: Any) -> None:
    log = Log(partitions)
    events = await everything(log, played(), Limits(delivery_bytes=data.draw(st.integers(1, 200))))
    at = data.draw(st.integers(0, len(events) - 1))
    had = positions(events[: at + 1])
    rest = positions(await everything(log, played(cursor=Cursor.parse(events[at].cursor))))
    assert sorted(had + rest) == sorted(positions(events))
    assert not set(had) & set(rest)


@given(times, st.data())
def test_each_record_of_an_event_stream_has_a_cursor_of_its_own(partitions: list[list[int]], data: Any) -> None:
    async def check() -> None:
        events = await everything(Log(partitions), played())
        runs = [event for event in events if isinstance(event, Run)]
        ids = [line[4:].decode() for run in runs for line in run.sse().split(b"\n") if line.startswith(b"id: ")]
        given = positions(events)
        assert len(ids) == len(given)
        if given:
            at = data.draw(st.integers(0, len(ids) - 1))
            rest = positions(await everything(Log(partitions), played(cursor=Cursor.parse(ids[at]))))
            assert sorted(given[: at + 1] + rest) == sorted(given)

    asyncio.run(check())


@given(times, st.sets(st.integers(0, 12), min_size=1), st.integers(1, 8), st.booleans(), st.data())
async def test_with_a_filter_it_resumes_behind_any_event_without_gap_or_repetition(
    partitions: list[list[int]], offsets: set[int], passed_max: int, knows: bool, data: Any
) -> None:
    chosen = parse(f"@offset in ({', '.join(map(str, offsets))})", now_us=0)
    asked: dict[str, Any] = {"filter": chosen}
    log = FilteringLog(partitions) if knows else Log(partitions)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("comet_gateway.push.replay.PASSED_MAX", passed_max)
        events = await everything(log, played(**asked))
        found = positions(events)
        everything_there = positions(await everything(Log(partitions), played()))
        assert sorted(found) == sorted(one for one in everything_there if one[1] in offsets)
        cursors: list[tuple[str, int]] = [(events[0].cursor, 0)]
        given = 0
        for event in events[1:]:
            if isinstance(event, Run):
                for line in event.sse().decode().split("\n\n")[:-1]:
                    given += "data:" in line
                    cursors.append((line.partition("\n")[0].removeprefix("id: "), given))
            cursors.append((event.cursor, given))
        cursor, given = data.draw(st.sampled_from(cursors))
        rest = positions(await everything(log, played(cursor=Cursor.parse(cursor), **asked)))
    assert sorted(found[:given] + rest) == sorted(found)


async def test_a_filter_moves_cursors_past_records_that_do_not_match() -> None:
    log = FilteringLog([list(range(30))])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("comet_gateway.push.replay.PASSED_MAX", 9)
        events = await everything(log, played(filter=parse("@offset = 2", now_us=0)))
    runs = [event for event in events if isinstance(event, Run)]
    assert positions(runs) == [(0, 2)]
    assert [run.sse() for run in runs if not run.count], "the client gets ids without records"
    assert Cursor.parse(events[-1].cursor).positions[0].offset == 30


async def test_a_filter_keeps_the_distance_of_records_that_match() -> None:
    log = Log([[0, 10 * S, 20 * S]])
    replay = await Replay.begin(played(filter=parse("@offset != 1", now_us=0), speed=1.0), log, log, Limits())  # type: ignore[arg-type]
    assert isinstance(await replay.next(), Begun)
    assert [item.offset for _, item in (await replay.next())._items] == [0]
    now = asyncio.get_running_loop().time()
    run, wait = replay._due(now)
    assert not run
    assert 15 < wait <= 20


async def test_the_span_of_a_window_is_checked_where_none_matches() -> None:
    log = Log([[number * S for number in range(12)]])
    asked = played(end=AtTime(10**9 * S), filter=parse("@offset = 99", now_us=0))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("comet_gateway.push.replay.PASSED_MAX", 3)
        with pytest.raises(Problem, match="window"):
            await Replay.begin(asked, log, log, Limits())  # type: ignore[arg-type]


async def test_what_is_gone_or_damaged_is_told_and_passed_over() -> None:
    log = Log([list(range(10)), list(range(10))])
    replay = await Replay.begin(played(), log, log, Limits())  # type: ignore[arg-type]
    log.starts[0] = 5
    log.damaged[1] = 4, 6
    events = [await replay.next()]
    while not isinstance(events[-1], Ended):
        events.append(await replay.next())
    lost = {(one.missing[0].partition, one.missing[0].first, one.missing[0].end, one.missing[0].reason)
            for one in events if isinstance(one, Lost)}  # fmt: skip
    assert lost == {(0, 3, 5, "deleted"), (1, 4, 6, "damaged")}
    assert sorted(positions(events)) == sorted(
        [(0, n) for n in (0, 1, 2, 5, 6, 7, 8, 9)] + [(1, n) for n in (0, 1, 2, 3, 6, 7, 8, 9)]
    )


async def test_a_log_that_was_cut_back_ends_the_replay_of_it() -> None:
    log = Log([list(range(10))])
    replay = await Replay.begin(played(), log, log, Limits())  # type: ignore[arg-type]
    del log.partitions[0][2:]
    events = [await replay.next()]
    while not isinstance(events[-1], Ended):
        events.append(await replay.next())
    (lost,) = [event for event in events if isinstance(event, Lost)]
    assert (lost.missing[0].end, lost.missing[0].reason) == (10, "truncated")


async def test_where_a_log_cannot_be_read_it_raises_what_the_brokers_say() -> None:
    log = Log([list(range(10)), list(range(10))])
    log.leaderless.add(1)
    with pytest.raises(comet.Unavailable):
        await Replay.begin(played(), log, log, Limits())  # type: ignore[arg-type]
    log.leaderless.clear()
    replay = await Replay.begin(played(), log, log, Limits())  # type: ignore[arg-type]
    assert positions([await replay.next(), await replay.next()])
    log.id = bytes(16)
    with pytest.raises(comet.TopicNotFound):
        await replay.next()


async def test_an_offset_that_is_not_there_yet_is_not_waited_for() -> None:
    log = Log([list(range(3)), list(range(6))])
    assert sorted(positions(await everything(log, played(end=AtOffset(5))))) == [
        (partition, offset) for partition, end in ((0, 3), (1, 5)) for offset in range(end)
    ]


async def test_only_so_much_is_read_ahead() -> None:
    log = Log([list(range(1_000))])
    replay = await Replay.begin(played(paused=True), log, log, Limits())  # type: ignore[arg-type]
    await replay.next()
    waiting = asyncio.create_task(replay.next())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done() and log.fetches <= 4
    replay.steer("step", 2, None)
    assert positions([await waiting]) == [(0, 0), (0, 1)]
    replay.close()


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (played(partitions=frozenset({7})), "PARTITION_NOT_FOUND"),
        (played(cursor=Cursor(bytes(16), {})), "TRUNCATED"),
        (played(end=AtTime(10**15)), "INVALID_ARGUMENT"),  # longer than what may be replayed at once
    ],
)
async def test_what_cannot_be_replayed_is_refused(asked: Played, code: str) -> None:
    log = Log([[0, 1], [1]])
    with pytest.raises(Problem) as refused:
        await Replay.begin(asked, log, log, Limits())  # type: ignore[arg-type]
    assert refused.value.code == code
