"""Logging in by OpenID Connect, against a real HTTP server: the whole flow, and the ways in which others abuse it."""

from __future__ import annotations

import base64
import hmac
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from starlette.applications import Starlette
from starlette.routing import Mount

from comet import limits
from comet.errors import InvalidArgument
from comet.security.signed_tokens import LEEWAY_S
from comet_gateway import GatewayConfig, create_app
from comet_gateway.http.auth import Principal, Role, new_token
from comet_gateway.http.throttle import FAILURES_MAX
from comet_gateway.oidc import login_attempt
from comet_gateway.oidc.login_flow import REFUSALS
from comet_gateway.oidc.provider import REQUESTS_MAX
from tests.identity_provider import CLIENT, RSA, SECRET, Claims, IdentityProvider, provider
from tests.integration.oidc_world import OWN, OidcWorld

__all__ = ["provider"]  # a fixture

TYPED = {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "accept": "text/html"}
ANSWERED = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "accept": "text/html"}
PAGE = {"sec-fetch-site": "same-origin"}
CALLBACK = "/login/oidc/callback"


@pytest.fixture
def world(provider: IdentityProvider, tmp_path: Path) -> OidcWorld:
    return OidcWorld(provider, tmp_path)


async def begin(browser: httpx.AsyncClient, wanted: str = "/") -> str:
    """The URL at the provider to which the gateway leads."""
    answer = await browser.get(f"/login/oidc?{urlencode({'next': wanted})}", headers=TYPED)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def log_in(world: OidcWorld, browser: httpx.AsyncClient, wanted: str = "/") -> httpx.Response:
    return await browser.get(world.provider.authorize(await begin(browser, wanted)), headers=ANSWERED)


async def refused(world: OidcWorld, browser: httpx.AsyncClient, answer: httpx.Response, word: str) -> str:
    """Checks that a login has failed, and follows to the login page. Returns its text."""
    assert answer.status_code == REFUSALS[word].status, answer.text
    assert world.visitor(browser) is None and "comet_session" not in str(answer.headers)
    led = re.search(r'content="0; url=([^"]+)"', answer.text)
    assert led is not None and 'name="referrer" content="no-referrer"' in answer.text
    where = urlsplit(led[1].replace("&amp;", "&"))
    assert (where.netloc, where.path, parse_qs(where.query)["failed"]) == ("", "/login", [word])
    page = await browser.get(where.geturl(), headers=PAGE)
    assert page.status_code == 200 and 'role="alert"' in page.text
    assert REFUSALS[word].text.replace("'", "&#39;") in page.text
    return page.text


# ---- logging in


async def test_a_user_logs_in_and_has_the_role_of_the_mapping(world: OidcWorld) -> None:
    async with world.browser() as browser:
        page = await browser.get("/login?next=/topics", headers=TYPED)
        assert 'href="/login/oidc?next=%2Ftopics"' in page.text and "Log in with 127.0.0.1" in page.text
        assert 'name="token"' not in page.text  # the gateway has no tokens file
        location = await begin(browser, "/topics?sort=-in")
        assert location.startswith(f"{world.provider.url}/authorize?")
        asked = parse_qs(urlsplit(location).query)
        assert asked["redirect_uri"] == [OWN + CALLBACK] and asked["scope"] == ["openid profile email"]
        answer = await browser.get(world.provider.authorize(location), headers=ANSWERED)
        assert (answer.status_code, answer.headers["location"]) == (303, "/topics?sort=-in")
        session, attempt = answer.headers.get_list("set-cookie")
        assert re.fullmatch(
            r"comet_session=o1\.[\w-]+\.[\w-]+; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict", session
        )
        assert attempt == "comet_oidc=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"
        assert world.visitor(browser) == Principal("oidc:ann", Role.ADMIN)
        assert (await browser.get("/metrics", headers=PAGE)).status_code == 200
        assert (await browser.get("/login?next=/groups", headers=TYPED)).headers["location"] == "/groups"
    world.provider.claims = {"sub": "2", "preferred_username": "bob"}
    async with world.browser() as browser:
        await log_in(world, browser)
        assert world.visitor(browser) == Principal("oidc:bob", Role.VIEWER)
    assert world.provider.requests.count("/keys") == 1  # kept


