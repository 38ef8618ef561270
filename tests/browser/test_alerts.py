"""Alerts on their page: made in a form, told by webhook, e-mail and notification, acknowledged, muted, deleted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

import comet
from tests.browser.axe import BY_LOOKS, axe
from tests.browser.conftest import Stage, settled, shot, stage_up, watched
from tests.integration.alert_targets import MailReceiver, Receiver, mail_receiver, receiver
from tests.waiting import until, until_answered

PATIENCE_S = 60
SHOWN = """
window.shown = [];
window.Notification = class extends EventTarget {
  static permission = "granted";
  static requestPermission() { return Promise.resolve("granted"); }
  constructor(title, options) { super(); window.shown.push({title, ...options}); }
};
"""


@pytest_asyncio.fixture(loop_scope="package")
async def mail() -> AsyncIterator[MailReceiver]:
    async with mail_receiver() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="package")
async def hook() -> AsyncIterator[Receiver]:
    async with receiver() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="package")
async def alerting(mail: MailReceiver, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    """A cluster of its own, whose gateway may call this machine and has a mail server."""
    settings = {
        "ALERT_NETWORKS": "127.0.0.0/8",
        "SMTP_SERVER": f"127.0.0.1:{mail.port}",
        "SMTP_SECURITY": "none",
        "SMTP_FROM": "alerts@example.com",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"COMET_GATEWAY_{name}", value)
    with stage_up() as found:
        async with comet.Admin(found.broker) as admin:
            await admin.create_topic("prices")
        yield found


def cell(page: Page, column: int) -> Locator:
    return page.locator('[data-table="alerts"] tbody tr').first.locator("td").nth(column)


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


async def create(page: Page, hook: Receiver) -> None:
    """Fills in the form for a number in records."""
    await page.locator("[data-action=new-alert]").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Watches").select_option("lag")
    await expect(dialog.get_by_label("Group")).to_be_visible()
    await expect(dialog.get_by_label("Field")).to_be_hidden()
    await dialog.get_by_label("Watches").select_option("value")
    await expect(dialog.get_by_label("Group")).to_be_hidden()
    await dialog.get_by_label("Name").fill("ACME above 150")
    await dialog.get_by_label("Severity").select_option("critical")
    await dialog.get_by_label("Topic").fill("prices")
    await dialog.get_by_label("Filter of records").fill("side=buy or")
    await dialog.get_by_label("Field").fill("price")
    await dialog.get_by_label("Threshold").fill("150")
    await dialog.get_by_label("Webhooks").fill(hook.url)
    await dialog.get_by_label("E-mail to").fill("ops@example.com")
    await axe(page)
    await button(page, "Create").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("filter, at character")
    await dialog.get_by_label("Filter of records").fill("side=buy")
    await button(page, "Create").click()
    await expect(cell(page, 1)).to_have_text("ACME above 150")


async def test_an_alert_is_made_fires_everywhere_and_is_acted_on(
    browser: Browser, alerting: Stage, hook: Receiver, mail: MailReceiver
) -> None:
    async with watched(browser) as context, comet.Producer(alerting.broker) as producer:
        context.expected = ("400 (Bad Request)",)  # the condition that does not parse
        await context.context.add_init_script(SHOWN)
        page = await context.context.new_page()
        await page.clock.install()
        await settled(page, alerting.at("/alerts"))
        await expect(page.get_by_text("No alerts", exact=True)).to_be_visible()
        await create(page, hook)
        await button(page, "Show notifications here").click()
        await expect(button(page, "Stop notifications here")).to_be_visible()

        async def fires() -> bool:
            await producer.publish("prices", json.dumps({"side": "buy", "price": 151.5}).encode())
            return "firing" in await cell(page, 2).inner_text()

        assert await until_answered(fires, within_s=PATIENCE_S, every_s=0.2)
        await expect(page.locator('[data-table="deliveries"] tbody tr')).to_have_count(2)
        assert [call.document["text"] for call in hook.calls] == ["price is 151.5"]
        assert "Subject: [critical] ACME above 150: firing" in mail.messages[0]

        async def shown() -> list[str]:
            found: list[str] = await page.evaluate("window.shown.map(one => one.title)")
            return found

        assert await shown() == ["Firing: ACME above 150"]
        await shot(page, "alerts-light")

        await page.locator('[data-table="alerts"] tbody [data-pick]').check()
        await button(page, "Acknowledge").click()
        await expect(cell(page, 2)).to_contain_text("firing, acknowledged")
        await button(page, "Mute").click()
        await page.get_by_role("dialog").get_by_role("button", name="Mute").click()
        await expect(cell(page, 2)).to_contain_text("muted")

        # A hidden page keeps its connection for notices alone.
        await page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
        await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await page.clock.fast_forward(60_000)
        await button(page, "Test").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog.get_by_role("listitem")).to_have_count(3)
        await expect(dialog).not_to_contain_text("failed")

        async def tested() -> bool:
            return "Test: ACME above 150" in await shown()

        assert await until_answered(tested, within_s=PATIENCE_S)
        await page.evaluate("Object.defineProperty(document, 'hidden', {value: false, configurable: true})")
        await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await button(page, "Close").click()
        await expect(page.locator('[data-table="deliveries"] tbody tr')).to_have_count(5)
        assert await until(lambda: len(mail.messages) == 2, within_s=PATIENCE_S)

        await button(page, "Edit").click()
        await expect(dialog.get_by_label("Webhooks")).to_have_value(hook.url)
        await dialog.get_by_label("Name").fill("ACME is high")
        await button(page, "Save").click()
        await expect(cell(page, 1)).to_have_text("ACME is high")
        await axe(page)
        await button(page, "Delete").click()
        await dialog.get_by_role("button", name="Delete").click()
        await expect(page.get_by_text("No alerts", exact=True)).to_be_visible()
        await expect(page.locator('[data-table="events"] tbody tr').first).to_contain_text("deleted")


async def test_it_says_that_a_browser_denies_notifications_and_fits_a_phone(
    browser: Browser, alerting: Stage, hook: Receiver
) -> None:
    denied = SHOWN.replace("granted", "denied")
    options = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
    async with watched(browser, **options) as context:
        context.expected = ("400 (Bad Request)",)
        await context.context.add_init_script(denied)
        page = await context.context.new_page()
        await settled(page, alerting.at("/alerts"))
        await expect(page.get_by_text("This browser does not allow notifications for this address")).to_be_visible()
        await expect(page.locator("[data-notify]")).to_be_hidden()
        await create(page, hook)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await axe(page, rules=BY_LOOKS)
        await shot(page, "alerts-dark-narrow")
