"""Quote feeds against a real broker: the past and what comes are one, and nothing is counted twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import comet
import comet.testing
from comet_gateway.brokers.backend import Backend
from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.dashboard import analytics, candle_history, key_watcher, market_states, quotes
from comet_gateway.dashboard.backfill import BackfillRecord, Past, Stretch
from comet_gateway.dashboard.quotes import QuoteFeed, QuoteFeeds
from comet_gateway.http.problems import Problem
from comet_gateway.push import subscribe_request as push
from comet_gateway.push.events import Failed
from comet_gateway.push.hub import Hub
from comet_gateway.push.subscription import Subscription
from comet_web import facts
from comet_web.page_request import PageRequest
from tests import waiting

WITHIN_S = 60.0


@asynccontextmanager
async def feeds(address: str, **limits: Any) -> AsyncIterator[QuoteFeeds]:
    config = GatewayConfig(bootstrap=address, limits=Limits(**limits))
    async with Backend(config) as backend:
        hub = Hub(config, backend)
        sources: Any = SimpleNamespace(hub=hub, backend=backend, config=config)
        found = QuoteFeeds(sources)
        try:
            yield found
        finally:
            await found.close()
            await hub.close()


def look(feed: QuoteFeed, **query: str) -> facts.Quotes:
    return feed.snapshot(PageRequest("/quotes", query=query), time.time_ns() // 1000)


async def until(condition: Callable[[], bool], what: str) -> None:
    assert await waiting.until(condition, within_s=WITHIN_S, every_s=0.005), f"it never came to this: {what}"


async def write(producer: comet.Producer, price: float, *, symbol: str = "A", ago_s: float = 0, size: int = 1) -> None:
    at_us = time.time_ns() // 1000 - int(ago_s * 1e6)
    value = {"bid": price - 1, "ask": price + 1, "last": price, "last_size": size, "timestamp_us": at_us}
    await producer.send("quotes", value, key=symbol.encode(), timestamp_us=at_us)


async def test_the_past_and_what_comes_are_one() -> None:
    async with (
        comet.testing.broker({"quotes": 3}) as broker,
        comet.Producer(broker.address) as producer,
        feeds(broker.address) as found,
    ):
        for ago in range(200, 5, -1):
            await write(producer, 100 + ago % 10, ago_s=ago)
            await write(producer, 50.0, symbol="B", ago_s=ago)
        await producer.flush()
        feed = found.feed("quotes")
        await until(lambda: feed.state == "live", "the past is read")
        seen = look(feed)
        assert seen.bounded == "the log begins there"
        assert {name: one.records for name, one in seen.quotes.items()} == {"A": 195, "B": 195}
        assert seen.quotes["A"].volume == 195
        assert seen.quotes["A"].first == 100.0
        assert seen.candles is not None
        assert sum(volume for volume in seen.candles.volume if volume) == 195
        await write(producer, 777.0, size=5)
        await producer.flush()
        await until(lambda: look(feed).quotes["A"].last == 777.0, "what comes is seen")
        seen = look(feed, symbol="A")
        assert (seen.quotes["A"].volume, seen.quotes["A"].records) == (200, 196)
        assert (seen.records, seen.delay_ms is not None, seen.symbol) == (1, True, "A")
        assert seen.partition is not None
        # A minute is shown once what comes late to the one before has come.
        settled_us = feed.symbols["A"].latest.tick.time_us + quotes.SETTLED_US
        minutes = feed.snapshot(PageRequest("/quotes", query={"symbol": "A", "step": "1m"}), settled_us).candles
        assert minutes is not None
        assert minutes.forming is not None
        assert minutes.forming[3] == 777.0


async def test_the_past_is_read_no_further_than_its_bounds() -> None:
    """And nothing is shown of what was not read whole."""
    async with (
        comet.testing.broker({"quotes": 1}) as broker,
        comet.Producer(broker.address) as producer,
        feeds(broker.address, quote_scan_records_max=60) as found,
    ):
        began_s = time.time()
        for ago in range(200, 0, -1):
            await write(producer, float(ago), ago_s=ago)
        await producer.flush()
        feed = found.feed("quotes")
        await until(lambda: feed.state == "live", "the past is read")
        seen = look(feed)
        assert seen.bounded == "the limit of 60 records is reached"
        assert seen.since_us is not None
        reach_s = began_s - seen.since_us / 1e6
        assert 30 < reach_s < 65
        assert seen.candles is not None
        assert sum(close is not None for close in seen.candles.close) <= 60
        assert seen.quotes["A"].volume == seen.quotes["A"].records <= 60


async def test_a_topic_that_comes_later_is_followed_and_one_that_goes_is_said_to_be_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotes, "AGAIN_S", 0.02)
    monkeypatch.setattr(analytics, "LIST_S", 0.02)
    async with (
        comet.testing.broker({}) as broker,
        comet.Admin(broker.address) as admin,
        feeds(broker.address) as found,
    ):
        feed = found.feed("quotes")
        await until(lambda: feed.state == "absent", "it is not there")
        await admin.create_topic("quotes")
        await until(lambda: feed.state == "live", "it is followed")
        async with comet.Producer(broker.address) as producer:
            await write(producer, 5.0)
            await producer.send("quotes", b"\xff", key=b"A")
            await producer.flush()
        await until(lambda: look(feed).unread == 1, "all was read")
        assert look(feed).quotes["A"].last == 5.0
        await admin.create_topic("quotes.stats")
        await until(lambda: look(feed).topics == ("quotes.stats",), "what is made of it is found")
        await admin.delete_topic("quotes")
        await until(lambda: feed.state == "absent", "it is gone")
        assert look(feed).quotes["A"].last == 5.0, "what was known still is"


async def test_nothing_is_counted_twice_when_the_feed_fails_while_the_past_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotes, "AGAIN_S", 0.02)
    half = asyncio.Event()
    go_on = asyncio.Event()
    add_past = QuoteFeed._add_past

    def add(feed: QuoteFeed, partition: int, offset: int, record: BackfillRecord, stretch: Stretch) -> None:
        add_past(feed, partition, offset, record, stretch)
        half.set()

    async def slowly(past: Past, begins: dict[int, int], stretch: Stretch, add: Any) -> None:
        await read(past, begins, stretch, add)
        await go_on.wait()

    read = Past._read
    monkeypatch.setattr(QuoteFeed, "_add_past", add)
    monkeypatch.setattr(Past, "_read", slowly)
    async with (
        comet.testing.broker({"quotes": 1}) as broker,
        comet.Producer(broker.address) as producer,
        feeds(broker.address) as found,
    ):
        subscribed: list[Subscription] = []
        subscribe = found._hub.subscribe

        async def subscribing(asked: push.SubscribeRequest) -> Subscription:
            subscription = await subscribe(asked)
            if asked.topics == ("quotes",):
                subscribed.append(subscription)
            return subscription

        monkeypatch.setattr(found._hub, "subscribe", subscribing)
        for number in range(3):
            await write(producer, 3.0 + number, ago_s=3)
        await producer.flush()
        feed = found.feed("quotes")
        await asyncio.wait_for(half.wait(), WITHIN_S)
        await write(producer, 5.0)
        await producer.flush()
        await until(lambda: feed.records == 1, "what comes is seen")
        subscribed[0].notify(Failed("UNAVAILABLE", "nobody answers", {}))
        await until(lambda: len(subscribed) == 2, "it is followed again")
        assert look(feed).quotes["A"].last == 5.0
        assert look(feed).quotes["A"].first is None, "a change has no base before the past is read"
        go_on.set()
        await until(lambda: feed.state == "live" and feed.reach is not None, "the past is read")
        await write(producer, 6.0)
        await producer.flush()
        await until(lambda: feed.records == 2, "what comes is seen again")
        # A minute is shown once what comes late to the one before has come.
        settled_us = feed.symbols["A"].latest.tick.time_us + quotes.SETTLED_US
        seen = feed.snapshot(PageRequest("/quotes", query={"step": "1m"}), settled_us)
        assert seen.quotes["A"].first == 3.0
        assert (seen.quotes["A"].records, seen.quotes["A"].volume) == (5, 5)
        assert seen.candles is not None
        formed = [*seen.candles.volume, seen.candles.forming[4] if seen.candles.forming else 0]
        assert sum(volume for volume in formed if volume) == 5


async def test_no_more_symbols_and_boards_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotes, "IDLE_S", 0.05)
    async with (
        comet.testing.broker({"quotes": 1, "other": 1}) as broker,
        comet.Producer(broker.address) as producer,
        feeds(broker.address, quote_symbols_max=3, quote_topics_max=1) as found,
    ):
        for number in range(5):
            await write(producer, 1.0, symbol=f"S{number}", ago_s=1)
        await producer.flush()
        feed = found.feed("quotes")
        with pytest.raises(Problem, match="follows quotes of 1 topics"):
            found.feed("other")
        await until(lambda: found.feed("quotes").state == "live", "the past is read, while somebody looks")
        feed = found.feed("quotes")
        seen = look(feed)
        assert (sorted(seen.quotes), seen.symbols_left_out) == (["S0", "S1", "S2"], 2)
        await until(lambda: not found._feeds, "nobody looks any more")
        await until(feed._task.done, "nothing is followed any more")
        assert asyncio.get_running_loop().time() - feed.viewed_s >= 0.05


async def test_a_bad_print_is_in_no_figure() -> None:
    """Neither one of the past nor a new one; the tape has both."""
    async with (
        comet.testing.broker({"quotes": 1}) as broker,
        comet.Producer(broker.address) as producer,
        feeds(broker.address) as found,
    ):

        async def bad(price: float, ago_s: float) -> None:
            at_us = time.time_ns() // 1000 - int(ago_s * 1e6)
            value = {"bid": 99.9, "ask": 100.1, "last": price, "last_size": 50, "timestamp_us": at_us}
            await producer.send("quotes", value, key=b"A", timestamp_us=at_us)

        for ago in (30, 20, 10):
            await write(producer, 100.0, ago_s=ago)
        await bad(131.0, 5)
        await producer.flush()
        feed = found.feed("quotes")
        await until(lambda: feed.state == "live", "the past is read")
        await bad(42.0, 0)
        await producer.flush()
        await until(lambda: feed.records == 1, "what comes is seen")
        seen = look(feed)
        assert (seen.quotes["A"].last, seen.quotes["A"].volume, seen.outliers) == (100.0, 3, 2)
        assert seen.quotes["A"].bid == 99.9  # a bad print's quote is good
        assert seen.candles is not None
        known = [price for price in (*seen.candles.high, *seen.candles.low) if price is not None]
        assert set(known) == {100.0}
        assert [(trade.price, trade.outlier) for trade in seen.tape] == [
            (42.0, True), (131.0, True), (100.0, False), (100.0, False), (100.0, False),
        ]  # fmt: skip


async def history(found: QuoteFeeds, before_us: int, *, symbol: str = "A", step: str = "1s", count: int = 100) -> Any:
    session: Any = SimpleNamespace(
        sources=SimpleNamespace(part=lambda _: found, backend=found._backend), principal=None
    )
    params = {"topic": "quotes", "symbol": symbol, "step": step, "before_us": str(before_us), "count": str(count)}
    (event,) = [event async for event in candle_history.candles(session, params)]
    return event


async def test_older_candles_come_in_pages_from_memory_and_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candle_history, "RECORDS_MAX", 40)
    async with (
        comet.testing.broker({"quotes": 2}) as broker,
        comet.Producer(broker.address) as producer,
        feeds(broker.address, quote_scan_records_max=60) as found,
    ):
        now_s = int(time.time())
        for ago in range(200, 0, -1):
            for symbol in ("A", "B"):
                middle_s = now_s - ago + 0.5  # of a second: at its begin a rounding error counts
                await write(producer, 1_000.0 + ago, symbol=symbol, ago_s=time.time() - middle_s)
        await producer.flush()
        feed = found.feed("quotes")
        await until(lambda: feed.state == "live", "the past is read")
        assert feed.reach is not None and not feed.reach.whole
        known_s = candle_history.known_from(feed, 1, now_s)
        assert 0 < now_s - known_s < 100
        closes: dict[int, float | None] = {}
        before_us, pages, begins = now_s * 1_000_000, 0, ""
        while not begins:
            page = await history(found, before_us)
            assert page["end_us"] == before_us and page["start_us"] < before_us
            assert len(page["close"]) == (page["end_us"] - page["start_us"]) // 1_000_000
            for at, close in enumerate(page["close"]):
                closes[now_s - page["start_us"] // 1_000_000 - at] = close
            before_us, begins, pages = page["start_us"], page["begins"], pages + 1
        assert begins == "the log begins there"
        assert pages > 3  # from memory, and several of the log
        assert closes == {ago: 1_000.0 + ago for ago in range(1, 201)}


async def test_a_page_of_history_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        comet.testing.broker({"quotes": 1}) as broker,
        comet.Producer(broker.address) as producer,
        feeds(broker.address, quote_scan_records_max=20) as found,
    ):
        for ago in range(120, 0, -1):
            await write(producer, 100.0, ago_s=ago)
        await producer.flush()
        feed = found.feed("quotes")
        await until(lambda: feed.state == "live", "the past is read")
        before_us = int(time.time() - 90) * 1_000_000
        for wrong in ({"symbol": "Z"}, {"step": "7s"}):
            with pytest.raises(Problem, match=r"symbol|step"):
                await history(found, before_us, **wrong)  # type: ignore[arg-type]
        monkeypatch.setattr(candle_history, "READ_S", 0.0)
        with pytest.raises(Problem, match="could not be read within 0 s"):
            await history(found, before_us)
        monkeypatch.setattr(candle_history, "RECORDS_MAX", 0)  # nothing is read
        page = await history(found, before_us)
        assert (page["close"], page["begins"]) == ([], candle_history.TOO_MANY)


HOUR_US = 3_600_000_000
HOUR_MS = HOUR_US // 1_000


def later(feed: QuoteFeed, hours: float) -> facts.Quotes:
    return feed.snapshot(PageRequest("/quotes"), time.time_ns() // 1000 + int(hours * HOUR_US))


def current(seen: facts.Quotes) -> dict[str, float | None]:
    """The prices that are shown as current."""
    return {
        name: quote.last for name, quote in seen.quotes.items() if not 0 < quote.expires_us <= seen.time_us
    }  # fmt: skip


def price(last: float, **more: Any) -> dict[str, Any]:
    return {"bid": last - 1, "ask": last + 1, "last": last} | more


@asynccontextmanager
async def market(**limits: Any) -> AsyncIterator[tuple[comet.testing.TestBroker, comet.Producer, QuoteFeeds]]:
    """A broker with quotes, and their latest ones, which expire after an hour."""
    async with (
        comet.testing.broker({"quotes": 2}) as broker,
        comet.Admin(broker.address) as admin,
        comet.Producer(broker.address) as producer,
        feeds(broker.address, **limits) as found,
    ):
        await admin.create_topic("quotes.latest", partitions=3, cleanup_policy="compact", record_ttl_ms=HOUR_MS)
        yield broker, producer, found


async def test_the_latest_quotes_are_the_keys_of_their_topic_until_they_expire() -> None:
    async with market() as (broker, producer, found), comet.KV(broker.address, "quotes.latest", type=dict) as latest:
        await write(producer, 100.0, ago_s=30)
        await write(producer, 50.0, symbol="B", ago_s=1)
        await producer.flush()
        await latest.put("A", price(101.0))
        await latest.put("OLD", price(7.0), ttl_ms=1)
        await latest.put("GONE", price(7.0))
        await latest.delete("GONE")
        feed = found.feed("quotes")
        await until(lambda: feed.state == "live" and feed.latest.begun.is_set(), "all is read")
        seen = look(feed)
        assert current(seen) == {"A": 101.0}, "B is in the log alone: its feed has stopped"
        assert (seen.partition, seen.offset, seen.latest_topic) == (None, 0, "quotes.latest")
        assert seen.quotes["B"].last == 50.0
        assert current(later(feed, 1.5)) == {}

        revision = await latest.put("A", price(102.0, timestamp_us=time.time_ns() // 1000))
        await until(lambda: current(look(feed)) == {"A": 102.0}, "a change is followed")
        assert look(feed).offset == revision
        await write(producer, 55.0, symbol="A")
        await write(producer, 56.0, symbol="B")
        await write(producer, 57.0, symbol="C")
        await producer.flush()
        await until(lambda: feed.records == 3, "new records come")
        assert current(look(feed)) == {"A": 102.0}, "records of the topic itself make no current quote"
        assert look(feed).quotes["C"].last == 57.0
        await latest.put("C", price(58.0))
        await latest.delete("A")
        await until(lambda: current(look(feed)) == {"C": 58.0}, "a deletion counts")


async def test_no_change_is_missed_between_the_values_of_keys_and_what_follows() -> None:
    async with (
        market(quote_symbols_max=10_000) as (broker, _, found),
        comet.KV(broker.address, "quotes.latest", type=dict) as latest,
    ):
        written: dict[str, float] = {}

        async def write_more(count: int) -> None:
            for _ in range(count):
                name = f"S{len(written)}"
                written[name] = 100.0 + len(written)
                await latest.put(name, price(written[name]))

        await write_more(30)
        feed = found.feed("quotes")
        while not feed.latest.begun.is_set():
            await write_more(1)
        await write_more(30)
        await until(lambda: current(look(feed)) == written, "each key has its value")


async def test_without_a_topic_of_latest_quotes_the_newest_record_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before that topic comes, and after it has gone."""
    monkeypatch.setattr(key_watcher, "AGAIN_S", 0.02)
    async with (
        comet.testing.broker({"quotes": 1}) as broker,
        comet.Admin(broker.address) as admin,
        comet.Producer(broker.address) as producer,
        feeds(broker.address) as found,
    ):
        await write(producer, 5.0)
        await producer.flush()
        feed = found.feed("quotes")
        await until(lambda: current(look(feed)) == {"A": 5.0}, "the newest record counts")
        assert current(later(feed, 48)) == {"A": 5.0}, "without a time to live it never expires"
        await producer.send("quotes", price(6.0), key=b"A", ttl_ms=HOUR_MS)
        await until(lambda: current(look(feed)) == {"A": 6.0}, "a newer record")
        assert current(later(feed, 1.5)) == {}, "its own time to live counts"
        await admin.create_topic("quotes.latest", cleanup_policy="compact")
        await until(lambda: current(look(feed)) == {}, "there are no latest quotes")
        async with comet.KV(broker.address, "quotes.latest", type=dict) as latest:
            await latest.put("A", price(8.0))
        await until(lambda: current(look(feed)) == {"A": 8.0}, "there is one")
        await admin.delete_topic("quotes.latest")
        await until(lambda: not feed.latest.followed, "the topic is gone")
        await write(producer, 9.0)
        await producer.flush()
        await until(lambda: current(look(feed)) == {"A": 9.0}, "the newest record counts again")


