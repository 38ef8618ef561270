"""The live connection of a tab: it requests a page again after a missing delta, and nothing while it is hidden."""

from __future__ import annotations

import json
from typing import Any

from playwright.async_api import Page, Route, WebSocketRoute, expect

from tests.browser.conftest import Stage, Watched, settled, stop_time
from tests.waiting import until

HIDE = """hidden => {
    Object.defineProperty(document, "hidden", {get: () => hidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""
GIVEN_UP = """async () => {
    const { live } = await import(new URL("live.js", document.querySelector("script[type=module]").src));
    return live.socket === null;
}"""


class Between:
    """What a tab and the gateway say to each other; the first tick is lost on the way."""

    def __init__(self) -> None:
        self.sockets: list[WebSocketRoute] = []
        self.said: list[dict[str, Any]] = []
        self.lost: list[dict[str, Any]] = []
        self.refuse = False
        self.silent = False
        self.closed = 0

    async def stand(self, page: Page) -> None:
        await page.route_web_socket("**/v1/ws", self._connect)

    async def _connect(self, socket: WebSocketRoute) -> None:
        self.sockets.append(socket)
        if self.refuse:
            await socket.close(code=1013)
            return
        server = socket.connect_to_server()

        def to_server(message: str | bytes) -> None:
            self.said.append(json.loads(message))
            server.send(message)

        def to_tab(message: str | bytes) -> None:
            told = json.loads(message)
            if told["type"] == "delta" and told["seq"] == 1 and not self.lost:
                self.lost.append(told)
            elif not self.silent:
                socket.send(message)

        def closed(code: int | None, reason: str | None) -> None:
            self.closed += 1

        socket.on_message(to_server)
        server.on_message(to_tab)
        socket.on_close(closed)

    def watched(self) -> list[str]:
        return [message["page"] for message in self.said if "page" in message]

    def tell(self, message: dict[str, Any]) -> None:
        self.sockets[-1].send(json.dumps(message))


async def open_page(page: Page, stage: Stage, path: str = "/topics") -> Between:
    between = Between()
    await between.stand(page)
    await settled(page, stage.at(path))
    return between


async def until_said(page: Page, between: Between, count: int) -> None:
    """Ticks come once a second: as many as it takes until the tab has asked so often."""
    for _ in range(20):
        if len(between.watched()) >= count:
            return
        await page.evaluate("new Promise((done) => document.addEventListener('comet:document', done, {once: true}))")
    raise AssertionError(between.said)


async def test_what_is_missing_is_asked_for_again(page: Page, stage: Stage) -> None:
    between = await open_page(page, stage, "/topics?sort=-in")
    await until_said(page, between, 2)
    assert between.lost and between.watched() == ["/topics?sort=-in"] * 2
    await expect(page.locator("[data-pill]")).to_have_text("Live")


async def test_a_page_that_cannot_be_shown_says_why_until_it_can(page: Page, stage: Stage) -> None:
    between = await open_page(page, stage)
    await until_said(page, between, 2)  # a tick was lost
    watch = next(message["id"] for message in reversed(between.said) if "page" in message)
    problem = {"title": "No such topic", "detail": "topic 'x<b>' does not exist", "request_id": "r-1", "status": 404}
    between.silent = True  # the next tick takes the problem away
    between.tell({"type": "error", "id": watch, "of": "subscribe", "problem": problem})
    alert = page.get_by_role("alert").filter(has_text="No such topic")
    await expect(alert).to_have_text("No such topic · topic 'x<b>' does not exist · request r-1")
    between.silent = False
    await expect(alert).to_have_count(0)


async def test_a_gateway_that_goes_away_is_left_and_found_again(page: Page, stage: Stage) -> None:
    between = await open_page(page, stage)
    await until_said(page, between, 2)  # a tick was lost
    between.tell({"type": "goaway", "reconnect_ms": 1})
    await until_said(page, between, 3)
    assert len(between.sockets) == 2
    await expect(page.locator("[data-pill]")).to_have_text("Live")


async def test_a_paused_tab_that_connects_again_asks_for_nothing_and_stays(page: Page, stage: Stage) -> None:
    """The gateway ends a connection that says nothing at first."""
    between = await open_page(page, stage)
    await until_said(page, between, 2)  # a tick was lost
    await page.get_by_role("button", name="Pause updates").click()
    said = len(between.said)
    between.tell({"type": "goaway", "reconnect_ms": 1})
    assert await until(lambda: len(between.sockets) == 2 and {"type": "ping"} in between.said[said:], within_s=30)
    assert len(between.watched()) == 2
    await page.get_by_role("button", name="Resume updates").click()
    await until_said(page, between, 3)
    await expect(page.locator("[data-pill]")).to_have_text("Live")


async def refuse(route: Route) -> None:
    """Once the rest of the page is there: one that is loaded again before that was never loaded."""
    await route.request.frame.page.wait_for_load_state()
    await route.abort("connectionreset")


async def test_a_page_of_which_half_was_loaded_is_loaded_again(context: Watched, stage: Stage) -> None:
    context.expected = ("ERR_CONNECTION_RESET",)
    page = await context.context.new_page()
    loads: list[str] = []
    page.on("load", lambda _: loads.append(page.url))
    refused: list[str] = []

    async def refuse_once(route: Route) -> None:
        refused.append(route.request.url)
        await refuse(route)

    await page.route("**/js/pages/topics.js", refuse_once, times=1)
    await settled(page, stage.at("/topics"))
    assert len(refused) == 1
    assert await until(lambda: len(loads) == 2, within_s=30)


async def test_a_page_that_stays_half_is_not_loaded_for_ever(context: Watched, stage: Stage) -> None:
    context.expected = ("ERR_CONNECTION_RESET", "Failed to fetch dynamically imported module")
    page = await context.context.new_page()
    loads: list[str] = []
    page.on("load", lambda _: loads.append(page.url))
    await page.route("**/js/pages/topics.js", refuse)
    async with context.context.expect_event("weberror"):
        await page.goto(stage.at("/topics"))
    assert await until(lambda: len(loads) == 2, within_s=30)
    await expect(page.locator("html")).to_have_attribute("data-live", "live")  # its figures are kept up to date


async def test_a_tab_that_nobody_looks_at_asks_for_nothing(page: Page, stage: Stage) -> None:
    await stop_time(page)
    between = await open_page(page, stage)
    await page.evaluate(HIDE, True)
    await page.clock.run_for(6_000)
    assert await until(lambda: between.closed == 1, within_s=30), "the socket was not closed"
    await page.evaluate(HIDE, False)
    await expect(page.locator("[data-pill]")).to_have_text("Live")
    assert len(between.sockets) == 2


async def test_it_is_tried_again_ever_more_seldom(page: Page, stage: Stage) -> None:
    await stop_time(page)
    between = await open_page(page, stage)
    between.refuse = True
    await between.sockets[-1].close(code=1012)
    await expect(page.locator("[data-pill]")).to_have_text("Reconnecting")
    for _ in range(24):
        await page.clock.run_for(5_000)
        await page.wait_for_function(GIVEN_UP)
    tries = len(between.sockets) - 1
    assert 5 <= tries <= 20, "in two minutes; and each after half a minute at most"
    await expect(page.locator("[data-pill]")).to_contain_text("Stale")
    between.refuse = False
    await page.clock.run_for(31_000)
    await expect(page.locator("[data-pill]")).to_have_text("Live")


async def test_who_types_fast_leaves_nothing_behind(page: Page, stage: Stage) -> None:
    between = await open_page(page, stage)
    many = """async many => {
        const main = document.querySelector("script[type=module]").src;
        const { navigate } = await import(main.replace("main.js", "navigate.js"));
        for (let at = 0; at < many; at += 1) navigate(`?filter=nothing-like-${at}`, { replace: true });
    }"""
    await page.evaluate(many, 40)  # more than the gateway lets a tab look at
    await expect(page.get_by_text("Nothing matches the filter.")).to_be_visible()
    await expect(page.locator("[data-page-problem]")).to_have_count(0)

    def but_the_last() -> bool:
        watched = [message["id"] for message in between.said if "page" in message]
        left = {message["id"] for message in between.said if message["type"] == "unsubscribe"}
        return len(watched) > 40 and set(watched) - left == {watched[-1]}

    assert await until(but_the_last, within_s=30), between.said


async def test_a_connection_without_a_word_is_given_up(page: Page, stage: Stage) -> None:
    """As after a sleep: it looks open for as long as nobody sends anything."""
    await stop_time(page)
    between = await open_page(page, stage)
    between.silent = True
    await page.clock.run_for(15_000)
    assert len(between.sockets) == 1, "a page may take its time"
    await expect(page.locator("[data-pill]")).to_contain_text("Stale")
    await page.clock.run_for(6_000)
    assert await until(lambda: len(between.sockets) == 2, within_s=30)
    between.silent = False
    await expect(page.locator("[data-pill]")).to_have_text("Live")
