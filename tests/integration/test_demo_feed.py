"""The feed and paper trading against real brokers: everything of a file arrives, a live market outlives its broker, and
positions outlive who held them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import httpx
import pytest

import comet
import comet.testing
from comet.processes.child import Child, python_module
from comet.processes.ports import HeldPorts
from comet.processes.program import run
from comet_demo import feed as feeding
from comet_demo import latest_quotes, sample_workload
from comet_demo.feed import Feed
from comet_demo.model import (
    DEAD_ORDERS,
    FILLS,
    INSTRUMENTS,
    LATEST,
    LATEST_TTL_MS,
    MARKET,
    MARKET_STATE,
    ORDERS,
    TOPIC,
    TRADES,
    Fill,
    Order,
    Quote,
    Trade,
    ensure_topics,
    now_us,
)
from comet_demo.paper_trading import Paper, last_fills
from comet_demo.providers import Event, Provider, market_hours
from comet_demo.providers.market_hours import MarketHours
from comet_demo.providers.public_feeds import Coinbase, SocketProvider
from comet_demo.providers.replay import ReplayProvider
from comet_demo.providers.synthetic import SyntheticProvider
from tests.integration.live_gateway import live_gateway
from tests.market import servers
from tests.waiting import until

WITHIN_S = 30.0
T = TypeVar("T")


class Given:
    """A live market that says what it is told to."""

    name = "given"
    live = True

    def __init__(self, *moments: Sequence[Event]) -> None:
        self.moments = moments

    async def stream(self) -> AsyncGenerator[Sequence[Event], None]:
        for events in self.moments:
            yield events

    def statistics(self) -> Mapping[str, int]:
        return {}


async def patient(provider: Provider, address: str) -> None:
    """Feeds what is live, and drops nothing of it only because this machine is slow."""
    await Feed(provider, address, age_max_s=WITHIN_S).run()


async def test_everything_of_a_file_arrives_by_symbol_in_order(tmp_path: Path) -> None:
    path = tmp_path / "ticks.csv"
    lines = [f"{1_700_000_000 + n},S{n % 7},{n + 1},{n + 2},{n + 1},{n % 3}" for n in range(5_000)]
    path.write_text("\n".join(["time,symbol,bid,ask,price,size", *lines]))
    async with comet.testing.broker() as broker:
        await ensure_topics(broker.address)
        await ensure_topics(broker.address)  # they may be there
        one = Feed(ReplayProvider(path, pace=0), broker.address)
        await one.run()
        counts = one.counts
        trades = sum(1 for n in range(5_000) if n % 3)
        assert (counts.sent, counts.dropped) == (5_000 + trades, 0)
        async with comet.Admin(broker.address) as admin:
            topics = {topic.name: topic for topic in await admin.list_topics()}
        assert set(topics) >= set(MARKET)
        assert topics[TOPIC].config.consistency is comet.Consistency.AVAILABLE
        quotes = await read(broker.address, TOPIC, Quote, 5_000)
        assert len(await read(broker.address, TRADES, Trade, trades)) == trades
    for symbol in {quote.symbol for quote in quotes}:
        times = [quote.timestamp_us for quote in quotes if quote.symbol == symbol]
        assert times == sorted(times)


async def latest(address: str) -> dict[str, comet.KVEntry[Quote]]:
    async with comet.KV(address, LATEST, type=Quote) as kv:
        return {entry.key.decode(): entry for entry in await kv.entries()}


async def test_the_latest_quote_of_each_symbol_is_written_and_expires() -> None:
    """Of a market that has ended, too."""
    moments: list[list[Event]] = [
        [Quote(name, at - 0.01, at + 0.01, 1, 1, at, 0, number), Trade(name, 1.0, 1, "buy", number)]
        for number, at in enumerate((100.0, 101.0, 102.0), 1)
        for name in ("A", "B")
    ]
    async with comet.testing.broker() as broker:
        await ensure_topics(broker.address)
        await patient(Given(*moments * 100), broker.address)
        found = await latest(broker.address)
    assert {name: entry.value and entry.value.last for name, entry in found.items()} == {"A": 102.0, "B": 102.0}
    assert {entry.expires_us - entry.timestamp_us for entry in found.values()} == {LATEST_TTL_MS * 1_000}
    assert all(entry.timestamp_us > 1_000_000_000 for entry in found.values()), "from the time of writing"


async def test_a_quote_that_is_replaced_before_its_turn_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_quotes, "EVERY_S", 3_600.0)
    async with comet.testing.broker() as broker, comet.Admin(broker.address) as admin:
        await ensure_topics(broker.address)
        writing = latest_quotes.LatestQuotes(broker.address)
        running = asyncio.ensure_future(writing.run())
        writing.add(rising(1, [100.0]))
        async with asyncio.timeout(WITHIN_S):
            while await admin.offsets(LATEST, "latest") == {0: 0}:
                assert not running.done()
        for price in (101.0, 102.0, 103.0):
            writing.add(rising(2, [price]))
            for _ in range(5):  # as much time as a write would take
                assert await admin.offsets(LATEST, "latest") == {0: 1}
        await writing.finish()
        found = await latest(broker.address)
        assert (found["A"].revision, found["A"].value and found["A"].value.last) == (1, 103.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await writing.close()


def test_the_latest_quotes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_quotes, "SYMBOLS_MAX", 2)

    async def waiting() -> list[str]:
        writing = latest_quotes.LatestQuotes("127.0.0.1:1")
        for name in "ABAC":
            writing.add([Quote(name, 1.0, 1.0, 1, 1, 1.0, 0, 1)])
        found = list(writing._waiting)
        await writing.close()
        return found

    assert asyncio.run(waiting()) == ["B", "C"]


class Halved(Given):
    """A file, of which the second half comes when it is asked for."""

    live = False

    def __init__(self, *moments: Sequence[Event]) -> None:
        super().__init__(*moments)
        self.on = asyncio.Event()

    async def stream(self) -> AsyncGenerator[Sequence[Event], None]:
        for number, events in enumerate(self.moments):
            if number == len(self.moments) // 2:
                await self.on.wait()
            yield events


@pytest.mark.parametrize("deleted", [TOPIC, TRADES])
async def test_a_file_goes_on_when_somebody_deletes_a_topic_and_nothing_comes_twice(deleted: str) -> None:
    quotes = rising(1, [100.0] * 40)
    trades = [Trade("A", 100.0, 1, "buy", one.timestamp_us) for one in quotes]
    provider = Halved(*[list(pair) for pair in zip(quotes, trades, strict=True)])
    async with comet.testing.broker() as broker, comet.Admin(broker.address) as admin:
        await ensure_topics(broker.address)
        one = Feed(provider, broker.address)
        running = asyncio.ensure_future(one.run())
        assert await until(lambda: one.counts.sent == 40, within_s=WITHIN_S)
        await admin.delete_topic(deleted)
        provider.on.set()
        await asyncio.wait_for(running, WITHIN_S)
        there = {topic: sum((await admin.offsets(topic, "latest")).values()) for topic in (TOPIC, TRADES)}
    assert there == {TOPIC: 40, TRADES: 40} | {deleted: 20}
    assert (one.counts.sent, one.counts.dropped) == (80, 0)


async def read(address: str, topic: str, kind: type[T], count: int) -> list[T]:
    found: list[T] = []
    async with asyncio.timeout(WITHIN_S), comet.Consumer(address, topic, type=kind, start="earliest") as consumer:
        while len(found) < count:
            record = await consumer.get(WITHIN_S)
            assert record is not None
            found.append(record.value)
            assert record.key == getattr(record.value, "symbol", "").encode()
    return found


async def test_a_real_market_comes_through() -> None:
    said = [servers.ticker(), *[servers.match(number, price=str(number)) for number in range(1, 50)]]
    async with comet.testing.broker() as broker, servers.market(servers.coinbase(*said)) as market:
        await ensure_topics(broker.address)
        provider = SocketProvider(Coinbase(["BTC-USD"], market.url), Random(1))
        running = asyncio.ensure_future(patient(provider, broker.address))
        trades = await read(broker.address, TRADES, Trade, 49)
        quotes = await read(broker.address, TOPIC, Quote, 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert [trade.price for trade in trades] == [float(number) for number in range(1, 50)]
    assert (quotes[0].bid, quotes[0].ask) == (100.25, 100.75)


class Open(Given):
    """A market that has said what it says, and stays open."""

    async def stream(self) -> AsyncGenerator[Sequence[Event], None]:
        for events in self.moments:
            yield events
        await asyncio.Event().wait()


async def test_that_the_clock_is_behind_the_market_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feeding, "REPORT_EVERY_S", 0.01)
    ahead_us = time.time_ns() // 1000 + 600_000_000
    market = Open([Quote("A", 9.9, 10.1, 1, 1, 10.0, 0, ahead_us)])
    async with comet.testing.broker() as broker:
        await ensure_topics(broker.address)
        running = asyncio.ensure_future(patient(market, broker.address))
        assert await until(lambda: "behind the market's" in caplog.text, within_s=WITHIN_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Lossy(Open):
    """A market of which messages are missing."""

    def statistics(self) -> Mapping[str, int]:
        return {"connections": 1, "missed": 1_234, "malformed": 0}


async def test_problems_of_a_market_are_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feeding, "REPORT_EVERY_S", 0.01)
    async with comet.testing.broker() as broker:
        await ensure_topics(broker.address)
        one = Feed(Lossy(rising(1, [100.0])), broker.address, age_max_s=WITHIN_S)
        running = asyncio.ensure_future(one.run())
        assert await until(lambda: "1,234 messages never arrived" in caplog.text, within_s=WITHIN_S)
        one._dropped = 7
        assert await until(lambda: "7 events dropped" in caplog.text, within_s=WITHIN_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert caplog.text.count("never arrived") == 1 and "malformed" not in caplog.text


async def test_a_topic_of_dead_letters_that_is_deleted_is_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_workload, "KEEP_S", 0.01)
    async with comet.testing.broker() as broker, comet.Admin(broker.address) as admin:
        running = asyncio.ensure_future(sample_workload.keep(broker.address))

        async def there() -> None:
            async with asyncio.timeout(WITHIN_S):
                while DEAD_ORDERS not in {topic.name for topic in await admin.list_topics()}:
                    assert not running.done()

        await there()
        await admin.delete_topic(DEAD_ORDERS)
        await there()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_alert_of_the_workload_has_a_filter_and_is_created_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_workload, "KEEP_S", 0.01)
    create, tries = sample_workload.create_alert, iter((OSError("nothing listens"), None))

    def fail_first(gateway: str) -> None:
        if error := next(tries, None):
            raise error
        create(gateway)

    monkeypatch.setattr(sample_workload, "create_alert", fail_first)
    async with (
        live_gateway({ORDERS: 1}) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as client,
        comet.Producer(gateway.broker) as producer,
    ):

        async def alerts() -> list[Any]:
            found: list[Any] = (await client.get("/v1/alerts")).json()["items"]
            return found

        await asyncio.wait_for(sample_workload.set_alert(f"{gateway.url}/"), WITHIN_S)
        await asyncio.wait_for(sample_workload.set_alert(f"{gateway.url}/"), WITHIN_S)
        assert [one["rule"]["name"] for one in await alerts()] == ["many large purchases"]
        async with asyncio.timeout(WITHIN_S):
            while (await alerts())[0]["state"] != "firing":  # it counts from its first look at the topic on
                for id_, (side, size) in enumerate([("sell", 1_000_000), ("buy", 10), ("buy", 1_000_000)]):
                    await producer.send(ORDERS, Order(id_, "A", side, size, 1.0, "ada", 0), key="A")
        async with comet.Consumer(
            gateway.broker, ORDERS, type=Order, start="earliest", filter=sample_workload.ALERT["filter"]
        ) as large:
            assert [(await anext(large)).value.id for _ in range(4)] == [2] * 4


@asynccontextmanager
async def process(data: Path, port: int) -> AsyncGenerator[Child, None]:
    """A broker that is killed at the end."""
    words = ("broker", "--data", str(data), "--port", str(port))
    child = Child("broker", python_module("comet.cli", *words), piped=True)
    child.start()
    try:
        await asyncio.to_thread(child.line, 60)
        yield child
    finally:
        child.kill()


async def test_a_live_market_outlives_its_broker_and_goes_on_with_what_is_new_even_if_it_comes_back_empty(
    tmp_path: Path,
) -> None:
    held = HeldPorts(1)
    (port,) = held.numbers
    address = f"127.0.0.1:{port}"
    async with process(tmp_path / "first", port):
        await ensure_topics(address)
        one = Feed(SyntheticProvider(INSTRUMENTS, Random(1), rate=500), address, age_max_s=0.5)
        running = asyncio.ensure_future(one.run())
        assert await until(lambda: one.counts.sent > 100, within_s=WITHIN_S)
    dropped = one.counts.dropped  # some, where it took half a second to connect
    assert await until(lambda: one.counts.dropped > dropped + 100, within_s=WITHIN_S)
    gone_us = time.time_ns() // 1000
    assert not running.done()
    async with process(tmp_path / "second", port):
        sent = one.counts.sent
        assert await until(lambda: one.counts.sent > sent + 300, within_s=WITHIN_S)
        first = (await read(address, TOPIC, Quote, 1))[0]
        newest = await read(address, LATEST, Quote, len(INSTRUMENTS))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert min(first.timestamp_us, *(one.timestamp_us for one in newest)) > gone_us - 1_000_000
    assert f"{one.counts.dropped:,} dropped" in str(one.counts)


async def test_schedules_open_and_close_the_market(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(market_hours, "SOON_S", 0.5)
    async with comet.testing.broker() as broker:
        await ensure_topics(broker.address)
        hours = MarketHours(broker.address, 3600.0, now_us=now_us)
        provider = SyntheticProvider(INSTRUMENTS, Random(1), rate=500)
        one = Feed(provider, broker.address, age_max_s=WITHIN_S, hours=hours)
        running = asyncio.ensure_future(one.run())
        assert await until(lambda: one.counts.sent > 100, within_s=WITHIN_S)
        async with comet.Admin(broker.address) as admin:
            found = (await admin.schedules.list_schedules(MARKET_STATE)).schedules
            assert [(schedule.id, schedule.spec) for schedule in found] == [
                ("close", "calendar:DEMO close"),
                ("open", "calendar:DEMO open"),
            ]
            opened_us = found[1].fired_us
            assert opened_us is not None
            first = (await read(broker.address, TOPIC, Quote, 1))[0]
            assert first.timestamp_us >= opened_us - 1_000_000
            await admin.schedules.run_schedule(MARKET_STATE, "close")
            assert await until(lambda: not hours.open, within_s=WITHIN_S)
            await admin.schedules.run_schedule(MARKET_STATE, "open")
            assert await until(lambda: hours.open, within_s=WITHIN_S)
            sent = one.counts.sent
            assert await until(lambda: one.counts.sent > sent + 100, within_s=WITHIN_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_market_whose_hours_cannot_be_stored_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object) -> None:
        raise comet.Forbidden("may not")

    monkeypatch.setattr(market_hours, "ensure_topics", refused)
    hours = MarketHours("localhost:1", 3600.0, now_us=now_us)
    running = asyncio.ensure_future(hours.run())
    assert await until(lambda: hours.open, within_s=WITHIN_S)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_what_makes_no_sense_ends_the_command_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COMET_ALPACA_KEY", raising=False)
    monkeypatch.setattr(sys, "argv", ["feed", "--provider", "alpaca"])
    with pytest.raises(SystemExit) as ended:
        run("comet_demo.feed", feeding.main)
    assert ended.value.code == 2
    assert "set COMET_ALPACA_KEY" in capsys.readouterr().err


def rising(from_s: int, prices: Sequence[float]) -> list[Event]:
    return [
        Quote("A", price - 0.01, price + 0.01, 100, 100, price, 0, (from_s + at_s) * 1_000_000)
        for at_s, price in enumerate(prices)
    ]


async def test_positions_outlive_who_held_them() -> None:
    up, down = rising(0, [100.0] * 10 + [101.0, 102.0]), rising(20, [102.0] * 10 + [100.0, 99.0])
    async with comet.testing.broker() as broker:
        await ensure_topics(broker.address)
        async with comet.Admin(broker.address) as admin:
            await admin.reset_group("paper", "earliest", topics=[TOPIC])
        async with trading(broker.address) as first:
            await patient(Given(up), broker.address)
            assert await until(lambda: first.fills == 1, within_s=WITHIN_S)
        bought = (await last_fills(broker.address))["A"]
        assert (bought.side, bought.position) == ("buy", 100)
        async with trading(broker.address) as second:
            await patient(Given(down), broker.address)
            assert await until(lambda: second.fills >= 1, within_s=WITHIN_S)
        fills = await read(broker.address, FILLS, Fill, 2)
    assert [fill.side for fill in fills[:2]] == ["buy", "sell"]
    assert fills[1].position == 0
    assert fills[1].cash == round(100 * (fills[1].price - bought.price), 4)


@asynccontextmanager
async def trading(address: str) -> AsyncGenerator[Paper, None]:
    paper = Paper(address)
    serving = asyncio.ensure_future(paper.app.serve())
    try:
        yield paper
    finally:
        paper.app.stop()
        await serving
