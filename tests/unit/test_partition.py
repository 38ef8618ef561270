"""A partition while its log is cut back, and what retention leaves alone."""

from __future__ import annotations

import asyncio

import pytest

from comet.errors import CometError, Draining, LeadershipLost, NotLeader, TopicNotFound, Unavailable
from comet.settings.topic import Consistency, Flush, TopicConfig
from comet.types import Latest
from comet_broker.core.push import Cursor, DeliveryState
from comet_broker.metrics.meter import RequestMeter
from comet_broker.partitions.log_reader import LogReader
from comet_broker.partitions.offset_lookup import resolve
from comet_broker.partitions.partition import Partition
from comet_broker.streams.subscriptions import Feed
from tests.unit.replica_world import STATE, ReplicaWorld, replace_state, settle
from tests.unit.storage_world import World

LEADS = replace_state(STATE, epoch=3, in_sync={1: 10, 2: 20})
FOLLOWS = replace_state(STATE, leader=2, epoch=2, in_sync={2: 20})


def from_leader(count: int) -> list[memoryview]:
    """Batches as a leader of the epoch has stamped them."""
    leader = World()
    batches = []
    for _ in range(count):
        leader.append(b"x", epoch=2)
        extent = leader.log.extent(leader.log.log_end - 1)
        result = extent.read(memoryview(buffer := bytearray(4096)), wait=True)
        extent.release()
        assert result is not None
        batches.append(memoryview(bytes(buffer[: result.size])))
    return batches


async def test_a_cut_while_an_fsync_is_under_way_neither_spins_nor_leaves_anything_unsynced() -> None:
    world = ReplicaWorld(TopicConfig(flush=Flush.ALWAYS, min_insync=1))
    one = world.partition
    one.apply(await world.put(FOLLOWS))
    first, second, third = from_leader(3)
    world.worker.free.clear()
    one.follower.replicate(first, 2, 0)
    await settle()  # its fsync is under way
    one.follower.replicate(second, 2, 0)
    one.follower.replicate(third, 2, 0)
    cut = asyncio.get_running_loop().create_task(one.follower.truncate(2, 2, restart=False))
    await settle()
    world.worker.free.set()
    await cut
    assert one.log.log_end == 2
    await settle()
    assert one.log.flushed_end == 2
    await world.tasks.close()


async def test_a_reader_is_not_given_what_was_read_from_disk_before_the_cut() -> None:
    world = ReplicaWorld(TopicConfig(consistency=Consistency.AVAILABLE))
    one = world.partition
    one.apply(await world.put(FOLLOWS))
    for batch in from_leader(3):
        one.follower.replicate(batch, 2, 0)
    ended: list[CometError] = []

    def over(_: Cursor[Partition], error: CometError) -> None:
        ended.append(error)

    feed = Feed(world.env, LogReader(world.worker), RequestMeter(), over, lambda: None)
    feed.add(1, one, 0)
    feed.grant(1, 1 << 20)
    cursor = feed.push.take()
    assert cursor is not None
    feed.push.loading(cursor)
    await one.follower.truncate(1, 2, restart=False)
    assert cursor.state is DeliveryState.ENDED
    assert isinstance(ended[0], Unavailable)
    await world.tasks.close()


async def test_retention_leaves_alone_what_is_not_on_the_in_sync_replicas_yet() -> None:
    """They would have to begin anew, and a watermark below the log's start tells readers of nothing."""
    config = TopicConfig(min_insync=1, segment_bytes=64 << 10, retention_bytes=1)
    world = ReplicaWorld(config)
    await world.lead(in_sync={1: 10, 2: 20})
    one = world.partition
    world.follow(2, 0)
    while one.log.statistics()["segments"] < 4:
        world.produce()
        world.log.segments.roll_by_age()
        world.clock.now_us += config.segment_ms * 1000
    await one.housekeeping.run()
    assert one.log.log_start == 0
    world.progress(2, one.log.log_end)
    await one.housekeeping.run()
    assert one.log.log_start > 0
    await world.tasks.close()


