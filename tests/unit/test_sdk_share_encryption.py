"""Members of share groups that decrypt: what they release, reject and keep. On virtual time."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from comet.app import App
from comet.encryption.encryptor import Encryptor
from comet.encryption.keyring import Keyring
from comet.encryption.keys import LocalKeys
from comet.errors import DecryptionError, SerdeError, Unavailable
from comet.share.share_consumer import ShareRecord
from comet.v1.groups_pb2 import ACKNOWLEDGE_TYPE_ACCEPT as ACCEPT
from comet.v1.groups_pb2 import ACKNOWLEDGE_TYPE_REJECT as REJECT
from comet.v1.groups_pb2 import ACKNOWLEDGE_TYPE_RELEASE as RELEASE
from tests.unit.sdk_fake import ADDRESS
from tests.unit.sdk_fake_shares import ShareBroker
from tests.unit.test_sdk_consumer import fill as write
from tests.unit.test_sdk_share_consumer import said, scenario, sharer, take

KEYS = {"k1": bytes(range(32))}
OTHER = {"k2": bytes(range(32, 64))}


async def fill(broker: ShareBroker, values: list[bytes | None], keys: dict[str, bytes] = KEYS) -> None:
    encryptor = Encryptor(Keyring(keys))
    write(broker, [await encryptor.encrypt("quotes", value, None) for value in values], 0, 1)
    broker.acquire()


class Vault(LocalKeys):
    """A key service that answers when a test lets it, and can be away."""

    def __init__(self) -> None:
        super().__init__(KEYS)
        self.answers = asyncio.Event()
        self.away = False

    async def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        await self.answers.wait()
        if self.away:
            raise ConnectionError("away")
        return await super().unwrap(key_id, wrapped)


@scenario()
async def test_members_get_decrypted_values_of_their_type(broker: ShareBroker) -> None:
    await fill(broker, [b'{"bid":1.5}', None, b"{}"])
    async with sharer(broker, encryption=Keyring(KEYS), type=dict) as consumer:
        assert [record.value for record in await take(consumer, 3)] == [{"bid": 1.5}, None, {}]


@scenario()
async def test_a_record_without_its_key_is_released_longer_each_time_and_rejected_at_the_last(
    broker: ShareBroker,
) -> None:
    await fill(broker, [b"0"], OTHER)
    await fill(broker, [b"1"])
    loop = asyncio.get_running_loop()
    async with sharer(broker, encryption=Keyring(KEYS), deliveries_max=3) as consumer:
        began, at = loop.time(), []
        for count in (1, 2, 3):
            with pytest.raises(DecryptionError, match=f"delivery {count} of 3.*'k2'") as caught:
                await consumer.get(timeout_s=20)
            at.append(round(loop.time() - began))
            outcome = "rejected" if count == 3 else "released"
            assert {**caught.value.details} == {
                "topic": "quotes", "partition": "0", "offset": "0", "key_id": "k2",
                "delivery": str(count), "outcome": outcome,
            }  # fmt: skip
            if count == 1:
                (record,) = await take(consumer, 1)
                assert record.value == b"1"
                await record.ack()
        assert at == [0, 1, 3]
    assert said(broker) == [(RELEASE, [(0, 1)]), (ACCEPT, [(1, 2)]), (RELEASE, [(0, 1)]), (REJECT, [(0, 1)])]
    assert "'k2'" in broker.acknowledgements[-1].reason


@scenario()
async def test_another_member_that_has_the_key_gets_the_record(broker: ShareBroker) -> None:
    await fill(broker, [b"0"], OTHER)
    async with sharer(broker, encryption=Keyring(KEYS)) as old:
        with pytest.raises(DecryptionError, match="released"):
            await old.get(timeout_s=20)
    async with sharer(broker, encryption=Keyring({**KEYS, **OTHER})) as new:
        (record,) = await take(new, 1)
        assert (record.value, record.delivery_count) == (b"0", 2)


@scenario()
async def test_no_record_is_lost_while_the_key_service_is_slow_or_away(broker: ShareBroker) -> None:
    await fill(broker, [b"0", b"1"])
    vault = Vault()
    async with sharer(broker, encryption=Keyring(vault)) as consumer:
        assert await consumer.get(timeout_s=1) is None
        vault.away = True
        vault.answers.set()
        for _ in range(2):
            with pytest.raises(Unavailable, match="ConnectionError"):
                await consumer.get()
        vault.away = False
        assert [(record.value, record.delivery_count) for record in await take(consumer, 2)] == [(b"0", 1), (b"1", 1)]
        assert said(broker) == []


@scenario()
async def test_a_record_whose_lock_ends_while_its_key_is_fetched_is_not_handed_out(broker: ShareBroker) -> None:
    await fill(broker, [b"0"])
    vault = Vault()
    async with sharer(broker, encryption=Keyring(vault), lock_ms=2_000) as consumer:
        asyncio.get_running_loop().call_later(3, vault.answers.set)
        assert await consumer.get(timeout_s=4) is None
        assert consumer.statistics()["expired"] == 1


@scenario()
async def test_the_broker_is_not_told_the_text_of_an_error(broker: ShareBroker) -> None:
    await fill(broker, [b"secret words"])
    async with sharer(broker, encryption=Keyring(KEYS), type=int) as consumer:
        with pytest.raises(SerdeError, match="rejected"):
            await consumer.get(timeout_s=20)
    assert [(one.kind, one.reason) for one in broker.acknowledgements] == [(REJECT, "SerdeError")]


def app_of(broker: ShareBroker, **keywords: Any) -> tuple[App, list[bytes]]:
    app, seen = App(ADDRESS, connect=broker.connect, random=Random(4), encryption=Keyring(KEYS)), list[bytes]()

    @app.on("quotes", group="work", shared=True, start="earliest", **keywords)
    async def handle(record: ShareRecord[bytes]) -> None:
        seen.append(record.value)
        if record.value == b"secret words":
            raise ValueError(record.value)
        if record.value == b"end":
            app.stop()

    return app, seen


@scenario()
async def test_a_handler_gets_the_others_and_the_dead_letter_names_only_a_type(broker: ShareBroker) -> None:
    await fill(broker, [b"0"], OTHER)
    await fill(broker, [b"1", b"secret words"])
    app, seen = app_of(broker, dead_letter="dead")
    serving = asyncio.create_task(app.serve())
    await asyncio.sleep(60)
    assert seen == [b"1", b"secret words"]
    assert [(one.reason, *one.firsts) for one in broker.acknowledgements if one.kind == REJECT] == [
        ("ValueError", 2), ("value cannot be decrypted: the keyring does not have the key 'k2'", 0),
    ]  # fmt: skip
    assert [app.statistics()[0][name] for name in ("handled", "retried", "failed", "dead_lettered")] == [1, 4, 2, 2]
    app.stop()
    await serving


@scenario()
async def test_without_a_dead_letter_topic_a_wrong_key_ends_the_app_at_once(broker: ShareBroker) -> None:
    await fill(broker, [b"0"], OTHER)
    app, seen = app_of(broker)
    with pytest.raises(DecryptionError, match="released"):
        await app.serve()
    assert seen == []
    assert said(broker) == [(RELEASE, [(0, 1)])]


@scenario()
async def test_skipping_goes_on_with_the_next_record(broker: ShareBroker) -> None:
    await fill(broker, [b"0"], OTHER)
    await fill(broker, [b"end"])
    app, seen = app_of(broker, on_error="skip")
    await app.serve()
    assert seen == [b"end"]


@scenario()
async def test_malformed_records_of_a_share_group_are_rejected_and_counted(broker: ShareBroker) -> None:
    await fill(broker, [b"1", b"x", b"3"])

    def app_of(**keywords: Any) -> App:
        app = App(ADDRESS, connect=broker.connect, random=Random(4), encryption=Keyring(KEYS))

        @app.on("quotes", group="work", shared=True, start="earliest", **keywords)
        async def handle(number: int) -> None:
            if number == 3:
                app.stop()

        return app

    skipping = app_of()
    await skipping.serve()
    found = skipping.statistics()[0]
    assert (found["handled"], found["skipped"], found["failed"]) == (2, 1, 0)


@scenario()
async def test_a_malformed_record_of_a_share_group_ends_the_app_where_it_is_to_stop(broker: ShareBroker) -> None:
    await fill(broker, [b"x"])
    app = App(ADDRESS, connect=broker.connect, random=Random(4), encryption=Keyring(KEYS))

    @app.on("quotes", group="work", shared=True, start="earliest", on_malformed="stop")
    async def handle(number: int) -> None: ...

    with pytest.raises(SerdeError, match="rejected"):
        await app.serve()
