"""The frames of one stream about groups and transactions, and their handlers.

    Join, Leave, Heartbeat, Release, Commit, FetchCommitted  ─► the groups of the slot that the group belongs to
    OpenTransactions, EndTransaction                         ─► the transactions of that slot

Owned by the session; it is the *stream* of a member on this broker, through which it gets unsolicited frames too.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from comet.errors import CometError
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from comet_broker.coordination.coordinator import Coordinator
from comet_broker.coordination.slot import Slot
from comet_broker.core.slots import check_name
from comet_broker.failures import Failures, Kind
from comet_broker.streams.answers import Replies

GROUP_FRAMES: Final = ("join", "heartbeat", "leave", "release", "commit")  # handled at once, by one group


class MemberStream:
    """Implements streams.context.MemberHandler, and group.MemberConnection."""

    def __init__(self, replies: Replies, coordinator: Coordinator, failures: Failures) -> None:
        self._replies = replies
        self._coordinator = coordinator
        self._failures = failures
        self._slots: set[Slot] = set()  # in which this stream has members

    def take(self, request: int, kind: str, frame: Any) -> bool:
        """Handles one frame; False if it is not one of these. Raises the CometError that answers it."""
        try:
            return self._take(request, kind, frame)
        except CometError:
            raise
        except Exception as error:
            if kind not in GROUP_FRAMES:
                raise
            raise self._slot(frame.group).groups.halt(frame.group, kind, error) from error

    def _take(self, request: int, kind: str, frame: Any) -> bool:
        match kind:
            case "join":
                slot = self._slot(frame.group)
                self._slots = {one for one in self._slots if one.closed is None} | {slot}
                slot.members.join(self, request, frame)
            case "heartbeat":
                self._slot(frame.group).members.heartbeat(self, frame)
            case "leave":
                self._slot(frame.group).members.leave(self, request, frame)
            case "release":
                self._slot(frame.group).members.release(self, request, frame)
            case "commit":
                self._slot(frame.group).commits.commit(self, request, frame)
            case "fetch_committed":
                self.spawn(request, self._fetch_committed(request, frame))
            case "open_transactions":
                self.spawn(request, self._open_transactions(request, frame))
            case "end_transaction":
                self.spawn(request, self._end_transaction(request, frame))
            case _:
                return False
        return True

    def heard(self) -> None:
        for slot in self._slots:
            if slot.closed is None:
                slot.members.stream_heard(self)

    def close(self) -> None:
        """Ends the stream; its members have their session timeouts to come back."""
        for slot in self._slots:
            if slot.closed is None:
                with self._failures.guard(Kind.SLOT, str(slot.number), "the end of a stream"):
                    slot.members.stream_closed(self)
        self._slots.clear()

    # ---- a stream

    @property
    def closed(self) -> bool:
        return self._replies.closed

    def send(self, frame: pb.ServerFrame) -> None:
        """Sends a frame to the member, as an answer or unsolicited."""
        self._replies.answer(frame)

    def fail(self, request: int, error: CometError) -> None:
        self._replies.fail(request, error)

    def spawn(self, request: int, work: Coroutine[Any, Any, None]) -> None:
        """Runs a slow request; its errors answer it."""
        self._replies.spawn(request, work)

    # ---- slow requests

    def _slot(self, name: str) -> Slot:
        return self._coordinator.of(check_name(name))

    async def _fetch_committed(self, request: int, fetch: groups_pb.FetchCommitted) -> None:
        slot = self._slot(fetch.group)
        try:
            committed = await slot.commits.fetch_committed(fetch)
        except CometError:
            raise
        except Exception as error:
            raise slot.groups.halt(fetch.group, "fetch_committed", error) from error
        self.send(pb.ServerFrame(request=request, committed=committed))

    async def _open_transactions(self, request: int, opening: groups_pb.OpenTransactions) -> None:
        name = opening.group or opening.transactional_id
        opened = await self._slot(name).transactions.open(opening, self)
        self.send(pb.ServerFrame(request=request, opened_transactions=opened))

    async def _end_transaction(self, request: int, ending: groups_pb.EndTransaction) -> None:
        name = ending.group or ending.transactional_id
        ended = await self._slot(name).transactions.end(ending, self)
        self.send(pb.ServerFrame(request=request, ended_transaction=ended))
