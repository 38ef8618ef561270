"""The listeners of a broker with TLS, tried by clients, brokers and strangers over real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf.message import Message

import comet
from comet.security.certificates import Authority, Issued
from comet.v1 import coordination_pb2 as coordination
from comet.v1 import records_pb2 as records
from comet.v1 import replication_pb2 as replication
from comet.v1.types_pb2 import ACKS_LEADER
from comet.wire.grpc_channel import GrpcChannel
from comet.wire.tls import TlsFiles
from comet_broker.config import BrokerConfig
from comet_broker.core.requests import digest_of_mac
from comet_broker.failures import Kind
from comet_broker.rpc.network import GrpcPeerChannel
from comet_broker.server import Server
from tests.robustness.process import free_port
from tests.waiting import until_answered

PRODUCER, EPOCH = 1, 2**32 - 1
BETWEEN_BROKERS: dict[str, tuple[Message, type[Message]]] = {
    "AddPartition": (coordination.AddPartitionRequest(), coordination.AddPartitionResponse),
    "Outcome": (coordination.OutcomeRequest(producer_id=PRODUCER), coordination.OutcomeResponse),
    "WriteMarkers": (
        coordination.WriteMarkersRequest(producer_id=PRODUCER, epoch=EPOCH, commit=True),
        coordination.WriteMarkersResponse,
    ),
    "PartitionEnds": (coordination.PartitionEndsRequest(), coordination.PartitionEndsResponse),
    "FoundGroup": (coordination.FoundGroupRequest(group="g", topic_id=bytes(16)), coordination.FoundGroupResponse),
    "Warn": (coordination.WarnRequest(broker=2), coordination.WarnResponse),
}


@dataclass(frozen=True)
class Secured:
    """A broker with both listeners, and the authority of its certificates."""

    server: Server
    authority: Authority
    app: TlsFiles

    @property
    def clients(self) -> str:
        return self.server.address

    @property
    def brokers(self) -> str:
        return f"127.0.0.1:{self.server.broker.registration.brokers_port}"

    @property
    def bootstrap(self) -> comet.Bootstrap:
        return comet.Bootstrap(self.clients, ca=self.app.ca, cert=self.app.cert, key=self.app.key)


def files(authority: Authority, issued: Issued) -> TlsFiles:
    return TlsFiles(authority.ca, issued.cert, issued.key)


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Secured]:
    authority = Authority.create(tmp_path / "security", "comet")
    broker = authority.issue_broker(1, ["127.0.0.1", "localhost"])
    pem: dict[str, Any] = {"ca": authority.ca, "cert": broker.cert, "key": broker.key}
    settings = {f"{name}_{kind}": path for name in ("clients", "brokers") for kind, path in pem.items()}
    config = BrokerConfig(data=tmp_path / "data", port=0, brokers_port=0, drain_grace_ms=100, **settings)
    async with Server(config) as server:
        yield Secured(server, authority, files(authority, authority.issue_client("app")))


async def answer(address: str, tls: TlsFiles | None, method: str, request: Message, response: type[Message]) -> Any:
    channel = GrpcChannel(address, tls=tls)
    try:
        return await channel.unary(method, request, response, 10)
    finally:
        await channel.close()


async def error_of_replication(address: str, tls: TlsFiles | None, cluster_id: str, broker: int) -> comet.CometError:
    """The error that ends the stream of a follower which says that it is this broker. Where a broker ends it while its
    client writes a frame, gRPC loses the reason, and followers try again."""
    while True:
        error = await _error_of_replication(address, tls, cluster_id, broker)
        if "ended the stream while a frame was written" not in error.message:
            return error


async def _error_of_replication(address: str, tls: TlsFiles | None, cluster_id: str, broker: int) -> comet.CometError:
    channel = GrpcPeerChannel(address, tls)
    stream = await channel.replicate(None)
    try:
        hello = replication.ReplicaHello(cluster_id=cluster_id, broker=broker, broker_epoch=7)
        await stream.write(replication.FollowerFrame(hello=hello).SerializeToString())
        while await stream.read() is not None:
            pass
    except comet.CometError as error:
        return error
    finally:
        stream.cancel()
        await channel.close()
    raise AssertionError("the stream ended in good order")


async def test_clients_with_a_certificate_are_served(one: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    async with comet.Admin(one.bootstrap) as admin, comet.Producer(one.bootstrap, acks="all") as producer:
        await admin.create_topic("quotes")
        assert (await producer.publish("quotes", b"EURUSD")).offset == 0
    for name in ("ca", "cert", "key"):
        monkeypatch.setenv(f"COMET_CLIENT_{name.upper()}", str(getattr(one.app, name)))
    async with comet.Consumer(one.clients, "quotes", start="earliest") as consumer:
        async for record in consumer:
            assert record.value == b"EURUSD"
            break


async def test_strangers_are_not_served(one: Secured, tmp_path: Path) -> None:
    foreign = Authority.create(tmp_path / "foreign", "comet")
    strangers = {
        "plain": None,
        "without a certificate": TlsFiles(one.authority.ca),
        "of another authority": TlsFiles(one.authority.ca, *_pair(foreign.issue_client("app"))),
        "as a broker of another authority": TlsFiles(one.authority.ca, *_pair(foreign.issue_broker(2, ["localhost"]))),
    }
    for kind, tls in strangers.items():
        for address in (one.clients, one.brokers):
            for method in ("comet.v1.Comet/FetchMetadata", "comet.v1.Coordination/Warn"):
                with pytest.raises(comet.Unavailable):
                    await answer(address, tls, method, records.FetchMetadataRequest(), records.FetchMetadataResponse)
            found = await error_of_replication(address, tls, one.server.broker.cluster_id, 2)
            assert isinstance(found, comet.Unavailable), kind


def _pair(issued: Issued) -> tuple[Path, Path]:
    return issued.cert, issued.key


async def test_clients_are_no_brokers(one: Secured) -> None:
    for name, (request, response) in BETWEEN_BROKERS.items():
        with pytest.raises(comet.UnsupportedVersion):  # the clients' listener does not have the service
            await answer(one.clients, one.app, f"comet.v1.Coordination/{name}", request, response)
        with pytest.raises(comet.Forbidden, match="this listener is for brokers"):
            await answer(one.brokers, one.app, f"comet.v1.Coordination/{name}", request, response)
    cluster_id = one.server.broker.cluster_id
    assert isinstance(await error_of_replication(one.clients, one.app, cluster_id, 2), comet.UnsupportedVersion)
    assert isinstance(await error_of_replication(one.brokers, one.app, cluster_id, 2), comet.Forbidden)


async def test_a_broker_speaks_for_itself_alone(one: Secured) -> None:
    second = files(one.authority, one.authority.issue_broker(2, ["127.0.0.1"]))
    for name, (request, response) in BETWEEN_BROKERS.items():
        code = ""
        try:
            await answer(one.brokers, second, f"comet.v1.Coordination/{name}", request, response)
        except comet.CometError as error:
            code = error.code  # of the request, which is none that makes sense
        assert code not in ("FORBIDDEN", "UNSUPPORTED_VERSION", "UNAVAILABLE"), name
    as_third = coordination.WarnRequest(broker=3)
    with pytest.raises(comet.Forbidden, match="of broker 2, not of broker 3"):
        await answer(one.brokers, second, "comet.v1.Coordination/Warn", as_third, coordination.WarnResponse)
    found = await error_of_replication(one.brokers, second, one.server.broker.cluster_id, 3)
    assert isinstance(found, comet.Forbidden) and "of broker 2, not of broker 3" in found.message


async def test_brokers_forward_calls_and_open_no_streams(one: Secured) -> None:
    second = files(one.authority, one.authority.issue_broker(2, ["127.0.0.1"]))
    request, response = records.FetchMetadataRequest(), records.FetchMetadataResponse
    found = await answer(one.brokers, second, "comet.v1.Comet/FetchMetadata", request, response)
    assert [(broker.host, broker.port) for broker in found.brokers] == [("127.0.0.1", int(one.clients.split(":")[1]))]
    stream = GrpcChannel(one.brokers, tls=second).stream()
    with pytest.raises(comet.UnsupportedVersion):
        await stream.read()


async def test_a_mac_stands_in_for_the_content_on_a_listener_for_clients_too(one: Secured) -> None:
    async with comet.Admin(one.bootstrap) as admin:
        await admin.create_topic("t")

    async def publish(value: bytes, mac: bytes, **more: Any) -> bool:
        record = records.Record(value=value)
        request = records.PublishRequest(
            topic="t", records=[record], acks=ACKS_LEADER, idempotency_key="order-1", content_mac=mac, **more
        )
        found = await answer(one.clients, one.app, "comet.v1.Comet/Publish", request, records.PublishResponse)
        assert isinstance(found, records.PublishResponse)
        return found.receipts[0].duplicate

    mac = b"m" * 32
    assert not await publish(b"ciphertext", mac)
    assert await publish(b"other ciphertext", mac)
    with pytest.raises(comet.KeyReused):
        await publish(b"ciphertext", b"n" * 32)
    with pytest.raises(comet.KeyReused):  # readers of the log see the number, and cannot send it
        await publish(b"forged", b"", content_digest=digest_of_mac(mac), forwarded=True)


async def test_a_digest_is_believed_of_brokers_only(one: Secured) -> None:
    """A stranger that knows another's idempotency key cannot make its records count as written."""
    async with comet.Admin(one.bootstrap) as admin:
        await admin.create_topic("t")
    second = files(one.authority, one.authority.issue_broker(2, ["127.0.0.1"]))

    async def publish(tls: TlsFiles, address: str, value: bytes, digest: int) -> records.PublishResponse:
        request = records.PublishRequest(
            topic="t",
            records=[records.Record(value=value)],
            acks=ACKS_LEADER,
            idempotency_key="order-1",
            content_digest=digest,
            forwarded=True,
        )
        found = await answer(address, tls, "comet.v1.Comet/Publish", request, records.PublishResponse)
        assert isinstance(found, records.PublishResponse)
        return found

    await publish(one.app, one.clients, b"forged", 42)
    with pytest.raises(comet.KeyReused):
        await publish(one.app, one.clients, b"mine", 42)
    assert (await publish(one.app, one.clients, b"forged", 7)).receipts[0].duplicate
    with pytest.raises(comet.KeyReused):  # as a broker that forwards other content
        await publish(second, one.brokers, b"forged", 42)


