"""The broker without network, disk, clock and randomness, which are passed in.

    transports (rpc/, local) ──► Session, control, thin ──► TopicTable ──► Partition ──► Log
                                                              ▲              ▲  │
              metadata store ──► ClusterView ─────────────────┴── Leadership ┘  └─► followers
                             ◄── Membership, Controller                  Replicator ◄── leaders

        start   read the cluster's state, open the logs that are here      (then the server listens)
        join    register: from now on this broker may lead; waits for a metadata store that can be trusted (`guard`)
        drain   hand over leadership, take nothing new, send what is queued
        close   leave

Owns everything below it. One event loop, one thread; `worker` runs what blocks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import comet
from comet.errors import CometError, CoordinatorLoading, Draining, LimitExceeded, NotCoordinator
from comet.types import AtTime, Position
from comet.v1 import records_pb2 as pb
from comet.wire.frames import DELIVERY_PREFIX_BYTES
from comet_broker import limits
from comet_broker.admin.recovery import warn_others
from comet_broker.cluster.controller import Controller
from comet_broker.cluster.membership import Membership
from comet_broker.cluster.peers import Peers
from comet_broker.cluster.store_guard import StoreGuard
from comet_broker.cluster.view import ClusterView
from comet_broker.config import BrokerConfig
from comet_broker.coordination.coordinator import Coordinator
from comet_broker.coordination.transaction_partitions import TransactionPartitions
from comet_broker.core.cluster import BrokerRecord, PartitionId, partition_key, topic_key
from comet_broker.core.controller import LOSSY
from comet_broker.core.tail import TailBudget
from comet_broker.data_folder import (
    Identity,
    close_clean,
    loss_is_known,
    mark_records_missing,
    mark_restored,
    open_identity,
)
from comet_broker.failures import Failures, Guard, Kind
from comet_broker.metadata.store import MetadataStore, StoreUnavailable
from comet_broker.metrics import statistics
from comet_broker.metrics.histogram import Durations
from comet_broker.metrics.sampler import Recorder
from comet_broker.partitions.conflicts import Conflicts
from comet_broker.partitions.context import PartitionContext
from comet_broker.partitions.leader_eligibility import LeaderEligibility
from comet_broker.partitions.log_ends import LogEnds
from comet_broker.partitions.maintenance import Maintenance
from comet_broker.partitions.offset_lookup import check_settled, resolve
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.topics import TopicTable, storage_error
from comet_broker.ports import Clock, Files, Network, Process, Worker
from comet_broker.replication.follower import Replicator
from comet_broker.replication.leader import ReplicaSession
from comet_broker.sharing import ShareTable
from comet_broker.streams.session import Session
from comet_broker.tasks import Tasks

log = logging.getLogger(__name__)

DRAIN_S_MAX: Final = 5.0  # the longest wait of a stopping broker for other leaders
TOPIC_WAIT_S_MAX: Final = 5.0  # the longest wait of a call for a topic that is in the store and not in the view yet
REPLICA_SESSIONS_MAX: Final = 1_000


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
        network: Network,
        boot_id: str,
        process: Process | None = None,
    ) -> None:
        self.config = config
        self.port = config.port  # the server sets the real one when it was 0
        self.files = files
        self.clock = clock
        self.worker = worker
        self.random = random
        self.tasks = Tasks()
        self.failures = Failures(clock, self.tasks)
        self.failures = Failures(clock, self.tasks)
        self.store = self.guard = StoreGuard(
            store, me=config.broker_id, files=files, worker=worker, random=random, clock=clock, tasks=self.tasks
        )
        self.tail_budget = TailBudget(limits.TAIL_TOTAL_BYTES_MAX, limits.TAIL_PARTITION_BYTES_MAX)
        self.cluster_id = ""
        self.network = network
        self.peers = Peers(network)
        self.view = ClusterView(store, self.tasks, judge=self.guard)
        self.eligibility = LeaderEligibility(
            config.broker_id, store=self.store, view=self.view, tasks=self.tasks, failures=self.failures
        )
        self.identity: Identity
        self.membership: Membership
        self.controller: Controller
        self._boot_id = boot_id
        transaction_partitions = TransactionPartitions(self)
        self._context = PartitionContext(
            me=config.broker_id,
            clock=clock,
            worker=worker,
            tasks=self.tasks,
            tail_budget=self.tail_budget,
            store=self.store,
            replica_lag_s=config.replica_lag_ms / 1000,
            alive=self._alive,
            broker_epoch=self._broker_epoch,
            registered=self._registered,
            folders=self._folders,
            may_lead=self.eligibility.may_lead,
            whereabouts=self.whereabouts,
            disqualify=self.eligibility.disqualify,
            halt=self.eligibility.halt,
            unopened=self._unopened,
            requalify=self.eligibility.requalify,
            add_partition=transaction_partitions.add_partition,
            outcome=transaction_partitions.outcome,
        )
        self.conflicts = Conflicts(config.broker_id, store=store, view=self.view, tasks=self.tasks)
        self.log_ends: LogEnds
        self.replicator = Replicator(self)
        self.coordinator = Coordinator(self)
        self.topics = TopicTable(files=files, view=self.view, context=self._context, changed=self._changed)
        self.shares = ShareTable(self)
        self.draining = False
        self.started_us = 0
        self.refused_silently = 0  # batches sent with acks=0 that could not be written
        self.errors: Counter[str] = Counter()
        self.ack_durations = Durations()  # of batches: from the append to the acknowledgement
        self.deliver_durations = Durations()  # of deliveries from memory, some of them: from the append to the client
        self.measured = 0  # of those, since the last tick
        self._bytes_of_gone = Counter(received=0, sent=0)  # of streams that have ended
        # Deliveries from the page cache are built here; used between two awaits only.
        self.read_buffer = memoryview(bytearray(DELIVERY_PREFIX_BYTES + limits.DELIVERY_BYTES_MAX))
        self.recorder = Recorder(self, process)
        self._sessions: dict[int, Session] = {}
        self._replica_sessions: set[ReplicaSession] = set()
        self._suspected: set[int] = set()
        self._opened = False
        self._loaded = False
        self._loss_known = False  # or there was no loss
        self._controlling: asyncio.Task[None] | None = None
        self._next_session = 1

    # ---- life

    @property
    def exclusive(self) -> bool:
        """No other broker shares the metadata store: no other broker can lead a partition here."""
        return not self.config.etcd

    async def start(self) -> None:
        """Opens the logs of this broker, if the metadata store can be trusted. Nothing is led before `join`."""
        self.started_us = self.clock.wall_us()
        self.guard.open()
        self.cluster_id = await self.guard.find_cluster()
        self.identity = open_identity(
            self.files,
            broker_id=self.config.broker_id,
            cluster_id=self.cluster_id,
            boot_id=self._boot_id,
            random=self.random,
        )
        self.membership = Membership(
            self.config,
            store=self.store,
            view=self.view,
            clock=self.clock,
            tasks=self.tasks,
            record=self._record,
            entrance=self.guard,
        )
        self.log_ends = LogEnds(self.store, self.membership, self.tasks)
        self._loss_known = self.identity.clean
        self.membership.on_registered.append(self._joined)
        self.membership.on_lost.append(self._lease_expired)
        self.guard.distrusted.append(self._store_distrusted)
        self.controller = Controller(
            self.config,
            store=self.store,
            view=self.view,
            membership=self.membership,
            clock=self.clock,
            failures=self.failures,
        )
        self._opened = True
        self.recorder.start()
        if await self.view.check():
            await self._load()

    async def _load(self) -> None:
        """Loads the cluster view and opens the logs that it places here."""
        await self.view.load()
        self.guard.moved([partition_key(tp) for tp in self.view.state.partitions], self.view.state)
        if self.guard.older:
            self.identity = mark_restored(self.files, self.identity)
            self._loss_known = False
        await self.topics.load()
        if self.topics.short and self.identity.clean:
            self.identity = mark_records_missing(self.files, self.identity)
            self._loss_known = False
        self.view.listen(lambda keys: self.guard.moved(keys, self.view.state))
        self.view.listen(self.topics.view_moved)
        self.view.listen(self._marked)
        self.tasks.spawn(self.view.follow(), "follow the cluster")  # these two restart by themselves
        self.tasks.spawn(self.topics.follow(), "follow topics")
        self._loaded = True

    async def join(self) -> None:
        """Registers this broker, reachable at `port`; returns when it is a member of the cluster."""
        if not self._loaded:
            await self._load()
        await self.membership.register()
        await self.view.applied.wait(self.membership.broker_epoch)
        await self.note_loss_known()
        self._controlling = self.tasks.keep(self.controller.run, "controller")
        self.coordinator.start()
        maintenance = Maintenance(self)
        self.tasks.keep(self.recorder.run, "record")
        self.tasks.keep(maintenance.run_housekeeping, "housekeeping")
        self.tasks.keep(maintenance.run_replicas, "look after replicas")
        self.tasks.keep(lambda: self.guard.keep(self.controller.acting), "keep the floor")
        for partition in list(self.topics.by_handle.values()):
            self.eligibility.requalify(partition)

    def _record(self) -> BrokerRecord:
        return BrokerRecord(
            host=self.config.advertised_host or self.config.host,
            port=self.config.advertised_port or self.port,
            version=comet.__version__,
            folder=self.identity.folder,
            lease=0,  # filled in by the membership
            rack=self.config.rack,
            clean=self.identity.clean or self._loss_known,  # a later registration: the loss is known
            adopted=self.identity.adopted,
        )

    async def note_loss_known(self) -> None:
        """Waits until the controller has recorded the loss. Until then, later starts must report it."""
        if self._loss_known or not self.membership.broker_epoch:
            return
        me, mine, record = self.config.broker_id, (LOSSY, self.membership.broker_epoch), self._record()
        for found in self.view.state.partitions.values():
            if found.value.folder_replaced(me, record):
                continue  # the folder's id shows at every start that its data is missing
            if found.value.in_sync.get(me, LOSSY) not in mine or found.value.eligible.get(me, LOSSY) not in mine:
                return
        try:
            await self.worker.run(lambda: loss_is_known(self.files, self.identity))
        except OSError as error:
            log.warning("cannot write that the loss is accounted for: %s", error)
        else:
            self._loss_known = True

    async def drain(self) -> None:
        """Hands over leadership, takes nothing new, notifies every client, and sends what is queued."""
        if self.draining:
            return
        await self._hand_over()
        self.membership.final = True
        self.draining = True
        for session in list(self._sessions.values()):
            session.go_away("the broker is stopping")
        for partition in list(self.topics.by_handle.values()):
            with self.guarded(partition, "the last sync"):
                await partition.sync()

    async def _hand_over(self) -> None:
        """Asks the controller for other leaders, and waits until they lead, or cannot."""
        if self.exclusive or len(self.view.state.brokers) < 2:
            return
        try:
            async with asyncio.timeout(DRAIN_S_MAX):
                await self.membership.set_draining()
                while any(self._can_move(partition) for partition in self.topics.by_handle.values()):
                    await self.topics.applied.wait(self.topics.applied.value + 1)
        except (TimeoutError, StoreUnavailable) as error:
            log.warning("stops without a handover of leadership: %r", error)

    @staticmethod
    def _can_move(partition: Partition) -> bool:
        return partition.leadership is not None and len(partition.leadership.replicas.state.in_sync) > 1

    async def close(self) -> None:
        self.draining = True
        for session in [*self._sessions.values(), *self._replica_sessions]:
            with self.failures.guard(Kind.TASK, f"stream {session.number}", "close"):
                session.close()
        self.coordinator.close(Draining("the broker has stopped", retry_after_ms=200))
        self.shares.close(Draining("the broker has stopped", retry_after_ms=200))
        await self.replicator.close()
        await self.topics.close(Draining("the broker has stopped", retry_after_ms=200))
        if self._opened:
            if any(partition.log.failed is not None for partition in self.topics.by_handle.values()):
                log.warning("a log has failed: the stop is not clean")
            elif self._loss_known:
                close_clean(self.files, self.identity)
            if self._controlling is not None:
                self._controlling.cancel()
                await asyncio.wait([self._controlling])
            await self.membership.leave()
            await self.guard.write()
        await self.tasks.close()
        await self.peers.close()

    # ---- the cluster

    def _alive(self) -> bool:
        return self.membership.alive()

    def _broker_epoch(self) -> int:
        return self.membership.broker_epoch

    def _registered(self) -> dict[int, int]:
        return {broker: found.create_revision for broker, found in self.view.state.brokers.items()}

    def _folders(self) -> dict[int, str]:
        return {broker: found.value.folder for broker, found in self.view.state.brokers.items()}

    def _joined(self) -> None:
        self.replicator.renew()
        for partition in list(self.topics.by_handle.values()):
            with self.guarded(partition, "registration"):
                partition.reconsider()
                self.log_ends.update(partition)

    def _changed(self, partition: Partition) -> None:
        """Updates the replicator and the log ends when a partition's leader changes, or whether it is here."""
        if partition.state is not None and partition.closed is None:
            self.guard.wrote(partition.tp, partition.log.epochs.last_epoch)
        self.replicator.update(partition)
        self.log_ends.update(partition)
        if partition.named:
            self.conflicts.settled(partition)

    def _lease_expired(self) -> None:
        """Stops leading and coordinating when the lease has expired: the cluster may take this broker for dead."""
        self.coordinator.give_up(NotCoordinator("this broker's lease has expired", retry_after_ms=100))
        for partition in list(self.topics.by_handle.values()):
            if not partition.available:
                with self.guarded(partition, "the end of the lease"):
                    partition.step_down("this broker's lease has expired")

    def guarded(self, partition: Partition, step: str) -> Guard:
        """Guards a step of one partition in a loop over many: an unexpected error stops that partition."""
        halt = self.eligibility.halt
        return self.failures.guard(Kind.PARTITION, str(partition), step, lambda error: halt(partition, error))

    def _store_distrusted(self) -> None:
        """Stops leading, following and coordinating: the metadata store cannot be trusted."""
        why = "the metadata store is not trusted"
        self.view.interrupt()
        self.coordinator.give_up(CoordinatorLoading(why, retry_after_ms=1000))
        self.membership.suspend()
        for partition in list(self.topics.by_handle.values()):
            partition.step_down(why)
        self.replicator.renew()
        self.tasks.spawn(warn_others(self), "warn others")

    def whereabouts(self, broker: int) -> dict[str, str]:
        """The address of a broker, as details of an error."""
        found = self.view.state.brokers.get(broker)
        if found is None:
            return {}
        return {"leader": str(broker), "host": found.value.host, "port": str(found.value.port)}

    def address_of(self, broker: int) -> str | None:
        found = self.view.state.brokers.get(broker)
        return None if found is None else f"{found.value.host}:{found.value.port}"

    async def suspect(self, broker: int) -> None:
        """Revokes a broker's registration after its stream broke, if its process is certainly gone."""
        address = self.address_of(broker)
        if address is None or broker == self.config.broker_id or broker in self._suspected:
            return
        self._suspected.add(broker)
        try:
            broker_epoch = self.view.state.broker_epoch(broker)
            if await self.network.refused(address) and self.view.state.broker_epoch(broker) == broker_epoch:
                log.info("broker %d is gone: no process listens at %s", broker, address)
                await self.membership.revoke(broker, broker_epoch)
        except StoreUnavailable as error:
            log.info("cannot report that broker %d is gone: %s", broker, error)
        finally:
            self._suspected.discard(broker)

    def _unopened(self, tp: PartitionId, reason: str) -> None:
        self.eligibility.unopened(tp, reason, lambda: not self.topics.is_open(tp))

    def _marked(self, keys: Sequence[str]) -> None:
        partitions = list(self.topics.by_handle.values())
        self.eligibility.marked(keys, partitions)
        for partition in partitions:
            if partition.log.lost:
                with self.guarded(partition, "following"):
                    self.replicator.mend(partition)

    async def wait_for_topic(self, name: str) -> None:
        """Waits a moment for a topic that the metadata store has and the view has not."""
        try:
            async with asyncio.timeout(TOPIC_WAIT_S_MAX):
                item = await self.store.get(topic_key(name))
                if item is not None:
                    await self.topics.applied.wait(item.mod_revision)
        except (StoreUnavailable, TimeoutError, ValueError):
            return

    def open_replica_session(self, peer: str) -> ReplicaSession:
        if len(self._replica_sessions) >= REPLICA_SESSIONS_MAX:
            raise LimitExceeded(f"limit of {REPLICA_SESSIONS_MAX} followers reached", retry_after_ms=1000)
        session = ReplicaSession(self, self._next_session, peer)
        self._next_session += 1
        self._replica_sessions.add(session)
        return session

    def replica_session_closed(self, session: ReplicaSession) -> None:
        self._replica_sessions.discard(session)
        if session.follower and not self.draining:
            self.tasks.spawn(self.suspect(session.follower), f"look for broker {session.follower}")

    # ---- sessions

    def open_session(self, peer: str) -> Session:
        if self.draining:
            raise Draining("this broker is about to stop", retry_after_ms=200)
        self.guard.check_trust()
        if len(self._sessions) >= limits.SESSIONS_MAX:
            raise LimitExceeded(f"limit of {limits.SESSIONS_MAX} streams reached on this broker", retry_after_ms=1000)
        session = Session(self, self._next_session, peer)
        self._sessions[session.number] = session
        self._next_session += 1
        return session

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    def session_closed(self, session: Session) -> None:
        if self._sessions.pop(session.number, None) is not None:
            self._bytes_of_gone["received"] += session.received_bytes
            self._bytes_of_gone["sent"] += session.sent_bytes

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
        """The offset of a position; a time is looked up on a worker thread."""
        if not isinstance(position, AtTime):
            return resolve(partition, position)
        check_settled(partition)
        try:
            found = await self.worker.run(lambda: partition.log.segments.find_time(position.timestamp_us))
        except OSError as error:
            raise self.unreadable(partition, error) from error
        return max(partition.log.log_start, min(found, partition.high_watermark))

    def unreadable(self, partition: Partition, error: OSError) -> CometError:
        log.error("cannot read %s: %s", partition, error)
        return storage_error(error)

    def count_error(self, error: CometError) -> None:
        self.errors[error.code] += 1

    def statistics(self) -> dict[str, Any]:
        """One snapshot of everything: metrics, dashboard and tests read the same numbers."""
        return statistics.statistics_of(self, self._sessions.values(), self._replica_sessions)

    def summary(self) -> dict[str, Any]:
        """The part of it that does not grow with the number of partitions and clients."""
        return statistics.summary_of(self, self._sessions.values(), self._bytes_of_gone)
