"""Tokens of an issuer: which of them a broker takes, and how often it reads the issuer's keys."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import example, given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from comet.errors import CredentialsRefused, InvalidArgument, Unavailable
from comet.security.fetch import is_private
from comet.security.principals import ROLES_MAX
from comet.security.signed_tokens import LEEWAY_S
from comet.security.signing_keys import parse_signing_keys, read_signing_keys
from comet.wire.bearer import is_token, read_bearer, read_token
from comet_broker.access import tokens
from comet_broker.access.credentials import Credentials
from comet_broker.access.keys import AccessKeys
from comet_broker.access.tokens import Issuer, Tokens, issuer_of
from comet_broker.config import BrokerConfig
from comet_testing.simulation.worker import SimWorker, WorkerPace
from tests.unit.storage_world import HandClock
from tests.waiting import until

URL: Final = "https://login.example/keys"
ISSUER: Final = Issuer("https://login.example", "comet", URL, "sub", "")
RSA: Final = rsa.generate_private_key(65537, 2048)


def jwk(kid: str, key: Any) -> dict[str, Any]:
    algorithm: Any = {ec.EllipticCurvePrivateKey: ECAlgorithm, rsa.RSAPrivateKey: RSAAlgorithm}
    found = next((one for kind, one in algorithm.items() if isinstance(key, kind)), OKPAlgorithm)
    return {**found.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}


class World:
    """A broker, and an issuer with its keys."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.keys: dict[str, Any] = {}
        self.readings = 0
        self.problem = ""
        self.add("one")
        self.tokens = Tokens(ISSUER, self.clock, self._read)
        self.ended: list[str] = []
        self.tokens.on_ended.append(self.ended.extend)

    def add(self, kid: str) -> None:
        self.keys[kid] = ec.generate_private_key(ec.SECP256R1())

    def _read(self, source: str) -> Any:
        assert source == URL
        self.readings += 1
        if self.problem:
            raise Unavailable(self.problem)
        return parse_signing_keys(json.dumps({"keys": [jwk(kid, key) for kid, key in self.keys.items()]}).encode())

    async def reread(self) -> None:
        await self.tokens.reread(SimWorker(Random(0), WorkerPace(seconds_max=0.0)))

    @property
    def now_s(self) -> float:
        return self.clock.now_us / 1e6

    def claims(self, **changes: Any) -> dict[str, Any]:
        claims = {"iss": ISSUER.issuer, "aud": "comet", "sub": "ann", "iat": self.now_s, "exp": self.now_s + 600}
        return {name: value for name, value in {**claims, **changes}.items() if value is not None}

    def token(self, kid: str = "one", **changes: Any) -> str:
        return jwt.encode(self.claims(**changes), self.keys[kid], "ES256", {"kid": kid})

    def refusal(self, text: str) -> str:
        with pytest.raises(CredentialsRefused) as refused:
            self.tokens.holder(text)
        return str(refused.value)


@pytest.fixture
async def world() -> World:
    found = World()
    await found.reread()
    return found


async def test_a_token_of_the_issuer_names_its_principal(world: World) -> None:
    token = world.token()
    assert is_token(token)
    end_us = int((world.now_s + 600 + LEEWAY_S) * 1e6)
    for _ in range(2):  # the second time it is known
        assert world.tokens.holder(token) == ("user:ann", "kid:one", end_us, ())
    assert (
        world.tokens.holder(world.token(aud=["other", "comet"], sub="b@example.com")).principal == "user:b@example.com"
    )


@pytest.mark.parametrize(
    ("name", "claims", "roles"),
    [
        ("groups", {"groups": ["finance", "all", "finance"]}, ("role:all", "role:finance")),
        ("groups", {"groups": "finance all"}, ("role:all", "role:finance")),
        ("groups", {"groups": []}, ()),
        ("groups", {}, ()),
        ("groups", {"groups": ["Platform Team", "/ops", 7, None, "*", ""]}, ("role:/ops",)),  # what no rule can name
        ("realm_access.roles", {"realm_access": {"roles": ["finance"]}}, ("role:finance",)),
        ("realm_access.roles", {"realm_access": ["finance"]}, ()),
        ("https://example.com/roles", {"https://example.com/roles": ["finance"]}, ("role:finance",)),
        ("", {"": ["finance"]}, ()),
    ],
)
async def test_a_token_has_roles(name: str, claims: dict[str, Any], roles: tuple[str, ...], world: World) -> None:
    found = await reading_roles(name, world)
    assert found.holder(world.token(**claims)).roles == roles


