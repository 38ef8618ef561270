"""The `fetch` frames of one stream: parts of partitions by request, for readers without a subscription.

    fetch ─► its turn ─► read ─► the frame waits until the transport takes it ─► the next turn

So a stream has one answer in memory besides the one that its transport writes, however many requests came. A request
that waits for records would hold up the others: that is what the call Fetch, and subscriptions, are for.

Owned by a Session, on the loop's thread.
"""

from __future__ import annotations

import asyncio
from typing import Any

from comet.errors import InvalidArgument
from comet.v1 import records_pb2 as pb
from comet.wire.frames import Outgoing, fetched_frame
from comet_broker.access.client_access import set_caller
from comet_broker.streams.answers import Replies
from comet_broker.streams.context import SessionContext, StreamClient


class FetchFrames:
    """Implements context.FrameHandler."""

    def __init__(self, context: SessionContext, client: StreamClient, replies: Replies) -> None:
        self._fetch = context.fetch
        self._in_flight = context.env.in_flight
        self._client = client
        self._replies = replies
        self._turn = asyncio.Lock()
        self._frame: Outgoing | None = None
        self._taken: asyncio.Future[None] | None = None  # done once `_frame` is taken

    def take(self, request: int, kind: str, frame: Any) -> bool:
        if kind == "fetch":
            self._take(request, frame)
        return kind == "fetch"

    def _take(self, request: int, wanted: pb.FetchRequest) -> None:
        if wanted.wait_ms or not (wanted.whole_batches and wanted.forwarded):
            raise InvalidArgument(
                "a fetch on a stream takes whole_batches at the leader (forwarded) and does not wait (wait_ms): "
                "use the call Fetch, or subscribe"
            )
        self._replies.spawn(request, self._answer(request, wanted))

    async def _answer(self, request: int, wanted: pb.FetchRequest) -> None:
        set_caller(self._client.access, self._client.peer)
        async with self._turn:
            if self._is_over():
                return
            answer, batches = await self._fetch(wanted)
            frame = fetched_frame(request, batches, answer.SerializeToString())
            del batches
            if self._is_over():
                return
            self._frame, self._taken = frame, asyncio.get_running_loop().create_future()
            self._in_flight.hold(len(frame))
            del frame
            self._replies.rouse()
            await self._taken

    def _is_over(self) -> bool:
        return self._replies.closed

    def next_frame(self) -> Outgoing | None:
        """The next answer, if one is ready."""
        frame, self._frame = self._frame, None
        if frame is not None:
            self._in_flight.release(len(frame))
            assert self._taken is not None
            if not self._taken.done():  # its task is cancelled when the broker stops
                self._taken.set_result(None)
        return frame

    def close(self) -> None:
        self.next_frame()
