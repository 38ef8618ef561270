"""The processes of `comet bench tables`."""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from comet_bench.report import quantiles

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import comet
    from comet_bench.link import Link, Work

BLOCK_RECORDS: Final = 10_000
BLOCKS_IN_FLIGHT: Final = 4
BLOCKS: Final = 8  # of values, made once; what matches is in each
SEED: Final = 1
KEYS_WRITTEN: Final = 10_000  # of the key-value view
VALUE: Final = b"v" * 100


def _quotes(size: int, every: int) -> list[bytes]:
    """A block of quotes; one of `every`, and the last, is of ACME."""
    draw, values = random.Random(SEED), []
    for number in range(BLOCK_RECORDS):
        symbol = "ACME" if number % every == every - 1 or number == BLOCK_RECORDS - 1 else "EURUSD"
        head = f'{{"symbol":"{symbol}","bid":{draw.random() * 200:.2f},"n":{number},"pad":"'
        values.append((head + "x" * max(size - len(head) - 2, 0) + '"}').encode())
    return values


async def fill_quotes(link: Link, config: Any) -> dict[str, Any]:
    """Writes quotes whose keys are drawn from `keys`."""
    import comet

    draw, values, waiting = random.Random(SEED), _quotes(config["record_bytes"], config["every"]), deque[Any]()
    await link.go()
    async with comet.Producer(config["address"]) as producer:
        for _ in range(config["records"] // BLOCK_RECORDS):
            keys = [b"key-%010d" % draw.randrange(config["keys"]) for _ in range(BLOCK_RECORDS)]
            waiting.append(await producer.send_many(config["topic"], values, keys=keys))
            if len(waiting) >= BLOCKS_IN_FLIGHT:
                await waiting.popleft()
        for bulk in waiting:
            await bulk
    return {}


async def scan(link: Link, config: Any) -> dict[str, Any]:
    """Reads a topic from its start up to its last record, which the filter lets through."""
    import comet

    _ = comet.Consumer
    await link.go()
    start, used_s, seen = time.perf_counter(), time.process_time(), 0
    async with comet.Consumer(
        config["address"], config["topic"], start="earliest", filter=config["filter"]
    ) as consumer:
        async for batch in consumer.batches():
            seen += len(batch.values)
            if batch.offsets[-1] == config["records"] - 1:
                break
    return {"seconds": time.perf_counter() - start, "cpu_s": time.process_time() - used_s, "seen": seen}


async def scans(link: Link, config: Any) -> dict[str, Any]:
    """Several readers that scan a topic, again and again, until the process is ended."""
    await asyncio.gather(*[_scan_on(config, link if number == 0 else None) for number in range(config["readers"])])
    return {}


async def _scan_on(config: Any, link: Link | None) -> None:
    import comet

    while True:
        async with comet.Consumer(
            config["address"], config["topic"], start="earliest", filter=config["filter"]
        ) as consumer:
            async for batch in consumer.batches():
                if link is not None:
                    link.report("ready", {})
                    link = None
                if batch.offsets[-1] == config["records"] - 1:
                    break


async def kv(link: Link, config: Any) -> dict[str, Any]:
    """Calls of the key-value view by several tasks of one process, each with keys of its own."""
    import comet

    async with comet.KV(config["address"], config["topic"]) as table:
        tasks = config["tasks"]
        await asyncio.gather(*[_put_all(table, range(first, KEYS_WRITTEN, tasks)) for first in range(tasks)])
        call = _get if config["call"] == "get" else _update
        await link.go()
        start, used_s = time.perf_counter(), time.process_time()
        ages = await asyncio.gather(
            *[_call(table, call, first, config["calls"] // tasks, tasks) for first in range(tasks)]
        )
        seconds, cpu_s = time.perf_counter() - start, time.process_time() - used_s
    ages_us = array("d", [age for each in ages for age in each])
    return {"calls_per_s": len(ages_us) / seconds, "client_cpu_s": cpu_s} | quantiles(ages_us)


async def _put_all(table: comet.KV[bytes], numbers: range) -> None:
    for number in numbers:
        await table.put(b"key-%d" % number, VALUE)


async def _call(
    table: comet.KV[bytes],
    call: Callable[[comet.KV[bytes], bytes, int], Awaitable[int]],
    first: int,
    count: int,
    step: int,
) -> array[float]:
    """The durations of `count` calls."""
    ages_us, revisions = array("d"), dict[int, int]()
    at = first
    for number in range(count):
        key = b"key-%d" % at
        if call is _update and at not in revisions:
            found = await table.get(key)
            assert found is not None
            revisions[at] = found.revision
        began = time.perf_counter()
        revisions[at] = await call(table, key, revisions.get(at, 0))
        ages_us.append((time.perf_counter() - began) * 1e6)
        at = first + (number + 1) * step % (KEYS_WRITTEN // step * step)
    return ages_us


async def _get(table: comet.KV[bytes], key: bytes, _revision: int) -> int:
    found = await table.get(key)
    assert found is not None
    return found.revision


async def _update(table: comet.KV[bytes], key: bytes, revision: int) -> int:
    return await table.update(key, VALUE, revision)


WORKS: Final[dict[str, Work]] = {"fill_quotes": fill_quotes, "scan": scan, "scans": scans, "kv": kv}
