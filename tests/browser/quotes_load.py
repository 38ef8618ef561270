"""A live page of quotes under load: `python -m tests.browser.quotes_load [--rate 2000] [--seconds 20] [--panes 1]`.

The demo's feed writes quotes and trades at a rate while the page is open with all indicators. Prints the tasks of 50 ms
and more of the page's main thread, its share of time at work, and the times from a click on another symbol until its
candles are drawn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from statistics import median
from typing import Any

from playwright.async_api import Page, async_playwright

from comet.processes.child import Child, python_module, started
from comet_demo.feed import Feed
from tests.browser.conftest import ARGUMENTS, Stage, chromium, live, stage_up, watched
from tests.browser.tail_load import OBSERVE, PARTS, _tasks
from tests.waiting import pace

SYMBOLS = ("MSFT", "NVDA", "TSLA", "AAPL", "AMZN", "GOOG")
INDICATORS = ["vwap", "sma", "ema", "bollinger", "volatility"]
FILL_S = 5.0  # until there is something to show
# From the click until the chart has been drawn with the symbol's candles.
CHANGE = """async (symbol) => {
  const src = document.querySelector("script[type=module]").src;
  const {chartAt} = await import(new URL("bind.js", src));
  const began = performance.now();
  document.querySelector(`[data-table="watchlist"] tr[data-key="${symbol}"] a`).click();
  await new Promise((done) => {
    const look = () => {
      const chart = chartAt("price");
      if (chart.data.summary.startsWith(`${symbol},`) && !chart.pending && chart.shown) done();
      else requestAnimationFrame(look);
    };
    look();
  });
  return performance.now() - began;
}"""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=2_000, help="quotes a second")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--panes", type=int, choices=(1, 2, 4), default=1, help="charts side by side")
    asked = parser.parse_args()
    with stage_up() as stage:
        arguments = ["--bootstrap", stage.broker, "--rate", str(asked.rate)]
        with started(Child("feed", python_module(Feed.__module__, *arguments))):
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=chromium(playwright), args=ARGUMENTS)
                async with watched(browser) as context:
                    found = await measured(await context.context.new_page(), stage, asked.seconds, asked.panes)
                await browser.close()
    print(json.dumps(found, indent=2))


async def measured(page: Page, stage: Stage, seconds: float, panes: int) -> dict[str, Any]:
    await pace(FILL_S)
    chosen = json.dumps(json.dumps(INDICATORS))
    await page.add_init_script(f'localStorage.setItem("comet.quotes.indicators", {chosen})')
    await page.goto(stage.at(f"/quotes?panes={panes}"))
    await live(page)
    await page.evaluate(OBSERVE)
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = await _tasks(session)
    await pace(seconds)
    after = await _tasks(session)
    tasks = await page.evaluate("window.tasks")
    changes = [await page.evaluate(CHANGE, symbol) for symbol in SYMBOLS * 2]
    after_changes = await page.evaluate("window.tasks")
    return {
        "rate": await page.locator('[data-field="rate"]').inner_text(),
        "busy": round((after["TaskDuration"] - before["TaskDuration"]) / seconds, 3),
        "of_that": {name: round((after[name] - before[name]) / seconds, 3) for name in PARTS},
        "tasks_of_50_ms": len(tasks),
        "longest_task_ms": round(max(tasks, default=0)),
        "symbol_change_ms": {
            "median": round(median(changes)),
            "longest": round(max(changes)),
            "tasks_of_50_ms": len(after_changes) - len(tasks),
        },
    }


if __name__ == "__main__":
    asyncio.run(main())
