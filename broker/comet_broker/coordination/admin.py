"""Groups for operators: list, describe, lag, reset, delete. Any broker answers; it asks the coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from comet.errors import (
    CoordinatorLoading,
    GroupNotEmpty,
    GroupNotFound,
    InvalidArgument,
    NotCoordinator,
    Timeout,
    Unavailable,
)
from comet.v1 import admin_pb2 as pb
from comet.v1 import groups_pb2 as groups_pb
from comet_broker import limits
from comet_broker.access.client_access import caller
from comet_broker.cluster.peers import Peers
from comet_broker.cluster.view import ClusterView
from comet_broker.coordination.coordinator import Coordinator
from comet_broker.coordination.group import LiveGroup
from comet_broker.coordination.group_lag_report import partition_lags, shared_lags
from comet_broker.coordination.group_messages import add_partitions
from comet_broker.coordination.group_summary import state_of, topics_of
from comet_broker.coordination.groups import Groups
from comet_broker.coordination.reset import reset
from comet_broker.core import slots
from comet_broker.core.group_members import CONSUMER
from comet_broker.env import Env
from comet_broker.metadata.store import MetadataStore, StoreUnavailable

FIND_S_MAX: Final = 5.0  # the longest wait of a call for a coordinator
REQUEST_S_MAX: Final = 10.0
LIST_S_MAX: Final = 2.0
PAUSE_S: Final = 0.02
POINTS: Final = 300
POINTS_MAX: Final = 10_000

M = TypeVar("M", bound=Any)


class GroupAdmin:
    """The coroutines behind the unary calls, protobuf in and out; raises CometErrors.

    delete_shares   deletes the states of a share group, by its name; see sharing.table
    """

    def __init__(
        self,
        env: Env,
        *,
        store: MetadataStore,
        view: ClusterView,
        peers: Peers,
        coordinator: Coordinator,
        delete_shares: Callable[[str], Awaitable[object]],
    ) -> None:
        self._env = env
        self._store = store
        self._view = view
        self._peers = peers
        self._coordinator = coordinator
        self._delete_shares = delete_shares

    # ---- reading

    async def list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        """Lists the groups. Waits a moment for slots without a coordinator, so that the list is complete."""
        clock = self._env.clock
        give_up = clock.monotonic() + FIND_S_MAX
        while True:
            try:
                return await self._list(request)
            except (CoordinatorLoading, Timeout, Unavailable):
                if request.local or clock.monotonic() >= give_up:
                    raise
            await asyncio.sleep(PAUSE_S)

    async def _list(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        unready = self._coordinator.unready()
        if unready:
            raise CoordinatorLoading(
                f"{len(unready)} slots of groups have no coordinator right now, so the list would be incomplete; retry",
                retry_after_ms=100,
            )
        found = [
            self._summary(slot.groups, group)
            for slot in self._coordinator.ready_slots()
            for group in slot.groups
            if group.exists or group.machine.members
        ]
        if not request.local:
            owners = {self._coordinator.owner(number) for number in self._view.state.coordinators}
            others = sorted(owner for owner in owners if owner not in (None, self._env.me))
            for answer in await asyncio.gather(*(self._listed_by(broker) for broker in others)):
                found.extend(answer)
        by_name = {summary.name: summary for summary in found}
        visible = filter(partial(caller().allows, "describe", "group"), sorted(by_name))
        return pb.ListGroupsResponse(groups=[by_name[name] for name in visible])

    async def reading(self, topic: str) -> tuple[list[pb.GroupSummary], bool]:
        """The groups that read a topic, and whether these are all: without a wait for coordinators."""
        try:
            listed = await self._list(pb.ListGroupsRequest())
        except (CoordinatorLoading, Timeout, Unavailable):
            return [], False
        return [group for group in listed.groups if topic in group.topics], True

    async def _listed_by(self, broker: int) -> list[pb.GroupSummary]:
        address = self._view.address_of(broker)
        if address is None:
            raise Unavailable(f"broker {broker} is no longer registered", retry_after_ms=100)
        request = pb.ListGroupsRequest(local=True)
        answer = await self._peers.call(
            address, "comet.v1.Admin/ListGroups", request, pb.ListGroupsResponse, LIST_S_MAX
        )
        return list(answer.groups)

    def _summary(self, groups: Groups, group: LiveGroup) -> pb.GroupSummary:
        machine = group.machine
        return pb.GroupSummary(
            name=group.name,
            kind=groups_pb.GroupKind.Name(machine.kind),
            state=state_of(group),
            members=len(machine.members),
            coordinator=self._env.me,
            generation=machine.generation,
            topics=topics_of(groups, group),
            assignment=machine.strategy if machine.kind == CONSUMER else "",
        )

    async def describe_group(self, request: pb.DescribeGroupRequest) -> pb.DescribeGroupResponse:
        return await self._at_coordinator("DescribeGroup", request, pb.DescribeGroupResponse, self._describe)

    async def _describe(self, groups: Groups, request: pb.DescribeGroupRequest) -> pb.DescribeGroupResponse:
        group = _found(groups, request.name)
        lags = await self._lags(groups, group)
        now = self._env.clock.monotonic()
        views = group.machine.views()
        members = []
        for member in group.machine.members.values():
            one = pb.GroupMember(
                id=member.id,
                instance=member.instance,
                client=member.client,
                silent_ms=max(0, round((now - member.heard) * 1000)),
                session_timeout_ms=round(member.session_s * 1000),
                assignment=member.assignment if group.machine.kind == CONSUMER else "",
                rack=member.rack,
            )
            add_partitions(one.owned, views[member.id].owned, groups.topics.name_of)
            add_partitions(one.release, views[member.id].release, groups.topics.name_of)
            members.append(one)
        return pb.DescribeGroupResponse(
            summary=self._summary(groups, group), members=members, lags=lags, rebalances_us=group.rebalances.times_us
        )

    async def _lags(self, groups: Groups, group: LiveGroup) -> list[pb.PartitionLag]:
        if group.machine.kind == CONSUMER:
            return await partition_lags(groups, group, self._env.clock.wall_us)
        return await shared_lags(groups, group, self._store, self._env.clock.wall_us)

    async def group_lag(self, request: pb.GroupLagRequest) -> pb.GroupLagResponse:
        return await self._at_coordinator("GroupLag", request, pb.GroupLagResponse, self._group_lag)

    async def _group_lag(self, groups: Groups, request: pb.GroupLagRequest) -> pb.GroupLagResponse:
        group = _found(groups, request.name)
        answer = pb.GroupLagResponse(now=await self._lags(groups, group))
        points_max = min(request.points_max or POINTS, POINTS_MAX)
        found = [
            pb.LagPoint(
                time_us=point.time_us,
                topic=group.offsets.names.get(topic_id) or groups.topics.name_of(topic_id),
                lag=point.lag,
                age_s=point.age_s,
                committed=point.committed,
                end=point.end,
            )
            for topic_id, points in groups.lag.history(group)
            for point in thinned(points, points_max)
        ]
        answer.history.extend(sorted(found, key=lambda point: (point.time_us, point.topic)))
        return answer

    # ---- changing

    async def reset_group(self, request: pb.ResetGroupRequest) -> pb.ResetGroupResponse:
        return await self._at_coordinator("ResetGroup", request, pb.ResetGroupResponse, reset)

    async def delete_group(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
        return await self._at_coordinator("DeleteGroup", request, pb.DeleteGroupResponse, self._delete)

    async def _delete(self, groups: Groups, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
        group = _found(groups, request.name)
        if group.machine.members:
            raise GroupNotEmpty(f"group {group.name!r} has members ({len(group.machine.members)}); stop them first")
        lags = await self._lags(groups, group)
        answer = pb.DeleteGroupResponse(
            offsets=sum(lag.HasField("committed") for lag in lags), lag=sum(lag.lag for lag in lags)
        )
        if request.dry_run:
            return answer
        group = _found(groups, request.name)  # again, after an await
        if group.machine.members:
            raise GroupNotEmpty(f"a member has joined group {group.name!r} just now")
        if group.machine.kind != CONSUMER:
            try:
                await self._delete_shares(group.name)
            except StoreUnavailable as error:
                raise Timeout(f"the metadata store did not answer; try again: {error}") from error
            if group.machine.members:
                raise GroupNotEmpty(f"a member has joined group {group.name!r} just now")
        await groups.delete(group)
        if group.machine.kind != CONSUMER:
            await asyncio.sleep(limits.SHARE_CHECK_S)  # from then on no leader acquires for the group
        return answer

    # ---- finding the coordinator

    async def _at_coordinator(
        self, method: str, request: Any, response: type[M], here: Callable[[Groups, Any], Awaitable[M]]
    ) -> M:
        """Answers here if this broker coordinates the group, else forwards the request."""
        number = slots.slot_of(slots.check_name(request.name))
        loop = asyncio.get_running_loop()
        give_up = loop.time() + FIND_S_MAX
        while True:
            try:
                return await here(self._coordinator.slot(number).groups, request)
            except CoordinatorLoading:
                if loop.time() > give_up:
                    raise
            except NotCoordinator:
                if request.forwarded or loop.time() > give_up:
                    raise
                try:
                    return await self._pass_on(number, method, request, response)
                except NotCoordinator:
                    pass  # the coordinator is moving
                except Unavailable:
                    if loop.time() > give_up or method == "ResetGroup":  # a reset may have taken effect
                        raise
            await asyncio.sleep(PAUSE_S)

    async def _pass_on(self, number: int, method: str, request: Any, response: type[M]) -> M:
        broker, record = self._coordinator.whereabouts(number)
        if broker == self._env.me:
            raise CoordinatorLoading("this broker is about to coordinate the group")
        passed_on = type(request)()
        passed_on.CopyFrom(request)
        passed_on.forwarded = True
        address = record.brokers_address
        return await self._peers.call(address, f"comet.v1.Admin/{method}", passed_on, response, REQUEST_S_MAX)


def _found(groups: Groups, name: str) -> LiveGroup:
    group = groups.find(name)
    if group is None or not (group.exists or group.machine.members):
        raise GroupNotFound(f"group {name!r} does not exist")
    return group


T = TypeVar("T")


def thinned(points: Sequence[T], points_max: int) -> Iterable[T]:
    """At most that many points, evenly spread, with the last one."""
    if points_max < 1:
        raise InvalidArgument("points_max must be at least 1")
    if len(points) <= points_max:
        return points
    step = len(points) / points_max
    return [points[len(points) - 1 - int(number * step)] for number in range(points_max)][::-1]
