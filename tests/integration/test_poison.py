"""Batches whose columns do not add up, over the wire: a leader refuses them; where a log has one all the same, every
reader says which offsets are lost, once, and goes on behind them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

import comet
from comet.errors import CorruptBatch, CorruptRecords
from comet.records import Codec
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from tests import poison

LOST = {"first": "2", "end": "7"}


@pytest.fixture
async def broker() -> AsyncIterator[comet.testing.TestBroker]:
    async with comet.testing.broker({"quotes": 1, "dead": 1}) as one:
        yield one


@pytest.fixture
async def address(broker: comet.testing.TestBroker) -> str:
    """Of a broker with a poisoned batch, offsets 2 to 6, in quotes/0 between good ones."""
    await poison.poison(broker.address, "quotes")
    return broker.address


def lost(error: CorruptRecords) -> dict[str, str]:
    return {name: error.details[name] for name in LOST}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name)
async def test_a_leader_refuses_them_and_others_are_not_disturbed(
    broker: comet.testing.TestBroker, codec: Codec
) -> None:
    async with comet.Producer(broker.address) as producer:
        await producer.publish("quotes", b"before")
        for kind in poison.KINDS:
            with pytest.raises(CorruptBatch):
                await poison.write(broker.address, "quotes", poison.poisoned(kind, codec))
        await producer.publish("quotes", b"after")
    async with comet.Consumer(broker.address, "quotes", start="earliest") as consumer:
        assert [(await consumer.__anext__()).value for _ in range(2)] == [b"before", b"after"]


async def test_a_leader_refuses_them_in_transactions_and_requests_with_a_key(broker: comet.testing.TestBroker) -> None:
    transactional, keyed = 128, 512
    for more in ({"producer_epoch": 1, "flags": transactional}, {"flags": keyed, "base_sequence": 5}):
        fields = {"producer_id": 7, **more, "flags": more["flags"] | poison.FLAGS}
        data = poison.poisoned("offsets fall", Codec.NONE, **fields)
        with pytest.raises(CorruptBatch):
            await poison.write(broker.address, "quotes", data)


@pytest.mark.parametrize("kind", poison.UNREADABLE)
async def test_a_consumer_is_told_once_and_goes_on(broker: comet.testing.TestBroker, kind: str) -> None:
    await poison.poison(broker.address, "quotes", kind=kind)
    end = 8 if kind == "the count is too high" else 7
    async with comet.Consumer(broker.address, "quotes", start="earliest") as consumer:
        assert [(await consumer.__anext__()).offset for _ in range(2)] == [0, 1]
        with pytest.raises(CorruptRecords) as caught:
            await consumer.get()
        assert (caught.value.details["first"], caught.value.details["end"]) == ("2", str(end))
        assert consumer.positions() == {0: end}
        assert [(await consumer.__anext__()).offset for _ in range(2)] == [end, end + 1]
        assert consumer.lag() == {0: 0}
        assert consumer.statistics()["corrupt_batches"] == 1


async def test_batches_and_tables_go_on_behind_it(address: str) -> None:
    async with comet.Consumer(address, "quotes", start="earliest") as consumer:
        batches = consumer.batches()
        assert list((await anext(batches)).offsets) == [0, 1]
        with pytest.raises(CorruptRecords):
            await anext(batches)
        assert list((await anext(batches)).offsets) == [7, 8]
    async with comet.Consumer(address, "quotes", start="earliest") as consumer:
        tables = consumer.arrow(columns=["offset"], rows_max=4, wait_ms=0)
        found: list[Any] = []
        while not found or found[-1] != 8:
            try:
                found += (await anext(tables))["offset"].to_pylist()
            except CorruptRecords as error:
                found.append(lost(error))
        assert found == [0, 1, LOST, 7, 8]


async def test_a_consumer_may_skip_it_or_hear_of_a_gap(address: str) -> None:
    async with comet.Consumer(address, "quotes", on_corrupt="skip", start="earliest") as consumer:
        assert [(await consumer.__anext__()).offset for _ in range(4)] == [0, 1, 7, 8]
        assert consumer.statistics()["corrupt_batches"] == 1
    gaps: list[comet.Gap] = []
    async with comet.Consumer(address, "quotes", on_gap=gaps.append, start="earliest") as consumer:
        assert [(await consumer.__anext__()).offset for _ in range(4)] == [0, 1, 7, 8]
    assert gaps == [comet.Gap("quotes", 0, 2, 7, "damaged")]
    with pytest.raises(comet.InvalidArgument, match="on_corrupt"):
        comet.Consumer(address, "quotes", on_corrupt="ignore", start="earliest")  # type: ignore[call-overload]


async def test_a_consumer_may_begin_in_it(address: str) -> None:
    async with comet.Consumer(address, "quotes", start=4) as consumer:
        with pytest.raises(CorruptRecords) as caught:
            await consumer.get()
        assert lost(caught.value) == {"first": "4", "end": "7"}
        assert (await consumer.__anext__()).offset == 7


async def test_what_is_in_a_transaction_that_was_aborted_is_nobodys_matter(broker: comet.testing.TestBroker) -> None:
    """It is dropped unseen."""
    with poison.unchecked():
        async with comet.TransactionalProducer(broker.address) as producer:
            with suppress(RuntimeError):
                async with producer.transaction() as transaction:
                    await transaction.send("quotes", b"aborted")
                    raise RuntimeError
        await poison.write(broker.address, "quotes", poison.batch_of(b"good"))
    async with comet.Consumer(broker.address, "quotes", start="earliest") as consumer:
        assert (await consumer.__anext__()).value == b"good"


async def test_a_group_is_told_once_and_its_position_passes_it(address: str) -> None:
    async def member() -> list[Any]:
        found: list[Any] = []
        async with comet.GroupConsumer(address, "quotes", group="g", start="earliest", commit_interval_ms=10) as one:
            while not found or found[-1] not in (8, None):
                try:
                    record = await one.get(timeout_s=20)
                    found.append(None if record is None else record.offset)
                except CorruptRecords as error:
                    found.append(lost(error))
            await one.commit()
        return found

    assert await member() == [0, 1, LOST, 7, 8]
    async with comet.GroupConsumer(address, "quotes", group="g") as one:
        assert one.committed() == {("quotes", 0): 9}


async def test_a_group_that_dies_of_it_is_told_again(address: str) -> None:
    """The error is in its hands, as a record would be."""
    for _ in range(2):
        with pytest.raises(CorruptRecords):  # noqa: PT012 - the member is left with it
            async with comet.GroupConsumer(address, "quotes", group="g", start="earliest") as one:
                async for _ in one:
                    pass
        async with comet.Admin(address) as admin:
            described = await admin.describe_group("g")
            assert [part.committed for part in described.lags] == [2]


@pytest.mark.parametrize(
    ("delivery", "concurrency"),
    [("at_most_once", 1), ("at_least_once", 1), ("at_least_once", 4), ("exactly_once", 1), ("exactly_once", 4)],
)
async def test_an_app_writes_a_note_of_it_and_goes_on(address: str, delivery: Any, concurrency: int) -> None:
    app = comet.App(address)
    handled: list[int] = []

    @app.on("quotes", group="g", start="earliest", delivery=delivery, concurrency=concurrency, dead_letter="dead")
    async def handle(record: comet.Record[bytes]) -> None:
        handled.append(record.offset)

    running = asyncio.create_task(app.serve())
    try:
        async with comet.Consumer(address, "dead", start="earliest") as letters, comet.Admin(address) as admin:
            letter = await letters.get(timeout_s=30)

            async def committed() -> list[int | None]:
                return [part.committed for part in (await admin.describe_group("g")).lags]

            while await committed() != [9]:
                assert not running.done()
    finally:
        app.stop()
        await running
    assert sorted(handled) == [0, 1, 7, 8]
    assert letter is not None and letter.key is None
    said = {name.removeprefix("comet-dead-letter-"): value.decode() for name, value in letter.headers}
    assert {name: said[name] for name in ("topic", "partition", "offset", "end", "group")} == {
        "topic": "quotes", "partition": "0", "offset": "2", "end": "7", "group": "g",
    }  # fmt: skip
    assert "the offsets of the values" in said["reason"]


@pytest.mark.parametrize("group", ["", "g"])
async def test_an_app_skips_it_or_stops_as_on_error_says(address: str, group: str) -> None:
    handled: list[int] = []

    def app_of(on_error: Any) -> comet.App:
        app = comet.App(address)

        @app.on("quotes", group=group, start="earliest", on_error=on_error)
        async def handle(record: comet.Record[bytes]) -> None:
            handled.append(record.offset)
            if record.offset == 8:
                app.stop()

        return app

    with pytest.raises(CorruptRecords):
        await app_of("stop").serve()
    assert handled == [0, 1]
    handled.clear()
    await app_of("skip").serve()
    assert handled == ([7, 8] if group else [0, 1, 7, 8])


async def test_a_shared_group_rejects_its_records(address: str) -> None:
    async with comet.ShareConsumer(
        address, "quotes", group="s", start="earliest", dead_letter="dead"
    ) as one, comet.Consumer(address, "dead", start="earliest") as letters:  # fmt: skip
        found: list[int] = []
        failures: list[dict[str, str]] = []
        while len(found) < 4:
            try:
                record = await one.__anext__()
            except CorruptRecords as error:
                failures.append(lost(error))
                continue
            found.append(record.offset)
            await record.ack()
        assert (sorted(found), failures) == ([0, 1, 7, 8], [LOST])
        dead = [await letters.__anext__() for _ in range(5)]
    said = [dict(letter.headers) for letter in dead]
    assert sorted(int(one["comet-dead-letter-offset"]) for one in said) == [2, 3, 4, 5, 6]
    assert all(letter.value is None for letter in dead)


async def test_locks_reject_its_records(address: str) -> None:
    async with comet.ShareClient(address) as shares, comet.Admin(address) as admin:
        found = await shares.acquire("s", "quotes", wait_ms=5_000, start="earliest")
        assert [record.offset for record in found] == [0, 1, 7, 8]
        await shares.ack([record.token for record in found])
        assert await shares.acquire("s", "quotes") == []

        async def settled() -> bool:
            return all(part.lag == 0 for part in (await admin.describe_group("s")).lags)

        while not await settled():
            assert await shares.acquire("s", "quotes") == []


async def test_a_fetch_gives_what_is_before_and_behind_it(address: str) -> None:
    async with comet.Reader(address) as reader:
        found = await reader.fetch("quotes", 0)
        assert (sum(map(len, found.batches)), found.next_offset) == (2, 2)
        with pytest.raises(CorruptRecords) as caught:
            await reader.fetch("quotes", 0, 2, epoch=found.epoch)
        assert lost(caught.value) == LOST
        found = await reader.fetch("quotes", 0, int(caught.value.details["end"]))
        assert [batch.values for batch in found.batches] == [[b"7", b"8"]]


async def test_thin_clients_are_told_the_same(address: str) -> None:
    """Those that take records one by one, from the broker."""
    from comet.wire.grpc_channel import connect

    channel = connect(address)
    try:

        async def fetch(offset: int) -> pb.FetchResponse:
            request = pb.FetchRequest(topic="quotes", start=types.Position(offset=offset))
            answer = await channel.unary("comet.v1.Comet/Fetch", request, pb.FetchResponse, 10)
            assert isinstance(answer, pb.FetchResponse)
            return answer

        found = await fetch(0)
        assert ([record.offset for record in found.records], found.next_offset) == ([0, 1], 2)
        with pytest.raises(comet.DataLoss) as caught:
            await fetch(2)
        assert (caught.value.details["first"], caught.value.details["end"]) == ("2", "7")
        assert [record.offset for record in (await fetch(7)).records] == [7, 8]
    finally:
        await channel.close()


def cli(address: str, *words: str, code: int = 0) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        [sys.executable, "-m", "comet.cli", *words], capture_output=True, timeout=60, check=False,
        env=os.environ | {"COMET_BOOTSTRAP": address},
    )  # fmt: skip
    assert done.returncode == code, (done.stdout, done.stderr)
    assert b"Traceback" not in done.stderr
    return done


def test_the_command_line_says_it_or_skips_it() -> None:
    with comet.testing.broker({"quotes": 1}) as broker:
        comet.sync.call(poison.poison(broker.address, "quotes"))
        done = cli(broker.address, "consume", "quotes", "--no-follow", code=1)
        assert done.stdout == b"0\n1\n"
        assert b"offsets 2 to 6 cannot be read" in done.stderr and b"--on-corrupt skip" in done.stderr
        assert cli(broker.address, "consume", "quotes", "--from", "7", "--no-follow").stdout == b"7\n8\n"
        done = cli(broker.address, "consume", "quotes", "--no-follow", "--on-corrupt", "skip")
        assert done.stdout == b"0\n1\n7\n8\n"
        member = ("consume", "quotes", "--group", "g", "--from", "earliest", "--count", "4", "--on-corrupt", "skip")
        assert cli(broker.address, *member).stdout == b"0\n1\n7\n8\n"


def test_comet_read_says_which_offsets_are_lost() -> None:
    with comet.testing.broker({"quotes": 1}) as broker:
        comet.sync.call(poison.poison(broker.address, "quotes"))
        with pytest.raises(CorruptRecords) as caught:
            comet.read("quotes", bootstrap=broker.address).to_arrow()
        assert lost(caught.value) == LOST
        whole = comet.read("quotes", bootstrap=broker.address, columns=["offset"], on_corrupt="skip").to_arrow()
        assert whole["offset"].to_pylist() == [0, 1, 7, 8]
        inside = comet.read("quotes", bootstrap=broker.address, start=4, columns=["offset"], on_corrupt="skip")
        assert inside.to_arrow()["offset"].to_pylist() == [7, 8]
        rest = comet.read("quotes", bootstrap=broker.address, start=7, columns=["offset"]).to_arrow()
        assert rest["offset"].to_pylist() == [7, 8]


async def test_a_position_by_time_is_found(address: str) -> None:
    async with comet.Admin(address) as admin:
        assert await admin.offsets("quotes", "1970-01-01T00:00:01Z") == {0: 0}
        assert await admin.offsets("quotes", "1970-01-01T00:00:01.000005Z") == {0: 3}  # its times can be read
