"""A follower cuts nothing that it knows to be committed, unless an operator has accepted that."""

from __future__ import annotations

from typing import Any

import pytest

from comet.errors import Unavailable
from comet.settings.topic import Consistency, TopicConfig
from comet_broker.core.cluster import CLUSTER, Conflict, GivenUp, conflict_key
from comet_broker.core.conflicts import Offer, Own, TruncationVerdict, judge
from comet_broker.partitions.inventory import checksums_at
from comet_broker.replication import follower
from comet_broker.replication.follower import Replicator
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES, read_segment_header
from comet_broker.storage.limits import ASIDE_FILES_MAX
from comet_broker.storage.log import Log
from comet_broker.storage.scan import Found, walk
from tests.unit.replica_world import STATE, ReplicaWorld, replace_state, settle
from tests.unit.storage_world import FOLDER, IDENTITY, nothing_missing
from tests.unit.test_replication import LeaderStream, behind_a_leader, following

# A log of 100 offsets, of which 90 are committed, as of epoch 4; its leader leads in epoch 7.


@pytest.mark.parametrize(
    ("start", "leader_end", "whole_end", "restart", "accepted", "verdict"),
    [
        (100, 120, 100, False, 0, TruncationVerdict.TRUNCATE),  # nothing to cut
        (90, 120, 100, False, 0, TruncationVerdict.TRUNCATE),  # what was never committed
        (89, 120, 100, False, 0, TruncationVerdict.REFUSED),
        (0, 50, 100, False, 0, TruncationVerdict.REFUSED),
        (120, 150, 100, True, 0, TruncationVerdict.TRUNCATE),  # the leader has deleted all there is here
        (90, 150, 100, True, 0, TruncationVerdict.TRUNCATE),
        (89, 150, 100, True, 0, TruncationVerdict.REFUSED),
        (40, 120, 40, False, 0, TruncationVerdict.TRUNCATE),  # damage, which the leader mends
        (40, 90, 40, False, 0, TruncationVerdict.TRUNCATE),
        (40, 89, 40, False, 0, TruncationVerdict.REFUSED),  # it does not have all that is committed
        (30, 120, 40, False, 0, TruncationVerdict.REFUSED),  # not only the damage
        (50, 120, 40, True, 0, TruncationVerdict.TRUNCATE),  # damage, below which the leader has deleted all
        (50, 89, 40, True, 0, TruncationVerdict.REFUSED),
        (50, 50, 100, False, 5, TruncationVerdict.ACCEPTED),
        (50, 50, 100, False, 7, TruncationVerdict.ACCEPTED),
        (50, 50, 100, False, 4, TruncationVerdict.REFUSED),  # what is here was written after that was accepted
        (50, 50, 100, False, 8, TruncationVerdict.REFUSED),  # and of a leader before that
        (10, 50, 100, True, 7, TruncationVerdict.ACCEPTED),
        (90, 120, 100, False, 7, TruncationVerdict.TRUNCATE),  # nothing is lost, so there is nothing to set aside
    ],
)
def test_what_may_be_cut(
    start: int, leader_end: int, whole_end: int, restart: bool, accepted: int, verdict: TruncationVerdict
) -> None:
    own = Own(whole_end, high_watermark=90, last_epoch=4)
    assert judge(own, Offer(7, start, restart, leader_end), accepted) is verdict


async def view_of(world: ReplicaWorld) -> dict[str, bytes]:
    return {item.key: item.value for item in (await world.store.range("cluster/conflicts/")).items}


async def in_conflict(world: ReplicaWorld) -> tuple[Replicator, list[LeaderStream]]:
    """It knows that its three records are committed; the leader of epoch 2 has one of them."""
    await world.view.load()
    world.tasks.spawn(world.view.follow(), "follow the cluster")
    replicator, streams = await behind_a_leader(world)
    world.partition.follower.learn(2, 3)
    await streams[0].say(following(1, log_end=1, high_watermark=1))
    await settle()
    return replicator, streams


async def close(world: ReplicaWorld, replicator: Replicator) -> None:
    await replicator.close()
    await world.tasks.close()


