"""The transport to a broker: the interface that gRPC implements in grpc_channel and simulations in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from comet.wire.frames import Frame

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from comet.wire.acting import ActingFor


class Stream(Protocol):
    """One Stream call: frames, in order, both ways.

    Owned by one connection. `write` waits while the transport is full, which is how back-pressure reaches the
    sender. After any failure both methods raise Unavailable for good.
    """

    async def write(self, frame: bytes) -> None: ...
    async def read(self) -> Frame | None:
        """The next frame; None when the broker ended the call in good order."""

    def cancel(self) -> None: ...


class Channel(Protocol):
    """A connection to one broker."""

    def stream(self) -> Stream: ...
    async def unary(
        self,
        method: str,
        request: Message,
        response: type[Message],
        timeout_s: float,
        acting: ActingFor | None = None,
    ) -> Message:
        """Calls e.g. "comet.v1.Comet/FetchMetadata", for a user if `acting`. Raises the CometError the broker
        answered with, Unavailable when it could not be reached, Timeout when no answer came."""

    async def close(self) -> None: ...


Connect = Callable[[str], Channel]  # "host:port" -> Channel; never blocks; raises Unavailable at most
Sleep = Callable[[float], Awaitable[None]]
