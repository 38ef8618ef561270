"""What one WebSocket has asked for: a state machine without I/O.

    frame ─► Session.take ─► actions ─► the driver (websocket.py) does them, in order

    id unknown  ── subscribe ──►  open  ── unsubscribe ──►  closing  ── `ended` ──►  unknown
                                  permit, replay, ack, nack, reject, extend only where they fit its kind

What is wrong with a frame is answered with an error and touches nothing else. Three things end the connection: binary
frames, frames that are too large, and too many that make no sense.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from comet_gateway.config import Limits
from comet_gateway.http.problems import Problem
from comet_gateway.push import frames
from comet_gateway.push.close_codes import Close
from comet_gateway.push.parse_subscribe import Joined, Played, of_frame
from comet_gateway.push.subscribe_request import SubscribeRequest

GARBAGE_MAX: Final = 100  # frames of one connection that make no sense
PERMITS_MAX: Final = 2**53  # of one subscription, over its life


@dataclass(frozen=True, slots=True)
class Open:
    """Begin a subscription."""

    id: str
    asked: SubscribeRequest | Joined | Played


@dataclass(frozen=True, slots=True)
class Drop:
    """End a subscription, and say so."""

    id: str


@dataclass(frozen=True, slots=True)
class Grant:
    """Send so many records more."""

    id: str
    count: int


@dataclass(frozen=True, slots=True)
class Steer:
    """Pause, resume, step, or change the speed of a replay."""

    id: str
    frame: frames.ReplayFrame


@dataclass(frozen=True, slots=True)
class Commit:
    """A consumer group has come so far."""

    id: str
    cursor: str


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Records of a share group: what became of them."""

    id: str
    frame: frames.Acknowledge


@dataclass(frozen=True, slots=True)
class Write:
    """Write records, and send the receipt in its turn."""

    frame: frames.Produce
    text: str | bytes  # as it came: it shows what stands twice


