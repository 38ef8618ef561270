"""What is around every page: keys, theme, pause, the state of the connection, narrow windows, and what a load costs."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.async_api import Browser, Page, Request, expect

from comet.processes.child import Child, python_module
from tests.browser.axe import BY_LOOKS, axe
from tests.browser.conftest import WAIT_MS, Stage, Watched, settled, shot, stop_time, watched
from tests.etcd import free_ports
from tests.waiting import until

PATHS = (
    "/",
    "/topics",
    "/topics/quotes",
    "/topics/quotes/records",
    "/topics/quotes/config",
    "/topics/quotes/consumers",
    "/topics/quotes/keys",
    "/groups",
    "/groups/engine",
    "/dead-letters",
    "/schedules",
    "/brokers",
    "/brokers/1",
    "/quotes",
    "/about",
)
COMES_BACK_MS = 90_000  # a page looks for its gateway ever more seldom, the longer that takes to start
FIRST_LOAD_BYTES_MAX = 150_000
FIRST_PAINT_MS = 500  # aimed at on a machine that does nothing else; printed, as this one may


# ---- keys


async def test_every_control_is_reached_by_tab_and_seen_to_be(page: Page, stage: Stage) -> None:
    await settled(page, stage.at("/topics"))
    await page.keyboard.press("Space")  # paused, so that nothing comes or goes
    wanted = await page.evaluate(
        """() => [...document.querySelectorAll("a[href], button, input, summary, [tabindex='0']")]
            .filter((node) => node.checkVisibility({visibilityProperty: true}) && node.tabIndex >= 0)
            .map((node, at) => (node.dataset.control = at)).length"""
    )
    await page.evaluate("document.body.focus()")
    found: set[str] = set()
    for _ in range(wanted + 1):
        await page.keyboard.press("Tab")
        control, outline = await page.evaluate(
            """() => {
                const {activeElement: node} = document;
                const {outlineStyle, outlineWidth} = getComputedStyle(node);
                return [node.dataset.control ?? "", parseFloat(outlineWidth) * (outlineStyle !== "none")];
            }"""
        )
        if control:
            found.add(control)
            assert outline >= 1, f"control {control} does not show that it has the focus"
    assert len(found) == wanted


async def test_the_first_tab_skips_to_the_content(page: Page, stage: Stage) -> None:
    await settled(page, stage.at("/"))
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("main")).to_be_focused()


async def test_keys_go_everywhere(page: Page, stage: Stage) -> None:
    await stop_time(page)  # a letter is one after g for a moment only
    await settled(page, stage.at("/"))
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_contain_text("Pause and resume updates")
    await shot(page, "keys")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    for letter, path in (("t", "/topics"), ("c", "/groups"), ("b", "/brokers"), ("o", "/")):
        await page.keyboard.press("g")
        await page.keyboard.press(letter)
        await page.wait_for_url(stage.at(path))
    await expect(page.get_by_role("link", name="Overview")).to_have_attribute("aria-current", "page")


async def test_rows_are_walked_and_opened_by_keys(page: Page, stage: Stage) -> None:
    await settled(page, stage.at("/topics?filter=quotes|orders"))
    await page.keyboard.press("/")
    await expect(page.get_by_role("searchbox")).to_be_focused()
    await page.keyboard.type("j")  # a letter there, and no key
    await expect(page.get_by_role("searchbox")).to_have_value("quotes|ordersj".removeprefix("quotes|orders"))
    await page.keyboard.press("Escape")
    await settled(page, stage.at("/topics?filter=quotes|orders"))
    for keys, name in (("j", "orders"), ("j", "quotes"), ("k", "orders"), ("j", "quotes")):
        await page.keyboard.press(keys)
        await expect(page.get_by_role("link", name=name, exact=True)).to_be_focused()
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/topics/quotes")
    await page.keyboard.press("]")
    await page.wait_for_url("**/topics/quotes/records")
    await page.keyboard.press("[")
    await page.wait_for_url("**/topics/quotes")


async def test_keys_can_be_switched_off(page: Page, stage: Stage) -> None:
    await settled(page, stage.at("/"))
    await page.evaluate("localStorage.setItem('comet.keys', 'false')")
    await page.keyboard.press("t")
    await page.keyboard.press("Space")
    await expect(page.locator("html")).not_to_have_attribute("data-theme", "dark")
    await expect(page.locator("[data-pill]")).to_have_text("Live")
    await page.get_by_role("button", name="Shortcuts").click()
    await expect(page.get_by_role("dialog")).to_contain_text("Shortcuts are off")


# ---- pause, theme


async def test_pause_stops_what_changes_and_says_so(page: Page, stage: Stage) -> None:
    await settled(page, stage.at("/"))
    await page.get_by_role("button", name="Pause updates").click()
    await expect(page.locator("[data-pill]")).to_have_text("Paused")
    await expect(page.get_by_role("button", name="Resume updates")).to_have_attribute("aria-pressed", "true")
    await page.evaluate("document.addEventListener('comet:document', () => (document.title = 'changed'))")
    await page.get_by_role("button", name="Resume updates").press("Space")
    await expect(page.locator("[data-pill]")).to_have_text("Live")
    await expect(page).to_have_title("changed")
    await expect(page.get_by_role("button", name="Pause updates")).to_have_attribute("aria-pressed", "false")


async def test_the_theme_follows_the_system_until_somebody_chooses(browser: Browser, stage: Stage) -> None:
    async with watched(browser, color_scheme="dark") as found:
        page = await found.context.new_page()
        await settled(page, stage.at("/"))
        ground = "getComputedStyle(document.documentElement).backgroundColor"
        picture = "document.querySelector('[data-chart=records] canvas').toDataURL()"
        dark, drawn = await page.evaluate(ground), await page.evaluate(picture)
        await page.emulate_media(color_scheme="light")
        light = await page.evaluate(ground)
        assert light != dark
        await page.wait_for_function(f"before => {picture} !== before", arg=drawn)
        await page.keyboard.press("t")
        assert await page.evaluate(ground) == dark, "chosen, though the system says light"
        await page.reload()
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        assert await page.evaluate(ground) == dark
        await page.keyboard.press("t")
        assert await page.evaluate("localStorage.getItem('comet.theme')") is None, "as the system again"


# ---- the state of the connection


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[tuple[Child, dict[str, str]]]:
    """A part of Comet, and what it says when it is ready. Killed at the end, if it is still there."""
    child = Child("comet", python_module("comet.cli", *arguments, "--json"), piped=True)
    child.start()
    try:
        yield child, json.loads(child.line(60))
    finally:
        child.kill()


@pytest.mark.timeout(300)
async def test_what_is_not_live_is_said_and_greyed_and_comes_back_alone(browser: Browser) -> None:
    here, there = map(str, free_ports(2))  # which nobody is given while they are free, between two lives
    up = ("up", "--ephemeral", "--no-gateway", "--metrics-port", "0", "--port", there)
    colour = "getComputedStyle(document.querySelector('[data-field=brokers]')).color"
    as_it_was = f"before => document.documentElement.dataset.live === 'live' && {colour} === before"
    with contextlib.ExitStack() as stack:
        broker, told = stack.enter_context(process(*up))
        serve = ("gateway", "--bootstrap", told["address"], "--port", here)
        gateway, at = stack.enter_context(process(*serve))
        async with watched(browser) as found:
            found.expected = ("WebSocket connection", "ERR_CONNECTION_REFUSED")
            page = await found.context.new_page()
            await settled(page, at["url"] + "/")
            await expect(page.locator("[data-field=health]")).to_have_text("Healthy")
            live = await (
                await page.wait_for_function(f"document.documentElement.dataset.live === 'live' && {colour}")
            ).json_value()

            gateway.kill()
            # Soon the one, then the other; who looks late sees the other alone.
            await expect(page.locator("[data-pill]")).to_have_text(re.compile("^(Reconnecting|Stale)"))
            await expect(page.locator("[data-pill]")).to_contain_text("Stale")
            assert await page.evaluate(colour) != live, "greyed"
            await shot(page, "stale")
            _, again = stack.enter_context(process(*serve))
            assert again["url"] == at["url"]
            await expect(page.locator("[data-pill]")).to_have_text("Live", timeout=COMES_BACK_MS)
            await page.wait_for_function(as_it_was, arg=live)

            broker.kill()
            await expect(page.locator("[data-pill]")).to_contain_text("Stale")
            await expect(page.locator("[data-field=health]")).to_have_text("Unreachable")
            await expect(page.locator("[data-table=reasons]")).to_contain_text("No broker answers")
            await shot(page, "broker-gone")
            stack.enter_context(process(*up))
            await expect(page.locator("[data-pill]")).to_have_text("Live", timeout=COMES_BACK_MS)
            await expect(page.locator("[data-field=health]")).to_have_text("Healthy", timeout=COMES_BACK_MS)


# ---- narrow windows, people who do not see or move as others do


@pytest.mark.parametrize("path", PATHS)
async def test_nobody_is_kept_from_a_page(browser: Browser, stage: Stage, path: str) -> None:
    async with watched(browser) as found:
        page = await found.context.new_page()
        await settled(page, stage.at(path)) if path != "/about" else await page.goto(stage.at(path))
        await axe(page)
        await page.emulate_media(color_scheme="dark")
        for width in (320, 360):  # as wide as a window of 1280 at 400 %, and as a telephone
            await page.set_viewport_size({"width": width, "height": 740})
            # It must not have to be scrolled sideways, once it is laid out for its new size.
            await page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
        await axe(page, rules=BY_LOOKS)


async def test_the_navigation_is_a_menu_in_a_narrow_window(browser: Browser, stage: Stage) -> None:
    async with watched(browser, viewport={"width": 360, "height": 740}) as found:
        page = await found.context.new_page()
        await settled(page, stage.at("/"))
        menu, topics = page.get_by_role("button", name="Menu"), page.get_by_role("link", name="Topics", exact=True)
        await expect(page.get_by_role("navigation", name="Main")).to_be_hidden()
        await menu.click()
        await expect(page.get_by_role("navigation", name="Main").get_by_role("link", name="Topics")).to_be_visible()
        await shot(page, "menu-360")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("navigation", name="Main")).to_be_hidden()
        await menu.click()
        await page.get_by_role("navigation", name="Main").get_by_role("link", name="Topics").click()
        await page.wait_for_url("**/topics")
        await expect(topics.first).to_be_hidden()


async def test_nothing_moves_for_those_who_want_it_so(page: Page, stage: Stage) -> None:
    await settled(page, stage.at("/"))
    assert await page.evaluate("document.getAnimations().length") == 0


async def test_pages_are_read_without_scripts(browser: Browser, stage: Stage) -> None:
    async with watched(browser, java_script_enabled=False) as found:
        page = await found.context.new_page()
        await page.goto(stage.at("/"))
        await expect(page.locator("[data-field=health]")).to_have_text("Healthy")
        await expect(page.get_by_role("button", name="Create topic")).to_be_hidden()


# ---- what a load costs


async def test_the_first_load_is_small_and_fast(context: Watched, stage: Stage) -> None:
    page = await context.context.new_page()
    session = await context.context.new_cdp_session(page)
    transferred: list[float] = []
    session.on("Network.loadingFinished", lambda event: transferred.append(event["encodedDataLength"]))
    requests: list[Request] = []

    def note(request: Request) -> None:
        requests.append(request)

    page.on("request", note)
    await session.send("Network.enable")
    await session.send("Network.setCacheDisabled", {"cacheDisabled": True})
    await settled(page, stage.at("/"))
    await page.wait_for_load_state("load")
    first = await page.wait_for_function("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    painted = await first.json_value()
    print(
        f"\n{len(requests)} requests, {sum(transferred) / 1000:.0f} kB transferred, first contentful paint after "
        f"{painted:.0f} ms; aimed at {FIRST_PAINT_MS}"
    )
    # The browser tells of ends on its own time; that of the socket does not come.
    assert await until(lambda: len(transferred) >= len(requests) - 1, within_s=30)
    assert sum(transferred) < FIRST_LOAD_BYTES_MAX


async def test_what_has_a_version_is_kept_for_ever(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/"))
    src = await page.locator("script[type=module]").get_attribute("src")
    async with httpx.AsyncClient(timeout=WAIT_MS / 1000) as client:
        answer = await client.get(stage.at(src or ""))
    assert "immutable" in answer.headers["cache-control"]