async def test_a_follower_that_would_lose_committed_records_stands_still_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = ReplicaWorld()
    replicator, (leader,) = await in_conflict(world)
    partition = world.partition
    assert (partition.log.log_end, partition.committed) == (3, 3), "nothing was cut"
    told = [frame.WhichOneof("frame") for frame in leader.told]
    assert told == ["hello", "follow", "unfollow"], "and the leader hears of no progress"
    expected = Conflict(leader=2, epoch=2, offset=1, log_end=3, high_watermark=3, last_epoch=1)
    assert partition.follower.conflict == expected
    key = conflict_key(1, partition.tp)
    assert await view_of(world) == {key: expected.encode()}
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "from offset 1 up to 3" in line.getMessage() and "comet topic elect t 0 1" in line.getMessage()
    replicator.update(partition)
    await settle()
    assert len(leader.asked()) == 1, "it does not ask again in the same epoch"
    await close(world, replicator)


async def test_it_follows_again_when_the_loss_is_accepted_and_keeps_what_is_cut_in_a_file() -> None:
    world = ReplicaWorld()
    replicator, (leader,) = await in_conflict(world)
    partition = world.partition
    state = replace_state(STATE, leader=2, epoch=3, in_sync={2: 20}, loss_accepted=3)
    partition.apply(await world.put(state))
    replicator.update(partition)
    await settle()
    said = following(1, log_end=1, high_watermark=1)
    said.following.leader_epoch = 3
    await leader.say(said)
    await settle()
    assert (partition.log.log_end, partition.committed, partition.follower.conflict) == (1, 1, None)
    assert leader.ends_told() == [1]
    await settle()
    assert await view_of(world) == {}
    (name,) = [name for name in world.files.list(FOLDER) if name.startswith("aside-")]
    assert name == "aside-3-1-3.batches"
    data = world.files.read_all(f"{FOLDER}/{name}")
    header = read_segment_header(data[:SEGMENT_HEADER_BYTES])
    assert header is not None and header.base_offset == 1
    file = world.files.open(f"{FOLDER}/{name}")
    found = list(walk(file, SEGMENT_HEADER_BYTES, len(data), 1))
    assert [one.header.base_offset for one in found if isinstance(one, Found)] == [1, 2]
    await close(world, replicator)
    await partition.close(Unavailable("the test is over"))
    again = Log.open(world.files, FOLDER, IDENTITY, world.config, world.clock, nothing_missing)
    assert again.log_end == 1, "a log that is opened does not look at what was set aside"


async def test_a_loss_that_is_accepted_in_the_same_epoch_is_heard_of() -> None:
    world = ReplicaWorld()
    replicator, (leader,) = await in_conflict(world)
    state = replace_state(STATE, leader=2, epoch=2, in_sync={2: 20}, loss_accepted=2)
    world.partition.apply(await world.put(state))
    replicator.update(world.partition)
    await settle()
    assert len(leader.asked()) == 2
    await leader.say(following(1, log_end=1, high_watermark=1))
    await settle()
    assert world.partition.log.log_end == 1
    await close(world, replicator)


@pytest.mark.parametrize(
    "members",
    [
        {"in_sync": {2: 20, 1: 10}},
        {"in_sync": {2: 20}, "eligible": {1: 10}},
        {"in_sync": {2: 20}, "loss_settled": (1,)},  # it has left since, with enough others in sync
    ],
)
async def test_a_loss_that_was_accepted_before_it_was_in_sync_again_is_no_reason(members: dict[str, Any]) -> None:
    """A later leader may lack more than the one that the operator chose: its disk was put back from a copy."""
    world = ReplicaWorld()
    replicator, (leader,) = await in_conflict(world)
    partition = world.partition
    partition.apply(await world.put(replace_state(STATE, leader=2, epoch=4, loss_accepted=3, **members)))
    replicator.update(partition)
    await settle()
    said = following(1, log_end=1, high_watermark=1)
    said.following.leader_epoch = 4
    await leader.say(said)
    await settle()
    assert (partition.log.log_end, partition.committed) == (3, 3), "nothing was cut"
    assert partition.follower.conflict is not None and partition.follower.conflict.epoch == 4
    await close(world, replicator)


