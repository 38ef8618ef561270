"""The producing and consuming processes of a benchmark, with the SDK as users have it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from comet.processes.child import Child, python_module, started
from comet.processes.tied import Tie
from comet_bench.limits import STAMP
from comet_bench.report import quantiles
from comet_bench.timer import Ticker

if TYPE_CHECKING:
    from comet import Consumer, Producer
    from comet_bench.link import Link, Work

# Values of one send_many call, and calls that wait for their acknowledgement.
BLOCK_RECORDS: Final = 50_000
BLOCKS_IN_FLIGHT: Final = 4
# Distinct values that a load repeats: more than the caches hold, made before the clock starts.
DISTINCT_VALUES: Final = 100_000
CONNECTING_AT_ONCE: Final = 50
STARTUP_TIMEOUT_S: Final = 30


def plain_values(count: int, size: int) -> list[bytes]:
    return [STAMP.pack(number) + bytes(size - STAMP.size) for number in range(count)]


def json_values(count: int, size: int) -> list[bytes]:
    """Quotes as JSON of exactly `size` bytes."""
    values = []
    for number in range(count):
        quote = {"symbol": f"SYM{number % 500:03}", "bid": 100 + number % 977 / 100, "ask": 101.5, "size": number % 900}
        text = json.dumps(quote | {"venue": ""}, separators=(",", ":"))
        quote["venue"] = "X" * max(size - len(text), 0)
        values.append(json.dumps(quote, separators=(",", ":")).encode())
    return values


async def produce_many(link: Link, config: Any) -> dict[str, Any]:
    """send_many of large blocks; the clock stops when the last record is acknowledged."""
    import comet

    make = json_values if config["json"] else plain_values
    values = make(min(DISTINCT_VALUES, config["records"]), config["record_bytes"])
    async with comet.Producer(config["address"], acks=config.get("acks", 1)) as producer:
        await producer.publish(config["warm_topic"], b"warm")
        await link.go()
        start = time.perf_counter()
        await _send_blocks(producer, config["topic"], values, config["records"])
        end = time.perf_counter()
    return {"start": start, "end": end, "bytes": config["records"] * config["record_bytes"]}


async def _send_blocks(producer: Producer, topic: str, values: list[bytes], records: int) -> None:
    waiting: deque[Any] = deque()
    sent = at = 0
    while sent < records:
        block = values[at : at + min(BLOCK_RECORDS, records - sent)]
        waiting.append(await producer.send_many(topic, block))
        sent += len(block)
        at = (at + len(block)) % len(values)
        if len(waiting) >= BLOCKS_IN_FLIGHT:
            await waiting.popleft()
    for bulk in waiting:
        await bulk


async def produce_each(link: Link, config: Any) -> dict[str, Any]:
    """One `send` a record; the clock stops at the last acknowledgement."""
    import comet

    values = plain_values(min(DISTINCT_VALUES, config["records"]), config["record_bytes"])
    topic = config["topic"]
    async with comet.Producer(config["address"]) as producer:
        await producer.publish(config["warm_topic"], b"warm")
        await link.go()
        start = time.perf_counter()
        left = config["records"]
        while left > 0:
            for value in values[:left]:
                await producer.send(topic, value)
            left -= len(values)
        await producer.flush()
        end = time.perf_counter()
    return {"start": start, "end": end, "bytes": config["records"] * config["record_bytes"]}


async def consume_raw(link: Link, config: Any) -> dict[str, Any]:
    """Reads a full topic from its start; every value becomes a bytes object. The time includes connecting."""
    import comet

    await _warm(config)
    await link.go()
    start = time.perf_counter()
    seen = size = 0
    async with comet.Consumer(config["address"], config["topic"], start="earliest") as consumer:
        async for batch in consumer.batches():
            seen += len(batch.values)
            if seen >= config["records"]:
                break
    end = time.perf_counter()
    size = seen * config["record_bytes"]
    return {"start": start, "end": end, "seen": seen, "bytes": size}


async def consume_typed(link: Link, config: Any) -> dict[str, Any]:
    """As `consume_raw`, with every value decoded from JSON to a msgspec Struct."""
    import msgspec

    import comet

    quote = msgspec.defstruct(
        "Quote", [("symbol", str), ("bid", float), ("ask", float), ("size", int), ("venue", str)], frozen=True
    )
    await _warm(config)
    await link.go()
    start = time.perf_counter()
    seen = 0
    async with comet.Consumer(config["address"], config["topic"], start="earliest", type=quote) as consumer:
        async for batch in consumer.batches():
            seen += len(batch.models())
            if seen >= config["records"]:
                break
    end = time.perf_counter()
    return {"start": start, "end": end, "seen": seen, "bytes": seen * config["record_bytes"]}


async def _warm(config: Any) -> None:
    """Warms up imports and a first connection, as in a long-running program."""
    import comet

    _ = comet.Consumer  # imported when it is first named, which takes 35 ms: a third of a quick run
    async with comet.Admin(config["address"]) as admin:
        await admin.describe_cluster()


async def tail(link: Link, config: Any) -> dict[str, Any]:
    """`subscribers` consumers that follow a topic until each has received `records`."""
    import comet

    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(comet.Consumer(config["address"], config["topic"], start="latest"))
            for _ in range(config["subscribers"])
        ]
        await link.go()
        counts = await asyncio.gather(*(_follow(consumer, config["records"]) for consumer in consumers))
        end = time.perf_counter()
    return {"end": end, "seen": sum(counts)}


async def _follow(consumer: Consumer[bytes], records: int) -> int:
    seen = 0
    async for batch in consumer.batches():
        seen += len(batch.values)
        if seen >= records:
            break
    return seen


async def pace(link: Link, config: Any) -> dict[str, Any]:
    """Sends `rate` records a second on a fixed schedule; each carries the time it was due, not the time it was sent."""
    import comet

    pad = bytes(config["record_bytes"] - STAMP.size)
    async with comet.Producer(config["address"], acks=config.get("acks", 1)) as producer:
        await producer.publish(config["warm_topic"], b"warm")
        order = await link.go()
        interval_ns = 1_000_000_000 // config["rate"]
        due_ns = time.perf_counter_ns() + int(order["lead_s"] * 1e9)
        ticker = Ticker(due_ns, interval_ns, sleepy=config.get("sleepy", False))
        try:
            left = config["records"]
            while left > 0:
                for _ in range(min(await ticker.due(), left)):
                    await producer.send(config["topic"], STAMP.pack(due_ns) + pad)
                    due_ns += interval_ns
                    left -= 1
        finally:
            ticker.close()
        await producer.flush()
    return {}


async def stopwatch(link: Link, config: Any) -> dict[str, Any]:
    """Receives the records of `pace` and measures each one's age as it reaches the application."""
    import comet

    ages_us: list[float] = []
    async with comet.Consumer(config["address"], config["topic"], start="latest") as consumer:
        await link.go()
        async for record in consumer:
            now_ns = time.perf_counter_ns()
            ages_us.append((now_ns - STAMP.unpack_from(record.value)[0]) / 1e3)
            if len(ages_us) >= config["records"]:
                break
    return quantiles(ages_us[config["skip"] :])