async def test_a_user_with_more_groups_than_fit_is_refused(
    provider: IdentityProvider, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = OidcWorld(provider, tmp_path, user_rules=True)
    provider.claims = {"sub": "1", "preferred_username": "ann", "groups": [f"g{number}" for number in range(300)]}
    async with world.browser() as browser:
        await refused(world, browser, await log_in(world, browser), "roles")
    assert "oidc:ann: the groups of the token is not a list of up to 256 roles" in caplog.text
    provider.claims["groups"] = ["finance", "platform"]
    async with world.browser() as browser:
        await log_in(world, browser)
        assert world.visitor(browser) == Principal("oidc:ann", Role.ADMIN, ("role:finance", "role:platform"))


async def test_state_nonce_challenge_and_cookie_are_new_each_time(world: OidcWorld) -> None:
    async with world.browser() as browser:
        seen: set[str] = set()
        for _ in range(3):
            asked = parse_qs(urlsplit(await begin(browser)).query)
            texts = {asked[name][0] for name in ("state", "nonce", "code_challenge")} | {browser.cookies["comet_oidc"]}
            assert len(texts) == 4 and not texts & seen
            assert all(len(text) >= 43 for text in texts)
            seen |= texts


async def test_on_tls_the_cookies_are_of_this_host_alone(world: OidcWorld) -> None:
    async with world.browser("https://127.0.0.1:8443") as browser:
        answer = await browser.get("/login/oidc", headers=TYPED)
        assert re.fullmatch(
            r"__Host-comet_oidc=a1\.[\w-]+\.[\w-]+; Path=/; Max-Age=600; HttpOnly; SameSite=Lax; Secure",
            answer.headers["set-cookie"],
        )
        location = answer.headers["location"]
        assert parse_qs(urlsplit(location).query)["redirect_uri"] == ["https://127.0.0.1:8443" + CALLBACK]
        answer = await browser.get(world.provider.authorize(location), headers=ANSWERED)
        assert answer.headers.get_list("set-cookie")[0].startswith("__Host-comet_session=o1.")
        assert world.visitor(browser) is not None


async def test_a_public_client_needs_no_secret(provider: IdentityProvider, tmp_path: Path) -> None:
    provider.secret = ""
    world = OidcWorld(provider, tmp_path, oidc_client_secret_file="")
    async with world.browser() as browser:
        await log_in(world, browser)
        assert world.visitor(browser) == Principal("oidc:ann", Role.ADMIN)


async def test_the_redirect_url_can_be_set_and_is_the_same_in_both_requests(
    provider: IdentityProvider, tmp_path: Path
) -> None:
    world = OidcWorld(provider, tmp_path, hosts=("*",), oidc_redirect_url=f"https://events.example.com{CALLBACK}")
    async with world.browser("http://elsewhere.example") as browser:
        answer = provider.authorize(await begin(browser))
        assert answer.startswith(f"https://events.example.com{CALLBACK}?")
        await browser.get(f"{CALLBACK}?{urlsplit(answer).query}", headers=ANSWERED)
        assert world.visitor(browser) is not None


async def test_mounted_it_has_its_callback_under_its_own_path(world: OidcWorld) -> None:
    outer = Starlette(routes=[Mount("/streams", world.app)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url=OWN) as browser:
        page = await browser.get("/streams/login?next=/about", headers=TYPED)
        assert 'href="/streams/login/oidc?next=%2Fabout"' in page.text
        location = (await browser.get("/streams/login/oidc?next=/about", headers=TYPED)).headers["location"]
        answer = await browser.get(world.provider.authorize(location), headers=ANSWERED)
        assert (answer.status_code, answer.headers["location"]) == (303, "/streams/about")


async def test_tokens_and_the_provider_stand_side_by_side(provider: IdentityProvider, tmp_path: Path) -> None:
    token, row = new_token("ann", "viewer")
    (tmp_path / "tokens.toml").write_text(row)
    world = OidcWorld(provider, tmp_path, tokens_file=str(tmp_path / "tokens.toml"))
    async with world.browser() as browser, world.browser() as other:
        page = await browser.get("/login", headers=TYPED)
        form = re.search(r'name="form" value="([^"]+)"', page.text)
        assert form is not None and "Log in with 127.0.0.1" in page.text
        await browser.post("/login", headers=PAGE, data={"form": form[1], "next": "/", "token": token})
        assert world.visitor(browser) == Principal("ann", Role.VIEWER)
        await log_in(world, other)
        assert world.visitor(other) == Principal("oidc:ann", Role.ADMIN)  # another principal
        (tmp_path / "tokens.toml").write_text(new_token("bob", "viewer")[1])
        world.keeper.reload()
        assert world.visitor(browser) is None
        assert world.visitor(other) is not None
        assert (await other.get("/metrics", headers={"authorization": f"Bearer {token}"})).status_code == 400
    async with world.browser() as bare:
        assert (await bare.get("/metrics", headers={"authorization": f"Bearer {token}"})).status_code == 401


async def test_without_a_tokens_file_the_gateway_is_locked(world: OidcWorld) -> None:
    async with world.browser() as browser:
        assert (await browser.get("/v1/topics")).status_code == 401
        assert (await browser.get("/about", headers=TYPED)).headers["location"].startswith("/login?next=")
        wrong = await browser.get("/metrics", headers={"authorization": "Bearer comet_x"})
        assert (wrong.status_code, wrong.json()["detail"]) == (401, "unknown token")
        forged = await browser.get("/metrics", headers=PAGE | {"cookie": "comet_session=v1.AAAA.AAAA"})
        assert forged.status_code == 401
        page = await browser.get("/login", headers=TYPED)
        cookie = browser.cookies["comet_login"]
        answer = await browser.post("/login", headers=PAGE, data={"form": cookie, "token": "x"})
        assert (page.status_code, answer.status_code) == (200, 401)
    assert (
        create_app(
            GatewayConfig(**{**_settings(world.config), "host": "0.0.0.0", "proxies": ("192.0.2.9",)})
        ).state.oidc
        is not None
    )


async def test_without_a_provider_its_addresses_are_not_there(tmp_path: Path) -> None:
    app = create_app(GatewayConfig())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=OWN) as browser:
        for path in ("/login/oidc", CALLBACK):
            assert (await browser.get(path)).json()["code"] == "NOT_FOUND"


# ---- sessions


async def test_a_session_ends_with_its_time_with_the_logout_and_with_the_settings(
    provider: IdentityProvider, tmp_path: Path
) -> None:
    world = OidcWorld(provider, tmp_path, oidc_session_s=3_600.0)
    async with world.browser() as browser:
        answer = await log_in(world, browser)
        assert "Max-Age=3600;" in answer.headers.get_list("set-cookie")[0]
        cookie = browser.cookies["comet_session"]
        another = OidcWorld(provider, tmp_path, oidc_session_s=3_600.0)  # another gateway with the same settings
        assert another.keeper.visit(cookie) is not None
        for change in (
            {"oidc_roles": ("viewer=*",)},
            {"oidc_roles_claim": "roles"},
            {"oidc_name_claim": "sub"},
            {"oidc_client_id": "other"},
            {"oidc_issuer": provider.url + "/other"},
            {"oidc_session_s": 60.0},
            {"oidc_client_secret_file": ""},
        ):
            changed = {"oidc_session_s": 3_600.0, **change}
            assert OidcWorld(provider, tmp_path, **changed).keeper.visit(cookie) is None, change
        found = world.keeper.visit(cookie)
        assert found is not None
        now = world.keeper.wall()
        world.keeper.wall = lambda: now + 3_590
        assert world.visitor(browser) is not None
        world.keeper.wall = lambda: now + 3_601
        assert world.visitor(browser) is None
        world.keeper.wall = lambda: now
        await browser.post("/logout", headers=PAGE, data={"csrf": found[0].csrf})
        assert world.keeper.visit(cookie) is None


async def test_a_public_client_keeps_its_sessions_while_the_gateway_runs(
    provider: IdentityProvider, tmp_path: Path
) -> None:
    provider.secret = ""
    one, two = (OidcWorld(provider, tmp_path, oidc_client_secret_file="") for _ in range(2))
    async with one.browser() as browser:
        await log_in(one, browser)
        assert one.visitor(browser) is not None and two.visitor(browser) is None


async def test_the_role_in_a_cookie_cannot_be_changed(world: OidcWorld) -> None:
    world.provider.claims = {"sub": "2", "preferred_username": "bob"}
    async with world.browser() as browser:
        await log_in(world, browser)
        version, body, proof = browser.cookies["comet_session"].split(".")
    raw = bytearray(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    raw[40] = int(Role.ADMIN)
    text = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    assert world.keeper.visit(f"{version}.{body}.{proof}") is not None
    assert world.keeper.visit(f"{version}.{text}.{proof}") is None


# ---- hostile: the browser's side


async def test_the_answer_of_another_browser_logs_nobody_in(world: OidcWorld) -> None:
    async with world.browser() as mine, world.browser() as theirs:
        stolen = world.provider.authorize(await begin(theirs))
        await refused(world, mine, await mine.get(stolen, headers=ANSWERED), "expired")  # without a login of its own
        await begin(mine)
        await refused(world, mine, await mine.get(stolen, headers=ANSWERED), "expired")
        assert world.provider.bodies == []  # the code went nowhere


@pytest.mark.parametrize("state", ["", "x", "é", "A" * 43])
async def test_a_wrong_state_is_refused(world: OidcWorld, state: str) -> None:
    async with world.browser() as browser:
        answer = world.provider.authorize(await begin(browser), state=state)
        await refused(world, browser, await browser.get(answer, headers=ANSWERED), "expired")
        assert world.provider.bodies == []


async def test_an_answer_that_comes_again_is_refused(world: OidcWorld) -> None:
    async with world.browser() as browser:
        location = await begin(browser)
        cookie = browser.cookies["comet_oidc"]
        answer = world.provider.authorize(location)
        assert (await browser.get(answer, headers=ANSWERED)).status_code == 303
        asked = len(world.provider.bodies)
    async with world.browser() as browser:
        browser.cookies.set("comet_oidc", cookie, domain="127.0.0.1", path="/")
        await refused(world, browser, await browser.get(answer, headers=ANSWERED), "used")
        again = world.provider.authorize(location)  # with another code
        await refused(world, browser, await browser.get(again, headers=ANSWERED), "used")
        assert len(world.provider.bodies) == asked


async def test_a_login_lasts_ten_minutes_and_its_cookie_cannot_be_made(world: OidcWorld) -> None:
    async with world.browser() as browser:
        answer = world.provider.authorize(await begin(browser))
        now = world.flow.wall()
        world.flow.wall = lambda: now + login_attempt.ATTEMPT_S + 1
        await refused(world, browser, await browser.get(answer, headers=ANSWERED), "expired")
        world.flow.wall = lambda: now
        cookie = browser.cookies["comet_oidc"]
        other = "y" if cookie[20] == "x" else "x"
        for changed in (cookie[:-1], cookie + "A", "b1" + cookie[2:], cookie[:20] + other + cookie[21:], "a1..", ""):
            headers = [*ANSWERED.items(), ("cookie", f"comet_oidc={changed}")]
            async with world.browser() as bare:
                await refused(world, bare, await bare.get(answer, headers=headers), "expired")


@pytest.mark.parametrize(
    "wanted",
    ["//evil.example", "https://evil.example", "/\\evil.example", "/login/oidc", "/login/oidc/callback?code=1"],
)
async def test_a_login_leads_to_this_gateway_only(world: OidcWorld, wanted: str) -> None:
    async with world.browser() as browser:
        answer = await log_in(world, browser, wanted)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_a_foreign_host_begins_no_login(world: OidcWorld) -> None:
    async with world.browser() as browser:
        answer = await browser.get("/login/oidc", headers=TYPED | {"host": "evil.example"})
        assert answer.status_code == 421 and "location" not in answer.headers


async def test_an_address_that_fails_often_is_throttled(world: OidcWorld) -> None:
    async with world.browser() as browser:
        answer = world.provider.authorize(await begin(browser))
        for _ in range(FAILURES_MAX):
            bad = await browser.get(f"{CALLBACK}?code=x&state=y", headers=ANSWERED)
            await refused(world, browser, bad, "expired")
        throttled = await browser.get(answer, headers=ANSWERED)
        await refused(world, browser, throttled, "throttled")
        assert int(throttled.headers["retry-after"]) > 0
        await refused(world, browser, await browser.get("/login/oidc", headers=TYPED), "throttled")
        assert world.provider.bodies == []


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ({"error": "access_denied", "error_description": "<script>alert(1)</script>"}, "cancelled"),
        ({"error": "<script>alert(1)</script>"}, "provider"),
        ({"iss": "https://evil.example"}, "invalid"),
        ({"iss": ""}, "invalid"),  # the provider says that it sends it
        ({"code": ""}, "invalid"),
        ({"code": "x" * 5_000}, "invalid"),
    ],
)
async def test_an_answer_that_is_no_code_of_this_provider_is_refused(
    world: OidcWorld, query: dict[str, str], word: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.browser() as browser:
        answer = world.provider.authorize(await begin(browser), **query)
        page = await refused(world, browser, await browser.get(answer, headers=ANSWERED), word)
        assert "alert(1)" not in page + caplog.text
        assert world.provider.bodies == []


async def test_a_parameter_that_is_there_twice_is_refused(world: OidcWorld) -> None:
    async with world.browser() as browser:
        answer = world.provider.authorize(await begin(browser))
        await refused(world, browser, await browser.get(answer + "&code=other", headers=ANSWERED), "expired")


# ---- hostile: the provider's side


def _with(text: str, part: int, value: Claims) -> str:
    parts = text.split(".")
    parts[part] = base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
    return ".".join(parts)


def _unsigned(claims: Claims) -> str:
    return _with(jwt.encode(claims, "", "none"), 0, {"alg": "none", "kid": "one"})


def _signed_with_the_public_key(claims: Claims) -> str:
    public = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    text = _with(jwt.encode(claims, "x" * 32, "HS256"), 0, {"alg": "HS256", "kid": "one"}).rpartition(".")[0]
    proof = base64.urlsafe_b64encode(hmac.digest(public, text.encode(), "sha256")).decode().rstrip("=")
    return f"{text}.{proof}"


def _signed_by_a_stranger(claims: Claims) -> str:
    return jwt.encode(claims, rsa.generate_private_key(65537, 2048), "RS256", {"kid": "one"})


def _signed_with_an_unknown_key(claims: Claims) -> str:
    return jwt.encode(claims, rsa.generate_private_key(65537, 2048), "RS256", {"kid": "two"})


@pytest.mark.parametrize(
    "sign",
    [
        _unsigned, _signed_with_the_public_key, _signed_by_a_stranger, _signed_with_an_unknown_key,
        lambda claims: "no.token.atall",
    ],
)  # fmt: skip
async def test_a_token_without_the_providers_signature_is_refused(
    world: OidcWorld, sign: Callable[[Claims], str]
) -> None:
    world.provider.sign = sign
    async with world.browser() as browser:
        await refused(world, browser, await log_in(world, browser), "invalid")


@pytest.mark.parametrize(
    "changed",
    [
        {"aud": "another-client"},
        {"aud": None},
        {"aud": [CLIENT, "another-client"]},  # without azp
        {"aud": [CLIENT, "another-client"], "azp": "another-client"},
        {"azp": "another-client"},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"exp": 1_000_000_000},
        {"exp": None},
        {"iat": None},
        {"iat": 9_000_000_000},
        {"nonce": None},
        {"nonce": "x" * 43},
        {"nonce": 7},
        {"nonce": "\ud800"},
    ],
)
async def test_a_token_for_another_login_client_or_time_is_refused(world: OidcWorld, changed: Claims) -> None:
    world.provider.changed = changed
    async with world.browser() as browser:
        await refused(world, browser, await log_in(world, browser), "invalid")


