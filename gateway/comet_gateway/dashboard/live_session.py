"""The pages and channels of one tab's live socket: a state machine without I/O.

    {"id": 1, "watch": "/topics?sort=-in"}     a page; replaces the page or channel of that id
    {"id": 1, "unwatch": true}
    {"id": 7, "open": "tail", "params": {…}}   a channel
    {"id": 7, "say": {…}}
    {"id": 7, "close": true}

A bad frame is answered with a problem. Binary frames, too large frames and too many malformed ones close the
connection. Closing an unknown id is no error: it may have just ended by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from comet_gateway.config import Limits
from comet_gateway.dashboard.channels import Channel
from comet_gateway.dashboard.page_request import Addresses
from comet_gateway.http.auth import Principal
from comet_gateway.http.problems import Problem
from comet_gateway.push.close_codes import Close
from comet_web.page_request import PageRequest
from comet_web.pages import Page

ID_MAX: Final = 2**31 - 1
GARBAGE_MAX: Final = 50  # malformed frames of one connection


@dataclass(frozen=True, slots=True)
class WatchPage:
    """Watch this page."""

    id: int
    page: Page
    request: PageRequest


@dataclass(frozen=True, slots=True)
class Begin:
    """Open a channel."""

    id: int
    channel: Channel
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pass:
    """Pass this message to a channel."""

    id: int
    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Leave:
    """End the page or channel of this id."""

    id: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Send a problem; `id` is the frame's, if it has one."""

    id: int | None
    problem: Problem


@dataclass(frozen=True, slots=True)
class CloseLive:
    """Close the connection."""

    close: Close


Action = WatchPage | Begin | Pass | Leave | Refuse | CloseLive


@dataclass(slots=True)
class LiveSession:
    """The state of one connection. Lives as long as it; only its reader calls it, except `ended`."""

    limits: Limits
    addresses: Addresses
    channels: Mapping[str, Channel]
    principal: Principal
    is_open: bool  # no login required
    _held: dict[int, str] = field(default_factory=dict)  # id -> page, channel
    _garbage: int = 0

    def take(self, text: str) -> list[Action]:
        """The actions for a text frame."""
        if len(text) > self.limits.frame_bytes_max:
            return [CloseLive(Close.TOO_LARGE)]
        id_: int | None = None
        try:
            frame = _read(text)
            found = frame.get("id")
            if isinstance(found, bool) or not isinstance(found, int) or not 0 < found <= ID_MAX:
                raise Problem("MALFORMED_FRAME", f"`id` must be a whole number from 1 to {ID_MAX}")
            id_ = found
            return self._act(id_, frame)
        except Problem as problem:
            if problem.code == "MALFORMED_FRAME":
                self._garbage += 1
                if self._garbage > GARBAGE_MAX:
                    return [CloseLive(Close.GARBAGE)]
            return [Refuse(id_, problem)]

    def take_binary(self) -> list[Action]:
        return [CloseLive(Close.BINARY)]

    def ended(self, id_: int) -> None:
        """The page or channel of this id has ended."""
        self._held.pop(id_, None)

    def _act(self, id_: int, frame: Mapping[str, Any]) -> list[Action]:
        match frame:
            case {"watch": str(url)}:
                page, request = self.addresses.find(url, self.principal, is_open=self.is_open)
                _require(page.role, self.principal, "this page")
                return [*self._take(id_, "page"), WatchPage(id_, page, request)]
            case {"open": str(kind)}:
                channel = self.channels.get(kind)
                params = frame.get("params", {})
                if channel is None or not isinstance(params, dict):
                    raise Problem("NOT_FOUND", f"channel {kind[:40]!r} with these params does not exist")
                self.principal.require(channel.role)
                return [*self._take(id_, "channel"), Begin(id_, channel, params)]
            case {"say": dict(message)}:
                if self._held.get(id_) != "channel":
                    raise Problem("SUBSCRIPTION_NOT_FOUND", f"channel {id_} is not open on this connection")
                return [Pass(id_, message)]
            case {"unwatch": True} | {"close": True}:
                return [Leave(id_)] if self._held.pop(id_, None) is not None else []
        raise Problem("MALFORMED_FRAME", "a frame needs `watch`, `unwatch`, `open`, `say` or `close`")

    def _take(self, id_: int, what: str) -> list[Action]:
        taken: list[Action] = [Leave(id_)] if id_ in self._held else []
        if not taken and len(self._held) >= self.limits.watches_max:
            most = self.limits.watches_max
            raise Problem("TOO_MANY_SUBSCRIPTIONS", f"{most} pages and channels are open on this connection, the limit")
        self._held[id_] = what
        return taken


def _require(role: int, principal: Principal, what: str) -> None:
    if principal.role < role:
        raise Problem("FORBIDDEN", f"{what} needs a higher role; {principal.name} is {principal.role.name.lower()}")


def _read(text: str) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise Problem("MALFORMED_FRAME", "a frame must be JSON") from None
    if not isinstance(found, dict):
        raise Problem("MALFORMED_FRAME", "a frame must be an object")
    return found
