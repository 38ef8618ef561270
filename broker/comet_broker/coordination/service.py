"""The Coordination service between brokers, for groups and transactions, and FindCoordinator for all clients."""

from __future__ import annotations

from comet.errors import TransactionNotOpen
from comet.v1 import coordination_pb2 as coordination
from comet.v1 import groups_pb2 as pb
from comet_broker.access.client_access import caller_is_local
from comet_broker.cluster.view import ClusterView
from comet_broker.coordination.coordinator import Coordinator
from comet_broker.coordination.ends import LocalEnds
from comet_broker.coordination.founding import Founding
from comet_broker.coordination.markers import write_here
from comet_broker.coordination.transaction_calls import TransactionCalls
from comet_broker.core import slots
from comet_broker.partitions.topics import TopicTable


class Coordination:
    """The coroutines behind the unary calls, protobuf in and out; raises CometErrors."""

    def __init__(
        self,
        *,
        coordinator: Coordinator,
        founding: Founding,
        ends: LocalEnds,
        topics: TopicTable,
        view: ClusterView,
        transactions: TransactionCalls,
    ) -> None:
        self._coordinator = coordinator
        self._founding = founding
        self._ends = ends
        self._topics = topics
        self._view = view
        self._transactions = transactions

    async def find_coordinator(self, request: pb.FindCoordinatorRequest) -> pb.FindCoordinatorResponse:
        number = slots.slot_of(slots.check_name(request.name))
        broker, record = self._coordinator.whereabouts(number)
        return pb.FindCoordinatorResponse(
            slot=number,
            broker=broker,
            host=record.host,
            port=record.port,
            wire_port=record.wire_port,
            wire_socket=record.wire_socket if caller_is_local() else "",
        )

    # ---- transactions

    async def add_partition(self, request: coordination.AddPartitionRequest) -> coordination.AddPartitionResponse:
        """Called by the leader of a partition that has the first batch of a transaction."""
        number = slots.slot_of_producer(request.producer_id)
        if number is None:
            raise TransactionNotOpen(f"producer id {request.producer_id} was not assigned by a coordinator")
        return await self._coordinator.slot(number).transactions.add_partition(request)

    async def outcome(self, request: coordination.OutcomeRequest) -> coordination.OutcomeResponse:
        """Called by the leader of a partition that finds a transaction open in its log, or is to write a marker."""
        number = slots.slot_of_producer(request.producer_id)
        if number is None:
            raise TransactionNotOpen(f"producer id {request.producer_id} was not assigned by a coordinator")
        return await self._coordinator.slot(number).transactions.outcome(request)

    async def open_transactions(self, request: pb.OpenTransactions) -> pb.OpenedTransactions:
        """Called by a broker with transactions of its own."""
        return await self._coordinator.slot(slots.slot_of(request.transactional_id)).transactions.open(request)

    async def end_transaction(self, request: pb.EndTransaction) -> pb.EndedTransaction:
        return await self._coordinator.slot(slots.slot_of(request.transactional_id)).transactions.end(request)

    async def write_markers(self, request: coordination.WriteMarkersRequest) -> coordination.WriteMarkersResponse:
        """Called by the coordinator of a transaction, or by a program that says so: the coordinator is asked."""
        await self._transactions.check_marker(request.producer_id, request.epoch, request.commit)
        return await write_here(self._topics, self._view, request)

    # ---- groups

    async def found_group(self, request: coordination.FoundGroupRequest) -> coordination.FoundGroupResponse:
        """Called by a leader that acquires records without sessions."""
        slots.check_name(request.group)
        await self._founding.found_here(request)
        return coordination.FoundGroupResponse()

    async def partition_ends(self, request: coordination.PartitionEndsRequest) -> coordination.PartitionEndsResponse:
        return await self._ends.answer(request)
