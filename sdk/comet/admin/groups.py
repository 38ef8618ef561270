"""Groups, for people who run them: the part of Admin that is about them, and what it asks with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from types import TracebackType
from typing import Final, Self, TypeVar

from google.protobuf.message import Message

from comet import limits
from comet.client.client import Addresses, Client
from comet.errors import InvalidArgument
from comet.groups import committed_offsets
from comet.groups.committed_offsets import CommitResult, CommittedOffset, Offsets
from comet.producer.producer import wall_clock_us
from comet.types import (
    GroupInfo,
    GroupSummary,
    LagPoint,
    PartitionLag,
    ResetPartition,
    StartLike,
    position,
)
from comet.v1 import admin_pb2 as admin
from comet.v1 import groups_pb2 as groups
from comet.wire import group_protobuf, protobuf
from comet.wire.transport import Connect

M = TypeVar("M", bound=Message)

SERVICE: Final = "comet.v1.Admin/"


class GroupAdmin:
    """What Admin does with groups; Admin is the one to use."""

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
        return await self._client.unary(SERVICE + method, request, response, self._timeout_ms)

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
        return [group_protobuf.summary_from_pb(summary) for summary in answer.groups]

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
        return group_protobuf.group_from_pb(await self._ask("DescribeGroup", request, admin.DescribeGroupResponse))

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
            [group_protobuf.lag_from_pb(lag) for lag in answer.now],
            [group_protobuf.point_from_pb(point) for point in answer.history],
        )

    async def reset_group(
        self,
        name: str,
        to: StartLike | None = None,
        *,
        shift: int | None = None,
        offsets: Offsets | None = None,
        topics: Iterable[str | tuple[str, int]] = (),
        dry_run: bool = False,
    ) -> list[ResetPartition]:
        """Sets where a group without members goes on: `to` an end, an offset, a time or a time ago, or by `shift`
        events. With `topics`, only those, or only single partitions of them; else all that it has committed.
        Or give single partitions `offsets` of their own. All are set, or none.
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
        if [to, shift, offsets].count(None) != 2:
            raise InvalidArgument("give either a position, a shift or offsets")
        if to is not None:
            request.position.CopyFrom(protobuf.position_to_pb(position(to, now_us=self._clock_us())))
        elif shift is not None:
            request.shift = shift
        else:
            request.offsets.extend(committed_offsets.topic_offsets(offsets or {}))
        request.topics.extend(_selected(topics))
        answer = await self._ask("ResetGroup", request, admin.ResetGroupResponse)
        return [group_protobuf.reset_from_pb(change) for change in answer.partitions]

    async def group_offsets(self, name: str) -> list[CommittedOffset]:
        """Where a group goes on, by topic and partition; a share group has no committed offsets. Raises GroupNotFound.

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
            await self.describe_group(name)  # which says whether there is one
        return found

    async def commit_offsets(self, name: str, offsets: Offsets) -> list[CommitResult]:
        """Commits committed offsets of a group that has no members, for readers that keep no session. What is refused
        is told for each partition; what is refused for now is tried again first. A committed offset never goes back:
        where more is committed, that is the answer; to go back there is `reset_group`.

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

    async def delete_group(self, name: str) -> None:
        """Forgets a group without members, with its committed offsets. Raises GroupNotFound, GroupNotEmpty.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         await admin.reset_group("engine", "earliest", topics=["quotes"])
        ...         await admin.delete_group("engine")
        ...         print(await admin.list_groups())
        >>> run(example)
        []
        """
        await self._ask("DeleteGroup", admin.DeleteGroupRequest(name=name), admin.DeleteGroupResponse)

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


def _selected(topics: Iterable[str | tuple[str, int]]) -> list[groups.TopicPartitions]:
    found: dict[str, set[int]] = {}
    for one in topics:
        topic, indexes = (one, ()) if isinstance(one, str) else (one[0], (one[1],))
        found.setdefault(topic, set()).update(indexes)
    return [groups.TopicPartitions(topic=topic, partitions=sorted(indexes)) for topic, indexes in found.items()]
