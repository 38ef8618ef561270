"""How a list of records is arranged: columns of JSON fields, rows that open, saved filters, why nothing is found."""

from __future__ import annotations

from itertools import count

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

import comet
from tests.browser.axe import axe
from tests.browser.conftest import Stage, Watched, settled, shot, watched
from tests.browser.seed import MARKUP

_NUMBERS = count(1)


@pytest_asyncio.fixture(loop_scope="package")
async def topic(stage: Stage) -> str:
    """Orders as JSON, the newest with a hostile field."""
    name = f"view-{next(_NUMBERS)}"
    async with comet.Admin(stage.broker) as admin, comet.Producer(stage.broker) as producer:
        await admin.create_topic(name, partitions=1)
        for number in range(60):
            value = b'{"id": %d, "price": %d.50, "side": "buy", "user": {"name": "anna"}}' % (number, number)
            await producer.send(name, value, key=f"K{number}", headers={"desk": "north"})
        await producer.send(name, b'{"id": 60, "side": "%s"}' % MARKUP.replace('"', "'").encode())
        await producer.flush()
    return name


def rows(page: Page) -> Locator:
    return page.locator("[data-records] tbody tr[data-key]")


def heads(page: Page) -> Locator:
    return page.locator("[data-records]").get_by_role("columnheader")


async def opened(page: Page, stage: Stage, topic: str, query: str = "") -> None:
    await settled(page, stage.at(f"/topics/{topic}/records{query}"))


async def test_fields_become_columns_that_the_topic_remembers(page: Page, stage: Stage, topic: str) -> None:
    await opened(page, stage, topic)
    await expect(heads(page)).to_have_count(7)
    await page.get_by_text("Columns", exact=True).click()
    await page.get_by_role("checkbox", name="price").click()
    await page.wait_for_url("**fields=price")
    await page.locator("html[data-ready]").wait_for(state="attached")
    await page.get_by_text("Columns", exact=True).click()
    await page.get_by_label("Another field").fill("user.name")
    await page.get_by_label("Another field").press("Enter")
    await page.wait_for_url("**fields=price%2Cuser.name")
    shown = ["Time UTC", "Partition", "Offset", "Key", "price", "user.name", "Value", "Size", "Headers"]
    await expect(heads(page)).to_have_text(shown)
    await expect(rows(page).nth(1).get_by_role("cell").nth(4)).to_have_text("59.50")  # with its digits
    await expect(rows(page).nth(1).get_by_role("cell").nth(5)).to_have_text("anna")
    await expect(rows(page).first.get_by_role("cell").nth(4)).to_have_text("–")
    await axe(page)
    await shot(page, "records-fields")
    await opened(page, stage, topic, "?start=beginning")  # an address without fields
    await page.wait_for_url("**?start=beginning&fields=price%2Cuser.name")
    await expect(rows(page).first.get_by_role("cell").nth(4)).to_have_text("0.50")
    await opened(page, stage, "quotes")
    await expect(heads(page)).to_have_count(7)  # of that topic alone


async def test_fields_stand_in_a_live_list_and_are_text(page: Page, stage: Stage, topic: str) -> None:
    await opened(page, stage, topic, "?start=live&fields=side")
    async with comet.Producer(stage.broker) as producer:
        await producer.send(topic, b'{"side": "%s"}' % MARKUP.replace('"', "'").encode())
        await producer.flush()
    cell = rows(page).first.get_by_role("cell").nth(4)
    await expect(cell).to_have_text(MARKUP.replace('"', "'"))
    assert await cell.locator("*").count() == 0
    await expect(page).not_to_have_title("stolen")


