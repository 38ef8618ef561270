"""Resumes what has failed on this broker after an unexpected error, as a restart would.

partition              its log is reopened, and the replica may lead again
topic                  opened or changed again
slot                   claimed again, at once
group, transaction     loaded from the metadata store
task                   restarted, if it waits for that
"""

from __future__ import annotations

import logging

from comet.errors import CometError, Timeout
from comet_broker.coordination.coordinator import Coordinator
from comet_broker.env import Env
from comet_broker.failures import Kind
from comet_broker.metadata.store import StoreUnavailable
from comet_broker.partitions.leader_eligibility import LeaderEligibility
from comet_broker.partitions.topics import TopicTable

log = logging.getLogger(__name__)


async def resume(env: Env, topics: TopicTable, eligibility: LeaderEligibility, coordinator: Coordinator) -> int:
    """Returns the number of resumed entities. Those that fail again are in `env.failures` as before; raises Timeout
    if the metadata store does not answer."""
    resumed = 0
    for partition in list(topics.by_handle.values()):
        if not partition.fault:
            continue
        with eligibility.guard(partition, "resuming"):
            env.failures.clear(Kind.PARTITION, str(partition))
            try:
                resumed += await topics.reopen(partition)
            except CometError as error:
                log.error("%s cannot be resumed: %s", partition, error)
                env.failures.note(Kind.PARTITION, str(partition), error, "resuming")
    problems = len(topics.problems)
    await topics.retry()
    resumed += max(0, problems - len(topics.problems))
    try:
        resumed += await coordinator.resume()
    except StoreUnavailable as error:
        raise Timeout(f"the metadata store did not answer; resume again: {error}") from error
    env.failures.clear_passing()
    env.tasks.restart()
    log.info("resumed %d failed entities", resumed)
    return resumed