async def test_latest_quotes_that_cannot_be_read_are_said_and_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_watcher, "AGAIN_S", 0.02)
    async with market() as (broker, _, found), comet.KV(broker.address, "quotes.latest", type=dict) as latest:
        await latest.put("A", price(1.0))
        feed = found.feed("quotes")
        await until(lambda: current(look(feed)) == {"A": 1.0}, "it is read")
        with monkeypatch.context() as patched:

            def refuse(*_: object) -> None:
                raise comet.Unavailable("no leader answers")

            patched.setattr(feed.latest, "_take", refuse)
            await latest.put("A", price(2.0))
            await until(lambda: look(feed).latest_failed == "no leader answers", "the reason is shown")
            assert current(look(feed)) == {"A": 1.0}
            assert current(later(feed, 1.5)) == {}
        await until(lambda: current(look(feed)) == {"A": 2.0}, "it is read again")
        assert look(feed).latest_failed == ""


async def test_an_outlier_among_the_latest_quotes_changes_bid_and_ask_alone() -> None:
    async with (
        market(quote_symbols_max=1) as (broker, _, found),
        comet.KV(broker.address, "quotes.latest", type=dict) as latest,
    ):
        await latest.put("A", price(100.0))
        feed = found.feed("quotes")
        await until(lambda: current(look(feed)) == {"A": 100.0}, "it is read")
        await latest.put("A", {"bid": 99.9, "ask": 100.1, "last": 131.0})
        await latest.put("B", price(1.0))  # beyond the limit
        await latest.put("A", {"note": "no quote"})
        await until(
            lambda: look(feed).quotes["A"].bid == 99.9 and look(feed).unread == look(feed).symbols_left_out == 1,
            "all is read",
        )
        assert current(look(feed)) == {"A": 100.0}


