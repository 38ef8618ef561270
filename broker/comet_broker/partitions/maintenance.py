"""Periodic work of a broker: retention of its partitions, and checks of the replicas that it leads.

Each partition has its turn: an error of one does not stop the others. Owned by the broker; each `run_…` is one task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from comet.errors import CometError
from comet_broker.env import Env
from comet_broker.failures import Kind
from comet_broker.partitions.topics import TopicTable

log = logging.getLogger(__name__)


class Maintenance:
    """`checked` is called after each check of the replicas."""

    def __init__(self, env: Env, topics: TopicTable, checked: Callable[[], Awaitable[None]]) -> None:
        self._config = env.config
        self._failures = env.failures
        self._topics = topics
        self._checked = checked

    async def run_housekeeping(self) -> None:
        while True:
            await asyncio.sleep(self._config.retention_check_ms / 1000)
            await self._topics.retry()
            for partition in list(self._topics.by_handle.values()):
                with self._failures.guard(Kind.PARTITION, str(partition), "housekeeping"):
                    try:
                        await partition.housekeeping.run()
                    except (CometError, OSError) as error:
                        log.warning("retention of %s: %s", partition, error)

    async def run_replicas(self) -> None:
        while True:
            await asyncio.sleep(self._config.replica_lag_ms / 4000)
            for partition in list(self._topics.by_handle.values()):
                if partition.leadership is not None:
                    partition.leadership.check()
            await self._topics.note_watermarks()
            await self._checked()
