"""Transactional batches on their way into a partition: those that wait for the coordinator, and the markers.

        first batch of a transaction ─► take ─► the coordinator adds the partition ─► produce, this batch and those
    behind
    further ones                 ─► produce: the log says that the transaction is open
    end                          ─► write_marker ─► produce ─► on all in-sync replicas
    open when this broker begins to lead ─► after LEFT_OPEN_S: ask the coordinator for its outcome

The coordinator must know the partition before any record of the transaction is in its log, or the transaction would
never end there. Batches that arrive meanwhile wait behind the first one, in order, bounded in bytes. The end may
overtake the coordinator's answer, so a transaction is checked again before anything is appended.

A written marker can be lost with the power of all machines that have it, as the end of any log can. The coordinator
does not send it again, so the leader asks for the outcome.

Owned by its Partition; on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from comet import records
from comet.errors import CometError, CorruptBatch, Draining, Internal, InvalidArgument, LimitExceeded, NotLeader
from comet.records import BatchHeader
from comet.types import Acks
from comet_broker import limits
from comet_broker.core.slots import slot_of_producer
from comet_broker.core.watermarks import Watermarks
from comet_broker.partitions.context import Accepted, PartitionContext
from comet_broker.partitions.leader_state import LeaderState
from comet_broker.partitions.readers import answer

log = logging.getLogger(__name__)

Taken = Callable[[Accepted | CometError], None]  # called once, with the batch's result
Transaction = tuple[int, int]  # producer and epoch

_ALL: Final = int(Acks.ALL)


LEFT_OPEN_S: Final = 5.0  # in which transactions that are open in the log normally end by themselves
LEFT_OPEN_S_MAX: Final = 60.0


class NotInTransaction(Exception):
    """The batch's transaction has nothing in the partition yet: pass the batch to `TransactionBatches.take`."""


class TransactionalPartition(Protocol):
    """The partition."""

    topic: str
    topic_id: bytes
    index: int
    context: PartitionContext
    watermarks: Watermarks

    @property
    def available(self) -> bool: ...
    @property
    def leads(self) -> bool: ...
    def not_leader(self) -> NotLeader: ...
    def produce(self, batch: memoryview, acks: int) -> Accepted: ...
    async def acked(self, end_offset: int, acks: int) -> None: ...


