"""One Stream call to one broker, from Hello until it fails.

    SendQueue ─► writer ═► the broker ═► reader ─┬─► InFlightRequests: answers, acknowledgements, refusals, by number
                                                 ├─► Subscribers: deliveries and assignments, by partition and group
                                                 └─► BrokerWatch: that a frame has come

A connection fails once, for good, and all its waiters get the error at once. It is owned by the client that opened
it, and belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from comet import limits
from comet.client.in_flight import InFlightRequests
from comet.client.liveness import SUSPECT_S, BrokerWatch
from comet.client.send_queue import SendQueue
from comet.client.subscribers import Subscribers
from comet.errors import Closed, CometError, Draining, Internal, MalformedFrame, Timeout, Unavailable
from comet.v1 import records_pb2 as pb
from comet.wire.frames import (
    BROKER_HEARTBEAT,
    CLIENT_HEARTBEAT,
    DELIVERY_PREFIX_BYTES,
    Frame,
    joined,
    parse_ack,
    parse_delivery,
    parse_fetched,
)
from comet.wire.liveness import OF_BROKERS, LivenessVerdict
from comet.wire.protobuf import error_from_pb
from comet.wire.transport import Stream
from comet.wire.version import VERSION
from comet.wire.wire_stream import WireStream

log = logging.getLogger("comet")

SOFTWARE: Final = f"comet-python/{VERSION}"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A partition's handle on one connection, with the broker's answer about it."""

    connection: Connection
    handle: int
    topic_id: bytes
    leader_epoch: int
    log_start: int
    high_watermark: int


