"""The client of the Admin service: topics, groups and the cluster, one method per request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from copy import copy
from dataclasses import fields
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeVar, Unpack

from google.protobuf.message import Message

from comet import limits
from comet.admin import requests
from comet.admin.lazy_module import LazyModule
from comet.admin.parameters import (
    PARTITION_MAX,
    PARTITIONS_MAX,
    AcceptLoss,
    BeforeOffset,
    BrokerId,
    GroupName,
    Input,
    LagPoints,
    NewLeader,
    OneBroker,
    PartitionIndex,
    ReplicaIds,
    TopicName,
)
from comet.client.bootstrap import Addresses
from comet.client.client import Client
from comet.client.new_topic import topic_creation
from comet.client.world import Seams, World
from comet.entities import BrokerDetails, ClusterInfo, PartitionDetails, TopicDetails, TopicInfo
from comet.errors import CometError, InvalidArgument
from comet.settings.topic import TopicConfig, topic_setting
from comet.types import (
    UNLISTED,
    GroupInfo,
    GroupSummary,
    ResetPartition,
    StartLike,
    position,
)
from comet.v1 import admin_pb2 as admin
from comet.v1 import types_pb2 as types
from comet.wire import group_protobuf, protobuf
from comet.wire.acting import ActingFor

if TYPE_CHECKING:
    from comet.admin import history as cluster_history
    from comet.admin import recovery, results
    from comet.admin.access import AccessAdmin
    from comet.admin.calendars import CalendarAdmin
    from comet.admin.schedules import ScheduleAdmin
    from comet.groups import committed_offsets
else:
    cluster_history = LazyModule("comet.admin.history")
    recovery = LazyModule("comet.admin.recovery")
    results = LazyModule("comet.admin.results")
    committed_offsets = LazyModule("comet.groups.committed_offsets")

M = TypeVar("M", bound=Message)

SERVICE: Final = "comet.v1.Admin/"
_PAGE = 1000


class Admin:
    """Manages topics, groups and the cluster. Async; `comet.sync.Admin` is the same for synchronous code.

    >>> async def example(address: str) -> None:
    ...     async with comet.Admin(address) as admin:
    ...         await admin.create_topic("trades", partitions=3, retention_ms=3_600_000)
    ...         print([topic.name for topic in await admin.list_topics()])
    >>> run(example)
    ['quotes', 'trades']
    """

    def __init__(
        self,
        addresses: Addresses = None,
        *,
        timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
        name: str = "",
        **seams: Unpack[Seams],
    ) -> None:
        world = World.of(self, {**seams})
        self._client = Client(addresses, name=name, connect=world.connect, random=world.random)
        self._timeout_ms = timeout_ms
        self._clock_us = world.clock_us
        self._acting: ActingFor | None = None

    @property
    def access(self) -> AccessAdmin:
        """What clients may do, and how much."""
        from comet.admin.access import AccessAdmin

        return AccessAdmin(self._request)

    @property
    def calendars(self) -> CalendarAdmin:
        """Market calendars, and the times of schedules."""
        from comet.admin.calendars import CalendarAdmin

        return CalendarAdmin(self._request, self._clock_us)

    @property
    def schedules(self) -> ScheduleAdmin:
        """Schedules, whose records brokers write when they are due."""
        from comet.admin.schedules import ScheduleAdmin

        return ScheduleAdmin(self._request, self._timeout_ms, self._client.random)

    def acting_for(self, principal: str, roles: Iterable[str] = ()) -> Self:
        """This client, for calls that a gateway makes for a user, with the roles of its token. Brokers take them of the
        clients in their setting `gateways`. It is not closed by itself.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         try:
        ...             await admin.acting_for("user:ann").list_topics()
        ...         except comet.Forbidden as error:
        ...             print(error.message)
        >>> run(example)
        anonymous may not act for others
        """
        twin = copy(self)
        twin._acting = ActingFor(principal, tuple(roles))
        return twin

    async def _request(self, method: str, request: Message, response: type[M]) -> M:
        self._client.check_open()
        return await self._client.unary(SERVICE + method, request, response, self._timeout_ms, acting=self._acting)

    async def _request_at(self, broker: int | None, method: str, request: Message, response: type[M]) -> M:
        """The stub of that broker; None: of any."""
        if broker is None:
            return await self._request(method, request, response)
        found = (await self.describe_cluster()).broker(broker)
        return await self._client.unary(
            SERVICE + method,
            request,
            response,
            self._timeout_ms,
            at=f"{found.host}:{found.port}",
            acting=self._acting,
        )

    # ---- topics

    async def create_topic(
        self, name: str, *, partitions: int = 1, replicas: int = 0, config: TopicConfig | None = None, **settings: Any
    ) -> TopicInfo:
        """Makes a topic. Give its settings as a TopicConfig, or by name those that differ from the broker's defaults.

        `replicas` is how many brokers hold each partition; 0 leaves it to the cluster.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         topic = await admin.create_topic("trades", partitions=2, flush="always")
        ...         print(topic.name, len(topic.partitions), topic.config.flush.value)
        >>> run(example)
        trades 2 always
        """
        request = topic_creation(name, partitions, replicas, config, settings)
        return protobuf.topic_from_pb(await self._request("CreateTopic", request, types.Topic))

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
            answer = await self._request("ListTopics", request, admin.ListTopicsResponse)
            found.extend(map(protobuf.topic_from_pb, answer.topics))
            token = answer.next_page_token
            if not token:
                return found

    async def find_topics(self, part: str = "", *, after: str = "", limit: int = 100) -> results.TopicPage:
        """A page of topics, by name: those with `part` in their name, in any case, after the name `after`. Cheap for
        any number of topics.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         await admin.create_topic("trades")
        ...         page = await admin.find_topics("", limit=1)
        ...         print([topic.name for topic in page.topics], page.after, page.total)
        ...         page = await admin.find_topics("", after=page.after)
        ...         print([topic.name for topic in page.topics], page.after)
        >>> run(example)
        ['quotes'] quotes 2
        ['trades'] None
        """
        if not 1 <= limit <= _PAGE:
            raise InvalidArgument(f"limit must be from 1 to {_PAGE}, not {limit!r}")
        request = admin.ListTopicsRequest(page_token=after, page_size=limit, filter=part)
        answer = await self._request("ListTopics", request, admin.ListTopicsResponse)
        topics = tuple(map(protobuf.topic_from_pb, answer.topics))
        return results.TopicPage(topics, answer.next_page_token or None, answer.total)

    async def describe_topic(self, name: str, *, broker: int | None = None) -> TopicDetails:
        """A topic with its partitions, which have the figures of their leaders; None where a leader does not answer.
        With `broker`, the figures of the replicas on that broker. Raises TopicNotFound, BrokerNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         topic = await admin.describe_topic("quotes")
        ...         print(topic.config.retention_ms, [partition.log_end for partition in topic.partitions])
        >>> run(example)
        604800000 [0]
        """
        answer = await self._describe_topic(name, broker)
        return protobuf.topic_details_from_pb(answer.topic, answer.partitions)

    async def _describe_topic(self, name: str, broker: int | None) -> admin.DescribeTopicResponse:
        request = admin.DescribeTopicRequest(name=name, local=broker is not None)
        return await self._request_at(broker, "DescribeTopic", request, admin.DescribeTopicResponse)

    async def describe_partition(self, topic: str, partition: int) -> PartitionDetails:
        """A partition with its replicas, whose brokers are asked at once. Raises TopicNotFound, PartitionNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         found = await admin.describe_partition("quotes", 0)
        ...         print([(replica.broker, replica.in_sync, replica.log_end) for replica in found.copies])
        >>> run(example)
        [(1, True, 0)]
        """
        found = (await self.describe_topic(topic)).partition(partition)

        async def statuses(broker: int) -> list[types.PartitionStatus]:
            try:
                return list((await self._describe_topic(topic, broker)).partitions)
            except CometError:
                return []  # it cannot be reached

        answers = await asyncio.gather(*map(statuses, found.replicas))
        here = [status for answer in answers for status in answer if status.index == partition]
        copies = protobuf.replicas_from_pb(found, here)
        return PartitionDetails(
            **{one.name: getattr(found, one.name) for one in fields(found)}, topic=topic, copies=copies
        )

    async def alter_topic(
        self, name: str, *, unset: Iterable[str] = (), dry_run: bool = False, **settings: Any
    ) -> results.TopicAlteration:
        """Changes the given settings and leaves the others. Those of `unset` get the cluster's defaults, as in a new
        topic. With `dry_run` nothing changes, and the answer is the effect: the brokers count the records that a
        shorter retention deletes at its next check.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         done = await admin.alter_topic("quotes", retention_records=1_000_000)
        ...         print(done.changed, done.after.config.retention_records, done.records)
        ...         done = await admin.alter_topic("quotes", unset=["retention_records"], dry_run=True)
        ...         print(done.after.config.retention_records, done.after.source("retention_records").value)
        >>> run(example)
        ('retention_records',) 1000000 0
        -1 built-in
        """
        names = [topic_setting(one).name for one in unset]
        request = admin.AlterTopicRequest(
            name=name, config=protobuf.settings_to_pb(settings), unset=names, dry_run=dry_run
        )
        answer = await self._request("AlterTopic", request, admin.AlterTopicResponse)
        return results.alteration_from_pb(answer, dry_run=dry_run)

    async def delete_topic(self, name: TopicName, *, dry_run: bool = False) -> results.TopicDeletion:
        """Deletes a topic, its records, and the committed offsets of groups in it. A topic recreated with the name has
        another id. With `dry_run` nothing changes, and the answer is the effect.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.Admin(address) as admin:
        ...         print((await admin.delete_topic("quotes", dry_run=True)).records)
        ...         await admin.delete_topic("quotes")
        ...         print(await admin.list_topics())
        >>> run(example)
        3
        []
        """
        request = admin.DeleteTopicRequest(name=name, dry_run=dry_run)
        answer = await self._request("DeleteTopic", request, admin.DeleteTopicResponse)
        return results.deletion_from_pb(name, answer, dry_run=dry_run)

    async def add_partitions(
        self,
        name: TopicName,
        total: Annotated[int, Input("Partitions after the change.", 1, PARTITIONS_MAX, example=6)],
        *,
        dry_run: bool = False,
    ) -> results.PartitionsAdded:
        """Adds partitions to a topic, up to `total`. Most keys map to another partition from then on.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         done = await admin.add_partitions("quotes", 4)
        ...         print(done.before, done.after, done.keys_moved)
        >>> run(example)
        1 4 0.75
        """
        request = admin.AddPartitionsRequest(name=name, total=total, dry_run=dry_run)
        answer = await self._request("AddPartitions", request, admin.AddPartitionsResponse)
        return results.PartitionsAdded(dry_run, name, answer.before, answer.after)

    async def delete_records(
        self,
        name: TopicName,
        partition: Annotated[int, Input("The partition.", 0, PARTITION_MAX, flag="--partition -p")],
        before_offset: BeforeOffset = None,
        *,
        topic_id: Annotated[bytes, UNLISTED] = b"",
        dry_run: bool = False,
    ) -> results.RecordDeletion:
        """Deletes the records before an offset, or all. With `dry_run` nothing changes, and the answer is the effect.
        With `topic_id`, the `id` of a TopicInfo, raises TopicNotFound if the topic was recreated.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.Admin(address) as admin:
        ...         done = await admin.delete_records("quotes", 0, before_offset=2)
        ...         print(done.log_start, done.records)
        >>> run(example)
        2 2
        """
        request = requests.record_deletion(name, partition, before_offset, topic_id, dry_run=dry_run)
        answer = await self._request("DeleteRecords", request, admin.DeleteRecordsResponse)
        return results.RecordDeletion(dry_run, name, partition, answer.before, answer.log_start)

    async def offsets(self, topic: str, at: StartLike = "latest") -> dict[int, int]:
        """The offset of a position, per partition: earliest, latest, a time or a time ago.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.Admin(address) as admin:
        ...         print(await admin.offsets("quotes", "earliest"), await admin.offsets("quotes", "latest"))
        >>> run(example)
        {0: 0} {0: 3}
        """
        from comet.admin.find_offsets import find_offsets

        where = protobuf.position_to_pb(position(at, now_us=self._clock_us()))
        return await find_offsets(self._client, topic, where, self._timeout_ms)

    # ---- groups

    async def list_groups(self) -> list[GroupSummary]:
        """All groups, by name.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print(await admin.list_groups())
        >>> run(example)
        []
        """
        answer = await self._request("ListGroups", admin.ListGroupsRequest(), admin.ListGroupsResponse)
        return [group_protobuf.summary_from_pb(summary) for summary in answer.groups]

    async def describe_group(self, name: str) -> GroupInfo:
        """A group with its members, their assignments and lag. Raises GroupNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         await admin.reset_group("engine", "earliest", topics=["quotes"])
        ...         group = await admin.describe_group("engine")
        ...         print(group.summary.state, [lag.committed for lag in group.lags])
        >>> run(example)
        empty [0]
        """
        request = admin.DescribeGroupRequest(name=name)
        return group_protobuf.group_from_pb(await self._request("DescribeGroup", request, admin.DescribeGroupResponse))

    async def group_lag(self, name: GroupName, *, points: LagPoints = 300) -> results.GroupLag:
        """The lag of a group now, per partition, and its history, per topic, as long as it is kept.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.Admin(address) as admin:
        ...         await admin.reset_group("engine", 1, topics=["quotes"])
        ...         found = await admin.group_lag("engine")
        ...         print([lag.lag for lag in found.now])
        >>> run(example)
        [2]
        """
        request = admin.GroupLagRequest(name=name, points_max=points)
        return results.lag_from_pb(name, await self._request("GroupLag", request, admin.GroupLagResponse))

    async def reset_group(
        self,
        name: str,
        to: StartLike | None = None,
        *,
        shift: int | None = None,
        offsets: committed_offsets.Offsets | None = None,
        topics: Iterable[str | tuple[str, int]] = (),
        dry_run: bool = False,
    ) -> list[ResetPartition]:
        """Sets the committed offsets of a group without members: `to` earliest, latest, an offset, a time or a time
        ago, or by `shift` records. With `topics`, only those, or only single partitions of them; else all that it has
        committed. Or give single partitions `offsets` of their own. All are set, or none.
        With `dry_run` it only returns the effect. Raises GroupNotEmpty.

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
        request = requests.group_reset(name, to, shift, offsets, topics, now_us=self._clock_us(), dry_run=dry_run)
        answer = await self._request("ResetGroup", request, admin.ResetGroupResponse)
        return [group_protobuf.reset_from_pb(change) for change in answer.partitions]

    async def group_offsets(self, name: str) -> list[committed_offsets.CommittedOffset]:
        """The committed offsets of a group, by topic and partition; a share group has none. Raises GroupNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.Admin(address) as admin:
        ...         await admin.reset_group("engine", "latest", topics=["quotes"])
        ...         for found in await admin.group_offsets("engine"):
        ...             print(found.topic, found.partition, found.offset)
        >>> run(example)
        quotes 0 3
        """
        self._client.check_open()
        found = await committed_offsets.fetch(self._client, name, self._timeout_ms)
        if not found:
            await self.describe_group(name)  # raises GroupNotFound if the group does not exist
        return found

    async def commit_offsets(
        self, name: str, offsets: committed_offsets.Offsets
    ) -> list[committed_offsets.CommitResult]:
        """Commits offsets of a group without members, for readers without a session. A refusal is returned per
        partition, a temporary one after retries. A committed offset never goes back: a higher one stays and is
        returned; to go back use `reset_group`.

        Raises GroupNotEmpty, and InvalidArgument for a share group.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.Admin(address) as admin:
        ...         for done in await admin.commit_offsets("engine", {("quotes", 0): 2, ("quotes", 9): 2}):
        ...             print(done.partition, done.offset, done.error and done.error.code)
        >>> run(example)
        0 2 None
        9 None PARTITION_NOT_FOUND
        """
        self._client.check_open()
        return await committed_offsets.commit(self._client, name, offsets, self._timeout_ms)

    async def delete_group(self, name: GroupName, *, dry_run: bool = False) -> results.GroupDeletion:
        """Deletes a group without members, with its committed offsets. With `dry_run` nothing changes, and the answer
        is the effect. Raises GroupNotFound, GroupNotEmpty.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         await admin.reset_group("engine", "earliest", topics=["quotes"])
        ...         print((await admin.delete_group("engine")).offsets)
        ...         print(await admin.list_groups())
        >>> run(example)
        1
        []
        """
        request = admin.DeleteGroupRequest(name=name, dry_run=dry_run)
        answer = await self._request("DeleteGroup", request, admin.DeleteGroupResponse)
        return results.GroupDeletion(dry_run, name, answer.offsets, answer.lag)

    # ---- the cluster

    async def move_partition(
        self,
        name: TopicName,
        partition: PartitionIndex,
        replicas: ReplicaIds,
        *,
        dry_run: bool = False,
    ) -> results.PartitionMove:
        """Reassigns a partition to other, more or fewer brokers: their ids, the preferred leader first.

        Returns once it is decided; `describe_topic` shows when it is done. With `dry_run` nothing changes, and the
        answer is the effect. Raises BrokerNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         await admin.move_partition("quotes", 0, [2, 3, 1])
        """
        request = admin.MovePartitionRequest(name=name, partition=partition, replicas=replicas, dry_run=dry_run)
        answer = await self._request("MovePartition", request, admin.MovePartitionResponse)
        return results.move_from_pb(partition, tuple(replicas), answer, dry_run=dry_run)

    async def elect_leader(
        self,
        name: TopicName,
        partition: PartitionIndex,
        broker: NewLeader,
        *,
        accept_loss: AcceptLoss = False,
        dry_run: bool = False,
    ) -> results.LeaderElection:
        """Elects a replica leader of a partition without one, even if it lacks committed records. The last resort, when
        the complete replicas are damaged or will not come back: the others truncate to it.

        Returns once the election is decided. With `dry_run` nothing changes, and the answer says what would be lost.
        Raises InvalidArgument while the partition has or is about to get a leader, and without `accept_loss`;
        BrokerNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         await admin.elect_leader("quotes", 0, 2, accept_loss=True)
        """
        request = admin.ElectLeaderRequest(
            name=name, partition=partition, broker=broker, accept_loss=accept_loss, dry_run=dry_run
        )
        answer = await self._request("ElectLeader", request, admin.ElectLeaderResponse)
        return results.election_from_pb(partition, broker, answer, dry_run=dry_run)

    async def drain_broker(
        self, broker: BrokerId, *, undo: Annotated[bool, Input("Let it lead again.")] = False, dry_run: bool = False
    ) -> results.BrokerDrain:
        """Drains a broker before a stop: it hands over its leadership; with `undo` it may lead again.

        Returns at the start: call again until it leads no partition. With `dry_run` nothing changes, and the answer
        is the effect. Raises BrokerNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         while (await admin.drain_broker(2)).leading:
        ...             await asyncio.sleep(0.1)
        """
        request = admin.DrainBrokerRequest(broker=broker, undo=undo, dry_run=dry_run)
        answer = await self._request("DrainBroker", request, admin.DrainBrokerResponse)
        return results.drain_from_pb(broker, answer, dry_run=dry_run)

    async def resume(self, broker: OneBroker = None, *, dry_run: bool = False) -> results.Resumed:
        """Restarts parts of a broker that failed of an unexpected error: partitions, slots, groups, transactional ids.
        Without an id on every broker. The answer has those that are stopped after that; with `dry_run` those that are
        now. Raises BrokerNotFound, and Timeout if the metadata store does not answer.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         done = await admin.resume(1)
        ...         print(done.resumed, done.failed)
        >>> run(example)
        0 ()
        """
        request = admin.ResumeRequest(dry_run=dry_run)
        ids = [broker] if broker is not None else [one.id for one in (await self.describe_cluster()).brokers]
        answers = {one: await self._request_at(one, "Resume", request, admin.ResumeResponse) for one in ids}
        return results.resumed_from_pb(answers, dry_run=dry_run)

    async def recover_cluster(self, *, accept: str = "") -> recovery.ClusterRecovery:
        """Makes brokers accept a metadata store that went back in time or was emptied. Give this Admin the addresses of
        all brokers: the contents of their data folders decide.

        Without `accept` it is a dry run: the answer says what would be done and lost. Give its `digest` as `accept`
        to do it. Raises InvalidArgument if every broker trusts the store, or the answer has changed since.

        >>> async def example(addresses: list[str]) -> None:
        ...     async with comet.Admin(addresses) as admin:
        ...         plan = await admin.recover_cluster()
        ...         if not any(partition.loses for partition in plan.partitions):
        ...             await admin.recover_cluster(accept=plan.digest)
        """
        self._client.check_open()
        return await recovery.recover(self._client, accept)

    async def describe_cluster(self) -> ClusterInfo:
        """The brokers of the cluster, with the controller, the size of their data, and the defaults of new topics.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         cluster = await admin.describe_cluster()
        ...         print(len(cluster.brokers), cluster.topics, cluster.partitions)
        >>> run(example)
        1 1 1
        """
        answer = await self._request("DescribeCluster", admin.DescribeClusterRequest(), admin.DescribeClusterResponse)
        return results.cluster_from_pb(answer)

    async def describe_broker(self, broker: int) -> BrokerDetails:
        """A broker and its most important numbers. Raises BrokerNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         found = await admin.describe_broker(1)
        ...         print(found.controller, found.leading, found.failed)
        >>> run(example)
        True 1 ()
        """
        found = (await self.describe_cluster()).broker(broker)
        return results.broker_details(found, await self.statistics(broker, brief=True))

    async def statistics(
        self, broker: int | None = None, *, brief: bool = False, topics: bool = False, groups: bool = False
    ) -> dict[str, Any]:
        """The statistics of a broker; without an id, of any broker. `brief` leaves out the figures of single partitions
        and clients, which may be many. `topics` adds the partitions that the broker leads, by topic, and `groups` the
        groups that it coordinates. Rates are those of the last 10 s. Raises BrokerNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print((await admin.statistics())["partitions"][0]["log_end"])
        ...         found = await admin.statistics(1, brief=True, topics=True, groups=True)
        ...         print(found["totals"]["leading"], found["topics"]["quotes"]["records"], found["groups"])
        >>> run(example)
        0
        1 0 []
        """
        import msgspec

        request = admin.StatisticsRequest(brief=brief, topics=topics, groups=groups)
        answer = await self._request_at(broker, "Statistics", request, admin.StatisticsResponse)
        found: dict[str, Any] = msgspec.json.decode(answer.json)
        return found

    async def history(
        self,
        broker: int | None = None,
        *,
        topics: Iterable[str] = (),
        every_topic: bool = False,
        groups: Iterable[str] = (),
        step_s: int = 1,
        since_us: int = 0,
    ) -> cluster_history.History:
        """The history of a broker's figures, and the events of the cluster, as long as it keeps them: each second of a
        quarter of an hour or, with a step of minutes, a day. Also figures of topics, counted as their leader, and of
        groups, wherever they are coordinated; unknown figures have no track. To continue from an earlier answer, give
        the `end_us` of its tracks as `since_us`. Raises BrokerNotFound, and LimitExceeded for too much at once.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         await admin.create_topic("trades")
        ...         found = await admin.history(1, step_s=60)
        ...         print(len(found.tracks[0].values), [event.kind for event in found.events])
        >>> run(example)
        1440 [...]
        """
        if step_s < 1:
            raise InvalidArgument(f"step_s must be at least 1, not {step_s!r}")
        request = admin.HistoryRequest(
            topics=topics, every_topic=every_topic, groups=groups, step_s=step_s, since_us=since_us
        )
        return cluster_history.history_from_pb(
            await self._request_at(broker, "History", request, admin.HistoryResponse)
        )

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
