"""The sender of one partition: passes the accumulator's batches to the connection of the leader, and retries.

    idle ──append──► armed ─┬─ no leader (PartitionLeader) ──► in the connection's queue
                            ├─ lingering (Linger) ───────────► in the connection's queue
                            └────────────────────────────────► in the connection's queue
    asked for a frame: sends one, then queues up again, blocks (window full, trouble) or goes idle;
    with a batch in flight and none that is full, gathers records for a moment instead

`armed` is true in every state but idle, so that an append to a busy partition costs one comparison.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from comet.client.client import Client
from comet.client.connection import Attachment, Connection
from comet.client.retry import Backoff
from comet.client.send_queue import SendQueue
from comet.errors import (
    CometError,
    Draining,
    InvalidArgument,
    LimitExceeded,
    NotEnoughReplicas,
    RecordTooLarge,
    Unavailable,
)
from comet.producer.accumulator import Accumulator, ProducerBatch
from comet.producer.linger import Linger, gathered
from comet.producer.partition_leader import PartitionLeader
from comet.records import Codec
from comet.wire.frames import Outgoing, outgoing_produce

log = logging.getLogger("comet")


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
        self._settings = settings
        self._sealed = sealed
        self._leader = PartitionLeader(client, self.accumulator, self._found)
        self._linger = Linger(settings.linger_s, settings.timeout_s, self.arm)
        self._queued: SendQueue | None = None  # the queue that it waits in
        self._blocked = False
        self._backoff = Backoff(client.random)
        self._retry_timer: asyncio.TimerHandle | None = None
        self._retrying: CometError | None = None  # the error that a retry waits for
        self.unasked_on: Connection | None = None  # the connection that took the last batch with acks=0
        self._unasked_refused: Callable[[CometError], None] = lambda _: None  # for refused batches with acks=0

    # ---- getting ready to send

    def arm(self) -> None:
        """Starts sending a batch if nothing else is about to send it."""
        self.armed = True
        attachment, batch = self._leader.attachment, self.accumulator.open
        if attachment is None:
            self._leader.find()
        elif self._settings.linger_s and not self._linger.hurried and not self.accumulator.unsent and batch is not None:
            self._linger.linger(batch)
        else:
            self._queue_up(attachment.connection.queue)

    def _queue_up(self, queue: SendQueue) -> None:
        if self._queued is not queue:
            self._queued = queue
            queue.ready(self)

    def hurry(self) -> None:
        """Sends the open batch without lingering."""
        if self.accumulator.open is not None:
            self._linger.hurried = True
            if self._linger.timer is not None:
                self._linger.stop()
                self.arm()

    def filled(self) -> None:
        """Seals the open batch, which is full, and ends its lingering."""
        self._seal()
        if not self.armed or self._linger.timer is not None:
            self._linger.stop()
            self.arm()

    def add(self, batch: ProducerBatch) -> None:
        """Queues a whole batch."""
        self.accumulator.add(batch)
        if not self.armed or self._linger.timer is not None:
            self._linger.stop()
            self.arm()

    def _seal(self) -> None:
        """Closes the open batch to further records."""
        if self.accumulator.open is not None:
            self._linger.previous = self.accumulator.open
        self.accumulator.seal()
        self._sealed(self)
        self._linger.hurried = False

    # ---- the leader

    def _find_leader(self, delay_s: float = 0.0) -> None:
        self.armed = True
        self._leader.find(delay_s)

    def _found(self, attachment: Attachment | None) -> None:
        if attachment is None:
            self.armed = False
            return
        self._unasked_refused = partial(self._refused_unasked, attachment)
        attachment.connection.on_lost(partial(self._lost, attachment))
        self._rearm()

    def _lost(self, attachment: Attachment, error: CometError) -> None:
        if self._leader.attachment is not attachment:
            return  # it has moved already
        self._leader.leave(error)
        self._reset()
        self.accumulator.lost(error)
        self._rearm()

    def _reset(self) -> None:
        """Stops what it was about to do at the broker that it has left."""
        self._blocked = False
        self._queued = None
        self._retrying = None
        self._linger.stop()
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    def _rearm(self) -> None:
        if self.accumulator.pending:
            self.arm()
        else:
            self.armed = False

    # ---- sending

    def next_frame(self, queue: SendQueue) -> Outgoing | None:
        """Called by the connection when it can send; see send_queue.FrameSource."""
        attachment, linger = self._leader.attachment, self._linger
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
                    self.armed = linger.hurried = False
                    return None
                if accumulator.on_wire and not linger.hurried:
                    linger.gather()
                    return None
                self._seal()
            frame = self._frame(attachment)
            if frame is not None:
                break
        if accumulator.unsent or (accumulator.open is not None and (linger.hurried or not self._settings.linger_s)):
            self._queue_up(queue)
        elif accumulator.open is not None:
            linger.linger(accumulator.open)
        else:
            self.armed = linger.hurried = False
        return frame

    def _frame(self, attachment: Attachment) -> Outgoing | None:
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
        return outgoing_produce(request, attachment.handle, settings.acks, parts, size)

    def _refused_unasked(self, attachment: Attachment, error: CometError) -> None:
        """Handles a refusal with acks=0: those records are lost; later ones go to the new leader."""
        if self._leader.attachment is not attachment or not error.metadata_stale:
            return
        log.info(
            "comet: records with acks=0 lost in %s/%d: %s", self.accumulator.topic, self.accumulator.partition, error
        )
        self._leader.misled(error)
        self._reset()
        if self.accumulator.pending:
            self._find_leader(self._leader.backoff.next_s(error.retry_after_ms))
        else:
            self.armed = False

    def leave(self, queue: SendQueue) -> None:
        """Leaves a broker that shuts down, as soon as all batches in flight are answered."""
        attachment = self._leader.attachment
        if attachment is None or attachment.connection.queue is not queue:
            return
        self._queued = None
        if self.accumulator.on_wire:
            self._blocked = True
            return
        self._leader.leave_draining(Draining(f"the broker at {attachment.connection.address} is shutting down"))
        self._reset()
        self._find_leader()

    # ---- answers

    def _changed(self, accumulator: Accumulator) -> None:
        """Sends again after an answer: the window may have room, or the error be over."""
        attachment, linger = self._leader.attachment, self._linger
        if accumulator.trouble is not None:
            if accumulator.settled and self._retry_timer is None and attachment is not None:
                self._recover(accumulator.trouble)
            return
        self._backoff.tries = self._leader.backoff.tries = 0
        if attachment is None:
            return
        batch, queue = accumulator.open, attachment.connection.queue
        gathers = linger.gathering and not accumulator.on_wire
        if gathers and batch is not None and gathered(batch, linger.previous, over_wire=queue.over_wire):
            linger.stop()
            self._blocked = True
        if self._blocked or accumulator.unsent:
            self._blocked = False
            self.armed = True
            self._queue_up(queue)

    def _recover(self, error: CometError) -> None:
        if error.metadata_stale:
            self._leader.misled(error)
            self._reset()
            self.accumulator.recover()
            self._find_leader(self._leader.backoff.next_s(error.retry_after_ms))
            return
        # If the answer alone resolves the error, the first retry needs no wait.
        backoff = self._leader.backoff if isinstance(error, NotEnoughReplicas) else self._backoff
        delay_s = backoff.next_s(error.retry_after_ms)
        first = self._backoff.tries == 1 and not error.retriable
        self.armed = True
        self._retrying = error
        if error.retriable and backoff.tries == 1:
            log.info("comet: retrying %s/%d: %s", self.accumulator.topic, self.accumulator.partition, error)
        self._retry_timer = asyncio.get_running_loop().call_later(0.0 if first else delay_s, self._recovered)

    def _recovered(self) -> None:
        self._retry_timer = None
        self._blocked = False
        if self.accumulator.settled:
            self.accumulator.recover()
        self._retrying = None
        self._rearm()

    # ---- giving up

    def expire(self, now: float) -> None:
        """Fails batches that have waited too long."""
        forgotten = self.accumulator.expire(now, self._why())
        if self._leader.attachment is not None:
            for request in forgotten:
                self._leader.attachment.connection.requests.forget_batch(request)

    def _why(self) -> CometError | None:
        """The reason why nothing is sent, as the error of a batch that times out."""
        within = f"within {self._settings.timeout_s:g} s"
        error = self.accumulator.trouble or self._leader.error or self._retrying
        attachment = self._leader.attachment
        if error is not None:
            tries = max(self._leader.backoff.tries, self._backoff.tries)
            kind = Unavailable if error.outcome_unknown else type(error)  # the unknown outcome is that of other batches
            return kind(f"not acknowledged {within}, after {tries} tries: {error.message}", details=error.details)
        if attachment is None:
            return None
        connection = attachment.connection
        if connection.queue.held:
            return LimitExceeded(f"not acknowledged {within}: held back by the quota at {connection.address}")
        return Unavailable(f"not acknowledged {within}: the broker at {connection.address} does not answer")

    def resume(self) -> None:
        """Sends the batches that were held back."""
        if self._blocked and self._leader.attachment is not None:
            self._blocked = False
            self._queue_up(self._leader.attachment.connection.queue)

    def drop(self, error: CometError) -> None:
        """Fails everything unanswered and ignores late answers; the sender can be used again at once."""
        self.accumulator.fail(error)
        self._linger.stop()
        self._linger.hurried = self._blocked = False
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = self._retrying = None
        # While queued, or searching for the leader, it stays armed: that finds nothing to send, and disarms it.
        self.armed = self._queued is not None or self._leader.searching

    def close(self, error: CometError) -> None:
        self._leader.leave(error)
        self._reset()
        self.accumulator.fail(error)
