"""The transactions of one slot: which are open, what they have touched, and how they end.

    transactions/<transactional id>     below the slot's prefix: a TransactionRecord

    OpenTransactions, AddPartition, EndTransaction, timeout, eviction
       └─► core.transactions.step ─► the journal (a commit's offsets in the same write) ─► the answer
                                        └─► decided: markers to the leaders, then the answer, and the next epoch

A decision counts at once for later requests, and is answered only when it is written. Writes have one order, so an
AddPartition that is not written yet when its transaction is decided is part of the decision.

Owned by the slot, on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from comet.errors import (
    CometError,
    InvalidArgument,
    ProducerFenced,
    StoreDamaged,
    TransactionNotOpen,
    Unavailable,
)
from comet.v1 import coordination_pb2 as coordination
from comet.v1 import groups_pb2 as pb
from comet.wire.protobuf import error_from_pb
from comet_broker import limits
from comet_broker.coordination.committed_offsets import Admitted
from comet_broker.coordination.context import SlotClaim, SlotContext
from comet_broker.coordination.group import MemberConnection
from comet_broker.coordination.journal import Operation, Written
from comet_broker.coordination.timekeeping import Timekeeper
from comet_broker.coordination.transactional import Transactional, TransactionalIds
from comet_broker.core.cluster import BROKERS, DELETED, PARTITIONS, PartitionId
from comet_broker.core.slots import PRODUCER_BITS, check_name, producer_in
from comet_broker.core.transactions import (
    ENDING,
    GENERATED_PREFIX,
    AddPartition,
    End,
    Event,
    Evicted,
    Marked,
    Open,
    Outcome,
    Step,
    TimedOut,
    TransactionLoaded,
    TransactionRecord,
    TransactionState,
    decided,
    ended,
    step,
)
from comet_broker.failures import Guard, Kind
from comet_broker.metadata.store import Delete, KeyValue, Put

log = logging.getLogger(__name__)

PREFIX: Final = "transactions/"
FAILED_MS: Final = 1_000  # after which a request for a failed id is worth a retry
ENDING_S_MAX: Final = 30.0  # how long an answer waits for markers; then the client asks again


class OffsetCommits(Protocol):
    """Commits offsets of the slot's groups with a transaction. See commits.Commits."""

    async def learn_ends(self, commit: pb.Commit) -> None: ...
    def admit(self, commit: pb.Commit) -> Admitted: ...
    def write(self, admitted: Admitted, operations: Sequence[Operation], done: Written) -> None: ...


