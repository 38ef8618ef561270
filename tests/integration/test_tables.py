"""Tables of consumers: the rows of their batches, each once, and positions that move with a table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pyarrow as pa
import pytest

import comet
from comet.consumer.iteration import _rows_in
from comet.errors import InvalidArgument, OffsetOutOfRange, SerdeError
from comet.records import _batch
from tests.waiting import until

HOUR_MS = 3_600_000
WAIT_S_MAX = 60


@comet.model
class Quote:
    symbol: str
    bid: float


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with comet.testing.broker({"quotes": 1, "wide": 2}) as broker:
        yield broker.address


async def write(address: str, count: int, topic: str = "quotes", partition: int = 0, wrong: int = -1) -> None:
    """Batches of ten."""
    values = [json.dumps({"symbol": "a", "bid": number}).encode() for number in range(count)]
    if wrong >= 0:
        values[wrong] = b"no event"
    async with comet.Producer(address) as producer:
        for at in range(0, count, 10):
            await (await producer.send_many(topic, values[at : at + 10], partition=partition))


def at_hand(consumer: comet.Consumer[Quote]) -> int:
    return sum(_rows_in(one) for one in consumer._fetcher.queue.waiting(0) if isinstance(one, memoryview))


async def test_tables_have_each_row_once_and_as_many_as_asked_for(address: str) -> None:
    await write(address, 95)
    sizes, bids, at = [], [], []
    async with comet.Consumer(address, "quotes", type=Quote, start="earliest") as consumer:
        await consumer.start()
        assert await until(lambda: at_hand(consumer) == 95, within_s=WAIT_S_MAX)
        async for table in consumer.arrow(columns=["bid", "offset"], rows_max=17, wait_ms=0):
            assert table.schema.names == ["bid", "offset"]
            sizes.append(table.num_rows)
            bids += table["bid"].to_pylist()
            at.append(consumer.positions()[0])
            if len(bids) >= 60:
                break
        rest = [record.offset async for record in consumer_until(consumer, 95)]
    assert max(sizes) == 17
    assert bids == [float(number) for number in range(len(bids))]
    assert at == [sum(sizes[: number + 1]) for number in range(len(sizes))]
    assert rest == list(range(len(bids), 95))


async def consumer_until(consumer: comet.Consumer[Quote], end: int) -> AsyncIterator[comet.Record[Quote]]:
    """Record by record, after tables."""
    while consumer.positions()[0] < end:
        record = await consumer.get()
        assert record is not None
        yield record


async def test_a_consumer_of_batches_or_tables_cuts_no_value(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*_: object, **__: object) -> list[bytes]:
        raise AssertionError("a value was cut out of its column")

    monkeypatch.setattr(_batch, "read_nullable", cut)
    count = 1_000
    async with comet.Producer(address) as producer:
        await (await producer.send_many("quotes", [b"a value", None] * (count // 2)))
    async with comet.Consumer(address, "quotes", start="earliest") as consumer:
        batch = await anext(aiter(consumer.batches()))
        assert len(batch) == count and batch.size == count // 2 * len(b"a value")
        await consumer.seek("earliest")
        table = await anext(aiter(consumer.arrow(rows_max=count)))
        assert table.num_rows == count and table["value"].null_count == count // 2
        await consumer.seek("earliest")
        with pytest.raises(AssertionError):
            await consumer.get()


async def test_a_table_waits_for_rows_and_loses_none_when_it_is_cancelled(address: str) -> None:
    async with comet.Consumer(address, "quotes", start="earliest") as consumer:
        tables = consumer.arrow(rows_max=20, wait_ms=HOUR_MS)
        waiting = asyncio.ensure_future(anext(tables))
        await write(address, 10)
        assert await until(lambda: bool(consumer._fetcher.queue.waiting(0)), within_s=WAIT_S_MAX)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert consumer.positions() == {0: 0}
        waiting = asyncio.ensure_future(anext(tables))
        await write(address, 10)
        table = await waiting
        assert table["offset"].to_pylist() == list(range(20))
        assert consumer.positions() == {0: 20}


async def test_rows_before_a_value_that_is_no_event_come_before_its_error(address: str) -> None:
    await write(address, 30, wrong=14)
    found: list[int] = []

    async def take(upto: int) -> None:
        while len(found) < upto:
            found.extend((await anext(tables))["offset"].to_pylist())

    async with comet.Consumer(address, "quotes", type=Quote, start="earliest") as consumer:
        tables = consumer.arrow(wait_ms=0)
        with pytest.raises(SerdeError) as caught:
            await take(30)
        assert caught.value.details["offset"] == "14"
        assert (found, consumer.positions()) == (list(range(14)), {0: 15})
        await take(29)
    assert found == [*range(14), *range(15, 30)]


async def test_what_stops_a_partition_is_raised(address: str) -> None:
    await write(address, 30)
    async with comet.Admin(address) as admin:
        await admin.delete_records("quotes", 0, 20)
    async with comet.Consumer(address, "quotes", start=3) as consumer:
        with pytest.raises(OffsetOutOfRange):
            await anext(consumer.arrow(wait_ms=HOUR_MS))


async def test_settings_are_checked(address: str) -> None:
    consumer = comet.Consumer(address, "quotes", start="earliest")
    wrongs: list[dict[str, Any]] = [{"rows_max": 0}, {"wait_ms": -1}, {"columns": ["bid"]}]
    for wrong in wrongs:
        with pytest.raises(InvalidArgument):
            consumer.arrow(**wrong)
    assert (
        comet.Consumer(address, "quotes", type=Quote, start="earliest").arrow().schema.field("bid").type == pa.float64()
    )
    await consumer.close()


async def test_a_table_is_done_when_the_next_is_asked_for(address: str) -> None:
    for partition in range(2):
        await write(address, 30, "wide", partition)
    async with comet.GroupConsumer(
        address, "wide", group="g", start="earliest", commit_interval_ms=10
    ) as consumer:  # fmt: skip
        tables = consumer.arrow(rows_max=60, wait_ms=HOUR_MS)
        table = await anext(tables)
        assert sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)) == [
            (partition, offset) for partition in range(2) for offset in range(30)
        ]
        assert set(consumer.positions().values()) == {30}
        # Both partitions are in hand, also that which was not read last.
        assert {mark.offset for mark in consumer._due()} <= {0}
        assert set(consumer.committed().values()) <= {0}
        waiting = asyncio.ensure_future(anext(tables))
        assert await until(lambda: set(consumer.committed().values()) == {30}, within_s=WAIT_S_MAX)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_partition_is_given_up_when_its_table_is_done(address: str) -> None:
    for partition in range(2):
        await write(address, 10, "wide", partition)
    async with comet.GroupConsumer(address, "wide", group="g", start="earliest") as first:
        tables = first.arrow(rows_max=20, wait_ms=HOUR_MS)
        assert (await anext(tables)).num_rows == 20
        second = comet.GroupConsumer(address, "wide", group="g", start="earliest")
        joining = asyncio.ensure_future(second.start())
        assert await until(lambda: any(one.releasing for one in first._assigned.values()), within_s=WAIT_S_MAX)
        assert (len(first.assignment()), second.assignment()) == (2, [])
        waiting = asyncio.ensure_future(anext(tables))
        assert await until(lambda: len(second.assignment()) == 1, within_s=WAIT_S_MAX)
        await joining
        assert list(second.positions().values()) == [10], "what was in the table is done"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await second.close()


def test_tables_in_plain_code() -> None:
    with comet.testing.broker(["quotes"]) as broker:
        with comet.sync.Producer(broker.address) as producer:
            for number in range(4):
                producer.publish("quotes", Quote("a", number))
        with comet.sync.Consumer(broker.address, "quotes", type=Quote, start="earliest") as consumer:
            assert next(iter(consumer)).value.bid == 0
            assert bids_of(consumer.arrow(wait_ms=0), 3) == [1.0, 2.0, 3.0]
        with comet.sync.GroupConsumer(broker.address, "quotes", group="g", type=Quote, start="earliest") as member:
            assert bids_of(member.arrow(wait_ms=0), 4) == [0.0, 1.0, 2.0, 3.0]


def bids_of(tables: Iterator[pa.Table], count: int) -> list[float]:
    found: list[float] = []
    while len(found) < count:
        found += next(tables)["bid"].to_pylist()
    return found
