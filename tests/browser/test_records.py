"""A topic's records: the live tail, searches, the panel of a record, Produce, export; with hostile and huge values."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

import comet
from tests.browser.axe import axe
from tests.browser.conftest import Stage, Watched, live, settled, shot, watched
from tests.browser.seed import MARKUP

SECOND = 1_000_000
_NUMBERS = count(1)


@pytest_asyncio.fixture(loop_scope="package")
async def producer(stage: Stage) -> AsyncIterator[comet.Producer]:
    async with comet.Producer(stage.broker) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="package")
async def topic(stage: Stage) -> str:
    """A topic of its own, with one partition."""
    name = f"records-{next(_NUMBERS)}"
    async with comet.Admin(stage.broker) as admin:
        await admin.create_topic(name, partitions=1)
    return name


@pytest_asyncio.fixture(loop_scope="package")
async def trades(topic: str, producer: comet.Producer) -> str:
    """One of 120 trades, a second apart."""
    for number in range(120):
        value = b'{"n": %d, "side": "%b"}' % (number, (b"buy", b"sell")[number % 2])
        await producer.send(topic, value, key=f"K{number % 3}", timestamp_us=number * SECOND, headers={"desk": "north"})
    await producer.flush()
    return topic


def rows(page: Page) -> Locator:
    return page.locator("[data-records] tbody tr")


def ask(page: Page) -> Locator:
    return page.get_by_role("search", name="Records")


def panel(page: Page) -> Locator:
    return page.locator("aside.record")


def dialog(page: Page) -> Locator:
    return page.locator("dialog[open]")


async def opened(page: Page, stage: Stage, topic: str, query: str = "") -> None:
    await settled(page, stage.at(f"/topics/{topic}/records{query}"))


# ---- what is there at first


async def test_the_newest_are_there_before_any_script(browser: Browser, stage: Stage, trades: str) -> None:
    async with watched(browser, java_script_enabled=False) as found:
        page = await found.context.new_page()
        await page.goto(stage.at(f"/topics/{trades}/records"))
        await expect(rows(page)).to_have_count(50)
        cells = rows(page).first.get_by_role("cell")
        await expect(cells.nth(0)).to_have_text("1970-01-01 00:01:59.000")
        await expect(cells.nth(2)).to_have_text("119")
        await expect(cells.nth(3)).to_have_text("K2")
        await expect(cells.nth(4)).to_have_text('{"n": 119, "side": "sell"}')
        await expect(page.get_by_text("Newest 50 of ~120")).to_be_visible()
        await ask(page).get_by_label("Filter", exact=True).fill("n<100 && side=buy")
        await ask(page).get_by_label("Key", exact=True).fill("k1")
        await page.get_by_role("button", name="Search").click()
        await expect(rows(page)).to_have_count(16)
        await expect(rows(page).first).to_contain_text('"n": 94')
        await expect(page.get_by_text("16 found · all records scanned in")).to_be_visible()


async def test_the_address_says_where_it_begins(page: Page, stage: Stage, trades: str) -> None:
    await page.goto(stage.at(f"/topics/{trades}/records?start=beginning&limit=200"))
    await expect(rows(page)).to_have_count(120)
    await expect(rows(page).first).to_contain_text('"n": 0,')
    await page.goto(stage.at(f"/topics/{trades}/records?start=time&time=1970-01-01T00:01:50"))
    await expect(rows(page)).to_have_count(10)
    await page.goto(stage.at(f"/topics/{trades}/records?start=offset&partition=0&offset=118"))
    await expect(rows(page)).to_have_count(2)


@pytest.mark.parametrize(
    ("query", "field", "said"),
    [
        ("?filter=n%3E", "filter", "filter, at character 3: the operand is missing"),
        ("?start=offset&offset=4", "partition", "an offset needs a partition: choose one"),
        ("?start=time&time=soon", "time", "'soon' is not a valid time"),
    ],
)
async def test_what_makes_no_sense_is_said_beside_it(
    page: Page, stage: Stage, trades: str, query: str, field: str, said: str
) -> None:
    await page.goto(stage.at(f"/topics/{trades}/records{query}"))
    await expect(page.get_by_role("alert").filter(has_text=said)).to_be_visible()
    await expect(ask(page).locator(f"[name={field}]")).to_have_attribute("aria-invalid", "true")
    await expect(rows(page)).to_have_count(0)
    await page.get_by_role("link", name="Clear").first.click()
    await expect(rows(page)).to_have_count(50)


async def test_an_empty_topic_says_how_to_fill_it(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/topics/empty/records"))
    await expect(page.get_by_role("heading", name="No records yet")).to_be_visible()
    await shot(page, "records-empty")
    await page.goto(stage.at("/topics/quotes/records?key=nobody"))
    await expect(page.get_by_role("heading", name="No records found")).to_be_visible()


# ---- searching


async def test_the_form_writes_the_address(page: Page, stage: Stage, trades: str) -> None:
    await opened(page, stage, trades)
    await ask(page).get_by_label("Header").fill("desk: NORTH")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(r"\?header=desk%3A\+NORTH$"))
    await expect(page.get_by_text("Newest 50 matches")).to_be_visible()
    await live(page)
    await page.get_by_text("Beginning", exact=True).click()
    await expect(page).to_have_url(re.compile(r"start=beginning"))
    await expect(rows(page).first).to_contain_text('"n": 0,')
    await page.go_back()
    await expect(rows(page).first).to_contain_text('"n": 119')
    await live(page)
    await page.get_by_text("Offset", exact=True).first.click()
    await expect(ask(page).get_by_role("textbox", name="Offset")).to_be_focused()


async def test_it_goes_on_where_it_ended(page: Page, stage: Stage, trades: str) -> None:
    await opened(page, stage, trades, "?filter=n>=0")
    more = page.get_by_role("button", name="Load more")
    await more.click()
    await expect(rows(page)).to_have_count(100)
    await more.click()
    await expect(rows(page)).to_have_count(120)
    await expect(more).to_be_hidden()
    await expect(rows(page).last).to_contain_text('"n": 0,')
    numbers = [int(text) for text in await page.locator("[data-records] tbody td:nth-child(3)").all_text_contents()]
    assert numbers == list(range(119, -1, -1))


async def test_what_takes_longer_goes_on_by_itself(
    page: Page, stage: Stage, topic: str, producer: comet.Producer
) -> None:
    for first in range(0, 130_000, 10_000):
        await producer.send_many(topic, [b'{"n":%d}' % number for number in range(first, first + 10_000)])
    await producer.flush()
    await opened(page, stage, topic, "?filter=n=3")
    await expect(rows(page)).to_have_count(1)
    await expect(page.get_by_text("1 found · all records scanned in")).to_be_visible()
    await expect(page.get_by_role("progressbar")).to_be_hidden()
    await expect(page.get_by_role("button", name="Load more")).to_be_hidden()


# ---- live


async def test_what_is_written_comes_on_top_and_can_be_held(
    page: Page, stage: Stage, topic: str, producer: comet.Producer
) -> None:
    async with page.expect_websocket() as connecting:
        await opened(page, stage, topic, "?start=live")
    socket = await connecting.value
    state = page.locator("[data-tail]")
    await expect(state).to_have_text("Live")
    log = page.get_by_role("log")
    await expect(log).to_have_attribute("aria-live", "off")
    await producer.publish(topic, b"first")
    await expect(rows(page)).to_have_count(1)
    await producer.publish(topic, b"second")
    await expect(rows(page)).to_have_count(2)
    await expect(rows(page).first).to_contain_text("second")
    await page.get_by_role("button", name="Pause", exact=True).click()
    await expect(state).to_have_text("Paused")
    for number in range(3):
        await producer.publish(topic, b"held %d" % number)
    resume = page.get_by_role("button", name="3 new · resume")
    await expect(resume).to_be_visible()
    await expect(rows(page)).to_have_count(2)
    await shot(page, "records-paused")
    async with socket.expect_event("framesent", lambda frame: '"rows":true' in frame):
        await resume.click()
    await expect(state).to_have_text("Live")
    await producer.publish(topic, b"after")
    await expect(rows(page).first).to_contain_text("after")
    await expect(page.locator("[data-tail-summary]")).to_contain_text("6 received")
    await page.get_by_role("button", name="Pause updates").click()
    await expect(state).to_have_text("Paused")
    await page.get_by_role("button", name="Resume updates").click()
    await expect(state).to_have_text("Live")


async def test_a_live_tail_takes_filters(page: Page, stage: Stage, topic: str, producer: comet.Producer) -> None:
    await opened(page, stage, topic, "?start=live&filter=n>=10")
    await expect(page.locator("[data-tail]")).to_have_text("Live")
    await (await producer.send_many(topic, [b'{"n": %d}' % number for number in range(13)]))
    await expect(rows(page)).to_have_count(3)
    await expect(rows(page).first).to_contain_text('"n": 12')
    await expect(page.locator("[data-tail-summary]")).to_contain_text("13 received · 3 match")


async def test_marking_text_and_scrolling_away_hold_it(
    page: Page, stage: Stage, topic: str, producer: comet.Producer
) -> None:
    await (await producer.send_many(topic, [b"line %d" % number for number in range(200)]))
    await opened(page, stage, topic, "?start=live&limit=200")
    state = page.locator("[data-tail]")
    await expect(state).to_have_text("Live")
    box = await rows(page).nth(3).locator("td").nth(4).bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 10, box["y"] + 12)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 60, box["y"] + 14, steps=3)
    await page.mouse.up()
    await expect(state).to_have_text("Paused")
    await expect(panel(page)).to_have_count(0)
    await page.get_by_role("button", name="Resume").click()
    await page.evaluate("getSelection().removeAllRanges()")
    await expect(state).to_have_text("Live")
    await page.mouse.wheel(0, 3_000)
    await expect(state).to_have_text("Paused")


async def test_more_than_can_be_read_is_sampled_and_that_is_said(
    page: Page, stage: Stage, topic: str, producer: comet.Producer
) -> None:
    shown: list[int] = []

    def note(frame: str | bytes) -> None:
        if "event" in (message := json.loads(frame)):
            shown.append(len(message["event"]["rows"]))

    page.on("websocket", lambda socket: socket.on("framereceived", note))
    await opened(page, stage, topic, "?start=live")
    await expect(page.locator("[data-tail]")).to_have_text("Live")
    await (await producer.send_many(topic, [b"%d" % number for number in range(5_000)]))
    told = page.locator("[data-tail-summary]")
    await expect(told).to_contain_text("5,000 received")
    await expect(told).to_contain_text(re.compile(r"1 in \d+ shown"))
    await expect(rows(page).first).to_contain_text("4999")
    assert max(shown) <= 30, "in one event, of ten a second; on a machine that stands still there are more of them"


# ---- one record


async def test_a_record_opens_beside_the_list(page: Page, stage: Stage, trades: str) -> None:
    await opened(page, stage, trades)
    await rows(page).nth(1).click()
    shown = panel(page)
    await expect(shown.get_by_role("heading", name=trades)).to_be_focused()
    await expect(shown).to_contain_text("partition 0 · offset 118")
    await expect(shown).to_contain_text("1970-01-01 00:01:58.000000 UTC")
    await expect(shown.get_by_role("row", name="desk north")).to_be_visible()
    await expect(shown.locator(".tree")).to_contain_text('side: "buy"')
    await shot(page, "records-record")
    await shown.get_by_role("tab", name="Raw").click()
    await expect(shown.get_by_label("Value as text")).to_have_text('{"n": 118, "side": "buy"}')
    await page.keyboard.press("ArrowRight")
    await expect(shown.get_by_label("Value in hexadecimal")).to_contain_text("7b 22 6e 22")
    await page.keyboard.press("Escape")
    await expect(shown).to_have_count(0)
    await expect(rows(page).nth(1).get_by_role("link")).to_be_focused()


async def test_an_address_names_a_record(page: Page, stage: Stage, trades: str) -> None:
    await opened(page, stage, trades, "?partition=0&offset=42")
    await expect(panel(page)).to_contain_text("offset 42")
    await expect(rows(page).first).to_have_attribute("aria-selected", "true")
    await page.goto(stage.at(f"/topics/{trades}/records?partition=0&offset=4200"))
    await expect(page.get_by_text("No record at offset 4200 of partition 0")).to_be_visible()  # for a while


async def test_keys_are_enough(page: Page, stage: Stage, trades: str) -> None:
    await opened(page, stage, trades)
    await page.keyboard.press("/")
    await expect(page.locator("[data-search] input:focus")).to_have_count(1)
    await page.keyboard.press("Escape")
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(panel(page)).to_contain_text("offset 118")
    await page.keyboard.press("Escape")
    await expect(panel(page)).to_have_count(0)


async def test_markup_is_text_wherever_it_stands(page: Page, stage: Stage) -> None:
    await opened(page, stage, "orders", "?start=beginning")
    await expect(rows(page).first.get_by_role("cell").nth(3)).to_have_text(MARKUP)
    await rows(page).first.click()
    await expect(panel(page).locator("pre")).to_have_text(MARKUP)
    await expect(panel(page).get_by_role("row", name="source")).to_contain_text(MARKUP)
    await panel(page).get_by_role("button", name="Close the record").click()
    await rows(page).nth(1).click()
    await expect(panel(page).locator(".tree")).to_contain_text("<b>bold</b>")
    await rows(page).nth(2).click(force=True, position={"x": 60, "y": 10})
    await expect(panel(page).locator("pre")).to_contain_text("000010  10 11 12")
    assert await page.title() != "stolen"
    assert await page.locator("main img, aside img").count() == 0


async def test_deep_and_huge_values_are_shown_in_part(
    page: Page, stage: Stage, topic: str, producer: comet.Producer
) -> None:
    async with comet.Admin(stage.broker) as admin:
        await admin.alter_topic(topic, record_bytes_max=4 << 20)
    deep = b'{"a":' * 400 + b"1" + b"}" * 400
    await producer.publish(topic, deep)
    await producer.publish(
        topic, json.dumps({"list": list(range(1_000)), "exact": "N"}).encode().replace(b'"N"', b"1.10")
    )
    await producer.publish(topic, b"x" * (2 << 20))
    await opened(page, stage, topic, "?start=beginning")
    await rows(page).nth(0).click()
    await expect(panel(page).locator("details")).to_have_count(3)
    await panel(page).locator("details:not([open]) > summary").click()
    await expect(panel(page).locator("details")).to_have_count(4)
    await page.keyboard.press("Escape")
    await rows(page).nth(1).click()
    await expect(panel(page)).to_contain_text("exact: 1.10")
    await panel(page).locator("details:not([open]) > summary").click()
    await panel(page).get_by_role("button", name="900 more").click()
    await expect(panel(page).get_by_role("button", name="800 more")).to_be_visible()
    await page.keyboard.press("Escape")
    await rows(page).nth(2).click()
    await expect(panel(page)).to_contain_text("Only the first 131,072 of 2,097,152 bytes are shown")
    async with page.expect_download() as download:
        await panel(page).get_by_role("link", name="Download all").click()
    path = await (await download.value).path()
    assert path.stat().st_size == 2 << 20


async def test_columns_are_chosen_and_remembered(page: Page, stage: Stage, trades: str) -> None:
    await opened(page, stage, trades)
    await page.get_by_text("Columns", exact=True).click()
    await page.get_by_label("Headers", exact=True).uncheck()
    head = page.locator('[data-records] th[data-column="headers"]')
    await expect(head).to_be_hidden()
    await page.reload()
    await expect(head).to_be_hidden()


# ---- writing


async def test_a_record_is_written_and_found(page: Page, stage: Stage, topic: str) -> None:
    await opened(page, stage, topic)
    await page.get_by_role("button", name="Produce").first.click()
    box = dialog(page)
    await expect(box.get_by_label("Key", exact=True)).to_be_focused()
    await box.get_by_label("Key", exact=True).fill("EURUSD")
    await box.get_by_label("Value", exact=True).fill('{"bid": ')
    await expect(box.get_by_text("invalid JSON, line 1, column 9: the text ends")).to_be_visible()
    await box.get_by_role("button", name="Produce").click()
    await expect(box).to_be_visible()
    await box.get_by_label("Value", exact=True).fill('{"bid": 12345678901234567890.10}')
    await box.get_by_label("Headers").fill("source: demo\ntrace: a:b")
    await shot(page, "records-produce")
    await box.get_by_role("button", name="Produce").click()
    await expect(box).to_have_count(0)
    told = page.get_by_text("Written to partition 0 at offset 0.")
    await told.get_by_role("link", name="Open record").click()
    await expect(panel(page)).to_contain_text("bid: 12345678901234567890.10")
    await expect(panel(page).get_by_role("row", name="trace a:b")).to_be_visible()


async def test_a_record_is_copied_into_produce(page: Page, stage: Stage, topic: str, producer: comet.Producer) -> None:
    await producer.publish(topic, b"\xff\x01", key="k", headers={"a": "b"})
    await opened(page, stage, topic, "?partition=0&offset=0")
    await panel(page).get_by_role("button", name="Copy into Produce").click()
    box = dialog(page)
    await expect(box.get_by_label("Key", exact=True)).to_have_value("k")
    await expect(box.get_by_label("Value as")).to_have_value("base64")
    await expect(box.get_by_label("Value", exact=True)).to_have_value("/wE=")
    await expect(box.get_by_label("Headers")).to_have_value("a: b")
    await box.get_by_label("Value as").select_option("tombstone")
    await expect(box.get_by_label("Value", exact=True)).to_be_disabled()
    await box.get_by_role("button", name="Produce").click()
    await expect(page.get_by_text("Written to partition 0 at offset 1.")).to_be_visible()
    await page.get_by_role("link", name="Open record").click()
    await expect(panel(page)).to_contain_text("Tombstone: no value")


async def test_what_the_gateway_refuses_is_said_in_the_dialog(
    page: Page, context: Watched, stage: Stage, topic: str
) -> None:
    context.expected = ("status of 413",)
    await opened(page, stage, topic)
    await page.get_by_role("button", name="Produce").first.click()
    box = dialog(page)
    await box.get_by_label("Value as").select_option("text")
    await box.get_by_label("Value", exact=True).fill("x" * 1_100_000)
    await box.get_by_role("button", name="Produce").click()
    await expect(box.get_by_role("alert")).to_contain_text("Record too large")


# ---- files


async def test_what_is_shown_is_exported(page: Page, stage: Stage, trades: str) -> None:
    await opened(page, stage, trades, "?filter=n<4&partition=0")
    await page.get_by_text("Export", exact=True).click()
    await page.get_by_label("Format").select_option("csv")
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Download").click()
    file = await download.value
    assert file.suggested_filename == f"{trades}.csv"
    found = list(csv.DictReader((await file.path()).read_text().splitlines()))
    assert [row["offset"] for row in found] == ["3", "2", "1", "0"]


# ---- how it looks


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_nothing_keeps_people_from_using_it(browser: Browser, stage: Stage, trades: str, scheme: str) -> None:
    async with watched(browser, color_scheme=scheme) as found:
        page = await found.context.new_page()
        await opened(page, stage, trades)
        await shot(page, f"records-{scheme}")
        await opened(page, stage, trades, "?filter=n>=118")  # few rows, for axe looks at each of their cells
        await rows(page).first.click()
        await expect(panel(page).locator(".tree")).to_be_visible()
        await axe(page)
        await opened(page, stage, trades, "?start=live&filter=n>=118")
        await expect(page.locator("[data-tail]")).to_have_text("Live")
        await page.get_by_role("button", name="Produce").first.click()
        await expect(dialog(page)).to_be_visible()
        await axe(page)


async def test_it_fits_a_phone_and_the_dark(browser: Browser, stage: Stage, trades: str) -> None:
    async with watched(browser, viewport={"width": 360, "height": 740}, color_scheme="dark") as found:
        page = await found.context.new_page()
        await opened(page, stage, trades)
        width = await page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360
        await expect(page.get_by_role("columnheader", name="Size")).to_be_hidden()
        await shot(page, "records-360-dark")
        await rows(page).first.click()
        await expect(panel(page)).to_contain_text("offset 119")
        await expect(panel(page).locator(".tree")).to_be_visible()
        assert await panel(page).evaluate("(node) => node.scrollWidth <= 360 && node.getBoundingClientRect().left >= 0")
        await shot(page, "records-record-360-dark")
