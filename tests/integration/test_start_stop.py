"""Brokers that do not get far, and what the next start may say of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

from comet.types import TopicConfig
from comet_broker.broker import Broker
from comet_broker.config import BrokerConfig
from comet_broker.core.cluster import PartitionState, TopicSpec, partition_key, topic_key
from comet_broker.local import LocalNetwork
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import Put
from comet_broker.storage.files import RealFiles
from comet_broker.system import SystemClock, ThreadWorker

TOPIC_ID = "a" * 32


class OneOfMany:
    """Broker 1 of a cluster in which nobody else runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = SystemClock()
        self.store = MemoryStore(self.clock)
        self.worker = ThreadWorker(2)

    def broker(self) -> Broker:
        self.folder.mkdir(exist_ok=True)
        return Broker(
            BrokerConfig(data=self.folder, broker_id=1, etcd=("memory:0",), session_ms=2_000, replica_lag_ms=1_000),
            files=RealFiles(self.folder),
            store=self.store,
            clock=self.clock,
            worker=self.worker,
            random=Random(1),
            network=LocalNetwork(),
            boot_id="boot",
        )

    async def close(self) -> None:
        await self.store.close()
        self.worker.close()


async def test_a_start_that_did_not_get_far_does_not_hide_that_all_was_lost(tmp_path: Path) -> None:
    one = OneOfMany(tmp_path / "1")
    first = one.broker()
    await first.start()
    await first.join()
    state = PartitionState(leader=0, epoch=1, replicas=(1, 2), in_sync={1: first.membership.incarnation})
    spec = TopicSpec(id=TOPIC_ID, partitions=1, created_us=1, config=TopicConfig(), replicas=2)
    await one.store.transact(
        [], [Put(topic_key("t"), spec.encode()), Put(partition_key((TOPIC_ID, 0)), state.encode())]
    )
    await first.close()
    shutil.rmtree(one.folder)
    stopped = one.broker()
    await stopped.start()  # and SIGTERM comes before it has joined
    await stopped.close()
    third = one.broker()
    await third.start()
    assert not third.identity.clean
    await third.close()
    await one.close()
