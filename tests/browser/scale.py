"""The dashboard of a cluster that is not small: `python -m tests.browser.scale [--topics 500] [--partitions 10]`.

Prints, for every page, how long the server takes for its first content (cold: nobody looked before; warm: the median of
ten), and in Chromium when something is drawn, how busy the main thread is while the page is live, and its longest task.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from contextlib import suppress
from time import perf_counter

import httpx
from playwright.async_api import Browser, CDPSession, async_playwright

import comet
from tests.browser.conftest import ARGUMENTS, chromium, stage_up
from tests.waiting import pace

AT_ONCE = 16
WATCH_S = 8
WRITERS_EVERY_S = 0.1
PAGES = (
    "/", "/topics", "/topics?sort=-records&filter=00", "/topics/topic-0007", "/topics/topic-0007/records",
    "/topics/topic-0007/config", "/topics/topic-0007/consumers", "/groups", "/groups/group-07", "/dead-letters",
    "/brokers", "/brokers/1", "/quotes?topic=topic-0001", "/about",
)  # fmt: skip
# The thread's own time is what it did; tasks over 50 ms are told by the browser.
LOOK = """() => { window.longest = 0; window.slow = 0;
  new PerformanceObserver((list) => { for (const task of list.getEntries()) {
    window.slow += 1; window.longest = Math.max(window.longest, task.duration); } })
  .observe({entryTypes: ["longtask"]}); }"""
PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


async def fill(broker: str, topics: int, partitions: int) -> None:
    async with comet.Admin(broker, timeout_ms=60_000) as admin:

        async def make(number: int) -> None:
            with suppress(comet.Timeout):  # it is made, and its partitions get their leaders on a busy machine, too
                await admin.create_topic(f"topic-{number:04}", partitions=partitions)

        for first in range(0, topics, AT_ONCE):
            await asyncio.gather(*map(make, range(first, min(topics, first + AT_ONCE))))
        for number in range(30):
            await admin.commit_offsets(f"group-{number:02}", {(f"topic-{number:04}", p): 0 for p in range(partitions)})


async def write(broker: str, topics: int) -> None:
    """A little to each, so that all numbers move."""
    async with comet.Producer(broker) as producer:
        value = b'{"symbol":"AAPL","bid":1.0,"ask":1.1}' * 3
        while True:
            for number in range(topics):
                await producer.send(f"topic-{number:04}", value, key=b"AAPL")
            await pace(WRITERS_EVERY_S)


async def serve_times(url: str) -> None:
    print(f"{'page':44} {'cold ms':>8} {'warm ms':>8} {'kB':>6}")
    async with httpx.AsyncClient(base_url=url, timeout=60, headers={"accept": "text/html"}) as client:
        for path in PAGES:
            took = []
            for _ in range(11):
                began = perf_counter()
                answer = await client.get(path)
                took.append((perf_counter() - began) * 1000)
            note = "" if answer.status_code == 200 else f"  {answer.status_code}"
            print(
                f"{path:44} {took[0]:8.0f} {statistics.median(took[1:]):8.0f} {len(answer.content) / 1000:6.0f}{note}"
            )


async def browse(browser: Browser, url: str) -> None:
    print(f"\n{'page, live':44} {'paint ms':>8} {'busy %':>7} {'long tasks':>10} {'longest ms':>10}")
    for path in PAGES:
        context = await browser.new_context(viewport={"width": 1280, "height": 800})
        page = await context.new_page()
        await page.goto(url + path)
        paint = await page.evaluate(PAINTED)
        await page.evaluate(LOOK)
        client = await page.context.new_cdp_session(page)
        await client.send("Performance.enable")
        before = await _busy_s(client)
        await pace(WATCH_S)
        busy = (await _busy_s(client) - before) / WATCH_S
        slow, longest = await page.evaluate("() => [window.slow, window.longest]")
        print(f"{path:44} {paint or 0:8.0f} {100 * busy:7.1f} {slow:10} {longest:10.0f}")
        await context.close()


async def _busy_s(client: CDPSession) -> float:
    metrics = (await client.send("Performance.getMetrics"))["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))


async def main(topics: int, partitions: int) -> None:
    with stage_up() as stage:
        began = perf_counter()
        await fill(stage.broker, topics, partitions)
        print(f"{topics} topics of {partitions} partitions made in {perf_counter() - began:.1f} s\n")
        writing = asyncio.create_task(write(stage.broker, topics))
        try:
            await serve_times(stage.url)
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=chromium(playwright), args=ARGUMENTS)
                await browse(browser, stage.url)
                await browser.close()
        finally:
            writing.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--topics", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=10)
    arguments = parser.parse_args()
    comet.run(main(arguments.topics, arguments.partitions))
