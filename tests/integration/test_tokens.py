"""Tokens (JWT) at a broker: those of its issuer are let in, and new ones take the place of old ones without a failed
send."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

import comet
from comet.client.wires import Wires
from comet.security.certificates import Authority
from comet.security.signed_tokens import LEEWAY_S
from comet.wire.transport import Stream
from comet_broker.access import tokens
from comet_broker.config import BrokerConfig
from comet_broker.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

TOPIC: Final = "orders"


@dataclass
class Issuing:
    """An issuer whose keys stand in a file, and a broker that takes its tokens."""

    folder: Path
    keys: dict[str, ec.EllipticCurvePrivateKey] = field(default_factory=dict)
    address: str = ""

    @property
    def file(self) -> Path:
        return self.folder / "keys.json"

    def write(self, name: str, text: str) -> Path:
        new = self.folder / f"{name}.new"
        new.write_text(text)
        return new.replace(self.folder / name)

    def publish(self) -> None:
        rows: list[dict[str, Any]] = [
            {**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid} for kid, key in self.keys.items()
        ]
        self.write("keys.json", json.dumps({"keys": rows}))

    def add(self, kid: str) -> None:
        self.keys[kid] = ec.generate_private_key(ec.SECP256R1())
        self.publish()

    def token(
        self, name: str, kid: str, *, seconds: float = 600.0, age_s: float = 0.0, groups: Sequence[str] = ()
    ) -> Path:
        """A file with a token of user:NAME."""
        claims: dict[str, Any] = {
            "iss": "https://login.example",
            "aud": "comet",
            "sub": name,
            "exp": time.time() + seconds,
        }
        claims |= {"iat": time.time() - age_s, "groups": list(groups)}
        return self.write(f"{name}.token", jwt.encode(claims, self.keys[kid], "ES256", {"kid": kid}))

    def bootstrap(self, token: Path) -> comet.Bootstrap:
        return comet.Bootstrap(self.address, ca=self.folder / "security" / "ca.pem", token=token)


@pytest.fixture
async def issuer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Issuing]:
    monkeypatch.setattr(tokens, "FILE_PAUSE_S", 0.05)
    found = Issuing(tmp_path)
    found.add("key-0")
    authority = Authority.create(tmp_path / "security", "comet")
    issued = authority.issue_broker(1, ["127.0.0.1"])
    config = BrokerConfig(
        data=tmp_path / "data",
        port=0,
        clients_cert=issued.cert,
        clients_key=issued.key,
        jwt_issuer="https://login.example",
        jwt_audience="comet",
        jwt_keys=str(found.file),
        jwt_roles="groups",
        superusers=("user:root",),
        drain_grace_ms=100,
    )
    async with Server(config) as server:
        found.address = server.address
        async with comet.Admin(found.bootstrap(found.token("root", "key-0"))) as admin:
            await admin.create_topic(TOPIC)
            await admin.access.add_rule("user:ann", ["read", "write"], comet.ResourceKind.TOPIC, "*")
        yield found


async def test_a_token_is_its_principal(issuer: Issuing) -> None:
    async with comet.Producer(issuer.bootstrap(issuer.token("ann", "key-0"))) as producer:
        await producer.publish(TOPIC, b"1")
    async with comet.Producer(issuer.bootstrap(issuer.token("bob", "key-0"))) as producer:
        with pytest.raises(comet.TopicNotFound):
            await producer.publish(TOPIC, b"1")
    issuer.keys["key-0"] = ec.generate_private_key(ec.SECP256R1())
    async with comet.Producer(issuer.bootstrap(issuer.token("ann", "key-0"))) as producer:
        with pytest.raises(comet.CredentialsRefused, match="Signature verification failed"):
            await producer.publish(TOPIC, b"1")


async def test_a_token_has_the_roles_that_its_issuer_gives(issuer: Issuing) -> None:
    async with comet.Admin(issuer.bootstrap(issuer.token("root", "key-0"))) as admin:
        await admin.access.add_rule("role:writers", ["write"], comet.ResourceKind.TOPIC, TOPIC)
        write, topic = comet.RuleOperation.WRITE, comet.ResourceKind.TOPIC
        explain = admin.access.explain_access
        assert (await explain("user:bob", write, topic, TOPIC, roles="role:staff,role:writers")).allowed
        assert not (await explain("user:bob", write, topic, TOPIC)).allowed
        ours = issuer.bootstrap(issuer.token("bob", "key-0", groups=["staff", "writers"]))
        async with comet.Producer(ours) as producer:
            await producer.publish(TOPIC, b"1")
            await admin.access.remove_rule("role:writers", ["write"], comet.ResourceKind.TOPIC, TOPIC)
            with pytest.raises(comet.TopicNotFound):
                await publish_until_refused(producer)
    async with comet.Producer(issuer.bootstrap(issuer.token("eve", "key-0", groups=["root", "admin"]))) as producer:
        with pytest.raises(comet.TopicNotFound):
            await producer.publish(TOPIC, b"1")


async def publish_until_refused(producer: comet.Producer) -> None:
    """For at most a minute."""
    async with asyncio.timeout(60):
        while True:
            await producer.publish(TOPIC, b"2")


async def test_an_expired_token_ends_its_streams_and_a_renewed_one_goes_on(issuer: Issuing) -> None:
    soon = 1.0 - LEEWAY_S
    token = issuer.token("ann", "key-0", seconds=soon)
    end = time.monotonic() + 1.0
    async with comet.Producer(issuer.bootstrap(token), acks="all") as producer:
        await producer.publish(TOPIC, b"first")
        issuer.token("ann", "key-0")  # an agent has renewed the file
        sent = 0
        while time.monotonic() < end + 1.5:  # streams are looked at once a second
            await producer.publish(TOPIC, b"%d" % sent)
            sent += 1
    assert sent > 1
    token = issuer.token("ann", "key-0", seconds=soon)
    async with comet.Consumer(issuer.bootstrap(token), TOPIC, start="latest") as consumer:
        with pytest.raises(comet.CredentialsRefused, match="has expired"):
            await anext(consumer)


async def test_a_token_that_the_wire_refuses_is_renewed_once(issuer: Issuing, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, refusals = Wires.open, 0

    async def refusing(wires: Wires, address: str) -> Stream | None:
        nonlocal refusals
        if refusals < wanted:
            refusals += 1
            issuer.token("ann", "key-0", seconds=600 + refusals)  # an agent has renewed the file
            raise comet.CredentialsRefused("the token has expired")
        return await opened(wires, address)

    monkeypatch.setattr(Wires, "open", refusing)
    wanted = 1
    async with comet.Producer(issuer.bootstrap(issuer.token("ann", "key-0"))) as producer:
        await producer.publish(TOPIC, b"1")
    assert refusals == 1
    wanted, refusals = 2, 0
    async with comet.Producer(issuer.bootstrap(issuer.token("ann", "key-0"))) as producer:
        with pytest.raises(comet.CredentialsRefused):
            await producer.publish(TOPIC, b"1")


async def test_a_removed_key_ends_the_streams_of_its_tokens(issuer: Issuing) -> None:
    issuer.add("lost")
    async with comet.Admin(issuer.bootstrap(issuer.token("ann", "lost"))) as ours:
        await ours.list_topics()  # a new token is tried again until the broker has read its key
    token = issuer.token("ann", "lost", age_s=2 * LEEWAY_S)
    async with (
        comet.Producer(issuer.bootstrap(issuer.token("root", "key-0"))) as producer,
        comet.Consumer(issuer.bootstrap(token), TOPIC, start="earliest") as consumer,
    ):
        await producer.publish(TOPIC, b"1")
        assert (await anext(consumer)).value == b"1"
        del issuer.keys["lost"]
        issuer.publish()
        with pytest.raises(comet.CredentialsRefused, match="none of the issuer's keys"):
            await anext(consumer)
        await producer.publish(TOPIC, b"2")


async def test_the_issuers_keys_are_rotated_ten_times_under_load(issuer: Issuing) -> None:
    token = issuer.token("ann", "key-0")
    sent, stop = 0, asyncio.Event()

    async def send() -> None:
        nonlocal sent
        async with comet.Producer(issuer.bootstrap(token), acks="all") as producer:
            while not stop.is_set():
                await producer.publish(TOPIC, b"%d" % sent)
                sent += 1

    async def rotate() -> None:
        async with comet.Admin(issuer.bootstrap(issuer.folder / "root.token")) as admin:
            for number in range(1, 11):
                issuer.add(f"key-{number}")
                for name in ("ann", "root"):
                    issuer.token(name, f"key-{number}")
                del issuer.keys[f"key-{number - 1}"]
                issuer.publish()
                before = sent
                while sent < before + 20:
                    await admin.list_topics()
        stop.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(send())
        tasks.create_task(rotate())
    values: list[bytes] = []
    async with comet.Consumer(issuer.bootstrap(token), TOPIC, start="earliest") as consumer:
        while len(values) < sent:
            values.append((await anext(consumer)).value)
    assert values == [b"%d" % number for number in range(sent)] and sent >= 200
