"""Tokens (JWT) of the identity provider at the API: which are taken, for how long, and at what cost to the provider."""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import websockets
from cryptography.hazmat.primitives.asymmetric import rsa

from comet.errors import InvalidArgument, Unavailable
from comet.security.signed_tokens import LEEWAY_S, TokenVerifier, VerifiedToken
from comet.security.signing_keys import SigningKeys
from comet_gateway.http import sessions
from comet_gateway.http.auth import JWT_BYTES_MAX, TOKEN_BYTES_MAX, Principal, Role, new_token
from comet_gateway.http.throttle import FAILURES_MAX
from comet_gateway.oidc import api_tokens
from comet_gateway.oidc.api_tokens import ApiTokens
from comet_gateway.oidc.provider import WAITING_MAX
from tests.identity_provider import CLIENT, RSA, IdentityProvider, provider
from tests.integration.live_gateway import live_gateway
from tests.integration.oidc_world import OidcWorld
from tests.waiting import until

__all__ = ["provider"]  # a fixture

API = "https://events.example.com"


@pytest.fixture
def world(provider: IdentityProvider, tmp_path: Path) -> OidcWorld:
    return OidcWorld(provider, tmp_path, oidc_audience=API)


def tokens_of(world: OidcWorld) -> ApiTokens:
    found: Any = world.keeper.user_of_token
    assert isinstance(found.__self__, ApiTokens)
    return found.__self__


class Counting(TokenVerifier):
    """A verifier that notes its tokens."""

    def __init__(self, inner: TokenVerifier, verified: list[str]) -> None:
        self._inner = inner
        self._verified = verified

    def verify(self, text: str, keys: SigningKeys, now_s: float) -> VerifiedToken:
        self._verified.append(text)
        return self._inner.verify(text, keys, now_s)


