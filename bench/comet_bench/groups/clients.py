"""The processes of `comet bench groups`: members of groups, with the SDK as users have it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from comet.types import TopicPartition
from comet_bench.broker.clients import BLOCKS_IN_FLIGHT, plain_values
from comet_bench.limits import STAMP
from comet_bench.timer import Ticker

if TYPE_CHECKING:
    import comet
    from comet import RecordBatch
    from comet.consumer.iteration import RecordIterator
    from comet.share.acknowledgements import PendingAcknowledgement
    from comet_bench.link import Link, Work

Positions = dict[tuple[str, int], int]

BLOCK_RECORDS: Final = 10_000


async def fill(link: Link, config: Any) -> dict[str, Any]:
    """Every partition gets the same number of records, in blocks, one partition after the other."""
    import comet

    values = plain_values(BLOCK_RECORDS, config["record_bytes"])
    await link.go()
    async with comet.Producer(config["address"]) as producer:
        waiting: deque[Any] = deque()
        for first in range(0, config["records"] // config["partitions"], BLOCK_RECORDS):
            count = min(BLOCK_RECORDS, config["records"] // config["partitions"] - first)
            for partition in range(config["partitions"]):
                waiting.append(await producer.send_many(config["topic"], values[:count], partition=partition))
                if len(waiting) > BLOCKS_IN_FLIGHT:
                    await waiting.popleft()
        for bulk in waiting:
            await bulk
    return {}


# ---- throughput


async def consume_explicit(link: Link, config: Any) -> dict[str, Any]:
    import comet

    await link.go()
    async with comet.Consumer(config["address"], config["topic"], start="earliest") as consumer:
        return await _take_all(consumer, config["records"])


async def consume_group(link: Link, config: Any) -> dict[str, Any]:
    """Reads as the only member of its group, with automatic commits."""
    import comet

    await link.go()
    async with comet.GroupConsumer(
        config["address"], config["topic"], group=config["group"], start="earliest"
    ) as consumer:
        return await _take_all(consumer, config["records"])


async def _take_all(consumer: RecordIterator[bytes], records: int) -> dict[str, Any]:
    """Measures from the first batch, which no figure counts, to the last: the time to join is not part of it."""
    batches = consumer.batches()
    seen = first = len((await anext(batches)).values)
    start = time.perf_counter()
    while seen < records:
        seen += len((await anext(batches)).values)
    return {"seconds": time.perf_counter() - start, "records": seen - first}


async def transform_at_least_once(link: Link, config: Any) -> dict[str, Any]:
    """Takes a chunk, writes its outputs with acks=all, and commits when they are acknowledged."""
    import comet

    done = 0
    async with AsyncExitStack() as stack:
        consumer = await stack.enter_async_context(_input(config))
        producer = await stack.enter_async_context(comet.Producer(config["address"], acks="all"))
        await producer.publish(config["out"], b"warm")
        await link.go()
        start = time.perf_counter()
        async for values, positions in chunks(consumer.batches(), config["chunk"]):
            await (await producer.send_many(config["out"], _transformed(values)))
            await consumer.commit(positions)
            done += len(values)
            if done >= config["records"]:
                break
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "records": done}


async def transform_exactly_once(link: Link, config: Any) -> dict[str, Any]:
    """As `transform_at_least_once`, with the outputs and positions of a chunk in one transaction."""
    import comet

    done = 0
    async with AsyncExitStack() as stack:
        consumer = await stack.enter_async_context(_input(config))
        producer = await stack.enter_async_context(comet.TransactionalProducer(config["address"], group=consumer))
        async with producer.transaction() as tx:
            await tx.send(config["out"], b"warm")
        await link.go()
        start = time.perf_counter()
        async for values, positions in chunks(consumer.batches(), config["chunk"]):
            async with producer.transaction() as tx:
                await tx.send_many(config["out"], _transformed(values))
                await tx.commit_offsets(consumer, positions)
            done += len(values)
            if done >= config["records"]:
                break
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "records": done}


def _input(config: Any) -> comet.GroupConsumer[bytes]:
    import comet

    return comet.GroupConsumer(
        config["address"], config["topic"], group=config["group"], start="earliest", auto_commit=False
    )


def _transformed(values: Iterable[bytes | None]) -> list[bytes]:
    return [value.upper() for value in values if value is not None]


async def chunks(
    batches: AsyncIterator[RecordBatch[bytes]] | Any, size: int
) -> AsyncIterator[tuple[list[bytes | None], Positions]]:
    """Chunks of exactly `size` values, independent of the batches, with the positions after them."""
    values: list[bytes | None] = []
    positions: Positions = {}
    async for batch in batches:
        at, count = 0, len(batch)
        while at < count:
            end = min(at + size - len(values), count)
            values += batch.values[at:end]
            positions[batch.topic, batch.partition] = batch.next_offset if end == count else batch.offsets[end]
            at = end
            if len(values) == size:
                yield values, positions
                values, positions = [], {}


# ---- a share group


async def share(link: Link, config: Any) -> dict[str, Any]:
    """`members` members of a share group, each acknowledging record by record; reports the number of confirmed ones at
    each order."""
    import comet

    sharers = [ShareClient() for _ in range(config["members"])]
    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(
                comet.ShareConsumer(
                    config["address"], config["topic"], group=config["group"], start="earliest",
                    in_flight=config["in_flight"],
                )
            )
            for _ in sharers
        ]  # fmt: skip
        await link.go()
        work = [
            asyncio.create_task(step)
            for sharer, consumer in zip(sharers, consumers, strict=True)
            for step in (sharer.take(consumer), sharer.confirm())
        ]
        order = "report"
        while order != "stop":
            state = {"confirmed": sum(one.confirmed for one in sharers), "last": max(one.last for one in sharers)}
            order = (await link.next_order(**state))["order"]
            for task in work:
                if task.done():
                    task.result()
        for task in work:
            task.cancel()
    return {}


class ShareClient:
    """One member: acknowledges each record, and waits for the confirmations in the order of the acknowledgements."""

    def __init__(self) -> None:
        self.confirmed = 0
        self.last = 0.0  # when the last of them was
        self._unconfirmed: deque[PendingAcknowledgement] = deque()
        self._more = asyncio.Event()

    async def take(self, consumer: comet.ShareConsumer[bytes]) -> None:
        async for record in consumer:
            self._unconfirmed.append(record.ack())
            self._more.set()

    async def confirm(self) -> None:
        from comet.errors import LockExpired

        while True:
            await self._more.wait()
            self._more.clear()
            while self._unconfirmed:
                try:
                    await self._unconfirmed.popleft()
                except LockExpired:
                    continue  # it will be delivered again
                self.confirmed += 1
                self.last = time.perf_counter()


# ---- members that come and go


class MemberLoad:
    """One member: when partitions are assigned to it, and the age of its records."""

    def __init__(self, config: Any, number: int) -> None:
        import comet

        self.changed = 0.0
        self.owned: set[TopicPartition] = set()
        self.first_seen: dict[TopicPartition, float] = {}  # since their assignment
        self.stayed: set[TopicPartition] = set()  # since the mark
        self._reading: asyncio.Task[None] | None = None
        self._ages: dict[TopicPartition, float] = {}
        self._consumer: comet.GroupConsumer[bytes] = comet.GroupConsumer(
            config["address"], config["topic"], group=config["group"], start="latest", name=f"load-{number}",
            session_timeout_ms=config["session_ms"], on_assigned=self._gained, on_revoked=self._gone,
            on_lost=self._gone,
        )  # fmt: skip

    def _gained(self, tps: list[TopicPartition]) -> None:
        self.changed = time.perf_counter()
        self.owned.update(tps)

    def _gone(self, tps: list[TopicPartition]) -> None:
        self.owned.difference_update(tps)
        self.stayed.difference_update(tps)
        for tp in tps:
            self.first_seen.pop(tp, None)

    async def sit(self) -> None:
        await self._consumer.start()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for batch in self._consumer.batches():
            now_ns = time.perf_counter_ns()
            tp = TopicPartition(batch.topic, batch.partition)
            self.first_seen.setdefault(tp, now_ns / 1e9)
            if tp in self.stayed:
                due_ns = min(STAMP.unpack_from(value)[0] for value in batch.values if value is not None)
                age_s = (now_ns - due_ns) / 1e9
                if age_s > self._ages.get(tp, 0.0):
                    self._ages[tp] = age_s

    def mark(self) -> None:
        """Starts to measure ages, of the partitions that stay."""
        self.stayed = set(self.owned)
        self._ages.clear()

    def gap_s(self) -> float:
        return max((self._ages.get(tp, 0.0) for tp in self.stayed), default=0.0)

    def check(self) -> None:
        if self._reading is not None and self._reading.done():
            self._reading.result()

    async def leave(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        await self._consumer.close()


async def group_members(link: Link, config: Any) -> dict[str, Any]:
    """`members` members of a group in one process; obeys add, leave, mark, report and stop."""
    taken = [MemberLoad(config, number) for number in range(config["members"])]
    await asyncio.gather(*(load.sit() for load in taken))
    busy: set[asyncio.Task[None]] = set()
    order = (await link.go())["order"]
    while order != "stop":
        answer: dict[str, Any] = {}
        if order == "add":
            taken.append(MemberLoad(config, len(taken)))
            answer["at"] = time.perf_counter()
            busy.add(asyncio.create_task(taken[-1].sit()))
        elif order == "leave":
            answer["at"] = time.perf_counter()
            busy.add(asyncio.create_task(taken.pop().leave()))
        elif order == "mark":
            for load in taken:
                load.mark()
        else:
            answer = {
                "owned": [len(load.owned) for load in taken],
                "changed": max((load.changed for load in taken), default=0.0),
                "gap_s": max((load.gap_s() for load in taken), default=0.0),
                "reading": sum(len(load.first_seen) for load in taken),
                "read_since": max((at for load in taken for at in load.first_seen.values()), default=0.0),
            }
            for load in taken:
                load.check()
            for task in [task for task in busy if task.done()]:
                busy.discard(task)
                task.result()
        order = (await link.next_order(**answer))["order"]
    await asyncio.gather(*busy, *(load.leave() for load in taken))
    return {}


async def spread(link: Link, config: Any) -> dict[str, Any]:
    """`rate` events a second, each to the next partition, until told to stop; each carries when it was due."""
    import comet

    async with comet.Producer(config["address"]) as producer:
        await producer.publish(config["topic"], STAMP.pack(time.perf_counter_ns()))
        await link.go()
        sending = asyncio.create_task(_spread(producer, config))
        await link.go()
        if sending.done():
            sending.result()
        sending.cancel()
    return {}


async def _spread(producer: comet.Producer, config: Mapping[str, Any]) -> None:
    interval_ns = 1_000_000_000 // config["rate"]
    due_ns = time.perf_counter_ns() + interval_ns
    ticker = Ticker(due_ns, interval_ns, sleepy=True)
    number = 0
    try:
        while True:
            for _ in range(await ticker.due()):
                partition = number % config["partitions"]
                await producer.send(config["topic"], STAMP.pack(due_ns), partition=partition)
                due_ns += interval_ns
                number += 1
    finally:
        ticker.close()


WORKS: Final[dict[str, Work]] = {
    "fill": fill,
    "consume_explicit": consume_explicit,
    "consume_group": consume_group,
    "transform_at_least_once": transform_at_least_once,
    "transform_exactly_once": transform_exactly_once,
    "share": share,
    "group_members": group_members,
    "spread": spread,
}