async def test_a_cut_that_a_leader_of_the_past_has_asked_for_does_not_take_place() -> None:
    """The leader of a later epoch has been told of all that is here, and may have told producers that it is kept."""
    world = ReplicaWorld(TopicConfig(min_insync=1))
    one = world.partition
    one.apply(await world.put(FOLLOWS))
    for batch in from_leader(3):
        one.follower.replicate(batch, 2, 3)
    world.worker.free.clear()
    trimming = asyncio.get_running_loop().create_task(one.housekeeping.delete_before(1))  # the cut has to wait for it
    await settle()
    cut = asyncio.get_running_loop().create_task(one.follower.truncate(2, 2, restart=False))
    await settle()
    one.apply(await world.put(replace_state(FOLLOWS, leader=3, epoch=3, in_sync={1: 10, 3: 30})))
    world.worker.free.set()
    await asyncio.gather(trimming, cut)
    assert one.log.log_end == 3
    await world.tasks.close()


async def followed(count: int) -> ReplicaWorld:
    """A follower with so many records of epoch 2."""
    world = ReplicaWorld()
    world.partition.apply(await world.put(FOLLOWS))
    for one in from_leader(count):
        world.partition.follower.replicate(one, 2, 0)
    return world


async def test_who_is_to_lead_deletes_first_what_was_deleted() -> None:
    world = await followed(5)
    one = world.partition
    world.worker.free.clear()
    one.apply(await world.put(replace_state(LEADS, deleted=(2, 3))))
    await settle()
    assert (one.leadership, one.log.log_start) == (None, 0), "nobody is served before it is gone"
    world.worker.free.set()
    await settle()
    assert one.leads and one.log.log_start == 3
    await world.tasks.close()


async def test_what_has_the_offsets_of_deleted_records_is_not_deleted() -> None:
    """The end of the log was lost with the machines of all that had it, and its offsets were given out again."""
    world = await followed(5)
    one = world.partition
    one.apply(await world.put(replace_state(LEADS, deleted=(1, 3))))
    await settle()
    assert one.leads and one.log.log_start == 0
    await world.tasks.close()


async def test_a_disk_that_takes_no_deletion_does_not_leave_a_partition_without_a_leader() -> None:
    world = await followed(5)
    one = world.partition

    async def refuse(offset: int) -> int:
        raise Unavailable(f"cannot delete below {offset}")

    setattr(one, "delete_before", refuse)  # noqa: B010 - mypy lets no method be assigned
    one.apply(await world.put(replace_state(LEADS, deleted=(2, 3))))
    await settle()
    assert one.leads
    await world.tasks.close()


@pytest.mark.parametrize(
    ("closed", "told"),
    [
        (Draining("it stops"), LeadershipLost),
        (NotLeader("it was moved"), LeadershipLost),
        (TopicNotFound("it is gone"), TopicNotFound),
    ],
)
async def test_whoever_waits_for_a_written_batch_hears_that_it_may_be_kept(
    closed: CometError, told: type[CometError]
) -> None:
    """Whoever took it for refused would write it twice."""
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10, 2: 20})
    world.follow(2, 0)
    waiting = asyncio.ensure_future(world.partition.acked(world.produce(acks=2), 2))
    await settle()
    assert not waiting.done()
    await world.partition.close(closed)
    with pytest.raises(told):
        await waiting
    await world.tasks.close()


async def test_how_far_it_goes_is_said_by_who_knows() -> None:
    """What it wrote down of the watermark is old when it starts: a reader of "all there is" would miss the rest."""
    world = ReplicaWorld(config=TopicConfig(min_insync=1))
    partition = world.partition
    with pytest.raises(Unavailable):
        resolve(partition, Latest())
    partition.apply(await world.put(replace_state(STATE, in_sync={1: 9})))  # it led before it was started again
    with pytest.raises(Unavailable):
        resolve(partition, Latest())
    await world.lead(epoch=2, replicas=(1,))
    world.produce(3)
    assert resolve(partition, Latest()) == 3
    partition.apply(await world.put(replace_state(STATE, epoch=3, leader=2)))
    assert resolve(partition, Latest()) == 3, "a follower says how far it has come"
    await world.tasks.close()