class Connection:
    def __init__(self, stream: Stream, address: str, *, client_name: str) -> None:
        self.address = address
        self.lost: CometError | None = None
        self.broker_id = 0
        self.batch_bytes_max = limits.BATCH_BYTES_MAX
        self.leaving = False  # the broker is shutting down: no new batches
        self.on_silent: Callable[[Connection], None] | None = None  # the client, which can ask another broker
        self.queue = SendQueue(address, over_wire=isinstance(stream, WireStream))
        self.requests = InFlightRequests(address)
        self.subscribers = Subscribers()
        self.watch = BrokerWatch(stream, self._checked)
        self._hello = pb.Hello(client=client_name, software=SOFTWARE, heartbeats=True)
        self._stream = stream
        self._attached: dict[tuple[str, int], asyncio.Future[pb.ServerFrame]] = {}
        self._lost_callbacks: list[Callable[[CometError], None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    # ---- life

    async def open(self) -> None:
        """Sends Hello and waits for the answer. Raises the error that prevents it."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._write(), name=f"comet: write to {self.address}")]
        if isinstance(self._stream, WireStream):
            self._stream.push(self._pushed, self._ended)
        else:
            self._tasks.append(loop.create_task(self._read(), name=f"comet: read from {self.address}"))
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
        self.watch.start()

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
        self.watch.stop()
        self.requests.close(f"the connection to {self.address} was lost: {error.message}")
        self.subscribers.clear()
        self.queue.clear()
        self._attached.clear()
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
        answer: pb.ServerFrame = await self._ask(frame, timeout_ms)
        return answer

    async def _ask(self, frame: pb.ClientFrame, timeout_ms: int) -> Any:
        future = self._send_request(frame)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            raise Timeout(f"the broker at {self.address} did not answer within {timeout_ms} ms") from None
        finally:
            self.requests.forget_call(frame.request)

    def _send_request(self, frame: pb.ClientFrame) -> asyncio.Future[pb.ServerFrame]:
        if self.lost is not None:
            raise Unavailable(f"the connection to {self.address} was lost: {self.lost.message}")
        future = self.requests.add_call(frame)
        self.queue.put(frame.SerializeToString())
        return future

    def send(self, frame: bytes) -> None:
        """Queues a control frame without an answer."""
        if self.lost is None:
            self.queue.put(frame)

    def notify(self, frame: pb.ClientFrame, refused: Callable[[CometError], None]) -> None:
        """Sends a request that is answered only if it is refused."""
        frame.request = self.requests.next_number()
        self.send(frame.SerializeToString())
        self.requests.add_one_way(frame.request, refused)

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
        )

    def _attach_answered(self, key: tuple[str, int], done: asyncio.Future[pb.ServerFrame]) -> None:
        if (done.cancelled() or done.exception() is not None) and self._attached.get(key) is done:
            del self._attached[key]

    def detach(self, topic: str, partition: int) -> None:
        """Forgets a handle that the broker no longer accepts, so that the next attach asks again."""
        self._attached.pop((topic, partition), None)

    # ---- writing and reading

    async def _write(self) -> None:
        stream, queue, watch = self._stream, self.queue, self.watch
        try:
            while True:
                frame = queue.next_frame(self.leaving)
                if frame is None:
                    await queue.changed()
                    continue
                watch.liveness.sent += 1
                if isinstance(stream, WireStream):
                    await stream.write(frame)
                else:
                    await stream.write(joined(frame))
        except asyncio.CancelledError:
            if self.lost is None:  # the transport was cancelled, not this task
                self.fail(Unavailable(f"the connection to {self.address} was interrupted"))
            raise
        except CometError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - every waiter must be failed
            self.fail(_unexpected(self.address, error))

    async def _read(self) -> None:
        read, take = self._stream.read, self._take
        try:
            while (frame := await read()) is not None:
                take(frame)
            self._ended(None)
        except asyncio.CancelledError:
            if self.lost is None:
                self.fail(Unavailable(f"the connection to {self.address} was interrupted"))
            raise
        except CometError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - every waiter must be failed
            self.fail(_unexpected(self.address, error))

    def _pushed(self, frame: Frame) -> None:
        """Takes a frame of the wire in the turn of the loop in which it comes."""
        try:
            self._take(frame)
        except CometError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - every waiter must be failed
            self.fail(_unexpected(self.address, error))

    def _ended(self, error: CometError | None) -> None:
        self.fail(error or Unavailable(f"the broker at {self.address} ended the connection"))

    def _take(self, frame: Frame) -> None:
        self.watch.liveness.received += 1
        delivery = parse_delivery(frame)
        if delivery is not None:
            handle, high_watermark, leader_epoch = delivery
            sink = self.subscribers.sinks.get(handle)
            if sink is not None:
                sink.delivered(memoryview(frame)[DELIVERY_PREFIX_BYTES:], high_watermark, leader_epoch)
            return
        ack = parse_ack(frame)
        if ack is not None:
            self.requests.acknowledge((ack,))
        elif frame != BROKER_HEARTBEAT:
            self._receive(frame)
        if self.leaving:
            self._leave_if_done()

    def _receive(self, data: Frame) -> None:
        fetched = parse_fetched(data)
        if fetched is not None:
            request, *answer = fetched
            self.requests.answer(request, answer)
            return
        try:
            frame = pb.ServerFrame.FromString(bytes(data))
        except DecodeError:
            raise MalformedFrame(f"{self.address} sent {len(data)} bytes that are not a ServerFrame") from None
        match frame.WhichOneof("frame"):
            case "acks":
                acks = frame.acks
                self.requests.acknowledge(zip(acks.requests, acks.base_offsets, acks.append_times_us, strict=True))
                if acks.throttled_ms:
                    self.queue.hold(acks.throttled_ms / 1000)
            case "error":
                self._failed(frame.request, frame.error)
            case "go_away":
                self._go_away(frame.go_away.reason)
            case None:
                return  # a frame of a newer broker
            case kind:
                if frame.request:
                    self.requests.answer(frame.request, frame)
                else:
                    self.subscribers.receive(kind, frame)

    def _failed(self, request: int, answer: pb.StreamError) -> None:
        error = error_from_pb(answer.error)
        if self.requests.refuse(request, error):
            return
        if answer.HasField("partition"):
            self.subscribers.end(answer.partition, error)
        else:
            log.warning(
                "comet: unexpected error from %s: %s: %s",
                self.address,
                error.code,
                error.message,
                extra={"address": self.address, "code": error.code},
            )

    # ---- the end

    def _go_away(self, reason: str) -> None:
        """Handles the broker's shutdown: waits for answers in flight; everything else moves to other brokers."""
        log.info("comet: broker shutdown at %s: %s", self.address, reason, extra={"address": self.address})
        self.leaving = True
        if not self._leave_if_done():
            self.queue.wake()  # sources that wait to send move to other brokers
            asyncio.get_running_loop().call_later(limits.GO_AWAY_GRACE_MS / 1000, self.fail, self._gone())

    def _leave_if_done(self) -> bool:
        if self.requests.batches:
            return False
        self.fail(self._gone())
        return True

    def _gone(self) -> CometError:
        return Draining(f"the broker at {self.address} has stopped", retry_after_ms=limits.BACKOFF_FIRST_MS)

    # ---- silence

    def _checked(self, verdict: LivenessVerdict) -> None:
        if verdict is LivenessVerdict.SILENT:
            self.fail(Unavailable(f"the broker at {self.address} was silent for {OF_BROKERS.silence_s:.0f} s"))
            return
        if verdict is LivenessVerdict.HEARTBEAT and not self.queue.waiting:
            self.send(CLIENT_HEARTBEAT)
        silent_s = self.watch.silent_s
        if silent_s and self.on_silent is not None and (silent_s >= SUSPECT_S or self.requests.answer_due):
            self.on_silent(self)


async def fetch(
    connection: Connection, request: pb.FetchRequest, timeout_ms: int
) -> tuple[pb.FetchResponse, memoryview]:
    """A part of a partition: the answer without its batches, and these, in the memory in which they came."""
    answer = await connection._ask(pb.ClientFrame(fetch=request), timeout_ms)
    if isinstance(answer, pb.ServerFrame):
        return answer.fetched, memoryview(answer.fetched.batches)
    batches, others = answer
    return pb.FetchResponse.FromString(bytes(others)), batches


def _unexpected(address: str, error: Exception) -> Internal:
    log.error("comet: unexpected error in the connection to %s", address, exc_info=error, extra={"address": address})
    return Internal(f"unexpected error in the connection to {address}: {error!r}")