def is_open(feed: QuoteFeed) -> bool | None:
    found = look(feed).market
    return None if found is None else found.open


@asynccontextmanager
async def hours(
    monkeypatch: pytest.MonkeyPatch, partitions: int = 1
) -> AsyncIterator[tuple[comet.testing.TestBroker, comet.KV[Any], QuoteFeed]]:
    """A feed of quotes, and the keys of NAME.market, which comes after the feed."""
    monkeypatch.setattr(key_watcher, "AGAIN_S", 0.02)
    async with (
        comet.testing.broker({"quotes": 1}) as broker,
        comet.Admin(broker.address) as admin,
        feeds(broker.address) as found,
    ):
        feed = found.feed("quotes")
        await feed.market.watcher.begun.wait()
        assert (look(feed).market, look(feed).market_failed) == (None, ""), "there is no such topic"
        await admin.create_topic("quotes.market", partitions=partitions, cleanup_policy="compact")
        async with comet.KV(broker.address, "quotes.market", type=dict) as states:
            yield broker, states, feed


async def test_a_market_is_open_or_closed_by_the_newest_state_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hours(monkeypatch) as (broker, states, feed):
        await states.put("DEMO", {"market": "DEMO", "open": True})
        await until(lambda: is_open(feed) is True, "it is open")
        await states.put("DEMO", {"market": "DEMO", "open": False})
        await until(lambda: is_open(feed) is False, "it is closed")
        closed = look(feed).market
        entry = await states.get("DEMO")
        assert entry is not None
        assert closed == facts.Market(False, entry.timestamp_us)

        await states.put("DEMO", {"market": "DEMO", "open": False})
        await states.put("NYSE", {"open": True})
        await until(lambda: is_open(feed) is True, "one of two is open")
        await states.delete("NYSE")
        await until(lambda: is_open(feed) is False, "the key is gone")
        assert look(feed).market == closed, "closed again, it is closed since the first time"
        async with comet.Admin(broker.address) as admin:
            await admin.delete_topic("quotes.market")
        await until(lambda: look(feed).market is None, "the topic is gone")


