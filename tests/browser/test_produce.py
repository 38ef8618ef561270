"""Producing from the page: a JSON value that is checked while it is typed, several records, and a file of them."""

from __future__ import annotations

import asyncio
import json
import random
from base64 import b64decode
from itertools import count

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, FilePayload, Locator, Page, expect

import comet
from tests.browser.axe import axe
from tests.browser.conftest import Stage, Watched, settled, shot, watched
from tests.browser.seed import MARKUP

_NUMBERS = count(1)


@pytest_asyncio.fixture(loop_scope="package")
async def topic(stage: Stage) -> str:
    name = f"produce-{next(_NUMBERS)}"
    async with comet.Admin(stage.broker) as admin:
        await admin.create_topic(name, partitions=1)
    return name


def dialog(page: Page) -> Locator:
    return page.locator("dialog[open]")


def file_of(name: str, text: str | bytes) -> FilePayload:
    return {"name": name, "mimeType": "text/plain", "buffer": text.encode() if isinstance(text, str) else text}


async def opened(page: Page, stage: Stage, topic: str) -> Locator:
    """The dialog of several records."""
    await settled(page, stage.at(f"/topics/{topic}"))
    await page.get_by_role("button", name="Produce").click()
    await page.get_by_role("button", name="Several records, or a file").click()
    await expect(page.get_by_role("dialog", name=f"Produce records to {topic}")).to_be_visible()
    return dialog(page)


async def written(stage: Stage, topic: str) -> list[tuple[str | None, bytes | None]]:
    """Key and value of each record, in their order."""
    path = f"/v1/topics/{topic}/partitions/0/records?offset=0&limit=5000&values=base64"
    records = (await asyncio.to_thread(httpx.get, stage.at(path))).json()["records"]
    return [(record.get("key"), None if record.get("tombstone") else b64decode(record["base64"])) for record in records]


# ---- one record


async def test_a_mistake_is_shown_with_its_line_and_column(page: Page, stage: Stage, topic: str) -> None:
    await settled(page, stage.at(f"/topics/{topic}"))
    await page.get_by_role("button", name="Produce").click()
    value = dialog(page).get_by_label("Value", exact=True)
    await value.fill('{"a": 1,\n "b": tru}')
    await expect(dialog(page).get_by_text("invalid JSON, line 2, column 7: a value is missing")).to_be_visible()
    await expect(value).to_have_attribute("aria-invalid", "true")
    await axe(page)
    await value.fill('{"a":1.10,"b":[true]}')
    await expect(dialog(page).get_by_text("invalid JSON")).to_have_count(0)
    await dialog(page).get_by_role("button", name="Format the value").click()
    await expect(value).to_have_value('{\n  "a": 1.10,\n  "b": [\n    true\n  ]\n}')


async def test_the_check_agrees_with_the_browser(page: Page, stage: Stage) -> None:
    """What the browser takes for JSON is JSON, and each other text gets a place: of 20,000 damaged texts."""
    rng = random.Random(7)
    plain = json.dumps([{"a": 1, "b": [True, None, 'x"\n'], "c": -1.5e3}, "q", {}, []])
    texts = []
    for _ in range(20_000):
        text = plain
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice('{}[]",:01.eE+-truefalsnl \\u\n') + text[at + rng.randrange(2) :]
        texts.append(text)
    await settled(page, stage.at("/about"))
    wrong = await page.evaluate(
        """async (texts) => {
          const main = document.querySelector("script[type=module]").src;
          const { faultOf, partsOf } = await import(main.replace("main.js", "json_text.js"));
          return texts.filter((text) => {
            let good = true, mine = true;
            try { JSON.parse(text); } catch { good = false; }
            try { mine = !text.slice(partsOf(text).end).trim(); } catch { mine = false; }
            const fault = faultOf(text);
            const placed = fault === null || (fault.message !== "not JSON" && fault.line > 0);
            return good !== mine || good !== (fault === null) || !placed;
          });
        }""",
        texts,
    )
    assert wrong == []


# ---- several


