"""Clients that fetch their tokens from an issuer over HTTP, and brokers that take these."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import threading
from base64 import b64decode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import pytest

import comet
from comet import limits
from comet.security import signed_tokens
from comet.spark.connection_options import ConnectionOptions
from comet_broker.access import tokens
from tests.integration.gateway_http import gateway
from tests.integration.test_tokens import TOPIC, Issuing, issuer
from tests.waiting import until

__all__ = ["issuer"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SECRET: Final = "hunter2 & more"
WAIT_S = 30


class LocalIssuer(ThreadingHTTPServer):
    """An issuer on this machine. `answer` is what it does with a request."""

    daemon_threads = True

    def __init__(self, issuing: Issuing) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.issuing = issuing
        self.kid = "key-0"
        self.life_s = 600.0
        self.age_s = 0.0
        self.answer = "token"
        self.requests: list[tuple[dict[str, str], dict[str, list[str]]]] = []
        self.stopped = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/oauth/token?tenant=1"
        self.secret = issuing.folder / "client.secret"
        self.secret.write_text(SECRET + "\n")
        self.secret.chmod(0o600)

    def credentials(self, **more: Any) -> comet.ClientCredentials:
        return comet.ClientCredentials(
            token_url=self.url, client_id="billing", client_secret_file=self.secret, audience="comet", **more
        )

    def bootstrap(self, **more: Any) -> comet.Bootstrap:
        return comet.Bootstrap(self.issuing.address, ca=self.ca, token=self.credentials(**more))

    def variables(self) -> dict[str, str]:
        return {
            "COMET_BOOTSTRAP": self.issuing.address,
            "COMET_CLIENT_CA": str(self.ca),
            "COMET_CLIENT_OAUTH_URL": self.url,
            "COMET_CLIENT_OAUTH_ID": "billing",
            "COMET_CLIENT_OAUTH_SECRET": str(self.secret),
            "COMET_CLIENT_OAUTH_AUDIENCE": "comet",
        }

    @property
    def ca(self) -> Path:
        return self.issuing.folder / "security" / "ca.pem"

    def document(self) -> dict[str, Any]:
        token = self.issuing.token("ann", self.kid, seconds=self.life_s, age_s=self.age_s).read_text()
        return {"access_token": token, "token_type": "bearer", "expires_in": self.life_s}

    def answers(self) -> dict[str, tuple[int, Any]]:
        return {
            "token": (200, self.document()),
            "page": (200, b"<html>welcome</html>"),
            "huge": (200, self.document() | {"padding": "x" * (1 << 20)}),
            "opaque": (200, self.document() | {"access_token": SECRET}),
            "mac": (200, self.document() | {"token_type": "mac"}),
            "deep": (200, b"[" * 60_000),
            "redirect": (307, b""),
            "refuses": (401, {"error": "invalid_client", "error_description": SECRET}),
            "quotes": (400, {"error": SECRET}),
            "busy": (503, b""),
        }


class Answering(BaseHTTPRequestHandler):
    server: LocalIssuer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        issuer = self.server
        assert self.path == "/oauth/token?tenant=1"
        issuer.requests.append((dict(self.headers), parse_qs(body.decode())))
        if issuer.answer == "silent":
            issuer.stopped.wait(WAIT_S)
        elif issuer.answer == "drips":
            self._drip()
        else:
            status, body = issuer.answers()[issuer.answer]
            self._send(status, body if isinstance(body, bytes) else json.dumps(body).encode())

    def _drip(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not self.server.stopped.wait(0.05):
            try:
                self.wfile.write(b"x")
            except OSError:
                return

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if status == 307:
            self.send_header("location", self.server.url)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: requests are kept."""


