"""Both sides of a Replicate call on a connection that has died without a word."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from comet.errors import CometError, Unavailable
from comet.settings.topic import TopicConfig
from comet.v1 import replication_pb2 as pb
from comet.wire.frames import joined, parse_delivery
from comet.wire.liveness import BETWEEN_BROKERS
from comet_broker import limits
from comet_broker.replication.heartbeats import FROM_FOLLOWER, Heartbeats
from comet_broker.replication.leader import ReplicaSession
from comet_broker.rpc import service
from comet_broker.streams.stream_writer import Outbox
from tests.unit.replica_world import ReplicaWorld, settle
from tests.unit.storage_world import batch
from tests.unit.test_replication import HELLO, answers, behind_a_leader, follow, following, progress, session_on, tell
from tests.waiting import until


def look(world: ReplicaWorld, heartbeats: Heartbeats, seconds: float) -> None:
    """So much time passes, with a check as often as the timer makes one."""
    for _ in range(round(seconds / BETWEEN_BROKERS.check_s)):
        world.pass_time(BETWEEN_BROKERS.check_s)
        heartbeats._check()


def kinds(frames: list[pb.LeaderFrame]) -> list[str | None]:
    return [frame.WhichOneof("frame") for frame in frames]


async def test_a_leader_sends_heartbeats_and_ends_the_stream_of_a_follower_that_is_silent() -> None:
    world = ReplicaWorld()
    await world.lead()
    session = session_on(world)
    tell(session, HELLO, follow())
    assert kinds(answers(session)) == ["following"]
    for _ in range(5):
        look(world, session._heartbeats, BETWEEN_BROKERS.heartbeat_s + BETWEEN_BROKERS.check_s)
        assert kinds(answers(session)) == ["heartbeat"]
        session.receive(FROM_FOLLOWER)
    assert session.writer.failure is None
    ended: list[CometError | None] = []
    session.writer.on_failure = lambda: ended.append(session.writer.failure)
    look(world, session._heartbeats, BETWEEN_BROKERS.silence_s + 1)
    assert len(ended) == 1 and isinstance(ended[0], Unavailable)
    session.close()
    await world.tasks.close()


async def test_a_leader_ends_the_stream_of_a_follower_that_it_takes_out_of_in_sync() -> None:
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10, 2: 20})
    link = world.follow(2, 0)
    leadership = world.partition.leadership
    assert leadership is not None
    world.produce()
    ended = []
    for _ in range(4):
        world.pass_time(1)
        leadership.check()
        ended.append(link.behind)
    await settle()
    leadership.check()
    assert (await world.stored()).value.in_sync == {1: 10}
    assert [*ended, link.behind] == [0, 0, 0, 1, 1], "once: a slow one catches up on the stream that it has"
    await world.tasks.close()


@pytest.mark.parametrize(("age_s", "ends"), [(1.0, False), (3.0, True)])
async def test_a_stream_that_is_younger_than_the_time_to_catch_up_is_left_alone(age_s: float, *, ends: bool) -> None:
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10, 2: 20})
    session = session_on(world)
    world.pass_time(age_s)
    session.fell_behind(world.partition.handle, 3.0)
    assert (session.writer.failure is not None) is ends is session.closed
    session.close()
    await world.tasks.close()


async def test_a_large_delivery_is_announced() -> None:
    world = ReplicaWorld(TopicConfig(min_insync=1))
    await world.lead(in_sync={1: 10})
    session = session_on(world)
    tell(session, HELLO, follow(log_end=0), progress(0, 0))
    world.partition.produce(batch([b"x" * (limits.ANNOUNCED_BYTES // 2)] * 3)[1], 1)
    world.produce()
    frames = []
    for _ in range(3):  # it is read from the log
        while (frame := session.poll()) is not None:
            frames.append(joined(frame))
        await settle()
    large = next(at for at, frame in enumerate(frames) if len(frame) > limits.ANNOUNCED_BYTES)
    assert pb.LeaderFrame.FromString(frames[large - 1]).heartbeat.next_frame_bytes == len(frames[large])
    assert parse_delivery(frames[large]) is not None
    session.close()
    await world.tasks.close()


async def test_a_follower_sends_heartbeats_and_connects_anew_when_its_leader_is_silent() -> None:
    world = ReplicaWorld()
    replicator, streams = await behind_a_leader(world)
    (link,) = replicator._links.values()
    await streams[0].say(following(3))
    heartbeats = link._heartbeats
    assert heartbeats is not None
    for _ in range(5):
        told = len(streams[0].told)
        look(world, heartbeats, BETWEEN_BROKERS.heartbeat_s + BETWEEN_BROKERS.check_s)
        await settle()
        assert [frame.WhichOneof("frame") for frame in streams[0].told[told:]] == ["heartbeat"]
        await streams[0].say(pb.LeaderFrame(heartbeat=pb.ReplicaHeartbeat()))
    await streams[0].say(pb.LeaderFrame(heartbeat=pb.ReplicaHeartbeat(next_frame_bytes=limits.MESSAGE_BYTES_MAX)))
    look(world, heartbeats, 2 * BETWEEN_BROKERS.silence_s)
    await settle()
    assert len(streams) == 1, "it waits for a large frame"
    await streams[0].say(pb.LeaderFrame(heartbeat=pb.ReplicaHeartbeat()))
    look(world, heartbeats, BETWEEN_BROKERS.silence_s + 1)
    assert await until(lambda: len(streams) == 2 and len(streams[1].asked()) == 1, within_s=30)
    await replicator.close()
    await world.tasks.close()


class SilentCall:
    """A gRPC context whose client says nothing, and which notes how the call ends."""

    def __init__(self) -> None:
        self.aborted: list[Any] = []

    def peer(self) -> str:
        return "peer"

    async def read(self) -> bytes:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def write(self, _: bytes) -> None:
        return

    async def abort(self, *what: Any, **_: Any) -> None:
        self.aborted.append(what)


async def test_a_call_that_the_leader_ends_is_aborted_with_its_reason() -> None:
    world = ReplicaWorld()
    await world.lead()
    sessions: list[ReplicaSession] = []

    def open_session(_: Any) -> ReplicaSession:
        sessions.append(session_on(world))
        return sessions[-1]

    context: Any = SilentCall()
    broker: Any = SimpleNamespace(in_flight=None)
    handler: Any = service._stream(open_session, Outbox(), broker, limited=False)
    call = asyncio.get_running_loop().create_task(handler(None, context))
    await settle()
    look(world, sessions[0]._heartbeats, BETWEEN_BROKERS.silence_s + 1)
    await call
    assert sessions[0].closed
    ((_, message),) = context.aborted
    assert "received nothing for 3 s" in message
    await world.tasks.close()


async def test_a_call_that_grpc_cancels_is_cancelled() -> None:
    world = ReplicaWorld()
    await world.lead()
    context: Any = SilentCall()
    broker: Any = SimpleNamespace(in_flight=None)
    handler: Any = service._stream(lambda _: session_on(world), Outbox(), broker, limited=False)
    call = asyncio.get_running_loop().create_task(handler(None, context))
    await settle()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not context.aborted
    await world.tasks.close()
