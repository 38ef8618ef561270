"""Logging in, and what a session may do: with its cookie, from its own pages, for as long as its token is there."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Message

from comet_gateway import GatewayConfig, create_app
from comet_gateway.http import sessions
from comet_gateway.http.auth import LOGGED_OUT_MAX, Gatekeeper, Role, new_token
from comet_gateway.http.login_redirect import back_to
from comet_gateway.http.sessions import IDLE_S, LIFE_S, RENEW_S, Visit
from comet_gateway.http.throttle import FAILURES_MAX

OWN = "http://127.0.0.1:8080"
PAGE = {"sec-fetch-site": "same-origin"}
TYPED = {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "accept": "text/html"}


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class World:
    """A gateway with tokens, without a broker, and one browser."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.path = folder / "tokens.toml"
        made = {role: new_token(f"my-{role}", role) for role in ("viewer", "operator", "admin")}
        self.token = {role: token for role, (token, _) in made.items()}
        self.rows = {role: row for role, (_, row) in made.items()}
        self.write(*self.rows.values())
        self.app = create_app(GatewayConfig(tokens_file=str(self.path), **settings))
        self.keeper: Gatekeeper = self.app.state.gatekeeper
        self.clock = Clock()
        self.keeper.wall = self.clock

    def write(self, *rows: str) -> None:
        self.path.write_text("".join(rows))

    @asynccontextmanager
    async def browser(self, base: str = OWN) -> AsyncIterator[httpx.AsyncClient]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=base) as client:
            yield client


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def log_in(browser: httpx.AsyncClient, token: str, wanted: str = "/") -> httpx.Response:
    page = await browser.get("/login", headers=TYPED)
    form = re.search(r'name="form" value="([^"]+)"', page.text)
    assert form is not None, page.text
    return await browser.post("/login", headers=PAGE, data={"form": form[1], "next": wanted, "token": token})


def csrf_of(world: World, browser: httpx.AsyncClient) -> str:
    found = world.keeper.visit(browser.cookies["comet_session"])
    assert found is not None
    return found[0].csrf


# ---- logging in


async def test_a_token_becomes_a_session(world: World) -> None:
    async with world.browser() as browser:
        answer = await log_in(browser, world.token["viewer"], "/topics?sort=-in")
        assert (answer.status_code, answer.headers["location"]) == (303, "/topics?sort=-in")
        session, form = answer.headers.get_list("set-cookie")
        assert re.fullmatch(
            r"comet_session=v1\.[\w-]+\.[\w-]+; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict", session
        )
        assert "comet_login=;" in form and "Max-Age=0" in form
        assert world.token["viewer"] not in session
        found = world.keeper.visit(browser.cookies["comet_session"])
        assert found is not None and (found[1].name, found[1].role) == ("my-viewer", Role.VIEWER)
        assert (await browser.get("/metrics", headers=PAGE)).status_code == 200
        assert (await browser.get("/login?next=/groups", headers=TYPED)).headers["location"] == "/groups"


async def test_a_wrong_token_is_told_so_and_counted(world: World) -> None:
    async with world.browser() as browser:
        for _ in range(FAILURES_MAX):
            answer = await log_in(browser, "comet_wrong", "/topics")
            assert answer.status_code == 401 and "Unknown token." in answer.text
            assert 'role="alert"' in answer.text and 'value="/topics"' in answer.text
            assert "comet_wrong" not in answer.text and "comet_session" not in str(answer.headers)
        answer = await log_in(browser, world.token["admin"])
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) > 0
        assert "Too many unknown tokens" in answer.text


async def test_every_login_is_a_new_session_whatever_cookie_was_there(world: World) -> None:
    async with world.browser() as browser:
        await log_in(browser, world.token["admin"])
        first = browser.cookies["comet_session"]
    async with world.browser() as other:
        other.cookies.set("comet_session", "v1.chosen.before", domain="127.0.0.1", path="/")
        await log_in(other, world.token["admin"])
        assert other.cookies["comet_session"] not in (first, "v1.chosen.before")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:9"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({}, 403),
        ({"origin": OWN}, 303),
        ({"sec-fetch-site": "same-origin", "origin": "null"}, 303),
    ],
)
async def test_a_login_is_taken_from_our_own_page(world: World, headers: dict[str, str], status: int) -> None:
    async with world.browser() as browser:
        page = await browser.get("/login", headers=TYPED)
        form = re.search(r'name="form" value="([^"]+)"', page.text)
        assert form is not None
        fields = {"form": form[1], "next": "/", "token": world.token["admin"]}
        assert (await browser.post("/login", headers=headers, data=fields)).status_code == status


