"""The wire: brokers and clients over it, what it refuses, and when gRPC stands in for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import comet
import comet.sync
from comet.client.connection import Connection
from comet.client.wires import Wires
from comet.security.certificates import Authority
from comet.v1 import records_pb2 as records
from comet.v1 import replication_pb2 as replication
from comet.v1 import types_pb2 as types
from comet.v1 import wire_pb2 as pb
from comet.wire import framing
from comet.wire.frames import Frame, parse_delivery
from comet.wire.framing import Kind
from comet.wire.tls import TlsFiles
from comet.wire.wire_stream import STREAM_CALL, WireStream
from comet_broker import limits
from comet_broker.config import BrokerConfig
from comet_broker.rpc import wire_connection
from comet_broker.rpc.listeners import Certificates
from comet_broker.server import Server
from tests.integration.test_listeners import Secured, files
from tests.robustness.process import free_port
from tests.robustness.raw_wire import HELLO, RawWire, data
from tests.waiting import pace, until

REPLICATE_CALL: Final = "comet.v1.Replication/Replicate"


@asynccontextmanager
async def served(folder: Path, **settings: Any) -> AsyncIterator[Server]:
    async with Server(BrokerConfig(data=folder, port=0, drain_grace_ms=100, **settings)) as server:
        yield server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with served(tmp_path) as found:
        yield found


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    authority = Authority.create(tmp_path / "security", "comet")
    broker = authority.issue_broker(1, ["127.0.0.1", "localhost"])
    pem: dict[str, Any] = {"ca": authority.ca, "cert": broker.cert, "key": broker.key}
    tls = {f"{name}_{kind}": path for name in ("clients", "brokers") for kind, path in pem.items()}
    async with served(tmp_path / "data", brokers_port=0, superusers=("client:app",), **tls) as found:
        yield Secured(found, authority, files(authority, authority.issue_client("app")))


def wire_of(server: Server) -> str:
    return f"127.0.0.1:{server.broker.registration.wire_port}"


def open_wires(server: Server) -> int:
    return sum(wire.connections for wire in server.wires)


def hello(call: str = STREAM_CALL, version: int = framing.VERSION, **others: Any) -> pb.WireHello:
    return pb.WireHello(call=call, version=version, **others)


async def refusal(address: str, said: pb.WireHello, tls: TlsFiles | None = None) -> comet.CometError:
    with pytest.raises(comet.CometError) as raised:
        (await WireStream.open(address, said, tls, 5.0)).cancel()
    return raised.value


async def answer_to(address: str, data: bytes) -> comet.CometError | None:
    """The error of the End that answers these bytes; the broker then waits for the client to close."""
    reader, writer = await asyncio.open_connection(*address.split(":"))
    writer.write(data)
    try:
        while True:
            size, kind = framing.HEAD.unpack(await reader.readexactly(framing.HEAD_BYTES))
            content = await reader.readexactly(size)
            if kind == Kind.END:
                return framing.parse_end(content)
    finally:
        writer.close()


async def last_of(stream: WireStream) -> None:
    while await stream.read() is not None:
        pass


async def work(bootstrap: comet.Bootstrap | str, topic: str = "t") -> None:
    """Records of all sizes pass, in both directions."""
    values = [bytes([number]) * size for number, size in enumerate((0, 1, 100, 4096, 70_000, 400_000, 900_000))]
    async with comet.Admin(bootstrap) as admin:
        await admin.create_topic(topic)
    async with comet.Producer(bootstrap) as producer, comet.Consumer(bootstrap, topic, start="earliest") as consumer:
        for value in values:
            await producer.publish(topic, value)
        assert [(await anext(consumer)).value for _ in values] == values


async def test_streams_take_the_wire_by_themselves(server: Server) -> None:
    async with comet.Admin(server.address) as admin:
        await admin.create_topic("seen")
    async with comet.Consumer(server.address, "seen", start="earliest"), comet.Producer(server.address) as producer:
        await producer.publish("seen", b"1")
        assert open_wires(server) == 2
    assert await until(lambda: open_wires(server) == 0, within_s=10)
    assert await until(lambda: server.broker.statistics()["session_count"] == 0, within_s=10)
    await work(server.address)


async def test_grpc_can_be_chosen(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WireStream, "open", None)
    await work(comet.Bootstrap(server.address, transport="grpc"))
    monkeypatch.setenv("COMET_TRANSPORT", "grpc")
    await work(server.address, "u")


async def test_a_broker_without_the_wire_is_reached_by_grpc(tmp_path: Path) -> None:
    async with served(tmp_path, wire=False) as server:
        await work(server.address)
        async with comet.Producer(comet.Bootstrap(server.address, transport="wire"), timeout_ms=300) as producer:
            with pytest.raises(comet.CometError, match="does not serve the wire"):
                await producer.publish("t", b"1")


def test_a_transport_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(comet.InvalidArgument, match="one of auto, wire, grpc, not 'tcp'"):
        comet.Bootstrap("localhost", transport="tcp")
    monkeypatch.setenv("COMET_TRANSPORT", "udp")
    with pytest.raises(comet.InvalidArgument, match="not 'udp'"):
        comet.Bootstrap("localhost")


@pytest.mark.parametrize("fault", ["refused", "silent", "another protocol"])
async def test_grpc_stands_in_for_a_wire_that_fails(
    server: Server, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    ports: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        if fault == "refused":
            listening.close()
        elif fault == "another protocol":
            port = int(server.address.split(":")[1])
        learn = Wires.learn_offer

        def elsewhere(self: Wires, address: str, broker: int, *_: object) -> None:
            ports.append(port)
            learn(self, address, broker, port, "")

        monkeypatch.setattr(Wires, "learn_offer", elsewhere)
        await work(server.address)
    assert ports and open_wires(server) == 0


async def test_a_wire_that_is_silent_is_left_alone_for_a_while() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        wires = Wires("auto", None, None)
        wires.learn_offer("127.0.0.1:1", 1, listening.getsockname()[1])
        assert [await wires.open("127.0.0.1:1") for _ in range(2)] == [None, None]
        listening.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listening.accept()


async def test_behind_a_proxy_the_wire_is_offered_where_it_is_said(tmp_path: Path) -> None:
    for others, offered in (({}, 0), ({"advertised_wire_port": 7}, 7)):
        async with served(tmp_path, advertised_port=5, **others) as server, comet.Admin(server.address) as admin:
            await admin.describe_cluster()
            record = server.broker.registration.record()
            assert (record.port, record.wire_port, record.brokers_wire_address) == (
                5, offered, f"127.0.0.1:{offered}" if offered else None
            )  # fmt: skip


async def test_a_port_with_another_owner_is_noticed(server: Server) -> None:
    for wanted in ({"broker_id": 2}, {"cluster_id": "another"}):
        error = await refusal(wire_of(server), hello(**wanted))
        assert isinstance(error, comet.Unavailable) and "listens here now" in error.message
    cluster = server.broker.cluster_id
    (await WireStream.open(wire_of(server), hello(broker_id=1, cluster_id=cluster), None, 5.0)).cancel()


async def test_a_hello_is_checked(server: Server) -> None:
    assert isinstance(await refusal(wire_of(server), hello(version=2)), comet.UnsupportedVersion)
    error = await refusal(wire_of(server), hello("comet.v1.Comet/Publish"))
    assert isinstance(error, comet.UnsupportedVersion) and "no call" in error.message
    for first in (
        framing.head(3) + b"abc",
        framing.control(Kind.END),
        framing.control(Kind.HELLO, b"\xff\xff"),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        framing.HEAD.pack(framing.CONTROL_BYTES_MAX + 1, Kind.HELLO),
    ):
        answered = await answer_to(wire_of(server), first)
        assert isinstance(answered, comet.MalformedFrame | comet.RecordTooLarge), first


async def test_a_frame_is_checked(server: Server) -> None:
    begun = framing.control(Kind.HELLO, hello().SerializeToString())
    too_large = framing.HEAD.pack(server.broker.message_bytes_max + 1, framing.DATA)
    assert isinstance(await answer_to(wire_of(server), begun + too_large), comet.RecordTooLarge)
    assert isinstance(await answer_to(wire_of(server), begun + begun), comet.MalformedFrame)
    assert isinstance(await answer_to(wire_of(server), begun + framing.control(Kind.WELCOME)), comet.MalformedFrame)
    ping = records.ClientFrame(request=7, ping=records.Ping()).SerializeToString()
    ended = begun + framing.head(len(ping)) + ping + framing.control(Kind.END)
    assert await answer_to(wire_of(server), ended) is None, "answered, and ended in good order"
    subscribed = begun + data(records.ClientFrame(request=1, hello=records.Hello())) * 100_000
    late = await answer_to(wire_of(server), subscribed + framing.end() + framing.head(len(ping)) + ping)
    assert isinstance(late, comet.MalformedFrame) and "after the End" in late.message


@pytest.mark.parametrize("fixed", [False, True], ids=["any port", "one port"])
async def test_after_a_restart_streams_are_on_the_wire_again(tmp_path: Path, *, fixed: bool) -> None:
    """Also of a broker whose wire has another port then."""
    wire_port = free_port() if fixed else 0
    config = BrokerConfig(data=tmp_path, drain_grace_ms=100, port=free_port(), wire_port=wire_port)
    async with AsyncExitStack() as stack:
        async with Server(config) as server:
            producer = await stack.enter_async_context(comet.Producer(server.address))
            async with comet.Admin(server.address) as admin:
                await admin.create_topic("t")
            await producer.publish("t", b"1")
            before = server.broker.registration.wire_port
            assert server.wires[0].connections == 1
        with socket.create_server(("127.0.0.1", 0 if fixed else before)):  # so that it gets another port
            async with Server(config) as server:
                assert (server.broker.registration.wire_port == before) == fixed
                await producer.publish("t", b"2")
                assert server.wires[0].connections == 1


async def test_the_end_waits_for_the_client_to_close(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then it may not have arrived."""
    monkeypatch.setattr(wire_connection, "LINGER_S", 600.0)
    one = await RawWire.open(server.broker.registration.wire_port)
    await one.write(framing.head(1) + b"x" + bytes(1 << 20))
    assert isinstance(await one.end(), comet.MalformedFrame)
    assert open_wires(server) == 1
    one.close()
    assert await until(lambda: open_wires(server) == 0, within_s=10)
    monkeypatch.setattr(wire_connection, "LINGER_S", 0.1)
    other = await RawWire.open(server.broker.registration.wire_port)
    await other.write(framing.head(1) + b"x")
    assert isinstance(await other.end(), comet.MalformedFrame)
    assert await until(lambda: open_wires(server) == 0, within_s=10), "or is cut off"
    other.close()


