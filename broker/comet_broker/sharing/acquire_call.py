"""One call that acquires records of a share group: it queues at its partitions here, and takes their records.

    queue_at ─► queued at a partition ─► called ─► acquired under the call's number ─► answer

Records at one partition do not wait for the others. There is no await between the first acquired record and the answer:
a call that is given up has acquired nothing, or is being answered.

Owned by the coroutine of the call; on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from comet.errors import CometError, InvalidArgument, LimitExceeded, Unavailable
from comet.v1 import groups_pb2 as pb
from comet_broker import limits
from comet_broker.core.shares import Granted, Holder
from comet_broker.sharing.chunk import Chunk, acquired_ranges
from comet_broker.sharing.context import Agreed
from comet_broker.sharing.state import SharePartition

RECORDS: Final = 100  # where the call does not say how many
PATIENCE_S: Final = 1.0  # for partitions that are being opened or read, beyond the call's own time


class Caller:
    """One call at one partition. Implements sharing.acquirer_queue.Acquirer."""

    def __init__(self, call: AcquireCall, state: SharePartition) -> None:
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
        """Nothing to do: a call waits for its turn only."""

    def ended(self, error: CometError) -> None:
        self._call.ended(self, error)


class AcquireCall:
    """Takes the records of its partitions: at once, or the first that arrive while it waits."""

    def __init__(self, number: int, request: pb.AcquireRequest, indexes: Sequence[int]) -> None:
        self.records_left = request.records_max or RECORDS
        self.bytes_left = min(request.bytes_max or limits.MIB, limits.FETCH_BYTES_MAX)
        self._number = number
        self._peek = request.peek
        self._ahead = dict.fromkeys(indexes)  # not opened yet
        self._failed: dict[int, None] = {}  # failed here
        self._callers: dict[Caller, None] = {}
        self._error: CometError | None = None
        self._refusal: CometError | None = None
        self._roused: asyncio.Future[None] | None = None

    def rouse(self) -> None:
        if self._roused is not None and not self._roused.done():
            self._roused.set_result(None)

    def end_waiting(self, error: CometError) -> None:
        """Ends the waiting; the call still gets the records that are available now."""
        self._refusal = error
        self.rouse()

    def ended(self, caller: Caller, error: CometError) -> None:
        """Drops a partition that has no more records for the call."""
        self._callers.pop(caller, None)
        self._error = error
        self.rouse()

    def queue_at(self, index: int, state: SharePartition | CometError, agreed: Agreed) -> None:
        """Queues at a partition, or notes the error that prevents it. Raises an error that refuses the whole call."""
        self._ahead.pop(index)
        if isinstance(state, InvalidArgument):
            raise state
        error = state if isinstance(state, CometError) else state.closed
        if isinstance(state, SharePartition) and error is None:
            state.agree(agreed)
            if state.tickets.find(self._number) is None:
                self._queue(state)
                return
            error = Unavailable(f"a lock of the same number is open at {state}", retry_after_ms=1)
        self._error = error
        self._failed[index] = None

    def _queue(self, state: SharePartition) -> None:
        caller = Caller(self, state)
        self._callers[caller] = None
        try:
            state.add_caller(caller)
        except CometError as error:
            self.ended(caller, error)

    async def run(self, opening: Coroutine[Any, Any, None], wait_s: float) -> pb.AcquireResponse:
        """Waits for a first record, for `wait_s` and a little longer for partitions that are not open or read yet.
        `opening` queues the call at its partitions."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + wait_s
        opener = loop.create_task(opening)
        try:
            while True:
                self._roused = loop.create_future()
                found = self._take()
                if found:
                    return pb.AcquireResponse(ranges=found, missing=self._failed)
                if self._refusal is not None:
                    raise self._refusal
                waiting: list[asyncio.Future[None]] = []
                if not opener.done():
                    waiting.append(opener)
                else:
                    opener.result()
                    if not self._callers:
                        raise self._error or Unavailable(
                            "this broker no longer leads these partitions of the share group", retry_after_ms=50
                        )
                waiting += [one for caller in self._callers if (one := caller.state.reader.loading) is not None]
                left_s = give_up + (PATIENCE_S if waiting else 0) - loop.time()
                if left_s <= 0:
                    return pb.AcquireResponse(missing=[*self._failed, *self._ahead])
                await asyncio.wait([self._roused, *waiting], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            opener.cancel()
            opener.add_done_callback(ignore_error)
            for caller in self._callers:
                caller.state.acquirers.remove_caller(caller)

    def _take(self) -> list[pb.AcquiredRange]:
        """Takes all available records, up to the request's limits; one partition after the other."""
        found: list[pb.AcquiredRange] = []
        refused: CometError | None = None
        for caller in list(self._callers):
            try:
                self._take_from(caller, found)
            except CometError as error:
                refused = error
            except Exception as error:  # noqa: BLE001 - it stops this group in this partition, not the call
                caller.state.halt(error)
        if refused is not None and not found:
            raise refused
        return found

    def _take_from(self, caller: Caller, found: list[pb.AcquiredRange]) -> None:
        caller.called = False
        state = caller.state
        if self._peek:
            if state.has_records():
                found.append(_range(state, 0))
            return
        while self.records_left > 0 and self.bytes_left > 0:
            caller.bytes_max = self.bytes_left
            served = self._serve(caller)
            if served is None:
                return
            acquired = self._acquired(state, *served)
            self.bytes_left -= len(acquired.batches)
            state.partition.counts.delivered(0, len(acquired.batches))
            self.records_left -= sum(one.end - one.first for one in acquired.records)
            found.append(acquired)
            if state.acquirers.is_waited_for_beside(caller):
                return

    def _serve(self, caller: Caller) -> tuple[Chunk, Sequence[Granted]] | None:
        """Acquires records under the number of the call. Raises LimitExceeded."""
        state = caller.state
        if not state.tickets.has_room():
            raise LimitExceeded(
                f"{state} has {limits.SHARE_TICKETS_MAX} open locks without a stream, the limit; acknowledge some",
                retry_after_ms=1000,
            )
        served = state.serve(caller)
        if served is not None:
            state.tickets.add(self._number, caller.holder)
        return served

    def _acquired(self, state: SharePartition, chunk: Chunk, granted: Sequence[Granted]) -> pb.AcquiredRange:
        acquired = _range(state, self._number)
        acquired.records.extend(acquired_ranges(granted))
        acquired.batches = chunk.batches(granted)
        return acquired


def ignore_error(task: asyncio.Task[None]) -> None:
    """Ignores the task's error: it was raised, or the call has an answer."""
    if not task.cancelled():
        task.exception()


def _range(state: SharePartition, number: int) -> pb.AcquiredRange:
    return pb.AcquiredRange(
        partition=state.partition.index, topic_id=state.partition.topic_id, leader_epoch=state.epoch, lock_id=number
    )
