"""Pictures of every page: `python -m tests.browser.shots FOLDER [--url http://localhost:8080] [--docs]`.

Light, dark, and as narrow as a telephone. Without --url it starts `comet demo` and waits until it has something to
show. With --docs it takes the few, one screen each, that the documentation has.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.async_api import Browser, async_playwright

import comet
from tests.browser.conftest import ARGUMENTS, chromium
from tests.waiting import pace

PAGES: Final = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/quotes",
    "records": "/topics/quotes/records",
    "config": "/topics/quotes/config",
    "consumers": "/topics/quotes/consumers",
    "groups": "/groups",
    "dead-letters": "/dead-letters",
    "alerts": "/alerts",
    "schedules": "/schedules",
    "brokers": "/brokers",
    "broker": "/brokers/1",
    "quotes": "/quotes",
    "quotes-analytics": "/quotes#analytics",
    "access": "/access",
    "audit": "/audit",
    "about": "/about",
}
IN_DOCS: Final = ("overview", "topic", "records", "groups", "dead-letters", "quotes", "quotes-analytics")
SETTLED_S: Final = 3.0  # until what is live has come, and charts are drawn
LIFE_S: Final = 150.0  # of the demo, until its charts show something, also of what Spark computes


@contextmanager
def demo() -> Iterator[str]:
    """`comet demo`, with a gateway where it says."""
    command = [sys.executable, "-m", "comet.cli", "demo", "--rate", "400"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if b"http://" in line:
                    page = urlsplit("http://" + line.decode().split("http://", 1)[1].split()[0])
                    yield f"http://{page.netloc}"
                    return
            raise AssertionError(f"the demo ended with {process.wait()} and told no address")
        finally:
            process.terminate()


async def take(browser: Browser, url: str, folder: Path, names: list[str], *, docs: bool) -> None:
    looks: dict[str, dict[str, Any]] = {"light": {"color_scheme": "light"}, "dark": {"color_scheme": "dark"}}
    if not docs:
        looks["phone"] = {"color_scheme": "light", "viewport": {"width": 360, "height": 740}}
    for look, settings in looks.items():
        context = await browser.new_context(**{"viewport": {"width": 1360, "height": 850}, **settings})
        for name in names:
            page = await context.new_page()
            answer = await page.goto(url + PAGES[name])
            assert answer is not None and answer.ok, f"{page.url} was answered with {answer and answer.status}"
            await pace(SETTLED_S)
            await page.screenshot(path=folder / f"{name}-{look}.png", full_page=not docs)
            await page.close()
        await context.close()


async def main(folder: Path, url: str, *, docs: bool) -> None:
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(playwright), args=ARGUMENTS)
        await take(browser, url, folder, list(IN_DOCS if docs else PAGES), docs=docs)
        await browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url")
    parser.add_argument("--docs", action="store_true")
    arguments = parser.parse_args()
    if arguments.url:
        comet.run(main(arguments.folder, arguments.url, docs=arguments.docs))
    else:
        with demo() as running:
            print(f"the demo is at {running}; it gets {LIFE_S:g} s")

            async def live() -> None:
                await pace(LIFE_S)
                await main(arguments.folder, running, docs=arguments.docs)

            comet.run(live())
