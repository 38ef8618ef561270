"""What becomes of the gateway's subscribers that are slow, or want less than everything, and what they may cost."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

import comet
import comet.limits
import comet.testing
from comet.types import Earliest
from comet_gateway.http.problems import Problem
from comet_gateway.push.events import Begun, Failed, Latest, Lost, Missing
from comet_gateway.push.subscribe_request import Policy, SubscribeRequest
from comet_gateway.records.cursor import Cursor
from comet_gateway.records.record_json import Values
from tests.integration.gateway_hub_world import QUOTES, SMALL, Client, begun, gateway, one, write
from tests.integration.local_cluster import until


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
        clients = {
            topic: Client(await hub.subscribe(SubscribeRequest(topics=(topic,))))
            for topic in ("quotes", "trades", "news")
        }
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
        while "new" not in state or state.get("k1") != 5001:  # each in a partition of its own, which come as they like
            event = await one(back)
            assert isinstance(event, Latest)
            found = json.loads(b"{" + event.write_members() + b"}")["records"]
            state |= {record["key"]: record["value"] for record in found}
            assert all(int(record["offset"]) >= cursor.positions[record["partition"]].offset for record in found)


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
        second = await hub.subscribe(SubscribeRequest(topics=("trades",)))
        with pytest.raises(Problem) as problem:
            await hub.subscribe(SubscribeRequest(topics=("news",)))
        assert problem.value.code == "TOO_MANY_REQUESTS"
        second.close()
        second.close()
        third = await hub.subscribe(SubscribeRequest(topics=("news",)))
        assert set(hub.statistics()["feeds"]) == {"quotes", "news"}
        first.close()
        third.close()
        with pytest.raises(comet.Closed):
            await first.next()
        await until(lambda: not hub.statistics()["feeds"], "no topic is followed")


async def test_a_table_that_nobody_needs_gives_way_to_one_that_somebody_does() -> None:
    topics = ["quotes", "trades", "news"]
    limits = replace(SMALL, tables_max=2, feed_idle_s=3600.0)
    async with comet.testing.broker(topics) as broker, gateway(broker.address, limits) as hub:
        asked = {topic: SubscribeRequest(topics=(topic,), policy=Policy.CONFLATE, snapshot=True) for topic in topics}
        first, second = [await hub.subscribe(asked[topic]) for topic in ("quotes", "trades")]
        with pytest.raises(Problem) as problem:
            await hub.subscribe(asked["news"])
        assert problem.value.code == "TOO_MANY_REQUESTS"
        second.close()
        third = await hub.subscribe(asked["news"])
        feeds = hub.statistics()["feeds"]
        assert {topic: len(feeds[topic]["tables"]) for topic in topics} == {"quotes": 1, "trades": 0, "news": 1}
        with pytest.raises(Problem):
            await hub.subscribe(asked["trades"])
        for one_of_them in (first, third):
            one_of_them.close()


async def test_a_topic_is_not_let_go_while_somebody_is_about_to_follow_it() -> None:
    async with (
        comet.testing.broker({"quotes": 1}) as broker,
        comet.Producer(broker.address) as producer,
        gateway(broker.address, replace(SMALL, feed_idle_s=0.0)) as hub,
    ):
        await write(producer, 0, 2000, keys=[b"%d" % n for n in range(2000)])
        subscription = await hub.subscribe(replace(QUOTES, snapshot=True))  # which has to be read
        assert hub.statistics()["reads"] > 0
        await begun(subscription)
        await Client(subscription).have(2000)
        await write(producer, 2000, 2001)
        assert await Client(subscription).have(1) == [2000]