@pytest.mark.parametrize("roles", [{"a": 1}, 7, True, [f"r{number}" for number in range(ROLES_MAX + 1)]])
async def test_a_token_with_roles_that_are_none_is_refused(roles: Any, world: World) -> None:
    found = await reading_roles("groups", world)
    with pytest.raises(CredentialsRefused, match="the groups of the token is not a list of up to 256 roles"):
        found.holder(world.token(groups=roles))


async def reading_roles(name: str, world: World) -> Tokens:
    found = Tokens(Issuer(ISSUER.issuer, "comet", URL, "sub", name), world.clock, world._read)
    await found.reread(SimWorker(Random(0), WorkerPace(seconds_max=0.0)))
    return found


async def test_a_claim_can_be_chosen(world: World) -> None:
    found = Tokens(Issuer(ISSUER.issuer, "comet", URL, "email", ""), world.clock, world._read)
    await found.reread(SimWorker(Random(0), WorkerPace(seconds_max=0.0)))
    assert found.holder(world.token(email="ann@example.com")).principal == "user:ann@example.com"
    with pytest.raises(CredentialsRefused, match="no usable email"):
        found.holder(world.token())


@pytest.mark.parametrize("kind", ["RS256", "PS256", "EdDSA"])
async def test_other_algorithms_are_taken(world: World, kind: str) -> None:
    key: Any = ed25519.Ed25519PrivateKey.generate() if kind == "EdDSA" else RSA
    row = {**jwk("other", key), "alg": kind}
    world.tokens._keys = parse_signing_keys(json.dumps({"keys": [row]}).encode())
    assert world.tokens.holder(jwt.encode(world.claims(), key, kind, {"kid": "other"})).principal == "user:ann"


def forged(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"x") -> str:
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def signed_with(secret: bytes, header: dict[str, Any], claims: dict[str, Any]) -> str:
    text = forged(header, claims).rpartition(".")[0]
    digest = hmac.digest(secret, text.encode(), "sha256")
    return f"{text}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


async def test_hostile_tokens_are_refused(world: World) -> None:
    world.tokens._keys = {**world.tokens._keys, **parse_signing_keys(json.dumps({"keys": [jwk("rsa", RSA)]}).encode())}
    public = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    stranger = ec.generate_private_key(ec.SECP256R1())
    hostile = {
        "no algorithm": forged({"alg": "none", "kid": "one"}, world.claims()),
        "no signature": jwt.encode(world.claims(), "", "none", {"kid": "one"}) + "eA",
        "the public key as a secret": signed_with(public, {"alg": "HS256", "kid": "rsa"}, world.claims()),
        "an algorithm of another key": jwt.encode(world.claims(), stranger, "ES256", {"kid": "rsa"}),
        "a stranger's signature": jwt.encode(world.claims(), stranger, "ES256", {"kid": "one"}),
        "a changed claim": forged({"alg": "ES256", "kid": "one"}, world.claims(sub="admin"), b"x" * 64),
        "kid is a path": jwt.encode(world.claims(iat=1), stranger, "ES256", {"kid": "../../etc/passwd"}),
        "kid is not a text": forged({"alg": "ES256", "kid": ["one"]}, world.claims(iat=1)),
        "its own key": jwt.encode(
            world.claims(iat=1), stranger, "ES256", {"kid": "new", "jwk": jwk("new", stranger), "jku": "https://evil"}
        ),
        "critical": jwt.encode(
            world.claims(), world.keys["one"], "ES256", {"kid": "one", "crit": ["b64"], "b64": False}
        ),
        "no JSON": "e30x.e30.eA",
        "a list": forged({"alg": "ES256", "kid": "one"}, []),  # type: ignore[arg-type]
        "deep": ".".join(["W" * 4000, "W" * 4000, "eA"]),
    }
    for what, text in hostile.items():
        assert "the token is not valid" in world.refusal(text), what
    assert world.readings == 1


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES: Final = st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk", "iss", "aud", "sub", "exp", "nbf", "iat"])
OBJECTS: Final = st.dictionaries(NAMES, JSON | st.sampled_from(["one", "ES256", "none", "comet", ISSUER.issuer]))


@example(header={"alg": "ES256", "kid": "two"}, claims={"iat": 10**400}, signature=b"x")
@given(header=OBJECTS | JSON, claims=OBJECTS | JSON, signature=st.binary(max_size=80))
async def test_all_that_strangers_send_is_refused(header: Any, claims: Any, signature: bytes) -> None:
    """With an error that names the reason: not by a bug, which would be logged each time."""
    world = World()
    await world.reread()
    with pytest.raises((CredentialsRefused, Unavailable)):
        world.tokens.holder(forged(header, claims, signature))


