"""The Coordination service between brokers, for groups and transactions, and FindCoordinator for all clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comet.errors import TransactionNotOpen
from comet.v1 import coordination_pb2 as coordination
from comet.v1 import groups_pb2 as pb
from comet_broker.coordination.ends import answer_ends
from comet_broker.coordination.founding import found_here
from comet_broker.coordination.group_frames import check_name
from comet_broker.coordination.markers import write_here
from comet_broker.core import slots

if TYPE_CHECKING:
    from comet_broker.broker import Broker


class Coordination:
    """The coroutines behind the unary calls, protobuf in and out; raises CometErrors."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def find_coordinator(self, request: pb.FindCoordinatorRequest) -> pb.FindCoordinatorResponse:
        number = slots.slot_of(check_name(request.name))
        broker, host, port = self._broker.coordinator.whereabouts(number)
        return pb.FindCoordinatorResponse(slot=number, broker=broker, host=host, port=port)

    # ---- transactions

    async def add_partition(self, request: coordination.AddPartitionRequest) -> coordination.AddPartitionResponse:
        """Called by the leader of a partition that has the first batch of a transaction."""
        number = slots.slot_of_producer(request.producer_id)
        if number is None:
            raise TransactionNotOpen(f"producer id {request.producer_id} was not assigned by a coordinator")
        return await self._broker.coordinator.slot(number).transactions.add_partition(request)

    async def outcome(self, request: coordination.OutcomeRequest) -> coordination.OutcomeResponse:
        """Called by the leader of a partition that finds a transaction open in its log."""
        number = slots.slot_of_producer(request.producer_id)
        if number is None:
            raise TransactionNotOpen(f"producer id {request.producer_id} was not assigned by a coordinator")
        return await self._broker.coordinator.slot(number).transactions.outcome(request)

    async def write_markers(self, request: coordination.WriteMarkersRequest) -> coordination.WriteMarkersResponse:
        return await write_here(self._broker, request)

    # ---- groups

    async def found_group(self, request: coordination.FoundGroupRequest) -> coordination.FoundGroupResponse:
        """Called by a leader that acquires records without sessions."""
        check_name(request.group)
        await found_here(self._broker, request)
        return coordination.FoundGroupResponse()

    async def partition_ends(self, request: coordination.PartitionEndsRequest) -> coordination.PartitionEndsResponse:
        return await answer_ends(self._broker, request)
