"""Reports which of this broker's replicas must not lead, and when they may again.

    damaged, failed, faulty, unopenable ───────► put cluster/defective/<broker>/<topic id>/<index> ─► another leads
    repaired ─────────────────────────────────► delete it

Owned by the broker. Each report is a task that runs until the store has answered, or there is nothing left to report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import DEFECTIVE, PartitionId, defective_key
from comet_broker.failures import Failures, Guard, Kind
from comet_broker.metadata.store import Compare, Delete, MetadataStore, Put, StoreUnavailable
from comet_broker.partitions.context import Replica
from comet_broker.tasks import Tasks

RETRY_S: Final = 0.5


class LeaderEligibility:
    def __init__(self, me: int, *, store: MetadataStore, view: ClusterView, tasks: Tasks, failures: Failures) -> None:
        self._me = me
        self._store = store
        self._view = view
        self._tasks = tasks
        self._failures = failures
        self._reporting: set[PartitionId] = set()  # replicas that are being reported as defective

    def may_lead(self, broker: int, partition: Replica) -> bool:
        """Whether this broker's replica may lead, as far as is known."""
        return (broker, *partition.tp) not in self._view.state.defective

    def guard(self, partition: Replica, step: str) -> Guard:
        """Guards a step of one partition in a loop over many: an unexpected error stops that partition."""
        return self._failures.guard(Kind.PARTITION, str(partition), step, lambda error: self.halt(partition, error))

    def disqualify(self, partition: Replica) -> None:
        """Reports that this replica must not lead."""
        failed = partition.log.failed
        reason = partition.fault or (failed.message if failed is not None else "it has damaged ranges")
        self._report(partition.tp, reason, lambda: partition.closed is None)

    def halt(self, partition: Replica, error: Exception) -> None:
        """Takes a partition out of service after an unexpected error. Its state in memory is not reliable, so it
        neither leads nor follows until an operator resumes it or this broker restarts. Both reopen its log."""
        reason = self._failures.note(Kind.PARTITION, str(partition), error)
        if partition.closed is not None:
            return self._failures.clear(Kind.PARTITION, str(partition))  # reassigned, deleted, or reopened
        try:
            partition.take_out(reason)
        finally:
            self.disqualify(partition)

    def unopened(self, tp: PartitionId, reason: str, still: Callable[[], bool]) -> None:
        """Reports a replica that cannot be opened; `still` says whether that still holds."""
        self._report(tp, f"it cannot be opened: {reason}", still)

    def _report(self, tp: PartitionId, reason: str, still: Callable[[], bool]) -> None:
        if tp in self._reporting:
            return  # readers find the same damage repeatedly
        self._reporting.add(tp)
        key = defective_key(self._me, tp)

        async def report() -> None:
            try:
                while (self._me, *tp) not in self._view.state.defective and still():
                    try:
                        await self._store.transact([Compare(key, 0)], [Put(key, reason.encode())])
                    except StoreUnavailable:
                        await asyncio.sleep(RETRY_S)
                    else:
                        return
            finally:
                self._reporting.discard(tp)

        self._tasks.keep(report, f"report {tp} defective")

    def requalify(self, partition: Replica) -> None:
        """Withdraws the report of a replica that is repaired, so that it may lead again."""
        mark = (self._me, *partition.tp)
        key = defective_key(self._me, partition.tp)

        async def report() -> None:
            while (found := self._view.state.defective.get(mark)) is not None and not _broken(partition):
                try:
                    await self._store.transact([Compare(key, found.mod_revision)], [Delete(key)])
                except StoreUnavailable:
                    await asyncio.sleep(RETRY_S)
                else:
                    return

        if mark in self._view.state.defective and not _broken(partition):
            self._tasks.keep(report, f"report {partition} repaired")

    def marked(self, keys: Sequence[str], partitions: Sequence[Replica]) -> None:
        """Withdraws reports that arrive after their replica was repaired."""
        mine = f"{DEFECTIVE}{self._me}/"
        if any(key.startswith(mine) for key in keys):
            for partition in partitions:
                self.requalify(partition)


def _broken(partition: Replica) -> bool:
    return partition.log.failed is not None or bool(partition.log.lost) or bool(partition.fault) or not partition.whole