async def test_a_client_that_is_owed_many_answers_is_not_read(server: Server) -> None:
    """It gets all of them once it reads."""
    wire = await RawWire.open(server.broker.registration.wire_port)
    requests = 60_000  # whose answers do not fit into the sockets' buffers
    refused = data(records.ClientFrame(request=5, attach=records.Attach(topic="x" * 200)))
    sending = asyncio.create_task(wire.write(HELLO + refused * requests))

    def owed() -> int:
        return max((session["owed"] for session in server.broker.statistics()["sessions"]), default=0)

    assert await until(lambda: owed() >= limits.SESSION_ANSWERS_MAX, within_s=30, every_s=0.001)
    for _ in range(200):
        assert owed() <= limits.SESSION_ANSWERS_MAX + limits.SESSION_TASKS_MAX
        await pace(0.001)
    answers = 0
    while answers < requests:
        found = await wire.read()
        assert found is not None
        answers += found[0] == framing.DATA
    await sending
    wire.close()


async def test_a_stream_that_is_not_read_takes_bounded_memory_on_both_sides(server: Server) -> None:
    values = [bytes([number]) * 500_000 for number in range(80)]
    async with comet.Admin(server.address) as admin:
        await admin.create_topic("t", flush="os")
    stream = await WireStream.open(wire_of(server), hello(), None, 5.0)
    await stream.write(records.ClientFrame(request=1, attach=records.Attach(topic="t")).SerializeToString())
    attached = records.ServerFrame.FromString(bytes(await stream.read() or b"")).attached
    start = records.Start(partition=attached.partition, position=types.Position(earliest=True))
    subscribe = records.Subscribe(subscription=1, starts=[start], credit=limits.CREDIT_BYTES_MAX)
    await stream.write(records.ClientFrame(request=2, subscribe=subscribe).SerializeToString())
    async with comet.Producer(server.address, compression="none") as producer:
        for value in values:
            await producer.publish("t", value)
    (sent_bytes,) = (one["sent_bytes"] for one in server.broker.statistics()["sessions"] if one["subscriptions"])
    assert sent_bytes < sum(map(len, values)) / 2, "40 MB, of which the buffers of two sockets hold some"
    got = 0
    while got < sum(map(len, values)):
        frame = await stream.read()
        assert frame is not None
        got += len(frame)
    stream.cancel()


