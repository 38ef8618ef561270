"""A broker whose log came back short says so when it registers next, whenever it is killed while it opens that log."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from comet.v1 import admin_pb2 as admin
from comet_broker.broker import Broker
from comet_broker.config import BrokerConfig
from comet_broker.core.cluster import BrokerRecord
from comet_broker.metadata.memory import MemoryStore
from comet_broker.partitions.partition import Partition
from comet_broker.rpc.local_channel import LocalNetwork
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES
from comet_broker.storage.memory import MemoryFile
from tests.integration.held_clock import HeldClock
from tests.integration.local_cluster import until
from tests.unit.dying_files import Died, DyingFiles
from tests.unit.replica_world import HeldWorker
from tests.unit.storage_world import batch

RECORDS = 5
CHANGES_MAX = 100


class Files(DyingFiles):
    """There may be no file descriptors for logs."""

    exhausted = False

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        if self.exhausted and path.startswith("topics/"):
            raise OSError(errno.EMFILE, errno.errorcode[errno.EMFILE])
        return super().open(path, create=create)


class Machine:
    """One broker, killed and started again and again; its machine never goes down."""

    def __init__(self) -> None:
        self.files = Files(Random(1))
        self.broker: Broker
        self._clock = HeldClock()
        self._store = MemoryStore(self._clock)

    async def start(self, *, join: bool = True) -> None:
        config = BrokerConfig(Path("data"), etcd=("memory:0",), session_ms=20_000, default_replicas=1)
        self.broker = Broker(
            config,
            files=self.files,
            store=self._store,
            clock=self._clock,
            worker=HeldWorker(),
            random=Random(1),
            network=LocalNetwork(),
            boot_id="boot",
        )
        await self.broker.start()
        if join:
            await self.broker.join()

    async def kill(self) -> None:
        self.files.dies_at = -1
        await self.broker.env.tasks.close()
        await self.broker.peers.close()
        self.files.crash(power=False)

    def partition(self) -> Partition:
        (partition,) = self.broker.topics.by_handle.values()
        return partition

    def record(self) -> BrokerRecord:
        """What it registers, or would register next."""
        return self.broker.registration.record()

    async def make_short_log(self) -> None:
        """The broker is killed before it has synced its records, and one bit in the middle of the log is damaged."""
        await self.start()
        methods = {method.path: method for method in self.broker.methods}
        await methods["comet.v1.Admin/CreateTopic"](admin.CreateTopicRequest(name="t", partitions=1, replicas=1))
        await until(lambda: any(one.leads for one in self.broker.topics.by_handle.values()), "it leads")
        for _ in range(RECORDS):
            self.partition().produce(batch([b"x" * 100])[1], 1)
        await self.kill()
        (path,) = [path for path in self.files.snapshot() if path.endswith(".log")]
        middle = (len(self.files.read_all(path)) - SEGMENT_HEADER_BYTES) // 2
        self.files.flip(path, SEGMENT_HEADER_BYTES + middle)

    async def dies_in(self, act: Callable[[], Awaitable[None]], change: int, *, after: bool) -> bool:
        """Whether the process died at this change of the disk."""
        self.files.after, self.files.dies_at = after, self.files.changes + change
        try:
            await act()
        except Died:
            return True
        finally:
            self.files.dies_at = -1
        return False


@pytest.mark.parametrize("after", [False, True])
async def test_a_start_that_is_killed_at_any_change_registers_as_one_with_missing_records(*, after: bool) -> None:
    for change in range(1, CHANGES_MAX):
        machine = Machine()
        await machine.make_short_log()
        died = await machine.dies_in(partial(machine.start, join=False), change, after=after)
        await machine.kill()
        await machine.start(join=False)
        assert not machine.record().clean, f"killed at change {change}"
        await machine.kill()
        if not died:
            assert change > 20, "too few changes to show anything"
            return
    raise AssertionError("the start never completes")


async def start_without_the_log(machine: Machine) -> None:
    """It registers as one that has all records."""
    machine.files.exhausted = True
    await machine.start()
    assert not machine.broker.topics.by_handle and machine.record().clean
    machine.files.exhausted = False


@pytest.mark.parametrize("after", [False, True])
async def test_a_log_that_is_opened_after_the_registration_is_no_exception(*, after: bool) -> None:
    for change in range(1, CHANGES_MAX):
        machine = Machine()
        await machine.make_short_log()
        await start_without_the_log(machine)
        died = await machine.dies_in(machine.broker.topics.retry, change, after=after)
        if not died:
            assert not machine.record().clean
        await machine.kill()
        machine.files.exhausted = False
        await machine.start(join=False)
        assert not machine.record().clean, f"killed at change {change}"
        await machine.kill()
        if not died:
            assert change > 5, "too few changes to show anything"
            return
    raise AssertionError("the log is never opened")


@pytest.mark.parametrize("looked_into", [False, True])
async def test_such_a_log_is_not_written_before_a_restart(*, looked_into: bool) -> None:
    """The broker counts as one that has all its records. `looked_into`: by the inventory of its folder."""
    machine = Machine()
    await machine.make_short_log()
    await start_without_the_log(machine)
    if looked_into:
        await machine.broker.topics.inventory()
    await machine.broker.topics.retry()
    failed = machine.partition().log.failed
    assert failed is not None and "restart the broker" in failed.message
    assert not machine.partition().leads
    await machine.kill()
    await machine.start()
    await until(lambda: machine.partition().leads, "it leads in an epoch that knows of the loss")
    assert machine.partition().log.failed is None
    await until(lambda: machine.record().clean, "the cluster knows of the loss")
    await machine.kill()
    await machine.start(join=False)
    assert machine.record().clean
    await machine.kill()
