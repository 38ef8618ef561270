"""What excuses a loss: a host's journal of power cuts and failed disks, written into the history.

An fsync that failed counts as a power cut for its partition, because it is unknown what is on disk.
"""

from __future__ import annotations

from collections.abc import Callable

from comet_broker.partitions.partition import Partition
from tests.sim.history import History, PartitionName, Recovered


class LossJournal:
    """comet_testing.simulation.host.HostJournal. Owned by the world."""

    def __init__(self, history: History, now: Callable[[], float]) -> None:
        self._history = history
        self._now = now
        self._lossy_since: dict[PartitionName, float] = {}
        self._open: dict[PartitionName, None] = {}  # in this process
        self._last_open: dict[PartitionName, float] = {}  # what it held then may not be on disk; nothing came later
        self._synced_at: dict[PartitionName, float] = {}
        self._names: dict[str, str] = {}  # of topics, by the folder they are in

    def opened(self, partition: Partition) -> None:
        tp = (partition.topic, partition.index)
        self._names[partition.topic_id.hex()] = partition.topic
        self._open[tp] = None
        self._history.recovered.append(
            Recovered(
                tp,
                self._now(),
                partition.log.log_start,
                partition.log.log_end,
                self._lossy_since.pop(tp, None),
                self._synced_at.get(tp, -1.0),
            )
        )

    def closed(self, partition: Partition) -> None:
        self._synced_at[partition.topic, partition.index] = self._now()

    def sync_failed(self, path: str) -> None:
        """What was written to that log since its last good sync may be gone."""
        parts = path.split("/")
        if len(parts) >= 3 and parts[1] in self._names:
            self._lose((self._names[parts[1]], int(parts[2])))

    def died(self, *, power: bool) -> None:
        if power:
            for tp in dict.fromkeys(opened.tp for opened in self._history.recovered):
                self._lose(tp)
        self._last_open.update(dict.fromkeys(self._open, self._now()))
        self._open.clear()

    def _lose(self, tp: PartitionName) -> None:
        """What was not synced of a log is gone: what it held now, or when it was last open."""
        now = self._now()
        self._lossy_since.setdefault(tp, now if tp in self._open else self._last_open.get(tp, now))
