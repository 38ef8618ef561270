"""Logging in at an identity provider with a real browser, at a provider that is not ours: `oidc-provider-mock`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from comet.processes.child import Child, python_module, started
from comet_gateway.http.auth import new_token
from tests.browser.axe import axe
from tests.browser.conftest import Stage, Watched, shot, watched
from tests.robustness.gateway_process import GatewayProcess
from tests.robustness.process import free_port
from tests.waiting import until_answered

USERS = ({"sub": "ann", "groups": ["platform"]}, {"sub": "bob"}, {"sub": "<b>eve</b>"})
FOREIGN = ("cdn.jsdelivr.net", "Failed to load resource")  # the provider's own page asks for a style sheet
UP_S = 30.0


@dataclass
class Joined:
    """A gateway with tokens and a provider. They are of different sites: 127.0.0.1 and localhost."""

    url: str
    token: str

    def at(self, path: str) -> str:
        return self.url + path


async def _is_up(url: str) -> bool:
    async with httpx.AsyncClient() as http:
        try:
            return (await http.get(f"{url}/.well-known/openid-configuration")).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def joined(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Joined]:
    folder = tmp_path_factory.mktemp("joined")
    port = free_port()
    issuer = f"http://localhost:{port}"
    words = [word for user in USERS for word in ("--user-claims", json.dumps(user))]
    child = Child(
        "identity provider",
        python_module("oidc_provider_mock", "--port", str(port), "--require-nonce", "True", *words),
        log=folder / "provider.log",
    )
    token, row = new_token("ann", "viewer")
    secret, tokens = folder / "client.secret", folder / "tokens.toml"
    for path, text in ((secret, "secret"), (tokens, row)):
        path.write_text(text)
        path.chmod(0o600)
    with started(child, within_s=20):
        assert await until_answered(lambda: _is_up(issuer), within_s=UP_S), (folder / "provider.log").read_text()
        settings = {
            "oidc-issuer": issuer, "oidc-client-id": "comet", "oidc-client-secret-file": str(secret),
            "oidc-roles": "admin=platform,viewer=*", "tokens-file": str(tokens),
        }  # fmt: skip
        flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
        one = GatewayProcess(folder / "gateway", [stage.broker], *flags)
        one.launch()
        try:
            await one.ready()
            yield Joined(one.url, token)
            assert not one.complaints(), one.said()
        finally:
            one.kill()


async def log_in(page: Page, joined: Joined, name: str, path: str) -> None:
    await page.goto(joined.at(path))
    await page.get_by_role("link", name="Log in with localhost").click()
    await page.get_by_role("button", name=name, exact=True).click()
    await page.wait_for_url(joined.at(path))


@pytest_asyncio.fixture(loop_scope="package")
async def visitor(browser: Browser) -> AsyncIterator[Watched]:
    async with watched(browser) as found:
        found.expected = FOREIGN
        yield found


async def test_a_user_logs_in_at_the_provider_and_out_again(visitor: Watched, joined: Joined) -> None:
    page = await visitor.context.new_page()
    await log_in(page, joined, "ann", "/topics?sort=name")
    await expect(page.get_by_role("heading", name="Topics", level=1, exact=True)).to_be_visible()
    await expect(page.locator("form.principal")).to_contain_text("oidc:ann")
    await expect(page.locator("html[data-ready]")).to_have_attribute("data-live", "live")  # its WebSocket, too
    cookies = {cookie["name"]: cookie for cookie in await visitor.context.cookies(joined.url)}
    session = cookies["comet_session"]
    assert (session["httpOnly"], session["sameSite"]) == (True, "Strict") and "comet_oidc" not in cookies
    await shot(page, "oidc-topics")
    await page.goto(joined.at("/about"))
    await expect(page.locator("main")).to_contain_text("admin")
    await page.get_by_role("button", name="Log out").click()
    await page.wait_for_url(joined.at("/login"))
    assert "comet_session" not in [cookie["name"] for cookie in await visitor.context.cookies(joined.url)]


@pytest.mark.parametrize(("name", "shown"), [("bob", "oidc:bob"), ("<b>eve</b>", "oidc:<b>eve</b>")])
async def test_a_user_without_a_group_reads(visitor: Watched, joined: Joined, name: str, shown: str) -> None:
    page = await visitor.context.new_page()
    await log_in(page, joined, name, "/about")
    await expect(page.locator("form.principal")).to_contain_text(shown)
    visitor.expected = (*FOREIGN, "status of 403")
    answer = await page.goto(joined.at("/about/diagnostics.json"))
    assert answer is not None and answer.status == 403


async def test_a_login_that_is_denied_ends_on_the_login_page(visitor: Watched, joined: Joined) -> None:
    page = await visitor.context.new_page()
    await page.goto(joined.at("/groups"))
    await page.get_by_role("link", name="Log in with localhost").click()
    await page.get_by_role("button", name="Deny").click()
    # This provider leaves the state out of its refusal, so it may be one of another login.
    await expect(page.get_by_role("alert")).to_contain_text("The login has expired, or began in another browser")
    assert page.url == joined.at("/login?failed=expired")
    await shot(page, "oidc-denied")
    await page.goto(joined.at("/groups"))
    await page.get_by_label("Token").fill(joined.token)
    await page.get_by_role("button", name="Log in with a token").click()
    await page.wait_for_url(joined.at("/groups"))
    await expect(page.locator("form.principal")).to_contain_text("ann")
    await expect(page.locator("form.principal")).not_to_contain_text("oidc:")


async def test_an_answer_does_not_log_in_another_browser(browser: Browser, visitor: Watched, joined: Joined) -> None:
    page = await visitor.context.new_page()
    answers: list[str] = []
    page.on("request", lambda request: answers.append(request.url) if "/callback" in request.url else None)
    await log_in(page, joined, "ann", "/about")
    async with watched(browser) as other:
        other.expected = ("status of 403",)
        theirs = await other.context.new_page()
        await theirs.goto(answers[0])
        await expect(theirs.get_by_role("alert")).to_contain_text("began in another browser")
        assert "comet_session" not in [cookie["name"] for cookie in await other.context.cookies(joined.url)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_login_page_can_be_used_by_all(browser: Browser, joined: Joined, scheme: str) -> None:
    for width in (1280, 360):
        async with watched(browser, color_scheme=scheme, viewport={"width": width, "height": 800}) as one:
            page = await one.context.new_page()
            await page.goto(joined.at("/login"))
            await expect(page.get_by_role("link", name="Log in with localhost")).to_be_visible()
            await axe(page)
            await shot(page, f"oidc-login-{scheme}-{width}")
            await page.keyboard.press("Tab")
            await expect(page.get_by_role("link", name="Log in with localhost")).to_be_focused()
