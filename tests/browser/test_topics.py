"""The list of topics: what it shows before any script, every act with its refusals, and how its pages hold up."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, Route, expect

import comet
from tests.browser.axe import axe
from tests.browser.conftest import TOLD_S, Stage, Watched, live, settled, shot, stage_up, told, watched
from tests.browser.test_overview import CHANGE, LIVE, hold, keys


def row(page: Page, name: str) -> Locator:
    return page.locator(f'tr[data-key="{name}"]')


async def select_all(page: Page, stage: Stage, prefix: str, names: str) -> None:
    """All topics that begin so, once the gateway knows of all: rows that come later wait until they are asked for."""
    url = stage.at(f"/topics?filter={prefix}")
    await told(url, *(f'<tr data-key="{prefix}.{which}"' for which in names))
    await settled(page, url)
    await page.get_by_role("checkbox", name="Select all rows shown").check()


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog")


def header(page: Page, label: str) -> Locator:
    return page.get_by_role("columnheader", name=label, exact=label == "Records")


# ---- the list


async def test_topics_are_there_before_any_script(browser: Browser, stage: Stage) -> None:
    async with watched(browser, java_script_enabled=False) as found:
        page = await found.context.new_page()
        await page.goto(stage.at("/topics"))
        await expect(page.get_by_role("heading", name="Topics", exact=True)).to_be_visible()
        cells = row(page, "quotes").get_by_role("cell")
        await expect(cells.nth(1)).to_have_text("quotes")
        await expect(cells.nth(2)).to_have_text("3")
        await expect(cells.nth(4)).to_have_text("40")
        await page.get_by_role("link", name="quotes", exact=True).click()
        await expect(page.get_by_role("heading", name="quotes", exact=True)).to_be_visible()
        await expect(row(page, "0")).to_contain_text("in sync")


async def test_the_list_says_what_topics_hold(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/topics"))
    await live(page)
    await expect(row(page, "orders")).to_contain_text("1/1")
    await expect(row(page, "empty").get_by_role("cell").nth(4)).to_have_text("0")
    await expect(row(page, "quotes")).to_contain_text("40")
    await shot(page, "topics-light")


async def test_the_filter_is_in_the_address_and_says_what_is_wrong_with_it(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/topics"))
    await live(page)
    box = page.get_by_role("searchbox", name="Filter All topics")
    await box.fill("^quo")
    await expect(row(page, "orders")).to_have_count(0)
    await expect(row(page, "quotes")).to_be_visible()
    await expect(page).to_have_url(re.compile(r"filter=%5Equo"))
    await box.fill("no topic has this name")
    await expect(page.get_by_text("Nothing matches the filter.")).to_be_visible()
    await page.get_by_role("link", name="Clear filter").click()
    await expect(row(page, "orders")).to_be_visible()
    await box.fill("quo(")
    await expect(page.locator("[data-problem]")).to_be_visible()
    await expect(box).to_have_attribute("aria-invalid", "true")
    await page.reload()
    await expect(page.locator("[data-problem]")).to_be_visible()
    await expect(box).to_have_value("quo(")


async def test_sorting_is_in_the_address_and_survives_a_reload(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/topics?filter=^(quotes%7Corders%7Cempty)$"))
    await live(page)
    rows = page.locator("[data-table=topics] tbody tr")
    await header(page, "Records").get_by_role("link").click()
    await expect(rows.first).to_have_attribute("data-key", "quotes")
    await expect(header(page, "Records")).to_have_attribute("aria-sort", "descending")
    await header(page, "Records").get_by_role("link").click()
    await expect(rows.first).to_have_attribute("data-key", "empty")
    await expect(page).to_have_url(re.compile(r"sort=records"))
    await page.reload()
    await expect(rows.first).to_have_attribute("data-key", "empty")
    await page.go_back()
    await expect(rows.first).to_have_attribute("data-key", "quotes")


async def test_internal_topics_are_shown_when_they_are_asked_for(page: Page, stage: Stage) -> None:
    async with comet.Admin(stage.broker) as admin:
        await admin.create_topic("__inner", partitions=1)
    await page.goto(stage.at("/topics?filter=_inner"))
    await expect(row(page, "__inner")).to_have_count(0)
    await page.get_by_role("link", name=re.compile("Show .* internal")).click()
    await expect(row(page, "__inner")).to_be_visible()
    await expect(page.get_by_role("link", name="Hide internal")).to_be_visible()
    async with comet.Admin(stage.broker) as admin:
        await admin.delete_topic("__inner")


async def test_all_rows_are_given_as_csv(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/topics?filter=^quotes$"))
    async with page.expect_download() as download:
        await page.get_by_role("link", name="All topics as CSV").click()
    path = await (await download.value).path()
    rows = list(csv.DictReader(io.StringIO(Path(path).read_text())))  # noqa: ASYNC240 - a small file
    assert [(found["Topic"], found["Partitions"], found["Records"]) for found in rows] == [("quotes", "3", "40")]


# ---- making


async def test_a_topic_is_made_once_its_name_is_one(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/topics"))
    await live(page)
    await page.get_by_role("button", name="Create topic").first.click()
    name = dialog(page).get_by_label("Name")
    await name.fill("not a name")
    await expect(dialog(page)).to_contain_text("letters, digits, '.', '_' and '-' only")
    await dialog(page).get_by_role("button", name="Create topic").click()
    await expect(dialog(page)).to_be_visible()
    await name.fill("made.by.hand")
    await expect(dialog(page)).not_to_contain_text("only")
    await dialog(page).get_by_label("Partitions", exact=True).fill("2")
    await dialog(page).get_by_label("Retention time").fill("36 h")
    await dialog(page).get_by_label("Flush to disk").select_option("always")
    await shot(page, "topics-create")
    await dialog(page).get_by_role("button", name="Create topic").click()
    await expect(page.get_by_role("status").filter(has_text="made.by.hand created")).to_be_visible()
    await expect(row(page, "made.by.hand")).to_contain_text("1 d 12 h")
    async with comet.Admin(stage.broker) as admin:
        info = await admin.describe_topic("made.by.hand")
        assert (len(info.partitions), info.config.flush) == (2, comet.Flush.ALWAYS)
        await admin.delete_topic("made.by.hand")


async def test_what_one_made_is_shown_though_others_changed_the_list_before(page: Page, stage: Stage) -> None:
    await settled(page, stage.at("/topics"))
    await hold(page)
    made = {"name": "mine", "partition_count": 1}
    await page.route("**/v1/topics", lambda route: route.fulfill(status=201, json=made))
    await page.get_by_role("button", name="Create topic").first.click()
    await dialog(page).get_by_label("Name").fill("mine")
    await dialog(page).get_by_role("button", name="Create topic").click()
    await expect(page.get_by_role("status").filter(has_text="mine created")).to_be_visible()
    cells = await page.evaluate(f"{LIVE}.then(live => live.document.tables.topics.rows.quotes)")
    for name in ("theirs", "mine"):
        await page.evaluate(CHANGE, ["topics", {"rows": {name: cells}, "order": [name, *await keys(page, "topics")]}])
        await expect(row(page, name)).to_be_visible()


async def test_what_the_server_refuses_is_said_in_the_form(context: Watched, page: Page, stage: Stage) -> None:
    context.expected = ("409", "400")
    await page.goto(stage.at("/topics"))
    await page.get_by_role("button", name="Create topic").first.click()
    await dialog(page).get_by_label("Name").fill("quotes")
    await dialog(page).get_by_role("button", name="Create topic").click()
    wrong = dialog(page).get_by_role("alert")
    await expect(wrong).to_contain_text("quotes")
    await expect(wrong).to_contain_text("request")
    await dialog(page).get_by_label("Name").fill("needs-more-replicas")
    await dialog(page).get_by_label("Minimum in-sync replicas").fill("2")
    await dialog(page).get_by_role("button", name="Create topic").click()
    await expect(wrong).to_contain_text("min_insync")
    await dialog(page).get_by_role("button", name="Cancel").click()
    await expect(dialog(page)).to_have_count(0)


async def test_a_clone_takes_over_partitions_and_settings(page: Page, stage: Stage) -> None:
    async with comet.Admin(stage.broker) as admin:
        await admin.create_topic("mother", partitions=4, retention_ms=7_200_000, segment_ms=60_000)
        await page.goto(stage.at("/topics?filter=mother"))
        await live(page)
        await page.get_by_role("checkbox", name="Select mother").check()
        await page.get_by_role("button", name="Clone").click()
        await expect(dialog(page).get_by_label("Retention time")).to_have_value("2 h")
        await dialog(page).get_by_label("Name").fill("mother.child")
        await dialog(page).get_by_role("button", name="Create topic").click()
        await expect(row(page, "mother.child")).to_be_visible()
        info = await admin.describe_topic("mother.child")
        assert (len(info.partitions), info.config.retention_ms, info.config.segment_ms) == (4, 7_200_000, 60_000)
        for name in ("mother", "mother.child"):
            await admin.delete_topic(name)


# ---- destroying


async def test_several_topics_are_deleted_after_their_names_are_typed(page: Page, stage: Stage) -> None:
    async with comet.Admin(stage.broker) as admin, comet.Producer(stage.broker) as producer:
        for name in ("gone.a", "gone.b"):
            await admin.create_topic(name, partitions=2)
            await producer.send(name, b"x")
        await producer.flush()
        await select_all(page, stage, "gone", "ab")
        await page.get_by_role("button", name="Delete", exact=True).click()
        await expect(dialog(page).locator("dl")).to_have_text(re.compile(r"Partitions4Records2"))
        go = dialog(page).get_by_role("button", name="Delete 2 topics")
        await expect(go).to_be_disabled()
        await dialog(page).get_by_label("Type gone.a gone.b to confirm").fill("gone.a gone.b")
        await shot(page, "topics-delete")
        await go.click()
        await expect(page.get_by_role("status").filter(has_text="2 topics deleted")).to_be_visible()
        for name in ("gone.a", "gone.b"):
            await expect(row(page, name)).to_have_count(0)
        assert not [topic for topic in await admin.list_topics() if topic.name.startswith("gone.")]


async def test_of_many_topics_the_number_is_typed(page: Page, stage: Stage) -> None:
    async with comet.Admin(stage.broker) as admin:
        for number in range(4):
            await admin.create_topic(f"lots.{number}", partitions=1)
        await select_all(page, stage, "lots", "0123")
        await page.get_by_role("button", name="Delete", exact=True).click()
        await dialog(page).get_by_label("Type 4 to confirm").fill("4")
        await dialog(page).get_by_role("button", name="Delete 4 topics").click()
        await expect(page.get_by_role("status").filter(has_text="4 topics deleted")).to_be_visible()
        assert not [topic for topic in await admin.list_topics() if topic.name.startswith("lots.")]


async def test_what_fails_half_way_says_so_and_goes_on_when_asked_again(
    context: Watched, page: Page, stage: Stage
) -> None:
    context.expected = ("503",)
    async with comet.Admin(stage.broker) as admin:
        for number in range(3):
            await admin.create_topic(f"half.{number}", partitions=1)
        failing = True

        async def sometimes(route: Route) -> None:
            if failing and "half.1" in route.request.url and "dry_run" not in route.request.url:
                problem = {"type": "x", "title": "Unavailable", "status": 503, "code": "UNAVAILABLE", "detail": "no"}
                await route.fulfill(status=503, json=problem)
            else:
                await route.continue_()

        await page.route("**/v1/topics/**", sometimes)
        await select_all(page, stage, "half", "012")
        await page.get_by_role("button", name="Delete", exact=True).click()
        await dialog(page).get_by_label(re.compile("Type half.0")).fill("half.0 half.1 half.2")
        await dialog(page).get_by_role("button", name="Delete 3 topics").click()
        await expect(dialog(page).get_by_role("alert")).to_contain_text("Unavailable")
        failing = False
        await dialog(page).get_by_role("button", name="Delete 3 topics").click()
        await expect(page.get_by_role("status").filter(has_text="3 topics deleted")).to_be_visible()
        assert not [topic for topic in await admin.list_topics() if topic.name.startswith("half.")]


async def test_what_fails_is_told_even_where_the_browser_closed_the_dialog(
    context: Watched, page: Page, stage: Stage
) -> None:
    """As after a second Esc, which no page can refuse."""
    context.expected = ("503",)
    asked, answer = asyncio.Event(), asyncio.Event()

    async def late(route: Route) -> None:
        asked.set()
        await answer.wait()
        problem = {"type": "x", "title": "Unavailable", "status": 503, "code": "UNAVAILABLE", "detail": "no"}
        await route.fulfill(status=503, json=problem)

    await page.route("**/v1/topics", late)
    await page.goto(stage.at("/topics"))
    await live(page)
    await page.get_by_role("button", name="Create topic").click()
    await dialog(page).get_by_label("Name", exact=True).fill("never")
    await dialog(page).get_by_role("button", name="Create topic").click()
    await asked.wait()
    await page.evaluate("document.querySelector('dialog').close()")
    await expect(dialog(page)).to_be_visible()
    answer.set()
    await expect(dialog(page).get_by_role("alert")).to_contain_text("Unavailable")
    await page.evaluate("document.querySelector('dialog').close()")
    await expect(page.locator("dialog")).to_have_count(0)
    await page.get_by_role("button", name="Create topic").click()
    await expect(dialog(page)).to_be_visible()


# ---- how they hold up


async def test_everything_is_reached_by_keys(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/topics"))
    await live(page)
    await page.keyboard.press("/")
    await expect(page.get_by_role("searchbox", name="Filter All topics")).to_be_focused()
    await page.keyboard.type("^orders$")
    await expect(row(page, "quotes")).to_have_count(0)
    await page.keyboard.press("Escape")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url(stage.at("/topics/orders"))  # and until it listens to keys
    await page.keyboard.press("]")
    await page.wait_for_url(stage.at("/topics/orders/records"))
    await page.go_back()
    await page.get_by_role("button", name="Purge").focus()
    await page.keyboard.press("Enter")
    await expect(dialog(page).get_by_label("Type orders to confirm")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(dialog(page)).to_have_count(0)
    await expect(page.get_by_role("button", name="Purge")).to_be_focused()


async def test_forms_fit_a_telephone_in_the_dark(browser: Browser, stage: Stage) -> None:
    settings: dict[str, Any] = {"color_scheme": "dark", "viewport": {"width": 360, "height": 740}}
    async with watched(browser, **settings) as found:
        page = await found.context.new_page()
        await page.goto(stage.at("/topics"))
        await shot(page, "topics-phone")
        await page.get_by_role("button", name="Create topic").first.click()
        await expect(dialog(page).get_by_label("Name")).to_be_in_viewport()
        await dialog(page).get_by_role("button", name="Create topic").scroll_into_view_if_needed()
        await shot(page, "create-phone")
        assert await page.evaluate("document.querySelector('dialog').scrollWidth <= 360")
        await page.goto(stage.at("/topics/quotes"))
        await live(page)
        await shot(page, "topic-phone")
        await page.goto(stage.at("/topics/quotes/config"))
        await page.get_by_role("button", name="Edit retention_ms").click()
        await shot(page, "config-phone")
        assert await page.evaluate("document.documentElement.scrollWidth <= 360")


async def test_nothing_keeps_anybody_from_using_the_pages(page: Page, stage: Stage) -> None:
    """While something is under way; as they come, all pages are looked at in test_shell."""
    await page.goto(stage.at("/topics/quotes/config"))
    await page.get_by_role("button", name="Edit retention_ms").click()
    await page.get_by_label("retention_ms", exact=True).fill("never")
    await axe(page)
    await page.get_by_role("button", name="Discard").click()


async def test_nor_in_the_dark(browser: Browser, stage: Stage) -> None:
    async with watched(browser, color_scheme="dark") as found:
        page = await found.context.new_page()
        await page.goto(stage.at("/topics/quotes"))
        await live(page)
        await shot(page, "topic-dark")
        await page.get_by_role("button", name="Delete").click()
        await expect(dialog(page)).to_contain_text("Consumer groups")
        await axe(page)
        await page.keyboard.press("Escape")
        await page.goto(stage.at("/topics"))
        await live(page)
        await shot(page, "topics-dark")
        await page.get_by_role("button", name="Create topic").first.click()
        await axe(page)


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def bare() -> AsyncIterator[Stage]:
    """A stage of its own, with no topics."""
    with stage_up() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def many(bare: Stage) -> Stage:
    """With 250 of them."""
    async with comet.Admin(bare.broker, timeout_ms=60_000) as admin:
        for first in range(0, 250, 50):
            made: list[Awaitable[Any]] = [
                admin.create_topic(f"t{number:03}", partitions=1) for number in range(first, first + 50)
            ]
            await asyncio.gather(*made)
    await told(bare.at("/topics"), "250 of 250")
    return bare


async def test_a_cluster_without_topics_says_how_to_begin(page: Page, bare: Stage) -> None:
    """Before the others of this stage, that fill it."""
    await page.goto(bare.at("/topics"))
    await expect(page.get_by_text("No topics yet")).to_be_visible()
    await expect(page.get_by_text("comet topic create quotes --partitions 3")).to_be_visible()
    await shot(page, "topics-none")


async def test_many_topics_come_in_pages_of_a_hundred(page: Page, many: Stage) -> None:
    await page.goto(many.at("/topics"))
    await live(page)
    rows = page.locator("[data-table=topics] tbody tr")
    await expect(rows).to_have_count(100)
    await expect(page.get_by_text("Page 1 of 3")).to_be_visible()
    await page.get_by_role("link", name="Next").click()
    await expect(rows.first).to_have_attribute("data-key", "t100")
    await page.get_by_role("link", name="Next").click()
    await expect(rows).to_have_count(50)
    await expect(page.get_by_text("250 of 250")).to_be_visible()
    await page.get_by_role("searchbox", name="Filter All topics").fill("t01")
    await expect(rows).to_have_count(10)
    async with httpx.AsyncClient(timeout=TOLD_S) as client:
        whole = (await client.get(many.at("/topics.csv?page=2"))).text
    assert whole.count("\r\n") == 251


async def test_a_topic_that_somebody_else_makes_waits_until_it_is_asked_for(page: Page, many: Stage) -> None:
    await page.goto(many.at("/topics?filter=^(t00|new)"))
    await live(page)
    async with comet.Admin(many.broker) as admin:
        await admin.create_topic("new.one", partitions=1)
        button = page.get_by_role("button", name="List changed")
        await expect(button).to_be_visible()
        await expect(row(page, "new.one")).to_have_count(0)
        await button.click()
        await expect(row(page, "new.one")).to_be_visible()
        await admin.delete_topic("new.one")
