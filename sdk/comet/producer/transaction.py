"""One transaction: what belongs to it, and how it ends. Its producer, which has all of them, is in _transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from comet import limits
from comet.errors import CometError, InvalidArgument, TransactionAborted, TransactionNotOpen
from comet.producer.delivery import BulkDelivery, Delivery
from comet.producer.partitioner import Headers, Key
from comet.v1 import groups_pb2 as groups_pb

if TYPE_CHECKING:
    from comet.producer.transactional import TransactionalProducer

State = Literal["new", "open", "ending", "committed", "aborted", "unknown"]


class OffsetSource(Protocol):
    """A consumer of a group, as far as a transaction needs it."""

    def offsets_to_commit(self, positions: Any) -> groups_pb.Commit:
        """The positions as this member of the group commits them now."""

    def were_committed(self, offsets: groups_pb.Commit) -> None:
        """They are."""


class Transaction:
    """One transaction, made by `TransactionalProducer.transaction` or `App.transaction`. Lives for one `async with`.

    Leaving the block waits until every record is acknowledged by all in-sync replicas, and commits; it raises
    TransactionAborted where that is not possible: nothing of it is visible then. A Timeout (or another error with
    `outcome_unknown`) says that the coordinator did not answer: it is committed or not, as a whole.

    >>> async def example(address: str) -> None:
    ...     async with comet.TransactionalProducer(address, "example") as producer:
    ...         async with producer.transaction() as tx:
    ...             await tx.send_many("quotes", [b"1", b"2", b"3"])
    ...         print(tx.state)
    >>> run(example)
    committed
    """

    def __init__(self, producer: TransactionalProducer) -> None:
        self._producer = producer
        self._writer = producer._writer
        self._state: State = "new"
        self._offsets: dict[int, tuple[OffsetSource, list[Any]]] = {}
        self._note = b""
        self._sending = 0
        self._quiet: asyncio.Future[None] | None = None
        self._after: list[Callable[[], None]] | None = []  # called once it sends nothing any more; then None

    @property
    def state(self) -> str:
        """new, open, ending, committed, aborted, or unknown: it is committed or aborted, and no answer said which."""
        return self._state

    # ---- what belongs to it

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Key = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Buffers a record, as `Producer.send` does. It need not be awaited further: the commit waits for all.

        >>> async def example(address: str) -> None:
        ...     async with comet.TransactionalProducer(address, "example") as producer:
        ...         async with producer.transaction() as tx:
        ...             await tx.send("quotes", {"symbol": "EURUSD"}, key="EURUSD")
        >>> run(example)
        """
        self._enter()
        try:
            return await self._writer.send(
                topic, value, key=key, headers=headers, timestamp_us=timestamp_us, partition=partition
            )
        finally:
            self._leave()

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        *,
        keys: Sequence[Key] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
        timestamp_us: int | None = None,
        timestamps_us: Sequence[int | None] | None = None,
    ) -> BulkDelivery:
        """Buffers many records at once, as `Producer.send_many` does.

        >>> async def example(address: str) -> None:
        ...     async with comet.TransactionalProducer(address, "example") as producer:
        ...         async with producer.transaction() as tx:
        ...             await tx.send_many("quotes", [b"1", b"2"], keys=["a", "b"])
        >>> run(example)
        """
        self._enter()
        try:
            return await self._writer.send_many(
                topic, values, keys=keys, headers=headers, partition=partition, timestamp_us=timestamp_us,
                timestamps_us=timestamps_us,
            )  # fmt: skip
        finally:
            self._leave()

    async def commit_offsets(self, consumer: OffsetSource, positions: Any = None) -> None:
        """With the commit, the group's committed offsets move: behind these records or batches, or to these offsets per
        (topic, partition); without any, behind all that the consumer has handed out.

        The producer must have been made for the consumer's group. The commit is refused where the consumer does not
        own the partitions any more.
        """
        self._check()
        if not self._producer.group:
            raise InvalidArgument("a producer that commits offsets is made with group=, the consumer's group")
        _, chosen = self._offsets.setdefault(id(consumer), (consumer, []))
        chosen.append(positions)

    def note(self, note: bytes) -> None:
        """With the commit, the transactional id remembers this, at most 256 bytes; a later producer of the id finds it
        as `producer.note`. So a writer that starts again knows which of its transactions counts as the last one.

        Kept as one with the decision. Of several calls the last one counts; without any, or when it is empty, the note
        from before stays. A transaction with a note is committed even if nothing else is in it.

        >>> async def example(address: str) -> None:
        ...     async with comet.TransactionalProducer(address, "loader") as producer:
        ...         async with producer.transaction() as tx:
        ...             await tx.send("quotes", b"1")
        ...             tx.note(b"file 7")
        ...     async with comet.TransactionalProducer(address, "loader") as producer:
        ...         print(producer.note)
        >>> run(example)
        b'file 7'
        """
        self._check()
        if len(note) > limits.TRANSACTION_NOTE_BYTES_MAX:
            raise InvalidArgument(
                f"a note has at most {limits.TRANSACTION_NOTE_BYTES_MAX} bytes, not {len(note)}: send a record instead"
            )
        self._note = bytes(note)

    def _enter(self) -> None:
        self._check()
        self._sending += 1
        self._writer.used = True

    def _leave(self) -> None:
        self._sending -= 1
        if not self._sending and self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    def _check(self) -> None:
        if self._state != "open":
            raise TransactionNotOpen(f"this transaction is {self._state}; use it inside its `async with`")
        if self._writer.failure is not None:
            raise self._why()

    def _why(self) -> CometError:
        """What is told of a transaction in which a record failed."""
        failure = self._writer.failure
        assert failure is not None
        aborted = TransactionAborted(f"nothing of it was written: {failure.message}", details=failure.details)
        aborted.__cause__ = failure
        return aborted

    # ---- from the beginning to the end

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise InvalidArgument(f"this transaction is {self._state}: begin another")
        await self._producer._begin(self)
        self._state = "open"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._state != "open":
            return  # its producer was closed meanwhile
        if error is not None:
            await self._abandon(error)
        else:
            await self._commit()

    async def _abandon(self, error: BaseException) -> None:
        self._state = "aborted"
        try:
            await self._give_up()
            if self._writer.used:
                await self._producer._abort(error)
        finally:
            self._finish()

    async def _commit(self) -> None:
        self._state = "ending"
        try:
            await self._wait_for_sends()
            await self._writer.drain()
            self._sent()
            if self._writer.failure is not None:
                raise self._why()
            source, offsets = self._positions()
            if self._writer.used or offsets is not None or self._note:
                await self._producer._end(True, offsets, self._note)
            self._state = "committed"
            if source is not None and offsets is not None:
                source.were_committed(offsets)
        except BaseException as error:
            await self._not_committed(error)
            fenced = self._producer._fenced
            if fenced is not None and isinstance(error, TransactionAborted):
                raise fenced.with_traceback(None) from error
            raise
        finally:
            self._finish()

    async def _not_committed(self, error: BaseException) -> None:
        """The state after a commit that raised, with everything given up."""
        producer = self._producer
        if producer._ending is not None:
            # The answer is asked for before the next transaction. An abort is of who closes the producer.
            self._state = "unknown" if producer._ending.commit else "aborted"
            return
        self._state = "aborted"
        await self._give_up()
        if producer._fenced is None:
            await producer._abort(error)  # a leader that fences may know less than the coordinator, who is asked here

    async def _give_up(self) -> None:
        self._writer.drop()
        await self._wait_for_sends()
        self._writer.drop()  # what those have appended after all

    async def _wait_for_sends(self) -> None:
        """A send that is under way belongs to this transaction, and must not end up in the next."""
        while self._sending:
            if self._quiet is None or self._quiet.done():
                self._quiet = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._quiet)  # a close of the producer may wait beside the end of the block

    def _positions(self) -> tuple[OffsetSource | None, groups_pb.Commit | None]:
        """What is to be committed of the group, as its member says now."""
        if not self._offsets:
            return None, None
        if len(self._offsets) > 1:
            raise InvalidArgument("one transaction commits the positions of one consumer")
        ((source, chosen),) = self._offsets.values()
        return source, source.offsets_to_commit(None if None in chosen else _flat(chosen))

    def hold_behind(self, other: Transaction) -> None:
        """What is sent in this one stays here until all of the other one is acknowledged, or that has failed; so it
        lies behind it in every partition. It may be committed only after the other one is."""
        if other._after is not None:
            self._writer.hold()
            other._after.append(self._writer.release)

    def _sent(self) -> None:
        after, self._after = self._after, None
        for tell in after or ():
            tell()

    def _finish(self) -> None:
        self._sent()

        producer = self._producer
        producer._current = None
        if self._state == "committed":
            producer._committed += 1
        elif self._state == "aborted":
            producer._aborted += 1


def _flat(chosen: list[Any]) -> Any:
    """All that was asked for in several calls as one: a mapping where all are, else a list of records and batches."""
    if all(isinstance(one, Mapping) for one in chosen):
        return {place: offset for one in chosen for place, offset in one.items()}
    flat: list[Any] = []
    for one in chosen:
        if isinstance(one, Mapping):
            raise InvalidArgument("give offsets in all calls of commit_offsets, or records and batches in all")
        flat.extend(one if isinstance(one, list) else [one])
    return flat
