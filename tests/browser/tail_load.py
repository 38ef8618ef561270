"""A live tail under load: `python -m tests.browser.tail_load [--rate 50000] [--seconds 20] [--filter "n>0"]`.

Writes records of 100 bytes at a rate while a page of their topic is open and live, and prints what the page's main
thread and the gateway did meanwhile. Ends with an error where the page was busy for half of the time or more, had a
task of 100 ms or longer, or was told of fewer records than were written.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from typing import Any
from urllib.parse import quote

import psutil
from playwright.async_api import CDPSession, Page, async_playwright

import comet
from tests.browser.conftest import ARGUMENTS, Stage, chromium, stage_up, watched
from tests.waiting import pace

TOPIC = "flood"
PARTITIONS = 4
VALUE_BYTES = 100
BUSY_MAX = 0.5
TASK_MS_MAX = 100
PARTS = ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
# Tasks of 50 ms and more, and how long each was.
OBSERVE = """() => {
  window.tasks = [];
  new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((entry) => entry.duration)))
    .observe({ type: "longtask" });
}"""
HEAR = """() => {
  const hear = WebSocket.prototype.addEventListener;
  window.told = null;
  WebSocket.prototype.addEventListener = function (name, ...rest) {
    if (name === "message" && !this.heard) {
      this.heard = true;
      hear.call(this, "message", (event) => {
        const found = JSON.parse(event.data);
        if (found.event?.seen !== undefined) {
          window.told = found.event;
          window.events = (window.events ?? 0) + 1;
          window.rows = (window.rows ?? 0) + found.event.rows.length;
        }
      });
    }
    return hear.call(this, name, ...rest);
  };
}"""
UNTIL = """(count) => new Promise((done) => {
  const look = () => (window.told?.seen >= count ? done() : requestAnimationFrame(look));
  look();
})"""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=50_000, help="records a second")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--filter", default="", help="a filter on fields")
    asked = parser.parse_args()
    with stage_up() as stage:
        async with comet.Admin(stage.broker) as admin:
            await admin.create_topic(TOPIC, partitions=PARTITIONS)
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium(playwright), args=ARGUMENTS)
            async with watched(browser) as context:
                page = await context.context.new_page()
                found = await measured(page, stage, asked.rate, asked.seconds, asked.filter)
            await browser.close()
    print(json.dumps(found, indent=2))
    assert found["busy"] < BUSY_MAX, found["busy"]
    assert found["longest_task_ms"] < TASK_MS_MAX, found["longest_task_ms"]
    assert found["seen"] == found["produced"], (found["seen"], found["produced"])


async def measured(page: Page, stage: Stage, rate: int, seconds: float, chosen: str) -> dict[str, Any]:
    await page.add_init_script(f"({HEAR})()")
    query = f"&filter={quote(chosen)}" if chosen else ""
    await page.goto(stage.at(f"/topics/{TOPIC}/records?start=live{query}"))
    await page.evaluate(UNTIL, 0)
    await page.evaluate(OBSERVE)
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
    gateway = _gateway(stage)
    before, cpu_before = await _tasks(session), _cpu(gateway)
    began = time.perf_counter()
    produced = await produce(stage.broker, rate, seconds)
    took = time.perf_counter() - began
    after, cpu_after = await _tasks(session), _cpu(gateway)
    await page.evaluate(UNTIL, produced)
    told = await page.evaluate("window.told")
    return {
        "produced": produced,
        "rate": round(produced / took),
        "busy": round((after["TaskDuration"] - before["TaskDuration"]) / took, 3),
        "of_that": {name: round((after[name] - before[name]) / took, 3) for name in PARTS},
        "longest_task_ms": round(max(await page.evaluate("window.tasks"), default=0)),
        "tasks_of_50_ms": await page.evaluate("window.tasks.length"),
        "events_per_s": round(await page.evaluate("window.events") / took, 1),
        "rows_per_s": round(await page.evaluate("window.rows") / took, 1),
        "rows_on_the_page": await page.locator("[data-records] tbody tr").count(),
        "processes_cpu": {name: round((cpu_after[name] - cpu) / took, 3) for name, cpu in cpu_before.items()},
        **{name: told[name] for name in ("seen", "matched", "shown", "lost", "unread", "one_in", "shown_in", "text")},
    }


async def produce(broker: str, rate: int, seconds: float) -> int:
    """Writes at the rate, a part every 20 ms; behind, it goes on without a break."""
    loop = asyncio.get_running_loop()
    each, sent = rate // 50, 0
    async with comet.Producer(broker) as producer:
        began = loop.time()
        for number in range(round(seconds * 50)):
            head = b'{"n":%d,"price":1.08,"side":"buy","note":"' % number
            value = head + b"x" * (VALUE_BYTES - len(head) - 2) + b'"}'
            await producer.send_many(TOPIC, [value] * each, partition=number % PARTITIONS)
            sent += each
            left = began + (number + 1) / 50 - loop.time()
            await pace(max(left, 0))
        await producer.flush()
    return sent


async def _tasks(session: CDPSession) -> dict[str, float]:
    """Seconds that the page's main thread has worked, whatever else the machine did meanwhile."""
    metrics = await session.send("Performance.getMetrics")
    return {one["name"]: float(one["value"]) for one in metrics["metrics"]}


def _gateway(stage: Stage) -> list[psutil.Process]:
    top = psutil.Process(stage.pid)
    return [top, *top.children(recursive=True)]


def _cpu(processes: list[psutil.Process]) -> dict[str, float]:
    """Seconds of each: the first is broker and gateway, where they are one process."""
    found: dict[str, float] = {}
    for process in processes:
        times = process.cpu_times()
        found[f"{process.pid} {' '.join(process.cmdline()[1:4])}"[:60]] = times.user + times.system
    return found


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    asyncio.run(main())