async def test_lines_are_written_and_each_refused_one_is_named(page: Page, stage: Stage, topic: str) -> None:
    several = await opened(page, stage, topic)
    await several.get_by_label("Records", exact=True).fill(
        '\ufeff{"id": 1, "p": 1.10}\n{"id": 2,}\n\n{"p": 2}\n{"id": "x"}'
    )
    await expect(several.get_by_text("3 records of NDJSON · 1 line refused")).to_be_visible()
    await expect(several.get_by_text("Line 2: column 10: a name is missing")).to_be_visible()
    await several.get_by_label("Key").select_option("id")
    await expect(several.get_by_role("region", name="Preview")).to_contain_text("no key: the field id is missing")
    await axe(page)
    await several.get_by_role("button", name="Produce 3 records").click()
    await expect(several.get_by_text("2 records written · 2 refused")).to_be_visible()
    refused = several.get_by_role("list", name="Refused records")
    await expect(refused).to_contain_text("Line 4: no key")
    await expect(several.get_by_role("button", name="Produce 3 records")).to_be_disabled()  # not twice
    assert await written(stage, topic) == [("1", b'{"id": 1, "p": 1.10}'), ("x", b'{"id": "x"}')]


async def test_what_the_broker_refuses_is_reported(page: Page, stage: Stage, topic: str) -> None:
    async with comet.Admin(stage.broker) as admin:
        await admin.alter_topic(topic, record_bytes_max=1024)
    several = await opened(page, stage, topic)
    text = json.dumps([{"n": 1}, {"n": "x" * 5_000}, {"n": 3}])
    await several.get_by_label("Records", exact=True).fill(text)
    await several.get_by_role("button", name="Produce 3 records").click()
    await expect(several.get_by_text("2 records written · 1 refused")).to_be_visible()
    assert [value for _, value in await written(stage, topic)] == [b'{"n": 1}', b'{"n": 3}']


# ---- a file


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        (
            "orders.csv",
            '\ufeffid,name,price\r\n1,"a, ""b""\nc",1.50\r\n007,plain,\r\n',
            [b'{"id":1,"name":"a, \\"b\\"\\nc","price":1.50}', b'{"id":"007","name":"plain","price":null}'],
        ),
        ("orders.tsv", "id\tok\n1\ttrue\n", [b'{"id":1,"ok":true}']),
        (
            "orders.json",
            '[\n {"id": 12345678901234567890},\n [1, 2],\n "x"\n]\n',
            [b'{"id": 12345678901234567890}', b"[1, 2]", b'"x"'],
        ),
        ("one.json", '{\n "id": 1\n}\n', [b'{  "id": 1 }']),
        ("orders.ndjson", '{"id": 1}\r\n{"id": 2}', [b'{"id": 1}', b'{"id": 2}']),
    ],
)  # fmt: skip
async def test_a_file_of_each_kind_is_written(
    page: Page, stage: Stage, topic: str, name: str, text: str, values: list[bytes]
) -> None:
    several = await opened(page, stage, topic)
    await several.get_by_label("File with records").set_input_files(file_of(name, text))
    await several.get_by_role("button", name=f"Produce {len(values)} record").click()
    await expect(
        page.get_by_text(f"{len(values)} record{'s' if len(values) > 1 else ''} written to {topic}.")
    ).to_be_visible()
    await expect(dialog(page)).to_have_count(0)
    assert [value.replace(b"\n", b" ") if value else value for _, value in await written(stage, topic)] == values


async def test_an_export_can_be_written_to_another_topic(page: Page, stage: Stage, topic: str) -> None:
    several = await opened(page, stage, topic)
    lines = [
        '{"partition":0,"offset":"0","timestamp_us":"1","key":"K0","value":{"n":1.0},"headers":[{"name":"h","value":"x"}]}',
        '{"partition":0,"offset":"1","timestamp_us":"2","key":"K0","tombstone":true}',
    ]
    await several.get_by_label("File with records").set_input_files(file_of("export.ndjson", "\n".join(lines)))
    await expect(several.get_by_label("Each object")).to_have_value("record")
    await several.get_by_role("button", name="Produce 2 records").click()
    await expect(page.get_by_text("2 records written")).to_be_visible()
    assert await written(stage, topic) == [("K0", b'{"n":1.0}'), ("K0", None)]


