"""Topics that clients make with `create`: once, however many start at once, and only where rules allow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import comet
from comet.testing import TestBroker
from tests.waiting import until


@asynccontextmanager
async def broker() -> AsyncIterator[TestBroker]:
    async with comet.testing.broker() as found:
        yield found


async def described(address: str, topic: str) -> tuple[int, str]:
    async with comet.Admin(address) as admin:
        found = await admin.describe_topic(topic)
        return len(found.partitions), found.config.flush.value


THREE = comet.NewTopic(partitions=3, flush="always")


async def test_clients_that_start_at_once_make_one_topic() -> None:
    async with broker() as found, asyncio.TaskGroup() as group:

        async def write(number: int) -> None:
            async with comet.Producer(found.address, create=THREE) as producer:
                await producer.publish("made", b"%d" % number)

        tasks = [group.create_task(write(number)) for number in range(5)]
        await asyncio.wait(tasks)
        assert await described(found.address, "made") == (3, "always")
        read = await comet.read("made", bootstrap=found.address)
        assert sorted(read["value"].to_pylist()) == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize(
    ("consumer", "more"),
    [(comet.Consumer, {}), (comet.GroupConsumer, {"group": "g"}), (comet.ShareConsumer, {"group": "s"})],
)
async def test_a_consumer_makes_the_topic_that_it_reads(consumer: Any, more: dict[str, Any]) -> None:
    async with broker() as found, consumer(found.address, "made", create=THREE, **more) as reader:
        assert await described(found.address, "made") == (3, "always")
        async with comet.Producer(found.address) as producer:
            await producer.publish("made", b"1")
        record = await reader.get(timeout_s=30)
        assert record is not None
        assert record.value == b"1"


async def test_without_create_a_missing_topic_stays_missing() -> None:
    async with broker() as found:
        async with comet.Producer(found.address) as producer:
            with pytest.raises(comet.TopicNotFound):
                await producer.publish("missing", b"1")
        async with comet.Admin(found.address) as admin:
            assert await admin.list_topics() == []


async def test_a_topic_that_exists_is_left_as_it_is() -> None:
    async with broker() as found:
        async with comet.Admin(found.address) as admin:
            await admin.create_topic("made", partitions=2)
        async with comet.Producer(found.address, create=THREE) as producer:
            await producer.publish("made", b"1")
        assert (await described(found.address, "made"))[0] == 2


async def test_a_topic_that_was_deleted_stays_deleted() -> None:
    async with (
        broker() as found,
        comet.Admin(found.address) as admin,
        comet.Producer(found.address, create=True) as producer,
    ):
        await producer.publish("made", b"1")
        await admin.delete_topic("made")
        for _ in range(2):  # the first one finds out
            with pytest.raises(comet.TopicNotFound):
                await producer.publish("made", b"2")
        assert await admin.list_topics() == []


async def test_publish_once_and_transactions_make_topics() -> None:
    async with broker() as found:
        async with comet.Producer(found.address, create=True) as producer:
            await producer.publish_once("one", [comet.NewRecord("1")], idempotency_key="1")
        async with comet.TransactionalProducer(found.address, "t", create=THREE) as writer, writer.transaction() as tx:
            await tx.send("two", b"1")
        assert (await described(found.address, "one"))[0] == 1
        assert (await described(found.address, "two"))[0] == 3


@pytest.mark.parametrize("wrong", ["yes", 3, {"partitions": 3}])
def test_create_is_true_or_a_new_topic(wrong: Any) -> None:
    for client in (comet.Producer, comet.ConsumerOptions, comet.ShareOptions):
        with pytest.raises(comet.InvalidArgument, match=r"create is True, False or a comet\.NewTopic"):
            client(create=wrong)


@pytest.mark.parametrize("wrong", [{"partitions": 0}, {"replicas": -1}, {"retentionms": 5}])
def test_a_new_topic_checks_itself(wrong: dict[str, Any]) -> None:
    with pytest.raises(comet.InvalidArgument):
        comet.NewTopic(**wrong)


async def test_the_synchronous_clients_make_topics_as_well() -> None:
    async with broker() as found:

        def write() -> None:
            with comet.sync.Producer(found.address, create=THREE) as producer:
                producer.publish("made", b"1")

        await asyncio.to_thread(write)
        assert await described(found.address, "made") == (3, "always")


@pytest.mark.parametrize("create", [True, False])
async def test_an_app_makes_the_topics_it_reads_and_those_of_its_dead_letters(create: bool) -> None:
    async with broker() as found:
        app = comet.App(found.address)

        @app.on("there")
        async def plain(value: bytes) -> None: ...

        @app.on("made", group="g", dead_letter="made-failed", create=create)
        async def grouped(value: bytes) -> None: ...

        @app.on("made", group="s", shared=True, create=create)
        async def shared(value: bytes) -> None: ...

        async with comet.Admin(found.address) as admin:
            await admin.create_topic("there")
            serving = asyncio.create_task(app.serve())
            assert await until(lambda: len(app._servings) == 3, within_s=60)
            assert await until(lambda: all(one.started for one in app._servings), within_s=60)
            if create:
                assert await until(app.healthy, within_s=60)
            assert [one["ready"] for one in app.statistics()] == [True, create, create], "a missing topic is waited for"
            assert app.healthy() == create
            topics = ["made", "made-failed", "there"] if create else ["there"]
            assert [topic.name for topic in await admin.list_topics()] == topics
            app.stop()
            await serving


async def test_an_app_passes_create_on_to_its_handlers_and_producers() -> None:
    async with broker() as found:
        app = comet.App(found.address, create=THREE)

        @app.on("read")
        async def handle(value: bytes) -> None: ...

        serving = asyncio.create_task(app.serve())
        assert await until(app.healthy, within_s=60)
        await app.publish("written", b"1")
        assert await described(found.address, "read") == await described(found.address, "written") == (3, "always")
        app.stop()
        await serving
