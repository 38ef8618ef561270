"""Acquire and Acknowledge: records of share groups for clients without a stream, one call at a time.

    Acquire       ─► the group is created ─► its states here ─► an AcquireCall queued at each ─► answer
    Acknowledge   ─► per acknowledgement: its state here ─► the ticket of that number ─► stored ─► answer

Any broker takes these calls; requests for another broker's partitions are forwarded to it, once. States are opened some
at a time and used as soon as they are open, so that a call takes no longer for a topic of many partitions: the rest is
opened for the next call.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Final

from comet.errors import (
    CometError,
    InvalidArgument,
    LeadershipLost,
    NotLeader,
    PartitionNotFound,
    Unavailable,
)
from comet.types import Position
from comet.v1 import groups_pb2 as pb
from comet.wire.protobuf import error_to_pb
from comet_broker import limits
from comet_broker.cluster.peers import Peers
from comet_broker.cluster.view import ClusterView
from comet_broker.coordination.founding import Founding
from comet_broker.core.cluster import NO_BROKER, TopicSpec
from comet_broker.core.slots import check_name
from comet_broker.env import Env
from comet_broker.partitions.drain import Drain
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.topics import TopicTable
from comet_broker.sharing.acquire_call import AcquireCall
from comet_broker.sharing.context import Agreed, Range
from comet_broker.sharing.state import SharePartition
from comet_broker.sharing.table import ShareTable
from comet_broker.sharing.terms import acknowledge_here, agreed_of, check_acknowledgement, check_dead_letter, start_of

FORWARD_S_MAX: Final = 30.0
ACQUIRE_FORWARD_S_MAX: Final = 5.0  # beyond what it waits for
TOGETHER_MAX: Final = 128  # partitions that one call opens at once
TOGETHER_S: Final = 0.5  # after which the open ones are used without the others
FOUNDED_S: Final = 30.0  # after which the coordinator is asked again

ByLeader = dict[str | None, list[int]]  # by leader; None: this broker


class AcquireCalls:
    """The coroutines behind the unary calls, protobuf in and out; raises CometErrors."""

    def __init__(
        self,
        env: Env,
        *,
        view: ClusterView,
        peers: Peers,
        topics: TopicTable,
        table: ShareTable,
        founding: Founding,
        drain: Drain,
    ) -> None:
        self._env = env
        self._view = view
        self._peers = peers
        self._topics = topics
        self._table = table
        self._founding = founding
        self._drain = drain

    # ---- acquiring

    async def acquire(self, request: pb.AcquireRequest) -> pb.AcquireResponse:
        self._drain.check()
        check_name(request.group)
        if request.records_max > limits.ACQUIRE_RECORDS_MAX:
            raise InvalidArgument(f"records_max is at most {limits.ACQUIRE_RECORDS_MAX}, not {request.records_max}")
        agreed, start = agreed_of(request.options), start_of(request.options)
        check_dead_letter(agreed, request.topic)
        await self._wait_for_topic(request.topic)
        spec = self._topics.spec(request.topic)
        wait_s = min(request.wait_ms, limits.FETCH_WAIT_MS_MAX) / 1000
        address, indexes = self._where(spec, request)
        if address is not None:
            passed_on = pb.AcquireRequest()
            passed_on.CopyFrom(request)
            passed_on.partitions[:] = indexes
            passed_on.forwarded = True
            return await self._peers.call(
                address, "comet.v1.Comet/Acquire", passed_on, pb.AcquireResponse, ACQUIRE_FORWARD_S_MAX + wait_s
            )
        table = self._table
        table.turn += 1
        at = table.turn % len(indexes)
        indexes = indexes[at:] + indexes[:at]
        with self._env.in_flight.waiting_call():
            call = AcquireCall(self._env.random.randrange(1, 1 << 64), request, indexes)
            table.calls.add(call)
            try:
                return await call.run(self._open(call, request, spec, indexes, agreed, start), wait_s)
            finally:
                table.calls.discard(call)

    async def _wait_for_topic(self, topic: str) -> None:
        if not self._topics.exists(topic):
            await self._topics.wait_for(topic)

    def _where(self, spec: TopicSpec, request: pb.AcquireRequest) -> tuple[str | None, list[int]]:
        """One broker, None for this one, and the requested partitions there: the named ones, or all that it leads."""
        for index in request.partitions:
            if index >= spec.partitions:
                raise PartitionNotFound(
                    f"topic {request.topic!r} has partitions 0 to {spec.partitions - 1}, not {index}"
                )
        named = list(dict.fromkeys(request.partitions))
        if request.forwarded:
            return None, named
        by_leader = self._by_leader(spec, named or range(spec.partitions))
        if None in by_leader:
            return None, named or by_leader[None]
        if not by_leader:
            raise Unavailable(f"no partition of {request.topic!r} has a leader now", retry_after_ms=100)
        table = self._table
        table.turn += 1
        address = list(by_leader)[table.turn % len(by_leader)]
        return address, by_leader[address]

    def _by_leader(self, spec: TopicSpec, indexes: Sequence[int]) -> ByLeader:
        found: ByLeader = defaultdict(list)
        for index in indexes:
            state = self._topics.state_of(spec.id, index)
            if state is None or state.leader == NO_BROKER:
                continue
            here = state.leader == self._env.me
            address = None if here else self._view.address_of(state.leader)
            if here or address is not None:
                found[address].append(index)
        return found

    async def _open(
        self,
        call: AcquireCall,
        request: pb.AcquireRequest,
        spec: TopicSpec,
        indexes: Sequence[int],
        agreed: Agreed,
        start: Position,
    ) -> None:
        """Queues the call at each of the partitions, some at a time. Openings that take longer than the call finish for
        the next one."""
        topic_id, left = bytes.fromhex(spec.id), deque(indexes)
        opening: dict[asyncio.Task[SharePartition | CometError], int] = {}
        while left or opening:
            await self._found(request.group, topic_id)
            chosen = {
                self._env.tasks.spawn(self._open_one(request, index, agreed, start), "open for a lock"): index
                for index in (left.popleft() for _ in range(min(len(left), TOGETHER_MAX)))
            }
            opening |= chosen
            if chosen:
                await asyncio.wait(chosen, timeout=TOGETHER_S)
            else:
                await asyncio.wait(opening, return_when=asyncio.FIRST_COMPLETED)
            await self._found(request.group, topic_id)  # the group may have been deleted and begun again
            for task in [task for task in opening if task.done()]:
                call.queue_at(opening.pop(task), task.result(), agreed)
            call.rouse()

    async def _open_one(
        self, request: pb.AcquireRequest, index: int, agreed: Agreed, start: Position
    ) -> SharePartition | CometError:
        try:
            partition = _led(self._topics, request.topic, index)
            return await self._table.open(partition, request.group, agreed, start)
        except CometError as error:
            return error

    async def _found(self, group: str, topic_id: bytes) -> None:
        """Has the group's coordinator create the group, with the topic."""
        table, now = self._table, self._env.clock.monotonic()
        if table.founded.get((group, topic_id), now) > now:
            return
        await self._founding.found(group, topic_id)
        if len(table.founded) >= limits.SHARES_MAX:
            table.founded.clear()
        table.founded[group, topic_id] = now + FOUNDED_S

    # ---- acknowledging

    async def acknowledge(self, request: pb.AcknowledgeRequest) -> pb.AcknowledgeResponse:
        check_name(request.group)
        if len(request.acknowledgements) > limits.ACKNOWLEDGEMENTS_MAX:
            raise InvalidArgument(
                f"{limits.ACKNOWLEDGEMENTS_MAX} acknowledgements at most, not {len(request.acknowledgements)}"
            )
        for acknowledgement in request.acknowledgements:
            check_acknowledgement(acknowledgement)
        if (
            sum(sum(acknowledgement.ends) - sum(acknowledgement.firsts) for acknowledgement in request.acknowledgements)
            > limits.SHARE_WINDOW_RECORDS_MAX
        ):
            raise InvalidArgument(f"{limits.SHARE_WINDOW_RECORDS_MAX} records at most are acknowledged in one call")
        await self._wait_for_topic(request.topic)
        by_leader: dict[str | None, list[int]] = defaultdict(list)
        for number, acknowledgement in enumerate(request.acknowledgements):
            by_leader[self._whereabouts(request, acknowledgement)].append(number)
        answers: list[pb.AcknowledgeResult] = [pb.AcknowledgeResult()] * len(request.acknowledgements)
        found = await asyncio.gather(
            *(self._acknowledge_at(address, request, one) for address, one in by_leader.items())
        )
        for numbers, acknowledged in zip(by_leader.values(), found, strict=True):
            for number, one in zip(numbers, acknowledged, strict=True):
                answers[number] = one
        return pb.AcknowledgeResponse(acknowledged=answers)

    def _whereabouts(self, request: pb.AcknowledgeRequest, acknowledgement: pb.Acknowledgement) -> str | None:
        state = self._topics.state_of(acknowledgement.topic_id.hex(), acknowledgement.partition)
        if request.forwarded or state is None or state.leader in (NO_BROKER, self._env.me):
            return None
        return self._view.address_of(state.leader)

    async def _acknowledge_at(
        self, address: str | None, request: pb.AcknowledgeRequest, numbers: Sequence[int]
    ) -> Sequence[pb.AcknowledgeResult]:
        chosen = [request.acknowledgements[number] for number in numbers]
        if address is None:
            return await asyncio.gather(
                *[self._acknowledge_here(request, acknowledgement) for acknowledgement in chosen]
            )
        passed_on = pb.AcknowledgeRequest(
            group=request.group, topic=request.topic, acknowledgements=chosen, forwarded=True
        )
        try:
            answer = await self._peers.call(
                address, "comet.v1.Comet/Acknowledge", passed_on, pb.AcknowledgeResponse, FORWARD_S_MAX
            )
        except CometError as error:
            return [pb.AcknowledgeResult(error=error_to_pb(error)) for _ in chosen]
        return answer.acknowledged

    async def _acknowledge_here(
        self, request: pb.AcknowledgeRequest, acknowledgement: pb.Acknowledgement
    ) -> pb.AcknowledgeResult:
        """Returns once it is stored."""
        try:
            lost = await self._acknowledge(request, acknowledgement)
        except CometError as error:
            return pb.AcknowledgeResult(error=error_to_pb(error))
        return pb.AcknowledgeResult(lost_firsts=[first for first, _ in lost], lost_ends=[end for _, end in lost])

    async def _acknowledge(self, request: pb.AcknowledgeRequest, acknowledgement: pb.Acknowledgement) -> list[Range]:
        everything = list(zip(acknowledgement.firsts, acknowledgement.ends, strict=True))
        spec = self._topics.spec(request.topic)
        if bytes.fromhex(spec.id) != acknowledgement.topic_id or acknowledgement.partition >= spec.partitions:
            return everything  # of a topic that is gone
        _led(self._topics, request.topic, acknowledgement.partition)
        state = self._table.state(request.group, acknowledgement.topic_id, acknowledgement.partition)
        ticket = None if state is None else state.tickets.find(acknowledgement.lock_id)
        if state is None or ticket is None:
            return everything
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: CometError | None) -> None:
            if future.done():
                return  # there is no waiter
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        lost: list[Range] = []
        acknowledge_here(state, ticket.holder, acknowledgement, lost, done)
        if acknowledgement.kind != pb.ACKNOWLEDGE_TYPE_EXTEND:
            lost = state.tickets.acknowledged(
                ticket, acknowledgement.kind, acknowledgement.firsts, acknowledgement.ends, lost
            )
        try:
            await future
        except NotLeader as error:
            partition = f"{request.topic}/{acknowledgement.partition}"
            why = f"the leader of {partition} changed; the outcome is unknown: {error.message}"
            raise LeadershipLost(why, details=error.details) from error
        return lost


def _led(topics: TopicTable, topic: str, index: int) -> Partition:
    """A partition that this broker leads; raises NotLeader or why it is not available."""
    try:
        partition = topics.partition(topic, index)
    except PartitionNotFound as error:
        raise NotLeader(error.message, details=error.details) from error
    if not partition.leads:
        raise partition.not_leader()
    return partition