async def test_certificates_and_authority_are_rotated_under_load(one: Secured) -> None:
    sent: list[int] = []
    stop = asyncio.Event()

    async def load() -> None:
        async with comet.Producer(one.bootstrap, acks="all") as producer:
            while not stop.is_set():
                sent.append((await producer.publish("t", b"%d" % len(sent))).offset)

    async with comet.Admin(one.bootstrap) as admin:
        await admin.create_topic("t")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load())
        for number in range(10):
            await _change_authority(one, f"authority-{number}")
            before = len(sent)
            async with comet.Admin(one.bootstrap) as admin:  # a connection with the certificates of this round
                await admin.describe_topic("t")
            assert await until_answered(lambda count=before: _more(sent, count), within_s=30)  # type: ignore[misc]
        stop.set()
    assert sent == list(range(len(sent)))


async def _more(sent: list[int], count: int) -> bool:
    return len(sent) > count


async def _change_authority(one: Secured, name: str) -> None:
    """First a bundle of both, then new certificates, then the new authority alone, which refuses the old ones."""
    folder = one.authority.folder
    old = files(one.authority, one.authority.issue_client("old"))
    new = Authority.create(folder / name, "comet")
    bundle = new.ca.read_bytes() + one.authority.ca.read_bytes()
    one.authority.ca.write_bytes(bundle)
    broker, app = new.issue_broker(1, ["127.0.0.1", "localhost"]), new.issue_client("app")
    assert await until_answered(lambda: admits(one.clients, files(one.authority, app)), within_s=30)
    for issued in (broker, app):
        issued.key.replace(folder / issued.key.name)
        issued.cert.replace(folder / issued.cert.name)
    (new.folder / "ca.key").replace(folder / "ca.key")
    await serves(one.clients, folder / broker.cert.name)  # what refuses from here on is the broker
    one.authority.ca.write_bytes(new.ca.read_bytes())
    assert await until_answered(lambda: refuses(one.clients, old), within_s=30)
    object.__setattr__(one, "authority", Authority.open(folder))


