"""Which of this broker's replicas must not lead: tells the cluster so, and when they may again.

    damaged, failed, broken, not to be opened ─► put cluster/unfit/<broker>/<topic id>/<index> ─► another leads
    mended ───────────────────────────────────► delete it

Owned by the broker. Each report is a task that goes on until the store has answered, or nothing is to be said any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import DEFECTIVE, Place, defective_key
from comet_broker.failures import Failures, Kind
from comet_broker.metadata.store import Compare, Delete, MetadataStore, Put, StoreUnavailable
from comet_broker.partitions.partition import Partition
from comet_broker.tasks import Tasks

RETRY_S: Final = 0.5


class Fitness:
    def __init__(self, me: int, *, store: MetadataStore, view: ClusterView, tasks: Tasks, failures: Failures) -> None:
        self._me = me
        self._store = store
        self._view = view
        self._tasks = tasks
        self._failures = failures
        self._telling: set[Place] = set()  # replicas that are being reported as unfit

    def fit(self, broker: int, partition: Partition) -> bool:
        """Nobody has said that this broker's replica must not lead."""
        return (broker, *partition.place) not in self._view.state.defective

    def unfit(self, partition: Partition) -> None:
        """This replica must not lead."""
        failed = partition.log.failed
        reason = partition.fault or (failed.message if failed is not None else "it has damaged ranges")
        self._tell(partition.place, reason, lambda: partition.closed is None)

    def broke(self, partition: Partition, error: Exception) -> None:
        """An unexpected error. The replica's state in memory is not to be relied on: it neither leads nor follows until
        an operator resumes it or this broker starts again. Both open its log anew."""
        reason = self._failures.note(Kind.PARTITION, str(partition), error)
        if partition.closed is not None:
            return self._failures.clear(Kind.PARTITION, str(partition))  # moved away, deleted, or opened anew
        partition.fault = partition.fault or f"it failed: {reason}"
        try:
            partition.step_down(f"{partition} has failed on broker {self._me}: {reason}")
        finally:
            self.unfit(partition)

    def unopened(self, place: Place, reason: str, still: Callable[[], bool]) -> None:
        """The same of one that is not open; `still` says that."""
        self._tell(place, f"it cannot be opened: {reason}", still)

    def _tell(self, place: Place, reason: str, still: Callable[[], bool]) -> None:
        if place in self._telling:
            return  # readers find the same damage again and again
        self._telling.add(place)
        key = defective_key(self._me, place)

        async def tell() -> None:
            try:
                while (self._me, *place) not in self._view.state.defective and still():
                    try:
                        await self._store.transact([Compare(key, 0)], [Put(key, reason.encode())])
                    except StoreUnavailable:
                        await asyncio.sleep(RETRY_S)
                    else:
                        return
            finally:
                self._telling.discard(place)

        self._tasks.keep(tell, f"report {place} unfit")

    def mended(self, partition: Partition) -> None:
        """A replica is whole, and may lead again if the cluster was told that it must not."""
        mark = (self._me, *partition.place)
        key = defective_key(self._me, partition.place)

        async def tell() -> None:
            while (found := self._view.state.defective.get(mark)) is not None and not _broken(partition):
                try:
                    await self._store.transact([Compare(key, found.mod_revision)], [Delete(key)])
                except StoreUnavailable:
                    await asyncio.sleep(RETRY_S)
                else:
                    return

        if mark in self._view.state.defective and not _broken(partition):
            self._tasks.keep(tell, f"report {partition} mended")

    def marked(self, keys: Sequence[str], partitions: Sequence[Partition]) -> None:
        """A mark may come when what it is about is mended already."""
        mine = f"{DEFECTIVE}{self._me}/"
        if any(key.startswith(mine) for key in keys):
            for partition in partitions:
                self.mended(partition)


def _broken(partition: Partition) -> bool:
    return partition.log.failed is not None or bool(partition.log.lost) or bool(partition.fault)
