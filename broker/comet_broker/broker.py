"""The broker: what is left when network, disk, clock and chance are taken away and handed in.

    transports (rpc/, local) ──► Session, control, thin ──► TopicTable ──► Partition ──► Log
                                                              ▲
                                              metadata store ─┘ (watch)

Owns everything below it. One event loop, one thread; `worker` runs what blocks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from random import Random
from typing import Any, Final

import comet
from comet._frames import DELIVERY_PREFIX_BYTES
from comet.errors import CometError, Draining, LimitExceeded
from comet.types import AtTime, Position
from comet.v1 import events_pb2 as pb
from comet_broker import limits
from comet_broker.config import BrokerConfig
from comet_broker.core.tail import TailBudget
from comet_broker.metadata.store import Compare, MetadataStore, Put
from comet_broker.partition import Partition
from comet_broker.ports import Clock, Files, Worker
from comet_broker.session import Session, resolve
from comet_broker.tasks import Tasks
from comet_broker.topics import TopicTable, storage_error

log = logging.getLogger(__name__)

CLUSTER_KEY: Final = "cluster"


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        *,
        files: Files,
        store: MetadataStore,
        clock: Clock,
        worker: Worker,
        random: Random,
    ) -> None:
        self.config = config
        self.port = config.port  # the server sets the real one when it was 0
        self.files = files
        self.store = store
        self.clock = clock
        self.worker = worker
        self.random = random
        self.tasks = Tasks()
        self.tail_budget = TailBudget(limits.TAIL_TOTAL_BYTES_MAX, limits.TAIL_PARTITION_BYTES_MAX)
        self.topics = TopicTable(
            files=files, store=store, clock=clock, worker=worker, tasks=self.tasks, tail_budget=self.tail_budget
        )
        self.cluster_id = ""
        self.draining = False
        self.started_us = 0
        self.refused_silently = 0  # batches sent with acks=0 that could not be written
        self.errors: Counter[str] = Counter()
        # Where deliveries from the page cache are put together; used between two awaits only.
        self.read_buffer = memoryview(bytearray(DELIVERY_PREFIX_BYTES + limits.DELIVERY_BYTES_MAX))
        self._sessions: dict[int, Session] = {}
        self._next_session = 1

    # ---- life

    async def start(self) -> None:
        self.started_us = self.clock.wall_us()
        self.cluster_id = await self._join_cluster()
        revision = await self.topics.load()
        self.tasks.spawn(self.topics.follow(revision), "follow topics")
        self.tasks.spawn(self._housekeeping(), "housekeeping")

    async def _join_cluster(self) -> str:
        """The cluster's id; the first broker there is makes it."""
        while (item := await self.store.get(CLUSTER_KEY)) is None:
            cluster_id = f"{self.random.getrandbits(128):032x}".encode()
            await self.store.transact([Compare(CLUSTER_KEY, 0)], [Put(CLUSTER_KEY, cluster_id)])
        return item.value.decode()

    async def _housekeeping(self) -> None:
        while True:
            await asyncio.sleep(self.config.retention_check_ms / 1000)
            await self.topics.retry()
            for partition in list(self.topics.by_handle.values()):
                try:
                    partition.housekeeping()
                except (CometError, OSError) as error:
                    log.warning("retention of %s/%d: %s", partition.topic, partition.index, error)

    async def drain(self) -> None:
        """Takes nothing new, tells every client, and lets acknowledgements that are owed go out."""
        if self.draining:
            return
        self.draining = True
        for session in list(self._sessions.values()):
            session.go_away("the broker is stopping")
        for partition in list(self.topics.by_handle.values()):
            await partition.sync()

    async def close(self) -> None:
        self.draining = True
        for session in list(self._sessions.values()):
            session.close()
        await self.topics.close(Draining("the broker has stopped", retry_after_ms=200))
        await self.tasks.close()

    # ---- sessions

    def open_session(self, peer: str) -> Session:
        if self.draining:
            raise Draining("this broker is about to stop", retry_after_ms=200)
        if len(self._sessions) >= limits.SESSIONS_MAX:
            raise LimitExceeded(f"this broker has {limits.SESSIONS_MAX} streams open, its limit", retry_after_ms=1000)
        session = Session(self, self._next_session, peer)
        self._sessions[session.number] = session
        self._next_session += 1
        return session

    def session_closed(self, session: Session) -> None:
        self._sessions.pop(session.number, None)

    def welcome(self) -> pb.Welcome:
        return pb.Welcome(
            cluster_id=self.cluster_id,
            broker_id=self.config.broker_id,
            version=comet.__version__,
            batch_bytes_max=limits.BATCH_BYTES_MAX,
            credit_bytes_max=limits.CREDIT_BYTES_MAX,
        )

    # ---- for sessions and unary calls

    async def resolve(self, partition: Partition, position: Position) -> int:
        """The offset a position stands for; a time is looked up on a worker thread."""
        if not isinstance(position, AtTime):
            return resolve(partition, position)
        try:
            found = await self.worker.run(lambda: partition.log.find_time(position.timestamp_us))
        except OSError as error:
            raise self.unreadable(partition, error) from error
        return max(partition.log.log_start, min(found, partition.high_watermark))

    def unreadable(self, partition: Partition, error: OSError) -> CometError:
        log.error("reading %s/%d: %s", partition.topic, partition.index, error)
        return storage_error(error)

    def count_error(self, error: CometError) -> None:
        self.errors[error.code] += 1

    def statistics(self) -> dict[str, Any]:
        """One snapshot of everything: metrics, dashboard and tests read the same numbers."""
        return {
            "cluster_id": self.cluster_id,
            "broker_id": self.config.broker_id,
            "version": comet.__version__,
            "started_us": self.started_us,
            "now_us": self.clock.wall_us(),
            "draining": self.draining,
            "topics": len(self.topics.by_name),
            "sessions": [session.statistics() for session in list(self._sessions.values())[:1000]],
            "session_count": len(self._sessions),
            "partitions": [partition.statistics() for partition in self.topics.by_handle.values()],
            "tail_bytes": self.tail_budget.used_bytes,
            "free_bytes": self.files.free_bytes(),
            "errors": dict(self.errors),
            "refused_silently": self.refused_silently,
            "problems": {name: error.message for name, error in self.topics.problems.items()},
            "unknown_folders": list(self.topics.unknown_folders),
            "failed_tasks": list(self.tasks.failed),
        }
