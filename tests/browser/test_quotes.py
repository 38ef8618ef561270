"""Quotes: prices as they come, candles of what was, and what is said where there is nothing."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, Locator, Page, expect

import comet
from tests.browser.axe import axe
from tests.browser.conftest import Stage, live, shot, told, watched
from tests.waiting import until

PAUSE_S = 0.2  # between quotes of a steady price
LIFE_MS = 2_000  # of latest quotes; after it, nothing is current
_numbers = itertools.count()


class Feed:
    """A topic of quotes of its own, that the test writes to."""

    def __init__(self, producer: comet.Producer, topic: str) -> None:
        self.topic = topic
        self.at = f"/quotes?topic={topic}"
        self._producer = producer

    async def quote(self, symbol: str, last: float, *, size: int = 0, ago_s: float = 0.0) -> None:
        at_us = time.time_ns() // 1000 - int(ago_s * 1e6)
        value = {
            "symbol": symbol, "bid": round(last - 0.01, 4), "ask": round(last + 0.01, 4), "last": last,
            "last_size": size, "timestamp_us": at_us,
        }  # fmt: skip
        await self._producer.send(self.topic, value, key=symbol.encode(), timestamp_us=at_us)

    async def trade(self, symbol: str, last: float, *, bid: float, ask: float, size: int) -> None:
        at_us = time.time_ns() // 1000
        value = {"symbol": symbol, "bid": bid, "ask": ask, "last": last, "last_size": size, "timestamp_us": at_us}
        await self._producer.send(self.topic, value, key=symbol.encode(), timestamp_us=at_us)
        await self._producer.flush()

    async def past(self, symbol: str, price: float, seconds: int) -> None:
        """A quote a second until now."""
        for ago in range(seconds, 0, -1):
            await self.quote(symbol, round(price + (ago * 7 % 11) / 10, 2), size=100 + ago, ago_s=ago)
        await self._producer.flush()

    async def raw(self, value: bytes) -> None:
        await self._producer.send(self.topic, value, key=b"X")
        await self._producer.flush()

    async def now(self, symbol: str, last: float) -> None:
        await self.quote(symbol, last)
        await self._producer.flush()

    @asynccontextmanager
    async def steady(self, symbol: str, last: float) -> AsyncIterator[None]:
        """That price goes on, so that there is a candle of it however late somebody looks."""
        over = False

        async def go_on() -> None:
            while not await until(lambda: over, within_s=PAUSE_S):
                await self.now(symbol, last)

        async with asyncio.TaskGroup() as tasks:
            await self.now(symbol, last)
            tasks.create_task(go_on())
            try:
                yield
            finally:
                over = True


@asynccontextmanager
async def feeding(stage: Stage) -> AsyncIterator[Feed]:
    topic = f"ticks-{next(_numbers)}"
    async with comet.Admin(stage.broker) as admin, comet.Producer(stage.broker) as producer:
        await admin.create_topic(topic, partitions=2)
        yield Feed(producer, topic)


def row(page: Page, symbol: str) -> Locator:
    return page.locator(f'[data-table="watchlist"] tr[data-key="{symbol}"]')


async def test_quotes_are_there_before_any_script(browser: Browser, stage: Stage) -> None:
    async with watched(browser, java_script_enabled=False) as found, feeding(stage) as feed:
        await feed.past("AAPL", 227.5, 5)
        await told(stage.at(feed.at), "228.20")
        page = await found.context.new_page()
        await page.goto(stage.at(feed.at))
        await expect(row(page, "AAPL")).to_contain_text("228.20")
        await expect(page.get_by_role("heading", name="AAPL")).to_be_visible()
        await expect(page.locator("#price-summary")).to_contain_text("candles of 1s")


async def test_prices_move_and_the_chart_follows(page: Page, stage: Stage) -> None:
    async with feeding(stage) as feed:
        await feed.past("AAPL", 227.5, 120)
        await feed.past("MSFT", 424, 60)
        await page.goto(stage.at(feed.at))
        await live(page)
        await expect(row(page, "MSFT")).to_contain_text("424.70")
        async with feed.steady("AAPL", 230.25):
            await expect(page.locator(".price")).to_have_text("230.25")
            await expect(row(page, "AAPL").get_by_role("cell").nth(1)).to_have_text("230.25")
            await expect(page.locator('[data-chart="price"] [data-last]').nth(3)).to_have_text("230.25")
        await expect(page.locator(".change")).to_contain_text("▲")
        await shot(page, "quotes-light")


async def test_another_symbol_and_another_step_are_in_the_address(page: Page, stage: Stage) -> None:
    async with feeding(stage) as feed:
        await feed.past("AAPL", 227.5, 90)
        await feed.past("MSFT", 424, 90)
        await page.goto(stage.at(feed.at))
        await live(page)
        await page.evaluate("window.same = true")
        await row(page, "MSFT").click()
        await expect(page).to_have_url(re.compile("symbol=MSFT"))
        await expect(page).to_have_title(re.compile("Quotes of MSFT"))
        assert await page.evaluate("window.same"), "another symbol is shown without loading the page again"
        await expect(page.get_by_role("heading", name="MSFT")).to_be_visible()
        await live(page)
        await page.get_by_role("link", name="1 m", exact=True).click()
        await expect(page).to_have_url(re.compile("step=1m"))
        await expect(page.locator("#price-summary")).to_contain_text("of 1m")
        await page.get_by_role("link", name="Line", exact=True).click()
        await expect(page).to_have_url(re.compile("draw=line"))
        await page.get_by_role("link", name="1 s", exact=True).click()
        await expect(page.locator("#price-summary")).to_contain_text("of 1s")
        await shot(page, "quotes-line")
        canvas = page.locator('[data-chart="price"] canvas').first
        await canvas.hover()
        readout = page.locator('[data-chart="price"] [data-readout]')
        await expect(readout).to_contain_text("open")
        await expect(readout).to_contain_text("UTC")


async def test_symbols_are_pinned_and_stay_so(page: Page, stage: Stage) -> None:
    async with feeding(stage) as feed:
        await feed.past("AAPL", 227.5, 5)
        await feed.past("MSFT", 424, 5)
        await page.goto(stage.at(f"{feed.at}&symbol=MSFT"))
        await live(page)
        await page.get_by_role("button", name="Pin").click()
        pins = page.get_by_role("navigation", name="Pinned symbols")
        await expect(pins.get_by_role("link", name="MSFT")).to_contain_text("424.70")
        await page.goto(stage.at(feed.at))
        await expect(pins.get_by_role("link", name="MSFT")).to_contain_text("424.70")
        await feed.now("MSFT", 425.5)
        await expect(pins.get_by_role("link", name="MSFT")).to_contain_text("425.50")
        await pins.get_by_role("link", name="MSFT").click()
        await expect(page.get_by_role("heading", name="MSFT")).to_be_visible()
        await page.get_by_role("button", name="Pinned").click()
        await expect(pins).to_be_hidden()


async def test_an_alert_is_told_once(page: Page, stage: Stage) -> None:
    async with feeding(stage) as feed:
        await feed.past("AAPL", 227.5, 5)
        await page.goto(stage.at(feed.at))
        await live(page)
        await page.get_by_role("button", name="Alert").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Price", exact=True).fill("231")
        await dialog.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("button", name="Alert (1)")).to_be_visible()
        await feed.now("AAPL", 230.9)
        await expect(page.locator(".price")).to_have_text("230.90")
        await expect(page.get_by_role("button", name="Alert (1)")).to_be_visible()
        await feed.now("AAPL", 231.2)
        await expect(page.get_by_text("AAPL at or above 231: 231.20")).to_be_visible()
        await expect(page.get_by_role("button", name="Alert", exact=True)).to_be_visible()


async def test_a_feed_that_stopped_has_its_last_price_with_its_time(page: Page, stage: Stage) -> None:
    async with feeding(stage) as feed:
        for ago in (80, 70, 60):
            await feed.quote("AAPL", 227.5, ago_s=ago)
        await feed.past("MSFT", 424, 0)  # nothing, but that all is written
        await page.goto(stage.at(feed.at))
        await live(page)
        state = page.locator('[data-field="state"]')
        await expect(state).to_contain_text("feed stopped; last quote at")
        await expect(page.locator(".price [data-field]")).to_have_text("227.50")
        await expect(page.locator('[data-field="delay"]')).to_have_text("–")
        await shot(page, "quotes-stopped")


async def test_a_quote_that_expires_is_no_current_price_any_more(page: Page, stage: Stage) -> None:
    """And it is one again with the next quote, although the page is open all along."""
    async with feeding(stage) as feed, latest_of(stage, feed) as latest:
        await feed.past("AAPL", 227.5, 60)
        async with latest.steady("AAPL", 228.0):
            await page.goto(stage.at(f"{feed.at}&panes=2"))
            await live(page)
            shown = page.locator(".price [data-field]")
            await expect(shown).to_have_text("228.00")
            assert await _label_pixels(page), "the chart has a label with the newest price"
        await expect(shown).to_have_text("no current quote")
        await expect(page.locator(".change")).to_contain_text("last 228.00 at")
        await expect(row(page, "AAPL").get_by_role("cell").nth(1)).to_have_text("no quote")
        await expect(page.locator('[data-field="bid"]')).to_have_text("–")
        assert not await _label_pixels(page), "but not with an old one"
        await axe(page)
        await shot(page, "quotes-expired")
        await page.set_viewport_size({"width": 390, "height": 900})
        await shot(page, "quotes-expired-narrow")
        async with latest.steady("AAPL", 229.0):
            await expect(shown).to_have_text("229.00")


async def test_a_market_that_closes_and_opens_is_said_on_an_open_page(page: Page, stage: Stage) -> None:
    async with feeding(stage) as feed, market_of(stage, feed) as states, latest_of(stage, feed) as latest:
        for ago in (80, 70, 60):
            await feed.quote("AAPL", 227.5, ago_s=ago)
        await feed.past("AAPL", 227.5, 0)  # nothing, but that all is written
        await page.goto(stage.at(feed.at))
        await live(page)
        state, shown = page.locator('[data-field="state"]'), page.locator(".price [data-field]")
        await expect(state).to_contain_text("feed stopped; last quote at")
        await expect(shown).to_have_attribute("title", "the last quote has expired")
        await states.put("DEMO", {"market": "DEMO", "open": False})
        await expect(state).to_have_text(re.compile(r"^market closed since (\S+ )?\d\d:\d\d, no opening is scheduled$"))
        await expect(state).to_have_attribute("data-tone", "muted")
        await expect(shown).to_have_text("no current quote")
        await expect(shown).to_have_attribute("title", re.compile("^market closed since"))
        await axe(page)
        await shot(page, "quotes-closed")
        await page.set_viewport_size({"width": 390, "height": 900})
        await shot(page, "quotes-closed-narrow")
        await page.set_viewport_size({"width": 1280, "height": 900})
        await _opening_is_said(page, stage, f"{feed.topic}.market")
        await states.put("DEMO", {"market": "DEMO", "open": True})
        await expect(state).to_contain_text("feed stopped; last quote at")
        await expect(shown).to_have_attribute("title", "the last quote has expired")
        async with latest.steady("AAPL", 228.0):
            await expect(state).to_have_text("live")


async def _opening_is_said(page: Page, stage: Stage, topic: str) -> None:
    """The schedule that opens the market comes, is paused, and is resumed, while the page is open."""
    state = page.locator('[data-field="state"]')
    value = {"market": "DEMO", "open": True}
    async with comet.Admin(stage.broker) as admin:
        await admin.schedules.put_schedule(topic, "open", "cron 30 9 1 1 * America/New_York", key="DEMO", value=value)
        await expect(state).to_have_text(re.compile(r", opens (\S+ )?09:30 New York$"))
        await expect(state).to_have_attribute("title", re.compile(r"opens \d{4}-01-01 14:30:00"))
        await axe(page)
        await shot(page, "quotes-opens")
        await page.emulate_media(color_scheme="dark")
        await shot(page, "quotes-opens-dark")
        await page.set_viewport_size({"width": 390, "height": 900})
        await shot(page, "quotes-opens-narrow")
        await page.emulate_media(color_scheme="light")
        await admin.schedules.pause_schedule(topic, "open")
        await expect(state).to_have_text(re.compile(", the opening is paused$"))
        await admin.schedules.resume_schedule(topic, "open")
        await expect(state).to_have_text(re.compile(", opens "))


@asynccontextmanager
async def market_of(stage: Stage, feed: Feed) -> AsyncIterator[comet.KV[dict[str, object]]]:
    """The state of the market of a feed."""
    topic = f"{feed.topic}.market"
    async with comet.Admin(stage.broker) as admin:
        await admin.create_topic(topic, cleanup_policy="compact")
    async with comet.KV(stage.broker, topic, type=dict) as states:
        yield states


class Latest(Feed):
    """The latest quotes of a feed, which live for a short time."""

    async def quote(self, symbol: str, last: float, *, size: int = 0, ago_s: float = 0.0) -> None:
        value = {"bid": last - 0.01, "ask": last + 0.01, "last": last}
        await self._producer.send(self.topic, value, key=symbol.encode(), ttl_ms=LIFE_MS)


@asynccontextmanager
async def latest_of(stage: Stage, feed: Feed) -> AsyncIterator[Latest]:
    topic = f"{feed.topic}.latest"
    async with comet.Admin(stage.broker) as admin, comet.Producer(stage.broker) as producer:
        await admin.create_topic(topic, cleanup_policy="compact")
        yield Latest(producer, topic)


async def _label_pixels(page: Page) -> int:
    """The number of pixels right of the chart's prices in the colours of its newest price."""
    return await page.evaluate(  # type: ignore[no-any-return] # a number
        """() => {
            const canvas = document.querySelector('[data-chart="price"] canvas');
            const probe = document.body.appendChild(document.createElement("i"));
            const rgb = ["--up", "--down"].map((name) => {
                probe.style.color = `var(${name})`;
                return getComputedStyle(probe).color.match(/[0-9]+/g).map(Number);
            });
            probe.remove();
            const left = canvas.width - Math.round((30 * canvas.width) / canvas.clientWidth);
            const { data } = canvas.getContext("2d").getImageData(left, 0, canvas.width - left, canvas.height);
            let count = 0;
            for (let at = 0; at < data.length; at += 4)
                if (rgb.some((one) => [0, 1, 2].every((part) => Math.abs(one[part] - data[at + part]) < 3))) count += 1;
            return count;
        }"""
    )


