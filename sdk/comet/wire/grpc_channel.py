"""The gRPC implementation of transport.Channel.

Stream carries bytes as they are, without a serialiser, so that the hot frames are never parsed or built by
protobuf. An error that the broker sent arrives as a gRPC status whose details are google.rpc.ErrorInfo and
RetryInfo; here it becomes a CometError again.

Imported when the first connection is made, because grpc takes a tenth of a second to import.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from comet import limits
from comet.errors import BY_CODE, CometError, Internal, InvalidArgument, Timeout, Unavailable, from_code
from comet.wire.acting import ActingFor
from comet.wire.transport import Channel, Stream

if TYPE_CHECKING:
    from comet.wire.bearer import Bearer
    from comet.wire.tls import TlsFiles

M = TypeVar("M", bound=Message)

STREAM_METHOD: Final = "/comet.v1.Comet/Stream"
STATUS_DETAILS: Final = "grpc-status-details-bin"
# The status that grpc.aio gives a call whose write failed, in place of the one that the server sent.
WRITE_FAILED: Final = "Internal error from Core"

# Measured, see docs/performance.md: frames of 1 MiB and a write buffer of 4 MiB gave the shortest round trips for
# small messages and good throughput for large ones. Every channel has connections of its own (no shared pool), so
# that a new try connects at once instead of waiting for the backoff of an older channel to the same broker. What gRPC
# calls the minimum backoff is how long it gives one attempt to connect.
OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_send_message_length", limits.MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", limits.MESSAGE_BYTES_MAX),
    ("grpc.http2.max_frame_size", limits.MIB),
    ("grpc.http2.write_buffer_size", 4 * limits.MIB),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", limits.CONNECT_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", limits.BACKOFF_MAX_MS),
    ("grpc.enable_retries", 0),  # the callers decide what may be repeated
)


def _reraise_if_ours() -> None:
    """The cancellation of a call reaches its caller as an error, unless the caller itself was cancelled."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise  # noqa: PLE0704 - called where a CancelledError is handled


