"""What brokers ask of each other for groups and transactions, and FindCoordinator, which anybody may ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comet.v1 import groups_pb2 as pb
from comet_broker.coordination.desk import check_name
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
