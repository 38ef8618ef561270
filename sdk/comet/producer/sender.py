"""The sender of one partition: attaches to its leader, passes batches to the connection, lingers and retries.

    idle ──append──► armed ─┬─ no attachment ──► attaching ──► in the connection's queue
                            ├─ lingering (timer) ────────────► in the connection's queue
                            └────────────────────────────────► in the connection's queue
    asked for a frame: sends one, then queues up again, blocks (window full, trouble) or goes idle;
    with a batch in flight and none that is full, collects records for a moment instead

`armed` is true in every state but idle, so that an append to a busy partition costs one comparison.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from comet import limits
from comet.client.connection import Attachment, Connection
from comet.client.retry import Backoff
from comet.client.send_queue import SendQueue
from comet.errors import (
    Closed,
    CometError,
    Draining,
    InvalidArgument,
    NotEnoughReplicas,
    RecordTooLarge,
    Timeout,
    TopicNotFound,
    Unavailable,
)
from comet.producer.accumulator import Accumulator, ProducerBatch
from comet.records import Codec
from comet.wire.frames import produce_frame

if TYPE_CHECKING:
    from comet.client.client import Client

log = logging.getLogger("comet")

_SLOW_S: Final = limits.GATHER_MS_MAX / 2000  # between records of a stream that has little to gather


class Settings:
    """The settings that all partition senders of a producer share."""

    __slots__ = ("acks", "codec", "held", "in_flight_max", "linger_s", "producer_id", "timeout_s", "transactional")

    def __init__(
        self, *, acks: int, codec: Codec, in_flight_max: int, linger_s: float, producer_id: int, timeout_s: float,
        transactional: bool,
    ) -> None:  # fmt: skip
        self.acks = acks
        self.codec = codec
        self.in_flight_max = in_flight_max
        self.linger_s = linger_s
        self.producer_id = producer_id
        self.timeout_s = timeout_s
        self.transactional = transactional
        self.held = False  # nothing is sent for now


class PartitionSender:
    """Sends the batches of one partition. Owned by a producer, for as long as it lives."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        client: Client,
        settings: Settings,
        finished: Callable[[ProducerBatch], None],
        sealed: Callable[[PartitionSender], None],
    ) -> None:
        self.accumulator = Accumulator(
            topic,
            partition,
            idempotent=settings.producer_id != 0,
            in_flight_max=settings.in_flight_max,
            finished=finished,
            changed=self._changed,
            transactional=settings.transactional,
        )
        self.armed = False
        self.reason: CometError | None = None  # why it cannot send now
        self._client = client
        self._settings = settings
        self._sealed = sealed
        self._attachment: Attachment | None = None
        self.unasked_on: Connection | None = None  # the connection that took the last batch with acks=0
        self._unasked_refused: Callable[[CometError], None] = lambda _: None  # for refused batches with acks=0
        self._blocked = False
        self._hurried = False  # the open batch is to be sent without lingering or gathering
        self._gathering = False
        self._last_deadline = 0.0  # of the batch that was open before, which says when it was begun
        self._last_records = 1
        self._backoff = Backoff(client.random)
        self._route_backoff = Backoff(client.random, max_ms=limits.ROUTE_BACKOFF_MAX_MS, free=1)
        self._queued: SendQueue | None = None  # the queue that it waits in
        self._linger_timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._attaching: asyncio.Task[None] | None = None

    # ---- getting ready to send

    def arm(self) -> None:
        """Starts sending a batch if nothing else is about to send it."""
        self.armed = True
        attachment = self._attachment
        if attachment is None:
            self._start_attaching()
        elif (
            self._settings.linger_s
            and not self._hurried
            and not self.accumulator.unsent
            and self.accumulator.open is not None
        ):
            self._linger()
        else:
            self._queue_up(attachment.connection.queue)

    def _queue_up(self, queue: SendQueue) -> None:
        if self._queued is not queue:
            self._queued = queue
            queue.ready(self)

    def hurry(self) -> None:
        """Sends the open batch without lingering."""
        if self.accumulator.open is not None:
            self._hurried = True
            if self._linger_timer is not None:
                self._stop_lingering()
                self.arm()

    def filled(self) -> None:
        """Seals the open batch, which is full, and ends its lingering."""
        self._seal()
        if not self.armed or self._linger_timer is not None:
            self._stop_lingering()
            self.arm()

    def add(self, batch: ProducerBatch) -> None:
        """Queues a whole batch."""
        self.accumulator.add(batch)
        if not self.armed or self._linger_timer is not None:
            self._stop_lingering()
            self.arm()

    def _linger(self) -> None:
        """Waits for more records; time that the batch has waited already, e.g. for a connection, counts."""
        batch = self.accumulator.open
        assert batch is not None
        began = batch.deadline - self._settings.timeout_s
        loop = asyncio.get_running_loop()
        self._linger_timer = loop.call_at(began + self._settings.linger_s, self._lingered)

    def _gather(self) -> None:
        """Collects records for a moment while a batch is in flight.

        That keeps a busy pipeline from sending batches of one record. A batch with an awaited record is sent as soon
        as the batch before it is answered. So is one of a slow stream, with about a record per moment: each would come
        just after the batch before it has left, and wait for its whole moment. A faster stream without awaited records
        keeps to the moment: that costs half a millisecond, and saves the broker and its readers half of the frames.
        """
        self._gathering = True
        delay_s = limits.GATHER_MS_MAX / 1000
        self._linger_timer = asyncio.get_running_loop().call_later(delay_s, self._lingered)

    def _seal(self) -> None:
        """Closes the open batch to further records."""
        batch = self.accumulator.open
        if batch is not None:
            self._last_deadline, self._last_records = batch.deadline, len(batch)
        self.accumulator.seal()
        self._sealed(self)
        self._hurried = False

    def _lingered(self) -> None:
        self._linger_timer = None
        self._gathering = False
        self._hurried = True
        self.arm()

    def _stop_lingering(self) -> None:
        self._gathering = False
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None

    # ---- attaching

    def _start_attaching(self, delay_s: float = 0.0) -> None:
        self.armed = True
        if self._attaching is None:
            self._attaching = self._client.spawn(self._attach(delay_s))

    async def _attach(self, delay_s: float) -> None:
        """Attaches to the leader, with retries while there are batches to send."""
        accumulator = self.accumulator
        try:
            if delay_s:
                await asyncio.sleep(delay_s)
            while accumulator.pending:
                try:
                    attachment = await self._client.attach(accumulator.topic, accumulator.partition)
                except CometError as error:
                    self.reason = error
                    if self._hopeless(error):
                        accumulator.fail(error)
                        continue
                    await asyncio.sleep(self._route_backoff.next_s(error.retry_after_ms))
                else:
                    if attachment.connection.lost is None:
                        self._attached(attachment)
                        return
            self.armed = False
        finally:
            self._attaching = None

    def _hopeless(self, error: CometError) -> bool:
        return isinstance(error, Closed | TopicNotFound) or not (
            error.retriable or error.metadata_stale or isinstance(error, Timeout)
        )

    def _attached(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._unasked_refused = partial(self._refused_unasked, attachment)
        self.reason = None
        attachment.connection.on_lost(partial(self._lost, attachment))
        self._rearm()

    def _lost(self, attachment: Attachment, error: CometError) -> None:
        if self._attachment is not attachment:
            return  # it has moved already
        self._detach(error)
        self.accumulator.lost(error)
        self._rearm()

    def _detach(self, error: CometError) -> None:
        self._attachment = None
        self.reason = error
        self._blocked = False
        self._queued = None
        self._stop_lingering()
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    def _rearm(self) -> None:
        if self.accumulator.pending:
            self.arm()
        else:
            self.armed = False

    # ---- sending

    def next_frame(self, queue: SendQueue) -> bytes | None:
        """Called by the connection when it can send; see send_queue.FrameSource."""
        attachment = self._attachment
        if attachment is None or attachment.connection.queue is not queue:
            return None
        self._queued = None
        accumulator = self.accumulator
        while True:
            if not accumulator.has_room or self._settings.held:
                self._blocked = True
                return None
            if not accumulator.unsent:
                if accumulator.open is None:
                    self.armed = self._hurried = False
                    return None
                if accumulator.on_wire and not self._hurried:
                    self._gather()
                    return None
                self._seal()
            frame = self._frame(attachment)
            if frame is not None:
                break
        if accumulator.unsent or (accumulator.open is not None and (self._hurried or not self._settings.linger_s)):
            self._queue_up(queue)
        elif accumulator.open is not None:
            self._linger()
        else:
            self.armed = self._hurried = False
        return frame

    def _frame(self, attachment: Attachment) -> bytes | None:
        settings, connection = self._settings, attachment.connection
        request = connection.requests.next_number()
        batch = self.accumulator.take(request)
        try:
            parts = batch.encode(settings.codec, settings.producer_id, settings.transactional)
            size = sum(map(len, parts))
            if size > connection.batch_bytes_max:
                raise RecordTooLarge(
                    f"a batch of {size} bytes is over the broker's limit of {connection.batch_bytes_max}"
                )
        except InvalidArgument as error:
            batch.refused(error)
            return None
        if settings.acks:
            connection.requests.add_batch(request, batch)
        else:
            self.unasked_on = connection
            connection.requests.add_one_way(request, self._unasked_refused)
            self.accumulator.sent_unasked(batch)
        return produce_frame(request, attachment.handle, settings.acks, parts, size)

    def _refused_unasked(self, attachment: Attachment, error: CometError) -> None:
        """Handles a refusal with acks=0: those records are lost; later ones go to the new leader."""
        if self._attachment is not attachment or not error.metadata_stale:
            return
        log.info(
            "comet: records with acks=0 lost in %s/%d: %s", self.accumulator.topic, self.accumulator.partition, error
        )
        self._mislead(attachment, error)
        if self.accumulator.pending:
            self._start_attaching(self._route_backoff.next_s(error.retry_after_ms))
        else:
            self.armed = False

    def _mislead(self, attachment: Attachment, error: CometError) -> None:
        """Handles a broker's answer that it does not lead."""
        connection, accumulator = attachment.connection, self.accumulator
        connection.detach(accumulator.topic, accumulator.partition)
        self._client.misled(accumulator.topic, accumulator.partition, connection.broker_id, error)
        self._detach(error)

    def leave(self, queue: SendQueue) -> None:
        """Leaves a broker that shuts down, as soon as all batches in flight are answered."""
        attachment = self._attachment
        if attachment is None or attachment.connection.queue is not queue:
            return
        self._queued = None
        if self.accumulator.on_wire:
            self._blocked = True
            return
        self._detach(Draining(f"the broker at {attachment.connection.address} is shutting down"))
        self._client.forget(self.accumulator.topic)
        self._start_attaching()

    # ---- answers

    def _changed(self, accumulator: Accumulator) -> None:
        """Sends again after an answer: the window may have room, or the error be over."""
        if accumulator.trouble is not None:
            if accumulator.settled and self._retry_timer is None and self._attachment is not None:
                self._recover(accumulator.trouble)
            return
        self._backoff.tries = self._route_backoff.tries = 0
        batch = accumulator.open
        if (
            self._gathering
            and not accumulator.on_wire
            and batch is not None
            and (batch.waiters is not None or batch.deadline - self._last_deadline > _SLOW_S * self._last_records)
        ):
            self._stop_lingering()
            self._blocked = True
        if (self._blocked or accumulator.unsent) and self._attachment is not None:
            self._blocked = False
            self.armed = True
            self._queue_up(self._attachment.connection.queue)

    def _recover(self, error: CometError) -> None:
        if error.metadata_stale:
            attachment = self._attachment
            assert attachment is not None
            self._mislead(attachment, error)
            self.accumulator.recover()
            self._start_attaching(self._route_backoff.next_s(error.retry_after_ms))
            return
        # If the answer alone resolves the error, the first retry needs no wait.
        backoff = self._route_backoff if isinstance(error, NotEnoughReplicas) else self._backoff
        delay_s = backoff.next_s(error.retry_after_ms)
        first = self._backoff.tries == 1 and not error.retriable
        self.armed = True
        self.reason = error
        if error.retriable and backoff.tries == 1:
            log.info("comet: retrying %s/%d: %s", self.accumulator.topic, self.accumulator.partition, error)
        self._retry_timer = asyncio.get_running_loop().call_later(0.0 if first else delay_s, self._recovered)

    def _recovered(self) -> None:
        self._retry_timer = None
        self._blocked = False
        if self.accumulator.settled:
            self.accumulator.recover()
        self.reason = None
        self._rearm()

    # ---- giving up

    def expire(self, now: float) -> None:
        """Fails batches that have waited too long."""
        forgotten = self.accumulator.expire(now, self._why())
        if self._attachment is not None:
            for request in forgotten:
                self._attachment.connection.requests.forget_batch(request)

    def _why(self) -> CometError | None:
        """The reason why nothing is sent, as the error of a batch that times out."""
        within = f"within {self._settings.timeout_s:g} s"
        error, attachment = self.accumulator.trouble or self.reason, self._attachment
        if error is not None:
            tries = max(self._route_backoff.tries, self._backoff.tries)
            kind = Unavailable if error.outcome_unknown else type(error)  # the unknown outcome is that of other batches
            return kind(f"not acknowledged {within}, after {tries} tries: {error.message}", details=error.details)
        if attachment is None:
            return None
        return Unavailable(f"not acknowledged {within}: the broker at {attachment.connection.address} does not answer")

    def resume(self) -> None:
        """Sends the batches that were held back."""
        if self._blocked and self._attachment is not None:
            self._blocked = False
            self._queue_up(self._attachment.connection.queue)

    def drop(self, error: CometError) -> None:
        """Fails everything unanswered and ignores late answers; the sender can be used again at once."""
        self.accumulator.fail(error)
        self._stop_lingering()
        self._hurried = self._blocked = False
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        # While queued or attaching it stays armed: that finds nothing to send, and disarms it.
        self.armed = self._queued is not None or self._attaching is not None

    def close(self, error: CometError) -> None:
        self._detach(error)
        self.accumulator.fail(error)
