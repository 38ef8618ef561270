"""Settings of topics on a cluster whose default retention is one hour: the dialog that creates a topic, and the page of
its settings."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

import comet
from comet.processes.child import Child, python_module
from comet.processes.child import started as running
from tests.browser.conftest import Stage, live, shot

HOUR_MS = 3_600_000


@contextmanager
def started(command: str, *arguments: str) -> Iterator[tuple[Child, dict[str, Any]]]:
    child = Child(f"comet {command}", python_module("comet.cli", command, *arguments, "--json"), piped=True)
    with running(child):
        yield child, json.loads(child.line(60))


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def hourly(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """A broker whose new topics keep records for an hour and are synced always, with a gateway."""
    folder = tmp_path_factory.mktemp("hourly")
    with ExitStack() as stack:
        flags = ("--topic-retention-ms", "1h", "--topic-retention-bytes", "1GiB", "--topic-flush", "always")
        child, broker = stack.enter_context(
            started("broker", "--data", str(folder), "--port", "0", "--metrics-port", "0", *flags)
        )
        _, gateway = stack.enter_context(started("gateway", "--bootstrap", broker["address"], "--port", "0"))
        yield Stage(child.pid, broker["address"], gateway["url"])


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog")


def setting(page: Page, name: str) -> Locator:
    return page.locator(f'tr[data-setting="{name}"]')


async def create(page: Page, name: str, **typed: str) -> None:
    await dialog(page).get_by_label("Name").fill(name)
    for label, text in typed.items():
        await dialog(page).get_by_label(label).fill(text)
    await dialog(page).get_by_role("button", name="Create topic").click()
    await expect(page.get_by_role("status").filter(has_text=f"{name} created")).to_be_visible()


async def test_the_dialog_shows_and_sets_the_defaults_of_the_cluster(page: Page, hourly: Stage) -> None:
    await page.goto(hourly.at("/topics"))
    await live(page)
    await page.get_by_role("button", name="Create topic").first.click()
    age = dialog(page).get_by_label("Retention time")
    await expect(age).to_have_value("")
    await expect(age).to_have_attribute("placeholder", "default: 1 h")
    await expect(dialog(page).get_by_label("Retention size")).to_have_attribute("placeholder", "default: 1 GiB")
    flush = dialog(page).get_by_label("Flush to disk")
    await expect(flush).to_have_value("")
    await expect(flush.locator("option").first).to_have_text("default: always")
    await shot(page, "topics-create-hourly")
    await create(page, "hourly")
    async with comet.Admin(hourly.broker) as admin:
        info = await admin.describe_topic("hourly")
        assert (info.config.retention_ms, info.config.retention_bytes) == (HOUR_MS, 1 << 30)
        assert info.config.flush is comet.Flush.ALWAYS
        of_cluster = [name for name, source in info.sources.items() if source is comet.SettingSource.CLUSTER]
        assert of_cluster == ["retention_ms", "retention_bytes", "flush"]
        await admin.delete_topic("hourly")


async def test_the_dialog_can_set_what_is_built_in(page: Page, hourly: Stage) -> None:
    await page.goto(hourly.at("/topics"))
    await live(page)
    await page.get_by_role("button", name="Create topic").first.click()
    await dialog(page).get_by_label("Flush to disk").select_option("interval")
    await create(page, "weekly", **{"Retention time": "7 d", "Retention size": "none"})
    async with comet.Admin(hourly.broker) as admin:
        info = await admin.describe_topic("weekly")
        assert (info.config.retention_ms, info.config.retention_bytes) == (7 * 24 * HOUR_MS, -1)
        assert info.config.flush is comet.Flush.INTERVAL
        await admin.delete_topic("weekly")


async def test_the_page_says_where_values_come_from_and_goes_back_to_the_default(page: Page, hourly: Stage) -> None:
    async with comet.Admin(hourly.broker) as admin:
        await admin.create_topic("daily", retention_ms=24 * HOUR_MS)
        await page.goto(hourly.at("/topics/daily/config"))
        await expect(page.get_by_text("1 of 16 settings is set for this topic")).to_be_visible()
        cells = setting(page, "retention_ms").get_by_role("cell")
        await expect(cells.nth(1)).to_have_text("1 h")
        await expect(cells.nth(2)).to_have_text("topic")
        await expect(setting(page, "flush").get_by_role("cell").nth(2)).to_have_text("cluster")
        await expect(setting(page, "segment_ms").get_by_role("cell").nth(2)).to_have_text("built-in")
        await page.get_by_role("button", name="Edit retention_ms").click()
        await page.get_by_role("button", name="Default").click()
        await expect(page.get_by_label("retention_ms", exact=True)).to_have_value("1 h")
        await shot(page, "config-hourly")
        await page.get_by_role("button", name="Review and save").click()
        await expect(dialog(page).locator("dl")).to_contain_text("retention_ms1 d → 1 h, the default")
        await dialog(page).get_by_role("button", name="Save").click()
        await expect(page.get_by_text("all settings have their defaults")).to_be_visible()
        info = await admin.describe_topic("daily")
        assert info.config.retention_ms == HOUR_MS
        assert info.source("retention_ms") is comet.SettingSource.CLUSTER
        await admin.delete_topic("daily")


async def test_a_value_is_edited_on_a_telephone(page: Page, hourly: Stage) -> None:
    async with comet.Admin(hourly.broker) as admin:
        await admin.create_topic("small", retention_ms=24 * HOUR_MS)
        await page.set_viewport_size({"width": 360, "height": 740})
        await page.goto(hourly.at("/topics/small/config"))
        await page.get_by_role("button", name="Edit retention_ms").click()
        await expect(page.get_by_role("button", name="Default")).to_be_in_viewport(ratio=1)
        await shot(page, "config-hourly-phone")
        await admin.delete_topic("small")