async def test_a_token_for_several_names_its_client(world: OidcWorld) -> None:
    world.provider.changed = {"aud": [CLIENT, "another-client"], "azp": CLIENT}
    async with world.browser() as browser:
        assert (await log_in(world, browser)).status_code == 303


async def test_the_end_of_a_token_has_the_leeway_of_clocks(world: OidcWorld) -> None:
    async with world.browser() as browser:
        location = await begin(browser)
        now = int(world.flow.wall())
        world.provider.changed = {"exp": now - LEEWAY_S - 1}
        await refused(
            world, browser, await browser.get(world.provider.authorize(location), headers=ANSWERED), "invalid"
        )


async def test_a_token_need_not_name_the_only_key(world: OidcWorld) -> None:
    world.provider.sign = lambda claims: jwt.encode(claims, RSA, "RS256")
    async with world.browser() as browser:
        assert (await log_in(world, browser)).status_code == 303
    world.provider.keys["two"] = rsa.generate_private_key(65537, 2048)
    world.flow._provider._keys._read_at = float("-inf")  # a moment later
    assert len(await world.flow._provider.keys(again=True)) == 2
    async with world.browser() as browser:
        await refused(world, browser, await log_in(world, browser), "invalid")


async def test_a_new_key_of_the_provider_is_read(world: OidcWorld) -> None:
    async with world.browser() as browser:
        assert (await log_in(world, browser)).status_code == 303
    new = rsa.generate_private_key(65537, 2048)
    world.provider.keys = {"two": new}
    world.provider.sign = lambda claims: jwt.encode(claims, new, "RS256", {"kid": "two"})
    world.flow._provider._keys._read_at = float("-inf")  # a moment later
    async with world.browser() as browser:
        assert (await log_in(world, browser)).status_code == 303
    assert world.provider.requests.count("/keys") == 2


