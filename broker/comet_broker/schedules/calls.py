"""The calls about schedules: protobuf in and out.

    call ─► the partition of topic and id ─► its leader: here, or forwarded once ─► its Keeper
    list ─► the leaders of all partitions ─► merged by topic and id

Any broker takes them. The first schedule of a cluster creates the topic `__schedules`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias, TypeVar

from google.protobuf.message import Message

from comet.errors import CometError, InvalidArgument, ScheduleNotFound, TopicExists, TopicNotFound, Unavailable
from comet.types import SCHEDULES_TOPIC
from comet.v1 import admin_pb2 as admin
from comet.v1 import schedules_pb2 as pb
from comet.v1 import types_pb2 as types
from comet.wire.protobuf import error_to_pb, settings_to_pb
from comet_broker import limits
from comet_broker.access.client_access import caller
from comet_broker.admin.calendars import Calendars
from comet_broker.cluster.peers import Peers
from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import NO_BROKER
from comet_broker.env import Env
from comet_broker.partitions.drain import Drain
from comet_broker.partitions.topics import TopicTable
from comet_broker.schedules.changes import PARTITIONS, made, moved, partition_of, paused, resumed, run
from comet_broker.schedules.keeper import Change, Keeper
from comet_broker.schedules.listing import merged, page_of
from comet_broker.schedules.scheduler import Scheduler
from comet_broker.schedules.targets import TopicTargets

FORWARD_S_MAX: Final = 10.0
REPLICAS: Final = 3
TOMBSTONES_MS: Final = 3_600_000  # longer than repeated requests are recognized

M = TypeVar("M", bound=Message)
Create: TypeAlias = Callable[[admin.CreateTopicRequest], Awaitable[types.Topic]]


class AdminSchedules:
    """The coroutines behind the calls; raises CometErrors. Owned by the broker."""

    def __init__(
        self,
        env: Env,
        *,
        view: ClusterView,
        peers: Peers,
        topics: TopicTable,
        drain: Drain,
        scheduler: Scheduler,
        targets: TopicTargets,
        calendars: Calendars,
        create: Create,
    ) -> None:
        self._env = env
        self._view = view
        self._peers = peers
        self._topics = topics
        self._drain = drain
        self._ready = scheduler.ready
        self._targets = targets
        self._calendars = calendars
        self._create = create

    # ---- puts

    async def put_schedules(self, request: pb.PutSchedulesRequest) -> pb.PutSchedulesResponse:
        self._drain.check()
        if not 1 <= len(request.schedules) <= limits.SCHEDULES_PUT_MAX:
            raise InvalidArgument(
                f"put_schedules takes 1 to {limits.SCHEDULES_PUT_MAX} schedules, not {len(request.schedules)}"
            )
        if not request.forwarded:
            await self._name(request)
        by_partition: dict[int, list[int]] = defaultdict(list)  # partition -> positions in the request
        for position, put in enumerate(request.schedules):
            by_partition[partition_of(request.topic, put.schedule.id)].append(position)
        results = [pb.SchedulePutResult()] * len(request.schedules)
        answers = await asyncio.gather(
            *(self._put_to(index, request, positions) for index, positions in by_partition.items())
        )
        for positions, found in zip(by_partition.values(), answers, strict=True):
            for position, one in zip(positions, found, strict=True):
                results[position] = one
        return pb.PutSchedulesResponse(results=results)

    async def _name(self, request: pb.PutSchedulesRequest) -> None:
        """Writes down whose schedules they are, and makes the ids that are missing."""
        if request.topic not in self._view.state.topics:
            await self._topics.wait_for(request.topic)
        self._topics.spec(request.topic)
        await self._create_topic()
        access = caller()
        for put in request.schedules:
            put.schedule.author = access.principal
            put.schedule.author_roles[:] = access.roles
            if not put.schedule.id:
                put.schedule.id = f"{self._env.random.getrandbits(128):032x}"
                put.fresh = True

    async def _put_to(
        self, index: int, request: pb.PutSchedulesRequest, positions: Sequence[int]
    ) -> Sequence[pb.SchedulePutResult]:
        chosen = [request.schedules[position] for position in positions]
        try:
            address = None if request.forwarded else self._led_elsewhere(index)
            if address is not None:
                passed_on = pb.PutSchedulesRequest(
                    topic=request.topic, schedules=chosen, dry_run=request.dry_run, forwarded=True
                )
                answer = await self._forward(address, "PutSchedules", passed_on, pb.PutSchedulesResponse)
                return answer.results
            keeper = await self._ready(index)
        except CometError as error:
            return [pb.SchedulePutResult(error=error_to_pb(error))] * len(chosen)
        return await asyncio.gather(
            *(self._put_here(keeper, request.topic, put, dry_run=request.dry_run) for put in chosen)
        )

    async def _put_here(
        self, keeper: Keeper, topic: str, put: pb.SchedulePut, *, dry_run: bool
    ) -> pb.SchedulePutResult:
        try:
            if put.fresh and put.HasField("revision"):
                raise InvalidArgument("a schedule with a fresh id has no revision")
            schedule = made(put, topic, self._env.clock.wall_us(), self._calendars.read())
            schedule.author = put.schedule.author
            schedule.author_roles[:] = put.schedule.author_roles
            self._targets.check(schedule)
            stored, created = await keeper.put(
                schedule,
                revision=put.revision if put.HasField("revision") else None,
                fresh=put.fresh,
                dry_run=dry_run,
            )
        except CometError as error:
            return pb.SchedulePutResult(error=error_to_pb(error))
        found = pb.Schedule()
        found.CopyFrom(stored)
        found.ClearField("record")
        return pb.SchedulePutResult(schedule=found, created=created)

    async def _create_topic(self) -> None:
        """Creates the topic, if the cluster has none. Two brokers may try at once. A cluster that is still starting has
        to wait, so that no schedule is on fewer brokers than other records."""
        state = self._view.state
        if SCHEDULES_TOPIC in state.topics:
            return
        replicas = min(REPLICAS, self._env.config.default_replicas)
        if len(state.brokers) < replicas:
            raise Unavailable(
                f"topic {SCHEDULES_TOPIC} is created once {replicas} brokers are there, and {len(state.brokers)} are",
                retry_after_ms=500,
            )
        settings = {
            "cleanup_policy": "compact",
            "delete_retention_ms": TOMBSTONES_MS,
            "min_insync": max(1, replicas - 1),
        }
        request = admin.CreateTopicRequest(
            name=SCHEDULES_TOPIC, partitions=PARTITIONS, replicas=replicas, config=settings_to_pb(settings)
        )
        with suppress(TopicExists):
            await self._create(request)

    # ---- one schedule

    async def get_schedule(self, request: pb.ScheduleRequest) -> pb.Schedule:
        async def here(keeper: Keeper) -> pb.Schedule:
            return await keeper.get(request.topic, request.id)

        return await self._at_leader("GetSchedule", request, here)

    async def cancel_schedule(self, request: pb.ScheduleRequest) -> pb.Schedule:
        return await self._change("CancelSchedule", request, lambda _: None)

    async def pause_schedule(self, request: pb.ScheduleRequest) -> pb.Schedule:
        return await self._change("PauseSchedule", request, paused)

    async def resume_schedule(self, request: pb.ScheduleRequest) -> pb.Schedule:
        return await self._change(
            "ResumeSchedule", request, lambda one: resumed(one, self._env.clock.wall_us(), self._calendars.read())
        )

    async def run_schedule(self, request: pb.ScheduleRequest) -> pb.Schedule:
        return await self._change("RunSchedule", request, lambda one: run(one, self._env.clock.wall_us()))

    async def move_schedule(self, request: pb.MoveScheduleRequest) -> pb.Schedule:
        return await self._change(
            "MoveSchedule",
            request,
            lambda one: moved(one, request.spec, self._env.clock.wall_us(), self._calendars.read()),
        )

    async def _change(
        self, method: str, request: pb.ScheduleRequest | pb.MoveScheduleRequest, change: Change
    ) -> pb.Schedule:
        self._drain.check()

        async def here(keeper: Keeper) -> pb.Schedule:
            revision = request.revision if request.HasField("revision") else None
            return await keeper.change(request.topic, request.id, change, revision=revision, dry_run=request.dry_run)

        return await self._at_leader(method, request, here)

    async def _at_leader(
        self,
        method: str,
        request: pb.ScheduleRequest | pb.MoveScheduleRequest,
        here: Callable[[Keeper], Awaitable[pb.Schedule]],
    ) -> pb.Schedule:
        if not self._topics.exists(SCHEDULES_TOPIC):
            raise ScheduleNotFound("this cluster has no schedules")
        index = partition_of(request.topic, request.id)
        address = None if request.forwarded else self._led_elsewhere(index)
        if address is None:
            return await here(await self._ready(index))
        passed_on = type(request)()
        passed_on.MergeFromString(request.SerializeToString())
        passed_on.forwarded = True
        return await self._forward(address, method, passed_on, pb.Schedule)

    # ---- lists

    async def list_schedules(self, request: pb.ListSchedulesRequest) -> pb.ListSchedulesResponse:
        if request.limit > limits.SCHEDULES_LISTED_MAX:
            raise InvalidArgument(f"the limit of a list is at most {limits.SCHEDULES_LISTED_MAX}")
        if request.prefix and not request.topic:
            raise InvalidArgument("a prefix of ids goes with a topic")
        access = caller()  # another broker may read everything, and leaves out what its own caller may not
        if request.HasField("partition"):
            pages = [await page_of(await self._ready(request.partition), request)]
        elif self._topics.exists(SCHEDULES_TOPIC):
            pages = await asyncio.gather(*(self._page(index, request) for index in range(PARTITIONS)))
        else:
            pages = []
        return merged(pages, request.limit or 100, lambda topic: access.allows("read", "topic", topic))

    async def _page(self, index: int, request: pb.ListSchedulesRequest) -> pb.ListSchedulesResponse:
        address = self._led_elsewhere(index)
        if address is None:
            return await page_of(await self._ready(index), request)
        passed_on = pb.ListSchedulesRequest()
        passed_on.CopyFrom(request)
        passed_on.partition, passed_on.forwarded = index, True
        return await self._forward(address, "ListSchedules", passed_on, pb.ListSchedulesResponse)

    # ---- leaders

    def _led_elsewhere(self, index: int) -> str | None:
        """The address of the partition's leader; None if that is this broker."""
        spec = self._view.state.topics.get(SCHEDULES_TOPIC)
        if spec is None:
            raise TopicNotFound(f"topic {SCHEDULES_TOPIC!r} does not exist")
        state = self._topics.state_of(spec.value.id, index)
        leader = NO_BROKER if state is None else state.leader
        if leader == self._env.me:
            return None
        address = None if leader == NO_BROKER else self._view.address_of(leader)
        if address is None:
            raise Unavailable(f"partition {index} of {SCHEDULES_TOPIC} has no leader now", retry_after_ms=50)
        return address

    async def _forward(self, address: str, method: str, request: Message, response: type[M]) -> M:
        return await self._peers.call(address, f"comet.v1.Admin/{method}", request, response, FORWARD_S_MAX)
