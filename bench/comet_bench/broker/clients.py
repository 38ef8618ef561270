"""The producing and consuming processes of a benchmark, with the SDK as users have it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from comet.processes.child import Child, python_module, started
from comet.processes.tied import Tie
from comet_bench.limits import STAMP
from comet_bench.machine import EventCosts
from comet_bench.report import quantiles
from comet_bench.timer import SenderCosts, Ticker

if TYPE_CHECKING:
    from comet import Consumer, Producer
    from comet_bench.link import Link, Work

# Values of one send_many call (50,000 of 100 bytes), and calls that wait for their acknowledgement.
BLOCK_BYTES: Final = 5_000_000
BLOCKS_IN_FLIGHT: Final = 4
# Distinct values that a load repeats: more than the caches hold, made before the clock starts.
DISTINCT_BYTES: Final = 10_000_000
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


def _values(config: Any, make: Callable[[int, int], list[bytes]] = plain_values) -> list[bytes]:
    size = config["record_bytes"]
    return make(min(DISTINCT_BYTES // size, config["records"]), size)


async def produce_many(link: Link, config: Any) -> dict[str, Any]:
    """send_many of large blocks; the clock stops when the last record is acknowledged."""
    import comet

    values = _values(config, json_values if config["json"] else plain_values)
    partition = config.get("partition")
    async with comet.Producer(config["address"], acks=config.get("acks", 1)) as producer:
        await producer.publish(config["warm_topic"], b"warm", partition=partition)
        await link.go()
        start, used_s = time.perf_counter(), time.process_time()
        await _send_blocks(producer, config["topic"], values, config["records"], partition)
        end, cpu_s = time.perf_counter(), time.process_time() - used_s
    return {"start": start, "end": end, "cpu_s": cpu_s, "bytes": config["records"] * config["record_bytes"]}


async def _send_blocks(
    producer: Producer, topic: str, values: list[bytes], records: int, partition: int | None
) -> None:
    waiting: deque[Any] = deque()
    block_records = max(BLOCK_BYTES // len(values[0]), 1)
    sent = at = 0
    while sent < records:
        block = values[at : at + min(block_records, records - sent)]
        waiting.append(await producer.send_many(topic, block, partition=partition))
        sent += len(block)
        at = (at + len(block)) % len(values)
        if len(waiting) >= BLOCKS_IN_FLIGHT:
            await waiting.popleft()
    for bulk in waiting:
        await bulk


async def produce_each(link: Link, config: Any) -> dict[str, Any]:
    """One `send` a record; the clock stops at the last acknowledgement."""
    import comet

    values, topic, partition = _values(config), config["topic"], config.get("partition")
    async with comet.Producer(config["address"]) as producer:
        await producer.publish(config["warm_topic"], b"warm", partition=partition)
        await link.go()
        start, used_s = time.perf_counter(), time.process_time()
        left = config["records"]
        while left > 0:
            for value in values[:left]:
                await producer.send(topic, value, partition=partition)
            left -= len(values)
        await producer.flush()
        end, cpu_s = time.perf_counter(), time.process_time() - used_s
    return {"start": start, "end": end, "cpu_s": cpu_s, "bytes": config["records"] * config["record_bytes"]}


async def sync_send(link: Link, config: Any) -> dict[str, Any]:
    """As `produce_each`, with `comet.sync`; this process has nothing else to do."""
    import comet.sync

    values, topic = _values(config), config["topic"]
    with comet.sync.Producer(config["address"]) as producer:
        producer.publish(config["warm_topic"], b"warm")
        await link.go()
        start = time.perf_counter()
        left = config["records"]
        while left > 0:
            for value in values[:left]:
                producer.send(topic, value)
            left -= len(values)
        producer.flush()
        end = time.perf_counter()
    return {"start": start, "end": end, "bytes": config["records"] * config["record_bytes"]}


async def consume_raw(link: Link, config: Any) -> dict[str, Any]:
    """Reads a full topic from its start; every value becomes a bytes object. The time includes connecting."""
    import comet

    await _warm(config)
    await link.go()
    start = time.perf_counter()
    seen = 0
    async with comet.Consumer(config["address"], config["topic"], start="earliest") as consumer:
        async for batch in consumer.batches():
            seen += len(batch.values)
            if seen >= config["records"]:
                break
    end = time.perf_counter()
    return {"start": start, "end": end, "seen": seen, "bytes": seen * config["record_bytes"]}


async def consume_each(link: Link, config: Any) -> dict[str, Any]:
    """As `consume_raw`, record by record."""
    import comet

    await _warm(config)
    await link.go()
    start = time.perf_counter()
    seen = size = 0
    async with comet.Consumer(config["address"], config["topic"], start="earliest") as consumer:
        async for record in consumer:
            seen += 1
            size += len(record.value)
            if seen >= config["records"]:
                break
    end = time.perf_counter()
    return {"start": start, "end": end, "seen": seen, "bytes": size}


async def sync_consume(link: Link, config: Any) -> dict[str, Any]:
    """As `consume_each`, with `comet.sync`; this process has nothing else to do."""
    import comet.sync

    await _warm(config)
    await link.go()
    start = time.perf_counter()
    seen = size = 0
    with comet.sync.Consumer(config["address"], config["topic"], start="earliest") as consumer:
        for record in consumer:
            seen += 1
            size += len(record.value)
            if seen >= config["records"]:
                break
    end = time.perf_counter()
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
    """`subscribers` consumers that follow a topic until each has received `records`: in batches, or with `each`
    record by record."""
    import comet

    follow = _follow_each if config["each"] else _follow
    partitions = [config["partition"]] if "partition" in config else None

    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(
                comet.Consumer(config["address"], config["topic"], start="latest", partitions=partitions)
            )
            for _ in range(config["subscribers"])
        ]
        await link.go()
        used_s = time.process_time()
        counts = await asyncio.gather(*(follow(consumer, config["records"]) for consumer in consumers))
        end, cpu_s = time.perf_counter(), time.process_time() - used_s
    return {"end": end, "cpu_s": cpu_s, "seen": sum(counts)}


async def _follow(consumer: Consumer[bytes], records: int) -> int:
    seen = 0
    async for batch in consumer.batches():
        seen += len(batch.values)
        if seen >= records:
            break
    return seen


async def _follow_each(consumer: Consumer[bytes], records: int) -> int:
    seen = 0
    async for _record in consumer:
        seen += 1
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
        costs = SenderCosts(ticker)
        left, measured = config["records"], config["records"] - config["skip"]
        try:
            while left > 0:
                for _ in range(min(await ticker.due(), left)):
                    if left == measured:
                        costs = SenderCosts(ticker)
                    await producer.send(config["topic"], STAMP.pack(due_ns) + pad)
                    due_ns += interval_ns
                    left -= 1
        finally:
            ticker.close()
        await producer.flush()
        return costs.per_event(measured)


async def stopwatch(link: Link, config: Any) -> dict[str, Any]:
    """Receives the records of `pace` and measures each one's age as it reaches the application; and the processor time
    of an event here and at the `servers` (their process ids by role)."""
    import comet

    async with comet.Consumer(config["address"], config["topic"], start="latest") as consumer:
        await link.go()
        ages_us, costs = await _ages(consumer, config)
    return quantiles(ages_us) | costs


async def subscriber(link: Link, config: Any) -> dict[str, Any]:
    """As `stopwatch`, for one of many: it gives every age, and ends when all of them have been received."""
    import comet

    async with comet.Consumer(config["address"], config["topic"], start="latest") as consumer:
        await link.go()
        ages_us, costs = await _ages(consumer, config)
        await link.next_order(ages_us=list(map(round, ages_us)), **costs)
    return {}


async def _ages(consumer: Consumer[bytes], config: Any) -> tuple[array[float], dict[str, float]]:
    """The ages of all records behind the first `skip`, and what each of these costs."""
    ages_us = array("d")
    records, skip = config["records"], config["skip"]
    costs = EventCosts(consumer=[os.getpid()], **config["servers"])
    async for record in consumer:
        now_ns = time.perf_counter_ns()
        ages_us.append((now_ns - STAMP.unpack_from(record.value)[0]) / 1e3)
        if len(ages_us) == skip:
            costs = EventCosts(consumer=[os.getpid()], **config["servers"])
        elif len(ages_us) >= records:
            break
    return ages_us[skip:], costs.per_event(records - skip)


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
    "sync_send": sync_send,
    "consume_raw": consume_raw,
    "consume_each": consume_each,
    "sync_consume": sync_consume,
    "consume_typed": consume_typed,
    "tail": tail,
    "pace": pace,
    "stopwatch": stopwatch,
    "subscriber": subscriber,
    "idle": idle,
    "startup": startup,
}