async def test_a_faulty_field_is_said(page: Page, stage: Stage, topic: str) -> None:
    await page.goto(stage.at(f"/topics/{topic}/records?fields=a%20b"))
    await expect(
        page.get_by_role("alert").filter(has_text="fields, at character 3: a comma is missing")
    ).to_be_visible()


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("side>150", "side holds texts such as “buy”, and > 150 compares numbers."),
        ("prise>1", "No record has the field prise: they have id, "),
        ("price~5", "price holds numbers such as"),
    ],
)
async def test_a_filter_that_finds_nothing_is_explained(
    page: Page, stage: Stage, topic: str, condition: str, said: str
) -> None:
    await opened(page, stage, topic)
    await page.get_by_label("Filter", exact=True).fill(f"id<60 && {condition}")
    await page.get_by_role("button", name="Search").click()
    await expect(page.get_by_text(said)).to_be_visible()
    await expect(rows(page)).to_have_count(0)


async def test_a_row_opens_below_itself(page: Page, stage: Stage, topic: str) -> None:
    await opened(page, stage, topic)
    button = rows(page).nth(1).get_by_role("button", name="Show the record here")
    await button.focus()
    await page.keyboard.press("Enter")
    await expect(button).to_have_attribute("aria-expanded", "true")
    inside = page.locator("tr.opened")
    await expect(inside).to_contain_text("0, 59")
    await expect(inside).to_contain_text("K59")
    await expect(inside).to_contain_text("north")
    await expect(inside.get_by_role("tabpanel", name="Value")).to_contain_text('"anna"')
    await inside.get_by_role("tab", name="Raw").click()
    await expect(inside.locator("pre")).to_contain_text('"price": 59.50')
    await expect(page.locator("aside.record")).to_have_count(0)
    await axe(page)
    await shot(page, "records-opened")
    await button.click()
    await expect(inside).to_have_count(0)
    await rows(page).first.get_by_role("button", name="Show the record here").click()
    await expect(inside.get_by_role("tabpanel", name="Value")).to_contain_text("<img src=x")
    await expect(page).not_to_have_title("stolen")


async def test_a_filter_is_saved_for_its_user_and_removed(page: Page, stage: Stage, topic: str) -> None:
    await opened(page, stage, topic, "?filter=id%3C3&start=beginning")
    await page.get_by_text("Saved", exact=True).click()
    await page.get_by_label("Name of the filter").fill("the first")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("link", name="the first")).to_be_visible()
    await axe(page)
    await opened(page, stage, topic)
    await page.get_by_text("Saved", exact=True).click()
    await page.get_by_role("link", name="the first").click()
    await page.wait_for_url("**?filter=id%3C3&start=beginning")
    await expect(rows(page)).to_have_count(3)
    await page.locator("html[data-ready]").wait_for(state="attached")
    await page.get_by_text("Saved", exact=True).click()
    await page.get_by_role("button", name="Remove the filter the first").click()
    await expect(page.get_by_text("No saved filter of this topic yet.")).to_be_visible()
    await page.reload()
    await page.locator("html[data-ready]").wait_for(state="attached")
    await page.get_by_text("Saved", exact=True).click()
    await expect(page.get_by_text("No saved filter of this topic yet.")).to_be_visible()


async def test_a_narrow_screen_shows_the_first_field(browser: Browser, stage: Stage, topic: str) -> None:
    async with watched(browser, viewport={"width": 390, "height": 844}, color_scheme="dark") as found:
        page = await found.context.new_page()
        await opened(page, stage, topic, "?fields=price,user.name")
        await expect(rows(page).nth(1).locator("td").nth(4)).to_be_visible()
        await expect(rows(page).nth(1).locator("td").nth(4)).to_have_text("59.50")
        await expect(rows(page).nth(1).get_by_text("anna", exact=True)).not_to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await rows(page).nth(1).get_by_role("button", name="Show the record here").click()
        await expect(page.locator("tr.opened").get_by_role("tabpanel", name="Value")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await axe(page)


async def test_without_storage_the_page_works(page: Page, context: Watched, stage: Stage, topic: str) -> None:
    await context.context.add_init_script(
        "Object.defineProperty(window, 'localStorage', {get() { throw new Error('no'); }})"
    )
    await opened(page, stage, topic, "?fields=price")
    await expect(rows(page).nth(1).get_by_role("cell").nth(4)).to_have_text("59.50")
