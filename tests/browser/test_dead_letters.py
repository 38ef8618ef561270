"""Dead letters: found by reason, looked at, edited, redriven one or many with a rate and a Stop, discarded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, Locator, Page, Route, expect

import comet
from tests.browser.axe import axe
from tests.browser.conftest import Stage, Watched, live, settled, shot, watched
from tests.browser.seed import MARKUP

PREFIX = "comet-dead-letter-"


def row(page: Page, key: str) -> Locator:
    return page.locator(f'[data-table="dead_letters"] tr[data-key="{key}"]')


def dialog(page: Page) -> Locator:
    return page.locator("dialog")


def causes(page: Page) -> Locator:
    return page.locator('[data-table="causes"]')


def action(page: Page, name: str) -> Locator:
    return page.get_by_role("group", name="Actions").get_by_role("button", name=name)


def state(page: Page, name: str) -> Locator:
    return page.get_by_role("navigation", name="State").get_by_role("link", name=name)


@asynccontextmanager
async def made(stage: Stage, name: str, count: int = 4, *, group: str = "work") -> AsyncIterator[comet.Admin]:
    """Topic `name` with that many dead letters in `name`-failed: of the first reason but the last, a hostile one."""
    failed = f"{name}-failed"
    async with comet.Admin(stage.broker) as admin, comet.Producer(stage.broker, acks="all") as producer:
        await admin.create_topic(name, partitions=1)
        await admin.create_topic(failed, partitions=1)
        for number in range(count):
            said = {
                "topic": name, "partition": "0", "offset": str(number), "group": group, "attempts": "5",
                "reason": MARKUP if number == count - 1 else f"ValueError: order {number} is late",
                "time-us": "1700000000000000", "traceback": f'  File "app.py", line 7, in handle\n    {MARKUP}\n',
            }  # fmt: skip
            headers = {"trace": str(number), **{PREFIX + key: value for key, value in said.items()}}
            await producer.send(failed, f'{{"order": {number}}}', key=f"k{number}", headers=headers)
        await producer.flush()
        yield admin
        await admin.delete_topic(failed)
        await admin.delete_topic(name)


async def values(stage: Stage, topic: str) -> list[bytes]:
    async with comet.Reader(stage.broker) as reader:
        found = await reader.fetch(topic, 0, records_max=1_000)
        return [value or b"" for batch in found.batches for value in batch.values]


# ---- looking


async def test_reasons_are_there_before_any_script_and_lead_to_letters(browser: Browser, stage: Stage) -> None:
    async with made(stage, "early"), watched(browser, java_script_enabled=False) as found:
        page = await found.context.new_page()
        await page.goto(stage.at("/dead-letters?filter=early"))
        await page.get_by_role("link", name="ValueError: order # is late").click()
        await expect(page.get_by_role("heading", name="early-failed", exact=True)).to_be_visible()
        await expect(row(page, "0/0")).to_contain_text("ValueError: order 0 is late")
        await expect(row(page, "0/3")).to_have_count(0)
        await state(page, "All").click()
        await expect(row(page, "0/0")).to_contain_text("pending")


async def test_hostile_reasons_groups_and_keys_are_text(page: Page, stage: Stage) -> None:
    async with made(stage, "hostile", group=MARKUP):
        await page.goto(stage.at("/dead-letters?filter=hostile"))
        await live(page)
        await expect(causes(page)).to_contain_text(MARKUP)
        await shot(page, "dead-letters-light")
        await page.goto(stage.at("/dead-letters/hostile-failed"))
        await live(page)
        await expect(row(page, "0/3")).to_contain_text(MARKUP)
        await row(page, "0/3").get_by_role("link", name="0 / 3", exact=True).click()
        await expect(page.get_by_role("dialog")).to_contain_text(MARKUP)
        await page.keyboard.press("Escape")
        await action(page, "Redrive all pending").click()
        await expect(dialog(page).locator("dl")).to_contain_text("4")
        assert await page.title() != "stolen"
        assert await page.locator("b", has_text="bold").count() == 0


async def test_a_letter_is_looked_at_with_what_became_of_it(page: Page, stage: Stage) -> None:
    async with made(stage, "looked"):
        await page.goto(stage.at("/dead-letters/looked-failed"))
        await live(page)
        await row(page, "0/1").get_by_text("order 1 is late").click()
        panel = page.get_by_role("dialog")
        await expect(panel).to_contain_text("ValueError: order 1 is late")
        await expect(panel).to_contain_text("trace")
        await shot(page, "letter-light")
        await panel.get_by_role("button", name="Discard").click()
        await expect(dialog(page)).to_contain_text("Dead letter 0 / 1")
        await dialog(page).get_by_role("button", name="Discard").click()
        await expect(page.get_by_role("status").filter(has_text="1 dead letter discarded.")).to_be_visible()
        await state(page, "Discarded").click()
        await expect(row(page, "0/1")).to_contain_text("discarded")


async def test_a_topic_without_letters_and_one_that_is_not_there(context: Watched, page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/dead-letters/empty"))
    await expect(page.get_by_role("heading", name="No dead letters")).to_be_visible()
    context.expected = ("404",)
    await page.goto(stage.at("/dead-letters/no-such-topic"))
    await expect(page.get_by_role("heading", name="No such topic")).to_be_visible()


# ---- back to work


async def test_letters_chosen_before_the_page_is_all_there_are_chosen(page: Page, stage: Stage) -> None:
    chosen = asyncio.Event()

    async def late(route: Route) -> None:
        await chosen.wait()
        await route.continue_()

    async with made(stage, "early-choice"):
        await page.route("**/js/pages/dead_letter_topic.js", late)
        await page.goto(stage.at("/dead-letters/early-choice-failed"))
        await expect(page.locator("html")).to_have_attribute("data-live", "live")
        await row(page, "0/1").get_by_role("checkbox").check()
        chosen.set()
        await live(page)
        await expect(page.get_by_text("1 selected", exact=True)).to_be_visible()


async def test_all_of_a_reason_are_redriven_after_a_dry_run(page: Page, stage: Stage) -> None:
    async with made(stage, "again") as admin:
        await admin.commit_offsets("again-group", {("again", 0): 0})
        await page.goto(stage.at("/dead-letters/again-failed"))
        await live(page)
        await page.get_by_role("link", name="ValueError: order # is late").click()
        await live(page)
        await action(page, "Redrive filtered").click()
        told = dialog(page).locator("dl")
        await expect(told).to_contain_text("To again3 records")
        await expect(told).to_contain_text("Read by groupsagain-group")
        await expect(told).to_contain_text("less than a second")
        assert await values(stage, "again") == [], "nothing is written yet"
        await dialog(page).get_by_label("Dead letters per second, at most").fill("2")
        await expect(told).to_contain_text("at least 2 seconds")
        await shot(page, "redrive")
        await axe(page)
        await dialog(page).get_by_label("Dead letters per second, at most").fill("1000")
        await expect(told).to_contain_text("less than a second")
        await dialog(page).get_by_role("button", name="Redrive").click()
        await expect(page.get_by_role("status").filter(has_text="3 dead letters redriven.")).to_be_visible()
        await expect(page.get_by_text("Done: 3 dead letters redriven.")).to_be_visible()
        assert sorted(await values(stage, "again")) == [b'{"order": %d}' % number for number in range(3)]
        await expect(row(page, "0/0")).to_have_count(0)
        await state(page, "Redriven").click()
        await expect(row(page, "0/0").get_by_role("link", name="again 0 / 0", exact=True).last).to_be_visible()
        await shot(page, "dead-letters-redriven")
        await admin.delete_group("again-group")


async def test_chosen_letters_are_redriven_to_another_topic(page: Page, stage: Stage) -> None:
    async with made(stage, "chosen") as admin:
        await admin.create_topic("chosen-elsewhere", partitions=1)
        await page.goto(stage.at("/dead-letters/chosen-failed"))
        await live(page)
        for key in ("0/0", "0/2"):
            await row(page, key).get_by_role("checkbox").check()
        await expect(page.get_by_text("2 selected", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Redrive", exact=True).click()
        await dialog(page).get_by_label("To", exact=True).fill("chosen-nowhere")
        await expect(dialog(page)).to_contain_text("topic does not exist; choose another one")
        await expect(dialog(page).get_by_role("button", name="Redrive")).to_be_disabled()
        await dialog(page).get_by_label("To", exact=True).fill("chosen-elsewhere")
        await expect(dialog(page)).to_contain_text("To chosen-elsewhere2 records")
        await dialog(page).get_by_role("button", name="Redrive").click()
        await expect(page.get_by_role("status").filter(has_text="2 dead letters redriven.")).to_be_visible()
        assert await values(stage, "chosen-elsewhere") == [b'{"order": 0}', b'{"order": 2}']
        await admin.delete_topic("chosen-elsewhere")


async def test_one_is_edited_and_redriven(page: Page, stage: Stage) -> None:
    async with made(stage, "edited"):
        await page.goto(stage.at("/dead-letters/edited-failed"))
        await live(page)
        await row(page, "0/2").get_by_role("checkbox").check()
        await page.get_by_role("button", name="Edit and redrive").click()
        value = dialog(page).get_by_label("Value", exact=True)
        await expect(value).to_have_value('{"order": 2}')
        await expect(dialog(page).get_by_label("Headers", exact=True)).to_have_value("trace: 2")
        await value.fill('{"order": 2, "bid": 1.10}')
        await dialog(page).get_by_label("Headers", exact=True).fill("trace: 2\nfixed: by hand")
        await expect(dialog(page)).to_contain_text("To edited1 record")
        await shot(page, "edit-letter")
        await dialog(page).get_by_role("button", name="Redrive").click()
        await expect(page.get_by_role("status").filter(has_text="1 dead letter redriven.")).to_be_visible()
        async with comet.Reader(stage.broker) as reader:
            (batch,) = (await reader.fetch("edited", 0)).batches
        assert list(batch.values) == [b'{"order": 2, "bid": 1.10}']
        headers = dict(batch.headers[0])
        assert (headers["fixed"], headers["comet-redriven-from"]) == (b"by hand", b"edited-failed/0/2")
        assert list(batch.keys) == [b"k2"]


async def test_it_can_be_stopped_on_the_way(page: Page, stage: Stage) -> None:
    async with made(stage, "slow", 60):
        await page.goto(stage.at("/dead-letters/slow-failed"))
        await live(page)
        await action(page, "Redrive all pending").click()
        await dialog(page).get_by_label("Dead letters per second, at most").fill("1")
        await expect(dialog(page)).to_contain_text("at least 60 seconds")
        await dialog(page).get_by_role("button", name="Redrive").click()
        progress = page.get_by_role("region", name="Progress")
        await expect(progress).to_contain_text("of 60")
        await shot(page, "redriving")
        await progress.get_by_role("button", name="Stop").click()
        await expect(progress).to_contain_text("The others stay pending.")
        await expect(progress.get_by_role("button", name="Stop")).to_be_hidden()
        redriven = page.locator("[data-field=redriven]")
        async with asyncio.timeout(30):
            # What was under way when it was stopped is still written.
            while await redriven.inner_text() != str(written := len(await values(stage, "slow"))):
                pass
        assert 0 < written < 60


async def test_a_redrive_that_fails_says_which_and_why(page: Page, stage: Stage) -> None:
    async with made(stage, "torn", 3) as admin:
        await page.goto(stage.at("/dead-letters/torn-failed"))
        await live(page)
        await action(page, "Redrive all pending").click()
        await expect(dialog(page)).to_contain_text("To torn3 records")

        async def gone(route: Route) -> None:
            """The topic goes between the dry run and the act."""
            await admin.delete_topic("torn")
            await route.continue_()

        await page.route("**/redrive", gone)
        await dialog(page).get_by_role("button", name="Redrive").click()
        progress = page.get_by_role("region", name="Progress")
        await expect(progress).to_contain_text("3 failed")
        await expect(progress.get_by_role("listitem")).to_have_count(3)
        await expect(progress).to_contain_text("No such topic")
        await expect(row(page, "0/0")).to_contain_text("pending")
        await admin.create_topic("torn", partitions=1)


async def test_a_gateway_that_refuses_is_told_with_the_id_of_the_request(
    context: Watched, page: Page, stage: Stage
) -> None:
    context.expected = ("429",)
    async with made(stage, "refused"):
        await page.goto(stage.at("/dead-letters/refused-failed"))
        await live(page)

        async def refuse(route: Route) -> None:
            body = (
                '{"title": "Too many requests", "detail": "4 requests redrive or discard dead letters", "status": 429}'
            )
            await route.fulfill(
                status=429, body=body, content_type="application/problem+json", headers={"x-request-id": "r-1"}
            )

        await page.route("**/discard", refuse)
        await action(page, "Discard all pending").click()
        await dialog(page).get_by_role("button", name="Discard").click()
        progress = page.get_by_role("region", name="Progress")
        await expect(progress).to_contain_text("Too many requests")
        await expect(progress).to_contain_text("request r-1")


# ---- for everybody


async def test_by_keyboard_alone(page: Page, stage: Stage) -> None:
    async with made(stage, "keys"):
        await page.goto(stage.at("/dead-letters/keys-failed"))
        await live(page)
        await row(page, "0/3").get_by_role("link", name="0 / 3", exact=True).focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_contain_text("keys-failed")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await expect(row(page, "0/3").get_by_role("link", name="0 / 3", exact=True)).to_be_focused()
        await row(page, "0/0").get_by_role("checkbox").focus()
        await page.keyboard.press("Space")
        await page.get_by_role("button", name="Discard", exact=True).focus()
        await page.keyboard.press("Enter")
        await expect(dialog(page)).to_contain_text("Dead letter 0 / 0")
        await expect(dialog(page).get_by_role("button", name="Discard")).to_be_enabled()
        await dialog(page).get_by_role("button", name="Discard").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status").filter(has_text="1 dead letter discarded.")).to_be_visible()


async def test_it_is_readable_on_a_phone_and_in_the_dark(browser: Browser, stage: Stage) -> None:
    async with made(stage, "small"):
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 360)):
            async with watched(browser, color_scheme=scheme, viewport={"width": width, "height": 780}) as found:
                page = await found.context.new_page()
                for name, path in (("dead-letters", "/dead-letters"), ("dead-letter", "/dead-letters/small-failed")):
                    await page.goto(stage.at(path))
                    await live(page)
                    await expect(causes(page)).to_contain_text("order # is late")
                    wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    assert wide <= 0, (name, width)
                    await shot(page, f"{name}-{scheme}-{width}")
                if width > 1000:
                    await axe(page)


async def test_a_dead_letter_tells_when_and_where_it_died(page: Page, stage: Stage) -> None:
    async with made(stage, "where"):
        await settled(page, stage.at("/dead-letters/where-failed"))
        await expect(page.get_by_role("columnheader", name="Died")).to_be_visible()
        await row(page, "0/0").get_by_role("link").first.click()
        panel = page.locator("aside.record")
        await expect(panel).to_contain_text("2023-11-14 22:13:20.000000 UTC")
        await expect(panel.get_by_label("Traceback")).to_contain_text('File "app.py", line 7, in handle')
        await expect(panel.get_by_label("Traceback")).to_contain_text("<img src=x")
        assert await panel.get_by_label("Traceback").locator("*").count() == 0
        await expect(panel.locator(".record-headers")).not_to_contain_text("app.py")
        await axe(page)
