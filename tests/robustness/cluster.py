"""A real cluster on loopback, for tests and scripts that kill and stop it: an etcd and broker processes."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import comet
from comet.entities import TopicInfo
from comet.settings.client import Transport
from comet_broker.core.cluster import TopicSpec
from comet_broker.storage.files import RealFiles
from comet_broker.storage.log import Log, LogIdentity
from comet_broker.system import SystemClock
from tests.etcd import Etcd
from tests.link import Link
from tests.logs import bytes_of
from tests.robustness.process import BrokerProcess, free_port
from tests.waiting import until, until_answered

WELL_S_MAX: Final = 60.0


class ClusterProcesses:
    """Owned by one run. Brokers keep their ports and folders over restarts. With `metrics` they serve /metrics."""

    def __init__(
        self, folder: Path, etcd: Etcd, brokers: int, options: tuple[str, ...], *, metrics: bool = False
    ) -> None:
        self.folder = folder
        self.etcd = etcd
        self.metrics_ports = {number: free_port() if metrics else 0 for number in range(1, brokers + 1)}
        self.brokers = {
            number: BrokerProcess(
                folder / f"broker-{number}",
                port=free_port(),
                options=(
                    *("--id", str(number), "--etcd", etcd.endpoint, "--default-replicas", str(brokers)),
                    *("--metrics-port", str(self.metrics_ports[number])),
                    *options,
                ),
            )
            for number in range(1, brokers + 1)
        }
        self.links: dict[int, Link] = {}  # by the broker that is behind it, where there are any

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in self.brokers.values()]

    async def start(self) -> None:
        for broker in self.brokers.values():
            broker.launch()
        await asyncio.gather(*(asyncio.to_thread(broker.wait_ready) for broker in self.brokers.values()))

    async def put_behind_links(self, stack: contextlib.AsyncExitStack, transport: Transport) -> None:
        """Before they start: others are told the port of a proxy that can fail. Over gRPC it has all connections, over
        the wire the streams."""
        for number, broker in self.brokers.items():
            port = broker.port if transport == "grpc" else free_port()
            link = self.links[number] = await stack.enter_async_context(Link("127.0.0.1", port))
            if transport == "grpc":
                broker.advertise(link.port)
            else:
                broker.advertise_wire(port, link.port)

    def forget(self, source: int, target: int, *, up: bool, down: bool) -> int:
        """The connections from one broker to another die silently: `up` is what the first sends, `down` the answers."""
        link = self.links[target]
        return link.forget(self.brokers[source].ports_to(link.port), up=up, down=down)

    async def in_sync(self, name: str, index: int = 0) -> set[int]:
        return set((await self.topic(name)).partitions[index].in_sync)

    async def restart(self, number: int) -> None:
        self.brokers[number].launch()
        await asyncio.to_thread(self.brokers[number].wait_ready)

    def kill(self) -> None:
        """All at once: stopped first, so that no broker takes the one killed before it out of the in-sync replicas."""
        running = [broker for broker in self.brokers.values() if broker.running]
        for broker in running:
            with contextlib.suppress(ProcessLookupError):
                broker.signal(signal.SIGSTOP)
        for broker in self.brokers.values():
            with contextlib.suppress(ProcessLookupError):
                broker.kill()

    async def topic(self, name: str) -> TopicInfo:
        """The topic as whichever broker answers sees it."""
        async with comet.Admin(self.addresses) as admin:
            return await admin.describe_topic(name)

    async def leader(self, name: str, index: int = 0) -> int:
        """Who leads, once somebody does: while machines stand still a lease may run out without any fault of ours."""
        async with asyncio.timeout(WELL_S_MAX):
            while not (found := (await self.topic(name)).partitions[index].leader):
                pass  # a look takes long enough
        return found

    async def complete(self) -> None:
        """Waits until every broker knows all the others: a new one is in the views of the others a moment later."""

        async def holds() -> bool:
            with contextlib.suppress(comet.CometError):
                for address in self.addresses:
                    async with comet.Admin(address) as admin:
                        if len((await admin.describe_cluster()).brokers) < len(self.brokers):
                            return False
                return True
            return False

        assert await until_answered(holds, within_s=WELL_S_MAX), "the brokers do not know each other"

    async def well(self, name: str, *, replicas: int | None = None) -> None:
        """Waits until every partition has a leader and all its replicas in sync."""
        wanted = len(self.brokers) if replicas is None else replicas
        seen: object = None

        async def holds() -> bool:
            nonlocal seen
            try:
                seen = info = await self.topic(name)
            except comet.CometError:
                return False
            return all(part.leader and len(part.in_sync) == wanted for part in info.partitions)

        well = await until_answered(holds, within_s=WELL_S_MAX)
        assert well, f"{name} did not become well within {WELL_S_MAX:.0f} s: {seen}"

    def complaints(self) -> list[str]:
        return [f"broker {number}: {line}" for number, one in self.brokers.items() for line in one.complaints()]

    def stop(self) -> None:
        """All brokers stop in good order, the last one with nobody to hand over to."""
        for broker in self.brokers.values():
            broker.terminate()

    def logs(self, spec: TopicSpec, index: int) -> dict[int, bytes]:
        """What each replica's log holds, byte for byte. The brokers must have stopped."""
        return {
            number: log_bytes(broker.data, spec, index)
            for number, broker in self.brokers.items()
            if (broker.data / "topics" / spec.id / str(index)).exists()
        }


def log_bytes(data: Path, spec: TopicSpec, index: int) -> bytes:
    """All whole batches of one replica's log, as they stand on disk."""
    copy = data.with_name(data.name + ".copy")
    shutil.copytree(data / "topics" / spec.id / str(index), copy / "log")
    try:
        files = RealFiles(copy)
        identity = LogIdentity(bytes.fromhex(spec.id), index)
        storage = Log.open(files, "log", identity, spec.config, SystemClock(), lambda: None)
        assert not storage.lost
        data_bytes = bytes_of(storage)
        storage.close()
        return data_bytes
    finally:
        shutil.rmtree(copy)


@contextlib.asynccontextmanager
async def cluster(
    folder: Path,
    *,
    brokers: int = 3,
    options: tuple[str, ...] = (),
    links: Transport | None = None,
    metrics: bool = False,
) -> AsyncIterator[ClusterProcesses]:
    """A running cluster that is gone afterwards, whatever happens."""
    etcd = Etcd.start(folder / "etcd")
    one = ClusterProcesses(folder, etcd, brokers, options, metrics=metrics)
    async with contextlib.AsyncExitStack() as stack:
        try:
            if links is not None:
                await one.put_behind_links(stack, links)
            await one.start()
            yield one
        finally:
            one.kill()
            etcd.stop()


async def wait_for(holds: Callable[[], bool], what: str, within_s: float = 30.0) -> None:
    assert await until(holds, within_s=within_s, every_s=0.005), f"it never came to this: {what}"
