"""Groups: what the pages show, where a group goes on set anew, and away with it; with what each refuses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, Locator, Page, Route, expect

import comet
from tests.browser.axe import axe
from tests.browser.conftest import Stage, Watched, live, settled, shot, told, watched


def row(page: Page, key: str, table: str = "partitions") -> Locator:
    return page.locator(f'[data-table="{table}"] tr[data-key="{key}"]')


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog")


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("group", name="Actions").get_by_role("button", name=name)


async def listed(page: Page, stage: Stage, name: str) -> None:
    """The list with this group alone; one that is newer than what the list was made of has to be asked for."""
    await page.goto(stage.at(f"/groups?filter={name}"))
    await live(page)
    found, changed = row(page, name, "groups"), page.get_by_role("button", name="List changed · show")
    await expect(found.or_(changed).first).to_be_visible()
    if not await found.count():
        await changed.click()
    await expect(found).to_be_visible()


@asynccontextmanager
async def made(stage: Stage, name: str, *, records: int = 40) -> AsyncIterator[comet.Admin]:
    """A topic and a group of that name: two partitions, positions 5 and none."""
    async with comet.Admin(stage.broker) as admin, comet.Producer(stage.broker) as producer:
        await admin.create_topic(name, partitions=2)
        for number in range(records):
            await producer.send(name, b"%d" % number, partition=number % 2, timestamp_us=1_000_000 * (number + 1))
        await producer.flush()
        await admin.commit_offsets(name, {(name, 0): 5, (name, 1): 0})
        yield admin
        if name in [group.name for group in await admin.list_groups()]:
            await admin.delete_group(name)
        await admin.delete_topic(name)


async def positions(admin: comet.Admin, name: str) -> dict[int, int]:
    return {one.partition: one.offset for one in await admin.group_offsets(name)}


# ---- looking


async def test_groups_are_there_before_any_script(browser: Browser, stage: Stage) -> None:
    await told(stage.at("/groups"), ">stopped<")  # which is known when it was looked at for a while
    async with watched(browser, java_script_enabled=False) as found:
        page = await found.context.new_page()
        await page.goto(stage.at("/groups"))
        await expect(row(page, "engine", "groups")).to_contain_text("quotes")
        await expect(row(page, "engine", "groups")).to_contain_text("stopped")
        await page.get_by_role("link", name="engine", exact=True).click()
        await expect(page.get_by_role("heading", name="engine", exact=True)).to_be_visible()
        await expect(row(page, "quotes/0")).to_contain_text("unassigned")
        await expect(page.get_by_text("No active members")).to_be_visible()


async def test_the_list_is_kept_up_to_date_and_sorted_by_lag(page: Page, stage: Stage) -> None:
    async with made(stage, "list-of-groups") as admin:
        await listed(page, stage, "list-of-groups")
        found = row(page, "list-of-groups", "groups")
        await expect(found).to_contain_text("35")
        await expect(page.get_by_role("columnheader", name="Lag records")).to_have_attribute("aria-sort", "descending")
        await admin.commit_offsets("list-of-groups", {("list-of-groups", 1): 20})
        await expect(found).to_contain_text("15")
        await shot(page, "groups-light")
        await axe(page)


async def test_a_group_with_members_says_who_holds_it_and_what_they_have(page: Page, stage: Stage) -> None:
    async with made(stage, "held-group"):
        async with comet.GroupConsumer(stage.broker, "held-group", group="held-group", name="worker-7") as consumer:
            reading = asyncio.create_task(consumer.get())
            await page.goto(stage.at("/groups/held-group"))
            await live(page)
            members = page.get_by_role("region", name="Members, rows")
            await expect(members).to_contain_text("worker-7")
            await expect(members).to_contain_text("held-group 0-1")
            await expect(page.locator("[data-held]")).to_have_text("active members: worker-7; stop them first")
            await button(page, "Reset offsets").focus()
            await page.keyboard.press("Enter")
            told = page.get_by_role("status").filter(has_text="is not possible: active members: worker-7")
            await expect(told).to_be_visible()
            await expect(dialog(page)).to_have_count(0)
            await shot(page, "group-light")
            await axe(page)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        # It leaves, and the page lets go of it by itself.
        await expect(page.locator("[data-held]")).to_be_hidden()
        await expect(button(page, "Reset offsets")).to_have_attribute("aria-disabled", "false")


async def test_a_group_with_members_cannot_be_deleted_and_its_button_says_why(page: Page, stage: Stage) -> None:
    async with made(stage, "full-group"):
        async with comet.GroupConsumer(stage.broker, "full-group", group="full-group", name="worker-1") as consumer:
            reading = asyncio.create_task(consumer.get())
            await page.goto(stage.at("/groups/full-group"))
            await live(page)
            why = "Delete is not possible: active members: worker-1; stop them first"
            await expect(button(page, "Delete")).to_have_attribute("aria-disabled", "true")
            await expect(button(page, "Delete")).to_have_attribute("title", why)
            await button(page, "Delete").focus()
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("status").filter(has_text=why)).to_be_visible()
            await expect(dialog(page)).to_have_count(0)
            await shot(page, "group-not-deletable")
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await expect(button(page, "Delete")).to_have_attribute("aria-disabled", "false")


async def test_deleting_a_group_that_a_member_joins_meanwhile_is_refused_in_the_dialog(
    context: Watched, page: Page, stage: Stage
) -> None:
    context.expected = ("409",)
    async with made(stage, "busy-group") as admin:
        await page.goto(stage.at("/groups/busy-group"))
        await live(page)
        await button(page, "Delete").click()
        await dialog(page).get_by_label("Type busy-group to confirm").fill("busy-group")
        async with comet.GroupConsumer(stage.broker, "busy-group", group="busy-group", name="worker-1") as consumer:
            reading = asyncio.create_task(consumer.get())
            await expect(page.get_by_role("region", name="Members, rows", include_hidden=True)).to_contain_text(
                "worker-1"
            )
            await dialog(page).get_by_role("button", name="Delete").click()
            await expect(dialog(page).get_by_role("alert")).to_contain_text("stop them first")
            await expect(dialog(page).get_by_role("alert")).to_contain_text("request ")
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        assert "busy-group" in [group.name for group in await admin.list_groups()]


async def test_a_shared_group_shows_what_is_in_flight_and_no_positions_to_set(page: Page, stage: Stage) -> None:
    async with made(stage, "sharing-page", records=6):
        async with comet.ShareConsumer(
            stage.broker, "sharing-page", group="sharers", start="earliest", name="sharer"
        ) as consumer:
            record = await consumer.get(timeout_s=60)
            assert record is not None
            await page.goto(stage.at("/groups/sharers"))
            await live(page)
            await expect(page.get_by_role("columnheader", name="In flight")).to_be_visible()
            await expect(page.get_by_text("share groups have no committed offsets")).to_be_visible()
            await expect(button(page, "Reset offsets")).to_have_attribute("aria-disabled", "true")
        async with comet.Admin(stage.broker) as admin:
            await admin.delete_group("sharers")


async def test_lag_over_time_is_drawn_by_topic_and_reads_as_a_table(page: Page, stage: Stage) -> None:
    async with made(stage, "lag-chart"):
        await page.goto(stage.at("/groups/lag-chart?range=1h"))
        await live(page)
        await expect(page.get_by_role("img", name="Lag by topic")).to_be_visible()
        await expect(page.locator("#lag-summary")).to_contain_text("35 records behind")
        await expect(page.get_by_role("link", name="1h")).to_have_attribute("aria-current", "true")


async def test_what_is_no_main_table_comes_in_pages_of_its_own(page: Page, stage: Stage) -> None:
    async with comet.Admin(stage.broker) as admin:
        await admin.create_topic("wide", partitions=130)
        await admin.commit_offsets("wide", {("wide", index): 0 for index in range(130)})
        await page.goto(stage.at("/topics/wide/consumers?group=wide"))
        table = page.get_by_role("region", name="Lag by partition", exact=True)
        rows = table.locator("tbody tr")
        await expect(rows).to_have_count(100)
        await live(page)
        await table.get_by_role("link", name="Next").click()
        await expect(rows).to_have_count(30)
        await expect(page).to_have_url(re.compile("lags.page=2"))
        await expect(table.get_by_text("Page 2 of 2")).to_be_visible()
        await page.reload()
        await expect(rows).to_have_count(30)
        await live(page)
        await table.get_by_role("link", name="Lag records").click()
        await expect(page).not_to_have_url(re.compile("lags.page"))
        await expect(rows).to_have_count(100)
        await admin.delete_group("wide")
        await admin.delete_topic("wide")


async def test_a_group_that_is_not_there_is_a_page_that_says_so(context: Watched, page: Page, stage: Stage) -> None:
    context.expected = ("404",)
    answer = await page.goto(stage.at("/groups/no-such-group"))
    assert answer is not None and answer.status == 404
    await expect(page.get_by_role("heading", name="No such group")).to_be_visible()


# ---- where it goes on


async def test_offsets_are_reset_after_a_dry_run(page: Page, stage: Stage) -> None:
    async with made(stage, "reset-group") as admin:
        await page.goto(stage.at("/groups/reset-group"))
        await live(page)
        await button(page, "Reset offsets").click()
        plan = dialog(page).get_by_role("region", name="What would change")
        await expect(dialog(page)).to_contain_text("0 records skipped, 5 read again")
        await expect(plan).to_contain_text("repeats 5")
        assert await positions(admin, "reset-group") == {0: 5, 1: 0}, "nothing is done yet"
        await dialog(page).get_by_label("Reset to").select_option("latest")
        await expect(dialog(page)).to_contain_text("35 records skipped, 0 read again")
        await shot(page, "group-reset")
        await axe(page)
        await dialog(page).get_by_role("button", name="Reset offsets").click()
        await expect(page.get_by_role("status").filter(has_text="reset in 2 partitions")).to_be_visible()
        assert await positions(admin, "reset-group") == {0: 20, 1: 20}


async def test_offsets_are_reset_to_a_time_a_shift_and_one_by_one(page: Page, stage: Stage) -> None:
    async with made(stage, "reset-ways") as admin:
        await page.goto(stage.at("/groups/reset-ways"))
        await live(page)
        for target, label, value, result in (
            ("time", "Time", "1970-01-01T00:00:11", {0: 5, 1: 5}),
            ("shift", "Records", "3", {0: 8, 1: 8}),
            ("offsets", "Offsets", "reset-ways 0 7\nreset-ways 1 9", {0: 7, 1: 9}),
            ("ago", "Duration", "30m", {0: 20, 1: 20}),
        ):
            await button(page, "Reset offsets").click()
            await dialog(page).get_by_label("Reset to").select_option(target)
            await dialog(page).get_by_label(label, exact=True).fill(value)
            act = dialog(page).get_by_role("button", name="Reset offsets")
            await expect(act).to_be_enabled()
            await act.click()
            await expect(dialog(page)).to_have_count(0)
            assert await positions(admin, "reset-ways") == result, target


async def test_what_cannot_be_is_refused_while_it_is_typed(context: Watched, page: Page, stage: Stage) -> None:
    context.expected = ("422", "400", "404")
    async with made(stage, "reset-wrong"):
        await page.goto(stage.at("/groups/reset-wrong"))
        await live(page)
        await button(page, "Reset offsets").click()
        await dialog(page).get_by_label("Reset to").select_option("offsets")
        await dialog(page).get_by_label("Offsets", exact=True).fill("reset-wrong 0 soon")
        await expect(dialog(page).get_by_role("alert")).to_contain_text("offset")
        await expect(dialog(page).get_by_role("button", name="Reset offsets")).to_be_disabled()
        await page.keyboard.press("Escape")
        await expect(dialog(page)).to_have_count(0)


async def test_what_is_refused_after_the_dialog_is_gone_is_nobodys(context: Watched, page: Page, stage: Stage) -> None:
    """A dry run that is still under way then."""
    context.expected = ("400",)
    asked, gone = asyncio.Event(), asyncio.Event()

    async def late(route: Route) -> None:
        asked.set()
        await gone.wait()
        await route.fulfill(status=400, json={"title": "No such offset", "status": 400})

    async with made(stage, "reset-late"):
        await settled(page, stage.at("/groups/reset-late"))
        await page.route("**/reset?dry_run=true", late)
        async with page.expect_response("**/reset?dry_run=true"):
            await button(page, "Reset offsets").click()
            await asked.wait()
            await page.keyboard.press("Escape")
            await expect(dialog(page)).to_have_count(0)
            gone.set()
        await page.evaluate("new Promise((done) => setTimeout(done))")  # what it is for has come by then


async def test_a_group_is_deleted_by_its_name(page: Page, stage: Stage) -> None:
    async with made(stage, "gone-group") as admin:
        await page.goto(stage.at("/groups/gone-group"))
        await live(page)
        await button(page, "Delete").click()
        await expect(dialog(page).locator("dl")).to_contain_text("35")
        act = dialog(page).get_by_role("button", name="Delete")
        await expect(act).to_be_disabled()
        await dialog(page).get_by_label("Type gone-group to confirm").fill("gone-group")
        await act.click()
        await expect(page).to_have_url(re.compile(r"/groups$"))
        await expect(row(page, "engine", "groups")).to_be_visible()
        assert "gone-group" not in [group.name for group in await admin.list_groups()]


async def test_by_keyboard_alone(page: Page, stage: Stage) -> None:
    async with made(stage, "keyboard-group") as admin:
        await listed(page, stage, "keyboard-group")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="keyboard-group", exact=True)).to_be_visible()
        await live(page)
        await button(page, "Reset offsets").focus()
        await page.keyboard.press("Enter")
        await expect(dialog(page)).to_contain_text("5 read again")
        await page.keyboard.press("Tab")  # from the choice to the next: it has the focus at first
        await dialog(page).get_by_role("button", name="Reset offsets").focus()
        await page.keyboard.press("Enter")
        await expect(dialog(page)).to_have_count(0)
        assert await positions(admin, "keyboard-group") == {0: 0, 1: 0}


async def test_it_is_readable_on_a_phone_and_in_the_dark(browser: Browser, stage: Stage) -> None:
    async with made(stage, "small-group"):
        for scheme, width in (("dark", 1280), ("light", 360), ("dark", 360)):
            async with watched(browser, color_scheme=scheme, viewport={"width": width, "height": 780}) as found:
                page = await found.context.new_page()
                for name, path in (("groups", "/groups"), ("group", "/groups/small-group")):
                    await page.goto(stage.at(path))
                    await live(page)
                    wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    assert wide <= 0, (name, width)
                    await shot(page, f"{name}-{scheme}-{width}")
                if width > 1000:
                    await axe(page)
