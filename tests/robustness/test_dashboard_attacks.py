"""What other pages, other people and odd clients try on the dashboard, at the level of bytes on the wire.

What real browsers make of it is in tests/browser/test_security.py.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest
import websockets

from comet_gateway.config import GatewayConfig
from comet_gateway.http import sessions
from comet_gateway.http.auth import Gatekeeper, new_token
from comet_gateway.http.sessions import LIFE_S, RENEW_S, BrowserSession
from comet_gateway.records import csv
from comet_web import render
from comet_web.pages import PAGES
from tests.integration.live_gateway import QuietServer

PATIENCE_S = 10.0
PAGE = {"sec-fetch-site": "same-origin"}
TYPED = {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "accept": "text/html"}
# As a page on another port of this host has its browser send it: with the cookie, which is of the host.
OTHER_PORT = {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate", "origin": "http://127.0.0.1:9"}
FORMULAS = ("=1+1", "+1", "-1+2", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1", "=cmd|' /C calc'!A0")


class World:
    """A gateway that listens, and whom its tokens are of. No broker: who is turned away needs none."""

    def __init__(self, url: str, server: QuietServer, path: Path, tokens: dict[str, str]) -> None:
        self.url = url
        self.host = urlsplit(url).netloc
        self.ws = url.replace("http", "ws", 1)
        self.server = server
        self.path = path
        self.tokens = tokens
        self.keeper: Gatekeeper = server.app.state.gatekeeper

    def browser(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_S)

    async def log_in(self, browser: httpx.AsyncClient, role: str, wanted: str = "/") -> httpx.Response:
        page = await browser.get("/login", headers=TYPED)
        form = re.search(r'name="form" value="([^"]+)"', page.text)
        assert form is not None
        fields = {"form": form[1], "next": wanted, "token": self.tokens[role]}
        answer = await browser.post("/login", headers=PAGE | {"origin": self.url}, data=fields)
        assert answer.status_code == 303, answer.text
        return answer

    def csrf(self, browser: httpx.AsyncClient) -> str:
        found = self.keeper.visit(browser.cookies["comet_session"])
        assert found is not None
        return found[0].csrf

    async def raw(self, path: str, *headers: str, method: str = "GET") -> tuple[int, bytes]:
        """A request as it is written here, which no client puts straight."""
        where = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        lines = [f"{method} {path} HTTP/1.1", f"host: {self.host}", "connection: close", *headers, "", ""]
        writer.write("\r\n".join(lines).encode("latin-1"))
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.read()
        writer.close()
        return int(answer.split(b" ", 2)[1]), answer


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = {role: new_token(f"my-{role}", role) for role in ("viewer", "operator", "admin")}
    path = tmp_path / "tokens.toml"
    path.write_text("".join(row for _, row in made.values()))
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    config = GatewayConfig(
        bootstrap="127.0.0.1:1", port=0, drain_s=0.1, tokens_file=str(path), hosts=("=HYPERLINK(1)", "comet.example")
    )
    server = QuietServer(config, ready.set_result)
    running = asyncio.create_task(server.run_until_stopped())
    try:
        async with asyncio.timeout(PATIENCE_S):
            url = await ready
        yield World(url, server, path, {role: token for role, (token, _) in made.items()})
    finally:
        server.stop()
        await running


# ---- forged requests


@pytest.mark.parametrize("foreign", [OTHER_PORT, {**OTHER_PORT, "sec-fetch-site": "cross-site"}, {"origin": "null"}])
async def test_a_form_on_another_page_does_nothing_though_the_cookie_comes_along(
    world: World, foreign: dict[str, str]
) -> None:
    async with world.browser() as browser:
        await world.log_in(browser, "admin")
        csrf = world.csrf(browser)
        for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x"):
            headers = {**foreign, "content-type": kind}
            for path in ("/v1/topics", "/v1/brokers/1/drain", "/login", "/logout"):
                answer = await browser.post(path, headers=headers, content=b'{"name": "stolen"}=')
                assert answer.status_code == 403, (path, kind)
                assert "set-cookie" not in answer.headers
        # Not even with what only our own pages know.
        answer = await browser.post("/v1/topics", headers={**foreign, "x-comet-csrf": csrf}, json={"name": "stolen"})
        assert answer.json()["code"] == "FOREIGN_ORIGIN"
        assert (await browser.get("/metrics", headers=PAGE)).status_code == 200  # still logged in


async def test_nothing_changes_by_reading(world: World) -> None:
    async with world.browser() as browser:
        await world.log_in(browser, "admin")
        for path in ("/logout", "/login?token=" + world.tokens["admin"], "/v1/topics?name=x"):
            await browser.get(path, headers=TYPED)
        assert (await browser.get("/logout", headers=TYPED)).status_code == 405
        assert (await browser.get("/metrics", headers=PAGE)).status_code == 200


async def test_a_web_socket_of_another_page_is_refused(world: World) -> None:
    path = "/v1/ws"
    async with world.browser() as browser:
        await world.log_in(browser, "viewer")
        cookie = {"cookie": f"comet_session={browser.cookies['comet_session']}"}
    for origin in ("http://127.0.0.1:9", "http://evil.example", "null", f"{world.url}.evil.example"):
        with pytest.raises(websockets.InvalidStatus) as refused:
            await websockets.connect(world.ws + path, additional_headers={**cookie, "origin": origin})
        assert refused.value.response.status_code == 403, origin
    for headers in (cookie, {"origin": world.url}):  # no page at all, and one of nobody
        with pytest.raises(websockets.InvalidStatus) as refused:
            await websockets.connect(world.ws + path, additional_headers=headers)
        assert refused.value.response.status_code == 401
    async with websockets.connect(world.ws + path, additional_headers={**cookie, "origin": world.url}):
        pass


async def test_a_web_socket_with_a_cookie_and_a_token_is_refused(world: World) -> None:
    async with world.browser() as browser:
        await world.log_in(browser, "viewer")
        headers = {
            "cookie": f"comet_session={browser.cookies['comet_session']}",
            "origin": world.url,
            "authorization": f"Bearer {world.tokens['viewer']}",
        }
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(world.ws + "/v1/ws", additional_headers=headers)
    assert refused.value.response.status_code == 400


@pytest.mark.parametrize("end", ["row", "logout", "time"])
async def test_a_web_socket_ends_with_its_session(world: World, end: str) -> None:
    async with world.browser() as browser:
        await world.log_in(browser, "viewer")
        cookie, csrf = browser.cookies["comet_session"], world.csrf(browser)
        if end == "time":
            found = world.keeper.visit(cookie)
            assert found is not None
            now = int(time.time())
            world.keeper.wall = lambda: now  # what is left of it is left whenever one gets there
            cookie = sessions.written(BrowserSession("my-viewer", now - LIFE_S + 2, now, bytes(16)), found[0].key)
        headers = {"cookie": f"comet_session={cookie}", "origin": world.url}
        async with websockets.connect(world.ws + "/v1/ws", additional_headers=headers) as socket:
            assert json.loads(await socket.recv())["type"] == "welcome"
            if end == "row":
                world.path.write_text(new_token("other", "admin")[1])
                world.server.reload()
            elif end == "logout":
                answer = await browser.post("/logout", headers=PAGE, data={"csrf": csrf})
                assert answer.status_code == 303
            async with asyncio.timeout(PATIENCE_S):
                await socket.wait_closed()
            assert (socket.close_code, socket.close_reason) == (1008, "UNAUTHENTICATED")


async def test_a_tab_that_does_nothing_but_listen_keeps_its_session(world: World) -> None:
    async with world.browser() as browser:
        await world.log_in(browser, "viewer")
        found = world.keeper.visit(browser.cookies["comet_session"])
    assert found is not None
    before = int(time.time()) - RENEW_S
    cookie = sessions.written(BrowserSession("my-viewer", before, before, bytes(16)), found[0].key)
    headers = {"cookie": f"comet_session={cookie}", "origin": world.url}
    async with websockets.connect(world.ws + "/v1/ws", additional_headers=headers) as socket:
        assert socket.response is not None
        again = re.match(r"comet_session=([^;]+);", socket.response.headers["set-cookie"])
    assert again is not None
    renewed = world.keeper.visit(again[1])
    assert renewed is not None and renewed[0].session.seen_s > before == renewed[0].session.began_s


# ---- names and frames


@pytest.mark.parametrize("path", ["/", "/about", "/login", "/static/x/css/base.css", "/v1/topics", "/about.csv"])
async def test_a_name_that_somebody_points_here_is_not_ours(world: World, path: str) -> None:
    async with world.browser() as browser:
        await world.log_in(browser, "admin")
        cookie = {"cookie": f"comet_session={browser.cookies['comet_session']}"}
        for host in ("evil.example", f"evil.example:{urlsplit(world.url).port}", "127.0.0.1.evil.example", ""):
            answer = await browser.get(path, headers={**TYPED, **cookie, "host": host})
            assert answer.status_code == 421, host
            assert "my-admin" not in answer.text


async def test_no_answer_may_be_framed_sniffed_or_read_by_others(world: World) -> None:
    async with world.browser() as browser:
        await world.log_in(browser, "viewer")
        static = f"/static/{render.version()}/css/base.css"
        for path in ("/about", "/about.csv", "/login", "/nowhere", static, "/about/diagnostics.json", "/v1/nothing"):
            answer = await browser.get(path, headers=PAGE | {"accept": "text/html"})
            policy = answer.headers["content-security-policy"]
            assert "frame-ancestors 'none'" in policy and "script-src 'self'" in policy, path
            assert "unsafe" not in policy and answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cross-origin-opener-policy"] == "same-origin"
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert "access-control-allow-origin" not in answer.headers
            if path != static:
                assert answer.headers["cache-control"] == "no-store", path
        about = await browser.get("/about", headers=PAGE)
        assert about.headers["content-security-policy-report-only"] == "require-trusted-types-for 'script'"


# ---- the login


async def test_a_session_that_somebody_planted_is_not_taken_over(world: World) -> None:
    async with world.browser() as attacker, world.browser() as victim:
        await world.log_in(attacker, "viewer")
        planted = attacker.cookies["comet_session"]
        headers = {**PAGE, "cookie": f"comet_session={planted}; comet_session=v1.a.b"}
        assert (await victim.get("/metrics", headers=headers)).status_code == 401
        victim.cookies.set("comet_session", planted, domain="127.0.0.1", path="/")
        page = await victim.get("/login", headers=OTHER_PORT | {"sec-fetch-mode": "navigate"})
        assert page.status_code == 200
        form = re.search(r'name="form" value="([^"]+)"', page.text)
        assert form is not None
        fields = {"form": form[1], "token": world.tokens["admin"]}
        answer = await victim.post("/login", headers=PAGE, data=fields)
        assert planted not in answer.headers["set-cookie"]
        found = world.keeper.visit(victim.cookies["comet_session"])
        assert found is not None and found[1].name == "my-admin"


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example", "/\\evil.example", "\\/evil.example", "https://evil.example", "https:evil.example",
        "///evil.example", "/\t/evil.example", "javascript:alert(1)", "data:text/html,x", "/\x01/evil.example",
        "//evil.example/%2f..", "/%09/evil.example", "/\r\nset-cookie: stolen=1", "/\nlocation: //evil.example",
    ],
)  # fmt: skip
async def test_the_login_leads_nowhere_else_and_writes_no_header(world: World, target: str) -> None:
    async with world.browser() as browser:
        answer = await world.log_in(browser, "viewer", target)
        where = answer.headers["location"]
        assert where.startswith("/") and not where.startswith(("//", "/\\")), where
        assert urlsplit(where).netloc == "" and "stolen" not in str(answer.headers.get_list("set-cookie"))
    status, said = await world.raw(f"/login?next={quote(target, safe='')}", "sec-fetch-site: none")
    assert status == 200
    assert b"stolen=1" not in said.split(b"\r\n\r\n")[0] and b"\r\nlocation:" not in said.lower()


async def test_what_leads_to_the_login_writes_no_header_either(world: World) -> None:
    for path in ("/about?x=%0d%0aset-cookie:%20stolen=1", "/about?x=\xe9&y=%00", "/about?" + "x" * 3_000):
        status, said = await world.raw(path, "accept: text/html")
        assert status in (303, 400), path
        assert b"\r\nset-cookie" not in said.split(b"\r\n\r\n")[0].lower()


# ---- files, cookies, tables


@pytest.mark.parametrize(
    "path",
    [
        "../pages.py", "..%2frender.py", "%2e%2e/render.py", "..%5crender.py", "....//render.py", "css/../../pages.py",
        "/etc/passwd", "%2fetc%2fpasswd", "css/%00base.css", "css", "", "css/base.css/", "css\\base.css",
        "../templates/login.html", "%252e%252e/render.py", "x" * 2_000,
    ],
)  # fmt: skip
async def test_only_files_of_the_pages_are_given(world: World, path: str) -> None:
    for version in (render.version(), "..", "%2e%2e", "x"):
        status, said = await world.raw(f"/static/{version}/{path}")
        assert status in (400, 404), (version, path)
        assert b"root:" not in said and b"import " not in said and b"{%" not in said


async def test_cookies_of_any_size_and_kind_harm_nobody(world: World) -> None:
    async with world.browser() as browser:
        await world.log_in(browser, "viewer")
        good = browser.cookies["comet_session"]
    head = "v1." + "A" * 40
    for cookie in (
        "comet_session=" + "A" * 60_000,
        "comet_session=" + "v1." * 20_000,
        "; ".join(f"c{number}=x" for number in range(5_000)),
        f"comet_session={head}.{'A' * 43}",
        "comet_session=v1..",
        "comet_session=\xff\xfe.\x80.\x81",
        "comet_session",
        "=;=;=",
        f"comet_session={good[:-1]}",
        f"comet_session={good}x",
        f"comet_session={good.replace('v1.', 'v2.')}",
        f"comet_session={good.upper()}",
    ):
        status, _ = await world.raw("/metrics", f"cookie: {cookie}", "sec-fetch-site: same-origin")
        assert status in (400, 401, 431), cookie[:60]
    status, _ = await world.raw("/metrics", f"cookie: comet_session={good}", "sec-fetch-site: same-origin")
    assert status == 200


async def test_a_table_as_a_file_holds_no_formula(world: World) -> None:
    for text in FORMULAS:
        assert csv.safe(text) == f"'{text}", text
    for text in ("quotes", "a=b", "1", "", "x-y", "'=1"):
        assert csv.safe(text) == text
    async with world.browser() as browser:
        await world.log_in(browser, "viewer")
        answer = await browser.get("/about.csv", headers=PAGE)
        assert answer.status_code == 200 and answer.headers["content-type"] == "text/csv; charset=utf-8"
        assert answer.headers["content-disposition"].startswith("attachment")
        assert "'=HYPERLINK(1)" in answer.text and ",=" not in answer.text and ',"=' not in answer.text


# ---- secrets


async def test_no_page_shows_a_token_a_digest_or_where_secrets_are(world: World) -> None:
    digests = re.findall(r'sha256 = "(\w+)"', world.path.read_text())
    assert len(digests) == 3
    async with world.browser() as browser:
        await world.log_in(browser, "admin")
        for path in ("/about", "/about.csv", "/about/diagnostics.json"):
            answer = await browser.get(path, headers=PAGE)
            assert answer.status_code == 200, (path, answer.text)
            for secret in (*world.tokens.values(), *digests, str(world.path), browser.cookies["comet_session"]):
                assert secret not in answer.text, path
        told = (await browser.get("/about/diagnostics.json", headers=PAGE)).json()
        assert told["settings"]["tokens_file"] == {"setting": "set", "source": "set"}
        assert [one["name"] for one in told["logins"]] == ["my-admin", "my-operator", "my-viewer"]
        assert told["cluster"]["reachable"] is False


async def test_a_page_that_is_not_for_you_says_so_and_shows_nothing(world: World) -> None:
    async with world.browser() as browser:
        await world.log_in(browser, "viewer")
        about = await browser.get("/about", headers=PAGE)
        assert "my-admin" not in about.text and "my-viewer" in about.text
        refused = await browser.get("/about/diagnostics.json", headers=PAGE | {"accept": "text/html"})
        assert refused.status_code == 403 and refused.headers["content-type"].startswith("text/html")
        assert "This needs the role admin; my-viewer has viewer" in refused.text
        assert refused.headers["x-request-id"] in refused.text


async def test_markup_in_an_address_is_text(world: World) -> None:
    markup = quote("<img src=x onerror=alert(1)>")
    async with world.browser() as browser:
        for path in (f"/login?next=/{markup}", f"/{markup}", f"/login?next={markup}"):
            assert "<img src=x" not in (await browser.get(path, headers=TYPED)).text
        await world.log_in(browser, "viewer")
        for page in PAGES:
            path = re.sub(r"{[^}]*}", markup, page.path) + f"?filter={markup}&sort={markup}&range={markup}&x={markup}"
            answer = await browser.get(path, headers=TYPED)
            assert "<img src=x" not in answer.text, path
            assert answer.headers["content-type"].startswith("text/html"), path