async def ask(world: OidcWorld, token: str, path: str = "/metrics", address: str = "10.0.0.1") -> httpx.Response:
    transport = httpx.ASGITransport(world.app, client=(address, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        return await client.get(path, headers={"authorization": f"Bearer {token}"})


async def reason(world: OidcWorld, token: str, address: str = "10.0.0.1") -> str:
    """Why a token is refused."""
    answer = await ask(world, token, address=address)
    assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHENTICATED"), answer.text
    return str(answer.json()["detail"])


async def test_a_token_has_the_role_of_its_claims(world: OidcWorld) -> None:
    admin = world.provider.api_token(API)
    verified: list[str] = []
    verifier = tokens_of(world)._verifier
    tokens_of(world)._verifier = Counting(verifier, verified)
    for _ in range(20):
        assert (await ask(world, admin)).status_code == 200
    assert verified == [admin]  # then it is remembered
    assert world.provider.requests.count("/keys") == 1
    viewer = world.provider.api_token(API, preferred_username="bob", groups=[])
    async with world.browser() as browser:
        refused = await browser.delete("/v1/topics/quotes", headers={"authorization": f"Bearer {viewer}"})
    assert (refused.status_code, refused.json()["detail"]) == (403, "this needs the role admin; oidc:bob has viewer")


async def test_without_an_audience_a_token_is_unknown(provider: IdentityProvider, tmp_path: Path) -> None:
    world = OidcWorld(provider, tmp_path)
    assert await reason(world, provider.api_token(API)) in ("unknown token", "the token is longer than 512 characters")
    assert provider.requests == []


async def test_hostile_tokens_are_refused(world: OidcWorld) -> None:
    provider, stranger = world.provider, rsa.generate_private_key(65537, 2048)
    good = provider.api_token(API)
    claims = jwt.decode(good, options={"verify_signature": False})
    head, body, _ = good.split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none","kid":"one"}').decode().rstrip("=")
    hostile = {
        "of the login": provider.api_token(CLIENT),
        "of another audience": provider.api_token("https://other.example"),
        "without an audience": provider.api_token(API, aud=None),
        "of another issuer": provider.api_token(API, iss="https://evil.example"),
        "without an end": provider.api_token(API, exp=None),
        "of the future": provider.api_token(API, nbf=time.time() + 3_600),
        "without a name": provider.api_token(API, preferred_username=None),
        "unsigned": f"{none}.{body}.",
        "with another's signature": f"{head}.{body}.{provider.api_token(API, groups=[]).split('.')[2]}",
        "of a stranger": jwt.encode(claims, stranger, "RS256", {"kid": "one"}),
        "of an unknown key": jwt.encode(claims, stranger, "RS256", {"kid": "two"}),
        "by a secret": jwt.encode(claims, "x" * 32, "HS256", {"kid": "one"}),
        "no token": "a.b.c",
        "too long": f"{head}.{body}.{'x' * JWT_BYTES_MAX}",
    }
    assert (await ask(world, good)).status_code == 200
    for number, (name, token) in enumerate(hostile.items()):
        why = await reason(world, token, address=f"10.0.1.{number}")
        assert token not in why and len(why) < 300, name
    assert (await ask(world, good)).status_code == 200


async def test_a_token_ends_with_its_time_though_it_is_remembered(world: OidcWorld) -> None:
    token = world.provider.api_token(API)
    assert (await ask(world, token)).status_code == 200
    found, now = tokens_of(world), time.time()
    found.wall = lambda: now + 300 + LEEWAY_S - 2
    assert (await ask(world, token)).status_code == 200
    found.wall = lambda: now + 300 + LEEWAY_S + 2
    assert await reason(world, token) == "the token has expired"


async def test_a_token_of_a_removed_key_is_refused_once_the_keys_are_read(world: OidcWorld) -> None:
    token = world.provider.api_token(API)
    assert (await ask(world, token)).status_code == 200
    world.provider.keys = {"two": rsa.generate_private_key(65537, 2048), "three": RSA}
    keys = world.flow._provider._keys
    keys._read_at = keys._good_at = float("-inf")  # five minutes later
    assert (await ask(world, token)).status_code == 200  # they are read again meanwhile
    assert keys._background is not None
    await keys._background
    assert "none of the issuer's keys" in await reason(world, token)


async def test_strangers_cause_no_requests_to_the_provider(world: OidcWorld) -> None:
    assert (await ask(world, world.provider.api_token(API))).status_code == 200
    stranger = rsa.generate_private_key(65537, 2048)
    asked = list(world.provider.requests)
    world.flow._provider._keys._read_at = float("-inf")  # the pause is over
    for number in range(20):
        claims = {"aud": API, "iat": time.time() - 3_600, "n": number}  # older than the keys
        assert await reason(world, jwt.encode(claims, stranger, "RS256", {"kid": "x"}), address=f"10.0.2.{number}")
    assert world.provider.requests == asked
    for number in range(20):  # newer: one of them asks, then there is a pause
        claims = {"aud": API, "iat": time.time(), "n": number}
        assert await reason(world, jwt.encode(claims, stranger, "RS256", {"kid": "x"}), address=f"10.0.3.{number}")
    assert len(world.provider.requests) == len(asked) + 1


async def test_a_token_of_a_new_key_is_taken(world: OidcWorld) -> None:
    assert (await ask(world, world.provider.api_token(API))).status_code == 200
    new = rsa.generate_private_key(65537, 2048)
    world.provider.keys = {**world.provider.keys, "two": new}
    world.provider.sign = lambda claims: jwt.encode(claims, new, "RS256", {"kid": "two"})
    world.flow._provider._keys._read_at = float("-inf")  # a moment later
    assert (await ask(world, world.provider.api_token(API))).status_code == 200


async def test_without_the_provider_its_tokens_wait_and_others_work(provider: IdentityProvider, tmp_path: Path) -> None:
    token, row = new_token("ann", "viewer")
    (tmp_path / "tokens.toml").write_text(row)
    world = OidcWorld(provider, tmp_path, oidc_audience=API, tokens_file=str(tmp_path / "tokens.toml"))
    keys, readings, over = world.flow._provider._keys, [0], asyncio.Event()

    async def read() -> SigningKeys:
        readings[0] += 1
        await over.wait()
        raise Unavailable("the identity provider does not answer: keys")

    keys._read = read
    asking = [asyncio.create_task(ask(world, provider.api_token(API))) for _ in range(WAITING_MAX + 20)]
    assert await until(lambda: sum(one.done() for one in asking) == 20, within_s=60)
    assert keys._waiting == WAITING_MAX
    assert (await ask(world, token)).status_code == 200
    over.set()
    for one in asking:
        answer = await one
        assert (answer.status_code, answer.json()["code"]) == (503, "PROVIDER_UNAVAILABLE")
        assert int(answer.headers["retry-after"]) > 0
    assert sum(f"{WAITING_MAX} requests wait" in one.result().json()["detail"] for one in asking) == 20
    assert (readings, keys._waiting) == ([1], 0)


async def test_wrong_tokens_are_throttled_and_known_users_are_not_locked_out(world: OidcWorld) -> None:
    known, other = world.provider.api_token(API), world.provider.api_token(API, preferred_username="bob")
    assert (await ask(world, known)).status_code == 200
    for _ in range(FAILURES_MAX):
        await reason(world, world.provider.api_token("https://other.example"))
    assert (await ask(world, world.provider.api_token("https://other.example"))).status_code == 429
    assert (await ask(world, other)).status_code == 429
    assert (await ask(world, known)).status_code == 200
    assert (await ask(world, other, address="10.0.0.2")).status_code == 200


async def test_remembered_tokens_are_bounded(world: OidcWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_tokens, "REMEMBERED_MAX", 3)
    for number in range(5):
        assert (await ask(world, world.provider.api_token(API, jti=str(number)))).status_code == 200
    assert len(tokens_of(world)._known) == 3


async def test_a_token_of_the_file_stays_short(world: OidcWorld) -> None:
    assert await reason(world, "x" * (TOKEN_BYTES_MAX + 1)) == f"the token is longer than {TOKEN_BYTES_MAX} characters"


async def test_a_websocket_ends_with_its_token(provider: IdentityProvider) -> None:
    settings: dict[str, Any] = {"oidc_client_id": CLIENT, "oidc_roles": ("viewer=*",), "oidc_audience": API}
    async with live_gateway(["quotes"], oidc_issuer=provider.url, **settings) as gateway:
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with gateway.socket(additional_headers={"authorization": "Bearer a.b.c"}):
                pass
        assert refused.value.response.status_code == 401
        end_s = time.time() + 300
        headers = {"authorization": f"Bearer {provider.api_token(API, exp=end_s - LEEWAY_S)}"}
        async with gateway.socket(additional_headers=headers) as one:
            await one.say(type="subscribe", id="a", page="/about")
            await one.until("page", id="a")
        gateway.server.app.state.gatekeeper.wall = lambda: end_s - 1
        async with gateway.socket(additional_headers=headers) as one:
            assert await one.closed() == 1008


async def test_connections_of_users_outlive_a_reload_of_the_tokens_file(
    provider: IdentityProvider, tmp_path: Path
) -> None:
    token, row = new_token("ann", "viewer")
    path = tmp_path / "tokens.toml"
    path.write_text(row)
    settings: dict[str, Any] = {"oidc_client_id": CLIENT, "oidc_roles": ("viewer=*",), "oidc_audience": API}
    async with live_gateway(["quotes"], oidc_issuer=provider.url, tokens_file=str(path), **settings) as gateway:
        keeper = gateway.server.app.state.gatekeeper
        visit = keeper.log_in_user(Principal("oidc:ann", Role.VIEWER), 60)
        session = {"cookie": f"comet_session={sessions.written(visit.session, visit.key)}"}
        async with (
            gateway.socket(additional_headers={"authorization": f"Bearer {token}"}) as of_token,
            gateway.socket(additional_headers={"authorization": f"Bearer {provider.api_token(API)}"}) as of_user,
            gateway.socket(additional_headers=session, origin=websockets.Origin(gateway.url)) as of_session,
        ):
            for one in (of_token, of_user, of_session):
                await one.say(type="subscribe", id="a", page="/about")
                await one.until("page", id="a")
            path.write_text(new_token("bob", "viewer")[1])
            keeper.reload()
            assert await of_token.closed() == 1008
            for one in (of_user, of_session):
                await one.say(type="subscribe", id="b", page="/about")
                await one.until("page", id="b")
            keeper.log_out(visit)
            assert await of_session.closed() == 1008
            await of_user.say(type="subscribe", id="c", page="/about")
            await of_user.until("page", id="c")


def test_tokens_of_the_login_are_none_of_the_api(provider: IdentityProvider, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="oidc_audience must differ"):
        OidcWorld(provider, tmp_path, oidc_audience=CLIENT)
