"""The partitions of `__schedules` that this broker leads, with a Keeper for each.

Owned by the broker; on its loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from comet.errors import CometError, Unavailable
from comet.types import SCHEDULES_TOPIC
from comet_broker.admin.calendars import Calendars
from comet_broker.coordination.transaction_calls import TransactionCalls
from comet_broker.core.cluster import CALENDARS
from comet_broker.env import Env
from comet_broker.key_values.views import KeyViews
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.topics import TopicTable
from comet_broker.schedules.firing import Firing, FiringCounts
from comet_broker.schedules.keeper import Keeper
from comet_broker.schedules.store import ScheduleStore
from comet_broker.schedules.targets import TopicTargets
from comet_broker.schedules.transaction import FiringTransactions, Publish

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # between two looks for partitions that are led without a Keeper
READY_S_MAX: Final = 5.0  # that a call waits for a leader that still reads its schedules
READY_PAUSE_S: Final = 0.02


@dataclass(slots=True)
class _Running:
    keeper: Keeper
    task: asyncio.Task[None]


class Scheduler:
    def __init__(
        self,
        env: Env,
        *,
        topics: TopicTable,
        views: KeyViews,
        publish: Publish,
        transactions: TransactionCalls,
        targets: TopicTargets,
        calendars: Calendars,
    ) -> None:
        self._env = env
        self._topics = topics
        self._views = views
        self._publish = publish
        self._transactions = transactions
        self._targets = targets
        self._calendars = calendars
        self._counts = FiringCounts()
        self._running: dict[int, _Running] = {}  # by partition
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            self._changed.clear()
            await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()

    def partition_changed(self, partition: Partition) -> None:
        """Called when its leader may be another one."""
        if partition.topic == SCHEDULES_TOPIC:
            self._changed.set()

    def view_moved(self, keys: Sequence[str]) -> None:
        if any(key.startswith(CALENDARS) for key in keys):
            for one in self._running.values():
                one.keeper.calendars_changed()

    async def _look(self) -> None:
        """Ends the Keepers of partitions that are led no more, and starts those of others."""
        for index, one in list(self._running.items()):
            if one.task.done() or not one.keeper.store.led:
                one.task.cancel()
                await asyncio.wait([one.task])
                del self._running[index]
        topic = self._topics.by_name.get(SCHEDULES_TOPIC)
        for partition in [] if topic is None else list(topic.partitions.values()):
            if partition.leads and partition.index not in self._running:
                keeper = self._keeper_of(partition)
                task = self._env.tasks.spawn(self._keep(keeper), f"keep the schedules of {partition}")
                self._running[partition.index] = _Running(keeper, task)

    def _keeper_of(self, partition: Partition) -> Keeper:
        store = ScheduleStore(partition, self._views, self._publish, self._env.tasks)
        name = f"{SCHEDULES_TOPIC}-{partition.index}"
        firing = Firing(
            self._env,
            store,
            transactions=FiringTransactions(name, self._transactions, self._publish),
            publish=self._publish,
            targets=self._targets,
            calendars=self._calendars.read,
            counts=self._counts,
        )
        return Keeper(self._env, store, firing, self._calendars.read)

    async def _keep(self, keeper: Keeper) -> None:
        """The next look starts another one, if this one ends too early."""
        name = f"the schedules of {keeper.store.partition}"
        try:
            await keeper.run()
        except CometError as error:
            log.info("%s end: %s", name, error)
        except Exception as error:  # noqa: BLE001 - reported, and tried again
            self._env.tasks.report(name, error)

    @property
    def keepers(self) -> list[Keeper]:
        return [one.keeper for one in self._running.values()]

    def statistics(self) -> dict[str, Any]:
        keepers = self.keepers
        counts = self._counts
        return {
            "partitions": [keeper.statistics() for keeper in keepers],
            "fired": counts.fired,
            "skipped": counts.skipped,
            "paused": counts.paused,
            "put_off": counts.put_off,
            "cancelled": self._counts.cancelled,
        }

    async def ready(self, index: int) -> Keeper:
        """The Keeper of a partition that this broker leads, once it serves."""
        give_up = self._env.clock.monotonic() + READY_S_MAX
        while True:
            found = self._running.get(index)
            if found is not None and found.keeper.ready and found.keeper.store.led:
                return found.keeper
            if self._env.clock.monotonic() > give_up:
                raise Unavailable(
                    f"this broker does not lead partition {index} of {SCHEDULES_TOPIC}, or still reads its schedules",
                    retry_after_ms=200,
                )
            self._changed.set()
            await asyncio.sleep(READY_PAUSE_S)
