"""The answers that one side of a stream owes the other, from the decision until the transport takes them.

The queue is bounded: the transport stops reading requests while it is `full`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from comet.errors import CometError, Internal, LimitExceeded
from comet.v1 import records_pb2 as pb
from comet.wire.protobuf import error_to_pb
from comet_broker import limits
from comet_broker.memory.in_flight import InFlight
from comet_broker.metrics.meter import RequestMeter
from comet_broker.tasks import Tasks


class AnswerQueue:
    """Owned by one side of a stream; on the loop's thread. `rouse` tells the transport that there is a frame. The bytes
    that are queued count as in flight."""

    def __init__(self, rouse: Callable[[], None], in_flight: InFlight) -> None:
        self.frames: deque[bytes] = deque()
        self.owed = 0  # answers and acknowledgements accepted but not yet passed to the transport
        self._rouse = rouse
        self._in_flight = in_flight
        self._bytes = 0
        self._closed = False
        self._relief: asyncio.Future[None] | None = None

    def add(self, frame: bytes) -> None:
        if self._closed:
            return
        self.owed += 1
        self.frames.append(frame)
        self._bytes += len(frame)
        self._in_flight.hold(len(frame))
        self._rouse()

    def take(self) -> bytes:
        frame = self.frames.popleft()
        self._bytes -= len(frame)
        self._in_flight.release(len(frame))
        self.settle(1)
        return frame

    def settle(self, count: int) -> None:
        """Counts that many as passed to the transport."""
        self.owed -= count
        assert self.owed >= 0
        if self._relief is not None and self.owed < limits.SESSION_ANSWERS_MAX // 2 and not self.full:
            self._relieve()

    @property
    def full(self) -> bool:
        """Whether reading should pause."""
        return self.owed >= limits.SESSION_ANSWERS_MAX or self._bytes >= limits.SESSION_ANSWER_BYTES_MAX

    async def relieved(self) -> None:
        """Waits until half of the backlog is sent."""
        while self.full and not self._closed:
            self._relief = asyncio.get_running_loop().create_future()
            try:
                await self._relief
            finally:
                self._relief = None

    def _relieve(self) -> None:
        if self._relief is not None and not self._relief.done():
            self._relief.set_result(None)

    def close(self) -> None:
        self._closed = True
        self.frames.clear()
        self._in_flight.release(self._bytes)
        self._bytes = 0
        self._relieve()


class Replies:
    """Answers the requests of one client's stream, at once or from a task. Used by the handlers of its frames."""

    def __init__(
        self, stream: str, answers: AnswerQueue, *, rouse: Callable[[], None], tasks: Tasks, meter: RequestMeter
    ) -> None:
        self.closed = False  # the stream is over: nothing is sent any more
        self.running = 0  # slow requests
        self.rouse = rouse
        self._stream = stream
        self._answers = answers
        self._tasks = tasks
        self._meter = meter

    def answer(self, frame: pb.ServerFrame) -> None:
        """Sends a frame, as an answer or unsolicited."""
        if not self.closed:
            self._answers.add(frame.SerializeToString())

    def fail(self, request: int, error: CometError) -> None:
        self._meter.count_error(error)
        self.answer(pb.ServerFrame(request=request, error=pb.StreamError(error=error_to_pb(error))))

    def unexpected(self, error: Exception) -> CometError:
        """Reports an unexpected error, which ends one request and not the stream. Returns the error for the client."""
        self._tasks.report(f"a request of {self._stream}", error)
        return Internal(f"the request failed: {error!r}; see the broker's log")

    def spawn(self, request: int, work: Coroutine[Any, Any, None]) -> None:
        """Runs a slow request; its errors answer it."""
        if self.running >= limits.SESSION_TASKS_MAX:
            work.close()
            raise LimitExceeded(
                f"{self.running} slow requests are under way on this stream, its limit; wait for one", retry_after_ms=50
            )
        self.running += 1
        self._tasks.spawn(self._run(request, work), f"request {request} of {self._stream}")

    async def _run(self, request: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except CometError as error:
            self.fail(request, error)
        except Exception as error:  # noqa: BLE001 - reported
            self.fail(request, self.unexpected(error))
        finally:
            self.running -= 1
            self.rouse()
