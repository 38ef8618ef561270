"""A broker with little memory, or few file descriptors: it refuses with typed errors, lives, and serves the others."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

import comet
from comet.errors import CometError, LimitExceeded
from comet.v1 import records_pb2 as pb
from comet.wire.grpc_channel import GrpcChannel
from comet_broker import limits
from comet_broker.memory.guard import UNFINISHED_SHARE
from tests.robustness.machine import memory_group
from tests.robustness.process import BrokerProcess, broker
from tests.robustness.unfinished_messages import UnfinishedMessages
from tests.waiting import pace, until

pytestmark = pytest.mark.slow

MEMORY_BYTES = 256 << 20
STREAM = "/comet.v1.Comet/Stream"
FRAME_BYTES = int(limits.MESSAGE_SHARE * MEMORY_BYTES)  # the largest that it takes
ROUNDS = 20  # that a bystander makes after the abuse
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


@pytest.fixture
def small(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that the kernel kills if it needs more than 256 MiB."""
    with memory_group(MEMORY_BYTES) as group, broker(tmp_path / "data", within=("sh", "-c", ENTER, str(group))) as one:
        yield one


@asynccontextmanager
async def publishing(process: BrokerProcess) -> AsyncIterator[Callable[[], int]]:
    """A producer for which every record must be stored, whatever others do, and more of them afterwards."""
    async with comet.Admin(process.address) as admin:
        await admin.create_topic("good", flush="os")
    stop, sent = asyncio.Event(), 0

    async def work(producer: comet.Producer) -> None:
        nonlocal sent
        after = 0
        while after < ROUNDS:
            receipt = await producer.publish("good", b"%d" % sent)
            assert receipt.offset == sent
            sent += 1
            after += stop.is_set()
            await pace(0.005)

    async with comet.Producer(process.address) as producer:
        working = asyncio.create_task(work(producer))
        assert await until(lambda: sent > ROUNDS, within_s=30)
        try:
            yield lambda: sent
        finally:
            stop.set()
        async with asyncio.timeout(60):
            await working
    assert psutil.Process(process.pid).is_running(), "it lives"
    assert not process.complaints(), process.said()


@pytest.mark.parametrize("path", [STREAM, "/comet.v1.Comet/Publish", "/grpc.health.v1.Health/Check"])
async def test_unfinished_messages_are_shed(small: BrokerProcess, path: str) -> None:
    channel = GrpcChannel(small.address)
    silent = channel.stream()
    async with publishing(small):
        abuse = await asyncio.to_thread(UnfinishedMessages, small.port, path, 64, FRAME_BYTES)
        try:
            await asyncio.to_thread(abuse.send, 30.0)
        finally:
            abuse.close()
        assert abuse.sent_bytes > 64 << 20, "it took them as long as it had memory"
        # A call that the broker took only after it had ended the others may stay, if memory is enough for it.
        left = 0 if abuse.closed else abuse.calls - len(abuse.ended)
        assert left * FRAME_BYTES < UNFINISHED_SHARE * MEMORY_BYTES
        with pytest.raises(LimitExceeded, match="short of memory") as ended:  # no whole message came from it, either
            async with asyncio.timeout(30):
                await silent.read()
        assert ended.value.retriable and ended.value.retry_after_ms > 0
    await channel.close()


async def test_too_many_large_frames_are_shed(small: BrokerProcess) -> None:
    channels = [GrpcChannel(small.address) for _ in range(32)]
    outcomes: Counter[str] = Counter()

    async def send(channel: GrpcChannel) -> None:
        stream = channel.stream()
        try:
            await stream.write(pb.ClientFrame(request=1, hello=pb.Hello(client="large")).SerializeToString())
            for _ in range(4):
                await stream.write(bytes(FRAME_BYTES))
            for _ in range(5):
                assert await stream.read() is not None
        except CometError as error:
            outcomes[f"{error.code}, retriable: {error.retriable}"] += 1
        else:
            outcomes["all"] += 1

    async with publishing(small):
        async with asyncio.timeout(120):
            await asyncio.gather(*(send(channel) for channel in channels))
        # gRPC loses the broker's status where a write fails.
        assert outcomes.keys() <= {"all", "LIMIT_EXCEEDED, retriable: True", "UNAVAILABLE, retriable: True"}
    for channel in channels:
        await channel.close()


