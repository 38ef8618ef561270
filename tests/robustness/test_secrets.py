"""No secret leaves its file: a broker, a gateway and commands work with known ones, also with wrong ones, at the log
level debug; then all that they have written, shown and been started with is searched for each."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import jwt
import psutil
import pytest
import websockets
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

import comet
from comet.security.access_keys import add_access_key, brokers_file
from comet.security.certificates import Authority
from comet.wire.bearer import id_of, make_access_key, read_access_key
from comet_gateway.http.auth import new_token
from comet_web.pages import PAGES
from tests.integration.test_cli_flows import COMET
from tests.robustness.gateway_process import GatewayProcess
from tests.robustness.process import BrokerProcess, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TOPIC: Final = "orders"
ISSUER: Final = "https://login.example"
CLEARTEXT: Final = "the-value-that-only-its-reader-may-see"
SHOWN: Final = tuple(page.path.format(topic=TOPIC, broker=1, partition=0, group="none") for page in PAGES)
DOCUMENTS: Final = (
    "/metrics", "/openapi.json",
    *(f"/v1/{name}" for name in ("cluster", "brokers/1/statistics", "rules", "access-keys", "topics")),
)  # fmt: skip


@dataclass
class Secrets:
    """Each by its name: texts, of which a part is enough to find it."""

    texts: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, text: str) -> str:
        self.texts[name] = text
        return text

    def add_pem(self, path: Path) -> None:
        """A line of its base64 is unique."""
        lines = [line for line in path.read_text().splitlines() if not line.startswith("-")]
        self.add(f"private key {path.name}", lines[1])

    def found_in(self, data: bytes) -> list[str]:
        return [name for name, text in self.texts.items() if _part(text).encode() in data]


def _part(text: str) -> str:
    """What no public text has: of an access key the part behind its id, of a token its signature."""
    return text.split("_", 2)[-1] if id_of(text) is not None else text.rpartition(".")[2]


class World:
    """Processes with marked secrets, and what they were seen to write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secrets = Secrets()
        self.seen: dict[str, bytes] = {}  # by where
        self.arguments: set[str] = set()
        self.security = folder / "security"
        authority = Authority.create(self.security, "comet")
        issued = authority.issue_broker(1, ["127.0.0.1", "localhost"])
        self.ca = authority.ca
        for key in (*self.security.glob("*.key"), issued.key):
            self.secrets.add_pem(key)
        self.admin_key = add_access_key(self.security, "admin")
        self.secrets.add("access key of the administrator", read_access_key(self.admin_key))
        self.signing = ec.generate_private_key(ec.SECP256R1())
        jwk = {**ECAlgorithm.to_jwk(self.signing.public_key(), as_dict=True), "kid": "one"}
        self.file("jwks.json", json.dumps({"keys": [jwk]}))
        self.metrics_token = self.secrets.add("token of metrics", "metrics-token-8f1c2a77d09b")
        settings = {
            "clients_cert": issued.cert, "clients_key": issued.key,
            "brokers_ca": authority.ca, "brokers_cert": issued.cert, "brokers_key": issued.key,
            "access_keys": brokers_file(self.security),
            "jwt_issuer": ISSUER, "jwt_audience": "comet", "jwt_keys": folder / "jwks.json",
            "metrics_token": self.metrics_token, "log_level": "debug",
        }  # fmt: skip
        rows = [f'{name} = "{value}"' for name, value in settings.items()]
        self.metrics_port, brokers_port = free_port(), free_port()
        rows += ['superusers = ["client:admin", "user:root"]', f"metrics_port = {self.metrics_port}"]
        rows += [f"brokers_port = {brokers_port}"]
        config = self.file("broker.toml", "\n".join(rows))
        self.broker = BrokerProcess(folder / "data", options=("--config", str(config)))
        self.token, row = new_token("ann", "admin")
        self.secrets.add("token of the gateway", self.token)
        self.tokens_file = self.file("tokens.toml", row)
        self.gateway: GatewayProcess | None = None

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    def jwt(self, name: str, *, seconds: float = 600.0, key: ec.EllipticCurvePrivateKey | None = None) -> Path:
        claims = {"iss": ISSUER, "aud": "comet", "sub": name, "exp": time.time() + seconds}
        text = jwt.encode(claims, key or self.signing, "ES256", {"kid": "one"})
        self.secrets.add(f"token of {name}", text)
        return self.file(f"{name}.token", text)

    def bootstrap(self, **files: Path) -> comet.Bootstrap:
        return comet.Bootstrap(self.broker.address, ca=self.ca, **files)

    def command(self, *words: str, key: Path | None = None, public: bool = True) -> str:
        """Runs `comet …`; what it says is searched, if that is not a secret by intent."""
        environ = {
            **os.environ,
            "COMET_BOOTSTRAP": self.broker.address,
            "COMET_CLIENT_CA": str(self.ca),
            "COMET_CLIENT_ACCESS_KEY": str(key or self.admin_key),
        }
        self.arguments.add(" ".join(words))
        done = subprocess.run([*COMET, *words], capture_output=True, env=environ, timeout=60, check=False)
        self.saw(f"errors of comet {words[0]}", done.stderr)
        if public:
            self.saw(f"output of comet {words[0]}", done.stdout)
        return done.stdout.decode()

    def saw(self, where: str, data: bytes) -> None:
        self.seen[where] = self.seen.get(where, b"") + data

    def look_at_processes(self) -> None:
        """The arguments of all that run, which every user of the machine may read."""
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                self.saw("arguments of processes", "\0".join(process.cmdline()).encode())

    def look_at_files(self) -> None:
        """All that the broker and the gateway have written."""
        own = {self.folder / "broker.toml", *self.folder.glob("*.token"), *self.folder.glob("*.access-key")}
        own |= {self.folder / "keyring"}
        for path in self.folder.rglob("*"):
            if path.is_file() and self.security not in path.parents and path not in own:
                self.saw(f"file {path.relative_to(self.folder)}", path.read_bytes())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    found.broker.start()
    try:
        yield found
    finally:
        found.broker.kill()
        if found.gateway is not None:
            found.gateway.kill()


