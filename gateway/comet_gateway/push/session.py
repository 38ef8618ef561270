"""The state of one WebSocket's subscriptions: a state machine without I/O.

    frame ─► PushSession.take ─► actions ─► the driver (websocket.py) performs them, in order

    id unknown  ── subscribe ──►  open  ── unsubscribe ──►  closing  ── `ended` ──►  unknown
                                  permit, replay, control, ack, nack, reject, extend only if they fit its kind

A page or channel has nothing to settle: it ends with its unsubscribe, and its id is free at once.

A wrong frame is answered with an error, and has no other effect. Three things end the connection: binary frames, frames
that are too large, and too many malformed ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from comet_gateway.config import KIB, Limits
from comet_gateway.http.auth import Principal, Role
from comet_gateway.http.problems import Problem
from comet_gateway.http.topic_roles import require_pattern, require_topic
from comet_gateway.push import frames
from comet_gateway.push.close_codes import Close
from comet_gateway.push.dashboard_port import Dashboard, DashboardRequest
from comet_gateway.push.parse_subscribe import Joined, Played, check_dashboard, of_frame
from comet_gateway.push.subscribe_request import SubscribeRequest

GARBAGE_MAX: Final = 100  # malformed frames of one connection
PERMITS_MAX: Final = 2**53  # of one subscription, over its life
PARAMS_CHARACTERS_MAX: Final = 64 * KIB  # of a frame with `params`, which wait in memory for their channel
Request = SubscribeRequest | Joined | Played | DashboardRequest


@dataclass(frozen=True, slots=True)
class Open:
    """Opens a subscription."""

    id: str
    request: Request


@dataclass(frozen=True, slots=True)
class Drop:
    """Ends a subscription, with an end frame when it has ended."""

    id: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Ends a page or channel at once."""

    id: str


@dataclass(frozen=True, slots=True)
class Grant:
    """Allows more records."""

    id: str
    count: int


@dataclass(frozen=True, slots=True)
class Steer:
    """Pauses, resumes, steps, or changes the speed of a replay."""

    id: str
    frame: frames.ReplayFrame


@dataclass(frozen=True, slots=True)
class PassControl:
    """Passes a control frame to a channel."""

    id: str
    frame: frames.Control


