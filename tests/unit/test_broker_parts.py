"""Parts of a broker that are built without one: a coordinator's groups, a table of share groups, a session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from comet import records
from comet.errors import InvalidArgument, PartitionNotFound
from comet.types import Acks, Earliest
from comet.v1 import groups_pb2
from comet.v1 import records_pb2 as pb
from comet.wire.frames import joined, parse_ack, produce_frame
from comet.wire.liveness import OF_CLIENTS, Liveness
from comet.wire.protobuf import error_from_pb
from comet_broker.access.client_access import EVERYTHING
from comet_broker.access.quotas import Quotas
from comet_broker.coordination.context import SlotClaim, SlotContext
from comet_broker.coordination.group_frames import MemberStream
from comet_broker.coordination.groups import Groups
from comet_broker.coordination.journal import Head, Journal, slot_prefix
from comet_broker.coordination.memberships import Memberships
from comet_broker.core.group_record import Shape
from comet_broker.core.quotas import Quota
from comet_broker.core.shares import Holder, Options
from comet_broker.metadata.store import Put
from comet_broker.metrics.meter import RequestMeter
from comet_broker.partitions.log_reader import LogReader
from comet_broker.sharing.context import Agreed
from comet_broker.sharing.table import ShareTable
from comet_broker.streams.context import SessionContext, StreamClient
from comet_broker.streams.session import Session
from tests.unit.replica_world import ReplicaWorld, settle
from tests.unit.storage_world import IDENTITY
from tests.waiting import until

SLOT = 3
TOPIC_ID = IDENTITY.topic_id.hex()


class FakeMember:
    """group.MemberConnection."""

    closed = False

    def __init__(self) -> None:
        self.frames: list[pb.ServerFrame] = []

    def send(self, frame: pb.ServerFrame) -> None:
        self.frames.append(frame)

    def fail(self, request: int, error: Exception) -> None:
        raise error

    def spawn(self, request: int, work: Any) -> None:
        raise AssertionError("no request here is slow")


async def groups_of(world: ReplicaWorld) -> Groups:
    head = Head(broker=1, epoch=1, sequence=0)
    key = slot_prefix(SLOT) + "head"
    revision = (await world.store.transact([], [Put(key, head.encode())])).revision
    callbacks: Any = {"lost": None, "halt": None}
    journal = Journal(world.store, key=key, head=head, revision=revision, tasks=world.tasks, **callbacks)
    logs: Any = SimpleNamespace(catalog=lambda: {"t": Shape(TOPIC_ID, 1)}, racks=lambda _: ())
    unused: Any = None
    world.view.state.coordinators[SLOT] = SimpleNamespace(value=SimpleNamespace(epoch=1))  # type: ignore[assignment]
    context = SlotContext(world.env, world.view, world.store, logs, unused, lag_series=lambda: 0)
    return Groups(SlotClaim(SLOT, 1, journal), context)


async def test_a_coordinator_assigns_a_member_its_partitions_and_stores_the_group_first() -> None:
    world = ReplicaWorld()
    groups, member = await groups_of(world), FakeMember()
    Memberships(groups, world.env).join(member, 1, groups_pb2.Join(group="g", topics=["t"], client="c"))
    await until(lambda: len(member.frames) == 2, within_s=30)
    joined, assigned = member.frames
    assert joined.request == 1 and joined.joined.member
    assert [topic.topic for topic in assigned.assignment.owned] == ["t"]
    assert await world.store.get(slot_prefix(SLOT) + "groups/g") is not None
    groups.close(PartitionNotFound("over"))
    assert member.frames[2].evicted.group == "g"
    await world.tasks.close()


async def test_a_stream_that_is_not_read_is_heard_by_its_open_slots() -> None:
    class OneSlot:
        def __init__(self, closed: Exception | None) -> None:
            self.closed = closed
            self.heard: list[MemberStream] = []
            self.members = SimpleNamespace(stream_heard=self.heard.append)

    unused: Any = None
    stream, slots = MemberStream(unused, unused, unused), [OneSlot(None), OneSlot(PartitionNotFound("over"))]
    stream._slots = set(slots)  # type: ignore[arg-type]
    stream.heard()
    assert [slot.heard for slot in slots] == [[stream], []]


async def test_a_stream_that_is_heard_keeps_its_members_and_no_others() -> None:
    world = ReplicaWorld()
    groups = await groups_of(world)
    memberships, mine, other = Memberships(groups, world.env), FakeMember(), FakeMember()
    for stream in (mine, other):
        memberships.join(stream, 1, groups_pb2.Join(group="g", topics=["t"], client="c"))
    world.clock.now_us += 5_000_000
    memberships.stream_heard(mine)
    members = groups.known("g").machine.members.values()
    assert [world.clock.monotonic() - one.heard for one in members] == [0.0, 5.0]
    memberships.stream_closed(mine)
    memberships.stream_heard(mine)
    groups.close(PartitionNotFound("over"))
    await world.tasks.close()


class FakeAcquirer:
    """sharing.acquirer_queue.Acquirer."""

    bytes_max = 0

    def __init__(self) -> None:
        self.holder = Holder()
        self.called = False
        self.over: Exception | None = None

    def credit(self) -> int:
        return 10

    def call(self) -> None:
        self.called = True

    def freed(self) -> None:
        return

    def ended(self, error: Exception) -> None:
        self.over = error


async def test_a_share_group_gives_each_record_once_and_ends_with_its_table() -> None:
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10})
    world.produce(3)
    world.follow(2, 3)
    unused: Any = None
    table = ShareTable(
        world.env,
        store=world.store,
        view=world.view,
        reader=LogReader(world.worker),
        broker_epoch=lambda: 10,
        draining=lambda: False,
        publish=unused,
    )
    agreed = Agreed(Options(lock_s=30, deliveries_max=5, by_key=False, dead_letters=False))
    state = await table.open(world.partition, "g", agreed, Earliest())
    first, second = FakeAcquirer(), FakeAcquirer()
    state.add_member(first)
    state.add_member(second)
    served = [state.serve(first), state.serve(second)]
    ranges = [range(start, end) for one in served if one is not None for start, end, _ in one[1]]
    assert sorted(offset for one in ranges for offset in one) == [0, 1, 2]
    error = PartitionNotFound("over")
    table.close(error)
    assert (first.over, second.over) == (error, error)
    await world.tasks.close()


class NoFrames:
    """streams.context.ShareHandler that handles nothing."""

    def __init__(self) -> None:
        self.closed = False

    def take(self, request: int, kind: str, frame: Any) -> bool:
        return False

    def next_frame(self) -> bytes | None:
        return None

    def remove(self, number: int, handles: list[int]) -> None:
        return

    def heard(self) -> None:
        return

    def close(self) -> None:
        self.closed = True


async def no_metadata(_: pb.FetchMetadataRequest) -> pb.FetchMetadataResponse:
    raise AssertionError("not asked here")


class StreamWorld:
    """A session of a broker that leads one partition, with the handle 1. What it fetches is 100 kB each."""

    def __init__(self, world: ReplicaWorld) -> None:
        self.world = world
        self.handlers = NoFrames()
        self.over: list[Session] = []
        self.meter = RequestMeter()
        self.fetched = 0
        topics: Any = SimpleNamespace(by_handle={1: world.partition})
        context = SessionContext(
            env=world.env,
            topics=topics,
            reader=LogReader(world.worker),
            meter=self.meter,
            check_draining=lambda: None,
            cluster_id=lambda: "c",
            metadata=no_metadata,
            fetch=self._fetch,
            batch_bytes_max=1 << 20,
            members=lambda _: self.handlers,
            sharing=lambda *_: self.handlers,
            keys=lambda *_: self.handlers,
        )
        self.usage = Quotas(world.env.clock).usage(EVERYTHING.principal)
        liveness = Liveness(OF_CLIENTS, world.env.clock.monotonic())
        client = StreamClient(1, "peer", EVERYTHING, self.usage, liveness)
        self.session = Session(context, client, self.over.append)

    async def _fetch(self, wanted: pb.FetchRequest) -> tuple[pb.FetchResponse, bytes]:
        self.fetched += 1
        if wanted.partition == 9:
            raise PartitionNotFound("there are fewer")
        return pb.FetchResponse(next_offset=self.fetched), bytes(100_000)

    def fetch(self, request: int, **wanted: Any) -> None:
        content = {"whole_batches": True, "forwarded": True} | wanted
        frame = pb.ClientFrame(request=request, fetch=pb.FetchRequest(topic="t", **content))
        self.session.receive(frame.SerializeToString())

    def polled(self) -> pb.ServerFrame | None:
        frame = self.session.poll()
        return None if frame is None else pb.ServerFrame.FromString(joined(frame))


async def test_a_session_acknowledges_a_batch_and_refuses_one_of_an_unknown_partition() -> None:
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10})
    stream = StreamWorld(world)
    session, usage = stream.session, stream.usage
    for request, handle in ((1, 1), (2, 7)):
        parts = records.encode([b"x"], timestamps=1)
        session.receive(produce_frame(request, handle, int(Acks.LEADER), parts, sum(map(len, parts))))
    await settle()
    refused = stream.polled()
    assert refused is not None
    assert refused.request == 2 and isinstance(error_from_pb(refused.error.error), PartitionNotFound)
    acknowledged = parse_ack(joined(session.poll() or b""))
    assert acknowledged is not None and acknowledged[:2] == (1, 0)
    assert session.poll() is None
    assert stream.meter.errors == {"PARTITION_NOT_FOUND": 1}
    usage.set_quota(Quota("*", bytes_in=1_000))
    parts = records.encode([bytes(4_000)], timestamps=1)
    session.receive(produce_frame(3, 1, int(Acks.LEADER), parts, sum(map(len, parts))))
    await settle()
    throttled = pb.ServerFrame.FromString(joined(session.poll() or b"")).acks
    assert list(throttled.requests) == [3] and 3_500 <= throttled.throttled_ms <= 3_700
    session.close()
    assert stream.handlers.closed and stream.over == [session]
    await world.tasks.close()


async def test_a_session_reads_what_is_fetched_when_the_answer_before_it_is_taken() -> None:
    """So a client that asks for much and reads nothing holds the memory of one answer."""
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10})
    stream = StreamWorld(world)
    for request in range(1, 6):
        stream.fetch(request)
    await settle()
    assert stream.fetched == 1
    assert 100_000 < world.env.in_flight.held_bytes < 101_000
    for request in range(1, 4):
        answer = stream.polled()
        assert answer is not None and answer.request == request
        assert answer.fetched.batches == bytes(100_000) and answer.fetched.next_offset == request
        assert stream.session.poll() is None
        await settle()
        assert stream.fetched == request + 1
    assert stream.session.sent_bytes > 300_000
    stream.session.close()
    await settle()
    assert stream.fetched == 4, "the fifth is not read any more"
    assert world.env.in_flight.held_bytes == 0
    await world.tasks.close()


async def test_an_answer_to_a_fetch_can_be_taken_after_its_task_was_cancelled() -> None:
    """As when a broker stops."""
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10})
    stream = StreamWorld(world)
    stream.fetch(1)
    await settle()
    await world.tasks.close()
    answer = stream.polled()
    assert answer is not None and answer.request == 1
    stream.session.close()
    assert world.env.in_flight.held_bytes == 0


async def test_a_fetch_that_fails_does_not_hold_up_the_next_and_one_that_would_is_refused() -> None:
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10})
    stream = StreamWorld(world)
    stream.fetch(1, partition=9)
    stream.fetch(2, wait_ms=1)
    stream.fetch(3, whole_batches=False)
    stream.fetch(4, forwarded=False)
    stream.fetch(5)
    await settle()
    codes = {}
    while (frame := stream.polled()) is not None:
        codes[frame.request] = type(error_from_pb(frame.error.error)) if frame.HasField("error") else None
    assert codes == {1: PartitionNotFound, 5: None} | dict.fromkeys((2, 3, 4), InvalidArgument)
    stream.session.close()
    await world.tasks.close()
