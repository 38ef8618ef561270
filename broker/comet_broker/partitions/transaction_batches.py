"""Transactions on their way into a partition: what waits for the coordinator, and the markers that end them.

    first batch of a transaction ─► take ─► the coordinator adds the partition ─► produce, it and those behind it
    further ones                 ─► produce: the log says that the transaction is open
    end                          ─► write_marker ─► produce ─► on all in-sync replicas
    open when this broker begins to lead ─► after a while: the coordinator is asked whether it is over

The coordinator must know of the partition before anything of the transaction is in its log, or nobody would end it
there. Batches that come meanwhile wait behind the first one, in their order, bounded in bytes. The end may overtake the
coordinator's answer; what is over is looked at again before anything is appended.

A marker that was written can be lost with the power of all machines that had it, as the end of any log can. The
coordinator will not come with it again, so the leader asks.

Owned by its Partition; on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from comet import records
from comet.errors import CometError, CorruptBatch, Draining, Internal, InvalidArgument, LimitExceeded
from comet.records import BatchHeader
from comet.types import Acks
from comet_broker import limits
from comet_broker.core.slots import slot_of_producer
from comet_broker.partitions.context import Accepted

if TYPE_CHECKING:
    from comet_broker.partitions.leadership import Leadership
    from comet_broker.partitions.partition import Partition

log = logging.getLogger(__name__)

Taken = Callable[[Accepted | CometError], None]  # told once how the batch did
Transaction = tuple[int, int]  # producer and epoch

_ALL: Final = int(Acks.ALL)


LEFT_OPEN_S: Final = 5.0  # in which what is open, for all that is known, ends by itself
LEFT_OPEN_S_MAX: Final = 60.0


class NotInTransaction(Exception):
    """Nothing of the batch's transaction is in the partition yet: it is to be taken in by `TransactionBatches.take`."""


class TransactionBatches:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._waiting: dict[Transaction, list[tuple[memoryview, Taken]]] = {}
        self._held_bytes = 0
        self._added: Transaction | None = None  # whose batches are being appended after they have waited
        self._marking = False

    def __len__(self) -> int:
        """How many transactions wait for their coordinator."""
        return len(self._waiting)

    # ---- batches

    def check(self, header: BatchHeader, acks: int) -> None:
        """Raises unless a batch with the flag TRANSACTIONAL may be appended now."""
        if header.control:
            if not self._marking:
                raise CorruptBatch(
                    "a producer does not end transactions with a batch: CONTROL is not allowed in produce"
                )
            return
        partition, transaction = self._partition, (header.producer_id, header.producer_epoch)
        if acks != _ALL:
            raise InvalidArgument("a transactional batch needs acks=all")
        if partition.available:
            raise InvalidArgument(
                f"topic {partition.topic!r} is available rather than consistent, and takes no transactions"
            )
        if slot_of_producer(header.producer_id) is None:
            raise InvalidArgument(f"no coordinator has given out producer id {header.producer_id}")
        is_open = partition.isolation.check(*transaction)
        if transaction in self._waiting or not (is_open or transaction == self._added):
            raise NotInTransaction

    def take(self, batch: memoryview, done: Taken) -> None:
        """Takes a batch for which `produce` raised NotInTransaction, to be written when its coordinator has added the
        partition. Raises LimitExceeded when too much waits."""
        header = records.read_header(batch)
        transaction = (header.producer_id, header.producer_epoch)
        if self._held_bytes + len(batch) > limits.TRANSACTION_WAITING_BYTES_MAX or (
            transaction not in self._waiting and len(self._waiting) >= limits.TRANSACTION_WAITING_MAX
        ):
            raise LimitExceeded(
                f"too much waits for the coordinators of transactions in {self._partition}", retry_after_ms=20
            )
        self._held_bytes += len(batch)
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
            error = Internal(f"the coordinator could not be asked: {caught!r}")
            raise
        finally:
            waiting = self._waiting.pop(transaction)
            self._held_bytes -= sum(len(batch) for batch, _ in waiting)
            self._enter(transaction, waiting, error)

    def _enter(
        self, transaction: Transaction, waiting: list[tuple[memoryview, Taken]], error: CometError | None
    ) -> None:
        """One that is refused takes those behind it along: they would leave a gap."""
        self._added = transaction
        try:
            for batch, done in waiting:
                accepted: Accepted | None = None
                if error is None:
                    try:
                        accepted = self._partition.produce(batch, _ALL)
                    except CometError as caught:
                        error = caught
                    except Exception as caught:  # noqa: BLE001 - those behind it are to be answered, too
                        self._partition.context.tasks.report(f"a batch of {self._partition}", caught)
                        error = Internal(f"the batch could not be written: {caught!r}")
                self._partition.tell(done, accepted if accepted is not None else _of(error))
        finally:
            self._added = None

    # ---- what is open when this broker begins to lead

    def look_after(self, leadership: Leadership) -> None:
        left = self._partition.isolation.open_transactions()
        if left:
            name = f"end what is open in {self._partition}"
            self._partition.context.tasks.spawn(self._end_left(leadership, left), name)

    async def _end_left(self, leadership: Leadership, left: list[Transaction]) -> None:
        pause_s = LEFT_OPEN_S
        while left:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LEFT_OPEN_S_MAX)
            if leadership.closed:
                return
            left = [transaction for transaction in left if not await self._tried(transaction)]

    async def _tried(self, transaction: Transaction) -> bool:
        try:
            return await self._is_over(transaction)
        except Exception as error:  # noqa: BLE001 - it is looked at again; the others are to be ended, too
            self._partition.context.tasks.report(f"ending what is open in {self._partition}", error)
            return False

    async def _is_over(self, transaction: Transaction) -> bool:
        """Ends a transaction here that is over for its coordinator."""
        partition = self._partition
        if partition.isolation.first_offset(*transaction) < 0:
            return True
        try:
            committed = await partition.context.outcome(*transaction)
            if committed is None:
                return False
            log.warning("%s has lost the marker of transaction %d of producer %d", partition, *reversed(transaction))
            await self.write_marker(*transaction, committed)
        except CometError as error:
            log.info("transaction %d of producer %d stays open in %s: %s", *reversed(transaction), partition, error)
            return False
        return True

    # ---- markers

    async def write_marker(self, producer_id: int, epoch: int, commit: bool) -> None:
        """Ends a transaction here; returns when the marker is on all in-sync replicas. May be repeated: what has ended
        is not ended twice. Where it wrote nothing, the marker keeps out what may still be on its way."""
        partition = self._partition
        isolation = partition.isolation
        ended = isolation.ended(producer_id, epoch)
        first_offset = isolation.first_offset(producer_id, epoch)
        if ended is not None and first_offset < 0:
            if not partition.leads:
                raise partition.not_leader()
            if ended.epoch == epoch and ended.commit != commit:
                raise Internal(f"epoch {epoch} of producer {producer_id} has ended in {partition} in the other way")
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
