"""The coordinator of a group or transactional id: found through any broker, and found again when it moves.

    request(frame) ─► the coordinator's connection ─► the answer
                       │ NotCoordinator, Unavailable, lost ─► found again ─► the same frame
                       └ CoordinatorLoading, other errors that are retriable ─► the same frame, a little later

A request that is sent again may have taken effect before: all requests to a coordinator can be repeated.
Assignments and evictions go to the listener; `moved` is called when the connection ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from comet import limits
from comet.client.client import Client
from comet.client.connection import Connection
from comet.client.metadata import mark_retrieved, share
from comet.client.retry import Backoff
from comet.client.subscribers import Listener
from comet.errors import Closed, CometError, Timeout, Unavailable
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb

log = logging.getLogger("comet")

_FIND: Final = "comet.v1.Comet/FindCoordinator"


class Coordinator:
    """Requests to one coordinator. Owned by one member or transactional producer, on its client's loop."""

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self._client = client
        self._connection: Connection | None = None
        self._finding: asyncio.Task[Connection] | None = None
        self._hint: str | None = None  # the address that another broker gave; used once
        self._listener: Listener | None = None
        self._moved: Callable[[CometError], None] | None = None
        self._on_lost: Callable[[CometError], None] | None = None  # the callback at the connection

    def listen(self, listener: Listener, moved: Callable[[CometError], None] | None = None) -> None:
        """Sets the listener for assignments and evictions. `moved` is called when the stream ends or another broker is
        the coordinator: a member then joins again on the next stream."""
        self._listener, self._moved = listener, moved
        if self._connection is not None:
            self._connection.subscribers.listeners[self.name] = listener

    @property
    def connected(self) -> Connection | None:
        """The connection to the coordinator; None if there is none."""
        return self._connection

    async def request(self, frame: pb.ClientFrame, timeout_ms: float = limits.REQUEST_TIMEOUT_MS) -> pb.ServerFrame:
        """The coordinator's answer. Raises an error that a retry cannot help; Timeout without an answer in time, with
        the last error; and Unavailable if the coordinator was never reached."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_ms / 1000
        backoff = Backoff(self._client.random, max_ms=limits.ROUTE_BACKOFF_MAX_MS, free=1)
        sent = False
        problem: CometError | None = None
        while True:
            connection: Connection | None = None
            try:
                async with asyncio.timeout_at(give_up):
                    connection = await self.connection()
                    sent = True
                    return await connection.call(frame, max(int((give_up - loop.time()) * 1000), 1))
            except TimeoutError:
                raise self._too_late(sent, timeout_ms, problem) from problem
            except CometError as error:
                if isinstance(error, Timeout):
                    raise self._too_late(sent, timeout_ms, problem or error) from error
                problem = error
                self._judge(connection, error)
                wait_s = backoff.next_s(error.retry_after_ms)
            if loop.time() + wait_s >= give_up:
                raise self._too_late(sent, timeout_ms, problem) from problem
            await asyncio.sleep(wait_s)

    def _too_late(self, sent: bool, timeout_ms: float, problem: CometError | None) -> CometError:
        why = "" if problem is None else f": {problem.message}"
        if not sent:
            where = ", ".join(self._client.bootstrap)
            return Unavailable(
                f"the coordinator of {self.name!r} was not reached at {where} within {timeout_ms:g} ms{why}"
            )
        return Timeout(f"the coordinator of {self.name!r} did not answer within {timeout_ms:g} ms{why}")

    def _judge(self, connection: Connection | None, error: CometError) -> None:
        """Raises an error that a retry cannot help; otherwise drops a coordinator that may be outdated."""
        if not error.retriable or self._client.closed:
            raise error
        if error.metadata_stale and connection is not None:
            self.misled(connection, error)

    def notify(self, frame: pb.ClientFrame, refused: Callable[[CometError], None]) -> None:
        """Sends a frame without an answer, if connected; `refused` is called with the error if it is refused."""
        if self._connection is not None:
            self._connection.notify(frame, refused)

    # ---- finding it

    async def connection(self) -> Connection:
        """The coordinator's connection. All callers share one attempt."""
        if self._connection is not None and not self._connection.leaving:
            return self._connection
        self._client.check_open()
        if self._finding is None:
            self._finding = self._client.spawn(self._find())
            self._finding.add_done_callback(mark_retrieved)
        return await share(self._finding)

    async def _find(self) -> Connection:
        try:
            address, self._hint = self._hint, None
            if address is None:
                request = groups_pb.FindCoordinatorRequest(name=self.name)
                found = await self._client.request(_FIND, request, groups_pb.FindCoordinatorResponse)
                address = f"{found.host}:{found.port}"
                self._client.wires.learn_offer(address, found.broker, found.wire_port, found.wire_socket)
            connection = await self._client.connection(address)
        finally:
            self._finding = None
        if connection is not self._connection:
            self._leave(Unavailable(f"the coordinator of {self.name!r} is at {address} now"))
            self._connection = connection
            if self._listener is not None:
                connection.subscribers.listeners[self.name] = self._listener
            self._on_lost = partial(self._lost, connection)
            connection.on_lost(self._on_lost)
        return connection

    def misled(self, connection: Connection, error: CometError) -> None:
        """Handles a broker's answer that it is not, or no longer, the coordinator."""
        if connection is not self._connection:
            return  # another one was found meanwhile
        details = error.details
        if details.get("host") and details.get("port", "").isdecimal() and details.get("leader", "0") != "0":
            self._hint = f"{details['host']}:{details['port']}"
            self._client.wires.learn_leader(error)
        self._leave(error)

    def _lost(self, connection: Connection, error: CometError) -> None:
        if connection is self._connection:
            self._leave(error)

    def close(self) -> None:
        """Leaves the connection, which others may still use."""
        self._leave(Closed("the client was closed"))

    def _leave(self, error: CometError) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._on_lost is not None:
            connection.off_lost(self._on_lost)
        connection.subscribers.listeners.pop(self.name, None)
        if self._moved is not None and not isinstance(error, Closed):
            self._moved(error)