async def test_where_the_disk_is_full_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "ASIDE_RETRY_S", 0.0)
    world = ReplicaWorld()
    replicator, (leader,) = await in_conflict(world)
    world.files.faults.capacity_bytes = world.files.used_bytes
    state = replace_state(STATE, leader=2, epoch=2, in_sync={2: 20}, loss_accepted=2)
    world.partition.apply(await world.put(state))
    replicator.update(world.partition)
    await leader.say(following(1, log_end=1, high_watermark=1))
    await settle()
    assert world.partition.log.log_end == 3 and world.partition.log.failed is None
    assert (
        world.partition.follower.conflict is not None and "No space left" in world.partition.follower.conflict.problem
    )
    assert not any(name.startswith("aside-") for name in world.files.list(FOLDER))
    world.files.faults.capacity_bytes = None
    await settle()
    await leader.say(following(1, log_end=1, high_watermark=1))
    await settle()
    assert world.partition.log.log_end == 1
    await close(world, replicator)


async def test_there_is_a_limit_to_what_is_set_aside() -> None:
    world = ReplicaWorld()
    for number in range(ASIDE_FILES_MAX):
        world.files.open(f"{FOLDER}/aside-{number}-0-1.batches", create=True).close()
    replicator, (leader,) = await in_conflict(world)
    state = replace_state(STATE, leader=2, epoch=2, in_sync={2: 20}, loss_accepted=2)
    world.partition.apply(await world.put(state))
    replicator.update(world.partition)
    await leader.say(following(1, log_end=1, high_watermark=1))
    await settle()
    assert world.partition.log.log_end == 3
    assert (
        world.partition.follower.conflict is not None
        and "move them elsewhere" in world.partition.follower.conflict.problem
    )
    await close(world, replicator)


async def given_up(world: ReplicaWorld, checksum: int) -> tuple[Replicator, LeaderStream]:
    """An operator has given up what its log holds from offset 1 on; the batch of that checksum belongs there."""
    replicator, (leader,) = await behind_a_leader(world)
    found = {1: GivenUp(1, checksum or (await checksums_at(world.log, [1], world.worker))[1])}
    state = replace_state(STATE, leader=2, epoch=3, in_sync={2: 20}, loss_accepted=3, given_up=found)
    world.partition.apply(await world.put(state))
    replicator.update(world.partition)
    for _ in range(3):
        await settle()
    return replicator, leader


async def test_what_was_given_up_is_cut_before_the_leader_is_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "REFOLLOW_S", 0.0)
    world = ReplicaWorld()
    replicator, leader = await given_up(world, checksum=7)
    assert world.partition.log.log_end == 1
    assert [frame.follow.log_end for frame in leader.asked()] == [3, 1]
    await close(world, replicator)


async def test_what_was_followed_since_is_not_cut_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier process has cut it, and has been sent what belongs there."""
    monkeypatch.setattr(follower, "REFOLLOW_S", 0.0)
    world = ReplicaWorld()
    replicator, leader = await given_up(world, checksum=0)
    assert world.partition.log.log_end == 3
    assert [frame.follow.log_end for frame in leader.asked()] == [3, 3]
    await close(world, replicator)


async def test_a_replica_that_is_chosen_to_lead_is_in_conflict_no_more() -> None:
    world = ReplicaWorld()
    replicator, _ = await in_conflict(world)
    replicator._context.conflicts.settled(world.partition)
    await settle()
    assert world.partition.follower.conflict is None
    assert await view_of(world) == {}
    await close(world, replicator)


async def test_a_conflict_is_told_when_the_store_answers_again() -> None:
    world = ReplicaWorld()
    world.store.free.clear()
    replicator, _ = await in_conflict(world)
    world.store.free.set()
    await settle()
    assert len(await view_of(world)) == 1
    assert [item.key for item in (await world.store.range(CLUSTER)).items]
    await close(world, replicator)


async def test_an_available_topic_loses_its_end() -> None:
    world = ReplicaWorld(TopicConfig(min_insync=1, consistency=Consistency.AVAILABLE))
    replicator, _ = await in_conflict(world)
    assert (world.partition.log.log_end, world.partition.follower.conflict) == (1, None)
    await close(world, replicator)
