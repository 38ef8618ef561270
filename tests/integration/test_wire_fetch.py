"""Fetches over a stream of the wire, as readers of ranges and Spark's workers make them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import comet
from comet.wire.grpc_channel import GrpcChannel
from comet_broker import limits
from comet_broker.server import Server
from tests.integration.test_wire import open_wires, served

# Of one answer: over and under the size from which a frame goes out in parts, and batches over the limit of an answer.
SIZES = [10, 100_000, limits.FETCH_BYTES_MAX + 1]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with served(tmp_path) as found, comet.Admin(found.address) as admin:
        await admin.create_topic("quotes", record_bytes_max=limits.FETCH_BYTES_MAX + 100)
        async with comet.Producer(found.address) as producer:
            for size in SIZES:
                for _ in range(3):
                    await producer.publish("quotes", bytes(size))
        yield found


@pytest.fixture
def unary(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls over gRPC."""
    made: list[str] = []
    call = GrpcChannel.unary

    async def noted(channel: GrpcChannel, method: str, *rest: Any) -> Any:
        made.append(method)
        return await call(channel, method, *rest)

    monkeypatch.setattr(GrpcChannel, "unary", noted)
    return made


async def read(reader: comet.Reader, **options: Any) -> list[int]:
    sizes: list[int] = []
    async for part in reader.read("quotes", 0, **options):
        assert not isinstance(part, comet.Gap)
        sizes += [len(value or b"") for value in part.values]
    return sizes


@pytest.mark.parametrize("backward", [False, True])
async def test_a_range_is_read_over_the_wire(server: Server, unary: list[str], backward: bool) -> None:
    async with comet.Reader(server.address) as reader:
        found = await read(reader, backward=backward)
        assert sorted(found) == sorted(SIZES * 3)
        assert open_wires(server) == 1 and "comet.v1.Comet/Fetch" not in unary


async def test_over_grpc_the_same_is_read(server: Server, unary: list[str]) -> None:
    async with comet.Reader(comet.Bootstrap(server.address, transport="grpc")) as reader:
        assert sorted(await read(reader)) == sorted(SIZES * 3)
        assert open_wires(server) == 0 and "comet.v1.Comet/Fetch" in unary


async def test_a_fetch_that_waits_is_a_call(server: Server, unary: list[str]) -> None:
    async with comet.Reader(server.address) as reader:
        found = await reader.fetch("quotes", 0, 9, wait_ms=1)
        assert not found.batches and found.next_offset == 9
        assert unary.count("comet.v1.Comet/Fetch") == 1


async def test_its_errors_are_those_of_the_call(server: Server, unary: list[str]) -> None:
    async with comet.Reader(server.address) as reader:
        with pytest.raises(comet.errors.OffsetOutOfRange) as caught:
            await reader.fetch("quotes", 0, 100)
        assert caught.value.details["log_end"] == "9"
        with pytest.raises(comet.errors.PartitionNotFound):
            await reader.fetch("quotes", 7)
        with pytest.raises(comet.errors.TopicNotFound, match="recreated"):
            await reader.fetch("quotes", 0, topic_id=bytes(16))
        assert len((await reader.fetch("quotes", 0)).batches) == 6, "of 1 MiB together"
        assert "comet.v1.Comet/Fetch" not in unary
