"""Topics and the cluster: what the Admin service and FetchMetadata do.

Every change is one compare-and-swap in the metadata store; the table of topics follows the store, and an answer
goes out when this broker has caught up with the change. A store that does not answer leaves the outcome unknown,
which is what the caller is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import msgspec

import comet
from comet._wire import broker_to_pb, config_from_pb, status_to_pb, topic_to_pb
from comet.errors import (
    InvalidArgument,
    LimitExceeded,
    Timeout,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from comet.types import BrokerInfo, check_topic_name
from comet.v1 import admin_pb2 as admin
from comet.v1 import events_pb2 as events
from comet.v1 import types_pb2 as types
from comet_broker import limits
from comet_broker.broker import Broker
from comet_broker.metadata.store import (
    Compare,
    Delete,
    KeyValue,
    MetadataStore,
    Put,
    StoreUnavailable,
    TransactionResult,
)
from comet_broker.topics import DELETED, TOPICS, Topic, TopicSpec

SWAP_ATTEMPTS_MAX = 16


class Control:
    """The coroutines behind the unary calls, protobuf in and out; raises CometErrors."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics = broker.topics

    @property
    def _store(self) -> MetadataStore:
        return self._broker.store

    # ---- looking

    def _this_broker(self) -> BrokerInfo:
        config = self._broker.config
        return BrokerInfo(config.broker_id, config.advertised_host or config.host, self._broker.port, comet.__version__)

    def _topic_pb(self, topic: Topic) -> types.Topic:
        return topic_to_pb(topic.info(self._broker.config.broker_id))

    async def fetch_metadata(self, request: events.FetchMetadataRequest) -> events.FetchMetadataResponse:
        by_name = self._topics.by_name
        for name in request.topics:
            self._topics.check_openable(name)
        names = sorted(by_name) if not request.topics else [name for name in request.topics if name in by_name]
        return events.FetchMetadataResponse(
            cluster_id=self._broker.cluster_id,
            broker_id=self._broker.config.broker_id,
            brokers=[broker_to_pb(self._this_broker())],
            topics=[self._topic_pb(by_name[name]) for name in names],
        )

    async def list_topics(self, request: admin.ListTopicsRequest) -> admin.ListTopicsResponse:
        size = min(request.page_size or limits.LIST_PAGE_MAX, limits.LIST_PAGE_MAX)
        names = sorted(name for name in self._topics.by_name if name > request.page_token)
        page = names[:size]
        return admin.ListTopicsResponse(
            topics=[self._topic_pb(self._topics.by_name[name]) for name in page],
            next_page_token=page[-1] if len(names) > size else "",
        )

    async def describe_topic(self, request: admin.DescribeTopicRequest) -> admin.DescribeTopicResponse:
        topic = self._topics.topic(request.name)
        return admin.DescribeTopicResponse(
            topic=self._topic_pb(topic),
            partitions=[status_to_pb(partition.status()) for partition in topic.partitions],
        )

    async def describe_cluster(self, _: admin.DescribeClusterRequest) -> admin.DescribeClusterResponse:
        return admin.DescribeClusterResponse(
            cluster_id=self._broker.cluster_id,
            controller=self._broker.config.broker_id,
            brokers=[broker_to_pb(self._this_broker())],
            topics=len(self._topics.by_name),
            partitions=len(self._topics.by_handle),
        )

    async def statistics(self, _: admin.StatisticsRequest) -> admin.StatisticsResponse:
        return admin.StatisticsResponse(json=json.dumps(self._broker.statistics()))

    # ---- changing

    async def create_topic(self, request: admin.CreateTopicRequest) -> types.Topic:
        name = check_topic_name(request.name)
        partitions = request.partitions or 1
        self._check_partitions(partitions, partitions)
        if len(self._topics.by_name) >= limits.TOPICS_MAX:
            raise LimitExceeded(f"there are {limits.TOPICS_MAX} topics, the limit; delete one first")
        spec = TopicSpec(
            id=f"{self._broker.random.getrandbits(128):032x}",
            partitions=partitions,
            created_us=self._broker.clock.wall_us(),
            config=config_from_pb(request.config, self._broker.config.topic_defaults),
        )
        result = await self._transact([Compare(TOPICS + name, 0)], [Put(TOPICS + name, spec.encode())])
        if not result.applied:
            raise TopicExists(f"topic {name!r} exists already")
        return await self._caught_up(name, result.revision)

    async def alter_topic(self, request: admin.AlterTopicRequest) -> types.Topic:
        def change(spec: TopicSpec) -> TopicSpec:
            return msgspec.structs.replace(spec, config=config_from_pb(request.config, spec.config))

        return await self._swap(request.name, change)

    async def add_partitions(self, request: admin.AddPartitionsRequest) -> types.Topic:
        def change(spec: TopicSpec) -> TopicSpec:
            if request.total < spec.partitions:
                raise InvalidArgument(
                    f"topic {request.name!r} has {spec.partitions} partitions; their number can only grow"
                )
            self._check_partitions(request.total, request.total - spec.partitions)
            return msgspec.structs.replace(spec, partitions=request.total)

        return await self._swap(request.name, change)

    async def delete_topic(self, request: admin.DeleteTopicRequest) -> admin.DeleteTopicResponse:
        for _ in range(SWAP_ATTEMPTS_MAX):
            item = await self._get(request.name)
            spec = TopicSpec.decode(item.value)
            result = await self._transact(
                [Compare(item.key, item.mod_revision)],
                [Delete(item.key), Put(DELETED + spec.id, request.name.encode())],
            )
            if result.applied:
                await self._topics.applied.wait(result.revision)
                return admin.DeleteTopicResponse()
        raise _contended(request.name)

    async def delete_records(self, request: admin.DeleteRecordsRequest) -> admin.DeleteRecordsResponse:
        partition = self._topics.partition(request.name, request.partition)
        before = partition.high_watermark if request.before_offset == -1 else request.before_offset
        if not 0 <= before <= partition.high_watermark:
            raise InvalidArgument(
                f"before_offset must be -1 (all) or between 0 and the end, {partition.high_watermark}, not {before}"
            )
        return admin.DeleteRecordsResponse(log_start=partition.log.delete_before(before))

    def _check_partitions(self, total: int, more: int) -> None:
        if not 1 <= total <= limits.TOPIC_PARTITIONS_MAX:
            raise InvalidArgument(f"a topic has 1 to {limits.TOPIC_PARTITIONS_MAX} partitions, not {total}")
        held = len(self._topics.by_handle)
        if held + more > limits.PARTITIONS_MAX:
            raise LimitExceeded(f"this broker holds {held} of at most {limits.PARTITIONS_MAX} partitions")

    async def _swap(self, name: str, change: Callable[[TopicSpec], TopicSpec]) -> types.Topic:
        """Reads the topic, changes it, writes it back; from the start again when somebody was faster."""
        for _ in range(SWAP_ATTEMPTS_MAX):
            item = await self._get(name)
            spec = change(TopicSpec.decode(item.value))
            result = await self._transact([Compare(item.key, item.mod_revision)], [Put(item.key, spec.encode())])
            if result.applied:
                return await self._caught_up(name, result.revision)
        raise _contended(name)

    async def _get(self, name: str) -> KeyValue:
        try:
            item = await self._store.get(TOPICS + check_topic_name(name))
        except StoreUnavailable as error:
            raise Unavailable(f"the metadata store did not answer: {error}") from error
        if item is None:
            raise TopicNotFound(f"there is no topic {name!r}")
        return item

    async def _transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        try:
            return await self._store.transact(compares, operations)
        except StoreUnavailable as error:
            raise Timeout(f"the metadata store did not answer; the change may or may not be made: {error}") from error

    async def _caught_up(self, name: str, revision: int) -> types.Topic:
        await self._topics.applied.wait(revision)
        problem = self._topics.problems.get(name)
        if problem is not None:
            raise problem
        return self._topic_pb(self._topics.topic(name))


def _contended(name: str) -> Unavailable:
    return Unavailable(f"topic {name!r} was changed by others {SWAP_ATTEMPTS_MAX} times meanwhile; try again")
