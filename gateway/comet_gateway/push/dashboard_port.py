"""The port between a WebSocket and the dashboard: the pages and channels that a client can subscribe to.

The dashboard implements it (`dashboard.subscriptions`); the session asks it about a subscribe frame, and the connection
runs the result beside its other subscriptions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from comet_gateway.http.auth import Principal
from comet_gateway.http.wire import Wire
from comet_gateway.push import frames


class DashboardSubscription(ABC):
    """A page or channel of one client. Run by its own task, which the connection cancels to end it."""

    @abstractmethod
    async def run(self) -> frames.EndFrame:
        """Writes its frames to the end. Raises Problem, CometError, Gone."""

    def control(self, params: Mapping[str, Any]) -> None:
        """Takes the client's `control` frame. Raises Problem. The session passes it to channels only."""
        raise NotImplementedError(type(self).__name__)


@dataclass(frozen=True, slots=True)
class DashboardRequest:
    """A request for a page or channel that exists and that the client may see."""

    kind: Literal["page", "channel"]
    open: Callable[[str, Wire], DashboardSubscription]  # with the subscription's id


class Dashboard(Protocol):
    """Finds pages and channels. Pure; both raise Problem for what does not exist or needs a higher role."""

    def page(self, url: str, principal: Principal) -> DashboardRequest:
        """The page at a path and query, such as `/topics?sort=-in`."""

    def channel(self, name: str, params: Mapping[str, Any], principal: Principal) -> DashboardRequest:
        """The channel of that name."""
