"""The unary calls of a gRPC server: each within the quota of bytes in flight.

    call ─► room? quota? ─► its message is read ─► parsed ─► the method ─► encoded ─► its turn, if large ─► written

They are registered as calls with a stream of requests, which is the same on the wire: gRPC's core takes the bytes of a
message only once it is asked for, so a call that is refused costs no more than its window.

Owned by the service, on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError, Message

from comet.errors import CometError, MalformedFrame, Timeout
from comet_broker import limits
from comet_broker.access.client_access import set_caller
from comet_broker.access.quotas import Quotas
from comet_broker.memory.in_flight import InFlight
from comet_broker.rpc.audience import Audience, Context
from comet_broker.rpc.methods import Method
from comet_broker.rpc.status import abort

UNFINISHED_CHECK_S: Final = 1.0


class UnaryCall:
    """One call: what it holds of the quota, until its task is done and its answer is written."""

    __slots__ = ("failure", "held", "reserved", "since", "task")

    def __init__(self, task: asyncio.Task[Any], since: float) -> None:
        self.task = task
        self.since = since  # when it began
        self.held = limits.CALL_BYTES
        self.reserved = 0
        self.failure: CometError | None = None  # why it is ended while its message is read


class UnaryCalls:
    """Implements memory.guard.Sheddable."""

    def __init__(self, in_flight: InFlight, quotas: Quotas, audience: Audience) -> None:
        self._in_flight = in_flight
        self._quotas = quotas
        self._audience = audience
        self._reading: set[UnaryCall] = set()
        self._checking: asyncio.TimerHandle | None = None
        self._encoded: tuple[Message, bytes] | None = None  # the last answer, while it is sent to several calls

    async def answer(self, method: Method, _: AsyncIterator[bytes], context: Context) -> bytes | None:
        """Takes one call and returns its encoded answer; ends the call with the error that the method raises."""
        in_flight, audience = self._in_flight, self._audience
        try:
            caller, access = audience.identify(context), audience.access(context)
            set_caller(access, context.peer())
            in_flight.check()
            usage = self._quotas.limited(access.principal) if audience.clients else None
            if usage is not None:
                await usage.admit(method.carries)
            task = asyncio.current_task()
            assert task is not None
            call = UnaryCall(task, asyncio.get_running_loop().time())
            in_flight.hold(call.held)
            task.add_done_callback(lambda _: self._ended(call))
            data = await self._read(call, context)
            size = len(data)
            in_flight.hold(size)
            if usage is not None:
                usage.call_received(size)
            try:
                # Parsed here: for bytes that do not parse, gRPC would answer UNKNOWN and log a traceback each time.
                request = _parse(method, data)
                del data
                audience.check(method, request, caller)
                if access.enforced:
                    access.check(method.needs(request))
                message = await method(request)
                if access.enforced:  # again: rules may have changed
                    access.check(method.needs(request))
            finally:
                in_flight.release(size)
            answer = self._encode(message)
            if usage is not None:
                usage.sent(len(answer))
            if len(answer) > limits.ANSWER_RESERVED_BYTES_MIN:
                await in_flight.reserve(len(answer))
                call.reserved = len(answer)
            return answer
        except CometError as error:
            await abort(context, error)
            return None

    async def _read(self, call: UnaryCall, context: Context) -> bytes:
        """Its message. Raises the error with which it is ended meanwhile."""
        self._reading.add(call)
        if self._checking is None:
            self._checking = asyncio.get_running_loop().call_later(UNFINISHED_CHECK_S, self._check)
        try:
            data = await context.read()
        except asyncio.CancelledError:
            if call.failure is None or call.task.uncancel():
                raise
            raise call.failure from None
        finally:
            self._reading.discard(call)
        if not isinstance(data, bytes):
            raise MalformedFrame("the call has ended without a message")
        return data

    def _encode(self, message: Message) -> bytes:
        """Encodes an answer, a large one once for all calls that it answers."""
        known = self._encoded
        if known is not None and known[0] is message:
            return known[1]
        data = message.SerializeToString()
        if len(data) > limits.ANSWER_RESERVED_BYTES_MIN:
            self._encoded = (message, data)
        return data

    def _ended(self, call: UnaryCall) -> None:
        self._in_flight.release(call.held)
        if call.reserved:
            self._in_flight.give_back(call.reserved)
        if not self._in_flight.reserving:
            self._encoded = None

    # ---- messages that do not come whole

    def _check(self) -> None:
        """Ends the calls whose message takes too long."""
        self._checking = None
        loop = asyncio.get_running_loop()
        limit = loop.time() - limits.UNARY_READ_S_MAX
        for call in [call for call in self._reading if call.since < limit]:
            self._end(call, Timeout(f"the message has not come whole within {limits.UNARY_READ_S_MAX:g} s"))
        if self._reading:
            self._checking = loop.call_later(UNFINISHED_CHECK_S, self._check)

    def end_unfinished(self, error: CometError) -> int:
        found = list(self._reading)
        for call in found:
            self._end(call, error)
        return len(found)

    def end_some(self, _: CometError) -> int:
        return 0  # they are answered soon, or wait within a limit

    def _end(self, call: UnaryCall, error: CometError) -> None:
        self._reading.discard(call)
        call.failure = error
        call.task.cancel()


def _parse(method: Method, data: bytes) -> Message:
    try:
        return method.request.FromString(data)
    except DecodeError:
        name = method.request.DESCRIPTOR.full_name
        raise MalformedFrame(f"{len(data)} bytes do not parse as a {name}") from None


def handler_of(calls: UnaryCalls, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
    """The gRPC handler of one method."""
    return grpc.stream_unary_rpc_method_handler(partial(calls.answer, method))
