"""A replica that copies a compacted log: from where, and what its leader leaves as it is meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from comet import records
from comet.records import CompactionPlan
from comet_broker.partitions import compaction
from comet_broker.partitions.leader_eligibility import LeaderEligibility
from comet_broker.replication import follower
from comet_broker.replication.follower import Replicator
from tests.unit.replica_world import STATE, ReplicaWorld, replace_state, settle
from tests.unit.storage_world import SMALL_SEGMENTS, stored
from tests.unit.test_replication import (
    HELLO,
    answers,
    behind_a_leader,
    follow,
    following,
    session_on,
    tell,
)

ALONE = replace(SMALL_SEGMENTS, min_insync=1)
AHEAD: dict[str, Any] = {"clean_end": 5, "log_end": 8, "high_watermark": 8}  # of a log that is compacted up to 5


async def close(world: ReplicaWorld, replicator: Replicator | None = None) -> None:
    if replicator is not None:
        await replicator.close()
    await world.tasks.close()


async def test_a_replica_that_ends_below_what_its_leader_has_compacted_fetches_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower, "REFOLLOW_S", 0.0)
    world = ReplicaWorld()
    replicator, (leader,) = await behind_a_leader(world)
    partition = world.partition
    partition.follower.learn(2, 3)
    await leader.say(following(3, **AHEAD))
    await settle()
    assert [frame.follow.log_end for frame in leader.asked()] == [3, 0]
    assert world.told_unfit == 1, "it must not lead, nor count, before its log goes"
    await leader.say(following(0, **AHEAD))
    await settle()
    assert (partition.log.log_end, partition.log.lost, partition.follower.conflict) == (0, (), None)
    for offset in range(5):
        assert not partition.whole, "half a copy must not lead while there is a whole one"
        await leader.deliver(world, offset, high_watermark=8)
    assert partition.whole
    await close(world, replicator)


async def test_a_replica_that_ends_there_or_is_empty_is_copied_on() -> None:
    world = ReplicaWorld()
    replicator, (leader,) = await behind_a_leader(world)
    await leader.say(following(3, clean_end=3, log_end=8, high_watermark=3))
    assert (leader.ends_told(), world.told_unfit, world.partition.log.log_end) == ([3], 0, 3)
    await close(world, replicator)


@pytest.mark.parametrize("members", [{"in_sync": {1: 10, 2: 20}}, {"in_sync": {2: 20}, "eligible": {1: 9}}])
async def test_a_log_that_others_count_on_is_kept_until_they_do_not(members: dict[str, Any]) -> None:
    world = ReplicaWorld()
    replicator, streams = await behind_a_leader(world)
    partition, leader = world.partition, streams[0]
    partition.apply(await world.put(replace_state(STATE, leader=2, epoch=2, **members)))
    await leader.say(following(3, **AHEAD))
    await settle()
    assert (partition.log.log_end, len(leader.asked()), world.told_unfit) == (3, 1, 1)
    assert leader.told[-1].WhichOneof("frame") == "unfollow"
    replicator.mend(partition)
    await settle()
    assert len(leader.asked()) == 1
    partition.apply(await world.put(replace_state(STATE, leader=2, epoch=2, in_sync={2: 20})))
    replicator.mend(partition)
    await settle()
    await settle()
    replicator.mend(partition)
    await settle()
    assert [stream.asked()[0].follow.log_end for stream in streams] == [3, 0]
    await close(world, replicator)


async def test_a_copy_that_was_interrupted_goes_on_if_its_leader_has_changed_nothing() -> None:
    world = ReplicaWorld()
    replicator, (leader,) = await behind_a_leader(world)
    one = world.partition.follower
    await leader.say(following(0, rewrites=4, **AHEAD))
    await settle()
    for offset in range(3):
        await leader.deliver(world, offset, high_watermark=0)
    assert world.partition.log.log_end == 3
    assert not one.outdated(3, 2, 5, 4)
    assert one.outdated(3, 2, 5, 5), "segments were rewritten since"
    assert one.outdated(3, 3, 5, 4), "another leader has another form"
    one.begin(2, 5, 4)
    assert not one.outdated(2, 2, 5, 4), "all of it is still from that copy"
    one.begin(3, 3, 1)
    assert one.outdated(2, 3, 5, 1), "these records are not from that leader"
    await close(world, replicator)


async def test_a_batch_of_which_the_first_offsets_are_here_is_taken_from_there_on() -> None:
    """The leader has joined batches, or the log was truncated to the end of one that this replica had joined."""
    world = ReplicaWorld()
    replicator, (leader,) = await behind_a_leader(world)
    await leader.say(following(3, log_end=8))
    parts = records.encode([b"a", b"b", b"c"], keys=[b"k"] * 3, timestamps=1, offset_deltas=[0, 1, 4], span=6)
    world.partition.follower.replicate(memoryview(records.stamped(parts, 1, 1, 2)), 2, 0)
    assert world.log.log_end == 7
    header, data = stored(world.log)[-1]
    assert (header.base_offset, header.next_offset) == (3, 7)
    assert list(records.decode(data).offsets) == [5]
    await close(world, replicator)


def test_a_mark_of_damage_stays_until_the_copy_is_whole() -> None:
    class Copy:
        fault, whole = "", False

        class log:  # noqa: N801 - as the attribute is called
            failed, lost = None, ()

    tasks: list[str] = []
    eligibility: Any = LeaderEligibility.__new__(LeaderEligibility)
    copy: Any = Copy()
    copy.tp = ("t", 0)
    eligibility._me = 1
    eligibility._view = type("View", (), {"state": type("State", (), {"defective": {(1, "t", 0): None}})})
    eligibility._tasks = type("Tasks", (), {"keep": lambda _, run, name: tasks.append(name)})()
    eligibility.requalify(copy)
    assert not tasks
    copy.whole = True
    eligibility.requalify(copy)
    assert len(tasks) == 1


# ---- the leader


async def compacted_leader() -> ReplicaWorld:
    """It leads, alone in sync; a plan up to offset 4 is due."""
    world = ReplicaWorld(ALONE)
    await world.lead(in_sync={1: 10})
    world.produce(4)
    world.partition.append_control(records.encode_plan(CompactionPlan(4, 1)))
    await settle()
    return world


async def check(world: ReplicaWorld) -> int:
    for _ in range(4):  # a segment is rolled and synced first
        world.partition.housekeeping.compaction.check()
        await settle()
    return world.log.compaction.rounds


async def test_a_leader_tells_up_to_where_it_is_compacted_and_in_which_form() -> None:
    world = await compacted_leader()
    session = session_on(world)
    tell(session, HELLO, follow())
    assert [(one.following.clean_end, one.following.rewrites) for one in answers(session)] == [(4, 0)]
    session.close()
    assert await check(world) == 1
    session = session_on(world)
    tell(session, HELLO, follow())
    assert [(one.following.clean_end, one.following.rewrites) for one in answers(session)] == [(4, 1)]
    session.close()
    await close(world)


async def test_a_leader_changes_nothing_that_a_follower_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await compacted_leader()
    world.follow(2, 3)
    begun: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(world.log.compaction, "begin", lambda *given: begun.append(given))
        assert await check(world) == 0
    assert not begun, "it would read in vain"
    world.progress(2, 4)
    assert await check(world) == 1
    await close(world)


async def test_a_follower_that_comes_while_a_round_runs_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await compacted_leader()
    real = world.log.compaction.prepare

    def prepare(rewritten: Any) -> None:
        real(rewritten)
        world.follow(2, 1)

    monkeypatch.setattr(world.log.compaction, "prepare", prepare)
    assert await check(world) == 0
    assert world.log.compaction.rewrites == 0
    monkeypatch.setattr(world.log.compaction, "prepare", real)
    world.progress(2, 4)
    assert await check(world) == 1, "at the next check, not after a minute"
    await close(world)


async def test_a_follower_that_gets_nowhere_is_not_waited_for_for_ever() -> None:
    world = await compacted_leader()
    link = world.follow(2, 1)
    assert await check(world) == 0
    world.pass_time(compaction.FOLLOWERS_S_MAX)
    assert await check(world) == 1
    assert link.over is not None and link.over.retriable, "it asks again, and starts over"
    leadership = world.partition.leadership
    assert leadership is not None and 2 not in leadership.links
    await close(world)