@dataclass(frozen=True, slots=True)
class Say:
    """Send this."""

    frame: frames.ServerFrame


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection."""

    close: Close


Action = Open | Drop | Grant | Steer | Commit | Acknowledge | Write | Say | CloseConnection


@dataclass(slots=True)
class _Subscription:
    kind: str  # follow, replay, consumer, share
    permitted: int | None  # over its life; None: it was made without permits
    closing: bool = False  # its id is free when its end was said


class PushSession:
    """One connection's. Lives as long as it; called by its reader only, but for `ended`."""

    def __init__(self, limits: Limits, *, operator: bool = True) -> None:
        self._limits = limits
        self._operator = operator  # may write, and work in groups
        self._open: dict[str, _Subscription] = {}
        self._garbage = 0
        self._over = False

    @property
    def subscriptions(self) -> int:
        return len(self._open)

    def take(self, text: str | bytes, *, now_us: int) -> list[Action]:
        """A text frame. Nothing more comes of any after the connection's end."""
        if self._over:
            return []
        # A character is a byte at least, so this bounds the bytes as well as the server's own limit on frames does.
        if len(text) > self._limits.frame_bytes_max:
            return self._end(Close.TOO_LARGE)
        try:
            frame = frames.read(text)
        except Problem as problem:
            return self._garbled(text, problem)
        try:
            return self._act(frame, text, now_us)
        except Problem as problem:
            return [Say(frames.error_of(problem, id_=frame.id, of=type_of(frame)))]

    def take_binary(self) -> list[Action]:
        return [] if self._over else self._end(Close.BINARY)

    def ended(self, id_: str) -> bool:
        """A subscription is over: its id is free. False: that was said before."""
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
        return [Say(frames.error_of(problem, id_=id_, of=of))]

    def _act(self, frame: frames.ClientFrame, text: str | bytes, now_us: int) -> list[Action]:
        match frame:
            case frames.Ping():
                return [Say(frames.Pong(frame.id))]
            case frames.Subscribe():
                return [self._subscribe(frame, now_us)]
            case frames.Unsubscribe():
                self._known(frame.id).closing = True
                return [Drop(frame.id)]
            case frames.Permit():
                return [self._permit(frame)]
            case frames.ReplayFrame():
                return [self._replay(frame)]
            case frames.Produce():
                return [self._produce(frame, text)]
            case _:
                return [self._acknowledge(frame)]

    def _subscribe(self, frame: frames.Subscribe, now_us: int) -> Action:
        if frame.id in self._open:
            raise Problem("SUBSCRIPTION_EXISTS", f"there is a subscription {frame.id!r} on this connection")
        if len(self._open) >= self._limits.subscriptions_max:
            raise Problem(
                "TOO_MANY_SUBSCRIPTIONS",
                f"{self._limits.subscriptions_max} subscriptions on one connection",
                more={"subscriptions_max": self._limits.subscriptions_max},
            )
        asked = of_frame(frame, now_us=now_us, span_ms_max=self._limits.replay_ms_max)
        match asked:
            case Joined():
                self._may("be a member of a group")
                kind: str = asked.group.kind
            case Played():
                kind = "replay"
            case _:
                kind = "follow"
        self._open[frame.id] = _Subscription(kind, frame.permits)
        return Open(frame.id, asked)

    def _permit(self, frame: frames.Permit) -> Action:
        one = self._known(frame.id)
        if one.permitted is None:
            raise Problem("INVALID_ARGUMENT", f"subscription {frame.id!r} was made without `permits`, so it needs none")
        if one.permitted + frame.count > PERMITS_MAX:
            raise Problem("INVALID_ARGUMENT", f"more than {PERMITS_MAX} records permitted on one subscription")
        one.permitted += frame.count
        return Grant(frame.id, frame.count)

    def _replay(self, frame: frames.ReplayFrame) -> Action:
        self._of_kind(frame.id, "replay", what="replay")
        if (frame.action == "speed") != (frame.speed is not None):
            raise Problem("INVALID_ARGUMENT", '`speed` goes with the action "speed", and only with it')
        return Steer(frame.id, frame)

    def _acknowledge(self, frame: frames.Acknowledge) -> Action:
        if isinstance(frame, frames.Ack) and frame.cursor is not None and frame.records is None:
            self._of_kind(frame.id, "consumer", what="an ack with a cursor")
            return Commit(frame.id, frame.cursor)
        if isinstance(frame, frames.Ack) and (frame.cursor is not None or frame.records is None):
            raise Problem("INVALID_ARGUMENT", "give `cursor` (a consumer group) or `records` (a shared one)")
        self._of_kind(frame.id, "share", what=f"{type_of(frame)} of records")
        return Acknowledge(frame.id, frame)

    def _produce(self, frame: frames.Produce, text: str | bytes) -> Action:
        self._may("write")
        if (frame.record is None) == (frame.records is None):
            raise Problem("INVALID_ARGUMENT", "give `record` or `records`")
        return Write(frame, text)

    def _may(self, what: str) -> None:
        if not self._operator:
            raise Problem("FORBIDDEN", f"to {what} needs the role operator")

    def _known(self, id_: str) -> _Subscription:
        one = self._open.get(id_)
        if one is None or one.closing:
            raise Problem("SUBSCRIPTION_NOT_FOUND", f"there is no subscription {id_!r} on this connection")
        return one

    def _of_kind(self, id_: str, kind: str, *, what: str) -> None:
        found = self._known(id_).kind
        if found != kind:
            raise Problem("INVALID_ARGUMENT", f"subscription {id_!r} is {_KINDS[found]}; {what} is for {_KINDS[kind]}")


_KINDS: Final = {
    "follow": "one without a group",
    "replay": "a replay",
    "consumer": "in a consumer group",
    "share": "in a share group",
}


def asked_by(action: Action) -> str | None:
    """The type of the frame that an action comes of."""
    match action:
        case Acknowledge() | Write() | Steer():
            return type_of(action.frame)
        case Say() | CloseConnection():
            return None
    return {Open: "subscribe", Drop: "unsubscribe", Grant: "permit", Commit: "ack"}[type(action)]


def type_of(frame: frames.ClientFrame) -> str:
    return str(type(frame).__struct_config__.tag)
