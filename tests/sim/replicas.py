"""What must be the same everywhere when nothing is wrong any more: the bytes of replicas, and what brokers see."""

from __future__ import annotations

from collections.abc import Callable

from comet_broker.storage.layout import SEGMENT_HEADER_BYTES
from tests.sim.cluster_world import ClusterWorld
from tests.sim.copies import Batch
from tests.sim.history import PartitionName


class Comparison:
    """`live` names the partitions that are to be compared."""

    def __init__(self, world: ClusterWorld, live: Callable[[], list[PartitionName]]) -> None:
        self.world = world
        self._live = live

    def _holders(self, tp: PartitionName) -> list[int]:
        found = self.world.monitor.state.partitions.get(self.world.where(tp))
        return [] if found is None else list(found.value.replicas)

    def _logs(self, tp: PartitionName) -> dict[int, list[tuple[int, bytes]]]:
        """What lies on the disks of a partition's replicas: the batches, byte by byte."""
        world = self.world
        where = world.where(tp)
        logs = {}
        for broker in self._holders(tp):
            files = world.monitor.copies[broker, where].files
            disk = world.hosts[broker - 1].disk
            logs[broker] = [
                batch
                for path in sorted(files)
                if disk.exists(path)
                for batch in _batches(bytes(disk._seen[path].seen), files[path])
            ]
        return logs

    def followed(self) -> bool:
        return not any(self._different(tp) or self._behind(tp) for tp in self._live())

    def _behind(self, tp: PartitionName) -> list[str]:
        """Replicas that do not know yet that all they have is committed."""
        return [
            f"{tp} on broker {broker} ends at {partition.log.log_end}, its watermark stays at {partition.committed}"
            for broker in self._holders(tp)
            for partition in self.world.hosts[broker - 1].partitions()
            if (partition.topic, partition.index) == tp and partition.committed != partition.log.log_end
        ]

    def _different(self, tp: PartitionName) -> list[str]:
        logs, where = self._logs(tp), self.world.where(tp)
        first = max((log[0][0] for log in logs.values() if log), default=0)
        damaged = {base for broker in logs for base in self.world.monitor.copies[broker, where].damaged}
        parts = {
            broker: [batch for batch in log if batch[0] >= first and batch[0] not in damaged]
            for broker, log in logs.items()
        }
        self.world.history.compared += sum(map(len, parts.values()))
        reference = next(iter(parts.values()), [])
        return [
            f"{tp}: brokers {next(iter(parts))} and {broker} hold other bytes: "
            f"{[batch[0] for batch in reference][-4:]} and {[batch[0] for batch in log][-4:]}"
            for broker, log in parts.items()
            if log != reference
        ]

    def compare(self) -> None:
        for tp in self._live():
            for text in self._different(tp):
                self.world.monitor.complain("C5", text)
            self.world.history.complaints += self._behind(tp)

    def other_views(self) -> list[str]:
        """With nothing going on, every broker sees what the store holds."""
        wanted = self.world.monitor.state
        return [
            f"broker {host.broker_id} sees other {name} than the metadata store holds"
            for host in self.world.up()
            if host.broker is not None
            for name in ("brokers", "topics", "partitions", "defective", "drains", "deleted")
            if getattr(host.broker.view.state, name) != getattr(wanted, name)
        ]


def _batches(data: bytes, index: list[Batch]) -> list[tuple[int, bytes]]:
    found = []
    start = SEGMENT_HEADER_BYTES
    for batch in index:
        found.append((batch.base, data[start : batch.position_end]))
        start = batch.position_end
    return found
