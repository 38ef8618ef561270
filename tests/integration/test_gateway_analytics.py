"""What a job writes about quotes, followed by the feed of these quotes, against a real broker; the job is the test."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest

import comet
import comet.testing
from comet_gateway.dashboard import analytics
from comet_gateway.dashboard.analytics_cache import HOLD_S
from comet_gateway.dashboard.quotes import QuoteFeed
from comet_web import facts_analytics as facts
from comet_web.page_request import PageRequest
from tests import results
from tests.integration.test_gateway_quotes import feeds, until, write


def look(feed: QuoteFeed, **query: str) -> facts.Analytics:
    return feed.snapshot(PageRequest("/quotes", query=query), time.time_ns() // 1000).analytics


async def test_the_past_and_what_comes_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analytics, "PAST_RECORDS", 40)
    async with (
        comet.testing.broker({"quotes": 1}) as broker,
        comet.Admin(broker.address) as admin,
        comet.Producer(broker.address) as producer,
        comet.TransactionalProducer(broker.address, "job") as job,
        feeds(broker.address) as found,
    ):
        await write(producer, 5.0, symbol="A")
        await producer.flush()
        await results.make_topics(admin, "quotes")
        now_us = results.now_us()
        seconds = [
            results.bar("A", 5.0, end_us=now_us - ago * 1_000_000, vwap=5.0 + ago / 100) for ago in range(100, 2, -1)
        ]
        await results.write(job, "quotes", "bars.1s", *seconds)
        await results.write(job, "quotes", "stats", results.stat("A", 5.0, end_us=now_us - 2_000_000))
        await results.write(job, "quotes", "alerts", *(results.alert("gap", "A", str(at)) for at in range(60)))
        await results.write(job, "quotes", "job", results.job("bars.1s", event_us=now_us))
        feed = found.feed("quotes")
        await until(lambda: bool(feed.symbols), "there is a quote")
        await feed.analytics.begun.wait()
        seen = look(feed)
        newest = [str(at) for at in range(59, 20, -1)]
        assert [alert.text for alert in seen.alerts] == newest, "40 records, of which one says that they are committed"
        assert seen.bars[0].end_us == seconds[-1]["end_us"]
        assert seen.lines is not None
        assert 19 <= sum(one is not None for one in seen.lines.vwap) <= 19 + HOLD_S, "one of two partitions: half of 40"
        assert seen.stats["A"].mean == 5.0
        assert seen.bar_delay_ms is None, "what is of the past tells nothing about how late bars come"
        heard_us = seen.heard_us
        assert heard_us is not None

        await results.write(job, "quotes", "bars.1s", results.bar("A", 7.0, end_us=results.now_us()))
        await results.write(job, "quotes", "alerts", results.alert("crossed", "A", "live"))
        await results.write(job, "quotes", "job", results.job("stats"), results.job("bars.1s", batch=42))
        await until(lambda: look(feed).jobs["bars.1s"].batch == 42, "what comes is seen")
        await until(lambda: look(feed).bars[0].close == 7.0, "its bar, too")
        await until(lambda: look(feed).alerts[0].text == "live", "and the alert")
        seen = look(feed)
        assert (sorted(seen.jobs), seen.alerts[0].kind) == (["bars.1s", "stats"], "crossed")
        assert (seen.heard_us or 0) > heard_us
        assert seen.bar_delay_ms is not None
        assert (seen.unread, seen.lost, seen.failed) == (0, 0, {})
        assert len(seen.followed) == len(results.KINDS)


async def test_what_is_not_committed_is_not_shown_and_nonsense_is_counted() -> None:
    async with (
        comet.testing.broker({"quotes": 1, "quotes.alerts": 1}) as broker,
        comet.Producer(broker.address) as producer,
        comet.TransactionalProducer(broker.address, "job") as job,
        feeds(broker.address) as found,
    ):

        async def taken_back(text: str) -> None:
            with suppress(LookupError):
                async with job.transaction() as transaction:
                    value: dict[str, Any] = results.alert("gap", "A", text)
                    await (await transaction.send("quotes.alerts", value, key=b"A"))  # it is in the log
                    raise LookupError("the job changed its mind")

        await taken_back("never in the past")
        await producer.publish("quotes.alerts", b"\xff\xfe", key=b"A")
        feed = found.feed("quotes")
        await feed.analytics.begun.wait()
        assert look(feed).unread == 1
        statistics = found._hub.statistics
        await until(lambda: "quotes.alerts" in statistics()["feeds"], "what comes is read")
        await taken_back("never live")
        await producer.publish("quotes.alerts", None, key=b"A")
        await results.write(job, "quotes", "alerts", results.alert("gap", "<b>A</b>", "it is there"))
        await until(lambda: bool(look(feed).alerts), "what is committed is seen")
        seen = look(feed)
        assert [alert.text for alert in seen.alerts] == ["it is there"]
        assert (seen.unread, seen.unread_reason) == (2, "no value")


async def test_topics_that_come_later_are_followed_and_so_are_those_that_are_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(analytics, "LIST_S", 0.02)
    monkeypatch.setattr(analytics, "AGAIN_S", 0.02)
    async with (
        comet.testing.broker({"quotes": 1}) as broker,
        comet.Admin(broker.address) as admin,
        comet.TransactionalProducer(broker.address, "job") as job,
        feeds(broker.address) as found,
    ):
        feed = found.feed("quotes")
        await feed.analytics.begun.wait()
        assert look(feed) == facts.Analytics()
        await results.make_topics(admin, "quotes", "alerts", "job")
        await results.write(job, "quotes", "alerts", results.alert("gap", "A", "one"))
        await until(lambda: len(look(feed).alerts) == 1, "topics that came are followed")
        assert look(feed).followed == ("quotes.alerts", "quotes.job")
        await admin.delete_topic("quotes.alerts")
        await until(lambda: "quotes.alerts" not in look(feed).followed, "one is gone")
        await results.make_topics(admin, "quotes", "alerts")
        await results.write(job, "quotes", "alerts", results.alert("gap", "A", "two"))
        await until(lambda: [alert.text for alert in look(feed).alerts] == ["two"], "and is followed when it is there")
        await results.write(job, "quotes", "alerts", results.alert("gap", "A", "three"))
        await until(lambda: [alert.text for alert in look(feed).alerts] == ["three", "two"], "each of it once")
