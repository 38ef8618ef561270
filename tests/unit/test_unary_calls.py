"""The unary calls of a gRPC server, with a call that a test controls."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from comet.errors import LimitExceeded
from comet.v1 import records_pb2 as pb
from comet_broker import limits
from comet_broker.access.quotas import Quotas
from comet_broker.memory.in_flight import InFlight
from comet_broker.rpc import unary_calls
from comet_broker.rpc.audience import Audience
from comet_broker.rpc.methods import Method
from comet_broker.rpc.service import keep_record
from comet_broker.rpc.unary_calls import UnaryCalls
from tests.unit.replica_world import settle
from tests.unit.storage_world import HandClock

NOTHING: Any = None
NO_QUOTAS = Quotas(HandClock())
LARGE = 3 * limits.ANSWER_RESERVED_BYTES_MIN


class Aborted(Exception):
    pass


class Call:
    """A ServicerContext whose message comes when the test says so."""

    def __init__(self, message: Message | None = None) -> None:
        self.message: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.reads = 0
        self.status: grpc.StatusCode | None = None
        self.details = b""
        if message is not None:
            self.message.set_result(message.SerializeToString())

    def peer(self) -> str:
        return "ipv4:10.0.0.7:54321"

    async def read(self) -> Any:
        self.reads += 1
        return await self.message

    async def abort(self, status: grpc.StatusCode, _: str, trailing_metadata: Any) -> None:
        self.status, self.details = status, trailing_metadata[0][1]
        raise Aborted


def method(answer: Any) -> Method:
    return Method("comet.v1.Comet", "Fetch", pb.FetchRequest, answer)


async def test_a_call_holds_its_share_until_it_is_done() -> None:
    quota = InFlight(1 << 20)
    calls, seen = UnaryCalls(quota, NO_QUOTAS, Audience()), []
    request = pb.FetchRequest(topic="x" * 1000)

    async def answer(found: pb.FetchRequest) -> pb.FetchResponse:
        seen.append((found.topic, quota.held_bytes))
        return pb.FetchResponse(batches=bytes(LARGE))

    context: Any = Call(request)
    running = asyncio.ensure_future(calls.answer(method(answer), NOTHING, context))
    data = await running
    assert seen == [(request.topic, limits.CALL_BYTES + request.ByteSize())]
    assert data is not None and pb.FetchResponse.FromString(data).batches == bytes(LARGE)
    await settle()
    assert quota.held_bytes == 0 and not quota.reserving


async def test_a_call_is_refused_before_its_message_is_read() -> None:
    quota = InFlight(1000)
    quota.hold(1000)
    context: Any = Call(pb.FetchRequest())
    with pytest.raises(Aborted):
        await UnaryCalls(quota, NO_QUOTAS, Audience()).answer(method(None), NOTHING, context)
    assert context.reads == 0
    assert context.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(Status.FromString(context.details).details) == 2, "its code, and the time of a retry"


async def test_one_answer_is_encoded_once_for_many_calls() -> None:
    calls, message = UnaryCalls(InFlight(1 << 30), NO_QUOTAS, Audience()), pb.FetchResponse(batches=bytes(LARGE))

    async def answer(_: pb.FetchRequest) -> pb.FetchResponse:
        return message

    async def call() -> bytes | None:
        context: Any = Call(pb.FetchRequest())
        return await calls.answer(method(answer), NOTHING, context)

    first, second = await asyncio.gather(call(), call())
    assert first is second
    await settle()
    assert calls._encoded is None, "it is not kept"


async def test_a_message_that_does_not_come_whole_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNARY_READ_S_MAX", 0.02)
    monkeypatch.setattr(unary_calls, "UNFINISHED_CHECK_S", 0.01)
    quota, context = InFlight(1 << 20), Call()
    unfinished: Any = context
    with pytest.raises(Aborted):
        await UnaryCalls(quota, NO_QUOTAS, Audience()).answer(method(None), NOTHING, unfinished)
    assert context.status is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_the_guard_ends_unfinished_calls_only() -> None:
    calls, context = UnaryCalls(InFlight(1 << 20), NO_QUOTAS, Audience()), Call()
    unfinished: Any = context
    answered: Any = Call(pb.FetchRequest())
    may_answer = asyncio.Event()

    async def answer(_: pb.FetchRequest) -> pb.FetchResponse:
        await may_answer.wait()
        return pb.FetchResponse()

    other = asyncio.ensure_future(calls.answer(method(answer), NOTHING, answered))
    reading = asyncio.ensure_future(calls.answer(method(answer), NOTHING, unfinished))
    await settle()
    assert calls.end_unfinished(LimitExceeded("short of memory", retry_after_ms=1)) == 1
    with pytest.raises(Aborted):
        await reading
    assert context.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    may_answer.set()
    assert await other == b""


async def test_a_call_without_a_message_is_malformed() -> None:
    context: Any = Call()
    context.message.set_result(grpc.aio.EOF)
    with pytest.raises(Aborted):
        await UnaryCalls(InFlight(1 << 20), NO_QUOTAS, Audience()).answer(method(None), NOTHING, context)
    assert context.status is grpc.StatusCode.INVALID_ARGUMENT


def test_a_client_that_is_gone_is_nothing_for_the_log() -> None:
    def record(text: str) -> logging.LogRecord:
        return logging.LogRecord("grpc._cython.cygrpc", logging.ERROR, "", 0, text, (), None)

    assert not keep_record(record("ExecuteBatchError raised in core by servicer method [/comet.v1.Comet/Publish]"))
    assert keep_record(record("Unexpected [ValueError] raised by servicer method [/comet.v1.Comet/Publish]"))