async def test_claims_that_do_not_fit_are_refused(world: World) -> None:
    now = world.now_s
    for changes, why in (
        ({"iss": "https://other.example"}, "issuer"),
        ({"iss": None}, "iss"),
        ({"aud": "other"}, "[Aa]udience"),
        ({"aud": None}, "aud"),
        ({"exp": None}, "exp"),
        ({"exp": now - LEEWAY_S}, "has expired"),
        ({"exp": "soon"}, "exp is not a time"),
        ({"exp": True}, "exp is not a time"),
        ({"exp": float("inf")}, "exp is not a time"),
        ({"exp": float("nan")}, "exp is not a time"),
        ({"exp": 1e300}, "exp is not a time"),
        ({"exp": 10**400}, "exp is not a time"),
        ({"nbf": now + LEEWAY_S + 1}, "nbf is in the future"),
        ({"iat": now + LEEWAY_S + 1}, "iat is in the future"),
        ({"nbf": "now"}, "nbf"),
        ({"sub": None}, "no usable sub"),
        ({"sub": ""}, "no usable sub"),
        ({"sub": "*"}, "no usable sub"),
        ({"sub": "a b"}, "no usable sub"),
        ({"sub": "x" * 300}, "no usable sub"),
    ):
        claims = {name: value for name, value in {**world.claims(), **changes}.items() if value is not None}
        payload = json.dumps(claims).encode()
        text = jwt.PyJWS().encode(payload, world.keys["one"], "ES256", {"kid": "one"})
        with pytest.raises(CredentialsRefused, match=why):
            world.tokens.holder(text)
    world.tokens.holder(world.token(exp=now - LEEWAY_S + 1, nbf=now + LEEWAY_S, iat=now + LEEWAY_S))


async def test_a_known_token_expires(world: World) -> None:
    token = world.token(exp=world.now_s + 10)
    world.tokens.holder(token)
    world.clock.now_us += int((10 + LEEWAY_S) * 1e6)
    assert "has expired" in world.refusal(token)


async def test_known_tokens_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "REMEMBERED_MAX", 3)
    for number in range(5):
        world.tokens.holder(world.token(sub=f"u{number}"))
    assert len(world.tokens._known) == 3


async def test_a_rotated_key_is_read_and_a_removed_one_ends_its_streams(world: World) -> None:
    old = world.token()
    world.tokens.holder(old)
    world.clock.now_us += 3_600_000_000
    world.add("two")
    new = world.token("two")
    with pytest.raises(Unavailable, match="newer key"):
        world.tokens.holder(new)
    await world.reread()
    assert world.tokens.holder(new).credential == "kid:two" and not world.ended
    del world.keys["one"]
    await world.reread()
    assert world.ended == ["kid:one"]
    world.clock.now_us += int((LEEWAY_S + 1) * 1e6)
    await world.reread()
    assert "none of the issuer's keys" in world.refusal(old)
    world.keys["two"] = ec.generate_private_key(ec.SECP256R1())
    await world.reread()
    assert world.ended == ["kid:one", "kid:two"], "another key with the same kid"


async def test_while_the_issuer_is_away_the_earlier_keys_are_used(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.problem = "cannot read the issuer's keys"
    await world.reread()
    await world.reread()
    assert world.tokens.holder(world.token()).principal == "user:ann"
    assert caplog.messages == ["cannot read the issuer's keys"]
    world.add("two")
    with pytest.raises(Unavailable, match="cannot read the issuer's keys"):
        world.tokens.holder(world.token("two"))


async def test_before_the_first_reading_a_token_may_come_again() -> None:
    world = World()
    with pytest.raises(Unavailable):
        world.tokens.holder(world.token())


async def test_a_hundred_thousand_unknown_kids_are_one_reading(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """They make the broker read again, once in each pause; and a stranger's are refused where they can be told."""
    monkeypatch.setattr(tokens, "PAUSE_S", 30.0)
    stranger = ec.generate_private_key(ec.SECP256R1())
    following = asyncio.create_task(world.tokens.follow(SimWorker(Random(0), WorkerPace(seconds_max=0.0))))
    assert await until(lambda: world.readings == 2, within_s=10.0)
    token = jwt.encode(world.claims(), stranger, "ES256", {"kid": "kid-000000"})
    header, _, rest = token.partition(".")
    assert json.loads(base64.urlsafe_b64decode(header + "==="))["kid"] == "kid-000000"
    for number in range(100_000):
        own = base64.urlsafe_b64encode(json.dumps({"alg": "ES256", "kid": f"kid-{number:06}"}).encode()).rstrip(b"=")
        with pytest.raises(Unavailable):
            world.tokens.holder(f"{own.decode()}.{rest}")
        if number % 10_000 == 0:
            await asyncio.sleep(0)
    assert world.readings == 2 and len(world.tokens._known) == 0
    following.cancel()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": 7}',
        b'{"keys": [7]}',
        b'{"keys": []}',
        b'{"keys": [{"kty": "RSA"}]}',
        b"[" * 99_999,
    ],
)
def test_what_is_no_set_of_keys_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        parse_signing_keys(data)