async def test_the_first_answer_of_the_page_has_the_state_of_the_market(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotes, "FIRST_WAIT_S", WITHIN_S)
    follow = key_watcher.KeyWatcher._follow
    async with hours(monkeypatch) as (broker, states, _), feeds(broker.address) as found:
        await states.put("DEMO", {"open": False})

        async def follow_last(watcher: key_watcher.KeyWatcher) -> None:
            if watcher.topic == "quotes.market":
                await feed.begun.wait()
                await feed.latest.begun.wait()
            await follow(watcher)

        monkeypatch.setattr(key_watcher.KeyWatcher, "_follow", follow_last)
        feed = found.feed("quotes")

        async def away(*_: Any) -> None:
            raise comet.Unavailable("the brokers are away")

        config = GatewayConfig(bootstrap=broker.address)
        sources: Any = SimpleNamespace(part=lambda _: found, config=config, recently=away)
        seen = await quotes.quotes(sources, PageRequest("/quotes"))
        assert seen.market is not None
        assert not seen.market.open
        assert seen.opening is not None
        assert "the brokers are away" in seen.opening.problem


async def test_several_markets_are_closed_since_the_last_one_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hours(monkeypatch, partitions=3) as (_, states, feed):
        for name in ("A", "B", "C"):
            await states.put(name, {"open": True})
        for name in ("A", "B", "C"):
            await until(lambda: is_open(feed) is True, "one is open")
            await states.put(name, {"open": False})
        await until(lambda: is_open(feed) is False, "all are closed")
        last = await states.get("C")
        assert last is not None
        assert look(feed).market == facts.Market(False, last.timestamp_us)
        await states.put("A", {"open": True}, ttl_ms=HOUR_MS)
        await until(lambda: is_open(feed) is True, "one is open again")
        assert later(feed, 1.5).market == facts.Market(False, last.timestamp_us), "its state has expired"