async def test_what_comes_after_the_end_is_dropped() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        welcome = framing.control(Kind.WELCOME, pb.WireWelcome(version=1).SerializeToString())
        writer.write(welcome + framing.head(1) + b"a" + framing.end() + framing.head(1) + b"b")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        host, port = listening.sockets[0].getsockname()
        pushed: list[Any] = []
        stream = await WireStream.open(f"{host}:{port}", hello(), None, 5.0)
        stream.push(pushed.append, pushed.append)
        assert await until(lambda: None in pushed, within_s=10)
        assert pushed == [b"a", None]
        with pytest.raises(comet.Unavailable):
            await stream.write(b"c")


async def test_a_client_that_ends_gets_its_answers_first(server: Server) -> None:
    reader, writer = await asyncio.open_connection(*wire_of(server).split(":"))
    ping = records.ClientFrame(request=7, ping=records.Ping()).SerializeToString()
    frames = [framing.head(len(ping)) + ping] * 50
    writer.write(framing.control(Kind.HELLO, hello().SerializeToString()) + b"".join(frames) + framing.end())
    kinds: list[int] = []
    while not kinds or kinds[-1] != Kind.END:
        size, kind = framing.HEAD.unpack(await reader.readexactly(framing.HEAD_BYTES))
        await reader.readexactly(size)
        kinds.append(kind)
    assert kinds == [Kind.WELCOME, *[Kind.DATA] * 50, Kind.END]
    writer.close()


