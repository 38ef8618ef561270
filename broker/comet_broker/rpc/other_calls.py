"""The calls of gRPC's own services, health and reflection, so that they can be ended when memory is short.

Their messages are read here: gRPC's core goes on to take the bytes of a message that gRPC itself reads, also when the
task of the call is cancelled. A call with a status takes no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio

from comet.errors import CometError, MalformedFrame
from comet_broker.rpc.audience import Context
from comet_broker.rpc.status import abort

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
T = TypeVar("T")


class OtherCalls:
    """Takes the handlers of a generated `add_..._to_server` and adds them to the server. Implements
    memory.guard.Sheddable.

    admit    raises the CometError with which a call is refused
    """

    def __init__(self, server: grpc.aio.Server, admit: Callable[[Context], object] = lambda _: None) -> None:
        self._server = server
        self._admit = admit
        self._running: set[asyncio.Task[Any]] = set()
        self._failure: CometError | None = None  # with which the last ones were ended

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """The same handlers come by name, in the next call."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        table = {name: self._endable(handler) for name, handler in handlers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, table),))

    # ---- when memory is short, see memory.guard.Sheddable

    def end_unfinished(self, error: CometError) -> int:
        """Ends all: a check of the health takes a moment, and a watcher asks again."""
        found = list(self._running)
        self._running.clear()
        self._failure = error
        for task in found:
            task.cancel()
        return len(found)

    def end_some(self, _: CometError) -> int:
        return 0

    # ---- the handlers

    def _endable(self, handler: Any) -> Handler:  # as gRPC's types describe it, it belongs to a server with threads
        serialize = handler.response_serializer

        async def unary_unary(_: AsyncIterator[bytes], context: Context) -> Any:
            return await self._run(context, partial(_one, handler, handler.unary_unary))

        async def unary_stream(_: AsyncIterator[bytes], context: Context) -> None:
            await self._run(context, partial(_one, handler, handler.unary_stream))

        async def stream_stream(requests: AsyncIterator[Any], context: Context) -> None:
            await self._run(context, partial(_pass_on, handler.stream_stream(requests, context)))

        if handler.unary_unary is not None:
            return grpc.stream_unary_rpc_method_handler(unary_unary, response_serializer=serialize)
        if handler.unary_stream is not None:
            return grpc.stream_stream_rpc_method_handler(unary_stream, response_serializer=serialize)
        assert handler.stream_stream is not None, "another kind of method"
        return grpc.stream_stream_rpc_method_handler(stream_stream, handler.request_deserializer, serialize)

    async def _run(self, context: Context, call: Callable[[Context], Awaitable[T]]) -> T | None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            self._admit(context)
            return await call(context)
        except CometError as error:
            await abort(context, error)
        except asyncio.CancelledError:
            if task in self._running or self._failure is None or task.uncancel():
                raise
            await abort(context, self._failure)
        finally:
            self._running.discard(task)
        return None


async def _one(handler: Any, method: Any, context: Context) -> Any:
    """Reads the one message of a call, and answers it."""
    data = await context.read()
    if not isinstance(data, bytes):
        raise MalformedFrame("the call has ended without a message")
    return await method(handler.request_deserializer(data), context)


async def _pass_on(answers: AsyncIterator[Any], context: Context) -> None:
    async for answer in answers:
        await context.write(answer)