async def use_clients(world: World) -> None:
    """Keys, tokens and encrypted values, good ones and wrong ones."""
    secrets = world.secrets
    made = world.command("key", "create", "client:billing", public=False).strip()
    billing = world.file("billing.access-key", secrets.add("access key of billing", made))
    world.command("topic", "create", TOPIC)
    world.command("acl", "add", "client:billing", "read,write", "topic", TOPIC)
    world.command("acl", "add", "user:ann", "read,write", "topic", TOPIC)
    keyring = base64.b64encode(os.urandom(32)).decode()
    ring = comet.Keyring.from_file(world.file("keyring", f"key-1 {secrets.add('key of the keyring', keyring)}\n"))
    secrets.add("encrypted value", CLEARTEXT)
    async with comet.Producer(world.bootstrap(access_key=billing), encryption=ring) as producer:
        await producer.publish(TOPIC, CLEARTEXT)
    async with comet.Producer(world.bootstrap(token=world.jwt("ann"))) as producer:
        await producer.publish(TOPIC, b"not encrypted")
    wrong = make_access_key()
    forged = "_".join([*made.split("_", 2)[:2], wrong.split("_", 2)[2]])
    refused = [
        {"access_key": world.file("wrong.access-key", secrets.add("unknown access key", wrong))},
        {"access_key": world.file("forged.access-key", secrets.add("access key with another secret", forged))},
        {"token": world.jwt("expired", seconds=-3600)},
        {"token": world.jwt("forged", key=ec.generate_private_key(ec.SECP256R1()))},
    ]
    for files in refused:
        async with comet.Admin(world.bootstrap(**files)) as admin:
            with pytest.raises(comet.CredentialsRefused) as error:
                await admin.list_topics()
        world.saw("errors of clients", repr(error.value).encode() + str(error.value).encode())
    for files in (*refused, {"access_key": billing}):
        world.saw("texts of settings", repr(world.bootstrap(**files)).encode())
    world.saw("texts of settings", repr(ring).encode() + str(ring).encode())
    for words in (
        ["cluster", "--statistics"],
        ["cluster", "--json"],
        ["key", "list"],
        ["doctor", "--json"],
        ["acl", "list"],
    ):
        world.command(*words)
    world.command("topic", "list", key=world.folder / "wrong.access-key")
    world.command("topic", "list", key=world.folder / "keyring")  # a file of another kind, in its place
    world.command("key", "revoke", made.split("_")[1])
    world.command("topic", "list", key=billing)


