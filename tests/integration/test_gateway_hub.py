"""The gateway's hub against a real broker: topics are followed once, and all who subscribe get what they asked for."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import comet
import comet._limits
import comet.testing
from comet.types import AtOffset, AtTime, Earliest
from comet_gateway.backend import Backend
from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.cursor import Cursor, Place
from comet_gateway.problems import Problem
from comet_gateway.push.asked import Asked, Policy, Values
from comet_gateway.push.events import Begun, Event, Failed, Latest, Lost, Missing
from comet_gateway.push.hub import Hub
from comet_gateway.push.subscription import Subscription
from tests.integration.test_sdk import Process

QUOTES = Asked(topics=("quotes",))
SMALL = Limits(feed_bytes=120_000, delivery_bytes=2_000, feed_idle_s=0.05, pattern_s=0.05)


@pytest.fixture
def port() -> int:
    """A port that is free now, and the same for a broker that is started again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


@asynccontextmanager
async def gateway(address: str, limits: Limits | None = None) -> AsyncIterator[Hub]:
    config = GatewayConfig(bootstrap=address, limits=limits or Limits(pattern_s=0.05))
    async with Backend(config) as backend:
        hub = Hub(config, backend)
        try:
            yield hub
        finally:
            await hub.close()


async def one(subscription: Subscription) -> Event:
    async with asyncio.timeout(20):
        return await subscription.next()


async def begun(subscription: Subscription) -> Begun:
    event = await one(subscription)
    assert isinstance(event, Begun)
    return event


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - it is the state of something that does not tell
            await asyncio.sleep(0.01)


