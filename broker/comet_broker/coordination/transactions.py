"""The transactions of one slot: which are open, what they have touched, and how they end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from comet.errors import CometError, Unavailable
from comet.v1 import coordination_pb2 as coordination
from comet.v1 import groups_pb2 as pb
from comet_broker.metadata.store import KeyValue

if TYPE_CHECKING:
    from comet_broker.broker import Broker
    from comet_broker.coordination.coordinator import Slot


class Transactions:
    """Owned by the slot."""

    def __init__(self, slot: Slot, broker: Broker) -> None:
        self._slot = slot
        self._broker = broker

    def load(self, items: Mapping[str, KeyValue]) -> None:
        """Takes over what stands below the slot's prefix, by the rest of the key."""

    def close(self, error: CometError) -> None:
        """The slot is another broker's."""

    async def open(self, opening: pb.OpenTransactions) -> pb.OpenedTransactions:
        raise Unavailable("transactions are not here yet")

    async def end(self, ending: pb.EndTransaction) -> pb.EndedTransaction:
        raise Unavailable("transactions are not here yet")

    async def enlist(self, request: coordination.EnlistRequest) -> coordination.EnlistResponse:
        raise Unavailable("transactions are not here yet")
