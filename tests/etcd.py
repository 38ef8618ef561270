"""A real etcd as a process of its own, on loopback: what the tests of the metadata port and of clusters run against."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

import grpc
import grpc.aio
from aetcd import rpc

from comet.processes.child import Child
from comet_broker.metadata.etcd_binary import find_etcd
from tests.pausing import stand_still

START_S_MAX: Final = 30.0
STOP_S_MAX: Final = 30.0
POLL_S: Final = 0.02
PORTS: Final = 15_000, 32_768  # below those that Linux chooses from for who asks for none
_given: Final = set[int]()  # to tests of this process


class Etcd:
    """One etcd with its data in a folder. Keeps its ports over restarts, so that its clients find it again.

    It beats ten times as fast as by default, so that leases may be as short as a second. `options` are further
    arguments of etcd's.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.log = folder / "etcd.log"
        self.port, peer = free_ports(2)
        scheme = "https" if any(option.startswith("--cert-file") for option in options) else "http"
        client_url, peer_url = f"{scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{peer}"
        self._command = [
            str(find_etcd()),
            "--name=test",
            f"--data-dir={folder / 'data'}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=test={peer_url}",
            "--heartbeat-interval=10",
            "--election-timeout=100",
            *options,
        ]
        self._files = dict(option.split("=", 1) for option in options if "-file=" in option)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        self._child = Child("etcd", self._command, log=self.log, address=self.endpoint, environment=environment)

    @classmethod
    def start(cls, folder: Path, *options: str) -> Etcd:
        """Starts one and waits until it takes requests."""
        folder.mkdir(parents=True, exist_ok=True)
        etcd = cls(folder, *options)
        etcd.launch()
        etcd._wait_until_it_answers()
        return etcd

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._child.pid

    def launch(self) -> None:
        """Starts it, and waits until its port is open."""
        self._child.start()
        assert self._child.wait_ready(START_S_MAX), f"etcd did not start:\n{self.log.read_text()[-4000:]}"

    def _wait_until_it_answers(self) -> None:
        """Its port is open before its data is on the disk and it has elected itself. A store that connects meanwhile
        may give up."""
        # gRPC's own wait, without an event loop: whoever calls may have one of their own.
        with self._channel() as channel:
            grpc.channel_ready_future(channel).result(START_S_MAX)

    def _channel(self) -> grpc.Channel:
        if not self._files:
            return grpc.insecure_channel(self.endpoint)
        ca, key, cert = (
            Path(self._files[name]).read_bytes() for name in ("--trusted-ca-file", "--key-file", "--cert-file")
        )
        return grpc.secure_channel(self.endpoint, grpc.ssl_channel_credentials(ca, key, cert))

    def pause(self) -> None:
        stand_still(self.pid)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """As `kill -9`."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stops and starts it, with its data."""
        self.stop()
        self.launch()

    def save(self, copy: Path) -> None:
        """Stops it for a moment, and copies its data: what a snapshot holds."""
        self.stop()
        shutil.copytree(self.folder / "data", copy)
        self.launch()

    def restore(self, copy: Path | None) -> None:
        """Stops it and starts it with the data of then; with None, with none at all."""
        self.stop()
        shutil.rmtree(self.folder / "data")
        if copy is not None:
            shutil.copytree(copy, self.folder / "data")
        self.launch()

    def exchange(self, copy: Path, aside: Path) -> None:
        """As `restore`, with what it held until then put aside: moved, so that nothing of it is missing."""
        self.stop()
        shutil.move(self.folder / "data", aside)
        shutil.copytree(copy, self.folder / "data")
        self.launch()

    def remove(self) -> None:
        """Stops it for good and removes its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: int) -> None:
        if self._child.pid and self._child.ended is None:
            self._child.signal(number)
            self._child.signal(signal.SIGCONT)  # one that is paused ends only then
            self._child.wait(STOP_S_MAX)

    # ---- what only an administrator does

    async def compact(self, revision: int = 0) -> int:
        """Forgets the history before a revision, or before the current one; returns which."""
        async with grpc.aio.insecure_channel(self.endpoint) as channel:
            kv: Any = rpc.KVStub(channel)
            if not revision:
                revision = (await kv.Range(rpc.RangeRequest(key=b"?"))).header.revision
            await kv.Compact(rpc.CompactionRequest(revision=revision, physical=True), timeout=START_S_MAX)
            return revision

    async def revision(self) -> int:
        async with grpc.aio.insecure_channel(self.endpoint) as channel:
            kv: Any = rpc.KVStub(channel)
            answer = await kv.Range(rpc.RangeRequest(key=b"?"), timeout=START_S_MAX)
            return int(answer.header.revision)

    async def lease_ended(self, lease: int) -> None:
        """Returns when etcd has ended the lease; asking does not renew it."""
        async with grpc.aio.insecure_channel(self.endpoint) as channel:
            leases: Any = rpc.LeaseStub(channel)
            over = asyncio.Event()
            async with asyncio.timeout(START_S_MAX):
                while (await leases.LeaseTimeToLive(rpc.LeaseTimeToLiveRequest(ID=lease))).TTL != -1:
                    await wait_a_moment(over)

    async def empty(self, root: str) -> None:
        """Deletes all keys of a root, with no lease left to delete any later."""
        async with grpc.aio.insecure_channel(self.endpoint) as channel:
            kv: Any = rpc.KVStub(channel)
            first = root.encode()
            await kv.DeleteRange(rpc.DeleteRangeRequest(key=first, range_end=first[:-1] + bytes([first[-1] + 1])))


async def wait_a_moment(event: asyncio.Event) -> None:
    """Between two looks at a process that cannot say when it is done."""
    try:
        await asyncio.wait_for(event.wait(), POLL_S)
    except TimeoutError:
        return


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, and that are free again for a process that is started once more: the system
    gives them to no connection by itself. None is given twice: who has it may not listen yet, or not just now."""
    random, found = SystemRandom(), set[int]()
    while len(found) < count:
        port = random.randrange(*PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                found.add(port)
                _given.add(port)
    return list(found)
