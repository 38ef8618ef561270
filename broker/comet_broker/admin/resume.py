"""Resumes what has failed on this broker after an unexpected error, as a restart would.

partition              its log is reopened, and the replica may lead again
topic                  opened or changed again
slot                   claimed again, at once
group, transaction     loaded from the metadata store
task                   restarted, if it waits for that
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from comet.errors import CometError, Timeout
from comet_broker.failures import Kind
from comet_broker.metadata.store import StoreUnavailable

if TYPE_CHECKING:
    from comet_broker.broker import Broker

log = logging.getLogger(__name__)


async def resume(broker: Broker) -> int:
    """Returns the number of resumed entities. Those that fail again are in `broker.failures` as before; raises Timeout
    if the metadata store does not answer."""
    resumed = 0
    for partition in list(broker.topics.by_handle.values()):
        if not partition.fault:
            continue
        with broker.guarded(partition, "resuming"):
            broker.failures.clear(Kind.PARTITION, str(partition))
            try:
                resumed += await broker.topics.reopen(partition)
            except CometError as error:
                log.error("%s cannot be resumed: %s", partition, error)
                broker.failures.note(Kind.PARTITION, str(partition), error, "resuming")
    problems = len(broker.topics.problems)
    await broker.topics.retry()
    resumed += max(0, problems - len(broker.topics.problems))
    try:
        resumed += await broker.coordinator.resume()
    except StoreUnavailable as error:
        raise Timeout(f"the metadata store did not answer; resume again: {error}") from error
    broker.failures.clear_passing()
    broker.tasks.restart()
    log.info("resumed %d failed entities", resumed)
    return resumed