async def test_certificates_name_the_callers(secured: Secured) -> None:
    await work(comet.Bootstrap(secured.clients, ca=secured.app.ca, cert=secured.app.cert, key=secured.app.key))
    other = files(secured.authority, secured.authority.issue_client("other"))
    bootstrap = comet.Bootstrap(secured.clients, ca=other.ca, cert=other.cert, key=other.key, transport="wire")
    async with comet.Admin(secured.bootstrap) as admin:
        await admin.access.add_rule("client:other", ["write", "describe"], comet.ResourceKind.TOPIC, "t")
        async with comet.Producer(bootstrap) as producer:
            await producer.publish("t", b"1")
        async with comet.Consumer(bootstrap, "t", start="earliest") as consumer:
            with pytest.raises(comet.Forbidden, match="client:other"):
                await anext(consumer)


async def test_strangers_do_not_pass_the_handshake(secured: Secured) -> None:
    address = wire_of(secured.server)
    foreign = Authority.create(secured.authority.ca.parent.parent / "foreign", "comet")
    theirs = foreign.issue_client("app")
    for tls in (
        TlsFiles(secured.app.ca),  # without a certificate
        TlsFiles(secured.app.ca, theirs.cert, theirs.key),
    ):
        assert isinstance(await refusal(address, hello(), tls), comet.Unavailable)
    assert isinstance(await refusal(address, hello(), TlsFiles(foreign.ca, secured.app.cert, secured.app.key)),
                      comet.Unavailable)  # fmt: skip
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await answer_to(address, framing.control(Kind.HELLO, hello().SerializeToString()))
    (await WireStream.open(address, hello(), secured.app, 5.0)).cancel()


