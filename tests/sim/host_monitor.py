"""The monitor's eyes on one host: every change of its logs, and its broker after each callback."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from comet import records
from comet.errors import CometError
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES
from tests.sim.copies import Batch, Copy

if TYPE_CHECKING:
    from comet_broker.partitions.partition import Partition
    from comet_testing.simulation.host import Host
    from tests.sim.losses import Where
    from tests.sim.monitor import Monitor

_PREFIX: Final = struct.Struct("<qqIIII")  # base offset, time, epoch, length, the two checksums
_DELTA: Final = struct.Struct("<I")
_DELTA_AT: Final = 72


class HostMonitor:
    """host.HostWatcher: follows one host's logs, and looks at its broker after each of its callbacks."""

    def __init__(self, monitor: Monitor, host: Host) -> None:
        self._monitor = monitor
        self._host = host
        self._broker = host.broker_id
        self._seen: dict[Partition, tuple[int, int, int]] = {}  # committed, epoch, and in which epoch that was said
        self._broker_epoch = 0

    # ---- files

    def _followed(self, path: str) -> Where | None:
        """The partition of a file that is followed batch by batch: not of a compacted topic."""
        where = _where(path)
        return None if where is None or self._monitor.compacts(where) else where

    def changed(self, path: str, size: int) -> None:
        where = self._followed(path)
        if where is None:
            return
        copy = self._monitor.copies[self._broker, where]
        parsed = copy.parsed.get(path, 0)
        if size < parsed:
            if copy.drop(path, size, self._host.broker_epoch):
                self._monitor.recount(self._broker, where)
            copy.parsed[path] = max(size, 0)
            if size < 0:
                copy.files.pop(path, None)
                copy.parsed.pop(path)
        elif size > parsed:
            self._parse(path, where, copy, verify=False)

    def _parse(self, path: str, where: Where, copy: Copy, *, verify: bool) -> None:
        inode = self._host.disk._seen.get(path)
        if inode is None:
            return  # the power went in the middle of the write, and took the new file along
        data = inode.seen
        at = max(copy.parsed.get(path, 0), SEGMENT_HEADER_BYTES)
        batches = copy.files.setdefault(path, [])
        while at + records.HEADER_BYTES <= len(data):
            base, _, epoch, length, stamp_crc, crc = _PREFIX.unpack_from(data, at)
            if length < records.HEADER_BYTES or at + length > len(data) or (verify and not _whole(data, at)):
                break
            (delta,) = _DELTA.unpack_from(data, at + _DELTA_AT)
            batch = Batch(
                base, base + delta + 1, epoch, (stamp_crc, crc), path, at, at + length, self._host.broker_epoch
            )
            at += length
            if not verify:
                self._appending(where, epoch)
                self._monitor.wrote(self._broker, where, batch, batches[-1] if batches else None)
            batches.append(batch)
            copy.batches[base] = batch
        copy.parsed[path] = at

    def _appending(self, where: Where, epoch: int) -> None:
        """A leader appends only while it stands in the metadata store."""
        monitor, broker = self._monitor, self._host.broker
        if monitor._led.get((where, epoch)) != self._broker or broker is None or not monitor.consistent(where):
            return
        partitions = broker.topics.by_handle.values()
        if not any(one.leads and (one.topic_id.hex(), one.index) == where for one in partitions):
            return  # what it wrote as leader and lost comes back to it from the one that leads now
        monitor.checked["C33"] += 1
        if monitor.state.broker_epoch(self._broker) != broker.membership.broker_epoch:
            monitor.complain(
                "C33",
                f"broker {self._broker} appended to {monitor.name(where)} in epoch {epoch}, and its lease is over",
            )

    def opened(self, partition: Partition) -> None:
        where = (partition.topic_id.hex(), partition.index)
        if self._monitor.compacts(where):
            return
        copy = self._monitor.copies[self._broker, where]
        if copy.poisoned:
            copy.poisoned = False
            self._rescan(where)
            self._monitor.reopened(self._broker, where)

    def sync_failed(self, path: str) -> None:
        where = self._followed(path)
        if where is not None:
            copy = self._monitor.copies[self._broker, where]
            self._monitor.losses.look(where)
            copy.poisoned = copy.mending = True
            self._monitor.lost(self._broker, where)
            self._monitor.losses.look(where)

    def damaged(self, path: str, base: int) -> None:
        """A bit of the batch that begins there was flipped."""
        where = self._followed(path)
        if where is None:
            return
        copy = self._monitor.copies[self._broker, where]
        self._monitor.losses.look(where)
        copy.damaged.add(base)
        copy.mending = True
        self._monitor.lost(self._broker, where)
        self._monitor.losses.look(where)

    def lies(self, folder: str) -> None:
        """The log in this folder is not what its broker left there."""
        where = self._followed(f"{folder}/log")
        if where is None:
            return
        copy = self._monitor.copies[self._broker, where]
        self._monitor.losses.look(where)
        copy.lies = copy.mending = True
        self._monitor.agreed[where].doubted = True
        self._monitor.losses.lies(self._broker, where)
        self._rescan(where, known=False)
        self._monitor.losses.look(where)

    def died(self, *, power: bool) -> None:
        self._seen.clear()
        self._broker_epoch = 0
        self._monitor.losses.look()
        if power:
            self._monitor.losses.is_down(self._broker)
            for broker, where in list(self._monitor.copies):
                if broker == self._broker:
                    self._rescan(where, power=True)
        self._monitor.losses.look()

    def _rescan(self, where: Where, *, power: bool = False, known: bool = True) -> None:
        """What is on the disk now, after something may have gone from it."""
        copy = self._monitor.copies[self._broker, where]
        folder = f"topics/{where[0]}/{where[1]}"
        disk = self._host.disk
        before, files = copy.batches, copy.files if known else {}
        copy.batches, copy.files, copy.parsed = {}, {}, {}
        for name in disk.list(folder):
            path = f"{folder}/{name}"
            if name.endswith(".log"):
                self._keep(path, copy, files.get(path, []), disk._seen[path].seen)
                self._parse(path, where, copy, verify=True)
        copy.damaged &= copy.batches.keys()
        gone = [batch for base, batch in before.items() if base not in copy.batches]
        copy.lose(gone, self._host.broker_epoch)
        self._monitor.recount(self._broker, where)
        if power:
            self._monitor.power_lost(self._broker, where)
        self._monitor.lost(self._broker, where)

    @staticmethod
    def _keep(path: str, copy: Copy, known: list[Batch], data: bytearray) -> None:
        """What was there, and still is; a batch with a flipped bit was and is no worse than before."""
        kept = copy.files[path] = []
        at = SEGMENT_HEADER_BYTES
        for batch in known:
            if batch.position_end > len(data) or (batch.base not in copy.damaged and not _whole(data, at)):
                break
            kept.append(batch)
            copy.batches[batch.base] = batch
            at = batch.position_end
        copy.parsed[path] = at

    # ---- the broker

    def look(self) -> None:
        """After every callback of the broker, so it has to be quick."""
        broker = self._host.broker
        if broker is None:
            return
        broker_epoch = broker.membership.broker_epoch
        if broker_epoch != self._broker_epoch:
            self._broker_epoch = broker_epoch
            self._monitor.processes[self._broker, broker_epoch] = self._host.broker_epoch
        seen = self._seen
        for partition in broker.topics.by_handle.values():
            known = seen.get(partition)
            end, epoch = partition.committed, partition.leader_epoch
            if known is None or known[0] != end or known[1] != epoch:
                self._moved(partition, known, end, epoch)

    def _moved(self, partition: Partition, known: tuple[int, int, int] | None, end: int, epoch: int) -> None:
        monitor = self._monitor
        where = (partition.topic_id.hex(), partition.index)
        if monitor.compacts(where):
            self._seen[partition] = (end, epoch, epoch)
            return
        before, epoch_before, said_in = known if known is not None else (0, 0, 0)
        fresh = known is None and (not partition.leads or bool(monitor.agreed[where].losses))
        said_now = self._noted_in(where, end) if fresh else said_in if end == before else epoch
        self._seen[partition] = (end, epoch, said_now)
        if epoch < epoch_before:
            monitor.complain(
                "C8",
                f"broker {self._broker} went back from epoch {epoch_before} to {epoch} of {monitor.name(where)}",
            )
        monitor.checked["C8"] += 1
        found = monitor.state.partitions.get(where)
        accepted = found is not None and said_in < found.value.loss_accepted
        known_end = monitor.agreed[where].said_in(said_in, before) if accepted else before
        back = end < known_end and monitor.consistent(where)
        if back and not monitor.copies[self._broker, where].lossy:
            monitor.complain(
                "C8",
                f"broker {self._broker}: the high watermark of {monitor.name(where)} went back from {before} to {end}",
            )
        if partition.leads:
            monitor.leads(self._broker, where, epoch)
        if end > before:
            monitor.committed(self._broker, where, end, said_now, fresh=fresh)

    def _noted_in(self, where: Where, end: int) -> int:
        """In which epoch a watermark was known that the broker has found noted on its disk: the records say that."""
        batches = self._monitor.copies[self._broker, where].batches.values()
        return max((batch.base, batch.epoch) for batch in batches if batch.base < end)[1] if end and batches else 0


def _where(path: str) -> Where | None:
    parts = path.split("/")
    if len(parts) != 4 or parts[0] != "topics" or not parts[2].isdecimal():
        return None
    return parts[1], int(parts[2])


def _whole(data: bytearray, at: int) -> bool:
    try:
        records.verify(data, at, stamped=True)
    except CometError:
        return False
    return True
