"""What a job computes on quotes, on their page: lines and tables that are live, and grey when they are not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, Locator, Page, expect

import comet
from tests import results
from tests.browser.axe import axe
from tests.browser.conftest import Stage, live, shot, told, watched
from tests.browser.test_quotes import Feed, feeding
from tests.waiting import until

PAUSE_S = 1.0  # between two words of a job that goes on
MARKUP = "<img src=x onerror=\"document.title='stolen'\">"


class Computing:
    """A feed of two symbols, and a job that is the test."""

    def __init__(self, feed: Feed, producer: comet.TransactionalProducer) -> None:
        self.feed = feed
        self._producer = producer

    async def write(self, kind: str, *values: dict[str, Any]) -> None:
        await results.write(self._producer, self.feed.topic, kind, *values)

    async def says(self, **more: Any) -> None:
        """Every query of the job says that it is well; `more` is what the first says otherwise."""
        names = (*results.STEPS_S, "stats", "alerts", "archive")
        await self.write("job", *(results.job(name, **(more if name == "bars.1s" else {})) for name in names))

    @asynccontextmanager
    async def steady(self, *, past_s: int = 0, **more: Any) -> AsyncIterator[None]:
        """It goes on saying so, and computing the last `past_s` anew: who looks late finds no job that is silent."""
        over = False

        async def go_on() -> None:
            while not await until(lambda: over, within_s=PAUSE_S):
                await say()

        async def say() -> None:
            if past_s:
                await self.bars(past_s)
                await self.windows(past_s)
            await self.says(**more)

        async with asyncio.TaskGroup() as tasks:
            await say()
            tasks.create_task(go_on())
            try:
                yield
            finally:
                over = True

    async def bars(self, seconds: int) -> None:
        end_us = results.now_us()
        each = [
            results.bar("AAPL", 227.5 + at % 7 / 10, end_us=end_us - at * 1_000_000) for at in range(seconds, 0, -1)
        ]
        await self.write("bars.1s", *each)

    async def windows(self, seconds: int) -> None:
        end_us = results.now_us()
        steps = range(seconds // 5 * 5, -1, -5)
        windows = [results.stat("AAPL", 227.8 + at % 4 / 20, end_us=end_us - at * 1_000_000) for at in steps]
        await self.write("stats", *windows, results.stat("MSFT", 424.3, end_us=end_us, volatility=0.02, volume=900.0))

    async def past(self, seconds: int) -> None:
        """What it computed until now, of as many seconds."""
        await self.bars(seconds)
        await self.windows(seconds)
        await self.write(
            "alerts",
            results.alert("stale", "MSFT", "no quote for 4 s"),
            results.alert("outlier", MARKUP, f"a price of {MARKUP}"),
        )


@asynccontextmanager
async def computing(stage: Stage, seconds: int = 100) -> AsyncIterator[Computing]:
    async with feeding(stage) as feed:
        job = comet.TransactionalProducer(stage.broker, f"job-{feed.topic}")
        async with comet.Admin(stage.broker) as admin, job:
            await results.make_topics(admin, feed.topic)
            found = Computing(feed, job)
            await feed.past("MSFT", 424, 2)
            await feed.past("AAPL", 227.5, seconds)
            await found.past(seconds)
            await found.says()
            yield found


def table(page: Page, name: str) -> Locator:
    return page.locator(f'[data-table="{name}"] tbody tr')


def field(page: Page, name: str) -> Locator:
    return page.locator(f'[data-field="{name}"]')


def line(page: Page, name: str) -> Locator:
    return page.locator('[data-chart="price"] .key', has_text=re.compile(f"^{name}"))


async def test_what_a_job_computes_is_shown_as_it_comes(page: Page, stage: Stage) -> None:
    async with computing(stage) as job:
        await page.goto(stage.at(f"{job.feed.at}&symbol=AAPL"))
        await live(page)
        async with job.steady(past_s=10):
            await expect(field(page, "analytics-state")).to_have_text("running")
            await expect(field(page, "analytics-delay")).to_have_text(re.compile(r"^[\d.]+ (ms|s)$"))
            for name in ("VWAP", "mean 1 min", "EMA 1 min"):
                await expect(line(page, name).locator("[data-last]")).to_have_text(re.compile(r"^22[78]\."))
        await expect(table(page, "job")).to_have_count(6)
        await expect(table(page, "stats")).to_have_count(2)
        await expect(table(page, "stats").first).to_contain_text("MSFT")
        await expect(table(page, "volumes").first).to_contain_text("AAPL")
        await expect(table(page, "bars")).to_have_count(10)
        await expect(table(page, "alerts")).to_have_count(2)
        await expect(table(page, "alerts").first).to_contain_text(f"a price of {MARKUP}")
        assert await page.title() != "stolen"
        await shot(page, "quotes-analytics-light")

        await job.write("alerts", results.alert("crossed", "AAPL", "bid over ask"))
        await expect(table(page, "alerts").first).to_contain_text("✕ crossed")
        await job.write("bars.1s", results.bar("AAPL", 229.5, end_us=results.now_us(), vwap=229.25))
        await expect(table(page, "bars").first).to_contain_text("229.25")
        await expect(field(page, "bar-delay")).to_have_text(re.compile(r"^[\d.]+ (ms|s)$"))
        await table(page, "alerts").nth(2).get_by_role("link", name="MSFT").click()
        await expect(page.get_by_role("heading", name="MSFT")).to_be_visible()


async def test_which_lines_are_drawn_is_in_the_address(page: Page, stage: Stage) -> None:
    async with computing(stage) as job:
        await page.goto(stage.at(f"{job.feed.at}&lines=averages"))
        await live(page)
        await expect(line(page, "EMA")).to_be_visible()
        await expect(line(page, "VWAP")).to_have_count(0)
        await page.get_by_role("navigation", name="Lines of the job").get_by_role("link", name="VWAP").click()
        await expect(page).to_have_url(re.compile("lines=vwap"))
        await expect(line(page, "VWAP")).to_be_visible()
        await expect(line(page, "EMA")).to_have_count(0)
        await expect(page.locator("#price-summary")).to_contain_text("VWAP 22")
        await page.get_by_text("As table").first.click()
        await expect(page.get_by_role("columnheader", name="VWAP").first).to_be_visible()
        await page.locator('[data-chart="price"] canvas').first.focus()
        await page.keyboard.press("ArrowLeft")
        await expect(page.locator('[data-chart="price"] [data-readout]')).to_contain_text("VWAP")


async def test_what_is_late_is_grey_and_says_so_and_what_failed_says_why(page: Page, stage: Stage) -> None:
    async with computing(stage, seconds=20) as job:
        await job.feed.now("AAPL", 230.0)
        async with job.steady(event_us=results.now_us() - 20_000_000):
            await page.goto(stage.at(f"{job.feed.at}&symbol=AAPL"))
            await live(page)
            grey = page.locator(".results > [data-late]")
            await expect(grey).to_have_count(4)
            await expect(field(page, "analytics-state")).to_have_text("late")
            await expect(field(page, "analytics-why")).to_contain_text("slower than the feed")
            cell = table(page, "stats").first.locator("td").nth(2)
            muted = await page.evaluate("getComputedStyle(document.querySelector('.marks')).color")
            await expect(cell).to_have_css("color", muted)
            await shot(page, "quotes-analytics-late")

        async with job.steady():
            await expect(field(page, "analytics-state")).to_have_text("running")
            await expect(grey).to_have_count(0)
            await expect(cell).not_to_have_css("color", muted)

        await job.says(state="failed", error=f"no leader of {MARKUP}")
        await expect(field(page, "analytics-state")).to_have_text("failed")
        await expect(field(page, "analytics-why")).to_contain_text(f"bars.1s: no leader of {MARKUP}")
        await expect(grey).to_have_count(4)
        await shot(page, "quotes-analytics-failed")


async def test_analytics_are_there_before_any_script(browser: Browser, stage: Stage) -> None:
    async with computing(stage, seconds=20) as job, watched(browser, java_script_enabled=False) as found:
        await told(stage.at(job.feed.at), "424.3", "running", "VWAP")
        page = await found.context.new_page()
        await page.goto(stage.at(job.feed.at))
        await expect(table(page, "stats")).to_have_count(2)
        await expect(line(page, "VWAP")).to_be_visible()
        await expect(table(page, "job").first).to_contain_text("running")


async def test_analytics_fit_a_narrow_screen_in_the_dark(browser: Browser, stage: Stage) -> None:
    viewport = {"width": 360, "height": 740}
    async with computing(stage) as job, watched(browser, color_scheme="dark", viewport=viewport) as found:
        page = await found.context.new_page()
        await page.goto(stage.at(f"{job.feed.at}&symbol=AAPL"))
        await live(page)
        await expect(table(page, "stats")).to_have_count(2)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await shot(page, "quotes-analytics-dark-360")
        await axe(page)
