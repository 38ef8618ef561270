"""Topics and the cluster, for people who run them: one method per request of the Admin service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

from google.protobuf.message import Message

from comet import _group_wire, _wire
from comet import _limits as limits
from comet._client import Addresses, Client
from comet._producer import wall_clock_us
from comet._transport import Connect
from comet.errors import InvalidArgument
from comet.types import (
    REPLICAS_MAX,
    ClusterInfo,
    GroupInfo,
    GroupSummary,
    LagPoint,
    PartitionLag,
    PartitionStatus,
    ResetPartition,
    StartLike,
    TopicConfig,
    TopicInfo,
    check_topic_name,
    position,
)
from comet.v1 import admin_pb2 as admin
from comet.v1 import events_pb2 as pb
from comet.v1 import groups_pb2 as groups
from comet.v1 import types_pb2 as types

M = TypeVar("M", bound=Message)

_SERVICE = "comet.v1.Admin/"
_PAGE = 1000


class Admin:
    """Manages topics. Async; `comet.sync.Admin` is the same for synchronous code.

    >>> async def example(address: str) -> None:
    ...     async with comet.Admin(address) as admin:
    ...         await admin.create_topic("trades", partitions=3, retention_ms=3_600_000)
    ...         print([topic.name for topic in await admin.list_topics()])
    >>> run(example)
    ['quotes', 'trades']
    """

    def __init__(
        self,
        addresses: Addresses,
        *,
        timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
        name: str = "",
        connect: Connect | None = None,
        random: Random | None = None,
        clock_us: Callable[[], int] = wall_clock_us,
    ) -> None:
        self._client = Client(addresses, name=name, connect=connect, random=random)
        self._timeout_ms = timeout_ms
        self._clock_us = clock_us

    async def _ask(self, method: str, request: Message, response: type[M]) -> M:
        self._client.check_open()
        return await self._client.unary(_SERVICE + method, request, response, self._timeout_ms)

    # ---- topics

    async def create_topic(
        self, name: str, *, partitions: int = 1, replicas: int = 0, config: TopicConfig | None = None, **settings: Any
    ) -> TopicInfo:
        """Makes a topic. Give its settings as a TopicConfig, or those that differ from the broker's defaults by name.

        `replicas` is how many brokers hold each partition; 0 leaves it to the cluster.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         topic = await admin.create_topic("trades", partitions=2, flush="always")
        ...         print(topic.name, len(topic.partitions), topic.config.flush.value)
        >>> run(example)
        trades 2 always
        """
        if partitions < 1:
            raise InvalidArgument(f"a topic has at least one partition, not {partitions!r}")
        if not 0 <= replicas <= REPLICAS_MAX:
            raise InvalidArgument(
                f"replicas must be from 0 (the cluster's default) to {REPLICAS_MAX}, not {replicas!r}"
            )
        request = admin.CreateTopicRequest(
            name=check_topic_name(name), partitions=partitions, replicas=replicas, config=_settings(config, settings)
        )
        return _wire.topic_from_pb(await self._ask("CreateTopic", request, types.Topic))

    async def list_topics(self) -> list[TopicInfo]:
        """All topics, by name.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print([topic.name for topic in await admin.list_topics()])
        >>> run(example)
        ['quotes']
        """
        found: list[TopicInfo] = []
        token = ""
        while True:
            request = admin.ListTopicsRequest(page_token=token, page_size=_PAGE)
            answer = await self._ask("ListTopics", request, admin.ListTopicsResponse)
            found.extend(map(_wire.topic_from_pb, answer.topics))
            token = answer.next_page_token
            if not token:
                return found

    async def describe_topic(self, name: str) -> tuple[TopicInfo, list[PartitionStatus]]:
        """A topic, and what its partitions hold on the brokers that lead them; one without a leader is left out.
        Raises TopicNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         topic, partitions = await admin.describe_topic("quotes")
        ...         print(topic.config.retention_ms, [status.log_end for status in partitions])
        >>> run(example)
        604800000 [0]
        """
        answer = await self._ask("DescribeTopic", admin.DescribeTopicRequest(name=name), admin.DescribeTopicResponse)
        return _wire.topic_from_pb(answer.topic), [_wire.status_from_pb(status) for status in answer.partitions]

    async def alter_topic(self, name: str, **settings: Any) -> TopicInfo:
        """Changes the settings that are named and leaves the others alone.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         topic = await admin.alter_topic("quotes", retention_events=1_000_000)
        ...         print(topic.config.retention_events)
        >>> run(example)
        1000000
        """
        request = admin.AlterTopicRequest(name=name, config=_settings(None, settings))
        return _wire.topic_from_pb(await self._ask("AlterTopic", request, types.Topic))

    async def delete_topic(self, name: str) -> None:
        """Deletes a topic and everything in it. A topic made again under the name is another one.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         await admin.delete_topic("quotes")
        ...         print(await admin.list_topics())
        >>> run(example)
        []
        """
        await self._ask("DeleteTopic", admin.DeleteTopicRequest(name=name), admin.DeleteTopicResponse)

    async def add_partitions(self, name: str, total: int) -> TopicInfo:
        """Gives a topic more partitions, so that there are `total`. From then on keys map to partitions anew.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print(len((await admin.add_partitions("quotes", 4)).partitions))
        >>> run(example)
        4
        """
        return _wire.topic_from_pb(
            await self._ask("AddPartitions", admin.AddPartitionsRequest(name=name, total=total), types.Topic)
        )

    async def delete_records(self, name: str, partition: int, before_offset: int | None = None) -> int:
        """Deletes the records before an offset, or all there are now; returns where the partition starts now.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.Admin(address) as admin:
        ...         print(await admin.delete_records("quotes", 0, before_offset=2))
        >>> run(example)
        2
        """
        request = admin.DeleteRecordsRequest(
            name=name, partition=partition, before_offset=-1 if before_offset is None else before_offset
        )
        return (await self._ask("DeleteRecords", request, admin.DeleteRecordsResponse)).log_start

    async def offsets(self, topic: str, at: StartLike = "latest") -> dict[int, int]:
        """Per partition the offset that a position stands for: an end, a time, a time ago.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.Admin(address) as admin:
        ...         print(await admin.offsets("quotes", "earliest"), await admin.offsets("quotes", "latest"))
        >>> run(example)
        {0: 0} {0: 3}
        """
        where = _wire.position_to_pb(position(at, now_us=self._clock_us()))
        self._client.forget(topic)
        info = await self._client.topic(topic)
        found: dict[int, int] = {}
        for partition in info.partitions:
            attachment = await self._client.attach(topic, partition.index)
            find = pb.ClientFrame(find_offset=pb.FindOffset(partition=attachment.handle, position=where))
            answer = await attachment.connection.call(find, self._timeout_ms)
            found[partition.index] = answer.found_offset.offset
        return found

    # ---- groups

    async def list_groups(self) -> list[GroupSummary]:
        """All groups, by name.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print(await admin.list_groups())
        >>> run(example)
        []
        """
        answer = await self._ask("ListGroups", admin.ListGroupsRequest(), admin.ListGroupsResponse)
        return [_group_wire.summary_from_pb(summary) for summary in answer.groups]

    async def describe_group(self, name: str) -> GroupInfo:
        """A group with its members, what they own, and how far they are behind. Raises GroupNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         await admin.reset_group("engine", "earliest", topics=["quotes"])
        ...         group = await admin.describe_group("engine")
        ...         print(group.summary.state, [lag.committed for lag in group.lags])
        >>> run(example)
        empty [0]
        """
        request = admin.DescribeGroupRequest(name=name)
        return _group_wire.group_from_pb(await self._ask("DescribeGroup", request, admin.DescribeGroupResponse))

    async def group_lag(self, name: str, *, points_max: int = 300) -> tuple[list[PartitionLag], list[LagPoint]]:
        """How far a group is behind now, per partition, and how far it was, per topic, as far back as is remembered.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.Admin(address) as admin:
        ...         await admin.reset_group("engine", 1, topics=["quotes"])
        ...         now, history = await admin.group_lag("engine")
        ...         print([lag.lag for lag in now])
        >>> run(example)
        [2]
        """
        request = admin.GroupLagRequest(name=name, points_max=points_max)
        answer = await self._ask("GroupLag", request, admin.GroupLagResponse)
        return (
            [_group_wire.lag_from_pb(lag) for lag in answer.now],
            [_group_wire.point_from_pb(point) for point in answer.history],
        )

    async def reset_group(
        self,
        name: str,
        to: StartLike | None = None,
        *,
        shift: int | None = None,
        topics: Iterable[str | tuple[str, int]] = (),
        dry_run: bool = False,
    ) -> list[ResetPartition]:
        """Sets where a group without members goes on: `to` an end, an offset, a time or a time ago, or by `shift`
        events. With `topics`, only those, or only single partitions of them; else all that it has positions of.
        With `dry_run` it only says what would happen. Raises GroupNotEmpty.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.Admin(address) as admin:
        ...         await admin.reset_group("engine", "latest", topics=["quotes"])
        ...         for change in await admin.reset_group("engine", shift=-2, dry_run=True):
        ...             print(change.before, change.after, change.skipped)
        >>> run(example)
        3 1 -2
        """
        request = admin.ResetGroupRequest(name=name, dry_run=dry_run)
        if (to is None) == (shift is None):
            raise InvalidArgument("give either a position or a shift")
        if to is not None:
            request.position.CopyFrom(_wire.position_to_pb(position(to, now_us=self._clock_us())))
        else:
            request.shift = shift or 0
        request.topics.extend(_selected(topics))
        answer = await self._ask("ResetGroup", request, admin.ResetGroupResponse)
        return [_group_wire.reset_from_pb(change) for change in answer.partitions]

    async def delete_group(self, name: str) -> None:
        """Forgets a group without members, with all its positions. Raises GroupNotFound, GroupNotEmpty.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         await admin.reset_group("engine", "earliest", topics=["quotes"])
        ...         await admin.delete_group("engine")
        ...         print(await admin.list_groups())
        >>> run(example)
        []
        """
        await self._ask("DeleteGroup", admin.DeleteGroupRequest(name=name), admin.DeleteGroupResponse)

    # ---- the cluster

    async def move_partition(self, name: str, partition: int, replicas: Sequence[int]) -> TopicInfo:
        """Gives a partition to other brokers, or to more or fewer of them: their ids, the preferred leader first.

        Returns once it is decided; `describe_topic` shows when it is done. Raises BrokerNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         await admin.move_partition("quotes", 0, [2, 3, 1])
        """
        request = admin.MovePartitionRequest(name=name, partition=partition, replicas=replicas)
        return _wire.topic_from_pb(await self._ask("MovePartition", request, types.Topic))

    async def elect_leader(self, name: str, partition: int, broker: int, *, accept_loss: bool = False) -> TopicInfo:
        """Has a replica lead a partition that has no leader, whatever it lacks: the last way out, when those that have
        everything are damaged or will not come back. What it lacks is cut from the others when they follow it.

        Returns once it is decided. Raises InvalidArgument while somebody leads or is about to, and without
        `accept_loss`; BrokerNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         await admin.elect_leader("quotes", 0, 2, accept_loss=True)
        """
        request = admin.ElectLeaderRequest(name=name, partition=partition, broker=broker, accept_loss=accept_loss)
        return _wire.topic_from_pb(await self._ask("ElectLeader", request, types.Topic))

    async def drain_broker(self, broker: int, *, undo: bool = False) -> int:
        """Has a broker pass on the partitions that it leads, before it is stopped; with `undo` it may lead again.

        Returns how many it still leads: ask again until there are none. Raises BrokerNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         while await admin.drain_broker(2):
        ...             await asyncio.sleep(0.1)
        """
        request = admin.DrainBrokerRequest(broker=broker, undo=undo)
        return (await self._ask("DrainBroker", request, admin.DrainBrokerResponse)).leading

    async def describe_cluster(self) -> ClusterInfo:
        """Which brokers there are, which of them is the controller, and how much they hold.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         cluster = await admin.describe_cluster()
        ...         print(len(cluster.brokers), cluster.topics, cluster.partitions)
        >>> run(example)
        1 1 1
        """
        answer = await self._ask("DescribeCluster", admin.DescribeClusterRequest(), admin.DescribeClusterResponse)
        brokers = tuple(map(_wire.broker_from_pb, answer.brokers))
        return ClusterInfo(answer.cluster_id, answer.controller, brokers, answer.topics, answer.partitions)

    async def statistics(self) -> dict[str, Any]:
        """The broker's own numbers, all of them.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print((await admin.statistics())["topics"])
        >>> run(example)
        1
        """
        answer = await self._ask("Statistics", admin.StatisticsRequest(), admin.StatisticsResponse)
        found: dict[str, Any] = json.loads(answer.json)
        return found

    # ---- life

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _settings(config: TopicConfig | None, settings: dict[str, Any]) -> types.TopicConfig:
    if config is None:
        return _wire.settings_to_pb(settings)
    if settings:
        raise InvalidArgument("give the settings as a TopicConfig or by name, not both")
    return _wire.config_to_pb(config)


def _selected(topics: Iterable[str | tuple[str, int]]) -> list[groups.TopicPartitions]:
    found: dict[str, set[int]] = {}
    for one in topics:
        topic, indexes = (one, ()) if isinstance(one, str) else (one[0], (one[1],))
        found.setdefault(topic, set()).update(indexes)
    return [groups.TopicPartitions(topic=topic, partitions=sorted(indexes)) for topic, indexes in found.items()]
