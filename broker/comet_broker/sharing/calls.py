"""Lease and SettleLeases: records of shared groups for those who have no stream, one call at a time.

    Lease          ─► the group is founded ─► its states here ─► in line at each ─► leased under one number ─► answer
    SettleLeases   ─► per settlement: its state here ─► the ticket of that number ─► kept ─► answer

Any broker takes these calls; what another broker leads is passed on to it, once. Between the first record that is
leased and the answer nothing is waited for: a call that is given up has leased nothing, or is being answered.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from comet._wire import error_to_pb
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
from comet_broker import limits
from comet_broker.coordination.desk import check_name
from comet_broker.coordination.founding import found
from comet_broker.core.cluster import NOBODY, TopicSpec
from comet_broker.core.shares import Granted, Holder
from comet_broker.partition import Partition
from comet_broker.sharing.chunk import Chunk, leases
from comet_broker.sharing.state import Agreed, Range, SharedPartition
from comet_broker.sharing.terms import agreed_of, check_dead_letter, check_settlement, settle_here, start_of

if TYPE_CHECKING:
    from comet_broker.broker import Broker

RECORDS: Final = 100  # where the call does not say how many
FORWARD_S_MAX: Final = 30.0
READ_S_MAX: Final = 5.0  # how long a call that is not to wait waits for a disk
FOUNDED_S: Final = 30.0  # after which the coordinator is told again

Places = dict[str | None, list[int]]  # by the broker that leads them, None: this one


class LeaseCalls:
    """The coroutines behind the unary calls, protobuf in and out; raises CometErrors."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # ---- leasing

    async def lease(self, request: pb.LeaseRequest) -> pb.LeaseResponse:
        if self._broker.draining:
            raise Draining("this broker is about to stop", retry_after_ms=200)
        check_name(request.group)
        if request.records_max > limits.LEASE_RECORDS_MAX:
            raise InvalidArgument(f"records_max is at most {limits.LEASE_RECORDS_MAX}, not {request.records_max}")
        agreed, start = agreed_of(request.options), start_of(request.options)
        check_dead_letter(agreed, request.topic)
        spec = self._broker.topics.spec(request.topic)
        wait_s = min(request.wait_ms, limits.FETCH_WAIT_MS_MAX) / 1000
        address, indexes = self._where(spec, request)
        if address is not None:
            passed_on = pb.LeaseRequest()
            passed_on.CopyFrom(request)
            passed_on.partitions[:] = indexes
            passed_on.forwarded = True
            return await self._broker.peers.call(
                address, "comet.v1.Comet/Lease", passed_on, pb.LeaseResponse, FORWARD_S_MAX + wait_s
            )
        states, missing = await self._open(request, spec, indexes, agreed, start)
        table = self._broker.shares
        if len(table.calls) >= limits.LEASE_CALLS_MAX:
            raise LimitExceeded(f"{limits.LEASE_CALLS_MAX} calls wait for records here, the limit", retry_after_ms=1000)
        call = LeaseCall(self._number(states), request)
        table.calls.add(call)
        try:
            ranges = await call.run(states, wait_s)
            return pb.LeaseResponse(ranges=ranges, missing=missing)
        finally:
            table.calls.discard(call)

    def _where(self, spec: TopicSpec, request: pb.LeaseRequest) -> tuple[str | None, list[int]]:
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
            if state is None or state.leader == NOBODY:
                continue
            here = state.leader == self._broker.config.broker_id
            address = None if here else self._broker.address_of(state.leader)
            if here or address is not None:
                found[address].append(index)
        return found

    async def _open(
        self, request: pb.LeaseRequest, spec: TopicSpec, indexes: Sequence[int], agreed: Agreed, start: Position
    ) -> tuple[list[SharedPartition], list[int]]:
        """The group's states at the partitions, in turn, and the partitions that have none here. Raises if none has."""
        topic_id = bytes.fromhex(spec.id)
        await self._found(request.group, topic_id)
        opened = await asyncio.gather(*(self._open_one(request, index, agreed, start) for index in indexes))
        await self._found(request.group, topic_id)  # it may have been deleted: then it has just begun anew
        states = [one for one in opened if isinstance(one, SharedPartition)]
        errors = [one for one in opened if isinstance(one, CometError)]
        for error in errors:
            if not states or isinstance(error, InvalidArgument):
                raise error
        if not states:
            raise Unavailable(f"no partition of {request.topic!r} is led here", retry_after_ms=50)
        table = self._broker.shares
        table.turn += 1
        at = table.turn % len(states)
        missing = [index for index, one in zip(indexes, opened, strict=True) if isinstance(one, CometError)]
        return states[at:] + states[:at], missing

    async def _open_one(
        self, request: pb.LeaseRequest, index: int, agreed: Agreed, start: Position
    ) -> SharedPartition | CometError:
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

    def _number(self, states: Sequence[SharedPartition]) -> int:
        while True:
            number = self._broker.random.getrandbits(64)
            if number and all(state.tickets.find(number) is None for state in states):
                return number

    # ---- settling

    async def settle(self, request: pb.SettleLeasesRequest) -> pb.SettleLeasesResponse:
        check_name(request.group)
        if len(request.settlements) > limits.SETTLEMENTS_MAX:
            raise InvalidArgument(f"{limits.SETTLEMENTS_MAX} settlements at most, not {len(request.settlements)}")
        for said in request.settlements:
            check_settlement(said)
        if sum(sum(said.ends) - sum(said.firsts) for said in request.settlements) > limits.SHARE_WINDOW_RECORDS_MAX:
            raise InvalidArgument(f"{limits.SHARE_WINDOW_RECORDS_MAX} records at most are settled in one call")
        places: dict[str | None, list[int]] = defaultdict(list)
        for number, said in enumerate(request.settlements):
            places[self._whereabouts(request, said)].append(number)
        answers: list[pb.LeaseSettled] = [pb.LeaseSettled()] * len(request.settlements)
        found = await asyncio.gather(*(self._settle_at(address, request, one) for address, one in places.items()))
        for numbers, settled in zip(places.values(), found, strict=True):
            for number, one in zip(numbers, settled, strict=True):
                answers[number] = one
        return pb.SettleLeasesResponse(settled=answers)

    def _whereabouts(self, request: pb.SettleLeasesRequest, said: pb.LeaseSettlement) -> str | None:
        state = self._broker.topics.state_of(said.topic_id.hex(), said.partition)
        if request.forwarded or state is None or state.leader in (NOBODY, self._broker.config.broker_id):
            return None
        return self._broker.address_of(state.leader)

    async def _settle_at(
        self, address: str | None, request: pb.SettleLeasesRequest, numbers: Sequence[int]
    ) -> Sequence[pb.LeaseSettled]:
        chosen = [request.settlements[number] for number in numbers]
        if address is None:
            return await asyncio.gather(*[self._settle_here(request, said) for said in chosen])
        passed_on = pb.SettleLeasesRequest(group=request.group, topic=request.topic, settlements=chosen, forwarded=True)
        try:
            answer = await self._broker.peers.call(
                address, "comet.v1.Comet/SettleLeases", passed_on, pb.SettleLeasesResponse, FORWARD_S_MAX
            )
        except CometError as error:
            return [pb.LeaseSettled(error=error_to_pb(error)) for _ in chosen]
        return answer.settled

    async def _settle_here(self, request: pb.SettleLeasesRequest, said: pb.LeaseSettlement) -> pb.LeaseSettled:
        """Returns once it is kept."""
        try:
            lost = await self._settle(request, said)
        except CometError as error:
            return pb.LeaseSettled(error=error_to_pb(error))
        return pb.LeaseSettled(lost_firsts=[first for first, _ in lost], lost_ends=[end for _, end in lost])

    async def _settle(self, request: pb.SettleLeasesRequest, said: pb.LeaseSettlement) -> list[Range]:
        everything = list(zip(said.firsts, said.ends, strict=True))
        spec = self._broker.topics.spec(request.topic)
        if bytes.fromhex(spec.id) != said.topic_id or said.partition >= spec.partitions:
            return everything  # it was of a topic that is gone
        _led(self._broker, request.topic, said.partition)
        state = self._broker.shares.state(request.group, said.topic_id, said.partition)
        ticket = None if state is None else state.tickets.find(said.lease)
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
        settle_here(state, ticket.holder, said, lost, done)
        if said.kind != pb.SETTLEMENT_EXTEND:
            lost = state.tickets.settled(ticket, said.kind, said.firsts, said.ends, lost)
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


