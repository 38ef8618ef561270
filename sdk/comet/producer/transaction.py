"""Transactions: records for several topics, and committed offsets, become visible together or not at all.

    transaction() ─► open: send, send_many, commit_offsets
        ├─ left normally ──────────────────► all acknowledged ─► End(commit) ─► committed
        └─ an exception, a record that failed ─► all given up ─► End(abort) ──► aborted

Each transaction has an epoch of its own, from the answer to the End of the one before it. So a late batch or End of one
transaction never counts for the next. An End without an answer is sent again unchanged, now or before the next
transaction: under one epoch the answer is always the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, Unpack

from comet import limits
from comet.client.bootstrap import Addresses
from comet.client.coordinator import Coordinator
from comet.client.new_topic import Create
from comet.client.world import Seams, World
from comet.encryption.keyring import Keyring
from comet.errors import (
    Closed,
    CometError,
    InvalidArgument,
    ProducerFenced,
    Timeout,
    TransactionAborted,
    TransactionNotOpen,
    Unavailable,
)
from comet.producer.accumulator import ProducerBatch
from comet.producer.delayed_record import Delay, refused_in_transaction
from comet.producer.delivery import BulkDelivery, Delivery
from comet.producer.producer import Compression, Producer
from comet.producer.sender import PartitionSender
from comet.tracing.options import Tracing
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from comet.values.record import Headers, Key

log = logging.getLogger("comet")

_GIVEN_UP: Final = "the transaction was aborted"

State = Literal["new", "open", "ending", "committed", "aborted", "unknown"]


class OffsetSource(Protocol):
    """The part of a group consumer that a transaction uses."""

    def offsets_to_commit(self, positions: Any) -> groups_pb.Commit:
        """The positions as this member of the group commits them now."""

    def were_committed(self, offsets: groups_pb.Commit) -> None:
        """Called after the commit."""


class Transaction:
    """One transaction, made by `TransactionalProducer.transaction` or `App.transaction`. Lives for one `async with`.

    Leaving the block waits until every record is acknowledged by all in-sync replicas, and commits. If that fails, it
    raises TransactionAborted, and none of its records becomes visible. After a Timeout (or another error with
    `outcome_unknown`) the coordinator did not answer: the transaction is committed or aborted as a whole.

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
        self._after: list[Callable[[], None]] | None = []  # called once it has sent everything; then None

    @property
    def state(self) -> str:
        """new, open, ending, committed, aborted, or unknown: it is committed or aborted, and no answer said which."""
        return self._state

    # ---- records and offsets

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Key = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        partition: int | None = None,
        ttl_ms: int | None = None,
        delay: Delay | None = None,
        due: datetime | None = None,
    ) -> Delivery:
        """Buffers a record, as `Producer.send` does. The Delivery need not be awaited: the commit waits for all. A
        transaction holds no delayed records: `delay` and `due` raise InvalidArgument.

        >>> async def example(address: str) -> None:
        ...     async with comet.TransactionalProducer(address, "example") as producer:
        ...         async with producer.transaction() as tx:
        ...             await tx.send("quotes", {"symbol": "EURUSD"}, key="EURUSD")
        >>> run(example)
        """
        if delay is not None or due is not None:
            raise refused_in_transaction()
        self._enter()
        try:
            return await self._writer.send(
                topic, value, key=key, headers=headers, timestamp_us=timestamp_us, partition=partition, ttl_ms=ttl_ms
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
        ttl_ms: int | None = None,
        ttls_ms: Sequence[int | None] | None = None,
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
                timestamps_us=timestamps_us, ttl_ms=ttl_ms, ttls_ms=ttls_ms,
            )  # fmt: skip
        finally:
            self._leave()

    async def commit_offsets(self, consumer: OffsetSource, positions: Any = None) -> None:
        """Sets the group's committed offsets with the commit: after these records or batches, or to these offsets per
        (topic, partition); by default after everything that the consumer has handed out.

        The producer must have been made for the consumer's group. The commit is refused if the partitions are no
        longer assigned to the consumer.
        """
        self._check()
        if not self._producer.group:
            raise InvalidArgument("commit_offsets needs a producer that was made with group=, the consumer's group")
        _, chosen = self._offsets.setdefault(id(consumer), (consumer, []))
        chosen.append(positions)

    def note(self, note: bytes) -> None:
        """Stores a note of at most 256 bytes with the commit; a later producer of the transactional id gets it as
        `producer.note`. So a writer that restarts knows its last committed transaction.

        Stored atomically with the decision. Of several calls the last one counts; without a note, or with an empty one,
        the previous note stays. A transaction with a note is committed even if it is otherwise empty.

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
        """The error of a transaction in which a record failed."""
        failure = self._writer.failure
        assert failure is not None
        aborted = TransactionAborted(f"a record of the transaction failed: {failure.message}", details=failure.details)
        aborted.__cause__ = failure
        return aborted

    # ---- begin and end

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
            # The next transaction asks for the answer. An abort here was sent by closing the producer.
            self._state = "unknown" if producer._ending.commit else "aborted"
            return
        self._state = "aborted"
        await self._give_up()
        if producer._fenced is None:
            await producer._abort(error)  # a fencing leader may be outdated: the coordinator decides

    async def _give_up(self) -> None:
        self._writer.drop()
        await self._wait_for_sends()
        self._writer.drop()  # records that those sends have added

    async def _wait_for_sends(self) -> None:
        """Waits for sends in progress: their records must not end up in the next transaction."""
        while self._sending:
            if self._quiet is None or self._quiet.done():
                self._quiet = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._quiet)  # closing the producer may wait for it, too

    def _positions(self) -> tuple[OffsetSource | None, groups_pb.Commit | None]:
        """The offsets to commit for the group, as its member gives them now."""
        if not self._offsets:
            return None, None
        if len(self._offsets) > 1:
            raise InvalidArgument("a transaction can commit the offsets of one consumer only")
        ((source, chosen),) = self._offsets.values()
        return source, source.offsets_to_commit(None if None in chosen else _flat(chosen))

    def hold_behind(self, other: Transaction) -> None:
        """Holds this transaction's records back until all records of the other one are acknowledged, or it has failed,
        so that they come after them in every partition. Commit this one only after the other."""
        if other._after is not None:
            self._writer.hold()
            other._after.append(self._writer.release)

    def _sent(self) -> None:
        after, self._after = self._after, None
        for callback in after or ():
            callback()

    def _finish(self) -> None:
        self._sent()

        producer = self._producer
        producer._current = None
        if self._state == "committed":
            producer._committed += 1
        elif self._state == "aborted":
            producer._aborted += 1


class TransactionMember(Protocol):
    """The part of a group consumer that its producer uses."""

    @property
    def group(self) -> str: ...
    @property
    def member(self) -> str: ...


class Writer(Producer):
    """The producer behind a transactional producer, used by its transactions one after the other."""

    _transactional = True
    epoch = 0

    def __init__(self, addresses: Addresses, **options: Any) -> None:
        super().__init__(addresses, acks="all", **options)
        self.failure: CometError | None = None  # the first record of the transaction that failed
        self.used = False
        self.client = self._client

    def begin(self, producer_id: int, epoch: int) -> None:
        self._settings.producer_id, self.epoch = producer_id, epoch
        self.failure, self.used = None, False
        self._settings.held = False
        for sender in self._routes.senders():
            sender.accumulator.begin(epoch)

    def _make_sender(self, topic: str, partition: int, sealed: Callable[[PartitionSender], None]) -> PartitionSender:
        sender = super()._make_sender(topic, partition, sealed)
        sender.accumulator.begin(self.epoch)
        return sender

    def _note_failure(self, batch: ProducerBatch, error: CometError) -> None:
        batch.seen = True  # the transaction raises it
        self.failure = self.failure or error

    def hold(self) -> None:
        """Sends nothing until `release`, so that records come after those that another writer still sends."""
        self._settings.held = True

    def release(self) -> None:
        self._settings.held = False
        for sender in self._routes.senders():
            sender.resume()

    async def drain(self) -> None:
        await self._drain()

    def drop(self) -> None:
        """Gives up all unacknowledged records; even written ones stay invisible."""
        error = TransactionAborted(_GIVEN_UP)
        self.failure = self.failure or error
        for sender in self._routes.senders():
            sender.drop(error)

    async def close(self) -> None:
        if not self._closed:
            await self._shut()


class TransactionalProducer:
    """Writes records in transactions, one after the other: each becomes visible as a whole, or not at all.

    `transactional_id` names the producer across restarts: opening the id again aborts the open transaction of its
    predecessor, and fences it. With `group`, the comet.GroupConsumer whose offsets the transactions commit, no id
    is needed: when the member is removed from its group, its transaction is aborted and its commits are refused.
    A transaction that is open for longer than `transaction_timeout_ms` is aborted, so that no consumer waits for it.
    A record, and also opening, committing and aborting, fails without an answer within `timeout_ms`.

    With `create`, True or a NewTopic, a topic that is missing is made when the first record is sent to it. `tracing` is
    that of Producer.

    One transaction at a time; its sends may run at once. Consumers read it once it is committed, or at once with
    `isolation="uncommitted"`.

    >>> async def example(address: str) -> None:
    ...     async with comet.TransactionalProducer(address, "ledger") as producer:
    ...         async with producer.transaction() as tx:
    ...             await tx.send("quotes", b"out 5", key="a")
    ...             await tx.send("quotes", b"in 5", key="b")
    ...     async with comet.Consumer(address, "quotes", start="earliest") as consumer:
    ...         print((await consumer.get()).value, (await consumer.get()).value)
    >>> run(example)
    b'out 5' b'in 5'
    """

    def __init__(
        self,
        addresses: Addresses = None,
        transactional_id: str = "",
        *,
        group: str | TransactionMember = "",
        transaction_timeout_ms: int = 60_000,
        timeout_ms: int = 30_000,
        linger_ms: float = 0,
        batch_bytes: int = limits.SEND_BATCH_BYTES,
        bulk_batch_bytes: int = limits.BULK_BATCH_BYTES,
        buffer_bytes: int = limits.PRODUCER_BUFFER_BYTES,
        compression: Compression = None,
        encryption: Keyring | None = None,
        check_values: bool = True,
        create: Create = False,
        tracing: Tracing | bool = True,
        name: str = "",
        **seams: Unpack[Seams],
    ) -> None:
        World.of(self, {**seams})  # before the producer behind it names a wrong one
        if not 1 <= transaction_timeout_ms <= limits.TRANSACTION_TIMEOUT_MS_MAX:
            raise InvalidArgument(
                f"transaction_timeout_ms must be from 1 to {limits.TRANSACTION_TIMEOUT_MS_MAX}, "
                f"not {transaction_timeout_ms}"
            )
        self._writer = Writer(
            addresses, timeout_ms=timeout_ms, linger_ms=linger_ms, batch_bytes=batch_bytes,
            bulk_batch_bytes=bulk_batch_bytes, buffer_bytes=buffer_bytes, compression=compression,
            encryption=encryption, check_values=check_values, create=create, tracing=tracing, name=name, **seams,
        )  # fmt: skip
        client = self._writer.client
        if not transactional_id and not group:
            transactional_id = f"unnamed-{client.random.getrandbits(96):024x}"
        self._id = transactional_id
        self._member = None if isinstance(group, str) else group
        self._opened_for = ""  # the member that it was opened for
        self._group = group if isinstance(group, str) else group.group
        self._transaction_timeout_ms = transaction_timeout_ms  # enforced by the broker
        self._timeout_ms = timeout_ms
        self._coordinator = Coordinator(client, self._group or transactional_id)
        self._producer_id = 0
        self._epoch: int | None = None  # of the next transaction; None: to be asked for
        self._ending: groups_pb.EndTransaction | None = None  # an End without an answer
        self._note = b""
        self._current: Transaction | None = None
        self._fenced: ProducerFenced | None = None
        self._closed = False
        self._committed = self._aborted = 0

    @property
    def transactional_id(self) -> str:
        """The transactional id, given or generated."""
        return self._id

    @property
    def group(self) -> str:
        """The group whose offsets its transactions can commit; empty: none."""
        return self._group

    @property
    def note(self) -> bytes:
        """The last note committed under its id, as far as this producer knows; see `Transaction.note`. Empty without
        one, and before `start`. While the answer to a commit is missing it is the previous note: the next
        transaction asks for that answer, and so does the next `start` of the id.

        >>> comet.TransactionalProducer("localhost:9092", "example").note
        b''
        """
        return self._note

    # ---- life

    async def start(self) -> None:
        """Fences an earlier producer of the same id, and ends its open transaction. The first transaction does it, too.

        Raises Unavailable when no coordinator was reached within `timeout_ms`.
        """
        self._check()
        await self._ready()

    async def reopen(self, transactional_id: str = "") -> None:
        """Opens its id again, or another id, over the same connections: an older producer of the id is
        fenced, its transaction ended, and `note` is up to date. Between transactions; also when fenced.

        Raises Unavailable when no coordinator was reached within `timeout_ms`.

        >>> async def example(address: str) -> None:
        ...     async with comet.TransactionalProducer(address, "part-1") as producer:
        ...         async with producer.transaction() as tx:
        ...             tx.note(b"file 7")
        ...         await producer.reopen("part-2")
        ...         print(producer.transactional_id, producer.note)
        ...         await producer.reopen("part-1")
        ...         print(producer.transactional_id, producer.note)
        >>> run(example)
        part-2 b''
        part-1 b'file 7'
        """
        if self._current is not None:
            raise InvalidArgument("a transaction of this producer is open: end it first")
        if self._group:
            raise InvalidArgument("a producer with group= cannot be reopened: make another one")
        self._fenced = None
        self._check()
        self._epoch = self._ending = None  # opening ends an open transaction, or finds that it was committed
        self._note = b""
        if transactional_id and transactional_id != self._id:
            self._id = transactional_id
            self._coordinator = Coordinator(self._writer.client, transactional_id)
        await self._open()

    async def close(self) -> None:
        """Aborts an open transaction, and closes the connections. The outcome of one that another task is ending is
        then unknown."""
        if self._closed:
            return
        try:
            if self._current is not None and self._ending is None:
                await self._current._abandon(Closed("the producer was closed"))
        finally:
            self._closed = True
            await self._writer.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def transaction(self) -> Transaction:
        """A transaction, to be entered with `async with`. Leaving the block commits it, an exception aborts it.

        >>> async def example(address: str) -> None:
        ...     async with comet.TransactionalProducer(address, "example") as producer:
        ...         try:
        ...             async with producer.transaction() as tx:
        ...                 await tx.send("quotes", b"never seen")
        ...                 raise ValueError("changed my mind")
        ...         except ValueError as error:
        ...             print(error, tx.state)
        >>> run(example)
        changed my mind aborted
        """
        return Transaction(self)

    def statistics(self) -> dict[str, int]:
        """Counters since the start.

        >>> comet.TransactionalProducer("localhost:9092", "example").statistics()["committed"]
        0
        """
        return {**self._writer.statistics(), "committed": self._committed, "aborted": self._aborted}

    def _check(self) -> None:
        if self._closed:
            raise Closed("the producer was closed")
        if self._fenced is not None:
            raise self._fenced.with_traceback(None)

    # ---- one transaction after the other

    async def _begin(self, transaction: Transaction) -> None:
        self._check()
        if self._current is not None:
            raise InvalidArgument("a transaction of this producer is open: end it first, or use another producer")
        self._current = transaction
        try:
            await self._ready()
        except BaseException:
            self._current = None
            raise
        assert self._epoch is not None
        self._writer.begin(self._producer_id, self._epoch)

    async def _ready(self) -> None:
        """Gets an epoch for the next transaction."""
        if self._ending is not None:
            try:
                await self._request_end()
            except (Closed, ProducerFenced, Timeout, Unavailable):
                raise
            except CometError as error:
                log.info("comet: transaction of %s not committed: %s", self._id, error)
        if self._epoch is None or (self._member is not None and self._member.member != self._opened_for):
            await self._open()

    async def _open(self) -> None:
        member = "" if self._member is None else self._member.member
        opening = groups_pb.OpenTransactions(
            transactional_id=self._id, group=self._group, timeout_ms=self._transaction_timeout_ms, member=member
        )
        answer = await self._request(pb.ClientFrame(open_transactions=opening))
        opened = answer.opened_transactions
        self._opened_for = member
        self._id, self._producer_id, self._epoch = opened.transactional_id, opened.producer_id, opened.epoch
        self._note = opened.note

    async def _end(self, commit: bool, offsets: groups_pb.Commit | None = None, note: bytes = b"") -> None:
        """Ends the transaction. Raises the coordinator's refusal; Timeout or Unavailable if the outcome is unknown."""
        assert self._ending is None
        self._ending = groups_pb.EndTransaction(
            transactional_id=self._id, producer_id=self._producer_id, epoch=self._writer.epoch, commit=commit,
            offsets=offsets, group=self._group, note=note,
        )  # fmt: skip
        self._epoch = None
        await self._request_end()

    async def _request_end(self) -> None:
        assert self._ending is not None
        try:
            answer = await self._request(pb.ClientFrame(end_transaction=self._ending))
        except (Closed, Timeout, Unavailable):
            raise
        except CometError:
            self._ending = None  # a refusal is an answer, too
            raise
        ended, self._ending = self._ending, None
        self._note = ended.note or self._note
        self._epoch = answer.ended_transaction.next_epoch

    async def _request(self, frame: pb.ClientFrame) -> pb.ServerFrame:
        try:
            return await self._coordinator.request(frame, self._timeout_ms)
        except ProducerFenced as error:
            self._fenced = error
            raise

    async def _abort(self, why: BaseException) -> None:
        """Aborts, best effort: otherwise the next transaction does, or the transaction timeout."""
        hurried = not isinstance(why, Exception) or waited_in_vain(why)
        try:
            async with asyncio.timeout(limits.LAST_WORD_MS / 1000 if hurried else None):
                await self._end(False)
        except TimeoutError:
            pass  # after a cancellation or a timeout there is no time left
        except ProducerFenced:
            pass  # the producer that fenced it has aborted it
        except CometError as error:
            log.info("comet: abort of a transaction of %s failed: %s", self._id, error)


def _flat(chosen: list[Any]) -> Any:
    """The arguments of several calls as one: a mapping if all are, else a list of records and batches."""
    if all(isinstance(one, Mapping) for one in chosen):
        return {tp: offset for one in chosen for tp, offset in one.items()}
    flat: list[Any] = []
    for one in chosen:
        if isinstance(one, Mapping):
            raise InvalidArgument("give offsets in all calls of commit_offsets, or records and batches in all")
        flat.extend(one if isinstance(one, list) else [one])
    return flat


def cause_of(error: CometError) -> CometError:
    """The cause of an aborted transaction, else the error itself."""
    cause = error.__cause__
    return cause if isinstance(error, TransactionAborted) and isinstance(cause, CometError) else error


def waited_in_vain(error: BaseException) -> bool:
    """Whether the whole timeout was used, as for every retriable error."""
    cause = cause_of(error) if isinstance(error, CometError) else error
    return isinstance(cause, CometError) and (cause.retriable or isinstance(cause, Timeout))
