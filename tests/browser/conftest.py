"""A real Chromium on real pages. Every test fails on an error in the console, an uncaught exception, a violation of the
content security policy, and a request that leaves this machine.

All tests of this package share one loop, one browser and, unless they break things, one `stage`: a broker and a gateway
as processes, with data of which the tests know what it is.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, Playwright, async_playwright, expect

from comet.processes.child import Child, python_module, started
from tests.browser.chromium import find_chromium
from tests.waiting import until

LOCAL = {"localhost", "127.0.0.1"}
ARGUMENTS = [
    "--no-sandbox",  # tests run as root, too
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
]
SHOTS = os.environ.get("COMET_SHOTS", "")  # a folder: what pages look like is kept there
# Limits end what hangs, and measure nothing: the machine may do other things, too.
WAIT_MS = 30_000
LAUNCH_MS = 90_000
UP_S = 60
TOLD_S = 60
expect.set_options(timeout=WAIT_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.asyncio(loop_scope="package"), append=False)


def chromium(playwright: Playwright) -> str:
    """`make test` installs one where it can."""
    return find_chromium(lambda: playwright.chromium.executable_path)


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(
            executable_path=chromium(playwright), args=ARGUMENTS, timeout=LAUNCH_MS
        )
        yield launched
        await launched.close()


class Watched:
    """A browser context whose pages are looked after."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.complaints: list[str] = []
        self.expected: tuple[str, ...] = ()  # parts of messages that a test brings about on purpose
        context.on("console", lambda message: self._note(message.type == "error", f"console: {message.text}"))
        context.on("weberror", lambda error: self._note(True, f"uncaught: {error.error}"))
        context.on("request", lambda request: self._note(not _is_local(request.url), f"request to {request.url}"))

    def _note(self, bad: bool, text: str) -> None:
        if bad:
            self.complaints.append(text)

    def check(self) -> None:
        left = [text for text in self.complaints if not any(part in text for part in self.expected)]
        assert not left, left


def _is_local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob", "about") or parts.hostname in LOCAL


@asynccontextmanager
async def watched(browser: Browser, **settings: object) -> AsyncIterator[Watched]:
    """A context of its own: cookies, colours, size; `settings` are those of `Browser.new_context`."""
    options = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce", **settings}
    context = await browser.new_context(**options)  # type: ignore[arg-type] # as given
    context.set_default_timeout(WAIT_MS)
    found = Watched(context)
    try:
        yield found
    finally:
        await context.close()
    found.check()


@pytest_asyncio.fixture(loop_scope="package")
async def context(browser: Browser) -> AsyncIterator[Watched]:
    async with watched(browser) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="package")
async def page(context: Watched) -> Page:
    return await context.context.new_page()


async def live(page: Page) -> None:
    """Until all of a page is there, with the script of its own, and it is up to date."""
    await expect(page.locator("html[data-ready]")).to_have_attribute("data-live", "live")


async def settled(page: Page, url: str) -> None:
    """Loads a page and waits until all of it is there, and live."""
    await page.goto(url)
    await live(page)


async def stop_time(page: Page) -> None:
    """From now on no time passes for a page but what the test lets pass: not even if the machine stands still."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    await page.clock.install(time=begin)
    await page.clock.pause_at(begin + timedelta(seconds=1))


async def told(url: str, *parts: str) -> None:
    """Until the gateway's answer has all of that. A page without scripts does not follow what becomes known later."""

    def found() -> bool:
        text = httpx.get(url, timeout=TOLD_S).text
        return all(part in text for part in parts)

    assert await until(found, within_s=TOLD_S), f"{url} does not say {parts}"


async def shot(page: Page, name: str) -> None:
    """Keeps what a page looks like, where COMET_SHOTS says so."""
    if SHOTS:
        await page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


@dataclass
class Stage:
    """A broker and its gateway, as `comet up` starts them."""

    pid: int
    broker: str
    url: str

    def at(self, path: str) -> str:
        return self.url + path


@contextmanager
def stage_up(*arguments: str) -> Iterator[Stage]:
    """Starts it on free ports; `arguments` go to `comet up`."""
    words = ("up", "--ephemeral", "--port", "0", "--gateway-port", "0", "--json", *arguments)
    with started(Child("comet up", python_module("comet.cli", *words), piped=True), within_s=20) as up:
        told = json.loads(up.line(UP_S))
        yield Stage(up.pid, told["address"], told["gateway"])


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def stage() -> AsyncIterator[Stage]:
    """Shared by all tests that break nothing. What is in it is made by `seed`."""
    from tests.browser.seed import seed

    with stage_up() as found:
        await asyncio.wait_for(seed(found.broker), TOLD_S)
        await told(found.at("/topics"), ">40<")
        await told(found.at("/groups"), "engine")
        yield found
