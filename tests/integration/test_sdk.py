"""The SDK against real brokers over real gRPC: what the fake in tests/unit cannot show."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import comet
import comet.sync
import comet.testing
from comet.processes.child import Child, python_module
from comet.v1 import records_pb2 as pb
from comet.wire.grpc_channel import connect
from tests.etcd import free_ports
from tests.pausing import stand_still


class Quote(msgspec.Struct):
    symbol: str
    bid: float


@pytest.fixture
def port() -> int:
    """A port that is free now, and the same for a broker that is started again."""
    return free_ports(1)[0]


class Process:
    """A broker in a process of its own, which a test may stop, kill and start again."""

    def __init__(self, data: Path, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        words = ("broker", "--data", str(data), "--port", str(port))
        self.child = Child("broker", python_module("comet.cli", *words), piped=True)

    async def start(self) -> None:
        """Returns when it serves: then it prints its address."""
        self.child.start()
        await asyncio.to_thread(self.child.line, 60)

    def kill(self) -> None:
        self.child.kill()

    def terminate(self) -> int:
        self.child.signal(signal.SIGTERM)
        return self.child.wait(60)


async def test_a_broker_that_is_killed_again_and_again_costs_nothing(tmp_path: Path, port: int) -> None:
    broker = Process(tmp_path, port)
    await broker.start()
    try:
        async with comet.Admin(broker.address) as admin:
            await admin.create_topic("quotes", partitions=2)
        async with (
            comet.Producer(broker.address) as producer,
            comet.Consumer(broker.address, "quotes", start="earliest") as consumer,
        ):
            sent = 3000
            deliveries: list[comet.Delivery] = []

            async def produce(begin: int, end: int) -> None:
                for n in range(begin, end):
                    deliveries.append(await producer.send("quotes", b"%d" % n, partition=n % 2))
                    if n % 3 == 0:
                        await deliveries[-1]

            for begin in range(0, sent, 1000):
                await produce(begin, begin + 500)
                producing = asyncio.create_task(produce(begin + 500, begin + 1000))
                broker.kill()
                await broker.start()
                await producing
            receipts = [await delivery for delivery in deliveries]
            got: dict[int, list[int]] = {0: [], 1: []}
            while len(got[0]) + len(got[1]) < sent:
                record = await consumer.get(timeout_s=60)
                assert record is not None, f"{len(got[0])} and {len(got[1])} of {sent} came"
                got[record.partition].append(int(record.value))
            assert got == {0: list(range(0, sent, 2)), 1: list(range(1, sent, 2))}
            assert [receipt.offset for receipt in receipts[::2]] == list(range(sent // 2))
    finally:
        broker.kill()


async def test_a_graceful_stop_leaves_nothing_in_doubt(tmp_path: Path, port: int) -> None:
    broker = Process(tmp_path, port)
    await broker.start()
    try:
        async with comet.Admin(broker.address) as admin:
            await admin.create_topic("quotes")
        # Without idempotence, whatever is in doubt would fail.
        async with comet.Producer(broker.address, idempotent=False) as producer:
            first = [await producer.send("quotes", b"%d" % n) for n in range(100)]
            stopping = asyncio.create_task(asyncio.to_thread(broker.terminate))
            while not stopping.done():
                first.append(await producer.send("quotes", b"x"))
                await asyncio.wait([stopping], timeout=0.005)
            assert await stopping == 0
            await broker.start()
            receipts = [await delivery for delivery in first]
            assert [receipt.offset for receipt in receipts] == list(range(len(first)))
    finally:
        broker.kill()


async def test_a_stopped_process_is_noticed_and_waited_for(tmp_path: Path, port: int) -> None:
    broker = Process(tmp_path, port)
    await broker.start()
    try:
        async with comet.Admin(broker.address) as admin:
            await admin.create_topic("quotes")
        async with comet.Producer(broker.address, timeout_ms=4_000) as producer:
            await producer.publish("quotes", b"1")
            stand_still(broker.child.pid)
            with pytest.raises(comet.Timeout):
                await producer.publish("quotes", b"2")
            broker.child.signal(signal.SIGCONT)
            assert (await producer.publish("quotes", b"3")).offset in {1, 2}
        async with comet.Consumer(broker.address, "quotes", start="earliest") as consumer:
            values = [record.value for _ in range(2) if (record := await consumer.get(30)) is not None]
            assert values in ([b"1", b"3"], [b"1", b"2"])
    finally:
        broker.kill()


async def test_typed_events_of_every_kind_come_back_as_they_were() -> None:
    async with comet.testing.broker(["quotes"]) as broker:
        async with comet.Producer(broker.address, compression="lz4", linger_ms=1) as producer:
            for n in range(50):
                await producer.send("quotes", Quote("EURUSD", n / 2), key="EURUSD", headers={"n": str(n)})
        async with comet.Consumer(broker.address, "quotes", type=Quote, start="earliest") as consumer:
            async for record in consumer:
                assert record.value == Quote("EURUSD", record.offset / 2)
                assert record.headers == [("n", str(record.offset).encode())]
                if record.offset == 49:
                    break
        async with comet.Consumer(broker.address, "quotes", type=Quote, start=48) as consumer:
            batch = await consumer.get_batch()
            assert batch is not None
            assert batch.models() == [Quote("EURUSD", 24.0), Quote("EURUSD", 24.5)]
            table = batch.to_arrow()
            assert isinstance(table, pa.RecordBatch)
            assert table.column("offset").to_pylist() == [48, 49]


async def test_large_and_many_through_a_small_window() -> None:
    async with comet.testing.broker({"quotes": 3}, record_bytes_max=7 << 20) as broker:
        async with comet.Producer(broker.address, compression="zstd") as producer:
            await producer.publish("quotes", os.urandom(6 << 20), partition=0)
            values = [os.urandom(100) for _ in range(50_000)]
            await (await producer.send_many("quotes", values))
        async with comet.Consumer(broker.address, "quotes", buffer_bytes=64 << 10, start="earliest") as consumer:
            seen = 0
            async for batch in consumer.batches():
                seen += len(batch)
                if seen == 50_001:
                    break
            assert consumer.statistics()["buffered_bytes"] <= 7 << 20


async def test_times_and_offsets_are_found() -> None:
    async with comet.testing.broker(["quotes"]) as broker, comet.Producer(broker.address) as producer:
        for n in range(10):
            await producer.publish("quotes", b"%d" % n, timestamp_us=1_700_000_000_000_000 + n * 60_000_000)
        async with comet.Consumer(broker.address, "quotes", start=comet.AtTime(1_700_000_180_000_000)) as c:
            record = await c.get(30)
            assert record is not None
            assert record.offset == 3
        async with comet.Consumer(broker.address, "quotes", start="2023-11-14T22:20:00Z") as c:
            record = await c.get(30)
            assert record is not None
            assert record.offset == 7
        async with comet.Admin(broker.address) as admin:
            assert await admin.offsets("quotes", "earliest") == {0: 0}
            await admin.delete_records("quotes", 0, 5)
        with pytest.raises(comet.OffsetOutOfRange) as caught:
            async with comet.Consumer(broker.address, "quotes", start=2) as c:
                await c.get(30)
        assert caught.value.details["log_start"] == "5"


async def test_errors_cross_grpc_with_all_they_say() -> None:
    async with comet.testing.broker(["quotes"]) as broker, comet.Admin(broker.address) as admin:
        with pytest.raises(comet.TopicExists):
            await admin.create_topic("quotes")
        with pytest.raises(comet.TopicNotFound):
            await admin.describe_topic("nothing")
        with pytest.raises(comet.InvalidArgument):
            await admin.alter_topic("quotes", segment_bytes=1)
        with pytest.raises(comet.TopicNotFound, match="create it"):
            await comet.Consumer(broker.address, "nothing", start="earliest").start()
    with pytest.raises(comet.Unavailable, match="cannot reach a broker"):
        async with comet.Admin("127.0.0.1:1") as admin:
            await admin.list_topics()


async def test_what_is_no_comet_broker_is_named_as_such() -> None:
    channel = connect("127.0.0.1:1")
    with pytest.raises(comet.Unavailable):
        await channel.unary("comet.v1.Comet/FetchMetadata", pb.FetchMetadataRequest(), pb.FetchMetadataResponse, 30.0)
    await channel.close()
    async with comet.testing.broker() as broker:
        channel = connect(broker.address)
        with pytest.raises(comet.UnsupportedVersion):
            await channel.unary("comet.v1.Comet/Nothing", pb.FetchMetadataRequest(), pb.FetchMetadataResponse, 30.0)
        await channel.close()


def test_the_synchronous_face_from_several_threads() -> None:
    with comet.testing.broker({"quotes": 2}) as broker:
        with comet.sync.Producer(broker.address) as producer:

            def write(who: int) -> None:
                for n in range(50):
                    producer.send("quotes", b"%d" % n, key=b"%d" % who)

            threads = [threading.Thread(target=write, args=(who,)) for who in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            producer.flush()
            assert producer.statistics()["acked_records"] == 200
        with comet.sync.Consumer(broker.address, "quotes", start="earliest") as consumer:
            got: dict[bytes | None, list[int]] = {}
            for record in consumer:
                got.setdefault(record.key, []).append(int(record.value))
                if sum(map(len, got.values())) == 200:
                    break
            assert all(values == list(range(50)) for values in got.values())
            assert sum(consumer.positions().values()) == 200
            assert sum(consumer.lag().values()) == 0
            consumer.seek("earliest")
            batch = next(iter(consumer.batches()))
            assert batch.first_offset == 0
            consumer.seek("earliest")
            assert consumer.get() is not None
            left = 0
            while left < 199:
                rest = consumer.get_batch(30)
                assert rest is not None
                left += len(rest)
            assert left == 199, "what was left of the batch that was begun, and all others"
            assert consumer.get_batch(0.01) is None
            with pytest.raises(comet.Timeout):
                comet.sync.call(asyncio.Event().wait(), timeout_s=0.05)
        with pytest.raises(comet.Closed):
            producer.send("quotes", b"1")


class Finding:
    """A consumer that finds another partition in each turn of its loop."""

    def __init__(self) -> None:
        self._found = 1

    def positions(self) -> dict[int, int]:
        asyncio.get_running_loop().call_soon(self._find)
        return dict.fromkeys(range(self._found), 2)

    def lag(self) -> dict[int, int]:
        return dict.fromkeys(self.positions(), 3)

    def _find(self) -> None:
        self._found += 1


def test_the_synchronous_lag_is_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = comet.sync.Consumer("localhost", "quotes", start="earliest")
    finding = Finding()
    finding._ahead = consumer._async._ahead  # type: ignore[attr-defined]
    monkeypatch.setattr(consumer, "_async", finding)
    assert consumer.lag() == {0: 3}


def test_a_synchronous_transaction_commits_records_with_the_offsets_of_a_group() -> None:
    with comet.testing.broker(["quotes", "signals"]) as broker:
        address = broker.address
        with comet.sync.Producer(address) as producer:
            producer.send_many("quotes", [b"1", b"2"]).result()
        with (
            comet.sync.GroupConsumer(address, "quotes", group="g", start="earliest", auto_commit=False) as member,
            comet.sync.TransactionalProducer(address, group=member) as writer,
        ):
            record = next(iter(member))
            with writer.transaction() as tx:
                tx.send("signals", record.value)
                tx.commit_offsets(member, record)
            assert tx.state == "committed"
            given_up = writer.transaction()
            with suppress(ValueError), given_up:
                given_up.send("signals", b"never seen")
                raise ValueError("changed my mind")
            assert given_up.state == "aborted"
            assert member.committed() == {("quotes", 0): 1}
        with comet.sync.Producer(address) as producer:
            producer.publish("signals", b"after")
        with comet.sync.Consumer(address, "signals", start="earliest") as consumer:
            assert [next(consumer).value for _ in range(2)] == [b"1", b"after"], "nothing of the aborted one between"


def test_a_synchronous_consumer_continues_after_a_record_that_cannot_be_decoded() -> None:
    with comet.testing.broker(["quotes"]) as broker, comet.sync.Producer(broker.address) as producer:
        producer.send_many("quotes", [b"1", b"x", b"3"]).result()
        with comet.sync.Consumer(broker.address, "quotes", type=int, start="earliest") as consumer:
            assert next(consumer).value == 1
            with pytest.raises(comet.SerdeError):
                next(consumer)
            assert consumer.positions() == {0: 2}
            assert next(consumer).value == 3


def interrupt_once_it_waits(thread: int) -> None:
    """As Ctrl-C does, once that thread waits for the loop of comet.sync."""
    called: set[str] = set()
    while "_ended" not in called:
        frame = sys._current_frames().get(thread)
        called = set()
        while frame is not None:
            called.add(frame.f_code.co_name)
            frame = frame.f_back
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def ctrl_c_interrupts() -> Iterator[None]:
    """As in a program that has no handler of its own, whatever earlier tests of this process have left."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_interrupts")