@pytest.fixture
def local(issuer: Issuing) -> Iterator[LocalIssuer]:
    server = LocalIssuer(issuer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.stopped.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("auth", ["basic", "post"])
async def test_clients_share_one_token_of_their_issuer(local: LocalIssuer, auth: str) -> None:
    access = local.bootstrap(scope="records", auth=auth)
    async with (
        comet.Producer(access, acks="all") as producer,
        comet.Consumer(access, TOPIC, start="earliest") as consumer,
    ):
        await producer.publish(TOPIC, b"1")
        assert (await anext(consumer)).value == b"1"
        async with comet.Admin(local.bootstrap(scope="records", auth=auth)) as admin:
            assert [topic.name for topic in await admin.list_topics()] == [TOPIC]
    ((headers, form),) = local.requests
    given = {"grant_type": ["client_credentials"], "scope": ["records"], "audience": ["comet"]}
    if auth == "post":
        assert form == given | {"client_id": ["billing"], "client_secret": [SECRET]}
    else:
        assert form == given
        assert b64decode(headers["authorization"].removeprefix("Basic ")) == b"billing:hunter2+%26+more"


NONSENSE: Final[list[tuple[str, type[comet.CometError], str]]] = [
    ("silent", comet.Unavailable, "no answer in time|gave no token within"),
    ("drips", comet.Unavailable, "no answer in time|gave no token within"),
    ("page", comet.Unavailable, "its answer has no access_token of type Bearer"),
    ("huge", comet.Unavailable, "its answer is larger than 1048576 bytes"),
    ("mac", comet.Unavailable, "its answer has no access_token of type Bearer"),
    ("deep", comet.Unavailable, "its answer has no access_token of type Bearer"),
    ("busy", comet.Unavailable, "status 503"),
    ("opaque", comet.CredentialsRefused, "a JWT that has `exp`"),
    ("redirect", comet.CredentialsRefused, "redirects .307., which is not followed: give its new address"),
    ("refuses", comet.CredentialsRefused, "refuses client 'billing': invalid_client"),
    ("quotes", comet.CredentialsRefused, "refuses client 'billing': status 400"),
]


@pytest.mark.parametrize(("answer", "error", "told"), NONSENSE)
async def test_an_issuer_that_answers_nonsense_fails_new_connections_and_no_others(
    local: LocalIssuer, monkeypatch: pytest.MonkeyPatch, answer: str, error: type[comet.CometError], told: str
) -> None:
    async with comet.Producer(local.bootstrap(), acks="all") as producer:
        await producer.publish(TOPIC, b"before")
        monkeypatch.setattr(limits, "ISSUER_FETCH_MS", 300)
        local.answer = answer
        async with comet.Admin(local.bootstrap(scope="other"), timeout_ms=1_000) as admin:
            with pytest.raises(error, match=told) as caught:
                await admin.list_topics()
        assert local.url in str(caught.value) and SECRET not in str(caught.value)
        await producer.publish(TOPIC, b"after")
        names = {"comet: token"}
        assert await until(lambda: names.isdisjoint(one.name for one in threading.enumerate()), within_s=WAIT_S)


async def test_an_issuer_that_is_away_or_a_secret_that_others_read_is_named(local: LocalIssuer) -> None:
    local.secret.chmod(0o644)
    async with comet.Admin(local.bootstrap(), timeout_ms=500) as admin:
        with pytest.raises(comet.Unavailable, match="open to others: run chmod 600"):
            await admin.list_topics()
    local.secret.chmod(0o600)
    away = comet.ClientCredentials(
        token_url="http://127.0.0.1:1/", client_id="billing", client_secret_file=local.secret
    )
    async with comet.Admin(comet.Bootstrap(local.issuing.address, ca=local.ca, token=away), timeout_ms=500) as admin:
        with pytest.raises(comet.Unavailable, match=r"no token from http://127.0.0.1:1/: Connection refused"):
            await admin.list_topics()


async def test_the_issuers_certificate_is_checked(local: LocalIssuer) -> None:
    security = local.issuing.folder / "security"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(security / "broker-1.pem", security / "broker-1.key")
    local.socket = context.wrap_socket(local.socket, server_side=True)
    local.url = local.url.replace("http://", "https://")
    async with comet.Admin(local.bootstrap(ca=local.ca)) as admin:
        assert [topic.name for topic in await admin.list_topics()] == [TOPIC]
    async with comet.Admin(local.bootstrap(), timeout_ms=500) as admin:
        with pytest.raises(comet.Unavailable, match="its certificate: unable to get local issuer certificate"):
            await admin.list_topics()


async def test_no_send_fails_while_tokens_expire_and_are_renewed(
    local: LocalIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signed_tokens, "LEEWAY_S", 0.0)
    monkeypatch.setattr(tokens, "LEEWAY_S", 0.0)
    local.life_s = 2.5
    access, seen = local.bootstrap(scope="short"), 0
    async with (
        comet.Producer(access, acks="all") as producer,
        comet.Consumer(access, TOPIC, start="earliest") as consumer,
    ):
        while len(local.requests) < 4:  # three tokens have ended
            receipt = await producer.publish(TOPIC, b"%d" % seen)
            assert receipt.offset == seen
            assert (await anext(consumer)).value == b"%d" % seen
            seen += 1
        assert consumer.statistics()["reconnects"] >= 2
    assert seen > 10


async def test_no_send_fails_when_the_issuers_key_is_replaced(local: LocalIssuer) -> None:
    local.issuing.add("key-1")
    local.age_s = 2 * signed_tokens.LEEWAY_S  # else its key may be one that the broker has yet to read
    async with comet.Producer(local.bootstrap(), acks="all") as producer:
        await producer.publish(TOPIC, b"0")
        local.kid, local.age_s = "key-1", 0.0
        async with comet.Admin(local.bootstrap(scope="other")) as admin:
            await admin.list_topics()  # the broker has read the new key
        assert len(local.requests) == 2
        del local.issuing.keys["key-0"]
        local.issuing.publish()
        sent = 1
        while len(local.requests) < 3:  # its token was refused, and another one fetched
            assert (await producer.publish(TOPIC, b"%d" % sent)).offset == sent
            sent += 1
        assert (await producer.publish(TOPIC, b"last")).offset == sent


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_any_function_may_give_the_token(local: LocalIssuer, kind: str) -> None:
    calls = []

    def plain() -> str:
        calls.append(threading.current_thread() is threading.main_thread())
        return str(local.document()["access_token"])

    async def fetched() -> str:
        await asyncio.sleep(0)
        return plain()

    provider: comet.TokenProvider = fetched if kind == "async" else plain
    access = comet.Bootstrap(local.issuing.address, ca=local.ca, token=provider)
    async with comet.Producer(access, acks="all") as producer:
        await producer.publish(TOPIC, b"1")
    assert calls == [kind == "async"]

    def work() -> int:
        with comet.sync.Producer(access, acks="all") as producer:
            return producer.publish(TOPIC, b"2").offset

    assert await asyncio.to_thread(work) == 1


async def test_a_gateway_and_sparks_processes_take_it_from_the_environment(
    local: LocalIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in local.variables().items():
        monkeypatch.setenv(name, value)
    async with gateway(local.issuing.address) as http:
        answer = (await http.get("/v1/topics")).json()
    topics = answer["items"]
    assert [topic["name"] for topic in topics] == [TOPIC]
    of_spark = ConnectionOptions(bootstrap=local.issuing.address)
    async with comet.Admin(of_spark.addresses()) as admin:
        assert [topic.name for topic in await admin.list_topics()] == [TOPIC]
    assert len(local.requests) == 1, "one process"


async def test_the_command_line_takes_it_from_the_environment(local: LocalIssuer) -> None:
    async def comet_cli(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        command, environment = [sys.executable, "-m", "comet.cli", *words], os.environ | local.variables() | more
        return await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=60, check=False, env=environment
        )

    done = await comet_cli("topic", "list")
    assert done.returncode == 0 and TOPIC in done.stdout, done.stderr
    local.answer = "refuses"
    done = await comet_cli("topic", "list")
    assert done.returncode == 1 and "refuses client 'billing': invalid_client" in done.stderr
    assert SECRET not in done.stderr
    done = await comet_cli("topic", "list", COMET_CLIENT_OAUTH_ID="")
    assert done.returncode == 2 and "needs COMET_CLIENT_OAUTH_ID as well" in done.stderr
    local.answer = "token"
    checked = await comet_cli("doctor")
    assert f"from {local.url}" in checked.stdout.replace("\n", " ")
