"""`comet security` and `comet up --secure`: three brokers that only holders of a certificate reach."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import tomllib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import comet
from comet.admin.rules import ResourceKind
from comet.cli.security import secured_folder
from comet.security.certificates import Authority
from comet.security.files import write_file
from comet.wire.bearer import read_access_key
from comet.wire.tls import TlsFiles
from comet_gateway.http.auth import new_token
from tests.integration.test_cli_flows import COMET
from tests.integration.test_cluster_cli import started
from tests.integration.test_listeners import admits, error_of_replication, files, refuses, serves
from tests.waiting import until, until_answered

WAIT_S = 60.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@asynccontextmanager
async def up(*words: str) -> AsyncIterator[dict[str, Any]]:
    """What `comet up` prints; it ends in order afterwards."""
    with started("up", "--port", "0", "--metrics-port", "0", *words) as (process, document):
        yield document
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, 60) == 0


def comet_command(*words: str, code: int = 0, **environ: str) -> str:
    environment = os.environ | environ
    done = subprocess.run([*COMET, *words], capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def bootstrap(document: dict[str, Any], addresses: str) -> comet.Bootstrap:
    files = {name.removeprefix("COMET_CLIENT_").lower(): path for name, path in document["environment"].items()}
    return comet.Bootstrap(addresses, **files)


async def test_a_secure_cluster_replicates_fails_over_and_serves_no_stranger(tmp_path: Path) -> None:
    async with up("--secure", "--brokers", "3", "--data", str(tmp_path / "data"), "--gateway-port", "0") as document:
        addresses = ",".join(broker["address"] for broker in document["brokers"])
        ours = bootstrap(document, addresses)
        async with comet.Admin(ours) as admin, comet.Producer(ours, acks="all") as producer:
            await admin.create_topic("t", replicas=3, min_insync=2)
            assert (await producer.publish("t", b"one")).offset == 0
            info = await admin.describe_topic("t")
            cluster = await admin.describe_cluster()
            leader = info.partitions[0].leader
            assert leader is not None
            # A client that says it is a follower gets nothing, and acknowledges nothing.
            tls = TlsFiles(*(Path(path) for path in document["environment"].values()))
            address = document["brokers"][leader - 1]["address"]
            refused = await error_of_replication(address, tls, cluster.cluster_id, leader % 3 + 1)
            assert isinstance(refused, comet.UnsupportedVersion)
            os.kill(document["brokers"][leader - 1]["pid"], signal.SIGKILL)
            assert (await producer.publish("t", b"two")).offset == 1
        async with comet.Consumer(ours, "t", start="earliest") as consumer:
            assert [(await anext(consumer)).value for _ in range(2)] == [b"one", b"two"]
        async with httpx.AsyncClient() as client:  # the gateway has a certificate
            assert (await client.get(f"{document['gateway']}/v1/topics/t")).status_code == 200
        said = await asyncio.to_thread(comet_command, "cluster", "-b", addresses, **document["environment"])
        assert "under-replicated" in said
        failed = await asyncio.to_thread(comet_command, "cluster", "-b", addresses, code=4)
        assert "COMET_CLIENT_CA" in failed


async def test_certificates_and_authority_of_a_cluster_are_rotated_under_load(tmp_path: Path) -> None:
    """Ten times; then a leader dies, and all replicate again over connections with the last certificates."""
    folder, sent, stop = tmp_path / "data" / "security", list[int](), asyncio.Event()
    async with up("--secure", "--brokers", "3", "--no-gateway", "--data", str(tmp_path / "data")) as document:
        addresses = [broker["address"] for broker in document["brokers"]]
        ours = bootstrap(document, ",".join(addresses))

        async def load() -> None:
            async with comet.Producer(ours, acks="all") as producer:
                while not stop.is_set():
                    sent.append((await producer.publish("t", b"%d" % len(sent))).offset)

        async with comet.Admin(ours) as admin:
            await admin.create_topic("t", replicas=3, min_insync=2)
            await admin.create_topic("all", replicas=3, min_insync=3)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load())
            for number in range(10):
                await rotate(folder, f"authority-{number}", addresses)
            async with comet.Admin(ours) as admin:
                leader = (await admin.describe_topic("all")).partitions[0].leader
            assert leader is not None
            os.kill(document["brokers"][leader - 1]["pid"], signal.SIGKILL)
            async with comet.Producer(ours, acks="all", timeout_ms=60_000) as producer:
                await producer.publish("all", b"on three")
            stop.set()
        assert sent == list(range(len(sent)))
        print(f"{len(sent)} records acknowledged, none failed")
        async with comet.Consumer(ours, "t", start="earliest") as consumer:
            assert [(await anext(consumer)).value for _ in sent] == [b"%d" % offset for offset in sent]


async def rotate(folder: Path, name: str, addresses: list[str]) -> None:
    """First a bundle of both authorities, then new certificates, then the new authority alone."""
    authority = Authority.open(folder)
    old = files(authority, authority.issue_client("old"))
    new = Authority.create(folder / name, authority.cluster)
    write_file(authority.ca, new.ca.read_bytes() + authority.ca.read_bytes())
    issued = [new.issue_client("admin"), *(new.issue_broker(one, ["127.0.0.1", "localhost"]) for one in (1, 2, 3))]
    for address in addresses:
        assert await until_answered(lambda at=address: admits(at, files(authority, issued[0])), within_s=30)  # type: ignore[misc]
    for one in issued:
        one.key.replace(folder / one.key.name)
        one.cert.replace(folder / one.cert.name)
    (new.folder / "ca.key").replace(folder / "ca.key")
    for address, one in zip(addresses, issued[1:], strict=True):
        await serves(address, folder / one.cert.name)
    write_file(authority.ca, new.ca.read_bytes())
    for address in addresses:
        assert await until_answered(lambda at=address: refuses(at, old), within_s=30)  # type: ignore[misc]


def events(document: dict[str, Any], **of: str) -> Callable[[], bool]:
    """Whether the audit log has an event with these fields."""
    words = ("consume", "__audit", "--no-follow", "-b", document["address"])

    def found() -> bool:
        lines = comet_command(*words, **document["environment"]).splitlines()
        return any(of.items() <= json.loads(line).items() for line in lines)

    return found


async def test_rules_hold_under_up_secure_and_are_audited(tmp_path: Path) -> None:
    """The administrator and the gateway may do everything, another client what a rule allows."""
    (tmp_path / "config/comet").mkdir(parents=True)
    contexts = tmp_path / "config/comet/contexts.toml"
    contexts.touch(0o600)
    contexts.write_text("current = 'far'\n[context.far]\nbootstrap = '127.0.0.1:1'\ntoken = '/gone'\n")
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "COMET_CONTEXT": ""}
    words = ("up", "--port", "0", "--metrics-port", "0", "--secure", "--data", str(tmp_path / "data"))
    with started(*words, **environ) as (process, document):
        assert document["environment"]["COMET_CONTEXT"] == "none", "its variables do not reach the cluster"
        admin, at = environ | document["environment"], ("-b", document["address"])
        folder = tmp_path / "data/security"
        comet_command("topic", "create", "t", *at, **admin)
        comet_command("security", "client", "billing", str(folder))
        billing = admin | {
            f"COMET_CLIENT_{kind.upper()}": f"{folder}/billing.{name}"
            for kind, name in (("cert", "pem"), ("key", "key"))
        }
        assert "TOPIC_NOT_FOUND" in comet_command("topic", "describe", "t", *at, code=3, **billing)
        assert "client:billing may not create topic" in comet_command("topic", "create", "x", *at, code=1, **billing)
        changed = comet_command("acl", "add", "client:billing", "read", "topic", "t", *at, **admin)
        assert "not enforced" not in changed
        assert await until(lambda: "t" in comet_command("topic", "list", *at, **billing).split(), within_s=WAIT_S)
        done = {"event": "admin", "principal": "client:admin", "operation": "CreateTopic", "name": "t"}
        denied = {"event": "denied", "principal": "client:billing", "code": "FORBIDDEN", "name": "x"}
        for event in (done, denied):
            assert await until(events(document, **event), within_s=WAIT_S)
        async with httpx.AsyncClient(base_url=document["gateway"]) as client:
            rules = (await client.get("/v1/rules")).json()
            assert rules["enforced"] and rules["superusers"] == ["client:admin", "client:gateway"]
            assert "Rules are enforced" in (await client.get("/access")).text
            assert (await client.get("/audit")).status_code == 200
            records = (await client.get("/v1/topics/__audit/records")).json()["records"]
            assert any(denied.items() <= one["value"].items() for one in records)
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, 60) == 0


async def test_the_gateway_of_a_secure_cluster_may_act_for_its_users(tmp_path: Path) -> None:
    """It is given users and `user_rules` by the environment; brokers decide for each, and name it in the audit log."""
    token, row = new_token("ann", "operator")
    (tmp_path / "tokens.toml").write_text(row)
    (tmp_path / "tokens.toml").chmod(0o600)
    environ = {"COMET_GATEWAY_TOKENS_FILE": str(tmp_path / "tokens.toml"), "COMET_GATEWAY_USER_RULES": "yes"}
    words = ("up", "--port", "0", "--metrics-port", "0", "--secure", "--brokers", "2", "--data", str(tmp_path / "data"))
    with started(*words, **environ) as (process, document):
        ours = bootstrap(document, ",".join(broker["address"] for broker in document["brokers"]))
        headers = {"authorization": f"Bearer {token}"}
        async with comet.Admin(ours) as admin, httpx.AsyncClient(base_url=document["gateway"], headers=headers) as ann:
            await admin.create_topic("t")
            await admin.create_topic("secret")
            await admin.access.add_rule("token:ann", ["read"], ResourceKind.TOPIC, "t")

            async def seen() -> bool:
                return [one["name"] for one in (await ann.get("/v1/topics")).json().get("items", ())] == ["t"]

            assert await until_answered(seen, within_s=WAIT_S)
            refused = await ann.post("/v1/topics", json={"name": "x"})
            assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
        denied = {"event": "denied", "principal": "token:ann", "via": "client:gateway", "name": "x"}
        assert await until(events(document, **denied), within_s=WAIT_S)
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, 60) == 0


async def test_a_single_broker_keeps_its_certificates(tmp_path: Path) -> None:
    words = ("--secure", "--no-gateway", "--data", str(tmp_path / "data"))
    folder = tmp_path / "data/security"
    async with up(*words) as document:
        async with comet.Admin(bootstrap(document, document["address"])) as admin:
            await admin.create_topic("t")
        certificate = (folder / "broker-1.pem").read_bytes()
    assert stat.S_IMODE((folder / "ca.key").stat().st_mode) == 0o600
    async with up(*words) as document, comet.Admin(bootstrap(document, document["address"])) as admin:
        assert [topic.name for topic in await admin.list_topics()] == ["__audit", "t"]
    assert (folder / "broker-1.pem").read_bytes() == certificate


def test_the_commands_make_and_show_certificates(tmp_path: Path) -> None:
    folder = str(tmp_path / "security")
    said = comet_command("security", "init", folder, "--brokers", "2", "--host", "b1.example")
    assert 'brokers_cert = "' in said and "export COMET_CLIENT_KEY=" in said
    comet_command("security", "client", "billing", folder, "--days", "5")
    comet_command("security", "broker", "3", folder, "--host", "b3.example")
    shown = json.loads(comet_command("security", "show", folder, "--json"))
    first, *year, last = [one["name"] for one in shown]  # by the second in which they expire
    assert (first, sorted(year), last) == ("billing", ["admin", "broker-1", "broker-2", "broker-3"], "ca")
    assert [one["name"] for one in shown if one["expires_soon"]] == ["billing"]
    assert "billing" in comet_command("security", "show", folder)
    assert "holds an authority already" in comet_command("security", "init", folder, code=2)


def test_the_commands_make_access_keys(tmp_path: Path) -> None:
    folder = tmp_path / "security"
    said = comet_command("security", "init", str(folder), "--access-keys", "--host", "b1.example")
    assert 'superusers = ["client:admin"]' in said and "clients_ca" not in said and "COMET_CLIENT_CERT" not in said
    assert f"export COMET_CLIENT_ACCESS_KEY={folder}/admin.access-key" in said
    made = json.loads(comet_command("security", "access-key", "gateway", str(folder), "--json"))
    text = read_access_key(Path(made["access_key"]))
    known = tomllib.loads(Path(made["access_keys"]).read_text())["key"]
    assert [one["principal"] for one in known] == ["client:admin", "client:gateway"]
    assert text not in said and text not in Path(made["access_keys"]).read_text()
    assert not list(folder.glob("admin.pem"))


def test_a_broker_beyond_loopback_needs_certificates(tmp_path: Path) -> None:
    for brokers in ((), ("--brokers", "3")):
        words = ("--host", "0.0.0.0", "--data", str(tmp_path / "data"), "--port", "0", *brokers)
        said = comet_command("up", *words, code=2)
        assert "strangers could read and write" in said
        assert said.endswith(
            f"hint: start it with certificates: {' '.join(('comet up --secure --host 0.0.0.0', *brokers))}\n"
        )
        assert not (tmp_path / "data").exists(), "something was started"


def test_damaged_certificates_are_found_before_anything_starts(tmp_path: Path) -> None:
    secured_folder(tmp_path / "data", 3, [])
    (tmp_path / "data/security/broker-2.key").write_text("damaged")
    words = ("--secure", "--brokers", "3", "--data", str(tmp_path / "data"), "--port", "0")
    assert "broker-2.pem does not match the key" in comet_command("up", *words, code=2)
    assert [one.name for one in (tmp_path / "data").iterdir()] == ["security"], "something was started"