async def test_a_login_form_is_of_the_browser_that_sends_it(world: World) -> None:
    async with world.browser() as browser, world.browser() as other:
        page = await other.get("/login", headers=TYPED)
        form = re.search(r'name="form" value="([^"]+)"', page.text)
        assert form is not None
        await browser.get("/login", headers=TYPED)
        for text in (form[1], "", "é"):
            fields = {"form": text, "token": world.token["admin"]}
            answer = await browser.post("/login", headers=PAGE, data=fields)
            assert answer.status_code == 403 and "The form has expired" in answer.text
            assert "comet_session" not in browser.cookies


async def test_two_tabs_may_both_wait_for_their_login(world: World) -> None:
    async with world.browser() as browser:
        pages = [(await browser.get("/login", headers=TYPED)).text for _ in range(2)]
        forms = [found[1] for found in (re.search(r'name="form" value="([^"]+)"', page) for page in pages) if found]
        assert len(forms) == 2 and forms[0] == forms[1]


@pytest.mark.parametrize("body", [b"x" * 9_000, b"a=1&" * 20, b"token=\xff\xfe"])
async def test_a_form_that_is_none_of_ours_is_refused(world: World, body: bytes) -> None:
    async with world.browser() as browser:
        headers = PAGE | {"content-type": "application/x-www-form-urlencoded"}
        assert (await browser.post("/login", headers=headers, content=body)).status_code in (400, 403, 413)
        assert (await browser.post("/login", headers=PAGE, json={"token": "x"})).status_code == 415


