"""A leader of a partition asks the coordinator of a transaction whether it may take part, wherever that is.

    first batch ─► the slot in the producer's id ─► its coordinator: here, or Coordination.Enlist on another broker

What is refused is refused for good. That the coordinator is moving, loading or out of reach is waited for, for a while.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from comet.errors import NotCoordinator, Timeout, TransactionNotOpen, Unavailable
from comet.v1 import coordination_pb2 as pb
from comet_broker.core import slots

if TYPE_CHECKING:
    from comet_broker.broker import Broker

METHOD: Final = "comet.v1.Coordination/Enlist"
ENLIST_S_MAX: Final = 3.0  # after which the producer is asked to try again
CALL_S_MAX: Final = 2.0
RETRY_S: Final = 0.01
RETRY_S_MAX: Final = 0.2


class Enlisting:
    """`Site.enlist`. Owned by the broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def __call__(self, producer_id: int, epoch: int, topic_id: bytes, index: int) -> None:
        """Returns when the partition belongs to the transaction; raises what the coordinator says against it, or
        Unavailable."""
        number = slots.slot_of_producer(producer_id)
        if number is None:
            raise TransactionNotOpen(f"no coordinator has given out producer id {producer_id}")
        request = pb.EnlistRequest(producer_id=producer_id, epoch=epoch, topic_id=topic_id, partition=index)
        pause_s = RETRY_S
        give_up = self._broker.clock.monotonic() + ENLIST_S_MAX
        while True:
            try:
                await self._ask(number, request)
            except (NotCoordinator, Unavailable, Timeout) as error:
                if self._broker.clock.monotonic() + pause_s >= give_up:
                    raise Unavailable(
                        f"the coordinator of producer {producer_id} cannot be asked now: {error}", retry_after_ms=100
                    ) from error
            else:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)

    async def _ask(self, number: int, request: pb.EnlistRequest) -> None:
        owner, host, port = self._broker.coordinator.whereabouts(number)
        if owner == self._broker.config.broker_id:
            await self._broker.coordinator.slot(number).transactions.enlist(request)
        else:
            await self._broker.peers.call(f"{host}:{port}", METHOD, request, pb.EnlistResponse, CALL_S_MAX)
