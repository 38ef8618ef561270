"""A topic as a table of keys: the list follows changes, one key with its history, writes on a condition and their
conflicts, deletion, refusals."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

import comet
from comet.cli._gateway_process import GatewayProcess
from comet.cli._local_cluster import LocalCluster
from tests.browser.axe import axe
from tests.browser.conftest import Stage, Watched, live, settled, shot, watched
from tests.browser.seed import MARKUP
from tests.browser.test_topic import guarded, token

_NUMBERS = count(1)
SLOW_MS = 60_000  # that a broker may take to be missed, and to be back
QUOTE = '{"bid": 1.0800, "ask": 1.0801}'


@pytest_asyncio.fixture(loop_scope="package")
async def topic(stage: Stage) -> str:
    """A compacted topic with 60 limits, and EURUSD with three revisions."""
    name = f"keys-{next(_NUMBERS)}"
    async with comet.Admin(stage.broker) as admin:
        await admin.create_topic(name, partitions=3, cleanup_policy="compact")
    async with comet.KV(stage.broker, name) as kv:
        for number in range(60):
            await kv.put(f"limit.{number:02}", b'{"limit": %d}' % number)
        for value in (b"1.07", b"1.075", QUOTE.encode()):
            await kv.put("EURUSD", value)
    return name


def keys(page: Page) -> Locator:
    return page.locator('[data-table="keys"] tbody tr')


def history(page: Page) -> Locator:
    return page.locator('[data-table="history"] tbody tr')


def looked_up(page: Page) -> Locator:
    return page.locator("[data-looked]")


def dialog(page: Page) -> Locator:
    return page.locator("dialog[open]")


def told(page: Page, text: str) -> Locator:
    return page.locator("#toasts").filter(has_text=text)


async def opened(page: Page, stage: Stage, topic: str, query: str = "") -> None:
    await settled(page, stage.at(f"/topics/{topic}/keys{query}"))


# ---- reading


async def test_keys_are_listed_in_pages_and_by_prefix(page: Page, stage: Stage, topic: str) -> None:
    await settled(page, stage.at(f"/topics/{topic}"))
    await page.get_by_role("link", name="Keys", exact=True).click()
    await live(page)
    await expect(keys(page)).to_have_count(50)
    await expect(keys(page).first).to_contain_text("EURUSD")
    await page.get_by_role("link", name="Next page").click()
    await live(page)
    await expect(keys(page)).to_have_count(11)
    await expect(keys(page).last).to_contain_text("limit.59")
    await expect(page.get_by_role("link", name="Next page")).to_have_count(0)
    await page.get_by_role("link", name="First page").click()
    await live(page)
    await page.get_by_label("Prefix").fill("limit.1")
    await page.get_by_role("button", name="Search").click()
    await live(page)
    await expect(keys(page)).to_have_count(10)
    await shot(page, "keys")
    await axe(page)
    await settled(page, stage.at("/topics/quotes"))  # not compacted
    await expect(page.get_by_role("link", name="Keys", exact=True)).to_have_count(0)


async def test_the_list_follows_changes(page: Page, stage: Stage, topic: str) -> None:
    await opened(page, stage, topic, "?prefix=limit.0")
    await expect(keys(page)).to_have_count(10)
    async with comet.KV(stage.broker, topic) as kv:
        await kv.put("limit.03", b"changed")
        await expect(keys(page).nth(3)).to_contain_text("changed")
        await kv.put("limit.033", b"new")
        await expect(keys(page).nth(4)).to_contain_text("limit.033")
        await kv.delete("limit.00")
        await expect(keys(page).first).to_contain_text("limit.01")
        for entry in await kv.entries("limit.0"):
            await kv.delete(entry.key)
    await expect(page.get_by_text("No key begins with this")).to_be_visible()


async def test_one_key_has_its_value_and_its_history(page: Page, stage: Stage, topic: str) -> None:
    await opened(page, stage, topic)
    await keys(page).first.click()
    await page.wait_for_url("**key=EURUSD")
    await live(page)
    await expect(looked_up(page).locator(".tree")).to_contain_text("bid: 1.0800")  # every digit
    await expect(looked_up(page).locator("[data-status]")).to_contain_text("revision")
    await expect(history(page)).to_have_count(3)
    await axe(page)
    await shot(page, "keys-one")
    await history(page).nth(1).click()
    panel = page.get_by_role("dialog")
    await expect(panel).to_contain_text("1.075")
    await page.keyboard.press("Escape")
    await expect(panel).to_have_count(0)
    await page.get_by_role("heading", level=1).hover()
    async with comet.KV(stage.broker, topic) as kv:
        await kv.put("EURUSD", b"later")
        await expect(looked_up(page).locator("[data-content]")).to_contain_text("later")
        # Rows keep their places while the focus is among them.
        await page.locator('[data-table="history"]').get_by_role("button", name="List changed").click()
        await expect(history(page)).to_have_count(4)
        await kv.delete("EURUSD")
        await expect(looked_up(page)).to_contain_text("deleted by revision")
    await expect(history(page).first).to_contain_text("deleted")
    await expect(page.get_by_role("button", name="Delete key")).to_be_hidden()
    await expect(looked_up(page).get_by_role("button", name="Set", exact=True)).to_be_visible()


async def test_keys_and_values_of_any_bytes_are_shown_and_written(page: Page, stage: Stage, topic: str) -> None:
    key = b"\xff\xfe/\x00"
    async with comet.KV(stage.broker, topic) as kv, comet.Producer(stage.broker) as producer:
        await kv.put(key, bytes(range(256)))
        await producer.send(topic, MARKUP.encode(), key=MARKUP.encode(), headers={"desk": MARKUP})
        await producer.flush()
        await opened(page, stage, topic)
        await keys(page).filter(has_text="img src").click()
        await expect(looked_up(page)).to_contain_text("Headers · 1")
        await expect(looked_up(page).locator("pre")).to_have_text(MARKUP)
        assert await page.title() != "stolen"
        await page.get_by_role("link", name="Close the key").click()
        await opened(page, stage, topic, "?key_base64=%2F%2F4vAA%3D%3D")
        await expect(looked_up(page).locator("pre")).to_contain_text("0000f0  f0 f1 f2")
        await page.get_by_role("button", name="Edit").click()
        await expect(dialog(page).get_by_label("Value as")).to_have_value("base64")
        await dialog(page).get_by_label("Value", exact=True).fill("AAE=")
        await dialog(page).get_by_role("button", name="Write").click()
        await expect(looked_up(page).locator("pre")).to_contain_text("000000  00 01")
        entry = await kv.get(key)
    assert entry is not None
    assert entry.value == b"\x00\x01"


async def test_a_topic_without_keys_says_how_to_get_some(page: Page, stage: Stage) -> None:
    async with comet.Admin(stage.broker) as admin:
        await admin.create_topic("no-keys", partitions=1, cleanup_policy="compact-delete")
    await opened(page, stage, "no-keys")
    await expect(page.get_by_text("comet kv put no-keys KEY VALUE")).to_be_visible()
    await opened(page, stage, "no-keys", "?key=none")
    await expect(page.get_by_text("has no value, and the log has no revision of it")).to_be_visible()
    await page.goto(stage.at("/topics/no-keys/keys?key_base64=x"))
    await expect(page.get_by_role("alert")).to_contain_text("look the key up in the list")


# ---- writing


async def test_a_key_is_made_once(page: Page, stage: Stage, topic: str) -> None:
    await opened(page, stage, topic)
    await page.get_by_role("button", name="New key").click()
    await dialog(page).get_by_label("Key", exact=True).fill("GBP/USD é")
    value = dialog(page).get_by_label("Value", exact=True)
    await value.fill('{"bid": tru}')
    await expect(dialog(page).get_by_text("invalid JSON")).to_be_visible()
    await value.fill('{"bid": 1.250}')
    await axe(page)
    await dialog(page).get_by_role("button", name="Write").click()
    await page.wait_for_url("**key=GBP*")
    await live(page)
    await expect(looked_up(page).locator(".tree")).to_contain_text("bid: 1.250")
    async with comet.KV(stage.broker, topic) as kv:
        entry = await kv.get("GBP/USD é")
        assert entry is not None
        assert entry.value == b'{"bid": 1.250}'


async def test_a_new_key_that_another_client_made_first(context: Watched, page: Page, stage: Stage, topic: str) -> None:
    context.expected = ("412",)
    await opened(page, stage, topic)
    await page.get_by_role("button", name="New key").click()
    await dialog(page).get_by_label("Key", exact=True).fill("EURUSD")
    await dialog(page).get_by_label("Value", exact=True).fill("2")
    await dialog(page).get_by_role("button", name="Write").click()
    conflict = dialog(page).locator(".conflict")
    await expect(conflict).to_contain_text("Nothing was written. Another client was faster. Revision")
    await expect(conflict).to_contain_text(QUOTE)
    await dialog(page).get_by_label("Write", exact=True).select_option("always")
    await dialog(page).get_by_role("button", name="Write").click()
    await page.wait_for_url("**key=EURUSD")
    async with comet.KV(stage.broker, topic) as kv:
        entry = await kv.get("EURUSD")
        assert entry is not None
        assert entry.value == b"2"


async def test_a_conflict_says_who_won_and_loads_it(context: Watched, page: Page, stage: Stage, topic: str) -> None:
    context.expected = ("412", "404")
    await opened(page, stage, topic, "?key=EURUSD")
    await page.get_by_role("button", name="Edit").click()
    value = dialog(page).get_by_label("Value", exact=True)
    await expect(value).to_have_value('{\n  "bid": 1.0800,\n  "ask": 1.0801\n}')
    async with comet.KV(stage.broker, topic) as kv:
        won = await kv.put("EURUSD", b'{"bid": 1.2}')
        await value.fill('{"bid": 9}')
        await dialog(page).get_by_role("button", name="Write").click()
        conflict = dialog(page).locator(".conflict")
        await expect(conflict).to_contain_text(f'Revision {won} is the current one, with the value {{"bid": 1.2}}')
        await axe(page)
        await shot(page, "keys-conflict")
        await conflict.get_by_role("button", name=f"Load revision {won}").click()
        await expect(value).to_have_value('{\n  "bid": 1.2\n}')
        await expect(dialog(page).get_by_label("Write", exact=True)).to_have_value(str(won))
        await kv.delete("EURUSD")  # and again
        await dialog(page).get_by_role("button", name="Write").click()
        await expect(conflict).to_contain_text("the key was deleted and has no value now")
        await conflict.get_by_role("button", name="Continue without a value").click()
        await value.fill("1.3")
        await dialog(page).get_by_role("button", name="Write").click()
        await expect(told(page, "of EURUSD written")).to_be_visible()
        await expect(dialog(page)).to_have_count(0)
        entry = await kv.get("EURUSD")
    assert entry is not None
    assert entry.value == b"1.3"
    await expect(looked_up(page).locator("[data-content]")).to_contain_text("1.3")


async def test_a_key_is_deleted_at_the_revision_shown(context: Watched, page: Page, stage: Stage, topic: str) -> None:
    context.expected = ("412",)
    await opened(page, stage, topic, "?key=EURUSD")
    await page.get_by_role("button", name="Delete key").click()
    button = dialog(page).get_by_role("button", name="Delete", exact=True)
    await expect(button).to_be_disabled()
    await dialog(page).get_by_label("Type EURUSD to confirm").fill("EURUSD")
    async with comet.KV(stage.broker, topic) as kv:
        won = await kv.put("EURUSD", b"kept")
        await button.click()
        conflict = dialog(page).locator(".conflict")
        await expect(conflict).to_contain_text(f"Revision {won} is the current one, with the value kept")
        assert await kv.get("EURUSD") is not None
        await conflict.get_by_role("button", name=f"Load revision {won}").click()
        await expect(dialog(page).locator("dl")).to_contain_text(str(won))
        await button.click()
        await expect(told(page, "EURUSD deleted by revision")).to_be_visible()
        await expect(looked_up(page)).to_contain_text("deleted by revision")
        revisions = await kv.history("EURUSD")
    assert (revisions[0].deleted, revisions[0].ended) == (True, won)


@pytest.mark.parametrize("key", [".", ".."])
async def test_a_key_that_no_browser_can_name_is_refused(page: Page, stage: Stage, topic: str, key: str) -> None:
    await opened(page, stage, topic)
    await page.get_by_role("button", name="New key").click()
    await dialog(page).get_by_label("Key", exact=True).fill(key)
    await dialog(page).get_by_label("Value", exact=True).fill("1")
    await dialog(page).get_by_role("button", name="Write").click()
    await expect(dialog(page).get_by_role("alert")).to_contain_text("A browser cannot name this key")


async def test_an_operator_writes_and_a_viewer_reads(
    browser: Browser, stage: Stage, topic: str, tmp_path: Path
) -> None:
    with guarded(stage, tmp_path) as url:
        for name in ("worker", "reader"):
            async with watched(browser) as found:
                page = await found.context.new_page()
                await page.goto(f"{url}/login?next=/topics/{topic}/keys%3Fkey=EURUSD")
                await page.get_by_label("Token").fill(token(name))
                await page.get_by_role("button", name="Log in").click()
                await live(page)
                await expect(looked_up(page)).to_be_visible()
                await page.get_by_role("button", name="Edit").focus()
                await page.keyboard.press("Enter")
                if name == "reader":
                    text = "needs the role operator; you are viewer"
                    await expect(told(page, text)).to_be_visible()
                    await expect(dialog(page)).to_have_count(0)
                    continue
                await dialog(page).get_by_label("Value", exact=True).fill("7")
                await dialog(page).get_by_role("button", name="Write").click()
                await expect(looked_up(page).locator("[data-content]")).to_contain_text("7")


# ---- narrow, and without scripts


async def test_a_key_is_edited_on_a_telephone(browser: Browser, stage: Stage, topic: str) -> None:
    async with watched(browser, viewport={"width": 360, "height": 740}) as found:
        page = await found.context.new_page()
        await opened(page, stage, topic, "?key=EURUSD")
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360
        await page.get_by_role("button", name="Edit").click()
        await expect(dialog(page).get_by_role("button", name="Write")).to_be_visible()
        await shot(page, "keys-phone")


async def test_keys_are_read_without_scripts(browser: Browser, stage: Stage, topic: str) -> None:
    async with watched(browser, java_script_enabled=False) as found:
        page = await found.context.new_page()
        await page.goto(stage.at(f"/topics/{topic}/keys?key=EURUSD"))
        await expect(looked_up(page).locator("[data-content]")).to_have_text(QUOTE)
        await expect(history(page)).to_have_count(3)
        await page.get_by_label("Key", exact=True).fill("limit.07")
        await page.get_by_role("button", name="Search").click()
        await expect(looked_up(page).locator("[data-content]")).to_have_text('{"limit": 7}')


# ---- without a leader


async def test_a_leader_that_is_away_is_told_and_comes_back(
    context: Watched, page: Page, browser: Browser, tmp_path: Path
) -> None:
    """Of three brokers, the only one with the topic's partition is killed."""
    local = LocalCluster(tmp_path, 3, port=0, settings={"metrics_port": "0"})
    with ExitStack() as stack:
        stack.callback(local.stop)
        await asyncio.to_thread(local.start)
        gateway = GatewayProcess(local.addresses, 0, tmp_path)
        stack.callback(gateway.child.stop)
        url = await asyncio.to_thread(gateway.start)
        async with comet.Admin(local.addresses) as admin:
            await admin.create_topic("alone", partitions=1, replicas=1, cleanup_policy="compact")
            (leader,) = (await admin.describe_topic("alone")).partitions[0].replicas
        async with comet.KV(local.addresses, "alone") as kv:
            await kv.put("EURUSD", b"1.08")
        await settled(page, f"{url}/topics/alone/keys?key=EURUSD")
        victim = local.brokers[leader - 1]
        victim.kill()
        # The open page keeps its rows, and says that they are not current.
        alert = page.get_by_role("alert").filter(has_text="Partition 0 has no leader, so that keys cannot be read or")
        await expect(alert).to_be_visible(timeout=SLOW_MS)
        await expect(keys(page)).to_contain_text("1.08")
        async with watched(browser) as found:
            other = await found.context.new_page()
            await other.goto(f"{url}/topics/alone/keys?key=EURUSD")
            await expect(other.get_by_role("alert")).to_contain_text("elect a leader on the tab Partitions")
            await expect(other.get_by_text("Keys are not read yet")).to_be_visible()
            await expect(looked_up(other).get_by_role("button", name="Set", exact=True)).to_be_hidden()
            await shot(other, "keys-no-leader")
            victim.start()
            for shown in (page, other):
                await expect(shown.get_by_role("alert").filter(has_text="no leader")).to_have_count(0, timeout=SLOW_MS)
                await expect(keys(shown)).to_contain_text("1.08")
                await expect(looked_up(shown).locator("[data-content]")).to_contain_text("1.08")
        await page.goto("about:blank")  # before its gateway stops
