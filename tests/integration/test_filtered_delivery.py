"""A subscription with a filter: what a broker leaves out, what it is sure to send, and what it saves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

import comet
from comet import records
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet.wire.frames import parse_delivery
from comet_broker.broker import Broker
from comet_broker.config import BrokerConfig
from comet_broker.partitions import filtering
from comet_broker.server import Server
from tests.integration.local_cluster import until
from tests.integration.stream_client import MIB, Client, idle
from tests.integration.test_isolation import Reader, producers


class Filtering(Reader):
    """Reads with a filter, as a client that trusts the broker with it."""

    async def read(self, text: str, handle: int, *, end: int, credit: int = MIB) -> list[bytes | None]:
        await self.begin(text, handle, credit=credit)
        return await self.up_to(end)

    async def begin(self, text: str, handle: int, *, credit: int = MIB) -> None:
        start = pb.Start(partition=handle, position=types.Position(earliest=True))
        self.send(subscribe=pb.Subscribe(subscription=1, starts=[start], credit=credit, filter=text))
        self.next_offset = (await self.answer()).subscribed.partitions[0].offset
        self.received = 0

    async def up_to(self, end: int) -> list[bytes | None]:
        got: list[bytes | None] = []
        while self.next_offset < end:
            frame = await self.next()
            if parse_delivery(frame) is None:
                told = pb.ServerFrame.FromString(frame).aborted
                self.aborted += [(one.producer_id, one.epoch, one.first, one.end) for one in told.transactions]
                continue
            self.received += len(frame)
            for batch in records.iterate(memoryview(frame)[32:]):
                assert batch.header.base_offset <= self.next_offset, "offsets that nothing covers"
                self.next_offset = batch.header.next_offset
                if self.counts(batch.header):
                    got += batch.values
            self.send(credit=pb.Credit(subscription=1, bytes=len(frame) - 32))
        assert self.next_offset == end
        return got


async def fill(broker: Broker, count: int) -> None:
    """Writes records of numbers, 100 in a batch."""
    producer, random = Client(broker), Random(1)
    handle = await producer.attach()
    for first in range(0, count, 100):
        noise = random.randbytes(30).hex().encode()
        producer.produce(handle, *[b'{"n": %d, "noise": "%s"}' % (at, noise) for at in range(first, first + 100)])
        await producer.answer()


async def test_one_record_of_a_thousand_is_sent_in_a_tenth_of_the_bytes(broker: Broker, topic: types.Topic) -> None:
    await fill(broker, 20_000)
    everything, chosen = Filtering(broker), Filtering(broker)
    all_values = await everything.read("", await everything.attach(), end=20_000)
    found = await chosen.read("n in [7, 1007, 5007, 19007]", await chosen.attach(), end=20_000)
    assert found == [all_values[at] for at in (7, 1007, 5007, 19007)]
    assert chosen.received * 100 < everything.received
    filters = broker.statistics()["filters"]
    assert filters["examined_bytes"] > 20_000 * 80
    assert (filters["examined_records"], filters["examined_records"] - filters["skipped_records"]) == (20_000, 4)


async def test_a_subscriber_is_fed_live_and_its_position_moves_without_a_match(
    broker: Broker, topic: types.Topic
) -> None:
    producer, reader = Client(broker), Filtering(broker)
    handle = await producer.attach()
    await reader.begin("n = 1", await reader.attach())
    for first in (0, 2, 4):
        producer.produce(handle, b'{"n": 0}', b'{"n": 1}' if first == 2 else b'{"n": 2}')
        await producer.answer()
        assert await reader.up_to(first + 2) == ([b'{"n": 1}'] if first == 2 else [])
    await idle(reader)


async def test_a_filter_lets_nothing_through_that_was_aborted(broker: Broker, topic: types.Topic) -> None:
    (one,) = await producers(broker, "tx")
    handle, reader = await one.attach(), Filtering(broker)
    await reader.begin("n = 1", await reader.attach())
    for number in range(6):
        await one.write(handle, b'{"n": 1, "by": %d}' % number, b'{"n": 2}')
        await idle(reader)
        await one.end(commit=number % 2 == 0)
        wanted = [b'{"n": 1, "by": %d}' % number] if number % 2 == 0 else []
        assert await reader.up_to(3 * (number + 1)) == wanted
    assert len(reader.aborted) == 3
    late = Filtering(broker)
    assert len(await late.read("n = 1", await late.attach(), end=18)) == 3


async def test_without_processor_time_all_is_sent_and_nothing_is_lost(broker: Broker, topic: types.Topic) -> None:
    await fill(broker, 2_000)
    broker.env.filter_time.spend(1_000.0)
    reader = Filtering(broker)
    assert len(await reader.read("n = 3", await reader.attach(), end=2_000)) == 2_000
    assert broker.statistics()["filters"]["unfiltered_batches"] == 20


async def test_a_large_batch_is_filtered_on_a_worker(
    broker: Broker, topic: types.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtering, "LOOP_RECORDS_MAX", 99)
    began: list[bool] = []
    take_one = filtering.FilteredDelivery._take_one

    def noted(self: filtering.FilteredDelivery, *given: Any) -> None:
        try:
            asyncio.get_running_loop()
            began.append(True)
        except RuntimeError:
            began.append(False)
        take_one(self, *given)

    monkeypatch.setattr(filtering.FilteredDelivery, "_take_one", noted)
    await fill(broker, 300)
    reader = Filtering(broker)
    assert len(await reader.read("n < 150", await reader.attach(), end=300)) == 150
    assert began == [False] * 3


async def test_a_malformed_filter_is_refused_and_nothing_is_subscribed(broker: Broker, topic: types.Topic) -> None:
    reader = Client(broker)
    start = pb.Start(partition=await reader.attach(), position=types.Position(earliest=True))
    reader.send(subscribe=pb.Subscribe(subscription=1, starts=[start], credit=MIB, filter="n >"))
    told = (await reader.answer()).error
    assert told.error.code == types.ERROR_CODE_MALFORMED_FILTER
    assert "malformed filter, at character 4" in told.error.message
    assert not reader.session.poll() and (await reader.subscribe(start.partition)).HasField("subscribed")


async def test_a_reader_leaves_while_its_records_are_looked_at(broker: Broker, topic: types.Topic) -> None:
    await fill(broker, 2_000)
    reader = Filtering(broker)
    handle = await reader.attach()
    async with broker.env.filter_turn:
        await reader.begin("n = 3", handle)
        await idle(reader)  # the first delivery is loaded
        await until(lambda: bool(broker.env.filter_turn._waiters), "the reader does not wait")
        reader.send(unsubscribe=pb.Unsubscribe(subscription=1))
        await reader.answer()
    other = Filtering(broker)
    assert len(await other.read("n = 3", handle, end=2_000)) == 1
    await idle(reader)


@pytest.mark.parametrize("percent", [0, 50])
async def test_a_consumer_finds_the_same_whether_its_broker_filters_or_not(tmp_path: Path, percent: int) -> None:
    config = BrokerConfig(data=tmp_path, port=0, filter_percent=percent)
    async with Server(config) as server:
        async with comet.Admin(server.address) as admin:
            await admin.create_topic("t", partitions=1)
        async with comet.Producer(server.address) as producer:
            for first in range(0, 20_000, 500):
                await producer.send_many("t", [b'{"n": %d}' % at for at in range(first, first + 500)])
            await producer.flush()
        before = server.broker.statistics()["sent_bytes"]
        async with comet.Consumer(server.address, "t", start="earliest", filter="n in [5, 19999]") as consumer:
            found = [await consumer.get(timeout_s=30), await consumer.get(timeout_s=30)]
        assert [one.offset for one in found if one] == [5, 19_999]
        sent = server.broker.statistics()["sent_bytes"] - before
        assert sent < 20_000 if percent else sent > 200_000
