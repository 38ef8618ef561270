"""A consumer in a group, against a coordinator that gives, takes, forgets and moves. On virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from comet import limits
from comet.client.metadata import share
from comet.errors import (
    CometError,
    CoordinatorLoading,
    InvalidArgument,
    MemberFenced,
    MemberUnknown,
    NotCoordinator,
    NotLeader,
    OffsetOutOfRange,
    SerdeError,
    StaleGeneration,
)
from comet.groups.group_consumer import GroupConsumer
from comet.groups.missing_topics import waits_for
from comet.types import TopicPartition
from comet_testing.simulation.loop import run
from tests.unit.sdk_fake import ADDRESS
from tests.unit.sdk_fake_groups import GroupBroker
from tests.unit.test_sdk_consumer import fill, take

Scenario = Callable[[GroupBroker], Awaitable[None]]
ZERO, ONE = TopicPartition("quotes", 0), TopicPartition("quotes", 1)


def scenario(topics: dict[str, int] | None = None) -> Callable[[Scenario], Callable[[], None]]:
    def make(function: Scenario) -> Callable[[], None]:
        def test() -> None:
            run(lambda loop: function(GroupBroker(topics)))  # type: ignore[arg-type,return-value]

        test.__doc__ = function.__doc__
        return test

    return make


def member(broker: GroupBroker, *topics: str, **settings: Any) -> GroupConsumer[Any]:
    chosen = {"group": "engine", "connect": broker.connect, "random": Random(3), "start": "earliest", **settings}
    return GroupConsumer(ADDRESS, *(topics or ("quotes",)), **chosen)


async def quiet() -> None:
    """Long enough for whatever was under way, too short for the next automatic commit."""
    await asyncio.sleep(0.05)


@scenario({"quotes": 2, "trades": 1})
async def test_it_reads_what_it_is_given_and_what_was_handed_back_is_committed(broker: GroupBroker) -> None:
    for partition in range(2):
        fill(broker, [b"%d" % n for n in range(3)], partition)
    async with member(broker, "quotes", "trades") as c:
        assert c.assignment() == [ZERO, ONE, TopicPartition("trades", 0)]
        await take(c, 4)
        await asyncio.sleep(1)
        assert sum(offset for offset, _ in broker.committed.values()) == 3, "the one in hand is not done with"
        await take(c, 1)
        await asyncio.sleep(1)
        assert sum(offset for offset, _ in broker.committed.values()) == 4
        assert sum(c.committed().values()) == 4
        assert sum(c.positions().values()) == 5
    assert sum(offset for offset, _ in broker.committed.values()) == 5, "the block ended well, so it was"
    assert broker.left == ["member-1"]


@scenario()
async def test_what_was_in_hand_when_a_block_fails_comes_again(broker: GroupBroker) -> None:
    fill(broker, [b"%d" % n for n in range(5)])

    async def fail() -> None:
        async with member(broker) as c:
            await take(c, 3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert broker.committed["quotes", 0][0] == 2
    async with member(broker) as c:
        assert (await take(c, 1))[0].offset == 2


@scenario()
async def test_a_batch_counts_once_the_next_is_asked_for(broker: GroupBroker) -> None:
    fill(broker, [b"%d" % n for n in range(8)], per_batch=4)
    async with member(broker) as c:
        batch = await c.get_batch(timeout_s=5)
        assert batch is not None
        await asyncio.sleep(1)
        assert broker.committed["quotes", 0][0] == 0, "where it began, and no further"
        await c.get_batch(timeout_s=5)
        await asyncio.sleep(1)
        assert broker.committed["quotes", 0] == (4, 1), "with the epoch that the record before was written in"


@scenario({"quotes": 2})
async def test_a_partition_that_is_asked_for_is_finished_committed_and_released(broker: GroupBroker) -> None:
    fill(broker, [b"%d" % n for n in range(6)], 0, per_batch=6)
    revoked: list[list[TopicPartition]] = []
    async with member(broker, on_revoked=revoked.append) as c:
        assert [record.partition for record in await take(c, 2)] == [0, 0]
        broker.give("member-1", [ZERO, ONE], release=[ZERO])
        await quiet()
        assert broker.released == [], "a record of it is in hand"
        fill(broker, [b"other"], 1)
        assert [record.partition for record in await take(c, 1)] == [1], "nothing more of it is handed out"
        await quiet()
        assert broker.released == [ZERO]
        assert revoked == [[ZERO]]
        assert broker.committed[ZERO][0] == 2
        broker.give("member-1", [ONE])
        await quiet()
        assert c.assignment() == [ONE]
        (stream,) = broker.streams
        assert list(stream.cursors) == [broker.topics["quotes"][1].handle]


@scenario({"quotes": 2})
async def test_what_nobody_has_in_hand_is_released_at_once_and_the_rest_flows_on(broker: GroupBroker) -> None:
    fill(broker, [b"%d" % n for n in range(3)], 0)
    async with member(broker) as c:
        await take(c, 1)
        broker.give("member-1", [ZERO, ONE], release=[ONE])
        await quiet()
        assert broker.released == [ONE]
        assert [record.offset for record in await take(c, 2)] == [1, 2]


@scenario({"quotes": 2})
async def test_what_is_given_and_asked_for_in_one_word_is_released_too(broker: GroupBroker) -> None:
    """As when members come so fast that the plan has changed before the first of them has heard of it."""
    fill(broker, [b"0"], 0)
    async with member(broker) as c:
        broker.give("member-1", [], release=[])
        await quiet()
        broker.give("member-1", [ZERO, ONE], release=[ONE])
        await quiet()
        assert broker.released == [ONE]
        assert [record.partition for record in await take(c, 1)] == [0]


@scenario({"quotes": 2})
async def test_what_is_lost_is_handed_out_no_more_and_not_committed(broker: GroupBroker) -> None:
    fill(broker, [b"%d" % n for n in range(6)], 0, per_batch=3)
    lost: list[list[TopicPartition]] = []
    async with member(broker, on_lost=lost.append) as c:
        await take(c, 2)
        await quiet()
        broker.give("member-1", [ONE])
        await quiet()
        assert lost == [[ZERO]]
        assert await c.get(timeout_s=2) is None
        assert broker.committed[ZERO][0] == 0
        with pytest.raises(StaleGeneration):
            await c.commit({ZERO: 2})


@scenario()
async def test_a_partition_that_was_lost_and_won_again_begins_at_what_is_committed(broker: GroupBroker) -> None:
    fill(broker, [b"%d" % n for n in range(6)])
    async with member(broker) as c:
        await take(c, 3)
        broker.owners.clear()
        broker.committed[ZERO] = (5, 1)
        broker.give("member-1", [ZERO])
        await quiet()
        assert [record.offset for record in await take(c, 1)] == [5]


@scenario()
async def test_a_member_that_is_unknown_joins_as_a_new_one_and_goes_on(broker: GroupBroker) -> None:
    fill(broker, [b"%d" % n for n in range(4)])
    async with member(broker) as c:
        await take(c, 2)
        broker.evict("member-1", MemberUnknown("its session has ended"))
        await asyncio.sleep(1)
        assert c.member == "member-2"
        assert [record.offset for record in await take(c, 2)] == [0, 1], "nothing of it was committed"


@scenario()
async def test_a_member_that_is_fenced_ends_with_that(broker: GroupBroker) -> None:
    async with member(broker, instance="a") as c:
        broker.evict("member-1", MemberFenced("another has its place"))
        with pytest.raises(MemberFenced):
            await c.get(timeout_s=5)
        assert len(broker.joins) == 1
    assert broker.left == []


@scenario()
async def test_a_coordinator_that_moves_finds_its_member_again_still_reading(broker: GroupBroker) -> None:
    fill(broker, [b"%d" % n for n in range(6)], per_batch=6)
    async with member(broker) as c:
        await take(c, 2)
        broker.evict("member-1", NotCoordinator("it is another now"))
        assert [record.offset for record in await take(c, 2)] == [2, 3]
        await quiet()
        assert [join.member for join in broker.joins] == ["", "member-1"]
        assert broker.joins[-1].owned[0].partitions == [0]
        broker.cut()
        await asyncio.sleep(1)
        assert [join.member for join in broker.joins] == ["", "member-1", "member-1"]
        assert [record.offset for record in await take(c, 2)] == [4, 5]
    assert broker.committed[ZERO][0] == 6


@scenario()
async def test_heartbeats_tell_both_sides_who_is_there(broker: GroupBroker) -> None:
    async with member(broker) as c:
        await asyncio.sleep(10)
        assert broker.heard["member-1"] >= 9
        del broker.members["member-1"]
        await asyncio.sleep(3)
        assert c.member == "member-2", "a heartbeat was refused"


@scenario()
async def test_loading_is_waited_for_and_never_taken_for_nothing(broker: GroupBroker) -> None:
    fill(broker, [b"%d" % n for n in range(4)])
    broker.committed[ZERO] = (3, None)
    loading = iter([CoordinatorLoading("soon")] * 5)
    broker.refuse = lambda kind, frame: next(loading, None)
    async with member(broker) as c:
        assert (await take(c, 1))[0].offset == 3
    loading = iter([CoordinatorLoading("soon")] * 5)


@scenario({"quotes": 1})
async def test_where_the_group_reads_a_topic_a_new_partition_is_read_from_its_beginning(broker: GroupBroker) -> None:
    fill(broker, [b"old"])
    async with member(broker, start="latest") as c:
        await quiet()
        assert broker.committed[ZERO][0] == 1, "where it begins is the group's committed offset from then on"
        broker.grow("quotes", 2)
        fill(broker, [b"new"], 1)
        broker.give("member-1", [ZERO, ONE])
        assert [record.value for record in await take(c, 1)] == [b"new"]
    assert broker.committed == {ZERO: (1, None), ONE: (1, 1)}


@scenario()
async def test_what_is_committed_and_deleted_is_raised_with_what_was_lost(broker: GroupBroker) -> None:
    fill(broker, [b"%d" % n for n in range(6)])
    broker.committed[ZERO] = (1, None)
    broker.topics["quotes"][0].start = 4
    async with member(broker) as c:
        with pytest.raises(OffsetOutOfRange) as caught:
            await c.get(timeout_s=5)
        assert caught.value.details["log_start"] == "4"
        await c.seek("earliest", partition=ZERO)
        assert (await take(c, 1))[0].offset == 4


@scenario()
async def test_commits_gather_while_one_is_under_way(broker: GroupBroker) -> None:
    fill(broker, [b"%d" % n for n in range(100)], per_batch=100)
    async with member(broker, auto_commit=False) as c:
        records = await take(c, 100)
        before = len(broker.commits)
        await asyncio.gather(*(c.commit(record) for record in records))
        assert len(broker.commits) - before <= 2
        assert broker.committed[ZERO][0] == 100
        await c.commit({ZERO: 50})
        assert c.committed() == {ZERO: 100}, "never back"


@scenario()
async def test_the_beginning_is_committed_and_nothing_behind_it_also_when_that_takes_long(broker: GroupBroker) -> None:
    fill(broker, [b"%d" % n for n in range(5)])
    loading = True
    broker.refuse = lambda kind, frame: CoordinatorLoading("soon") if loading and kind == "commit" else None
    async with member(broker, auto_commit=False) as c:
        await take(c, 3)
        await asyncio.sleep(2)
        broker.cut()
        await asyncio.sleep(20)
        loading = False
        await asyncio.sleep(5)
        assert broker.committed[ZERO][0] == 0
        await c.rewind()
        assert (await take(c, 1))[0].offset == 0
    assert broker.committed[ZERO][0] == 0


@scenario()
async def test_without_automatic_commits_only_the_beginning_is_committed(broker: GroupBroker) -> None:
    fill(broker, [b"%d" % n for n in range(5)])
    async with member(broker, auto_commit=False) as c:
        await take(c, 3)
        await asyncio.sleep(5)
        assert broker.committed[ZERO][0] == 0
        await c.commit()
        assert broker.committed[ZERO][0] == 3
        await take(c, 1)
        await c.rewind()
        assert [record.offset for record in await take(c, 2)] == [3, 4]
    assert broker.committed[ZERO][0] == 3


@scenario({"quotes": 2})
async def test_a_callback_is_waited_for_before_anything_is_given_up(broker: GroupBroker) -> None:
    fill(broker, [b"%d" % n for n in range(5)])
    finished = asyncio.Event()

    async def finish(tps: list[TopicPartition]) -> None:
        await finished.wait()
        await c.commit({ZERO: 3})

    async with member(broker, auto_commit=False, on_revoked=finish) as c:
        await take(c, 4)
        broker.give("member-1", [ZERO, ONE], release=[ZERO])
        await asyncio.sleep(5)
        assert broker.released == []
        finished.set()
        await quiet()
        assert broker.released == [ZERO]
        assert broker.committed[ZERO][0] == 3


@scenario()
async def test_a_value_that_cannot_be_decoded_is_not_done_with_until_the_next_is_asked_for(broker: GroupBroker) -> None:
    fill(broker, [b"1", b"x", b"3"], per_batch=3)

    async def fail() -> None:
        async with member(broker, type=int) as c:
            await take(c, 3)

    with pytest.raises(SerdeError):
        await fail()
    assert broker.committed[ZERO][0] == 1
    async with member(broker, type=int) as c:
        with pytest.raises(SerdeError):
            await c.get(timeout_s=5)
        assert [record.value for record in await take(c, 1)] == [3]
        await asyncio.sleep(1)
        assert broker.committed[ZERO][0] == 2


@scenario({"quotes": 2})
async def test_a_mark_that_is_refused_for_now_is_committed_later_and_the_others_at_once(broker: GroupBroker) -> None:
    fill(broker, [b"1"], 0)
    fill(broker, [b"1"], 1)
    async with member(broker, auto_commit=False) as c:
        await take(c, 2)
        await quiet()
        away = iter([NotLeader("it cannot say how far the partition reaches")] * 5)
        broker.refuse_offset = lambda tp: next(away, None) if tp == ZERO else None
        both = asyncio.create_task(c.commit({ZERO: 1, ONE: 1}))
        await asyncio.sleep(0.01)
        assert broker.committed[ONE][0] == 1
        await c.commit({ONE: 1})
        assert not both.done()
        await both
        assert broker.committed[ZERO][0] == 1
        broker.refuse_offset = lambda tp: OffsetOutOfRange("beyond the end")
        with pytest.raises(OffsetOutOfRange):
            await c.commit({ZERO: 9})


@scenario()
async def test_a_commit_that_nobody_answers_is_never_taken_for_done(broker: GroupBroker) -> None:
    fill(broker, [b"1", b"2"])
    c = member(broker, auto_commit=False)
    await c.start()
    await take(c, 1)
    await quiet()
    broker.frozen = True
    commit = asyncio.create_task(c.commit())
    await quiet()
    await c.close()
    with pytest.raises(CometError):
        await commit


@scenario()
async def test_an_attempt_to_join_that_ends_with_the_consumer_leaves_no_error_that_nobody_sees(
    broker: GroupBroker,
) -> None:
    """Where its attempt to find the coordinator and itself are cancelled in one turn, it ends with Closed."""
    async with member(broker) as c:
        loop = asyncio.get_running_loop()
        finding = loop.create_task(asyncio.sleep(1))
        joining = loop.create_task(share(finding))
        joining.add_done_callback(c._member._join_ended)
        await asyncio.sleep(0)
        finding.cancel()
        joining.cancel()
        c._member.state.left()
        await asyncio.wait([joining])
        assert not joining.cancelled() and not joining._log_traceback


@scenario({"quotes": 2})
async def test_each_partition_is_said_to_be_given_up_once_also_when_it_closes_meanwhile(broker: GroupBroker) -> None:
    fill(broker, [b"1", b"2"])
    revoked: list[TopicPartition] = []
    async with member(broker, on_revoked=revoked.extend) as c:
        await take(c, 1)
        broker.give("member-1", [ZERO, ONE], release=[ZERO, ONE])
        await quiet()
        assert revoked == [ONE], "a record of the other is in hand"
    assert revoked == [ONE, ZERO]
    assert broker.committed[ZERO][0] == 1


@scenario({"quotes": 2})
async def test_whoever_commits_each_batch_can_commit_the_one_in_hand(broker: GroupBroker) -> None:
    fill(broker, [b"1", b"2", b"3"], per_batch=3)
    async with member(broker, auto_commit=False) as c:
        batch = await c.get_batch(timeout_s=5)
        assert batch is not None
        broker.give("member-1", [ZERO, ONE], release=[ZERO])
        await asyncio.sleep(5)
        assert broker.released == []
        await c.commit(batch)
        assert await c.get_batch(timeout_s=1) is None
        assert broker.released == [ZERO]
        assert broker.committed[ZERO][0] == 3


@pytest.mark.parametrize(
    "settings",
    [{"group": "no/name"}, {"session_timeout_ms": 1}, {"pattern": "x" * 600}, {"isolation": "none"}],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        member(GroupBroker(), **settings)


def test_something_has_to_be_read() -> None:
    with pytest.raises(InvalidArgument):
        GroupConsumer(ADDRESS, group="engine")


@scenario()
async def test_without_automatic_commits_whoever_leaves_at_once_commits_nothing_it_has_not(broker: GroupBroker) -> None:
    """The answer to its first commit, where it began, has not come yet."""
    fill(broker, [b"%d" % n for n in range(8)], per_batch=4)
    async with member(broker, auto_commit=False) as c:
        await c.get_batch(timeout_s=5)
        assert c.committed() == {}, "the point of this test"
    assert broker.committed["quotes", 0][0] == 0


@scenario({"quotes": 1})
async def test_a_missing_topic_is_reported_at_once_and_again_until_it_exists(broker: GroupBroker) -> None:
    with reports() as said:
        async with member(broker, "quotes", "orders"):
            await quiet()
            assert said == ["comet: group engine waits: " + waits_for(["orders"])]
            await asyncio.sleep(limits.MISSING_TOPIC_REPORT_MS / 1000)
            assert len(said) == 2
            broker.create("orders", 1)
            await asyncio.sleep(3 * limits.MISSING_TOPIC_REPORT_MS / 1000)
            assert len(said) == 2
        async with member(broker, "orders"), member(broker, "orders"):
            await quiet()
        assert len(said) == 2, "a member without partitions has nothing to report while its topic exists"
        async with member(broker, "refunds", "returns"):
            await quiet()
        assert said[2:] == ["comet: group engine waits: " + waits_for(["refunds", "returns"])]
        await asyncio.sleep(3 * limits.MISSING_TOPIC_REPORT_MS / 1000)
        assert len(said) == 3, "a closed member reports nothing"


@contextmanager
def reports() -> Iterator[list[str]]:
    """The warnings that are logged meanwhile."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    listener, log = Listener(logging.WARNING), logging.getLogger("comet")
    log.addHandler(listener)
    try:
        yield said
    finally:
        log.removeHandler(listener)
