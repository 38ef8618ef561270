"""What a page on another port of this host gets a real browser to do to a gateway, open or with somebody logged in; and
what somebody's markup becomes on our pages: text.

Another port is the nearest that a page can be without being ours: browsers count it as the same site, and send cookies.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

import comet
from comet_gateway.http.auth import new_token
from comet_web.pages import PAGES
from tests.browser.axe import axe
from tests.browser.conftest import Stage, Watched, shot, watched
from tests.browser.seed import MARKUP
from tests.robustness.gateway_process import GatewayProcess
from tests.waiting import until

ROLES = ("viewer", "operator", "admin")
PARAMETERS = {"topic": "orders", "group": "engine", "broker": "1", "schedule": "report"}
BLOCKED = (
    "Failed to load resource", "blocked by CORS policy", "WebSocket connection to", "frame-ancestors", "net::ERR_",
)  # fmt: skip
ATTEMPTS = """async ({gateway, socket, csrf}) => {
  const tried = {};
  const attempt = async (name, what) => {
    try { tried[name] = await what(); } catch { tried[name] = "refused"; }
  };
  const ask = (path, options) => async () => (await fetch(gateway + path, {credentials: "include", ...options})).type;
  const load = (tag, path) => () => new Promise((done, failed) => {
    const element = document.createElement(tag);
    Object.assign(element, {src: gateway + path, onload: () => done("loaded"), onerror: failed});
    document.body.append(element);
  });
  const connect = (path, protocols = []) => () => new Promise((done, failed) => {
    const made = new WebSocket(socket + path, protocols);
    Object.assign(made, {onopen: () => done("open"), onerror: failed});
  });
  const body = '{"name": "stolen", "partitions": 1}';
  const json = {"content-type": "application/json"};
  await attempt("read", ask("/v1/topics"));
  await attempt("read a page", ask("/about"));
  await attempt("read it blindly", ask("/v1/topics", {mode: "no-cors"}));
  await attempt("write", ask("/v1/topics", {method: "POST", headers: json, body}));
  const shown = {...json, "x-comet-csrf": csrf};
  await attempt("write as a page of theirs would", ask("/v1/topics", {method: "POST", headers: shown, body}));
  await attempt("write as a form would", ask("/v1/topics", {method: "POST", mode: "no-cors", body}));
  await attempt("delete", ask("/v1/topics/quotes", {method: "DELETE"}));
  await attempt("log out", ask("/logout", {method: "POST", mode: "no-cors", body: new URLSearchParams({csrf})}));
  await attempt("be a script", load("script", "/v1/topics"));
  await attempt("be an image", load("img", "/docs/favicon.png"));
  await attempt("listen to the API", connect("/v1/ws"));
  await attempt("listen as the dashboard does", connect("/v1/ws", "comet.v1"));
  return tried;
}"""


@dataclass
class Locked:
    """A gateway with tokens, before the broker of the stage."""

    url: str
    path: Path
    tokens: dict[str, str]

    def at(self, path: str) -> str:
        return self.url + path

    async def log_in(self, page: Page, role: str, path: str = "/about") -> None:
        await page.goto(self.at(path))
        await page.get_by_label("Token").fill(self.tokens[role])
        await page.get_by_role("button", name="Log in").click()
        await page.wait_for_url(self.at(path))


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def locked(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Locked]:
    folder = tmp_path_factory.mktemp("locked")
    made = {role: new_token(f"my-{role}", role) for role in ROLES}
    path = folder / "tokens.toml"
    path.write_text("".join(row for _, row in made.values()))
    one = GatewayProcess(folder / "gateway", [stage.broker], "--tokens-file", str(path))
    one.launch()
    try:
        await one.ready()
        yield Locked(one.url, path, {role: token for role, (token, _) in made.items()})
        assert not one.complaints(), one.said()
    finally:
        one.kill()


@asynccontextmanager
async def foreign_page(html: str = "") -> AsyncIterator[str]:
    """A web server of somebody else on this host: whatever it is asked for is that page."""
    body = f"<!doctype html><title>Prizes</title><body>{html}</body>".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):  # browsers connect ahead, and then ask nothing
            await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def topics(stage: Stage) -> set[str]:
    async with comet.Admin(stage.broker) as admin:
        return {topic.name for topic in await admin.list_topics()}


async def csrf_of(page: Page) -> str:
    return await page.locator('meta[name="csrf"]').get_attribute("content") or ""


# ---- pages of others


@pytest.mark.parametrize("which", ["open", "locked"])
async def test_a_page_on_another_port_can_do_nothing(
    browser: Browser, stage: Stage, locked: Locked, which: str
) -> None:
    before = await topics(stage)
    gateway = locked.url if which == "locked" else stage.url
    async with watched(browser) as one, foreign_page() as elsewhere:
        one.expected = BLOCKED
        page = await one.context.new_page()
        csrf = ""
        if which == "locked":
            await locked.log_in(page, "admin")
            csrf = await csrf_of(page)
            assert csrf
        await page.goto(elsewhere)
        sent = await one.context.cookies(elsewhere)
        assert [cookie["name"] for cookie in sent] == (["comet_session"] if which == "locked" else [])
        asked = {"gateway": gateway, "socket": gateway.replace("http", "ws", 1), "csrf": csrf}
        tried = await page.evaluate(ATTEMPTS, asked)
        assert len(tried) == 12 and set(tried.values()) == {"refused"}, tried
        assert await topics(stage) == before
        await page.goto(gateway + "/about")  # and nobody was logged out
        await expect(page.get_by_role("heading", name="About")).to_be_visible()


@pytest.mark.parametrize(("which", "path"), [("open", "/v1/topics"), ("locked", "/v1/topics"), ("locked", "/logout")])
async def test_a_form_on_another_port_is_not_taken(
    browser: Browser, stage: Stage, locked: Locked, which: str, path: str
) -> None:
    before = await topics(stage)
    gateway = locked.url if which == "locked" else stage.url
    form = f"""<form method="post" action="{gateway}{path}" enctype="text/plain">
    <input name='{{"name": "stolen", "partitions": 1, "x": "' value='"}}'><button>Win a prize</button></form>"""
    async with watched(browser) as one, foreign_page(form) as elsewhere:
        one.expected = BLOCKED
        page = await one.context.new_page()
        if which == "locked":
            await locked.log_in(page, "admin")
        await page.goto(elsewhere)
        async with page.expect_navigation() as going:
            await page.get_by_role("button", name="Win a prize").click()
        answer = await going.value
        assert answer is not None and answer.status == 403
        assert "FOREIGN_ORIGIN" in await page.content()
        assert await topics(stage) == before
        await page.goto(gateway + "/about")
        await expect(page.get_by_role("heading", name="About")).to_be_visible()


@pytest.mark.parametrize("which", ["open", "locked"])
async def test_no_page_of_ours_is_framed(browser: Browser, stage: Stage, locked: Locked, which: str) -> None:
    gateway = locked.url if which == "locked" else stage.url
    async with watched(browser) as one, foreign_page(f'<iframe src="{gateway}/about"></iframe>') as elsewhere:
        one.expected = BLOCKED
        page = await one.context.new_page()
        if which == "locked":
            await locked.log_in(page, "admin")
        await page.goto(elsewhere)
        refused = ["chrome-error://chromewebdata/"]
        assert await until(lambda: [frame.url for frame in page.frames[1:]] == refused, within_s=30), page.frames


async def test_a_link_on_another_page_leads_in_without_another_login(browser: Browser, locked: Locked) -> None:
    """Though the session's cookie does not come along with the first request, or is not heard."""
    async with watched(browser) as one, foreign_page(f'<a href="{locked.at("/about")}">Our cluster</a>') as elsewhere:
        page = await one.context.new_page()
        await locked.log_in(page, "viewer")
        for address in (elsewhere, elsewhere.replace("127.0.0.1", "localhost")):
            await page.goto(address)
            await page.get_by_role("link", name="Our cluster").click()
            await expect(page.get_by_role("heading", name="About")).to_be_visible()
            await expect(page.get_by_text("my-viewer").first).to_be_visible()


