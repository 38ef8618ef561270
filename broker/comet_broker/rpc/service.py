"""The gRPC service of a broker: thin handlers around sessions and methods.

Stream is registered without serialisers, so frames pass as raw bytes, and the hot ones never meet a protobuf parser.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from comet.errors import CometError, Forbidden, MalformedFrame
from comet_broker.rpc.listeners import certified_broker
from comet_broker.rpc.methods import ADMIN, COMET, REPLICATION, Endpoint, Method
from comet_broker.rpc.status import abort
from comet_broker.streams.stream_writer import Outbox, ServedStream

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

# What gRPC raises for a write to a call that has ended or is about to.
_GONE: Final = (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.InternalError)


Identify = Callable[[Context], int | None]


@dataclass(frozen=True, slots=True)
class Audience:
    """The callers of a listener.

    identify    the broker that the caller's certificate names; None: without a certificate. Raises Forbidden
    """

    clients: bool = True
    brokers: bool = True
    identify: Identify = lambda _: None


def brokers_of(cluster: str) -> Audience:
    """The other brokers of a cluster, each by its certificate."""
    return Audience(clients=False, identify=lambda context: certified_broker(cluster, context.auth_context()))


def handlers(broker: Endpoint, audience: Audience) -> list[grpc.GenericRpcHandler]:
    """The handlers of this broker for a gRPC server. Other brokers also forward their clients' unary calls."""
    services: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = defaultdict(dict)
    for method in broker.methods:
        if audience.brokers or method.service in (COMET, ADMIN):
            services[method.service][method.name] = grpc.unary_unary_rpc_method_handler(
                _unary(method, audience),
                response_serializer=_serialize,
            )
    outbox = Outbox()
    if audience.clients:
        services[COMET]["Stream"] = grpc.stream_stream_rpc_method_handler(
            _stream(lambda context: broker.open_session(context.peer()), outbox)
        )
    if audience.brokers:
        services[REPLICATION]["Replicate"] = grpc.stream_stream_rpc_method_handler(
            _stream(lambda context: broker.open_replica_session(context.peer(), audience.identify(context)), outbox)
        )
    return [grpc.method_handlers_generic_handler(service, table) for service, table in services.items()]


def _parse(method: Method, data: bytes) -> Message:
    try:
        return method.request.FromString(data)
    except DecodeError:
        name = method.request.DESCRIPTOR.full_name
        raise MalformedFrame(f"{len(data)} bytes do not parse as a {name}") from None


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _unary(method: Method, audience: Audience) -> Callable[[bytes, Context], Awaitable[Message | None]]:
    async def answer(data: bytes, context: Context) -> Message | None:
        try:
            caller = audience.identify(context)
            # Parsed here: for bytes that do not parse, gRPC would answer UNKNOWN and log a traceback each time.
            request = _parse(method, data)
            if method.claims and caller not in (None, getattr(request, method.claims)):
                claimed = getattr(request, method.claims)
                raise Forbidden(f"the certificate is that of broker {caller}, not of broker {claimed}")
            if method.from_brokers and not audience.brokers:
                request.ClearField(method.from_brokers)
            return await method(request)
        except CometError as error:
            await abort(context, error)
            return None

    return answer


def _stream(
    open_session: Callable[[Context], ServedStream], outbox: Outbox
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
            await _read(session, context, outbox)
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

    session.writer.start(context.write, outbox, done)
    return written


async def _read(session: ServedStream, context: Context, outbox: Outbox) -> None:
    """Feeds the session until the client is done; pauses while the session is backlogged."""
    read = context.read
    receive = session.receive
    while not session.closed:
        frame = await read()
        if frame is grpc.aio.EOF:
            return
        outbox.hold()
        try:
            receive(frame)
        finally:
            outbox.flush()
        if session.answers.full:
            await session.answers.relieved()