async def admits(address: str, tls: TlsFiles) -> bool:
    request, response = records.FetchMetadataRequest(), records.FetchMetadataResponse
    try:
        await answer(address, tls, "comet.v1.Comet/FetchMetadata", request, response)
    except comet.Unavailable:
        return False
    return True


async def refuses(address: str, tls: TlsFiles) -> bool:
    return not await admits(address, tls)


async def serves(address: str, cert: Path) -> None:
    """Waits until new connections see this certificate."""
    host, _, port = address.rpartition(":")

    def seen() -> bool:
        presented = ssl.get_server_certificate((host, int(port)))
        return ssl.PEM_cert_to_DER_cert(presented) == ssl.PEM_cert_to_DER_cert(cert.read_text())

    assert await until_answered(lambda: asyncio.to_thread(seen), within_s=30)


async def test_files_that_do_not_fit_leave_the_earlier_ones_in_use(
    one: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    key = one.authority.folder / "broker-1.key"
    good = key.read_bytes()
    key.write_text("half a key")
    assert await until_answered(lambda: _logged(caplog, "the earlier certificates stay in use"), within_s=30)
    assert await admits(one.clients, one.app)
    key.write_bytes(good)
    one.authority.issue_broker(1, ["127.0.0.1", "localhost"])
    await serves(one.clients, one.authority.folder / "broker-1.pem")


async def _logged(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


async def test_metrics_need_a_token_beyond_loopback(tmp_path: Path) -> None:
    """From another address of this machine, which is not loopback."""
    address = _outer_address()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    authority = Authority.create(tmp_path / "security", "comet")
    broker = authority.issue_broker(1, ["127.0.0.1"])
    config = BrokerConfig(
        data=tmp_path / "data",
        host="0.0.0.0",
        port=0,
        metrics_port=free_port(),
        metrics_token="hush",
        clients_ca=authority.ca,
        clients_cert=broker.cert,
        clients_key=broker.key,
    )
    async with Server(config) as server, httpx.AsyncClient() as client:

        async def status(host: str, path: str, token: str = "") -> int:
            headers = {"authorization": f"Bearer {token}"} if token else {}
            return (await client.get(f"http://{host}:{server.monitor.port}{path}", headers=headers)).status_code

        assert [await status(address, path) for path in ("/livez", "/readyz", "/metrics")] == [200, 200, 401]
        server.broker.env.failures.note(Kind.TOPIC, "secret-orders", AssertionError("two owners"))
        readyz = f"http://{address}:{server.monitor.port}/readyz"
        assert (await client.get(readyz)).json() == {"status": "ready"}
        shown = (await client.get(readyz, headers={"authorization": "Bearer hush"})).json()
        assert shown["degraded"] == ["topic secret-orders has failed: AssertionError('two owners')"]
        assert await status(address, "/metrics", "wrong") == 401
        assert await status(address, "/metrics", "hush") == 200
        assert await status("127.0.0.1", "/metrics") == 200
        request, response = records.FetchMetadataRequest(), records.FetchMetadataResponse
        outside = f"{address}:{server.address.rpartition(':')[2]}"
        with pytest.raises(comet.Unavailable):
            await answer(outside, None, "comet.v1.Comet/FetchMetadata", request, response)


def _outer_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return None
        found = str(probe.getsockname()[0])
    return None if found.startswith("127.") else found


async def test_a_stranger_is_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(comet.InvalidArgument, match="strangers could read and write"):
        async with Server(BrokerConfig(data=tmp_path / "data", host="0.0.0.0", port=0)):
            pass
    assert not (tmp_path / "data").exists()
