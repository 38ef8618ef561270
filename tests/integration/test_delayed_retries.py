"""Delayed retries of handlers against a real broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Literal

import pytest

import comet
import comet.testing
from tests.waiting import until, until_answered

DELAYS = (0.05, 0.1)
FAILING = b"broken"


def turn_of(record: comet.Record[Any]) -> int:
    return int(dict(record.headers).get("comet-retry-round", b"0"))


async def test_a_failing_record_is_called_again_later_and_holds_up_no_other() -> None:
    async with comet.testing.broker({"orders": 1}) as broker:
        app, seen, held = comet.App(broker.address, create=True), list[tuple[bytes | None, int]](), asyncio.Event()

        @app.on(
            "orders", group="g", start="earliest", retry_topic="orders-retry", retry_delays=DELAYS,
            dead_letter="orders-failed",
        )  # fmt: skip
        async def handle(record: comet.Record[bytes]) -> None:
            if turn_of(record):
                await held.wait()
            seen.append((record.value, turn_of(record)))
            if record.value == FAILING:
                raise ZeroDivisionError("a bug")

        async with comet.Producer(broker.address, acks="all") as producer:
            await (await producer.send_many("orders", [FAILING, b"1", b"2"], keys=["a", "a", "b"]))
            serving = asyncio.create_task(app.serve())
            assert await until(lambda: len(seen) == 3, within_s=30)
            assert seen == [(FAILING, 0), (b"1", 0), (b"2", 0)]
            await producer.publish("orders", b"3")
            assert await until(lambda: len(seen) == 4, within_s=30), "the partition goes on while a retry runs"
            held.set()
            assert await until(lambda: len(seen) == 6, within_s=30)
        assert seen[3:] == [(b"3", 0), (FAILING, 1), (FAILING, 2)]
        async with comet.Consumer(broker.address, "orders-failed", start="earliest") as consumer:
            letter = await consumer.get(30)
            assert letter is not None
            about = dict(letter.headers)
            assert (letter.value, letter.key, about["comet-dead-letter-topic"]) == (FAILING, b"a", b"orders")
            assert (about["comet-dead-letter-offset"], about["comet-dead-letter-attempts"]) == (b"0", b"3")
        async with comet.Admin(broker.address) as admin:

            async def done() -> bool:
                return sum(one.lag for one in (await admin.describe_group("g")).lags) == 0

            assert await until_answered(done, within_s=30)
        app.stop()
        await serving


async def test_a_retry_that_fires_while_no_member_runs_is_not_missed() -> None:
    async with comet.testing.broker({"orders": 1, "orders-retry": 2}) as broker:
        seen = list[int]()

        def make(start: Literal["earliest", "latest"]) -> comet.App:
            app = comet.App(broker.address)

            @app.on("orders", group="g", start=start, retry_topic="orders-retry", retry_delays=[0.2])
            async def handle(record: comet.Record[bytes]) -> None:
                seen.append(turn_of(record))
                if not turn_of(record):
                    app.stop()
                    raise ZeroDivisionError("a bug")

            return app

        async with comet.Producer(broker.address, acks="all") as producer:
            await producer.publish("orders", b"7")
        await make("earliest").serve()
        async with comet.Consumer(broker.address, "orders-retry", start="earliest") as consumer:
            assert await consumer.get(30) is not None
        second = make("latest")
        serving = asyncio.create_task(second.serve())
        assert await until(lambda: seen == [0, 1], within_s=30)
        second.stop()
        await serving


async def test_a_retry_that_cannot_be_stored_ends_the_app_and_the_record_is_not_committed() -> None:
    async with comet.testing.broker({"orders": 1}) as broker:
        app = comet.App(broker.address)

        @app.on("orders", group="g", start="earliest", retry_topic="missing", retry_delays=[1])
        async def handle(order: bytes) -> None:
            raise ZeroDivisionError("a bug")

        async with comet.Producer(broker.address, acks="all") as producer:
            await producer.publish("orders", b"7")
        with pytest.raises(comet.TopicNotFound, match="missing"):
            await app.serve()
        async with comet.GroupConsumer(broker.address, "orders", group="g", start="earliest") as consumer:
            record = await consumer.get(30)
            assert record is not None
            assert record.offset == 0


async def test_encrypted_records_stay_encrypted_on_their_way() -> None:
    keyring = comet.Keyring({"k1": bytes(range(32))})
    async with comet.testing.broker({"orders": 1, "orders-retry": 1, "failed": 1}) as broker:
        app, seen = comet.App(broker.address, encryption=keyring), Counter[tuple[bytes, int]]()

        @app.on(
            "orders", group="g", start="earliest", retry_topic="orders-retry", retry_delays=[0.05], dead_letter="failed"
        )
        async def handle(record: comet.Record[bytes]) -> None:
            seen[record.value, turn_of(record)] += 1
            raise ZeroDivisionError(record.value)

        async with comet.Producer(broker.address, acks="all", encryption=keyring) as producer:
            await producer.publish("orders", b"a secret")
        serving = asyncio.create_task(app.serve())
        assert await until(lambda: app.statistics()[1]["dead_lettered"] == 1, within_s=30)
        app.stop()
        await serving
        assert seen == {(b"a secret", 0): 1, (b"a secret", 1): 1}
        for topic in ("orders-retry", "failed", "__schedules"):
            async with comet.Consumer(broker.address, topic, start="earliest") as consumer:
                record = await consumer.get(30)
                assert record is not None
                assert b"a secret" not in (record.value or b"") + b"".join(value for _, value in record.headers)
