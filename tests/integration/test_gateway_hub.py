"""The gateway's hub against a real broker: topics are followed once, and all who subscribe get what they asked for."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import comet
import comet.limits
import comet.testing
from comet.processes.ports import HeldPorts
from comet.types import AtOffset, AtTime, Earliest
from comet_gateway.config import Limits
from comet_gateway.push.events import Begun, Failed, Missing
from comet_gateway.push.subscribe_request import Policy, SubscribeRequest
from comet_gateway.records.cursor import Cursor, CursorPosition
from tests.integration.gateway_hub_world import QUOTES, SMALL, Client, begun, gateway, one, write
from tests.integration.local_cluster import until
from tests.integration.test_sdk import Process


@pytest.fixture
def held() -> HeldPorts:
    """One port: the same for a broker that is started again."""
    return HeldPorts(1)


async def test_all_who_follow_live_share_every_byte() -> None:
    async with (
        comet.testing.broker({"quotes": 2}) as broker,
        comet.Producer(broker.address) as producer,
        gateway(broker.address) as hub,
    ):
        subscriptions = [await hub.subscribe(QUOTES) for _ in range(20)]
        assert {(await begun(each)).cursor for each in subscriptions} != set()
        assert not subscriptions[0].ready()
        await write(producer, 0, 100)
        events = [[await one(each)] for each in subscriptions]
        for each, had in zip(subscriptions, events, strict=True):
            while sum(event.count for event in had if not isinstance(event, Begun | Failed)) < 100:
                had.append(await one(each))
        assert all(had == events[0] for had in events), "the very same objects"
        statistics = hub.statistics()
        assert list(statistics["feeds"]) == ["quotes"]
        assert statistics["feeds"]["quotes"]["subscribers"] == 20
        assert statistics["feeds"]["quotes"]["consumer"]["received_records"] == 100
        assert statistics["delivered"] == 2000
        assert statistics["reads"] == 0


async def test_a_start_in_the_past_is_read_from_the_log_and_goes_on_live() -> None:
    async with (
        comet.testing.broker({"quotes": 3}) as broker,
        comet.Producer(broker.address) as producer,
        gateway(broker.address) as hub,
    ):
        await write(producer, 0, 5000)
        client = Client(await hub.subscribe(replace(QUOTES, start=Earliest())))
        first = await begun(client.subscription)
        assert first.recovered is None
        await client.have(2000)
        await write(producer, 5000, 6000)
        assert sorted(await client.have(6000)) == list(range(6000))
        await write(producer, 6000, 6100)
        await client.have(6100)
        assert client.subscription.statistics()["topics"]["quotes"]["live"]
        late = Client(await hub.subscribe(replace(QUOTES, start=AtOffset(10), partitions=frozenset({1}))))
        await begun(late.subscription)
        records = [record for record in client.records if record["partition"] == 1][10:]
        await late.have(len(records))
        assert sorted(late.records, key=lambda record: int(record["offset"])) == records
        timed = Client(await hub.subscribe(replace(QUOTES, start=AtTime(int(client.records[5500]["timestamp_us"])))))
        await begun(timed.subscription)
        await timed.until(lambda seen: max(seen.values, default=0) == 6099)
        with pytest.raises(comet.OffsetOutOfRange):
            await hub.subscribe(replace(QUOTES, start=AtOffset(100_000)))
        with pytest.raises(comet.PartitionNotFound):
            await hub.subscribe(replace(QUOTES, partitions=frozenset({3})))
        with pytest.raises(comet.TopicNotFound):
            await hub.subscribe(SubscribeRequest(topics=("nothing",)))


@pytest.mark.parametrize("small", [False, True], ids=["from the ring", "from the log"])
async def test_who_comes_back_gets_everything_once_over_both_connections(small: bool) -> None:
    limits = SMALL if small else Limits()
    async with (
        comet.testing.broker({"quotes": 3}) as broker,
        comet.Producer(broker.address) as producer,
        gateway(broker.address, limits) as hub,
        gateway(broker.address, limits) as another,
    ):
        subscription = await hub.subscribe(QUOTES)
        cursor = (await begun(subscription)).cursor
        subscription.close()
        had: list[int] = []
        for turn in range(6):  # each on the other gateway, the first without having had anything
            await write(producer, turn * 1000, turn * 1000 + 1000)
            asked = replace(QUOTES, cursors={"quotes": Cursor.parse(cursor)})
            client = Client(await (hub, another)[turn % 2].subscribe(asked))
            first = await begun(client.subscription)
            assert first.recovered is True
            assert first.missing == ()
            assert first.cursor == str(Cursor.parse(first.cursor))
            had += await client.have(600 if turn < 5 else 6000 - len(had))
            cursor = client.cursor
            client.subscription.close()
        assert sorted(had) == list(range(6000))


async def test_who_comes_back_hears_exactly_what_is_gone() -> None:
    async with (
        comet.testing.broker({"quotes": 2}) as broker,
        comet.Producer(broker.address) as producer,
        comet.Admin(broker.address) as admin,
        gateway(broker.address) as hub,
    ):
        await write(producer, 0, 10, partition=0)
        await write(producer, 0, 10, partition=1)
        client = Client(await hub.subscribe(replace(QUOTES, start=Earliest())))
        await begun(client.subscription)
        await client.have(20)
        client.subscription.close()
        await write(producer, 10, 20, partition=0)
        await admin.delete_records("quotes", 0, 15)
        cursor = Cursor.parse(client.cursor)
        positions = {0: CursorPosition(cursor.positions[0].offset, cursor.positions[0].epoch), 1: CursorPosition(99)}
        client = Client(await hub.subscribe(replace(QUOTES, cursors={"quotes": Cursor(cursor.topic_id, positions)})))
        first = await begun(client.subscription)
        assert first.recovered is False
        assert first.missing == (Missing(0, 10, 15, "deleted"), Missing(1, 10, 99, "truncated"))
        assert await client.have(5) == list(range(15, 20))
        # The topic is made again: what was read of the old one says nothing about it.
        await admin.delete_topic("quotes")
        async with asyncio.timeout(20):
            while not isinstance(event := await client.subscription.next(), Failed):
                pass
        assert (event.code, event.topic) == ("TOPIC_NOT_FOUND", "quotes")
        with pytest.raises(comet.TopicNotFound):
            await hub.subscribe(QUOTES)
        await admin.create_topic("quotes", partitions=2)
        await write(producer, 0, 3, partition=0)
        client = Client(await hub.subscribe(replace(QUOTES, cursors={"quotes": cursor})))
        first = await begun(client.subscription)
        assert first.recovered is False
        assert {missing.reason for missing in first.missing} == {"topic recreated"}
        assert await client.have(3) == [0, 1, 2]


async def test_partitions_and_topics_that_are_made_later_lack_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comet.limits, "METADATA_REFRESH_MS", 50)  # when consumers look for new partitions
    async with (
        comet.testing.broker({"quotes": 1}) as broker,
        comet.Producer(broker.address) as producer,
        comet.Admin(broker.address) as admin,
        gateway(broker.address) as hub,
    ):
        client = Client(await hub.subscribe(SubscribeRequest(pattern="quotes.*")))
        before = await begun(client.subscription)
        await admin.add_partitions("quotes", 3)
        for partition in range(3):
            await write(producer, 0, 10, partition=partition)
        await client.have(30)
        assert sorted(Cursor.parse(client.cursor).positions) == [0, 1, 2]
        back = Client(await hub.subscribe(replace(QUOTES, cursors={"quotes": Cursor.parse(before.cursor)})))
        assert (await begun(back.subscription)).recovered is True
        await back.have(30)
        await admin.create_topic("other")
        await admin.create_topic("quotes.more")
        await write(producer, 0, 10, topic="quotes.more")
        assert (await begun(client.subscription)).topic == "quotes.more"
        await client.have(40)
        await admin.delete_topic("quotes.more")
        event = await one(client.subscription)
        assert isinstance(event, Failed)
        assert (event.code, event.topic) == ("TOPIC_NOT_FOUND", "quotes.more")
        await admin.create_topic("quotes.more")
        await write(producer, 10, 20, topic="quotes.more")
        assert (await begun(client.subscription)).topic == "quotes.more"
        await client.have(50)
        # Who comes back with a cursor of one topic only has missed the other from its beginning.
        asked = SubscribeRequest(pattern="quotes.*", cursors={"quotes": Cursor.parse(before.cursor)})
        back = Client(await hub.subscribe(asked))
        assert {(await begun(back.subscription)).topic for _ in range(2)} == {"quotes", "quotes.more"}
        await back.have(40)
        with pytest.raises(comet.InvalidArgument):
            await hub.subscribe(SubscribeRequest(pattern="(a+)+"))


async def test_a_partition_that_was_added_just_now_can_be_asked_for() -> None:
    async with (
        comet.testing.broker({"quotes": 1}) as broker,
        comet.Admin(broker.address) as admin,
        comet.Producer(broker.address) as producer,
        gateway(broker.address) as hub,
    ):
        await begun(await hub.subscribe(QUOTES))
        await admin.add_partitions("quotes", 2)
        await write(producer, 0, 10, partition=1)
        asked = replace(QUOTES, partitions=frozenset({1}))
        for start in ({}, {"start": Earliest()}, {"start": AtOffset(4)}, {"policy": Policy.CONFLATE, "snapshot": True}):
            subscription = await hub.subscribe(replace(asked, **start))
            assert (await begun(subscription)).missing == ()
        with pytest.raises(comet.PartitionNotFound, match="no partition 2"):
            await hub.subscribe(replace(QUOTES, partitions=frozenset({0, 1, 2})))


async def test_a_broker_that_is_away_is_waited_for(tmp_path: Path, held: HeldPorts) -> None:
    broker = Process(tmp_path, held.numbers[0])
    await broker.start()
    try:
        async with (
            comet.Admin(broker.address) as admin,
            comet.Producer(broker.address) as producer,
            gateway(broker.address, SMALL) as hub,
        ):
            await admin.create_topic("quotes", partitions=2)
            live, behind = Client(await hub.subscribe(QUOTES)), Client(await hub.subscribe(replace(QUOTES, permits=10)))
            for client in (live, behind):
                await begun(client.subscription)
            await write(producer, 0, 2000)
            await live.have(2000)
            await behind.have(10)
            broker.kill()
            behind.subscription.permit(2990)
            waiting = asyncio.create_task(behind.have(3000))
            await until(lambda: hub.statistics()["waiting_for_brokers"] > 0, "it waits")
            await broker.start()
            await write(producer, 2000, 3000)
            assert sorted(await live.have(3000)) == list(range(3000))
            assert sorted(await waiting) == list(range(3000))
            assert not live.lost + behind.lost
    finally:
        broker.kill()


async def test_who_would_begin_while_nobody_leads_is_told_so_and_leaves_nothing_behind(
    tmp_path: Path, held: HeldPorts
) -> None:
    broker = Process(tmp_path, held.numbers[0])
    await broker.start()
    conflated = replace(QUOTES, policy=Policy.CONFLATE)
    try:
        async with (
            comet.Admin(broker.address) as admin,
            comet.Producer(broker.address) as producer,
            gateway(broker.address, SMALL) as hub,
        ):
            await admin.create_topic("quotes")
            live = Client(await hub.subscribe(QUOTES))
            await begun(live.subscription)
            await write(producer, 0, 200)
            await live.have(1)
            cursors = {"quotes": Cursor.parse(live.cursor)}
            await live.have(200)
            broker.kill()
            hub._log._limits = replace(SMALL, feed_start_s=0.2)
            for asked in (
                replace(QUOTES, snapshot=True),
                replace(conflated, snapshot=True),
                replace(conflated, cursors=cursors),  # which the ring vouches for: only the table has to be filled
                replace(conflated, start=Earliest()),
                replace(QUOTES, start=Earliest()),
                replace(QUOTES, start=AtOffset(1)),
            ):
                async with asyncio.timeout(20):
                    waiting = [asyncio.create_task(hub.subscribe(asked)) for _ in range(3)]
                    told = await asyncio.gather(*waiting, return_exceptions=True)
                assert [type(one) for one in told] == [comet.Unavailable] * 3, asked
            statistics = hub.statistics()
            assert (statistics["subscriptions"], statistics["waiting_for_brokers"], hub._log._flights) == (1, 0, {})
            assert not any(table["users"] for table in statistics["feeds"]["quotes"]["tables"].values())
    finally:
        broker.kill()


async def test_who_is_subscribed_when_the_gateway_stops_is_told() -> None:
    async with comet.testing.broker(["quotes"]) as broker:
        async with gateway(broker.address) as hub:
            subscription = await hub.subscribe(QUOTES)
            await begun(subscription)
        event = await one(subscription)
        assert isinstance(event, Failed)
        assert event.code == "DRAINING"


class Unwanted(Exception):
    """Aborts a transaction."""


async def test_what_is_aborted_is_for_nobody_and_leaves_no_hole() -> None:
    async with (
        comet.testing.broker({"quotes": 1}) as broker,
        comet.TransactionalProducer(broker.address, transactional_id="desk") as desk,
        comet.Producer(broker.address) as producer,
        gateway(broker.address) as hub,
    ):
        live = Client(await hub.subscribe(QUOTES))
        begin = await begun(live.subscription)
        wanted: list[int] = []
        for turn in range(8):
            numbers = range(turn * 10, turn * 10 + 10)
            if turn % 2:
                await write(producer, numbers.start, numbers.stop)
            else:
                with suppress(Unwanted):
                    async with desk.transaction() as transaction:
                        for n in numbers:
                            await transaction.send("quotes", b"%d" % n)
                        if turn % 4:
                            raise Unwanted
            wanted += numbers if turn % 4 != 2 else []
        assert await live.have(len(wanted)) == wanted
        for start in ({"start": Earliest()}, {"cursors": {"quotes": Cursor.parse(begin.cursor)}}):
            again = Client(await hub.subscribe(replace(QUOTES, **start)))
            await begun(again.subscription)
            assert await again.have(len(wanted)) == wanted
            assert not again.lost
        back = Client(await hub.subscribe(replace(QUOTES, cursors={"quotes": Cursor.parse(live.cursor)})))
        assert (await begun(back.subscription)).recovered
        await write(producer, 100, 105)
        assert await back.have(5) == list(range(100, 105))
        assert await live.have(len(wanted) + 5) == [*wanted, *range(100, 105)]
