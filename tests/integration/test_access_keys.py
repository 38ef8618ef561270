"""Access keys at a broker: who has one is let in, and a key that is taken away is gone from open streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest

import comet
from comet.admin.access_keys import creation
from comet.security.access_keys import add_access_key, brokers_file
from comet.security.certificates import Authority
from comet.v1 import admin_pb2, records_pb2
from comet.wire.bearer import FileBearer, read_access_key
from comet.wire.grpc_channel import GrpcChannel
from comet.wire.tls import TlsFiles
from comet_broker.config import BrokerConfig
from comet_broker.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

TOPIC: Final = "orders"
ME: Final = "client:billing"


@dataclass
class Keyed:
    """A broker whose clients present access keys, and its superuser."""

    server: Server
    folder: Path
    ca: Path
    admin: comet.Admin

    @property
    def admin_key(self) -> Path:
        return self.folder / "security" / "admin.access-key"

    @property
    def auth_failures(self) -> dict[str, int]:
        found: dict[str, int] = self.server.broker.statistics()["auth_failures"]
        return found

    def bootstrap(self, key: Path) -> comet.Bootstrap:
        return comet.Bootstrap(self.server.address, ca=self.ca, access_key=key)

    async def key(self, name: str, principal: str = ME) -> tuple[Path, str]:
        """A new key: its file, named so, and its id."""
        made = await self.admin.access.create_access_key(principal)
        return self.write(name, made.text), made.key.id

    def write(self, name: str, text: str) -> Path:
        new = self.folder / f"{name}.new"
        new.write_text(text)
        return new.replace(self.folder / name)

    async def allow(self, *operations: str, kind: comet.ResourceKind = comet.ResourceKind.TOPIC) -> None:
        await self.admin.access.add_rule(ME, operations, kind, "*")


@asynccontextmanager
async def keyed(folder: Path, **settings: Any) -> AsyncIterator[Keyed]:
    authority = Authority.create(folder / "security", "comet")
    issued = authority.issue_broker(1, ["127.0.0.1"])
    admin_key = add_access_key(folder / "security", "admin")
    config = BrokerConfig(
        data=folder / "data",
        port=0,
        clients_cert=issued.cert,
        clients_key=issued.key,
        access_keys=brokers_file(folder / "security"),
        superusers=("client:admin",),
        drain_grace_ms=100,
        **settings,
    )
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(config))
        bootstrap = comet.Bootstrap(server.address, ca=authority.ca, access_key=admin_key)
        admin = await stack.enter_async_context(comet.Admin(bootstrap))
        await admin.create_topic(TOPIC)
        yield Keyed(server, folder, authority.ca, admin)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with keyed(tmp_path) as found:
        yield found


async def test_a_key_is_its_principal(broker: Keyed) -> None:
    file, key_id = await broker.key("billing.key")
    await broker.allow("write", "read")
    async with comet.Producer(broker.bootstrap(file)) as producer:
        await producer.publish(TOPIC, b"1")
        with pytest.raises(comet.TopicNotFound):
            await producer.publish("other", b"1")
    async with comet.Consumer(broker.bootstrap(file), TOPIC, start="earliest") as consumer:
        assert (await anext(consumer)).value == b"1"
    async with comet.Admin(broker.bootstrap(file)) as ours:
        with pytest.raises(comet.Forbidden, match="client:billing may not alter the cluster"):
            await ours.access.create_access_key(ME)
    listed = await broker.admin.access.list_access_keys()
    assert listed.accepted
    assert [(one.principal, one.author, one.in_file) for one in listed.keys] == [
        ("client:admin", "", True),
        (ME, "client:admin", False),
    ]
    assert [one.id for one in (await broker.admin.access.list_access_keys(principal=ME)).keys] == [key_id]


async def test_without_a_key_nothing_but_the_health_answers(broker: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMET_CLIENT_CA", str(broker.ca))
    async with comet.Producer(broker.server.address) as producer:
        with pytest.raises(comet.CredentialsRefused, match="requires an access key"):
            await producer.publish(TOPIC, b"1")
    monkeypatch.setenv("COMET_CLIENT_ACCESS_KEY", str(broker.admin_key))
    async with comet.Producer(broker.server.address) as producer:
        await producer.publish(TOPIC, b"1")
    credentials = grpc.ssl_channel_credentials(broker.ca.read_bytes())
    async with grpc.aio.secure_channel(broker.server.address, credentials) as channel:
        for call, expected in (
            ("/grpc.health.v1.Health/Check", grpc.StatusCode.OK),
            ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", grpc.StatusCode.UNAUTHENTICATED),
            ("/comet.v1.Comet/Stream", grpc.StatusCode.UNAUTHENTICATED),
            ("/comet.v1.Admin/ListTopics", grpc.StatusCode.UNAUTHENTICATED),
        ):
            requests: Any = iter([b""])
            stream: Any = channel.stream_stream(call)(requests)
            with suppress(grpc.aio.AioRpcError):
                assert await stream.read() is not grpc.aio.EOF
                assert await stream.read() is grpc.aio.EOF
            assert await stream.code() is expected, call
    assert broker.auth_failures["missing"] >= 4


async def test_a_revoked_key_ends_its_streams_and_no_others(broker: Keyed) -> None:
    (lost, lost_id), (kept, _) = await broker.key("lost"), await broker.key("kept")
    await broker.allow("read")
    lost_consumer, kept_consumer = (
        comet.Consumer(broker.bootstrap(file), TOPIC, start="earliest") for file in (lost, kept)
    )
    async with lost_consumer, kept_consumer, comet.Producer(broker.bootstrap(broker.admin_key)) as producer:
        await producer.publish(TOPIC, b"1")
        for consumer in (lost_consumer, kept_consumer):
            assert (await anext(consumer)).value == b"1"
        begin = time.monotonic()
        assert (await broker.admin.access.revoke_access_key(lost_id)).revoked
        with pytest.raises(comet.CredentialsRefused, match="may have been revoked"):
            await anext(lost_consumer)
        print(f"refused {time.monotonic() - begin:.3f} s after it was revoked")
        await producer.publish(TOPIC, b"2")
        assert (await anext(kept_consumer)).value == b"2"
    assert broker.auth_failures["unknown"] > 0
    again = await broker.admin.access.revoke_access_key(lost_id)
    assert not again.revoked and "nothing to do" in str(again)


async def test_an_expired_key_ends_its_streams(broker: Keyed) -> None:
    text, request = creation(ME, 0)
    request.lifetime_s = 1
    channel = GrpcChannel(
        broker.server.address,
        tls=TlsFiles(broker.ca),
        bearer=FileBearer(broker.admin_key),
    )
    await channel.unary("comet.v1.Admin/CreateAccessKey", request, admin_pb2.AccessKey, 10.0)
    await channel.close()
    await broker.allow("read")
    consumer = comet.Consumer(broker.bootstrap(broker.write("short", text)), TOPIC, start="earliest")
    async with consumer:
        with pytest.raises(comet.CredentialsRefused, match="has expired"):
            await anext(consumer)
    assert broker.auth_failures["expired"] > 0


async def test_ten_rotations_under_load_fail_no_send(broker: Keyed) -> None:
    file, key_id = await broker.key("billing.key")
    await broker.allow("write", "read")
    sent = 0
    stop = asyncio.Event()

    async def send() -> None:
        nonlocal sent
        async with comet.Producer(broker.bootstrap(file), acks="all") as producer:
            while not stop.is_set():
                await producer.publish(TOPIC, b"%d" % sent)
                sent += 1

    async def ask() -> None:
        """Unary calls go over connections that last."""
        async with comet.Admin(broker.bootstrap(file)) as ours:
            while not stop.is_set():
                assert [topic.name for topic in await ours.list_topics()] == [TOPIC]

    async def rotate() -> None:
        nonlocal key_id
        for _ in range(10):
            made = await broker.admin.access.create_access_key(ME)
            broker.write("billing.key", made.text)
            before = sent
            assert (await broker.admin.access.revoke_access_key(key_id)).revoked
            key_id = made.key.id
            while sent < before + 20:  # more than were under way
                await broker.admin.access.list_access_keys()
        stop.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for work in (send, ask, rotate):
            tasks.create_task(work())
    values: list[bytes] = []
    async with comet.Consumer(broker.bootstrap(file), TOPIC, start="earliest") as consumer:
        while len(values) < sent:
            values.append((await anext(consumer)).value)
    assert values == [b"%d" % number for number in range(sent)] and sent >= 200


async def test_a_stream_over_an_older_connection_presents_the_new_key(broker: Keyed) -> None:
    file, key_id = await broker.key("billing.key")
    channel = GrpcChannel(broker.server.address, tls=TlsFiles(broker.ca), bearer=FileBearer(file))
    try:
        request, answer = admin_pb2.ListTopicsRequest(), admin_pb2.ListTopicsResponse
        await channel.unary("comet.v1.Admin/ListTopics", request, answer, 10.0)
        await broker.key("billing.key")
        await broker.admin.access.revoke_access_key(key_id)
        stream = channel.stream()
        await stream.write(records_pb2.ClientFrame(request=1, hello=records_pb2.Hello()).SerializeToString())
        assert records_pb2.ServerFrame.FromString(bytes(await stream.read() or b"")).WhichOneof("frame") == "welcome"
        stream.cancel()
    finally:
        await channel.close()


async def test_only_a_superuser_makes_or_revokes_keys_of_superusers(broker: Keyed) -> None:
    file, _ = await broker.key("billing.key")
    _, admin_id = await broker.key("second", "client:admin")
    await broker.allow("alter", "describe", kind=comet.ResourceKind.CLUSTER)
    async with comet.Admin(broker.bootstrap(file)) as ours:
        with pytest.raises(comet.Forbidden, match="may not create an access key for the superuser"):
            await ours.access.create_access_key("client:admin")
        with pytest.raises(comet.Forbidden, match="may not revoke an access key of the superuser"):
            await ours.access.revoke_access_key(admin_id)
        made = await ours.access.create_access_key("client:other")
        assert made.key.author == ME and (await ours.access.revoke_access_key(made.key.id)).revoked
    in_file = (await broker.admin.access.list_access_keys(principal="client:admin")).keys[0]
    with pytest.raises(comet.InvalidArgument, match="stands in the file"):
        await broker.admin.access.revoke_access_key(in_file.id)


async def test_keys_are_kept_as_digests(tmp_path: Path) -> None:
    async with keyed(tmp_path) as broker:
        file, _ = await broker.key("billing.key")
        secrets = [read_access_key(one)[19:].encode() for one in (file, broker.admin_key)]
        await broker.admin.access.list_access_keys()
    # The broker has stopped: while it runs, its files come and go.
    written = [one for one in (tmp_path / "data").rglob("*") if one.is_file()]
    assert any(b"client:billing" in one.read_bytes() for one in written), "the table is among them"
    assert not [one for one in written for secret in secrets if secret in one.read_bytes()]


async def test_keys_outlive_a_restart(tmp_path: Path) -> None:
    async with keyed(tmp_path) as broker:
        file, _ = await broker.key("billing.key")
        await broker.allow("write")
        config = broker.server.config
    async with (
        Server(config) as again,
        comet.Producer(comet.Bootstrap(again.address, ca=broker.ca, access_key=file)) as producer,
    ):
        await producer.publish(TOPIC, b"1")
