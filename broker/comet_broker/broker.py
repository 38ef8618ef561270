"""The broker without network, disk, clock and randomness, which are passed in: the composition root.

    transports (rpc/) ──► Session, unary calls ──► TopicTable ──► Partition ──► Log
                                                      ▲              ▲  │
      metadata store ──► ClusterView ─────────────────┴── LeaderState┘  └─► followers
                     ◄── Membership, Controller                  Replicator ◄── leaders

        start   read the cluster's state, open the logs that are here      (then the server listens)
        join    register: from now on this broker may lead; waits for a metadata store that can be trusted (`guard`)
        drain   hand over leadership, take nothing new, send what is queued
        close   leave

Builds the parts, connects their callbacks, starts and closes them in order. Each part is given what it needs, and does
not know the broker. One event loop, one thread; `worker` runs what blocks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from comet.errors import CometError, CoordinatorLoading, Draining, NotCoordinator
from comet_broker import limits
from comet_broker.access.client_access import EVERYTHING, ClientAccess
from comet_broker.access.control import AccessControl
from comet_broker.access.credentials import Credentials
from comet_broker.access.keys import AccessKeys
from comet_broker.access.quotas import Quotas
from comet_broker.access.tokens import Tokens, issuer_of
from comet_broker.admin.access_keys import AdminAccessKeys
from comet_broker.admin.calendars import AdminCalendars, Calendars
from comet_broker.admin.metrics import AdminMetrics
from comet_broker.admin.quotas import AdminQuotas
from comet_broker.admin.recovery import AdminRecovery, warn_others
from comet_broker.admin.resume import resume
from comet_broker.admin.rules import AdminRules
from comet_broker.admin.service import AdminService
from comet_broker.audit.acts import recorded
from comet_broker.audit.log import AuditLog
from comet_broker.audit.topic import AuditTopic
from comet_broker.cluster.controller import Controller
from comet_broker.cluster.membership import Membership
from comet_broker.cluster.peers import Peers
from comet_broker.cluster.registration import Registration
from comet_broker.cluster.store_guard import StoreGuard
from comet_broker.cluster.suspects import Suspects
from comet_broker.cluster.view import ClusterView
from comet_broker.config import BrokerConfig
from comet_broker.coordination.admin import GroupAdmin
from comet_broker.coordination.coordinator import Coordinator
from comet_broker.coordination.ends import LocalEnds
from comet_broker.coordination.founding import Founding
from comet_broker.coordination.group_frames import MemberStream
from comet_broker.coordination.logs import Logs
from comet_broker.coordination.markers import Markers
from comet_broker.coordination.service import Coordination
from comet_broker.coordination.transaction_calls import TransactionCalls
from comet_broker.core.cluster import PartitionId, partition_key
from comet_broker.core.tail import TailBudget
from comet_broker.env import Env
from comet_broker.key_values.views import KeyViews
from comet_broker.memory.guard import MemoryGuard, Sheddable
from comet_broker.metadata.store import MetadataStore
from comet_broker.metrics.meter import RequestMeter
from comet_broker.metrics.sampler import Recorder, SampledParts
from comet_broker.metrics.statistics import BrokerStatistics, ListenerCertificate
from comet_broker.partitions.conflicts import Conflicts
from comet_broker.partitions.context import PartitionContext
from comet_broker.partitions.drain import Drain
from comet_broker.partitions.leader_eligibility import LeaderEligibility
from comet_broker.partitions.log_ends import LogEnds
from comet_broker.partitions.log_reader import LogReader
from comet_broker.partitions.maintenance import Maintenance
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.topics import TopicTable
from comet_broker.ports import Clock, Files, Network, Process, Worker
from comet_broker.replication.follower import FollowerContext, Replicator
from comet_broker.replication.leader import ReplicaContext, ReplicaSession
from comet_broker.replication.replica_sessions import ReplicaSessions
from comet_broker.rpc.methods import Services, methods
from comet_broker.schedules.calls import AdminSchedules
from comet_broker.schedules.scheduler import Scheduler
from comet_broker.schedules.targets import TopicTargets
from comet_broker.sharing.calls import AcquireCalls
from comet_broker.sharing.stream import Sharing
from comet_broker.sharing.table import ShareTable
from comet_broker.storage.data_folder import DataFolder
from comet_broker.streams.context import SessionContext
from comet_broker.streams.key_frames import KeyFrames
from comet_broker.streams.session import Session
from comet_broker.streams.sessions import Sessions
from comet_broker.streams.unary_records import UnaryRecords

log = logging.getLogger(__name__)


class Broker:
    """Implements rpc.methods.Endpoint."""

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
        memory_bytes = config.memory_bytes_max or (process and process.memory_limit_bytes()) or limits.MEMORY_BYTES
        self.env = env = Env.of(config, clock=clock, worker=worker, random=random, memory_bytes=memory_bytes)
        self.in_flight = env.in_flight
        self.memory_bytes = memory_bytes
        self.calls: list[Sheddable] = []
        self.certificates: list[ListenerCertificate] = []  # of listeners with TLS
        self._memory: MemoryGuard | None = None
        if process is not None:
            self._memory = MemoryGuard(process, worker, memory_bytes, env.in_flight, self.calls)
        self.folder = DataFolder(files, worker, broker_id=env.me, boot_id=boot_id)
        self.registration = Registration(config, self.folder)
        self.reader = LogReader(worker)
        self.meter = RequestMeter()
        self._started_us = 0
        self._opened = False
        self._loaded = False
        self._controlling: asyncio.Task[None] | None = None
        self._build_cluster(store, network)
        tail_budget = TailBudget(limits.TAIL_TOTAL_BYTES_MAX, limits.TAIL_PARTITION_BYTES_MAX)
        self._build_partitions(tail_budget)
        self._connect()
        views = KeyViews(env, self.reader)
        records = UnaryRecords(
            env,
            view=self.view,
            peers=self.peers,
            topics=self.topics,
            reader=self.reader,
            drain=self._drain,
            views=views,
        )
        ends = self._build_groups(records)
        self._build_streams(records)
        self._calendars = Calendars(self.view)
        self._targets = TopicTargets(self.view, self.access)
        self.scheduler = Scheduler(
            env,
            topics=self.topics,
            views=views,
            publish=records.publish,
            transactions=self._transaction_calls,
            targets=self._targets,
            calendars=self._calendars,
        )
        self._build_statistics(tail_budget, process)
        services = self._services(records, ends)
        self.admin = services.admin
        self.methods = methods(services, self.guard.check_trust)
        self._audit_topic: AuditTopic | None = None
        if self.audit is not None:
            self.methods = recorded(self.audit, self.methods)
            self._audit_topic = AuditTopic(
                self.audit, env, view=self.view, publish=records.publish, create=services.admin.create_topic
            )

    # ---- the parts

    def _build_cluster(self, store: MetadataStore, network: Network) -> None:
        env = self.env
        self.guard = StoreGuard(
            store,
            me=env.me,
            files=self.folder.files,
            worker=env.worker,
            random=env.random,
            clock=env.clock,
            tasks=env.tasks,
        )
        self.peers = Peers(network)
        self.audit = AuditLog(env.me, env.clock) if env.config.audited else None
        self.access = AccessControl(env.config.superusers, self.audit, gateways=env.config.gateways)
        issuer = issuer_of(env.config)
        self.access_keys = AccessKeys(env.config.access_keys, env.clock)
        self.tokens = None if issuer is None else Tokens(issuer, env.clock)
        self.credentials = Credentials(self.access_keys, self.tokens, env.clock)
        self.quotas = Quotas(env.clock)
        self.credentials.on_refused.append(self.refused)
        self.view = ClusterView(store, env.tasks, judge=self.guard)
        self.membership = Membership(
            env.config,
            store=self.guard,
            view=self.view,
            clock=env.clock,
            tasks=env.tasks,
            record=self.registration.record,
            entrance=self.guard,
        )
        self.conflicts = Conflicts(env.me, store=store, view=self.view, tasks=env.tasks)
        self.log_ends = LogEnds(self.guard, self.membership, env.tasks)
        self.eligibility = LeaderEligibility(
            env.me, store=self.guard, view=self.view, tasks=env.tasks, failures=env.failures
        )
        self.controller = Controller(
            env.config,
            store=self.guard,
            view=self.view,
            membership=self.membership,
            clock=env.clock,
            failures=env.failures,
        )
        self._suspects = Suspects(view=self.view, membership=self.membership, network=network)
        self.replicator = Replicator(
            FollowerContext(
                env=env,
                view=self.view,
                network=network,
                membership=self.membership,
                suspects=self._suspects,
                eligibility=self.eligibility,
                conflicts=self.conflicts,
                log_ends=self.log_ends,
            )
        )

    def _build_partitions(self, tail_budget: TailBudget) -> None:
        env = self.env
        context = PartitionContext(
            me=env.me,
            clock=env.clock,
            worker=env.worker,
            tasks=env.tasks,
            in_flight=env.in_flight,
            tail_budget=tail_budget,
            store=self.guard,
            replica_lag_s=env.config.replica_lag_ms / 1000,
            compacting=asyncio.Lock(),
            compaction_rate=env.config.compaction_rate,
            compaction_memory=env.config.compaction_memory,
            alive=self.membership.alive,
            broker_epoch=lambda: self.membership.broker_epoch,
            registered=self.view.broker_epochs,
            folders=self.view.folders,
            may_lead=self.eligibility.may_lead,
            whereabouts=self.view.whereabouts,
            disqualify=self.eligibility.disqualify,
            halt=self.eligibility.halt,
            unopened=self._unopened,
            requalify=self.eligibility.requalify,
            missing=self.folder,
            add_partition=self._add_partition,
            outcome=self._outcome,
        )
        self.topics = TopicTable(files=self.folder.files, view=self.view, context=context, changed=self._changed)
        self._drain = Drain(
            topics=self.topics, view=self.view, membership=self.membership, eligibility=self.eligibility
        )

    def _build_groups(self, records: UnaryRecords) -> LocalEnds:
        env, view, peers, topics = self.env, self.view, self.peers, self.topics
        self.shares = ShareTable(
            env,
            store=self.guard,
            view=view,
            reader=self.reader,
            broker_epoch=lambda: self.membership.broker_epoch,
            draining=lambda: self.draining,
            publish=records.publish,
        )
        ends = LocalEnds(env.tasks, topics=topics, reader=self.reader, share_status=self.shares.find)
        self.coordinator = Coordinator(
            env,
            store=self.guard,
            view=view,
            membership=self.membership,
            draining=lambda: self.draining,
            logs=Logs(env, view=view, peers=peers, topics=topics, answer=ends.answer),
            markers=lambda: Markers(env.me, store=self.guard, view=view, peers=peers, topics=topics),
        )
        self._transaction_calls = TransactionCalls(env, coordinator=self.coordinator, peers=peers)
        return ends

    def _build_streams(self, records: UnaryRecords) -> None:
        env = self.env
        context = SessionContext(
            env=env,
            topics=self.topics,
            reader=self.reader,
            meter=self.meter,
            check_draining=self._drain.check,
            cluster_id=lambda: self.cluster_id,
            metadata=lambda request: self.admin.fetch_metadata(request),  # noqa: PLW0108 - it is made later
            fetch=records.fetch_now,
            keys=lambda replies, answers, client: KeyFrames(replies, answers, client, records),
            batch_bytes_max=min(limits.BATCH_BYTES_MAX, self.message_bytes_max - limits.FRAME_BYTES_MAX),
            members=lambda replies: MemberStream(replies, self.coordinator, env.failures),
            sharing=lambda replies, feed: Sharing(replies, feed, topics=self.topics, table=self.shares),
        )
        self._sessions = Sessions(partial(Session, context), self.quotas, env.failures, env.clock)
        self.calls.append(self._sessions)
        self.access.on_restricted.append(self._sessions.end_restricted)
        self.access_keys.on_ended.append(self._sessions.end_holders)
        if self.tokens is not None:
            self.tokens.on_ended.append(self._sessions.end_holders)
        self.credentials.on_tick.append(self._sessions.end_expired)
        self._drain.on_draining.append(self._sessions.go_away)
        replica_context = ReplicaContext(
            env=env,
            cluster_id=lambda: self.cluster_id,
            topics=self.topics,
            reader=self.reader,
            meter=self.meter,
            eligibility=self.eligibility,
        )
        self._replica_sessions = ReplicaSessions(
            partial(ReplicaSession, replica_context), env.failures, self._follower_vanished
        )
        self.calls.append(self._replica_sessions)

    def _build_statistics(self, tail_budget: TailBudget, process: Process | None) -> None:
        self.recorder = Recorder(
            SampledParts(
                env=self.env,
                view=self.view,
                topics=self.topics,
                meter=self.meter,
                process=process,
                sessions=lambda: len(self._sessions),
                lag=self.coordinator.lag,
            )
        )
        self._statistics = BrokerStatistics(
            env=self.env,
            view=self.view,
            guard=self.guard,
            membership=self.membership,
            drain=self._drain,
            topics=self.topics,
            tail_budget=tail_budget,
            files=self.folder.files,
            meter=self.meter,
            recorder=self.recorder,
            sessions=self._sessions,
            started_us=lambda: self._started_us,
            certificates=self.certificates,
            details={
                "controller": self.controller.statistics,
                "links": self.replicator.statistics,
                "followers": self._replica_sessions.statistics,
                "shares": self.shares.statistics,
                "schedules": self.scheduler.statistics,
                "coordinates": self.coordinator.statistics,
                "memory": self._memory_statistics,
                "filters": self.env.filter_time.statistics,
                "quotas": self.quotas.statistics,
                "audit": self._audit_statistics,
            },
        )

    def _services(self, records: UnaryRecords, ends: LocalEnds) -> Services:
        env, view, peers, topics, coordinator = self.env, self.view, self.peers, self.topics, self.coordinator
        founding = Founding(env, coordinator=coordinator, peers=peers)
        group_admin = GroupAdmin(
            env,
            store=self.guard,
            view=view,
            peers=peers,
            coordinator=coordinator,
            delete_shares=self.shares.delete,
        )
        return Services(
            admin=AdminService(
                env,
                store=self.guard,
                view=view,
                peers=peers,
                topics=topics,
                rates=self.recorder.rates,
                resume=lambda: resume(env, topics, self.eligibility, coordinator),
                groups_reading=group_admin.reading,
            ),
            records=records,
            coordination=Coordination(
                coordinator=coordinator,
                founding=founding,
                ends=ends,
                topics=topics,
                view=view,
                transactions=self._transaction_calls,
            ),
            groups=group_admin,
            acquire=AcquireCalls(
                env, view=view, peers=peers, topics=topics, table=self.shares, founding=founding, drain=self._drain
            ),
            metrics=AdminMetrics(
                env.me,
                topics=topics,
                peers=peers,
                coordinator=coordinator,
                recorder=self.recorder,
                statistics=self._statistics,
            ),
            rules=AdminRules(env, store=self.guard, view=view, control=self.access),
            access_keys=AdminAccessKeys(env, store=self.guard, view=view, control=self.access, keys=self.access_keys),
            quotas=AdminQuotas(env, store=self.guard, view=view),
            calendars=AdminCalendars(env, store=self.guard, view=view),
            schedules=AdminSchedules(
                env,
                view=view,
                peers=peers,
                topics=topics,
                drain=self._drain,
                scheduler=self.scheduler,
                targets=self._targets,
                calendars=self._calendars,
                create=lambda request: self.admin.create_topic(request),  # noqa: PLW0108 - it is made later
            ),
            recovery=AdminRecovery(
                env.me,
                random=env.random,
                guard=self.guard,
                view=view,
                peers=peers,
                topics=topics,
                folder_id=lambda: self.folder.identity.folder,
                address=lambda: self.registration.brokers_address,
            ),
        )

    # ---- life

    async def start(self) -> None:
        """Opens the logs of this broker, if the metadata store can be trusted. Leadership begins with `join`."""
        self._started_us = self.env.clock.wall_us()
        self.guard.open()
        self.view.cluster_id = await self.guard.find_cluster()
        self.folder.open(self.cluster_id, self.env.random)
        self._opened = True
        self.recorder.start()
        if self._memory is not None:
            self.env.tasks.keep(self._memory.run, "guard the memory")
        if await self.view.check():
            await self._load()

    async def _load(self) -> None:
        """Loads the cluster view and opens the logs that it places here."""
        await self.view.load()
        self.guard.moved([partition_key(tp) for tp in self.view.state.partitions], self.view.state)
        if self.guard.older:
            self.folder.restored()
        await self.topics.load()
        self._moved_access()
        self.view.listen(lambda keys: self.guard.moved(keys, self.view.state))
        self.view.listen(lambda _: self._moved_access())
        self.view.listen(self.topics.view_moved)
        self.view.listen(self.scheduler.view_moved)
        self.view.listen(self._marked)
        self.env.tasks.spawn(self.view.follow(), "follow the cluster")  # these two restart by themselves
        self.env.tasks.spawn(self.topics.follow(), "follow topics")
        self.env.tasks.spawn(self._sessions.watch(), "watch clients")
        self._loaded = True

    def _moved_access(self) -> None:
        self.access.moved(self.view.state)
        self.access_keys.moved(self.view.state)
        self.quotas.moved(self.view.state)

    async def join(self) -> None:
        """Registers this broker, reachable at the registration's port; returns when it is a member of the cluster."""
        if not self._loaded:
            await self._load()
        await self.membership.register()
        await self.view.applied.wait(self.membership.broker_epoch)
        await self._note_loss_known()
        tasks = self.env.tasks
        self._controlling = tasks.keep(self.controller.run, "controller")
        self.coordinator.start()
        maintenance = Maintenance(self.env, self.topics, self._note_loss_known)
        tasks.keep(self.recorder.run, "record")
        tasks.keep(self.scheduler.run, "keep schedules")
        tasks.keep(maintenance.run_housekeeping, "housekeeping")
        tasks.keep(maintenance.run_replicas, "look after replicas")
        tasks.keep(lambda: self.guard.keep(self.controller.acting), "keep the floor")
        if self.audit is not None and self._audit_topic is not None:
            tasks.keep(self.audit.follow, "report repetitions")
            tasks.keep(self._audit_topic.run, "write the audit log")
        for partition in list(self.topics.by_handle.values()):
            self.eligibility.requalify(partition)

    async def drain(self) -> None:
        """Hands over leadership, takes nothing new, notifies every client, and sends what is queued."""
        if self.audit is not None and self._audit_topic is not None:
            self.audit.report_rest()
            await self._audit_topic.flush(limits.AUDIT_FLUSH_S_MAX)
        await self._drain.run()

    async def close(self) -> None:
        self._drain.stop()
        self._sessions.close()
        self._replica_sessions.close()
        self.coordinator.close(Draining("the broker has stopped", retry_after_ms=200))
        self.shares.close(Draining("the broker has stopped", retry_after_ms=200))
        await self.replicator.close()
        await self.topics.close(Draining("the broker has stopped", retry_after_ms=200))
        if self._opened:
            if any(partition.log.failed is not None for partition in self.topics.by_handle.values()):
                log.warning("a log has failed: the stop is not clean")
            else:
                self.folder.close_clean()
            if self._controlling is not None:
                self._controlling.cancel()
                await asyncio.wait([self._controlling])
            await self.membership.leave()
            await self.guard.write()
        await self.env.tasks.close()
        await self.peers.close()

    # ---- for transports and the server

    def open_session(self, peer: str, access: ClientAccess = EVERYTHING, transport: str = "grpc") -> Session:
        self._drain.check()
        self.guard.check_trust()
        return self._sessions.open(peer, access, transport)

    def open_replica_session(self, peer: str, certified: int | None = None) -> ReplicaSession:
        return self._replica_sessions.open(peer, certified)

    @property
    def message_bytes_max(self) -> int:
        """The largest message that it takes."""
        return min(limits.MESSAGE_BYTES_MAX, int(limits.MESSAGE_SHARE * self.memory_bytes))

    def refused(self, peer: str, error: CometError) -> None:
        """Called for a call without valid credentials, at any listener."""
        self.meter.count_auth_failure(error)
        if self.audit is not None:
            self.audit.refused(peer, error)

    def look_at_memory(self) -> None:
        if self._memory is not None:
            self._memory.look_now()

    @property
    def broker_id(self) -> int:
        return self.env.me

    @property
    def cluster_id(self) -> str:
        return self.view.cluster_id

    @property
    def draining(self) -> bool:
        return self._drain.draining

    def statistics(self) -> dict[str, Any]:
        """One snapshot of everything: metrics, dashboard and tests read the same numbers."""
        return self._statistics.full()

    def _memory_statistics(self) -> dict[str, Any]:
        guard = {} if self._memory is None else self._memory.statistics()
        return {"in_flight": self.in_flight.statistics(), **guard}

    def _audit_statistics(self) -> dict[str, Any]:
        if self.audit is None or self._audit_topic is None:
            return {}
        return {**self.audit.statistics(), "problem": self._audit_topic.problem}

    # ---- callbacks between the parts

    def _connect(self) -> None:
        self.membership.on_registered.append(self._joined)
        self.membership.on_lost.append(self._lease_expired)
        self.guard.distrusted.append(self._store_distrusted)

    async def _note_loss_known(self) -> None:
        await self.registration.note_loss_known(self.view, self.membership.broker_epoch)

    def _joined(self) -> None:
        self.replicator.renew()
        for partition in list(self.topics.by_handle.values()):
            with self.eligibility.guard(partition, "registration"):
                partition.reconsider()
                self.log_ends.update(partition)

    def _changed(self, partition: Partition) -> None:
        """Updates the replicator and the log ends when a partition's leader changes, or whether it is here."""
        if partition.state is not None and partition.closed is None:
            self.guard.wrote(partition.tp, partition.log.epochs.last_epoch)
        self.replicator.update(partition)
        self.log_ends.update(partition)
        self.scheduler.partition_changed(partition)
        if partition.named:
            self.conflicts.settled(partition)

    def _lease_expired(self) -> None:
        """Stops leading and coordinating when the lease has expired: the cluster may take this broker for dead."""
        self.coordinator.give_up(NotCoordinator("this broker's lease has expired", retry_after_ms=100))
        for partition in list(self.topics.by_handle.values()):
            if not partition.available:
                with self.eligibility.guard(partition, "the end of the lease"):
                    partition.step_down("this broker's lease has expired")

    def _store_distrusted(self) -> None:
        """Stops leading, following and coordinating: the metadata store cannot be trusted."""
        why = "the metadata store is not trusted"
        self.view.interrupt()
        self.coordinator.give_up(CoordinatorLoading(why, retry_after_ms=1000))
        self.membership.suspend()
        for partition in list(self.topics.by_handle.values()):
            partition.step_down(why)
        self.replicator.renew()
        self.env.tasks.spawn(warn_others(self.env.me, self.guard, self.peers), "warn others")

    def _follower_vanished(self, broker: int) -> None:
        if not self.draining:
            self.env.tasks.spawn(self._suspects.check(broker), f"look for broker {broker}")

    # The coordinator, which is built later, needs the topics.
    async def _add_partition(self, producer_id: int, epoch: int, topic_id: bytes, index: int) -> None:
        await self._transaction_calls.add_partition(producer_id, epoch, topic_id, index)

    async def _outcome(self, producer_id: int, epoch: int) -> bool | None:
        return await self._transaction_calls.outcome(producer_id, epoch)

    def _unopened(self, tp: PartitionId, reason: str) -> None:
        self.eligibility.unopened(tp, reason, lambda: not self.topics.is_open(tp))

    def _marked(self, keys: Sequence[str]) -> None:
        partitions = list(self.topics.by_handle.values())
        self.eligibility.marked(keys, partitions)
        for partition in partitions:
            if partition.log.lost:
                with self.eligibility.guard(partition, "following"):
                    self.replicator.mend(partition)
