"""The port between a WebSocket and the dashboard: the pages and channels that a client can subscribe to.

The dashboard implements it (`dashboard.subscriptions`); the session asks it about a subscribe frame, and the connection
pumps the result as its other subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from comet.admin.rules import Need
from comet_gateway.http.auth import Principal
from comet_gateway.push.pump import FrameSource


@runtime_checkable
class Controllable(Protocol):
    """A source that takes control frames: a channel."""

    def control(self, params: Mapping[str, Any]) -> None:
        """Raises Problem."""


@dataclass(frozen=True, slots=True)
class DashboardRequest:
    """A request for a page or channel that exists and that the client may see."""

    kind: Literal["page", "channel"]
    open: Callable[[str], FrameSource]  # with the subscription's id
    needs: tuple[Need, ...] = ()  # of its user, at the brokers


class Dashboard(Protocol):
    """Finds pages and channels. Pure; both raise Problem for what does not exist or needs a higher role."""

    def page(self, url: str, principal: Principal) -> DashboardRequest:
        """The page at a path and query, such as `/topics?sort=-in`."""

    def channel(self, name: str, params: Mapping[str, Any], principal: Principal) -> DashboardRequest:
        """The channel of that name."""