class Caller:
    """One call at one partition. Implements sharing.state.Seat."""

    def __init__(self, call: LeaseCall, state: SharedPartition) -> None:
        self.state = state
        self.holder = Holder()
        self.called = False
        self.bytes_max = 0
        self._call = call

    def credit(self) -> int:
        return self._call.records_left

    def call(self) -> None:
        self.called = True
        self._call.rouse()

    def freed(self) -> None:
        """It waits for nothing but its turn."""

    def ended(self, error: CometError) -> None:
        self._call.ended(self, error)


class LeaseCall:
    """Takes what its partitions have for it: at once, or what comes first while it waits."""

    def __init__(self, number: int, request: pb.LeaseRequest) -> None:
        self.records_left = request.records_max or RECORDS
        self.bytes_left = min(request.bytes_max or limits.MIB, limits.FETCH_BYTES_MAX)
        self._number = number
        self._peek = request.peek
        self._callers: dict[Caller, None] = {}
        self._error: CometError | None = None
        self._refusal: CometError | None = None
        self._roused: asyncio.Future[None] | None = None

    def rouse(self) -> None:
        if self._roused is not None and not self._roused.done():
            self._roused.set_result(None)

    def turn_away(self, error: CometError) -> None:
        """It is not to wait any longer; what there is now it gets."""
        self._refusal = error
        self.rouse()

    def ended(self, caller: Caller, error: CometError) -> None:
        """There is nothing to come from that partition."""
        self._callers.pop(caller, None)
        self._error = error
        self.rouse()

    async def run(self, states: Sequence[SharedPartition], wait_s: float) -> list[pb.LeasedRange]:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + wait_s
        give_up_reading = loop.time() + max(wait_s, READ_S_MAX)
        try:
            self._stand(states)
            while True:
                self._roused = loop.create_future()
                found = self._take()
                if found:
                    return found
                if self._refusal is not None:
                    raise self._refusal
                if not self._callers:
                    raise self._error or Unavailable("nothing is shared out here any more", retry_after_ms=50)
                reading = [one for caller in self._callers if (one := caller.state.loading) is not None]
                left_s = (give_up if not reading else give_up_reading) - loop.time()
                if left_s <= 0:
                    return []
                await asyncio.wait([self._roused, *reading], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for caller in self._callers:
                caller.state.step_out(caller)

    def _stand(self, states: Sequence[SharedPartition]) -> None:
        for state in states:
            if state.closed is not None:
                self._error = state.closed
                continue
            caller = Caller(self, state)
            self._callers[caller] = None
            try:
                state.stand(caller)
            except CometError as error:
                self.ended(caller, error)

    def _take(self) -> list[pb.LeasedRange]:
        """All that there is now, up to what was asked for; one state after the other."""
        found: list[pb.LeasedRange] = []
        refused: CometError | None = None
        for caller in list(self._callers):
            try:
                self._take_from(caller, found)
            except CometError as error:
                refused = error
            except Exception as error:  # noqa: BLE001 - it ends this group at this partition, and not the call
                caller.state.broke(error)
        if refused is not None and not found:
            raise refused
        return found

    def _take_from(self, caller: Caller, found: list[pb.LeasedRange]) -> None:
        caller.called = False
        state = caller.state
        if self._peek:
            if state.has_some():
                found.append(_range(state, 0))
            return
        while self.records_left > 0 and self.bytes_left > 0:
            caller.bytes_max = self.bytes_left
            served = state.lend(caller, self._number)
            if served is None:
                return
            leased = self._leased(state, *served)
            self.bytes_left -= len(leased.batches)
            self.records_left -= sum(one.end - one.first for one in leased.records)
            found.append(leased)
            if state.is_waited_for_beside(caller):
                return

    def _leased(self, state: SharedPartition, chunk: Chunk, granted: Sequence[Granted]) -> pb.LeasedRange:
        leased = _range(state, self._number)
        leased.records.extend(leases(granted))
        leased.batches = chunk.batches(granted)
        return leased


def _range(state: SharedPartition, number: int) -> pb.LeasedRange:
    return pb.LeasedRange(
        partition=state.partition.index, topic_id=state.partition.topic_id, leader_epoch=state.epoch, lease=number
    )