def test_an_interrupted_wait_ends_and_the_producer_goes_on() -> None:
    with (
        comet.testing.broker(["quotes"]) as broker,
        comet.sync.Consumer(broker.address, "quotes", start="earliest") as consumer,
    ):
        interrupter = threading.Thread(target=interrupt_once_it_waits, args=(threading.get_ident(),))
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            consumer.get()
        interrupter.join()
        with comet.sync.Producer(broker.address) as producer:
            producer.publish("quotes", b"1")
        record = consumer.get(30)
        assert record is not None
        assert record.value == b"1"


def test_an_app_ends_in_good_order_on_a_signal(tmp_path: Path, port: int) -> None:
    broker = Process(tmp_path, port)
    comet.run(broker.start())
    script = f"""
import comet
app = comet.App("{broker.address}")

@app.on("quotes", start="earliest")
async def show(value: dict) -> None:
    print(value["n"], flush=True)

app.run()
print("done", flush=True)
"""
    try:
        with comet.sync.Admin(broker.address) as admin:
            admin.create_topic("quotes")
        with comet.sync.Producer(broker.address) as producer:
            producer.publish("quotes", {"n": 7})
        command = [sys.executable, "-c", script]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "7\n"
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "done\n"
            assert process.wait(60) == 0
    finally:
        broker.kill()