async def test_waiting_fetches_are_limited_and_share_an_answer(small: BrokerProcess) -> None:
    """Beyond the limit they are refused, to be repeated; the others get one record of 100 kB at once."""
    channels = [GrpcChannel(small.address) for _ in range(50)]
    outcomes: Counter[str] = Counter()
    record, refused = os.urandom(100_000), "LIMIT_EXCEEDED, retry: True"

    async def fetch(channel: GrpcChannel) -> None:
        request = pb.FetchRequest(topic="long", partition=0, wait_ms=60_000)
        try:
            answer = await channel.unary("comet.v1.Comet/Fetch", request, pb.FetchResponse, 90)
        except CometError as error:
            outcomes[f"{error.code}, retry: {error.retriable and error.retry_after_ms > 0}"] += 1
        else:
            outcomes["whole" if [one.value for one in answer.records] == [record] else "other"] += 1

    async with publishing(small) as sent, comet.Admin(small.address) as admin, comet.Producer(small.address) as other:
        await admin.create_topic("long", flush="os")
        calls: list[asyncio.Task[None]] = []
        for _ in range(50):  # some at a time: gRPC refuses the calls that a connection has beyond its limit
            calls += [asyncio.create_task(fetch(channel)) for channel in channels]
            await pace(0.05)
        limit = int(limits.IN_FLIGHT_SHARE * MEMORY_BYTES) // 4 // limits.CALL_BYTES
        assert await until(lambda: outcomes[refused] >= len(calls) - limit, within_s=60), outcomes
        before = sent()
        await other.publish("long", record)
        async with asyncio.timeout(60):
            await asyncio.gather(*calls)
        assert sent() > before, "others are not delayed until all are answered"
    assert outcomes == {"whole": limit, refused: len(calls) - limit}
    for channel in channels:
        await channel.close()


async def test_idle_connections_leave_descriptors_for_files(tmp_path: Path) -> None:
    """The soft limit is raised to the hard one, and connections get half of it."""
    within = ("sh", "-c", 'ulimit -Sn 256 && ulimit -Hn 512 && exec "$0" "$@"')
    with broker(tmp_path / "data", within=within) as process, ExitStack() as idle:
        found = psutil.Process(process.pid)
        assert found.rlimit(psutil.RLIMIT_NOFILE) == (512, 512)
        async with comet.Admin(process.address) as admin:
            await admin.create_topic("before")
            for _ in range(600):
                with suppress(OSError):
                    idle.enter_context(socket.create_connection(("127.0.0.1", process.port)))
            await admin.create_topic("after", partitions=50)
            assert found.num_fds() < 512
        async with comet.Producer(process.address) as producer:
            async with asyncio.timeout(3 * limits.CONNECTION_HANDSHAKE_MS / 1000):
                await producer.publish("after", b"x")
        assert "descriptor" not in process.said() and "Too many" not in process.said()


async def test_a_broker_has_more_partitions_than_descriptors(tmp_path: Path) -> None:
    """Those that are not written take none."""
    within = ("sh", "-c", 'ulimit -Sn 256 && ulimit -Hn 256 && exec "$0" "$@"')
    with broker(tmp_path / "data", within=within) as process:
        async with comet.Admin(process.address) as admin:
            await admin.create_topic("many", partitions=500)
        for _ in range(2):
            async with comet.Producer(process.address) as producer:
                for partition in range(20):
                    await producer.publish("many", b"x", partition=partition)
            assert psutil.Process(process.pid).num_fds() < 128
            process.terminate()
            process.start()
        async with comet.Consumer(process.address, "many", start="earliest") as consumer:
            async with asyncio.timeout(60):
                found = [await consumer.get() for _ in range(40)]
        assert {record.partition for record in found if record is not None} == set(range(20))
        assert "Too many" not in process.said()