async def test_what_is_no_quote_is_counted_and_said(page: Page, stage: Stage) -> None:
    async with feeding(stage) as feed:
        await feed.past("AAPL", 227.5, 2)
        await feed.raw(b"\xff\xfe")
        await feed.raw(b'{"note": "<b>bold</b>"}')
        await page.goto(stage.at(feed.at))
        await expect(page.get_by_text("2 records skipped, not quotes: no price")).to_be_visible()


async def test_where_there_is_no_feed_the_way_to_one_is_shown(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/quotes?topic=nothing-here"))
    await expect(page.get_by_role("heading", name="No feed")).to_be_visible()
    await expect(page.locator('[data-when-kind="absent"]').get_by_text("comet demo", exact=True)).to_be_visible()
    await shot(page, "quotes-empty")
    async with comet.Admin(stage.broker) as admin:
        await admin.create_topic("nothing-here", partitions=1)
    await expect(page.get_by_role("heading", name="No quotes yet")).to_be_visible()
    async with comet.Admin(stage.broker) as admin:
        await admin.delete_topic("nothing-here")


async def test_the_analytics_say_what_they_wait_for(page: Page, stage: Stage) -> None:
    async with feeding(stage) as feed:
        await feed.past("AAPL", 227.5, 2)
        await page.goto(stage.at(feed.at))
        await expect(page.get_by_text("No job processes these quotes yet.")).to_be_visible()
        outputs = page.locator('[data-table="outputs"]')
        await expect(outputs.get_by_role("row", name=re.compile(rf"{feed.topic}\.bars\.1m"))).to_contain_text("missing")


async def test_quotes_fit_a_narrow_screen_in_the_dark(browser: Browser, stage: Stage) -> None:
    async with feeding(stage) as feed:
        await feed.past("AAPL", 227.5, 200)
        await feed.past("MSFT", 424, 100)
        settings = ({"width": 360, "height": 740}, {"width": 1440, "height": 900})
        for viewport in settings:
            async with watched(browser, color_scheme="dark", viewport=viewport) as found:
                page = await found.context.new_page()
                await page.goto(stage.at(feed.at))
                await live(page)
                await expect(row(page, "AAPL")).to_contain_text("228.20")
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
                await shot(page, f"quotes-dark-{viewport['width']}")
                await axe(page)
