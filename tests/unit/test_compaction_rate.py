"""A round of compaction reads no more in a second than the broker's rate, whatever the size of its batches."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from comet import records
from comet.records import CompactionPlan
from comet.settings.topic import CleanupPolicy, TopicConfig
from comet_broker.partitions.compaction import PartitionCompaction
from comet_broker.storage.rewrite import SLICE_BYTES
from tests.unit.replica_world import ReplicaWorld, settle
from tests.unit.storage_world import append_plan, sync

BATCHES = 8


@pytest.mark.parametrize("batch_bytes", [SLICE_BYTES // 3, 5 * SLICE_BYTES])
async def test_it_rests_for_as_long_as_the_rate_allows(monkeypatch: pytest.MonkeyPatch, batch_bytes: int) -> None:
    rests = list[float]()
    sleep = asyncio.sleep

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        await sleep(0)

    random = Random(1)
    world = ReplicaWorld(TopicConfig(cleanup_policy=CleanupPolicy.COMPACT))
    log, partition = world.log, world.partition
    for number in range(BATCHES):
        stored = b"".join(records.encode([random.randbytes(batch_bytes)], keys=[b"%d" % number], timestamps=[1]))
        log.append(records.verify(stored, stamped=False), memoryview(stored), 1)
    log.segments.roll()
    append_plan(log, CompactionPlan(log.log_end, 1))
    sync(log)
    partition.watermarks.commit(log.log_end)
    compaction = PartitionCompaction(partition, asyncio.Lock())
    monkeypatch.setattr(asyncio, "sleep", rest)
    compaction.check()
    await settle()
    await compaction.ended()
    assert log.compaction.rounds == 1
    read = 2 * BATCHES * batch_bytes  # once for the keys, and once for the records
    rested = sum(rests) * partition.context.compaction_rate
    assert read - 6 * batch_bytes <= rested <= 1.1 * read + SLICE_BYTES