class Transactions:
    def __init__(self, claim: SlotClaim, context: SlotContext, commits: OffsetCommits) -> None:
        self._slot = claim
        self._env = context.env
        self._store_of_cluster = context.store
        self._commits = commits
        self._markers = context.markers()
        self._ids = TransactionalIds()
        self._unreadable: set[str] = set()
        self._time = Timekeeper(context.env.clock, self)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed: CometError | None = None
        self.ended: Counter[str] = Counter()

    def load(self, items: Mapping[str, KeyValue]) -> None:
        """Loads the ids from the keys below the slot's prefix; `items` is keyed by the rest. All timeouts restart."""
        now = self._env.clock.monotonic()
        for key, item in items.items():
            if not key.startswith(PREFIX):
                continue
            name = key.removeprefix(PREFIX)
            try:
                record = TransactionRecord.decode(item.value)
            except (msgspec.DecodeError, ValueError) as error:
                log.error(
                    "cannot read the value of %s in the metadata store: %s",
                    item.key,
                    error,
                    extra={"transactional_id": name},
                )
                self._unreadable.add(name)
                continue
            self._take_over(Transactional(name, record, now))
        self._time.start()

    def _take_over(self, one: Transactional) -> None:
        """Adds an id as loaded from the store."""
        with self._guard(one, "loading"):
            self._ids.add(one)
            self._take(one, TransactionLoaded())
            if one.record.state is TransactionState.OPEN:
                self._time.opened(one.name, one.record.timeout_ms / 1000)

    def close(self, error: CometError) -> None:
        """Closes the slot's transactions; the next coordinator ends those under way."""
        self._closed = error
        self._time.close()
        for task in self._tasks:
            task.cancel()
        for one in self._ids:
            if one.finished is not None and not one.finished.done():
                one.finished.set_result(None)
            if one.failed:
                self._env.failures.clear(Kind.TRANSACTION, one.name)  # the slot's next coordinator loads it

    # ---- transactional ids that fail

    def _guard(self, one: Transactional, step: str) -> Guard:
        return self._env.failures.guard(Kind.TRANSACTION, one.name, step, lambda error: self._halt(one, step, error))

    def _halt(self, one: Transactional, step: str, error: Exception) -> CometError:
        """Stops an id after an unexpected error: it is not served until it is loaded again."""
        reason = self._env.failures.note(Kind.TRANSACTION, one.name, error, step)
        one.failed = one.failed or reason
        self._time.decided(one.name)
        self._time.stored(one.name)
        finished, one.finished = one.finished, None
        if finished is not None and not finished.done():
            finished.set_result(None)
        return self._stopped(one)

    def _stopped(self, one: Transactional) -> CometError:
        me = self._env.me
        return Unavailable(
            f"transactional id {one.name!r} has failed on broker {me}, its coordinator, and is stopped: {one.failed}."
            f" To resume it: comet cluster resume --broker {me}",
            retry_after_ms=FAILED_MS,
        )

    async def resume(self) -> int:
        """Loads failed ids from the store again; returns how many. Raises StoreUnavailable."""
        count = 0
        for one in [one for one in self._ids if one.failed]:
            await self._slot.journal.written()  # the writes that it had queued are in the store
            item = await self._store_of_cluster.get(self._key(one.name))
            if self._closed is not None or self._ids.get(one.name) is not one:
                continue
            self._ids.remove(one)
            self._env.failures.clear(Kind.TRANSACTION, one.name)
            if item is not None:
                self.load({f"{PREFIX}{one.name}": item})
            count += 1
        return count

    def view_moved(self, keys: Sequence[str]) -> None:
        """Follows a change of the cluster in these keys."""
        if any(key.startswith((PARTITIONS, BROKERS, DELETED)) for key in keys):
            self._markers.view_moved()

    def statistics(self) -> dict[str, Any]:
        states = self._ids.states()
        return {
            "transactional_ids": len(self._ids),
            "transactions_open": states[TransactionState.OPEN],
            "transactions_ending": sum(states[state] for state in ENDING),
            "transactions_committed": self.ended["committed"],
            "transactions_aborted": self.ended["aborted"],
            "markers_written": self._markers.written,
            "marker_attempts_failed": self._markers.attempts_failed,
        }

    # ---- requests

    async def open(self, opening: pb.OpenTransactions, stream: MemberConnection | None = None) -> pb.OpenedTransactions:
        """Fences the id's previous producer, ends its open transaction, and returns a new epoch."""
        timeout_ms = opening.timeout_ms or limits.TRANSACTION_TIMEOUT_MS
        if timeout_ms > limits.TRANSACTION_TIMEOUT_MS_MAX:
            raise InvalidArgument(f"a transaction is open for at most {limits.TRANSACTION_TIMEOUT_MS_MAX} ms")
        fresh = producer_in(self._slot.number, self._env.random.randrange(1, 1 << PRODUCER_BITS))
        event = Open(fresh, timeout_ms, opening.group, opening.member)
        name = opening.transactional_id
        if name and not name.startswith(GENERATED_PREFIX):
            check_name(name)
        elif self._ids.get(name) is None:
            name = f"{GENERATED_PREFIX}{fresh:016x}"
        if name in self._unreadable:
            raise StoreDamaged(f"transactional id {name!r} cannot be read from the metadata store")
        one = self._ids.get(name)
        if one is None:
            one = self._make(name, event)
        else:
            self._take(one, event)
        one.stream = stream if one.generated else None
        record = one.record
        await self._stored(one)
        await self._when_finished(one, record.first_epoch - 1)
        return pb.OpenedTransactions(
            transactional_id=name, producer_id=record.producer_id, epoch=record.first_epoch, note=record.note
        )

    async def add_partition(self, request: coordination.AddPartitionRequest) -> coordination.AddPartitionResponse:
        """Adds a partition to the transaction. Called by the partition's leader."""
        if len(request.topic_id) != 16:
            raise InvalidArgument("a topic's id has 16 bytes")
        one = self._ids.of_producer(request.producer_id)
        if one is None:
            raise _no_transactions(request.producer_id)
        found = self._take(one, AddPartition(request.epoch, (request.topic_id.hex(), request.partition)))
        await self._stored(one)
        if found.error is not None:
            raise found.error
        return coordination.AddPartitionResponse()

    async def outcome(self, request: coordination.OutcomeRequest) -> coordination.OutcomeResponse:
        """The outcome of a transaction, for the leader of a partition without a marker of it: the marker was lost with
        the end of the log, or is on its way."""
        one = self._ids.of_producer(request.producer_id)
        if one is None:
            await self._slot.journal.written()  # no other coordinator has had the slot, and made the id, until now
            if self._closed is not None:
                raise self._closed
            one = self._ids.of_producer(request.producer_id)
        if one is None:
            return coordination.OutcomeResponse(over=not self._unreadable)
        record = one.record
        await self._stored(one)
        self._check(one)
        committed = decided(record, request.epoch)
        return coordination.OutcomeResponse(
            over=ended(record, request.epoch) is not None,
            committed=bool(committed),
            decided=committed is not None,
        )

    async def end(self, ending: pb.EndTransaction, stream: MemberConnection | None = None) -> pb.EndedTransaction:
        one = self._find(ending)
        if len(ending.note) > limits.TRANSACTION_NOTE_BYTES_MAX:
            raise InvalidArgument(f"the note of a transaction has at most {limits.TRANSACTION_NOTE_BYTES_MAX} bytes")
        event = End(ending.epoch, ending.commit, note=ending.note)
        offsets = _offsets(ending, one) if self._decides(one, event) else None
        error: CometError | None = None
        if offsets is not None:
            try:
                await self._commits.learn_ends(offsets)
            except CometError as caught:
                error = caught
            one = self._find(ending)  # again, after an await
        if one.generated and stream is not None:
            one.stream = stream
        error = self._end(one, event, offsets, error)
        await self._stored(one)
        if error is not None:
            raise error
        await self._when_finished(one, ending.epoch)
        return pb.EndedTransaction(next_epoch=ending.epoch + 1)

    @staticmethod
    def _decides(one: Transactional, event: End) -> bool:
        return step(one.record, event).outcome is Outcome.DECIDED

    def _find(self, ending: pb.EndTransaction) -> Transactional:
        if self._closed is not None:
            raise self._closed
        one = self._ids.get(ending.transactional_id)
        if one is None:
            raise _no_transactions(ending.producer_id)
        if one.record.producer_id != ending.producer_id:
            raise ProducerFenced(f"another producer has the transactional id {one.name!r} now")
        return one

    def _end(
        self, one: Transactional, event: End, offsets: pb.Commit | None, error: CometError | None
    ) -> CometError | None:
        """Decides, in one turn. A commit whose offsets are refused is an abort: its records must not be seen."""
        if offsets is None or not self._decides(one, event):
            return self._take(one, event).error
        try:
            if error is not None:
                raise error
            admitted = self._commits.admit(offsets)
            if admitted.refused:
                raise error_from_pb(admitted.refused[0].error)
        except CometError as caught:
            if caught.retriable:
                raise
            self._take(one, End(event.epoch, commit=False, reason=caught.message))
            return caught
        return self._take(one, event, admitted).error

    def evicted(self, group: str, member: str) -> None:
        """Ends the transaction of a member that its group has evicted."""
        for one in self._ids:
            if member and (one.record.group, one.record.member) == (group, member):
                with self._guard(one, "an eviction"):
                    self._take_quietly(one, Evicted())

    # ---- a step

    def _make(self, name: str, event: Open) -> Transactional:
        now = self._env.clock.monotonic()
        in_the_way = self._ids.in_the_way(now)
        if in_the_way is not None:
            self._forget(in_the_way)
        record = TransactionRecord(
            producer_id=event.producer_id, timeout_ms=event.timeout_ms, group=event.group, member=event.member
        )
        one = Transactional(name, record, now)
        self._store(one, record)
        self._ids.add(one)
        return one

    def _take(self, one: Transactional, event: Event, admitted: Admitted | None = None) -> Step:
        """Decides and queues the record to store. Raises, and changes nothing, when it cannot be queued."""
        self._check(one)
        try:
            return self._take_now(one, event, admitted)
        except CometError:
            raise
        except Exception as error:
            raise self._halt(one, type(event).__name__, error) from error

    def _check(self, one: Transactional) -> None:
        if self._closed is not None:
            raise self._closed
        if one.failed:
            raise self._stopped(one)

    def _take_now(self, one: Transactional, event: Event, admitted: Admitted | None) -> Step:
        before = one.record
        found = step(before, event)
        self._ids.touch(one, self._env.clock.monotonic())
        if found.outcome is Outcome.FINISHED:
            one.record = found.record
            self._time.over(one.name)
        elif found.record is not before:
            self._store(one, found.record, admitted)
            self._ids.renumber(one, before.producer_id)
        if before.state is not TransactionState.OPEN and one.record.state is TransactionState.OPEN:
            self._time.opened(one.name, one.record.timeout_ms / 1000)
        elif before.state is TransactionState.OPEN and one.record.state is not TransactionState.OPEN:
            self._time.decided(one.name)
        if found.outcome is Outcome.DECIDED and one.record.state is TransactionState.EMPTY:
            self.ended["committed" if one.record.last_committed else "aborted"] += 1
        elif one.record.state in ENDING and (before.state not in ENDING or found.outcome is Outcome.RESUMED):
            self._begin_to_finish(one)
        return found

    def _take_quietly(self, one: Transactional, event: Event) -> None:
        """Takes a step without a request: if it cannot be stored now, it is retried when its time is up."""
        try:
            self._take(one, event)
        except CometError as error:
            log.warning("transactional id %s: %s", one.name, error, extra={"transactional_id": one.name})

    def _store(self, one: Transactional, record: TransactionRecord, admitted: Admitted | None = None) -> None:
        written: asyncio.Future[CometError | None] = asyncio.get_running_loop().create_future()

        def done(error: CometError | None) -> None:
            if not written.done():
                written.set_result(error)

        put = Put(self._key(one.name), record.encode())
        if admitted is None:
            self._slot.journal.write([put], done)
        else:
            self._commits.write(admitted, [put], done)
        if written.done() and (error := written.result()) is not None:
            raise error
        one.record = record
        one.written = written
        self._time.stored(one.name)

    def _known(self, name: str) -> Transactional:
        one = self._ids.get(name)
        assert one is not None
        return one

    def _key(self, name: str) -> str:
        return f"{self._slot.prefix}{PREFIX}{name}"

    async def _stored(self, one: Transactional) -> None:
        """Waits until all decisions so far are written."""
        if one.written is not None and (error := await asyncio.shield(one.written)) is not None:
            raise error
        if self._closed is not None:
            raise self._closed

    # ---- markers

    def _begin_to_finish(self, one: Transactional) -> None:
        assert one.finished is None
        one.finished = asyncio.get_running_loop().create_future()
        name = f"end transaction {one.record.epoch} of {one.name}"
        task = self._env.tasks.spawn(self._finish_guarded(one), name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish_guarded(self, one: Transactional) -> None:
        with self._guard(one, "ending"):
            await self._finish(one)

    async def _finish(self, one: Transactional) -> None:
        """Writes the markers of a decided transaction, once the decision is stored."""
        record = one.record
        if one.written is not None and await asyncio.shield(one.written) is not None:
            return  # the slot is lost
        tps: list[PartitionId] = [(topic_id, index) for topic_id, indexes in record.topics.items() for index in indexes]
        committed = record.state is TransactionState.COMMITTING
        await self._markers.write(record.producer_id, record.epoch, committed, tps)
        if self._closed is not None:
            return
        self.ended["committed" if committed else "aborted"] += 1
        finished, one.finished = one.finished, None
        self._take(one, Marked(record.epoch))
        if finished is not None and not finished.done():
            finished.set_result(None)

    async def _when_finished(self, one: Transactional, epoch: int) -> None:
        """Waits until no transaction of `epoch` or before it is ending."""
        try:
            async with asyncio.timeout(ENDING_S_MAX):
                while one.finished is not None and one.record.epoch <= epoch and self._closed is None:
                    await asyncio.shield(one.finished)
        except TimeoutError:
            raise Unavailable(
                f"transaction {one.record.epoch} of {one.name!r} is decided, and waits for leaders of its partitions",
                retry_after_ms=200,
            ) from None
        self._check(one)

    # ---- called by the timekeeper

    def timed_out(self, name: str) -> None:
        one = self._known(name)
        log.info("transaction %d of %s timed out", one.record.epoch, name, extra={"transactional_id": name})
        with self._guard(one, "a timeout"):
            self._take_quietly(one, TimedOut(one.record.epoch))
        if one.record.state is TransactionState.OPEN and not one.failed:
            self._time.retry_timeout(name)

    def tidy(self, name: str) -> bool:
        one = self._known(name)
        try:
            self._store(one, one.record)
        except CometError as error:
            log.info("transactional id %s is stored as over later: %s", name, error, extra={"transactional_id": name})
            return False
        except Exception as error:  # noqa: BLE001 - reported; the others are still to be stored
            self._halt(one, "tidying up", error)
        return True

    def forget_idle(self, now: float) -> None:
        for one in self._ids.idle(now):
            with self._guard(one, "forgetting"):
                self._forget(one)

    def _forget(self, one: Transactional) -> None:
        """Forgets an id; its producer is refused from now on, as if it had been fenced."""
        refused: list[CometError] = []
        self._slot.journal.write(
            [Delete(self._key(one.name))], lambda error: refused.append(error) if error is not None else None
        )
        if refused:
            log.info(
                "transactional id %s is forgotten later: %s", one.name, refused[0], extra={"transactional_id": one.name}
            )
            return
        self._ids.remove(one)
        self._time.stored(one.name)


def _offsets(ending: pb.EndTransaction, one: Transactional) -> pb.Commit | None:
    """The offsets of a commit, checked."""
    group = one.record.group
    if ending.group != group:
        raise InvalidArgument(f"the transactions of {one.name!r} were opened for group {group!r}, not {ending.group!r}")
    if not ending.commit or not ending.HasField("offsets"):
        return None
    if not group or ending.offsets.group != group:
        raise InvalidArgument(f"offsets of group {ending.offsets.group!r} do not belong to transactions of {group!r}")
    return ending.offsets


def _no_transactions(producer_id: int) -> TransactionNotOpen:
    return TransactionNotOpen(f"producer {producer_id} has no transactions here, or was idle for too long")