async def test_many_records_are_sent_in_parts_with_progress(page: Page, stage: Stage, topic: str) -> None:
    several = await opened(page, stage, topic)
    text = "id,name\n" + "".join(f"{number},n{number}\n" for number in range(3_000))
    await several.get_by_label("File with records").set_input_files(file_of("many.csv", text))
    await expect(several.get_by_text("and 2,992 more")).to_be_visible()
    await shot(page, "produce-file")
    posts: list[str] = []
    page.on("request", lambda request: posts.append(request.method))
    await several.get_by_role("button", name="Produce 3,000 records").click()
    await expect(page.get_by_text(f"3,000 records written to {topic}.")).to_be_visible()
    assert posts.count("POST") == 6
    assert len(await written(stage, topic)) == 3_000


async def test_a_gateway_that_goes_away_leaves_a_part_unknown(
    page: Page, context: Watched, stage: Stage, topic: str
) -> None:
    context.expected = ("net::ERR", "Failed to load resource")
    several = await opened(page, stage, topic)
    sent = count()
    await page.route("**/records?acks=1", lambda route: route.continue_() if next(sent) == 0 else route.abort())
    text = "\n".join(f'{{"n":{number}}}' for number in range(1_600))
    await several.get_by_label("Records", exact=True).fill(text)
    await several.get_by_role("button", name="Produce 1,600 records").click()
    await expect(
        several.get_by_text("500 records written · 500 unknown: they may have been written · 600 not sent")
    ).to_be_visible()
    await expect(several.get_by_role("alert")).to_contain_text("The gateway does not answer")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("big.json", b" " * ((16 << 20) + 1), "more than 16 MiB"),
        ("latin.csv", b"id,name\n1,\xe9\n", "latin.csv is not text in UTF-8."),
        ("open.csv", b'id,name\n1,"x\n', "Line 2: a quote is not closed"),
        ("short.csv", b"id,name\n1\n", "Line 2: 1 fields, and the first line names 2"),
        ("twice.csv", b"id,id\n1,2\n", "Line 1: the column id stands there twice"),
        ("cut.json", b'[{"a": 1},\n{"a"', "Line 2: line 2, column 5: a colon is missing"),
    ],
)
async def test_a_file_that_cannot_be_read_is_refused_with_the_reason(
    page: Page, stage: Stage, topic: str, name: str, content: bytes, said: str
) -> None:
    several = await opened(page, stage, topic)
    await several.get_by_label("File with records").set_input_files(file_of(name, content))
    await expect(several.get_by_text(said)).to_be_visible()
    if name != "cut.json":
        await expect(several.get_by_role("button", name="Produce", exact=True)).to_be_disabled()


async def test_more_records_than_the_limit_are_left_out(page: Page, stage: Stage, topic: str) -> None:
    several = await opened(page, stage, topic)
    await several.get_by_label("File with records").set_input_files(file_of("x.ndjson", "1\n" * 50_001))
    await expect(several.get_by_text("50,000 records of NDJSON · the rest, beyond 50,000, is left out")).to_be_visible()


async def test_hostile_records_are_text_and_a_narrow_screen_suffices(
    browser: Browser, stage: Stage, topic: str
) -> None:
    async with watched(browser, viewport={"width": 390, "height": 844}, color_scheme="dark") as found:
        page = await found.context.new_page()
        several = await opened(page, stage, topic)
        await several.get_by_label("Records", exact=True).fill(json.dumps([{MARKUP: MARKUP}]))
        await expect(several.get_by_role("region", name="Preview")).to_contain_text("<img src=x")
        await expect(page).not_to_have_title("stolen")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await axe(page)
        await several.get_by_role("button", name="Cancel").click()
        await expect(page.get_by_role("button", name="Produce")).to_be_focused()
