"""The command palette, by keyboard alone, and the switch between clusters."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.browser.axe import axe
from tests.browser.conftest import Stage, Watched, settled, shot, stage_up, watched


def field(page: Page) -> Locator:
    return page.get_by_role("combobox", name="Find a page, topic, group, broker or action")


def options(page: Page) -> Locator:
    return page.get_by_role("listbox", name="Found").get_by_role("option")


async def opened(page: Page, text: str = "") -> None:
    await page.keyboard.press("Control+k")
    await expect(field(page)).to_be_focused()
    await page.keyboard.type(text)


async def test_a_topic_is_reached_by_keys_alone(page: Page, stage: Stage) -> None:
    await settled(page, stage.at("/"))
    await opened(page, "quot")
    await expect(options(page).nth(1)).to_contain_text("quotes")
    await expect(options(page).first).to_have_attribute("aria-selected", "true")
    await page.keyboard.press("ArrowDown")
    await expect(options(page).nth(1)).to_have_attribute("aria-selected", "true")
    active = await options(page).nth(1).get_attribute("id")
    assert active
    await expect(field(page)).to_have_attribute("aria-activedescendant", active)
    await axe(page)
    await shot(page, "palette")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/topics/quotes")


async def test_an_action_opens_where_it_is(page: Page, stage: Stage) -> None:
    await settled(page, stage.at("/"))
    await opened(page, "reset")
    await expect(options(page)).to_have_text(["Reset offsets of …Action"])
    await page.keyboard.press("Enter")
    await expect(field(page)).to_have_value("Reset offsets of ")
    await expect(options(page)).to_have_text(["Reset offsets of engineGroup"])
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/groups/engine")
    await expect(page.get_by_role("dialog", name="Reset offsets of engine")).to_be_visible()
    await page.keyboard.press("Escape")
    await opened(page, "reset eng")
    await expect(options(page)).to_have_count(1)
    await page.keyboard.press("Enter")  # this page has it: nothing is loaded
    await expect(page.get_by_role("dialog", name="Reset offsets of engine")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert await page.evaluate("sessionStorage.getItem('comet.act')") is None  # a reload does not do it again


async def test_the_focus_returns_and_nothing_found_is_said(page: Page, stage: Stage) -> None:
    await settled(page, stage.at("/topics"))
    await page.get_by_role("searchbox").focus()
    await opened(page, "zzzz")  # also from a text field
    await expect(page.get_by_text("Nothing matches “zzzz”.")).to_be_visible()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Escape")
    await expect(field(page)).to_have_count(0)
    await expect(page.get_by_role("searchbox")).to_be_focused()
    button = page.get_by_role("button", name="Find or do")
    await button.click()
    await expect(field(page)).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(button).to_be_focused()


async def test_the_answer_of_an_old_query_is_not_shown(page: Page, stage: Stage) -> None:
    await settled(page, stage.at("/"))
    await opened(page, "engine")
    await expect(options(page)).to_have_text(["engineGroup"])
    await field(page).fill("empty")
    await expect(options(page)).to_have_text(["emptyTopic"])


async def test_a_gateway_that_is_gone_is_said(page: Page, context: Watched, stage: Stage) -> None:
    context.expected = ("net::ERR",)
    await settled(page, stage.at("/"))
    await page.route("**/palette?*", lambda route: route.abort())
    await opened(page, "orders")
    await expect(page.get_by_text("The gateway does not answer")).to_be_visible()


@pytest.mark.parametrize("size", [(1440, 900), (360, 740)])
async def test_another_cluster_is_one_click_away(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    monkeypatch.setenv("COMET_GATEWAY_CLUSTER_NAME", "staging")
    monkeypatch.setenv("COMET_GATEWAY_CLUSTERS", "prod=https://comet.example.com,staging=http://localhost:8080")
    with stage_up() as stage:
        async with watched(browser, viewport={"width": size[0], "height": size[1]}) as found:
            page = await found.context.new_page()
            await settled(page, stage.at("/brokers"))
            await expect(page).to_have_title("Brokers · staging")
            await page.locator("summary.cluster").press("Enter")
            links = page.locator(".clusters").get_by_role("link")
            await expect(links).to_have_text(["prod", "staging"])
            await expect(links.first).to_have_attribute("href", "https://comet.example.com")
            await expect(links.last).to_have_attribute("aria-current", "true")
            await axe(page)
            await page.keyboard.press("Escape")
            await expect(links.first).not_to_be_visible()
