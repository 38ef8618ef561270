"""Apps of a group against a real broker: what each delivery promises, while members come, fail and go."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import comet
import comet.testing

RECORDS = 600
KEYS = 20


def pairs(records: Iterable[comet.Record[bytes]]) -> dict[bytes | None, list[int]]:
    """Per key its numbers, in order."""
    found: dict[bytes | None, list[int]] = defaultdict(list)
    for record in records:
        found[record.key].append(int(record.value))
    return dict(found)


EXPECTED = {b"k%d" % key: list(range(key, RECORDS, KEYS)) for key in range(KEYS)}


async def fill(address: str, topic: str = "in") -> None:
    async with comet.Producer(address, acks="all") as producer:
        numbers = range(RECORDS)
        await (
            await producer.send_many(topic, [b"%d" % n for n in numbers], keys=[b"k%d" % (n % KEYS) for n in numbers])
        )


async def read(address: str, topic: str, count: int) -> list[comet.Record[bytes]]:
    """The first records of a topic, and what comes within a moment after them."""
    found: list[comet.Record[bytes]] = []
    async with comet.Consumer(address, topic, start="earliest") as consumer:
        while (record := await consumer.get(15 if len(found) < count else 0.3)) is not None:
            found.append(record)
    return found


class Seen:
    """What handlers have seen; a test waits until there is enough."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.calls: Counter[bytes] = Counter()
        self._changed = asyncio.Event()

    def note(self, record: Any) -> None:
        self.records.append(record)
        self.calls[record.value] += 1
        self._changed.set()

    async def until(self, ready: Callable[[Seen], bool]) -> None:
        async with asyncio.timeout(30):
            while not ready(self):
                self._changed.clear()
                await self._changed.wait()


async def committed(address: str, group: str, topic: str = "in") -> int:
    async with comet.GroupConsumer(address, topic, group=group, auto_commit=False) as consumer:
        return sum(consumer.committed().values())


class Members:
    """Apps of one group, each with the same handler."""

    def __init__(self, address: str, make: Callable[[comet.App], None]) -> None:
        self._address = address
        self._make = make
        self.running: list[tuple[comet.App, asyncio.Task[None]]] = []

    def add(self) -> comet.App:
        app = comet.App(self._address)
        self._make(app)
        self.running.append((app, asyncio.create_task(app.serve())))
        return app

    async def remove(self) -> None:
        app, task = self.running.pop(0)
        app.stop()
        await task

    async def close(self) -> None:
        while self.running:
            await self.remove()