class TransactionBatches:
    def __init__(self, partition: TransactionalPartition) -> None:
        self._partition = partition
        self._waiting: dict[Transaction, list[tuple[memoryview, Taken]]] = {}
        self._held_bytes = 0
        self._added: Transaction | None = None  # whose waiting batches are being appended
        self._marking = False

    def __len__(self) -> int:
        """The number of transactions that wait for their coordinator."""
        return len(self._waiting)

    # ---- batches

    def check(self, header: BatchHeader, acks: int) -> None:
        """Raises unless a batch with the flag TRANSACTIONAL may be appended now."""
        if header.control:
            if not self._marking:
                raise CorruptBatch("CONTROL batches are not allowed in produce: end the transaction at its coordinator")
            return
        partition, transaction = self._partition, (header.producer_id, header.producer_epoch)
        if acks != _ALL:
            raise InvalidArgument("a transactional batch needs acks=all")
        if partition.available:
            raise InvalidArgument(
                f"topic {partition.topic!r} is available rather than consistent, and takes no transactions"
            )
        if slot_of_producer(header.producer_id) is None:
            raise InvalidArgument(f"producer id {header.producer_id} was not assigned by a coordinator")
        is_open = partition.watermarks.isolation.check(*transaction)
        if transaction in self._waiting or not (is_open or transaction == self._added):
            raise NotInTransaction

    def take(self, batch: memoryview, done: Taken) -> None:
        """Queues a batch for which `produce` raised NotInTransaction. It is written when the coordinator has added the
        partition. Raises LimitExceeded when too many bytes wait."""
        header = records.read_header(batch)
        transaction = (header.producer_id, header.producer_epoch)
        if self._held_bytes + len(batch) > limits.TRANSACTION_WAITING_BYTES_MAX or (
            transaction not in self._waiting and len(self._waiting) >= limits.TRANSACTION_WAITING_MAX
        ):
            raise LimitExceeded(
                f"too many bytes wait for transaction coordinators in {self._partition}", retry_after_ms=20
            )
        self._held_bytes += len(batch)
        self._partition.context.in_flight.hold(len(batch))
        waiting = self._waiting.get(transaction)
        if waiting is not None:
            waiting.append((batch, done))
            return
        self._waiting[transaction] = [(batch, done)]
        name = f"add {self._partition} for producer {header.producer_id}"
        self._partition.context.tasks.spawn(self._add_partition(transaction), name)

    async def _add_partition(self, transaction: Transaction) -> None:
        partition = self._partition
        error: CometError | None = Draining("this broker is about to stop", retry_after_ms=200)
        try:
            await partition.context.add_partition(*transaction, partition.topic_id, partition.index)
            error = None
        except CometError as caught:
            error = caught
        except Exception as caught:
            error = Internal(f"the request to the coordinator failed: {caught!r}")
            raise
        finally:
            waiting = self._waiting.pop(transaction)
            size = sum(len(batch) for batch, _ in waiting)
            self._held_bytes -= size
            partition.context.in_flight.release(size)
            self._enter(transaction, waiting, error)

    def _enter(
        self, transaction: Transaction, waiting: list[tuple[memoryview, Taken]], error: CometError | None
    ) -> None:
        """Appends the waiting batches. One that is refused refuses those behind it: they would leave a gap."""
        self._added = transaction
        try:
            for batch, done in waiting:
                accepted: Accepted | None = None
                if error is None:
                    try:
                        accepted = self._partition.produce(batch, _ALL)
                    except CometError as caught:
                        error = caught
                    except Exception as caught:  # noqa: BLE001 - those behind it are answered too
                        self._partition.context.tasks.report(f"a batch of {self._partition}", caught)
                        error = Internal(f"the batch could not be written: {caught!r}")
                answer(
                    self._partition.context.tasks,
                    str(self._partition),
                    done,
                    accepted if accepted is not None else _of(error),
                )
        finally:
            self._added = None

    # ---- transactions that are open when this broker begins to lead

    def end_left_open(self, leadership: LeaderState) -> None:
        left = self._partition.watermarks.isolation.open_transactions()
        if left:
            name = f"end what is open in {self._partition}"
            self._partition.context.tasks.spawn(self._end_left(leadership, left), name)

    async def _end_left(self, leadership: LeaderState, left: list[Transaction]) -> None:
        pause_s = LEFT_OPEN_S
        while left:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LEFT_OPEN_S_MAX)
            if leadership.closed:
                return
            left = [transaction for transaction in left if not await self._try_to_end(transaction)]

    async def _try_to_end(self, transaction: Transaction) -> bool:
        try:
            return await self._is_over(transaction)
        except Exception as error:  # noqa: BLE001 - retried later; the others are still to be ended
            self._partition.context.tasks.report(f"ending what is open in {self._partition}", error)
            return False

    async def _is_over(self, transaction: Transaction) -> bool:
        """True if the coordinator has ended the transaction, which then ends here."""
        partition = self._partition
        if partition.watermarks.isolation.first_offset(*transaction) < 0:
            return True
        try:
            committed = await partition.context.outcome(*transaction)
            if committed is None:
                return False
            log.warning("%s lost the marker of transaction %d of producer %d", partition, *reversed(transaction))
            await self.write_marker(*transaction, committed)
        except CometError as error:
            log.info("transaction %d of producer %d stays open in %s: %s", *reversed(transaction), partition, error)
            return False
        return True

    # ---- markers

    async def write_marker(self, producer_id: int, epoch: int, commit: bool) -> None:
        """Ends a transaction here; returns when the marker is on all in-sync replicas. May be repeated: an ended
        transaction is not ended twice. The marker fences later batches of a transaction that wrote nothing here."""
        partition = self._partition
        isolation = partition.watermarks.isolation
        ended = isolation.ended(producer_id, epoch)
        first_offset = isolation.first_offset(producer_id, epoch)
        if ended is not None and first_offset < 0:
            if not partition.leads:
                raise partition.not_leader()
            if ended.epoch == epoch and ended.commit != commit:
                raise Internal(
                    f"epoch {epoch} of producer {producer_id} has ended in {partition} with the other outcome"
                )
            end_offset = ended.offset + 1
        else:
            batch = records.encode_marker(producer_id, epoch, commit, first_offset, partition.context.clock.wall_us())
            self._marking = True
            try:
                end_offset = partition.produce(memoryview(batch), _ALL).end_offset
            finally:
                self._marking = False
        await partition.acked(end_offset, _ALL)


def _of(error: CometError | None) -> CometError:
    assert error is not None
    return error
