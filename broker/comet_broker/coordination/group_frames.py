"""The frames of one stream about groups, share groups and transactions, and their handlers.

    Join, Leave, Heartbeat, Release, Commit, FetchCommitted  ─► the groups of the slot that the group belongs to
    OpenTransactions, EndTransaction                         ─► the transactions of that slot
    Share, Settle                                            ─► Sharing, for the partitions that this broker leads

Owned by the session; it is the *stream* of a member on this broker, through which it gets unsolicited frames too.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from comet.errors import CometError, InvalidArgument
from comet.types import check_topic_name
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from comet_broker.failures import Kind
from comet_broker.sharing import Sharing

if TYPE_CHECKING:
    from comet_broker.broker import Broker
    from comet_broker.coordination.coordinator import Slot
    from comet_broker.streams.subscriptions import Feed


GROUP_FRAMES: Final = ("join", "heartbeat", "leave", "release", "commit")  # handled at once, by one group


class StreamSession(Protocol):
    """The part of a session that a stream needs."""

    @property
    def closed(self) -> bool: ...
    @property
    def peer(self) -> str: ...
    def answer(self, frame: pb.ServerFrame) -> None: ...
    def fail(self, request: int, error: CometError) -> None: ...
    def spawn(self, request: int, work: Coroutine[Any, Any, None]) -> None: ...
    def rouse(self) -> None: ...


class MemberStream:
    def __init__(self, broker: Broker, session: StreamSession, feed: Feed) -> None:
        self.session = session
        self._broker = broker
        self._slots: set[Slot] = set()  # in which this stream has members
        self.sharing = Sharing(broker, session, feed)

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
                slot.groups.join(self, request, frame)
            case "heartbeat":
                self._slot(frame.group).groups.heartbeat(self, frame)
            case "leave":
                self._slot(frame.group).groups.leave(self, request, frame)
            case "release":
                self._slot(frame.group).groups.release(self, request, frame)
            case "commit":
                self._slot(frame.group).groups.commit(self, request, frame)
            case "fetch_committed":
                self.session.spawn(request, self._fetch_committed(request, frame))
            case "open_transactions":
                self.session.spawn(request, self._open_transactions(request, frame))
            case "end_transaction":
                self.session.spawn(request, self._end_transaction(request, frame))
            case "share_subscribe":
                self.sharing.share(request, frame)
            case "acknowledge":
                self.sharing.acknowledge(request, frame)
            case _:
                return False
        return True

    def close(self) -> None:
        """Ends the stream; its members have their session timeouts to come back."""
        for slot in self._slots:
            if slot.closed is None:
                with self._broker.failures.guard(Kind.SLOT, str(slot.number), "the end of a stream"):
                    slot.groups.stream_closed(self)
        self._slots.clear()
        self.sharing.close()

    # ---- a stream

    def send(self, frame: pb.ServerFrame) -> None:
        """Sends a frame to the member, as an answer or unsolicited."""
        self.session.answer(frame)

    def fail(self, request: int, error: CometError) -> None:
        self.session.fail(request, error)

    # ---- slow requests

    def _slot(self, name: str) -> Slot:
        return self._broker.coordinator.of(check_name(name))

    async def _fetch_committed(self, request: int, fetch: groups_pb.FetchCommitted) -> None:
        groups = self._slot(fetch.group).groups
        try:
            committed = await groups.fetch_committed(fetch)
        except CometError:
            raise
        except Exception as error:
            raise groups.halt(fetch.group, "fetch_committed", error) from error
        self.send(pb.ServerFrame(request=request, committed=committed))

    async def _open_transactions(self, request: int, opening: groups_pb.OpenTransactions) -> None:
        name = opening.group or opening.transactional_id
        opened = await self._slot(name).transactions.open(opening, self)
        self.send(pb.ServerFrame(request=request, opened_transactions=opened))

    async def _end_transaction(self, request: int, ending: groups_pb.EndTransaction) -> None:
        name = ending.group or ending.transactional_id
        ended = await self._slot(name).transactions.end(ending, self)
        self.send(pb.ServerFrame(request=request, ended_transaction=ended))


def check_name(name: str) -> str:
    """Checks the name of a group or transactional id, by the rules for topics."""
    try:
        return check_topic_name(name)
    except InvalidArgument:
        raise InvalidArgument(
            f"{name!r} is not a valid group name or transactional id: use 1 to 249 letters, digits, '.', '_' and '-', "
            "beginning with a letter, digit or '_'"
        ) from None