async def use_gateway(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages, its documents, logins and wrong tokens."""
    monkeypatch.setenv("COMET_CLIENT_CA", str(world.ca))
    monkeypatch.setenv("COMET_CLIENT_ACCESS_KEY", str(world.admin_key))
    options = ("--tokens-file", str(world.tokens_file), "--log-level", "debug")
    gateway = world.gateway = GatewayProcess(world.folder / "gateway", [world.broker.address], *options)
    gateway.launch()
    await gateway.ready()
    wrong = world.secrets.add("unknown token", new_token("bob", "admin")[0])
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        typed = {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "accept": "text/html"}
        page = await http.get("/login", headers=typed)
        (form,) = re.findall(r'name="form" value="([^"]+)"', page.text)
        for token, status in ((wrong, 401), (world.token, 303)):
            fields = {"form": form, "token": token, "next": "/topics"}
            answer = await http.post("/login", headers={"origin": gateway.url}, data=fields)
            world.saw("answers to logins", answer.content)
            assert answer.status_code == status
        for name, value in http.cookies.items():
            world.secrets.add(f"cookie {name}", value)
        for path in (*SHOWN, "/about/diagnostics.json"):
            shown = await http.get(path, headers=typed)
            assert shown.status_code == (404 if "none" in path else 200), (path, shown.status_code)
            world.saw(f"page {path}", shown.content)
        session = "; ".join(f"{name}={value}" for name, value in http.cookies.items())
        await look_at_socket(world, {"cookie": session, "origin": gateway.url})
    ours, others = ({"authorization": f"Bearer {token}"} for token in (world.token, wrong))
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        for headers in (ours, others):
            for path in DOCUMENTS:
                world.saw(f"document {path}", (await http.get(path, headers=headers)).content)
        world.saw("answers", (await http.get(f"/v1/topics?token={wrong}")).content)
        created = await http.post("/v1/access-keys", headers=ours, json={"principal": "client:shop"})
        assert created.status_code == 200, created.text
        world.secrets.add("access key of shop", created.json()["text"])
        world.saw("answers", (await http.get("/v1/access-keys", headers=ours)).content)
    for headers in (ours, others):
        await look_at_socket(world, headers)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{world.metrics_port}") as http:
        for token in (world.metrics_token, wrong):
            answer = await http.get("/metrics", headers={"authorization": f"Bearer {token}"})
            world.saw("metrics of the broker", answer.content)


async def look_at_socket(world: World, headers: dict[str, str]) -> None:
    assert world.gateway is not None
    url = world.gateway.url.replace("http", "ws", 1) + "/v1/ws"
    with suppress(websockets.InvalidStatus):
        async with websockets.connect(url, additional_headers=headers) as socket:
            world.saw("frames", str(await socket.recv()).encode())


async def test_no_secret_is_in_what_is_written_shown_or_passed_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await use_clients(world)
    await use_gateway(world, monkeypatch)
    world.look_at_processes()
    assert world.gateway is not None
    assert world.gateway.terminate() == 0 and world.broker.terminate() == 0
    world.look_at_files()
    world.saw("arguments of commands", "\n".join(world.arguments).encode())
    assert {"file data.log", "file gateway.log", "page /topics", "arguments of processes"} <= world.seen.keys()
    assert len(world.seen["file data.log"]) > 1_000 and len(world.secrets.texts) >= 14
    leaks = {where: names for where, data in world.seen.items() if (names := world.secrets.found_in(data))}
    assert leaks == {}
    for name, text in world.secrets.texts.items():
        assert name in world.secrets.found_in(f"... {text} ...".encode()), "the search finds what is there"