class Client:
    """What a subscriber was given."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.records: list[dict[str, Any]] = []
        self.lost: list[Missing] = []
        self.cursor = ""

    async def until(self, done: Callable[[Client], bool]) -> None:
        while not done(self):
            event = await one(self.subscription)
            match event:
                case Begun() | Failed():
                    raise AssertionError(event)
                case Lost():
                    self.lost += event.missing
                case Latest():
                    self.records += json.loads(b"{" + event.write_members() + b"}")["records"]
                case _:
                    found = json.loads(b"{" + event.members() + b"}")
                    assert len(found["records"]) == event.count
                    self.records += found["records"]
            if not isinstance(event, Latest) or event.last:
                self.cursor = event.cursor

    async def have(self, count: int) -> list[int]:
        await self.until(lambda client: len(client.records) >= count)
        return self.values

    @property
    def values(self) -> list[int]:
        return [record["value"] for record in self.records]


async def write(producer: comet.Producer, first: int, end: int, topic: str = "quotes", **options: Any) -> None:
    deliveries = await producer.send_many(topic, [b"%d" % n for n in range(first, end)], **options)
    await deliveries


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
            await hub.subscribe(Asked(topics=("nothing",)))


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
        places = {0: Place(cursor.places[0].offset, cursor.places[0].epoch), 1: Place(99)}
        client = Client(await hub.subscribe(replace(QUOTES, cursors={"quotes": Cursor(cursor.topic_id, places)})))
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
        assert {missing.reason for missing in first.missing} == {"topic made again"}
        assert await client.have(3) == [0, 1, 2]


async def test_partitions_and_topics_that_are_made_later_lack_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comet._limits, "METADATA_REFRESH_MS", 50)  # when consumers look for new partitions
    async with (
        comet.testing.broker({"quotes": 1}) as broker,
        comet.Producer(broker.address) as producer,
        comet.Admin(broker.address) as admin,
        gateway(broker.address) as hub,
    ):
        client = Client(await hub.subscribe(Asked(pattern="quotes.*")))
        before = await begun(client.subscription)
        await admin.add_partitions("quotes", 3)
        for partition in range(3):
            await write(producer, 0, 10, partition=partition)
        await client.have(30)
        assert sorted(Cursor.parse(client.cursor).places) == [0, 1, 2]
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
        asked = Asked(pattern="quotes.*", cursors={"quotes": Cursor.parse(before.cursor)})
        back = Client(await hub.subscribe(asked))
        assert {(await begun(back.subscription)).topic for _ in range(2)} == {"quotes", "quotes.more"}
        await back.have(40)
        with pytest.raises(comet.InvalidArgument):
            await hub.subscribe(Asked(pattern="(a+)+"))


async def test_no_more_is_given_than_is_permitted() -> None:
    async with (
        comet.testing.broker({"quotes": 1}) as broker,
        comet.Producer(broker.address) as producer,
        gateway(broker.address) as hub,
    ):
        live = Client(await hub.subscribe(replace(QUOTES, permits=3)))
        behind = Client(await hub.subscribe(replace(QUOTES, permits=0, start=Earliest())))
        for client in (live, behind):
            await begun(client.subscription)
        await write(producer, 0, 100)
        assert await live.have(3) == [0, 1, 2]
        assert not live.subscription.ready()
        assert not behind.subscription.ready()
        waiting = asyncio.create_task(one(live.subscription))
        await asyncio.sleep(0)
        waiting.cancel()
        live.subscription.permit(10)
        behind.subscription.permit(40)
        assert await live.have(13) == list(range(13))
        assert await behind.have(40) == list(range(40))
        back = Client(await hub.subscribe(replace(QUOTES, cursors={"quotes": Cursor.parse(live.cursor)})))
        await begun(back.subscription)
        assert await back.have(87) == list(range(13, 100))


async def test_a_slow_subscriber_costs_its_cursor_and_gets_everything() -> None:
    async with (
        comet.testing.broker({"quotes": 2}) as broker,
        comet.Producer(broker.address) as producer,
        gateway(broker.address, SMALL) as hub,
    ):
        slow, fast = Client(await hub.subscribe(QUOTES)), Client(await hub.subscribe(QUOTES))
        for client in (slow, fast):
            await begun(client.subscription)
        for turn in range(20):
            await write(producer, turn * 200, turn * 200 + 200)
            await fast.have(turn * 200 + 200)
        feed = hub.statistics()["feeds"]["quotes"]
        assert feed["ring_bytes"] <= SMALL.feed_bytes
        assert feed["behind_max"] == 4000
        assert sorted(await slow.have(4000)) == list(range(4000))
        await write(producer, 4000, 4100)
        await slow.have(4100)
        assert slow.subscription.statistics()["topics"]["quotes"]["live"]


async def test_all_rings_together_have_a_bound() -> None:
    limits = replace(SMALL, feed_bytes=400_000, feeds_bytes_max=500_000)
    async with (
        comet.testing.broker(["quotes", "trades", "news"]) as broker,
        comet.Producer(broker.address) as producer,
        gateway(broker.address, limits) as hub,
    ):
        clients = {topic: Client(await hub.subscribe(Asked(topics=(topic,)))) for topic in ("quotes", "trades", "news")}
        for topic, client in clients.items():
            await begun(client.subscription)
            for turn in range(20):
                await write(producer, turn * 200, turn * 200 + 200, topic=topic)
                await client.have(turn * 200 + 200)
                feeds = hub.statistics()["feeds"].values()
                assert sum(feed["ring_bytes"] for feed in feeds) < 600_000, "it is looked at now and then"
        late = Client(await hub.subscribe(replace(QUOTES, start=Earliest())))
        await begun(late.subscription)
        assert await late.have(4000) == list(range(4000))


async def test_who_drops_the_oldest_is_told_which() -> None:
    async with (
        comet.testing.broker({"quotes": 1}) as broker,
        comet.Producer(broker.address) as producer,
        gateway(broker.address, SMALL) as hub,
    ):
        asked = replace(QUOTES, policy=Policy.DROP_OLDEST, buffer=100)
        client, witness = Client(await hub.subscribe(asked)), Client(await hub.subscribe(QUOTES))
        for each in (client, witness):
            await begun(each.subscription)
        await write(producer, 0, 150)
        await witness.have(150)
        await client.until(lambda seen: bool(seen.records) and seen.values[-1] == 149)
        assert client.lost == [Missing(0, 0, 50, "dropped")]
        assert client.values == list(range(50, 150))
        for turn in range(150, 3150, 100):
            await write(producer, turn, turn + 100)
            await witness.have(turn + 100)
        await client.until(lambda seen: seen.values[-1] == 3149)
        told = [offset for missing in client.lost for offset in range(missing.first, missing.end)]
        assert sorted(told + client.values) == list(range(3150))
        assert client.subscription.statistics()["dropped"] == len(told)


async def test_a_snapshot_comes_first_and_then_what_follows_it() -> None:
    async with (
        comet.testing.broker({"quotes": 2}) as broker,
        comet.Producer(broker.address) as producer,
        gateway(broker.address, replace(SMALL, feed_bytes=1 << 20)) as hub,
    ):
        for turn in range(5):
            await write(producer, turn * 100, turn * 100 + 100, keys=[b"k%d" % n for n in range(100)])
        await producer.publish("quotes", None, key="k7")
        clients = [Client(await hub.subscribe(replace(QUOTES, snapshot=True))) for _ in range(3)]
        for client in clients:
            assert (await begun(client.subscription)).cursor == ""
            parts: list[Latest] = []
            while not parts or not parts[-1].last:
                event = await one(client.subscription)
                assert isinstance(event, Latest)
                assert event.snapshot
                assert event.complete
                assert bool(event.cursor) == event.last
                parts.append(event)
            assert len(parts) > 1
            records = [record for part in parts for record in json.loads(b"{" + part.write_members() + b"}")["records"]]
            assert {record["key"]: record["value"] for record in records} == {
                f"k{n}": 400 + n for n in range(100) if n != 7
            }
            client.cursor = parts[-1].cursor
        await write(producer, 500, 600, keys=[b"k%d" % n for n in range(100)])
        for client in clients:
            assert sorted(await client.have(100)) == list(range(500, 600))
        back = Client(
            await hub.subscribe(replace(QUOTES, snapshot=True, cursors={"quotes": Cursor.parse(clients[0].cursor)}))
        )
        assert (await begun(back.subscription)).recovered
        await write(producer, 600, 601)
        assert await back.have(1) == [600]


async def test_conflation_gives_the_latest_of_each_key_and_counts_the_others() -> None:
    async with (
        comet.testing.broker({"quotes": 2}) as broker,
        comet.Producer(broker.address) as producer,
        gateway(broker.address) as hub,
    ):
        asked = replace(QUOTES, policy=Policy.CONFLATE, interval_ms=50)
        subscriptions = [await hub.subscribe(asked) for _ in range(5)]
        for each in subscriptions:
            await begun(each)
        keys = [b"k%d" % (n % 10) for n in range(1000)]
        for turn in range(5):
            await write(producer, turn * 1000, turn * 1000 + 1000, keys=keys)
        had: list[list[Latest]] = [[] for _ in subscriptions]
        for events, subscription in zip(had, subscriptions, strict=True):
            state: dict[str, int] = {}
            while min(state.values(), default=0) < 4990:
                event = await one(subscription)
                assert isinstance(event, Latest)
                assert not event.snapshot
                events.append(event)
                found = json.loads(b"{" + event.write_members() + b"}")["records"]
                assert len({record["key"] for record in found}) == len(found)
                state |= {record["key"]: record["value"] for record in found}
            assert state == {f"k{n}": 4990 + n for n in range(10)}
            assert sum(event.count + event.conflated for event in events) == 5000
            assert subscription.statistics()["conflated"] == sum(event.conflated for event in events)
        assert had[0][-1].cursor
        cursor = Cursor.parse(had[0][0].cursor)
        await write(producer, 5000, 5003, keys=[b"k1", b"k1", b"new"])
        back = await hub.subscribe(replace(asked, cursors={"quotes": cursor}))
        assert (await begun(back)).recovered
        state = {}
        while "new" not in state:
            event = await one(back)
            assert isinstance(event, Latest)
            found = json.loads(b"{" + event.write_members() + b"}")["records"]
            state |= {record["key"]: record["value"] for record in found}
        assert state["k1"] == 5001
        assert all(int(record["offset"]) >= cursor.places[record["partition"]].offset for record in found)


async def test_values_come_in_the_form_that_was_asked_for() -> None:
    async with (
        comet.testing.broker({"quotes": 1}) as broker,
        comet.Producer(broker.address) as producer,
        gateway(broker.address) as hub,
    ):
        subscriptions = {values: await hub.subscribe(replace(QUOTES, values=values)) for values in Values}
        await producer.publish("quotes", b'{"bid":1}')
        found = {}
        for values, subscription in subscriptions.items():
            await begun(subscription)
            event = await one(subscription)
            assert not isinstance(event, Begun | Lost | Latest | Failed)
            found[values] = json.loads(b"{" + event.members() + b"}")["records"][0]
            assert json.dumps(found[values], separators=(",", ":")).encode() in event.sse()
        assert found[Values.AUTO]["value"] == {"bid": 1}
        assert found[Values.TEXT]["text"] == '{"bid":1}'
        assert found[Values.BASE64]["base64"] == "eyJiaWQiOjF9"


async def test_a_topic_is_let_go_when_nobody_follows_it_and_bounds_hold() -> None:
    async with (
        comet.testing.broker(["quotes", "trades", "news"]) as broker,
        gateway(broker.address, replace(SMALL, feeds_max=2)) as hub,
    ):
        first = await hub.subscribe(QUOTES)
        second = await hub.subscribe(Asked(topics=("trades",)))
        with pytest.raises(Problem) as problem:
            await hub.subscribe(Asked(topics=("news",)))
        assert problem.value.code == "TOO_MANY_REQUESTS"
        second.close()
        second.close()
        third = await hub.subscribe(Asked(topics=("news",)))
        assert set(hub.statistics()["feeds"]) == {"quotes", "news"}
        first.close()
        third.close()
        with pytest.raises(comet.Closed):
            await first.next()
        await eventually(lambda: not hub.statistics()["feeds"])


async def test_a_broker_that_is_away_is_waited_for(tmp_path: Path, port: int) -> None:
    broker = Process(tmp_path, port)
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
            await eventually(lambda: hub.statistics()["waiting_for_brokers"] > 0)
            await broker.start()
            await write(producer, 2000, 3000)
            assert sorted(await live.have(3000)) == list(range(3000))
            assert sorted(await waiting) == list(range(3000))
            assert not live.lost + behind.lost
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