async def test_nothing_is_logged_when_nothing_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with comet.testing.broker(["quotes"]) as broker:
            async with comet.Producer(broker.address) as producer:
                await producer.publish("quotes", b"1")
            async with comet.Consumer(broker.address, "quotes", start="earliest") as consumer:
                await consumer.get()
    assert not caplog.records


async def test_who_waits_on_a_stream_that_another_task_cuts_is_not_cancelled_itself() -> None:
    async with comet.testing.broker() as broker:
        channel = connect(broker.address)
        stream = channel.stream()
        await stream.write(pb.ClientFrame(request=1, ping=pb.Ping()).SerializeToString())
        assert await stream.read() is not None
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        stream.cancel()
        with pytest.raises(comet.Unavailable):
            await reading
        await channel.close()


async def test_with_acks_0_what_was_sent_before_the_end_is_there_after_it(tmp_path: Path, port: int) -> None:
    """Nobody waits for an answer, and still nothing is cut off that was on its way."""
    broker = Process(tmp_path, port)
    await broker.start()
    try:
        async with comet.Admin(broker.address) as admin:
            await admin.create_topic("quotes", partitions=2)
            for round_ in range(1, 6):
                async with comet.Producer(broker.address, acks=0) as producer:
                    for number in range(40):
                        await producer.send_many("quotes", [b"x" * 140] * 500, partition=number % 2)
                assert sum((await admin.offsets("quotes", "latest")).values()) == round_ * 40 * 500
    finally:
        broker.kill()
