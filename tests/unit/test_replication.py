"""Both sides of a Replicate call, each against another side that does what it should not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from comet import records
from comet.errors import MalformedFrame, Unavailable
from comet.settings.topic import TopicConfig
from comet.v1 import replication_pb2 as pb
from comet.wire.frames import delivery_prefix, joined
from comet_broker import limits
from comet_broker.metrics.meter import RequestMeter
from comet_broker.partitions.conflicts import Conflicts
from comet_broker.partitions.leader_eligibility import LeaderEligibility
from comet_broker.partitions.log_reader import LogReader
from comet_broker.partitions.topics import TopicTable
from comet_broker.replication import follower
from comet_broker.replication.follower import FollowerContext, Replicator
from comet_broker.replication.leader import ReplicaContext, ReplicaSession
from tests.unit.replica_world import STATE, ReplicaWorld, replace_state, settle
from tests.unit.storage_world import IDENTITY, batch
from tests.waiting import until

HELLO = pb.FollowerFrame(hello=pb.ReplicaHello(cluster_id="c", broker=2, broker_epoch=20))


def session_on(world: ReplicaWorld) -> ReplicaSession:
    def leading(tp: tuple[str, int], epoch: int) -> Any:
        if tp != (IDENTITY.topic_id.hex(), 0) or epoch != world.partition.leader_epoch:
            raise Unavailable("not here", retry_after_ms=50)
        return world.partition

    context = ReplicaContext(
        env=world.env,
        cluster_id=lambda: "c",
        topics=cast("TopicTable", SimpleNamespace(leading=leading)),
        reader=LogReader(world.worker),
        meter=RequestMeter(),
        eligibility=cast(
            "LeaderEligibility", SimpleNamespace(halt=lambda partition, error: partition.step_down(repr(error)))
        ),
    )
    return ReplicaSession(context, 1, "peer", lambda _: None)


def follow(**changes: Any) -> pb.FollowerFrame:
    values: dict[str, Any] = {"topic_id": IDENTITY.topic_id, "partition": 0, "leader_epoch": 1, **changes}
    return pb.FollowerFrame(follow=pb.Follow(**values))


def progress(log_end: int, flushed_end: int) -> pb.FollowerFrame:
    return pb.FollowerFrame(progress=pb.Progress(handle=1, leader_epoch=1, log_end=log_end, flushed_end=flushed_end))


def tell(session: ReplicaSession, *frames: pb.FollowerFrame) -> None:
    for frame in frames:
        session.receive(frame.SerializeToString())


def answers(session: ReplicaSession) -> list[pb.LeaderFrame]:
    frames = []
    while (frame := session.poll()) is not None:
        frames.append(pb.LeaderFrame.FromString(joined(frame)))
    return frames


@pytest.mark.parametrize(
    "frames",
    [
        [pb.FollowerFrame()],
        [HELLO, HELLO],
        [pb.FollowerFrame(hello=pb.ReplicaHello(cluster_id="other", broker=2, broker_epoch=20))],
        [pb.FollowerFrame(hello=pb.ReplicaHello(cluster_id="c", broker=1, broker_epoch=10))],
        [pb.FollowerFrame(hello=pb.ReplicaHello(cluster_id="c", broker=2))],
    ],
)
async def test_nonsense_ends_the_call_with_a_typed_error_and_counts_for_nothing(
    frames: list[pb.FollowerFrame],
) -> None:
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10, 2: 20})
    world.produce(3)
    session = session_on(world)
    with pytest.raises((MalformedFrame, Unavailable)):
        tell(session, *frames)
    session.close()
    leadership = world.partition.leadership
    assert leadership is not None and not leadership.links
    assert world.partition.committed == 0
    await world.tasks.close()


@pytest.mark.parametrize(
    "frames",
    [
        [HELLO, follow(epochs=[pb.EpochStart(epoch=1, start_offset=5), pb.EpochStart(epoch=2, start_offset=1)])],
        [HELLO, follow(), progress(4, 4)],
        [HELLO, follow(), progress(2, 3)],
        [HELLO, follow(), progress(-2, -2)],
    ],
)
async def test_nonsense_about_one_partition_is_refused_and_counts_for_nothing(frames: list[pb.FollowerFrame]) -> None:
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10, 2: 20})
    world.produce(3)
    session = session_on(world)
    tell(session, *frames)
    assert [frame.WhichOneof("frame") for frame in answers(session)][-1] == "refused"
    leadership = world.partition.leadership
    assert leadership is not None and not leadership.links, "the partition goes on without this follower"
    assert world.partition.committed == 0
    session.close()
    await world.tasks.close()


@pytest.mark.parametrize(
    "frames",
    [
        [follow()],
        [HELLO, follow(topic_id=b"elsewhere")],
        [HELLO, follow(leader_epoch=7)],
        [pb.FollowerFrame(hello=pb.ReplicaHello(cluster_id="c", broker=9, broker_epoch=90)), follow()],
    ],
)
async def test_what_may_not_be_followed_is_refused_and_the_call_goes_on(frames: list[pb.FollowerFrame]) -> None:
    world = ReplicaWorld()
    await world.lead()
    session = session_on(world)
    tell(session, *frames)
    assert [frame.WhichOneof("frame") for frame in answers(session)] == ["refused"]
    session.close()
    await world.tasks.close()


async def test_a_follower_that_reads_nothing_is_owed_one_watermark_and_read_from_no_more() -> None:
    world = ReplicaWorld(TopicConfig(min_insync=1))
    await world.lead(in_sync={1: 10})
    session = session_on(world)
    tell(session, HELLO, follow(log_end=0), progress(0, 0))
    await settle()
    world.partition.apply(await world.put(replace_state(STATE, in_sync={1: 10})))  # it is in sync no more
    before = len(session.answers.frames)
    for _ in range(50):
        world.produce()
        session._stale.clear()
        session.watermark_moved(world.partition.handle)
        session._watermarks()
    assert len(session.answers.frames) + len(session._marks) <= before + 1
    tell(session, *[follow(leader_epoch=7)] * limits.SESSION_ANSWERS_MAX)
    assert session.answers.full
    relieved = asyncio.get_running_loop().create_task(session.answers.relieved())
    assert (await asyncio.wait([relieved], timeout=0))[1]
    assert answers(session)
    await relieved
    session.close()
    await world.tasks.close()


async def test_a_follower_hears_at_once_of_what_is_deleted() -> None:
    world = ReplicaWorld(TopicConfig(min_insync=1))
    await world.lead()
    world.produce(3)
    session = session_on(world)
    tell(session, HELLO, follow(log_end=0), progress(0, 0))
    answers(session)
    await world.partition.housekeeping.delete_before(2)
    marks = [frame.watermark for frame in answers(session) if frame.WhichOneof("frame") == "watermark"]
    assert [mark.log_start for mark in marks] == [2]
    session.close()
    await world.tasks.close()


async def test_a_follower_that_cuts_back_first_hears_of_what_was_said_meanwhile() -> None:
    world = ReplicaWorld(TopicConfig(min_insync=1))
    await world.lead(in_sync={1: 10, 3: 30})
    world.produce(3)
    world.follow(3, 2)
    session = session_on(world)
    tell(session, HELLO, follow(log_end=5, epochs=[pb.EpochStart(epoch=1, start_offset=0)]))
    (begin,) = answers(session)
    assert (begin.following.high_watermark, getattr(begin.following, "from")) == (2, 3)
    world.progress(3, 3)
    session._watermarks()
    answers(session)  # which a follower does not look at while it cuts back
    tell(session, progress(3, 3))
    marks = [frame.watermark for frame in answers(session)]
    assert [mark.high_watermark for mark in marks] == [3]
    session.close()
    await world.tasks.close()


# ---- the follower's side


class BrokenStream:
    """A stream that fails as none should, the first time; then it stands still."""

    def __init__(self, *, broken: bool) -> None:
        self.broken = broken
        self.cancelled = asyncio.Event()

    async def read(self) -> bytes | None:
        if self.broken:
            raise RuntimeError("not as expected")
        await self.cancelled.wait()
        raise Unavailable("cut")

    async def write(self, _: bytes) -> None:
        return

    def cancel(self) -> None:
        self.cancelled.set()


class Streams:
    """ports.Network and its channels in one."""

    def __init__(self, *, broken: int = 0) -> None:
        self.addresses: list[str] = []
        self.connected = asyncio.Event()
        self._broken = broken

    def connect(self, address: str) -> Streams:
        self.addresses.append(address)
        self.connected.set()
        return self

    async def replicate(self, _: object) -> BrokenStream:
        self._broken -= 1
        return BrokenStream(broken=self._broken >= 0)

    async def close(self) -> None:
        return


async def nothing(*_: object) -> None:
    return


def replicator_on(
    world: ReplicaWorld, network: Streams, where: dict[int, str], broken: list[Exception] | None = None
) -> Replicator:
    broken = [] if broken is None else broken
    parts: Any = SimpleNamespace(
        view=SimpleNamespace(cluster_id="c", address_of=where.get, wire_of=lambda _: None),
        membership=SimpleNamespace(broker_epoch=10),
        suspects=SimpleNamespace(check=nothing),
        eligibility=SimpleNamespace(
            requalify=lambda _: None,
            disqualify=world.partition.context.disqualify,
            halt=lambda _, error: broken.append(error),
        ),
        log_ends=SimpleNamespace(update=lambda _: None),
        network=network,
    )
    conflicts = Conflicts(1, store=world.store, view=world.view, tasks=world.tasks)
    return Replicator(FollowerContext(env=world.env, conflicts=conflicts, **vars(parts)))


async def test_a_link_that_broke_off_as_none_should_is_made_again() -> None:
    world = ReplicaWorld()
    world.partition.apply(await world.put(replace_state(STATE, leader=2, in_sync={2: 20})))
    network = Streams(broken=1)
    replicator = replicator_on(world, network, {2: "there"})
    replicator.update(world.partition)
    async with asyncio.timeout(60):
        while len(network.addresses) < 2:
            network.connected.clear()
            await network.connected.wait()
    assert not world.tasks.failed
    await replicator.close()
    await world.tasks.close()


async def test_a_leader_that_is_elsewhere_now_is_followed_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "RETRY_S", 3_600)
    monkeypatch.setattr(follower, "RETRY_S_MAX", 3_600)
    world = ReplicaWorld()
    world.partition.apply(await world.put(replace_state(STATE, leader=2, in_sync={2: 20})))
    network = Streams()
    where = {2: "there"}
    replicator = replicator_on(world, network, where)
    replicator.update(world.partition)
    async with asyncio.timeout(60):
        await network.connected.wait()
        await settle()
        network.connected.clear()
        where[2] = "elsewhere"
        replicator.update(world.partition)
        await network.connected.wait()
    assert network.addresses == ["there", "elsewhere"]
    await replicator.close()
    await world.tasks.close()


async def test_a_leader_that_moves_while_it_is_connected_to_is_followed_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "RETRY_S", 0.01)
    world = ReplicaWorld()
    world.partition.apply(await world.put(replace_state(STATE, leader=2, in_sync={2: 20})))
    network, where = OneLeader(), {2: "there"}
    opened = network.replicate

    async def move(wire: object) -> LeaderStream:
        where[2] = "elsewhere"  # in the cluster's view, while the first connection is opened
        return await opened(wire)

    monkeypatch.setattr(network, "replicate", move)
    replicator = replicator_on(world, network, where)
    replicator.update(world.partition)
    async with asyncio.timeout(60):
        while not (len(network.streams) > 1 and network.streams[1].asked()):
            await settle()
    assert network.addresses[:2] == ["there", "elsewhere"] and not network.streams[0].told
    await replicator.close()
    await world.tasks.close()


class LeaderStream(BrokenStream):
    """A stream whose other end is the test: what it says, and what it was told."""

    def __init__(self) -> None:
        super().__init__(broken=False)
        self.said: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.told: list[pb.FollowerFrame] = []

    async def read(self) -> bytes | None:
        return await self.said.get()

    async def write(self, frame: bytes) -> None:
        self.told.append(pb.FollowerFrame.FromString(frame))

    def cancel(self) -> None:
        self.said.put_nowait(None)

    async def say(self, *frames: pb.LeaderFrame) -> None:
        for frame in frames:
            await self.said.put(frame.SerializeToString())
        await settle()

    async def deliver(self, world: ReplicaWorld, base_offset: int, *, high_watermark: int) -> None:
        """One record, as the leader of epoch 2 wrote it."""
        _, data = batch([b"theirs"])
        stamp = records.make_stamp(base_offset, world.clock.wall_us(), 2, len(data))
        body = stamp + data[records.STAMP_BYTES :]
        await self.said.put(delivery_prefix(7, high_watermark, 2, len(body)) + body)
        await settle()

    def asked(self) -> list[pb.FollowerFrame]:
        return [frame for frame in self.told if frame.WhichOneof("frame") == "follow"]

    def ends_told(self) -> list[int]:
        return [frame.progress.log_end for frame in self.told if frame.WhichOneof("frame") == "progress"]


class OneLeader(Streams):
    def __init__(self) -> None:
        super().__init__()
        self.streams: list[LeaderStream] = []

    async def replicate(self, _: object) -> LeaderStream:
        self.streams.append(LeaderStream())
        return self.streams[-1]


def following(begin: int, **changes: Any) -> pb.LeaderFrame:
    said = pb.Following(topic_id=IDENTITY.topic_id, partition=0, leader_epoch=2, handle=7, **changes)
    setattr(said, "from", begin)
    return pb.LeaderFrame(following=said)


async def behind_a_leader(
    world: ReplicaWorld, broken: list[Exception] | None = None
) -> tuple[Replicator, list[LeaderStream]]:
    """It has led, and written three records; another leads now, in epoch 2."""
    await world.lead()
    world.produce(3)
    state = replace_state(STATE, leader=2, epoch=2, in_sync={2: 20})
    world.partition.apply(await world.put(state))
    network = OneLeader()
    replicator = replicator_on(world, network, {2: "there"}, broken)
    replicator.update(world.partition)
    await settle()
    (leader,) = network.streams
    assert [frame.WhichOneof("frame") for frame in leader.told] == ["hello", "follow"]
    return replicator, network.streams


async def test_what_the_leader_was_told_of_is_not_cut_away_by_an_answer_that_comes_late() -> None:
    world = ReplicaWorld()
    replicator, (leader,) = await behind_a_leader(world)
    partition = world.partition
    world.worker.free.clear()
    await leader.say(following(2))
    trimming = asyncio.create_task(partition.housekeeping.delete_before(1))  # when the log is cut back, and no sooner
    await settle()
    await leader.say(following(2))  # it had asked twice
    world.worker.hold_after = 1
    world.worker.free.set()
    await settle()
    assert partition.log.log_end == 2 == leader.ends_told()[-1]
    await leader.deliver(world, 2, high_watermark=3)
    assert leader.ends_told()[-1] == 3
    world.worker.free.set()
    await trimming
    await settle()
    assert partition.log.log_end == 3 == partition.committed
    await replicator.close()
    await world.tasks.close()


async def test_what_is_found_damaged_while_it_is_followed_is_fetched_anew() -> None:
    world = ReplicaWorld()
    replicator, streams = await behind_a_leader(world)
    partition = world.partition
    await streams[0].say(following(3))
    assert streams[0].asked()[0].follow.log_end == 3
    partition.log.state.quarantine(1, 2)
    replicator.mend(partition)
    await settle()
    await settle()
    replicator.mend(partition)
    await settle()
    assert [stream.asked()[0].follow.log_end for stream in streams] == [3, 1], "and no third time"
    await streams[1].say(following(1))
    await settle()
    assert (partition.log.log_end, partition.log.lost) == (1, ())
    await replicator.close()
    await world.tasks.close()


async def test_a_log_that_was_cut_back_is_followed_on_the_same_stream() -> None:
    world = ReplicaWorld()
    replicator, streams = await behind_a_leader(world)
    await streams[0].say(following(1))
    await settle()
    assert world.partition.log.log_end == 1
    replicator.update(world.partition)
    await settle()
    assert len(streams) == 1
    assert len(streams[0].asked()) == 1
    await replicator.close()
    await world.tasks.close()


async def test_what_is_damaged_is_not_fetched_while_others_count_on_it() -> None:
    world = ReplicaWorld()
    replicator, streams = await behind_a_leader(world)
    state = replace_state(STATE, leader=2, epoch=2, in_sync={1: 10, 2: 20})
    world.partition.apply(await world.put(state))
    world.partition.log.state.quarantine(1, 2)
    replicator.mend(world.partition)
    await settle()
    assert len(streams) == 1
    assert len(streams[0].asked()) == 1
    await replicator.close()
    await world.tasks.close()


def raiser(*_: object, **__: object) -> None:
    raise RuntimeError("an unexpected error")


@pytest.mark.parametrize("where", ["replicate", "truncate", "learn"])
async def test_what_breaks_with_one_partition_is_said_and_the_link_goes_on(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = ReplicaWorld()
    broken: list[Exception] = []
    replicator, (leader,) = await behind_a_leader(world, broken)
    monkeypatch.setattr(follower, "RETRY_S_MAX", 0)
    with monkeypatch.context() as bug:
        bug.setattr(world.partition.follower, where, raiser)
        if where == "truncate":
            await leader.say(following(2))
        elif where == "learn":
            await leader.say(following(3))
        else:
            await leader.say(following(3))
            await leader.deliver(world, 3, high_watermark=3)
        assert await until(lambda: len(broken) == 1, within_s=60), "it is shown"
    await settle()
    assert len(leader.asked()) == 1, "it stands still"
    assert not leader.cancelled.is_set(), "and the stream goes on for the others"
    replicator.update(world.partition)  # it is taken up again
    assert await until(lambda: len(leader.asked()) == 2, within_s=60), "it asks again"
    await leader.say(following(2))
    await leader.deliver(world, 2, high_watermark=3)
    assert leader.ends_told()[-1] == 3 == world.partition.committed
    await replicator.close()
    await world.tasks.close()
