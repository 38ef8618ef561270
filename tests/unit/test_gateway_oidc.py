"""What claims give a user, what a discovery must hold, and the cookie of a login that has begun."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from comet.errors import InvalidArgument
from comet.security.principals import ROLES_MAX
from comet_gateway.brokers.user_access import user_of
from comet_gateway.config import GatewayConfig
from comet_gateway.http import sessions
from comet_gateway.http.auth import Principal, Role
from comet_gateway.http.sessions import BrowserSession, Visit
from comet_gateway.http.throttle import ADDRESSES_MAX, FAILURES_MAX, WINDOW_S, AddressThrottle
from comet_gateway.oidc import login_attempt
from comet_gateway.oidc.client import NAME_BYTES_MAX, ROLES_BYTES_MAX, NotAdmitted, OidcClient, oidc_client_of
from comet_gateway.oidc.login_attempt import ATTEMPT_S, LoginAttempt
from comet_gateway.oidc.login_flow import REFUSALS
from comet_gateway.oidc.provider import metadata_of

ISSUER = "https://login.example/realms/main"
KEY = bytes(32)
WANTED = "/topics?sort=-in"


def client(*roles: str, **changed: Any) -> OidcClient:
    given: dict[str, Any] = {"oidc_issuer": ISSUER, "oidc_client_id": "comet", "oidc_roles": roles or ("viewer=*",)}
    found = oidc_client_of(GatewayConfig(**{**given, **changed}))
    assert found is not None
    return found


def role_of(one: OidcClient, **claims: Any) -> Role | None:
    try:
        return one.principal({"sub": "ann", **claims}).role
    except NotAdmitted:
        return None


# ---- claims


def test_the_highest_role_of_a_users_values_counts() -> None:
    one = client("viewer=staff", "admin=platform", "operator=streams")
    assert role_of(one, groups=["staff"]) is Role.VIEWER
    assert role_of(one, groups=["staff", "platform", "streams"]) is Role.ADMIN
    assert role_of(one, groups="streams") is Role.OPERATOR  # one value need not be a list
    for groups in ([], ["Staff"], ["staff "], "staff,platform", {"staff": 1}, [["staff"]], 7, None, True):
        assert role_of(one, groups=groups) is None, groups
    assert role_of(one) is None
    assert role_of(one, roles=["platform"]) is None


def test_a_star_is_any_user_and_no_value() -> None:
    assert role_of(client("viewer=*")) is Role.VIEWER
    assert role_of(client("viewer=*", "admin=platform"), groups=["platform"]) is Role.ADMIN
    assert role_of(client("admin=platform"), groups=["*"]) is None
    assert role_of(client("admin=a=b"), groups=["a=b"]) is Role.ADMIN


def test_the_claims_can_be_chosen() -> None:
    one = client("admin=ops", oidc_name_claim="preferred_username", oidc_roles_claim="roles")
    assert one.principal({"sub": "1", "preferred_username": "ann", "roles": ["ops"]}) == Principal(
        "oidc:ann", Role.ADMIN
    )


def test_all_values_of_the_claim_are_roles_at_brokers_with_user_rules() -> None:
    given = {"sub": "ann", "groups": ["finance", "/ops", "Platform Team", 7, "finance"]}
    assert client().principal(given).broker_roles == ()
    one = client(user_rules=True)
    assert one.principal(given).broker_roles == ("role:/ops", "role:finance")
    assert one.principal({"sub": "ann", "groups": "finance ops"}).broker_roles == ("role:finance", "role:ops")
    assert one.principal({"sub": "ann"}).broker_roles == ()


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ([f"g{number}" for number in range(ROLES_MAX + 1)], "oidc:ann: the groups of the token is not a list"),
        ({"finance": True}, "oidc:ann: the groups of the token is not a list of up to 256 roles"),
        (
            [f"{number}-{'x' * 94}" for number in range(10, 35)],
            "the 25 roles in groups take 2574 bytes, and a session has",
        ),
    ],
)
def test_a_user_with_more_roles_than_fit_is_refused(groups: object, reason: str) -> None:
    """Not without some of them: rules that deny may be for those."""
    with pytest.raises(NotAdmitted, match=reason) as refused:
        client(user_rules=True).principal({"sub": "ann", "groups": groups})
    assert refused.value.word == "roles" in REFUSALS
    assert client().principal({"sub": "ann", "groups": groups}).role is Role.VIEWER


def test_the_longest_session_fits_into_a_cookie_and_a_call() -> None:
    groups = [str(number) for number in range(100, 100 + ROLES_MAX)]
    one = client(user_rules=True, oidc_name_claim="name").principal({"name": "é" * 64, "groups": groups})
    for principal in (one, replace(one, broker_roles=("role:" + "x" * (ROLES_BYTES_MAX - 5),))):
        visit = Visit(sessions.begun_by_user(principal.name, 3, 1e9, 60, principal.broker_roles), KEY)
        header = sessions.session_cookie(visit, 1e9, tls=True)
        assert len(header) < 4_096
        assert sessions.read(sessions.written(visit.session, KEY), lambda _: None, 1e9, KEY) == visit
        assert user_of(principal).metadata()[1]
    assert len(one.broker_roles) == ROLES_MAX


def test_an_email_counts_once_it_is_verified() -> None:
    by_name = client(oidc_name_claim="email")
    by_role = client("admin=ann@example.com", oidc_roles_claim="email")
    claims = {"sub": "1", "email": "ann@example.com"}
    for one in (by_name, by_role):
        for verified in (None, False, "true", 1):
            with pytest.raises(NotAdmitted, match="email_verified"):
                one.principal({**claims, "email_verified": verified})
    assert by_name.principal({**claims, "email_verified": True}).name == "oidc:ann@example.com"
    assert by_role.principal({**claims, "email_verified": True}) == Principal("oidc:1", Role.ADMIN)


@pytest.mark.parametrize(
    "name",
    [None, "", " ann", "ann\n", "a\x00b", "a\u202eb", 7, ["ann"], "x" * (NAME_BYTES_MAX + 1), "é" * 65, "\ud800"],
)
def test_a_name_that_cannot_stand_in_a_log_is_refused(name: object) -> None:
    with pytest.raises(NotAdmitted, match="no usable name"):
        client().principal({"sub": name})


@pytest.mark.parametrize("name", ["ann", "Ann Example", "auth0|5f7c8ec7", "x" * NAME_BYTES_MAX, "é" * 64, "oidc:ann"])
def test_a_name_of_a_user_is_never_that_of_a_token(name: str) -> None:
    assert client().principal({"sub": name}).name == f"oidc:{name}"


def test_whatever_decides_on_users_changes_the_key_of_sessions(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("one")
    secret.chmod(0o600)
    given: dict[str, Any] = {"oidc_client_secret_file": str(secret)}
    one = client("viewer=*", "admin=a", **given)
    assert client("admin=a", "viewer=*", **given).key == one.key
    assert client("viewer=*", "admin=b", **given).key != one.key
    secret.write_text("two")
    assert client("viewer=*", "admin=a", **given).key != one.key
    assert client().key != client().key  # of a public client: of this process


# ---- the discovery


def metadata(**changed: Any) -> bytes:
    found = {
        "issuer": ISSUER,
        "authorization_endpoint": "https://login.example/authorize?tenant=1",
        "token_endpoint": "https://api.example/token",
        "jwks_uri": "https://login.example/keys",
    }
    return json.dumps({**found, **changed}).encode()


def test_a_discovery_names_endpoints_over_tls() -> None:
    found = metadata_of(metadata(), ISSUER)
    assert (found.token_endpoint, found.sends_issuer) == ("https://api.example/token", False)
    assert metadata_of(metadata(authorization_response_iss_parameter_supported=True), ISSUER).sends_issuer
    for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
        for url in (
            "http://login.example/x",
            "ftp://x",
            "/x",
            "",
            None,
            "https://",
            "https://a b",
            "https://[",
            "https://x/#y",
        ):
            with pytest.raises(InvalidArgument, match=f"its {name} must be an https URL"):
                metadata_of(metadata(**{name: url}), ISSUER)


@pytest.mark.parametrize("issuer", [ISSUER + "/", ISSUER.upper(), "https://evil.example", None, 7, [ISSUER]])
def test_a_discovery_of_another_issuer_is_refused(issuer: object) -> None:
    with pytest.raises(InvalidArgument, match="of the issuer"):
        metadata_of(metadata(issuer=issuer), ISSUER)


# ---- the cookie of a login


@given(st.text(max_size=200), st.integers(0, ATTEMPT_S - 1))
def test_a_login_is_read_as_it_was_written(wanted: str, after_s: int) -> None:
    assume("\ud800" not in wanted)
    attempt = login_attempt.begun(wanted, 1e9, KEY)
    found = login_attempt.read(attempt.cookie, 1e9 + after_s, KEY)
    assert found == attempt and found.wanted == wanted
    assert login_attempt.read(attempt.cookie, 1e9 + ATTEMPT_S, KEY) is None
    assert login_attempt.read(attempt.cookie, 1e9 - 61, KEY) is None
    assert login_attempt.read(attempt.cookie, 1e9, bytes([1]) * 32) is None


@given(st.data())
def test_a_cookie_that_was_changed_begins_nothing(data: st.DataObject) -> None:
    text = LoginAttempt(bytes(32), 1_000_000_000, WANTED, KEY).cookie
    at = data.draw(st.integers(0, len(text) - 1))
    changed = (
        text[:at] + data.draw(st.text("ABCabc019-_.=+/ ~", max_size=3)) + text[at + data.draw(st.integers(0, 2)) :]
    )
    assume(changed != text)
    assert login_attempt.read(changed, 1e9, KEY) is None


@given(st.text(max_size=500) | st.binary(max_size=500).map(lambda raw: raw.decode("latin-1")))
def test_nonsense_begins_nothing(text: str) -> None:
    assert login_attempt.read(text, 1e9, KEY) is None


def test_the_secrets_of_a_login_differ_and_are_not_in_its_cookie() -> None:
    attempt = login_attempt.begun(WANTED, 1e9, KEY)
    body = base64.urlsafe_b64decode(attempt.cookie.split(".")[1] + "==")
    texts = {attempt.state, attempt.nonce, attempt.verifier}
    assert len(texts) == 3
    for text in texts:
        raw = base64.urlsafe_b64decode(text + "=")
        assert len(raw) == 32 and raw not in body and text not in attempt.cookie
    digest = hashlib.sha256(attempt.verifier.encode()).digest()
    assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == attempt.challenge  # RFC 7636, S256


# ---- sessions of users


WORD = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=32)
ROLE_LISTS = st.lists(WORD.map("role:{}".format), max_size=15).map(tuple)


@given(WORD, st.sampled_from(list(Role)[1:]), ROLE_LISTS, st.integers(1, sessions.LIFE_S * 2))
def test_a_users_session_is_read_as_it_was_written(name: str, role: Role, roles: tuple[str, ...], life_s: int) -> None:
    session = sessions.begun_by_user(f"oidc:{name}", int(role), 1e9, life_s, roles)
    text = sessions.written(session, KEY)
    assert len(text) <= sessions.COOKIE_CHARS_MAX
    assert sessions.read(text, lambda _: KEY, 1e9, KEY) == Visit(session, KEY)
    assert session.ends_s == 1e9 + min(life_s, sessions.LIFE_S)
    assert sessions.read(text, lambda _: KEY, 1e9, None) is None  # without a provider
    assert sessions.read(text, lambda _: KEY, 1e9, bytes([1]) * 32) is None
    assert sessions.read(text, lambda _: KEY, session.ends_s, KEY) is None


def test_a_session_that_began_without_roles_has_none() -> None:
    """As gateways wrote them before sessions had roles."""
    body = struct.pack(">QQ16sQB", 10**9, 10**9, bytes(16), 10**9 + 60, 1) + b"oidc:ann"
    proof = hmac.digest(KEY, b"session" + body, "sha256")
    text = ".".join(["o1", *(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (body, proof))])
    visit = sessions.read(text, lambda _: None, 1e9, KEY)
    assert visit is not None and (visit.session.name, visit.session.broker_roles) == ("oidc:ann", ())


def test_a_user_cannot_change_the_roles_of_its_session() -> None:
    text = sessions.written(sessions.begun_by_user("oidc:ann", 1, 1e9, 60, ("role:finance",)), KEY)
    version, body, proof = text.split(".")
    raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    assert sessions.read(text, lambda _: KEY, 1e9, KEY) is not None
    for changed in (raw + b"\nrole:ops", raw.removesuffix(b"\nrole:finance"), raw.replace(b"finance", b"platfor")):
        assert changed != raw
        forged = ".".join((version, base64.urlsafe_b64encode(changed).decode().rstrip("="), proof))
        assert sessions.read(forged, lambda _: KEY, 1e9, KEY) is None


def test_a_session_of_a_token_is_none_of_a_user() -> None:
    row = sessions.key_of(bytes(32), "ann", "viewer")
    of_token = sessions.written(BrowserSession("ann" * 10, 10**9, 10**9, bytes(16)), row)
    of_user = sessions.written(sessions.begun_by_user("oidc:ann", 3, 1e9, 60), KEY)
    for text in (of_token.replace("v1", "o1", 1), of_user.replace("o1", "v1", 1)):
        assert sessions.read(text, lambda _: row, 1e9, KEY) is None


# ---- throttling


def test_an_address_is_refused_until_its_minute_is_over() -> None:
    now = [0.0]
    throttle = AddressThrottle("failed logins", lambda: now[0])
    for _ in range(FAILURES_MAX):
        assert throttle.left_s("10.0.0.1") == 0
        throttle.failed("10.0.0.1")
    assert throttle.left_s("10.0.0.1") == WINDOW_S and throttle.left_s("10.0.0.2") == 0
    now[0] = WINDOW_S
    assert throttle.left_s("10.0.0.1") == 0
    for number in range(ADDRESSES_MAX + 10):
        throttle.failed(str(number))
    assert len(throttle._failures) == ADDRESSES_MAX