async def test_at_least_once_misses_nothing_while_members_come_and_go() -> None:
    async with comet.testing.broker({"in": 4}) as broker:
        seen = Seen()

        def make(app: comet.App) -> None:
            @app.on("in", group="g", start="earliest")
            async def handle(record: comet.Record[bytes]) -> None:
                await asyncio.sleep(0)
                seen.note(record)

        members = Members(broker.address, make)
        members.add()
        await fill(broker.address)
        for n in range(1, 4):
            await seen.until(lambda seen, least=n * RECORDS // 6: len(seen.calls) > least)  # type: ignore[misc]
            members.add()
            if n > 1:
                await members.remove()
        await seen.until(lambda seen: len(seen.calls) == RECORDS)
        await members.close()
        assert len(seen.records) == RECORDS, "members that go in good order repeat nothing either"
        assert pairs(seen.records) == EXPECTED
        assert await committed(broker.address, "g") == RECORDS


@pytest.mark.parametrize("concurrency", [1, 5])
async def test_exactly_once_writes_everything_once_while_handlers_fail_and_members_come_and_go(
    concurrency: int,
) -> None:
    async with comet.testing.broker({"in": 4, "out": 3}) as broker:
        seen = Seen()

        def make(app: comet.App) -> None:
            @app.on(
                "in", group="g", delivery="exactly_once", start="earliest", transaction_records=50,
                retries=5, backoff_ms=1, concurrency=concurrency,
            )  # fmt: skip
            async def handle(record: comet.Record[bytes]) -> None:
                seen.note(record)
                await app.send("out", record.value, key=record.key)
                if seen.calls[record.value] == 1 and int(record.value) % 97 == 5:
                    raise ZeroDivisionError("a bug that does not come back")

        members = Members(broker.address, make)
        members.add()
        await fill(broker.address)
        for n in range(1, 4):
            await seen.until(lambda seen, least=n * RECORDS // 6: len(seen.calls) > least)  # type: ignore[misc]
            members.add()
            if n > 1:
                await members.remove()
        await seen.until(lambda seen: len(seen.calls) == RECORDS)
        out = await read(broker.address, "out", RECORDS)
        await members.close()
        assert len(seen.records) > RECORDS, "some were handled more than once"
        assert pairs(out) == EXPECTED, "and written once, in order per key"
        assert await committed(broker.address, "g") >= RECORDS


async def test_at_most_once_calls_nothing_twice() -> None:
    async with comet.testing.broker({"in": 2}) as broker:
        await fill(broker.address)
        seen = Seen()

        def make(app: comet.App) -> None:
            @app.on("in", group="g", delivery="at_most_once", start="earliest", on_error="skip")
            async def handle(record: comet.Record[bytes]) -> None:
                seen.note(record)
                if len(seen.records) % 50 == 7:
                    raise ZeroDivisionError("it is gone")

        members = Members(broker.address, make)
        members.add()
        await seen.until(lambda seen: len(seen.calls) > RECORDS // 3)
        members.add()
        await members.remove()
        await seen.until(lambda seen: len(seen.calls) == RECORDS)
        await members.close()
        assert pairs(seen.records) == EXPECTED


async def test_a_dead_letter_is_what_the_event_was_and_says_why() -> None:
    async with comet.testing.broker({"in": 1, "dead": 1}) as broker:
        app = comet.App(broker.address)
        attempts: Counter[int] = Counter()

        @app.on("in", group="g", start="earliest", retries=2, backoff_ms=1, dead_letter="dead")
        async def handle(number: int) -> None:
            attempts[number] += 1
            if number == 2:
                raise ValueError("not two")
            if number == 4:
                app.stop()

        async with comet.Producer(broker.address) as producer:
            for value in (b"1", b"2", b"three", b"4"):
                await producer.publish("in", value, key="k", headers={"source": "test"}, timestamp_us=1_000_000)
        async with asyncio.timeout(30):
            await app.serve()
        assert attempts == {1: 1, 2: 3, 4: 1}
        two, three = await read(broker.address, "dead", 2)
        assert (two.value, two.key, two.timestamp_us) == (b"2", b"k", 1_000_000)
        headers = dict(two.headers)
        assert headers["source"] == b"test"
        assert headers["comet-dead-letter-offset"] == b"1"
        assert headers["comet-dead-letter-attempts"] == b"3"
        assert headers["comet-dead-letter-reason"] == b"ValueError: not two"
        assert three.value == b"three"


async def test_a_handler_of_batches_commits_each_with_its_outputs() -> None:
    async with comet.testing.broker({"in": 2, "out": 1}) as broker:
        await fill(broker.address)
        app = comet.App(broker.address)
        failed: list[int] = []

        @app.on("in", group="g", start="earliest", retries=9, backoff_ms=1)
        async def handle(batch: comet.RecordBatch[bytes]) -> None:
            async with app.transaction(batch) as tx:
                await tx.send_many("out", batch.values, keys=batch.keys)
                if batch.first_offset == 0 and len(failed) < 2:
                    failed.append(batch.partition)
                    raise ZeroDivisionError

        serving = asyncio.create_task(app.serve())
        out = await read(broker.address, "out", RECORDS)
        app.stop()
        await serving
        assert failed
        assert pairs(out) == EXPECTED
        assert await committed(broker.address, "g") == RECORDS


async def test_a_shared_group_takes_every_event_once_and_sets_failures_aside() -> None:
    async with comet.testing.broker({"in": 1, "dead": 1}) as broker:
        seen = Seen()
        workers: set[comet.App] = set()

        def make(app: comet.App) -> None:
            @app.on(
                "in", group="g", shared=True, start="earliest", retries=2, backoff_ms=1, dead_letter="dead",
                concurrency=4,
            )  # fmt: skip
            async def handle(record: comet.ShareRecord[bytes]) -> None:
                await asyncio.sleep(0)
                workers.add(app)
                seen.note(record)
                if record.value == b"13":
                    raise ValueError("bad luck")

        members = Members(broker.address, make)
        for _ in range(3):
            members.add()
        await fill(broker.address)
        await seen.until(lambda seen: len(seen.calls) == RECORDS and seen.calls[b"13"] == 3)
        (dead,) = await read(broker.address, "dead", 1)
        await members.close()
        assert {value: times for value, times in seen.calls.items() if times > 1} == {b"13": 3}
        assert len(workers) == 3, "all three worked on one partition"
        assert dead.value == b"13"
        assert dict(dead.headers)["comet-dead-letter-reason"] == b"ValueError: bad luck"


async def test_a_reader_of_what_is_not_committed_sees_it_at_once_and_others_never() -> None:
    async with comet.testing.broker({"out": 1}) as broker:
        async with comet.TransactionalProducer(broker.address, "writer") as producer:
            seen: dict[str, Any] = {}
            async with comet.Consumer(broker.address, "out", isolation="uncommitted", start="earliest") as eager:
                with pytest.raises(KeyError):  # noqa: PT012 - out of the whole block
                    async with producer.transaction() as tx:
                        await (await tx.send("out", b"1"))
                        seen["eager"] = await eager.get(10)
                        raise KeyError
            async with producer.transaction() as tx:
                await tx.send("out", b"2")
        assert seen["eager"].value == b"1"
        assert [record.value for record in await read(broker.address, "out", 1)] == [b"2"]
