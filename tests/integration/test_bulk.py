"""Large batches, which go in parts: the same values over both transports, live and from the log."""

from __future__ import annotations

from random import Random

import pytest

import comet

BATCHES = 12
TOMBSTONE_EVERY = 97


def values_of(random: Random, size: int) -> list[bytes | None]:
    """About 256 KiB, of one size or of many, with tombstones among those of many."""
    count = (256 << 10) // size
    if random.random() < 0.5:
        return [random.randbytes(size) for _ in range(count)]
    return [None if at % TOMBSTONE_EVERY == 0 else random.randbytes(random.randint(0, size)) for at in range(count)]


async def read(consumer: comet.Consumer[bytes], count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async for batch in consumer.batches():
        found += batch.values
        if len(found) >= count:
            break
    return found


@pytest.mark.parametrize("producing", ["wire", "grpc"])
async def test_large_batches_come_as_they_were_sent(producing: str) -> None:
    random = Random(producing)
    sent: list[bytes | None] = []
    async with comet.testing.broker({"t": 1}) as broker:
        address = broker.address
        wire, grpc = comet.Bootstrap(address, transport="wire"), comet.Bootstrap(address, transport="grpc")
        async with (
            comet.Producer(comet.Bootstrap(address, transport=producing)) as producer,
            comet.Consumer(wire, "t", start="earliest") as first,
            comet.Consumer(grpc, "t", start="earliest") as second,
            comet.Consumer(wire, "t", start="earliest") as third,
        ):
            for at in range(BATCHES):
                values = values_of(random, (100, 1_000, 10_000)[at % 3])
                await (await producer.send_many("t", values))
                sent += values
                for live in (first, second) if at % 2 else (second, first):
                    assert await read(live, len(values)) == values
            assert await read(third, len(sent)) == sent
        for transport in (wire, grpc):
            async with comet.Consumer(transport, "t", start="earliest") as late:
                assert await read(late, len(sent)) == sent
