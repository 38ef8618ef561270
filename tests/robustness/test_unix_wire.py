"""The Unix socket of a broker that is killed, and of one that another user calls."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import comet
from comet.client.client import Client
from comet.client.wires import UNIX, Used
from comet.errors import Forbidden
from comet.wire import framing
from comet.wire.framing import Kind
from tests.robustness.process import BrokerProcess
from tests.robustness.raw_wire import HELLO, wire_socket
from tests.robustness.test_hostile import process

__all__ = ["process"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
OTHER_UID: Final = 4711
# Connects to the socket that it inherits as a descriptor of its folder, under another user, and prints what comes.
CALLER: Final = """
import contextlib, os, socket, sys
folder, uid = int(sys.argv[1]), int(sys.argv[2])
os.setgid(uid)
os.setuid(uid)
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(f"/proc/self/fd/{folder}/wire.sock")
    found = b""
    with contextlib.suppress(BrokenPipeError):  # it is refused before it has said anything
        connection.sendall(bytes.fromhex(sys.argv[3]))
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(4096):
            found += data
print(found.hex())
"""


async def transport_to(process: BrokerProcess) -> Used:
    client = Client(process.address)
    try:
        await client.fetch(())
        await client.connection(process.address)
        return client.wires.used[process.address]
    finally:
        await client.close()


def call_as(uid: int, folder: Path) -> subprocess.CompletedProcess[str]:
    descriptor = os.open(folder, os.O_PATH)
    try:
        words = [sys.executable, "-c", CALLER, str(descriptor), str(uid), HELLO.hex()]
        return subprocess.run(
            words, pass_fds=[descriptor], capture_output=True, text=True, check=False, timeout=30, cwd="/"
        )
    finally:
        os.close(descriptor)


async def test_after_a_kill_its_file_is_replaced(process: BrokerProcess) -> None:
    path = await wire_socket(process)
    async with comet.Admin(process.address) as admin:
        await admin.create_topic("t")
    async with comet.Producer(process.address) as producer:
        await producer.publish("t", b"1")
        process.kill()
        assert path.is_socket(), "a stale file is left"
        with pytest.raises(ConnectionRefusedError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
        process.start()
        await producer.publish("t", b"2")
    assert await transport_to(process) == Used(UNIX, ())
    process.terminate()
    assert not path.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
async def test_another_user_is_refused(process: BrokerProcess) -> None:
    """By the modes of the folder and the file, and by its number where an operator has opened both."""
    path = await wire_socket(process)
    found = call_as(OTHER_UID, path.parent)
    assert "PermissionError" in found.stderr and not found.stdout
    path.parent.chmod(0o755)
    path.chmod(0o666)
    found = call_as(OTHER_UID, path.parent)
    assert not found.returncode, found.stderr
    answer = bytes.fromhex(found.stdout)
    size, kind = framing.HEAD.unpack_from(answer)
    assert (kind, size) == (Kind.END, len(answer) - framing.HEAD_BYTES)
    error = framing.parse_end(answer[framing.HEAD_BYTES :])
    assert isinstance(error, Forbidden) and f"user {OTHER_UID} called" in error.message
    assert await transport_to(process) == Used(UNIX, ())
