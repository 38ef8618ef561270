"""Topics and the cluster: the Admin service and FetchMetadata.

Every change is one compare-and-swap in the metadata store; the view follows the store, the controller places new
partitions, and the answer goes out when this broker's view shows the change. If the store does not answer, the outcome
is unknown, and so says the error. Requests that only a leader can serve are forwarded to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from google.protobuf.message import Message

from comet.errors import (
    BrokerNotFound,
    CometError,
    InvalidArgument,
    LimitExceeded,
    NotLeader,
    PartitionNotFound,
    Timeout,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from comet.settings.topic import REPLICAS_MAX, TopicConfig, TopicDefaults
from comet.types import check_topic_name
from comet.v1 import admin_pb2 as admin
from comet.v1 import records_pb2 as records_pb
from comet.v1 import types_pb2 as types
from comet.wire.protobuf import (
    defaults_to_pb,
    settings_from_pb,
    topic_to_pb,
)
from comet_broker import limits
from comet_broker.access.client_access import caller, caller_is_local
from comet_broker.admin import effects
from comet_broker.cluster.peers import Peers
from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import (
    DELETED,
    DRAINS,
    NO_BROKER,
    ClusterState,
    PartitionState,
    Tombstone,
    TopicSpec,
    partition_key,
    topic_key,
)
from comet_broker.core.forcing import forced
from comet_broker.core.retention import shortens
from comet_broker.core.topic_config import SourcedConfig, altered, created, topic_defaults
from comet_broker.env import Env
from comet_broker.metadata.store import (
    Compare,
    Delete,
    KeyValue,
    MetadataStore,
    Put,
    StoreUnavailable,
    TransactionResult,
)
from comet_broker.metrics import statistics
from comet_broker.partitions.delete_records import deleted_end
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.topics import TopicTable

log = logging.getLogger(__name__)
M = TypeVar("M", bound=Message)

SWAP_ATTEMPTS_MAX = 16
PLACED_S_MAX = 10.0  # the longest wait for the controller to place new partitions
REQUEST_S_MAX = 2.0  # timeout of a request to another broker


GroupsReading = Callable[[str], Awaitable[tuple[list[admin.GroupSummary], bool]]]


class AdminService:
    """The coroutines behind the unary calls, protobuf in and out; raises CometErrors.

    rates    records and bytes in per second of a partition; see metrics.sampler
    resume   resumes what has failed on this broker; see admin.resume
    groups_reading   the groups that read a topic, and whether these are all; see coordination.admin
    """

    def __init__(
        self,
        env: Env,
        *,
        store: MetadataStore,
        view: ClusterView,
        peers: Peers,
        topics: TopicTable,
        rates: Callable[[Partition], tuple[float | None, float | None]],
        resume: Callable[[], Awaitable[int]],
        groups_reading: GroupsReading,
    ) -> None:
        self._env = env
        self._store = store
        self._view = view
        self._peers = peers
        self._topics = topics
        self._rates = rates
        self._resume = resume
        self._groups_reading = groups_reading
        self._seen_topics: dict[str, types.Topic] = {}
        self._seen_at = -1

    # ---- reading

    @property
    def _state(self) -> ClusterState:
        return self._view.state

    def _brokers(self) -> list[types.Broker]:
        draining, is_local = self._state.drains, caller_is_local()
        return [
            types.Broker(
                id=broker,
                host=found.value.host,
                port=found.value.port,
                version=found.value.version,
                rack=found.value.rack,
                draining=found.value.draining or broker in draining,
                wire_port=found.value.wire_port,
                wire_socket=found.value.wire_socket if is_local else "",
            )
            for broker, found in sorted(self._state.brokers.items())
        ]

    def _topic_pb(self, name: str) -> types.Topic:
        return self._seen(name, self._topics.spec(name))

    def _seen(self, name: str, spec: TopicSpec) -> types.Topic:
        """The topic as protobuf, cached until the view moves: lists of many topics are requested often."""
        if self._seen_at != self._topics.moves:
            self._seen_at = self._topics.moves
            self._seen_topics.clear()
        found = self._seen_topics.get(name)
        if found is None:
            found = self._seen_topics[name] = topic_to_pb(self._topics.info(name, spec))
        return found

    def _described(self, name: str) -> types.Topic:
        """The topic with the defaults of its settings."""
        spec = self._topics.spec(name)
        described = types.Topic(defaults=defaults_to_pb(self._defaults(spec.replicas)))
        described.MergeFrom(self._seen(name, spec))
        return described

    def _defaults(self, replicas: int) -> TopicDefaults:
        return topic_defaults(self._env.config.topic_defaults, replicas)

    async def fetch_metadata(self, request: records_pb.FetchMetadataRequest) -> records_pb.FetchMetadataResponse:
        visible = partial(caller().allows, "describe", "topic")
        for name in request.topics:
            if name not in self._state.topics and visible(name):
                await self._topics.wait_for(name)
        names = filter(visible, request.topics or sorted(self._state.topics))
        topics = []
        for name in names:
            try:
                topics.append(self._topic_pb(name))
            except TopicNotFound:
                continue
        return records_pb.FetchMetadataResponse(
            cluster_id=self._view.cluster_id,
            broker_id=self._env.me,
            brokers=self._brokers(),
            topics=topics,
        )

    async def list_topics(self, request: admin.ListTopicsRequest) -> admin.ListTopicsResponse:
        size = min(request.page_size or limits.LIST_PAGE_MAX, limits.LIST_PAGE_MAX)
        wanted = request.filter.casefold()
        visible = partial(caller().allows, "describe", "topic")
        names = [name for name in self._state.topics if wanted in name.casefold() and visible(name)]
        rest = sorted(name for name in names if name > request.page_token)
        page = rest[:size]
        return admin.ListTopicsResponse(
            topics=[self._seen(name, self._state.topics[name].value) for name in page],  # also unopenable topics
            next_page_token=page[-1] if len(rest) > size else "",
            total=len(names),
        )

    async def describe_topic(self, request: admin.DescribeTopicRequest) -> admin.DescribeTopicResponse:
        if request.name not in self._state.topics:
            await self._topics.wait_for(request.name)
        described = admin.DescribeTopicResponse(topic=self._described(request.name))
        if request.local:
            topic = self._topics.by_name.get(request.name)
            if topic is not None:
                described.partitions.extend(
                    statistics.status(part, *self._rates(part)) for part in topic.partitions.values()
                )
            return described
        leaders = {partition.leader for partition in described.topic.partitions} - {NO_BROKER}
        answers = await asyncio.gather(*(self._statuses(leader, request.name) for leader in leaders))
        # From the broker that this one takes for the leader, whether or not it leads already.
        found = {(status.broker, status.index): status for answer in answers for status in answer}
        described.partitions.extend(
            found.get((partition.leader, partition.index)) or types.PartitionStatus(index=partition.index)
            for partition in described.topic.partitions
        )
        return described

    async def _statuses(self, broker: int, name: str) -> Sequence[types.PartitionStatus]:
        """The replicas of a topic at one broker; empty if that broker does not answer."""
        request = admin.DescribeTopicRequest(name=name, local=True)
        if broker == self._env.me:
            return (await self.describe_topic(request)).partitions
        try:
            return (await self._ask(broker, "DescribeTopic", request, admin.DescribeTopicResponse)).partitions
        except CometError:
            return ()

    async def _ask(
        self, broker: int, method: str, request: Message, response: type[M], timeout_s: float = REQUEST_S_MAX
    ) -> M:
        """The answer of another broker."""
        address = self._view.address_of(broker)
        if address is None:
            raise Unavailable(f"broker {broker} is not registered in the cluster", retry_after_ms=100)
        return await self._peers.call(address, f"comet.v1.Admin/{method}", request, response, timeout_s)

    async def describe_cluster(self, _: admin.DescribeClusterRequest) -> admin.DescribeClusterResponse:
        controller = self._state.controller
        return admin.DescribeClusterResponse(
            cluster_id=self._view.cluster_id,
            controller=NO_BROKER if controller is None else controller.broker,
            brokers=self._brokers(),
            topics=len(self._state.topics),
            partitions=sum(found.value.partitions for found in self._state.topics.values()),
            topic_defaults=defaults_to_pb(self._defaults(self._env.config.default_replicas)),
        )

    # ---- changing

    async def create_topic(self, request: admin.CreateTopicRequest) -> types.Topic:
        name = check_topic_name(request.name)
        partitions = request.partitions or 1
        self._check_partitions(partitions, partitions)
        if len(self._state.topics) >= limits.TOPICS_MAX:
            raise LimitExceeded(f"limit of {limits.TOPICS_MAX} topics reached; delete one first")
        replicas = request.replicas or self._env.config.default_replicas
        self._check_replicas(replicas)
        config, sources = created(settings_from_pb(request.config), self._defaults(replicas))
        _check_min_insync(config, replicas)
        spec = TopicSpec(
            id=f"{self._env.random.getrandbits(128):032x}",
            partitions=partitions,
            created_us=self._env.clock.wall_us(),
            config=config,
            replicas=replicas,
            sources=dict(sources),
        )
        result = await self._transact([Compare(topic_key(name), 0)], [Put(topic_key(name), spec.encode())])
        if not result.applied:
            raise TopicExists(f"topic {name!r} exists already")
        return await self._caught_up(name, result.revision)

    def _check_replicas(self, replicas: int) -> None:
        alive = len(self._state.brokers)
        if not 1 <= replicas <= REPLICAS_MAX:
            raise InvalidArgument(f"a topic has 1 to {REPLICAS_MAX} replicas, not {replicas}")
        me = self._env.me
        if me not in self._state.brokers:  # it has just started, or its lease ran out
            raise Unavailable(f"broker {me} is not registered in the cluster yet; try again", retry_after_ms=200)
        if replicas > alive:
            raise InvalidArgument(f"{replicas} replicas need as many brokers, and {alive} are alive")

    async def alter_topic(self, request: admin.AlterTopicRequest) -> admin.AlterTopicResponse:
        settings = settings_from_pb(request.config)

        def change(spec: TopicSpec) -> TopicSpec:
            before = SourcedConfig(spec.config, spec.sources)
            config, sources = altered(before, settings, request.unset, self._defaults(spec.replicas))
            _check_min_insync(config, spec.replicas)
            return msgspec.structs.replace(spec, config=config, sources=dict(sources))

        if request.local:
            return self._expiring_here(request.name, change)
        spec = await self._spec(request.name)
        planned = change(spec)
        deletes = admin.RecordsLost(partitions=spec.partitions)
        if shortens(spec.config, planned.config):
            leaders = {*self._leaders(spec).values()} - {NO_BROKER}
            deletes = await effects.expiring_at(leaders, request.name, planned.config, self._ask_alter_topic)
        before, topic = (topic_to_pb(self._topics.info(request.name, one)) for one in (spec, planned))
        if not request.dry_run:
            topic = await self._swap(request.name, change)
        return admin.AlterTopicResponse(topic=topic, before=before, deletes=deletes)

    def _expiring_here(self, name: str, change: Callable[[TopicSpec], TopicSpec]) -> admin.AlterTopicResponse:
        spec = self._topics.spec(name)
        topic = self._topics.by_name.get(name)
        partitions = [] if topic is None else list(topic.partitions.values())
        lost = effects.expiring(partitions, spec.config, change(spec).config, self._env.clock.wall_us())
        return admin.AlterTopicResponse(deletes=lost)

    async def _ask_alter_topic(self, broker: int, request: admin.AlterTopicRequest) -> admin.AlterTopicResponse:
        if broker == self._env.me:
            return await self.alter_topic(request)
        return await self._ask(broker, "AlterTopic", request, admin.AlterTopicResponse)

    async def add_partitions(self, request: admin.AddPartitionsRequest) -> admin.AddPartitionsResponse:
        def change(spec: TopicSpec) -> TopicSpec:
            if request.total < spec.partitions:
                raise InvalidArgument(
                    f"topic {request.name!r} has {spec.partitions} partitions; their number can only grow"
                )
            self._check_partitions(request.total, request.total - spec.partitions)
            return msgspec.structs.replace(spec, partitions=request.total)

        spec = await self._spec(request.name)
        after = change(spec)
        topic = await self._act(request.name, change, dry_run=request.dry_run)
        return admin.AddPartitionsResponse(topic=topic, before=spec.partitions, after=after.partitions)

    async def delete_topic(self, request: admin.DeleteTopicRequest) -> admin.DeleteTopicResponse:
        spec = await self._spec(request.name)
        statuses, (groups, complete) = await asyncio.gather(
            self._leader_statuses(request.name, spec), self._groups_reading(request.name)
        )
        answer = admin.DeleteTopicResponse(
            partitions=spec.partitions, deletes=effects.held(statuses), groups=groups, groups_unknown=not complete
        )
        if not request.dry_run:
            await self._delete_topic(request)
        return answer

    async def _delete_topic(self, request: admin.DeleteTopicRequest) -> None:
        for _ in range(SWAP_ATTEMPTS_MAX):
            item = await self._get(request.name)
            spec = TopicSpec.decode(item.value)
            tombstone = Tombstone(request.name, self._holders(spec))
            result = await self._transact(
                [Compare(item.key, item.mod_revision)],
                [Delete(item.key), Put(DELETED + spec.id, tombstone.encode())],
            )
            if result.applied:
                await self._topics.applied.wait(result.revision)
                return
        raise _contended(request.name)

    async def _leader_statuses(self, name: str, spec: TopicSpec) -> list[types.PartitionStatus]:
        """The partitions on their leaders; without those whose leader does not answer."""
        leaders = self._leaders(spec)
        answers = await asyncio.gather(*(self._statuses(one, name) for one in {*leaders.values()} - {NO_BROKER}))
        return [status for answer in answers for status in answer if leaders.get(status.index) == status.broker]

    def _leaders(self, spec: TopicSpec) -> dict[int, int]:
        """The leader of each partition; NO_BROKER: none now."""
        states = {index: self._topics.state_of(spec.id, index) for index in range(spec.partitions)}
        return {index: state.leader for index, state in states.items() if state is not None}

    def _holders(self, spec: TopicSpec) -> tuple[int, ...]:
        """All brokers that have, or may have, files of a topic."""
        holders = set(self._state.brokers)
        for index in range(spec.partitions):
            state = self._topics.state_of(spec.id, index)
            if state is not None:
                holders.update(state.holders, state.in_sync, state.eligible)
        return tuple(sorted(holders))

    async def delete_records(self, request: admin.DeleteRecordsRequest) -> admin.DeleteRecordsResponse:
        spec = self._topics.spec(request.name)
        if request.topic_id and spec.id != request.topic_id.hex():
            raise TopicNotFound(f"topic {request.name!r} was deleted and recreated (id changed); no record is deleted")
        state = self._topics.state_of(spec.id, request.partition)
        me = self._env.me
        if state is not None and state.leader not in (NO_BROKER, me) and not request.forwarded:
            passed_on = admin.DeleteRecordsRequest()
            passed_on.CopyFrom(request)
            passed_on.forwarded = True  # that broker may still see another leader, or this one
            return await self._ask(state.leader, "DeleteRecords", passed_on, admin.DeleteRecordsResponse, PLACED_S_MAX)
        if state is not None and state.leader == NO_BROKER:
            raise NotLeader(f"partition {request.partition} of topic {request.name!r} has no leader now; try again")
        partition = self._topics.partition(request.name, request.partition)
        if not partition.leads:
            raise partition.not_leader()
        before = partition.high_watermark if request.before_offset == -1 else request.before_offset
        if not 0 <= before <= partition.high_watermark:
            raise InvalidArgument(
                f"before_offset must be -1 (all records) or an offset up to {partition.high_watermark}, not {before}"
            )
        log_start = partition.log.log_start
        if request.dry_run:
            return admin.DeleteRecordsResponse(log_start=max(log_start, before), before=log_start)
        await self._agree_on_deleting(partition, before)
        new_start = await partition.housekeeping.delete_before(before)
        return admin.DeleteRecordsResponse(log_start=new_start, before=log_start)

    async def _agree_on_deleting(self, partition: Partition, before: int) -> None:
        """Stores the deletion in the partition's state: the next leader may not have heard of it from this one."""
        key = partition_key(partition.tp)
        for _ in range(SWAP_ATTEMPTS_MAX):
            item = await self._read(key)
            state = None if item is None else PartitionState.decode(item.value)
            if item is None or state is None or not partition.leads or state.epoch != partition.leader_epoch:
                raise partition.not_leader()
            end = max(before, deleted_end(partition.log, state))  # two deletions may run at once
            agreed = msgspec.structs.replace(state, deleted=(state.epoch, end))
            alone = state.holders == (self._env.me,)
            if alone or before <= partition.log.log_start or state.deleted == agreed.deleted:
                return
            if (await self._transact([Compare(key, item.mod_revision)], [Put(key, agreed.encode())])).applied:
                return
        raise _contended(partition.topic)

    async def move_partition(self, request: admin.MovePartitionRequest) -> admin.MovePartitionResponse:
        """Sets the target replicas of a partition; the controller and the leader carry it out."""
        spec = self._topics.spec(request.name)
        target = tuple(request.replicas)
        if not target or len(set(target)) < len(target) or len(target) > REPLICAS_MAX:
            raise InvalidArgument(f"replicas names 1 to {REPLICAS_MAX} different brokers, not {list(target)}")
        for broker in target:
            self._check_broker(broker)
        _check_min_insync(spec.config, len(target))
        tp = (spec.id, request.partition)
        for _ in range(SWAP_ATTEMPTS_MAX):
            item = await self._read(partition_key(tp))
            if item is None:
                raise PartitionNotFound(f"topic {request.name!r} has no partition {request.partition}")
            state = PartitionState.decode(item.value)
            answer = admin.MovePartitionResponse(before=state.replicas)
            added = set(target) - set(state.replicas)
            size = await self._bytes_at(request.name, request.partition, state.leader) if added else 0
            if size is not None:
                answer.bytes = size * len(added)
            if request.dry_run:
                answer.topic.CopyFrom(self._topic_pb(request.name))
                return answer
            there = target == state.replicas and state.leader in (NO_BROKER, *target)
            moved = msgspec.structs.replace(state, target=() if there else target)
            result = await self._transact([Compare(item.key, item.mod_revision)], [Put(item.key, moved.encode())])
            if result.applied:
                await self._view.applied.wait(result.revision)
                answer.topic.CopyFrom(self._topic_pb(request.name))
                return answer
        raise _contended(request.name)

    async def _bytes_at(self, name: str, partition: int, leader: int) -> int | None:
        """The size of a partition on its leader; None if that does not answer."""
        statuses = await self._statuses(leader, name) if leader != NO_BROKER else ()
        return next((status.bytes for status in statuses if status.index == partition), None)

    async def elect_leader(self, request: admin.ElectLeaderRequest) -> admin.ElectLeaderResponse:
        """Makes a replica the leader; an operator accepts the loss of the records that it lacks."""
        tp = (self._topics.spec(request.name).id, request.partition)
        self._check_broker(request.broker)
        for _ in range(SWAP_ATTEMPTS_MAX):
            if tp not in self._state.partitions:
                raise PartitionNotFound(f"topic {request.name!r} has no partition {request.partition}")
            change = forced(self._state, tp, request.broker)
            holders = self._state.partitions[tp].value.holders
            replicas = await self._replica_statuses(request.name, request.partition, holders)
            if not (request.accept_loss or request.dry_run):
                raise self._loss(request, holders, replicas)
            if not request.dry_run:
                result = await self._transact(change.compares, change.operations)
                await self._view.applied.wait(result.revision)
                if not result.applied:
                    continue
                log.warning(
                    "%s/%d: %s",
                    request.name,
                    request.partition,
                    change.reason,
                    extra={"topic": request.name, "partition": request.partition},
                )
            lost = effects.lost_by(replicas, request.broker)
            return admin.ElectLeaderResponse(topic=self._topic_pb(request.name), replicas=replicas, lost=lost)
        raise _contended(request.name)

    async def _replica_statuses(self, name: str, partition: int, holders: Sequence[int]) -> list[types.PartitionStatus]:
        """The replicas of a partition whose brokers answer."""
        alive = [broker for broker in holders if broker in self._state.brokers]
        answers = await asyncio.gather(*(self._statuses(broker, name) for broker in alive))
        return [status for answer in answers for status in answer if status.index == partition]

    def _loss(
        self, request: admin.ElectLeaderRequest, holders: Sequence[int], replicas: Sequence[types.PartitionStatus]
    ) -> InvalidArgument:
        """Refuses an election that loses records, with the ends of all logs to choose from."""
        ends = {str(status.broker): str(status.log_end) for status in replicas}
        listed = ", ".join(f"broker {broker}: {end}" for broker, end in ends.items())
        tp = (self._topics.spec(request.name).id, request.partition)
        parted = [
            f" Broker {holder} is in conflict: {found.value}."
            for holder in holders
            if (found := self._state.conflicts.get((holder, *tp))) is not None
        ]
        return InvalidArgument(
            f"records that broker {request.broker} does not have would be lost for good. Known log end"
            f" offsets: {listed}.{''.join(parted)} To go on, accept the loss (--accept-loss)",
            details=ends,
        )

    async def drain_broker(self, request: admin.DrainBrokerRequest) -> admin.DrainBrokerResponse:
        if not request.undo:
            self._check_broker(request.broker)
        plan = effects.drain_plan(self._state, request.broker)
        if request.dry_run:
            return plan
        try:
            await self._set_drain(request.broker, undo=request.undo)
        except StoreUnavailable as error:
            raise Timeout(f"the metadata store did not answer; try again: {error}") from error
        plan.leading = sum(found.value.leader == request.broker for found in self._state.partitions.values())
        plan.draining = not request.undo
        return plan

    async def resume(self, request: admin.ResumeRequest) -> admin.ResumeResponse:
        """Resumes everything that has failed on this broker, for an operator."""
        resumed = 0 if request.dry_run else await self._resume()
        stopped = [one for one in self._env.failures.all() if one.until is None]
        return admin.ResumeResponse(
            resumed=resumed,
            failed=[
                admin.Failure(
                    kind=one.kind.value,
                    name=one.name,
                    step=one.step,
                    reason=one.reason,
                    since_us=one.since_us,
                    count=one.count,
                )
                for one in stopped[: limits.FAILURES_SHOWN_MAX]
            ],
        )

    async def _set_drain(self, broker: int, *, undo: bool) -> None:
        """Drains a broker, or ends its draining, for an operator."""
        key = f"{DRAINS}{broker}"
        item = await self._store.get(key)
        if (item is None) == undo:
            return
        if undo:
            assert item is not None
            await self._store.transact([Compare(key, item.mod_revision)], [Delete(key)])
        else:
            await self._store.transact([Compare(key, 0)], [Put(key, b"")])

    def _check_broker(self, broker: int) -> None:
        if broker not in self._state.brokers:
            alive = ", ".join(str(known) for known in sorted(self._state.brokers))
            raise BrokerNotFound(f"broker {broker} does not exist; live brokers: {alive}")

    def _check_partitions(self, total: int, more: int) -> None:
        if not 1 <= total <= limits.TOPIC_PARTITIONS_MAX:
            raise InvalidArgument(f"a topic has 1 to {limits.TOPIC_PARTITIONS_MAX} partitions, not {total}")
        held = sum(found.value.partitions for found in self._state.topics.values())
        if held + more > limits.PARTITIONS_MAX:
            raise LimitExceeded(f"the cluster has {held} of at most {limits.PARTITIONS_MAX} partitions")

    async def _act(self, name: str, change: Callable[[TopicSpec], TopicSpec], *, dry_run: bool) -> types.Topic:
        return self._topic_pb(name) if dry_run else await self._swap(name, change)

    async def _swap(self, name: str, change: Callable[[TopicSpec], TopicSpec]) -> types.Topic:
        """Reads the topic, changes it and writes it back; retries if another change came first."""
        for _ in range(SWAP_ATTEMPTS_MAX):
            item = await self._get(name)
            spec = change(TopicSpec.decode(item.value))
            result = await self._transact([Compare(item.key, item.mod_revision)], [Put(item.key, spec.encode())])
            if result.applied:
                return await self._caught_up(name, result.revision)
        raise _contended(name)

    async def _spec(self, name: str) -> TopicSpec:
        item = await self._get(name)
        if name not in self._state.topics:
            await self._topics.wait_for(name)
        return TopicSpec.decode(item.value)

    async def _get(self, name: str) -> KeyValue:
        item = await self._read(topic_key(check_topic_name(name)))
        if item is None:
            raise TopicNotFound(f"topic {name!r} does not exist")
        return item

    async def _read(self, key: str) -> KeyValue | None:
        try:
            return await self._store.get(key)
        except StoreUnavailable as error:
            raise Unavailable(f"the metadata store did not answer: {error}") from error

    async def _transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        try:
            return await self._store.transact(compares, operations)
        except StoreUnavailable as error:
            raise Timeout(f"the metadata store did not answer; the change may or may not be made: {error}") from error

    async def _caught_up(self, name: str, revision: int) -> types.Topic:
        """The topic, once the change is visible here and each partition has a ready leader."""
        await self._topics.applied.wait(revision)
        if not await self._wait_until(lambda: self._placed(name)):
            raise Timeout(f"topic {name!r} was created, but not all of its partitions have a leader yet")
        problem = self._topics.problems.get(name)
        if problem is not None:
            raise problem
        return self._described(name)

    def _placed(self, name: str) -> bool:
        found = self._state.topics.get(name)
        if found is None or name in self._topics.problems:
            return True
        topic = self._topics.by_name.get(name)
        for index in range(found.value.partitions):
            state = self._topics.state_of(found.value.id, index)
            if state is None or state.leader == NO_BROKER:
                return False
            if state.leader == self._env.me:
                partition = None if topic is None else topic.partitions.get(index)
                if partition is None or not partition.leads:
                    return False
        return True

    async def _wait_until(self, condition: Callable[[], bool]) -> bool:
        """Checks the condition whenever the view or the open topics have moved, until a timeout."""
        if condition():
            return True
        try:
            async with asyncio.timeout(PLACED_S_MAX):
                while not condition():
                    await self._topics.applied.wait(self._topics.applied.value + 1)
        except TimeoutError:
            return False
        return True


def _check_min_insync(config: TopicConfig, replicas: int) -> None:
    if config.min_insync > replicas:
        raise InvalidArgument(f"min_insync={config.min_insync} can never be met with {replicas} replicas")


def _contended(name: str) -> Unavailable:
    return Unavailable(f"topic {name!r} was changed concurrently {SWAP_ATTEMPTS_MAX} times; try again")