class GrpcChannel:
    """A connection to one broker. Owned by one client, used on one event loop."""

    def __init__(
        self,
        address: str,
        options: Sequence[tuple[str, int]] = OPTIONS,
        tls: TlsFiles | None = None,
        bearer: Bearer | None = None,
    ) -> None:
        assert bearer is None or tls is not None, "keys and tokens cross the network over TLS only"
        self.address = address
        self._bearer = bearer
        self._metadata = self._credential()
        if tls is None:
            self._channel = grpc.aio.insecure_channel(address, options=options)
        else:
            self._channel = grpc.aio.secure_channel(address, _credentials(tls), options=options)

    def stream(self) -> Stream:
        self._metadata = self._credential()
        return GrpcStream(self._channel.stream_stream(STREAM_METHOD)(metadata=self._metadata), self.address)

    async def unary(
        self, method: str, request: Message, response: type[M], timeout_s: float, acting: ActingFor | None = None
    ) -> M:
        call = self._channel.unary_unary(
            f"/{method}", request_serializer=type(request).SerializeToString, response_deserializer=response.FromString
        )
        presented = self._metadata
        metadata: list[tuple[str, str | bytes]] = [*presented]
        if acting is not None:
            metadata.append(acting.metadata())
        try:
            answer: M = await call(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED and await self._has_other_than(presented):
                return await self.unary(method, request, response, timeout_s, acting)
            raise from_status(error, self.address) from None
        except asyncio.CancelledError:
            _reraise_if_ours()
            # The channel was closed by another caller for which it had failed.
            cut = f"the connection to {self.address} was closed"
            raise Unavailable(cut, retry_after_ms=limits.BACKOFF_FIRST_MS) from None
        return answer

    async def close(self) -> None:
        await self._channel.close()

    def _credential(self) -> tuple[tuple[str, str], ...]:
        """The metadata with the access key or token as it is now. Raises Unavailable."""
        if self._bearer is None:
            return ()
        from comet.wire.bearer import HEADER, SCHEME  # here: most clients have none

        return ((HEADER, SCHEME + self._bearer.text()),)

    async def _has_other_than(self, refused: tuple[tuple[str, str], ...]) -> bool:
        """Whether there is another credential than a refused one. It then stands in for it."""
        if self._bearer is None:
            return False
        from comet.wire.bearer import SCHEME

        if not await self._bearer.renewed(refused[0][1].removeprefix(SCHEME)):
            return False
        self._metadata = self._credential()
        return self._metadata != refused


class GrpcStream:
    """One Stream call. After a failure every method raises its error."""

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address

    async def write(self, frame: bytes) -> None:
        try:
            await self._call.write(frame)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            raise await self._failure(error) from None
        except asyncio.CancelledError:
            _reraise_if_ours()
            raise self._cut() from None

    async def read(self) -> bytes | None:
        try:
            frame = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            raise await self._failure(error) from None
        except asyncio.CancelledError:
            _reraise_if_ours()
            raise self._cut() from None
        if isinstance(frame, bytes):
            return frame
        if await self._call.code() is grpc.StatusCode.OK:
            return None
        raise await self._failure(None)

    def cancel(self) -> None:
        self._call.cancel()

    def _cut(self) -> CometError:
        """The error of a call that another task cancelled."""
        return Unavailable(f"the connection to {self._address} was interrupted")

    async def _failure(self, error: Exception | None) -> CometError:
        """The error that ended the call. A failed write has no reason; the call's status has."""
        if isinstance(error, grpc.aio.AioRpcError):
            return from_status(error, self._address)
        if self._call.done():
            status = grpc.aio.AioRpcError(
                await self._call.code(),
                await self._call.initial_metadata(),
                await self._call.trailing_metadata(),
                await self._call.details(),
            )
            return from_status(status, self._address)
        return Unavailable(f"the connection to {self._address} is closed")


def from_status(error: grpc.aio.AioRpcError, address: str) -> CometError:
    """The CometError of a failed call."""
    details = error.details() or error.code().name
    sent = _sent_error(error, details)
    if sent is not None:
        return sent
    match error.code():
        case grpc.StatusCode.OK:  # a write after the end
            return Unavailable(f"the broker at {address} ended the connection")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return Timeout(f"no answer from {address} in time; the request may or may not have been done")
        case grpc.StatusCode.UNAVAILABLE:
            return Unavailable(f"cannot reach a broker at {address}: {details}")
        case grpc.StatusCode.CANCELLED:  # by the server: too many calls wait there
            refused = f"the broker at {address} has cancelled the call: {details}"
            return Unavailable(refused, retry_after_ms=limits.BACKOFF_FIRST_MS)
        case grpc.StatusCode.INTERNAL if details == WRITE_FAILED:
            return Unavailable(f"the broker at {address} ended the stream while a frame was written")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return BY_CODE["RECORD_TOO_LARGE"](details)
        case grpc.StatusCode.UNIMPLEMENTED:
            return BY_CODE["UNSUPPORTED_VERSION"](f"the server at {address} does not speak comet.v1: {details}")
        case _:
            return Internal(f"{error.code().name} from {address}: {details}")


def _sent_error(error: grpc.aio.AioRpcError, message: str) -> CometError | None:
    """The error that the broker itself put into the status, if any."""
    for name, value in error.trailing_metadata() or ():
        if name != STATUS_DETAILS or not isinstance(value, bytes):
            continue
        from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo  # here: most calls succeed
        from google.rpc.status_pb2 import Status

        try:
            status = Status.FromString(value)
        except DecodeError:
            return None
        info, retry = ErrorInfo(), RetryInfo()
        for detail in status.details:
            detail.Unpack(info)
            detail.Unpack(retry)
        if info.reason:
            wait_ms = retry.retry_delay.ToMilliseconds()
            return from_code(info.reason, status.message or message, details=info.metadata, retry_after_ms=wait_ms)
    return None


def _credentials(tls: TlsFiles) -> grpc.ChannelCredentials:
    """Of the files as they are now. Raises Unavailable if they do not fit together: a replacement may be under way."""
    try:
        pem = tls.read()
    except InvalidArgument as error:
        raise Unavailable(error.message) from None
    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)


def connect(address: str, *, tls: TlsFiles | None = None, bearer: Bearer | None = None) -> Channel:
    """A channel to "host:port"; nothing happens on the network until it is used. Raises Unavailable if the files of TLS
    cannot be read now, or if the client has no access key or token yet."""
    return GrpcChannel(address, tls=tls, bearer=bearer)
