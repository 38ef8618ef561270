"""The pages of one topic: its partitions, what it is set to, who reads it; every act with its refusals."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, Route, expect

import comet
from comet.processes.child import Child, python_module, started
from tests.browser.conftest import Stage, Watched, live, shot, watched
from tests.browser.test_topics import dialog, row

TOKENS = {"reader": "viewer", "worker": "operator"}


# ---- while it is looked at


async def test_a_topic_that_is_deleted_and_made_again_while_it_is_looked_at(page: Page, stage: Stage) -> None:
    async with comet.Admin(stage.broker) as admin:
        await admin.create_topic("phoenix", partitions=1)
        await page.goto(stage.at("/topics/phoenix"))
        await live(page)
        await admin.delete_topic("phoenix")
        await expect(page.get_by_text("This topic was deleted.")).to_be_visible()
        await expect(page.get_by_role("button", name="Produce")).to_be_disabled()
        await admin.create_topic("phoenix", partitions=2)
        await expect(page.get_by_text("This topic was deleted.")).to_be_hidden()
        await expect(page.get_by_role("button", name="Produce")).to_be_enabled()
        await admin.delete_topic("phoenix")


async def test_a_topic_that_is_not_there_is_an_error_with_a_way_on(context: Watched, page: Page, stage: Stage) -> None:
    context.expected = ("404",)
    answer = await page.goto(stage.at("/topics/never-made"))
    assert answer is not None
    assert answer.status == 404
    await expect(page.get_by_role("main")).to_contain_text("never-made")


async def test_records_are_written_from_the_page_of_the_topic(page: Page, stage: Stage) -> None:
    async with comet.Admin(stage.broker) as admin:
        await admin.create_topic("fed", partitions=1)
        await page.goto(stage.at("/topics/fed"))
        await live(page)
        await page.get_by_role("button", name="Produce").click()
        await expect(dialog(page)).to_contain_text("fed")
        await page.keyboard.press("Escape")
        await admin.delete_topic("fed")


# ---- one topic


async def test_partitions_are_told_with_their_offsets_and_lead_to_messages(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/topics/quotes"))
    await live(page)
    await expect(page.get_by_role("main")).to_contain_text("healthy")
    cells = [row(page, str(index)).get_by_role("cell").nth(8) for index in range(3)]
    counts = [int(await cell.inner_text()) for cell in cells]
    assert sum(counts) == 40
    await expect(page.get_by_role("img", name=re.compile("^By partition")).locator("rect")).to_have_count(3)
    await expect(page.locator("#records-summary")).not_to_be_empty()
    await expect(row(page, "1").get_by_role("link", name="1", exact=True).first).to_have_attribute(
        "href", "/topics/quotes/records?partition=1"
    )
    await shot(page, "topic-light")
    await page.get_by_role("link", name="1h").click()
    await expect(page).to_have_url(re.compile("range=1h"))
    await expect(page.get_by_role("link", name="1h")).to_have_attribute("aria-current", "true")


async def test_what_is_written_is_seen_without_a_reload(page: Page, stage: Stage) -> None:
    async with comet.Admin(stage.broker) as admin, comet.Producer(stage.broker) as producer:
        await admin.create_topic("moving", partitions=1)
        await page.goto(stage.at("/topics/moving"))
        await live(page)
        await expect(page.locator("[data-field=records]")).to_have_text("0")
        for _ in range(7):
            await producer.send("moving", b"x")
        await producer.flush()
        await expect(page.locator("[data-field=records]")).to_have_text("7")
        await expect(row(page, "0").get_by_role("cell").nth(7)).to_have_text("7")
        await admin.delete_topic("moving")


async def test_partitions_are_added_after_it_is_said_what_that_does_to_keys(page: Page, stage: Stage) -> None:
    async with comet.Admin(stage.broker) as admin:
        await admin.create_topic("growing", partitions=2)
        await page.goto(stage.at("/topics/growing"))
        await live(page)
        await page.get_by_role("button", name="Add partitions").click()
        total = dialog(page).get_by_label("Total partitions")
        await total.fill("2")
        await expect(dialog(page)).to_contain_text("must be more than 2")
        await total.fill("4")
        await dialog(page).get_by_role("button", name="Review").click()
        await expect(dialog(page).locator("dl")).to_have_text("Partitions2 → 4Keys that move50 %")
        await dialog(page).get_by_role("button", name="Add partitions").click()
        await expect(page.get_by_role("status").filter(has_text="growing has 4 partitions")).to_be_visible()
        await page.mouse.move(0, 0)
        await page.reload()
        await expect(row(page, "3")).to_be_visible()
        await admin.delete_topic("growing")


async def test_purging_says_what_goes_and_keeps_the_topic(page: Page, stage: Stage) -> None:
    async with comet.Admin(stage.broker) as admin, comet.Producer(stage.broker) as producer:
        await admin.create_topic("full", partitions=1)
        for _ in range(5):
            await producer.send("full", b"x")
        await producer.flush()
        await page.goto(stage.at("/topics/full"))
        await live(page)
        await page.get_by_role("button", name="Purge").click()
        await expect(dialog(page).locator("dl")).to_have_text("Records5Partitions1")
        await dialog(page).get_by_label("Type full to confirm").fill("full")
        await shot(page, "topic-purge")
        await dialog(page).get_by_role("button", name="Delete all records").click()
        await expect(page.get_by_role("status").filter(has_text="5 records of full deleted")).to_be_visible()
        await expect(page.locator("[data-field=records]")).to_have_text("0")
        partitions = (await admin.describe_topic("full")).partitions
        assert [(one.log_start, one.log_end) for one in partitions] == [(5, 5)]
        await admin.delete_topic("full")


async def test_deleting_leads_back_to_the_list_which_says_so(page: Page, stage: Stage) -> None:
    async with comet.Admin(stage.broker) as admin:
        await admin.create_topic("doomed", partitions=1)
    await page.goto(stage.at("/topics/doomed"))
    await page.get_by_role("button", name="Delete").click()
    await dialog(page).get_by_label("Type doomed to confirm").fill("doomed")
    await dialog(page).get_by_role("button", name="Delete topic").click()
    await expect(page).to_have_url(stage.at("/topics"))
    await expect(page.get_by_role("status").filter(has_text="doomed deleted")).to_be_visible()


# ---- who leads


async def test_leadership_is_moved_after_a_look_at_what_changes(page: Page, stage: Stage) -> None:
    """The stage has one broker: what the API says of three is made up. The real thing is in test_brokers."""
    placement = {"leader": 1, "replicas": [1, 2, 3]}
    partitions = [
        {**placement, "partition": 0, "in_sync": [1, 2]},
        {**placement, "partition": 1, "in_sync": [1, 2, 3]},
        {**placement, "partition": 2, "in_sync": [1]},
    ]
    counts = [{"broker": 1, "before": 3, "after": 1}, {"broker": 2, "before": 0, "after": 2}]
    moved = [{"topic": "quotes", "partition": index, "leader": 1, "to": 2} for index in (0, 1)]
    plan = {"changes": 2, "brokers": counts, "partitions": moved}
    asked: list[Any] = []

    async def answer(route: Route) -> None:
        asked.append(route.request.post_data_json)
        await route.fulfill(json=plan)

    await page.route("**/v1/topics/quotes", lambda route: route.fulfill(json={"partitions": partitions}))
    await page.route("**/v1/leaders/move*", answer)
    await page.goto(stage.at("/topics/quotes"))
    await live(page)
    await page.get_by_role("checkbox", name="Select 0").check()
    await page.get_by_role("checkbox", name="Select 1").check()
    await page.get_by_role("button", name="Move leadership").click()
    choice = dialog(page).get_by_label("New leader")
    await expect(choice.get_by_role("option")).to_have_text(["in-sync broker with the fewest leaders", "broker 2"])
    await choice.select_option("2")
    await dialog(page).get_by_role("button", name="Review").click()
    await expect(dialog(page).locator("dl")).to_contain_text("Leaders per broker1: 3 → 1, 2: 0 → 2")
    await dialog(page).get_by_role("button", name="Move leadership").click()
    await expect(
        page.get_by_role("status").filter(has_text="Moving leadership of 2 partitions of quotes")
    ).to_be_visible()
    wanted = {"partitions": [{"topic": "quotes", "partition": index, "broker": 2} for index in (0, 1)]}
    assert asked == [wanted, wanted]


async def test_a_leader_is_elected_only_by_who_accepts_what_is_lost(page: Page, stage: Stage) -> None:
    """What the API says of a partition without a leader is made up: to lose one takes a damaged disk."""
    copy = {"leader": False, "in_sync": False, "log_start": "0", "high_watermark": "90", "bytes": "9", "segments": 1}
    copies = [
        {**copy, "broker": 1, "log_end": None, "failed": None},
        {**copy, "broker": 2, "log_end": "1090", "failed": False},
    ]
    answers = {
        "GET /v1/topics/quotes": {"partitions": [{"partition": 1, "leader": None}]},
        "GET /v1/topics/quotes/partitions/1": {"copies": copies},
        "POST /v1/topics/quotes/partitions/1/elect-leader?dry_run=true": {"lost": "1234", "copies": copies},
        "POST /v1/topics/quotes/partitions/1/elect-leader": {},
    }
    asked: list[tuple[str, Any]] = []

    async def answer(route: Route) -> None:
        request = route.request
        what = f"{request.method} {request.url.removeprefix(stage.url)}"
        asked.append((what, request.post_data_json))
        await route.fulfill(json=answers[what])

    await page.route("**/v1/topics/**", answer)
    await page.goto(stage.at("/topics/quotes"))
    await live(page)
    await page.get_by_role("checkbox", name="Select 1").check()
    await page.get_by_role("button", name="Elect leader").click()
    choice = dialog(page).get_by_label("New leader")
    await expect(choice.get_by_role("option")).to_have_text(
        ["broker 1: does not answer", "broker 2: has up to offset 1,090"]
    )
    await choice.select_option("2")
    await dialog(page).get_by_role("button", name="Review").click()
    await expect(dialog(page).locator("dl")).to_contain_text("Records lost1,234")
    go = dialog(page).get_by_role("button", name="Accept data loss")
    await expect(go).to_be_disabled()
    await dialog(page).get_by_label("Type quotes to confirm").fill("quotes")
    await go.click()
    await expect(page.get_by_role("status").filter(has_text="Broker 2 leads partition 1")).to_be_visible()
    assert asked[-1] == (list(answers)[-1], {"broker": 2, "accept_loss": True})


async def test_a_partition_that_has_a_leader_needs_no_other(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/topics/quotes"))
    await live(page)
    await page.get_by_role("checkbox", name="Select 0").check()
    await page.get_by_role("button", name="Elect leader").click()
    await expect(page.get_by_role("status").filter(has_text="no election is needed")).to_be_visible()
    await page.get_by_role("button", name="Move leadership").click()
    await expect(page.get_by_role("status").filter(has_text="no other replica in sync")).to_be_visible()


# ---- what it is set to


async def test_settings_are_edited_in_place_looked_at_and_saved(page: Page, stage: Stage) -> None:
    async with comet.Admin(stage.broker) as admin, comet.Producer(stage.broker) as producer:
        await admin.create_topic("tuned", partitions=1)
        for _ in range(30):
            await producer.send("tuned", b"x" * 100)
        await producer.flush()
        await page.goto(stage.at("/topics/tuned/config"))
        await expect(page.get_by_text("all settings have their defaults")).to_be_visible()
        await page.get_by_role("button", name="Edit retention_ms").click()
        box = page.get_by_label("retention_ms", exact=True)
        await expect(box).to_have_value("7 d")
        await box.fill("soon")
        await expect(page.get_by_text("write e.g. 30 s, 12 h, 7 d, or none")).to_be_visible()
        save = page.get_by_role("button", name="Review and save")
        await expect(save).to_be_disabled()
        await box.fill("2 h")
        await page.get_by_role("button", name="Edit flush", exact=True).click()
        await page.get_by_label("flush", exact=True).select_option("always")
        await shot(page, "config-edit")
        await save.click()
        told = dialog(page).locator("dl")
        await expect(told).to_have_text("retention_ms7 d → 2 hflushinterval → alwaysRecordsnone deleted")
        await dialog(page).get_by_role("button", name="Save").click()
        await expect(page.get_by_role("status").filter(has_text="2 settings of tuned saved")).to_be_visible()
        await expect(page.get_by_text("2 of 16 settings are set for this topic")).to_be_visible()
        rows = page.locator("tr[data-setting]")
        assert {await rows.nth(at).get_attribute("data-setting") for at in (0, 1)} == {"retention_ms", "flush"}
        info = await admin.describe_topic("tuned")
        assert (info.config.retention_ms, info.config.flush) == (7_200_000, comet.Flush.ALWAYS)
        await page.get_by_role("button", name="Edit retention_ms").click()
        await page.get_by_role("button", name="Default").click()
        await expect(box).to_have_value("7 d")
        await expect(page.get_by_text("1 setting changed")).to_be_visible()
        await page.get_by_role("button", name="Discard").click()
        await admin.delete_topic("tuned")


async def test_a_setting_that_destroys_records_says_how_many_and_wants_the_name(page: Page, stage: Stage) -> None:
    async with comet.Admin(stage.broker) as admin, comet.Producer(stage.broker) as producer:
        await admin.create_topic("shrinking", partitions=1, segment_bytes=64 << 10)
        for _ in range(30):
            await producer.publish("shrinking", b"x" * 8_000, timestamp_us=1)  # by these, all of them would be old
        plan = await admin.alter_topic("shrinking", retention_records=10, dry_run=True)
        assert plan.records > 0
        await page.goto(stage.at("/topics/shrinking/config"))
        await page.get_by_role("button", name="Edit retention_records").click()
        await page.get_by_label("retention_records", exact=True).fill("10")
        await page.keyboard.press("Enter")
        await expect(dialog(page).locator("dl")).to_contain_text(f"{plan.records} deleted permanently")
        await shot(page, "config-destroys")
        await expect(dialog(page).get_by_role("button", name="Save")).to_be_disabled()
        await page.keyboard.press("Escape")
        await expect(dialog(page)).to_have_count(0)
        await page.get_by_role("button", name="Discard").click()
        await expect(page.get_by_label("retention_records", exact=True)).to_have_count(0)
        await admin.delete_topic("shrinking")


async def test_settings_that_the_cluster_refuses_stay_to_be_corrected(
    context: Watched, page: Page, stage: Stage
) -> None:
    context.expected = ("400",)
    await page.goto(stage.at("/topics/empty/config"))
    await page.get_by_role("button", name="Edit min_insync").click()
    await page.get_by_label("min_insync", exact=True).fill("3")
    await page.get_by_role("button", name="Review and save").click()
    await expect(page.locator("[data-changes-text]")).to_contain_text("can never be met with 1 replicas")
    await expect(page.get_by_label("min_insync", exact=True)).to_have_value("3")
    await page.get_by_label("min_insync", exact=True).press("Escape")
    await expect(page.get_by_role("button", name="Edit min_insync")).to_be_focused()


# ---- who reads it


async def test_groups_are_told_with_their_lag_partition_by_partition(page: Page, stage: Stage) -> None:
    async with comet.Admin(stage.broker) as admin, comet.Producer(stage.broker) as producer:
        await admin.create_topic("read", partitions=2)
        for number in range(9):
            await producer.send("read", b"x", partition=int(number > 5))
        await producer.flush()
        await admin.commit_offsets("analytics-readers", {("read", 0): 2, ("read", 1): 3})
        await page.goto(stage.at("/topics/read/consumers"))
        await live(page)
        await expect(row(page, "analytics-readers").get_by_role("cell").nth(3)).to_have_text("4")
        lags = page.locator("[data-table=lags] tbody tr")
        await expect(lags).to_have_text([re.compile("^0264"), re.compile("^1330")])
        await shot(page, "consumers-light")
        await page.set_viewport_size({"width": 390, "height": 844})
        last = page.locator("[data-table=consumers] th:visible").last
        assert await last.evaluate("node => node.getBoundingClientRect().right <= innerWidth"), "the last column is cut"
        await row(page, "analytics-readers").get_by_role("link", name="analytics-readers").click()
        await expect(page).to_have_url(stage.at("/groups/analytics-readers"))
        await admin.delete_topic("read")


async def test_a_topic_that_nobody_reads_says_how_to(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/topics/empty/consumers"))
    await expect(page.get_by_text("No group reads this topic")).to_be_visible()
    await expect(page.get_by_text("comet consume empty --group engine")).to_be_visible()


# ---- who may do what


@contextmanager
def guarded(stage: Stage, folder: Path) -> Iterator[str]:
    """Another gateway of the stage, for which people need tokens."""
    file = folder / "tokens.toml"
    rows = [
        f'[[token]]\nname = "{name}"\nrole = "{role}"\nsha256 = "{hashlib.sha256(token(name).encode()).hexdigest()}"\n'
        for name, role in TOKENS.items()
    ]
    file.write_text("\n".join(rows))
    words = ("--bootstrap", stage.broker, "--port", "0", "--tokens-file", str(file), "--json")
    with started(Child("gateway", python_module("comet.cli", "gateway", *words), piped=True)) as child:
        yield json.loads(child.line(60))["url"]


def token(name: str) -> str:
    return f"comet_{name}_{'0' * 40}"


async def test_who_may_not_sees_everything_and_is_told_why(browser: Browser, stage: Stage, tmp_path: Path) -> None:
    with guarded(stage, tmp_path) as url:
        async with watched(browser) as found:
            page = await found.context.new_page()
            await page.goto(f"{url}/login?next=/topics/quotes")
            await page.get_by_label("Token").fill(token("reader"))
            await page.get_by_role("button", name="Log in").click()
            await expect(page.get_by_role("heading", name="quotes", exact=True)).to_be_visible()
            await expect(row(page, "0")).to_contain_text("in sync")
            button = page.get_by_role("button", name="Delete")
            await expect(button).to_have_attribute("aria-disabled", "true")
            await button.focus()
            await page.keyboard.press("Enter")
            told = page.get_by_role("status").filter(has_text="needs the role admin; you are viewer")
            await expect(told).to_be_visible()
            await expect(dialog(page)).to_have_count(0)
            await shot(page, "topic-viewer")
            await page.goto(f"{url}/topics/quotes/config")
            await expect(page.get_by_text("Editing needs the role admin; you are viewer.")).to_be_visible()
            await page.get_by_role("button", name="Edit retention_ms").focus()
            await page.keyboard.press("Enter")
            await expect(page.get_by_label("retention_ms", exact=True)).to_have_count(0)