# ---- logging in and out


async def test_one_logs_in_comes_back_and_logs_out(context: Watched, page: Page, locked: Locked) -> None:
    context.expected = ("status of 401",)
    await page.goto(locked.at("/about?filter=page"))
    await expect(page).to_have_title(re.compile("^Log in"))
    await expect(page.get_by_label("Token")).to_be_focused()
    await page.keyboard.type("comet_wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_have_text("Unknown token.")
    await expect(page.get_by_label("Token")).to_have_value("")
    await expect(page.get_by_label("Token")).to_be_focused()
    await page.keyboard.type(locked.tokens["operator"])
    await page.keyboard.press("Enter")
    await page.wait_for_url(locked.at("/about?filter=page"))
    await expect(page.get_by_role("banner").get_by_text("my-operator")).to_be_visible()
    assert await page.evaluate("document.cookie") == ""
    (cookie,) = await page.context.cookies(locked.url)
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("comet_session", True, "Strict")
    assert await page.evaluate("Object.keys(localStorage).length + Object.keys(sessionStorage).length") == 0
    await page.get_by_role("button", name="Log out").click()
    await page.wait_for_url(locked.at("/login"))
    assert "comet_session" not in {cookie["name"] for cookie in await page.context.cookies(locked.url)}
    await page.goto(locked.at("/about"))
    await expect(page).to_have_title(re.compile("^Log in"))


async def test_a_page_that_stands_open_leads_to_the_login_when_the_session_is_over(
    context: Watched, page: Page, locked: Locked
) -> None:
    context.expected = ("WebSocket connection to",)
    await locked.log_in(page, "viewer", "/topics")
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    other = await page.context.new_page()
    await other.goto(locked.at("/about"))
    await other.get_by_role("button", name="Log out").click()
    await page.wait_for_url(locked.at("/login?next=%2Ftopics"))
    await page.get_by_label("Token").fill(locked.tokens["viewer"])
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(locked.at("/topics"))
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()


async def test_whoever_may_not_is_told_why(context: Watched, page: Page, locked: Locked) -> None:
    context.expected = ("status of 403",)
    await locked.log_in(page, "viewer")
    disabled = page.get_by_role("link", name="Diagnostics")
    await expect(disabled).to_have_attribute("aria-disabled", "true")
    await expect(disabled).to_have_attribute("title", re.compile("needs the role admin; you are viewer"))
    await expect(page.get_by_role("region", name="Tokens", exact=True)).to_have_count(0)
    await page.goto(locked.at("/about/diagnostics.json"))
    await expect(page.get_by_role("heading", name="Permission denied")).to_be_visible()
    await expect(page.get_by_text("This needs the role admin; my-viewer has viewer")).to_be_visible()


async def test_an_admin_takes_the_diagnostics_along(page: Page, locked: Locked) -> None:
    await locked.log_in(page, "admin")
    async with page.expect_download() as loading:
        await page.get_by_role("link", name="Diagnostics").click()
    download = await loading.value
    assert re.fullmatch(r"comet-diagnostics-\d{8}T\d{6}Z\.json", download.suggested_filename)
    text = await asyncio.to_thread((await download.path()).read_text)
    assert '"my-operator"' in text and '"brokers"' in text
    assert not [secret for secret in (*locked.tokens.values(), str(locked.path)) if secret in text]


# ---- this browser's choices


async def test_theme_and_keys_are_remembered(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/about"))
    html = page.locator("html")
    card = page.get_by_role("region", name="This browser")
    await expect(card.get_by_role("button", name="System")).to_have_attribute("aria-pressed", "true")
    await card.get_by_role("button", name="Dark").click()
    await expect(html).to_have_attribute("data-theme", "dark")
    await card.get_by_role("button", name="Off").click()
    await page.reload()
    await expect(html).to_have_attribute("data-theme", "dark")
    await expect(card.get_by_role("button", name="Dark")).to_have_attribute("aria-pressed", "true")
    await expect(card.get_by_role("button", name="Off")).to_have_attribute("aria-pressed", "true")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await card.get_by_role("button", name="On").click()
    await card.get_by_role("button", name="System").click()
    await expect(html).not_to_have_attribute("data-theme", re.compile(".*"))
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_be_visible()


LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": {"width": 360, "height": 740}},
}


@pytest.mark.parametrize("look", LOOKS)
async def test_login_about_and_errors_are_for_everybody(browser: Browser, locked: Locked, look: str) -> None:
    async with watched(browser, **LOOKS[look]) as one:
        one.expected = ("status of 4",)
        page = await one.context.new_page()
        await page.goto(locked.at("/login"))
        await page.get_by_label("Token").fill("wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_be_visible()
        await _good(page, f"login-{look}")
        await locked.log_in(page, "admin")
        await expect(page.get_by_role("button", name="System")).to_have_attribute("aria-pressed", "true")
        await _good(page, f"about-{look}")
        await page.goto(locked.at("/topics/nowhere"))
        await expect(page.get_by_role("heading", name="No such topic")).to_be_visible()
        await _good(page, f"error-{look}")
        await page.get_by_role("link", name="Go to the overview").click()
        await expect(page.get_by_role("heading", level=1)).to_be_visible()


async def _good(page: Page, name: str) -> None:
    await shot(page, name)
    await axe(page)
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it has to be moved sideways"


# ---- markup


def _address(template: str, **parameters: str) -> str:
    return re.sub(r"{([a-z_]+)(?::path)?}", lambda found: {**PARAMETERS, **parameters}[found[1]], template)


async def _made(page: Page) -> list[Any]:
    """What somebody's markup became, where it became anything."""
    found: list[Any] = await page.evaluate(
        """() => [...document.querySelectorAll("img, b")]
          .filter((one) => one.getAttribute("src") === "x" || one.textContent === "bold").map((one) => one.outerHTML)"""
    )
    return found


@pytest.mark.parametrize("name", [page.name for page in PAGES])
async def test_markup_is_text_on_every_page(context: Watched, page: Page, stage: Stage, name: str) -> None:
    context.expected = ("status of 4",)
    (one,) = (each for each in PAGES if each.name == name)
    await page.goto(stage.at(_address(one.path)))
    await expect(page.get_by_role("main")).to_be_visible()
    assert await _made(page) == []
    hostile = quote(MARKUP, safe="")
    address = _address(one.path, topic=hostile, group=hostile, broker=hostile, schedule=hostile)
    await page.goto(stage.at(f"{address}?filter={hostile}"))
    await expect(page.get_by_role("main")).to_be_visible()
    assert await _made(page) == []
    assert await page.title() != "stolen"
