"""The orderly stop of a broker: other brokers lead its partitions, and it takes nothing new.

    run ─► ask for other leaders, wait until they lead ─► draining ─► on_draining ─► sync what was written

Owned by the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from comet.errors import Draining
from comet_broker.cluster.membership import Membership
from comet_broker.cluster.view import ClusterView
from comet_broker.metadata.store import StoreUnavailable
from comet_broker.partitions.leader_eligibility import LeaderEligibility
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.topics import TopicTable

log = logging.getLogger(__name__)

DRAIN_S_MAX: Final = 5.0  # the longest wait of a stopping broker for other leaders


class Drain:
    """`draining` is False until the broker takes nothing new. `on_draining` is called at that time."""

    def __init__(
        self, *, topics: TopicTable, view: ClusterView, membership: Membership, eligibility: LeaderEligibility
    ) -> None:
        self.draining = False
        self.on_draining: list[Callable[[], None]] = []
        self._topics = topics
        self._view = view
        self._membership = membership
        self._eligibility = eligibility

    def check(self) -> None:
        """Raises Draining once the broker takes nothing new."""
        if self.draining:
            raise Draining("this broker is about to stop", retry_after_ms=200)

    async def run(self) -> None:
        """Hands over leadership, takes nothing new, notifies every client, and syncs the logs."""
        if self.draining:
            return
        await self._hand_over()
        self._membership.final = True
        self.draining = True
        for callback in self.on_draining:
            callback()
        for partition in list(self._topics.by_handle.values()):
            with self._eligibility.guard(partition, "the last sync"):
                await partition.flushing.sync()

    def stop(self) -> None:
        """Takes nothing new, without a handover."""
        self.draining = True

    async def _hand_over(self) -> None:
        """Asks the controller for other leaders, and waits until they lead, or cannot."""
        if self._membership.exclusive or len(self._view.state.brokers) < 2:
            return
        try:
            async with asyncio.timeout(DRAIN_S_MAX):
                await self._membership.set_draining()
                while any(_can_move(partition) for partition in self._topics.by_handle.values()):
                    await self._topics.applied.wait(self._topics.applied.value + 1)
        except (TimeoutError, StoreUnavailable) as error:
            log.warning("stops without a handover of leadership: %r", error)


def _can_move(partition: Partition) -> bool:
    return partition.leadership is not None and len(partition.leadership.replicas.state.in_sync) > 1
