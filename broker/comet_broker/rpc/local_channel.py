"""A broker reached without a network: the SDK's transport directly on sessions and methods.

For simulations and in-process tests; the frames and messages are those of the real transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from google.protobuf.message import Message

from comet.errors import CometError, Timeout, Unavailable
from comet.wire.acting import ActingFor
from comet_broker.ports import PeerChannel
from comet_broker.rpc.methods import Endpoint
from comet_broker.streams.stream_writer import ServedStream


class LocalStream:
    """comet.wire.transport.Stream."""

    def __init__(self, session: ServedStream) -> None:
        self._session = session

    async def write(self, frame: bytes) -> None:
        if self._session.closed:
            raise Unavailable("the stream is closed")
        try:
            self._session.receive(frame)
        except CometError:
            self._session.close()
            raise
        if self._session.answers.full:
            await self._session.answers.relieved()

    async def read(self) -> bytes | None:
        return await self._session.writer.next_frame()

    def cancel(self) -> None:
        self._session.close()


class RefusedStream:
    """A stream that the broker refused: every use raises the reason."""

    def __init__(self, error: CometError) -> None:
        self._error = error

    async def write(self, _: bytes) -> None:
        raise self._error

    async def read(self) -> bytes | None:
        raise self._error

    def cancel(self) -> None:
        return


class LocalChannel:
    """comet.wire.transport.Channel."""

    def __init__(self, broker: Endpoint, peer: str = "local") -> None:
        self._broker = broker
        self._peer = peer
        self._methods = {method.path: method for method in broker.methods}
        self._sessions: list[ServedStream] = []

    def stream(self) -> LocalStream | RefusedStream:
        return self._open(self._broker.open_session)

    async def replicate(self, _: object) -> LocalStream | RefusedStream:
        return self._open(self._broker.open_replica_session)

    def _open(self, open_session: Callable[[str], ServedStream]) -> LocalStream | RefusedStream:
        try:
            session = open_session(self._peer)
        except CometError as error:
            return RefusedStream(error)
        self._sessions = [open_one for open_one in self._sessions if not open_one.closed] + [session]
        return LocalStream(session)

    async def unary(
        self, method: str, request: Message, response: type[Message], timeout_s: float, acting: ActingFor | None = None
    ) -> Message:
        assert acting is None, "calls within a process are not a client's, so no access is checked"
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._methods[method](request)
        except TimeoutError:
            raise Timeout(f"{method} was not answered within {timeout_s} s") from None
        assert isinstance(answer, response)
        return answer

    async def close(self) -> None:
        for session in self._sessions:
            session.close()


class LocalNetwork:
    """ports.Network between brokers of one process: an address is a name under which a broker is registered here."""

    def __init__(self) -> None:
        self.brokers: dict[str, Endpoint] = {}

    def connect(self, address: str) -> PeerChannel:
        broker = self.brokers.get(address)
        if broker is None:
            return UnreachableChannel(Unavailable(f"no broker answers at {address}"))
        return LocalChannel(broker)

    async def refused(self, address: str) -> bool:
        return address not in self.brokers


class UnreachableChannel:
    """The channel of an address that cannot be reached: every use raises the reason."""

    def __init__(self, error: Unavailable) -> None:
        self._error = error

    def stream(self) -> RefusedStream:
        return RefusedStream(self._error)

    async def replicate(self, _: object) -> RefusedStream:
        return RefusedStream(self._error)

    async def unary(self, *_: object) -> Message:
        raise self._error

    async def close(self) -> None:
        return
