"""One Stream call to one broker, from Hello until it fails.

    requests ─► control frames ─┐                       ┌─► answers to requests, by number
    accumulators with batches ready ───┴─► writer ═► reader ───┼─► acknowledgements, to the batch they are for
                                                        ├─► deliveries, to the sink of their partition
                                                        ├─► acquired records, to the sharer of their partition
                                                        └─► assignments and evictions, to the group's listener

Produce frames are pulled, not queued: an accumulator is asked for its next batch when the stream can take one. So a
waiting batch still takes records, nothing piles up in front of a slow broker, and a batch that becomes ready while the
stream is idle is written in the next turn of the loop.

A connection fails once, for good, and all its waiters get the error at once. It is owned by the client that opened
it, and belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from comet import limits
from comet.errors import Closed, CometError, Draining, Internal, LimitExceeded, MalformedFrame, Timeout, Unavailable
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from comet.wire.frames import DELIVERY_PREFIX_BYTES, parse_ack, parse_delivery
from comet.wire.protobuf import error_from_pb
from comet.wire.transport import Channel

log = logging.getLogger("comet")

REQUEST_MAX: Final = (1 << 32) - 1


class FrameSource(Protocol):
    """A source of produce frames."""

    def next_frame(self, connection: Connection) -> bytes | None:
        """The next frame, or None when there is none now; called again only after `Connection.ready`."""

    def leave(self, connection: Connection) -> None:
        """Called instead of `next_frame` once the broker shuts down. Batches in flight are still answered."""


class Produced(Protocol):
    """One batch on the wire. One of the two is called once, or its accumulator is told that the connection ended."""

    def acked(self, base_offset: int, append_time_us: int) -> None: ...
    def refused(self, error: CometError) -> None: ...


class Sink(Protocol):
    """One subscribed partition. Must not wait and must not raise."""

    def delivered(self, batches: memoryview, high_watermark: int, leader_epoch: int) -> None: ...
    def aborted(self, transactions: Sequence[groups_pb.AbortedTransaction]) -> None:
        """Names aborted transactions in the deliveries that follow."""

    def ended(self, error: CometError) -> None: ...


class SharePartition(Protocol):
    """One partition of a share group. Must not wait and must not raise."""

    def shared(self, shared: groups_pb.ShareDelivery) -> None: ...
    def ended(self, error: CometError) -> None: ...


# Gets the assignments and evictions of a group.
Listener = Callable[[pb.ServerFrame], None]


@dataclass(frozen=True, slots=True)
class Attachment:
    """A partition's handle on one connection, with the broker's answer about it."""

    connection: Connection
    handle: int
    topic_id: bytes
    leader_epoch: int
    log_start: int
    high_watermark: int
    record_bytes_max: int


class Connection:
    def __init__(self, channel: Channel, address: str, *, client_name: str, software: str) -> None:
        self.address = address
        self.lost: CometError | None = None
        self.broker_id = 0
        self.batch_bytes_max = limits.BATCH_BYTES_MAX
        self.leaving = False  # the broker is shutting down: no new batches
        self._hello = pb.Hello(client=client_name, software=software)
        self._loop = asyncio.get_running_loop()
        self._stream = channel.stream()
        self._control: deque[bytes] = deque()
        self._ready: deque[FrameSource] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._requests: dict[int, asyncio.Future[pb.ServerFrame]] = {}
        self._produced: dict[int, Produced] = {}
        self._sinks: dict[int, Sink] = {}
        self._sharers: dict[int, SharePartition] = {}
        self._listeners: dict[str, Listener] = {}
        self._one_way: dict[int, Callable[[CometError], None]] = {}
        self._attached: dict[tuple[str, int], asyncio.Future[pb.ServerFrame]] = {}
        self._lost_callbacks: list[Callable[[CometError], None]] = []
        self._request = 0
        self._subscription = 0
        self._received = False
        self.silent_ms = 0  # time without a frame, in whole heartbeats
        self.on_silent: Callable[[Connection], None] | None = None  # the client, which can ask another broker
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # ---- life

    async def open(self) -> None:
        """Sends Hello and waits for the answer. Raises the error that prevents it."""
        self._tasks = [
            self._loop.create_task(self._read(), name=f"comet: read from {self.address}"),
            self._loop.create_task(self._write(), name=f"comet: write to {self.address}"),
        ]
        try:
            answer = await self.call(pb.ClientFrame(hello=self._hello), limits.CONNECT_TIMEOUT_MS)
        except Timeout as error:
            self.fail(error)
            raise Unavailable(error.message) from error  # no request was sent whose outcome could be unknown
        except BaseException as error:
            self.fail(error if isinstance(error, CometError) else Closed("connecting was given up"))
            raise
        self.broker_id = answer.welcome.broker_id
        self.batch_bytes_max = min(answer.welcome.batch_bytes_max or limits.BATCH_BYTES_MAX, limits.BATCH_BYTES_MAX)
        self._timer = self._loop.call_later(limits.HEARTBEAT_MS / 1000, self._check_alive, self._loop.time())

    def on_lost(self, callback: Callable[[CometError], None]) -> None:
        """Calls back once when the connection fails; at once if it has failed."""
        if self.lost is not None:
            callback(self.lost)
        else:
            self._lost_callbacks.append(callback)

    def off_lost(self, callback: Callable[[CometError], None]) -> None:
        """Removes a callback of `on_lost`."""
        if callback in self._lost_callbacks:
            self._lost_callbacks.remove(callback)

    def fail(self, error: CometError) -> None:
        """Ends the connection and fails all waiters."""
        if self.lost is not None:
            return
        self.lost = error
        if self._timer is not None:
            self._timer.cancel()
        requests, self._requests = self._requests, {}
        for future in requests.values():
            if not future.done():
                future.set_exception(Unavailable(f"the connection to {self.address} was lost: {error.message}"))
                future.exception()  # marks the error as retrieved, also if the waiter has given up
        self._produced.clear()
        self._sinks.clear()
        self._sharers.clear()
        self._listeners.clear()
        self._one_way.clear()
        self._attached.clear()
        self._control.clear()
        self._ready.clear()
        callbacks, self._lost_callbacks = self._lost_callbacks, []
        for callback in callbacks:
            callback(error)
        self._stream.cancel()
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Ends the connection and waits for its tasks to end."""
        self.fail(Closed(f"the connection to {self.address} was closed"))
        if self._tasks:
            await asyncio.wait(self._tasks)

    # ---- requests

    async def call(self, frame: pb.ClientFrame, timeout_ms: int = limits.REQUEST_TIMEOUT_MS) -> pb.ServerFrame:
        """Sends a request and waits for its answer. Raises the error in the answer."""
        future = self._send_request(frame)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            raise Timeout(f"the broker at {self.address} did not answer within {timeout_ms} ms") from None
        finally:
            self._requests.pop(frame.request, None)

    def _send_request(self, frame: pb.ClientFrame) -> asyncio.Future[pb.ServerFrame]:
        if self.lost is not None:
            raise Unavailable(f"the connection to {self.address} was lost: {self.lost.message}")
        if len(self._requests) >= limits.REQUESTS_MAX:
            raise LimitExceeded(
                f"{len(self._requests)} requests to {self.address} are in flight; await some of them first"
            )
        frame.request = self.next_request()
        future = self._requests[frame.request] = self._loop.create_future()
        self.send(frame.SerializeToString())
        return future

    def send(self, frame: bytes) -> None:
        """Queues a control frame without an answer."""
        if self.lost is not None:
            return
        if len(self._control) >= limits.CONTROL_FRAMES_MAX:
            raise LimitExceeded(f"{len(self._control)} frames wait to be sent to {self.address}")
        self._control.append(frame)
        self._rouse()

    def notify(self, frame: pb.ClientFrame, refused: Callable[[CometError], None]) -> None:
        """Sends a request that is answered only if it is refused."""
        frame.request = self.next_request()
        self.send(frame.SerializeToString())
        self.unasked(frame.request, refused)

    def unasked(self, request: int, refused: Callable[[CometError], None]) -> None:
        """Registers a request that is answered only if it is refused."""
        self._one_way[request] = refused
        if len(self._one_way) > limits.ONE_WAY_REQUESTS_MAX:
            del self._one_way[next(iter(self._one_way))]

    def next_request(self) -> int:
        """A number for the next request that no pending one has; never 0."""
        while True:
            self._request = self._request % REQUEST_MAX + 1
            taken = self._request in self._requests or self._request in self._one_way
            if not taken and self._request not in self._produced:
                return self._request

    async def attach(self, topic: str, partition: int) -> Attachment:
        """The partition's handle on this connection. All callers share one request."""
        key = (topic, partition)
        future = self._attached.get(key)
        if future is None:
            future = self._send_request(pb.ClientFrame(attach=pb.Attach(topic=topic, partition=partition)))
            self._attached[key] = future
            future.add_done_callback(lambda done: self._attach_answered(key, done))
        try:
            async with asyncio.timeout(limits.REQUEST_TIMEOUT_MS / 1000):
                answer = await asyncio.shield(future)
        except TimeoutError:
            self.fail(Unavailable(f"the broker at {self.address} does not answer"))
            raise Unavailable(f"the broker at {self.address} does not answer") from None
        attached = answer.attached
        return Attachment(
            self,
            attached.partition,
            attached.topic_id,
            attached.leader_epoch,
            attached.log_start,
            attached.high_watermark,
            attached.record_bytes_max,
        )

    def _attach_answered(self, key: tuple[str, int], done: asyncio.Future[pb.ServerFrame]) -> None:
        if (done.cancelled() or done.exception() is not None) and self._attached.get(key) is done:
            del self._attached[key]

    def detach(self, topic: str, partition: int) -> None:
        """Forgets a handle that the broker no longer accepts, so that the next attach asks again."""
        self._attached.pop((topic, partition), None)

    # ---- produce

    def track(self, request: int, produced: Produced) -> None:
        """Registers a batch that is about to be sent under a request number."""
        self._produced[request] = produced

    def forget(self, request: int) -> None:
        """Stops waiting for a batch; a late answer is ignored."""
        self._produced.pop(request, None)

    def ready(self, source: FrameSource) -> None:
        """Queues a source that has a frame to send. The source makes sure that it is queued once at most."""
        self._ready.append(source)
        self._rouse()

    # ---- subscriptions

    def next_subscription(self) -> int:
        self._subscription += 1
        return self._subscription

    def add_sink(self, handle: int, sink: Sink) -> None:
        self._sinks[handle] = sink

    def remove_sink(self, handle: int) -> None:
        self._sinks.pop(handle, None)

    def add_sharer(self, handle: int, sharer: SharePartition) -> None:
        self._sharers[handle] = sharer

    def remove_sharer(self, handle: int) -> None:
        self._sharers.pop(handle, None)

    def listen(self, group: str, listener: Listener) -> None:
        """One listener for each group: a client is a member once."""
        self._listeners[group] = listener

    def unlisten(self, group: str) -> None:
        self._listeners.pop(group, None)

    # ---- writing

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _next_frame(self) -> bytes | None:
        if self._control:
            return self._control.popleft()
        if self.leaving:
            while self._ready:
                self._ready.popleft().leave(self)
            return None
        while self._ready:
            frame = self._ready.popleft().next_frame(self)
            if frame is not None:
                return frame
        return None

    async def _write(self) -> None:
        write = self._stream.write
        try:
            while True:
                frame = self._next_frame()
                if frame is not None:
                    await write(frame)
                    continue
                self._wake = self._loop.create_future()
                await self._wake
        except asyncio.CancelledError:
            if self.lost is None:  # the transport was cancelled, not this task
                self.fail(Unavailable(f"the connection to {self.address} was interrupted"))
            raise
        except CometError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - every waiter must be failed
            self._fail_unexpected(error)

    # ---- reading

    async def _read(self) -> None:
        read = self._stream.read
        sinks = self._sinks
        try:
            while (frame := await read()) is not None:
                self._received = True
                delivery = parse_delivery(frame)
                if delivery is None:
                    ack = parse_ack(frame)
                    if ack is None:
                        self._receive(frame)
                    else:
                        self._acknowledge((ack,))
                    continue
                handle, high_watermark, leader_epoch = delivery
                sink = sinks.get(handle)
                if sink is not None:
                    sink.delivered(memoryview(frame)[DELIVERY_PREFIX_BYTES:], high_watermark, leader_epoch)
            self.fail(Unavailable(f"the broker at {self.address} ended the connection"))
        except asyncio.CancelledError:
            if self.lost is None:
                self.fail(Unavailable(f"the connection to {self.address} was interrupted"))
            raise
        except CometError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - every waiter must be failed
            self._fail_unexpected(error)

    def _fail_unexpected(self, error: Exception) -> None:
        """Fails all waiters after an unexpected error."""
        log.error("comet: unexpected error in the connection to %s", self.address, exc_info=error)
        self.fail(Internal(f"unexpected error in the connection to {self.address}: {error!r}"))

    def _receive(self, data: bytes) -> None:
        try:
            frame = pb.ServerFrame.FromString(data)
        except DecodeError:
            raise MalformedFrame(f"{self.address} sent {len(data)} bytes that are not a ServerFrame") from None
        match frame.WhichOneof("frame"):
            case "acks":
                acks = frame.acks
                self._acknowledge(zip(acks.requests, acks.base_offsets, acks.append_times_us, strict=True))
            case "error":
                self._failed(frame)
            case "delivery":
                delivery = frame.delivery
                sink = self._sinks.get(delivery.partition)
                if sink is not None:
                    sink.delivered(memoryview(delivery.batches), delivery.high_watermark, delivery.leader_epoch)
            case "go_away":
                self._go_away(frame.go_away.reason)
            case None:
                return  # a frame of a newer broker
            case kind:
                if frame.request:
                    self._answer(frame)
                else:
                    self._unasked(kind, frame)

    def _unasked(self, kind: str, frame: pb.ServerFrame) -> None:
        match kind:
            case "share_delivery":
                if (sharer := self._sharers.get(frame.share_delivery.partition)) is not None:
                    sharer.shared(frame.share_delivery)
            case "aborted":
                if (sink := self._sinks.get(frame.aborted.partition)) is not None:
                    sink.aborted(frame.aborted.transactions)
            case "assignment" | "evicted":
                group = frame.assignment.group or frame.evicted.group
                if (listener := self._listeners.get(group)) is not None:
                    listener(frame)

    def _acknowledge(self, acks: Iterable[tuple[int, int, int]]) -> None:
        """Each is (request, base_offset, append_time_us)."""
        take = self._produced.pop
        for request, base_offset, append_time_us in acks:
            produced = take(request, None)
            if produced is not None:
                produced.acked(base_offset, append_time_us)
        if self.leaving:
            self._leave_if_done()

    def _answer(self, frame: pb.ServerFrame) -> None:
        future = self._requests.pop(frame.request, None)
        if future is not None and not future.done():
            future.set_result(frame)

    def _failed(self, frame: pb.ServerFrame) -> None:
        error = error_from_pb(frame.error.error)
        produced = self._produced.pop(frame.request, None)
        if produced is not None:
            produced.refused(error)
            if self.leaving:
                self._leave_if_done()
            return
        future = self._requests.pop(frame.request, None)
        if future is not None:
            if not future.done():
                future.set_exception(error)
                future.exception()
        elif (refused := self._one_way.pop(frame.request, None)) is not None:
            refused(error)
        elif frame.error.HasField("partition"):
            ended = self._sinks.pop(frame.error.partition, None) or self._sharers.pop(frame.error.partition, None)
            if ended is not None:
                ended.ended(error)
        else:
            log.warning("comet: unexpected error from %s: %s: %s", self.address, error.code, error.message)

    # ---- the end

    def _go_away(self, reason: str) -> None:
        """Handles the broker's shutdown: waits for answers in flight; everything else moves to other brokers."""
        log.info("comet: broker shutdown at %s: %s", self.address, reason)
        self.leaving = True
        if not self._leave_if_done():
            self._rouse()  # sources that wait to send move to other brokers
            self._loop.call_later(limits.GO_AWAY_GRACE_MS / 1000, self.fail, self._gone())

    def _leave_if_done(self) -> bool:
        if self._produced:
            return False
        self.fail(self._gone())
        return True

    def _gone(self) -> CometError:
        return Draining(f"the broker at {self.address} has stopped", retry_after_ms=limits.BACKOFF_FIRST_MS)

    def _check_alive(self, due: float) -> None:
        """Pings a silent broker. If this event loop was itself held up, the broker gets another interval."""
        late_ms = (self._loop.time() - due) * 1000 - limits.HEARTBEAT_MS
        if self._received or late_ms > limits.HEARTBEAT_MS:
            self._received = False
            self.silent_ms = 0
        else:
            self.silent_ms += limits.HEARTBEAT_MS
            self._suspect()
        if self.lost is None:
            self._timer = self._loop.call_later(limits.HEARTBEAT_MS / 1000, self._check_alive, self._loop.time())

    def _suspect(self) -> None:
        silent_ms = self.silent_ms
        if silent_ms >= limits.PING_AFTER_MS + limits.PING_TIMEOUT_MS:
            self.fail(Unavailable(f"the broker at {self.address} was silent for {silent_ms} ms"))
            return
        if silent_ms == limits.PING_AFTER_MS:
            self.send(pb.ClientFrame(request=self.next_request(), ping=pb.Ping()).SerializeToString())
        awaited = self._produced or self._requests or silent_ms > limits.PING_AFTER_MS
        if self.on_silent is not None and awaited:
            self.on_silent(self)
