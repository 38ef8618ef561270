"""Shows the groups of one slot the topics that the cluster has: new ones, more partitions, deletions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from comet_broker.cluster.view import ClusterView
from comet_broker.coordination.context import SlotClaim
from comet_broker.coordination.group import LiveGroup
from comet_broker.coordination.logs import Logs
from comet_broker.core.cluster import DELETED, TOPICS
from comet_broker.failures import Guard

GATHER_S: Final = 0.02  # for which changes of topics are gathered


class TopicFollower:
    """Owned by the groups of the slot. `guard` guards a step of one group, by its name."""

    def __init__(
        self,
        slot: SlotClaim,
        groups: Iterable[LiveGroup],
        *,
        view: ClusterView,
        logs: Logs,
        guard: Callable[[str, str], Guard],
    ) -> None:
        self._slot = slot
        self._groups = groups
        self._view = view
        self._logs = logs
        self._guard = guard
        self._timer: asyncio.TimerHandle | None = None
        self._deleted: set[str] = set()  # ids of topics; their tombstones may be gone before the next check

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def up_to_date(self) -> bool:
        """The view is as new as any that the previous coordinator can have had: this broker's claim came later."""
        found = self._view.state.coordinators.get(self._slot.number)
        return found is not None and found.value.epoch >= self._slot.epoch

    def name_of(self, topic_id: str) -> str:
        """The topic's current name; empty if it is deleted."""
        for name, shape in self._logs.catalog().items():
            if shape.topic_id == topic_id:
                return name
        return ""

    def view_moved(self, keys: Sequence[str]) -> None:
        """Follows a change of the cluster in these keys."""
        self._deleted.update(key.removeprefix(DELETED) for key in keys if key.startswith(DELETED))
        claim = f"cluster/coordinators/{self._slot.number}"
        if (
            self._timer is None
            and any(True for _ in self._groups)
            and any(key.startswith((TOPICS, DELETED)) or key == claim for key in keys)
        ):
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self.follow)

    def follow(self) -> None:
        """Shows all groups the current topics."""
        self._timer = None
        deleted = self._deleted | self._view.state.deleted.keys()
        self._deleted.clear()
        for group in self._groups:
            with self._guard(group.name, "following topics"):
                for topic_id in deleted.intersection({*group.offsets.names, *group.machine.acquired}):
                    group.drop_topic(topic_id)
                self.show(group)

    def show(self, group: LiveGroup) -> None:
        if self.up_to_date:
            group.machine.topics(self._logs.catalog())
            group.kick_if_needed()
