"""TLS handshakes that are begun and never ended: clients of the broker see nothing of them."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

import comet
from comet.processes.descriptors import raise_descriptor_limit
from comet.security.certificates import Authority
from tests.robustness.process import broker
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

HANDSHAKES = 10_000
MEMORY_BYTES_MAX = 400 << 20  # that they may take


def first_half() -> bytes:
    """The first half of a ClientHello."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()
    return hello[: len(hello) // 2]


async def test_half_handshakes_disturb_nobody(tmp_path: Path) -> None:
    if raise_descriptor_limit() < 2 * HANDSHAKES:
        pytest.skip(f"{HANDSHAKES} connections are half of the file descriptors that a broker needs")
    authority = Authority.create(tmp_path / "security", "comet")
    issued, app = authority.issue_broker(1, ["127.0.0.1"]), authority.issue_client("app")
    options = ("--clients-ca", authority.ca, "--clients-cert", issued.cert, "--clients-key", issued.key)
    half = first_half()
    with broker(tmp_path / "data", options=tuple(map(str, options))) as process, ExitStack() as open_sockets:
        ours = comet.Bootstrap(process.address, ca=authority.ca, cert=app.cert, key=app.key)
        async with comet.Admin(ours) as admin:
            await admin.create_topic("t", flush="os")
        found = psutil.Process(process.pid)
        memory = found.memory_info().rss
        sent = 0
        async with comet.Producer(ours) as producer:
            for number in range(HANDSHAKES):
                connection = open_sockets.enter_context(socket.create_connection(("127.0.0.1", process.port)))
                connection.sendall(half)
                if number % 100 == 0:
                    assert (await producer.publish("t", b"%d" % sent)).offset == sent
                    sent += 1
                if number % 1000 == 0:
                    async with comet.Admin(ours) as admin:  # a connection of its own
                        await admin.describe_topic("t")
            assert found.memory_info().rss < memory + MEMORY_BYTES_MAX
            assert await until(lambda: found.num_fds() < HANDSHAKES // 10, within_s=60)
            assert (await producer.publish("t", b"%d" % sent)).offset == sent