@dataclass(frozen=True, slots=True)
class Commit:
    """Commits offsets of a consumer group."""

    id: str
    cursor: str


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Acknowledges records of a share group."""

    id: str
    frame: frames.Acknowledge


@dataclass(frozen=True, slots=True)
class Write:
    """Writes records, and sends the receipt in order."""

    frame: frames.Produce
    text: str | bytes  # as received, to find duplicate members


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Sends a frame."""

    frame: frames.ServerFrame


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Closes the connection."""

    close: Close


Action = Open | Drop | Leave | Grant | Steer | PassControl | Commit | Acknowledge | Write | SendFrame | CloseConnection


@dataclass(slots=True)
class _Subscription:
    kind: str  # follow, replay, consumer, share, page, channel
    permitted: int | None  # over its life; None: without permits
    closing: bool = False  # its id is free after its end frame


class PushSession:
    """The state of one connection. Called by its reader only, except `ended`."""

    def __init__(self, limits: Limits, principal: Principal, dashboard: Dashboard) -> None:
        self._limits = limits
        self._principal = principal
        self._dashboard = dashboard
        self._open: dict[str, _Subscription] = {}
        self._garbage = 0
        self._over = False

    @property
    def subscriptions(self) -> int:
        return len(self._open)

    def take(self, text: str | bytes, *, now_us: int) -> list[Action]:
        """The actions of a text frame; none after the end of the connection."""
        if self._over:
            return []
        # A character is at least a byte, so this is no stricter than the server's own limit on frames.
        if len(text) > self._limits.frame_bytes_max:
            return self._end(Close.TOO_LARGE)
        try:
            frame = frames.read(text)
        except Problem as problem:
            return self._garbled(text, problem)
        try:
            return self._act(frame, text, now_us)
        except Problem as problem:
            return [SendFrame(frames.error_of(problem, id_=frame.id, of=type_of(frame)))]

    def take_binary(self) -> list[Action]:
        return [] if self._over else self._end(Close.BINARY)

    def ended(self, id_: str) -> bool:
        """Frees the id of a subscription. False: it was free already."""
        return self._open.pop(id_, None) is not None

    def _end(self, close: Close) -> list[Action]:
        self._over = True
        self._open.clear()
        return [CloseConnection(close)]

    def _garbled(self, text: str | bytes, problem: Problem) -> list[Action]:
        self._garbage += 1
        if self._garbage > GARBAGE_MAX:
            return self._end(Close.GARBAGE)
        of, id_ = frames.about(text)
        return [SendFrame(frames.error_of(problem, id_=id_, of=of))]

    def _act(self, frame: frames.ClientFrame, text: str | bytes, now_us: int) -> list[Action]:
        if isinstance(frame, frames.Subscribe | frames.Control) and frame.params:
            _check_params(text)
        match frame:
            case frames.Ping():
                return [SendFrame(frames.Pong(frame.id))]
            case frames.Subscribe():
                return [self._subscribe(frame, now_us)]
            case frames.Unsubscribe():
                return self._unsubscribe(frame.id)
            case frames.Permit():
                return [self._permit(frame)]
            case frames.ReplayFrame():
                return [self._replay(frame)]
            case frames.Control():
                self._of_kind(frame.id, "channel", what="control")
                return [PassControl(frame.id, frame)]
            case frames.Produce():
                return [self._produce(frame, text)]
            case _:
                return [self._acknowledge(frame)]

    def _subscribe(self, frame: frames.Subscribe, now_us: int) -> Action:
        if frame.id in self._open:
            raise Problem("SUBSCRIPTION_EXISTS", f"subscription {frame.id!r} exists on this connection")
        if len(self._open) >= self._limits.subscriptions_max:
            raise Problem(
                "TOO_MANY_SUBSCRIPTIONS",
                f"limit of {self._limits.subscriptions_max} subscriptions on one connection reached",
                more={"subscriptions_max": self._limits.subscriptions_max},
            )
        request = self._request(frame, now_us)
        self._open[frame.id] = _Subscription(_kind_of(request), frame.permits)
        return Open(frame.id, request)

    def _request(self, frame: frames.Subscribe, now_us: int) -> Request:
        if frame.page is not None or frame.channel is not None:
            return self._of_dashboard(frame)
        request = of_frame(frame, now_us=now_us, span_ms_max=self._limits.replay_ms_max)
        if isinstance(request, Joined):
            self._may("be a member of a group")
        for topic in (request.topic,) if isinstance(request, Played) else request.topics:
            require_topic(self._principal, topic)
        require_pattern(self._principal, frame.pattern or "")
        return request

    def _of_dashboard(self, frame: frames.Subscribe) -> DashboardRequest:
        check_dashboard(frame)
        most = self._limits.watches_max
        if sum(one.kind in DASHBOARD for one in self._open.values()) >= most:
            raise Problem(
                "TOO_MANY_SUBSCRIPTIONS",
                f"limit of {most} pages and channels on one connection reached",
                more={"watches_max": most},
            )
        if frame.page is not None:
            return self._dashboard.page(frame.page, self._principal)
        assert frame.channel is not None
        return self._dashboard.channel(frame.channel, frame.params or {}, self._principal)

    def _unsubscribe(self, id_: str) -> list[Action]:
        one = self._known(id_)
        if one.kind in DASHBOARD:
            del self._open[id_]
            return [Leave(id_), SendFrame(frames.EndFrame(id_, "unsubscribed"))]
        one.closing = True
        return [Drop(id_)]

    def _permit(self, frame: frames.Permit) -> Action:
        one = self._known(frame.id)
        if one.permitted is None:
            raise Problem("INVALID_ARGUMENT", f"subscription {frame.id!r} was opened without `permits`")
        if one.permitted + frame.count > PERMITS_MAX:
            raise Problem("INVALID_ARGUMENT", f"more than {PERMITS_MAX} records permitted on one subscription")
        one.permitted += frame.count
        return Grant(frame.id, frame.count)

    def _replay(self, frame: frames.ReplayFrame) -> Action:
        self._of_kind(frame.id, "replay", what="replay")
        if (frame.action == "speed") != (frame.speed is not None):
            raise Problem("INVALID_ARGUMENT", '`speed` goes with the action "speed" only')
        return Steer(frame.id, frame)

    def _acknowledge(self, frame: frames.Acknowledge) -> Action:
        if isinstance(frame, frames.Ack) and frame.cursor is not None and frame.records is None:
            self._of_kind(frame.id, "consumer", what="an ack with a cursor")
            return Commit(frame.id, frame.cursor)
        if isinstance(frame, frames.Ack) and (frame.cursor is not None or frame.records is None):
            raise Problem("INVALID_ARGUMENT", "give `cursor` (consumer group) or `records` (share group)")
        self._of_kind(frame.id, "share", what=f"{type_of(frame)} of records")
        return Acknowledge(frame.id, frame)

    def _produce(self, frame: frames.Produce, text: str | bytes) -> Action:
        self._may("write")
        if (frame.record is None) == (frame.records is None):
            raise Problem("INVALID_ARGUMENT", "give `record` or `records`")
        return Write(frame, text)

    def _may(self, what: str) -> None:
        if self._principal.role < Role.OPERATOR:
            raise Problem("FORBIDDEN", f"the role operator is required to {what}")

    def _known(self, id_: str) -> _Subscription:
        one = self._open.get(id_)
        if one is None or one.closing:
            raise Problem("SUBSCRIPTION_NOT_FOUND", f"no subscription {id_!r} on this connection")
        return one

    def _of_kind(self, id_: str, kind: str, *, what: str) -> None:
        found = self._known(id_).kind
        if found != kind:
            raise Problem("INVALID_ARGUMENT", f"subscription {id_!r} is {_KINDS[found]}; {what} is for {_KINDS[kind]}")


def _check_params(text: str | bytes) -> None:
    if len(text) > PARAMS_CHARACTERS_MAX:
        raise Problem("INVALID_ARGUMENT", f"a frame with `params` has more than {PARAMS_CHARACTERS_MAX} characters")


def _kind_of(request: Request) -> str:
    match request:
        case Joined():
            return request.group.kind
        case Played():
            return "replay"
        case DashboardRequest():
            return request.kind
    return "follow"


DASHBOARD: Final = frozenset({"page", "channel"})
_KINDS: Final = {
    "follow": "without a group",
    "replay": "a replay",
    "consumer": "in a consumer group",
    "share": "in a share group",
    "page": "a page",
    "channel": "a channel",
}


def cause_type(action: Action) -> str | None:
    """The type of the frame that caused an action."""
    match action:
        case Acknowledge() | Write() | Steer() | PassControl():
            return type_of(action.frame)
        case SendFrame() | CloseConnection():
            return None
    return {Open: "subscribe", Drop: "unsubscribe", Leave: "unsubscribe", Grant: "permit", Commit: "ack"}[type(action)]


def type_of(frame: frames.ClientFrame) -> str:
    return str(type(frame).__struct_config__.tag)
