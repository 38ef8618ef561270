"""Lock and Acknowledge: records of share groups for those who have no stream, one call at a time.

    Lock          ─► the group is founded ─► its states here ─► a AcquireCall in line at each ─► answer
    Acknowledge   ─► per acknowledgement: its state here ─► the ticket of that number ─► kept ─► answer

Any broker takes these calls; what another broker leads is passed on to it, once. States are opened some at a time, and
looked at as they come, so that a call takes no longer for a topic of many partitions: what was not open in time goes on
being opened, and is there for the next call.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from comet.errors import (
    CometError,
    Draining,
    InvalidArgument,
    LeadershipLost,
    LimitExceeded,
    NotLeader,
    PartitionNotFound,
    Unavailable,
)
from comet.types import Position
from comet.v1 import groups_pb2 as pb
from comet.wire.protobuf import error_to_pb
from comet_broker import limits
from comet_broker.coordination.founding import found
from comet_broker.coordination.group_frames import check_name
from comet_broker.core.cluster import NO_BROKER, TopicSpec
from comet_broker.partitions.partition import Partition
from comet_broker.sharing.acquire_call import AcquireCall
from comet_broker.sharing.state import Agreed, Range, SharePartition
from comet_broker.sharing.terms import acknowledge_here, agreed_of, check_acknowledgement, check_dead_letter, start_of

if TYPE_CHECKING:
    from comet_broker.broker import Broker

FORWARD_S_MAX: Final = 30.0
ACQUIRE_FORWARD_S_MAX: Final = 5.0  # beyond what it waits for
TOGETHER_MAX: Final = 128  # partitions that one call opens at once
TOGETHER_S: Final = 0.5  # after which those that are open are looked at without the others
FOUNDED_S: Final = 30.0  # after which the coordinator is told again

Places = dict[str | None, list[int]]  # by the broker that leads them, None: this one


class AcquireCalls:
    """The coroutines behind the unary calls, protobuf in and out; raises CometErrors."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # ---- acquiring

    async def acquire(self, request: pb.AcquireRequest) -> pb.AcquireResponse:
        if self._broker.draining:
            raise Draining("this broker is about to stop", retry_after_ms=200)
        check_name(request.group)
        if request.records_max > limits.ACQUIRE_RECORDS_MAX:
            raise InvalidArgument(f"records_max is at most {limits.ACQUIRE_RECORDS_MAX}, not {request.records_max}")
        agreed, start = agreed_of(request.options), start_of(request.options)
        check_dead_letter(agreed, request.topic)
        await self._hear_of(request.topic)
        spec = self._broker.topics.spec(request.topic)
        wait_s = min(request.wait_ms, limits.FETCH_WAIT_MS_MAX) / 1000
        address, indexes = self._where(spec, request)
        if address is not None:
            passed_on = pb.AcquireRequest()
            passed_on.CopyFrom(request)
            passed_on.partitions[:] = indexes
            passed_on.forwarded = True
            return await self._broker.peers.call(
                address, "comet.v1.Comet/Acquire", passed_on, pb.AcquireResponse, ACQUIRE_FORWARD_S_MAX + wait_s
            )
        table = self._broker.shares
        if len(table.calls) >= limits.ACQUIRE_CALLS_MAX:
            raise LimitExceeded(
                f"{limits.ACQUIRE_CALLS_MAX} calls wait for records here, the limit", retry_after_ms=1000
            )
        table.turn += 1
        at = table.turn % len(indexes)
        indexes = indexes[at:] + indexes[:at]
        call = AcquireCall(self._broker.random.randrange(1, 1 << 64), request, indexes)
        table.calls.add(call)
        try:
            return await call.run(self._open(call, request, spec, indexes, agreed, start), wait_s)
        finally:
            table.calls.discard(call)

    async def _hear_of(self, topic: str) -> None:
        if topic not in self._broker.view.state.topics:
            await self._broker.look_for_topic(topic)  # it may have been made on another broker just now

    def _where(self, spec: TopicSpec, request: pb.AcquireRequest) -> tuple[str | None, list[int]]:
        """One broker, None for this one, and the partitions that are meant: those named, or those that it leads."""
        for index in request.partitions:
            if index >= spec.partitions:
                raise PartitionNotFound(
                    f"topic {request.topic!r} has partitions 0 to {spec.partitions - 1}, not {index}"
                )
        named = list(dict.fromkeys(request.partitions))
        if request.forwarded:
            return None, named
        places = self._places(spec, named or range(spec.partitions))
        if None in places:
            return None, named or places[None]
        if not places:
            raise Unavailable(f"no partition of {request.topic!r} has a leader now", retry_after_ms=100)
        table = self._broker.shares
        table.turn += 1
        address = list(places)[table.turn % len(places)]
        return address, places[address]

    def _places(self, spec: TopicSpec, indexes: Sequence[int]) -> Places:
        found: Places = defaultdict(list)
        for index in indexes:
            state = self._broker.topics.state_of(spec.id, index)
            if state is None or state.leader == NO_BROKER:
                continue
            here = state.leader == self._broker.config.broker_id
            address = None if here else self._broker.address_of(state.leader)
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
        """Has the call stand in line at each of the partitions, some at a time. What takes longer than the call is
        done all the same, and the next one finds it so."""
        topic_id, left = bytes.fromhex(spec.id), deque(indexes)
        opening: dict[asyncio.Task[SharePartition | CometError], int] = {}
        while left or opening:
            await self._found(request.group, topic_id)
            chosen = {
                self._broker.tasks.spawn(self._open_one(request, index, agreed, start), "open for a lock"): index
                for index in (left.popleft() for _ in range(min(len(left), TOGETHER_MAX)))
            }
            opening |= chosen
            if chosen:
                await asyncio.wait(chosen, timeout=TOGETHER_S)
            else:
                await asyncio.wait(opening, return_when=asyncio.FIRST_COMPLETED)
            await self._found(request.group, topic_id)  # it may have been deleted: then it has just begun anew
            for task in [task for task in opening if task.done()]:
                call.stand(opening.pop(task), task.result(), agreed)
            call.rouse()

    async def _open_one(
        self, request: pb.AcquireRequest, index: int, agreed: Agreed, start: Position
    ) -> SharePartition | CometError:
        try:
            partition = _led(self._broker, request.topic, index)
            return await self._broker.shares.open(partition, request.group, agreed, start)
        except CometError as error:
            return error

    async def _found(self, group: str, topic_id: bytes) -> None:
        """Has the group's coordinator know of it, and of the topic."""
        table, now = self._broker.shares, self._broker.clock.monotonic()
        if table.founded.get((group, topic_id), now) > now:
            return
        await found(self._broker, group, topic_id)
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
        for said in request.acknowledgements:
            check_acknowledgement(said)
        if (
            sum(sum(said.ends) - sum(said.firsts) for said in request.acknowledgements)
            > limits.SHARE_WINDOW_RECORDS_MAX
        ):
            raise InvalidArgument(f"{limits.SHARE_WINDOW_RECORDS_MAX} records at most are acknowledged in one call")
        await self._hear_of(request.topic)
        places: dict[str | None, list[int]] = defaultdict(list)
        for number, said in enumerate(request.acknowledgements):
            places[self._whereabouts(request, said)].append(number)
        answers: list[pb.AcknowledgeResult] = [pb.AcknowledgeResult()] * len(request.acknowledgements)
        found = await asyncio.gather(*(self._acknowledge_at(address, request, one) for address, one in places.items()))
        for numbers, acknowledged in zip(places.values(), found, strict=True):
            for number, one in zip(numbers, acknowledged, strict=True):
                answers[number] = one
        return pb.AcknowledgeResponse(acknowledged=answers)

    def _whereabouts(self, request: pb.AcknowledgeRequest, said: pb.Acknowledgement) -> str | None:
        state = self._broker.topics.state_of(said.topic_id.hex(), said.partition)
        if request.forwarded or state is None or state.leader in (NO_BROKER, self._broker.config.broker_id):
            return None
        return self._broker.address_of(state.leader)

    async def _acknowledge_at(
        self, address: str | None, request: pb.AcknowledgeRequest, numbers: Sequence[int]
    ) -> Sequence[pb.AcknowledgeResult]:
        chosen = [request.acknowledgements[number] for number in numbers]
        if address is None:
            return await asyncio.gather(*[self._acknowledge_here(request, said) for said in chosen])
        passed_on = pb.AcknowledgeRequest(
            group=request.group, topic=request.topic, acknowledgements=chosen, forwarded=True
        )
        try:
            answer = await self._broker.peers.call(
                address, "comet.v1.Comet/Acknowledge", passed_on, pb.AcknowledgeResponse, FORWARD_S_MAX
            )
        except CometError as error:
            return [pb.AcknowledgeResult(error=error_to_pb(error)) for _ in chosen]
        return answer.acknowledged

    async def _acknowledge_here(self, request: pb.AcknowledgeRequest, said: pb.Acknowledgement) -> pb.AcknowledgeResult:
        """Returns once it is kept."""
        try:
            lost = await self._acknowledge(request, said)
        except CometError as error:
            return pb.AcknowledgeResult(error=error_to_pb(error))
        return pb.AcknowledgeResult(lost_firsts=[first for first, _ in lost], lost_ends=[end for _, end in lost])

    async def _acknowledge(self, request: pb.AcknowledgeRequest, said: pb.Acknowledgement) -> list[Range]:
        everything = list(zip(said.firsts, said.ends, strict=True))
        spec = self._broker.topics.spec(request.topic)
        if bytes.fromhex(spec.id) != said.topic_id or said.partition >= spec.partitions:
            return everything  # it was of a topic that is gone
        _led(self._broker, request.topic, said.partition)
        state = self._broker.shares.state(request.group, said.topic_id, said.partition)
        ticket = None if state is None else state.tickets.find(said.lock_id)
        if state is None or ticket is None:
            return everything
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: CometError | None) -> None:
            if future.done():
                return  # nobody waits for it
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        lost: list[Range] = []
        acknowledge_here(state, ticket.holder, said, lost, done)
        if said.kind != pb.ACKNOWLEDGE_TYPE_EXTEND:
            lost = state.tickets.acknowledged(ticket, said.kind, said.firsts, said.ends, lost)
        try:
            await future
        except NotLeader as error:
            why = f"the leader of {request.topic}/{said.partition} changed; it may or may not be kept: {error.message}"
            raise LeadershipLost(why, details=error.details) from error
        return lost


def _led(broker: Broker, topic: str, index: int) -> Partition:
    """A partition that this broker leads. Raises NotLeader and what else is in the way."""
    try:
        partition = broker.topics.partition(topic, index)
    except PartitionNotFound as error:
        raise NotLeader(error.message, details=error.details) from error
    if not partition.leads:
        raise partition.not_leader()
    return partition
