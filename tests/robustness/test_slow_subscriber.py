"""Subscribers that stop reading cost the broker a bounded amount of memory, whatever is produced meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest

import comet
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet_broker import limits
from tests.robustness.process import broker, highest_resident_bytes
from tests.robustness.test_hostile import Stream, handle_of, open_stream

SUBSCRIBERS = 20
PRODUCED_BYTES = 400 << 20
# Per subscriber: a delivery on its way, gRPC's write buffer and HTTP/2's window. Shared: the tail and the produced
# messages under way. A broker that buffered for its subscribers would need 400 MiB for each.
GROWTH_BYTES_MAX = SUBSCRIBERS * (5 << 20) + limits.TAIL_TOTAL_BYTES_MAX + (64 << 20)


@pytest.mark.slow
async def test_subscribers_that_stop_reading_cost_bounded_memory(tmp_path: Path) -> None:
    value = bytes(64 << 10)
    with broker(tmp_path / "data") as process:
        async with comet.Admin(process.address) as admin:
            await admin.create_topic("t", flush="os", segment_bytes=16 << 20, retention_bytes=64 << 20)
        channels = [
            grpc.aio.insecure_channel(process.address, [("grpc.use_local_subchannel_pool", 1)])
            for _ in range(SUBSCRIBERS)
        ]
        streams = [await _subscribe(channel) for channel in channels]
        before = process.resident_bytes()
        stop = asyncio.Event()
        watching = asyncio.create_task(highest_resident_bytes(process, stop))
        async with comet.Producer(process.address) as producer:
            for _ in range(PRODUCED_BYTES // len(value)):
                await producer.send("t", value)
            await producer.flush()
        stop.set()
        growth = await watching - before
        assert growth < GROWTH_BYTES_MAX, f"grew by {growth >> 20} MiB for {SUBSCRIBERS} subscribers that do not read"
        for stream in streams:
            stream.cancel()
        for channel in channels:
            await channel.close()


async def _subscribe(channel: grpc.aio.Channel) -> Stream:
    """A subscriber with all the credit there is, which never reads a delivery."""
    stream = open_stream(channel)
    start = pb.Start(partition=await handle_of(stream, "t"), position=types.Position(latest=True))
    subscribe = pb.Subscribe(subscription=1, starts=[start], credit=limits.CREDIT_BYTES_MAX)
    await stream.write(pb.ClientFrame(request=2, subscribe=subscribe).SerializeToString())
    return stream