@pytest.mark.parametrize("claims", [{}, {"groups": []}, {"groups": "platform-2"}, {"groups": {"platform": 1}}])
async def test_a_user_without_a_role_is_not_let_in(provider: IdentityProvider, tmp_path: Path, claims: Claims) -> None:
    world = OidcWorld(provider, tmp_path, oidc_roles=("admin=platform",))
    provider.claims = {"sub": "2", "preferred_username": "bob", **claims}
    async with world.browser() as browser:
        await refused(world, browser, await log_in(world, browser), "no_role")


WELL_KNOWN = "/.well-known/openid-configuration"


@pytest.mark.parametrize(
    "discovery",
    [
        {"issuer": "https://evil.example"},
        {"issuer": None},
        {"authorization_endpoint": "http://evil.example/authorize"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": "https://evil.example/\r\nset-cookie: a=b"},
        {"token_endpoint": "http://evil.example/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": 7},
    ],
)
async def test_a_discovery_that_leads_elsewhere_begins_no_login(world: OidcWorld, discovery: Claims) -> None:
    world.provider.discovery = discovery
    async with world.browser() as browser:
        await refused(world, browser, await browser.get("/login/oidc", headers=TYPED), "away")


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (200, b"{}", {}),
        (200, b"[" * 100_000, {}),
        (200, b" " * 10_000_000, {}),
        (500, b"<script>alert(1)</script>", {}),
        (302, b"", {"location": "/elsewhere"}),
        (400, b'{"error": "invalid_request"}', {}),
    ],
)
@pytest.mark.parametrize("path", [WELL_KNOWN, "/keys", "/token"])
async def test_an_answer_that_makes_no_sense_ends_the_login(
    world: OidcWorld, path: str, status: int, body: bytes, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    world.provider.answers[path] = status, body, headers
    async with world.browser() as browser:
        if path == WELL_KNOWN:
            answer = await browser.get("/login/oidc", headers=TYPED)
        else:
            answer = await log_in(world, browser)
        page = await refused(world, browser, answer, "away")
    assert "/elsewhere" not in world.provider.requests
    assert "alert(1)" not in page + caplog.text


@pytest.mark.parametrize("path", [WELL_KNOWN, "/keys", "/token"])
async def test_a_large_answer_is_not_read_to_its_end(world: OidcWorld, path: str) -> None:
    world.provider.padding[path] = 10_000_000  # it would be valid
    async with world.browser() as browser:
        answer = await (browser.get("/login/oidc", headers=TYPED) if path == WELL_KNOWN else log_in(world, browser))
        await refused(world, browser, answer, "away")


@pytest.mark.parametrize("path", [WELL_KNOWN, "/keys", "/token"])
async def test_a_provider_that_is_silent_ends_the_login(
    world: OidcWorld, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ISSUER_FETCH_MS", 200)
    world.provider.silent.add(path)
    async with world.browser() as browser:
        answer = await (browser.get("/login/oidc", headers=TYPED) if path == WELL_KNOWN else log_in(world, browser))
        await refused(world, browser, answer, "away")


async def test_a_provider_that_was_away_is_asked_again_and_its_metadata_is_kept(world: OidcWorld) -> None:
    async with world.browser() as browser:
        world.provider.answers[WELL_KNOWN] = 503, b"", {}
        await refused(world, browser, await browser.get("/login/oidc", headers=TYPED), "away")
        await refused(world, browser, await browser.get("/login/oidc", headers=TYPED), "away")
        assert world.provider.requests == [WELL_KNOWN]  # not for each click
        del world.provider.answers[WELL_KNOWN]
        metadata = world.flow._provider._metadata
        metadata._read_at = float("-inf")  # a moment later
        await begin(browser)
        world.provider.answers[WELL_KNOWN] = 503, b"", {}
        metadata._read_at = metadata._good_at = float("-inf")  # an hour later
        await begin(browser)  # with the old ones, while they are read again
        assert metadata._background is not None
        await metadata._background
        assert world.provider.requests == [WELL_KNOWN] * 3
        await begin(browser)


async def test_requests_to_the_provider_are_bounded(world: OidcWorld) -> None:
    async with world.browser() as browser:
        answer = world.provider.authorize(await begin(browser))
        world.flow._provider._requests = REQUESTS_MAX
        await refused(world, browser, await browser.get(answer, headers=ANSWERED), "away")
        assert world.provider.bodies == []


@pytest.mark.parametrize("url", ["https://a..b/token", "http://localhost:99999999/token", "http://localhost:x/token"])
async def test_an_endpoint_that_cannot_be_asked_ends_the_login(world: OidcWorld, url: str) -> None:
    world.provider.discovery = {"token_endpoint": url}
    async with world.browser() as browser:
        await refused(world, browser, await log_in(world, browser), "away")


async def test_a_code_that_the_provider_refuses_counts_against_the_address(world: OidcWorld) -> None:
    async with world.browser() as browser:
        answer = world.provider.authorize(await begin(browser), code="made-up")
        await refused(world, browser, await browser.get(answer, headers=ANSWERED), "invalid")
    assert world.flow._throttle.failures == 1


async def test_a_refusal_elsewhere_than_at_the_token_endpoint_is_a_fault_of_the_provider(world: OidcWorld) -> None:
    world.provider.answers[WELL_KNOWN] = 400, b'{"error": "invalid_grant"}', {}
    async with world.browser() as browser:
        await refused(world, browser, await browser.get("/login/oidc", headers=TYPED), "away")


async def test_a_wrong_secret_is_said_in_the_log(world: OidcWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.provider.secret = "another"
    async with world.browser() as browser:
        await refused(world, browser, await log_in(world, browser), "away")
    assert "token endpoint: status 401, invalid_client" in caplog.text


# ---- what is logged


async def test_logins_are_audited_and_no_secret_is_logged(world: OidcWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with world.browser() as browser:
        await log_in(world, browser)
        verifiers = [parse_qs(body)["code_verifier"][0] for body in world.provider.bodies]
        cookies = list(browser.cookies.values())
    world.provider.changed = {"nonce": "other"}
    async with world.browser() as browser:
        await refused(world, browser, await log_in(world, browser), "invalid")
        bad = await browser.get(f"{CALLBACK}?code=planted&state=planted", headers=ANSWERED)
        await refused(world, browser, bad, "expired")
    rows = [json.loads(one.getMessage()) for one in caplog.records if one.name == "comet_gateway.audit"]
    assert [(row["principal"], row["role"], row["via"], row["status"], row["query"]) for row in rows] == [
        ("oidc:ann", "admin", "session", 303, ""),
        ("anyone", "anyone", "nothing", 403, ""),
        ("anyone", "anyone", "nothing", 403, ""),
    ]
    ours = "\n".join(one.getMessage() for one in caplog.records if not one.name.startswith(("httpx", "httpcore")))
    for text in (*world.provider.issued, *verifiers, *cookies, SECRET, "planted"):
        assert text not in ours
    assert "its nonce differs" in ours


# ---- settings


def _settings(config: GatewayConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__slots__}


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"oidc_issuer": "http://login.example"}, "oidc_issuer must be an https URL"),
        ({"oidc_issuer": "https://login.example?x=1"}, "oidc_issuer must be an https URL"),
        ({"oidc_issuer": ""}, "need oidc_issuer"),
        ({"oidc_client_id": ""}, "needs oidc_client_id and oidc_roles"),
        ({"oidc_roles": ()}, "needs oidc_client_id and oidc_roles"),
        ({"oidc_roles": ("platform",)}, "'platform' is not a role and a value"),
        ({"oidc_roles": ("root=platform",)}, "'root=platform' is not a role and a value"),
        ({"oidc_roles": ("admin=",)}, "'admin=' is not a role and a value"),
        ({"oidc_name_claim": ""}, "must not be empty"),
        (
            {"oidc_redirect_url": "http://events.example.com/login/oidc/callback"},
            "oidc_redirect_url must be an https URL",
        ),
        ({"oidc_redirect_url": "https://events.example.com/"}, "oidc_redirect_url must be an https URL"),
        ({"hosts": ("*",)}, "set oidc_redirect_url"),
        ({"dashboard": False}, "dashboard = no"),
        ({"oidc_client_secret_file": "/nowhere/secret"}, "cannot read /nowhere/secret"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    provider: IdentityProvider, tmp_path: Path, changed: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(complaint)):
        OidcWorld(provider, tmp_path, **changed)


def test_a_secret_that_others_may_read_is_refused(world: OidcWorld) -> None:
    world.secret.chmod(0o640)
    with pytest.raises(InvalidArgument, match="open to others"):
        create_app(world.config)
    world.secret.chmod(0o600)
    world.secret.write_text(" \n")
    with pytest.raises(InvalidArgument, match="is empty"):
        create_app(world.config)