async def test_where_nobody_needs_a_token_nobody_logs_in() -> None:
    app = create_app(GatewayConfig())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=OWN) as browser:
        assert (await browser.get("/login", headers=TYPED)).headers["location"] == "/"
        answer = await browser.post("/login", headers=PAGE, data={"token": "x", "form": "x"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "text",
    [
        "", "//evil.example", "/\\evil.example", "\\\\evil.example", "https://evil.example", "javascript:alert(1)",
        "/\t/evil.example", "/\r\nset-cookie: a=b", "topics", "///evil.example", "/ /x", "/login?next=/", "/logout",
        "/" + "x" * 3_000, "http:/evil.example", "/\x00",
    ],
)  # fmt: skip
def test_nobody_is_led_elsewhere(text: str) -> None:
    assert back_to(text) == "/"


def test_one_comes_back_to_where_one_wanted_to_go() -> None:
    for text in ("/", "/topics", "/topics/a%2Fb/records?start=10&filter=a%20b", "/groups?sort=-lag&filter=^a.*"):
        assert back_to(text) == text.replace("^", "%5E")
    assert back_to("/topics/é") == "/topics/%C3%A9"
    assert urlsplit(back_to("/x?next=//evil.example")).netloc == ""


# ---- pages and the API without a session


async def test_a_page_leads_to_the_login_and_the_api_says_401(world: World) -> None:
    async with world.browser() as browser:
        answer = await browser.get("/about?x=1&y=a%2Fb", headers=TYPED)
        assert answer.status_code == 303
        where = urlsplit(answer.headers["location"])
        assert (where.netloc, where.path, parse_qs(where.query)) == ("", "/login", {"next": ["/about?x=1&y=a%2Fb"]})
        assert (await browser.get("/v1/topics", headers=PAGE)).status_code == 401
        assert (await browser.get("/metrics", headers=TYPED)).status_code == 401
        wrong = await browser.get("/about", headers={"authorization": "Bearer wrong"})
        assert (wrong.status_code, wrong.json()["code"]) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_link_elsewhere_is_followed_once_more_from_a_page_of_ours(world: World, site: str) -> None:
    async with world.browser() as browser:
        await log_in(browser, world.token["viewer"])
        answer = await browser.get("/about", headers={**TYPED, "sec-fetch-site": site})
        assert answer.status_code == 200 and 'http-equiv="refresh" content="0"' in answer.text
        assert "my-viewer" not in answer.text


# ---- what a session may do


async def test_a_session_is_heard_from_its_own_pages_only(world: World) -> None:
    async with world.browser() as browser:
        await log_in(browser, world.token["admin"])
        for headers, status in [
            (PAGE, 200),
            (TYPED, 200),
            ({}, 200),
            ({"origin": OWN}, 200),
            ({"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}, 401),
            ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 401),
            ({"origin": "http://127.0.0.1:9"}, 401),
        ]:
            assert (await browser.get("/metrics", headers=headers)).status_code == status, headers


async def test_a_listed_page_is_nobody_whatever_cookie_came_along(tmp_path: Path) -> None:
    world = World(tmp_path, origins=("https://app.example.com",))
    async with world.browser() as browser:
        await log_in(browser, world.token["admin"])
        listed = {"sec-fetch-site": "cross-site", "origin": "https://app.example.com", "sec-fetch-mode": "cors"}
        assert (await browser.get("/metrics", headers=listed)).status_code == 401
        listed["x-comet-csrf"] = csrf_of(world, browser)
        assert (await browser.post("/v1/topics", headers=listed, json={"name": "x"})).status_code == 401


async def test_what_changes_anything_shows_the_csrf_of_its_session(world: World) -> None:
    async with world.browser() as browser, world.browser() as other:
        await log_in(browser, world.token["operator"])
        await log_in(other, world.token["admin"])
        mine, its = csrf_of(world, browser), csrf_of(world, other)
        for text in ("", its, mine[:-1]):
            headers = PAGE | ({"x-comet-csrf": text} if text else {})
            answer = await browser.post("/v1/topics", headers=headers, json={"nonsense": 1})
            assert (answer.status_code, answer.json()["code"]) == (403, "STALE_PAGE"), text
        answer = await browser.post("/v1/topics", headers=PAGE | {"x-comet-csrf": mine}, json={"nonsense": 1})
        assert answer.status_code == 500  # it got as far as the route, which has no brokers
        answer = await browser.delete("/v1/topics/quotes", headers=PAGE | {"x-comet-csrf": mine})
        assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")


async def test_a_token_and_a_cookie_are_one_too_many(world: World) -> None:
    async with world.browser() as browser:
        await log_in(browser, world.token["viewer"])
        both = PAGE | {"authorization": f"Bearer {world.token['viewer']}"}
        answer = await browser.get("/metrics", headers=both)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")


async def test_two_cookie_headers_or_two_sessions_are_none(world: World) -> None:
    async with world.browser() as browser:
        await log_in(browser, world.token["viewer"])
        good = browser.cookies["comet_session"]
    async with world.browser() as bare:
        for headers, status in [
            ([("cookie", f"comet_session={good}")], 200),
            ([("cookie", f"comet_session={good}; comet_session=other")], 401),
            ([("cookie", f"comet_session={good}"), ("cookie", "comet_session=other")], 400),
        ]:
            assert (await bare.get("/metrics", headers=[*PAGE.items(), *headers])).status_code == status


async def test_on_tls_the_cookie_is_of_this_host_alone(world: World) -> None:
    async with world.browser("https://127.0.0.1:8443") as browser:
        answer = await log_in(browser, world.token["viewer"])
        session = answer.headers.get_list("set-cookie")[0]
        assert session.startswith("__Host-comet_session=v1.") and session.endswith("; SameSite=Strict; Secure")
        plain = {"cookie": f"comet_session={browser.cookies['__Host-comet_session']}"}
        assert (await browser.get("/metrics", headers=PAGE)).status_code == 200
    async with world.browser("https://127.0.0.1:8443") as browser:
        assert (await browser.get("/metrics", headers=PAGE | plain)).status_code == 401


# ---- how long


async def test_a_session_goes_on_while_somebody_is_there_and_ends_in_seven_days(world: World) -> None:
    async with world.browser() as browser:
        await log_in(browser, world.token["viewer"])
        assert "set-cookie" not in (await browser.get("/metrics", headers=PAGE)).headers
        began = world.clock.now
        world.clock.now += RENEW_S
        before = csrf_of(world, browser)
        while world.clock.now < began + LIFE_S:
            answer = await browser.get("/metrics", headers=PAGE)
            assert answer.status_code == 200 and "comet_session=v1." in answer.headers["set-cookie"]
            assert csrf_of(world, browser) == before
            world.clock.now += IDLE_S - 1
        answer = await browser.get("/metrics", headers=PAGE)
        assert (answer.status_code, answer.json()["hint"]) == (401, "Log in again.")


async def test_a_session_nobody_uses_is_over_after_half_a_day(world: World) -> None:
    async with world.browser() as browser:
        await log_in(browser, world.token["viewer"])
        cookie = {"cookie": f"comet_session={browser.cookies['comet_session']}"}
        world.clock.now += IDLE_S
        assert (await browser.get("/metrics", headers=PAGE | cookie)).status_code == 401


async def test_a_session_goes_with_its_row(world: World) -> None:
    for changed in (
        [world.rows["admin"]],  # it is gone
        [world.rows["admin"], new_token("my-viewer", "viewer")[1]],  # another token
        [world.rows["viewer"].replace('"viewer"', '"operator"')],  # another role
    ):
        async with world.browser() as browser:
            await log_in(browser, world.token["viewer"])
            world.write(*changed)
            world.keeper.reload()
            assert (await browser.get("/metrics", headers=PAGE)).status_code == 401
            world.write(*world.rows.values())
            world.keeper.reload()


async def test_any_gateway_with_the_file_takes_it(world: World) -> None:
    async with world.browser() as browser:
        await log_in(browser, world.token["viewer"])
        another = Gatekeeper(str(world.path), wall=world.clock)
        found = another.visit(browser.cookies["comet_session"])
        assert found is not None and found[1].name == "my-viewer"


# ---- the end


async def test_logging_out_ends_it_though_somebody_kept_the_cookie(world: World) -> None:
    async with world.browser() as browser:
        await log_in(browser, world.token["viewer"])
        kept, csrf = browser.cookies["comet_session"], csrf_of(world, browser)
        for fields in ({}, {"csrf": "other"}):
            assert (await browser.post("/logout", headers=PAGE, data=fields or {"x": "y"})).status_code == 403
        assert (await browser.post("/logout", headers={"origin": "http://x"}, data={"csrf": csrf})).status_code == 403
        assert (await browser.get("/metrics", headers=PAGE)).status_code == 200
        answer = await browser.post("/logout", headers=PAGE, data={"csrf": csrf})
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert "Max-Age=0" in answer.headers["set-cookie"] and "comet_session" not in browser.cookies
        assert (await browser.get("/metrics", headers=PAGE | {"cookie": f"comet_session={kept}"})).status_code == 401
        assert (await browser.post("/logout", headers=PAGE, data={"x": "y"})).status_code == 303  # nothing to end


def test_what_is_remembered_of_sessions_that_ended_is_bounded(world: World) -> None:
    for number in range(LOGGED_OUT_MAX + 5):
        world.keeper.log_out(Visit(sessions.BrowserSession("my-viewer", 1, 1, number.to_bytes(16, "big")), bytes(32)))
    assert len(world.keeper._logged_out) == LOGGED_OUT_MAX


# ---- the audit log


async def test_the_audit_log_says_who_by_session(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "comet_gateway.audit")
    async with world.browser() as browser:
        await log_in(browser, "comet_wrong")
        await log_in(browser, world.token["operator"])
        headers = PAGE | {"x-comet-csrf": csrf_of(world, browser)}
        await browser.post("/v1/topics", headers=headers, json={"nonsense": 1})
        await browser.post("/logout", headers=PAGE, data={"csrf": headers["x-comet-csrf"]})
        session = headers["x-comet-csrf"]
    rows = [json.loads(one.getMessage()) for one in caplog.records if one.name == "comet_gateway.audit"]
    assert [(row["path"], row["principal"], row["role"], row["via"], row["status"]) for row in rows] == [
        ("/login", "anyone", "anyone", "nothing", 401),
        ("/login", "my-operator", "operator", "session", 303),
        ("/v1/topics", "my-operator", "operator", "session", 500),
        ("/logout", "my-operator", "operator", "session", 303),
    ]
    assert world.token["operator"] not in caplog.text and session not in caplog.text


async def test_a_login_that_breaks_off_is_no_error_in_the_audit_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "comet_gateway.audit")
    messages: list[Message] = [
        {"type": "http.request", "body": b"token=", "more_body": True}, {"type": "http.disconnect"},
    ]  # fmt: skip
    headers = {**PAGE, "host": "127.0.0.1:8080", "content-type": "application/x-www-form-urlencoded"}
    scope = {
        "type": "http", "method": "POST", "path": "/login", "raw_path": b"/login", "query_string": b"",
        "root_path": "", "scheme": "http", "http_version": "1.1", "client": ("10.0.0.1", 1), "server": ("gateway", 80),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        raise AssertionError(message)

    await world.app(scope, receive, send)
    rows = [json.loads(one.getMessage()) for one in caplog.records if one.name == "comet_gateway.audit"]
    assert [(row["path"], row["from"], row["status"]) for row in rows] == [("/login", "10.0.0.1", 0)]


# ---- mounted in another application


async def test_mounted_it_leads_to_its_own_login_and_back(world: World) -> None:
    outer = Starlette(routes=[Mount("/streams", world.app)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url=OWN) as browser:
        answer = await browser.get("/streams/about?filter=a", headers=TYPED)
        assert answer.headers["location"] == "/streams/login?next=%2Fabout%3Ffilter%3Da"
        page = await browser.get(answer.headers["location"], headers=TYPED)
        assert 'action="/streams/login"' in page.text and 'href="/streams/static/' in page.text
        form = re.search(r'name="form" value="([^"]+)"', page.text)
        assert form is not None and 'name="next" value="/about?filter=a"' in page.text
        fields = {"form": form[1], "next": "/about?filter=a", "token": world.token["viewer"]}
        answer = await browser.post("/streams/login", headers=PAGE, data=fields)
        assert (answer.status_code, answer.headers["location"]) == (303, "/streams/about?filter=a")
        assert (await browser.get("/streams/metrics", headers=PAGE)).status_code == 200
        answer = await browser.post("/streams/logout", headers=PAGE, data={"csrf": csrf_of(world, browser)})
        assert answer.headers["location"] == "/streams/login"
