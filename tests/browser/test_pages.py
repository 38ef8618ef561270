"""Pages as a whole."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.axe import axe
from tests.browser.conftest import Stage, shot, watched


async def test_the_page_of_the_api_is_a_page_of_the_dashboard(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/docs"))
    await expect(page.get_by_text("Write, read and follow topics")).to_be_visible()
    await expect(page.locator("html[data-ready]")).to_have_attribute("data-page", "api")
    await expect(page.get_by_role("link", name="API", exact=True)).to_have_attribute("aria-current", "page")
    await page.locator("#nav").get_by_role("link", name="Topics").click()
    await page.wait_for_url(stage.at("/topics"))


@pytest.mark.parametrize("look", ["light", "dark"])
async def test_the_page_of_the_api_is_readable_in_both_themes(browser: Browser, stage: Stage, look: str) -> None:
    async with watched(browser, color_scheme=look, viewport={"width": 390, "height": 844}) as found:
        page = await found.context.new_page()
        await page.goto(stage.at("/docs"))
        operation = page.locator(".opblock-post").first
        await operation.get_by_role("button").first.click()
        await expect(operation.get_by_text("Requires the role operator")).to_be_visible()
        await axe(page, rules=["color-contrast"])
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await shot(page, f"api-{look}")