async def test_malformed_states_of_a_market_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hours(monkeypatch) as (broker, states, feed):
        async with comet.KV(broker.address, "quotes.market") as raw:
            await raw.put("OTHER", b"\xff\xfe")
            await states.put("DEMO", {"open": False})
            await until(lambda: is_open(feed) is False, "it is closed")
            for value in (b"", b"[" * 10_000, b"null", b'{"open": 1}', b'{"open": "true"}', b'{"market": "DEMO"}'):
                await raw.put("DEMO", value)
                await raw.put("OTHER", value)
            await states.put("END", {"open": True})
            await until(lambda: is_open(feed) is True, "all is read")
            await states.delete("END")
            await until(lambda: is_open(feed) is False, "the last valid state counts")
        assert look(feed).market_failed == ""


async def test_of_more_markets_than_the_limit_no_state_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(market_states, "MARKETS_MAX", 2)
    async with hours(monkeypatch) as (_, states, feed):
        for name in ("A", "B"):
            await states.put(name, {"open": False})
        await until(lambda: is_open(feed) is False, "two are closed")
        for name in ("C", "D", "E"):
            await states.put(name, {"open": True})
        await until(lambda: look(feed).market is None, "they are too many")
        await states.put("A", {"open": True})
        await until(lambda: feed.market._states["A"][0].open, "all is read")
        assert look(feed).market is None
        assert list(feed.market._states) == ["A", "B", "C"]


async def test_a_market_whose_state_cannot_be_read_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hours(monkeypatch) as (_, states, feed):
        await states.put("DEMO", {"open": False})
        await until(lambda: is_open(feed) is False, "it is closed")
        await states.put("GONE", {"open": True})
        await until(lambda: is_open(feed) is True, "another one is open")
        with monkeypatch.context() as patched:

            def refuse(*_: object) -> None:
                raise comet.Unavailable("no leader answers")

            patched.setattr(feed.market.watcher, "_take", refuse)
            await states.put("DEMO", {"open": False})
            await until(lambda: look(feed).market_failed == "no leader answers", "the reason is shown")
            assert look(feed).market is None
            await states.delete("GONE")
        await until(lambda: is_open(feed) is False, "it is read again, and the key that is gone is forgotten")
        assert look(feed).market_failed == ""