async def idle(link: Link, config: Any) -> dict[str, Any]:
    """Holds `subscribers` subscriptions, each over a connection of its own, on an idle topic."""
    import comet

    async with AsyncExitStack() as stack:
        for first in range(0, config["subscribers"], CONNECTING_AT_ONCE):
            count = min(CONNECTING_AT_ONCE, config["subscribers"] - first)
            consumers = [comet.Consumer(config["address"], config["topic"], start="latest") for _ in range(count)]
            await asyncio.gather(*map(stack.enter_async_context, consumers))
        await link.go()
    return {}


async def startup(link: Link, config: Any) -> dict[str, Any]:
    """Measures the time from starting `comet up` to the first acknowledged record, and that of `import comet`."""
    import comet

    await link.go()
    import_s = _import_s()
    start = time.perf_counter()
    with _comet_up(config["folder"]) as address:
        async with comet.Admin(address) as admin:
            await admin.create_topic("first")
        async with comet.Producer(address) as producer:
            await producer.publish("first", b"hello")
        seconds = time.perf_counter() - start
    return {"startup_s": seconds, "import_s": import_s}


def _import_s() -> float:
    probe = "import time; start = time.perf_counter(); import comet; print(time.perf_counter() - start)"
    command = [sys.executable, "-c", probe]
    found = subprocess.run(command, capture_output=True, check=True, timeout=STARTUP_TIMEOUT_S)  # noqa: S603 - ours
    return float(found.stdout)


@contextmanager
def _comet_up(folder: str) -> Iterator[str]:
    command = python_module("comet.cli", "up", "--data", folder, "--port", "0", "--json")
    up = Child("comet up", command, piped=True, tie=Tie.NONE)  # the start of a tie would be measured too
    with started(up):
        yield json.loads(up.line(STARTUP_TIMEOUT_S))["address"]


WORKS: Final[dict[str, Work]] = {
    "produce_many": produce_many,
    "produce_each": produce_each,
    "consume_raw": consume_raw,
    "consume_typed": consume_typed,
    "tail": tail,
    "pace": pace,
    "stopwatch": stopwatch,
    "idle": idle,
    "startup": startup,
}
