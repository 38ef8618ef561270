"""The load of the failover benchmark: a steady producer that notes when each record is acknowledged, and reads all back
at the end."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from comet_bench.limits import STAMP

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import comet
    from comet_bench.link import Link, Work

IN_FLIGHT_MAX: Final = 100_000
DELIVERY_TIMEOUT_MS: Final = 120_000


class Load:
    """The records sent and acknowledged, and the longest time since the last mark without an acknowledgement."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.sent = 0
        self.acknowledged: set[int] = set()
        self._last = self._marked = clock()
        self._gap_s = 0.0
        self._resumed = 0.0  # when acknowledgements came back after the longest gap

    def mark(self) -> None:
        """Starts to count gaps, including one that is open."""
        self._marked = self._clock()
        self._gap_s = 0.0
        self._resumed = self._marked

    def acknowledge(self, number: int) -> None:
        self.acknowledged.add(number)
        now = self._clock()
        gap_s = now - max(self._last, self._marked)
        if gap_s > self._gap_s:
            self._gap_s, self._resumed = gap_s, now
        self._last = now

    def verdict(self, seen: list[int]) -> dict[str, int]:
        """The numbers of lost and duplicated records, if `seen` are all records in the topic."""
        once = set(seen)
        return {"lost": len(self.acknowledged - once), "duplicated": len(seen) - len(once)}

    def report(self) -> dict[str, float]:
        """`calm_s`: for how long acknowledgements have been coming since the longest gap."""
        now = self._clock()
        silent_s = now - max(self._last, self._marked)
        if silent_s > self._gap_s:
            return {"gap_s": silent_s, "calm_s": 0.0}
        return {"gap_s": self._gap_s, "calm_s": now - self._resumed}


async def under_fire(link: Link, config: Any) -> dict[str, Any]:
    """Sends `rate` records a second with acks=all until told to stop; obeys start, mark, report and stop."""
    import comet

    load = Load()
    async with comet.Producer(config["address"], acks="all", timeout_ms=DELIVERY_TIMEOUT_MS) as producer:
        answer: dict[str, float] = {}
        sending: asyncio.Task[None] | None = None
        stop = asyncio.Event()
        while (order := (await link.go(**answer))["order"]) != "stop":
            answer = {}
            if order == "start":
                await producer.publish(config["topic"], STAMP.pack(load.sent))
                load.acknowledge(load.sent)
                load.sent += 1
                sending = asyncio.create_task(_send(producer, config["topic"], config["rate"], load, stop))
            elif order == "mark":
                load.mark()
            else:
                answer = load.report()
            if sending is not None and sending.done():
                sending.result()
        stop.set()
        if sending is not None:
            await sending
        await producer.flush()
    return load.verdict(await _read_back(config["address"], config["topic"])) | {"sent": load.sent}


async def _send(producer: comet.Producer, topic: str, rate: int, load: Load, stop: asyncio.Event) -> None:
    """Sends on a fixed schedule, without waiting for acknowledgements."""
    begin, number = time.perf_counter(), 0
    waiting: set[asyncio.Task[None]] = set()
    while not stop.is_set():
        while number < (time.perf_counter() - begin) * rate and len(waiting) < IN_FLIGHT_MAX:
            receipt = await producer.send(topic, STAMP.pack(load.sent))
            task = asyncio.ensure_future(_acknowledged(receipt, load, load.sent))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
            load.sent += 1
            number += 1
        await asyncio.sleep(1 / rate)
    await asyncio.gather(*waiting)


async def _acknowledged(receipt: Awaitable[object], load: Load, number: int) -> None:
    await receipt
    load.acknowledge(number)


async def _read_back(address: Any, topic: str) -> list[int]:
    """The number of every record in the topic."""
    import comet

    async with comet.Admin(address) as admin:
        end = (await admin.offsets(topic, "latest"))[0]
    seen: list[int] = []
    async with comet.Consumer(address, topic, start="earliest") as consumer:
        async for batch in consumer.batches():
            seen += [STAMP.unpack_from(value)[0] for value in batch.values if value is not None]
            if batch.next_offset >= end:
                break
    return seen


WORKS: Final[dict[str, Work]] = {"under_fire": under_fire}
