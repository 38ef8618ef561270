"""Quotas: their table, their rates, and what a stream and a call over its quota see, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet.errors import InvalidArgument, LimitExceeded
from comet.v1 import records_pb2 as pb
from comet.wire.frames import Outgoing, joined
from comet_broker.access import quotas as access_quotas
from comet_broker.access.client_access import ClientAccess
from comet_broker.access.quotas import CALL_WAIT_S, Quotas
from comet_broker.config import BrokerConfig
from comet_broker.core import quotas as core_quotas
from comet_broker.core.cluster import ClusterState, Versioned
from comet_broker.core.filter_time import FilterTime
from comet_broker.core.quotas import BURST_S, Quota, QuotaTable, TokenBucket, check_quota
from comet_broker.env import Env
from comet_broker.failures import Failures
from comet_broker.memory.in_flight import InFlight
from comet_broker.metrics.meter import RequestMeter
from comet_broker.partitions.log_reader import LogReader
from comet_broker.rpc import service
from comet_broker.streams.context import SessionContext
from comet_broker.streams.session import Session
from comet_broker.streams.sessions import Sessions
from comet_broker.streams.stream_writer import Outbox
from comet_broker.tasks import Tasks
from comet_testing.simulation.clock import SimClock
from comet_testing.simulation.loop import SimLoop
from comet_testing.simulation.loop import run as run_virtual
from comet_testing.simulation.worker import SimWorker, WorkerPace
from tests.unit.storage_world import HandClock
from tests.waiting import pace

ME, OTHER = "client:billing", "client:ann"
MB: Final = 1_000_000
FRAME: Final = pb.ClientFrame(hello=pb.Hello(client="x" * 100_000)).SerializeToString()
PING: Final = pb.ClientFrame(request=1, ping=pb.Ping()).SerializeToString()


def state_of(*quotas: Quota, revision: int) -> ClusterState:
    state = ClusterState(revision=revision)
    state.quotas = Versioned(QuotaTable(quotas).encode(), revision, revision)
    return state


# ---- the table


def test_a_quota_replaces_the_earlier_one_of_its_principal(monkeypatch: pytest.MonkeyPatch) -> None:
    table = QuotaTable().with_quota(Quota("client:b", streams=1)).with_quota(Quota("client:a", streams=2))
    table = table.with_quota(Quota("client:b", requests=3))
    assert [(one.principal, one.requests, one.streams) for one in table.quotas] == [
        ("client:a", 0, 2),
        ("client:b", 3, 0),
    ]
    assert table.without_quota("client:c") is table
    assert [one.principal for one in table.without_quota("client:a").quotas] == ["client:b"]
    monkeypatch.setattr(core_quotas, "TABLE_BYTES_MAX", 200)
    with pytest.raises(LimitExceeded, match="3 quotas take"):
        table.with_quota(Quota("client:c", streams=1))


@pytest.mark.parametrize(
    ("quota", "problem"),
    [
        (Quota("ann", streams=1), "not a principal"),
        (Quota("client:ann"), "limits something"),
        (Quota("client:ann", bytes_in=10), "bytes_in is 0"),
        (Quota("client:ann", requests=-1), "requests is 0"),
    ],
)
def test_a_quota_that_means_nothing_is_refused(quota: Quota, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        check_quota(quota)
    assert check_quota(Quota("*", bytes_in=1024)).principal == "*"


# ---- rates


@given(
    rate=st.integers(1, 10_000_000),
    steps=st.lists(st.tuples(st.integers(1, 1 << 24), st.floats(0, 5)), max_size=60),
)
def test_never_more_than_the_rate_and_one_burst(rate: int, steps: list[tuple[int, float]]) -> None:
    """Of a client that waits for each debt; what begins without debt may go beyond once."""
    now, taken, last = 0.0, 0, 0
    bucket = TokenBucket(rate, now)
    for amount, idle_s in steps:
        now += bucket.debt_s(now) + idle_s
        assert taken <= rate * (now + BURST_S) + 1
        bucket.take(amount, now)
        taken, last = taken + amount, amount
    assert taken - last <= rate * (now + BURST_S) + 1


def test_a_changed_rate_keeps_the_time_of_a_debt() -> None:
    bucket = TokenBucket(100, 0.0)
    bucket.take(250, 0.0)
    assert bucket.debt_s(0.0) == 2.0
    bucket.set_rate(1_000, 0.0)
    assert bucket.debt_s(0.5) == 1.5
    bucket.set_rate(0, 0.5)
    bucket.take(10**9, 0.5)
    assert bucket.debt_s(0.5) == 0.0 and bucket.is_full(0.5)
    bucket.set_rate(100, 1.0)
    bucket.take(50, 1.0)
    assert bucket.debt_s(1.0) == 0.0, "a new limit begins with its burst"


# ---- what holds for whom


def test_own_quotas_come_before_the_one_for_all_and_are_not_shared() -> None:
    quotas = Quotas(HandClock())
    mine, other = quotas.usage(ME), quotas.usage(OTHER)
    assert not mine.limited and quotas.limited(ME) is None
    quotas.moved(state_of(Quota(ME, streams=1), Quota("*", streams=2), revision=2))
    assert (mine.quota.streams, other.quota.streams, quotas.usage("client:new").quota.streams) == (1, 2, 2)
    assert quotas.limited(ME) is mine
    other.open_stream()
    other.open_stream()
    with pytest.raises(LimitExceeded, match="client:ann has 2 streams"):
        other.open_stream()
    other.close_stream()
    other.open_stream()
    quotas.usage("client:new").open_stream()
    quotas.moved(state_of(revision=3))
    assert not mine.limited and not other.limited


def test_a_table_that_cannot_be_read_leaves_the_earlier_quotas_in_force(caplog: pytest.LogCaptureFixture) -> None:
    quotas = Quotas(HandClock())
    quotas.moved(state_of(Quota(ME, streams=1), revision=2))
    state = ClusterState(revision=3)
    state.quotas = Versioned(b"{", 3, 3)
    quotas.moved(state)
    assert quotas.usage(ME).quota.streams == 1
    assert "the earlier ones stay in force" in caplog.text


def test_idle_usages_are_forgotten_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_quotas, "USAGES_MAX", 3)
    clock = HandClock()
    quotas = Quotas(clock)
    quotas.moved(state_of(Quota("*", bytes_in=2_000, streams=1), revision=2))
    streaming, in_debt, idle = (quotas.usage(f"client:{name}") for name in ("streaming", "debt", "idle"))
    streaming.open_stream()
    in_debt.call_received(4_000)
    idle.throttled_s = 3.0
    quotas.usage("client:new")
    assert quotas.usage("client:streaming") is streaming and quotas.usage("client:debt") is in_debt
    assert quotas.usage("client:idle") is not idle
    assert quotas.statistics() == {"throttled": [], "others_throttled_s": 3.0}
    clock.now_us += 2_000_000
    quotas.usage("client:newer")
    assert quotas.usage("client:debt") is not in_debt, "it has paid"


def test_statistics_have_the_most_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_quotas, "LISTED_MAX", 2)
    quotas = Quotas(HandClock())
    for number in range(4):
        quotas.usage(f"client:{number}").throttled_s = float(number)
    found = quotas.statistics()
    assert [(one["principal"], one["seconds"]) for one in found["throttled"]] == [("client:3", 3.0), ("client:2", 2.0)]
    assert found["others_throttled_s"] == 1.0


# ---- streams, on virtual time


async def no_metadata(_: pb.FetchMetadataRequest) -> pb.FetchMetadataResponse:
    raise AssertionError("not asked here")


class Handlers:
    """Stands for groups, and for deliveries: there is always one more, if it is to have some."""

    def __init__(self, delivery: bytes | None) -> None:
        self.delivery = delivery
        self.heartbeats: list[float] = []

    def take(self, request: int, kind: str, frame: Any) -> bool:
        return False

    def next_frame(self) -> bytes | None:
        return self.delivery

    def remove(self, number: int, handles: list[int]) -> None:
        return

    def heard(self) -> None:
        self.heartbeats.append(asyncio.get_running_loop().time())

    def close(self) -> None:
        return


class Stream:
    """A session at a transport whose client sends `frames` at once, for ever, or once each."""

    def __init__(self, world: World, principal: str, delivery: bytes | None = None) -> None:
        self.handlers = Handlers(delivery)
        world.handlers = self.handlers
        self.session = world.sessions.open("peer", ClientAccess(principal), "grpc")
        self.written: list[tuple[float, bytes]] = []
        self._world = world
        self._outbox = Outbox()
        self.session.writer.start(self._write, self._outbox, lambda _: None)
        self.session.writer.rouse()

    async def _write(self, frame: Outgoing) -> None:
        loop = asyncio.get_running_loop()
        self.written.append((loop.time(), joined(frame)))
        written = loop.create_future()
        loop.call_later(0.0001, written.set_result, None)
        await written

    async def send(self, *frames: bytes, endless: bool = False) -> None:
        queue = list(frames)

        async def read() -> Any:
            await pace(0.001)
            if endless:
                return frames[0]
            return queue.pop(0) if queue else grpc.aio.EOF

        context: Any = SimpleNamespace(read=read)
        broker: Any = SimpleNamespace(in_flight=self._world.in_flight, look_at_memory=lambda: None)
        await service._read(self.session, context, self._outbox, broker, limited=True)


class World:
    def __init__(self, loop: SimLoop) -> None:
        clock = SimClock(loop)
        tasks = Tasks()
        self.in_flight = InFlight(1 << 30)
        worker = SimWorker(Random(0), WorkerPace(seconds_max=0.0))
        self.quotas = Quotas(clock)
        self.handlers = Handlers(None)
        failures = Failures(clock, tasks)
        env = Env(
            BrokerConfig(Path("data")), clock, worker, Random(1), tasks, failures, self.in_flight, FilterTime(clock, 20)
        )
        topics: Any = SimpleNamespace(by_handle={})
        context = SessionContext(
            env=env,
            topics=topics,
            reader=LogReader(worker),
            meter=RequestMeter(),
            check_draining=lambda: None,
            cluster_id=lambda: "c",
            metadata=no_metadata,
            fetch=self._fetch,
            batch_bytes_max=1 << 20,
            members=lambda _: self.handlers,
            sharing=lambda *_: self.handlers,
            keys=lambda *_: self.handlers,
        )
        self.sessions = Sessions(partial(Session, context), self.quotas, failures, clock)

    @staticmethod
    async def _fetch(_: pb.FetchRequest) -> tuple[pb.FetchResponse, bytes]:
        return pb.FetchResponse(), bytes(MB // 10)

    def set(self, *quotas: Quota) -> None:
        self.quotas.moved(state_of(*quotas, revision=self.quotas._revision + 1))


def virtual(scenario: Any) -> None:
    """Runs it on virtual time."""

    async def main(loop: SimLoop) -> None:
        await scenario(World(loop))

    run_virtual(main)


async def during(seconds: float, *running: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.ensure_future(one) for one in running]
    await pace(seconds)
    for task in tasks:
        assert not task.done()
        task.cancel()


def test_a_client_that_ignores_its_quota_gets_no_more_and_disturbs_no_other() -> None:
    async def scenario(world: World) -> None:
        world.set(Quota(ME, bytes_in=MB))
        streams = [Stream(world, ME) for _ in range(3)]
        other = Stream(world, OTHER)
        await during(30, *(stream.send(FRAME, endless=True) for stream in streams), other.send(PING, endless=True))
        received = sum(stream.session.received_bytes for stream in streams)
        assert 0.95 < received / (30 * MB) < 1.05
        assert other.session.received_bytes > 29_000 * len(PING), "it is read each millisecond"
        assert world.quotas.statistics()["throttled"][0]["principal"] == ME

    virtual(scenario)


def test_a_client_that_is_read_later_is_told_each_second_and_keeps_its_memberships() -> None:
    async def scenario(world: World) -> None:
        world.set(Quota(ME, bytes_in=10_000))
        stream = Stream(world, ME)
        await stream.send(FRAME, FRAME, PING)
        notices = [
            (when, pb.ServerFrame.FromString(frame).acks.throttled_ms)
            for when, frame in stream.written
            if pb.ServerFrame.FromString(frame).HasField("acks")
        ]
        assert len(notices) == len(stream.handlers.heartbeats) == 20
        assert notices[0][1] == pytest.approx(19_500, abs=100), "two frames without a burst"
        for (when, left_ms), (later, then_ms) in pairwise(notices):
            assert later - when == pytest.approx(1.0, abs=0.001) and left_ms - then_ms == pytest.approx(1000, abs=1)
        assert pb.ServerFrame.FromString(stream.written[-1][1]).HasField("pong"), "it is read in the end"

    virtual(scenario)


def test_heartbeats_are_read_while_batches_are_to_wait() -> None:
    """Of a client that keeps to what it is told."""

    async def scenario(world: World) -> None:
        world.set(Quota(ME, bytes_in=10_000))
        stream = Stream(world, ME)
        await stream.send(FRAME, PING, PING)
        assert asyncio.get_running_loop().time() < 0.1
        assert stream.session.client.usage.read_later_s() > 9

    virtual(scenario)


def test_requests_have_a_rate() -> None:
    async def scenario(world: World) -> None:
        world.set(Quota(ME, requests=100))
        stream = Stream(world, ME)
        await during(30, stream.send(PING, endless=True))
        assert 0.95 < stream.session.received_bytes / len(PING) / 3_000 < 1.05

    virtual(scenario)


def test_deliveries_have_a_rate_and_answers_go_first() -> None:
    async def scenario(world: World) -> None:
        world.set(Quota(ME, bytes_out=MB))
        streams = [Stream(world, ME, FRAME) for _ in range(2)]
        await during(15)
        await streams[0].send(PING)
        asked = asyncio.get_running_loop().time()
        answer = next(when for when, frame in streams[0].written if pb.ServerFrame.FromString(frame).HasField("pong"))
        assert answer <= asked
        await during(15)
        sent = sum(stream.session.sent_bytes for stream in streams)
        assert 0.95 < sent / (30 * MB) < 1.05
        for stream in streams:
            stream.session.close()
        at_end = asyncio.get_running_loop().time()
        await during(5)
        assert max(when for stream in streams for when, _ in stream.written) <= at_end

    virtual(scenario)


def test_answers_to_fetches_have_the_rate_of_deliveries() -> None:
    async def scenario(world: World) -> None:
        world.set(Quota(ME, bytes_out=MB))
        stream = Stream(world, ME)
        fetch = pb.ClientFrame(request=1, fetch=pb.FetchRequest(whole_batches=True, forwarded=True))
        await during(30, stream.send(fetch.SerializeToString(), endless=True))
        assert 0.95 < stream.session.sent_bytes / (30 * MB) < 1.05

    virtual(scenario)


def test_deliveries_that_wait_go_on_soon_after_their_quota_is_gone() -> None:
    async def scenario(world: World) -> None:
        world.set(Quota(ME, bytes_out=1_024))
        stream = Stream(world, ME, FRAME)
        await during(5)
        assert stream.session.sent_bytes == len(FRAME), "the next one would be due after 97 s"
        world.set()
        await during(2)
        assert stream.session.sent_bytes > 100 * len(FRAME)

    virtual(scenario)


def test_a_quota_holds_for_open_streams_at_once_and_ends_so() -> None:
    async def scenario(world: World) -> None:
        stream = Stream(world, ME)
        sending = asyncio.ensure_future(stream.send(FRAME, endless=True))
        await pace(1)
        unlimited = stream.session.received_bytes
        world.set(Quota(ME, bytes_in=10_000))
        await pace(10)
        assert stream.session.received_bytes - unlimited <= 3 * len(FRAME)
        world.set()
        await pace(2)
        assert stream.session.received_bytes > 1.5 * unlimited
        sending.cancel()

    virtual(scenario)


# ---- unary calls


def test_calls_take_turns_and_are_refused_beyond_a_wait() -> None:
    async def scenario(world: World) -> None:
        world.set(Quota(ME, requests=10))
        usage = world.quotas.usage(ME)
        loop = asyncio.get_running_loop()
        admitted: list[float] = []

        async def call() -> None:
            await usage.admit("nothing")
            admitted.append(loop.time())

        results = await asyncio.gather(*(call() for _ in range(100)), return_exceptions=True)
        refused = [one for one in results if one is not None]
        assert len(admitted) == 10 * (CALL_WAIT_S + BURST_S)
        assert admitted[5:] == pytest.approx([0.1 * n for n in range(1, len(admitted) - 4)])
        assert len(refused) == 100 - len(admitted)
        for error in refused:
            assert isinstance(error, LimitExceeded) and 5_000 <= error.retry_after_ms <= 5_200
        await call()
        assert loop.time() <= 5.2, "a refused call costs nothing"

    virtual(scenario)


def test_calls_wait_for_the_direction_of_their_records_alone() -> None:
    async def scenario(world: World) -> None:
        world.set(Quota(ME, bytes_in=MB, bytes_out=MB))
        usage = world.quotas.usage(ME)
        loop = asyncio.get_running_loop()
        usage.call_received(3 * MB)
        await usage.admit("nothing")
        await usage.admit("out")
        assert loop.time() == 0.0
        await usage.admit("in")
        assert loop.time() == pytest.approx(2.5)
        usage.sent(10 * MB)
        with pytest.raises(LimitExceeded, match="client:billing has used up its quota"):
            await usage.admit("out")

    virtual(scenario)
