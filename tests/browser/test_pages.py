"""Pages as a whole."""

from __future__ import annotations

from playwright.async_api import Page

from tests.browser.conftest import Stage


async def test_the_page_of_the_api_draws(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/docs"))
    await page.get_by_text("Comet").first.wait_for()