def test_secret_unknown_and_nameless_keys_are_left_out() -> None:
    good = jwk("good", RSA)
    rows = [
        good,
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret", "alg": "HS256"},
        {**good, "kid": "encrypts", "use": "enc"},
        {**good, "kid": "other", "alg": "RS512"},
        {**good, "kid": None},
        {"kty": "quantum", "kid": "new"},
    ]
    assert set(parse_signing_keys(json.dumps({"keys": rows}).encode())) == {"good"}


@pytest.mark.filterwarnings("ignore::jwt.InsecureKeyLengthWarning")
async def test_a_short_key_verifies_nothing(world: World) -> None:
    short = rsa.generate_private_key(65537, 1024)
    world.tokens._keys = parse_signing_keys(json.dumps({"keys": [jwk("short", short)]}).encode())
    assert "not valid" in world.refusal(jwt.encode(world.claims(), short, "RS256", {"kid": "short"}))


@pytest.fixture
def answers() -> Iterator[Callable[[int, bytes, str], str]]:
    """Starts a server with one answer, and returns its URL."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: int, data: bytes, location: str = "") -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                if location:
                    self.send_header("location", location)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/keys"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_keys_are_read_from_a_url_or_a_file(answers: Callable[[int, bytes, str], str], tmp_path: Path) -> None:
    data = json.dumps({"keys": [jwk("one", RSA)]}).encode()
    (tmp_path / "keys.json").write_bytes(data)
    url = answers(200, data, "")
    for source in (str(tmp_path / "keys.json"), url):
        assert source.startswith("/") or is_private(source)
        assert set(read_signing_keys(source)) == {"one"}
    for source in (
        answers(302, b"", url),
        answers(500, data, ""),
        answers(200, b"{}", ""),
        answers(200, b" " * (1 << 20) + data, ""),
        str(tmp_path / "none"),
        "http://127.0.0.1:1/keys",
    ):
        with pytest.raises(Unavailable, match="cannot read the issuer's keys"):
            read_signing_keys(source)


def test_keys_come_over_tls_or_from_this_machine() -> None:
    for source in ("https://login.example/keys", "http://127.0.0.1:8080/keys", "/etc/keys.json"):
        Issuer("https://login.example", "comet", source, "sub", "").check()
    for source in ("http://login.example/keys", "https:///keys"):
        with pytest.raises(InvalidArgument, match="https URL"):
            Issuer("https://login.example", "comet", source, "sub", "").check()


def test_the_settings_of_an_issuer_belong_together() -> None:
    settings = {"jwt_issuer": "https://i.example", "jwt_audience": "comet", "jwt_keys": "/keys.json"}
    assert issuer_of(BrokerConfig(Path("data"))) is None
    assert issuer_of(BrokerConfig(Path("data"), **settings)) == Issuer(*settings.values(), "sub", "")  # type: ignore[arg-type,call-arg]
    for name in settings:
        with pytest.raises(InvalidArgument, match="belong together"):
            issuer_of(BrokerConfig(Path("data"), **{**settings, name: ""}))  # type: ignore[arg-type]


async def test_a_broker_that_takes_tokens_says_so(world: World) -> None:
    credentials = Credentials(AccessKeys(None, world.clock), world.tokens, world.clock)
    assert credentials.required and not Credentials(AccessKeys(None, world.clock), None, world.clock).required
    assert credentials.holder([("authorization", f"Bearer {world.token()}")]).principal == "user:ann"
    for text in ("", "Bearer x.y", f"Bearer {'x' * 9000}.y.z", "Bearer comet_3f9a51c07d42_" + 43 * "x"):
        with pytest.raises(CredentialsRefused, match="is not a token"):
            credentials.holder([("authorization", text)])
    times: list[int] = []
    credentials.on_tick.append(times.append)
    credentials.expire()
    assert times == [world.clock.now_us]


def test_a_client_reads_its_token_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("eyJhbGciOiJFUzI1NiJ9.e30.c2ln\n")
    assert read_token(file) == read_bearer(file) == "eyJhbGciOiJFUzI1NiJ9.e30.c2ln"
    file.write_text("secret-0815")
    for read in (read_token, read_bearer):
        with pytest.raises(InvalidArgument) as refused:
            read(file)
        assert "0815" not in str(refused.value)
