"""No secret leaves its file: a broker, a gateway and commands work with known ones, also with wrong ones, at the log
level debug; then all that they have written, shown and been started with is searched for each."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import httpx
import pytest
import websockets
from cryptography.hazmat.primitives.asymmetric import ec

import comet
from comet.cli._local_etcd import password_of
from comet.processes.logs import LOG_FORMAT_VARIABLE, LOG_FORMATS
from comet.wire.bearer import make_access_key
from comet_gateway.http.auth import new_token
from comet_web.pages import PAGES
from tests.integration.test_cli_flows import COMET
from tests.integration.test_cluster_cli import TIMEOUT_S, started
from tests.market.servers import alpaca, market
from tests.robustness.gateway_process import GatewayProcess
from tests.robustness.secret_world import Secrets, World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TOPIC: Final = "orders"
CLEARTEXT: Final = "the-value-that-only-its-reader-may-see"
SHOWN: Final = tuple(
    page.path.format(topic=TOPIC, broker=1, partition=0, group="none", schedule="none") for page in PAGES
)
DOCUMENTS: Final = (
    "/metrics", "/openapi.json",
    *(f"/v1/{name}" for name in ("cluster", "brokers/1/statistics", "rules", "access-keys", "topics")),
)  # fmt: skip


@pytest.fixture(params=LOG_FORMATS)
def world(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv(LOG_FORMAT_VARIABLE, request.param)
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
    world.secrets.look_at_processes()
    assert world.gateway is not None
    assert world.gateway.terminate() == 0 and world.broker.terminate() == 0
    world.look_at_files()
    world.saw("arguments of commands", "\n".join(world.arguments).encode())
    seen = world.secrets.seen
    assert {"file data.log", "file gateway.log", "page /topics", "arguments of processes"} <= seen.keys()
    assert len(seen["file data.log"]) > 1_000 and len(world.secrets.texts) >= 14
    in_json = os.environ[LOG_FORMAT_VARIABLE] == "json"
    assert all((b'{"ts":"' in seen[f"file {name}.log"]) == in_json for name in ("data", "gateway"))
    assert world.secrets.leaks() == {}


# ---- a cluster of `comet up`, with its etcd


def run(secrets: Secrets, where: str, *words: str, **environ: str) -> int:
    """Runs `comet …`; all that it says is searched."""
    done = subprocess.run(
        [*COMET, *words], capture_output=True, env=os.environ | environ, timeout=TIMEOUT_S, check=False
    )
    secrets.saw(where, done.stdout + done.stderr)
    return done.returncode


async def test_no_secret_of_a_cluster_and_its_etcd_is_written_shown_or_passed_on(tmp_path: Path) -> None:
    data, secrets = tmp_path / "data", Secrets()
    words = ("--secure", "--brokers", "3", "--port", "0", "--gateway-port", "0", "--log-level", "debug")
    with started("up", *words, "--data", str(data)) as (process, document):
        password = secrets.add("password of etcd", password_of(data / "etcd.password"))
        wrong = secrets.add("wrong password of etcd", "wrong-password-55d0b1c2")
        for key in (data / "security").glob("*.key"):
            secrets.add_pem(key)
        etcd, brokers = document["etcd"]["address"], [broker["address"] for broker in document["brokers"]]
        clients = {**document["environment"], "COMET_BOOTSTRAP": ",".join(brokers)}
        assert run(secrets, "comet topic", "topic", "create", TOPIC, **clients) == 0
        assert run(secrets, "comet cluster", "cluster", "--statistics", **clients) == 0
        for name, text in (("right", password), ("wrong", wrong)):
            environ = {**clients, "COMET_ETCD_USER": "root", "COMET_ETCD_PASSWORD": text}
            run(secrets, f"comet doctor, {name}", "doctor", "--etcd", etcd, "--port", "0", "--json", **environ)
        settings = {"etcd": etcd, "etcd_user": "root", "etcd_password": wrong, "data": tmp_path / "fourth", "id": 4}
        config = tmp_path / "broker.toml"
        config.write_text("".join(f"{name} = {json.dumps(str(value))}\n" for name, value in settings.items()))
        config.chmod(0o600)
        fourth = ("broker", "--config", str(config), "--port", "0", "--log-level", "debug")
        assert run(secrets, "a broker with the wrong password", *fourth) != 0
        async with httpx.AsyncClient(base_url=document["gateway"], timeout=30) as http:
            for path in (*SHOWN, "/about/diagnostics.json", *DOCUMENTS):
                secrets.saw(f"page {path}", (await http.get(path)).content)
        async with httpx.AsyncClient(base_url=f"http://{etcd}", timeout=30) as http:
            for path in ("/metrics", "/version", "/health", "/debug/vars"):
                secrets.saw(f"etcd's {path}", (await http.get(path)).content)
        secrets.look_at_processes()
        os.kill(document["etcd"]["pid"], signal.SIGKILL)
        assert process.stderr is not None
        secrets.saw("errors of comet up", f"{process.stderr.readline()}{process.stderr.readline()}".encode())
        again = ("topic", "create", f"{TOPIC}.2")  # etcd is about to answer: each try takes as long as a command
        assert any(run(secrets, "comet topic", *again, **clients) == 0 for _ in range(TIMEOUT_S))
        process.terminate()
        output, rest = process.communicate(timeout=TIMEOUT_S)
        secrets.saw("output of comet up", f"{json.dumps(document)}{output}{rest}".encode())
    journal = data / "etcd" / "member" / "wal"  # etcd's own: it has the passwords of those who log in
    secrets.look_at_files(tmp_path, {data / "security", data / "etcd.password", journal, config})
    found = {"file data/etcd.log", "file data/broker-1.log", "file data/gateway.log", "file data/etcd/member/snap/db"}
    assert found | {"arguments of processes", "page /topics", "etcd's /metrics"} <= secrets.seen.keys()
    assert b"--data-dir" in secrets.seen["arguments of processes"], "etcd's"
    assert secrets.leaks() == {}
    assert not any((data / name).stat().st_mode & 0o077 for name in ("etcd", "etcd.log", "etcd.password"))


# ---- the demo, which passes its environment on to all that it starts


def look_at_demo(secrets: Secrets, folder: Path, *words: str, **environ: str) -> None:
    """While it runs: it removes its logs when it ends."""
    with subprocess.Popen(
        [*COMET, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | environ
    ) as process:
        assert process.stdout is not None
        said = b"".join(process.stdout.readline() for _ in range(3))  # a line a second
        secrets.look_at_processes()
        secrets.look_at_files(folder, ())
        process.send_signal(signal.SIGINT)
        secrets.saw("the demo", said + b"".join(process.communicate(timeout=TIMEOUT_S)))
    assert b"symbols, delay" in said


async def test_no_secret_of_the_demo_is_written_shown_or_passed_on(world: World, tmp_path: Path) -> None:
    """A feed that logs in with a key, a broker that demands one, and wrong ones for both."""
    secrets, folder = world.secrets, tmp_path / "temporary"
    folder.mkdir()
    key, secret = (secrets.add(f"{name} of the feed", f"{name}-e41b7c90d2aa") for name in ("key", "secret"))
    clients = {
        "COMET_CLIENT_CA": str(world.ca), "COMET_CLIENT_ACCESS_KEY": str(world.admin_key),
        "COMET_ALPACA_KEY": key, "COMET_ALPACA_SECRET": secret, "TMPDIR": str(folder),
    }  # fmt: skip
    wrong = world.file("wrong.access-key", secrets.add("unknown access key", make_access_key()))
    demo = ("demo", "--bootstrap", world.broker.address, "--no-spark")
    look_at_demo(secrets, folder, *demo, **clients)
    assert b"comet_demo.feed" in secrets.seen["arguments of processes"]
    assert any(where.endswith("feed.log") for where in secrets.seen), sorted(secrets.seen)
    assert run(secrets, "the demo, refused", *demo, **clients | {"COMET_CLIENT_ACCESS_KEY": str(wrong)})
    async with market(alpaca(key="another")) as server:
        feed = ("-m", "comet_demo.feed", "--provider", "alpaca", "--url", server.url, "--bootstrap")
        child = await asyncio.create_subprocess_exec(
            sys.executable, *feed, world.broker.address, env=os.environ | clients, stdout=PIPE, stderr=STDOUT
        )
        secrets.saw("the feed, refused", (await asyncio.wait_for(child.communicate(), TIMEOUT_S))[0])
    assert b"check COMET_ALPACA_KEY" in secrets.seen["the feed, refused"]
    world.look_at_files()
    assert secrets.leaks() == {}