async def test_the_listener_of_clients_has_no_replication(secured: Secured) -> None:
    registration = secured.server.broker.registration
    second = files(secured.authority, secured.authority.issue_broker(2, ["127.0.0.1"]))
    brokers = f"127.0.0.1:{registration.brokers_wire_port}"
    for address, tls, call in (
        (wire_of(secured.server), secured.app, REPLICATE_CALL),
        (wire_of(secured.server), second, REPLICATE_CALL),
        (brokers, second, STREAM_CALL),
    ):
        error = await refusal(address, hello(call), tls)
        assert isinstance(error, comet.UnsupportedVersion), (address, call)
    error = await refusal(brokers, hello(REPLICATE_CALL), secured.app)
    assert isinstance(error, comet.Forbidden) and "for brokers" in error.message


async def test_a_follower_is_the_broker_of_its_certificate(secured: Secured) -> None:
    brokers = f"127.0.0.1:{secured.server.broker.registration.brokers_wire_port}"
    second = files(secured.authority, secured.authority.issue_broker(2, ["127.0.0.1"]))
    stream = await WireStream.open(brokers, hello(REPLICATE_CALL), second, 5.0)
    said = replication.ReplicaHello(cluster_id=secured.server.broker.cluster_id, broker=3, broker_epoch=7)
    await stream.write(replication.FollowerFrame(hello=said).SerializeToString())
    with pytest.raises(comet.Forbidden, match="of broker 2, not of broker 3"):
        await last_of(stream)


async def test_a_replaced_certificate_and_authority_count_at_once(secured: Secured) -> None:
    """The certificate that clients see, and the authority that signs theirs."""
    server, folder = secured.server, secured.authority.ca.parent
    config = server.config
    assert config.clients_cert is not None and config.clients_key is not None
    (certificates,) = (one for one in server.broker.certificates if one.listener == "clients")
    assert isinstance(certificates, Certificates)
    kept = await WireStream.open(wire_of(server), hello(), secured.app, 5.0)
    for number in range(3):
        new = Authority.create(folder.parent / f"new-{number}", "comet")
        issued, app = new.issue_broker(1, ["127.0.0.1"]), new.issue_client("app")
        secured.authority.ca.write_bytes(new.ca.read_bytes())
        config.clients_cert.write_bytes(issued.cert.read_bytes())
        config.clients_key.write_bytes(issued.key.read_bytes())
        await certificates.reread()
        (await WireStream.open(wire_of(server), hello(), files(new, app), 5.0)).cancel()
        old = TlsFiles(new.ca, secured.app.cert, secured.app.key)
        assert isinstance(await refusal(wire_of(server), hello(), old), comet.Unavailable)
    ping = records.ClientFrame(request=7, ping=records.Ping()).SerializeToString()
    await kept.write(ping)
    assert await kept.read() is not None, "what is open stays"
    kept.cancel()


async def test_a_broker_that_stops_ends_its_streams(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        stream = await WireStream.open(wire_of(server), hello(), None, 5.0)
    with pytest.raises(comet.Draining, match="has stopped"):
        await last_of(stream)
    with pytest.raises(comet.Unavailable):
        await stream.write(b"")


async def test_a_frame_has_to_come_whole_in_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose rest comes byte by byte, on a connection that is heard."""
    monkeypatch.setattr(wire_connection, "FRAME_S", 2)
    wire = await RawWire.open(server.broker.registration.wire_port)
    await wire.write(HELLO + framing.head(100_000))
    ending = asyncio.create_task(wire.end())
    while not ending.done():
        await wire.write(b"x")
        await pace(0.05)
    found = await ending
    assert isinstance(found, comet.Timeout) and "not come whole" in found.message
    wire.close()


async def _interrupted(server_address: str) -> None:
    async with comet.Consumer(server_address, "quotes", start="earliest") as consumer:
        await consumer.get()
        await asyncio.Event().wait()


def test_an_interrupt_while_a_frame_is_taken_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transports of uvloop take an exception of their protocol for the end of the connection, also this one."""
    take = Connection._take

    def interrupted(connection: Connection, frame: Frame) -> None:
        take(connection, frame)
        if parse_delivery(frame) is not None:
            raise KeyboardInterrupt

    with comet.testing.broker(["quotes"]) as broker:
        with comet.sync.Producer(broker.address) as producer:
            producer.publish("quotes", b"1")
        monkeypatch.setattr(Connection, "_take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            comet.run(asyncio.wait_for(_interrupted(broker.address), 30))
