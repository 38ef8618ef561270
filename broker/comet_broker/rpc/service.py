"""The gRPC service of a broker: thin handlers around sessions and methods.

Stream is registered without serialisers, so frames pass as raw bytes, and the hot ones never meet a protobuf parser.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio

from comet.errors import CometError
from comet.wire.frames import joined
from comet_broker import limits
from comet_broker.rpc.audience import Audience, Context
from comet_broker.rpc.methods import COMET, REPLICATION, Endpoint
from comet_broker.rpc.status import abort
from comet_broker.rpc.unary_calls import UnaryCalls, handler_of
from comet_broker.streams.stream_writer import Outbox, ServedStream

log = logging.getLogger(__name__)

# What gRPC raises for a write to a call that has ended or is about to.
_GONE: Final = (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.InternalError)


def keep_record(record: logging.LogRecord) -> bool:
    """The filter of grpc.aio's log. It drops the traceback of an answer that cannot be written: its client is gone."""
    return not record.getMessage().startswith("ExecuteBatchError raised in core by servicer method")


def handlers(broker: Endpoint, audience: Audience) -> list[grpc.GenericRpcHandler]:
    """The handlers of this broker for a gRPC server."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(keep_record)
    calls = UnaryCalls(broker.in_flight, broker.quotas, audience)
    broker.calls.append(calls)
    services: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = defaultdict(dict)
    for method in broker.methods:
        if audience.serves(method):
            services[method.service][method.name] = handler_of(calls, method)
    outbox = Outbox()

    def open_session(context: Context) -> ServedStream:
        return broker.open_session(context.peer(), audience.access(context))

    def open_replica_session(context: Context) -> ServedStream:
        return broker.open_replica_session(context.peer(), audience.identify(context))

    if audience.clients:
        clients = _stream(open_session, outbox, broker, limited=True)
        services[COMET]["Stream"] = grpc.stream_stream_rpc_method_handler(clients)
    if audience.brokers:
        followers = _stream(open_replica_session, outbox, broker, limited=False)
        services[REPLICATION]["Replicate"] = grpc.stream_stream_rpc_method_handler(followers)
    return [grpc.method_handlers_generic_handler(service, table) for service, table in services.items()]


def _stream(
    open_session: Callable[[Context], ServedStream], outbox: Outbox, broker: Endpoint, *, limited: bool
) -> Callable[[AsyncIterator[bytes], Context], Awaitable[None]]:
    async def stream(_: AsyncIterator[bytes], context: Context) -> None:
        try:
            session = open_session(context)
        except CometError as error:
            await abort(context, error)
            return
        writer, written = session.writer, _start(session, context, outbox)
        task = asyncio.current_task()
        assert task is not None
        writer.on_failure = task.cancel
        try:
            await _read(session, context, outbox, broker, limited=limited)
            session.input_over()
            await written
        except CometError as error:
            await abort(context, error)
        except asyncio.CancelledError:
            if writer.failure is None or task.uncancel():
                raise
            session.close()
            writer.stop()
            await abort(context, writer.failure)
        finally:
            session.close()
            writer.stop()

    return stream


def _start(session: ServedStream, context: Context, outbox: Outbox) -> asyncio.Future[None]:
    """Starts to write the session's frames; the future is done after the last, or has the error that is a bug."""
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if isinstance(error, _GONE):
            log.debug("the stream of %s ended while writing: %r", context.peer(), error)
        elif error is not None and not written.done():
            written.set_exception(error)
        if not written.done():
            written.set_result(None)
        if error is not None:
            session.close()

    session.writer.start(lambda frame: context.write(joined(frame)), outbox, done)
    return written


async def _read(session: ServedStream, context: Context, outbox: Outbox, broker: Endpoint, *, limited: bool) -> None:
    """Feeds the session until the client is done; pauses while the session is backlogged, or the quota is used up.
    Followers are not limited by the quota: they would fall out of sync because of clients."""
    in_flight = broker.in_flight
    read = context.read
    receive = session.receive
    while not session.closed:
        if limited and in_flight.full:
            await in_flight.relieved()
        frame = await read()
        if frame is grpc.aio.EOF:
            return
        outbox.hold()
        try:
            receive(frame)
        finally:
            outbox.flush()
        if len(frame) > limits.LARGE_FRAME_BYTES:
            del frame  # it may be the last reference
            broker.look_at_memory()
        if session.answers.full:
            await session.answers.relieved()
        if session.pause is not None:
            await session.pause()
