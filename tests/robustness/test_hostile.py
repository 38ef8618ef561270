"""Clients that send garbage over real connections: a typed error for them, and no harm to anyone else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc
import grpc.aio
import pytest

import comet
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet.wire.frames import produce_frame
from comet.wire.grpc_channel import GrpcChannel
from comet_broker import limits
from tests.robustness.process import BrokerProcess, broker, highest_resident_bytes
from tests.sim.raw import bad_batches
from tests.waiting import pace, until

Stream = grpc.aio.StreamStreamCall[bytes, bytes]
ROUNDS = 10  # that a bystander makes before and after
BYSTANDER_S_MAX = 20.0  # for one of them
HARM_BYTES_MAX = 150 << 20  # what all the abuse of one test may add to the broker's memory


@asynccontextmanager
async def bystander(process: BrokerProcess) -> AsyncIterator[Callable[[], int]]:
    """A producer and a consumer that must not notice anything; and a broker that must not grow without limit.

    Gives how many rounds they have made.
    """
    address = process.address
    async with comet.Admin(address) as admin:
        await admin.create_topic("good", flush="os")
        await admin.create_topic("bad", flush="os")
    before = process.resident_bytes()
    stop, under_way = asyncio.Event(), asyncio.Event()
    async with comet.Producer(address) as producer, comet.Consumer(address, "good", start="earliest") as consumer:
        sent = 0

        async def work() -> None:
            nonlocal sent
            still = 0  # `still`: rounds after what was done to the broker
            while still < ROUNDS:
                async with asyncio.timeout(BYSTANDER_S_MAX):
                    receipt = await producer.publish("good", b"%d" % sent)
                    record = await consumer.get()
                assert record is not None
                assert (receipt.offset, record.offset, record.value) == (sent, sent, b"%d" % sent)
                sent += 1
                still += stop.is_set()
                if sent == ROUNDS:
                    under_way.set()
                await pace(0.005)

        working = asyncio.create_task(work())
        watching = asyncio.create_task(highest_resident_bytes(process, stop))
        try:
            async with asyncio.timeout(30):
                await under_way.wait()
            yield lambda: sent
        finally:
            stop.set()
        await working
        assert await watching - before < HARM_BYTES_MAX
    assert not process.complaints(), process.said()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker(tmp_path / "data") as running:
        yield running


async def answer_of(stream: Stream) -> pb.ServerFrame:
    frame = await stream.read()
    assert isinstance(frame, bytes), "the broker ended the stream"
    return pb.ServerFrame.FromString(frame)


async def handle_of(stream: Stream, topic: str) -> int:
    await stream.write(pb.ClientFrame(request=1, attach=pb.Attach(topic=topic)).SerializeToString())
    while True:
        answer = await answer_of(stream)
        if answer.HasField("attached"):
            return int(answer.attached.partition)


async def code_of(stream: Stream, request: int) -> str:
    """The code of the error that answers a request."""
    while True:
        async with asyncio.timeout(10):
            answer = await answer_of(stream)
        if answer.request == request and answer.HasField("error"):
            return types.ErrorCode.Name(answer.error.error.code).removeprefix("ERROR_CODE_")


def open_stream(channel: grpc.aio.Channel) -> Stream:
    return channel.stream_stream("/comet.v1.Comet/Stream")()


async def test_malformed_frames_are_answered_and_the_stream_goes_on(process: BrokerProcess) -> None:
    random = Random(1)
    async with bystander(process), grpc.aio.insecure_channel(process.address) as channel:
        stream = open_stream(channel)
        for size in (0, 1, 7, 24, 31, 4096, 1 << 20):
            await stream.write(random.randbytes(size))
            assert await code_of(stream, 0) == "MALFORMED_FRAME"
        handle = await handle_of(stream, "bad")
        for number, (batch, what) in enumerate(bad_batches(random) * 20):
            request = number + 10
            await stream.write(produce_frame(request, handle, 1, [batch], len(batch)))
            assert await code_of(stream, request) in {"CORRUPT_BATCH", "UNSUPPORTED_VERSION"}, what
        await stream.write(pb.ClientFrame(request=9, ping=pb.Ping()).SerializeToString())
        assert (await answer_of(stream)).HasField("pong")


async def test_a_produce_frame_that_lies_about_its_lengths_is_refused(process: BrokerProcess) -> None:
    async with bystander(process), grpc.aio.insecure_channel(process.address) as channel:
        stream = open_stream(channel)
        handle = await handle_of(stream, "bad")
        good = bad_batches(Random(2))[5][0][:-8]
        frame = bytearray(produce_frame(7, handle, 1, [good], len(good)))
        for position in (6, 7, 19, 20):
            lying = bytearray(frame)
            lying[position] ^= 0x15
            await stream.write(bytes(lying))
        await stream.write(bytes(frame[:-1]))
        await stream.write(bytes(frame) + b"\0")
        await stream.write(pb.ClientFrame(request=9, ping=pb.Ping()).SerializeToString())
        answers: list[pb.ServerFrame] = []
        while not answers or not answers[-1].HasField("pong"):
            answers.append(await answer_of(stream))
        assert len(answers) == 7
        assert all(answer.HasField("error") for answer in answers[:-1])


async def test_messages_beyond_the_limit_end_only_their_own_call(process: BrokerProcess) -> None:
    options = [("grpc.max_send_message_length", -1)]
    async with bystander(process), grpc.aio.insecure_channel(process.address, options) as channel:
        for size in (limits.MESSAGE_BYTES_MAX + 1, 3 * limits.MESSAGE_BYTES_MAX):
            stream = open_stream(channel)
            await stream.write(bytes(size))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.read()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_batch_beyond_the_limit_is_refused_with_the_limit_in_the_message(process: BrokerProcess) -> None:
    async with bystander(process):
        async with comet.Producer(process.address) as producer:
            with pytest.raises(comet.RecordTooLarge, match="record_bytes_max"):
                await producer.publish("bad", bytes(2 << 20))
        channel = GrpcChannel(process.address)
        record = pb.Record(value=bytes(2 << 20))
        with pytest.raises(comet.RecordTooLarge):
            await channel.unary(
                "comet.v1.Comet/Publish",
                pb.PublishRequest(topic="bad", records=[record], acks=types.ACKS_LEADER),
                pb.PublishResponse,
                10.0,
            )
        await channel.close()


async def test_garbage_in_unary_calls_is_a_status(process: BrokerProcess) -> None:
    random = Random(3)
    call: Any
    methods = ["Comet/FetchMetadata", "Comet/Publish", "Comet/Fetch", "Admin/CreateTopic", "Admin/DeleteRecords"]
    async with bystander(process), grpc.aio.insecure_channel(process.address) as channel:
        for method in methods * 10:
            call = channel.unary_unary(f"/comet.v1.{method}")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(b"\xff" + random.randbytes(random.randint(0, 300)), timeout=10)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        call = channel.unary_unary("/comet.v1.Comet/NoSuchMethod")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def raw_garbage(port: int, data: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        async with asyncio.timeout(3):
            await reader.read(100)
    except (OSError, TimeoutError):
        pass
    finally:
        writer.close()


async def test_bytes_that_are_no_http2_harm_nobody(process: BrokerProcess) -> None:
    random = Random(4)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    attempts = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.randbytes(200),  # the begin of a TLS handshake
        preface + b"\xff\xff\xff\x04\x00\x00\x00\x00\x00",  # a frame of 16 MiB that never comes
        preface + random.randbytes(5000),
        random.randbytes(100_000),
        b"",
    ]
    async with bystander(process):
        await asyncio.gather(*(raw_garbage(process.port, data) for data in attempts * 5))


async def test_connections_that_never_speak_harm_nobody(process: BrokerProcess) -> None:
    async with bystander(process) as rounds:
        silent = [socket.create_connection(("127.0.0.1", process.port)) for _ in range(300)]
        known = rounds()
        assert await until(lambda: rounds() >= known + ROUNDS, within_s=30, every_s=0.005)
        for connection in silent:
            connection.close()


async def test_streams_opened_and_cancelled_leave_nothing_behind(process: BrokerProcess) -> None:
    async with bystander(process), grpc.aio.insecure_channel(process.address) as channel:
        for _ in range(300):
            stream = open_stream(channel)
            await stream.write(pb.ClientFrame(request=1, ping=pb.Ping()).SerializeToString())
            stream.cancel()
        async with asyncio.timeout(30), comet.Admin(process.address) as admin:
            while (await admin.statistics())["session_count"] > 4:
                pass  # it hears of each of them in turn


async def test_a_flood_of_requests_that_nobody_reads_the_answers_of_is_held_back(process: BrokerProcess) -> None:
    """Back-pressure: the broker stops reading from a client that it owes too many answers."""
    async with bystander(process), grpc.aio.insecure_channel(process.address) as channel:
        stream = open_stream(channel)
        ping = pb.ClientFrame(request=5, ping=pb.Ping()).SerializeToString()

        async def flood() -> None:
            for _ in range(3_000_000):
                await stream.write(ping)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(flood(), 5)
        stream.cancel()
