"""End-to-end encryption with real brokers: all kinds of producers and readers, and nothing readable on disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import comet
from comet.encryption.encryptor import Encryptor
from comet.encryption.envelope import MAGIC
from comet.encryption.keyring import Keyring
from comet.encryption.keys import LocalKeys
from comet.handlers.options import DeliveryMode
from comet.producer.idempotent_publish import encrypt, publish_once, request_of
from comet.producer.value_encoder import ValueEncoder
from comet.types import TopicPartition
from tests.robustness.process import BrokerProcess
from tests.waiting import until

KEYS = {"k1": bytes(range(32))}
NEWER = {**KEYS, "k2": bytes(range(32, 64))}
SECRET = b"the secret sentence"
WAIT_S = 30


@comet.model
class Quote:
    symbol: str
    bid: float


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with comet.testing.broker(["t", "dead", "out"]) as broker:
        yield broker.address


@pytest.fixture
def keyring() -> Keyring:
    return Keyring(KEYS)


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_no_value_is_readable_in_the_brokers_folder(tmp_path: Path, keyring: Keyring) -> None:
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    try:
        async with comet.Admin(broker.address) as admin:
            await admin.create_topic("t")
        async with comet.Producer(broker.address, acks="all") as plain:
            await plain.publish("t", b"readable", key="in clear")
        for compression in ("none", "lz4", "zstd"):
            async with comet.Producer(
                broker.address, acks="all", compression=compression, encryption=keyring
            ) as producer:
                await producer.publish("t", SECRET, key="k")
                await (await producer.send_many("t", [SECRET] * 100))
        transactional = comet.TransactionalProducer(broker.address, "x", encryption=keyring)
        async with transactional, transactional.transaction() as tx:
            await tx.send("t", SECRET)
        passing = Keyring(KEYS, plaintext="pass")
        async with comet.Consumer(broker.address, "t", encryption=passing, start="earliest") as consumer:
            values = [(await consumer.__anext__()).value for _ in range(305)]
        assert values == [b"readable", *[SECRET] * 304]
    finally:
        broker.terminate()
    stored = everything_in(tmp_path)
    assert b"readable" in stored and b"in clear" in stored and MAGIC in stored
    assert SECRET not in stored
    assert SECRET[:8] not in stored
    assert KEYS["k1"] not in stored


async def test_models_keys_headers_times_and_tombstones_arrive(address: str, keyring: Keyring) -> None:
    async with comet.Producer(address, encryption=keyring) as producer:
        await producer.publish("t", Quote("a", 1.5), key="a", headers={"h": "1"}, timestamp_us=7)
        await producer.publish("t", None, key="a")
        await producer.publish("t", b"")
    async with comet.Consumer(address, "t", start="earliest") as blind:
        first, second, third = [await blind.__anext__() for _ in range(3)]
    assert first.value.startswith(MAGIC) and third.value.startswith(MAGIC)
    assert (first.key, first.headers, first.timestamp_us) == (b"a", [("h", b"1")], 7)
    assert repr(second.value) == "None"
    async with comet.Consumer(address, "t", type=Quote, encryption=keyring, start="earliest") as consumer:
        found = await consumer.__anext__()
        assert (found.value, found.key, found.headers) == (Quote("a", 1.5), b"a", [("h", b"1")])
        assert (await consumer.__anext__()).value is None
        with pytest.raises(comet.SerdeError) as caught:
            await consumer.__anext__()
        assert not isinstance(caught.value, comet.DecryptionError)


async def test_a_reader_without_the_key_skips_what_it_cannot_read(address: str) -> None:
    for at, keys in enumerate((KEYS, NEWER, KEYS)):
        async with comet.Producer(address, encryption=Keyring(keys)) as producer:
            await producer.publish("t", b"%d" % at)
    async with comet.Consumer(address, "t", encryption=Keyring(KEYS), start="earliest") as consumer:
        assert (await consumer.__anext__()).value == b"0"
        with pytest.raises(comet.DecryptionError) as caught:
            await consumer.__anext__()
        details = caught.value.details
        assert [details[name] for name in ("key_id", "topic", "partition", "offset")] == ["k2", "t", "0", "1"]
        assert (await consumer.__anext__()).value == b"2"
    async with comet.Consumer(address, "t", encryption=Keyring(NEWER), start="earliest") as consumer:
        assert [(await consumer.__anext__()).value for _ in range(3)] == [b"0", b"1", b"2"]


async def test_batches_tables_and_scans_are_decrypted_or_raise(address: str, keyring: Keyring) -> None:
    quotes = [Quote("a", float(number)) for number in range(20)]
    async with comet.Producer(address, encryption=keyring) as producer:
        await (await producer.send_many("t", quotes, partition=0))
    async with comet.Consumer(address, "t", type=Quote, encryption=keyring, start="earliest") as consumer:
        batch = await consumer.get_batch(WAIT_S)
        assert batch is not None and batch.models() == quotes
        assert batch.record(3).value == b'{"symbol":"a","bid":3.0}'
        rest = batch.after(15)
        assert rest is not None and rest.models() == quotes[15:]
        assert batch.to_arrow(["value"])["value"].to_pylist() == list(batch.values)
    async with comet.Consumer(address, "t", type=Quote, encryption=keyring, start="earliest") as consumer:
        async for table in consumer.arrow(columns=["bid"], rows_max=20):
            assert table["bid"].to_pylist() == [quote.bid for quote in quotes]
            break
    scan = comet.read("t", type=Quote, start=3, records_max=4, encryption=keyring, bootstrap=address)
    assert (await scan)["bid"].to_pylist() == [3.0, 4.0, 5.0, 6.0]
    wrong = Keyring({"k2": NEWER["k2"]})
    with pytest.raises(comet.DecryptionError):
        await comet.read("t", encryption=wrong, bootstrap=address)
    assert (await comet.read("t", columns=["offset"], encryption=wrong, bootstrap=address)).num_rows == 20
    async with comet.Consumer(address, "t", encryption=wrong, start="earliest") as blind:
        unread = await blind.get_batch(WAIT_S)
        assert unread is not None
        with pytest.raises(comet.DecryptionError):
            _ = unread.values
        with pytest.raises(comet.DecryptionError):
            unread.to_arrow()
    async with comet.Consumer(address, "t", encryption=wrong, start="earliest") as consumer:
        with pytest.raises(comet.DecryptionError):
            async for _ in consumer.arrow():
                pass


async def test_a_filter_sees_decrypted_values_and_hides_no_error(address: str, keyring: Keyring) -> None:
    quotes = [Quote("ab"[number % 2], float(number)) for number in range(20)]
    async with comet.Producer(address, encryption=keyring) as producer:
        await (await producer.send_many("t", quotes, keys=[str(number % 5) for number in range(20)], partition=0))
    chosen = 'symbol = "b" && bid > 10 && @key != 1'
    found = [13.0, 15.0, 17.0, 19.0]
    async with comet.Consumer(
        address, "t", type=Quote, encryption=keyring, start="earliest", filter=chosen
    ) as consumer:
        batch = await consumer.get_batch(WAIT_S)
        assert batch is not None and [quote.bid for quote in batch.models()] == found
        assert consumer.positions() == {0: 20}
        rest = batch.after(15)
        assert rest is not None and [quote.bid for quote in rest.models()] == found[1:]
        assert rest.record(0).value == b'{"symbol":"b","bid":15.0}'
    table = await comet.read("t", type=Quote, encryption=keyring, bootstrap=address, filter=chosen)
    assert table["bid"].to_pylist() == found
    assert (await comet.read("t", bootstrap=address, filter=chosen)).num_rows == 0  # ciphertext is not JSON
    wrong = Keyring({"k2": NEWER["k2"]})
    with pytest.raises(comet.DecryptionError):
        await comet.read("t", encryption=wrong, bootstrap=address, filter=chosen)
    async with comet.Producer(address, encryption=wrong) as producer:
        for symbol in "bab":
            await producer.publish("t", Quote(symbol, 30.0), key="k", partition=0)
    async with comet.Producer(address, encryption=keyring) as producer:
        await producer.publish("t", Quote("b", 40.0), partition=0)
    # Values of another key: they might match, so that each is an error, which reading continues behind.
    async with comet.Consumer(
        address, "t", type=Quote, encryption=keyring, start=19, filter='symbol = "b"'
    ) as consumer:
        bids, offsets = list[float](), list[str]()
        while len(bids) < 2:
            try:
                bids.append((await anext(consumer)).value.bid)
            except comet.DecryptionError as error:
                offsets.append(error.details["offset"])
        assert (bids, offsets) == ([19.0, 40.0], ["20", "21", "22"])
        assert consumer.positions() == {0: 24}
    none = 'symbol = "b" && @key = z'
    assert (await comet.read("t", encryption=keyring, bootstrap=address, filter=none)).num_rows == 0
    columns = ["offset", "key"]
    keys = await comet.read("t", encryption=wrong, bootstrap=address, filter="@key = 3 && @offset < 9", columns=columns)
    assert keys["offset"].to_pylist() == [3, 8]


async def test_tables_come_without_the_values_that_cannot_be_read(address: str, keyring: Keyring) -> None:
    async with comet.Producer(address, encryption=keyring) as producer:
        await (await producer.send_many("t", [b"0", b"1"]))
    async with comet.Producer(address) as plain:
        await plain.publish("t", b"2")
    async with comet.Producer(address, encryption=keyring) as producer:
        await (await producer.send_many("t", [b"3"]))
    found: list[object] = []
    async with comet.Consumer(address, "t", encryption=keyring, start="earliest") as consumer:
        tables = aiter(consumer.arrow(columns=["value"], wait_ms=50))
        while len(found) < 4:
            try:
                found += (await anext(tables))["value"].to_pylist()
            except comet.DecryptionError as error:
                found.append(int(error.details["offset"]))
    assert found == [b"0", b"1", 2, b"3"]


async def test_the_synchronous_sdk_and_frames(address: str, keyring: Keyring) -> None:
    def work() -> object:
        with comet.sync.Producer(address, encryption=keyring) as producer:
            producer.publish("t", "1")
        scan = comet.read("t", encryption=keyring, bootstrap=address)
        comet.write_frame(
            scan.to_arrow().select(["value"]), "out", value="value", bootstrap=address, encryption=keyring
        )
        with comet.sync.Consumer(address, "out", start="earliest", encryption=keyring) as consumer:
            record = consumer.get(WAIT_S)
            return None if record is None else record.value

    assert await asyncio.to_thread(work) == b"1"


async def test_publish_once_writes_ciphertext_once(address: str, keyring: Keyring) -> None:
    first = comet.NewRecord(SECRET, key="k", headers={"h": "1"})
    records = [first, comet.NewRecord(None, key="k"), comet.NewRecord("")]

    async def publish(keyring: Keyring, records: list[comet.NewRecord]) -> list[bool]:
        async with comet.Producer(address, encryption=keyring) as producer:
            receipts = await producer.publish_once("t", records, idempotency_key="1")
            assert [receipt.offset for receipt in receipts] == [0, 1, 2]
            return [receipt.duplicate for receipt in receipts]

    assert await publish(keyring, records) == [False] * 3
    assert await publish(keyring, records) == [True] * 3
    assert await publish(Keyring(NEWER), records) == [True] * 3, "the primary key has changed"
    for changed in (SECRET + b".", SECRET[:-1] + b"!", None):
        with pytest.raises(comet.KeyReused):
            await publish(keyring, [first._replace(value=changed), *records[1:]])
    with pytest.raises(comet.KeyReused):
        await publish(Keyring({"k2": NEWER["k2"]}), records)
    async with comet.Consumer(address, "t", start="earliest") as blind:
        stored = (await blind.__anext__()).value
        assert stored.startswith(MAGIC) and SECRET not in stored
    async with comet.Consumer(address, "t", encryption=keyring, start="earliest") as consumer:
        assert [(await consumer.__anext__()).value for _ in range(3)] == [SECRET, None, b""]


async def test_equal_records_under_two_idempotency_keys_share_no_mac(address: str, keyring: Keyring) -> None:
    """Else the broker could tell that their values are equal."""
    macs = set()
    for key in ("1", "2"):
        request = request_of("t", [comet.NewRecord(SECRET)], key, comet.Acks.LEADER, ValueEncoder().encode)
        await encrypt(request, Encryptor(keyring))
        macs.add(request.content_mac)
    assert len(macs) == 2


@pytest.mark.parametrize(("mac", "key"), [(b"m" * 15, "1"), (b"m" * 65, "1"), (b"m" * 32, "")])
async def test_a_broker_refuses_a_mac_that_is_none(address: str, mac: bytes, key: str) -> None:
    request = request_of("t", [comet.NewRecord(b"1")], "1", comet.Acks.LEADER, ValueEncoder().encode)
    request.content_mac, request.idempotency_key = mac, key
    async with comet.Producer(address) as producer:
        with pytest.raises(comet.InvalidArgument, match="16 to 64 bytes"):
            await publish_once(producer._client, request, WAIT_S)


class SlowProvider(LocalKeys):
    """A key service that answers when it is told to, and can be away."""

    def __init__(self) -> None:
        super().__init__(KEYS)
        self.asked = 0
        self.answers = asyncio.Event()
        self.away = False

    async def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        self.asked += 1
        await self.answers.wait()
        if self.away:
            raise ConnectionError("away")
        return await super().unwrap(key_id, wrapped)


@pytest.mark.parametrize("kind", ["records", "batches", "tables"])
async def test_nothing_is_lost_while_the_key_service_is_slow_or_away(address: str, kind: str) -> None:
    provider = SlowProvider()
    async with comet.Producer(address, encryption=Keyring(KEYS)) as producer:
        await (await producer.send_many("t", [b"0", b"1"]))
    async with comet.Consumer(address, "t", encryption=Keyring(provider), start="earliest") as consumer:

        async def take() -> list[object]:
            if kind == "records":
                return [(await consumer.__anext__()).value, (await consumer.__anext__()).value]
            if kind == "batches":
                return list((await anext(aiter(consumer.batches()))).values)
            return (await anext(aiter(consumer.arrow(wait_ms=0))))["value"].to_pylist()  # type: ignore[no-any-return]

        taking = asyncio.create_task(take())
        assert await until(lambda: provider.asked == 1, within_s=WAIT_S)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert consumer.positions() == {0: 0}
        provider.away = True
        provider.answers.set()
        with pytest.raises(comet.Unavailable, match="ConnectionError"):
            await take()
        assert consumer.positions() == {0: 0}
        provider.away = False
        assert await take() == [b"0", b"1"]


async def test_a_seek_while_keys_are_fetched_is_obeyed(address: str) -> None:
    provider = SlowProvider()
    async with comet.Producer(address, encryption=Keyring(KEYS)) as producer:
        await (await producer.send_many("t", [b"0", b"1", b"2"]))
    async with comet.Consumer(address, "t", encryption=Keyring(provider), start="earliest") as consumer:
        taking = asyncio.create_task(consumer.__anext__())
        assert await until(lambda: provider.asked == 1, within_s=WAIT_S)
        taking.cancel()
        await asyncio.wait([taking])
        await consumer.seek(2)
        provider.answers.set()
        assert (await consumer.__anext__()).offset == 2


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_handlers_read_and_write_and_their_dead_letters_are_encrypted(
    address: str, keyring: Keyring, delivery: DeliveryMode
) -> None:
    async with comet.Producer(address, encryption=keyring) as producer:
        for value in (b"1", SECRET, b"3"):
            await producer.publish("t", value, key=value[:1])
    async with comet.Producer(address, encryption=Keyring(NEWER)) as producer:
        await producer.publish("t", b"4")  # its key is not in the app's keyring
    async with comet.Producer(address, encryption=keyring) as producer:
        await producer.publish("t", b"5")
    app = comet.App(address, encryption=keyring)

    @app.on("t", group="g", start="earliest", delivery=delivery, dead_letter="dead")
    async def handle(value: bytes) -> None:
        if value == SECRET:
            raise ValueError(f"cannot handle {value!r}")
        await app.send("out", value)
        if value == b"5":
            app.stop()

    await asyncio.wait_for(app.serve(), WAIT_S)
    async with comet.Consumer(address, "out", encryption=keyring, start="earliest") as consumer:
        assert [(await consumer.__anext__()).value for _ in range(3)] == [b"1", b"3", b"5"]
    async with comet.Consumer(address, "dead", start="earliest") as blind:
        for _ in range(2):
            record = await blind.__anext__()
            assert record.value.startswith(MAGIC)
            assert SECRET not in b"".join(content for _, content in record.headers)
    async with comet.Consumer(
        address, "dead", encryption=Keyring(NEWER, also_from=["t"]), start="earliest"
    ) as consumer:
        assert [(await consumer.__anext__()).value for _ in range(2)] == [SECRET, b"4"]


async def test_a_share_groups_dead_letters_keep_the_ciphertext(address: str, keyring: Keyring) -> None:
    async with comet.Producer(address, encryption=keyring) as producer:
        await producer.publish("t", SECRET, key="k")
    async with comet.Producer(address, encryption=Keyring(NEWER)) as producer:
        await producer.publish("t", b"2")
    found: list[object] = []
    async with comet.ShareConsumer(
        address, "t", group="work", start="earliest", dead_letter="dead", deliveries_max=2, encryption=keyring
    ) as consumer:
        while len(found) < 3:
            try:
                record = await consumer.get(WAIT_S)
                assert record is not None
                await record.reject()
                found.append(record.value)
            except comet.DecryptionError as error:
                found.append(error.details["outcome"])
    assert found == [SECRET, "released", "rejected"]
    async with comet.Consumer(address, "dead", start="earliest") as blind:
        assert all([(await blind.__anext__()).value.startswith(MAGIC) for _ in range(2)])
    async with comet.Consumer(address, "dead", encryption=Keyring(NEWER, also_from=["t"]), start="earliest") as reader:
        assert {(await reader.__anext__()).value for _ in range(2)} == {SECRET, b"2"}


async def test_groups_resume_behind_what_they_could_not_read(address: str, keyring: Keyring) -> None:
    async with comet.Producer(address, encryption=keyring) as producer:
        await producer.publish("t", b"0")
    async with comet.Producer(address) as plain:
        await plain.publish("t", b"forged")
    async with comet.Producer(address, encryption=keyring) as producer:
        await producer.publish("t", b"2")
    async with comet.GroupConsumer(address, "t", group="g", start="earliest", encryption=keyring) as consumer:
        assert (await consumer.__anext__()).value == b"0"
        with pytest.raises(comet.DecryptionError, match="not encrypted"):
            await consumer.__anext__()
        assert consumer.positions() == {TopicPartition("t", 0): 2}
    async with comet.GroupConsumer(address, "t", group="g", encryption=keyring) as consumer:
        assert (await consumer.__anext__()).value == b"2"
