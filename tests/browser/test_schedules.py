"""Schedules: the list in pages, one with its next times and its record, the form that shows times before it saves,
wrong texts, acts and their conflicts, refusals."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

import comet
from comet.errors import ScheduleNotFound
from tests.browser.axe import axe
from tests.browser.conftest import TOLD_S, Stage, Watched, live, settled, shot, watched
from tests.browser.seed import MARKUP
from tests.browser.test_topic import guarded, token
from tests.waiting import pace, until_answered

T = TypeVar("T")
_NUMBERS = count(1)
OPENING = "cron 30 9 * * 1-5 America/New_York"
VALUE = b'{"desk": "NORTH", "limit": 1.0800}'


@pytest_asyncio.fixture(loop_scope="package")
async def topic(stage: Stage) -> str:
    """A topic with the schedule `opening`."""
    name = f"timed-{next(_NUMBERS)}"
    async with comet.Admin(stage.broker) as admin:
        await admin.create_topic(name, partitions=2)
        await admin.schedules.put_schedule(
            name, "opening", OPENING, value=VALUE, key="ACME", headers={"source": "desk"}, partition=1
        )
    return name


async def with_admin(stage: Stage, work: Callable[[comet.ScheduleAdmin], Awaitable[T]]) -> T:
    async with comet.Admin(stage.broker) as admin:
        return await work(admin.schedules)


async def stored(stage: Stage, topic: str, id_: str = "opening") -> comet.ScheduleDetails:
    return await with_admin(stage, lambda admin: admin.get_schedule(topic, id_))


async def ids(stage: Stage, topic: str) -> list[str]:
    found = await with_admin(stage, lambda admin: admin.list_schedules(topic))
    return [one.id for one in found.schedules]


def rows(page: Page) -> Locator:
    return page.locator('[data-table="schedules"] tbody tr')


def times(page: Page) -> Locator:
    return page.locator('[data-table="times"] tbody tr')


def dialog(page: Page) -> Locator:
    return page.locator("dialog[open]")


def previewed(page: Page) -> Locator:
    """The times that a dialog shows."""
    return dialog(page).locator(".next-times tbody tr")


def conflict(page: Page) -> Locator:
    return dialog(page).locator(".conflict")


def told(page: Page, text: str) -> Locator:
    return page.locator("#toasts").filter(has_text=text)


async def act(page: Page, name: str) -> None:
    await page.get_by_role("button", name=name, exact=True).click()


async def confirm(page: Page, name: str) -> None:
    await dialog(page).get_by_role("button", name=name, exact=True).click()


async def opened(page: Page, stage: Stage, topic: str, id_: str = "opening") -> None:
    await settled(page, stage.at(f"/schedules/{topic}/{id_}"))


# ---- the list


async def test_schedules_are_listed_in_pages_and_narrowed(page: Page, stage: Stage, topic: str) -> None:
    async with comet.Admin(stage.broker) as admin:
        await asyncio.gather(
            *(admin.schedules.put_schedule(topic, f"job.{at:03}", "every 1h", value=b"1") for at in range(105))
        )
        await admin.schedules.pause_schedule(topic, "job.007")
    await settled(page, stage.at("/"))
    await page.keyboard.press("g")
    await page.keyboard.press("s")
    await page.wait_for_url("**/schedules")
    await live(page)
    await page.get_by_label("Topic").fill(topic)
    await act(page, "Search")
    await live(page)
    await expect(rows(page)).to_have_count(100)
    await expect(page.get_by_text("100 schedules on this page")).to_be_visible()
    await page.get_by_role("link", name="Next page").click()
    await live(page)
    await expect(rows(page)).to_have_count(6)
    await expect(rows(page).last).to_contain_text("opening")
    await expect(rows(page).last).to_contain_text("09:30:00 America/New_York")
    await expect(page.get_by_role("link", name="Next page")).to_have_count(0)
    await page.get_by_role("link", name="First page").click()
    await live(page)
    await page.get_by_label("Id prefix").fill("job.00")
    await act(page, "Search")
    await live(page)
    await expect(rows(page)).to_have_count(10)
    await shot(page, "schedules")
    await axe(page)
    await page.get_by_label("State").select_option("paused")
    await act(page, "Search")
    await live(page)
    await expect(rows(page)).to_have_count(1)
    await expect(rows(page)).to_contain_text("job.007")


async def test_the_list_follows_changes(page: Page, stage: Stage, topic: str) -> None:
    await settled(page, stage.at(f"/schedules?topic={topic}"))
    await expect(rows(page)).to_have_count(1)
    async with comet.Admin(stage.broker) as admin:
        await admin.schedules.pause_schedule(topic, "opening")
        await expect(rows(page)).to_contain_text("paused")
        await admin.schedules.put_schedule(topic, "closing", "every 1s", value=b"1")
        await expect(rows(page)).to_have_count(2)
        await expect(rows(page).first).to_contain_text(re.compile("closing.*every 1s.*[2-9]0active"))
        await admin.schedules.cancel_schedule(topic, "closing")
        await admin.schedules.cancel_schedule(topic, "opening")
    await expect(page.get_by_text("No schedule matches")).to_be_visible()


async def test_a_topic_leads_to_its_schedules(page: Page, stage: Stage, topic: str) -> None:
    await settled(page, stage.at(f"/topics/{topic}"))
    await page.get_by_role("main").get_by_role("link", name="Schedules").click()
    await page.wait_for_url(f"**/schedules?topic={topic}")
    await expect(rows(page)).to_have_count(1)


async def test_a_prefix_without_a_topic_is_explained(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/schedules?prefix=a"))
    await expect(page.get_by_role("alert")).to_contain_text("name the topic, too")


# ---- one schedule


async def test_one_schedule_has_its_next_times_and_its_record(page: Page, stage: Stage, topic: str) -> None:
    await settled(page, stage.at(f"/schedules?topic={topic}"))
    await rows(page).first.click()
    await page.wait_for_url(f"**/schedules/{topic}/opening")
    await live(page)
    await expect(times(page)).to_have_count(10)
    await expect(times(page).first).to_contain_text(
        re.compile(r"(Mon|Tue|Wed|Thu|Fri) \d{4}-\d\d-\d\d 09:30:00 -0[45]:00")
    )
    await expect(times(page).first).to_contain_text(re.compile("1[34]:30:00"))
    content = page.locator("[data-content]")
    await expect(content.locator(".tree")).to_contain_text("limit: 1.0800")  # every digit
    await expect(content).to_contain_text("Headers · 1")
    await expect(page.locator("[data-preview]")).to_be_hidden()
    await expect(page.get_by_role("main")).to_contain_text("fire_last: the last missed time, for all of them")
    await axe(page)
    await shot(page, "schedule")


async def test_hostile_records_are_text(page: Page, stage: Stage, topic: str) -> None:
    await with_admin(
        stage,
        lambda admin: admin.put_schedule(
            topic, "hostile:1", "every 1h", value=MARKUP.encode(), key=b"\xff\xfe", headers={"desk": MARKUP}
        ),
    )
    await settled(page, stage.at(f"/schedules?topic={topic}"))
    await rows(page).first.click()
    await page.wait_for_url(f"**/schedules/{topic}/hostile%3A1")
    await live(page)
    await expect(page.locator("[data-content] pre")).to_have_text(MARKUP)
    await expect(page.get_by_role("main")).to_contain_text("ff fe")
    assert await page.title() != "stolen"
    await act(page, "Edit")
    await expect(dialog(page).get_by_label("Key as")).to_have_value("base64")
    await expect(dialog(page).get_by_label("Value", exact=True)).to_have_value(MARKUP)
    await confirm(page, "Save")
    await expect(told(page, "Schedule hostile:1 saved")).to_be_visible()
    found = await stored(stage, topic, "hostile:1")
    assert (found.key, found.value, found.headers) == (b"\xff\xfe", MARKUP.encode(), (("desk", MARKUP.encode()),))


async def test_a_schedule_that_fires_counts_and_leads_to_its_records(page: Page, stage: Stage, topic: str) -> None:
    await with_admin(stage, lambda admin: admin.put_schedule(topic, "quick", "every 1s", value=b"tick", fires_max=3))
    await opened(page, stage, topic, "quick")
    await expect(page.get_by_role("main")).to_contain_text("after 3 records")
    # It is over after the third one, which an open page says.
    await expect(page.get_by_role("alert").filter(has_text="No such schedule")).to_be_visible()
    await settled(page, stage.at(f"/topics/{topic}/records?header=comet-schedule-id%3A+quick"))
    await expect(page.locator("[data-records] tbody tr")).to_have_count(3)


async def test_a_calendar_that_ends_pauses_and_says_so(page: Page, stage: Stage, topic: str) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=3)
    begin = int(soon.timestamp()) * 1_000_000
    day = soon.date().isoformat()
    session = comet.CalendarSession(day, begin, begin + 60_000_000)
    name = f"SHORT{next(_NUMBERS)}"
    async with comet.Admin(stage.broker) as admin:
        await admin.calendars.put_calendar(comet.Calendar(name, "Europe/London", (session,), day))
        await admin.schedules.put_schedule(topic, "session", f"calendar:{name} open", value=b"1")
    await opened(page, stage, topic, "session")
    notice = page.get_by_role("status").filter(has_text=f"once calendar {name} has a new version")
    await expect(notice).to_be_visible()
    await expect(page.locator(".badge")).to_contain_text(f"waits for calendar {name}")
    await expect(page.get_by_role("button", name="Resume")).to_be_visible()
    await axe(page)
    await shot(page, "schedule-waits")
    await settled(page, stage.at(f"/schedules?topic={topic}&state=paused"))
    await expect(rows(page)).to_contain_text(f"waits for calendar {name}")


async def test_a_schedule_that_is_not_there_is_an_error_page(context: Watched, page: Page, stage: Stage) -> None:
    context.expected = ("404",)
    await page.goto(stage.at("/schedules/orders/none"))
    await expect(page.get_by_role("heading", name="No such schedule")).to_be_visible()


# ---- the form


async def test_the_next_ten_times_are_shown_before_anything_is_saved(
    context: Watched, page: Page, stage: Stage, topic: str
) -> None:
    context.expected = ("400", "404")
    await settled(page, stage.at(f"/schedules?topic={topic}"))
    await act(page, "New schedule")
    await expect(dialog(page).get_by_label("Topic")).to_have_value(topic)
    create = dialog(page).get_by_role("button", name="Create")
    await expect(create).to_be_disabled()
    await dialog(page).get_by_label("Id", exact=True).fill("closing")
    spec = dialog(page).get_by_label("Times", exact=True)
    await spec.fill("cron 30 25 * * 1-5 Europe/London")
    problem = dialog(page).locator(".field:has([name=spec]) .problem")
    await expect(problem).to_contain_text("invalid schedule at character 8: hour '25' · hours are 0-23")
    await expect(problem.locator("mark")).to_have_text("25")
    await expect(spec).to_have_attribute("aria-invalid", "true")
    await expect(create).to_be_disabled()
    await shot(page, "schedule-wrong")
    await axe(page)
    await spec.fill("calendar:NONE close")
    await expect(problem).to_contain_text("calendar 'NONE' does not exist in this cluster · add it with comet calendar")
    await spec.fill("cron 30 16 * * 1-5 Europe/London")
    await expect(previewed(page)).to_have_count(10)
    await expect(previewed(page).first).to_contain_text(
        re.compile(r"(Mon|Tue|Wed|Thu|Fri) \d{4}-\d\d-\d\d 16:30:00 \+0[01]:00")
    )
    await expect(dialog(page).locator(".next-times")).to_contain_text("Europe/London")
    await expect(create).to_be_enabled()
    assert await ids(stage, topic) == ["opening"], "nothing is saved yet"
    await dialog(page).get_by_label("Value", exact=True).fill('{"report": 1.250}')
    await dialog(page).get_by_label("Headers").fill("desk: SOUTH")
    await dialog(page).get_by_text("Late times, jitter, end, lifetime").click()
    await dialog(page).get_by_label("Records at most").fill("3")
    await expect(previewed(page)).to_have_count(3)
    await expect(dialog(page).locator(".next-times")).to_contain_text("it ends after 3 records")
    await dialog(page).get_by_label("Late times, as after an outage").select_option("skip")
    await dialog(page).get_by_label("Too late after").fill("5 min")
    await dialog(page).get_by_label("Jitter up to").fill("1.5 s")
    await dialog(page).get_by_label("No time after").fill("2030-12-31T18:00:00.25+01:00")
    await axe(page)
    await shot(page, "schedule-form")
    await create.click()
    await page.wait_for_url(f"**/schedules/{topic}/closing")
    await live(page)
    found = await stored(stage, topic, "closing")
    one = found.schedule
    assert (one.spec, one.fires_max, one.late, one.late_max_ms, one.jitter_ms) == (
        "cron 30 16 * * 1-5 Europe/London", 3, "skip", 300_000, 1_500,
    )  # fmt: skip
    assert one.end_us == int(datetime(2030, 12, 31, 17, tzinfo=UTC).timestamp()) * 1_000_000 + 250_000
    assert (found.value, found.headers) == (b'{"report": 1.250}', (("desk", b"SOUTH"),))


async def test_times_of_another_text_cannot_be_saved(page: Page, stage: Stage, topic: str) -> None:
    """What is saved is what was shown: while the gateway computes, and after it failed, there is nothing to save."""
    await settled(page, stage.at(f"/schedules?topic={topic}"))
    await act(page, "New schedule")
    create = dialog(page).get_by_role("button", name="Create")
    spec = dialog(page).get_by_label("Times", exact=True)
    await dialog(page).get_by_role("button", name="every 15m").click()
    await expect(previewed(page)).to_have_count(10)
    await expect(create).to_be_enabled()
    held: asyncio.Event = asyncio.Event()

    async def hold(route: object) -> None:
        await held.wait()
        await route.continue_()  # type: ignore[attr-defined]

    await page.route("**/v1/schedules/next?*", hold)
    await spec.fill("every 20m")
    await expect(create).to_be_disabled()
    held.set()
    await expect(dialog(page).locator("caption")).to_contain_text("every 20m")
    await expect(create).to_be_enabled()
    await page.unroute_all()
    await spec.fill("")
    await expect(create).to_be_disabled()


async def test_texts_that_follow_each_other_fast_end_with_the_times_of_the_last(
    page: Page, stage: Stage, topic: str
) -> None:
    """Answers to earlier texts are given up, also while their bodies come."""
    await settled(page, stage.at(f"/schedules?topic={topic}"))
    # Every body ends only once the call is given up, but the last one: that of 59 minutes.
    await page.evaluate(
        """() => {
            const real = window.fetch;
            window.fetch = async (url, options) => {
                const answer = await real(url, options);
                if (!String(url).includes("/next?") || String(url).includes("59m")) return answer;
                const json = () => new Promise((_, fail) =>
                    options.signal.addEventListener("abort", () => fail(options.signal.reason)));
                return new Proxy(answer, {get: (of, name) => name === "json" ? json : Reflect.get(of, name, of)});
            };
        }"""
    )
    await act(page, "New schedule")
    for minutes in (57, 58):
        async with page.expect_response(f"**/v1/schedules/next?spec=every+{minutes}m*"):
            await dialog(page).get_by_label("Times", exact=True).fill(f"every {minutes}m")
    await dialog(page).get_by_label("Times", exact=True).fill("every 59m")
    await expect(dialog(page).locator("caption")).to_contain_text("every 59m")
    await expect(previewed(page)).to_have_count(10)


async def test_a_time_that_is_over_is_said_to_be(page: Page, stage: Stage, topic: str) -> None:
    await settled(page, stage.at(f"/schedules?topic={topic}"))
    await act(page, "New schedule")
    await dialog(page).get_by_label("Times", exact=True).fill("at 2020-01-01T09:00Z")
    await expect(dialog(page).locator(".next-times")).to_contain_text("it comes once, and that is over")


async def test_an_id_is_made_where_none_is_given(page: Page, stage: Stage, topic: str) -> None:
    await settled(page, stage.at(f"/schedules?topic={topic}"))
    await act(page, "New schedule")
    await dialog(page).get_by_label("Id", exact=True).fill("..")
    await expect(dialog(page)).to_contain_text("beginning with a letter, digit or")
    await dialog(page).get_by_label("Id", exact=True).fill("")
    await dialog(page).get_by_label("Times", exact=True).fill("at 2030-12-01T09:30 Europe/London")
    await expect(previewed(page)).to_have_count(1)
    await dialog(page).get_by_label("Value as").select_option("tombstone")
    await dialog(page).get_by_label("Key as").select_option("text")
    await dialog(page).get_by_label("Key", exact=True).fill("ACME")
    await confirm(page, "Create")
    await page.wait_for_url(re.compile(f"/schedules/{topic}/[0-9a-f]{{32}}$"))
    await live(page)
    await expect(page.get_by_text("Tombstone: no value; deletes the key.")).to_be_visible()
    assert len(await ids(stage, topic)) == 2


async def test_an_id_that_is_taken_is_told_with_what_is_there(
    context: Watched, page: Page, stage: Stage, topic: str
) -> None:
    context.expected = ("412",)
    await settled(page, stage.at(f"/schedules?topic={topic}"))
    await act(page, "New schedule")
    await dialog(page).get_by_label("Id", exact=True).fill("opening")
    await dialog(page).get_by_label("Times", exact=True).fill("every 5m")
    await dialog(page).get_by_label("Value", exact=True).fill("1")
    await expect(previewed(page)).to_have_count(10)
    await confirm(page, "Create")
    await expect(conflict(page)).to_contain_text(f"A schedule of this id exists: now it is {OPENING}, active, revision")
    assert (await stored(stage, topic)).schedule.spec == OPENING
    await conflict(page).get_by_role("button", name="Go on with mine").click()
    await confirm(page, "Create")
    await page.wait_for_url(f"**/schedules/{topic}/opening")
    assert (await stored(stage, topic)).schedule.spec == "every 5m"


async def test_a_schedule_is_changed_at_the_revision_shown(
    context: Watched, page: Page, stage: Stage, topic: str
) -> None:
    context.expected = ("412",)
    await opened(page, stage, topic)
    await act(page, "Edit")
    spec = dialog(page).get_by_label("Times", exact=True)
    value = dialog(page).get_by_label("Value", exact=True)
    await expect(spec).to_have_value(OPENING)
    await expect(value).to_have_value('{\n  "desk": "NORTH",\n  "limit": 1.0800\n}')
    await expect(dialog(page).get_by_label("Partition")).to_have_value("1")
    await expect(previewed(page)).to_have_count(10)
    await with_admin(stage, lambda admin: admin.put_schedule(topic, "opening", "every 2h", value=b'{"a": 2.50}'))
    await spec.fill("every 3h")
    await expect(dialog(page).locator("caption")).to_contain_text("every 3h")
    await confirm(page, "Save")
    await expect(conflict(page)).to_contain_text(
        "Nothing was written. It was changed meanwhile: now it is every 2h, active"
    )
    await axe(page)
    await shot(page, "schedule-conflict")
    await conflict(page).get_by_role("button", name="Load revision").click()
    await expect(spec).to_have_value("every 2h")
    await expect(value).to_have_value('{\n  "a": 2.50\n}')
    await expect(dialog(page).get_by_label("Partition")).to_have_value("")
    await value.fill('{"a": 2.75}')
    await confirm(page, "Save")
    await expect(told(page, "Schedule opening saved")).to_be_visible()
    found = await stored(stage, topic)
    assert (found.schedule.spec, found.value, found.key) == ("every 2h", b'{"a": 2.75}', None)
    await expect(page.locator("[data-content] .tree")).to_contain_text("a: 2.75")


async def test_a_change_before_the_first_update_of_the_page_shows_its_record(
    page: Page, stage: Stage, topic: str
) -> None:
    """The page is rendered and its record read; then the schedule changes; only then the socket of the page opens."""
    await page.add_init_script(
        """const Real = window.WebSocket;
        window.opened = new Promise((go) => { window.openSockets = go; });
        window.WebSocket = class extends EventTarget {
            constructor(...given) {
                super();
                window.opened.then(() => {
                    this.real = new Real(...given);
                    for (const kind of ["open", "message", "close", "error"])
                        this.real.addEventListener(kind, (event) => this.pass(kind, event));
                });
            }
            pass(kind, event) {
                this[`on${kind}`]?.(event);
                this.dispatchEvent(new event.constructor(kind, event));
            }
            get readyState() { return this.real ? this.real.readyState : 0; }
            get bufferedAmount() { return this.real?.bufferedAmount ?? 0; }
            send(data) { this.real?.send(data); }
            close(...given) { this.real?.close(...given); }
        };
        for (const [name, value] of [["CONNECTING", 0], ["OPEN", 1], ["CLOSING", 2], ["CLOSED", 3]])
            window.WebSocket[name] = value;"""
    )
    await with_admin(stage, lambda admin: admin.put_schedule(topic, "early", "every 1h", value=b'{"a": 1.50}'))
    await page.goto(stage.at(f"/schedules/{topic}/early"))
    tree = page.locator("[data-content] .tree")
    await expect(tree).to_contain_text("a: 1.50")
    await with_admin(stage, lambda admin: admin.put_schedule(topic, "early", "every 1h", value=b'{"a": 2.75}'))
    await pace(1.0)  # the gateway reads the schedule again after half a second
    await page.evaluate("window.openSockets()")
    await expect(tree).to_contain_text("a: 2.75")


async def test_a_schedule_that_was_cancelled_meanwhile_is_told(
    context: Watched, page: Page, stage: Stage, topic: str
) -> None:
    context.expected = ("412", "404")
    await opened(page, stage, topic)
    await act(page, "Edit")
    await expect(previewed(page)).to_have_count(10)
    await with_admin(stage, lambda admin: admin.cancel_schedule(topic, "opening"))
    await confirm(page, "Save")
    await expect(conflict(page)).to_contain_text("It was cancelled meanwhile, or has fired for the last time")
    await conflict(page).get_by_role("button", name="Go on as a new schedule").click()
    await confirm(page, "Save")
    await expect(told(page, "Schedule opening created")).to_be_visible()
    assert (await stored(stage, topic)).value is not None


async def test_a_schedule_that_fires_meanwhile_is_no_conflict(
    context: Watched, page: Page, stage: Stage, topic: str
) -> None:
    context.expected = ("412",)
    await with_admin(stage, lambda admin: admin.put_schedule(topic, "quick", "every 1s", value=b"tick"))
    await opened(page, stage, topic, "quick")
    await act(page, "Edit")
    await expect(dialog(page).get_by_label("Times", exact=True)).to_have_value("every 1s")
    fired = (await stored(stage, topic, "quick")).schedule.fired

    async def again() -> bool:
        return (await stored(stage, topic, "quick")).schedule.fired > fired

    assert await until_answered(again, within_s=TOLD_S)
    await dialog(page).get_by_label("Value", exact=True).fill("tock")
    await confirm(page, "Save")
    await expect(told(page, "Schedule quick saved")).to_be_visible()
    assert (await stored(stage, topic, "quick")).value == b"tock"
    await act(page, "Cancel schedule")
    await confirm(page, "Cancel schedule")
    await page.wait_for_url(f"**/schedules?topic={topic}")
    with pytest.raises(ScheduleNotFound):
        await stored(stage, topic, "quick")


# ---- acts


async def test_a_schedule_is_paused_and_resumed(page: Page, stage: Stage, topic: str) -> None:
    await opened(page, stage, topic)
    await expect(page.get_by_role("button", name="Resume")).to_be_hidden()
    await act(page, "Pause")
    await expect(dialog(page)).to_contain_text("It does not fire until it is resumed.")
    await expect(dialog(page).locator("dl")).to_contain_text(OPENING)
    await axe(page)
    await shot(page, "schedule-pause")
    await confirm(page, "Pause")
    await expect(told(page, "Schedule opening paused")).to_be_visible()
    await expect(page.locator(".badge")).to_have_text("paused")
    assert (await stored(stage, topic)).schedule.paused
    await expect(page.get_by_role("button", name="Pause", exact=True)).to_be_hidden()
    await act(page, "Resume")
    await expect(dialog(page).locator("dl")).to_contain_text(re.compile("Fires next.*UTC"))
    await confirm(page, "Resume")
    await expect(page.locator(".badge")).to_have_text("active")
    assert not (await stored(stage, topic)).schedule.paused


async def test_an_act_on_what_another_client_has_changed_is_told(
    context: Watched, page: Page, stage: Stage, topic: str
) -> None:
    context.expected = ("412",)
    await opened(page, stage, topic)
    await act(page, "Pause")
    await expect(dialog(page).locator("dl")).to_contain_text(OPENING)
    await with_admin(stage, lambda admin: admin.move_schedule(topic, "opening", "every 4h"))
    await confirm(page, "Pause")
    await expect(conflict(page)).to_contain_text("It was changed meanwhile: now it is every 4h, active, revision")
    assert not (await stored(stage, topic)).schedule.paused
    await conflict(page).get_by_role("button", name="Go on with revision").click()
    await expect(dialog(page).locator("dl")).to_contain_text("every 4h")
    await confirm(page, "Pause")
    await expect(told(page, "Schedule opening paused")).to_be_visible()
    assert (await stored(stage, topic)).schedule.paused


async def test_a_schedule_is_run_now(page: Page, stage: Stage, topic: str) -> None:
    await opened(page, stage, topic)
    await act(page, "Run now")
    await expect(dialog(page)).to_contain_text("It fires once, beside its times")
    await confirm(page, "Run now")
    await expect(page.locator('[data-field="fired"]')).to_have_text("1")
    await page.get_by_role("link", name="Records that it wrote").click()
    await live(page)
    await expect(page.locator("[data-records] tbody tr")).to_have_count(1)
    await expect(page.locator("[data-records] tbody tr")).to_contain_text("NORTH")


async def test_a_paused_schedule_is_not_run(context: Watched, page: Page, stage: Stage, topic: str) -> None:
    context.expected = ("400",)
    await with_admin(stage, lambda admin: admin.pause_schedule(topic, "opening"))
    await opened(page, stage, topic)
    await act(page, "Run now")
    await expect(dialog(page).get_by_role("alert")).to_contain_text("is paused: resume it first")
    await expect(dialog(page).get_by_role("button", name="Run now")).to_be_disabled()


async def test_a_schedule_is_moved(context: Watched, page: Page, stage: Stage, topic: str) -> None:
    context.expected = ("400",)
    await opened(page, stage, topic)
    await act(page, "Move")
    move = dialog(page).get_by_role("button", name="Move")
    spec = dialog(page).get_by_label("Times", exact=True)
    await expect(spec).to_have_value(OPENING)
    await spec.fill("every 45")
    await expect(dialog(page).locator(".problem")).to_contain_text("invalid schedule")
    await expect(move).to_be_disabled()
    await spec.fill("every 45m")
    await expect(previewed(page)).to_have_count(10)
    await axe(page)
    await shot(page, "schedule-move")
    await move.click()
    await expect(told(page, "Schedule opening moved: every 45m")).to_be_visible()
    await expect(page.locator("[data-field=spec]")).to_have_text("every 45m")
    found = await stored(stage, topic)
    assert (found.schedule.spec, found.value) == ("every 45m", VALUE)


async def test_a_schedule_is_cancelled(page: Page, stage: Stage, topic: str) -> None:
    await opened(page, stage, topic)
    await act(page, "Cancel schedule")
    await expect(dialog(page)).to_contain_text("It never fires again.")
    await confirm(page, "Back")
    assert await ids(stage, topic) == ["opening"]
    await act(page, "Cancel schedule")
    await confirm(page, "Cancel schedule")
    await page.wait_for_url(f"**/schedules?topic={topic}")
    await expect(page.get_by_text("No schedule matches")).to_be_visible()
    assert await ids(stage, topic) == []


# ---- roles, narrow, and without scripts


async def test_an_operator_changes_and_a_viewer_sees(
    browser: Browser, stage: Stage, topic: str, tmp_path: Path
) -> None:
    with guarded(stage, tmp_path) as url:
        for name in ("reader", "worker"):
            async with watched(browser) as found:
                page = await found.context.new_page()
                await page.goto(f"{url}/login?next=/schedules/{topic}/opening")
                await page.get_by_label("Token").fill(token(name))
                await act(page, "Log in")
                await live(page)
                await expect(times(page)).to_have_count(10)
                await expect(page.locator("[data-content]")).to_contain_text("NORTH")
                await page.get_by_role("button", name="Pause", exact=True).focus()
                await page.keyboard.press("Enter")
                if name == "reader":
                    await expect(told(page, "needs the role operator; you are viewer")).to_be_visible()
                    await expect(dialog(page)).to_have_count(0)
                    continue
                await confirm(page, "Pause")
                await expect(page.locator(".badge")).to_have_text("paused")


async def test_schedules_fit_on_a_telephone(browser: Browser, stage: Stage, topic: str) -> None:
    async with watched(browser, viewport={"width": 360, "height": 740}) as found:
        page = await found.context.new_page()
        for path in (f"/schedules?topic={topic}", f"/schedules/{topic}/opening"):
            await settled(page, stage.at(path))
            await expect(page.get_by_role("main")).to_contain_text("opening")
            assert await page.evaluate("document.documentElement.scrollWidth") <= 360, path
            await shot(page, "schedules-phone" if "?" in path else "schedule-phone")
        await act(page, "Edit")
        await expect(previewed(page)).to_have_count(10)
        inside = await dialog(page).evaluate("node => node.scrollWidth - node.clientWidth")
        assert inside <= 0
        await expect(dialog(page).get_by_role("button", name="Save")).to_be_enabled()
        await axe(page)
        await shot(page, "schedule-form-phone")


async def test_schedules_are_read_in_the_dark(browser: Browser, stage: Stage, topic: str) -> None:
    async with watched(browser, color_scheme="dark") as found:
        page = await found.context.new_page()
        await settled(page, stage.at(f"/schedules?topic={topic}"))
        await axe(page)
        await shot(page, "schedules-dark")
        await opened(page, stage, topic)
        await axe(page)
        await shot(page, "schedule-dark")
        await act(page, "Edit")
        await expect(previewed(page)).to_have_count(10)
        await axe(page)
        await shot(page, "schedule-form-dark")


async def test_schedules_are_read_without_scripts(browser: Browser, stage: Stage, topic: str) -> None:
    async with watched(browser, java_script_enabled=False) as found:
        page = await found.context.new_page()
        await page.goto(stage.at("/schedules"))
        await page.get_by_label("Topic").fill(topic)
        await act(page, "Search")
        await rows(page).get_by_role("link", name="opening").click()
        await expect(times(page)).to_have_count(10)
        await expect(page.locator("[data-preview]")).to_contain_text(VALUE.decode())
        await expect(page.locator('[data-table="headers"] tbody')).to_contain_text("source")
