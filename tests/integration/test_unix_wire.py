"""The wire on a broker's Unix socket: clients on its machine take it by themselves, and TCP where it fails."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

import comet
from comet.cli import _transport_checks
from comet.cli._finding import Finding
from comet.client.client import Client
from comet.client.wires import GRPC, TCP, UNIX, Used, Wires, is_here
from comet.errors import Unavailable
from comet.security.certificates import Authority
from comet.v1 import groups_pb2 as groups
from comet.v1 import records_pb2 as records
from comet.wire import unix_socket
from comet.wire.tls import TlsFiles
from comet.wire.wire_stream import WireStream
from comet_broker.access import client_access
from comet_broker.access.client_access import is_local
from comet_broker.server import Server
from tests.integration.test_listeners import files
from tests.integration.test_wire import hello, open_wires, secured, served, server, wire_of, work

__all__ = ["secured", "server"]  # fixtures


def path_of(server: Server) -> Path:
    return Path(server.broker.registration.wire_socket)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def transports(server: Server) -> set[str]:
    return {session["transport"] for session in server.broker.statistics()["sessions"]}


async def stream_at(server: Server, client: Client) -> Used:
    """The transport of a new stream, and why not a better one."""
    await client.fetch(())
    await client.connection(server.address)
    return client.wires.used[server.address]


async def used(server: Server, addresses: Any = None) -> Used:
    client = Client(addresses or server.address)
    try:
        return await stream_at(server, client)
    finally:
        await client.close()


async def test_clients_on_the_machine_take_it_by_themselves(server: Server) -> None:
    async with comet.Admin(server.address) as admin:
        await admin.create_topic("seen")
    async with comet.Consumer(server.address, "seen", start="earliest"), comet.Producer(server.address) as producer:
        await producer.publish("seen", b"1")
        assert transports(server) == {"unix"} and open_wires(server) == 2
        (peer,) = {session["peer"] for session in server.broker.statistics()["sessions"]}
        assert peer == f"unix:uid={os.getuid()},pid={os.getpid()}"
    assert await used(server) == Used(UNIX, ())
    await work(server.address)


async def test_a_coordinator_is_reached_over_it_before_any_metadata_is_known(server: Server) -> None:
    client = Client(server.address)
    try:
        request = groups.FindCoordinatorRequest(name="g")
        found = await client.request("comet.v1.Comet/FindCoordinator", request, groups.FindCoordinatorResponse)
        assert found.wire_socket == str(path_of(server))
    finally:
        await client.close()
    async with comet.Admin(server.address) as admin:
        await admin.create_topic("t")
    async with comet.GroupConsumer(server.address, "t", group="g"):
        assert transports(server) == {"unix"}


async def test_only_its_user_can_open_it(server: Server) -> None:
    path = path_of(server)
    assert path.parent == server.config.data.absolute()
    assert path.is_socket() and mode_of(path) == 0o600 and mode_of(path.parent) == 0o700


async def test_an_open_data_folder_is_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    os.mkdir(folder, 0o755)  # noqa: PTH102
    async with served(folder):
        assert mode_of(folder) == 0o700


async def test_it_is_gone_after_the_stop_and_one_that_was_left_is_replaced(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        path = path_of(server)
        assert path.exists()
    assert not path.exists()
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    async with served(tmp_path) as server:
        assert await used(server) == Used(UNIX, ())


async def test_a_socket_that_another_broker_has_put_there_is_left(tmp_path: Path) -> None:
    """At the stop, when an operator has moved folders about."""
    async with served(tmp_path) as server:
        path = path_of(server)
        path.unlink()
        other = socket.socket(socket.AF_UNIX)
        other.bind(str(path))
    assert path.exists()
    other.close()


async def test_another_file_of_its_name_is_left_and_tcp_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "wire.sock"
    file.write_bytes(b"mine")
    async with served(tmp_path) as server:
        assert not server.broker.registration.wire_socket
        assert (await used(server)).transport == TCP
    assert file.read_bytes() == b"mine"
    assert "no Unix socket" in caplog.text and "another file has its name" in caplog.text


async def test_it_can_be_left_out(tmp_path: Path) -> None:
    for settings in ({"wire_socket": False}, {"wire": False}):
        async with served(tmp_path, **settings) as server:
            assert not (tmp_path / "wire.sock").exists()
            assert (await used(server)).transport != UNIX


async def test_a_long_path_has_one(tmp_path: Path) -> None:
    folder = tmp_path / ("long-" * 20) / ("longer-" * 20)
    async with served(folder) as server:
        assert len(os.fsencode(path_of(server))) > 2 * unix_socket.ADDRESS_BYTES_MAX
        await work(server.address)
        assert await used(server) == Used(UNIX, ())
        path = path_of(server)
    assert not path.exists()


@pytest.mark.parametrize(
    "fault", ["deleted", "another broker's", "a plain file", "a link", "full", "silent", "refused"]
)
async def test_tcp_stands_in_for_it(server: Server, tmp_path_factory: pytest.TempPathFactory, fault: str) -> None:
    path = path_of(server)
    path.unlink()
    listening = socket.socket(socket.AF_UNIX)
    async with served(tmp_path_factory.mktemp("other")) as other:
        match fault:
            case "another broker's":
                path_of(other).rename(path)
            case "a plain file":
                path.write_bytes(b"")
            case "a link":
                path.symlink_to(path_of(other))
            case "deleted":
                pass
            case _:
                listening.bind(str(path))
        if fault in ("full", "silent"):
            listening.listen(0)
        waiting = []
        if fault == "full":
            for _ in range(2):
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                try:
                    waiting[-1].connect(str(path))
                except BlockingIOError:
                    break
        reason = {
            "deleted": "No such file",
            "another broker's": "of another cluster or name listens here",
            "a plain file": "is not a socket",
            "a link": "is not a socket",
            "full": "wait to be accepted",
            "silent": "no answer within",
            "refused": "refused",
        }[fault]
        found = await used(server)
        assert found.transport == TCP and found.failed and reason in found.reasons[0]
        await work(server.address)
        for one in (*waiting, listening):
            one.close()


async def test_one_that_is_silent_is_left_alone_for_a_while(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        listening.setblocking(False)
        wires = Wires("auto", None, None)
        wires.learn_offer("127.0.0.1:1", 1, 0, str(tmp_path / "s"))
        assert [await wires.open("127.0.0.1:1") for _ in range(2)] == [None, None]
        assert "no answer within" in wires.used["127.0.0.1:1"].reasons[0]
        listening.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listening.accept()
        wires.learn_offer("127.0.0.1:1", 1, 7, str(tmp_path / "s"))
        await wires.open("127.0.0.1:1")
        listening.accept()[0].close()  # it has started again


async def test_a_socket_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its owner, and by the process that listens."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        found = (tmp_path / "s").lstat().st_uid
        monkeypatch.setattr(unix_socket, "is_own", lambda uid: uid != found)
        with pytest.raises(Unavailable, match=f"belongs to the user {found}"):
            unix_socket.connect(tmp_path / "s")
        answers = iter([True, False])
        monkeypatch.setattr(unix_socket, "is_own", lambda _: next(answers))
        with pytest.raises(Unavailable, match=f"a process of the user {found} listens"):
            unix_socket.connect(tmp_path / "s")


async def test_the_path_is_told_to_callers_on_the_machine_only(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def told(method: str, request: Any, response: Any) -> Any:
        client = Client(server.address)
        try:
            return await client.request(f"comet.v1.Comet/{method}", request, response)
        finally:
            await client.close()

    async def paths() -> list[str]:
        metadata = await told("FetchMetadata", records.FetchMetadataRequest(), records.FetchMetadataResponse)
        coordinator = await told(
            "FindCoordinator", groups.FindCoordinatorRequest(name="g"), groups.FindCoordinatorResponse
        )
        return [metadata.brokers[0].wire_socket, coordinator.wire_socket]

    assert await paths() == [str(path_of(server))] * 2
    for peer, told_it in (("ipv4:10.1.2.3:4", False), ("ipv6:%5Bfe80::1%5D:4", False), ("ipv6:%5B::1%5D:4", True)):
        monkeypatch.setattr(client_access, "is_local", lambda _, peer=peer: is_local(peer))
        assert await paths() == ([str(path_of(server))] * 2 if told_it else ["", ""])
        monkeypatch.undo()


async def test_behind_a_proxy_it_is_not_offered(tmp_path: Path) -> None:
    for others in ({"advertised_port": 5}, {"advertised_wire_port": 7}):
        async with served(tmp_path, **others) as server:
            assert server.broker.registration.wire_socket and not server.broker.registration.record().wire_socket


async def test_an_address_that_is_not_of_this_machine_has_none(server: Server) -> None:
    assert await is_here("localhost") and await is_here("::1")
    assert not await is_here("192.0.2.1") and not await is_here("broker.invalid")
    wires = Wires("auto", None, None)
    wires.learn_offer("192.0.2.1:1", 1, 0, str(path_of(server)))
    assert await wires.open("192.0.2.1:1") is None
    assert wires.used["192.0.2.1:1"].reasons[0] == "192.0.2.1:1 is not on this machine"


async def test_doctor_says_which_transport_it_is_and_why(server: Server, tmp_path: Path) -> None:
    name = f"transport {server.address}"
    assert await _transport_checks._check((server.address,)) == [Finding(name, "ok", UNIX)]
    path_of(server).unlink()
    (found,) = await _transport_checks._check((server.address,))
    assert found.status == "warn" and found.detail.startswith(f"{TCP}; cannot connect to {path_of(server)}")
    assert "docs/operating.md" in found.advice
    async with served(tmp_path / "other", wire=False) as other:
        (found,) = await _transport_checks._check((other.address,))
        assert found.status == "ok" and found.detail.startswith(GRPC) and "does not serve the wire" in found.detail
    assert await _transport_checks._check((other.address,)) == [], "other checks say that no broker answers"


async def test_certificates_are_required_on_it_too(secured: Any) -> None:
    path = path_of(secured.server)
    await work(secured.bootstrap)
    assert await used(secured.server, secured.bootstrap) == Used(UNIX, ())
    foreign = Authority.create(secured.authority.ca.parent.parent / "foreign", "comet")
    theirs = foreign.issue_client("app")
    for tls in (None, TlsFiles(secured.app.ca), TlsFiles(secured.app.ca, theirs.cert, theirs.key)):
        with pytest.raises(comet.Unavailable):
            (await WireStream.open(wire_of(secured.server), hello(), tls, 5.0, path)).cancel()
    other = files(secured.authority, secured.authority.issue_client("other"))
    bootstrap = comet.Bootstrap(secured.clients, ca=other.ca, cert=other.cert, key=other.key, transport="wire")
    async with comet.Admin(secured.bootstrap) as admin:
        await admin.access.add_rule("client:other", ["write", "describe"], comet.ResourceKind.TOPIC, "t")
    async with comet.Producer(bootstrap) as producer, comet.Consumer(bootstrap, "t", start="earliest") as consumer:
        await producer.publish("t", b"1")
        assert transports(secured.server) == {"unix"}
        with pytest.raises(comet.Forbidden, match="client:other"):
            await anext(consumer)
