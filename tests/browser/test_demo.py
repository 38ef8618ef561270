"""The whole demo: `comet demo` as a user starts it, with Spark, in a browser, until Ctrl-C ends all of it, though the
page is still open."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from comet.spark import local
from tests.browser.conftest import WAIT_MS, Watched, shot
from tests.descendants import alive, descendants
from tests.waiting import until

DEMO = [sys.executable, "-m", "comet.cli", "demo", "--rate", "100", "--seed", "1", "--gateway-port", "0"]
START_MS = 300_000  # until the first prices and bars are there, where other tests have the other core
END_S = 120
_PRICE = re.compile(r"\d")
_DELAY = re.compile(r"\d.*s")


def is_java(pid: int) -> bool:
    try:
        return "java" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False  # it ended while we looked


def left(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


@asynccontextmanager
async def demo(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """It runs, with whatever is temporary in the folder, and says where its page is."""
    process = await asyncio.create_subprocess_exec(
        *DEMO, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=os.environ | {"TMPDIR": str(folder)}
    )
    assert process.stderr is not None
    try:
        while not (line := await process.stderr.readline()).startswith(b"Prices: "):
            assert line, "it ended"
        yield process, line.split()[-1].decode()
    finally:
        process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(process.wait(), END_S)
        except TimeoutError:
            process.kill()  # on which all it has started end by themselves
            raise


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_quotes_and_what_spark_makes_of_them_are_on_the_page_and_ctrl_c_ends_it_all(
    page: Page, context: Watched, tmp_path: Path
) -> None:
    lacking = local.missing()
    if lacking is not None:
        pytest.skip(lacking)
    async with demo(tmp_path) as (process, url):
        await page.goto(url)
        price = page.locator('[data-table="watchlist"] tr[data-key="NVDA"]').get_by_role("cell").nth(1)
        await expect(price).to_have_text(_PRICE, timeout=START_MS)
        await expect(price).not_to_have_text(await price.inner_text(), timeout=WAIT_MS)

        await expect(page.locator('[data-table="bars"] tr[data-key]').first).to_be_visible(timeout=START_MS)
        await expect(page.locator('[data-table="job"]')).to_contain_text("bars.1s")
        await expect(page.locator('[data-field="analytics-delay"]').first).to_have_text(_DELAY, timeout=WAIT_MS)
        await shot(page, "demo")

        started = descendants(process.pid)
        assert any(map(is_java, started))
        context.expected = ("WebSocket connection", "ERR_CONNECTION")  # of a page whose gateway has ended
    assert process.returncode == 0
    # Some notice by themselves that those who have started them are gone.
    assert await until(lambda: not any(map(alive, started)), within_s=END_S), [pid for pid in started if alive(pid)]
    assert left(tmp_path) == []
