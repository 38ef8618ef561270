"""Requests of a broker to the coordinator of a transaction, wherever it is.

    add_partition    adds the partition that this broker leads    Coordination.AddPartition
    outcome          committed, aborted or open                   Coordination.Outcome
    check_marker     raises unless the marker says the outcome    Coordination.Outcome
    open, end        of this broker's own transactions            Coordination.OpenTransactions, EndTransaction

The producer's id or the transactional id tells the slot, and the cluster the slot's coordinator: this broker, or
another. A refusal is final. A coordinator that is moving, loading or out of reach is waited for, for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from google.protobuf.message import Message

from comet.errors import InvalidArgument, NotCoordinator, Timeout, TransactionNotOpen, Unavailable
from comet.v1 import coordination_pb2 as pb
from comet.v1 import groups_pb2 as groups
from comet_broker.cluster.peers import Peers
from comet_broker.coordination.coordinator import Coordinator
from comet_broker.coordination.transactions import Transactions
from comet_broker.core import slots
from comet_broker.env import Env

M = TypeVar("M", bound=Message)

SERVICE: Final = "comet.v1.Coordination"
ADD_PARTITION_S_MAX: Final = 3.0  # after which the producer is asked to retry
CALL_S_MAX: Final = 2.0
RETRY_S: Final = 0.01
RETRY_S_MAX: Final = 0.2


class TransactionCalls:
    """Owned by the broker."""

    def __init__(self, env: Env, *, coordinator: Coordinator, peers: Peers) -> None:
        self._me = env.me
        self._clock = env.clock
        self._coordinator = coordinator
        self._peers = peers

    async def add_partition(self, producer_id: int, epoch: int, topic_id: bytes, index: int) -> None:
        """Returns when the partition belongs to the transaction; raises the coordinator's refusal, or Unavailable."""
        request = pb.AddPartitionRequest(producer_id=producer_id, epoch=epoch, topic_id=topic_id, partition=index)

        async def here(transactions: Transactions) -> pb.AddPartitionResponse:
            return await transactions.add_partition(request)

        await self._request(_slot(producer_id), here, "AddPartition", request, pb.AddPartitionResponse)

    async def outcome(self, producer_id: int, epoch: int) -> bool | None:
        """Whether the transaction was committed; None while it is open. Raises as `add_partition` does."""
        answer = await self._ask(producer_id, epoch)
        return answer.committed if answer.over else None

    async def check_marker(self, producer_id: int, epoch: int, commit: bool) -> None:
        """Raises InvalidArgument unless the coordinator has decided so. Without certificates any program can send a
        marker, and one of a later epoch would shut the producer out of the partition."""
        answer = await self._ask(producer_id, epoch)
        if not answer.decided or answer.committed != commit:
            ended = "committed" if commit else "aborted"
            raise InvalidArgument(f"the coordinator of producer {producer_id} has not {ended} its transaction {epoch}")

    async def open(self, opening: groups.OpenTransactions) -> groups.OpenedTransactions:
        """Fences the transactional id's previous producer. Returns when its open transaction has ended."""

        async def here(transactions: Transactions) -> groups.OpenedTransactions:
            return await transactions.open(opening)

        slot = slots.slot_of(opening.transactional_id)
        return await self._request(slot, here, "OpenTransactions", opening, groups.OpenedTransactions)

    async def end(self, ending: groups.EndTransaction) -> groups.EndedTransaction:
        """Returns when the markers are in all partitions. May be repeated until there is an answer."""

        async def here(transactions: Transactions) -> groups.EndedTransaction:
            return await transactions.end(ending)

        slot = slots.slot_of(ending.transactional_id)
        return await self._request(slot, here, "EndTransaction", ending, groups.EndedTransaction)

    async def _ask(self, producer_id: int, epoch: int) -> pb.OutcomeResponse:
        request = pb.OutcomeRequest(producer_id=producer_id, epoch=epoch)

        async def here(transactions: Transactions) -> pb.OutcomeResponse:
            return await transactions.outcome(request)

        return await self._request(_slot(producer_id), here, "Outcome", request, pb.OutcomeResponse)

    async def _request(
        self,
        number: int,
        here: Callable[[Transactions], Awaitable[M]],
        method: str,
        request: Message,
        response: type[M],
    ) -> M:
        pause_s = RETRY_S
        give_up = self._clock.monotonic() + ADD_PARTITION_S_MAX
        while True:
            try:
                owner, record = self._coordinator.whereabouts(number)
                if owner == self._me:
                    return await here(self._coordinator.slot(number).transactions)
                address = record.brokers_address
                return await self._peers.call(address, f"{SERVICE}/{method}", request, response, CALL_S_MAX)
            except (NotCoordinator, Unavailable, Timeout) as error:
                if self._clock.monotonic() + pause_s >= give_up:
                    raise Unavailable(
                        f"cannot reach the coordinator of slot {number}: {error}", retry_after_ms=100
                    ) from error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)


def _slot(producer_id: int) -> int:
    number = slots.slot_of_producer(producer_id)
    if number is None:
        raise TransactionNotOpen(f"producer id {producer_id} was not assigned by a coordinator")
    return number
