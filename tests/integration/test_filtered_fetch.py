"""Fetch with a filter: what a broker leaves out of its answers, how far one of them looks, and what that saves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import comet
from comet import records
from comet.encryption.keyring import Keyring
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet_broker.broker import Broker
from comet_broker.config import BrokerConfig
from comet_broker.partitions import filtering, range_read
from comet_broker.server import Server
from comet_broker.streams import unary_records
from tests.integration.test_encryption import KEYS
from tests.integration.test_filtered_delivery import fill
from tests.integration.test_isolation import producers

Call = Callable[[str, Any], Awaitable[Any]]


class Fetching:
    """Reads the partition by calls that trust the broker with the filter."""

    def __init__(self, call: Call, text: str, **more: Any) -> None:
        self._call = call
        self._asked = {"topic": "t", "filter": text, **more}
        self.answers: list[pb.FetchResponse] = []
        self.size = 0

    async def next(self, offset: int) -> pb.FetchResponse:
        request = pb.FetchRequest(start=types.Position(offset=offset), **self._asked)
        answer: pb.FetchResponse = await self._call("comet.v1.Comet/Fetch", request)
        assert answer.next_offset > offset, "no progress"
        self.answers.append(answer)
        self.size += answer.ByteSize()
        return answer

    async def up_to(self, end: int) -> list[bytes | None]:
        """The values of the records; of batches too, which have to cover all offsets."""
        got: list[bytes | None] = []
        at = 0
        while at < end:
            answer = await self.next(at)
            got += [record.value for record in answer.records]
            for batch in records.iterate(answer.batches):
                if batch.header.next_offset <= at:
                    continue
                assert batch.header.base_offset <= at, "offsets that nothing covers"
                at = batch.header.next_offset
                aborted = any(
                    (one.producer_id, one.epoch) == (batch.header.producer_id, batch.header.producer_epoch)
                    and one.first <= batch.header.base_offset < one.end
                    for one in answer.aborted
                )
                if not batch.header.control and not aborted:
                    got += batch.values
            if self._asked.get("whole_batches"):
                assert at == answer.next_offset, "covered and not counted, or counted and not covered"
            at = answer.next_offset
        assert at == end
        return got


@pytest.mark.parametrize("whole", [False, True])
async def test_one_record_of_a_thousand_comes_in_a_hundredth_of_the_bytes(
    broker: Broker, topic: types.Topic, call: Call, *, whole: bool
) -> None:
    await fill(broker, 20_000)
    more = {"whole_batches": whole, "records_max": 100_000, "bytes_max": 4 << 20}
    everything, chosen = Fetching(call, "", **more), Fetching(call, "n in [7, 1007, 5007, 19007]", **more)
    values = await everything.up_to(20_000)
    assert await chosen.up_to(20_000) == [values[at] for at in (7, 1007, 5007, 19007)]
    assert chosen.size * 100 < everything.size
    assert broker.statistics()["filters"]["examined_bytes"] > 20_000 * 80


@pytest.mark.parametrize("whole", [False, True])
async def test_an_answer_looks_at_a_bounded_part_and_tells_how_far(
    broker: Broker, topic: types.Topic, call: Call, monkeypatch: pytest.MonkeyPatch, *, whole: bool
) -> None:
    for module in (filtering, range_read, unary_records):
        monkeypatch.setattr(module, "EXAMINED_BYTES_MAX", 100_000)
    monkeypatch.setattr(range_read, "READ_BYTES", 20_000)
    await fill(broker, 10_000)
    chosen = Fetching(call, "n > 1000000", whole_batches=whole, records_max=100_000, bytes_max=20_000)
    assert await chosen.up_to(10_000) == []
    assert 5 <= len(chosen.answers) <= 20
    assert all(answer.ByteSize() < 400 for answer in chosen.answers)


async def test_records_max_counts_what_was_looked_at_in_batches_and_what_matches_in_records(
    broker: Broker, topic: types.Topic, call: Call
) -> None:
    await fill(broker, 1_000)
    batches = Fetching(call, "n >= 150", whole_batches=True, records_max=200)
    assert (await batches.next(50)).next_offset == 300, "by whole batches: 250 records"
    assert (await batches.next(0)).next_offset == 200
    found = await Fetching(call, "n >= 150", records_max=70).next(0)
    assert ([record.offset for record in found.records], found.next_offset) == ([*range(150, 220)], 220)


async def test_the_timestamps_of_what_was_left_out_are_told(broker: Broker, topic: types.Topic, call: Call) -> None:
    await fill(broker, 300)
    everything = await Fetching(call, "", whole_batches=True, records_max=1_000).next(0)
    chosen = await Fetching(call, "n = 5", whole_batches=True, records_max=1_000).next(0)
    times = [time for batch in records.iterate(everything.batches) for time in batch.timestamps]
    assert (chosen.min_timestamp_us, chosen.max_timestamp_us) == (min(times), max(times))
    assert not everything.HasField("min_timestamp_us")


@pytest.mark.parametrize("whole", [False, True])
async def test_a_filter_lets_nothing_through_that_was_aborted(
    broker: Broker, topic: types.Topic, call: Call, *, whole: bool
) -> None:
    (one,) = await producers(broker, "tx")
    handle = await one.attach()
    for number in range(6):
        await one.write(handle, b'{"n": 1, "by": %d}' % number, b'{"n": 2}')
        await one.end(commit=number % 2 == 0)
    wanted: list[bytes | None] = [b'{"n": 1, "by": %d}' % number for number in (0, 2, 4)]
    assert await Fetching(call, "n = 1", whole_batches=whole).up_to(18) == wanted


@pytest.mark.parametrize("whole", [False, True])
async def test_without_processor_time_all_is_sent(
    broker: Broker, topic: types.Topic, call: Call, *, whole: bool
) -> None:
    await fill(broker, 2_000)
    broker.env.filter_time.spend(1_000.0)
    found = await Fetching(call, "n = 3", whole_batches=whole, records_max=1_000).up_to(2_000)
    assert len(found) == 2_000
    assert broker.statistics()["filters"]["unfiltered_batches"] >= 20


@pytest.mark.parametrize("more", [{}, {"whole_batches": True}, {"wait_ms": 60_000}])
async def test_a_malformed_filter_is_refused_at_once(
    broker: Broker, topic: types.Topic, call: Call, more: dict[str, Any]
) -> None:
    request = pb.FetchRequest(topic="t", filter="n >", **more)
    with pytest.raises(comet.MalformedFilter, match="at character 4"):
        await call("comet.v1.Comet/Fetch", request)


async def test_a_waiting_call_is_told_of_records_that_do_not_match(
    broker: Broker, topic: types.Topic, call: Call
) -> None:
    waiting = asyncio.create_task(Fetching(call, "n > 1000", whole_batches=True, wait_ms=60_000).next(0))
    await fill(broker, 100)
    answer = await waiting
    assert answer.next_offset == 100
    assert [len(batch) for batch in records.iterate(answer.batches)] == [0]


# ---- through the SDK: the bytes that a broker sends, counted


class Counted:
    """A server with records of numbers, and the bytes that it has sent since it was last asked."""

    def __init__(self, server: Server) -> None:
        self.address = server.address
        self._server = server
        self._before = 0

    async def sent(self) -> int:
        now = self._server.broker.statistics()["sent_bytes"]
        since, self._before = now - self._before, now
        return int(since)


@pytest.fixture
async def counted(tmp_path: Path) -> AsyncIterator[Counted]:
    async with Server(BrokerConfig(data=tmp_path, port=0, filter_percent=100)) as server:
        async with comet.Admin(server.address) as admin:
            await admin.create_topic("t", partitions=2)
        noise = Random(1)
        async with comet.Producer(server.address) as producer:
            for first in range(0, 20_000, 500):
                values = [
                    b'{"n": %d, "noise": "%s"}' % (at, noise.randbytes(30).hex().encode())
                    for at in range(first, first + 500)
                ]
                await producer.send_many("t", values, partition=first // 500 % 2)
            await producer.flush()
        yield Counted(server)


async def ranged(address: str, text: str, *, backward: bool) -> list[tuple[int, int]]:
    async with comet.Reader(address) as reader:
        found = []
        for partition in (0, 1):
            async for part in reader.read("t", partition, backward=backward, filter=text):
                assert isinstance(part, comet.RecordBatch)
                found += [(partition, offset) for offset in part.offsets]
        return sorted(found)


async def forward(address: str, text: str) -> list[tuple[int, int]]:
    return await ranged(address, text, backward=False)


async def backward(address: str, text: str) -> list[tuple[int, int]]:
    return await ranged(address, text, backward=True)


async def merged(address: str, text: str) -> list[tuple[int, int]]:
    async with comet.Reader(address) as reader:
        reading = await reader.read_merged("t", filter=text)
        found = sorted([(one.partition, one.offset) async for one in reading if isinstance(one, comet.Record)])
        assert reading.records == 20_000
        return found


async def as_table(address: str, text: str) -> list[tuple[int, int]]:
    table = await asyncio.to_thread(comet.read("t", bootstrap=address, filter=text).to_arrow)
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


@pytest.mark.parametrize("read", [forward, backward, merged, as_table])
async def test_ranges_with_a_filter_cost_a_fraction_of_the_bytes(
    counted: Counted, read: Callable[[str, str], Awaitable[list[tuple[int, int]]]]
) -> None:
    await counted.sent()
    everything = await read(counted.address, "n >= 0")
    whole = await counted.sent()
    chosen = await read(counted.address, "n in [5, 777, 19999]")
    part = await counted.sent()
    assert len(everything) == 20_000
    assert chosen == [(0, 5), (1, 277), (1, 9_999)]
    assert part * 20 < whole, (part, whole)


async def test_a_maximum_of_records_counts_offsets(counted: Counted) -> None:
    async with comet.Reader(counted.address) as reader:
        reading = reader.read("t", 0, records_max=950, step_records=300, filter="n = 5")
        found = [part async for part in reading]
        assert [list(part.offsets) for part in found if isinstance(part, comet.RecordBatch)] == [[5]]
        assert (reading.position, reading.done) == (950, False)
        back = reader.read("t", 0, backward=True, records_max=950, step_records=300, filter="n = 5")
        assert [part async for part in back] == []
        assert (back.position, back.done) == (9_050, False)


async def test_encrypted_records_are_not_filtered_at_the_broker(counted: Counted) -> None:
    keyring = Keyring(KEYS)
    async with comet.Admin(counted.address) as admin:
        await admin.create_topic("secret", partitions=1)
    async with comet.Producer(counted.address, encryption=keyring) as producer:
        for at in range(10):
            await producer.publish("secret", b'{"n": %d}' % at)
    async with comet.Reader(counted.address, encryption=keyring) as reader:
        found = [part async for part in reader.read("secret", 0, filter="n > 7")]
        assert [value for part in found if isinstance(part, comet.RecordBatch) for value in part.values] == [
            b'{"n": 8}',
            b'{"n": 9}',
        ]
