"""Connections that abuse HTTP/2 itself: the calls of others succeed, and the broker's memory stays within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from grpc_health.v1 import health_pb2

from comet.errors import Unavailable
from comet.v1 import records_pb2 as pb
from comet.wire.grpc_channel import GrpcChannel
from comet_broker import limits
from comet_broker.server import calls_limits
from tests.robustness.http2 import (
    CONTINUATION,
    DATA,
    HEADERS,
    PING,
    SETTINGS,
    WINDOW,
    Flood,
    frame,
    headers,
    pings,
    references,
    resets,
)
from tests.robustness.process import BrokerProcess, broker
from tests.waiting import until, until_answered

pytestmark = pytest.mark.slow

PUBLISH = "/comet.v1.Comet/Publish"
CALL_S_MAX = 30.0
OTHERS = 5  # connections of others


async def others_call(process: BrokerProcess) -> None:
    """New calls of others, unary ones and streams, all of which must succeed; without the SDK's retries."""
    channels = [GrpcChannel(process.address) for _ in range(OTHERS)]

    async def check(channel: GrpcChannel) -> None:
        request, response = health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse
        answer = await channel.unary("grpc.health.v1.Health/Check", request, response, CALL_S_MAX)
        assert answer.status == response.SERVING

    async def greet(channel: GrpcChannel) -> None:
        stream = channel.stream()
        await stream.write(pb.ClientFrame(request=1, hello=pb.Hello(client="other")).SerializeToString())
        frame = await stream.read()
        assert frame is not None and pb.ServerFrame.FromString(bytes(frame)).welcome.broker_id
        stream.cancel()

    try:
        async with asyncio.timeout(2 * CALL_S_MAX):
            await asyncio.gather(*(call(channel) for call in (check, greet) for channel in channels))
    finally:
        for channel in channels:
            await channel.close()


async def others_are_served(process: BrokerProcess) -> bool:
    with suppress(Unavailable):
        await others_call(process)
        return True
    return False


def lives(process: BrokerProcess) -> bool:
    return psutil.Process(process.pid).is_running() and not process.complaints()


async def test_calls_of_others_succeed_during_rapid_reset(tmp_path: Path) -> None:
    """Two connections may have half of the calls that may wait. gRPC refuses their further calls, and no others."""
    with broker(tmp_path / "data", options=("--memory-bytes-max", "1GiB")) as process, ExitStack() as abuse:
        floods = [abuse.enter_context(Flood(process.port, resets(PUBLISH))) for _ in range(2)]
        assert await until(lambda: all(flood.sent > 10_000 for flood in floods), within_s=30)
        await others_call(process)
        assert not any(flood.closed for flood in floods)
        assert lives(process), process.said()


@pytest.mark.parametrize("times", [110, 230])
async def test_references_to_the_header_table_take_bounded_memory(tmp_path: Path, times: int) -> None:
    """As many as METADATA_BYTES_MAX allows, and twice as many, which are refused."""
    memory_bytes = 256 << 20
    pending_max, _ = calls_limits(memory_bytes)
    with broker(tmp_path / "data", options=("--memory-bytes-max", f"{memory_bytes >> 20}MiB")) as process:
        before = process.resident_bytes()
        with ExitStack() as abuse:
            flood = references(PUBLISH, times)
            floods = [abuse.enter_context(Flood(process.port, flood)) for _ in range(4)]
            assert await until(lambda: sum(one.sent for one in floods) > 80_000, within_s=60)
            assert process.resident_bytes() - before < 1.5 * pending_max * limits.PENDING_CALL_BYTES
        # Four connections together have as many calls as may wait, until these are taken.
        assert await until_answered(lambda: others_are_served(process), within_s=60)
        assert lives(process), process.said()


async def test_pings_are_answered_without_delaying_others(tmp_path: Path) -> None:
    with broker(tmp_path / "data") as process, Flood(process.port, pings) as flood:
        await others_call(process)
        assert await until(lambda: flood.answered[PING] > 20_000, within_s=30)
        assert not flood.closed
        assert lives(process), process.said()


FLOODS: dict[str, Callable[[int], bytes]] = {
    "settings": lambda _: frame(SETTINGS, 0, 0),
    "windows": lambda _: frame(WINDOW, 0, 0, (1).to_bytes(4, "big")),
    "empty data": lambda number: (frame(HEADERS, 4, 1, headers(PUBLISH)) if number == 1 else b"") + frame(DATA, 0, 1),
    "continuations": lambda number: (
        frame(HEADERS, 0, 1, headers(PUBLISH)) if number == 1 else frame(CONTINUATION, 0, 1, b"\x00\x01x\x01y")
    ),
}


@pytest.mark.parametrize("kind", FLOODS)
async def test_other_floods_harm_nobody(tmp_path: Path, kind: str) -> None:
    with broker(tmp_path / "data") as process:
        before = process.resident_bytes()
        with Flood(process.port, FLOODS[kind]) as flood:
            assert await until(lambda: flood.sent > 50_000 or flood.closed, within_s=30)
            await others_call(process)
        assert process.resident_bytes() - before < 64 << 20
        assert lives(process), process.said()
