"""Periodic work of a broker: retention of its partitions, and checks of the replicas that it leads.

Each partition has its turn: an error of one does not stop the others. Owned by the broker; each `run_…` is one task.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from comet.errors import CometError
from comet_broker.failures import Kind

if TYPE_CHECKING:
    from comet_broker.broker import Broker

log = logging.getLogger(__name__)


class Maintenance:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def run_housekeeping(self) -> None:
        broker = self._broker
        while True:
            await asyncio.sleep(broker.config.retention_check_ms / 1000)
            await broker.topics.retry()
            for partition in list(broker.topics.by_handle.values()):
                with broker.failures.guard(Kind.PARTITION, str(partition), "housekeeping"):
                    try:
                        await partition.housekeeping.run()
                    except (CometError, OSError) as error:
                        log.warning("retention of %s: %s", partition, error)

    async def run_replicas(self) -> None:
        broker = self._broker
        while True:
            await asyncio.sleep(broker.config.replica_lag_ms / 4000)
            for partition in list(broker.topics.by_handle.values()):
                if partition.leadership is not None:
                    partition.leadership.check()
            await broker.topics.note_watermarks()
            await broker.note_loss_known()
